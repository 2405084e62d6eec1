//! The effects as a table: text, what it may do to its session.

use super::*;
use crate::sql::builtins::{FUNCTIONS, KEYWORDS, LOOSE_KEYWORDS};

const NONE: Effects = Effects::NONE;
const SETTINGS: Effects = Effects::SETTINGS;
const UNKNOWN: Effects = Effects::UNKNOWN;
const TEMP: Effects = Effects::TEMP;
const TRANSACTION: Effects = Effects::TRANSACTION;

#[test]
fn table() {
    let execute = Effects::EXECUTE | UNKNOWN;
    let table: &[(&str, Effects)] = &[
        ("", NONE),
        (";", NONE),
        ("-- nothing", NONE),
        ("SELECT abalance FROM pgbench_accounts WHERE aid = 12345;", NONE),
        ("select 1 as temp, temp from weather", NONE),
        ("(select 1) union (select 2)", NONE),
        (
            "SELECT count(*), pg_catalog.lower(b) FROM t WHERE a IN (1) AND coalesce(b, 'x') = any ('{a}')",
            NONE,
        ),
        ("SELECT cast(a AS varchar(10)), a::numeric(10,2) FROM t", NONE),
        ("SELECT row_number() OVER (PARTITION BY (a) ORDER BY b) FROM t", NONE),
        ("SELECT count(*) FILTER (WHERE a > 1) FROM t GROUP BY GROUPING SETS ((a), (b))", NONE),
        ("SELECT * FROM (VALUES (1, 2)) AS v (a, b)", NONE),
        ("SELECT * FROM t x (a, b) JOIN (SELECT 1) y USING (a)", NONE),
        ("WITH RECURSIVE r (n) AS (SELECT 1) SELECT * FROM r", NONE),
        ("INSERT INTO s.t (a) VALUES ('set_config(') ON CONFLICT (a) DO UPDATE SET (a, b) = (1, 2)", NONE),
        ("INSERT INTO temp (a) VALUES (1)", NONE),
        ("UPDATE t SET a = now() AT TIME ZONE ('utc') WHERE b = $1", NONE),
        ("DELETE FROM t USING u WHERE t.a = u.a RETURNING t.a", NONE),
        ("COPY t (a, b) FROM STDIN WITH (FORMAT csv)", NONE),
        ("EXPLAIN (ANALYZE, BUFFERS) SELECT 1", NONE),
        ("CREATE TABLE t (a int PRIMARY KEY, e vector(3), FOREIGN KEY (a) REFERENCES u (a))", NONE),
        ("CREATE INDEX ON t (a)", NONE),
        ("CREATE TABLE a PARTITION OF b FOR VALUES FROM (1) TO (2)", NONE),
        ("CREATE TABLE a (b int, e int)\nPARTITION BY RANGE (b)", NONE),
        ("CREATE TABLE a PARTITION OF b DEFAULT PARTITION BY HASH (b)", NONE),
        ("CREATE INDEX ON t USING hash (a)", NONE),
        ("CREATE INDEX a ON t USING btree (a, b DESC) INCLUDE (e)", NONE),
        ("CREATE TABLE a (b int) INHERITS (t)", NONE),
        ("ALTER TABLE t SET (fillfactor = 70)", NONE),
        ("ALTER TABLE data SET (fillfactor = 70)", NONE),
        ("UPDATE t AS x SET (a, b) = (1, 2)", NONE),
        ("UPDATE data SET (a, b) = (SELECT 1, 2)", NONE),
        ("SELECT a, count(*) FROM t GROUP BY CUBE (a)", NONE),
        ("SELECT a, count(*) FROM t GROUP BY ROLLUP (a, b) ORDER BY 1", NONE),
        ("SELECT * FROM data JOIN (SELECT 1) y ON true LEFT JOIN (SELECT 2) z ON true", NONE),
        ("SELECT * FROM (SELECT 1) x CROSS JOIN (SELECT 2) y", NONE),
        ("SELECT 1 FROM t WHERE name ILIKE ('%' || $1) AND lower(a) ILIKE ('b')", NONE),
        ("WITH x AS MATERIALIZED (SELECT 1), y AS NOT MATERIALIZED (SELECT 2) TABLE x", NONE),
        ("WITH x AS (SELECT 1) INSERT INTO t (a) SELECT 1 FROM x ON CONFLICT (a) DO NOTHING", NONE),
        ("SELECT sum(a) OVER (ORDER BY b), DENSE_RANK() OVER () FROM t", NONE),
        ("SELECT a::time WITH TIME ZONE, b::interval second(3), e::character varying(3) FROM t", NONE),
        ("CREATE FUNCTION f(a int) RETURNS int LANGUAGE sql AS $$ SELECT g() $$", NONE),
        ("DROP FUNCTION s.f(int)", NONE),
        ("SELECT a - lower(b) / length(c) -- f(1)\n, 1 /* f(1) */ FROM t", NONE),
        ("SELECT a - f(b)", UNKNOWN),
        ("SELECT a -set_config('b', 'c', false)::int", SETTINGS),
        ("SELECT a /set_config('b', 'c', false)::int", SETTINGS),
        ("SET LOCAL work_mem = '1MB'", Effects::LOCAL),
        ("set transaction isolation level serializable", NONE),
        ("SET CONSTRAINTS ALL DEFERRED", NONE),
        ("SELECT set_config('a.b', 'c', true)", Effects::LOCAL),
        ("SELECT SET_CONFIG('a.b', lower('c,d'), TRUE)", Effects::LOCAL),
        ("SELECT pg_advisory_xact_lock(1)", NONE),
        ("SELECT pg_try_advisory_xact_lock(1, 2)", NONE),
        ("NOTIFY a, 'b'", NONE),
        ("SHOW ALL", NONE),
        ("DECLARE c CURSOR FOR SELECT 1", NONE),
        ("SELECT 'a -- b', $$ ; DO $$, \"x;y\" /* ; SET /* */ a = 1 */ FROM t", NONE),
        ("BEGIN", TRANSACTION),
        ("begin isolation level serializable;", TRANSACTION),
        ("START TRANSACTION", TRANSACTION),
        ("COMMIT AND CHAIN", TRANSACTION),
        ("END", TRANSACTION),
        ("ROLLBACK TO SAVEPOINT a", TRANSACTION),
        ("ABORT", TRANSACTION),
        ("SAVEPOINT a", TRANSACTION),
        ("RELEASE a", TRANSACTION),
        ("PREPARE TRANSACTION 'a'", TRANSACTION),
        ("COMMIT PREPARED 'a'", TRANSACTION),
        ("BEGIN; SELECT 1; COMMIT", TRANSACTION),
        ("SET a = 1", SETTINGS),
        ("/* tag */ SET /* x */ a.b = 1", SETTINGS),
        ("SET LOCAL.a = 1", SETTINGS),
        ("SET transaction . a = 1", SETTINGS | UNKNOWN),
        ("SET LOCAL = 1", SETTINGS),
        ("SET LOCAL/**/.a = 1", SETTINGS | UNKNOWN),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", SETTINGS),
        ("SET SESSION AUTHORIZATION a", SETTINGS),
        ("SET ROLE a", SETTINGS),
        ("SET TIME ZONE 'utc'", SETTINGS),
        ("SET NAMES 'utf8'", SETTINGS),
        ("RESET ALL", SETTINGS),
        ("SELECT 1; SET a = 1", SETTINGS),
        ("BEGIN; SET a = 1", SETTINGS | TRANSACTION),
        ("SELECT set_config('a.b', 'c', false)", SETTINGS),
        ("SELECT pg_catalog.set_config('a.b', 'c', $1)", SETTINGS),
        ("SELECT \"set_config\"('a.b', 'c', 't')", SETTINGS),
        ("SELECT set_config(is_local => true, setting_name => 'a.b', new_value => 'c')", SETTINGS | UNKNOWN),
        ("SELECT set_config($1, 'c', false)", SETTINGS),
        ("SELECT set_config('a' || '.b', 'c', false)", SETTINGS | UNKNOWN),
        ("SELECT set_config('a'\n'.b', 'c', false)", SETTINGS | UNKNOWN),
        ("SELECT set_config(E'a\\x2eb', 'c', false)", SETTINGS | UNKNOWN),
        ("SELECT set_config(U&'a\\002eb', 'c', false)", SETTINGS | UNKNOWN),
        ("SELECT set_config('a.\u{e9}', 'c', false)", SETTINGS | UNKNOWN),
        ("SET a.\"b\" = 1", SETTINGS | UNKNOWN),
        ("SET a . b = 1", SETTINGS | UNKNOWN),
        ("SET a/**/.b = 1", SETTINGS | UNKNOWN),
        ("SET \"a.\u{e9}\" = 1", SETTINGS | UNKNOWN),
        ("SET \"a.b\" = 1", SETTINGS),
        ("SET a = 1.5", SETTINGS),
        ("UPDATE pg_settings SET setting = 1", SETTINGS | UNKNOWN),
        (
            "WITH x AS (UPDATE ONLY pg_catalog.\"pg_settings\" SET setting = 1 RETURNING 1) TABLE x",
            SETTINGS | UNKNOWN,
        ),
        ("UPDATE ONLY (pg_settings) SET setting = 1", SETTINGS | UNKNOWN),
        (
            "UPDATE ONLY(/* a */ d.Pg_Catalog . \"pg_settings\" -- b\n) AS p SET setting = 1",
            SETTINGS | UNKNOWN,
        ),
        (
            "WITH x AS (UPDATE only /* ( */ (pg_catalog.pg_settings) SET setting = 1) SELECT 1",
            SETTINGS | UNKNOWN,
        ),
        ("EXPLAIN ANALYZE UPDATE ONLY (pg_settings) p SET setting = 1", SETTINGS | UNKNOWN),
        ("PREPARE a AS UPDATE ONLY (pg_settings) SET setting = 1", SETTINGS | UNKNOWN | Effects::PREPARE),
        ("UPDATE /* a */ d.pg_catalog.pg_settings * SET setting = 1", SETTINGS | UNKNOWN),
        ("UPDATE ONLY (U&\"pg\\005fsettings\") SET setting = 1", UNKNOWN),
        ("SELECT setting FROM pg_settings", NONE),
        ("UPDATE ONLY (t) SET a = 1; SELECT setting FROM pg_settings", NONE),
        ("SELECT (1::bigint).pg_advisory_lock", Effects::ADVISORY_LOCK),
        ("SELECT $1 /* a */ . \"pg_try_advisory_lock\"", Effects::ADVISORY_LOCK),
        ("SELECT set_config('a.b', 'c', not true)", SETTINGS),
        ("INSERT INTO t VALUES (set_config('a.b', 'c', false))", SETTINGS),
        ("SET search_path = pg_temp, public", SETTINGS | TEMP),
        ("SELECT set_config('search_path', 'PG_TEMP', true)", TEMP | Effects::LOCAL),
        ("SET search_path TO 'pg_temp'", SETTINGS | TEMP),
        ("LISTEN a", Effects::LISTEN),
        ("UNLISTEN *", Effects::LISTEN),
        ("SELECT pg_advisory_lock(1)", Effects::ADVISORY_LOCK),
        ("SELECT pg_try_advisory_lock_shared(1)", Effects::ADVISORY_LOCK),
        ("SELECT PG_ADVISORY_UNLOCK_ALL()", Effects::ADVISORY_LOCK),
        ("CREATE TEMP TABLE a (b int)", TEMP),
        ("CREATE LOCAL TEMPORARY TABLE a AS SELECT 1", TEMP),
        ("CREATE OR REPLACE TEMP VIEW a AS SELECT 1", TEMP),
        ("CREATE TEMPORARY SEQUENCE a", TEMP),
        ("SELECT 1 INTO TEMP a", TEMP),
        ("SELECT 1 INTO LOCAL TEMPORARY TABLE a", TEMP),
        ("EXPLAIN ANALYZE CREATE TEMP TABLE a AS SELECT 1", TEMP),
        ("CREATE TABLE pg_temp.a (b int)", TEMP),
        ("INSERT INTO \"pg_temp_3\".a VALUES (1)", TEMP),
        ("DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT 1", Effects::HOLD_CURSOR),
        ("DECLARE c CURSOR WITHOUT HOLD FOR SELECT 1", NONE),
        ("CLOSE ALL", Effects::CLOSE),
        ("PREPARE a (int, text) AS SELECT f($1)", Effects::PREPARE),
        ("PREPARE transaction AS SELECT 1", Effects::PREPARE),
        ("EXECUTE a(1)", execute),
        ("EXPLAIN ANALYZE EXECUTE a(1)", execute),
        ("CREATE TABLE b AS EXECUTE a(1)", execute),
        ("GRANT EXECUTE ON FUNCTION f(int) TO a", NONE),
        ("DEALLOCATE a", Effects::DEALLOCATE),
        ("DEALLOCATE PREPARE a", Effects::DEALLOCATE),
        ("DEALLOCATE ALL", Effects::DEALLOCATE_ALL),
        ("deallocate prepare all;", Effects::DEALLOCATE_ALL),
        ("DEALLOCATE \"all\"", Effects::DEALLOCATE),
        ("DISCARD ALL", Effects::DISCARD_ALL),
        // Each statement's words count from its own beginning.
        ("SELECT a b; DISCARD ALL", Effects::DISCARD_ALL),
        ("SELECT a b; DEALLOCATE ALL", Effects::DEALLOCATE_ALL),
        ("SELECT a b; SET LOCAL a = 1", Effects::LOCAL),
        ("SELECT a b; VALUES (1)", NONE),
        ("DISCARD TEMP", Effects::DISCARD),
        ("LOAD 'a'", Effects::LOAD),
        ("DO $$ BEGIN END $$", UNKNOWN),
        ("CALL p()", UNKNOWN),
        ("SELECT f(1)", UNKNOWN),
        ("SELECT s.lower(1)", UNKNOWN),
        ("SELECT \"Lower\"(1)", UNKNOWN),
        ("SELECT \"lower\"(1)", NONE),
        ("SELECT * FROM f(1)", UNKNOWN),
        ("SELECT * FROM a JOIN b ON f(1)", UNKNOWN),
        ("SELECT DISTINCT f(1)", UNKNOWN),
        ("SELECT 1 ORDER BY f(1)", UNKNOWN),
        ("SELECT over(1)", UNKNOWN),
        ("SELECT escape('x')", UNKNOWN),
        ("SELECT second('x')", UNKNOWN),
        ("SELECT 1, set('x')", UNKNOWN),
        ("SELECT join('x'), ilike('x'), cube('x'), rollup('x')", UNKNOWN),
        ("SELECT 1 ORDER BY cube('x')", UNKNOWN),
        ("SELECT 1 ORDER -- group\nBY cube('x')", UNKNOWN),
        ("SELECT NOT materialized('x')", UNKNOWN),
        ("SELECT 1 -- as\nWHERE NOT materialized('x')", UNKNOWN),
        ("SELECT a LIKE b ESCAPE set('x')", UNKNOWN),
        ("SELECT DISTINCT ON (a) over('x') FROM t", UNKNOWN),
        ("SELECT 1 OPERATOR(pg_catalog.+) filter('x')", UNKNOWN),
        ("INSERT INTO t VALUES (1) RETURNING WITH (OLD AS o) key('x')", UNKNOWN),
        ("SELECT * FROM a JOIN b ON conflict('x')", UNKNOWN),
        ("INSERT INTO t SELECT 1 FROM a JOIN b ON conflict('x')", UNKNOWN),
        ("MERGE INTO t USING u ON conflict('x') WHEN MATCHED THEN DO NOTHING", UNKNOWN),
        ("CREATE TABLE a AS SELECT hash('x'), list('x'), range('x')", UNKNOWN),
        ("CREATE TABLE a AS SELECT count(*) OVER (PARTITION BY range('x')) FROM t", UNKNOWN),
        ("CREATE TABLE a AS WITH b AS (DELETE FROM t USING hash('x') RETURNING 1) TABLE b", UNKNOWN),
        ("ALTER TABLE t ALTER a TYPE int USING hash(a)", UNKNOWN),
        ("SELECT json_value('x')", UNKNOWN),
        ("SELECT f (1), g /* x */ (2)", UNKNOWN),
        ("CREATE TABLE a AS SELECT 1 FROM b JOIN c ON f(1)", UNKNOWN),
        ("CREATE EXTENSION a", UNKNOWN),
        ("SELECT query_to_xml('SET a = 1', true, true, '')", UNKNOWN),
        ("SELECT ts_stat('SELECT 1')", UNKNOWN),
        ("SELECT pg_create_physical_replication_slot('a', true)", UNKNOWN),
        ("SELECT dblink_exec('a')", UNKNOWN),
        ("SELECT U&\"f\" (1)", UNKNOWN),
        ("SELECT 'a", UNKNOWN),
        ("SELECT /* a", UNKNOWN),
        ("SELECT $a$ x", UNKNOWN),
        ("SELECT \"a", UNKNOWN),
        ("FROBNICATE", UNKNOWN),
        ("'x'", UNKNOWN),
        ("SELECT 'a\\'; SET a = 1 --'", SETTINGS),
        ("SELECT E'a\\'; SET a = 1 --'", NONE),
        ("SELECT b'\\'; SET a = 1 --'", SETTINGS),
    ];
    for (text, want) in table {
        assert_eq!(effects(text.as_bytes(), true), *want, "{text}");
    }
}

/// A word that names a function here, by PostgreSQL's own parser.
fn is_called(text: &str, word: &str) -> bool {
    let name = format!("String(String {{ sval: \"{word}\" }})");
    let is_call = |tree: &str| {
        tree.match_indices("FuncCall {").any(|(at, _)| {
            let named = tree[at..].split("args:").next();
            named.is_some_and(|named| named.contains(&name))
        })
    };
    pg_query::parse(text, 0).is_ok_and(|parsed| is_call(&format!("{:?}", parsed.protobuf)))
}

#[test]
fn no_word_that_names_a_function_is_taken_for_syntax() {
    let table = [
        "SELECT @('x')",
        "SELECT 1, @('x')",
        "SELECT NOT @('x')",
        "SELECT (1) + @('x')",
        "SELECT DISTINCT @('x')",
        "SELECT DISTINCT ON (a) @('x') FROM t",
        "SELECT 1 OPERATOR(pg_catalog.+) @('x')",
        "INSERT INTO t VALUES (1) RETURNING WITH (OLD AS o) @('x')",
        "SELECT a ILIKE @('x') ESCAPE @('x')",
        "SELECT a SIMILAR TO @('x')",
        "SELECT a AT TIME ZONE @('x')",
        "SELECT 1 FROM t ORDER BY @('x')",
        "SELECT 1 FROM t GROUP BY @('x')",
        "SELECT 1 FROM t LIMIT @('x')",
        "SELECT 1 FROM t FETCH FIRST @('x') ROWS ONLY",
        "SELECT count(*) OVER (PARTITION BY @('x')) FROM t",
        "SELECT count(*) OVER (ORDER BY a ROWS @('x') PRECEDING) FROM t",
        "SELECT 1 FROM a JOIN b ON @('x')",
        "SELECT 1 FROM a JOIN @('x') ON true",
        "SELECT 1 FROM LATERAL @('x')",
        "DELETE FROM t USING @('x')",
        "MERGE INTO t USING u ON @('x') WHEN MATCHED THEN DO NOTHING",
        "CREATE TABLE a AS SELECT @('x')",
        "CREATE TABLE a AS SELECT count(*) OVER (PARTITION BY @('x')) FROM t",
        "ALTER TABLE t ALTER a TYPE int USING @('x')",
        "ALTER TABLE t ADD a int DEFAULT @('x')",
        "SELECT xmlparse(DOCUMENT @('x'))",
    ];
    let mut called = 0;
    for word in KEYWORDS.into_iter().chain(LOOSE_KEYWORDS) {
        for text in table.map(|text| text.replace('@', word)) {
            let found = effects(text.as_bytes(), true);
            let known = INDEX.find(word.as_bytes(), false).function;
            if !known && found.is_empty() {
                assert!(!is_called(&text, word), "{text}");
            }
            called += usize::from(found.contains(UNKNOWN));
        }
    }
    assert!(called > 1000, "{called}");
}

#[test]
fn names_are_read_as_the_server_folds_them() {
    let table: &[(&str, Option<&str>)] = &[
        ("DEALLOCATE a", Some("a")),
        ("deallocate PREPARE \"A\"\"b\" ;; -- x", Some("A\"b")),
        ("DEALLOCATE AbC;", Some("abc")),
        ("DEALLOCATE prepare", Some("prepare")),
        ("DEALLOCATE prepare;", Some("prepare")),
        ("DEALLOCATE \"all\"", Some("all")),
        ("DEALLOCATE ALL", None),
        ("DEALLOCATE PREPARE ALL", None),
        ("DEALLOCATE", None),
        ("DEALLOCATE ;", None),
        ("DEALLOCATE \"\"", None),
        ("DEALLOCATE ä", None),
        ("DEALLOCATE a; SELECT 1", None),
        ("DEALLOCATE a b", None),
        ("DEALLOCATE 'a'", None),
        ("SELECT a", None),
    ];
    for (text, want) in table {
        let got = deallocated_name(text.as_bytes());
        assert_eq!(got.as_deref(), want.map(str::as_bytes), "{text}");
    }
}

#[test]
fn names_behind_execute_and_prepare_are_found() {
    for (text, want) in [
        ("EXECUTE a(1)", &["a"][..]),
        ("explain (verbose) execute \"A \"\"b\"", &["A \"b"]),
        ("PREPARE A AS SELECT 'EXECUTE b'; EXECUTE /* c */ d", &["a", "d"]),
        ("SELECT 1 -- EXECUTE a", &[]),
        ("EXECUTE ä; EXECUTE", &[]),
    ] {
        let want: Vec<_> = want.iter().map(|name| name.as_bytes().to_vec()).collect();
        assert_eq!(statement_names(text.as_bytes(), true), want, "{text}");
    }
}

#[test]
fn backslashes_count_when_strings_are_not_standard() {
    assert_eq!(effects(b"SELECT 'a\\'; SET a = 1 --'", false), NONE);
    assert_eq!(effects(b"SELECT b'\\'; SET a = 1 --'", false), SETTINGS);
    assert_eq!(effects(b"SELECT U&'a'", false), UNKNOWN);
}

#[test]
fn every_name_is_found() {
    for name in FUNCTIONS {
        assert!(INDEX.find(name.as_bytes(), true).function, "{name}");
        assert!(INDEX.find(name.to_ascii_uppercase().as_bytes(), false).function, "{name}");
    }
    for name in KEYWORDS {
        assert!(INDEX.find(name.as_bytes(), false).keyword, "{name}");
    }
    for name in LOOSE_KEYWORDS {
        assert!(INDEX.find(name.as_bytes(), false).loose, "{name}");
    }
    assert_eq!(INDEX.find(b"set_config", false), Known::default());
    assert_eq!(INDEX.find(b"", false), Known::default());
}

#[test]
fn tables_are_sorted() {
    assert!(FUNCTIONS.is_sorted() && KEYWORDS.is_sorted() && LOOSE_KEYWORDS.is_sorted());
}

#[test]
fn a_plain_text_is_ascii_and_has_no_backslash() {
    for (text, plain) in
        [("", true), ("SELECT 'a'", true), ("SELECT 'a\\'", false), ("SELECT '\u{e9}'", false)]
    {
        assert_eq!(is_read_plainly(text.as_bytes()), plain, "{text}");
    }
}
