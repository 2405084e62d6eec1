//! What of `docs/semantics.md` no other suite shows: the same conversation direct and through pgsluice, with tables that are
//! poured into before.

use crate::support;
use pgsluice::wire::{backend, frame, frontend};
use support::crowd::{self, comparable};
use support::pouring::{
    CLIENTS, ROUNDS, crowd_of, errors, number, rows_and_commands, tags, until_poured, warmed,
};
use support::{PATIENCE, Postgres, Proxy, Raw, Step, poll};

/// A client directly and one through pgsluice, in twin databases; the second one's `t (a int, b text)` is poured into.
struct Twins {
    direct: (String, Raw),
    through: (String, Raw),
    _proxy: Proxy,
}

impl Twins {
    fn new(pg: &Postgres, setup: &str) -> Self {
        let proxy = Proxy::to(pg, "", "", "");
        let (alone, db) = (pg.fresh_database(setup), pg.fresh_database(setup));
        let through = warmed(pg, &proxy, &db, CLIENTS).pop().expect("clients");
        Self { direct: (alone.clone(), Raw::login(pg.port(), &alone)), through: (db, through), _proxy: proxy }
    }

    /// Both hear the same.
    fn say(&mut self, what: &str, step: &Step) {
        let [direct, through] = [&mut self.direct.1, &mut self.through.1].map(|client| {
            client.send(&step.bytes);
            (0..step.ready).map(|_| comparable(&client.read_until_ready())).collect::<String>()
        });
        assert_eq!(placeless(&through), placeless(&direct), "{what}");
    }

    /// And both see the same.
    fn look(&self, pg: &Postgres, what: &str, sql: &str) {
        let [direct, through] = [&self.direct.0, &self.through.0].map(|db| pg.psql(db, sql));
        assert_eq!(through, direct, "{what}");
    }
}

/// Without the place of a row in its file, which depends on what was there before.
fn placeless(conversation: &str) -> String {
    let mut pieces = conversation.split("references tuple (");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |all, piece| all + piece.split_once(')').map_or(piece, |(_, rest)| rest))
}

/// Parse, then `more`, then Sync.
fn conversation(sql: &str, types: &[u32], more: impl FnOnce(&mut Vec<u8>)) -> Step {
    let mut bytes = Vec::new();
    let types: Vec<u8> = types.iter().flat_map(|oid| oid.to_be_bytes()).collect();
    frontend::put_parse(&mut bytes, b"", sql.as_bytes(), &types);
    more(&mut bytes);
    frontend::put_empty(&mut bytes, frontend::SYNC);
    Step { bytes, ready: 1 }
}

/// A Bind with these format codes, values and result formats.
fn put_bind(out: &mut Vec<u8>, formats: &[u16], values: &[&[u8]], results: &[u16]) {
    let put_codes = |out: &mut Vec<u8>, codes: &[u16]| {
        out.extend_from_slice(&(codes.len() as u16).to_be_bytes());
        codes.iter().for_each(|code| out.extend_from_slice(&code.to_be_bytes()));
    };
    frame::put(out, frontend::BIND, |out| {
        out.extend_from_slice(&[0, 0]);
        put_codes(out, formats);
        out.extend_from_slice(&(values.len() as u16).to_be_bytes());
        for value in values {
            out.extend_from_slice(&(value.len() as u32).to_be_bytes());
            out.extend_from_slice(value);
        }
        put_codes(out, results);
    });
}

#[test]
fn odd_parameter_lists_are_the_servers() {
    let pg = Postgres::shared();
    let mut twins = Twins::new(pg, "CREATE TABLE t (a int, b text)");
    let values: [&[u8]; 2] = [b"1", b"x"];
    let execute = |out: &mut Vec<u8>| frontend::put_execute(out, b"", 0);
    for sql in [
        "INSERT INTO t (a, b) VALUES ($2, $1)",
        "INSERT INTO t (b, a) VALUES ($2, $1)",
        "INSERT INTO t (a, b) VALUES ($1, $1)",
        "INSERT INTO t (a, b) VALUES ($1, $3)",
        "INSERT INTO t (a, b) VALUES ($0, $1)",
        "INSERT INTO t (a) VALUES ($1)",
        "INSERT INTO t (a, b) VALUES ($1, $2), ($2, $1)",
    ] {
        for (formats, values, results) in [
            (&[][..], &values[..], &[][..]),
            (&[0], &values, &[]),
            (&[0, 0], &values, &[0]),
            (&[0, 0, 0], &values, &[]),
            (&[2], &values, &[]),
            (&[1, 0], &[&[0, 0, 0, 7], b"x"], &[]),
            (&[1, 0], &[b"7", b"x"], &[]),
            (&[], &values[..1], &[]),
            (&[], &[&b"1"[..], b"x", b"y"], &[]),
            (&[], &[], &[]),
            (&[], &[b"1", b"a\0b"], &[]),
            (&[], &[b"1", b"\xff\xfe"], &[]),
            (&[], &values, &[1, 1]),
            (&[], &values, &[3]),
        ] {
            for types in
                [&[][..], &[23, 25], &[25, 25], &[23, 0], &[705, 705], &[999_999], &[20, 1043], &[16, 25]]
            {
                let what = format!("{sql} {formats:?} {values:?} {results:?} {types:?}");
                let step = conversation(sql, types, |out| {
                    put_bind(out, formats, values, results);
                    execute(out);
                });
                twins.say(&what, &step);
            }
        }
    }
    twins.look(pg, "rows", "SELECT a, b, count(*) FROM t GROUP BY 1, 2 ORDER BY 1, 2");
}

/// The server reads the whole text before it knows where a comment ends.
#[test]
fn comments_are_refused_for_their_bytes_as_directly() {
    let pg = Postgres::shared();
    let mut twins = Twins::new(pg, "CREATE TABLE t (a int, b text)");
    let query = |out: &mut Vec<u8>, text: &[u8]| {
        frame::put(out, frontend::QUERY, |out| frame::put_cstr(out, text));
    };
    // What is here whole leaves as a COPY.
    let block = |texts: [&[u8]; 4]| {
        let mut bytes = Vec::new();
        texts.iter().for_each(|text| query(&mut bytes, text));
        Step { bytes, ready: 4 }
    };
    let parsed = |text: &[u8]| {
        let mut bytes = Vec::new();
        for n in [b"1", b"2"] {
            frontend::put_parse(&mut bytes, b"", text, &[]);
            put_bind(&mut bytes, &[], &[n, b"x"], &[]);
            frontend::put_execute(&mut bytes, b"", 0);
        }
        frontend::put_empty(&mut bytes, frontend::SYNC);
        Step { bytes, ready: 1 }
    };
    let db = twins.through.0.clone();
    let poured = |twins: &mut Twins, step: &Step| {
        let one_command = poll(PATIENCE, || {
            twins.say("plain", step);
            let seen = rows_and_commands(pg, &db, "t");
            [&twins.direct.0, &db].into_iter().for_each(|db| drop(pg.psql(db, "DELETE FROM t")));
            (seen == (2, 1)).then_some(())
        });
        assert!(one_command.is_some(), "never poured");
    };
    let (insert, plain) =
        (&b"INSERT INTO t (a, b) VALUES (1, 'x')"[..], &b"INSERT INTO t (a, b) VALUES ($1, $2)"[..]);
    poured(&mut twins, &block([b"BEGIN", insert, insert, b"COMMIT"]));
    poured(&mut twins, &parsed(plain));
    for comment in ["-- plain", "/* café */", "-- \u{1F600}"] {
        let text = [plain, b" ", comment.as_bytes()].concat();
        twins.say(comment, &parsed(&text));
    }
    for setting in ["RESET client_encoding", "SET client_encoding = 'WIN1252'"] {
        twins.say(setting, &Step::query(setting));
        for comment in [&b"/* \xff\xfe */ "[..], b"/* \x81 */", b"-- \xe9\n"] {
            let what = format!("{setting}: {}", String::from_utf8_lossy(comment));
            let text = [comment, insert].concat();
            twins.say(&what, &block([b"BEGIN", &text, &text, b"COMMIT"]));
            twins.say(&what, &block([&[b"BEGIN ", comment].concat(), insert, insert, b"COMMIT"]));
            twins.say(&what, &block([b"BEGIN", insert, insert, &[comment, b"COMMIT"].concat()]));
            twins.say(&what, &Step::query("ROLLBACK"));
            twins.say(&what, &parsed(&[comment, plain].concat()));
        }
    }
    twins.look(pg, "rows", "SELECT a, b, count(*) FROM t GROUP BY 1, 2 ORDER BY 1, 2");
}

/// No COPY has the alias, whose bytes have to be characters, too.
#[test]
fn an_alias_is_refused_for_its_bytes_as_directly() {
    let pg = Postgres::shared();
    let mut twins = Twins::new(pg, "CREATE TABLE t (a int, b text)");
    let block = |alias: &[u8]| {
        let insert = [b"INSERT INTO t AS \"", alias, b"\" (a, b) VALUES (1, 'x')"].concat();
        let mut bytes = Vec::new();
        for text in [b"BEGIN", &insert[..], &insert, b"COMMIT"] {
            frame::put(&mut bytes, frontend::QUERY, |out| frame::put_cstr(out, text));
        }
        Step { bytes, ready: 4 }
    };
    for setting in
        ["RESET client_encoding", "SET client_encoding = 'EUC_JP'", "SET client_encoding = 'WIN1251'"]
    {
        twins.say(setting, &Step::query(setting));
        for alias in ["plain", "€", "café", "\u{98}"] {
            // The later ones are of a shape that is known.
            for _ in 0..ROUNDS {
                twins.say(&format!("{setting}: {alias}"), &block(alias.as_bytes()));
            }
        }
    }
    twins.look(pg, "rows", "SELECT a, b, count(*) FROM t GROUP BY 1, 2 ORDER BY 1, 2");
}

/// Appends messages.
type Put<'a> = &'a dyn Fn(&mut Vec<u8>);

/// A statement has another name on the server, and whether its own is one only the server can tell.
#[test]
fn names_of_statements_are_refused_for_their_bytes_as_directly() {
    let pg = Postgres::shared();
    let mut twins = Twins::new(pg, "CREATE TABLE t (a int, b text)");
    let sync = |bytes: &mut Vec<u8>| frontend::put_empty(bytes, frontend::SYNC);
    let execute = |out: &mut Vec<u8>, name: &[u8]| {
        frontend::put_bind_text(out, name, &[Some(b"1"), Some(b"x")]);
        frontend::put_execute(out, b"", 0);
    };
    for setting in
        ["RESET client_encoding", "SET client_encoding = 'EUC_JP'", "SET client_encoding = 'LATIN1'"]
    {
        twins.say(setting, &Step::query(setting));
        for name in [&b"s\xff"[..], b"\xe2\x82", b"\xf0\x9f\x98\x80\xc0", b"\xc3\xa9", b"\xa4\xa2", b"plain"]
        {
            let what = format!("{setting}: {name:?}");
            let insert = b"INSERT INTO t (a, b) VALUES ($1, $2)";
            let steps: [Put<'_>; 7] = [
                &|out| {
                    frontend::put_parse(out, name, insert, &[]);
                    execute(out, name);
                },
                &|out| execute(out, name),
                &|out| frontend::put_target(out, frontend::DESCRIBE, b'S', name),
                &|out| frontend::put_parse(out, name, b"SELECT 1", &[]),
                &|out| frontend::put_target(out, frontend::CLOSE, b'S', name),
                &|out| {
                    execute(out, name);
                    frontend::put_parse(out, name, insert, &[]);
                },
                &|out| {
                    frontend::put_parse(out, b"", insert, &[]);
                    execute(out, b"");
                    frontend::put_parse(out, name, insert, &[]);
                    frontend::put_target(out, frontend::CLOSE, b'S', name);
                    execute(out, b"");
                },
            ];
            for (at, put) in steps.iter().enumerate() {
                let mut bytes = Vec::new();
                put(&mut bytes);
                sync(&mut bytes);
                twins.say(&format!("{what}, step {at}"), &Step { bytes, ready: 1 });
            }
        }
    }
    twins.look(pg, "rows", "SELECT a, b, count(*) FROM t GROUP BY 1, 2 ORDER BY 1, 2");
}

#[test]
fn what_is_flushed_out_is_executed_and_not_committed() {
    let pg = Postgres::shared();
    let mut twins = Twins::new(pg, "CREATE TABLE t (a int, b text)");
    for again in [false, true] {
        let said = [&mut twins.direct.1, &mut twins.through.1].map(|client| {
            let mut bytes = Vec::new();
            frontend::put_parse(&mut bytes, b"", b"INSERT INTO t (a, b) VALUES ($1, $2)", &[]);
            put_bind(&mut bytes, &[], &[b"1", b"x"], &[]);
            frontend::put_execute(&mut bytes, b"", 0);
            frontend::put_empty(&mut bytes, frontend::FLUSH);
            client.send(&bytes);
            let seen: Vec<_> = (0..3).map(|_| client.read()).collect();
            comparable(&seen)
        });
        assert_eq!(said[0], said[1]);
        twins.look(pg, "nothing is committed", "SELECT count(*) FROM t");
        // What comes behind it is in the same transaction, and undoes it.
        let second = if again {
            "INSERT INTO t (a, b) VALUES ('no', 'x')"
        } else {
            "INSERT INTO t (a, b) VALUES (2, 'x')"
        };
        twins.say(
            "what follows",
            &conversation(second, &[], |out| {
                put_bind(out, &[], &[], &[]);
                frontend::put_execute(out, b"", 0);
            }),
        );
        twins.look(pg, "what is there", "SELECT a, b FROM t ORDER BY a");
    }
}

#[test]
fn children_before_their_parents_fail_as_directly() {
    let pg = Postgres::shared();
    let setup = "CREATE TABLE t (a int PRIMARY KEY, b text); CREATE TABLE c (a int REFERENCES t, b text)";
    let mut twins = Twins::new(pg, setup);
    let into = |table: &str, a: usize| {
        Step::extended(
            &format!("INSERT INTO {table} (a, b) VALUES ($1, $2)"),
            &[Some(&a.to_string()), Some("x")],
        )
    };
    for round in 0..ROUNDS {
        let a = round * 10;
        for (order, sync_each) in
            [("ct", true), ("tc", true), ("ctc", true), ("ct", false), ("tc", false), ("tctc", false)]
        {
            let a = a + order.len() + usize::from(sync_each) * 4;
            let steps = order.chars().enumerate().map(|(i, table)| {
                let table = if table == 't' { "t" } else { "c" };
                into(table, if order == "tctc" { a + i / 2 } else { a })
            });
            let (mut bytes, mut ready, mut sync) = (Vec::new(), 0, Vec::new());
            frontend::put_empty(&mut sync, frontend::SYNC);
            for step in steps {
                ready += 1;
                bytes.extend_from_slice(step.bytes.strip_suffix(&sync[..]).expect("a Sync"));
                if sync_each {
                    bytes.extend_from_slice(&sync);
                }
            }
            if !sync_each {
                bytes.extend_from_slice(&sync);
                ready = 1;
            }
            twins.say(&format!("{order} {sync_each}"), &Step { bytes, ready });
        }
        twins.look(pg, "parents", "SELECT * FROM t ORDER BY a");
        twins.look(pg, "children", "SELECT * FROM c ORDER BY a");
    }
}

/// An index row has a bound that a COPY meets in the middle of everybody's rows.
#[test]
fn a_value_too_long_for_an_index_is_its_clients_error() {
    let pg = Postgres::shared();
    let mut twins = Twins::new(pg, "CREATE TABLE t (a int, b text); CREATE INDEX t_b ON t (b)");
    let mut n = 1u64;
    let long: String = std::iter::repeat_with(|| {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'0' + (n >> 33) as u8 % 75)
    })
    .filter(|c| c.is_ascii_alphanumeric())
    .take(6000)
    .collect();
    let insert = |b: &str| Step::query(&format!("INSERT INTO t (a, b) VALUES (1, '{b}')"));
    let many: Vec<Step> = (0..6).map(|i| insert(if i == 3 { &long } else { "x" })).collect();
    let bytes = many.iter().flat_map(|step| step.bytes.clone()).collect();
    twins.say("six in one write", &Step { bytes, ready: many.len() });
    twins.look(pg, "rows", "SELECT count(*) FROM t");
}

/// Each row's `now()` is between the sending of its statement and the answer, and no two statements of a client share one.
#[test]
fn times_of_a_batch_are_each_clients_own() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text, at timestamptz DEFAULT now())");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    let (mut observer, mut poured) = (Raw::login(pg.port(), &db), false);
    for round in 0..ROUNDS {
        let before = observer.value("SELECT clock_timestamp()").expect("a time");
        let scripts: Vec<Vec<Step>> = (0..CLIENTS)
            .map(|c| {
                let one = |i| {
                    let a = number(c, round, i).to_string();
                    Step::extended("INSERT INTO t (a, b) VALUES ($1, $2)", &[Some(&a), Some("x")])
                };
                // One by one, and a Sync each in one write.
                let pipeline: Vec<Step> = (10..16).map(one).collect();
                let bytes = pipeline.iter().flat_map(|step| step.bytes.clone()).collect();
                (0..4).map(one).chain([Step { bytes, ready: pipeline.len() }]).collect()
            })
            .collect();
        for seen in crowd::run(&mut clients, &scripts, false) {
            assert_eq!(tags(&seen), vec!["INSERT 0 1"; 10]);
        }
        let wrong = format!(
            "SELECT count(*) FROM t WHERE a / 1000000 = {round} AND a >= {}
                AND at NOT BETWEEN '{before}' AND clock_timestamp()",
            number(0, round, 0)
        );
        assert_eq!(
            observer.value(&wrong).as_deref(),
            Some("0"),
            "a time before the statement, or behind its answer"
        );
        let shared = "SELECT count(*) FROM (SELECT a / 1000, at FROM t GROUP BY 1, 2 HAVING count(*) > 1) x";
        assert_eq!(observer.value(shared).as_deref(), Some("0"), "two statements of a client at one time");
        poured |= observer.value("SELECT count(*) > count(DISTINCT at) FROM t").as_deref() == Some("t");
        observer.rows("TRUNCATE t");
    }
    assert!(poured, "no two clients shared a batch");
}

/// A batch draws more than it stores where it fails. Of the last values of a sequence none is lost so.
#[test]
fn the_last_values_of_a_sequence_are_stored() {
    const LEFT: usize = CLIENTS - 1;
    let pg = Postgres::shared();
    let last = i32::MAX as usize - LEFT;
    for near in [
        format!("ALTER SEQUENCE t_id_seq RESTART WITH {}", last + 1),
        format!("SELECT setval('t_id_seq', {last})"),
        "SELECT setval('t_id_seq', 1000); ALTER SEQUENCE t_id_seq MAXVALUE 1007".to_owned(),
    ] {
        let db = pg.fresh_database("CREATE TABLE t (a int, b text, id serial)");
        let proxy = Proxy::to(pg, "", "", "[coalesce]\nlinger = \"20ms\"");
        let mut clients = warmed(pg, &proxy, &db, CLIENTS);
        pg.psql(&db, &near);
        let script = |c| vec![Step::query(&format!("INSERT INTO t (a, b) VALUES ({c}, 'x')"))];
        let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
        let seen: Vec<_> = crowd::run(&mut clients, &scripts, true).concat();
        let refused: Vec<_> = errors(&seen).iter().map(support::Message::sqlstate).collect();
        assert_eq!((tags(&seen).len(), refused), (LEFT, vec!["2200H".to_owned()]), "{near}");
        assert_eq!(pg.psql(&db, "SELECT count(DISTINCT id) FROM t").trim(), LEFT.to_string(), "{near}");
    }
}

/// Where the role may not look how far a sequence is, and that ends far away, it is poured into.
#[test]
fn a_sequence_that_the_role_may_not_read_is_drawn_from() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(
        "CREATE TABLE t (a int, b text, id int GENERATED ALWAYS AS IDENTITY);
         DROP ROLE IF EXISTS draws_unseen; CREATE ROLE draws_unseen LOGIN; GRANT INSERT, SELECT, DELETE ON t TO draws_unseen",
    );
    let proxy = Proxy::to(pg, "", "user = \"draws_unseen\"", "");
    warmed(pg, &proxy, &db, CLIENTS);
}

/// Where a session is a connection, what it drew from a sequence is what it is told that it drew.
#[test]
fn currval_is_the_sessions_own_in_session_mode() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text, id serial)");
    let proxy = Proxy::to(pg, "pool_mode = \"session\"", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    for round in 0..ROUNDS / 4 {
        let scripts: Vec<Vec<Step>> = (0..CLIENTS)
            .map(|c| {
                (0..4)
                    .flat_map(|i| {
                        let a = number(c, round, i);
                        [
                            Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, 'x')")),
                            Step::query(&format!(
                                "SELECT currval('t_id_seq') = id AND lastval() = id FROM t WHERE a = {a}"
                            )),
                        ]
                    })
                    .collect()
            })
            .collect();
        for seen in crowd::run(&mut clients, &scripts, false) {
            let own: Vec<_> =
                seen.iter().filter(|m| m.tag == backend::DATA_ROW).map(|m| m.row()[0].clone()).collect();
            assert_eq!(own, vec![Some("t".to_owned()); 4]);
        }
    }
}

/// Rows in one COPY were in one order before: that in which their client sent them.
#[test]
fn ids_of_a_pipeline_are_in_its_order() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text, id serial)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        let steps = (0..8).map(|i| {
            let a = number(c, r, i).to_string();
            Step::extended("INSERT INTO t (a, b) VALUES ($1, $2)", &[Some(&a), Some("x")])
        });
        vec![Step { bytes: steps.flat_map(|step| step.bytes).collect(), ready: 8 }]
    });
    let wrong = "SELECT count(*) FROM (SELECT id < lag(id) OVER (PARTITION BY a / 1000 ORDER BY a) AS back FROM t) x WHERE back";
    assert_eq!(pg.psql(&db, wrong).trim(), "0");
}
