//! A literal as a field of a text row.
//!
//! Owns: the bytes of single values that stand in a statement, and why one may not leave so. Never: a row, a parameter.

use crate::coalesce::plan::{IntWidth, LiteralRule, Temporal};
use crate::sql::insert::{Class, without_cast};
use crate::wire::copy;

/// Why one row leaves as it was sent, though its statement is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotPourable {
    /// Not as many items or parameters as the plan has.
    Count,
    /// An item's class is not among those proven for its column.
    Class,
    /// A value longer than [`super::InsertPlan::max_value_bytes`].
    ValueTooLong,
    /// The bytes of an item are not what its class says.
    Literal,
    /// `-0` into a float.
    NegativeZero,
    /// A zero byte: Bind and COPY word the error differently.
    ZeroByte,
    /// A format code other than 0 and 1, or as many as neither one nor all.
    FormatCode,
    /// A binary value that cannot be written exactly as text, or a text value in a binary row.
    Format,
    /// A binary value of a length or range that its type does not have.
    Binary,
    /// More digits than a number may have, which COPY would round away first.
    Digits,
    /// A text parameter that is not an integer of its own type, bound for a column of another width.
    Range,
}

impl std::fmt::Display for NotPourable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Count => "number of values",
            Self::Class => "literal for column type",
            Self::ValueTooLong => "value too long (max_value_bytes)",
            Self::Literal => "literal not understood",
            Self::NegativeZero => "negative zero",
            Self::ZeroByte => "zero byte",
            Self::FormatCode => "format code",
            Self::Format => "mixed formats",
            Self::Binary => "binary value",
            Self::Digits => "too many digits",
            Self::Range => "integer out of range",
        })
    }
}

impl std::error::Error for NotPourable {}

/// What was appended for one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    LeftOut,
    Put { own_time: bool },
}

pub(crate) const PUT: Field = Field::Put { own_time: false };

/// A literal of a prepared statement as a field of a text row, written once for all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedField {
    is_null: bool,
    /// Bytes of the literal in the statement, without its cast: what its bound is for.
    length: usize,
    written: Result<Box<[u8]>, NotPourable>,
    own_time: bool,
}

impl FixedField {
    /// `text`: the literal's bytes in the statement, quotes included; `rule`: its way into the column.
    pub fn new(rule: LiteralRule, class: Class, text: &[u8]) -> Self {
        let length = without_its_cast(class, text).len();
        let mut out = Vec::new();
        let put = put_literal(rule, class, text, length, &mut out);
        Self {
            is_null: matches!(class, Class::Null | Class::CastNull(_)),
            length,
            own_time: put == Ok(Field::Put { own_time: true }),
            written: put.map(|_| out.into()),
        }
    }

    /// A NULL, with a cast or without.
    pub fn is_null(&self) -> bool {
        self.is_null
    }

    /// Memory beside its own size (bytes).
    pub fn bytes(&self) -> usize {
        self.written.as_ref().map_or(0, |written| written.len())
    }

    pub(crate) fn put(&self, max: usize, out: &mut Vec<u8>) -> Result<Field, NotPourable> {
        if is_too_long(self.length, max) {
            return Err(NotPourable::ValueTooLong);
        }
        out.extend_from_slice(self.written.as_ref().map_err(|why| *why)?);
        Ok(Field::Put { own_time: self.own_time })
    }
}

/// A literal may have its quotes beside the longest value.
pub(crate) fn is_too_long(length: usize, max: usize) -> bool {
    length > max.saturating_add(2)
}

/// Appends one literal as a text field.
pub(crate) fn put_literal(
    rule: LiteralRule,
    class: Class,
    bytes: &[u8],
    max: usize,
    out: &mut Vec<u8>,
) -> Result<Field, NotPourable> {
    let bytes = without_its_cast(class, bytes);
    if is_too_long(bytes.len(), max) {
        return Err(NotPourable::ValueTooLong);
    }
    match class {
        Class::Null | Class::CastNull(_) => copy::put_text_null(out),
        Class::True => out.push(b't'),
        Class::False => out.push(b'f'),
        Class::String | Class::CastString(_) => {
            let body =
                bytes.strip_prefix(b"'").and_then(|b| b.strip_suffix(b"'")).ok_or(NotPourable::Literal)?;
            if let Some(width) = rule.width {
                copy::put_text_int(out, read_text_int(width, body)?);
                return Ok(PUT);
            }
            if rule.rounds && !is_of_few_digits(body) {
                return Err(NotPourable::Digits);
            }
            if !copy::put_text_unquoted(out, body) {
                return Err(NotPourable::Literal);
            }
            return Ok(Field::Put { own_time: means_own_time(rule.temporal, body) });
        }
        Class::Escaped => put_escaped(rule, bytes, |body| copy::put_text_unescaped(out, body))?,
        Class::Integer | Class::SignedInteger | Class::Decimal | Class::SignedDecimal => {
            if !is_number(class, bytes) {
                return Err(NotPourable::Literal);
            }
            // Written so, it is a `numeric` first, whatever the column is.
            if bytes.len() > DIGITS_MAX {
                return Err(NotPourable::Digits);
            }
            if rule.float && is_negative_zero(bytes) {
                return Err(NotPourable::NegativeZero);
            }
            put_number(bytes, out);
        }
        Class::Default | Class::Param(_) | Class::CastParam(..) | Class::Computed => {
            return Err(NotPourable::Class);
        }
    }
    Ok(PUT)
}

/// Has what stands between the quotes of an `E'...'` put.
pub(crate) fn put_escaped(
    rule: LiteralRule,
    bytes: &[u8],
    put: impl FnOnce(&[u8]) -> bool,
) -> Result<(), NotPourable> {
    // Such columns take none, and an integer's digits are read as they are written.
    if rule.width.is_some() || rule.rounds || rule.temporal != Temporal::No {
        return Err(NotPourable::Class);
    }
    let body = bytes.get(1..).and_then(|quoted| quoted.strip_prefix(b"'")).and_then(|b| b.strip_suffix(b"'"));
    if body.is_some_and(put) { Ok(()) } else { Err(NotPourable::Literal) }
}

pub(crate) fn without_its_cast(class: Class, bytes: &[u8]) -> &[u8] {
    if matches!(class, Class::CastString(_)) { without_cast(bytes) } else { bytes }
}

/// Are these the bytes of such a number, and so without anything that COPY would read otherwise?
fn is_number(class: Class, bytes: &[u8]) -> bool {
    let signed = matches!(class, Class::SignedInteger | Class::SignedDecimal);
    let Some(bytes) = (if signed { bytes.strip_prefix(b"-") } else { Some(bytes) }) else { return false };
    let digits = |b: &[u8]| !b.is_empty() && b.iter().all(u8::is_ascii_digit);
    if !matches!(class, Class::Decimal | Class::SignedDecimal) {
        return digits(bytes);
    }
    let dot = memchr::memchr(b'.', bytes);
    dot.is_some_and(|dot| digits(&bytes[..dot]) && digits(&bytes[dot + 1..]))
}

/// A number has no leading zeros: with one, PostgreSQL 16 and later read an `oid` in a COPY as octal, and to an INSERT `010` is 10.
fn put_number(bytes: &[u8], out: &mut Vec<u8>) {
    let (sign, digits) = bytes.split_at(usize::from(bytes.first() == Some(&b'-')));
    let zeros = digits.windows(2).take_while(|pair| pair[0] == b'0' && pair[1].is_ascii_digit()).count();
    out.extend_from_slice(sign);
    out.extend_from_slice(&digits[zeros..]);
}

/// Digits of a number, and places that an exponent moves its point by, which together are surely fewer than a `numeric` may
/// have after its point (`NUMERIC_DSCALE_MAX`).
pub(crate) const DIGITS_MAX: usize = 6000;
const EXPONENT_DIGITS_MAX: usize = 4;

/// Is it no number, or one (or an array of them) without more digits than a `numeric` may have?
pub(crate) fn is_of_few_digits(text: &[u8]) -> bool {
    text.split(|b| *b == b',').all(|number| {
        let exponents = memchr::memchr2_iter(b'e', b'E', number);
        // In an array a backslash may stand inside a number.
        number.len() <= DIGITS_MAX && exponents.map(|at| &number[at + 1..]).all(is_small_exponent)
    })
}

fn is_small_exponent(behind: &[u8]) -> bool {
    let digits = behind.strip_prefix(b"-").or(behind.strip_prefix(b"+")).unwrap_or(behind);
    let end = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    end <= EXPONENT_DIGITS_MAX && !digits[end..].iter().any(|b| matches!(b, b'0'..=b'9' | b'\\' | b'_'))
}

fn is_negative_zero(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'-') && !bytes.iter().any(|b| matches!(b, b'1'..=b'9'))
}

/// Could the value mean the transaction's time? `now`, `today` and the like are words of several letters wherever they stand
/// (`12:00 tomorrow`); single letters are the `T` and `Z` of ISO 8601. In arrays and ranges quotes and backslashes may stand
/// inside a word.
pub(crate) fn means_own_time(temporal: Temporal, value: &[u8]) -> bool {
    let container = match temporal {
        Temporal::No => return false,
        Temporal::Always => return true,
        Temporal::Scalar => false,
        Temporal::Container => true,
    };
    let mut letters = 0;
    for &byte in value {
        match byte {
            b'\\' if container => return true,
            b'"' | b'\'' if container => {}
            b'a'..=b'z' | b'A'..=b'Z' | 0x80.. => letters += 1,
            _ => letters = 0,
        }
        if letters > 1 {
            return true;
        }
    }
    false
}

/// A plain integer that the parameter's own type takes. It is written anew: the column's may be wider, and would take more; and a
/// float would keep the sign of `-0`.
pub(crate) fn read_text_int(width: IntWidth, value: &[u8]) -> Result<i64, NotPourable> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
    let fits = |number: &i64| match width {
        IntWidth::Two => i16::try_from(*number).is_ok(),
        IntWidth::Four => i32::try_from(*number).is_ok(),
        IntWidth::Eight => true,
    };
    number.filter(fits).ok_or(NotPourable::Range)
}
