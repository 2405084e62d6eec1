//! COPY's text and binary rows: encoders and their inverse.
//!
//! Owns: how a value is escaped in a text row, how a binary row is laid out. Never: whether a value may be sent so.
//! See "COPY", sections "Text Format" and "Binary Format", in the manual; the text form is that of the defaults: TAB between
//! fields, `\N` for NULL, LF at the end. No encoder allocates but for growing `out`.

use std::fmt::Arguments;
use std::io::Write;
use std::num::FpCategory;

/// Which form a COPY's rows have. One COPY has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CopyFormat {
    /// Fields in the client's encoding, escaped.
    Text,
    /// Fields in their types' send format, each with a length.
    Binary,
}

/// What a binary COPY begins with: signature, flags (none), header extension (empty).
pub const BINARY_HEADER: &[u8; 19] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// What a binary COPY ends with: a row of -1 fields.
pub const BINARY_TRAILER: &[u8; 2] = b"\xff\xff";

/// Between two fields of a text row.
pub const FIELD_END: u8 = b'\t';

/// After a text row.
pub const ROW_END: u8 = b'\n';

/// The letter after the backslash, for the four bytes that a text field must not hold as they are.
fn escape(byte: u8) -> Option<u8> {
    match byte {
        b'\\' => Some(b'\\'),
        b'\t' => Some(b't'),
        b'\n' => Some(b'n'),
        b'\r' => Some(b'r'),
        _ => None,
    }
}

/// The byte that this letter stands for after a backslash.
fn unescape(letter: u8) -> Option<u8> {
    match letter {
        b'\\' => Some(b'\\'),
        b't' => Some(b'\t'),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        _ => None,
    }
}

/// Hot path. Appends a text field: `value` escaped. Right for encodings in which every byte below 128 is a character.
pub fn put_text(out: &mut Vec<u8>, value: &[u8]) {
    let mut from = 0;
    for (at, &byte) in value.iter().enumerate() {
        if let Some(letter) = escape(byte) {
            out.extend_from_slice(&value[from..at]);
            out.extend_from_slice(&[b'\\', letter]);
            from = at + 1;
        }
    }
    out.extend_from_slice(&value[from..]);
}

/// Hot path. Appends a text field from what stands between the quotes of an SQL string: doubled quotes become one, the rest is
/// escaped. False, with `out` as it was, when a quote stands alone.
pub fn put_text_unquoted(out: &mut Vec<u8>, body: &[u8]) -> bool {
    let begin = out.len();
    let (mut from, mut at) = (0, 0);
    while let Some(&byte) = body.get(at) {
        if byte == b'\'' {
            if body.get(at + 1) != Some(&b'\'') {
                out.truncate(begin);
                return false;
            }
            out.extend_from_slice(&body[from..=at]);
            at += 1;
            from = at + 1;
        } else if let Some(letter) = escape(byte) {
            out.extend_from_slice(&body[from..at]);
            out.extend_from_slice(&[b'\\', letter]);
            from = at + 1;
        }
        at += 1;
    }
    out.extend_from_slice(&body[from..]);
    true
}

/// Hot path. As [`put_text_unquoted`], for what stands between the quotes of an `E'...'`: COPY reads a backslash and what
/// follows it as in such a string. False, with `out` as it was, when a quote or a backslash stands alone.
pub fn put_text_unescaped(out: &mut Vec<u8>, body: &[u8]) -> bool {
    let begin = out.len();
    let (mut from, mut at) = (0, 0);
    while let Some(&byte) = body.get(at) {
        match (byte, body.get(at + 1)) {
            (b'\\', Some(&letter)) if unescape(letter).is_some() => at += 1,
            (b'\'', Some(b'\'')) => {
                out.extend_from_slice(&body[from..=at]);
                at += 1;
                from = at + 1;
            }
            (b'\\' | b'\'', _) => {
                out.truncate(begin);
                return false;
            }
            _ => {
                if let Some(letter) = escape(byte) {
                    out.extend_from_slice(&body[from..at]);
                    out.extend_from_slice(&[b'\\', letter]);
                    from = at + 1;
                }
            }
        }
        at += 1;
    }
    out.extend_from_slice(&body[from..]);
    true
}

/// Appends a text field that is NULL.
pub fn put_text_null(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\\N");
}

/// Appends the text field of bytes in hexadecimal, as `bytea` reads them (`\x...`, its backslash escaped).
pub fn put_text_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(b"\\\\x");
    for &byte in bytes {
        put_hex(out, byte);
    }
}

/// Appends the text field of a uuid.
pub fn put_text_uuid(out: &mut Vec<u8>, uuid: [u8; 16]) {
    for (i, byte) in uuid.into_iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        put_hex(out, byte);
    }
}

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

/// Appends the text field of a date, in days since 2000-01-01; of the years 1000 to 9999, and infinity. False: another one, and
/// nothing was appended.
#[must_use]
pub fn put_text_date(out: &mut Vec<u8>, days: i32) -> bool {
    match days {
        i32::MAX => out.extend_from_slice(b"infinity"),
        i32::MIN => out.extend_from_slice(b"-infinity"),
        days => return put_day(out, days.into()),
    }
    true
}

/// As [`put_text_date`], of a time in microseconds since the beginning of that day, without a zone.
#[must_use]
pub fn put_text_timestamp(out: &mut Vec<u8>, micros: i64) -> bool {
    match micros {
        i64::MAX => out.extend_from_slice(b"infinity"),
        i64::MIN => out.extend_from_slice(b"-infinity"),
        micros => {
            if !put_day(out, micros.div_euclid(DAY)) {
                return false;
            }
            let (seconds, fraction) = (micros.rem_euclid(DAY) / 1_000_000, micros.rem_euclid(1_000_000));
            for (sign, part) in [(b' ', seconds / 3600), (b':', seconds / 60 % 60), (b':', seconds % 60)] {
                out.push(sign);
                put_digits(out, part, 2);
            }
            out.push(b'.');
            put_digits(out, fraction, 6);
        }
    }
    true
}

/// As [`put_text_timestamp`], in UTC, and with that said.
#[must_use]
pub fn put_text_timestamptz(out: &mut Vec<u8>, micros: i64) -> bool {
    let put = put_text_timestamp(out, micros);
    if put && ![i64::MIN, i64::MAX].contains(&micros) {
        out.extend_from_slice(b"+00");
    }
    put
}

/// Appends the text field of a number in the fewest digits that are read as it; `false`: it has no such digits (one that is
/// no number has many forms, and a very small one is near what is refused as too small).
pub fn put_text_float8(out: &mut Vec<u8>, number: f64) -> bool {
    put_float(out, number.classify(), number.is_sign_negative(), format_args!("{number:e}"))
}

/// The same of four bytes.
pub fn put_text_float4(out: &mut Vec<u8>, number: f32) -> bool {
    put_float(out, number.classify(), number.is_sign_negative(), format_args!("{number:e}"))
}

fn put_float(out: &mut Vec<u8>, kind: FpCategory, negative: bool, digits: Arguments<'_>) -> bool {
    match kind {
        FpCategory::Nan | FpCategory::Subnormal => return false,
        FpCategory::Infinite if negative => out.extend_from_slice(b"-Infinity"),
        FpCategory::Infinite => out.extend_from_slice(b"Infinity"),
        FpCategory::Zero | FpCategory::Normal => return out.write_fmt(digits).is_ok(),
    }
    true
}

/// Most digits of a `numeric` on each side of its point: few bytes can ask for a hundred thousand zeros.
const NUMERIC_DIGITS_MAX: usize = 1000;

/// Appends the text field of a `numeric` in its binary form: groups of four decimal digits, of which the first stands for ten
/// thousand to the power of its weight, and how many digits stand behind the point. False: it is malformed, no finite number, or
/// has more than [`NUMERIC_DIGITS_MAX`], and nothing was appended.
#[must_use]
pub fn put_text_numeric(out: &mut Vec<u8>, value: &[u8]) -> bool {
    let (words, rest) = value.as_chunks::<2>();
    let Some((header, groups)) = words.split_first_chunk::<4>() else { return false };
    let [count, weight, sign, scale] = header.map(u16::from_be_bytes);
    let (weight, scale) = (i32::from(weight as i16), usize::from(scale));
    let fits = (weight + 1) * 4 <= NUMERIC_DIGITS_MAX as i32 && scale <= NUMERIC_DIGITS_MAX;
    let digits = |group: &[u8; 2]| u16::from_be_bytes(*group) < 10_000;
    let sound = rest.is_empty() && groups.len() == usize::from(count) && groups.iter().all(digits);
    if !fits || !sound || !matches!(sign, 0 | 0x4000) {
        return false;
    }
    // The group of this power of ten thousand.
    let group = |power: i32| {
        let at = usize::try_from(weight - power).ok();
        at.and_then(|at| groups.get(at)).map_or(0, |group| u16::from_be_bytes(*group))
    };
    if sign != 0 {
        out.push(b'-');
    }
    let written = write!(out, "{}", group(weight.max(0)));
    let mut put = written.is_ok();
    for power in (0..weight).rev() {
        put &= write!(out, "{:04}", group(power)).is_ok();
    }
    if scale > 0 {
        out.push(b'.');
        let end = out.len() + scale;
        for power in 1..=scale.div_ceil(4) as i32 {
            put &= write!(out, "{:04}", group(-power)).is_ok();
        }
        // What the scale hides the server cuts off, too.
        out.truncate(end);
    }
    put
}

/// A day of the Gregorian calendar, in days since 2000-01-01. Years begin in March here, so that the day that not all of them have
/// is the last one.
fn put_day(out: &mut Vec<u8>, days: i64) -> bool {
    const FOUR_CENTURIES: i64 = 146_097;
    // Since the first of March of the year 0.
    let days = days.saturating_add(730_425);
    let (cycle, day) = (days.div_euclid(FOUR_CENTURIES), days.rem_euclid(FOUR_CENTURIES));
    let leap_days = day / 1460 - day / 36_524 + day / (FOUR_CENTURIES - 1);
    let year = (day - leap_days) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    let year = cycle * 400 + year;
    if !(1000..=9999).contains(&year) {
        return false;
    }
    put_digits(out, year, 4);
    out.push(b'-');
    put_digits(out, month, 2);
    out.push(b'-');
    put_digits(out, day, 2);
    true
}

/// So many digits of a number that has no more.
fn put_digits(out: &mut Vec<u8>, number: i64, digits: u32) {
    for place in (0..digits).rev() {
        out.push(b'0' + (number / 10i64.pow(place) % 10) as u8);
    }
}

fn put_hex(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

/// Appends the text field of an integer.
pub fn put_text_int(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut left = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a binary row's field count.
pub fn put_binary_count(out: &mut Vec<u8>, fields: u16) {
    out.extend_from_slice(&fields.to_be_bytes());
}

/// Appends a binary field (`None`: NULL). `value` is shorter than 2 GiB: every message is.
pub fn put_binary(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => out.extend_from_slice(&(-1i32).to_be_bytes()),
        Some(value) => {
            out.extend_from_slice(&(value.len() as u32).to_be_bytes());
            out.extend_from_slice(value);
        }
    }
}

/// Where the first `count` rows of what the encoders wrote end; at the end of `buf` when it holds fewer, or something else.
pub fn rows_end(format: CopyFormat, buf: &[u8], count: usize) -> usize {
    let mut at = 0;
    for _ in 0..count {
        let row = match format {
            CopyFormat::Text => memchr::memchr(ROW_END, &buf[at..]).map(|end| end + 1),
            CopyFormat::Binary => binary_row_end(&buf[at..]),
        };
        let Some(row) = row else { return buf.len() };
        at += row;
    }
    at
}

fn binary_row_end(buf: &[u8]) -> Option<usize> {
    let fields = usize::try_from(i16::from_be_bytes(*buf.first_chunk()?)).ok()?;
    let mut at = 2;
    for _ in 0..fields {
        let len = i32::from_be_bytes(*buf.get(at..)?.first_chunk()?);
        // NULL has no bytes.
        at = at.checked_add(4 + usize::try_from(len.max(0)).ok()?)?;
    }
    (at <= buf.len()).then_some(at)
}

/// Hot path. Appends the fields of rows that the encoders wrote as Bind carries values: a length and the bytes, or -1 for NULL.
/// As much as can be read of bytes that they did not write.
pub fn put_values(format: CopyFormat, rows: &[u8], out: &mut Vec<u8>) {
    let mut rest = rows;
    match format {
        CopyFormat::Text => {
            while let Some(end) = memchr::memchr2(FIELD_END, ROW_END, rest) {
                put_text_value(&rest[..end], out);
                rest = &rest[end + 1..];
            }
        }
        CopyFormat::Binary => {
            while let Some(end) = binary_row_end(rest) {
                // Only the count of the fields stands between one row's and the next.
                out.extend_from_slice(&rest[2..end]);
                rest = &rest[end..];
            }
        }
    }
}

fn put_text_value(field: &[u8], out: &mut Vec<u8>) {
    if field == b"\\N" {
        return put_binary(out, None);
    }
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    let mut rest = field;
    while let Some(escape) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..escape]);
        out.extend(rest.get(escape + 1).and_then(|letter| unescape(*letter)));
        rest = rest.get(escape + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}

/// One row's values; `None` is NULL.
pub type Row = Vec<Option<Vec<u8>>>;

/// For tests: the inverse of the text encoders. The row at the start of `buf`, and the bytes after it; `None` if there is no LF, or an
/// escape that the encoders do not write.
pub fn take_text_row(buf: &[u8]) -> Option<(Row, &[u8])> {
    let end = memchr::memchr(ROW_END, buf)?;
    let fields = buf[..end].split(|&b| b == FIELD_END).map(text_field).collect::<Option<_>>()?;
    Some((fields, &buf[end + 1..]))
}

fn text_field(field: &[u8]) -> Option<Option<Vec<u8>>> {
    if field == b"\\N" {
        return Some(None);
    }
    let mut value = Vec::with_capacity(field.len());
    let mut bytes = field.iter();
    while let Some(&byte) = bytes.next() {
        value.push(if byte == b'\\' { unescape(*bytes.next()?)? } else { byte });
    }
    Some(Some(value))
}

/// For tests: the inverse of the binary encoders. The row at the start of `buf`, and the bytes after it; `None` for the trailer, or if
/// `buf` does not hold as many fields, or as long ones, as it says.
pub fn take_binary_row(buf: &[u8]) -> Option<(Row, &[u8])> {
    let (&count, mut rest) = buf.split_first_chunk()?;
    let count = usize::try_from(i16::from_be_bytes(count)).ok()?;
    let mut row = Vec::with_capacity(count.min(buf.len() / 4));
    for _ in 0..count {
        let (&len, after) = rest.split_first_chunk()?;
        let value;
        (value, rest) = match i32::from_be_bytes(len) {
            -1 => (None, after),
            len => {
                let (value, after) = after.split_at_checked(usize::try_from(len).ok()?)?;
                (Some(value.to_vec()), after)
            }
        };
        row.push(value);
    }
    Some((row, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_text(&mut out, value);
        out
    }

    #[test]
    fn only_four_bytes_are_escaped() {
        assert_eq!(text(b"a\\b\tc\nd\re"), b"a\\\\b\\tc\\nd\\re");
        assert_eq!(text(b"\\N"), b"\\\\N");
        assert_eq!(text(b"\\."), b"\\\\.");
        for byte in 0..=255u8 {
            let expected = usize::from(b"\\\t\n\r".contains(&byte)) + 1;
            assert_eq!(text(&[byte]).len(), expected, "{byte}");
        }
    }

    #[test]
    fn quotes_are_halved_and_a_lone_one_is_refused() {
        let mut out = b"before".to_vec();
        assert!(put_text_unquoted(&mut out, b"it''s\\ ''''"));
        assert_eq!(out, b"beforeit's\\\\ ''");
        assert!(!put_text_unquoted(&mut out, b"x''y'z"));
        assert_eq!(out, b"beforeit's\\\\ ''");
    }

    #[test]
    fn what_is_escaped_stays_so_and_other_escapes_are_refused() {
        let field = |body: &str| {
            let mut out = b"before".to_vec();
            put_text_unescaped(&mut out, body.as_bytes()).then(|| out.split_off(6)).ok_or(out)
        };
        let same = r"\\ \t\n\r\\. \\N";
        assert_eq!(field(same), Ok(same.into()));
        assert_eq!(field("it''s\t\n\r"), Ok(br"it's\t\n\r".to_vec()));
        for other in ["x'y", "x'", r"x\", r"x\\\", r"\'", r"\.", r"\N", r"\0", r"\x41", r"\b", r"\v", "\\\n"]
        {
            assert_eq!(field(other), Err(b"before".to_vec()), "{other}");
        }
    }

    #[test]
    fn numbers_uuids_and_bytes_are_written_as_the_server_writes_them() {
        let put = |number| {
            let mut out = Vec::new();
            put_text_int(&mut out, number);
            String::from_utf8(out).unwrap()
        };
        for number in [0, 1, -1, 42, i64::MAX, i64::MIN] {
            assert_eq!(put(number), number.to_string());
        }
        let mut out = Vec::new();
        put_text_uuid(&mut out, *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff");
        assert_eq!(out, b"00112233-4455-6677-8899-aabbccddeeff");
        out.clear();
        put_text_hex(&mut out, &[0, 10, 255]);
        assert_eq!(out, b"\\\\x000aff");
    }

    #[test]
    fn days_and_times_are_those_of_the_calendar() {
        let date = |days| {
            let mut out = Vec::new();
            put_text_date(&mut out, days).then(|| String::from_utf8(out).unwrap())
        };
        for (days, expected) in [
            (0, "2000-01-01"),
            (-1, "1999-12-31"),
            (59, "2000-02-29"),
            (60, "2000-03-01"),
            (-36_466, "1900-02-28"),
            (-36_465, "1900-03-01"),
            (8_825, "2024-02-29"),
            (2_921_939, "9999-12-31"),
            (-365_242, "1000-01-01"),
            (i32::MAX, "infinity"),
            (i32::MIN, "-infinity"),
        ] {
            assert_eq!(date(days).as_deref(), Some(expected), "{days}");
        }
        for days in [2_921_940, -365_243, i32::MAX - 1, i32::MIN + 1] {
            assert_eq!(date(days), None, "{days}");
        }
        let mut out = Vec::new();
        assert!(put_text_timestamptz(&mut out, -1));
        assert_eq!(out, b"1999-12-31 23:59:59.999999+00");
        assert!(!put_text_timestamp(&mut out, i64::MIN + 1) && !put_text_timestamp(&mut out, i64::MAX - 1));
    }

    #[test]
    fn floats_in_the_fewest_digits() {
        for (number, text) in [
            (0.1, "1e-1"),
            (-0.0, "-0e0"),
            (12_345.678, "1.2345678e4"),
            (f64::MAX, "1.7976931348623157e308"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            let mut out = Vec::new();
            assert!(put_text_float8(&mut out, number));
            assert_eq!(String::from_utf8_lossy(&out), text);
        }
        let mut out = Vec::new();
        assert!(put_text_float4(&mut out, 0.1));
        assert_eq!(out, b"1e-1");
        assert!(!put_text_float8(&mut out, f64::NAN) && !put_text_float8(&mut out, f64::MIN_POSITIVE / 2.0));
        assert!(!put_text_float4(&mut out, f32::NAN) && !put_text_float4(&mut out, f32::MIN_POSITIVE / 2.0));
        assert_eq!(out, b"1e-1");
    }

    fn numeric(weight: i16, sign: u16, scale: u16, groups: &[u16]) -> Vec<u8> {
        let header = [groups.len() as u16, weight as u16, sign, scale];
        header.iter().chain(groups).flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn numerics_with_all_their_digits() {
        for (value, text) in [
            (numeric(0, 0, 0, &[]), "0"),
            (numeric(0, 0, 2, &[]), "0.00"),
            (numeric(0, 0, 2, &[12, 3400]), "12.34"),
            (numeric(1, 0x4000, 0, &[1, 2]), "-10002"),
            (numeric(2, 0, 1, &[1]), "100000000.0"),
            (numeric(-1, 0, 4, &[50]), "0.0050"),
            (numeric(-2, 0x4000, 8, &[1]), "-0.00000001"),
            (numeric(0, 0, 1, &[1, 2999]), "1.2"),
        ] {
            let mut out = Vec::new();
            assert!(put_text_numeric(&mut out, &value));
            assert_eq!(String::from_utf8_lossy(&out), text);
        }
        let mut out = Vec::new();
        let mut short = numeric(0, 0, 0, &[1]);
        short.pop();
        for refused in [
            numeric(0, 0xc000, 0, &[]),
            numeric(0, 0xd000, 0, &[]),
            numeric(0, 0, 0, &[10_000]),
            numeric(250, 0, 0, &[1]),
            numeric(0, 0, 1001, &[1]),
            short,
            vec![0; 6],
        ] {
            assert!(!put_text_numeric(&mut out, &refused) && out.is_empty());
        }
    }

    #[test]
    fn rows_that_end_too_early_are_errors() {
        assert_eq!(take_text_row(b"a\tb"), None);
        assert_eq!(take_text_row(b"a\\\n"), None);
        assert_eq!(take_text_row(b"a\\x\n"), None);
        assert_eq!(take_binary_row(BINARY_TRAILER), None);
        assert_eq!(take_binary_row(&[0, 1, 0, 0, 0, 2, 1]), None);
        assert_eq!(take_binary_row(&[0, 1, 0xff, 0xff, 0xff, 0xfe]), None);
        assert_eq!(take_binary_row(&[0x7f, 0xff]), None);
    }

    fn row() -> impl Strategy<Value = Row> {
        let bytes = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..20),
            proptest::collection::vec(proptest::sample::select(b"\\\t\n\rN.'".to_vec()), 0..8),
        ];
        proptest::collection::vec(proptest::option::of(bytes), 1..8)
    }

    fn format() -> impl Strategy<Value = CopyFormat> {
        prop_oneof![Just(CopyFormat::Text), Just(CopyFormat::Binary)]
    }

    /// As a batch holds it.
    fn put_row(format: CopyFormat, out: &mut Vec<u8>, row: &Row) {
        if format == CopyFormat::Binary {
            put_binary_count(out, row.len() as u16);
            return row.iter().for_each(|value| put_binary(out, value.as_deref()));
        }
        for (i, value) in row.iter().enumerate() {
            if i > 0 {
                out.push(FIELD_END);
            }
            match value {
                Some(value) => put_text(out, value),
                None => put_text_null(out),
            }
        }
        out.push(ROW_END);
    }

    proptest! {
        #[test]
        fn text_rows_come_back(rows in proptest::collection::vec(row(), 0..5)) {
            let mut out = Vec::new();
            rows.iter().for_each(|row| put_row(CopyFormat::Text, &mut out, row));
            prop_assert_eq!(memchr::memchr_iter(ROW_END, &out).count(), rows.len());
            let mut rest = &out[..];
            for row in rows {
                let (got, after) = take_text_row(rest).unwrap();
                prop_assert_eq!(got, row);
                rest = after;
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn values_are_those_of_the_rows(rows in proptest::collection::vec(row(), 0..5), format in format()) {
            let (mut out, mut expected, mut values) = (Vec::new(), Vec::new(), Vec::new());
            for row in &rows {
                put_row(format, &mut out, row);
                row.iter().for_each(|value| put_binary(&mut expected, value.as_deref()));
            }
            put_values(format, &out, &mut values);
            prop_assert_eq!(values, expected);
        }

        #[test]
        fn values_of_any_bytes_are_read_without_a_panic(
            bytes in proptest::collection::vec(prop_oneof![3 => any::<u8>(), 1 => Just(b'\\'), 1 => Just(b'\n')], 0..60),
            format in format(),
        ) {
            let mut values = Vec::new();
            put_values(format, &bytes, &mut values);
            prop_assert!(values.len() <= bytes.len() * 4);
        }

        #[test]
        fn unquoting_is_the_inverse_of_quoting(value in proptest::collection::vec(any::<u8>(), 0..30)) {
            let quoted: Vec<u8> = value.iter().flat_map(|&b| if b == b'\'' { vec![b, b] } else { vec![b] }).collect();
            let mut out = Vec::new();
            prop_assert!(put_text_unquoted(&mut out, &quoted));
            prop_assert_eq!(out, text(&value));
        }

        #[test]
        fn binary_rows_come_back(row in row()) {
            let mut out = Vec::new();
            put_row(CopyFormat::Binary, &mut out, &row);
            out.extend_from_slice(BINARY_TRAILER);
            let (got, rest) = take_binary_row(&out).unwrap();
            prop_assert_eq!(got, row);
            prop_assert_eq!(rest, &BINARY_TRAILER[..]);
        }

        #[test]
        fn rows_end_where_they_are_taken(
            rows in proptest::collection::vec(row(), 0..6),
            count in 0..7usize,
            format in format(),
        ) {
            let mut out = Vec::new();
            let mut ends = vec![0];
            for row in &rows {
                put_row(format, &mut out, row);
                ends.push(out.len());
            }
            let end = ends.get(count).copied().unwrap_or(out.len());
            prop_assert_eq!(rows_end(format, &out, count), end);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(rows_end(CopyFormat::Text, &bytes, 3) <= bytes.len());
            prop_assert!(rows_end(CopyFormat::Binary, &bytes, 3) <= bytes.len());
            let _ = take_text_row(&bytes);
            let _ = take_binary_row(&bytes);
        }
    }
}
