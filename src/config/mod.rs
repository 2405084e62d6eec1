//! The configuration file, read into [`Settings`].
//!
//! Owns: our TOML, PgBouncer's ini, its userlist and HBA file, what is wrong with them and what would be
//! right, and what is printed of the result. Never: a socket, a decision that is taken while running.
//! Everything that is wrong is reported at once, with file, line and key.

mod check;
mod ciphers;
mod describe;
mod hba;
mod ignored;
mod ini;
mod keys;
mod ldap;
mod lenient;
mod set;
mod table;
#[cfg(test)]
mod tests;
mod toml;
mod userlist;
mod value;
mod words;

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use describe::describe;
pub use ignored::ignored;
pub use keys::{Key, Section, Shown, keys, needs_restart, shown};
pub use set::{SetError, set};
pub use userlist::secret;

use crate::settings::{AllowList, AllowListMode, Database, FileState, Policy, Secret, Settings, SimpleQuery};
use crate::{files, learn};
use keys::Entry;
use value::Raw;

/// Largest configuration or HBA file that is read (bytes).
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Largest userlist that is read (bytes): room for a few hundred thousand users.
const USERLIST_BYTES_MAX: u64 = 256 << 20;

/// Most problems (and most notices) that are collected; a file with more is not a configuration.
const PROBLEMS_MAX: usize = 200;

/// One thing that is wrong with a file, or that has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: Option<usize>,
    /// The key with its section (`databases.app.port`); empty if it is not about one key.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.message)
    }
}

impl std::error::Error for Problem {}

/// A file that can be run with.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What is effective.
    pub settings: Settings,
    /// What stands in the file and has no effect, and why.
    pub notices: Vec<Problem>,
}

/// Reads `path` and all files it names, and says what has no effect.
///
/// The format follows the extension: `.toml` is our own, `.ini` is PgBouncer's.
///
/// # Errors
/// Everything that is wrong, in the order of the lines.
pub fn read(path: &Path) -> Result<Loaded, Vec<Problem>> {
    let mut draft = Draft::new(path);
    let file = draft.file.clone();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => {
            if let Some(text) = draft.text(&file, CONFIG_BYTES_MAX, "") {
                toml::parse(&mut draft, &text);
            }
        }
        Some("ini") => {
            if let Some(text) = draft.text(&file, CONFIG_BYTES_MAX, "") {
                ini::parse(&mut draft, &file, &text);
            }
        }
        _ => {
            // What it does not say is not known.
            draft.broken = true;
            draft.problem(
                &At::file(&file),
                "",
                "the extension says no format; name the file .toml (pgsluice's format) or .ini (PgBouncer's)",
            );
        }
    }
    draft.finish()
}

/// `settings`, read from `file`, with what their `auth_file` holds now.
///
/// # Errors
/// Everything that is wrong with that file.
pub fn with_userlist(file: &Path, settings: &Settings) -> Result<Loaded, Vec<Problem>> {
    let mut draft = Draft::new(file);
    draft.settings = settings.clone();
    draft.read_auth_file();
    if !draft.problems.is_empty() {
        return Err(draft.problems);
    }
    Ok(Loaded { settings: draft.settings, notices: draft.notices })
}

/// What a file is now; `None`: it can't be seen.
pub fn file_state(file: &Path) -> Option<FileState> {
    let seen = std::fs::metadata(file).ok()?;
    Some(FileState { modified: (seen.mtime(), seen.mtime_nsec()), bytes: seen.len(), inode: seen.ino() })
}

/// Where something stands.
#[derive(Debug, Clone, PartialEq, Eq)]
struct At {
    file: PathBuf,
    line: Option<usize>,
}

impl At {
    fn file(file: &Path) -> Self {
        Self { file: file.to_owned(), line: None }
    }
    fn line(file: &Path, line: usize) -> Self {
        Self { file: file.to_owned(), line: Some(line) }
    }

    /// In words, for a message about `at`.
    fn seen_from(&self, at: &Self) -> String {
        match self.line {
            _ if self == at => "in this line".to_owned(),
            Some(line) if self.file == at.file => format!("in line {line}"),
            Some(line) => format!("in {}:{line}", self.file.display()),
            None => format!("in {}", self.file.display()),
        }
    }
}

/// Settings in the making.
#[derive(Debug)]
struct Draft {
    /// The main file, absolute.
    file: PathBuf,
    /// Its directory: where relative paths begin.
    dir: PathBuf,
    /// PgBouncer's format: what it would let pass is a notice at most.
    ini: bool,
    /// A file could not be understood as a whole; what follows from its absence is not reported.
    broken: bool,
    /// PgBouncer's name for `simple_query = "deny"`; the stricter of the two holds.
    disable_pqexec: bool,
    settings: Settings,
    /// Shared once they are complete.
    databases: Vec<Database>,
    /// Where each key was set.
    set: HashMap<String, At>,
    problems: Vec<Problem>,
    notices: Vec<Problem>,
}

impl Draft {
    fn new(path: &Path) -> Self {
        let file = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let dir = file.parent().map(Path::to_owned).unwrap_or_default();
        Self {
            dir,
            ini: file.extension().is_some_and(|extension| extension == "ini"),
            file,
            broken: false,
            disable_pqexec: false,
            settings: Settings::default(),
            databases: Vec::new(),
            set: HashMap::new(),
            problems: Vec::new(),
            notices: Vec::new(),
        }
    }

    fn problem(&mut self, at: &At, key: &str, message: impl Into<String>) {
        push(&mut self.problems, at, key, message.into());
    }

    fn notice(&mut self, at: &At, key: &str, message: impl Into<String>) {
        push(&mut self.notices, at, key, message.into());
    }

    /// Where `key` was set; the file, if it was not.
    fn place(&self, key: &str) -> At {
        self.set.get(key).cloned().unwrap_or_else(|| At::file(&self.file))
    }

    /// A problem with what `key` was set to (or left at), wherever that was.
    fn object(&mut self, key: &str, message: impl Into<String>) {
        let at = self.place(key);
        self.problem(&at, key, message);
    }

    /// As [`Self::object`], but where `key` was never set the section's own line is named. Nothing, where it was set to what is no
    /// value, and that is said already.
    fn object_or_section(&mut self, key: &str, section: &str, message: impl Into<String>) {
        if self.problems.iter().any(|problem| problem.key == key) {
            return;
        }
        let at = self.set.get(key).or_else(|| self.set.get(section)).cloned();
        let at = at.unwrap_or_else(|| At::file(&self.file));
        self.problem(&at, key, message);
    }

    /// As [`Self::object`], but only a notice in an ini file, because PgBouncer lets it pass.
    fn object_ours(&mut self, key: &str, message: impl Into<String>) {
        if self.ini {
            let at = self.place(key);
            self.notice(&at, key, message);
        } else {
            self.object(key, message);
        }
    }

    /// Sets one key of `to`; `path` is its section as the file says it (empty for `[general]`).
    fn apply<T>(
        &mut self,
        (table, section): (&'static [Entry<T>], Section),
        to: &mut T,
        path: &str,
        at: &At,
        (name, raw): (&str, &Raw),
    ) {
        let key = join(path, name);
        let Some(entry) = keys::find(table, section, name) else {
            return self.unknown(section, at, &key, name);
        };
        match (entry.set)(to, raw, &self.dir) {
            Ok(()) => {
                // The name the checks know, also where an alias was written.
                self.was_set(at, &join(path, entry.name));
            }
            Err(takes) if matches!(entry.name, "password" | "auth_ldap_options") => {
                self.problem(at, &key, format!("cannot be used; expected {takes}"));
            }
            Err(takes) => {
                let comment = match raw {
                    Raw::Text(text) => self.comment_hint(text),
                    _ => "",
                };
                self.problem(at, &key, format!("found {raw}; expected {takes}{comment}"));
            }
        }
    }

    /// What is said besides of a value in an ini file that ends in what looks like a comment.
    fn comment_hint(&self, text: &str) -> &'static str {
        let begins = |pair: &[u8]| matches!(pair, [b' ' | b'\t', b';' | b'#']);
        if self.ini && text.as_bytes().windows(2).any(begins) {
            "; a comment stands on a line of its own"
        } else {
            ""
        }
    }

    /// Remembers where `key` was set. In an ini file it may have been set before.
    fn was_set(&mut self, at: &At, key: &str) {
        let before = self.set.insert(key.to_owned(), at.clone());
        if let Some(before) = before.filter(|_| self.ini) {
            self.replaced(at, key, &before);
        }
    }

    /// PgBouncer lets the same name stand twice, and what stands last holds.
    fn replaced(&mut self, at: &At, key: &str, before: &At) {
        let place = before.seen_from(at);
        self.notice(at, key, format!("stands {place} already; what stands last holds, as in PgBouncer"));
    }

    fn unknown(&mut self, section: Section, at: &At, key: &str, name: &str) {
        match ignored::because(section, name) {
            Some(because) if self.ini => {
                self.notice(at, key, ignored::said(because));
            }
            _ => self.problem(at, key, keys::hint(section, name, self.ini)),
        }
    }

    /// The number of the peer called `name`; only in an ini file it may stand there already.
    fn peer_id(&mut self, at: &At, path: &str, name: &str) -> Option<u16> {
        let id = name.parse().ok().filter(|id| (1..=table::PEER_ID_MAX).contains(id));
        match id {
            None => {
                let message = format!("is no peer; its name is its peer_id, 1 to {}", table::PEER_ID_MAX);
                self.problem(at, path, message);
            }
            Some(id) if !self.ini && self.settings.peers.contains_key(&id) => {
                self.problem(at, path, "stands here twice; keep one of the two");
                return None;
            }
            Some(_) => self.was_set(at, path),
        }
        id
    }

    /// PgBouncer's `disable_pqexec`, in `[general]`.
    fn set_disable_pqexec(&mut self, at: &At, raw: &Raw) {
        use value::{Flag, Kind as _};
        match Flag.read(raw, &self.dir) {
            Some(on) => {
                self.disable_pqexec = on;
                self.was_set(at, "disable_pqexec");
            }
            None => self.problem(at, "disable_pqexec", format!("found {raw}; expected {}", Flag.takes())),
        }
    }

    /// The whole of a file, or a problem under `key`.
    fn text(&mut self, file: &Path, bytes_max: u64, key: &str) -> Option<String> {
        match read_bounded(file, bytes_max).and_then(into_text) {
            Ok(text) => Some(text),
            Err((line, message)) => {
                self.broken |= key.is_empty() || key == "%include";
                // A file that is named in another is a problem of the line that names it.
                let named = self.set.get(key).cloned().filter(|_| line.is_none());
                let at = named.unwrap_or_else(|| At { file: file.to_owned(), line });
                let message = match key {
                    "" => message,
                    _ => format!("{}: {message}", file.display()),
                };
                self.problem(&at, key, message);
                None
            }
        }
    }

    fn finish(mut self) -> Result<Loaded, Vec<Problem>> {
        if self.disable_pqexec {
            self.settings.policy.simple_query = Some(SimpleQuery::Deny);
        }
        self.read_auth_file();
        self.read_hba_file();
        self.read_ident_file();
        self.read_ldap_options();
        self.read_allow_lists();
        if !self.broken {
            check::check(&mut self);
        }
        if !self.problems.is_empty() {
            let main = self.file;
            // The main file first, then line by line.
            self.problems
                .sort_by(|a, b| (a.file != main, &a.file, a.line).cmp(&(b.file != main, &b.file, b.line)));
            return Err(self.problems);
        }
        for database in self.databases {
            let database = Arc::new(database);
            if database.name == "*" {
                self.settings.fallback = Some(database);
            } else {
                self.settings.databases.insert(database.name.clone(), database);
            }
        }
        Ok(Loaded { settings: self.settings, notices: self.notices })
    }

    fn read_auth_file(&mut self) {
        let Some(file) = self.settings.general.auth_file.clone() else { return };
        // First, so that what changes meanwhile is seen later.
        self.settings.userlist_read = file_state(&file);
        if let Some(text) = self.text(&file, USERLIST_BYTES_MAX, "auth_file").map(zeroize::Zeroizing::new) {
            self.settings.userlist = userlist::parse(self, &file, &text);
        }
    }

    fn read_hba_file(&mut self) {
        let Some(file) = self.settings.general.auth_hba_file.clone() else { return };
        if let Some(text) = self.text(&file, CONFIG_BYTES_MAX, "auth_hba_file") {
            self.settings.hba = hba::parse(self, &file, &text);
        }
    }

    fn read_ldap_options(&mut self) {
        let Some(Secret::Plain(text)) = &self.settings.general.auth_ldap_options else { return };
        match ldap::parse(text) {
            Ok(ldap) => self.settings.ldap = Some(Arc::new(ldap)),
            Err(message) => self.object("auth_ldap_options", message),
        }
    }

    fn read_ident_file(&mut self) {
        let Some(file) = self.settings.general.auth_ident_file.clone() else { return };
        if let Some(text) = self.text(&file, CONFIG_BYTES_MAX, "auth_ident_file") {
            self.settings.ident = hba::parse_ident(self, &file, &text);
        }
    }
}

/// The allow-lists that policies name.
impl Draft {
    /// Every policy, and its section.
    fn policies(&self) -> Vec<(String, Policy)> {
        let global = std::iter::once(("policy".to_owned(), self.settings.policy.clone()));
        let databases = self.databases.iter().map(|d| (join("databases", &d.name), d.policy.clone()));
        let users = self.settings.users.iter().map(|(name, u)| (join("users", name), u.policy.clone()));
        let networks = self.settings.networks.iter().map(|n| (join("networks", &n.name), n.policy.clone()));
        let own =
            databases.chain(users).chain(networks).map(|(path, policy)| (join(&path, "policy"), policy));
        global.chain(own).collect()
    }

    /// A list that does not exist yet counts as empty if it is to be learned.
    fn read_allow_lists(&mut self) {
        let policies = self.policies();
        let learned = policies.iter().any(|(_, policy)| policy.allow_list == Some(AllowListMode::Learn));
        for (path, policy) in policies {
            let Some(file) = policy.allow_list_file else { continue };
            let read = self.settings.allow_lists.contains_key(&file);
            if read {
                continue;
            }
            let key = join(&path, "allow_list_file");
            let prints = if learned && !file.exists() {
                HashSet::new()
            } else {
                let Some(text) = self.text(&file, learn::FILE_BYTES_MAX, &key) else { continue };
                let (prints, odd) = learn::parse(&text);
                for line in odd.into_iter().take(PROBLEMS_MAX) {
                    self.problem(&At::line(&file, line), &key, "is no fingerprint of 16 hexadecimal digits");
                }
                prints
            };
            self.settings.allow_lists.insert(file.clone(), Arc::new(AllowList { file, prints }));
        }
    }
}

fn push(to: &mut Vec<Problem>, at: &At, key: &str, message: String) {
    if to.len() < PROBLEMS_MAX {
        to.push(Problem { file: at.file.clone(), line: at.line, key: key.to_owned(), message });
    }
}

fn join(path: &str, name: &str) -> String {
    let name = value::shorten(name);
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

/// What went wrong with a file, and in which line if that can be said.
type Unreadable = (Option<usize>, String);

/// The bytes of a regular file, at most `bytes_max`.
fn read_bounded(file: &Path, bytes_max: u64) -> Result<Vec<u8>, Unreadable> {
    let cannot = |error: std::io::Error| {
        (None, format!("cannot be read ({error}); check the path and its permissions"))
    };
    if !std::fs::metadata(file).map_err(cannot)?.is_file() {
        return Err((None, "is not a regular file; name a file".into()));
    }
    let bytes = files::read(file, bytes_max).map_err(cannot)?;
    if bytes.len() as u64 > bytes_max {
        return Err((None, format!("is larger than {} MB; is it the right file?", bytes_max >> 20)));
    }
    Ok(bytes)
}

/// The bytes as text, without a byte order mark.
fn into_text(bytes: Vec<u8>) -> Result<String, Unreadable> {
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        (Some(line), "is not UTF-8 here; save the file as UTF-8".to_owned())
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}
