//! `auth_file`: names and secrets in PgBouncer's format.
//!
//! A line is `"name" "secret"`; a quote inside is doubled, what follows the second field is ignored,
//! lines that begin with `;` or `#` are comments.

use std::collections::HashMap;
use std::path::Path;

use zeroize::Zeroizing;

use super::{At, Draft};
use crate::auth::scram::Verifier;
use crate::limits::NAME_BYTES_MAX;
use crate::settings::Secret;

/// Longest secret (bytes), as in PgBouncer.
const SECRET_BYTES_MAX: usize = 2047;

const SCRAM_PREFIX: &str = "SCRAM-SHA-256$";

/// Reads the whole file; what is wrong goes to `draft`.
pub(super) fn parse(draft: &mut Draft, file: &Path, text: &str) -> HashMap<String, Secret> {
    let mut users: HashMap<String, (Secret, usize)> = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let line = line.trim_start();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        let entry = fields(line).and_then(|(name, text)| Ok((name, secret(&text)?)));
        let at = At::line(file, line_number);
        match entry {
            Ok((name, secret)) => {
                if let Some((_, first)) = users.get(&name)
                    && !twice(draft, &at, &name, *first)
                {
                    continue;
                }
                users.insert(name, (secret, line_number));
            }
            // PgBouncer logs it and reads no further: users below are kept out and nobody knows why.
            Err(message) => draft.problem(&at, "auth_file", message),
        }
    }
    users.into_iter().map(|(name, (secret, _))| (name, secret)).collect()
}

/// Whether a second line for `name` takes the place of the `first`: as in PgBouncer, where its own file names this one.
fn twice(draft: &mut Draft, at: &At, name: &str, first: usize) -> bool {
    let user = format!("user \"{}\" stands in line {first} already", super::value::shorten(name));
    if draft.ini {
        draft.notice(at, "auth_file", format!("{user}; what stands last holds, as in PgBouncer"));
    } else {
        draft.problem(at, "auth_file", format!("{user}; keep one of the two"));
    }
    draft.ini
}

/// The two quoted fields that begin `line`.
fn fields(line: &str) -> Result<(String, Zeroizing<String>), &'static str> {
    const FORM: &str = "not a user; write \"name\" \"secret\", each in double quotes, on one line";
    let (name, rest) = quoted(line).ok_or(FORM)?;
    let (secret, _) = quoted(rest.trim_start()).ok_or(FORM)?;
    let secret = Zeroizing::new(secret);
    if name.is_empty() {
        return Err("the name is empty; write \"name\" \"secret\"");
    }
    if name.len() > NAME_BYTES_MAX {
        return Err("PostgreSQL reads 63 bytes of a name; write no more");
    }
    if secret.len() > SECRET_BYTES_MAX {
        return Err("the secret is longer than 2047 bytes; use a shorter password or a SCRAM verifier");
    }
    if name.contains('\0') || secret.contains('\0') {
        return Err("there is a zero byte in this line; is it the right file?");
    }
    Ok((name, secret))
}

/// The text of the quoted string at the start of `line`, and what follows it.
pub(super) fn quoted(line: &str) -> Option<(String, &str)> {
    let mut rest = line.strip_prefix('"')?;
    let mut out = String::new();
    loop {
        let (part, after) = rest.split_once('"')?;
        out.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => {
                out.push('"');
                rest = more;
            }
            None => return Some((out, after)),
        }
    }
}

/// What kind of secret `text` is, by PostgreSQL's rule: `md5` and 32 lower-case hex digits,
/// a SCRAM verifier, or anything else in clear.
///
/// # Errors
/// It begins like a SCRAM verifier and is none.
pub fn secret(text: &str) -> Result<Secret, &'static str> {
    if text.starts_with(SCRAM_PREFIX) {
        return match Verifier::parse(text) {
            Some(_) => Ok(Secret::Scram(text.to_owned())),
            None => Err("begins with SCRAM-SHA-256$ but is no verifier; \
                 copy rolpassword from pg_authid (SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey)"),
        };
    }
    let hex =
        |digits: &str| digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    Ok(match text.strip_prefix("md5") {
        Some(digits) if hex(digits) => Secret::Md5(text.to_owned()),
        _ => Secret::Plain(text.to_owned()),
    })
}

/// The kind of a secret, which is all that is ever printed of it.
pub(super) fn kind(secret: &Secret) -> &'static str {
    match secret {
        Secret::Plain(_) => "in clear",
        Secret::Md5(_) => "md5",
        Secret::Scram(_) => "scram-sha-256",
    }
}
