//! The HTTP port: what is counted, and whether clients should be sent here.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::support;
use pgsluice::limits::{HTTP_CONNECTIONS_MAX, HTTP_REQUEST_BYTES_MAX, HTTP_REST_BYTES_MAX, HTTP_TIME_MAX};
use pgsluice::telemetry::exposition::Exposition;
use pgsluice::telemetry::histogram::Histogram;
use proptest::prelude::*;
use support::console::{Row, find, tell};
use support::crowd;
use support::exposition::{self, Family, Sample};
use support::pouring::{crowd_of, number, send_insert, waiting, warmed};
use support::{PATIENCE, Postgres, Proxy, Raw, Step, free_port, poll, prepared};

/// The whole answer to `request`.
fn ask(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in UTF-8");
    answer
}

fn get(port: u16, path: &str) -> String {
    ask(port, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

fn proxy(server: &Postgres, general: &str, rest: &str) -> (Proxy, u16) {
    let port = free_port();
    (Proxy::to(server, &format!("http_addr = \"127.0.0.1:{port}\"\n{general}"), "", rest), port)
}

/// The value of the series that begins with `series`.
fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(series));
    let value = line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in\n{page}"))
}

#[test]
fn what_is_counted_moves_with_the_clients() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let (proxy, port) = proxy(server, "default_pool_size = 1", "[policy]\nsimple_query = \"single\"");
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("SELECT 1");
    raw.error("SELECT 1; SELECT 2");
    raw.rows("BEGIN");
    let mut waiting = Raw::login(proxy.port(), &database);
    let labels = format!("{{database=\"{database}\",user=\"postgres\"");
    waiting.send(&query("SELECT 2"));
    let is = |series: &str, expected: f64| {
        let seen = poll(PATIENCE, || (value(&get(port, "/metrics"), series) == expected).then_some(()));
        assert!(seen.is_some(), "{series} is never {expected}:\n{}", get(port, "/metrics"));
    };
    is(&format!("pgsluice_pool_clients{labels},state=\"waiting\"}}"), 1.0);
    is(&format!("pgsluice_pool_servers{labels},state=\"active\"}}"), 1.0);
    is(&format!("pgsluice_pool_size{labels}}}"), 1.0);
    raw.rows("COMMIT");
    waiting.read_until_ready();
    is(&format!("pgsluice_pool_clients{labels},state=\"waiting\"}}"), 0.0);
    is(&format!("pgsluice_pool_clients{labels},state=\"all\"}}"), 2.0);
    is(&format!("pgsluice_client_logins_total{labels}}}"), 2.0);
    is(&format!("pgsluice_wait_seconds_bucket{labels},le=\"+Inf\"}}"), 2.0);
    is("pgsluice_policy_messages_total{rule=\"simple_query=single\",verdict=\"reject\"}", 1.0);
    raw.rows("LISTEN x");
    is(&format!("pgsluice_pinned_total{labels},reason=\"listen\"}}"), 1.0);
    raw.terminate();
    is("pgsluice_paused", 0.0);
    tell(&mut Raw::login(proxy.port(), "pgsluice"), "PAUSE");
    is("pgsluice_paused", 1.0);
    let page = get(port, "/metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{page}");
    assert!(value(&page, "pgsluice_resident_bytes") > 1e6, "{page}");
}

/// The families of `/metrics`, read strictly.
fn families(port: u16) -> Vec<Family> {
    let page = get(port, "/metrics");
    let (_, body) = page.split_once("\r\n\r\n").expect("a body");
    exposition::read(body)
}

#[test]
fn each_metric_stands_in_the_docs() {
    let docs = include_str!("../docs/operations.md");
    let (proxy, port) = proxy(Postgres::shared(), "", "");
    let _client = Raw::login(proxy.port(), "postgres");
    for family in families(port) {
        let name = family.name.strip_prefix("pgsluice_").expect("our own");
        assert!(["`", "{"].iter().any(|end| docs.contains(&format!("`{name}{end}"))), "{name}");
    }
}

/// Names in what is shipped for monitoring: a typing error there is a panel that stays empty, or an alert that never comes.
#[test]
fn the_dashboard_and_the_alerts_ask_for_metrics_that_there_are() {
    let (proxy, port) = proxy(Postgres::shared(), "", "");
    let _client = Raw::login(proxy.port(), "postgres");
    let mut known = std::collections::BTreeSet::new();
    for family in families(port) {
        let ends: &[&str] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        known.extend(ends.iter().map(|end| format!("{}{end}", family.name)));
    }
    for shipped in [include_str!("../deploy/grafana.json"), include_str!("../deploy/alerts.yaml")] {
        let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let names: Vec<_> =
            shipped.split(|c| !is_of_a_name(c)).filter(|word| word.starts_with("pgsluice_")).collect();
        assert!(names.len() >= 8, "{names:?}");
        for name in names {
            assert!(known.contains(name), "{name}");
        }
    }
    let _: serde_json::Value = serde_json::from_str(include_str!("../deploy/grafana.json")).expect("JSON");
}

#[test]
fn what_goes_wrong_is_counted_by_kind() {
    let server = Postgres::shared();
    let dead = format!(
        "[databases.dead]\nhost = \"127.0.0.1\"\nport = {}\nquery_wait_timeout = \"100ms\"\n",
        free_port()
    );
    let (proxy, port) = proxy(server, "default_pool_size = 1", &dead);
    let count = |series: &str, label: (&str, &str)| sum(&families(port), series, &[label]);
    let refused = |kind: &str| count("pgsluice_client_logins_refused_total", ("kind", kind));
    let closed = |kind: &str| count("pgsluice_clients_closed_total", ("kind", kind));
    let kinds = ["ServerUnreachable", "QueryWaitTimeout", "Killed", "ServerLost", "Server"];
    assert!(kinds.iter().all(|kind| refused(kind) + closed(kind) == 0.0));
    let enter =
        |database: &str| Raw::login_as(proxy.port(), &[("user", "postgres"), ("database", database)], "");
    assert_eq!(enter("dead").err().expect("no server").sqlstate(), "08001");
    assert_eq!(
        enter("a database that the server does not have").err().expect("no database").sqlstate(),
        "3D000"
    );
    assert_eq!((refused("ServerUnreachable"), refused("Server")), (1.0, 1.0));
    let dead = ("database", "dead");
    assert!(count("pgsluice_server_logins_failed_total", dead) > 0.0);
    assert_eq!(count("pgsluice_server_logins_total", dead), 0.0);
    let mut holder = Raw::login(proxy.port(), "postgres");
    let mut waiting = Raw::login(proxy.port(), "postgres");
    holder.rows("BEGIN");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    tell(&mut console, "SET query_wait_timeout = 0.1");
    waiting.send(&query("SELECT 1"));
    waiting.read_until_closed();
    tell(&mut console, "SET query_wait_timeout = 120");
    assert_eq!((closed("QueryWaitTimeout"), refused("QueryWaitTimeout")), (1.0, 0.0));
    holder.send(&query("SELECT pg_terminate_backend(pg_backend_pid())"));
    holder.read_until_closed();
    assert_eq!(closed("ServerLost"), 1.0);
    // Who leaves by itself was not closed.
    Raw::login(proxy.port(), "postgres").terminate();
    let mut killed = Raw::login(proxy.port(), "postgres");
    let id = find(&mut console, "SHOW CLIENTS", &[("database", "postgres")]).expect("a client")["id"].clone();
    tell(&mut console, &format!("KILL_CLIENT {id}"));
    killed.read_until_closed();
    assert_eq!(closed("Killed"), 1.0);
    let all: f64 = sum(&families(port), "pgsluice_clients_closed_total", &[]);
    assert_eq!(all, 3.0);
}

#[test]
fn pools_of_replication_connections_are_told_apart() {
    let (proxy, port) = proxy(Postgres::shared(), "", "");
    let enter = |kind: &[(&str, &str)]| {
        let asked = [&[("user", "postgres"), ("database", "postgres")], kind].concat();
        Raw::login_as(proxy.port(), &asked, "").unwrap_or_else(|e| panic!("{}", e.outline()))
    };
    let _both = [enter(&[]), enter(&[("replication", "true")])];
    let of = [("state", "all"), ("database", "postgres"), ("replication", "physical")];
    assert_eq!(sum(&families(port), "pgsluice_pool_clients", &of), 1.0);
}

/// The sum of a family's series that have these labels.
fn sum(families: &[Family], series: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |sample: &Sample| labels.iter().all(|(name, value)| sample.label(name) == Some(value));
    let samples = families.iter().flat_map(|family| &family.samples);
    samples.filter(|s| s.series == series && has(s)).map(|s| s.value).sum()
}

/// The row of SHOW COALESCE that is all of a table.
fn lane(console: &mut Raw, db: &str) -> Row {
    find(console, "SHOW COALESCE", &[("database", db), ("table", "public.t")]).expect("a lane")
}

#[test]
fn what_is_poured_is_counted_by_plan_and_spread() {
    let server = Postgres::shared();
    let db = server.fresh_database("CREATE TABLE t (a int, b text)");
    let (proxy, port) = proxy(server, "", "");
    let mut clients = warmed(server, &proxy, &db, 32);
    let of_t = [("database", db.as_str()), ("user", "postgres"), ("table", "public.t")];
    let of_plan = |families: &[Family], plan| {
        let [database, user, table] = of_t;
        sum(families, "pgsluice_coalesce_rows_total", &[database, user, table, ("plan", plan)])
    };
    let mut round = 1000;
    let families = poll(PATIENCE, || {
        round += 1;
        let insert = |c| Step::query(&format!("INSERT INTO t (a, b) VALUES ({}, 'x')", number(c, round, 0)));
        // Many at a time and a few.
        let n = if round % 2 == 0 { clients.len() } else { 4 };
        let scripts: Vec<_> = (0..n).map(|c| vec![insert(c)]).collect();
        crowd::run(&mut clients[..n], &scripts, false);
        let families = families(port);
        let all = ["values", "copy_text", "as_sent"].iter().all(|plan| of_plan(&families, plan) > 0.0);
        all.then_some(families)
    })
    .expect("each plan was chosen");
    let lane = lane(&mut Raw::login(proxy.port(), "pgsluice"), &db);
    let shown = |column: &str| lane[column].parse::<f64>().expect("a number");
    assert_eq!(of_plan(&families, "values"), shown("values_rows"));
    assert_eq!(of_plan(&families, "copy_text"), shown("rows") - shown("values_rows"));
    assert_eq!(of_plan(&families, "as_sent"), shown("singles"));
    assert_eq!(["copy_binary", "copy_mixed", "pipelined"].map(|plan| of_plan(&families, plan)), [0.0; 3]);
    let of = |series: &str| sum(&families, series, &of_t);
    assert_eq!(of("pgsluice_coalesce_flush_rows_sum"), shown("rows"));
    for histogram in ["flush_rows", "flush_seconds", "wait_seconds"] {
        assert_eq!(of(&format!("pgsluice_coalesce_{histogram}_count")), shown("flushes"), "{histogram}");
        assert!(of(&format!("pgsluice_coalesce_{histogram}_sum")) > 0.0, "{histogram}");
    }
    // All that has left has landed.
    tell(&mut Raw::login(proxy.port(), "pgsluice"), "FLUSH");
}

#[test]
fn rows_that_fall_back_are_counted_by_reason() {
    let server = Postgres::shared();
    let db = server.fresh_database(
        "CREATE TABLE words (b text PRIMARY KEY); INSERT INTO words VALUES ('w'), ('x');
         CREATE TABLE t (a int CHECK (a >= 0), b text REFERENCES words)",
    );
    let (proxy, port) = proxy(server, "", "");
    let mut clients = warmed(server, &proxy, &db, 32);
    let fallen = |families: &[Family], reason| {
        let labels = [("database", db.as_str()), ("reason", reason)];
        sum(families, "pgsluice_coalesce_fallback_rows_total", &labels)
    };
    let mut run = |bad: &str, seen: &dyn Fn(&[Family]) -> bool| {
        let mut round = 0;
        let seen = poll(PATIENCE, || {
            round += 1;
            let insert = |c| Step::query(&format!("INSERT INTO t (a, b) VALUES ({c}, 'w')"));
            let mut scripts: Vec<_> = (0..clients.len()).map(|c| vec![insert(c), insert(c)]).collect();
            scripts[7] = vec![Step::query(&format!("INSERT INTO t (a, b) VALUES ({bad})"))];
            crowd::run(&mut clients, &scripts, false);
            seen(&families(port)).then_some(())
        });
        assert!(seen.is_some(), "{bad} is not seen");
    };
    // An error that names its row, and one that does not.
    run("-1, 'w'", &|families| fallen(families, "row") > 0.0);
    run("1, 'nowhere'", &|families| {
        let halves = sum(families, "pgsluice_coalesce_bisects_total", &[("database", &db)]);
        fallen(families, "error") > 0.0 && halves > 0.0
    });
    // A lock that a flush does not wait for.
    let mut holder = Raw::login(server.port(), &db);
    let locked = poll(PATIENCE, || {
        holder.rows("BEGIN");
        holder.rows("LOCK TABLE t");
        (0..clients.len()).for_each(|c| send_insert(&mut clients[c], c));
        waiting(server, &db, 1);
        holder.rows("COMMIT");
        clients.iter_mut().for_each(|client| drop(client.read_until_ready()));
        (fallen(&families(port), "lock") > 0.0).then_some(())
    });
    assert!(locked.is_some(), "no flush met the lock");
    let families = families(port);
    let all = sum(&families, "pgsluice_coalesce_fallback_rows_total", &[("database", &db)]);
    let lane = lane(&mut Raw::login(proxy.port(), "pgsluice"), &db);
    assert_eq!(all, lane["fallbacks"].parse::<f64>().expect("a number"));
}

#[test]
fn names_stay_inside_their_quotes_and_a_client_library_reads_them() {
    const HOSTILE: &str = "a\"} 1\nb\\ {é\\n";
    let server = Postgres::shared();
    let quoted = HOSTILE.replace('"', "\"\"");
    let db = server.fresh_database(&format!("CREATE TABLE \"{quoted}\" (a int, b text)"));
    let (proxy, port) = proxy(server, "", "");
    let mut clients = crowd_of(proxy.port(), &db, 8);
    let table = format!("public.{HOSTILE}");
    let labels = [("database", db.as_str()), ("table", table.as_str())];
    let seen = poll(PATIENCE, || {
        let insert = Step::query(&format!("INSERT INTO \"{quoted}\" (a, b) VALUES (1, 'x')"));
        let scripts: Vec<_> = clients.iter().map(|_| vec![insert.clone()]).collect();
        crowd::run(&mut clients, &scripts, false);
        (sum(&families(port), "pgsluice_coalesce_rows_total", &labels) > 0.0).then_some(())
    });
    assert!(seen.is_some(), "{}", get(port, "/metrics"));
    // The same page, as prometheus_client reads it: kinds, and values by series and labels.
    let page = get(port, "/metrics");
    let (_, body) = page.split_once("\r\n\r\n").expect("a body");
    let theirs = read_by_client_library(body);
    let ours: Vec<String> = exposition::read(body).iter().flat_map(Family::outline).collect();
    assert_eq!(theirs, ours);
}

/// One line for each family and for each of its series, as the library understands them.
fn read_by_client_library(body: &str) -> Vec<String> {
    const PROGRAM: &str = "
import json, sys
from prometheus_client.parser import text_string_to_metric_families as families
for family in families(sys.stdin.buffer.read().decode()):
    suffix = '_total' if family.type == 'counter' else ''
    print(json.dumps([family.name + suffix, family.type], ensure_ascii=False))
    for sample in family.samples:
        labels = [list(label) for label in sorted(sample.labels.items())]
        print(json.dumps([sample.name, labels, float(sample.value)], ensure_ascii=False))
";
    let mut python = Command::new(prepared("python").join("bin/python"))
        .args(["-c", PROGRAM])
        .env("PYTHONIOENCODING", "utf-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python");
    python.stdin.take().expect("piped").write_all(body.as_bytes()).expect("write");
    let output = python.wait_with_output().expect("python ends");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON").to_string();
    text.lines().map(line).collect()
}

proptest! {
    #[test]
    fn whatever_stands_in_a_label_the_page_is_read_as_it_was_meant(
        names in proptest::collection::vec((any::<String>(), "[\"\\\\\n{},= #a]*", any::<u64>()), 0..9),
        numbers in proptest::collection::vec(0u64..1 << 20, 0..50),
    ) {
        let histogram = Histogram::default();
        numbers.iter().for_each(|&n| histogram.record(n));
        let mut page = Exposition::default();
        page.counter("a_total", "What.");
        for (i, (user, table, value)) in names.iter().enumerate() {
            let nth = i.to_string();
            page.add(&[("user", user), ("table", table), ("nth", &nth)], *value);
        }
        page.histogram("b", "That.").add_numbers(&[], &[&histogram]);
        page.histogram("c_seconds", "That.");
        if let Some((user, table, _)) = names.first() {
            page.add_times(&[("user", user), ("table", table)], &[&histogram]);
        }
        let read = exposition::read(&page.into_text());
        prop_assert_eq!(read[0].samples.len(), names.len());
        for (sample, (user, table, value)) in read[0].samples.iter().zip(&names) {
            prop_assert_eq!(sample.label("user"), Some(user.as_str()));
            prop_assert_eq!(sample.label("table"), Some(table.as_str()));
            prop_assert_eq!(sample.value, *value as f64);
        }
        prop_assert_eq!(sum(&read, "b_count", &[]), numbers.len() as f64);
        prop_assert_eq!(sum(&read, "b_sum", &[]), numbers.iter().sum::<u64>() as f64);
    }
}

fn query(sql: &str) -> Vec<u8> {
    let mut out = Vec::new();
    pgsluice::wire::frontend::put_query(&mut out, sql.as_bytes());
    out
}

#[test]
fn readiness_falls_before_the_last_client_has_gone() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let (mut proxy, port) = proxy(server, "", "");
    assert!(get(port, "/readyz").starts_with("HTTP/1.1 200 OK\r\n"));
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("BEGIN");
    proxy.terminate();
    let falls = poll(PATIENCE, || get(port, "/readyz").starts_with("HTTP/1.1 503 ").then_some(()));
    assert!(falls.is_some());
    assert!(get(port, "/healthz").ends_with("\r\n\r\nok\n"));
    assert_eq!(value(&get(port, "/metrics"), "pgsluice_draining"), 1.0);
    raw.send(&query("COMMIT"));
    raw.read_until_closed();
    assert!(proxy.wait_end().success());
}

#[test]
fn readiness_falls_before_clients_are_refused() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    // Until somebody says so again.
    let (mut proxy, port) = proxy(server, "shutdown_grace = 3600", "");
    let mut idle = Raw::login(proxy.port(), &database);
    proxy.terminate();
    let falls = poll(PATIENCE, || get(port, "/readyz").starts_with("HTTP/1.1 503 ").then_some(()));
    assert!(falls.is_some());
    let mut late = Raw::login(proxy.port(), &database);
    assert_eq!(late.value("SELECT 1").as_deref(), Some("1"));
    assert_eq!(idle.value("SELECT 1").as_deref(), Some("1"), "nobody is closed");
    let page = get(port, "/metrics");
    assert_eq!((value(&page, "pgsluice_ready"), value(&page, "pgsluice_draining")), (0.0, 0.0));
    assert!(get(port, "/").contains("<td>leaving: "));
    // The console ends the grace: a drain is a drain.
    late.rows("BEGIN");
    Raw::login(proxy.port(), "pgsluice").send(&query("SHUTDOWN WAIT_FOR_SERVERS"));
    idle.read_until_closed();
    assert!(get(port, "/readyz").starts_with("HTTP/1.1 503 "));
    late.send(&query("COMMIT"));
    late.read_until_closed();
    assert!(proxy.wait_end().success());
}

#[test]
fn a_drain_follows_the_grace_and_a_second_signal_ends_it() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let (mut leaving, _) = proxy(server, "shutdown_grace = \"300ms\"", "");
    let mut busy = Raw::login(leaving.port(), &database);
    busy.rows("BEGIN");
    leaving.terminate();
    leaving.wait_for_log("draining");
    let late = Raw::login_as(leaving.port(), &[("user", "postgres"), ("database", &database)], "");
    assert_eq!(late.err().expect("nobody is let in any more").sqlstate(), "57P01");
    busy.send(&query("COMMIT"));
    let last = busy.read_until_closed();
    assert_eq!(last.last().expect("a last word").sqlstate(), "57P01");
    assert!(leaving.wait_end().success());
    let (mut twice, port) = proxy(server, "shutdown_grace = 3600", "");
    let mut busy = Raw::login(twice.port(), &database);
    busy.rows("BEGIN");
    twice.terminate();
    let falls = poll(PATIENCE, || get(port, "/readyz").starts_with("HTTP/1.1 503 ").then_some(()));
    assert!(falls.is_some());
    twice.terminate();
    twice.wait_end();
}

#[test]
fn what_is_no_request_is_told() {
    let server = Postgres::shared();
    let (mut proxy, port) = proxy(server, "", "");
    let status = |request: &str| ask(port, request).split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(status("GET /nowhere HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(status("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), "405");
    assert_eq!(status("BREW /metrics HTTP/1.1\r\n\r\n"), "405");
    assert_eq!(status("GET /metrics HTTP/2.0\r\n\r\n"), "505");
    // Told at once, without an end that may never come.
    assert_eq!(status("\0\0\0\x08\x04\u{d}\x16"), "400");
    assert_eq!(status("GET /metrics\n"), "400");
    assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: a\r\n b\r\n"), "400");
    let long = "x".repeat(HTTP_REQUEST_BYTES_MAX);
    assert_eq!(status(&long), "431");
    assert_eq!(status(&format!("GET / HTTP/1.1\r\nA: {long}\r\n\r\n{long}")), "431");
    let (head, whole) = (ask(port, "HEAD /healthz HTTP/1.1\r\n\r\n"), get(port, "/healthz"));
    assert_eq!(format!("{head}ok\n"), whole);
    // A second request is nobody's: the connection ends with the first one's answer.
    let two = ask(port, "GET /healthz HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n");
    assert_eq!(two, whole);
    assert!(whole.contains("\r\nConnection: close\r\n") && whole.contains("\r\nCache-Control: no-store\r\n"));
    assert!(proxy.alive());
}

#[test]
fn an_answer_arrives_whatever_was_sent_behind_the_request() {
    let server = Postgres::shared();
    let (_proxy, port) = proxy(server, "", "");
    let behind = "x".repeat(HTTP_REST_BYTES_MAX / 2);
    for request in ["GET /metrics HTTP/1.1\r\n\r\n", "POST / HTTP/1.1\r\n\r\n", "\n"] {
        let answer = ask(port, &format!("{request}{behind}"));
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    }
}

#[test]
fn the_status_page_shows_what_is_not_well_and_obeys_no_name() {
    const HOSTILE: &str = "<img src=x onerror='alert(1)'>&amp;\u{202e}";
    const SHOWN: &str = "&lt;img src=x onerror=&#39;alert(1)&#39;&gt;&amp;amp;\\u{202e}";
    let server = Postgres::shared();
    server.psql("postgres", &format!("CREATE DATABASE \"{HOSTILE}\""));
    // Its name is no connection string.
    let mut direct = Raw::login(server.port(), HOSTILE);
    direct.query(&format!("CREATE TABLE \"{HOSTILE}\" (a int, b text)"));
    direct.query(&format!("CREATE VIEW \"{HOSTILE}v\" AS SELECT 1 AS a, ''::text AS b"));
    let (proxy, port) = proxy(server, "", "[policy]\nsql_prepare = \"deny\"");
    assert!(get(port, "/").contains("<h2>Poured</h2>\n<p>nothing</p>"));
    let mut clients = crowd_of(proxy.port(), HOSTILE, 8);
    clients[0].error("PREPARE p AS SELECT 1");
    let insert = |name: &str| Step::query(&format!("INSERT INTO \"{HOSTILE}{name}\" (a, b) VALUES (1, 'x')"));
    let page = poll(PATIENCE, || {
        let scripts: Vec<_> = clients.iter().map(|_| vec![insert("")]).collect();
        crowd::run(&mut clients, &scripts, false);
        clients[0].query(&format!("INSERT INTO \"{HOSTILE}v\" (a, b) VALUES (1, 'x')"));
        let page = get(port, "/");
        let (_, poured) = page.split_once("<h2>Poured</h2>")?;
        let (poured, not_poured) = poured.split_once("<h2>Not poured</h2>")?;
        let is_poured = poured.contains(&format!("<td>{SHOWN}</td><td>postgres</td><td>public.{SHOWN}</td>"));
        let has_reason = not_poured.contains(&format!("<td>{SHOWN}v</td><td>no</td><td>not a table</td>"));
        (is_poured && has_reason).then_some(page)
    });
    let page = page.unwrap_or_else(|| panic!("{}", get(port, "/")));
    let (head, body) = page.split_once("\r\n\r\n").expect("a head");
    assert!(head.contains("\r\nContent-Type: text/html; charset=utf-8\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Security-Policy: default-src 'none'; style-src 'sha256-"), "{head}");
    assert!(head.contains("\r\nCache-Control: no-store\r\n"), "{head}");
    assert!(
        body.contains(&format!(
            "<td>{SHOWN}</td><td>postgres</td><td>transaction</td><td class=\"n\">8</td>"
        ))
    );
    assert!(body.contains("<td>sql_prepare=deny</td><td class=\"n\">1</td><td class=\"n\">0</td>"), "{body}");
    assert!(
        body.contains(&format!("<td>{}</td>", env!("CARGO_PKG_VERSION"))) && body.contains("<td>ready</td>")
    );
    for never in ["<img", "<script", "<a ", "<link", "http:", "https:", "\u{202e}"] {
        assert!(!body.contains(never), "{never} in {body}");
    }
}

/// As many as there are places send nothing, or a byte now and then: others are answered all the same, and the slow ones end.
#[test]
fn who_is_slow_keeps_nobody_out_and_ends() {
    let server = Postgres::shared();
    let (mut proxy, port) = proxy(server, "", "");
    let connect = || TcpStream::connect(("127.0.0.1", port)).expect("connect");
    let mut slow: Vec<_> = (0..HTTP_CONNECTIONS_MAX * 4).map(|_| connect()).collect();
    slow.iter_mut().step_by(2).for_each(|stream| drop(stream.write_all(b"GET /met")));
    assert!(get(port, "/healthz").ends_with("ok\n"));
    // The oldest were closed at once; the last ones when their time is over, whatever they send.
    let ends = |stream: &mut TcpStream, limit| {
        stream.set_read_timeout(Some(limit)).expect("a timeout");
        matches!(stream.read(&mut [0]), Ok(0)) || stream.write_all(b"r").is_err()
    };
    assert!(ends(&mut slow[1], HTTP_TIME_MAX / 2), "the oldest is still there");
    let last = slow.last_mut().expect("some");
    let ended = poll(PATIENCE, || {
        let _ = last.write_all(b"G");
        ends(last, std::time::Duration::from_millis(100)).then_some(())
    });
    assert!(ended.is_some(), "a byte now and then keeps a connection open");
    assert!(proxy.alive());
}
