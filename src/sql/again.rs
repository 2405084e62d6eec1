//! Hot path. An INSERT of one row of literals whose text up to the row equals that of an INSERT that was lifted before: only the row is read.
//!
//! Owns: the heads (texts up to the row) lifted recently, the classes of their rows and what was made of them; reading one plain row.
//! Never: a head that [`lift`](super::insert::lift) did not take; a guess: a row that is not plain is not found, and is lifted as
//! if nothing were remembered.
//!
//! ```text
//! INSERT INTO t (a, b) VALUES ( -7 , 'it''s' ) ;
//! '------- the head ---------''---- the row ---'
//!  byte for byte that of a      numbers, strings, NULL, TRUE, FALSE, DEFAULT, with commas and blanks between them,
//!  text that was lifted         each perhaps in parentheses, of the classes of a row that was lifted behind this head; `)`; blanks
//!                               and `;` up to the end
//! ```
//!
//! Why that is enough: no token of a head depends on what follows its `(`, and the lexer's only state is its position, so the text after
//! a head is lifted from the same state as before, with the same shape so far. The rest of the shape is the classes, which are
//! compared. In the row each item ends where the lexer ends it, because a comma or a parenthesis follows, perhaps after blanks:
//! neither continues a number or a word, nor a string, which only a quote on another line would continue.
//! The tests and the fuzz target `sql` compare both ways.

use std::hash::Hash;

use memchr::{memchr, memchr2, memchr3};

use super::cast::Cast;
use super::insert::{self, Class, ITEMS_MAX, Item, Lifted};

/// Heads remembered by one [`Memo`], each in the place of its hash; a newer one replaces an older one there.
const HEADS: usize = 64;

/// Rows of different classes remembered for one head (NULLs here and there).
const ROWS: usize = 8;

/// Longest head that is remembered (bytes).
const HEAD_BYTES_MAX: usize = 1024;

/// Most items of a row that is remembered.
const ROW_ITEMS_MAX: usize = 128;

/// What was made of recent rows: a `T` for each `K` (whose text it is), head and classes of a row.
#[derive(Debug)]
pub struct Memo<K, T> {
    heads: Vec<Option<Head<K, T>>>,
    hasher: ahash::RandomState,
    items: Vec<Item>,
}

#[derive(Debug)]
struct Head<K, T> {
    whose: K,
    text: Vec<u8>,
    rows: Vec<Row<T>>,
    /// The index of the row that is replaced next.
    next: usize,
    /// The index of the row that was kept last.
    newest: usize,
}

#[derive(Debug)]
struct Row<T> {
    classes: Vec<Class>,
    made: T,
}

impl<K, T> Head<K, T> {
    /// The index of the row with these classes, or the one that it is to get.
    fn place_of(&mut self, items: &[Item]) -> usize {
        if let Some(known) = self.rows.iter().position(|known| known.is_like(items)) {
            return known;
        }
        if self.rows.len() < ROWS {
            return self.rows.len();
        }
        let oldest = self.next;
        self.next = (oldest + 1) % ROWS;
        oldest
    }
}

/// A remembered head, and the text that begins with it.
#[derive(Debug)]
pub struct Beginning<'a, 't, K, T> {
    head: &'a Head<K, T>,
    text: &'t [u8],
    items: &'a mut Vec<Item>,
}

impl<'a, K, T> Beginning<'a, '_, K, T> {
    /// What was made of the row that was kept last for this head.
    pub fn newest(&self) -> Option<&'a T> {
        self.head.rows.get(self.head.newest).map(|row| &row.made)
    }

    /// Reads the row. What [`Memo::keep`] was given for the same statement but for the literals' values, and the items of the row, as
    /// `lift` would find them.
    pub fn row(self) -> Option<(&'a T, &'a [Item])> {
        if !read_row(self.text, self.head.text.len(), self.items) {
            return None;
        }
        let items: &'a [Item] = self.items;
        let row = self.head.rows.iter().find(|row| row.is_like(items))?;
        Some((&row.made, items))
    }
}

impl<T> Row<T> {
    fn is_like(&self, items: &[Item]) -> bool {
        self.classes.len() == items.len()
            && self.classes.iter().zip(items).all(|(class, item)| *class == item.class)
    }
}

impl<K, T> Default for Memo<K, T> {
    fn default() -> Self {
        Self { heads: Vec::new(), hasher: ahash::RandomState::new(), items: Vec::new() }
    }
}

impl<K: Hash + Eq, T> Memo<K, T> {
    /// What is remembered of the head of `text`, before its row is read.
    pub fn head<'a, 't>(&'a mut self, whose: &K, text: &'t [u8]) -> Option<Beginning<'a, 't, K, T>> {
        let end = head_end(text)?;
        let place = self.place(whose, &text[..end]);
        let head = self.heads.get(place)?.as_ref()?;
        let same = head.text == text[..end] && head.whose == *whose;
        same.then_some(Beginning { head, text, items: &mut self.items })
    }

    /// Remembers what was made of `text`, which `lift` has just taken apart into `lifted`.
    pub fn keep(&mut self, whose: K, text: &[u8], lifted: &Lifted, made: T) {
        let plain = lifted.rows == 1 && lifted.tail.is_plain() && lifted.items.len() <= ROW_ITEMS_MAX;
        let Some(end) = head_end(text).filter(|end| plain && *end == lifted.head) else { return };
        let place = self.place(&whose, &text[..end]);
        if self.heads.is_empty() {
            self.heads.resize_with(HEADS, || None);
        }
        let slot = &mut self.heads[place];
        let head = match slot {
            Some(head) if head.text == text[..end] && head.whose == whose => head,
            _ => {
                slot.insert(Head { whose, text: text[..end].to_vec(), rows: Vec::new(), next: 0, newest: 0 })
            }
        };
        let row = Row { classes: lifted.items.iter().map(|item| item.class).collect(), made };
        head.newest = head.place_of(&lifted.items);
        match head.rows.get_mut(head.newest) {
            Some(known) => *known = row,
            None => head.rows.push(row),
        }
    }

    fn place(&self, whose: &K, head: &[u8]) -> usize {
        self.hasher.hash_one((whose, head)) as usize % HEADS
    }
}

/// Where the head of `text` seems to end: after the parenthesis that follows VALUES, if that is the first or the second one.
/// Only used to look a head up; its bytes are compared then.
pub fn head_end(text: &[u8]) -> Option<usize> {
    let text = &text[..text.len().min(HEAD_BYTES_MAX)];
    let first = memchr(b'(', text)?;
    if follows_values(&text[..first]) {
        return Some(first + 1);
    }
    let second = first + 1 + memchr(b'(', &text[first + 1..])?;
    follows_values(&text[..second]).then_some(second + 1)
}

fn follows_values(head: &[u8]) -> bool {
    let blanks = head.iter().rev().take_while(|b| is_blank(**b)).count();
    head[..head.len() - blanks].last_chunk::<6>().is_some_and(|word| word.eq_ignore_ascii_case(b"values"))
}

/// Reads the row whose first item begins at or after `at` and after which `text` must end. False: it is not plain.
fn read_row(text: &[u8], mut at: usize, items: &mut Vec<Item>) -> bool {
    items.clear();
    loop {
        let Some((item, end)) = item(text, skip_blanks(text, at)) else { return false };
        items.push(item);
        at = skip_blanks(text, end);
        match text.get(at) {
            Some(b',') if items.len() < ITEMS_MAX => at += 1,
            Some(b')') => return text[at + 1..].iter().all(|&b| b == b';' || is_blank(b)),
            _ => return false,
        }
    }
}

/// The item at `start`, bare or in parentheses, and the byte behind them.
#[inline]
fn item(text: &[u8], start: usize) -> Option<(Item, usize)> {
    if text.get(start) != Some(&b'(') {
        let (class, end) = plain_item(text, start)?;
        return Some((Item { class, start, end }, end));
    }
    let start = skip_blanks(text, start + 1);
    let (class, end) = plain_item(text, start).filter(|(class, _)| *class != Class::Default)?;
    let close = skip_blanks(text, end);
    (text.get(close) == Some(&b')')).then_some((Item { class, start, end }, close + 1))
}

/// The item at `start`, and where it ends if nothing that it could go on with follows.
#[inline]
fn plain_item(text: &[u8], start: usize) -> Option<(Class, usize)> {
    match *text.get(start)? {
        b'0'..=b'9' => number(text, start, Class::Integer, Class::Decimal),
        b'-' => number(text, start + 1, Class::SignedInteger, Class::SignedDecimal),
        b'\'' => string(text, start),
        b'e' | b'E' if text.get(start + 1) == Some(&b'\'') => escaped(text, start),
        byte if byte.is_ascii_alphabetic() => word(text, start),
        _ => None,
    }
}

/// `digits` or `digits.digits`.
#[inline]
fn number(text: &[u8], start: usize, whole: Class, decimal: Class) -> Option<(Class, usize)> {
    let end = digits_end(text, start);
    if end == start {
        return None;
    }
    if text.get(end) != Some(&b'.') {
        return Some((whole, end));
    }
    let point = end + 1;
    let end = digits_end(text, point);
    (end > point).then_some((decimal, end))
}

#[inline]
fn digits_end(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

/// A plain string, perhaps with a type of one word directly behind it, perhaps twice.
#[inline]
fn string(text: &[u8], start: usize) -> Option<(Class, usize)> {
    let end = string_end(text, start)?;
    if text.get(end) != Some(&b':') {
        return Some((Class::String, end));
    }
    let (cast, end) = cast(text, end)?;
    if text.get(end) != Some(&b':') {
        return Some((Class::CastString(cast), end));
    }
    let (again, end) = self::cast(text, end)?;
    again.is_same(cast).then_some((Class::CastString(again), end))
}

/// An `E'...'` with plain escapes.
#[inline]
fn escaped(text: &[u8], start: usize) -> Option<(Class, usize)> {
    let mut at = start + 2;
    loop {
        at += memchr3(b'\'', b'\\', 0x0b, text.get(at..)?)?;
        match (text[at], text.get(at + 1)) {
            (b'\'', Some(b'\'')) => at += 2,
            (b'\'', _) => return Some((Class::Escaped, at + 1)),
            (b'\\', Some(&letter)) if insert::escaped(letter).is_some() => at += 2,
            _ => return None,
        }
    }
}

/// `::` and one word at `start`.
#[inline]
fn cast(text: &[u8], start: usize) -> Option<(Cast, usize)> {
    let name = text[start..].strip_prefix(b"::")?;
    let name = &name[..name.iter().take_while(|b| b.is_ascii_alphanumeric()).count()];
    Some((Cast::of_word(name)?, start + 2 + name.len()))
}

/// Past the plain string whose quote is at `open`. A vertical tab in a text is for `lift` to judge.
#[inline]
fn string_end(text: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    loop {
        at += memchr2(b'\'', 0x0b, text.get(at..)?)?;
        match (text[at], text.get(at + 1)) {
            (b'\'', Some(b'\'')) => at += 2,
            (b'\'', _) => return Some(at + 1),
            _ => return None,
        }
    }
}

fn word(text: &[u8], start: usize) -> Option<(Class, usize)> {
    let letters = text[start..].iter().take_while(|b| b.is_ascii_alphabetic()).count();
    let end = start + letters;
    let is = |word: &[u8]| text[start..end].eq_ignore_ascii_case(word);
    let class = match letters {
        4 if is(b"null") => Class::Null,
        4 if is(b"true") => Class::True,
        5 if is(b"false") => Class::False,
        7 if is(b"default") => Class::Default,
        _ => return None,
    };
    Some((class, end))
}

/// White space of every version.
#[inline]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0c)
}

#[inline]
fn skip_blanks(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(|&b| is_blank(b)) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::insert::lift;

    const THREE: &str = "INSERT INTO t (a, \"(\") Values\n(1, 2)";

    /// A memo that has seen this text, for session 1.
    fn seen(text: &str) -> Memo<u8, &'static str> {
        let (mut memo, mut lifted) = (Memo::default(), Lifted::new());
        assert_eq!(lift(text.as_bytes(), &mut lifted), Ok(()), "{text}");
        memo.keep(1, text.as_bytes(), &lifted, "seen");
        memo
    }

    fn found(first: &str, next: &str) -> Option<Vec<Item>> {
        seen(first).head(&1, next.as_bytes())?.row().map(|(_, items)| items.to_vec())
    }

    #[test]
    fn the_next_row_is_found_with_its_items() {
        let first = "INSERT INTO t VALUES (7, -1.5, 'a', NULL, true, DEFAULT)";
        let next = "INSERT INTO t VALUES ( 007 ,\t-0.0,\n'it''s (\\)',null,TRUE\x0c,Default\r) ; ;";
        let mut lifted = Lifted::new();
        lift(next.as_bytes(), &mut lifted).unwrap();
        assert_eq!(found(first, next), Some(lifted.items.clone()));
        let next = "INSERT INTO t VALUES ((7),( -0.0 ),('a' ),\t(NULL)\n, ( true), DEFAULT)";
        lift(next.as_bytes(), &mut lifted).unwrap();
        assert_eq!(found(first, next), Some(lifted.items));
    }

    #[test]
    fn what_is_not_plain_is_not_found() {
        let first = "INSERT INTO t VALUES (1, 'a')";
        assert!(found(first, "INSERT INTO t VALUES (2, 'b')").is_some());
        for next in [
            "",
            "INSERT INTO t VALUES (",
            "INSERT INTO t VALUES (2",
            "INSERT INTO t VALUES (2,",
            "INSERT INTO t VALUES (2, 'b'",
            "INSERT INTO t VALUES (2, 'b",
            "INSERT INTO t VALUES (2, 'b''",
            "insert INTO t VALUES (2, 'b')",
            "INSERT INTO u VALUES (2, 'b')",
            "INSERT INTO t  VALUES (2, 'b')",
            "INSERT INTO t VALUES (2)",
            "INSERT INTO t VALUES (2, 'b', 'c')",
            "INSERT INTO t VALUES ('b', 2)",
            "INSERT INTO t VALUES (-2, 'b')",
            "INSERT INTO t VALUES (2.0, 'b')",
            "INSERT INTO t VALUES (2., 'b')",
            "INSERT INTO t VALUES (2e1, 'b')",
            "INSERT INTO t VALUES (0x2, 'b')",
            "INSERT INTO t VALUES (2_0, 'b')",
            "INSERT INTO t VALUES (2a, 'b')",
            "INSERT INTO t VALUES (+2, 'b')",
            "INSERT INTO t VALUES ($1, 'b')",
            "INSERT INTO t VALUES (2/**/, 'b')",
            "INSERT INTO t VALUES (2, 'b' --\n)",
            "INSERT INTO t VALUES (2, 'b'\n'c')",
            "INSERT INTO t VALUES (2, 'b'::text)",
            "INSERT INTO t VALUES ((2, 'b'))",
            "INSERT INTO t VALUES (((2)), 'b')",
            "INSERT INTO t VALUES ((2), ('b')",
            "INSERT INTO t VALUES ((2), ('b'",
            "INSERT INTO t VALUES ((2), ('b'\n'c'))",
            "INSERT INTO t VALUES ((2), ('b')::text)",
            "INSERT INTO t VALUES ((2), (DEFAULT))",
            "INSERT INTO t VALUES ((2), CAST('b' AS text))",
            "INSERT INTO t VALUES (2, 'b' || 'c')",
            "INSERT INTO t VALUES (2, E'b')",
            "INSERT INTO t VALUES (2, N'b')",
            "INSERT INTO t VALUES (2, $$b$$)",
            "INSERT INTO t VALUES (2, NULL)",
            "INSERT INTO t VALUES (2, 'b\x0b')",
            "INSERT INTO t VALUES (2,\x0b'b')",
            "INSERT INTO t VALUES (2, 'b')\x0b",
            "INSERT INTO t VALUES (2, 'b'), (3, 'c')",
            "INSERT INTO t VALUES (2, 'b') RETURNING a",
            "INSERT INTO t VALUES (2, 'b') ON CONFLICT DO NOTHING",
            "INSERT INTO t VALUES (2, 'b'); SELECT 1",
            "INSERT INTO t VALUES (2, 'b') -- c",
        ] {
            assert_eq!(found(first, next), None, "{next}");
        }
    }

    #[test]
    fn only_what_was_seen_is_found_and_for_whom_it_was() {
        for first in [
            "INSERT INTO t VALUES (1), (2)",
            "INSERT INTO t VALUES (1) RETURNING a",
            "INSERT INTO t /* VALUES ( */ VALUES (1)",
            "INSERT INTO t (a) /* VALUES ( */ VALUES (1)",
        ] {
            assert_eq!(found(first, first), None, "{first}");
        }
        for (first, next) in [
            ("INSERT INTO t VALUES (1), (2)", "INSERT INTO t VALUES (1, 2)"),
            ("INSERT INTO t /* VALUES ( */ VALUES (1)", "INSERT INTO t /* VALUES (1)"),
            ("INSERT INTO t (a) /* VALUES ( */ VALUES (1)", "INSERT INTO t (a) /* VALUES (1)"),
            ("INSERT INTO t VALUES (1.5)", "INSERT INTO t VALUES (1.)"),
            ("INSERT INTO t VALUES (-1.5)", "INSERT INTO t VALUES (-.5)"),
        ] {
            assert_eq!(found(first, next), None, "{next}");
        }
        assert_eq!(found(THREE, THREE), None, "a third parenthesis is not looked for");
        let text = "INSERT INTO t(a)VALUES(1)";
        let mut memo = seen(text);
        assert!(memo.head(&1, text.as_bytes()).and_then(Beginning::row).is_some());
        assert!(memo.head(&2, text.as_bytes()).is_none());
        assert!(Memo::<u8, ()>::default().head(&1, text.as_bytes()).is_none());
    }

    /// However many there are, the memo stays as large as it is.
    #[test]
    fn the_newest_stay() {
        let mut memo = Memo::default();
        let mut lifted = Lifted::new();
        for n in 0..10 * HEADS {
            for row in 0..3 * ROWS {
                let items =
                    (0..6).map(|bit| if row >> bit & 1 == 0 { "1" } else { "NULL" }).collect::<Vec<_>>();
                let text = format!("INSERT INTO t{n} VALUES ({})", items.join(","));
                lift(text.as_bytes(), &mut lifted).unwrap();
                memo.keep((), text.as_bytes(), &lifted, (n, row));
                assert_eq!(
                    memo.head(&(), text.as_bytes()).and_then(Beginning::row).map(|(made, _)| *made),
                    Some((n, row))
                );
                let newest = memo.head(&(), text.as_bytes()).and_then(|head| head.newest().copied());
                assert_eq!(newest, Some((n, row)));
            }
        }
        assert_eq!(memo.heads.len(), HEADS);
        assert!(memo.heads.iter().flatten().all(|head| head.rows.len() == ROWS));
    }
}
