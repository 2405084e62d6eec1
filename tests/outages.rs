//! A server that goes, or gives up, while clients have rows under way: none is promised what nobody keeps, waits longer than it has
//! to, or loses its connection for what was not its own.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pgsluice::wire::{backend as b, frame};
use support::console::{find, tell, until};
use support::pouring::{CLIENTS, number, send_insert, servers, tags, until_poured, warmed};
use support::relay::listen;
use support::{PATIENCE, PgOptions, Postgres, Proxy, Raw, Step, poll};

const TABLE: &str = "CREATE TABLE t (a int PRIMARY KEY, b text)";

/// Rows of a run: more than an INSERT of many VALUES has.
const ROWS: usize = 50;

const INSERT: &str = "INSERT INTO t (a, b) VALUES ($1, $2)";

fn rows(first: usize) -> Step {
    Step::pipeline(INSERT, (first..first + ROWS).map(|a| [a.to_string(), "row".to_owned()]), false)
}

/// A client whose runs inside a block are COPYs.
fn poured(proxy: &Proxy, db: &str) -> Raw {
    let mut client = Raw::login(proxy.port(), db);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let poured = poll(PATIENCE, || {
        client.rows("BEGIN");
        client.send(&rows(0).bytes);
        assert_eq!(tags(&client.read_until_ready()).len(), ROWS);
        client.rows("ROLLBACK");
        let lane = find(&mut console, "SHOW COALESCE", &[("database", db), ("format", "text")]);
        lane.filter(|lane| lane["flushes"] != "0").map(|_| ())
    });
    assert!(poured.is_some(), "no run was poured");
    client
}

/// Passes bytes on, changed by `change`, until one side ends.
fn pass(from: &TcpStream, to: &TcpStream, change: impl Fn(&mut Vec<u8>) + Send + 'static) {
    let (mut from, mut to) = (from.try_clone().expect("clone"), to.try_clone().expect("clone"));
    std::thread::spawn(move || {
        let mut piece = vec![0; 1 << 16];
        while let Ok(n) = from.read(&mut piece)
            && n > 0
        {
            let mut bytes = piece[..n].to_vec();
            change(&mut bytes);
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}

/// A relay to the server that says `farewell` in one piece with the end of an answer, in a block or not, and closes, once it is armed.
fn leaving(target: u16, armed: &Arc<AtomicBool>, farewell: Vec<u8>) -> u16 {
    let armed = Arc::clone(armed);
    listen(target, move |client, server| {
        pass(&client, &server, |_| {});
        let (armed, farewell) = (Arc::clone(&armed), farewell.clone());
        let (both, other) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
        pass(&server, &client, move |bytes| {
            let ready = [b"Z\0\0\0\x05I", b"Z\0\0\0\x05T"].iter().any(|ready| bytes.ends_with(*ready));
            if ready && armed.swap(false, Ordering::AcqRel) {
                bytes.extend_from_slice(&farewell);
                let _ = (&both).write_all(bytes);
                let _ = (both.shutdown(Shutdown::Both), other.shutdown(Shutdown::Both));
            }
        });
    })
}

fn words() -> Vec<u8> {
    let mut words = Vec::new();
    frame::put(&mut words, b::ERROR_RESPONSE, |out| {
        out.extend_from_slice(b"SFATAL\0VFATAL\0C57P01\0Mgoing\0\0");
    });
    words
}

#[test]
fn a_server_that_goes_behind_its_answer_costs_no_client_its_connection() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let warning = [&b"N"[..], &words()[1..]].concat();
    for farewell in [words(), warning, Vec::new()] {
        let armed = Arc::default();
        let port = leaving(pg.port(), &armed, farewell);
        let proxy = Proxy::to(pg, "", &format!("port = {port}"), "");
        let mut client = Raw::login(proxy.port(), &db);
        for number in ["1", "2", "3"] {
            let seen = client.query("SELECT 0");
            assert!(
                seen.iter().all(|message| message.tag != b::NOTICE_RESPONSE),
                "it is nothing to this client"
            );
            armed.store(true, Ordering::Release);
            assert_eq!(client.value(&format!("SELECT {number}")).as_deref(), Some(number));
            assert!(!armed.load(Ordering::Acquire), "the server stayed");
        }
    }
    // Where the connection is the client's own it hears why it is over.
    let armed = Arc::default();
    let port = leaving(pg.port(), &armed, words());
    let proxy = Proxy::to(pg, "pool_mode = \"session\"", &format!("port = {port}"), "");
    let mut client = Raw::login(proxy.port(), &db);
    armed.store(true, Ordering::Release);
    client.rows("SELECT 1");
    let last = client.read_until_closed().pop().expect("a word");
    assert_eq!(last.sqlstate(), "57P01");
}

#[test]
fn a_server_that_goes_behind_a_run_says_why() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLE);
    let armed = Arc::default();
    let port = leaving(pg.port(), &armed, words());
    let proxy = Proxy::to(pg, "", &format!("port = {port}"), "");
    let mut client = poured(&proxy, &db);
    client.rows("BEGIN");
    armed.store(true, Ordering::Release);
    client.send(&rows(0).bytes);
    let seen = client.read_until_closed();
    assert_eq!(tags(&seen).len(), ROWS);
    assert_eq!(seen.last().expect("a word").sqlstate(), "57P01");
}

/// What is committed here and not on its standby COMMIT does not promise: directly such a client loses its connection.
#[test]
fn a_wait_for_a_standby_that_is_given_up_confirms_nothing() {
    let pg = Postgres::start(PgOptions::default());
    let proxy = Proxy::to(&pg, "", "", "");
    for level in ["notice", "error"] {
        let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
        let mut clients = warmed(&pg, &proxy, &db, CLIENTS);
        for client in &mut clients {
            client.rows(&format!("SET client_min_messages = {level}"));
        }
        until_poured(&pg, &mut clients, &db, "t", |c, r| {
            vec![Step::query(&format!("INSERT INTO t (a, b) VALUES ({}, 'w')", number(c, r, 0)))]
        });
        standby(&pg, "'nobody'");
        for (a, client) in clients.iter_mut().enumerate() {
            send_insert(client, a);
        }
        let waits = "wait_event = 'SyncRep' AND application_name = 'pgsluice'";
        pg.wait_until("postgres", &servers("count(*) > 0", &db, waits));
        pg.psql("postgres", &servers("pg_terminate_backend(pid)", &db, waits));
        let heard = poll(PATIENCE, || clients.iter().position(Raw::has_answer));
        let mut lost = clients.swap_remove(heard.expect("somebody hears of it"));
        let last = lost.read_until_closed().pop().expect("a word");
        assert_eq!((last.sqlstate().as_str(), last.field(b'S')), ("08007", "FATAL".to_owned()), "{level}");
        standby(&pg, "DEFAULT");
    }
}

/// Which standby a COMMIT waits for.
fn standby(pg: &Postgres, names: &str) {
    pg.psql("postgres", &format!("ALTER SYSTEM SET synchronous_standby_names = {names}"));
    pg.psql("postgres", "SELECT pg_reload_conf()");
    let none = names == "DEFAULT";
    pg.wait_until(
        "postgres",
        &format!("SELECT (current_setting('synchronous_standby_names') = '') = {none}"),
    );
}

/// Rows that waited in a batch for a server have waited: sent back, they do not wait as long again.
#[test]
fn rows_wait_for_a_server_no_longer_than_statements_do() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "query_wait_timeout = 3", "", "");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    let [mut first, mut second] = [(); 2].map(|()| Raw::login(proxy.port(), &db));
    let mut console = Raw::login(proxy.port(), "pgsluice");
    tell(&mut console, &format!("PAUSE {db}"));
    let sent = Step::query("SELECT 1").bytes;
    first.send(&sent);
    until(&mut console, "SHOW POOLS", &[("database", &db), ("maxwait", "1")]);
    for (a, client) in clients.iter_mut().enumerate() {
        send_insert(client, a);
    }
    // Two waits one after the other, of which the first began a second before the rows came.
    let refused = |client: &mut Raw| client.read_until_closed().pop().expect("a word").sqlstate() == "53300";
    assert!(refused(&mut first));
    second.send(&sent);
    assert!(refused(&mut second));
    assert!(clients.iter().all(Raw::has_answer), "rows wait for a second time");
    assert!(clients.iter_mut().all(refused));
}
