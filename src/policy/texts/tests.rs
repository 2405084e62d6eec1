//! The rules for texts as tables.

use super::*;
use crate::settings::{Enforce, Policy, Print};

const SAFE: Lexing = Lexing::PLAIN;

fn judge_with(rules: &Rules, text: &[u8], lexing: Lexing, unseen: bool) -> Judged {
    let unseen = Unseen { statements: unseen, portals: unseen };
    judge_text(rules, text, lexing, unseen, &mut Readings::default())
}

fn word(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Pass => "pass".into(),
        Verdict::Single => "single".into(),
        Verdict::Reject(rejection) => rejection.rule.to_string(),
        Verdict::Report(rejection) => format!("report {}", rejection.rule),
    }
}

fn judge(policy: &Policy, text: &str) -> String {
    word(&judge_with(&Rules::merge([policy]), text.as_bytes(), SAFE, false).verdict)
}

fn statements(level: Statements) -> Policy {
    Policy { statements: Some(level), ..Policy::default() }
}

#[test]
fn levels_of_statements() {
    for (text, no_ddl, read_only) in [
        ("", true, true),
        ("BEGIN", true, true),
        ("SET work_mem = '1MB'", true, true),
        ("SET TRANSACTION READ WRITE", true, false),
        ("SELECT 1", true, true),
        ("SELECT 1 FOR UPDATE", true, false),
        ("WITH a AS (DELETE FROM t RETURNING 1) SELECT 1", true, false),
        ("INSERT INTO t VALUES (1)", true, false),
        ("TRUNCATE t", true, false),
        ("CALL p()", true, false),
        ("NOTIFY a", true, false),
        ("PREPARE a AS SELECT 1", true, true),
        ("PREPARE a AS DELETE FROM t", true, false),
        ("COPY t TO STDOUT", true, true),
        ("COPY t FROM STDIN", true, false),
        ("COPY t TO PROGRAM 'x'", false, false),
        ("DO 'x'", false, false),
        ("CREATE TABLE t ()", false, false),
        ("SELECT 1 INTO t", false, false),
        ("VACUUM", false, false),
        ("GRANT a TO b", false, false),
        ("SELECT 1; SELECT 2", true, true),
        ("SELECT 1; DELETE FROM t", true, false),
        ("COMMIT; DROP TABLE t; BEGIN", false, false),
    ] {
        assert_eq!(judge(&statements(Statements::All), text), "pass");
        let want = |passes, rule: &str| if passes { "pass".to_owned() } else { rule.to_owned() };
        assert_eq!(judge(&statements(Statements::NoDdl), text), want(no_ddl, "statements=no_ddl"), "{text}");
        assert_eq!(
            judge(&statements(Statements::ReadOnly), text),
            want(read_only, "statements=read_only"),
            "{text}"
        );
    }
}

#[test]
fn sql_prepare_refuses_prepare_and_execute_wherever_they_stand() {
    let policy = Policy { sql_prepare: Some(Switch::Deny), ..Policy::default() };
    for (text, passes) in [
        ("PREPARE a AS SELECT 1", false),
        ("EXECUTE a", false),
        ("EXPLAIN EXECUTE a", false),
        ("CREATE TABLE t AS EXECUTE a", false),
        ("SELECT 1; PREPARE a AS SELECT 1", false),
        ("DEALLOCATE a", true),
        ("DEALLOCATE ALL", true),
        ("PREPARE TRANSACTION 'a'", true),
        ("CREATE TABLE t ()", true),
        ("SELECT 1", true),
    ] {
        assert_eq!(judge(&policy, text), if passes { "pass" } else { "sql_prepare=deny" }, "{text}");
    }
}

#[test]
fn what_cannot_be_read_is_refused_with_a_rule_of_its_own() {
    let mut long = b"SELECT '".to_vec();
    long.resize(TEXT_BYTES_MAX, b'x');
    long.extend_from_slice(b"'");
    let off = Lexing { std_strings: false, ..SAFE };
    let sjis = Lexing { encoding_safe: false, ..SAFE };
    let mut latin5 = SAFE;
    assert!(latin5.hear(b"server_encoding", b"LATIN5"));
    let mut eucjp = SAFE;
    assert!(eucjp.hear(b"client_encoding", b"EUC_JP"));
    let table: &[(&[u8], Lexing, &str)] = &[
        (
            b"SELECT $\xad\xb5$ $\x8f\xf3\xfd$, nextval('s'), $\x8f\xf3\xfd$ $\xad\xb5$",
            eucjp,
            "text/client_encoding",
        ),
        (b"SELECT '\xad\xb5', $1, $a$ \xad\xb5 $a$, '$\xad\xb5 $'", eucjp, "pass"),
        ("SELECT txİd_current()".as_bytes(), latin5, "text/client_encoding"),
        ("SELECT 1 AS \"a\"; SET transactİon_read_only = off".as_bytes(), latin5, "text/client_encoding"),
        (b"EXECUTE pgslu\xddce_8", latin5, "text/client_encoding"),
        ("SELECT 'İ', $İ$ İ $İ$ AS \"İ\" -- İ".as_bytes(), latin5, "pass"),
        ("SELECT ı, ş, é".as_bytes(), latin5, "pass"),
        ("SELECT İ".as_bytes(), SAFE, "pass"),
        (b"SELEC 1", SAFE, "text/unparsed"),
        (b"SELECT 1; SELEC", SAFE, "text/unparsed"),
        (b"SELECT 'a\\'", SAFE, "pass"),
        (b"SELECT 'a\\'", off, "text/standard_conforming_strings"),
        (b"SELECT '\\'', nextval('s') --'", off, "text/standard_conforming_strings"),
        (b"SELECT 1", off, "pass"),
        (b"SELECT '\x95\\'", sjis, "text/client_encoding"),
        (b"SELECT 'a'", sjis, "pass"),
        (&long, SAFE, "text/statement_bytes"),
    ];
    let allow_list = |mode| Policy { allow_list: Some(mode), ..Policy::default() };
    for (text, lexing, want) in table {
        for policy in [statements(Statements::ReadOnly), statements(Statements::NoDdl)] {
            let verdict = judge_with(&Rules::merge([&policy]), text, *lexing, false).verdict;
            assert_eq!(word(&verdict), *want);
        }
        // A list that refuses nothing refuses nothing for not being read.
        for (mode, prefix) in [(AllowListMode::Learn, ""), (AllowListMode::Report, "report ")] {
            let verdict = judge_with(&Rules::merge([&allow_list(mode)]), text, *lexing, false).verdict;
            let odd = *want != "pass";
            let want = match mode {
                AllowListMode::Learn => "pass".to_owned(),
                _ if odd => format!("{prefix}{want}"),
                _ => "report allow_list".to_owned(),
            };
            assert_eq!(word(&verdict), want);
        }
    }
}

#[test]
fn execute_runs_only_what_was_judged() {
    let rules = Rules::merge([&statements(Statements::NoDdl)]);
    for (text, unseen, want) in [
        ("EXECUTE a", false, "pass"),
        ("EXECUTE a", true, "text/unseen"),
        ("EXPLAIN ANALYZE EXECUTE a", true, "text/unseen"),
        ("SELECT 1", true, "pass"),
        ("PREPARE a AS SELECT 1", true, "pass"),
        // Somebody else's, by the name that it has on the server.
        ("FETCH ALL FROM c", true, "text/unseen"),
        ("MOVE 1 IN c", true, "text/unseen"),
        ("FETCH ALL FROM c", false, "pass"),
        ("SELECT cursor_to_xml('c', 1, true, true, '')", true, "text/unseen"),
        ("INSERT INTO t SELECT pg_catalog.\"cursor_to_xml\"($1, 1, true, true, '')", true, "text/unseen"),
        ("SELECT cursor_to_xml('c', 1, true, true, '')", false, "pass"),
        ("INSERT INTO t VALUES (1)", true, "pass"),
        ("EXECUTE pgsluice_17", false, "text/unseen"),
        ("EXPLAIN ANALYZE EXECUTE \"pgsluice_17\"(1)", false, "text/unseen"),
    ] {
        assert_eq!(word(&judge_with(&rules, text.as_bytes(), SAFE, unseen).verdict), want, "{text}");
    }
    assert_eq!(word(&judge_unseen(&rules)), "text/unseen");
    let learns = listed(AllowListMode::Learn, &[&[]]);
    assert_eq!(
        judge_with(&learns, b"EXECUTE a", SAFE, true).verdict,
        Verdict::Pass,
        "learning refuses nothing"
    );
    assert_eq!(judge_unseen(&Rules::default()), Verdict::Pass);
}

fn print(text: &str) -> Print {
    verbs::names(text.as_bytes()).unwrap()[0].clone().unwrap().print
}

fn listed(mode: AllowListMode, lists: &[&[&str]]) -> Rules {
    let list = |texts: &&[&str]| {
        std::sync::Arc::new(AllowList {
            prints: texts.iter().map(|t| print(t)).collect(),
            ..AllowList::default()
        })
    };
    Rules::merge([&Policy { allow_list: Some(mode), ..Policy::default() }])
        .with_lists(lists.iter().map(list).collect())
}

#[test]
fn a_list_refuses_what_it_does_not_name() {
    use AllowListMode as A;
    let texts: &[&str] = &["SELECT a FROM t WHERE b = 1", "COPY t FROM STDIN"];
    for (text, want) in [
        ("", "pass"),
        ("BEGIN", "pass"),
        ("ROLLBACK TO x", "pass"),
        ("SELECT a FROM t WHERE b = 'x''; DROP TABLE t; --'", "pass"),
        ("SELECT a FROM t WHERE b = 1; SELECT a FROM t WHERE b = 2", "pass"),
        ("PREPARE p AS SELECT a FROM t WHERE b = $1", "pass"),
        ("COPY t FROM STDIN", "pass"),
        ("SELECT a FROM t WHERE b = 1 OR true", "allow_list"),
        ("SELECT a FROM t WHERE b = 1 UNION SELECT 1", "allow_list"),
        ("SELECT a FROM t WHERE b = 1; SELECT 1", "allow_list"),
        ("PREPARE p AS SELECT 1", "allow_list"),
        ("EXECUTE p", "allow_list"),
        ("COPY t FROM PROGRAM 'x'", "allow_list"),
        ("SET a = 1", "allow_list"),
        ("BEGIN READ WRITE", "allow_list"),
    ] {
        let verdict = |rules: &Rules| word(&judge_with(rules, text.as_bytes(), SAFE, false).verdict);
        assert_eq!(verdict(&listed(A::Reject, &[texts])), want, "{text}");
        // Each list must have it; without any, nothing is allowed.
        assert_eq!(verdict(&listed(A::Reject, &[texts, texts])), want, "{text}");
        let control = matches!(text, "" | "BEGIN" | "ROLLBACK TO x");
        for lists in [&[texts, &[]][..], &[]] {
            assert_eq!(
                verdict(&listed(A::Reject, lists)),
                if control { "pass" } else { "allow_list" },
                "{text}"
            );
        }
        let reported = if want == "pass" { "pass" } else { "report allow_list" };
        assert_eq!(verdict(&listed(A::Report, &[texts])), reported, "{text}");
        assert_eq!(verdict(&listed(A::Learn, &[texts])), "pass", "{text}");
    }
}

#[test]
fn what_is_learned_is_what_a_list_lacks() {
    let rules = listed(AllowListMode::Learn, &[&["SELECT a FROM t"], &[]]);
    let judged = judge_with(&rules, b"SELECT a FROM t; SELECT b FROM t; BEGIN", SAFE, false);
    let learned: Vec<(usize, Print)> = judged.learned.iter().map(|(at, named)| (*at, named.print)).collect();
    let (a, b) = (print("SELECT a FROM t"), print("SELECT b FROM t"));
    assert_eq!(learned, [(0, b), (1, a), (1, b)]);
    assert_eq!(judged.verdict, Verdict::Pass);
    assert_eq!(judge_with(&rules, b"BEGIN", SAFE, false), Verdict::Pass.into());
}

#[test]
fn a_refusal_names_the_line_that_would_let_it_pass() {
    let judged = judge_with(&listed(AllowListMode::Reject, &[&[]]), b"DO 'hunter2'", SAFE, false);
    let Verdict::Reject(rejection) = judged.verdict else { panic!("passed") };
    let print = print("DO 'hunter2'").to_string();
    assert!(rejection.advice().ends_with(&print), "{}", rejection.advice());
    assert_eq!(rejection.fingerprint, Some(print));
    assert_eq!(rejection.bytes, 12);
    assert!(!format!("{rejection:?}").contains("hunter2"));
}

#[test]
fn report_passes_and_says_the_same() {
    let mut policy = statements(Statements::ReadOnly);
    let text = b"SELECT 1; DELETE FROM t WHERE a = 'hunter2'";
    let Verdict::Reject(rejected) = judge_with(&Rules::merge([&policy]), text, SAFE, false).verdict else {
        panic!("passed")
    };
    assert_eq!(
        rejected.detail.as_deref(),
        Some("The statement is INSERT, UPDATE, DELETE or MERGE. It is statement 2 of 2.")
    );
    policy.enforce = Some(Enforce::Report);
    assert_eq!(judge_with(&Rules::merge([&policy]), text, SAFE, false).verdict, Verdict::Report(rejected));
}

#[test]
fn a_known_text_is_not_parsed_again_and_memory_is_bounded() {
    let rules = Rules::merge([&statements(Statements::NoDdl)]);
    let mut readings = Readings::default();
    for _ in 0..100 {
        for text in [b"SELECT 1".as_slice(), b"DROP TABLE t", b"SELEC"] {
            judge_text(&rules, text, SAFE, Unseen::default(), &mut readings);
        }
    }
    assert_eq!(readings.parsed(), 3);
    for i in 0..150 {
        let text = format!("SELECT '{i:065000}'");
        judge_text(&rules, text.as_bytes(), SAFE, Unseen::default(), &mut readings);
        // Used all the time, it stays.
        judge_text(&rules, b"SELECT 1", SAFE, Unseen::default(), &mut readings);
        let held: usize = readings.young.keys().chain(readings.old.keys()).map(|text| text.len()).sum();
        assert!(held <= READINGS_BYTES_MAX);
    }
    assert_eq!(readings.parsed(), 153);
}

#[test]
fn memory_is_bounded_where_a_text_holds_many_statements() {
    let rules = Rules::merge([&statements(Statements::NoDdl)]);
    let mut readings = Readings::default();
    for i in 0..150 {
        let text = format!("SAVEPOINT a{i};{}", "END;".repeat(5_000));
        judge_text(&rules, text.as_bytes(), SAFE, Unseen::default(), &mut readings);
        let kept = readings.young.values().chain(readings.old.values());
        let found: usize = kept.map(|reading| reading.statements().unwrap().len()).sum();
        assert!(found * size_of::<Found>() <= READINGS_BYTES_MAX, "{found} statements");
    }
}

#[test]
fn a_session_without_these_rules_pays_nothing() {
    let mut readings = Readings::default();
    let judged = judge_text(
        &Rules::default(),
        b"DROP TABLE t",
        SAFE,
        Unseen { statements: true, portals: true },
        &mut readings,
    );
    assert_eq!(judged, Verdict::Pass.into());
    assert_eq!(readings.parsed(), 0);
}
