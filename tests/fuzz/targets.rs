//! What each fuzz target does with its bytes: one function for each parser of bytes from outside.
//!
//! Owns: the properties that must hold for any bytes. Never: where the bytes come from: `fuzz_targets/` feeds
//! these from libFuzzer, `tests/fuzz_seeds.rs` from the committed seeds.

use std::path::Path;
use std::sync::Arc;

use pgsluice::admin::parse::{Role, parse};
use pgsluice::admin::rows::*;
use pgsluice::admin::session::{Engine, Session, Step};
use pgsluice::auth::scram::{Binding, Client, Server, Verifier};
use pgsluice::cancel::onward;
use pgsluice::coalesce::catalog;
use pgsluice::coalesce::plan::{plan_literals, plan_params};
use pgsluice::coalesce::rows::{encode_literals, encode_params, format_of};
use pgsluice::limits::{
    LDAP_MESSAGE_BYTES_MAX, PROXY_HEADER_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX, STARTUP_BYTES_MAX,
};
use pgsluice::net::tls::common_name;
use pgsluice::policy::{Lexing, Rules, Verdict, judge_query, texts};
use pgsluice::proto::pipeline::{Action, Kind, Pipeline};
use pgsluice::server::names;
use pgsluice::settings::{LdapScope, Policy, Settings, SimpleQuery, Statements};
use pgsluice::sql::again::{Beginning, Memo};
use pgsluice::sql::cast::Cast;
use pgsluice::sql::insert::{Class, Item, Lifted, decode_string, lift, quick_reject, without_cast};
use pgsluice::sql::meaning::InsertTarget;
use pgsluice::sql::{custom, effects, meaning, scan, verbs};
use pgsluice::telemetry::request;
use pgsluice::wire::TransactionStatus;
use pgsluice::wire::copy::CopyFormat;
use pgsluice::wire::frontend::{self, Bind, Parse};
use pgsluice::wire::startup::{self, Startup, StartupPacket};
use pgsluice::wire::{backend, copy, frame, ldap, proxy};

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
    ("pipeline", pipeline),
    ("pour", poured_values),
    ("certificate", certificate),
    ("http", http_request),
    ("proxy", proxy_header),
    ("ldap", directory),
    ("cancel", cancel_request),
    ("hosts", hosts_file),
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
        let _ = backend::row_shape(body);
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
            let _ = catalog::decode_sentinel(&values);
        }
    });
}

/// Any order of messages from the client and of answers from the server: what is owed never grows by itself, and a
/// connection counts as free only when nothing is owed.
pub(crate) fn pipeline(data: &[u8]) {
    const KINDS: [Kind; 9] = [
        Kind::Query,
        Kind::FunctionCall,
        Kind::Parse,
        Kind::Bind,
        Kind::Describe,
        Kind::Execute,
        Kind::Close,
        Kind::Sync,
        Kind::CopyEnd,
    ];
    const ACTIONS: [Action; 6] =
        [Action::Forward, Action::Skip, Action::Own, Action::Fake, Action::Fold, Action::Refuse];
    const STATUSES: [TransactionStatus; 3] =
        [TransactionStatus::Idle, TransactionStatus::InTransaction, TransactionStatus::Failed];
    let mut pipeline = Pipeline::default();
    let (mut pushed, mut refusals) = (0, 0);
    let (mut units, mut readies) = (0, 0);
    for byte in data {
        let was = pipeline.len();
        match *byte {
            byte @ ..=0x7f => {
                let (kind, action) = (KINDS[usize::from(byte) % 9], ACTIONS[usize::from(byte) / 9 % 6]);
                let due = pipeline.push(kind, action, byte & 0x40 != 0);
                pushed += 1;
                units += usize::from(matches!(kind, Kind::Query | Kind::FunctionCall | Kind::Sync));
                refusals += usize::from(action == Action::Refuse);
                assert!(pipeline.len() <= was + 1 && !(due && pipeline.len() > was));
            }
            byte @ 0x80..=0x82 => {
                if pipeline.recv_ready(STATUSES[usize::from(byte - 0x80)]).is_err() {
                    return;
                }
                // One that is not owed may come where COPY failed before it had read a Sync; never more than were asked for.
                readies += 1;
                assert!(pipeline.len() <= was && readies <= units);
            }
            0x83 => {
                let fake = pipeline.pop_fake();
                assert!(fake.is_none_or(|owed| owed.action == Action::Fake));
            }
            0x84 => {
                if let Some(fence) = pipeline.fence() {
                    pipeline.push_fence(fence);
                    assert!(pipeline.fence().is_none() && !pipeline.is_at_rest());
                    pushed += pipeline.len();
                    units += pipeline.len() - 1;
                }
            }
            0x85 => pipeline.push_data(),
            byte => {
                if pipeline.recv(byte & 0x7f).is_err() {
                    return;
                }
                let struck = pipeline.take_struck_refusals();
                assert!(struck <= refusals);
                refusals -= struck;
                assert!(pipeline.len() <= was);
            }
        }
        assert!(pipeline.len() <= pushed);
        assert!(!pipeline.is_quiet() || pipeline.is_empty());
        let _ = (pipeline.front_statement(), pipeline.front_is_own());
    }
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
    for name in ["pgbouncer.ini", "userlist.txt", "hba.conf", "ident.conf"] {
        std::fs::write(dir.path().join(name), parts.next().unwrap_or_default()).expect("a file");
    }
    let first = data.split(|b| *b == 0).next().unwrap_or_default();
    std::fs::write(dir.path().join("pgsluice.toml"), first).expect("a file");
    for name in ["pgbouncer.ini", "pgsluice.toml"] {
        match pgsluice::config::read(&dir.path().join(name)) {
            Ok(loaded) => assert!(!pgsluice::config::describe(&loaded.settings).is_empty()),
            Err(problems) => {
                assert!(!problems.is_empty(), "a refusal says why");
                problems.iter().for_each(|problem| assert!(!problem.to_string().is_empty()));
            }
        }
    }
    // SET on the console.
    if let Ok(line) = std::str::from_utf8(first)
        && let Some((key, value)) = line.split_once('=')
    {
        let _ = pgsluice::config::set(Path::new(""), &Settings::default(), key.trim(), value.trim());
    }
}

/// A statement's text: the scanner, what it may do to the session, the literals of an INSERT. With a zero byte in it: two
/// texts, the second perhaps with the head of the first, or only what stands behind one, or what to change in it.
pub(crate) fn sql_texts(data: &[u8]) {
    let mut texts = data.splitn(2, |b| *b == 0);
    let first = texts.next().unwrap_or_default();
    let second = texts.next().unwrap_or(first);
    found_again(first, second);
    found_again(second, first);
    for std_strings in [true, false] {
        let mut at = 0;
        for token in scan::scan(data, std_strings) {
            assert!(at <= token.start && token.start < token.end && token.end <= data.len());
            at = token.end;
        }
        let _ = effects::effects(data, std_strings).to_string();
    }
    let _ = effects::deallocated_name(data);
    custom::custom_settings(data, |name| assert!(name.len() <= data.len()));
    let mut lifted = Lifted::new();
    if lift(data, &mut lifted).is_ok() {
        assert!(!quick_reject(data), "what is refused quickly is never lifted");
        for item in &lifted.items {
            let bytes = item.bytes(data);
            let literal =
                if matches!(item.class, Class::CastString(_)) { without_cast(bytes) } else { bytes };
            if !matches!(item.class, Class::Param(_) | Class::Computed) && literal.starts_with(b"'") {
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

/// What is remembered of the first INSERT finds in the second what lifting it does; also in what begins as the first one and
/// ends as the second, and in the first one changed a little, as the second one says.
fn found_again(first: &[u8], second: &[u8]) {
    let (mut memo, mut lifted) = (Memo::default(), Lifted::new());
    if lift(first, &mut lifted).is_err() {
        return;
    }
    let shape = lifted.shape.clone();
    memo.keep((), first, &lifted, ());
    let opens = first.iter().enumerate().filter(|(_, byte)| **byte == b'(').map(|(at, _)| at);
    let heads = opens.take(3).map(|open| [&first[..=open], second].concat());
    for next in heads.chain([second.to_vec()]).chain(edited(first, second)) {
        if let Some(((), items)) = memo.head(&(), &next).and_then(Beginning::row) {
            assert_eq!(lift(&next, &mut lifted), Ok(()), "what is found again is lifted");
            assert_eq!((&lifted.shape, &lifted.items[..], lifted.rows), (&shape, items, 1));
            assert!(lifted.tail.is_plain());
        }
    }
}

/// The text after each of a few edits. An edit is three bytes: where; whether a byte goes and one comes; which one comes.
fn edited(text: &[u8], edits: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut text = text.to_vec();
    edits.chunks_exact(3).take(4).map(move |edit| {
        let at = usize::from(edit[0]) % (text.len() + 1);
        let goes = usize::from(edit[1] & 1 != 0 && at < text.len());
        text.splice(at..at + goes, (edit[1] & 2 != 0).then_some(edit[2]));
        text.clone()
    })
}

/// The policy's verdicts and PostgreSQL's parser behind them: the rules only ever get stricter, and what is not
/// understood is not control.
pub(crate) fn policy_verdicts(data: &[u8]) {
    let lexing = Lexing::PLAIN;
    let verdict = |simple_query| {
        let policy = Policy { simple_query: Some(simple_query), ..Policy::default() };
        judge_query(&Rules::merge([&policy]), data, lexing, &mut texts::Readings::default())
    };
    assert!(matches!(verdict(SimpleQuery::Allow), Verdict::Pass));
    assert!(!matches!(verdict(SimpleQuery::Single), Verdict::Pass), "one statement is the server's to say");
    let control = verdict(SimpleQuery::Control);
    assert!(!matches!(control, Verdict::Pass));
    if meaning::kinds(data).is_err() {
        assert!(matches!(control, Verdict::Reject(_)));
    }
    assert!(matches!(verdict(SimpleQuery::Deny), Verdict::Reject(_)));
    let _ = (meaning::statement_count(data), meaning::fingerprint(data), verbs::names(data));
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = meaning::insert_target(text);
    }
    let policy = Policy { statements: Some(Statements::ReadOnly), ..Policy::default() };
    let rules = Rules::merge([&policy]);
    let judged =
        texts::judge_text(&rules, data, lexing, texts::Unseen::default(), &mut texts::Readings::default());
    let reads =
        verbs::statements(data).is_ok_and(|all| all.iter().all(|found| found.class <= verbs::Class::Read));
    assert!(reads || matches!(judged.verdict, Verdict::Reject(_)), "what is not known to be a read is none");
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

    let (mut of_text, mut of_binary) = (Vec::new(), Vec::new());
    copy::put_values(CopyFormat::Text, &text, &mut of_text);
    copy::put_values(CopyFormat::Binary, &binary, &mut of_binary);
    assert_eq!(of_text, binary[2..], "Bind's values are a binary row without its count");
    assert_eq!(of_text, of_binary);

    let _ = copy::take_text_row(data);
    let _ = copy::take_binary_row(data);
    copy::put_values(CopyFormat::Text, data, &mut of_text);
    copy::put_values(CopyFormat::Binary, data, &mut of_binary);
    let mut out = b"before".to_vec();
    if !copy::put_text_unquoted(&mut out, data) {
        assert_eq!(out, b"before", "a refused value leaves nothing behind");
    }
}

/// What becomes of a client's literals and parameters on their way into a COPY: a table of common types, an INSERT's
/// text or a Bind's body behind it.
pub(crate) fn poured_values(data: &[u8]) {
    let tables = [table(&SCALARS), table(&ARRAYS)];
    tables.iter().for_each(|table| poured_literals(table, data));
    let Ok(bind) = Bind::decode(data) else { return };
    let own: Vec<Class> = (1..=6).map(Class::Param).collect();
    let mut read = own.clone();
    read[2] = Class::CastParam(3, Cast::of_word(b"timestamptz").expect("a type"));
    let [scalars, arrays] = &tables;
    for (table, classes, oids) in [
        (scalars, &own, [23, 25, 1184, 1700, 16, 20]),
        (scalars, &read, [21, 1043, 1043, 23, 16, 23]),
        (arrays, &own, [700, 701, 1016, 1231, 1009, 1015]),
        (arrays, &own, [20, 23, 1005, 1016, 1015, 1009]),
    ] {
        poured_parameters(table, classes.clone(), &oids, &bind);
    }
}

fn poured_literals(table: &catalog::Table, data: &[u8]) {
    let mut lifted = Lifted::new();
    if let Ok(text) = std::str::from_utf8(data)
        && lift(data, &mut lifted).is_ok()
        && let Ok(target) = meaning::target_of(data, &lifted)
        && let Ok(plan) = plan_literals(table, &target)
    {
        let mut out = b"before".to_vec();
        for items in lifted.items.chunks(target.items.len().max(1)) {
            let row = encode_literals(&plan, text.as_bytes(), items, &mut out);
            assert!(row.is_ok() || out.ends_with(b"before") || out.ends_with(b"\n"), "{out:?}");
        }
        let mut rest = out.strip_prefix(b"before").expect("only appended to");
        while !rest.is_empty() {
            let (row, more) = copy::take_text_row(rest).expect("rows of ours");
            assert!(row.len() <= table.columns.len());
            rest = more;
        }
    }
}

fn poured_parameters(table: &catalog::Table, classes: Vec<Class>, oids: &[u32], bind: &Bind<'_>) {
    let items: Vec<Item> = classes.iter().map(|&class| Item { class, start: 0, end: 0 }).collect();
    let target = InsertTarget { table: "t".into(), items: classes, ..InsertTarget::default() };
    let plan = plan_params(table, &target, b"", &items, oids).expect("a plan");
    let rows = bind.params_len / 6;
    if let Some(format) = format_of(&plan, bind, rows) {
        let mut out = b"before".to_vec();
        match encode_params(&plan, bind, rows, format, &mut out) {
            Err(_) => assert_eq!(out, b"before"),
            Ok(_) => {
                let mut rest = out.strip_prefix(b"before").expect("only appended to");
                for _ in 0..rows {
                    let taken = match format {
                        CopyFormat::Text => copy::take_text_row(rest),
                        CopyFormat::Binary => copy::take_binary_row(rest),
                    };
                    let (values, more) = taken.expect("a row of ours");
                    assert_eq!(values.len(), 6);
                    rest = more;
                }
                assert!(rest.is_empty());
            }
        }
    }
}

/// Types by their names, their numbers and those of their elements.
type Columns = [(&'static str, u32, u32); 6];

const SCALARS: Columns = [
    ("int4", 23, 0),
    ("text", 25, 0),
    ("timestamptz", 1184, 0),
    ("numeric", 1700, 0),
    ("bool", 16, 0),
    ("int8", 20, 0),
];

/// What parameters of other types go into as well: integers, and arrays of integers and texts.
const ARRAYS: Columns = [
    ("float4", 700, 0),
    ("float8", 701, 0),
    ("_int8", 1016, 20),
    ("_numeric", 1231, 1700),
    ("_text", 1009, 25),
    ("_varchar", 1015, 1043),
];

/// A table of these, as the catalogue answers.
fn table(columns: &Columns) -> catalog::Table {
    let columns = columns.iter().enumerate().map(|(i, (name, oid, elem))| {
        let (n, elem_kind) = (i + 1, if *elem == 0 { "" } else { "b" });
        format!(
            r#"{{"attnum": {n}, "name": "c{n}", "type": {oid}, "typmod": -1, "base": {oid}, "base_name": "{name}",
             "kind": "b", "elem": {elem}, "elem_kind": "{elem_kind}", "notnull": false, "identity": "", "generated": "",
             "may_insert": true, "domain_null_check": false, "cast_from_text": false, "cast_to_text": false, "in_key": false, "draws": [], "has_default": false, "default_whys": []}}"#
        )
    });
    let answer = format!(
        r#"{{"relid": 16400, "schema": "s", "table": "t", "fingerprint": "f", "stops": [], "self_fk": [], "quiet": true, "granted_by_column": false, "updates_alone": true, "functions": [], "root": 16400, "references": [],
         "user": "u",
         "session_user": "u", "search_path": "public", "temporary": false, "columns": [{}]}}"#,
        columns.collect::<Vec<_>>().join(", ")
    );
    catalog::decode("t", &[Some(answer.as_bytes())]).expect("a table")
}

/// A client's certificate: who it names.
pub(crate) fn certificate(data: &[u8]) {
    if let Some(name) = common_name(&data.to_vec().into()) {
        assert!(!name.is_empty() && !name.contains('\0'));
    }
}

/// A request to the HTTP port, in two pieces wherever it is cut.
pub(crate) fn http_request(data: &[u8]) {
    let whole = request::parse(data);
    for end in 0..data.len().min(512) {
        let said = request::parse(&data[..end]);
        assert!(said == Ok(None) || said == whole, "{said:?} became {whole:?}");
    }
    if let Ok(Some(asked)) = whole {
        assert!(asked.path.starts_with('/') && asked.path.bytes().all(|b| b.is_ascii_graphic()));
    }
}

/// What a directory answers, and a search filter of the configuration.
pub(crate) fn directory(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some(came)) = ldap::answer(rest) {
        assert!(came.bytes <= rest.len() && came.bytes <= LDAP_MESSAGE_BYTES_MAX + 6);
        rest = &rest[came.bytes..];
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(filter) = ldap::Filter::parse(text)
    {
        assert!(text.starts_with('(') && text.ends_with(')'));
        // A request is no answer.
        assert!(ldap::answer(&ldap::search(1, "", LdapScope::Sub, &filter)).is_err());
    }
}

/// What a balancer says first: read byte by byte as it is asked for.
pub(crate) fn proxy_header(data: &[u8]) {
    let mut have = 0;
    while let Ok(proxy::Step::More(more)) = proxy::step(&data[..have]) {
        assert!(more > 0 && have + more <= PROXY_HEADER_BYTES_MAX);
        // In pieces it is the same.
        for end in have + 1..(have + more).min(data.len()) {
            let left = proxy::step(&data[..end]);
            assert!(!matches!(left, Ok(proxy::Step::Whole(_))) && left != Ok(proxy::Step::More(0)));
        }
        have += more;
        if have > data.len() {
            return;
        }
    }
}

/// A request to cancel whose key nobody here has: where it goes on to, until it has been passed on often enough.
pub(crate) fn cancel_request(data: &[u8]) {
    let Ok(StartupPacket::CancelRequest { pid, key }) = StartupPacket::decode(data) else { return };
    let mut key = key.to_vec();
    let mut left = 3;
    while let Some((_, next)) = onward(pid, &key) {
        assert!(left > 0, "no request goes round for ever");
        left -= 1;
        let (last, rest) = key.split_last_mut().expect("an empty key goes nowhere");
        let (next_last, next_rest) = next.split_last().expect("as long as it was");
        assert_eq!((&*rest, *last >> 2), (next_rest, *next_last >> 2), "only the hops are counted down");
        *last = *next_last;
    }
}

/// `hosts_file`: a name, and behind a zero byte the file. What a line adds, it adds to its own name only, behind the others.
pub(crate) fn hosts_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (name, text) = text.split_once('\0').unwrap_or(("a.test", text));
    let found = names::addresses(text, name);
    assert!(found.len() <= text.lines().count());
    let more = format!("{text}\n::1 {name} # {name}\n");
    let of_more = names::addresses(&more, name);
    let is_a_word = !name.is_empty() && !name.contains(|c: char| c == '#' || c.is_whitespace());
    assert_eq!(of_more.strip_prefix(&found[..]).map(<[_]>::len), Some(usize::from(is_a_word)));
}

/// Nothing to show.
struct Nothing;

impl Engine for Nothing {
    fn pools(&self) -> Vec<PoolRow> {
        Vec::new()
    }
    fn clients(&self) -> Vec<SocketRow> {
        Vec::new()
    }
    fn servers(&self) -> Vec<SocketRow> {
        Vec::new()
    }
    fn databases(&self) -> Vec<DatabaseRow> {
        Vec::new()
    }
    fn users(&self) -> Vec<UserRow> {
        Vec::new()
    }
    fn lists(&self) -> Vec<ListRow> {
        vec![ListRow { list: "databases", items: 1 }]
    }
    fn peers(&self) -> Vec<PeerRow> {
        Vec::new()
    }
    fn peer_pools(&self) -> Vec<PeerPoolRow> {
        Vec::new()
    }
    fn config(&self) -> Vec<ConfigRow> {
        Vec::new()
    }
    fn mem(&self) -> Vec<MemRow> {
        Vec::new()
    }
    fn state(&self) -> Vec<StateRow> {
        Vec::new()
    }
    fn stats(&self) -> Vec<StatsRow> {
        vec![StatsRow::default()]
    }
    fn averages(&self) -> Counters {
        Counters::default()
    }
    fn lanes(&self) -> Vec<LaneRow> {
        Vec::new()
    }
    fn coalesce_tables(&self) -> Vec<CoalesceTableRow> {
        Vec::new()
    }
    fn coalesce_flushes(&self) -> Vec<FlushRow> {
        Vec::new()
    }
    fn policy(&self) -> Vec<PolicyRow> {
        Vec::new()
    }
    fn audit(&self) -> Vec<AuditRow> {
        Vec::new()
    }
}

/// A console command, and frames of one who may look but not touch.
pub(crate) fn console(data: &[u8]) {
    let mut session = Session::new(Role::Stats);
    let mut out = Vec::new();
    frames(data, |tag, body| match session.recv(tag, body, &Nothing, &mut out) {
        Step::Next | Step::Close => {}
        Step::Perform(action) => panic!("{action:?}"),
    });
    frames(&out, |_, _| {});
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
    let columns: Vec<_> =
        data.split(|b| *b == 0).map(|v| if v == b"NULL" { None } else { Some(v) }).collect();
    let _ = catalog::decode("public.t", &columns);
    let _ = catalog::decode_session(&columns);
    let _ = catalog::decode_guard(&columns);
    let _ = catalog::decode_sentinel(&columns);
    if let Ok(name) = std::str::from_utf8(data) {
        let _ = catalog::encoding_pours(name, "UTF8");
        let mut quoted = String::new();
        catalog::put_identifier(&mut quoted, name);
        let tokens: Vec<_> = scan::scan(quoted.as_bytes(), true).collect();
        // A name is one token, whatever stands in it; an empty name is none of the server's.
        assert!(tokens.len() == 1 || name.is_empty() || name.contains('\0'), "{quoted:?}");
    }
}
