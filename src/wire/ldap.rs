//! A directory's messages (LDAP, RFC 4511), as far as a login needs them, and the grammar of search filters (RFC 4515).
//!
//! Owns: how they lie in a buffer (BER, definite lengths). Never: what an answer means for the client that asked (that is [`crate::auth::ldap`]).

use std::fmt;

use zeroize::Zeroizing;

use crate::limits::{LDAP_FILTER_DEPTH_MAX, LDAP_MESSAGE_BYTES_MAX};
use crate::settings::LdapScope;

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;
const SEQUENCE: u8 = 0x30;

const BIND_REQUEST: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const UNBIND_REQUEST: u8 = 0x42;
const SEARCH_REQUEST: u8 = 0x63;
const SEARCH_ENTRY: u8 = 0x64;
const SEARCH_DONE: u8 = 0x65;
const SEARCH_REFERENCE: u8 = 0x73;
const EXTENDED_REQUEST: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;

/// Context tags: the simple password of a Bind, the name of an extended request.
const SIMPLE: u8 = 0x80;
const REQUEST_NAME: u8 = 0x80;

/// The protocol's version.
const VERSION: u8 = 3;

/// StartTLS (RFC 4511, 4.14).
const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";

/// The attribute list that asks for no attributes (RFC 4511, 4.5.1.8).
const NO_ATTRIBUTES: &[u8] = b"1.1";

/// One entry is right, and that there is a second is all that matters of it.
const ENTRIES_MAX: u8 = 2;

/// Bytes of a message. It may hold a password: it is wiped when dropped.
pub type Packet = Zeroizing<Vec<u8>>;

// ===== requests =====

/// Appends tag, length and contents.
fn put(out: &mut Vec<u8>, tag: u8, contents: &[u8]) {
    out.push(tag);
    let bytes = (contents.len() as u64).to_be_bytes();
    match contents.len() {
        short @ 0..=0x7f => out.push(short as u8),
        long => {
            let skip = (long as u64).leading_zeros() as usize / 8;
            out.push(0x80 | (bytes.len() - skip) as u8);
            out.extend_from_slice(&bytes[skip..]);
        }
    }
    out.extend_from_slice(contents);
}

/// Tag, length and contents, wiped when dropped.
fn element(tag: u8, parts: &[&[u8]]) -> Packet {
    let contents = Zeroizing::new(parts.concat());
    // It must not grow: what it grew out of would not be wiped.
    let mut out = Zeroizing::new(Vec::with_capacity(contents.len() + 2 + size_of::<u64>()));
    put(&mut out, tag, &contents);
    out
}

/// `number` is none that is negative.
fn message(number: i32, operation: &[u8]) -> Packet {
    let bytes = number.to_be_bytes();
    // As few bytes as hold it and its sign (X.690, 8.3.2).
    let skip = (number.leading_zeros().saturating_sub(1) / 8).min(3) as usize;
    element(SEQUENCE, &[&element(INTEGER, &[&bytes[skip..]]), operation])
}

/// Who says: I am `name`, this is my password.
pub fn bind(number: i32, name: &str, password: &str) -> Packet {
    let version = element(INTEGER, &[&[VERSION]]);
    let name = element(OCTET_STRING, &[name.as_bytes()]);
    let password = element(SIMPLE, &[password.as_bytes()]);
    message(number, &element(BIND_REQUEST, &[&version, &name, &password]))
}

/// Nothing more comes. It has no answer.
pub fn unbind(number: i32) -> Packet {
    message(number, &element(UNBIND_REQUEST, &[]))
}

/// TLS is to begin after the answer.
pub fn start_tls(number: i32) -> Packet {
    message(number, &element(EXTENDED_REQUEST, &[&element(REQUEST_NAME, &[START_TLS])]))
}

/// What is below `base`, as deep as `scope` goes, and meets the filter: their names alone.
pub fn search(number: i32, base: &str, scope: LdapScope, filter: &Filter) -> Packet {
    let depth = match scope {
        LdapScope::Base => 0,
        LdapScope::One => 1,
        LdapScope::Sub => 2,
    };
    let fields = [
        element(OCTET_STRING, &[base.as_bytes()]),
        element(ENUMERATED, &[&[depth]]),
        // Aliases are not followed.
        element(ENUMERATED, &[&[0]]),
        element(INTEGER, &[&[ENTRIES_MAX]]),
        // As long as the directory likes: we do not wait for ever.
        element(INTEGER, &[&[0]]),
        element(BOOLEAN, &[&[0]]),
    ];
    let attributes = element(SEQUENCE, &[&element(OCTET_STRING, &[NO_ATTRIBUTES])]);
    let mut parts: Vec<&[u8]> = fields.iter().map(|field| field.as_slice()).collect();
    parts.extend([filter.0.as_slice(), &attributes]);
    message(number, &element(SEARCH_REQUEST, &parts))
}

// ===== answers =====

/// What a directory says of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// 0 is success.
    pub code: u32,
    /// For people.
    pub remark: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.code {
            0 => "success",
            1 => "operationsError",
            2 => "protocolError",
            3 => "timeLimitExceeded",
            4 => "sizeLimitExceeded",
            8 => "strongerAuthRequired",
            10 => "referral",
            13 => "confidentialityRequired",
            14 => "saslBindInProgress",
            32 => "noSuchObject",
            34 => "invalidDNSyntax",
            48 => "inappropriateAuthentication",
            49 => "invalidCredentials",
            50 => "insufficientAccessRights",
            51 => "busy",
            52 => "unavailable",
            53 => "unwillingToPerform",
            _ => "another result",
        };
        write!(f, "{name} ({}) {:?}", self.code, self.remark)
    }
}

/// An answer of a directory's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To a Bind.
    Bound(Outcome),
    /// To an extended request; with the number 0, why it ends the connection.
    Extended(Outcome),
    /// An entry that a search found: its name.
    Entry(String),
    /// Another directory may know more.
    Reference,
    /// The search is over.
    Done(Outcome),
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// An answer at the front of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// The request's.
    pub number: u32,
    /// The answer itself.
    pub answer: Answer,
    /// Bytes that it takes.
    pub bytes: usize,
}

/// The answer at the front of `buf`; `None`: more is needed.
///
/// # Errors
/// It is longer than [`LDAP_MESSAGE_BYTES_MAX`], or none that is known here.
pub fn answer(buf: &[u8]) -> Result<Option<Numbered>, Malformed> {
    let Some((tag, length, head)) = header(buf)? else { return Ok(None) };
    if tag != SEQUENCE {
        return Err(Malformed("it is no LDAP message"));
    }
    if length > LDAP_MESSAGE_BYTES_MAX {
        return Err(Malformed("it is longer than 32 kB"));
    }
    let bytes = head + length;
    let Some(mut rest) = buf.get(head..bytes) else { return Ok(None) };
    let number = number(take(&mut rest, INTEGER)?)?;
    let (tag, mut body) = next(&mut rest)?;
    let answer = match tag {
        BIND_RESPONSE => Answer::Bound(outcome(&mut body)?),
        EXTENDED_RESPONSE => Answer::Extended(outcome(&mut body)?),
        SEARCH_DONE => Answer::Done(outcome(&mut body)?),
        SEARCH_REFERENCE => Answer::Reference,
        SEARCH_ENTRY => Answer::Entry(text(take(&mut body, OCTET_STRING)?)?),
        _ => return Err(Malformed("it is an answer to something else")),
    };
    Ok(Some(Numbered { number, answer, bytes }))
}

fn outcome(body: &mut &[u8]) -> Result<Outcome, Malformed> {
    let code = number(take(body, ENUMERATED)?)?;
    let _matched = take(body, OCTET_STRING)?;
    let remark = String::from_utf8_lossy(take(body, OCTET_STRING)?).into_owned();
    Ok(Outcome { code, remark })
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Malformed("a name in it is not UTF-8"))
}

/// One to four bytes, not negative.
fn number(bytes: &[u8]) -> Result<u32, Malformed> {
    match bytes {
        [first, ..] if *first < 0x80 && bytes.len() <= 4 => {
            Ok(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
        }
        _ => Err(Malformed("a number in it is none")),
    }
}

/// The next element, which must be of this tag.
fn take<'a>(rest: &mut &'a [u8], tag: u8) -> Result<&'a [u8], Malformed> {
    match next(rest)? {
        (found, body) if found == tag => Ok(body),
        _ => Err(Malformed("a field of it is another one")),
    }
}

/// The next element of a whole one.
fn next<'a>(rest: &mut &'a [u8]) -> Result<(u8, &'a [u8]), Malformed> {
    const SHORT: Malformed = Malformed("it ends before its last field");
    let (tag, length, head) = header(rest)?.ok_or(SHORT)?;
    let (element, after) = rest.split_at_checked(head + length).ok_or(SHORT)?;
    *rest = after;
    Ok((tag, &element[head..]))
}

/// Tag, length of the contents, bytes of both; `None`: more is needed. No length is above four bytes' worth.
fn header(buf: &[u8]) -> Result<Option<(u8, usize, usize)>, Malformed> {
    let (Some(tag), Some(first)) = (buf.first(), buf.get(1)) else { return Ok(None) };
    match *first {
        short @ 0..=0x7f => Ok(Some((*tag, usize::from(short), 2))),
        long @ 0x81..=0x84 => {
            let head = 2 + usize::from(long & 0x7f);
            let length = buf.get(2..head);
            Ok(length.map(|bytes| (*tag, bytes.iter().fold(0, |n, byte| n << 8 | usize::from(*byte)), head)))
        }
        _ => Err(Malformed("a length in it is none")),
    }
}

// ===== the filter =====

/// A search filter, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(Vec<u8>);

impl Filter {
    /// Of a text.
    ///
    /// # Errors
    /// What is wrong with it: "has no ) at byte 7".
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader { text, at: 0 };
        let filter = reader.filter(LDAP_FILTER_DEPTH_MAX)?;
        if reader.at < text.len() {
            return Err(reader.wrong("goes on behind its last )"));
        }
        Ok(Self(filter))
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn wrong(&self, what: &str) -> String {
        format!("{what} at byte {}", self.at + 1)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn eat(&mut self, what: &str) -> bool {
        let there = self.rest().starts_with(what);
        self.at += if there { what.len() } else { 0 };
        there
    }

    fn filter(&mut self, depth: usize) -> Result<Vec<u8>, String> {
        let Some(depth) = depth.checked_sub(1) else { return Err(self.wrong("is nested too deeply")) };
        if !self.eat("(") {
            return Err(self.wrong("has no ("));
        }
        let (tag, contents) = if self.eat("&") {
            (0xa0, self.list(depth)?)
        } else if self.eat("|") {
            (0xa1, self.list(depth)?)
        } else if self.eat("!") {
            (0xa2, self.filter(depth)?)
        } else {
            self.item()?
        };
        if !self.eat(")") {
            return Err(self.wrong("has no )"));
        }
        let mut out = Vec::new();
        put(&mut out, tag, &contents);
        Ok(out)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<u8>, String> {
        let mut list = Vec::new();
        while self.rest().starts_with('(') {
            list.extend(self.filter(depth)?);
        }
        Ok(list)
    }

    /// Attribute, kind of comparison, value.
    fn item(&mut self) -> Result<(u8, Vec<u8>), String> {
        let end = self.rest().find(['=', '~', '<', '>', '(', ')']).unwrap_or(self.rest().len());
        let attribute = self.rest()[..end].trim();
        self.at += end;
        let pair = |value: &[u8]| {
            let mut out = Vec::new();
            put(&mut out, OCTET_STRING, attribute.as_bytes());
            put(&mut out, OCTET_STRING, value);
            out
        };
        if attribute.is_empty() {
            return Err(self.wrong("has no attribute"));
        }
        for (sign, tag) in [(">=", 0xa5), ("<=", 0xa6), ("~=", 0xa8)] {
            if self.eat(sign) {
                return Ok((tag, pair(&self.whole_value()?)));
            }
        }
        if !self.eat("=") {
            return Err(self.wrong("has no ="));
        }
        if let Some(rule) = attribute.strip_suffix(':') {
            return Ok((0xa9, by_rule(rule, &self.whole_value()?)));
        }
        let pieces = self.value()?;
        Ok(match pieces.as_slice() {
            [whole] => (0xa3, pair(whole)),
            [first, last] if first.is_empty() && last.is_empty() => (0x87, attribute.into()),
            pieces => (0xa4, substring(attribute, pieces)),
        })
    }

    fn whole_value(&mut self) -> Result<Vec<u8>, String> {
        match self.value()?.as_mut_slice() {
            [whole] => Ok(std::mem::take(whole)),
            _ => Err(self.wrong("has a * where none can be, before the )")),
        }
    }

    /// The pieces of a value between its `*`; at least one.
    fn value(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let end = self.rest().find(['(', ')']).unwrap_or(self.rest().len());
        let pieces =
            self.rest()[..end].split('*').map(|piece| unescaped(piece, b'\\')).collect::<Option<_>>();
        let pieces = pieces.ok_or_else(|| self.wrong("has a \\ without the two digits of a byte"))?;
        self.at += end;
        Ok(pieces)
    }
}

/// `attribute[:dn][:rule]`, of which the attribute may be left out.
fn by_rule(left: &str, value: &[u8]) -> Vec<u8> {
    let (attribute, rest) = left.split_once(':').unwrap_or((left, ""));
    let (dn, rule) = match rest.strip_prefix("dn") {
        Some("") => (true, ""),
        Some(rest) if rest.starts_with(':') => (true, &rest[1..]),
        _ => (false, rest),
    };
    let mut out = Vec::new();
    for (tag, text) in [(0x81, rule), (0x82, attribute)] {
        if !text.is_empty() {
            put(&mut out, tag, text.as_bytes());
        }
    }
    put(&mut out, 0x83, value);
    if dn {
        put(&mut out, 0x84, &[0xff]);
    }
    out
}

/// At least two pieces.
fn substring(attribute: &str, pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut list = Vec::new();
    for (n, piece) in pieces.iter().enumerate().filter(|(_, piece)| !piece.is_empty()) {
        let tag = match n {
            0 => 0x80,
            n if n + 1 == pieces.len() => 0x82,
            _ => 0x81,
        };
        put(&mut list, tag, piece);
    }
    let mut out = Vec::new();
    put(&mut out, OCTET_STRING, attribute.as_bytes());
    put(&mut out, SEQUENCE, &list);
    out
}

/// The bytes of `text`, in which `escape` and two hex digits are a byte; `None`: the digits are missing.
pub fn unescaped(text: &str, escape: u8) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        bytes.push(match byte {
            byte if byte == escape => (digit(rest.next())? << 4 | digit(rest.next())?) as u8,
            byte => byte,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use ldap3_proto::LdapCodec;
    use ldap3_proto::proto::{
        LdapBindCred, LdapBindResponse, LdapFilter, LdapMsg, LdapOp, LdapResult, LdapResultCode,
        LdapSearchResultEntry, LdapSearchScope, LdapSubstringFilter,
    };
    use proptest::prelude::*;
    use tokio_util::codec::{Decoder, Encoder};

    use super::*;

    /// What another implementation reads.
    fn read(packet: &[u8]) -> LdapMsg {
        let mut buf = BytesMut::from(packet);
        let message = LdapCodec::default().decode(&mut buf).unwrap().unwrap();
        assert!(buf.is_empty());
        message
    }

    /// What another implementation writes.
    fn written(msgid: i32, op: LdapOp) -> Vec<u8> {
        let mut out = BytesMut::new();
        LdapCodec::default().encode(LdapMsg { msgid, op, ctrl: Vec::new() }, &mut out).unwrap();
        out.to_vec()
    }

    fn result(code: LdapResultCode, remark: &str) -> LdapResult {
        LdapResult {
            code,
            matcheddn: "dc=x".into(),
            message: remark.into(),
            referral: vec!["ldap://a".into()],
        }
    }

    fn meant(filter: &str) -> LdapFilter {
        let packet = search(1, "dc=x", LdapScope::Sub, &Filter::parse(filter).unwrap());
        let LdapOp::SearchRequest(request) = read(&packet).op else { panic!() };
        request.filter
    }

    fn equals(attribute: &str, value: &str) -> LdapFilter {
        LdapFilter::Equality(attribute.into(), value.into())
    }

    #[test]
    fn requests_are_what_they_say() {
        for password in ["open sesame", &"long ".repeat(30), &"longer".repeat(200)] {
            let packet = bind(7, "uid=ann,dc=x", password);
            let LdapMsg { msgid: 7, op: LdapOp::BindRequest(request), .. } = read(&packet) else { panic!() };
            assert_eq!((request.version, request.dn.as_str()), (3, "uid=ann,dc=x"));
            assert_eq!(request.cred, LdapBindCred::Simple(password.into()));
        }
        for (number, bytes) in [(1, 1), (127, 1), (128, 2), (300, 2), (40_000, 3), (i32::MAX, 4)] {
            let packet = unbind(number);
            assert_eq!((read(&packet).msgid, packet[3]), (number, bytes));
        }
        let LdapOp::ExtendedRequest(request) = read(&start_tls(1)).op else { panic!() };
        assert_eq!((request.name.as_str(), request.value), ("1.3.6.1.4.1.1466.20037", None));
        for (scope, theirs) in [
            (LdapScope::Base, LdapSearchScope::Base),
            (LdapScope::One, LdapSearchScope::OneLevel),
            (LdapScope::Sub, LdapSearchScope::Subtree),
        ] {
            let packet = search(2, "dc=x", scope, &Filter::parse("(uid=ann)").unwrap());
            let LdapOp::SearchRequest(request) = read(&packet).op else { panic!() };
            assert_eq!((request.base.as_str(), request.scope, request.sizelimit), ("dc=x", theirs, 2));
            assert_eq!((request.filter, request.attrs), (equals("uid", "ann"), Vec::<String>::new()));
            // What it makes nothing of.
            assert!(packet.ends_with(b"\x30\x05\x04\x031.1"));
        }
    }

    #[test]
    fn filters_are_read() {
        let part = |initial: Option<&str>, any: &[&str], last: Option<&str>| LdapSubstringFilter {
            initial: initial.map(Into::into),
            any: any.iter().map(|&piece| piece.into()).collect(),
            final_: last.map(Into::into),
        };
        for (text, filter) in [
            ("(uid=ann)", equals("uid", "ann")),
            ("(memberOf=CN=a b,OU=c)", equals("memberOf", "CN=a b,OU=c")),
            ("(o=Parens R Us \\28for all your needs\\29)", equals("o", "Parens R Us (for all your needs)")),
            ("(cn=\\c3\\a9)", equals("cn", "\u{e9}")),
            ("(uid=*)", LdapFilter::Present("uid".into())),
            ("(cn=a*b*c)", LdapFilter::Substring("cn".into(), part(Some("a"), &["b"], Some("c")))),
            ("(cn=*b*)", LdapFilter::Substring("cn".into(), part(None, &["b"], None))),
            ("(cn=\\2a)", equals("cn", "*")),
            ("(n>=3)", LdapFilter::GreaterOrEqual("n".into(), "3".into())),
            ("(n<=3)", LdapFilter::LessOrEqual("n".into(), "3".into())),
            ("(n~=3)", LdapFilter::Approx("n".into(), "3".into())),
            ("(&)", LdapFilter::And(Vec::new())),
            (
                "(&(a=b)(|(c=d)(!(e=f))))",
                LdapFilter::And(vec![
                    equals("a", "b"),
                    LdapFilter::Or(vec![equals("c", "d"), LdapFilter::Not(Box::new(equals("e", "f")))]),
                ]),
            ),
        ] {
            assert_eq!(meant(text), filter, "{text}");
        }
        for (text, attribute, rule, dn) in [
            (
                "(memberOf:1.2.840.113556.1.4.1941:=CN=a)",
                Some("memberOf"),
                Some("1.2.840.113556.1.4.1941"),
                false,
            ),
            ("(o:dn:=CN=a)", Some("o"), None, true),
            ("(:dn:2.4.6:=CN=a)", None, Some("2.4.6"), true),
        ] {
            let LdapFilter::Extensible(found) = meant(text) else { panic!("{text}") };
            assert_eq!((found.type_.as_deref(), found.matching_rule.as_deref()), (attribute, rule), "{text}");
            assert_eq!((found.match_value.as_str(), found.dn_attributes), ("CN=a", dn), "{text}");
        }
    }

    #[test]
    fn what_is_no_filter_is_told() {
        let deep =
            format!("{}(a=b){}", "(!".repeat(LDAP_FILTER_DEPTH_MAX), ")".repeat(LDAP_FILTER_DEPTH_MAX));
        for text in
            ["", "a=b", "(a=b", "(a=b))", "(=b)", "(a)", "(a=\\2)", "(a=\\+1)", "(a>=*)", "((a=b))", &deep]
        {
            assert!(Filter::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn answers_are_read_when_they_are_whole() {
        let outcome = |code, remark: &str| Outcome { code, remark: remark.into() };
        let remark = "no ".repeat(100);
        let entry = LdapSearchResultEntry { dn: "uid=ann,dc=x".into(), attributes: Vec::new() };
        for (op, answer) in [
            (
                LdapOp::BindResponse(LdapBindResponse {
                    res: result(LdapResultCode::InvalidCredentials, &remark),
                    saslcreds: None,
                }),
                Answer::Bound(outcome(49, &remark)),
            ),
            (LdapOp::SearchResultEntry(entry), Answer::Entry("uid=ann,dc=x".into())),
            (LdapOp::SearchResultDone(result(LdapResultCode::Success, "")), Answer::Done(outcome(0, ""))),
        ] {
            let mut buf = written(5, op);
            let bytes = buf.len();
            for end in 0..bytes {
                assert_eq!(super::answer(&buf[..end]), Ok(None));
            }
            buf.extend_from_slice(b"more");
            assert_eq!(super::answer(&buf), Ok(Some(Numbered { number: 5, answer, bytes })));
        }
    }

    #[test]
    fn what_is_no_answer_is_told() {
        let right = b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x00";
        assert!(matches!(
            answer(right),
            Ok(Some(Numbered { number: 1, answer: Answer::Bound(_), bytes: 14 }))
        ));
        // A length that goes further than what holds it, an indefinite one, five bytes of one, a negative number, a request.
        for (at, byte) in
            [(6, 0x08), (1, 0x80), (1, 0x85), (4, 0xff), (9, 0xff), (5, 0x60), (0, 0x31), (12, 0x02)]
        {
            let mut wrong = right.to_vec();
            wrong[at] = byte;
            assert!(answer(&wrong).is_err(), "{byte:#x} at {at}");
        }
        assert!(answer(b"\x30\x84\x00\x00\x80\x01").is_err());
        assert_eq!(answer(b"\x30\x84\x00\x00\x80\x00"), Ok(None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = answer(&bytes);
        }

        #[test]
        fn any_body_is_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let found = answer(&element(SEQUENCE, &[b"\x02\x01\x01\x61", &body]));
            prop_assert!(!matches!(found, Ok(None)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[()&|!=*~<>a:\\\\2é]{0,40}") {
            if Filter::parse(&text).is_ok() {
                let _ = read(&search(1, "", LdapScope::Sub, &Filter::parse(&text).unwrap()));
            }
        }

        #[test]
        fn what_another_writes_is_read(number in 0..i32::MAX, code in 0..100u32, remark in "\\PC{0,300}") {
            let theirs = LdapResult {
                code: LdapResultCode::Success, matcheddn: String::new(), message: remark.clone(), referral: Vec::new(),
            };
            let mut buf = written(number, LdapOp::SearchResultDone(theirs));
            let at = buf.windows(3).position(|w| w == b"\x0a\x01\x00").unwrap();
            buf[at + 2] = code as u8;
            let bytes = buf.len();
            let answer = Answer::Done(Outcome { code, remark });
            prop_assert_eq!(super::answer(&buf), Ok(Some(Numbered { number: number as u32, answer, bytes })));
        }
    }
}
