//! Pouring against real PostgreSQL: rows that clients insert one by one arrive by COPY, once, and nobody can tell; when
//! something goes wrong, every client hears what it would have heard without pgsluice.

use crate::support;
use pgsluice::limits::HELD_BYTES_MAX;
use pgsluice::wire::{backend, frame, frontend};
use support::console::{find, show, tell, until};
use support::crowd::{self, comparable, put_bind_binary, to_portal};
use support::pouring::{
    CLIENTS, ROUNDS, crowd_of, errors, number, rows_and_commands, send_insert, tags, until_poured, waiting,
    warmed,
};
use support::{Message, PATIENCE, PgOptions, Postgres, Proxy, Raw, Step, poll};

#[test]
fn simple_literals_of_many_clients_leave_as_copy() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text, c numeric(8,2), d boolean)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..4)
            .map(|i| {
                let a = number(c, r, i);
                Step::query(&format!(
                    "INSERT INTO t (a, b, c, d) VALUES ({a}, 'it''s \\ \t{a}', -1.{i}, true)"
                ))
            })
            .collect()
    });
    let wrong = pg.psql(&db, "SELECT count(*) FROM t WHERE b <> E'it''s \\\\ \\t' || a OR c > -1 OR NOT d");
    assert_eq!(wrong.trim(), "0");
}

/// Where nested loops are off our own questions look costly enough to be compiled, which takes longer than a flush may live.
#[test]
fn questions_and_flushes_are_not_compiled() {
    let pg = &Postgres::start(PgOptions::without_compiler());
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    pg.psql("postgres", &format!("ALTER DATABASE {db} SET enable_nestloop = off"));
    // None is to fail for its time on a busy machine.
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nflush_timeout = \"999ms\"");
    warmed(pg, &proxy, &db, 8);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let flushes = show(&mut console, "SHOW COALESCE_FLUSHES");
    let failed: Vec<_> = flushes.iter().filter(|flush| flush["outcome"] != "committed").collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// Rounds that must not be poured: more than are needed to learn.
const NEVER: usize = 6;

/// How an application may send one INSERT with Parse and Bind.
#[derive(Debug, Clone, Copy)]
enum Form {
    Reparsed,
    UnnamedOnce,
    Named,
    NamedBinary,
    DescribesStatement,
    RowLimit,
    /// As r2dbc-postgresql does.
    NamedPortal,
    NamedPortalLeft,
    PortalClosed,
    /// As pg8000 does.
    Flushed,
    /// As libpq's PQexecParams does without parameters.
    Literals,
    LiteralsDescribed,
    /// A name for each text, as pgx does.
    LiteralsNamed,
}

impl Form {
    fn is_prepared(self) -> bool {
        matches!(self, Self::Named | Self::NamedBinary | Self::NamedPortal | Self::NamedPortalLeft)
    }

    fn is_of_literals(self) -> bool {
        matches!(self, Self::Literals | Self::LiteralsDescribed | Self::LiteralsNamed)
    }

    fn is_parsed_before(self) -> bool {
        self.is_prepared() || matches!(self, Self::UnnamedOnce | Self::Flushed)
    }
}

fn insert_steps(form: Form, table: &str, a: usize, b: &str) -> Vec<Step> {
    let sql = match form.is_of_literals() {
        true => format!("INSERT INTO {table} (a, b) VALUES ({a}, '{b}')"),
        false => format!("INSERT INTO {table} (a, b) VALUES ($1, $2)"),
    };
    let text = a.to_string();
    let mut params = vec![Some(text.as_bytes()), Some(b.as_bytes())];
    params.truncate(if form.is_of_literals() { 0 } else { 2 });
    let of_its_own = format!("s{a}");
    let name: &[u8] = match form {
        Form::LiteralsNamed => of_its_own.as_bytes(),
        _ if form.is_prepared() => b"s",
        _ => b"",
    };
    let portal: &[u8] = if matches!(form, Form::NamedPortal | Form::NamedPortalLeft) { b"B_1" } else { b"" };
    let mut bytes = Vec::new();
    if !form.is_parsed_before() {
        frontend::put_parse(&mut bytes, name, sql.as_bytes(), &[]);
    }
    let mut steps = Vec::new();
    if matches!(form, Form::LiteralsNamed) {
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'S', name);
        frontend::put_empty(&mut bytes, frontend::SYNC);
        steps.push(Step { bytes: std::mem::take(&mut bytes), ready: 1 });
    }
    if matches!(form, Form::DescribesStatement | Form::LiteralsDescribed) {
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'S', b"");
    }
    let mut bind = Vec::new();
    if matches!(form, Form::NamedBinary) {
        let a = (a as i32).to_be_bytes();
        put_bind_binary(&mut bind, name, &[Some(&a), Some(b.as_bytes())]);
    } else {
        frontend::put_bind_text(&mut bind, name, &params);
    }
    bytes.extend_from_slice(&to_portal(&bind, portal));
    if matches!(form, Form::Reparsed | Form::NamedPortal | Form::Literals) {
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'P', portal);
    }
    let flush = |bytes: &mut Vec<u8>| {
        if matches!(form, Form::Flushed) {
            frontend::put_empty(bytes, frontend::FLUSH);
        }
    };
    flush(&mut bytes);
    frontend::put_execute(&mut bytes, portal, i32::from(matches!(form, Form::RowLimit)));
    flush(&mut bytes);
    if matches!(form, Form::NamedPortal | Form::PortalClosed) {
        frontend::put_target(&mut bytes, frontend::CLOSE, b'P', portal);
    }
    frontend::put_empty(&mut bytes, frontend::SYNC);
    steps.push(Step { bytes, ready: 1 });
    steps
}

/// Of a form that is one unit.
fn insert_step(form: Form, table: &str, a: usize, b: &str) -> Step {
    insert_steps(form, table, a, b).remove(0)
}

fn parse_step(name: &str, sql: &str) -> Step {
    let mut bytes = Vec::new();
    frontend::put_parse(&mut bytes, name.as_bytes(), sql.as_bytes(), &[]);
    frontend::put_empty(&mut bytes, frontend::SYNC);
    Step { bytes, ready: 1 }
}

#[test]
fn parameters_in_every_form_leave_as_copy_and_are_answered_as_directly() {
    let pg = Postgres::shared();
    for form in [
        Form::Reparsed,
        Form::UnnamedOnce,
        Form::Named,
        Form::NamedBinary,
        Form::DescribesStatement,
        Form::RowLimit,
        Form::NamedPortal,
        Form::NamedPortalLeft,
        Form::PortalClosed,
        Form::Flushed,
        Form::Literals,
        Form::LiteralsDescribed,
        Form::LiteralsNamed,
    ] {
        // One for each: the connections to its database go with it.
        let proxy = Proxy::to(pg, "", "", "");
        let db = pg.fresh_database("CREATE TABLE t (a int, b text); CREATE TABLE other (a int, b text)");
        let name = if form.is_prepared() { "s" } else { "" };
        let sql = "INSERT INTO t (a, b) VALUES ($1, $2)";
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        for client in &mut clients {
            if form.is_parsed_before() {
                client.send(&parse_step(name, sql).bytes);
                client.read_until_ready();
            }
        }
        until_poured(pg, &mut clients, &db, "t", |c, r| {
            (0..4).flat_map(|i| insert_steps(form, "t", number(c, r, i), "x\\.\ty")).collect()
        });
        // The same bytes direct: the same answers, byte for byte.
        let mut direct = Raw::login(pg.port(), &db);
        if form.is_parsed_before() {
            direct.send(&parse_step(name, "INSERT INTO other (a, b) VALUES ($1, $2)").bytes);
            direct.read_until_ready();
        }
        let steps = [insert_steps(form, "other", 1, "x")];
        let expected = comparable(&crowd::run(std::slice::from_mut(&mut direct), &steps, true)[0]);
        let scripts: Vec<_> =
            (0..CLIENTS).map(|c| insert_steps(form, "t", number(c, ROUNDS, 0), "x")).collect();
        for seen in crowd::run(&mut clients, &scripts, true) {
            assert_eq!(comparable(&seen), expected, "{form:?}");
        }
        assert_eq!(pg.psql(&db, "SELECT count(*) FROM t WHERE b NOT IN (E'x\\\\.\\ty', 'x')").trim(), "0");
        // What the client prepared is there, on whatever connection it comes to.
        if matches!(form, Form::LiteralsNamed) {
            continue;
        }
        let params: &[Option<&str>] = if form.is_of_literals() { &[] } else { &[Some("-1"), None] };
        for client in &mut clients {
            client.send(&Step::execute(name, params).bytes);
            assert_eq!(tags(&client.read_until_ready()), ["INSERT 0 1"], "{form:?}");
        }
    }
}

/// What is asked for before the Sync is answered before it, also of what is poured where it is whole.
#[test]
fn who_flushes_and_waits_is_answered() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    for client in &mut clients {
        client.send(&parse_step("", "INSERT INTO t (a, b) VALUES ($1, $2)").bytes);
        client.read_until_ready();
    }
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..4).flat_map(|i| insert_steps(Form::Flushed, "t", number(c, r, i), "w")).collect()
    });
    pg.psql(&db, "DELETE FROM t");
    let client = &mut clients[0];
    let mut bind = Vec::new();
    frontend::put_bind_text(&mut bind, b"", &[Some(b"1"), Some(b"x")]);
    let mut execute = Vec::new();
    frontend::put_execute(&mut execute, b"", 0);
    for (message, answer) in [(bind, backend::BIND_COMPLETE), (execute, backend::COMMAND_COMPLETE)] {
        let mut bytes = message;
        frontend::put_empty(&mut bytes, frontend::FLUSH);
        client.send(&bytes);
        assert_eq!(client.read().tag, answer);
    }
    assert_eq!(pg.psql(&db, "SELECT count(*) FROM t").trim(), "0", "nothing is committed");
    let mut sync = Vec::new();
    frontend::put_empty(&mut sync, frontend::SYNC);
    client.send(&sync);
    client.read_until_ready();
    assert_eq!(pg.psql(&db, "SELECT b FROM t").trim(), "x");
}

/// `n` INSERTs of one unnamed statement; one Sync at the end, or one each.
fn pipeline(table: &str, first: usize, n: usize, sync_each: bool, more: impl FnOnce(&mut Vec<u8>)) -> Step {
    let sql = format!("INSERT INTO {table} (a, b) VALUES ($1, $2)");
    let mut bytes = Vec::new();
    for i in 0..n {
        let a = (first + i).to_string();
        if i == 0 || sync_each {
            frontend::put_parse(&mut bytes, b"", sql.as_bytes(), &[]);
        }
        frontend::put_bind_text(&mut bytes, b"", &[Some(a.as_bytes()), Some(b"p")]);
        frontend::put_execute(&mut bytes, b"", 0);
        if sync_each && i + 1 < n {
            frontend::put_empty(&mut bytes, frontend::SYNC);
        }
    }
    more(&mut bytes);
    frontend::put_empty(&mut bytes, frontend::SYNC);
    Step { bytes, ready: if sync_each { n } else { 1 } }
}

#[test]
fn pipelines_leave_as_copy_in_order() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    for sync_each in [false, true] {
        let db = pg.fresh_database(
            "CREATE TABLE t (n int GENERATED ALWAYS AS IDENTITY, a int, b text); CREATE TABLE other (a int, b text)",
        );
        let mut client = [Raw::login(proxy.port(), &db)];
        until_poured(pg, &mut client, &db, "t", |c, r| {
            vec![pipeline("t", number(c, r, 0), 50, sync_each, |_| {})]
        });
        // Rows of one client in the order in which it sent them.
        let disorder =
            pg.psql(&db, "SELECT count(*) FROM (SELECT a, lag(a) OVER (ORDER BY n) p FROM t) x WHERE p > a");
        assert_eq!(disorder.trim(), "0");
        let mut direct = Raw::login(pg.port(), &db);
        let step = pipeline("other", 1, 3, sync_each, |_| {});
        let expected = crowd::run(std::slice::from_mut(&mut direct), &[vec![step]], false);
        let step = pipeline("t", number(0, ROUNDS, 0), 3, sync_each, |_| {});
        let seen = crowd::run(&mut client, &[vec![step]], false);
        assert_eq!(comparable(&seen[0]), comparable(&expected[0]));
        client[0].send(&Step::execute("", &[Some("-1"), Some("again")]).bytes);
        assert_eq!(tags(&client[0].read_until_ready()), ["INSERT 0 1"]);
        assert_eq!(pg.psql(&db, "SELECT b FROM t WHERE a = -1").trim(), "again");
    }
}

/// A literal that could mean another day under other settings, or at another time, is not read again.
#[test]
fn dates_in_prepared_statements_are_read_as_at_parse() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let setup =
        "CREATE TABLE t (a int, d date, ts timestamp, ms timestamp(1), tz timestamptz, tm timestamptz(1))";
    let iso = "INSERT INTO t VALUES ($1, '2024-03-02', '2024-03-02 12:00', '2024-03-02 12:00:00.55', \
               '2024-03-02 12:00-03', '2024-03-02 12:00:00.55+05:30')";
    let executes =
        |c: usize, r: usize| (0..8).map(move |i| Step::execute("s", &[Some(&number(c, r, i).to_string())]));
    let warm = |c: usize, r: usize| -> Vec<Step> {
        let prepared = (r == 0).then(|| Step::prepare("s", iso));
        prepared.into_iter().chain(executes(c, r)).collect()
    };
    let scripts: Vec<Vec<Step>> = (0..CLIENTS)
        .map(|c| {
            let styles =
                ["SET DateStyle = 'SQL, DMY'", "SET DateStyle = 'German'", "SET TimeZone = 'Asia/Tokyo'"];
            let style = Step::query(styles[c % styles.len()]);
            std::iter::once(style).chain(executes(c, 0)).collect()
        })
        .collect();
    // What is prepared is prepared on each side, so both are warmed.
    let (through, alone) = (pg.fresh_database(setup), pg.fresh_database(setup));
    let mut clients = crowd_of(proxy.port(), &through, CLIENTS);
    let mut direct = crowd_of(pg.port(), &alone, CLIENTS);
    until_poured(pg, &mut clients, &through, "t", &warm);
    let prepare: Vec<Vec<Step>> = (0..CLIENTS).map(|_| vec![Step::prepare("s", iso)]).collect();
    crowd::run(&mut direct, &prepare, true);
    pg.psql(&through, "TRUNCATE t");
    let seen = crowd::run(&mut clients, &scripts, true);
    for (seen, expected) in seen.iter().zip(crowd::run(&mut direct, &scripts, true)) {
        assert_eq!(comparable(seen), comparable(&expected));
    }
    let content = "SELECT * FROM t ORDER BY a";
    assert_eq!(pg.psql(&through, content), pg.psql(&alone, content));
    let others = [
        ("d", "'02/03/2024'"),
        ("d", "'today'"),
        ("ts", "'2024-3-2'"),
        ("ts", "'2024-03-02 12:00:00Z'"),
        ("ts", "'2024-03-02 12:00:00+00'"),
        ("tz", "'2024-03-02 12:00:00'"),
        ("tz", "'2024-03-02 12:00:00Z'"),
        ("tz", "'2024-03-02-03'"),
        ("tz", "'2024-03-02 12:00:00+00 BC'"),
    ];
    for (column, other) in others {
        let db = pg.fresh_database(setup);
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let sql = format!("INSERT INTO t (a, {column}) VALUES ($1, {other})");
        for r in 0..ROUNDS / 4 {
            let scripts: Vec<Vec<Step>> = (0..CLIENTS)
                .map(|c| {
                    let prepared = (r == 0).then(|| Step::prepare("s", &sql));
                    prepared.into_iter().chain(executes(c, r)).collect()
                })
                .collect();
            crowd::run(&mut clients, &scripts, false);
        }
        let (rows, commands) = rows_and_commands(pg, &db, "t");
        assert_eq!(rows, commands, "{other} was poured");
    }
}

/// A statement of literals is parsed anew for each row, mostly; but it may be bound again, when other settings hold.
#[test]
fn literals_that_are_parsed_are_read_once() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let setup = "CREATE TYPE mood AS ENUM ('ok');
        CREATE TABLE t (a int, b text, c numeric(5,1), d date, e timestamptz, f mood, g int[], h \"char\", i bool)";
    let last = "1.25, '2024-03-02', '2024-03-02 12:00:00+00', NULL, '{1,2}', NULL, TRUE";
    let (db, alone) = (pg.fresh_database(setup), pg.fresh_database(setup));
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let row = |a: usize, rest: &str| Step::extended(&format!("INSERT INTO t VALUES ({a}, 'x', {rest})"), &[]);
    until_poured(pg, &mut clients, &db, "t", |c, r| (0..4).map(|i| row(number(c, r, i), last)).collect());
    // Bound again by itself, in other units and under other settings.
    let again = |first: &str| -> Vec<Step> {
        let set = Step::prepare("set", "SET DateStyle = 'SQL, DMY'");
        vec![set, row(0, first), Step::execute("", &[]), Step::execute("set", &[]), Step::execute("", &[])]
    };
    let others = [
        "1, '02/03/2024', NULL, NULL, NULL, NULL, NULL",
        "1, 'today', NULL, NULL, NULL, NULL, NULL",
        "1, NULL, '2024-03-02 12:00:00', NULL, NULL, NULL, NULL",
        "1, NULL, 'now', NULL, NULL, NULL, NULL",
        "1, NULL, NULL, 'ok', NULL, NULL, NULL",
        "1, NULL, NULL, NULL, '{1,Null}', NULL, NULL",
        "1, NULL, NULL, NULL, NULL, 'x', NULL",
    ];
    for other in others {
        pg.psql(&db, "TRUNCATE t");
        for r in 0..NEVER {
            let scripts: Vec<Vec<Step>> =
                (0..CLIENTS).map(|c| (0..4).map(|i| row(number(c, r, i), other)).collect()).collect();
            crowd::run(&mut clients, &scripts, false);
        }
        let (rows, commands) = rows_and_commands(pg, &db, "t");
        assert_eq!((rows, commands), (NEVER * CLIENTS * 4, rows), "{other} was poured");
    }
    pg.psql(&db, "TRUNCATE t");
    let scripts: Vec<_> = (0..CLIENTS).map(|_| again(last)).collect();
    let seen = crowd::run(&mut clients, &scripts, true);
    let expected = crowd::run(&mut crowd_of(pg.port(), &alone, CLIENTS), &scripts, true);
    for (seen, expected) in seen.iter().zip(&expected) {
        assert_eq!(comparable(seen), comparable(expected));
    }
    let content = "SELECT *, count(*) FROM t GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9";
    assert_eq!(pg.psql(&db, content), pg.psql(&alone, content));
    // Parameters that there are none for, types that nothing has: the server's to judge.
    let wrong = |kind: usize| {
        let mut bytes = Vec::new();
        let types: &[u8] = if kind == 0 { &[0, 0, 0, 23] } else { &[] };
        frontend::put_parse(
            &mut bytes,
            b"",
            format!("INSERT INTO t VALUES (7, 'x', {last})").as_bytes(),
            types,
        );
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'S', b"");
        let params: &[Option<&[u8]>] = if kind == 2 { &[Some(b"1")] } else { &[] };
        frontend::put_bind_text(&mut bytes, b"", params);
        frontend::put_execute(&mut bytes, b"", 0);
        frontend::put_empty(&mut bytes, frontend::SYNC);
        Step { bytes, ready: 1 }
    };
    for kind in 0..3 {
        let mut direct = Raw::login(pg.port(), &alone);
        direct.send(&wrong(kind).bytes);
        let expected = comparable(&direct.read_until_ready());
        let scripts: Vec<_> = (0..CLIENTS).map(|_| vec![wrong(kind); 3]).collect();
        for seen in crowd::run(&mut clients, &scripts, true) {
            assert_eq!(comparable(&seen), expected.repeat(3), "{kind}");
        }
    }
}

#[test]
fn a_session_reads_what_it_wrote() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..4)
            .map(|i| {
                Step::extended(
                    "INSERT INTO t (a, b) VALUES ($1, $2)",
                    &[Some(&number(c, r, i).to_string()), Some("p")],
                )
            })
            .collect()
    });
    pg.psql(&db, "TRUNCATE t");
    // In one pipeline, behind the same Sync and behind one of its own; and in the next message.
    let scripts: Vec<Vec<Step>> = (0..CLIENTS)
        .map(|c| {
            let count = format!("SELECT count(*) FROM t WHERE a / 1000 = {c} AND a % 1000 < 500");
            let select = |out: &mut Vec<u8>| {
                frontend::put_parse(out, b"", count.as_bytes(), &[]);
                frontend::put_bind_text(out, b"", &[]);
                frontend::put_execute(out, b"", 0);
            };
            let first = pipeline("t", c * 1000, 5, false, select);
            let mut second = pipeline("t", c * 1000 + 5, 5, true, |out| {
                frontend::put_empty(out, frontend::SYNC);
                select(out);
            });
            second.ready += 1;
            vec![
                first,
                second,
                Step::query(&format!("INSERT INTO t (a, b) VALUES ({}, 'q')", c * 1000 + 10)),
                Step::query(&count),
            ]
        })
        .collect();
    for seen in crowd::run(&mut clients, &scripts, true) {
        let counts: Vec<_> =
            seen.iter().filter(|m| m.tag == backend::DATA_ROW).map(|m| m.row()[0].clone()).collect();
        assert_eq!(counts, [Some("5".into()), Some("10".into()), Some("11".into())], "{}", comparable(&seen));
    }
}

/// `n` rows in one INSERT with parameters.
fn many_rows(table: &str, first: usize, n: usize, name: &str, tag: &str) -> Step {
    let rows: Vec<_> = (0..n).map(|i| format!("(${}, ${})", 2 * i + 1, 2 * i + 2)).collect();
    let sql = format!("INSERT INTO {table} (a, b) VALUES {} /*{tag}*/", rows.join(","));
    let values: Vec<_> = (first..first + n).map(|a| a.to_string()).collect();
    let params: Vec<_> = values.iter().flat_map(|a| [Some(a.as_bytes()), Some(&b"m"[..])]).collect();
    let mut bytes = Vec::new();
    frontend::put_parse(&mut bytes, name.as_bytes(), sql.as_bytes(), &[]);
    frontend::put_target(&mut bytes, frontend::DESCRIBE, b'S', name.as_bytes());
    frontend::put_bind_text(&mut bytes, name.as_bytes(), &params);
    frontend::put_execute(&mut bytes, b"", 0);
    if !name.is_empty() {
        frontend::put_target(&mut bytes, frontend::CLOSE, b'S', name.as_bytes());
    }
    frontend::put_empty(&mut bytes, frontend::SYNC);
    Step { bytes, ready: 1 }
}

#[test]
fn statements_of_many_rows_leave_as_copy() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let setup = "CREATE TABLE t (a int, b text); CREATE TABLE other (a int, b text)";
    // Literals: rows that are alike and rows that are not.
    let db = pg.fresh_database(setup);
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..4)
            .map(|i| {
                let a = number(c, r, i * 10);
                let tag = format!("route='/{a}'");
                Step::query(&format!(
                    "INSERT INTO t (a, b) VALUES ({a}, 'it''s'), ({},NULL) , /*{tag}*/ ({}, 'x')",
                    a + 1,
                    a + 2
                ))
            })
            .collect()
    });
    // Parameters, and as many rows as it happens.
    let db = pg.fresh_database(setup);
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..4)
            .map(|i| many_rows("t", number(c, r, i * 20), 2 + (c + i) % 7, "", &format!("{c} {r} {i}")))
            .collect()
    });
    let mut direct = Raw::login(pg.port(), &db);
    for n in [1, 2, 5] {
        direct.send(&many_rows("other", 0, n, "", "x").bytes);
        let expected = comparable(&direct.read_until_ready());
        let scripts: Vec<_> =
            (0..CLIENTS).map(|c| vec![many_rows("t", number(c, ROUNDS + n, 0), n, "", "y")]).collect();
        for seen in crowd::run(&mut clients, &scripts, true) {
            assert_eq!(comparable(&seen), expected);
        }
    }
    // One statement stands or falls as a whole, and takes no stranger's rows with it.
    pg.psql(&db, "TRUNCATE t; ALTER TABLE t ADD CHECK (a >= 0)");
    let rows = |c: usize, n: i64| Step::query(&format!("INSERT INTO t (a, b) VALUES ({c}, 'x'), ({n}, 'y')"));
    for round in 0..10 {
        let scripts: Vec<_> =
            (0..CLIENTS).map(|c| vec![rows(round * 100 + c, if c == 3 { -1 } else { 50 })]).collect();
        for (c, seen) in crowd::run(&mut clients, &scripts, true).iter().enumerate() {
            assert_eq!(errors(seen).len(), usize::from(c == 3), "{}", comparable(seen));
            assert_eq!(tags(seen).len(), usize::from(c != 3), "{}", comparable(seen));
        }
    }
    assert_eq!(pg.psql(&db, "SELECT count(*), count(*) FILTER (WHERE a % 100 = 3) FROM t").trim(), "140|0");
}

/// Neither tags that differ from one statement to the next nor row counts are other statements.
#[test]
fn tags_and_row_counts_make_no_other_shape() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..5)
            .map(|i| {
                let (a, tag) = (number(c, r, i * 10), format!("traceparent='00-{c}-{r}-{i}'"));
                match i % 5 {
                    0 => Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, 'x') /*{tag}*/")),
                    1 => Step::query(&format!(
                        "/*{tag}*/ INSERT INTO t (a, b) VALUES ({a}, 'x'), (0{a}1, 'y')"
                    )),
                    2 => many_rows("t", a, 1 + (c + r) % 8, "", &tag),
                    3 => Step::extended(&format!("INSERT INTO t (a, b) VALUES ({a}, 'p') /*{tag}*/"), &[]),
                    _ => Step::extended(
                        &format!("INSERT INTO t (a, b) VALUES ($1, $2) /*{tag}*/"),
                        &[Some(&a.to_string()), Some("x")],
                    ),
                }
            })
            .collect()
    });
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let shapes = console.query("SHOW COALESCE_TABLES");
    let of_t = shapes.iter().find(|m| m.tag == backend::DATA_ROW && m.row().contains(&Some(db.clone())));
    // One of literals, one of parameters.
    assert_eq!(of_t.expect("a table").row()[4].as_deref(), Some("2"), "{}", comparable(&shapes));
}

/// Statements that must reach the server one by one, never as rows of a COPY or of a longer INSERT; into `t` of each kind.
const NOT_POURED: &[(&str, &str)] = &[
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1) RETURNING a + 1"),
    ("CREATE TABLE t (a int UNIQUE)", "INSERT INTO t VALUES (1), (1) ON CONFLICT DO NOTHING"),
    ("CREATE TABLE t (a int UNIQUE)", "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = t.a"),
    // Targets, casts and spellings that only the server reads right.
    ("CREATE TABLE t (a int[])", "INSERT INTO t (a[2]) VALUES (1)"),
    ("CREATE TYPE c AS (x int, y int); CREATE TABLE t (a c)", "INSERT INTO t (a.y) VALUES (1)"),
    ("CREATE TABLE t (a text)", "INSERT INTO t VALUES ('abcdef'::varchar(3))"),
    ("CREATE TABLE t (a date)", "INSERT INTO t VALUES (date '2024-02-03')"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES ($1)"),
    ("CREATE TABLE t (a int)", "INSERT INTO t OVERRIDING USER VALUE VALUES (1)"),
    (
        "CREATE TABLE t (aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg int)",
        "INSERT INTO t (aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg) VALUES (1)",
    ),
    ("CREATE TABLE t (\"é\" int)", "INSERT INTO t (é) VALUES (1)"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1), (1.5)"),
    ("CREATE TABLE t (a int, b int DEFAULT 7)", "INSERT INTO t VALUES (1, 2), (2, DEFAULT)"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES ('1'::numeric)"),
    ("CREATE TABLE t (a text)", "INSERT INTO t VALUES ('1'::int)"),
    ("CREATE TABLE t (a numeric(5, 2))", "INSERT INTO t VALUES ('1.005'::numeric(5, 2))"),
    ("CREATE TABLE t (a interval hour to minute)", "INSERT INTO t VALUES ('5'::interval)"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1 + 1)"),
    ("CREATE TABLE t (a int)", "INSERT INTO t SELECT 1"),
    ("CREATE TABLE t (a int DEFAULT 1)", "INSERT INTO t DEFAULT VALUES"),
    ("CREATE TABLE t (a text)", "INSERT INTO t VALUES (E'\\x41')"),
    ("CREATE TABLE t (a text)", "INSERT INTO t VALUES (007)"),
    ("CREATE TABLE t (a boolean)", "INSERT INTO t VALUES (1)"),
    ("CREATE TABLE t (a int); CREATE VIEW v AS SELECT * FROM t", "INSERT INTO v VALUES (1)"),
    (
        "CREATE TABLE t (a int); CREATE TABLE l (a int); CREATE RULE r AS ON INSERT TO t DO ALSO INSERT INTO l VALUES (NEW.a)",
        "INSERT INTO t VALUES (1)",
    ),
    (
        "CREATE TABLE t (a int); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.a := NEW.a + 1; RAISE NOTICE ''fired''; RETURN NEW; END'; CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "INSERT INTO t VALUES (1)",
    ),
    (
        "CREATE TABLE t (a int); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "INSERT INTO t VALUES (1)",
    ),
    ("CREATE TABLE t (a int GENERATED ALWAYS AS IDENTITY)", "INSERT INTO t VALUES (1)"),
    ("CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a) STORED, c int)", "INSERT INTO t VALUES (1, 2)"),
    ("CREATE DOMAIN d AS int NOT NULL; CREATE TABLE t (a int, b d)", "INSERT INTO t (a) VALUES (1)"),
    ("CREATE TABLE t (a int PRIMARY KEY, b int REFERENCES t)", "INSERT INTO t VALUES (1, 2)"),
    ("CREATE TABLE t (a int CHECK (current_setting('application_name') <> 'x'))", "INSERT INTO t VALUES (1)"),
    ("CREATE TABLE t (a int, b text DEFAULT current_query())", "INSERT INTO t (a) VALUES (1)"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)"),
    ("CREATE TABLE t (a int)", "INSERT INTO t AS new VALUES (1)"),
    ("CREATE TABLE t (a int)", "WITH x AS (SELECT 1) INSERT INTO t VALUES (1)"),
];

#[test]
fn what_is_not_poured_goes_through_as_it_is() {
    // Enough that the answers about the table are in well before the last.
    const ROUNDS: usize = 30;
    let pg = Postgres::start(PgOptions { conf: "log_statement = 'all'".into(), ..PgOptions::default() });
    let proxy = Proxy::to(&pg, "", "", "");
    for (number, (setup, sql)) in NOT_POURED.iter().enumerate() {
        let sql = &format!("{sql} -- no. {number}");
        let (through, alone) = (pg.fresh_database(setup), pg.fresh_database(setup));
        let mut clients = crowd_of(proxy.port(), &through, 4);
        let mut direct = crowd_of(pg.port(), &alone, 4);
        let scripts = vec![vec![Step::query(sql); ROUNDS]; 4];
        let before = pg.log().len();
        let seen = crowd::run(&mut clients, &scripts, true);
        // Direct, in the same database's twin: the same answers, whoever was first.
        let expected = crowd::run(&mut direct, &scripts, true);
        let sorted = |all: &[Vec<Message>]| {
            let mut steps: Vec<String> = all
                .iter()
                .flat_map(|m| m.split_inclusive(|m| m.tag == backend::READY_FOR_QUERY).map(comparable))
                .collect();
            steps.sort();
            steps
        };
        assert_eq!(sorted(&seen), sorted(&expected), "{sql}");
        let log = pg.log();
        // As it was written or, once pgsluice knows it for one of a kind, prepared and in a flush: a statement of its own all the same.
        let as_written = format!("statement: {sql}");
        let prepared = |line: &&str| line.contains(" execute pgsluice_") && line.contains(": insert into t ");
        let sent = log[before..].lines().filter(|l| l.contains(&as_written) || prepared(l)).count();
        assert_eq!(sent, 2 * 4 * ROUNDS, "{sql}: one by one, in {}", &log[before..]);
        assert!(!log[before..].contains("COPY \""), "{sql} was poured");
    }
}

/// The same scripts direct and through, in twin databases with the same `setup`; the answers of each client must be the
/// same, and the tables. `poured`: rows of `t` must have come by COPY before `then` is run.
fn same_as_direct(
    pg: &Postgres,
    proxy: &Proxy,
    setup: &str,
    warm: impl Fn(usize, usize) -> Vec<Step>,
    then: &str,
    scripts: &[Vec<Step>],
) -> Vec<Vec<Message>> {
    let (through, alone) = (pg.fresh_database(setup), pg.fresh_database(setup));
    let mut clients = crowd_of(proxy.port(), &through, scripts.len());
    let mut direct = crowd_of(pg.port(), &alone, scripts.len());
    until_poured(pg, &mut clients, &through, "t", &warm);
    for db in [&through, &alone] {
        pg.psql(db, "TRUNCATE t RESTART IDENTITY CASCADE");
        if !then.is_empty() {
            pg.psql(db, then);
        }
    }
    let seen = crowd::run(&mut clients, scripts, true);
    let expected = crowd::run(&mut direct, scripts, true);
    for (client, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
        assert_eq!(comparable(seen), comparable(expected), "client {client}, {setup}; {then}");
    }
    let tables = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('public', 's') AND table_type = 'BASE TABLE' ORDER BY 1, 2";
    for table in pg.psql(&alone, tables).lines() {
        let (schema, name) = table.split_once('|').expect("two columns");
        let content = format!("SELECT x::text FROM {schema}.{name} x ORDER BY 1");
        assert_eq!(pg.psql(&through, &content), pg.psql(&alone, &content), "table {table}, {setup}; {then}");
    }
    seen
}

#[test]
fn one_row_in_a_hundred_is_guilty_and_only_its_client_hears_of_it() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let setup = "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1);
        CREATE TABLE t (a int PRIMARY KEY, b varchar(5) NOT NULL, c int REFERENCES p, d smallint CHECK (d <> 13))";
    let warm = |c: usize, r: usize| -> Vec<Step> {
        (0..4)
            .map(|i| {
                Step::query(&format!(
                    "INSERT INTO t (a, b, c, d) VALUES ({}, 'x', 1, 1)",
                    number(c, r, i) + 1000
                ))
            })
            .collect()
    };
    let guilty = [
        "7, 'x', 1, 1",            // unique: 7 is sent by this client twice
        "900001, NULL, 1, 1",      // not null
        "900002, 'x', 2, 1",       // foreign key
        "900003, 'x', 1, 13",      // check
        "900004, 'toolong', 1, 1", // length
        "900005, 'x', 1, 40000",   // out of range
        "'nonsense', 'x', 1, 1",   // literal
        "99999999999, 'x', 1, 1",  // wider than its column
    ];
    let scripts: Vec<Vec<Step>> = (0..32)
        .map(|c| {
            (0..25)
                .map(|i| {
                    let values = match (c % 4, i) {
                        (0, 10) => guilty[c / 4].to_owned(),
                        (0, 2) if c == 0 => "7, 'y', 1, 1".to_owned(),
                        _ => format!("{}, 'x', 1, {i}", 100_000 + c * 100 + i).replace(", 13", ", 14"),
                    };
                    Step::query(&format!("INSERT INTO t (a, b, c, d) VALUES ({values})"))
                })
                .collect()
        })
        .collect();
    let seen = same_as_direct(pg, &proxy, setup, warm, "", &scripts);
    let failed: Vec<_> = seen.iter().map(|s| errors(s).len()).collect();
    assert_eq!(failed.iter().sum::<usize>(), guilty.len(), "{failed:?}");
}

#[test]
fn deferred_constraints_fail_at_the_end_of_each_clients_own_transaction() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let setup = "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1);
        CREATE TABLE t (a int, c int REFERENCES p DEFERRABLE INITIALLY DEFERRED)";
    let sql = "INSERT INTO t (a, c) VALUES ($1, $2)";
    let warm = |c: usize, r: usize| -> Vec<Step> {
        (0..4).map(|i| Step::extended(sql, &[Some(&number(c, r, i).to_string()), Some("1")])).collect()
    };
    let scripts: Vec<Vec<Step>> = (0..CLIENTS)
        .map(|c| {
            (0..6)
                .map(|i| {
                    let parent = if (c, i) == (3, 2) { "2" } else { "1" };
                    Step::extended(sql, &[Some(&(c * 10 + i).to_string()), Some(parent)])
                })
                .collect()
        })
        .collect();
    let seen = same_as_direct(pg, &proxy, setup, warm, "", &scripts);
    assert_eq!(seen.iter().map(|s| errors(s).len()).sum::<usize>(), 1);
    // The tag came first, as it does directly.
    assert_eq!(tags(&seen[3]).len(), 6);
}

#[test]
fn ddl_after_the_table_was_learnt_gives_exact_results() {
    let pg = Postgres::shared();
    let setup = "CREATE TABLE t (a int, b text); CREATE TABLE l (what text);
        CREATE SCHEMA s; ALTER DATABASE current SET search_path = s, public;";
    let trigger = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO l VALUES (NEW.b); RETURN NEW; END';";
    let changes: Vec<String> = vec![
        format!("{trigger} CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()"),
        format!("{trigger} CREATE TRIGGER g AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION f()"),
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE NOTICE ''%'', NEW.b; RETURN NULL; END';
         CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()".into(),
        "CREATE RULE r AS ON INSERT TO t DO ALSO INSERT INTO l VALUES (NEW.b)".into(),
        "CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING".into(),
        "ALTER TABLE t ALTER a TYPE text".into(),
        "ALTER TABLE t ALTER a TYPE boolean USING true".into(),
        "ALTER TABLE t ALTER a TYPE float8".into(),
        "ALTER TABLE t ALTER b TYPE varchar(2)".into(),
        "ALTER TABLE t ADD c text DEFAULT current_query()".into(),
        "ALTER TABLE t ADD CHECK (current_setting('application_name') <> 'pgsluice')".into(),
        "ALTER TABLE t ALTER a ADD GENERATED ALWAYS AS IDENTITY".replace("ALTER a ADD", "ALTER a SET NOT NULL, ALTER a ADD"),
        "ALTER TABLE t DROP COLUMN b".into(),
        "ALTER TABLE t RENAME b TO bb".into(),
        "ALTER TABLE t RENAME b TO x; ALTER TABLE t RENAME a TO b; ALTER TABLE t RENAME x TO a".into(),
        "DROP TABLE t".into(),
        "DROP TABLE t; CREATE TABLE t (b text, a bigint, c int DEFAULT 3)".into(),
        "ALTER TABLE t RENAME TO l2; ALTER TABLE l RENAME TO t; ALTER TABLE t ADD a int, ADD b text".into(),
        "CREATE TABLE s.t (a int, b text)".into(),
        "DROP TABLE t; CREATE VIEW t AS SELECT 1 AS a, 'x'::text AS b".into(),
        "ALTER TABLE t ADD PRIMARY KEY (a), ADD FOREIGN KEY (a) REFERENCES t (a)".into(),
        "ALTER TABLE t ADD UNIQUE (b)".into(),
        "CREATE DOMAIN d AS int NOT NULL; ALTER TABLE t ADD z d NOT NULL DEFAULT 1; ALTER TABLE t ALTER z DROP DEFAULT".into(),
    ];
    let proxy = Proxy::to(pg, "", "", "");
    let setup = setup.replace("ALTER DATABASE current SET search_path = s, public;", "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = s, public', current_database()); END$$;");
    for change in &changes {
        let setup = &setup;
        let simple = |a: usize, b: &str| Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, '{b}')"));
        let warm = |c: usize, r: usize| (0..4).map(|i| simple(number(c, r, i), "warm")).collect::<Vec<_>>();
        // Leading zeros: text keeps them in a COPY and not in an INSERT.
        let scripts: Vec<Vec<Step>> = (0..4)
            .map(|c| {
                (0..4)
                    .map(|i| Step::query(&format!("INSERT INTO t (a, b) VALUES (0{c}{i}, 'v{c}{i}')")))
                    .collect()
            })
            .collect();
        same_as_direct(pg, &proxy, setup, warm, change, &scripts);
    }
}

#[test]
fn parameters_after_ddl_are_exact() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let sql = "INSERT INTO t (a, b) VALUES ($1, $2)";
    for change in [
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.b := NEW.b || ''!''; RETURN NEW; END';
         CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "ALTER TABLE t ALTER b TYPE varchar(3)",
        "ALTER TABLE t ADD CHECK (b <> 'v12')",
        "ALTER TABLE t DROP COLUMN b",
        "ALTER TABLE t ALTER a TYPE bigint",
        "ALTER TABLE t ALTER a TYPE text",
        "DROP TABLE t",
        "CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING",
    ] {
        let warm = |c: usize, r: usize| -> Vec<Step> {
            (0..4).map(|i| Step::extended(sql, &[Some(&number(c, r, i).to_string()), Some("w")])).collect()
        };
        let scripts: Vec<Vec<Step>> = (0..4)
            .map(|c| {
                (0..4).map(|i| Step::extended(sql, &[Some(&format!("0{c}{i}")), Some(&format!("v{c}{i}"))])).collect()
            })
            .collect();
        same_as_direct(pg, &proxy, "CREATE TABLE t (a int, b text)", warm, change, &scripts);
    }
}

#[test]
fn a_statement_parsed_anew_is_described_by_todays_types() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let rows = |c: usize, r: usize| -> Vec<Step> {
        (0..4).map(|i| insert_step(Form::DescribesStatement, "t", number(c, r, i), "x")).collect()
    };
    until_poured(pg, &mut clients, &db, "t", rows);
    pg.psql(&db, "TRUNCATE t; ALTER TABLE t ALTER a TYPE bigint");
    until_poured(pg, &mut clients, &db, "t", rows);
    let step = insert_step(Form::DescribesStatement, "t", 1, "x");
    let expected = comparable(&crowd::run(&mut crowd_of(pg.port(), &db, 1), &[vec![step]], false)[0]);
    for seen in crowd::run(&mut clients, &vec![rows(0, 0); CLIENTS], false) {
        for answer in comparable(&seen).split_inclusive("Z I\n") {
            assert_eq!(answer, expected);
        }
    }
}

#[test]
fn privileges_are_the_clients_own() {
    let pg = Postgres::shared();
    pg.psql("postgres", "CREATE ROLE pour_low LOGIN");
    let db = pg.fresh_database("CREATE TABLE t (a int, b text); GRANT INSERT ON t TO pour_low");
    let proxy = Proxy::to(pg, "", "", "");
    let login =
        |port: u16| Raw::login_as(port, &[("user", "pour_low"), ("database", &db)], "").expect("login");
    let mut clients: Vec<Raw> = (0..CLIENTS).map(|_| login(proxy.port())).collect();
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..4)
            .map(|i| Step::query(&format!("INSERT INTO t (a, b) VALUES ({}, 'x')", number(c, r, i))))
            .collect()
    });
    pg.psql(&db, "TRUNCATE t");
    for (change, refused) in [
        ("REVOKE INSERT ON t FROM pour_low; GRANT INSERT (a) ON t TO pour_low", true),
        ("GRANT INSERT ON t TO pour_low", false),
        ("REVOKE INSERT ON t FROM pour_low", true),
        ("GRANT INSERT ON t TO pour_low; ALTER TABLE t ENABLE ROW LEVEL SECURITY", true),
        ("CREATE POLICY p ON t FOR INSERT WITH CHECK (a >= 0)", false),
    ] {
        pg.psql(&db, change);
        let scripts: Vec<Vec<Step>> = (0..CLIENTS)
            .map(|c| vec![Step::query(&format!("INSERT INTO t (a, b) VALUES ({c}, 'x')"))])
            .collect();
        let direct = login(pg.port()).query("INSERT INTO t (a, b) VALUES (0, 'x')");
        pg.psql(&db, "DELETE FROM t");
        for seen in crowd::run(&mut clients, &scripts, true) {
            assert_eq!(comparable(&seen), comparable(&direct), "{change}");
            assert_eq!(!errors(&seen).is_empty(), refused, "{change}");
        }
        let rows = pg.psql(&db, "SELECT count(*) FROM t");
        assert_eq!(rows.trim(), if refused { "0" } else { "8" }, "{change}");
    }
}

fn states(messages: &[Message]) -> Vec<String> {
    messages.iter().filter(|m| m.tag == backend::ERROR_RESPONSE).map(Message::sqlstate).collect()
}

/// An INSERT asks for the privilege to insert into a column that it names with DEFAULT; a COPY would not name it. The privilege for the
/// whole table may be that of a role whose membership ends, without a trace at the table.
#[test]
fn a_column_that_is_given_its_default_takes_a_privilege() {
    let pg = Postgres::shared();
    pg.psql("postgres", "CREATE ROLE pour_whole; CREATE ROLE pour_part LOGIN IN ROLE pour_whole");
    let db = pg.fresh_database(
        "CREATE TABLE t (a int, b int, c int DEFAULT 7); \
         GRANT INSERT ON t TO pour_whole; GRANT INSERT (a, b) ON t TO pour_part",
    );
    let login =
        |port: u16| Raw::login_as(port, &[("user", "pour_part"), ("database", &db)], "").expect("login");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nlinger = \"5ms\"");
    let mut clients: Vec<Raw> = (0..CLIENTS).map(|_| login(proxy.port())).collect();
    let row = |n: usize| format!("INSERT INTO t (a, b, c) VALUES ({n}, 1, DEFAULT)");
    let rows = || (0..12).map(|n| [n.to_string(), "1".to_owned()]);
    let run = Step::pipeline("INSERT INTO t (a, b, c) VALUES ($1, $2, DEFAULT)", rows(), false);
    for refused in [false, true] {
        if refused {
            pg.psql("postgres", "REVOKE pour_whole FROM pour_part");
        }
        assert_eq!(states(&login(pg.port()).query(&row(0))) == ["42501"], refused);
        for step in [Step::query(&row(1)), run.clone()] {
            // It takes a while until a table is known.
            for _ in 0..40 {
                for seen in crowd::run(&mut clients, &vec![vec![step.clone()]; CLIENTS], true) {
                    assert_eq!(states(&seen) == ["42501"], refused);
                }
            }
        }
    }
    // Where nobody has it for single columns, the one is the other.
    pg.psql(&db, "REVOKE INSERT (a, b) ON t FROM pour_part; GRANT INSERT ON t TO pour_part; TRUNCATE t");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients: Vec<Raw> = (0..CLIENTS).map(|_| login(proxy.port())).collect();
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..4).map(|i| Step::query(&row(number(c, r, i)))).collect()
    });
}

/// Row security that comes to apply to a role changes nothing about the table, and most releases of PostgreSQL do not plan for it
/// again what was prepared before (18.4, not 15.20): an INSERT of many VALUES, or one that shares a transaction, would go on as if the role could still bypass it.
#[test]
fn a_role_that_bypasses_row_security_no_longer_is_bound_by_it() {
    let pg = Postgres::shared();
    pg.psql("postgres", "CREATE ROLE pour_owner; CREATE ROLE pour_bound LOGIN");
    let db = pg.fresh_database(
        "CREATE TABLE t (a int, b text); ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t OWNER TO pour_owner; \
         GRANT ALL ON t TO pour_bound; CREATE POLICY p ON t FOR SELECT USING (true)",
    );
    for (free, bound) in [
        ("ALTER ROLE pour_bound BYPASSRLS", "ALTER ROLE pour_bound NOBYPASSRLS"),
        ("ALTER ROLE pour_bound SUPERUSER", "ALTER ROLE pour_bound NOSUPERUSER"),
        ("GRANT pour_owner TO pour_bound", "REVOKE pour_owner FROM pour_bound"),
    ] {
        let rows = (0..12).map(|n| [n.to_string(), "x".to_owned()]);
        let run = Step::pipeline("INSERT INTO t (a, b) VALUES ($1, $2)", rows, false);
        let one = Step::extended("INSERT INTO t (a, b) VALUES ($1, $2) RETURNING a", &[Some("1"), Some("x")]);
        for (plan, clients, step) in [("values", 1, run), ("pipelined", CLIENTS, one)] {
            pg.psql(&db, free);
            let proxy = Proxy::to(pg, "default_pool_size = 1", "", "[coalesce]\nlinger = \"5ms\"");
            let mut console = Raw::login(proxy.port(), "pgsluice");
            let login = [("user", "pour_bound"), ("database", db.as_str())];
            let login = || Raw::login_as(proxy.port(), &login, "").expect("login");
            let mut clients: Vec<Raw> = (0..clients).map(|_| login()).collect();
            let mut states = || {
                clients.iter_mut().for_each(|client| client.send(&step.bytes));
                clients.iter_mut().flat_map(|client| states(&client.read_until_ready())).collect::<Vec<_>>()
            };
            let plan = [("plan", plan), ("outcome", "committed")];
            let poured = poll(PATIENCE, || {
                assert_eq!(states(), [""; 0]);
                find(&mut console, "SHOW COALESCE_FLUSHES", &plan)
            });
            assert!(poured.is_some(), "{plan:?}");
            pg.psql(&db, &format!("{bound}; DELETE FROM t"));
            let states = states();
            assert!(!states.is_empty() && states.iter().all(|state| state == "42501"), "{bound}: {states:?}");
            assert_eq!(pg.psql(&db, "SELECT count(*) FROM t").trim(), "0", "{bound}");
        }
    }
}

/// What is replaced is no part of the table: it is planned for as before, and its statements are not analysed again.
#[test]
fn a_native_function_that_is_replaced_is_called_by_each_clients_own_insert() {
    let pg = Postgres::shared();
    let native =
        "CREATE OR REPLACE FUNCTION how(text) RETURNS text LANGUAGE internal IMMUTABLE STRICT AS 'upper'";
    let reads = "CREATE OR REPLACE FUNCTION how(text) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS \
         $$BEGIN RETURN left(current_query(), 6); END$$";
    for table in [
        "CREATE TABLE t (a int, b text, c text GENERATED ALWAYS AS (how(b)) STORED)",
        "CREATE TABLE t (a int, b text, c text DEFAULT how('w'))",
    ] {
        let db = pg.fresh_database(&format!("{native}; {table}"));
        let proxy = Proxy::to(pg, "", "", "[coalesce]\nlinger = \"5ms\"");
        let mut clients = warmed(pg, &proxy, &db, CLIENTS);
        pg.psql(&db, reads);
        for _ in 0..3 {
            let script = vec![Step::query("INSERT INTO t (a, b) VALUES (1, 'w')")];
            for seen in crowd::run(&mut clients, &vec![script; CLIENTS], true) {
                assert!(errors(&seen).is_empty(), "{}", comparable(&seen));
            }
        }
        let made = pg.psql(&db, "SELECT c, count(*) FROM t GROUP BY 1");
        assert_eq!(made.trim(), format!("INSERT|{}", 3 * CLIENTS), "{table}");
    }
}

/// The server tells such a change with its next answer, and the answer to a flush is no client's.
#[test]
fn a_reload_that_changes_what_strings_mean_is_heard_by_who_is_poured() {
    let pg = &Postgres::start(PgOptions::default());
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nlinger = \"5ms\"");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    pg.psql(&db, "TRUNCATE t");
    pg.psql(&db, "ALTER SYSTEM SET standard_conforming_strings = off");
    pg.psql(&db, "SELECT pg_reload_conf()");
    pg.wait_until(&db, "SELECT current_setting('standard_conforming_strings') = 'off'");
    clients.push(Raw::login(proxy.port(), &db));
    for _ in 0..3 {
        let script = vec![Step::query(r"INSERT INTO t (a, b) VALUES (1, 'a\\b')")];
        for seen in crowd::run(&mut clients, &vec![script; CLIENTS + 1], true) {
            assert!(errors(&seen).is_empty(), "{}", comparable(&seen));
        }
    }
    let lengths = pg.psql(&db, "SELECT length(b), count(*) FROM t GROUP BY 1");
    assert_eq!(lengths.trim(), format!("3|{}", 3 * (CLIENTS + 1)));
}

/// A library may say with each statement what it was: of a shared one that would show everybody's rows, of the guard what is ours.
#[test]
fn what_is_said_of_a_shared_statement_is_told_to_nobody() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let explained = [
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("auto_explain.log_level", "notice"),
    ];
    for (name, value) in explained {
        pg.psql(&db, &format!("ALTER DATABASE {db} SET {name} = '{value}'"));
    }
    for most in [0, 16] {
        let coalesce = format!("[coalesce]\nlinger = \"5ms\"\nvalues_max_rows = {most}");
        let proxy = Proxy::to(pg, "", "", &coalesce);
        let mut clients = warmed(pg, &proxy, &db, CLIENTS);
        let secret = |c: usize, round: usize| format!("secret {}.", number(c, round, 0));
        for round in 0..ROUNDS {
            let script = |c: usize| {
                let insert = format!("INSERT INTO t (a, b) VALUES ({}, '{}')", c, secret(c, round));
                vec![Step::query(&insert)]
            };
            let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
            for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
                assert_eq!(errors(seen), []);
                let told = comparable(seen);
                assert!(!told.contains("pg_catalog"), "{told}");
                let others = (0..CLIENTS).filter(|other| *other != c);
                others.for_each(|other| assert!(!told.contains(&secret(other, round)), "{told}"));
            }
        }
        let (rows, commands) = rows_and_commands(pg, &db, "t");
        assert!(commands < rows, "{rows} rows by {commands} commands");
        pg.psql(&db, "TRUNCATE t");
    }
}

/// Rounds of INSERTs of which all or none must be poured. Each client's own are explained to it, where `explained`.
fn rounds_explained(pg: &Postgres, db: &str, clients: &mut [Raw], explained: impl Fn(usize) -> bool) {
    for round in 0..ROUNDS {
        let script = |c| {
            let insert = format!("INSERT INTO t (a, b) VALUES ({}, 'of {c}')", number(c, round, 0));
            let params = [Some(number(c, round, 1).to_string()), Some(format!("of {c}"))];
            let params: Vec<_> = params.iter().map(Option::as_deref).collect();
            vec![Step::query(&insert), Step::extended("INSERT INTO t (a, b) VALUES ($1, $2)", &params)]
        };
        let scripts: Vec<_> = (0..clients.len()).map(script).collect();
        for (c, seen) in crowd::run(clients, &scripts, false).iter().enumerate() {
            assert_eq!((errors(seen), tags(seen).len()), (Vec::new(), 2));
            let notices = seen.iter().filter(|m| m.tag == backend::NOTICE_RESPONSE);
            let own = notices.filter(|m| m.field(b'M').contains("INSERT INTO t (a, b)")).count();
            assert_eq!(own, if explained(c) { 2 } else { 0 }, "{c}: {}", comparable(seen));
        }
    }
    let rows = pg.psql(db, "SELECT count(*) FROM t");
    assert_eq!(rows.trim(), (2 * ROUNDS * clients.len()).to_string());
}

const EXPLAINED: &str = "SET auto_explain.log_min_duration = 0; SET auto_explain.log_level = notice";

/// What it says then is about the client's own statement, and directly the client hears it.
#[test]
fn a_client_that_has_set_what_is_a_librarys_is_not_poured() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    pg.psql(&db, &format!("ALTER DATABASE {db} SET session_preload_libraries = 'auto_explain'"));
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nlinger = \"5ms\"");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    for client in &mut clients {
        client.rows("SET app.tenant = '5'");
        client.query(EXPLAINED);
    }
    rounds_explained(pg, &db, &mut clients, |_| true);
    let (rows, commands) = rows_and_commands(pg, &db, "t");
    assert_eq!(rows, commands);
    let mut console = Raw::login(proxy.port(), "pgbouncer");
    let reason = "session setting of a library: auto_explain.log_level";
    assert!(find(&mut console, "SHOW COALESCE_TABLES", &[("reason", reason)]).is_some());
}

/// Nobody reads them but expressions, and those are not poured.
#[test]
fn settings_that_are_nobodys_split_no_batches() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nlinger = \"5ms\"");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    for (c, client) in clients.iter_mut().enumerate().skip(1) {
        client.rows(&format!("SET app.tenant = '{c}'"));
        client.rows(&format!("SELECT set_config('auto_explain.log_level', 'notice', false), {c}"));
    }
    rounds_explained(pg, &db, &mut clients, |_| false);
    let (rows, commands) = rows_and_commands(pg, &db, "t");
    assert!(2 * commands < rows, "{rows} rows by {commands} commands");
    let together = "SELECT count(*) > 0 FROM (SELECT FROM t GROUP BY xmin::text HAVING bool_or(b = 'of 0') AND bool_or(b <> 'of 0')) x";
    assert_eq!(pg.psql(&db, together).trim(), "t");
}

/// What a transaction sets for itself may have the server, or a library, say something of each of its statements.
#[test]
fn what_is_said_of_each_statement_of_a_block_is_said_as_directly() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    pg.psql(&db, &format!("ALTER DATABASE {db} SET session_preload_libraries = 'auto_explain'"));
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nlinger = \"5ms\"");
    drop(warmed(pg, &proxy, &db, CLIENTS));
    let local = EXPLAINED.replace("SET ", "SET LOCAL ");
    for set in [local.as_str(), "SET LOCAL log_statement = 'all'; SET LOCAL client_min_messages = log"] {
        let [direct, through] = [pg.port(), proxy.port()].map(|port| {
            let mut client = Raw::login(port, &db);
            client.rows("BEGIN");
            client.rows(set);
            let rows = (0..20).map(|a| [a.to_string(), "x".to_owned()]);
            let Step { bytes, ready } = Step::pipeline(WITH_PARAMETERS, rows, false);
            client.send(&bytes);
            let told: Vec<_> = (0..ready).flat_map(|_| client.read_until_ready()).collect();
            client.rows("ROLLBACK");
            told.iter().filter(|message| message.tag == backend::NOTICE_RESPONSE).count()
        });
        assert!(direct >= 20, "{direct}: {set}");
        assert_eq!(through, direct, "{set}");
    }
}

/// It may look at each of the client's statements from then on, whatever the client has set.
#[test]
fn a_client_that_has_loaded_a_library_is_not_poured() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    for setting in EXPLAINED.split("; ") {
        pg.psql(&db, &format!("ALTER DATABASE {db} {setting}"));
    }
    let proxy = Proxy::to(pg, "default_pool_size = 1", "", "[coalesce]\nlinger = \"5ms\"");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    clients.iter_mut().for_each(|client| drop(client.rows("LOAD 'auto_explain'")));
    rounds_explained(pg, &db, &mut clients, |_| true);
}

const WITH_PARAMETERS: &str = "INSERT INTO t (a, b) VALUES ($1, $2)";

fn sync() -> Vec<u8> {
    let mut sync = Vec::new();
    frontend::put_empty(&mut sync, frontend::SYNC);
    sync
}

/// The messages of one row, without a Sync.
fn without_sync(sql: &str, a: &str) -> Vec<u8> {
    let Step { mut bytes, .. } = Step::extended(sql, &[Some(a), Some("x")]);
    bytes.truncate(bytes.len() - sync().len());
    bytes
}

/// Waits until rows of `WITH_PARAMETERS` are poured, or would be.
fn learnt(proxy: &Proxy, client: &mut Raw, a: &str) {
    client.extended(WITH_PARAMETERS, &[Some(a), Some("x")]);
    let mut console = Raw::login(proxy.port(), "pgbouncer");
    until(&mut console, "SHOW COALESCE_TABLES", &[("table", "public.t"), ("eligible", "yes")]);
}

/// Whoever sends no Sync for long may mean to: directly his statements are run as they come, and what they meet is told.
#[test]
fn a_unit_is_run_also_where_its_end_does_not_come() {
    let pg = Postgres::shared();
    for (coalesce, begun) in
        [("", false), ("", true), ("deferred = true", true), ("mode = \"shadow\"", false)]
    {
        let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
        let proxy = Proxy::to(pg, "", "", &format!("[coalesce]\n{coalesce}"));
        let mut client = Raw::login(proxy.port(), &db);
        learnt(&proxy, &mut client, "1");
        if begun {
            client.rows("BEGIN");
            assert_eq!(errors(&client.extended(WITH_PARAMETERS, &[Some("2"), Some("x")])), []);
        }
        client.send(&without_sync(WITH_PARAMETERS, "1"));
        let error = client.read_until(backend::ERROR_RESPONSE).pop().expect("an error");
        assert_eq!(error.sqlstate(), "23505", "{coalesce} {begun}");
        client.send(&sync());
        let status = client.read_until_ready().pop().expect("ReadyForQuery").body;
        assert_eq!(status, [if begun { b'E' } else { b'I' }], "{coalesce} {begun}");
    }
}

/// Waits until a server has got to INSERTs whose end is not here, or they are held. True: a server has.
fn are_run(pg: &Postgres, db: &str, console: &mut Raw) -> bool {
    let run = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE 'INSERT%')";
    let first = || match pg.psql(db, run).trim() {
        "t" => Some(true),
        _ => find(console, "SHOW MEM", &[("name", "coalesce_held"), ("used", "1")]).map(|_| false),
    };
    poll(PATIENCE, first).expect("held, or run")
}

/// So many rows without a Sync.
fn unit_of(rows: std::ops::Range<usize>) -> Vec<u8> {
    rows.flat_map(|a| without_sync(WITH_PARAMETERS, &a.to_string())).collect()
}

/// Directly each message shows the server that its client is not idle.
#[test]
fn who_sends_a_unit_is_not_idle_while_its_end_is_waited_for() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nflush_timeout = \"999ms\"");
    let mut client = Raw::login(proxy.port(), &db);
    learnt(&proxy, &mut client, "1");
    client.rows("SET idle_in_transaction_session_timeout = '900ms'");
    client.rows("BEGIN");
    client.send(&unit_of(2..4));
    client.send(&without_sync(WITH_PARAMETERS, "1"));
    let error = client.read_until(backend::ERROR_RESPONSE).pop().expect("an error");
    assert_eq!(error.sqlstate(), "23505", "{}", error.outline());
}

/// What cannot be poured waits for nothing.
#[test]
fn a_unit_is_not_held_where_it_would_not_be_poured() {
    let pg = Postgres::shared();
    for (coalesce, held) in
        [("", true), ("pipeline = false", false), ("pipeline = false\ngroup = false", false)]
    {
        let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
        let proxy = Proxy::to(pg, "", "", &format!("[coalesce]\nflush_timeout = \"999ms\"\n{coalesce}"));
        let mut client = Raw::login(proxy.port(), &db);
        learnt(&proxy, &mut client, "1");
        let mut console = Raw::login(proxy.port(), "pgsluice");
        let mut is_held = || {
            client.send(&unit_of(2..4));
            let run = are_run(pg, &db, &mut console);
            client.send(&sync());
            assert_eq!(tags(&client.read_until_ready()).len(), 2, "{coalesce}");
            !run
        };
        // On a busy machine it may be held no longer when we look.
        let seen = if held { poll(PATIENCE, || is_held().then_some(true)).is_some() } else { is_held() };
        assert_eq!(seen, held, "{coalesce}");
    }
}

/// Where `deferred` has waited for it, it goes as it was sent.
#[test]
fn the_end_of_a_unit_is_waited_for_once() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nflush_timeout = \"999ms\"\ndeferred = true");
    let mut client = Raw::login(proxy.port(), &db);
    learnt(&proxy, &mut client, "1");
    client.rows("BEGIN");
    assert_eq!(errors(&client.extended(WITH_PARAMETERS, &[Some("2"), Some("x")])), []);
    client.send(&unit_of(3..43));
    let begun = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid())";
    pg.wait_until(&db, begun);
    client.send(&sync());
    assert_eq!(tags(&client.read_until_ready()).len(), 40);
    client.rows("COMMIT");
    assert_eq!(rows_and_commands(pg, &db, "t"), (42, 42));
}

/// What a session holds is on the console.
#[test]
fn what_sessions_hold_is_shown() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\ndeferred = true");
    let mut client = Raw::login(proxy.port(), &db);
    learnt(&proxy, &mut client, "1");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let none = [("name", "coalesce_held"), ("used", "0"), ("memtotal", "0")];
    until(&mut console, "SHOW MEM", &none);
    client.rows("BEGIN");
    client.extended(WITH_PARAMETERS, &[Some("2"), Some("x")]);
    let held =
        find(&mut console, "SHOW MEM", &[("name", "coalesce_held"), ("used", "1")]).expect("one holds");
    assert!(held["memtotal"].parse::<usize>().expect("bytes") > WITH_PARAMETERS.len());
    client.rows("COMMIT");
    until(&mut console, "SHOW MEM", &none);
}

/// A reload that comes meanwhile is heeded.
#[test]
fn what_is_held_is_not_poured_where_a_reload_forbids_it() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let with =
        |more: &str| Proxy::config(pg, "", "", &format!("[coalesce]\nflush_timeout = \"999ms\"\n{more}"));
    let proxy = Proxy::start(&with(""));
    let mut client = Raw::login(proxy.port(), &db);
    learnt(&proxy, &mut client, "1");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let held = poll(PATIENCE, || {
        client.rows("BEGIN");
        client.send(&unit_of(2..42));
        if !are_run(pg, &db, &mut console) {
            return Some(());
        }
        // On a busy machine it may be held no longer when we look.
        client.send(&sync());
        client.read_until_ready();
        client.rows("ROLLBACK");
        None
    });
    held.expect("a unit is held");
    proxy.write_config(&with("pipeline = false"));
    tell(&mut console, "RELOAD");
    client.send(&sync());
    assert_eq!(tags(&client.read_until_ready()).len(), 40);
    client.rows("COMMIT");
    assert_eq!(rows_and_commands(pg, &db, "t"), (41, 41));
}

/// What waits for the end of its unit is in the memory of all clients, as what waits in a batch is.
#[test]
fn messages_that_are_held_are_in_the_budget() {
    let pg = Postgres::shared();
    let wordy = format!("/* {} */ {WITH_PARAMETERS}", "x".repeat(4000));
    for (budget, commands) in [("64kB", 40), ("4MB", 1)] {
        let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
        let bounds = format!("max_bytes = \"64kB\"\nbudget_bytes = \"{budget}\"");
        let proxy = Proxy::to(pg, "", "", &format!("[coalesce]\n{bounds}"));
        let mut client = Raw::login(proxy.port(), &db);
        learnt(&proxy, &mut client, "1");
        pg.psql(&db, "TRUNCATE t");
        let mut unit: Vec<u8> = (0..40).flat_map(|a| without_sync(&wordy, &a.to_string())).collect();
        unit.extend(sync());
        client.send(&unit);
        let seen = client.read_until_ready();
        assert_eq!((errors(&seen), tags(&seen).len()), (Vec::new(), 40));
        assert_eq!(rows_and_commands(pg, &db, "t"), (40, commands), "{budget}");
    }
}

/// Their schema stays on the connection, and says nothing about who comes next.
#[test]
fn a_connection_that_had_temporary_objects_is_asked_and_kept() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "default_pool_size = 1", "", "");
    let mut client = Raw::login(proxy.port(), &db);
    client.rows("CREATE TEMP TABLE tt (a int)");
    let server = client.value("SELECT pg_backend_pid()");
    client.rows("DROP TABLE tt");
    learnt(&proxy, &mut client, "1");
    assert_eq!(client.value("SELECT pg_backend_pid()"), server);
    assert_eq!(client.value("SELECT pg_my_temp_schema() <> 0").as_deref(), Some("t"));
}

/// The characters of a statement are settled when it is parsed.
#[test]
fn a_literal_that_was_parsed_in_another_encoding_stays_what_it_was() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "default_pool_size = 1", "", "[coalesce]\nlinger = \"5ms\"");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    for (at, name) in ["parsed in another", "parsed in this one"].into_iter().enumerate() {
        for client in &mut clients {
            client.rows(&format!("SET client_encoding = '{}'", ["LATIN1", "UTF8"][at]));
            client.send(&Step::prepare(name, "INSERT INTO t (a, b) VALUES ($1, '\u{e9}')").bytes);
            client.read_until_ready();
            client.rows("SET client_encoding = 'UTF8'");
        }
        for round in 0..ROUNDS {
            let script = |c: usize| vec![Step::execute(name, &[Some(&number(c, round, at).to_string())])];
            let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
            crowd::run(&mut clients, &scripts, false).iter().for_each(|seen| assert_eq!(errors(seen), []));
        }
        let lengths = pg.psql(&db, "SELECT length(b), count(*) FROM t GROUP BY 1");
        assert_eq!(lengths.trim(), format!("{}|{}", 2 - at, ROUNDS * CLIENTS), "{name}");
        let (rows, commands) = rows_and_commands(pg, &db, "t");
        assert_eq!(commands < rows, at == 1, "{name}: {rows} rows by {commands} commands");
        pg.psql(&db, "TRUNCATE t");
    }
}

/// What a string says is no part of what a statement is known by, in whatever encoding it is.
#[test]
fn strings_in_other_encodings_than_utf_8_are_poured_from_the_first_on() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nlinger = \"5ms\"");
    let mut clients = warmed(pg, &proxy, &db, CLIENTS);
    clients.iter_mut().for_each(|client| drop(client.rows("SET client_encoding = 'LATIN1'")));
    let forms: [(&[u8], &[u8]); 4] = [
        (b"'\xe9t\xe9')", "\u{e9}t\u{e9}".as_bytes()),
        (b"E'\xe9\\\\')", "\u{e9}\\".as_bytes()),
        (b"'\xe9'::text)", "\u{e9}".as_bytes()),
        (b"'\xfc') RETURNING a", "\u{fc}".as_bytes()),
    ];
    for (at, (value, stored)) in forms.into_iter().enumerate() {
        for round in 0..ROUNDS {
            let script = |c: usize| {
                let mut sql = format!("INSERT INTO t VALUES ({}, ", number(c, round, at)).into_bytes();
                sql.extend_from_slice(value);
                let mut bytes = Vec::new();
                frontend::put_query(&mut bytes, &sql);
                vec![Step { bytes, ready: 1 }]
            };
            let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
            crowd::run(&mut clients, &scripts, false).iter().for_each(|seen| assert_eq!(errors(seen), []));
        }
        let stored = std::str::from_utf8(stored).expect("UTF-8");
        assert_eq!(pg.psql(&db, "SELECT DISTINCT b FROM t").trim(), stored);
        let shared = pg.psql(&db, "SELECT count(*), count(DISTINCT xmin::text) FROM t");
        let (rows, transactions) = shared.trim().split_once('|').expect("two columns");
        assert_eq!(rows.parse(), Ok(ROUNDS * CLIENTS), "{stored}");
        assert_ne!(rows, transactions, "{stored}: none left with others");
        pg.psql(&db, "TRUNCATE t");
    }
}

/// What is said to be in no encoding a COPY stores unseen; an INSERT's bytes have to be characters of the server's.
#[test]
fn bytes_that_are_no_characters_are_refused_in_no_encoding_as_directly() {
    let pg = Postgres::shared();
    for way in ["asked for at login", "set", "of the database, since a moment ago"] {
        let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
        let proxy = Proxy::to(pg, "", "", "[coalesce]\nlinger = \"5ms\"");
        let mut clients = warmed(pg, &proxy, &db, CLIENTS);
        match way {
            "asked for at login" => {
                let parameters = [("user", "postgres"), ("database", &db), ("client_encoding", "SQL_ASCII")];
                clients.fill_with(|| Raw::login_as(proxy.port(), &parameters, "").expect("login"));
            }
            "set" => {
                clients.iter_mut().for_each(|client| drop(client.rows("SET client_encoding = 'SQL_ASCII'")))
            }
            _ => {
                pg.psql(&db, &format!("ALTER DATABASE {db} SET client_encoding = 'SQL_ASCII'"));
                let others =
                    format!("FROM pg_stat_activity WHERE datname = '{db}' AND pid <> pg_backend_pid()");
                pg.psql(&db, &format!("SELECT pg_terminate_backend(pid) {others}"));
                pg.wait_until(&db, &format!("SELECT count(*) = 0 {others}"));
            }
        }
        let sql = "INSERT INTO t (a, b) VALUES ($1, $2)";
        for round in 0..ROUNDS {
            let script = |c: usize| {
                let (good, bad) = (number(c, round, 0).to_string(), number(c, round, 1).to_string());
                let text = |a: &str| Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, 'x\u{1}y')"));
                let param = |a: &str| Step::extended(sql, &[Some(a), Some("x\u{1}y")]);
                let mut steps =
                    if round % 2 == 0 { [text(&good), text(&bad)] } else { [param(&good), param(&bad)] };
                // Half of a character.
                steps[1].bytes.iter_mut().filter(|byte| **byte == 1).for_each(|byte| *byte = 0xe9);
                // The first ones are good, so that there are others to leave with.
                if c.is_multiple_of(2) { steps[..1].to_vec() } else { steps.to_vec() }
            };
            let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
            for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
                let states: Vec<_> = errors(seen).iter().map(Message::sqlstate).collect();
                assert_eq!(
                    states,
                    if c % 2 == 0 { &[][..] } else { &["22021"] },
                    "{way}: {}",
                    comparable(seen)
                );
            }
        }
        let rows = pg.psql(&db, "SELECT count(*), count(*) FILTER (WHERE length(b) <> 3) FROM t");
        assert_eq!(rows.trim(), format!("{}|0", ROUNDS * CLIENTS), "{way}");
    }
}

#[test]
fn a_row_that_waits_for_a_lock_holds_up_no_stranger() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = warmed(pg, &proxy, &db, 16);
    let mut holder = Raw::login(pg.port(), &db);
    holder.rows("BEGIN");
    holder.rows("INSERT INTO t VALUES (1, 'held'), (2, 'held')");
    // Two wait for the holder, in whatever way they came to be sent; the others finish meanwhile.
    let mut blocked = clients.split_off(14);
    for (i, client) in blocked.iter_mut().enumerate() {
        send_insert(client, i + 1);
    }
    let scripts: Vec<Vec<Step>> = (0..14)
        .map(|c| {
            (0..20)
                .map(|i| Step::query(&format!("INSERT INTO t (a, b) VALUES ({}, 'free')", 100 + c * 100 + i)))
                .collect()
        })
        .collect();
    for seen in crowd::run(&mut clients, &scripts, false) {
        assert_eq!(tags(&seen).len(), 20, "{}", comparable(&seen));
    }
    waiting(pg, &db, 2);
    let (rows, commands) = rows_and_commands(pg, &db, "t");
    assert!(rows == 14 * 20 && commands < rows, "{rows} rows by {commands} commands");
    // One of them gets the row, as the holder ends; the other's key is taken as long as it is.
    holder.rows("ROLLBACK");
    for client in &mut blocked {
        assert_eq!(tags(&client.read_until_ready()), ["INSERT 0 1"]);
    }
    assert_eq!(pg.psql(&db, "SELECT count(*) FROM t").trim(), "282");
}

/// Whoever has the table locked may be waiting for another connection itself.
#[test]
fn a_question_about_a_locked_table_keeps_no_connection() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "default_pool_size = 2\nquery_wait_timeout = 10", "", "");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut clients = crowd_of(proxy.port(), &db, 3);
    clients[0].rows("BEGIN");
    clients[0].rows("TRUNCATE t");
    // Several at a time: may they be poured?
    let row = insert_step(Form::Reparsed, "t", 1, "x").bytes;
    clients[0].send(&row.repeat(3));
    for _ in 0..3 {
        assert_eq!(tags(&clients[0].read_until_ready()), ["INSERT 0 1"]);
    }
    let eligible = |console: &mut Raw, answer: &str| {
        console.rows("SHOW COALESCE_TABLES").iter().any(|row| row[2].as_deref() == Some(answer))
    };
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while pg.psql(&db, waits).trim() == "0" && !eligible(&mut console, "no") {
        std::thread::yield_now();
    }
    assert_eq!(clients[1].value("SELECT 'free'").as_deref(), Some("free"));
    clients[0].rows("COMMIT");
    // It is asked again.
    while !eligible(&mut console, "yes") {
        clients[1].send(&row);
        assert_eq!(tags(&clients[1].read_until_ready()), ["INSERT 0 1"]);
    }
    pg.psql(&db, "TRUNCATE t");
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..4).map(|i| insert_step(Form::Reparsed, "t", number(c, r, i), "x")).collect()
    });
}

#[test]
fn rows_held_up_by_a_locked_table_are_their_own_sessions_again() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = warmed(pg, &proxy, &db, 5);
    let mut holder = Raw::login(pg.port(), &db);
    holder.rows("BEGIN");
    holder.rows("LOCK TABLE t");
    for (i, client) in clients.iter_mut().enumerate() {
        send_insert(client, i);
    }
    waiting(pg, &db, 5);
    // Their own cancel requests reach them, and their own statements fail.
    clients[1].cancel_until_answered(proxy.port());
    let seen = clients[1].read_until_ready();
    assert_eq!(errors(&seen)[0].sqlstate(), "57014", "{}", comparable(&seen));
    holder.rows("COMMIT");
    for (i, client) in clients.iter_mut().enumerate().filter(|(i, _)| *i != 1) {
        assert_eq!(tags(&client.read_until_ready()), ["INSERT 0 1"], "client {i}");
    }
    assert_eq!(pg.psql(&db, "SELECT string_agg(a::text, ' ' ORDER BY a) FROM t").trim(), "0 2 3 4");
}

/// While one row waits in its own session, the others wait in the batch for as long as a flush may wait for a lock.
const LONG_BATCH: &str = "[coalesce]\nlock_timeout = \"800ms\"\nflush_timeout = \"900ms\"";

/// Of five clients the first waits for the holder's lock in its own session, three behind it; the fifth has said nothing.
fn four_of_five_wait(pg: &'static Postgres) -> (String, Proxy, Raw, Vec<Raw>) {
    let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let proxy = Proxy::to(pg, "", "", LONG_BATCH);
    let mut clients = warmed(pg, &proxy, &db, 5);
    let mut holder = Raw::login(pg.port(), &db);
    holder.rows("BEGIN");
    holder.rows("LOCK TABLE t");
    send_insert(&mut clients[0], 0);
    waiting(pg, &db, 1);
    for (i, client) in clients.iter_mut().enumerate().take(4).skip(1) {
        send_insert(client, i);
    }
    (db, proxy, holder, clients)
}

#[test]
fn a_cancelled_row_of_a_batch_is_not_stored() {
    let pg = Postgres::shared();
    let (db, proxy, mut holder, mut clients) = four_of_five_wait(pg);
    // A pipeline of which the first transaction alone is cancelled.
    let pipeline = pipeline("t", 10, 3, true, |_| {});
    clients[4].send(&pipeline.bytes);
    for client in &mut clients[2..5] {
        client.cancel_until_answered(proxy.port());
        let seen = client.read_until_ready();
        assert_eq!(errors(&seen)[0].sqlstate(), "57014", "{}", comparable(&seen));
    }
    holder.rows("COMMIT");
    for client in &mut clients[..2] {
        assert_eq!(tags(&client.read_until_ready()), ["INSERT 0 1"]);
    }
    // PostgreSQL sends two signals for a request; on a busy machine the second may strike the transaction behind.
    let mut stored = vec!["0", "1"];
    for key in ["11", "12"] {
        let seen = clients[4].read_until_ready();
        if tags(&seen) == ["INSERT 0 1"] {
            stored.push(key);
        } else {
            assert_eq!(errors(&seen)[0].sqlstate(), "57014", "{}", comparable(&seen));
        }
    }
    let rows = pg.psql(&db, "SELECT string_agg(a::text, ' ' ORDER BY a) FROM t");
    assert_eq!(rows.trim(), stored.join(" "));
    // A request that came too late does not strike what comes later.
    let (first, rest) = clients.split_at_mut(1);
    first[0].cancel(proxy.port());
    assert_eq!(first[0].value("SELECT 1"), Some("1".into()));
    assert_eq!(tags(&rest[1].query("INSERT INTO t (a, b) VALUES (99, 'after')")), ["INSERT 0 1"]);
}

#[test]
fn rows_of_a_client_that_left_are_stored_as_directly() {
    let pg = Postgres::shared();
    let (db, _proxy, mut holder, mut clients) = four_of_five_wait(pg);
    // Without its Sync it is no transaction: nothing may be stored of it.
    let half = pipeline("t", 10, 3, false, |_| {});
    clients[4].send(&half.bytes[..half.bytes.len() - 5]);
    let mut stay = clients.remove(1);
    drop(clients);
    holder.rows("COMMIT");
    assert_eq!(tags(&stay.read_until_ready()), ["INSERT 0 1"]);
    pg.wait_until(&db, "SELECT count(*) = 4 FROM t");
    assert_eq!(tags(&stay.query("INSERT INTO t (a, b) VALUES (5, 'x')")), ["INSERT 0 1"]);
    assert_eq!(pg.psql(&db, "SELECT string_agg(a::text, ' ' ORDER BY a) FROM t").trim(), "0 1 2 3 5");
}

/// Rounds that must not be poured: more than are ever needed to learn.
fn never_poured(pg: &Postgres, clients: &mut [Raw], db: &str, table: &str, rounds: std::ops::Range<usize>) {
    for r in rounds {
        let scripts: Vec<Vec<Step>> = (0..clients.len())
            .map(|c| {
                (0..4)
                    .map(|i| {
                        Step::query(&format!("INSERT INTO {table} (a, b) VALUES ({}, 'n')", number(c, r, i)))
                    })
                    .collect()
            })
            .collect();
        for seen in crowd::run(clients, &scripts, false) {
            assert_eq!(tags(&seen).len(), 4, "{}", comparable(&seen));
        }
    }
    let (rows, commands) = rows_and_commands(pg, db, table);
    assert_eq!(rows, commands, "{table} was poured");
}

fn poured(pg: &Postgres, clients: &mut [Raw], db: &str, table: &str) {
    pg.psql(db, &format!("TRUNCATE {table}"));
    until_poured(pg, clients, db, table, |c, r| {
        (0..4)
            .map(|i| Step::query(&format!("INSERT INTO {table} (a, b) VALUES ({}, 'p')", number(c, r, i))))
            .collect()
    });
    pg.psql(db, &format!("TRUNCATE {table}"));
}

#[test]
fn modes_hold_for_a_database_and_a_table_and_follow_a_reload() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text); CREATE TABLE u (a int, b text)");
    let config = |coalesce: &str| Proxy::config(pg, "", "", coalesce);
    let table = |mode: &str| format!("[coalesce.tables.\"public.t\"]\nmode = \"{mode}\"");
    let proxy = Proxy::start(&config("[coalesce]\nmode = \"off\""));
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    never_poured(pg, &mut clients, &db, "t", 0..6);
    for (coalesce, t_pours, u_pours) in [
        ("[coalesce]\nmode = \"on\"".to_owned(), true, true),
        ("[coalesce]\nmode = \"shadow\"".to_owned(), false, false),
        ("[coalesce]\nmode = \"on\"".to_owned(), true, true),
        (table("off"), false, true),
        (table("shadow"), false, true),
        (table("on"), true, true),
        (format!("[coalesce]\nmode = \"off\"\n{}", table("on")), false, false),
        ("[coalesce]\ngroup = false".to_owned(), false, false),
        (String::new(), true, true),
    ] {
        let reloads = proxy.log().matches("reloaded").count();
        proxy.reload(&config(&coalesce));
        let done = support::poll(support::PATIENCE, || {
            (proxy.log().matches("reloaded").count() > reloads).then_some(())
        });
        assert!(done.is_some(), "no reload in:\n{}", proxy.log());
        // Rows under way while it was reloaded belong to the old mode: none are.
        for (name, pours) in [("t", t_pours), ("u", u_pours)] {
            pg.psql(&db, &format!("TRUNCATE {name}"));
            if pours {
                poured(pg, &mut clients, &db, name);
            } else {
                never_poured(pg, &mut clients, &db, name, 0..6);
            }
        }
    }
}

#[test]
fn a_table_that_was_closed_is_poured_into_where_it_is_another_one_and_once_it_opens() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(
        "CREATE TABLE t (a int, b text); CREATE SCHEMA s; CREATE TABLE s.t (a int, b text);
         CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
         CREATE TRIGGER keep BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION keep()",
    );
    let config = Proxy::config(pg, "", "", "");
    let proxy = Proxy::start(&config);
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let literals = |c, r| -> Vec<Step> {
        let insert = |i| format!("INSERT INTO t (a, b) VALUES ({}, 'l')", number(c, r, i));
        (0..4).map(|i| Step::query(&insert(i))).collect()
    };
    let bound = |c, r| -> Vec<Step> {
        let values = |i| number(c, r, i).to_string();
        (0..4)
            .map(|i| Step::extended("INSERT INTO t (a, b) VALUES ($1, $2)", &[Some(&values(i)), Some("e")]))
            .collect()
    };
    let closed = |clients: &mut [Raw]| {
        for r in 0..6 {
            for script in [literals, bound as fn(usize, usize) -> Vec<Step>] {
                let scripts: Vec<_> = (0..clients.len()).map(|c| script(c, r)).collect();
                for seen in crowd::run(clients, &scripts, false) {
                    assert_eq!(tags(&seen).len(), 4, "{}", comparable(&seen));
                }
            }
        }
        let (rows, commands) = rows_and_commands(pg, &db, "public.t");
        assert_eq!(rows, commands, "the table with a trigger was poured");
    };
    let open = |clients: &mut [Raw], table: &str| {
        until_poured(pg, clients, &db, table, literals);
        pg.psql(&db, &format!("TRUNCATE {table}"));
        until_poured(pg, clients, &db, table, bound);
        pg.psql(&db, &format!("TRUNCATE {table}"));
    };
    closed(&mut clients);
    clients.iter_mut().for_each(|client| drop(client.rows("SET search_path = s, public")));
    open(&mut clients, "s.t");
    clients.iter_mut().for_each(|client| drop(client.rows("RESET search_path")));
    pg.psql(&db, "TRUNCATE public.t");
    closed(&mut clients);
    pg.psql(&db, "DROP TRIGGER keep ON public.t; TRUNCATE public.t");
    let reloads = proxy.log().matches("reloaded").count();
    proxy.reload(&config);
    let done = support::poll(support::PATIENCE, || {
        (proxy.log().matches("reloaded").count() > reloads).then_some(())
    });
    assert!(done.is_some(), "no reload in:\n{}", proxy.log());
    open(&mut clients, "public.t");
}

/// A BEGIN or COMMIT that declares a parameter wants a value for it.
#[test]
fn the_border_of_a_block_that_declares_a_parameter_is_none() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, 1);
    until_poured(pg, &mut clients, &db, "t", |c, r| vec![pipeline("t", number(c, r, 0), 20, false, |_| {})]);
    let mut through = clients.remove(0);
    let mut direct = Raw::login(pg.port(), &db);
    let word = |text: &str, types: &[u8], out: &mut Vec<u8>| {
        frontend::put_parse(out, b"", text.as_bytes(), types);
        frontend::put_bind_text(out, b"", &[]);
        frontend::put_execute(out, b"", 0);
    };
    // int4, not said, and none of a type.
    for types in [[0, 0, 0, 23], [0; 4], [0, 15, 66, 63]] {
        for (begin, commit) in [(&types[..], &[][..]), (&[], &types), (&[], &[])] {
            let mut block = Vec::new();
            word("BEGIN", begin, &mut block);
            let rows = pipeline("t", 1, 5, false, |_| {}).bytes;
            block.extend_from_slice(&rows[..rows.len() - frame::HEADER_BYTES]);
            word("COMMIT", commit, &mut block);
            frontend::put_empty(&mut block, frontend::SYNC);
            let [told, heard] = [&mut direct, &mut through].map(|raw| {
                pg.psql(&db, "TRUNCATE t");
                raw.send(&block);
                let answer = comparable(&raw.read_until_ready());
                raw.query("ROLLBACK");
                (answer, pg.psql(&db, "SELECT count(*) FROM t"))
            });
            assert_eq!(heard, told, "BEGIN {begin:?} COMMIT {commit:?}");
        }
    }
}

#[test]
fn in_statement_mode_a_block_is_refused_also_where_its_rows_are_poured() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "pool_mode = \"statement\"", "", "");
    for commits in [false, true] {
        let mut clients = crowd_of(proxy.port(), &db, 1);
        pg.psql(&db, "TRUNCATE t");
        until_poured(pg, &mut clients, &db, "t", |c, r| {
            vec![pipeline("t", number(c, r, 0), 20, false, |_| {})]
        });
        pg.psql(&db, "TRUNCATE t");
        let mut block = Step::query("BEGIN").bytes;
        block.extend_from_slice(&pipeline("t", 1, 5, false, |_| {}).bytes);
        if commits {
            block.extend_from_slice(&Step::query("COMMIT").bytes);
        }
        clients[0].send(&block);
        let last = clients[0].read_until_closed().pop().expect("an answer");
        assert_eq!((last.tag, last.sqlstate().as_str()), (backend::ERROR_RESPONSE, "25001"));
        // A COMMIT that was sent with them may have been run by then.
        assert!(commits || pg.psql(&db, "SELECT count(*) FROM t").trim() == "0");
    }
}

#[test]
fn pipelines_can_be_left_alone() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\npipeline = false");
    let mut clients = crowd_of(proxy.port(), &db, 1);
    for r in 0..10 {
        let step = pipeline("t", number(0, r, 0), 20, false, |_| {});
        let seen = crowd::run(&mut clients, &[vec![step]], false);
        assert_eq!(tags(&seen[0]).len(), 20);
    }
    assert_eq!(rows_and_commands(pg, &db, "t"), (200, 200));
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    poured(pg, &mut clients, &db, "t");
}

#[test]
fn a_spelling_that_comes_to_mean_another_table_goes_there() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text); CREATE SCHEMA s");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    for client in &mut clients {
        client.rows("SET search_path = s, public");
    }
    // Both spellings become one COPY; the qualified one is learnt first.
    for name in ["public.t", "t"] {
        pg.psql(&db, "TRUNCATE public.t");
        until_poured(pg, &mut clients, &db, "public.t", |c, r| {
            (0..4)
                .map(|i| Step::query(&format!("INSERT INTO {name} (a, b) VALUES ({}, 'x')", number(c, r, i))))
                .collect()
        });
    }
    pg.psql(&db, "TRUNCATE public.t; CREATE TABLE s.t (a int, b text)");
    let scripts: Vec<Vec<Step>> = (0..CLIENTS)
        .map(|c| {
            let name = if c % 2 == 0 { "public.t" } else { "t" };
            (0..4)
                .map(|i| Step::query(&format!("INSERT INTO {name} (a, b) VALUES ({}, 'y')", c * 10 + i)))
                .collect()
        })
        .collect();
    for seen in crowd::run(&mut clients, &scripts, false) {
        assert_eq!(tags(&seen).len(), 4);
    }
    let here = |table: &str, odd: u8| {
        pg.psql(&db, &format!("SELECT count(*) = 16 AND bool_and(a / 10 % 2 = {odd}) FROM {table}"))
            .trim()
            .to_owned()
    };
    assert_eq!((here("public.t", 0), here("s.t", 1)), ("t".into(), "t".into()));
}

/// The name without a schema still means the table that was planned for; what a COPY names is another one now.
#[test]
fn schemas_that_change_their_names_take_their_tables_along() {
    let pg = Postgres::shared();
    let table = "TABLE t (a int, b text)";
    let db =
        pg.fresh_database(&format!("CREATE SCHEMA live CREATE {table}; CREATE SCHEMA next CREATE {table}"));
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nvalues_max_rows = 0");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    for client in &mut clients {
        client.rows("SET search_path = old, live");
    }
    let insert = |n: usize| Step::query(&format!("INSERT INTO t (a, b) VALUES ({n}, 'x')"));
    until_poured(pg, &mut clients, &db, "live.t", |c, r| (0..4).map(|i| insert(number(c, r, i))).collect());
    pg.psql(&db, "TRUNCATE live.t");
    pg.psql(&db, "BEGIN; ALTER SCHEMA live RENAME TO old; ALTER SCHEMA next RENAME TO live; COMMIT");
    let scripts: Vec<Vec<Step>> =
        (0..CLIENTS).map(|c| (0..ROUNDS).map(|r| insert(number(c, r, 0))).collect()).collect();
    for seen in crowd::run(&mut clients, &scripts, false) {
        assert_eq!(tags(&seen).len(), ROUNDS);
    }
    let rows =
        ["old", "live"].map(|s| pg.psql(&db, &format!("SELECT count(*) FROM {s}.t")).trim().to_owned());
    assert_eq!(rows, [(CLIENTS * ROUNDS).to_string(), "0".into()]);
}

/// On one worker, which knows a text by its beginning: the database, the session's settings and the literals' kinds decide
/// what it means.
#[test]
fn the_same_text_is_another_statement_for_another_session() {
    let pg = Postgres::shared();
    let (db, other) = (
        pg.fresh_database(
            "CREATE TABLE t (a int, b text); CREATE SCHEMA s; CREATE TABLE s.t (a int, b text)",
        ),
        pg.fresh_database("CREATE TABLE t (a int, b text)"),
    );
    let proxy = Proxy::to(pg, "workers = 1", "", "");
    let places = [(&db, "public.t"), (&db, "s.t"), (&other, "public.t")];
    let mut clients: Vec<Raw> = Vec::new();
    for c in 0..3 * CLIENTS {
        let (database, table) = places[c % 3];
        let mut client = Raw::login(proxy.port(), database);
        if table == "s.t" {
            client.rows("SET search_path = s, public");
        }
        clients.push(client);
    }
    // Every literal that there may be in the place of the text, and what INSERT makes of it.
    let kinds = [
        ("'x'", "x"),
        ("NULL", "-"),
        ("DEFAULT", "-"),
        ("'it''s '", "it's "),
        ("'\\'", "\\"),
        ("e'\\\\ it''s\\t'", "\\ it's\t"),
    ];
    let numbers = |c: usize, r: usize| (0..kinds.len()).map(move |i| number(c, r, i));
    let mut sent = 0;
    let all_poured = (0..ROUNDS).any(|round| {
        let script = |c| {
            let insert = |(a, (literal, _)): (usize, &(&str, &str))| {
                Step::query(&format!("INSERT INTO t VALUES ({a}, {literal})"))
            };
            numbers(c, round).zip(&kinds).map(insert).collect::<Vec<_>>()
        };
        let scripts: Vec<_> = (0..clients.len()).map(script).collect();
        for seen in crowd::run(&mut clients, &scripts, false) {
            assert_eq!(tags(&seen), ["INSERT 0 1"; 6], "{}", comparable(&seen));
        }
        sent += CLIENTS * kinds.len();
        let seen = places.map(|(database, table)| rows_and_commands(pg, database, table));
        assert!(seen.iter().all(|(rows, _)| *rows == sent), "{seen:?}, sent {sent} to each");
        seen.iter().all(|(rows, commands)| commands < rows)
    });
    assert!(all_poured, "not each of the tables was poured into");
    for (at, (database, table)) in places.into_iter().enumerate() {
        let wrong = kinds.iter().enumerate().map(|(i, (_, b))| {
            let b = b.replace('\'', "''");
            format!("(a % 1000 = {i} AND coalesce(b, '-') <> '{b}')")
        });
        let wrong = wrong.collect::<Vec<_>>().join(" OR ");
        let strangers = format!("a / 1000 % 1000 % 3 <> {at}");
        let found = pg.psql(database, &format!("SELECT * FROM {table} WHERE {strangers} OR {wrong}"));
        assert_eq!(found.trim(), "", "{table}");
    }
}

#[test]
fn a_role_that_is_gone_never_lends_its_rows_to_the_login() {
    let pg = Postgres::shared();
    pg.psql("postgres", "CREATE ROLE pour_gone");
    let db = pg.fresh_database("CREATE TABLE t (a int, b text); GRANT INSERT ON t TO pour_gone");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    for client in &mut clients {
        client.rows("SET ROLE pour_gone");
    }
    until_poured(pg, &mut clients, &db, "t", |c, r| {
        (0..4)
            .map(|i| Step::query(&format!("INSERT INTO t (a, b) VALUES ({}, 'x')", number(c, r, i))))
            .collect()
    });
    pg.psql(&db, "TRUNCATE t; DROP OWNED BY pour_gone; DROP ROLE pour_gone");
    // New server connections cannot take the role on any more.
    pg.psql(
        "postgres",
        &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{db}'"),
    );
    let scripts = vec![vec![Step::query("INSERT INTO t (a, b) VALUES (1, 'y')")]; CLIENTS];
    for seen in crowd::run(&mut clients, &scripts, true) {
        assert!(tags(&seen).is_empty(), "{}", comparable(&seen));
    }
    assert_eq!(pg.psql(&db, "SELECT count(*) FROM t").trim(), "0");
}

/// Every fourth client sends `odd` rows, each twice, the others plain ones, all at once. How many errors they heard, as directly.
fn errors_of_odd_rows<R: Copy>(
    setup: &str,
    row: impl Fn(usize, R) -> Step,
    [warm, plain]: [R; 2],
    odd: &[R],
) -> usize {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let warm = |c: usize, r: usize| -> Vec<Step> { (0..4).map(|i| row(number(c, r, i), warm)).collect() };
    let rows = 2 * odd.len();
    let value = |c: usize, i: usize| if c % 4 == 3 { odd[i % odd.len()] } else { plain };
    let script = |c: usize| (0..rows).map(|i| row(c * 100 + i, value(c, i))).collect();
    let scripts: Vec<Vec<Step>> = (0..CLIENTS).map(script).collect();
    let seen = same_as_direct(pg, &proxy, setup, warm, "", &scripts);
    seen.iter().map(|s| errors(s).len()).sum()
}

/// A text that is cast is read by the type's own input, as a COPY's field is.
#[test]
fn texts_that_are_cast_are_poured() {
    let setup =
        "CREATE TYPE \"Mood\" AS ENUM ('ok', 'sad'); CREATE SCHEMA s; CREATE TYPE s.mood AS ENUM ('so');
        CREATE TABLE t (a int, b \"Mood\", c jsonb, d timestamptz(0), e text[], f numeric(5, 2), g s.mood)";
    let prisma = "$1, CAST($2::text AS \"public\".\"Mood\"), $3::varchar::jsonb, CAST($4::text AS timestamptz), $5, $6, NULL::s.mood";
    let jooq =
        "$1, $2::\"Mood\", CAST($3 AS jsonb), cast($4 as timestamp with time zone), cast($5 as text[]),
        cast($6 as numeric), cast(null as s.mood)";
    for (values, types) in
        [(prisma, &[23][..]), (jooq, &[23, 1043, 1043, 1043, 1043, 1043]), (jooq, &[0, 25, 25, 25, 25, 25])]
    {
        let sql = format!("INSERT INTO t (a, b, c, d, e, f, g) VALUES ({values})");
        let row = |a: usize, [b, c, d, e, f]: [&str; 5]| {
            let a = a.to_string();
            Step::typed(&sql, types, &[Some(&a), Some(b), Some(c), Some(d), Some(e), Some(f)])
        };
        let usual = [
            ["ok", "{\"a\": 1}", "2024-02-29 12:00:00.5+02", "{a,NULL}", "1.005"],
            ["sad", "[]", "epoch", "{}", "-0"],
        ];
        let odd = [
            ["OK", "1", "2024-02-29", "{}", "1"],
            ["ok", "{a}", "2024-02-29", "{}", "1"],
            ["ok", "1", "2024-02-30", "{}", "1"],
            ["ok", "1", "2024-02-29", "{a", "1"],
            ["ok", "1", "2024-02-29", "{}", "12345"],
            ["ok", "1", "infinity", "{\"\\\\\"}", "NaN"],
        ];
        assert_eq!(errors_of_odd_rows(setup, row, usual, &odd), CLIENTS / 4 * 10, "{values} {types:?}");
    }
}

/// Numbers that are integers first.
#[test]
fn integers_for_other_numbers_are_poured() {
    let setup = "CREATE DOMAIN small AS numeric(4, 1); CREATE TABLE t (a bigint, b numeric, c small, d int, e bigint, f float8, g float4, h int[], i text[])";
    let parameters =
        "INSERT INTO t (a, b, c, d, f, g, h, i) VALUES ($1, $2, $3, CAST($4 AS bigint), $5, $6, $7, $8)";
    let row = |a: usize, [b, c, d]: [&str; 3]| {
        if a.is_multiple_of(2) {
            let types = &[23, 20, 21, 20, 20, 21, 1005, 1015];
            let (a, list) = (a.to_string(), format!("{{{c},NULL}}"));
            let values = [&*a, b, c, d, b, c, &list, &list].map(Some);
            return Step::typed(parameters, types, &values);
        }
        Step::query(&format!(
            "INSERT INTO t VALUES (('{a}'::int4), '{b}'::int8, CAST('{c}' AS int2), ('{d}'::bigint), NULL::int, '{b}'::int8, '{c}'::int2, '{{{c}}}', '{{}}')"
        ))
    };
    let usual = [["9223372036854775807", "7", "-7"], ["-0", "-99", "+5"]];
    let odd = [
        ["9223372036854775808", "1", "1"],
        ["1", "32768", "1"],
        ["1", "1000", "1"],
        ["1", "1", "2147483648"],
        [" 1 ", "1", "1"],
        ["1.0", "1", "1"],
    ];
    assert_eq!(errors_of_odd_rows(setup, row, usual, &odd), CLIENTS / 4 * 10);
}

/// Arrays of other texts and integers, integers for floats, and an array that a prepared statement names the type of.
#[test]
fn arrays_of_other_types_are_poured() {
    let setup =
        "CREATE TABLE t (a int, b text[], c varchar(3)[], d bigint[], e int[], f float8, g real, h int[])";
    let sql = "INSERT INTO t VALUES ($1, $2, $3, $4::int2[], $5, $6, $7, '{1,2}'::int[])";
    let row = |a: usize, [b, c, d, e, f, g]: [&str; 6]| {
        let a = a.to_string();
        let params = [&a, b, c, d, e, f, g].map(Some);
        Step::typed(sql, &[23, 1015, 1009, 1005, 1016, 20, 23], &params)
    };
    let usual = [
        ["{a,NULL}", "{abc}", "{1,-2,NULL}", "{{1},{2}}", "9007199254740993", "16777217"],
        ["{}", "{\"b,\"}", "{}", "{-999999999}", "-7", "007"],
    ];
    let odd = [
        ["{}", "{}", "{40000}", "{}", "1", "1"],
        ["{}", "{}", "{}", "{5000000000}", "1", "1"],
        ["{}", "{abcd}", "{}", "{}", "1", "1"],
        ["{}", "{}", "{}", "{}", "1", "1.5"],
        ["[2:3]={x,y}", "{\"abc  \"}", "[2:3]={1,2}", "{}", "-0", "-0"],
    ];
    assert_eq!(errors_of_odd_rows(setup, row, usual, &odd), CLIENTS / 4 * 8);
}

/// What generators of SQL write behind a parameter computes nothing, and so costs nothing.
#[test]
fn parameters_with_the_names_of_their_types_are_poured() {
    let setup = "CREATE TABLE t (a int, b varchar(5), c timestamptz, d numeric(6,2), e bigint)";
    let behind = "$1::INTEGER, $2::VARCHAR, $3::TIMESTAMP WITH TIME ZONE, $4::NUMERIC(6, 2), $5::BIGINT";
    // As jOOQ writes it; and in parentheses.
    let cast = "CAST($1 AS INTEGER), cast($2 as varchar), cast($3 as timestamp with time zone), (CAST($4 AS NUMERIC(6, 2))), ($5)";
    for values in [behind, cast] {
        names_of_types_are_poured(setup, &format!("INSERT INTO t (a, b, c, d, e) VALUES ({values})"));
    }
}

fn names_of_types_are_poured(setup: &str, sql: &str) {
    let row = |a: usize, [b, c, d]: [&str; 3]| {
        Step::extended(sql, &[Some(&a.to_string()), Some(b), Some(c), Some(d), Some("7")])
    };
    let usual = [["x", "2024-02-29 12:00:00+02", "1.005"], ["x", "2024-01-01", "-0.005"]];
    let odd = [
        ["abcde   ", "2024-02-29", "1.005"],
        ["abcdef", "2024-02-29", "1"],
        ["x", "nonesuch", "1"],
        ["x", "2024-02-29", "12345.6"],
        ["x", "infinity", "NaN"],
    ];
    assert_eq!(errors_of_odd_rows(setup, row, usual, &odd), CLIENTS / 4 * 6);
}

/// As psycopg writes the values that it binds itself; Django does so.
#[test]
fn strings_with_the_names_of_their_columns_types_are_poured() {
    let setup = "CREATE DOMAIN day AS date CHECK (VALUE > '2000-01-01');
        CREATE TABLE t (a int, b timestamptz, c uuid, d jsonb, e varchar(3), f day, g interval, h timestamp)";
    let row = |a: usize, [b, c, e, f]: [&str; 4]| {
        let c = format!("'{c}2e6b9d2-4f0a-4b7e-9c55-0c9d6d0f3e11'::uuid");
        // Each is written in three ways: the first as SQLAlchemy does behind psycopg2, the second as jOOQ does, the third as
        // pgjdbc with preferQueryMode=simple.
        Step::query(&match a % 3 {
            0 => format!(
                "INSERT INTO t VALUES ({a}, '{b}'::timestamptz, {c}::UUID, '{{\"a\": \"it''s\"}}'::jsonb::JSONB, '{e}'::text,
                    '{f}'::date, '1 day'::interval, '2024-02-29 12:00'::timestamp without time zone)"
            ),
            1 => format!(
                "INSERT INTO t VALUES ({a}, CAST('{b}' AS timestamptz), {c}, cast('{{\"a\": \"it''s\"}}' as jsonb), CAST('{e}' AS text),
                    CAST('{f}' AS date), CAST('1 day' AS interval), cast('2024-02-29 12:00' as timestamp without time zone))"
            ),
            _ => format!(
                "INSERT INTO t VALUES (('{a}'::int4), ('{b}'::timestamptz), ({c}), ('{{\"a\": \"it''s\"}}'::jsonb), ('{e}'),
                    ('{f}'::date), ('1 day'::interval), ('2024-02-29 12:00'))"
            ),
        })
    };
    let usual =
        [["2024-02-29 12:00:00+02", "a", "abc ", "2024-01-01"], ["2024-01-01", "a", "x", "2024-01-01"]];
    let odd = [
        ["nonesuch", "a", "x", "2024-01-01"],
        ["2024-02-30", "a", "x", "2024-01-01"],
        ["infinity", "x", "x", "2024-01-01"],
        ["2024-02-29", "a", "abcd", "2024-01-01"],
        ["2024-02-29", "a", "x", "1999-01-01"],
        ["2024-02-29", "b", "", "infinity"],
    ];
    assert_eq!(errors_of_odd_rows(setup, row, usual, &odd), CLIENTS / 4 * 10);
}

/// A name that is looked for in `search_path` may be another type's there, and a declared type may be computed with.
#[test]
fn parameters_that_are_computed_with_are_not_poured() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let cases: [(&str, &str, &[u32]); 7] = [
        ("SET search_path = s, pg_catalog, public", "$2::text", &[]),
        // A user's cast.
        ("", "$2::text::mood", &[]),
        ("SET search_path = s, public", "$2::mood", &[23, 1043]),
        ("", "$2::SMALLINT", &[23, 23]),
        ("", "$2::DATE", &[23, 1114]),
        ("", "$2::text::INTEGER", &[23, 23]),
        ("", "$2", &[23, 1005]),
    ];
    for (set, value, types) in cases {
        let setup = "CREATE SCHEMA s; CREATE DOMAIN s.text AS pg_catalog.text CHECK (VALUE <> '7');
            CREATE TYPE mood AS ENUM ('6', '8'); CREATE DOMAIN s.mood AS public.mood CHECK (VALUE <> '8');
            CREATE FUNCTION felt(text) RETURNS mood LANGUAGE sql AS $$SELECT mood '8'$$;
            CREATE CAST (text AS mood) WITH FUNCTION felt(text);
            CREATE FUNCTION twelve(smallint[]) RETURNS int[] LANGUAGE sql AS $$SELECT '{12}'::int[]$$;
            CREATE CAST (smallint[] AS int[]) WITH FUNCTION twelve(smallint[]) AS ASSIGNMENT;
            CREATE TABLE t (a int, b text, c int, d smallint, e date, f mood, g int[])";
        let column = match value {
            "$2::text" => "b",
            "$2::text::mood" | "$2::mood" => "f",
            "$2::text::INTEGER" => "c",
            "$2::SMALLINT" => "d",
            "$2" => "g",
            _ => "e",
        };
        let sql = format!("INSERT INTO t (a, {column}) VALUES ($1::int, {value})");
        let values = match column {
            "e" => ["2024-02-29 12:00:00", "nonesuch"],
            "g" => ["{6}", "{40000}"],
            _ => ["6", "7"],
        };
        let script = |c: usize| -> Vec<Step> {
            let mut steps = if set.is_empty() { Vec::new() } else { vec![Step::query(set)] };
            steps.extend((0..20).map(|i| {
                let params = [(c * 100 + i).to_string(), values[usize::from(i % 10 == 9)].to_owned()];
                Step::typed(&sql, types, &params.each_ref().map(|param| Some(param.as_str())))
            }));
            steps
        };
        let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
        let (through, alone) = (pg.fresh_database(setup), pg.fresh_database(setup));
        let seen = crowd::run(&mut crowd_of(proxy.port(), &through, CLIENTS), &scripts, false);
        let expected = crowd::run(&mut crowd_of(pg.port(), &alone, CLIENTS), &scripts, false);
        for (seen, expected) in seen.iter().zip(&expected) {
            assert_eq!(comparable(seen), comparable(expected), "{value} {types:?}");
        }
        let (rows, commands) = rows_and_commands(pg, &through, "t");
        assert_eq!(rows, commands, "{value} {types:?}: one by one");
    }
}

/// The Sync does not come: what is held for it has an end, and then goes to the server.
#[test]
fn a_pipeline_without_end_is_not_held_for_ever() {
    let (pg, sql) = (Postgres::shared(), "INSERT INTO t (a, b) VALUES ($1, $2)");
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, 1);
    until_poured(pg, &mut clients, &db, "t", |_, round| {
        let rows = (0..20).map(|i| [number(0, round, i).to_string(), "row".to_owned()]);
        vec![Step::pipeline(sql, rows, false)]
    });
    pg.psql(&db, "TRUNCATE t");
    let (value, mut client) = ("x".repeat(HELD_BYTES_MAX / 1000), clients.remove(0));
    let pipeline = Step::pipeline(sql, (0..1000).map(|a| [a.to_string(), value.clone()]), false).bytes;
    let (unit, sync) = pipeline.split_at(pipeline.len() - 5);
    assert!(unit.len() > HELD_BYTES_MAX);
    client.send(unit);
    let at_work = "pid <> pg_backend_pid() AND datname = current_database() AND state = 'active'";
    pg.wait_until(
        &db,
        &format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE {at_work} AND query LIKE 'INSERT%'"),
    );
    client.send(sync);
    assert_eq!(tags(&client.read_until_ready()), ["INSERT 0 1"; 1000]);
    assert_eq!(pg.psql(&db, "SELECT count(*), sum(a) FROM t").trim(), "1000|499500");
}
