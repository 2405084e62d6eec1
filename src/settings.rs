//! What the operator chose, validated: plain data that every room may read.
//!
//! Owns: the types, their defaults (PgBouncer's where the meaning is the same) and nothing else.
//! [`crate::config`] fills them from a file; a reload is a new value.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The databases that are the console.
pub const CONSOLES: [&str; 2] = ["pgsluice", "pgbouncer"];

/// Whether `server_reset_query` takes away all that a client may leave on a server connection.
pub fn discards_all(server_reset_query: &str) -> bool {
    let statement = server_reset_query.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    statement.split_whitespace().map(str::to_ascii_uppercase).eq(["DISCARD", "ALL"])
}

/// Everything one process runs with.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// They are from a file in PgBouncer's format: what that leaves out has PgBouncer's default.
    pub ini: bool,
    /// `[general]`
    pub general: General,
    /// `[databases.NAME]` by name; `*` is in `fallback`.
    pub databases: BTreeMap<String, Arc<Database>>,
    /// `[databases."*"]`
    pub fallback: Option<Arc<Database>>,
    /// `[users.NAME]`
    pub users: HashMap<String, Arc<User>>,
    /// `auth_file`, read: name -> secret.
    pub userlist: HashMap<String, Secret>,
    /// What `auth_file` was when it was read.
    pub userlist_read: Option<FileState>,
    /// Rules of `auth_hba_file`, in file order; used when `auth_type = "hba"`.
    pub hba: Vec<HbaRule>,
    /// Maps of `auth_ident_file`: what each of their lines allows.
    pub ident: BTreeMap<String, Vec<Mapping>>,
    /// `auth_ldap_options`, understood; used when `auth_type = "ldap"`.
    pub ldap: Option<Arc<Ldap>>,
    /// `[peers.ID]`, those with our own id too.
    pub peers: BTreeMap<u16, Peer>,
    /// `[policy]`, the global one.
    pub policy: Policy,
    /// `[networks.NAME]`, in the file's order.
    pub networks: Vec<Network>,
    /// Every `allow_list_file` that a policy names, read.
    pub allow_lists: BTreeMap<PathBuf, Arc<AllowList>>,
    /// `[coalesce]`, the global one.
    pub coalesce: Coalesce,
}

impl Settings {
    /// The entry that serves database `name`: its own, or the fallback.
    pub fn database(&self, name: &str) -> Option<&Arc<Database>> {
        self.databases.get(name).or(self.fallback.as_ref())
    }

    /// What ends the sessions of user `name`.
    pub fn timeouts(&self, name: &str) -> Timeouts {
        Timeouts::of(&self.general, self.users.get(name).map(|user| &**user))
    }
}

/// What ends a client's session; zero: nothing does.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// `client_idle_timeout`
    pub idle: Duration,
    /// `idle_transaction_timeout`
    pub idle_inside: Duration,
    /// `query_timeout`: holds for a login that waits for a server, too.
    pub query: Duration,
    /// `transaction_timeout`
    pub transaction: Duration,
}

impl Timeouts {
    /// Those of a user with this section, or with none.
    pub fn of(general: &General, user: Option<&User>) -> Self {
        let own = |of: fn(&User) -> Option<Duration>, common| user.and_then(of).unwrap_or(common);
        Self {
            idle: own(|user| user.client_idle_timeout, general.client_idle_timeout),
            idle_inside: own(|user| user.idle_transaction_timeout, general.idle_transaction_timeout),
            query: own(|user| user.query_timeout, general.query_timeout),
            transaction: own(|user| user.transaction_timeout, general.transaction_timeout),
        }
    }
}

/// By what is seen that a file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    /// Its last change, in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Its size.
    pub bytes: u64,
    /// Which file it is: editors put a new one in its place.
    pub inode: u64,
}

/// `[peers.ID]`: another process behind the same address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its host name, address or socket directory; never `None` once checked.
    pub host: Option<String>,
    /// Its port.
    pub port: u16,
    /// Connections to it at a time; `None`: `default_pool_size`.
    pub pool_size: Option<usize>,
}

impl Default for Peer {
    fn default() -> Self {
        Self { host: None, port: 6432, pool_size: None }
    }
}

/// `[networks.NAME]`: clients by where they come from.
#[derive(Debug, Clone)]
pub struct Network {
    /// As it is written.
    pub name: String,
    /// Address and prefix length; `None` is `unix`, the Unix socket.
    pub address: Option<(IpAddr, u8)>,
    /// `[networks.NAME.policy]`
    pub policy: Policy,
}

impl Network {
    /// A client from `ip` (`None`: over the Unix socket) is in it.
    pub fn holds(&self, ip: Option<IpAddr>) -> bool {
        match (self.address, ip) {
            (None, None) => true,
            (Some(network), Some(ip)) => is_within(network, ip),
            _ => false,
        }
    }
}

/// `ip` is in the network of this address and prefix length. An IPv4 address that came in over an IPv6 socket is an
/// IPv4 address.
pub fn is_within((network, prefix): (IpAddr, u8), ip: IpAddr) -> bool {
    match (network, ip.to_canonical()) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => {
            same_prefix(u128::from(network.to_bits()) << 96, u128::from(ip.to_bits()) << 96, prefix.min(32))
        }
        (IpAddr::V6(network), IpAddr::V6(ip)) => {
            same_prefix(network.to_bits(), ip.to_bits(), prefix.min(128))
        }
        _ => false,
    }
}

fn same_prefix(a: u128, b: u128, bits: u8) -> bool {
    bits == 0 || (a ^ b) >> (128 - u32::from(bits)) == 0
}

/// `[general]`. Names, meanings and defaults are PgBouncer's unless a line says otherwise. Zero
/// durations and zero counts mean "no limit", as there.
#[derive(Debug, Clone)]
pub struct General {
    /// Addresses to accept TCP on; empty: Unix socket only; `*`: all.
    pub listen_addr: Vec<String>,
    /// TCP port, also part of the Unix socket's file name.
    pub listen_port: u16,
    /// Kernel accept queue length.
    pub listen_backlog: u32,
    /// Directory of the Unix socket; `None`: no Unix socket.
    pub unix_socket_dir: Option<PathBuf>,
    /// Mode of the Unix socket's file.
    pub unix_socket_mode: u32,
    /// Group of the Unix socket's file; `None`: the process's.
    pub unix_socket_group: Option<String>,
    /// Other processes may listen on the same TCP address and port.
    pub so_reuseport: bool,
    /// Networks whose connections begin with a PROXY header. Ours.
    pub proxy_protocol_from: Vec<(IpAddr, u8)>,
    /// Who we are among processes that share an address; 0: nobody.
    pub peer_id: u16,
    /// Where HTTP is listened on, for metrics and health; `None`: nowhere. Ours.
    pub http_addr: Option<SocketAddr>,
    /// Worker threads; 0: one for every two cores, because PostgreSQL or the clients want the others. Ours.
    pub workers: usize,
    /// Longest wait of a session alone on its worker that is spent looking instead of sleeping; zero: none. Ours.
    pub busy_poll: Duration,

    /// session, transaction or statement.
    pub pool_mode: PoolMode,
    /// Clients that are logged in.
    pub max_client_conn: usize,
    /// Connections that have not logged in yet. Ours.
    pub max_login_conn: usize,
    /// Server connections for one (database, user) pair.
    pub default_pool_size: usize,
    /// Server connections kept open while a pool is in use.
    pub min_pool_size: usize,
    /// Extra connections for a pool whose clients waited `reserve_pool_timeout`.
    pub reserve_pool_size: usize,
    /// See `reserve_pool_size`.
    pub reserve_pool_timeout: Duration,
    /// Server connections for one database over all users; 0: no limit.
    pub max_db_connections: usize,
    /// Client connections for one database; 0: no limit.
    pub max_db_client_connections: usize,
    /// Server connections for one user over all databases; 0: no limit.
    pub max_user_connections: usize,
    /// Client connections for one user; 0: no limit.
    pub max_user_client_connections: usize,
    /// Oldest idle server first instead of the newest.
    pub server_round_robin: bool,
    /// Prepared statements kept on one server connection; 0: names pass through untouched.
    pub max_prepared_statements: usize,
    /// Bytes of statement text remembered in all, over all clients. Ours.
    pub prepared_statement_bytes_max: usize,
    /// Startup parameters to accept and drop.
    pub ignore_startup_parameters: Vec<String>,
    /// What happens with session state that can't be carried: pin, reject or allow. Ours.
    pub session_state: SessionState,
    /// Append client address and port to application_name.
    pub application_name_add_host: bool,

    /// How clients prove who they are.
    pub auth_type: AuthType,
    /// The userlist's path, kept for reload and for messages.
    pub auth_file: Option<PathBuf>,
    /// The HBA file's path.
    pub auth_hba_file: Option<PathBuf>,
    /// The path of the file with name maps.
    pub auth_ident_file: Option<PathBuf>,
    /// The directory's options as they were written; they may hold a password.
    pub auth_ldap_options: Option<Secret>,
    /// Who asks the server for secrets of users that are not in auth_file; `None`: nobody does.
    pub auth_user: Option<String>,
    /// What is asked.
    pub auth_query: String,
    /// The `[databases]` entry in which it is asked; `None`: the client's.
    pub auth_dbname: Option<String>,
    /// Iterations used when a SCRAM secret is made from a plain one.
    pub scram_iterations: u32,
    /// Console rights.
    pub admin_users: Vec<String>,
    /// Read-only console rights.
    pub stats_users: Vec<String>,

    /// Run on a server when a client leaves it, in session mode.
    pub server_reset_query: String,
    /// Run `server_reset_query` in every mode.
    pub server_reset_query_always: bool,
    /// A statement that proves an idle server alive; empty: an empty query.
    pub server_check_query: String,
    /// Idle time after which the check is due.
    pub server_check_delay: Duration,
    /// Age after which an unused server is closed; 0: after each use.
    pub server_lifetime: Duration,
    /// Idle time after which a server is closed.
    pub server_idle_timeout: Duration,
    /// A client that keeps a server to be closed when free is closed between two transactions.
    pub server_fast_close: bool,
    /// Time for connect and login.
    pub server_connect_timeout: Duration,
    /// Longest pause between tries while a server can't be reached (tries begin at 100 ms).
    pub server_login_retry: Duration,

    /// Time for a client's login.
    pub client_login_timeout: Duration,
    /// A notice at the end of each login; empty: none.
    pub login_notify_message: String,
    /// Close clients that send nothing.
    pub client_idle_timeout: Duration,
    /// Close clients idle inside a transaction.
    pub idle_transaction_timeout: Duration,
    /// Close clients whose transaction lasts longer.
    pub transaction_timeout: Duration,
    /// Close clients whose query lasts longer.
    pub query_timeout: Duration,
    /// Longest wait for a server.
    pub query_wait_timeout: Duration,
    /// How long a client waits for a server before it is told that it does.
    pub query_wait_notify: Duration,
    /// Longest wait of a cancel request for a slot.
    pub cancel_wait_timeout: Duration,
    /// How long clients are still let in after SIGTERM, before the drain. Ours.
    pub shutdown_grace: Duration,
    /// Longest drain after SIGTERM before what is left is closed. Ours.
    pub shutdown_timeout: Duration,

    /// Largest message accepted (bytes).
    pub max_packet_size: usize,
    /// Names that are looked for here before the system is asked. Ours.
    pub hosts_file: Option<PathBuf>,
    /// Time between two looks at the addresses of host names; zero: never.
    pub dns_max_ttl: Duration,
    /// TCP keepalive on both sides.
    pub tcp_keepalive: bool,
    /// Idle seconds before probing; 0: the system's default.
    pub tcp_keepidle: Duration,
    /// Between probes; 0: the system's default.
    pub tcp_keepintvl: Duration,
    /// Probes; 0: the system's default.
    pub tcp_keepcnt: u32,
    /// How long what was sent may stay unconfirmed (milliseconds, as there); 0: the system's default.
    pub tcp_user_timeout: u32,

    /// TLS toward clients.
    pub client_tls: Tls,
    /// TLS toward servers.
    pub server_tls: Tls,

    /// Log successful logins.
    pub log_connections: bool,
    /// Log closes with the reason.
    pub log_disconnections: bool,
    /// Log errors that are sent to clients.
    pub log_pooler_errors: bool,
    /// Where audit events go; `None`: standard error. Ours.
    pub audit_file: Option<PathBuf>,
    /// Log line form. Ours.
    pub log_format: LogFormat,
    /// error, warn, info, debug or trace. Ours.
    pub log_level: String,
    /// Log the averages of SHOW STATS over all databases.
    pub log_stats: bool,
    /// Seconds between averages of SHOW STATS.
    pub stats_period: Duration,
    /// Where the process id is written.
    pub pidfile: Option<PathBuf>,
}

impl General {
    /// `ignore_startup_parameters` has it.
    pub fn drops_startup_parameter(&self, name: &str) -> bool {
        self.ignore_startup_parameters.iter().any(|dropped| dropped.eq_ignore_ascii_case(name))
    }
}

impl Default for General {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            listen_addr: vec!["127.0.0.1".into()],
            listen_port: 6432,
            listen_backlog: 128,
            unix_socket_dir: None,
            unix_socket_mode: 0o777,
            unix_socket_group: None,
            so_reuseport: false,
            proxy_protocol_from: Vec::new(),
            peer_id: 0,
            http_addr: None,
            workers: 0,
            busy_poll: Duration::from_micros(500),
            pool_mode: PoolMode::Transaction,
            max_client_conn: 10_000,
            max_login_conn: 1000,
            default_pool_size: 20,
            min_pool_size: 0,
            reserve_pool_size: 0,
            reserve_pool_timeout: s(5),
            max_db_connections: 0,
            max_db_client_connections: 0,
            max_user_connections: 0,
            max_user_client_connections: 0,
            server_round_robin: false,
            max_prepared_statements: 200,
            prepared_statement_bytes_max: 64 << 20,
            ignore_startup_parameters: Vec::new(),
            session_state: SessionState::Pin,
            application_name_add_host: false,
            auth_type: AuthType::ScramSha256,
            auth_file: None,
            auth_hba_file: None,
            auth_ident_file: None,
            auth_ldap_options: None,
            auth_user: None,
            auth_query: AUTH_QUERY.into(),
            auth_dbname: None,
            scram_iterations: 4096,
            admin_users: Vec::new(),
            stats_users: Vec::new(),
            server_reset_query: "DISCARD ALL".into(),
            server_reset_query_always: false,
            server_check_query: String::new(),
            server_check_delay: s(30),
            server_lifetime: s(3600),
            server_idle_timeout: s(600),
            server_fast_close: false,
            server_connect_timeout: s(15),
            server_login_retry: s(15),
            client_login_timeout: s(60),
            login_notify_message: String::new(),
            client_idle_timeout: s(0),
            idle_transaction_timeout: s(0),
            transaction_timeout: s(0),
            query_timeout: s(0),
            query_wait_timeout: s(120),
            query_wait_notify: s(5),
            cancel_wait_timeout: s(10),
            shutdown_grace: Duration::ZERO,
            shutdown_timeout: s(60),
            max_packet_size: crate::limits::MESSAGE_BYTES_MAX,
            hosts_file: None,
            dns_max_ttl: Duration::from_secs(15),
            tcp_keepalive: true,
            tcp_keepidle: s(0),
            tcp_keepintvl: s(0),
            tcp_keepcnt: 0,
            tcp_user_timeout: 0,
            client_tls: Tls::default(),
            server_tls: Tls { sslmode: SslMode::Prefer, ..Tls::default() },
            log_connections: true,
            log_disconnections: true,
            log_pooler_errors: true,
            audit_file: None,
            log_format: LogFormat::Text,
            log_level: "info".into(),
            log_stats: true,
            stats_period: s(60),
            pidfile: None,
        }
    }
}

/// The secret of one role that may log in; none, once it has expired.
const AUTH_QUERY: &str = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END \
                          FROM pg_authid WHERE rolname = $1 AND rolcanlogin";

/// `[databases.NAME]`.
#[derive(Debug, Clone)]
pub struct Database {
    /// The name clients ask for (`*` for the fallback).
    pub name: String,
    /// Where the server is: host names, addresses or socket directories.
    pub host: Vec<String>,
    /// Which of them a new connection begins with.
    pub load_balance_hosts: LoadBalanceHosts,
    /// What a server must be like for a connection to be made to it.
    pub target_session_attrs: TargetSessionAttrs,
    /// The server's port.
    pub port: u16,
    /// Name on the server; `None`: the name the client asked for.
    pub dbname: Option<String>,
    /// A fixed server login for all clients.
    pub user: Option<String>,
    /// The fixed login's secret (or of the client's user, for servers that ask).
    pub password: Option<Secret>,
    /// Overrides of `[general]`.
    pub pool_mode: Option<PoolMode>,
    /// Overrides `default_pool_size`.
    pub pool_size: Option<usize>,
    /// Overrides of `[general]`.
    pub min_pool_size: Option<usize>,
    /// Overrides of `[general]`.
    pub reserve_pool_size: Option<usize>,
    /// Overrides of `[general]`.
    pub max_db_connections: Option<usize>,
    /// Overrides of `[general]`.
    pub max_db_client_connections: Option<usize>,
    /// Overrides of `[general]`.
    pub query_wait_timeout: Option<Duration>,
    /// Overrides of `[general]`.
    pub server_lifetime: Option<Duration>,
    /// Overrides of `[general]`.
    pub session_state: Option<SessionState>,
    /// Run on each new server connection.
    pub connect_query: Option<String>,
    /// What each server connection logs in with, and RESET leads back to; a client's own choice wins.
    pub client_encoding: Option<String>,
    /// As `client_encoding`.
    pub datestyle: Option<String>,
    /// As `client_encoding`.
    pub timezone: Option<String>,
    /// Overrides of `[general]`.
    pub auth_user: Option<String>,
    /// Overrides of `[general]`.
    pub auth_query: Option<String>,
    /// Overrides of `[general]`.
    pub auth_dbname: Option<String>,
    /// `[databases.NAME.policy]`
    pub policy: Policy,
    /// `[databases.NAME.coalesce]` merged over `[coalesce]`: effective.
    pub coalesce: Coalesce,
}

/// `[users.NAME]`.
#[derive(Debug, Clone, Default)]
pub struct User {
    /// Overrides of `[general]`.
    pub pool_mode: Option<PoolMode>,
    /// Overrides `default_pool_size`.
    pub pool_size: Option<usize>,
    /// Overrides of `[general]`.
    pub max_user_connections: Option<usize>,
    /// Overrides of `[general]`.
    pub max_user_client_connections: Option<usize>,
    /// Overrides of `[general]`.
    pub reserve_pool_size: Option<usize>,
    /// Overrides of `[general]`.
    pub query_timeout: Option<Duration>,
    /// Overrides of `[general]`.
    pub query_wait_timeout: Option<Duration>,
    /// Overrides of `[general]`.
    pub idle_transaction_timeout: Option<Duration>,
    /// Overrides of `[general]`.
    pub transaction_timeout: Option<Duration>,
    /// Overrides of `[general]`.
    pub client_idle_timeout: Option<Duration>,
    /// `[users.NAME.policy]`
    pub policy: Policy,
    /// `[users.NAME.coalesce]`
    pub coalesce: UserCoalesce,
}

/// When a server connection goes back to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PoolMode {
    /// When the client leaves.
    Session,
    /// After each transaction.
    #[default]
    Transaction,
    /// After each statement; transaction blocks are refused.
    Statement,
}

impl PoolMode {
    /// PgBouncer's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        }
    }
}

/// Which of several hosts a new server connection begins with; the others follow while it can't be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LoadBalanceHosts {
    /// The one behind that of the last connection.
    #[default]
    RoundRobin,
    /// That of the last connection.
    Disable,
}

impl LoadBalanceHosts {
    /// PgBouncer's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Disable => "disable",
        }
    }
}

/// What a server must be like, in libpq's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TargetSessionAttrs {
    /// Nothing is asked.
    #[default]
    Any,
    /// Takes writes by default: no standby, and `default_transaction_read_only` is off.
    ReadWrite,
    /// Does not.
    ReadOnly,
    /// Not in hot standby.
    Primary,
    /// In hot standby.
    Standby,
    /// In hot standby, or if there is none, any.
    PreferStandby,
}

impl TargetSessionAttrs {
    /// libpq's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::ReadWrite => "read-write",
            Self::ReadOnly => "read-only",
            Self::Primary => "primary",
            Self::Standby => "standby",
            Self::PreferStandby => "prefer-standby",
        }
    }
}

/// What happens with session state that can't be carried to another server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionState {
    /// The client keeps its server connection while the state lasts.
    #[default]
    Pin,
    /// The statement is refused (0A000).
    Reject,
    /// It is let through, as PgBouncer does; it may surface in another client's session.
    Allow,
}

/// How clients prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuthType {
    /// Anyone who names a user of the userlist (any user if there is no userlist).
    Trust,
    /// The password in clear.
    Plain,
    /// The MD5 exchange (a SCRAM verifier in the userlist is answered with SCRAM).
    Md5,
    /// SCRAM-SHA-256, and -PLUS over TLS.
    #[default]
    ScramSha256,
    /// A client certificate whose CN is the user.
    Cert,
    /// The operating system's word for who is at the other end of a Unix socket.
    Peer,
    /// The password in clear, which a directory is asked about.
    Ldap,
    /// By the rules of `auth_hba_file`.
    Hba,
}

/// A secret of the userlist. Debug prints no secret; it is wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// In clear.
    Plain(String),
    /// `md5` and 32 hex digits.
    Md5(String),
    /// `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`.
    Scram(String),
}

impl Drop for Secret {
    fn drop(&mut self) {
        let (Self::Plain(text) | Self::Md5(text) | Self::Scram(text)) = self;
        zeroize::Zeroize::zeroize(text);
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain(..)",
            Self::Md5(_) => "Md5(..)",
            Self::Scram(_) => "Scram(..)",
        })
    }
}

/// One line of the HBA file.
#[derive(Debug, Clone)]
pub struct HbaRule {
    /// Line in the file, for messages.
    pub line: usize,
    /// local, host, hostssl, hostnossl.
    pub transport: HbaTransport,
    /// Databases; empty: all.
    pub databases: Vec<String>,
    /// Users; empty: all.
    pub users: Vec<String>,
    /// Address and prefix length; `None`: any (and for `local`).
    pub address: Option<(IpAddr, u8)>,
    /// The method; `None` is `reject`.
    pub method: Option<AuthType>,
    /// `map=`, for `cert` and `peer`: who may be whom; `None`: each only itself.
    pub map: Option<String>,
    /// The directory, for `ldap`; `None` for the others.
    pub ldap: Option<Arc<Ldap>>,
}

/// A directory that knows the users' passwords (LDAP), in PostgreSQL's options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ldap {
    /// Names or addresses, tried in this order; at least one.
    pub servers: Vec<String>,
    /// Their port.
    pub port: u16,
    /// Whether and when TLS begins.
    pub encryption: LdapEncryption,
    /// Who the user is in the directory.
    pub name: LdapName,
}

/// How the way to a directory is encrypted. With TLS its certificate is checked against the machine's authorities, its name too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LdapEncryption {
    /// Not at all: passwords cross the network in clear.
    Clear,
    /// `ldaptls=1`: by the extended operation StartTLS.
    StartTls,
    /// `ldapscheme=ldaps`: from the first byte.
    Tls,
}

/// How a user's name becomes that of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LdapName {
    /// `ldapprefix`, the user, `ldapsuffix`.
    Made {
        /// What stands before the user.
        prefix: String,
        /// What stands behind it.
        suffix: String,
    },
    /// It is looked for; there must be one such entry.
    Searched {
        /// `ldapbasedn`
        base: String,
        /// How deep.
        scope: LdapScope,
        /// `ldapsearchfilter`, or what `ldapsearchattribute` means; `$username` stands for the user.
        filter: String,
        /// `ldapbinddn`, who looks; empty: nobody in particular.
        bind_dn: String,
        /// `ldapbindpasswd`
        bind_password: Secret,
    },
}

/// How deep below its base a search goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LdapScope {
    /// The base itself.
    Base,
    /// What is right below it.
    One,
    /// All below it, and itself.
    Sub,
}

/// One line of a map in `auth_ident_file`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// A certificate's CN, or an operating-system user.
    pub system: String,
    /// Who that may be; `None`: anybody.
    pub user: Option<String>,
}

/// First word of an HBA line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HbaTransport {
    /// Unix socket.
    Local,
    /// TCP, with or without TLS.
    Host,
    /// TCP with TLS.
    HostSsl,
    /// TCP without TLS.
    HostNoSsl,
}

/// TLS of one side. `sslmode` as PgBouncer's `client_tls_sslmode` / `server_tls_sslmode`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// disable, allow, prefer, require, verify-ca, verify-full.
    pub sslmode: SslMode,
    /// PEM private key.
    pub key_file: Option<PathBuf>,
    /// PEM certificate chain.
    pub cert_file: Option<PathBuf>,
    /// PEM authorities; server side `None`: the machine's.
    pub ca_file: Option<PathBuf>,
    /// Versions that are spoken.
    pub protocols: TlsProtocols,
    /// Cipher suites of TLS 1.2 in order of preference, as rustls calls them; empty: all.
    pub ciphers: Vec<&'static str>,
    /// Those of TLS 1.3.
    pub tls13_ciphers: Vec<&'static str>,
}

/// Versions of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsProtocols {
    /// 1.2 and 1.3.
    #[default]
    Both,
    /// 1.2 only.
    Tls12,
    /// 1.3 only.
    Tls13,
}

/// PgBouncer's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SslMode {
    /// No TLS.
    #[default]
    Disable,
    /// TLS if the other side wants it (client side: same as prefer).
    Allow,
    /// TLS if the other side can.
    Prefer,
    /// TLS or nothing; certificates are not checked.
    Require,
    /// The certificate must be signed by `ca_file`.
    VerifyCa,
    /// And its name must match (server side); same as verify-ca toward clients.
    VerifyFull,
}

/// Log line form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// `[policy]` and its forms for one database, user or network. `None`: not said here. The strictest of all that
/// apply rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// The rule for Query messages.
    pub simple_query: Option<SimpleQuery>,
    /// The rule for FunctionCall messages.
    pub function_call: Option<Switch>,
    /// The rule for SQL's PREPARE and EXECUTE.
    pub sql_prepare: Option<Switch>,
    /// The rule for replication connections.
    pub replication: Option<Switch>,
    /// The rule for kinds of statements.
    pub statements: Option<Statements>,
    /// What becomes of statements that the allow-list does not have.
    pub allow_list: Option<AllowListMode>,
    /// The allow-list.
    pub allow_list_file: Option<PathBuf>,
    /// Refuse, or let pass and record.
    pub enforce: Option<Enforce>,
}

impl Policy {
    /// Which of its rules forbid something, in this order: `simple_query`, `function_call`, `sql_prepare`, `replication`, `statements`,
    /// `allow_list`, and the same where it only reports, which still leaves no place for what cannot be looked into.
    pub fn forbids(&self) -> [bool; 7] {
        [
            self.simple_query > Some(SimpleQuery::Allow),
            self.function_call == Some(Switch::Deny),
            self.sql_prepare == Some(Switch::Deny),
            self.replication == Some(Switch::Deny),
            self.statements > Some(Statements::All),
            self.allow_list == Some(AllowListMode::Reject),
            self.allow_list == Some(AllowListMode::Report),
        ]
    }

    /// Its rule for FunctionCall messages, or `unless_said` beside a `simple_query` of its own that is stricter than allow: no other
    /// section takes that back.
    pub fn function_call_beside(&self, unless_said: Switch) -> Option<Switch> {
        let restricts = self.simple_query > Some(SimpleQuery::Allow);
        self.function_call.or(restricts.then_some(unless_said))
    }
}

/// The rule for kinds of statements, from open to strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Statements {
    /// Any.
    #[default]
    All,
    /// Those that define nothing and do not act on the server itself.
    NoDdl,
    /// Those that read.
    ReadOnly,
}

/// What becomes of statements that the allow-list does not have, from open to strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum AllowListMode {
    /// Passed; there is no list.
    #[default]
    Off,
    /// Passed, and written into it.
    Learn,
    /// Passed, with an audit event.
    Report,
    /// Refused.
    Reject,
}

/// What names a statement in an allow-list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Print {
    /// The parser's fingerprint: the same whatever the literals are.
    pub shape: u64,
    /// For a statement whose literals are part of what it does, a hash of its text; otherwise 0.
    pub text: u64,
}

impl Print {
    /// As [`std::fmt::Display`] writes it.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |hex: &str| {
            let digits = hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit());
            u64::from_str_radix(hex, 16).ok().filter(|_| digits)
        };
        match text.split_once(':') {
            None => Some(Self { shape: number(text)?, text: 0 }),
            Some((shape, text)) => Some(Self { shape: number(shape)?, text: number(text)? }),
        }
    }
}

impl std::fmt::Display for Print {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.shape)?;
        if self.text == 0 { Ok(()) } else { write!(f, ":{:016x}", self.text) }
    }
}

/// One `allow_list_file`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList {
    /// Where it was read from, and where what is learned goes.
    pub file: PathBuf,
    /// What is in it.
    pub prints: HashSet<Print>,
}

/// The rule for Query messages, from open to strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SimpleQuery {
    /// Passed.
    #[default]
    Allow,
    /// Passed if it holds one statement.
    Single,
    /// Passed if it is one statement of transaction control or session state.
    Control,
    /// Refused.
    Deny,
}

/// allow or deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Switch {
    /// Passed.
    #[default]
    Allow,
    /// Refused.
    Deny,
}

/// reject or report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Enforce {
    /// Let pass, write the same audit event.
    Report,
    /// Refuse.
    Reject,
}

/// `[coalesce]`, effective for one database.
#[derive(Debug, Clone, PartialEq)]
pub struct Coalesce {
    /// on, shadow or off.
    pub mode: CoalesceMode,
    /// From this many rows on they leave together.
    pub copy_min_rows: usize,
    /// Up to so many rows of a table go as one INSERT; 0: each as a COPY.
    pub values_max_rows: usize,
    /// Most rows of one flush.
    pub max_rows: usize,
    /// Most bytes of one flush.
    pub max_bytes: usize,
    /// Flushes in flight for one table of a database.
    pub max_flushes_per_table: usize,
    /// Extra wait for more rows; 0: none.
    pub linger: Duration,
    /// `lock_timeout` of a flush.
    pub lock_timeout: Duration,
    /// Total life of a flush on the server (`statement_timeout`); below deadlock_timeout.
    pub flush_timeout: Duration,
    /// Longest value that is poured (bytes).
    pub max_value_bytes: usize,
    /// Bytes waiting in all lanes, and for the ends of units, together; beyond it everything passes through.
    pub budget_bytes: usize,
    /// T1: one client's pipeline.
    pub pipeline: bool,
    /// T2: many clients, one row each.
    pub group: bool,
    /// INSERTs that can't be a COPY (RETURNING, ON CONFLICT, expressions) share a transaction.
    pub share_transaction: bool,
    /// T3: deferral inside explicit blocks.
    pub deferred: bool,
    /// Tables (`schema.table`) with a mode of their own.
    pub tables: BTreeMap<String, CoalesceTable>,
}

impl Coalesce {
    /// Are INSERTs into some table answered before they are stored?
    pub fn defers(&self) -> bool {
        let deferred = |mode, deferred| mode == CoalesceMode::On && deferred;
        let table = |table: &CoalesceTable| {
            deferred(table.mode.unwrap_or(self.mode), table.deferred.unwrap_or(self.deferred))
        };
        deferred(self.mode, self.deferred) || self.tables.values().any(table)
    }

    /// What holds for the clients of a user. A `false` wins over a `true`, whether it is said of the user or of a table;
    /// what either says wins over what is said of the database.
    pub fn for_user(&self, user: &UserCoalesce) -> Self {
        let mut own = self.clone();
        own.deferred = user.deferred.unwrap_or(self.deferred);
        if user.deferred == Some(false) {
            own.tables.values_mut().for_each(|table| table.deferred = Some(false));
        }
        own
    }
}

/// `[users.NAME.coalesce]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UserCoalesce {
    /// Overrides the database's.
    pub deferred: Option<bool>,
}

/// `[databases.NAME.coalesce.tables."schema.table"]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CoalesceTable {
    /// Overrides the database's.
    pub mode: Option<CoalesceMode>,
    /// Overrides the database's.
    pub deferred: Option<bool>,
}

/// on, shadow or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CoalesceMode {
    /// Pour.
    #[default]
    On,
    /// Say what would have been poured, pour nothing.
    Shadow,
    /// Nothing.
    Off,
}

impl Default for Coalesce {
    fn default() -> Self {
        Self {
            mode: CoalesceMode::On,
            copy_min_rows: 2,
            values_max_rows: 16,
            max_rows: 20_000,
            max_bytes: 4 << 20,
            max_flushes_per_table: 2,
            linger: Duration::ZERO,
            lock_timeout: Duration::from_millis(50),
            flush_timeout: Duration::from_millis(500),
            max_value_bytes: 64 << 10,
            budget_bytes: 64 << 20,
            pipeline: true,
            group: true,
            share_transaction: true,
            deferred: false,
            tables: BTreeMap::new(),
        }
    }
}
