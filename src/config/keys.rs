//! The table of every key: what it is called, what it means, what it takes, where its value lives.
//!
//! Owns: the keys. It drives reading, the nearest-key hints, `docs/config.md`, the sample and SHOW CONFIG,
//! so that none of them can disagree. Never: a file, a check over more than one key (that is [`super::check`]).

use std::path::Path;
use std::sync::LazyLock;

use super::table::{COALESCE, COALESCE_TABLE, DATABASE, GENERAL, PEER, POLICY, USER, USER_COALESCE};
use super::value::Raw;
use crate::settings::{
    Coalesce, CoalesceTable, Database, General, LoadBalanceHosts, Peer, Policy, Settings, TargetSessionAttrs,
    User, UserCoalesce,
};

/// Where a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Section {
    /// `[general]`; `[pgbouncer]` in an ini file.
    General,
    /// `[databases.NAME]`
    Database,
    /// `[peers.ID]`
    Peer,
    /// `[users.NAME]`
    User,
    /// `[users.NAME.coalesce]`
    UserCoalesce,
    /// `[policy]`, `[databases.NAME.policy]`, `[users.NAME.policy]`, `[networks.NAME.policy]`
    Policy,
    /// `[coalesce]`, `[databases.NAME.coalesce]`
    Coalesce,
    /// `[coalesce.tables."schema.table"]`, `[databases.NAME.coalesce.tables."schema.table"]`
    CoalesceTable,
}

impl Section {
    /// Its name in messages and headings.
    pub fn path(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Database => "databases.NAME",
            Self::Peer => "peers.ID",
            Self::User => "users.NAME",
            Self::UserCoalesce => "users.NAME.coalesce",
            Self::Policy => "policy",
            Self::Coalesce => "coalesce",
            Self::CoalesceTable => "coalesce.tables.\"schema.table\"",
        }
    }

    /// As [`Self::heading`], for a key that stands in `from`: a policy of a database's own stands in the database's section, because in
    /// `[policy]` it would hold for all.
    fn heading_seen_from(self, from: Self, ini: bool) -> String {
        let heading = self.heading(ini);
        match (from, self) {
            (Self::Database, Self::Policy | Self::Coalesce) | (Self::User, Self::Policy) if !ini => {
                format!("{}.{heading}", from.heading(ini))
            }
            _ => heading.to_owned(),
        }
    }

    /// Its heading in a file of ours, or in an ini file, where databases, users and peers have a line each.
    fn heading(self, ini: bool) -> &'static str {
        match self {
            Self::General if ini => "pgbouncer",
            Self::Database if ini => "databases",
            Self::Peer if ini => "peers",
            Self::User if ini => "users",
            other => other.path(),
        }
    }
}

/// One key, for people.
#[derive(Debug, Clone)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Where it stands.
    pub section: Section,
    /// The heading it stands under in `[general]`.
    pub group: &'static str,
    /// The default as SHOW CONFIG prints a value (seconds, bytes, 0 and 1, commas); empty: not set.
    pub default: String,
    /// The default as TOML; `None`: not set.
    pub default_toml: Option<String>,
    /// One line.
    pub meaning: &'static str,
    /// What a value may be.
    pub takes: String,
    /// Whether a reload changes it; otherwise a restart does.
    pub reloadable: bool,
}

/// One key, for the code.
pub(super) struct Entry<T> {
    pub(super) name: &'static str,
    pub(super) group: &'static str,
    pub(super) meaning: &'static str,
    pub(super) reloadable: bool,
    /// Reads a value into the settings; the error is what would be right.
    pub(super) set: fn(&mut T, &Raw, &Path) -> Result<(), String>,
    /// The value as SHOW CONFIG prints it.
    pub(super) show: fn(&T) -> String,
    /// The value as TOML; `None`: not set, or not to be shown.
    pub(super) toml: fn(&T) -> Option<String>,
    /// What a value may be.
    pub(super) takes: fn() -> String,
}

impl<T> std::fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A key under another name, as PgBouncer has some.
pub(super) const ALIASES: &[(Section, &str, &str)] =
    &[(Section::Database, "reserve_pool", "reserve_pool_size")];

/// The entry called `name`, or what `name` is an alias of.
pub(super) fn find<T>(table: &'static [Entry<T>], section: Section, name: &str) -> Option<&'static Entry<T>> {
    let alias = ALIASES.iter().find(|(at, alias, _)| *at == section && *alias == name);
    let name = alias.map_or(name, |(_, _, real)| real);
    table.iter().find(|entry| entry.name == name)
}

/// A database of that name with everything else at its default.
pub(super) fn blank_database(name: &str) -> Database {
    Database {
        name: name.to_owned(),
        host: Vec::new(),
        load_balance_hosts: LoadBalanceHosts::default(),
        target_session_attrs: TargetSessionAttrs::default(),
        port: 5432,
        dbname: None,
        user: None,
        password: None,
        pool_mode: None,
        pool_size: None,
        min_pool_size: None,
        reserve_pool_size: None,
        max_db_connections: None,
        max_db_client_connections: None,
        query_wait_timeout: None,
        server_lifetime: None,
        session_state: None,
        connect_query: None,
        client_encoding: None,
        datestyle: None,
        timezone: None,
        auth_user: None,
        auth_query: None,
        auth_dbname: None,
        policy: Policy::default(),
        coalesce: Coalesce::default(),
    }
}

fn rows<T>(section: Section, table: &'static [Entry<T>], default: &T) -> Vec<Key> {
    let row = |entry: &Entry<T>| Key {
        name: entry.name,
        section,
        group: entry.group,
        default: (entry.show)(default),
        default_toml: (entry.toml)(default).filter(|text| text != "[]"),
        meaning: entry.meaning,
        takes: (entry.takes)(),
        reloadable: entry.reloadable,
    };
    table.iter().map(row).collect()
}

static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut all = rows(Section::General, GENERAL, &General::default());
    all.extend(rows(Section::Database, DATABASE, &blank_database("")));
    all.extend(rows(Section::Peer, PEER, &Peer::default()));
    all.extend(rows(Section::User, USER, &User::default()));
    all.extend(rows(Section::Policy, POLICY, &default_policy()));
    all.extend(rows(Section::Coalesce, COALESCE, &Coalesce::default()));
    all.extend(rows(Section::CoalesceTable, COALESCE_TABLE, &CoalesceTable::default()));
    all.extend(rows(Section::UserCoalesce, USER_COALESCE, &UserCoalesce::default()));
    all
});

/// The policy if no `[policy]` says anything; `function_call` follows `simple_query` then.
pub(super) fn default_policy() -> Policy {
    use crate::settings::{AllowListMode, Enforce, SimpleQuery, Statements, Switch};
    Policy {
        simple_query: Some(SimpleQuery::default()),
        function_call: None,
        sql_prepare: Some(Switch::default()),
        replication: Some(Switch::default()),
        statements: Some(Statements::default()),
        allow_list: Some(AllowListMode::default()),
        allow_list_file: None,
        enforce: Some(Enforce::Reject),
    }
}

/// Every key of the configuration file, by section and group.
pub fn keys() -> &'static [Key] {
    &KEYS
}

/// What `[general]` is where the file says nothing.
pub(super) fn default_general(ini: bool) -> General {
    if ini { super::ini::defaults() } else { General::default() }
}

/// `[policy]` as it is in effect where no database, user or network says more.
pub(super) fn effective_policy(said: &Policy) -> Policy {
    let default = default_policy();
    Policy {
        simple_query: said.simple_query.or(default.simple_query),
        function_call: said.function_call,
        sql_prepare: said.sql_prepare.or(default.sql_prepare),
        replication: said.replication.or(default.replication),
        statements: said.statements.or(default.statements),
        allow_list: said.allow_list.or(default.allow_list),
        allow_list_file: said.allow_list_file.clone(),
        enforce: said.enforce.or(default.enforce),
    }
}

/// One key as SHOW CONFIG prints it.
#[derive(Debug)]
#[expect(missing_docs, reason = "the columns")]
pub struct Shown {
    pub key: String,
    pub value: String,
    pub default: String,
    pub reloadable: bool,
}

fn shown_of<T>(prefix: &str, table: &'static [Entry<T>], now: &T, default: &T) -> Vec<Shown> {
    let row = |entry: &Entry<T>| Shown {
        key: format!("{prefix}{}", entry.name),
        value: (entry.show)(now),
        default: (entry.show)(default),
        reloadable: entry.reloadable,
    };
    table.iter().map(row).collect()
}

/// What SHOW CONFIG prints (seconds, bytes, 0 and 1, commas): the keys of `[general]` by their names, then those of `[policy]` and
/// `[coalesce]` with their section's before them.
pub fn shown(settings: &Settings) -> Vec<Shown> {
    let mut all = shown_of("", GENERAL, &settings.general, &default_general(settings.ini));
    all.extend(shown_of("policy.", POLICY, &effective_policy(&settings.policy), &default_policy()));
    all.extend(shown_of("coalesce.", COALESCE, &settings.coalesce, &Coalesce::default()));
    all
}

/// The `[general]` keys that differ between two files and need a restart to take effect.
pub fn needs_restart(old: &Settings, new: &Settings) -> Vec<&'static str> {
    GENERAL
        .iter()
        .filter(|entry| !entry.reloadable && (entry.show)(&old.general) != (entry.show)(&new.general))
        .map(|entry| entry.name)
        .collect()
}

/// What others call a setting: PostgreSQL, libpq, other proxies. By section, because `host` is another thing in `[databases]`.
const ELSEWHERE: &[(Section, &str, &str)] = &[
    (Section::General, "address", "listen_addr"),
    (Section::General, "admin_username", "admin_users"),
    (Section::General, "authentication_timeout", "client_login_timeout"),
    (Section::General, "bind", "listen_addr"),
    (Section::General, "bindwith_reuseport", "so_reuseport"),
    (Section::General, "checkout_timeout", "query_wait_timeout"),
    (Section::General, "connection_timeout", "server_connect_timeout"),
    (Section::General, "graceful_shutdown_timeout_ms", "shutdown_timeout"),
    (Section::General, "healthcheck_delay", "server_check_delay"),
    (Section::General, "healthcheck_port", "http_addr"),
    (Section::General, "healthcheck_query", "server_check_query"),
    (Section::General, "host", "listen_addr"),
    (Section::General, "http_listen", "http_addr"),
    (Section::General, "http_port", "http_addr"),
    (Section::General, "idle_client_in_transaction_timeout", "idle_transaction_timeout"),
    (Section::General, "idle_in_transaction_session_timeout", "idle_transaction_timeout"),
    (Section::General, "idle_session_timeout", "client_idle_timeout"),
    (Section::General, "listen", "listen_addr"),
    (Section::General, "listen_addresses", "listen_addr"),
    (Section::General, "log_min_messages", "log_level"),
    (Section::General, "max_connections", "max_client_conn"),
    (Section::General, "metrics_addr", "http_addr"),
    (Section::General, "metrics_port", "http_addr"),
    (Section::General, "openmetrics_port", "http_addr"),
    (Section::General, "pool_checkout_timeout", "query_wait_timeout"),
    (Section::General, "pool_size", "default_pool_size"),
    (Section::General, "pool_timeout", "query_wait_timeout"),
    (Section::General, "port", "listen_port"),
    (Section::General, "prepared_statements_cache_size", "max_prepared_statements"),
    (Section::General, "prepared_statements_limit", "max_prepared_statements"),
    (Section::General, "prometheus_exporter_port", "http_addr"),
    (Section::General, "prometheus_port", "http_addr"),
    (Section::General, "promhttp_server_port", "http_addr"),
    (Section::General, "server_tls", "server_tls_sslmode"),
    (Section::General, "ssl", "client_tls_sslmode"),
    (Section::General, "ssl_ca_file", "client_tls_ca_file"),
    (Section::General, "ssl_cert_file", "client_tls_cert_file"),
    (Section::General, "ssl_key_file", "client_tls_key_file"),
    (Section::General, "statement_timeout", "query_timeout"),
    (Section::General, "tcp_keepalives_count", "tcp_keepcnt"),
    (Section::General, "tcp_keepalives_idle", "tcp_keepidle"),
    (Section::General, "tcp_keepalives_interval", "tcp_keepintvl"),
    (Section::General, "threads", "workers"),
    (Section::General, "tls", "client_tls_sslmode"),
    (Section::General, "tls_certificate", "client_tls_cert_file"),
    (Section::General, "tls_client_ca_certificate", "client_tls_ca_file"),
    (Section::General, "tls_client_required", "client_tls_sslmode"),
    (Section::General, "tls_private_key", "client_tls_key_file"),
    (Section::General, "tls_server_ca_certificate", "server_tls_ca_file"),
    (Section::General, "tls_verify", "server_tls_sslmode"),
    (Section::General, "unix_socket_directories", "unix_socket_dir"),
    (Section::General, "unix_socket_directory", "unix_socket_dir"),
    (Section::General, "unix_socket_permissions", "unix_socket_mode"),
    (Section::General, "userlist", "auth_file"),
    (Section::General, "verify_server_certificate", "server_tls_sslmode"),
    (Section::General, "worker_threads", "workers"),
    (Section::Database, "address", "host"),
    (Section::Database, "database", "dbname"),
    (Section::Database, "db", "dbname"),
    (Section::Database, "default_pool_size", "pool_size"),
    (Section::Database, "hostname", "host"),
    (Section::Database, "name", "dbname"),
    (Section::Database, "options", "connect_query"),
    (Section::Database, "pool", "pool_size"),
    (Section::Database, "search_path", "connect_query"),
    (Section::Database, "server", "host"),
    (Section::Database, "username", "user"),
    (Section::User, "default_pool_size", "pool_size"),
    (Section::User, "statement_timeout", "query_timeout"),
    (Section::Coalesce, "enabled", "mode"),
];

/// What libpq and other proxies let each database say, and `[general]` says here for all.
const FOR_ALL: &[(&str, &str)] = &[
    ("connect_timeout", "server_connect_timeout"),
    ("keepalives", "tcp_keepalive"),
    ("keepalives_count", "tcp_keepcnt"),
    ("keepalives_idle", "tcp_keepidle"),
    ("keepalives_interval", "tcp_keepintvl"),
    ("ssl", "server_tls_sslmode"),
    ("ssl_mode", "server_tls_sslmode"),
    ("sslcert", "server_tls_cert_file"),
    ("sslkey", "server_tls_key_file"),
    ("sslmode", "server_tls_sslmode"),
    ("sslrootcert", "server_tls_ca_file"),
    ("statement_timeout", "query_timeout"),
    ("tls", "server_tls_sslmode"),
];

/// Sections within `section`, by which a wrong key may have been meant.
fn sections_in(section: Section) -> &'static [&'static str] {
    match section {
        Section::Database | Section::User => &["policy", "coalesce"],
        Section::Coalesce => &["tables"],
        _ => &[],
    }
}

/// Most keys that a message proposes.
const PROPOSED_MAX: usize = 3;

/// What a wrong key name most likely meant: "unknown key; ...". `ini`: it stands in an ini file.
pub(super) fn hint(section: Section, name: &str, ini: bool) -> String {
    if let Some(because) = super::ignored::because(section, name) {
        return format!("is PgBouncer's and has no effect here, because {because}; remove it");
    }
    if section == Section::General && !ini && super::toml::SECTIONS.contains(&name) {
        return format!("is a section of its own, not a part of [general]; write [{name}]");
    }
    if let Some(near) = sections_in(section).iter().find(|near| !ini && distance(name, near) <= 2) {
        return format!("unknown key; did you mean the section [{}.{near}]?", section.path());
    }
    if section == Section::Database
        && let Some((_, ours)) = FOR_ALL.iter().find(|(theirs, _)| theirs.eq_ignore_ascii_case(name))
    {
        let general = Section::General.heading(ini);
        return format!("unknown key; did you mean {ours}? It stands in [{general}], for all databases");
    }
    let below = |key: &&Key| key.section.path().starts_with(section.path());
    let same_name = || KEYS.iter().filter(|key| key.name == name);
    let there = same_name().find(below).or_else(|| same_name().next());
    // A key of another section is meant, most likely, and not one that is spelt like it.
    let meant =
        if there.is_some() { of_others(section, name).into_iter().collect() } else { meant(section, name) };
    let meant = meant.join(" or ");
    match (there.map(|key| key.section.heading_seen_from(section, ini)), meant.as_str()) {
        (None, "") => format!("unknown key; docs/config.md lists the keys of [{}]", section.heading(ini)),
        (None, meant) => format!("unknown key; did you mean {meant}?"),
        (Some(there), "") => format!("unknown key in this section; it belongs in [{there}]"),
        (Some(there), meant) => {
            format!("unknown key in this section; did you mean {meant}? {name} itself belongs in [{there}]")
        }
    }
}

/// The key of `section` that others call `name`.
fn of_others(section: Section, name: &str) -> Option<&'static str> {
    let same = |(at, theirs, _): &&(Section, &str, &str)| *at == section && theirs.eq_ignore_ascii_case(name);
    ELSEWHERE.iter().find(same).map(|(_, _, ours)| *ours)
}

/// The keys of `section` that `name` may have been meant for: what others call by that name, the one that it is a slip of, those that have
/// all of its words, or else the one that is spelt most like it.
fn meant(section: Section, name: &str) -> Vec<&'static str> {
    if let Some(ours) = of_others(section, name) {
        return vec![ours];
    }
    let here = || KEYS.iter().filter(move |key| key.section == section).map(|key| key.name);
    let near = here().map(|key| (distance(name, key), key)).min();
    let within = |most: fn(usize) -> usize| near.filter(|(steps, key)| *steps <= most(key.len()));
    if let Some((_, key)) = within(|_| 1) {
        return vec![key];
    }
    let words: Vec<&str> = name.split(['_', '-']).collect();
    let has_all = |key: &&str| words.iter().all(|word| key.split('_').any(|w| w.eq_ignore_ascii_case(word)));
    let with_them: Vec<&str> = here().filter(has_all).take(PROPOSED_MAX + 1).collect();
    if (1..=PROPOSED_MAX).contains(&with_them.len()) {
        return with_them;
    }
    within(|len| 2.max(len / 4)).map(|(_, key)| key).into_iter().collect()
}

/// Longest name that is compared with the keys (bytes).
const COMPARED_BYTES_MAX: usize = 64;

/// Levenshtein's distance; capitals and small letters are the same.
pub(super) fn distance(a: &str, b: &str) -> usize {
    if a.len() > COMPARED_BYTES_MAX || b.len() > COMPARED_BYTES_MAX {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
