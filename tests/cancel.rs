//! Cancel requests: the client's own statement and nothing else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use crate::support;
use pgsluice::wire::{backend as b, frontend as f};
use support::console::{find, until};
use support::relay::{both_ways, listen};
use support::{
    Certs, Message, PATIENCE, PgOptions, Postgres, Proxy, Raw, Step, cancel_packet, outline, poll,
};

fn build(parts: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    parts(&mut out);
    out
}

fn send_query(raw: &mut Raw, sql: &str) {
    raw.send(&build(|o| f::put_query(o, sql.as_bytes())));
}

fn error(messages: &[Message]) -> String {
    let error = messages.iter().find(|m| m.tag == b::ERROR_RESPONSE);
    error.unwrap_or_else(|| panic!("no error: {}", outline(messages))).sqlstate()
}

fn sleeps(server: &Postgres, database: &str) {
    let sleeping = format!(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = '{database}' AND wait_event = 'PgSleep'"
    );
    server.wait_until("postgres", &sleeping);
}

fn lock(key: u8) -> String {
    format!("SELECT 'locked' FROM pg_advisory_xact_lock({key})")
}

/// A session of the server's own with that lock: [`lock`] waits for it.
fn held_lock(server: &Postgres, database: &str, key: u8) -> Raw {
    let mut holder = Raw::login(server.port(), database);
    holder.rows(&format!("SELECT pg_advisory_lock({key})"));
    holder
}

fn waits_for_lock(server: &Postgres, database: &str) {
    let waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = ";
    server.wait_until("postgres", &format!("{waits}'{database}'"));
}

#[test]
fn a_statement_is_cancelled_in_every_mode() {
    let server = Postgres::shared();
    for mode in ["session", "transaction", "statement"] {
        let database = server.fresh_database("");
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\""), "", "");
        let mut raw = Raw::login(proxy.port(), &database);
        for _ in 0..3 {
            send_query(&mut raw, "SELECT pg_sleep(600)");
            sleeps(server, &database);
            raw.cancel(proxy.port());
            assert_eq!(error(&raw.read_until_ready()), "57014");
            assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
        }
    }
}

#[test]
fn the_process_id_that_a_client_was_told_is_nobody_elses() {
    let server = Postgres::shared();
    for general in ["pool_mode = \"transaction\"", "pool_mode = \"statement\"", "peer_id = 1"] {
        let database = server.fresh_database("");
        let proxy = Proxy::to(server, general, "", "");
        let mut raw = Raw::login(proxy.port(), &database);
        // Linux gives none above this.
        assert!(raw.pid > 4_194_304, "{general}: {}", raw.pid);
        let ended = format!("SELECT pg_terminate_backend({})", raw.pid);
        assert_eq!(raw.value(&ended).as_deref(), Some("f"), "{general}");
    }
}

#[test]
fn the_log_tells_of_a_cancel_request_that_the_server_does_not_take() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    // It takes one connection, and no other.
    let door = TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = door.local_addr().expect("address").port();
    let to = server.port();
    std::thread::spawn(move || {
        let (client, _) = door.accept().expect("accept");
        drop(door);
        support::relay::both_ways(client, TcpStream::connect(("127.0.0.1", to)).expect("connect"));
    });
    let proxy = Proxy::to(server, "", &format!("port = {port}"), "[coalesce]\nmode = \"off\"");
    let mut raw = Raw::login(proxy.port(), &database);
    send_query(&mut raw, "SELECT pg_sleep(600)");
    sleeps(server, &database);
    raw.cancel(proxy.port());
    let line = proxy.wait_for_log("cancel request not sent to the server");
    assert!(line.contains("Connection refused") && line.contains(&database), "{line}");
    let ended = "SELECT bool_and(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = ";
    server.psql("postgres", &format!("{ended}'{database}'"));
}

#[test]
fn a_statement_inside_a_block_is_cancelled_and_the_block_fails() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "", "", "");
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("BEGIN");
    send_query(&mut raw, "SELECT pg_sleep(600)");
    sleeps(server, &database);
    raw.cancel(proxy.port());
    assert_eq!(error(&raw.read_until_ready()), "57014");
    assert_eq!(raw.error("SELECT 1").sqlstate(), "25P02");
    raw.rows("ROLLBACK");
}

/// How the way of cancel requests to the server ends before they have come there.
#[derive(Debug, Clone, Copy)]
enum Lost {
    /// After `cancel_wait_timeout`.
    Late,
    /// It is reset.
    Reset,
}

#[test]
fn a_cancel_request_that_comes_after_it_was_given_up_hits_nobody_else() {
    let server = Postgres::shared();
    for lost in [Lost::Late, Lost::Reset] {
        let database = server.fresh_database("");
        let (hand, held) = channel();
        let port = listen(server.port(), move |client, server| {
            let mut packet = vec![0; 512];
            let n = client.peek(&mut packet).expect("a packet");
            packet.truncate(n);
            if packet.get(4..8) != Some(&80_877_102_i32.to_be_bytes()) {
                return support::relay::both_ways(client, server);
            }
            // What is closed and was not read is reset.
            let way = matches!(lost, Lost::Late).then_some(client);
            hand.send((packet, way, server)).expect("somebody waits");
        });
        let general = "default_pool_size = 1\ncancel_wait_timeout = 1";
        let proxy = Proxy::to(server, general, &format!("port = {port}"), "");
        let (mut client, mut other) =
            (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
        // Each statement lasts for as long as it has to.
        let (mut first, mut second) = (held_lock(server, &database, 1), held_lock(server, &database, 2));
        send_query(&mut client, &lock(1));
        waits_for_lock(server, &database);
        let cancel = client.send_cancel(proxy.port());
        let (packet, _way, mut to) = held.recv_timeout(PATIENCE).expect("a cancel request");
        first.rows("SELECT pg_advisory_unlock_all()");
        assert!(client.read_until_ready().iter().all(|m| m.tag != b::ERROR_RESPONSE));
        cancel.into_stream().read_to_end(&mut Vec::new()).expect("the request is given up");
        send_query(&mut other, &lock(2));
        waits_for_lock(server, &database);
        to.write_all(&packet).expect("send");
        let _ = to.read(&mut [0]);
        second.rows("SELECT pg_advisory_unlock_all()");
        let answer = other.read_until_ready();
        assert!(answer.iter().all(|m| m.tag != b::ERROR_RESPONSE), "{lost:?}: {}", outline(&answer));
    }
}

#[test]
fn late_cancel_requests_never_hit_another_client() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let mut victim = Raw::login(proxy.port(), &database);
    let mut a = Raw::login(proxy.port(), &database);
    let (pid, key, port) = (a.pid, a.key.clone(), proxy.port());
    let over = Arc::new(AtomicBool::new(false));
    let storm = {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
                stream.write_all(&cancel_packet(pid, &key)).expect("send");
                let _ = stream.read(&mut [0]);
                sent += 1;
            }
            sent
        })
    };
    let mut hit = 0;
    for n in 0..150 {
        // Its own statements may be cancelled, and nothing worse happens to it.
        let messages = a.query("SELECT 1");
        if let Some(error) = messages.iter().find(|m| m.tag == b::ERROR_RESPONSE) {
            assert_eq!((error.sqlstate(), error.field(b'S')), ("57014".into(), "ERROR".into()));
            hit += 1;
        }
        let messages = victim.query(&format!("INSERT INTO t VALUES ({n}); SELECT pg_sleep(0.001)"));
        assert!(messages.iter().all(|m| m.tag != b::ERROR_RESPONSE), "{}", outline(&messages));
    }
    over.store(true, Ordering::Relaxed);
    assert!(storm.join().expect("the storm") > 10);
    assert_eq!(victim.value("SELECT count(*) FROM t").as_deref(), Some("150"));
    println!("{hit} statements of its own were cancelled");
}

#[test]
fn late_cancel_requests_do_not_cost_a_client_that_sets_things_its_session() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let mut a = Raw::login(proxy.port(), &database);
    let (pid, key, port) = (a.pid, a.key.clone(), proxy.port());
    let over = Arc::new(AtomicBool::new(false));
    let storm = {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
                stream.write_all(&cancel_packet(pid, &key)).expect("send");
                let _ = stream.read(&mut [0]);
            }
        })
    };
    for n in 0..100 {
        // Each is followed by a round trip of ours that asks what was set.
        let messages = a.query(&format!("SET work_mem = '{}MB'", n + 1));
        if let Some(error) = messages.iter().find(|m| m.tag == b::ERROR_RESPONSE) {
            assert_eq!((error.sqlstate(), error.field(b'S')), ("57014".into(), "ERROR".into()));
        }
    }
    over.store(true, Ordering::Relaxed);
    storm.join().expect("the storm");
    a.rows("SET work_mem = '7MB'");
    assert_eq!(a.value("SHOW work_mem").as_deref(), Some("7MB"));
}

#[test]
fn a_statement_that_waits_for_a_connection_is_cancelled_in_the_queue() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let mut holder = Raw::login(proxy.port(), &database);
    let mut raw = Raw::login(proxy.port(), &database);
    holder.rows("BEGIN");
    for extended in [false, true] {
        raw.send(&build(|o| {
            if extended {
                f::put_parse(o, b"", b"SELECT pg_sleep(600)", &[]);
                f::put_bind_text(o, b"", &[]);
                f::put_execute(o, b"", 0);
                f::put_empty(o, f::SYNC);
            } else {
                f::put_query(o, b"SELECT pg_sleep(600)");
            }
        }));
        // A request that comes before it waits does nothing, as direct; so again until one is heard.
        let answered = Arc::new(AtomicBool::new(false));
        let (pid, key, port, done) = (raw.pid, raw.key.clone(), proxy.port(), Arc::clone(&answered));
        let again = std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
                stream.write_all(&cancel_packet(pid, &key)).expect("send");
                let _ = stream.read(&mut [0]);
            }
        });
        let messages = raw.read_until_ready();
        answered.store(true, Ordering::Relaxed);
        again.join().expect("the requests");
        assert_eq!(error(&messages), "57014", "extended: {extended}");
    }
    assert_eq!(
        holder.value("SELECT 1").as_deref(),
        Some("1"),
        "the one who has the connection is not disturbed"
    );
    holder.rows("COMMIT");
    assert_eq!(raw.value("SELECT 2").as_deref(), Some("2"));
}

#[test]
fn a_stale_or_wrong_key_does_nothing() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let gone = Raw::login(proxy.port(), &database);
    let (old_pid, old_key) = (gone.pid, gone.key.clone());
    gone.terminate();
    let mut raw = Raw::login(proxy.port(), &database);
    let mut holder = held_lock(server, &database, 1);
    send_query(&mut raw, &lock(1));
    waits_for_lock(server, &database);
    let mut wrong = raw.key.clone();
    wrong[0] ^= 1;
    for (pid, key) in [
        (old_pid, old_key.as_slice()),
        (raw.pid, &wrong),
        (raw.pid, &raw.key[..3]),
        (raw.pid + 1, &raw.key),
        (raw.pid, &[]),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("connect");
        stream.write_all(&cancel_packet(pid, key)).expect("send");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        if key.len() >= 4 {
            assert!(answer.is_empty(), "nothing is told: {answer:?}");
        }
    }
    holder.rows("SELECT pg_advisory_unlock_all()");
    assert_eq!(raw.read_until_ready()[1].row()[0].as_deref(), Some("locked"));
}

/// Who listens on the way to the server would have the key, and with it whatever runs on that connection.
#[test]
fn a_cancel_request_goes_to_the_server_in_tls_where_its_connection_does() {
    const SSL_REQUEST: u32 = 80_877_103;
    let server = Postgres::start(PgOptions { tls: Some(Certs::new("postgres")), ..PgOptions::default() });
    let (told, codes) = channel();
    let port = listen(server.port(), move |mut client, mut server| {
        let mut head = [0; 8];
        if client.read_exact(&mut head).and_then(|()| server.write_all(&head)).is_ok() {
            let [.., a, b, c, d] = head;
            let _ = told.send(u32::from_be_bytes([a, b, c, d]));
            both_ways(client, server);
        }
    });
    let proxy = Proxy::to(&server, "server_tls_sslmode = \"require\"", &format!("port = {port}"), "");
    let mut raw = Raw::login(proxy.port(), "postgres");
    send_query(&mut raw, "SELECT pg_sleep(600)");
    sleeps(&server, "postgres");
    raw.cancel(proxy.port());
    assert_eq!(error(&raw.read_until_ready()), "57014");
    let first: Vec<u32> = codes.try_iter().collect();
    assert!(first.len() >= 2 && first.iter().all(|code| *code == SSL_REQUEST), "{first:?}");
}

#[test]
fn a_cancel_request_may_come_over_tls() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let certs = Certs::new("postgres");
    let general = format!(
        "client_tls_sslmode = \"prefer\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    let proxy = Proxy::to(server, &general, "", "");
    let mut raw = Raw::login(proxy.port(), &database);
    send_query(&mut raw, "SELECT pg_sleep(600)");
    sleeps(server, &database);
    let whole = cancel_packet(raw.pid, &raw.key);
    // Nor is one told anything that is none.
    let short = [&[0, 0, 0, 15], &whole[4..15]].concat();
    for packet in [short, whole] {
        let mut stream = tls_to(proxy.port(), &certs);
        stream.write_all(&packet).expect("send");
        // libpq's PQcancelBlocking takes an end without TLS's own for an error.
        assert_eq!(stream.read(&mut [0]).expect("it is closed in TLS"), 0);
    }
    assert_eq!(error(&raw.read_until_ready()), "57014");
}

/// TLS, asked for as a client does.
pub(crate) fn tls_to(port: u16, certs: &Certs) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(&certs.ca).expect("authority");
    let ca =
        <rustls::pki_types::CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(&pem);
    roots.add(ca.expect("a certificate")).expect("root");
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let tls = rustls::ClientConnection::new(Arc::new(config), name).expect("TLS");
    let mut tcp = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    tcp.write_all(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]).expect("SSLRequest");
    let mut answer = [0];
    tcp.read_exact(&mut answer).expect("answer");
    assert_eq!(answer, *b"S");
    rustls::StreamOwned::new(tls, tcp)
}

#[test]
fn protocol_3_2_has_a_longer_key_and_it_works() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "", "", "");
    let mut raw = Raw::connect(proxy.port());
    raw.startup(3 << 16 | 2, &[("user", "postgres"), ("database", &database)]);
    raw.authenticate("postgres", "").unwrap_or_else(|e| panic!("{}", e.outline()));
    assert_eq!(raw.key.len(), 32);
    send_query(&mut raw, "SELECT pg_sleep(600)");
    sleeps(server, &database);
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("connect");
    stream.write_all(&cancel_packet(raw.pid, &raw.key[..31])).expect("send");
    let _ = stream.read(&mut [0]);
    raw.cancel(proxy.port());
    assert_eq!(error(&raw.read_until_ready()), "57014");
}

/// Rows whose flush waits for a server connection are nobody's yet: a cancel request takes them back at once, and nothing of them
/// comes with the flush, nor does what the client sends next.
#[test]
fn rows_whose_flush_waits_for_a_connection_are_cancelled_at_once() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let (mut busy, mut raw) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
    let rows = |from: usize| {
        let rows = (from..from + 12).map(|n| [n.to_string(), "x".to_owned()]);
        Step::pipeline("INSERT INTO t VALUES ($1, $2)", rows, false)
    };
    let known = [("database", database.as_str()), ("eligible", "yes")];
    poll(PATIENCE, || {
        raw.send(&rows(0).bytes);
        raw.read_until_ready();
        find(&mut console, "SHOW COALESCE_TABLES", &known)
    });
    busy.rows("BEGIN; DELETE FROM t");
    raw.send(&rows(100).bytes);
    until(&mut console, "SHOW CLIENTS", &[("state", "coalescing")]);
    raw.cancel(proxy.port());
    assert_eq!(error(&raw.read_until_ready()), "57014");
    raw.send(&rows(200).bytes);
    until(&mut console, "SHOW CLIENTS", &[("state", "coalescing")]);
    busy.rows("COMMIT");
    let said = raw.read_until_ready();
    assert!(said.iter().all(|m| m.tag != b::ERROR_RESPONSE), "{}", outline(&said));
    assert_eq!(raw.value("SELECT concat(count(*), min(a)) FROM t").as_deref(), Some("12200"));
}

/// A flush that failed and waits for a connection to go again hears its clients as the first time.
#[test]
fn rows_that_go_again_are_cancelled_while_they_wait() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let [mut busy, mut next, mut raw] = [(); 3].map(|()| Raw::login(proxy.port(), &database));
    let rows = |from: usize| {
        let rows = (from..from + 12).map(|n| [n.to_string(), "x".to_owned()]);
        Step::pipeline("INSERT INTO t VALUES ($1, $2)", rows, false)
    };
    let known = [("database", database.as_str()), ("eligible", "yes")];
    poll(PATIENCE, || {
        raw.rows("TRUNCATE t");
        raw.send(&rows(0).bytes);
        raw.read_until_ready();
        find(&mut console, "SHOW COALESCE_TABLES", &known)
    });
    busy.rows("BEGIN; INSERT INTO t VALUES (105)");
    // The batch waits for the connection, and behind it a client that keeps it.
    raw.send(&rows(100).bytes);
    until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", "1")]);
    send_query(&mut next, "BEGIN; SELECT 1");
    until(&mut console, "SHOW POOLS", &[("database", &database), ("cl_waiting", "2")]);
    busy.rows("COMMIT");
    until(&mut console, "SHOW COALESCE_FLUSHES", &[("outcome", "failed"), ("sqlstate", "23505")]);
    next.read_until_ready();
    raw.cancel(proxy.port());
    assert_eq!(error(&raw.read_until_ready()), "57014");
    next.rows("COMMIT");
    assert_eq!(raw.value("SELECT concat(count(*), max(a)) FROM t").as_deref(), Some("13105"));
}

/// A block in one write whose cancel request comes before a server does: what follows its BEGIN must not run without it.
#[test]
fn a_block_that_is_cancelled_in_the_queue_fails_inside() {
    let server = Postgres::shared();
    for coalesce in ["on", "off"] {
        let database = server.fresh_database("CREATE TABLE t (a int)");
        let coalesce = format!("[coalesce]\nmode = \"{coalesce}\"");
        let proxy = Proxy::to(server, "default_pool_size = 1", "", &coalesce);
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let (mut busy, mut raw) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
        let statements = ["BEGIN", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "COMMIT"];
        for step in [Step::query as fn(&str) -> Step, |sql| Step::extended(sql, &[])] {
            busy.rows("BEGIN; SELECT 1");
            raw.send(&statements.iter().flat_map(|sql| step(sql).bytes).collect::<Vec<_>>());
            // As it was sent, or as a batch that waits itself.
            let mut waits = |state| find(&mut console, "SHOW CLIENTS", &[("state", state)]);
            poll(PATIENCE, || ["waiting", "coalescing"].into_iter().find_map(&mut waits)).expect("it waits");
            raw.cancel(proxy.port());
            busy.rows("COMMIT");
            let said: Vec<_> = statements.iter().map(|_| raw.read_until_ready()).collect();
            let first = |messages: &[Message]| {
                let told = |m: &&Message| matches!(m.tag, b::COMMAND_COMPLETE | b::ERROR_RESPONSE);
                let told = messages.iter().find(told).expect("an answer");
                if told.tag == b::ERROR_RESPONSE { told.sqlstate() } else { told.command() }
            };
            let said: Vec<_> = said.iter().map(|messages| first(messages)).collect();
            assert_eq!(said, ["BEGIN", "57014", "25P02", "ROLLBACK"]);
            // One that stands alone is itself cancelled.
            busy.rows("BEGIN; SELECT 1");
            raw.send(&step("BEGIN").bytes);
            until(&mut console, "SHOW CLIENTS", &[("state", "waiting")]);
            raw.cancel(proxy.port());
            assert_eq!(error(&raw.read_until_ready()), "57014");
            busy.rows("COMMIT");
            assert_eq!(raw.value("SELECT count(*) FROM t").as_deref(), Some("0"));
        }
    }
}

/// Two tables that the same values fit into, and an INSERT for each.
const TABLES: &str = "CREATE TABLE old (a int PRIMARY KEY); CREATE TABLE new (a int PRIMARY KEY)";
const OLD: &str = "INSERT INTO old VALUES ($1)";
const NEW: &str = "INSERT INTO new VALUES ($1)";

/// `raw` has the statement `name` for the table `old`, bound once.
fn has_old(raw: &mut Raw, name: &str) {
    raw.send(&build(|o| {
        f::put_parse(o, name.as_bytes(), OLD.as_bytes(), &[]);
        f::put_empty(o, f::SYNC);
    }));
    raw.read_until_ready();
    raw.send(&Step::execute(name, &[Some("-1")]).bytes);
    assert!(tags(&raw.read_until_ready()).contains('C'));
}

fn tags(messages: &[Message]) -> String {
    messages.iter().map(|m| char::from(m.tag)).collect()
}

/// What is told as cancelled has done to names what it would have done directly: no statement that stood before it takes the place
/// of the one that was not parsed.
#[test]
fn names_are_not_what_they_were_before_a_unit_that_was_cancelled_in_the_queue() {
    let server = Postgres::shared();
    let parse = |o: &mut Vec<u8>, name: &str| f::put_parse(o, name.as_bytes(), NEW.as_bytes(), &[]);
    let run = |o: &mut Vec<u8>, name: &str| {
        f::put_bind_text(o, name.as_bytes(), &[Some(b"1")]);
        f::put_execute(o, b"", 0);
    };
    let sync = |o: &mut Vec<u8>| f::put_empty(o, f::SYNC);
    let closes = |o: &mut Vec<u8>| f::put_target(o, f::CLOSE, b'S', b"st");
    // The messages, of which statement, what they are told, and what a Bind of it is told then.
    let cases: [(Vec<u8>, &str, &str, &str); 6] = [
        (build(|o| (parse(o, ""), sync(o)).1), "", "EZ", "26000"),
        (build(|o| (parse(o, ""), run(o, ""), sync(o)).2), "", "EZ", "26000"),
        (build(|o| f::put_query(o, b"INSERT INTO new VALUES (1)")), "", "EZ", "26000"),
        (build(|o| (closes(o), parse(o, "st"), run(o, "st"), sync(o)).3), "st", "3EZ", "26000"),
        (build(|o| (run(o, ""), sync(o)).1), "", "EZ", ""),
        (build(|o| (parse(o, "other"), run(o, "other"), sync(o)).2), "st", "EZ", ""),
    ];
    for mode in ["on", "off"] {
        let database = server.fresh_database(TABLES);
        let proxy = Proxy::to(server, "default_pool_size = 1", "", &format!("[coalesce]\nmode = \"{mode}\""));
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let mut busy = Raw::login(proxy.port(), &database);
        for (messages, name, told, then) in &cases {
            let mut raw = Raw::login(proxy.port(), &database);
            has_old(&mut raw, name);
            busy.rows("BEGIN; SELECT 1");
            raw.send(messages);
            let mut waits = |state| find(&mut console, "SHOW CLIENTS", &[("state", state)]);
            poll(PATIENCE, || ["waiting", "coalescing"].into_iter().find_map(&mut waits)).expect("it waits");
            raw.cancel(proxy.port());
            let said = raw.read_until_ready();
            assert_eq!((tags(&said).as_str(), error(&said).as_str()), (*told, "57014"), "{mode}");
            busy.rows("COMMIT");
            raw.send(&Step::execute(name, &[Some("2")]).bytes);
            let said = raw.read_until_ready();
            let failed = said.iter().find(|m| m.tag == b::ERROR_RESPONSE).map(Message::sqlstate);
            assert_eq!(failed.unwrap_or_default(), *then, "{mode}: {told}");
            raw.terminate();
            let rows = busy.rows("DELETE FROM old RETURNING a").len();
            assert_eq!(rows, if then.is_empty() { 2 } else { 1 }, "{mode}: {told}");
        }
        assert_eq!(busy.value("SELECT count(*) FROM new").as_deref(), Some("0"), "{mode}");
    }
}

/// The same of a run inside a block, and of a pipeline whose rows are on their way.
#[test]
fn names_are_not_what_they_were_before_rows_that_were_cancelled_on_their_way() {
    let server = Postgres::shared();
    let database = server.fresh_database(TABLES);
    let proxy = Proxy::to(server, "default_pool_size = 4", "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut raw = Raw::login(proxy.port(), &database);
    let rows = |from: usize| {
        build(|o| {
            f::put_parse(o, b"", NEW.as_bytes(), &[]);
            for n in from..from + 12 {
                f::put_bind_text(o, b"", &[Some(n.to_string().as_bytes())]);
                f::put_execute(o, b"", 0);
            }
            f::put_empty(o, f::SYNC);
        })
    };
    let known = [("database", database.as_str()), ("table", "public.new"), ("eligible", "yes")];
    poll(PATIENCE, || {
        raw.rows("TRUNCATE new");
        raw.send(&rows(100));
        raw.read_until_ready();
        find(&mut console, "SHOW COALESCE_TABLES", &known)
    });
    raw.send(&Step::prepare("back", "ROLLBACK").bytes);
    raw.read_until_ready();
    let mut rival = Raw::login(server.port(), &database);
    for in_block in [true, false] {
        rival.rows("BEGIN; INSERT INTO new VALUES (5)");
        if in_block {
            raw.rows("BEGIN");
        }
        has_old(&mut raw, "");
        raw.send(&rows(0));
        let waits = "SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid)
            WHERE NOT granted AND locktype = 'transactionid' AND datname = current_database()";
        server.wait_until(&database, waits);
        // A flush that waits is void for the one who cancels, or goes again: then it is heard.
        while !raw.has_answer() {
            raw.cancel(proxy.port());
        }
        assert_eq!(error(&raw.read_until_ready()), "57014");
        rival.rows("ROLLBACK");
        if in_block {
            raw.send(&Step::execute("back", &[]).bytes);
            raw.read_until_ready();
        }
        raw.send(&Step::execute("", &[Some("9")]).bytes);
        let said = raw.read_until_ready();
        let failed = said.iter().any(|m| m.tag == b::ERROR_RESPONSE);
        let stored = rival.rows("DELETE FROM old RETURNING a");
        assert_eq!(stored, if in_block { vec![] } else { vec![vec![Some("-1".to_owned())]] });
        let new = rival.value("SELECT count(*) FROM new WHERE a = 9");
        assert_eq!(new.as_deref(), Some(if failed { "0" } else { "1" }), "{}", outline(&said));
        rival.rows("DELETE FROM new WHERE a < 50");
    }
}

/// Its client hears of it when it has a connection, and goes on behind its Sync.
#[test]
fn a_unit_whose_end_is_not_here_is_cancelled_in_the_queue_without_an_end_of_the_session() {
    let server = Postgres::shared();
    let database = server.fresh_database(TABLES);
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let (mut busy, mut raw) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
    has_old(&mut raw, "");
    busy.rows("BEGIN; SELECT 1");
    raw.send(&build(|o| {
        f::put_parse(o, b"", b"SELECT 1", &[]);
        f::put_target(o, f::DESCRIBE, b'S', b"");
        f::put_empty(o, f::FLUSH);
    }));
    until(&mut console, "SHOW CLIENTS", &[("state", "waiting")]);
    let cancel = raw.send_cancel(proxy.port());
    cancel.into_stream().read_to_end(&mut Vec::new()).expect("the request is taken");
    busy.rows("COMMIT");
    assert_eq!(error(&raw.read_until(b::ERROR_RESPONSE)), "57014");
    raw.send(&build(|o| f::put_empty(o, f::SYNC)));
    assert_eq!(tags(&raw.read_until_ready()), "Z");
    raw.send(&Step::execute("", &[Some("2")]).bytes);
    assert_eq!(error(&raw.read_until_ready()), "26000");
    assert_eq!(raw.value("SELECT 3").as_deref(), Some("3"));
}
