//! Transactions of many INSERTs: pipelines over several tables, blocks in one pipeline, and blocks whose INSERTs are answered
//! before they are stored. Direct and through pgsluice the same is answered and stored.
//!
//! `PGSLUICE_TEST_SEED` chooses other scripts; `PGSLUICE_TEST_BLOCKS` how many.

use std::collections::{HashMap, HashSet};

use crate::support;
use pgsluice::wire::{backend, frontend};
use support::console::{Row, show, tell, until};
use support::crowd::{self, comparable};
use support::pouring::{errors, tags};
use support::seeded::{Seeded, from_env};
use support::{Message, PATIENCE, Postgres, Proxy, Raw, Step, outline, poll};

/// Clients at a time.
const CLIENTS: usize = 6;

/// Rounds of a generated case; the first one is learnt from.
const ROUNDS: usize = 3;

const DEFERRED: &str = "[coalesce]\ndeferred = true";

/// `p` has children in `c`; `u` refuses a value twice, `x` is never poured, `n` takes the time.
const TABLES: &str = "
    CREATE TABLE a (id int, v text);
    CREATE TABLE b (id int, v text, w int DEFAULT 7);
    CREATE TABLE p (id int PRIMARY KEY, v text);
    CREATE TABLE c (id int REFERENCES p, v text);
    CREATE TABLE u (id int UNIQUE, v text CHECK (v <> 'bad'));
    CREATE TABLE d (id int UNIQUE DEFERRABLE INITIALLY DEFERRED, v text);
    CREATE TABLE n (id int, v text, t timestamptz DEFAULT now());
    CREATE TABLE x (id int, v text);
    CREATE FUNCTION up() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE NOTICE 'saw %', NEW.id; NEW.v := upper(NEW.v); RETURN NEW; END$$;
    CREATE TRIGGER up BEFORE INSERT ON x FOR EACH ROW EXECUTE FUNCTION up()";

/// One statement; `$1` and `$2` are what a row of a table has.
#[derive(Debug, Clone)]
enum Statement {
    /// Into this table.
    Insert(&'static str, usize, &'static str),
    Other(String),
}

/// How a script is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Query after Query.
    Simple,
    /// Parse, Bind, Describe, Execute, Sync, each answered before the next.
    Extended,
    /// Named statements for the INSERTs.
    Named,
    /// All in one write, with one Sync.
    OneSync,
    /// All in one write, a Sync each.
    SyncEach,
    /// Queries, all in one write.
    SimpleTogether,
    /// BEGIN and the INSERTs in one go, as a batch with autocommit off; then one by one.
    Batch,
    /// A few at a time in one write, with one Sync or one each.
    Batches,
}

const STYLES: [Style; 8] = [
    Style::Simple,
    Style::Extended,
    Style::Named,
    Style::OneSync,
    Style::SyncEach,
    Style::SimpleTogether,
    Style::Batch,
    Style::Batches,
];

impl Statement {
    fn text(&self) -> String {
        match self {
            Self::Insert(table, id, v) => format!("INSERT INTO {table} (id, v) VALUES ({id}, '{v}')"),
            Self::Other(text) => text.clone(),
        }
    }

    /// Without a Sync.
    fn put_extended(&self, out: &mut Vec<u8>, named: bool) {
        let (name, sql, params) = match self {
            Self::Insert(table, id, v) => {
                let name = if named { format!("s_{table}") } else { String::new() };
                let sql = format!("INSERT INTO {table} (id, v) VALUES ($1, $2)");
                (name, sql, vec![id.to_string(), (*v).to_owned()])
            }
            Self::Other(text) => (String::new(), text.clone(), Vec::new()),
        };
        let params: Vec<_> = params.iter().map(|p| Some(p.as_bytes())).collect();
        if name.is_empty() {
            frontend::put_parse(out, b"", sql.as_bytes(), &[]);
        }
        frontend::put_bind_text(out, name.as_bytes(), &params);
        frontend::put_target(out, frontend::DESCRIBE, b'P', b"");
        frontend::put_execute(out, b"", 0);
    }
}

fn put_sync(out: &mut Vec<u8>) {
    frontend::put_empty(out, frontend::SYNC);
}

/// The statements of the tables, by name.
fn prepare_all() -> Step {
    let mut bytes = Vec::new();
    for table in ["a", "b", "p", "c", "u", "d", "n", "x"] {
        let sql = format!("INSERT INTO {table} (id, v) VALUES ($1, $2)");
        frontend::put_parse(&mut bytes, format!("s_{table}").as_bytes(), sql.as_bytes(), &[]);
    }
    put_sync(&mut bytes);
    Step { bytes, ready: 1 }
}

fn steps(style: Style, script: &[Statement]) -> Vec<Step> {
    let extended = |statement: &Statement, named| {
        let mut bytes = Vec::new();
        statement.put_extended(&mut bytes, named);
        put_sync(&mut bytes);
        Step { bytes, ready: 1 }
    };
    let together = |each: &dyn Fn(&Statement, &mut Vec<u8>), syncs: bool, part: &[Statement]| {
        let mut bytes = Vec::new();
        part.iter().for_each(|statement| each(statement, &mut bytes));
        if !syncs {
            put_sync(&mut bytes);
        }
        Step { bytes, ready: if syncs { part.len() } else { 1 } }
    };
    match style {
        Style::Simple => script.iter().map(|s| Step::query(&s.text())).collect(),
        Style::Extended => script.iter().map(|s| extended(s, false)).collect(),
        Style::Named => script.iter().map(|s| extended(s, true)).collect(),
        Style::OneSync => vec![together(&|s, out| s.put_extended(out, false), false, script)],
        Style::SyncEach => vec![together(
            &|s, out| {
                s.put_extended(out, false);
                put_sync(out);
            },
            true,
            script,
        )],
        Style::SimpleTogether => {
            vec![together(&|s, out| frontend::put_query(out, s.text().as_bytes()), true, script)]
        }
        Style::Batches => {
            let (begin, rest) = script.split_at(1);
            let each = |s: &Statement, out: &mut Vec<u8>| {
                s.put_extended(out, true);
                put_sync(out);
            };
            let mut all = vec![extended(&begin[0], false)];
            all.extend(rest.chunks(6).enumerate().map(|(i, part)| match i % 2 {
                0 => together(&|s, out| s.put_extended(out, true), false, part),
                _ => together(&each, true, part),
            }));
            all
        }
        Style::Batch => {
            let is_insert = |s: &Statement| matches!(s, Statement::Insert(..));
            let first = script.iter().skip(1).take_while(|s| is_insert(s)).count() + 1;
            let (batch, rest) = script.split_at(first.min(script.len()));
            let mut all = vec![together(&|s, out| s.put_extended(out, true), false, batch)];
            all.extend(rest.iter().map(|s| extended(s, false)));
            all
        }
    }
}

/// A script of one client: one transaction, or statements on their own. `ids` are its own.
fn script(random: &mut Seeded, base: usize, fails: bool, chains: bool) -> Vec<Statement> {
    const GOOD: [&str; 7] = ["a", "b", "p", "u", "d", "n", "x"];
    let block = !random.one_in(6);
    let mut script = Vec::new();
    let mut id = base;
    let mut parents = Vec::new();
    if block {
        let begins =
            ["BEGIN", "BEGIN", "begin;", "START TRANSACTION", "BEGIN ISOLATION LEVEL REPEATABLE READ"];
        script.push(Statement::Other(begins[random.below(begins.len())].into()));
    }
    let few = 1 + random.below(3);
    let kinds = if random.one_in(3) { 7 } else { 5 };
    let tables: Vec<&str> = (0..few).map(|_| GOOD[random.below(kinds)]).collect();
    let mut savepoints = 0;
    for _ in 0..2 + random.below(14) {
        id += 1;
        let table = tables[random.below(few)];
        let run = if random.one_in(3) { 4 } else { 1 };
        for _ in 0..run {
            id += 1;
            if table == "p" {
                parents.push(id);
            }
            script.push(Statement::Insert(table, id, "good"));
        }
        if !parents.is_empty() && random.one_in(2) {
            script.push(Statement::Insert("c", parents[random.below(parents.len())], "child"));
        }
        let n = base;
        if block && random.one_in(12) {
            savepoints += 1;
            script.push(Statement::Other("SAVEPOINT s".into()));
        }
        if savepoints > 0 && random.one_in(8) {
            let back = ["ROLLBACK TO s", "RELEASE s", "ROLLBACK TO SAVEPOINT s"][random.below(3)];
            script.push(Statement::Other(back.into()));
        }
        if random.one_in(12) {
            let other = [
                format!("SELECT count(*), min(id), max(v) FROM {table} WHERE id BETWEEN {n} AND {n} + 999"),
                format!("UPDATE {table} SET v = 'new' WHERE id = {id}"),
                format!("DELETE FROM {table} WHERE id = {id}"),
                "SET LOCAL TimeZone = 'Asia/Tokyo'".into(),
                "SELECT 1".into(),
                format!("INSERT INTO a (id, v) VALUES ({id}, lower('X')) RETURNING id"),
                "SHOW TimeZone".into(),
            ];
            script.push(Statement::Other(other[random.below(other.len())].clone()));
        }
        if fails && random.one_in(6) {
            let guilty = [
                Statement::Insert("u", base + 2, "bad"),
                Statement::Insert("u", base + 1, "one"),
                Statement::Insert("d", base + 1, "one"),
                Statement::Insert("c", base + 999, "orphan"),
                Statement::Insert("p", base + 1, "one"),
                Statement::Other("SELECT 1 / 0".into()),
                Statement::Other("INSERT INTO a (id, v) VALUES ('x', 'y')".into()),
                Statement::Other("INSERT INTO nowhere (id, v) VALUES (1, 'y')".into()),
            ];
            let guilty = guilty[random.below(guilty.len())].clone();
            // What is unique is so once.
            script.push(guilty.clone());
            script.push(guilty);
        }
    }
    if block {
        let ends = ["COMMIT", "COMMIT", "COMMIT", "END;", "commit", "ROLLBACK", "COMMIT AND CHAIN"];
        // The error of a deferred INSERT leaves no transaction to chain to.
        let end = ends[random.below(if chains { 7 } else { 6 })];
        script.push(Statement::Other(end.into()));
        if end == "COMMIT AND CHAIN" {
            script.push(Statement::Insert("a", id + 1, "chained"));
            script.push(Statement::Other("COMMIT".into()));
        }
    }
    script
}

/// What of a conversation must be the same. Where INSERTs are answered early, a transaction's first error is the same, but
/// not its place: what is answered around it is not compared.
fn seen(messages: &[Message], deferred: bool) -> Vec<String> {
    let settled = |part: &[Message]| comparable(part).replace("2 \nE ", "E ").replace("1 \nE ", "E ");
    if !deferred {
        return vec![settled(messages)];
    }
    let idle = |m: &Message| m.tag == backend::READY_FOR_QUERY && m.body == b"I";
    messages
        .split_inclusive(idle)
        .map(|part| match part.iter().find(|m| m.tag == backend::ERROR_RESPONSE) {
            Some(error) => comparable(std::slice::from_ref(error)),
            None => settled(part),
        })
        .collect()
}

/// One side: a database with its clients.
struct Side {
    admin: Raw,
    clients: Vec<Raw>,
}

impl Side {
    fn new(pg: &Postgres, port: u16) -> Self {
        let db = pg.fresh_database(TABLES);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| Raw::login(port, &db)).collect();
        for client in &mut clients {
            client.send(&prepare_all().bytes);
            client.read_until_ready();
        }
        Self { admin: Raw::login(pg.port(), &db), clients }
    }

    fn content(&mut self) -> String {
        let tables = ["a", "b", "p", "c", "u", "d", "x"];
        let mut all: Vec<_> = tables
            .iter()
            .map(|t| comparable(&self.admin.query(&format!("SELECT x::text FROM {t} x ORDER BY 1"))))
            .collect();
        // In one transaction all times are one; in two they are not, and none is older than its transaction.
        all.push(comparable(&self.admin.query(
            "SELECT id, v, count(*) OVER (PARTITION BY t, id / 1000), t > now() - interval '1 hour' FROM n ORDER BY id",
        )));
        all.concat()
    }

    fn clear(&mut self) {
        self.admin.rows("TRUNCATE a, b, p, c, u, d, n, x");
    }
}

fn console(proxy: &Proxy) -> Raw {
    Raw::login(proxy.port(), "pgsluice")
}

/// Sum of a column of SHOW COALESCE.
fn counted(console: &mut Raw, column: &str) -> usize {
    show(console, "SHOW COALESCE").iter().filter_map(|row| row[column].parse::<usize>().ok()).sum()
}

/// Runs generated scripts on both sides.
fn same_as_direct(settings: &str, deferred: bool) {
    let (seed, cases) = (from_env("PGSLUICE_TEST_SEED", 5), from_env("PGSLUICE_TEST_BLOCKS", 210) as usize);
    println!("seed {seed}, {cases} cases");
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", settings);
    let (mut direct, mut through) = (Side::new(pg, pg.port()), Side::new(pg, proxy.port()));
    let mut random = Seeded(seed);
    let mut differences = Vec::new();
    let mut console = console(&proxy);
    for case in 0..cases {
        let style = STYLES[case % STYLES.len()];
        let fails = random.one_in(2);
        for side in [&mut direct, &mut through] {
            side.clear();
        }
        let shape = random.0;
        for r in 0..ROUNDS {
            // The same shape for all: they may share a flush.
            let scripts: Vec<_> = (0..CLIENTS)
                .map(|c| {
                    let mut random = Seeded(shape.wrapping_add(if case % 3 == 0 { c as u64 } else { 0 }));
                    script(&mut random, (r * CLIENTS + c + 1) * 1000, fails && r > 0 && c % 2 == 0, !deferred)
                })
                .collect();
            let sent: Vec<_> = scripts.iter().map(|script| steps(style, script)).collect();
            let expected = crowd::run(&mut direct.clients, &sent, false);
            let got = crowd::run(&mut through.clients, &sent, false);
            let mut differs = false;
            for c in 0..CLIENTS {
                let (expected, got) = (seen(&expected[c], deferred), seen(&got[c], deferred));
                // What is rolled back is never asked for.
                let same = |(e, g): (&String, &String)| {
                    e == g
                        || (deferred
                            && e.starts_with('E')
                            && g.ends_with("C ROLLBACK\\x00\nZ I\n")
                            && !g.contains("\nE "))
                };
                if expected.len() != got.len() || !expected.iter().zip(&got).all(same) {
                    let (expected, got) = (expected.concat(), got.concat());
                    let at = expected.lines().zip(got.lines()).find(|(e, s)| e != s);
                    let texts: Vec<_> = scripts[c].iter().map(Statement::text).collect();
                    differences
                        .push(format!("case {case} {style:?} round {r} client {c}: {at:?}\n  {texts:#?}"));
                    differs = true;
                    break;
                }
            }
            let (expected, got) = (direct.content(), through.content());
            if !differs && expected != got {
                let at = expected.lines().zip(got.lines()).find(|(e, s)| e != s);
                differences.push(format!("case {case} {style:?} round {r}: tables {at:?}"));
                differs = true;
            }
            // Nobody is left in a block.
            for side in [&mut direct, &mut through] {
                side.clients.iter_mut().for_each(|client| drop(client.query("ROLLBACK")));
            }
            if differs {
                break;
            }
        }
        random.below(2);
    }
    let flushes = counted(&mut console, "flushes");
    println!("{flushes} flushes, {} rows", counted(&mut console, "rows"));
    assert!(differences.is_empty(), "seed {seed}: {} differ:\n{}", differences.len(), differences.join("\n"));
    assert!(flushes * 10 > cases, "only {flushes} flushes");
}

#[test]
fn pipelines_and_blocks_are_as_directly() {
    same_as_direct("", false);
}

#[test]
fn what_is_deferred_ends_as_directly() {
    same_as_direct(DEFERRED, true);
}

/// Rows, and the transactions that brought them.
fn rows_and_transactions(pg: &Postgres, db: &str, table: &str) -> (usize, usize) {
    let answer = pg.psql(db, &format!("SELECT count(*), count(DISTINCT xmin::text) FROM {table}"));
    let (rows, transactions) = answer.trim().split_once('|').expect("two columns");
    (rows.parse().expect("rows"), transactions.parse().expect("transactions"))
}

fn twelve(style: Style, base: usize) -> Vec<Step> {
    let mut script = vec![Statement::Other("BEGIN".into())];
    script.extend((0..12).map(|i| Statement::Insert(["a", "b"][i % 2], base + i, "good")));
    script.push(Statement::Other("COMMIT".into()));
    steps(style, &script)
}

/// Whole blocks of several clients share a transaction: in one pipeline, or answered statement by statement.
#[test]
fn blocks_of_many_clients_leave_together() {
    for (settings, style) in
        [("", Style::OneSync), ("", Style::SyncEach), (DEFERRED, Style::Simple), (DEFERRED, Style::Extended)]
    {
        let pg = Postgres::shared();
        let db = pg.fresh_database("CREATE TABLE a (id int, v text); CREATE TABLE b (id int, v text)");
        let proxy = Proxy::to(pg, "", "", settings);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| Raw::login(proxy.port(), &db)).collect();
        let mut sent = 0;
        let shared = (0..40).any(|r| {
            let scripts: Vec<Vec<Step>> = (0..CLIENTS)
                .map(|c| (0..4).flat_map(|i| twelve(style, ((r * CLIENTS + c) * 4 + i) * 100)).collect())
                .collect();
            for messages in crowd::run(&mut clients, &scripts, false) {
                assert!(
                    messages.iter().all(|m| m.tag != backend::ERROR_RESPONSE),
                    "{}",
                    comparable(&messages)
                );
            }
            sent += CLIENTS * 4;
            let (rows, transactions) = rows_and_transactions(pg, &db, "a");
            assert_eq!(rows, sent * 6);
            transactions < sent
        });
        assert!(shared, "{style:?}: no two blocks shared a transaction");
    }
}

/// A batch inside a block that stays open is one command in the block's own transaction.
#[test]
fn runs_inside_a_block_leave_as_copy() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", "");
    let mut client = Raw::login(proxy.port(), &db);
    let mut direct = Raw::login(pg.port(), &pg.fresh_database(TABLES));
    client.send(&prepare_all().bytes);
    client.read_until_ready();
    direct.send(&prepare_all().bytes);
    direct.read_until_ready();
    let batch = |client: &mut Raw, first: usize, n: usize, table: &'static str, begin: bool| {
        let mut bytes = Vec::new();
        if begin {
            Statement::Other("BEGIN".into()).put_extended(&mut bytes, false);
        }
        (first..first + n).for_each(|id| Statement::Insert(table, id, "x").put_extended(&mut bytes, true));
        put_sync(&mut bytes);
        client.send(&bytes);
        client.read_until_ready()
    };
    let commands = |client: &mut Raw| {
        let sql = "SELECT count(*) || ' ' || count(DISTINCT (xmin::text, cmin::text)) FROM a";
        client.value(sql).expect("a row")
    };
    // Behind its own BEGIN, then under a savepoint.
    let poured = poll(PATIENCE, || {
        assert_eq!(status(&batch(&mut client, 0, 20, "a", true)), 'T');
        assert_eq!(status(&batch(&mut client, 20, 20, "a", false)), 'T');
        let commands = commands(&mut client);
        assert_eq!(status(&client.query("ROLLBACK")), 'I');
        (commands == "40 2").then_some(())
    });
    assert!(poured.is_some(), "never two COPYs");
    assert_eq!(pg.psql(&db, "SELECT count(*) FROM a").trim(), "0");
    // What the block holds besides is untouched: its settings, its savepoints, what fails and what does not.
    let mut both = |work: &dyn Fn(&mut Raw) -> Vec<Message>| {
        let (expected, seen) = (comparable(&work(&mut direct)), comparable(&work(&mut client)));
        assert_eq!(seen, expected);
    };
    for begin in [
        "BEGIN",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
        "BEGIN READ ONLY",
    ] {
        both(&|c| c.query(begin));
        both(&|c| batch(c, 100, 5, "a", false));
        both(&|c| c.query("SAVEPOINT mine"));
        both(&|c| batch(c, 200, 5, "u", false));
        both(&|c| batch(c, 300, 5, "c", false));
        both(&|c| c.query("ROLLBACK TO mine"));
        both(&|c| batch(c, 400, 5, "p", false));
        both(&|c| batch(c, 400, 5, "c", false));
        both(&|c| c.query("ROLLBACK TO pgsluice_run"));
        both(&|c| c.query("ROLLBACK TO mine"));
        both(&|c| c.query("SELECT count(*), min(id), max(id) FROM a"));
        both(&|c| batch(c, 500, 5, "d", false));
        both(&|c| c.query("COMMIT"));
        both(&|c| {
            c.query("SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM p), (SELECT count(*) FROM d)")
        });
        both(&|c| c.query("TRUNCATE a, p, c, d, u"));
    }
}

/// A run that its client cancels, or with which the server goes, while it waits for a lock.
#[test]
fn a_run_that_is_cancelled_or_loses_its_server_fails_as_directly() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", "");
    let mut console = console(&proxy);
    let run = |begin: bool| {
        let mut bytes = Vec::new();
        if begin {
            Statement::Other("BEGIN".into()).put_extended(&mut bytes, false);
        }
        (0..20).for_each(|id| Statement::Insert("a", id, "x").put_extended(&mut bytes, false));
        put_sync(&mut bytes);
        bytes
    };
    let mut learning = Raw::login(proxy.port(), &db);
    let poured = poll(PATIENCE, || {
        learning.send(&run(true));
        learning.read_until_ready();
        learning.query("ROLLBACK");
        (counted(&mut console, "flushes") > 0).then_some(())
    });
    assert!(poured.is_some(), "never poured");
    let mut holder = Raw::login(pg.port(), &db);
    let waits = "datname = current_database() AND wait_event_type = 'Lock'";
    for begin in [true, false] {
        for strike in ["cancel", "terminate"] {
            let [expected, seen] = [pg.port(), proxy.port()].map(|port| {
                let mut client = Raw::login(port, &db);
                if !begin {
                    client.rows("BEGIN");
                }
                holder.rows("BEGIN; LOCK TABLE a");
                client.send(&run(begin));
                pg.wait_until(&db, &format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE {waits}"));
                if strike == "cancel" {
                    client.cancel(port);
                    let mut said = client.read_until_ready();
                    said.extend(client.query("SELECT 1"));
                    said.extend(client.query("ROLLBACK"));
                    holder.rows("ROLLBACK");
                    return comparable(&said);
                }
                pg.psql(
                    &db,
                    &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {waits}"),
                );
                let said = client.read_until_closed();
                holder.rows("ROLLBACK");
                // What had been answered by then is not the same: a run is answered as a whole.
                comparable(&said[said.len() - 1..])
            });
            assert_eq!(seen, expected, "{begin} {strike}");
        }
    }
    assert_eq!(pg.psql(&db, "SELECT count(*) FROM a").trim(), "0");
}

/// A client that leaves in the middle of a message: what came whole before it is done and answered, as directly.
#[test]
fn what_stands_before_a_message_that_breaks_off_is_done() {
    let pg = Postgres::shared();
    for mode in ["on", "off"] {
        let db = pg.fresh_database(TABLES);
        let proxy = Proxy::to(pg, "default_pool_size = 1", "", &format!("[coalesce]\nmode = \"{mode}\""));
        for stored in 1..=10 {
            let mut client = Raw::login(proxy.port(), &db);
            client.rows("BEGIN; SELECT 1");
            let texts = [format!("INSERT INTO a (id, v) VALUES ({stored}, 'x')"), "COMMIT".into()];
            let mut bytes: Vec<u8> = texts.iter().flat_map(|text| Step::query(text).bytes).collect();
            let rest = Step::extended("INSERT INTO a (id, v) VALUES ($1, $2)", &[Some("0"), Some("y")]);
            let describe =
                rest.bytes.iter().rposition(|byte| *byte == frontend::DESCRIBE).expect("a Describe");
            // All but the end of the Bind.
            bytes.extend_from_slice(&rest.bytes[..describe - 1]);
            client.send(&bytes);
            client.shutdown_write();
            let said = client.read_until_closed();
            let committed =
                said.iter().any(|m| m.tag == backend::COMMAND_COMPLETE && m.command() == "COMMIT");
            assert!(committed, "{mode}: {}", comparable(&said));
            assert_eq!(pg.psql(&db, "SELECT count(*) FROM a").trim(), stored.to_string(), "{mode}");
        }
    }
}

/// What a block does to a table itself holds for the rows that it stores there afterwards: on a connection that has verified the
/// table in this very transaction, too.
#[test]
fn what_a_block_defines_holds_for_its_next_run() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", "");
    let mut client = Raw::login(proxy.port(), &db);
    let mut direct = Raw::login(pg.port(), &pg.fresh_database(TABLES));
    let run = |client: &mut Raw, first: usize| {
        let mut bytes = Vec::new();
        (first..first + 4).for_each(|id| Statement::Insert("a", id, "x").put_extended(&mut bytes, false));
        put_sync(&mut bytes);
        client.send(&bytes);
        comparable(&client.read_until_ready())
    };
    let commands = "SELECT count(DISTINCT (xmin::text, cmin::text)) FROM a";
    let learnt = poll(PATIENCE, || {
        client.query("BEGIN");
        run(&mut client, 0);
        let commands = client.value(commands);
        client.query("ROLLBACK");
        (commands.as_deref() == Some("1")).then_some(())
    });
    assert!(learnt.is_some(), "never poured");
    for definition in [
        "CREATE RULE nothing AS ON INSERT TO a DO INSTEAD NOTHING",
        "CREATE RULE also AS ON INSERT TO a DO ALSO INSERT INTO b VALUES (NEW.id, NEW.v)",
        "CREATE TRIGGER up BEFORE INSERT ON a FOR EACH ROW EXECUTE FUNCTION up()",
        "ALTER TABLE a DROP COLUMN id; ALTER TABLE a ADD COLUMN id int GENERATED ALWAYS AS IDENTITY",
    ] {
        // The connection has never seen the table.
        console(&proxy).rows("RECONNECT");
        let [expected, seen] = [&mut direct, &mut client].map(|client| {
            let mut said = vec![comparable(&client.query("BEGIN")), run(client, 0)];
            said.push(comparable(&client.query(definition)));
            said.push(run(client, 10));
            said.push(comparable(&client.query("SELECT * FROM a ORDER BY v, id")));
            said.push(comparable(&client.query("SELECT * FROM b ORDER BY id")));
            said.push(comparable(&client.query("ROLLBACK")));
            said
        });
        assert_eq!(seen, expected, "{definition}");
    }
}

/// Does no server know of the blocks that clients of the database have begun?
fn nothing_is_open(pg: &Postgres, db: &str) -> bool {
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    pg.psql(db, open).trim() == "0"
}

/// Is this INSERT answered before a server hears of it?
fn holds(pg: &Postgres, db: &str, client: &mut Raw, insert: &Step) -> bool {
    client.rows("BEGIN");
    client.send(&insert.bytes);
    client.read_until_ready();
    let held = nothing_is_open(pg, db);
    client.query("ROLLBACK");
    held
}

/// A deferring session that has learnt the tables.
fn deferring(pg: &Postgres, proxy: &Proxy, db: &str) -> Raw {
    let mut client = Raw::login(proxy.port(), db);
    for table in ["a", "b", "p", "c", "u", "n"] {
        let insert = Step::query(&format!("INSERT INTO {table} (id, v) VALUES (1, 'learn')"));
        let learnt = poll(PATIENCE, || holds(pg, db, &mut client, &insert).then_some(()));
        assert!(learnt.is_some(), "{table} is never deferred");
    }
    client
}

fn status(messages: &[Message]) -> char {
    messages.last().map_or('?', |m| char::from(m.body[0]))
}

#[test]
fn a_deferred_block_is_nowhere_until_it_leaves() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    let there = |n: usize| assert_eq!(pg.psql(&db, "SELECT count(*) FROM a").trim(), n.to_string());
    // Kept to the COMMIT.
    assert_eq!(status(&client.query("BEGIN")), 'T');
    for id in 0..5 {
        assert_eq!(status(&client.query(&format!("INSERT INTO a (id, v) VALUES ({id}, 'x')"))), 'T');
    }
    assert!(nothing_is_open(pg, &db));
    there(0);
    assert_eq!(status(&client.query("COMMIT")), 'I');
    there(5);
    // A lone Sync says where one is.
    client.query("BEGIN");
    let mut sync = Vec::new();
    put_sync(&mut sync);
    client.send(&sync);
    assert_eq!(status(&client.read_until_ready()), 'T');
    // What is rolled back was never there; neither was what its client leaves behind.
    client.query("INSERT INTO a (id, v) VALUES (7, 'x')");
    assert_eq!(status(&client.query("ROLLBACK")), 'I');
    client.query("BEGIN");
    client.query("INSERT INTO a (id, v) VALUES (8, 'x')");
    client.terminate();
    there(5);
    // A session reads what it wrote.
    let mut client = Raw::login(proxy.port(), &db);
    client.query("BEGIN");
    client.query("INSERT INTO a (id, v) VALUES (9, 'x')");
    assert_eq!(client.value("SELECT count(*) FROM a").as_deref(), Some("6"));
    there(5);
    client.query("INSERT INTO a (id, v) VALUES (10, 'x')");
    assert_eq!(status(&client.query("COMMIT")), 'I');
    there(7);
}

#[test]
fn a_deferred_error_is_told_by_what_comes_next() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    let mut direct = Raw::login(pg.port(), &db);
    let insert = "INSERT INTO u (id, v) VALUES (1, 'bad')";
    let expected = comparable(&[direct.error(insert)]);
    let begin = |client: &mut Raw| {
        assert_eq!(status(&client.query("BEGIN")), 'T');
        assert_eq!(status(&client.query(insert)), 'T', "answered early");
        client.query("INSERT INTO a (id, v) VALUES (1, 'x')");
    };
    let error_of = |messages: &[Message]| {
        let errors: Vec<_> = messages.iter().filter(|m| m.tag == backend::ERROR_RESPONSE).cloned().collect();
        comparable(&errors)
    };
    // By COMMIT, which ends the transaction ...
    begin(&mut client);
    let seen = client.query("COMMIT");
    assert_eq!((error_of(&seen), status(&seen)), (expected.clone(), 'I'));
    // ... or by whatever else, which leaves it failed.
    begin(&mut client);
    let seen = client.query("SELECT 1");
    assert_eq!((error_of(&seen), status(&seen)), (expected.clone(), 'E'));
    assert_eq!(client.error("SELECT 1").sqlstate(), "25P02");
    assert_eq!(status(&client.query("ROLLBACK")), 'I');
    begin(&mut client);
    let seen = client.extended("SELECT $1::int", &[Some("1")]);
    assert_eq!((error_of(&seen), status(&seen)), (expected.clone(), 'E'));
    assert_eq!(status(&client.query("COMMIT")), 'I');
    // One pipeline with its COMMIT: the COMMIT is skipped, as directly.
    begin(&mut client);
    let mut bytes = Vec::new();
    Statement::Insert("a", 5, "x").put_extended(&mut bytes, false);
    Statement::Other("COMMIT".into()).put_extended(&mut bytes, false);
    put_sync(&mut bytes);
    client.send(&bytes);
    let seen = client.read_until_ready();
    assert_eq!(error_of(&seen), expected);
    client.query("ROLLBACK");
    // ROLLBACK asks nothing.
    begin(&mut client);
    let seen = client.query("ROLLBACK");
    assert_eq!((error_of(&seen).as_str(), status(&seen)), ("", 'I'));
    for table in ["a", "u"] {
        assert_eq!(pg.psql(&db, &format!("SELECT count(*) FROM {table}")).trim(), "0");
    }
    assert_eq!(client.value("SELECT 1").as_deref(), Some("1"));
}

/// A rule or trigger that was made meanwhile drops the row: it was answered as stored, so the block must not commit without it.
#[test]
fn a_deferred_row_that_is_dropped_fails_its_block() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    pg.psql(&db, "CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'");
    let proxy = Proxy::to(pg, "", "", DEFERRED);
    let changes = [
        ("CREATE RULE r AS ON INSERT TO a DO INSTEAD NOTHING", "DROP RULE r ON a"),
        ("CREATE TRIGGER g BEFORE INSERT ON a FOR EACH ROW EXECUTE FUNCTION gone()", "DROP TRIGGER g ON a"),
    ];
    for (change, undone) in changes {
        for (next, then) in [("COMMIT", 'I'), ("SELECT 1", 'E'), ("ROLLBACK", 'I')] {
            let mut client = deferring(pg, &proxy, &db);
            pg.psql(&db, change);
            client.rows("BEGIN");
            client.rows("INSERT INTO b (id, v) VALUES (1, 'x')");
            client.rows("INSERT INTO a (id, v) VALUES (1, 'x')");
            let seen = client.query(next);
            let told: Vec<_> = errors(&seen).iter().map(Message::sqlstate).collect();
            let expected = if next == "ROLLBACK" { vec![] } else { vec!["40001".to_owned()] };
            assert_eq!((told, status(&seen)), (expected, then), "{change}, {next}: {}", outline(&seen));
            client.query("ROLLBACK");
            if next != "ROLLBACK" {
                // Run again, it is answered as directly.
                client.rows("BEGIN");
                let seen = client.query("INSERT INTO a (id, v) VALUES (1, 'x')");
                assert_eq!(tags(&seen), ["INSERT 0 0"]);
                assert_eq!(status(&client.query("COMMIT")), 'I');
            }
            // In one pipeline with its COMMIT nothing was answered before.
            let mut direct = Raw::login(pg.port(), &db);
            let both = [&mut client, &mut direct].map(|client| {
                let mut bytes = Vec::new();
                Statement::Other("BEGIN".into()).put_extended(&mut bytes, false);
                put_sync(&mut bytes);
                Statement::Insert("a", 5, "x").put_extended(&mut bytes, false);
                Statement::Other("COMMIT".into()).put_extended(&mut bytes, false);
                put_sync(&mut bytes);
                client.send(&bytes);
                comparable(&[client.read_until_ready(), client.read_until_ready()].concat())
            });
            assert_eq!(both[0], both[1]);
            pg.psql(&db, undone);
            assert_eq!(
                pg.psql(&db, "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)").trim(),
                "0|0"
            );
            tell(&mut Raw::login(proxy.port(), "pgsluice"), "RELOAD");
        }
    }
}

/// What is answered to a COMMIT whose rows fail is what is answered to one whose deferred constraint does.
#[test]
fn a_commit_that_fails_is_answered_as_one_whose_constraint_is_deferred() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    let mut direct = Raw::login(pg.port(), &db);
    for commit in [Step::query("COMMIT"), Step::extended("COMMIT", &[])] {
        let failed = |client: &mut Raw, table: &str| {
            client.rows("BEGIN");
            client.rows(&format!("INSERT INTO {table} (id, v) VALUES (1, 'x')"));
            client.rows(&format!("INSERT INTO {table} (id, v) VALUES (1, 'y')"));
            client.send(&commit.bytes);
            let said = client.read_until_ready();
            said.iter().map(|m| (char::from(m.tag), m.sqlstate())).collect::<Vec<_>>()
        };
        let expected = failed(&mut direct, "d");
        assert!(expected.contains(&('E', "23505".into())), "{expected:?}");
        assert_eq!(failed(&mut client, "u"), expected);
    }
}

/// However many messages a block holds, and wherever the Syncs among them are: it leaves, and its error is told as ever.
#[test]
fn a_deferred_block_of_any_length_leaves() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "default_pool_size = 1", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    let sql = "INSERT INTO u (id, v) VALUES ($1, $2)";
    let learnt = poll(PATIENCE, || {
        holds(pg, &db, &mut client, &Step::extended(sql, &[Some("1"), Some("x")])).then_some(())
    });
    assert!(learnt.is_some(), "never deferred");
    // More than is written at once; more messages than may be owed.
    for (rows, length, sync_each) in [(200, 1000, false), (200, 1000, true), (9000, 1, false)] {
        for guilty in [None, Some(1), Some(rows - 1)] {
            let value = |id| if Some(id) == guilty { "bad".to_owned() } else { "x".repeat(length) };
            let block = Step::pipeline(sql, (0..rows).map(|id| [id.to_string(), value(id)]), sync_each);
            for (end, left) in [("COMMIT", 'I'), ("SELECT count(*) FROM u", 'E')] {
                client.rows("BEGIN");
                client.send(&block.bytes);
                (0..block.ready).for_each(|_| assert_eq!(status(&client.read_until_ready()), 'T'));
                assert!(nothing_is_open(pg, &db), "{rows} rows leave early");
                let said = client.query(end);
                let errors: Vec<_> = said.iter().filter(|m| m.tag == backend::ERROR_RESPONSE).collect();
                match guilty {
                    Some(_) => {
                        assert_eq!(errors[0].sqlstate(), "23514", "{rows} {sync_each} {guilty:?} {end}");
                        assert_eq!(status(&said), left, "{rows} {sync_each} {guilty:?} {end}");
                    }
                    None => assert!(errors.is_empty(), "{rows} {sync_each} {end}: {}", comparable(&said)),
                }
                client.query("ROLLBACK");
                let stored = if guilty.is_none() && left == 'I' { rows } else { 0 };
                assert_eq!(client.value("SELECT count(*) FROM u"), Some(stored.to_string()));
                pg.psql(&db, "TRUNCATE u");
            }
        }
    }
}

/// Where several statements have to be prepared again, in the middle of a unit of the block.
#[test]
fn a_deferred_block_leaves_on_a_connection_that_knows_none_of_its_statements() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "default_pool_size = 1", "", DEFERRED);
    let mut console = console(&proxy);
    let mut client = deferring(pg, &proxy, &db);
    client.send(&prepare_all().bytes);
    client.read_until_ready();
    let put = |table, id, named, bytes: &mut Vec<u8>| {
        Statement::Insert(table, id, "x").put_extended(bytes, named);
    };
    let mut block = Vec::new();
    put("a", 1, true, &mut block);
    put_sync(&mut block);
    for id in 2..5 {
        put("p", id, false, &mut block);
        put("b", id, true, &mut block);
    }
    put_sync(&mut block);
    let held = poll(PATIENCE, || {
        client.rows("BEGIN");
        client.send(&block);
        (0..2).for_each(|_| assert_eq!(status(&client.read_until_ready()), 'T'));
        let held = nothing_is_open(pg, &db);
        tell(&mut console, "RECONNECT");
        let sql = "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b), (SELECT count(*) FROM p)";
        let rows = client.rows(sql);
        assert_eq!(rows, [["1", "3", "3"].map(|n| Some(n.to_owned()))]);
        client.query("ROLLBACK");
        held.then_some(())
    });
    assert!(held.is_some(), "never deferred");
}

/// Those who were told of their statements' parameters are told the same wherever they are prepared again: that is asked first.
#[test]
fn a_deferred_block_of_described_statements_leaves_on_a_connection_that_knows_none_of_them() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "default_pool_size = 1", "", DEFERRED);
    let mut console = console(&proxy);
    let mut client = deferring(pg, &proxy, &db);
    let mut bytes = Vec::new();
    for table in ["a", "b"] {
        let (name, sql) = (format!("s_{table}"), format!("INSERT INTO {table} (id, v) VALUES ($1, $2)"));
        frontend::put_parse(&mut bytes, name.as_bytes(), sql.as_bytes(), &[]);
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'S', name.as_bytes());
    }
    put_sync(&mut bytes);
    client.send(&bytes);
    client.read_until_ready();
    let block = |tables: &[&'static str]| {
        let mut bytes = Vec::new();
        for (id, table) in tables.iter().enumerate() {
            Statement::Insert(table, id, "x").put_extended(&mut bytes, true);
        }
        put_sync(&mut bytes);
        bytes
    };
    for tables in [&["a"][..], &["a", "b"], &["b", "a", "a", "b"]] {
        for end in ["SELECT 1", "COMMIT", "BEGIN"] {
            let held = poll(PATIENCE, || {
                client.rows("BEGIN");
                client.send(&block(tables));
                assert_eq!(status(&client.read_until_ready()), 'T');
                let held = nothing_is_open(pg, &db);
                tell(&mut console, "RECONNECT");
                let answers = client.query(end);
                assert!(errors(&answers).is_empty(), "{tables:?}, {end}: {}", comparable(&answers));
                if end != "COMMIT" {
                    assert_eq!(status(&answers), 'T', "{tables:?}, {end}");
                    client.query("COMMIT");
                }
                let sql = "SELECT (SELECT count(*) FROM a) + (SELECT count(*) FROM b)";
                assert_eq!(client.value(sql), Some(tables.len().to_string()), "{tables:?}, {end}");
                client.query("TRUNCATE a, b");
                held.then_some(())
            });
            assert!(held.is_some(), "never deferred: {tables:?}, {end}");
        }
    }
    // They are others where it is prepared again: it goes on with what was told.
    let altered = poll(PATIENCE, || {
        client.rows("BEGIN");
        client.send(&block(&["a", "b", "a"]));
        client.read_until_ready();
        let held = nothing_is_open(pg, &db);
        if held {
            pg.psql(&db, "ALTER TABLE a ALTER id TYPE text");
        }
        tell(&mut console, "RECONNECT");
        assert_eq!(client.value("SELECT count(*) FROM a").as_deref(), Some("2"));
        client.query("COMMIT");
        client.query("TRUNCATE a, b");
        held.then_some(())
    });
    assert!(altered.is_some(), "never deferred");
}

/// Holds a block with one row for `a`, whose COMMIT waits for the only connection, which `busy` has.
fn a_commit_that_waits(pg: &'static Postgres, commit: &Step) -> (String, Proxy, Raw, Raw) {
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "default_pool_size = 1", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    let mut busy = Raw::login(proxy.port(), &db);
    client.rows("BEGIN");
    client.rows("INSERT INTO a (id, v) VALUES (1, 'x')");
    busy.rows("BEGIN; SELECT 1");
    client.send(&commit.bytes);
    until(&mut console(&proxy), "SHOW CLIENTS", &[("state", "waiting")]);
    (db, proxy, client, busy)
}

/// A block whose COMMIT was taken in and waits for a connection has nothing else to wake it.
#[test]
fn a_held_commit_that_waits_for_a_connection_hears_of_a_cancel_and_outlives_a_reload() {
    let pg = Postgres::shared();
    for commit in [Step::query("COMMIT"), Step::extended("COMMIT", &[])] {
        let (db, proxy, mut client, mut busy) = a_commit_that_waits(pg, &commit);
        client.cancel(proxy.port());
        let said = client.read_until_ready();
        let error = said.iter().find(|m| m.tag == backend::ERROR_RESPONSE).expect("an error");
        assert_eq!((error.sqlstate().as_str(), status(&said)), ("57014", 'I'));
        busy.rows("COMMIT");
        assert_eq!(client.value("SELECT count(*) FROM a").as_deref(), Some("0"));
        assert_eq!(pg.psql(&db, "SELECT count(*) FROM a").trim(), "0");
        let (_db, proxy, mut client, mut busy) = a_commit_that_waits(pg, &commit);
        tell(&mut console(&proxy), "RELOAD");
        busy.rows("COMMIT");
        assert_eq!(status(&client.read_until_ready()), 'I');
        assert_eq!(client.value("SELECT count(*) FROM a").as_deref(), Some("1"));
    }
}

/// What is held was judged when it came. Were its BEGIN judged again, by a rule that was made since, its INSERTs would run
/// without it.
#[test]
fn a_rule_that_is_made_while_a_block_is_held_is_for_what_comes_after() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let config = |policy: &str| {
        Proxy::config(
            pg,
            "",
            "",
            &format!(
                "{DEFERRED}
{policy}"
            ),
        )
    };
    let proxy = Proxy::start(&config(""));
    let mut console = console(&proxy);
    let sql = "INSERT INTO a (id, v) VALUES ($1, $2)";
    let mut rule = |policy: &str| {
        proxy.write_config(&config(policy));
        tell(&mut console, "RELOAD");
    };
    for (end, refused) in [
        (Step::extended("COMMIT", &[]), None),
        (Step::query("COMMIT"), Some('E')),
        (Step::query("SELECT 1"), Some('E')),
    ] {
        rule("");
        let mut client = deferring(pg, &proxy, &db);
        let insert = Step::extended(sql, &[Some("1"), Some("x")]);
        let learnt = poll(PATIENCE, || holds(pg, &db, &mut client, &insert).then_some(()));
        assert!(learnt.is_some(), "never deferred");
        client.rows("BEGIN");
        client.send(&insert.bytes);
        client.read_until_ready();
        rule("[policy]\nsimple_query = \"deny\"");
        client.send(&end.bytes);
        let said = client.read_until_ready();
        let error = said.iter().find(|m| m.tag == backend::ERROR_RESPONSE);
        assert_eq!(status(&said), refused.unwrap_or('I'), "{}", comparable(&said));
        assert_eq!(error.map(Message::sqlstate), refused.map(|_| "42501".into()), "{}", comparable(&said));
        // Its own refusal, and none that was left over.
        let said = client.extended("SELECT 1 / 0", &[]);
        let error = said.iter().find(|m| m.tag == backend::ERROR_RESPONSE).expect("an error");
        assert_eq!(error.sqlstate(), if refused.is_some() { "25P02" } else { "22012" });
        client.extended("ROLLBACK", &[]);
        let stored = if refused.is_some() { "0" } else { "1" };
        assert_eq!(pg.psql(&db, "SELECT count(*) FROM a").trim(), stored);
        pg.psql(&db, "TRUNCATE a");
    }
}

#[test]
fn the_unnamed_statement_is_the_one_of_its_time() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    // So that both are learnt as statements with parameters.
    let parse = |table: &str, bytes: &mut Vec<u8>| {
        frontend::put_parse(
            bytes,
            b"",
            format!("INSERT INTO {table} (id, v) VALUES ($1, $2)").as_bytes(),
            &[],
        );
    };
    let execute = |id: &str, bytes: &mut Vec<u8>| {
        frontend::put_bind_text(bytes, b"", &[Some(id.as_bytes()), Some(b"x")]);
        frontend::put_execute(bytes, b"", 0);
        put_sync(bytes);
    };
    for round in 0..5 {
        let mut bytes = Vec::new();
        parse("a", &mut bytes);
        put_sync(&mut bytes);
        let mut begin = Vec::new();
        frontend::put_parse(&mut begin, b"begin", b"BEGIN", &[]);
        put_sync(&mut begin);
        if round == 0 {
            client.send(&begin);
            client.read_until_ready();
        }
        client.send(&bytes);
        client.read_until_ready();
        let (mut one, mut two, mut three) = (Vec::new(), Vec::new(), Vec::new());
        frontend::put_bind_text(&mut one, b"begin", &[]);
        frontend::put_execute(&mut one, b"", 0);
        put_sync(&mut one);
        execute("1", &mut two);
        parse("b", &mut three);
        execute("2", &mut three);
        for bytes in [one, two, three] {
            client.send(&bytes);
            assert_eq!(status(&client.read_until_ready()), 'T');
        }
        assert_eq!(
            client.value("SELECT (SELECT count(*) FROM a) || ' ' || (SELECT count(*) FROM b)").as_deref(),
            Some("1 1")
        );
        client.query("ROLLBACK");
    }
}

#[test]
fn a_deferred_block_is_bounded() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(
        pg,
        "",
        "",
        "[coalesce]\ndeferred = true\nmax_bytes = \"64kB\"\nmax_value_bytes = \"16kB\"",
    );
    let mut client = deferring(pg, &proxy, &db);
    let long = "x".repeat(10_000);
    client.query("BEGIN");
    for id in 0..20 {
        assert_eq!(status(&client.query(&format!("INSERT INTO a (id, v) VALUES ({id}, '{long}')"))), 'T');
    }
    assert!(!nothing_is_open(pg, &db), "what is too much has left");
    assert_eq!(status(&client.query("COMMIT")), 'I');
    assert_eq!(pg.psql(&db, "SELECT count(*) FROM a").trim(), "20");
}

/// The tables of a transaction of twelve INSERTs, each of which notes when its row came.
fn noting_tables() -> String {
    let columns = "(id serial PRIMARY KEY, c1 text, c2 text, c3 text, c4 text, c5 text, c6 text, c7 text, \
                   c8 timestamp DEFAULT now())";
    (1..=12).map(|n| format!("CREATE TABLE t{n} {columns};")).collect()
}

/// The server's clock (microseconds), then a block that notes its name in every table, then the clock again.
fn noted_block(style: Style, name: &str) -> Vec<Step> {
    let clock = || Step::query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
    let step = |sql: &str, params: &[Option<&str>]| match style {
        Style::Extended => Step::extended(sql, params),
        _ => Step::query(sql),
    };
    let insert = |n: usize| {
        let into = format!("INSERT INTO t{n} (c1, c2, c3, c4, c5, c6, c7) VALUES");
        match style {
            Style::Extended => {
                let test = Some("test");
                let values = [Some(name), test, test, test, test, test, test];
                Step::extended(&format!("{into} ($1, $2, $3, $4, $5, $6, $7)"), &values)
            }
            _ => Step::query(&format!("{into} ('{name}', 'test', 'test', 'test', 'test', 'test', 'test')")),
        }
    };
    let mut steps = vec![clock(), step("BEGIN", &[])];
    steps.extend((1..=12).map(insert));
    steps.extend([step("COMMIT", &[]), clock()]);
    steps
}

/// The name of a client's block.
fn noted_name(client: usize, n: usize) -> String {
    format!("{client}_{n}")
}

/// What is known of one block.
struct Noted {
    name: String,
    time: u64,
    transaction: String,
}

/// The blocks of the twelve tables, each of which has one time and one transaction.
fn noted(pg: &Postgres, db: &str) -> Vec<Noted> {
    let all: Vec<_> = (1..=12).map(|n| format!("SELECT c1, c8, xmin::text AS x FROM t{n}")).collect();
    let sql = format!(
        "SELECT c1, count(*), count(DISTINCT c8), count(DISTINCT x), \
                (extract(epoch FROM min(c8)::timestamptz) * 1000000)::bigint, min(x) \
         FROM ({}) AS t GROUP BY c1",
        all.join(" UNION ALL ")
    );
    let noted = |line: &str| {
        let [name, rows, times, transactions, time, transaction] = line.split('|').collect::<Vec<_>>()[..]
        else {
            panic!("{line}");
        };
        assert_eq!((rows, times, transactions), ("12", "1", "1"), "{name}");
        Noted { name: name.into(), time: time.parse().expect("a time"), transaction: transaction.into() }
    };
    pg.psql(db, &sql).lines().map(noted).collect()
}

/// Do two of them share a transaction?
fn some_share(noted: &[Noted]) -> bool {
    let transactions: HashSet<_> = noted.iter().map(|block| &block.transaction).collect();
    transactions.len() < noted.len()
}

/// No two blocks of a client have one time, or one transaction; those of a transaction have its time.
fn have_times_of_their_own(noted: &[Noted]) {
    let (mut of_transactions, mut seen) = (HashMap::new(), HashSet::new());
    for Noted { name, time, transaction } in noted {
        let client = name.split('_').next().expect("a client");
        assert!(seen.insert((client, time.to_string())), "{name}: the time of another block");
        assert!(seen.insert((client, format!("transaction {transaction}"))), "{name}");
        assert_eq!(of_transactions.entry(transaction).or_insert(time), &time, "{name}: not its flush's");
    }
}

/// Rows of the committed flushes of all twelve tables.
fn flushes_of_twelve(proxy: &Proxy) -> Vec<usize> {
    let flushes = show(&mut console(proxy), "SHOW COALESCE_FLUSHES");
    let of_twelve = |row: &&Row| row["table"].contains("t12") && row["outcome"] == "committed";
    flushes.iter().filter(of_twelve).map(|row| row["rows"].parse().expect("rows")).collect()
}

/// A table that notes when its rows came: those of a block have one time as ever, between BEGIN and the answer to COMMIT.
#[test]
fn the_time_of_a_deferred_block_is_its_own() {
    for style in [Style::Simple, Style::Extended] {
        let pg = Postgres::shared();
        let db = pg.fresh_database(&noting_tables());
        let proxy = Proxy::to(pg, "", "", DEFERRED);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| Raw::login(proxy.port(), &db)).collect();
        let mut seen = HashMap::new();
        let poured = (0..40).any(|r| {
            let name = |c: usize, i: usize| noted_name(c, r * 3 + i);
            let scripts: Vec<Vec<Step>> = (0..CLIENTS)
                .map(|c| (0..3).flat_map(|i| noted_block(style, &name(c, i))).collect())
                .collect();
            for (c, messages) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
                let failed = messages.iter().any(|m| m.tag == backend::ERROR_RESPONSE);
                assert!(!failed, "{}", comparable(messages));
                let clocks = messages.iter().filter(|m| m.tag == backend::DATA_ROW);
                let clocks: Vec<u64> =
                    clocks.map(|m| m.row()[0].as_deref().expect("a time").parse().expect("a time")).collect();
                assert_eq!(clocks.len(), 6);
                seen.extend((0..3).map(|i| (name(c, i), (clocks[2 * i], clocks[2 * i + 1]))));
            }
            let noted = noted(pg, &db);
            assert_eq!(noted.len(), seen.len());
            some_share(&noted)
        });
        assert!(poured, "{style:?}: no two blocks shared a flush");
        let noted = noted(pg, &db);
        have_times_of_their_own(&noted);
        for Noted { name, time, .. } in &noted {
            let (before, after) = seen[name];
            assert!((before..=after).contains(time), "{name}: {before} {time} {after}");
        }
        let rows = flushes_of_twelve(&proxy);
        println!("{style:?}: flushes of {rows:?} rows");
        assert!(rows.iter().any(|rows| *rows >= 24), "{style:?}: {rows:?}");
    }
}

/// The time of the server, as SHOW writes it.
fn seconds(pg: &Postgres, db: &str) -> String {
    let now = "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')";
    pg.psql(db, now).trim().to_owned()
}

/// `transaction_timeout` counts from there.
#[test]
fn a_transaction_that_is_held_counts_from_its_begin() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    client.query("BEGIN");
    assert_eq!(status(&client.query("INSERT INTO a (id, v) VALUES (1, 'x')")), 'T');
    let begun = seconds(pg, &db);
    assert!(nothing_is_open(pg, &db));
    assert!(poll(PATIENCE, || (seconds(pg, &db) > begun).then_some(())).is_some(), "time stands still");
    assert_eq!(client.value("SELECT 1").as_deref(), Some("1"));
    assert!(!nothing_is_open(pg, &db), "it has left");
    let servers = show(&mut console(&proxy), "SHOW SERVERS");
    let server = servers.iter().find(|row| row["state"] == "active" && row["database"] == db);
    let since = &server.expect("its server")["request_time"];
    assert!(since.as_str() < format!("{begun}~").as_str(), "begun {begun}, counted from {since}");
}

/// However blocks end of which a server heard late or not at all: the next one is another transaction, also for who never sees their client
/// between two of them.
#[test]
fn transactions_that_are_held_are_each_their_own() {
    for (insert, end) in [
        ("INSERT INTO a (id, v) VALUES (1, 'x')", "ROLLBACK"),
        ("INSERT INTO u (id, v) VALUES (1, 'bad')", "ROLLBACK"),
        ("INSERT INTO u (id, v) VALUES (1, 'bad')", "COMMIT"),
        ("INSERT INTO a (id, v) VALUES (1, 'x')", "COMMIT"),
    ] {
        let pg = Postgres::shared();
        let db = pg.fresh_database(TABLES);
        let proxy = Proxy::to(pg, "transaction_timeout = 2", "", DEFERRED);
        let mut client = deferring(pg, &proxy, &db);
        let mut long = Raw::login(proxy.port(), &db);
        client.query("BEGIN");
        long.query("BEGIN");
        assert_eq!(long.value("SELECT 1").as_deref(), Some("1"));
        let ended = poll(PATIENCE, || {
            assert_eq!(status(&client.query(insert)), 'T', "{insert}, {end}");
            // No pause between two blocks.
            let bytes = [Step::query(end).bytes, Step::query("BEGIN").bytes].concat();
            client.send(&bytes);
            assert_eq!(status(&client.read_until_ready()), 'I', "{insert}, {end}");
            assert_eq!(status(&client.read_until_ready()), 'T', "{insert}, {end}");
            let mut query = Vec::new();
            frontend::put_query(&mut query, b"SELECT 1");
            if long.try_send(&query).is_err() {
                return Some(());
            }
            loop {
                match long.try_read() {
                    Some(m) if m.tag == backend::READY_FOR_QUERY => return None,
                    Some(m) if m.tag == backend::ERROR_RESPONSE => {
                        assert_eq!(m.sqlstate(), "25P04", "{}", m.outline());
                        return Some(());
                    }
                    Some(_) => {}
                    None => return Some(()),
                }
            }
        });
        assert!(ended.is_some(), "{insert}, {end}: the limit never passed");
        assert_eq!(status(&client.query("ROLLBACK")), 'I');
    }
}

/// What a session has set leaves its texts in doubt until everything is answered, which a block that leaves as a whole is.
#[test]
fn behind_a_block_that_left_the_next_one_is_held() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    for end in ["COMMIT", "COMMIT AND NO CHAIN", "END"] {
        client.query("SET application_name = 'doubtful'");
        for round in 0..3 {
            client.query("BEGIN");
            assert_eq!(status(&client.query("INSERT INTO b (id, v) VALUES (1, 'x')")), 'T');
            assert!(nothing_is_open(pg, &db), "{end}, block {round}");
            assert_eq!(status(&client.query(end)), 'I');
        }
    }
    assert_eq!(pg.psql(&db, "SELECT count(*) FROM b").trim(), "9");
}

/// Blocks of one client that came together leave one after the other, deferred or not.
#[test]
fn successive_blocks_in_one_write_have_times_of_their_own() {
    for (settings, style) in
        [("", Style::Simple), ("", Style::Extended), (DEFERRED, Style::Simple), (DEFERRED, Style::Extended)]
    {
        let pg = Postgres::shared();
        let db = pg.fresh_database(&noting_tables());
        let proxy = Proxy::to(pg, "", "", settings);
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| Raw::login(proxy.port(), &db)).collect();
        let poured = (0..40).any(|r| {
            // Without the clocks.
            let block = |c, i| noted_block(style, &noted_name(c, r * 3 + i)).drain(1..15).collect::<Vec<_>>();
            let scripts: Vec<Vec<Step>> = (0..CLIENTS)
                .map(|c| {
                    let all: Vec<_> = (0..3).flat_map(|i| block(c, i)).collect();
                    let bytes = all.iter().flat_map(|step| step.bytes.clone()).collect();
                    vec![Step { bytes, ready: all.len() }]
                })
                .collect();
            for messages in crowd::run(&mut clients, &scripts, false) {
                let failed = messages.iter().any(|m| m.tag == backend::ERROR_RESPONSE);
                assert!(!failed, "{}", comparable(&messages));
            }
            let noted = noted(pg, &db);
            assert_eq!(noted.len(), CLIENTS * (r + 1) * 3);
            have_times_of_their_own(&noted);
            some_share(&noted)
        });
        assert!(poured, "{settings:?} {style:?}: no two blocks shared a flush");
    }
}

/// Whatever makes a block leave runs in the transaction that its rows are stored in.
#[test]
fn a_block_that_leaves_early_has_one_time() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    let insert = |client: &mut Raw, id: usize| {
        assert_eq!(status(&client.query(&format!("INSERT INTO n (id, v) VALUES ({id}, 'x')"))), 'T');
    };
    for other in [
        "SELECT now()",
        "SAVEPOINT s",
        "SELECT 1 / 1",
        "UPDATE n SET v = 'y'",
        "INSERT INTO n (id, v) VALUES (7, 'x') RETURNING t",
        "INSERT INTO n (id, v, t) VALUES (7, 'x', now())",
        "INSERT INTO n (id, v, t) VALUES (7, 'x', 'now')",
        "INSERT INTO x (id, v) VALUES (7, 'x')",
    ] {
        client.query("BEGIN");
        (0..3).for_each(|id| insert(&mut client, id));
        assert!(nothing_is_open(pg, &db), "{other}: nothing makes it leave yet");
        assert_eq!(status(&client.query(other)), 'T', "{other}");
        assert!(!nothing_is_open(pg, &db), "{other}: it has left");
        (3..6).for_each(|id| insert(&mut client, id));
        let times = "SELECT count(DISTINCT t) || ' ' || bool_and(t = now()) FROM n";
        assert_eq!(client.value(times).as_deref(), Some("1 true"), "{other}");
        assert_eq!(status(&client.query("COMMIT")), 'I');
        assert_eq!(
            pg.psql(&db, "SELECT count(DISTINCT t), count(DISTINCT v) FROM n WHERE v = 'x'").trim(),
            "1|1"
        );
        pg.psql(&db, "TRUNCATE n, x");
    }
}

/// Whoever writes a word like `'today'` means the day on which it is written.
#[test]
fn words_for_times_are_not_deferred() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLES);
    let proxy = Proxy::to(pg, "", "", DEFERRED);
    let mut client = deferring(pg, &proxy, &db);
    let literal = |t: &str| Step::query(&format!("INSERT INTO n (id, v, t) VALUES (1, 'x', '{t}')"));
    let parameter = |t: &str| Step::extended("INSERT INTO n (id, v, t) VALUES (1, 'x', $1)", &[Some(t)]);
    for with in [&literal as &dyn Fn(&str) -> Step, &parameter] {
        let learnt = poll(PATIENCE, || holds(pg, &db, &mut client, &with("2026-01-01")).then_some(()));
        assert!(learnt.is_some(), "a plain time is never deferred");
        for word in ["now", "today", "tomorrow", "yesterday", "tomorrow 12:00"] {
            assert!(!holds(pg, &db, &mut client, &with(word)), "{word}");
        }
    }
}

/// `coalesce.deferred` in general, of a user and of a table; `None`: not said.
fn deferral_config(pg: &Postgres, general: bool, user: Option<bool>, table: Option<bool>) -> String {
    let mut rest = format!("[coalesce]\ndeferred = {general}\n");
    if let Some(user) = user {
        rest += &format!("[users.postgres.coalesce]\ndeferred = {user}\n");
    }
    if let Some(table) = table {
        rest += &format!("[coalesce.tables.\"public.a\"]\ndeferred = {table}\n");
    }
    Proxy::config(pg, "", "", &rest)
}

/// A block of INSERTs, all of it in one write.
fn pipeline_into_a() -> Vec<u8> {
    let mut script = vec![Statement::Other("BEGIN".into())];
    script.extend((0..4).map(|id| Statement::Insert("a", id, "x")));
    script.push(Statement::Other("COMMIT".into()));
    steps(Style::OneSync, &script).remove(0).bytes
}

/// Of a user's word and a table's the one that says no holds, then the one that says yes, then what holds for all; sessions
/// learn of it while they last.
#[test]
fn deferral_is_asked_for_by_user_and_by_table() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE a (id int, v text)");
    let proxy = Proxy::start(&deferral_config(pg, false, None, None));
    let mut console = console(&proxy);
    let mut client = Raw::login(proxy.port(), &db);
    let sql = "INSERT INTO a (id, v) VALUES ($1, $2)";
    let insert = Step::extended(sql, &[Some("1"), Some("x")]);
    // The table is known again after a RELOAD when a pipeline is poured.
    let mut held_with = |config: &str| {
        proxy.write_config(config);
        tell(&mut console, "RELOAD");
        let learnt = poll(PATIENCE, || {
            let before = counted(&mut console, "flushes");
            client.send(&pipeline_into_a());
            assert_eq!(status(&client.read_until_ready()), 'I');
            (counted(&mut console, "flushes") > before).then_some(())
        });
        assert!(learnt.is_some(), "never poured");
        holds(pg, &db, &mut client, &insert)
    };
    let said = [None, Some(true), Some(false)];
    for (general, user, table) in [false, true]
        .into_iter()
        .flat_map(|general| said.map(|user| (general, user)))
        .flat_map(|(general, user)| said.map(|table| (general, user, table)))
    {
        let expected = match (user, table) {
            (Some(false), _) | (_, Some(false)) => false,
            (Some(true), _) | (_, Some(true)) => true,
            (None, None) => general,
        };
        let held = held_with(&deferral_config(pg, general, user, table));
        assert_eq!(held, expected, "in general {general}, user {user:?}, table {table:?}");
    }
    // It is no other user's.
    let others = deferral_config(pg, false, Some(true), None).replace("users.postgres.", "users.other.");
    assert!(!held_with(&others));
}
