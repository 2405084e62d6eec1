//! Bytes that nobody honest sends, from clients and from servers: a clear error, the connection closed, everybody else
//! unharmed, memory where it was.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use pgsluice::wire::{TransactionStatus, backend as b, frame, frontend as f};
use support::{Message, Postgres, Proxy, Raw, outline};

/// Bytes that the process may grow by under all of a test's attacks.
const GROWTH_MAX: u64 = 32 << 20;

fn message(tag: u8, length: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn honest(tag: u8, body: &[u8]) -> Vec<u8> {
    message(tag, body.len() as u32 + 4, body)
}

/// The SQLSTATE of the error that the connection ends with.
fn last_error(messages: &[Message]) -> Option<String> {
    messages.iter().rev().find(|m| m.tag == b::ERROR_RESPONSE).map(Message::sqlstate)
}

fn is_well(proxy: &mut Proxy, bystander: &mut Raw) {
    assert!(proxy.alive());
    assert_eq!(bystander.value("SELECT 42").as_deref(), Some("42"));
}

#[test]
fn lying_lengths_in_every_message_end_their_own_session_only() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let mut proxy = Proxy::to(server, "", "", "");
    let mut bystander = Raw::login(proxy.port(), &database);
    let before = proxy.rss();
    for tag in *b"BCdcfDEHFPQSXp" {
        for length in [0u32, 1, 3, 1 << 30, (1 << 31) - 1, 1 << 31, u32::MAX] {
            let mut raw = Raw::login(proxy.port(), &database);
            raw.send(&message(tag, length, b"abc"));
            let answer = raw.read_until_closed();
            assert_eq!(last_error(&answer).as_deref(), Some("08P01"), "{} {length}", char::from(tag));
        }
    }
    is_well(&mut proxy, &mut bystander);
    assert!(proxy.rss() < before + GROWTH_MAX, "{} -> {}", before, proxy.rss());
}

#[test]
fn unknown_and_misplaced_messages_are_named_and_end_the_session() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let mut proxy = Proxy::to(server, "", "", "");
    let mut bystander = Raw::login(proxy.port(), &database);
    for tag in (0..=255u8).filter(|tag| !b"BCdcfDEHFPQSXp".contains(tag)).chain([b'p']) {
        let mut raw = Raw::login(proxy.port(), &database);
        raw.send(&honest(tag, b"x\0"));
        let answer = raw.read_until_closed();
        assert_eq!(last_error(&answer).as_deref(), Some("08P01"), "type {tag}: {}", outline(&answer));
    }
    is_well(&mut proxy, &mut bystander);
}

#[test]
fn malformed_bodies_are_refused_before_or_by_the_server() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let mut proxy = Proxy::to(server, "", "", "");
    let mut bystander = Raw::login(proxy.port(), &database);
    let bodies: &[(u8, &[u8])] = &[
        (f::QUERY, b"no zero"),
        (f::QUERY, b"zero\0 in the middle"),
        (f::PARSE, b""),
        (f::PARSE, b"name without end"),
        (f::PARSE, b"s\0select 1\0\x7f\xff"),
        (f::PARSE, b"s\0select 1\0\xff\xff\0\0\0\0"),
        (f::BIND, b""),
        (f::BIND, b"\0no end"),
        (f::BIND, b"\0\0\0\x01"),
        (f::BIND, b"\0\0\0\0\0\x01\x7f\xff\xff\xff\0\0"),
        (f::DESCRIBE, b"Xname\0"),
        (f::DESCRIBE, b""),
        (f::CLOSE, b"S"),
        (f::EXECUTE, b""),
        (f::FUNCTION_CALL, b"\0"),
    ];
    for (tag, body) in bodies {
        let mut raw = Raw::login(proxy.port(), &database);
        // In one write: the connection may be closed behind the first of them.
        raw.send(&[honest(*tag, body), honest(f::SYNC, b""), honest(f::TERMINATE, b"")].concat());
        let answer = raw.read_until_closed();
        assert!(
            last_error(&answer).is_some(),
            "{} {}: {}",
            char::from(*tag),
            body.escape_ascii(),
            outline(&answer)
        );
    }
    is_well(&mut proxy, &mut bystander);
}

#[test]
fn clients_that_announce_much_and_send_little_hold_no_memory() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let mut proxy = Proxy::to(server, "default_pool_size = 2\nquery_wait_timeout = 600", "", "");
    let mut bystander = Raw::login(proxy.port(), &database);
    let before = proxy.rss();
    let mut trickling: Vec<Raw> = (0..200).map(|_| Raw::login(proxy.port(), &database)).collect();
    for raw in &mut trickling {
        // A Parse that announces 15 MB: it would be held whole, but only what came is.
        raw.send(&message(f::PARSE, 15 << 20, b"s\0select"));
    }
    is_well(&mut proxy, &mut bystander);
    assert!(proxy.rss() < before + GROWTH_MAX, "{} -> {}", before, proxy.rss());
}

// ===== servers that lie =====

/// A server that lets everybody in and then answers each Query with `answer`.
fn liar(answer: Vec<u8>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || serve(stream, &answer));
        }
    });
    port
}

fn serve(mut stream: TcpStream, answer: &[u8]) -> Option<()> {
    let mut length = [0; 4];
    loop {
        stream.read_exact(&mut length).ok()?;
        let mut packet = vec![0; u32::from_be_bytes(length) as usize - 4];
        stream.read_exact(&mut packet).ok()?;
        if packet.get(..4) == Some(&80_877_103u32.to_be_bytes()) {
            stream.write_all(b"N").ok()?;
            continue;
        }
        break;
    }
    let mut out = honest(b::AUTHENTICATION, &[0, 0, 0, 0]);
    for (name, value) in
        [("server_version", "15.0"), ("client_encoding", "UTF8"), ("standard_conforming_strings", "on")]
    {
        b::put_parameter_status(&mut out, name.as_bytes(), value.as_bytes());
    }
    b::put_backend_key_data(&mut out, 1, &[0; 4]);
    b::put_ready_for_query(&mut out, TransactionStatus::Idle);
    stream.write_all(&out).ok()?;
    let mut seen = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let n = stream.read(&mut chunk).ok().filter(|n| *n > 0)?;
        seen.extend_from_slice(&chunk[..n]);
        while let Ok(Some((head, _))) = frame::whole(&seen, usize::MAX) {
            if head.tag == f::QUERY {
                stream.write_all(answer).ok()?;
            }
            seen.drain(..head.total());
        }
    }
}

fn through_a_liar(answer: Vec<u8>, before: impl FnOnce(&Proxy)) -> (Proxy, Vec<Message>) {
    let port = liar(answer);
    let config = "[general]\nlisten_addr = \"127.0.0.1\"\nlisten_port = @PORT@\nauth_type = \"trust\"\nquery_wait_timeout = 20\n\
         [databases.\"*\"]\nhost = \"127.0.0.1\"\nport = @SERVER@\n"
        .replace("@SERVER@", &port.to_string());
    let proxy = Proxy::start(&config);
    let mut raw = Raw::login(proxy.port(), "any");
    before(&proxy);
    raw.send(&honest(f::QUERY, b"SELECT 1\0"));
    let answer = raw.read_until_closed();
    (proxy, answer)
}

#[test]
fn servers_that_break_the_protocol_cost_their_client_only() {
    let mut huge = message(b::COMMAND_COMPLETE, (1 << 30) + 4, b"SELECT 1");
    huge.extend_from_slice(&[0; 64]);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("an answer nobody asked for", honest(b::BIND_COMPLETE, b"")),
        ("an unknown type", honest(b'?', b"")),
        ("a length below itself", message(b::DATA_ROW, 3, b"")),
        ("a negative length", message(b::DATA_ROW, u32::MAX, b"")),
        ("more than the limit", huge),
        ("a status that is none", honest(b::READY_FOR_QUERY, b"X")),
        ("a status too long", honest(b::READY_FOR_QUERY, b"II")),
        ("a login message", honest(b::AUTHENTICATION, &[0, 0, 0, 0])),
        ("ParameterStatus without end", honest(b::PARAMETER_STATUS, b"name")),
        ("the end", Vec::new()),
    ];
    for (what, answer) in cases {
        let closes = answer.is_empty();
        if closes {
            continue;
        }
        let (mut proxy, heard) = through_a_liar(answer, |_| {});
        let state = last_error(&heard);
        assert!(matches!(state.as_deref(), Some("08P01" | "08006")), "{what}: {state:?} {}", outline(&heard));
        assert!(proxy.alive(), "{what}");
    }
}

#[test]
fn errors_with_fields_missing_pass_as_they_are() {
    let mut answer = honest(b::ERROR_RESPONSE, b"\0");
    answer.extend(honest(b::ERROR_RESPONSE, b"SERROR\0Mno state\0\0"));
    b::put_ready_for_query(&mut answer, TransactionStatus::Idle);
    let port = liar(answer);
    let config = format!(
        "[general]\nlisten_addr = \"127.0.0.1\"\nlisten_port = @PORT@\nauth_type = \"trust\"\n\
         [databases.\"*\"]\nhost = \"127.0.0.1\"\nport = {port}\n"
    );
    let mut proxy = Proxy::start(&config);
    let mut raw = Raw::login(proxy.port(), "any");
    let answer = raw.query("SELECT 1");
    assert_eq!(answer.iter().filter(|m| m.tag == b::ERROR_RESPONSE).count(), 2, "{}", outline(&answer));
    assert!(proxy.alive());
}
