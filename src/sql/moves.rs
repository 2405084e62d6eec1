//! Hot path. May a statement change what texts mean that are prepared behind it, in its own transaction?
//!
//! A table that is made, a setting such as `search_path` or `DateStyle`: what is prepared then is not what the same text was before.
//! Owns: which statements and settings certainly don't, and which make a table though the tag of CommandComplete does not say so.
//! Never: guesses; what it does not know, may. What a function does that is called by a statement can't be seen here.

use super::effects::Effects;
use super::scan::{Kind, Underscored, mentions, scan};

/// Statements that change neither a table nor a setting, by their first words.
const HARMLESS: &[&str] = &[
    "select",
    "insert",
    "update",
    "delete",
    "merge",
    "values",
    "with",
    "begin",
    "start",
    "commit",
    "end",
    "rollback",
    "abort",
    "savepoint",
    "release",
    "show",
    "fetch",
    "move",
    "close",
    "declare",
    "copy",
    "explain",
    "prepare",
    "deallocate",
    "lock",
    "listen",
    "notify",
    "unlisten",
];

/// Settings that no text's meaning hangs on, and what else stands behind SET.
const HARMLESS_SETTINGS: &[&str] = &[
    "application_name",
    "characteristics",
    "constraints",
    "idle_in_transaction_session_timeout",
    "lock_timeout",
    "maintenance_work_mem",
    "statement_timeout",
    "synchronous_commit",
    "transaction",
    "transaction_timeout",
    "work_mem",
];

fn is_one_of(word: &[u8], words: &[&str]) -> bool {
    words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}

/// May the first statement of this text, which has these effects, change what others mean?
pub fn may_change_meaning(text: &[u8], found: Effects) -> bool {
    if is_one_of(first_word(text), HARMLESS) {
        sets(text, found)
    } else {
        may_change_by_its_tokens(text, found)
    }
}

/// SELECT INTO, and `set_config`, also for the transaction alone; a call of either has an effect.
fn sets(text: &[u8], found: Effects) -> bool {
    !found.is_empty() && (found.intersects(Effects::SETTINGS.union(Effects::TEMP)) || names_set_config(text))
}

fn may_change_by_its_tokens(text: &[u8], found: Effects) -> bool {
    let mut tokens = tokens_of(text, true).peekable();
    match tokens.next() {
        // It does nothing.
        None | Some((Kind::Punctuation, b";")) => false,
        first if is_word(first, HARMLESS) => sets(text, found),
        first if is_word(first, &["set", "reset"]) => {
            let mut name = tokens.next();
            // `local.x` is a setting.
            if is_word(name, &["local", "session"]) && !is_mark(tokens.peek().copied(), b".") {
                name = tokens.next();
            }
            !is_word(name, HARMLESS_SETTINGS) && !is_mark(tokens.peek().copied(), b".")
        }
        Some(_) => true,
    }
}

/// What stands at the very beginning of a text, if it is a word.
fn first_word(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(text.len());
    &text[..end]
}

/// May this text hold several statements? A semicolon at its end begins none.
pub fn may_be_several(text: &[u8]) -> bool {
    let text = text.trim_ascii_end();
    memchr::memchr(b';', text.strip_suffix(b";").unwrap_or(text)).is_some()
}

/// Is the first statement of this text an EXECUTE? What it returns is told when it is parsed.
pub fn is_execute(text: &[u8]) -> bool {
    let first = tokens_of(text, true).find(|&token| !is_mark(Some(token), b";"));
    is_word(first, &["execute"])
}

/// Statements of one of these make nothing, and most texts begin so.
const MAKE_NOTHING: &[&str] = &["insert", "update", "delete", "merge"];

/// What may stand behind the name of the table in SELECT INTO. Such a word is no name itself.
const CLAUSES: &[&str] = &[
    "from",
    "where",
    "group",
    "having",
    "window",
    "union",
    "intersect",
    "except",
    "order",
    "limit",
    "offset",
    "fetch",
    "for",
];

/// Does a statement of this text make what others see, be it that its tag is that of a query? SELECT INTO, CREATE ... AS, EXPLAIN of
/// those (which makes it with ANALYZE); CREATE of anything else is one, too. What is temporary is nobody else's.
pub fn makes_for_all(text: &[u8]) -> bool {
    let is_known = || is_one_of(first_word(text), MAKE_NOTHING) && !may_be_several(text);
    if is_known() || !names_a_maker(text) {
        return false;
    }
    // How strings are read is the session's setting: either way.
    let may_differ = || memchr::memchr(b'\\', text).is_some();
    has_maker(text, true) || may_differ() && has_maker(text, false)
}

/// INTO or CREATE stands in it, if only in a string: most texts have neither.
fn names_a_maker(text: &[u8]) -> bool {
    let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || *byte >= 0x80;
    let is = |at: usize, back: usize, word: &[u8]| {
        let Some(start) = at.checked_sub(back) else { return false };
        let end = start + word.len();
        text.get(start..end).is_some_and(|found| found.eq_ignore_ascii_case(word))
            && !text.get(end).is_some_and(goes_on)
    };
    // Both have a `t`, and what stands before it tells most others.
    memchr::memchr2_iter(b't', b'T', text).any(|at| {
        match at.checked_sub(1).map(|before| text[before] | 0x20) {
            Some(b'n') => is(at, 2, b"into"),
            Some(b'a') => is(at, 4, b"create"),
            _ => false,
        }
    })
}

/// A token's kind and its bytes.
type Token<'a> = (Kind, &'a [u8]);

fn tokens_of(text: &[u8], std_strings: bool) -> impl Iterator<Item = Token<'_>> {
    scan(text, std_strings).map(|token| (token.kind, &text[token.start..token.end]))
}

fn is_word(token: Option<Token<'_>>, words: &[&str]) -> bool {
    token.is_some_and(|(kind, word)| kind == Kind::Word && is_one_of(word, words))
}

fn is_mark(token: Option<Token<'_>>, mark: &[u8]) -> bool {
    token.is_some_and(|(kind, bytes)| kind == Kind::Punctuation && bytes == mark)
}

/// A statement as far as it was read.
#[derive(Default)]
struct Reading<'a> {
    begun: bool,
    /// What it begins with leaves no room for one that makes a table.
    passed: bool,
    explains: bool,
    depth: usize,
    /// A SELECT stands outside of all parentheses.
    selects: bool,
    /// The last two tokens, the last one first.
    last: [Option<Token<'a>>; 2],
}

fn has_maker(text: &[u8], std_strings: bool) -> bool {
    let mut tokens = tokens_of(text, std_strings);
    let mut reading = Reading::default();
    while let Some(token) = tokens.next() {
        if is_mark(Some(token), b";") {
            reading = Reading::default();
            continue;
        }
        let makes = (reading.creates(token) && !is_temporary_behind_create(&mut tokens))
            || (reading.selects_into(token) && !is_temporary_behind_into(&mut tokens));
        if makes {
            return true;
        }
        reading.passes(token);
    }
    false
}

impl<'a> Reading<'a> {
    fn passes(&mut self, token: Token<'a>) {
        if !self.begun {
            self.begun = true;
            self.explains = is_word(Some(token), &["explain"]);
            let may = is_word(Some(token), &["select", "with", "explain"]) || is_mark(Some(token), b"(");
            self.passed = !may;
        }
        match token {
            (Kind::Punctuation, b"(") => self.depth += 1,
            (Kind::Punctuation, b")") => self.depth = self.depth.saturating_sub(1),
            _ => self.selects |= self.depth == 0 && is_word(Some(token), &["select"]),
        }
        self.last = [Some(token), self.last[0]];
    }

    /// CREATE, as a statement of its own or the one that is explained.
    fn creates(&self, token: Token<'a>) -> bool {
        (!self.begun || self.explains && !self.is_label()) && is_word(Some(token), &["create"])
    }

    fn selects_into(&self, token: Token<'a>) -> bool {
        self.begun && !self.passed && is_into(token) && !self.is_label() && !self.is_verb()
    }

    /// `AS into`, `t.into`.
    fn is_label(&self) -> bool {
        let [last, before] = self.last;
        // Of `AS as INTO t` the second one is the label.
        is_mark(last, b".") || is_word(last, &["as"]) && !is_mark(before, b".") && !is_word(before, &["as"])
    }

    /// INSERT INTO, MERGE INTO: not in `SELECT 1 insert INTO t`, where that is a label. It begins a statement in parentheses, or stands
    /// behind those of a WITH or EXPLAIN.
    fn is_verb(&self) -> bool {
        let [last, before] = self.last;
        let explained = || self.explains && is_word(before, &["explain", "analyze", "analyse", "verbose"]);
        let behind = || self.depth == 0 && !self.selects && (is_mark(before, b")") || explained());
        is_word(last, &["insert", "merge"]) && (is_mark(before, b"(") || behind())
    }
}

/// Also in `1INTO t`, which PostgreSQL 14 reads as a number and a word.
fn is_into((kind, bytes): Token<'_>) -> bool {
    let end = bytes.len().checked_sub(4).and_then(|at| bytes.get(at..));
    is_word(Some((kind, bytes)), &["into"])
        || kind == Kind::Junk && end.is_some_and(|end| end.eq_ignore_ascii_case(b"into"))
}

/// Behind CREATE: does TEMP belong to it?
fn is_temporary_behind_create<'a>(tokens: &mut impl Iterator<Item = Token<'a>>) -> bool {
    let token = tokens.find(|&token| !is_word(Some(token), &["or", "replace", "global", "local"]));
    is_word(token, &["temp", "temporary"])
}

/// Behind INTO: does TEMP belong to it? A table may be called so itself.
fn is_temporary_behind_into<'a>(tokens: &mut impl Iterator<Item = Token<'a>>) -> bool {
    let (first, second) = (tokens.next(), tokens.next());
    let is_name = |token: Option<Token<'_>>| match token {
        Some((Kind::Word, word)) => !is_one_of(word, CLAUSES),
        Some((kind, _)) => matches!(kind, Kind::Quoted | Kind::UnicodeQuoted),
        None => false,
    };
    let is_temp = |token| is_word(token, &["temp", "temporary"]);
    is_temp(first) && is_name(second) || is_word(first, &["local", "global"]) && is_temp(second)
}

fn names_set_config(text: &[u8]) -> bool {
    const SET_CONFIG: Underscored = Underscored::new("set_config");
    mentions(text, [SET_CONFIG].iter())
}

#[cfg(test)]
mod tests {
    use super::super::effects::effects;
    use super::*;
    use proptest::prelude::*;

    fn may(text: &str) -> bool {
        may_change_meaning(text.as_bytes(), effects(text.as_bytes(), true))
    }

    #[test]
    fn what_changes_no_meaning_is_known() {
        for text in [
            "SELECT 1",
            " /* a */ insert into t values (1)",
            "BEGIN",
            "rollback to savepoint a",
            "",
            ";",
            "-- nothing",
            "SET LOCAL statement_timeout = '5s'",
            "set lock_timeout to 1",
            "SET SESSION app.user = 'x'",
            "SET local.x = 1",
            "RESET work_mem",
            "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            "SET CONSTRAINTS ALL DEFERRED",
        ] {
            assert!(!may(text), "{text}");
        }
    }

    #[test]
    fn an_execute_is_known_by_its_first_word() {
        for text in ["EXECUTE a", " /* a */ execute a(1)", ";\n;Execute \"a\"", "-- a\nEXECUTE a"] {
            assert!(is_execute(text.as_bytes()), "{text}");
        }
        for text in
            ["", ";", "EXPLAIN EXECUTE a", "SELECT execute", "\"execute\" a", "executes", "/* EXECUTE a"]
        {
            assert!(!is_execute(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn whatever_else_may() {
        for text in [
            "SELECT set_config('search_path', 'a', true)",
            "WITH a AS (SELECT Set_Config($1, $2, $3)) SELECT",
            "SELECT 1 INTO TEMP t",
            "SET LOCAL DateStyle = 'ISO, DMY'",
            "set search_path = a",
            "SET TIME ZONE 'UTC'",
            "SET LOCAL ROLE a",
            "SET \"work_mem\" = 1",
            "RESET ALL",
            "RESET SESSION AUTHORIZATION",
            "set",
            "CREATE TEMP TABLE t (a int)",
            "/**/ALTER TABLE t ADD b int",
            "DROP TABLE t",
            "DO $$ $$",
            "DISCARD TEMP",
            "(SELECT 1)",
            "selects",
            "EXECUTE a",
        ] {
            assert!(may(text), "{text}");
        }
    }

    #[test]
    fn what_makes_a_table_whatever_its_tag_is_found() {
        for text in [
            "SELECT 1 INTO t",
            "select a.as into t from a",
            "SELECT\n1/**/INTO/**/\"t\"",
            "SELECT 1 insert INTO t",
            "SELECT count(*) insert INTO t",
            "SELECT 1 AS a, 2 AS into INTO t",
            "SELECT 1 AS as INTO t",
            "SELECT 1INTO t",
            "SELECT 1 INTO temp",
            "SELECT 1 INTO temp FROM a",
            "SELECT 1 INTO temporary.t",
            "SELECT 1 INTO local FROM a",
            "SELECT 1 INTO UNLOGGED t",
            "(SELECT 1 INTO t)",
            "(SELECT count(*) insert INTO t)",
            "-- a\nWITH a AS (INSERT INTO b VALUES (1) RETURNING *) SELECT * INTO c FROM a",
            "WITH insert AS (SELECT 1) SELECT * INTO t FROM insert",
            "EXPLAIN ANALYZE SELECT 1 INTO t",
            "EXPLAIN (ANALYZE) CREATE TABLE t AS SELECT 1",
            "EXPLAIN ANALYZE VERBOSE CREATE MATERIALIZED VIEW t AS SELECT 1",
            "EXPLAIN ANALYZE CREATE TABLE t AS EXECUTE a",
            "CREATE TABLE t AS EXECUTE a",
            "create table if not exists t as select 1",
            "INSERT INTO t VALUES (1); SELECT 1 INTO u",
            "SELECT 1 INTO TEMP a; SELECT 2 INTO b",
            "CREATE TEMP TABLE a (b int); CREATE TABLE c (d int)",
            "SELECT '\\' INTO t --'",
            "SELECT 'a\\' INTO t --'",
            "SELECT 'a\\'' INTO t",
        ] {
            assert!(makes_for_all(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_makes_nothing_for_others_is_known() {
        for text in [
            "",
            "SELECT 1",
            "SELECT created_at, pointo FROM t",
            "SELECT 'INTO t', $$ INTO t $$, \"into\" /* INTO t */ -- INTO t",
            "SELECT 1 AS into, t.into, t.create FROM t",
            "SELECT 1 INTO TEMP t",
            "SELECT 1 INTO LOCAL TEMPORARY TABLE t FROM a",
            "SELECT 1 INTO temp \"from\"",
            "INSERT INTO t VALUES (1)",
            "insert into t select 1;\n",
            "/* a */ INSERT INTO t VALUES (';')",
            "INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)",
            "MERGE INTO t USING a ON b WHEN MATCHED THEN DELETE",
            "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
            "WITH a AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM a",
            "WITH a AS (MERGE INTO t USING b ON c WHEN MATCHED THEN DELETE RETURNING *) SELECT 1",
            "EXPLAIN INSERT INTO t VALUES (1)",
            "EXPLAIN ANALYZE VERBOSE INSERT INTO t VALUES (1)",
            "EXPLAIN (ANALYZE) INSERT INTO t VALUES (1)",
            "EXPLAIN ANALYZE CREATE TEMP TABLE t AS SELECT 1",
            "CREATE TEMP TABLE t AS SELECT 1",
            "create or replace temporary view t as select 1",
            "CREATE LOCAL TEMP TABLE t (a int)",
            "PREPARE a AS INSERT INTO t VALUES (1)",
            "COPY t FROM STDIN",
            "DO 'SELECT 1 INTO t'",
        ] {
            assert!(!makes_for_all(text.as_bytes()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..60)) {
            may_change_meaning(&text, Effects::NONE);
            makes_for_all(&text);
            is_execute(&text);
        }

        #[test]
        fn no_case_and_no_blank_hides_an_into(
            text in "(WITH a AS \\(SELECT 1\\) )?[sS][eE][lL]ECT 'x'[ \n]*(AS y)?[ \n]+([iI][nN][tT][oO])[ \n]+(TABLE )?t( FROM a)?",
        ) {
            prop_assert!(makes_for_all(text.as_bytes()));
        }

        #[test]
        fn no_case_hides_a_setting(text in "[sS][eE][tT] {1,2}([lL][oO][cC][aA][lL] )?[sS][eE][aA][rR][cC][hH]_[pP][aA][tT][hH] = a") {
            prop_assert!(may(&text));
        }
    }
}
