//! PgBouncer's format: `pgbouncer.ini`.
//!
//! Sections `[pgbouncer]`, `[databases]`, `[users]`, `[peers]`, and our own `[policy]` and `[coalesce]`; `%include`;
//! comments on lines of their own. Where PgBouncer's defaults differ from ours, a file in its format has its.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::keys::{self, Entry, Section};
use super::lenient;
use super::table;
use super::userlist::quoted;
use super::value::{Raw, shorten};
use super::{At, CONFIG_BYTES_MAX, Draft, join};
use crate::limits;
use crate::settings::{AuthType, General, Peer, PoolMode, User};

/// Most `%include` lines that are followed in all.
const INCLUDES_MAX: usize = 64;

/// Deepest nesting of `%include`.
const INCLUDE_DEPTH_MAX: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before any section, or in one that is not understood.
    Nowhere,
    General,
    Databases,
    Users,
    Peers,
    Policy,
    Coalesce,
}

#[derive(Debug)]
struct Reader<'d> {
    draft: &'d mut Draft,
    place: Place,
    /// Where the last `[pgbouncer]` began.
    general_at: Option<At>,
    includes: usize,
}

/// Reads the whole file, and those it includes, into `draft`.
pub(super) fn parse(draft: &mut Draft, file: &Path, text: &str) {
    draft.settings.general = defaults();
    draft.settings.ini = true;
    let mut reader = Reader { draft, place: Place::Nowhere, general_at: None, includes: 0 };
    reader.file(file, text, 0);
    finish(draft);
}

/// PgBouncer's defaults where ours differ.
pub(super) fn defaults() -> General {
    General {
        listen_addr: Vec::new(),
        unix_socket_dir: Some(PathBuf::from("/tmp")),
        pool_mode: PoolMode::Session,
        max_client_conn: 100,
        auth_type: AuthType::Md5,
        ..General::default()
    }
}

/// What is only known at the end: the base of each database's coalescing, and where a server without host is.
fn finish(draft: &mut Draft) {
    let socket_dir = draft.settings.general.unix_socket_dir.as_ref().map(|dir| dir.display().to_string());
    for database in &mut draft.databases {
        database.coalesce = draft.settings.coalesce.clone();
        if database.host.is_empty() {
            database.host.extend(socket_dir.clone());
        }
    }
}

impl Reader<'_> {
    fn file(&mut self, file: &Path, text: &str, depth: usize) {
        for (index, line) in text.lines().enumerate() {
            let at = At::line(file, index + 1);
            let line = line.trim();
            if line.is_empty() || line.starts_with([';', '#']) {
                continue;
            }
            if let Some(rest) = line.strip_prefix("%include") {
                self.include(&at, rest.trim(), depth);
            } else if let Some(rest) = line.strip_prefix('[') {
                self.section(&at, rest);
            } else {
                self.line(&at, line);
            }
        }
    }

    fn include(&mut self, at: &At, name: &str, depth: usize) {
        self.includes += 1;
        if self.includes > INCLUDES_MAX || depth >= INCLUDE_DEPTH_MAX {
            let message = format!(
                "more than {INCLUDES_MAX} files in all, or {INCLUDE_DEPTH_MAX} deep; does one include itself?"
            );
            self.draft.broken = true;
            return self.draft.problem(at, "%include", message);
        }
        if name.is_empty() {
            return self.draft.problem(at, "%include", "no file is named; write %include FILE");
        }
        let dir = at.file.parent().unwrap_or(Path::new(""));
        let file = dir.join(name);
        self.draft.set.insert("%include".into(), at.clone());
        if let Some(text) = self.draft.text(&file, CONFIG_BYTES_MAX, "%include") {
            self.file(&file, &text, depth + 1);
        }
    }

    fn section(&mut self, at: &At, rest: &str) {
        let name = rest.strip_suffix(']').unwrap_or(rest).trim();
        self.place = match name {
            "pgbouncer" | "pgsluice" => Place::General,
            "databases" => Place::Databases,
            "users" => Place::Users,
            "policy" => Place::Policy,
            "coalesce" => Place::Coalesce,
            "peers" => Place::Peers,
            name => {
                let known = "[pgbouncer], [databases], [users], [peers], [policy] and [coalesce]";
                let message = format!("unknown section; the sections are {known}");
                self.draft.problem(at, &format!("[{}]", shorten(name)), message);
                Place::Nowhere
            }
        };
        if self.place == Place::General
            && let Some(before) = self.general_at.replace(at.clone())
        {
            let place = before.seen_from(at);
            let message = format!(
                "begins {place} already; what stands there holds as well, while PgBouncer sets its keys back to their defaults here"
            );
            self.draft.notice(at, &format!("[{name}]"), message);
        }
        if !rest.ends_with(']') {
            self.draft.problem(at, "", "the section's name does not end; write [name] on a line of its own");
        }
    }

    fn line(&mut self, at: &At, line: &str) {
        let Some((name, value)) = pair(line) else {
            // The line may hold a password: it is not shown.
            let message = "not understood; expected key = value, [section], %include FILE or a comment";
            return self.draft.problem(at, "", message);
        };
        match self.place {
            Place::General => self.general(at, &name, value),
            Place::Databases => self.database(at, &name, value),
            Place::Users => self.user(at, &name, value),
            Place::Policy => {
                let mut policy = std::mem::take(&mut self.draft.settings.policy);
                let raw = Raw::Text(value.to_owned());
                self.draft.apply((table::POLICY, Section::Policy), &mut policy, "policy", at, (&name, &raw));
                self.draft.settings.policy = policy;
            }
            Place::Coalesce => {
                let mut coalesce = std::mem::take(&mut self.draft.settings.coalesce);
                let raw = Raw::Text(value.to_owned());
                self.draft.apply(
                    (table::COALESCE, Section::Coalesce),
                    &mut coalesce,
                    "coalesce",
                    at,
                    (&name, &raw),
                );
                self.draft.settings.coalesce = coalesce;
            }
            Place::Peers => self.peer(at, &name, value),
            Place::Nowhere => {
                self.draft.problem(at, &shorten(&name), "stands in no section; put it under [pgbouncer]");
            }
        }
    }

    fn general(&mut self, at: &At, name: &str, value: &str) {
        let mut raw = Raw::Text(value.to_owned());
        match name {
            "disable_pqexec" => return self.draft.set_disable_pqexec(at, &raw),
            "auth_type" if value == "any" => self.draft.notice(
                at,
                name,
                "taken as trust: with an auth_file only the users named there are let in",
            ),
            // PgBouncer's default and bound; PostgreSQL itself sends and takes no more than ours.
            "max_packet_size" if value.parse::<u32>().is_ok() => {
                let bytes = value.parse::<usize>().unwrap_or(limits::MESSAGE_BYTES_MAX);
                raw = Raw::Text(bytes.min(limits::MESSAGE_BYTES_MAX).to_string());
            }
            _ => {
                if let Some((meant, notice)) = lenient::general(name, value) {
                    self.draft.notice(at, name, notice);
                    raw = Raw::Text(meant);
                }
            }
        }
        let mut general = std::mem::take(&mut self.draft.settings.general);
        self.draft.apply((table::GENERAL, Section::General), &mut general, "", at, (name, &raw));
        self.draft.settings.general = general;
    }

    fn database(&mut self, at: &At, name: &str, value: &str) {
        let path = join("databases", name);
        let before = self.draft.databases.iter().position(|database| database.name == name);
        self.draft.was_set(at, &path);
        let mut database = keys::blank_database(name);
        if !self.entry(at, (table::DATABASE, Section::Database), &mut database, &path, value) {
            return;
        }
        match before.and_then(|index| self.draft.databases.get_mut(index)) {
            Some(before) => *before = database,
            None => self.draft.databases.push(database),
        }
    }

    fn user(&mut self, at: &At, name: &str, value: &str) {
        let path = join("users", name);
        self.draft.was_set(at, &path);
        let mut user = User::default();
        if self.entry(at, (table::USER, Section::User), &mut user, &path, value) {
            self.draft.settings.users.insert(name.to_owned(), Arc::new(user));
        }
    }

    fn peer(&mut self, at: &At, name: &str, value: &str) {
        let path = join("peers", name);
        let Some(id) = self.draft.peer_id(at, &path, name) else { return };
        let mut peer = Peer::default();
        if self.entry(at, (table::PEER, Section::Peer), &mut peer, &path, value) {
            self.draft.settings.peers.insert(id, peer);
        }
    }

    /// The pairs of one line, set in `to`; false: these are no pairs. Nothing of an earlier line of the same name is left.
    fn entry<T>(
        &mut self,
        at: &At,
        (table, section): (&'static [Entry<T>], Section),
        to: &mut T,
        path: &str,
        value: &str,
    ) -> bool {
        for entry in table {
            self.draft.set.remove(&join(path, entry.name));
        }
        let Some(pairs) = self.pairs(at, path, value) else { return false };
        for (key, value) in pairs {
            let raw = Raw::Text(lenient::of_line(&key, value));
            self.draft.apply((table, section), to, path, at, (&key, &raw));
        }
        true
    }

    fn pairs(&mut self, at: &At, path: &str, value: &str) -> Option<Vec<(String, String)>> {
        let pairs = connection_string(value);
        if pairs.is_none() {
            // The line may hold a password: it is not shown.
            let message = "not a connection string; write key=value pairs with spaces between, \
                 values with spaces in single quotes, a single quote in them doubled";
            let comment = self.draft.comment_hint(value);
            self.draft.problem(at, path, format!("{message}{comment}"));
        }
        pairs
    }
}

/// `key = value`; the key may be in double quotes.
fn pair(line: &str) -> Option<(String, &str)> {
    let (name, rest) = match quoted(line) {
        Some((name, rest)) => (name, rest.trim_start().strip_prefix('=')?),
        None => {
            let (name, rest) = line.split_once('=')?;
            (name.trim_end().to_owned(), rest)
        }
    };
    let plain = |c: char| c.is_alphanumeric() || "-_.*".contains(c);
    let named = !name.is_empty() && (line.starts_with('"') || name.chars().all(plain));
    named.then(|| (name, rest.trim()))
}

/// `key=value key='va''lue'`, as PgBouncer reads it.
fn connection_string(text: &str) -> Option<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        let key = key.trim_end();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return None;
        }
        let (value, after) = connection_value(after.trim_start())?;
        pairs.push((key.to_owned(), value));
        rest = after.trim_start();
    }
    Some(pairs)
}

fn connection_value(text: &str) -> Option<(String, &str)> {
    let Some(mut rest) = text.strip_prefix('\'') else {
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        return Some((text.get(..end)?.to_owned(), text.get(end..)?));
    };
    let mut out = String::new();
    loop {
        let (part, after) = rest.split_once('\'')?;
        out.push_str(part);
        match after.strip_prefix('\'') {
            Some(more) => {
                out.push('\'');
                rest = more;
            }
            None => return Some((out, after)),
        }
    }
}
