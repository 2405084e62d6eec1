//! Dialing a server: TCP or Unix socket, TLS, startup, authentication, up to the first ReadyForQuery.
//!
//! ```text
//! dial -> SSLRequest -> StartupMessage -> authentication -> ParameterStatus... -> ReadyForQuery -> role
//! ```
//!
//! Owns: the whole of a login, which host gets it, and sending a CancelRequest. Never: retries over time (the pool's), logs.
//! The server may be hostile: every message is bounded, at most one authentication exchange is made,
//! and a password is never sent twice. See "Start-up" in the message-flow section of the protocol chapter.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::auth::scram::{self, Binding, ClientKeys, Derivation, ScramError};
use crate::auth::{Credential, md5};
use crate::limits::{FOREVER, LOGIN_BYTES_MAX, READ_BUFFER_BYTES, SMALL_MESSAGE_BYTES_MAX};
use crate::net::tls::end_point;
use crate::net::{Connector, Keepalive, Stream};
use crate::server::names;
use crate::server::role::{self, Role};
use crate::settings::{Peer, SslMode, TargetSessionAttrs};
use crate::wire::backend::{self, ErrorFields};
use crate::wire::frame::{self, Fields};
use crate::wire::frontend;
use crate::wire::startup::{self, Replication, authentication as code};
use crate::wire::{CancelKey, DecodeError, TransactionStatus};

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
        match within(share, login(target, address)).await {
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

// ===== login =====

/// One address, with the second try that sslmode and the protocol's minor may need.
async fn login(target: &Target, address: &Address) -> Result<Login> {
    let sslmode = target.tls.sslmode();
    let first = login_minor(target, address, sslmode).await;
    let tcp = matches!(address, Address::Tcp(..));
    match (&first, sslmode) {
        // `allow`: in clear, unless the server does not want that.
        (Err(error), SslMode::Allow) if tcp && error.sqlstate() == Some(b"28000") => {
            login_minor(target, address, SslMode::Require).await
        }
        // `prefer`: what can't be had over TLS (protocol too old, odd certificate) is had without.
        (Err(ConnectError::Tls(_)), SslMode::Prefer) => login_minor(target, address, SslMode::Disable).await,
        _ => first,
    }
}

/// A server from before NegotiateProtocolVersion is asked again for 3.0.
async fn login_minor(target: &Target, address: &Address, sslmode: SslMode) -> Result<Login> {
    let first = login_once(target, address, sslmode, target.minor).await;
    match &first {
        Err(ConnectError::Server(body)) if target.minor > 0 && refuses_minor(body) => {
            login_once(target, address, sslmode, 0).await
        }
        _ => first,
    }
}

/// "unsupported frontend protocol", under whatever SQLSTATE servers and poolers give it.
fn refuses_minor(body: &[u8]) -> bool {
    let fields = ErrorFields::new(body);
    let message = fields.field(b'M').unwrap_or_default();
    matches!(fields.sqlstate(), b"0A000" | b"08P01")
        && memchr::memmem::find(message, b"unsupported").is_some()
        && memchr::memmem::find(message, b"protocol").is_some()
}

async fn login_once(target: &Target, address: &Address, sslmode: SslMode, minor: u16) -> Result<Login> {
    let stream = open(&target.tls, &target.keepalive, address, sslmode).await?;
    let mut talk = Talk { stream, buf: Vec::new(), start: 0, seen: 0 };
    let mut packet = Vec::with_capacity(256);
    let own = [("user", target.user.as_str()), ("database", target.dbname.as_str())];
    let settings = startup::setting_parameters(target.startup());
    let settings = settings.iter().map(|(name, value)| (*name, &**value));
    let own = own.into_iter().chain(target.replication.parameter());
    let all = own.chain(settings).map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    startup::put_startup(&mut packet, minor, all);
    talk.send(&packet).await?;
    let minor = authenticate(&mut talk, target, minor).await?;
    let Info { pid, key, params } = read_info(&mut talk).await?;
    let role = match target.attrs {
        TargetSessionAttrs::Any => None,
        _ => Some(find_role(&mut talk, &params).await?.unless_asked_for(target.startup())),
    };
    let (host, passed_over, unreached, address) = (String::new(), Vec::new(), Vec::new(), address.clone());
    let rest = talk.buf[talk.start..].to_vec();
    Ok(Login {
        stream: talk.stream,
        rest,
        host,
        address,
        role,
        passed_over,
        unreached,
        minor,
        pid,
        key,
        params,
    })
}

/// The messages of one login.
struct Talk {
    stream: Stream,
    buf: Vec<u8>,
    /// Bytes of `buf` that were consumed.
    start: usize,
    /// Bytes received in all.
    seen: usize,
}

fn lost(error: &io::Error) -> ConnectError {
    ConnectError::Lost(super::why_ended(error))
}

/// One message; its body lies in the [`Talk`]'s buffer.
#[derive(Clone, Copy)]
struct Message {
    tag: u8,
    at: usize,
    end: usize,
}

impl Talk {
    /// A server that does not hear it any more may have said why.
    async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let Err(error) = self.write(bytes).await else { return Ok(()) };
        loop {
            match self.next().await {
                Ok(_) => {}
                Err(said @ ConnectError::Server(_)) => return Err(said),
                Err(_) => return Err(lost(&error)),
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    fn body(&self, message: Message) -> &[u8] {
        &self.buf[message.at..message.end]
    }

    /// The next message that means something: notices are dropped, an ErrorResponse is an error.
    async fn next(&mut self) -> Result<Message> {
        loop {
            let message = self.any().await?;
            match message.tag {
                backend::NOTICE_RESPONSE => {}
                backend::ERROR_RESPONSE => return Err(ConnectError::Server(self.body(message).to_vec())),
                _ => return Ok(message),
            }
        }
    }

    async fn any(&mut self) -> Result<Message> {
        loop {
            let unread = &self.buf[self.start..];
            if let Some((head, _)) = frame::whole(unread, SMALL_MESSAGE_BYTES_MAX)? {
                let at = self.start + frame::HEADER_BYTES;
                self.start += head.total();
                return Ok(Message { tag: head.tag, at, end: self.start });
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<()> {
        self.buf.drain(..self.start);
        self.start = 0;
        let room = READ_BUFFER_BYTES.min(LOGIN_BYTES_MAX - self.seen);
        if room == 0 {
            let what = format!("more than {LOGIN_BYTES_MAX} bytes before the first ReadyForQuery");
            return Err(ConnectError::Protocol(what));
        }
        let len = self.buf.len();
        self.buf.resize(len + room, 0);
        let read = self.stream.read(&mut self.buf[len..]).await.map_err(|error| lost(&error))?;
        self.buf.truncate(len + read);
        self.seen += read;
        if read == 0 {
            return Err(ConnectError::Lost("the server closed the connection during login".into()));
        }
        Ok(())
    }

    fn unexpected(message: Message, wanted: &str) -> ConnectError {
        let tag = char::from(message.tag);
        ConnectError::Protocol(format!("message {tag:?} where {wanted} is expected"))
    }
}

// ===== authentication =====

/// Up to AuthenticationOk; returns the minor that is spoken. One exchange at most: a server that asks
/// again is after the password.
async fn authenticate(talk: &mut Talk, target: &Target, asked: u16) -> Result<u16> {
    let mut message = talk.next().await?;
    let mut minor = asked;
    if message.tag == backend::NEGOTIATE_PROTOCOL_VERSION {
        minor = negotiated(talk.body(message), asked)?;
        message = talk.next().await?;
    }
    let (what, data) = authentication(talk, message)?;
    match what {
        code::OK => return Ok(minor),
        code::CLEARTEXT_PASSWORD => cleartext(talk, &target.credential).await?,
        code::MD5_PASSWORD => {
            let salt = Fields::new(backend::AUTHENTICATION, data).bytes(4, "salt")?;
            let salt = [salt[0], salt[1], salt[2], salt[3]];
            md5_password(talk, target, salt).await?;
        }
        code::SASL => {
            let mechanisms = data.to_vec();
            sasl(talk, &target.credential, &mechanisms).await?;
        }
        other => {
            return Err(ConnectError::Auth(format!(
                "the server asks for authentication method {other}, which pgsluice does not have"
            )));
        }
    }
    let message = talk.next().await?;
    match authentication(talk, message)? {
        (code::OK, _) => Ok(minor),
        _ => Err(ConnectError::Auth("the server asks for a second authentication".into())),
    }
}

fn authentication(talk: &Talk, message: Message) -> Result<(i32, &[u8])> {
    if message.tag != backend::AUTHENTICATION {
        return Err(Talk::unexpected(message, "an authentication request"));
    }
    Ok(startup::authentication(talk.body(message))?)
}

fn negotiated(body: &[u8], asked: u16) -> Result<u16> {
    match startup::negotiate(body)? {
        (minor, 0) if minor <= asked => Ok(minor),
        (minor, 0) => Err(ConnectError::Protocol(format!(
            "the server wants protocol 3.{minor}, 3.{asked} was asked for"
        ))),
        _ => {
            Err(ConnectError::Protocol("the server refuses protocol options that were not asked for".into()))
        }
    }
}

fn lacks(method: &str) -> ConnectError {
    ConnectError::Auth(format!(
        "the server asks for {method}, and there is no secret that can answer it (password of the database entry, or auth_file)"
    ))
}

async fn cleartext(talk: &mut Talk, credential: &Credential) -> Result<()> {
    let Credential::Plain(password) = credential else { return Err(lacks("a password in clear")) };
    send_password(talk, password).await
}

async fn md5_password(talk: &mut Talk, target: &Target, salt: [u8; 4]) -> Result<()> {
    let answer = match &target.credential {
        Credential::Plain(password) => md5::answer(&md5::stored(&target.user, password), salt),
        Credential::Md5(stored) => md5::answer(stored, salt),
        Credential::Scram(_) | Credential::None => return Err(lacks("MD5 authentication")),
    };
    send_password(talk, &answer).await
}

async fn send_password(talk: &mut Talk, password: &str) -> Result<()> {
    let zero_terminated = Zeroizing::new([password.as_bytes(), &[0]].concat());
    let mut message = Zeroizing::new(Vec::with_capacity(zero_terminated.len() + frame::HEADER_BYTES));
    startup::put_password(&mut message, &zero_terminated);
    talk.send(&message).await
}

/// From AuthenticationSASL to AuthenticationSASLFinal.
async fn sasl(talk: &mut Talk, credential: &Credential, mechanisms: &[u8]) -> Result<()> {
    // First: no secret answers a mechanism that is not there.
    let binding = binding(&talk.stream, mechanisms)?;
    if !matches!(credential, Credential::Plain(_) | Credential::Scram(_)) {
        return Err(lacks("SCRAM authentication"));
    }
    let mut message = Vec::new();
    let mechanism = binding.mechanism();
    let client = scram::Client::new(binding);
    startup::put_sasl_initial(&mut message, mechanism, &client.first());
    talk.send(&message).await?;

    let challenge = client.challenge(expect(talk, code::SASL_CONTINUE).await?)?;
    let keys = match credential {
        Credential::Scram(keys) => Arc::clone(keys),
        Credential::Plain(password) => Arc::new(derive(challenge.derivation(password)).await?),
        Credential::Md5(_) | Credential::None => return Err(lacks("SCRAM authentication")),
    };
    let (answer, proven) = challenge.answer(&keys)?;
    message.clear();
    startup::put_password(&mut message, &answer);
    talk.send(&message).await?;
    Ok(proven.check(expect(talk, code::SASL_FINAL).await?)?)
}

async fn expect(talk: &mut Talk, wanted: i32) -> Result<&[u8]> {
    let message = talk.next().await?;
    match authentication(talk, message)? {
        (found, data) if found == wanted => Ok(data),
        // AuthenticationOk here would be a server that never showed it knows the secret.
        (found, _) => Err(ConnectError::Auth(format!(
            "the server left the SCRAM exchange (authentication request {found})"
        ))),
    }
}

/// Many rounds of PBKDF2 are done on a thread that may block.
async fn derive(derivation: Derivation) -> Result<ClientKeys> {
    if !derivation.is_slow() {
        return Ok(derivation.run());
    }
    let keys = tokio::task::spawn_blocking(|| derivation.run()).await;
    keys.map_err(|_| ConnectError::Auth("deriving the SCRAM keys failed".into()))
}

/// Picks the mechanism: with channel binding wherever both sides can.
fn binding(stream: &Stream, mechanisms: &[u8]) -> Result<Binding> {
    let mut fields = Fields::new(backend::AUTHENTICATION, mechanisms);
    let (mut scram, mut plus, mut oauth) = (false, false, false);
    loop {
        match fields.cstr("SASL mechanism")? {
            b"" => break,
            name => {
                oauth |= name == b"OAUTHBEARER";
                scram |= name == scram::SCRAM_SHA_256.as_bytes();
                plus |= name == scram::SCRAM_SHA_256_PLUS.as_bytes();
            }
        }
    }
    let end_point = stream.peer_certificates().and_then(|chain| chain.first()).and_then(end_point);
    match (end_point, scram, plus) {
        (Some(hash), _, true) => Ok(Binding::EndPoint(hash)),
        (Some(_), true, false) => Ok(Binding::NotOffered),
        (None, true, _) => Ok(Binding::Unable),
        _ if oauth => Err(ConnectError::Auth(
            "the server asks for an OAuth token (OAUTHBEARER: an oauth line in its pg_hba.conf), which pgsluice does not have".into(),
        )),
        _ => Err(ConnectError::Auth("the server offers no SASL mechanism that pgsluice has".into())),
    }
}

// ===== after AuthenticationOk =====

/// What a server says of itself and of the connection.
struct Info {
    pid: i32,
    key: CancelKey,
    params: Vec<(Vec<u8>, Vec<u8>)>,
}

async fn read_info(talk: &mut Talk) -> Result<Info> {
    let (mut pid, mut key, mut params) = (0, CancelKey::default(), Vec::new());
    loop {
        let message = talk.next().await?;
        let body = talk.body(message);
        match message.tag {
            backend::PARAMETER_STATUS => {
                let (name, value) = backend::parameter_status(body)?;
                params.push((name.to_vec(), value.to_vec()));
            }
            backend::BACKEND_KEY_DATA => {
                let (id, secret) = backend::backend_key_data(body)?;
                (pid, key) = (id, CancelKey::from(secret));
            }
            backend::NOTIFICATION_RESPONSE => {}
            backend::READY_FOR_QUERY => break ready(body)?,
            _ => return Err(Talk::unexpected(message, "ParameterStatus, BackendKeyData or ReadyForQuery")),
        }
    }
    Ok(Info { pid, key, params })
}

/// By what came with the login; a server that said nothing is asked.
async fn find_role(talk: &mut Talk, params: &[(Vec<u8>, Vec<u8>)]) -> Result<Role> {
    if let Some(role) = Role::reported(params) {
        return Ok(role);
    }
    let mut packet = Vec::with_capacity(256);
    frontend::put_query(&mut packet, role::QUESTION.as_bytes());
    talk.send(&packet).await?;
    let mut role = None;
    loop {
        let message = talk.next().await?;
        let body = talk.body(message);
        match message.tag {
            backend::DATA_ROW => role = Role::answered(&backend::data_row(body)?),
            backend::ROW_DESCRIPTION
            | backend::COMMAND_COMPLETE
            | backend::PARAMETER_STATUS
            | backend::NOTIFICATION_RESPONSE => {}
            backend::READY_FOR_QUERY => break ready(body)?,
            _ => return Err(Talk::unexpected(message, "the answer to a query")),
        }
    }
    role.ok_or_else(|| {
        ConnectError::Protocol("the server does not say what it is (target_session_attrs)".into())
    })
}

fn ready(body: &[u8]) -> Result<()> {
    match backend::ready_for_query(body)? {
        TransactionStatus::Idle => Ok(()),
        _ => Err(ConnectError::Protocol("the first ReadyForQuery is not idle".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_without_a_farewell_is_told_as_any_other() {
        let end = || io::Error::new(io::ErrorKind::UnexpectedEof, "peer closed: https://docs.rs/rustls");
        assert_eq!(crate::server::why_ended(&end()), "unexpected end of file");
        assert_eq!(lost(&end()).to_string(), "cannot connect to the server: unexpected end of file");
    }
}
