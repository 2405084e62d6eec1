//! Hot path. Literal INSERTs taken apart: the text with its literals lifted out is the *shape*, the literals
//! are the items.
//!
//! Owns: which statements can be poured as far as their text says, and where their literals lie. Never: what
//! the table is like, whether a literal fits its column, a parse tree ([`super::meaning`] checks each shape
//! once). On any doubt the answer is [`NotPourable`].
//!
//! Taken: `INSERT INTO [schema.]table [AS alias] [(columns)] VALUES (items), ... [ON CONFLICT ... DO NOTHING | UPDATE] [RETURNING columns]
//! [;]`, each item NULL, DEFAULT, a plain literal, `E'...'`, `$n`, `$n::type`, `$n::text::type`, `'...'::type`, the same type twice, or `NULL::type` ([`super::cast`]), also
//! written as `CAST(... AS type)`, and each but DEFAULT in a pair of parentheses; with `standard_conforming_strings` on. Another item, and what
//! DO UPDATE sets, is computed by the server: here no more is known of it than its tokens, and [`super::expression`] judges it.

mod lift;
#[cfg(test)]
mod tests;

use std::ops::Range;

use memchr::{memchr, memchr2, memrchr};

use super::cast::{Cast, OtherType, Type};
use super::scan;
use lift::Lift;

/// Most items of one row, as PostgreSQL's `MaxTupleAttributeNumber`.
pub const ITEMS_MAX: usize = 1664;

/// Most items of all rows of one statement; one with more is not looked at to its end.
pub const ALL_ITEMS_MAX: usize = 1 << 14;

/// Most rows of a statement that runs as it is and shares a transaction. One transaction holds two such statements, because each row
/// may wait for a lock.
pub const ROWS_SHARED_MAX: usize = 32;

/// The kind of one item of VALUES.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// NULL.
    Null,
    /// `NULL::type` or `CAST(NULL AS type)`.
    CastNull(Cast),
    /// DEFAULT.
    Default,
    /// Digits only.
    Integer,
    /// `-` directly followed by digits.
    SignedInteger,
    /// `digits.digits`.
    Decimal,
    /// `-` directly followed by `digits.digits`.
    SignedDecimal,
    /// TRUE.
    True,
    /// FALSE.
    False,
    /// A plain quoted string, in one piece.
    String,
    /// `E'...'`, in one piece, with no other escapes than [`are_plain_escapes`] knows.
    Escaped,
    /// `'...'::type` or `CAST('...' AS type)`: such a string, with the name of a type behind it, perhaps twice.
    CastString(Cast),
    /// `$n`.
    Param(u16),
    /// `$n::type` or `CAST($n AS type)`.
    CastParam(u16, Cast),
    /// An expression, which stays in the statement as it is written.
    Computed,
}

impl Class {
    /// The number of `$n`.
    pub fn param(self) -> Option<u16> {
        match self {
            Self::Param(n) | Self::CastParam(n, _) => Some(n),
            _ => None,
        }
    }

    /// The type that is named behind it.
    pub fn cast(self) -> Option<Cast> {
        match self {
            Self::CastParam(_, cast) | Self::CastString(cast) | Self::CastNull(cast) => Some(cast),
            _ => None,
        }
    }

    /// The byte for it in a shape; no statement text can contain such bytes outside a literal, so shapes of different classes
    /// are never equal.
    fn marker(self) -> u8 {
        match self {
            Self::Null => 0x01,
            Self::Default => 0x02,
            Self::Integer => 0x03,
            Self::SignedInteger => 0x04,
            Self::Decimal => 0x05,
            Self::SignedDecimal => 0x06,
            Self::True => 0x07,
            Self::False => 0x08,
            Self::String => 0x0e,
            Self::Param(_) => 0x0f,
            Self::CastParam(..) => 0x10,
            Self::CastString(_) => 0x11,
            Self::CastNull(_) => 0x12,
            Self::Escaped => 0x13,
            Self::Computed => 0x14,
        }
    }
}

/// One item: its class and its place in the text, with its quotes and without parentheses around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub class: Class,
    /// Its first byte.
    pub start: usize,
    /// The byte after its last.
    pub end: usize,
}

impl Item {
    /// Its bytes in the text that was lifted, quotes included.
    pub fn bytes<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.start..self.end]
    }
}

/// What keeps the rows from leaving as a COPY: clauses after them, or expressions in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tail {
    /// A value is an expression.
    pub computed: bool,
    /// ON CONFLICT [(columns) | ON CONSTRAINT name] DO NOTHING, or DO UPDATE SET column = expression, ... [WHERE condition].
    pub conflict: bool,
    /// RETURNING, of names, `*` and NULL.
    pub returning: bool,
}

impl Tail {
    /// Nothing: the answer is a tag that is known beforehand.
    pub fn is_plain(self) -> bool {
        self.plain().is_ok()
    }

    /// As [`Tail::is_plain`], with what it is if it is not.
    ///
    /// # Errors
    /// ON CONFLICT, RETURNING or an expression.
    pub fn plain(self) -> Result<(), NotPourable> {
        match self {
            Self { conflict: true, .. } => Err(NotPourable::OnConflict),
            Self { returning: true, .. } => Err(NotPourable::Returning),
            Self { computed: true, .. } => Err(NotPourable::Expression),
            Self { conflict: false, returning: false, computed: false } => Ok(()),
        }
    }

    /// May it stand behind so many rows?
    ///
    /// # Errors
    /// They are too many for a statement that leaves as it is.
    pub fn allows(self, rows: usize) -> Result<(), NotPourable> {
        if self.is_plain() || rows <= ROWS_SHARED_MAX { Ok(()) } else { Err(NotPourable::ManyRows) }
    }
}

/// A statement taken apart. Meant to be kept and filled again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lifted {
    /// The text with each literal replaced by a marker of its class, comments and white space normalised
    /// away, names and keywords as spelled (keywords in lower case), and the first row alone. Equal shapes: the
    /// same statement but for the literals' values and the further rows.
    pub shape: Vec<u8>,
    /// The items of all rows, in order.
    pub items: Vec<Item>,
    /// Rows, each of as many items.
    pub rows: usize,
    /// What stands behind them.
    pub tail: Tail,
    /// The types that its casts name, beside PostgreSQL's own.
    pub types: Vec<OtherType>,
    /// Highest parameter number in what is computed; 0: none.
    computed_params: u16,
    /// Where the first row's items begin in the text: behind its parenthesis.
    pub(super) head: usize,
    /// Where they stand in the shape.
    row: Range<usize>,
}

impl Lifted {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// The items of row `row`, from 0.
    pub fn row(&self, row: usize) -> &[Item] {
        let width = self.items.len() / self.rows.max(1);
        self.items.get(row * width..(row + 1) * width).unwrap_or_default()
    }

    /// Highest parameter number of the first row, and of what is computed; 0: none.
    pub fn params(&self) -> u16 {
        let of_items = self.row(0).iter().filter_map(|item| item.class.param());
        of_items.max().unwrap_or(0).max(self.computed_params)
    }

    /// Does it name types that are looked for in `search_path`?
    pub fn looks_up_types(&self) -> bool {
        self.items.iter().filter_map(|item| item.class.cast()).any(|cast| cast.looked_up)
    }

    /// Rows that are run at once: all of a statement that leaves as it is, otherwise one.
    pub fn rows_at_once(&self) -> usize {
        if self.tail.is_plain() { 1 } else { self.rows }
    }

    /// Has row `row` the classes of the one before it?
    pub fn is_like_before(&self, row: usize) -> bool {
        let Some(before) = row.checked_sub(1) else { return false };
        self.row(row).iter().zip(self.row(before)).all(|(a, b)| a.class == b.class)
    }

    /// The shape of the statement with row `row` alone, into `out`. Only for rows without parameters. `text` is what was lifted.
    pub fn put_shape(&self, text: &[u8], row: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.shape[..self.row.start]);
        put_markers(text, self.row(row), &self.types, out);
        out.extend_from_slice(&self.shape[self.row.end..]);
    }

    /// The statement with row `row` alone and without comments, into `out`. `text` is what was lifted.
    pub fn put_statement(&self, text: &[u8], row: usize, out: &mut Vec<u8>) {
        self.put_rows(row..row + 1, out, |item, out| out.extend_from_slice(item.bytes(text)));
    }

    /// As [`Lifted::put_statement`], with all rows.
    pub fn put_whole(&self, text: &[u8], out: &mut Vec<u8>) {
        self.put_rows(0..self.rows, out, |item, out| out.extend_from_slice(item.bytes(text)));
    }

    /// As [`Lifted::put_statement`] of so many rows, each like the first one, with a parameter in the place of each item that is
    /// a literal.
    pub fn put_with_parameters(&self, text: &[u8], rows: usize, out: &mut Vec<u8>) {
        let mut number = 0;
        self.put_rows(std::iter::repeat_n(0, rows), out, |item, out| match item.class {
            Class::Default => out.extend_from_slice(b"DEFAULT"),
            Class::Computed => out.extend_from_slice(item.bytes(text)),
            _ => {
                number += 1;
                out.extend_from_slice(format!("${number}").as_bytes());
            }
        });
    }

    fn put_rows(
        &self,
        rows: impl IntoIterator<Item = usize>,
        out: &mut Vec<u8>,
        mut put: impl FnMut(&Item, &mut Vec<u8>),
    ) {
        out.extend_from_slice(&self.shape[..self.row.start]);
        for (at, row) in rows.into_iter().enumerate() {
            out.extend_from_slice(if at == 0 { b"" } else { b"),(" });
            for (i, item) in self.row(row).iter().enumerate() {
                out.extend_from_slice(if i == 0 { b"" } else { b"," });
                put(item, out);
            }
        }
        out.extend_from_slice(&self.shape[self.row.end..]);
    }
}

/// What is computed is part of the shape as it is written: the lexer, which ends it at a comma, ends it in the same place each time.
fn put_markers(text: &[u8], row: &[Item], types: &[OtherType], out: &mut Vec<u8>) {
    for (i, item) in row.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b"" } else { b"," });
        out.push(item.class.marker());
        if item.class == Class::Computed {
            out.extend_from_slice(item.bytes(text));
        }
        if let Some(n) = item.class.param() {
            out.extend_from_slice(&n.to_be_bytes());
        }
        if let Some(cast) = item.class.cast() {
            put_cast(cast, types, out);
        }
    }
}

fn put_cast(cast: Cast, types: &[OtherType], out: &mut Vec<u8>) {
    out.push(u8::from(cast.through_text));
    out.extend_from_slice(&cast.typmod.to_be_bytes());
    match cast.to {
        Type::Own(oid) => out.extend_from_slice(&oid.to_be_bytes()),
        // No type of PostgreSQL's own has this number. A name has no zero byte.
        Type::Named(place) => {
            out.extend_from_slice(&[0, 0]);
            if let Some(OtherType { schema, name, array }) = types.get(usize::from(place)) {
                out.extend_from_slice(schema.as_deref().unwrap_or_default().as_bytes());
                out.push(0);
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(&[0, u8::from(*array)]);
            }
        }
    }
}

/// Why a statement's text rules pouring out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotPourable {
    /// Its first word is not INSERT.
    NotInsert,
    /// WITH before or SELECT, TABLE, parentheses behind the columns: not VALUES.
    NotValues,
    /// DEFAULT VALUES.
    DefaultValues,
    /// OVERRIDING ... VALUE.
    Overriding,
    /// `INSERT INTO t AS old`, `new` or `excluded`.
    Alias,
    /// `INSERT INTO t (a.b)` or `(a[1])`.
    Subscript,
    /// A name of three parts, or longer than 63 bytes, or with letters outside ASCII and no quotes, or an alias with such, or `U&""`.
    Name,
    /// Rows with parameters that are not alike, or too many rows.
    ManyRows,
    /// Too long also without its literals and but for its first row.
    LongText,
    /// ON CONFLICT with more than columns or a constraint's name, or DO UPDATE with an expression that is not harmless.
    OnConflict,
    /// RETURNING of more than names.
    Returning,
    /// Something follows the `;`.
    SecondStatement,
    /// Not a plain literal, and no expression that is harmless ([`super::expression`]), or one with constants that are others each time.
    Expression,
    /// `E''` with `\'`, a code or an unknown letter in it, `U&''`, `$$`, a bit or hex string, one continued on another line, a number with an exponent ...
    Literal,
    /// Parameters that are not `$1` to `$n`, each once.
    Params,
    /// More items or other items than columns, or too many.
    Count,
    /// A comment with bytes outside ASCII. Comments do not leave with what is poured, and the server refuses a text for bytes that
    /// are no characters of the client's encoding, wherever they stand.
    Comment,
    /// A literal that the server read when the statement was parsed, and that might mean something else now.
    ReadAtParse,
    /// The text does not follow the syntax; the server will say how.
    Syntax,
    /// PostgreSQL's own parser saw something else than this scan.
    Disagreement,
}

impl NotPourable {
    /// A stable word for counters and the console.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotInsert => "not_insert",
            Self::NotValues => "not_values",
            Self::DefaultValues => "default_values",
            Self::Overriding => "overriding",
            Self::Alias => "alias",
            Self::Subscript => "subscript",
            Self::Name => "name",
            Self::ManyRows => "many_rows",
            Self::LongText => "long_text",
            Self::OnConflict => "on_conflict",
            Self::Returning => "returning",
            Self::SecondStatement => "second_statement",
            Self::Expression => "expression",
            Self::Literal => "literal",
            Self::Params => "params",
            Self::Count => "count",
            Self::Comment => "comment",
            Self::ReadAtParse => "literal read at parse",
            Self::Syntax => "syntax",
            Self::Disagreement => "disagreement",
        }
    }
}

impl std::fmt::Display for NotPourable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for NotPourable {}

/// The table that an INSERT names, as it is written there; for people to read. `None`: the text does not begin with
/// `INSERT INTO` and a name.
pub fn table_named(text: &[u8]) -> Option<&[u8]> {
    let word = |word: &[u8], at: usize| {
        let start = scan::skip_blank(text, at)?;
        let end = start + word.len();
        text.get(start..end)?.eq_ignore_ascii_case(word).then_some(end)
    };
    let start = scan::skip_blank(text, word(b"into", word(b"insert", 0)?)?)?;
    let mut quoted = false;
    let ends = |&b: &u8| {
        quoted ^= b == b'"';
        !quoted && (b.is_ascii_whitespace() || matches!(b, b'(' | b';'))
    };
    let name = &text[start..];
    let name = &name[..name.iter().position(ends).unwrap_or(name.len())];
    (!name.is_empty()).then_some(name)
}

/// Surely not an INSERT that can be lifted: the first word is another one. Costs a few nanoseconds.
#[inline]
pub fn quick_reject(text: &[u8]) -> bool {
    let start = match text.first() {
        Some(b'i' | b'I') => 0,
        Some(&b) if b.is_ascii_alphabetic() => return true,
        _ => match scan::skip_blank(text, 0) {
            Some(start) => start,
            None => return true,
        },
    };
    !text.get(start..start + 6).is_some_and(|word| word.eq_ignore_ascii_case(b"insert"))
}

/// Take the INSERT in `text` apart into `out`, whose old content goes. The session's
/// `standard_conforming_strings` must be on, and its client encoding one in which every byte of a multibyte
/// character is above 0x7f.
///
/// # Errors
/// Why the text can't be poured; `out` holds nothing of use then.
pub fn lift(text: &[u8], out: &mut Lifted) -> Result<(), NotPourable> {
    out.shape.clear();
    out.items.clear();
    out.types.clear();
    (out.rows, out.tail, out.head, out.row) = (0, Tail::default(), 0, 0..0);
    out.computed_params = 0;
    if quick_reject(text) {
        return Err(NotPourable::NotInsert);
    }
    if memchr(0x0b, text).is_some() {
        return Err(NotPourable::Syntax); // white space from 16 on, an error before
    }
    Lift::new(text, out).statement()
}

/// The string of an item `'...'::type` or `CAST('...' AS type)`, quotes included. Nothing else in it has a quote.
pub fn without_cast(item: &[u8]) -> &[u8] {
    let quotes = memchr(b'\'', item).zip(memrchr(b'\'', item));
    quotes.map_or(item, |(first, last)| &item[first..=last])
}

/// What stands between the quotes of an `E'...'`: quotes doubled, and behind a backslash another one, which is what libpq and
/// drivers write, or `n`, `t` or `r`. Codes are not taken: the server judges the characters that come out. Nor is `\'`: a
/// setting (`backslash_quote`) refuses it.
pub fn are_plain_escapes(body: &[u8]) -> bool {
    let mut at = 0;
    while let Some(next) = body.get(at..).and_then(|rest| memchr2(b'\'', b'\\', rest)) {
        at += next;
        let second = body.get(at + 1).copied();
        let known =
            if body[at] == b'\'' { second == Some(b'\'') } else { second.and_then(escaped).is_some() };
        if !known {
            return false;
        }
        at += 2;
    }
    true
}

/// The byte that this one stands for behind a backslash.
pub(super) fn escaped(letter: u8) -> Option<u8> {
    match letter {
        b'\\' => Some(b'\\'),
        b'n' => Some(b'\n'),
        b't' => Some(b'\t'),
        b'r' => Some(b'\r'),
        _ => None,
    }
}

/// Appends the value of an `E'...'` with [plain escapes](are_plain_escapes); `body` is what stands between its quotes. False, with
/// `out` as it was, when it has others.
pub fn put_unescaped(body: &[u8], out: &mut Vec<u8>) -> bool {
    if !are_plain_escapes(body) {
        return false;
    }
    let mut rest = body;
    while let Some(at) = memchr2(b'\'', b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        // Of two quotes the second one.
        out.extend(rest.get(at + 1).map(|&second| escaped(second).unwrap_or(second)));
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    true
}

/// Undouble the quotes of a plain string literal (quotes included): the pieces of its value, in order. A
/// piece is empty only if the value is.
pub fn decode_string(literal: &[u8]) -> Pieces<'_> {
    Pieces { rest: literal.get(1..literal.len().saturating_sub(1)).filter(|s| !s.is_empty()) }
}

/// See [`decode_string`].
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest.take()?;
        match memchr(b'\'', rest) {
            None => Some(rest),
            Some(quote) => {
                self.rest = rest.get(quote + 2..).filter(|s| !s.is_empty());
                Some(&rest[..=quote])
            }
        }
    }
}
