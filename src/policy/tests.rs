//! The policy as a table: text, session, verdict at each level.

use super::*;

const SAFE: Lexing = Lexing::PLAIN;
const STRINGS_OFF: Lexing = Lexing { std_strings: false, ..SAFE };
const SJIS: Lexing = Lexing { encoding_safe: false, ..SAFE };
const BOTH: Lexing = Lexing { encoding_safe: false, ..STRINGS_OFF };

fn rules(simple_query: SimpleQuery) -> Rules {
    Rules::merge([&Policy { simple_query: Some(simple_query), ..Policy::default() }])
}

/// `pass`, `single`, or the rule that is broken.
fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Single => "single",
        Verdict::Reject(rejection) => rejection.rule.as_str(),
        Verdict::Report(_) => "report",
    }
}

fn verdict(rules: &Rules, text: &[u8], lexing: Lexing) -> Verdict {
    judge_query(rules, text, lexing, &mut Readings::default())
}

fn judge(level: SimpleQuery, text: &[u8], lexing: Lexing) -> &'static str {
    word(&verdict(&rules(level), text, lexing))
}

/// Folded at this level: the server makes sure that it is one statement.
const OK: &str = "single";
/// Several statements.
const MANY: &str = "simple_query=single";
/// Several statements, or one of a kind that `control` refuses.
const KIND: &str = "simple_query=control";
const UNPARSED: &str = "simple_query=control/unparsed";
const STRINGS: &str = "simple_query=control/standard_conforming_strings";
const ENCODING: &str = "simple_query=control/client_encoding";

/// Text; the verdict of `single`; the verdict of `control`. `allow` passes each, `deny` refuses each.
const TABLE: &[(&[u8], &str, &str)] = &[
    // Nothing.
    (b"", OK, OK),
    (b" \t\r\n", OK, OK),
    (b";", OK, OK),
    (b";;;", OK, OK),
    (b"-- only a comment", OK, OK),
    (b"/* only a /* nested */ comment */", OK, OK),
    // Transaction control.
    (b"BEGIN", OK, OK),
    (b"begin;", OK, OK),
    (b"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY", OK, OK),
    (b"START TRANSACTION", OK, OK),
    (b"COMMIT", OK, OK),
    (b"COMMIT AND CHAIN", OK, OK),
    (b"END", OK, OK),
    (b"ROLLBACK", OK, OK),
    (b"ABORT", OK, OK),
    (b"SAVEPOINT a", OK, OK),
    (b"SAVEPOINT \"a;b\"", OK, OK),
    (b"RELEASE SAVEPOINT a", OK, OK),
    (b"ROLLBACK TO a", OK, OK),
    (b"/* route='/x;y' */ BEGIN", OK, OK),
    (b"BEGIN -- ; SELECT 1", OK, OK),
    (b"BEGIN\n", OK, OK),
    (b"PREPARE TRANSACTION 'a'", OK, KIND),
    (b"COMMIT PREPARED 'a'", OK, KIND),
    (b"ROLLBACK PREPARED 'a'", OK, KIND),
    // Session state.
    (b"SET a.b = 'c'", OK, OK),
    (b"SET LOCAL a.b TO 'c'", OK, OK),
    (b"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", OK, OK),
    (b"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", OK, OK),
    (b"SET CONSTRAINTS ALL DEFERRED", OK, OK),
    (b"SET NAMES 'UTF8'", OK, OK),
    (b"SET standard_conforming_strings = off", OK, OK),
    (b"RESET ALL", OK, OK),
    (b"SHOW server_version", OK, OK),
    (b"DISCARD ALL", OK, OK),
    (b"DEALLOCATE ALL", OK, OK),
    (b"DEALLOCATE \"a;b\"", OK, OK),
    (b"LISTEN a", OK, OK),
    (b"UNLISTEN *", OK, OK),
    (b"NOTIFY a, 'b;c'", OK, OK),
    // One statement of another kind.
    (b"SELECT 1", OK, KIND),
    (b"SELECT 1;", OK, KIND),
    (b"SELECT 1 ; ; -- end", OK, KIND),
    (b"SELECT 'a;b'", OK, KIND),
    (b"SELECT E'a\\';b'", OK, KIND),
    (b"SELECT 'a\\'", OK, KIND),
    (b"SELECT $$a;b$$", OK, KIND),
    (b"SELECT $x$a;$$;b$x$", OK, KIND),
    (b"SELECT \"a;b\" FROM t", OK, KIND),
    (b"SELECT 1 /* ; */", OK, KIND),
    (b"SELECT U&'\\0041;'", OK, KIND),
    (b"SELECT 'a'\n';b'", OK, KIND),
    (b"SELECT a$b$c FROM t", OK, KIND),
    (b"VALUES (1)", OK, KIND),
    (b"TABLE t", OK, KIND),
    (b"WITH a AS (DELETE FROM t RETURNING *) SELECT * FROM a", OK, KIND),
    (b"INSERT INTO t VALUES (1)", OK, KIND),
    (b"UPDATE t SET a = 1", OK, KIND),
    (b"DELETE FROM t", OK, KIND),
    (b"COPY t FROM STDIN", OK, KIND),
    (b"COPY (SELECT 1) TO PROGRAM 'x'", OK, KIND),
    (b"CREATE TABLE t (a int)", OK, KIND),
    (b"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END", OK, KIND),
    (b"CREATE RULE r AS ON INSERT TO t DO ALSO (SELECT 1; SELECT 2)", OK, KIND),
    (b"CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1; SELECT 2'", OK, KIND),
    (b"DROP TABLE t", OK, KIND),
    (b"DO $$ BEGIN EXECUTE 'a; b'; END $$", OK, KIND),
    (b"CALL p()", OK, KIND),
    (b"PREPARE a AS SELECT 1", OK, KIND),
    (b"EXECUTE a", OK, KIND),
    (b"EXPLAIN ANALYZE DELETE FROM t", OK, KIND),
    (b"DECLARE c CURSOR WITH HOLD FOR SELECT 1", OK, KIND),
    (b"FETCH ALL FROM c", OK, KIND),
    (b"CLOSE c", OK, KIND),
    (b"LOCK t", OK, KIND),
    (b"VACUUM", OK, KIND),
    (b"LOAD 'a'", OK, KIND),
    (b"CHECKPOINT", OK, KIND),
    (b"ALTER SYSTEM SET a = 1", OK, KIND),
    (b"SELECT set_config('a.b', 'c', false)", OK, KIND),
    (b"SELECT '\xe9\xff;'", OK, KIND),
    // Several.
    (b"SELECT 1; SELECT 2", MANY, KIND),
    (b"SELECT 1;SELECT 2", MANY, KIND),
    (b"SELECT 1;;SELECT 2;", MANY, KIND),
    (b";SELECT 1; SELECT 2", MANY, KIND),
    (b"BEGIN; COMMIT", MANY, KIND),
    (b"BEGIN;SELECT 1", MANY, KIND),
    (b"SET a.b = 1; DROP TABLE t", MANY, KIND),
    (b"SHOW a; DROP TABLE t", MANY, KIND),
    (b"SELECT 'a\\'; DROP TABLE t --'", MANY, KIND),
    (b"SELECT 1 /* /* */ */; DROP TABLE t", MANY, KIND),
    (b"SELECT 1 -- x\n; DROP TABLE t", MANY, KIND),
    (b"SELECT 1 -- x\r; DROP TABLE t", MANY, KIND),
    (b"SELECT $a$ $b$ $a$; DROP TABLE t -- $b$", MANY, KIND),
    (b"SELECT 1 +/* */; DROP TABLE t", OK, UNPARSED),
    (b"SELECT b'\\'; DROP TABLE t --'", MANY, KIND),
    (b"SELECT \"a\"\";\"; DROP TABLE t", MANY, KIND),
    (b"SELECT 1 */; DROP TABLE t", OK, UNPARSED),
    (b"COMMIT; DROP TABLE t; BEGIN", MANY, KIND),
    (b"SET a = 'b'; SET a = 'c'", MANY, KIND),
    (b"DISCARD ALL; SELECT 1", MANY, KIND),
    (b"COPY t FROM STDIN; SELECT 1", MANY, KIND),
    (b"CREATE RULE r AS ON INSERT TO t DO ALSO (SELECT 1; SELECT 2); SELECT 3", MANY, KIND),
    (b"DO $$ a $$; DO $$ b $$", MANY, KIND),
    (b"SELECT '\xe9'; SELECT '\xff'", MANY, KIND),
    // What does not parse: `single` leaves it to the server, `control` refuses.
    (b"SELEC 1", OK, UNPARSED),
    (b"SELEC 1; DROP TABLE t", OK, UNPARSED),
    (b"DROP TABLE t; SELEC 1", OK, UNPARSED),
    (b"SELECT 'a", OK, UNPARSED),
    (b"SELECT \"a", OK, UNPARSED),
    (b"SELECT $$a", OK, UNPARSED),
    (b"SELECT 1 /* a", OK, UNPARSED),
    (b"SELECT 1 /* /* */; DROP TABLE t", OK, UNPARSED),
    (b"BEGIN FROBNICATE, x", OK, UNPARSED),
    (b"SET", OK, UNPARSED),
    (b"SET a = 'b", OK, UNPARSED),
    (b"IDENTIFY_SYSTEM", OK, UNPARSED),
    (b"START_REPLICATION SLOT a LOGICAL 0/0", OK, UNPARSED),
    (b"BASE_BACKUP", OK, UNPARSED),
    (b"(BEGIN)", OK, UNPARSED),
    (b"BEGIN()", OK, UNPARSED),
    (b"SELECT 1a", OK, UNPARSED),
    (b"\xef\xbb\xbfBEGIN", OK, UNPARSED),
];

#[test]
fn each_text_at_each_level() {
    assert!(TABLE.len() >= 120, "{}", TABLE.len());
    for (text, single, control) in TABLE {
        let shown = String::from_utf8_lossy(text);
        assert_eq!(judge(SimpleQuery::Allow, text, SAFE), "pass", "{shown}");
        assert_eq!(judge(SimpleQuery::Single, text, SAFE), *single, "single: {shown}");
        assert_eq!(judge(SimpleQuery::Control, text, SAFE), *control, "control: {shown}");
        assert_eq!(judge(SimpleQuery::Deny, text, SAFE), "simple_query=deny", "{shown}");
    }
}

#[test]
fn hazards_of_the_session() {
    let (mut eucjp, mut eucjp_server, mut win866_server) = (SAFE, SAFE, SAFE);
    assert!(win866_server.hear(b"client_encoding", b"WIN1251"));
    assert!(win866_server.hear(b"server_encoding", b"WIN866"));
    assert!(eucjp.hear(b"client_encoding", b"EUC_JP"));
    assert!(eucjp_server.hear(b"server_encoding", b"EUC_JP"));
    let table: &[(&[u8], Lexing, &str, &str)] = &[
        // Folding needs no lexing, so `single` lets the server say.
        (b"SET a = 'b\\'; DROP TABLE t; --'", STRINGS_OFF, OK, STRINGS),
        (b"SET a = 'b\\\\'", STRINGS_OFF, OK, STRINGS),
        (b"NOTIFY a, E'\\n'", STRINGS_OFF, OK, STRINGS),
        (b"SELECT 'a\\'; SELECT 1; --'", STRINGS_OFF, OK, STRINGS),
        // No backslash: read the same either way.
        (b"BEGIN", STRINGS_OFF, OK, OK),
        (b"SET standard_conforming_strings = 'on'", STRINGS_OFF, OK, OK),
        (b"SELECT 1; SELECT 2", STRINGS_OFF, MANY, KIND),
        // The second byte of the character is a backslash, or a semicolon (JOHAB).
        (b"SET a = '\x95\\'", SJIS, OK, ENCODING),
        (b"SET a = E'\x95\\'; DROP TABLE t; --'", SJIS, OK, ENCODING),
        (b"SET a = '\x84;'", SJIS, OK, ENCODING),
        (b"NOTIFY a, '\xe9'", SJIS, OK, ENCODING),
        (b"ROLLBACK", SJIS, OK, OK),
        (b"SET a = 'b'", SJIS, OK, OK),
        (b"SELECT 1; SELECT 2", SJIS, MANY, KIND),
        (b"SET a = '\x95\\'", BOTH, OK, STRINGS),
        (b"COMMIT", BOTH, OK, OK),
        // Two forms of one character: to the server the first quote ends where the second begins.
        (
            b"SET a = $\xad\xb5$b$\x8f\xf3\xfd$; DROP TABLE t; SET a = $\x8f\xf3\xfd$b$\xad\xb5$",
            eucjp,
            OK,
            ENCODING,
        ),
        (
            "SET a = $\u{a6}$b$\u{ffe4}$; DROP TABLE t; SET a = $\u{ffe4}$b$\u{a6}$".as_bytes(),
            eucjp_server,
            OK,
            ENCODING,
        ),
        (b"SET a = $\xad\xb5$b$\xad\xb5$", eucjp, OK, ENCODING),
        (b"SET a = $\xb4$b$\xed$; DROP TABLE t; SET a = $\xed$b$\xb4$", win866_server, OK, ENCODING),
        (b"SET a = $b$ \xad\xb5 $b$", eucjp, OK, OK),
        ("SET a = $é$b$é$".as_bytes(), SAFE, OK, OK),
    ];
    for (text, lexing, single, control) in table {
        let shown = String::from_utf8_lossy(text);
        assert_eq!(judge(SimpleQuery::Single, text, *lexing), *single, "single: {shown}");
        assert_eq!(judge(SimpleQuery::Control, text, *lexing), *control, "control: {shown}");
        assert_eq!(judge(SimpleQuery::Deny, text, *lexing), "simple_query=deny", "{shown}");
        assert_eq!(judge(SimpleQuery::Allow, text, *lexing), "pass", "{shown}");
    }
}

#[test]
fn long_texts_are_refused_where_they_must_be_understood() {
    let text = [b"SET a = '".as_slice(), &vec![b'x'; STATEMENT_BYTES_MAX], b"'"].concat();
    assert_eq!(judge(SimpleQuery::Allow, &text, SAFE), "pass");
    assert_eq!(judge(SimpleQuery::Single, &text, SAFE), "simple_query/statement_bytes");
    assert_eq!(judge(SimpleQuery::Control, &text, SAFE), "simple_query/statement_bytes");
    assert_eq!(judge(SimpleQuery::Deny, &text, SAFE), "simple_query=deny");
    for (level, want) in [
        (SimpleQuery::Allow, "pass"),
        (SimpleQuery::Single, "simple_query/statement_bytes"),
        (SimpleQuery::Control, "simple_query/statement_bytes"),
        (SimpleQuery::Deny, "simple_query=deny"),
    ] {
        assert_eq!(word(&judge_long_query(&rules(level), 0)), want);
    }
}

#[test]
fn a_text_that_is_judged_again_is_not_parsed_again() {
    let mut readings = Readings::default();
    for text in [b"SHOW work_mem".as_slice(), b"SELECT 1", b"BEGIN"] {
        let first = judge_query(&rules(SimpleQuery::Control), text, SAFE, &mut readings);
        assert_eq!(judge_query(&rules(SimpleQuery::Control), text, SAFE, &mut readings), first);
    }
    assert_eq!(readings.parsed(), 2, "a bare BEGIN is not parsed at all");
}

#[test]
fn deep_nesting_is_an_answer_and_not_a_crash() {
    for (open, close) in [("(", ")"), ("SELECT (", ")"), ("/*", "*/"), ("+-", ""), ("+", "-"), ("[", "]")] {
        let times = PARSED_BYTES_MAX / (open.len() + close.len()) - 8;
        let text = format!("SELECT {}1{}; COMMIT", open.repeat(times), close.repeat(times));
        assert!(text.len() <= PARSED_BYTES_MAX);
        let verdict = judge(SimpleQuery::Control, text.as_bytes(), SAFE);
        assert!([KIND, UNPARSED].contains(&verdict), "{verdict}");
        let verdict = judge(SimpleQuery::Single, text.as_bytes(), SAFE);
        assert!([OK, MANY].contains(&verdict), "{verdict}");
    }
}

#[test]
fn long_texts_are_left_to_the_server_or_refused() {
    let text = "SELECT 1;".repeat(PARSED_BYTES_MAX / 8);
    assert_eq!(judge(SimpleQuery::Single, text.as_bytes(), SAFE), OK);
    assert_eq!(judge(SimpleQuery::Control, text.as_bytes(), SAFE), "simple_query/statement_bytes");
    let decorated = format!("/*{}*/ BEGIN", "=".repeat(100));
    assert_eq!(judge(SimpleQuery::Control, decorated.as_bytes(), SAFE), OK);
    let inside = format!("NOTIFY a, '{}'", "=".repeat(2000));
    assert_eq!(judge(SimpleQuery::Control, inside.as_bytes(), SAFE), OK);
}

#[test]
fn the_strictest_wins() {
    use SimpleQuery as Q;
    let policy = |simple_query, function_call, enforce| Policy {
        simple_query,
        function_call,
        enforce,
        ..Policy::default()
    };
    let none = Policy::default;
    let table = [
        ([none(), none(), none()], (Q::Allow, Switch::Allow, Enforce::Reject)),
        ([policy(Some(Q::Single), None, None), none(), none()], (Q::Single, Switch::Deny, Enforce::Reject)),
        (
            [policy(Some(Q::Single), Some(Switch::Allow), None), none(), none()],
            (Q::Single, Switch::Allow, Enforce::Reject),
        ),
        (
            [
                policy(Some(Q::Deny), Some(Switch::Allow), Some(Enforce::Report)),
                policy(Some(Q::Allow), Some(Switch::Deny), None),
                policy(Some(Q::Control), None, None),
            ],
            (Q::Deny, Switch::Deny, Enforce::Report),
        ),
        (
            [policy(None, None, Some(Enforce::Report)), policy(None, None, Some(Enforce::Reject)), none()],
            (Q::Allow, Switch::Allow, Enforce::Reject),
        ),
        ([none(), none(), policy(Some(Q::Control), None, None)], (Q::Control, Switch::Deny, Enforce::Reject)),
        // What is closed because one section restricts `simple_query` no other opens; what the first says it opens for all.
        (
            [policy(Some(Q::Deny), None, None), none(), policy(None, Some(Switch::Allow), None)],
            (Q::Deny, Switch::Deny, Enforce::Reject),
        ),
        (
            [none(), policy(Some(Q::Single), None, None), policy(Some(Q::Deny), Some(Switch::Allow), None)],
            (Q::Deny, Switch::Deny, Enforce::Reject),
        ),
        (
            [none(), none(), policy(Some(Q::Deny), Some(Switch::Allow), None)],
            (Q::Deny, Switch::Allow, Enforce::Reject),
        ),
        (
            [policy(None, Some(Switch::Allow), None), none(), policy(Some(Q::Deny), None, None)],
            (Q::Deny, Switch::Allow, Enforce::Reject),
        ),
        (
            [policy(Some(Q::Single), None, None), none(), policy(None, None, Some(Enforce::Report))],
            (Q::Single, Switch::Deny, Enforce::Reject),
        ),
        (
            [none(), policy(Some(Q::Control), None, None), policy(None, None, Some(Enforce::Report))],
            (Q::Control, Switch::Deny, Enforce::Reject),
        ),
        (
            [none(), none(), policy(Some(Q::Control), None, Some(Enforce::Report))],
            (Q::Control, Switch::Deny, Enforce::Report),
        ),
        (
            [policy(Some(Q::Allow), None, None), none(), policy(Some(Q::Deny), None, Some(Enforce::Report))],
            (Q::Deny, Switch::Deny, Enforce::Report),
        ),
        // A `report` takes nothing back from another section that has the rule.
        (
            [
                policy(Some(Q::Control), None, Some(Enforce::Reject)),
                none(),
                policy(Some(Q::Deny), None, Some(Enforce::Report)),
            ],
            (Q::Deny, Switch::Deny, Enforce::Reject),
        ),
    ];
    for (mut order, (simple_query, function_call, enforce)) in table {
        for _ in 0..2 {
            order[1..].rotate_left(1);
            let rules = Rules::merge(&order);
            let got = (rules.simple_query(), rules.function_call(), rules.enforced(Rule::SimpleQueryDeny));
            assert_eq!(got, (simple_query, function_call, enforce), "{order:?}");
        }
    }
    assert_eq!(Rules::default(), Rules::merge([]));
}

/// A rule is enforced as those say that have it; whatever is only reported hides nothing that is refused.
#[test]
fn each_rule_is_enforced_as_its_own_policies_say() {
    let all = Policy { statements: Some(Statements::ReadOnly), ..Policy::default() };
    let user = Policy {
        sql_prepare: Some(Switch::Deny),
        function_call: Some(Switch::Deny),
        enforce: Some(Enforce::Report),
        ..Policy::default()
    };
    let rules = Rules::merge([&all, &Policy::default(), &user]);
    let judge = |text: &[u8]| {
        let readings = &mut Readings::default();
        texts::judge_text(&rules, text, SAFE, texts::Unseen::default(), readings).verdict
    };
    let Verdict::Report(told) = judge(b"PREPARE a AS SELECT 1") else { panic!("not reported") };
    assert_eq!(told.rule, Rule::SqlPrepareDeny);
    for text in
        [&b"PREPARE a AS DELETE FROM t"[..], b"PREPARE a AS SELECT 1; DELETE FROM t", b"DELETE FROM t"]
    {
        assert_eq!(word(&judge(text)), "statements=read_only");
        assert!(matches!(judge(text), Verdict::Reject(_)));
    }
    assert!(matches!(judge(b"SELEC"), Verdict::Reject(_)));
    assert!(matches!(judge_function_call(&rules), Verdict::Reject(_)));
    assert!(matches!(judge_function_call(&Rules::merge([&user])), Verdict::Report(_)));
    let single = Policy { simple_query: Some(SimpleQuery::Single), ..Policy::default() };
    let rules = Rules::merge([&single, &Policy::default(), &user]);
    assert!(matches!(judge_function_call(&rules), Verdict::Reject(_)), "closed by `simple_query` as well");

    // A list that only reports refuses nothing beside a rule that only reports.
    let listed = |enforce| Policy { allow_list: Some(AllowListMode::Report), enforce, ..Policy::default() };
    let tried = Policy {
        statements: Some(Statements::ReadOnly),
        enforce: Some(Enforce::Report),
        ..Policy::default()
    };
    let rules = Rules::merge([&listed(None), &tried]);
    let readings = &mut Readings::default();
    let unparsed = texts::judge_text(&rules, b"SELEC", SAFE, texts::Unseen::default(), readings).verdict;
    assert!(matches!(unparsed, Verdict::Report(_)));
    assert!(matches!(judge_replication(&Rules::merge([&listed(Some(Enforce::Report))])), Verdict::Report(_)));
    assert!(matches!(judge_replication(&Rules::merge([&listed(None)])), Verdict::Reject(_)));
}

#[test]
fn report_changes_nothing_but_the_audit() {
    let with = |enforce| {
        Rules::merge([&Policy {
            simple_query: Some(SimpleQuery::Control),
            function_call: Some(Switch::Deny),
            enforce: Some(enforce),
            ..Policy::default()
        }])
    };
    let rules = with(Enforce::Report);
    assert!(!rules.rejects());
    assert_eq!(verdict(&rules, b"BEGIN", SAFE), Verdict::Pass);
    let strict = with(Enforce::Reject);
    for text in [b"SELECT 1; SELECT 2".as_slice(), b"SELEC", b"SELECT 1"] {
        let Verdict::Report(reported) = verdict(&rules, text, SAFE) else { panic!("not reported") };
        assert_eq!(verdict(&strict, text, SAFE), Verdict::Reject(reported));
    }
    assert_eq!(word(&judge_function_call(&rules)), "report");
    assert_eq!(word(&judge_function_call(&strict)), "function_call=deny");
}

#[test]
fn function_calls_have_their_own_switch() {
    for (simple_query, function_call, want) in [
        (SimpleQuery::Allow, None, "pass"),
        (SimpleQuery::Allow, Some(Switch::Deny), "function_call=deny"),
        (SimpleQuery::Deny, None, "function_call=deny"),
        (SimpleQuery::Deny, Some(Switch::Allow), "pass"),
    ] {
        let policy = Policy { simple_query: Some(simple_query), function_call, ..Policy::default() };
        assert_eq!(word(&judge_function_call(&Rules::merge([&policy]))), want);
    }
}

#[test]
fn function_calls_are_no_reads_and_in_no_list() {
    let with = |statements, allow_list| {
        let function_call = Some(Switch::Allow);
        Rules::merge([&Policy { function_call, statements, allow_list, ..Policy::default() }])
    };
    for (statements, allow_list, want) in [
        (Some(Statements::NoDdl), None, "pass"),
        (Some(Statements::ReadOnly), None, "statements=read_only"),
        (None, Some(AllowListMode::Learn), "pass"),
        (None, Some(AllowListMode::Report), "report"),
        (None, Some(AllowListMode::Reject), "allow_list"),
    ] {
        assert_eq!(word(&judge_function_call(&with(statements, allow_list))), want);
    }
}

#[test]
fn replication_has_its_own_rule() {
    let with = |replication, enforce| Rules::merge([&Policy { replication, enforce, ..Policy::default() }]);
    assert_eq!(judge_replication(&with(None, None)), Verdict::Pass);
    assert_eq!(word(&judge_replication(&with(Some(Switch::Deny), None))), "replication=deny");
    assert_eq!(word(&judge_replication(&with(Some(Switch::Deny), Some(Enforce::Report)))), "report");
}

#[test]
fn every_new_rule_takes_the_strictest_of_all() {
    let open = Policy {
        sql_prepare: Some(Switch::Allow),
        replication: Some(Switch::Allow),
        statements: Some(Statements::All),
        allow_list: Some(AllowListMode::Learn),
        ..Policy::default()
    };
    let strict = Policy {
        sql_prepare: Some(Switch::Deny),
        replication: Some(Switch::Deny),
        statements: Some(Statements::ReadOnly),
        allow_list: Some(AllowListMode::Reject),
        ..Policy::default()
    };
    for policies in [[&open, &strict], [&strict, &open]] {
        let rules = Rules::merge(policies);
        assert_eq!((rules.sql_prepare(), rules.replication()), (Switch::Deny, Switch::Deny));
        assert_eq!((rules.statements(), rules.allow_list()), (Statements::ReadOnly, AllowListMode::Reject));
    }
    assert!(!Rules::default().reads_texts() && !Rules::default().needs_lexing());
    assert!(Rules::merge([&open]).reads_texts());
}

#[test]
fn what_was_prepared_is_distrusted_where_rules_become_stricter() {
    let list = |shape| {
        Arc::new(AllowList {
            prints: [crate::settings::Print { shape, text: 0 }].into(),
            ..AllowList::default()
        })
    };
    let with = |statements, allow_list, shape| {
        Rules::merge([&Policy {
            statements: Some(statements),
            allow_list: Some(allow_list),
            ..Policy::default()
        }])
        .with_lists(vec![list(shape)])
    };
    use AllowListMode as A;
    use Statements as S;
    for (old, new, distrusted) in [
        (with(S::All, A::Off, 1), with(S::All, A::Off, 2), false),
        (with(S::All, A::Off, 1), with(S::NoDdl, A::Off, 1), true),
        (with(S::ReadOnly, A::Off, 1), with(S::NoDdl, A::Off, 1), false),
        (with(S::All, A::Off, 1), with(S::All, A::Learn, 1), false),
        (with(S::All, A::Learn, 1), with(S::All, A::Reject, 1), true),
        (with(S::All, A::Reject, 1), with(S::All, A::Reject, 1), false),
        (with(S::All, A::Reject, 1), with(S::All, A::Reject, 2), true),
    ] {
        assert_eq!(new.distrust_what_was_prepared(&old), distrusted, "{old:?} {new:?}");
    }
    let as_said = |simple_query, statements, enforce| {
        let (simple_query, statements, enforce) = (Some(simple_query), Some(statements), Some(enforce));
        Rules::merge([&Policy { simple_query, statements, enforce, ..Policy::default() }])
    };
    for (statements, distrusted) in [(S::ReadOnly, true), (S::All, false)] {
        let [report, reject] =
            [Enforce::Report, Enforce::Reject].map(|enforce| as_said(SimpleQuery::Deny, statements, enforce));
        assert_eq!(reject.distrust_what_was_prepared(&report), distrusted);
        assert!(!report.distrust_what_was_prepared(&reject));
    }
}

#[test]
fn a_rejection_says_what_and_why_and_holds_no_literal() {
    for (level, text) in [
        (SimpleQuery::Deny, "SELECT 'hunter2'"),
        (SimpleQuery::Single, "SELECT 'hunter2'; SELECT 2"),
        (SimpleQuery::Control, "SELECT 'hunter2'"),
        (SimpleQuery::Control, "SELECT 'hunter2'; SELECT 2"),
        (SimpleQuery::Control, "SELEC 'hunter2'"),
    ] {
        let Verdict::Reject(rejection) = verdict(&rules(level), text.as_bytes(), SAFE) else {
            panic!("passed: {text}");
        };
        assert!(rejection.message.contains("simple_query is \""), "{}", rejection.message);
        assert!(rejection.hint.ends_with('.'));
        assert_eq!(rejection.bytes, text.len());
        assert_eq!(rejection.fingerprint.is_some(), !text.starts_with("SELEC "), "{text}");
        assert!(!format!("{rejection:?}").contains("hunter2"));
    }
}

#[test]
fn rule_names_are_stable_and_differ() {
    let names: Vec<_> = Rule::ALL.iter().map(|rule| rule.as_str()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), Rule::ALL.len());
    assert_eq!(Rule::SimpleQueryDeny.to_string(), "simple_query=deny");
}

#[test]
fn encodings_whose_characters_may_hold_ascii_bytes_are_not_safe() {
    let safe = [
        "UTF8",
        "utf-8",
        "UNICODE",
        "SQL_ASCII",
        "LATIN1",
        "latin-9",
        "ISO_8859_5",
        "ISO-8859-1",
        "WIN1252",
        "win-1251",
        "WINDOWS-1250",
        "WIN866",
        "WIN874",
        "KOI8R",
        "KOI8-U",
        "EUC_JP",
        "EUC_JIS_2004",
        "EUC_CN",
        "EUC_KR",
        "EUC_TW",
        "MULE_INTERNAL",
    ];
    let unsafe_ = [
        "SJIS",
        "shift-jis",
        "SHIFT_JIS_2004",
        "BIG5",
        "GBK",
        "UHC",
        "GB18030",
        "JOHAB",
        "WINDOWS-932",
        "WIN932",
        "WIN936",
        "WIN949",
        "WIN950",
        "WINDOWS-949",
        "mskanji",
        "",
        "new",
    ];
    for name in safe {
        assert!(encoding_is_safe(name.as_bytes()), "{name}");
    }
    for name in unsafe_ {
        assert!(!encoding_is_safe(name.as_bytes()), "{name}");
    }
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "BEGIN",
            "COMMIT",
            "SELECT 1",
            "SET a = ",
            "'",
            "''",
            "\\",
            "\"",
            "$$",
            "$a$",
            "/*",
            "*/",
            "--",
            "\n",
            ";",
            " ",
            "E'",
            "U&'",
            "b'",
            "x",
            "1",
            "(",
            ")",
            "\u{e9}",
            "DROP TABLE t",
        ]);
        prop::collection::vec(piece, 0..12).prop_map(|all| all.concat().into_bytes())
    }

    #[test]
    fn plain_control_is_exact() {
        for text in
            ["BEGIN", "begin;", "START TRANSACTION", "COMMIT WORK;", "end", "ROLLBACK TRANSACTION", "ABORT"]
        {
            assert!(is_plain_control(text.as_bytes()) && meaning::kinds(text.as_bytes()).is_ok(), "{text}");
        }
        for text in [
            "",
            "BEGIN ",
            "BEGIN COMT",
            "START",
            "START WORK",
            "SAVEPOINT a",
            "BEGIN WORK WORK",
            "BEGIN;;",
            "WORK",
        ] {
            assert!(!is_plain_control(text.as_bytes()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in prop::collection::vec(any::<u8>(), 0..200), std_strings: bool, encoding_safe: bool) {
            for level in [SimpleQuery::Single, SimpleQuery::Control, SimpleQuery::Deny] {
                verdict(&rules(level), &text, Lexing { std_strings, encoding_safe, ..Lexing::UNTOLD });
            }
        }

        /// What the parser sees as several statements is never folded as one by the quick proof.
        #[test]
        fn the_quick_proof_agrees_with_the_parser(text in pieces()) {
            if let Ok(count) = meaning::statement_count(&text) {
                prop_assert!(count <= 1 || !is_surely_one(&text, SAFE));
            }
            if is_plain_control(&text) {
                let kinds = meaning::kinds(&text).unwrap();
                prop_assert!(kinds.len() == 1 && kinds[0].is_control());
            }
        }

        /// `control` lets nothing through that the parser does not know to be control.
        #[test]
        fn control_is_closed(text in pieces()) {
            if judge(SimpleQuery::Control, &text, SAFE) == OK {
                let kinds = meaning::kinds(&text).unwrap();
                prop_assert!(kinds.len() <= 1 && kinds.iter().all(|kind| kind.is_control()));
            }
        }
    }
}
