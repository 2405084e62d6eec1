//! Our own format: TOML.

use ::toml::de::{DeTable, DeValue};

use super::keys::{self, Entry, Section};
use super::table;
use super::value::{Raw, network_address, quote, shorten};
use super::{At, Draft, join};
use crate::settings::{Coalesce, CoalesceTable, Network, Peer, Policy, User, UserCoalesce};

type Item<'i> = ::toml::Spanned<DeValue<'i>>;

/// What may stand at the top of the file.
pub(super) const SECTIONS: [&str; 7] =
    ["general", "policy", "coalesce", "databases", "peers", "users", "networks"];

/// Byte offset to line.
#[derive(Debug)]
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }
    fn of(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|newline| *newline < offset)
    }
}

/// Reads the whole file into `draft`.
pub(super) fn parse(draft: &mut Draft, text: &str) {
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { lines: Lines::new(text), draft };
    for error in &errors {
        let at = At {
            file: reader.draft.file.clone(),
            line: error.span().map(|span| reader.lines.of(span.start)),
        };
        reader.draft.broken = true;
        // What stands twice is a key; anything else may be a secret.
        let twice =
            error.span().filter(|_| error.message() == "duplicate key").and_then(|span| text.get(span));
        let key = twice.map(|key| shorten(key.trim())).unwrap_or_default();
        let message = match twice {
            Some(_) => "stands twice; keep one of the two".to_owned(),
            None => format!("not TOML: {}", error.message().replace('\n', ", ")),
        };
        reader.draft.problem(&at, &key, message);
    }
    reader.document(document.get_ref());
}

/// One file being read.
#[derive(Debug)]
struct Reader<'d> {
    draft: &'d mut Draft,
    lines: Lines,
}

impl Reader<'_> {
    fn at(&self, offset: usize) -> At {
        At::line(&self.draft.file, self.lines.of(offset))
    }

    fn document(&mut self, document: &DeTable<'_>) {
        for (name, item) in document {
            if !SECTIONS.contains(&name.get_ref().as_ref()) {
                self.stray(name.get_ref(), &self.at(name.span().start), item);
            }
        }
        let section =
            |name: &str| document.iter().find(|(key, _)| key.get_ref() == name).map(|(_, item)| item);
        // The order matters: [coalesce] is the base of each database's.
        if let Some(item) = section("general") {
            self.general(item);
        }
        if let Some(item) = section("policy") {
            let mut policy = std::mem::take(&mut self.draft.settings.policy);
            self.policy(&mut policy, "policy", item);
            self.draft.settings.policy = policy;
        }
        if let Some(item) = section("coalesce") {
            let mut coalesce = std::mem::take(&mut self.draft.settings.coalesce);
            self.coalesce(&mut coalesce, "coalesce", item);
            self.draft.settings.coalesce = coalesce;
        }
        if let Some(item) = section("databases") {
            self.each("databases", item, Self::database);
        }
        if let Some(item) = section("peers") {
            self.each("peers", item, Self::peer);
        }
        if let Some(item) = section("users") {
            self.each("users", item, Self::user);
        }
        if let Some(item) = section("networks") {
            self.each("networks", item, Self::network);
        }
    }

    /// Something at the top that is no section.
    fn stray(&mut self, name: &str, at: &At, item: &Item<'_>) {
        let message = if item.get_ref().is_table() {
            let near = SECTIONS.iter().map(|section| (keys::distance(name, section), section)).min();
            match near {
                Some((steps, near)) if steps <= 2 => {
                    // What is missing now stands there.
                    self.draft.broken = true;
                    format!("unknown section; did you mean [{near}]?")
                }
                _ => format!("unknown section; the sections are [{}]", SECTIONS.join("], [")),
            }
        } else {
            "stands outside any section; put it under [general]".to_owned()
        };
        self.draft.problem(at, name, message);
    }

    /// The table in `item`, or a problem.
    fn table<'t, 'i>(&mut self, path: &str, item: &'t Item<'i>) -> Option<&'t DeTable<'i>> {
        let table = item.get_ref().as_table();
        if table.is_none() {
            let at = self.at(item.span().start);
            let found = item.get_ref().type_str();
            let message = format!("found a value of type {found}; expected the section [{path}]");
            self.draft.problem(&at, path, message);
        }
        table
    }

    /// Calls `one` for each named table in `item`.
    fn each(&mut self, path: &str, item: &Item<'_>, one: fn(&mut Self, &str, &str, &Item<'_>)) {
        let Some(table) = self.table(path, item) else { return };
        for (name, item) in table {
            let at = self.at(name.span().start);
            let name = name.get_ref().as_ref();
            self.draft.set.insert(join(path, name), at);
            one(self, name, &join(path, name), item);
        }
    }

    fn general(&mut self, item: &Item<'_>) {
        let Some(table) = self.table("general", item) else { return };
        let mut general = std::mem::take(&mut self.draft.settings.general);
        for (name, item) in table {
            let at = self.at(name.span().start);
            match name.get_ref().as_ref() {
                "disable_pqexec" => self.draft.set_disable_pqexec(&at, &raw(item.get_ref())),
                name => self.set((table::GENERAL, Section::General), &mut general, "", &at, name, item),
            }
        }
        self.draft.settings.general = general;
    }

    fn database(&mut self, name: &str, path: &str, item: &Item<'_>) {
        let Some(table) = self.table(path, item) else { return };
        let mut database = keys::blank_database(name);
        database.coalesce = self.draft.settings.coalesce.clone();
        for (key, item) in table {
            let at = self.at(key.span().start);
            match key.get_ref().as_ref() {
                "policy" => self.policy(&mut database.policy, &join(path, "policy"), item),
                "coalesce" => self.coalesce(&mut database.coalesce, &join(path, "coalesce"), item),
                key => self.set((table::DATABASE, Section::Database), &mut database, path, &at, key, item),
            }
        }
        self.draft.databases.push(database);
    }

    fn peer(&mut self, name: &str, path: &str, item: &Item<'_>) {
        let at = self.draft.set.get(path).cloned().unwrap_or_else(|| self.at(item.span().start));
        let Some(id) = self.draft.peer_id(&at, path, name) else { return };
        let Some(table) = self.table(path, item) else { return };
        let mut peer = Peer::default();
        for (key, item) in table {
            let at = self.at(key.span().start);
            self.set((table::PEER, Section::Peer), &mut peer, path, &at, key.get_ref(), item);
        }
        self.draft.settings.peers.insert(id, peer);
    }

    fn user(&mut self, name: &str, path: &str, item: &Item<'_>) {
        let Some(table) = self.table(path, item) else { return };
        let mut user = User::default();
        for (key, item) in table {
            let at = self.at(key.span().start);
            match key.get_ref().as_ref() {
                "policy" => self.policy(&mut user.policy, &join(path, "policy"), item),
                "coalesce" => self.user_coalesce(&mut user.coalesce, &join(path, "coalesce"), item),
                "password" => self.draft.problem(
                    &at,
                    &join(path, "password"),
                    "a user's secret does not stand here; put it into the file that auth_file names",
                ),
                key => self.set((table::USER, Section::User), &mut user, path, &at, key, item),
            }
        }
        self.draft.settings.users.insert(name.to_owned(), std::sync::Arc::new(user));
    }

    fn user_coalesce(&mut self, coalesce: &mut UserCoalesce, path: &str, item: &Item<'_>) {
        let Some(table) = self.table(path, item) else { return };
        for (key, item) in table {
            let at = self.at(key.span().start);
            match key.get_ref().as_ref() {
                "tables" => self.draft.problem(
                    &at,
                    &join(path, "tables"),
                    "tables are set for all users, under [coalesce] or [databases.NAME.coalesce]",
                ),
                key => {
                    self.set((table::USER_COALESCE, Section::UserCoalesce), coalesce, path, &at, key, item);
                }
            }
        }
    }

    fn network(&mut self, name: &str, path: &str, item: &Item<'_>) {
        let Some(table) = self.table(path, item) else { return };
        let address = match network_address(name) {
            Ok(address) => address,
            Err(why) => {
                let at = self.draft.set.get(path).cloned().unwrap_or_else(|| self.at(item.span().start));
                return self.draft.problem(&at, path, why);
            }
        };
        let mut network = Network { name: name.to_owned(), address, policy: Policy::default() };
        for (key, item) in table {
            let at = self.at(key.span().start);
            match key.get_ref().as_ref() {
                "policy" => self.policy(&mut network.policy, &join(path, "policy"), item),
                key => self.draft.problem(
                    &at,
                    &join(path, key),
                    format!(
                        "unknown key; a network has a policy only: [networks.{}.policy]",
                        quote(&shorten(&network.name))
                    ),
                ),
            }
        }
        self.draft.settings.networks.push(network);
    }

    fn policy(&mut self, policy: &mut Policy, path: &str, item: &Item<'_>) {
        let Some(table) = self.table(path, item) else { return };
        for (key, item) in table {
            let at = self.at(key.span().start);
            self.set((table::POLICY, Section::Policy), policy, path, &at, key.get_ref(), item);
        }
    }

    fn coalesce(&mut self, coalesce: &mut Coalesce, path: &str, item: &Item<'_>) {
        let Some(table) = self.table(path, item) else { return };
        for (key, item) in table {
            let at = self.at(key.span().start);
            match key.get_ref().as_ref() {
                "tables" => self.tables(coalesce, &join(path, "tables"), item),
                key => self.set((table::COALESCE, Section::Coalesce), coalesce, path, &at, key, item),
            }
        }
    }

    fn tables(&mut self, coalesce: &mut Coalesce, path: &str, item: &Item<'_>) {
        let Some(tables) = self.table(path, item) else { return };
        for (name, item) in tables {
            let at = self.at(name.span().start);
            let path = join(path, &format!("\"{}\"", name.get_ref()));
            if !is_qualified(name.get_ref()) {
                self.draft.problem(
                    &at,
                    &path,
                    "is not a table of a schema; write \"schema.table\" in quotes",
                );
                continue;
            }
            let Some(keys) = self.table(&path, item) else { continue };
            // Over what [coalesce] says of the same table.
            let entry = coalesce.tables.entry(name.get_ref().to_string()).or_default();
            self.one_table(entry, &path, keys);
        }
    }

    fn one_table(&mut self, entry: &mut CoalesceTable, path: &str, table: &DeTable<'_>) {
        for (key, item) in table {
            let at = self.at(key.span().start);
            self.set((table::COALESCE_TABLE, Section::CoalesceTable), entry, path, &at, key.get_ref(), item);
        }
    }

    fn set<T>(
        &mut self,
        table: (&'static [Entry<T>], Section),
        to: &mut T,
        path: &str,
        at: &At,
        name: &str,
        item: &Item<'_>,
    ) {
        self.draft.apply(table, to, path, at, (name, &raw(item.get_ref())));
    }
}

/// `schema.table`, both with at least one character.
fn is_qualified(name: &str) -> bool {
    name.split_once('.').is_some_and(|(schema, table)| !schema.is_empty() && !table.is_empty())
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(n) => {
            i64::from_str_radix(n.as_str(), n.radix()).map_or(Raw::Other("integer"), Raw::Whole)
        }
        DeValue::Float(n) => n.as_str().parse().map_or(Raw::Other("float"), Raw::Fraction),
        DeValue::Boolean(b) => Raw::Flag(*b),
        DeValue::Array(items) => {
            let texts = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
            texts.collect::<Option<Vec<_>>>().map_or(Raw::Other("array"), Raw::List)
        }
        other => Raw::Other(other.type_str()),
    }
}
