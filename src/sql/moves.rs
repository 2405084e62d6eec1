//! Hot path. May a statement change what texts mean that are prepared behind it, in its own transaction?
//!
//! A table that is made, a setting such as `search_path` or `DateStyle`: what is prepared then is not what the same text was before.
//! Owns: which statements and settings certainly don't. Never: guesses; what it does not know, may. What a function does
//! that is called by a statement can't be seen here.

use super::effects::Effects;
use super::scan::{Kind, scan};

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
    // SELECT INTO, and `set_config`, also for the transaction alone.
    let by_the_way = || found.intersects(Effects::SETTINGS.union(Effects::TEMP)) || names_set_config(text);
    let end = text.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(text.len());
    if is_one_of(&text[..end], HARMLESS) {
        return by_the_way();
    }
    let mut tokens = scan(text, true).map(|token| (token.kind, &text[token.start..token.end])).peekable();
    match tokens.next() {
        // It does nothing.
        None | Some((Kind::Punctuation, b";")) => false,
        Some((Kind::Word, word)) if is_one_of(word, HARMLESS) => by_the_way(),
        Some((Kind::Word, word)) if is_one_of(word, &["set", "reset"]) => {
            let is = |token: Option<&(Kind, &[u8])>, words: &[&str]| {
                token.is_some_and(|(kind, word)| *kind == Kind::Word && is_one_of(word, words))
            };
            let is_dot = |token: Option<&(Kind, &[u8])>| token == Some(&(Kind::Punctuation, b"."));
            let mut name = tokens.next();
            // `local.x` is a setting.
            if is(name.as_ref(), &["local", "session"]) && !is_dot(tokens.peek()) {
                name = tokens.next();
            }
            !is(name.as_ref(), HARMLESS_SETTINGS) && !is_dot(tokens.peek())
        }
        Some(_) => true,
    }
}

fn names_set_config(text: &[u8]) -> bool {
    let word = |at: usize| text.get(at.checked_sub(3)?..at + 7);
    memchr::memchr_iter(b'_', text)
        .any(|at| word(at).is_some_and(|word| word.eq_ignore_ascii_case(b"set_config")))
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

    proptest! {
        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..60)) {
            may_change_meaning(&text, Effects::NONE);
        }

        #[test]
        fn no_case_hides_a_setting(text in "[sS][eE][tT] {1,2}([lL][oO][cC][aA][lL] )?[sS][eE][aA][rR][cC][hH]_[pP][aA][tT][hH] = a") {
            prop_assert!(may(&text));
        }
    }
}
