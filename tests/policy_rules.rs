//! The policy's rules against a real PostgreSQL: kinds of statements, PREPARE, allow-lists, networks, replication, and
//! what changes how the server reads a text. Every refusal is an ERROR in its place, and the session lives on.

use crate::support;
use pgsluice::sql::verbs::{Class, statements};
use pgsluice::wire::{backend as b, frame, frontend as f};
use support::{Message, PATIENCE, PgOptions, Postgres, Proxy, Raw, client_command, outline, poll};

const MODES: [&str; 2] = ["transaction", "session"];

/// A proxy with this policy in front of a database with a table `t` and a sequence `s`.
fn with_policy(mode: &str, policy: &str) -> (Proxy, String) {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int); CREATE SEQUENCE s");
    let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\""), "", policy);
    (proxy, database)
}

fn rows_of_t(database: &str) -> String {
    Postgres::shared().psql(database, "SELECT count(*) FROM t").trim().to_owned()
}

/// The ErrorResponse in an answer; panics when there is none.
fn error_in(messages: &[Message]) -> &Message {
    messages
        .iter()
        .find(|m| m.tag == b::ERROR_RESPONSE)
        .unwrap_or_else(|| panic!("passed:\n{}", outline(messages)))
}

fn passed(messages: &[Message]) -> bool {
    messages.iter().all(|m| m.tag != b::ERROR_RESPONSE)
}

/// Refused by the policy, both as Query and as Parse; `says` is in the message.
fn is_refused(raw: &mut Raw, sql: &str, says: &str) {
    for messages in [raw.query(sql), raw.extended(sql, &[])] {
        let error = error_in(&messages);
        assert_eq!((error.sqlstate().as_str(), error.field(b'S').as_str()), ("42501", "ERROR"), "{sql}");
        assert!(error.field(b'M').contains(says), "{sql}: {}", error.outline());
        assert!(!error.field(b'H').is_empty(), "{sql}");
    }
}

fn is_passed(raw: &mut Raw, sql: &str) {
    for messages in [raw.query(sql), raw.extended(sql, &[])] {
        assert!(passed(&messages), "{sql}:\n{}", outline(&messages));
    }
}

/// A configuration with these rules for everybody.
fn configured(mode: &str, policy: &str) -> String {
    Proxy::config(Postgres::shared(), &format!("pool_mode = \"{mode}\""), "", &format!("[policy]\n{policy}"))
}

/// RELOAD on the console: when it is answered, the new file is in force.
fn reload(proxy: &Proxy, config: &str) {
    proxy.write_config(config);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let answer = console.query("RELOAD");
    assert!(passed(&answer), "{}", outline(&answer));
}

#[test]
fn read_only_and_no_ddl_by_user() {
    for mode in MODES {
        let policy = "[users.reader.policy]\nstatements = \"read_only\"\n[users.maker.policy]\nstatements = \"no_ddl\"\n";
        let (proxy, database) = with_policy(mode, policy);
        for role in ["reader", "maker"] {
            let _ = Postgres::shared().try_psql("postgres", &format!("CREATE ROLE {role} LOGIN SUPERUSER"));
        }
        let login = |user| {
            Raw::login_as(proxy.port(), &[("user", user), ("database", &database)], "")
                .unwrap_or_else(|e| panic!("{}", e.outline()))
        };
        let mut reader = login("reader");
        for sql in ["SELECT 1", "SHOW work_mem", "SET work_mem = '1MB'", "EXPLAIN DELETE FROM t", "TABLE t"] {
            is_passed(&mut reader, sql);
        }
        for sql in [
            "INSERT INTO t VALUES (1)",
            "WITH a AS (INSERT INTO t VALUES (1) RETURNING a) SELECT * FROM a",
            "SELECT * FROM t FOR UPDATE",
            "SELECT nextval('s')",
            "EXPLAIN ANALYZE INSERT INTO t VALUES (1)",
            "EXPLAIN SELECT 1 WHERE txid_current() > 0",
            "CREATE TABLE u ()",
            "SELECT 1 AS a INTO u",
            "DO $$BEGIN INSERT INTO t VALUES (1); END$$",
            "COPY t FROM STDIN",
            "COPY (SELECT 1) TO PROGRAM 'true'",
            "PREPARE p AS INSERT INTO t VALUES (1)",
            "SET default_transaction_read_only = off",
            "RESET transaction_read_only",
            "SET LOCAL transaction_read_only TO DEFAULT",
            "SELECT query_to_xml('SELECT set_config(''default_transaction_read_only'', ''off'', false)', true, true, '')",
            "SELECT brin_desummarize_range('i', 0)",
            "LOCK t",
            "NOTIFY a",
            "SELECT 1; INSERT INTO t VALUES (1)",
            "COMMIT; INSERT INTO t VALUES (1)",
        ] {
            is_refused(&mut reader, sql, "statements is \"read_only\"");
        }
        is_refused(&mut reader, "SELEC 1", "could not be parsed");
        // What was judged at PREPARE may be executed.
        reader.rows("PREPARE p AS SELECT 7 AS seven");
        assert_eq!(reader.value("EXECUTE p").as_deref(), Some("7"));

        let mut maker = login("maker");
        is_passed(&mut maker, "INSERT INTO t VALUES (1)");
        is_passed(&mut maker, "SELECT * FROM t FOR UPDATE");
        for sql in
            ["CREATE TABLE u ()", "DROP TABLE t", "DO $$BEGIN END$$", "VACUUM t", "GRANT maker TO reader"]
        {
            is_refused(&mut maker, sql, "statements is \"no_ddl\"");
        }
        let mut other = Raw::login(proxy.port(), &database);
        other.rows("CREATE TABLE u ()");
        assert_eq!(rows_of_t(&database), "2");
    }
}

#[test]
fn a_refusal_fails_the_block_and_skips_the_pipeline_to_its_sync() {
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"no_ddl\"");
        let mut raw = Raw::login(proxy.port(), &database);
        raw.rows("BEGIN");
        raw.rows("INSERT INTO t VALUES (1)");
        raw.error("DROP TABLE t");
        assert_eq!(raw.error("SELECT 1").sqlstate(), "25P02");
        raw.rows("ROLLBACK");
        assert_eq!(rows_of_t(&database), "0");
        // Three statements in one unit, the second refused: the third is skipped, the first rolled back.
        let mut out = Vec::new();
        for sql in ["INSERT INTO t VALUES (1)", "DROP TABLE t", "INSERT INTO t VALUES (2)"] {
            f::put_parse(&mut out, b"", sql.as_bytes(), &[]);
            f::put_bind_text(&mut out, b"", &[]);
            f::put_execute(&mut out, b"", 0);
        }
        f::put_empty(&mut out, f::SYNC);
        f::put_query(&mut out, b"SELECT 3");
        raw.send(&out);
        let first = raw.read_until_ready();
        assert_eq!(outline(&first).matches("INSERT 0 1").count(), 1, "{mode}: {}", outline(&first));
        assert_eq!(error_in(&first).sqlstate(), "42501");
        assert!(passed(&raw.read_until_ready()));
        assert_eq!(rows_of_t(&database), "0");
    }
}

/// The server is made to fail where we refuse, and that by a portal that is not there.
#[test]
fn no_portal_and_no_cursor_of_a_clients_stands_in_the_way_of_a_refusal() {
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"no_ddl\"");
        let mut raw = Raw::login(proxy.port(), &database);
        let mut out = Vec::new();
        f::put_parse(&mut out, b"", b"SELECT 1", &[]);
        f::put_bind_text_to(&mut out, b"pgsluice_refused", b"", &[]);
        f::put_parse(&mut out, b"", b"DROP TABLE t", &[]);
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        assert_eq!(error_in(&raw.read_until_ready()).sqlstate(), "42501", "{mode}");
        raw.rows("BEGIN");
        raw.rows("DECLARE pgsluice_refused CURSOR FOR SELECT 1");
        assert_eq!(error_in(&raw.extended("DROP TABLE t", &[])).sqlstate(), "42501", "{mode}");
        raw.rows("ROLLBACK");
        is_passed(&mut raw, "SELECT 2");
    }
}

#[test]
fn sql_prepare_and_execute() {
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nsql_prepare = \"deny\"");
        let mut raw = Raw::login(proxy.port(), &database);
        for sql in ["PREPARE p AS SELECT 1", "EXECUTE p", "EXPLAIN EXECUTE p", "CREATE TABLE u AS EXECUTE p"]
        {
            is_refused(&mut raw, sql, "sql_prepare is \"deny\"");
        }
        // A driver frees its own statements so.
        let mut out = Vec::new();
        f::put_parse(&mut out, b"mine", b"SELECT 1", &[]);
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        raw.read_until_ready();
        raw.rows("DEALLOCATE mine");
        is_passed(&mut raw, "DEALLOCATE ALL");
    }
}

#[test]
fn replication_connections_are_refused_with_the_rule() {
    let server = Postgres::shared();
    for (policy, says) in [
        ("", None),
        ("[policy]\nreplication = \"deny\"", Some("replication is \"deny\"")),
        ("[users.postgres.policy]\nreplication = \"deny\"", Some("replication is \"deny\"")),
        ("[policy]\nreplication = \"deny\"\nenforce = \"report\"", None),
        // Nothing on such a connection is judged: no rule for messages may be in force.
        ("[policy]\nsimple_query = \"single\"", Some("simple_query is set")),
        ("[policy]\nfunction_call = \"deny\"", Some("function_call is set")),
        ("[databases.\"*\".policy]\nsql_prepare = \"deny\"", Some("sql_prepare is set")),
        ("[users.postgres.policy]\nstatements = \"no_ddl\"", Some("statements is set")),
        ("[policy]\nsimple_query = \"deny\"\nenforce = \"report\"", None),
    ] {
        let proxy = Proxy::to(server, "", "", policy);
        for (database, value) in [("postgres", "database"), ("nowhere", "true")] {
            let parameters = [("user", "postgres"), ("database", database), ("replication", value)];
            match (Raw::login_as(proxy.port(), &parameters, ""), says) {
                (Ok(mut raw), None) => assert_eq!(raw.rows("IDENTIFY_SYSTEM").len(), 1),
                (Err(error), Some(says)) => {
                    assert_eq!((error.sqlstate(), error.field(b'S')), ("42501".into(), "FATAL".into()));
                    assert!(error.field(b'M').contains(says), "{}", error.outline());
                }
                (Ok(_), Some(_)) => panic!("let in: {policy}"),
                (Err(error), None) => panic!("{policy}: {}", error.outline()),
            }
        }
        if says.is_some() || policy.contains("report") {
            proxy.wait_for_log("replication=deny");
        }
        let on_the_console = [("user", "postgres"), ("database", "pgsluice"), ("replication", "on")];
        let refused = Raw::login_as(proxy.port(), &on_the_console, "").err().map(|error| error.sqlstate());
        assert_eq!(refused.as_deref(), Some("0A000"));
    }
}

#[test]
fn a_startup_packet_opens_nothing_that_set_may_not() {
    let opens = [
        ("default_transaction_read_only", "off"),
        ("Default_Transaction_Read_Only", "0"),
        ("options", "-c default_transaction_read_only=off"),
        ("options", "-c a.b=1 --default-transaction-read-only=no"),
        ("options", "-c default_transaction_read_only=on -c default_transaction_read_only=f"),
        ("transaction_read_only", "off"),
    ];
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[users.postgres.policy]\nstatements = \"read_only\"");
        let set = format!("ALTER DATABASE {database} SET default_transaction_read_only = on");
        Postgres::shared().psql("postgres", &set);
        let login = |setting| {
            let parameters = [("user", "postgres"), ("database", &*database), setting];
            Raw::login_as(proxy.port(), &parameters, "")
        };
        for setting in opens {
            let error = login(setting).err().unwrap_or_else(|| panic!("{setting:?} was let in"));
            assert_eq!(
                (error.sqlstate(), error.field(b'S')),
                ("42501".into(), "FATAL".into()),
                "{setting:?}"
            );
            assert!(error.field(b'M').contains("statements is \"read_only\""), "{}", error.outline());
        }
        proxy.wait_for_log("statements=read_only");
        for setting in [("default_transaction_read_only", "on"), ("options", "-c work_mem=1MB")] {
            let mut raw = login(setting).unwrap_or_else(|e| panic!("{setting:?}: {}", e.outline()));
            assert_eq!(raw.value("SHOW transaction_read_only").as_deref(), Some("on"));
        }
    }
    let (proxy, database) =
        with_policy("session", "[policy]\nstatements = \"read_only\"\nenforce = \"report\"");
    let parameters = [("user", "postgres"), ("database", &*database), opens[0]];
    let mut raw = Raw::login_as(proxy.port(), &parameters, "").expect("report lets it pass");
    assert_eq!(raw.value("SHOW transaction_read_only").as_deref(), Some("off"));
    proxy.wait_for_log("\"verdict\":\"report\"");
}

/// As LOAD may not: in session mode a connection logs in with what the client's packet says.
#[test]
fn a_startup_packet_loads_no_library_that_load_may_not() {
    let load = ("session_preload_libraries", "auto_explain");
    for (level, refused) in [("read_only", true), ("no_ddl", true), ("all", false)] {
        for mode in MODES {
            let (proxy, database) = with_policy(mode, &format!("[policy]\nstatements = \"{level}\""));
            let login = |setting| {
                let parameters = [("user", "postgres"), ("database", &*database), setting];
                Raw::login_as(proxy.port(), &parameters, "")
            };
            for setting in [
                load,
                ("Local_Preload_Libraries", "$libdir/plugins/x"),
                ("options", "--session-preload-libraries=auto_explain"),
            ] {
                match login(setting) {
                    Err(error) if refused => {
                        assert_eq!((error.sqlstate(), error.field(b'S')), ("42501".into(), "FATAL".into()));
                        let message = error.field(b'M');
                        assert!(message.contains("loads libraries") && message.contains(level), "{message}");
                    }
                    Err(error) => assert!(!error.field(b'M').contains("statements"), "{}", error.outline()),
                    Ok(_) => assert!(!refused, "{mode}, {level}: {setting:?} was let in"),
                }
            }
            if refused {
                proxy.wait_for_log(&format!("statements={level}"));
            }
            login((load.0, "")).unwrap_or_else(|e| panic!("{}", e.outline())).rows("SELECT 1");
        }
    }
}

#[test]
fn function_calls_are_no_reads() {
    let (proxy, database) = with_policy("transaction", "[policy]\nstatements = \"read_only\"");
    let mut raw = Raw::login(proxy.port(), &database);
    let mut out = Vec::new();
    // now(): no arguments, text result.
    pgsluice::wire::frame::put(&mut out, f::FUNCTION_CALL, |out| {
        out.extend_from_slice(&1299_u32.to_be_bytes());
        out.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
    });
    raw.send(&out);
    let answer = raw.read_until_ready();
    assert!(error_in(&answer).field(b'M').contains("read_only"));
    assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
}

/// Bind and Execute of the unnamed statement, Sync.
fn run_unnamed(raw: &mut Raw) -> Vec<Message> {
    let mut out = Vec::new();
    f::put_bind_text(&mut out, b"", &[]);
    f::put_execute(&mut out, b"", 0);
    f::put_empty(&mut out, f::SYNC);
    raw.send(&out);
    raw.read_until_ready()
}

fn parse_unnamed(raw: &mut Raw, sql: &str) -> Vec<Message> {
    let mut out = Vec::new();
    f::put_parse(&mut out, b"", sql.as_bytes(), &[]);
    f::put_empty(&mut out, f::SYNC);
    raw.send(&out);
    raw.read_until_ready()
}

/// As one that PostgreSQL itself refuses.
#[test]
fn a_refused_parse_or_query_takes_the_unnamed_statement_away() {
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"read_only\"");
        let mut raw = Raw::login(proxy.port(), &database);
        assert!(passed(&parse_unnamed(&mut raw, "SELECT 7")));
        assert_eq!(error_in(&parse_unnamed(&mut raw, "DELETE FROM t")).sqlstate(), "42501");
        assert_eq!(error_in(&run_unnamed(&mut raw)).sqlstate(), "26000", "{mode}");
        assert!(passed(&parse_unnamed(&mut raw, "SELECT 7")));
        assert_eq!(raw.error("DELETE FROM t").sqlstate(), "42501");
        assert_eq!(error_in(&run_unnamed(&mut raw)).sqlstate(), "26000", "{mode}: behind a Query");
    }
}

/// Only a Query and a Parse take it away.
#[test]
fn a_refused_function_call_leaves_the_unnamed_statement() {
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nfunction_call = \"deny\"");
        let mut raw = Raw::login(proxy.port(), &database);
        assert!(passed(&parse_unnamed(&mut raw, "SELECT 7")));
        let mut call = Vec::new();
        frame::put(&mut call, f::FUNCTION_CALL, |out| out.extend_from_slice(&[0; 10]));
        // Inside a unit: the server is needed to answer it.
        f::put_target(&mut call, f::DESCRIBE, b'S', b"");
        call.rotate_left(15);
        raw.send(&call);
        let answer = raw.read_until_ready();
        assert_eq!(error_in(&answer).sqlstate(), "42501", "{}", outline(&answer));
        let rows = run_unnamed(&mut raw);
        assert!(passed(&rows), "{mode}:\n{}", outline(&rows));
    }
}

#[test]
fn networks_tighten_and_never_loosen() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let dir = tempfile::tempdir().expect("a directory");
    let general = format!("listen_addr = \"*\"\nunix_socket_dir = \"{}\"", dir.path().display());
    let rest = "[policy]\nsql_prepare = \"deny\"\n[networks.\"127.0.0.0/8\".policy]\nstatements = \"read_only\"\n\
                sql_prepare = \"allow\"\n[networks.\"10.0.0.0/8\".policy]\nsimple_query = \"deny\"\n\
                [networks.unix.policy]\nstatements = \"no_ddl\"\n";
    let proxy = Proxy::to(server, &general, "", rest);
    // It listens on both families, so an IPv4 client may come in as a mapped address.
    let mut raw = Raw::login(proxy.port(), &database);
    is_refused(&mut raw, "INSERT INTO t VALUES (1)", "statements is \"read_only\"");
    is_refused(&mut raw, "PREPARE p AS SELECT 1", "sql_prepare is \"deny\"");
    is_passed(&mut raw, "SELECT 1");
    let psql = |sql: &str| {
        let mut command = client_command("psql");
        command.args(["-XAtq", "-v", "VERBOSITY=verbose", "-U", "postgres", "-d", &database, "-c", sql]);
        command.args(["-p", &proxy.port().to_string(), "-h"]).arg(dir.path());
        String::from_utf8_lossy(&command.output().expect("psql").stderr).into_owned()
    };
    assert_eq!(psql("INSERT INTO t VALUES (1)"), "");
    assert!(psql("DROP TABLE t").contains("statements is \"no_ddl\""));
}

#[test]
fn a_longer_name_meets_the_rules_of_the_name_that_the_server_reads() {
    let server = Postgres::shared();
    let (database, user) = ("longest_name_".repeat(5)[..63].to_owned(), "u".repeat(63));
    server.psql("postgres", &format!("CREATE DATABASE {database}"));
    server.psql("postgres", &format!("CREATE ROLE {user} LOGIN SUPERUSER"));
    let rest = format!(
        "[databases.{database}]\nhost = \"127.0.0.1\"\nport = {}\n[databases.{database}.policy]\nstatements = \"read_only\"\n\
         [users.{user}.policy]\nstatements = \"read_only\"",
        server.port()
    );
    let proxy = Proxy::to(server, "", "", &rest);
    for (user, database) in [
        ("postgres".to_owned(), database.clone()),
        ("postgres".to_owned(), format!("{database}x")),
        (user.clone(), "postgres".to_owned()),
        (format!("{user}x"), "postgres".to_owned()),
    ] {
        let login = Raw::login_as(proxy.port(), &[("user", &user), ("database", &database)], "");
        let mut raw = login.unwrap_or_else(|error| panic!("{user} {database}: {}", error.outline()));
        is_refused(&mut raw, "CREATE TABLE x (a int)", "read_only");
    }
}

/// Parse of a named statement.
fn parse_named(out: &mut Vec<u8>, name: &str, sql: &str) {
    f::put_parse(out, name.as_bytes(), sql.as_bytes(), &[]);
}

fn bind_execute(out: &mut Vec<u8>, name: &str) {
    f::put_bind_text(out, name.as_bytes(), &[]);
    f::put_execute(out, b"", 0);
}

#[test]
fn a_reload_tightens_in_the_middle_of_a_transaction_at_the_next_message() {
    let server = Postgres::shared();
    for mode in MODES {
        let database = server.fresh_database("CREATE TABLE t (a int)");
        let config = |level: &str| configured(mode, &format!("statements = \"{level}\""));
        let proxy = Proxy::start(&config("all"));
        // Each round the very next message is refused: nothing is waited for.
        for round in 0..20 {
            reload(&proxy, &config("all"));
            let mut raw = Raw::login(proxy.port(), &database);
            let mut out = Vec::new();
            parse_named(&mut out, "mine", "INSERT INTO t VALUES (1)");
            f::put_empty(&mut out, f::SYNC);
            raw.send(&out);
            raw.read_until_ready();
            raw.rows("PREPARE theirs AS INSERT INTO t VALUES (2)");
            raw.rows("BEGIN");
            raw.rows("INSERT INTO t VALUES (3)");
            reload(&proxy, &config("read_only"));
            match round % 3 {
                0 => assert_eq!(raw.error("INSERT INTO t VALUES (4)").sqlstate(), "42501", "{mode}"),
                1 => assert_eq!(raw.error("EXECUTE theirs").sqlstate(), "42501", "{mode}"),
                _ => {
                    let mut out = Vec::new();
                    bind_execute(&mut out, "mine");
                    f::put_empty(&mut out, f::SYNC);
                    raw.send(&out);
                    assert_eq!(error_in(&raw.read_until_ready()).sqlstate(), "42501", "{mode}");
                }
            }
            raw.rows("ROLLBACK");
            assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
        }
        assert_eq!(rows_of_t(&database), "0");
    }
}

#[test]
fn what_was_prepared_while_the_rules_only_reported_is_judged_once_they_reject() {
    let server = Postgres::shared();
    for mode in MODES {
        let database = server.fresh_database("CREATE TABLE t (a int)");
        let config =
            |enforce: &str| configured(mode, &format!("statements = \"read_only\"\nenforce = \"{enforce}\""));
        let proxy = Proxy::start(&config("report"));
        let mut raw = Raw::login(proxy.port(), &database);
        let mut out = Vec::new();
        parse_named(&mut out, "mine", "INSERT INTO t VALUES (1)");
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        raw.read_until_ready();
        raw.rows("PREPARE theirs AS INSERT INTO t VALUES (2)");
        reload(&proxy, &config("reject"));
        assert_eq!(bound_and_run(&mut raw, "mine"), "42501", "{mode}");
        assert_eq!(raw.error("EXECUTE theirs").sqlstate(), "42501", "{mode}");
        assert_eq!(rows_of_t(&database), "0");
    }
}

/// The SQLSTATE, or nothing.
fn bound_and_run(raw: &mut Raw, name: &str) -> String {
    let mut out = Vec::new();
    bind_execute(&mut out, name);
    f::put_empty(&mut out, f::SYNC);
    told_of(raw, &out)
}

/// The SQLSTATE that these messages are answered with, or nothing.
fn told_of(raw: &mut Raw, messages: &[u8]) -> String {
    raw.send(messages);
    let answers = raw.read_until_ready();
    answers.iter().find(|m| m.tag == b::ERROR_RESPONSE).map(|m| m.sqlstate()).unwrap_or_default()
}

/// An unnamed statement, or a portal, stays what it was where what would take its place fails or is skipped.
#[test]
fn what_took_no_place_makes_nothing_judged() {
    let server = Postgres::shared();
    for mode in MODES {
        let database = server.fresh_database("CREATE TABLE t (a int)");
        let config = |level: &str| configured(mode, &format!("statements = \"{level}\""));
        let proxy = Proxy::start(&config("all"));
        let sync = |mut out: Vec<u8>| {
            f::put_empty(&mut out, f::SYNC);
            out
        };
        let parse = |text: &str| {
            let mut out = Vec::new();
            parse_named(&mut out, "", text);
            out
        };
        let bind = |portal: &str| {
            let mut out = Vec::new();
            f::put_bind_text_to(&mut out, portal.as_bytes(), b"", &[]);
            out
        };
        let run = |portal: &str| {
            let mut out = Vec::new();
            f::put_execute(&mut out, portal.as_bytes(), 0);
            out
        };
        let mut fails = Vec::new();
        f::put_target(&mut fails, f::DESCRIBE, b'S', b"nonesuch");

        let mut raw = Raw::login(proxy.port(), &database);
        assert_eq!(told_of(&mut raw, &sync(parse("INSERT INTO t VALUES (1)"))), "");
        reload(&proxy, &config("read_only"));
        assert_ne!(told_of(&mut raw, &sync([fails.clone(), parse("SELECT 1")].concat())), "");
        assert_eq!(bound_and_run(&mut raw, ""), "42501", "{mode}");
        assert_eq!(told_of(&mut raw, &sync(parse("SELECT 1"))), "");
        assert_eq!(bound_and_run(&mut raw, ""), "", "{mode}");

        reload(&proxy, &config("all"));
        let mut raw = Raw::login(proxy.port(), &database);
        raw.rows("BEGIN");
        assert_eq!(
            told_of(&mut raw, &sync([parse("INSERT INTO t VALUES (2) RETURNING a"), bind("p")].concat())),
            ""
        );
        reload(&proxy, &config("read_only"));
        for text in ["FETCH ALL FROM p", "MOVE ALL IN p", "SELECT cursor_to_xml('p', 1, true, true, '')"] {
            raw.rows("SAVEPOINT s");
            assert_eq!(raw.error(text).sqlstate(), "42501", "{mode}");
            raw.rows("ROLLBACK TO s");
        }
        // The portal's name is taken.
        assert_eq!(told_of(&mut raw, &sync([parse("SELECT 1"), bind("p"), run("p")].concat())), "42P03");
        raw.rows("ROLLBACK TO s");
        assert_eq!(told_of(&mut raw, &sync(run("p"))), "42501", "{mode}");
        raw.rows("ROLLBACK TO s");
        // One that was bound since, also in an earlier unit of the same write.
        let anew = [sync([parse("SELECT 1"), bind("q")].concat()), sync(run("q"))].concat();
        assert_eq!(told_of(&mut raw, &anew), "");
        assert!(passed(&raw.read_until_ready()), "{mode}");
        raw.rows("COMMIT");
        raw.rows("BEGIN");
        raw.rows("DECLARE c CURSOR FOR SELECT 1");
        assert_eq!(raw.value("FETCH ALL FROM c").as_deref(), Some("1"));
        raw.rows("COMMIT");
        assert_eq!(rows_of_t(&database), "0");
    }
}

#[test]
fn a_drop_database_that_is_refused_closes_no_connection() {
    let (proxy, database) = with_policy("transaction", "[policy]\nstatements = \"no_ddl\"");
    let other = Postgres::shared().fresh_database("");
    let process = || Raw::login(proxy.port(), &other).value("SELECT pg_backend_pid()");
    let before = process();
    let mut raw = Raw::login(proxy.port(), &database);
    is_refused(&mut raw, &format!("DROP DATABASE {other}"), "statements");
    assert_eq!(process(), before, "what stood idle there is there");
}

#[test]
fn a_reload_tightens_for_a_client_whose_login_waits_meanwhile() {
    let (proxy, database) = with_policy("transaction", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    assert!(passed(&console.query(&format!("PAUSE {database}"))));
    let (port, name) = (proxy.port(), database.clone());
    let client = std::thread::spawn(move || Raw::login(port, &name));
    // It waits for a server that says what to greet it with.
    let waits = poll(PATIENCE, || {
        let waiting = |row: &Vec<Option<String>>| {
            row[0].as_deref() == Some(&*database) && row[3].as_deref() == Some("1")
        };
        console.rows("SHOW POOLS").iter().any(waiting).then_some(())
    });
    assert!(waits.is_some(), "nobody waits");
    let tightened = "[policy]\nsimple_query = \"single\"";
    reload(&proxy, &Proxy::config(Postgres::shared(), "pool_mode = \"transaction\"", "", tightened));
    assert!(passed(&console.query(&format!("RESUME {database}"))));
    let mut client = client.join().expect("logged in");
    let messages = client.query("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)");
    assert_eq!(error_in(&messages).sqlstate(), "42501", "{}", outline(&messages));
    assert_eq!(rows_of_t(&database), "0");
}

#[test]
fn a_reload_tightens_in_the_middle_of_a_pipeline() {
    let server = Postgres::shared();
    for mode in MODES {
        let database = server.fresh_database("CREATE TABLE t (a int)");
        let config = |level: &str| configured(mode, &format!("statements = \"{level}\""));
        let proxy = Proxy::start(&config("all"));
        for case in ["execute", "parse", "bind"] {
            reload(&proxy, &config("all"));
            let mut raw = Raw::login(proxy.port(), &database);
            let mut out = Vec::new();
            parse_named(&mut out, "mine", "INSERT INTO t VALUES (1)");
            f::put_bind_text(&mut out, b"mine", &[]);
            f::put_empty(&mut out, f::FLUSH);
            raw.send(&out);
            raw.read_until(b::BIND_COMPLETE);
            // The portal is bound, the unit is open.
            reload(&proxy, &config("read_only"));
            let mut out = Vec::new();
            match case {
                "execute" => f::put_execute(&mut out, b"", 0),
                "parse" => {
                    parse_named(&mut out, "", "INSERT INTO t VALUES (2)");
                    bind_execute(&mut out, "");
                }
                _ => bind_execute(&mut out, "mine"),
            }
            f::put_empty(&mut out, f::SYNC);
            raw.send(&out);
            let answer = raw.read_until_ready();
            assert_eq!(error_in(&answer).sqlstate(), "42501", "{mode} {case}");
            assert!(passed(&raw.extended("SELECT 1", &[])), "{mode} {case}");
        }
        assert_eq!(rows_of_t(&database), "0");
    }
}

#[test]
fn a_reload_tightens_for_what_waits_for_a_server() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a int)");
    let config = |policy: &str| {
        let rest = format!("[coalesce]\nmode = \"off\"\n[policy]\n{policy}");
        Proxy::config(server, "default_pool_size = 1", "", &rest)
    };
    let proxy = Proxy::start(&config(""));
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let two = "INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)";
    let mut named = Vec::new();
    parse_named(&mut named, "mine", "INSERT INTO t VALUES (3)");
    f::put_empty(&mut named, f::SYNC);
    let mut query = Vec::new();
    f::put_query(&mut query, two.as_bytes());
    let mut bound = Vec::new();
    bind_execute(&mut bound, "mine");
    f::put_empty(&mut bound, f::SYNC);
    let single = "simple_query = \"single\"";
    let read_only = "statements = \"read_only\"";
    for (waits, tightened) in [(&query, single), (&query, read_only), (&bound, read_only)] {
        reload(&proxy, &config(""));
        let mut holder = Raw::login(proxy.port(), &database);
        let mut raw = Raw::login(proxy.port(), &database);
        raw.send(&named);
        raw.read_until_ready();
        holder.rows("BEGIN");
        raw.send(waits);
        let queued = poll(PATIENCE, || {
            let waiting = |row: &Vec<Option<String>>| {
                row[0].as_deref() == Some(&*database) && row[3].as_deref() == Some("1")
            };
            console.rows("SHOW POOLS").iter().any(waiting).then_some(())
        });
        assert!(queued.is_some(), "nobody waits");
        reload(&proxy, &config(tightened));
        holder.rows("COMMIT");
        assert_eq!(error_in(&raw.read_until_ready()).sqlstate(), "42501", "{tightened}");
        assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
    }
    assert_eq!(rows_of_t(&database), "0");
}

// ===== how the server reads =====

/// To the parser (and to a server with `standard_conforming_strings` on) one literal; to a server with it off a call
/// of nextval() behind a literal of one quote.
const TRICK: &str = "SELECT '\\'', nextval($$s$$) --'";

/// Whether somebody has called nextval().
fn sequence_of(database: &str) -> String {
    Postgres::shared().psql(database, "SELECT is_called FROM s").trim().to_owned()
}

#[test]
fn standard_conforming_strings_however_it_is_set() {
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"read_only\"");
        let parameters = [("user", "postgres"), ("database", &*database)];
        let login = |more: &[(&str, &str)]| {
            let all: Vec<_> = parameters.iter().chain(more).copied().collect();
            Raw::login_as(proxy.port(), &all, "").unwrap_or_else(|e| panic!("{}", e.outline()))
        };
        let ways: &[(&str, &dyn Fn() -> Raw)] = &[
            ("SET", &|| {
                let mut raw = login(&[]);
                raw.rows("SET standard_conforming_strings = off");
                raw
            }),
            ("SET in extended protocol", &|| {
                let mut raw = login(&[]);
                raw.extended("SET standard_conforming_strings TO off", &[]);
                raw
            }),
            ("SET in a block", &|| {
                let mut raw = login(&[]);
                raw.rows("BEGIN");
                raw.rows("SET standard_conforming_strings = off");
                raw
            }),
            ("SET LOCAL", &|| {
                let mut raw = login(&[]);
                raw.rows("BEGIN");
                raw.rows("SET LOCAL standard_conforming_strings = off");
                raw
            }),
            ("set_config", &|| {
                let mut raw = login(&[]);
                raw.rows("SELECT set_config('standard_conforming_strings', 'off', false)");
                raw
            }),
            ("startup parameter", &|| login(&[("standard_conforming_strings", "off")])),
            ("startup options", &|| login(&[("options", "-c standard_conforming_strings=off")])),
            ("ROLLBACK of SET on", &|| {
                let mut raw = login(&[("options", "-c standard_conforming_strings=off")]);
                raw.rows("BEGIN");
                raw.rows("SET standard_conforming_strings = on");
                raw.rows("ROLLBACK");
                raw
            }),
            ("RESET to what startup set", &|| {
                let mut raw = login(&[("options", "-c standard_conforming_strings=off")]);
                raw.rows("SET standard_conforming_strings = on");
                raw.rows("RESET standard_conforming_strings");
                raw
            }),
        ];
        for (way, connect) in ways {
            let mut raw = connect();
            assert_eq!(raw.value("SHOW standard_conforming_strings").as_deref(), Some("off"), "{mode} {way}");
            is_refused_or_in_failed_block(&mut raw, TRICK, "standard_conforming_strings");
            assert_eq!(sequence_of(&database), "f", "{mode} {way}");
        }
        // And back.
        let mut raw = login(&[]);
        is_passed(&mut raw, TRICK);
        raw.rows("SET standard_conforming_strings = off");
        raw.rows("SET standard_conforming_strings = on");
        is_passed(&mut raw, TRICK);
        assert_eq!(sequence_of(&database), "f");
    }
}

/// As [`is_refused`], where the first refusal may fail a block: then the setting is back at once.
fn is_refused_or_in_failed_block(raw: &mut Raw, sql: &str, says: &str) {
    let messages = raw.query(sql);
    let error = error_in(&messages);
    assert_eq!(error.sqlstate(), "42501", "{}", error.outline());
    assert!(error.field(b'M').contains(says), "{}", error.outline());
    let failed = messages.last().is_some_and(|m| m.body == b"E");
    assert_eq!(error_in(&raw.extended(sql, &[])).sqlstate(), if failed { "25P02" } else { "42501" });
}

/// In one write: these messages and, behind a Sync of theirs or in the same unit, [`TRICK`]. Its answer.
fn send_with_trick(raw: &mut Raw, mut out: Vec<u8>, synced: bool) -> Vec<Message> {
    if synced {
        f::put_empty(&mut out, f::SYNC);
    }
    f::put_parse(&mut out, b"", TRICK.as_bytes(), &[]);
    bind_execute(&mut out, "");
    f::put_empty(&mut out, f::SYNC);
    raw.send(&out);
    if synced {
        raw.read_until_ready();
    }
    raw.read_until_ready()
}

#[test]
fn standard_conforming_strings_in_one_pipeline() {
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"read_only\"");
        // The text behind SET is sent before anything is answered.
        let sets = [
            "SET standard_conforming_strings = off",
            "SELECT set_config('standard_conforming_strings', 'off', false)",
            "SELECT set_config('standard_conforming' || '', 'off', false) WHERE false",
        ];
        for set in sets {
            for synced in [true, false] {
                let mut raw = Raw::login(proxy.port(), &database);
                let mut out = Vec::new();
                f::put_parse(&mut out, b"", set.as_bytes(), &[]);
                bind_execute(&mut out, "");
                send_with_trick(&mut raw, out, synced);
                assert_eq!(sequence_of(&database), "f", "{mode} {set} {synced}");
                raw.terminate();
            }
            let mut raw = Raw::login(proxy.port(), &database);
            let mut out = Vec::new();
            f::put_query(&mut out, set.as_bytes());
            f::put_query(&mut out, TRICK.as_bytes());
            raw.send(&out);
            raw.read_until_ready();
            raw.read_until_ready();
            assert_eq!(sequence_of(&database), "f", "{mode} {set}");
        }
        // An honest text behind a harmless SET only waits.
        let mut raw = Raw::login(proxy.port(), &database);
        let mut out = Vec::new();
        f::put_query(&mut out, b"SET work_mem = '1MB'");
        f::put_query(&mut out, "SELECT 'a\\b \u{e9}'".as_bytes());
        raw.send(&out);
        assert!(passed(&raw.read_until_ready()));
        assert!(outline(&raw.read_until_ready()).contains("a\\\\b \u{e9}"));
    }
}

/// `before` is answered, one by one; then `sent` and [`TRICK`] leave together.
fn is_not_tricked(proxy: &Proxy, database: &str, before: &[&str], sent: &[u8], in_unit: bool) {
    let mut raw = Raw::login(proxy.port(), database);
    before.iter().for_each(|sql| drop(raw.rows(sql)));
    let mut out = sent.to_vec();
    if in_unit {
        f::put_parse(&mut out, b"", TRICK.as_bytes(), &[]);
        bind_execute(&mut out, "");
        f::put_empty(&mut out, f::SYNC);
    } else {
        f::put_query(&mut out, TRICK.as_bytes());
    }
    // Told apart from the answers of what was sent before, however many those are.
    f::put_query(&mut out, b"SELECT 'end'");
    raw.send(&out);
    while !raw.read_until_ready().iter().any(|m| m.outline().contains("end") || m.sqlstate() == "25P02") {}
    assert_eq!(sequence_of(database), "f", "{before:?} {:?} {in_unit}", String::from_utf8_lossy(sent));
}

#[test]
fn what_changes_the_reading_for_its_transaction_alone_is_followed() {
    let query = |sql: &str| {
        let mut out = Vec::new();
        f::put_query(&mut out, sql.as_bytes());
        out
    };
    let unit = |sql: &str| {
        let mut out = Vec::new();
        f::put_parse(&mut out, b"", sql.as_bytes(), &[]);
        bind_execute(&mut out, "");
        out
    };
    let sync = |mut out: Vec<u8>| {
        f::put_empty(&mut out, f::SYNC);
        out
    };
    let declare = "DECLARE c CURSOR FOR SELECT set_config('standard_conforming_strings', 'off', true)";
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"read_only\"");
        for set in [
            "SET LOCAL standard_conforming_strings = off",
            "SELECT set_config('standard_conforming_strings', 'off', true)",
        ] {
            is_not_tricked(&proxy, &database, &["BEGIN"], &query(set), false);
            is_not_tricked(&proxy, &database, &["BEGIN"], &query(set), true);
            is_not_tricked(&proxy, &database, &["BEGIN"], &sync(unit(set)), true);
            is_not_tricked(&proxy, &database, &["BEGIN"], &unit(set), true);
            is_not_tricked(&proxy, &database, &[], &[query("BEGIN"), query(set)].concat(), false);
        }
        is_not_tricked(&proxy, &database, &["BEGIN", declare], &query("FETCH c"), false);
        is_not_tricked(&proxy, &database, &["BEGIN", declare], &query("MOVE c"), true);
        is_not_tricked(&proxy, &database, &["BEGIN", declare], &unit("FETCH c"), true);
    }
}

#[test]
fn a_portal_bound_in_an_earlier_unit_may_change_the_reading() {
    for mode in MODES {
        for synced in [true, false] {
            let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"read_only\"");
            let mut raw = Raw::login(proxy.port(), &database);
            raw.rows("BEGIN");
            let mut out = Vec::new();
            let set = b"SELECT set_config('standard_conforming_strings', 'off', true)";
            f::put_parse(&mut out, b"", set, &[]);
            let mut bind = Vec::new();
            f::put_bind_text(&mut bind, b"", &[]);
            out.extend(support::crowd::to_portal(&bind, b"p"));
            f::put_empty(&mut out, f::SYNC);
            raw.send(&out);
            raw.read_until_ready();
            let mut out = Vec::new();
            f::put_execute(&mut out, b"p", 0);
            let answer = send_with_trick(&mut raw, out, synced);
            assert_eq!(error_in(&answer).sqlstate(), "42501", "{mode} {synced}");
            assert_eq!(sequence_of(&database), "f", "{mode} {synced}");
        }
    }
}

/// A statement that was judged goes to another server connection, where the settings let its text be read otherwise.
#[test]
fn what_is_prepared_again_is_judged_as_it_is_read_then() {
    let (proxy, database) = with_policy("transaction", "[policy]\nstatements = \"read_only\"");
    let reconnect = || drop(Raw::login(proxy.port(), "pgsluice").query("RECONNECT"));
    let name = "s";
    // Its parameter has no type of its own: who was told one has it compared before a Bind elsewhere.
    let trick = TRICK.replace("SELECT", "SELECT $1,");
    let bind = |out: &mut Vec<u8>| {
        f::put_bind_text(out, name.as_bytes(), &[Some(b"a")]);
        f::put_execute(out, b"", 0);
    };
    let mut raw = Raw::login(proxy.port(), &database);
    let mut out = Vec::new();
    parse_named(&mut out, name, &trick);
    f::put_target(&mut out, f::DESCRIBE, b'S', name.as_bytes());
    f::put_empty(&mut out, f::SYNC);
    raw.send(&out);
    assert!(passed(&raw.read_until_ready()));
    raw.rows("SET standard_conforming_strings = off");
    reconnect();
    for describe in [true, false] {
        let mut out = Vec::new();
        if describe {
            f::put_target(&mut out, f::DESCRIBE, b'S', name.as_bytes());
            f::put_empty(&mut out, f::SYNC);
        }
        bind(&mut out);
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        if describe {
            assert_eq!(error_in(&raw.read_until_ready()).sqlstate(), "42501");
        }
        assert_eq!(error_in(&raw.read_until_ready()).sqlstate(), "42501", "{describe}");
        assert_eq!(sequence_of(&database), "f");
    }
    // As it was judged, it runs.
    raw.rows("SET standard_conforming_strings = on");
    let mut out = Vec::new();
    bind(&mut out);
    f::put_empty(&mut out, f::SYNC);
    raw.send(&out);
    let answer = raw.read_until_ready();
    assert!(passed(&answer), "{}", outline(&answer));
}

#[test]
fn a_prepared_set_is_followed_by_what_it_does() {
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"read_only\"");
        let mut raw = Raw::login(proxy.port(), &database);
        let mut out = Vec::new();
        parse_named(&mut out, "off", "SET standard_conforming_strings = off");
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        raw.read_until_ready();
        let mut out = Vec::new();
        bind_execute(&mut out, "off");
        let answer = send_with_trick(&mut raw, out, false);
        assert_eq!(error_in(&answer).sqlstate(), "42501", "{mode}");
        assert_eq!(sequence_of(&database), "f", "{mode}");
    }
}

#[test]
fn a_roles_default_and_a_restart_with_another_default() {
    let mut server = Postgres::start(PgOptions::default());
    let trick = |raw: &mut Raw| error_in(&raw.query(TRICK)).field(b'M');
    server.psql("postgres", "CREATE SEQUENCE s; CREATE ROLE odd LOGIN SUPERUSER; ALTER ROLE odd SET standard_conforming_strings = off");
    let config = |mode: &str| {
        Proxy::config(
            &server,
            &format!("pool_mode = \"{mode}\"\nserver_login_retry = 0.1"),
            "",
            "[policy]\nstatements = \"read_only\"",
        )
    };
    let proxies: Vec<Proxy> = MODES.iter().map(|mode| Proxy::start(&config(mode))).collect();
    let called = |server: &Postgres| server.psql("postgres", "SELECT is_called FROM s").trim().to_owned();
    for proxy in &proxies {
        let mut odd =
            Raw::login_as(proxy.port(), &[("user", "odd"), ("database", "postgres")], "").expect("login");
        assert!(trick(&mut odd).contains("standard_conforming_strings"));
        // Back to the hazardous default.
        odd.rows("SET standard_conforming_strings = on");
        assert!(passed(&odd.query(TRICK)));
        odd.rows("RESET standard_conforming_strings");
        assert!(trick(&mut odd).contains("standard_conforming_strings"));
        odd.rows("DISCARD ALL");
        assert!(trick(&mut odd).contains("standard_conforming_strings"));
        let mut plain = Raw::login(proxy.port(), "postgres");
        assert!(passed(&plain.query(TRICK)));
        // One server connection, two clients of two minds.
        let mut other = Raw::login(proxy.port(), "postgres");
        other.rows("SET standard_conforming_strings = off");
        assert!(passed(&plain.query(TRICK)));
        assert!(trick(&mut other).contains("standard_conforming_strings"));
        assert!(passed(&plain.query(TRICK)));
    }
    assert_eq!(called(&server), "f");
    // A client that stays while its server comes back with another default, in transaction mode.
    let mut stays = Raw::login(proxies[0].port(), "postgres");
    let mut sets = Raw::login(proxies[0].port(), "postgres");
    sets.rows("SET work_mem = '3MB'");
    // Its session was asked what was set, and is not lost with the server.
    assert_eq!(sets.value("SHOW work_mem").as_deref(), Some("3MB"));
    assert!(passed(&stays.query(TRICK)));
    server.psql("postgres", "ALTER SYSTEM SET standard_conforming_strings = off");
    server.stop();
    server.start_again();
    for raw in [&mut stays, &mut sets] {
        // The connections of before are found to be gone first.
        let refused = poll(PATIENCE, || {
            let messages = raw.query(TRICK);
            let error = messages.iter().find(|m| m.tag == b::ERROR_RESPONSE);
            assert!(error.is_some(), "read with the old default:\n{}", outline(&messages));
            error.filter(|e| e.sqlstate() == "42501").map(|e| e.field(b'M'))
        });
        assert!(refused.expect("an answer").contains("standard_conforming_strings"));
    }
    assert_eq!(called(&server), "f");
}

/// Two units end in 42501, with these words in its message.
fn both_are_refused(raw: &mut Raw, words: &str) {
    for _ in 0..2 {
        let answer = raw.read_until_ready();
        let error = error_in(&answer);
        assert_eq!(error.sqlstate(), "42501", "{}", error.outline());
        assert!(error.field(b'M').contains(words), "{}", error.outline());
    }
}

#[test]
fn client_encodings_that_hide_ascii() {
    // SJIS: 0x95 0x5c is one character whose second byte is a backslash.
    let text = b"SELECT E'\x95\\', nextval('s') --'";
    let refused = |raw: &mut Raw| {
        let mut out = Vec::new();
        f::put_query(&mut out, text);
        f::put_parse(&mut out, b"", text, &[]);
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        both_are_refused(raw, "client_encoding");
    };
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"read_only\"");
        let login = |more: &[(&str, &str)]| {
            let parameters = [("user", "postgres"), ("database", &*database)];
            let all: Vec<_> = parameters.iter().chain(more).copied().collect();
            Raw::login_as(proxy.port(), &all, "").unwrap_or_else(|e| panic!("{}", e.outline()))
        };
        let mut raw = login(&[("client_encoding", "SJIS")]);
        refused(&mut raw);
        assert_eq!(raw.value("SELECT 1").as_deref(), Some("1"));
        let mut raw = login(&[("options", "-c client_encoding=sjis")]);
        refused(&mut raw);
        for set in [
            "SET NAMES 'SJIS'",
            "SET client_encoding = 'sjis'",
            "SELECT set_config('client_encoding', 'SJIS', false)",
        ] {
            let mut raw = login(&[]);
            raw.rows("BEGIN");
            raw.rows(set);
            refused(&mut raw);
        }
        assert_eq!(sequence_of(&database), "f");
    }
}

/// In EUC_JP the Roman number one has two forms, which are one character to a server of UTF8: it ends the first quote with the second tag.
#[test]
fn tags_of_dollar_quotes_that_the_server_makes_one_hide_nothing() {
    let text = b"SELECT $\xad\xb5$a$\x8f\xf3\xfd$, nextval('s'), $\x8f\xf3\xfd$b$\xad\xb5$";
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"read_only\"");
        let parameters = [("user", "postgres"), ("database", &*database), ("client_encoding", "EUC_JP")];
        let mut raw =
            Raw::login_as(proxy.port(), &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()));
        let mut out = Vec::new();
        f::put_query(&mut out, text);
        f::put_parse(&mut out, b"", text, &[]);
        bind_execute(&mut out, "");
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        both_are_refused(&mut raw, "tag of a dollar quote");
        assert_eq!(sequence_of(&database), "f", "{mode}");
    }
}

#[test]
fn what_backslash_quote_says_changes_no_reading() {
    // It only makes the server refuse \' in E'': where it passes it means the same.
    let (proxy, database) = with_policy("transaction", "[policy]\nstatements = \"read_only\"");
    let mut raw = Raw::login(proxy.port(), &database);
    for value in ["on", "off", "safe_encoding"] {
        raw.rows(&format!("SET backslash_quote = {value}"));
        is_refused(&mut raw, "SELECT E'\\'', nextval('s') --'", "statements is");
    }
}

// ===== allow-lists =====

#[test]
fn learn_report_reject() {
    let server = Postgres::shared();
    for mode in MODES {
        let database = server.fresh_database("CREATE TABLE t (a int)");
        let config = |level: &str| {
            configured(mode, &format!("allow_list = \"{level}\"\nallow_list_file = \"@DIR@/list\""))
        };
        let proxy = Proxy::start(&config("learn"));
        let mut raw = Raw::login(proxy.port(), &database);
        raw.rows("BEGIN; SELECT a FROM t WHERE a = 1; COMMIT");
        raw.extended("INSERT INTO t VALUES ($1)", &[Some("1")]);
        raw.rows("PREPARE p AS SELECT 'hunter2' || a FROM t");
        raw.rows("EXECUTE p");
        raw.rows("SET work_mem = '2MB'");
        let list = proxy.dir().join("list");
        let read = || std::fs::read_to_string(&list).unwrap_or_default();
        let learned = poll(PATIENCE, || (read().lines().count() == 5).then(read));
        let learned = learned.unwrap_or_else(|| panic!("{}", read()));
        assert!(learned.contains("# SELECT a FROM t WHERE a = $1\n"), "{learned}");
        assert!(!learned.contains("hunter2"), "{learned}");

        reload(&proxy, &config("report"));
        is_passed(&mut raw, "SELECT a FROM t WHERE a = 2");
        assert!(!proxy.log().contains("\"rule\":\"allow_list\""), "{}", proxy.log());
        is_passed(&mut raw, "DELETE FROM t WHERE a = 5");
        let event = proxy.wait_for_log("\"rule\":\"allow_list\"");
        assert!(event.contains("\"verdict\":\"report\""), "{event}");

        reload(&proxy, &config("reject"));
        let mut raw = Raw::login(proxy.port(), &database);
        for sql in ["SELECT a FROM t WHERE a = 3", "INSERT INTO t VALUES (7)", "BEGIN", "ROLLBACK", ""] {
            is_passed(&mut raw, sql);
        }
        raw.rows("PREPARE p AS SELECT 'other' || a FROM t");
        raw.rows("EXECUTE p");
        for sql in [
            "SELECT a FROM t",
            "SELECT a FROM t WHERE a = 1 OR true",
            "DELETE FROM t",
            "SET work_mem = '3MB'",
            "COPY t FROM STDIN",
            "COPY t TO STDOUT",
            "DO $$BEGIN END$$",
            "PREPARE q AS DELETE FROM t",
            "SELECT a FROM t WHERE a = 1; DELETE FROM t",
        ] {
            is_refused(&mut raw, sql, "not in the allow-list");
        }
        // The hint is the line to add.
        let hint = raw.error("DELETE FROM t WHERE a = 6").field(b'H');
        let line = hint.rsplit(' ').next().expect("a fingerprint").to_owned();
        std::fs::write(&list, format!("{learned}{line} # by hand\n")).expect("the list");
        reload(&proxy, &config("reject"));
        is_passed(&mut raw, "DELETE FROM t WHERE a = 7");
        // And taken out again, it ends for a statement that is prepared already.
        let mut out = Vec::new();
        parse_named(&mut out, "mine", "DELETE FROM t WHERE a = 8");
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        assert!(passed(&raw.read_until_ready()));
        std::fs::write(&list, &learned).expect("the list");
        reload(&proxy, &config("reject"));
        let mut out = Vec::new();
        bind_execute(&mut out, "mine");
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        assert_eq!(error_in(&raw.read_until_ready()).sqlstate(), "42501", "{mode}");
    }
}

#[test]
fn what_waits_to_be_learned_is_written_at_the_end() {
    let server = Postgres::shared();
    let policy = "[policy]\nallow_list = \"learn\"\nallow_list_file = \"@DIR@/list\"";
    let mut proxy = Proxy::to(server, "", "", policy);
    let mut raw = Raw::login(proxy.port(), "postgres");
    raw.rows("SELECT 1 AS last");
    raw.terminate();
    proxy.terminate();
    proxy.wait_end();
    let list = std::fs::read_to_string(proxy.dir().join("list")).expect("the list");
    assert!(list.contains("# SELECT $1 AS last\n"), "{list}");
}

#[test]
fn nobody_runs_what_somebody_else_prepared() {
    let server = Postgres::shared();
    for (prepared, state) in [(0, "pin"), (200, "pin"), (200, "allow")] {
        let database = server.fresh_database("CREATE TABLE t (a int)");
        // One server connection; who comes over the Unix socket may write, who comes over TCP may not.
        let general = format!(
            "default_pool_size = 1\nmax_prepared_statements = {prepared}\nsession_state = \"{state}\"\nunix_socket_dir = \"@DIR@\""
        );
        let rest = "[networks.\"127.0.0.1\".policy]\nstatements = \"read_only\"\n";
        let proxy = Proxy::to(server, &general, "", rest);
        let psql = |sql: &str| {
            let mut command = client_command("psql");
            command.args(["-XAtq", "-U", "postgres", "-d", &database, "-c", sql]);
            command.args(["-p", &proxy.port().to_string(), "-h"]).arg(proxy.dir());
            assert!(command.output().expect("psql").status.success());
        };
        if state == "allow" {
            psql("PREPARE theirs AS INSERT INTO t VALUES (1)");
        } else {
            psql("SELECT 1");
        }
        let mut raw = Raw::login(proxy.port(), &database);
        for name in ["theirs", "pgsluice_1", "pgsluice_2", "pgsluice_3"] {
            let sql = format!("EXECUTE {name}");
            if state == "allow" || prepared == 0 || name != "theirs" {
                is_refused(&mut raw, &sql, "was not judged");
            }
            let mut out = Vec::new();
            bind_execute(&mut out, name);
            f::put_empty(&mut out, f::SYNC);
            raw.send(&out);
            error_in(&raw.read_until_ready());
        }
        // Its own unnamed statement it may run, also where names are not followed.
        assert!(passed(&raw.extended("SELECT 1", &[])));
        let mut out = Vec::new();
        bind_execute(&mut out, "");
        f::put_empty(&mut out, f::SYNC);
        raw.send(&out);
        raw.read_until_ready();
        assert_eq!(rows_of_t(&database), "0", "{prepared} {state}");
    }
}

#[test]
fn pg_dump_with_jobs_only_reads() {
    // "pg_dump (PostgreSQL) 15.18": one that is older than the server refuses to work.
    let version = client_command("pg_dump").arg("--version").output();
    let version = String::from_utf8(version.expect("pg_dump").stdout).expect("text");
    let major = version.split(|c: char| !c.is_ascii_digit()).find_map(|word| word.parse().ok());
    if major.is_none_or(|major: u32| major < Postgres::shared().major()) {
        return println!("not run: {version}");
    }
    for mode in MODES {
        let (proxy, database) = with_policy(mode, "[policy]\nstatements = \"read_only\"");
        let to = tempfile::tempdir().unwrap();
        let mut command = client_command("pg_dump");
        command.args(["--jobs=2", "-Fd", "-h", "127.0.0.1", "-U", "postgres", "-d", &database]);
        command.args(["-p", &proxy.port().to_string(), "-f"]).arg(to.path().join("dump"));
        let output = command.output().expect("pg_dump");
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_text_of_many_names_takes_no_tree_of_them() {
    const GROWTH_MAX: u64 = 48 << 20;
    for (policy, names) in [
        ("statements = \"read_only\"", 125_000),
        ("statements = \"no_ddl\"", 125_000),
        ("simple_query = \"control\"", 31_000),
    ] {
        let (proxy, database) = with_policy("transaction", &format!("[policy]\n{policy}"));
        let mut raw = Raw::login(proxy.port(), &database);
        is_refused_as_query(&mut raw, "DROP TABLE t", policy.split(" = ").next().unwrap());
        let before = proxy.peak_rss();
        let list = vec!["a"; names].join(",");
        for text in [
            format!("SELECT 1 FROM t WHERE nextval IN ({list})"),
            format!("SELECT {list} FROM t"),
            format!("SELECT 1{} FROM t", " OR a=1".repeat(2 * names / 7)),
        ] {
            is_refused_as_query(&mut raw, &text, "131072 tokens");
        }
        let grown = proxy.peak_rss() - before;
        assert!(grown < GROWTH_MAX, "{policy}: {grown}");
    }
}

fn is_refused_as_query(raw: &mut Raw, sql: &str, says: &str) {
    let messages = raw.query(sql);
    let error = error_in(&messages);
    assert_eq!((error.sqlstate().as_str(), error.field(b'S').as_str()), ("42501", "ERROR"));
    assert!(error.field(b'M').contains(says), "{}", error.outline());
}

/// PostgreSQL's own volatile functions that read, wait, or change what ends with their session or is called by triggers
/// and extensions only; `*`: and all that begin so.
const READERS: &str = "
    RI_FKey_* pg_advisory_* pg_try_advisory_* pg_current_wal_* pg_get_* pg_last_* pg_ls_* pg_sleep* pg_stat_get_*
    pg_control_* pg_logical_slot_peek_* plpgsql_* dsnowball_* pg_partition_* lo_lseek* lo_tell* cursor_to_xml*
    amvalidate array_sample array_shuffle bernoulli brinhandler bthandler clock_timestamp current_query currtid2 currval
    gen_random_uuid ginhandler gisthandler hashhandler heap_tableam_handler lastval lo_close lo_get lo_open loread
    pg_available_wal_summaries pg_blocking_pids pg_collation_actual_version pg_current_logfile
    pg_database_collation_actual_version pg_database_size pg_export_snapshot pg_extension_config_dump pg_hba_file_rules
    pg_ident_file_mappings pg_indexes_size pg_is_in_backup pg_is_in_recovery pg_is_wal_replay_paused
    pg_isolation_test_session_is_blocked pg_jit_available pg_lock_status pg_notification_queue_usage pg_prepared_xact
    pg_read_binary_file pg_read_file pg_read_file_old pg_relation_size pg_safe_snapshot_blocking_pids
    pg_sequence_last_value pg_show_all_file_settings pg_show_replication_origin_status pg_stat_clear_snapshot
    pg_stat_file pg_stat_force_next_flush pg_stat_have_stats pg_table_size pg_tablespace_size pg_total_relation_size
    pg_wal_summary_contents pg_xact_commit_timestamp pg_xact_commit_timestamp_origin pg_xact_status query_to_xmlschema
    random random_normal setseed spghandler suppress_redundant_updates_trigger system timeofday timezone
    tsvector_update_trigger tsvector_update_trigger_column txid_status unique_key_recheck uuidv4 uuidv7 set_config";

#[test]
fn each_volatile_function_of_the_server_is_known() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let volatile = server.psql(
        &database,
        "SELECT DISTINCT proname FROM pg_proc WHERE provolatile = 'v' AND pronamespace = 'pg_catalog'::regnamespace",
    );
    let reads = |name: &str| {
        READERS.split_whitespace().any(|known| match known.strip_suffix('*') {
            Some(family) => name.starts_with(family),
            None => name == known,
        })
    };
    let mut count = 0;
    for name in volatile.split_whitespace() {
        let found = statements(format!("SELECT \"{name}\"('a')").as_bytes()).unwrap();
        let wanted = if reads(name) { Class::Read } else { Class::Write };
        assert_eq!(found[0].class, wanted, "{name}");
        count += 1;
    }
    assert!(count > 150, "{count}");
}
