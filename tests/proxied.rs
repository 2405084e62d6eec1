//! Clients behind a balancer that says who they are (PROXY protocol).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support;
use pgsluice::wire::{backend as b, frontend as f};
use socket2::{Domain, Protocol, Socket, Type};
use support::console::{show, until};
use support::{Certs, PATIENCE, Postgres, Proxy, Raw};

/// Who is believed; tests themselves come from 127.0.0.1.
const BALANCER: &str = "127.0.0.2";
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

fn proxy(server: &Postgres, general: &str, rest: &str) -> Proxy {
    Proxy::to(server, &format!("proxy_protocol_from = [\"{BALANCER}\"]\n{general}"), "", rest)
}

/// A connection of the balancer's, on which it has said this.
fn balanced(proxy: &Proxy, header: &[u8]) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("socket");
    socket.bind(&SocketAddr::new(BALANCER.parse().expect("an address"), 0).into()).expect("bind");
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], proxy.port())).into()).expect("connect");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(header).expect("send");
    stream
}

fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let len = u16::try_from(rest.len()).expect("short").to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[0x20 | command, family], &len, rest].concat()
}

fn login(stream: TcpStream) -> Result<Raw, support::Message> {
    let mut raw = Raw::over(stream);
    raw.startup(3 << 16, &[("user", "postgres"), ("database", "postgres")]);
    raw.authenticate("postgres", "").map(|()| raw)
}

/// What is sent until the end.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    all
}

#[test]
fn the_address_that_the_balancer_names_is_the_client_s() {
    let server = Postgres::shared();
    let hba = "host all all 203.0.113.0/24 trust\nhost all all 2001:db8::/32 trust\nhost pgsluice all 127.0.0.1/32 trust\n\
               host all all 127.0.0.2/32 trust\n";
    let config = Proxy::config(
        server,
        &format!("proxy_protocol_from = [\"{BALANCER}\"]\nauth_type = \"hba\"\nauth_hba_file = \"hba\""),
        "",
        "[networks.\"203.0.113.0/24\".policy]\nsimple_query = \"deny\"",
    );
    let proxy = Proxy::start_with(&config, &[("hba", hba)]);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let ipv4 = [203, 0, 113, 7, 10, 0, 0, 1, 0x30, 0x39, 0x19, 0x20];
    let ipv6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[9], &[0; 16], &[0, 77, 0, 1]].concat();
    for (header, addr, port) in [
        (b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 6432\r\n".to_vec(), "203.0.113.7", "4711"),
        (b"PROXY TCP6 2001:db8::8 ::1 65535 6432\r\n".to_vec(), "2001:db8::8", "65535"),
        (v2(1, 0x11, &ipv4), "203.0.113.7", "12345"),
        (v2(1, 0x11, &[&ipv4[..], &[4, 0, 2, 9, 9]].concat()), "203.0.113.7", "12345"),
        (v2(1, 0x21, &ipv6), "2001:db8::9", "77"),
    ] {
        let mut raw = login(balanced(&proxy, &header)).unwrap_or_else(|e| panic!("{addr}: {}", e.outline()));
        until(&mut console, "SHOW CLIENTS", &[("database", "postgres"), ("addr", addr), ("port", port)]);
        if addr.starts_with("203") {
            assert_eq!(raw.error("SELECT 1").sqlstate(), "42501", "the rule of its network");
            let event = proxy.wait_for_log("\"rule\"");
            assert!(event.contains("203.0.113.7"), "{event}");
        } else {
            assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
        }
        raw.terminate();
    }
    // Its own address, where it speaks for itself or does not know.
    for header in [b"PROXY UNKNOWN\r\n".to_vec(), v2(0, 0, &[]), v2(0, 0x11, &ipv4), v2(1, 0, &[])] {
        let raw = login(balanced(&proxy, &header)).unwrap_or_else(|e| panic!("{}", e.outline()));
        until(&mut console, "SHOW CLIENTS", &[("database", "postgres"), ("addr", BALANCER)]);
        raw.terminate();
    }
    // Whom the rules do not know is not let in, wherever the balancer is.
    let error = login(balanced(&proxy, b"PROXY TCP4 198.51.100.1 10.0.0.1 1 2\r\n")).err().expect("refused");
    assert!(error.field(b'M').contains("host \"198.51.100.1\""), "{}", error.outline());
}

#[test]
fn who_is_not_listed_is_not_believed_and_who_is_must_say_it() {
    let server = Postgres::shared();
    let mut proxy = proxy(server, "", "");
    for first in [
        &SSL_REQUEST[..],
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 x\r\n",
        &v2(1, 0x11, &[1, 2, 3]),
        b"\r\n\r\nQUIT, not quite",
    ] {
        assert_eq!(rest(balanced(&proxy, first)), b"", "{first:?}");
    }
    proxy.wait_for_log("PROXY header");
    let long = [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat();
    assert_eq!(rest(balanced(&proxy, &long)), b"");
    assert_eq!(rest(balanced(&proxy, &v2(1, 0x11, &[0; 4000]))), b"");
    let mut stranger = TcpStream::connect(("127.0.0.1", proxy.port())).expect("connect");
    stranger.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stranger.write_all(b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 6432\r\n").expect("send");
    assert!(!rest(stranger).contains(&b'R'), "no authentication request");
    assert!(proxy.alive());
    let mut console = Raw::login(proxy.port(), "pgsluice");
    assert!(show(&mut console, "SHOW CLIENTS").iter().all(|row| row["addr"] == "127.0.0.1"));
}

#[test]
fn a_header_that_does_not_end_is_waited_for_no_longer_than_a_login() {
    let server = Postgres::shared();
    let proxy = proxy(server, "client_login_timeout = 1", "");
    for start in [&b""[..], b"PROXY TCP4 1", &v2(1, 0x11, &[1; 12])[..20]] {
        assert_eq!(rest(balanced(&proxy, start)), b"");
    }
    proxy.wait_for_log("client_login_timeout");
}

#[test]
fn tls_and_cancel_requests_come_behind_the_header() {
    let server = Postgres::shared();
    let certs = Certs::new("postgres");
    let tls = format!(
        "client_tls_sslmode = \"prefer\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    let proxy = proxy(server, &tls, "");
    let header = b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 6432\r\n";
    let mut stream = balanced(&proxy, &[&header[..], &SSL_REQUEST].concat());
    let mut answer = [0];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, *b"S");
    let mut raw = login(balanced(&proxy, header)).unwrap_or_else(|e| panic!("{}", e.outline()));
    let mut query = Vec::new();
    f::put_query(&mut query, b"SELECT pg_sleep(600)");
    raw.send(&query);
    let packet = support::cancel_packet(raw.pid, &raw.key);
    let cancelled = support::poll(PATIENCE, || {
        assert_eq!(rest(balanced(&proxy, &[&header[..], &packet].concat())), b"");
        raw.has_answer().then_some(())
    });
    assert!(cancelled.is_some());
    let messages = raw.read_until_ready();
    let error = messages.iter().find(|m| m.tag == b::ERROR_RESPONSE).expect("an error");
    assert_eq!(error.sqlstate(), "57014");
}
