//! The scanner, the lift and the pass held against PostgreSQL's own lexer and parser.

use pg_query::protobuf::Token as T;
use proptest::prelude::*;

use super::again::{Beginning, Memo};
use super::effects::effects;
use super::expression::Used;
use super::insert::{Lifted, lift, quick_reject};
use super::meaning;
use super::scan::{Kind, longest_operator_run, scan};

/// What the lexer calls the kind of a token; `None`: a comment.
fn kind_of(token: T, text: &str) -> Option<&'static str> {
    Some(match token {
        T::SqlComment | T::CComment => return None,
        T::Sconst => "string",
        T::Usconst => "string",
        T::Bconst => "bits",
        T::Xconst => "hex",
        T::Uident => "unicode name",
        T::Ident if text.starts_with('"') => "quoted",
        T::Ident => "word",
        T::Iconst | T::Fconst => "number",
        T::Param => "param",
        _ if text.starts_with(|c: char| c.is_alphabetic() || c == '_') => "word",
        _ => "sign",
    })
}

fn ours(kind: Kind) -> &'static str {
    match kind {
        Kind::String
        | Kind::ContinuedString
        | Kind::EscapeString
        | Kind::UnicodeString
        | Kind::DollarString => "string",
        Kind::BitString => "bits",
        Kind::HexString => "hex",
        Kind::UnicodeQuoted => "unicode name",
        Kind::Quoted => "quoted",
        Kind::Word => "word",
        Kind::Integer | Kind::Decimal | Kind::OtherNumber => "number",
        Kind::Param => "param",
        Kind::Operator | Kind::Punctuation => "sign",
        Kind::Junk => "junk",
        Kind::Unterminated => "unterminated",
    }
}

/// Where the server's lexer takes a text, ours finds the same tokens (or says junk).
fn same_tokens(text: &str) -> Result<(), TestCaseError> {
    let Ok(theirs) = pg_query::scan(text) else { return Ok(()) };
    let mut theirs = theirs.tokens.iter().filter_map(|token| {
        let range = token.start as usize..token.end as usize;
        kind_of(token.token(), &text[range.clone()]).map(|kind| (kind, range.start, range.end))
    });
    for token in scan(text.as_bytes(), true) {
        if token.kind == Kind::Junk {
            return Ok(());
        }
        prop_assert_eq!(Some((ours(token.kind), token.start, token.end)), theirs.next(), "{}", text);
    }
    prop_assert_eq!(theirs.next(), None, "{}", text);
    Ok(())
}

/// Pieces of SQL in any order.
fn text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "SELECT", "a", "n", "e", "E", "u", "U&", "b", "x", "X", "'", "''", "'a'", "\"", "\"b\"", "\\", "\\'",
        "$", "$$", "$a$", "$1", "1", "23", "1.5", ".", "..", "1e5", "e+", "0x1F", "1_0", ":", "::", ":=",
        "=>", "<", ">", "<>", "!=", "-", "--", "+", "/", "/*", "*/", "*", "@", "|", "~", "%", "?", "(", ")",
        "[", "]", ",", ";", " ", "\n", "\r", "\t", "\u{e9}", "_", "\u{0c}",
    ]);
    prop::collection::vec(piece, 0..14).prop_map(|all| all.concat())
}

/// Whole tokens, comments and gaps, so that most texts are ones that the lexer takes to their end.
fn whole() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "'a'",
        "'b''c'",
        "'d\\'",
        "E'e\\''",
        "e'f\\\\'",
        "U&'g'",
        "N'h'",
        "b'01'",
        "X'1F'",
        "$$i$$",
        "$j$ $$ $j$",
        "\"k\"",
        "\"l\"\"m\"",
        "U&\"n\"",
        " ",
        " ",
        "\n",
        "\n",
        "\r",
        " -- ' c\n",
        "/* ' */",
        "/* /* */ ' */",
        "/*/**/*/",
        "/***/",
        "o",
        "p$q",
        "$1",
        "12",
        "3.4",
        "5.",
        ".6",
        "7e8",
        "1..2",
        "+",
        "-",
        "<=",
        "@-",
        "*",
        "::",
        ",",
        ";",
        "(",
        ")",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|all| all.concat())
}

/// Pieces of INSERTs, mostly in the right order.
fn insert() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "t",
        "s.t",
        "t AS x",
        "s.t as/**/\"T\"",
        "t AS old",
        "t x",
        "\"T\"",
        "T",
        "\"a\"\"b\".c",
        "select",
        "a.b.c",
        "U&\"t\"",
        "é",
    ]);
    let columns = prop::sample::select(vec!["", "(a)", "(a, b)", "(\"A\",b,c)", "(a.b)", "(a[1])"]);
    let item = prop::sample::select(vec![
        "1",
        "-1",
        "- 1",
        "007",
        "99999999999999999999",
        "1.5",
        "-0.0",
        "-0",
        "1.",
        ".5",
        "1e3",
        "TRUE",
        "false",
        "NULL",
        "default",
        "'a'",
        "'it''s'",
        "''",
        "'\\'",
        "E'a\\''",
        "'a'\n'b'",
        "$1",
        "$2",
        "now()",
        "a",
        "1+1",
        "'a'::text",
        "'2020-01-01'::date",
        "'2020-01-01'::date::DATE",
        "'it''s' :: /* ' */ varchar",
        "''::timestamp with time zone",
        "'1.5'::numeric(3,1)",
        "'1'::decimal(3)",
        "'1'::dec(0)",
        "$1::numeric(10, 2)",
        "$1::numeric(2,-1)",
        "$1::numeric(1,2,3)",
        "$1::pg_catalog.int4",
        "$1::text",
        "$2 :: Character/**/Varying",
        "$1::timestamp without time zone",
        "$2::json",
        "$1::int",
        "$1::varchar(3)",
        "$1::char",
        "$1::int[]",
        "$1::text::int",
        "$1::interval year",
        "$1::timestamp at time zone 'UTC'",
        "$1::nonesuch",
        "N'a'",
        "b'1'",
        "(1)",
        "( 'a' )",
        "(('a'))",
        "('1'::int4)",
        "('1')::int4",
        "(DEFAULT)",
        "(-1)",
        "-(1)",
        "($1)",
        "($1,1)",
        "CAST($1 AS uuid)",
        "cast ( $2 As /**/ double precision )",
        "(CAST($1 AS numeric(10, 2)))",
        "CAST('2020-01-01' AS date)",
        "CAST(/* ' */ '1' AS text)",
        "CAST('1' AS varchar(3))",
        "CAST($1::text AS int)",
        "CAST($1 AS text COLLATE \"C\")",
        "CAST(1 AS int)",
        "CAST($1 AS int[])",
        "CAST($1::text AS \"s\".\"Mood\")",
        "CAST($2::varchar AS mood)",
        "$1::text::mood[]",
        "'a'::mood",
        "'a'::S.mood",
        "'{a}' :: \"mood\" [ ]",
        "'{1}'::int4[]",
        "'{1}'::int4[1]",
        "'1'::\"int4\"",
        "'1'::pg_catalog.bpchar",
        "'a'::bit",
        "'a'::pg_catalog.\"char\"",
        "$1::\"a\"\"b\".c",
        "$1::a.b.c",
        "$1::U&\"a\"",
        "$1::é",
        "$1::mood(1)",
        "$1::select",
        "NULL::int",
        "null /**/ :: s.mood",
        "CAST(NULL AS timestamp)",
        "CAST(TRUE AS bool)",
        "'é'",
        "$$a$$",
        "'a;b'",
        "0x1f",
        "+1",
        "date '2020-01-01'",
        "now()",
        "CURRENT_DATE",
        "clock_timestamp ( /* ) */ )",
        "lower($1)",
        "$1 || ', ' -- )\n || 'x'",
        "(1 + $2) * 2",
        "ARRAY[1,2]",
        "f(1)[2]",
    ]);
    let items = prop::collection::vec(item, 0..4).prop_map(|all| all.join(","));
    let gap = prop::sample::select(vec![" ", "\n", "/* c */", " -- c\n", "\t"]);
    let tail = prop::sample::select(vec![
        "",
        ";",
        " ; -- c",
        " RETURNING a",
        " RETURNING NULL",
        " RETURNING x.a, NULL AS n, x.*",
        " RETURNING true",
        " ON CONFLICT DO NOTHING",
        " RETURNING t.a, *, a AS b;",
        " RETURNING a, b::text, c :: text AS d",
        " RETURNING a::int",
        " RETURNING a + 1",
        " ON CONFLICT (a, \"B\") DO NOTHING RETURNING a b",
        " ON CONFLICT ON CONSTRAINT c DO NOTHING",
        " ON CONFLICT (a) DO UPDATE SET a = 1",
        " ON CONFLICT (a) DO UPDATE SET a = x.n + 1, b = $5 /* c */ WHERE EXCLUDED.a > 0 RETURNING a",
        " ON CONFLICT (a) DO UPDATE SET a = COALESCE ( EXCLUDED.a , (t . a) ) ; -- c",
        "; SELECT 1",
        ", (1)",
        ", (1), /* c */ ('a') ;",
        ",($3,$4) RETURNING *",
        ",(DEFAULT,-1)",
        " LIMIT 1",
        ";;",
        ")",
    ]);
    let head = prop::sample::select(vec!["INSERT", "insert", "INSERT INTO", "/* c */INSERT"]);
    (head, gap, name, columns, items, tail).prop_map(|(head, gap, name, columns, items, tail)| {
        let into = if head.ends_with("INTO") { "" } else { "INTO" };
        format!("{head}{gap}{into}{gap}{name}{gap}{columns}{gap}VALUES{gap}({items}){tail}")
    })
}

/// What is asked about in the place of a statement with many rows or with comments.
fn each_row_alone_is_the_same_statement(
    text: &str,
    lifted: &Lifted,
    target: Option<meaning::InsertTarget>,
) -> Result<(), TestCaseError> {
    for row in 0..lifted.rows {
        let (mut alone, mut shape, mut again) = (Vec::new(), Vec::new(), Lifted::new());
        lifted.put_statement(text.as_bytes(), row, &mut alone);
        lifted.put_shape(text.as_bytes(), row, &mut shape);
        let params = lifted.params() > 0;
        if row > 0 && params {
            continue;
        }
        prop_assert_eq!(lift(&alone, &mut again), Ok(()), "{}", text);
        prop_assert_eq!(&again.shape, &shape, "{}", text);
        prop_assert_eq!((again.rows, again.tail), (1, lifted.tail));
        let found = std::str::from_utf8(&alone).ok().and_then(|alone| meaning::insert_target(alone).ok());
        // What it may call an expression the tree may call a literal: then nothing is made of it.
        if row == 0 && (target.is_some() || !lifted.tail.computed) {
            // The tree has no sign for zero.
            let plain = |t: Option<meaning::InsertTarget>| {
                t.map(|t| meaning::InsertTarget { items: Vec::new(), ..t })
            };
            prop_assert_eq!(plain(found), plain(target.clone()), "{}", text);
            prop_assert_eq!(&shape, &lifted.shape);
        }
    }
    Ok(())
}

/// What follows the head of an INSERT, plain and hostile.
fn behind_a_head() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "1",
        "007",
        "-2",
        "- 3",
        "--",
        "4.5",
        "-0.0",
        "6.",
        ".7",
        "8e9",
        "0x1F",
        "1_0",
        "1..2",
        "9a",
        "$1",
        "'a'",
        "'b''c'",
        "''",
        "'",
        "'\\'",
        "'d\n'",
        "\n'e'",
        "E'f'",
        "N'g'",
        "U&'h'",
        "b'1'",
        "$$",
        "$$i$$",
        "'j)'",
        "'\u{0b}'",
        "'\u{e9}'",
        "NULL",
        "null",
        "True",
        "false",
        "DEFAULT",
        "nul",
        "nulls",
        "true$",
        "k",
        "\"l\"",
        "now()",
        ",",
        ",",
        ",",
        ",",
        ", ",
        " ",
        "\n",
        "\t",
        "\u{0c}",
        "\u{0b}",
        "\u{a0}",
        "/* m */",
        "/*",
        "*/",
        "-- n\n",
        ")",
        ")",
        ")",
        " ) ; ",
        "), (",
        ";",
        ";;",
        "(",
        "+",
        "::text",
        "::text",
        "::DATE",
        "::int4",
        "::char",
        "::numeric(3,1)",
        "::timestamp with time zone",
        "::no$t",
        "::",
        " RETURNING a",
        " ON CONFLICT DO NOTHING",
        "; SELECT 1",
        "[",
        "]",
        ".",
        "=",
        "\\",
    ]);
    prop::collection::vec(piece, 0..10).prop_map(|all| all.concat())
}

/// Rows that are mostly plain.
fn plain_row() -> impl Strategy<Value = String> {
    let item = prop::sample::select(vec![
        "1",
        "-22",
        "4.5",
        "-0.0",
        "'a'",
        "'b''c'",
        "'\\)'",
        "NULL",
        "true",
        "False",
        "default",
        " 7 ",
        "\n'd'\t",
        "E'e'",
        "e'\\\\ '')\\n'",
        "E'\\')'",
        "E'\\x41'",
        "1e5",
        "(1)",
        " ( 'a'::date ) ",
        "'a'::date::DATE",
        "(default)",
        "((2))",
        "('b'",
        "(NULL)",
        "CAST('c' AS date)",
    ]);
    let end = prop::sample::select(vec![")", ")", ");", " ) ;; ", ") -- c", "), (1)", ") RETURNING *", ""]);
    (prop::collection::vec(item, 0..4), end).prop_map(|(items, end)| items.join(",") + end)
}

/// One byte in the place of another, or none: mostly one that means something.
fn change() -> impl Strategy<Value = Vec<u8>> {
    let telling = prop::sample::select(b" \t\n\x0b\x0c,.;()'\"-+/*\\0179aeExX_$:[]=\xa0\xe9".to_vec());
    prop_oneof![
        4 => telling.prop_map(|byte| vec![byte]),
        2 => any::<u8>().prop_map(|byte| vec![byte]),
        1 => Just(Vec::new()),
    ]
}

/// What a memo that has seen `first` finds for `next` is what the lift finds.
fn found_again_as_lifted(first: &[u8], next: &[u8]) -> Result<bool, TestCaseError> {
    let (mut memo, mut lifted) = (Memo::default(), Lifted::new());
    if lift(first, &mut lifted).is_err() {
        return Ok(false);
    }
    let shape = lifted.shape.clone();
    memo.keep((), first, &lifted, ());
    let Some(((), items)) = memo.head(&(), next).and_then(Beginning::row) else { return Ok(false) };
    prop_assert_eq!(lift(next, &mut lifted), Ok(()));
    prop_assert_eq!((&lifted.items[..], lifted.rows), (items, 1));
    prop_assert_eq!((&lifted.shape, lifted.tail.is_plain()), (&shape, true));
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_scanner_sees_what_the_server_sees(text in text()) {
        same_tokens(&text)?;
    }

    #[test]
    fn the_scanner_reads_whole_tokens_to_the_end(text in whole()) {
        same_tokens(&text)?;
    }

    #[test]
    fn what_is_lifted_the_parser_reads_the_same(text in insert()) {
        let mut lifted = Lifted::new();
        if lift(text.as_bytes(), &mut lifted).is_ok() {
            // A keyword as a name is the one thing that only the parser refuses.
            let target = meaning::target_of(text.as_bytes(), &lifted);
            let by_the_tree = ["select", "RETURNING t.", "RETURNING x.", "RETURNING true", "RETURNING a::int", "AS old", "DO UPDATE"];
            let judged_by_the_tree = lifted.tail.computed || by_the_tree.iter().any(|part| text.contains(part));
            prop_assert!(target.is_ok() || judged_by_the_tree, "{}: {:?}", text, target);
            prop_assert!(!quick_reject(text.as_bytes()));
            each_row_alone_is_the_same_statement(&text, &lifted, target.ok())?;
        } else if let Ok(target) = meaning::insert_target(&text) {
            // Refusing too much is allowed only for what the scan does not know to be safe.
            let known = ["- 1", "1.", ".5", "1e3", "'a'\n'b'", "E'", "$1", "$2", "$3", "$$", "0x", "é", "+1", "(('a'))", "-(1)", "('1')::", "(DEFAULT)", "N'", "U&", "/* ' */", "date '"];
            // What is computed may be others in other rows.
            let computes = target.computes() || target.used != Used::default();
            prop_assert!(computes || known.iter().any(|k| text.contains(k)), "{}: {:?}", text, target);
        }
    }

    #[test]
    fn nothing_panics_on_any_bytes(text in prop::collection::vec(any::<u8>(), 0..300), std_strings: bool) {
        let mut end = 0;
        for token in scan(&text, std_strings) {
            prop_assert!(token.start >= end && token.end > token.start && token.end <= text.len());
            end = token.end;
        }
        effects(&text, std_strings);
        let mut lifted = Lifted::new();
        let _ = lift(&text, &mut lifted);
        let _ = super::effects::deallocated_name(&text);
        let _ = meaning::kinds(&text);
        let _ = meaning::statement_count(&text);
    }

    /// Statements that change the session are seen wherever they stand in a text.
    #[test]
    fn no_statement_hides(before in text(), set in prop::sample::select(vec!["SET a.b = 1", "DISCARD ALL", "LISTEN a"])) {
        let text = format!("{before};{set}");
        if let Ok(kinds) = meaning::kinds(text.as_bytes())
            && kinds.last().is_some_and(|kind| kind.is_control() && *kind != meaning::Kind::Show)
            && kinds.len() > 1
        {
            prop_assert!(effects(text.as_bytes(), true).touches_session(), "{}", text);
        }
    }

    /// Behind a head that was lifted, whatever stands there.
    #[test]
    fn the_quick_way_finds_what_the_lift_finds(
        first in insert(),
        rows in (plain_row(), plain_row()),
        wild in behind_a_head(),
        at: prop::sample::Index,
    ) {
        let (row, other) = rows;
        for (open, _) in first.match_indices('(') {
            let plain = format!("{}{row}", &first[..=open]);
            // Another plain row, anything, and the row with anything in it.
            let (before, after) = row.split_at(row.floor_char_boundary(at.index(row.len() + 1)));
            for rest in [&other, &wild, &format!("{before}{wild}{after}")] {
                let next = format!("{}{rest}", &first[..=open]);
                for known in [&first, &plain] {
                    found_again_as_lifted(known.as_bytes(), next.as_bytes())?;
                    found_again_as_lifted(next.as_bytes(), known.as_bytes())?;
                }
            }
        }
    }

    /// Anywhere in the text, any byte.
    #[test]
    fn the_quick_way_is_not_deceived_by_any_byte(
        head in prop::sample::select(vec![
            "t VALUES (",
            "t (a, b) VALUES\n(",
            "t (\"(\",b) values(",
            "t /* VALUES ( */ VALUES (",
            "t (a) -- VALUES (\n VALUES (",
            "\"VALUES (\" VALUES (",
        ]),
        row in plain_row(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), change(), any::<bool>()), 1..4),
    ) {
        let first = format!("INSERT INTO {head}{row}").into_bytes();
        let mut next = first.clone();
        for (at, bytes, replaces) in changes {
            let at = at.index(next.len());
            next.splice(at..at + usize::from(replaces), bytes);
            if next.is_empty() {
                break;
            }
            found_again_as_lifted(&first, &next)?;
            found_again_as_lifted(&next, &first)?;
        }
    }

    /// It is a way at all.
    #[test]
    fn plain_rows_are_found_again(row in plain_row()) {
        let text = format!("INSERT INTO t VALUES ({row}");
        let mut lifted = Lifted::new();
        let plain = lift(text.as_bytes(), &mut lifted).is_ok()
            && lifted.rows == 1
            && lifted.tail.is_plain()
            && !["--", "CAST"].iter().any(|rare| text.contains(rare));
        prop_assert_eq!(found_again_as_lifted(text.as_bytes(), text.as_bytes())?, plain, "{}", text);
    }
}

/// What is inside literals is none; what stands before, between and behind them may be one, also in comments.
#[test]
fn the_longest_run_of_signs_is_found_wherever_it_stands() {
    for (text, longest) in [
        ("", 0),
        ("+++ 'a' + 'b' ++", 3),
        ("+ 'a' +++ \"b\" ++", 3),
        ("++ 'a' + $$b$$ +++", 3),
        ("+'+++'++\"+++\"$$+++$$+ U&'+++' e'\\'+++' 'a", 2),
        ("'a' /* +++ */ + 'b' -- ++", 3),
        ("1 ~! b <= $1 || c", 2),
    ] {
        assert_eq!(longest_operator_run(text.as_bytes()), longest, "{text}");
    }
}

#[test]
fn an_operator_is_looked_at_no_further_than_a_comment() {
    // Of the bytes of operators alone: read on to their end at each plus sign, this would not end.
    let text = "+/**/".repeat(1 << 18);
    let mut tokens = scan(text.as_bytes(), true);
    assert!(tokens.all(|token| token.kind == Kind::Operator && token.end == token.start + 1));
    assert_eq!(scan(text.as_bytes(), true).count(), 1 << 18);
    for (text, ends) in [("<--a\n>", [1, 6]), ("@-/*a*/+", [2, 8]), ("=--", [1, 1]), ("+-+", [1, 2])] {
        let found: Vec<_> = scan(text.as_bytes(), true).map(|token| token.end).take(2).collect();
        assert_eq!((found.first(), found.last()), (ends.first(), ends.last()), "{text}");
    }
}
