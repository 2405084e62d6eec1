//! Notifications that come while pgsluice itself asks a listening client's server something: they are that client's, and
//! nobody else's. A relay in front of PostgreSQL makes them come just then.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::support;
use pgsluice::limits::HEARD_BYTES_MAX;
use pgsluice::wire::{backend as b, frame};
use support::{Message, PATIENCE, Postgres, Proxy, Raw, poll, relay};

/// The code of a CancelRequest; the length before it is the key's, which PostgreSQL 18 makes longer.
const CANCEL_REQUEST: [u8; 4] = [4, 210, 22, 46];

/// What the relay's threads share.
#[derive(Default)]
struct Herald {
    /// A notification goes before each ReadyForQuery.
    tells: AtomicBool,
    /// It goes behind it, in the same write.
    behind: AtomicBool,
    told: AtomicUsize,
    /// Zeros in front of its payload, which is a number.
    zeros: AtomicUsize,
    /// Who notifies.
    pid: AtomicI32,
    holds_cancels: Mutex<bool>,
    cancels_changed: Condvar,
    cancels_held: AtomicUsize,
}

impl Herald {
    /// In front of the server on 127.0.0.1:`target`; also where it listens.
    fn start(target: u16) -> (Arc<Self>, u16) {
        let herald = Arc::<Self>::default();
        let all = Arc::clone(&herald);
        let port = relay::listen(target, move |client, server| {
            let (up, down) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
            let (above, below) = (Arc::clone(&all), Arc::clone(&all));
            std::thread::spawn(move || above.pass_up(up, server));
            std::thread::spawn(move || below.pass_down(down, client));
        });
        (herald, port)
    }

    fn tell(&self, tells: bool) {
        self.tells.store(tells, Ordering::Release);
    }

    fn told(&self) -> usize {
        self.told.load(Ordering::Acquire)
    }

    fn hold_cancels(&self, hold: bool) {
        *self.holds_cancels.lock().expect("lock") = hold;
        self.cancels_changed.notify_all();
    }

    fn pass_up(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; 64 << 10];
        while let Ok(n) = from.read(&mut piece)
            && n > 0
        {
            if piece[..n].get(4..).is_some_and(|rest| rest.starts_with(&CANCEL_REQUEST)) {
                self.cancels_held.fetch_add(1, Ordering::AcqRel);
                let held = self.holds_cancels.lock().expect("lock");
                drop(self.cancels_changed.wait_while(held, |holds| *holds).expect("lock"));
            }
            if to.write_all(&piece[..n]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn pass_down(&self, mut from: TcpStream, mut to: TcpStream) {
        let (mut piece, mut held) = (vec![0; 64 << 10], Vec::new());
        while let Ok(n) = from.read(&mut piece)
            && n > 0
        {
            held.extend_from_slice(&piece[..n]);
            let mut out = Vec::new();
            while let Ok(Some((head, _))) = frame::whole(&held, usize::MAX) {
                let mut told = Vec::new();
                if head.tag == b::READY_FOR_QUERY && self.tells.load(Ordering::Acquire) {
                    let payload = self.told.fetch_add(1, Ordering::AcqRel);
                    let pid = self.pid.load(Ordering::Acquire).to_be_bytes();
                    let zeros = "0".repeat(self.zeros.load(Ordering::Acquire));
                    let body = format!("news\0{zeros}{payload}\0");
                    frame::put(&mut told, b::NOTIFICATION_RESPONSE, |out| {
                        out.extend_from_slice(&pid);
                        out.extend_from_slice(body.as_bytes());
                    });
                }
                let ready = held.drain(..head.total());
                if self.behind.load(Ordering::Acquire) {
                    out.extend(ready);
                    out.append(&mut told);
                } else {
                    out.append(&mut told);
                    out.extend(ready);
                }
            }
            if to.write_all(&out).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

fn start() -> (Arc<Herald>, Proxy, String) {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let (herald, port) = Herald::start(server.port());
    let general = "workers = 1\ndefault_pool_size = 1\nserver_tls_sslmode = \"disable\"";
    (herald, Proxy::to(server, general, &format!("port = {port}"), ""), database)
}

/// Payloads of the notifications among these messages.
fn heard(messages: &[Message]) -> Vec<usize> {
    let payload = |m: &Message| {
        let text = String::from_utf8_lossy(&m.body[4..]).into_owned();
        text.trim_end_matches('\0').rsplit('\0').next().and_then(|n| n.parse().ok()).expect("a payload")
    };
    messages.iter().filter(|m| m.tag == b::NOTIFICATION_RESPONSE).map(payload).collect()
}

/// Reads until as many were heard as were told, when nothing is owed any more.
fn hear_all(raw: &mut Raw, herald: &Herald, mut so_far: Vec<usize>) {
    while so_far.len() < herald.told() {
        so_far.extend(heard(&[raw.read()]));
    }
    assert_eq!(so_far, (0..herald.told()).collect::<Vec<_>>());
}

/// Each of these is followed by round trips of pgsluice's own: the probe of what it left behind, and the settings of the
/// startup packet that come back behind a RESET.
#[test]
fn what_comes_in_round_trips_of_ours_is_the_listening_clients() {
    let (herald, proxy, database) = start();
    let parameters = [
        ("user", "postgres"),
        ("database", database.as_str()),
        ("options", "-c work_mem=1234kB -c geqo=off"),
    ];
    let mut raw = Raw::login_as(proxy.port(), &parameters, "").expect("a login");
    raw.rows("LISTEN news");
    herald.tell(true);
    let mut all = Vec::new();
    let texts = [
        "SELECT set_config('app.n', '1', false)",
        "SET work_mem = '2MB'",
        "RESET ALL",
        "RESET work_mem",
        "SHOW work_mem",
    ];
    for text in texts {
        all.extend(heard(&raw.query(text)));
    }
    herald.tell(false);
    all.extend(heard(&raw.query("SELECT 1")));
    assert!(herald.told() > texts.len(), "round trips of ours were told something");
    hear_all(&mut raw, &herald, all);
}

/// Who notified, of these messages.
fn notifiers(messages: &[Message]) -> Vec<i32> {
    let pid = |m: &Message| m.body.first_chunk().map(|pid| i32::from_be_bytes(*pid)).expect("a process id");
    messages.iter().filter(|m| m.tag == b::NOTIFICATION_RESPONSE).map(pid).collect()
}

/// In round trips of ours and in the client's own.
#[test]
fn a_client_takes_its_own_notifications_for_its_own_and_no_others() {
    let (herald, proxy, database) = start();
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("LISTEN news");
    let server: i32 = raw.value("SELECT pg_backend_pid()").expect("a process id").parse().expect("a number");
    assert_ne!(server, raw.pid);
    for (notifier, known_as) in [(server, raw.pid), (raw.pid, server), (7_654_321, 7_654_321)] {
        herald.pid.store(notifier, Ordering::Release);
        herald.tell(true);
        // The probe behind the first comes before the answer to the second.
        let mut all = notifiers(&raw.query("UNLISTEN other"));
        all.extend(notifiers(&raw.query("UNLISTEN other")));
        herald.tell(false);
        all.extend(notifiers(&raw.query("SELECT 1")));
        assert!(all.len() > 2, "no round trip of ours was told anything: {all:?}");
        assert!(all.iter().all(|pid| *pid == known_as), "{notifier}: {all:?}");
    }
}

/// A client that waits for a notification sends nothing meanwhile.
#[test]
fn what_comes_right_behind_a_round_trip_of_ours_is_heard_at_once() {
    let (herald, proxy, database) = start();
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("LISTEN news");
    // Waits for its probe.
    raw.rows("SELECT 1");
    herald.behind.store(true, Ordering::Release);
    herald.tell(true);
    // The probe follows.
    let all = heard(&raw.query("UNLISTEN other"));
    assert!(poll(PATIENCE, || (herald.told() > 1).then_some(())).is_some(), "no probe");
    hear_all(&mut raw, &herald, all);
}

/// Three round trips of ours follow a COMMIT, behind a cancel request that comes late; no answer of theirs goes on to the client before the last. Each
/// is told something with so many zeros. Gives up what came up to the COMMIT.
fn three_round_trips(herald: &Herald, raw: &mut Raw, port: u16, zeros: usize) -> Vec<usize> {
    raw.rows("BEGIN");
    raw.rows("LISTEN news");
    herald.hold_cancels(true);
    let _cancel = raw.send_cancel(port);
    let held = || (herald.cancels_held.load(Ordering::Acquire) > 0).then_some(());
    assert!(poll(PATIENCE, held).is_some(), "no cancel request came to the server");
    herald.tell(true);
    // Its own ReadyForQuery is told of first. What follows waits for the cancel request, which waits for us.
    let all = heard(&raw.query("COMMIT"));
    assert_eq!(all, [0]);
    herald.zeros.store(zeros, Ordering::Release);
    herald.hold_cancels(false);
    all
}

#[test]
fn what_comes_while_a_late_cancel_request_is_awaited_is_the_listening_clients() {
    let (herald, proxy, database) = start();
    let mut raw = Raw::login(proxy.port(), &database);
    let all = three_round_trips(&herald, &mut raw, proxy.port(), 0);
    // The probe is the last of the round trips.
    assert!(poll(PATIENCE, || (herald.told() > 3).then_some(())).is_some(), "told {} only", herald.told());
    herald.tell(false);
    hear_all(&mut raw, &herald, all);
    assert_eq!(raw.value("SELECT 42").as_deref(), Some("42"));
}

/// Of each round trip's answer it is as much as may be kept.
#[test]
fn who_is_told_more_than_is_kept_for_it_loses_its_connection() {
    let (herald, proxy, database) = start();
    let mut raw = Raw::login(proxy.port(), &database);
    three_round_trips(&herald, &mut raw, proxy.port(), HEARD_BYTES_MAX / 2 - 100);
    let last = raw.read_until_closed().pop().expect("an error");
    assert_eq!((last.tag, last.sqlstate().as_str()), (b::ERROR_RESPONSE, "08006"));
    proxy.wait_for_log("too many notifications");
    herald.tell(false);
    assert_eq!(Raw::login(proxy.port(), &database).value("SELECT 42").as_deref(), Some("42"));
}

#[test]
fn who_comes_next_hears_nothing_of_it() {
    let (herald, proxy, database) = start();
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("LISTEN news");
    herald.tell(true);
    // The reset behind it, and what is asked before another client may have the connection.
    raw.terminate();
    let mut next = Raw::login(proxy.port(), &database);
    assert!(poll(PATIENCE, || (herald.told() > 0).then_some(())).is_some(), "no reset");
    herald.tell(false);
    assert!(heard(&next.query("SELECT 1")).is_empty());
}
