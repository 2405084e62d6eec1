//! Sessions as applications know them, through pgsluice: the same messages as direct, in each pool mode.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use crate::support;
use pgsluice::limits::{READ_BUFFER_BYTES, SHORT_MESSAGE_BYTES_MAX, STATEMENT_BYTES_MAX};
use pgsluice::wire::{backend as b, frame, frontend as f};
use support::console::{find, set, tell, until};
use support::{Certs, Message, PATIENCE, PgOptions, Postgres, Proxy, Raw, client_command, outline, poll};

/// Appends the messages of one unit.
type Unit<'a> = &'a dyn Fn(&mut Vec<u8>);

const MODES: [&str; 3] = ["session", "transaction", "statement"];

fn through(server: &Postgres, mode: &str, general: &str) -> Proxy {
    Proxy::to(server, &format!("pool_mode = \"{mode}\"\n{general}"), "", "")
}

fn build(parts: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    parts(&mut out);
    out
}

fn put_copy_data(out: &mut Vec<u8>, data: &[u8]) {
    frame::put(out, f::COPY_DATA, |out| out.extend_from_slice(data));
}

/// Parse, Bind, Describe, Execute of the unnamed statement, without Sync.
fn put_run(out: &mut Vec<u8>, sql: &str) {
    f::put_parse(out, b"", sql.as_bytes(), &[]);
    f::put_bind_text(out, b"", &[]);
    f::put_target(out, f::DESCRIBE, b'P', b"");
    f::put_execute(out, b"", 0);
}

fn sync(out: &mut Vec<u8>) {
    f::put_empty(out, f::SYNC);
}

fn tags(messages: &[Message]) -> String {
    messages.iter().map(|m| char::from(m.tag)).collect()
}

/// What both sides answer to `bytes`, up to the `ready`-th ReadyForQuery; they must be equal.
fn same(direct: &mut Raw, ours: &mut Raw, bytes: &[u8], ready: usize) -> String {
    let mut answers = [String::new(), String::new()];
    for (raw, answer) in [direct, ours].into_iter().zip(&mut answers) {
        raw.send(bytes);
        for _ in 0..ready {
            answer.push_str(&outline_of(raw.read_until_ready()));
        }
    }
    let [direct, ours] = answers;
    assert_eq!(ours, direct);
    ours
}

/// The outline, without the OIDs of tables, which differ from database to database.
fn outline_of(mut messages: Vec<Message>) -> String {
    for message in messages.iter_mut().filter(|m| m.tag == b::ROW_DESCRIPTION) {
        let mut at = 2;
        while let Some(end) = message.body[at..].iter().position(|&byte| byte == 0) {
            at += end + 1;
            message.body[at..at + 4].fill(0);
            at += 18;
        }
    }
    outline(&messages)
}

/// A direct client and one through pgsluice, in two databases that are alike.
fn pair(server: &Postgres, proxy: &Proxy, setup: &str) -> (Raw, Raw) {
    let direct = Raw::login(server.port(), &server.fresh_database(setup));
    let ours = Raw::login(proxy.port(), &server.fresh_database(setup));
    (direct, ours)
}

#[test]
fn every_mode_answers_queries_as_direct() {
    let server = Postgres::shared();
    for mode in MODES {
        let proxy = through(server, mode, "");
        let (mut direct, mut ours) = pair(server, &proxy, "CREATE TABLE t (a int PRIMARY KEY)");
        for sql in [
            "SELECT 1, NULL, 'x'",
            "",
            " ; ",
            "SELECT 1; SELECT 2, 3; INSERT INTO t VALUES (1)",
            "SELECT 1; SELECT 1/0; SELECT 2",
            "INSERT INTO t VALUES (2), (3)",
            "INSERT INTO t VALUES (2)",
            "DO $$BEGIN RAISE NOTICE 'hello %', 1; RAISE WARNING 'w' USING HINT = 'h', DETAIL = 'd'; END$$",
            "SELEC 1",
            "SELECT * FROM missing",
            "SET TimeZone = 'Asia/Tokyo'",
            "SET nonsense = 1",
            "SHOW TimeZone",
            "SELECT repeat('x', 100000)",
            "VACUUM t",
            "TABLE t",
        ] {
            same(&mut direct, &mut ours, &build(|o| f::put_query(o, sql.as_bytes())), 1);
        }
        let extended = build(|o| {
            put_run(o, "SELECT 1");
            put_run(o, "");
            put_run(o, "INSERT INTO t VALUES (9)");
            sync(o);
            sync(o);
        });
        same(&mut direct, &mut ours, &extended, 2);
    }
}

#[test]
fn statement_mode_refuses_transaction_blocks_and_drops_their_server() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let proxy = through(server, "statement", "default_pool_size = 1");
    for extended in [false, true] {
        let mut raw = Raw::login(proxy.port(), &database);
        let before = raw.value("SELECT pg_backend_pid()");
        let begin = build(|o| {
            if extended {
                put_run(o, "BEGIN");
                sync(o);
            } else {
                f::put_query(o, b"BEGIN; INSERT INTO t VALUES (1)");
            }
        });
        raw.send(&begin);
        let last = raw.read_until_closed().pop().expect("an answer");
        assert_eq!((last.tag, last.field(b'S'), last.sqlstate()), (b'E', "FATAL".into(), "25001".into()));
        assert!(last.field(b'M').contains("pool_mode"));
        let mut next = Raw::login(proxy.port(), &database);
        assert_ne!(next.value("SELECT pg_backend_pid()"), before, "the server with the open block is gone");
        assert_eq!(next.value("SELECT count(*) FROM t").as_deref(), Some("0"));
    }
}

#[test]
fn transaction_mode_shares_one_connection_between_transactions_only() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let proxy = through(server, "transaction", "default_pool_size = 1");
    let mut a = Raw::login(proxy.port(), &database);
    let mut other = Raw::login(proxy.port(), &database);
    a.rows("BEGIN; INSERT INTO t VALUES (1)");
    let pid = a.value("SELECT pg_backend_pid()");
    other.send(&build(|o| f::put_query(o, b"SELECT pg_backend_pid(), count(*) FROM t")));
    assert_eq!(a.value("SELECT count(*) FROM t").as_deref(), Some("1"));
    a.rows("COMMIT");
    let rows = other.read_until_ready();
    let row = rows.iter().find(|m| m.tag == b::DATA_ROW).expect("a row").row();
    assert_eq!(row, [pid, Some("1".into())]);
}

#[test]
fn session_mode_keeps_one_connection_for_one_client() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = through(server, "session", "default_pool_size = 1");
    let mut a = Raw::login(proxy.port(), &database);
    a.rows("CREATE TEMP TABLE tt AS SELECT 1 AS a; LISTEN c; SET work_mem = '3MB'; PREPARE p AS SELECT 7");
    assert_eq!(a.value("SELECT a FROM tt").as_deref(), Some("1"));
    assert_eq!(a.value("EXECUTE p").as_deref(), Some("7"));
    let pid = a.value("SELECT pg_backend_pid()");
    a.terminate();
    let mut other = Raw::login(proxy.port(), &database);
    assert_eq!(other.value("SELECT pg_backend_pid()"), pid);
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
    assert_eq!(other.error("SELECT a FROM tt").sqlstate(), "42P01");
}

#[test]
fn a_setting_that_the_server_refuses_at_login_is_refused_as_direct_and_holds_nobody_up() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for mode in MODES {
        let proxy = through(server, mode, "");
        assert_eq!(Raw::login(proxy.port(), &database).value("SELECT 1").as_deref(), Some("1"), "{mode}");
        for (name, value) in [
            ("doesnotexist", "x"),
            ("work_mem", "banana"),
            ("shared_buffers", "1GB"),
            ("role", "nobody_has_this"),
            ("options", "-c doesnotexist=x"),
            ("options", "-c user=postgres"),
            ("options", "-c database=template1"),
            ("options", "-c options=-cwork_mem=3MB"),
            ("options", "-c replication=database"),
            ("client_encoding", "nope"),
        ] {
            let parameters = [("user", "postgres"), ("database", database.as_str()), (name, value)];
            let refusal =
                |port| Raw::login_as(port, &parameters, "").err().map(|e| (e.sqlstate(), e.field(b'M')));
            let direct = refusal(server.port());
            assert!(direct.is_some(), "{name}");
            assert_eq!(refusal(proxy.port()), direct, "{mode} {name}");
            let mut next = Raw::login(proxy.port(), &database);
            assert_eq!(next.value("SELECT 2").as_deref(), Some("2"), "{mode} behind {name}");
        }
    }
}

#[test]
fn a_database_that_the_role_may_not_connect_to_says_so_as_direct() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE ROLE shut_out LOGIN");
    server.psql(&database, &format!("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC"));
    let parameters = [("user", "shut_out"), ("database", database.as_str())];
    let refusal = |port| Raw::login_as(port, &parameters, "").err().map(|e| e.outline());
    let direct = refusal(server.port()).expect("a refusal");
    assert!(direct.contains("42501"), "{direct}");
    for mode in MODES {
        assert_eq!(refusal(through(server, mode, "").port()).as_deref(), Some(&*direct), "{mode}");
    }
    server.psql("postgres", &format!("DROP DATABASE {database} WITH (FORCE)"));
    server.psql("postgres", "DROP ROLE shut_out");
}

#[test]
fn a_tls_session_that_the_server_ends_is_closed_in_tls() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let certs = Certs::new("postgres");
    let tls = format!(
        "client_tls_sslmode = \"require\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    for mode in MODES {
        let proxy = through(server, mode, &tls);
        let mut psql = client_command("psql");
        psql.args(["-X", "-c", "SELECT pg_terminate_backend(pg_backend_pid())", "-d"]);
        let output =
            psql.arg(format!("{} sslmode=require", proxy.dsn(&database))).output().expect("run psql");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("terminating connection due to administrator command"), "{mode}: {told}");
        assert!(told.contains("SSL connection has been closed unexpectedly"), "{mode}: {told}");
    }
}

#[test]
fn a_tls_session_of_the_console_is_closed_in_tls() {
    let server = Postgres::shared();
    let certs = Certs::new("postgres");
    let tls = format!(
        "client_tls_sslmode = \"allow\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    let proxy = through(server, MODES[0], &tls);
    let dsn = proxy.dsn("pgsluice").replace("sslmode=disable", "sslmode=require");
    let mut psql = client_command("psql");
    psql.args(["-X", "-d", &dsn]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut psql = psql.spawn().expect("run psql");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let named = |console: &mut Raw| find(console, "SHOW CLIENTS", &[("application_name", "psql")]);
    let client = poll(PATIENCE, || named(&mut console)).expect("psql's session");
    console.rows(&format!("KILL_CLIENT {}", client["id"]));
    psql.stdin.take().expect("piped").write_all(b"SHOW VERSION;\n").expect("psql reads");
    let told = String::from_utf8_lossy(&psql.wait_with_output().expect("psql ends").stderr).into_owned();
    assert!(told.contains("SSL connection has been closed unexpectedly"), "{told}");
}

#[test]
fn an_error_in_the_middle_of_a_pipeline_skips_to_the_next_sync_as_direct() {
    let server = Postgres::shared();
    for mode in MODES {
        let proxy = through(server, mode, "");
        let (mut direct, mut ours) = pair(server, &proxy, "CREATE TABLE t (a int PRIMARY KEY)");
        let bytes = build(|o| {
            put_run(o, "INSERT INTO t VALUES (1)");
            put_run(o, "SELECT 1/0");
            put_run(o, "INSERT INTO t VALUES (2)");
            sync(o);
            put_run(o, "INSERT INTO t VALUES (3)");
            sync(o);
            put_run(o, "SELEC");
            put_run(o, "SELECT 1");
            f::put_query(o, b"SELECT 'skipped'");
            sync(o);
            f::put_query(o, b"TABLE t");
            f::put_query(o, b"SELECT 1/0; SELECT 1");
            put_run(o, "SELECT count(*) FROM t");
            sync(o);
        });
        let answer = same(&mut direct, &mut ours, &bytes, 6);
        assert!(answer.contains("22012") && !answer.contains("skipped"));
        // The error is known before the rest is sent.
        let first = build(|o| {
            put_run(o, "SELECT 1/0");
            f::put_empty(o, f::FLUSH);
        });
        for raw in [&mut direct, &mut ours] {
            raw.send(&first);
            assert_eq!(tags(&raw.read_until(b::ERROR_RESPONSE)), "1E");
        }
        let rest = build(|o| {
            put_run(o, "SELECT 2");
            f::put_query(o, b"SELECT 3");
            f::put_empty(o, f::FLUSH);
            sync(o);
            f::put_query(o, b"SELECT 4");
        });
        same(&mut direct, &mut ours, &rest, 2);
    }
}

#[test]
fn portals_with_row_limits_are_suspended_and_go_on() {
    let server = Postgres::shared();
    let proxy = through(server, "transaction", "default_pool_size = 2");
    let (mut direct, mut ours) = pair(server, &proxy, "");
    let limited = build(|o| {
        f::put_query(o, b"BEGIN");
        f::put_parse(o, b"", b"SELECT generate_series(1, 7)", &[]);
        frame::put(o, f::BIND, |o| o.extend_from_slice(b"portal\0\0\0\0\0\0\0\0"));
        f::put_execute(o, b"portal", 3);
        sync(o);
        f::put_execute(o, b"portal", 3);
        sync(o);
        f::put_execute(o, b"portal", 3);
        f::put_target(o, f::CLOSE, b'P', b"portal");
        sync(o);
        f::put_query(o, b"COMMIT");
    });
    let answer = same(&mut direct, &mut ours, &limited, 5);
    assert_eq!(answer.matches("\ns ").count(), 2, "{answer}");
    // Outside of a block a portal lives until Sync; a Flush in between forces answers out.
    for raw in [&mut direct, &mut ours] {
        raw.send(&build(|o| {
            f::put_parse(o, b"", b"SELECT generate_series(1, 3)", &[]);
            f::put_bind_text(o, b"", &[]);
            f::put_execute(o, b"", 2);
            f::put_empty(o, f::FLUSH);
        }));
        assert_eq!(tags(&raw.read_until(b::PORTAL_SUSPENDED)), "12DDs");
        raw.send(&build(|o| {
            f::put_execute(o, b"", 2);
            sync(o);
        }));
        assert_eq!(tags(&raw.read_until_ready()), "DCZ");
    }
}

#[test]
fn copy_in_goes_through_in_every_form() {
    let server = Postgres::shared();
    for mode in MODES {
        let proxy = through(server, mode, "default_pool_size = 2");
        let (mut direct, mut ours) = pair(server, &proxy, "CREATE TABLE t (a int)");
        let copy = "COPY t FROM STDIN";
        type Form<'a> = (&'a str, &'a dyn Fn(&mut Vec<u8>), usize);
        let forms: [Form<'_>; 7] = [
            (
                "simple",
                &|o| {
                    f::put_query(o, copy.as_bytes());
                    put_copy_data(o, b"1\n2\n");
                    f::put_empty(o, f::COPY_DONE);
                },
                1,
            ),
            (
                "simple, failed by the client",
                &|o| {
                    f::put_query(o, copy.as_bytes());
                    put_copy_data(o, b"1\n");
                    f::put_copy_fail(o, b"changed my mind");
                },
                1,
            ),
            (
                "simple, error in the middle",
                &|o| {
                    f::put_query(o, copy.as_bytes());
                    for _ in 0..2000 {
                        put_copy_data(o, b"1\nx\n3\n");
                    }
                    f::put_empty(o, f::COPY_DONE);
                    f::put_query(o, b"SELECT 'after'");
                },
                2,
            ),
            (
                "extended, one Sync at the end",
                &|o| {
                    put_run(o, copy);
                    put_copy_data(o, b"3\n");
                    f::put_empty(o, f::COPY_DONE);
                    sync(o);
                },
                1,
            ),
            (
                "extended, Sync before and behind, as libpq",
                &|o| {
                    put_run(o, copy);
                    sync(o);
                    put_copy_data(o, b"4\n");
                    f::put_empty(o, f::COPY_DONE);
                    sync(o);
                },
                1,
            ),
            (
                "extended, failed by the client, as libpq",
                &|o| {
                    put_run(o, copy);
                    sync(o);
                    put_copy_data(o, b"4\n");
                    f::put_copy_fail(o, b"no");
                    sync(o);
                    f::put_query(o, b"SELECT 'after'");
                },
                2,
            ),
            (
                "extended, error in the middle, as libpq",
                &|o| {
                    put_run(o, copy);
                    sync(o);
                    for _ in 0..2000 {
                        put_copy_data(o, b"4\nx\n");
                    }
                    f::put_empty(o, f::COPY_DONE);
                    sync(o);
                    put_run(o, "SELECT 'after'");
                    sync(o);
                },
                2,
            ),
        ];
        for (name, form, ready) in forms {
            println!("{mode}: {name}");
            same(&mut direct, &mut ours, &build(form), ready);
            // The same, waiting for CopyInResponse before the data goes.
            let bytes = build(form);
            let at = bytes.iter().position(|&byte| byte == f::COPY_DATA).expect("data");
            let (head, tail) = cut_before_data(&bytes, at);
            for raw in [&mut direct, &mut ours] {
                raw.send(head);
                raw.read_until(b::COPY_IN_RESPONSE);
            }
            same(&mut direct, &mut ours, tail, ready);
            same(&mut direct, &mut ours, &build(|o| f::put_query(o, b"SELECT count(*) FROM t")), 1);
        }
    }
}

/// Cuts before the first CopyData message.
fn cut_before_data(bytes: &[u8], _hint: usize) -> (&[u8], &[u8]) {
    let mut at = 0;
    while bytes[at] != f::COPY_DATA {
        let (head, _) = frame::whole(&bytes[at..], usize::MAX).expect("frame").expect("whole");
        at += head.total();
    }
    bytes.split_at(at)
}

#[test]
fn a_message_that_copy_does_not_take_ends_the_session_as_direct() {
    let server = Postgres::shared();
    let proxy = through(server, "transaction", "");
    let (direct, ours) = pair(server, &proxy, "CREATE TABLE t (a int)");
    let bytes = build(|o| {
        put_run(o, "COPY t FROM STDIN");
        sync(o);
        put_run(o, "SELECT 1");
        sync(o);
    });
    let [direct, ours] = [direct, ours].map(|mut raw| {
        raw.send(&bytes);
        outline_of(raw.read_until_closed())
    });
    assert!(direct.contains("protocol synchronization was lost"), "{direct}");
    assert_eq!(ours, direct);
}

#[test]
fn copy_out_goes_through() {
    let server = Postgres::shared();
    for mode in MODES {
        let proxy = through(server, mode, "");
        let (mut direct, mut ours) =
            pair(server, &proxy, "CREATE TABLE t AS SELECT generate_series(1, 1000) AS a");
        let bytes = build(|o| {
            f::put_query(o, b"COPY t TO STDOUT");
            put_run(o, "COPY t TO STDOUT (FORMAT binary)");
            sync(o);
            f::put_query(o, b"COPY (SELECT 1/(5 - a) FROM t) TO STDOUT");
            f::put_query(o, b"COPY t TO STDOUT; SELECT 1");
        });
        same(&mut direct, &mut ours, &bytes, 4);
    }
}

#[test]
fn a_function_call_is_answered_as_direct() {
    let server = Postgres::shared();
    for mode in MODES {
        let proxy =
            Proxy::to(server, &format!("pool_mode = \"{mode}\""), "", "[policy]\nfunction_call = \"allow\"");
        let (mut direct, mut ours) = pair(server, &proxy, "");
        let call = |function: i32, argument: &[u8]| {
            build(|o| {
                frame::put(o, f::FUNCTION_CALL, |o| {
                    o.extend_from_slice(&function.to_be_bytes());
                    o.extend_from_slice(&[0, 0, 0, 1]);
                    o.extend_from_slice(&(argument.len() as i32).to_be_bytes());
                    o.extend_from_slice(argument);
                    o.extend_from_slice(&[0, 0]);
                });
            })
        };
        // md5(text), a function that is not there, and the session goes on.
        let answer = same(&mut direct, &mut ours, &call(2311, b"abc"), 1);
        assert!(answer.contains("900150983cd24fb0d6963f7d28e17f72"), "{answer}");
        same(&mut direct, &mut ours, &call(1, b"abc"), 1);
        same(&mut direct, &mut ours, &build(|o| f::put_query(o, b"SELECT 1")), 1);
    }
}

#[test]
fn notifications_reach_a_listener_in_session_and_transaction_mode() {
    let server = Postgres::shared();
    for mode in ["session", "transaction"] {
        let database = server.fresh_database("");
        let proxy = through(server, mode, "");
        let mut listener = Raw::login(proxy.port(), &database);
        let mut sender = Raw::login(proxy.port(), &database);
        listener.rows("LISTEN news");
        sender.rows("NOTIFY news, 'one'");
        let message = listener.read();
        assert_eq!(message.tag, b::NOTIFICATION_RESPONSE);
        assert!(message.outline().contains("news") && message.outline().contains("one"));
        assert_ne!(message.body[..4], listener.pid.to_be_bytes());
        // To itself, within its own transaction.
        let own = listener.query("NOTIFY news, 'self'");
        assert_eq!(tags(&own), "CAZ");
        assert_eq!(own[1].body[..4], listener.pid.to_be_bytes());
        listener.rows("UNLISTEN *");
        sender.rows("NOTIFY news, 'two'");
        assert_eq!(tags(&listener.query("SELECT 1")), "TDCZ");
    }
}

#[test]
fn great_values_pass_in_and_out_with_flat_memory() {
    const SIZE: usize = 200 << 20;
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE UNLOGGED TABLE t (a bytea)");
    let proxy = through(server, "transaction", "");
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("SELECT 1");
    let before = proxy.rss();
    // In: one Bind of 200 MB, in binary.
    raw.send(&build(|o| {
        f::put_parse(o, b"", b"INSERT INTO t VALUES ($1)", &17u32.to_be_bytes());
        o.push(f::BIND);
        let body = 4 + 2 + 2 + 2 + 2 + 4 + SIZE + 2;
        o.extend_from_slice(&(body as u32).to_be_bytes());
        o.extend_from_slice(b"\0\0\0\x01\0\x01\0\x01");
        o.extend_from_slice(&(SIZE as u32).to_be_bytes());
    }));
    let piece = vec![7u8; 1 << 20];
    for _ in 0..SIZE / piece.len() {
        raw.send(&piece);
    }
    raw.send(&build(|o| {
        o.extend_from_slice(&[0, 0]);
        f::put_execute(o, b"", 0);
        sync(o);
    }));
    assert_eq!(tags(&raw.read_until_ready()), "12CZ");
    // In: a Query of some MB, which is too long to be looked at.
    let mut text = b"SELECT length('".to_vec();
    text.resize(text.len() + (20 << 20), b'x');
    text.extend_from_slice(b"')");
    raw.send(&build(|o| f::put_query(o, &text)));
    assert_eq!(raw.read_until_ready()[1].row()[0].as_deref(), Some("20971520"));
    // Out: the value in one DataRow. The test itself must not hold it: it only counts.
    raw.send(&build(|o| {
        f::put_parse(o, b"", b"SELECT a FROM t", &[]);
        frame::put(o, f::BIND, |o| o.extend_from_slice(b"\0\0\0\0\0\0\0\x01\0\x01"));
        f::put_execute(o, b"", 0);
        sync(o);
    }));
    let messages = raw.read_until_ready();
    assert_eq!((tags(&messages).as_str(), messages[2].body.len()), ("12DCZ", SIZE + 6));
    let grown = proxy.peak_rss().saturating_sub(before);
    assert!(grown < 40 << 20, "grew by {} MB", grown >> 20);
}

#[test]
fn behind_a_query_that_is_too_long_to_be_looked_at_every_client_is_served() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let long = format!("SELECT length('{}')", "x".repeat(STATEMENT_BYTES_MAX));
    for mode in MODES {
        let proxy = through(server, mode, "workers = 1");
        let (mut a, mut b) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
        for _ in 0..2 {
            assert_eq!(a.value(&long), Some(STATEMENT_BYTES_MAX.to_string()), "{mode}");
            assert_eq!(b.value("SELECT 1").as_deref(), Some("1"), "{mode}");
            assert_eq!(a.value("SELECT 2").as_deref(), Some("2"), "{mode}");
        }
    }
}

#[test]
fn while_a_message_is_half_here_every_client_is_served() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    for mode in MODES {
        let proxy = through(server, mode, "workers = 1");
        let (mut a, mut b) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
        // Names are forgotten when the portal runs, so its Execute is looked at: it has to be whole.
        a.send(&build(|o| {
            f::put_parse(o, b"", b"DISCARD ALL", &[]);
            f::put_bind_text(o, b"", &[]);
            sync(o);
        }));
        assert_eq!(tags(&a.read_until_ready()), "12Z", "{mode}");
        let execute = build(|o| {
            frame::put(o, f::EXECUTE, |o| {
                o.resize(o.len() + SHORT_MESSAGE_BYTES_MAX - 4, b'x');
            });
        });
        let (begun, rest) = execute.split_at(READ_BUFFER_BYTES / 2 + 100);
        a.send(begun);
        for _ in 0..3 {
            assert_eq!(b.value("SELECT 1").as_deref(), Some("1"), "{mode}");
        }
        a.send(rest);
        a.send(&build(sync));
        assert!(a.read_until_ready().iter().any(|m| m.sqlstate() == "08P01"), "{mode}");
    }
}

#[test]
fn a_client_that_leaves_inside_a_unit_keeps_no_connection() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    for mode in MODES {
        let proxy = through(server, mode, "default_pool_size = 1\nquery_wait_timeout = 20");
        let begun = |o: &mut Vec<u8>| put_run(o, "INSERT INTO t VALUES (1)");
        let units: [Unit<'_>; 4] = [
            &begun,
            &|o| f::put_parse(o, b"", b"SELECT 1", &[]),
            &|o| {
                f::put_query(o, b"SELECT 1");
                begun(o);
            },
            &|o| {
                begun(o);
                f::put_empty(o, f::TERMINATE);
            },
        ];
        for unit in units {
            let mut a = Raw::login(proxy.port(), &database);
            a.send(&build(unit));
            drop(a);
            let mut b = Raw::login(proxy.port(), &database);
            assert_eq!(
                b.value("SELECT count(*) FROM t").as_deref(),
                Some("0"),
                "{mode}: as direct, it is undone"
            );
            b.terminate();
        }
    }
}

#[test]
fn a_copy_of_a_million_rows_passes_both_ways_with_flat_memory() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE UNLOGGED TABLE t (a int, b text)");
    let proxy = through(server, "transaction", "");
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("SELECT 1");
    let before = proxy.rss();
    raw.send(&build(|o| f::put_query(o, b"COPY t FROM STDIN")));
    assert_eq!(raw.read().tag, b::COPY_IN_RESPONSE);
    let mut piece = Vec::new();
    for n in 0..1_000_000 {
        let mut row = Vec::new();
        writeln!(row, "{n}\tsome text of row {n}").expect("a row");
        put_copy_data(&mut piece, &row);
        if piece.len() > 256 << 10 {
            raw.send(&piece);
            piece.clear();
        }
    }
    f::put_empty(&mut piece, f::COPY_DONE);
    raw.send(&piece);
    assert_eq!(raw.read_until_ready()[0].command(), "COPY 1000000");
    raw.send(&build(|o| f::put_query(o, b"COPY t TO STDOUT")));
    let mut rows = 0;
    loop {
        match raw.read().tag {
            b::COPY_DATA => rows += 1,
            b::READY_FOR_QUERY => break,
            _ => {}
        }
    }
    assert_eq!(rows, 1_000_000);
    let grown = proxy.peak_rss().saturating_sub(before);
    assert!(grown < 40 << 20, "grew by {} MB", grown >> 20);
}

#[test]
fn a_client_that_leaves_inside_a_transaction_costs_its_server_only() {
    let server = Postgres::shared();
    for mode in ["session", "transaction"] {
        let database = server.fresh_database("CREATE TABLE t (a int)");
        let proxy = through(server, mode, "default_pool_size = 1");
        let mut a = Raw::login(proxy.port(), &database);
        a.rows("BEGIN; INSERT INTO t VALUES (1)");
        let pid = a.value("SELECT pg_backend_pid()").expect("pid");
        drop(a);
        let mut next = Raw::login(proxy.port(), &database);
        assert_ne!(next.value("SELECT pg_backend_pid()").as_deref(), Some(pid.as_str()), "{mode}");
        server.wait_until(&database, &format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}"));
        assert_eq!(next.value("SELECT count(*) FROM t").as_deref(), Some("0"));
    }
}

#[test]
fn a_client_that_says_goodbye_behind_its_last_query_is_served() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let proxy = through(server, "transaction", "default_pool_size = 1");
    let mut a = Raw::login(proxy.port(), &database);
    a.send(&build(|o| {
        f::put_query(o, b"INSERT INTO t SELECT 1 FROM pg_sleep(0.05)");
        f::put_empty(o, f::TERMINATE);
    }));
    a.read_until_closed();
    server.wait_until(&database, "SELECT count(*) = 1 FROM t");
}

#[test]
fn a_server_that_is_terminated_tells_its_client_as_direct_and_nobody_else() {
    let server = Postgres::shared();
    let kill = |database: &str, pid: &str| {
        server.psql(database, &format!("SELECT pg_terminate_backend({pid})"));
    };
    // In a block, saying nothing; and in a query.
    for query in [None, Some("SELECT pg_sleep(600)")] {
        let database = server.fresh_database("");
        let proxy = through(server, "transaction", "");
        let mut other = Raw::login(proxy.port(), &database);
        let mut heard = Vec::new();
        for port in [server.port(), proxy.port()] {
            let mut a = Raw::login(port, &database);
            a.rows("BEGIN");
            let pid = a.value("SELECT pg_backend_pid()").expect("pid");
            other.rows("SELECT 1");
            if let Some(query) = query {
                a.send(&build(|o| f::put_query(o, query.as_bytes())));
                let busy = format!("SELECT state = 'active' FROM pg_stat_activity WHERE pid = {pid}");
                server.wait_until(&database, &busy);
            }
            kill(&database, &pid);
            heard.push(outline(&a.read_until_closed()));
        }
        assert!(heard[0].contains("57P01"), "{heard:?}");
        assert_eq!(heard[1], heard[0]);
        assert_eq!(other.value("SELECT 1").as_deref(), Some("1"));
    }
}

#[test]
fn a_server_that_died_while_idle_is_replaced_unseen() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = through(server, "transaction", "default_pool_size = 1");
    let mut a = Raw::login(proxy.port(), &database);
    let pid = a.value("SELECT pg_backend_pid()").expect("pid");
    server.psql(&database, &format!("SELECT pg_terminate_backend({pid})"));
    server.wait_until(&database, &format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}"));
    assert_ne!(a.value("SELECT pg_backend_pid()").as_deref(), Some(pid.as_str()));
}

#[test]
fn while_postgresql_is_down_clients_hear_why_and_work_again_when_it_is_back() {
    let mut server = Postgres::start(PgOptions::default());
    // A login that failed takes no place.
    let limits = "max_user_connections = 1\nmax_db_connections = 1";
    let proxy = through(&server, "transaction", limits);
    let mut kept = Raw::login(proxy.port(), "postgres");
    let mut waits = Raw::login(proxy.port(), "postgres");
    assert_eq!(kept.value("SELECT 1").as_deref(), Some("1"));
    set(proxy.port(), "query_wait_timeout = 1");
    server.stop();
    waits.send(&build(|o| f::put_query(o, b"SELECT 1")));
    let last = waits.read_until_closed().pop().expect("an answer");
    assert_eq!((last.field(b'S'), last.sqlstate()), ("FATAL".into(), "08001".into()), "{}", last.outline());
    assert!(last.field(b'M').contains("query_wait_timeout") && !last.field(b'D').is_empty());
    let wrong = [("user", "postgres"), ("database", "postgres"), ("options", "-c work_mem=3MB")];
    let refused = Raw::login_as(proxy.port(), &wrong, "").err().expect("refused");
    assert_eq!(refused.sqlstate(), "08001");
    set(proxy.port(), "query_wait_timeout = 60");
    server.start_again();
    let back = poll(PATIENCE, || {
        let mut raw = Raw::login_as(proxy.port(), &wrong, "").ok()?;
        (raw.query("SELECT 1").iter().any(|m| m.tag == b::DATA_ROW)).then_some(())
    });
    assert!(back.is_some(), "{}", proxy.log());
    assert_eq!(kept.value("SELECT 2").as_deref(), Some("2"), "a client that was idle never noticed");
}

#[test]
fn a_client_that_waits_while_postgresql_starts_is_served() {
    let mut server = Postgres::start(PgOptions::default());
    let proxy = through(&server, "transaction", "query_wait_timeout = 60");
    let mut raw = Raw::login(proxy.port(), "postgres");
    raw.rows("SELECT 1");
    server.crash();
    raw.send(&build(|o| f::put_query(o, b"SELECT 7")));
    proxy.wait_for_log("login");
    server.start_again();
    assert_eq!(raw.read_until_ready()[1].row()[0].as_deref(), Some("7"));
}

#[test]
fn a_client_that_stops_inside_a_message_holds_nobody_up() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = through(server, "transaction", "default_pool_size = 1\nworkers = 1");
    let mut other = Raw::login(proxy.port(), &database);
    let long = "x".repeat(3 << 20);
    let whole = [
        build(|o| f::put_query(o, format!("SELECT '{}'", &long[..900 << 10]).as_bytes())),
        build(|o| f::put_parse(o, b"", format!("SELECT '{long}'").as_bytes(), &[])),
        build(|o| f::put_parse(o, b"named", format!("SELECT '{long}'").as_bytes(), &[])),
        build(|o| f::put_target(o, f::CLOSE, b'S', &long.as_bytes()[..9900])),
        build(|o| f::put_target(o, f::DESCRIBE, b'S', &long.as_bytes()[..9900])),
        build(|o| f::put_copy_fail(o, &long.as_bytes()[..9900])),
        build(|o| {
            frame::put(o, f::BIND, |o| {
                o.extend_from_slice(&long.as_bytes()[..900 << 10]);
                o.extend_from_slice(b"\0\0\0\0\0\0\0\0");
            });
        }),
    ];
    for message in whole {
        for sent in [3, 4000, 9000, 20_000, message.len() - 1].map(|n| n.min(message.len() - 1)) {
            let mut slow = Raw::login(proxy.port(), &database);
            slow.send(&message[..sent]);
            assert_eq!(other.value("SELECT 1").as_deref(), Some("1"), "after {sent} bytes of {}", message[0]);
            slow.send(&message[sent..]);
            slow.send(&build(sync));
            slow.read_until_ready();
            slow.terminate();
        }
    }
}

#[test]
fn a_short_kind_of_message_that_is_long_ends_the_session_before_a_server_sees_it() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = through(server, "transaction", "default_pool_size = 1");
    let mut other = Raw::login(proxy.port(), &database);
    let pid = other.value("SELECT pg_backend_pid()");
    let name = vec![b'x'; 20_000];
    for message in [
        build(|o| f::put_target(o, f::CLOSE, b'S', &name)),
        build(|o| f::put_target(o, f::DESCRIBE, b'P', &name)),
        build(|o| f::put_execute(o, &name, 0)),
        build(|o| f::put_copy_fail(o, &name)),
        vec![f::SYNC, 0x3f, 0xff, 0xff, 0xff],
    ] {
        let mut raw = Raw::login(proxy.port(), &database);
        let _ = raw.try_send(&message);
        let last = raw.read_until_closed().pop().expect("an answer");
        assert_eq!(
            (last.field(b'S'), last.sqlstate()),
            ("FATAL".into(), "08P01".into()),
            "{}",
            last.outline()
        );
    }
    assert_eq!(other.value("SELECT pg_backend_pid()"), pid);
}

/// A COPY that was sent whole, and a transaction behind it while its rows wait in a trigger.
#[test]
fn what_is_sent_while_a_copy_runs_is_answered_behind_it() {
    let server = Postgres::shared();
    for mode in MODES {
        let proxy = through(server, mode, "default_pool_size = 2");
        let (mut direct, mut ours) = pair(
            server,
            &proxy,
            "CREATE TABLE t (a int);
             CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS
               'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END';
             CREATE TRIGGER held BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION held()",
        );
        let seen = [&mut direct, &mut ours].map(|raw| {
            let database = raw.value("SELECT current_database()").expect("a name");
            let mut holder = Raw::login(server.port(), &database);
            holder.rows("SELECT pg_advisory_lock(4711)");
            raw.send(&build(|o| {
                put_run(o, "COPY t FROM STDIN");
                put_copy_data(o, b"1\n");
                f::put_empty(o, f::COPY_DONE);
                sync(o);
            }));
            let mut messages = raw.read_until(b::COPY_IN_RESPONSE);
            raw.send(&build(|o| {
                put_run(o, "SELECT a + 0 FROM t");
                sync(o);
            }));
            holder.rows("SELECT pg_advisory_unlock(4711)");
            messages.extend(raw.read_until_ready());
            messages.extend(raw.read_until_ready());
            outline(&messages)
        });
        assert_eq!(seen[0], seen[1], "{mode}");
        assert!(seen[0].contains("COPY 1"), "{}", seen[0]);
        assert_eq!(ours.rows("SELECT 'after'"), [["after"]].map(|row| row.map(|v| Some(v.into())).to_vec()));
    }
}

/// It closes its sending half behind its request, which waits for the pool's one server connection.
#[test]
fn a_client_that_closed_its_sending_half_is_answered_and_keeps_no_place_for_good() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int)");
    let proxy = through(pg, "transaction", "default_pool_size = 1\nquery_wait_notify = 0");
    let (mut holder, mut console) = (Raw::login(proxy.port(), &db), Raw::login(proxy.port(), "pgsluice"));
    // A question of ours about the table stands in the queue, too; no client waits for that.
    let waiting = [("database", db.as_str()), ("cl_waiting", "1")];
    let ask = || {
        let mut client = Raw::login(proxy.port(), &db);
        client.send(&build(|o| f::put_query(o, b"INSERT INTO t VALUES (1) RETURNING a")));
        client.shutdown_write();
        client
    };
    holder.rows("BEGIN");
    let mut client = ask();
    until(&mut console, "SHOW POOLS", &waiting);
    holder.rows("COMMIT");
    assert_eq!(
        outline(&client.read_until_closed()),
        outline(&{
            let mut direct = Raw::login(pg.port(), &db);
            direct.query("INSERT INTO t VALUES (1) RETURNING a")
        })
    );
    // One that may be gone does not wait for ever.
    holder.rows("BEGIN");
    let mut client = ask();
    until(&mut console, "SHOW POOLS", &waiting);
    assert_eq!(outline(&client.read_until_closed()), "");
    let nobody = poll(PATIENCE, || find(&mut console, "SHOW POOLS", &waiting).is_none().then_some(()));
    assert!(nobody.is_some(), "it keeps its place");
    holder.rows("COMMIT");
    assert_eq!(holder.value("SELECT count(*) FROM t").as_deref(), Some("2"));
}

/// Nor does it keep its server from being taken away when it takes nothing of what it asked for.
#[test]
fn who_closed_its_sending_half_and_takes_no_answer_can_be_closed() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let stuck = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'ClientWrite'";
    for mode in ["session", "transaction"] {
        for timeout in [0, 1] {
            let proxy = through(pg, mode, &format!("query_timeout = {timeout}"));
            let mut console = Raw::login(proxy.port(), "pgsluice");
            let mut client = Raw::login(proxy.port(), &db);
            client.send(&build(|o| {
                f::put_query(o, b"SELECT repeat('x', 1000000) FROM generate_series(1, 200)");
            }));
            client.shutdown_write();
            pg.wait_until(&db, stuck);
            if timeout == 0 {
                let row = find(&mut console, "SHOW CLIENTS", &[("database", &db)]).expect("the client");
                tell(&mut console, &format!("KILL_CLIENT {}", row["id"]));
            }
            let gone = || find(&mut console, "SHOW CLIENTS", &[("database", &db)]).is_none().then_some(());
            assert!(poll(PATIENCE, gone).is_some(), "{mode}, query_timeout {timeout}: it stays");
        }
    }
}

/// As whoever did not close it.
#[test]
fn who_closed_its_sending_half_hears_what_ends_it() {
    let pg = Postgres::shared();
    let busy = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    for mode in MODES {
        for (general, told) in
            [("", "57P01"), ("query_timeout = 1", "57014"), ("shutdown_timeout = 1", "57P01")]
        {
            let hears = |closes: bool| {
                // What a drain cuts short may sleep on.
                let db = pg.fresh_database("");
                let proxy = through(pg, mode, general);
                let mut client = Raw::login(proxy.port(), &db);
                client.send(&build(|o| f::put_query(o, b"SELECT pg_sleep(600)")));
                if closes {
                    client.shutdown_write();
                }
                if general.is_empty() {
                    pg.wait_until(&db, busy);
                    let mut console = Raw::login(proxy.port(), "pgsluice");
                    let row = find(&mut console, "SHOW CLIENTS", &[("database", &db)]).expect("the client");
                    tell(&mut console, &format!("KILL_CLIENT {}", row["id"]));
                } else if general.starts_with("shutdown") {
                    pg.wait_until(&db, busy);
                    proxy.terminate();
                }
                outline(&client.read_until_closed())
            };
            let [open, closed] = [false, true].map(hears);
            assert!(open.contains(told), "{mode} {general}: {open}");
            assert_eq!(closed, open, "{mode} {general}");
        }
    }
}

/// A COPY that reads on fails for that, and whoever closed its sending half hears it; one that had failed already says why.
#[test]
fn a_client_that_closes_its_sending_half_amid_a_copy_hears_the_servers_words() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let data = |row: &[u8]| build(|o| put_copy_data(o, row));
    let [good, bad] = [&b"1\n"[..], b"bad\n"].map(data);
    let part = [&good[..], &good[..6]].concat();
    for (mode, level) in MODES.into_iter().flat_map(|mode| ["allow", "single"].map(|level| (mode, level))) {
        let general = format!("pool_mode = \"{mode}\"");
        let proxy = Proxy::to(server, &general, "", &format!("[policy]\nsimple_query = \"{level}\""));
        for (rows, at_once) in [(&good, false), (&good, true), (&part, false), (&bad, false)] {
            let [direct, through] = [server.port(), proxy.port()].map(|port| {
                let mut raw = Raw::login(port, &database);
                let copy = build(|o| f::put_query(o, b"COPY t FROM STDIN"));
                if at_once {
                    raw.send(&[&copy[..], rows].concat());
                } else {
                    raw.send(&copy);
                    raw.read_until(b::COPY_IN_RESPONSE);
                    raw.send(rows);
                }
                raw.shutdown_write();
                outline(&raw.read_until_closed())
            });
            assert!(direct.contains("08006") || direct.contains("22P02"), "{direct}");
            assert_eq!(through, direct, "{mode} {level} {at_once} {rows:?}");
        }
        assert_eq!(Raw::login(proxy.port(), &database).value("SELECT 42").as_deref(), Some("42"));
    }
    assert_eq!(server.psql(&database, "SELECT count(*) FROM t").trim(), "0");
}

/// In place of the answer to a SET of ours, too.
#[test]
fn a_server_that_goes_amid_a_unit_of_ours_is_heard() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("");
    let proxy = through(pg, "transaction", "default_pool_size = 1");
    let login = |name: &str| {
        let parameters = [("user", "postgres"), ("database", db.as_str()), ("application_name", name)];
        Raw::login_as(proxy.port(), &parameters, "").expect("let in")
    };
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let hears = [("one", "one"), ("one", "two")].map(|(first, then)| {
        let pid = login(first).value("SELECT pg_backend_pid()").expect("pid");
        let signal = |name: &str| {
            let done = std::process::Command::new("kill").args(["-s", name, &pid]).status().expect("kill");
            assert!(done.success());
        };
        let mut client = login(then);
        signal("STOP");
        client.send(&build(|o| f::put_query(o, b"SELECT 1")));
        let working = [("database", db.as_str()), ("application_name", then), ("state", "active")];
        until(&mut console, "SHOW CLIENTS", &working);
        pg.psql("postgres", &format!("SELECT pg_terminate_backend({pid})"));
        signal("CONT");
        outline(&client.read_until_closed())
    });
    assert!(hears[0].contains("57P01"), "{}", hears[0]);
    assert_eq!(hears[1], hears[0]);
}

/// It is no end of data, and the COPY says what it is.
#[test]
fn a_terminate_amid_a_copy_is_told_as_directly() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let query = build(|o| f::put_query(o, b"COPY t FROM STDIN"));
    let unit = build(|o| {
        f::put_parse(o, b"", b"COPY t FROM STDIN", &[]);
        f::put_bind_text(o, b"", &[]);
        f::put_execute(o, b"", 0);
        f::put_empty(o, f::FLUSH);
    });
    let last = build(|o| {
        put_copy_data(o, b"1\n");
        f::put_empty(o, f::TERMINATE);
    });
    for (mode, level) in MODES.into_iter().flat_map(|mode| ["allow", "single"].map(|level| (mode, level))) {
        let general = format!("pool_mode = \"{mode}\"");
        let proxy = Proxy::to(server, &general, "", &format!("[policy]\nsimple_query = \"{level}\""));
        for (copy, at_once) in [(&query, false), (&query, true), (&unit, false), (&unit, true)] {
            let [direct, through] = [server.port(), proxy.port()].map(|port| {
                let mut raw = Raw::login(port, &database);
                if at_once {
                    raw.send(&[&copy[..], &last].concat());
                } else {
                    raw.send(copy);
                    raw.read_until(b::COPY_IN_RESPONSE);
                    raw.send(&last);
                }
                outline(&raw.read_until_closed())
            });
            assert!(direct.contains("unexpected message type 0x58"), "{direct}");
            assert_eq!(through, direct, "{mode} {level} {at_once}");
        }
    }
    assert_eq!(server.psql(&database, "SELECT count(*) FROM t").trim(), "0");
}

/// Also where nothing follows its first byte.
#[test]
fn a_message_of_no_known_type_is_told_at_once() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let units: [Unit<'_>; 4] =
        [&|_| {}, &|o| f::put_query(o, b"SELECT 1"), &|o| f::put_query(o, b"BEGIN"), &|o| {
            f::put_parse(o, b"", b"SELECT 1", &[])
        }];
    for mode in MODES {
        let proxy = through(server, mode, "");
        for (number, unit) in units.iter().enumerate().take(if mode == "statement" { 2 } else { 4 }) {
            // The last one has a length that is none, too.
            for odd in [&b"!"[..], b"\0\0\0", b"!\0\0\0\0"] {
                let [direct, through] = [server.port(), proxy.port()].map(|port| {
                    let mut raw = Raw::login(port, &database);
                    raw.send(&[&build(unit), odd].concat());
                    let heard = outline(&raw.read_until_closed());
                    // But for where in its source PostgreSQL says so.
                    heard.split(" F=").next().unwrap_or_default().trim_end().to_owned()
                });
                assert!(direct.contains("invalid frontend message type"), "{direct}");
                assert_eq!(through, direct, "{mode} {number} {odd:?}");
            }
        }
    }
}

/// By a reset, as of a client that has not read everything, and over TLS without a goodbye, as of a process that is killed.
#[test]
fn what_a_client_sent_before_its_connection_broke_is_run() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let certs = Certs::new("postgres");
    let general = format!(
        "client_tls_sslmode = \"allow\"\nclient_tls_key_file = {:?}\nclient_tls_cert_file = {:?}",
        certs.server_key, certs.server_cert
    );
    let units: [Unit<'_>; 2] = [&|o| f::put_query(o, b"INSERT INTO t VALUES (1)"), &|o| {
        put_run(o, "INSERT INTO t VALUES (1)");
        sync(o);
    }];
    let run = |times: usize| {
        let all = format!("SELECT count(*) = {times} FROM t");
        server.wait_until(&database, &all);
        server.psql(&database, "TRUNCATE t");
    };
    for mode in ["session", "transaction"] {
        let proxy = through(server, mode, &general);
        for unit in units {
            for port in [server.port(), proxy.port()] {
                for _ in 0..10 {
                    let mut raw = Raw::login(port, &database);
                    raw.send(&build(unit));
                    let tcp = raw.into_stream();
                    let linger = Some(Duration::ZERO);
                    socket2::SockRef::from(&tcp).set_linger(linger).expect("reset when it is closed");
                }
                run(10);
            }
            for _ in 0..10 {
                let mut tls = crate::cancel::tls_to(proxy.port(), &certs);
                let mut startup = (3u32 << 16).to_be_bytes().to_vec();
                startup.extend(format!("user\0postgres\0database\0{database}\0\0").bytes());
                let length = (startup.len() as u32 + 4).to_be_bytes();
                tls.write_all(&[&length[..], &startup].concat()).expect("startup");
                let (mut greeting, mut byte) = (Vec::new(), [0]);
                while !greeting.ends_with(b"Z\0\0\0\x05I") {
                    tls.read_exact(&mut byte).expect("greeting");
                    greeting.push(byte[0]);
                }
                tls.write_all(&build(unit)).expect("send");
            }
            run(10);
        }
    }
}

#[test]
fn each_session_that_ends_is_logged_once_whatever_way_its_client_left() {
    let server = Postgres::shared();
    let db = server.fresh_database("");
    let proxy = |mode: &str, general: &str| through(server, mode, general);
    for mode in ["session", "transaction"] {
        let proxy = proxy(mode, "");
        let begins: [(&str, &str, &[&str]); 4] = [
            ("login", &db, &[]),
            ("a statement", &db, &["SELECT 1"]),
            ("an open block", &db, &["BEGIN", "SELECT 1"]),
            ("the console", "pgsluice", &["SHOW VERSION"]),
        ];
        let mut ended = 0;
        for says_so in [true, false] {
            for (begin, database, statements) in begins {
                let mut client = Raw::login(proxy.port(), database);
                for sql in statements {
                    client.query(sql);
                }
                if says_so {
                    client.terminate();
                } else {
                    drop(client);
                }
                ended += 1;
                let said = |log: &str| log.lines().filter(|l| l.contains("reason=\"client left\"")).count();
                let logged = poll(PATIENCE, || (said(&proxy.log()) == ended).then_some(()));
                assert!(logged.is_some(), "{mode}, Terminate: {says_so}, behind {begin}:\n{}", proxy.log());
            }
        }
    }
    // Told not to: what is said behind it shows that it would have been there.
    let proxy = proxy("transaction", "log_disconnections = false");
    Raw::login(proxy.port(), &db).terminate();
    let mut console = Raw::login(proxy.port(), "pgsluice");
    assert!(
        poll(PATIENCE, || find(&mut console, "SHOW CLIENTS", &[("database", &db)]).is_none().then_some(()))
            .is_some()
    );
    console.query("RELOAD");
    proxy.wait_for_log("configuration reloaded");
    assert!(!proxy.log().contains("client left"), "{}", proxy.log());
}

/// PostgreSQL runs what it has read before it finds that what comes next is no message.
#[test]
fn what_stands_before_what_is_no_message_is_run_and_answered() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let insert = "INSERT INTO t VALUES (1)";
    let units: [Unit<'_>; 5] = [
        &|out| f::put_query(out, insert.as_bytes()),
        &|out| {
            put_run(out, insert);
            sync(out);
        },
        // Undone, and told of.
        &|out| put_run(out, insert),
        &|out| {
            put_run(out, "SELECT 1/0");
            put_run(out, insert);
        },
        &|out| {
            f::put_query(out, insert.as_bytes());
            f::put_query(out, b"SELECT pg_backend_pid() > 0");
        },
    ];
    let no_messages: [&[u8]; 3] = [&[255, 0, 0, 0, 4], &[f::QUERY, 0, 0, 0, 3], &[f::SYNC, 0, 1, 0, 0]];
    for mode in MODES {
        let proxy = through(server, mode, "");
        for unit in units {
            for no_message in no_messages {
                let seen = [server.port(), proxy.port()].map(|port| {
                    server.psql(&database, "TRUNCATE t");
                    let mut raw = Raw::login(port, &database);
                    let mut bytes = build(unit);
                    bytes.extend_from_slice(no_message);
                    raw.send(&bytes);
                    let mut seen = raw.read_until_closed();
                    let is_last = |m: &Message| m.tag == b::ERROR_RESPONSE && m.sqlstate() == "08P01";
                    seen.retain(|m| !is_last(m));
                    (outline_of(seen), server.psql(&database, "SELECT count(*) FROM t"))
                });
                let [(direct, stored), (ours, ours_stored)] = seen;
                assert_eq!(ours_stored, stored, "{mode} {no_message:?}");
                // Of a length PostgreSQL says nothing, nor what it has not sent by then.
                assert!(ours.starts_with(&direct), "{mode} {no_message:?}\n{direct}\n{ours}");
                assert!(ours == direct || no_message[0] != 255, "{mode} {no_message:?}\n{direct}\n{ours}");
            }
        }
    }
}

/// The COPY fails, and then the connection ends.
#[test]
fn a_message_of_no_type_within_a_copy_is_answered_as_directly() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a text)");
    for mode in MODES {
        let proxy = through(server, mode, "");
        for (tag, extended) in [(b'y', false), (1, false), (b'y', true)] {
            let [direct, through] = [server.port(), proxy.port()].map(|port| {
                let mut raw = Raw::login(port, &database);
                raw.send(&build(|o| {
                    if extended {
                        f::put_parse(o, b"", b"COPY t FROM STDIN", &[]);
                        f::put_bind_text(o, b"", &[]);
                        f::put_execute(o, b"", 0);
                        f::put_empty(o, f::FLUSH);
                    } else {
                        f::put_query(o, b"COPY t FROM STDIN");
                    }
                }));
                raw.read_until(b::COPY_IN_RESPONSE);
                raw.send(&build(|o| {
                    put_copy_data(o, b"x\n");
                    frame::put(o, tag, |out| out.extend_from_slice(b"abc"));
                }));
                let word = |m: &Message| (m.field(b'S'), m.sqlstate(), m.field(b'M'));
                raw.read_until_closed().iter().map(word).collect::<Vec<_>>()
            });
            assert_eq!(direct.len(), 2);
            assert_eq!(through, direct, "{mode} {tag} extended: {extended}");
        }
    }
    assert_eq!(server.psql(&database, "SELECT count(*) FROM t").trim(), "0");
}
