//! Statements that want nobody in a database: PostgreSQL copies, renames and drops one only while it is empty.

use super::scan::{self, Kind};

/// The server's template when a CREATE DATABASE names none.
const TEMPLATE: &[u8] = b"template1";

/// Whether this may be a CREATE, ALTER or DROP DATABASE for which nobody should be in `database`. Errs toward yes: the
/// name may stand anywhere in it, and one that is written in escapes (`U&"..."`) may be any.
pub fn wants_empty(text: &[u8], database: &[u8]) -> bool {
    let text = bare(text);
    let says = |word: &[u8]| memchr::memmem::find(&text, word).is_some();
    let names = || says(&bare(database)) || says(b"u&");
    let creates = || begins_with(&text, b"create") && !says(b"template") && database == TEMPLATE;
    !database.is_empty() && (names() || creates())
}

/// Without case and quotes, one of which stands for two in a quoted name.
fn bare(text: &[u8]) -> Vec<u8> {
    text.iter().filter(|b| **b != b'"').map(u8::to_ascii_lowercase).collect()
}

/// Whether the text begins with CREATE, ALTER or DROP DATABASE. Cheap for what does not.
pub fn is_about_a_database(text: &[u8]) -> bool {
    let maybe = matches!(
        text.trim_ascii_start().first(),
        Some(b'c' | b'C' | b'a' | b'A' | b'd' | b'D' | b'-' | b'/')
    );
    let first = |word: &[u8]| begins_with(text, word);
    maybe && (first(b"create") || first(b"alter") || first(b"drop")) && is_word(text, 1, b"database")
}

fn begins_with(text: &[u8], word: &[u8]) -> bool {
    is_word(text, 0, word)
}

fn is_word(text: &[u8], at: usize, word: &[u8]) -> bool {
    let token = scan::scan(text, true).nth(at);
    token.is_some_and(|t| t.kind == Kind::Word && text[t.start..t.end].eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_begins_so_is_about_a_database() {
        for text in [
            "DROP DATABASE a",
            " create  database a",
            "/* tag */ alter database a rename to b",
            "drop/**/database a",
        ] {
            assert!(is_about_a_database(text.as_bytes()), "{text}");
        }
        for text in
            ["", "DROP", "DROP TABLE database", "CREATE TABLE a()", "SELECT 1", "DELETE FROM a", "COMMIT"]
        {
            assert!(!is_about_a_database(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn the_databases_named_and_the_template_should_be_empty() {
        let wants = |text: &str, database: &str| wants_empty(text.as_bytes(), database.as_bytes());
        assert!(wants("DROP DATABASE Shop", "shop") && wants("DROP DATABASE \"Shop\"", "Shop"));
        assert!(!wants("DROP DATABASE shop", "app") && !wants("DROP DATABASE shop", "template1"));
        assert!(wants("CREATE DATABASE shop", "template1") && !wants("CREATE DATABASE shop", "app"));
        assert!(wants("CREATE DATABASE shop TEMPLATE app", "app"));
        assert!(!wants("CREATE DATABASE shop TEMPLATE app", "template1"));
        // However the name is written.
        assert!(wants(r#"DROP DATABASE "sh""Op""#, "sh\"Op") && !wants(r#"DROP DATABASE "sh""Op""#, "app"));
        assert!(
            wants(r#"DROP DATABASE U&"\0073hop""#, "shop") && wants(r#"DROP DATABASE u&"!0073hop""#, "shop")
        );
    }
}
