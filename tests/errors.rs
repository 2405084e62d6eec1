//! Each error of pgsluice's own, provoked: what a client gets is what its row in `docs/errors.md` says.

use std::collections::BTreeSet;

use crate::support;
use pgsluice::error::Kind;
use pgsluice::wire::{backend as b, frame, frontend as f};
use support::console::set;
use support::{Message, Postgres, Proxy, Raw, free_port};

/// Those that other tests provoke, for they take a server that lies or goes, or long; and the one that never comes.
const ELSEWHERE: &[(Kind, &str)] = &[
    (Kind::PreparedNames, "prepared: a_session_has_so_many_statements_and_no_more"),
    (Kind::DeferredRow, "blocks: a_deferred_row_that_is_dropped_fails_its_block"),
    (Kind::ServerLost, "outages"),
    (Kind::ServerViolation, "hostile"),
    (Kind::OutcomeUnknown, "pour_lost"),
    (Kind::Internal, "a state that is not reached"),
];

/// What a client was told, and words of the row that it must hold, in its message, detail or hint.
type Told = (Kind, Message, &'static str);

fn build(parts: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    parts(&mut out);
    out
}

/// The first ErrorResponse that comes.
fn told(raw: &mut Raw) -> Message {
    raw.read_until(b::ERROR_RESPONSE).pop().expect("an error")
}

fn asked(raw: &mut Raw, parts: impl FnOnce(&mut Vec<u8>)) -> Message {
    raw.send(&build(|o| {
        parts(o);
        f::put_empty(o, f::SYNC);
    }));
    error_of(&raw.read_until_ready())
}

fn error_of(messages: &[Message]) -> Message {
    messages.iter().find(|m| m.tag == b::ERROR_RESPONSE).expect("an error").clone()
}

fn refused(proxy: &Proxy, parameters: &[(&str, &str)]) -> Message {
    match Raw::login_as(proxy.port(), parameters, "wrong") {
        Ok(_) => panic!("{parameters:?} got in"),
        Err(error) => error,
    }
}

fn console(proxy: &Proxy) -> Raw {
    Raw::login(proxy.port(), "pgsluice")
}

#[test]
fn each_error_of_ours_is_as_its_row_in_the_docs_says() {
    let server = Postgres::shared();
    let db = server.fresh_database("CREATE TABLE t (a int)");
    let mut all = logins(server, &db);
    all.extend(statements(server, &db));
    all.extend(timeouts(server, &db));
    all.extend(pools(server, &db));
    let rows = rows();
    for (kind, message, words) in &all {
        let row = &rows.iter().find(|(name, _)| name == kind.name()).expect("its row").1;
        let error = message.outline();
        assert_eq!(message.sqlstate(), kind.sqlstate(), "{kind:?}: {error}");
        assert_eq!(message.field(b'V'), kind.severity().as_str(), "{kind:?}: {error}");
        let text = [b'M', b'D', b'H'].map(|field| message.field(field)).join(" ");
        assert!(text.contains(words), "{kind:?}: {words} is not in {text}");
        assert!(row.contains(words), "{kind:?}: {words} is not in its row: {row}");
    }
    let provoked: BTreeSet<_> = all.iter().map(|(kind, ..)| kind.name()).collect();
    let elsewhere: BTreeSet<_> = ELSEWHERE.iter().map(|(kind, _)| kind.name()).collect();
    for kind in Kind::ALL {
        assert!(provoked.contains(kind.name()) != elsewhere.contains(kind.name()), "{kind:?}");
    }
}

/// Name of a kind, and what happened and what to do.
fn rows() -> Vec<(String, String)> {
    include_str!("../docs/errors.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, rest)| (name.to_owned(), rest.replace('`', "")))
        .collect()
}

/// Before a client is in.
fn logins(server: &Postgres, db: &str) -> Vec<Told> {
    let asking = |auth_type: &str, login_timeout: f32| {
        let general = format!(
            "auth_type = \"{auth_type}\"\nauth_file = \"@DIR@/users\"\nclient_login_timeout = {login_timeout}"
        );
        let config = Proxy::config(server, &general, "", "");
        let config = config.replace("[databases.\"*\"]", &format!("[databases.{db}]"));
        Proxy::start_with(&config, &[("users", "\"postgres\" \"right\"\n")])
    };
    let proxy = asking("scram-sha-256", 60.0);
    let as_user = [("user", "postgres"), ("database", db)];
    let with = |key, value| [as_user[0], as_user[1], (key, value)];
    let open = Proxy::to(server, "", "", "");
    let mut new = Raw::connect(open.port());
    new.startup(4 << 16, &as_user);
    let mut unreadable = Raw::connect(open.port());
    let body = build(|o| {
        o.extend_from_slice(&(3u32 << 16).to_be_bytes());
        o.extend_from_slice(b"user\0\xff\0\0");
    });
    unreadable.send(&[&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat());
    let mut acting = Raw::connect(proxy.port());
    acting.startup(3 << 16, &as_user);
    acting.read();
    let first = b"n,a=other,n=,r=abcdefgh";
    acting.send(&build(|o| {
        frame::put(o, f::PASSWORD, |o| {
            o.extend_from_slice(b"SCRAM-SHA-256\0");
            o.extend_from_slice(&(first.len() as u32).to_be_bytes());
            o.extend_from_slice(first);
        });
    }));
    let short = asking("scram-sha-256", 0.5);
    let mut slow = Raw::connect(short.port());
    slow.startup(3 << 16, &as_user);
    let mut odd = Raw::login(open.port(), db);
    odd.send(b"\x01\0\0\0\x04");
    let mut malformed = Raw::login(open.port(), db);
    malformed.send(b"Q\0\0\0\x07;\0\0");
    vec![
        (Kind::ProtocolViolation, told(&mut odd), ""),
        (Kind::MalformedMessage, told(&mut malformed), "invalid message format"),
        (Kind::UnsupportedProtocol, told(&mut new), "protocol"),
        (Kind::InvalidEncoding, told(&mut unreadable), ""),
        (Kind::NotSupported, told(&mut acting), "authorization identity"),
        (Kind::UndefinedParameter, refused(&open, &with("options", "-c =x")), "parameter"),
        (Kind::InvalidOptions, refused(&open, &with("options", "nonsense")), "options"),
        (Kind::InvalidParameter, refused(&open, &with("replication", "maybe")), "replication"),
        (
            Kind::InvalidAuthorization,
            refused(&open, &[("user", "x"), ("database", "pgsluice")]),
            "admin_users",
        ),
        (Kind::InvalidPassword, refused(&proxy, &as_user), "password"),
        (Kind::LoginTimeout, told(&mut slow), "client_login_timeout"),
        (
            Kind::UnknownDatabase,
            refused(&asking("trust", 60.0), &[("user", "postgres"), ("database", "none")]),
            "[databases]",
        ),
    ]
}

/// What statements meet.
fn statements(server: &Postgres, db: &str) -> Vec<Told> {
    let proxy = Proxy::to(
        server,
        "default_pool_size = 1\nprepared_statement_bytes_max = \"1MB\"\nsession_state = \"reject\"",
        "",
        "[policy]\nfunction_call = \"deny\"",
    );
    let mut raw = Raw::login(proxy.port(), db);
    let name = |o: &mut Vec<u8>, name: &[u8], text: &[u8]| f::put_parse(o, name, text, &[]);
    let long = vec![b' '; (1 << 20) + 1];
    raw.send(&build(|o| frame::put(o, f::FUNCTION_CALL, |o| o.extend_from_slice(&[0; 10]))));
    let call = error_of(&raw.read_until_ready());
    let mut all = vec![
        (Kind::PolicyRefused, call, ""),
        (Kind::SessionStateRejected, raw.error("LISTEN x"), "session_state = \"reject\""),
        (Kind::PreparedBytes, asked(&mut raw, |o| name(o, b"long", &long)), "prepared_statement_bytes_max"),
        (
            Kind::DuplicateStatement,
            asked(&mut raw, |o| (0..2).for_each(|_| name(o, b"s", b"TABLE t"))),
            "prepared statement",
        ),
        (
            Kind::UnknownStatement,
            asked(&mut raw, |o| f::put_bind_text(o, b"pgsluice_0", &[])),
            "prepared statement",
        ),
    ];
    raw.send(&build(|o| {
        name(o, b"stale", b"TABLE t");
        f::put_target(o, f::DESCRIBE, b'S', b"stale");
        f::put_empty(o, f::SYNC);
    }));
    all.push((
        Kind::StalePlan,
        {
            raw.read_until_ready();
            raw.rows("ALTER TABLE t ADD b int");
            console(&proxy).rows("RECONNECT");
            asked(&mut raw, |o| f::put_bind_text(o, b"stale", &[]))
        },
        "",
    ));
    let mut heavy = Raw::login(proxy.port(), db);
    let value = "x".repeat(600_000);
    heavy.send(&build(|o| {
        for setting in ["app.a", "app.b"] {
            f::put_query(o, format!("SET {setting} = '{value}'").as_bytes());
        }
    }));
    all.push((Kind::SettingsBytes, told(&mut heavy), "pool_mode = \"session\""));
    all
}

/// What the clock brings.
fn timeouts(server: &Postgres, db: &str) -> Vec<Told> {
    type Provoke<'a> = (Kind, &'static str, &'a dyn Fn(&mut Raw));
    let kinds: [Provoke<'_>; 4] = [
        (Kind::IdleTimeout, "client_idle_timeout", &|_| {}),
        (Kind::IdleTransactionTimeout, "idle_transaction_timeout", &|raw| drop(raw.query("BEGIN"))),
        (Kind::TransactionTimeout, "transaction_timeout", &|raw| drop(raw.query("BEGIN"))),
        (Kind::QueryTimeout, "query_timeout", &|raw| {
            raw.send(&build(|o| f::put_query(o, b"SELECT pg_sleep(60)")))
        }),
    ];
    kinds
        .into_iter()
        .map(|(kind, setting, provoke)| {
            // A login that waits for a server has no more than query_timeout, either.
            let limit = if kind == Kind::QueryTimeout { 3.0 } else { 0.2 };
            let proxy = Proxy::to(server, &format!("{setting} = {limit}"), "", "");
            let mut raw = Raw::login(proxy.port(), db);
            provoke(&mut raw);
            (kind, told(&mut raw), setting)
        })
        .collect()
}

/// Where there is no connection to be had, or not any more.
fn pools(server: &Postgres, db: &str) -> Vec<Told> {
    let nowhere = free_port();
    let port = server.port();
    let more = format!(
        "[databases.nowhere]\nhost = \"127.0.0.1\"\nport = {nowhere}\n\
         [databases.standby]\nhost = \"127.0.0.1\"\nport = {port}\ndbname = \"{db}\"\ntarget_session_attrs = \"standby\"\n\
         [databases.statement]\nhost = \"127.0.0.1\"\nport = {port}\ndbname = \"{db}\"\npool_mode = \"statement\"\n\
         [databases.few]\nhost = \"127.0.0.1\"\nport = {port}\ndbname = \"{db}\"\nmax_db_client_connections = 1"
    );
    let proxy = Proxy::to(server, "default_pool_size = 1\nquery_wait_notify = 0", "", &more);
    let at = |database: &'static str| refused(&proxy, &[("user", "postgres"), ("database", database)]);
    let mut holder = Raw::login(proxy.port(), db);
    holder.rows("BEGIN");
    let _few = Raw::login(proxy.port(), "few");
    let mut begins = Raw::login(proxy.port(), "statement");
    set(proxy.port(), "query_wait_timeout = 1");
    let ask = |proxy: &Proxy| {
        let mut raw = Raw::login(proxy.port(), db);
        raw.send(&build(|o| f::put_query(o, b"SELECT 1")));
        raw
    };
    let waited = told(&mut ask(&proxy));
    let patient = Proxy::to(server, "default_pool_size = 1\nquery_wait_notify = 0.1", "", "");
    let mut busy = Raw::login(patient.port(), db);
    busy.rows("BEGIN");
    let mut cancelled = ask(&patient);
    // Only now is there something to cancel.
    assert_eq!(cancelled.read().tag, b::NOTICE_RESPONSE);
    cancelled.cancel_until_answered(patient.port());
    let mut all = vec![
        (Kind::Cancelled, told(&mut cancelled), ""),
        (Kind::QueryWaitTimeout, waited, "query_wait_timeout"),
        (Kind::ServerUnreachable, at("nowhere"), "query_wait_timeout"),
        (Kind::NoFittingServer, at("standby"), "target_session_attrs"),
        (Kind::TooManyClients, at("few"), "max_db_client_connections"),
        (
            Kind::StatementMode,
            {
                begins.send(&build(|o| f::put_query(o, b"BEGIN")));
                told(&mut begins)
            },
            "pool_mode = \"statement\"",
        ),
    ];
    let mut console = console(&proxy);
    console.rows("DISABLE few");
    all.push((Kind::DatabaseDisabled, at("few"), ""));
    let mut idle = Raw::login(proxy.port(), "statement");
    console.rows("KILL statement");
    all.push((Kind::Killed, told(&mut idle), ""));
    holder.rows("COMMIT");
    console.send(&build(|o| f::put_query(o, b"SHUTDOWN WAIT_FOR_SERVERS")));
    all.push((Kind::ShuttingDown, told(&mut holder), ""));
    all
}

#[test]
fn what_is_longer_than_max_packet_size_is_told_by_that_name() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "max_packet_size = \"64kB\"\npool_mode = \"session\"", "", "");
    for text in [format!("SELECT '{}'", "x".repeat(70_000)), "SELECT repeat('x', 70000)".to_owned()] {
        let mut client = Raw::login(proxy.port(), &database);
        client.send(&build(|o| f::put_query(o, text.as_bytes())));
        let last = client.read_until_closed().pop().expect("a word");
        assert_eq!(last.sqlstate(), "08P01", "{}", last.outline());
        assert!(last.field(b'M').contains("exceeds the limit of 65536 bytes"), "{}", last.outline());
        assert!(last.field(b'H').contains("max_packet_size"), "{}", last.outline());
    }
}
