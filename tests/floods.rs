//! Crowds that want no answer: whoever sends nothing, or sends it slowly, or asks for too much, keeps nobody out and
//! costs little.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support;
use pgsluice::limits::{AUTH_MESSAGE_BYTES_MAX, CANCELS_PER_SERVER_MAX, LOGIN_PIECE_BYTES};
use pgsluice::wire::{TransactionStatus, backend as b, frontend as f};
use support::{Certs, Message, PATIENCE, Postgres, Proxy, Raw, client_command, poll};

const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// The first bytes of a ClientHello of 512 bytes.
const HALF_A_HELLO: [u8; 9] = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc];

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

fn silent(proxy: &Proxy, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| connect(proxy)).collect()
}

fn login(proxy: &Proxy, database: &str) -> Result<Raw, Message> {
    Raw::login_as(proxy.port(), &[("user", "postgres"), ("database", database)], "")
}

fn with_a_userlist(server: &Postgres, general: &str) -> Proxy {
    let config = Proxy::config(server, &format!("{general}\nauth_file = \"userlist.txt\""), "", "");
    Proxy::start_with(&config, &[("userlist.txt", "\"postgres\" \"secret\"\n")])
}

#[test]
fn five_hundred_silent_connections_keep_no_client_out() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general = "max_login_conn = 400\nmax_client_conn = 20\nclient_login_timeout = 600";
    let mut proxy = Proxy::to(server, general, "", "");
    let crowd = silent(&proxy, 500);
    // They fill every place of those who log in, and none of those who have.
    let mut clients: Vec<Raw> = (0..20).map(|_| login(&proxy, &database).expect("a place")).collect();
    let refused = login(&proxy, &database).err().expect("one too many");
    assert_eq!(refused.sqlstate(), "53300");
    assert!(refused.field(b'M').contains("max_client_conn"), "{}", refused.outline());
    let more = silent(&proxy, 100);
    assert_eq!(clients[0].value("SELECT 42").as_deref(), Some("42"));
    clients.pop().expect("a client").terminate();
    let again = poll(PATIENCE, || login(&proxy, &database).ok());
    assert!(again.is_some(), "the place that was left is not taken by who never logs in");
    assert!(proxy.alive());
    proxy.wait_for_log("max_login_conn");
    drop((crowd, more));
}

/// Whoever fills the places of the network, or waits there for a lookup that has no answer: an operator comes by the Unix socket.
#[test]
fn who_has_not_logged_in_over_the_network_takes_no_place_of_the_unix_socket() {
    let general = "max_login_conn = 1\nclient_login_timeout = 600\nunix_socket_dir = \"@DIR@\"";
    let proxy = Proxy::to(Postgres::shared(), general, "", "");
    let held = silent(&proxy, 1);
    let dsn = format!("host={} port={} user=postgres dbname=pgsluice", proxy.dir().display(), proxy.port());
    let lists = || {
        let psql = client_command("psql").args(["-XAtc", "SHOW LISTS", &dsn]).output().expect("psql");
        String::from_utf8_lossy(&psql.stdout).into_owned()
    };
    // Nobody had to go for it.
    assert!(poll(PATIENCE, || lists().contains("login_clients|1").then_some(())).is_some(), "{}", lists());
    drop(held);
}

#[test]
fn half_open_tls_handshakes_keep_no_client_out() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let certs = Certs::new("postgres");
    let general = format!(
        "max_login_conn = 100\nclient_login_timeout = 600\nclient_tls_sslmode = \"require\"\n\
         client_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    let mut proxy = Proxy::to(server, &general, "", "");
    let mut crowd = silent(&proxy, 150);
    for (n, stream) in crowd.iter_mut().enumerate() {
        // Direct TLS, and TLS that was asked for.
        let hello = if n % 2 == 0 { HALF_A_HELLO.to_vec() } else { SSL_REQUEST.to_vec() };
        stream.write_all(&hello).expect("write");
    }
    let dsn = format!("host=127.0.0.1 port={} user=postgres dbname={database} sslmode=require", proxy.port());
    let psql = client_command("psql").args(["-XAtc", "SELECT 42", &dsn]).output().expect("psql");
    assert_eq!(String::from_utf8_lossy(&psql.stdout).trim(), "42", "{psql:?}");
    assert!(proxy.alive());
    drop(crowd);
}

/// Says `bytes` one at a time, for as long as it is listened to; what it hears at the end.
fn slowly(stream: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    for byte in bytes {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    heard
}

/// What follows never ends on its own: only the time limit ends it.
#[test]
fn byte_by_byte_does_not_outlast_client_login_timeout() {
    let server = Postgres::shared();
    let certs = Certs::new("postgres");
    let general = format!(
        "client_login_timeout = 1\nauth_type = \"plain\"\nclient_tls_sslmode = \"prefer\"\n\
         client_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    let mut proxy = with_a_userlist(server, &general);
    let says = |heard: &[u8]| String::from_utf8_lossy(heard).contains("client_login_timeout");

    let mut startup = vec![0, 0, 0x27, 0x0f, 0, 3, 0, 0];
    startup.extend_from_slice(b"user\0");
    startup.resize(5000, b'x');
    assert!(says(&slowly(&mut connect(&proxy), &startup)), "inside the startup packet");

    let mut stream = connect(&proxy);
    stream.write_all(b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0").expect("startup");
    let mut password = vec![b'p', 0, 0, 0xff, 0xff];
    password.resize(5000, b'x');
    assert!(says(&slowly(&mut stream, &password)), "inside the password");

    for asks in [true, false] {
        let mut stream = connect(&proxy);
        if asks {
            stream.write_all(&SSL_REQUEST).expect("request");
            stream.read_exact(&mut [0]).expect("S");
        }
        let mut hello = HALF_A_HELLO.to_vec();
        hello.resize(500, 0);
        let heard = slowly(&mut stream, &hello);
        assert!(
            heard.len() < 100 && !says(&heard),
            "TLS that has not begun can't be told anything: {heard:?}"
        );
    }
    assert!(proxy.alive());
}

#[test]
fn what_is_announced_before_the_login_is_held_as_it_comes() {
    let server = Postgres::shared();
    let mut proxy = with_a_userlist(server, "auth_type = \"plain\"\nclient_login_timeout = 600");
    // The first ones make what is made once.
    let count = 400;
    let announce = |proxy: &Proxy| {
        let mut raw = Raw::connect(proxy.port());
        raw.startup(3 << 16, &[("user", "postgres")]);
        assert_eq!(raw.read().tag, b::AUTHENTICATION);
        let mut message = vec![f::PASSWORD];
        message.extend_from_slice(&(AUTH_MESSAGE_BYTES_MAX as u32).to_be_bytes());
        message.extend_from_slice(b"x");
        raw.send(&message);
        raw
    };
    let first: Vec<_> = (0..50).map(|_| announce(&proxy)).collect();
    let before = proxy.rss();
    let crowd: Vec<_> = (0..count).map(|_| announce(&proxy)).collect();
    assert!(proxy.alive());
    let grown = proxy.rss().saturating_sub(before);
    let each = 16 * LOGIN_PIECE_BYTES;
    assert!(each < AUTH_MESSAGE_BYTES_MAX / 3 && grown < (count * each) as u64, "{grown} for {count}");
    drop((first, crowd));
}

/// Clients that log in and hear nothing of what they are told, until the proxy has no more files.
fn hoard(proxy: &Proxy) -> Vec<TcpStream> {
    let begin = |_| {
        let mut stream = connect(proxy);
        stream.write_all(b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0").expect("startup");
        stream
    };
    let hoard = (0..100).map(begin).collect();
    proxy.wait_for_log("accept failed");
    hoard
}

#[test]
fn without_files_nobody_dies_and_nobody_spins() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let config = Proxy::config(server, "workers = 1\nclient_login_timeout = 600", "", "");
    let mut proxy = Proxy::start_with_few_files(64, &config);
    // Those who say nothing get a share of the files only.
    let crowd = silent(&proxy, 40);
    let mut good = login(&proxy, &database).expect("a place");
    assert_eq!(good.value("SELECT 42").as_deref(), Some("42"));
    // Those who log in can take all of them, and what is left is kept by who is in.
    let hoard = hoard(&proxy);
    assert_eq!(good.value("SELECT 42").as_deref(), Some("42"));
    drop((crowd, hoard));
    let again = poll(PATIENCE, || login(&proxy, &database).ok());
    assert!(again.is_some(), "files are free again");
    assert!(proxy.alive());
}

#[test]
fn a_userlist_that_changes_while_there_are_no_files_is_read_when_there_are() {
    let server = Postgres::shared();
    let general = "workers = 1\nclient_login_timeout = 600\nauth_file = \"userlist.txt\"\nstats_period = 1";
    let config = Proxy::config(server, general, "user = \"postgres\"", "");
    let users = |names: &str| names.split(' ').map(|name| format!("\"{name}\" \"\"\n")).collect::<String>();
    let below = ["prlimit", "--nofile=64:64"].map(str::to_owned);
    let proxy = Proxy::start_below(&below, &config, &[("userlist.txt", &users("postgres leaves"))]);
    let enters = |user: &str| {
        Raw::login_as(proxy.port(), &[("user", user), ("database", "postgres")], "").map(Raw::terminate)
    };
    enters("leaves").expect("a user");
    let hoard = hoard(&proxy);
    std::fs::write(proxy.dir().join("userlist.txt"), users("postgres comes")).expect("write");
    let line = proxy.wait_for_log("auth_file has changed and can't be used");
    assert!(line.contains("open files"), "{line}");
    // It is looked at each second, as those are counted.
    let seconds = || proxy.log().matches(" stats xacts=").count();
    let now = seconds();
    poll(PATIENCE, || (seconds() > now + 2).then_some(())).expect("two looks more");
    assert_eq!(proxy.log().matches("can't be used").count(), 1, "said once");
    drop(hoard);
    assert!(poll(PATIENCE, || enters("comes").ok()).is_some(), "{}", proxy.log());
    assert_eq!(enters("leaves").expect_err("a stranger").sqlstate(), "28000");
}

/// Where the system refuses a thread, what would need one waits for one that is there.
#[test]
fn threads_for_what_blocks_are_there_from_the_start() {
    let config = Proxy::config(Postgres::shared(), "workers = 2", "", "");
    let proxy = Proxy::start(&config);
    let threads = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", proxy.pid())).expect("its threads");
        let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "pgsluice-blocks").count()
    };
    // A thread names itself once it runs.
    let all = poll(PATIENCE, || (threads() == 3).then_some(()));
    assert!(all.is_some(), "{}: one of each worker, one of the main thread", threads());
    proxy.reload(&config);
    proxy.wait_for_log("configuration reloaded");
    assert_eq!(threads(), 3);
}

// ===== cancel requests =====

/// A server that lets everybody in and answers nothing; cancel requests are counted, and held.
fn deaf_server(cancels: &Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let cancels = Arc::clone(cancels);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let cancels = Arc::clone(&cancels);
            std::thread::spawn(move || hear(stream, &cancels));
        }
    });
    port
}

fn hear(mut stream: TcpStream, cancels: &AtomicUsize) -> Option<()> {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut packet = vec![0; u32::from_be_bytes(length) as usize - 4];
        stream.read_exact(&mut packet).ok()?;
        match u32::from_be_bytes(*packet.first_chunk()?) {
            80_877_103 => stream.write_all(b"N").ok()?,
            80_877_102 => {
                cancels.fetch_add(1, Ordering::SeqCst);
                break;
            }
            _ => {
                let mut out = Vec::new();
                pgsluice::wire::startup::put_authentication(&mut out, 0, &[]);
                b::put_backend_key_data(&mut out, 1, &[1; 4]);
                b::put_ready_for_query(&mut out, TransactionStatus::Idle);
                stream.write_all(&out).ok()?;
                break;
            }
        }
    }
    while stream.read(&mut [0; 1024]).ok()? > 0 {}
    None
}

#[test]
fn cancel_requests_without_end_reach_the_server_a_few_at_a_time() {
    let cancels = Arc::new(AtomicUsize::new(0));
    let port = deaf_server(&cancels);
    let config = format!(
        "[general]\nlisten_addr = \"127.0.0.1\"\nlisten_port = @PORT@\nauth_type = \"trust\"\n\
         admin_users = [\"postgres\"]\ncancel_wait_timeout = 600\n\
         [databases.\"*\"]\nhost = \"127.0.0.1\"\nport = {port}\n"
    );
    let mut proxy = Proxy::start(&config);
    let mut client = Raw::login(proxy.port(), "any");
    let mut query = Vec::new();
    f::put_query(&mut query, b"SELECT 1");
    client.send(&query);
    // A request that came before the statement has its server would be told to the session.
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let linked = poll(PATIENCE, || {
        let servers = console.rows("SHOW SERVERS");
        servers.iter().any(|row| row[4].as_deref() == Some("active")).then_some(())
    });
    assert!(linked.is_some());
    let packet = support::cancel_packet(client.pid, &client.key);
    let ask = || {
        let mut stream = connect(&proxy);
        stream.write_all(&packet).expect("send");
        stream.set_nonblocking(true).expect("nonblocking");
        stream
    };
    let mut asked: Vec<TcpStream> = (0..60).map(|_| ask()).collect();
    let few = poll(PATIENCE, || {
        asked.retain_mut(|stream| {
            !matches!(stream.read(&mut [0]), Ok(0)) && !matches!(&stream.take_error(), Ok(Some(_)))
        });
        (asked.len() <= CANCELS_PER_SERVER_MAX).then_some(())
    });
    assert!(few.is_some(), "{} are still there", asked.len());
    let reached = poll(PATIENCE, || (cancels.load(Ordering::SeqCst) == asked.len()).then_some(()));
    assert!(reached.is_some(), "{cancels:?} of {}", asked.len());
    assert!(proxy.alive());
}
