//! A server that lies in its answer to a flush. What is true nobody can know then; but every client is answered or
//! closed, the process lives, memory stays where it was, and the next honest flush is poured again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support;
use pgsluice::wire::{backend as b, frontend};
use support::console::{find, until};
use support::lies::{Frames, LIES, Liar};
use support::{PATIENCE, Postgres, Proxy, Raw, Step, poll};

const CLIENTS: usize = 6;

/// Bytes that the process may grow by under all lies.
const GROWTH_MAX: u64 = 48 << 20;

/// Sends single INSERTs until `stop`; every one is answered, or its connection closed. Gives up what it was told.
fn insert_until(stop: &AtomicBool, port: u16, db: &str) -> usize {
    let (mut told, mut client) = (0, Raw::login(port, db));
    let step = Step::query("INSERT INTO t (a, b) VALUES (1, 'row')");
    while !stop.load(Ordering::Acquire) {
        if client.try_send(&step.bytes).is_err() {
            client = Raw::login(port, db);
            continue;
        }
        loop {
            match client.try_read() {
                Some(message) if message.tag == b::READY_FOR_QUERY => break told += 1,
                Some(message) => assert!(
                    matches!(message.tag, b::COMMAND_COMPLETE | b::ERROR_RESPONSE | b::PARAMETER_STATUS),
                    "{}",
                    message.outline()
                ),
                None => break client = Raw::login(port, db),
            }
        }
    }
    told
}

#[test]
fn whatever_a_server_says_of_a_flush_everybody_is_answered() {
    everybody_is_answered("[coalesce]\nvalues_max_rows = 0");
}

#[test]
fn whatever_a_server_says_of_an_insert_of_many_values_everybody_is_answered() {
    everybody_is_answered("");
}

/// The same of a client's own pipeline: an answer or the end of the connection, whoever's the fault is; and the next client is served.
#[test]
fn whatever_a_server_says_to_a_client_it_is_answered_or_closed() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let liar = Liar::start(pg.port());
    for mode in ["session", "transaction"] {
        let general = format!("pool_mode = \"{mode}\"\nserver_login_retry = 1");
        let proxy = Proxy::to(pg, &general, &format!("port = {}", liar.port()), "[coalesce]\nmode = \"off\"");
        let rows = (0..100).map(|a| [a.to_string(), "row".to_owned()]);
        let mut pipeline = Step::pipeline("INSERT INTO t (a, b) VALUES ($1, $2)", rows, false).bytes;
        // What the relay knows a flush by.
        pipeline.truncate(pipeline.len() - 5);
        frontend::put_empty(&mut pipeline, frontend::FLUSH);
        frontend::put_empty(&mut pipeline, frontend::SYNC);
        for (what, lie) in LIES {
            let mut client = Raw::login(proxy.port(), &db);
            client.rows("SELECT 1");
            let told = liar.told();
            liar.arm(*lie);
            client.send(&pipeline);
            while client.try_read().is_some_and(|message| message.tag != b::READY_FOR_QUERY) {}
            assert_eq!(liar.told(), told + 1, "{mode}: {what}");
            drop(client);
            let mut next = Raw::login(proxy.port(), &db);
            assert_eq!(next.value("SELECT 1").as_deref(), Some("1"), "{mode}: {what}");
        }
    }
}

fn everybody_is_answered(coalesce: &str) {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let liar = Liar::start(pg.port());
    let port = liar.port();
    let mut proxy =
        Proxy::to(pg, "server_login_retry = 1", &format!("port = {port}\npool_size = 12"), coalesce);
    let stop = AtomicBool::new(false);
    let two_flushes = |what: &str| {
        let flushes = liar.flushes();
        let more = poll(PATIENCE, || (liar.flushes() > flushes + 1).then_some(()));
        assert!(more.is_some(), "{what}: nothing is poured any more");
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(|| insert_until(&stop, proxy.port(), &db))).collect();
        let lied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            two_flushes("at first");
            let before = proxy.rss();
            for (what, lie) in LIES {
                let told = liar.told();
                liar.arm(*lie);
                let heard = poll(PATIENCE, || (liar.told() > told).then_some(()));
                assert!(heard.is_some(), "{what}: was never told");
                two_flushes(what);
            }
            assert!(proxy.rss() < before + GROWTH_MAX, "{} -> {}", before, proxy.rss());
        }));
        stop.store(true, Ordering::Release);
        for client in clients {
            assert!(client.join().expect("a client panicked") > 0);
        }
        if let Err(panic) = lied {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(proxy.alive());
}

/// Sends INSERTs of a number of its own that return it, until `stop`: no other is ever told.
fn own_until(stop: &AtomicBool, port: u16, db: &str, own: usize) {
    let own = own.to_string();
    let step = Step::extended("INSERT INTO t (a, b) VALUES ($1, 'row') RETURNING a", &[Some(&own)]);
    let mut client = Raw::login(port, db);
    while !stop.load(Ordering::Acquire) {
        let sent = client.try_send(&step.bytes).is_ok();
        loop {
            match sent.then(|| client.try_read()).flatten() {
                Some(message) if message.tag == b::READY_FOR_QUERY => break,
                Some(message) if message.tag == b::DATA_ROW => assert_eq!(message.row(), [Some(own.clone())]),
                Some(_) => {}
                None => break client = Raw::login(port, db),
            }
        }
    }
}

/// A database with a table, who lies about it, and who is lied to.
fn lied_to() -> (String, Liar, Proxy) {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let liar = Liar::start(pg.port());
    let proxy = Proxy::to(pg, "server_login_retry = 1", &format!("port = {}", liar.port()), "");
    (db, liar, proxy)
}

/// Puts another end in the place of the first statement's.
fn end_first(frames: &mut Frames, tag: u8) {
    let first = frames.iter_mut().find(|frame| frame.0 == b::COMMAND_COMPLETE);
    *first.expect("a tag") = (tag, Vec::new());
}

/// A statement whose end is none, so that the next client's rows stand behind its own; and an answer to all of them behind which
/// the transaction is not over: the server is asked how it ended.
#[test]
fn a_batch_that_does_not_end_as_it_should_is_told_to_nobody() {
    let (db, liar, proxy) = lied_to();
    let stop = AtomicBool::new(false);
    let tell = |lie| {
        let told = liar.told();
        liar.arm(lie);
        assert!(poll(PATIENCE, || (liar.told() > told).then_some(())).is_some(), "was never told");
    };
    std::thread::scope(|scope| {
        let (stop, port, db) = (&stop, proxy.port(), &db);
        let clients: Vec<_> =
            (0..CLIENTS).map(|own| scope.spawn(move || own_until(stop, port, db, own))).collect();
        let lied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..3 {
                tell(|f| end_first(f, b::PORTAL_SUSPENDED));
                tell(|f| end_first(f, b::EMPTY_QUERY_RESPONSE));
            }
            tell(|f| f.last_mut().expect("ready").1 = b"T".to_vec());
            let settled = [("outcome", "settled_committed")];
            until(&mut Raw::login(port, "pgsluice"), "SHOW COALESCE_FLUSHES", &settled);
        }));
        stop.store(true, Ordering::Release);
        for client in clients {
            client.join().expect("another's row");
        }
        if let Err(panic) = lied {
            std::panic::resume_unwind(panic);
        }
    });
}

/// An error, and behind it the answer to a batch that was stored: the rows do not go again.
#[test]
fn an_error_that_the_server_itself_contradicts_is_not_believed() {
    let (db, liar, proxy) = lied_to();
    let stop = AtomicBool::new(false);
    let lost = std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| insert_until(&stop, proxy.port(), &db));
        }
        liar.arm(|f| f.insert(0, (b::ERROR_RESPONSE, b"SERROR\0C55P03\0Ma lie\0\0".to_vec())));
        let told = poll(PATIENCE, || (liar.told() > 0).then_some(()));
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let ended = |console: &mut Raw, how| find(console, "SHOW COALESCE_FLUSHES", &[("outcome", how)]);
        let lost = told.and_then(|()| {
            poll(PATIENCE, || ended(&mut console, "unknown").or_else(|| ended(&mut console, "lost")))
        });
        stop.store(true, Ordering::Release);
        lost.map(|flush| flush["outcome"].clone())
    });
    assert_eq!(lost.as_deref(), Some("unknown"));
}
