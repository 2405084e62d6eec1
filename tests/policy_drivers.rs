//! Which drivers work under `control` and `deny`, and with which setting: the table in `docs/policy.md` is what this
//! finds. `PGSLUICE_TEST_PRINT=1` prints the table.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::support;
use support::{Postgres, Proxy, client_program, prepared, without_pg_settings};

/// The levels of the table's columns.
const LEVELS: [&str; 2] = ["control", "deny"];

/// Lines `way TAB works|refused` of a program.
fn ways(command: &mut Command) -> Vec<(String, String)> {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text.lines().filter_map(|l| l.split_once('\t')).map(|(w, r)| (w.to_owned(), r.to_owned())).collect()
}

fn program(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    without_pg_settings(&mut command);
    command.args(["--kill-after=5", "60"]).arg(program);
    command
}

fn source(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers").join(path)
}

/// A client program of PostgreSQL's: it works if it ends well, it is refused if it says so.
fn client(name: &str, port: &str, database: &str, arguments: &[&str], script: Option<&str>) -> String {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut command = program(client_program(name));
    command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", port]).args(arguments);
    command.env("PGDATABASE", database);
    if let Some(script) = script {
        let path = dir.path().join("script");
        std::fs::write(&path, script).expect("write the script");
        command.arg("-f").arg(path);
    }
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {name}: {e}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => "works".into(),
        false if errors.contains("simple_query is") => "refused".into(),
        false => panic!("{name}: {errors}"),
    }
}

fn tokio_postgres(port: u16, database: &str) -> Vec<(String, String)> {
    use tokio_postgres::{Client, Error, NoTls};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    async fn connect(port: u16, database: &str) -> Client {
        let config = format!("host=127.0.0.1 port={port} user=postgres dbname={database}");
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("connect");
        tokio::spawn(connection);
        client
    }
    async fn its_transactions(mut client: Client) -> Result<(), Error> {
        let transaction = client.transaction().await?;
        transaction.execute("INSERT INTO t VALUES ($1)", &[&1]).await?;
        transaction.query("SELECT count(*) FROM t", &[]).await?;
        transaction.commit().await
    }
    async fn simple(client: Client) -> Result<(), Error> {
        client.batch_execute("SELECT count(*) FROM t").await
    }
    async fn executes(client: Client) -> Result<(), Error> {
        for statement in ["BEGIN", "SELECT count(*) FROM t", "COMMIT"] {
            client.execute(statement, &[]).await?;
        }
        Ok(())
    }
    let verdict = |result: Result<(), Error>| match result {
        Ok(()) => "works".to_owned(),
        Err(e) if e.code().is_some_and(|c| c.code() == "42501") => "refused".to_owned(),
        Err(e) => panic!("tokio-postgres: {e}"),
    };
    runtime.block_on(async {
        let first = verdict(its_transactions(connect(port, database).await).await);
        let second = verdict(simple(connect(port, database).await).await);
        let third = verdict(executes(connect(port, database).await).await);
        vec![
            ("as it is, `transaction()`, `query()`, `execute()`".into(), first),
            ("`simple_query()`, `batch_execute()`".into(), second),
            ("`execute()` for everything, BEGIN too".into(), third),
        ]
    })
}

/// What every driver says at one level: driver, way, result.
fn all(pg: &Postgres, level: &str) -> Vec<(&'static str, String, String)> {
    let policy = format!("[policy]\nsimple_query = \"{level}\"");
    let proxy = Proxy::to(pg, "log_connections = false\nlog_disconnections = false", "", &policy);
    let database = pg.fresh_database("CREATE TABLE t (a int)");
    let port = proxy.port().to_string();
    let place = ["127.0.0.1", &port, &database];
    let python = prepared("python").join("bin/python");
    let snake = |driver| ways(program(&python).arg(source("python/policy.py")).arg(driver).args(place));
    let java = prepared("java");
    let class_path = format!("{0}:{0}/postgresql.jar", java.display());
    let java = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", &class_path, "Policy"];
    let node = prepared("node").join("node_modules");
    let psql =
        |name: &str, sql: &str| (name.to_owned(), client("psql", &port, &database, &["-X", "-c", sql], None));
    let pgbench = |name: &str, mode: &str, script| {
        let arguments = ["-n", "-t", "2", "-M", mode];
        (name.to_owned(), client("pgbench", &port, &database, &arguments, Some(script)))
    };
    let script = "BEGIN;\nINSERT INTO t VALUES (1);\nSELECT count(*) FROM t;\nEND;\n";
    let found = [
        ("psycopg 3", snake("psycopg")),
        ("asyncpg", snake("asyncpg")),
        ("pgx", ways(program(prepared("go").with_file_name("pgx")).arg("policy").args(place))),
        ("pgjdbc", ways(program("java").args(java).args(place))),
        (
            "node-postgres",
            ways(program("node").env("NODE_PATH", node).arg(source("node/policy.js")).args(place)),
        ),
        ("tokio-postgres", tokio_postgres(proxy.port(), &database)),
        (
            "psql",
            vec![
                psql("transaction control and settings", "SHOW work_mem"),
                psql("anything else", "SELECT 1"),
            ],
        ),
        (
            "pgbench",
            vec![
                pgbench("`-M simple`", "simple", script),
                pgbench("`-M extended`, `-n`, a script", "extended", script),
                pgbench("`-M prepared`, `-n`, a script", "prepared", script),
            ],
        ),
    ];
    let flat = |(driver, ways): (&'static str, Vec<(String, String)>)| {
        assert!(!ways.is_empty(), "{driver} said nothing");
        ways.into_iter().map(move |(way, result)| (driver, way, result))
    };
    found.into_iter().flat_map(flat).collect()
}

#[test]
fn the_table_in_the_docs_is_what_the_drivers_do() {
    let pg = Postgres::shared();
    let [control, deny] = LEVELS.map(|level| all(pg, level));
    assert_eq!(control.len(), deny.len());
    let mut table = String::from("| driver | used so | `control` | `deny` |\n|---|---|---|---|\n");
    for ((driver, way, at_control), (_, _, at_deny)) in control.into_iter().zip(deny) {
        let _ = writeln!(table, "| {driver} | {way} | {at_control} | {at_deny} |");
    }
    if std::env::var_os("PGSLUICE_TEST_PRINT").is_some() {
        println!("{table}");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policy.md");
    let docs = std::fs::read_to_string(path).expect("docs/policy.md");
    assert!(docs.contains(&table), "docs/policy.md holds another table than this:\n{table}");
}
