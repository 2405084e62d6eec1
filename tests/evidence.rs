//! What an operator sees of pouring, and what pouring does when something goes wrong: counted, bounded, nobody else's business.

use std::collections::BTreeSet;

use crate::support;
use pgsluice::coalesce::batch::COPY_ROWS;
use pgsluice::wire::{backend, frontend};
use support::console::{Row, find, show, tell, until};
use support::crowd::{self, comparable};
use support::pouring::{
    CLIENTS, FLUSH_WAITS, ROUNDS, crowd_of, errors, number, rows_and_commands, send_insert, servers, tags,
    until_poured, waiting, warmed,
};
use support::{PATIENCE, PgOptions, Postgres, Proxy, Raw, Step, poll};

fn console(proxy: &Proxy) -> Raw {
    Raw::login(proxy.port(), "pgsluice")
}

/// The row of SHOW COALESCE for a table.
fn lane(console: &mut Raw, db: &str, table: &str) -> Option<Row> {
    find(console, "SHOW COALESCE", &[("database", db), ("table", table)])
}

fn count(row: &Row, column: &str) -> u64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column} is {:?}", row[column]))
}

/// Four single INSERTs of `(a, b)`.
fn four(table: &str, client: usize, round: usize) -> Vec<Step> {
    (0..4)
        .map(|i| {
            Step::query(&format!("INSERT INTO {table} (a, b) VALUES ({}, 'x')", number(client, round, i)))
        })
        .collect()
}

#[test]
fn a_flush_is_linked_to_its_clients_and_to_its_rows() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_poured(pg, &mut clients, &db, "t", |c, r| four("t", c, r));
    let mut console = console(&proxy);
    let known: BTreeSet<String> =
        show(&mut console, "SHOW CLIENTS").into_iter().map(|row| row["id"].clone()).collect();
    let flushes = show(&mut console, "SHOW COALESCE_FLUSHES");
    let lane = lane(&mut console, &db, "public.t").expect("a lane");
    let committed: Vec<&Row> = flushes.iter().filter(|row| row["outcome"] == "committed").collect();
    assert_eq!(committed.len() as u64, count(&lane, "flushes"));
    assert_eq!(committed.iter().map(|row| count(row, "rows")).sum::<u64>(), count(&lane, "rows"));
    for flush in committed {
        assert_eq!((flush["database"].as_str(), flush["table"].as_str()), (db.as_str(), "public.t"));
        // coalesce.values_max_rows
        assert_eq!(flush["plan"], if count(flush, "rows") > 16 { "copy_text" } else { "values" });
        let stored = pg.psql(&db, &format!("SELECT count(*) FROM t WHERE xmin::text = '{}'", flush["xid"]));
        assert_eq!(stored.trim(), flush["rows"]);
        let ids: Vec<&str> = flush["client_ids"].split(' ').collect();
        assert_eq!(ids.len().to_string(), flush["clients"]);
        assert!(ids.iter().all(|id| known.contains(*id)), "{ids:?} in {known:?}");
        assert!(count(flush, "server_pid") > 0 && count(flush, "duration_us") > 0);
    }
    let numbers: Vec<u64> = flushes.iter().map(|row| count(row, "flush")).collect();
    assert!(numbers.is_sorted_by(|a, b| a > b), "the last one first: {numbers:?}");
    for what in ["rows_", "flush_us_", "wait_us_"] {
        let [p50, p99, max] = ["p50", "p99", "max"].map(|q| count(&lane, &format!("{what}{q}")));
        assert!(p50 <= p99 && p99 <= max && max > 0, "{what}: {p50} {p99} {max}");
    }
    assert!(count(&lane, "rows_max") <= (CLIENTS * 4) as u64);
}

/// Two clients, so that batches have two rows at most; every tenth of the first one's violates a CHECK. Then tables whose rows must
/// be told apart by their lines.
#[test]
fn a_few_rows_leave_as_one_insert_where_that_is_exact() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(
        "CREATE TABLE t (a int CHECK (a <> 7), b text, c int DEFAULT 5, d text DEFAULT upper('d'));
         CREATE DOMAIN word AS text; CREATE TABLE domain (a int, b word);
         CREATE TABLE quiet (a int, b text, c text GENERATED ALWAYS AS (upper(b)) STORED);
         CREATE TABLE loud (a int, b text, c tsvector GENERATED ALWAYS AS (to_tsvector('simple', b)) STORED);
         CREATE TABLE parted (a int, b text) PARTITION BY LIST (b);
         CREATE TABLE part PARTITION OF parted FOR VALUES IN ('x')",
    );
    let proxy = Proxy::to(pg, "", "", "");
    let mut console = console(&proxy);
    let mut clients = crowd_of(proxy.port(), &db, 3);
    let mut seen = |table: &str, wanted: fn(&Row) -> bool| {
        let lane = poll(PATIENCE, || {
            pg.psql(&db, &format!("TRUNCATE {table}"));
            until_poured(pg, &mut clients, &db, table, |c, r| four(table, c, r));
            let lane = lane(&mut console, &db, &format!("public.{table}"))?;
            wanted(&lane).then_some(lane)
        });
        lane.unwrap_or_else(|| panic!("no such flush of {table}"))
    };
    for table in ["t", "quiet"] {
        let lane = seen(table, |lane| count(lane, "flushes") > 9);
        assert_eq!(lane["values_rows"], lane["rows"], "{table}");
    }
    for table in ["domain", "loud", "parted"] {
        let lane = seen(table, |lane| count(lane, "flushes") > 9);
        assert_eq!(lane["values_rows"], "0", "{table}");
    }
    // The guilty one hears its own error, and is found by a COPY.
    let direct = Raw::login(pg.port(), &db).query("INSERT INTO t (a, b) VALUES (7, 'x')");
    let before = count(&lane(&mut console, &db, "public.t").expect("a lane"), "isolated");
    let guilty = poll(PATIENCE, || {
        let step = |a: usize| Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, 'x')"));
        let scripts = [vec![step(7), step(1)], vec![step(2), step(3)], vec![step(4), step(5)]];
        let seen = crowd::run(&mut clients, &scripts, false);
        assert_eq!(comparable(&errors(&seen[0])), comparable(&errors(&direct)));
        assert!(seen[1..].iter().all(|seen| errors(seen).is_empty()));
        (count(&lane(&mut console, &db, "public.t")?, "isolated") > before).then_some(())
    });
    assert!(guilty.is_some(), "no row was isolated");
    let lane = lane(&mut console, &db, "public.t").expect("a lane");
    assert!(count(&lane, "values_rows") < count(&lane, "rows"), "COPYs follow a failure");
}

#[test]
fn what_was_counted_survives_a_reload_and_a_change_of_the_table() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_poured(pg, &mut clients, &db, "t", |c, r| four("t", c, r));
    let mut console = console(&proxy);
    let tables = [("database", db.as_str()), ("table", "public.t"), ("eligible", "yes")];
    let before = lane(&mut console, &db, "public.t").expect("a lane");
    tell(&mut console, "RELOAD");
    let after = lane(&mut console, &db, "public.t").expect("its counters");
    for column in ["rows", "flushes", "singles", "flush_us_max"] {
        assert_eq!(before[column], after[column], "{column}");
    }
    assert_eq!((after["state"].as_str(), after["lanes"].as_str()), ("none", "0"));
    assert!(find(&mut console, "SHOW COALESCE_TABLES", &tables).is_some());
    pg.psql(&db, "TRUNCATE t; ALTER TABLE t ADD c int");
    until_poured(pg, &mut clients, &db, "t", |c, r| four("t", c, r));
    let later = lane(&mut console, &db, "public.t").expect("its counters");
    assert!(count(&later, "rows") > count(&before, "rows"));
    assert_eq!(later["mode"], "on");
}

fn stats(console: &mut Raw, db: &str) -> Row {
    find(console, "SHOW STATS_TOTALS", &[("database", db)]).expect("the database")
}

/// What is counted of a transaction may come a moment after its answer.
fn settled(console: &mut Raw, db: &str) -> Row {
    let mut last = stats(console, db);
    poll(PATIENCE, || {
        std::thread::yield_now();
        let now = stats(console, db);
        let same = now == last;
        last = now.clone();
        same.then_some(now)
    })
    .expect("counters that stand still")
}

/// Rows for `t` and `u` in every way that a client alone has them poured.
fn alone(base: usize) -> Vec<Step> {
    let insert = |i: usize| {
        let table = if i % 20 < 10 { "t" } else { "u" };
        (format!("INSERT INTO {table} (a, b) VALUES ($1, $2)"), (base + i).to_string())
    };
    let literal = |i: usize| Step::query(&format!("INSERT INTO t (a, b) VALUES ({}, 'x')", base + i));
    let extended = |i: usize| {
        let (sql, a) = insert(i);
        Step::extended(&sql, &[Some(&a), Some("x")])
    };
    let joined = |steps: Vec<Step>| Step {
        ready: steps.len(),
        bytes: steps.into_iter().flat_map(|step| step.bytes).collect(),
    };
    let query = |sql: &str| Step::query(sql);
    let mut steps = Vec::new();
    // Statement by statement, literals and parameters; and what comes to nothing.
    steps.push(query("BEGIN"));
    steps.extend((0..12).map(literal));
    steps.extend((12..24).map(extended));
    steps.push(query("COMMIT"));
    steps.extend([
        query("BEGIN"),
        literal(0),
        extended(1),
        query("ROLLBACK"),
        query("BEGIN"),
        query("COMMIT"),
    ]);
    // A run inside a block, and one with its BEGIN.
    steps.extend([query("BEGIN"), query("SELECT 1")]);
    steps.extend([joined((100..120).map(extended).collect()), query("SELECT 2"), query("COMMIT")]);
    let opened = std::iter::once(Step::extended("BEGIN", &[])).chain((200..220).map(extended));
    steps.extend([joined(opened.collect()), query("SELECT 3"), query("COMMIT")]);
    // A whole block.
    let block = std::iter::once(query("BEGIN")).chain((300..320).map(extended));
    steps.push(joined(block.chain([query("COMMIT")]).collect()));
    steps
}

/// However a row leaves, it is counted, and what a client did is counted as if nothing were poured.
#[test]
fn what_is_poured_counts_as_what_is_not() {
    // Runs, one with its BEGIN, and a whole block; a BEGIN is held with `deferred`, and a block up to its COMMIT.
    counts_as_if_nothing_were_poured("", &[("committed", "20"), ("in_block", "20")]);
    let held = [("committed", "24"), ("committed", "20"), ("in_block", "20")];
    counts_as_if_nothing_were_poured("deferred = true", &held);
}

/// `wanted`: outcomes and rows of flushes that come of it once everything is learnt.
fn counts_as_if_nothing_were_poured(settings: &str, wanted: &[(&str, &str)]) {
    let pg = Postgres::shared();
    let setup = "CREATE TABLE t (a int, b text); CREATE TABLE u (a int, b text)";
    let side = |settings: &str| {
        let db = pg.fresh_database(setup);
        let proxy = Proxy::to(pg, "", "", settings);
        (Raw::login(proxy.port(), &db), console(&proxy), db, proxy)
    };
    let (mut plain, mut plain_console, plain_db, _plain_proxy) = side("[coalesce]\nmode = \"off\"");
    let (mut client, mut console, db, _proxy) = side(&format!("[coalesce]\n{settings}"));
    let numbers =
        ["query_count", "xact_count", "client_parse_count", "bind_count", "bytes_received", "bytes_sent"];
    // A run whose rows have the transaction of their block began behind the client's own BEGIN.
    let opened = |run: &Row| {
        let rows = format!("SELECT count(*) FROM t WHERE xmin::text = '{}'", run["xid"]);
        run["outcome"] == "in_block" && pg.psql(&db, &rows).trim() == "10"
    };
    let (mut flushes, mut round) = (Vec::new(), 0);
    let all = poll(PATIENCE, || {
        round += 1;
        for step in alone(round * 1000) {
            let answers = [&mut plain, &mut client].map(|client| {
                client.send(&step.bytes);
                (0..step.ready).map(|_| comparable(&client.read_until_ready())).collect::<String>()
            });
            assert_eq!(answers[0], answers[1]);
        }
        let mut sides = [(); 2].map(|()| numbers.map(|n| (n, 0)));
        let same = poll(PATIENCE, || {
            let both = [(&mut plain_console, &plain_db), (&mut console, &db)];
            sides =
                both.map(|(console, db)| stats(console, db)).map(|row| numbers.map(|n| (n, count(&row, n))));
            (sides[0] == sides[1]).then_some(())
        });
        assert!(same.is_some(), "round {round}: {:?}, not {:?}", sides[1], sides[0]);
        flushes = show(&mut console, "SHOW COALESCE_FLUSHES");
        let there = |(outcome, rows): &(&str, &str)| {
            flushes.iter().any(|row| row["outcome"] == *outcome && row["rows"] == *rows)
        };
        (wanted.iter().all(there) && (!settings.is_empty() || flushes.iter().any(opened))).then_some(())
    });
    assert!(all.is_some(), "not all that can be poured was: {flushes:?}");
    let clients: BTreeSet<&String> = flushes.iter().map(|row| &row["client_ids"]).collect();
    assert_eq!(clients.len(), 1, "{clients:?}");
    // Each table has its own rows.
    let lanes = show(&mut console, "SHOW COALESCE");
    let poured: u64 = lanes.iter().map(|row| count(row, "rows")).sum();
    let each = ["public.t", "public.u"].map(|table| {
        let by = [("database", db.as_str()), ("table", table), ("eligible", "yes")];
        count(&find(&mut console, "SHOW COALESCE_TABLES", &by).expect("a table"), "rows")
    });
    assert_eq!(each.iter().sum::<u64>(), poured);
    assert!(each.iter().all(|rows| *rows > 0), "{each:?}");
}

#[test]
fn poured_rows_count_as_queries_and_transactions() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    let mut console = console(&proxy);
    let before = settled(&mut console, &db);
    let poured = count(&lane(&mut console, &db, "public.t").expect("a lane"), "rows");
    let scripts: Vec<Vec<Step>> = (0..CLIENTS)
        .map(|c| {
            (0..10)
                .map(|i| {
                    let a = number(c, ROUNDS, i).to_string();
                    Step::extended("INSERT INTO t (a, b) VALUES ($1, $2)", &[Some(&a), Some("x")])
                })
                .collect()
        })
        .collect();
    let mut sent = 0;
    for _ in 0..ROUNDS {
        for seen in crowd::run(&mut clients, &scripts, false) {
            sent += tags(&seen).len() as u64;
        }
        let lanes = show(&mut console, "SHOW COALESCE");
        let rows: u64 = lanes.iter().filter(|row| row["database"] == db).map(|row| count(row, "rows")).sum();
        if rows > poured {
            break;
        }
    }
    let more = |column: &str, expected: u64| {
        let mut last = 0;
        let seen = poll(PATIENCE, || {
            let now =
                find(&mut Raw::login(proxy.port(), "pgsluice"), "SHOW STATS_TOTALS", &[("database", &db)])?;
            last = count(&now, column) - count(&before, column);
            (last == expected).then_some(())
        });
        assert!(seen.is_some(), "{column}: {last} more, not {expected}");
    };
    for column in ["query_count", "xact_count", "client_parse_count", "bind_count"] {
        more(column, sent);
    }
    let bytes = scripts[0][0].bytes.len() as u64;
    let after = stats(&mut console, &db);
    assert!(count(&after, "bytes_received") - count(&before, "bytes_received") >= sent * (bytes - 4));
    assert!(count(&after, "bytes_sent") > count(&before, "bytes_sent"));
}

#[test]
fn prepared_statements_of_a_client_are_shown() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let proxy = Proxy::to(pg, "", "", "");
    let mut client = Raw::login(proxy.port(), &db);
    let mut console = console(&proxy);
    // Also of a client whose transaction is open.
    client.rows("BEGIN");
    for name in ["one", "two"] {
        client.send(&Step::prepare(name, "SELECT $1::int").bytes);
        client.read_until_ready();
    }
    let shown = |n: &'static str| [("database", db.as_str()), ("prepared_statements", n)];
    until(&mut console, "SHOW CLIENTS", &shown("2"));
    client.rows("COMMIT");
    until(&mut console, "SHOW CLIENTS", &shown("2"));
    client.rows("DEALLOCATE ALL");
    until(&mut console, "SHOW CLIENTS", &shown("0"));
}

/// Neither gains by a COPY of two rows what it would lose by its wait.
#[test]
fn two_sessions_do_not_wait_for_each_other() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, 2);
    let mut console = console(&proxy);
    let mut sent = 0;
    let mut insert = |console: &mut Raw| {
        let scripts: Vec<_> = (0..2).map(|c| four("t", c, 0)).collect();
        crowd::run(&mut clients, &scripts, false);
        sent += 8;
        (sent, lane(console, &db, "public.t"))
    };
    let learnt = poll(PATIENCE, || insert(&mut console).1);
    assert!(learnt.is_some(), "the table was never learnt");
    let (sent_before, before) = insert(&mut console);
    let before = before.expect("a lane");
    let (sent, after) = (0..ROUNDS).map(|_| insert(&mut console)).last().expect("rounds");
    let after = after.expect("a lane");
    assert_eq!(count(&after, "singles") - count(&before, "singles"), sent - sent_before);
    for column in ["flushes", "fallbacks", "passed_through"] {
        assert_eq!(after[column], "0", "{column}");
    }
}

#[test]
fn shadow_says_what_it_would_pour_and_pours_nothing() {
    let pg = Postgres::start(PgOptions { conf: "log_statement = 'all'".into(), ..PgOptions::default() });
    let db = pg.fresh_database(
        "CREATE TABLE t (a int, b text); CREATE TABLE ruled (a int, b text);
         CREATE RULE r AS ON INSERT TO ruled DO ALSO NOTHING",
    );
    let proxy = Proxy::to(&pg, "", "", "[coalesce]\nmode = \"shadow\"");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let mut console = console(&proxy);
    let mut round = 0;
    let said = poll(PATIENCE, || {
        round += 1;
        for table in ["t", "ruled"] {
            let scripts: Vec<_> = (0..CLIENTS).map(|c| four(table, c, round)).collect();
            for seen in crowd::run(&mut clients, &scripts, false) {
                assert_eq!(tags(&seen).len(), 4, "{}", comparable(&seen));
            }
        }
        let lane = lane(&mut console, &db, "public.t").filter(|lane| lane["shadow"] != "0")?;
        let by = [("database", db.as_str()), ("table", "ruled"), ("eligible", "no")];
        Some((lane, find(&mut console, "SHOW COALESCE_TABLES", &by)?))
    });
    let (lane, ruled) = said.expect("it never said anything");
    assert_eq!(
        (lane["mode"].as_str(), lane["rows"].as_str(), lane["flushes"].as_str()),
        ("shadow", "0", "0")
    );
    assert!(ruled["reason"].contains("rule"), "{ruled:?}");
    assert!(show(&mut console, "SHOW COALESCE_FLUSHES").is_empty());
    let (rows, commands) = rows_and_commands(&pg, &db, "t");
    assert_eq!(rows, commands);
    assert!(!pg.log().contains("COPY "), "a COPY reached the server");
}

/// `guilty(n)`: the n-th row violates something. What the server had to run for `rows` rows, without what they were warmed
/// up by: COPYs, and rows one by one.
fn with_guilty_rows(
    setup: &str,
    rounds: usize,
    guilty: impl Fn(usize) -> bool,
    sqlstate: &str,
) -> (u64, u64) {
    const EACH: usize = 4;
    const MANY: usize = 32;
    let pg = Postgres::shared();
    let db = pg.fresh_database(setup);
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = warmed(pg, &proxy, &db, MANY);
    let mut console = console(&proxy);
    let sum = |row: &Row| {
        ["flushes", "failures", "singles", "fallbacks", "passed_through"]
            .iter()
            .map(|c| count(row, c))
            .sum::<u64>()
    };
    let before = sum(&lane(&mut console, &db, "public.t").expect("a lane"));
    for r in 0..rounds {
        let bad = |c: usize, i: usize| guilty((r * EACH + i) * MANY + c);
        let scripts: Vec<Vec<Step>> = (0..MANY)
            .map(|c| {
                (0..EACH)
                    .map(|i| {
                        let b = if bad(c, i) { "bad" } else { "w" };
                        Step::query(&format!("INSERT INTO t (a, b) VALUES ({}, '{b}')", number(c, r, i)))
                    })
                    .collect()
            })
            .collect();
        for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
            let ended =
                seen.iter().filter(|m| matches!(m.tag, backend::COMMAND_COMPLETE | backend::ERROR_RESPONSE));
            for (i, message) in ended.enumerate() {
                if bad(c, i) {
                    assert_eq!(message.tag, backend::ERROR_RESPONSE, "{}", message.outline());
                    assert_eq!(message.sqlstate(), sqlstate);
                    assert!(!message.field(b'W').contains("COPY"), "{}", message.outline());
                } else {
                    assert_eq!(message.tag, backend::COMMAND_COMPLETE, "{}", message.outline());
                }
            }
        }
    }
    let rows = rounds * EACH * MANY;
    let good = (0..rows).filter(|n| !guilty(*n)).count();
    assert_eq!(pg.psql(&db, "SELECT count(*) FROM t").trim(), good.to_string());
    let after = lane(&mut console, &db, "public.t").expect("a lane");
    println!("{rows} rows, {} guilty: {after:?}", rows - good);
    (sum(&after) - before, rows as u64)
}

/// Errors that name the row, and one that does not.
const CHECKED: &str = "CREATE TABLE t (a int, b text CHECK (b <> 'bad'))";
const REFERRED: &str = "CREATE TABLE words (b text PRIMARY KEY); INSERT INTO words VALUES ('w');
    CREATE TABLE t (a int, b text REFERENCES words)";

#[test]
fn one_guilty_row_in_a_hundred_costs_little() {
    for (setup, sqlstate) in [(CHECKED, "23514"), (REFERRED, "23503")] {
        let (statements, rows) = with_guilty_rows(setup, 8, |n| n % 100 == 50, sqlstate);
        assert!(statements < rows, "{statements} for {rows} rows");
    }
}

#[test]
fn half_of_the_rows_guilty_costs_little_more_than_without_pouring() {
    for (setup, sqlstate) in [(CHECKED, "23514"), (REFERRED, "23503")] {
        let (statements, rows) = with_guilty_rows(setup, 8, |n| n % 2 == 0, sqlstate);
        assert!(statements < rows * 3 / 2, "{statements} for {rows} rows");
    }
}

#[test]
fn a_notice_is_its_own_clients() {
    let pg = Postgres::shared();
    let setup =
        "CREATE TABLE t (a int, b text, c tsvector GENERATED ALWAYS AS (to_tsvector('simple', b)) STORED);
        CREATE TABLE q (a int, b tsquery)";
    let (db, twin) = (pg.fresh_database(setup), pg.fresh_database(setup));
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    let mut direct = Raw::login(pg.port(), &twin);
    let long = "w".repeat(3000);
    let step = |a: usize, b: &str| Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, '{b}')"));
    direct.send(&step(0, &long).bytes);
    let expected = comparable(&direct.read_until_ready());
    assert!(expected.starts_with("N S=\"NOTICE\""), "{expected}");
    let mut console = console(&proxy);
    for r in 0..ROUNDS {
        let scripts: Vec<Vec<Step>> = (0..CLIENTS)
            .map(|c| (0..4).map(|i| step(number(c, r, i), if c == 0 { &long } else { "w" })).collect())
            .collect();
        for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
            if c == 0 {
                assert_eq!(comparable(seen), expected.repeat(4));
            } else {
                assert!(seen.iter().all(|m| m.tag != backend::NOTICE_RESPONSE), "{}", comparable(seen));
            }
        }
        if lane(&mut console, &db, "public.t").is_some_and(|lane| lane["notices"] != "0") {
            break;
        }
    }
    let lane = lane(&mut console, &db, "public.t").expect("a lane");
    assert_ne!(lane["notices"], "0", "no notice came with a flush");
    // A type whose input function sends notices is not poured into.
    clients[0].rows("INSERT INTO q VALUES (1, '')");
    until(&mut console, "SHOW COALESCE_TABLES", &[("database", &db), ("table", "q"), ("eligible", "no")]);
}

/// The values of `b` in each row of each INSERT.
type Inserts<'a> = &'a [&'a [&'a str]];

/// The same where they are poured inside a block: in the places where the server says so of each INSERT.
#[test]
fn a_notice_inside_a_block_is_told_with_its_row() {
    let pg = Postgres::shared();
    let setup =
        "CREATE TABLE t (a int, b text, c tsvector GENERATED ALWAYS AS (to_tsvector('simple', b)) STORED);
        CREATE TABLE u (a int, b text, c tsvector GENERATED ALWAYS AS (to_tsvector('simple', b)) STORED)";
    let (db, twin) = (pg.fresh_database(setup), pg.fresh_database(setup));
    let proxy = Proxy::to(pg, "", "", "");
    let mut client = Raw::login(proxy.port(), &db);
    let mut direct = Raw::login(pg.port(), &twin);
    let mut console = console(&proxy);
    let long = "w".repeat(3000);
    // A table with what each INSERT of a run says; several rows of a statement say it before its one tag.
    let put = |out: &mut Vec<u8>, table: &str, values: Inserts<'_>| {
        for rows in values {
            let places: Vec<String> =
                (0..rows.len()).map(|row| format!("(${}, ${})", 2 * row + 1, 2 * row + 2)).collect();
            let sql = format!("INSERT INTO {table} (a, b) VALUES {}", places.join(", "));
            frontend::put_parse(out, b"", sql.as_bytes(), &[]);
            let params: Vec<_> = rows.iter().flat_map(|b| [Some(&b"1"[..]), Some(b.as_bytes())]).collect();
            frontend::put_bind_text(out, b"", &params);
            frontend::put_execute(out, b"", 0);
        }
    };
    let (l, w) = (long.as_str(), "w");
    let runs: [&[(&str, Inserts<'_>)]; 4] = [
        &[("t", &[&[l], &[w], &[l]])],
        &[("t", &[&[w], &[w], &[l], &[l], &[w]])],
        &[("t", &[&[w, l], &[l, l], &[w, w]])],
        &[("t", &[&[l], &[w], &[w]]), ("u", &[&[w], &[l], &[l]]), ("t", &[&[w], &[l]])],
    ];
    for piped in [false, true] {
        for (at, run) in runs.iter().enumerate() {
            let mut bytes = Vec::new();
            if piped {
                frontend::put_parse(&mut bytes, b"", b"BEGIN", &[]);
                frontend::put_bind_text(&mut bytes, b"", &[]);
                frontend::put_execute(&mut bytes, b"", 0);
            }
            run.iter().for_each(|(table, values)| put(&mut bytes, table, values));
            frontend::put_empty(&mut bytes, frontend::SYNC);
            let answers = |to: &mut Raw| {
                if !piped {
                    to.rows("BEGIN");
                }
                to.send(&bytes);
                let answers = comparable(&to.read_until_ready());
                to.query("ROLLBACK");
                answers
            };
            let expected = answers(&mut direct);
            assert!(expected.contains("S=\"NOTICE\""), "{expected}");
            let told = |console: &mut Raw| -> u64 {
                show(console, "SHOW COALESCE").iter().map(|lane| count(lane, "notices")).sum()
            };
            let before = told(&mut console);
            let poured = poll(PATIENCE, || {
                assert_eq!(answers(&mut client), expected, "piped {piped}, run {at}");
                (told(&mut console) > before).then_some(())
            });
            assert!(poured.is_some(), "never poured: piped {piped}, run {at}");
        }
    }
}

/// Statements with a NULL here and a sign there are shapes of their own; the catalogue is asked about their table once, and once
/// more when the table turned out to be another.
#[test]
fn a_table_is_asked_about_once_for_all_its_statements() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text, c int, d int)");
    pg.psql(&db, &format!("ALTER DATABASE {db} SET log_statement = 'all'"));
    let asked = || {
        let mine = format!("@{db} LOG:  execute");
        let question = |line: &&str| line.contains(&mine) && line.contains("WITH RECURSIVE named");
        pg.log().lines().filter(question).count()
    };
    let proxy = Proxy::to(pg, "", "", "");
    let mut console = console(&proxy);
    let mut client = Raw::login(proxy.port(), &db);
    let values = |n: usize| {
        let value = |bit: usize| if n & bit == 0 { "7" } else { ["-7", "NULL"][bit / 2 % 2] };
        format!("(1, {}, {}, {})", if n & 4 == 0 { "'x'" } else { "NULL" }, value(1), value(2))
    };
    for n in 0..8 {
        client.rows(&format!("INSERT INTO t VALUES {}", values(n)));
    }
    client.extended("INSERT INTO t (a, d) VALUES ($1, $2)", &[Some("1"), Some("2")]);
    let all = [("database", db.as_str()), ("table", "public.t"), ("eligible", "yes"), ("statements", "9")];
    until(&mut console, "SHOW COALESCE_TABLES", &all);
    assert_eq!(asked(), 1);
    pg.psql(&db, "ALTER TABLE t ADD e int; TRUNCATE t");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_poured(pg, &mut clients, &db, "t", |c, r| four("t", c, r));
    assert!(asked() > 1);
}

/// What refuses a table refuses every row into it, until it is gone; what refuses a row refuses no other one.
#[test]
fn a_refusal_is_of_the_table_or_of_the_row() {
    let pg = Postgres::shared();
    let keep = "CREATE RULE keep AS ON INSERT TO t WHERE NEW.a < 0 DO INSTEAD NOTHING";
    let db = pg.fresh_database(&format!("CREATE TABLE t (a int, b text); {keep}"));
    let proxy = Proxy::to(pg, "", "", "");
    let mut console = console(&proxy);
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let refused = poll(PATIENCE, || {
        clients[0].rows("INSERT INTO t (a, b) VALUES (1, 'x')");
        find(&mut console, "SHOW COALESCE_TABLES", &[("database", &db), ("eligible", "no")])
    });
    assert!(refused.expect("it is refused")["reason"].contains("rule"));
    for client in &mut clients {
        client.rows("INSERT INTO t (a, b) VALUES (NULL, 'x')");
        client.rows("INSERT INTO t (a, b) VALUES (-1, 'x')");
    }
    assert_eq!(pg.psql(&db, "SELECT count(*) FROM t WHERE a < 0").trim(), "0", "the rule holds");
    pg.psql(&db, "DROP RULE keep ON t; TRUNCATE t");
    console.rows("RELOAD");
    // A number for a text is left to the server, and so refused; another row with the same beginning is not.
    clients.iter_mut().for_each(|client| drop(client.rows("INSERT INTO t (a, b) VALUES (0, 7)")));
    let by_value = [("database", db.as_str()), ("eligible", "no"), ("table", "t")];
    until(&mut console, "SHOW COALESCE_TABLES", &by_value);
    clients.iter_mut().for_each(|client| drop(client.rows("INSERT INTO t (a, b) VALUES (0, 7)")));
    pg.psql(&db, "TRUNCATE t");
    until_poured(pg, &mut clients, &db, "t", |c, r| four("t", c, r));
}

/// `n` INSERTs, each with a Sync of its own, of which some are bad and some bring a notice.
fn long_pipeline(first: usize, n: usize, bad: Option<usize>, noticed: Option<usize>) -> Step {
    let rows = (0..n).map(|i| {
        let b = match i {
            _ if Some(i) == bad => "bad".to_owned(),
            _ if Some(i) == noticed => "w".repeat(3000),
            _ => "w".to_owned(),
        };
        [(first + i).to_string(), b]
    });
    Step::pipeline("INSERT INTO t (a, b) VALUES ($1, $2)", rows, true)
}

#[test]
fn a_row_is_found_in_the_one_of_several_copies_that_carries_it() {
    const EACH: usize = 150;
    let pg = Postgres::shared();
    let setup = "CREATE TABLE t (a int, b text CHECK (b <> 'bad'),
        c tsvector GENERATED ALWAYS AS (to_tsvector('simple', b)) STORED)";
    let (db, twin) = (pg.fresh_database(setup), pg.fresh_database(setup));
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let mut direct = crowd_of(pg.port(), &twin, CLIENTS);
    let mut console = console(&proxy);
    let text = [("database", db.as_str()), ("table", "public.t"), ("format", "text")];
    let found = |console: &mut Raw| {
        find(console, "SHOW COALESCE", &text).is_some_and(|lane| {
            count(&lane, "isolated") > 0
                && count(&lane, "notices") > 0
                && count(&lane, "rows_max") > 2 * COPY_ROWS as u64
        })
    };
    for r in 0..4 * ROUNDS {
        // Rows of whose pipelines are together is not ours to say: each of them is the guilty one in turn.
        let scripts: Vec<Vec<Step>> = (0..CLIENTS)
            .map(|c| {
                let (bad, noticed) =
                    ((r % CLIENTS == c).then_some(140), ((r + 1) % CLIENTS == c).then_some(120));
                vec![long_pipeline((r * CLIENTS + c) * EACH, EACH, bad, noticed)]
            })
            .collect();
        let seen = crowd::run(&mut clients, &scripts, true);
        let expected = crowd::run(&mut direct, &scripts, true);
        for (c, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
            assert_eq!(comparable(seen), comparable(expected), "client {c}, round {r}");
        }
        if r + 1 >= ROUNDS && found(&mut console) {
            break;
        }
    }
    assert!(found(&mut console), "{:?}", find(&mut console, "SHOW COALESCE", &text));
    let content = "SELECT count(*), sum(a), sum(length(b)) FROM t";
    assert_eq!(pg.psql(&db, content), pg.psql(&twin, content));
}

/// While one row waits in its own session, the others wait in the batch for as long as a flush may wait for a lock; and then
/// in the flush.
const LONG_BATCH: &str = "[coalesce]\nlock_timeout = \"800ms\"\nflush_timeout = \"900ms\"";

/// Clients of which the first waits for the table in its own session, and the others' rows in a flush. Again until the flush
/// was seen: it waits for no more than `lock_timeout`.
fn in_flight(pg: &Postgres, db: &str, clients: &mut [Raw], mut then: impl FnMut(&mut [Raw])) {
    for attempt in 0..20 {
        let mut holder = Raw::login(pg.port(), db);
        holder.rows("BEGIN");
        holder.rows("LOCK TABLE t");
        send_insert(&mut clients[0], attempt * 100);
        waiting(pg, db, 1);
        for (i, client) in clients.iter_mut().enumerate().skip(1) {
            send_insert(client, attempt * 100 + i);
        }
        let sql = servers("1", db, FLUSH_WAITS);
        let mut observer = Raw::login(pg.port(), "postgres");
        let seen = poll(PATIENCE, || {
            let flying = !observer.rows(&sql).is_empty();
            // Or it is over: then all of them wait in their own sessions.
            let over = servers("1", db, "wait_event_type = 'Lock' AND application_name <> 'pgsluice'");
            (flying || observer.rows(&over).len() == clients.len()).then_some(flying)
        });
        if seen == Some(true) {
            then(clients);
            holder.rows("COMMIT");
            return;
        }
        holder.rows("COMMIT");
        for client in clients.iter_mut() {
            client.read_until_ready();
        }
    }
    panic!("no flush was seen under way");
}

#[test]
fn a_request_to_cancel_a_row_on_its_way_is_its_clients_alone() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let proxy = Proxy::to(pg, "", "", LONG_BATCH);
    let mut clients = warmed(pg, &proxy, &db, 8);
    in_flight(pg, &db, &mut clients, |clients| clients[3].cancel(proxy.port()));
    for (i, client) in clients.iter_mut().enumerate() {
        let seen = client.read_until_ready();
        let error = errors(&seen).pop().map(|error| error.sqlstate());
        let stored = pg.psql(&db, &format!("SELECT count(*) FROM t WHERE a % 100 = {i}")).trim() != "0";
        match error.as_deref() {
            None => assert_eq!(tags(&seen), ["INSERT 0 1"]),
            Some("57014") if i == 3 => {}
            Some(_) => panic!("client {i}: {}", comparable(&seen)),
        }
        assert_eq!(error.is_none(), stored, "client {i}");
        // It is over: the next statement is not struck.
        assert_eq!(client.value("SELECT 1").as_deref(), Some("1"));
    }
}

#[test]
fn a_client_that_is_killed_with_its_row_on_its_way_goes_at_once() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let proxy = Proxy::to(pg, "", "", LONG_BATCH);
    let mut clients = warmed(pg, &proxy, &db, 8);
    let ids: Vec<String> = {
        let mut rows = show(&mut console(&proxy), "SHOW CLIENTS");
        rows.retain(|row| row["database"] == db);
        rows.into_iter().map(|row| row["id"].clone()).collect()
    };
    in_flight(pg, &db, &mut clients, |clients| {
        tell(&mut console(&proxy), &format!("KILL_CLIENT {}", ids[3]));
        let last = clients[3].read_until_closed().pop().expect("last words");
        assert_eq!((last.field(b'S').as_str(), last.sqlstate().as_str()), ("FATAL", "57P01"));
    });
    for (_, client) in clients.iter_mut().enumerate().filter(|(i, _)| *i != 3) {
        assert_eq!(tags(&client.read_until_ready()), ["INSERT 0 1"]);
    }
}

#[test]
fn rows_that_wait_when_the_process_drains_are_answered() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let mut proxy = Proxy::to(pg, "", "", LONG_BATCH);
    let mut clients = warmed(pg, &proxy, &db, 8);
    let mut idle = Raw::login(proxy.port(), &db);
    in_flight(pg, &db, &mut clients, |_| {
        proxy.terminate();
        // The flush does not wait for long: the log says it later.
        idle.read_until_closed();
    });
    let mut answered = Vec::new();
    for (i, client) in clients.iter_mut().enumerate() {
        let seen = client.read_until_closed();
        assert_eq!(errors(&seen)[0].sqlstate(), "57P01");
        // One whose statement was not taken up yet is told nothing else, and it is not run.
        match tags(&seen).as_slice() {
            [] => {}
            [tag] if tag == "INSERT 0 1" => answered.push(i.to_string()),
            _ => panic!("client {i}: {}", comparable(&seen)),
        }
    }
    assert_eq!(proxy.wait_end().code(), Some(0));
    // The first one's statement waits for the lock, and rows were on their way.
    assert!(answered.len() > 1, "{answered:?}");
    let stored = pg
        .psql(&db, "SELECT DISTINCT a % 100 FROM t WHERE a / 100 = (SELECT max(a / 100) FROM t) ORDER BY 1");
    assert_eq!(stored.lines().collect::<Vec<_>>(), answered);
}

#[test]
fn rows_beyond_the_memory_budget_go_as_they_were_sent() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy =
        Proxy::to(pg, "", "", "[coalesce]\nmax_value_bytes = 1024\nmax_bytes = 1024\nbudget_bytes = 1024");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let mut console = console(&proxy);
    let long = "x".repeat(800);
    let mut sent = 0;
    let passed = poll(PATIENCE, || {
        let scripts: Vec<Vec<Step>> = (0..CLIENTS)
            .map(|_| vec![Step::query(&format!("INSERT INTO t (a, b) VALUES (1, '{long}')")); 4])
            .collect();
        for seen in crowd::run(&mut clients, &scripts, false) {
            sent += tags(&seen).len();
            assert!(errors(&seen).is_empty(), "{}", comparable(&seen));
        }
        lane(&mut console, &db, "public.t").filter(|lane| lane["passed_through"] != "0")
    });
    let lane = passed.expect("nothing was passed through");
    assert_eq!((lane["rows"].as_str(), lane["waiting_bytes"].as_str()), ("0", "0"));
    assert_eq!(rows_and_commands(pg, &db, "t"), (sent, sent));
}
