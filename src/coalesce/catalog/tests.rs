//! The queries as texts, and the answers that they decode from.

use super::queries::GUARD_MARK;
use super::*;
use crate::wire::backend::ErrorFields;
use proptest::prelude::*;

fn answer(columns: &str, stops: &str) -> String {
    format!(
        r#"{{"relid": 16400, "schema": "s", "table": "t", "relkind": "r", "fingerprint": "f", "stops": {stops}, "self_fk": [], "quiet": true, "granted_by_column": false, "updates_alone": true, "functions": [],
         "root": 16400, "references": [],
         "user": "u", "session_user": "u", "search_path": "public", "temporary": false, "columns": [{columns}]}}"#
    )
}

fn column(attnum: i16, extra: &str) -> String {
    format!(
        r#"{{"attnum": {attnum}, "name": "c{attnum}", "type": 23, "typmod": -1, "base": 23, "base_name": "int4",
         "kind": "b", "elem": 0, "elem_kind": "", "notnull": false, "identity": "", "generated": "",
         "may_insert": true, "domain_null_check": false, "cast_from_text": false, "cast_to_text": false, "in_key": false, "draws": [[16500, false]], {extra}}}"#
    )
}

fn with_default(whys: &str) -> DefaultKind {
    let text = answer(&column(1, &format!(r#""has_default": true, "default_whys": [{whys}]"#)), "[]");
    decode("t", &[Some(text.as_bytes())]).unwrap().columns.remove(0).default
}

#[test]
fn defaults_are_judged_by_all_their_parts() {
    assert_eq!(with_default(""), DefaultKind::Immutable);
    assert_eq!(with_default(r#""pg_catalog.nextval(v)""#), DefaultKind::Sequence);
    assert_eq!(with_default(r#""pg_catalog.now(s)""#), DefaultKind::TransactionTime);
    assert_eq!(with_default(r#""SQLVALUEFUNCTION 8""#), DefaultKind::TransactionTime);
    assert_eq!(with_default(r#""pg_catalog.uuidv7(v)""#), DefaultKind::PerRow);
    assert_eq!(
        with_default(r#""pg_catalog.clock_timestamp(v)", "pg_catalog.timestamp(s)""#),
        DefaultKind::PerRow
    );
    for other in [r#""user now(s)""#, r#""SQLVALUEFUNCTION 9""#, r#""SUBLINK""#, r#""pg_catalog.now(v)""#] {
        assert!(matches!(with_default(other), DefaultKind::Other(_)), "{other}");
    }
    assert!(matches!(with_default(r#""pg_catalog.nextval(v)", "pg_catalog.now(s)""#), DefaultKind::Other(_)));
}

#[test]
fn an_answer_that_the_query_cannot_give_is_an_error() {
    let plain = r#""has_default": false, "default_whys": []"#;
    let twice = answer(&format!("{}, {}", column(1, plain), column(1, plain)), "[]");
    assert_eq!(decode("t", &[Some(twice.as_bytes())]), Err(Reason::Malformed("order of columns")));
    let zero = answer(&column(0, plain), "[]");
    assert_eq!(decode("t", &[Some(zero.as_bytes())]), Err(Reason::Malformed("column")));
    let identity = answer(&column(1, plain).replace(r#""identity": """#, r#""identity": "z""#), "[]");
    assert_eq!(decode("t", &[Some(identity.as_bytes())]), Err(Reason::Malformed("identity")));
    let long = "n".repeat(4 * 63 + 1);
    for (name, value) in [("schema", "s"), ("table", "t"), ("fingerprint", "f")] {
        let (good, bad) = (format!("\"{name}\": \"{value}\""), format!("\"{name}\": \"{long}\""));
        let named = answer("", "[]").replace(&good, &bad);
        assert_eq!(decode("t", &[Some(named.as_bytes())]), Err(Reason::Malformed("length")), "{name}");
    }
    for name in ["", "\\u0000", "c\\u0000"] {
        let column = column(1, plain).replace(r#""name": "c1""#, &format!(r#""name": "{name}""#));
        let named = answer(&column, "[]");
        assert_eq!(decode("t", &[Some(named.as_bytes())]), Err(Reason::Malformed("column")), "{name}");
        let named = answer("", "[]").replace(r#""table": "t""#, &format!(r#""table": "{name}""#));
        assert_eq!(decode("t", &[Some(named.as_bytes())]), Err(Reason::Malformed("length")), "{name}");
    }
    let quoted = answer(&column(1, plain).replace("\"c1\"", r#""C\"1""#), "[]");
    assert_eq!(decode("t", &[Some(quoted.as_bytes())]).unwrap().columns[0].quoted, r#""C""1""#);
    assert_eq!(decode("t", &[None]), Err(Reason::Malformed("null")));
    assert_eq!(decode("t", &[]), Err(Reason::Malformed("number of columns")));
    assert_eq!(decode("t", &[Some(b"{")]), Err(Reason::Malformed("json")));
    let gone = answer("", "[]").replace("16400", "null");
    assert_eq!(decode("t", &[Some(gone.as_bytes())]), Err(Reason::NotFound));
    let going = answer(&column(1, plain).replace(r#""may_insert": true"#, r#""may_insert": null"#), "[]");
    assert_eq!(decode("t", &[Some(going.as_bytes())]), Err(Reason::NotFound));
}

#[test]
fn a_stop_is_kept_with_the_facts() {
    let stopped = |stops: &str| decode("t", &[Some(answer("", stops).as_bytes())]).unwrap().refused;
    assert_eq!(stopped("[]"), None);
    assert_eq!(stopped(r#"[["rule", "r"], ["kind", null]]"#), Some(Reason::Rule("r".into())));
    assert_eq!(stopped(r#"[["something new", null]]"#), Some(Reason::Unknown("something new".into())));
}

#[test]
fn names_are_quoted_for_the_server() {
    assert_eq!(lookup_name(None, "T\"x"), "\"T\"\"x\"");
    assert_eq!(lookup_name(Some("a.b"), "c"), "\"a.b\".\"c\"");
}

#[test]
fn only_encodings_that_copy_reads_as_insert_does_pour() {
    for pours in ["UTF8", "utf-8", "UNICODE", "LATIN1", "LATIN10", "WIN1252", "KOI8R", "EUC_JP", "ISO_8859_5"]
    {
        assert!(encoding_pours(pours, "UTF8") && encoding_pours(pours, "SQL_ASCII"), "{pours}");
    }
    for stays in [
        "SJIS",
        "BIG5",
        "GBK",
        "UHC",
        "GB18030",
        "JOHAB",
        "SHIFT_JIS_2004",
        "MULE_INTERNAL",
        "",
        "LATIN11",
        "LATIN",
    ] {
        assert!(!encoding_pours(stays, "UTF8") && !encoding_pours(stays, "SQL_ASCII"), "{stays}");
    }
    // Nobody looks at the bytes of an INSERT either.
    assert!(encoding_pours("SQL_ASCII", "SQL_ASCII"));
    assert!(!encoding_pours("SQL_ASCII", "UTF8") && !encoding_pours("SQL_ASCII", "EUC_JP"));
}

#[test]
fn the_guard_answers_digits_or_is_an_error() {
    assert_eq!(decode_guard(&[Some(b"742")]), Some(742));
    for wrong in [&b""[..], b"-1", b"+1", b"7x", b"99999999999999999999"] {
        assert_eq!(decode_guard(&[Some(wrong)]), None);
    }
    assert_eq!(decode_guard(&[None]), None);
    let report = |code: &str, text: &str| format!("C{code}\0M{text}\0\0").into_bytes();
    let ours = report("22P02", &format!("invalid input syntax for type integer: \"{GUARD_MARK} 1-2\""));
    assert!(is_guard_error(&ErrorFields::new(&ours)));
    let other = report("22P02", "invalid input syntax for type integer: \"x\"");
    assert!(!is_guard_error(&ErrorFields::new(&other)));
    assert!(guard_sql().contains(GUARD_MARK));
    assert!(SAME_TABLE_SQL.contains(GUARD_MARK));
}

/// Everything that is looked up by a bare name is out of the queries.
#[test]
fn the_queries_name_every_schema() {
    for sql in [
        ELIGIBILITY_SQL,
        guard_sql(),
        TYPES_SQL,
        NAMES_SQL,
        SESSION_SQL,
        INCARNATION_SQL,
        STATUS_SQL,
        SAME_TABLE_SQL,
    ] {
        for bare in [
            " = ",
            " <> ",
            " > ",
            " < ",
            " >= ",
            " || ",
            " IN ",
            " BETWEEN ",
            " LIKE ",
            "DISTINCT FROM",
            "USING",
        ] {
            assert!(!sql.contains(bare), "{bare:?} in {sql}");
        }
        for cast in sql.split("::").skip(1) {
            assert!(cast.starts_with("pg_catalog."), "::{}", &cast[..cast.len().min(20)]);
        }
        for table in sql.split(" pg_").skip(1) {
            assert!(table.starts_with("catalog."), "pg_{}", &table[..table.len().min(20)]);
        }
    }
}

proptest! {
    #[test]
    fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..600) {
        let _ = decode("t", &[Some(&bytes)]);
        let _ = decode_session(&[Some(&bytes)]);
        let whole = answer(&column(1, r#""has_default": true, "default_whys": ["x"]"#), "[]");
        let mut torn = whole.into_bytes();
        let at = cut % torn.len();
        torn[at] = bytes.first().copied().unwrap_or(0);
        let _ = decode("t", &[Some(&torn)]);
    }
}
