//! Hot path. Literal INSERTs taken apart: the text with its literals lifted out is the *shape*, the literals
//! are the items.
//!
//! Owns: which statements can be poured as far as their text says, and where their literals lie. Never: what
//! the table is like, whether a literal fits its column, a parse tree ([`super::meaning`] checks each shape
//! once). On any doubt the answer is [`NotPourable`].
//!
//! Taken: `INSERT INTO [schema.]table [AS alias] [(columns)] VALUES (items), ... [ON CONFLICT ... DO NOTHING] [RETURNING columns]
//! [;]`, each item NULL, DEFAULT, a plain literal, `$n`, `$n::type`, `$n::text::type`, `'...'::type` or `NULL::type` ([`super::cast`]), also
//! written as `CAST(... AS type)`, and each but DEFAULT in a pair of parentheses; with `standard_conforming_strings` on.

use std::ops::Range;

use memchr::{memchr, memrchr};

use super::cast::{Cast, OtherType, Type, TypeName};
use super::scan::{self, Kind, Scanner, Token};

/// Longest identifier that the server does not cut (bytes).
pub const IDENTIFIER_BYTES_MAX: usize = 63;

/// Most items of one row, as PostgreSQL's `MaxTupleAttributeNumber`.
pub const ITEMS_MAX: usize = 1664;

/// Most items of all rows of one statement; one with more is not looked at to its end.
pub const ALL_ITEMS_MAX: usize = 1 << 14;

/// What stands in one place of VALUES.
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
    /// `'...'::type` or `CAST('...' AS type)`: such a string, with the name of a type behind it.
    CastString(Cast),
    /// `$n`.
    Param(u16),
    /// `$n::type` or `CAST($n AS type)`.
    CastParam(u16, Cast),
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

    /// What stands for it in a shape; no statement text can contain such bytes outside a literal, so shapes
    /// of different classes never meet.
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
        }
    }
}

/// One item: its class and where it stands in the text, quotes included and parentheses round it left out.
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

/// What stands behind the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tail {
    /// ON CONFLICT [(columns) | ON CONSTRAINT name] DO NOTHING.
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
    /// ON CONFLICT or RETURNING.
    pub fn plain(self) -> Result<(), NotPourable> {
        match self {
            Self { conflict: true, .. } => Err(NotPourable::OnConflict),
            Self { returning: true, .. } => Err(NotPourable::Returning),
            Self { conflict: false, returning: false } => Ok(()),
        }
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

    /// Highest parameter number of the first row; 0: none.
    pub fn params(&self) -> u16 {
        self.row(0).iter().filter_map(|item| item.class.param()).max().unwrap_or(0)
    }

    /// Does it name types that are looked for in `search_path`?
    pub fn looks_up_types(&self) -> bool {
        self.items.iter().filter_map(|item| item.class.cast()).any(|cast| cast.looked_up)
    }

    /// Has row `row` the classes of the one before it?
    pub fn is_like_before(&self, row: usize) -> bool {
        let Some(before) = row.checked_sub(1) else { return false };
        self.row(row).iter().zip(self.row(before)).all(|(a, b)| a.class == b.class)
    }

    /// The shape of the statement with row `row` alone, into `out`. Only for rows without parameters.
    pub fn put_shape(&self, row: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.shape[..self.row.start]);
        put_markers(self.row(row), &self.types, out);
        out.extend_from_slice(&self.shape[self.row.end..]);
    }

    /// The statement with row `row` alone and without comments, into `out`. `text` is what was lifted.
    pub fn put_statement(&self, text: &[u8], row: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.shape[..self.row.start]);
        for (i, item) in self.row(row).iter().enumerate() {
            out.extend_from_slice(if i == 0 { b"" } else { b"," });
            out.extend_from_slice(item.bytes(text));
        }
        out.extend_from_slice(&self.shape[self.row.end..]);
    }

    /// As [`Lifted::put_statement`] of the first row, with a parameter in the place of each item that is not DEFAULT.
    pub fn put_with_parameters(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.shape[..self.row.start]);
        let mut number = 0;
        for (i, item) in self.row(0).iter().enumerate() {
            out.extend_from_slice(if i == 0 { b"" } else { b"," });
            if item.class == Class::Default {
                out.extend_from_slice(b"DEFAULT");
            } else {
                number += 1;
                out.extend_from_slice(format!("${number}").as_bytes());
            }
        }
        out.extend_from_slice(&self.shape[self.row.end..]);
    }
}

fn put_markers(row: &[Item], types: &[OtherType], out: &mut Vec<u8>) {
    for (i, item) in row.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b"" } else { b"," });
        out.push(item.class.marker());
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
    /// A name of three parts, or longer than 63 bytes, or with letters outside ASCII and no quotes, or `U&""`.
    Name,
    /// Rows with parameters that are not alike, or too many rows.
    ManyRows,
    /// ON CONFLICT with more than columns or a constraint's name, or DO UPDATE.
    OnConflict,
    /// RETURNING of more than names.
    Returning,
    /// Something follows the `;`.
    SecondStatement,
    /// A cast, operator, call, typed literal: not a plain literal.
    Expression,
    /// `E''`, `U&''`, `$$`, a bit or hex string, one continued on another line, a number with an exponent ...
    Literal,
    /// Parameters that are not `$1` to `$n`, each once.
    Params,
    /// More items or other items than columns, or too many.
    Count,
    /// `standard_conforming_strings` is off.
    StringsNotStandard,
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
            Self::OnConflict => "on_conflict",
            Self::Returning => "returning",
            Self::SecondStatement => "second_statement",
            Self::Expression => "expression",
            Self::Literal => "literal",
            Self::Params => "params",
            Self::Count => "count",
            Self::StringsNotStandard => "strings_not_standard",
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
    if quick_reject(text) {
        return Err(NotPourable::NotInsert);
    }
    if memchr(0x0b, text).is_some() {
        return Err(NotPourable::Syntax); // white space from 16 on, an error before
    }
    let tokens = scan::scan(text, true);
    let mut lift = Lift { text, tokens, read: 0, strange: false, peeked: None, columns: 0, out };
    lift.statement()
}

/// The string of an item `'...'::type` or `CAST('...' AS type)`, quotes included. Nothing else in it has a quote.
pub fn without_cast(item: &[u8]) -> &[u8] {
    let quotes = memchr(b'\'', item).zip(memrchr(b'\'', item));
    quotes.map_or(item, |(first, last)| &item[first..=last])
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

/// One lift.
struct Lift<'a, 'o> {
    text: &'a [u8],
    tokens: Scanner<'a>,
    /// Where the last token ended.
    read: usize,
    /// What stood between two tokens was not ASCII.
    strange: bool,
    peeked: Option<Option<Token>>,
    columns: usize,
    out: &'o mut Lifted,
}

impl<'a> Lift<'a, '_> {
    fn statement(&mut self) -> Result<(), NotPourable> {
        self.keyword(b"insert", NotPourable::NotInsert)?;
        self.keyword(b"into", NotPourable::Syntax)?;
        self.target()?;
        self.alias()?;
        self.column_list()?;
        self.values()?;
        self.rows()?;
        self.tail()?;
        if self.strange {
            return Err(NotPourable::Comment);
        }
        self.check_params()
    }

    fn next(&mut self) -> Option<Token> {
        match self.peeked.take() {
            Some(token) => token,
            None => self.scan(),
        }
    }

    fn peek(&mut self) -> Option<Token> {
        if self.peeked.is_none() {
            self.peeked = Some(self.scan());
        }
        self.peeked.flatten()
    }

    #[inline]
    fn scan(&mut self) -> Option<Token> {
        let token = self.tokens.next();
        let (start, end) = token.map_or((self.text.len(), self.text.len()), |token| (token.start, token.end));
        self.strange |= !self.text[self.read..start].is_ascii();
        self.read = end;
        token
    }

    fn bytes(&self, token: Token) -> &'a [u8] {
        &self.text[token.start..token.end]
    }

    fn is_word(&self, token: Option<Token>, word: &[u8]) -> bool {
        token.is_some_and(|t| t.kind == Kind::Word && self.bytes(t).eq_ignore_ascii_case(word))
    }

    fn is_byte(&self, token: Option<Token>, byte: u8) -> bool {
        token.is_some_and(|t| t.kind == Kind::Punctuation && self.text[t.start] == byte)
    }

    /// The next token must be this keyword.
    fn keyword(&mut self, word: &[u8], otherwise: NotPourable) -> Result<(), NotPourable> {
        let token = self.next();
        if !self.is_word(token, word) {
            return Err(otherwise);
        }
        self.out.shape.extend_from_slice(word);
        self.out.shape.push(b' ');
        Ok(())
    }

    /// `name` or `schema.name`.
    fn target(&mut self) -> Result<(), NotPourable> {
        self.name()?;
        let dot = self.peek();
        if self.is_byte(dot, b'.') {
            self.next();
            self.out.shape.push(b'.');
            self.name()?;
            let dot = self.peek();
            if self.is_byte(dot, b'.') {
                return Err(NotPourable::Name);
            }
        }
        Ok(())
    }

    /// `AS alias`: another name for the table in what follows the rows.
    fn alias(&mut self) -> Result<(), NotPourable> {
        let word = self.peek();
        if !self.is_word(word, b"as") {
            return Ok(());
        }
        self.out.shape.push(b' ');
        self.keyword(b"as", NotPourable::Syntax)?;
        self.name()
    }

    /// One identifier, into the shape as spelled.
    fn name(&mut self) -> Result<(), NotPourable> {
        let token = self.next().ok_or(NotPourable::Syntax)?;
        let bytes = self.bytes(token);
        let length = match token.kind {
            Kind::Word if !bytes.is_ascii() => return Err(NotPourable::Name),
            Kind::Word => bytes.len(),
            // A doubled quote counts twice: on the safe side.
            Kind::Quoted => bytes.len() - 2,
            Kind::UnicodeQuoted => return Err(NotPourable::Name),
            _ => return Err(NotPourable::Syntax),
        };
        if length == 0 || length > IDENTIFIER_BYTES_MAX {
            return Err(NotPourable::Name);
        }
        self.out.shape.extend_from_slice(bytes);
        Ok(())
    }

    fn column_list(&mut self) -> Result<(), NotPourable> {
        let open = self.peek();
        if !self.is_byte(open, b'(') {
            return Ok(());
        }
        self.next();
        let first = self.peek();
        if self.is_byte(first, b'(') || self.is_word(first, b"select") || self.is_word(first, b"with") {
            return Err(NotPourable::NotValues);
        }
        self.out.shape.push(b'(');
        loop {
            self.name()?;
            self.columns += 1;
            match self.next() {
                t if self.is_byte(t, b',') => self.out.shape.push(b','),
                t if self.is_byte(t, b')') => break,
                t if self.is_byte(t, b'.') || self.is_byte(t, b'[') => return Err(NotPourable::Subscript),
                _ => return Err(NotPourable::Syntax),
            }
            if self.columns >= ITEMS_MAX {
                return Err(NotPourable::Count);
            }
        }
        self.out.shape.push(b')');
        Ok(())
    }

    /// VALUES, or why not.
    fn values(&mut self) -> Result<(), NotPourable> {
        let token = self.peek();
        let why = match token {
            t if self.is_word(t, b"default") => NotPourable::DefaultValues,
            t if self.is_word(t, b"overriding") => NotPourable::Overriding,
            t if self.is_byte(t, b'(') || self.is_word(t, b"select") => NotPourable::NotValues,
            t if self.is_word(t, b"with") || self.is_word(t, b"table") => NotPourable::NotValues,
            _ => NotPourable::Syntax,
        };
        self.out.shape.push(b' ');
        self.keyword(b"values", why)
    }

    fn rows(&mut self) -> Result<(), NotPourable> {
        self.row()?;
        let width = self.out.items.len();
        if self.columns != 0 && self.columns != width {
            return Err(NotPourable::Count);
        }
        self.out.rows = 1;
        self.out.shape.push(b'(');
        let start = self.out.shape.len();
        put_markers(&self.out.items, &self.out.types, &mut self.out.shape);
        self.out.row = start..self.out.shape.len();
        self.out.shape.push(b')');
        loop {
            let comma = self.peek();
            if !self.is_byte(comma, b',') {
                return Ok(());
            }
            self.next();
            self.row()?;
            self.out.rows += 1;
            if self.out.items.len() != self.out.rows * width {
                return Err(NotPourable::Count);
            }
            if self.out.items.len() > ALL_ITEMS_MAX {
                return Err(NotPourable::ManyRows);
            }
        }
    }

    fn row(&mut self) -> Result<(), NotPourable> {
        let Some(open) = self.next().filter(|&open| self.is_byte(Some(open), b'(')) else {
            return Err(NotPourable::Syntax);
        };
        let begin = self.out.items.len();
        if begin == 0 {
            self.out.head = open.end;
        }
        loop {
            let item = self.item()?;
            self.out.items.push(item);
            if self.out.items.len() - begin > ITEMS_MAX {
                return Err(NotPourable::Count);
            }
            match self.next() {
                t if self.is_byte(t, b',') => {}
                t if self.is_byte(t, b')') => return Ok(()),
                None => return Err(NotPourable::Syntax),
                Some(t) => return Err(unlike_literal(t.kind)),
            }
        }
    }

    fn item(&mut self) -> Result<Item, NotPourable> {
        let token = self.next().ok_or(NotPourable::Syntax)?;
        if !self.is_byte(Some(token), b'(') {
            return self.bare_item(token);
        }
        let inner = self.next().ok_or(NotPourable::Syntax)?;
        let item = self.bare_item(inner)?;
        self.close()?;
        // Not every version takes one there.
        if item.class == Class::Default { Err(NotPourable::Expression) } else { Ok(item) }
    }

    /// The next token must be `)`; where it ends.
    fn close(&mut self) -> Result<usize, NotPourable> {
        match self.next() {
            Some(token) if self.is_byte(Some(token), b')') => Ok(token.end),
            None => Err(NotPourable::Syntax),
            Some(token) => Err(unlike_literal(token.kind)),
        }
    }

    fn bare_item(&mut self, token: Token) -> Result<Item, NotPourable> {
        let (class, end) = match token.kind {
            Kind::String => self.string_item(token)?,
            Kind::Integer => (Class::Integer, token.end),
            Kind::Decimal => (Class::Decimal, token.end),
            Kind::Word if self.bytes(token).eq_ignore_ascii_case(b"cast") => self.cast_item(token.start)?,
            Kind::Word => self.word_item(token)?,
            Kind::Param => self.param_item(token)?,
            Kind::Operator if self.bytes(token) == b"-" => self.signed(token)?,
            kind => return Err(unlike_literal(kind)),
        };
        Ok(Item { class, start: token.start, end })
    }

    /// NULL, perhaps with the name of a type, DEFAULT, TRUE or FALSE.
    fn word_item(&mut self, token: Token) -> Result<(Class, usize), NotPourable> {
        let class = self.word_class(token)?;
        let cast = if class == Class::Null { self.cast()? } else { None };
        Ok(cast.map_or((class, token.end), |(cast, end)| (Class::CastNull(cast), end)))
    }

    fn word_class(&self, token: Token) -> Result<Class, NotPourable> {
        let bytes = self.bytes(token);
        let classes: [(&[u8], Class); 4] = [
            (b"null", Class::Null),
            (b"default", Class::Default),
            (b"true", Class::True),
            (b"false", Class::False),
        ];
        let found = classes.iter().find(|(word, _)| bytes.eq_ignore_ascii_case(word));
        found.map(|(_, class)| *class).ok_or(NotPourable::Expression)
    }

    /// `$n`, perhaps with the name of its type, or with `text` and that.
    fn param_item(&mut self, token: Token) -> Result<(Class, usize), NotPourable> {
        let number = param(self.bytes(token))?;
        let Some((cast, end)) = self.cast()? else { return Ok((Class::Param(number), token.end)) };
        let outer = if cast.is_text() { self.cast()? } else { None };
        let (cast, end) = outer.map_or((cast, end), |(outer, end)| (outer.behind(cast), end));
        Ok((Class::CastParam(number, cast), end))
    }

    /// A plain string, perhaps with the name of a type.
    fn string_item(&mut self, token: Token) -> Result<(Class, usize), NotPourable> {
        match self.cast()? {
            None => Ok((Class::String, token.end)),
            // A quote in a comment before the name: see `without_cast`.
            Some((_, end)) if memchr(b'\'', &self.text[token.end..end]).is_some() => {
                Err(NotPourable::Expression)
            }
            Some((cast, end)) => Ok((Class::CastString(cast), end)),
        }
    }

    /// `CAST(... AS type)` of a parameter, a plain string or NULL, or `CAST($n::text AS type)`; it begins at `start`.
    fn cast_item(&mut self, start: usize) -> Result<(Class, usize), NotPourable> {
        let open = self.next();
        if !self.is_byte(open, b'(') {
            return Err(NotPourable::Expression);
        }
        let value = self.next().ok_or(NotPourable::Syntax)?;
        let inner = if value.kind == Kind::Param { self.cast()? } else { None };
        let word = self.next();
        if !self.is_word(word, b"as") {
            return Err(NotPourable::Expression);
        }
        let (cast, _) = self.type_name(value.end)?;
        let end = self.close()?;
        let cast = match inner {
            None => cast,
            Some((inner, _)) if inner.is_text() => cast.behind(inner),
            Some(_) => return Err(NotPourable::Expression),
        };
        let quoted = |range: Range<usize>| memchr(b'\'', &self.text[range]).is_some();
        match value.kind {
            Kind::Param => Ok((Class::CastParam(param(self.bytes(value))?, cast), end)),
            // A quote in a comment: see `without_cast`.
            Kind::String if quoted(start..value.start) || quoted(value.end..end) => {
                Err(NotPourable::Expression)
            }
            Kind::String => Ok((Class::CastString(cast), end)),
            _ if self.is_word(Some(value), b"null") => Ok((Class::CastNull(cast), end)),
            kind => Err(unlike_literal(kind)),
        }
    }

    /// `::type`, and where it ends; `None`: something else follows.
    fn cast(&mut self) -> Result<Option<(Cast, usize)>, NotPourable> {
        let sign = self.peek();
        let Some(sign) = sign.filter(|t| t.kind == Kind::Operator && self.bytes(*t) == b"::") else {
            return Ok(None);
        };
        self.next();
        self.type_name(sign.end).map(Some)
    }

    /// A type, and where it ends, if it has words at all.
    fn type_name(&mut self, mut end: usize) -> Result<(Cast, usize), NotPourable> {
        let mut name = TypeName::default();
        while let Some(word) = self.peek().filter(|t| t.kind == Kind::Word) {
            // CAST($1::text AS ...
            if self.is_word(Some(word), b"as") {
                break;
            }
            self.next();
            name.push(self.bytes(word)).ok_or(NotPourable::Expression)?;
            end = word.end;
        }
        let next = self.peek();
        let quoted = next.is_some_and(|t| t.kind == Kind::Quoted);
        let cast = match name.meaning() {
            Some(cast) if !quoted && !self.is_byte(next, b'.') => cast,
            _ => return self.other_type(&name, end),
        };
        if self.is_byte(next, b'[') {
            let end = self.brackets()?;
            return Ok((cast.array().ok_or(NotPourable::Expression)?, end));
        }
        if !self.is_byte(next, b'(') {
            return Ok((cast, end));
        }
        self.next();
        let (precision, scale, end) = self.modifier()?;
        let cast = cast.with_modifier(precision, scale).ok_or(NotPourable::Expression)?;
        Ok((cast, end))
    }

    /// `name` or `schema.name`, perhaps `[]`: a type that the grammar does not know. What it begins with is read if it is a word.
    fn other_type(&mut self, word: &TypeName, mut end: usize) -> Result<(Cast, usize), NotPourable> {
        let (mut schema, mut name) = (None, word.other());
        if word.is_empty() {
            (name, end) = self.identifier()?;
        }
        let dot = self.peek();
        if self.is_byte(dot, b'.') {
            self.next();
            schema = Some(name.ok_or(NotPourable::Expression)?);
            (name, end) = self.identifier()?;
        }
        let open = self.peek();
        let array = self.is_byte(open, b'[');
        if array {
            end = self.brackets()?;
        }
        let name = name.ok_or(NotPourable::Expression)?;
        let cast = Cast::of_name(schema, name, array, &mut self.out.types);
        Ok((cast.ok_or(NotPourable::Expression)?, end))
    }

    /// A name as the server folds it, and where it ends. `None`: it is none that may be a type's.
    fn identifier(&mut self) -> Result<(Option<String>, usize), NotPourable> {
        let token = self.next().ok_or(NotPourable::Syntax)?;
        let bytes = self.bytes(token);
        let name = match token.kind {
            Kind::Word => {
                let mut name = TypeName::default();
                name.push(bytes).and_then(|()| name.other())
            }
            Kind::Quoted => {
                std::str::from_utf8(&bytes[1..bytes.len() - 1]).ok().map(|name| name.replace("\"\"", "\""))
            }
            _ => None,
        };
        Ok((name, token.end))
    }

    /// `[]`, and where it ends.
    fn brackets(&mut self) -> Result<usize, NotPourable> {
        self.next();
        let close = self.next().filter(|t| self.is_byte(Some(*t), b']')).ok_or(NotPourable::Expression)?;
        Ok(close.end)
    }

    /// `precision)` or `precision, scale)`, and where it ends.
    fn modifier(&mut self) -> Result<(i32, i32, usize), NotPourable> {
        let precision = self.integer()?;
        let mut token = self.next().ok_or(NotPourable::Syntax)?;
        let mut scale = 0;
        if self.is_byte(Some(token), b',') {
            scale = self.integer()?;
            token = self.next().ok_or(NotPourable::Syntax)?;
        }
        if self.is_byte(Some(token), b')') {
            Ok((precision, scale, token.end))
        } else {
            Err(NotPourable::Expression)
        }
    }

    fn integer(&mut self) -> Result<i32, NotPourable> {
        let token = self.next().filter(|t| t.kind == Kind::Integer).ok_or(NotPourable::Expression)?;
        let digits = std::str::from_utf8(self.bytes(token)).ok();
        digits.and_then(|digits| digits.parse().ok()).ok_or(NotPourable::Expression)
    }

    /// A number directly behind the minus sign.
    fn signed(&mut self, minus: Token) -> Result<(Class, usize), NotPourable> {
        let number = self.next().ok_or(NotPourable::Syntax)?;
        match number.kind {
            _ if number.start != minus.end => Err(NotPourable::Expression),
            Kind::Integer => Ok((Class::SignedInteger, number.end)),
            Kind::Decimal => Ok((Class::SignedDecimal, number.end)),
            kind => Err(unlike_literal(kind)),
        }
    }

    /// ON CONFLICT, RETURNING, semicolons.
    fn tail(&mut self) -> Result<(), NotPourable> {
        let token = self.peek();
        if self.is_word(token, b"on") {
            self.on_conflict()?;
            self.out.tail.conflict = true;
        }
        let token = self.peek();
        if self.is_word(token, b"returning") {
            self.returning()?;
            self.out.tail.returning = true;
        }
        let mut ended = false;
        while let Some(token) = self.next() {
            match Some(token) {
                t if self.is_byte(t, b';') => ended = true,
                _ if token.kind == Kind::Unterminated => return Err(NotPourable::Syntax),
                _ if ended => return Err(NotPourable::SecondStatement),
                _ => return Err(NotPourable::Syntax),
            }
        }
        Ok(())
    }

    /// `ON CONFLICT [(names) | ON CONSTRAINT name] DO NOTHING`.
    fn on_conflict(&mut self) -> Result<(), NotPourable> {
        self.out.shape.push(b' ');
        self.keyword(b"on", NotPourable::OnConflict)?;
        self.keyword(b"conflict", NotPourable::OnConflict)?;
        let target = self.peek();
        if self.is_byte(target, b'(') {
            self.next();
            self.out.shape.push(b'(');
            loop {
                self.name().map_err(|_| NotPourable::OnConflict)?;
                match self.next() {
                    t if self.is_byte(t, b',') => self.out.shape.push(b','),
                    t if self.is_byte(t, b')') => break,
                    _ => return Err(NotPourable::OnConflict),
                }
            }
            self.out.shape.extend_from_slice(b") ");
        } else if self.is_word(target, b"on") {
            self.keyword(b"on", NotPourable::OnConflict)?;
            self.keyword(b"constraint", NotPourable::OnConflict)?;
            self.name().map_err(|_| NotPourable::OnConflict)?;
            self.out.shape.push(b' ');
        }
        self.keyword(b"do", NotPourable::OnConflict)?;
        self.keyword(b"nothing", NotPourable::OnConflict)
    }

    /// RETURNING with nothing but names, dots, stars, commas and `::text`: the parser judges what they mean.
    fn returning(&mut self) -> Result<(), NotPourable> {
        self.out.shape.push(b' ');
        self.keyword(b"returning", NotPourable::Returning)?;
        let begin = self.out.shape.len();
        loop {
            match self.peek() {
                None => break,
                t if self.is_byte(t, b';') => break,
                Some(t) if matches!(t.kind, Kind::Word | Kind::Quoted) => {
                    self.name().map_err(|_| NotPourable::Returning)?;
                }
                Some(t) if matches!(self.bytes(t), b"." | b"," | b"*" | b"::") => {
                    self.next();
                    self.out.shape.extend_from_slice(self.bytes(t));
                }
                Some(t) if t.kind == Kind::Unterminated => return Err(NotPourable::Syntax),
                Some(_) => return Err(NotPourable::Returning),
            }
            self.out.shape.push(b' ');
        }
        if self.out.shape.len() == begin { Err(NotPourable::Syntax) } else { Ok(()) }
    }

    /// `$1` to `$n`, each once, in any order; further rows are as the first one, with the numbers that follow.
    fn check_params(&self) -> Result<(), NotPourable> {
        let highest = self.out.params();
        if highest == 0 {
            let param = |item: &Item| item.class.param().is_some();
            return if self.out.items.iter().any(param) { Err(NotPourable::Params) } else { Ok(()) };
        }
        let mut seen = [0u64; ITEMS_MAX.div_ceil(64) + 1];
        let mut count = 0;
        for item in self.out.row(0) {
            let Some(n) = item.class.param() else { continue };
            let word = seen.get_mut(usize::from(n / 64)).ok_or(NotPourable::Params)?;
            if *word >> (n % 64) & 1 == 1 {
                return Err(NotPourable::Params);
            }
            *word |= 1 << (n % 64);
            count += 1;
        }
        if count != highest {
            return Err(NotPourable::Params);
        }
        let alike =
            |row: usize| self.out.row(row).iter().zip(self.out.row(0)).all(|(a, b)| self.follows(row, a, b));
        if (1..self.out.rows).all(alike) { Ok(()) } else { Err(NotPourable::ManyRows) }
    }

    /// Is `item`, of row `row`, what `first` is in the first row?
    fn follows(&self, row: usize, item: &Item, first: &Item) -> bool {
        let later = |a, b| usize::from(a) == usize::from(b) + row * usize::from(self.out.params());
        match (item.class, first.class) {
            (Class::Param(a), Class::Param(b)) => later(a, b),
            (Class::CastParam(a, to), Class::CastParam(b, like)) => to == like && later(a, b),
            (a, b) => a == b && item.bytes(self.text) == first.bytes(self.text),
        }
    }
}

/// Why a token can't be an item or follow one.
fn unlike_literal(kind: Kind) -> NotPourable {
    match kind {
        Kind::ContinuedString
        | Kind::EscapeString
        | Kind::UnicodeString
        | Kind::DollarString
        | Kind::BitString
        | Kind::HexString
        | Kind::OtherNumber => NotPourable::Literal,
        Kind::Junk | Kind::Unterminated => NotPourable::Syntax,
        _ => NotPourable::Expression,
    }
}

/// The number of `$n`.
fn param(bytes: &[u8]) -> Result<u16, NotPourable> {
    let digits = &bytes[1..];
    let mut number = 0u16;
    for digit in digits {
        let next = number.checked_mul(10).and_then(|n| n.checked_add(u16::from(digit - b'0')));
        number = next.ok_or(NotPourable::Params)?;
    }
    if number == 0 { Err(NotPourable::Params) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifted(text: &str) -> Result<Lifted, NotPourable> {
        let mut out = Lifted::new();
        lift(text.as_bytes(), &mut out).map(|()| out)
    }

    fn classes(text: &str) -> Vec<(Class, &str)> {
        let out = lifted(text).expect(text);
        out.items.iter().map(|i| (i.class, &text[i.start..i.end])).collect()
    }

    #[test]
    fn the_table_is_what_stands_behind_insert_into() {
        for (text, name) in [
            ("INSERT INTO t VALUES (1) RETURNING a", "t"),
            (" /* x */ insert  into s.\"a b\"(a) select 1", "s.\"a b\""),
            ("INSERT INTO t;", "t"),
            ("INSERT INTO \"a\"\"(\" SELECT 1", "\"a\"\"(\""),
        ] {
            assert_eq!(table_named(text.as_bytes()), Some(name.as_bytes()), "{text}");
        }
        for text in ["", "INSERT", "INSERT INTO ", "INSERT INTO /*", "INSERT t", "SELECT 1"] {
            assert_eq!(table_named(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn takes_every_class() {
        assert_eq!(
            classes("insert into \"S\".t (a, \"B\"\"c\", d) values (NULL, Default, 007)"),
            [(Class::Null, "NULL"), (Class::Default, "Default"), (Class::Integer, "007")]
        );
        assert_eq!(
            classes("INSERT INTO t VALUES(-5,1.50,-0.1,tRUE,false,'it''s','',$1);;"),
            [
                (Class::SignedInteger, "-5"),
                (Class::Decimal, "1.50"),
                (Class::SignedDecimal, "-0.1"),
                (Class::True, "tRUE"),
                (Class::False, "false"),
                (Class::String, "'it''s'"),
                (Class::String, "''"),
                (Class::Param(1), "$1"),
            ]
        );
    }

    #[test]
    fn the_type_of_a_parameter_may_stand_behind_it() {
        let out =
            lifted("INSERT INTO t VALUES ($2::INTEGER, $1 :: /**/ timestamp\nWITHOUT time zone, $3::text)")
                .unwrap();
        let cast = |oid, looked_up| Cast::plain(Type::Own(oid), looked_up);
        let classes: Vec<_> = out.items.iter().map(|item| item.class).collect();
        assert_eq!(
            classes,
            [
                Class::CastParam(2, cast(23, false)),
                Class::CastParam(1, cast(1114, false)),
                Class::CastParam(3, cast(25, true))
            ]
        );
        assert_eq!((out.params(), out.looks_up_types()), (3, true));
        assert!(!lifted("INSERT INTO t VALUES ($1::date), ($2::DATE)").unwrap().is_like_before(1));
        let shape = |text| lifted(text).unwrap().shape;
        assert_eq!(shape("INSERT INTO t VALUES ($1::int)"), shape("insert into t values($1::INTEGER)"));
        assert_ne!(shape("INSERT INTO t VALUES ($1::int)"), shape("INSERT INTO t VALUES ($1::bigint)"));
        assert_ne!(shape("INSERT INTO t VALUES ($1::int)"), shape("INSERT INTO t VALUES ($1)"));
    }

    #[test]
    fn the_type_of_a_string_may_stand_behind_it() {
        let out = lifted("INSERT INTO t VALUES ('it''s'::date, '7' :: numeric(10, 2))").unwrap();
        let cast = |oid, looked_up, typmod| {
            Class::CastString(Cast { typmod, ..Cast::plain(Type::Own(oid), looked_up) })
        };
        let classes: Vec<_> = out.items.iter().map(|item| item.class).collect();
        assert_eq!(classes, [cast(1082, true, -1), cast(1700, false, 655_366)]);
        assert_eq!(without_cast(b"'it''s'::date"), b"'it''s'");
        let shape = |text| lifted(text).unwrap().shape;
        assert_eq!(shape("INSERT INTO t VALUES ('1'::numeric)"), shape("INSERT INTO t VALUES ('2'::dec)"));
        assert_ne!(shape("INSERT INTO t VALUES ('1'::date)"), shape("INSERT INTO t VALUES ('1'::text)"));
        assert_ne!(shape("INSERT INTO t VALUES ('1'::date)"), shape("INSERT INTO t VALUES ('1')"));
        assert_ne!(shape("INSERT INTO t VALUES ('1'::dec(2))"), shape("INSERT INTO t VALUES ('1'::dec(3))"));
    }

    #[test]
    fn cast_is_written_in_two_ways() {
        let out = lifted(
            "INSERT INTO t VALUES (CAST($1 AS timestamp with time zone), cast ( /**/ $2 as NUMERIC(10, 2) ))",
        );
        let out = out.unwrap();
        let cast = |oid, looked_up, typmod| Cast { typmod, ..Cast::plain(Type::Own(oid), looked_up) };
        let classes: Vec<_> = out.items.iter().map(|item| item.class).collect();
        assert_eq!(
            classes,
            [Class::CastParam(1, cast(1184, false, -1)), Class::CastParam(2, cast(1700, false, 655_366))]
        );
        assert_eq!(
            classes_of_one("INSERT INTO t VALUES (CAST('it''s' AS date))"),
            (Class::CastString(cast(1082, true, -1)), "CAST('it''s' AS date)".to_owned())
        );
        assert_eq!(without_cast(b"CAST('it''s' AS date)"), b"'it''s'");
        assert!(lifted("INSERT INTO t VALUES (CAST($1 AS uuid))").unwrap().looks_up_types());
        let shape = |value| lifted(&format!("INSERT INTO t VALUES ({value})")).unwrap().shape;
        for (a, b) in [("$1::uuid", "CAST($1 AS UUID)"), ("'x'::date", "Cast('y' As date)")] {
            assert_eq!(shape(a), shape(b), "{a}");
        }
    }

    #[test]
    fn types_of_users_are_known_by_their_names() {
        let names = |text: &str| {
            let out = lifted(text).expect(text);
            let casts: Vec<_> = out.items.iter().filter_map(|item| item.class.cast()).collect();
            (casts, out.types)
        };
        let (casts, types) = names(
            "INSERT INTO t VALUES ($1::text::\"public\".\"Mood\", CAST($2::varchar AS s . MOOD), $3::s.mood, $4::mood[], '5'::mood)",
        );
        let other = |schema: Option<&str>, name: &str, array| OtherType {
            schema: schema.map(str::to_owned),
            name: name.to_owned(),
            array,
        };
        assert_eq!(
            types,
            [
                other(Some("public"), "Mood", false),
                other(Some("s"), "mood", false),
                other(None, "mood", true),
                other(None, "mood", false)
            ]
        );
        let plain = |place| Cast::plain(Type::Named(place), false);
        let (text, varchar) = (Cast::of_word(b"text").unwrap(), Cast::of_word(b"varchar").unwrap());
        assert_eq!(casts, [plain(0).behind(text), plain(1).behind(varchar), plain(1), plain(2), plain(3)]);
        assert_eq!(names("INSERT INTO t VALUES ($1::\"a\"\"b\")").1, [other(None, "a\"b", false)]);
        let own = |value: &str| names(&format!("INSERT INTO t VALUES ({value})"));
        for (value, oid) in [("$1::int[]", 1007), ("$1::\"int4\"", 23), ("'{}'::pg_catalog.text[]", 1009)] {
            assert_eq!((own(value).0[0].to, own(value).1), (Type::Own(oid), Vec::new()), "{value}");
        }
        // Another name is another statement, whatever its place is.
        let shape = |text: &str| lifted(text).unwrap().shape;
        assert_eq!(shape("INSERT INTO t VALUES ('1'::MOOD)"), shape("INSERT INTO t VALUES ('2'::\"mood\")"));
        assert_ne!(shape("INSERT INTO t VALUES ('1'::mood)"), shape("INSERT INTO t VALUES ('1'::mood2)"));
        assert_ne!(shape("INSERT INTO t VALUES ('1'::mood)"), shape("INSERT INTO t VALUES ('1'::s.mood)"));
        assert_ne!(shape("INSERT INTO t VALUES ('1'::mood)"), shape("INSERT INTO t VALUES ('1'::mood[])"));
        assert_ne!(shape("INSERT INTO t VALUES ($1::mood)"), shape("INSERT INTO t VALUES ($1::text::mood)"));
    }

    #[test]
    fn null_may_have_a_type() {
        let date = Cast::of_word(b"date").unwrap();
        for value in ["null::date", "CAST(NULL AS date)", "(cast(null as DATE))"] {
            let (class, _) = classes_of_one(&format!("INSERT INTO t VALUES ({value})"));
            assert_eq!(class, Class::CastNull(date), "{value}");
        }
    }

    #[test]
    fn parentheses_change_nothing() {
        for (text, class, bytes) in [
            ("(('1'::int4))", Class::CastString(Cast::of_word(b"int4").unwrap()), "'1'::int4"),
            ("( ( -1 ) )", Class::SignedInteger, "-1"),
            ("((NULL))", Class::Null, "NULL"),
            ("(($1))", Class::Param(1), "$1"),
            ("((CAST($1 AS int)))", Class::CastParam(1, Cast::of_word(b"int").unwrap()), "CAST($1 AS int)"),
        ] {
            let found = classes_of_one(&format!("INSERT INTO t VALUES {text}"));
            assert_eq!(found, (class, bytes.to_owned()), "{text}");
        }
        let shape = |text| lifted(text).unwrap().shape;
        let bare = "INSERT INTO t VALUES (1, 'x'), (2, NULL)";
        assert_eq!(shape(bare), shape("INSERT INTO t VALUES ((1), ('x')), (2, (NULL))"));
    }

    fn classes_of_one(text: &str) -> (Class, String) {
        let all = classes(text);
        assert_eq!(all.len(), 1, "{text}");
        (all[0].0, all[0].1.to_owned())
    }

    #[test]
    fn refuses_the_rest_each_with_its_reason() {
        use NotPourable as N;
        let long = format!("INSERT INTO {} VALUES (1)", "x".repeat(64));
        let table: &[(&str, N)] = &[
            ("", N::NotInsert),
            ("SELECT 1", N::NotInsert),
            ("inserted into t values (1)", N::NotInsert),
            ("/* insert", N::NotInsert),
            ("WITH a AS (SELECT 1) INSERT INTO t VALUES (1)", N::NotInsert),
            ("INSERT t VALUES (1)", N::Syntax),
            ("INSERT INTO t", N::Syntax),
            ("INSERT INTO t VALUES", N::Syntax),
            ("INSERT INTO t VALUES (", N::Syntax),
            ("INSERT INTO t VALUES ()", N::Expression),
            ("INSERT INTO t VALUES (1", N::Syntax),
            ("INSERT INTO t VALUES (1,)", N::Expression),
            ("INSERT INTO t VALUES ('a", N::Syntax),
            ("INSERT INTO t SELECT 1", N::NotValues),
            ("INSERT INTO t (SELECT 1)", N::NotValues),
            ("INSERT INTO t (a) SELECT 1", N::NotValues),
            ("INSERT INTO t TABLE u", N::NotValues),
            ("INSERT INTO t WITH x AS (SELECT 1) SELECT 1", N::NotValues),
            ("INSERT INTO t (a) (VALUES (1))", N::NotValues),
            ("INSERT INTO t DEFAULT VALUES", N::DefaultValues),
            ("INSERT INTO t OVERRIDING SYSTEM VALUE VALUES (1)", N::Overriding),
            ("INSERT INTO t AS VALUES (1)", N::Syntax),
            ("INSERT INTO t AS x y VALUES (1)", N::Syntax),
            ("INSERT INTO t x VALUES (1)", N::Syntax),
            ("INSERT INTO t AS x.y VALUES (1)", N::Syntax),
            ("INSERT INTO t AS 'x' VALUES (1)", N::Syntax),
            ("INSERT INTO t (a) AS x VALUES (1)", N::Syntax),
            ("INSERT INTO t AS é VALUES (1)", N::Name),
            ("INSERT INTO t (a.b) VALUES (1)", N::Subscript),
            ("INSERT INTO t (a[1]) VALUES (1)", N::Subscript),
            ("INSERT INTO a.b.c VALUES (1)", N::Name),
            ("INSERT INTO täble VALUES (1)", N::Name),
            ("INSERT INTO U&\"t\" VALUES (1)", N::Name),
            ("INSERT INTO \"\" VALUES (1)", N::Name),
            (&long, N::Name),
            ("INSERT INTO t VALUES (1), (2, 3)", N::Count),
            ("INSERT INTO t VALUES (1), 2", N::Syntax),
            ("INSERT INTO t VALUES (1),", N::Syntax),
            ("INSERT INTO t VALUES (1), ($1)", N::Params),
            ("INSERT INTO t VALUES ($1), ($3)", N::ManyRows),
            ("INSERT INTO t VALUES ($1), ($1)", N::ManyRows),
            ("INSERT INTO t VALUES ($1, 1), ($2, 2)", N::ManyRows),
            ("INSERT INTO t VALUES ($1, $2), ($4, $3)", N::ManyRows),
            ("INSERT INTO t VALUES (1) ON CONFLICT DO UPDATE SET a = 1", N::OnConflict),
            ("INSERT INTO t VALUES (1) ON CONFLICT (lower(a)) DO NOTHING", N::OnConflict),
            ("INSERT INTO t VALUES (1) ON CONFLICT (a) WHERE a > 0 DO NOTHING", N::OnConflict),
            ("INSERT INTO t VALUES (1) ON CONFLICT", N::OnConflict),
            ("INSERT INTO t VALUES (1) RETURNING a + 1", N::Returning),
            ("INSERT INTO t VALUES (1) RETURNING now()", N::Returning),
            ("INSERT INTO t VALUES (1) RETURNING 1", N::Returning),
            ("INSERT INTO t VALUES (1) RETURNING", N::Syntax),
            ("INSERT INTO t VALUES (1) RETURNING a /* x", N::Syntax),
            ("INSERT INTO t VALUES (1) RETURNING a; SELECT 1", N::SecondStatement),
            ("INSERT INTO t VALUES (1) LIMIT 1", N::Syntax),
            ("INSERT INTO t VALUES (1); SELECT 1", N::SecondStatement),
            ("INSERT INTO t VALUES (1) /* open", N::Syntax),
            ("INSERT INTO t VALUES (1) -- é", N::Comment),
            ("INSERT INTO t VALUES (1) RETURNING a /* é */", N::Comment),
            ("/* é */ INSERT INTO t VALUES (1);", N::Comment),
            ("INSERT INTO t (\"é\" /* é */) VALUES ('é')", N::Comment),
            ("INSERT INTO t VALUES (1+1)", N::Expression),
            ("INSERT INTO t VALUES (+1)", N::Expression),
            ("INSERT INTO t VALUES (- 1)", N::Expression),
            ("INSERT INTO t VALUES (-/**/1)", N::Expression),
            ("INSERT INTO t VALUES (--1\n)", N::Expression),
            ("INSERT INTO t VALUES (-$1)", N::Expression),
            ("INSERT INTO t VALUES (1::int)", N::Expression),
            ("INSERT INTO t VALUES ('1'::varchar(3))", N::Expression),
            ("INSERT INTO t VALUES ('1'::numeric(3,1.5))", N::Expression),
            ("INSERT INTO t VALUES ('1'::text::int)", N::Expression),
            ("INSERT INTO t VALUES ('1'/*'*/::int)", N::Expression),
            ("INSERT INTO t VALUES (E'1'::int)", N::Literal),
            ("INSERT INTO t VALUES (now())", N::Expression),
            ("INSERT INTO t VALUES (current_timestamp)", N::Expression),
            ("INSERT INTO t VALUES (date '2020-01-01')", N::Expression),
            ("INSERT INTO t VALUES (((1)))", N::Expression),
            ("INSERT INTO t VALUES ((DEFAULT))", N::Expression),
            ("INSERT INTO t VALUES ((1, 2))", N::Expression),
            ("INSERT INTO t VALUES (())", N::Expression),
            ("INSERT INTO t VALUES ((1)::int)", N::Expression),
            ("INSERT INTO t VALUES (('1')::int4)", N::Expression),
            ("INSERT INTO t VALUES (($1)::int4)", N::Expression),
            ("INSERT INTO t VALUES ((1) + 1)", N::Expression),
            ("INSERT INTO t VALUES (-(1))", N::Expression),
            ("INSERT INTO t VALUES ((SELECT 1))", N::Expression),
            ("INSERT INTO t VALUES ((E'x'))", N::Literal),
            ("INSERT INTO t VALUES ((1", N::Syntax),
            ("INSERT INTO t VALUES ((", N::Syntax),
            ("INSERT INTO t VALUES (CAST)", N::Expression),
            ("INSERT INTO t VALUES (cast(1 AS int))", N::Expression),
            ("INSERT INTO t VALUES (cast(TRUE AS bool))", N::Expression),
            ("INSERT INTO t VALUES (TRUE::bool)", N::Expression),
            ("INSERT INTO t VALUES (DEFAULT::int)", N::Expression),
            ("INSERT INTO t VALUES (cast(($1) AS int))", N::Expression),
            ("INSERT INTO t VALUES (cast($1::int AS text))", N::Expression),
            ("INSERT INTO t VALUES (cast($1::text::text AS text))", N::Expression),
            ("INSERT INTO t VALUES (cast($1::varchar(3) AS mood))", N::Expression),
            ("INSERT INTO t VALUES (cast('1'::text AS int))", N::Expression),
            ("INSERT INTO t VALUES (cast($1, int))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS int)::text)", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS int[3]))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS int[][]))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS numeric(3)[]))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS mood(3)))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS a.b.c))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS U&\"a\"))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS \"\"))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS é))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS varchar(3)))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS text COLLATE \"C\"))", N::Expression),
            ("INSERT INTO t VALUES (cast(E'1' AS int))", N::Literal),
            ("INSERT INTO t VALUES (cast('1'/*'*/AS int))", N::Expression),
            ("INSERT INTO t VALUES (cast(/*'*/'1' AS int))", N::Expression),
            ("INSERT INTO t VALUES (cast('1' AS int/*'*/))", N::Expression),
            ("INSERT INTO t VALUES (cast($1 AS int /* é */))", N::Comment),
            ("INSERT INTO t VALUES (cast($1 AS int", N::Syntax),
            ("INSERT INTO t VALUES (n'x')", N::Expression),
            ("INSERT INTO t VALUES (E'x')", N::Literal),
            ("INSERT INTO t VALUES (U&'x')", N::Literal),
            ("INSERT INTO t VALUES ($$x$$)", N::Literal),
            ("INSERT INTO t VALUES ('a'\n'b')", N::Literal),
            ("INSERT INTO t VALUES ('a' 'b')", N::Expression),
            ("INSERT INTO t VALUES (b'1')", N::Literal),
            ("INSERT INTO t VALUES (x'1')", N::Literal),
            ("INSERT INTO t VALUES (1e5)", N::Literal),
            ("INSERT INTO t VALUES (.5)", N::Literal),
            ("INSERT INTO t VALUES (5.)", N::Literal),
            ("INSERT INTO t VALUES (0x1f)", N::Literal),
            ("INSERT INTO t VALUES (1_000)", N::Literal),
            ("INSERT INTO t VALUES (1a)", N::Syntax),
            ("INSERT INTO t VALUES ($1::varchar(3))", N::Expression),
            ("INSERT INTO t VALUES ($1::char)", N::Expression),
            ("INSERT INTO t VALUES ($1::int[1])", N::Expression),
            ("INSERT INTO t VALUES ($1::mood[)", N::Expression),
            ("INSERT INTO t VALUES ($1::int ARRAY)", N::Expression),
            ("INSERT INTO t VALUES ($1::int::text)", N::Expression),
            ("INSERT INTO t VALUES ($1::text::mood::text)", N::Expression),
            ("INSERT INTO t VALUES ($1::mood \"x\")", N::Expression),
            ("INSERT INTO t VALUES ($1::mood), ($2::mood2)", N::ManyRows),
            ("INSERT INTO t VALUES ($1::interval year)", N::Expression),
            ("INSERT INTO t VALUES ($1::timestamp(3))", N::Expression),
            ("INSERT INTO t VALUES ($1::timestamp at time zone 'UTC')", N::Expression),
            ("INSERT INTO t VALUES ($1::text COLLATE \"C\")", N::Expression),
            ("INSERT INTO t VALUES ($1::)", N::Expression),
            ("INSERT INTO t VALUES ($1::double)", N::Expression),
            ("INSERT INTO t VALUES ($1::character varying varying varying)", N::Expression),
            ("INSERT INTO t VALUES ($1::int), ($2::bigint)", N::ManyRows),
            ("INSERT INTO t VALUES ($1::int), ($2)", N::ManyRows),
            ("INSERT INTO t VALUES ($2)", N::Params),
            ("INSERT INTO t VALUES ($1, $1)", N::Params),
            ("INSERT INTO t VALUES ($0)", N::Params),
            ("INSERT INTO t VALUES ($99999)", N::Params),
            ("INSERT INTO t (a, b) VALUES (1)", N::Count),
            ("INSERT INTO t (a) VALUES (1, 2)", N::Count),
            ("INSERT\x0bINTO t VALUES (1)", N::Syntax),
        ];
        for (text, reason) in table {
            assert_eq!(lifted(text).map(|_| ()), Err(*reason), "{text}");
        }
    }

    #[test]
    fn one_shape_for_one_statement() {
        let a = lifted("INSERT INTO t (a, b) VALUES (1, 'x')").unwrap();
        let b = lifted("insert/*route='/a'*/into t(a,b)values(22,'it''s') -- tag\n;").unwrap();
        assert_eq!(a.shape, b.shape);
        for other in [
            "INSERT INTO T (a, b) VALUES (1, 'x')",
            "INSERT INTO t (a, b) VALUES (-1, 'x')",
            "INSERT INTO t (a, b) VALUES (1, NULL)",
            "INSERT INTO t (a, b) VALUES ($1, 'x')",
            "INSERT INTO t VALUES (1, 'x')",
            "INSERT INTO s.t (a, b) VALUES (1, 'x')",
        ] {
            assert_ne!(lifted(other).unwrap().shape, a.shape, "{other}");
        }
    }

    #[test]
    fn further_rows_and_what_follows_them() {
        let text = "INSERT INTO t (a, b) VALUES (1, 'x'), /* tag */ (2, NULL),(3,NULL) on Conflict (a , \"B\") Do nothing
             RETURNING t.a, \"B\" AS c, t.* -- tag\n;";
        let out = lifted(text).unwrap();
        assert_eq!((out.rows, out.items.len()), (3, 6));
        assert_eq!(out.tail, Tail { conflict: true, returning: true });
        assert!(!out.is_like_before(0) && !out.is_like_before(1) && out.is_like_before(2));
        let mut one = Vec::new();
        out.put_statement(text.as_bytes(), 1, &mut one);
        let one = String::from_utf8(one).unwrap();
        assert_eq!(
            one,
            "insert into t(a,b) values (2,NULL) on conflict (a,\"B\") do nothing  returning t . a , \"B\" AS c , t . * "
        );
        let mut shape = Vec::new();
        out.put_shape(1, &mut shape);
        assert_eq!(lifted(&one).unwrap().shape, shape);
        let mut numbered = Vec::new();
        let text = "INSERT INTO t VALUES ('$1', DEFAULT, -1) RETURNING *";
        lifted(text).unwrap().put_with_parameters(&mut numbered);
        assert_eq!(numbered, b"insert into t values ($1,DEFAULT,$2) returning * ");
        // However many rows, one shape.
        let rows = |n: usize| {
            let row = |i: usize| format!("(${}, DEFAULT, ${})", i * 2 + 2, i * 2 + 1);
            let all: Vec<_> = (0..n).map(row).collect();
            lifted(&format!("INSERT INTO t VALUES {}", all.join(", "))).unwrap()
        };
        assert_eq!(rows(1).shape, rows(700).shape);
        assert_eq!((rows(700).rows, rows(700).params()), (700, 2));
        let mut text = "INSERT INTO t VALUES (1)".to_owned();
        text.push_str(&",(1)".repeat(ALL_ITEMS_MAX));
        assert_eq!(lifted(&text), Err(NotPourable::ManyRows));
        let text = "INSERT INTO s.t As \"T\" (a) VALUES (1), (2) ON CONFLICT DO NOTHING";
        let aliased = lifted(&text.replace(", (2)", "")).unwrap();
        let mut one = Vec::new();
        aliased.put_statement(text.as_bytes(), 0, &mut one);
        assert_eq!(one, b"insert into s.t as \"T\"(a) values (1) on conflict do nothing ");
        assert_ne!(
            aliased.shape,
            lifted("INSERT INTO s.t AS t (a) VALUES (1) ON CONFLICT DO NOTHING").unwrap().shape
        );
        for tail in [
            "RETURNING NULL",
            "ON CONFLICT DO NOTHING",
            "ON CONFLICT ON CONSTRAINT c DO NOTHING RETURNING a;",
        ] {
            assert!(lifted(&format!("INSERT INTO t VALUES (1) {tail}")).is_ok(), "{tail}");
        }
    }

    #[test]
    fn strings_come_out_undoubled() {
        for (literal, value) in
            [("''", ""), ("'a'", "a"), ("''''", "'"), ("'a''b'", "a'b"), ("'a'''", "a'"), ("''''''", "''")]
        {
            let bytes: Vec<u8> = decode_string(literal.as_bytes()).flatten().copied().collect();
            assert_eq!(bytes, value.as_bytes());
        }
    }
}
