//! Startup packets: StartupMessage, SSLRequest, GSSENCRequest, CancelRequest.
//!
//! They have no type byte: a length word (which counts itself), a code, a body. Owns: their grammar,
//! the grammar of `options`, and the messages of the login that follow them. Never: what a name or a
//! setting means. See "Start-up" in the message-flow section of the protocol chapter.

mod options;

use super::frame::{Fields, put, put_cstr};
use super::{DecodeError, Flaw, backend, frontend};
use crate::error::{Error, Kind};
use crate::limits::{CANCEL_KEY_BYTES_MAX, NAME_BYTES_MAX, STARTUP_BYTES_MAX};

pub use options::{parse_options, setting_parameters};

/// The newest minor of protocol 3 that we speak.
pub const NEWEST_MINOR: u16 = 2;

/// Length word and code.
pub const HEADER_BYTES: usize = 8;

const CANCEL_REQUEST: u32 = 1234 << 16 | 5678;
const SSL_REQUEST: u32 = 1234 << 16 | 5679;
const GSSENC_REQUEST: u32 = 1234 << 16 | 5680;

/// The first byte of a TLS handshake record, which no startup packet of a valid length can begin with.
pub const TLS_HANDSHAKE: u8 = 0x16;

/// ALPN's name of the protocol.
pub const ALPN: &[u8] = b"postgresql";

/// A packet from a client that has not logged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartupPacket<'a> {
    /// A session is asked for.
    Startup(StartupMessage<'a>),
    /// TLS is asked for.
    SslRequest,
    /// GSSAPI encryption is asked for.
    GssEncRequest,
    /// A query shall be cancelled.
    CancelRequest {
        /// Which session.
        pid: i32,
        /// Its secret, 4 to 256 bytes.
        key: &'a [u8],
    },
}

/// StartupMessage: the asked-for version and the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupMessage<'a> {
    /// Major version.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
    /// Name and value pairs, checked, without the final zero.
    params: &'a [u8],
}

impl<'a> StartupMessage<'a> {
    /// The parameters in order.
    pub fn params(&self) -> Params<'a> {
        Params { rest: self.params }
    }
}

/// Parameters of a [`StartupMessage`], in order.
#[derive(Debug, Clone)]
pub struct Params<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Params<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let mut fields = Fields::new(0, self.rest);
        let name = fields.cstr("parameter name").ok()?;
        let value = fields.cstr("parameter value").ok()?;
        self.rest = fields.rest();
        Some((name, value))
    }
}

fn malformed(what: &'static str) -> DecodeError {
    DecodeError::Malformed { tag: 0, what, flaw: Flaw::Short }
}

/// The length of the packet that `word` opens (bytes, the word included), within the bounds.
///
/// Errors: a word below [`HEADER_BYTES`] or above [`STARTUP_BYTES_MAX`].
pub fn length(word: [u8; 4]) -> Result<usize, DecodeError> {
    let len = u32::from_be_bytes(word);
    if len < HEADER_BYTES as u32 {
        return Err(DecodeError::LengthTooSmall { tag: 0, len: len as i32 });
    }
    if len as usize > STARTUP_BYTES_MAX {
        return Err(DecodeError::LengthTooLarge { tag: 0, len, max: STARTUP_BYTES_MAX });
    }
    Ok(len as usize)
}

impl<'a> StartupPacket<'a> {
    /// The packet at the start of `buf` and its length, or `None` while part of it is missing.
    ///
    /// Errors: a length outside the bounds, or what [`StartupPacket::decode`] refuses.
    pub fn whole(buf: &'a [u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        let Some(&word) = buf.first_chunk() else { return Ok(None) };
        let len = length(word)?;
        match buf.get(4..len) {
            None => Ok(None),
            Some(packet) => Ok(Some((Self::decode(packet)?, len))),
        }
    }

    /// From what follows the length word: code and body.
    ///
    /// Errors: a body that is not that of its code.
    pub fn decode(packet: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::new(0, packet);
        let code = fields.i32("protocol version")? as u32;
        match code {
            // What else they hold is nothing to anybody, as PostgreSQL has it.
            SSL_REQUEST => Ok(Self::SslRequest),
            GSSENC_REQUEST => Ok(Self::GssEncRequest),
            CANCEL_REQUEST => cancel_request(fields),
            _ => {
                let (major, minor) = ((code >> 16) as u16, code as u16);
                // Another major's body is not ours to read.
                let params = if major == 3 { parameters(fields.rest())? } else { &[] };
                Ok(Self::Startup(StartupMessage { major, minor, params }))
            }
        }
    }
}

/// Is it one by its code, whatever its length? From what follows the length word.
pub fn is_cancel_request(packet: &[u8]) -> bool {
    packet.starts_with(&CANCEL_REQUEST.to_be_bytes())
}

/// Does its sender speak version 1 or 2? From what follows the length word.
pub fn is_old(packet: &[u8]) -> bool {
    matches!(packet.first_chunk(), Some(&version) if (1..3 << 16).contains(&u32::from_be_bytes(version)))
}

fn cancel_request(mut fields: Fields<'_>) -> Result<StartupPacket<'_>, DecodeError> {
    let pid = fields.i32("process id")?;
    let key = fields.rest();
    if key.len() < 4 || key.len() > CANCEL_KEY_BYTES_MAX {
        return Err(malformed("length of cancel request packet"));
    }
    Ok(StartupPacket::CancelRequest { pid, key })
}

/// Checks the pairs and the final zero; returns the pairs.
fn parameters(body: &[u8]) -> Result<&[u8], DecodeError> {
    // PostgreSQL has one word for whatever is wrong here: it reads pairs up to the first empty name, which must be the end.
    let flaw = || malformed("expected terminator as last byte");
    let pairs = body.strip_suffix(b"\0").ok_or_else(flaw)?;
    let mut fields = Fields::new(0, pairs);
    while !fields.rest().is_empty() {
        if fields.cstr("parameter name").map_err(|_| flaw())?.is_empty() {
            return Err(flaw());
        }
        fields.cstr("parameter value").map_err(|_| flaw())?;
    }
    Ok(pairs)
}

/// What a [`DecodeError`] of a startup packet is called, in PostgreSQL's words.
pub fn startup_error(error: DecodeError) -> Error {
    let violation = |message| Error::new(Kind::ProtocolViolation, message);
    match error {
        DecodeError::LengthTooSmall { .. } | DecodeError::LengthTooLarge { .. } => {
            violation("invalid length of startup packet")
                .with_detail(format!("A startup packet has {HEADER_BYTES} to {STARTUP_BYTES_MAX} bytes."))
        }
        DecodeError::Malformed { what, .. } => {
            Error::new(Kind::ProtocolViolation, format!("invalid startup packet layout: {what}"))
        }
    }
}

// ===== what a StartupMessage asks for =====

/// What kind of connection a StartupMessage asks for. See "Streaming Replication Protocol" in the protocol chapter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Replication {
    /// One for SQL.
    #[default]
    None,
    /// One for the write-ahead log; the database it names means nothing.
    Physical,
    /// One for the changes of a database, and for SQL by simple queries.
    Logical,
}

impl Replication {
    /// As the console shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Physical => "physical",
            Self::Logical => "logical",
        }
    }

    /// The parameter that asks for it.
    pub fn parameter(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::None => None,
            Self::Physical => Some(("replication", "true")),
            Self::Logical => Some(("replication", "database")),
        }
    }
}

/// A StartupMessage, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Startup {
    /// The minor of protocol 3 that is spoken from here on: what was asked for, or our newest.
    pub minor: u16,
    /// Who.
    pub user: String,
    /// Where to; the user's name if the client did not say.
    pub database: String,
    /// Run-time settings in the order they take effect: those of `options`, then the packet's own.
    pub params: Vec<(String, String)>,
    /// `options` as sent.
    pub options: Option<String>,
    /// Whether a replication connection is asked for.
    pub replication: Replication,
    /// Said before authentication if the client asked for more than we have.
    pub negotiate: Option<Negotiate>,
}

/// What NegotiateProtocolVersion says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiate {
    /// The minor that is spoken.
    pub minor: u16,
    /// Protocol options (`_pq_.*`) that were asked for and are not known.
    pub unrecognized: Vec<String>,
}

/// Settings that PgBouncer carries for each client, and so takes from `options` that it otherwise ignores.
const KEPT_OF_OPTIONS: [&str; 6] = [
    "application_name",
    "client_encoding",
    "DateStyle",
    "IntervalStyle",
    "standard_conforming_strings",
    "TimeZone",
];

impl Startup {
    /// The last value of setting `name` (compared as PostgreSQL does, without regard to case).
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().rev().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// Reads what the packet asks for.
    ///
    /// Errors: the packet's own faults, each with PostgreSQL's SQLSTATE: no user, a value that is no text, `options` that
    /// can't be read.
    pub fn read(message: &StartupMessage<'_>) -> Result<Self, Error> {
        Self::read_but(message, |_| false)
    }

    /// The same, without `options` where that is `dropped`, but for what is in [`KEPT_OF_OPTIONS`]; whether the rest can be read
    /// does not matter then.
    ///
    /// Errors: as those of [`Self::read`].
    pub fn read_but(message: &StartupMessage<'_>, dropped: impl Fn(&str) -> bool) -> Result<Self, Error> {
        supported(message)?;
        let mut asked = Asked { drops_options: dropped("options"), ..Asked::default() };
        for (name, value) in message.params() {
            asked.take(text("parameter name", name)?, value)?;
        }
        asked.finish(message.minor)
    }
}

fn supported(message: &StartupMessage<'_>) -> Result<(), Error> {
    if message.major == 3 {
        return Ok(());
    }
    Err(unsupported_version(message.major, message.minor))
}

/// The error of a packet whose code stands for no protocol here; `packet` is what follows the length word.
pub fn unsupported(packet: &[u8]) -> Error {
    let word = |at: usize| packet.get(at..at + 2).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]));
    unsupported_version(word(0), word(2))
}

fn unsupported_version(major: u16, minor: u16) -> Error {
    let what =
        format!("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.{NEWEST_MINOR}");
    Error::new(Kind::UnsupportedProtocol, what)
}

fn text<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, Error> {
    std::str::from_utf8(bytes).map_err(|_| {
        Error::new(Kind::InvalidEncoding, format!("invalid byte sequence for encoding \"UTF8\" in {what}"))
    })
}

/// What was found in the packet so far.
#[derive(Default)]
struct Asked {
    user: Option<String>,
    database: Option<String>,
    options: Option<String>,
    drops_options: bool,
    params: Vec<(String, String)>,
    replication: Replication,
    unrecognized: Vec<String>,
}

impl Asked {
    fn take(&mut self, name: &str, value: &[u8]) -> Result<(), Error> {
        match name {
            "user" => self.user = Some(text("user", value)?.to_owned()),
            "database" => self.database = Some(text("database", value)?.to_owned()),
            "options" if self.drops_options => self.options = text("options", value).ok().map(str::to_owned),
            "options" => self.options = Some(text("options", value)?.to_owned()),
            "replication" => self.replication = replication(text(name, value)?)?,
            "application_name" => self.params.push((name.to_owned(), clean_ascii(value))),
            _ if name.starts_with("_pq_.") => self.unrecognized.push(name.to_owned()),
            _ => self.params.push((name.to_owned(), text(name, value)?.to_owned())),
        }
        Ok(())
    }

    fn finish(self, asked_minor: u16) -> Result<Startup, Error> {
        let user = self.user.filter(|user| !user.is_empty()).ok_or_else(|| {
            Error::new(Kind::InvalidAuthorization, "no PostgreSQL user name specified in startup packet")
        })?;
        let database = self.database.filter(|name| !name.is_empty()).unwrap_or_else(|| user.clone());
        // The server cuts them, too: a rule for the name that it reads must not be missed because of what follows.
        let (user, database) = (as_far_as_it_is_read(user), as_far_as_it_is_read(database));
        let mut params = match self.options.as_deref().map(parse_options).transpose() {
            Err(_) if self.drops_options => Vec::new(),
            found => found?.unwrap_or_default(),
        };
        if self.drops_options {
            params.retain(|(name, _)| KEPT_OF_OPTIONS.iter().any(|kept| kept.eq_ignore_ascii_case(name)));
        }
        params.extend(self.params);
        let minor = asked_minor.min(NEWEST_MINOR);
        let negotiate = (asked_minor > NEWEST_MINOR || !self.unrecognized.is_empty())
            .then_some(Negotiate { minor, unrecognized: self.unrecognized });
        let Self { replication, .. } = self;
        let options = self.options.filter(|_| !self.drops_options);
        Ok(Startup { minor, user, database, params, options, replication, negotiate })
    }
}

fn as_far_as_it_is_read(mut name: String) -> String {
    name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
    name
}

/// `replication` is a boolean in PostgreSQL's spelling, or `database`.
fn replication(value: &str) -> Result<Replication, Error> {
    let lower = value.to_ascii_lowercase();
    let prefix_of = |word: &str| !lower.is_empty() && word.starts_with(lower.as_str());
    let no = prefix_of("false") || prefix_of("no") || lower == "off" || lower == "of" || lower == "0";
    if no {
        return Ok(Replication::None);
    }
    if prefix_of("true") || prefix_of("yes") || lower == "on" || lower == "1" {
        return Ok(Replication::Physical);
    }
    if value == "database" {
        return Ok(Replication::Logical);
    }
    let what = format!("invalid value for parameter \"replication\": \"{}\"", name_for_message(value));
    Err(Error::new(Kind::InvalidParameter, what)
        .with_hint("Valid values are: \"false\", 0, \"true\", 1, \"database\"."))
}

/// As PostgreSQL cleans application_name: what is not printable ASCII becomes `\x` and two hex digits.
fn clean_ascii(value: &[u8]) -> String {
    use std::fmt::Write;
    let mut clean = String::with_capacity(value.len());
    for &byte in value {
        if (0x20..0x7f).contains(&byte) {
            clean.push(char::from(byte));
        } else {
            let _ = write!(clean, "\\x{byte:02x}");
        }
    }
    clean
}

/// A name from the wire, cut to what a message may hold.
fn name_for_message(name: &str) -> &str {
    let mut end = name.len().min(crate::limits::LOG_NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

// ===== encoders =====

/// Appends a packet without a type byte.
fn put_packet(out: &mut Vec<u8>, code: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&code.to_be_bytes());
    body(out);
    let len = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}

/// Appends SSLRequest.
pub fn put_ssl_request(out: &mut Vec<u8>) {
    put_packet(out, SSL_REQUEST, |_| {});
}

/// Appends CancelRequest.
pub fn put_cancel_request(out: &mut Vec<u8>, pid: i32, key: &[u8]) {
    put_packet(out, CANCEL_REQUEST, |out| {
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// Appends StartupMessage of protocol 3.`minor`. Names are not empty.
pub fn put_startup<'a>(
    out: &mut Vec<u8>,
    minor: u16,
    params: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) {
    put_packet(out, 3 << 16 | u32::from(minor), |out| {
        for (name, value) in params {
            put_cstr(out, name);
            put_cstr(out, value);
        }
        out.push(0);
    });
}

// ===== authentication messages =====

/// Authentication... codes.
pub mod authentication {
    /// AuthenticationOk
    pub const OK: i32 = 0;
    /// AuthenticationCleartextPassword
    pub const CLEARTEXT_PASSWORD: i32 = 3;
    /// AuthenticationMD5Password
    pub const MD5_PASSWORD: i32 = 5;
    /// AuthenticationSASL
    pub const SASL: i32 = 10;
    /// AuthenticationSASLContinue
    pub const SASL_CONTINUE: i32 = 11;
    /// AuthenticationSASLFinal
    pub const SASL_FINAL: i32 = 12;
}

/// Appends Authentication... with what follows its code.
pub fn put_authentication(out: &mut Vec<u8>, code: i32, data: &[u8]) {
    put(out, backend::AUTHENTICATION, |out| {
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(data);
    });
}

/// Appends AuthenticationSASL with the mechanisms offered.
pub fn put_sasl_mechanisms(out: &mut Vec<u8>, mechanisms: &[&str]) {
    put(out, backend::AUTHENTICATION, |out| {
        out.extend_from_slice(&authentication::SASL.to_be_bytes());
        for mechanism in mechanisms {
            put_cstr(out, mechanism.as_bytes());
        }
        out.push(0);
    });
}

/// Appends the FATAL error that versions 1 and 2 can read: no length, one line of text.
pub fn put_old_error(out: &mut Vec<u8>, message: &str) {
    out.push(backend::ERROR_RESPONSE);
    put_cstr(out, format!("FATAL:  {message}\n").as_bytes());
}

/// Appends NegotiateProtocolVersion.
pub fn put_negotiate(out: &mut Vec<u8>, negotiate: &Negotiate) {
    put(out, backend::NEGOTIATE_PROTOCOL_VERSION, |out| {
        out.extend_from_slice(&(3 << 16 | u32::from(negotiate.minor)).to_be_bytes());
        out.extend_from_slice(&(negotiate.unrecognized.len() as u32).to_be_bytes());
        for option in &negotiate.unrecognized {
            put_cstr(out, option.as_bytes());
        }
    });
}

/// Authentication...: the code, and what follows it.
///
/// Errors: no code.
pub fn authentication(body: &[u8]) -> Result<(i32, &[u8]), DecodeError> {
    let mut fields = Fields::new(backend::AUTHENTICATION, body);
    let code = fields.i32("authentication code")?;
    Ok((code, fields.rest()))
}

/// NegotiateProtocolVersion: the minor that is spoken, and how many options were not recognised.
///
/// Errors: a number of options that is not theirs, or another major version.
pub fn negotiate(body: &[u8]) -> Result<(u16, u32), DecodeError> {
    let tag = backend::NEGOTIATE_PROTOCOL_VERSION;
    let mut fields = Fields::new(tag, body);
    let version = fields.i32("protocol version")? as u32;
    let count = fields.i32("number of options")? as u32;
    let mut found = 0u32;
    while !fields.rest().is_empty() {
        fields.cstr("option name")?;
        found += 1;
    }
    if found != count {
        return Err(DecodeError::Malformed { tag, what: "number of options", flaw: Flaw::Short });
    }
    // A bare number is the minor alone, as the manual once had it; a whole version is what servers send.
    match (version >> 16, version as u16) {
        (0 | 3, minor) => Ok((minor, count)),
        _ => Err(DecodeError::Malformed { tag, what: "protocol version", flaw: Flaw::Short }),
    }
}

/// SASLInitialResponse: the mechanism and the first message, if one was sent along.
///
/// Errors: a string without its zero, a length that the body does not hold, or bytes left over.
pub fn sasl_initial(body: &[u8]) -> Result<(&[u8], Option<&[u8]>), DecodeError> {
    let tag = frontend::PASSWORD;
    let mut fields = Fields::new(tag, body);
    let mechanism = fields.cstr("SASL mechanism")?;
    let response = match fields.i32("length of the SASL response")? {
        -1 => None,
        len => {
            let what = "length of the SASL response";
            let len = usize::try_from(len).map_err(|_| fields.malformed(what, Flaw::Short))?;
            Some(fields.bytes(len, what)?)
        }
    };
    fields.end()?;
    Ok((mechanism, response))
}

/// Appends SASLInitialResponse.
pub fn put_sasl_initial(out: &mut Vec<u8>, mechanism: &str, response: &[u8]) {
    put(out, frontend::PASSWORD, |out| {
        put_cstr(out, mechanism.as_bytes());
        out.extend_from_slice(&(response.len() as u32).to_be_bytes());
        out.extend_from_slice(response);
    });
}

/// PasswordMessage: the password. It is the whole body and has no zero inside.
///
/// Errors: no zero at its end, or one before.
pub fn password(body: &[u8]) -> Result<&[u8], DecodeError> {
    let mut fields = Fields::new(frontend::PASSWORD, body);
    let password = fields.cstr("password")?;
    fields.end()?;
    Ok(password)
}

/// Appends PasswordMessage (`data` with its zero) or SASLResponse (without).
pub fn put_password(out: &mut Vec<u8>, data: &[u8]) {
    put(out, frontend::PASSWORD, |out| out.extend_from_slice(data));
}

#[cfg(test)]
mod tests;
