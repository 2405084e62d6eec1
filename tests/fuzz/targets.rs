//! What each fuzz target does with its bytes: one function for each parser of bytes from outside.
//!
//! Owns: the properties that must hold for any bytes. Never: where the bytes come from: `fuzz_targets/` feeds
//! these from libFuzzer, `tests/fuzz_seeds.rs` from the committed seeds.

use std::sync::Arc;

use pgsluice::admin::parse::{Role, parse};
use pgsluice::auth::scram::{Binding, Client, Server, Verifier};
use pgsluice::coalesce::catalog;
use pgsluice::limits::{SMALL_MESSAGE_BYTES_MAX, STARTUP_BYTES_MAX};
use pgsluice::policy::{Lexing, Rules, Verdict, judge_query};
use pgsluice::settings::{Policy, SimpleQuery};
use pgsluice::sql::insert::{Class, Lifted, decode_string, lift, quick_reject};
use pgsluice::sql::{effects, meaning, scan};
use pgsluice::wire::frontend::{self, Bind, Parse};
use pgsluice::wire::startup::{self, Startup, StartupPacket};
use pgsluice::wire::{backend, copy, frame};

/// A target: its name, which is also its corpus' directory, and what it does.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All of them.
pub(crate) const ALL: &[Target] = &[
    ("frontend", frontend_messages),
    ("backend", backend_messages),
    ("startup", startup_packets),
    ("scram", scram_messages),
    ("config", configuration),
    ("sql", sql_texts),
    ("policy", policy_verdicts),
    ("copy", copy_rows),
    ("console", console),
    ("catalog", catalog_answers),
];

/// The frames of a stream, as a session walks them: stops at the first bad header.
fn frames(stream: &[u8], mut each: impl FnMut(u8, &[u8])) {
    let mut rest = stream;
    while let Ok(Some((head, body))) = frame::whole(rest, SMALL_MESSAGE_BYTES_MAX) {
        assert!(head.body + 4 <= SMALL_MESSAGE_BYTES_MAX);
        each(head.tag, body);
        rest = &rest[head.total()..];
    }
}

/// What a client sends after its login.
pub(crate) fn frontend_messages(data: &[u8]) {
    frames(data, |tag, body| {
        let _ = frontend::query(body);
        let _ = frontend::target(tag, body);
        let _ = frontend::execute(body);
        if let Ok(parse) = Parse::decode(body) {
            let mut again = Vec::new();
            frontend::put_parse(&mut again, parse.name, parse.query, parse.types);
            assert_eq!(&again[frame::HEADER_BYTES..], body, "what was read is what was sent");
        }
        if let Ok(bind) = Bind::decode(body) {
            assert_eq!(bind.values().count(), bind.params_len);
            let bytes: usize = bind.values().map(|v| 4 + v.map_or(0, <[u8]>::len)).sum();
            assert_eq!(bytes, bind.params.len());
            let _ = (bind.binary(0), bind.binary(bind.params_len), bind.binary(usize::MAX));
        }
    });
}

/// What a server sends after its login.
pub(crate) fn backend_messages(data: &[u8]) {
    frames(data, |_, body| {
        let _ = backend::ready_for_query(body);
        let _ = backend::parameter_status(body);
        let _ = backend::backend_key_data(body);
        let fields = backend::ErrorFields::new(body);
        assert_eq!(fields.sqlstate().len(), 5);
        assert!(fields.clone().count() <= body.len());
        let _ = pgsluice::coalesce::batch::line_of_error(&fields, "t");
        let _ = catalog::is_guard_error(&fields);
        if let Ok(values) = backend::data_row(body) {
            let mut again = Vec::new();
            backend::put_data_row(&mut again, values.iter().copied());
            let (_, decoded) = frame::whole(&again, SMALL_MESSAGE_BYTES_MAX).expect("ours").expect("whole");
            assert_eq!(backend::data_row(decoded).as_deref(), Ok(&values[..]));
            let _ = catalog::decode_guard(&values);
        }
    });
}

/// What comes before the login, and the login's own messages, from either side.
pub(crate) fn startup_packets(data: &[u8]) {
    if let Ok(Some((packet, len))) = StartupPacket::whole(data) {
        assert!(len <= data.len() && len <= STARTUP_BYTES_MAX);
        if let StartupPacket::Startup(message) = packet {
            let _ = Startup::read(&message);
        }
    }
    if let Ok(StartupPacket::Startup(message)) = StartupPacket::decode(data) {
        for (name, value) in message.params() {
            assert!(!name.contains(&0) && !value.contains(&0));
        }
        if let Ok(startup) = Startup::read(&message) {
            assert!(!startup.user.is_empty());
        }
    }
    if let Ok(options) = std::str::from_utf8(data) {
        let _ = startup::parse_options(options);
    }
    let _ = startup::authentication(data);
    let _ = startup::negotiate(data);
    let _ = startup::sasl_initial(data);
    let _ = startup::password(data);
}

/// SCRAM, both halves, against a hostile other half. A line for each message; `@` in it becomes the nonce that
/// only the honest half knows, so that the grammar behind the nonce is reached.
pub(crate) fn scram_messages(data: &[u8]) {
    let mut lines = data.splitn(5, |b| *b == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let with_nonce = |line: &[u8], nonce: &[u8]| line.split(|b| *b == b'@').collect::<Vec<_>>().join(nonce);

    let verifier = Arc::new(Verifier::mock(4096, vec![7; 16], b"nobody"));
    let first = line();
    let _ = Server::new(first, true, Some(b"end point"), verifier.clone(), true);
    if let Ok(server) = Server::new(first, false, None, verifier, true) {
        let said = server.first().to_vec();
        let nonce = said[2..].split(|b| *b == b',').next().unwrap_or_default();
        let proven = server.finish(&with_nonce(line(), nonce));
        assert!(proven.is_err(), "no one can prove what has no password");
    } else {
        line();
    }

    let client = Client::new(Binding::Unable);
    let said = client.first();
    let nonce = said.strip_prefix(b"n,,n=,r=").expect("client-first");
    if let Ok(challenge) = client.challenge(&with_nonce(line(), nonce)) {
        let derivation = challenge.derivation("secret");
        // The slow ones are right, and slow.
        if !derivation.is_slow() {
            let _ = challenge.answer(&derivation.run()).map(|(_, proven)| proven.check(line()));
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Verifier::parse(text);
    }
}

/// The files of the operator: `pgbouncer.ini`, userlist and HBA rules in one input, zero bytes between them; and
/// the first as our own format.
pub(crate) fn configuration(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut parts = data.split(|b| *b == 0);
    for name in ["pgbouncer.ini", "userlist.txt", "hba.conf"] {
        std::fs::write(dir.path().join(name), parts.next().unwrap_or_default()).expect("a file");
    }
    let first = data.split(|b| *b == 0).next().unwrap_or_default();
    std::fs::write(dir.path().join("pgsluice.toml"), first).expect("a file");
    for name in ["pgbouncer.ini", "pgsluice.toml"] {
        if let Err(problems) = pgsluice::config::read(&dir.path().join(name)) {
            assert!(!problems.is_empty(), "a refusal says why");
            problems.iter().for_each(|problem| assert!(!problem.to_string().is_empty()));
        }
    }
}

/// A statement's text: the scanner, what it may do to the session, the literals of an INSERT.
pub(crate) fn sql_texts(data: &[u8]) {
    for std_strings in [true, false] {
        let mut at = 0;
        for token in scan::scan(data, std_strings) {
            assert!(at <= token.start && token.start < token.end && token.end <= data.len());
            at = token.end;
        }
        let _ = effects::effects(data, std_strings).describe();
    }
    let _ = effects::deallocated_name(data);
    let mut lifted = Lifted::new();
    if lift(data, &mut lifted).is_ok() {
        assert!(!quick_reject(data), "what is refused quickly is never lifted");
        for item in &lifted.items {
            let literal = item.bytes(data);
            if !matches!(item.class, Class::Param(_)) && literal.starts_with(b"'") {
                assert!(literal.len() >= 2 && literal.ends_with(b"'"));
                let value: Vec<u8> = decode_string(literal).flatten().copied().collect();
                assert!(value.len() <= literal.len() - 2);
            }
        }
        let (mut alone, mut again) = (Vec::new(), Lifted::new());
        lifted.put_statement(data, 0, &mut alone);
        assert!(lift(&alone, &mut again).is_ok(), "one row without comments is the same statement");
        assert_eq!((&again.shape, again.rows, again.tail), (&lifted.shape, 1, lifted.tail));
    }
}

/// The policy's verdicts and PostgreSQL's parser behind them: the rules only ever get stricter, and what is not
/// understood is not control.
pub(crate) fn policy_verdicts(data: &[u8]) {
    let lexing = Lexing { std_strings: true, encoding_safe: true };
    let verdict = |simple_query| {
        let policy = Policy { simple_query: Some(simple_query), ..Policy::default() };
        judge_query(&Rules::new(&policy, &Policy::default(), &Policy::default()), data, lexing)
    };
    assert!(matches!(verdict(SimpleQuery::Allow), Verdict::Pass));
    assert!(!matches!(verdict(SimpleQuery::Single), Verdict::Pass), "one statement is the server's to say");
    let control = verdict(SimpleQuery::Control);
    assert!(!matches!(control, Verdict::Pass));
    if meaning::kinds(data).is_err() {
        assert!(matches!(control, Verdict::Reject(_)));
    }
    assert!(matches!(verdict(SimpleQuery::Deny), Verdict::Reject(_)));
    let _ = (meaning::statement_count(data), meaning::fingerprint(data));
    let mut lifted = Lifted::new();
    if lift(data, &mut lifted).is_ok() {
        let _ = meaning::target_of(data, &lifted);
    }
}

/// COPY rows: what is written is read back; what is read never runs past its end.
pub(crate) fn copy_rows(data: &[u8]) {
    let values: Vec<Option<&[u8]>> =
        data.split(|b| *b == 0).map(|v| if v == b"NULL" { None } else { Some(v) }).collect();
    let (mut text, mut binary) = (Vec::new(), Vec::new());
    copy::put_binary_count(&mut binary, values.len().min(i16::MAX as usize) as u16);
    for (i, value) in values.iter().take(i16::MAX as usize).enumerate() {
        if i > 0 {
            text.push(copy::FIELD_END);
        }
        match value {
            None => copy::put_text_null(&mut text),
            Some(value) => copy::put_text(&mut text, value),
        }
        copy::put_binary(&mut binary, *value);
    }
    text.push(copy::ROW_END);
    let expected: Vec<_> = values.iter().take(i16::MAX as usize).map(|v| v.map(<[u8]>::to_vec)).collect();
    let (row, rest) = copy::take_text_row(&text).expect("ours");
    assert!(rest.is_empty());
    assert_eq!(row, expected);
    let (row, rest) = copy::take_binary_row(&binary).expect("ours");
    assert!(rest.is_empty());
    assert_eq!(row, expected);

    let _ = copy::take_text_row(data);
    let _ = copy::take_binary_row(data);
    let mut out = b"before".to_vec();
    if !copy::put_text_unquoted(&mut out, data) {
        assert_eq!(out, b"before", "a refused value leaves nothing behind");
    }
}

/// A console command.
pub(crate) fn console(data: &[u8]) {
    match parse(data) {
        Ok(command) => assert!(command.authorise(Role::Other).is_err(), "no one is let in by accident"),
        Err(refusal) => assert_eq!(refusal.sqlstate.len(), 5),
    }
}

/// What a server may answer to our own catalogue queries.
pub(crate) fn catalog_answers(data: &[u8]) {
    let _ = catalog::decode("public.t", &[Some(data)]);
    let _ = catalog::decode_session(&[Some(data)]);
    let _ = catalog::decode_guard(&[Some(data)]);
    if let Ok(name) = std::str::from_utf8(data) {
        let _ = catalog::encoding_pours(name);
        let mut quoted = String::new();
        catalog::put_identifier(&mut quoted, name);
        let tokens: Vec<_> = scan::scan(quoted.as_bytes(), true).collect();
        // A name is one token, whatever stands in it; an empty name is none of the server's.
        assert!(tokens.len() == 1 || name.is_empty() || name.contains('\0'), "{quoted:?}");
    }
}
