//! Bytes that nobody honest sends, from clients and from servers: a clear error, the connection closed, everybody else
//! unharmed, memory where it was.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;

use crate::support;
use pgsluice::wire::{TransactionStatus, backend as b, frame, frontend as f};
use support::{Message, PATIENCE, Postgres, Proxy, Raw, outline};

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
fn who_begins_with_no_startup_packet_is_told_nothing() {
    let server = Postgres::shared();
    let proxy = Proxy::to(server, "", "", "");
    for port in [server.port(), proxy.port()] {
        // What a driver says that is closed before it has begun; another protocol; a length of nothing.
        for bytes in [&b"X\0\0\0\x04"[..], b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0"] {
            let mut raw = Raw::connect(port);
            raw.send(bytes);
            assert_eq!(outline(&raw.read_until_closed()), "", "{bytes:?}");
        }
    }
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
    liar_of(vec![vec![answer]])
}

/// A server that lets everybody in and then answers `SELECT n` with the writes at `n`, or the last ones. Behind an empty one
/// it closes.
fn liar_of(answers: Vec<Vec<Vec<u8>>>) -> u16 {
    telling_liar_of(answers).0
}

/// As [`liar_of`]; it tells when all writes of an answer are done.
fn telling_liar_of(answers: Vec<Vec<Vec<u8>>>) -> (u16, mpsc::Receiver<()>) {
    greeting_liar_of(Vec::new(), answers)
}

/// As [`telling_liar_of`]; with its first ReadyForQuery, in one write, it says `behind`.
fn greeting_liar_of(behind: Vec<u8>, answers: Vec<Vec<Vec<u8>>>) -> (u16, mpsc::Receiver<()>) {
    let (done, written) = mpsc::channel();
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let said = Arc::new((behind, answers));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (said, done) = (Arc::clone(&said), done.clone());
            thread::spawn(move || serve(stream, &said.0, &said.1, &done));
        }
    });
    (port, written)
}

/// The number at the end of a Query's text.
fn number(query: &[u8]) -> usize {
    let text = String::from_utf8_lossy(query.strip_suffix(&[0]).unwrap_or(query)).into_owned();
    text.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(usize::MAX)
}

fn serve(
    mut stream: TcpStream,
    behind: &[u8],
    answers: &[Vec<Vec<u8>>],
    done: &mpsc::Sender<()>,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
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
    out.extend_from_slice(behind);
    stream.write_all(&out).ok()?;
    let mut seen = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let n = stream.read(&mut chunk).ok().filter(|n| *n > 0)?;
        seen.extend_from_slice(&chunk[..n]);
        while let Ok(Some((head, body))) = frame::whole(&seen, usize::MAX) {
            if head.tag == f::QUERY {
                let writes = answers.get(number(body)).or(answers.last())?;
                writes.iter().try_for_each(|write| stream.write_all(write)).ok()?;
                // Mostly nobody listens.
                let _ = done.send(());
                if writes.last().is_some_and(Vec::is_empty) {
                    return None;
                }
            }
            seen.drain(..head.total());
        }
    }
}

/// In front of `port`, with one connection to it at a time.
fn in_front_of(port: u16) -> Proxy {
    Proxy::start(&format!(
        "[general]\nlisten_addr = \"127.0.0.1\"\nlisten_port = @PORT@\nauth_type = \"trust\"\nadmin_users = [\"postgres\"]\nquery_wait_timeout = 20\n\
         default_pool_size = 1\nserver_login_retry = 1\nworkers = 1\n\
         [databases.\"*\"]\nhost = \"127.0.0.1\"\nport = {port}\n"
    ))
}

fn through_a_liar(answer: Vec<u8>) -> (Proxy, Vec<Message>) {
    let proxy = in_front_of(liar(answer));
    let mut raw = Raw::login(proxy.port(), "any");
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
    ];
    for (what, answer) in cases {
        let (mut proxy, heard) = through_a_liar(answer);
        let state = last_error(&heard);
        assert!(matches!(state.as_deref(), Some("08P01" | "08006")), "{what}: {state:?} {}", outline(&heard));
        assert!(proxy.alive(), "{what}");
    }
}

/// What pgsluice has to say would be read as the rest of the row.
#[test]
fn a_row_that_breaks_off_is_not_filled_up() {
    let description =
        honest(b::ROW_DESCRIPTION, b"\0\x01v\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0");
    let torn = [description, message(b::DATA_ROW, 30, b"\0\x01\0\0\0\x14torn")].concat();
    let bogus = [&[b'x'; 16][..], &honest(b'?', b"")].concat();
    let answers = vec![vec![torn.clone()], vec![torn.clone(), Vec::new()], vec![torn, bogus]];
    let mut proxy = in_front_of(liar_of(answers));
    for (way, expected) in ["", "", "DE"].into_iter().enumerate() {
        let mut raw = Raw::login(proxy.port(), "any");
        raw.send(&honest(f::QUERY, format!("SELECT {way}\0").as_bytes()));
        assert_eq!(raw.read().tag, b::ROW_DESCRIPTION);
        if way == 0 {
            Raw::login(proxy.port(), "pgsluice").rows("KILL any");
        }
        assert_eq!(tags(&raw.read_until_closed()), expected);
        if way == 0 {
            Raw::login(proxy.port(), "pgsluice").rows("RESUME any");
        }
    }
    assert!(proxy.alive());
}

#[test]
fn errors_with_fields_missing_pass_as_they_are() {
    let mut answer = honest(b::ERROR_RESPONSE, b"\0");
    answer.extend(honest(b::ERROR_RESPONSE, b"SERROR\0Mno state\0\0"));
    b::put_ready_for_query(&mut answer, TransactionStatus::Idle);
    let mut proxy = in_front_of(liar(answer));
    let mut raw = Raw::login(proxy.port(), "any");
    let answer = raw.query("SELECT 1");
    assert_eq!(answer.iter().filter(|m| m.tag == b::ERROR_RESPONSE).count(), 2, "{}", outline(&answer));
    assert!(proxy.alive());
}

/// One row, `ok`.
fn good() -> Vec<u8> {
    let mut out = honest(b::ROW_DESCRIPTION, b"\0\x01v\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0");
    b::put_data_row(&mut out, [Some(&b"ok"[..])].into_iter());
    b::put_command_complete(&mut out, b"SELECT 1");
    b::put_ready_for_query(&mut out, TransactionStatus::Idle);
    out
}

fn tags(messages: &[Message]) -> String {
    messages.iter().map(|m| char::from(m.tag)).collect()
}

/// Every message type of a server, and one that is none.
const ANSWERS: &[u8] = b"123ACDEGHIKNRSTVWZcdnstv?";

#[test]
fn lying_lengths_in_every_answer_cost_their_client_only() {
    let lengths = [0u32, 1, 3, 0x4000_0004, 1 << 31, u32::MAX];
    let mut answers: Vec<_> =
        ANSWERS.iter().flat_map(|tag| lengths.map(|length| vec![message(*tag, length, b"abc")])).collect();
    let cases = answers.len();
    answers.push(vec![good()]);
    let mut proxy = in_front_of(liar_of(answers));
    let mut bystander = Raw::login(proxy.port(), "any");
    assert_eq!(tags(&bystander.query("SELECT 99999")), "TDCZ");
    let before = proxy.rss();
    for case in 0..cases {
        let mut raw = Raw::login(proxy.port(), "any");
        raw.send(&honest(f::QUERY, format!("SELECT {case}\0").as_bytes()));
        let heard = raw.read_until_closed();
        let (tag, length) = (char::from(ANSWERS[case / 6]), lengths[case % 6]);
        let state = last_error(&heard);
        assert!(matches!(state.as_deref(), Some("08P01" | "08006")), "{tag} {length}: {}", outline(&heard));
    }
    assert_eq!(tags(&bystander.query("SELECT 99999")), "TDCZ");
    assert!(proxy.alive() && proxy.rss() < before + GROWTH_MAX, "{} -> {}", before, proxy.rss());
}

/// An answer up to its end or that of the session, but for what tells of settings: those hold on the server at hand.
fn heard_but_settings(raw: &mut Raw) -> Vec<Message> {
    let mut heard = Vec::new();
    while heard.last().is_none_or(|m: &Message| m.tag != b::READY_FOR_QUERY) {
        let Some(message) = raw.try_read() else { break };
        if message.tag != b::PARAMETER_STATUS {
            heard.push(message);
        }
    }
    heard
}

#[test]
fn what_a_server_says_unasked_reaches_no_other_client() {
    let body = |tag: u8| -> &[u8] {
        match tag {
            b::READY_FOR_QUERY => b"I",
            b::PARAMETER_STATUS => b"some.setting\0of another\0",
            b::NOTIFICATION_RESPONSE => b"\0\0\0\x01channel\0of another\0",
            b::ERROR_RESPONSE | b::NOTICE_RESPONSE => b"SERROR\0C57014\0Mof another\0\0",
            b::DATA_ROW => b"\0\x01\0\0\0\x0aof another",
            b::COMMAND_COMPLETE => b"SELECT 7\0",
            _ => b"\0\0\0\0\0\0",
        }
    };
    // Behind its answer, in one write and in two; and half a message.
    let mut answers = Vec::new();
    for tag in ANSWERS {
        let extra = honest(*tag, body(*tag));
        answers.push(vec![[good(), extra.clone()].concat()]);
        answers.push(vec![good(), extra.clone()]);
        answers.push(vec![[good(), extra[..extra.len() - 1].to_vec()].concat()]);
    }
    let cases = answers.len();
    answers.push(vec![good()]);
    let (port, written) = telling_liar_of(answers);
    let mut proxy = in_front_of(port);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut victim = Raw::login(proxy.port(), "any");
    for case in 0..cases {
        let tag = char::from(ANSWERS[case / 3]);
        let mut raw = Raw::login(proxy.port(), "any");
        raw.send(&honest(f::QUERY, format!("SELECT {case}\0").as_bytes()));
        written.recv_timeout(PATIENCE).expect("an answer");
        // Its own client may pay for it.
        let heard = heard_but_settings(&mut raw);
        let state = last_error(&heard);
        assert!(
            tags(&heard) == "TDCZ" || state.as_deref() == Some("08P01"),
            "{tag} {case}: {}",
            outline(&heard)
        );
        // The one worker has then heard of whatever was written before; what a server says behind the victim's question is an
        // answer to it, whatever the server means.
        console.query("SHOW VERSION");
        victim.send(&honest(f::QUERY, b"SELECT 99999\0"));
        let heard = heard_but_settings(&mut victim);
        written.recv_timeout(PATIENCE).expect("an answer");
        assert!(!outline(&heard).contains("another"), "{tag} {case}: {}", outline(&heard));
        assert_eq!(tags(&heard), "TDCZ", "{tag} {case}: {}", outline(&heard));
    }
    assert!(proxy.alive());
}

/// A setting that changes as the login ends, a notice of a library: they are as good as those that come a moment later.
#[test]
fn what_a_server_says_with_its_first_ready_for_query_is_taken_in() {
    let setting = honest(b::PARAMETER_STATUS, b"in_hot_standby\0off\0");
    let notice = honest(b::NOTICE_RESPONSE, b"SNOTICE\0C00000\0Mwelcome\0\0");
    for behind in [setting.clone(), notice.clone(), [setting, notice].concat()] {
        let mut proxy = in_front_of(greeting_liar_of(behind, vec![vec![good()]]).0);
        let mut raw = Raw::login(proxy.port(), "any");
        raw.send(&honest(f::QUERY, b"SELECT 1\0"));
        let heard = heard_but_settings(&mut raw);
        assert_eq!(tags(&heard), "TDCZ", "{}", outline(&heard));
        assert!(proxy.alive());
    }
}

#[test]
fn storms_pass_or_end_and_hold_no_memory() {
    let mut statuses = Vec::new();
    for n in 0..3000 {
        b::put_parameter_status(&mut statuses, format!("setting.number_{n}").as_bytes(), &[b'x'; 15_000]);
    }
    let long = |len: usize| honest(b::PARAMETER_STATUS, &[&b"name\0"[..], &vec![b'x'; len], b"\0"].concat());
    let longs: Vec<u8> = (0..60).flat_map(|n| long(900_000 + n)).collect();
    let mut notices = Vec::new();
    for _ in 0..5000 {
        notices.extend(honest(b::NOTICE_RESPONSE, b"SNOTICE\0C00000\0Mx\0\0"));
        notices.extend(honest(b::NOTIFICATION_RESPONSE, b"\0\0\0\x01channel\0x\0"));
    }
    let mut error =
        honest(b::ERROR_RESPONSE, &[&b"SERROR\0C57014\0M"[..], &vec![b'x'; 40 << 20], b"\0\0"].concat());
    b::put_ready_for_query(&mut error, TransactionStatus::Idle);
    let storms = [[statuses, good()].concat(), [longs, good()].concat(), [notices, good()].concat(), error];
    let mut answers: Vec<_> = storms.map(|storm| vec![storm]).into();
    let cases = answers.len();
    answers.push(vec![good()]);
    let mut proxy = in_front_of(liar_of(answers));
    let mut bystander = Raw::login(proxy.port(), "any");
    assert_eq!(tags(&bystander.query("SELECT 99999")), "TDCZ");
    let before = proxy.rss();
    for case in 0..cases {
        let mut raw = Raw::login(proxy.port(), "any");
        raw.send(&honest(f::QUERY, format!("SELECT {case}\0").as_bytes()));
        let mut last = 0;
        while let Some(message) = raw.try_read() {
            last = message.tag;
            if last == b::READY_FOR_QUERY {
                break;
            }
        }
        assert!(matches!(last, b::READY_FOR_QUERY | b::ERROR_RESPONSE), "{case}: {last}");
        drop(raw);
        let heard = bystander.query("SELECT 99999");
        let rows: Vec<_> = heard.into_iter().filter(|m| m.tag != b::PARAMETER_STATUS).collect();
        assert_eq!(tags(&rows), "TDCZ", "{case}");
        assert!(proxy.rss() < before + GROWTH_MAX, "{case}: {} -> {}", before, proxy.rss());
    }
    assert!(proxy.alive());
}

// ===== schemas that lie =====

/// Every function and operator of `pg_catalog` over ordinary types, again in schema `evil`, as a trap.
const TRAPS: &str = r"
CREATE SCHEMA evil;
DO $$
DECLARE f record; o record; n int := 0;
BEGIN
  FOR f IN SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
    FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.provariadic = 0
     AND p.prorettype NOT IN (SELECT oid FROM pg_type WHERE typtype = 'p')
     AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) a JOIN pg_type t ON t.oid = a WHERE t.typtype = 'p')
     AND (p.proallargtypes IS NULL)
  LOOP
    EXECUTE format('CREATE OR REPLACE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION ''''trap''''; END''',
      f.proname, regexp_replace(f.arguments, '[^,]* DEFAULT [^,]*', '', 'g'), f.result);
    n := n + 1;
  END LOOP;
  FOR o IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result, oid
    FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprkind = 'b' AND oprcode <> 0
     AND oprname IN ('=', '<>', '<', '>', '<=', '>=', '||', '~', '->', '->>', '+', '-', '*')
     AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid IN (oprleft, oprright, oprresult) AND t.typtype = 'p')
  LOOP
    EXECUTE format('CREATE FUNCTION evil.op_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS ''BEGIN RAISE EXCEPTION ''''trap''''; END''',
      o.oid, o.l, o.r, o.result);
    EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.op_%s, LEFTARG = %s, RIGHTARG = %s)', o.oprname, o.oid, o.l, o.r);
    n := n + 1;
  END LOOP;
  IF n < 1000 THEN RAISE EXCEPTION 'only % traps', n; END IF;
END $$;
CREATE TABLE public.t (a pg_catalog.int4, b pg_catalog.text);
";

/// Whatever we ask a server on a client's connection, the client's schemas have no say in it.
#[test]
fn a_trap_in_every_name_of_pg_catalog_is_never_stepped_into() {
    let server = Postgres::shared();
    let database = server.fresh_database(TRAPS);
    for mode in ["transaction", "session"] {
        let general = format!("pool_mode = \"{mode}\"\ndefault_pool_size = 1\nserver_check_delay = 0");
        let mut proxy = Proxy::to(server, &general, "", "");
        let login = || {
            let path =
                [("user", "postgres"), ("database", &database), ("search_path", "evil, pg_catalog, public")];
            Raw::login_as(proxy.port(), &path, "").unwrap_or_else(|e| panic!("{}", e.outline()))
        };
        let mut raw = login();
        assert!(raw.error("SELECT current_setting('role')").field(b'M').contains("trap"), "the trap is set");
        // What makes us ask: settings, a role, what is bound to a connection, a function that nobody knows.
        for sql in [
            "SET app.name = 'x'",
            "SELECT pg_catalog.set_config('work_mem', '5MB', false)",
            "SET ROLE postgres",
            "LISTEN channel",
            "UNLISTEN *",
            "SELECT pg_catalog.pg_advisory_lock(1)",
            "SELECT pg_catalog.pg_advisory_unlock_all()",
            "CREATE TEMP TABLE mine (a pg_catalog.int4)",
            "DROP TABLE pg_temp.mine",
            "PREPARE p AS SELECT 1",
            "DEALLOCATE p",
            "SET client_encoding = 'LATIN1'",
            "SET app.name = 'y'",
            "RESET client_encoding",
            "BEGIN",
            "COMMIT",
            "DISCARD ALL",
        ] {
            let answer = raw.query(sql);
            assert_eq!(last_error(&answer), None, "{mode} {sql}: {}", outline(&answer));
        }
        raw.rows("SET search_path = evil, pg_catalog, public");
        // And the INSERTs that are poured: one client's pipeline, again and again, so that the table is known.
        for _ in 0..5 {
            let mut out = Vec::new();
            for _ in 0..20 {
                f::put_parse(&mut out, b"", b"INSERT INTO public.t (a, b) VALUES ($1, $2)", &[]);
                f::put_bind_text(&mut out, b"", &[Some(b"1"), Some(b"x")]);
                f::put_execute(&mut out, b"", 0);
            }
            f::put_empty(&mut out, f::SYNC);
            raw.send(&out);
            let answer = raw.read_until_ready();
            assert_eq!(last_error(&answer), None, "{mode}: {}", outline(&answer));
        }
        raw.terminate();
        let mut next = login();
        assert_eq!(last_error(&next.query("SELECT a FROM public.t")), None);
        assert!(proxy.alive());
        let log = proxy.log();
        assert!(!log.contains("trap"), "{log}");
    }
    assert_eq!(server.psql(&database, "SELECT pg_catalog.count(*) FROM public.t").trim(), "200");
}
