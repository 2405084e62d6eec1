//! The table of every key: what it is called, what it means, what it takes, where its value lives.
//!
//! Owns: the keys. It drives reading, the nearest-key hints, `docs/config.md`, the sample and SHOW CONFIG,
//! so that none of them can disagree. Never: a file, a check over more than one key (that is [`super::check`]).

use std::path::Path;
use std::sync::LazyLock;

use super::value::{
    Bytes, Count, File, FileMode, Flag, Kind, Level, List, Maybe, Password, Raw, Statement, TIMEOUT, Text,
    Time, one_of,
};
use crate::limits;
use crate::settings::{Coalesce, CoalesceTable, Database, General, Policy, Settings, User};

/// Where a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Section {
    /// `[general]`; `[pgbouncer]` in an ini file.
    General,
    /// `[databases.NAME]`
    Database,
    /// `[users.NAME]`
    User,
    /// `[policy]`, `[databases.NAME.policy]`, `[users.NAME.policy]`
    Policy,
    /// `[coalesce]`, `[databases.NAME.coalesce]`
    Coalesce,
    /// `[coalesce.tables."schema.table"]`, `[databases.NAME.coalesce.tables."schema.table"]`
    CoalesceTable,
}

impl Section {
    /// Every section.
    pub const ALL: [Self; 6] =
        [Self::General, Self::Database, Self::User, Self::Policy, Self::Coalesce, Self::CoalesceTable];

    /// Its name in messages and headings.
    pub fn path(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Database => "databases.NAME",
            Self::User => "users.NAME",
            Self::Policy => "policy",
            Self::Coalesce => "coalesce",
            Self::CoalesceTable => "coalesce.tables.\"schema.table\"",
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

macro_rules! entry {
    ($group:expr, $reload:expr, $name:literal, $($field:ident).+, $kind:expr, $meaning:literal) => {
        Entry {
            name: $name,
            group: $group,
            meaning: $meaning,
            reloadable: $reload,
            set: |to, raw, dir| {
                let value = $kind.read(raw, dir).ok_or_else(|| $kind.takes())?;
                to.$($field).+ = value;
                Ok(())
            },
            show: |from| $kind.show(&from.$($field).+),
            toml: |from| $kind.toml(&from.$($field).+),
            takes: || $kind.takes(),
        }
    };
}

const RELOAD: bool = true;
const RESTART: bool = false;

/// Most connections of any kind that a setting may allow: a million, far above what a process can hold.
const CONNECTIONS_MAX: usize = 1_000_000;
const CONNECTIONS: Count<usize> = Count(0, CONNECTIONS_MAX);
/// Most rows of one flush that a setting may allow.
const ROWS_MAX: usize = 1_000_000;
/// Largest memory budget that a setting may give (bytes): 64 GiB.
const BUDGET_MAX: usize = 64 << 30;
/// A flush must be over before another session would start looking for deadlocks: below
/// PostgreSQL's default `deadlock_timeout` of 1 s (microseconds).
const FLUSH_MICROS_MAX: u64 = 999_000;

const LISTEN: &str = "Listening and process";
const POOL: &str = "Pooling and limits";
const AUTH: &str = "Who may come in";
const SERVER: &str = "Server connections";
const TIMEOUTS: &str = "Client and query timeouts";
const CLIENT_TLS: &str = "TLS toward clients";
const SERVER_TLS: &str = "TLS toward servers";
const LOG: &str = "Logs and statistics";
const LOW: &str = "Network";

/// `[general]`
pub(super) static GENERAL: &[Entry<General>] = &[
    entry!(
        LISTEN,
        RESTART,
        "listen_addr",
        listen_addr,
        List,
        "addresses or host names to accept TCP connections on; * is all of them, empty is none"
    ),
    entry!(
        LISTEN,
        RESTART,
        "listen_port",
        listen_port,
        Count(1u16, u16::MAX),
        "TCP port, also part of the Unix socket's file name"
    ),
    entry!(
        LISTEN,
        RESTART,
        "listen_backlog",
        listen_backlog,
        Count(1u32, 65_535),
        "connections the kernel queues before they are accepted"
    ),
    entry!(
        LISTEN,
        RESTART,
        "unix_socket_dir",
        unix_socket_dir,
        Maybe(File),
        "directory of the Unix socket; without it there is none"
    ),
    entry!(
        LISTEN,
        RESTART,
        "unix_socket_mode",
        unix_socket_mode,
        FileMode,
        "permissions of the Unix socket's file"
    ),
    entry!(
        LISTEN,
        RESTART,
        "workers",
        workers,
        Count(0usize, 1024),
        "worker threads; 0 is one for each core"
    ),
    entry!(LISTEN, RESTART, "pidfile", pidfile, Maybe(File), "file the process id is written to"),
    entry!(
        LISTEN,
        RELOAD,
        "shutdown_timeout",
        shutdown_timeout,
        TIMEOUT,
        "longest drain after SIGTERM before what is left is closed; 0 waits for ever"
    ),
    entry!(
        POOL,
        RELOAD,
        "pool_mode",
        pool_mode,
        one_of::<crate::settings::PoolMode>(),
        "when a server connection goes back to the pool: when its client leaves, after each transaction, or after each statement"
    ),
    entry!(
        POOL,
        RELOAD,
        "max_client_conn",
        max_client_conn,
        Count(1usize, CONNECTIONS_MAX),
        "client connections in all"
    ),
    entry!(
        POOL,
        RELOAD,
        "default_pool_size",
        default_pool_size,
        CONNECTIONS,
        "server connections for one pair of database and user; 0 is no limit"
    ),
    entry!(
        POOL,
        RELOAD,
        "min_pool_size",
        min_pool_size,
        CONNECTIONS,
        "server connections kept open while a pool is in use"
    ),
    entry!(
        POOL,
        RELOAD,
        "reserve_pool_size",
        reserve_pool_size,
        CONNECTIONS,
        "extra server connections for a pool whose clients have waited reserve_pool_timeout"
    ),
    entry!(
        POOL,
        RELOAD,
        "reserve_pool_timeout",
        reserve_pool_timeout,
        TIMEOUT,
        "how long a client waits before its pool may use the reserve"
    ),
    entry!(
        POOL,
        RELOAD,
        "max_db_connections",
        max_db_connections,
        CONNECTIONS,
        "server connections for one database over all its users; 0 is no limit"
    ),
    entry!(
        POOL,
        RELOAD,
        "max_db_client_connections",
        max_db_client_connections,
        CONNECTIONS,
        "client connections for one database; 0 is no limit"
    ),
    entry!(
        POOL,
        RELOAD,
        "max_user_connections",
        max_user_connections,
        CONNECTIONS,
        "server connections for one user over all databases; 0 is no limit"
    ),
    entry!(
        POOL,
        RELOAD,
        "max_user_client_connections",
        max_user_client_connections,
        CONNECTIONS,
        "client connections for one user; 0 is no limit"
    ),
    entry!(
        POOL,
        RELOAD,
        "server_round_robin",
        server_round_robin,
        Flag,
        "use the server connection that was idle longest instead of the one used last"
    ),
    entry!(
        POOL,
        RELOAD,
        "max_prepared_statements",
        max_prepared_statements,
        Count(0usize, 100_000),
        "prepared statements kept on one server connection in transaction and statement mode; 0 passes names through untouched"
    ),
    entry!(
        POOL,
        RELOAD,
        "prepared_statement_bytes_max",
        prepared_statement_bytes_max,
        Bytes(1 << 20, BUDGET_MAX),
        "bytes of statement text remembered in all, over all clients"
    ),
    entry!(
        POOL,
        RELOAD,
        "session_state",
        session_state,
        one_of::<crate::settings::SessionState>(),
        "what happens with session state that cannot be carried to another server connection: the client keeps its connection, the statement is refused, or it is let through"
    ),
    entry!(
        POOL,
        RELOAD,
        "ignore_startup_parameters",
        ignore_startup_parameters,
        List,
        "startup parameters to accept and drop"
    ),
    entry!(
        POOL,
        RELOAD,
        "application_name_add_host",
        application_name_add_host,
        Flag,
        "append the client's address and port to application_name"
    ),
    entry!(
        AUTH,
        RELOAD,
        "auth_type",
        auth_type,
        one_of::<crate::settings::AuthType>(),
        "how clients prove who they are"
    ),
    entry!(
        AUTH,
        RELOAD,
        "auth_file",
        auth_file,
        Maybe(File),
        "the userlist: names and secrets, in PgBouncer's format"
    ),
    entry!(
        AUTH,
        RELOAD,
        "auth_hba_file",
        auth_hba_file,
        Maybe(File),
        "rules by database, user and address, used with auth_type = \"hba\""
    ),
    entry!(
        AUTH,
        RELOAD,
        "scram_iterations",
        scram_iterations,
        Count(1u32, limits::SCRAM_ITERATIONS_MAX),
        "iterations used when a SCRAM secret is made from a password in clear"
    ),
    entry!(AUTH, RELOAD, "admin_users", admin_users, List, "users with all rights on the console"),
    entry!(AUTH, RELOAD, "stats_users", stats_users, List, "users who may only look on the console"),
    entry!(
        SERVER,
        RELOAD,
        "server_reset_query",
        server_reset_query,
        Statement,
        "run on a server connection when its client leaves it, in session mode"
    ),
    entry!(
        SERVER,
        RELOAD,
        "server_reset_query_always",
        server_reset_query_always,
        Flag,
        "run server_reset_query in every pool mode"
    ),
    entry!(
        SERVER,
        RELOAD,
        "server_check_query",
        server_check_query,
        Statement,
        "statement that proves an idle server connection alive; empty sends an empty query"
    ),
    entry!(
        SERVER,
        RELOAD,
        "server_check_delay",
        server_check_delay,
        TIMEOUT,
        "idle time after which the check is due before the next use"
    ),
    entry!(
        SERVER,
        RELOAD,
        "server_lifetime",
        server_lifetime,
        TIMEOUT,
        "age after which an unused server connection is closed; 0 closes it after each use"
    ),
    entry!(
        SERVER,
        RELOAD,
        "server_idle_timeout",
        server_idle_timeout,
        TIMEOUT,
        "idle time after which a server connection is closed; 0 is never"
    ),
    entry!(
        SERVER,
        RELOAD,
        "server_connect_timeout",
        server_connect_timeout,
        TIMEOUT,
        "time for connecting and logging in to a server"
    ),
    entry!(
        SERVER,
        RELOAD,
        "server_login_retry",
        server_login_retry,
        TIMEOUT,
        "longest pause between tries while a server cannot be reached"
    ),
    entry!(
        TIMEOUTS,
        RELOAD,
        "client_login_timeout",
        client_login_timeout,
        TIMEOUT,
        "time for a client's login"
    ),
    entry!(
        TIMEOUTS,
        RELOAD,
        "client_idle_timeout",
        client_idle_timeout,
        TIMEOUT,
        "close clients that have sent nothing for this long; 0 is never"
    ),
    entry!(
        TIMEOUTS,
        RELOAD,
        "idle_transaction_timeout",
        idle_transaction_timeout,
        TIMEOUT,
        "close clients idle inside a transaction for this long; 0 is never"
    ),
    entry!(
        TIMEOUTS,
        RELOAD,
        "transaction_timeout",
        transaction_timeout,
        TIMEOUT,
        "close clients whose transaction lasts longer; 0 is never"
    ),
    entry!(
        TIMEOUTS,
        RELOAD,
        "query_timeout",
        query_timeout,
        TIMEOUT,
        "close clients whose query lasts longer; 0 is never"
    ),
    entry!(
        TIMEOUTS,
        RELOAD,
        "query_wait_timeout",
        query_wait_timeout,
        TIMEOUT,
        "longest wait for a server connection; 0 waits for ever"
    ),
    entry!(
        TIMEOUTS,
        RELOAD,
        "cancel_wait_timeout",
        cancel_wait_timeout,
        TIMEOUT,
        "longest wait of a cancel request for a connection to the server"
    ),
    entry!(
        CLIENT_TLS,
        RELOAD,
        "client_tls_sslmode",
        client_tls.sslmode,
        one_of::<crate::settings::SslMode>(),
        "whether clients may or must use TLS, and whether they need a certificate"
    ),
    entry!(CLIENT_TLS, RELOAD, "client_tls_key_file", client_tls.key_file, Maybe(File), "private key (PEM)"),
    entry!(
        CLIENT_TLS,
        RELOAD,
        "client_tls_cert_file",
        client_tls.cert_file,
        Maybe(File),
        "certificate chain (PEM)"
    ),
    entry!(
        CLIENT_TLS,
        RELOAD,
        "client_tls_ca_file",
        client_tls.ca_file,
        Maybe(File),
        "authorities that sign client certificates (PEM)"
    ),
    entry!(
        SERVER_TLS,
        RELOAD,
        "server_tls_sslmode",
        server_tls.sslmode,
        one_of::<crate::settings::SslMode>(),
        "whether TLS is used toward servers, and how far their certificate is checked"
    ),
    entry!(
        SERVER_TLS,
        RELOAD,
        "server_tls_ca_file",
        server_tls.ca_file,
        Maybe(File),
        "authorities that sign server certificates (PEM); not set: the machine's"
    ),
    entry!(
        SERVER_TLS,
        RELOAD,
        "server_tls_key_file",
        server_tls.key_file,
        Maybe(File),
        "private key of the proxy (PEM), for servers that ask for a certificate"
    ),
    entry!(
        SERVER_TLS,
        RELOAD,
        "server_tls_cert_file",
        server_tls.cert_file,
        Maybe(File),
        "certificate of the proxy (PEM), for servers that ask for one"
    ),
    entry!(LOG, RELOAD, "log_connections", log_connections, Flag, "log successful logins"),
    entry!(LOG, RELOAD, "log_disconnections", log_disconnections, Flag, "log closed connections and why"),
    entry!(
        LOG,
        RELOAD,
        "log_pooler_errors",
        log_pooler_errors,
        Flag,
        "log errors that pgsluice itself sends to clients"
    ),
    entry!(
        LOG,
        RESTART,
        "log_format",
        log_format,
        one_of::<crate::settings::LogFormat>(),
        "form of the log on standard error: lines for people, or one JSON object a line"
    ),
    entry!(LOG, RESTART, "log_level", log_level, Level, "what is logged: this level and those above it"),
    entry!(
        LOG,
        RELOAD,
        "stats_period",
        stats_period,
        Time(1_000_000, 86_400_000_000),
        "period of the averages in SHOW STATS"
    ),
    entry!(
        LOW,
        RELOAD,
        "max_packet_size",
        max_packet_size,
        Bytes(limits::AUTH_MESSAGE_BYTES_MAX, limits::MESSAGE_BYTES_MAX),
        "largest message accepted from either side"
    ),
    entry!(LOW, RELOAD, "tcp_keepalive", tcp_keepalive, Flag, "TCP keepalive on both sides"),
    entry!(
        LOW,
        RELOAD,
        "tcp_keepidle",
        tcp_keepidle,
        Time(0, 32_767_000_000),
        "idle time before the first probe; 0 is the system's default"
    ),
    entry!(
        LOW,
        RELOAD,
        "tcp_keepintvl",
        tcp_keepintvl,
        Time(0, 32_767_000_000),
        "time between probes; 0 is the system's default"
    ),
    entry!(
        LOW,
        RELOAD,
        "tcp_keepcnt",
        tcp_keepcnt,
        Count(0u32, 127),
        "probes before the connection counts as lost; 0 is the system's default"
    ),
];

/// `[databases.NAME]`
pub(super) static DATABASE: &[Entry<Database>] = &[
    entry!(
        "",
        RELOAD,
        "host",
        host,
        List,
        "where the server is: host names, addresses or socket directories, tried in order"
    ),
    entry!("", RELOAD, "port", port, Count(1u16, u16::MAX), "the server's port"),
    entry!(
        "",
        RELOAD,
        "dbname",
        dbname,
        Maybe(Text),
        "name on the server; not set: the name the client asked for"
    ),
    entry!(
        "",
        RELOAD,
        "user",
        user,
        Maybe(Text),
        "one server login for all clients; not set: each client's own"
    ),
    entry!("", RELOAD, "password", password, Maybe(Password), "the secret of user; not set: the userlist's"),
    entry!(
        "",
        RELOAD,
        "pool_mode",
        pool_mode,
        Maybe(one_of::<crate::settings::PoolMode>()),
        "overrides [general]"
    ),
    entry!("", RELOAD, "pool_size", pool_size, Maybe(CONNECTIONS), "overrides default_pool_size"),
    entry!("", RELOAD, "min_pool_size", min_pool_size, Maybe(CONNECTIONS), "overrides [general]"),
    entry!("", RELOAD, "reserve_pool_size", reserve_pool_size, Maybe(CONNECTIONS), "overrides [general]"),
    entry!("", RELOAD, "max_db_connections", max_db_connections, Maybe(CONNECTIONS), "overrides [general]"),
    entry!(
        "",
        RELOAD,
        "max_db_client_connections",
        max_db_client_connections,
        Maybe(CONNECTIONS),
        "overrides [general]"
    ),
    entry!("", RELOAD, "query_wait_timeout", query_wait_timeout, Maybe(TIMEOUT), "overrides [general]"),
    entry!("", RELOAD, "server_lifetime", server_lifetime, Maybe(TIMEOUT), "overrides [general]"),
    entry!(
        "",
        RELOAD,
        "session_state",
        session_state,
        Maybe(one_of::<crate::settings::SessionState>()),
        "overrides [general]"
    ),
    entry!("", RELOAD, "connect_query", connect_query, Maybe(Statement), "run on each new server connection"),
];

/// `[users.NAME]`
pub(super) static USER: &[Entry<User>] = &[
    entry!(
        "",
        RELOAD,
        "pool_mode",
        pool_mode,
        Maybe(one_of::<crate::settings::PoolMode>()),
        "overrides [general] and the database's"
    ),
    entry!(
        "",
        RELOAD,
        "pool_size",
        pool_size,
        Maybe(CONNECTIONS),
        "overrides default_pool_size and the database's"
    ),
    entry!(
        "",
        RELOAD,
        "max_user_connections",
        max_user_connections,
        Maybe(CONNECTIONS),
        "overrides [general]"
    ),
    entry!(
        "",
        RELOAD,
        "max_user_client_connections",
        max_user_client_connections,
        Maybe(CONNECTIONS),
        "overrides [general]"
    ),
    entry!("", RELOAD, "query_timeout", query_timeout, Maybe(TIMEOUT), "overrides [general]"),
    entry!(
        "",
        RELOAD,
        "idle_transaction_timeout",
        idle_transaction_timeout,
        Maybe(TIMEOUT),
        "overrides [general]"
    ),
    entry!("", RELOAD, "transaction_timeout", transaction_timeout, Maybe(TIMEOUT), "overrides [general]"),
    entry!("", RELOAD, "client_idle_timeout", client_idle_timeout, Maybe(TIMEOUT), "overrides [general]"),
];

/// `[policy]`
pub(super) static POLICY: &[Entry<Policy>] = &[
    entry!(
        "",
        RELOAD,
        "simple_query",
        simple_query,
        Maybe(one_of::<crate::settings::SimpleQuery>()),
        "which Query messages pass: all, those with one statement, transaction control and session state only, or none"
    ),
    entry!(
        "",
        RELOAD,
        "function_call",
        function_call,
        Maybe(one_of::<crate::settings::Switch>()),
        "whether FunctionCall messages pass"
    ),
    entry!(
        "",
        RELOAD,
        "enforce",
        enforce,
        Maybe(one_of::<crate::settings::Enforce>()),
        "refuse what a rule forbids, or let it pass and write the same audit event"
    ),
];

/// `[coalesce]`
pub(super) static COALESCE: &[Entry<Coalesce>] = &[
    entry!(
        "",
        RELOAD,
        "mode",
        mode,
        one_of::<crate::settings::CoalesceMode>(),
        "whether INSERTs are poured into COPY; shadow says what would have been poured and pours nothing"
    ),
    entry!(
        "",
        RELOAD,
        "copy_min_rows",
        copy_min_rows,
        Count(2usize, ROWS_MAX),
        "from this many rows on a flush is a COPY"
    ),
    entry!("", RELOAD, "max_rows", max_rows, Count(2usize, ROWS_MAX), "most rows of one flush"),
    entry!("", RELOAD, "max_bytes", max_bytes, Bytes(1 << 10, 256 << 20), "most bytes of one flush"),
    entry!(
        "",
        RELOAD,
        "max_flushes_per_table",
        max_flushes_per_table,
        Count(1usize, 64),
        "flushes in flight for one table"
    ),
    entry!(
        "",
        RELOAD,
        "linger",
        linger,
        Time(0, FLUSH_MICROS_MAX),
        "extra wait for more rows; 0 lets the batches form while a flush is in flight"
    ),
    entry!(
        "",
        RELOAD,
        "lock_timeout",
        lock_timeout,
        Time(1_000, FLUSH_MICROS_MAX),
        "longest wait of a flush for a lock; after it every row runs in its own session"
    ),
    entry!(
        "",
        RELOAD,
        "flush_timeout",
        flush_timeout,
        Time(1_000, FLUSH_MICROS_MAX),
        "longest life of a flush on the server; it must stay below the server's deadlock_timeout"
    ),
    entry!(
        "",
        RELOAD,
        "max_value_bytes",
        max_value_bytes,
        Bytes(1, 256 << 20),
        "longest value that is poured"
    ),
    entry!(
        "",
        RELOAD,
        "budget_bytes",
        budget_bytes,
        Bytes(1 << 10, BUDGET_MAX),
        "bytes waiting in all batches together; beyond it INSERTs pass through"
    ),
    entry!("", RELOAD, "pipeline", pipeline, Flag, "pour one client's pipeline of INSERTs"),
    entry!(
        "",
        RELOAD,
        "group",
        group,
        Flag,
        "pour the INSERTs of many clients, each outside a transaction block"
    ),
    entry!(
        "",
        RELOAD,
        "deferred",
        deferred,
        Flag,
        "answer INSERTs inside a transaction block at once and pour them with the next other statement"
    ),
];

/// `[coalesce.tables."schema.table"]`
pub(super) static COALESCE_TABLE: &[Entry<CoalesceTable>] = &[
    entry!(
        "",
        RELOAD,
        "mode",
        mode,
        Maybe(one_of::<crate::settings::CoalesceMode>()),
        "overrides mode for this table"
    ),
    entry!("", RELOAD, "deferred", deferred, Maybe(Flag), "overrides deferred for this table"),
];

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
    all.extend(rows(Section::User, USER, &User::default()));
    all.extend(rows(Section::Policy, POLICY, &default_policy()));
    all.extend(rows(Section::Coalesce, COALESCE, &Coalesce::default()));
    all.extend(rows(Section::CoalesceTable, COALESCE_TABLE, &CoalesceTable::default()));
    all
});

/// What holds where no `[policy]` says anything.
fn default_policy() -> Policy {
    use crate::settings::{Enforce, SimpleQuery, Switch};
    Policy {
        simple_query: Some(SimpleQuery::default()),
        function_call: Some(Switch::Allow),
        enforce: Some(Enforce::Reject),
    }
}

/// Every key of the configuration file, by section and group.
pub fn keys() -> &'static [Key] {
    &KEYS
}

/// The `[general]` keys and their values as SHOW CONFIG prints them: seconds, bytes, 0 and 1, commas.
pub fn values(settings: &Settings) -> Vec<(&'static str, String)> {
    GENERAL.iter().map(|entry| (entry.name, (entry.show)(&settings.general))).collect()
}

/// The `[general]` keys that differ between two files and need a restart to take effect.
pub fn needs_restart(old: &Settings, new: &Settings) -> Vec<&'static str> {
    GENERAL
        .iter()
        .filter(|entry| !entry.reloadable && (entry.show)(&old.general) != (entry.show)(&new.general))
        .map(|entry| entry.name)
        .collect()
}

/// What a wrong key name most likely meant: "unknown key; ...".
pub(super) fn hint(section: Section, name: &str) -> String {
    if let Some(because) = super::ignored::because(section, name) {
        return format!("is PgBouncer's and has no effect here, because {because}; remove it");
    }
    if let Some(key) = KEYS.iter().find(|key| key.name == name) {
        return format!("unknown key in this section; it belongs in [{}]", key.section.path());
    }
    let near = KEYS
        .iter()
        .filter(|key| key.section == section)
        .map(|key| (distance(name, key.name), key.name))
        .min()
        .filter(|(steps, near)| *steps <= 2.max(near.len() / 3));
    match near {
        Some((_, near)) => format!("unknown key; did you mean {near}?"),
        None => format!("unknown key; docs/config.md lists the keys of [{}]", section.path()),
    }
}

/// Longest name that is compared with the keys (bytes).
const COMPARED_BYTES_MAX: usize = 64;

/// Levenshtein's distance.
pub(super) fn distance(a: &str, b: &str) -> usize {
    if a.len() > COMPARED_BYTES_MAX || b.len() > COMPARED_BYTES_MAX {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
