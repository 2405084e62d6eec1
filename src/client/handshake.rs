//! A client from its first byte to AuthenticationOk.
//!
//! ```text
//! open:          [ClientHello] | [SSLRequest 'S' TLS | 'N'] [GSSENCRequest 'N'] StartupMessage | CancelRequest
//! authenticate:  [NegotiateProtocolVersion] [password | MD5 | SASL exchange] AuthenticationOk
//! ```
//!
//! Owns: this straight line; each step consumes the one before, so none can be skipped or repeated and
//! the identity never changes. Never: settings of the session, the database (who may exist or not), logs.
//! What a client sends ahead is kept for its session; in clear before TLS it is refused. AuthenticationOk goes with what
//! follows it, as PostgreSQL sends it. Errors have been told to the client when they are returned.
//! See "Start-up" and "SSL Session Encryption" in the message-flow section of the protocol chapter.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use nix::unistd::{Uid, User};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::{Zeroize, Zeroizing};

use super::ldap;
use crate::auth::hba::{self, Asker};
use crate::auth::ldap::taken_for;
use crate::auth::scram::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError};
use crate::auth::{Account, Auth, Credential, Exchange, Found};
use crate::error::{Error, Kind};
use crate::limits::{AUTH_MESSAGE_BYTES_MAX, LOGIN_PIECE_BYTES};
use crate::net::conn::Conn;
use crate::net::stream::first_byte;
use crate::net::tls::common_name;
use crate::net::{Acceptor, Peer, Stream};
use crate::pool::PoolKey;
use crate::settings::{AuthType, General, Ldap, Mapping, Secret, Settings};
use crate::telemetry::audit::Source;
use crate::wire::backend::{self, Report, put_report};
use crate::wire::frame::{self, HEADER_BYTES};
use crate::wire::frontend;
use crate::wire::proxy;
use crate::wire::startup::{self, ALPN, Startup, StartupPacket, authentication as code};
use crate::wire::{CancelKey, DecodeError};

/// Longest that telling a client why it is refused may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a step of the handshake gives. Boxed: it is needed for milliseconds, and the task that waits for it
/// lives for hours.
pub type Step<'a, T> = Pin<Box<dyn Future<Output = Result<T, LoginError>> + Send + 'a>>;

/// Why there is no session.
#[derive(Debug)]
pub enum LoginError {
    /// The client went away, or the network or its TLS failed.
    Gone(io::Error),
    /// pgsluice refused it, and told the client so if it could.
    Refused(Error),
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(error) => error.fmt(f),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoginError {}

impl From<io::Error> for LoginError {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl From<Error> for LoginError {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

type Outcome<T> = Result<T, LoginError>;

/// What a new connection turned out to be.
#[derive(Debug)]
pub enum Opened {
    /// A CancelRequest. It has no answer; clients wait until the stream is closed.
    Cancel {
        /// Which session.
        pid: i32,
        /// Its secret, 4 to 256 bytes.
        key: CancelKey,
        /// To be closed when the request was dealt with.
        stream: Stream,
    },
    /// A session is asked for.
    Startup(Box<Unauthenticated>),
}

/// A client that named its user and has not proved it.
#[derive(Debug)]
pub struct Unauthenticated {
    line: Line,
    startup: Startup,
    peer: Peer,
    end_point: Option<Box<[u8]>>,
}

/// A client that proved its user. ParameterStatus, BackendKeyData and ReadyForQuery are next.
#[derive(Debug)]
pub struct Authenticated {
    /// The connection. AuthenticationOk waits in it to be written with what comes next.
    pub client: Conn,
    /// Its user, database and settings.
    pub startup: Startup,
    /// Its address.
    pub peer: Peer,
    /// The credential toward a server that its own login gives.
    pub credential: Credential,
    /// The method by which it was proved, after HBA rules.
    pub method: AuthType,
}

// ===== open =====

/// Reads the PROXY header that a connection from a load balancer begins with, and no byte after it: the client's address.
/// Within `timeout` (0: no limit).
///
/// Cancel safety: dropping the future closes the connection.
///
/// # Errors
/// The balancer went, or sent something else. It gets no error message, which it would not understand.
pub fn announced<'a>(stream: Stream, from: Peer, timeout: Duration) -> Step<'a, (Stream, Peer)> {
    let mut line = Line::new(stream, timeout);
    Box::pin(async move {
        let mut header = Vec::new();
        let address = loop {
            match proxy::step(&header) {
                Ok(proxy::Step::Whole(address)) => break address,
                Ok(proxy::Step::More(more)) => {
                    let have = header.len();
                    header.resize(have + more, 0);
                    let deadline = line.deadline;
                    by(deadline, line.stream_mut()?.read_exact(&mut header[have..])).await?;
                }
                Err(proxy::Malformed(what)) => {
                    let error = Error::new(Kind::ProtocolViolation, what);
                    return Err(error.with_log("proxy_protocol_from has its address").into());
                }
            }
        };
        let stream = line.stream.ok_or_else(|| LoginError::Gone(io::ErrorKind::NotConnected.into()))?;
        Ok((stream, address.map_or(from, Peer::Tcp)))
    })
}

/// Takes a new connection as far as its StartupMessage or CancelRequest. All of the login, the
/// authentication too, must be done within `timeout` (`client_login_timeout`; 0: no limit).
///
/// Cancel safety: dropping the future closes the connection.
///
/// # Errors
/// The client went, or was refused.
pub fn open<'a>(
    stream: Stream,
    peer: Peer,
    tls: &'a Acceptor,
    timeout: Duration,
    general: &'a General,
) -> Step<'a, Opened> {
    let mut line = Line::new(stream, timeout);
    Box::pin(async move {
        match first_packet(&mut line, tls).await {
            Ok(packet) => line.opened(&packet, peer, tls, general).await,
            Err(error) => Err(line.end(error).await),
        }
    })
}

/// The first packet that is no request for encryption; that one is answered on the way.
async fn first_packet(line: &mut Line, tls: &Acceptor) -> Outcome<Vec<u8>> {
    direct_tls(line, tls).await?;
    let (mut ssl, mut gss) = (line.stream()?.is_tls(), line.stream()?.is_tls());
    loop {
        let packet = line.startup_packet().await?;
        line.is_old = startup::is_old(&packet);
        let packet_says = match StartupPacket::decode(&packet) {
            // Nor is a cancel request ever answered.
            Err(error) if startup::is_cancel_request(&packet) => return Err(line.in_silence(error).await),
            decoded => decoded.map_err(startup::startup_error)?,
        };
        match packet_says {
            StartupPacket::SslRequest if !std::mem::replace(&mut ssl, true) => {
                gss |= ssl_request(line, tls).await?;
            }
            StartupPacket::GssEncRequest if !std::mem::replace(&mut gss, true) => {
                let alone = line.nothing_behind("GSSAPI encryption request");
                line.write(b"N").await?;
                alone?;
            }
            // A second request, or one over TLS: PostgreSQL refuses it as an unsupported protocol.
            StartupPacket::SslRequest | StartupPacket::GssEncRequest => {
                return Err(startup::unsupported(&packet).into());
            }
            StartupPacket::Startup(_) | StartupPacket::CancelRequest { .. } => return Ok(packet),
        }
    }
}

/// `sslnegotiation=direct`: the first byte is a ClientHello's. ALPN must name the protocol, so that a client of another
/// protocol cannot be redirected to this port.
async fn direct_tls(line: &mut Line, tls: &Acceptor) -> Outcome<()> {
    let Stream::Tcp(tcp) = line.stream()? else { return Ok(()) };
    match line.in_time(first_byte(tcp)).await? {
        None => return Err(LoginError::Gone(io::ErrorKind::UnexpectedEof.into())),
        Some(startup::TLS_HANDSHAKE) => {}
        Some(_) => return Ok(()),
    }
    if !tls.offers() {
        // A client that speaks TLS could not read an ErrorResponse.
        line.stream = None;
        let what = "direct TLS was asked for, and TLS is off (client_tls_sslmode)";
        return Err(Error::new(Kind::ProtocolViolation, what).into());
    }
    line.secure(tls).await?;
    if line.stream()?.alpn() != Some(ALPN) {
        let what = "direct TLS without the application protocol \"postgresql\"";
        return Err(Error::new(Kind::ProtocolViolation, what).into());
    }
    Ok(())
}

/// Answers SSLRequest; true if TLS is on from here.
async fn ssl_request(line: &mut Line, tls: &Acceptor) -> Outcome<bool> {
    let alone = line.nothing_behind("SSL request");
    if !tls.offers() || line.stream()?.is_unix() {
        line.write(b"N").await?;
        return alone.map(|()| false);
    }
    alone?;
    line.write(b"S").await?;
    line.secure(tls).await?;
    Ok(true)
}

// ===== impl Line =====

/// The connection and the time that is left. No stream: it broke, or was given away.
#[derive(Debug)]
struct Line {
    stream: Option<Stream>,
    deadline: Option<Instant>,
    /// Read and not yet taken.
    ahead: Ahead,
    /// The client speaks version 1 or 2, whose errors have another format.
    is_old: bool,
}

/// What came with the last bytes that were read.
#[derive(Debug, Default)]
struct Ahead {
    bytes: Zeroizing<Vec<u8>>,
    taken: usize,
}

impl Ahead {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Fills the beginning of `buf`; how much of it.
    fn give(&mut self, buf: &mut [u8]) -> usize {
        let n = self.bytes().len().min(buf.len());
        buf[..n].copy_from_slice(&self.bytes()[..n]);
        self.taken += n;
        n
    }

    /// Everything was taken. Reads what is there, and holds nothing while nothing is.
    async fn fill(&mut self, stream: &mut Stream) -> io::Result<()> {
        let bytes = std::future::poll_fn(|cx| {
            let mut piece = [0; LOGIN_PIECE_BYTES];
            let mut space = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut space))?;
            let bytes = Zeroizing::new(space.filled().to_vec());
            space.filled_mut().zeroize();
            Poll::Ready(io::Result::Ok(bytes))
        })
        .await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *self = Self { bytes, taken: 0 };
        Ok(())
    }
}

impl Line {
    fn new(stream: Stream, timeout: Duration) -> Self {
        let deadline = if timeout.is_zero() { None } else { Instant::now().checked_add(timeout) };
        Self { stream: Some(stream), deadline, ahead: Ahead::default(), is_old: false }
    }

    fn stream(&self) -> io::Result<&Stream> {
        self.stream.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn stream_mut(&mut self) -> io::Result<&mut Stream> {
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    async fn in_time<T>(&self, work: impl Future<Output = io::Result<T>>) -> Outcome<T> {
        by(self.deadline, work).await
    }

    async fn read(&mut self, buf: &mut [u8]) -> Outcome<()> {
        let Self { stream, deadline, ahead, .. } = self;
        let mut filled = ahead.give(buf);
        if filled == buf.len() {
            return Ok(());
        }
        let stream = stream.as_mut().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        by(*deadline, async {
            while filled < buf.len() {
                ahead.fill(stream).await?;
                filled += ahead.give(&mut buf[filled..]);
            }
            Ok(())
        })
        .await
    }

    async fn write(&mut self, bytes: &[u8]) -> Outcome<()> {
        let deadline = self.deadline;
        let stream = self.stream_mut()?;
        by(deadline, async {
            stream.write_all(bytes).await?;
            stream.flush().await
        })
        .await
    }

    /// Puts TLS over the connection.
    async fn secure(&mut self, tls: &Acceptor) -> Outcome<()> {
        let Some(Stream::Tcp(tcp)) = self.stream.take() else {
            return Err(LoginError::Gone(io::ErrorKind::NotConnected.into()));
        };
        self.stream = Some(self.in_time(tls.accept(tcp)).await.map_err(tls_failed)?);
        Ok(())
    }

    /// Refuses bytes sent in clear after a request for encryption, which would later pass for encrypted (CVE-2021-3935).
    fn nothing_behind(&self, request: &str) -> Outcome<()> {
        if self.ahead.bytes().is_empty() {
            return Ok(());
        }
        let what = format!("received unencrypted data after {request}");
        Err(Error::new(Kind::ProtocolViolation, what)
            .with_detail(
                "This could be either a client-software bug or evidence of an attempted man-in-the-middle attack.",
            )
            .into())
    }

    /// One startup packet without its length word.
    async fn startup_packet(&mut self) -> Outcome<Vec<u8>> {
        let mut word = [0; 4];
        self.read(&mut word).await?;
        let len = match startup::length(word) {
            Ok(len) => len,
            // PostgreSQL says nothing to a client that does not speak the protocol.
            Err(error) => return Err(self.in_silence(error).await),
        };
        Ok(std::mem::take(&mut *self.take(len - word.len()).await?))
    }

    /// Ends a connection without a message to the client.
    async fn in_silence(&mut self, error: DecodeError) -> LoginError {
        if let Some(stream) = self.stream.take() {
            take_what_came(&stream);
            close(stream).await;
        }
        startup::startup_error(error).into()
    }

    /// The next `len` bytes. They are held as they come: a length that is announced and not sent costs nothing.
    async fn take(&mut self, len: usize) -> Outcome<Zeroizing<Vec<u8>>> {
        let mut taken = Zeroizing::new(Vec::new());
        while taken.len() < len {
            let have = taken.len();
            let piece = (len - have).min(have.max(LOGIN_PIECE_BYTES));
            // A vector that grew by itself would leave a secret behind.
            let mut grown = Zeroizing::new(Vec::with_capacity(have + piece));
            grown.extend_from_slice(&taken);
            grown.resize(have + piece, 0);
            self.read(&mut grown[have..]).await?;
            taken = grown;
        }
        Ok(taken)
    }

    /// The body of the next message, which must be an answer to an authentication request.
    async fn answer(&mut self) -> Outcome<Zeroizing<Vec<u8>>> {
        let mut header = [0; HEADER_BYTES];
        self.read(&mut header).await?;
        if header[0] != frontend::PASSWORD {
            let tag = char::from(header[0]);
            let what = format!("message {tag:?} where the answer to the authentication request is expected");
            return Err(Error::new(Kind::ProtocolViolation, what).into());
        }
        let body = match frame::header(&header, AUTH_MESSAGE_BYTES_MAX).map_err(Error::from)? {
            Some(header) => header.body,
            None => 0,
        };
        self.take(body).await
    }

    async fn opened(
        mut self,
        packet: &[u8],
        peer: Peer,
        tls: &Acceptor,
        general: &General,
    ) -> Outcome<Opened> {
        match self.asked(packet, tls, general) {
            Ok(Asked::Cancel { pid, key }) => match self.stream.take() {
                Some(stream) => Ok(Opened::Cancel { pid, key, stream }),
                None => Err(LoginError::Gone(io::ErrorKind::NotConnected.into())),
            },
            Ok(Asked::Startup(startup)) => {
                let end_point =
                    tls.end_point().filter(|_| self.stream().is_ok_and(Stream::is_tls)).map(Box::from);
                Ok(Opened::Startup(Box::new(Unauthenticated { line: self, startup, peer, end_point })))
            }
            Err(error) => Err(self.end(error.into()).await),
        }
    }

    fn asked(&self, packet: &[u8], tls: &Acceptor, general: &General) -> Result<Asked, Error> {
        match StartupPacket::decode(packet).map_err(startup::startup_error)? {
            // Taken in clear as well: most clients have no other way to send it.
            StartupPacket::CancelRequest { pid, key } => Ok(Asked::Cancel { pid, key: key.into() }),
            StartupPacket::Startup(message) => {
                let startup = Startup::read_but(&message, |name| general.drops_startup_parameter(name))?;
                let clear = self.stream().is_ok_and(|stream| !stream.is_tls() && !stream.is_unix());
                if clear && tls.requires() {
                    let what = "TLS is required (client_tls_sslmode)";
                    let hint = "Connect with sslmode=require or stricter.";
                    let who = format!("user \"{}\", database \"{}\"", startup.user, startup.database);
                    return Err(Error::new(Kind::InvalidAuthorization, what).with_hint(hint).with_log(who));
                }
                Ok(Asked::Startup(startup))
            }
            // The loop that read the packet takes these.
            StartupPacket::SslRequest | StartupPacket::GssEncRequest => {
                Err(Error::new(Kind::ProtocolViolation, "a startup packet is expected"))
            }
        }
    }

    /// Sends the error, if the client can still receive it, and closes.
    async fn end(mut self, error: LoginError) -> LoginError {
        if let LoginError::Refused(told) = &error {
            self.tell(told).await;
        }
        error
    }

    async fn tell(&mut self, error: &Error) {
        let Some(stream) = &mut self.stream else { return };
        let mut message = Vec::with_capacity(256);
        if self.is_old {
            startup::put_old_error(&mut message, error.message());
        } else {
            put_report(&mut message, backend::ERROR_RESPONSE, &Report::from(error));
        }
        let farewell = async {
            stream.write_all(&message).await?;
            stream.shutdown().await
        };
        if timeout_at(Instant::now() + FAREWELL, farewell).await.is_ok() {
            take_what_came(stream);
        }
    }
}

enum Asked {
    Cancel { pid: i32, key: CancelKey },
    Startup(Startup),
}

/// Ends a connection that is told nothing: over TLS its client would take silence for a cut.
///
/// Cancel safety: dropping the future closes the connection.
pub async fn close(mut stream: Stream) {
    let _ = timeout(FAREWELL, stream.shutdown()).await;
}

/// A socket that is closed with bytes unread sends a reset, which can overtake the message just sent.
fn take_what_came(stream: &Stream) {
    let mut sink = [0; 4096];
    for _ in 0..16 {
        let taken = match stream {
            Stream::Tcp(tcp) => tcp.try_read(&mut sink),
            Stream::Unix(unix) => unix.try_read(&mut sink),
            Stream::Tls(_) => return,
        };
        if !matches!(taken, Ok(1..)) {
            return;
        }
    }
}

async fn by<T>(deadline: Option<Instant>, work: impl Future<Output = io::Result<T>>) -> Outcome<T> {
    let Some(deadline) = deadline else { return Ok(work.await?) };
    match timeout_at(deadline, work).await {
        Ok(done) => Ok(done?),
        Err(_) => {
            let what = "canceling authentication due to timeout (client_login_timeout)";
            Err(Error::new(Kind::LoginTimeout, what).into())
        }
    }
}

// ===== authenticate =====

impl Unauthenticated {
    /// Its user, database and settings, as claimed.
    pub fn startup(&self) -> &Startup {
        &self.startup
    }

    /// The connection; `None`: it broke.
    pub fn stream(&self) -> Option<&Stream> {
        self.line.stream.as_ref()
    }

    /// When its login must be over; `None`: no limit.
    pub fn deadline(&self) -> Option<Instant> {
        self.line.deadline
    }

    /// Lets in a client that need not prove its user.
    ///
    /// # Errors
    /// The client went.
    pub fn let_in(self) -> Outcome<Authenticated> {
        let mut out = Vec::new();
        negotiate(&self, &mut out);
        self.authenticated(AuthType::Trust, Credential::None, &out)
    }

    /// Appends AuthenticationOk to the messages still `unsent`.
    fn authenticated(
        self,
        method: AuthType,
        credential: Credential,
        unsent: &[u8],
    ) -> Outcome<Authenticated> {
        let Line { stream, ahead, .. } = self.line;
        let stream = stream.ok_or_else(|| LoginError::Gone(io::ErrorKind::NotConnected.into()))?;
        let mut client = Conn::new(stream, ahead.bytes());
        client.prepare_out();
        client.out.extend_from_slice(unsent);
        startup::put_authentication(&mut client.out, code::OK, &[]);
        Ok(Authenticated { client, startup: self.startup, peer: self.peer, credential, method })
    }

    /// Refuses it (too many clients, shutting down ...): says why and closes.
    ///
    /// Cancel safety: the client may or may not hear it.
    pub fn refuse(mut self, error: &Error) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move { self.line.tell(error).await })
    }

    /// `auth_type`, or that of the HBA rule for this client.
    ///
    /// # Errors
    /// No rule lets it in.
    pub fn method(&self, settings: &Settings) -> Result<AuthType, Error> {
        self.rule(settings).map(|rule| rule.method)
    }

    fn rule<'s>(&self, settings: &'s Settings) -> Result<Rule<'s>, Error> {
        rule(settings, &self.startup, self.peer, self.line.stream().is_ok_and(Stream::is_tls))
    }

    /// Has the client prove who it is, by `auth_type`. `found` is what the server said of a
    /// user that auth_file does not have.
    ///
    /// Cancel safety: dropping the future closes the connection.
    ///
    /// # Errors
    /// The client went, or was refused.
    pub fn authenticate<'a>(
        mut self,
        settings: &'a Settings,
        auth: &'a Auth,
        found: Found,
    ) -> Step<'a, Authenticated> {
        Box::pin(async move {
            let judge = Judge { settings, auth, found };
            match judge.run(&mut self).await {
                Err(error) => Err(self.line.end(error).await),
                Ok((method, credential, unsent)) => self.authenticated(method, credential, &unsent),
            }
        })
    }

    fn wrong_password(&self, why: &'static str) -> Error {
        let user = &self.startup.user;
        Error::new(Kind::InvalidPassword, format!("password authentication failed for user \"{user}\""))
            .with_log(why)
    }
}

impl Authenticated {
    /// Who it is, for the audit, while it has no session.
    pub(super) fn source<'k>(&self, key: &'k PoolKey) -> Source<'k> {
        let (address, tls) = (self.peer.addr(), self.client.stream().tls_name());
        Source { client: 0, address, tls, user: &key.user, database: &key.database }
    }

    /// Was it judged by a rule or a secret `before` that is another one `now`?
    pub fn is_outdated(&self, before: &Settings, now: &Settings) -> bool {
        self.judged_by(before) != self.judged_by(now)
    }

    fn judged_by<'s>(&self, settings: &'s Settings) -> Option<(Rule<'s>, Option<&'s Secret>, bool)> {
        let rule = rule(settings, &self.startup, self.peer, self.client.stream().is_tls()).ok()?;
        Some((rule, settings.userlist.get(&self.startup.user), lists_users(settings)))
    }
}

/// How a client is to prove who it is.
#[derive(PartialEq)]
struct Rule<'s> {
    method: AuthType,
    /// Who may be whom.
    map: Option<&'s [Mapping]>,
    /// Where `ldap` asks.
    ldap: Option<&'s Ldap>,
}

fn rule<'s>(
    settings: &'s Settings,
    Startup { database, user, replication, .. }: &Startup,
    peer: Peer,
    tls: bool,
) -> Result<Rule<'s>, Error> {
    let method = settings.general.auth_type;
    if method != AuthType::Hba {
        return Ok(Rule { method, map: None, ldap: settings.ldap.as_deref() });
    }
    let asker = Asker { ip: peer.ip(), tls, database, user, replication: *replication };
    let who = || {
        let host = peer.ip().map_or_else(|| "[local]".to_owned(), |ip| ip.to_string());
        let encryption = if tls { "SSL encryption" } else { "no encryption" };
        format!("host \"{host}\", user \"{user}\", database \"{database}\", {encryption}")
    };
    let refused = |what: String| Error::new(Kind::InvalidAuthorization, what);
    match hba::find(&settings.hba, &asker) {
        None => Err(refused(format!("no auth_hba_file entry for {}", who()))),
        Some(rule) => rule
            .method
            .filter(|method| *method != AuthType::Hba)
            .map(|method| Rule {
                method,
                // A map that is not there lets nobody in.
                map: rule.map.as_ref().map(|map| settings.ident.get(map).map_or(&[][..], Vec::as_slice)),
                ldap: rule.ldap.as_deref(),
            })
            .ok_or_else(|| refused(format!("auth_hba_file rejects connection for {}", who())))
            .map_err(|error| error.with_log(format!("auth_hba_file line {}", rule.line))),
    }
}

/// With an auth_file nobody gets in who is not in it, whatever the method.
fn lists_users(settings: &Settings) -> bool {
    !settings.userlist.is_empty() || settings.general.auth_file.is_some()
}

/// What the protocol's minor is, where it is not the one asked for.
fn negotiate(client: &Unauthenticated, out: &mut Vec<u8>) {
    if let Some(negotiate) = &client.startup.negotiate {
        startup::put_negotiate(out, negotiate);
    }
}

struct Judge<'a> {
    settings: &'a Settings,
    auth: &'a Auth,
    found: Found,
}

impl Judge<'_> {
    /// How, with what, and what the client is to be sent before AuthenticationOk.
    async fn run(&self, client: &mut Unauthenticated) -> Outcome<(AuthType, Credential, Vec<u8>)> {
        let Rule { method, map, ldap } = client.rule(self.settings)?;
        let user = client.startup.user.clone();
        let account = self.auth.account_of(self.settings, &user, &self.found);
        let mut out = Vec::new();
        negotiate(client, &mut out);
        let credential = match account.exchange(method) {
            None => {
                if let Some(system) = proven_name(client, method).await? {
                    admit_as(&user, method, map, &system)?;
                }
                self.admit(&user, &account)?;
                account.credential()
            }
            Some(Exchange::Directory) => by_directory(client, self.settings, ldap, &mut out).await?,
            Some(Exchange::Cleartext) => cleartext(client, &account, &mut out).await?,
            Some(Exchange::Md5) => md5(client, &account, &mut out).await?,
            Some(Exchange::Scram) => self.scram(client, &account, &mut out).await?,
        };
        Ok((method, credential, out))
    }

    /// Methods without a password: with an auth_file the user must be in it, or be found by `auth_query`.
    fn admit(&self, user: &str, account: &Account<'_>) -> Result<(), Error> {
        if lists_users(self.settings) && !account.is_known() {
            let what = format!("user \"{user}\" {}", account.sought());
            return Err(Error::new(Kind::InvalidAuthorization, what).with_log(account.absence()));
        }
        Ok(())
    }

    async fn scram(
        &self,
        client: &mut Unauthenticated,
        account: &Account<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome<Credential> {
        let mechanisms = [SCRAM_SHA_256_PLUS, SCRAM_SHA_256];
        let offered = if client.end_point.is_some() { &mechanisms[..] } else { &mechanisms[1..] };
        startup::put_sasl_mechanisms(out, offered);
        client.line.write(out).await?;
        out.clear();

        let answer = client.line.answer().await?;
        let (mechanism, first) = startup::sasl_initial(&answer).map_err(Error::from)?;
        let plus =
            offered.iter().find(|name| name.as_bytes() == mechanism).map(|name| *name == SCRAM_SHA_256_PLUS);
        let Some(plus) = plus else {
            let what = "client selected an invalid SASL authentication mechanism";
            return Err(Error::new(Kind::ProtocolViolation, what).into());
        };
        let first = match first {
            Some(first) => Zeroizing::new(first.to_vec()),
            None => challenge(client, &[]).await?,
        };
        let (verifier, can_pass) = self.auth.verifier(account, self.settings).await;
        let end_point = client.end_point.as_deref();
        let server = scram::Server::new(&first, plus, end_point, verifier, can_pass);
        let server = server.map_err(|e| sasl_error(client, account, e))?;
        let last = challenge(client, server.first()).await?;
        let (server_final, keys) = server.finish(&last).map_err(|e| sasl_error(client, account, e))?;
        startup::put_authentication(out, code::SASL_FINAL, &server_final);
        Ok(match account.credential() {
            Credential::None => Credential::Scram(keys.into()),
            stored => stored,
        })
    }
}

/// What `cert` and `peer` prove, empty if they prove no name; `None`: another method.
async fn proven_name(client: &Unauthenticated, method: AuthType) -> Result<Option<String>, Error> {
    let stream = client.line.stream().ok();
    let refused = |what| Error::new(Kind::InvalidAuthorization, what);
    match method {
        AuthType::Cert => {
            let certificates = stream.and_then(Stream::peer_certificates);
            let own = certificates.and_then(<[_]>::first);
            let own = own.ok_or_else(|| refused("connection requires a valid client certificate"))?;
            Ok(Some(common_name(own).unwrap_or_default()))
        }
        AuthType::Peer => {
            let uid = stream.and_then(Stream::peer_uid);
            let uid = uid.ok_or_else(|| refused("peer authentication is for Unix sockets only"))?;
            // The system may ask a directory server.
            let found = tokio::task::spawn_blocking(move || User::from_uid(Uid::from_raw(uid))).await;
            Ok(Some(found.ok().and_then(Result::ok).flatten().map(|user| user.name).unwrap_or_default()))
        }
        _ => Ok(None),
    }
}

/// `cert` and `peer`: who was proven to be `system` may be the user.
fn admit_as(user: &str, method: AuthType, map: Option<&[Mapping]>, system: &str) -> Result<(), Error> {
    if !system.is_empty() && hba::may_be(map, system, user) {
        return Ok(());
    }
    let (how, whose) = match method {
        AuthType::Peer => ("peer", "operating-system user"),
        _ => ("certificate", "certificate's common name"),
    };
    let what = format!("{how} authentication failed for user \"{user}\"");
    Err(Error::new(Kind::InvalidAuthorization, what).with_log(format!("the {whose} is {system:?}")))
}

/// What does not fit (a certificate, a version) is the operator's to know; TLS itself has told the client.
fn tls_failed(error: LoginError) -> LoginError {
    match error {
        LoginError::Gone(why) if why.kind() == io::ErrorKind::InvalidData => {
            Error::new(Kind::InvalidAuthorization, "the TLS handshake failed")
                .with_log(why.to_string())
                .into()
        }
        other => other,
    }
}

/// Sends AuthenticationSASLContinue and waits for the answer.
async fn challenge(client: &mut Unauthenticated, data: &[u8]) -> Outcome<Zeroizing<Vec<u8>>> {
    let mut message = Vec::with_capacity(data.len() + 16);
    startup::put_authentication(&mut message, code::SASL_CONTINUE, data);
    client.line.write(&message).await?;
    client.line.answer().await
}

fn sasl_error(client: &Unauthenticated, account: &Account<'_>, error: ScramError) -> Error {
    match error {
        ScramError::WrongSecret => {
            client.wrong_password(account.flaw(Exchange::Scram).unwrap_or("the SCRAM proof is wrong"))
        }
        ScramError::Unsupported(_) => Error::new(Kind::NotSupported, error.to_string()),
        ScramError::Binding(_) => Error::new(Kind::InvalidAuthorization, error.to_string()),
        _ => Error::new(Kind::ProtocolViolation, error.to_string()),
    }
}

/// An empty password is refused before anybody looks whose it is, as PostgreSQL does.
fn said(password: &[u8]) -> Result<&[u8], Error> {
    let what = "empty password returned by client";
    if password.is_empty() { Err(Error::new(Kind::InvalidPassword, what)) } else { Ok(password) }
}

/// Asks for the password in clear. The message that holds it, as it came.
async fn ask_password(client: &mut Unauthenticated, out: &mut Vec<u8>) -> Outcome<Zeroizing<Vec<u8>>> {
    startup::put_authentication(out, code::CLEARTEXT_PASSWORD, &[]);
    client.line.write(out).await?;
    out.clear();
    client.line.answer().await
}

/// `ldap`: whoever the directory knows by this password. Neither auth_file nor auth_query is looked at.
async fn by_directory(
    client: &mut Unauthenticated,
    settings: &Settings,
    ldap: Option<&Ldap>,
    out: &mut Vec<u8>,
) -> Outcome<Credential> {
    let answer = ask_password(client, out).await?;
    let password = said(startup::password(&answer).map_err(Error::from)?)?;
    let user = &client.startup.user;
    let proven = match (ldap, std::str::from_utf8(password)) {
        (Some(ldap), Ok(text)) => {
            client.line.in_time(async { Ok(ldap::prove(ldap, user, text).await) }).await?
        }
        (None, _) => Err("no directory is named".to_owned()),
        (_, Err(_)) => Err("the password is not UTF-8".to_owned()),
    };
    let users = settings.users.keys().map(String::as_str);
    let proven = proven.and_then(|()| match taken_for(user, users) {
        None => Ok(()),
        Some(other) => Err(format!("the directory may take this name for \"{other}\", whom [users] knows")),
    });
    proven.map_err(|why| {
        let what = format!("LDAP authentication failed for user \"{user}\"");
        Error::new(Kind::InvalidAuthorization, what).with_log(why)
    })?;
    Ok(Credential::plain(String::from_utf8_lossy(password)))
}

async fn cleartext(
    client: &mut Unauthenticated,
    account: &Account<'_>,
    out: &mut Vec<u8>,
) -> Outcome<Credential> {
    let answer = ask_password(client, out).await?;
    let password = said(startup::password(&answer).map_err(Error::from)?)?;
    // What is not UTF-8 is no password of auth_file, which is UTF-8; it must fail as late as others.
    let text = Zeroizing::new(String::from_utf8_lossy(password).into_owned());
    let right = account.verify_password(&text).await & (text.as_bytes() == password);
    if !right {
        let why = account.flaw(Exchange::Cleartext).unwrap_or("the password does not match");
        return Err(client.wrong_password(why).into());
    }
    Ok(Credential::plain(text.as_str()))
}

async fn md5(client: &mut Unauthenticated, account: &Account<'_>, out: &mut Vec<u8>) -> Outcome<Credential> {
    let salt: [u8; 4] = rand::random();
    startup::put_authentication(out, code::MD5_PASSWORD, &salt);
    client.line.write(out).await?;
    out.clear();
    let answer = client.line.answer().await?;
    let given = said(startup::password(&answer).map_err(Error::from)?)?;
    if !account.verify_md5(salt, given) {
        let why = account.flaw(Exchange::Md5).unwrap_or("the password does not match");
        return Err(client.wrong_password(why).into());
    }
    Ok(account.credential())
}
