//! What the parser makes of texts, and where it disagrees with the scan.

use super::*;
use crate::sql::insert::lift;

#[test]
fn counts_and_kinds() {
    use Kind as K;
    let table: &[(&str, &[Kind])] = &[
        ("", &[]),
        (" ;; -- x", &[]),
        ("BEGIN", &[K::Begin]),
        ("start transaction", &[K::Begin]),
        ("END", &[K::Commit]),
        ("ABORT", &[K::Rollback]),
        ("ROLLBACK TO a", &[K::Release]),
        ("SAVEPOINT a", &[K::Savepoint]),
        ("COMMIT PREPARED 'a'", &[K::TwoPhase]),
        ("SET a = 1", &[K::Set]),
        ("SET CONSTRAINTS ALL DEFERRED", &[K::Set]),
        ("RESET ALL", &[K::Reset]),
        ("RESET a", &[K::Reset]),
        ("SHOW a", &[K::Show]),
        ("DISCARD ALL", &[K::Discard]),
        ("DEALLOCATE ALL", &[K::Deallocate]),
        ("LISTEN a; UNLISTEN *; NOTIFY a", &[K::Listen, K::Unlisten, K::Notify]),
        ("PREPARE a AS SELECT 1", &[K::Prepare]),
        ("EXECUTE a", &[K::Execute]),
        ("DO 'x'", &[K::Do]),
        ("CALL a()", &[K::Call]),
        ("COPY a FROM STDIN", &[K::Copy]),
        ("SELECT 1", &[K::Select]),
        ("VALUES (1)", &[K::Select]),
        ("SELECT 1 INTO a", &[K::Ddl]),
        ("INSERT INTO a VALUES (1)", &[K::Dml]),
        ("WITH a AS (DELETE FROM b) SELECT 1", &[K::Select]),
        ("CREATE TABLE a ()", &[K::Ddl]),
        ("DROP TABLE a", &[K::Ddl]),
        ("ALTER SYSTEM RESET ALL", &[K::Ddl]),
        ("TRUNCATE a", &[K::Ddl]),
        ("VACUUM", &[K::Other]),
        ("EXPLAIN SELECT 1", &[K::Explain]),
        ("DECLARE a CURSOR FOR SELECT 1", &[K::Other]),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END", &[K::Ddl]),
    ];
    for (text, want) in table {
        assert_eq!(kinds(text.as_bytes()).as_deref(), Ok(*want), "{text}");
        assert_eq!(statement_count(text.as_bytes()), Ok(want.len()), "{text}");
    }
    for text in ["SELEC 1", "'", "SELECT 1; SELEC", "a\0b"] {
        assert_eq!(kinds(text.as_bytes()), Err(Unparsed::Syntax), "{text}");
        assert_eq!(statement_count(text.as_bytes()), Err(Unparsed::Syntax), "{text}");
    }
    assert_eq!(kinds(b"SELECT '\xe9\xff'"), Ok(vec![K::Select]));
}

#[test]
fn fingerprints_hold_no_literals() {
    let a = fingerprint(b"SELECT a FROM t WHERE b = 'secret'").unwrap();
    assert_eq!(a, fingerprint(b"select a from t where b = $1 -- x").unwrap());
    assert_ne!(a, fingerprint(b"SELECT a FROM u WHERE b = 'secret'").unwrap());
    assert_ne!(a, fingerprint(b"SELECT a FROM u AS t WHERE b = 'secret'").unwrap());
    assert_ne!(a, fingerprint(b"SELECT a FROM s.t WHERE b = 'secret'").unwrap());
    assert_ne!(fingerprint(b"SELECT 1 FROM t_11").unwrap(), fingerprint(b"SELECT 1 FROM t_12").unwrap());
    assert!(a.len() == 16 && a.bytes().all(|b| b.is_ascii_hexdigit()));
}

#[test]
fn names_are_folded_and_quoted() {
    let text = b"INSERT INTO Sch.\"T\"\"a.b\" (A, \"B\") VALUES (-0, 'x')";
    let mut lifted = Lifted::new();
    lift(text, &mut lifted).unwrap();
    let target = target_of(text, &lifted).unwrap();
    assert_eq!(target.schema.as_deref(), Some("sch"));
    assert_eq!(target.table, "T\"a.b");
    assert_eq!(target.name_as_written, "\"sch\".\"T\"\"a.b\"");
    assert_eq!(target.columns, ["a", "B"]);
    assert_eq!(target.items, [Class::SignedInteger, Class::String]);
}

#[test]
fn what_follows_the_row() {
    let target = |tail: &str| insert_target(&format!("INSERT INTO \"T\" VALUES (1) {tail}")).expect(tail);
    let column = |name: &str| Returned::Column(name.to_owned());
    assert_eq!((target("").conflict, target("").returning), (false, None));
    let all = target("ON CONFLICT (a, B) DO NOTHING RETURNING *, \"T\".*, A, \"T\".\"B\" AS x, c d");
    assert!(all.conflict);
    let returned = [Returned::All, Returned::All, column("a"), column("B"), column("c")];
    assert_eq!(all.returning.as_deref(), Some(&returned[..]));
    assert!(target("ON CONFLICT DO NOTHING").conflict && target("ON CONFLICT DO NOTHING").updates.is_empty());
    let updates =
        target("ON CONFLICT (a) DO UPDATE SET B = EXCLUDED.b, \"C\"=\"excluded\".\"C\" RETURNING b");
    let update = |column: &str, to| Update { column: column.to_owned(), to };
    let (excluded, computed) = (SetTo::Excluded, SetTo::Computed);
    assert!(updates.conflict && !updates.computes());
    assert_eq!(updates.updates, [update("b", excluded), update("C", excluded)]);
    let others =
        target("ON CONFLICT (a) DO UPDATE SET b = $2, c = \"T\".c + 1, d = EXCLUDED.c, e = 1 WHERE true");
    let to =
        [update("b", SetTo::Param(2)), update("c", computed), update("d", computed), update("e", computed)];
    assert_eq!((others.computes(), &others.updates[..]), (true, &to[..]));
    assert_eq!(others.used.columns, ["c"]);
    assert!(target("ON CONFLICT ON CONSTRAINT c DO NOTHING").conflict);
    let texts = target("RETURNING a::text, \"T\".\"B\" :: TEXT AS c");
    assert!(texts.returns_text() && !all.returns_text());
    let text = |name: &str| Returned::Text(name.to_owned());
    assert_eq!(texts.returning, Some(vec![text("a"), text("B")]));
    let named = insert_target("INSERT INTO s.t VALUES (1) RETURNING s.t.a, s.t.*, t.b").expect("schema");
    assert_eq!(named.returning, Some(vec![column("a"), Returned::All, column("b")]));
    let aliased =
        insert_target("INSERT INTO s.t AS \"A\" VALUES (1) RETURNING \"A\".a, b, \"A\".*, NULL, null AS n");
    let returned = aliased.expect("alias").returning;
    let wanted = [column("a"), column("b"), Returned::All, Returned::Null, Returned::Null];
    assert_eq!(returned.as_deref(), Some(&wanted[..]));
    let others = [
        "t VALUES (1) RETURNING s.t.a",
        "s.t VALUES (1) RETURNING o.t.a",
        "s.old VALUES (1) RETURNING s.old.a",
    ];
    for other in others {
        assert_eq!(insert_target(&format!("INSERT INTO {other}")), Err(NotPourable::Returning), "{other}");
    }
}

#[test]
fn the_tree_refuses_what_the_scan_refuses() {
    use NotPourable as N;
    let table: &[(&str, N)] = &[
        ("SELECT 1", N::NotInsert),
        ("INSERT INTO t DEFAULT VALUES", N::DefaultValues),
        ("INSERT INTO t SELECT 1", N::NotValues),
        ("INSERT INTO t VALUES (1) ORDER BY 1", N::NotValues),
        ("INSERT INTO t VALUES (1) UNION VALUES (2)", N::NotValues),
        ("INSERT INTO t VALUES (1) LIMIT 1", N::NotValues),
        ("INSERT INTO t VALUES (1), (2, 3)", N::Count),
        ("INSERT INTO t VALUES (1), (random())", N::Expression),
        ("INSERT INTO t AS old VALUES (1)", N::Alias),
        ("INSERT INTO t AS EXCLUDED VALUES (1)", N::Alias),
        ("INSERT INTO t AS a VALUES (1) RETURNING t.a", N::Returning),
        ("INSERT INTO s.t AS a VALUES (1) RETURNING s.a.b", N::Returning),
        ("INSERT INTO s.t AS a VALUES (1) RETURNING s.t.b", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING NULL::int", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING NULL::text", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING a::varchar", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING a::text::int", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING a::text[]", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING a::s.text", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING *::text", N::Syntax),
        ("INSERT INTO t VALUES (1) RETURNING NULL IS NULL", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING TRUE", N::Returning),
        ("INSERT INTO t (a[1]) VALUES (1)", N::Subscript),
        ("INSERT INTO t VALUES (1) RETURNING 1", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING a, current_user", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING u.a", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING s.t.a", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING (t).a", N::Returning),
        ("INSERT INTO old VALUES (1) RETURNING old.a", N::Returning),
        ("INSERT INTO t VALUES (1) RETURNING WITH (OLD AS o) a", N::Returning),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = a", N::OnConflict),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = s.excluded.a", N::OnConflict),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a[1] = EXCLUDED.a", N::OnConflict),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a.a = EXCLUDED.a", N::OnConflict),
        (
            "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET (a, b) = (EXCLUDED.a, EXCLUDED.b)",
            N::OnConflict,
        ),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = EXCLUDED.a WHERE f(t.a)", N::OnConflict),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) WHERE a > 0 DO UPDATE SET a = EXCLUDED.a", N::OnConflict),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a COLLATE \"C\") DO NOTHING", N::OnConflict),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) WHERE a > 1 DO NOTHING", N::OnConflict),
        ("INSERT INTO t VALUES (1) ON CONFLICT ((a + 1)) DO NOTHING", N::OnConflict),
        ("INSERT INTO t OVERRIDING USER VALUE VALUES (1)", N::Overriding),
        ("INSERT INTO t VALUES (1 + 1)", N::Expression),
        ("INSERT INTO t VALUES (b'1')", N::Literal),
        ("INSERT INTO t VALUES (1); SELECT 1", N::SecondStatement),
        ("INSERT INTO a.b.c VALUES (1)", N::Name),
        ("INSERT INTO select VALUES (1)", N::Syntax),
        (&format!("INSERT INTO t VALUES (1) RETURNING a{}", ",a".repeat(TREE_TOKENS_MAX / 6)), N::Count),
    ];
    for (text, reason) in table {
        assert_eq!(insert_target(text), Err(*reason), "{text}");
    }
}
