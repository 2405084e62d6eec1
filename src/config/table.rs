//! The tables: every key of every section, and where its value lives.
//!
//! A row is: heading, whether a reload changes it, name = field: what it takes, what it means.

use super::ciphers::{CIPHERS, TLS13_CIPHERS};
use super::keys::Entry;
use super::value::{
    Bytes, Count, File, FileMode, Flag, Kind, LdapOptions, List, Maybe, Networks, Password, Protocols, Rule,
    Socket, Statement, TIMEOUT, Text, Time,
};
use super::words::{Level, one_of};
use crate::limits;
use crate::settings::{
    AllowListMode, AuthType, Coalesce, CoalesceMode, CoalesceTable, Database, Enforce, General,
    LoadBalanceHosts, LogFormat, Peer, Policy, PoolMode, SessionState, SimpleQuery, SslMode, Statements,
    Switch, TargetSessionAttrs, User, UserCoalesce,
};

macro_rules! table {
    ($(#[$doc:meta])* $table:ident: $section:ty;
     $($group:expr, $reload:ident, $name:ident = $($field:ident).+: $kind:expr, $meaning:literal;)*) => {
        $(#[$doc])*
        pub(super) static $table: &[Entry<$section>] = &[$(Entry {
            name: stringify!($name),
            group: $group,
            meaning: $meaning,
            reloadable: $reload,
            set: |to, raw, dir| {
                to.$($field).+ = $kind.read(raw, dir).ok_or_else(|| $kind.instead_of(raw))?;
                Ok(())
            },
            show: |from| $kind.show(&from.$($field).+),
            toml: |from| $kind.toml(&from.$($field).+),
            takes: || $kind.takes(),
        }),*];
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
/// A wait so long that the wake-up after it is no noticeable part of it (microseconds).
const BUSY_POLL_MICROS_MAX: u64 = 10_000;

/// A flush must be over before another session would start looking for deadlocks: below PostgreSQL's default
/// `deadlock_timeout` of 1 s (microseconds).
const FLUSH_MICROS_MAX: u64 = 999_000;

/// Highest number of a peer: PgBouncer's.
pub(super) const PEER_ID_MAX: u16 = 16_383;

const LISTEN: &str = "Listening and process";
const POOL: &str = "Pooling and limits";
const AUTH: &str = "Who may come in";
const SERVER: &str = "Server connections";
const TIMEOUTS: &str = "Client and query timeouts";
const CLIENT_TLS: &str = "TLS toward clients";
const SERVER_TLS: &str = "TLS toward servers";
const LOG: &str = "Logs and statistics";
const LOW: &str = "Network";

table! {
    /// `[general]`
    GENERAL: General;
    LISTEN, RESTART, listen_addr = listen_addr: List,
        "addresses or host names to accept TCP connections on; * is all of them, empty is none";
    LISTEN, RESTART, listen_port = listen_port: Count(1u16, u16::MAX),
        "TCP port, also part of the Unix socket's file name";
    LISTEN, RESTART, listen_backlog = listen_backlog: Count(1u32, 65_535),
        "connections the kernel queues before they are accepted";
    LISTEN, RESTART, unix_socket_dir = unix_socket_dir: Maybe(File),
        "directory of the Unix socket; without it there is none";
    LISTEN, RESTART, unix_socket_mode = unix_socket_mode: FileMode,
        "permissions of the Unix socket's file";
    LISTEN, RESTART, unix_socket_group = unix_socket_group: Maybe(Text),
        "group of the Unix socket's file; not set: the process's";
    LISTEN, RESTART, so_reuseport = so_reuseport: Flag,
        "let other processes listen on the same TCP address and port";
    LISTEN, RELOAD, proxy_protocol_from = proxy_protocol_from: Networks,
        "balancers whose TCP connections begin with a header of the PROXY protocol (version 1 or 2), and that are \
         believed about the client's address";
    LISTEN, RELOAD, peer_id = peer_id: Count(0u16, PEER_ID_MAX),
        "number of this process among those that share its address, by which cancel requests find the right one of \
         [peers]; 0 is none";
    LISTEN, RESTART, http_addr = http_addr: Maybe(Socket),
        "address and port for HTTP: a status page, /metrics, /healthz and /readyz; without it there is none";
    LISTEN, RESTART, workers = workers: Count(0usize, 1024),
        "worker threads; 0 is one for every two cores, because PostgreSQL or the clients want the others";
    LISTEN, RELOAD, busy_poll = busy_poll: Time(0, BUSY_POLL_MICROS_MAX),
        "for how long a worker with a single busy client looks for the answer again and again before it sleeps; 0: it \
         sleeps at once";
    LISTEN, RESTART, pidfile = pidfile: Maybe(File),
        "file the process id is written to";
    LISTEN, RELOAD, shutdown_grace = shutdown_grace: TIMEOUT,
        "time after SIGTERM in which clients are still let in, while /readyz already says 503; 0: the drain begins at \
         once";
    LISTEN, RELOAD, shutdown_timeout = shutdown_timeout: TIMEOUT,
        "longest drain after SIGTERM before what is left is closed; 0 waits for ever";

    POOL, RELOAD, pool_mode = pool_mode: one_of::<PoolMode>(),
        "when a server connection goes back to the pool: when its client leaves, after each transaction, or \
         after each statement";
    POOL, RELOAD, max_client_conn = max_client_conn: Count(1usize, CONNECTIONS_MAX),
        "clients that are logged in; those of the console are not counted";
    POOL, RELOAD, max_login_conn = max_login_conn: Count(1usize, CONNECTIONS_MAX),
        "connections that have not logged in yet; beyond it the address that has most loses its oldest one, unless \
         that is younger than two seconds";
    POOL, RELOAD, default_pool_size = default_pool_size: CONNECTIONS,
        "server connections for one pair of database and user; 0 is no limit";
    POOL, RELOAD, min_pool_size = min_pool_size: CONNECTIONS,
        "server connections kept open while a pool is in use";
    POOL, RELOAD, reserve_pool_size = reserve_pool_size: CONNECTIONS,
        "extra server connections for a pool whose clients have waited reserve_pool_timeout";
    POOL, RELOAD, reserve_pool_timeout = reserve_pool_timeout: TIMEOUT,
        "how long a client waits before its pool may use the reserve; 0 turns the reserve off";
    POOL, RELOAD, max_db_connections = max_db_connections: CONNECTIONS,
        "server connections for one database over all its users; 0 is no limit";
    POOL, RELOAD, max_db_client_connections = max_db_client_connections: CONNECTIONS,
        "client connections for one database; 0 is no limit";
    POOL, RELOAD, max_user_connections = max_user_connections: CONNECTIONS,
        "server connections for one user over all databases; 0 is no limit";
    POOL, RELOAD, max_user_client_connections = max_user_client_connections: CONNECTIONS,
        "client connections for one user; 0 is no limit";
    POOL, RELOAD, server_round_robin = server_round_robin: Flag,
        "use the server connection that was idle longest instead of the one used last";
    POOL, RELOAD, max_prepared_statements = max_prepared_statements: Count(0usize, 100_000),
        "prepared statements kept on one server connection in transaction and statement mode; 0 passes \
         names through untouched";
    POOL, RELOAD, prepared_statement_bytes_max = prepared_statement_bytes_max: Bytes(1 << 20, BUDGET_MAX),
        "bytes of statement text remembered for all clients together; a 64th of it is reserved for each pool";
    POOL, RELOAD, session_state = session_state: one_of::<SessionState>(),
        "what happens with session state that cannot be carried to another server connection: the client \
         keeps its connection, the statement is refused, or it is let through";
    POOL, RELOAD, ignore_startup_parameters = ignore_startup_parameters: List,
        "startup parameters to accept and drop";
    POOL, RELOAD, application_name_add_host = application_name_add_host: Flag,
        "append the client's address and port to application_name";

    AUTH, RELOAD, auth_type = auth_type: one_of::<AuthType>(),
        "how clients prove who they are";
    AUTH, RELOAD, auth_file = auth_file: Maybe(File),
        "the userlist: names and secrets, in PgBouncer's format";
    AUTH, RELOAD, auth_hba_file = auth_hba_file: Maybe(File),
        "rules by database, user and address, used with auth_type = \"hba\"";
    AUTH, RELOAD, auth_ident_file = auth_ident_file: Maybe(File),
        "maps for map= in auth_hba_file: which certificate or operating-system user may be which user";
    AUTH, RELOAD, auth_ldap_options = auth_ldap_options: Maybe(LdapOptions),
        "the directory for auth_type = \"ldap\"; a rule of auth_hba_file has its own";
    AUTH, RELOAD, auth_user = auth_user: Maybe(Text),
        "role that asks the server for the secrets of users that are not in auth_file; not set: nobody asks";
    AUTH, RELOAD, auth_query = auth_query: Statement,
        "what auth_user asks: one row, a user's name and secret, for the name $1";
    AUTH, RELOAD, auth_dbname = auth_dbname: Maybe(Text),
        "the [databases] entry in which auth_query is asked; not set: the one that the client asks for";
    AUTH, RELOAD, scram_iterations = scram_iterations: Count(1u32, limits::SCRAM_ITERATIONS_MAX),
        "iterations used when a SCRAM secret is made from a password in clear";
    AUTH, RELOAD, admin_users = admin_users: List,
        "users with all rights on the console";
    AUTH, RELOAD, stats_users = stats_users: List,
        "users who may only look on the console";

    SERVER, RELOAD, server_reset_query = server_reset_query: Statement,
        "run on a server connection when its client leaves it, in session mode";
    SERVER, RELOAD, server_reset_query_always = server_reset_query_always: Flag,
        "run server_reset_query in every pool mode";
    SERVER, RELOAD, server_check_query = server_check_query: Statement,
        "statement that proves an idle server connection alive; empty sends an empty query";
    SERVER, RELOAD, server_check_delay = server_check_delay: TIMEOUT,
        "idle time after which the check is due before the next use";
    SERVER, RELOAD, server_lifetime = server_lifetime: TIMEOUT,
        "age after which an unused server connection is closed; 0 closes it after each use";
    SERVER, RELOAD, server_idle_timeout = server_idle_timeout: TIMEOUT,
        "idle time after which a server connection is closed; 0 is never";
    SERVER, RELOAD, server_fast_close = server_fast_close: Flag,
        "a client that keeps its server connection is closed between two transactions, when that connection is to be replaced";
    SERVER, RELOAD, server_connect_timeout = server_connect_timeout: TIMEOUT,
        "time for connecting and logging in to a server";
    SERVER, RELOAD, server_login_retry = server_login_retry: TIMEOUT,
        "longest pause between tries while a server cannot be reached";

    TIMEOUTS, RELOAD, client_login_timeout = client_login_timeout: TIMEOUT,
        "time for a client's login";
    TIMEOUTS, RELOAD, login_notify_message = login_notify_message: Text,
        "a notice that each client gets at the end of its login; empty is none";
    TIMEOUTS, RELOAD, client_idle_timeout = client_idle_timeout: TIMEOUT,
        "close clients that have sent nothing for this long; 0 is never";
    TIMEOUTS, RELOAD, idle_transaction_timeout = idle_transaction_timeout: TIMEOUT,
        "close clients idle inside a transaction for this long; 0 is never";
    TIMEOUTS, RELOAD, transaction_timeout = transaction_timeout: TIMEOUT,
        "close clients whose transaction lasts longer; 0 is never";
    TIMEOUTS, RELOAD, query_timeout = query_timeout: TIMEOUT,
        "close clients whose query lasts longer; 0 is never";
    TIMEOUTS, RELOAD, query_wait_timeout = query_wait_timeout: TIMEOUT,
        "longest wait for a server connection; 0 waits for ever";
    TIMEOUTS, RELOAD, query_wait_notify = query_wait_notify: TIMEOUT,
        "time after which a client that waits for a server connection is told so, in a notice; 0 is never";
    TIMEOUTS, RELOAD, cancel_wait_timeout = cancel_wait_timeout: TIMEOUT,
        "longest wait of a cancel request for a connection to the server";

    CLIENT_TLS, RELOAD, client_tls_sslmode = client_tls.sslmode: one_of::<SslMode>(),
        "whether clients may or must use TLS, and whether they need a certificate";
    CLIENT_TLS, RELOAD, client_tls_key_file = client_tls.key_file: Maybe(File),
        "private key (PEM)";
    CLIENT_TLS, RELOAD, client_tls_cert_file = client_tls.cert_file: Maybe(File),
        "certificate chain (PEM)";
    CLIENT_TLS, RELOAD, client_tls_ca_file = client_tls.ca_file: Maybe(File),
        "authorities that sign client certificates (PEM)";
    CLIENT_TLS, RELOAD, client_tls_protocols = client_tls.protocols: Protocols,
        "versions of TLS that are spoken";
    CLIENT_TLS, RELOAD, client_tls_ciphers = client_tls.ciphers: CIPHERS,
        "cipher suites of TLS 1.2";
    CLIENT_TLS, RELOAD, client_tls13_ciphers = client_tls.tls13_ciphers: TLS13_CIPHERS,
        "cipher suites of TLS 1.3";

    SERVER_TLS, RELOAD, server_tls_sslmode = server_tls.sslmode: one_of::<SslMode>(),
        "whether TLS is used toward servers, and how far their certificate is checked";
    SERVER_TLS, RELOAD, server_tls_ca_file = server_tls.ca_file: Maybe(File),
        "authorities that sign server certificates (PEM); not set: the machine's";
    SERVER_TLS, RELOAD, server_tls_key_file = server_tls.key_file: Maybe(File),
        "private key of the proxy (PEM), for servers that ask for a certificate";
    SERVER_TLS, RELOAD, server_tls_cert_file = server_tls.cert_file: Maybe(File),
        "certificate of the proxy (PEM), for servers that ask for one";
    SERVER_TLS, RELOAD, server_tls_protocols = server_tls.protocols: Protocols,
        "versions of TLS that are spoken";
    SERVER_TLS, RELOAD, server_tls_ciphers = server_tls.ciphers: CIPHERS,
        "cipher suites of TLS 1.2";
    SERVER_TLS, RELOAD, server_tls13_ciphers = server_tls.tls13_ciphers: TLS13_CIPHERS,
        "cipher suites of TLS 1.3";

    LOG, RELOAD, log_connections = log_connections: Flag,
        "log logins, and server connections that are opened";
    LOG, RELOAD, log_disconnections = log_disconnections: Flag,
        "log clients and server connections that are closed, and why";
    LOG, RELOAD, log_pooler_errors = log_pooler_errors: Flag,
        "log errors by which pgsluice itself refuses a login or closes a client";
    LOG, RELOAD, audit_file = audit_file: Maybe(File),
        "file that audit events of the policy are appended to, one JSON object a line; opened again by \
         RELOAD and SIGHUP; without it they go to standard error";
    LOG, RESTART, log_format = log_format: one_of::<LogFormat>(),
        "form of the log on standard error: lines for people, or one JSON object a line";
    LOG, RELOAD, log_level = log_level: Level,
        "what is logged: this level and those above it";
    LOG, RELOAD, log_stats = log_stats: Flag,
        "log the averages over all databases each stats_period";
    LOG, RELOAD, stats_period = stats_period: Time(1_000_000, 86_400_000_000),
        "period of the averages in SHOW STATS and in the log";

    LOW, RELOAD, max_packet_size = max_packet_size: Bytes(limits::AUTH_MESSAGE_BYTES_MAX, limits::MESSAGE_BYTES_MAX),
        "largest message accepted from either side";
    LOW, RELOAD, hosts_file = hosts_file: Maybe(File),
        "addresses and names, in the format of /etc/hosts: host names are looked for there before the system is asked";
    LOW, RELOAD, dns_max_ttl = dns_max_ttl: TIMEOUT,
        "time between two looks at the addresses that servers' host names have: connections to one that is gone close \
         as they become free; 0 is never";
    LOW, RELOAD, tcp_keepalive = tcp_keepalive: Flag,
        "TCP keepalive on both sides";
    LOW, RELOAD, tcp_keepidle = tcp_keepidle: Time(0, 32_767_000_000),
        "idle time before the first probe; 0 is the system's default";
    LOW, RELOAD, tcp_keepintvl = tcp_keepintvl: Time(0, 32_767_000_000),
        "time between probes; 0 is the system's default";
    LOW, RELOAD, tcp_keepcnt = tcp_keepcnt: Count(0u32, 127),
        "probes before the connection counts as lost; 0 is the system's default";
    LOW, RELOAD, tcp_user_timeout = tcp_user_timeout: Count(0u32, i32::MAX as u32),
        "milliseconds that what was sent may stay unconfirmed before the connection counts as lost; 0 is the \
         system's default";
}

table! {
    /// `[databases.NAME]`
    DATABASE: Database;
    "", RELOAD, host = host: List,
        "where the server is: host names, addresses or socket directories";
    "", RELOAD, load_balance_hosts = load_balance_hosts: one_of::<LoadBalanceHosts>(),
        "which of several hosts a new server connection tries first: the next one each time, or that of the last \
         connection; then it tries the others";
    "", RELOAD, target_session_attrs = target_session_attrs: one_of::<TargetSessionAttrs>(),
        "what a server must be like for a connection to it, in libpq's words";
    "", RELOAD, port = port: Count(1u16, u16::MAX),
        "the server's port";
    "", RELOAD, dbname = dbname: Maybe(Text),
        "name on the server; not set: the name the client asked for";
    "", RELOAD, user = user: Maybe(Text),
        "one server login for all clients; not set: each client's own";
    "", RELOAD, password = password: Maybe(Password),
        "the secret of user; not set: the userlist's";
    "", RELOAD, pool_mode = pool_mode: Maybe(one_of::<PoolMode>()),
        "overrides [general]";
    "", RELOAD, pool_size = pool_size: Maybe(CONNECTIONS),
        "overrides default_pool_size";
    "", RELOAD, min_pool_size = min_pool_size: Maybe(CONNECTIONS),
        "overrides [general]";
    "", RELOAD, reserve_pool_size = reserve_pool_size: Maybe(CONNECTIONS),
        "overrides [general]";
    "", RELOAD, max_db_connections = max_db_connections: Maybe(CONNECTIONS),
        "overrides [general]";
    "", RELOAD, max_db_client_connections = max_db_client_connections: Maybe(CONNECTIONS),
        "overrides [general]";
    "", RELOAD, query_wait_timeout = query_wait_timeout: Maybe(TIMEOUT),
        "overrides [general]";
    "", RELOAD, server_lifetime = server_lifetime: Maybe(TIMEOUT),
        "overrides [general]";
    "", RELOAD, session_state = session_state: Maybe(one_of::<SessionState>()),
        "overrides [general]";
    "", RELOAD, connect_query = connect_query: Maybe(Statement),
        "run on each new server connection";
    "", RELOAD, client_encoding = client_encoding: Maybe(Text),
        "encoding of clients that ask for none";
    "", RELOAD, datestyle = datestyle: Maybe(Text),
        "DateStyle of clients that ask for none";
    "", RELOAD, timezone = timezone: Maybe(Text),
        "TimeZone of clients that ask for none";
    "", RELOAD, auth_user = auth_user: Maybe(Text),
        "overrides [general]";
    "", RELOAD, auth_query = auth_query: Maybe(Statement),
        "overrides [general]";
    "", RELOAD, auth_dbname = auth_dbname: Maybe(Text),
        "overrides [general]";
}

table! {
    /// `[peers.ID]`
    PEER: Peer;
    "", RELOAD, host = host: Maybe(Text),
        "host name, address or socket directory of the peer; its own, not the one that it shares";
    "", RELOAD, port = port: Count(1u16, u16::MAX),
        "the peer's port, also part of a socket's file name";
    "", RELOAD, pool_size = pool_size: Maybe(Count(1usize, CONNECTIONS_MAX)),
        "cancel requests that are on their way to the peer at a time; default_pool_size, if that is not 0";
}

table! {
    /// `[users.NAME]`
    USER: User;
    "", RELOAD, pool_mode = pool_mode: Maybe(one_of::<PoolMode>()),
        "overrides [general] and the database's";
    "", RELOAD, pool_size = pool_size: Maybe(CONNECTIONS),
        "overrides default_pool_size and the database's";
    "", RELOAD, reserve_pool_size = reserve_pool_size: Maybe(CONNECTIONS),
        "overrides [general] and the database's";
    "", RELOAD, max_user_connections = max_user_connections: Maybe(CONNECTIONS),
        "overrides [general]";
    "", RELOAD, max_user_client_connections = max_user_client_connections: Maybe(CONNECTIONS),
        "overrides [general]";
    "", RELOAD, query_timeout = query_timeout: Maybe(TIMEOUT),
        "overrides [general]";
    "", RELOAD, query_wait_timeout = query_wait_timeout: Maybe(TIMEOUT),
        "overrides [general] and the database's";
    "", RELOAD, idle_transaction_timeout = idle_transaction_timeout: Maybe(TIMEOUT),
        "overrides [general]";
    "", RELOAD, transaction_timeout = transaction_timeout: Maybe(TIMEOUT),
        "overrides [general]";
    "", RELOAD, client_idle_timeout = client_idle_timeout: Maybe(TIMEOUT),
        "overrides [general]";
}

table! {
    /// `[users.NAME.coalesce]`
    USER_COALESCE: UserCoalesce;
    "", RELOAD, deferred = deferred: Maybe(Flag),
        "overrides deferred for this user; where a user and a table differ, false wins";
}

table! {
    /// `[policy]`
    POLICY: Policy;
    "", RELOAD, simple_query = simple_query: Rule(one_of::<SimpleQuery>()),
        "which Query messages pass: all, those with one statement, transaction control and session state \
         only, or none";
    "", RELOAD, function_call = function_call: Rule(one_of::<Switch>()),
        "whether FunctionCall messages pass; without it they do while simple_query is allow";
    "", RELOAD, sql_prepare = sql_prepare: Rule(one_of::<Switch>()),
        "whether SQL's PREPARE and EXECUTE pass, in either protocol";
    "", RELOAD, replication = replication: Rule(one_of::<Switch>()),
        "whether replication connections pass, where no other rule looks into messages";
    "", RELOAD, statements = statements: Rule(one_of::<Statements>()),
        "which kinds of statements pass, in either protocol: all, those that define nothing, or those that only \
         read";
    "", RELOAD, allow_list = allow_list: Rule(one_of::<AllowListMode>()),
        "what becomes of statements that allow_list_file does not have: passed, learned, passed with an audit \
         event, or refused";
    "", RELOAD, allow_list_file = allow_list_file: Maybe(File),
        "file of statements that may pass, a fingerprint a line";
    "", RELOAD, enforce = enforce: Rule(one_of::<Enforce>()),
        "refuse what a rule forbids, or let it pass and write the same audit event";
}

table! {
    /// `[coalesce]`
    COALESCE: Coalesce;
    "", RELOAD, mode = mode: one_of::<CoalesceMode>(),
        "whether INSERTs are poured into COPY; shadow says what would have been poured and pours nothing";
    "", RELOAD, copy_min_rows = copy_min_rows: Count(2usize, ROWS_MAX),
        "fewest rows that leave together";
    "", RELOAD, values_max_rows = values_max_rows: Count(0usize, limits::VALUES_ROWS_MAX),
        "up to this many rows of a table leave as one INSERT of many VALUES where that is exact; 0: all as a COPY";
    "", RELOAD, max_rows = max_rows: Count(2usize, ROWS_MAX),
        "most rows of one flush";
    "", RELOAD, max_bytes = max_bytes: Bytes(1 << 10, 256 << 20),
        "most bytes of one flush";
    "", RELOAD, max_flushes_per_table = max_flushes_per_table: Count(1usize, 64),
        "flushes in flight for one table of a database, whatever columns they fill and whosever rows they are";
    "", RELOAD, linger = linger: Time(0, FLUSH_MICROS_MAX),
        "extra wait for more rows; 0 lets the batches form while a flush is in flight";
    "", RELOAD, lock_timeout = lock_timeout: Time(1_000, FLUSH_MICROS_MAX),
        "longest wait of a flush for a lock; after it every row runs in its own session";
    "", RELOAD, flush_timeout = flush_timeout: Time(1_000, FLUSH_MICROS_MAX),
        "longest life of a flush on the server; it must stay below the server's deadlock_timeout";
    "", RELOAD, max_value_bytes = max_value_bytes: Bytes(1, 256 << 20),
        "longest value that is poured";
    "", RELOAD, budget_bytes = budget_bytes: Bytes(1 << 10, BUDGET_MAX),
        "bytes waiting in all batches and for the ends of units together; beyond it INSERTs pass through";
    "", RELOAD, pipeline = pipeline: Flag,
        "pour one client's pipeline of INSERTs";
    "", RELOAD, group = group: Flag,
        "pour the INSERTs of many clients, each outside a transaction block";
    "", RELOAD, share_transaction = share_transaction: Flag,
        "run INSERTs of many clients that cannot be a COPY (RETURNING, ON CONFLICT, expressions) in one transaction";
    "", RELOAD, deferred = deferred: Flag,
        "answer INSERTs inside a transaction block at once and pour them with the next other statement";
}

table! {
    /// `[coalesce.tables."schema.table"]`
    COALESCE_TABLE: CoalesceTable;
    "", RELOAD, mode = mode: Maybe(one_of::<CoalesceMode>()),
        "overrides mode for this table";
    "", RELOAD, deferred = deferred: Maybe(Flag),
        "overrides deferred for this table";
}
