//! Header walking: where one message ends and the next begins.
//!
//! A message is a type byte, a length word (which counts itself but not the type byte), a body.
//! See "Messaging Overview" in the protocol chapter.

use super::DecodeError;

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

    fn missing(&self, what: &'static str) -> DecodeError {
        DecodeError::Malformed { tag: self.tag, what }
    }

    /// A zero-terminated string, without its zero.
    pub fn cstr(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let end = memchr::memchr(0, self.rest).ok_or_else(|| self.missing(what))?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Ok(text)
    }

    /// One byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        let (&byte, rest) = self.rest.split_first().ok_or_else(|| self.missing(what))?;
        self.rest = rest;
        Ok(byte)
    }

    /// A 16-bit number.
    pub fn i16(&mut self, what: &'static str) -> Result<i16, DecodeError> {
        let (&bytes, rest) = self.rest.split_first_chunk().ok_or_else(|| self.missing(what))?;
        self.rest = rest;
        Ok(i16::from_be_bytes(bytes))
    }

    /// A 32-bit number.
    pub fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        let (&bytes, rest) = self.rest.split_first_chunk().ok_or_else(|| self.missing(what))?;
        self.rest = rest;
        Ok(i32::from_be_bytes(bytes))
    }

    /// `len` bytes.
    pub fn bytes(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        if len > self.rest.len() {
            return Err(self.missing(what));
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
    pub fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.missing("bytes after the last field")) }
    }
}
