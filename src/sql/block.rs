//! Hot path. The statements that open and close a transaction block, in their plain forms.
//!
//! Owns: telling `BEGIN`, `COMMIT` and `ROLLBACK` from everything else. Never: a form that asks for more than the session's
//! own read-committed, read-write block (`AND CHAIN`, `ISOLATION LEVEL SERIALIZABLE`, savepoints): that is nothing plain.

use super::scan::{self, Kind};

/// A text longer than this is not looked at (bytes).
const TEXT_BYTES_MAX: usize = 256;

/// What a text asks for, when that is all that it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// `BEGIN`
    Begin,
    /// `START TRANSACTION`: the same with another tag.
    Start,
    /// `COMMIT`, `END`
    Commit,
    /// `ROLLBACK`, `ABORT`
    Rollback,
}

impl Word {
    /// Its command tag, when it does what it says.
    pub fn tag(self) -> &'static [u8] {
        match self {
            Self::Begin => b"BEGIN",
            Self::Start => b"START TRANSACTION",
            Self::Commit => b"COMMIT",
            Self::Rollback => b"ROLLBACK",
        }
    }

    /// It opens a block.
    pub fn opens(self) -> bool {
        matches!(self, Self::Begin | Self::Start)
    }
}

/// The word that `text` consists of; `None`: anything else, or any doubt.
pub fn word(text: &[u8]) -> Option<Word> {
    // What is not ASCII stands in a comment, and is the server's to refuse if it is no character.
    let plain = || text.is_ascii() && memchr::memchr(0x0b, text).is_none();
    if !may_begin(text) || text.len() > TEXT_BYTES_MAX || !plain() {
        return None;
    }
    let mut rest = scan::scan(text, true).map(|token| (token.kind, &text[token.start..token.end])).peekable();
    let word = match rest.next()? {
        (Kind::Word, first) => which(first)?,
        _ => return None,
    };
    let mut next_is = |wanted: &[u8]| {
        rest.next_if(|(kind, bytes)| *kind == Kind::Word && bytes.eq_ignore_ascii_case(wanted)).is_some()
    };
    let noise = next_is(b"transaction") || (word != Word::Start && next_is(b"work"));
    if word == Word::Start && !noise {
        return None;
    }
    if word.opens() && next_is(b"isolation") {
        let plain = next_is(b"level") && next_is(b"read") && next_is(b"committed");
        if !plain {
            return None;
        }
    } else if word.opens() && next_is(b"read") && !next_is(b"write") {
        return None;
    }
    let _ = rest.next_if(|(_, bytes)| *bytes == b";");
    rest.next().is_none().then_some(word)
}

/// May `text` end a block? PostgreSQL parses such a statement also in one that has failed.
pub fn may_end(text: &[u8]) -> bool {
    const ENDS: [&[u8]; 4] = [b"commit", b"end", b"rollback", b"abort"];
    let mut words =
        scan::scan(text, true).map(|token| &text[token.start..token.end]).skip_while(|word| *word == b";");
    let (Some(first), second) = (words.next(), words.next()) else { return false };
    let is = |word: &[u8], other: &[u8]| word.eq_ignore_ascii_case(other);
    let goes_on = |word| second.is_some_and(|second| is(second, word));
    // What was prepared for two phases is another transaction; a statement that is prepared is none.
    if is(first, b"prepare") {
        goes_on(b"transaction")
    } else {
        ENDS.iter().any(|end| is(first, end)) && !goes_on(b"prepared")
    }
}

/// Is `text` of a kind that never returns rows? False: perhaps.
pub fn returns_nothing(text: &[u8]) -> bool {
    const NEVER: [&[u8]; 34] = [
        b"alter",
        b"analyze",
        b"begin",
        b"checkpoint",
        b"close",
        b"comment",
        b"commit",
        b"copy",
        b"create",
        b"deallocate",
        b"declare",
        b"discard",
        b"do",
        b"drop",
        b"grant",
        b"listen",
        b"load",
        b"lock",
        b"move",
        b"notify",
        b"prepare",
        b"reassign",
        b"refresh",
        b"reindex",
        b"release",
        b"reset",
        b"revoke",
        b"rollback",
        b"savepoint",
        b"set",
        b"start",
        b"truncate",
        b"unlisten",
        b"vacuum",
    ];
    const WITHOUT_RETURNING: [&[u8]; 4] = [b"delete", b"insert", b"merge", b"update"];
    let mut words = scan::scan(text, true).map(|token| &text[token.start..token.end]);
    let Some(first) = words.next() else { return true };
    let is_one_of = |list: &[&[u8]]| list.iter().any(|word| first.eq_ignore_ascii_case(word));
    is_one_of(&NEVER)
        || (is_one_of(&WITHOUT_RETURNING) && !words.any(|word| word.eq_ignore_ascii_case(b"returning")))
}

const WORDS: [(&[u8], Word); 6] = [
    (b"begin", Word::Begin),
    (b"start", Word::Start),
    (b"commit", Word::Commit),
    (b"end", Word::Commit),
    (b"rollback", Word::Rollback),
    (b"abort", Word::Rollback),
];

/// As [`word`], of a text that is prepared with these types of parameters: where it has any, PostgreSQL wants values for them.
pub fn word_prepared(text: &[u8], types: &[u8]) -> Option<Word> {
    word(text).filter(|_| types.is_empty())
}

/// Could one of them stand first? Told by two letters, so that a `SELECT` is not read any further.
pub fn may_begin(text: &[u8]) -> bool {
    match text {
        [first, ..] if !first.is_ascii_alphabetic() => true,
        [first, second, ..] => {
            WORDS.iter().any(|(word, _)| word[..2].eq_ignore_ascii_case(&[*first, *second]))
        }
        _ => false,
    }
}

fn which(first: &[u8]) -> Option<Word> {
    WORDS.iter().find(|(word, _)| first.eq_ignore_ascii_case(word)).map(|(_, word)| *word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_forms_are_known() {
        for (text, is) in [
            ("BEGIN", Word::Begin),
            ("begin;", Word::Begin),
            (" /* x */ BEGIN TRANSACTION ; -- y", Word::Begin),
            ("BEGIN WORK", Word::Begin),
            ("BEGIN ISOLATION LEVEL READ COMMITTED", Word::Begin),
            ("BEGIN READ WRITE", Word::Begin),
            ("START TRANSACTION", Word::Start),
            ("START TRANSACTION READ WRITE;", Word::Start),
            ("COMMIT", Word::Commit),
            ("END TRANSACTION", Word::Commit),
            ("commit work;", Word::Commit),
            ("ROLLBACK", Word::Rollback),
            ("ABORT;", Word::Rollback),
        ] {
            assert_eq!(word(text.as_bytes()), Some(is), "{text}");
        }
    }

    #[test]
    fn a_word_is_known_however_its_letters_are_written() {
        for (text, is) in WORDS {
            let mixed: Vec<u8> = text
                .iter()
                .enumerate()
                .map(|(i, b)| if i % 2 == 1 { b.to_ascii_uppercase() } else { *b })
                .collect();
            for text in [text.to_vec(), text.to_ascii_uppercase(), mixed] {
                let whole = if is == Word::Start { [&text, &b" transaction"[..]].concat() } else { text };
                assert_eq!(word(&whole), Some(is), "{}", String::from_utf8_lossy(&whole));
            }
        }
        assert_eq!([word(b"B"), word(b"be"), word(b"")], [None; 3]);
    }

    #[test]
    fn what_a_failed_block_parses() {
        for text in
            ["COMMIT", "; end", "/**/ Rollback to a", "ABORT;", "prepare TRANSACTION 'x'", "COMMIT AND CHAIN"]
        {
            assert!(may_end(text.as_bytes()), "{text}");
        }
        for text in [
            "",
            ";",
            "PREPARE a AS SELECT 1",
            "PREPARE",
            "COMMIT PREPARED 'x'",
            "rollback /**/ prepared 'x'",
            "SELECT 1",
        ] {
            assert!(!may_end(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn whatever_asks_for_more_is_not() {
        for text in [
            "",
            ";",
            "BEGIN; SELECT 1",
            "BEGIN;;",
            "BEGIN READ ONLY",
            "BEGIN ISOLATION LEVEL READ UNCOMMITTED",
            "BEGIN ISOLATION LEVEL SERIALIZABLE",
            "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY",
            "BEGIN DEFERRABLE",
            "START",
            "START WORK",
            "COMMIT AND CHAIN",
            "COMMIT AND NO CHAIN",
            "COMMIT PREPARED 'x'",
            "ROLLBACK TO x",
            "ROLLBACK TO SAVEPOINT x",
            "SAVEPOINT x",
            "END IF",
            "\"begin\"",
            "BEGIN /* open",
            "BEGIN\u{b}",
            "SELECT 1",
            "INSERT INTO t VALUES (1)",
        ] {
            assert_eq!(word(text.as_bytes()), None, "{text}");
        }
    }
}
