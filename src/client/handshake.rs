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

mod authenticate;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::{Zeroize, Zeroizing};

use crate::auth::Credential;
use crate::error::{Error, Kind};
use crate::limits::{AUTH_MESSAGE_BYTES_MAX, LOGIN_PIECE_BYTES};
use crate::net::conn::Conn;
use crate::net::stream::first_byte;
use crate::net::{Acceptor, Peer, Stream};
use crate::settings::{AuthType, General};
use crate::wire::backend::{self, Report, put_report};
use crate::wire::frame::{self, HEADER_BYTES};
use crate::wire::frontend;
use crate::wire::proxy;
use crate::wire::startup::{self, ALPN, Startup, StartupPacket};
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
