//! `auth_hba_file`: who may come in from where, and how, as in PostgreSQL's `pg_hba.conf`.
//!
//! Understood: local, host, hostssl, hostnossl; databases and users as `all`, lists and `@file`, databases as
//! `sameuser`; addresses as `all`, IPv4 and IPv6 with a length or a mask; methods trust, reject, md5, password, scram-sha-256, cert, peer, ldap;
//! for cert and peer `map=NAME`, for ldap its directory. And `auth_ident_file`, where the maps are. Anything else is an error: a rule that is not understood must not be skipped.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use super::value::shorten;
use super::{At, CONFIG_BYTES_MAX, Draft, ldap};
use crate::limits::NAME_BYTES_MAX;
use crate::settings::{AuthType, HbaRule, HbaTransport, Mapping};

/// Most names one rule may hold, with those of its `@file`s.
const NAMES_MAX: usize = 100_000;

const KEY: &str = "auth_hba_file";

/// A word of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    /// It begins with a quote: never a keyword. A quote further on counts for nothing else than what it encloses, as in PostgreSQL.
    quoted: bool,
    /// A comma follows: the next word is of the same list.
    pub(super) comma: bool,
}

impl Token {
    fn is(&self, keyword: &str) -> bool {
        !self.quoted && self.text == keyword
    }
}

/// Reads the whole file; what is wrong goes to `draft`.
pub(super) fn parse(draft: &mut Draft, file: &Path, text: &str) -> Vec<HbaRule> {
    let mut rules = Vec::new();
    for (number, line) in lines(text) {
        let at = At::line(file, number);
        let rule = match tokens(&line) {
            Ok(tokens) if tokens.is_empty() => continue,
            Ok(tokens) => rule(draft, number, &at, &tokens),
            Err(message) => Err(message.into()),
        };
        match rule {
            Ok(rule) => rules.push(rule),
            Err(message) => draft.problem(&at, KEY, message),
        }
    }
    rules
}

/// The lines with the number of each. One that ends in a backslash goes on with the next, a comment as well, as in PostgreSQL.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (index, line) in text.lines().enumerate() {
        let (line, more) = line.strip_suffix('\\').map_or((line, false), |line| (line, true));
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, begun)) => begun.push_str(line),
            None => lines.push((index + 1, line.to_owned())),
        }
        goes_on = more;
    }
    lines
}

/// PostgreSQL's. What else looks like a blank is part of a word there.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r')
}

pub(super) fn tokens(line: &str) -> Result<Vec<Token>, &'static str> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' => break,
            ',' => match tokens.last_mut() {
                Some(last) => last.comma = true,
                None => return Err("begins with a comma; write TYPE DATABASE USER ADDRESS METHOD"),
            },
            c if is_blank(c) => {}
            c => {
                let mut text = String::new();
                let mut quoted = false;
                let mut open = c == '"';
                if open {
                    quoted = true
                } else {
                    text.push(c)
                }
                while let Some(c) = chars.next_if(|c| open || !(is_blank(*c) || *c == ',' || *c == '#')) {
                    match c {
                        '"' if open && chars.peek() == Some(&'"') => text.extend(chars.next()),
                        '"' => open = !open,
                        c => text.push(c),
                    }
                }
                if open {
                    return Err("a double quote is not closed on its line");
                }
                tokens.push(Token { text, quoted, comma: false });
            }
        }
    }
    Ok(tokens)
}

/// The words up to and with the first that no comma follows.
fn list<'t>(rest: &mut &'t [Token], what: &str) -> Result<&'t [Token], String> {
    let end = rest.iter().position(|token| !token.comma).map_or(rest.len(), |last| last + 1);
    let (list, after) = rest.split_at(end);
    *rest = after;
    if list.is_empty() {
        return Err(format!(
            "ends before its {what}; write TYPE DATABASE USER ADDRESS METHOD (local has no ADDRESS)"
        ));
    }
    Ok(list)
}

/// The next field, which must be one word.
fn word<'t>(rest: &mut &'t [Token], what: &str) -> Result<&'t Token, String> {
    match list(rest, what)? {
        [word] => Ok(word),
        _ => Err(format!("a list stands where one {what} must; write a line for each")),
    }
}

fn rule(draft: &mut Draft, line: usize, at: &At, tokens: &[Token]) -> Result<HbaRule, String> {
    let mut rest = tokens;
    let transport = transport(word(&mut rest, "type")?)?;
    let databases = list(&mut rest, "database")?;
    let databases = names(draft, at, databases, "database")?;
    let users = list(&mut rest, "user")?;
    let users = names(draft, at, users, "user")?;
    let address = match transport {
        HbaTransport::Local => None,
        _ => address(&mut rest)?,
    };
    let method = method(word(&mut rest, "method")?)?;
    if method == Some(AuthType::Peer) && transport != HbaTransport::Local {
        return Err("method peer is for Unix sockets; make the rule a local rule".into());
    }
    let is_ldap = method == Some(AuthType::Ldap);
    let ldap = if is_ldap { Some(Arc::new(ldap::of_options(rest)?)) } else { None };
    let map = if is_ldap { None } else { options(rest, method)? };
    Ok(HbaRule { line, transport, databases, users, address, method, map, ldap })
}

/// What follows the method: a map's name, or nothing.
fn options(rest: &[Token], method: Option<AuthType>) -> Result<Option<String>, String> {
    let mut map = None;
    for option in rest {
        let shown = ldap::shown(&option.text);
        match option.text.split_once('=') {
            Some(("map", name)) if !name.is_empty() && map.is_none() => {
                if !matches!(method, Some(AuthType::Cert | AuthType::Peer)) {
                    return Err(format!(
                        "option \"{shown}\" is for the methods cert and peer only; remove it"
                    ));
                }
                map = Some(name.to_owned());
            }
            // What holds anyway.
            Some(("clientname", "CN")) if method == Some(AuthType::Cert) => {}
            _ => return Err(format!("option \"{shown}\" is not understood; remove it")),
        }
    }
    Ok(map)
}

/// Reads `auth_ident_file`: map, system's name, user; what is wrong goes to `draft`.
pub(super) fn parse_ident(draft: &mut Draft, file: &Path, text: &str) -> BTreeMap<String, Vec<Mapping>> {
    let mut maps: BTreeMap<String, Vec<Mapping>> = BTreeMap::new();
    for (number, line) in lines(text) {
        let found = match tokens(&line) {
            Ok(tokens) if tokens.is_empty() => continue,
            Ok(tokens) => mapping(&tokens),
            Err(message) => Err(message.into()),
        };
        match found {
            Ok((map, mapping)) => maps.entry(map).or_default().push(mapping),
            Err(message) => draft.problem(&At::line(file, number), "auth_ident_file", message),
        }
    }
    maps
}

fn mapping(tokens: &[Token]) -> Result<(String, Mapping), String> {
    let [map, system, user] = tokens else {
        return Err("is no mapping; write MAP SYSTEM-NAME USER".into());
    };
    for token in tokens {
        let pattern = token.text.starts_with('/') || (!token.quoted && token.text.starts_with(['+', '@']));
        if token.comma || token.text.is_empty() || pattern {
            let text = shorten(&token.text);
            return Err(format!(
                "\"{text}\" is no name (no lists, groups, patterns or files); write a line for each"
            ));
        }
    }
    let user = (!user.is("all")).then(|| user.text.clone());
    Ok((map.text.clone(), Mapping { system: system.text.clone(), user }))
}

fn transport(word: &Token) -> Result<HbaTransport, String> {
    Ok(match word.text.as_str() {
        "local" => HbaTransport::Local,
        "host" => HbaTransport::Host,
        "hostssl" => HbaTransport::HostSsl,
        "hostnossl" => HbaTransport::HostNoSsl,
        other => {
            let other = shorten(other);
            return Err(format!("found type \"{other}\"; expected local, host, hostssl or hostnossl"));
        }
    })
}

fn method(word: &Token) -> Result<Option<AuthType>, String> {
    Ok(Some(match word.text.as_str() {
        "reject" => return Ok(None),
        "trust" => AuthType::Trust,
        "md5" => AuthType::Md5,
        "password" => AuthType::Plain,
        "scram-sha-256" => AuthType::ScramSha256,
        "cert" => AuthType::Cert,
        "peer" => AuthType::Peer,
        "ldap" => AuthType::Ldap,
        other => {
            let other = ldap::shown(other);
            return Err(format!(
                "found method \"{other}\"; expected trust, reject, md5, password, scram-sha-256, cert, peer or ldap"
            ));
        }
    }))
}

/// Words that mean something as they stand. The comparison knows no quotes, so none of them can be a name.
const KEYWORDS: [&str; 5] = ["all", "sameuser", "samerole", "samegroup", "replication"];

/// Names of databases or users; empty is `all`.
fn names(draft: &mut Draft, at: &At, list: &[Token], what: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut all = false;
    for token in list {
        if token.is("all") {
            all = true;
        } else if !token.quoted && token.text.starts_with('@') {
            names.extend(names_of_file(at, &token.text[1..])?);
        } else if what == "database" && (token.is("sameuser") || token.is("replication")) {
            names.push(token.text.clone());
        } else if KEYWORDS.contains(&token.text.as_str()) && (what, &*token.text) != ("user", "replication") {
            let text = &token.text;
            return Err(format!("{what} \"{text}\" is not understood as a name; write other names, or all"));
        } else if token.text.starts_with('/') || (!token.quoted && token.text.starts_with('+')) {
            // PostgreSQL takes a pattern in quotes for one, too.
            let text = shorten(&token.text);
            return Err(format!(
                "{what} \"{text}\" is not understood (no groups, no patterns); write the names"
            ));
        } else if token.text.is_empty() {
            return Err(format!("the {what} is empty; write a name or all"));
        } else if token.text.len() > NAME_BYTES_MAX {
            let text = shorten(&token.text);
            return Err(format!(
                "PostgreSQL reads {NAME_BYTES_MAX} bytes of the {what} \"{text}\"; write no more"
            ));
        } else {
            names.push(token.text.clone());
        }
        if names.len() > NAMES_MAX {
            return Err(format!("holds more than {NAMES_MAX} names; write all, or several lines"));
        }
    }
    if all {
        // Only to itself `all` does not mean replication.
        names.retain(|name| what == "database" && name == "replication");
        names.extend((!names.is_empty()).then(|| "all".to_owned()));
    } else if names.is_empty() {
        // An empty list would mean all: a file without names must not open the door.
        let message =
            format!("the file that is named for the {what} holds no names; write at least one, or all");
        draft.problem(at, KEY, message);
    }
    Ok(names)
}

/// The names in `@file`: words with spaces, commas or line ends between, `#` comments.
fn names_of_file(at: &At, name: &str) -> Result<Vec<String>, String> {
    let file = at.file.parent().unwrap_or(Path::new("")).join(name);
    let text = super::read_bounded(&file, CONFIG_BYTES_MAX)
        .and_then(super::into_text)
        .map_err(|(_, message)| format!("@{}: {message}", shorten(name)))?;
    let mut names = Vec::new();
    for line in text.lines() {
        let words = tokens(line).map_err(|message| format!("@{}: {message}", shorten(name)))?;
        names.extend(words.into_iter().map(|word| word.text));
    }
    // In PostgreSQL a name file may say all or name further files; here it only names.
    match names.iter().find(|name| KEYWORDS.contains(&name.as_str()) || name.starts_with(['@', '+', '/'])) {
        Some(odd) => Err(format!("@{}: \"{}\" is not a name; write names only", shorten(name), shorten(odd))),
        None => Ok(names),
    }
}

fn address(rest: &mut &[Token]) -> Result<Option<(IpAddr, u8)>, String> {
    let first = word(rest, "address")?;
    if first.is("all") {
        return Ok(None);
    }
    let found = ldap::shown(&first.text);
    let form =
        || format!("found address \"{found}\"; expected all, or an address such as 10.0.0.0/8 or ::1/128");
    if let Some((ip, length)) = first.text.split_once('/') {
        let ip: IpAddr = ip.parse().map_err(|_| form())?;
        let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
        let length = length.parse().ok().filter(|length| digits && *length <= bits(ip)).ok_or_else(form)?;
        return as_clients_have_it(network(ip, length), length);
    }
    let ip: IpAddr = first.text.parse().map_err(|_| form())?;
    let mask = rest.first().and_then(|token| token.text.parse::<IpAddr>().ok());
    let Some(mask) = mask else {
        return Err(format!("address {ip} has no mask; write {ip}/{} for this one address", bits(ip)));
    };
    *rest = &rest[1..];
    let length = mask_length(ip, mask)
        .ok_or_else(|| format!("{mask} is not a mask for {ip}; write {ip}/LENGTH instead"))?;
    as_clients_have_it(network(ip, length), length)
}

/// A rule that no client ever matches must not be taken for one that refuses somebody.
fn as_clients_have_it(ip: IpAddr, length: u8) -> Result<Option<(IpAddr, u8)>, String> {
    match ip {
        IpAddr::V6(v6)
            if length >= 96
                && let Some(v4) = v6.to_ipv4_mapped() =>
        {
            Err(format!(
                "{ip}/{length} is an IPv4 network written as IPv6, where no client is found; write {v4}/{}",
                length - 96
            ))
        }
        _ => Ok(Some((ip, length))),
    }
}

pub(super) fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// The length of a mask that is ones first and zeros after, of the same family as `ip`.
fn mask_length(ip: IpAddr, mask: IpAddr) -> Option<u8> {
    let (ones, whole) = match (ip, mask) {
        (IpAddr::V4(_), IpAddr::V4(mask)) => {
            let mask = mask.to_bits();
            (mask.leading_ones(), mask.count_ones() == mask.leading_ones())
        }
        (IpAddr::V6(_), IpAddr::V6(mask)) => {
            let mask = mask.to_bits();
            (mask.leading_ones(), mask.count_ones() == mask.leading_ones())
        }
        _ => return None,
    };
    u8::try_from(ones).ok().filter(|_| whole)
}

/// `ip` with everything after the first `length` bits zero.
pub(super) fn network(ip: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - length.min(32)).unwrap_or(0);
            IpAddr::V4((ip.to_bits() & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
            IpAddr::V6((ip.to_bits() & mask).into())
        }
    }
}
