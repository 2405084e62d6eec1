//! Startup packets: StartupMessage, SSLRequest, GSSENCRequest, CancelRequest.
//!
//! They have no type byte: a length word (which counts itself), a code, a body. Owns: their grammar,
//! the grammar of `options`, and the messages of the login that follow them. Never: what a name or a
//! setting means. See "Start-up" in the message-flow section of the protocol chapter.

use std::borrow::Cow;

use super::DecodeError;
use super::frame::{Fields, put, put_cstr};
use super::{backend, frontend};
use crate::error::{Error, Kind};
use crate::limits::{CANCEL_KEY_BYTES_MAX, NAME_BYTES_MAX, STARTUP_BYTES_MAX};

/// The newest minor of protocol 3 that we speak.
pub const NEWEST_MINOR: u16 = 2;

/// From this minor on a cancel key may be longer than four bytes.
pub const LONG_KEY_MINOR: u16 = 2;

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
    DecodeError::Malformed { tag: 0, what }
}

/// The length of the packet that `word` opens (bytes, the word included), within the bounds.
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
    pub fn whole(buf: &'a [u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        let Some(&word) = buf.first_chunk() else { return Ok(None) };
        let len = length(word)?;
        match buf.get(4..len) {
            None => Ok(None),
            Some(packet) => Ok(Some((Self::decode(packet)?, len))),
        }
    }

    /// From what follows the length word: code and body.
    pub fn decode(packet: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::new(0, packet);
        let code = fields.i32("protocol version")? as u32;
        match code {
            SSL_REQUEST => fields.end().map(|()| Self::SslRequest),
            GSSENC_REQUEST => fields.end().map(|()| Self::GssEncRequest),
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
    let (&last, pairs) = body.split_last().ok_or_else(|| malformed("terminator expected as last byte"))?;
    if last != 0 {
        return Err(malformed("terminator expected as last byte"));
    }
    let mut fields = Fields::new(0, pairs);
    while !fields.rest().is_empty() {
        if fields.cstr("parameter name")?.is_empty() {
            return Err(malformed("terminator expected as last byte"));
        }
        fields.cstr("parameter value")?;
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

impl Startup {
    /// The last value of setting `name` (compared as PostgreSQL does, without regard to case).
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().rev().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// Reads what the packet asks for.
    pub fn read(message: &StartupMessage<'_>) -> Result<Self, Error> {
        supported(message)?;
        let mut asked = Asked::default();
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
    let (major, minor) = (message.major, message.minor);
    let what =
        format!("unsupported frontend protocol {major}.{minor}: pgsluice supports 3.0 to 3.{NEWEST_MINOR}");
    Err(Error::new(Kind::UnsupportedProtocol, what))
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
    params: Vec<(String, String)>,
    replication: Replication,
    unrecognized: Vec<String>,
}

impl Asked {
    fn take(&mut self, name: &str, value: &[u8]) -> Result<(), Error> {
        match name {
            "user" => self.user = Some(text("user", value)?.to_owned()),
            "database" => self.database = Some(text("database", value)?.to_owned()),
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
        // The server cuts them, too: a rule for the name it reads must not be missed by what stands behind.
        let (user, database) = (as_far_as_it_is_read(user), as_far_as_it_is_read(database));
        let mut params = self.options.as_deref().map(parse_options).transpose()?.unwrap_or_default();
        params.extend(self.params);
        let minor = asked_minor.min(NEWEST_MINOR);
        let negotiate = (asked_minor > NEWEST_MINOR || !self.unrecognized.is_empty())
            .then_some(Negotiate { minor, unrecognized: self.unrecognized });
        let Self { options, replication, .. } = self;
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

// ===== options =====

/// The settings that `options` asks for, in order: `-c name=value`, `--name=value` and the short
/// switches that PostgreSQL allows a session to set.
///
/// Words end at white space; a backslash takes the next character as it is.
pub fn parse_options(options: &str) -> Result<Vec<(String, String)>, Error> {
    let words = split_options(options);
    let mut words = words.iter().map(String::as_str);
    let mut settings = Vec::new();
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        match word.strip_prefix('-') {
            None | Some("") => return Err(invalid_option(word)),
            Some(switches) => read_switches(switches, &mut words, &mut settings)?,
        }
    }
    // Behind `--`, or without a dash, nothing has a meaning for a session.
    words.next().map_or(Ok(settings), |word| Err(invalid_option(word)))
}

fn invalid_option(word: &str) -> Error {
    let what = format!("invalid command-line argument for server process: {}", name_for_message(word));
    Error::new(Kind::InvalidOptions, what).with_hint("Use -c name=value or --name=value in options.")
}

/// What the packet itself means something by, and no setting.
fn is_the_packets_own(name: &str) -> bool {
    matches!(name, "user" | "database" | "options" | "replication") || name.starts_with("_pq_.")
}

/// A session's settings as parameters of its StartupMessage, in order. One with a name that the packet means something
/// else by came in the client's `options`, and is a setting there only: as a parameter it would make the client somebody
/// else, or put it somewhere else, behind its authentication.
pub fn setting_parameters<'a>(
    settings: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<(&'a str, Cow<'a, str>)> {
    let (own, plain): (Vec<_>, Vec<_>) = settings.into_iter().partition(|(name, _)| is_the_packets_own(name));
    let mut parameters: Vec<_> = plain.into_iter().map(|(name, value)| (name, Cow::from(value))).collect();
    if !own.is_empty() {
        let words = own.iter().map(|(name, value)| format!("-c {}={}", one_word(name), one_word(value)));
        parameters.push(("options", words.collect::<Vec<_>>().join(" ").into()));
    }
    parameters
}

/// With a backslash before each white space and backslash; [`split_options`] takes them away.
fn one_word(text: &str) -> String {
    let mut word = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\\' || is_space(c) {
            word.push('\\');
        }
        word.push(c);
    }
    word
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// Words of `options`.
fn split_options(options: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = options.chars();
    while let Some(c) = chars.next() {
        if is_space(c) {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_default();
        match c {
            // A backslash at the very end stands for nothing, as in PostgreSQL.
            '\\' => word.extend(chars.next()),
            _ => word.push(c),
        }
    }
    words.extend(word);
    words
}

/// One word behind its dash: switches without a value may be followed by more switches.
fn read_switches<'a>(
    switches: &'a str,
    words: &mut impl Iterator<Item = &'a str>,
    settings: &mut Vec<(String, String)>,
) -> Result<(), Error> {
    let mut rest = switches.chars();
    while let Some(switch) = rest.next() {
        if let Some((name, value)) = flag(switch) {
            settings.push((name.to_owned(), value.to_owned()));
            continue;
        }
        if !matches!(switch, 'c' | '-' | 'S' | 'f' | 't' | 'W') {
            return Err(invalid_option(&format!("-{switch}")));
        }
        let value = match rest.as_str() {
            "" => words.next().ok_or_else(|| invalid_option(&format!("-{switch}")))?,
            value => value,
        };
        settings.push(with_value(switch, value)?);
        return Ok(());
    }
    Ok(())
}

/// Switches without a value.
fn flag(switch: char) -> Option<(&'static str, &'static str)> {
    Some(match switch {
        'e' => ("datestyle", "euro"),
        'O' => ("allow_system_table_mods", "true"),
        'P' => ("ignore_system_indexes", "true"),
        's' => ("log_statement_stats", "true"),
        _ => return None,
    })
}

/// Switches with a value.
fn with_value(switch: char, value: &str) -> Result<(String, String), Error> {
    let named = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
    match (switch, value) {
        ('S', kilobytes) => named("work_mem", kilobytes),
        ('W', seconds) => named("post_auth_delay", seconds),
        ('t', "pa" | "parser") => named("log_parser_stats", "true"),
        ('t', "pl" | "planner") => named("log_planner_stats", "true"),
        ('t', "e" | "ex" | "executor") => named("log_executor_stats", "true"),
        ('f', method) => named(planner_method(method)?, "false"),
        ('c' | '-', setting) => name_and_value(switch, setting),
        _ => Err(invalid_option(&format!("-{switch} {value}"))),
    }
}

fn planner_method(method: &str) -> Result<&'static str, Error> {
    Ok(match method {
        "s" => "enable_seqscan",
        "i" => "enable_indexscan",
        "o" => "enable_indexonlyscan",
        "b" => "enable_bitmapscan",
        "t" => "enable_tidscan",
        "n" => "enable_nestloop",
        "m" => "enable_mergejoin",
        "h" => "enable_hashjoin",
        _ => return Err(invalid_option(&format!("-f {method}"))),
    })
}

/// `name=value`; a dash in the name stands for an underscore.
fn name_and_value(switch: char, setting: &str) -> Result<(String, String), Error> {
    let Some((name, value)) = setting.split_once('=') else {
        let word = name_for_message(setting);
        let what = if switch == 'c' {
            format!("-c {word} requires a value")
        } else {
            format!("--{word} requires a value")
        };
        return Err(Error::new(Kind::InvalidOptions, what));
    };
    if name.is_empty() {
        return Err(Error::new(Kind::UndefinedParameter, "unrecognized configuration parameter \"\"")
            .with_hint("Use -c name=value or --name=value in options."));
    }
    Ok((name.replace('-', "_"), value.to_owned()))
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

/// Appends GSSENCRequest.
pub fn put_gssenc_request(out: &mut Vec<u8>) {
    put_packet(out, GSSENC_REQUEST, |_| {});
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
pub fn authentication(body: &[u8]) -> Result<(i32, &[u8]), DecodeError> {
    let mut fields = Fields::new(backend::AUTHENTICATION, body);
    let code = fields.i32("authentication code")?;
    Ok((code, fields.rest()))
}

/// NegotiateProtocolVersion: the minor that is spoken, and how many options were not recognised.
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
        return Err(DecodeError::Malformed { tag, what: "number of options" });
    }
    // A bare number is the minor alone, as the manual once had it; a whole version is what servers send.
    match (version >> 16, version as u16) {
        (0 | 3, minor) => Ok((minor, count)),
        _ => Err(DecodeError::Malformed { tag, what: "protocol version" }),
    }
}

/// SASLInitialResponse: the mechanism and the first message, if one was sent along.
pub fn sasl_initial(body: &[u8]) -> Result<(&[u8], Option<&[u8]>), DecodeError> {
    let tag = frontend::PASSWORD;
    let mut fields = Fields::new(tag, body);
    let mechanism = fields.cstr("SASL mechanism")?;
    let response = match fields.i32("length of the SASL response")? {
        -1 => None,
        len => {
            let what = "length of the SASL response";
            let len = usize::try_from(len).map_err(|_| DecodeError::Malformed { tag, what })?;
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(minor: u16, params: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        put_startup(&mut out, minor, params.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())));
        out
    }

    fn read(minor: u16, params: &[(&str, &str)]) -> Result<Startup, Error> {
        let bytes = packet(minor, params);
        match StartupPacket::whole(&bytes).expect("well formed").expect("whole").0 {
            StartupPacket::Startup(message) => Startup::read(&message),
            other => panic!("not a StartupMessage: {other:?}"),
        }
    }

    fn told(result: Result<Startup, Error>) -> (String, String) {
        let error = result.expect_err("refused");
        (error.sqlstate().to_owned(), error.message().to_owned())
    }

    #[test]
    fn who_where_and_with_which_settings() {
        let startup = read(
            2,
            &[
                ("user", "ann"),
                ("search_path", "b"),
                ("options", "-c search_path=a --work-mem=1MB"),
                ("application_name", "t\u{e4}st\n"),
                ("replication", "off"),
            ],
        )
        .unwrap();
        assert_eq!((startup.user.as_str(), startup.database.as_str(), startup.minor), ("ann", "ann", 2));
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
        };
        let application_name = "t\\xc3\\xa4st\\x0a";
        assert_eq!(
            startup.params,
            pairs(&[
                ("search_path", "a"),
                ("work_mem", "1MB"),
                ("search_path", "b"),
                ("application_name", application_name)
            ])
        );
        assert_eq!(startup.param("SEARCH_PATH"), Some("b"));
        assert_eq!(startup.negotiate, None);
    }

    #[test]
    fn names_that_are_missing_empty_or_given_twice() {
        let nobody = "no PostgreSQL user name specified in startup packet";
        for params in [&[][..], &[("user", "")], &[("database", "app")]] {
            assert_eq!(told(read(0, params)), ("28000".into(), nobody.into()), "{params:?}");
        }
        let startup = read(0, &[("user", "ann"), ("database", ""), ("user", "bob")]).unwrap();
        assert_eq!((startup.user.as_str(), startup.database.as_str()), ("bob", "bob"));
    }

    #[test]
    fn names_end_where_the_server_stops_reading_them() {
        let (most, odd) = ("u".repeat(63), format!("{}é", "d".repeat(62)));
        for (user, database, read_as) in [
            (most.clone(), "app".into(), (most.clone(), "app".to_owned())),
            (format!("{most}u"), odd, (most.clone(), "d".repeat(62))),
            (format!("{most}{most}"), String::new(), (most.clone(), most.clone())),
        ] {
            let startup = read(0, &[("user", &user), ("database", &database)]).unwrap();
            assert_eq!((startup.user, startup.database), read_as);
        }
    }

    #[test]
    fn versions_are_negotiated_once_and_say_which_options_are_unknown() {
        for (asked, options, minor, negotiated) in [
            (0, &[][..], 0, false),
            (1, &[], 1, false),
            (2, &[], 2, false),
            (3, &[], 2, true),
            (9999, &["_pq_.a", "_pq_.b"], 2, true),
            (0, &["_pq_.a"], 0, true),
        ] {
            let mut params = vec![("user", "ann")];
            params.extend(options.iter().map(|name| (*name, "1")));
            let startup = read(asked, &params).unwrap();
            assert_eq!(startup.minor, minor, "3.{asked}");
            assert!(startup.params.is_empty());
            let Some(said) = startup.negotiate else {
                assert!(!negotiated, "3.{asked} {options:?}");
                continue;
            };
            assert!(negotiated, "3.{asked} {options:?}");
            assert_eq!((said.minor, said.unrecognized.as_slice()), (minor, options.map_owned().as_slice()));
            let mut message = Vec::new();
            put_negotiate(&mut message, &said);
            assert_eq!(message[0], b'v');
            assert_eq!(negotiate(&message[5..]), Ok((minor, options.len() as u32)));
        }
    }

    trait MapOwned {
        fn map_owned(&self) -> Vec<String>;
    }

    impl MapOwned for &[&str] {
        fn map_owned(&self) -> Vec<String> {
            self.iter().map(|s| (*s).to_owned()).collect()
        }
    }

    #[test]
    fn other_protocols_are_refused_in_words_that_name_ours() {
        for code in [2u32 << 16, 1, 4 << 16 | 1, 1234 << 16 | 1] {
            let mut bytes = Vec::new();
            put_packet(&mut bytes, code, |out| out.extend_from_slice(b"\xff\xff"));
            let Ok(Some((StartupPacket::Startup(message), _))) = StartupPacket::whole(&bytes) else {
                panic!("{code:x}");
            };
            let (sqlstate, text) = told(Startup::read(&message));
            assert_eq!(sqlstate, "0A000");
            assert!(text.starts_with("unsupported frontend protocol"), "{text}");
        }
    }

    #[test]
    fn replication_is_seen_in_every_spelling() {
        for (asks, values) in [
            (Replication::Physical, &["true", "t", "TRUE", "on", "yes", "y", "1"][..]),
            (Replication::Logical, &["database"]),
            (Replication::None, &["false", "f", "off", "of", "no", "n", "0"]),
        ] {
            for value in values {
                let startup = read(0, &[("user", "a"), ("replication", value)]).unwrap();
                assert!(startup.params.is_empty(), "{value}");
                assert_eq!(startup.replication, asks, "{value}");
            }
        }
        for value in ["", "o", "2", "databases", "Database", "tru e"] {
            assert_eq!(told(read(0, &[("user", "a"), ("replication", value)])).0, "22023", "{value:?}");
        }
    }

    #[test]
    fn what_is_not_utf8_is_refused_but_in_application_name() {
        for (name, passes) in [
            ("user", false),
            ("database", false),
            ("options", false),
            ("x.y", false),
            ("application_name", true),
        ] {
            let mut bytes = Vec::new();
            let own: [(&[u8], &[u8]); 2] = [(b"user", b"ann"), (name.as_bytes(), b"\xff\xfe")];
            put_startup(&mut bytes, 0, own);
            let Ok(StartupPacket::Startup(message)) = StartupPacket::decode(&bytes[4..]) else { panic!() };
            match Startup::read(&message) {
                Ok(startup) => assert!(passes && startup.param(name) == Some("\\xff\\xfe"), "{name}"),
                Err(error) => assert!(!passes && error.sqlstate() == "22021", "{name}"),
            }
        }
    }

    #[test]
    fn lying_lengths() {
        for len in [0u32, 1, 3, 4, 7, STARTUP_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX >> 1, u32::MAX] {
            let mut bytes = len.to_be_bytes().to_vec();
            bytes.extend_from_slice(&[0; 64]);
            let error = StartupPacket::whole(&bytes).expect_err("refused");
            assert_eq!(startup_error(error).message(), "invalid length of startup packet", "{len}");
        }
        assert_eq!(length((STARTUP_BYTES_MAX as u32).to_be_bytes()), Ok(STARTUP_BYTES_MAX));
        assert_eq!(length(8u32.to_be_bytes()), Ok(8));
    }

    #[test]
    fn requests_without_a_body_have_none_and_keys_are_4_to_256_bytes() {
        for code in [SSL_REQUEST, GSSENC_REQUEST] {
            let mut bytes = Vec::new();
            put_packet(&mut bytes, code, |out| out.push(0));
            assert!(StartupPacket::whole(&bytes).is_err());
        }
        for (len, good) in [(0, false), (3, false), (4, true), (32, true), (256, true), (257, false)] {
            let mut bytes = Vec::new();
            put_cancel_request(&mut bytes, -7, &vec![9; len]);
            match StartupPacket::whole(&bytes) {
                Ok(Some((StartupPacket::CancelRequest { pid: -7, key }, _))) => {
                    assert!(good && key.len() == len)
                }
                other => assert!(!good && other.is_err(), "{len}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_startup_message_ends_with_its_terminator() {
        for body in
            [&b""[..], b"user", b"user\0", b"user\0ann", b"user\0ann\0", b"user\0ann\0\0x\0\0", b"\0\0"]
        {
            let mut bytes = Vec::new();
            put_packet(&mut bytes, 3 << 16, |out| out.extend_from_slice(body));
            let error = StartupPacket::whole(&bytes).expect_err("refused");
            assert!(startup_error(error).message().starts_with("invalid startup packet layout"), "{body:?}");
        }
    }

    #[test]
    fn options_hostile_and_good() {
        let settings = |text: &str| -> Result<Vec<(String, String)>, String> {
            parse_options(text).map_err(|e| format!("{} {}", e.sqlstate(), e.message()))
        };
        let invalid =
            |word: &str| Err(format!("42601 invalid command-line argument for server process: {word}"));
        let unnamed = || Err("42704 unrecognized configuration parameter \"\"".to_owned());
        let one = |name: &str, value: &str| Ok(vec![(name.to_owned(), value.to_owned())]);
        for (text, want) in [
            ("", Ok(vec![])),
            ("  \t\n ", Ok(vec![])),
            ("--", Ok(vec![])),
            ("-- -c a=b", invalid("-c")),
            ("-", invalid("-")),
            ("---", Err("42601 --- requires a value".to_owned())),
            ("---=x", one("_", "x")),
            ("x", invalid("x")),
            ("\\", invalid("")),
            ("-c", invalid("-c")),
            ("-c ", invalid("-c")),
            ("-c=", unnamed()),
            ("-c =x", unnamed()),
            ("--=x", unnamed()),
            ("-c a", Err("42601 -c a requires a value".to_owned())),
            ("--a", Err("42601 --a requires a value".to_owned())),
            ("-c a=", one("a", "")),
            ("-ca=b", one("a", "b")),
            ("-c a=b=c", one("a", "b=c")),
            ("-c my.var=x\\ y\\\\z\\", one("my.var", "x y\\z")),
            ("--search-path=a,b", one("search_path", "a,b")),
            ("-c\\ a=b", one(" a", "b")),
            ("-S 64", one("work_mem", "64")),
            ("-fs", one("enable_seqscan", "false")),
            ("-f q", invalid("-f q")),
            ("-tpl", one("log_planner_stats", "true")),
            ("-sca=b", Ok(vec![("log_statement_stats".into(), "true".into()), ("a".into(), "b".into())])),
            ("-D /x", invalid("-D")),
            ("-\u{e9}", invalid("-\u{e9}")),
        ] {
            assert_eq!(settings(text), want, "{text:?}");
        }
    }

    #[test]
    fn replies_of_the_sasl_exchange() {
        let mut out = Vec::new();
        put_sasl_initial(&mut out, "SCRAM-SHA-256", b"n,,n=,r=x");
        assert_eq!(sasl_initial(&out[5..]), Ok((&b"SCRAM-SHA-256"[..], Some(&b"n,,n=,r=x"[..]))));
        for (body, good) in [
            (&b"M\0\xff\xff\xff\xff"[..], true),
            (b"M\0\xff\xff\xff\xfe", false),
            (b"M\0\0\0\0\x02a", false),
            (b"M\0\0\0\0\x01ab", false),
            (b"M\0\x7f\xff\xff\xff", false),
            (b"M", false),
            (b"M\0", false),
            (b"", false),
        ] {
            assert_eq!(sasl_initial(body).is_ok(), good, "{body:?}");
        }
        assert_eq!(password(b"secret\0"), Ok(&b"secret"[..]));
        for body in [&b""[..], b"secret", b"sec\0ret\0"] {
            assert!(password(body).is_err(), "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn startup_round_trip_at_every_split_point(
            minor in 0u16..4,
            params in proptest::collection::vec(("[a-z_.]{1,12}", "[^\0]{0,20}"), 0..8),
            rest in proptest::collection::vec(any::<u8>(), 0..9),
        ) {
            let pairs: Vec<_> = params.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            let bytes = packet(minor, &pairs);
            for end in 0..bytes.len() {
                prop_assert_eq!(StartupPacket::whole(&bytes[..end]), Ok(None));
            }
            let with_rest = [bytes.as_slice(), &rest].concat();
            let (decoded, len) = StartupPacket::whole(&with_rest).unwrap().unwrap();
            prop_assert_eq!(len, bytes.len());
            let StartupPacket::Startup(message) = decoded else { panic!("{decoded:?}") };
            prop_assert_eq!((message.major, message.minor), (3, minor));
            let back: Vec<_> = message.params().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
            let sent: Vec<_> = pairs.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
            prop_assert_eq!(back, sent);
        }

        #[test]
        fn any_bytes_are_taken_or_refused(
            code in prop_oneof![any::<u32>(), Just(3 << 16), Just(3 << 16 | 2), Just(SSL_REQUEST), Just(CANCEL_REQUEST)],
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = Vec::new();
            put_packet(&mut bytes, code, |out| out.extend_from_slice(&body));
            if let Ok(Some((StartupPacket::Startup(message), _))) = StartupPacket::whole(&bytes) {
                let _ = Startup::read(&message);
            }
            let _ = StartupPacket::whole(&body);
            let _ = negotiate(&body);
            let _ = sasl_initial(&body);
        }

        #[test]
        fn any_options_end(text in "[-c=a\\\\ \t.fsS]{0,40}") {
            if let Ok(settings) = parse_options(&text) {
                prop_assert!(settings.iter().all(|(name, _)| !name.is_empty()));
            }
        }

        #[test]
        fn no_setting_is_taken_for_what_the_packet_is_about(
            settings in proptest::collection::vec((
                prop_oneof![
                    "[a-z]{1,6}",
                    Just("user".to_owned()), Just("database".to_owned()), Just("options".to_owned()),
                    Just("replication".to_owned()), "_pq_\\.[a-z \\\\]{0,4}",
                ],
                "[^\0]{0,12}",
            ), 0..6),
        ) {
            let own = [("user", Cow::from("ann")), ("database", "app".into())];
            let sent = setting_parameters(settings.iter().map(|(name, value)| (&**name, &**value)));
            let all: Vec<_> = own.into_iter().chain(sent).collect();
            let mut bytes = Vec::new();
            put_startup(&mut bytes, 0, all.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
            let Ok(StartupPacket::Startup(message)) = StartupPacket::decode(&bytes[4..]) else { panic!() };
            let startup = Startup::read(&message).unwrap();
            prop_assert_eq!((&*startup.user, &*startup.database, startup.replication), ("ann", "app", Replication::None));
            prop_assert!(startup.negotiate.is_none());
            let (mut read, mut meant) = (startup.params, settings);
            read.sort();
            meant.sort();
            prop_assert_eq!(read, meant);
        }

        #[test]
        fn escaped_values_come_back(values in proptest::collection::vec("[^\0]{0,12}", 0..5)) {
            let escape = |value: &String| value.chars().flat_map(|c| {
                let special = c == '\\' || c.is_ascii_whitespace() || c == '\x0b';
                special.then_some('\\').into_iter().chain([c])
            }).collect::<String>();
            let text: Vec<_> = values.iter().map(|v| format!("-c x={}", escape(v))).collect();
            let settings = parse_options(&text.join(" ")).unwrap();
            let back: Vec<_> = settings.into_iter().map(|(_, value)| value).collect();
            prop_assert_eq!(back, values);
        }
    }
}
