//! A server that goes, or gives up, while clients have rows under way: none is promised what nobody keeps, waits longer than it has
//! to, or loses its connection for what was not its own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::support;
use pgsluice::wire::{backend as b, frame};
use support::console::{find, tell, until};
use support::pouring::{CLIENTS, errors, number, send_insert, servers, tags, until_poured, warmed};
use support::relay::listen;
use support::{PATIENCE, PgOptions, Postgres, Proxy, Raw, Step, outline, poll};

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

/// A relay to the server that says `farewell` in one piece with the end of an answer, in a block or not, and closes, once it is armed;
/// disarmed when it has closed.
fn leaving(target: u16, armed: &Arc<AtomicBool>, farewell: Vec<u8>) -> u16 {
    let armed = Arc::clone(armed);
    listen(target, move |client, server| {
        pass(&client, &server, |_| {});
        let (armed, farewell) = (Arc::clone(&armed), farewell.clone());
        let (both, other) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
        pass(&server, &client, move |bytes| {
            let ready = [b"Z\0\0\0\x05I", b"Z\0\0\0\x05T"].iter().any(|ready| bytes.ends_with(*ready));
            if ready && armed.load(Ordering::Acquire) {
                bytes.extend_from_slice(&farewell);
                let _ = (&both).write_all(bytes);
                let _ = (both.shutdown(Shutdown::Both), other.shutdown(Shutdown::Both));
                armed.store(false, Ordering::Release);
            }
        });
    })
}

fn words() -> Vec<u8> {
    fatal("57P01")
}

fn fatal(code: &str) -> Vec<u8> {
    let mut words = Vec::new();
    frame::put(&mut words, b::ERROR_RESPONSE, |out| {
        out.extend_from_slice(format!("SFATAL\0VFATAL\0C{code}\0Mgoing\0\0").as_bytes());
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
            poll(PATIENCE, || (!armed.load(Ordering::Acquire)).then_some(())).expect("the server goes");
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

/// A relay to the server. The connection that carries the first bytes behind `armed` is not read any more, but handed over.
fn held(target: u16, armed: &Arc<AtomicBool>) -> (u16, Receiver<TcpStream>) {
    let (hand, taken) = channel();
    let armed = Arc::clone(armed);
    let port = listen(target, move |mut client, mut server| {
        let (hand, armed) = (hand.clone(), Arc::clone(&armed));
        let (mut above, mut below) = (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
        let answers = std::thread::spawn(move || std::io::copy(&mut above, &mut below));
        std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 16];
            while client.peek(&mut piece).is_ok_and(|n| n > 0) && !armed.load(Ordering::Acquire) {
                let n = client.read(&mut piece).expect("what was seen");
                server.write_all(&piece[..n]).expect("the server listens");
            }
            let _ = server.shutdown(Shutdown::Both);
            let _ = answers.join();
            let _ = hand.send(client);
        });
    });
    (port, taken)
}

/// pgsluice stands still while this happens.
fn while_stopped(proxy: &Proxy, happens: impl FnOnce()) {
    proxy.signal("STOP");
    happens();
    proxy.signal("CONT");
}

/// A connection that is closed before all was read is reset: nothing more can be written to it, but there is something to read.
#[test]
fn a_server_that_does_not_listen_any_more_is_heard() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    for (mode, replication) in [("transaction", false), ("session", false), ("session", true)] {
        let armed = Arc::default();
        let (port, taken) = held(pg.port(), &armed);
        let proxy = Proxy::to(pg, &format!("pool_mode = \"{mode}\""), &format!("port = {port}"), "");
        let mut client = match replication {
            false => Raw::login(proxy.port(), &db),
            true => Raw::login_as(
                proxy.port(),
                &[("user", "postgres"), ("database", &db), ("replication", "database")],
                "",
            )
            .expect("logged in"),
        };
        client.rows("BEGIN");
        armed.store(true, Ordering::Release);
        client.send(&Step::query("SELECT 1").bytes);
        let mut server = taken.recv_timeout(PATIENCE).expect("it asks the server");
        while_stopped(&proxy, || {
            client.send(&Step::query("SELECT 2").bytes);
            server.write_all(&words()).expect("pgsluice listens");
            drop(server);
        });
        let last = client.read_until_closed().pop().expect("a word");
        assert_eq!(last.sqlstate(), "57P01", "{mode}, replication {replication}");
    }
}

/// What a client is told does not hang on who asked the server last.
#[test]
fn a_server_that_ends_while_it_is_asked_for_ourselves_is_heard() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let proxy = Proxy::to(pg, "default_pool_size = 1", "", "");
    let (mut client, mut holder) = (Raw::login(proxy.port(), &db), Raw::login(pg.port(), &db));
    let pid = client.value("SELECT pg_backend_pid()").expect("a process");
    let waits = servers("pid", &db, &format!("pid = {pid} AND wait_event_type = 'Lock'"));
    holder.rows(&waits);
    holder.rows("BEGIN");
    holder.rows("LOCK TABLE pg_class IN ACCESS EXCLUSIVE MODE");
    // What it set is asked for behind its answer.
    client.rows("SET work_mem = '3MB'");
    poll(PATIENCE, || holder.rows(&waits).pop()).expect("it waits for the lock");
    holder.rows(&format!("SELECT pg_terminate_backend({pid})"));
    client.send(&Step::query("SELECT 2").bytes);
    let last = client.read_until_closed().pop().expect("a word");
    assert_eq!(last.sqlstate(), "57P01", "{}", last.field(b'M'));
    holder.rows("COMMIT");
}

#[test]
fn a_server_that_does_not_wait_for_a_password_is_heard() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let port = listener.local_addr().expect("address").port();
    let pg = Postgres::shared();
    let login = format!("port = {port}\nuser = \"postgres\"\npassword = \"secret\"");
    let proxy = Proxy::to(pg, "server_tls_sslmode = \"disable\"", &login, "");
    let mut client = Raw::connect(proxy.port());
    client.startup(196_608, &[("user", "postgres"), ("database", "postgres")]);
    let (mut server, _) = listener.accept().expect("a login");
    server.peek(&mut [0]).expect("it says who it is");
    while_stopped(&proxy, || {
        let mut said = Vec::new();
        frame::put(&mut said, b::AUTHENTICATION, |out| out.extend_from_slice(&3_i32.to_be_bytes()));
        said.extend_from_slice(&fatal("28000"));
        server.write_all(&said).expect("pgsluice listens");
        drop(server);
    });
    let last = client.read_until_closed().pop().expect("a word");
    assert_eq!(last.sqlstate(), "28000");
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

// ===== silence =====

/// A relay to the server in which connections fall silent, as to a machine without power: they stay open, and nothing arrives.
#[derive(Default)]
struct Hush {
    /// Those of this number and before are silent.
    silent: Mutex<usize>,
    /// A connection falls silent before this is passed on; empty: none does.
    word: Mutex<Vec<u8>>,
    changed: Condvar,
    connections: AtomicUsize,
    /// Pieces that did not get through.
    held: AtomicUsize,
}

impl Hush {
    fn start(target: u16) -> (Arc<Self>, u16) {
        let hush = Arc::new(Self::default());
        let shared = Arc::clone(&hush);
        let port = listen(target, move |client, server| {
            let number = shared.connections.fetch_add(1, Ordering::AcqRel) + 1;
            for (from, to) in [(&client, &server), (&server, &client)] {
                let shared = Arc::clone(&shared);
                pass(from, to, move |piece| shared.wait(number, piece));
            }
        });
        (hush, port)
    }

    fn wait(&self, number: usize, piece: &[u8]) {
        let mut silent = self.silent.lock().expect("silent");
        let word = self.word.lock().expect("word");
        if !word.is_empty() && piece.windows(word.len()).any(|part| part == *word) {
            *silent = number.max(*silent);
        }
        drop(word);
        self.held.fetch_add(usize::from(*silent >= number), Ordering::AcqRel);
        while *silent >= number {
            silent = self.changed.wait(silent).expect("silent");
        }
    }

    /// All that there are, and all to come up to this number.
    fn fall(&self, number: usize) {
        *self.silent.lock().expect("silent") = number.max(self.connections.load(Ordering::Acquire));
    }

    /// The next one by which this would be sent.
    fn fall_at(&self, word: &str) {
        *self.word.lock().expect("word") = word.into();
    }

    /// Something was sent that nobody hears.
    fn until_held(&self) {
        let held = poll(PATIENCE, || (self.held.load(Ordering::Acquire) > 0).then_some(()));
        assert!(held.is_some(), "nothing was sent");
    }
}

fn hushed(pg: &Postgres, general: &str, database: &str) -> (Arc<Hush>, Proxy) {
    let (hush, port) = Hush::start(pg.port());
    let config = Proxy::config(pg, general, database, "");
    let config = config.replace(&format!("port = {}", pg.port()), &format!("port = {port}"));
    (hush, Proxy::start(&config))
}

/// Other connections are made, and the client knows nothing of it.
#[test]
fn an_idle_connection_that_fell_silent_is_given_up() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    // Of a client's wait as much is left for another one.
    for limit in ["server_connect_timeout = 2", "server_connect_timeout = 600\nquery_wait_timeout = 6"] {
        let (hush, proxy) = hushed(pg, &format!("server_check_delay = 0\n{limit}"), "");
        let mut clients: Vec<Raw> = (0..3).map(|_| Raw::login(proxy.port(), &db)).collect();
        for client in &mut clients {
            client.rows("BEGIN");
        }
        for client in &mut clients {
            client.rows("COMMIT");
        }
        hush.fall(0);
        for client in &mut clients {
            assert_eq!(client.value("SELECT 2").as_deref(), Some("2"));
        }
        // The first one found it, for all.
        proxy.wait_for_log("left because it does not answer");
        let told = proxy.log().matches("left because it does not answer").count();
        assert_eq!(told, 1, "{}", proxy.log());
    }
}

/// Nobody could tell what became of them.
#[test]
fn rows_are_not_sent_on_a_connection_that_fell_silent_while_it_was_idle() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let (hush, proxy) = hushed(pg, "server_check_delay = 0\nserver_connect_timeout = 2", "");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    for round in 0..3 {
        hush.fall(0);
        for (a, client) in clients.iter_mut().enumerate() {
            send_insert(client, number(a, round, 0));
        }
        for client in &mut clients {
            assert_eq!(tags(&client.read_until_ready()), ["INSERT 0 1"]);
        }
    }
    assert_eq!(pg.psql(&db, "SELECT count(*), count(DISTINCT a) FROM t").trim(), "24|24");
}

#[test]
fn a_server_that_falls_silent_keeps_nobody_from_being_closed() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let seen = |general: &str, before: &[&str], question: &str| {
        let (hush, proxy) = hushed(pg, &format!("default_pool_size = 1\n{general}"), "");
        let mut client = Raw::login(proxy.port(), &db);
        let mut other = Raw::login(proxy.port(), &db);
        other.rows("SELECT 1");
        before.iter().for_each(|sql| _ = client.rows(sql));
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let row = find(&mut console, "SHOW CLIENTS", &[("database", &db)]).expect("the client");
        hush.fall(usize::MAX);
        client.send(&Step::query(question).bytes);
        hush.until_held();
        if !general.contains("query_timeout") {
            tell(&mut console, &format!("KILL_CLIENT {}", row["id"]));
        }
        client.read_until_closed().pop().expect("a word").sqlstate()
    };
    // The check of a connection that was idle.
    assert_eq!(seen("server_check_delay = 0", &[], "SELECT 2"), "57P01");
    // Settings that are put on it.
    let settings = ["SET work_mem = '5MB'", "SET search_path = pg_catalog"];
    for general in ["", "query_timeout = 1"] {
        let told = if general.is_empty() { "57P01" } else { "57014" };
        assert_eq!(seen(&format!("server_check_delay = 600\n{general}"), &settings, "SELECT 2"), told);
    }
}

/// Its startup packet's settings are on their way to the connection, and its answer is withheld.
#[test]
fn who_is_given_back_its_settings_by_a_silent_server_can_be_closed() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    for (general, told) in [("", "57P01"), ("query_timeout = 1", "57014")] {
        let (hush, proxy) = hushed(pg, general, "");
        let asked = [("user", "postgres"), ("database", db.as_str()), ("TimeZone", "Asia/Tokyo")];
        let mut client = Raw::login_as(proxy.port(), &asked, "").expect("a login");
        client.rows("SET TimeZone = 'UTC'");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let row = find(&mut console, "SHOW CLIENTS", &[("database", &db)]).expect("the client");
        hush.fall_at("Asia/Tokyo");
        client.send(&Step::query("RESET TimeZone").bytes);
        hush.until_held();
        if general.is_empty() {
            tell(&mut console, &format!("KILL_CLIENT {}", row["id"]));
        }
        let seen = client.read_until_closed();
        assert!(seen.iter().all(|message| message.tag != b'Z'), "{}", outline(&seen));
        assert_eq!(seen.last().expect("a word").sqlstate(), told);
    }
}

/// A server that reads its configuration anew reports what has changed behind an answer, together with it.
#[test]
fn an_answer_that_is_withheld_is_not_lost_for_a_report_behind_it() {
    const READY: [u8; 6] = [b'Z', 0, 0, 0, 5, b'I'];
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let reports = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&reports);
    let port = listen(pg.port(), move |client, server| {
        let reports = Arc::clone(&shared);
        pass(&client, &server, |_| {});
        pass(&server, &client, move |bytes| {
            if bytes.ends_with(&READY) && reports.swap(false, Ordering::AcqRel) {
                b::put_parameter_status(bytes, b"TimeZone", b"Europe/Zurich");
            }
        });
    });
    let config = Proxy::config(pg, "", "", "");
    let proxy = Proxy::start(&config.replace(&format!("port = {}", pg.port()), &format!("port = {port}")));
    let asked = [("user", "postgres"), ("database", db.as_str()), ("TimeZone", "Asia/Tokyo")];
    let mut client = Raw::login_as(proxy.port(), &asked, "").expect("a login");
    client.rows("SET TimeZone = 'UTC'");
    // What that left in the session has been asked for.
    client.rows("SELECT 1");
    reports.store(true, Ordering::Release);
    let seen = client.query("RESET TimeZone");
    let told = seen.iter().rfind(|message| message.tag == b'S').map(|message| message.body.clone());
    assert_eq!(told.as_deref(), Some(&b"TimeZone\0Asia/Tokyo\0"[..]), "{}", outline(&seen));
    assert!(!reports.load(Ordering::Acquire));
    assert_eq!(client.value("SHOW TimeZone").as_deref(), Some("Asia/Tokyo"));
}

#[test]
fn who_logs_in_does_not_wait_for_a_connection_that_fell_silent() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let (hush, proxy) = hushed(pg, "default_pool_size = 1\nserver_connect_timeout = 2", "");
    Raw::login(proxy.port(), &db).rows("SELECT 1");
    hush.fall(0);
    let asked = [("user", "postgres"), ("database", db.as_str()), ("work_mem", "7MB")];
    let mut client = Raw::login_as(proxy.port(), &asked, "").unwrap_or_else(|e| panic!("{}", e.outline()));
    assert_eq!(client.value("SHOW work_mem").as_deref(), Some("7MB"));
}

/// Nobody waits for what is asked about a table, and nobody could end it.
#[test]
fn a_question_about_a_table_that_is_not_answered_costs_one_connection() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(TABLE);
    let (hush, proxy) = hushed(pg, "default_pool_size = 1\nserver_connect_timeout = 2", "");
    let mut client = Raw::login(proxy.port(), &db);
    hush.fall_at("WITH RECURSIVE named");
    client.rows("INSERT INTO t (a, b) VALUES (1, 'row')");
    hush.until_held();
    assert_eq!(client.value("SELECT 2").as_deref(), Some("2"));
}

/// A run inside a block is on its way, or failed, and the block is to be what it was before it.
#[test]
fn whose_run_meets_a_silent_server_can_be_closed() {
    let pg = Postgres::shared();
    for word in ["0\trow\n", "ROLLBACK TO SAVEPOINT pgsluice_run"] {
        for (general, told) in [("", "57P01"), ("query_timeout = 5", "57014")] {
            let db = pg.fresh_database(TABLE);
            let (hush, proxy) = hushed(pg, general, "");
            let mut client = poured(&proxy, &db);
            client.send(&rows(0).bytes);
            assert_eq!(tags(&client.read_until_ready()).len(), ROWS);
            client.rows("BEGIN");
            hush.fall_at(word);
            // They are there already.
            client.send(&rows(0).bytes);
            hush.until_held();
            if general.is_empty() {
                let mut console = Raw::login(proxy.port(), "pgsluice");
                let row = find(&mut console, "SHOW CLIENTS", &[("database", &db)]).expect("the client");
                tell(&mut console, &format!("KILL_CLIENT {}", row["id"]));
            }
            assert_eq!(client.read_until_closed().pop().expect("a word").sqlstate(), told);
        }
    }
}

/// The connection that is lost is one of the pool's, and nothing of the client's was run on it.
#[test]
fn who_logs_in_does_not_pay_for_a_connection_that_ends_under_it() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let ends = Arc::new(AtomicBool::new(true));
    let shared = Arc::clone(&ends);
    let port = listen(pg.port(), move |client, server| {
        let (ends, both) = (Arc::clone(&shared), client.try_clone().expect("clone"));
        pass(&client, &server, move |bytes| {
            if bytes.windows(3).any(|part| part == b"7MB") && ends.swap(false, Ordering::AcqRel) {
                let _ = both.shutdown(Shutdown::Both);
            }
        });
        pass(&server, &client, |_| {});
    });
    let proxy = Proxy::to(pg, "", &format!("port = {port}"), "");
    Raw::login(proxy.port(), &db).rows("SELECT 1");
    let asked = [("user", "postgres"), ("database", db.as_str()), ("work_mem", "7MB")];
    let mut client = Raw::login_as(proxy.port(), &asked, "").unwrap_or_else(|e| panic!("{}", e.outline()));
    assert!(!ends.load(Ordering::Acquire), "nothing was set");
    assert_eq!(client.value("SHOW work_mem").as_deref(), Some("7MB"));
}

/// Its connection is cleaned for the next one, which has no end.
#[test]
fn who_left_a_silent_server_can_be_closed() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let (hush, proxy) = hushed(pg, "pool_mode = \"session\"", "");
    let mut client = Raw::login(proxy.port(), &db);
    client.rows("SELECT 1");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let row = find(&mut console, "SHOW CLIENTS", &[("database", &db)]).expect("the client");
    hush.fall(usize::MAX);
    client.send(b"X\0\0\0\x04");
    hush.until_held();
    tell(&mut console, &format!("KILL_CLIENT {}", row["id"]));
    let gone = || find(&mut console, "SHOW CLIENTS", &[("id", &row["id"])]).is_none().then_some(());
    assert!(poll(PATIENCE, gone).is_some(), "it stays");
}

/// Its request to cancel was still on its way when the answer came: the connection is asked what that left behind.
#[test]
fn a_connection_that_falls_silent_behind_a_cancel_request_is_given_up() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let (_hush, proxy, mut client) =
        silent_behind_a_cancel(pg, &db, "server_connect_timeout = 2", "pg_sleep(600)");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    until(&mut console, "SHOW POOLS", &[("database", &db), ("sv_active", "0"), ("sv_being_canceled", "0")]);
    assert_eq!(client.value("SELECT 2").as_deref(), Some("2"));
}

/// The same where its function may have left something in the session.
#[test]
fn who_is_asked_about_behind_a_cancel_request_can_be_closed() {
    let pg = Postgres::shared();
    let db =
        pg.fresh_database("CREATE FUNCTION sleeps() RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(600)'");
    for (general, told) in [("", "57P01"), ("query_timeout = 5", "57014")] {
        let (_hush, proxy, mut client) = silent_behind_a_cancel(pg, &db, general, "sleeps()");
        if general.is_empty() {
            let mut console = Raw::login(proxy.port(), "pgsluice");
            let row = find(&mut console, "SHOW CLIENTS", &[("database", &db)]).expect("the client");
            tell(&mut console, &format!("KILL_CLIENT {}", row["id"]));
        }
        assert_eq!(client.read_until_closed().pop().expect("a word").sqlstate(), told);
    }
}

/// One whose only connection fell silent when pgsluice asked it what a cancelled `call` left behind.
fn silent_behind_a_cancel(pg: &Postgres, db: &str, general: &str, call: &str) -> (Arc<Hush>, Proxy, Raw) {
    let (hush, proxy) = hushed(pg, &format!("default_pool_size = 1\n{general}"), "");
    let mut client = Raw::login(proxy.port(), db);
    client.rows("SELECT 1");
    hush.fall_at("Q\0\0\0\x05\0");
    // The answer may be later than the end of the request: then nothing is asked.
    for _ in 0..100 {
        client.send(&Step::query(&format!("SELECT {call}")).bytes);
        pg.wait_until("postgres", &servers("count(*) = 1", db, "wait_event = 'PgSleep'"));
        client.cancel(proxy.port());
        assert_eq!(errors(&client.read_until_ready()).len(), 1);
        let asked = || (hush.held.load(Ordering::Acquire) > 0).then_some(());
        if poll(Duration::from_millis(50), asked).is_some() {
            return (hush, proxy, client);
        }
    }
    panic!("the connection was never asked");
}

/// What is set on a new connection is part of its login.
#[test]
fn a_connect_query_that_is_not_answered_costs_one_connection() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE SEQUENCE s");
    let general = "default_pool_size = 1\nserver_connect_timeout = 2";
    let query = "SELECT CASE WHEN nextval('s') = 1 THEN pg_sleep(600) END";
    let proxy = Proxy::to(pg, general, &format!("connect_query = \"{query}\""), "");
    let mut client = Raw::login(proxy.port(), &db);
    assert_eq!(client.value("SELECT last_value FROM s").as_deref(), Some("2"));
}

/// Rows that are on their way are stored or not: their client is not told, and is not kept.
#[test]
fn rows_on_their_way_to_a_silent_server_end_with_query_timeout() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let (hush, proxy) = hushed(pg, "query_timeout = 2", "");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    hush.fall(usize::MAX);
    for (a, client) in clients.iter_mut().enumerate() {
        send_insert(client, a);
    }
    for client in &mut clients {
        assert_eq!(client.read_until_closed().pop().expect("a word").sqlstate(), "57014");
    }
}

/// With the last client that waited for it the connection of a batch goes: it kept its place in the pool, and in the table's
/// `max_flushes_per_table`, for as long as TCP does not give up.
#[test]
fn a_batch_on_a_silent_server_keeps_its_connection_no_longer_than_its_clients() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let (hush, proxy) = hushed(pg, "query_timeout = 2", "");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    hush.fall(0);
    for (a, client) in clients.iter_mut().enumerate() {
        send_insert(client, a);
    }
    until(&mut console, "SHOW COALESCE", &[("database", &db), ("state", "flying")]);
    for client in &mut clients {
        assert_eq!(client.read_until_closed().pop().expect("a word").sqlstate(), "57014");
    }
    until(&mut console, "SHOW POOLS", &[("database", &db), ("sv_active", "0")]);
    until(&mut console, "SHOW COALESCE", &[("database", &db), ("state", "idle")]);
}

/// The next client gets another one.
#[test]
fn a_connection_that_cannot_be_cleaned_is_given_up() {
    let pg = Postgres::shared();
    for mode in ["session", "transaction"] {
        let db = pg.fresh_database("CREATE SEQUENCE s");
        let query = "SELECT CASE WHEN nextval('s') = 1 THEN pg_sleep(600) END";
        let general = format!(
            "pool_mode = \"{mode}\"\ndefault_pool_size = 1\nserver_connect_timeout = 2\n\
             server_reset_query = \"{query}\"\nserver_reset_query_always = true"
        );
        let proxy = Proxy::to(pg, &general, "", "");
        let mut first = Raw::login(proxy.port(), &db);
        first.rows("SELECT 1");
        first.send(b"X\0\0\0\x04");
        let mut next = Raw::login(proxy.port(), &db);
        assert_eq!(next.value("SELECT 2").as_deref(), Some("2"), "{mode}");
        proxy.wait_for_log("server_reset_query took longer than server_connect_timeout");
    }
}

/// Notices that hold nothing are something, too.
#[test]
fn an_answer_to_us_without_an_end_is_no_answer() {
    const PIECES: usize = 2000;
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let (armed, cut) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_armed, is_cut) = (Arc::clone(&armed), Arc::clone(&cut));
    let port = listen(pg.port(), move |client, server| {
        pass(&client, &server, |_| {});
        let (armed, cut) = (Arc::clone(&is_armed), Arc::clone(&is_cut));
        let flooded = client.try_clone().expect("clone");
        pass(&server, &client, move |_| {
            if armed.swap(false, Ordering::AcqRel) {
                let piece = b"N\0\0\0\x04".repeat(4096);
                let all = (0..PIECES).all(|_| (&flooded).write_all(&piece).is_ok());
                cut.store(!all, Ordering::Release);
            }
        });
    });
    let config = Proxy::config(pg, "server_check_delay = 0", "", "");
    let proxy = Proxy::start(&config.replace(&format!("port = {}", pg.port()), &format!("port = {port}")));
    let mut client = Raw::login(proxy.port(), &db);
    client.rows("SELECT 1");
    armed.store(true, Ordering::Release);
    assert_eq!(client.value("SELECT 2").as_deref(), Some("2"));
    assert!(cut.load(Ordering::Acquire), "all of it was taken");
}
