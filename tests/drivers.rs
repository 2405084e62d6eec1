//! Real drivers, the same cases direct and through pgsluice: what an application sees must be the same.
//!
//! Each program prints a transcript. Transaction mode, several server connections taken in turn, SCRAM, with
//! TLS and without, on the machine's PostgreSQL and on PostgreSQL 18. A toolchain that is missing is a failure:
//! `make drivers` brings them all.

#[path = "drivers/tokio_driver.rs"]
mod tokio_driver;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support;
use support::{Certs, PgOptions, Postgres, Proxy, prepared};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Psycopg,
    Asyncpg,
    Pgx,
    Pgjdbc,
    NodePostgres,
    TokioPostgres,
    Psql,
}

/// PostgreSQL and pgsluice in front of it, shared by all tests of one version.
struct Site {
    certs: Certs,
    server: Postgres,
    proxy: Proxy,
}

fn machines() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| Site::start(None))
}

fn version_18() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| {
        let site = Site::start(Some(prepared("postgres-18").join("bin")));
        assert_eq!(site.server.major(), 18);
        site
    })
}

impl Site {
    fn start(bin: Option<PathBuf>) -> Self {
        let certs = Certs::new("app");
        let hba = "local all all trust\nhost all postgres 127.0.0.1/32 trust\nhost all app 127.0.0.1/32 scram-sha-256";
        let options =
            PgOptions { bin, hba: Some(hba.into()), tls: Some(certs.clone()), ..PgOptions::default() };
        let server = Postgres::start(options);
        server.psql("postgres", "CREATE ROLE app LOGIN PASSWORD 'secret'");
        let general = format!(
            "auth_type = \"scram-sha-256\"\nauth_file = \"@DIR@/userlist.txt\"\nclient_tls_sslmode = \"prefer\"\n\
             client_tls_cert_file = \"{}\"\nclient_tls_key_file = \"{}\"\nserver_round_robin = true\nmin_pool_size = 3\n\
             log_connections = false\nlog_disconnections = false",
            certs.server_cert.display(),
            certs.server_key.display()
        );
        let config = Proxy::config(&server, &general, "", "");
        let proxy =
            Proxy::start_with(&config, &[("userlist.txt", "\"app\" \"secret\"\n\"postgres\" \"secret\"\n")]);
        Self { certs, server, proxy }
    }

    /// A database with the programs' tables.
    fn database(&self) -> String {
        let schema = fs::read_to_string(source_dir().join("schema.sql")).expect("schema.sql");
        self.server.fresh_database(&schema)
    }

    /// One run of one driver in a database of its own.
    fn transcript(&self, driver: Driver, port: u16, tls: bool) -> String {
        let database = self.database();
        let sslmode = if tls { "verify-full" } else { "disable" };
        let text = match driver {
            Driver::TokioPostgres => tokio_driver::transcript(port, &database, tls.then_some(&self.certs)),
            _ => run(driver, &[&port.to_string(), &database, sslmode, &self.certs.ca.to_string_lossy()]),
        };
        assert!(text.contains("== end"), "{driver:?} stopped early:\n{text}");
        assert!(!text.contains("UNEXPECTED"), "{driver:?}:\n{text}");
        without_port(&text.replace(&database, "DATABASE"), port)
    }

    /// The test: the same transcript both ways.
    fn compare(&self, driver: Driver) {
        for tls in [false, true] {
            let direct = self.transcript(driver, self.server.port(), tls);
            let through = self.transcript(driver, self.proxy.port(), tls);
            if direct != through {
                let again = self.transcript(driver, self.server.port(), tls);
                let blame = if again == direct {
                    "pgsluice shows"
                } else {
                    "the program is not stable, even direct:"
                };
                panic!(
                    "{driver:?}, TLS {tls}: {blame}\n{}\nlog of pgsluice:\n{}",
                    difference(&direct, &through),
                    last_lines(&self.proxy.log(), 30)
                );
            }
        }
    }
}

/// `text` with `PORT` where the number `port` stands; a longer number that has its digits stays.
fn without_port(text: &str, port: u16) -> String {
    text.split_inclusive(|c: char| !c.is_ascii_digit())
        .map(|part| {
            let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
            if digits == port.to_string() { part.replace(digits, "PORT") } else { part.to_owned() }
        })
        .collect()
}

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers")
}

/// Runs a driver's program; `arguments` follow the host.
fn run(driver: Driver, arguments: &[&str; 4]) -> String {
    let source = source_dir();
    let mut command = Command::new("timeout");
    // Ten times what the slowest takes on an idle machine.
    command.args(["--kill-after=5", "300"]).env_clear();
    for kept in ["PATH", "HOME", "JAVA_HOME"] {
        command.envs(std::env::var_os(kept).map(|value| (kept, value)));
    }
    match driver {
        Driver::Psycopg | Driver::Asyncpg => {
            let name = if driver == Driver::Psycopg { "psycopg_driver.py" } else { "asyncpg_driver.py" };
            command.arg(prepared("python").join("bin/python")).arg(source.join("python").join(name));
            command.env("PYTHONHASHSEED", "0");
        }
        Driver::Pgx => {
            command.arg(prepared("go").with_file_name("pgx"));
        }
        Driver::Pgjdbc => {
            let class_path = format!("{0}:{0}/postgresql.jar", prepared("java").display());
            command.args([
                "java",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                &class_path,
                "Driver",
            ]);
        }
        Driver::NodePostgres => {
            command.env("NODE_PATH", prepared("node").join("node_modules"));
            command.arg("node").arg(source.join("node/driver.js"));
        }
        Driver::Psql => {
            let [port, database, sslmode, ca] = arguments;
            let script = source.join("psql/driver.sql");
            command.arg(support::client_program("psql")).args(["-X", "-a", "-f"]).arg(script);
            command.arg(format!(
                "host=localhost port={port} dbname={database} user=app password=secret sslmode={sslmode} \
                 sslrootcert={ca} gssencmode=disable"
            ));
        }
        Driver::TokioPostgres => unreachable!("runs in this process"),
    }
    if driver != Driver::Psql {
        command.arg("localhost").args(arguments);
    }
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // psql ends with 0 after errors too; the other programs end with 0 unless something was unforeseen.
    let ended = format!("\nstderr:\n{}\n{}\n", text(&output.stderr), output.status);
    text(&output.stdout) + &ended
}

/// The lines that differ, by diff.
fn difference(direct: &str, through: &str) -> String {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::write(dir.path().join("direct"), direct).expect("write");
    fs::write(dir.path().join("through"), through).expect("write");
    let diff = Command::new("diff").args(["-U4", "direct", "through"]).current_dir(dir.path()).output();
    let text = String::from_utf8_lossy(&diff.expect("run diff").stdout).into_owned();
    let lines = text.lines().take(60).map(|l| l.chars().take(400).collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

macro_rules! on_both {
    ($($name:ident: $driver:expr;)*) => {
        mod the_machines_postgresql {
            use super::{Driver, machines};
            $(#[test] fn $name() { machines().compare($driver); })*
        }
        mod postgresql_18 {
            use super::{Driver, version_18};
            $(#[test] fn $name() { version_18().compare($driver); })*
        }
    };
}

on_both! {
    psycopg: Driver::Psycopg;
    asyncpg: Driver::Asyncpg;
    pgx: Driver::Pgx;
    pgjdbc: Driver::Pgjdbc;
    node_postgres: Driver::NodePostgres;
    tokio_postgres: Driver::TokioPostgres;
    psql: Driver::Psql;
}
