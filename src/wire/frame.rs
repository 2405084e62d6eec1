//! Header walking: where one message ends and the next begins.
//!
//! A message is a type byte, a length word (which counts itself but not the type byte), a body.
//! See "Messaging Overview" in the protocol chapter.

use super::{DecodeError, Flaw};

/// Type byte and length word.
pub const HEADER_BYTES: usize = 5;

/// One message's header; the length is already checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The type byte.
    pub tag: u8,
    /// Bytes after the header.
    pub body: usize,
}

impl Header {
    /// Header and body (bytes).
    pub fn total(self) -> usize {
        HEADER_BYTES + self.body
    }
}

/// Hot path. The header at the start of `buf`, or `None` while fewer than five bytes are there.
///
/// `max` bounds the length word (bytes, the word included).
///
/// Errors: a length word below 4 or above `max`.
pub fn header(buf: &[u8], max: usize) -> Result<Option<Header>, DecodeError> {
    let Some(&[tag, a, b, c, d]) = buf.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let len = u32::from_be_bytes([a, b, c, d]);
    if len < 4 {
        return Err(DecodeError::LengthTooSmall { tag, len: len as i32 });
    }
    if len as usize > max {
        return Err(DecodeError::LengthTooLarge { tag, len, max });
    }
    Ok(Some(Header { tag, body: len as usize - 4 }))
}

/// The first message of `buf` whole, or `None` while part of it is missing.
///
/// `max` bounds the length word (bytes, the word included).
///
/// Errors: a length word below 4 or above `max`.
pub fn whole(buf: &[u8], max: usize) -> Result<Option<(Header, &[u8])>, DecodeError> {
    let Some(head) = header(buf, max)? else { return Ok(None) };
    Ok(buf.get(HEADER_BYTES..head.total()).map(|body| (head, body)))
}

/// Appends one message: type byte, length word, and the body that `body` writes.
pub fn put(out: &mut Vec<u8>, tag: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[tag, 0, 0, 0, 0]);
    body(out);
    let len = (out.len() - at - 1) as u32;
    out[at + 1..at + HEADER_BYTES].copy_from_slice(&len.to_be_bytes());
}

/// Appends a zero-terminated string. `text` holds no zero byte (a zero would end it early, so it is cut there).
pub fn put_cstr(out: &mut Vec<u8>, text: &[u8]) {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    out.extend_from_slice(&text[..end]);
    out.push(0);
}

/// Reads fields one after the other; every read checks what is left.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    tag: u8,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Over the body of a message of type `tag`.
    pub fn new(tag: u8, body: &'a [u8]) -> Self {
        Self { tag, rest: body }
    }

    /// This field is malformed.
    pub(super) fn malformed(&self, what: &'static str, flaw: Flaw) -> DecodeError {
        DecodeError::Malformed { tag: self.tag, what, flaw }
    }

    /// A zero-terminated string, without its zero.
    ///
    /// Errors: no zero is left; `what` names the field.
    pub fn cstr(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        // Most are empty: portals and statements without a name.
        let end = if self.rest.first() == Some(&0) { Some(0) } else { memchr::memchr(0, self.rest) };
        let end = end.ok_or_else(|| self.malformed(what, Flaw::String))?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Ok(text)
    }

    /// One byte.
    ///
    /// Errors: nothing is left; `what` names the field.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        let (&byte, rest) = self.rest.split_first().ok_or_else(|| self.malformed(what, Flaw::NoByte))?;
        self.rest = rest;
        Ok(byte)
    }

    /// A 16-bit number.
    ///
    /// Errors: fewer bytes are left; `what` names the field.
    pub fn i16(&mut self, what: &'static str) -> Result<i16, DecodeError> {
        let (&bytes, rest) =
            self.rest.split_first_chunk().ok_or_else(|| self.malformed(what, Flaw::Short))?;
        self.rest = rest;
        Ok(i16::from_be_bytes(bytes))
    }

    /// A 32-bit number.
    ///
    /// Errors: fewer bytes are left; `what` names the field.
    pub fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        let (&bytes, rest) =
            self.rest.split_first_chunk().ok_or_else(|| self.malformed(what, Flaw::Short))?;
        self.rest = rest;
        Ok(i32::from_be_bytes(bytes))
    }

    /// `len` bytes.
    ///
    /// Errors: fewer bytes are left; `what` names the field.
    pub fn bytes(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        if len > self.rest.len() {
            return Err(self.malformed(what, Flaw::Short));
        }
        let (bytes, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(bytes)
    }

    /// What is left, whatever it is.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Nothing may be left.
    ///
    /// Errors: bytes are left over.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.malformed("bytes after the last field", Flaw::Long))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::{AUTH_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX};

    fn with_len(len: u32) -> [u8; HEADER_BYTES] {
        let [a, b, c, d] = len.to_be_bytes();
        [b'Q', a, b, c, d]
    }

    #[test]
    fn lying_lengths_are_refused_and_the_error_names_the_bound() {
        for len in [0, 1, 2, 3] {
            let error = DecodeError::LengthTooSmall { tag: b'Q', len: len as i32 };
            assert_eq!(header(&with_len(len), MESSAGE_BYTES_MAX), Err(error));
        }
        for max in [AUTH_MESSAGE_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX] {
            let bound = max as u32;
            for len in [4, 5, bound - 1, bound] {
                let body = len as usize - 4;
                assert_eq!(header(&with_len(len), max), Ok(Some(Header { tag: b'Q', body })));
            }
            for len in [bound + 1, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff] {
                let error = header(&with_len(len), max).expect_err("above the bound");
                assert_eq!(error, DecodeError::LengthTooLarge { tag: b'Q', len, max });
                assert!(error.to_string().contains(&max.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn a_header_needs_all_its_bytes_and_a_body_too() {
        let bytes = [b'Q', 0, 0, 0, 6, b'a', 0];
        for end in 0..HEADER_BYTES {
            assert_eq!(header(&bytes[..end], MESSAGE_BYTES_MAX), Ok(None));
        }
        for end in 0..bytes.len() {
            assert_eq!(whole(&bytes[..end], MESSAGE_BYTES_MAX), Ok(None));
        }
        let (head, body) = whole(&bytes, MESSAGE_BYTES_MAX).expect("good").expect("whole");
        assert_eq!((head.tag, head.total(), body), (b'Q', 7, &b"a\0"[..]));
    }

    #[test]
    fn fields_never_read_past_the_body() {
        let mut f = Fields::new(b'x', &[1, 2, 3]);
        for len in [4, usize::MAX / 2, usize::MAX] {
            assert!(f.bytes(len, "value").is_err(), "{len}");
        }
        assert!(f.i32("number").is_err());
        assert!(f.cstr("name").is_err(), "no zero byte");
        assert_eq!(f.rest(), [1, 2, 3], "a read that fails takes nothing");
        assert_eq!(f.i16("number"), Ok(0x0102));
        let malformed = |what, flaw| DecodeError::Malformed { tag: b'x', what, flaw };
        assert_eq!(f.end(), Err(malformed("bytes after the last field", Flaw::Long)));
        assert_eq!(f.u8("byte"), Ok(3));
        assert_eq!(f.u8("byte"), Err(malformed("byte", Flaw::NoByte)));
        assert_eq!(f.end(), Ok(()));
    }

    #[test]
    fn a_string_ends_at_its_first_zero() {
        let mut out = Vec::new();
        put_cstr(&mut out, b"ab\0cd");
        assert_eq!(out, b"ab\0");
    }

    /// Frames of a stream that arrives in two pieces, the first of `at` bytes.
    fn frames(stream: &[u8], at: usize) -> Vec<(u8, Vec<u8>)> {
        let (mut buf, mut found) = (Vec::new(), Vec::new());
        for piece in [&stream[..at], &stream[at..]] {
            buf.extend_from_slice(piece);
            while let Some((head, body)) = whole(&buf, MESSAGE_BYTES_MAX).expect("good lengths") {
                found.push((head.tag, body.to_vec()));
                buf.drain(..head.total());
            }
        }
        assert!(buf.is_empty());
        found
    }

    proptest! {
        #[test]
        fn every_split_point_gives_the_same_frames(messages in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..30)), 0..8)) {
            let mut stream = Vec::new();
            for (tag, body) in &messages {
                put(&mut stream, *tag, |out| out.extend_from_slice(body));
            }
            for at in 0..=stream.len() {
                prop_assert_eq!(&frames(&stream, at), &messages);
            }
        }

        #[test]
        fn no_bytes_panic_and_no_header_exceeds_its_bound(buf in proptest::collection::vec(any::<u8>(), 0..64), max in 0usize..=MESSAGE_BYTES_MAX) {
            if let Ok(Some(head)) = header(&buf, max) {
                prop_assert!(head.body + 4 <= max);
                let body = whole(&buf, max).expect("the header was good");
                prop_assert_eq!(body.is_some(), buf.len() >= head.total());
            }
        }

        #[test]
        fn fields_come_back(a in any::<u8>(), b in any::<i16>(), c in any::<i32>(), text in proptest::collection::vec(1u8..=255, 0..20), rest in proptest::collection::vec(any::<u8>(), 0..20)) {
            let mut body = vec![a];
            body.extend_from_slice(&b.to_be_bytes());
            body.extend_from_slice(&c.to_be_bytes());
            put_cstr(&mut body, &text);
            body.extend_from_slice(&rest);
            let mut f = Fields::new(b'x', &body);
            prop_assert_eq!((f.u8("a"), f.i16("b"), f.i32("c")), (Ok(a), Ok(b), Ok(c)));
            prop_assert_eq!(f.cstr("text"), Ok(&text[..]));
            prop_assert_eq!(f.bytes(rest.len(), "rest"), Ok(&rest[..]));
            prop_assert_eq!(f.end(), Ok(()));
        }
    }
}
