//! The audit: one JSON line for each message that met a rule of the policy, and counters by rule.
//!
//! Owns: the line, the queue, the thread that writes, the counters. Never: decides what is refused; holds a
//! statement's text, a literal or a parameter.
//!
//! Recording an event never waits for the disk. An event that finds the queue full, or whose line can't be
//! written, is lost; losses are counted, and the next line that is written says how many came before it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

use super::time::Utc;
use crate::limits::{AUDIT_QUEUE_EVENTS, LOG_NAME_BYTES_MAX};
use crate::mutex::lock;
use crate::policy::{Rejection, Rule};

/// Permissions of an audit file that is made here: its owner's alone.
const FILE_MODE: u32 = 0o600;

/// Whose message it was.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The client's id, as the console shows it.
    pub client: u64,
    /// Where from; `None`: a Unix socket.
    pub address: Option<SocketAddr>,
    /// The version of TLS on its connection.
    pub tls: Option<&'static str>,
    /// Its user.
    pub user: &'a str,
    /// The database it asked for.
    pub database: &'a str,
}

/// Where lines go.
#[derive(Debug)]
pub enum Sink {
    /// Standard error.
    Stderr,
    /// `audit_file`.
    File(File),
}

impl Sink {
    /// Opens `file` to append to, made with mode 0600 if it is not there; `None`: standard error. Blocks on files.
    ///
    /// # Errors
    /// What the operating system says, and of which file.
    pub fn open(file: Option<&Path>) -> io::Result<Self> {
        let Some(file) = file else { return Ok(Self::Stderr) };
        let opened = OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(file);
        opened.map(Self::File).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.display())))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stderr => io::stderr().write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }
}

/// Counts of one rule.
#[derive(Debug, Default)]
struct Count {
    rejected: AtomicU64,
    reported: AtomicU64,
}

/// What became of the events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Lines written.
    pub written: u64,
    /// Events lost.
    pub lost: u64,
    /// Events in the queue.
    pub waiting: usize,
    /// Why the last line could not be written; `None` if it was.
    pub error: Option<String>,
}

/// The audit of one process. Its thread ends when it is dropped and the queue is empty.
#[derive(Debug)]
pub struct Audit {
    queue: SyncSender<Order>,
    shared: Arc<Shared>,
    counts: [Count; Rule::ALL.len()],
}

#[derive(Debug, Default)]
struct Shared {
    /// Where lines go from the next one on.
    next: Mutex<Option<Sink>>,
    written: AtomicU64,
    lost: AtomicU64,
    /// Of those, the ones that no line has told yet.
    untold: AtomicU64,
    waiting: AtomicUsize,
    error: Mutex<Option<String>>,
}

impl Shared {
    fn lose(&self, events: u64) {
        self.lost.fetch_add(events, Ordering::Relaxed);
        self.untold.fetch_add(events, Ordering::Relaxed);
    }
}

enum Order {
    Write(Box<Event>),
    /// Look whether there is another sink.
    Look,
    /// Everything before this was dealt with.
    Tell(SyncSender<()>),
}

impl Audit {
    /// Starts the thread that writes to `sink`.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(sink: Sink) -> io::Result<Self> {
        let (queue, orders) = sync_channel(AUDIT_QUEUE_EVENTS);
        let shared = Arc::new(Shared::default());
        let writer = Writer { sink, torn: false, shared: Arc::clone(&shared) };
        std::thread::Builder::new().name("pgsluice-audit".into()).spawn(move || writer.run(&orders))?;
        Ok(Self { queue, shared, counts: Default::default() })
    }

    /// Lines go to `sink` from the next one on; the one before is closed.
    pub fn switch(&self, sink: Sink) {
        *lock(&self.shared.next) = Some(sink);
        // With a full queue the writer looks anyway.
        let _ = self.queue.try_send(Order::Look);
    }

    /// Counts and queues one event: `message` is the type of the message that met a rule. Never waits.
    pub fn record(&self, source: Source<'_>, message: &'static str, rejection: &Rejection, rejected: bool) {
        if let Some(at) = Rule::ALL.iter().position(|rule| *rule == rejection.rule) {
            let count = &self.counts[at];
            let counter = if rejected { &count.rejected } else { &count.reported };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let event = Event {
            time: SystemTime::now(),
            client: source.client,
            address: source.address,
            // The version is enough.
            tls: source.tls.map(|tls| tls.split_once('/').map_or(tls, |(version, _)| version)),
            user: short(source.user),
            database: short(source.database),
            message,
            rule: rejection.rule.as_str(),
            rejected,
            fingerprint: rejection.fingerprint.clone(),
            bytes: rejection.bytes,
        };
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        if self.queue.try_send(Order::Write(Box::new(event))).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.shared.lose(1);
        }
    }

    /// Rejected and reported messages by rule, since the start.
    pub fn counts(&self) -> impl Iterator<Item = (Rule, u64, u64)> {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Rule::ALL.into_iter().zip(&self.counts).map(move |(rule, c)| (rule, of(&c.rejected), of(&c.reported)))
    }

    /// What became of the events so far.
    pub fn progress(&self) -> Progress {
        Progress {
            written: self.shared.written.load(Ordering::Relaxed),
            lost: self.shared.lost.load(Ordering::Relaxed),
            waiting: self.shared.waiting.load(Ordering::Relaxed),
            error: lock(&self.shared.error).clone(),
        }
    }

    /// Waits until everything recorded so far was dealt with, at most for `limit`; false if it was not. Blocks.
    pub fn flush(&self, limit: Duration) -> bool {
        let (told, heard) = sync_channel(1);
        self.queue.try_send(Order::Tell(told)).is_ok() && heard.recv_timeout(limit).is_ok()
    }
}

/// A name, cut where no honest one is that long, so that the queue is bounded in bytes too.
fn short(name: &str) -> Box<str> {
    name[..name.floor_char_boundary(LOG_NAME_BYTES_MAX)].into()
}

// ===== impl Writer =====

/// The thread.
struct Writer {
    sink: Sink,
    /// A line was begun and could not be ended.
    torn: bool,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            let next = lock(&self.shared.next).take();
            if let Some(sink) = next {
                (self.sink, self.torn) = (sink, false);
            }
            match order {
                Order::Write(event) => {
                    self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                    self.write(&event);
                }
                Order::Look => {}
                Order::Tell(told) => {
                    let _ = told.send(());
                }
            }
        }
    }

    fn write(&mut self, event: &Event) {
        let lost = self.shared.untold.swap(0, Ordering::Relaxed);
        let mut line = Vec::with_capacity(512);
        if self.torn {
            line.push(b'\n');
        }
        event.put(&mut line, lost);
        match self.write_line(&line) {
            Ok(()) => {
                self.torn = false;
                self.shared.written.fetch_add(1, Ordering::Relaxed);
                *lock(&self.shared.error) = None;
            }
            Err(error) => {
                self.shared.untold.fetch_add(lost, Ordering::Relaxed);
                self.shared.lose(1);
                let said = lock(&self.shared.error).replace(error.to_string());
                if said.is_none() {
                    super::events::audit_failed(&error);
                }
            }
        }
    }

    fn write_line(&mut self, mut line: &[u8]) -> io::Result<()> {
        while !line.is_empty() {
            match self.sink.write(line) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.torn = true;
                    line = &line[n..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

// ===== impl Event =====

/// What a line says.
#[derive(Debug)]
struct Event {
    time: SystemTime,
    client: u64,
    address: Option<SocketAddr>,
    tls: Option<&'static str>,
    user: Box<str>,
    database: Box<str>,
    message: &'static str,
    rule: &'static str,
    rejected: bool,
    fingerprint: Option<String>,
    bytes: usize,
}

/// A line's fields, in order.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    client: u64,
    address: String,
    #[serde(serialize_with = "version_or_false")]
    tls: Option<&'a str>,
    user: &'a str,
    database: &'a str,
    message: &'a str,
    rule: &'a str,
    verdict: &'a str,
    fingerprint: Option<&'a str>,
    bytes: usize,
    /// Events before this one that no line tells of.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

fn version_or_false<S: Serializer>(tls: &Option<&str>, to: S) -> Result<S::Ok, S::Error> {
    match tls {
        Some(version) => to.serialize_str(version),
        None => to.serialize_bool(false),
    }
}

impl Event {
    /// Appends the event as one line with its end.
    fn put(&self, out: &mut Vec<u8>, lost: u64) {
        let line = Line {
            time: Utc::from(self.time).to_string(),
            client: self.client,
            address: self.address.map_or_else(|| "unix".to_owned(), |address| address.to_string()),
            tls: self.tls,
            user: &self.user,
            database: &self.database,
            message: self.message,
            rule: self.rule,
            verdict: if self.rejected { "reject" } else { "report" },
            fingerprint: self.fingerprint.as_deref(),
            bytes: self.bytes,
            lost: (lost > 0).then_some(lost),
        };
        // Neither these fields nor a vector can fail.
        let _ = line.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, Ascii));
        out.push(b'\n');
    }
}

/// JSON in printable ASCII: a client's name must not steer the terminal of whoever reads the file.
struct Ascii;

impl serde_json::ser::Formatter for Ascii {
    fn write_string_fragment<W: Write + ?Sized>(&mut self, to: &mut W, text: &str) -> io::Result<()> {
        for c in text.chars() {
            if (' '..='~').contains(&c) {
                to.write_all(&[c as u8])?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(to, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::texts::Readings;
    use crate::policy::{Lexing, Rules, Verdict, judge_query};
    use crate::settings::{Policy, SimpleQuery};
    use proptest::prelude::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn rejection(text: &str) -> Rejection {
        let policy = Policy { simple_query: Some(SimpleQuery::Deny), ..Policy::default() };
        let rules = Rules::merge([&policy]);
        match judge_query(&rules, text.as_bytes(), Lexing::PLAIN, &mut Readings::default()) {
            Verdict::Reject(rejection) => rejection,
            other => panic!("{other:?}"),
        }
    }

    fn source<'a>(user: &'a str, database: &'a str) -> Source<'a> {
        Source { client: 7, address: None, tls: None, user, database }
    }

    fn lines(text: &str) -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    #[test]
    fn a_line_says_who_what_and_how_but_no_literal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let audit = Audit::start(Sink::open(Some(&path)).unwrap()).unwrap();
        let address = Some("[::1]:5432".parse().unwrap());
        let who = Source { address, tls: Some("TLSv1.3"), ..source("ann", "app") };
        audit.record(who, "Query", &rejection("SELECT 'hunter2', 4711"), true);
        audit.record(source("ann", "app"), "Query", &rejection("SELECT 'other', 1"), false);
        assert!(audit.flush(PATIENCE));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("hunter2") && !text.contains("4711") && !text.contains("SELECT"), "{text}");
        let [first, second] = &lines(&text)[..] else { panic!("{text}") };
        let fields: Vec<_> = ["address", "tls", "user", "database", "message", "rule", "verdict"]
            .map(|name| first[name].as_str().unwrap())
            .into();
        let expected = ["[::1]:5432", "TLSv1.3", "ann", "app", "Query", "simple_query=deny", "reject"];
        assert_eq!(fields, expected);
        assert_eq!((first["client"].as_u64(), first["bytes"].as_u64()), (Some(7), Some(22)));
        assert!(first["time"].as_str().unwrap().ends_with('Z'));
        assert!(first["fingerprint"].is_string());
        assert_eq!(first["fingerprint"], second["fingerprint"], "literals make no difference");
        assert_eq!((&second["tls"], &second["verdict"]), (&false.into(), &"report".into()));
        assert_eq!(second["address"], "unix");
        assert!(first.get("lost").is_none());
        let counted: Vec<_> = audit.counts().filter(|(_, a, b)| a + b > 0).collect();
        assert_eq!(counted, [(Rule::SimpleQueryDeny, 1, 1)]);
    }

    #[test]
    fn the_file_is_its_owners_and_is_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        for expected in [1, 2] {
            let audit = Audit::start(Sink::open(Some(&path)).unwrap()).unwrap();
            audit.record(source("ann", "app"), "Query", &rejection("x"), true);
            assert!(audit.flush(PATIENCE));
            assert_eq!(lines(&std::fs::read_to_string(&path).unwrap()).len(), expected);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_full_disk_loses_lines_and_the_next_one_says_how_many() {
        let audit = Audit::start(Sink::open(Some(Path::new("/dev/full"))).unwrap()).unwrap();
        for _ in 0..3 {
            audit.record(source("ann", "app"), "Query", &rejection("x"), true);
        }
        assert!(audit.flush(PATIENCE));
        let progress = audit.progress();
        assert_eq!((progress.written, progress.lost, progress.waiting), (0, 3, 0));
        assert!(progress.error.is_some());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        audit.switch(Sink::open(Some(&path)).unwrap());
        for _ in 0..2 {
            audit.record(source("ann", "app"), "Query", &rejection("x"), true);
        }
        assert!(audit.flush(PATIENCE));
        let told: Vec<_> = lines(&std::fs::read_to_string(&path).unwrap())
            .iter()
            .map(|line| line.get("lost").and_then(serde_json::Value::as_u64))
            .collect();
        assert_eq!(told, [Some(3), None]);
        assert_eq!((audit.progress().lost, audit.progress().error), (3, None));
    }

    /// Ends the pipe's reader however the test ends, so that the writer's thread does not stay.
    #[test]
    fn a_reader_that_stopped_holds_nobody_up() {
        let (mut reader, writer) = io::pipe().unwrap();
        let writer = File::from(std::os::fd::OwnedFd::from(writer));
        let audit = Audit::start(Sink::File(writer)).unwrap();
        // More than a pipe and the queue hold together; nobody reads.
        let events = AUDIT_QUEUE_EVENTS as u64 + 2000;
        for _ in 0..events {
            audit.record(source("ann", "app"), "Query", &rejection("x"), true);
        }
        let lost = audit.progress().lost;
        assert!(lost > 0);
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        // The queue may still be full at first.
        while !audit.flush(PATIENCE) {
            std::thread::yield_now();
        }
        audit.record(source("ann", "app"), "Query", &rejection("x"), true);
        drop(audit);
        let lines = lines(&reading.join().unwrap().unwrap());
        let told: u64 = lines.iter().filter_map(|line| line.get("lost")?.as_u64()).sum();
        assert_eq!(told, lost);
        assert_eq!(lines.len() as u64 + told, events + 1, "every event was written or counted");
    }

    proptest! {
        /// Names that break lines, quotes, terminals; bytes that were no UTF-8 have become U+FFFD before.
        #[test]
        fn hostile_names_stay_inside_their_line(
            user in proptest::collection::vec(any::<u8>(), 0..200),
            database in "\\PC*|[\\x00-\\x1f\"\\\\\u{7f}-\u{9f}\u{202e}\u{2028}]{0,80}",
            lost in 0..3u64,
        ) {
            let user = String::from_utf8_lossy(&user);
            let event = Event {
                time: SystemTime::now(), client: 1, address: None, tls: None, user: short(&user),
                database: short(&database), message: "Query", rule: "r", rejected: true, fingerprint: None,
                bytes: 0,
            };
            let mut line = Vec::new();
            event.put(&mut line, lost);
            prop_assert_eq!(line.pop(), Some(b'\n'));
            prop_assert!(line.iter().all(|byte| (b' '..=b'~').contains(byte)));
            let read: serde_json::Value = serde_json::from_slice(&line).unwrap();
            prop_assert_eq!(read["user"].as_str(), Some(&*short(&user)));
            prop_assert_eq!(read["database"].as_str(), Some(&*short(&database)));
            prop_assert!(user.starts_with(&*short(&user)) && short(&user).len() <= LOG_NAME_BYTES_MAX);
        }
    }
}
