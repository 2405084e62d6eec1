//! The classes as a table: statement, class, what makes it so.

use super::*;

/// Statement; its class; a word of why it is more than it looks.
const TABLE: &[(&str, Class, &str)] = &[
    // Transaction control.
    ("BEGIN", Class::Control, ""),
    ("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY", Class::Control, ""),
    ("BEGIN READ WRITE", Class::Write, "READ WRITE"),
    ("START TRANSACTION READ WRITE", Class::Write, "READ WRITE"),
    ("COMMIT", Class::Control, ""),
    ("ROLLBACK TO a", Class::Control, ""),
    ("PREPARE TRANSACTION 'a'", Class::Write, ""),
    ("COMMIT PREPARED 'a'", Class::Write, ""),
    ("ROLLBACK PREPARED 'a'", Class::Write, ""),
    // Session state.
    ("SET work_mem = '1MB'", Class::Session, ""),
    ("SET ROLE a", Class::Session, ""),
    ("SET LOCAL a.b = 1", Class::Session, ""),
    ("SET CONSTRAINTS ALL DEFERRED", Class::Session, ""),
    ("SET TRANSACTION READ ONLY", Class::Session, ""),
    ("SET TRANSACTION READ WRITE", Class::Write, "opens"),
    ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", Class::Session, ""),
    ("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", Class::Write, "opens"),
    ("SET default_transaction_read_only = on", Class::Session, ""),
    ("SET default_transaction_read_only = 'on'", Class::Session, ""),
    ("SET default_transaction_read_only = off", Class::Write, "opens"),
    ("SET default_transaction_read_only = 0", Class::Write, "opens"),
    ("SET \"Default_Transaction_Read_Only\" TO 'fa'", Class::Write, "opens"),
    ("SET transaction_read_only = 'off'", Class::Write, "opens"),
    ("SET default_transaction_read_only TO DEFAULT", Class::Session, ""),
    ("RESET default_transaction_read_only", Class::Session, ""),
    ("RESET transaction_read_only", Class::Write, "opens"),
    ("RESET \"Transaction_Read_Only\"", Class::Write, "opens"),
    ("SET transaction_read_only TO DEFAULT", Class::Write, "opens"),
    ("SET SESSION transaction_read_only = DEFAULT", Class::Write, "opens"),
    ("SET LOCAL transaction_read_only TO DEFAULT", Class::Write, "opens"),
    ("SET transaction_read_only FROM CURRENT", Class::Session, ""),
    ("RESET transaction_isolation", Class::Session, ""),
    ("RESET ALL", Class::Session, ""),
    ("SHOW a", Class::Session, ""),
    ("DISCARD ALL", Class::Session, ""),
    ("DEALLOCATE ALL", Class::Session, ""),
    ("LISTEN a", Class::Session, ""),
    ("UNLISTEN *", Class::Session, ""),
    ("CLOSE a", Class::Session, ""),
    // Reads.
    ("SELECT 1", Class::Read, ""),
    ("VALUES (1)", Class::Read, ""),
    ("TABLE t", Class::Read, ""),
    ("SELECT a FROM t WHERE b = $1 ORDER BY c LIMIT 1", Class::Read, ""),
    ("SELECT f(1), t.update FROM t", Class::Read, ""),
    ("WITH a AS (SELECT 1) SELECT * FROM a UNION ALL SELECT 2", Class::Read, ""),
    ("SELECT set_config('work_mem', $1, false)", Class::Read, ""),
    ("COPY t TO STDOUT", Class::Read, ""),
    ("COPY (SELECT 1) TO STDOUT", Class::Read, ""),
    ("EXPLAIN DELETE FROM t", Class::Read, ""),
    ("EXPLAIN (ANALYZE false) DELETE FROM t", Class::Read, ""),
    ("EXPLAIN (ANALYZE 0, VERBOSE) DELETE FROM t", Class::Read, ""),
    ("EXPLAIN ANALYZE SELECT 1", Class::Read, ""),
    ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", Class::Read, ""),
    ("FETCH ALL FROM c", Class::Read, ""),
    ("MOVE c", Class::Read, ""),
    ("PREPARE a AS SELECT 1", Class::Read, ""),
    ("EXECUTE a", Class::Read, ""),
    ("EXPLAIN EXECUTE a", Class::Read, ""),
    ("EXPLAIN WITH x AS (DELETE FROM t RETURNING a) SELECT a FROM x FOR UPDATE", Class::Read, ""),
    ("EXPLAIN CREATE TABLE u AS SELECT now()", Class::Read, ""),
    // What looks like a read.
    ("SELECT * FROM t FOR UPDATE", Class::Write, "FOR UPDATE"),
    ("SELECT * FROM t FOR KEY SHARE", Class::Write, "FOR UPDATE"),
    ("SELECT * FROM (SELECT * FROM t FOR SHARE) s", Class::Write, "FOR UPDATE"),
    ("SELECT 1 WHERE EXISTS (SELECT 1 FROM t FOR UPDATE)", Class::Write, "FOR UPDATE"),
    ("WITH a AS (DELETE FROM t RETURNING *) SELECT * FROM a", Class::Write, "WITH"),
    (
        "WITH a AS (MERGE INTO t USING u ON a = b WHEN MATCHED THEN DELETE RETURNING 1) SELECT 1",
        Class::Write,
        "WITH",
    ),
    (
        "SELECT 1 FROM (WITH a AS (INSERT INTO t VALUES (1) RETURNING 1) SELECT * FROM a) s",
        Class::Write,
        "WITH",
    ),
    ("SELECT 1 INTO u", Class::Definition, "INTO"),
    ("SELECT 1 INTO TEMP u FOR UPDATE", Class::Definition, ""),
    ("WITH a AS (SELECT 1) SELECT * INTO u FROM a", Class::Definition, "INTO"),
    ("SELECT nextval('s')", Class::Write, "nextval"),
    ("SELECT pg_catalog.setval('s', 1)", Class::Write, "nextval"),
    ("SELECT ('s'::regclass).nextval", Class::Write, "nextval"),
    ("SELECT U&\"nextv\\0061l\"('s')", Class::Write, "nextval"),
    ("SELECT 1 FROM lo_unlink(1)", Class::Write, "nextval"),
    ("SELECT 1 ORDER BY lo_put(1, 0, 'x')", Class::Write, "nextval"),
    ("SELECT pg_notify('a', 'b')", Class::Write, "nextval"),
    ("SELECT pg_terminate_backend(1)", Class::Write, "nextval"),
    ("SELECT pg_replication_origin_create('a')", Class::Write, "nextval"),
    ("SELECT pg_stat_reset_shared('a')", Class::Write, "nextval"),
    ("SELECT pg_restore_relation_stats('a', 'b')", Class::Write, "nextval"),
    ("SELECT pg_clear_relation_stats('a', 'b')", Class::Write, "nextval"),
    ("SELECT binary_upgrade_set_next_pg_enum_oid(1)", Class::Write, "nextval"),
    ("VALUES (nextval('s'))", Class::Write, "nextval"),
    ("SELECT brin_summarize_new_values('i')", Class::Write, "nextval"),
    ("SELECT gin_clean_pending_list('i')", Class::Write, "nextval"),
    ("SELECT pg_start_backup('a')", Class::Write, "nextval"),
    ("SELECT pg_log_backend_memory_contexts(1)", Class::Write, "nextval"),
    ("SELECT pg_export_snapshot()", Class::Read, ""),
    ("SELECT pg_current_xact_id()", Class::Write, "nextval"),
    ("SELECT pg_current_xact_id_if_assigned()", Class::Read, ""),
    ("SELECT txid_current()", Class::Write, "nextval"),
    ("SELECT pg_stop_making_pinned_objects()", Class::Write, "nextval"),
    ("SELECT binary_upgrade_set_next_pg_type_oid(1)", Class::Write, "nextval"),
    ("SELECT pg_advisory_lock(1), setseed(0)", Class::Read, ""),
    // As pg_dump does it.
    (
        "SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings WHERE name = 'a'",
        Class::Read,
        "",
    ),
    ("SELECT set_config(name, 'false', false) FROM pg_settings", Class::Write, "set_config"),
    ("SELECT set_config(name, ' false ', false) FROM pg_settings", Class::Write, "set_config"),
    ("SELECT set_config(name, '\\x66616c7365', false) FROM pg_settings", Class::Write, "set_config"),
    ("SELECT set_config(name, NULL, false) FROM pg_settings", Class::Write, "set_config"),
    ("SELECT set_config(name, b, 'view, foreign-table') FROM pg_settings", Class::Write, "set_config"),
    ("SELECT set_config('transaction_read_only', 'view, foreign-table', false)", Class::Write, "set_config"),
    (
        "SELECT set_config(b, new_value => 'view, foreign-table', is_local => true)",
        Class::Write,
        "set_config",
    ),
    ("SELECT query_to_xml($1, true, true, '')", Class::Write, "text"),
    ("SELECT * FROM ts_stat('SELECT a FROM t')", Class::Write, "text"),
    ("SELECT ts_rewrite('a', 'SELECT b, c FROM t')", Class::Write, "text"),
    ("SELECT public.dblink_exec('a', 'DELETE FROM t')", Class::Write, "text"),
    ("SELECT * FROM dblink('SELECT 1') AS x (a int)", Class::Write, "text"),
    ("SELECT dblink_open('a', 'b', 'SELECT 1'), dblink_send_query('a', 'SELECT 1')", Class::Write, "text"),
    ("SELECT * FROM crosstab($1) AS x (a text, b text)", Class::Write, "text"),
    ("SELECT * FROM crosstab4('SELECT 1')", Class::Write, "text"),
    ("SELECT * FROM connectby('t', 'a', 'b', '1', 0) AS x (a text, b text, c int)", Class::Write, "text"),
    ("SELECT * FROM xpath_table('a', 'b', 't', '/x', 'true') AS x (a int, b text)", Class::Write, "text"),
    ("SELECT dblink_get_result('a'), dblink_fetch('a', 1), crosstabs FROM t", Class::Read, ""),
    ("SELECT set_config('transaction_read_only', 'off', false)", Class::Write, "set_config"),
    ("SELECT set_config('Default_Transaction_Read_Only', 'off', false)", Class::Write, "set_config"),
    ("SELECT set_config($1, $2, false)", Class::Write, "set_config"),
    ("SELECT set_config('default_' || 'transaction_read_only', 'off', false)", Class::Write, "set_config"),
    (
        "SELECT set_config(is_local => false, setting_name => 'a', new_value => 'b')",
        Class::Write,
        "set_config",
    ),
    ("COPY (DELETE FROM t RETURNING 1) TO STDOUT", Class::Write, ""),
    ("COPY (SELECT 1 FROM t FOR UPDATE) TO STDOUT", Class::Write, "FOR UPDATE"),
    ("EXPLAIN ANALYZE DELETE FROM t", Class::Write, ""),
    ("EXPLAIN (ANALYZE) DELETE FROM t", Class::Write, ""),
    ("EXPLAIN (ANALYZE on) DELETE FROM t", Class::Write, ""),
    ("EXPLAIN (ANALYZE false, ANALYZE) DELETE FROM t", Class::Write, ""),
    ("EXPLAIN ANALYZE CREATE TABLE u AS SELECT 1", Class::Definition, ""),
    ("EXPLAIN EXECUTE a(nextval('s'))", Class::Write, "nextval"),
    ("EXPLAIN SELECT 1 WHERE txid_current() > 5", Class::Write, "nextval"),
    ("EXPLAIN (ANALYZE off) UPDATE t SET a = pg_current_xact_id()", Class::Write, "nextval"),
    (
        "EXPLAIN DECLARE c CURSOR FOR SELECT query_to_xml('SELECT 1', true, false, '')",
        Class::Write,
        "runs SQL",
    ),
    ("EXPLAIN SELECT set_config('transaction_read_only', 'off', false)", Class::Write, "set_config"),
    ("EXECUTE a(nextval('s'))", Class::Write, "nextval"),
    ("DECLARE c CURSOR FOR SELECT * FROM t FOR UPDATE", Class::Write, "FOR UPDATE"),
    ("PREPARE a AS DELETE FROM t", Class::Write, ""),
    ("PREPARE a AS SELECT * FROM t FOR UPDATE", Class::Write, "FOR UPDATE"),
    // Writes.
    ("INSERT INTO t VALUES (1)", Class::Write, ""),
    ("UPDATE t SET a = 1", Class::Write, ""),
    ("DELETE FROM t", Class::Write, ""),
    ("MERGE INTO t USING u ON a = b WHEN MATCHED THEN DELETE", Class::Write, ""),
    ("TRUNCATE t", Class::Write, ""),
    ("COPY t FROM STDIN", Class::Write, ""),
    ("LOCK t", Class::Write, ""),
    ("LOCK TABLE ONLY s.t, u IN ACCESS SHARE MODE NOWAIT", Class::Read, ""),
    ("LOCK t IN ROW SHARE MODE", Class::Write, ""),
    ("NOTIFY a", Class::Write, ""),
    ("CALL p()", Class::Write, ""),
    // Definitions.
    ("CREATE TABLE t ()", Class::Definition, ""),
    ("CREATE TEMP TABLE t ()", Class::Definition, ""),
    ("CREATE TABLE t AS SELECT 1", Class::Definition, ""),
    ("CREATE TABLE t AS EXECUTE a", Class::Definition, ""),
    ("CREATE MATERIALIZED VIEW v AS SELECT 1", Class::Definition, ""),
    ("REFRESH MATERIALIZED VIEW v", Class::Definition, ""),
    ("ALTER TABLE t ADD a int", Class::Definition, ""),
    ("DROP TABLE t", Class::Definition, ""),
    ("GRANT SELECT ON t TO a", Class::Definition, ""),
    ("ALTER ROLE a SET standard_conforming_strings = off", Class::Definition, ""),
    ("ALTER DATABASE a RESET ALL", Class::Definition, ""),
    ("COMMENT ON TABLE t IS 'a'", Class::Definition, ""),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", Class::Definition, ""),
    ("IMPORT FOREIGN SCHEMA a FROM SERVER b INTO c", Class::Definition, ""),
    ("REASSIGN OWNED BY a TO b", Class::Definition, ""),
    ("SECURITY LABEL ON TABLE t IS 'a'", Class::Definition, ""),
    // The server itself.
    ("COPY t TO PROGRAM 'x'", Class::Server, ""),
    ("COPY t FROM PROGRAM 'x'", Class::Server, ""),
    ("COPY t TO '/x'", Class::Server, ""),
    ("COPY t FROM '/x'", Class::Server, ""),
    ("COPY (SELECT 1) TO '/x'", Class::Server, ""),
    ("VACUUM t", Class::Server, ""),
    ("ANALYZE", Class::Server, ""),
    ("REINDEX TABLE t", Class::Server, ""),
    ("CLUSTER", Class::Server, ""),
    ("CHECKPOINT", Class::Server, ""),
    ("LOAD 'a'", Class::Server, ""),
    ("ALTER SYSTEM SET a = 1", Class::Server, ""),
    // What is not read.
    ("DO 'BEGIN END'", Class::Code, ""),
];

#[test]
fn each_statement_has_its_class() {
    for (text, class, because) in TABLE {
        let found = statements(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let [found] = &found[..] else { panic!("{text}: {found:?}") };
        assert_eq!(found.class, *class, "{text}: {found:?}");
        assert!(found.because.unwrap_or_default().contains(because), "{text}: {found:?}");
    }
}

#[test]
fn prepare_and_execute_are_seen_wherever_they_stand() {
    let of = |text: &str| {
        let found = statements(text.as_bytes()).unwrap();
        (found[0].prepares, found[0].executes.as_deref() == Some("a"))
    };
    assert_eq!(of("PREPARE a AS SELECT 1"), (true, false));
    for text in ["EXECUTE a", "EXPLAIN EXECUTE a", "EXPLAIN ANALYZE EXECUTE a", "CREATE TABLE t AS EXECUTE a"]
    {
        assert_eq!(of(text), (false, true), "{text}");
    }
    assert_eq!(of("EXPLAIN CREATE TABLE t AS EXECUTE a"), (false, true));
    for text in ["DEALLOCATE a", "SELECT 1", "PREPARE TRANSACTION 'a'"] {
        assert_eq!(of(text), (false, false), "{text}");
    }
}

#[test]
fn all_statements_of_a_text_in_order() {
    let classes =
        |text: &str| statements(text.as_bytes()).map(|f| f.iter().map(|f| f.class).collect::<Vec<_>>());
    assert_eq!(classes(" ; -- x"), Ok(vec![]));
    assert_eq!(
        classes("BEGIN; DELETE FROM t; ;COMMIT"),
        Ok(vec![Class::Control, Class::Write, Class::Control])
    );
    assert_eq!(classes("SELECT 1; SELEC"), Err(Unparsed::Syntax));
    let deep = format!("SELECT {}1{}", "(SELECT ".repeat(5000), ")".repeat(5000));
    assert_eq!(classes(&deep), Err(Unparsed::Syntax), "too deep is not readable, and no crash");
}

fn prints(text: &str) -> Vec<Option<Print>> {
    let named = names(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
    named.into_iter().map(|named| named.map(|named| named.print)).collect()
}

#[test]
fn names_in_an_allow_list() {
    // The same but for literals.
    for (a, b) in [
        ("SELECT a FROM t WHERE b = 'x'", "select a from t where b = $1 /* c */"),
        ("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES ('a')"),
        ("PREPARE p AS SELECT 1 + 1", "PREPARE q(int) AS SELECT $1 + 2"),
        ("PREPARE p AS SELECT a::text FROM t WHERE b LIKE 'x%'", "SELECT a::text FROM t WHERE b LIKE $1"),
        ("EXECUTE a(1)", "EXECUTE b(2)"),
        ("EXPLAIN SELECT 1", "EXPLAIN SELECT 2"),
        ("SET a = 1", " SET a = 1 "),
        ("PREPARE a AS SELECT b AS a FROM t", "SELECT b AS a FROM t"),
        ("/* as */ PREPARE \"as\" (numeric(CAST(1 AS int), 2), int[]) /* as */ AS(SELECT 1)", "SELECT 1"),
        ("PREPARE a AS  select set_config('a','b',true)", "select set_config('a','b',true)"),
        ("SELECT 'set_config', f('a')", "SELECT 'a', f('b')"),
        // What the parser's fingerprint does not see: docs/policy.md.
        ("CLOSE a", "CLOSE b"),
        ("FETCH 1 FROM a", "FETCH 1 FROM b"),
        ("DECLARE a CURSOR FOR SELECT 1", "DECLARE b CURSOR FOR SELECT 1"),
        ("SELECT EXTRACT(year FROM a) FROM t", "SELECT EXTRACT(day FROM a) FROM t"),
        ("DEALLOCATE a", "DEALLOCATE b"),
        ("CLOSE a", "CLOSE ALL"),
        ("SELECT f()", "SELECT f(1)"),
        ("SELECT a FROM t WHERE b OR c = 1", "SELECT a FROM t WHERE b OR c = 1 OR c = 2"),
        // It only narrows.
        (
            "SELECT a FROM t WHERE true AND b = 1 AND (c = 1 OR d)",
            "SELECT a FROM t WHERE b = 2 AND (c = 3 OR d)",
        ),
    ] {
        assert_eq!(prints(a), prints(b), "{a} | {b}");
    }
    for (a, b) in [
        ("SELECT a FROM t", "SELECT a FROM u"),
        ("SELECT a FROM t", "SELECT a FROM t FOR UPDATE"),
        ("SELECT f(1)", "SELECT g(1)"),
        // Here a literal is what the statement does.
        ("DO 'a'", "DO 'b'"),
        ("SET a = 1", "SET a = 2"),
        ("ALTER USER a PASSWORD 'x'", "ALTER USER b PASSWORD 'x'"),
        (
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'x'",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'y'",
        ),
        ("COPY t FROM STDIN", "COPY t FROM PROGRAM 'x'"),
        ("COPY t TO PROGRAM 'x'", "COPY t TO PROGRAM 'y'"),
        ("COPY t FROM 'x'", "COPY t FROM 'y'"),
        ("NOTIFY a, 'x'", "NOTIFY b, 'y'"),
        ("LOCK t IN ACCESS SHARE MODE", "LOCK t"),
        ("SELECT set_config('a', 'b', true)", "SELECT set_config('c', 'd', false)"),
        (
            "SELECT a FROM t WHERE set_config('a', $1, true) = b",
            "SELECT a FROM t WHERE set_config('b', $1, true) = b",
        ),
        ("INSERT INTO t SELECT ('a'::text).set_config", "INSERT INTO t SELECT ('b'::text).set_config"),
        ("PREPARE a AS SELECT set_config('a', 'b', true)", "PREPARE a AS SELECT set_config('b', 'b', true)"),
        ("SELECT query_to_xml('a', true, true, '')", "SELECT query_to_xml('b', true, true, '')"),
        ("SELECT table_to_xml('a', true, true, '')", "SELECT table_to_xml('b', true, true, '')"),
        ("SELECT * FROM dblink('a', 'b') AS x (c int)", "SELECT * FROM dblink('a', 'd') AS x (c int)"),
        ("SELECT * FROM crosstab('a') AS x (c int)", "SELECT * FROM crosstab('b') AS x (c int)"),
        ("EXPLAIN SELECT 1", "EXPLAIN ANALYZE SELECT 1"),
        // A literal alone is left out of a fingerprint, and one more alternative lets everything through.
        ("DELETE FROM t WHERE a = 1 OR b = 2", "DELETE FROM t WHERE a = 1 OR b = 2 OR true"),
        ("SELECT a FROM t WHERE b = $1 OR c = $2", "SELECT a FROM t WHERE b = $1 OR c = $2 OR $3"),
        ("SELECT a FROM t WHERE b OR c", "SELECT a FROM t WHERE b OR c OR 't'::text::bool"),
        ("SELECT a FROM t WHERE b AND (c OR d)", "SELECT a FROM t WHERE b AND (c OR true OR d)"),
        ("SELECT a FROM t WHERE NOT (b AND c)", "SELECT a FROM t WHERE NOT (b AND c AND false)"),
        ("UPDATE t SET a = b OR c", "UPDATE t SET a = b OR c OR true"),
        ("PREPARE a AS SELECT a FROM t WHERE b OR c", "PREPARE a AS SELECT a FROM t WHERE b OR c OR true"),
        (
            "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE b AND c)",
            "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE b AND c AND false)",
        ),
        ("BEGIN READ WRITE", "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE"),
    ] {
        assert_ne!(prints(a), prints(b), "{a} | {b}");
    }
    let both = prints("SELECT 1; BEGIN; SELECT a FROM t ;DELETE FROM t");
    assert_eq!(both[1], None);
    assert_eq!(both[0], prints("SELECT 2")[0]);
    assert_eq!(both[2], prints("SELECT a FROM t")[0]);
    assert_eq!(both[3], prints("DELETE FROM t")[0]);
    assert_eq!(prints("SELECT '\u{e9}'; SELECT a FROM t")[1], both[2], "positions are bytes");
    for print in both.into_iter().flatten().chain(prints("DO 'a'")[0]) {
        assert_eq!(Print::parse(&print.to_string()), Some(print));
    }
}

#[test]
fn remarks_hold_no_literal_and_no_comment() {
    for (text, remark) in [
        ("SELECT 'hunter2' /* hunter2 */ FROM t -- hunter2", "SELECT $1 FROM t"),
        ("INSERT INTO t VALUES ('hunter2', 5)", "INSERT INTO t VALUES ($1, $2)"),
        ("SET a = 'hunter2'", "SET"),
        ("SELECT set_config('a', 'hunter2', true)", "SELECT"),
        ("DO 'hunter2'", "DO"),
        ("ALTER USER a PASSWORD 'hunter2'", "data definition"),
        ("CALL p('hunter2')", "CALL p($1)"),
        ("PREPARE a AS SELECT 'hunter2'::text", "SELECT $1::text"),
        ("COPY (SELECT 'hunter2') TO STDOUT", "COPY (SELECT $1) TO STDOUT"),
        ("EXECUTE p(4111, -4111.5, 4111e3)", "EXECUTE p(?, -?, ?)"),
        ("EXPLAIN EXECUTE p4111(4111)", "EXPLAIN EXECUTE p4111(?)"),
        ("EXECUTE p('hunter2', 4111)", "EXECUTE"),
        ("SELECT a FROM t GROUP BY 4111 ORDER BY 4111", "SELECT a FROM t GROUP BY ? ORDER BY ?"),
        ("FETCH 4111 FROM c", "FETCH FORWARD ? c"),
    ] {
        let named = names(text.as_bytes()).unwrap();
        assert_eq!(named[0].as_ref().unwrap().remark, remark, "{text}");
    }
    let long = names(format!("SELECT 1{}", " OR a".repeat(REMARK_TEXT_BYTES_MAX / 5)).as_bytes()).unwrap();
    assert_eq!(long[0].as_ref().unwrap().remark, "SELECT");
    // Whatever the parser leaves in of a statement that may stand in a list with literals left out.
    for (text, ..) in TABLE {
        let text = text.replace("'x'", "'hunter2'").replace("'a'", "'hunter2'").replace("'s'", "'hunter2'");
        for named in names(text.as_bytes()).unwrap().into_iter().flatten() {
            assert!(!named.remark.contains("hunter2"), "{text}: {}", named.remark);
        }
    }
}

/// What [`read`] saw in a copy of the whole tree.
fn seen_in_a_copy(node: &NodeEnum) -> Class {
    fn look(tree: &serde_json::Value, most: &mut Class) {
        match tree {
            serde_json::Value::Array(items) => items.iter().for_each(|item| look(item, most)),
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    *most = (*most).max(class_of(name, value));
                    look(value, most);
                }
            }
            _ => {}
        }
    }
    fn class_of(name: &str, value: &serde_json::Value) -> Class {
        match name {
            "InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt" | "LockingClause" => Class::Write,
            "into_clause" if !value.is_null() => Class::Definition,
            "String" if value["sval"].as_str().and_then(what_it_does).is_some() => Class::Write,
            "FuncCall" => {
                let names = value["funcname"].as_array().and_then(|names| names.last());
                let sets = names.is_some_and(|name| name["node"]["String"]["sval"] == "set_config");
                let literal = |at: usize| {
                    let word = value["args"][at]["node"]["AConst"]["val"]["Sval"]["sval"].as_str();
                    word.filter(|word| !word.contains('\\'))
                };
                match (literal(0), literal(1)) {
                    (Some(name), _) if !is_read_only_setting(name) => Class::Read,
                    (None, Some(value)) if value.trim().len() >= NO_BOOLEAN_CHARS => Class::Read,
                    _ if sets => Class::Write,
                    _ => Class::Read,
                }
            }
            _ => Class::Read,
        }
    }
    let mut most = Class::Read;
    look(&serde_json::to_value(node).unwrap(), &mut most);
    most
}

#[test]
fn nothing_in_a_tree_is_passed_over() {
    let bypass = include_str!("../../../tests/bypass.txt");
    let calls = [
        "SELECT f(set_config('a', nextval, 'b'), set_config(g('transaction_read_only'), 'a'))",
        "SELECT set_config('a', set_config('transaction_read_only', 'off', true), true)",
        "SELECT set_config(set_config('a', 'b', true), 'b', true), f('transaction_read_only')",
        "SELECT set_config('a', f('transaction_read_only', b), true), x.set_config('a\\'), set_config.f(a)",
        "SELECT set_config()",
        "SELECT a[nextval] FROM t TABLESAMPLE f(nextval) WINDOW w AS (PARTITION BY setval)",
        "SELECT * FROM XMLTABLE(a PASSING nextval COLUMNS b int PATH lo_put), ROWS FROM (f(1) AS (a setval))",
        "SELECT sum(a) FILTER (WHERE nextval) OVER (ORDER BY a USING operator(nextval.<)) FROM t",
        "SELECT 'nextval', \"select\", a COLLATE setval, CAST(a AS lo_creat), ARRAY[nextval] FROM ONLY nextval",
        "WITH RECURSIVE a AS (SELECT 1) SEARCH DEPTH FIRST BY setval SET b SELECT JSON_OBJECT(nextval : 1)",
    ];
    let mut read = 0;
    for text in TABLE.iter().map(|(text, ..)| *text).chain(calls).chain(bypass.lines()) {
        let Ok(tree) = meaning::tree(text) else { continue };
        for node in tree.stmts.iter().filter_map(node_of) {
            assert_eq!(super::read(node, Kind::Select).class, seen_in_a_copy(node), "{text}");
            read += 1;
        }
    }
    assert!(read > 300, "{read}");
}

#[test]
fn a_tree_is_made_of_so_many_tokens_only() {
    let of = |text: &str| statements(text.as_bytes()).map(|found| found.len());
    let list = |item: &str, count: usize| vec![item; count].join(",");
    let tokens = crate::limits::TREE_TOKENS_MAX;
    // With its comma.
    let names = tokens / (crate::limits::TREE_NAME_TOKENS + 1);
    assert_eq!(of(&format!("SELECT {}", list("a", names - 1))), Ok(1));
    for text in [
        format!("SELECT {}", list("a", names)),
        format!("SELECT {}", list("\"a\"", names)),
        format!("SELECT {}", list("TRUE", names)),
        format!("SELECT {}", list("+-+-+-+-+-+-1", names / 10)),
        format!("SELECT {}", list(&format!("{}1", "+-".repeat(100)), names / 150)),
        format!("SELECT {}", list("1", tokens / 2)),
        "END;".repeat(names + 1),
    ] {
        assert_eq!(of(&text), Err(Unparsed::Tokens), "{}", &text[..40]);
        assert_eq!(names_of(&text), Err(Unparsed::Tokens), "{}", &text[..40]);
    }
    // Literals, also those that are words, are lighter.
    for item in ["NULL", "default", "'a'", "1.5", "$1"] {
        assert_eq!(of(&format!("INSERT INTO t VALUES ({})", list(item, tokens / 2 - 20))), Ok(1), "{item}");
    }
}

fn names_of(text: &str) -> Result<usize, Unparsed> {
    names(text.as_bytes()).map(|names| names.len())
}
