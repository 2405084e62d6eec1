//! A Query sent on as one extended unit, so that PostgreSQL itself refuses a second statement in it.
//!
//! Owns: which messages take a Query's place and what is owed for them. Never: a verdict (the policy's), the answers
//! (the relay folds them back with [`Answer`](super::pipeline::Answer)).
//!
//! ```text
//! Query             becomes                                   answered to the client
//! SELECT ...        Parse Bind Describe Execute Sync          T D* C Z
//! COPY ...          Parse Bind Describe Execute Flush         G or H, C; Sync follows when COPY has ended
//! anything else     Parse Bind Describe Execute Sync          T only when the first row or the end follows it
//! nothing at all    Query, empty                              I Z
//! ```
//!
//! A simple Query commits before it says CommandComplete, an extended one behind it: CommandComplete is kept until the
//! Sync was answered. See "Simple Query" and "Extended Query" in the message-flow section of the protocol chapter.

use super::pipeline::{Action, Kind, Pipeline};
use crate::sql::scan;
use crate::wire::frontend as f;

/// How the answers to a folded Query are ordered. A wrong guess changes their order, never what is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    /// There is no statement in it. Directly that is answered even in a failed block, where Bind is not.
    Empty,
    /// Its rows are described before anything runs.
    Select,
    /// It may read what the client sends, so nothing of ours may stand behind it.
    Copy,
    /// It runs to its end before its rows are described.
    Utility,
}

impl Fold {
    /// Of a text. Comments and white space read the same in every encoding and with every setting.
    pub fn of(text: &[u8]) -> Self {
        let is = |token: &scan::Token| text[token.start..token.end] == *b";";
        let Some(first) = scan::scan(text, true).find(|token| !is(token)) else { return Self::Empty };
        let word = &text[first.start..first.end];
        let one_of = |words: &[&[u8]]| words.iter().any(|w| word.eq_ignore_ascii_case(w));
        match () {
            () if one_of(&[b"select", b"values", b"table", b"("]) => Self::Select,
            () if one_of(&[b"copy"]) => Self::Copy,
            () if one_of(&[b"with"]) && !changes_data(text) => Self::Select,
            () => Self::Utility,
        }
    }

    /// Appends the unit for `text`. Returns true when its Sync is to be sent later (COPY).
    pub fn put(self, text: &[u8], out: &mut Vec<u8>, pipeline: &mut Pipeline) -> bool {
        if self == Self::Empty {
            f::put_query(out, b"");
            pipeline.push(Kind::Query, Action::Forward, false);
            return false;
        }
        f::put_parse(out, b"", text, &[]);
        f::put_bind_text(out, b"", &[]);
        f::put_target(out, f::DESCRIBE, b'P', b"");
        f::put_execute(out, b"", 0);
        let copies = self == Self::Copy;
        f::put_empty(out, if copies { f::FLUSH } else { f::SYNC });
        pipeline.push(Kind::Parse, Action::Skip, false);
        pipeline.push(Kind::Bind, Action::Skip, false);
        let describe = if self == Self::Utility { Action::FoldLate } else { Action::Fold };
        pipeline.push(Kind::Describe, describe, false);
        pipeline.push(Kind::Execute, Action::Fold, false);
        if !copies {
            pipeline.push(Kind::Sync, Action::Forward, false);
        }
        copies
    }
}

/// A WITH that changes data runs to its end first.
fn changes_data(text: &[u8]) -> bool {
    let words: [&[u8]; 4] = [b"insert", b"update", b"delete", b"merge"];
    scan::scan(text, true).any(|t| words.iter().any(|w| text[t.start..t.end].eq_ignore_ascii_case(w)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_apart_behind_whatever_stands_before() {
        for (text, fold) in [
            ("", Fold::Empty),
            (" ;; -- x\n /* /* */ */ ;", Fold::Empty),
            ("/* not ended", Fold::Utility),
            ("; /* ; */ select 1", Fold::Select),
            ("(VALUES (1))", Fold::Select),
            ("with x as (select 1) select 'delete'", Fold::Select),
            ("WITH x AS (DELETE FROM t RETURNING *) SELECT 1", Fold::Utility),
            ("-- x\nCopy t FROM STDIN", Fold::Copy),
            ("\"copy\"", Fold::Utility),
            ("copyt", Fold::Utility),
            ("SHOW x", Fold::Utility),
            ("INSERT INTO t VALUES (1) RETURNING a", Fold::Utility),
        ] {
            assert_eq!(Fold::of(text.as_bytes()), fold, "{text}");
        }
    }

    #[test]
    fn every_message_of_a_unit_is_owed_an_answer() {
        let mut pipeline = Pipeline::default();
        let mut out = Vec::new();
        assert!(!Fold::Select.put(b"SELECT 1", &mut out, &mut pipeline));
        assert_eq!(pipeline.len(), 5);
        assert!(Fold::Copy.put(b"COPY t TO STDOUT", &mut out, &mut pipeline));
        assert_eq!(pipeline.len(), 9, "its Sync is not sent yet");
    }
}
