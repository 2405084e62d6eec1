//! Functions whose effect lasts as long as the server's process: neither the end of a transaction nor DISCARD ALL ends it, and no
//! catalogue tells of all of it.
//!
//! Owns: their names, and where in a text they stand.

use crate::sql::scan::{self, Kind, Token, Underscored};

/// Connections of dblink, a backup that is under way, the origin that is replayed, temporary replication slots.
const NAMES: [(Underscored, Of); 9] = [
    (Underscored::new("dblink_connect"), Of::Any),
    (Underscored::new("dblink_connect_u"), Of::Any),
    (Underscored::new("pg_backup_start"), Of::Any),
    (Underscored::new("pg_start_backup"), Of::Any),
    (Underscored::new("pg_replication_origin_session_setup"), Of::Any),
    (Underscored::new("pg_create_logical_replication_slot"), Of::Slot),
    (Underscored::new("pg_create_physical_replication_slot"), Of::Slot),
    (Underscored::new("pg_copy_logical_replication_slot"), Of::Copy),
    (Underscored::new("pg_copy_physical_replication_slot"), Of::Copy),
];

/// The word may be one of them: told by its first letters.
#[inline]
pub(super) fn may_begin(word: &[u8]) -> bool {
    matches!(word, [b'p' | b'P', b'g' | b'G', b'_', ..] | [b'd' | b'D', b'b' | b'B', ..])
}

/// Most calls in one text whose arguments are looked at.
const LOOKS_MAX: usize = 8;

/// What counts of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// All are meant.
    Any,
    /// The third argument says whether the slot is temporary; without it the slot is not.
    Slot,
    /// The same; without it the slot is what the other one is.
    Copy,
}

/// Some of the names stands somewhere in the text.
pub(super) fn is_mentioned(text: &[u8]) -> bool {
    scan::mentions(text, NAMES.iter().map(|(name, _)| name))
}

/// The text may name one of them, also with escapes: worth a look, or all that is known where it is not known how it is read.
pub(super) fn may_be_named(text: &[u8]) -> bool {
    let escapes = || {
        memchr::memchr(b'\\', text).is_some()
            || memchr::memmem::find(&text.to_ascii_lowercase(), b"uescape").is_some()
    };
    let quoted = || memchr::memchr_iter(b'&', text).any(|at| text.get(at + 1) == Some(&b'"'));
    is_mentioned(text) || (quoted() && escapes())
}

/// The text calls one of them; `unknown`: it may run what stands in its strings, too.
pub(super) fn is_called(text: &[u8], std_strings: bool, unknown: bool) -> bool {
    let mut looks = 0;
    scan::scan(text, std_strings).any(|token| {
        let bytes = &text[token.start..token.end];
        let (known, end) = match token.kind {
            Kind::Word => {
                (NAMES.iter().find(|(known, _)| bytes.eq_ignore_ascii_case(known.name())), token.end)
            }
            Kind::Quoted => (called(&scan::unquoted(bytes)), token.end),
            Kind::UnicodeQuoted => {
                let Some((escape, end)) = escape_behind(text, token.end, std_strings) else { return true };
                (called(&without_escapes(&scan::unquoted(&bytes[2..]), escape)), end)
            }
            Kind::Punctuation => return false,
            _ => return unknown && is_mentioned(bytes),
        };
        known.is_some_and(|&(_, of)| {
            looks += usize::from(of != Of::Any);
            // Each look reads on to the closing parenthesis, and calls nest: only a few are worth it.
            of == Of::Any || looks > LOOKS_MAX || may_be_temporary(text, end, std_strings, of)
        })
    })
}

fn called(name: &[u8]) -> Option<&'static (Underscored, Of)> {
    NAMES.iter().find(|(known, _)| name == known.name())
}

/// What begins an escape in the `U&"name"` that ends before `at`, and where the tokens that say so end. `None`: it is said in
/// another way than `UESCAPE '!'`.
fn escape_behind(text: &[u8], at: usize, std_strings: bool) -> Option<(u8, usize)> {
    let mut tokens = scan::scan_from(text, at, std_strings);
    match tokens.next() {
        Some(Token { start, end, .. }) if is_word(&text[start..end], b"uescape") => {
            let said = tokens.next().filter(|said| said.end - said.start == 3)?;
            Some((text[said.start + 1], said.end))
        }
        _ => Some((b'\\', at)),
    }
}

/// The name that escapes stand for. A character outside ASCII is in none that is looked for.
fn without_escapes(name: &[u8], escape: u8) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, behind)) = rest.split_first() {
        let (skipped, digits) = match behind.first() {
            _ if byte != escape => (0, 0),
            Some(b'+') => (1, 6),
            Some(&next) if next == escape => (1, 0),
            _ => (0, 4),
        };
        let number = behind.get(skipped..skipped + digits).unwrap_or_default();
        let number = std::str::from_utf8(number).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
        plain.push(if digits == 0 { byte } else { number.unwrap_or(u8::MAX) });
        rest = behind.get(skipped + digits..).unwrap_or_default();
    }
    plain
}

/// A slot is made that may be a temporary one, by the arguments that begin at `at`.
fn may_be_temporary(text: &[u8], at: usize, std_strings: bool, of: Of) -> bool {
    let (mut depth, mut commas, mut third) = (0u32, 0, Vec::new());
    for token in scan::scan_from(text, at, std_strings) {
        let bytes = &text[token.start..token.end];
        match (token.kind, bytes) {
            (Kind::Punctuation, b"(" | b"[") => depth += 1,
            _ if depth == 0 => return false,
            (Kind::Punctuation, b")" | b"]") if depth == 1 => {
                let says_no = matches!(third[..], [word] if is_word(word, b"false"));
                return !says_no && (commas >= 2 || of == Of::Copy);
            }
            (Kind::Punctuation, b")" | b"]") => depth -= 1,
            (Kind::Punctuation, b",") if depth == 1 => commas += 1,
            // `temporary => true`
            _ if depth == 1 && is_word(bytes, b"temporary") => return true,
            (Kind::Quoted, _) if bytes == b"\"temporary\"" => return true,
            (Kind::UnicodeQuoted, _) => return true,
            _ if depth == 1 && commas == 2 => third.push(bytes),
            _ => {}
        }
    }
    true
}

fn is_word(bytes: &[u8], word: &[u8]) -> bool {
    bytes.eq_ignore_ascii_case(word)
}

#[cfg(test)]
mod tests {
    use super::super::{Effects, effects, unread};

    #[test]
    fn each_name_begins_as_one() {
        for (name, _) in super::NAMES {
            assert!(super::may_begin(name.name()) && super::may_begin(&name.name().to_ascii_uppercase()));
        }
        assert!(!super::may_begin(b"pgbench_accounts") && !super::may_begin(b"p") && !super::may_begin(b""));
    }

    #[test]
    fn what_only_the_end_of_the_process_ends_is_found() {
        let found = |text: &str| effects(text.as_bytes(), true).contains(Effects::BACKEND);
        for text in [
            "SELECT dblink_connect('a', 'dbname=b')",
            "SELECT x.Dblink_Connect_U ('a')",
            "SELECT (t).dblink_connect FROM (SELECT 'dbname=b'::text t) x",
            "PREPARE p AS SELECT \"dblink_connect\"('a')",
            "SELECT pg_start_backup('a', true, false); SELECT 1",
            "SELECT pg_catalog.pg_backup_start/* */('a')",
            "SELECT pg_replication_origin_session_setup('a')",
            "SELECT pg_create_logical_replication_slot('a', 'b', true)",
            "SELECT pg_create_logical_replication_slot('a', 'b', $1, false)",
            "SELECT pg_create_physical_replication_slot('a', temporary => true)",
            "SELECT pg_create_physical_replication_slot('a', \"temporary\" := true)",
            "SELECT pg_copy_logical_replication_slot('a', 'b')",
            "SELECT pg_copy_physical_replication_slot('a', 'b', true)",
            "DO $$BEGIN PERFORM dblink_connect('a', 'dbname=b'); END$$",
            "SELECT my_execute('SELECT pg_backup_start(''a'')')",
            r#"SELECT U&"dblink_connect"('a')"#,
            r#"SELECT u&"dblink\005fconnect" ('a')"#,
            r#"SELECT x.U&"\+000064blink_connect"('a')"#,
            r#"SELECT U&"dblink!005fconnect" /* */ UESCAPE '!' ('a')"#,
            r#"SELECT U&"dblink!005fconnect" UESCAPE $$!$$ ('a')"#,
            r#"SELECT U&"pg\005fcreate_physical_replication_slot"('a', true, true)"#,
            r#"SELECT U&"pg!005fcreate_physical_replication_slot" UESCAPE '!' ('a', true, true)"#,
            r#"SELECT pg_create_physical_replication_slot('a', U&"tem\0070orary" => true)"#,
        ] {
            assert!(found(text), "{text}");
        }
        for text in [
            "SELECT dblink('dbname=b', 'SELECT 1'), dblink_connections, pg_backup_start_time(), pg_backup_stop()",
            "SELECT a FROM t WHERE b = 'dblink_connect'",
            "SELECT pg_create_logical_replication_slot('a', 'b')",
            "SELECT pg_create_logical_replication_slot('a', f(1, 2, 3), FALSE, true)",
            "SELECT pg_create_physical_replication_slot('temporary', true)",
            "SELECT pg_copy_logical_replication_slot('a', 'b', false)",
            "SELECT pg_replication_origin_session_reset(), pg_drop_replication_slot('a')",
            r#"SELECT U&"d\0061t\+000061", U&"dblink\\005fconnect", U&"\00e9" FROM t"#,
            r#"SELECT U&"dblink\005fconnect" UESCAPE '!' FROM t"#,
            r#"SELECT U&"\00", U&"\", U&"\+0" FROM t"#,
        ] {
            assert!(!found(text), "{text}");
        }
        assert!(unread(b"SELECT '\x81\\'; SELECT dblink_connect('a') --'").contains(Effects::BACKEND));
        assert!(!unread(b"SELECT '\x81\\'").contains(Effects::BACKEND));
    }
}
