//! INSERTs that a COPY cannot stand in for (RETURNING, ON CONFLICT DO NOTHING) run in one transaction with those of other
//! clients: each hears what it would have heard alone, and what one of them meets is nobody else's business.

use crate::support;
use pgsluice::wire::{backend, frame, frontend};
use support::console::{find, show};
use support::crowd::{self, comparable, to_portal};
use support::pouring::{CLIENTS, ROUNDS, crowd_of, errors, number, tags};
use support::{Message, PATIENCE, Postgres, Proxy, Raw, Step, poll};

/// Rounds that must not: more than are ever needed to learn.
const NEVER: usize = 8;

/// Waits until it is known what becomes of INSERTs into this table, and says whether they may share a transaction. Before, none does.
fn may_share(proxy: &Proxy, database: &str, table: &str) -> bool {
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut known = || {
        let tables = show(&mut console, "SHOW COALESCE_TABLES");
        tables.into_iter().find(|row| row["database"] == database && row["table"].ends_with(table))
    };
    poll(PATIENCE, &mut known).unwrap_or_else(|| panic!("nothing is known of {table}"))["eligible"] == "yes"
}

fn data(messages: &[Message]) -> Vec<Vec<Option<String>>> {
    messages.iter().filter(|m| m.tag == backend::DATA_ROW).map(Message::row).collect()
}

/// Have statements shared a transaction, of which each stored at most `rows` rows?
fn shared(pg: &Postgres, database: &str, table: &str, rows: usize) -> bool {
    let sql = format!(
        "SELECT count(*) FROM (SELECT 1 FROM {table} GROUP BY xmin::text HAVING count(*) > {rows}) x"
    );
    pg.psql(database, &sql).trim() != "0"
}

/// Runs rounds until statements shared a transaction; each answer is given to `check`.
fn until_shared(
    pg: &Postgres,
    clients: &mut [Raw],
    database: &str,
    mut script: impl FnMut(usize, usize) -> Vec<Step>,
    mut check: impl FnMut(usize, usize, &[Message]),
) {
    for round in 0..ROUNDS {
        let scripts: Vec<_> = (0..clients.len()).map(|c| script(c, round)).collect();
        for (c, seen) in crowd::run(clients, &scripts, false).iter().enumerate() {
            check(c, round, seen);
        }
        if shared(pg, database, "t", 1) {
            return;
        }
    }
    panic!("nothing shared a transaction");
}

/// How an application may send it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Simple,
    Unnamed,
    Named,
    DescribesStatement,
    BinaryResult,
    NoDescribe,
    NamedPortal,
    Literals,
    LiteralsDescribed,
}

const FORMS: [Form; 9] = [
    Form::Simple,
    Form::Unnamed,
    Form::Named,
    Form::DescribesStatement,
    Form::BinaryResult,
    Form::NoDescribe,
    Form::NamedPortal,
    Form::Literals,
    Form::LiteralsDescribed,
];

fn put_bind(out: &mut Vec<u8>, name: &[u8], params: &[&str], binary_result: bool) {
    frame::put(out, frontend::BIND, |out| {
        out.push(0);
        out.extend_from_slice(name);
        out.extend_from_slice(&[0, 0, 0]);
        out.extend_from_slice(&(params.len() as u16).to_be_bytes());
        for param in params {
            out.extend_from_slice(&(param.len() as u32).to_be_bytes());
            out.extend_from_slice(param.as_bytes());
        }
        out.extend_from_slice(if binary_result { &[0, 1, 0, 1] } else { &[0, 0] });
    });
}

/// `INSERT INTO table (a, b) ...` and what follows it, in one transaction. A named statement is prepared by the first step.
fn step(form: Form, table: &str, a: usize, b: &str, tail: &str, first: bool) -> Step {
    step_of(form, table, &[(a, b)], tail, first)
}

/// The same of several rows.
fn step_of(form: Form, table: &str, rows: &[(usize, &str)], tail: &str, first: bool) -> Step {
    let (a, _) = rows[0];
    let written: Vec<_> = rows.iter().map(|(a, b)| format!("({a}, '{b}')")).collect();
    let written = written.join(", ");
    if form == Form::Simple {
        return Step::query(&format!("INSERT INTO {table} (a, b) VALUES {written} /* no. {a} */ {tail}"));
    }
    let of_literals = matches!(form, Form::Literals | Form::LiteralsDescribed);
    let places: Vec<_> = (0..rows.len()).map(|i| format!("(${}, ${})", 2 * i + 1, 2 * i + 2)).collect();
    let sql = match of_literals {
        true => format!("INSERT INTO {table} (a, b) VALUES {written} {tail}"),
        false => format!("INSERT INTO {table} (a, b) VALUES {} {tail}", places.join(",")),
    };
    let params: Vec<_> = rows.iter().flat_map(|(a, b)| [a.to_string(), (*b).to_owned()]).collect();
    let params: Vec<&str> = params.iter().map(String::as_str).filter(|_| !of_literals).collect();
    let (name, portal): (&[u8], &[u8]) = match form {
        Form::Named => (b"s", b""),
        Form::NamedPortal => (b"", b"B_1"),
        _ => (b"", b""),
    };
    let mut bytes = Vec::new();
    if form != Form::Named || first {
        let tag = if form == Form::Unnamed { format!(" -- no. {a}") } else { String::new() };
        frontend::put_parse(&mut bytes, name, (sql + &tag).as_bytes(), &[]);
    }
    if matches!(form, Form::DescribesStatement | Form::LiteralsDescribed) {
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'S', name);
    }
    let mut bind = Vec::new();
    put_bind(&mut bind, name, &params, matches!(form, Form::BinaryResult | Form::Literals));
    bytes.extend_from_slice(&to_portal(&bind, portal));
    if form != Form::NoDescribe {
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'P', portal);
    }
    frontend::put_execute(&mut bytes, portal, 0);
    if form == Form::NamedPortal {
        frontend::put_target(&mut bytes, frontend::CLOSE, b'P', portal);
    }
    frontend::put_empty(&mut bytes, frontend::SYNC);
    Step { bytes, ready: 1 }
}

const TABLE: &str = "(id serial PRIMARY KEY, a int, b text DEFAULT 'd', c timestamptz DEFAULT now(), d numeric(6, 2) DEFAULT 1.5)";

#[test]
fn each_client_gets_its_own_row() {
    let pg = Postgres::shared();
    for form in FORMS {
        // One for each: the connections to its database go with it.
        let proxy = Proxy::to(pg, "", "", "");
        let db = pg.fresh_database(&format!("CREATE TABLE t {TABLE}; CREATE TABLE other {TABLE}"));
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let mut given = Vec::new();
        let tail = "RETURNING id, \"t\".\"a\", public.t.b AS bee";
        until_shared(
            pg,
            &mut clients,
            &db,
            |c, r| {
                (0..4)
                    .map(|i| step(form, "public.t", number(c, r, i), "it\\''s\t", tail, r == 0 && i == 0))
                    .collect()
            },
            |c, r, seen| {
                assert_eq!(tags(seen), vec!["INSERT 0 1"; 4], "{form:?}: {}", comparable(seen));
                for (i, message) in seen.iter().filter(|m| m.tag == backend::DATA_ROW).enumerate() {
                    let row = backend::data_row(&message.body).expect("a row");
                    let number_of = |at: usize| match (row[at], form) {
                        (Some(bytes), Form::BinaryResult | Form::Literals) => {
                            i32::from_be_bytes(bytes.try_into().expect("an int4")) as usize
                        }
                        (Some(bytes), _) => String::from_utf8_lossy(bytes).parse().expect("a number"),
                        (None, _) => panic!("NULL"),
                    };
                    assert_eq!(number_of(1), number(c, r, i), "{form:?}: {}", comparable(seen));
                    given.push(format!("{}|{}", number_of(0), number_of(1)));
                }
            },
        );
        let stored = pg.psql(&db, "SELECT id, a FROM t ORDER BY id");
        given.sort_by_key(|row| row.split('|').next().and_then(|id| id.parse::<usize>().ok()));
        assert_eq!(stored.trim().lines().collect::<Vec<_>>(), given, "{form:?}");
        // The same bytes direct: the same answers, byte for byte.
        let tail = "RETURNING a, b";
        let mut direct = Raw::login(pg.port(), &db);
        direct.send(&step(form, "other", 7, "x", tail, true).bytes);
        let expected = comparable(&direct.read_until_ready());
        for round in 0..NEVER {
            let first =
                if form == Form::Named { vec![Step { ready: 1, bytes: close("s") }] } else { Vec::new() };
            let scripts: Vec<_> = (0..CLIENTS)
                .map(|_| first.iter().cloned().chain([step(form, "t", 7, "x", tail, true)]).collect())
                .collect();
            for seen in crowd::run(&mut clients, &scripts, true) {
                let answers = comparable(&seen);
                let answer = answers.strip_prefix("3 \nZ I\n").unwrap_or(&answers);
                assert_eq!(answer, expected, "{form:?}, round {round}");
            }
        }
    }
}

/// Its INSERT is run to its end before PostgreSQL describes the rows of a Query: the notices come first.
#[test]
fn notices_of_a_query_come_before_its_description() {
    let pg = Postgres::shared();
    let setup =
        "CREATE TABLE t (a int, b text, c tsvector GENERATED ALWAYS AS (to_tsvector('simple', b)) STORED)";
    let (db, twin) = (pg.fresh_database(setup), pg.fresh_database(setup));
    let proxy = Proxy::to(pg, "", "", "");
    let mut direct = Raw::login(pg.port(), &twin);
    let long = "w".repeat(3000);
    for form in [Form::Simple, Form::Unnamed, Form::Literals] {
        for rows in [&[long.as_str()][..], &["w", &long, &long]] {
            let insert = |a: usize| {
                let values: Vec<_> = rows.iter().map(|b| (a, *b)).collect();
                step_of(form, "t", &values, "RETURNING b", false)
            };
            direct.send(&insert(0).bytes);
            let expected = comparable(&direct.read_until_ready());
            let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
            let mut share = |r: usize| {
                let script = |c: usize| (0..4).map(|i| insert(number(c, r, i))).collect();
                let scripts: Vec<Vec<Step>> = (0..CLIENTS).map(script).collect();
                for seen in crowd::run(&mut clients, &scripts, false) {
                    assert_eq!(comparable(&seen), expected.repeat(4), "{form:?}, {} rows", rows.len());
                }
                shared(pg, &db, "t", rows.len())
            };
            assert!(
                (0..ROUNDS).any(&mut share),
                "nothing shared a transaction: {form:?}, {} rows",
                rows.len()
            );
            pg.psql(&db, "DELETE FROM t");
        }
    }
}

/// A batch that finds another table under the name draws nothing from that one's sequence.
#[test]
fn a_table_made_anew_begins_with_its_first_numbers() {
    let pg = Postgres::shared();
    let table = format!("CREATE TABLE t {TABLE}");
    let db = pg.fresh_database(&table);
    let proxy = Proxy::to(pg, "", "", "");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let mut console = Raw::login(proxy.port(), "pgsluice");
    for (form, rows) in [(Form::Simple, 1), (Form::Unnamed, 1), (Form::Unnamed, 2)] {
        let insert = |c, r, i| {
            let n = number(c, r, i);
            let values = [(n, "x"), (n, "y")];
            vec![step_of(form, "t", &values[..rows], "RETURNING id", false)]
        };
        let mut seen_to_change = false;
        for _ in 0..ROUNDS {
            let shares = |r| {
                let scripts: Vec<_> =
                    (0..CLIENTS).map(|c| (0..4).flat_map(|i| insert(c, r, i)).collect()).collect();
                crowd::run(&mut clients, &scripts, false);
                shared(pg, &db, "t", rows)
            };
            assert!((0..ROUNDS).any(shares), "nothing shared a transaction");
            pg.psql(&db, &format!("DROP TABLE t; {table}"));
            let changed = |console: &mut Raw| {
                let flushes = show(console, "SHOW COALESCE_FLUSHES");
                flushes.iter().filter(|f| f["outcome"] == "table_changed").count()
            };
            let before = changed(&mut console);
            let scripts: Vec<_> = (0..CLIENTS).map(|c| insert(c, 0, 0)).collect();
            for seen in crowd::run(&mut clients, &scripts, false) {
                assert_eq!(tags(&seen), [format!("INSERT 0 {rows}")], "{}", comparable(&seen));
            }
            let numbers = pg.psql(&db, "SELECT min(id) || ' ' || max(id) || ' ' || count(*) FROM t");
            let all = CLIENTS * rows;
            assert_eq!(numbers.trim(), format!("1 {all} {all}"), "{form:?}, {rows} rows");
            seen_to_change = changed(&mut console) > before;
            if seen_to_change {
                break;
            }
        }
        assert!(seen_to_change, "no batch met the other table: {form:?}, {rows} rows");
    }
}

/// Statements of as many rows each, of several clients: each has its own rows in their order, and one that fails takes all of its own
/// with it and no others.
#[test]
fn statements_of_many_rows_have_all_of_theirs() {
    const EACH: usize = 3;
    let pg = Postgres::shared();
    let table = "(id serial, a int CHECK (a % 10 < 5), b text DEFAULT 'd')";
    let tail = "RETURNING id, a, b";
    for form in FORMS {
        let proxy = Proxy::to(pg, "", "", "");
        let db = pg.fresh_database(&format!("CREATE TABLE t {table}; CREATE TABLE other {table}"));
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        // What the third client of four sends second ends with a row that is refused.
        let keys = |c: usize, r: usize, i: usize| {
            let key = |k: usize| number(c, r, i) * 10 + k;
            [key(0), key(1), key(if c % 4 == 2 && i == 1 { 7 } else { 2 })]
        };
        let (mut stored, mut failed) = (0, 0);
        for r in 0..ROUNDS {
            let script = |c: usize| {
                let step = |i: usize| {
                    let rows = keys(c, r, i).map(|key| (key, "x"));
                    step_of(form, "public.t", &rows, tail, r == 0 && i == 0)
                };
                (0..3).map(step).collect::<Vec<_>>()
            };
            let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
            for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
                let mut answered = seen.iter().filter(|m| m.tag == backend::DATA_ROW);
                let errors = errors(seen);
                assert_eq!(errors.len(), usize::from(c % 4 == 2), "{form:?}: {}", comparable(seen));
                assert!(errors.iter().all(|error| error.sqlstate() == "23514"));
                failed += errors.len();
                for i in (0..3).filter(|i| c % 4 != 2 || *i != 1) {
                    let mut ids = Vec::new();
                    for key in keys(c, r, i) {
                        let row = backend::data_row(&answered.next().expect("a row").body).expect("a row");
                        let number = |at: usize| match (row[at], form) {
                            (Some(bytes), Form::BinaryResult | Form::Literals) => {
                                i32::from_be_bytes(bytes.try_into().expect("an int4")) as usize
                            }
                            (bytes, _) => {
                                String::from_utf8_lossy(bytes.unwrap_or_default()).parse().expect("a number")
                            }
                        };
                        assert_eq!(number(1), key, "{form:?}: {}", comparable(seen));
                        ids.push(number(0));
                    }
                    assert!(ids.is_sorted(), "{form:?}: {ids:?}");
                    stored += EACH;
                }
                assert!(answered.next().is_none());
                assert!(tags(seen).iter().all(|tag| tag == "INSERT 0 3"), "{form:?}: {}", comparable(seen));
            }
            assert_eq!(pg.psql(&db, "SELECT count(*) FROM t").trim(), stored.to_string(), "{form:?}");
            if shared(pg, &db, "t", EACH) {
                break;
            }
        }
        assert!(failed > 0 && shared(pg, &db, "t", EACH), "{form:?}: nothing shared a transaction");
        // The same bytes direct: the same answers, byte for byte.
        let tail = "RETURNING a, b";
        let again = |table: &str| {
            let mut bytes = if form == Form::Named { close("s") } else { Vec::new() };
            bytes.extend(step_of(form, table, &[(70, "x"), (71, "y")], tail, true).bytes);
            Step { bytes, ready: if form == Form::Named { 2 } else { 1 } }
        };
        let mut direct = Raw::login(pg.port(), &db);
        for limit in [0, 1, 2, 3].into_iter().take(if form == Form::Simple { 1 } else { 4 }) {
            direct.send(&with_limit(again("other"), limit).bytes);
            let expected: Vec<_> =
                (0..again("other").ready).flat_map(|_| direct.read_until_ready()).collect();
            let scripts = vec![vec![with_limit(again("t"), limit); 2]; CLIENTS];
            for seen in crowd::run(&mut clients, &scripts, true) {
                assert_eq!(comparable(&seen), comparable(&expected).repeat(2), "{form:?}, limit {limit}");
            }
        }
    }
}

fn close(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    frontend::put_target(&mut bytes, frontend::CLOSE, b'S', name.as_bytes());
    frontend::put_empty(&mut bytes, frontend::SYNC);
    bytes
}

#[test]
fn pipelines_and_star() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let db = pg.fresh_database("CREATE TABLE t (a int, b text, n int GENERATED ALWAYS AS (a % 1000) STORED)");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    // Three transactions in one write, the second of two statements.
    let pipeline = |first: usize| {
        let mut bytes = Vec::new();
        for (i, sync) in [true, false, true, true].into_iter().enumerate() {
            let a = (first + i).to_string();
            let sql = "INSERT INTO t VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING *, a AS again";
            frontend::put_parse(&mut bytes, b"", sql.as_bytes(), &[]);
            put_bind(&mut bytes, b"", &[&a, "p"], false);
            frontend::put_target(&mut bytes, frontend::DESCRIBE, b'P', b"");
            frontend::put_execute(&mut bytes, b"", 0);
            if sync {
                frontend::put_empty(&mut bytes, frontend::SYNC);
            }
        }
        Step { bytes, ready: 3 }
    };
    let mut sent = 0;
    for r in 0..ROUNDS {
        let scripts: Vec<Vec<Step>> = (0..CLIENTS).map(|c| vec![pipeline(number(c, r, 0))]).collect();
        for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
            let rows = data(seen);
            let expected: Vec<_> = (0..4)
                .map(|i| {
                    let a = number(c, r, i);
                    [a.to_string(), "p".into(), (a % 1000).to_string(), a.to_string()].map(Some).to_vec()
                })
                .collect();
            assert_eq!(rows, expected, "{}", comparable(seen));
            sent += 4;
        }
        assert_eq!(pg.psql(&db, "SELECT count(*) FROM t").trim(), sent.to_string());
        if shared(pg, &db, "t", 2) {
            return;
        }
    }
    panic!("nothing shared a transaction");
}

/// As bun writes what has an ON CONFLICT, and Sequel what has no primary key.
#[test]
fn tables_by_another_name_and_null_are_returned() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let setup = "CREATE TABLE \"T\" (a int UNIQUE, b text); CREATE TABLE t (a int UNIQUE, b text)";
    let db = pg.fresh_database(setup);
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let insert = |table: &str, form: usize, a: usize| {
        let into = format!("INSERT INTO {table}");
        match form {
            0 => Step::query(&format!(
                "{into} AS \"T\" (a, b) VALUES ({a}, 'x') ON CONFLICT (a) DO NOTHING RETURNING \"T\".b, NULL"
            )),
            1 => Step::query(&format!("{into} VALUES ({a}, 'x') RETURNING NULL")),
            2 => Step::query(&format!("{into} AS \"T\" VALUES ({a}, 'x')")),
            3 => Step::extended(
                &format!("{into} AS x VALUES ($1, 'x') RETURNING NULL AS n, *"),
                &[Some(&a.to_string())],
            ),
            4 => Step::extended(&format!("{into} AS x VALUES ($1, 'x')"), &[Some(&a.to_string())]),
            // The name that it is called by no more, and one that hides it.
            5 => Step::query(&format!("{into} AS x VALUES ({a}, 'x') RETURNING {table}.a")),
            6 => Step::query(&format!("{into} AS old VALUES ({a}, 'x') RETURNING old.a")),
            _ => Step::query(&format!("{into} AS old VALUES ({a}, 'x')")),
        }
    };
    let outline = |seen: &[Message], a: usize| match errors(seen).first() {
        Some(error) => error.sqlstate(),
        None => comparable(seen).replace(&format!("\"{a}\""), "a"),
    };
    let mut direct = Raw::login(pg.port(), &db);
    for form in 0..8 {
        direct.send(&insert("\"T\"", form, form).bytes);
        let expected = outline(&direct.read_until_ready(), form);
        let mut together = false;
        for r in 0..ROUNDS {
            let scripts: Vec<Vec<Step>> =
                (0..CLIENTS).map(|c| vec![insert("t", form, number(c, r, form))]).collect();
            for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
                assert_eq!(outline(seen, number(c, r, form)), expected, "{form}");
            }
            together = shared(pg, &db, "t", 1);
            if together || (form > 4 && r > NEVER) {
                break;
            }
        }
        assert_eq!(together, form <= 4, "{form}");
        pg.psql(&db, "TRUNCATE t");
    }
}

/// Whoever comes first has the key; two in one transaction are no exception.
#[test]
fn one_of_many_wins_a_key() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    for (form, tail) in [
        (Form::Simple, "ON CONFLICT DO NOTHING"),
        (Form::Unnamed, "ON CONFLICT (a) DO NOTHING"),
        (Form::Named, "ON CONFLICT ON CONSTRAINT t_a_key DO NOTHING RETURNING a, b"),
        (Form::Simple, "ON CONFLICT (a) DO NOTHING RETURNING b"),
    ] {
        let db = pg.fresh_database("CREATE TABLE t (a int UNIQUE, b text)");
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let (mut won, mut lost) = (0, 0);
        until_shared(
            pg,
            &mut clients,
            &db,
            |c, r| {
                // Pairs of clients want the same keys, and each wants one key twice.
                (0..6)
                    .map(|i| {
                        step(
                            form,
                            "t",
                            r * 1000 + (c / 2) * 10 + i % 5,
                            &format!("c{c}"),
                            tail,
                            r == 0 && i == 0,
                        )
                    })
                    .collect()
            },
            |c, _, seen| {
                let tags = tags(seen);
                assert_eq!(tags.len(), 6, "{}", comparable(seen));
                let here = tags.iter().filter(|tag| *tag == "INSERT 0 1").count();
                assert_eq!(tags.iter().filter(|tag| *tag == "INSERT 0 0").count(), 6 - here, "{tags:?}");
                if tail.contains("RETURNING") {
                    let rows = data(seen);
                    assert_eq!(rows.len(), here, "{}", comparable(seen));
                    assert!(rows.iter().all(|row| row.last() == Some(&Some(format!("c{c}")))), "{rows:?}");
                }
                (won, lost) = (won + here, lost + 6 - here);
            },
        );
        assert!(lost > 0);
        assert_eq!(pg.psql(&db, "SELECT count(*) FROM t").trim(), won.to_string(), "{tail}");
    }
}

/// Who comes later finds the row as who came before left it, in the same transaction or another.
#[test]
fn many_update_the_same_rows() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    for (form, tail) in [
        (Form::Simple, "ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b"),
        (Form::Unnamed, "ON CONFLICT ON CONSTRAINT t_pkey DO UPDATE SET b=\"excluded\".\"b\" RETURNING *"),
        (Form::Named, "on conflict (a) do update set b = excluded.b, e = excluded.e returning g, b, c"),
        (Form::Literals, "ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b RETURNING b"),
    ] {
        let db = pg.fresh_database(
            "CREATE TABLE p (b text PRIMARY KEY); INSERT INTO p VALUES ('p');
             CREATE TABLE t (a int PRIMARY KEY, b text CHECK (b <> 'no'), c text DEFAULT 'p' REFERENCES p DEFERRABLE INITIALLY DEFERRED,
               d timestamptz DEFAULT now(), e int DEFAULT 5, g int GENERATED ALWAYS AS (length(b)) STORED, k text UNIQUE);
             CREATE TABLE other (a int REFERENCES t ON UPDATE CASCADE); CREATE INDEX ON t (d)",
        );
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        until_shared(
            pg,
            &mut clients,
            &db,
            |c, r| {
                let b = "x".repeat(c + 1);
                (0..6).map(|i| step(form, "t", (i + c) % 5, &b, tail, r == 0 && i == 0)).collect()
            },
            |c, _, seen| {
                assert_eq!(tags(seen), vec!["INSERT 0 1"; 6], "{}", comparable(seen));
                if tail.to_lowercase().contains("returning") {
                    let (own, length) = (Some("x".repeat(c + 1)), Some((c + 1).to_string()));
                    let rows = data(seen);
                    assert_eq!(rows.len(), 6, "{}", comparable(seen));
                    assert!(
                        rows.iter().all(|row| row.contains(&own) || row[..] == [length.clone()]),
                        "{rows:?}"
                    );
                }
            },
        );
        assert_eq!(
            pg.psql(&db, "SELECT count(*), count(*) FILTER (WHERE g = length(b)) FROM t").trim(),
            "5|5"
        );
    }
}

#[test]
fn a_row_that_fails_fails_alone() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    for form in [Form::Simple, Form::Unnamed, Form::Named] {
        let table = "(a int CHECK (a <> 13), b text, UNIQUE (b) DEFERRABLE INITIALLY DEFERRED)";
        let db = pg.fresh_database(&format!("CREATE TABLE t {table}; CREATE TABLE other {table}"));
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let tail = "RETURNING a";
        until_shared(
            pg,
            &mut clients,
            &db,
            |c, r| {
                (0..4)
                    .map(|i| {
                        let a = number(c, r, i);
                        step(form, "t", a, &a.to_string(), tail, r == 0 && i == 0)
                    })
                    .collect()
            },
            |_, _, seen| assert!(errors(seen).is_empty(), "{}", comparable(seen)),
        );
        pg.psql(&db, "TRUNCATE t; INSERT INTO t VALUES (0, 'taken'); INSERT INTO other VALUES (0, 'taken')");
        let mut direct = Raw::login(pg.port(), &db);
        let mut expect = |a: usize, b: &str, first: bool| {
            direct.send(&step(form, "other", a, b, tail, first).bytes);
            comparable(&direct.read_until_ready()).replace("other", "t")
        };
        expect(1, "first", true);
        // One at its statement, one at the commit.
        let (check, unique) = (expect(13, "b", false), expect(5, "taken", false));
        for round in 0..NEVER {
            let scripts: Vec<_> = (0..CLIENTS)
                .map(|c| match c {
                    2 => vec![step(form, "t", 13, "b", tail, false)],
                    5 if round % 2 == 0 => vec![step(form, "t", 5, "taken", tail, false)],
                    c => vec![step(form, "t", c, &format!("{round} {c}"), tail, false)],
                })
                .collect();
            for (c, seen) in crowd::run(&mut clients, &scripts, true).iter().enumerate() {
                match c {
                    2 => assert_eq!(comparable(seen), check),
                    5 if round % 2 == 0 => assert_eq!(comparable(seen), unique),
                    c => assert_eq!(data(seen), [[Some(c.to_string())]], "{}", comparable(seen)),
                }
            }
        }
        let rows = pg.psql(&db, "SELECT count(*), count(DISTINCT b) FROM t");
        assert_eq!(rows.trim(), format!("{0}|{0}", 1 + 6 * NEVER + NEVER / 2));
    }
}

/// Who waits for somebody's uncommitted key waits in its own session.
#[test]
fn a_key_in_doubt_holds_up_no_stranger() {
    let insert = "INSERT INTO t VALUES (1, 'held'), (2, 'held')";
    held_up("DO NOTHING", insert, "INSERT 0 0", 2);
    held_up("(a) DO UPDATE SET b = EXCLUDED.b", insert, "INSERT 0 1", 0);
    let update = "UPDATE t SET b = 'held' WHERE a IN (1, 2)";
    held_up("(a) DO UPDATE SET b = EXCLUDED.b", update, "INSERT 0 1", 0);
}

/// Somebody has two rows in hand that `hold` left, and two clients want them. `kept` stay as they were left.
fn held_up(action: &str, hold: &str, tag: &str, kept: usize) {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, b text)");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let insert =
        |a: usize| Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, 'x') ON CONFLICT {action}"));
    until_shared(
        pg,
        &mut clients,
        &db,
        |c, r| (0..4).map(|i| insert(number(c, r, i))).collect(),
        |_, _, seen| assert!(errors(seen).is_empty(), "{}", comparable(seen)),
    );
    pg.psql(&db, "TRUNCATE t");
    if hold.starts_with("UPDATE") {
        pg.psql(&db, "INSERT INTO t VALUES (1, 'here'), (2, 'here')");
    }
    let mut holder = Raw::login(pg.port(), &db);
    holder.rows("BEGIN");
    holder.rows(hold);
    let mut blocked = clients.split_off(6);
    for (i, client) in blocked.iter_mut().enumerate() {
        client.send(&insert(i + 1).bytes);
    }
    let scripts: Vec<Vec<Step>> =
        (0..6).map(|c| (0..20).map(|i| insert(100 + c * 100 + i)).collect()).collect();
    for seen in crowd::run(&mut clients, &scripts, false) {
        assert_eq!(tags(&seen), vec!["INSERT 0 1"; 20], "{}", comparable(&seen));
    }
    pg.wait_until(
        "postgres",
        &format!(
            "SELECT count(*) >= 2 FROM pg_stat_activity
              WHERE datname = '{db}' AND wait_event_type = 'Lock' AND query LIKE 'INSERT%'"
        ),
    );
    holder.rows("COMMIT");
    for client in &mut blocked {
        assert_eq!(tags(&client.read_until_ready()), [tag]);
    }
    let rows = pg.psql(&db, "SELECT count(*), count(*) FILTER (WHERE b = 'held') FROM t");
    assert_eq!(rows.trim(), format!("122|{kept}"), "{action}");
}

/// Rows are written as each client asked for: settings that a COPY need not know are part of the key.
#[test]
fn settings_of_output_are_each_clients_own() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let db = pg.fresh_database("CREATE TABLE t (a int, b bytea, f float8, d timestamptz, i interval)");
    let sets = [
        "SET bytea_output = escape; SET TimeZone = 'UTC'",
        "SET extra_float_digits = 0; SET TimeZone = 'Asia/Tokyo'",
        "SET DateStyle = 'German'",
        "SET IntervalStyle = 'iso_8601'",
    ];
    let crowd = |port: u16, n: usize| -> Vec<Raw> {
        let client = |c: usize| {
            let mut client = Raw::login(port, &db);
            for set in sets[c % sets.len()].split("; ") {
                client.rows(set);
            }
            client
        };
        (0..n).map(client).collect()
    };
    // Four of each kind.
    let mut clients = crowd(proxy.port(), 4 * sets.len());
    let mut direct = crowd(pg.port(), sets.len());
    let insert = |a: usize| {
        Step::query(&format!(
            "INSERT INTO t VALUES ({a}, '\\x0041', '0.1234567890123456', '2024-02-03 04:05+00', '1 day') RETURNING b, f, d, i"
        ))
    };
    let once = vec![vec![insert(0)]; sets.len()];
    let expected: Vec<_> = crowd::run(&mut direct, &once, true).iter().map(|seen| comparable(seen)).collect();
    for (i, answer) in expected.iter().enumerate() {
        assert!(!expected[..i].contains(answer), "{answer}");
    }
    let mut heard = 0;
    until_shared(
        pg,
        &mut clients,
        &db,
        |c, r| (0..4).map(|i| insert(number(c, r, i))).collect(),
        |c, _, seen| {
            heard += 1;
            assert_eq!(comparable(seen), expected[c % sets.len()].repeat(4));
        },
    );
    assert!(heard >= clients.len());
}

/// Who was told how the rows look is not given others.
#[test]
fn a_table_that_changed_is_an_error_to_who_prepared_before() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let table = "(a int, b text)";
    for described_by_us in [false, true] {
        let db = pg.fresh_database(&format!("CREATE TABLE t {table}; CREATE TABLE other {table}"));
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let mut direct = Raw::login(pg.port(), &db);
        let sql = |table: &str| format!("INSERT INTO {table} (a, b) VALUES ($1, $2) RETURNING *");
        let execute = |a: usize| Step::execute("s", &[Some(&a.to_string()), Some("x")]);
        let described = |table: &str| {
            let mut step = Step::prepare("s", &sql(table));
            if described_by_us {
                // The same text as an unnamed statement, in one go with its execution.
                frontend::put_parse(&mut step.bytes, b"", sql(table).as_bytes(), &[]);
                frontend::put_target(&mut step.bytes, frontend::DESCRIBE, b'S', b"");
                put_bind(&mut step.bytes, b"", &["0", "x"], false);
                frontend::put_execute(&mut step.bytes, b"", 0);
                frontend::put_empty(&mut step.bytes, frontend::SYNC);
                step.ready = 2;
            }
            step
        };
        until_shared(
            pg,
            &mut clients,
            &db,
            |c, r| {
                let prepared = (r == 0).then(|| described("t"));
                prepared.into_iter().chain((0..4).map(|i| execute(number(c, r, i)))).collect()
            },
            |_, _, seen| assert!(errors(seen).is_empty(), "{}", comparable(seen)),
        );
        direct.send(&described("other").bytes);
        for _ in 0..described("other").ready {
            direct.read_until_ready();
        }
        pg.psql(
            &db,
            "ALTER TABLE t ADD COLUMN c int DEFAULT 7; ALTER TABLE other ADD COLUMN c int DEFAULT 7",
        );
        // No connection holds the statement as it was.
        Raw::login(proxy.port(), "pgsluice").rows("RECONNECT");
        direct.send(&execute(1).bytes);
        let expected = comparable(&direct.read_until_ready());
        assert!(expected.contains("0A000"), "{expected}");
        let before = pg.psql(&db, "SELECT count(*) FROM t");
        let scripts = vec![vec![execute(1); ROUNDS]; CLIENTS];
        for seen in crowd::run(&mut clients, &scripts, true) {
            assert_eq!(comparable(&seen), expected.repeat(ROUNDS));
        }
        assert_eq!(pg.psql(&db, "SELECT count(*) FROM t"), before);
        // Who prepares it now is told how they look now.
        let again = Step { ready: 2, bytes: [close("s"), described("t").bytes, execute(2).bytes].concat() };
        for client in &mut clients {
            client.send(&again.bytes);
            let seen: Vec<_> =
                (0..again.ready + described("t").ready).flat_map(|_| client.read_until_ready()).collect();
            assert_eq!(data(&seen).last().map(Vec::len), Some(3), "{}", comparable(&seen));
        }
    }
}

/// The same of the unnamed statement, which drivers describe in one transaction and run in the next; whoever parses it behind the change is
/// told of the new rows, and poured as before.
#[test]
fn a_table_that_changed_is_an_error_to_who_described_the_unnamed_statement() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let table = "(a int, b text)";
    let tail = "RETURNING *";
    let sql = |table: &str| format!("INSERT INTO {table} (a, b) VALUES ($1, $2) {tail}");
    let described = |table: &str, a: Option<usize>| {
        if let Some(a) = a {
            return step(Form::DescribesStatement, table, a, "x", tail, false);
        }
        let mut bytes = Vec::new();
        frontend::put_parse(&mut bytes, b"", sql(table).as_bytes(), &[]);
        frontend::put_target(&mut bytes, frontend::DESCRIBE, b'S', b"");
        frontend::put_empty(&mut bytes, frontend::SYNC);
        Step { bytes, ready: 1 }
    };
    let portal_described = |a: usize| step(Form::NamedPortal, "t", a, "x", tail, false);
    let execute = |a: usize| Step::execute("", &[Some(&a.to_string()), Some("x")]);
    for executed_with_it in [false, true] {
        let db = pg.fresh_database(&format!("CREATE TABLE t {table}; CREATE TABLE other {table}"));
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let mut told = crowd_of(proxy.port(), &db, CLIENTS);
        let mut direct = Raw::login(pg.port(), &db);
        let pour = |clients: &mut [Raw], columns: usize| {
            pg.psql(&db, "TRUNCATE t");
            let one = |a| if executed_with_it { described("t", Some(a)) } else { portal_described(a) };
            let script = |c, r| (0..4).map(|i| one(number(c, r, i))).collect();
            until_shared(pg, clients, &db, script, |_, _, seen| {
                assert_eq!(data(seen).last().map(Vec::len), Some(columns), "{}", comparable(seen));
            });
        };
        pour(&mut clients, 2);
        let first = executed_with_it.then_some(0);
        crowd::run(&mut told, &vec![vec![described("t", first)]; CLIENTS], true);
        direct.send(&described("other", first).bytes);
        direct.read_until_ready();
        for table in ["t", "other"] {
            pg.psql(&db, &format!("ALTER TABLE {table} ADD COLUMN c int DEFAULT 7"));
        }
        pour(&mut clients, 3);
        direct.send(&execute(1).bytes);
        let expected = comparable(&direct.read_until_ready());
        assert!(expected.contains("0A000"), "{expected}");
        let before = pg.psql(&db, "SELECT count(*) FROM t");
        for seen in crowd::run(&mut told, &vec![vec![execute(1); ROUNDS]; CLIENTS], true) {
            assert_eq!(comparable(&seen), expected.repeat(ROUNDS), "{executed_with_it}");
        }
        assert_eq!(pg.psql(&db, "SELECT count(*) FROM t"), before);
        pour(&mut told, 3);
    }
}

/// What must have a transaction of its own: the setup, the statement.
const ALONE: &[(&str, &str)] = &[
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1) RETURNING a + 1"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1) RETURNING public.t.a"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1) RETURNING xmin::text = '0'"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1) RETURNING tableoid"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1) RETURNING t"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1) RETURNING current_user"),
    ("CREATE TABLE t (a int, b numeric)", "INSERT INTO t VALUES (1, '1e5') RETURNING *"),
    (
        "CREATE TABLE t (a int, b text GENERATED ALWAYS AS (repeat('x', a)) STORED)",
        "INSERT INTO t VALUES (1) RETURNING b",
    ),
    (
        "CREATE TABLE t (a int, b int4range[])",
        "INSERT INTO t VALUES (1, ARRAY['[1,2]'::int4range]) RETURNING a",
    ),
    (
        "CREATE TYPE p AS (a int, b text); CREATE TABLE t (a int, b p)",
        "INSERT INTO t (a) VALUES (1) RETURNING *",
    ),
    ("CREATE TABLE t (a int, b text DEFAULT current_user)", "INSERT INTO t (a) VALUES (1) RETURNING a"),
    ("CREATE TABLE t (a int, b float8 DEFAULT random())", "INSERT INTO t (a) VALUES (1) RETURNING a"),
    (
        "CREATE TABLE t (a int UNIQUE, b int DEFAULT 0)",
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = length(current_query())",
    ),
    (
        "CREATE TABLE t (a int UNIQUE, b int DEFAULT 0)",
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b + 1 WHERE t.b < (SELECT 100)",
    ),
    (
        "CREATE TABLE t (a int UNIQUE, b int)",
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = t.a + 0",
    ),
    (
        "CREATE TABLE t (a int UNIQUE, b int)",
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = DEFAULT",
    ),
    ("CREATE TABLE t (a int, b float8)", "INSERT INTO t VALUES (1, random()) RETURNING a"),
    ("CREATE TABLE t (a int, b text)", "INSERT INTO t VALUES (1, current_user)"),
    ("CREATE TABLE t (a int, b text)", "INSERT INTO t VALUES (1, current_setting('TimeZone'))"),
    ("CREATE TABLE t (a int, b timestamptz)", "INSERT INTO t VALUES (1, statement_timestamp()) RETURNING a"),
    ("CREATE TABLE t (a int, b bigint); CREATE SEQUENCE q", "INSERT INTO t VALUES (1, nextval('q') * 0)"),
    ("CREATE TABLE t (a int, b bigint)", "INSERT INTO t VALUES (1, (SELECT count(*) * 0 FROM t))"),
    ("CREATE TABLE t (a int, b bool)", "INSERT INTO t VALUES (1, txid_current() > 0)"),
    ("CREATE TABLE t (a int)", "INSERT INTO t VALUES (generate_series(1, 1))"),
    ("CREATE DOMAIN d AS int; CREATE TABLE t (a int, b d)", "INSERT INTO t VALUES (1, - -1)"),
    (
        "CREATE DOMAIN d AS int; CREATE TABLE t (a int UNIQUE, b d)",
        "INSERT INTO t VALUES (1, 1) ON CONFLICT (a) DO UPDATE SET b = t.b + 1",
    ),
    (
        "CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1'; CREATE TABLE t (a int, b int)",
        "INSERT INTO t VALUES (1, f(1))",
    ),
    ("CREATE TABLE t (a int UNIQUE)", "INSERT INTO t VALUES (1) ON CONFLICT (a) WHERE a > 0 DO NOTHING"),
    (
        "CREATE TABLE t (a int PRIMARY KEY, b int REFERENCES t)",
        "INSERT INTO t VALUES (1, 1) ON CONFLICT DO NOTHING",
    ),
    ("CREATE TABLE t (a int GENERATED ALWAYS AS IDENTITY)", "INSERT INTO t VALUES (1) RETURNING a"),
    (
        "CREATE TABLE t (a int)",
        "INSERT INTO t VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (1), (2), (3), (4), (5), (6), (7), (8), (9), (1), (2), (3), (4), (5), (6), (7), (8), (9), (1), (2), (3), (4), (5), (6) RETURNING a",
    ),
    (
        "CREATE TABLE t (a int); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_notify(''c'', ''x''); RETURN NEW; END'; CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "INSERT INTO t VALUES (1) RETURNING a",
    ),
    (
        "CREATE TABLE t (a int); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF (SELECT count(*) FROM t) = 1 THEN RAISE ''alone''; END IF; RETURN NULL; END'; CREATE CONSTRAINT TRIGGER g AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f()",
        "INSERT INTO t VALUES (1) RETURNING a",
    ),
    (
        "CREATE TABLE t (a int); CREATE TABLE l (a int); CREATE RULE r AS ON INSERT TO t DO ALSO INSERT INTO l VALUES (1)",
        "INSERT INTO t VALUES (1) RETURNING a",
    ),
    ("CREATE TABLE t (a int); CREATE VIEW v AS SELECT * FROM t", "INSERT INTO v VALUES (1) RETURNING a"),
    (
        "CREATE TABLE t (a int CHECK (current_setting('app.x', true) IS NULL))",
        "INSERT INTO t VALUES (1) RETURNING a",
    ),
];

#[test]
fn what_must_be_alone_is_alone() {
    let pg = Postgres::shared();
    for (setup, sql) in ALONE {
        // One for each: the connections to its database go with it.
        let proxy = Proxy::to(pg, "", "", "");
        let (through, twin) = (pg.fresh_database(setup), pg.fresh_database(setup));
        let mut clients = crowd_of(proxy.port(), &through, CLIENTS);
        let mut direct = crowd_of(pg.port(), &twin, CLIENTS);
        let scripts = vec![vec![Step::query(sql); NEVER]; CLIENTS];
        let sorted = |all: &[Vec<Message>]| {
            let mut all: Vec<_> = all.iter().map(|seen| comparable(seen)).collect();
            all.sort();
            all
        };
        for is_known in [false, true] {
            if is_known {
                let table = if sql.contains("INTO v") { "v" } else { "t" };
                assert!(!may_share(&proxy, &through, table), "{setup}: {sql}");
            }
            let seen = sorted(&crowd::run(&mut clients, &scripts, true));
            let expected = sorted(&crowd::run(&mut direct, &scripts, true));
            // Who of many gets a key, or is told what is there already, is nobody's to say.
            if !setup.contains("UNIQUE") && !setup.contains("PRIMARY KEY") && !sql.contains("tableoid") {
                assert_eq!(seen, expected, "{sql}");
            }
        }
        let rows = sql.matches("), (").count() + 1;
        assert!(!shared(pg, &through, "t", rows), "{setup}: {sql}");
    }
}

/// A cast's function may ask whose session it is.
#[test]
fn a_cast_of_a_users_is_its_sessions_own() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let db = pg.fresh_database(
        "CREATE TABLE t (a int, d date);
         CREATE FUNCTION whose(text) RETURNS date STABLE LANGUAGE sql AS $$SELECT make_date(2000, 1, right('1' || current_setting('app.day', true), 1)::int)$$;
         CREATE CAST (text AS date) WITH FUNCTION whose(text) AS ASSIGNMENT;
         CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE m (a int, m mood);
         CREATE FUNCTION felt(mood) RETURNS text STABLE LANGUAGE sql AS $$SELECT current_setting('app.day', true)$$;
         CREATE CAST (mood AS text) WITH FUNCTION felt(mood);",
    );
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    for (c, client) in clients.iter_mut().enumerate() {
        client.rows(&format!("SET app.day = {}", c + 1));
    }
    let insert = |value: &str, c: usize| {
        let sql = format!("INSERT INTO t (a, d) VALUES ($1, {value}) RETURNING d");
        Step::typed(&sql, &[0, 25], &[Some(&c.to_string()), Some("whose")])
    };
    for value in ["$2", "CAST($2 AS date)", "$2::text::date"].repeat(NEVER) {
        let scripts: Vec<_> = (0..CLIENTS).map(|c| vec![insert(value, c); 4]).collect();
        for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
            let day = Some(format!("2000-01-0{}", c + 1));
            assert_eq!(data(seen), vec![vec![day]; 4], "{}", comparable(seen));
        }
    }
    let felt = |c: usize| {
        // No literal: that of an enum would be refused whatever is returned.
        let sql = "INSERT INTO m VALUES ($1, $2) RETURNING m::text";
        Step::extended(sql, &[Some(&c.to_string()), Some("ok")])
    };
    for r in 0..NEVER {
        if r == NEVER / 2 {
            assert!(!may_share(&proxy, &db, "m"), "a cast of a user's");
        }
        let scripts: Vec<_> = (0..CLIENTS).map(|c| vec![felt(c); 4]).collect();
        for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
            assert_eq!(data(seen), vec![vec![Some((c + 1).to_string())]; 4], "{}", comparable(seen));
        }
    }
    for table in ["t", "m"] {
        assert!(!shared(pg, &db, table, 1), "casts of users shared a transaction");
    }
}

/// As Prisma and jOOQ write what is of a type that their drivers do not know.
#[test]
fn texts_that_are_cast_are_read_by_the_type_itself() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let setup =
        "CREATE TYPE mood AS ENUM ('ok', 'sad'); CREATE TABLE t (a int, b mood, c timestamptz(0), d int[])";
    let forms = [
        "$1, CAST($2::text AS \"public\".\"mood\"), $3::timestamptz, $4",
        "CAST($1 AS int), $2::mood, CAST($3::varchar AS timestamptz), CAST($4 AS int[])",
    ];
    for (form, values) in forms.into_iter().enumerate() {
        let db = pg.fresh_database(setup);
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let sql = format!("INSERT INTO t VALUES ({values}) RETURNING a, t.\"b\"::text, d");
        let moods = ["sad", "no mood"];
        let insert = |c: usize, mood: &str| {
            let types = if form == 0 { &[0][..] } else { &[23, 1043] };
            let params =
                [Some(c.to_string()), Some(mood.to_owned()), Some("2024-02-29 12:00+02".into()), None];
            Step::typed(&sql, types, &params.each_ref().map(|param| param.as_deref()))
        };
        until_shared(
            pg,
            &mut clients,
            &db,
            |c, _| vec![insert(c, moods[0]), insert(c, moods[usize::from(c == 3)])],
            |c, _, seen| {
                let row = vec![Some(c.to_string()), Some("sad".to_owned()), None];
                assert_eq!(data(seen), vec![row; if c == 3 { 1 } else { 2 }], "{}", comparable(seen));
                let failed = errors(seen);
                assert_eq!(failed.len(), usize::from(c == 3));
                assert!(failed.iter().all(|e| e.sqlstate() == "22P02"), "{}", comparable(seen));
            },
        );
    }
}

#[test]
fn it_can_be_switched_off() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nshare_transaction = false");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    for r in 0..NEVER {
        let scripts: Vec<Vec<Step>> = (0..CLIENTS)
            .map(|c| vec![step(Form::Simple, "t", number(c, r, 0), "x", "RETURNING a", false); 4])
            .collect();
        for seen in crowd::run(&mut clients, &scripts, false) {
            assert_eq!(data(&seen).len(), 4, "{}", comparable(&seen));
        }
    }
    assert!(!shared(pg, &db, "t", 1));
}

/// Each Execute asks for so many rows.
fn with_limit(mut step: Step, limit: i32) -> Step {
    let mut at = 0;
    while let Ok(Some((head, _))) = frame::whole(&step.bytes[at..], usize::MAX) {
        at += head.total();
        if head.tag == frontend::EXECUTE {
            step.bytes[at - 4..at].copy_from_slice(&limit.to_be_bytes());
        }
    }
    step
}

/// asyncpg's `fetchrow` and `fetchval` ask for one row: it is answered, and its portal is suspended.
#[test]
fn a_limit_on_rows_is_kept() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let table = "(a int UNIQUE, b text)";
    for tail in ["RETURNING a, b", "ON CONFLICT (a) DO NOTHING RETURNING a", "ON CONFLICT (a) DO NOTHING"] {
        for (form, limit) in [
            (Form::Unnamed, 1),
            (Form::NamedPortal, 1),
            (Form::LiteralsDescribed, 1),
            (Form::NoDescribe, 1),
            (Form::Unnamed, 2),
            (Form::Unnamed, -1),
        ] {
            let db = pg.fresh_database(&format!("CREATE TABLE t {table}; CREATE TABLE other {table}"));
            let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
            let one = |table: &str, a: usize| with_limit(step(form, table, a, "x", tail, false), limit);
            let outline = |seen: &[Message], a: usize| comparable(seen).replace(&format!("\"{a}\""), "a");
            let mut direct = Raw::login(pg.port(), &db);
            let mut expected = String::new();
            for a in [7, 8, 7].iter().take(if tail.contains("CONFLICT") { 3 } else { 2 }) {
                direct.send(&one("other", *a).bytes);
                expected += &outline(&direct.read_until_ready(), *a);
            }
            let keys = |c: usize, r: usize| {
                let keys = [number(c, r, 0), number(c, r, 1), number(c, r, 0)];
                keys.into_iter().take(if tail.contains("CONFLICT") { 3 } else { 2 })
            };
            until_shared(
                pg,
                &mut clients,
                &db,
                |c, r| keys(c, r).map(|a| one("t", a)).collect(),
                |c, r, seen| {
                    let seen = comparable(seen);
                    let seen = keys(c, r).fold(seen, |seen, a| seen.replace(&format!("\"{a}\""), "a"));
                    assert_eq!(seen, expected, "{form:?} {limit} {tail}");
                },
            );
        }
    }
}

/// A limit on rows behind which the portal goes on, a portal bound twice and one run twice are the server's to deal with.
#[test]
fn odd_conversations_go_as_they_are() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let table = "(a int, b text)";
    let db = pg.fresh_database(&format!("CREATE TABLE t {table}; CREATE TABLE other {table}"));
    for tail in ["", "RETURNING a"] {
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let warm = |c: usize, r: usize| -> Vec<Step> {
            (0..4).map(|i| step(Form::Unnamed, "t", number(c, r, i), "x", tail, false)).collect()
        };
        for r in 0..NEVER {
            let scripts: Vec<_> = (0..CLIENTS).map(|c| warm(c, r)).collect();
            crowd::run(&mut clients, &scripts, false);
        }
        pg.psql(&db, "TRUNCATE t");
        let odd = |table: &str, kind: usize| {
            let sql = format!("INSERT INTO {table} (a, b) VALUES ($1, $2) {tail}");
            let mut bytes = Vec::new();
            frontend::put_parse(&mut bytes, b"", sql.as_bytes(), &[]);
            put_bind(&mut bytes, b"", &["1", "x"], false);
            match kind {
                0 => put_bind(&mut bytes, b"", &["2", "y"], false),
                1 => frontend::put_execute(&mut bytes, b"", 1),
                2 => frontend::put_target(&mut bytes, frontend::CLOSE, b'P', b""),
                3 => frontend::put_execute(&mut bytes, b"", 0),
                // Another portal behind one that is suspended.
                _ => {
                    frontend::put_execute(&mut bytes, b"", 1);
                    put_bind(&mut bytes, b"", &["2", "y"], false);
                }
            }
            if kind != 1 {
                frontend::put_execute(&mut bytes, b"", 0);
            }
            frontend::put_empty(&mut bytes, frontend::SYNC);
            Step { bytes, ready: 1 }
        };
        for kind in 0..5 {
            let mut direct = Raw::login(pg.port(), &db);
            direct.send(&odd("other", kind).bytes);
            let expected = comparable(&direct.read_until_ready());
            let scripts: Vec<_> = (0..CLIENTS).map(|_| vec![odd("t", kind); 3]).collect();
            for seen in crowd::run(&mut clients, &scripts, true) {
                assert_eq!(comparable(&seen), expected.repeat(3), "{kind} {tail}");
            }
            let rows = |table: &str, times: usize| {
                let sql = format!("SELECT a, b, count(*) / {times} FROM {table} GROUP BY 1, 2 ORDER BY 1");
                pg.psql(&db, &sql)
            };
            assert_eq!(rows("t", CLIENTS * 3), rows("other", 1), "{kind} {tail}");
            pg.psql(&db, "TRUNCATE t, other");
        }
    }
}

/// One conversation, sent in one write: what the messages do to portals is the server's to judge.
fn about_portals(table: &str, tail: &str, kind: usize) -> Step {
    let sql = format!("INSERT INTO {table} (a, b) VALUES ($1, $2) {tail}");
    let mut bytes = Vec::new();
    let mut ready = 1;
    let long = "p".repeat(64);
    if kind >= 9 {
        frontend::put_query(&mut bytes, b"BEGIN");
        frontend::put_query(&mut bytes, b"DECLARE \"B_1\" CURSOR FOR SELECT 1");
        ready = 3;
    }
    frontend::put_parse(&mut bytes, b"", sql.as_bytes(), &[]);
    let bind = |bytes: &mut Vec<u8>, portal: &[u8], a: &str| {
        let mut bind = Vec::new();
        put_bind(&mut bind, b"", &[a, "x"], false);
        bytes.extend_from_slice(&to_portal(&bind, portal));
    };
    let run = |bytes: &mut Vec<u8>, portal: &[u8]| frontend::put_execute(bytes, portal, 0);
    let close =
        |bytes: &mut Vec<u8>, portal: &[u8]| frontend::put_target(bytes, frontend::CLOSE, b'P', portal);
    let plan: &[(u8, &[u8])] = match kind {
        // Bound anew while it is there; closed before; run twice; two at a time; another one is closed; one that is gone is run.
        0 => &[(b'B', b"B_1"), (b'E', b"B_1"), (b'B', b"B_1"), (b'E', b"B_1")],
        1 => &[(b'B', b"B_1"), (b'C', b"B_1"), (b'E', b"B_1")],
        2 => &[(b'B', b"B_1"), (b'E', b"B_1"), (b'E', b"B_1"), (b'C', b"B_1")],
        3 => &[(b'B', b"B_1"), (b'B', b"B_2"), (b'E', b"B_1"), (b'E', b"B_2")],
        4 => &[(b'B', b"B_1"), (b'E', b"B_1"), (b'C', b"B_2"), (b'B', b"B_2"), (b'E', b"B_2"), (b'C', b"")],
        5 => &[(b'B', b"B_1"), (b'E', b"B_1"), (b'C', b"B_1"), (b'E', b"B_1")],
        // Two names that the server takes for one; no characters; what is closed twice.
        6 => &[(b'B', b"L1"), (b'E', b"L1"), (b'B', b"L2"), (b'E', b"L2")],
        7 => &[(b'B', b"\xff\xfe"), (b'E', b"\xff\xfe"), (b'C', b"\xff\xfe")],
        8 => &[
            (b'B', b"B_1"),
            (b'E', b"B_1"),
            (b'C', b"B_1"),
            (b'C', b"B_1"),
            (b'B', b""),
            (b'E', b""),
            (b'C', b""),
        ],
        // A cursor of the block is called so.
        _ => {
            &[(b'B', b"B_1"), (b'E', b"B_1"), (b'C', b"B_1"), (b'B', b"B_2"), (b'E', b"B_2"), (b'C', b"B_2")]
        }
    };
    for (at, (what, portal)) in plan.iter().enumerate() {
        let portal = match *portal {
            b"L1" => [long.as_bytes(), b"1"].concat(),
            b"L2" => [long.as_bytes(), b"2"].concat(),
            other => other.to_vec(),
        };
        match what {
            b'B' => bind(&mut bytes, &portal, &at.to_string()),
            b'E' => run(&mut bytes, &portal),
            _ => close(&mut bytes, &portal),
        }
    }
    frontend::put_empty(&mut bytes, frontend::SYNC);
    if kind >= 9 {
        frontend::put_query(&mut bytes, b"COMMIT");
        ready += 1;
    }
    Step { bytes, ready }
}

#[test]
fn portals_with_names_are_as_directly() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let table = "(a int, b text)";
    let db = pg.fresh_database(&format!("CREATE TABLE t {table}; CREATE TABLE other {table}"));
    for tail in ["", "RETURNING a"] {
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        for r in 0..NEVER {
            let step = |c: usize, i: usize| step(Form::NamedPortal, "t", number(c, r, i), "x", tail, false);
            let scripts: Vec<Vec<Step>> =
                (0..CLIENTS).map(|c| (0..4).map(|i| step(c, i)).collect()).collect();
            crowd::run(&mut clients, &scripts, false);
        }
        pg.psql(&db, "TRUNCATE t");
        for kind in 0..10 {
            let mut direct = Raw::login(pg.port(), &db);
            let scripts = [vec![about_portals("other", tail, kind)]];
            let expected = comparable(&crowd::run(std::slice::from_mut(&mut direct), &scripts, true)[0]);
            let scripts: Vec<_> = (0..CLIENTS).map(|_| vec![about_portals("t", tail, kind); 3]).collect();
            for seen in crowd::run(&mut clients, &scripts, true) {
                assert_eq!(comparable(&seen), expected.repeat(3), "{kind} {tail}");
            }
            let rows = |table: &str, times: usize| {
                let sql = format!("SELECT a, b, count(*) / {times} FROM {table} GROUP BY 1, 2 ORDER BY 1");
                pg.psql(&db, &sql)
            };
            assert_eq!(rows("t", CLIENTS * 3), rows("other", 1), "{kind} {tail}");
            pg.psql(&db, "TRUNCATE t, other");
        }
    }
}

/// A statement is run with the types that its parameters have by now, on connections too that had it before.
#[test]
fn a_column_that_is_altered_takes_its_parameters_along() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let db = pg.fresh_database("CREATE TABLE t (a int PRIMARY KEY, n numeric)");
    let insert = |a: usize, n: &str| {
        let mut bytes = Vec::new();
        frontend::put_parse(&mut bytes, b"", b"INSERT INTO t VALUES ($1, $2) ON CONFLICT DO NOTHING", &[]);
        frontend::put_bind_text(&mut bytes, b"", &[Some(a.to_string().as_bytes()), Some(n.as_bytes())]);
        frontend::put_execute(&mut bytes, b"", 0);
        frontend::put_empty(&mut bytes, frontend::SYNC);
        Step { bytes, ready: 1 }
    };
    let script = |c: usize, r: usize| (0..4).map(|i| insert(number(c, r, i), ["1.5", "3"][i % 2])).collect();
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_shared(pg, &mut clients, &db, script, |_, _, seen| assert!(errors(seen).is_empty()));
    pg.psql(&db, "ALTER TABLE t ALTER n TYPE int; TRUNCATE t");
    for round in 0..ROUNDS {
        let scripts: Vec<_> = (0..clients.len()).map(|c| script(c, round)).collect();
        for seen in crowd::run(&mut clients, &scripts, false) {
            let states: Vec<_> = errors(&seen).iter().map(|error| error.sqlstate()).collect();
            assert_eq!(states, ["22P02"; 2], "{}", comparable(&seen));
        }
        if shared(pg, &db, "t", 1) {
            return;
        }
    }
    panic!("nothing shared a transaction behind the change");
}

/// A statement's parameters: the number, and what is written for it.
type Parameters = fn(usize) -> Vec<String>;

const COMPUTED_TABLE: &str = "CREATE TABLE t (a int PRIMARY KEY, b text, n int DEFAULT 1, at timestamptz, d date, u uuid, x text[], j jsonb, v varchar(9))";

/// What is computed, and what holds of each row then. `@` stands for the number, where there are no parameters.
const COMPUTED: &[(&str, Option<Parameters>, &str)] = &[
    (
        "INSERT INTO t (a, at) VALUES ($1, now())",
        Some(|a| vec![a.to_string()]),
        "at > now() - interval '1 hour'",
    ),
    (
        "INSERT INTO t (a, at, d) VALUES (@, CURRENT_TIMESTAMP, CURRENT_DATE) RETURNING a",
        None,
        "d - at::date = 0",
    ),
    (
        "INSERT INTO t (a, b, at) VALUES (@, 'it''s', clock_timestamp())",
        None,
        "b = 'it''s' AND at IS NOT NULL",
    ),
    (
        "INSERT INTO t (a, u, b) VALUES ($1, gen_random_uuid(), DEFAULT) RETURNING a",
        Some(|a| vec![a.to_string()]),
        "u IS NOT NULL",
    ),
    (
        "INSERT INTO t (a, u, at) VALUES (@, gen_random_uuid(), now() - interval '1 day') ON CONFLICT DO NOTHING",
        None,
        "at < now() - interval '1 hour'",
    ),
    (
        "INSERT INTO t (a, b) VALUES ($1, lower($2))",
        Some(|a| vec![a.to_string(), format!("X{a}")]),
        "b = 'x' || a",
    ),
    (
        "INSERT INTO t (a, b, v) VALUES ($1, $2 || '.', upper(left($2, 3)))",
        Some(|a| vec![a.to_string(), format!("ab{a}")]),
        "b = 'ab' || a || '.' AND v = 'AB' || left(a::text, 1)",
    ),
    (
        "INSERT INTO t (a, n) VALUES ($1, $2::int + 1) RETURNING n",
        Some(|a| vec![a.to_string(), a.to_string()]),
        "n = a + 1",
    ),
    (
        "INSERT INTO t (a, at) VALUES ($1, to_timestamp($2))",
        Some(|a| vec![a.to_string(), a.to_string()]),
        "extract(epoch from at) = a",
    ),
    (
        "INSERT INTO t (a, x) VALUES ($1, ARRAY['a', $2])",
        Some(|a| vec![a.to_string(), "b".to_owned()]),
        "x = '{a,b}'",
    ),
    (
        "INSERT INTO t (a, b) VALUES ($1, COALESCE($2, 'none'))",
        Some(|a| vec![a.to_string(), "some".to_owned()]),
        "b = 'some'",
    ),
    (
        "INSERT INTO t (a, b, j) VALUES ($1, NULLIF($2, ''), $3::jsonb || '{}')",
        Some(|a| vec![a.to_string(), String::new(), "{\"k\": 1}".to_owned()]),
        "b IS NULL AND j->>'k' = '1'",
    ),
    ("INSERT INTO t (a, at) VALUES (1@, now()), (-1@, now()) RETURNING a", None, "at IS NOT NULL"),
];

/// One statement of [`COMPUTED`].
fn computed(sql: &str, params: Option<Parameters>, a: usize) -> Step {
    match params {
        None => Step::query(&sql.replace('@', &a.to_string())),
        Some(params) => {
            let params = params(a);
            Step::extended(sql, &params.iter().map(|param| Some(param.as_str())).collect::<Vec<_>>())
        }
    }
}

/// What gives the same to everybody, whoever it is computed for, shares a transaction; answers are those that it gets directly.
#[test]
fn harmless_expressions_share() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    for (sql, params, holds) in COMPUTED {
        let db = pg.fresh_database(COMPUTED_TABLE);
        let twin = pg.fresh_database(COMPUTED_TABLE);
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let mut direct = Raw::login(pg.port(), &twin);
        let rows = 1 + sql.matches("), (").count();
        let mut together = false;
        for r in 0..ROUNDS {
            let script =
                |c: usize| (0..4).map(|i| computed(sql, *params, number(c, r, i))).collect::<Vec<_>>();
            let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
            let seen = crowd::run(&mut clients, &scripts, false);
            for (c, seen) in seen.iter().enumerate() {
                assert!(errors(seen).is_empty(), "{sql}: {}", comparable(seen));
                assert_eq!(tags(seen), vec![format!("INSERT 0 {rows}"); 4], "{sql}");
                if r == 0 {
                    let expected = crowd::run(std::slice::from_mut(&mut direct), &[script(c)], true);
                    assert_eq!(comparable(seen), comparable(&expected[0]), "{sql}");
                }
            }
            together = shared(pg, &db, "t", rows);
            if together {
                break;
            }
        }
        assert!(together, "{sql}: nothing shared a transaction");
        let wrong = pg.psql(&db, &format!("SELECT * FROM t WHERE ({holds}) IS NOT TRUE LIMIT 3"));
        assert_eq!(wrong, "", "{sql}");
    }
}

/// Each statement finds the row as the one before it left it: nobody's count is lost, and each hears its own.
#[test]
fn counters_count_each_statement() {
    const KEYS: usize = 3;
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let two: Parameters = |a| vec![a.to_string(), "1".to_owned()];
    for (sql, params) in [
        (
            "INSERT INTO t (a) VALUES (@) ON CONFLICT (a) DO UPDATE SET n = t.n + 1, at = now() RETURNING a, n",
            None,
        ),
        (
            "INSERT INTO public.t AS c (a, n) VALUES ($1, $2) ON CONFLICT (a) DO UPDATE SET n = c.n + EXCLUDED.n RETURNING a, n",
            Some(two),
        ),
        (
            "INSERT INTO t (a, n) VALUES ($1, $2) ON CONFLICT (a) DO UPDATE SET n = COALESCE(t.n, 0) + $2, b = 'again' RETURNING a, n",
            Some(two),
        ),
        (
            "INSERT INTO t (a, n) VALUES ($1, $2) ON CONFLICT (a) DO UPDATE SET n = t.n + $3 WHERE t.n > 0 AND t.b IS NULL RETURNING a, n",
            Some(|a| vec![a.to_string(), "1".to_owned(), "1".to_owned()]),
        ),
    ] {
        let db = pg.fresh_database(COMPUTED_TABLE);
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let mut heard = vec![Vec::new(); KEYS];
        for r in 0..ROUNDS {
            let script = |c: usize| (0..4).map(|i| computed(sql, params, (c + i) % KEYS)).collect::<Vec<_>>();
            let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
            for seen in crowd::run(&mut clients, &scripts, false) {
                assert_eq!(tags(&seen), vec!["INSERT 0 1"; 4], "{sql}: {}", comparable(&seen));
                for row in data(&seen) {
                    let number =
                        |at: usize| -> usize { row[at].as_deref().expect("n").parse().expect("a number") };
                    heard[number(0)].push(number(1));
                }
            }
            if r > 4 && pg.psql(&db, "SELECT count(*) > count(DISTINCT xmin::text) FROM t").trim() == "t" {
                break;
            }
            assert!(r + 1 < ROUNDS, "{sql}: nothing shared a transaction");
        }
        for counts in &mut heard {
            counts.sort_unstable();
            assert_eq!(*counts, (1..=counts.len()).collect::<Vec<_>>(), "{sql}");
        }
    }
}

/// Columns are set to parameters, to constants, or not at all, and what is not stored has a tag that says so.
#[test]
fn updates_by_more_than_what_was_excluded() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let three: Parameters = |a| vec![a.to_string(), format!("b{a}"), format!("c{a}")];
    for (sql, params, tag, holds) in [
        (
            "INSERT INTO t (a, b) VALUES ($1, $2) ON CONFLICT (a) DO UPDATE SET b = $3, at = CURRENT_TIMESTAMP",
            Some(three),
            "INSERT 0 1",
            "b = 'c' || a AND at IS NOT NULL",
        ),
        (
            "INSERT INTO t (a, b, v) VALUES ($1, $2, $3) ON CONFLICT (a) DO UPDATE SET v = $3, b = upper(EXCLUDED.b)",
            Some(three),
            "INSERT 0 1",
            "b = 'B' || a AND v = 'c' || a",
        ),
        (
            "INSERT INTO t (a, b) VALUES ($1, $2) ON CONFLICT (a) DO UPDATE SET b = COALESCE(t.b, EXCLUDED.b), x = $3::text[]",
            Some(|a| vec![a.to_string(), format!("new{a}"), format!("{{{a}}}")]),
            "INSERT 0 1",
            "b = 'old' AND x = ARRAY[a::text]",
        ),
        (
            "INSERT INTO t (a, b) VALUES ($1, $2) ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b || $3 WHERE t.n > EXCLUDED.n",
            Some(three),
            "INSERT 0 0",
            "b = 'old'",
        ),
        (
            "INSERT INTO t (a, b) VALUES (@, 'new') ON CONFLICT (a) DO UPDATE SET n = GREATEST(t.n, 5), b = CASE WHEN t.b = EXCLUDED.b THEN t.b ELSE '' END",
            None,
            "INSERT 0 1",
            "b = '' AND n = 5",
        ),
        (
            "INSERT INTO t (a, b) VALUES (@, 'new') ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b WHERE t.b IS DISTINCT FROM 'old' OR t.n IS NULL",
            None,
            "INSERT 0 1",
            "b = 'old'",
        ),
    ] {
        // The last one is refused: its constant is another value each time, perhaps.
        let kept = sql.contains("'old'");
        let db = pg.fresh_database(COMPUTED_TABLE);
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        let mut together = false;
        for r in 0..ROUNDS {
            let keys = |c: usize| (0..4).map(move |i| c * 10 + i);
            pg.psql(&db, "TRUNCATE t; INSERT INTO t (a, b) SELECT c * 10 + i, 'old' FROM generate_series(0, 7) c, generate_series(0, 3) i");
            let scripts: Vec<Vec<Step>> =
                (0..CLIENTS).map(|c| keys(c).map(|a| computed(sql, params, a)).collect()).collect();
            for seen in crowd::run(&mut clients, &scripts, false) {
                let tag = if kept { "INSERT 0 0" } else { tag };
                assert_eq!(tags(&seen), vec![tag; 4], "{sql}: {}", comparable(&seen));
            }
            assert_eq!(
                pg.psql(&db, &format!("SELECT * FROM t WHERE ({holds}) IS NOT TRUE LIMIT 3")),
                "",
                "{sql}"
            );
            let flushes = Raw::login(proxy.port(), "pgsluice").query("SHOW COALESCE");
            let of_db = |m: &&Message| m.tag == backend::DATA_ROW && m.row().contains(&Some(db.clone()));
            together = flushes.iter().filter(of_db).any(|m| m.row().contains(&Some("pipelined".to_owned())));
            if together || (kept && r > NEVER) {
                break;
            }
        }
        assert_eq!(together, !kept, "{sql}");
    }
}

/// An error is its own statement's, with its own place in it.
#[test]
fn an_expression_that_fails_fails_alone() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let sql = "INSERT INTO t (a, n) VALUES ($1, 10 / $2::int) ON CONFLICT (a) DO UPDATE SET n = t.n / EXCLUDED.n, b = $3 RETURNING n";
    let db = pg.fresh_database(COMPUTED_TABLE);
    let twin = pg.fresh_database(COMPUTED_TABLE);
    let insert = |a: usize, n: &str| Step::extended(sql, &[Some(&a.to_string()), Some(n), Some("x")]);
    let mut direct = Raw::login(pg.port(), &twin);
    direct.send(&insert(1, "0").bytes);
    let expected = comparable(&direct.read_until_ready());
    assert!(expected.contains("22012"), "{expected}");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    until_shared(
        pg,
        &mut clients,
        &db,
        |c, r| (0..4).map(|i| insert(number(c, r, i), if c == 3 && i == 1 { "0" } else { "2" })).collect(),
        |c, _, seen| {
            let all = comparable(seen);
            assert_eq!(all.matches(&expected).count(), usize::from(c == 3), "{all}");
            assert_eq!(data(seen), vec![vec![Some("5".to_owned())]; if c == 3 { 3 } else { 4 }], "{all}");
        },
    );
}

const SELDOM_TABLE: &str = "CREATE TABLE t (a int PRIMARY KEY, n int DEFAULT 1, b text DEFAULT 'b', v varchar(3), c numeric(4, 2), f real, o bool, j jsonb, d date, i interval, at timestamptz)";

/// What is never needed, and the values behind `a` with which it does no harm and with which PostgreSQL refuses the row nevertheless: it
/// computes such while it plans for just these.
const SELDOM: &[(&str, &[&str], &[&str])] = &[
    ("DO UPDATE SET v = COALESCE($2, t.v)", &["a"], &["abcdef"]),
    ("DO UPDATE SET v = CASE WHEN $2 THEN 'abcdef' ELSE t.v END", &["f"], &["t"]),
    ("DO UPDATE SET n = COALESCE($2, t.n) + 1", &["1"], &["2147483647"]),
    ("DO UPDATE SET n = COALESCE(t.n + $2, 2147483647) + 1", &["1"], &["NULL"]),
    ("DO UPDATE SET n = CASE WHEN t.n > $2 THEN t.n ELSE 2147483647 END + 1", &["1"], &["NULL"]),
    ("DO UPDATE SET n = GREATEST(t.n + $2, 2147483647) + 1", &["1"], &["NULL"]),
    ("DO UPDATE SET n = 1 / (cardinality(ARRAY[t.n + $2]) - 1)", &["1"], &["NULL"]),
    ("DO UPDATE SET n = CASE WHEN $2 THEN $3::int8 ELSE t.n END", &["t", "1"], &["t", "9999999999"]),
    ("DO UPDATE SET n = CASE WHEN $2 THEN 9999999999 ELSE t.n END", &["f"], &["t"]),
    ("DO UPDATE SET n = CASE WHEN $2::int8 IS NULL THEN t.n ELSE $2::int8 END", &["1"], &["9999999999"]),
    ("DO UPDATE SET n = CASE $2 WHEN 'x' THEN $3::int8 ELSE t.n END", &["x", "1"], &["x", "9999999999"]),
    ("DO UPDATE SET n = COALESCE($2::int, t.f)", &["1"], &["2147483647"]),
    ("DO UPDATE SET n = 1 WHERE COALESCE($2, t.n) + 1 > 5", &["1"], &["2147483647"]),
    ("DO UPDATE SET o = $2 AND COALESCE($3, t.n) / $4 > 1", &["t", "1", "1"], &["t", "1", "0"]),
    ("DO UPDATE SET n = NULLIF(COALESCE($2, t.n), 1) / 0", &["1"], &["5"]),
    ("DO UPDATE SET n = COALESCE($2, t.b)::int", &["1"], &["x"]),
    ("DO UPDATE SET n = ($2 OR t.o)::int + 2147483647", &["f"], &["t"]),
    ("DO UPDATE SET j = COALESCE($2, t.b)::jsonb", &["{}"], &["{"]),
    ("DO UPDATE SET f = COALESCE($2::float8, t.f)", &["1"], &["1e300"]),
    ("DO UPDATE SET c = COALESCE($2, t.c)", &["1"], &["100"]),
    ("DO UPDATE SET b = split_part(COALESCE($2, t.b), 'x', 0)", &["NULL"], &["1"]),
    ("DO UPDATE SET b = encode(decode(COALESCE($2, t.b), 'hex'), 'hex')", &["00"], &["zz"]),
    ("DO UPDATE SET n = 1 WHERE COALESCE($2::numeric, floor(t.n)) IS NULL", &["1"], &["1e400"]),
    ("DO UPDATE SET i = t.i * $2::numeric", &["1"], &["1e400"]),
    ("DO UPDATE SET n = 1 WHERE COALESCE($2::date, t.d - t.i) IS NULL", &["2024-01-01"], &["1000000-01-01"]),
    (
        "DO UPDATE SET n = 1 WHERE COALESCE($2::date, t.d + LOCALTIME) IS NULL",
        &["2024-01-01"],
        &["1000000-01-01"],
    ),
    (
        "(a, n) VALUES ($1, CASE WHEN now() > $2 THEN COALESCE($3, length(now()::text)) + 1 ELSE 0 END)",
        &["2020-01-01", "1"],
        &["2999-01-01", "2147483647"],
    ),
    (
        "(a, o) VALUES ($1, now() > $2 OR COALESCE($3, length(now()::text)) + 1 > 0)",
        &["2020-01-01", "1"],
        &["2020-01-01", "2147483647"],
    ),
];

/// What may be never needed, too, but does no harm with any value.
const HARMLESS: &[(&str, &[&str], &[&str])] = &[
    ("DO UPDATE SET b = COALESCE($2, t.b)", &["x"], &["NULL"]),
    ("DO UPDATE SET n = COALESCE($2, t.n), j = COALESCE($3, t.j)", &["1", "{}"], &["2147483647", "NULL"]),
    (
        "DO UPDATE SET v = COALESCE(t.v, $2), n = COALESCE(t.n, $3) + 1",
        &["x", "1"],
        &["abcdef", "2147483647"],
    ),
    ("DO UPDATE SET n = CASE WHEN $2 THEN $3 ELSE t.n END", &["f", "1"], &["t", "2147483647"]),
    ("DO UPDATE SET n = CASE WHEN t.o THEN $2::int8 ELSE t.n END", &["1"], &["9999999999"]),
    (
        "DO UPDATE SET n = CASE WHEN $2 THEN 0 ELSE t.n END WHERE t.n > $3 OR $4",
        &["f", "1", "f"],
        &["t", "NULL", "t"],
    ),
    ("DO UPDATE SET n = GREATEST(t.n, $2), f = t.n + EXCLUDED.n + $3", &["1", "1"], &["NULL", "NULL"]),
    ("DO UPDATE SET b = t.b || $2 || '.', v = left(t.v || $2, 3), at = now()", &["x"], &["NULL"]),
];

/// A statement of [`SELDOM`] or [`HARMLESS`].
fn seldom(sql: &str, a: usize, values: &[&str]) -> Step {
    let sql = match sql.strip_prefix("DO UPDATE") {
        Some(set) => format!("INSERT INTO t (a) VALUES ($1) ON CONFLICT (a) DO UPDATE{set}"),
        None => format!("INSERT INTO t {sql}"),
    };
    let a = a.to_string();
    let values = values.iter().map(|value| Some(*value).filter(|value| *value != "NULL"));
    Step::extended(&sql, &std::iter::once(Some(a.as_str())).chain(values).collect::<Vec<_>>())
}

/// An error in what is never needed depends on the values that the server plans for: who sends them hears it, and their row is not stored.
#[test]
fn what_is_never_needed_is_refused_as_directly() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let db = pg.fresh_database(SELDOM_TABLE);
    let twin = pg.fresh_database(SELDOM_TABLE);
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let mut direct = Raw::login(pg.port(), &twin);
    let mut wrong = Vec::new();
    for (at, (sql, well, ill)) in SELDOM.iter().chain(HARMLESS).enumerate() {
        let fails = at < SELDOM.len();
        let mut together = false;
        for r in 0..if fails { NEVER } else { ROUNDS } {
            let insert = |c: usize, i: usize| {
                let values = if c == 3 && i == 1 { ill } else { well };
                seldom(sql, number(c, r, i), values)
            };
            let script = |c: usize| (0..4).map(|i| insert(c, i)).collect::<Vec<_>>();
            let scripts: Vec<_> = (0..CLIENTS).map(script).collect();
            let seen = crowd::run(&mut clients, &scripts, false);
            for (seen, script) in seen.iter().zip(&scripts) {
                let expected =
                    crowd::run(std::slice::from_mut(&mut direct), std::slice::from_ref(script), true);
                if comparable(seen) != comparable(&expected[0]) {
                    wrong.push(format!("{sql}: answers of round {r}"));
                }
            }
            together = shared(pg, &db, "t", 1);
            if together && !fails {
                break;
            }
        }
        if together == fails {
            wrong.push(format!("{sql}: shared: {together}"));
        }
        let rows = "SELECT a, n, b, v, c, f, o, j, d, i FROM t ORDER BY a";
        if pg.psql(&db, rows) != pg.psql(&twin, rows) {
            wrong.push(format!("{sql}: rows"));
        }
        let stored = pg.psql(&twin, "SELECT count(*) FROM t WHERE a % 1000000 = 3001");
        assert_eq!(stored.trim() == "0", fails, "{sql}: directly");
        assert_ne!(pg.psql(&twin, "SELECT count(*) FROM t").trim(), "0", "{sql}: directly");
        for database in [&db, &twin] {
            pg.psql(database, "DELETE FROM t");
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A client's statements have times of their own, one behind the other.
#[test]
fn times_that_are_computed_are_each_statements_own() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let db = pg.fresh_database("CREATE TABLE t (a int, at timestamptz, c int)");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    // Four transactions in one write.
    let script = |c: usize, r: usize| {
        let insert = |i: usize| {
            let (a, c) = (number(c, r, i).to_string(), c.to_string());
            Step::extended("INSERT INTO t VALUES ($1, now(), $2)", &[Some(&a), Some(&c)]).bytes
        };
        vec![Step { bytes: (0..4).flat_map(insert).collect(), ready: 4 }]
    };
    until_shared(pg, &mut clients, &db, script, |_, _, seen| {
        assert_eq!(tags(seen), vec!["INSERT 0 1"; 4], "{}", comparable(seen));
    });
    let sql = "SELECT count(*) FROM (SELECT at <= lag(at) OVER (PARTITION BY c ORDER BY a) AS late FROM t) x WHERE late";
    assert_eq!(pg.psql(&db, sql).trim(), "0");
}

/// What somebody may have made is asked of the server: functions, operators and casts of other schemas than PostgreSQL's own.
#[test]
fn functions_operators_and_casts_of_users_are_each_sessions_own() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let body = "STABLE LANGUAGE sql AS $$SELECT current_setting('app.who', true)::text";
    let path = |path: &str| {
        format!(
            "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = {path}', current_database()); END$$;"
        )
    };
    for (setup, value) in [
        (format!("CREATE FUNCTION lower(varchar) RETURNS text {body}$$"), "lower($2::varchar)"),
        (
            format!(
                "CREATE SCHEMA s; CREATE FUNCTION s.lower(varchar) RETURNS text {body}$$; {}",
                path("s, public")
            ),
            "lower($2::varchar)",
        ),
        (
            format!(
                "CREATE FUNCTION f(text, varchar) RETURNS text {body}$$; CREATE OPERATOR || (FUNCTION = f, LEFTARG = text, RIGHTARG = varchar)"
            ),
            "$2::text || $2::varchar",
        ),
        (
            format!("CREATE DOMAIN d AS int[]; CREATE FUNCTION lower(d) RETURNS text {body}$$"),
            "lower($2::int[])",
        ),
        (
            format!(
                "CREATE DOMAIN d AS text; CREATE FUNCTION f(d, d) RETURNS text {body}$$; CREATE OPERATOR % (FUNCTION = f, LEFTARG = d, RIGHTARG = d)"
            ),
            "$2::text % $2::text",
        ),
        (
            format!("CREATE DOMAIN d AS text; CREATE FUNCTION left(VARIADIC d[]) RETURNS text {body}$$"),
            "left($2::text, $2::text)",
        ),
        (
            format!(
                "CREATE SCHEMA s; CREATE FUNCTION s.now() RETURNS text {body}$$; {}",
                path("s, pg_catalog, public")
            ),
            "now()",
        ),
        (
            format!(
                "CREATE FUNCTION w(timestamptz) RETURNS text {body}$$; CREATE CAST (timestamptz AS text) WITH FUNCTION w(timestamptz) AS ASSIGNMENT"
            ),
            "now()",
        ),
    ] {
        let db = pg.fresh_database(&format!("{setup}; CREATE TABLE public.t (a int, b text)"));
        let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
        for (c, client) in clients.iter_mut().enumerate() {
            client.rows(&format!("SET app.who = 'client {c}'"));
        }
        let sql = format!("INSERT INTO public.t (a, b) VALUES ($1, {value}) RETURNING b");
        for r in 0..NEVER {
            let insert = |c: usize, i: usize| {
                let a = number(c, r, i).to_string();
                let params = [Some(a.as_str()), Some(if value.contains("[]") { "{7}" } else { "X" })];
                Step::extended(&sql, &params[..if value.contains("$2") { 2 } else { 1 }])
            };
            let scripts: Vec<Vec<Step>> =
                (0..CLIENTS).map(|c| (0..4).map(|i| insert(c, i)).collect()).collect();
            for (c, seen) in crowd::run(&mut clients, &scripts, false).iter().enumerate() {
                let own = vec![Some(format!("client {c}"))];
                assert_eq!(data(seen), vec![own; 4], "{setup}: {}", comparable(seen));
            }
        }
        assert!(!shared(pg, &db, "t", 1), "{setup}");
    }
}

/// One that is made later is meant from then on, also by who shared transactions before.
#[test]
fn a_function_that_is_made_later_is_the_one_that_is_called() {
    let pg = Postgres::shared();
    let proxy = Proxy::to(pg, "", "", "");
    let db = pg.fresh_database("CREATE TABLE t (a int, b text, v varchar)");
    let mut clients = crowd_of(proxy.port(), &db, CLIENTS);
    let insert = |a: usize| {
        Step::extended(
            "INSERT INTO t (a, b) VALUES ($1, lower($2::varchar)) RETURNING b",
            &[Some(&a.to_string()), Some("X")],
        )
    };
    let script = |c: usize, r: usize| (0..4).map(|i| insert(number(c, r, i))).collect::<Vec<_>>();
    until_shared(pg, &mut clients, &db, script, |_, _, seen| {
        assert_eq!(data(seen), vec![vec![Some("x".to_owned())]; 4], "{}", comparable(seen));
    });
    pg.psql(
        &db,
        "CREATE FUNCTION lower(varchar) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT 'mine'$$; TRUNCATE t",
    );
    for r in 0..NEVER {
        let scripts: Vec<_> = (0..CLIENTS).map(|c| script(c, r)).collect();
        for seen in crowd::run(&mut clients, &scripts, false) {
            assert_eq!(data(&seen), vec![vec![Some("mine".to_owned())]; 4], "{}", comparable(&seen));
        }
    }
    assert!(!shared(pg, &db, "t", 1));
}

/// Appends what binds and runs one row with this number.
type PutOne = dyn Fn(usize, &mut Vec<u8>);

/// Another statement is prepared or described between a Bind and its Execute: the portal stays the one that was bound.
#[test]
fn what_stands_between_a_bind_and_its_execute_changes_no_answer() {
    const PLAIN: &str = "INSERT INTO t (a, b) VALUES ($1, $2)";
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "");
    let (mut direct, mut through) = (Raw::login(pg.port(), &db), Raw::login(proxy.port(), &db));
    let returning = format!("{PLAIN} RETURNING a");
    let parse = |name: &str, text: &str, out: &mut Vec<u8>| {
        frontend::put_parse(out, name.as_bytes(), text.as_bytes(), &[]);
    };
    let bind = |name: &str, a: usize, out: &mut Vec<u8>| {
        frontend::put_bind_text(out, name.as_bytes(), &[Some(a.to_string().as_bytes()), Some(b"x")]);
    };
    let describe = |name: &str, out: &mut Vec<u8>| {
        frontend::put_target(out, frontend::DESCRIBE, b'S', name.as_bytes());
    };
    let execute = |out: &mut Vec<u8>| frontend::put_execute(out, b"", 0);
    let sync = |out: &mut Vec<u8>| frontend::put_empty(out, frontend::SYNC);
    let ask = |raw: &mut Raw, unit: &[u8]| {
        raw.send(unit);
        raw.read_until_ready()
    };
    let mut unit = Vec::new();
    for (name, text) in [("plain", PLAIN), ("returning", &returning)] {
        parse(name, text, &mut unit);
        describe(name, &mut unit);
    }
    sync(&mut unit);
    let prepared = [&mut direct, &mut through].map(|raw| comparable(&ask(raw, &unit)));
    assert_eq!(prepared[0], prepared[1]);
    // Both are known as ones that are poured.
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let known = support::poll(support::PATIENCE, || {
        for name in ["plain", "returning"] {
            let mut unit = Vec::new();
            for a in 1..3 {
                bind(name, a, &mut unit);
                execute(&mut unit);
            }
            sync(&mut unit);
            ask(&mut through, &unit);
        }
        // Two lanes of COPYs, and one of the statement that answers rows.
        let by = [("database", db.as_str()), ("statements", "2"), ("lanes", "3")];
        find(&mut console, "SHOW COALESCE_TABLES", &by)
    });
    assert!(known.is_some(), "not known: {:?}", show(&mut console, "SHOW COALESCE_TABLES"));
    let alone = |name: &'static str| {
        move |a, out: &mut Vec<u8>| {
            bind(name, a, out);
            execute(out);
        }
    };
    let with = |name: &'static str, between: &'static dyn Fn(&mut Vec<u8>)| {
        move |a, out: &mut Vec<u8>| {
            bind(name, a, out);
            between(out);
            execute(out);
        }
    };
    let kinds: [&PutOne; 8] = [
        &with("plain", &|out| frontend::put_target(out, frontend::DESCRIBE, b'S', b"returning")),
        &alone("returning"),
        &with("returning", &|out| frontend::put_target(out, frontend::DESCRIBE, b'S', b"plain")),
        &alone("returning"),
        &with("returning", &|out| frontend::put_parse(out, b"", PLAIN.as_bytes(), &[])),
        &alone("returning"),
        &with("plain", &|out| {
            frontend::put_target(out, frontend::DESCRIBE, b'S', b"returning");
            frontend::put_target(out, frontend::DESCRIBE, b'P', b"");
        }),
        &alone("plain"),
    ];
    for in_block in [false, true] {
        for (i, kind) in kinds.iter().enumerate() {
            let mut unit = Vec::new();
            for a in 0..3 {
                kind(100 * i + a, &mut unit);
            }
            sync(&mut unit);
            let [mut told, mut heard] = [Vec::new(), Vec::new()];
            for (raw, all) in [(&mut direct, &mut told), (&mut through, &mut heard)] {
                let wrap = |raw: &mut Raw, text| if in_block { raw.query(text) } else { Vec::new() };
                all.extend(wrap(raw, "BEGIN"));
                all.extend(ask(raw, &unit));
                all.extend(wrap(raw, "COMMIT"));
            }
            assert_eq!(comparable(&heard), comparable(&told), "kind {i}, in a block: {in_block}");
        }
    }
}
