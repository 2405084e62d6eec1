//! Texts that try to bring a second statement past the policy (`tests/bypass.txt`), on the machine's PostgreSQL and on
//! 18. What each text is, the server says: as a Parse, and as a Query of a direct connection.
//!
//! Held here: what PostgreSQL calls several statements runs at no level but `allow`; what it calls one statement is
//! answered under `single` as directly; what it cannot read gets its own error; `deny` passes none, in any case; and
//! Parse is answered as directly at every level.

use std::path::Path;

use crate::support;
use pgsluice::wire::{backend as b, frame, frontend as f};
use support::{Message, PgOptions, Postgres, Proxy, Raw, outline};

/// Each text begins with these in its database.
const SETUP: &str =
    "CREATE SEQUENCE hits; CREATE TABLE hit (a int); CREATE TABLE log (a int); CREATE TABLE spare (a int)";

/// How much was done so far; also what was rolled back.
const DONE: &str = "SELECT (SELECT last_value - (NOT is_called)::int FROM hits) + (SELECT count(*) FROM hit)";

/// The levels that are tried, with a pool mode each.
const LEVELS: [(&str, &str); 3] = [("single", "transaction"), ("control", "session"), ("deny", "session")];

/// Heading, settings, text.
#[derive(Debug)]
struct Case {
    heading: String,
    settings: Vec<String>,
    text: Vec<u8>,
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bypass.txt");
    let source = std::fs::read_to_string(path).expect("bypass.txt");
    let (mut heading, mut settings) = (String::new(), Vec::new());
    let mut cases = Vec::new();
    for line in source.lines().skip_while(|l| !l.starts_with("== ")).filter(|l| !l.is_empty()) {
        if let Some(title) = line.strip_prefix("== ") {
            let mut parts = title.split(" | ").map(str::to_owned);
            heading = parts.next().unwrap_or_default();
            settings = parts.collect();
            continue;
        }
        let text = decoded(&repeated(&line.replace("{}", "SELECT nextval('hits') > 0")));
        cases.push(Case { heading: heading.clone(), settings: settings.clone(), text });
    }
    cases
}

/// `%(3 a %)` is `aaa`.
fn repeated(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, group)) = rest.split_once("%(") {
        let (group, behind) = group.split_once(" %)").expect("the end of a repetition");
        let (times, what) = group.split_once(' ').expect("how often");
        out.push_str(before);
        out.push_str(&what.repeat(times.parse().expect("a number")));
        rest = behind;
    }
    out + rest
}

/// `%XX` is a byte.
fn decoded(line: &str) -> Vec<u8> {
    let bytes = line.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|d| std::str::from_utf8(d).ok());
        match (bytes[at], hex.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// What a text is, by PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Truth {
    /// It is a message that no server reads.
    NoMessage,
    /// It is refused before anything runs.
    Unreadable,
    /// At most one statement.
    One,
    /// Several.
    Several,
}

/// A way to the server, with a database of its own.
struct Side {
    port: u16,
    database: String,
    client: Raw,
    admin: Raw,
}

/// What became of a text.
struct Seen {
    messages: Vec<Message>,
    /// What it did.
    done: i64,
}

impl Seen {
    fn error(&self) -> Option<&Message> {
        self.messages.iter().find(|m| m.tag == b::ERROR_RESPONSE)
    }

    fn sqlstate(&self) -> String {
        self.error().map(Message::sqlstate).unwrap_or_default()
    }

    fn completed(&self) -> bool {
        self.messages.iter().any(|m| m.tag == b::COMMAND_COMPLETE)
    }

    /// What an application sees, without what differs between two databases or names the way the statement came.
    fn comparable(&self) -> String {
        support::crowd::comparable(&self.messages)
    }
}

impl Side {
    fn new(pg: &Postgres, port: u16) -> Self {
        let database = pg.fresh_database(SETUP);
        let (client, admin) = (Raw::login(port, &database), Raw::login(pg.port(), &database));
        Self { port, database, client, admin }
    }

    fn done(&mut self) -> i64 {
        self.admin.value(DONE).and_then(|n| n.parse().ok()).unwrap_or_default()
    }

    /// Sends the messages in a session with these settings; the answers up to `ready` ReadyForQuery.
    fn send(&mut self, settings: &[String], bytes: &[u8]) -> Seen {
        for setting in settings {
            self.client.extended(setting, &[]);
        }
        self.admin.rows("TRUNCATE hit, log");
        let before = self.done();
        self.client.send(bytes);
        let mut messages = Vec::new();
        let open = loop {
            let Some(message) = self.client.try_read() else { break false };
            let tag = message.tag;
            messages.push(message);
            match tag {
                b::READY_FOR_QUERY => break true,
                b::COPY_IN_RESPONSE => {
                    let mut fail = Vec::new();
                    frame::put(&mut fail, f::COPY_FAIL, |out| out.extend_from_slice(b"not now\0"));
                    // Extended protocol: the Sync before it was read by COPY.
                    if bytes[0] != f::QUERY {
                        f::put_empty(&mut fail, f::SYNC);
                    }
                    self.client.send(&fail);
                }
                _ => {}
            }
        };
        if open {
            self.client.extended("ROLLBACK", &[]);
            self.client.extended("DISCARD ALL", &[]);
        } else {
            self.client = Raw::login(self.port, &self.database);
        }
        let done = self.done() - before;
        Seen { messages, done }
    }

    fn query(&mut self, case: &Case) -> Seen {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, f::QUERY, |out| {
            out.extend_from_slice(&case.text);
            out.push(0);
        });
        self.send(&case.settings, &bytes)
    }

    fn extended(&mut self, case: &Case, run: bool) -> Seen {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, f::PARSE, |out| {
            out.push(0);
            out.extend_from_slice(&case.text);
            out.extend_from_slice(&[0, 0, 0]);
        });
        if run {
            f::put_bind_text(&mut bytes, b"", &[]);
            f::put_target(&mut bytes, f::DESCRIBE, b'P', b"");
            f::put_execute(&mut bytes, b"", 0);
        }
        f::put_empty(&mut bytes, f::SYNC);
        self.send(&case.settings, &bytes)
    }
}

/// What the server's lexer and grammar raise; what is only not found is one statement.
const UNREADABLE: [&str; 8] = ["42601", "22021", "54001", "22025", "22019", "42622", "22P06", "0A000"];

fn truth(parsed: &Seen, case: &Case) -> Truth {
    match parsed.error() {
        _ if case.text.contains(&0) => Truth::NoMessage,
        None => Truth::One,
        Some(error) if error.field(b'M').contains("multiple commands") => Truth::Several,
        Some(error) if UNREADABLE.contains(&error.sqlstate().as_str()) => Truth::Unreadable,
        Some(_) => Truth::One,
    }
}

/// What is wrong with how a Query was dealt with at a level.
fn breach(level: &str, truth: Truth, direct: &Seen, seen: &Seen) -> Option<&'static str> {
    let refused = seen.sqlstate() == "42501";
    let same = || seen.comparable() == direct.comparable() && seen.done == direct.done;
    match (level, truth) {
        _ if truth != Truth::One && (seen.done != 0 || seen.completed()) => Some("something ran"),
        (_, Truth::NoMessage) => (seen.sqlstate() != "08P01").then_some("is no message"),
        ("deny", _) => (!refused || seen.done != 0 || seen.completed()).then_some("passed"),
        ("control", _) if refused => {
            (seen.done != 0 || seen.completed()).then_some("refused, and yet something ran")
        }
        // Newer versions read more as white space: what is several statements to them is none to this server.
        ("single", Truth::Unreadable) if refused => None,
        ("single", Truth::One) if refused => Some("an honest statement was refused"),
        (_, Truth::Several) => (!refused && seen.sqlstate() != "42601").then_some("another error"),
        _ => (!same()).then_some("not as directly"),
    }
}

/// Known edges of folding (`docs/policy.md`): a parameter symbol without a value.
fn is_edge(direct: &Seen) -> bool {
    direct.sqlstate() == "42P02"
}

fn hold(pg: &Postgres) {
    let proxies = LEVELS.map(|(level, mode)| {
        let general = format!("pool_mode = \"{mode}\"\nlog_connections = false\nlog_disconnections = false");
        Proxy::to(
            pg,
            &general,
            "",
            &format!("[policy]\nsimple_query = \"{level}\"\n[coalesce]\nmode = \"off\""),
        )
    });
    // One that is sent all that `single` is sent, one that is sent Parse only.
    let [mut direct, mut direct_parse] = [Side::new(pg, pg.port()), Side::new(pg, pg.port())];
    let mut sides: Vec<Side> = proxies.iter().map(|proxy| Side::new(pg, proxy.port())).collect();
    let cases = cases();
    let mut count = std::collections::BTreeMap::<Truth, usize>::new();
    let (mut armed, mut wrong, mut passed) = (0, 0, [0; LEVELS.len()]);
    for case in &cases {
        let truth = truth(&direct.extended(case, false), case);
        let plain = direct.query(case);
        let (after, alone) = (direct.extended(case, true), direct_parse.extended(case, true));
        *count.entry(truth).or_default() += 1;
        armed += usize::from(truth == Truth::Several && plain.done > 0);
        for (at, (level, _)) in LEVELS.iter().enumerate() {
            let seen = sides[at].query(case);
            passed[at] += usize::from(seen.sqlstate() != "42501");
            let mut why = breach(level, truth, &plain, &seen).filter(|_| !is_edge(&plain));
            let parsed = sides[at].extended(case, true).comparable();
            let expected = if *level == "single" { &after } else { &alone };
            if why.is_none() && truth != Truth::NoMessage && parsed != expected.comparable() {
                why = Some("Parse is not answered as directly");
            }
            if let Some(why) = why {
                wrong += 1;
                println!(
                    "{level}, {}: {why}\n  {:.200}\n  {truth:?}\n  direct ({} done):\n{}  through ({} done):\n{}",
                    case.heading,
                    case.text.escape_ascii().to_string(),
                    plain.done,
                    outline(&plain.messages),
                    seen.done,
                    outline(&seen.messages),
                );
            }
        }
    }
    println!("{} texts: {count:?}; {armed} of several statements do something when they pass", cases.len());
    println!("not refused: {:?}", LEVELS.map(|(level, _)| level).into_iter().zip(passed).collect::<Vec<_>>());
    assert_eq!(wrong, 0, "see above");
    assert!(cases.len() >= 300 && armed >= 100, "the corpus has lost its teeth");
    assert_eq!(passed[2], count.get(&Truth::NoMessage).copied().unwrap_or_default());
}

#[test]
fn on_the_machines_postgresql() {
    hold(Postgres::shared());
}

#[test]
fn on_postgresql_18() {
    let pg = Postgres::start(PgOptions {
        bin: Some(support::prepared("postgres-18").join("bin")),
        ..PgOptions::default()
    });
    assert_eq!(pg.major(), 18);
    hold(&pg);
}
