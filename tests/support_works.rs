//! The tests' own footing, held against PostgreSQL alone.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use crate::support;
use support::{Certs, PgOptions, Postgres, Raw, outline};

#[test]
fn a_shared_server_gives_each_test_its_own_database() {
    let server = Postgres::shared();
    let one = server.fresh_database("CREATE TABLE t (a int)");
    let two = server.fresh_database("");
    assert_eq!(server.psql(&one, "SELECT count(*) FROM t").trim(), "0");
    assert!(server.try_psql(&two, "SELECT count(*) FROM t").is_err_and(|e| e.contains("42P01")));
}

#[test]
fn the_raw_client_reads_rows_errors_and_notices() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let mut raw = Raw::login(server.port(), &database);
    assert_eq!(raw.value("SELECT NULL::int"), None);
    assert_eq!(raw.rows("VALUES (1, 'a'), (2, NULL)").len(), 2);
    assert_eq!(raw.error("SELECT 1/0").sqlstate(), "22012");
    let messages = raw.extended("SELECT $1::int + 1", &[Some("41")]);
    assert_eq!(messages.iter().map(|m| char::from(m.tag)).collect::<String>(), "12TDCZ");
    assert!(outline(&messages).contains("D [Some(\"42\")]"));
    raw.terminate();
}

#[test]
fn the_raw_client_cancels_its_own_query() {
    let server = Postgres::shared();
    let mut raw = Raw::login(server.port(), "postgres");
    let mut out = Vec::new();
    pgsluice::wire::frontend::put_query(&mut out, b"SELECT pg_sleep(600)");
    raw.send(&out);
    let active = format!(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {} AND wait_event = 'PgSleep'",
        raw.pid
    );
    server.wait_until("postgres", &active);
    raw.cancel(server.port());
    let messages = raw.read_until_ready();
    assert!(outline(&messages).contains("C=\"57014\""), "{}", outline(&messages));
}

#[test]
fn a_server_asks_for_passwords_and_speaks_tls_when_told_so() {
    let hba = "local all all trust\nhost all scram 127.0.0.1/32 scram-sha-256\nhost all clear 127.0.0.1/32 password";
    let certs = Certs::new("postgres");
    let server =
        Postgres::start(PgOptions { hba: Some(hba.into()), tls: Some(certs), ..PgOptions::default() });
    server.psql("postgres", "CREATE ROLE scram LOGIN PASSWORD 'one'; CREATE ROLE clear LOGIN PASSWORD 'two'");
    for (user, password) in [("scram", "one"), ("clear", "two")] {
        let parameters = [("user", user), ("database", "postgres")];
        assert!(Raw::login_as(server.port(), &parameters, password).is_ok());
        let refused =
            Raw::login_as(server.port(), &parameters, "wrong").err().expect("a wrong password is refused");
        assert_eq!(refused.sqlstate(), "28P01");
    }
    let mut raw = Raw::connect(server.port());
    raw.send(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
    assert_eq!(raw.read_byte(), Some(b'S'));
}

#[test]
fn a_server_recovers_from_a_crash_on_the_same_port() {
    let mut server = Postgres::start(PgOptions::default());
    server.psql("postgres", "CREATE TABLE kept AS SELECT 1 AS a");
    server.crash();
    server.start_again();
    assert_eq!(server.psql("postgres", "SELECT a FROM kept").trim(), "1");
}

/// `tests/setup.sh base` where all is there but a Rust that is new enough, and `curl` does this.
fn setup_with(curl: &str) -> (bool, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let put = |name: &str, script: &str| {
        let file = dir.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("permissions");
    };
    for (name, script) in [("cc", ""), ("cmake", ""), ("git", ""), ("clang", ""), ("curl", curl)] {
        put(name, script);
    }
    put("cargo", "echo cargo 1.63.0");
    for name in ["sh", "sed", "dirname", "cut", "sort", "head", "id"] {
        let real = ["/usr/bin", "/bin"].map(|bin| std::path::Path::new(bin).join(name));
        let real = real.into_iter().find(|file| file.exists()).expect("a program of every system");
        symlink(real, dir.path().join(name)).expect("a link");
    }
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/setup.sh");
    let output = Command::new("/bin/sh").arg(script).arg("base").env("PATH", dir.path()).output();
    let output = output.expect("it runs");
    (output.status.success(), String::from_utf8(output.stderr).expect("UTF-8"))
}

/// Otherwise what is seen is a `cargo` that is not there, or the first line that the old one does not know.
#[test]
fn where_no_rust_can_be_had_setup_says_so_and_stops() {
    let (done, said) = setup_with("exit 6");
    assert!(!done && said.contains("rustup could not be fetched; install Rust 1."), "{said}");
    let (done, said) = setup_with("echo :");
    assert!(!done && said.contains("cargo is cargo 1.63.0; install Rust 1."), "{said}");
    let (done, said) = setup_with("echo exit 9");
    assert!(!done, "an installer that fails: {said}");
}
