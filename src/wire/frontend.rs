//! Messages that a client sends: type bytes, views, encoders.
//!
//! Views borrow from the buffer and have checked every length and count inside.
//! See "Message Formats" in the protocol chapter, entries marked (F).

use super::frame::{Fields, put, put_cstr};
use super::{DecodeError, Flaw};

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

/// Is it the type of a message that comes after the login?
pub const fn is_known(tag: u8) -> bool {
    matches!(
        tag,
        BIND | CLOSE
            | COPY_DATA
            | COPY_DONE
            | COPY_FAIL
            | DESCRIBE
            | EXECUTE
            | FLUSH
            | FUNCTION_CALL
            | PARSE
            | QUERY
            | SYNC
            | TERMINATE
    )
}

/// Query: the text, without its zero.
///
/// Errors: no zero byte, or bytes after the first one.
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
    ///
    /// Errors: a name or text without its zero, a count of types that the body does not hold, or bytes left over.
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
    ///
    /// Errors: a name without its zero, a count or length that the body does not hold, or bytes left over.
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
                    let len =
                        usize::try_from(len).map_err(|_| f.malformed("parameter length", Flaw::Short))?;
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
        let mut codes = self.formats.chunks_exact(2);
        let at = if codes.len() == 1 { 0 } else { i };
        codes.nth(at) == Some(&[0, 1])
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
///
/// Errors: another letter, a name without its zero, or bytes left over.
pub fn target(tag: u8, body: &[u8]) -> Result<(u8, &[u8]), DecodeError> {
    let mut f = Fields::new(tag, body);
    let kind = f.u8("kind")?;
    let name = f.cstr("name")?;
    f.end()?;
    if !matches!(kind, b'S' | b'P') {
        let what = "kind is neither 'S' nor 'P'";
        return Err(DecodeError::Malformed { tag, what, flaw: Flaw::Value(kind) });
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
///
/// Errors: a name without its zero, a limit that is cut short, or bytes left over.
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
    put_bind_text_to(out, b"", statement, params);
}

/// As [`put_bind_text`], to the portal of this name.
pub fn put_bind_text_to(out: &mut Vec<u8>, portal: &[u8], statement: &[u8], params: &[Option<&[u8]>]) {
    put(out, BIND, |out| {
        put_cstr(out, portal);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::SMALL_MESSAGE_BYTES_MAX;
    use crate::wire::frame::whole;

    type Values = Vec<Option<Vec<u8>>>;

    /// The one message in `buf`: its tag and body.
    fn only(buf: &[u8]) -> (u8, &[u8]) {
        let (head, body) = whole(buf, SMALL_MESSAGE_BYTES_MAX).expect("a good header").expect("whole");
        assert_eq!(head.total(), buf.len(), "one message and nothing behind it");
        (head.tag, body)
    }

    /// Bytes as they may stand in a zero-terminated string.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(1u8..=255, 0..40)
    }

    fn values() -> impl Strategy<Value = Values> {
        let value = proptest::collection::vec(any::<u8>(), 0..20);
        proptest::collection::vec(proptest::option::of(value), 0..12)
    }

    /// Bind with every field chosen, for what `put_bind_text` never writes.
    fn bind(formats: &[i16], counted: u16, params: &[u8], results: &[i16]) -> Vec<u8> {
        let mut body = b"p\0s\0".to_vec();
        body.extend_from_slice(&(formats.len() as u16).to_be_bytes());
        formats.iter().for_each(|f| body.extend_from_slice(&f.to_be_bytes()));
        body.extend_from_slice(&counted.to_be_bytes());
        body.extend_from_slice(params);
        body.extend_from_slice(&(results.len() as u16).to_be_bytes());
        results.iter().for_each(|f| body.extend_from_slice(&f.to_be_bytes()));
        body
    }

    #[test]
    fn a_query_ends_at_its_zero_and_nowhere_else() {
        assert_eq!(query(b"select 1\0"), Ok(&b"select 1"[..]));
        assert!(query(b"").is_err());
        assert!(query(b"select 1").is_err());
        assert!(query(b"select 1\0; drop table t\0").is_err(), "a text behind the text");
    }

    #[test]
    fn parse_with_a_lying_count_is_refused() {
        for (count, given, good) in [
            (0u16, 0, true),
            (1, 1, true),
            (1, 0, false),
            (0, 1, false),
            (0x7fff, 1, false),
            (0x8000, 1, false),
            (0xffff, 1, false),
        ] {
            let mut body = b"s\0select $1\0".to_vec();
            body.extend_from_slice(&count.to_be_bytes());
            body.extend_from_slice(&vec![0; given * 4]);
            assert_eq!(Parse::decode(&body).is_ok(), good, "{count} announced, {given} given");
        }
        // PostgreSQL reads the count unsigned: 65,535 types are a message it takes.
        let mut body = b"s\0select $1\0".to_vec();
        body.extend_from_slice(&u16::MAX.to_be_bytes());
        body.extend_from_slice(&vec![0; usize::from(u16::MAX) * 4]);
        assert_eq!(Parse::decode(&body).map(|p| p.types.len()), Ok(usize::from(u16::MAX) * 4));
    }

    #[test]
    fn bind_with_a_lying_length_or_count_is_refused() {
        let one = |len: u32| Bind::decode(&bind(&[], 1, &len.to_be_bytes(), &[])).map(|b| b.params_len);
        assert_eq!(one(0), Ok(1));
        assert_eq!(one(u32::MAX), Ok(1), "NULL");
        for len in [1, 3, 4, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe] {
            assert!(one(len).is_err(), "length {len:#x}");
        }
        for count in [1, 2, 0x7fff, 0x8000, 0xffff] {
            assert!(Bind::decode(&bind(&[], count, b"", &[])).is_err(), "count {count:#x}");
        }
        for end in 0..bind(&[1], 1, &[0, 0, 0, 1, 7], &[1]).len() {
            assert!(Bind::decode(&bind(&[1], 1, &[0, 0, 0, 1, 7], &[1])[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn formats_are_none_one_for_all_or_one_each() {
        let nulls = [0xff; 12];
        for (formats, expected) in [
            (&[][..], [false, false, false]),
            (&[1][..], [true, true, true]),
            (&[0][..], [false, false, false]),
            (&[0, 1, 0][..], [false, true, false]),
            // Too few: the server refuses it; nothing here may read past them.
            (&[0, 1][..], [false, true, false]),
            // Not a format: never taken for binary.
            (&[2, 257, 1][..], [false, false, true]),
        ] {
            let body = bind(formats, 3, &nulls, &[]);
            let bind = Bind::decode(&body).expect("good");
            assert_eq!([0, 1, 2].map(|i| bind.binary(i)), expected, "{formats:?}");
            let _ = bind.binary(usize::MAX / 2);
        }
    }

    #[test]
    fn a_target_is_a_statement_or_a_portal() {
        for kind in 0..=255u8 {
            assert_eq!(target(CLOSE, &[kind, b'n', 0]).is_ok(), kind == b'S' || kind == b'P', "{kind}");
        }
        assert!(target(DESCRIBE, b"").is_err());
        assert!(target(DESCRIBE, b"S").is_err());
        assert!(target(DESCRIBE, b"Sn\0x").is_err());
    }

    proptest! {
        #[test]
        fn parse_comes_back(name in text(), query in text(), oids in proptest::collection::vec(any::<u32>(), 0..20)) {
            let types: Vec<u8> = oids.iter().flat_map(|o| o.to_be_bytes()).collect();
            let mut out = Vec::new();
            put_parse(&mut out, &name, &query, &types);
            let (tag, body) = only(&out);
            let parse = Parse::decode(body).expect("good");
            prop_assert_eq!((tag, parse.name, parse.query), (PARSE, &name[..], &query[..]));
            prop_assert_eq!(parse.types, types);
            for end in 0..body.len() {
                prop_assert!(Parse::decode(&body[..end]).is_err(), "cut at {}", end);
            }
        }

        #[test]
        fn bind_comes_back(statement in text(), values in values()) {
            let params: Vec<_> = values.iter().map(|v| v.as_deref()).collect();
            let mut out = Vec::new();
            put_bind_text(&mut out, &statement, &params);
            let (tag, body) = only(&out);
            let bind = Bind::decode(body).expect("good");
            prop_assert_eq!((tag, bind.portal, bind.statement), (BIND, &b""[..], &statement[..]));
            prop_assert_eq!(bind.params_len, params.len());
            prop_assert_eq!(bind.values().collect::<Vec<_>>(), params);
            for end in 0..body.len() {
                prop_assert!(Bind::decode(&body[..end]).is_err(), "cut at {}", end);
            }
        }

        #[test]
        fn the_small_ones_come_back(name in text(), limit in any::<i32>()) {
            let mut out = Vec::new();
            put_query(&mut out, &name);
            prop_assert_eq!(query(only(&out).1), Ok(&name[..]));
            out.clear();
            put_execute(&mut out, &name, limit);
            prop_assert_eq!(execute(only(&out).1), Ok((&name[..], limit)));
            for (tag, kind) in [(DESCRIBE, b'S'), (DESCRIBE, b'P'), (CLOSE, b'S'), (CLOSE, b'P')] {
                out.clear();
                put_target(&mut out, tag, kind, &name);
                prop_assert_eq!(only(&out).0, tag);
                prop_assert_eq!(target(tag, only(&out).1), Ok((kind, &name[..])));
            }
            out.clear();
            put_copy_fail(&mut out, &name);
            prop_assert_eq!(only(&out), (COPY_FAIL, &[&name[..], b"\0"].concat()[..]));
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = query(&body);
            let _ = execute(&body);
            let _ = target(DESCRIBE, &body);
            if let Ok(parse) = Parse::decode(&body) {
                prop_assert_eq!(parse.types.len() % 4, 0);
            }
            if let Ok(bind) = Bind::decode(&body) {
                prop_assert_eq!(bind.values().count(), bind.params_len);
            }
        }

        #[test]
        fn a_bind_of_noise_is_whole_or_refused(formats in proptest::collection::vec(any::<i16>(), 0..4), counted in 0u16..6, params in proptest::collection::vec(prop_oneof![Just(0u8), Just(255), Just(1), any::<u8>()], 0..40)) {
            if let Ok(bind) = Bind::decode(&bind(&formats, counted, &params, &[])) {
                prop_assert_eq!(bind.values().count(), bind.params_len);
                (0..bind.params_len + 2).for_each(|i| { let _ = bind.binary(i); });
            }
        }
    }
}
