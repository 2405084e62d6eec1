//! Several processes behind one address: a cancel request finds the one whose client it is for, and nothing else does.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::support;
use pgsluice::wire::{backend as b, frontend as f};
use support::console::{find, show, tell, until};
use support::{Certs, PATIENCE, Postgres, Proxy, Raw, cancel_packet, client_command, poll, relay};

/// Sends a request; it is done with when the connection closes. Nothing is ever answered.
fn request(port: u16, pid: i32, key: &[u8]) {
    let mut stream = send(port, pid, key);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
}

fn send(port: u16, pid: i32, key: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(&cancel_packet(pid, key)).expect("send");
    stream
}

fn sleep(server: &Postgres, raw: &mut Raw, database: &str) {
    let mut query = Vec::new();
    f::put_query(&mut query, b"SELECT pg_sleep(600)");
    raw.send(&query);
    let sleeping = format!(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = '{database}' AND wait_event = 'PgSleep'"
    );
    server.wait_until("postgres", &sleeping);
}

fn cancelled(raw: &mut Raw) {
    let messages = raw.read_until_ready();
    let error = messages.iter().find(|m| m.tag == b::ERROR_RESPONSE).expect("an error");
    assert_eq!(error.sqlstate(), "57014");
}

/// Whose client was told these, as docs/config.md has it.
fn peer_of(raw: &Raw) -> u8 {
    if raw.key.len() == 4 { raw.pid.to_be_bytes()[1] } else { raw.key[0] }
}

/// A key that names a peer and may be passed on so often.
fn forged(peer_id: u8, bytes: usize, hops: u8) -> (i32, Vec<u8>) {
    let mut key = vec![0xa4; bytes];
    key[bytes - 1] = 0xa4 | hops;
    if bytes == 4 {
        return (i32::from_be_bytes([7, peer_id, 0, 7]), key);
    }
    (key[0], key[1]) = (peer_id, 0);
    (77, key)
}

/// Two processes on one port, with a socket directory each.
struct Pair {
    proxies: [Proxy; 2],
    dir: tempfile::TempDir,
}

impl Pair {
    fn start(server: &Postgres, mode: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("pgsluice-peers-").tempdir().expect("directory");
        let own = |id: u8| dir.path().join(id.to_string());
        let config = |id: u8| {
            std::fs::create_dir(own(id)).expect("directory");
            let general = format!(
                "pool_mode = \"{mode}\"\nso_reuseport = true\npeer_id = {id}\nunix_socket_dir = {:?}",
                own(id)
            );
            let peers = [1, 2].map(|id| format!("[peers.{id}]\nhost = {:?}\nport = @PORT@\n", own(id)));
            Proxy::config(server, &general, "", &peers.concat())
        };
        let first = Proxy::start(&config(1));
        let second = Proxy::start_beside(first.port(), &config(2));
        Self { proxies: [first, second], dir }
    }

    fn port(&self) -> u16 {
        self.proxies[0].port()
    }

    fn socket(&self, id: u8) -> PathBuf {
        self.dir.path().join(id.to_string()).join(format!(".s.PGSQL.{}", self.port()))
    }

    /// The kernel chooses the process: again until it is that one.
    fn login_at(&self, id: u8, minor: u32, database: &str) -> Raw {
        let client = (0..200).find_map(|_| {
            let mut raw = Raw::connect(self.port());
            raw.startup(3 << 16 | minor, &[("user", "postgres"), ("database", database)]);
            raw.authenticate("postgres", "").unwrap_or_else(|e| panic!("{}", e.outline()));
            (peer_of(&raw) == id).then_some(raw)
        });
        client.unwrap_or_else(|| panic!("no client ever came to process {id}"))
    }
}

fn request_at(socket: &Path, raw: &Raw) {
    let mut stream = UnixStream::connect(socket).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(&cancel_packet(raw.pid, &raw.key)).expect("send");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("closed when it is done with");
    assert!(answer.is_empty(), "{answer:?}");
}

#[test]
fn a_request_that_reaches_the_other_process_cancels() {
    let server = Postgres::shared();
    for mode in ["session", "transaction"] {
        let pair = Pair::start(server, mode);
        for (id, other) in [(1, 2), (2, 1)] {
            for (minor, bytes) in [(0, 4), (2, 32)] {
                let database = server.fresh_database("");
                let mut raw = pair.login_at(id, minor, &database);
                assert_eq!(raw.key.len(), bytes);
                if (mode, minor) == ("session", 2) {
                    let own = raw.value("SELECT pg_backend_pid()").expect("a process id");
                    assert_eq!(raw.pid.to_string(), own, "a long key leaves the process id alone");
                }
                for at in [other, id] {
                    sleep(server, &mut raw, &database);
                    request_at(&pair.socket(at), &raw);
                    cancelled(&mut raw);
                }
                assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
            }
        }
    }
}

#[test]
fn on_a_shared_port_no_request_is_lost() {
    let server = Postgres::shared();
    let pair = Pair::start(server, "transaction");
    let mut seen = [0; 2];
    for _ in 0..20 {
        let database = server.fresh_database("");
        let mut raw = Raw::login(pair.port(), &database);
        seen[usize::from(peer_of(&raw)) - 1] += 1;
        sleep(server, &mut raw, &database);
        raw.cancel(pair.port());
        cancelled(&mut raw);
    }
    assert!(seen.iter().all(|n| *n > 0), "both processes had clients: {seen:?}");
}

#[test]
fn a_process_that_waits_for_its_clients_leaves_the_port_to_the_other() {
    let server = Postgres::shared();
    let mut pair = Pair::start(server, "transaction");
    let database = server.fresh_database("");
    let user = [("user", "postgres"), ("database", database.as_str())];
    let mut stays = pair.login_at(1, 0, &database);
    // Some of these are the first one's, and have not said yet who they are.
    let mut began: Vec<Raw> = (0..20).map(|_| Raw::connect(pair.port())).collect();
    pair.login_at(1, 0, "pgsluice").rows("SHUTDOWN WAIT_FOR_CLIENTS");
    pair.proxies[0].wait_for_log("left to others");
    for _ in 0..20 {
        assert_eq!(peer_of(&Raw::login(pair.port(), &database)), 2);
    }
    for raw in &mut began {
        raw.startup(3 << 16, &user);
        raw.authenticate("postgres", "").unwrap_or_else(|e| panic!("{}", e.outline()));
    }
    assert!(began.iter().any(|raw| peer_of(raw) == 1), "one that came before");
    // A request for whom it waits for still finds the way, by the other.
    sleep(server, &mut stays, &database);
    stays.cancel(pair.port());
    cancelled(&mut stays);
    stays.terminate();
    began.into_iter().for_each(Raw::terminate);
    assert!(pair.proxies[0].wait_end().success());
}

/// Nobody else is there to wait for.
#[test]
fn who_had_connected_is_served_also_behind_the_last_client() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let mut proxy = Proxy::to(server, "so_reuseport = true", "", "");
    let mut before: Vec<Raw> = (0..20).map(|_| Raw::connect(proxy.port())).collect();
    tell(&mut Raw::login(proxy.port(), "pgsluice"), "SHUTDOWN WAIT_FOR_CLIENTS");
    proxy.wait_for_log("left to others");
    for raw in &mut before {
        raw.startup(3 << 16, &[("user", "postgres"), ("database", &database)]);
        raw.authenticate("postgres", "").unwrap_or_else(|e| panic!("{}", e.outline()));
        assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
    }
    before.into_iter().for_each(Raw::terminate);
    assert!(proxy.wait_end().success());
}

/// As a service manager restarts it.
#[test]
fn the_queue_of_a_port_that_was_handed_over_is_the_next_process_s() {
    let server = Postgres::shared();
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let port = listener.local_addr().expect("address").port();
    // Where it is told to listen does not count.
    let config = Proxy::config(server, "listen_addr = \"192.0.2.1\"", "", "");
    let start = || Proxy::start_handed(port, listener.try_clone().expect("clone").into(), &config);
    let mut first = start();
    let mut inside = Raw::login(port, "postgres");
    inside.rows("BEGIN");
    first.terminate();
    first.wait_for_log("left to others");
    let mut waits = Raw::connect(port);
    waits.startup(3 << 16, &[("user", "postgres"), ("database", "postgres")]);
    let mut commit = Vec::new();
    f::put_query(&mut commit, b"COMMIT");
    inside.send(&commit);
    assert!(inside.read_until_closed().iter().any(|m| m.command() == "COMMIT"));
    assert!(first.wait_end().success());
    let _next = start();
    waits.authenticate("postgres", "").unwrap_or_else(|e| panic!("{}", e.outline()));
    assert_eq!(waits.value("SELECT 1").as_deref(), Some("1"));
}

#[test]
fn a_socket_that_was_handed_over_keeps_its_file() {
    let server = Postgres::shared();
    let dir = tempfile::Builder::new().prefix("pgsluice-handed-").tempdir().expect("directory");
    let path = dir.path().join(".s.PGSQL.5432");
    let listener = UnixListener::bind(&path).expect("bind");
    let mut proxy = Proxy::start_handed(5432, listener.into(), &Proxy::config(server, "", "", ""));
    let dsn = format!("host={} user=postgres dbname=postgres", dir.path().display());
    let mut psql = client_command("psql");
    assert_eq!(support::child::run(psql.args(["-XAtc", "SELECT 1", &dsn])).trim(), "1");
    proxy.terminate();
    assert!(proxy.wait_end().success() && path.exists());
}

/// One process whose peer 2 is at `port`.
fn with_peer(server: &Postgres, port: u16, general: &str, peer: &str) -> Proxy {
    let peers = format!(
        "[peers.2]\nhost = \"127.0.0.1\"\nport = {port}\n{peer}\n[peers.1]\nhost = \"nowhere.invalid\""
    );
    let general = format!("peer_id = 1\nserver_tls_sslmode = \"disable\"\n{general}");
    Proxy::to(server, &general, "", &peers)
}

#[test]
fn what_names_no_peer_is_passed_on_to_nobody() {
    let server = Postgres::shared();
    let peer = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let proxy = with_peer(server, peer.local_addr().expect("address").port(), "", "");
    for bytes in [4, 32, 256] {
        // Somebody unknown, nobody, a client of its own that it does not have, one that came too far.
        for (peer_id, hops) in [(3, 3), (0, 3), (1, 3), (2, 0)] {
            let (pid, key) = forged(peer_id, bytes, hops);
            request(proxy.port(), pid, &key);
        }
        let (pid, key) = forged(2, bytes, 3);
        let asking = send(proxy.port(), pid, &key);
        let (mut stream, _) = peer.accept().expect("a connection");
        let (pid, key) = forged(2, bytes, 2);
        let mut got = vec![0; 12 + bytes];
        stream.read_exact(&mut got).expect("a request");
        assert_eq!(got, cancel_packet(pid, &key), "the first that came is the one that may, with a hop less");
        drop((stream, asking));
    }
}

/// Somebody between a process and its peer at `port`: where to find them, and what each connection began with.
fn overheard(port: u16) -> (u16, mpsc::Receiver<[u8; 8]>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let between = listener.local_addr().expect("address").port();
    let (heard, beginnings) = mpsc::channel();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut beginning = [0; 8];
            client.read_exact(&mut beginning).expect("a beginning");
            let mut server = TcpStream::connect(("127.0.0.1", port)).expect("connect");
            server.write_all(&beginning).expect("send");
            let _ = heard.send(beginning);
            relay::both_ways(client, server);
        }
    });
    (between, beginnings)
}

#[test]
fn a_request_is_passed_on_in_tls_to_a_peer_that_shows_who_it_is() {
    let server = Postgres::shared();
    let (certs, others) = (Certs::new("postgres"), Certs::new("postgres"));
    let general = format!(
        "peer_id = 2\nclient_tls_sslmode = \"allow\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    let owner = Proxy::to(server, &general, "", "[peers.1]\nhost = \"nowhere.invalid\"");
    let (between, beginnings) = overheard(owner.port());
    let database = server.fresh_database("");
    let mut raw = Raw::login(owner.port(), &database);
    for (authority, is_its_own) in [(&certs.ca, true), (&others.ca, false)] {
        let general =
            format!("peer_id = 1\nserver_tls_sslmode = \"verify-full\"\nserver_tls_ca_file = {authority:?}");
        let peers = format!("[peers.2]\nhost = \"127.0.0.1\"\nport = {between}");
        let other = Proxy::to(server, &general, "", &peers);
        sleep(server, &mut raw, &database);
        request(other.port(), raw.pid, &raw.key);
        assert_eq!(beginnings.recv_timeout(PATIENCE), Ok([0, 0, 0, 8, 4, 210, 22, 47]), "an SSLRequest");
        if !is_its_own {
            other.wait_for_log("cancel request not passed on");
            raw.cancel(owner.port());
        }
        cancelled(&mut raw);
    }
    // In clear goes nothing, where TLS is asked for and the peer has none.
    let owner = Proxy::to(server, "peer_id = 2", "", "[peers.1]\nhost = \"nowhere.invalid\"");
    let peers = format!("[peers.2]\nhost = \"127.0.0.1\"\nport = {}", owner.port());
    let other = Proxy::to(server, "peer_id = 1\nserver_tls_sslmode = \"require\"", "", &peers);
    let mut raw = Raw::login(owner.port(), &database);
    sleep(server, &mut raw, &database);
    request(other.port(), raw.pid, &raw.key);
    other.wait_for_log("cancel request not passed on");
    raw.cancel(owner.port());
    cancelled(&mut raw);
}

#[test]
fn a_loop_of_peers_ends_after_three_steps() {
    let server = Postgres::shared();
    let (target, steps) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let proxy = with_peer(server, listener.local_addr().expect("address").port(), "", "");
    target.store(proxy.port().into(), Ordering::Relaxed);
    let counted = Arc::clone(&steps);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::Relaxed);
            let proxy = u16::try_from(target.load(Ordering::Relaxed)).expect("a port");
            let server = TcpStream::connect(("127.0.0.1", proxy)).expect("connect");
            relay::both_ways(client, server);
        }
    });
    for (hops, expected) in [(3, 3), (1, 1), (0, 0)] {
        steps.store(0, Ordering::Relaxed);
        let (pid, key) = forged(2, 32, hops);
        request(proxy.port(), pid, &key);
        assert_eq!(steps.load(Ordering::Relaxed), expected);
    }
}

#[test]
fn a_peer_that_is_gone_is_said_and_costs_others_nothing() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let gone = TcpListener::bind(("127.0.0.1", 0)).expect("bind").local_addr().expect("address").port();
    let proxy = with_peer(server, gone, "", "");
    let (pid, key) = forged(2, 4, 3);
    request(proxy.port(), pid, &key);
    let line = proxy.wait_for_log("cancel request not passed on");
    assert!(line.contains("peer_id=2") && line.contains(&gone.to_string()), "{line}");
    let mut raw = Raw::login(proxy.port(), &database);
    sleep(server, &mut raw, &database);
    raw.cancel(proxy.port());
    cancelled(&mut raw);
}

#[test]
fn a_silent_peer_costs_others_nothing() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let port = silent.local_addr().expect("address").port();
    let proxy = with_peer(server, port, "cancel_wait_timeout = 600", "pool_size = 1");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let (pid, key) = forged(2, 4, 3);
    let mut waiting: Vec<TcpStream> = (0..129).map(|_| send(proxy.port(), pid, &key)).collect();
    let counted = [("peer_id", "2"), ("cl_active_cancel_req", "1"), ("cl_waiting_cancel_req", "128")];
    until(&mut console, "SHOW PEER_POOLS", &counted);
    request(proxy.port(), pid, &key);
    let mut raw = Raw::login(proxy.port(), &database);
    sleep(server, &mut raw, &database);
    raw.cancel(proxy.port());
    cancelled(&mut raw);
    // It goes: none is left waiting.
    drop(silent);
    for stream in &mut waiting {
        let _ = stream.read(&mut [0]);
    }
    until(&mut console, "SHOW PEER_POOLS", &[("cl_active_cancel_req", "0"), ("cl_waiting_cancel_req", "0")]);
}

#[test]
fn a_request_waits_for_a_silent_peer_no_longer_than_it_may() {
    let server = Postgres::shared();
    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let port = silent.local_addr().expect("address").port();
    // Without a limit of its own, that of a connection holds.
    for limit in ["cancel_wait_timeout = 1", "cancel_wait_timeout = 0\nserver_connect_timeout = 1"] {
        let proxy = with_peer(server, port, limit, "");
        let (pid, key) = forged(2, 4, 3);
        request(proxy.port(), pid, &key);
        proxy.wait_for_log("cancel request not passed on");
    }
}

#[test]
fn the_console_shows_peers_and_a_reload_changes_them() {
    let server = Postgres::shared();
    let peer = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let port = peer.local_addr().expect("address").port();
    let proxy = Proxy::to(server, "default_pool_size = 7", "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    assert!(show(&mut console, "SHOW PEERS").is_empty() && show(&mut console, "SHOW PEER_POOLS").is_empty());
    let mut before = Raw::login(proxy.port(), "postgres");
    let peers = format!(
        "[peers.1]\nhost = \"localhost\"\n[peers.2]\nhost = \"127.0.0.1\"\nport = {port}\npool_size = 3"
    );
    proxy.reload(&Proxy::config(server, "default_pool_size = 7\npeer_id = 1", "", &peers));
    until(&mut console, "SHOW LISTS", &[("list", "peers"), ("items", "2")]);
    assert!(find(&mut console, "SHOW LISTS", &[("list", "peer_pools"), ("items", "1")]).is_some());
    for row in [["1", "localhost", "6432", "7"], ["2", "127.0.0.1", &port.to_string(), "3"]] {
        let row: Vec<_> = ["peer_id", "host", "port", "pool_size"].into_iter().zip(row).collect();
        assert!(find(&mut console, "SHOW PEERS", &row).is_some(), "{row:?}");
    }
    // Who was told another kind of key before is still found.
    before.send(&{
        let mut query = Vec::new();
        f::put_query(&mut query, b"SELECT pg_sleep(600)");
        query
    });
    before.cancel_until_answered(proxy.port());
    cancelled(&mut before);
    let after = Raw::login(proxy.port(), "postgres");
    assert_eq!(peer_of(&after), 1);
    let reached = poll(PATIENCE, || {
        let (pid, key) = forged(2, 32, 3);
        let _asking = send(proxy.port(), pid, &key);
        peer.accept().ok()
    });
    assert!(reached.is_some());
}
