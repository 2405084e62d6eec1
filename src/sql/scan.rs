//! A lexer for SQL text that follows PostgreSQL's own (`scan.l`), over bytes.
//!
//! Owns: where tokens begin and end and what kind they are. Never: what they mean, an allocation, a guess: what
//! the server's lexer would refuse comes out as [`Kind::Junk`] or [`Kind::Unterminated`].
//!
//! The text may be in any encoding in which every byte of a multibyte character is above 0x7f (see
//! [`crate::policy`] for the others). Rules that differ between versions (`0x10`, `1_000` before 16) are
//! kinds of their own, so that a caller can refuse them.

use memchr::{memchr, memchr2};

use crate::limits::NAME_BYTES_MAX;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A keyword or an identifier without quotes.
    Word,
    /// `"identifier"`.
    Quoted,
    /// `U&"identifier"`.
    UnicodeQuoted,
    /// `'string'`, in one piece.
    String,
    /// `'string'` continued on another line.
    ContinuedString,
    /// `E'string'`, or a plain one with a backslash while `standard_conforming_strings` is off.
    EscapeString,
    /// `U&'string'`.
    UnicodeString,
    /// `$tag$string$tag$`.
    DollarString,
    /// `B'0101'`.
    BitString,
    /// `X'1f'`.
    HexString,
    /// Decimal digits only.
    Integer,
    /// `digits.digits`, both present.
    Decimal,
    /// Any other number: exponent, missing side of the dot, `0x`, `0o`, `0b`, `_`.
    OtherNumber,
    /// `$1`.
    Param,
    /// An operator, including `::`, `:=`, `..` and `=>`.
    Operator,
    /// One byte of `,()[].;:`, or any byte that begins nothing else.
    Punctuation,
    /// What the server's lexer refuses, such as `1a`.
    Junk,
    /// A comment, string or identifier that does not end.
    Unterminated,
}

impl Kind {
    /// A string of any spelling, of bits also.
    pub const fn is_string(self) -> bool {
        matches!(
            self,
            Self::String
                | Self::ContinuedString
                | Self::EscapeString
                | Self::UnicodeString
                | Self::DollarString
                | Self::BitString
                | Self::HexString
        )
    }
}

/// One token: a range of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Its first byte.
    pub start: usize,
    /// The byte after its last.
    pub end: usize,
}

/// The tokens of a text; white space and comments are passed over.
#[derive(Debug, Clone)]
pub struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    std_strings: bool,
}

/// Scan `text`. `std_strings` is the session's `standard_conforming_strings`.
pub fn scan(text: &[u8], std_strings: bool) -> Scanner<'_> {
    scan_from(text, 0, std_strings)
}

/// Scan `text` from byte `at`, which must be a token's border.
pub(super) fn scan_from(text: &[u8], at: usize, std_strings: bool) -> Scanner<'_> {
    Scanner { text, at: at.min(text.len()), std_strings }
}

impl Iterator for Scanner<'_> {
    type Item = Token;

    #[inline]
    fn next(&mut self) -> Option<Token> {
        let Some(start) = skip_blank(self.text, self.at) else {
            return self.unterminated(self.at);
        };
        let &first = self.text.get(start)?;
        let (kind, end) = match first {
            b'0'..=b'9' => number(self.text, start),
            b'.' if digit_at(self.text, start + 1) => number(self.text, start),
            b'.' if self.text.get(start + 1) == Some(&b'.') => (Kind::Operator, start + 2),
            b'\'' => match self.string(start) {
                Some(found) => found,
                None => return self.unterminated(start),
            },
            b'"' => match quoted_end(self.text, start) {
                Some(end) => (Kind::Quoted, end),
                None => return self.unterminated(start),
            },
            b'$' => match dollar(self.text, start) {
                Some(found) => found,
                None => return self.unterminated(start),
            },
            b':' => colon(self.text, start),
            byte if is_word_start(byte) => match self.word(start) {
                Some(found) => found,
                None => return self.unterminated(start),
            },
            byte if is_operator(byte) => operator(self.text, start),
            _ => (Kind::Punctuation, start + 1),
        };
        self.at = end;
        Some(Token { kind, start, end })
    }
}

impl Scanner<'_> {
    fn unterminated(&mut self, start: usize) -> Option<Token> {
        self.at = self.text.len();
        Some(Token { kind: Kind::Unterminated, start, end: self.at })
    }

    /// A plain string whose quote is at `open`.
    fn string(&self, open: usize) -> Option<(Kind, usize)> {
        let (end, continued) = string_end(self.text, open, Quoting::plain(self.std_strings))?;
        let kind = match () {
            () if !self.std_strings && memchr(b'\\', &self.text[open..end]).is_some() => Kind::EscapeString,
            () if continued => Kind::ContinuedString,
            () => Kind::String,
        };
        Some((kind, end))
    }

    /// A word at `start`, or a literal that begins with a letter.
    fn word(&self, start: usize) -> Option<(Kind, usize)> {
        let end = word_end(self.text, start);
        if end - start != 1 {
            return Some((Kind::Word, end));
        }
        let next = self.text.get(end).copied();
        match (self.text[start] | 0x20, next) {
            (b'e', Some(b'\'')) => {
                Some((Kind::EscapeString, string_end(self.text, end, Quoting::Backslash)?.0))
            }
            (b'b', Some(b'\'')) => Some((Kind::BitString, string_end(self.text, end, Quoting::Bits)?.0)),
            (b'x', Some(b'\'')) => Some((Kind::HexString, string_end(self.text, end, Quoting::Bits)?.0)),
            (b'u', Some(b'&')) => match self.text.get(end + 1) {
                Some(b'\'') => {
                    Some((Kind::UnicodeString, string_end(self.text, end + 1, Quoting::Standard)?.0))
                }
                Some(b'"') => Some((Kind::UnicodeQuoted, quoted_end(self.text, end + 1)?)),
                _ => Some((Kind::Word, end)),
            },
            // N'...' is the keyword NCHAR before a plain string.
            _ => Some((Kind::Word, end)),
        }
    }
}

/// White space of the newest version (before 16 a vertical tab is an error).
#[inline]
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// May begin a word.
#[inline]
pub(super) fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

/// May go on in a word.
#[inline]
pub(super) fn is_word(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit() || byte == b'$'
}

#[inline]
fn is_operator(byte: u8) -> bool {
    matches!(
        byte,
        b'~' | b'!'
            | b'@'
            | b'#'
            | b'^'
            | b'&'
            | b'|'
            | b'`'
            | b'?'
            | b'+'
            | b'-'
            | b'*'
            | b'/'
            | b'%'
            | b'<'
            | b'>'
            | b'='
    )
}

fn digit_at(text: &[u8], at: usize) -> bool {
    text.get(at).is_some_and(u8::is_ascii_digit)
}

/// Past the word that begins at `start`.
#[inline]
pub(super) fn word_end(text: &[u8], start: usize) -> usize {
    text[start..].iter().position(|&b| !is_word(b)).map_or(text.len(), |n| start + n)
}

/// The first byte at or after `at` that is neither white space nor in a comment; `None`: a comment does not end.
#[inline]
pub(super) fn skip_blank(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match text.get(at) {
            Some(&b) if is_space(b) => at += 1,
            Some(b'-') if text.get(at + 1) == Some(&b'-') => at = line_end(text, at),
            Some(b'/') if text.get(at + 1) == Some(&b'*') => at = comment_end(text, at)?,
            _ => return Some(at),
        }
    }
}

/// The line break (or end of text) that ends a `--` comment at `at`.
pub(super) fn line_end(text: &[u8], at: usize) -> usize {
    memchr2(b'\n', b'\r', &text[at..]).map_or(text.len(), |n| at + n)
}

/// Past the comment that begins with the `/*` at `at`; such comments nest.
pub(super) fn comment_end(text: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0u32;
    loop {
        at += memchr2(b'*', b'/', &text[at..])?;
        match (text[at], *text.get(at + 1)?) {
            (b'/', b'*') => {
                depth += 1;
                at += 2;
            }
            (b'*', b'/') => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
}

/// What a quote and a backslash mean inside a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quoting {
    /// Two quotes are one.
    Standard,
    /// And a backslash takes the next byte with it.
    Backslash,
    /// The next quote ends it: `B''` and `X''`.
    Bits,
}

impl Quoting {
    /// Of a string without prefix.
    pub(super) fn plain(std_strings: bool) -> Self {
        if std_strings { Self::Standard } else { Self::Backslash }
    }
}

/// Past the string whose opening quote is at `open`, and whether it was continued on another line. `None`: it
/// does not end.
pub(super) fn string_end(text: &[u8], open: usize, quoting: Quoting) -> Option<(usize, bool)> {
    let mut at = open + 1;
    let mut continued = false;
    loop {
        at += match quoting {
            Quoting::Backslash => memchr2(b'\'', b'\\', text.get(at..)?)?,
            Quoting::Standard | Quoting::Bits => memchr(b'\'', text.get(at..)?)?,
        };
        let doubled = quoting != Quoting::Bits && text.get(at + 1) == Some(&b'\'');
        if text[at] == b'\\' || doubled {
            at += 2;
            continue;
        }
        at += 1;
        match continuation(text, at) {
            Some(next) => {
                at = next + 1;
                continued = true;
            }
            None => return Some((at, continued)),
        }
    }
}

/// The quote that continues a string which was closed before `at`: only white space, `--` comments and at
/// least one line break lie between.
fn continuation(text: &[u8], mut at: usize) -> Option<usize> {
    let mut broken = false;
    loop {
        match *text.get(at)? {
            b'\n' | b'\r' => {
                broken = true;
                at += 1;
            }
            b if is_space(b) => at += 1,
            b'-' if text.get(at + 1) == Some(&b'-') => at = line_end(text, at),
            b'\'' if broken => return Some(at),
            _ => return None,
        }
    }
}

/// Past the quoted identifier whose opening quote is at `open`.
pub(super) fn quoted_end(text: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    loop {
        at += memchr(b'"', text.get(at..)?)?;
        if text.get(at + 1) != Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// How many parameters a text has: the highest number of one (`$1`).
pub fn params_of(text: &[u8]) -> u16 {
    let number = |token: Token| std::str::from_utf8(&text[token.start + 1..token.end]).ok()?.parse().ok();
    scan(text, true).filter(|token| token.kind == Kind::Param).filter_map(number).max().unwrap_or_default()
}

/// A quoted identifier's name: without its quotes, doubled ones once.
pub(super) fn unquoted(quoted: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(quoted.len());
    let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    let mut quote = false;
    for &byte in inner {
        quote = byte == b'"' && !quote;
        if !quote {
            name.push(byte);
        }
    }
    name
}

/// What begins with the `$` at `start`; `None`: a string that does not end.
pub(super) fn dollar(text: &[u8], start: usize) -> Option<(Kind, usize)> {
    if digit_at(text, start + 1) {
        let end = digits_end(text, start + 1);
        return Some(match text.get(end) {
            Some(&b) if is_word_start(b) => (Kind::Junk, word_end(text, end)),
            _ => (Kind::Param, end),
        });
    }
    let mut at = start + 1;
    if text.get(at).is_some_and(|&b| is_word_start(b)) {
        at += text[at..].iter().position(|&b| b == b'$' || !is_word(b)).unwrap_or(text.len() - at);
    }
    if text.get(at) != Some(&b'$') {
        return Some((Kind::Punctuation, start + 1));
    }
    let tag = &text[start..=at];
    let body = at + 1;
    memchr::memmem::find(&text[body..], tag).map(|n| (Kind::DollarString, body + n + tag.len()))
}

/// Somewhere stands what is the tag of a dollar quote, or would be one if quotes began and ended elsewhere, and is not ASCII alone.
pub fn has_tag_beyond_ascii(text: &[u8]) -> bool {
    !text.is_ascii()
        && memchr::memchr_iter(b'$', text).any(|at| {
            let rest = &text[at + 1..];
            // A word may hold a `$`, a tag may not.
            let end = rest.iter().position(|&b| b == b'$' || !is_word(b)).unwrap_or(rest.len());
            rest.get(end) == Some(&b'$') && !rest[..end].is_ascii()
        })
}

fn colon(text: &[u8], start: usize) -> (Kind, usize) {
    match text.get(start + 1) {
        Some(b':' | b'=') => (Kind::Operator, start + 2),
        _ => (Kind::Punctuation, start + 1),
    }
}

/// The operator at `start`: as long as it can be, but a comment ends it, and a trailing `+` or `-` is only part
/// of it if it holds one of the bytes that no standard operator has. A run too long to be one operator is junk
/// as a whole, although the server would take it apart if it were all signs: reading it again for each sign
/// would take time with the square of its length. So would looking behind the comment in `+/**/+/**/+`.
fn operator(text: &[u8], start: usize) -> (Kind, usize) {
    let rest = &text[start..];
    let ends = |at: &usize| !is_operator(rest[*at]) || matches!(rest.get(*at..at + 2), Some(b"--" | b"/*"));
    // At its first byte no comment begins, or it would have been passed over.
    let mut run = &rest[..(1..rest.len()).find(ends).unwrap_or(rest.len())];
    // It is a name, too.
    if run.len() > NAME_BYTES_MAX {
        return (Kind::Junk, start + run.len());
    }
    let unusual = |b: &u8| matches!(b, b'~' | b'!' | b'@' | b'#' | b'^' | b'&' | b'|' | b'`' | b'?' | b'%');
    if !run.iter().any(unusual) {
        while let [head @ .., b'+' | b'-'] = run
            && !head.is_empty()
        {
            run = head;
        }
    }
    (Kind::Operator, start + run.len())
}

/// The longest run of bytes that could be an operator's, outside literals: the server's lexer, unlike this one,
/// takes time with the square of its length (also in comments that nest).
pub(super) fn longest_operator_run(text: &[u8]) -> usize {
    let longest = |part: &[u8]| part.split(|&b| !is_operator(b)).map(<[u8]>::len).max().unwrap_or(0);
    let (mut from, mut most) = (0, 0);
    for token in scan(text, true) {
        match token.kind {
            Kind::Word | Kind::Operator | Kind::Punctuation | Kind::Integer | Kind::Decimal => {}
            Kind::OtherNumber | Kind::Param | Kind::Junk | Kind::Unterminated => {}
            _ => {
                most = most.max(longest(&text[from..token.start]));
                from = token.end;
            }
        }
    }
    most.max(longest(&text[from..]))
}

fn digits_end(text: &[u8], at: usize) -> usize {
    text[at..].iter().position(|b| !b.is_ascii_digit()).map_or(text.len(), |n| at + n)
}

/// Past digits with single underscores between them.
fn grouped_end(text: &[u8], mut at: usize, digit: fn(&u8) -> bool) -> usize {
    loop {
        match text.get(at) {
            Some(b) if digit(b) => at += 1,
            Some(b'_') if text.get(at + 1).is_some_and(digit) => at += 2,
            _ => return at,
        }
    }
}

/// The number at `start` (a digit, or a dot before one).
fn number(text: &[u8], start: usize) -> (Kind, usize) {
    if text[start] == b'0' {
        let digit: Option<fn(&u8) -> bool> = match text.get(start + 1).map(|b| b | 0x20) {
            Some(b'x') => Some(|b| b.is_ascii_hexdigit()),
            Some(b'o') => Some(|b| matches!(b, b'0'..=b'7')),
            Some(b'b') => Some(|b| matches!(b, b'0' | b'1')),
            _ => None,
        };
        if let Some(digit) = digit {
            let end = grouped_end(text, start + 2, digit);
            let kind = if end > start + 2 { Kind::OtherNumber } else { Kind::Junk };
            return ended(text, kind, end);
        }
    }
    let decimal = |at| grouped_end(text, at, u8::is_ascii_digit);
    let whole = decimal(start);
    let mut end = whole;
    let mut kind = Kind::Integer;
    if text.get(whole) == Some(&b'.') && text.get(whole + 1) != Some(&b'.') {
        end = if digit_at(text, whole + 1) { decimal(whole + 1) } else { whole + 1 };
        kind = if end > whole + 1 && whole > start { Kind::Decimal } else { Kind::OtherNumber };
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        if digit_at(text, end + 1 + sign) {
            end = decimal(end + 1 + sign);
            kind = Kind::OtherNumber;
        } else {
            return (Kind::Junk, word_end(text, end));
        }
    }
    if memchr(b'_', &text[start..end]).is_some() {
        kind = Kind::OtherNumber;
    }
    ended(text, kind, end)
}

/// A number must not run into a word.
fn ended(text: &[u8], kind: Kind, end: usize) -> (Kind, usize) {
    match text.get(end) {
        Some(&b) if is_word_start(b) => (Kind::Junk, word_end(text, end)),
        _ => (kind, end),
    }
}

/// A name in lower case, found by its first underscore, which most texts have few of.
#[derive(Debug, Clone, Copy)]
pub struct Underscored {
    name: &'static [u8],
    /// What stands before the underscore.
    before: usize,
}

impl Underscored {
    /// `name` has an underscore, and does not begin with it.
    pub const fn new(name: &'static str) -> Self {
        let name = name.as_bytes();
        let mut before = 0;
        while name[before] != b'_' {
            before += 1;
        }
        assert!(before > 0);
        Self { name, before }
    }

    /// The name.
    pub const fn name(&self) -> &'static [u8] {
        self.name
    }

    /// Does it stand in the text, with the underscore that is there at `at`?
    #[inline]
    fn is_at(&self, text: &[u8], at: usize) -> bool {
        // Told by one letter, mostly.
        at >= self.before && text[at - 1] | 0x20 == self.name[self.before - 1] && {
            let start = at - self.before;
            text.get(start..start + self.name.len())
                .is_some_and(|found| found.eq_ignore_ascii_case(self.name))
        }
    }
}

/// Hot path. One of `names` stands somewhere in the text, in capitals or not, also as a part of a longer word.
pub fn mentions<'a>(text: &[u8], names: impl Iterator<Item = &'a Underscored> + Clone) -> bool {
    memchr::memchr_iter(b'_', text).any(|at| names.clone().any(|name| name.is_at(text, at)))
}
