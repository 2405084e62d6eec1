//! Dialing a server: TCP or Unix socket, TLS, startup, authentication, up to the first ReadyForQuery.
//!
//! ```text
//! dial -> SSLRequest -> StartupMessage -> authentication -> ParameterStatus... -> ReadyForQuery -> role
//! ```
//!
//! Owns: the whole of a login, which host gets it, and sending a CancelRequest. Never: retries over time (the pool's), logs.
//! The server may be hostile: every message is bounded, at most one authentication exchange is made,
//! and a password is never sent twice. See "Start-up" in the message-flow section of the protocol chapter.

mod login;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use crate::auth::Credential;
use crate::auth::scram::ScramError;
use crate::limits::FOREVER;
use crate::net::{Connector, Keepalive, Stream};
use crate::server::names;
use crate::server::role::Role;
use crate::settings::{Peer, SslMode, TargetSessionAttrs};
use crate::wire::backend::ErrorFields;
use crate::wire::startup::{self, Replication};
use crate::wire::{CancelKey, DecodeError};

/// Which server, as whom.
#[derive(Debug, Clone)]
pub struct Target {
    /// Host names, addresses, or socket directories (beginning with `/`), tried in order.
    pub hosts: Vec<String>,
    /// The port, also part of a socket's file name.
    pub port: u16,
    /// Where names are looked for before the system is asked.
    pub hosts_file: Option<PathBuf>,
    /// What the server must be like.
    pub attrs: TargetSessionAttrs,
    /// The database on the server.
    pub dbname: String,
    /// The role on the server.
    pub user: String,
    /// What proves it.
    pub credential: Credential,
    /// TLS and its sslmode.
    pub tls: Connector,
    /// TCP keepalive.
    pub keepalive: Keepalive,
    /// What kind of connection is asked for.
    pub replication: Replication,
    /// Startup settings besides user and database, in order.
    pub startup: Vec<(String, String)>,
    /// The minor of protocol 3 to ask for; the server may have less.
    pub minor: u16,
}

impl Target {
    fn startup(&self) -> impl Iterator<Item = (&str, &str)> {
        self.startup.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Where a connection went; a cancel request must go to the same place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// The name by which the host is known (for TLS), and its address.
    Tcp(Arc<str>, SocketAddr),
    /// The socket file.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(_, address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A server connection that is logged in and idle.
#[derive(Debug)]
pub struct Login {
    /// The connection.
    pub stream: Stream,
    /// Bytes that came behind ReadyForQuery (a notification, a notice).
    pub rest: Vec<u8>,
    /// Which of the target's hosts it went to.
    pub host: String,
    /// Where it went.
    pub address: Address,
    /// What the server is; `None`: nothing was asked.
    pub role: Option<Role>,
    /// Servers that were met before it, and are not as they should be.
    pub passed_over: Vec<Address>,
    /// Hosts that were tried before it and could not be had, and why.
    pub unreached: Vec<(String, ConnectError)>,
    /// The minor of protocol 3 that is spoken.
    pub minor: u16,
    /// The server's process id; 0 if it gave none.
    pub pid: i32,
    /// The server's secret for cancel requests, empty or 4 to 256 bytes.
    pub key: CancelKey,
    /// ParameterStatus name and value pairs in the order they came.
    pub params: Vec<(Vec<u8>, Vec<u8>)>,
}

/// So many of a list of hosts, or of one host's addresses, are told by name where none could be had.
const TOLD_MAX: usize = 8;

/// Whom a failed login concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concerns {
    /// Who asks for the same: the answer stays the same until someone changes something. So it is with a server that knows
    /// us not (class 28) or the database not (3D000), lets us not in (42501) or nobody (55000), with secrets that don't fit,
    /// and with a setting that is not there, not allowed at login, or has no such value, or a library that is not there.
    Asked,
    /// Everybody, whatever is asked for: the server can't be reached, starts or stops (57P03 ...), or is full (53300). It
    /// may pass by itself.
    Server,
    /// Nobody can say: what was asked for, or the server's state. Some settings make a login hang, or its process fail.
    Unknown,
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectError {
    /// The network: the server was not reached.
    Network(String),
    /// The network, or the server's end, while it had the login in hand.
    Lost(String),
    /// The TLS handshake.
    Tls(String),
    /// The server's own ErrorResponse: its body, for [`ErrorFields`].
    Server(Vec<u8>),
    /// The server breaks the protocol.
    Protocol(String),
    /// The server asks for a proof that can't be given, or does not prove itself.
    Auth(String),
    /// No server is as target_session_attrs wants it.
    Unfit {
        /// What is wanted, and what became of each host.
        told: String,
        /// Those that answered.
        passed_over: Vec<Address>,
    },
    /// What became of the last one of several hosts or addresses, and what of each.
    Several {
        /// Each one's name and reason.
        told: String,
        /// The last one's.
        last: Box<Self>,
    },
    /// `connect_query` left a connection that nobody can use.
    Greeting(String),
    /// The deadline passed.
    Timeout,
    /// It has not yet; so long is the login under way.
    Unanswered(Duration),
}

impl ConnectError {
    /// The server's SQLSTATE, if the server said anything.
    pub fn sqlstate(&self) -> Option<&[u8]> {
        match self {
            Self::Server(body) => Some(ErrorFields::new(body).sqlstate()),
            Self::Several { last, .. } => last.sqlstate(),
            _ => None,
        }
    }

    /// The server's own ErrorResponse body, if it said why.
    pub fn response(&self) -> Option<&[u8]> {
        match self {
            Self::Server(body) => Some(body),
            Self::Several { last, .. } => last.response(),
            _ => None,
        }
    }

    /// What became of each of these, the last one last; `None`: there are none.
    fn of_each(mut told: Vec<(String, Self)>) -> Option<Self> {
        if told.len() < 2 {
            return told.pop().map(|(_, error)| error);
        }
        let mut whys: Vec<String> = told.iter().take(TOLD_MAX).map(|(name, error)| error.of(name)).collect();
        let (_, last) = told.pop()?;
        match (told.len() + 1).saturating_sub(TOLD_MAX) {
            0 => {}
            more => whys.push(format!("and {more} more, the last of them {}", last.reason())),
        }
        Some(Self::Several { told: whys.join("; "), last: Box::new(last) })
    }

    /// Whose it is, and why.
    fn of(&self, name: &str) -> String {
        let reason = self.reason();
        let is_said = reason.starts_with(name) || reason.contains(&format!("\"{name}\""));
        if is_said { reason } else { format!("{name}: {reason}") }
    }

    /// Without what all have in common.
    fn reason(&self) -> String {
        match self {
            Self::Network(what) | Self::Lost(what) | Self::Tls(what) | Self::Several { told: what, .. } => {
                what.clone()
            }
            other => other.to_string(),
        }
    }

    /// Whom it concerns.
    pub fn concerns(&self) -> Concerns {
        match self {
            Self::Server(_) => match self.sqlstate().unwrap_or_default() {
                b"57P01" | b"57P02" | b"57P03" | b"53300" => Concerns::Server,
                b"3D000" | b"55000" | b"55P02" | b"58P01" => Concerns::Asked,
                code if [b"28", b"0A", b"22", b"42"].iter().any(|class| code.starts_with(*class)) => {
                    Concerns::Asked
                }
                _ => Concerns::Unknown,
            },
            Self::Several { last, .. } => last.concerns(),
            Self::Auth(_) => Concerns::Asked,
            Self::Network(_) | Self::Tls(_) | Self::Unfit { .. } => Concerns::Server,
            Self::Lost(_) | Self::Protocol(_) | Self::Greeting(_) => Concerns::Unknown,
            Self::Timeout | Self::Unanswered(_) => Concerns::Unknown,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(what) | Self::Lost(what) | Self::Tls(what) | Self::Several { told: what, .. } => {
                write!(f, "cannot connect to the server: {what}")
            }
            Self::Server(body) => {
                let message = ErrorFields::new(body).field(b'M').unwrap_or(b"(no message)");
                write!(f, "the server refused the login: {}", String::from_utf8_lossy(message))
            }
            Self::Protocol(what) => write!(f, "protocol violation by the server during login: {what}"),
            Self::Auth(what) => write!(f, "cannot authenticate to the server: {what}"),
            Self::Unfit { told, .. } => f.write_str(told),
            Self::Greeting(why) => write!(f, "connect_query leaves no connection that can be used: {why}"),
            Self::Timeout => {
                f.write_str("the server did not complete the login in time (server_connect_timeout)")
            }
            Self::Unanswered(time) => write!(
                f,
                "the server has not completed a login that began {:.1} s ago (server_connect_timeout)",
                time.as_secs_f64()
            ),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Network(error.to_string())
    }
}

impl From<DecodeError> for ConnectError {
    fn from(error: DecodeError) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl From<ScramError> for ConnectError {
    fn from(error: ScramError) -> Self {
        match error {
            ScramError::Malformed(_) => Self::Protocol(error.to_string()),
            _ => Self::Auth(error.to_string()),
        }
    }
}

type Result<T> = std::result::Result<T, ConnectError>;

/// Connects and logs in. Hosts are tried in order, and each host's addresses; the time that is left is
/// shared out evenly, so that one that swallows packets can't use up the whole.
///
/// A server that answers with an error ends the search, but for "not yet" and "not any more" (57P03). One that is not
/// as the target wants it is passed over; a target that only prefers a standby gets the first of those in the end.
/// Hosts among `shunned` come last, and not at all where the search has that first one by then.
/// Cancel safety: dropping the future closes the connection.
///
/// # Errors
/// That of the last host tried, with what became of each; [`ConnectError::Timeout`] after `timeout` (0: no limit).
pub async fn connect(target: &Target, shunned: &[String], timeout: Duration) -> Result<Login> {
    let deadline = deadline(timeout);
    // One allocation: callers hold a pointer, not the handshake's whole state.
    Box::pin(within(deadline, connect_any(target, shunned, deadline))).await
}

/// Sends a CancelRequest to where `login` went, over TLS if the connection it is for is `encrypted`, whatever sslmode would choose
/// today, and waits until the server closes: it has dealt with the request then.
///
/// Cancel safety: dropping the future may leave the request sent or unsent; `sent`: it may be.
///
/// # Errors
/// The network's; [`ConnectError::Timeout`] after `timeout` (0: no limit).
pub async fn cancel(
    target: &Target,
    address: &Address,
    encrypted: bool,
    (pid, key): (i32, &[u8]),
    timeout: Duration,
    sent: &mut bool,
) -> Result<()> {
    let sslmode = if encrypted { SslMode::Require } else { SslMode::Disable };
    Box::pin(within(deadline(timeout), async {
        let stream = open(&target.tls, &target.keepalive, address, sslmode).await?;
        *sent = true;
        request_cancel(stream, pid, key).await
    }))
    .await
}

/// Sends a CancelRequest to a peer, at the first of its addresses that takes it, and waits as [`cancel`] does.
///
/// Cancel safety: dropping the future may leave the request sent or unsent.
///
/// # Errors
/// As [`cancel`].
pub async fn cancel_at(
    peer: &Peer,
    tls: &Connector,
    keepalive: &Keepalive,
    hosts_file: Option<&Path>,
    (pid, key): (i32, &[u8]),
    timeout: Duration,
) -> Result<()> {
    let deadline = deadline(timeout);
    Box::pin(within(deadline, async {
        let host = peer.host.as_deref().unwrap_or_default();
        let addresses = resolve(host, peer.port, hosts_file).await?;
        let mut last = ConnectError::Network(format!("host \"{host}\" has no address"));
        for (i, address) in addresses.iter().enumerate() {
            let share = share(deadline, addresses.len() - i);
            match within(share, open(tls, keepalive, address, tls.sslmode())).await {
                Ok(stream) => return request_cancel(stream, pid, key).await,
                Err(error) => last = error,
            }
        }
        Err(last)
    }))
    .await
}

async fn request_cancel(mut stream: Stream, pid: i32, key: &[u8]) -> Result<()> {
    let mut packet = Vec::with_capacity(16 + key.len());
    startup::put_cancel_request(&mut packet, pid, key);
    stream.write_all(&packet).await?;
    stream.flush().await?;
    // No answer comes; what comes all the same is not read further than this. Within TLS the server closes without a word.
    let mut byte = [0u8; 1];
    match stream.read(&mut byte).await {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error.into()),
        _ => Ok(()),
    }
}

/// Zero is no limit, as everywhere in the settings.
fn deadline(timeout: Duration) -> Instant {
    Instant::now() + if timeout.is_zero() { FOREVER } else { timeout.min(FOREVER) }
}

async fn within<T>(deadline: Instant, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout_at(deadline, work).await.unwrap_or(Err(ConnectError::Timeout))
}

// ===== dial =====

/// What was met on the way to a server that fits.
#[derive(Default)]
struct Search {
    /// Servers that do not.
    unfit: Vec<Address>,
    /// The first of them, if it does where nothing better is.
    spare: Option<Login>,
}

impl Search {
    fn pass_over(&mut self, login: Login, attrs: TargetSessionAttrs) {
        self.unfit.push(login.address.clone());
        if attrs == TargetSessionAttrs::PreferStandby {
            self.spare.get_or_insert(login);
        }
    }
}

async fn connect_any(target: &Target, shunned: &[String], deadline: Instant) -> Result<Login> {
    let mut search = Search::default();
    let mut told: Vec<(String, ConnectError)> = Vec::new();
    let (last, first): (Vec<_>, Vec<_>) = target.hosts.iter().partition(|host| shunned.contains(host));
    let ordered = first.iter().chain(&last);
    for (i, host) in ordered.enumerate() {
        if i >= first.len() && search.spare.is_some() {
            break;
        }
        let share = share(deadline, target.hosts.len() - i);
        match within(share, connect_host(target, host, share, &mut search)).await {
            Ok(login) => {
                let (host, passed_over) = ((*host).clone(), search.unfit);
                return Ok(Login { host, passed_over, unreached: unreached(told), ..login });
            }
            Err(error) if tries_next(&error) => told.push(((*host).clone(), error)),
            Err(error) => return Err(error),
        }
    }
    match search {
        Search { spare: Some(login), .. } => Ok(Login { unreached: unreached(told), ..login }),
        Search { unfit, .. } if unfit.is_empty() => {
            let none = || ConnectError::Network("no host is configured (host)".into());
            Err(ConnectError::of_each(told).unwrap_or_else(none))
        }
        Search { unfit: passed_over, .. } => {
            let attrs = target.attrs.as_str();
            let told: Vec<String> = told.iter().map(|(host, error)| format!("{host}: {error}")).collect();
            let told = format!("no server has target_session_attrs = \"{attrs}\": {}", told.join("; "));
            Err(ConnectError::Unfit { told, passed_over })
        }
    }
}

/// Hosts whose servers nobody knows anything of.
fn unreached(mut told: Vec<(String, ConnectError)>) -> Vec<(String, ConnectError)> {
    told.retain(|(_, error)| !matches!(error, ConnectError::Unfit { .. }));
    told
}

async fn connect_host(target: &Target, host: &str, deadline: Instant, search: &mut Search) -> Result<Login> {
    let addresses = resolve(host, target.port, target.hosts_file.as_deref()).await?;
    let mut told = Vec::new();
    let mut unfit = None;
    for (i, address) in addresses.iter().enumerate() {
        let share = share(deadline, addresses.len() - i);
        match within(share, login::login(target, address)).await {
            Ok(login) => match login.role.and_then(|role| role.unfit_for(target.attrs)) {
                None => return Ok(login),
                Some(why) => {
                    unfit = Some(ConnectError::Unfit { told: why.to_owned(), passed_over: Vec::new() });
                    search.pass_over(Login { host: host.to_owned(), ..login }, target.attrs);
                }
            },
            Err(error) if tries_next(&error) => {
                unfit = None;
                told.push((address.to_string(), error));
            }
            Err(error) => return Err(error),
        }
    }
    let none = || ConnectError::Network(format!("host \"{host}\" has no address"));
    Err(unfit.or_else(|| ConnectError::of_each(told)).unwrap_or_else(none))
}

/// An even part of what is left until `deadline`, for the first of `among`.
fn share(deadline: Instant, among: usize) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / u32::try_from(among.max(1)).unwrap_or(u32::MAX)
}

fn tries_next(error: &ConnectError) -> bool {
    match error {
        ConnectError::Network(_)
        | ConnectError::Lost(_)
        | ConnectError::Tls(_)
        | ConnectError::Several { .. }
        | ConnectError::Unfit { .. }
        | ConnectError::Timeout => true,
        ConnectError::Server(_) => error.sqlstate() == Some(b"57P03"),
        ConnectError::Protocol(_)
        | ConnectError::Auth(_)
        | ConnectError::Greeting(_)
        | ConnectError::Unanswered(_) => false,
    }
}

async fn resolve(host: &str, port: u16, hosts_file: Option<&Path>) -> Result<Vec<Address>> {
    if host.starts_with('/') {
        return Ok(vec![Address::Unix(Path::new(host).join(format!(".s.PGSQL.{port}")))]);
    }
    let name: Arc<str> = host.into();
    let tcp = |address| Address::Tcp(Arc::clone(&name), address);
    let known = names::known(hosts_file, host).await;
    if !known.is_empty() {
        return Ok(known.into_iter().map(|ip| tcp(SocketAddr::new(ip, port))).collect());
    }
    let found = tokio::net::lookup_host((host, port)).await;
    let found = found.map_err(|e| ConnectError::Network(format!("host \"{host}\": {e}")))?;
    Ok(found.map(tcp).collect())
}

/// Those of `used` that are not among the addresses of their host's name any more. A name that can't be looked up,
/// or is an address itself, says nothing.
///
/// Cancel safety: nothing is held; call it again.
pub async fn gone(target: &Target, used: &[Address]) -> Vec<Address> {
    let mut gone = Vec::new();
    for host in target.hosts.iter().filter(|host| host.parse::<IpAddr>().is_err()) {
        let of_host = |address: &&Address| matches!(address, Address::Tcp(name, _) if **name == **host);
        let mut used = used.iter().filter(of_host).peekable();
        if used.peek().is_some()
            && let Ok(now) = resolve(host, target.port, target.hosts_file.as_deref()).await
        {
            gone.extend(used.filter(|address| !now.contains(address)).cloned());
        }
    }
    gone
}

/// A connection as `sslmode` wants it, before anything but SSLRequest was said.
async fn open(tls: &Connector, keepalive: &Keepalive, address: &Address, sslmode: SslMode) -> Result<Stream> {
    let at = |e: io::Error| ConnectError::Network(format!("{address}: {e}"));
    match address {
        // As everywhere in PostgreSQL, TLS is not for Unix sockets.
        Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await.map_err(at)?)),
        Address::Tcp(host, socket) => {
            let tcp = TcpStream::connect(socket).await.map_err(at)?;
            let stream = Stream::tcp(tcp, keepalive).map_err(at)?;
            match sslmode {
                SslMode::Disable | SslMode::Allow => Ok(stream),
                _ => negotiate_tls(tls, host, stream, sslmode).await,
            }
        }
    }
}

async fn negotiate_tls(
    connector: &Connector,
    host: &str,
    mut stream: Stream,
    sslmode: SslMode,
) -> Result<Stream> {
    let mut packet = Vec::with_capacity(startup::HEADER_BYTES);
    startup::put_ssl_request(&mut packet);
    stream.write_all(&packet).await?;
    let answer = stream.read_u8().await?;
    if answer == b'E' {
        // An error that anyone could have sent: not worth reading (CVE-2024-10977). A postmaster that can't fork says so here.
        let what = "it answers SSLRequest with an error, which says nothing before TLS; see the server's log";
        return Err(ConnectError::Protocol(what.into()));
    }
    // Whatever came in clear along with the answer would pass for encrypted later (CVE-2021-43767).
    if stream.has_unread()? {
        return Err(ConnectError::Protocol("unencrypted data behind the answer to SSLRequest".into()));
    }
    match (answer, stream) {
        (b'S', Stream::Tcp(tcp)) => {
            let tls = connector.connect(host, tcp).await;
            tls.map_err(|e| ConnectError::Tls(format!("TLS with \"{host}\": {e}")))
        }
        (b'N', stream) if sslmode == SslMode::Prefer => Ok(stream),
        (b'N', _) => Err(ConnectError::Network(format!(
            "\"{host}\" does not support TLS, which server_tls_sslmode requires"
        ))),
        _ => Err(ConnectError::Protocol("the answer to SSLRequest is neither 'S' nor 'N'".into())),
    }
}
