//! The HTTP port: what is counted, and whether clients should be sent here.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use support::{PATIENCE, Postgres, Proxy, Raw, free_port, poll};

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
    let page = get(port, "/metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{page}");
    assert!(value(&page, "pgsluice_resident_bytes") > 1e6, "{page}");
    // As a scraper reads it: each name announced once, its series behind it.
    let (_, body) = page.split_once("\r\n\r\n").expect("a body");
    let mut announced = Vec::new();
    for line in body.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(family) => {
                let name = family.split(' ').next().expect("a name").to_owned();
                assert!(!announced.contains(&name), "{name} stands twice");
                announced.push(name);
            }
            None if line.starts_with('#') => {}
            None => assert!(line.starts_with(announced.last().expect("a family")), "{line}"),
        }
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
fn what_is_no_request_is_told_and_holds_nothing() {
    let server = Postgres::shared();
    let (mut proxy, port) = proxy(server, "", "");
    assert!(get(port, "/").starts_with("HTTP/1.1 404 "));
    assert!(ask(port, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(ask(port, "\0\0\0\x08\x04\u{d}\x16\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(ask(port, &"x".repeat(8 << 10)).starts_with("HTTP/1.1 431 "));
    let head = ask(port, "HEAD /healthz HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    // As many as there are places say nothing: one more is closed at once, and PostgreSQL's port does not care.
    let silent: Vec<_> = (0..pgsluice::limits::HTTP_CONNECTIONS_MAX)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).expect("connect"))
        .collect();
    let mut one_more = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    one_more.set_read_timeout(Some(pgsluice::limits::HTTP_TIME_MAX / 2)).expect("a timeout");
    assert_eq!(one_more.read(&mut [0]).expect("the end, not silence"), 0);
    assert!(proxy.alive());
    drop(silent);
    let again = poll(PATIENCE, || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.ends_with("ok\n").then_some(())
    });
    assert!(again.is_some());
}
