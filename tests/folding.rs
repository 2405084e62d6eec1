//! The simple protocol, answer by answer: each script of `tests/folding.txt` direct and through pgsluice, as it is sent
//! (`allow`) and folded (`single`), in session and in transaction mode. Every message must be the same, up to object
//! ids, process ids and the places in the server's source that name the protocol itself.
//!
//! A script whose title ends in `; edge` is a difference that `docs/policy.md` describes: it must be there under `single`
//! (`; edge from 18`: on that version and later ones).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::support;
use pgsluice::wire::{backend as b, frame, frontend as f};
use support::{Message, PgOptions, Postgres, Proxy, Raw};

/// What a script may rely on, in each of its databases.
const SETUP: &str = "DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public; \
    CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, NULL)";

/// Said at the end of each script: an answer too many before it is seen.
const FENCE: &str = "SELECT 'end of script' AS fence";

/// A line of a script; the language is described at the head of `tests/folding.txt`.
#[derive(Debug, Clone)]
struct Line {
    what: String,
    argument: Vec<u8>,
    /// Sent together with the next one.
    joined: bool,
}

#[derive(Debug)]
struct Script {
    title: String,
    /// It differs under `single` from this version on, as documented.
    edge: Option<u32>,
    lines: Vec<Line>,
}

fn scripts() -> Vec<Script> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/folding.txt");
    let text = std::fs::read_to_string(path).expect("folding.txt");
    let mut scripts: Vec<Script> = Vec::new();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(title) = line.strip_prefix("== ") {
            let (title, edge) = match title.split_once("; edge") {
                Some((title, "")) => (title, Some(0)),
                Some((title, from)) => (title, from.strip_prefix(" from ").and_then(|v| v.parse().ok())),
                None => (title, None),
            };
            scripts.push(Script { title: title.to_owned(), edge, lines: Vec::new() });
            continue;
        }
        let lines = &mut scripts.last_mut().expect("a title first").lines;
        if let Some(more) = line.strip_prefix("+ ") {
            let last = lines.last_mut().expect("something to go on with");
            last.argument.push(b'\n');
            last.argument.extend_from_slice(more.as_bytes());
            continue;
        }
        let (what, argument) = line.split_once(' ').unwrap_or((line, ""));
        let (what, joined) = what.strip_prefix('&').map_or((what, false), |w| (w, true));
        let argument =
            if matches!(what, "D" | "Q8") { unescaped(argument) } else { argument.as_bytes().to_vec() };
        lines.push(Line { what: what.to_owned(), argument, joined });
    }
    scripts
}

/// `\n`, `\t`, `\\` and `\xNN`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => match rest.next() {
                Some(b'n') => out.push(b'\n'),
                Some(b't') => out.push(b'\t'),
                Some(b'x') => {
                    let digits: String = rest.by_ref().take(2).map(char::from).collect();
                    out.push(u8::from_str_radix(&digits, 16).expect("two hex digits"));
                }
                Some(other) => out.push(other),
                None => out.push(b'\\'),
            },
            byte => out.push(byte),
        }
    }
    out
}

impl Line {
    /// Appends its messages. Returns how many ReadyForQuery they ask for.
    fn put(&self, out: &mut Vec<u8>) -> usize {
        let (kind, name) = self.what.split_once(':').unwrap_or((&self.what, ""));
        let (name, argument) = (name.as_bytes(), self.argument.as_slice());
        match kind {
            "Q" | "Q8" => f::put_query(out, argument),
            "P" => f::put_parse(out, name, argument, &[]),
            "B" => f::put_bind_text(out, name, &[]),
            "DS" => f::put_target(out, f::DESCRIBE, b'S', name),
            "DP" => f::put_target(out, f::DESCRIBE, b'P', name),
            "CS" => f::put_target(out, f::CLOSE, b'S', name),
            "CP" => f::put_target(out, f::CLOSE, b'P', name),
            "E" => f::put_execute(out, name, if argument.is_empty() { 0 } else { 1 }),
            "H" => f::put_empty(out, f::FLUSH),
            "S" => f::put_empty(out, f::SYNC),
            "D" => pgsluice::wire::frame::put(out, f::COPY_DATA, |out| out.extend_from_slice(argument)),
            "C" => f::put_empty(out, f::COPY_DONE),
            "F" => pgsluice::wire::frame::put(out, f::COPY_FAIL, |out| {
                out.extend_from_slice(argument);
                out.push(0);
            }),
            other => panic!("unknown line {other}"),
        }
        usize::from(matches!(kind, "Q" | "Q8" | "S" | "C" | "F"))
    }
}

/// The client under test, a second one, and how to reach the server beside them.
struct Side<'a> {
    pg: &'a Postgres,
    port: u16,
    database: String,
}

impl Side<'_> {
    /// Runs a script; what was seen, a line a message.
    fn run(&self, script: &Script) -> String {
        self.pg.psql(&self.database, SETUP);
        let mut seen = String::new();
        let run = catch_unwind(AssertUnwindSafe(|| self.converse(script, &mut seen)));
        if let Err(panic) = run {
            let why = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            seen.push_str(&format!("STOPPED: {}\n", why.lines().next().unwrap_or_default()));
        }
        seen
    }

    fn converse(&self, script: &Script, seen: &mut String) {
        let mut clients = [Raw::login(self.port, &self.database), Raw::login(self.port, &self.database)];
        let mut out = Vec::new();
        let mut ready = 0;
        for line in &script.lines {
            seen.push_str(&format!("> {} {}\n", line.what, line.argument.escape_ascii()));
            let exactly = line.what.strip_prefix('=').map(|n| n.parse().expect("a number"));
            if let Some(wanted) = exactly {
                ready = wanted;
            } else if line.what == "2" {
                let text = String::from_utf8_lossy(&line.argument).into_owned();
                let answer = clients[1].query(&text);
                note(&answer, seen);
                continue;
            } else if line.what == "X" {
                Line { what: "Q".into(), ..line.clone() }.put(&mut out);
                clients[0].send(&std::mem::take(&mut out));
                let asleep = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database())";
                self.pg.wait_until(&self.database, asleep);
                clients[0].cancel(self.port);
                note(&answer(&mut clients[0], 1, true).0, seen);
                continue;
            } else {
                ready += line.put(&mut out);
            }
            if line.joined || line.what == "D" {
                continue;
            }
            clients[0].send(&std::mem::take(&mut out));
            let (messages, open) = answer(&mut clients[0], ready, exactly.is_none());
            note(&messages, seen);
            if !open {
                seen.push_str("(closed)\n");
                return;
            }
            ready = 0;
        }
        let last = clients[0].query(FENCE);
        note(&last, seen);
        for client in clients {
            client.terminate();
        }
    }
}

/// Reads to the last of `ready` ReadyForQuery, or, when `pause`, to where a COPY waits for data. False: it was closed.
fn answer(client: &mut Raw, mut ready: usize, pause: bool) -> (Vec<Message>, bool) {
    let mut all = Vec::new();
    while ready > 0 {
        let Some(message) = client.try_read() else { return (all, false) };
        match message.tag {
            b::READY_FOR_QUERY => ready -= 1,
            b::COPY_IN_RESPONSE | b::COPY_BOTH_RESPONSE if pause => ready = 0,
            _ => {}
        }
        all.push(message);
    }
    (all, true)
}

/// Everything that an application could see, without what differs between two databases.
fn note(messages: &[Message], seen: &mut String) {
    for message in messages {
        let mut message = message.clone();
        match message.tag {
            // The table's object id.
            b::ROW_DESCRIPTION => {
                let mut at = 2;
                while let Some(end) = message.body.get(at..).and_then(|r| r.iter().position(|b| *b == 0)) {
                    message.body[at + end + 1..at + end + 5].fill(0);
                    at += end + 19;
                }
            }
            // The process id.
            b::NOTIFICATION_RESPONSE => message.body[..4].fill(0),
            _ => {}
        }
        let line = message.outline();
        let asks_for_place = matches!(message.tag, b::ERROR_RESPONSE | b::NOTICE_RESPONSE)
            && message.field(b'R').starts_with("exec_");
        let line = match line.find(" F=\"").filter(|_| asks_for_place) {
            Some(place) => line[..place].to_owned() + " (the protocol's own)",
            None => line,
        };
        seen.push_str(&line);
        seen.push('\n');
    }
}

/// The first lines that differ.
fn first_difference(expected: &str, seen: &str) -> String {
    let at = expected.lines().zip(seen.lines()).take_while(|(e, s)| e == s).count();
    let around = |text: &str| {
        text.lines().skip(at.saturating_sub(2)).take(6).map(|l| format!("    {l}\n")).collect::<String>()
    };
    format!("  direct:\n{}  through:\n{}", around(expected), around(seen))
}

fn compare(pg: &Postgres) {
    let proxies: Vec<(String, Proxy)> = ["allow", "single"]
        .into_iter()
        .flat_map(|level| ["session", "transaction"].map(|mode| (level, mode)))
        .map(|(level, mode)| {
            let general =
                format!("pool_mode = \"{mode}\"\nlog_connections = false\nlog_disconnections = false");
            let policy = format!("[policy]\nsimple_query = \"{level}\"\n[coalesce]\nmode = \"off\"");
            (format!("{level}, {mode}"), Proxy::to(pg, &general, "", &policy))
        })
        .collect();
    let only = std::env::var("PGSLUICE_TEST_SCRIPT").unwrap_or_default();
    let mut wrong = 0;
    let (mut ran, mut lines, major) = (0, 0, pg.major());
    let database = pg.fresh_database("");
    for script in scripts().iter().filter(|s| s.title.contains(&only)) {
        let expected = Side { pg, port: pg.port(), database: database.clone() }.run(script);
        assert!(!expected.contains("STOPPED"), "{}, direct:\n{expected}", script.title);
        (ran, lines) = (ran + 1, lines + script.lines.len());
        for (name, proxy) in &proxies {
            let seen = Side { pg, port: proxy.port(), database: database.clone() }.run(script);
            let may_differ = script.edge.is_some_and(|from| major >= from) && name.starts_with("single");
            if (seen == expected) == may_differ {
                let why = if may_differ {
                    "is no edge any more".into()
                } else {
                    first_difference(&expected, &seen)
                };
                println!("{} ({name}):\n{why}", script.title);
                wrong += 1;
            }
        }
    }
    println!("{ran} scripts, {lines} lines, each direct and through {} proxies", proxies.len());
    assert!(wrong == 0, "{wrong} differ: see above");
    assert!(!only.is_empty() || ran > 40, "only {ran} scripts were found");
}

/// The Sync of ours that a COPY needs which fails waits for the end of the CopyData that is on its way. Inside it the server
/// would take the rest of the data for messages, and nobody would judge those.
#[test]
fn what_follows_a_copy_that_fails_is_never_taken_for_messages() {
    let pg = Postgres::shared();
    for mode in ["session", "transaction"] {
        let database = pg.fresh_database(SETUP);
        let general = format!("pool_mode = \"{mode}\"");
        let proxy = Proxy::to(pg, &general, "", "[policy]\nsimple_query = \"single\"");
        let mut raw = Raw::login(proxy.port(), &database);
        let mut copy = Vec::new();
        f::put_query(&mut copy, b"COPY t FROM STDIN");
        raw.send(&copy);
        raw.read_until(b::COPY_IN_RESPONSE);
        let data = |body: &[u8]| {
            let mut out = Vec::new();
            frame::put(&mut out, f::COPY_DATA, |out| out.extend_from_slice(body));
            out
        };
        // Five bytes too many in it would make its last five a header, of a message that ends behind the next one's.
        let header = [&[f::COPY_DATA][..], &9u32.to_be_bytes()].concat();
        let long = data(&[&[b'1'; 40_000][..], &header].concat());
        let mut smuggled = Vec::new();
        f::put_empty(&mut smuggled, f::SYNC);
        f::put_query(&mut smuggled, b"CREATE TABLE smuggled ()");
        raw.send(&[&data(b"bad\n")[..], &long[..20_000]].concat());
        let error = raw.read_until(b::ERROR_RESPONSE);
        raw.send(&[&long[20_000..], &data(&smuggled)].concat());
        f::put_empty(&mut smuggled, f::COPY_DONE);
        raw.send(&smuggled[smuggled.len() - 5..]);
        let rest = std::iter::from_fn(|| raw.try_read()).find(|m| m.tag == b::READY_FOR_QUERY);
        assert_eq!(pg.psql(&database, "SELECT to_regclass('smuggled') IS NULL").trim(), "t", "{mode}");
        assert!(rest.is_some(), "{mode}: closed behind {}", support::outline(&error));
        assert_eq!(raw.value("SELECT 42").as_deref(), Some("42"));
    }
}

#[test]
fn on_the_machines_postgresql() {
    compare(Postgres::shared());
}

#[test]
fn on_postgresql_18() {
    let bin = support::prepared("postgres-18").join("bin");
    let pg = Postgres::start(PgOptions { bin: Some(bin), ..PgOptions::default() });
    assert_eq!(pg.major(), 18);
    compare(&pg);
}
