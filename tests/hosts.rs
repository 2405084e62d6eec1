//! Several servers behind one database: which one a connection goes to, and when it is left.

use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::OnceLock;

use crate::support;
use pgsluice::wire::{backend as b, frame, frontend};
use support::console::{set, show};
use support::{PATIENCE, PgOptions, Postgres, Proxy, Raw, poll, relay};

/// Where [`pair`]'s servers and those of tests of their own are.
const PRIMARY: &str = "127.0.0.1";
const STANDBY: &str = "127.0.0.2";
/// Nobody listens here.
const NOBODY: &str = "127.0.0.3";

/// A primary and a standby that stay so.
fn pair() -> &'static (Postgres, Postgres) {
    static PAIR: OnceLock<(Postgres, Postgres)> = OnceLock::new();
    PAIR.get_or_init(|| {
        let mut primary = Postgres::start(PgOptions::default());
        let standby = primary.standby();
        (primary, standby)
    })
}

fn proxy(server: &Postgres, general: &str, hosts: &[&str], database: &str) -> Proxy {
    Proxy::to(server, general, &format!("host = {hosts:?}\n{database}"), "")
}

fn server_of(raw: &mut Raw) -> String {
    raw.value("SELECT host(inet_server_addr())").expect("an address")
}

/// The servers of four connections at a time.
fn reached(proxy: &Proxy) -> BTreeSet<String> {
    let mut raws: Vec<Raw> = (0..4).map(|_| Raw::login(proxy.port(), "postgres")).collect();
    raws.iter_mut().map(server_of).collect()
}

/// Where the pool's only connection is.
fn connected(console: &mut Raw) -> Option<String> {
    show(console, "SHOW SERVERS").first().map(|server| server["addr"].clone())
}

/// The FATAL error that ends a login.
fn refusal(proxy: &Proxy) -> support::Message {
    Raw::login_as(proxy.port(), &[("user", "postgres"), ("database", "postgres")], "")
        .err()
        .expect("a refusal")
}

#[test]
fn connections_go_where_target_session_attrs_fit() {
    let (primary, _) = pair();
    for (attrs, only) in [
        ("read-write", PRIMARY),
        ("primary", PRIMARY),
        ("read-only", STANDBY),
        ("standby", STANDBY),
        ("prefer-standby", STANDBY),
    ] {
        for hosts in [[PRIMARY, STANDBY], [STANDBY, PRIMARY]] {
            for balance in ["round-robin", "disable"] {
                let keys = format!("target_session_attrs = \"{attrs}\"\nload_balance_hosts = \"{balance}\"");
                let proxy = proxy(primary, "pool_mode = \"session\"", &hosts, &keys);
                assert_eq!(reached(&proxy), [only.to_owned()].into(), "{attrs}, {hosts:?}, {balance}");
            }
        }
    }
}

#[test]
fn connections_are_balanced_over_the_hosts() {
    let (primary, _) = pair();
    let both = BTreeSet::from([PRIMARY.to_owned(), STANDBY.to_owned()]);
    let first = BTreeSet::from([STANDBY.to_owned()]);
    for (keys, shown, servers) in [
        ("", "round-robin", &both),
        ("load_balance_hosts = \"round-robin\"", "round-robin", &both),
        ("load_balance_hosts = \"disable\"", "disable", &first),
    ] {
        // One that can't be had costs nothing but the try.
        let proxy = proxy(primary, "pool_mode = \"session\"", &[NOBODY, STANDBY, PRIMARY], keys);
        assert_eq!(&reached(&proxy), servers, "{keys}");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        for table in ["SHOW DATABASES", "SHOW POOLS"] {
            let rows = show(&mut console, table);
            let of = |name: &str| rows.iter().find(|row| row["database"] == name).expect("a row").clone();
            assert_eq!(of("postgres")["load_balance_hosts"], shown, "{table}");
        }
    }
}

#[test]
fn a_host_that_swallows_what_it_is_sent_is_waited_for_once() {
    let primary = Postgres::start(PgOptions::default());
    for keys in ["", "target_session_attrs = \"prefer-standby\""] {
        // The system takes the connections in, and nobody ever answers.
        let silent = TcpListener::bind((NOBODY, primary.port())).unwrap();
        let general = "pool_mode = \"session\"\nserver_connect_timeout = \"2s\"\nserver_login_retry = \"1h\"";
        let proxy = proxy(&primary, general, &[NOBODY, PRIMARY], keys);
        let mut raws: Vec<Raw> = (0..6).map(|_| Raw::login(proxy.port(), "postgres")).collect();
        assert!(raws.iter_mut().all(|raw| server_of(raw) == PRIMARY));
        silent.set_nonblocking(true).unwrap();
        let tries = std::iter::from_fn(|| silent.accept().ok()).count();
        assert_eq!(tries, 1, "{keys}");
    }
}

#[test]
fn disable_stays_with_the_host_that_was_good() {
    let mut primary = Postgres::start(PgOptions::default());
    let standby = primary.standby();
    let proxy =
        proxy(&primary, "server_lifetime = 0", &[PRIMARY, STANDBY], "load_balance_hosts = \"disable\"");
    let mut raw = Raw::login(proxy.port(), "postgres");
    assert_eq!(server_of(&mut raw), PRIMARY);
    primary.stop();
    assert_eq!(server_of(&mut raw), STANDBY);
    primary.start_again();
    assert_eq!(server_of(&mut raw), STANDBY, "it goes on where it was");
    drop(standby);
}

#[test]
fn where_no_standby_is_any_server_is_taken_that_answers() {
    let (primary, _) = pair();
    let keys = "target_session_attrs = \"prefer-standby\"";
    let proxy = proxy(primary, "pool_mode = \"session\"", &[PRIMARY, NOBODY], keys);
    assert_eq!(reached(&proxy), [PRIMARY.to_owned()].into());
}

#[test]
fn where_no_server_fits_the_client_is_told_what_each_is() {
    let (primary, _) = pair();
    let keys = "target_session_attrs = \"read-write\"\nload_balance_hosts = \"disable\"";
    let proxy = proxy(primary, "query_wait_timeout = 3", &[STANDBY, NOBODY], keys);
    let error = refusal(&proxy);
    assert_eq!((error.sqlstate().as_str(), error.field(b'S').as_str()), ("08001", "FATAL"));
    assert!(error.field(b'M').contains("target_session_attrs"), "{}", error.outline());
    let detail = error.field(b'D');
    assert!(
        detail.starts_with(
            "no server has target_session_attrs = \"read-write\": 127.0.0.2: in hot standby; 127.0.0.3: "
        ),
        "{detail}"
    );
    assert!(detail.contains("Connection refused"), "{detail}");
}

#[test]
fn where_no_host_can_be_had_the_client_is_told_why_of_each() {
    let (primary, _) = pair();
    let mut names = tempfile::NamedTempFile::new().expect("a file");
    names.write_all(b"127.0.0.4 two.test\n127.0.0.5 two.test\n").expect("names");
    let general = format!("query_wait_timeout = 3\nhosts_file = {:?}", names.path());
    for balance in ["round-robin", "disable"] {
        let keys = format!("load_balance_hosts = \"{balance}\"");
        let proxy = proxy(primary, &general, &[NOBODY, "two.test", "/nowhere"], &keys);
        let error = refusal(&proxy);
        assert_eq!(error.sqlstate(), "08001", "{}", error.outline());
        let (detail, port) = (error.field(b'D'), primary.port());
        for host in [NOBODY, "127.0.0.4", "127.0.0.5"] {
            assert!(detail.contains(&format!("{host}:{port}: Connection refused")), "{detail}");
        }
        assert!(detail.contains(&format!("/nowhere/.s.PGSQL.{port}: No such file")), "{detail}");
        assert!(detail.contains("two.test: "), "{detail}");
    }
    let many: Vec<String> = (10..40).map(|n| format!("127.0.0.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let proxy = proxy(primary, &general, &many, "load_balance_hosts = \"disable\"");
    let detail = refusal(&proxy).field(b'D');
    assert!(detail.contains("127.0.0.10:") && !detail.contains("127.0.0.38:"), "{detail}");
    assert!(detail.contains("and 22 more, the last of them 127.0.0.39:"), "{detail}");
}

#[test]
fn a_hosts_file_that_cannot_be_read_any_more_is_said_once() {
    let (primary, _) = pair();
    let mut names = tempfile::NamedTempFile::new().expect("a file");
    names.write_all(b"127.0.0.1 db.test\n").expect("names");
    let general =
        format!("pool_mode = \"session\"\nserver_login_retry = \"50ms\"\nhosts_file = {:?}", names.path());
    let proxy = proxy(primary, &general, &["db.test"], "server_lifetime = 0");
    assert_eq!(server_of(&mut Raw::login(proxy.port(), "postgres")), PRIMARY);
    let unreadable = "hosts_file cannot be read";
    assert!(!proxy.log().contains(unreadable));
    let path = names.path().to_owned();
    set(proxy.port(), "query_wait_timeout = 1");
    drop(names);
    refusal(&proxy);
    proxy.wait_for_log(unreadable);
    refusal(&proxy);
    assert_eq!(proxy.log().matches(unreadable).count(), 1, "{}", proxy.log());
    std::fs::write(&path, "127.0.0.1 db.test\n").expect("names");
    set(proxy.port(), "query_wait_timeout = 60");
    assert_eq!(server_of(&mut Raw::login(proxy.port(), "postgres")), PRIMARY);
    set(proxy.port(), "query_wait_timeout = 1");
    std::fs::remove_file(&path).expect("no names");
    refusal(&proxy);
    let again = poll(PATIENCE, || (proxy.log().matches(unreadable).count() == 2).then_some(()));
    assert!(again.is_some(), "{}", proxy.log());
}

/// Passes everything on but the reports of what the server is, as servers before 14 and some poolers do.
fn hushed(target: u16) -> u16 {
    relay::listen(target, |client, server| {
        let (mut up, mut to_server) =
            (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut up, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Both);
        });
        std::thread::spawn(move || hush(server, &client));
    })
}

fn hush(mut server: TcpStream, mut client: &TcpStream) {
    let (mut piece, mut held) = (vec![0; 1 << 16], Vec::new());
    while let Ok(n) = server.read(&mut piece)
        && n > 0
    {
        held.extend_from_slice(&piece[..n]);
        let mut out = Vec::new();
        while let Ok(Some((head, body))) = frame::whole(&held, usize::MAX) {
            let of_role =
                body.starts_with(b"in_hot_standby\0") || body.starts_with(b"default_transaction_read_only\0");
            if !(head.tag == b::PARAMETER_STATUS && of_role) {
                out.extend_from_slice(&held[..head.total()]);
            }
            held.drain(..head.total());
        }
        if client.write_all(&out).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

#[test]
fn a_server_that_reports_nothing_is_asked() {
    let (primary, _) = pair();
    let behind = |attrs: &str, query_wait_timeout: u8| {
        let port = hushed(primary.port());
        let keys = format!("port = {port}\ntarget_session_attrs = \"{attrs}\"");
        let general = format!("query_wait_timeout = {query_wait_timeout}\nserver_tls_sslmode = \"disable\"");
        proxy(primary, &general, &[PRIMARY], &keys)
    };
    for attrs in ["read-write", "primary", "prefer-standby"] {
        assert_eq!(server_of(&mut Raw::login(behind(attrs, 60).port(), "postgres")), PRIMARY, "{attrs}");
    }
    for (attrs, why) in
        [("standby", "127.0.0.1: not in hot standby"), ("read-only", "127.0.0.1: takes writes")]
    {
        let detail = refusal(&behind(attrs, 3)).field(b'D');
        assert!(detail.ends_with(why), "{detail}");
    }
}

#[test]
fn a_client_that_wants_to_read_only_finds_the_primary() {
    let (primary, _) = pair();
    let proxy = proxy(
        primary,
        "pool_mode = \"session\"",
        &[STANDBY, PRIMARY],
        "target_session_attrs = \"read-write\"",
    );
    let parameters =
        [("user", "postgres"), ("database", "postgres"), ("default_transaction_read_only", "on")];
    let mut raw = Raw::login_as(proxy.port(), &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()));
    assert_eq!(server_of(&mut raw), PRIMARY);
    assert_eq!(raw.value("SHOW transaction_read_only").as_deref(), Some("on"));
}

#[test]
fn a_read_only_transaction_does_not_cost_the_connection() {
    let (primary, _) = pair();
    let database = primary.fresh_database("CREATE TABLE t (n int)");
    let keys = "target_session_attrs = \"read-write\"";
    let proxy = proxy(primary, "default_pool_size = 1", &[PRIMARY], keys);
    let mut raw = Raw::login(proxy.port(), &database);
    let pid = raw.value("SELECT pg_backend_pid()");
    raw.rows("BEGIN READ ONLY");
    assert_eq!(raw.error("INSERT INTO t VALUES (1)").sqlstate(), "25006");
    raw.rows("ROLLBACK");
    assert_eq!(raw.value("SELECT pg_backend_pid()"), pid);
}

#[test]
fn a_reload_of_target_session_attrs_moves_the_pool() {
    let (primary, _) = pair();
    let config = |attrs: &str| {
        let keys = format!("host = [\"{PRIMARY}\", \"{STANDBY}\"]\ntarget_session_attrs = \"{attrs}\"");
        Proxy::config(primary, "", &keys, "")
    };
    let proxy = Proxy::start(&config("read-write"));
    let mut raw = Raw::login(proxy.port(), "postgres");
    assert_eq!(server_of(&mut raw), PRIMARY);
    proxy.write_config(&config("standby"));
    Raw::login(proxy.port(), "pgsluice").query("RELOAD");
    assert_eq!(server_of(&mut raw), STANDBY);
}

#[test]
fn a_failover_is_followed_and_waited_for() {
    let mut primary = Postgres::start(PgOptions::default());
    primary.psql("postgres", "CREATE TABLE t (n int)");
    let standby = primary.standby();
    let proxy = proxy(&primary, "", &[PRIMARY, STANDBY], "target_session_attrs = \"read-write\"");
    let mut raw = Raw::login(proxy.port(), "postgres");
    raw.rows("INSERT INTO t VALUES (1)");
    primary.stop();
    let waiting = std::thread::spawn(move || {
        raw.rows("INSERT INTO t VALUES (2)");
        (server_of(&mut raw), raw.value("SELECT count(*) FROM t"))
    });
    proxy.wait_for_log("127.0.0.2: in hot standby");
    standby.promote();
    let served = waiting.join().expect("the client was served");
    assert_eq!(served, (STANDBY.to_owned(), Some("2".into())));
}

#[test]
fn a_server_that_takes_no_more_writes_is_left_by_all_connections() {
    let mut primary = Postgres::start(PgOptions::default());
    primary.psql("postgres", "CREATE TABLE t (n int)");
    let other = primary.standby();
    let keys = "target_session_attrs = \"read-write\"\nload_balance_hosts = \"disable\"";
    let proxy = proxy(&primary, "", &[PRIMARY, STANDBY], keys);
    let mut raws: Vec<Raw> = (0..3).map(|_| Raw::login(proxy.port(), "postgres")).collect();
    for raw in &mut raws {
        raw.rows("BEGIN");
        assert_eq!(server_of(raw), PRIMARY);
    }
    raws.iter_mut().for_each(|raw| drop(raw.rows("COMMIT")));
    other.promote();
    primary.psql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
    primary.psql("postgres", "SELECT pg_reload_conf()");
    let raw = &mut raws[0];
    let refused = poll(PATIENCE, || {
        let answer = raw.query("INSERT INTO t VALUES (1)");
        answer.iter().find(|m| m.tag == b::ERROR_RESPONSE).map(support::Message::sqlstate)
    });
    assert_eq!(refused.as_deref(), Some("25006"));
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let left = poll(PATIENCE, || {
        let servers = show(&mut console, "SHOW SERVERS");
        servers.iter().all(|server| server["addr"] != PRIMARY).then_some(())
    });
    assert!(left.is_some(), "connections to the old primary stay");
    raw.rows("INSERT INTO t VALUES (2)");
    assert_eq!(server_of(raw), STANDBY);
    proxy.wait_for_log("servers left for target_session_attrs");
}

#[test]
fn so_it_is_where_only_blocks_hear_of_it_that_were_answered_before() {
    let primary = Postgres::start(PgOptions::default());
    primary.psql("postgres", "CREATE TABLE t (n int)");
    let keys = "target_session_attrs = \"read-write\"";
    let proxy = Proxy::to(&primary, "", keys, "[coalesce]\ndeferred = true");
    let mut raw = Raw::login(proxy.port(), "postgres");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let error_of = |raw: &mut Raw, sql: &str| {
        let answer = raw.query(sql);
        answer.iter().find(|m| m.tag == b::ERROR_RESPONSE).map(support::Message::sqlstate)
    };
    let mut block = |console: &mut Raw| {
        raw.rows("BEGIN");
        assert_eq!(error_of(&mut raw, "INSERT INTO t VALUES (1)"), None);
        // Nothing is held before the table was looked at.
        let held = show(console, "SHOW CLIENTS").iter().all(|client| client["link"].is_empty());
        (held, error_of(&mut raw, "COMMIT"))
    };
    assert!(poll(PATIENCE, || block(&mut console).0.then_some(())).is_some(), "no block is held");
    primary.psql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
    primary.psql("postgres", "SELECT pg_reload_conf()");
    assert_eq!(poll(PATIENCE, || block(&mut console).1).as_deref(), Some("25006"));
    let left = poll(PATIENCE, || show(&mut console, "SHOW SERVERS").is_empty().then_some(()));
    assert!(left.is_some(), "the connections to it stay");
    proxy.wait_for_log("servers left for target_session_attrs");
}

#[test]
fn a_standby_that_was_promoted_is_left_without_an_error() {
    let mut primary = Postgres::start(PgOptions::default());
    let standby = primary.standby();
    let keys = "target_session_attrs = \"standby\"";
    let proxy = proxy(&primary, "", &[PRIMARY, STANDBY], keys);
    let mut raw = Raw::login(proxy.port(), "postgres");
    assert_eq!(server_of(&mut raw), STANDBY);
    standby.promote();
    // It says so behind the first statement after it.
    assert_eq!(server_of(&mut raw), STANDBY);
    set(proxy.port(), "query_wait_timeout = 3");
    let mut query = Vec::new();
    frontend::put_query(&mut query, b"SELECT 1");
    raw.send(&query);
    let error = raw.read_until_closed().pop().expect("an answer");
    assert_eq!(error.sqlstate(), "08001", "{}", error.outline());
    assert!(error.field(b'D').contains("127.0.0.2: not in hot standby"), "{}", error.outline());
}

#[test]
fn connections_leave_an_address_that_is_not_their_name_s_any_more() {
    let (primary, _) = pair();
    let mut names = tempfile::NamedTempFile::new().expect("a file");
    names.write_all(format!("{PRIMARY} db.test\n").as_bytes()).expect("names");
    let database = "host = \"db.test\"\nmin_pool_size = 1";
    let general = format!("default_pool_size = 1\ndns_max_ttl = 1\nhosts_file = {:?}", names.path());
    let proxy = Proxy::to(primary, &general, database, "");
    let mut raw = Raw::login(proxy.port(), "postgres");
    assert_eq!(server_of(&mut raw), PRIMARY);
    let pid = raw.value("SELECT pg_backend_pid()");
    // In its place, so that no reader finds it empty.
    names.seek(SeekFrom::Start(0)).expect("seek");
    names.write_all(STANDBY.as_bytes()).expect("names");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let moved = poll(PATIENCE, || (connected(&mut console)? == STANDBY).then_some(()));
    assert!(moved.is_some(), "the free connection stays at {:?}", connected(&mut console));
    assert_ne!(raw.value("SELECT pg_backend_pid()"), pid);
    assert_eq!(server_of(&mut raw), STANDBY);
    proxy.wait_for_log("their names have other addresses");
}
