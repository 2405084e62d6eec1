//! The audit of the policy on a running proxy: what is written, where, and what happens when it can't be.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use crate::support;
use pgsluice::limits::AUDIT_QUEUE_EVENTS;
use pgsluice::wire::{backend as b, frame, frontend as f};
use serde_json::Value;
use support::{Certs, PATIENCE, Postgres, Proxy, Raw, client_command, poll};

const DENY: &str = "[policy]\nsimple_query = \"deny\"";

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"))).collect()
}

/// The file's lines, once there are `count` of them.
fn await_lines(path: &Path, count: usize) -> Vec<Value> {
    let text = poll(PATIENCE, || {
        let text = fs::read_to_string(path).unwrap_or_default();
        (text.matches('\n').count() >= count).then_some(text)
    });
    let text = text.unwrap_or_else(|| panic!("{:?}", fs::read_to_string(path)));
    assert_eq!(text.matches('\n').count(), count, "{text}");
    lines(&text)
}

/// A row of a SHOW, its first column being `name`.
fn row(console: &mut Raw, show: &str, name: &str) -> Vec<String> {
    let rows = console.rows(show);
    let row = rows.into_iter().find(|row| row[0].as_deref() == Some(name));
    let row = row.unwrap_or_else(|| panic!("no row {name} in {show}"));
    row.into_iter().map(Option::unwrap_or_default).collect()
}

/// Waits until a row is this: a line is counted behind its writing.
fn await_row(mut row: impl FnMut() -> Vec<String>, expected: &[&str]) {
    let seen = poll(PATIENCE, || (row() == expected).then_some(()));
    assert!(seen.is_some(), "{:?}, not {expected:?}", row());
}

fn refused(client: &mut Raw, sql: &str) {
    assert_eq!(client.error(sql).sqlstate(), "42501", "{sql}");
}

#[test]
fn each_message_that_met_a_rule_is_a_line_and_a_count() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let mut proxy = Proxy::to(server, "audit_file = \"@DIR@/audit\"", "", DENY);
    let path = proxy.dir().join("audit");
    let mut client = Raw::login(proxy.port(), &database);
    refused(&mut client, "SELECT 'hunter2' AS secret, 471108150");
    // In a transaction block, from a client that is gone before the block ends.
    let mut hasty = Raw::login(proxy.port(), &database);
    assert!(hasty.extended("BEGIN", &[]).iter().all(|m| m.tag != b::ERROR_RESPONSE));
    refused(&mut hasty, "SELECT 'hunter2' AS secret, 471208150");
    drop(hasty);
    let mut call = Vec::new();
    frame::put(&mut call, f::FUNCTION_CALL, |out| out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0]));
    client.send(&call);
    assert!(client.read_until_ready().iter().any(|m| m.sqlstate() == "42501"));

    let written = await_lines(&path, 3);
    for (line, (message, rule)) in written.iter().zip([
        ("Query", "simple_query=deny"),
        ("Query", "simple_query=deny"),
        ("FunctionCall", "function_call=deny"),
    ]) {
        assert_eq!((&line["message"], &line["rule"]), (&message.into(), &rule.into()), "{line}");
        assert_eq!((&line["user"], &line["verdict"]), (&"postgres".into(), &"reject".into()), "{line}");
        assert_eq!((&line["database"], &line["tls"]), (&database.as_str().into(), &false.into()), "{line}");
        assert!(line["address"].as_str().is_some_and(|a| a.starts_with("127.0.0.1:")), "{line}");
    }
    assert_eq!(written[0]["fingerprint"], written[1]["fingerprint"]);
    assert!(written[0]["fingerprint"].is_string());
    assert_eq!(written[0]["bytes"], "SELECT 'hunter2' AS secret, 471108150".len());
    assert_ne!(written[0]["client"], written[1]["client"]);
    assert_eq!(written[0]["client"], written[2]["client"]);

    let mut console = Raw::login(proxy.port(), "pgsluice");
    assert_eq!(row(&mut console, "SHOW POLICY", "simple_query=deny")[1..], ["2", "0"]);
    assert_eq!(row(&mut console, "SHOW POLICY", "function_call=deny")[1..], ["1", "0"]);
    let audited = || row(&mut console, "SHOW AUDIT", path.to_str().expect("a path"))[1..].to_vec();
    await_row(audited, &["3", "0", "0", ""]);

    proxy.terminate();
    assert!(proxy.wait_end().success());
    let all = proxy.log() + &fs::read_to_string(&path).expect("the file");
    assert!(!all.contains("hunter2") && !all.contains("471108150") && !all.contains("471208150"), "{all}");
}

#[test]
fn what_is_only_reported_is_written_and_passes() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let rest = "[policy]\nsimple_query = \"deny\"\nenforce = \"report\"";
    let proxy = Proxy::to(server, "", "", rest);
    let mut client = Raw::login(proxy.port(), &database);
    assert_eq!(client.value("SELECT 42").as_deref(), Some("42"));
    // Without audit_file the line goes where the log goes.
    let line = proxy.wait_for_log("\"rule\":\"simple_query=deny\"");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&line["verdict"], &line["bytes"]), (&"report".into(), &9.into()));
    let mut console = Raw::login(proxy.port(), "pgsluice");
    assert_eq!(row(&mut console, "SHOW POLICY", "simple_query=deny")[1..], ["0", "1"]);
    await_row(|| row(&mut console, "SHOW AUDIT", "stderr")[1..2].to_vec(), &["1"]);
}

#[test]
fn the_line_names_the_version_of_tls() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let certs = Certs::new("postgres");
    let general = format!(
        "audit_file = \"@DIR@/audit\"\nclient_tls_sslmode = \"require\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    let proxy = Proxy::to(server, &general, "", DENY);
    let dsn = format!("host=127.0.0.1 port={} user=postgres dbname={database} sslmode=require", proxy.port());
    let psql = client_command("psql").args(["-X", &dsn, "-c", "SELECT 1"]).output();
    assert!(!psql.expect("psql").status.success());
    assert_eq!(await_lines(&proxy.dir().join("audit"), 1)[0]["tls"], "TLSv1.3");
}

/// One of a Query over its bound, which is refused by its header.
#[test]
fn a_text_that_is_not_held_has_its_messages_length() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "audit_file = \"@DIR@/audit\"", "", DENY);
    let text = format!("SELECT '{}'", "x".repeat(3 << 20));
    refused(&mut Raw::login(proxy.port(), &database), &text);
    assert_eq!(await_lines(&proxy.dir().join("audit"), 1)[0]["bytes"], text.len() + 1);
}

#[test]
fn a_renamed_file_is_let_go_at_sighup_even_when_the_configuration_is_broken() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "audit_file = \"@DIR@/audit\"", "", DENY);
    let path = proxy.dir().join("audit");
    let mut client = Raw::login(proxy.port(), &database);
    refused(&mut client, "SELECT 1");
    await_lines(&path, 1);
    // Said once the audit has moved, which is a moment after the file is there.
    for (number, broken, said) in
        [(1, false, "configuration reloaded"), (2, true, "configuration not reloaded")]
    {
        let rotated = proxy.dir().join(format!("audit.{number}"));
        fs::rename(&path, &rotated).expect("rename");
        if broken {
            proxy.reload("[general]\nno_such_key = 1\n");
        } else {
            proxy.signal("HUP");
        }
        proxy.wait_for_log(said);
        // Made by the reload, before anything is written.
        assert!(path.exists());
        refused(&mut client, "SELECT 2");
        await_lines(&path, 1);
        await_lines(&rotated, 1);
    }
}

#[test]
fn a_reload_moves_the_audit_or_changes_nothing() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let config = |file: &str| Proxy::config(server, &format!("audit_file = {file:?}"), "", DENY);
    let proxy = Proxy::start(&config("@DIR@/audit"));
    let mut client = Raw::login(proxy.port(), &database);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    // A directory can't be appended to.
    proxy.write_config(&config("@DIR@"));
    let refusal = console.error("RELOAD");
    assert!(refusal.field(b'M').contains("audit_file"), "{}", refusal.outline());
    refused(&mut client, "SELECT 1");
    await_lines(&proxy.dir().join("audit"), 1);
    proxy.write_config(&config("@DIR@/other"));
    console.query("RELOAD");
    refused(&mut client, "SELECT 1");
    await_lines(&proxy.dir().join("other"), 1);
    await_lines(&proxy.dir().join("audit"), 1);
    assert_eq!(console.error("SET audit_file = 'x'").sqlstate(), "0A000");
}

/// Sends `count` Queries that are refused, as one pipeline, and reads every answer.
fn pipeline_of_refusals(client: &mut Raw, count: usize) {
    for part in 0..count.div_ceil(100) {
        let mut out = Vec::new();
        let queries = 100.min(count - part * 100);
        (0..queries).for_each(|_| f::put_query(&mut out, b"SELECT 1"));
        client.send(&out);
        for _ in 0..queries {
            let answer = client.read_until_ready();
            assert!(answer.iter().any(|m| m.sqlstate() == "42501"));
        }
    }
}

#[test]
fn a_disk_that_takes_nothing_stalls_nobody_and_what_was_lost_is_counted() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let dir = tempfile::tempdir().expect("directory");
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    // Held open at both ends, so that nobody waits for anybody; it is full when nobody reads.
    let reader = fs::OpenOptions::new().read(true).write(true).open(&fifo).expect("fifo");
    let general = format!("audit_file = {fifo:?}");
    let proxy = Proxy::to(server, &general, "", DENY);
    let mut client = Raw::login(proxy.port(), &database);
    let sent = AUDIT_QUEUE_EVENTS + 2000;
    pipeline_of_refusals(&mut client, sent);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let show = |console: &mut Raw| row(console, "SHOW AUDIT", fifo.to_str().expect("a path"));
    let lost: u64 = show(&mut console)[2].parse().expect("a number");
    assert!(lost > 0);
    assert_eq!(row(&mut console, "SHOW POLICY", "simple_query=deny")[1], sent.to_string());
    // And now somebody reads. The event after the gap tells of it.
    let mut reader = BufReader::new(reader);
    let (mut read, mut told) = (0, 0);
    while read + told < sent as u64 {
        if read + lost == sent as u64 {
            refused(&mut client, "SELECT 2");
        }
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        read += 1;
        told += line.get("lost").and_then(Value::as_u64).unwrap_or_default();
    }
    assert_eq!(told, lost);
}

#[test]
fn a_full_disk_stalls_nobody_and_is_told_once() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let config = |file: &str| Proxy::config(server, &format!("audit_file = {file:?}"), "", DENY);
    let proxy = Proxy::start(&config("/dev/full"));
    let mut client = Raw::login(proxy.port(), &database);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    pipeline_of_refusals(&mut client, 300);
    let lost = || Raw::login(proxy.port(), "pgsluice");
    let full = poll(PATIENCE, || {
        let row = row(&mut lost(), "SHOW AUDIT", "/dev/full");
        (row[2] == "300").then_some(row)
    });
    let full = full.expect("all lost");
    assert_eq!((full[1].as_str(), full[4].is_empty()), ("0", false), "{full:?}");
    proxy.wait_for_log("audit events can't be written");
    assert_eq!(proxy.log().matches("audit events can't be written").count(), 1, "{}", proxy.log());
    proxy.write_config(&config("@DIR@/audit"));
    console.query("RELOAD");
    refused(&mut client, "SELECT 1");
    assert_eq!(await_lines(&proxy.dir().join("audit"), 1)[0]["lost"], 300);
}

#[test]
fn names_that_would_forge_a_line_do_not() {
    let server = Postgres::shared();
    let proxy = Proxy::to(server, "audit_file = \"@DIR@/audit\"", "", DENY);
    let mut role = "a\"\\\n{\"time\":\"x\"}\u{1b}[2J\u{7f}\u{9b}\u{202e}é".to_owned();
    role.truncate(role.floor_char_boundary(63));
    let quoted = format!("\"{}\"", role.replace('"', "\"\""));
    server.psql("postgres", &format!("CREATE ROLE {quoted} LOGIN"));
    server.psql("postgres", &format!("CREATE DATABASE {quoted}"));
    let mut client = Raw::login_as(proxy.port(), &[("user", &role), ("database", &role)], "")
        .unwrap_or_else(|e| panic!("{}", e.outline()));
    refused(&mut client, "SELECT 1");
    let path = proxy.dir().join("audit");
    let line = &await_lines(&path, 1)[0];
    assert_eq!((&line["user"], &line["database"]), (&role.as_str().into(), &role.as_str().into()));
    let bytes = fs::read(&path).expect("the file");
    assert!(bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n')));
}

/// Nor one of the log.
#[test]
fn no_name_and_no_message_begins_a_line_of_the_log() {
    let names = [
        ("a\nFORGED", "postgres"),
        ("postgres", "a\r\u{1b}[2J\nFORGED"),
        ("a\u{9b}2J\u{202e}DEGROF", "postgres"),
        ("postgres", "a\u{85}\u{2028}\nFORGED last"),
    ];
    let steers = |c: char| c != '\n' && (c.is_control() || matches!(c, '\u{2028}' | '\u{202e}'));
    for format in ["text", "json"] {
        let proxy = Proxy::to(Postgres::shared(), &format!("log_format = \"{format}\""), "", "");
        for (user, database) in names {
            let refused = Raw::login_as(proxy.port(), &[("user", user), ("database", database)], "");
            assert!(refused.is_err(), "{user:?} {database:?}");
        }
        // The last's line about the server is written before its own.
        let all = || Some(proxy.log()).filter(|log| log.matches("login refused").count() == names.len());
        let log = poll(PATIENCE, all).unwrap_or_else(|| panic!("{}", proxy.log()));
        assert!(log.contains("FORGED last"), "{log}");
        assert!(log.contains("server login failed"), "{log}");
        assert!(!log.lines().any(|line| line.starts_with("FORGED")), "{log}");
        assert!(!log.chars().any(steers), "{log:?}");
        if format == "json" {
            let fields = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            let said = fields.filter(|fields| fields["message"] == "login refused");
            let users: Vec<_> = said.map(|fields| fields["user"].clone()).collect();
            assert_eq!(users, names.map(|(user, _)| user));
        }
    }
}
