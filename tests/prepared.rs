//! Prepared statements in transaction mode: a client's names are its own, on whichever server connection it is.

use std::io::{ErrorKind, Write as _};

use crate::support;
use pgsluice::limits::{PIPELINE_MAX, PREPARED_NAMES_MAX, PREPARED_TEXT_BYTES_MAX};
use pgsluice::wire::{backend as b, frame, frontend as f};
use support::console::tell;
use support::crowd::{comparable, put_bind_binary};
use support::{Message, PATIENCE, Postgres, Proxy, Raw, Step, outline, poll};

/// Appends the messages of one unit but its Sync.
type Unit<'a> = &'a dyn Fn(&mut Vec<u8>);

fn build(parts: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    parts(&mut out);
    out
}

fn sync(out: &mut Vec<u8>) {
    f::put_empty(out, f::SYNC);
}

fn tags(messages: &[Message]) -> String {
    messages.iter().map(|m| char::from(m.tag)).collect()
}

fn put_parse(out: &mut Vec<u8>, name: &str, sql: &str) {
    f::put_parse(out, name.as_bytes(), sql.as_bytes(), &[]);
}

fn put_run(out: &mut Vec<u8>, name: &str, params: &[&str]) {
    let params: Vec<_> = params.iter().map(|p| Some(p.as_bytes())).collect();
    f::put_bind_text(out, name.as_bytes(), &params);
    f::put_execute(out, b"", 0);
}

fn put_queries(out: &mut Vec<u8>, texts: &[&str]) {
    texts.iter().for_each(|text| f::put_query(out, text.as_bytes()));
}

fn put_close(out: &mut Vec<u8>, name: &str) {
    f::put_target(out, f::CLOSE, b'S', name.as_bytes());
}

fn ask(raw: &mut Raw, parts: impl FnOnce(&mut Vec<u8>)) -> Vec<Message> {
    raw.send(&build(|o| {
        parts(o);
        sync(o);
    }));
    raw.read_until_ready()
}

fn prepare(raw: &mut Raw, name: &str, sql: &str) {
    assert_eq!(tags(&ask(raw, |o| put_parse(o, name, sql))), "1Z", "{name}: {sql}");
}

/// The first column of the first row.
fn run(raw: &mut Raw, name: &str, params: &[&str]) -> String {
    let messages = ask(raw, |o| put_run(o, name, params));
    let row = messages.iter().find(|m| m.tag == b::DATA_ROW);
    let row = row.unwrap_or_else(|| panic!("{name}: {}", outline(&messages))).row();
    row.into_iter().next().flatten().unwrap_or_default()
}

fn failure(raw: &mut Raw, parts: impl FnOnce(&mut Vec<u8>)) -> String {
    let messages = ask(raw, parts);
    let error = messages.iter().find(|m| m.tag == b::ERROR_RESPONSE);
    error.unwrap_or_else(|| panic!("no error: {}", outline(&messages))).sqlstate()
}

/// Three server connections, used in turn, so that the next transaction is on another one.
fn rotating(general: &str) -> (&'static Postgres, Proxy, String) {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let general = format!("default_pool_size = 3\nmin_pool_size = 0\nserver_round_robin = true\n{general}");
    let proxy = Proxy::to(server, &general, "", "");
    // Three at a time open three.
    let mut raws: Vec<Raw> = (0..3).map(|_| Raw::login(proxy.port(), &database)).collect();
    for raw in &mut raws {
        raw.rows("BEGIN");
    }
    let mut pids: Vec<_> = raws.iter_mut().map(|raw| raw.value("SELECT pg_backend_pid()")).collect();
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), 3);
    for raw in &mut raws {
        raw.rows("COMMIT");
    }
    (server, proxy, database)
}

fn one(general: &str) -> (&'static Postgres, Proxy, String) {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, &format!("default_pool_size = 1\n{general}"), "", "");
    (server, proxy, database)
}

#[test]
fn a_named_statement_is_known_on_every_connection() {
    let (_, proxy, database) = rotating("");
    let mut raw = Raw::login(proxy.port(), &database);
    prepare(&mut raw, "s", "SELECT $1::int + 1, pg_backend_pid()");
    let mut pids = std::collections::BTreeSet::new();
    for n in 0..9 {
        let messages = ask(&mut raw, |o| put_run(o, "s", &[&n.to_string()]));
        assert_eq!(tags(&messages), "2DCZ", "nothing of ours is seen");
        let row = messages[1].row();
        assert_eq!(row[0], Some((n + 1).to_string()));
        pids.insert(row[1].clone());
    }
    let servers = || Raw::login(proxy.port(), "pgsluice").rows("SHOW SERVERS");
    assert_eq!(pids.len(), 3, "it was on every connection: {pids:?}; {:?}\n{}", servers(), proxy.log());
    // Described alone, where it is missing, too.
    for _ in 0..3 {
        let messages = ask(&mut raw, |o| f::put_target(o, f::DESCRIBE, b'S', b"s"));
        assert_eq!(tags(&messages), "tTZ");
    }
}

/// More answers owed than are held at a time, most of them our own, and nothing that makes the server send its one.
#[test]
fn a_unit_of_any_length_is_answered() {
    let (_, proxy, database) = one("");
    let mut raw = Raw::login(proxy.port(), &database);
    let turns = PIPELINE_MAX / 2 + 1000;
    let messages = ask(&mut raw, |o| {
        put_parse(o, "s", "SELECT 1");
        for _ in 0..turns {
            put_close(o, "s");
            put_parse(o, "s", "SELECT 1");
        }
    });
    assert_eq!(tags(&messages), format!("1{}Z", "31".repeat(turns)));
    assert_eq!(run(&mut raw, "s", &[]), "1");
}

/// The last answer that may be owed is to a message that goes on in pieces.
/// One text under many names costs pgsluice a name each.
#[test]
fn a_session_has_so_many_statements_and_no_more() {
    let (_, proxy, database) = one("");
    let mut raw = Raw::login(proxy.port(), &database);
    for from in (0..PREPARED_NAMES_MAX).step_by(4096) {
        let answer =
            ask(&mut raw, |o| (from..from + 4096).for_each(|n| put_parse(o, &n.to_string(), "SELECT 1")));
        assert_eq!(answer.len(), 4097);
    }
    assert_eq!(failure(&mut raw, |o| put_parse(o, "more", "SELECT 1")), "54000");
    ask(&mut raw, |o| put_close(o, "7"));
    prepare(&mut raw, "more", "SELECT 1");
    assert_eq!(run(&mut raw, "more", &[]), "1");
}

#[test]
fn a_long_message_at_the_end_of_what_may_be_owed_passes_whole() {
    let (_, proxy, database) = one("");
    let mut raw = Raw::login(proxy.port(), &database);
    let great = "x".repeat(1 << 20);
    let messages = ask(&mut raw, |o| {
        put_parse(o, "s", "SELECT 1");
        for _ in 0..(PIPELINE_MAX - 4) / 2 {
            put_close(o, "s");
            put_parse(o, "s", "SELECT 1");
        }
        put_parse(o, "", "SELECT length($1)");
        for _ in 0..3 {
            put_run(o, "", &[&great]);
        }
    });
    let lengths: Vec<_> = messages.iter().filter(|m| m.tag == b::DATA_ROW).map(|m| m.row()).collect();
    assert_eq!(lengths, vec![vec![Some(great.len().to_string())]; 3]);
}

/// PostgreSQL reads 63 bytes of a name.
#[test]
fn names_of_any_length_are_told_apart_as_far_as_directly() {
    let (server, proxy, database) = one("");
    let mut both = [Raw::login(server.port(), &database), Raw::login(proxy.port(), &database)];
    let long = "n".repeat(63);
    let named = |end: &str| format!("{long}{end}");
    for raw in &mut both {
        assert_eq!(tags(&ask(raw, |o| put_parse(o, &named("a"), "SELECT 1"))), "1Z");
        assert_eq!(run(raw, &named("b"), &[]), "1");
        assert_eq!(failure(raw, |o| put_parse(o, &named("c"), "SELECT 2")), "42P05");
        assert_eq!(failure(raw, |o| put_run(o, &long[1..], &[])), "26000");
        assert_eq!(tags(&ask(raw, |o| put_close(o, &long))), "3Z");
        assert_eq!(failure(raw, |o| put_run(o, &named("a"), &[])), "26000");
    }
    // Nor do they hold memory.
    let (before, great) = (proxy.rss(), "n".repeat(4 << 20));
    for n in 0..20 {
        prepare(&mut both[1], &format!("{n}{great}"), "SELECT 1");
    }
    let grown = proxy.rss().saturating_sub(before);
    assert!(grown < 60 << 20, "grew by {} MB", grown >> 20);
}

/// A name costs its client next to nothing, and each of them may mean the same long text.
#[test]
fn names_of_one_long_text_are_not_lent_all_at_once() {
    let (_, proxy, database) = one("");
    let mut raw = Raw::login(proxy.port(), &database);
    let long = format!("SELECT 1 /*{}*/", "x".repeat(1 << 20));
    let mut execute = String::new();
    for n in 0..100 {
        prepare(&mut raw, &format!("s{n}"), &long);
        execute.push_str(&format!("EXECUTE s{n};"));
    }
    let before = proxy.peak_rss();
    let answers = raw.query(&execute);
    let grown = proxy.peak_rss().saturating_sub(before);
    assert!(grown < 60 << 20, "grew by {} MB", grown >> 20);
    let failed = answers.iter().find(|m| m.tag == b::ERROR_RESPONSE).map(Message::sqlstate);
    assert_eq!(failed.as_deref(), Some("26000"));
    assert_eq!(raw.value("EXECUTE s99").as_deref(), Some("1"));
}

/// A Close and a Parse of what another client holds too are answered here; who does not listen is not read.
#[test]
fn answers_of_ours_do_not_pile_up_for_who_takes_none() {
    let (_, proxy, database) = one("");
    let (mut keeper, mut raw) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
    prepare(&mut keeper, "s", "SELECT 1");
    prepare(&mut raw, "s", "SELECT 1");
    let turns = build(|o| {
        for _ in 0..4000 {
            put_close(o, "s");
            put_parse(o, "s", "SELECT 1");
        }
    });
    let mut stream = raw.into_stream();
    stream.set_nonblocking(true).expect("a socket");
    let (mut sent, mut stuck) = (0, 0);
    let mut send = || loop {
        match stream.write(&turns[sent % turns.len()..]) {
            Ok(_) if sent > 96 << 20 => return Some("all of it was taken"),
            Ok(n) => (sent, stuck) = (sent + n, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stuck += 1;
                return (stuck > 400).then_some("it is not read");
            }
            Err(error) => panic!("{error}"),
        }
    };
    // A busy machine takes a while to read as much as may be owed.
    assert_eq!(poll(4 * PATIENCE, &mut send), Some("it is not read"));
}

#[test]
fn an_unnamed_statement_stays_the_clients_over_transactions() {
    let (_, proxy, database) = rotating("");
    let mut raw = Raw::login(proxy.port(), &database);
    prepare(&mut raw, "", "SELECT $1::int * 2");
    for n in 0..6 {
        assert_eq!(run(&mut raw, "", &[&n.to_string()]), (n * 2).to_string());
    }
    raw.rows("SELECT 1");
    assert_eq!(failure(&mut raw, |o| put_run(o, "", &["1"])), "26000", "a Query destroys it, as direct");
}

/// Drivers that describe it in one round trip and bind it in the next find it where they left it, if nobody took that connection.
#[test]
fn an_unnamed_statement_is_run_where_it_was_parsed() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "default_pool_size = 2\nworkers = 1", "", "");
    let [mut raw, mut other] = [(); 2].map(|()| Raw::login(proxy.port(), &database));
    other.rows("BEGIN");
    let elsewhere = other.value("SELECT pg_backend_pid()");
    ask(&mut raw, |o| {
        put_parse(o, "", "SELECT pg_backend_pid()");
        f::put_target(o, f::DESCRIBE, b'S', b"");
    });
    // The one that was used last.
    other.rows("COMMIT");
    assert_ne!(Some(run(&mut raw, "", &[])), elsewhere);
}

#[test]
fn the_same_name_means_each_clients_own_statement() {
    let (_, proxy, database) = one("");
    let mut raws: Vec<Raw> = (0..3).map(|_| Raw::login(proxy.port(), &database)).collect();
    for (n, raw) in raws.iter_mut().enumerate() {
        prepare(raw, "s", &format!("SELECT {n}"));
        prepare(raw, "t", "SELECT 'common'");
    }
    for _ in 0..2 {
        for (n, raw) in raws.iter_mut().enumerate() {
            assert_eq!(run(raw, "s", &[]), n.to_string());
            assert_eq!(run(raw, "t", &[]), "common");
        }
    }
    let mut stranger = Raw::login(proxy.port(), &database);
    assert_eq!(failure(&mut stranger, |o| put_run(o, "s", &[])), "26000");
    for n in 0..40 {
        let guess = format!("pgsluice_{n}");
        assert_eq!(failure(&mut stranger, |o| put_run(o, &guess, &[])), "26000");
        assert_eq!(
            failure(&mut stranger, |o| f::put_target(o, f::DESCRIBE, b'S', guess.as_bytes())),
            "26000"
        );
        ask(&mut stranger, |o| put_close(o, &guess));
    }
    assert_eq!(run(&mut raws[0], "s", &[]), "0", "closing a guessed name closes nobody's statement");
}

/// Another user's or database's: neither answer changes what the other client was told.
#[test]
fn the_same_text_means_each_pools_own_tables() {
    let server = Postgres::shared();
    let one = server.fresh_database(
        "CREATE TABLE t AS SELECT 1 AS a, 2 AS b; CREATE ROLE elsewhere LOGIN; \
         CREATE SCHEMA AUTHORIZATION elsewhere CREATE TABLE t (c date, d text, e int)",
    );
    let other = server.fresh_database("CREATE TABLE t AS SELECT 'x'::text AS c");
    let proxy = Proxy::to(server, "", "", "");
    let enter = |user, database: &str| {
        let parameters = [("user", user), ("database", database)];
        Raw::login_as(proxy.port(), &parameters, "").unwrap_or_else(|e| panic!("{}", e.outline()))
    };
    let mut clients = [enter("postgres", &one), enter("postgres", &other), enter("elsewhere", &one)];
    for raw in &mut clients {
        raw.send(&Step::prepare("s", "SELECT * FROM t").bytes);
        raw.read_until_ready();
    }
    for _ in 0..2 {
        let answers = clients.each_mut().map(|raw| tags(&ask(raw, |o| put_run(o, "s", &[]))));
        assert_eq!(answers, ["2DCZ", "2DCZ", "2CZ"]);
    }
    server.psql("postgres", &format!("DROP DATABASE {one} WITH (FORCE)"));
    server.psql("postgres", "DROP ROLE elsewhere");
}

/// What a client can do by SQL to the names of the server's, it does to nobody else: not by taking them away, and not by
/// putting something in their place that answers pgsluice's own question.
#[test]
fn what_takes_the_pools_statements_away_changes_nothing_for_others() {
    let ours = "FOR n, s IN SELECT name, statement FROM pg_prepared_statements WHERE NOT from_sql LOOP";
    let answer = r#"encode(''[[],"none","postgres"]'', ''hex''), false, false, false, false, false"#;
    let replaced = format!(
        "EXECUTE format('DEALLOCATE %I', n);
         IF s LIKE '%mine%' THEN EXECUTE format('PREPARE %I AS SELECT ''others''', n); END IF;
         IF s LIKE '%pg_listening_channels%' THEN
           EXECUTE format('PREPARE %I (text) AS SELECT {answer}', n);
         END IF;
         SET search_path = others"
    );
    let (_, proxy, database) = one("");
    let mut other = Raw::login(proxy.port(), &database);
    prepare(&mut other, "s", "SELECT 'mine'");
    for extended in [false, true] {
        for body in ["EXECUTE format('DEALLOCATE %I', n)", "EXECUTE 'DEALLOCATE ALL'; EXIT", &replaced, ""] {
            assert_eq!(run(&mut other, "s", &[]), "mine");
            let mut raw = Raw::login(proxy.port(), &database);
            // Is asked about, with a statement of ours.
            raw.rows("DO 'BEGIN END'");
            let text = if body.is_empty() {
                let names = "SELECT name FROM pg_prepared_statements WHERE statement = 'SELECT ''mine'''";
                format!("DEALLOCATE {}", raw.value(names).expect("it is there"))
            } else {
                format!("DO $do$ DECLARE n text; s text; BEGIN {ours} {body}; END LOOP; END $do$")
            };
            let answer = if extended { raw.extended(&text, &[]) } else { raw.query(&text) };
            assert!(answer.iter().all(|m| m.tag != b::ERROR_RESPONSE), "{}", outline(&answer));
            for _ in 0..2 {
                assert_eq!(run(&mut other, "s", &[]), "mine", "{text}, extended: {extended}");
                assert_ne!(other.value("SHOW search_path").as_deref(), Some("others"), "{text}");
            }
            raw.terminate();
            assert_eq!(run(&mut other, "s", &[]), "mine", "behind {text}, extended: {extended}");
        }
    }
}

#[test]
fn an_unnamed_statement_is_never_anothers() {
    let (_, proxy, database) = one("");
    let mut a = Raw::login(proxy.port(), &database);
    let mut other = Raw::login(proxy.port(), &database);
    prepare(&mut a, "", "SELECT 'secret'");
    assert_eq!(failure(&mut other, |o| put_run(o, "", &[])), "26000");
    assert_eq!(failure(&mut other, |o| f::put_target(o, f::DESCRIBE, b'S', b"")), "26000");
    assert_eq!(run(&mut a, "", &[]), "secret");
    // An error strikes what would have put the other's own in its place.
    prepare(&mut other, "", "SELECT 'own'");
    assert_eq!(run(&mut a, "", &[]), "secret");
    let messages = ask(&mut other, |o| {
        put_parse(o, "bad", "SELEC");
        put_run(o, "", &[]);
    });
    assert_eq!(tags(&messages), "EZ");
    assert_eq!(run(&mut other, "", &[]), "own");
    // A Parse that fails leaves neither the old one of somebody nor itself.
    assert_eq!(run(&mut a, "", &[]), "secret");
    assert_eq!(failure(&mut other, |o| put_parse(o, "", "SELECT * FROM missing")), "42P01");
    assert_eq!(run(&mut a, "", &[]), "secret");
    // Much too long to be kept.
    let long = format!("SELECT 'long', '{}'", "x".repeat(17 << 20));
    let messages = ask(&mut a, |o| {
        put_parse(o, "", &long);
        put_run(o, "", &[]);
    });
    assert_eq!(tags(&messages), "12DCZ");
    let mut stranger = Raw::login(proxy.port(), &database);
    assert_eq!(failure(&mut stranger, |o| put_run(o, "", &[])), "26000");
}

#[test]
fn duplicate_and_unknown_names_are_errors_as_direct() {
    let (server, proxy, database) = rotating("");
    let mut raw = Raw::login(proxy.port(), &database);
    let mut direct = Raw::login(server.port(), &database);
    let units: [Unit<'_>; 7] = [
        &|o| put_parse(o, "s", "SELECT 1"),
        &|o| put_parse(o, "s", "SELECT 1"),
        &|o| put_parse(o, "s", "SELECT 2"),
        &|o| put_run(o, "unknown", &[]),
        &|o| f::put_target(o, f::DESCRIBE, b'S', b"unknown"),
        &|o| put_close(o, "unknown"),
        &|o| put_run(o, "s", &[]),
    ];
    let masked = |messages: Vec<Message>| -> Vec<(u8, String, String)> {
        messages
            .iter()
            .map(|m| {
                if m.tag == b'E' {
                    (m.tag, m.sqlstate(), m.field(b'M'))
                } else {
                    (m.tag, String::new(), String::new())
                }
            })
            .collect()
    };
    for unit in units {
        assert_eq!(masked(ask(&mut raw, unit)), masked(ask(&mut direct, unit)));
    }
}

/// PostgreSQL names the statement, which is called otherwise on the server.
#[test]
fn a_bind_of_too_few_values_is_told_by_the_clients_name() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let long = "n".repeat(63);
    for mode in ["transaction", "session"] {
        let proxy = Proxy::to(server, &format!("pool_mode = \"{mode}\""), "", "");
        let [mut raw, mut direct] = [proxy.port(), server.port()].map(|port| Raw::login(port, &database));
        for (name, sql) in [
            ("s", "SELECT $1::int"),
            ("pgsluice_1", "SELECT $1::text"),
            ("pgsluice_2", "SELECT $1::bool"),
            ("", "SELECT $1::numeric"),
            (&long, "SELECT $1::int8"),
        ] {
            let told = [&mut raw, &mut direct].map(|client| {
                ask(client, |o| put_parse(o, name, sql));
                let messages = ask(client, |o| put_run(o, name, &[]));
                outline(&messages)
            });
            assert_eq!(told[0], told[1], "{mode}: {name}");
        }
    }
}

/// Nor is it called by the name of what stands in for it: a DEALLOCATE of a name, and what is not on the connection of a
/// block that has failed.
#[test]
fn a_bind_of_too_many_values_is_told_by_the_clients_name_whatever_stands_in() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let proxy = Proxy::to(server, "", "", "");
    let [mut raw, mut direct] = [proxy.port(), server.port()].map(|port| Raw::login(port, &database));
    let told = [&mut raw, &mut direct].map(|client| {
        prepare(client, "gone", "SELECT 1");
        prepare(client, "d", "DEALLOCATE gone");
        ask(client, |o| put_parse(o, "", "SELECT 7"));
        [("d", &["1"][..]), ("", &[]), ("d", &[]), ("gone", &[])]
            .map(|(name, params)| outline(&ask(client, |o| put_run(o, name, params))))
    });
    assert_eq!(told[0], told[1]);
    let told = [&mut raw, &mut direct].map(|client| {
        prepare(client, "s", "SELECT $1::int");
        // Where another client is, the statement is not on the connection that is left.
        let mut holder = Raw::login(proxy.port(), &database);
        holder.query("BEGIN");
        holder.query("SELECT 1");
        client.query("BEGIN");
        client.query("SELECT 1/0");
        ask(client, |o| put_parse(o, "", "SELECT $1::int"));
        let told = ["s", ""].map(|name| outline(&ask(client, |o| put_run(o, name, &["1", "2"]))));
        client.query("ROLLBACK");
        told
    });
    assert_eq!(told[0], told[1]);
}

#[test]
fn a_closed_name_can_be_used_again_for_something_else() {
    let (_, proxy, database) = rotating("");
    let mut raw = Raw::login(proxy.port(), &database);
    for n in 0..6 {
        let messages = ask(&mut raw, |o| {
            put_parse(o, "s", &format!("SELECT {n}"));
            put_run(o, "s", &[]);
            put_close(o, "s");
        });
        assert_eq!(tags(&messages), "12DC3Z");
        assert_eq!(messages[2].row()[0], Some(n.to_string()));
    }
    assert_eq!(failure(&mut raw, |o| put_run(o, "s", &[])), "26000");
    let messages = ask(&mut raw, |o| {
        put_parse(o, "s", "SELECT 'a'");
        put_close(o, "s");
        put_parse(o, "s", "SELECT 'b'");
        put_run(o, "s", &[]);
    });
    assert_eq!((tags(&messages).as_str(), messages[4].row()[0].as_deref()), ("1312DCZ", Some("b")));
}

#[test]
fn deallocate_and_discard_forget_what_the_protocol_prepared() {
    let (_, proxy, database) = rotating("");
    let mut raw = Raw::login(proxy.port(), &database);
    for extended in [false, true] {
        for (sql, tag, gone) in [
            ("DEALLOCATE s", "DEALLOCATE", "s"),
            ("deallocate prepare \"S x\";", "DEALLOCATE", "S x"),
            ("DEALLOCATE ALL", "DEALLOCATE ALL", "s"),
            ("DISCARD ALL", "DISCARD ALL", "s"),
        ] {
            prepare(&mut raw, gone, "SELECT 1");
            assert_eq!(run(&mut raw, gone, &[]), "1");
            let messages = if extended { raw.extended(sql, &[]) } else { raw.query(sql) };
            let done = messages.iter().find(|m| m.tag == b::COMMAND_COMPLETE);
            let done = done.unwrap_or_else(|| panic!("{sql}: {}", outline(&messages)));
            assert_eq!(done.command(), tag);
            assert_eq!(failure(&mut raw, |o| put_run(o, gone, &[])), "26000", "{sql}, extended: {extended}");
        }
    }
    assert_eq!(raw.error("DEALLOCATE nothing").sqlstate(), "26000");
    // Others keep theirs.
    let mut other = Raw::login(proxy.port(), &database);
    prepare(&mut other, "s", "SELECT 'kept'");
    prepare(&mut raw, "s", "SELECT 'kept'");
    raw.rows("DEALLOCATE ALL");
    for _ in 0..4 {
        assert_eq!(run(&mut other, "s", &[]), "kept");
    }
}

/// Also where the statement could not be prepared again on this connection, or an error that fails the block is not answered yet.
#[test]
fn a_deallocate_is_answered_whatever_became_of_its_statement() {
    let (server, proxy, database) = one("");
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        raw.rows("CREATE TABLE gone (a int)");
        prepare(&mut raw, "s", "SELECT * FROM gone");
        prepare(&mut raw, "t", "SELECT 1");
        raw.rows("DROP TABLE gone");
        Raw::login(proxy.port(), "pgsluice").rows("RECONNECT");
        let mut said =
            vec![comparable(&raw.query("DEALLOCATE s")), failure(&mut raw, |o| put_run(o, "s", &[]))];
        raw.rows("BEGIN");
        raw.send(&build(|o| {
            f::put_query(o, b"SELECT 1/0");
            f::put_query(o, b"DEALLOCATE t");
            f::put_query(o, b"ROLLBACK");
            f::put_query(o, b"DEALLOCATE t");
        }));
        said.extend((0..4).map(|_| comparable(&raw.read_until_ready())));
        said.push(failure(&mut raw, |o| put_run(o, "t", &[])));
        said
    });
    assert_eq!(said[1], said[0]);
}

/// PostgreSQL looks at the number of parameters first.
#[test]
fn a_bind_in_a_failed_block_is_refused_as_directly_where_its_statement_is_not() {
    let (server, proxy, database) = one("");
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        prepare(&mut raw, "two", "SELECT $2::int, $1::text");
        prepare(&mut raw, "none", "SELECT '$3' /* $4 */");
        prepare(&mut raw, "end", "ROLLBACK");
        Raw::login(proxy.port(), "pgsluice").rows("RECONNECT");
        raw.rows("BEGIN");
        raw.error("SELECT 1/0");
        let binds: [(&str, &[&str]); 6] = [
            ("two", &["1"]),
            ("two", &["1", "2"]),
            ("none", &["1"]),
            ("none", &[]),
            ("two", &[]),
            ("end", &[]),
        ];
        let mut said: Vec<_> = binds
            .map(|(name, values)| {
                let messages = ask(&mut raw, |o| put_run(o, name, values));
                comparable(&messages).replace("pgsluice_stand_in", name)
            })
            .into();
        said.push(run(&mut raw, "two", &["a", "7"]));
        said
    });
    assert_eq!(said[1], said[0]);
    assert!(said[0][0].contains("08P01") && said[0][1].contains("25P02"), "{:?}", said[0]);
}

/// By the client's own name, on every connection, and nobody else's.
#[test]
fn sql_may_speak_of_what_the_protocol_prepared() {
    let (server, proxy, database) = rotating("");
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        raw.rows("DROP TABLE IF EXISTS made; CREATE TABLE gone (a int)");
        prepare(&mut raw, "s", "SELECT $1::int + 1 AS next");
        prepare(&mut raw, "S 1", "SELECT 'quoted' AS name");
        prepare(&mut raw, "lost", "SELECT * FROM gone");
        raw.rows("DROP TABLE gone");
        let mut said = Vec::new();
        for text in [
            "EXECUTE s(1)",
            "EXPLAIN (VERBOSE, COSTS OFF) EXECUTE s(2)",
            "execute \"S 1\"",
            "EXECUTE S(3); EXECUTE \"S 1\"",
            "CREATE TABLE made AS EXECUTE s(4)",
            "TABLE made",
            "EXECUTE s",
            "EXECUTE nobody",
            "EXECUTE lost",
            "PREPARE s AS SELECT 1",
            "BEGIN",
            "EXECUTE s(5)",
            "EXECUTE lost",
            "EXECUTE s(6)",
            "ROLLBACK",
            "EXECUTE s(7)",
        ] {
            said.push(comparable(&raw.query(text)));
        }
        raw.send(&build(|o| put_queries(o, &["BEGIN", "EXECUTE s(1)", "COMMIT"])));
        said.extend((0..3).map(|_| comparable(&raw.read_until_ready())));
        for name in ["", "e"] {
            said.push(comparable(&ask(&mut raw, |o| {
                put_parse(o, name, "EXECUTE s(8)");
                f::put_target(o, f::DESCRIBE, b'S', name.as_bytes());
                put_run(o, name, &[]);
                put_run(o, name, &[]);
            })));
            said.push(run(&mut raw, name, &[]));
            said.push(comparable(&ask(&mut raw, |o| f::put_target(o, f::DESCRIBE, b'S', name.as_bytes()))));
        }
        raw.rows("PREPARE of_sql(int) AS SELECT $1 + 1");
        said.push(comparable(&ask(&mut raw, |o| {
            f::put_target(o, f::DESCRIBE, b'S', b"of_sql");
            put_run(o, "of_sql", &["1"]);
        })));
        said
    });
    for (direct, through) in said[0].iter().zip(&said[1]) {
        assert_eq!(through, direct);
    }
    let mut other = Raw::login(proxy.port(), &database);
    for _ in 0..3 {
        assert_eq!(other.error("EXECUTE s(1)").sqlstate(), "26000");
        assert_eq!(
            other.value("SELECT count(*) FROM pg_prepared_statements WHERE name IN ('s', 'S 1')").as_deref(),
            Some("0")
        );
    }
}

/// What is run so may run another by its name, and that one the first.
#[test]
fn what_the_protocol_prepared_may_speak_of_what_it_prepared() {
    let (server, proxy, database) = rotating("");
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        prepare(&mut raw, "plan", "EXPLAIN (VERBOSE, COSTS OFF) EXECUTE run");
        prepare(&mut raw, "s", "SELECT 41 + 1 AS next");
        prepare(&mut raw, "run", "EXECUTE s");
        prepare(&mut raw, "over", "EXECUTE run");
        prepare(&mut raw, "bound", "EXECUTE plan");
        prepare(&mut raw, "self", "EXECUTE self");
        prepare(&mut raw, "explained", "EXPLAIN EXECUTE explained");
        prepare(&mut raw, "broken", "EXECUTE nobody");
        let mut said = Vec::new();
        for name in ["plan", "run", "over", "bound", "explained", "broken"] {
            said.push(comparable(&ask(&mut raw, |o| put_run(o, name, &[]))));
            said.push(comparable(&raw.query(&format!("EXECUTE {name}"))));
            said.push(comparable(&ask(&mut raw, |o| f::put_target(o, f::DESCRIBE, b'S', name.as_bytes()))));
        }
        // It would go on up to the limit of the server's stack.
        said.push(raw.error("EXECUTE self").sqlstate().to_string());
        // One unit, in which what they speak of is prepared last.
        said.push(comparable(&ask(&mut raw, |o| {
            put_parse(o, "a", "EXPLAIN (COSTS OFF) EXECUTE b");
            put_parse(o, "b", "EXECUTE s");
            put_run(o, "a", &[]);
            put_run(o, "b", &[]);
        })));
        said
    });
    for (direct, through) in said[0].iter().zip(&said[1]) {
        assert_eq!(through, direct);
    }
}

/// What an EXECUTE returns is that of the statement that has the name when it is parsed, whatever was said of an earlier one, also to
/// others.
#[test]
fn an_execute_prepared_again_is_described_anew() {
    let (server, proxy, database) = one("");
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raws = [0, 1].map(|_| Raw::login(port, &database));
        raws[0].rows("CREATE TABLE IF NOT EXISTS kept (a int)");
        let mut said = Vec::new();
        let mut describe = |raw: &mut Raw| {
            said.push(comparable(&ask(raw, |o| {
                put_close(o, "e");
                put_parse(o, "e", "EXECUTE s");
                f::put_target(o, f::DESCRIBE, b'S', b"e");
            })));
        };
        for raw in &mut raws {
            describe(raw);
        }
        for text in ["SELECT 1 AS one", "SELECT 2 AS two, 3 AS three", "INSERT INTO kept VALUES (1)"] {
            raws[0].rows(&format!("PREPARE s AS {text}"));
            describe(&mut raws[0]);
            raws[0].rows("DEALLOCATE s");
            describe(&mut raws[0]);
        }
        said
    });
    assert_eq!(said[1], said[0]);
    assert!(said[0][2].contains("one") && said[0][4].contains("three"), "{:?}", said[0]);
}

/// Behind what ties it to its connection, in the same write, and so does this.
#[test]
fn a_name_that_sql_makes_behind_a_listen_is_taken() {
    let (server, proxy, database) = rotating("");
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        prepare(&mut raw, "s", "SELECT 's'");
        raw.send(&build(|o| put_queries(o, &["LISTEN a", "PREPARE a AS SELECT 8", "SHOW work_mem"])));
        let mut said: Vec<_> = (0..3).map(|_| comparable(&raw.read_until_ready())).collect();
        said.push(failure(&mut raw, |o| put_parse(o, "a", "SELECT 9")));
        said.push(run(&mut raw, "a", &[]));
        said
    });
    assert_eq!(said[1], said[0]);
    assert_eq!(said[0][3], "42P05");
}

/// It takes the name away when it is run: not when it is prepared, and once.
#[test]
fn a_prepared_deallocate_does_what_it_does_directly() {
    let (server, proxy, database) = rotating("");
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        let mut said = Vec::new();
        for name in ["", "d"] {
            prepare(&mut raw, "s", "SELECT 's'");
            prepare(&mut raw, name, "DEALLOCATE s");
            said.push(run(&mut raw, "s", &[]));
            for _ in 0..2 {
                let messages = ask(&mut raw, |o| {
                    put_run(o, name, &[]);
                    put_run(o, "s", &[]);
                });
                said.push(comparable(&messages));
            }
            prepare(&mut raw, "s", "SELECT 'again'");
            said.push(comparable(&ask(&mut raw, |o| put_run(o, name, &[]))));
            said.push(failure(&mut raw, |o| put_run(o, "s", &[])));
        }
        said
    });
    assert_eq!(said[1], said[0]);
}

/// Another pgsluice between this one and the server gives pgsluice's own statements names of its own.
#[test]
fn sql_that_speaks_of_names_does_what_it_does_directly_behind_another_pgsluice() {
    let (server, behind, database) = one("");
    let entry = format!("port = {}", behind.port());
    let proxy = Proxy::to(server, "default_pool_size = 1", &entry, "");
    let said = [server.port(), behind.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        let mut said = Vec::new();
        let texts = ["PREPARE p(int) AS SELECT $1 + 1", "EXECUTE p(41)", "DEALLOCATE p"];
        said.extend(texts.map(|text| comparable(&raw.query(text))));
        said.extend(texts.map(|text| comparable(&raw.extended(text, &[]))));
        for extended in [true, false] {
            prepare(&mut raw, "s", "SELECT 's'");
            said.push(run(&mut raw, "s", &[]));
            let gone = "DEALLOCATE s";
            said.push(comparable(&if extended { raw.extended(gone, &[]) } else { raw.query(gone) }));
            said.push(failure(&mut raw, |o| put_run(o, "s", &[])));
        }
        said
    });
    assert_eq!(said[1], said[0]);
    assert_eq!(said[2], said[0]);
}

/// A Query that an error skips takes no unnamed statement away; one that is run does.
#[test]
fn a_query_that_is_skipped_leaves_the_unnamed_statement() {
    let (server, proxy, database) = rotating("");
    let long = format!("SELECT 1 -- {}", "x".repeat(1 << 20));
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        let mut said = Vec::new();
        for query in ["SELECT 1", &long] {
            for before in ["SELECT 1/0", "SELECT 2"] {
                prepare(&mut raw, "s", before);
                prepare(&mut raw, "", "SELECT 'unnamed'");
                raw.send(&build(|o| {
                    put_run(o, "s", &[]);
                    f::put_query(o, query.as_bytes());
                    sync(o);
                    put_run(o, "", &[]);
                    put_close(o, "s");
                    sync(o);
                    put_close(o, "s");
                    sync(o);
                }));
                let units = if before == "SELECT 2" { 4 } else { 3 };
                said.extend((0..units).map(|_| comparable(&raw.read_until_ready())));
            }
        }
        said
    });
    assert_eq!(said[1], said[0]);
}

/// Nor a FunctionCall before it, whatever it speaks of.
#[test]
fn a_query_behind_a_function_call_is_skipped_with_it() {
    let (server, proxy, database) = one("");
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        let mut said = Vec::new();
        prepare(&mut raw, "s", "SELECT 1");
        for query in ["COMMIT", "EXECUTE s"] {
            prepare(&mut raw, "", "SELECT 'unnamed'");
            raw.send(&build(|o| {
                f::put_execute(o, b"nobody", 0);
                frame::put(o, f::FUNCTION_CALL, |o| o.extend_from_slice(&[0; 10]));
                f::put_query(o, query.as_bytes());
                sync(o);
                put_run(o, "", &[]);
                sync(o);
                put_run(o, "s", &[]);
                sync(o);
            }));
            said.extend((0..3).map(|_| comparable(&raw.read_until_ready())));
        }
        said
    });
    assert_eq!(said[1], said[0]);
}

/// The unnamed statement is none of all.
#[test]
fn deallocate_and_discard_all_leave_the_unnamed_statement() {
    let (server, proxy, database) = rotating("");
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        let mut said = Vec::new();
        for all in ["DEALLOCATE ALL", "DISCARD ALL"] {
            prepare(&mut raw, "s", "SELECT 1");
            prepare(&mut raw, "all", all);
            prepare(&mut raw, "", "SELECT 'unnamed'");
            said.push(tags(&ask(&mut raw, |o| put_run(o, "all", &[]))));
            said.push(failure(&mut raw, |o| put_run(o, "s", &[])));
            said.extend((0..3).map(|_| run(&mut raw, "", &[])));
            raw.rows(all);
            said.push(failure(&mut raw, |o| put_run(o, "", &[])));
        }
        said
    });
    assert_eq!(said[1], said[0]);
}

#[test]
fn an_error_in_a_pipeline_undoes_the_names_behind_it() {
    let (_, proxy, database) = rotating("");
    let mut raw = Raw::login(proxy.port(), &database);
    prepare(&mut raw, "kept", "SELECT 'old'");
    for _ in 0..4 {
        let messages = ask(&mut raw, |o| {
            put_parse(o, "before", "SELECT 'before'");
            put_parse(o, "bad", "SELECT * FROM missing");
            put_parse(o, "behind", "SELECT 'behind'");
            put_close(o, "kept");
            put_parse(o, "kept", "SELECT 'new'");
            put_run(o, "behind", &[]);
        });
        assert_eq!(tags(&messages), "1EZ");
        assert_eq!(run(&mut raw, "before", &[]), "before");
        assert_eq!(run(&mut raw, "kept", &[]), "old");
        assert_eq!(failure(&mut raw, |o| put_run(o, "bad", &[])), "26000");
        assert_eq!(failure(&mut raw, |o| put_run(o, "behind", &[])), "26000");
        assert_eq!(tags(&ask(&mut raw, |o| put_close(o, "before"))), "3Z");
    }
    prepare(&mut raw, "behind", "SELECT 'behind'");
    assert_eq!(run(&mut raw, "behind", &[]), "behind");
}

/// A Parse takes the unnamed statement away before it is known to be good; one that an error skips does not.
#[test]
fn a_parse_that_fails_leaves_no_unnamed_statement() {
    let (server, proxy, database) = rotating("");
    server.psql(&database, "CREATE TABLE t (a text)");
    let one = |o: &mut Vec<u8>| put_run(o, "", &["x"]);
    let said = [server.port(), proxy.port()].map(|port| {
        let mut raw = Raw::login(port, &database);
        let mut said = Vec::new();
        for _ in 0..4 {
            for bad in [
                "INSERT INTO missing VALUES ($1)",
                "INSERT INTO t VALUES ($1",
                "INSERT INTO t (b) VALUES ($1)",
            ] {
                prepare(&mut raw, "", "INSERT INTO t VALUES ($1)");
                said.push(failure(&mut raw, |o| put_parse(o, "", bad)));
                said.push(tags(&ask(&mut raw, one)));
            }
            prepare(&mut raw, "", "SELECT $1");
            said.push(failure(&mut raw, |o| {
                put_run(o, "missing", &[]);
                put_parse(o, "", "INSERT INTO t VALUES ($1)");
            }));
            said.push(run(&mut raw, "", &["skipped"]));
            raw.rows("BEGIN");
            prepare(&mut raw, "", "INSERT INTO t VALUES ($1)");
            said.push(failure(&mut raw, |o| put_run(o, "", &[])));
            said.push(failure(&mut raw, |o| put_parse(o, "", "SELECT $1")));
            raw.rows("ROLLBACK");
            said.push(failure(&mut raw, one));
        }
        said
    });
    assert_eq!(said[1], said[0]);
    assert_eq!(server.psql(&database, "SELECT count(*) FROM t").trim(), "0");
}

/// Several units in one write: an error in the first skips a Parse of the client's, or one of ours, and what the next ones say of
/// its name is said of what stands there then.
#[test]
fn a_parse_that_is_skipped_is_nothing_to_the_units_behind_it() {
    let (server, proxy, database) = one("");
    let mut raw = Raw::login(proxy.port(), &database);
    let mut direct = Raw::login(server.port(), &database);
    let mut other = Raw::login(proxy.port(), &database);
    let write = |raw: &mut Raw, units: &[Unit<'_>]| {
        raw.send(&build(|o| {
            for unit in units {
                unit(o);
                sync(o);
            }
        }));
        units.iter().map(|_| comparable(&raw.read_until_ready())).collect::<Vec<_>>()
    };
    let missing = |o: &mut Vec<u8>| put_run(o, "missing", &[]);
    let scripts: [&[Unit<'_>]; 8] = [
        &[&|o| (missing(o), put_parse(o, "", "SELECT 'mine'")).1, &|o| put_run(o, "", &[])],
        &[&|o| (missing(o), put_parse(o, "", "SELECT 'mine'")).1, &|o| {
            f::put_target(o, f::DESCRIBE, b'S', b"");
        }],
        &[&|o| (missing(o), put_parse(o, "s", "SELECT 'mine'")).1, &|o| put_run(o, "s", &[])],
        &[&|o| (missing(o), put_parse(o, "s", "SELECT 1")).1, &|o| put_parse(o, "s", "SELECT 2"), &|o| {
            put_run(o, "s", &[]);
        }],
        &[&|o| (missing(o), put_parse(o, "", "SELECT 1")).1, &|o| put_parse(o, "", "SELECT 2")],
        // That of the unit before.
        &[&|o| put_run(o, "", &[]), &|o| put_run(o, "s", &[])],
        &[&|o| (missing(o), put_run(o, "kept", &[])).1, &|o| put_run(o, "kept", &[])],
        &[&|o| (missing(o), put_close(o, "kept")).1, &|o| put_close(o, "kept"), &|o| {
            put_parse(o, "kept", "SELECT 'again'");
        }],
    ];
    for raw in [&mut raw, &mut direct] {
        prepare(raw, "kept", "SELECT 'kept'");
        prepare(raw, "", "SELECT 'before'");
        // A Query takes it away, also behind a Parse that was skipped.
        raw.send(&build(|o| {
            missing(o);
            put_parse(o, "", "SELECT 'mine'");
            sync(o);
            f::put_query(o, b"SELECT");
        }));
        (0..2).for_each(|_| drop(raw.read_until_ready()));
        assert_eq!(failure(raw, |o| put_run(o, "", &[])), "26000");
    }
    for (number, script) in scripts.into_iter().enumerate() {
        // Another connection, where somebody else's statement stands.
        Raw::login(proxy.port(), "pgsluice").rows("RECONNECT");
        prepare(&mut other, "", "SELECT 'not yours'");
        assert_eq!(write(&mut raw, script), write(&mut direct, script), "script {number}");
    }
}

#[test]
fn a_refused_parse_leaves_no_unnamed_statement() {
    let server = Postgres::shared();
    let database = server.fresh_database("CREATE TABLE t (a text)");
    let proxy = Proxy::to(server, "", "", "[policy]\nsql_prepare = \"deny\"");
    let mut raw = Raw::login(proxy.port(), &database);
    prepare(&mut raw, "", "INSERT INTO t VALUES ($1)");
    assert_eq!(failure(&mut raw, |o| put_parse(o, "", "PREPARE s AS SELECT 1")), "42501");
    assert_eq!(failure(&mut raw, |o| put_run(o, "", &["x"])), "26000");
    prepare(&mut raw, "", "SELECT $1");
    assert_eq!(
        failure(&mut raw, |o| {
            put_run(o, "missing", &[]);
            put_parse(o, "", "PREPARE s AS SELECT 1");
        }),
        "26000"
    );
    assert_eq!(run(&mut raw, "", &["skipped"]), "skipped");
}

#[test]
fn refusals_of_ours_behind_an_error_are_not_told_later() {
    let (_, proxy, database) = one("");
    let mut raw = Raw::login(proxy.port(), &database);
    prepare(&mut raw, "s", "SELECT 1");
    let messages = ask(&mut raw, |o| {
        put_parse(o, "", "SELEC");
        put_parse(o, "s", "SELECT 2");
    });
    assert_eq!(messages[0].sqlstate(), "42601");
    assert_eq!(
        failure(&mut raw, |o| put_run(o, "pgsluice_1", &[])),
        "26000",
        "its own refusal, not the old one"
    );
    assert_eq!(failure(&mut raw, |o| put_parse(o, "s", "SELECT 2")), "42P05");
}

#[test]
fn the_first_of_several_refusals_is_the_one_that_is_told() {
    let (_, proxy, database) = one("");
    let mut raw = Raw::login(proxy.port(), &database);
    prepare(&mut raw, "first", "SELECT 1");
    prepare(&mut raw, "second", "SELECT 2");
    let messages = ask(&mut raw, |o| {
        put_parse(o, "first", "SELECT 3");
        put_run(o, "third", &[]);
        put_parse(o, "second", "SELECT 4");
    });
    assert_eq!(messages[0].field(b'M'), "prepared statement \"first\" already exists");
    assert_eq!(failure(&mut raw, |o| put_run(o, "fourth", &[])), "26000", "its own refusal");
}

#[test]
fn a_parse_in_a_failed_block_is_refused_by_the_server() {
    let (_, proxy, database) = rotating("");
    let mut raw = Raw::login(proxy.port(), &database);
    let mut other = Raw::login(proxy.port(), &database);
    for n in 0..4 {
        let sql = format!("SELECT 'in a block {n}'");
        prepare(&mut other, &format!("o{n}"), &sql);
        run(&mut other, &format!("o{n}"), &[]);
        raw.rows("BEGIN");
        raw.error("SELECT 1/0");
        assert_eq!(failure(&mut raw, |o| put_parse(o, "s", &sql)), "25P02");
        assert_eq!(failure(&mut raw, |o| put_run(o, "s", &[])), "26000");
        raw.rows("ROLLBACK");
        prepare(&mut raw, "s", &sql);
        for _ in 0..3 {
            assert_eq!(run(&mut raw, "s", &[]), format!("in a block {n}"));
            assert_eq!(run(&mut other, &format!("o{n}"), &[]), format!("in a block {n}"));
        }
        ask(&mut raw, |o| put_close(o, "s"));
    }
}

/// Also one whose text is there already, where the error that fails the block is not answered yet.
#[test]
fn a_parse_behind_an_error_in_a_block_is_refused_by_the_server() {
    let (_, proxy, database) = one("");
    let mut raw = Raw::login(proxy.port(), &database);
    prepare(&mut raw, "o", "SELECT 'there'");
    raw.rows("BEGIN");
    raw.send(&build(|o| {
        f::put_query(o, b"SELECT 1/0");
        put_parse(o, "s", "SELECT 'there'");
        sync(o);
    }));
    assert_eq!([(); 2].map(|()| tags(&raw.read_until_ready())), ["EZ", "EZ"]);
    raw.rows("ROLLBACK");
    assert_eq!(failure(&mut raw, |o| put_run(o, "s", &[])), "26000");
    assert_eq!(run(&mut raw, "o", &[]), "there");
}

#[test]
fn many_statements_make_room_for_each_other() {
    let (_, proxy, database) = rotating("max_prepared_statements = 3");
    let mut raw = Raw::login(proxy.port(), &database);
    for n in 0..20 {
        prepare(&mut raw, &format!("s{n}"), &format!("SELECT {n}"));
    }
    for round in 0..3 {
        for n in 0..20 {
            let n = (n * 7 + round) % 20;
            assert_eq!(run(&mut raw, &format!("s{n}"), &[]), n.to_string());
        }
        // Several in one unit, more than there is room for; and an error that strikes our own messages among them.
        let messages = ask(&mut raw, |o| {
            for n in 0..6 {
                put_run(o, &format!("s{n}"), &[]);
            }
        });
        assert_eq!(tags(&messages), "2DC".repeat(6) + "Z");
        let messages = ask(&mut raw, |o| {
            put_parse(o, "bad", "SELEC");
            for n in 6..12 {
                put_run(o, &format!("s{n}"), &[]);
            }
        });
        assert_eq!(tags(&messages), "EZ");
    }
    raw.rows("BEGIN");
    let held = raw.value("SELECT count(*) FROM pg_prepared_statements").expect("a count");
    assert!(held.parse::<usize>().expect("a number") <= 4, "{held}");
    raw.rows("COMMIT");
}

/// On a connection that has more of them since a time of plenty.
#[test]
fn a_lowered_limit_holds_for_open_connections_from_the_next_statement_on() {
    let (_, proxy, database) = one("max_prepared_statements = 5");
    let mut raw = Raw::login(proxy.port(), &database);
    let mut prepared = |range: std::ops::Range<usize>| {
        range.for_each(|n| prepare(&mut raw, &format!("s{n}"), &format!("SELECT {n}")));
        raw.value("SELECT count(*) FROM pg_prepared_statements WHERE statement ~ '^SELECT [0-9]+$'")
    };
    assert_eq!(prepared(0..5).as_deref(), Some("5"));
    tell(&mut Raw::login(proxy.port(), "pgsluice"), "SET max_prepared_statements = 2");
    assert_eq!(prepared(5..6).as_deref(), Some("2"));
    // All of them are known still.
    for n in 0..6 {
        assert_eq!(run(&mut raw, &format!("s{n}"), &[]), n.to_string());
    }
}

#[test]
fn long_texts_are_prepared_too() {
    let (_, proxy, database) = rotating("");
    let mut raw = Raw::login(proxy.port(), &database);
    for (name, size) in [("a", 17 << 10), ("b", 3 << 20), ("", 70 << 10), ("", 2 << 20)] {
        let sql = format!("SELECT length('{}')", "x".repeat(size));
        prepare(&mut raw, name, &sql);
        for _ in 0..4 {
            assert_eq!(run(&mut raw, name, &[]), size.to_string());
        }
    }
    let refused =
        ask(&mut raw, |o| put_parse(o, "c", &format!("SELECT '{}'", "x".repeat(17 << 20)))).remove(0);
    assert_eq!(refused.sqlstate(), "53400");
    // No setting governs it: its own bound is told.
    assert!(refused.field(b'M').contains("more than 16777216 bytes"), "{}", refused.outline());
    assert!(!refused.outline().contains("prepared_statement_bytes_max"), "{}", refused.outline());
    assert_eq!(run(&mut raw, "a", &[]), (17 << 10).to_string());
}

/// So long a text is not kept, and streams through if it is unnamed: which it is not told by the length of its message alone.
#[test]
fn a_long_text_whose_name_is_not_here_yet_is_waited_for() {
    let (_, proxy, database) = one("");
    let mut raw = Raw::login(proxy.port(), &database);
    raw.rows("BEGIN");
    let mut bytes = Vec::new();
    f::put_query(&mut bytes, b"SELECT 1");
    let begins = bytes.len();
    put_parse(&mut bytes, "", &format!("SELECT length('{}')", "x".repeat(17 << 20)));
    raw.send(&bytes[..begins + frame::HEADER_BYTES]);
    raw.read_until_ready();
    raw.send(&bytes[begins + frame::HEADER_BYTES..]);
    assert_eq!(run(&mut raw, "", &[]), (17 << 20).to_string());
}

#[test]
fn texts_are_bounded_by_prepared_statement_bytes_max() {
    let (_, proxy, database) = one("prepared_statement_bytes_max = \"1MB\"");
    let mut raw = Raw::login(proxy.port(), &database);
    let sql = |n: usize| format!("SELECT {n}, '{}'", "x".repeat(500 << 10));
    prepare(&mut raw, "a", &sql(1));
    prepare(&mut raw, "b", &sql(2));
    let messages = ask(&mut raw, |o| put_parse(o, "c", &sql(3)));
    assert_eq!(messages[0].sqlstate(), "53400");
    assert!(messages[0].field(b'M').contains("prepared_statement_bytes_max"));
    ask(&mut raw, |o| put_close(o, "a"));
    prepare(&mut raw, "c", &sql(3));
    assert_eq!(run(&mut raw, "c", &[]), "3");
}

#[test]
fn who_fills_the_memory_for_texts_leaves_other_pools_their_share() {
    let (server, proxy, database) = one("prepared_statement_bytes_max = \"1MB\"");
    let mut raw = Raw::login(proxy.port(), &database);
    let sql = |n: usize, bytes: usize| format!("SELECT {n}, '{}'", "x".repeat(bytes));
    prepare(&mut raw, "a", &sql(1, 1000 << 10));
    let refused = (2..).find(|n| {
        let messages = ask(&mut raw, |o| put_parse(o, &n.to_string(), &sql(*n, 1 << 10)));
        messages[0].tag == b::ERROR_RESPONSE && messages[0].sqlstate() == "53400"
    });
    assert!(refused.is_some());
    let mut other = Raw::login(proxy.port(), &server.fresh_database(""));
    prepare(&mut other, "small", &sql(1, 15 << 10));
    let messages = ask(&mut other, |o| put_parse(o, "more", &sql(2, 15 << 10)));
    assert_eq!(messages[0].sqlstate(), "53400");
}

#[test]
fn a_plan_whose_result_changed_is_refused_as_direct_and_heals_with_a_new_parse() {
    let (server, proxy, database) = one("");
    server.psql(&database, "CREATE TABLE t AS SELECT 1 AS a");
    let mut direct = Raw::login(server.port(), &database);
    let mut raw = Raw::login(proxy.port(), &database);
    for raw in [&mut direct, &mut raw] {
        prepare(raw, "s", "SELECT * FROM t");
        assert_eq!(run(raw, "s", &[]), "1");
    }
    server.psql(&database, "ALTER TABLE t ADD b text DEFAULT 'x'");
    for raw in [&mut direct, &mut raw] {
        assert_eq!(failure(raw, |o| put_run(o, "s", &[])), "0A000");
    }
    // A client that comes later and prepares the same text never sees it, on the same connection or another.
    let mut other = Raw::login(proxy.port(), &database);
    prepare(&mut other, "s", "SELECT * FROM t");
    for raw in [&mut direct, &mut raw] {
        ask(raw, |o| put_close(o, "s"));
        prepare(raw, "s", "SELECT * FROM t");
    }
    for _ in 0..2 {
        for raw in [&mut direct, &mut raw, &mut other] {
            let messages = ask(raw, |o| put_run(o, "s", &[]));
            assert_eq!(tags(&messages), "2DCZ", "{}", outline(&messages));
            assert_eq!(messages[1].row(), [Some("1".to_owned()), Some("x".to_owned())]);
        }
    }
}

/// What two clients are answered, the first of which has another table by that name for a while.
fn one_of_two_has_another_table(port: u16, database: &str, sql: &str, around: &[[&str; 2]]) -> Vec<String> {
    let (mut one, mut other) = (Raw::login(port, database), Raw::login(port, database));
    let mut seen = Vec::new();
    let mut see = |messages: &[Message]| seen.push(comparable(messages));
    for raw in [&mut one, &mut other] {
        prepare(raw, "s", sql);
        ask(raw, |o| f::put_target(o, f::DESCRIBE, b'S', b"s"));
        (0..3).for_each(|_| see(&ask(raw, |o| put_run(o, "s", &[]))));
    }
    for [before, after] in around {
        before.split("; ").for_each(|text| drop(one.query(text)));
        (0..2).for_each(|_| see(&ask(&mut one, |o| (0..2).for_each(|_| put_run(o, "s", &[])))));
        // Who holds a lock is not waited for.
        let meanwhile = if before.contains("ALTER") { 0 } else { 3 };
        (0..meanwhile).for_each(|_| see(&ask(&mut other, |o| put_run(o, "s", &[]))));
        after.split("; ").for_each(|text| drop(one.query(text)));
        for raw in [&mut one, &mut other] {
            (0..3).for_each(|_| see(&ask(raw, |o| put_run(o, "s", &[]))));
        }
    }
    seen
}

#[test]
fn another_table_of_one_client_fails_the_statements_of_no_other() {
    let around = [
        ["CREATE TEMP TABLE t (b text)", "DROP TABLE pg_temp.t"],
        ["BEGIN; SET LOCAL search_path = other", "ROLLBACK"],
        ["SET search_path = other", "RESET search_path"],
        ["BEGIN; ALTER TABLE public.u ADD b int", "ROLLBACK"],
    ];
    for sql in ["SELECT * FROM t", "SELECT * FROM u", "INSERT INTO t VALUES (2) RETURNING *"] {
        let (server, proxy, database) = rotating("");
        server.psql(
            &database,
            "CREATE TABLE t AS SELECT 1 AS a; CREATE TABLE u AS SELECT 1 AS a; CREATE SCHEMA other; CREATE TABLE other.t (b text)",
        );
        let expected = one_of_two_has_another_table(server.port(), &database, sql, &around);
        server.psql(&database, "TRUNCATE t; INSERT INTO t VALUES (1)");
        let seen = one_of_two_has_another_table(proxy.port(), &database, sql, &around);
        assert!(expected.iter().any(|one| one.contains("0A000")), "{expected:?}");
        assert_eq!(seen, expected, "{sql}");
    }
}

/// What one client's `search_path` leads to settles no parameter of another's, who prepared the same text and was told nothing of it.
#[test]
fn a_search_path_of_one_client_types_the_parameters_of_no_other() {
    let (server, proxy, database) = rotating("");
    server.psql(&database, "CREATE TABLE t (b text); CREATE SCHEMA other; CREATE TABLE other.t (b int)");
    let (mut one, mut other) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
    for raw in [&mut one, &mut other] {
        prepare(raw, "s", "INSERT INTO t VALUES ($1)");
    }
    one.rows("SET search_path = other");
    (0..6).for_each(|_| drop(ask(&mut one, |o| put_run(o, "s", &["5"]))));
    // Where a COPY would go is asked for beside that.
    let known = || Raw::login(proxy.port(), "pgsluice").rows("SHOW COALESCE_TABLES");
    let other_is_known = || known().iter().flatten().flatten().any(|value| value == "other.t").then_some(());
    poll(PATIENCE, other_is_known).unwrap_or_else(|| panic!("{:?}", known()));
    for _ in 0..6 {
        assert_eq!(tags(&ask(&mut other, |o| put_run(o, "s", &["007"]))), "2CZ");
    }
    assert_eq!(server.psql(&database, "SELECT count(*) FROM t WHERE b = '007'").trim(), "6");
}

#[test]
fn a_table_of_one_transaction_types_the_parameters_of_no_other() {
    let (server, proxy, database) = one("[coalesce]\nmode = \"off\"");
    server.psql(&database, "CREATE TABLE t (b text); CREATE SCHEMA other; CREATE TABLE other.t (b int)");
    let (mut one, mut other) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
    for raw in [&mut one, &mut other] {
        prepare(raw, "s", "INSERT INTO t VALUES ($1)");
    }
    for way in [
        "SET LOCAL search_path = other",
        "CREATE TEMP TABLE t (b int) ON COMMIT DROP",
        "ALTER TABLE t ALTER b TYPE int USING 0",
    ] {
        // The next connection does not have the statement.
        support::console::tell(&mut Raw::login(proxy.port(), "pgsluice"), "RECONNECT");
        one.rows("BEGIN");
        one.rows(way);
        for _ in 0..2 {
            assert_eq!(tags(&ask(&mut one, |o| put_run(o, "s", &["5"]))), "2CZ", "{way}");
        }
        one.rows("ROLLBACK");
        for _ in 0..2 {
            assert_eq!(tags(&ask(&mut other, |o| put_run(o, "s", &["007"]))), "2CZ", "{way}");
        }
        let stored = server.psql(&database, "SELECT b FROM t; TRUNCATE t");
        assert_eq!(stored.split_whitespace().collect::<Vec<_>>(), ["007", "007"], "{way}");
    }
}

/// The types of a statement's parameters, as the server says them.
fn types(raw: &mut Raw, name: &str) -> Vec<u8> {
    let messages = ask(raw, |o| f::put_target(o, f::DESCRIBE, b'S', name.as_bytes()));
    assert_eq!(messages[0].tag, b::PARAMETER_DESCRIPTION, "{}", outline(&messages));
    messages[0].body.clone()
}

/// The same text, prepared again each time a catalogue was changed, in a database of its own: what it means each time.
fn prepared_again(port: u16, database: &str) -> Vec<Vec<u8>> {
    const INSERT: &str = "INSERT INTO t VALUES ($1)";
    let mut seen = Vec::new();
    let mut raw = Raw::login(port, database);
    let mut see = |raw: &mut Raw, name: &str, sql: &str| {
        prepare(raw, name, sql);
        seen.push(types(raw, name));
    };
    raw.rows("CREATE TABLE t (a int)");
    see(&mut raw, "first", INSERT);
    raw.rows("ALTER TABLE t ALTER a TYPE boolean USING a::boolean");
    see(&mut raw, "altered", INSERT);
    see(&mut Raw::login(port, database), "another session", INSERT);
    raw.rows("BEGIN");
    raw.rows("DO 'BEGIN ALTER TABLE t ALTER a TYPE text; END'");
    see(&mut raw, "in a block", INSERT);
    raw.rows("ROLLBACK");
    see(&mut raw, "rolled back", INSERT);
    see(&mut raw, "and again", INSERT);
    raw.extended("DROP TABLE t", &[]);
    raw.extended("CREATE TABLE t (a bigint)", &[]);
    see(&mut raw, "dropped", INSERT);

    raw.rows("CREATE TABLE p AS SELECT 'all'::text AS who");
    for (name, temporary) in [("nothing", false), ("table", true), ("again", true)] {
        if temporary {
            raw.rows("DROP TABLE IF EXISTS pg_temp.p");
            raw.rows(&format!("CREATE TEMP TABLE p AS SELECT '{name}'::text AS who"));
        }
        prepare(&mut raw, name, "SELECT who FROM p");
        seen.push(run(&mut raw, name, &[]).into_bytes());
        prepare(&mut raw, &format!("{name}, once more"), "SELECT who FROM p");
        seen.push(run(&mut raw, &format!("{name}, once more"), &[]).into_bytes());
    }
    let mut other = Raw::login(port, database);
    raw.terminate();
    prepare(&mut other, "behind", "SELECT who FROM p");
    seen.push(run(&mut other, "behind", &[]).into_bytes());

    // Each session's own type by one name: what the last one left under it means nothing here.
    other.terminate();
    for field in ["int", "text"] {
        let mut raw = Raw::login(port, database);
        raw.rows(&format!("CREATE TYPE pg_temp.item AS (a {field})"));
        prepare(&mut raw, "item", "SELECT ($1::item).a");
        seen.push(run(&mut raw, "item", &["(7)"]).into_bytes());
        raw.terminate();
    }
    seen
}

#[test]
fn a_text_prepared_again_behind_ddl_means_what_it_means_now() {
    let server = Postgres::shared();
    let direct = prepared_again(server.port(), &server.fresh_database(""));
    let (_, proxy, database) = one("");
    assert_eq!(prepared_again(proxy.port(), &database), direct);
    let (_, proxy, database) = rotating("");
    assert_eq!(prepared_again(proxy.port(), &database), direct);
}

/// What makes a table and is not told so by its tag: `{t}` is to be made, where another one of that name stands behind it in the path.
const MAKERS: &[&str] = &[
    "CREATE TABLE s1.{t} AS SELECT 's1'::text AS a",
    "create table if not exists s1.{t} as select 's1'::text as a",
    "SELECT 's1'::text AS a INTO s1.{t}",
    "/* INSERT */ WITH q AS (SELECT 's1'::text AS a) SELECT * INTO TABLE s1.{t} FROM q",
    "(SELECT 's1'::text AS a INTO s1.{t})",
    "CREATE MATERIALIZED VIEW s1.{t} AS SELECT 's1'::text AS a",
    "EXPLAIN ANALYZE CREATE TABLE s1.{t} AS SELECT 's1'::text AS a",
    "EXPLAIN (ANALYZE, COSTS off) SELECT 's1'::text AS a Into s1.{t}",
    "-- a\nEXPLAIN ANALYZE CREATE MATERIALIZED VIEW s1.{t} AS SELECT 's1'::text AS a",
];

/// A name, before and behind what makes a nearer table of that name, in each way to say that: what it means each time.
fn nearer_tables(port: u16, database: &str) -> Vec<String> {
    let login = || {
        let mut raw = Raw::login(port, database);
        raw.rows("SET search_path = s1, public");
        raw
    };
    let (mut own, mut other) = (login(), login());
    let mut seen = Vec::new();
    for (number, maker) in MAKERS.iter().enumerate() {
        for way in ["query", "extended", "block", "second", "pipeline", "temporary"] {
            let table = format!("{way}{number}");
            own.rows(&format!("CREATE TABLE public.{table} AS SELECT 'public'::text AS a"));
            let maker = maker.replace("{t}", &table);
            let mut see = |raw: &mut Raw, at: &str| {
                let name = format!("{table} {at}");
                prepare(raw, &name, &format!("SELECT a FROM {table}"));
                seen.push(format!("{name}: {}", run(raw, &name, &[])));
            };
            see(&mut own, "before");
            match way {
                "query" => drop(own.rows(&maker)),
                "extended" => drop(own.extended(&maker, &[])),
                "second" => drop(own.rows(&format!("SELECT 1; {maker}; SELECT 2"))),
                "pipeline" => {
                    own.send(&build(|o| {
                        ["SELECT 1", &maker].iter().for_each(|q| f::put_query(o, q.as_bytes()))
                    }));
                    (0..2).for_each(|_| drop(own.read_until_ready()));
                }
                _ => {
                    own.rows("BEGIN");
                    if way == "temporary" {
                        own.rows("CREATE TEMP TABLE IF NOT EXISTS beside (a int) ON COMMIT DROP");
                    }
                    own.rows(&maker);
                    see(&mut own, "inside");
                    own.rows("COMMIT");
                }
            }
            see(&mut own, "behind");
            see(&mut other, "another's");
        }
    }
    own.rows("CREATE TABLE public.by_name AS SELECT 'public'::text AS a");
    prepare(&mut own, "by name", "SELECT a FROM by_name");
    own.rows(
        "PREPARE body AS SELECT 's1'::text AS a; CREATE TABLE s1.by_name AS EXECUTE body; DEALLOCATE body",
    );
    prepare(&mut other, "by name", "SELECT a FROM by_name");
    seen.push(run(&mut other, "by name", &[]));
    seen
}

/// The server calls it `SELECT 1` or `EXPLAIN`.
#[test]
fn a_table_that_a_query_makes_is_what_its_name_means_from_then_on() {
    let server = Postgres::shared();
    let direct = nearer_tables(server.port(), &server.fresh_database("CREATE SCHEMA s1"));
    let (server, proxy, database) = one("");
    server.psql(&database, "CREATE SCHEMA s1");
    assert_eq!(nearer_tables(proxy.port(), &database), direct);
}

/// The answer to what was asked before a transaction ends nothing of what that sets.
#[test]
fn what_a_pipelined_transaction_sets_is_its_own_whatever_is_answered_meanwhile() {
    const DATE: &str = "SELECT extract(month FROM date '02/03/2024')::text /* pipelined */";
    let proxy = Proxy::to(Postgres::shared(), "default_pool_size = 1", "", "");
    let (mut own, mut other) = (Raw::login(proxy.port(), "postgres"), Raw::login(proxy.port(), "postgres"));
    let texts = ["SELECT 1", "BEGIN", "SET LOCAL DateStyle = 'ISO, DMY'"];
    own.send(&build(|o| put_queries(o, &texts)));
    texts.iter().for_each(|_| drop(own.read_until_ready()));
    prepare(&mut own, "own", DATE);
    assert_eq!(run(&mut own, "own", &[]), "3");
    own.rows("COMMIT");
    prepare(&mut other, "other's", DATE);
    assert_eq!(run(&mut other, "other's", &[]), "2");
}

/// A table that is there once its transaction is committed by name.
#[test]
fn a_prepared_transaction_changes_what_names_mean_when_it_is_committed() {
    let server = Postgres::shared();
    let [direct, through] = [false, true].map(|through| {
        let database =
            server.fresh_database("CREATE SCHEMA s1; CREATE TABLE t AS SELECT 'public'::text AS a");
        let proxy = through.then(|| Proxy::to(server, "default_pool_size = 1", "", ""));
        let mut raw = Raw::login(proxy.as_ref().map_or(server.port(), Proxy::port), &database);
        raw.rows("SET search_path = s1, public");
        let see = |raw: &mut Raw, name: &str| {
            prepare(raw, name, "SELECT a FROM t");
            run(raw, name, &[])
        };
        raw.rows("BEGIN");
        raw.rows("CREATE TABLE s1.t AS SELECT 's1'::text AS a");
        raw.rows("PREPARE TRANSACTION 'later'");
        let before = see(&mut raw, "before");
        raw.rows("COMMIT PREPARED 'later'");
        [before, see(&mut raw, "behind")]
    });
    assert_eq!(through, direct);
}

/// Row security is part of the plan, and most releases keep the plan when it comes to apply to the role.
#[test]
fn a_text_prepared_again_is_bound_by_row_security_that_has_come_to_apply() {
    const COUNT: &str = "SELECT count(*) FROM t WHERE $1";
    let (server, proxy, database) = one("");
    server.psql("postgres", "CREATE ROLE prepared_owner; CREATE ROLE prepared_bound LOGIN");
    server.psql(
        &database,
        "CREATE TABLE t AS SELECT 1 AS a; ALTER TABLE t ENABLE ROW LEVEL SECURITY, OWNER TO prepared_owner;
         GRANT SELECT ON t TO prepared_bound",
    );
    let bound = || {
        let login = [("user", "prepared_bound"), ("database", database.as_str())];
        Raw::login_as(proxy.port(), &login, "").expect("login")
    };
    let (mut admin, mut before) = (Raw::login(proxy.port(), &database), bound());
    for (free, binds) in [
        ("GRANT prepared_owner TO prepared_bound", "REVOKE prepared_owner FROM prepared_bound"),
        ("ALTER ROLE prepared_bound BYPASSRLS", "ALTER ROLE prepared_bound NOBYPASSRLS"),
    ] {
        admin.rows(free);
        prepare(&mut before, free, COUNT);
        assert_eq!(run(&mut before, free, &["true"]), "1");
        admin.rows(binds);
        let mut after = bound();
        prepare(&mut after, "s", COUNT);
        assert_eq!(run(&mut after, "s", &["true"]), "0", "{binds}");
    }
}

#[test]
fn statements_pass_untouched_when_their_number_is_zero() {
    let (_, proxy, database) = one("max_prepared_statements = 0");
    let mut raw = Raw::login(proxy.port(), &database);
    prepare(&mut raw, "s", "SELECT name FROM pg_prepared_statements");
    assert_eq!(run(&mut raw, "s", &[]), "s");
}

#[test]
fn binary_parameters_and_types_are_kept() {
    let (_, proxy, database) = rotating("");
    let mut raw = Raw::login(proxy.port(), &database);
    let messages = ask(&mut raw, |o| f::put_parse(o, b"s", b"SELECT $1 + 1", &20u32.to_be_bytes()));
    assert_eq!(tags(&messages), "1Z");
    for n in 0..4i64 {
        let messages = ask(&mut raw, |o| {
            frame::put(o, f::BIND, |o| {
                o.extend_from_slice(b"\0s\0\0\x01\0\x01\0\x01\0\0\0\x08");
                o.extend_from_slice(&n.to_be_bytes());
                o.extend_from_slice(b"\0\x01\0\x01");
            });
            f::put_execute(o, b"", 0);
        });
        assert_eq!(messages[1].body[6..], (n + 1).to_be_bytes());
    }
    // The same text with another type is another statement.
    ask(&mut raw, |o| f::put_parse(o, b"t", b"SELECT $1 + 1", &23u32.to_be_bytes()));
    let described = ask(&mut raw, |o| f::put_target(o, f::DESCRIBE, b'S', b"t"));
    assert_eq!(described[0].body, [0, 1, 0, 0, 0, 23]);
}

#[test]
fn untracked_names_or_not_an_unnamed_statement_is_never_another_clients() {
    for general in ["max_prepared_statements = 0", ""] {
        let (_, proxy, database) = one(general);
        let (mut a, mut other) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
        // Nobody's, although the connection has one.
        prepare(&mut other, "", "SELECT 'others'");
        assert_eq!(failure(&mut a, |o| put_run(o, "", &[])), "26000");
        assert_eq!(failure(&mut a, |o| f::put_target(o, f::DESCRIBE, b'S', b"")), "26000");
        prepare(&mut a, "", "SELECT 'mine', $1::int");
        assert_eq!(run(&mut other, "", &[]), "others");
        assert_eq!(run(&mut a, "", &["1"]), "mine", "{general}");
        other.rows("SELECT 1");
        let described = ask(&mut a, |o| f::put_target(o, f::DESCRIBE, b'S', b""));
        assert_eq!(tags(&described), "tTZ");
        assert_eq!(described[0].body[..2], [0, 1], "of one parameter");
        assert_eq!(run(&mut a, "", &["1"]), "mine", "{general}");
        // A Query takes it away, its own or none.
        assert_eq!(failure(&mut other, |o| put_run(o, "", &[])), "26000");
        a.rows("SELECT 1");
        assert_eq!(failure(&mut a, |o| put_run(o, "", &[])), "26000");
    }
}

/// Clients that are there keep their way with names until they leave, and get no connection on which others' names may be.
#[test]
fn a_reload_to_zero_or_from_it_leaves_each_name_what_it_is() {
    let server = Postgres::shared();
    let database = server.fresh_database("");
    let config = |max: usize| {
        Proxy::config(server, &format!("default_pool_size = 1\nmax_prepared_statements = {max}"), "", "")
    };
    let proxy = Proxy::start(&config(200));
    let reload = |max| {
        proxy.write_config(&config(max));
        Raw::login(proxy.port(), "pgsluice").rows("RELOAD");
    };
    let come = || Raw::login(proxy.port(), &database);
    let mut followed = come();
    prepare(&mut followed, "a", "SELECT 'first'");
    prepare(&mut followed, "b", "SELECT 'b'");
    followed.rows("BEGIN");
    reload(0);
    assert_eq!(run(&mut followed, "b", &[]), "b", "inside a block");
    followed.rows("COMMIT");
    assert_eq!(run(&mut followed, "b", &[]), "b", "behind it");
    assert_eq!(tags(&ask(&mut followed, |o| put_close(o, "a"))), "3Z");
    prepare(&mut followed, "a", "SELECT 'second'");
    let mut passed = come();
    prepare(&mut passed, "theirs", "SELECT 'theirs'");
    assert_eq!(run(&mut passed, "theirs", &[]), "theirs");
    assert_eq!(failure(&mut followed, |o| put_run(o, "theirs", &[])), "26000", "another's");
    assert_eq!(run(&mut followed, "a", &[]), "second");
    prepare(&mut passed, "again", "SELECT 'again'");
    reload(200);
    assert_eq!(run(&mut passed, "again", &[]), "again", "names pass as they did");
    assert_eq!(failure(&mut come(), |o| put_run(o, "again", &[])), "26000", "another's");
    assert_eq!(run(&mut followed, "a", &[]), "second");
    assert_eq!(run(&mut followed, "b", &[]), "b");
}

#[test]
fn what_an_untracked_name_sets_does_not_stay_behind() {
    let (_, proxy, database) = one("max_prepared_statements = 0");
    let (mut a, mut other) = (Raw::login(proxy.port(), &database), Raw::login(proxy.port(), &database));
    prepare(&mut a, "set", "SET work_mem = '3MB'");
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
    assert_eq!(tags(&ask(&mut a, |o| put_run(o, "set", &[]))), "2CZ");
    assert_eq!(other.value("SHOW work_mem").as_deref(), Some("4MB"));
    assert_eq!(a.value("SHOW work_mem").as_deref(), Some("3MB"));
}

/// What stood in its place would decide which settings others have.
#[test]
fn no_message_reaches_what_pgsluice_has_prepared_for_all() {
    for general in ["max_prepared_statements = 0", ""] {
        let (_, proxy, database) = one(general);
        let come = || Raw::login(proxy.port(), &database);
        let (mut a, mut other) = (come(), come());
        other.rows("SET work_mem = '3MB'");
        let sets = "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%set_config($1,$2,false)'";
        let name = a.value(sets).expect("what sets work_mem");
        assert_eq!(tags(&ask(&mut a, |o| put_close(o, &name))), "3Z");
        let trap = "SELECT pg_catalog.set_config($1, $2, true)";
        ask(&mut a, |o| put_parse(o, &name, trap));
        if !general.is_empty() {
            assert_eq!(failure(&mut a, |o| put_parse(o, &name, trap)), "42P05");
            assert_eq!(failure(&mut a, |o| put_run(o, &name, &["work_mem", "2MB"])), "26000");
            assert_eq!(failure(&mut a, |o| f::put_target(o, f::DESCRIBE, b'S', name.as_bytes())), "26000");
            let long = "x".repeat(PREPARED_TEXT_BYTES_MAX);
            assert_eq!(failure(&mut a, |o| put_parse(o, &name, &format!("{trap} --{long}"))), "42P05");
        }
        assert_eq!(other.value("SHOW work_mem").as_deref(), Some("3MB"));
        assert_eq!(a.value("SHOW work_mem").as_deref(), Some("4MB"));
        assert_eq!(other.value("SHOW work_mem").as_deref(), Some("3MB"));
    }
}

/// PostgreSQL plans a prepared statement anew behind DDL, with the types of its parameters as they were: a value that was
/// encoded as one type is never read as another, whichever connection it comes to, poured or not.
#[test]
fn parameters_keep_the_types_that_were_told_whatever_becomes_of_their_columns() {
    let (pg, proxy, db) = rotating("");
    let (four, eight) = (5i32.to_be_bytes(), 5i64.to_be_bytes());
    let changes = [
        ("int4", "float4", &four[..]),
        ("int8", "timestamp", &eight),
        ("int4", "int8", &four),
        ("int8", "float8", &eight),
        ("int8", "money", &eight),
    ];
    let texts = [
        "INSERT INTO TOLD VALUES ($1)",
        "INSERT INTO TOLD VALUES ($1) RETURNING 1",
        "UPDATE TOLD SET a = $1",
    ];
    let mut tables = 0;
    for ((before, after, sent), text) in changes.into_iter().flat_map(|change| texts.map(|sql| (change, sql)))
    {
        // What no Parse takes any more is described no more, either: direct its description is still there.
        let described_again = after != "timestamp";
        for (name, redescribes) in [("", false), ("s", false), ("s", described_again)] {
            // Whoever held the text of the case before may still be there, and what others hold is shared.
            tables += 1;
            let table = format!("told{tables}");
            let sql = &text.replace("TOLD", &table);
            let answers = [pg.port(), proxy.port()].map(|port| {
                pg.psql(&db, &format!("DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (a {before}); INSERT INTO {table} VALUES (NULL)"));
                let mut clients = [(); 2].map(|()| Raw::login(port, &db));
                let told = clients.each_mut().map(|client| {
                    comparable(&ask(client, |out| {
                        put_parse(out, name, sql);
                        f::put_target(out, f::DESCRIBE, b'S', name.as_bytes());
                    }))
                });
                pg.psql(&db, &format!("ALTER TABLE {table} ALTER a TYPE {after} USING NULL"));
                let mut later = Raw::login(port, &db);
                let anew = comparable(&ask(&mut later, |out| {
                    put_parse(out, "t", sql);
                    f::put_target(out, f::DESCRIBE, b'S', b"t");
                }));
                let mut ran = Vec::new();
                for round in 0..8 {
                    ran.push(comparable(&ask(&mut clients[round % 2], |out| {
                        if redescribes && round < 4 {
                            f::put_target(out, f::DESCRIBE, b'S', name.as_bytes());
                        }
                        put_bind_binary(out, name.as_bytes(), &[Some(sent)]);
                        f::put_execute(out, b"", 0);
                    })));
                }
                (told, anew, ran, pg.psql(&db, &format!("SELECT a FROM {table}")))
            });
            let [direct, ours] = answers;
            let case = format!("{before} to {after}, {sql:?} as {name:?}, described again: {redescribes}");
            assert_eq!((&ours.0, &ours.2, &ours.3), (&direct.0, &direct.2, &direct.3), "{case}");
            // Told by a Parse of that moment, or by the one that others share; as it binds what it was told, both are right.
            assert!(ours.1 == direct.1 || ours.1 == direct.0[0], "{case}: {}", ours.1);
        }
    }
}

/// Rows are read as they were described: where a change of a column gave a parameter another type, too, who was told of both before
/// gets PostgreSQL's error on every connection, and so does who came between that change and the next.
#[test]
fn rows_are_never_other_than_told_where_parameters_changed_as_well() {
    let (pg, proxy, db) = rotating("");
    let mut tables = 0;
    for (text, value) in [
        ("SELECT * FROM SHOWN WHERE a > $1", "0"),
        ("UPDATE SHOWN SET a = $1 RETURNING a", "1"),
        ("INSERT INTO SHOWN VALUES ($1) RETURNING a", "1"),
    ] {
        for (own, late_first) in [(false, false), (true, false), (false, true), (true, true)] {
            // pgsluice asks about the table of an INSERT beside that, and so the next transaction is not on the third connection: there
            // whoever comes first behind a change that it did not see may get the error.
            if !own && late_first && text.starts_with("INSERT") {
                continue;
            }
            tables += 1;
            let table = format!("shown{tables}");
            let sql = &text.replace("SHOWN", &table);
            let answers = [pg.port(), proxy.port()].map(|port| {
                pg.psql(&db, &format!("DROP TABLE IF EXISTS {table}; CREATE TABLE {table} AS SELECT 1 AS a"));
                let mut clients = [(); 2].map(|()| Raw::login(port, &db));
                let tell = |client: &mut Raw, name: &str| {
                    comparable(&ask(client, |out| {
                        put_parse(out, name, sql);
                        f::put_target(out, f::DESCRIBE, b'S', name.as_bytes());
                    }))
                };
                let runs = |client: &mut Raw, name: &str| {
                    [(); 4].map(|()| comparable(&ask(client, |out| put_run(out, name, &[value]))))
                };
                let told = clients.each_mut().map(|client| tell(client, "s"));
                let alter = |client: &mut Raw, to: &str| {
                    let alter = format!("ALTER TABLE {table} ALTER a TYPE {to} USING 1");
                    if own { drop(client.query(&alter)) } else { drop(pg.psql(&db, &alter)) }
                };
                alter(&mut clients[0], "int8");
                let mut late = Raw::login(port, &db);
                let before =
                    if late_first { vec![] } else { clients.each_mut().map(|c| runs(c, "s")).to_vec() };
                let anew = tell(&mut late, "t");
                let ran = runs(&mut late, "t");
                let behind = clients.each_mut().map(|c| runs(c, "s"));
                alter(&mut late, "numeric");
                (told, before, anew, ran, behind, runs(&mut late, "t"))
            });
            let [direct, ours] = answers;
            assert!(direct.4.iter().flatten().all(|ran| ran.contains("0A000")), "{direct:?}");
            assert_eq!(ours, direct, "{sql:?}, by itself: {own}, {late_first}");
        }
    }
}

/// Where pgsluice asked about an INSERT of its clients' the statement is there, and its rows may look otherwise than they were told.
#[test]
fn what_is_prepared_to_ask_about_an_insert_is_compared_as_well() {
    let (pg, proxy, db) = rotating("");
    for table in (0..12).map(|n| format!("asked{n}")) {
        let sql = &format!("INSERT INTO {table} VALUES (1, $1) RETURNING a");
        pg.psql(&db, &format!("CREATE TABLE {table} (a int, b text)"));
        let mut raw = Raw::login(proxy.port(), &db);
        ask(&mut raw, |out| {
            f::put_parse(out, b"s", sql.as_bytes(), &25u32.to_be_bytes());
            f::put_target(out, f::DESCRIBE, b'S', b"s");
        });
        pg.psql(&db, &format!("ALTER TABLE {table} ALTER a TYPE bigint"));
        for run in 0..9 {
            assert_eq!(failure(&mut raw, |out| put_run(out, "s", &["x"])), "0A000", "{table}, run {run}");
        }
    }
}

/// Rows are compared with what was told of them, wherever and by whom the statement was parsed behind a change that pgsluice did not see,
/// and whichever portal they were told of.
#[test]
fn rows_are_never_other_than_told_where_another_client_parsed_them() {
    let (pg, proxy, db) = rotating("");
    for (case, (portal, runs_too)) in
        [(None, false), (None, true), (Some("c"), false), (Some(""), true), (Some("c"), true)]
            .into_iter()
            .enumerate()
    {
        let sql = &format!("SELECT a FROM parsed{case}");
        let unit = |out: &mut Vec<u8>, portal: &str| {
            put_parse(out, "s", sql);
            f::put_bind_text_to(out, portal.as_bytes(), b"s", &[]);
            f::put_target(out, f::DESCRIBE, b'P', portal.as_bytes());
            f::put_execute(out, portal.as_bytes(), 0);
        };
        pg.psql(&db, &format!("CREATE TABLE parsed{case} AS SELECT 1 AS a"));
        let mut raw = Raw::login(proxy.port(), &db);
        ask(&mut raw, |out| match portal {
            None => {
                put_parse(out, "s", sql);
                f::put_target(out, f::DESCRIBE, b'S', b"s");
            }
            Some(portal) => unit(out, portal),
        });
        pg.psql(&db, &format!("ALTER TABLE parsed{case} ALTER a TYPE bigint"));
        for _ in 0..3 {
            let mut other = Raw::login(proxy.port(), &db);
            if runs_too {
                ask(&mut other, |out| unit(out, ""));
            } else {
                ask(&mut other, |out| put_parse(out, "s", sql));
            }
        }
        for run in 0..6 {
            assert_eq!(
                failure(&mut raw, |out| put_run(out, "s", &[])),
                "0A000",
                "{portal:?}, {runs_too}, run {run}"
            );
        }
    }
}

/// Pgjdbc has portals with names where it fetches some rows at a time, and knows how they look from then on.
#[test]
fn rows_are_never_other_than_told_of_a_portal_with_a_name() {
    let (pg, proxy, db) = rotating("");
    for portal in ["", "c"] {
        let table = format!("portals{portal}");
        pg.psql(&db, &format!("CREATE TABLE {table} AS SELECT 1 AS a"));
        let mut raw = Raw::login(proxy.port(), &db);
        ask(&mut raw, |out| {
            put_parse(out, "s", &format!("SELECT a FROM {table}"));
            f::put_bind_text_to(out, portal.as_bytes(), b"s", &[]);
            f::put_target(out, f::DESCRIBE, b'P', portal.as_bytes());
            f::put_execute(out, portal.as_bytes(), 50);
        });
        pg.psql(&db, &format!("ALTER TABLE {table} ALTER a TYPE bigint"));
        for run in 0..6 {
            assert_eq!(failure(&mut raw, |out| put_run(out, "s", &[])), "0A000", "{portal:?}, run {run}");
        }
    }
}

/// Of two names for one text each is what was told of it.
#[test]
fn what_is_told_of_one_name_is_not_told_of_another() {
    let (pg, proxy, db) = rotating("");
    for (table, condition) in [("names0", ""), ("names1", " WHERE a > $1")] {
        let values = if condition.is_empty() { &[][..] } else { &["0"] };
        pg.psql(&db, &format!("CREATE TABLE {table} AS SELECT 1 AS a"));
        let mut raw = Raw::login(proxy.port(), &db);
        for name in ["s", "t"] {
            ask(&mut raw, |out| {
                put_parse(out, name, &format!("SELECT a FROM {table}{condition}"));
                f::put_target(out, f::DESCRIBE, b'S', name.as_bytes());
            });
        }
        pg.psql(&db, &format!("ALTER TABLE {table} ALTER a TYPE bigint"));
        // Where it is not yet it tells what is so now.
        for _ in 0..3 {
            ask(&mut raw, |out| f::put_target(out, f::DESCRIBE, b'S', b"t"));
        }
        for run in 0..6 {
            assert_eq!(failure(&mut raw, |out| put_run(out, "s", values)), "0A000", "{table}, run {run}");
        }
    }
}

/// Asyncpg without its cache and pgx' `DescribeExec` describe the unnamed statement in one round trip and run it in the next: a table that
/// is changed in between is told, also where another client's statement stands there, or another connection is met.
#[test]
fn rows_of_the_unnamed_statement_are_never_other_than_told() {
    for (pg, proxy, db) in [rotating(""), one("")] {
        for (sql, values) in [
            ("SELECT a FROM unnamed", &[][..]),
            ("SELECT a FROM unnamed WHERE a > $1", &["0"]),
            ("INSERT INTO unnamed VALUES ($1) RETURNING a", &["1"]),
        ] {
            let answers = [pg.port(), proxy.port()].map(|port| {
                pg.psql(&db, "DROP TABLE IF EXISTS unnamed; CREATE TABLE unnamed AS SELECT 1 AS a");
                let [mut raw, mut other] = [(); 2].map(|()| Raw::login(port, &db));
                let mut describe = |to: &str| {
                    let told = ask(&mut raw, |out| {
                        put_parse(out, "", sql);
                        f::put_target(out, f::DESCRIBE, b'S', b"");
                    });
                    if !to.is_empty() {
                        pg.psql(&db, &format!("ALTER TABLE unnamed ALTER a TYPE {to} USING 1"));
                    }
                    // Twice: it is not the one that was described from then on, either.
                    let ran = [(); 4].map(|()| {
                        ask(&mut other, |out| {
                            put_parse(out, "", "SELECT");
                            put_run(out, "", &[]);
                        });
                        comparable(&ask(&mut raw, |out| put_run(out, "", values)))
                    });
                    // A Parse that is struck leaves what was told of the one before it.
                    let struck = comparable(&ask(&mut raw, |out| {
                        put_run(out, "", if to.is_empty() { &["none", "of", "them"] } else { values });
                        put_parse(out, "", "SELECT 2");
                    }));
                    ask(&mut other, |out| put_parse(out, "", "SELECT"));
                    (
                        comparable(&told),
                        ran,
                        struck,
                        comparable(&ask(&mut raw, |out| put_run(out, "", values))),
                    )
                };
                [describe(""), describe("bigint"), describe(""), describe("text")]
            });
            let [direct, ours] = answers;
            assert_eq!(ours, direct, "{sql}");
        }
    }
}

/// A description that breaks off behind the parameters says nothing of the rows.
#[test]
fn rows_whose_description_fails_are_not_taken_for_what_was_told() {
    let (pg, proxy, db) = one("");
    pg.psql(&db, "CREATE TABLE half AS SELECT 1 AS a");
    let mut raw = Raw::login(proxy.port(), &db);
    raw.rows("SET lock_timeout = 100");
    ask(&mut raw, |out| {
        put_parse(out, "s", "SELECT a FROM half");
        f::put_target(out, f::DESCRIBE, b'S', b"s");
    });
    pg.psql(&db, "ALTER TABLE half ALTER a TYPE bigint");
    Raw::login(proxy.port(), "pgsluice").rows("RECONNECT");
    assert_eq!(failure(&mut raw, |out| put_run(out, "s", &[])), "0A000");
    let mut other = Raw::login(pg.port(), &db);
    other.query("BEGIN; LOCK TABLE half");
    assert_eq!(failure(&mut raw, |out| f::put_target(out, f::DESCRIBE, b'S', b"s")), "55P03");
    other.query("ROLLBACK");
    assert_eq!(failure(&mut raw, |out| put_run(out, "s", &[])), "0A000");
}

/// Clients share what they prepared under the same settings. Who runs it under others now, on a connection that does not have it,
/// prepares it for itself alone.
#[test]
fn what_a_client_reads_under_other_settings_is_nobody_elses() {
    let server = Postgres::shared();
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let text = "SELECT extract(month FROM date '02/03/2024')::text, $1::int";
    let run = |raw: &mut Raw| {
        raw.send(&build(|o| {
            put_run(o, "s", &["1"]);
            sync(o);
        }));
        let seen = raw.read_until_ready();
        seen.iter().find(|m| m.tag == b::DATA_ROW).map_or_else(|| outline(&seen), Message::outline)
    };
    let day_first = || {
        let mut raw = Raw::login(proxy.port(), "postgres");
        raw.rows("SET DateStyle = 'ISO, DMY'");
        raw.send(&build(|o| {
            put_parse(o, "s", text);
            f::put_target(o, f::DESCRIBE, b'S', b"s");
            sync(o);
        }));
        raw.read_until_ready();
        raw
    };
    let (mut changed, mut as_before) = (day_first(), day_first());
    let march = run(&mut as_before);
    assert!(march.contains('3'), "{march}");
    assert_eq!(run(&mut changed), march);
    changed.rows("SET DateStyle = 'ISO, MDY'");
    assert_eq!(run(&mut changed), march, "it was parsed before");
    Raw::login(proxy.port(), "pgsluice").rows("RECONNECT");
    let february = run(&mut changed);
    assert!(february.contains('2') && february != march, "{february}");
    assert_eq!(run(&mut as_before), march);
    assert_eq!(run(&mut day_first()), march);
    changed.rows("SET DateStyle = 'ISO, DMY'");
    Raw::login(proxy.port(), "pgsluice").rows("RECONNECT");
    assert_eq!(run(&mut changed), march);
}

/// Also where those who have that text under the settings of now were told of other rows.
#[test]
fn what_is_read_under_other_settings_is_nobody_elses_whatever_was_told_of_it() {
    let (pg, proxy, db) = one("");
    pg.psql(&db, "CREATE TABLE moved AS SELECT 1 AS a");
    let prepared = |style: &str| {
        let mut raw = Raw::login(proxy.port(), &db);
        raw.rows(&format!("SET DateStyle = 'ISO, {style}'"));
        ask(&mut raw, |out| {
            put_parse(out, "s", "SELECT extract(month FROM date '02/03/2024')::text, a FROM moved");
            f::put_target(out, f::DESCRIBE, b'S', b"s");
        });
        raw
    };
    let (mut changed, mut as_before) = (prepared("MDY"), prepared("MDY"));
    pg.psql(&db, "ALTER TABLE moved ALTER a TYPE bigint");
    let _told_otherwise = prepared("DMY");
    pg.psql(&db, "ALTER TABLE moved ALTER a TYPE int");
    Raw::login(proxy.port(), "pgsluice").rows("RECONNECT");
    changed.rows("SET DateStyle = 'ISO, DMY'");
    assert_eq!(run(&mut changed, "s", &[]), "3");
    assert_eq!(run(&mut as_before, "s", &[]), "2");
}

/// What is prepared behind a SET or a new table of the same transaction means what it means there, and nobody else is given it.
#[test]
fn what_is_prepared_under_what_a_transaction_sets_is_its_own() {
    let server = Postgres::shared();
    let database = server.fresh_database(
        "CREATE SCHEMA one CREATE TABLE t (v int); CREATE SCHEMA two CREATE TABLE t (v text); CREATE TABLE d (v date)",
    );
    let proxy = Proxy::to(server, "default_pool_size = 1", "", "");
    let date = "SELECT '02/03/2024'::date::text, $1::text";
    let ask_for = |raw: &mut Raw, name: &str, parse: Option<&str>| {
        comparable(&ask(raw, |o| {
            if let Some(text) = parse {
                put_parse(o, name, text);
            }
            put_run(o, name, &["1"]);
        }))
    };
    // Each: what the first client says before its Parse, in a block; how the block ends.
    let dates = ["SET LOCAL DateStyle = 'ISO, DMY'", "SET DateStyle = 'ISO, DMY'"];
    for (set, end) in dates.into_iter().flat_map(|set| ["COMMIT", "ROLLBACK"].map(|end| (set, end))) {
        let [direct, through] = [server.port(), proxy.port()].map(|port| {
            let mut own = Raw::login(port, &database);
            let mut other = Raw::login(port, &database);
            let text = format!("{date} /* {set} {end} */");
            let mut seen = vec![ask_for(&mut own, "before", Some(&text))];
            own.rows("BEGIN");
            own.rows(set);
            seen.push(ask_for(&mut own, "inside", Some(&text)));
            own.rows(end);
            seen.push(ask_for(&mut other, "theirs", Some(&text)));
            seen.push(ask_for(&mut own, "before", None));
            // First made inside.
            let fresh = format!("{text} -- again");
            own.rows("BEGIN");
            own.rows(set);
            seen.push(ask_for(&mut own, "first", Some(&fresh)));
            own.rows(end);
            seen.push(ask_for(&mut other, "second", Some(&fresh)));
            seen
        });
        assert_eq!(through, direct, "{set}, {end}");
    }
    let insert = "INSERT INTO t VALUES ($1)";
    let [direct, through] =
        [server.port(), proxy.port()].map(|port| {
            server.psql(&database, "TRUNCATE one.t, two.t");
            let mut own = Raw::login(port, &database);
            let mut other = Raw::login(port, &database);
            [&mut own, &mut other].into_iter().for_each(|raw| drop(raw.rows("SET search_path = one")));
            let run = |raw: &mut Raw, name: &str, before: &[&str], parse: bool| {
                comparable(&ask(raw, |o| {
                    for text in before {
                        put_parse(o, "", text);
                        put_run(o, "", &[]);
                    }
                    if parse {
                        put_parse(o, name, insert);
                        f::put_target(o, f::DESCRIBE, b'S', name.as_bytes());
                    }
                    put_run(o, name, &["007"]);
                }))
            };
            let mut seen = vec![run(&mut own, "a", &[], true)];
            own.rows("BEGIN");
            own.rows("SET LOCAL search_path = two");
            seen.push(run(&mut own, "b", &[], true));
            own.rows("COMMIT");
            seen.push(run(&mut other, "a", &[], true));
            seen.push(run(&mut own, "c", &["SET search_path = two"], true));
            own.rows("SET search_path = one");
            let made = ["BEGIN", "CREATE TEMP TABLE t (v text) ON COMMIT DROP"];
            seen.push(run(&mut own, "e", &made, true));
            own.rows("COMMIT");
            // What is undone with a savepoint.
            own.rows("BEGIN");
            own.rows("SAVEPOINT s");
            own.rows("ALTER TABLE one.t ALTER v TYPE text");
            seen.push(run(&mut own, "f", &[], true));
            own.rows("ROLLBACK TO s");
            seen.push(run(&mut own, "g", &[], true));
            own.rows("COMMIT");
            seen.push(server.psql(
                &database,
                "SELECT 1, v::text FROM one.t UNION ALL SELECT 2, v FROM two.t ORDER BY 1, 2",
            ));
            seen
        });
    assert_eq!(through, direct);
}
