//! Names of settings that PostgreSQL does not list: `app.user` and the like, which exist because somebody set them.
//!
//! Owns: finding such names in a text, also inside function bodies. Finds too many rather than too few: a name is only
//! asked about.

use memchr::memmem;

/// Longest name that is taken (bytes).
const NAME_BYTES_MAX: usize = 127;

/// Calls `found` with each name like `app.user` that the text may set: behind SET, and as the first argument of
/// `set_config`, in quotes however often doubled.
pub fn custom_settings(text: &[u8], mut found: impl FnMut(&str)) {
    let lower = text.to_ascii_lowercase();
    for at in memmem::find_iter(&lower, b"set") {
        let whole_word = at == 0 || !is_name_byte(lower[at - 1]);
        if !whole_word {
            continue;
        }
        let rest = &lower[at + 3..];
        let rest = match rest.strip_prefix(b"_config") {
            Some(call) => skip(call, b" \t\r\n(e\'\""),
            None => skip_words(rest),
        };
        // No further than one byte too many: `.set.set.set` is a name behind each of its words, and reading each to
        // its end would take time with the square of the text.
        let reach = &rest[..rest.len().min(NAME_BYTES_MAX + 1)];
        let name = &reach[..reach.iter().take_while(|b| is_name_byte(**b) || **b == b'.').count()];
        if name.contains(&b'.')
            && name.len() <= NAME_BYTES_MAX
            && let Ok(name) = std::str::from_utf8(name)
        {
            found(name.trim_matches('.'));
        }
    }
}

/// Past SESSION or LOCAL and blanks.
fn skip_words(rest: &[u8]) -> &[u8] {
    const BLANK: &[u8] = b" \t\r\n\"";
    let rest = skip(rest, BLANK);
    for word in [b"session".as_slice(), b"local"] {
        if let Some(behind) = rest.strip_prefix(word) {
            return skip(behind, BLANK);
        }
    }
    rest
}

fn skip<'a>(rest: &'a [u8], over: &[u8]) -> &'a [u8] {
    &rest[rest.iter().take_while(|b| over.contains(b)).count()..]
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> Vec<String> {
        let mut all = Vec::new();
        custom_settings(text.as_bytes(), |name| all.push(name.to_owned()));
        all
    }

    #[test]
    fn names_with_a_dot_are_found_wherever_they_are_set() {
        assert_eq!(names("SET app.User = '1'"), ["app.user"]);
        assert_eq!(names("set session a.b to 1; SET LOCAL c.d=2"), ["a.b", "c.d"]);
        assert_eq!(names("select set_config('x.y', 'v', false)"), ["x.y"]);
        assert_eq!(names("create function f() as 'select set_config(''my.own'', $1, false)'"), ["my.own"]);
        assert_eq!(names("do $$begin perform pg_catalog.set_config( 'q.r','1',false); end$$"), ["q.r"]);
        assert!(names("SET work_mem = 1; update t set a = t.b").is_empty());
        assert!(names("select offset.a").is_empty());
        assert_eq!(names("SET a_1.b$\u{e9}2-c.d = 1"), ["a_1.b$\u{e9}2"]);
    }

    #[test]
    fn a_text_full_of_the_word_is_read_once() {
        let many = ".set".repeat(1 << 18);
        // All but the last few have a name behind them that is too long to be one. Read to its end each time, this would not end.
        assert_eq!(names(&format!("SET application_name='{many}'")).len(), NAME_BYTES_MAX / 4);
        let call = names(&format!("SELECT set_config('a.b', 'set{many}', false)"));
        assert_eq!((call[0].as_str(), call.len()), ("a.b", 1 + NAME_BYTES_MAX / 4));
        assert_eq!(names(&format!("SET a.{}", "b".repeat(NAME_BYTES_MAX - 2))).len(), 1);
        assert!(names(&format!("SET a.{}", "b".repeat(NAME_BYTES_MAX - 1))).is_empty());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(text: Vec<u8>) {
            custom_settings(&text, |name| assert!(name.len() <= NAME_BYTES_MAX));
        }
    }
}
