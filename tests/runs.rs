//! Runs of INSERTs inside a client's own block that are struck: by a cancel told in other words, by a timeout while the block is put
//! back, by schemas that change their names while the rows wait.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support;
use pgsluice::wire::{TransactionStatus, backend as b, frame, frontend as f};
use support::console::{show, tell};
use support::crowd::{Step, comparable};
use support::relay::listen;
use support::{Message, PATIENCE, Postgres, Proxy, Raw, outline, poll};

const ROWS: usize = 20;

/// INSERTs of `first` and the numbers behind it before one Sync.
fn run(table: &str, first: usize) -> Vec<u8> {
    run_of("", table, first)
}

/// The same, of a statement with this name.
fn run_of(name: &str, table: &str, first: usize) -> Vec<u8> {
    let sql = format!("INSERT INTO {table} (id, v) VALUES ($1, $2)");
    let mut out = Vec::new();
    f::put_parse(&mut out, name.as_bytes(), sql.as_bytes(), &[]);
    for id in first..first + ROWS {
        f::put_bind_text(&mut out, name.as_bytes(), &[Some(id.to_string().as_bytes()), Some(b"x")]);
        f::put_execute(&mut out, b"", 0);
    }
    f::put_empty(&mut out, f::SYNC);
    out
}

/// A session whose runs into the table are poured.
fn learnt(proxy: &Proxy, db: &str, table: &str) -> Raw {
    learnt_as(proxy, db, table, &[""]).0
}

/// The same for a statement of each of these names; with the console.
fn learnt_as(proxy: &Proxy, db: &str, table: &str, names: &[&str]) -> (Raw, Raw) {
    let (mut client, mut console) = (Raw::login(proxy.port(), db), Raw::login(proxy.port(), "pgsluice"));
    for name in names {
        learn(&mut client, &mut console, name, table);
    }
    (client, console)
}

/// Runs of this statement, an unnamed or a named one, are poured from here on.
fn learn(client: &mut Raw, console: &mut Raw, name: &str, table: &str) {
    let before = shown(console, "rows");
    let poured = poll(PATIENCE, || {
        client.rows("BEGIN");
        client.send(&run_of(name, table, 1000));
        client.read_until_ready();
        client.query("ROLLBACK; DEALLOCATE ALL");
        (shown(console, "rows") > before).then_some(())
    });
    assert!(poured.is_some(), "never poured");
}

/// Sum of a column of `SHOW COALESCE`.
fn shown(console: &mut Raw, column: &str) -> usize {
    let lanes = show(console, "SHOW COALESCE");
    lanes.iter().map(|lane| lane[column].parse::<usize>().expect("a number")).sum()
}

fn waits_for_a_lock(pg: &Postgres, db: &str) {
    let waits = "datname = current_database() AND wait_event_type = 'Lock'";
    pg.wait_until(db, &format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE {waits}"));
}

fn states(messages: &[Message]) -> Vec<String> {
    messages.iter().filter(|m| m.tag == b::ERROR_RESPONSE).map(Message::sqlstate).collect()
}

/// Passes on what either side sends, `change` what the server does.
fn listen_and_change(target: u16, change: fn(&mut [u8])) -> u16 {
    listen(target, move |client, server| {
        let (mut down, mut to_client) =
            (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
        let (mut up, mut to_server) = (client, server);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut up, &mut to_server);
            let _ = to_server.shutdown(std::net::Shutdown::Both);
        });
        std::thread::spawn(move || pass(&mut down, &mut to_client, change));
    })
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, mut each: impl FnMut(&mut [u8])) {
    let mut piece = vec![0; 1 << 16];
    while let Ok(n) = from.read(&mut piece)
        && n > 0
    {
        each(&mut piece[..n]);
        if to.write_all(&piece[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// `lc_messages` of another language.
fn in_other_words(piece: &mut [u8]) {
    let words = b"user request";
    while let Some(at) = piece.windows(words.len()).position(|w| w == words) {
        piece[at..at + words.len()].copy_from_slice(b"Nutzerwunsch");
    }
}

#[test]
fn a_run_that_is_cancelled_fails_in_any_language() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (id int, v text)");
    let relay = listen_and_change(pg.port(), in_other_words);
    let proxy = Proxy::to(pg, "", &format!("port = {relay}"), "");
    let mut client = learnt(&proxy, &db, "t");
    let mut holder = Raw::login(pg.port(), &db);
    holder.rows("BEGIN; LOCK TABLE t");
    client.rows("BEGIN");
    client.send(&run("t", 0));
    waits_for_a_lock(pg, &db);
    client.cancel(proxy.port());
    assert_eq!(states(&client.read_until_ready()), ["57014"]);
    assert_eq!(client.error("SELECT 1").sqlstate(), "25P02");
    client.query("ROLLBACK");
    holder.rows("ROLLBACK");
    assert_eq!(client.value("SELECT count(*) FROM t").as_deref(), Some("0"));
}

/// A run that finds another table under the name goes as it was sent; nothing was drawn from the new table's sequence for it.
#[test]
fn a_table_made_anew_begins_with_its_first_numbers() {
    const TABLE: &str = "CREATE TABLE t (id int, v text, n serial)";
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLE);
    for (begin, alone) in [(true, true), (false, false), (true, false)] {
        let proxy = Proxy::to(pg, "", "", "");
        let mut client = learnt(&proxy, &db, "t");
        pg.psql(&db, &format!("DROP TABLE t; {TABLE}"));
        let mut bytes = Vec::new();
        if begin {
            f::put_query(&mut bytes, b"BEGIN");
        }
        if begin && alone {
            client.send(&std::mem::take(&mut bytes));
            client.read_until_ready();
        }
        bytes.extend(run("t", 0));
        if begin {
            f::put_query(&mut bytes, b"COMMIT");
        }
        client.send(&bytes);
        for _ in 0..1 + usize::from(begin) + usize::from(begin && !alone) {
            assert_eq!(states(&client.read_until_ready()), [""; 0], "begin {begin}");
        }
        let numbers = client.rows("SELECT min(n), max(n), count(*) FROM t");
        let [first, last] = ["1", "20"].map(|n| Some(n.to_owned()));
        assert_eq!(numbers, [[first, last.clone(), last]], "begin {begin}, alone {alone}");
    }
}

/// What puts a block back under a savepoint is answered, so many times, as if the client's `statement_timeout` had struck it.
fn listen_and_strike(target: u16, left: Arc<AtomicUsize>) -> u16 {
    listen(target, move |client, server| {
        let left = Arc::clone(&left);
        let (mut down, mut to_client) =
            (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
        std::thread::spawn(move || pass(&mut down, &mut to_client, |_| ()));
        let (mut up, mut to_server) = (client, server);
        std::thread::spawn(move || {
            let undo = b"ROLLBACK TO SAVEPOINT";
            let mut piece = vec![0; 1 << 16];
            while let Ok(n) = up.read(&mut piece)
                && n > 0
            {
                let undoes = piece[..n].windows(undo.len()).any(|w| w == undo);
                let one_less = |left: usize| left.checked_sub(1);
                let strikes =
                    undoes && left.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok();
                let mut struck = Vec::new();
                frame::put(&mut struck, b::ERROR_RESPONSE, |out| {
                    out.extend_from_slice(
                        b"SERROR\0VERROR\0C57014\0Mcanceling statement due to statement timeout\0\0",
                    );
                });
                b::put_ready_for_query(&mut struck, TransactionStatus::Failed);
                let passed = if strikes { up.write_all(&struck) } else { to_server.write_all(&piece[..n]) };
                if passed.is_err() {
                    break;
                }
            }
            let _ = to_server.shutdown(std::net::Shutdown::Both);
        });
    })
}

#[test]
fn a_timeout_that_strikes_while_a_block_is_put_back_closes_nobody() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (id int UNIQUE, v text); INSERT INTO t VALUES (7, 'taken')");
    let left = Arc::new(AtomicUsize::new(0));
    let relay = listen_and_strike(pg.port(), Arc::clone(&left));
    let proxy = Proxy::to(pg, "", &format!("port = {relay}"), "");
    let mut client = learnt(&proxy, &db, "t");
    // Twice: then the row's own error is heard. Always: what struck is.
    for (strikes, heard) in [(2, "23505"), (usize::MAX, "57014")] {
        left.store(strikes, Ordering::Release);
        // A run that failed keeps the next transactions from being looked at.
        let seen = poll(PATIENCE, || {
            client.rows("BEGIN");
            client.send(&run("t", 0));
            let seen = states(&client.read_until_ready());
            assert_eq!(client.error("SELECT 1").sqlstate(), "25P02");
            client.query("ROLLBACK");
            (left.load(Ordering::Acquire) != strikes).then_some(seen)
        });
        assert_eq!(seen.as_deref(), Some(&[heard.to_owned()][..]), "struck {strikes} times");
    }
    left.store(0, Ordering::Release);
    assert_eq!(client.value("SELECT count(*) FROM t").as_deref(), Some("1"));
}

/// While the COPY waits, the schema that its name meant gets its old name back, and the one that was planned for, too.
#[test]
fn schemas_that_are_renamed_there_and_back_while_a_copy_waits_are_seen() {
    let pg = Postgres::shared();
    // A column of a domain has the full guard look each time.
    let db = pg.fresh_database(
        "CREATE SCHEMA one; CREATE SCHEMA two; CREATE DOMAIN public.word AS text;
         CREATE TABLE one.t (id int, v public.word);
         CREATE TABLE two.t (id int GENERATED ALWAYS AS IDENTITY UNIQUE, v text)",
    );
    let proxy = Proxy::to(pg, "", "", "");
    let mut client = learnt(&proxy, &db, "one.t");
    let mut holder = Raw::login(pg.port(), &db);
    holder.rows("BEGIN; INSERT INTO two.t OVERRIDING SYSTEM VALUE VALUES (3, 'x')");
    pg.psql(&db, "ALTER SCHEMA one RENAME TO other; ALTER SCHEMA two RENAME TO one");
    client.rows("BEGIN");
    client.send(&run("one.t", 0));
    waits_for_a_lock(pg, &db);
    pg.psql(&db, "ALTER SCHEMA one RENAME TO two; ALTER SCHEMA other RENAME TO one");
    holder.rows("ROLLBACK");
    assert_eq!(states(&client.read_until_ready()), [""; 0]);
    client.rows("COMMIT");
    // `two.t` refuses a value for its column, and a COPY does not ask.
    let sql = "SELECT (SELECT count(*) FROM one.t) || ' ' || (SELECT count(*) FROM two.t)";
    assert_eq!(client.value(sql), Some(format!("{ROWS} 0")));
}

/// A default that came with ALTER ROLE: the snapshot is older than the lock that the COPY waited for.
#[test]
fn a_table_that_changes_while_a_copy_of_an_older_snapshot_waits_is_seen() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE DOMAIN word AS text; CREATE TABLE t (id int NOT NULL, v word)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut client = learnt(&proxy, &db, "t");
    pg.psql(&db, &format!("ALTER DATABASE {db} SET default_transaction_isolation = 'repeatable read'"));
    tell(&mut Raw::login(proxy.port(), "pgsluice"), "RECONNECT");
    let mut holder = Raw::login(pg.port(), &db);
    holder.rows("BEGIN; ALTER TABLE t ALTER id ADD GENERATED ALWAYS AS IDENTITY");
    let mut opened = Vec::new();
    f::put_parse(&mut opened, b"", b"BEGIN", &[]);
    f::put_bind_text(&mut opened, b"", &[]);
    f::put_execute(&mut opened, b"", 0);
    opened.extend_from_slice(&run("t", 0));
    client.send(&opened);
    waits_for_a_lock(pg, &db);
    holder.rows("COMMIT");
    assert_eq!(states(&client.read_until_ready()), ["428C9"]);
    client.query("ROLLBACK");
    assert_eq!(client.value("SELECT count(*) FROM t").as_deref(), Some("0"));
}

/// Rows of a unit that is some times as long as what goes at a time.
const LONG: usize = 6000;

/// What a long unit holds beside its INSERTs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// One row violates a CHECK.
    Guilty,
    /// A SELECT in the middle.
    Select,
    /// COMMIT as its last statement.
    Commit,
    /// Its first message gives the INSERT a name.
    Name,
    /// The unnamed portal is run again behind its end.
    RunAgain,
}

fn long_unit(beside: Beside) -> Vec<u8> {
    const SQL: &[u8] = b"INSERT INTO t (id, v) VALUES ($1, $2)";
    let (mut out, long) = (Vec::new(), "x".repeat(120));
    let name: &[u8] = if beside == Beside::Name { b"own" } else { b"" };
    f::put_parse(&mut out, name, SQL, &[]);
    for id in 0..LONG {
        let value = if beside == Beside::Guilty && id == LONG / 2 { "bad" } else { &long };
        f::put_bind_text(&mut out, name, &[Some(id.to_string().as_bytes()), Some(value.as_bytes())]);
        f::put_target(&mut out, f::DESCRIBE, b'P', b"");
        f::put_execute(&mut out, b"", 0);
        if beside == Beside::RunAgain && id == LONG / 2 {
            f::put_execute(&mut out, b"", 0);
        }
        if beside == Beside::Select && id == LONG / 2 {
            f::put_parse(&mut out, b"", b"SELECT count(*) FROM t", &[]);
            f::put_bind_text(&mut out, b"", &[]);
            f::put_execute(&mut out, b"", 0);
            f::put_parse(&mut out, b"", SQL, &[]);
        }
    }
    if beside == Beside::Commit {
        f::put_parse(&mut out, b"", b"COMMIT", &[]);
        f::put_bind_text(&mut out, b"", &[]);
        f::put_execute(&mut out, b"", 0);
    }
    f::put_empty(&mut out, f::SYNC);
    out
}

/// What answers it and the next statements of its block, and what is stored then.
fn answers_to_long_unit(client: &mut Raw, beside: Beside) -> String {
    client.rows("BEGIN");
    client.send(&long_unit(beside));
    let mut answers = client.read_until_ready();
    answers.extend(client.query("SELECT count(*), sum(id) FROM t"));
    answers.extend(client.query("COMMIT"));
    // By the name that was given in the unit, if it was.
    let mut bound = Vec::new();
    f::put_bind_text(&mut bound, b"own", &[Some(b"-1"), Some(b"x")]);
    f::put_execute(&mut bound, b"", 0);
    f::put_empty(&mut bound, f::SYNC);
    client.send(&bound);
    answers.extend(client.read_until_ready());
    answers.extend(client.query("SELECT count(*), sum(id), md5(string_agg(v, '' ORDER BY id)) FROM t"));
    answers.extend(client.query("DELETE FROM t"));
    outline(&answers)
}

#[test]
fn a_unit_that_is_too_long_to_be_held_goes_in_parts() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (id int PRIMARY KEY, v text CHECK (v <> 'bad'))");
    let proxy = Proxy::to(pg, "", "", "");
    let (_, mut console) = learnt_as(&proxy, &db, "t", &["", "own"]);
    for (beside, least) in [
        (Beside::Nothing, LONG * 3 / 4),
        (Beside::Guilty, LONG / 4),
        (Beside::Select, LONG / 2),
        (Beside::Commit, LONG * 3 / 4),
        (Beside::Name, LONG * 3 / 4),
        (Beside::RunAgain, LONG / 4),
    ] {
        let directly = answers_to_long_unit(&mut Raw::login(pg.port(), &db), beside);
        let before = shown(&mut console, "rows");
        let through = answers_to_long_unit(&mut Raw::login(proxy.port(), &db), beside);
        if let Some((a, b)) = directly.lines().zip(through.lines()).find(|(a, b)| a != b) {
            panic!("{beside:?}: directly {a}, through {b}");
        }
        assert_eq!(directly.lines().count(), through.lines().count(), "{beside:?}");
        let rows = shown(&mut console, "rows") - before;
        assert!(rows >= least, "{beside:?}: {rows} rows in COPYs");
    }
}

/// Drivers write each statement of a pipeline by itself, and prepare it in the midst.
#[test]
fn a_unit_that_is_written_bit_by_bit_is_poured_with_the_name_that_it_gives() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (id int, v text)");
    let proxy = Proxy::to(pg, "", "", "");
    let (mut client, mut console) = learnt_as(&proxy, &db, "t", &["own"]);
    for (block, name) in [(true, "inside"), (false, "alone")] {
        if block {
            client.rows("BEGIN");
        }
        let before = shown(&mut console, "flushes");
        let mut bits = vec![Vec::new()];
        f::put_parse(&mut bits[0], name.as_bytes(), b"INSERT INTO t (id, v) VALUES ($1, $2)", &[]);
        for id in 0..ROWS {
            let mut bit = Vec::new();
            f::put_bind_text(&mut bit, name.as_bytes(), &[Some(id.to_string().as_bytes()), Some(b"x")]);
            f::put_execute(&mut bit, b"", 0);
            bits.push(bit);
        }
        bits.push(Vec::new());
        f::put_empty(bits.last_mut().expect("one"), f::SYNC);
        for bit in bits {
            client.send(&bit);
        }
        assert_eq!(states(&client.read_until_ready()), [""; 0]);
        assert_eq!(shown(&mut console, "flushes"), before + 1, "{name}");
        let mut again = Vec::new();
        f::put_parse(&mut again, name.as_bytes(), b"SELECT 1", &[]);
        f::put_empty(&mut again, f::SYNC);
        client.send(&again);
        assert_eq!(states(&client.read_until_ready()), ["42P05"]);
        client.query("ROLLBACK");
        client.rows(&format!("EXECUTE {name} (99, 'y')"));
        let rows = if block { "1" } else { "22" };
        assert_eq!(client.value("SELECT count(*) FROM t").as_deref(), Some(rows));
    }
}

/// asyncpg hears what a statement's parameters are before it sends the first rows, and no Sync stands between.
#[test]
fn a_unit_that_asks_for_its_parameters_first_is_poured() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (id int, v text)");
    let proxy = Proxy::to(pg, "", "", "");
    let (mut client, mut console) = learnt_as(&proxy, &db, "t", &["own"]);
    let conversation = |client: &mut Raw| {
        let mut said = Vec::new();
        for (name, sql) in
            [("own", "INSERT INTO t (id, v) VALUES ($1, $2)"), ("other", "SELECT $1::text, $2")]
        {
            let mut bytes = Vec::new();
            f::put_parse(&mut bytes, name.as_bytes(), sql.as_bytes(), &[]);
            f::put_target(&mut bytes, f::DESCRIBE, b'S', name.as_bytes());
            f::put_empty(&mut bytes, f::FLUSH);
            client.send(&bytes);
            said.extend((0..3).map(|_| client.read()));
            bytes.clear();
            for id in 0..ROWS {
                f::put_bind_text(&mut bytes, name.as_bytes(), &[Some(id.to_string().as_bytes()), Some(b"x")]);
                f::put_execute(&mut bytes, b"", 0);
            }
            f::put_empty(&mut bytes, f::SYNC);
            client.send(&bytes);
            said.extend(client.read_until_ready());
        }
        said.extend(client.query("SELECT count(*) FROM t"));
        outline(&said)
    };
    let before = shown(&mut console, "flushes");
    let through = conversation(&mut client);
    assert_eq!(shown(&mut console, "flushes"), before + 1);
    pg.psql(&db, "TRUNCATE t");
    assert_eq!(through, conversation(&mut Raw::login(pg.port(), &db)));
}

/// A Describe of seven bytes is answered with all the parameters of its statement: a client that takes no answers is not given
/// more memory than others.
#[test]
fn what_is_described_without_end_is_not_held_for_who_takes_no_answers() {
    const DESCRIBES: usize = 20_000;
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (id int, v text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut client = learnt(&proxy, &db, "t");
    let values: Vec<_> = (0..500).map(|n| format!("(${}, ${})", 2 * n + 1, 2 * n + 2)).collect();
    let sql = format!("INSERT INTO t (id, v) VALUES {}", values.join(", "));
    let unit = |describes| {
        let mut out = Vec::new();
        f::put_parse(&mut out, b"", sql.as_bytes(), &[]);
        for _ in 0..describes {
            f::put_target(&mut out, f::DESCRIBE, b'S', b"");
        }
        f::put_bind_text(&mut out, b"", &vec![Some(&b"7"[..]); 1000]);
        f::put_execute(&mut out, b"", 0);
        f::put_empty(&mut out, f::SYNC);
        out
    };
    for describes in [0, 0, 1, 1, 1] {
        client.send(&unit(describes));
        client.read_until_ready();
    }
    let before = proxy.peak_rss();
    client.send(&unit(DESCRIBES));
    let answers = client.read_until_ready();
    let grown = proxy.peak_rss().saturating_sub(before);
    assert!(grown < 40 << 20, "grew by {} MB", grown >> 20);
    assert_eq!(answers.iter().filter(|m| m.tag == b::PARAMETER_DESCRIPTION).count(), DESCRIBES);
    assert_eq!(client.value("SELECT count(*) FROM t").as_deref(), Some("3000"));
}

/// The unnamed portal of a block lives until another one is bound: what describes, runs or closes it behind a run meets what the client's
/// own last INSERT would have left.
#[test]
fn the_unnamed_portal_is_as_the_last_insert_left_it() {
    const INSERT: &[u8] = b"INSERT INTO t (id, v) VALUES ($1, $2)";
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (id int, v text)");
    // There a BEGIN leaves a portal that is not the client's.
    let folds = "[policy]\nsimple_query = \"single\"";
    let mut direct = Raw::login(pg.port(), &db);
    let begin = |out: &mut Vec<u8>| {
        f::put_parse(out, b"", b"BEGIN", &[]);
        f::put_bind_text(out, b"", &[]);
        f::put_execute(out, b"", 0);
    };
    let inserts = |out: &mut Vec<u8>, n: usize, closes: bool| {
        f::put_parse(out, b"", INSERT, &[]);
        for id in 0..n {
            f::put_bind_text(out, b"", &[Some(id.to_string().as_bytes()), Some(b"x")]);
            f::put_execute(out, b"", 0);
            if closes {
                f::put_target(out, f::CLOSE, b'P', b"");
            }
        }
        f::put_empty(out, f::SYNC);
    };
    let queries = |out: &mut Vec<u8>| {
        for id in 0..ROWS {
            f::put_query(out, format!("INSERT INTO t (id, v) VALUES ({id}, 'x')").as_bytes());
        }
    };
    type Puts<'a> = &'a dyn Fn(&mut Vec<u8>);
    // Few rows are one INSERT, more a COPY.
    let runs: [(&str, bool, usize, Puts<'_>); 8] = [
        ("begun, few", false, 1, &|out| {
            begin(out);
            inserts(out, 2, false);
        }),
        ("begun, many", false, 1, &|out| {
            begin(out);
            inserts(out, 100, false);
        }),
        ("begun, closed", false, 1, &|out| {
            begin(out);
            inserts(out, ROWS, true);
        }),
        ("begun, queries", false, ROWS + 1, &|out| {
            f::put_query(out, b"BEGIN");
            queries(out);
        }),
        ("few", true, 1, &|out| inserts(out, 2, false)),
        ("many", true, 1, &|out| inserts(out, 100, false)),
        ("closed", true, 1, &|out| inserts(out, ROWS, true)),
        ("queries", true, ROWS, &queries),
    ];
    let probes: [(&str, Puts<'_>); 5] = [
        ("describe", &|out| f::put_target(out, f::DESCRIBE, b'P', b"")),
        ("execute", &|out| f::put_execute(out, b"", 0)),
        ("execute one", &|out| f::put_execute(out, b"", 1)),
        ("close", &|out| {
            f::put_target(out, f::CLOSE, b'P', b"");
            f::put_target(out, f::DESCRIBE, b'P', b"");
        }),
        ("another statement", &|out| {
            f::put_parse(out, b"", b"SELECT 1", &[]);
            f::put_target(out, f::DESCRIBE, b'P', b"");
        }),
    ];
    for (rules, (run, begun, ends, put)) in
        runs.map(|run| ("", run)).into_iter().chain([(folds, runs[4]), (folds, runs[6])])
    {
        let proxy = Proxy::to(pg, "", "", rules);
        let (mut client, mut console) = (Raw::login(proxy.port(), &db), Raw::login(proxy.port(), "pgsluice"));
        for (probe, asks) in probes {
            let conversation = |client: &mut Raw| {
                let mut bytes = Vec::new();
                if begun {
                    client.rows("BEGIN");
                }
                put(&mut bytes);
                client.send(&bytes);
                let mut said: Vec<_> = (0..ends).flat_map(|_| client.read_until_ready()).collect();
                bytes.clear();
                asks(&mut bytes);
                f::put_empty(&mut bytes, f::SYNC);
                client.send(&bytes);
                said.extend(client.read_until_ready());
                if states(&said).is_empty() {
                    said.extend(client.query("SELECT name FROM pg_cursors WHERE name <> ''"));
                }
                said.extend(client.query("ROLLBACK"));
                outline(&said)
            };
            let expected = conversation(&mut direct);
            let before = shown(&mut console, "rows");
            let poured = poll(PATIENCE, || {
                assert_eq!(conversation(&mut client), expected, "{run}: {probe}; {rules}");
                (shown(&mut console, "rows") > before).then_some(())
            });
            assert!(poured.is_some(), "never poured: {run}");
        }
    }
}

/// A run ends before what is not poured, and before the Parse for it: whether the server takes that, it says itself.
#[test]
fn a_parse_behind_a_run_is_answered_by_the_server() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (id int, v int)");
    let proxy = Proxy::to(pg, "", "", "");
    let (mut client, mut console) = (Raw::login(proxy.port(), &db), Raw::login(proxy.port(), "pgsluice"));
    let mut direct = Raw::login(pg.port(), &db);
    // The last one is not executed, or no COPY could say it.
    for (value, executed) in [("'1'", false), ("'x'", false), ("true", true)] {
        let unit = |name: &[u8]| {
            let mut bytes = Vec::new();
            let mut put = |name: &[u8], id: usize, value: &str, executed: bool| {
                f::put_parse(
                    &mut bytes,
                    name,
                    format!("INSERT INTO t (id, v) VALUES ({id}, {value})").as_bytes(),
                    &[],
                );
                f::put_bind_text(&mut bytes, name, &[]);
                if executed {
                    f::put_execute(&mut bytes, b"", 0);
                }
            };
            (0..ROWS).for_each(|id| put(b"", id, "'1'", true));
            put(name, ROWS, value, executed);
            f::put_empty(&mut bytes, f::SYNC);
            bytes
        };
        for name in ["", "s"] {
            let conversation = |client: &mut Raw| {
                client.rows("BEGIN");
                client.send(&unit(name.as_bytes()));
                let said = comparable(&client.read_until_ready());
                client.query("ROLLBACK; DEALLOCATE ALL");
                said
            };
            let expected = conversation(&mut direct);
            let before = shown(&mut console, "rows");
            let poured = poll(PATIENCE, || {
                assert_eq!(conversation(&mut client), expected, "{value}, {name:?}");
                (shown(&mut console, "rows") > before).then_some(())
            });
            assert!(poured.is_some(), "never poured: {value}");
        }
    }
}

/// A literal that the server refuses at Parse undoes what stands before it up to the Sync, though nothing is bound to it.
#[test]
fn a_parse_that_nothing_is_bound_to_is_read_by_the_server() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (id int, v int)");
    let proxy = Proxy::to(pg, "", "", "");
    let (mut client, mut console) = (Raw::login(proxy.port(), &db), Raw::login(proxy.port(), "pgsluice"));
    let mut direct = Raw::login(pg.port(), &db);
    let put = |bytes: &mut Vec<u8>, name: &str, value: &str, bound: bool| {
        let sql = format!("INSERT INTO t (id, v) VALUES (7, {value})");
        f::put_parse(bytes, name.as_bytes(), sql.as_bytes(), &[]);
        if bound {
            f::put_bind_text(bytes, name.as_bytes(), &[]);
            f::put_execute(bytes, b"", 0);
        }
    };
    let unit = |odd: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        (0..ROWS).for_each(|_| put(&mut bytes, "", "'1'", true));
        odd(&mut bytes);
        f::put_empty(&mut bytes, f::SYNC);
        bytes
    };
    let ask = |client: &mut Raw, block: bool, unit: &[u8]| {
        client.query(if block { "BEGIN" } else { "SELECT 1" });
        client.send(unit);
        let said = comparable(&client.read_until_ready());
        client.query(if block { "COMMIT" } else { "SELECT 1" });
        client.query("DEALLOCATE ALL");
        (said, pg.psql(&db, "WITH gone AS (DELETE FROM t RETURNING *) SELECT count(*) FROM gone"))
    };
    type Puts<'a> = &'a dyn Fn(&mut Vec<u8>);
    let odd: [(&str, Puts<'_>); 5] = [
        ("last", &|out| put(out, "", "'x'", false)),
        ("last, with a name", &|out| put(out, "s", "'x'", false)),
        ("described", &|out| {
            put(out, "s", "'x'", false);
            f::put_target(out, f::DESCRIBE, b'S', b"s");
        }),
        ("parsed over", &|out| {
            put(out, "", "'x'", false);
            put(out, "", "'2'", true);
        }),
        ("another is bound", &|out| {
            put(out, "s", "'x'", false);
            f::put_bind_text(out, b"", &[]);
            f::put_execute(out, b"", 0);
        }),
    ];
    for block in [false, true] {
        let plain = unit(&|_| ());
        let before = shown(&mut console, "rows");
        let poured = poll(PATIENCE, || {
            ask(&mut client, block, &plain);
            (shown(&mut console, "rows") > before).then_some(())
        });
        assert!(poured.is_some(), "never poured");
        for (what, odd) in odd {
            let unit = unit(odd);
            assert_eq!(ask(&mut client, block, &unit), ask(&mut direct, block, &unit), "{what}, {block}");
            ask(&mut client, block, &plain);
        }
    }
}

/// What a block sets for itself may have the text of a statement, as it was prepared before or is sent again, mean another thing.
#[test]
fn a_run_means_what_its_block_has_set() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(
        "CREATE TABLE t (id int, v text); CREATE SCHEMA other;
         CREATE DOMAIN other.int4 AS pg_catalog.int4 CHECK (VALUE < 10)",
    );
    let literal = "INSERT INTO public.t (id, v) VALUES ($1, 'é')";
    let cast = "INSERT INTO public.t (id, v) VALUES ($1::int4, 'é')";
    let named = Step::extended("SELECT set_config($1, $2, true)", &[Some("client_encoding"), Some("LATIN1")]);
    for (sql, set) in [
        (literal, Step::query("SET LOCAL client_encoding = 'LATIN1'")),
        (literal, Step::query("SET LOCAL NAMES 'LATIN1'")),
        (literal, Step::query("SET LOCAL U&\"client!005fencoding\" UESCAPE '!' = 'LATIN1'")),
        (literal, Step::query("SELECT set_config('CLIENT_encoding', 'latin1', true)")),
        (literal, Step::query("SELECT set_config('client_'\n'encoding', 'LATIN1', true)")),
        (literal, named),
        (cast, Step::query("SET LOCAL search_path = other, pg_catalog")),
        (cast, Step::query("SET LOCAL SCHEMA 'other, pg_catalog'")),
    ] {
        let proxy = Proxy::to(pg, "", "", "");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let block = |port: u16, set: &Step| {
            let mut client = Raw::login(port, &db);
            client.send(&Step::prepare("s", sql).bytes);
            client.read_until_ready();
            client.rows("BEGIN");
            client.send(&set.bytes);
            client.read_until_ready();
            let mut bytes = Vec::new();
            for id in 0..ROWS {
                f::put_bind_text(&mut bytes, b"s", &[Some(id.to_string().as_bytes())]);
                f::put_execute(&mut bytes, b"", 0);
            }
            f::put_empty(&mut bytes, f::SYNC);
            client.send(&bytes);
            let answers = comparable(&client.read_until_ready());
            client.query("COMMIT");
            (
                answers,
                pg.psql(&db, "WITH gone AS (DELETE FROM t RETURNING *) SELECT id, v FROM gone ORDER BY id"),
            )
        };
        let before = shown(&mut console, "rows");
        let poured = poll(PATIENCE, || {
            block(proxy.port(), &Step::query("SET LOCAL work_mem = '8MB'"));
            (shown(&mut console, "rows") > before).then_some(())
        });
        assert!(poured.is_some(), "never poured");
        assert_eq!(
            block(proxy.port(), &set),
            block(pg.port(), &set),
            "{}",
            String::from_utf8_lossy(&set.bytes)
        );
    }
}
