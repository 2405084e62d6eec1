//! Messages that a client sends: type bytes, views, encoders.
//!
//! Views borrow from the buffer and have checked every length and count inside.
//! See "Message Formats" in the protocol chapter, entries marked (F).

use super::frame::{Fields, put, put_cstr};
use super::{DecodeError, Oid};

/// Bind
pub const BIND: u8 = b'B';
/// Close
pub const CLOSE: u8 = b'C';
/// CopyData
pub const COPY_DATA: u8 = b'd';
/// CopyDone
pub const COPY_DONE: u8 = b'c';
/// CopyFail
pub const COPY_FAIL: u8 = b'f';
/// Describe
pub const DESCRIBE: u8 = b'D';
/// Execute
pub const EXECUTE: u8 = b'E';
/// Flush
pub const FLUSH: u8 = b'H';
/// FunctionCall
pub const FUNCTION_CALL: u8 = b'F';
/// Parse
pub const PARSE: u8 = b'P';
/// PasswordMessage, SASLInitialResponse, SASLResponse, GSSResponse
pub const PASSWORD: u8 = b'p';
/// Query
pub const QUERY: u8 = b'Q';
/// Sync
pub const SYNC: u8 = b'S';
/// Terminate
pub const TERMINATE: u8 = b'X';

/// Query: the text, without its zero.
pub fn query(body: &[u8]) -> Result<&[u8], DecodeError> {
    let mut f = Fields::new(QUERY, body);
    let text = f.cstr("query string")?;
    f.end()?;
    Ok(text)
}

/// Parse.
#[derive(Debug, Clone, Copy)]
pub struct Parse<'a> {
    /// The statement's name; empty: the unnamed one.
    pub name: &'a [u8],
    /// The text.
    pub query: &'a [u8],
    /// Parameter type OIDs, four bytes each, as sent.
    pub types: &'a [u8],
}

impl<'a> Parse<'a> {
    /// From a body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut f = Fields::new(PARSE, body);
        let name = f.cstr("statement name")?;
        let query = f.cstr("query string")?;
        let count = f.i16("number of parameter types")?;
        let count = count as u16 as usize;
        let types = f.bytes(count * 4, "parameter types")?;
        f.end()?;
        Ok(Self { name, query, types })
    }

    /// The parameter types.
    pub fn oids(&self) -> impl Iterator<Item = Oid> + 'a {
        self.types.chunks_exact(4).map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]]))
    }
}

/// Appends Parse; `types` are OIDs in wire form (four bytes each).
pub fn put_parse(out: &mut Vec<u8>, name: &[u8], query: &[u8], types: &[u8]) {
    put(out, PARSE, |out| {
        put_cstr(out, name);
        put_cstr(out, query);
        out.extend_from_slice(&((types.len() / 4) as u16).to_be_bytes());
        out.extend_from_slice(types);
    });
}

/// Bind.
#[derive(Debug, Clone, Copy)]
pub struct Bind<'a> {
    /// The portal's name; empty: the unnamed one.
    pub portal: &'a [u8],
    /// The statement's name; empty: the unnamed one.
    pub statement: &'a [u8],
    /// Parameter format codes, two bytes each, as sent.
    pub formats: &'a [u8],
    /// Number of parameters.
    pub params_len: usize,
    /// Parameters, each a length word (-1: NULL) and its bytes, as sent.
    pub params: &'a [u8],
    /// Result format codes, two bytes each, as sent.
    pub result_formats: &'a [u8],
}

impl<'a> Bind<'a> {
    /// From a body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut f = Fields::new(BIND, body);
        let portal = f.cstr("portal name")?;
        let statement = f.cstr("statement name")?;
        let formats_len = f.i16("number of parameter formats")? as u16 as usize;
        let formats = f.bytes(formats_len * 2, "parameter formats")?;
        let params_len = f.i16("number of parameters")? as u16 as usize;
        let start = f.rest();
        for _ in 0..params_len {
            match f.i32("parameter length")? {
                -1 => {}
                len => {
                    let len = usize::try_from(len)
                        .map_err(|_| DecodeError::Malformed { tag: BIND, what: "parameter length" })?;
                    f.bytes(len, "parameter value")?;
                }
            }
        }
        let params = &start[..start.len() - f.rest().len()];
        let results_len = f.i16("number of result formats")? as u16 as usize;
        let result_formats = f.bytes(results_len * 2, "result formats")?;
        f.end()?;
        Ok(Self { portal, statement, formats, params_len, params, result_formats })
    }

    /// The parameters in order; `None` is NULL.
    pub fn values(&self) -> Values<'a> {
        Values { rest: self.params }
    }

    /// The format of parameter `i`: true is binary. Follows the rule of none, one for all, or one each.
    pub fn binary(&self, i: usize) -> bool {
        let code = match self.formats.len() / 2 {
            0 => return false,
            1 => &self.formats[..2],
            _ => match self.formats.get(i * 2..i * 2 + 2) {
                Some(code) => code,
                None => return false,
            },
        };
        code == [0, 1]
    }
}

/// Parameters of a [`Bind`], in order.
#[derive(Debug, Clone)]
pub struct Values<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Values<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&len, rest) = self.rest.split_first_chunk()?;
        match usize::try_from(i32::from_be_bytes(len)) {
            Err(_) => {
                self.rest = rest;
                Some(None)
            }
            Ok(len) => {
                let (value, rest) = rest.split_at_checked(len)?;
                self.rest = rest;
                Some(Some(value))
            }
        }
    }
}

/// Describe and Close: `S` or `P`, and a name.
pub fn target(tag: u8, body: &[u8]) -> Result<(u8, &[u8]), DecodeError> {
    let mut f = Fields::new(tag, body);
    let kind = f.u8("kind")?;
    let name = f.cstr("name")?;
    f.end()?;
    if !matches!(kind, b'S' | b'P') {
        return Err(DecodeError::Malformed { tag, what: "kind is neither 'S' nor 'P'" });
    }
    Ok((kind, name))
}

/// Appends Describe or Close of a statement (`S`) or portal (`P`).
pub fn put_target(out: &mut Vec<u8>, tag: u8, kind: u8, name: &[u8]) {
    put(out, tag, |out| {
        out.push(kind);
        put_cstr(out, name);
    });
}

/// Execute: portal name and row limit (0: none).
pub fn execute(body: &[u8]) -> Result<(&[u8], i32), DecodeError> {
    let mut f = Fields::new(EXECUTE, body);
    let portal = f.cstr("portal name")?;
    let limit = f.i32("row limit")?;
    f.end()?;
    Ok((portal, limit))
}

/// Appends Execute; `limit` 0 is no limit.
pub fn put_execute(out: &mut Vec<u8>, portal: &[u8], limit: i32) {
    put(out, EXECUTE, |out| {
        put_cstr(out, portal);
        out.extend_from_slice(&limit.to_be_bytes());
    });
}

/// Appends Bind with text parameters (`None`: NULL) and text results, to the unnamed portal.
pub fn put_bind_text(out: &mut Vec<u8>, statement: &[u8], params: &[Option<&[u8]>]) {
    put(out, BIND, |out| {
        out.push(0);
        put_cstr(out, statement);
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&(params.len() as u16).to_be_bytes());
        for param in params {
            match param {
                None => out.extend_from_slice(&(-1i32).to_be_bytes()),
                Some(value) => {
                    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
                    out.extend_from_slice(value);
                }
            }
        }
        out.extend_from_slice(&[0, 0]);
    });
}

/// Appends Query.
pub fn put_query(out: &mut Vec<u8>, text: &[u8]) {
    put(out, QUERY, |out| put_cstr(out, text));
}

/// Appends a message without a body (Sync, Flush, CopyDone, Terminate).
pub fn put_empty(out: &mut Vec<u8>, tag: u8) {
    out.extend_from_slice(&[tag, 0, 0, 0, 4]);
}

/// Appends CopyFail.
pub fn put_copy_fail(out: &mut Vec<u8>, reason: &[u8]) {
    put(out, COPY_FAIL, |out| put_cstr(out, reason));
}
