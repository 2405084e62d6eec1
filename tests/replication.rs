//! Replication connections: a standby, a base backup and a subscription through pgsluice; who may, and how they end.

use std::path::Path;
use std::process::Command;

use crate::support;
use pgsluice::wire::frontend as f;
use support::console::{find, tell, until};
use support::{Message, PATIENCE, PgOptions, Postgres, Proxy, Raw, outline, poll};

fn build(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out);
    out
}

fn with_logical_decoding() -> Postgres {
    Postgres::start(PgOptions { conf: "wal_level = logical\n".into(), ..PgOptions::default() })
}

fn console(proxy: &Proxy) -> Raw {
    Raw::login(proxy.port(), "pgsluice")
}

/// A replication connection, or why there is none.
fn replicate(port: u16, user: &str, database: &str, value: &str) -> Result<Raw, Message> {
    Raw::login_as(port, &[("user", user), ("database", database), ("replication", value)], "")
}

/// One that streams the changes of `database`.
fn stream(port: u16, database: &str) -> Raw {
    let mut raw =
        replicate(port, "postgres", database, "database").unwrap_or_else(|e| panic!("{}", e.outline()));
    raw.rows("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL test_decoding");
    raw.send(&build(|o| f::put_query(o, b"START_REPLICATION SLOT s LOGICAL 0/0")));
    assert_eq!(raw.read().tag, b'W');
    raw
}

/// Reads until a change says `text`.
fn until_streamed(raw: &mut Raw, text: &str) {
    loop {
        let message = raw.read();
        assert_eq!(message.tag, b'd', "{}", message.outline());
        if String::from_utf8_lossy(&message.body).contains(text) {
            return;
        }
    }
}

/// The error that ends it.
fn last_words(raw: &mut Raw) -> (String, String) {
    let messages = raw.read_until_closed();
    let error = messages.iter().find(|m| m.tag == b'E').unwrap_or_else(|| panic!("{}", outline(&messages)));
    (error.field(b'S'), error.sqlstate())
}

fn program(server: &Postgres, name: &str) -> Command {
    let mut command = Command::new(server.bin().join(name));
    support::without_pg_settings(&mut command);
    command
}

fn run(command: &mut Command) {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn base_backup(server: &Postgres, port: u16, to: &Path) {
    let mut backup = program(server, "pg_basebackup");
    backup.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres", "-c", "fast", "-X", "stream"]);
    run(backup.arg("-D").arg(to));
    run(program(server, "pg_verifybackup").arg(to));
}

#[test]
fn a_standby_and_a_base_backup_take_no_connection_from_the_others() {
    let mut primary = Postgres::start(PgOptions::default());
    primary.psql("postgres", "CREATE TABLE t (a int)");
    // Three replication connections fill their own pool; the one for SQL has as many.
    let mut proxy = Proxy::to(&primary, "default_pool_size = 3", "connect_query = \"SELECT 1\"", "");
    let standby = primary.standby_through(proxy.port());
    let mut client = Raw::login(proxy.port(), "postgres");
    let mut console = console(&proxy);
    until(&mut console, "SHOW CLIENTS", &[("replication", "physical"), ("state", "active")]);
    until(&mut console, "SHOW SERVERS", &[("replication", "physical"), ("state", "active")]);
    // Some installations are of the server alone, and a program of an older version takes no backup of it.
    if primary.bin().join("pg_basebackup").exists() {
        let into = tempfile::tempdir().expect("a directory");
        base_backup(&primary, proxy.port(), &into.path().join("backup"));
    }
    client.rows("INSERT INTO t SELECT generate_series(1, 1000)");
    standby.wait_until("postgres", "SELECT count(*) = 1000 FROM t");
    proxy.terminate();
    assert!(proxy.wait_end().success(), "{}", proxy.log());
    primary.wait_until("postgres", "SELECT NOT EXISTS (SELECT FROM pg_stat_replication)");
    assert!(!proxy.log().contains("connect_query failed"), "they know no SQL: {}", proxy.log());
}

#[test]
fn a_subscription_gets_what_was_poured() {
    let server = with_logical_decoding();
    let from = server.fresh_database(
        "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (0); CREATE PUBLICATION p FOR TABLE t",
    );
    let to = server.fresh_database("CREATE TABLE t (a int PRIMARY KEY)");
    let proxy = Proxy::to(&server, "", "", "");
    // In one cluster, CREATE SUBSCRIPTION would wait for the slot and the slot for its transaction.
    server.psql(&from, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    let conninfo = format!("host=127.0.0.1 port={} user=postgres dbname={from}", proxy.port());
    server.psql(
        &to,
        &format!("CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p WITH (create_slot = false)"),
    );
    let mut client = Raw::login(proxy.port(), &from);
    client.send(&build(|o| {
        f::put_parse(o, b"i", b"INSERT INTO t VALUES ($1)", &[]);
        for a in 1..=200 {
            f::put_bind_text(o, b"i", &[Some(a.to_string().as_bytes())]);
            f::put_execute(o, b"", 0);
        }
        f::put_empty(o, f::SYNC);
    }));
    let answers = client.read_until_ready();
    assert_eq!(answers.iter().filter(|m| m.tag == b'C').count(), 200, "{}", outline(&answers));
    server.wait_until(&to, "SELECT count(*) = 201 AND sum(a) = 20100 FROM t");
    until(&mut console(&proxy), "SHOW CLIENTS", &[("replication", "logical"), ("database", &from)]);
    server.psql(&to, "DROP SUBSCRIPTION s");
}

#[test]
fn streaming_ends_by_a_cancel_the_console_and_the_policy_and_by_no_timeout() {
    let server = with_logical_decoding();
    let database = server.fresh_database("CREATE TABLE t (a text)");
    let general = "query_timeout = 1\ntransaction_timeout = 1\nclient_idle_timeout = 1";
    let proxy = Proxy::to(&server, general, "", "");
    let insert = |text: &str| server.psql(&database, &format!("INSERT INTO t VALUES ('{text}')"));
    let mut raw = stream(proxy.port(), &database);
    insert("one");
    until_streamed(&mut raw, "one");
    // Who waited longer than that is gone; who streams is not.
    let mut sleeper = Raw::login(proxy.port(), &database);
    sleeper.send(&build(|o| f::put_query(o, b"SELECT pg_sleep(100)")));
    assert_eq!(last_words(&mut sleeper).1, "57014");
    insert("two");
    until_streamed(&mut raw, "two");
    raw.cancel(proxy.port());
    let error = raw.read_until(b'Z').into_iter().find(|m| m.tag == b'E').expect("an error");
    assert_eq!((error.field(b'S'), error.sqlstate()), ("ERROR".into(), "57014".into()));
    assert_eq!(raw.rows("SELECT 7")[0][0].as_deref(), Some("7"), "it goes on as a direct one does");

    let mut console = console(&proxy);
    let mut raw = stream(proxy.port(), &database);
    let row = find(&mut console, "SHOW CLIENTS", &[("replication", "logical"), ("state", "active")]);
    let ids = support::console::show(&mut console, "SHOW CLIENTS");
    assert!(row.is_some(), "{ids:?}");
    for client in ids.iter().filter(|row| row["replication"] == "logical") {
        tell(&mut console, &format!("KILL_CLIENT {}", client["id"]));
    }
    assert_eq!(last_words(&mut raw), ("FATAL".into(), "57P01".into()));
    server.wait_until("postgres", "SELECT NOT EXISTS (SELECT FROM pg_stat_replication)");
    let mut kept = || find(&mut console, "SHOW SERVERS", &[("replication", "logical")]);
    assert!(poll(PATIENCE, || kept().is_none().then_some(())).is_some(), "none is kept");

    let mut raw = stream(proxy.port(), &database);
    proxy.reload(&Proxy::config(&server, general, "", "[policy]\nreplication = \"deny\""));
    assert_eq!(last_words(&mut raw), ("FATAL".into(), "42501".into()));
}

#[test]
fn hba_rules_for_replication_are_for_physical_replication_alone() {
    let server = with_logical_decoding();
    server.psql("postgres", "CREATE ROLE backup LOGIN REPLICATION; CREATE ROLE app LOGIN REPLICATION");
    let general = "auth_type = \"hba\"\nauth_hba_file = \"hba\"";
    let hba = "host replication backup all trust\nhost all app all trust\n";
    let proxy = Proxy::start_with(&Proxy::config(&server, general, "", ""), &[("hba", hba)]);
    for (user, value, enters) in [
        ("backup", "true", true),
        ("backup", "database", false),
        ("backup", "off", false),
        ("app", "true", false),
        ("app", "database", true),
        ("app", "off", true),
    ] {
        match replicate(proxy.port(), user, "postgres", value) {
            Ok(_) => assert!(enters, "{user} {value}"),
            Err(error) => {
                assert!(!enters && error.sqlstate() == "28000", "{user} {value}: {}", error.outline())
            }
        }
    }
}

#[test]
fn what_the_server_refuses_is_told_in_its_words() {
    // IDENTIFY_SYSTEM tells how far the log is: nobody else writes here.
    let server = &Postgres::start(PgOptions::default());
    server.psql("postgres", "CREATE ROLE plain LOGIN");
    let proxy = Proxy::to(server, "", "", "");
    for value in ["true", "database"] {
        let refusal = |port| replicate(port, "plain", "postgres", value).err().map(|e| e.outline());
        let direct = refusal(server.port());
        assert!(direct.is_some(), "{value}");
        assert_eq!(refusal(proxy.port()), direct, "{value}");
    }
    for sql in ["IDENTIFY_SYSTEM", "SHOW work_mem", "SELECT 1", "no command", ""] {
        let answers = |port| {
            let mut raw =
                replicate(port, "postgres", "postgres", "yes").unwrap_or_else(|e| panic!("{}", e.outline()));
            outline(&raw.query(sql))
        };
        assert_eq!(answers(proxy.port()), answers(server.port()), "{sql}");
    }
    // The extended protocol is the server's to refuse.
    let parse = build(|o| {
        f::put_parse(o, b"", b"SELECT 1", &[]);
        f::put_empty(o, f::SYNC);
    });
    let refused = |port| {
        let mut raw =
            replicate(port, "postgres", "postgres", "database").unwrap_or_else(|e| panic!("{}", e.outline()));
        raw.send(&parse);
        outline(&raw.read_until_ready())
    };
    assert_eq!(refused(proxy.port()), refused(server.port()));
}
