//! Conversations in raw protocol, direct and through pgsluice: every message in every state that a seed comes to (inside a
//! unit, behind an error, in COPY, in a failed block), cut anywhere on its way, and each step on another server connection where
//! nothing holds the client to one. Before each step another session notifies; what sleeps is cancelled, and so is, now and then,
//! what has ended. Every answer must be the same.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support;
use pgsluice::wire::{backend as b, frame, frontend as f};
use support::seeded::{Seeded, from_env};
use support::{Message, Postgres, Proxy, Raw, cancel_packet, poll};

/// Conversations of one run, each in two pool modes; `PGSLUICE_TEST_SEED` is the first, `PGSLUICE_TEST_CONVERSATIONS` another
/// number of them.
const CONVERSATIONS: u64 = 120;

const TEXTS: &[&str] = &[
    "SELECT 1",
    "SELECT $1::int",
    "SELECT 1/0",
    "SELEC",
    "",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT a",
    "ROLLBACK TO a",
    "SELECT 1; SELECT 2",
    "BEGIN; SELECT 1/0",
    "COPY t FROM STDIN",
    "COPY t TO STDOUT",
    "COPY t FROM STDIN; SELECT 1",
    "INSERT INTO t VALUES (1)",
    "INSERT INTO t VALUES ($1)",
    "SELECT * FROM nope",
    "SELECT generate_series(1, 5)",
    "DECLARE cu CURSOR FOR SELECT generate_series(1, 9)",
    "FETCH 2 FROM cu",
    "DO $$BEGIN RAISE NOTICE 'n'; END$$",
    "SET client_encoding = latin1",
    "SET client_encoding = utf8",
    "SELECT '\u{fc}'",
    "SHOW client_encoding",
    "SET application_name = 'x'",
    "LISTEN a",
    "NOTIFY a, 'b'",
    "DEALLOCATE a",
    "DISCARD ALL",
    "PREPARE pp AS SELECT 7",
    "EXECUTE pp",
    "EXECUTE a",
    "EXECUTE b(1)",
    "EXPLAIN (COSTS OFF) EXECUTE a",
    "VACUUM t",
];

/// Said as often as all of those together.
const MORE_TEXTS: &[&str] = &[
    "START TRANSACTION READ ONLY",
    "BEGIN ISOLATION LEVEL SERIALIZABLE",
    "END",
    "ABORT",
    "COMMIT AND CHAIN",
    "ROLLBACK AND CHAIN",
    "RELEASE a",
    "SAVEPOINT b",
    "ROLLBACK TO SAVEPOINT b",
    "/* begin */ BEGIN",
    "BEGIN; INSERT INTO t VALUES (2); COMMIT; SELECT 3",
    "SELECT 1; COMMIT; SELECT 1/0",
    "INSERT INTO t VALUES (3); SELECT 1/0",
    "SAVEPOINT a; SELECT 1/0",
    "ROLLBACK; SELECT 4",
    ";",
    "-- nothing",
    "SELECT 1;;",
    "DECLARE cu CURSOR WITH HOLD FOR SELECT generate_series(1, 9)",
    "DECLARE cu BINARY CURSOR FOR SELECT generate_series(1, 9)",
    "FETCH ALL FROM cu",
    "FETCH 0 FROM cu",
    "FETCH 1 FROM p",
    "MOVE 1 FROM cu",
    "MOVE ALL IN p",
    "CLOSE cu",
    "CLOSE p",
    "CLOSE ALL",
    "SELECT name, is_holdable FROM pg_cursors ORDER BY 1",
    "SET work_mem = '2MB'",
    "SET LOCAL work_mem = '3MB'",
    "SHOW work_mem",
    "RESET work_mem",
    "RESET ALL",
    "SET DateStyle = 'German'",
    "SET LOCAL DateStyle = 'SQL'; SELECT 1",
    "SELECT '2020-01-02'::date",
    "SHOW DateStyle",
    "SELECT set_config('TimeZone', 'UTC', false), set_config('work_mem', '4MB', true)",
    "SET TimeZone = 'nowhere'",
    "SET application_name = 'y'; SELECT 1/0",
    "SHOW application_name",
    "SET standard_conforming_strings = off",
    "SELECT 'a\\b'",
    "RESET standard_conforming_strings",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "SHOW transaction_read_only",
    "SET SESSION AUTHORIZATION DEFAULT",
    "SET ROLE pg_monitor",
    "SELECT current_user",
    "RESET ROLE",
    "UNLISTEN a",
    "UNLISTEN *",
    "SELECT pg_notify('a', 'c')",
    "DEALLOCATE ALL",
    "DEALLOCATE pp",
    "DEALLOCATE PREPARE b",
    "DEALLOCATE a; SELECT 1",
    "SELECT 1; DEALLOCATE b; EXECUTE a",
    "DEALLOCATE a; PREPARE a AS SELECT 9",
    "PREPARE a AS SELECT 8",
    "PREPARE b(int) AS INSERT INTO t VALUES ($1)",
    "ROLLBACK; DEALLOCATE a",
    "DISCARD PLANS",
    "DISCARD TEMP",
    "DISCARD SEQUENCES",
    "PREPARE pp AS SELECT 8",
    "EXECUTE pp; EXECUTE pp",
    "PREPARE TRANSACTION 'x'",
    "COMMIT PREPARED 'nobody'",
    "COPY t TO STDOUT (FORMAT csv)",
    "COPY (SELECT 1/0) TO STDOUT",
    "COPY (VALUES (1), (2)) TO STDOUT (FORMAT binary)",
    "COPY t FROM STDIN (FORMAT csv)",
    "COPY t FROM STDIN; COPY t FROM STDIN",
    "COPY nope FROM STDIN",
    "INSERT INTO t VALUES (1), (2) RETURNING a",
    "INSERT INTO t VALUES (500)",
    "INSERT INTO t SELECT generate_series(1, 3)",
    "INSERT INTO t VALUES ($1) RETURNING a",
    "UPDATE t SET a = a RETURNING a",
    "DELETE FROM t",
    "TRUNCATE t",
    "LOCK TABLE t",
    "TABLE t",
    "VALUES (1), (2)",
    "SELECT 1 WHERE false",
    "SELECT",
    "SELECT $1::int, $2::text",
    "SELECT $1",
    "SELECT 5 INTO u",
    "CREATE TABLE u (a int)",
    "CREATE TABLE IF NOT EXISTS u (a int)",
    "DROP TABLE IF EXISTS u",
    "SELECT * FROM u",
    "CREATE TEMP TABLE tt (a int)",
    "SELECT * FROM tt",
    "CREATE TEMP TABLE tc ON COMMIT DROP AS SELECT 1",
    "DO $$BEGIN RAISE WARNING 'w' USING HINT = 'h'; RAISE EXCEPTION 'e' USING ERRCODE = 'UX001'; END$$",
    "DO $$BEGIN COMMIT; END$$",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_advisory_unlock(1)",
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    "EXPLAIN (COSTS OFF) SELECT 1",
    "ANALYZE t",
    "CHECKPOINT; SELECT 1",
    "CALL nope()",
    SLEEP,
    "SELECT 1; SELECT pg_sleep(600); SELECT 2",
    "INSERT INTO t SELECT 1 FROM pg_sleep(600)",
    "COPY (SELECT pg_sleep(600)) TO STDOUT",
];

/// What changes under statements that are prepared, and what is read and written of it.
const CHANGING_TEXTS: &[&str] = &[
    "ALTER TABLE t ADD COLUMN b int",
    "ALTER TABLE t ADD COLUMN b text DEFAULT 'd'",
    "ALTER TABLE t DROP COLUMN b",
    "ALTER TABLE t DROP COLUMN IF EXISTS b",
    "ALTER TABLE t ALTER COLUMN a TYPE bigint",
    "ALTER TABLE t ALTER COLUMN a TYPE int USING a::int",
    "ALTER TABLE t ALTER COLUMN a TYPE text",
    "ALTER TABLE t RENAME TO v",
    "ALTER TABLE v RENAME TO t",
    "ALTER TABLE t RENAME COLUMN a TO z",
    "ALTER TABLE t RENAME COLUMN z TO a",
    "ALTER TABLE t ALTER COLUMN a SET DEFAULT 7",
    "ALTER TABLE t ALTER COLUMN a SET NOT NULL",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (a::int <> 3)",
    "ALTER TABLE t DROP CONSTRAINT c",
    "ALTER TABLE t SET SCHEMA s",
    "ALTER TABLE s.t SET SCHEMA public",
    "DROP TABLE t",
    "DROP TABLE t; CREATE TABLE t (a int, b int)",
    "CREATE TABLE t (a int)",
    "CREATE TABLE t (a text, b int)",
    "CREATE TABLE IF NOT EXISTS t (a int)",
    "CREATE TABLE v (a int)",
    "CREATE SCHEMA s",
    "CREATE TABLE s.t (a text)",
    "CREATE TABLE s.t (a int, b int)",
    "DROP SCHEMA s CASCADE",
    "SET search_path = s, public",
    "SET search_path = public",
    "SET LOCAL search_path = s",
    "RESET search_path",
    "CREATE TEMP TABLE t (a bigint)",
    "CREATE TEMP TABLE t ON COMMIT DROP AS SELECT 1 AS a",
    "DROP TABLE pg_temp.t",
    "DISCARD TEMP",
    "CREATE VIEW w AS SELECT * FROM t",
    "CREATE OR REPLACE VIEW w AS SELECT a, 1 AS b FROM t",
    "CREATE VIEW t AS SELECT 1 AS a",
    "DROP VIEW IF EXISTS w",
    "DROP VIEW t",
    "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT $1 + 1'",
    "CREATE OR REPLACE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT $1 + 2'",
    "CREATE FUNCTION f(text) RETURNS text LANGUAGE sql AS 'SELECT $1'",
    "DROP FUNCTION f(int)",
    "CREATE UNIQUE INDEX i ON t (a)",
    "DROP INDEX IF EXISTS i",
    "CREATE RULE r AS ON INSERT TO t DO ALSO NOTHING",
    "CREATE RULE r AS ON INSERT TO t DO ALSO SELECT 5",
    "DROP RULE r ON t",
    "SELECT 1 AS a, 2 AS b INTO v",
    "DISCARD ALL",
    "DEALLOCATE ALL",
    "TRUNCATE t",
    "COMMENT ON TABLE t IS 'x'",
];

/// What is read and written where that happens.
const USING_TEXTS: &[&str] = &[
    "SELECT * FROM t",
    "TABLE t",
    "SELECT a FROM t",
    "SELECT * FROM t WHERE a = $1",
    "SELECT count(*) FROM t x",
    "INSERT INTO t VALUES (1)",
    "INSERT INTO t VALUES ('2')",
    "INSERT INTO t VALUES ($1)",
    "INSERT INTO t (a) VALUES ($1) RETURNING *",
    "INSERT INTO t VALUES ($1) RETURNING a",
    "INSERT INTO t VALUES ($1, 4)",
    "INSERT INTO t SELECT 6",
    "UPDATE t SET a = $1",
    "UPDATE t SET a = '9' RETURNING *",
    "DELETE FROM t WHERE a = $1",
    "DELETE FROM t",
    "SELECT * FROM w",
    "SELECT * FROM v",
    "SELECT * FROM s.t",
    "INSERT INTO s.t VALUES ($1)",
    "INSERT INTO w VALUES ($1)",
    "SELECT f($1)",
    "SELECT f(1)",
    "SELECT f('1')",
    "COPY t FROM STDIN",
    "COPY t TO STDOUT",
    "PREPARE pp AS SELECT * FROM t",
    "EXECUTE pp",
    "PREPARE b AS INSERT INTO t VALUES ($1)",
    "EXECUTE b(1)",
    "EXECUTE a",
    "EXPLAIN (COSTS OFF) EXECUTE a",
    "SHOW search_path",
    "SELECT 't'::regclass::text",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT a",
    "ROLLBACK TO a",
];

/// What another session's notifications begin with.
const ANOTHER: &str = "from another";
/// `pg_sleep`, to be called as a function.
const SLEEP_OID: u32 = 2626;
/// `pg_notify`, the same.
const NOTIFY_OID: u32 = 3036;
/// Ends by a CancelRequest only.
const SLEEP: &str = "SELECT pg_sleep(600)";

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put(&mut out, tag, |out| out.extend_from_slice(body));
    out
}

fn query(text: &str) -> Vec<u8> {
    message(f::QUERY, &[text.as_bytes(), b"\0"].concat())
}

fn parse(name: &str, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    f::put_parse(&mut out, name.as_bytes(), text.as_bytes(), &[]);
    out
}

fn bind(portal: &str, name: &str, value: Option<&str>) -> Vec<u8> {
    let mut body = [portal.as_bytes(), b"\0", name.as_bytes(), b"\0\0\0"].concat();
    match value {
        None => body.extend_from_slice(&[0, 0]),
        Some(value) => {
            body.extend_from_slice(&[0, 1, 0, 0, 0, value.len() as u8]);
            body.extend_from_slice(value.as_bytes());
        }
    }
    body.extend_from_slice(&[0, 0]);
    message(f::BIND, &body)
}

fn target(tag: u8, kind: u8, name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    f::put_target(&mut out, tag, kind, name.as_bytes());
    out
}

fn execute(portal: &str, limit: i32) -> Vec<u8> {
    let mut out = Vec::new();
    f::put_execute(&mut out, portal.as_bytes(), limit);
    out
}

fn sync() -> Vec<u8> {
    message(f::SYNC, b"")
}

fn data(rows: &str) -> Vec<u8> {
    message(f::COPY_DATA, rows.as_bytes())
}

/// COPY as one extended unit, up to where its data begins.
fn copy() -> Vec<u8> {
    [parse("", "COPY t FROM STDIN"), bind("", "", None), execute("", 0)].concat()
}

fn copy_done() -> Vec<u8> {
    message(f::COPY_DONE, b"")
}

/// Ends what is open in every state, and is answered in a way that nothing else is.
fn end() -> Vec<u8> {
    let close = target(f::CLOSE, b'S', "nobody");
    [message(f::COPY_FAIL, b"\0"), sync(), close.repeat(3), sync()].concat()
}

fn is_end(seen: &[Message]) -> bool {
    let tags: Vec<u8> = seen.iter().rev().take(4).map(|m| m.tag).collect();
    tags == [b::READY_FOR_QUERY, b::CLOSE_COMPLETE, b::CLOSE_COMPLETE, b::CLOSE_COMPLETE]
}

/// What an application sees of a message. Not: where in its source PostgreSQL says it, names that pgsluice made, who
/// notified, and which of several messages a COPY took offence at.
fn outline(message: &Message) -> String {
    match message.tag {
        b::NOTIFICATION_RESPONSE => format!("A {}", message.body[4..].escape_ascii()),
        b::ERROR_RESPONSE | b::NOTICE_RESPONSE => {
            let mut text = message.field(b'M');
            if text.starts_with("unexpected message type") {
                text.truncate("unexpected message type".len());
            }
            if text.contains("prepared statement \"") {
                text.clear();
            }
            let fields = [b'S', b'C', b'D', b'H', b'P', b'W'].map(|kind| message.field(kind));
            format!("{} {text} {fields:?}", char::from(message.tag))
        }
        b::ROW_DESCRIPTION => without_tables(&message.body).escape_ascii().to_string(),
        _ => message.outline(),
    }
}

/// A RowDescription without the tables' oids: those of temporary ones differ.
fn without_tables(body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    let mut at = 2;
    while let Some(end) = body[at..].iter().position(|&b| b == 0) {
        body[at + end + 1..][..4].fill(0);
        at += end + 19;
    }
    body
}

/// Says all of it step by step, each cut as it says; what was answered, and whether the connection was closed.
fn converse(
    raw: &mut Raw,
    steps: &[Vec<Vec<u8>>],
    heard: &AtomicUsize,
    mut before: impl FnMut(&Raw),
) -> Vec<String> {
    let mut answers = Vec::new();
    for step in steps {
        before(raw);
        for piece in step.iter().chain([&end()]) {
            if raw.try_send(piece).is_err() {
                break;
            }
        }
        let mut seen = Vec::new();
        while !is_end(&seen)
            && let Some(message) = raw.try_read()
        {
            heard.fetch_add(1, Ordering::Relaxed);
            seen.push(message);
        }
        let closed = !is_end(&seen);
        if closed {
            // PostgreSQL says it twice, as an ERROR first.
            let told = |m: &Message| m.tag == b::ERROR_RESPONSE && m.sqlstate() == "08P01";
            seen.truncate(seen.iter().rposition(|m| !told(m)).map_or(0, |last| last + 1));
        }
        let mut lines: Vec<String> = seen.iter().map(|m| outline(m) + "\n").collect();
        // What another notified comes when it comes.
        lines.sort_by_key(|line| !(line.starts_with('A') && line.contains(ANOTHER)));
        answers.push(lines.concat());
        if closed {
            answers.push("closed".into());
            break;
        }
    }
    answers
}

fn has_one_of(bytes: &[u8], words: &[&[u8]]) -> bool {
    words.iter().any(|word| bytes.windows(word.len()).any(|window| window == *word))
}

fn has_sleep(steps: &[Vec<Vec<u8>>]) -> bool {
    let words: [&[u8]; 2] = [b"pg_sleep", &SLEEP_OID.to_be_bytes()];
    steps.iter().any(|step| has_one_of(&step.concat(), &words))
}

/// One CancelRequest for each statement that sleeps, until it is over. As long as answers come, nothing does.
fn cancel_what_sleeps(watcher: &mut Raw, port: u16, request: &[u8], over: &AtomicBool, heard: &AtomicUsize) {
    const SLEEPS: &str = "SELECT pid, state_change FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'PgSleep'";
    // Time and wait are not read at once: what is seen twice is true.
    let (mut seen, mut cancelled) = (Vec::new(), Vec::new());
    let mut last = 0;
    poll(Duration::MAX, || {
        if over.load(Ordering::Relaxed) {
            return Some(());
        }
        let now = heard.load(Ordering::Relaxed);
        if std::mem::replace(&mut last, now) != now {
            return None;
        }
        let sleeps = watcher.rows(SLEEPS);
        if !sleeps.is_empty() && sleeps == seen && sleeps != cancelled {
            let mut raw = Raw::connect(port);
            raw.send(request);
            raw.read_until_closed();
            cancelled = sleeps.clone();
        }
        seen = sleeps;
        None
    });
}

/// Says so also where a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Sides {
    pg: &'static Postgres,
    proxies: [(&'static str, Proxy); 3],
    database: String,
    admin: RefCell<Raw>,
    watcher: RefCell<Raw>,
    moves: RefCell<Moves>,
    /// Of the startup packet.
    options: Option<&'static str>,
}

/// One of the pool's two connections is another client's every other time, so that what has no transaction open gets the other;
/// and every third time it gets a new one.
struct Moves {
    other: Raw,
    console: Raw,
    times: usize,
}

impl Moves {
    fn next(&mut self) {
        self.times += 1;
        self.other.rows(if self.times.is_multiple_of(2) { "COMMIT" } else { "BEGIN" });
        if self.times.is_multiple_of(3) {
            self.console.rows("RECONNECT");
        }
    }
}

impl Sides {
    fn new() -> Self {
        Self::with(2)
    }

    /// So many server connections.
    fn with(connections: usize) -> Self {
        let pg = Postgres::shared();
        let database = pg.fresh_database("CREATE TABLE t (a int CHECK (a < 100))");
        let rest = "[policy]\nfunction_call = \"allow\"\n[coalesce]\nmode = \"on\"";
        let proxies = ["session", "transaction", "statement"].map(|mode| {
            (
                mode,
                Proxy::to(
                    pg,
                    &format!("pool_mode = \"{mode}\"\ndefault_pool_size = {connections}"),
                    "",
                    rest,
                ),
            )
        });
        let admin = RefCell::new(Raw::login(pg.port(), &database));
        let watcher = RefCell::new(Raw::login(pg.port(), &database));
        let other = Raw::login(proxies[1].1.port(), &database);
        let console = Raw::login(proxies[1].1.port(), "pgsluice");
        let moves = RefCell::new(Moves { other, console, times: 0 });
        Self { pg, proxies, database, admin, watcher, moves, options: None }
    }

    /// `minor` is that of the protocol's version.
    fn login(&self, port: u16, minor: u32) -> Raw {
        self.login_to(&self.database, port, minor)
    }

    fn login_to(&self, database: &str, port: u16, minor: u32) -> Raw {
        let options = self.options.map(|options| ("options", options));
        let settings = [("user", "postgres"), ("database", database)].into_iter().chain(options);
        let mut raw = Raw::connect(port);
        raw.startup(3 << 16 | minor, &settings.collect::<Vec<_>>());
        raw.authenticate("postgres", "").unwrap_or_else(|e| panic!("login refused: {}", e.outline()));
        raw
    }

    fn run(&self, port: u16, minor: u32, steps: &[Vec<Vec<u8>>]) -> Vec<String> {
        self.clean();
        let mut raw = self.login(port, minor);
        let over = AtomicBool::new(!has_sleep(steps));
        let heard = &AtomicUsize::new(0);
        let cancel = &cancel_packet(raw.pid, &raw.key);
        let mut guard = self.watcher.borrow_mut();
        let watcher = &mut *guard;
        std::thread::scope(|scope| {
            let ended = &over;
            let _over = Over(ended);
            scope.spawn(move || cancel_what_sleeps(watcher, port, cancel, ended, heard));
            let mut times = 0;
            converse(&mut raw, steps, heard, |raw| {
                times += 1;
                self.moves.borrow_mut().next();
                self.admin.borrow_mut().rows(&format!("NOTIFY a, '{ANOTHER} {times}'"));
                if times % 3 == 0 {
                    raw.cancel(port);
                }
            })
        })
    }

    fn clean(&self) {
        let mut admin = self.admin.borrow_mut();
        for row in admin.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") {
            admin.rows(&format!("ROLLBACK PREPARED '{}'", row[0].as_deref().expect("a name")));
        }
        admin.rows("DROP TABLE IF EXISTS u; TRUNCATE t");
    }

    fn compare(&self, what: &str, steps: &[Vec<Vec<u8>>]) {
        self.compare_in(0, what, steps);
    }

    /// Each step when the one before was answered, and all in one write.
    fn compare_apart_and_together(&self, steps: &[&[u8]]) {
        let apart: Vec<_> = steps.iter().map(|step| vec![step.to_vec()]).collect();
        self.compare("apart", &apart);
        self.compare("together", &[vec![steps.concat()]]);
    }

    /// What sleeps is cancelled, and PostgreSQL gives a CancelRequest to the process and to its group: the second signal may strike
    /// what follows. And a connection that it closes is reset where it has not read all: what it said last may be lost. Only what
    /// differs each time is a difference then.
    fn compare_in(&self, minor: u32, what: &str, steps: &[Vec<Vec<u8>>]) {
        for times in 1.. {
            let Some(difference) = self.difference(minor, what, steps) else { break };
            let may_vary = has_sleep(steps) || difference.contains("\n--\nclosed\n");
            assert!(may_vary && times < 5, "{difference}");
        }
    }

    fn difference(&self, minor: u32, what: &str, steps: &[Vec<Vec<u8>>]) -> Option<String> {
        let direct = self.run(self.pg.port(), minor, steps).join("--\n");
        // Blocks are not for statement mode, which has its own words for them.
        let blocks = direct.contains("Z T\n") || direct.contains("Z E\n");
        let mut proxies = self.proxies.iter().filter(|(mode, _)| !blocks || *mode != "statement");
        proxies.find_map(|(mode, proxy)| {
            let through = self.run(proxy.port(), minor, steps).join("--\n");
            let same = direct == through || is_documented(&direct, &through);
            (!same).then(|| {
                format!(
                    "{what}, {mode} mode, {}\ndirect:\n{direct}\nthrough:\n{through}",
                    steps
                        .iter()
                        .flatten()
                        .map(|piece| piece[..piece.len().min(2000)].escape_ascii().to_string() + "\n")
                        .collect::<String>(),
                )
            })
        })
    }
}

/// Whose turn it is, and what is said.
type Turn = (usize, Vec<Vec<u8>>);

impl Sides {
    fn run_two(&self, port: u16, turns: &[Turn]) -> String {
        self.clean();
        let mut raws = [0, 1].map(|_| self.login(port, 0));
        let mut said = String::new();
        for (who, step) in turns {
            let heard = &AtomicUsize::new(0);
            let answers = converse(&mut raws[*who], std::slice::from_ref(step), heard, |_| {});
            said += &format!("-- {who}\n{}", answers.concat());
            if answers.len() > 1 {
                break;
            }
        }
        said
    }

    fn compare_two(&self, what: &str, turns: &[Turn]) {
        let direct = self.run_two(self.pg.port(), turns);
        for (mode, proxy) in &self.proxies[..2] {
            let through = self.run_two(proxy.port(), turns);
            let turns = || {
                turns
                    .iter()
                    .map(|(who, step)| format!("{who}: {}\n", step.concat().escape_ascii()))
                    .collect::<String>()
            };
            assert!(
                direct == through || is_documented(&direct, &through),
                "{what}, {mode} mode, {}\ndirect:\n{direct}\nthrough:\n{through}",
                turns()
            );
        }
    }
}

/// `int4abs`, given as text.
fn function_call(argument: &str) -> Vec<u8> {
    call(1251, &[argument])
}

/// The function of this oid, with text in and out.
fn call(oid: u32, arguments: &[&str]) -> Vec<u8> {
    let mut body = oid.to_be_bytes().to_vec();
    body.extend_from_slice(&[0, 0, 0, arguments.len() as u8]);
    for argument in arguments {
        body.extend_from_slice(&[0, 0, 0, argument.len() as u8]);
        body.extend_from_slice(argument.as_bytes());
    }
    body.extend_from_slice(&[0, 0]);
    message(f::FUNCTION_CALL, &body)
}

/// A Bind that asks for its results in these formats.
fn bind_formats(portal: &str, name: &str, formats: &[u8]) -> Vec<u8> {
    let mut body =
        [portal.as_bytes(), b"\0", name.as_bytes(), b"\0\0\0\0\0\0", &[formats.len() as u8]].concat();
    body.extend(formats.iter().flat_map(|&format| [0, format]));
    message(f::BIND, &body)
}

/// The first difference is what `docs/protocol.md` says of a failed block (a Describe is not answered on a connection where its
/// statement was not parsed, and its parameters have types that nobody was told) or of a Describe before a BEGIN with an isolation level
/// (what is parsed for it takes a snapshot).
fn is_documented(direct: &str, through: &str) -> bool {
    let differ = direct.lines().zip(through.lines()).find(|(direct, through)| direct != through);
    differ.is_some_and(|(direct, through)| {
        let is_untold = direct.starts_with("t ") && direct != "t \\x00\\x00" && through.contains("\"25P02\"");
        let is_late = direct.starts_with("C BEGIN") && through.contains("must be called before any query");
        is_untold || is_late
    })
}

/// What a conversation is made of: all texts, or a few that meet each other more often.
fn palette(r: &mut Seeded) -> Vec<&'static str> {
    let mut any = || {
        let texts = [TEXTS, MORE_TEXTS][r.below(2)];
        texts[r.below(texts.len())]
    };
    (0..6).map(|_| any()).collect()
}

/// INSERTs in one write, as a driver sends many: they may be poured.
fn run_of_inserts(r: &mut Seeded, name: &str) -> Vec<u8> {
    let mut out = if r.one_in(2) { parse(name, "INSERT INTO t VALUES ($1)") } else { Vec::new() };
    for _ in 0..2 + r.below(12) {
        let value = if r.one_in(12) { ["500", "x"][r.below(2)] } else { "7" };
        out.extend([bind("", name, Some(value)), execute("", 0)].concat());
        if r.one_in(8) {
            out.extend(sync());
        }
    }
    [out, sync()].concat()
}

/// A portal that is asked for its rows little by little: across Syncs, with others' messages between, up to its end and beyond.
fn suspended(r: &mut Seeded, text: &str, name: &str, portal: &str, between: &[u8]) -> Vec<u8> {
    let mut out = [parse(name, text), bind(portal, name, None)].concat();
    for _ in 0..1 + r.below(4) {
        out.extend(execute(portal, [1, 2, 2, 3, 0, -1][r.below(6)]));
        match r.below(6) {
            0 => out.extend(sync()),
            1 => out.extend(message(f::FLUSH, b"")),
            2 => out.extend_from_slice(between),
            3 => out.extend(target(f::DESCRIBE, b'P', portal)),
            _ => {}
        }
    }
    if r.one_in(3) {
        out.extend(target(f::CLOSE, [b'P', b'S'][r.below(2)], portal));
    }
    [out, sync()].concat()
}

/// A body that is longer than what is read at once, or than what is held.
fn large(r: &mut Seeded, name: &str, portal: &str) -> Vec<u8> {
    let much = "7".repeat([9_000, 70_000, 300_000, 1_100_000][r.below(4)]);
    match r.below(8) {
        0 => query(&format!("SELECT length('{much}')")),
        1 => query(&format!("SELECT 1 /* {much} */; SELECT 1/0")),
        2 => query(&format!("SET application_name = 'z' /* {much} */")),
        3 => [parse(name, &format!("SELECT length($1) -- {much}")), target(f::DESCRIBE, b'S', name), sync()]
            .concat(),
        4 => {
            let mut body = [portal.as_bytes(), b"\0", name.as_bytes(), b"\0\0\0\0\x01"].concat();
            body.extend((much.len() as u32).to_be_bytes());
            body.extend([much.as_bytes(), b"\0\0"].concat());
            let text = ["SELECT length($1), $1", "INSERT INTO t VALUES (length($1))"][r.below(2)];
            [parse(name, text), message(f::BIND, &body), execute(portal, 0), sync()].concat()
        }
        5 => [copy(), data(&much), data("\n"), copy_done(), sync()].concat(),
        6 => [copy(), data(&"8\n".repeat(much.len() / 2)), copy_done(), sync()].concat(),
        _ => query(&format!("SELECT repeat('x', {}) FROM generate_series(1, 3)", much.len())),
    }
}

/// A portal of a block, asked for its rows in several units, with others' between.
fn portal_of_a_block(r: &mut Seeded, text: &str, name: &str) -> Vec<u8> {
    let rows =
        ["SELECT generate_series(1, 5)", "INSERT INTO t VALUES (1), (2) RETURNING a", text][r.below(3)];
    let mut out = [query("BEGIN"), parse(name, rows), bind("p", name, None), sync()].concat();
    for _ in 0..2 + r.below(4) {
        out.extend(match r.below(9) {
            0..=4 => [execute("p", [1, 2, 3, 0][r.below(4)]), sync()].concat(),
            5 => query(text),
            6 => [target(f::DESCRIBE, b'P', "p"), sync()].concat(),
            7 => [parse("", text), bind("", "", None), execute("", 1), sync()].concat(),
            _ => query(["FETCH 1 FROM p", "SAVEPOINT a", "ROLLBACK TO a", "COMMIT"][r.below(4)]),
        });
    }
    [out, query(["COMMIT", "ROLLBACK"][r.below(2)])].concat()
}

/// A function called by its oid that changes what the session is or has, and a look at that.
fn function_with_effect(r: &mut Seeded) -> Vec<u8> {
    let (call, look) = match r.below(8) {
        0 => (call(2078, &["work_mem", "5MB", "f"]), "SHOW work_mem"),
        1 => (call(2078, &["DateStyle", "German", "f"]), "SELECT '2020-01-02'::date"),
        2 => (call(2078, &["TimeZone", "UTC", "t"]), "SHOW TimeZone"),
        3 => (call(2078, &["application_name", "w", "f"]), "SHOW application_name"),
        4 => (call(2078, &["TimeZone", "nowhere", "f"]), "SHOW TimeZone"),
        5 => (call(NOTIFY_OID, &["a", "d"]), "LISTEN a"),
        6 => (
            call(2880, &["1"]),
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        ),
        _ => (call(SLEEP_OID, &["600"]), "SELECT 1"),
    };
    if r.one_in(2) { [call, query(look)].concat() } else { call }
}

/// COPY among other statements of one unit, in both directions, with what follows sent before its end is known.
fn copies(r: &mut Seeded, text: &str, name: &str) -> Vec<u8> {
    let run = |text: &str| [parse(name, text), bind("", name, None), execute("", 0)].concat();
    let mut out = Vec::new();
    for _ in 0..2 + r.below(3) {
        out.extend(match r.below(6) {
            0 => run("COPY t TO STDOUT"),
            1 => [run("COPY t FROM STDIN"), data("5\n"), copy_done()].concat(),
            2 => [run("COPY t FROM STDIN"), data("x\n"), copy_done()].concat(),
            3 => [run("COPY t FROM STDIN"), data("6\n"), message(f::COPY_FAIL, b"no\0")].concat(),
            4 => run("COPY (SELECT 10 / (3 - g) FROM generate_series(1, 5) g) TO STDOUT"),
            _ => run(text),
        });
        if r.one_in(5) {
            out.extend([sync(), message(f::FLUSH, b""), function_call("-5")][r.below(3)].clone());
        }
    }
    [out, sync()].concat()
}

/// One of these with less of its body, or more, or a byte of it another one.
fn malformed(r: &mut Seeded, whole: &[Vec<u8>]) -> Vec<u8> {
    let whole = &whole[r.below(whole.len())];
    let mut body = whole[5..].to_vec();
    match r.below(3) {
        0 => body.truncate(r.below(body.len().max(1))),
        1 => body.extend(vec![[0, 1, b'x'][r.below(3)]; 1 + r.below(4)]),
        _ => {
            let at = r.below(body.len().max(1));
            body.iter_mut().skip(at).take(1).for_each(|byte| *byte = [0, 1, b'x', 0x7f][r.below(4)]);
        }
    }
    message(whole[0], &body)
}

fn any(r: &mut Seeded, palette: &[&'static str]) -> Vec<u8> {
    let texts = if palette.is_empty() { [TEXTS, MORE_TEXTS][r.below(2)] } else { palette };
    let text = texts[r.below(texts.len())];
    let name = ["", "", "", "a", "b"][r.below(5)];
    let portal = ["", "", "", "p"][r.below(4)];
    let of = |kind| if kind == b'S' { name } else { portal };
    let kind = [b'S', b'P'][r.below(2)];
    match r.below(43) {
        0..=2 => query(text),
        3..=5 => parse(name, text),
        6..=8 => bind(portal, name, [None, None, Some("1"), Some("x")][r.below(4)]),
        9..=10 => target(f::DESCRIBE, kind, of(kind)),
        11..=12 => execute(portal, [0, 0, 1, 2][r.below(4)]),
        13 => target(f::CLOSE, kind, of(kind)),
        14 => message(f::FLUSH, b""),
        15..=17 => sync(),
        18 => data(["1\n", "x\n", "1", "\n", "", "1\n2\n"][r.below(6)]),
        19 => copy_done(),
        20 => match r.below(3) {
            0 => message(f::FUNCTION_CALL, &[0; 10]),
            1 => function_call("-5"),
            _ => function_call("x"),
        },
        21 => [parse("", text), bind("", "", None), target(f::DESCRIBE, b'P', ""), execute("", 0), sync()]
            .concat(),
        22 => [copy(), data(["5\n", "x\n"][r.below(2)]), data("6\n"), copy_done(), sync()].concat(),
        23 => {
            let mut out = Vec::new();
            f::put_parse(&mut out, name.as_bytes(), text.as_bytes(), &[0, 0, 0, [0, 23, 25][r.below(3)]]);
            out
        }
        24 => bind_formats(portal, name, [&[1][..], &[0], &[2], &[0, 1]][r.below(4)]),
        25 => message(f::COPY_FAIL, b"no more\0"),
        26 => {
            let flush = if r.one_in(2) { message(f::FLUSH, b"") } else { Vec::new() };
            [bind(portal, name, None), target(f::DESCRIBE, b'P', portal), flush, execute(portal, 2), sync()]
                .concat()
        }
        27 => [target(f::CLOSE, b'S', name), parse(name, text), target(f::DESCRIBE, b'S', name), sync()]
            .concat(),
        28 => run_of_inserts(r, name),
        29 => malformed(
            r,
            &[
                query(text),
                parse(name, text),
                bind(portal, name, None),
                target(f::DESCRIBE, kind, of(kind)),
                execute(portal, 0),
                target(f::CLOSE, kind, of(kind)),
                function_call("-5"),
                message(f::FLUSH, b""),
                sync(),
            ],
        ),
        30 => [
            parse(name, text),
            bind(portal, name, None),
            execute(portal, 1),
            query(texts[r.below(texts.len())]),
        ]
        .concat(),
        31 | 32 => suspended(r, "SELECT generate_series(1, 5)", name, portal, &query(text)),
        33 => suspended(r, text, name, portal, &function_call("-5")),
        34 | 35 => copies(r, text, name),
        36 | 37 => portal_of_a_block(r, text, name),
        38 | 39 => function_with_effect(r),
        40 => large(r, name, portal),
        41 => [query("LISTEN a"), query(text)].concat(),
        _ => {
            let first = if r.one_in(2) { sync() } else { Vec::new() };
            [copy(), first, data(["5\n", "x\n"][r.below(2)]), sync(), data("6\n"), copy_done()].concat()
        }
    }
}

/// What PostgreSQL itself may crash over is left out: a Query that fails in a block leaves its portal, which is the unnamed one, and
/// an Execute of it reads the Query's statements, whose memory is free (seen on 18.4, direct).
#[derive(Default)]
struct Spared {
    /// A text may have opened a block.
    block: bool,
    /// A Query has been.
    queried: bool,
    /// The unnamed portal is bound, if nothing failed in this unit.
    bound: bool,
}

impl Spared {
    /// These messages without such an Execute.
    fn spare(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = 1 + u32::from_be_bytes(rest[1..5].try_into().expect("a length")) as usize;
            let (message, behind) = rest.split_at(len);
            if !self.is_harmful(message[0], &message[5..]) {
                out.extend_from_slice(message);
            }
            rest = behind;
        }
        out
    }

    fn is_harmful(&mut self, tag: u8, body: &[u8]) -> bool {
        match tag {
            f::QUERY | f::PARSE => {
                let text = String::from_utf8_lossy(body).to_uppercase();
                self.block |= ["BEGIN", "START", "CHAIN"].iter().any(|word| text.contains(word));
                if tag == f::QUERY {
                    (self.queried, self.bound) = (true, false);
                }
            }
            f::BIND => self.bound |= body.first() == Some(&0),
            f::SYNC => self.bound = false,
            f::EXECUTE => return body.first() == Some(&0) && self.block && self.queried && !self.bound,
            _ => {}
        }
        false
    }
}

fn cut(r: &mut Seeded, bytes: &[u8]) -> Vec<Vec<u8>> {
    match r.below(4) {
        0 if bytes.len() < 200 => bytes.chunks(1).map(<[u8]>::to_vec).collect(),
        0 | 1 => {
            let (first, second) = bytes.split_at(r.below(bytes.len().max(1)));
            vec![first.to_vec(), second.to_vec()]
        }
        _ => vec![bytes.to_vec()],
    }
}

#[test]
fn nobody_can_tell_in_any_state() {
    let mut sides = Sides::new();
    let seed = from_env("PGSLUICE_TEST_SEED", 0);
    println!("PGSLUICE_TEST_SEED={seed}");
    for seed in seed..seed + from_env("PGSLUICE_TEST_CONVERSATIONS", CONVERSATIONS) {
        // RESET and DISCARD ALL bring it back. Nothing shows it: in a block the value of the server connection holds.
        sides.options = (seed % 3 == 2).then_some("-c lock_timeout=9min");
        let mut r = Seeded(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let palette = if r.one_in(2) { palette(&mut r) } else { Vec::new() };
        let mut steps: Vec<Vec<u8>> = (0..1 + r.below(5))
            .map(|_| (0..1 + r.below(8)).flat_map(|_| any(&mut r, &palette)).collect())
            .collect();
        if r.one_in(3) {
            steps.insert(r.below(steps.len()), query("BEGIN"));
        }
        let mut spared = Spared::default();
        let steps: Vec<_> = steps.iter().map(|bytes| cut(&mut r, &spared.spare(bytes))).collect();
        let minor = [0, 2][r.below(2)];
        sides.compare_in(minor, &format!("seed {seed}, protocol 3.{minor}"), &steps);
    }
}

/// What two clients do in turn, each in its own time, is what each of them alone would see: neither has what the other set, made
/// or prepared. A lock that the other holds is waited for so long; what would wait for a cancel, or come when it comes, is left out.
#[test]
fn nobody_can_tell_beside_another() {
    let sides = Sides { options: Some("-c lock_timeout=100ms"), ..Sides::new() };
    let seed = from_env("PGSLUICE_TEST_SEED", 0);
    println!("PGSLUICE_TEST_SEED={seed}");
    for seed in seed..seed + from_env("PGSLUICE_TEST_CONVERSATIONS", CONVERSATIONS / 2) {
        let mut r = Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let palette = palette(&mut r);
        let turns = turns(&mut r, &palette, 5);
        sides.compare_two(&format!("seed {seed}"), &turns);
    }
}

impl Sides {
    /// In a database of its own: nothing that was made in another is known in it, and no connection was there before.
    fn run_anew(&self, port: u16, mode: Option<&Proxy>, turns: &[Turn]) -> String {
        let database = self.pg.fresh_database("CREATE TABLE t (a int CHECK (a < 100))");
        let mut raws = [0, 1].map(|_| self.login_to(&database, port, 0));
        let mut moves = mode.map(|proxy| Moves {
            other: self.login_to(&database, port, 0),
            console: Raw::login(proxy.port(), "pgsluice"),
            times: 0,
        });
        let mut said = String::new();
        for (who, step) in turns {
            let heard = &AtomicUsize::new(0);
            let answers = converse(&mut raws[*who], std::slice::from_ref(step), heard, |_| {
                moves.iter_mut().for_each(Moves::next);
            });
            said += &format!("-- {who}\n{}", answers.concat());
            if answers.len() > 1 {
                break;
            }
        }
        said
    }
}

/// Tables, views and functions change while two clients have statements prepared that speak of them.
#[test]
fn nobody_can_tell_while_tables_change() {
    let sides = Sides { options: Some("-c lock_timeout=100ms"), ..Sides::with(3) };
    let seed = from_env("PGSLUICE_TEST_SEED", 0);
    println!("PGSLUICE_TEST_SEED={seed}");
    for seed in seed..seed + from_env("PGSLUICE_TEST_CONVERSATIONS", CONVERSATIONS / 4) {
        let mut r = Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let palette: Vec<_> = (0..7)
            .map(|n| {
                let texts = if n < 3 { CHANGING_TEXTS } else { USING_TEXTS };
                texts[r.below(texts.len())]
            })
            .collect();
        let turns = turns(&mut r, &palette, 4);
        let direct = sides.run_anew(sides.pg.port(), None, &turns);
        for (mode, proxy) in &sides.proxies[..2] {
            let moves = (*mode == "transaction").then_some(proxy);
            let through = sides.run_anew(proxy.port(), moves, &turns);
            let told = turns.iter().map(|(who, step)| format!("{who}: {}\n", step.concat().escape_ascii()));
            assert!(
                direct == through || is_documented(&direct, &through),
                "seed {seed}, {mode} mode, {}\ndirect:\n{direct}\nthrough:\n{through}",
                told.collect::<String>()
            );
        }
    }
}

/// What two clients say in turn, up to so many things at a time.
fn turns(r: &mut Seeded, palette: &[&'static str], most: usize) -> Vec<Turn> {
    let mut spared = [Spared::default(), Spared::default()];
    (0..4 + r.below(8))
        .map(|_| {
            let who = r.below(2);
            let said: Vec<u8> = (0..1 + r.below(most))
                .map(|_| any(r, palette))
                .filter(|bytes| !waits_or_notifies(bytes))
                .flatten()
                .collect();
            (who, cut(r, &spared[who].spare(&said)))
        })
        .collect()
}

fn waits_or_notifies(bytes: &[u8]) -> bool {
    let oids = [SLEEP_OID, NOTIFY_OID].map(u32::to_be_bytes);
    has_one_of(bytes, &[b"pg_sleep", b"NOTIFY", b"pg_notify", &oids[0], &oids[1]])
}

/// How far COPY had read when it failed, nobody but the server knows: what stands behind a Sync among its data is run, what
/// stands before one is skipped.
#[test]
fn a_copy_that_fails_ends_at_the_sync_that_it_had_not_read() {
    let sides = Sides::new();
    let behind: [Vec<u8>; 5] = [
        query("SELECT 42"),
        [parse("s", "SELECT 43"), bind("", "s", None), execute("", 0), sync()].concat(),
        [bind("", "", None), execute("", 0), query("SELECT 44")].concat(),
        message(f::FUNCTION_CALL, &[0; 10]),
        [target(f::DESCRIBE, b'S', ""), sync(), query("SELECT 45")].concat(),
    ];
    for begin in [copy(), query("COPY t FROM STDIN")] {
        for (rows, last) in [("x\n", true), ("x\n", false), ("500\n", true), ("5\n", true), ("5\n", false)] {
            for syncs in 0..8 {
                let sync_if = |bit: usize| if syncs >> bit & 1 == 1 { sync() } else { Vec::new() };
                let end = if last { copy_done() } else { Vec::new() };
                let data = [begin.clone(), sync_if(0), data(rows), sync_if(1), data("6\n"), end, sync_if(2)]
                    .concat();
                for behind in &behind {
                    let what = format!("{rows:?}, ended: {last}, Syncs {syncs:03b}");
                    let bytes = [data.clone(), behind.clone()].concat();
                    sides.compare(&what, &[vec![bytes], vec![query("SELECT count(*) FROM t")]]);
                }
            }
        }
    }
}

/// It is no data that ends, and no Query: the server answers at the Sync, also where what it runs brings back what the startup packet set.
#[test]
fn the_end_of_a_copy_that_is_none_is_not_waited_for() {
    let sides = Sides { options: Some("-c work_mem=7MB"), ..Sides::new() };
    for end in [copy_done(), message(f::COPY_FAIL, b"no\0")] {
        for text in ["DISCARD ALL", "RESET ALL", "SELECT 1"] {
            let unit =
                |rest: &[Vec<u8>]| [&[bind("", "a", None)], rest, &[end.clone(), sync()]].concat().concat();
            sides.compare_apart_and_together(&[
                &[parse("a", text), sync()].concat(),
                &unit(&[]),
                &unit(&[execute("", 0)]),
                &unit(&[execute("", 0), copy(), data("5\n")]),
                &[query(&format!("{text}; COPY t FROM STDIN")), data("5\n"), end.clone()].concat(),
                &[query("RESET work_mem; COPY t FROM STDIN"), data("5\n"), end.clone()].concat(),
                &query("SHOW work_mem"),
            ]);
        }
    }
}

/// A Close, or a Parse of what is held already, is not sent on; where it came to a COPY it is to fail that all the same.
#[test]
fn a_message_that_pgsluice_answers_itself_ends_a_copy() {
    let sides = Sides::new();
    let held = vec![[parse("a", "SELECT 7"), parse("b", "SELECT 7"), bind("", "a", None), sync()].concat()];
    for odd in [target(f::CLOSE, b'S', "a"), parse("c", "SELECT 7")] {
        for behind in [Vec::new(), function_call("-5"), query("SELECT 1"), sync()] {
            for first in [Vec::new(), sync()] {
                let bytes = [copy(), first, odd.clone(), behind.clone()].concat();
                sides.compare("together", &[held.clone(), vec![bytes.clone()]]);
                sides.compare("in a block", &[held.clone(), vec![query("BEGIN")], vec![bytes]]);
            }
        }
    }
}

/// The same once it reads its data, which none of it stores then.
#[test]
fn a_message_that_pgsluice_answers_itself_ends_a_copy_that_reads() {
    let sides = Sides::new();
    let held = [parse("a", "SELECT 7"), parse("b", "SELECT 7"), bind("", "a", None), sync()].concat();
    let unit = [copy(), message(f::FLUSH, b"")].concat();
    for begin in [query("COPY t FROM STDIN"), unit] {
        for odd in [target(f::CLOSE, b'S', "a"), parse("c", "SELECT 7")] {
            let said = |port| {
                let mut raw = sides.login(port, 0);
                raw.send(&held);
                raw.read_until_ready();
                raw.send(&begin);
                raw.read_until(b::COPY_IN_RESPONSE);
                raw.send(&[data("1\n"), odd.clone()].concat());
                raw.read_until_closed().last().map(Message::sqlstate)
            };
            for port in sides.proxies.iter().map(|(_, proxy)| proxy.port()).chain([sides.pg.port()]) {
                assert_eq!(said(port).as_deref(), Some("08P01"), "{}", odd.escape_ascii());
            }
            assert_eq!(sides.admin.borrow_mut().value("SELECT count(*) FROM t").as_deref(), Some("0"));
        }
    }
}

/// PostgreSQL reads the text of a Parse before it looks whether the name is taken.
#[test]
fn a_parse_of_a_name_that_is_taken_fails_for_its_text_first() {
    let sides = Sides::new();
    let texts =
        ["SELECT 2", "SELEC", "SELECT * FROM nope", "SELECT 1; SELECT 2", "SELECT $1::int + $2::nope", ""];
    for block in [None, Some("BEGIN"), Some("BEGIN; SELECT 1/0")] {
        for text in texts {
            let mut steps = vec![vec![parse("a", "SELECT 1")]];
            steps.extend(block.map(|text| vec![query(text)]));
            steps.push(vec![[parse("a", text), sync(), bind("", "a", None), execute("", 0)].concat()]);
            steps.push(vec![query("ROLLBACK")]);
            steps.push(vec![[bind("", "a", None), execute("", 0)].concat()]);
            sides.compare(&format!("{text:?} in {block:?}"), &steps);
        }
    }
}

/// PostgreSQL 18 answers a Query there, and its transaction is still started behind the Sync: what comes next fails (XX000).
#[test]
fn what_comes_behind_a_query_inside_a_unit_is_told_as_directly() {
    let sides = Sides::new();
    let unit = [parse("", "SELECT 1"), bind("", "", None), execute("", 0)].concat();
    let prepared = vec![[parse("a", "SELECT 7"), sync()].concat()];
    for text in ["SET application_name = 'x'", "INSERT INTO t VALUES (1)", "EXECUTE a", "COMMIT"] {
        for between in [Vec::new(), target(f::CLOSE, b'S', ""), unit.clone(), query("SELECT 3")] {
            let odd = [&unit[..], &query(text), &between].concat();
            for behind in [
                query("SHOW application_name"),
                query("DEALLOCATE a"),
                [parse("b", "SELECT 7"), sync()].concat(),
                function_call("-5"),
                [
                    parse("", "INSERT INTO t VALUES (2)"),
                    [bind("", "", None), execute("", 0)].concat().repeat(9),
                    sync(),
                ]
                .concat(),
            ] {
                let steps =
                    [prepared.clone(), vec![odd.clone()], vec![behind.clone()], vec![query("TABLE t")]];
                sides.compare(&format!("{text}, then, apart"), &steps);
                let together = [prepared.clone(), vec![odd.clone(), behind], vec![query("TABLE t")]];
                sides.compare(&format!("{text}, then, together"), &together);
            }
        }
    }
}

/// What fails there (XX000) had taken nothing up: neither a Query nor a Parse has taken the unnamed statement away.
#[test]
fn the_unnamed_statement_outlives_what_fails_behind_a_query_inside_a_unit() {
    let sides = Sides::new();
    let unit = [parse("", "SELECT $1::int"), bind("", "", Some("5")), execute("", 0)].concat();
    let within = [unit, function_call("-5"), sync()].concat();
    let run = [bind("", "", Some("6")), execute("", 0), sync()].concat();
    for odd in [query("BEGIN"), query("SELEC"), [parse("", "SELECT 7"), sync()].concat(), function_call("-5")]
    {
        let apart = [within.clone(), odd.clone(), run.clone()].map(|step| vec![step]);
        sides.compare("apart", &apart);
        sides.compare("together", &[vec![[&within[..], &odd, &run].concat()]]);
        sides.compare("twice", &[vec![[&within[..], &odd, &odd, &run].concat()]]);
    }
    // What waits for that does not wait for a COPY behind it.
    let copied = [copy(), query("SELECT 1")].concat();
    sides.compare("COPY apart", &[vec![within.clone()], vec![copied.clone()]]);
    sides.compare("COPY together", &[vec![[within, copied].concat()]]);
}

/// Nobody else gets a connection that says it is idle and is not.
#[test]
fn a_connection_with_a_query_inside_a_unit_is_nobody_elses() {
    let pg = Postgres::shared();
    let database = pg.fresh_database("CREATE TABLE t (a int)");
    let proxy = Proxy::to(pg, "default_pool_size = 1", "", "");
    let mut raw = Raw::login(proxy.port(), &database);
    let mut other = Raw::login(proxy.port(), &database);
    raw.send(&[parse("s", "SELECT 2"), sync()].concat());
    raw.read_until_ready();
    for text in ["SELECT 2", "EXECUTE s", "SET work_mem = '2MB'"] {
        raw.send(&[parse("", "SELECT 1"), bind("", "", None), execute("", 0), query(text), sync()].concat());
        raw.read_until_ready();
        raw.read_until_ready();
        let mut messages = Vec::new();
        f::put_query(&mut messages, b"SELECT 3");
        other.send(&messages);
        raw.query("SELECT 4");
        assert!(other.read_until_ready().iter().all(|m| m.tag != b::ERROR_RESPONSE), "{text}");
    }
    raw.send(
        &[
            parse("", "SELECT 1"),
            bind("", "", None),
            execute("", 0),
            query("DO $$BEGIN LOCK TABLE t; END$$"),
            sync(),
        ]
        .concat(),
    );
    raw.read_until_ready();
    raw.read_until_ready();
    raw.terminate();
    other.rows("BEGIN; LOCK TABLE t; COMMIT");
}

/// What SQL and the protocol prepare has one kind of names.
#[test]
fn names_of_sql_and_of_the_protocol_are_the_same() {
    let sides = Sides::new();
    let made = |name: &str, text: &str| vec![[parse(name, text), sync()].concat()];
    let runs = |name: &str| vec![[bind("", name, None), execute("", 0), sync()].concat()];
    let sql = |text: &str| vec![query(text)];
    let table = [sql("CREATE TABLE u (a int)"), made("a", "SELECT * FROM u"), sql("DROP TABLE u")].concat();
    let conversations = [
        vec![sql("PREPARE a AS SELECT 8"), made("a", "SELECT 7"), runs("a"), sql("EXECUTE a")],
        vec![
            sql("PREPARE a AS SELECT 8"),
            made("a", "SELEC"),
            made("a", "SELECT * FROM nope"),
            made("b", "SELECT 7"),
            runs("b"),
        ],
        vec![
            sql("PREPARE a AS SELECT 8"),
            made("b", "SELECT 7"),
            sql("EXECUTE b; EXECUTE a"),
            made("b", "SELECT 7"),
        ],
        vec![
            sql("PREPARE a AS SELECT 8"),
            sql("DEALLOCATE a"),
            made("a", "SELECT 7"),
            runs("a"),
            sql("EXECUTE a"),
        ],
        vec![
            sql("BEGIN; PREPARE a AS SELECT 8"),
            made("a", "SELECT 7"),
            sql("ROLLBACK"),
            made("a", "SELECT 7"),
            runs("a"),
        ],
        vec![made("a", "SELECT 7"), sql("PREPARE a AS SELECT 8"), sql("EXECUTE a"), runs("a")],
        vec![made("a", "SELECT 7"), made("", "PREPARE a AS SELECT 8"), runs(""), sql("EXECUTE a")],
        vec![table.clone(), sql("PREPARE a AS SELECT 8"), sql("SELECT 1; PREPARE a AS SELECT 8")],
        vec![table.clone(), made("", "PREPARE a AS SELECT 8"), runs("")],
        vec![table, sql("SELECT 1; DEALLOCATE a"), sql("PREPARE a AS SELECT 8"), sql("EXECUTE a")],
        vec![
            made("a", "SELECT 7"),
            sql("DEALLOCATE a; SELECT 1"),
            runs("a"),
            made("a", "SELECT 9"),
            runs("a"),
        ],
        vec![
            made("a", "SELECT 7"),
            sql("SELECT 1; DEALLOCATE PREPARE a; DEALLOCATE a"),
            runs("a"),
            made("a", "SELECT 9"),
        ],
        vec![
            made("a", "SELECT 7"),
            made("b", "SELECT 6"),
            sql("DEALLOCATE b; SELECT 1/0; DEALLOCATE a"),
            runs("a"),
            runs("b"),
        ],
        vec![
            made("a", "SELECT 7"),
            sql("DEALLOCATE a; PREPARE a AS SELECT 8"),
            sql("EXECUTE a"),
            runs("a"),
            made("a", "SELECT 7"),
        ],
        vec![made("a", "SELECT 7"), sql("EXECUTE a; DEALLOCATE a; EXECUTE a"), runs("a"), sql("EXECUTE a")],
        vec![made("a", "SELECT 7"), sql("DEALLOCATE nobody; DEALLOCATE a"), runs("a")],
        vec![made("a", "SELECT 7"), sql("EXECUTE a; DEALLOCATE ALL"), runs("a"), sql("EXECUTE a")],
        vec![
            made("a", "SELECT 7"),
            sql("BEGIN; SELECT 1/0"),
            sql("DEALLOCATE a; SELECT 1"),
            sql("ROLLBACK; DEALLOCATE a"),
            sql("END"),
        ],
        vec![
            made("A", "SELECT 7"),
            sql("DEALLOCATE a; SELECT 1"),
            sql("DEALLOCATE \"A\"; SELECT 1"),
            runs("A"),
        ],
    ];
    // A Parse that fails for its name, and behind it in its unit what would be lent that name.
    let behind = [parse("b", "SELECT 7"), bind("", "a", None), execute("", 0), sync()].concat();
    let lent = vec![
        sql("PREPARE b AS SELECT 8"),
        made("a", "PREPARE b AS SELECT 9"),
        vec![behind],
        sql("EXECUTE b"),
        made("b", "SELECT 7"),
    ];
    let deallocates =
        |bound: Vec<u8>| vec![made("a", "SELECT 7"), made("d", "DEALLOCATE a"), vec![bound], runs("a")];
    let unrun = [bind("", "d", Some("1")), execute("", 0), sync()].concat();
    let conversations = [
        &conversations[..],
        &[lent, deallocates(unrun), deallocates([bind("", "d", None), execute("", 0), sync()].concat())],
    ]
    .concat();
    for steps in conversations {
        for block in [false, true] {
            let begin = if block { sql("BEGIN") } else { Vec::new() };
            let steps: Vec<Vec<Vec<u8>>> =
                std::iter::once(begin).chain(steps.iter().map(|step| vec![step.concat()])).collect();
            sides.compare("apart", &steps);
            sides.compare("together", &[steps.concat()]);
        }
    }
}

/// A prepared DEALLOCATE takes its name away when it is run, and not when it is bound.
#[test]
fn a_bound_deallocate_takes_a_name_away_when_it_is_run() {
    let sides = Sides::new();
    let made = [
        parse("a", "SELECT 7"),
        parse("b", "SELECT 6"),
        parse("d", "DEALLOCATE a"),
        parse("e", "DEALLOCATE b"),
        sync(),
    ]
    .concat();
    let runs = |name: &str| [bind("", name, None), execute("", 0), sync()].concat();
    let bound = |portal: &str, name: &str| bind(portal, name, None);
    let behind = [runs("a"), runs("b"), parse("a", "SELECT 9"), sync(), runs("a")].concat();
    let units: [&[Vec<u8>]; 9] = [
        &[bound("", "d")],
        &[bound("", "d"), target(f::DESCRIBE, b'P', ""), bound("", "a"), execute("", 0)],
        &[bound("p", "d"), bound("", "b"), execute("", 0), execute("p", 0)],
        &[bound("p", "d"), bound("q", "e"), execute("p", 0), execute("q", 0)],
        &[bound("p", "d"), bound("q", "e"), execute("q", 0)],
        &[bound("p", "d"), target(f::CLOSE, b'P', "p"), execute("p", 0)],
        &[bound("p", "d"), execute("p", 0), execute("p", 0)],
        &[bound("", "d"), parse("", "SELECT 1/0"), bound("", ""), execute("", 0), execute("", 0)],
        &[parse("", "DEALLOCATE a"), bound("", ""), sync(), bound("", ""), execute("", 0)],
    ];
    for unit in units {
        let unit = [unit.concat(), sync()].concat();
        for begin in [Vec::new(), query("BEGIN")] {
            sides.compare_apart_and_together(&[&made, &begin, &unit, &behind]);
        }
    }
}

/// What a name was lent for is over with the Close of that name.
#[test]
fn a_name_that_sql_has_spoken_of_is_free_behind_its_close() {
    let sides = Sides::new();
    let made = [parse("a", "SELECT 7"), sync()].concat();
    let runs = |text: &str| [parse("", text), bind("", "", None), execute("", 0)].concat();
    let close = target(f::CLOSE, b'S', "a");
    let behind = [query("EXECUTE a"), runs("EXECUTE a"), sync(), query("DEALLOCATE a")].concat();
    let units: [&[Vec<u8>]; 5] = [
        &[runs("EXECUTE a"), close.clone(), runs("PREPARE a AS SELECT 8")],
        &[runs("EXECUTE a"), close.clone(), runs("EXECUTE a")],
        &[runs("EXECUTE a"), close.clone(), parse("a", "SELECT 8"), runs("EXECUTE a")],
        &[runs("EXECUTE a"), runs("SELECT 1/0"), close.clone(), runs("PREPARE a AS SELECT 8")],
        &[runs("EXECUTE a"), close, runs("SELECT 1/0"), runs("PREPARE a AS SELECT 8")],
    ];
    for unit in units {
        let unit = [unit.concat(), sync()].concat();
        for begin in [Vec::new(), query("BEGIN")] {
            sides.compare_apart_and_together(&[&made, &begin, &unit, &behind]);
        }
    }
}

/// Also in the unit that prepared it.
#[test]
fn a_statement_that_prepares_its_own_name_finds_it_taken() {
    let sides = Sides::new();
    let own = |name: &str, text: &str| [parse(name, text), bind("", name, None), execute("", 0)].concat();
    let (a, other) = (own("a", "PREPARE a AS SELECT 8"), own("", "PREPARE b AS SELECT 9"));
    let explain = own("a", "EXPLAIN (COSTS OFF) EXECUTE a");
    for unit in [a.clone(), [other.clone(), a.clone()].concat(), [a, other.clone()].concat(), explain.clone()]
    {
        for begin in [Vec::new(), query("BEGIN")] {
            let behind = [query("EXECUTE a; EXECUTE b"), bind("", "a", None), execute("", 0)].concat();
            sides.compare_apart_and_together(&[&begin, &[unit.clone(), sync()].concat(), &behind]);
        }
    }
}

/// What SQL speaks of is what is prepared: not what an earlier unit failed to prepare; and what it runs may take all names away.
#[test]
fn what_sql_speaks_of_is_known_before_it_is_lent() {
    let sides = Sides::new();
    let run = |name: &str, text: &str| [parse(name, text), bind("", name, None), execute("", 0)].concat();
    let explained = run("", "EXPLAIN (COSTS OFF) EXECUTE a");
    let failed = [parse("a", "SELEC"), sync(), explained.clone(), sync()].concat();
    let struck = [parse("", "SELEC"), parse("a", "SELECT 1"), sync(), explained, sync()].concat();
    let all = [parse("a", "DEALLOCATE ALL"), run("", "EXECUTE a"), sync()].concat();
    for unit in [failed, struck, all] {
        let behind = [bind("", "a", None), execute("", 0), sync()].concat();
        for begin in [Vec::new(), query("BEGIN")] {
            sides.compare("it", &[vec![begin], vec![unit.clone()], vec![behind.clone()]]);
        }
    }
}

/// What ends it may stand before them, in their unit or in one before it that is not answered yet.
#[test]
fn statements_behind_the_end_of_a_failed_block_are_run() {
    let sides = Sides::new();
    let made = [
        parse("a", "INSERT INTO t VALUES ($1)"),
        target(f::DESCRIBE, b'S', "a"),
        parse("c", "SELECT 7"),
        parse("r", "ROLLBACK"),
        parse("s", "ROLLBACK TO s"),
        sync(),
    ]
    .concat();
    let fails = |name: &str| {
        let begin = [parse("b", "BEGIN"), bind("", "b", None), execute("", 0), sync()].concat();
        let savepoint = if name == "s" { query("SAVEPOINT s") } else { Vec::new() };
        [begin, savepoint, parse("", "SELEC"), sync()].concat()
    };
    let runs = |name: &str, value| [bind("", name, value), execute("", 0)].concat();
    let inserted = [runs("a", Some("1")), target(f::DESCRIBE, b'S', "a")].concat();
    let behind: [Vec<u8>; 5] = [
        inserted.clone(),
        [runs("c", None), inserted].concat(),
        query("EXPLAIN (COSTS OFF) EXECUTE c"),
        [parse("", "EXECUTE c"), runs("", None)].concat(),
        [target(f::DESCRIBE, b'S', "a"), parse("d", "SELECT 8"), runs("d", None)].concat(),
    ];
    for name in ["r", "s", "c"] {
        for end in [Vec::new(), sync()] {
            for behind in &behind {
                let unit = [&runs(name, None), &end, behind, &sync()].map(Vec::as_slice).concat();
                let end = [query("END"), query("TABLE t")].concat();
                let steps = [sync(), made.clone(), fails(name), unit, end].map(|step| vec![step]);
                sides.compare(name, &steps);
                // Each on the other connection.
                sides.compare(name, &steps[1..]);
            }
        }
    }
}

/// A prepared statement in a failed block, on a connection that does not have it.
#[test]
fn a_statement_in_a_failed_block_is_described_and_bound_as_directly() {
    let sides = Sides::new();
    for text in [
        "BEGIN",
        "START TRANSACTION",
        "SAVEPOINT a",
        "RELEASE a",
        "ROLLBACK TO a",
        "ROLLBACK",
        "/* */ COMMIT",
        "PREPARE x AS SELECT 8",
        "DEALLOCATE a",
        "ROLLBACK PREPARED 'x'",
        "INSERT INTO t VALUES ($1)",
        "INSERT INTO t VALUES ($1) RETURNING a",
        "INSERT INTO t VALUES (1)",
        "UPDATE t SET a = $1 WHERE a = $2",
        "SET work_mem = '2MB'",
        "SELECT 1",
        "SELECT $1::int",
        "",
    ] {
        for (name, described) in [("a", true), ("a", false), ("", true)] {
            let ask = if described { target(f::DESCRIBE, b'S', name) } else { Vec::new() };
            let made = [parse(name, text), ask, sync()].concat();
            let begun = [
                parse("b", "BEGIN"),
                bind("", "b", None),
                execute("", 0),
                sync(),
                parse("c", "SELEC"),
                sync(),
            ]
            .concat();
            let bound = |value| vec![[bind("", name, value), execute("", 0), sync()].concat()];
            let describe = vec![[target(f::DESCRIBE, b'S', name), sync()].concat()];
            // Types that the server did not tell of a named statement are not known.
            let known = (described && !name.is_empty()) || !text.contains('$');
            let describe = if known { describe } else { Vec::new() };
            let steps = [
                vec![made],
                vec![begun],
                describe,
                bound(Some("x")),
                bound(None),
                vec![query("ROLLBACK")],
                bound(None),
            ];
            sides.compare(&format!("{text:?} as {name:?}"), &steps);
        }
    }
}

/// Its framing is right: what follows is understood, and the session goes on.
#[test]
fn a_malformed_body_fails_as_directly() {
    let sides = Sides::new();
    let malformed = [
        message(f::QUERY, b""),
        message(f::QUERY, b"SELECT 1"),
        message(f::QUERY, b"SELECT 1\0;"),
        message(f::QUERY, b"SELECT 1\0\0"),
        message(f::PARSE, b""),
        message(f::PARSE, b"a"),
        message(f::PARSE, b"a\0SELECT 1"),
        message(f::PARSE, b"a\0SELECT 1\0"),
        message(f::PARSE, b"a\0SELECT 1\0\0"),
        message(f::PARSE, b"a\0SELECT 1\0\0\x01\0\0"),
        message(f::PARSE, b"\0SELECT 1\0\0\0\0"),
        message(f::BIND, b""),
        message(f::BIND, b"p"),
        message(f::BIND, b"p\0a"),
        message(f::BIND, b"\0\0\0\x01"),
        message(f::BIND, b"\0\0\0\0\0\x01\x7f\xff\xff\xff"),
        message(f::BIND, b"\0\0\0\0\0\0\0\0\0"),
        message(f::DESCRIBE, b""),
        message(f::DESCRIBE, b"S"),
        message(f::DESCRIBE, b"Sa"),
        message(f::DESCRIBE, b"Sa\0\0"),
        message(f::DESCRIBE, b"Xa\0"),
        message(f::CLOSE, b""),
        message(f::CLOSE, b"Sa"),
        message(f::CLOSE, b"Sa\0\0"),
        message(f::CLOSE, b"Xa\0"),
        message(f::EXECUTE, b""),
        message(f::EXECUTE, b"p"),
        message(f::EXECUTE, b"\0\0"),
        message(f::EXECUTE, b"\0\0\0\0\0\0"),
        message(f::FUNCTION_CALL, b""),
        message(f::FUNCTION_CALL, b"\0\0\0\0\0"),
        message(f::FLUSH, b"x"),
        message(f::SYNC, b"x"),
    ];
    let insert = [parse("", "INSERT INTO t VALUES (1)"), bind("", "", None), execute("", 0)].concat();
    let behind = [bind("", "", None), execute("", 0), sync(), query("TABLE t")].concat();
    let begins = [Vec::new(), query("BEGIN"), query("BEGIN; SELECT 1/0"), copy()];
    let befores = [
        (insert.clone(), &begins[..]),
        (Vec::new(), &begins[..1]),
        ([insert.clone(), sync()].concat(), &begins[..1]),
        (query("INSERT INTO t VALUES (2)"), &begins[..1]),
    ];
    for message in malformed {
        for (before, begins) in &befores {
            let unit = [&before[..], &message, &insert, &sync()].concat();
            for begin in *begins {
                sides.compare_apart_and_together(&[begin, &unit, &behind]);
            }
        }
    }
    // How far the COPY had read decides whose Sync this is.
    let failed = [copy(), data("x\n"), sync(), data("6\n"), copy_done(), message(f::SYNC, b"x")].concat();
    for begin in [Vec::new(), query("BEGIN")] {
        sides.compare_apart_and_together(&[&begin, &failed, &behind]);
    }
}

/// What is sent before it is known that the block has failed is told as directly, whether its statement is on that connection or not.
#[test]
fn nothing_is_prepared_before_it_is_known_whether_the_block_has_failed() {
    let sides = Sides::new();
    let fails =
        [bind("", "b", None), query("SELECT 1/0"), function_call("x"), parse("", "SELECT 1; SELECT 2")];
    for text in ["SELECT 1", "INSERT INTO t VALUES (1)", "EXPLAIN (COSTS OFF) EXECUTE a", "SHOW work_mem"] {
        for name in ["a", ""] {
            let bound = |value| [bind("", name, value), execute("", 0), sync()].concat();
            let behind = [bound(Some("7")), bound(None), target(f::DESCRIBE, b'S', "a"), sync()].concat();
            for (n, fail) in fails.iter().enumerate() {
                // Others have prepared it nowhere.
                let text = format!("{text} /* {name} {n} */");
                let made = [parse(name, &text), sync()].concat();
                let unit = [&fail[..], &sync(), &behind, &query("ROLLBACK"), &behind].concat();
                sides.compare_apart_and_together(&[&made, &query("BEGIN"), &unit]);
            }
        }
    }
}

/// A value that no column takes stands in the error, whatever its length.
#[test]
fn an_error_of_any_length_is_told_and_the_session_goes_on() {
    let sides = Sides::new();
    let much = "7".repeat(1_100_000);
    let read = format!("SELECT '{much}'::int");
    let units: [Vec<u8>; 2] = [
        [parse("", &read), sync(), query(&read), query("SELECT 1")].concat(),
        [copy(), data(&much), data("\n"), copy_done(), sync(), query("SELECT 3")].concat(),
    ];
    for unit in units {
        for begin in [Vec::new(), query("BEGIN")] {
            sides.compare("it", &[vec![begin], vec![unit.clone()], vec![query("TABLE t")]]);
        }
    }
}

/// What fails there is one message, or one unit: a Query behind it takes the unnamed statement away.
#[test]
fn the_unnamed_statement_goes_with_a_query_behind_what_failed_behind_a_query_inside_a_unit() {
    let sides = Sides::new();
    let within =
        [parse("", "SELECT 3"), bind("", "", None), execute("", 0), query("SELECT 1"), sync()].concat();
    let behind = [parse("", "SELECT 7"), sync(), query("SELECT 6"), bind("p", "", None), sync()].concat();
    for fails in [[parse("", "LISTEN a"), sync()].concat(), query("SELECT 5")] {
        for begin in [Vec::new(), query("BEGIN")] {
            let unit = [&fails[..], &begin, &behind].concat();
            sides.compare("apart", &[vec![within.clone()], vec![unit.clone()]]);
            sides.compare("together", &[vec![[&within[..], &unit].concat()]]);
        }
    }
}
