//! What a setting's value may be: reading it from a file, showing it, and saying what is expected.
//!
//! Owns: the kinds of value (counts, sizes, durations, words, lists). Never: which key has which kind
//! (that is [`mod@super::keys`]), a file.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::settings::{Secret, TlsProtocols};

/// Longest text shown back in a message (characters); the rest is cut.
const SHOWN_CHARS_MAX: usize = 60;

/// Most items of a list shown back in a message.
const SHOWN_ITEMS_MAX: usize = 3;

/// A value as it was written, before its key gives it a meaning.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    /// A TOML string, or anything in an ini file.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A number with a fraction.
    Fraction(f64),
    /// true or false.
    Flag(bool),
    /// An array of strings.
    List(Vec<String>),
    /// Something no key takes; the TOML word for it.
    Other(&'static str),
}

impl std::fmt::Display for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => write!(f, "\"{}\"", shorten(text)),
            Self::Whole(n) => write!(f, "{n}"),
            Self::Fraction(n) => write!(f, "{n:?}"),
            Self::Flag(b) => write!(f, "{b}"),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate().take(SHOWN_ITEMS_MAX) {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}\"{}\"", shorten(item))?;
                }
                f.write_str(if items.len() > SHOWN_ITEMS_MAX { ", ...]" } else { "]" })
            }
            Self::Other(what) => write!(f, "a value of type {what}"),
        }
    }
}

/// What follows user and password in a URL that was given where a host is expected.
pub(super) fn without_user(host: &str) -> &str {
    host.rsplit_once('@').map_or(host, |(_, behind)| behind)
}

/// At most [`SHOWN_CHARS_MAX`] characters of `text`, with control characters replaced.
pub(super) fn shorten(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(SHOWN_CHARS_MAX)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        out.push_str("...");
    }
    out
}

/// How a value is written in TOML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As shown.
    Bare,
    /// In quotes.
    Quoted,
    /// true or false for 1 or 0.
    Flag,
    /// An array of strings for a comma list.
    List,
}

/// One kind of value: `read` is the inverse of `show`, and of `toml`.
pub(super) trait Kind {
    /// What the settings hold.
    type Value;
    /// What would be right, for messages and the manual: "a whole number from 1 to 5".
    fn takes(&self) -> String;
    /// What would be right instead of `raw`, which is no value of this kind.
    fn instead_of(&self, _raw: &Raw) -> String {
        self.takes()
    }
    /// The value, or `None` if `raw` is not one. Relative paths are taken from `dir`.
    fn read(&self, raw: &Raw, dir: &Path) -> Option<Self::Value>;
    /// As `SHOW CONFIG` prints it (PgBouncer's way: seconds, bytes, 0 and 1, commas).
    fn show(&self, value: &Self::Value) -> String;
    /// How it is written in TOML.
    fn form(&self) -> Form {
        Form::Quoted
    }
    /// As TOML; `None` for a value that is not set.
    fn toml(&self, value: &Self::Value) -> Option<String> {
        Some(to_toml(&self.show(value), self.form()))
    }
}

/// `shown` written as TOML.
pub(super) fn to_toml(shown: &str, form: Form) -> String {
    match form {
        Form::Bare => shown.to_owned(),
        Form::Quoted => quote(shown),
        Form::Flag => (shown == "1").to_string(),
        Form::List => {
            let items: Vec<String> = split_list(shown).iter().map(|item| quote(item)).collect();
            format!("[{}]", items.join(", "))
        }
    }
}

/// `text` as a TOML basic string.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A comma list's items, trimmed, without empty ones.
pub(super) fn split_list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn text_of(raw: &Raw) -> Option<Cow<'_, str>> {
    match raw {
        Raw::Text(text) => Some(Cow::Borrowed(text.trim())),
        Raw::Whole(n) => Some(Cow::Owned(n.to_string())),
        _ => None,
    }
}

/// The number; `None` also with a leading zero: PgBouncer reads that as octal, and would listen on another port.
fn decimal(text: &str) -> Option<i64> {
    let octal = text.len() > 1 && text.trim_start_matches(['+', '-']).starts_with('0');
    text.parse().ok().filter(|_| !octal)
}

/// A whole number within bounds (both included).
#[derive(Debug, Clone, Copy)]
pub(super) struct Count<T>(pub(super) T, pub(super) T);

impl<T> Kind for Count<T>
where
    T: Copy + PartialOrd + std::fmt::Display + TryFrom<i64>,
{
    type Value = T;
    fn takes(&self) -> String {
        format!("a whole number from {} to {}", self.0, self.1)
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<T> {
        let number = match raw {
            Raw::Whole(n) => *n,
            Raw::Text(text) => decimal(text.trim())?,
            _ => return None,
        };
        T::try_from(number).ok().filter(|n| *n >= self.0 && *n <= self.1)
    }
    fn show(&self, value: &T) -> String {
        value.to_string()
    }
    fn form(&self) -> Form {
        Form::Bare
    }
}

const UNITS_BYTES: [(&str, u64); 4] = [("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10), ("B", 1)];

/// A number of bytes within bounds (both included), with or without a unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes(pub(super) usize, pub(super) usize);

impl Bytes {
    /// With the largest unit that divides it.
    fn written(n: usize) -> String {
        let n = n as u64;
        match UNITS_BYTES.iter().find(|(_, unit)| n >= *unit && n.is_multiple_of(*unit)) {
            Some((name, unit)) if *unit > 1 => format!("{}{name}", n / unit),
            _ => n.to_string(),
        }
    }
}

impl Kind for Bytes {
    type Value = usize;
    fn takes(&self) -> String {
        let (low, high) = (Self::written(self.0), Self::written(self.1));
        format!("a size from {low} to {high}: bytes, or a text such as \"64kB\", \"4MB\", \"1GB\"")
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<usize> {
        let text = text_of(raw)?;
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
        let unit = text.get(digits.len()..)?.trim();
        let scale = match unit {
            "" => 1,
            unit => UNITS_BYTES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1,
        };
        let bytes = digits.parse::<u64>().ok()?.checked_mul(scale)?;
        usize::try_from(bytes).ok().filter(|n| *n >= self.0 && *n <= self.1)
    }
    fn show(&self, value: &usize) -> String {
        value.to_string()
    }
    fn form(&self) -> Form {
        Form::Bare
    }
    fn toml(&self, value: &usize) -> Option<String> {
        let text = Self::written(*value);
        Some(if text.ends_with('B') { quote(&text) } else { text })
    }
}

const UNITS_TIME: [(&str, f64); 6] =
    [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0)];

/// A duration from the first to the second bound (microseconds, both included).
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(pub(super) u64, pub(super) u64);

/// Any duration a timeout may have; 0 is "no limit".
pub(super) const TIMEOUT: Time = Time(0, TIMEOUT_SECONDS_MAX * 1_000_000);
/// Longest duration of a setting (seconds): ten years, far from overflow in any clock arithmetic.
const TIMEOUT_SECONDS_MAX: u64 = 10 * 365 * 86_400;

impl Time {
    fn written(micros: u64) -> String {
        match micros {
            m if m.is_multiple_of(86_400_000_000) && m > 0 => format!("{}d", m / 86_400_000_000),
            m if m.is_multiple_of(1_000_000) => format!("{}s", m / 1_000_000),
            m if m.is_multiple_of(1_000) => format!("{}ms", m / 1_000),
            m => format!("{m}us"),
        }
    }
}

impl Kind for Time {
    type Value = Duration;
    fn takes(&self) -> String {
        let (low, high) = (Self::written(self.0), Self::written(self.1));
        format!("a time from {low} to {high}: seconds, or a text such as \"50ms\", \"10s\", \"5min\"")
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<Duration> {
        let seconds = match raw {
            Raw::Whole(n) => *n as f64,
            Raw::Fraction(n) => *n,
            Raw::Text(text) => seconds_of(text.trim())?,
            _ => return None,
        };
        let micros = (seconds * 1e6).round();
        // The bounds also refuse NaN and infinities: every comparison with them is false.
        if micros >= self.0 as f64 && micros <= self.1 as f64 {
            Some(Duration::from_micros(micros as u64))
        } else {
            None
        }
    }
    fn show(&self, value: &Duration) -> String {
        value.as_secs_f64().to_string()
    }
    fn form(&self) -> Form {
        Form::Bare
    }
    fn toml(&self, value: &Duration) -> Option<String> {
        Some(match value.subsec_micros() {
            0 => value.as_secs().to_string(),
            _ => quote(&Self::written(u64::try_from(value.as_micros()).unwrap_or(u64::MAX))),
        })
    }
}

fn seconds_of(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
    let unit = text.get(digits.len()..)?.trim();
    let scale = match unit {
        "" => 1.0,
        unit => UNITS_TIME.iter().find(|(name, _)| *name == unit)?.1,
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b'-');
    digits.parse::<f64>().ok().filter(|_| plain).map(|n| n * scale)
}

/// true or false.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flag;

impl Kind for Flag {
    type Value = bool;
    fn takes(&self) -> String {
        "true or false (or 1 or 0)".into()
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<bool> {
        match raw {
            Raw::Flag(b) => Some(*b),
            Raw::Whole(1) => Some(true),
            Raw::Whole(0) => Some(false),
            Raw::Text(text) => match text.trim() {
                "1" | "true" | "on" | "yes" => Some(true),
                "0" | "false" | "off" | "no" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }
    fn show(&self, value: &bool) -> String {
        u8::from(*value).to_string()
    }
    fn form(&self) -> Form {
        Form::Flag
    }
}

/// Any text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text;

impl Kind for Text {
    type Value = String;
    fn takes(&self) -> String {
        "a text".into()
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<String> {
        // A number was meant for another key. No setting is a text that a C string could not hold.
        let Raw::Text(text) = raw else { return None };
        Some(text.trim()).filter(|text| !text.contains('\0')).map(str::to_owned)
    }
    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

/// A statement, or PgBouncer's `<empty>` for none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Statement;

impl Kind for Statement {
    type Value = String;
    fn takes(&self) -> String {
        "an SQL statement, or \"\" for none".into()
    }
    fn read(&self, raw: &Raw, dir: &Path) -> Option<String> {
        Text.read(raw, dir).map(|text| if text == "<empty>" { String::new() } else { text })
    }
    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

/// An address and a port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Socket;

impl Socket {
    /// What is wrong with `text`, where that can be said.
    fn wrong_with(text: &str) -> Option<String> {
        if text.contains("://") {
            return Some("no URL stands here".into());
        }
        if text.parse::<IpAddr>().is_ok() {
            return Some("the port is missing".into());
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Some(match (port.parse::<u16>(), host) {
            (Err(_), _) => format!("a port is at most {}", u16::MAX),
            (Ok(port), "" | "*") => {
                format!("write \"0.0.0.0:{port}\" or \"[::]:{port}\" for all addresses")
            }
            (Ok(_), host) => super::check::is_host(host).then(|| "names are not looked up here".into())?,
        })
    }
}

impl Kind for Socket {
    type Value = SocketAddr;
    fn takes(&self) -> String {
        "an address and a port, such as \"127.0.0.1:9127\" or \"[::1]:9127\"".into()
    }
    fn instead_of(&self, raw: &Raw) -> String {
        match text_of(raw).and_then(|text| Self::wrong_with(&text)) {
            Some(wrong) => format!("{}; {wrong}", self.takes()),
            None => self.takes(),
        }
    }
    fn read(&self, raw: &Raw, dir: &Path) -> Option<SocketAddr> {
        Text.read(raw, dir)?.trim().parse().ok()
    }
    fn show(&self, value: &SocketAddr) -> String {
        value.to_string()
    }
}

/// A path, taken from the configuration file's directory when relative.
#[derive(Debug, Clone, Copy)]
pub(super) struct File;

impl Kind for File {
    type Value = PathBuf;
    fn takes(&self) -> String {
        "a path, relative to the configuration file".into()
    }
    fn read(&self, raw: &Raw, dir: &Path) -> Option<PathBuf> {
        let text = Text.read(raw, dir).filter(|text| !text.is_empty())?;
        Some(dir.join(text))
    }
    fn show(&self, value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// File permissions, octal as in PgBouncer.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileMode;

impl Kind for FileMode {
    type Value = u32;
    fn takes(&self) -> String {
        "an octal file mode from \"0000\" to \"0777\"".into()
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<u32> {
        let mode = match raw {
            // 0o770 in TOML is a number already; a decimal 770 is out of range and refused.
            Raw::Whole(n) => u32::try_from(*n).ok()?,
            Raw::Text(text) => {
                let text = text.trim();
                u32::from_str_radix(text.strip_prefix("0o").unwrap_or(text), 8).ok()?
            }
            _ => return None,
        };
        (mode <= 0o777).then_some(mode)
    }
    fn show(&self, value: &u32) -> String {
        format!("{value:04o}")
    }
}

/// Names with commas between, or an array.
#[derive(Debug, Clone, Copy)]
pub(super) struct List;

impl Kind for List {
    type Value = Vec<String>;
    fn takes(&self) -> String {
        "an array of texts, or a text with commas between the items".into()
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<Vec<String>> {
        let items = match raw {
            Raw::Text(text) => split_list(text),
            Raw::List(items) => items.iter().flat_map(|item| split_list(item)).collect(),
            _ => return None,
        };
        items.iter().all(|item| !item.contains('\0')).then_some(items)
    }
    fn show(&self, value: &Vec<String>) -> String {
        value.join(",")
    }
    fn form(&self) -> Form {
        Form::List
    }
}

/// Networks with commas between, or an array of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Networks;

impl Kind for Networks {
    type Value = Vec<(IpAddr, u8)>;
    fn takes(&self) -> String {
        "an array of networks (\"10.0.0.0/8\") or addresses, or a text with commas between them".into()
    }
    fn read(&self, raw: &Raw, dir: &Path) -> Option<Self::Value> {
        // `unix` is none.
        List.read(raw, dir)?.iter().map(|name| network_address(name).ok()?).collect()
    }
    fn show(&self, value: &Self::Value) -> String {
        value.iter().map(|(ip, length)| format!("{ip}/{length}")).collect::<Vec<_>>().join(",")
    }
    fn form(&self) -> Form {
        Form::List
    }
}

/// `unix`, an address with a prefix length, or one address.
pub(super) fn network_address(name: &str) -> Result<Option<(IpAddr, u8)>, String> {
    if name == "unix" {
        return Ok(None);
    }
    let form =
        || "is no network; write \"ADDRESS/LENGTH\" (\"10.0.0.0/8\"), an address, or \"unix\"".to_owned();
    let (ip, length) = match name.split_once('/') {
        Some((ip, length)) => (ip, Some(length.parse::<u8>().map_err(|_| form())?)),
        None => (name, None),
    };
    let ip: IpAddr = ip.parse().map_err(|_| form())?;
    if let IpAddr::V6(v6) = ip
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(format!(
            "is an IPv4 network written as IPv6, where no client is found; write {v4}/LENGTH"
        ));
    }
    let bits = super::hba::bits(ip);
    let length = length.unwrap_or(bits);
    if length > bits {
        return Err(format!("has a prefix longer than {bits} bits"));
    }
    let network = super::hba::network(ip, length);
    if network != ip {
        return Err(format!("has bits behind its prefix; write {network}/{length}"));
    }
    Ok(Some((ip, length)))
}

/// A secret in clear, or as `md5` and 32 hex digits. Never shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Password;

impl Kind for Password {
    type Value = Secret;
    fn takes(&self) -> String {
        "a password in clear (a text), or md5 and 32 hex digits".into()
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<Secret> {
        // Not trimmed: a password may begin or end with a space.
        let Raw::Text(text) = raw else { return None };
        let secret = super::userlist::secret(text).ok()?;
        // A SCRAM verifier proves a client's password; it cannot log in anywhere.
        (!matches!(secret, Secret::Scram(_))).then_some(secret)
    }
    fn show(&self, value: &Secret) -> String {
        super::userlist::kind(value).to_owned()
    }
    fn toml(&self, _: &Secret) -> Option<String> {
        None
    }
}

/// What follows `ldap` in a rule of `auth_hba_file`. A password in it is never shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct LdapOptions;

impl Kind for LdapOptions {
    type Value = Secret;
    fn takes(&self) -> String {
        "a directory's options as in pg_hba.conf, such as \"ldapurl=ldaps://ldap.example.org/dc=example?uid?sub\"".into()
    }
    fn read(&self, raw: &Raw, dir: &Path) -> Option<Secret> {
        Text.read(raw, dir).map(Secret::Plain)
    }
    fn show(&self, value: &Secret) -> String {
        match value {
            Secret::Plain(text) => super::ldap::without_password(text),
            other => super::userlist::kind(other).to_owned(),
        }
    }
    fn toml(&self, _: &Secret) -> Option<String> {
        None
    }
}

/// Versions of TLS, in PgBouncer's words: each adds its versions, or with a `!` before it removes them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Protocols;

impl Protocols {
    /// Whether a word means 1.2, and 1.3. The older ones can only be taken away.
    fn meant(word: &str, away: bool) -> Option<(bool, bool)> {
        Some(match word.to_ascii_lowercase().as_str() {
            "secure" | "default" | "all" | "legacy" | "tlsv1" => (true, true),
            "tlsv1.2" => (true, false),
            "tlsv1.3" => (false, true),
            "tlsv1.0" | "tlsv1.1" if away => (false, false),
            _ => return None,
        })
    }
}

impl Kind for Protocols {
    type Value = TlsProtocols;
    fn takes(&self) -> String {
        "tlsv1.2, tlsv1.3, or both with a comma between; secure, all and legacy are both, because TLS 1.0 and 1.1 \
         cannot be spoken"
            .into()
    }
    fn read(&self, raw: &Raw, _: &Path) -> Option<TlsProtocols> {
        let (mut tls12, mut tls13) = (false, false);
        for word in words_of(raw)? {
            let (word, away) = word.strip_prefix('!').map_or((word.as_str(), false), |word| (word, true));
            let meant = Self::meant(word, away)?;
            tls12 = if meant.0 { !away } else { tls12 };
            tls13 = if meant.1 { !away } else { tls13 };
        }
        match (tls12, tls13) {
            (true, true) => Some(TlsProtocols::Both),
            (true, false) => Some(TlsProtocols::Tls12),
            (false, true) => Some(TlsProtocols::Tls13),
            (false, false) => None,
        }
    }
    fn show(&self, value: &TlsProtocols) -> String {
        match value {
            TlsProtocols::Both => "secure",
            TlsProtocols::Tls12 => "tlsv1.2",
            TlsProtocols::Tls13 => "tlsv1.3",
        }
        .to_owned()
    }
}

/// The items of a text with commas or, as OpenSSL has it, colons between, or of an array.
pub(super) fn words_of(raw: &Raw) -> Option<Vec<String>> {
    match raw {
        Raw::Text(text) => Some(split_list(&text.replace(':', ","))),
        Raw::List(items) => Some(items.clone()),
        _ => None,
    }
}

/// A value that may be absent; an empty text unsets it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maybe<K>(pub(super) K);

impl<K: Kind> Kind for Maybe<K> {
    type Value = Option<K::Value>;
    fn takes(&self) -> String {
        self.0.takes()
    }
    fn instead_of(&self, raw: &Raw) -> String {
        self.0.instead_of(raw)
    }
    fn read(&self, raw: &Raw, dir: &Path) -> Option<Self::Value> {
        match raw {
            Raw::Text(text) if text.is_empty() => Some(None),
            raw => self.0.read(raw, dir).map(Some),
        }
    }
    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map(|value| self.0.show(value)).unwrap_or_default()
    }
    fn form(&self) -> Form {
        self.0.form()
    }
    fn toml(&self, value: &Self::Value) -> Option<String> {
        value.as_ref().and_then(|value| self.0.toml(value))
    }
}

/// A rule that may be absent. An empty text is none: a policy that says nothing where it was meant to say something
/// would be an open door.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule<K>(pub(super) K);

impl<K: Kind> Kind for Rule<K> {
    type Value = Option<K::Value>;
    fn takes(&self) -> String {
        self.0.takes()
    }
    fn instead_of(&self, raw: &Raw) -> String {
        self.0.instead_of(raw)
    }
    fn read(&self, raw: &Raw, dir: &Path) -> Option<Self::Value> {
        self.0.read(raw, dir).map(Some)
    }
    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map(|value| self.0.show(value)).unwrap_or_default()
    }
    fn form(&self) -> Form {
        self.0.form()
    }
    fn toml(&self, value: &Self::Value) -> Option<String> {
        value.as_ref().and_then(|value| self.0.toml(value))
    }
}
