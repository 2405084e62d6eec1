//! One byte stream: TCP, Unix, or TLS over TCP.
//!
//! Owns: reading, writing, readiness, socket options, moving a socket between runtimes.
//! Never: buffers; a caller that waits for readiness first needs none while idle.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

use crate::settings::General;

/// Where the other side is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over a Unix socket.
    Unix,
}

impl Peer {
    /// The address, an IPv4 one if it is an IPv4 address in IPv6 clothes.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip().to_canonical()),
            Self::Unix => None,
        }
    }

    /// That address and the port.
    pub fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(SocketAddr::new(address.ip().to_canonical(), address.port())),
            Self::Unix => None,
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.addr() {
            Some(address) => address.fmt(f),
            None => f.write_str("unix"),
        }
    }
}

/// When a TCP connection counts as lost: `tcp_keepalive`, `tcp_keepidle`, `tcp_keepintvl`, `tcp_keepcnt`,
/// `tcp_user_timeout`. A zero is the system's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keepalive {
    /// On at all.
    pub on: bool,
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Between probes.
    pub interval: Duration,
    /// Probes before the connection counts as dead.
    pub count: u32,
    /// How long what was sent may stay unconfirmed; whether it is on or not.
    pub unconfirmed: Duration,
}

impl From<&General> for Keepalive {
    fn from(general: &General) -> Self {
        Self {
            on: general.tcp_keepalive,
            idle: general.tcp_keepidle,
            interval: general.tcp_keepintvl,
            count: general.tcp_keepcnt,
            unconfirmed: Duration::from_millis(general.tcp_user_timeout.into()),
        }
    }
}

impl Keepalive {
    fn apply(&self, tcp: &TcpStream) -> io::Result<()> {
        let socket = socket2::SockRef::from(tcp);
        if !self.unconfirmed.is_zero() {
            socket.set_tcp_user_timeout(Some(self.unconfirmed))?;
        }
        if !self.on {
            return Ok(());
        }
        let mut options = socket2::TcpKeepalive::new();
        if !self.idle.is_zero() {
            options = options.with_time(self.idle);
        }
        if !self.interval.is_zero() {
            options = options.with_interval(self.interval);
        }
        if self.count > 0 {
            options = options.with_retries(self.count);
        }
        socket.set_tcp_keepalive(&options)
    }
}

/// A connection to a client or to a server.
#[derive(Debug)]
pub enum Stream {
    /// TCP in clear.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP, either side of it.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Takes an accepted or connected TCP socket: no delay, keepalive as chosen.
    ///
    /// # Errors
    /// What the operating system says to the socket options.
    pub fn tcp(tcp: TcpStream, keepalive: &Keepalive) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        keepalive.apply(&tcp)?;
        Ok(Self::Tcp(tcp))
    }

    /// Is it encrypted?
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// The version of TLS on it and its cipher suite, in OpenSSL's names, as PgBouncer shows them.
    pub fn tls_name(&self) -> Option<&'static str> {
        use rustls::CipherSuite as C;
        let Self::Tls(tls) = self else { return None };
        let suite = tls.get_ref().1.negotiated_cipher_suite().map(|suite| suite.suite());
        Some(match suite {
            Some(C::TLS13_AES_256_GCM_SHA384) => "TLSv1.3/TLS_AES_256_GCM_SHA384",
            Some(C::TLS13_AES_128_GCM_SHA256) => "TLSv1.3/TLS_AES_128_GCM_SHA256",
            Some(C::TLS13_CHACHA20_POLY1305_SHA256) => "TLSv1.3/TLS_CHACHA20_POLY1305_SHA256",
            Some(C::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384) => "TLSv1.2/ECDHE-ECDSA-AES256-GCM-SHA384",
            Some(C::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) => "TLSv1.2/ECDHE-ECDSA-AES128-GCM-SHA256",
            Some(C::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256) => "TLSv1.2/ECDHE-ECDSA-CHACHA20-POLY1305",
            Some(C::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384) => "TLSv1.2/ECDHE-RSA-AES256-GCM-SHA384",
            Some(C::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) => "TLSv1.2/ECDHE-RSA-AES128-GCM-SHA256",
            Some(C::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256) => "TLSv1.2/ECDHE-RSA-CHACHA20-POLY1305",
            _ => "TLS",
        })
    }

    /// Is it a Unix socket?
    pub fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Was the other end of a Unix socket opened by our own operating-system user?
    pub fn is_of_our_user(&self) -> bool {
        let Self::Unix(unix) = self else { return false };
        let user = |stream: &UnixStream| stream.peer_cred().map(|credentials| credentials.uid());
        // Both ends of a pair are ours.
        let ours = UnixStream::pair().and_then(|(end, _other)| user(&end));
        matches!((user(unix), ours), (Ok(theirs), Ok(ours)) if theirs == ours)
    }

    /// The operating-system user at the other end of a Unix socket.
    pub fn peer_uid(&self) -> Option<u32> {
        let Self::Unix(unix) = self else { return None };
        unix.peer_cred().ok().map(|credentials| credentials.uid())
    }

    /// Our address; `None` over a Unix socket or when the system no longer knows.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inet()?.local_addr().ok()
    }

    /// Our address and the peer's; `None` as for [`Stream::local_addr`].
    pub fn addrs(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some((self.local_addr()?, self.inet()?.peer_addr().ok()?))
    }

    fn inet(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(tcp) => Some(tcp),
            Self::Tls(tls) => Some(tls.get_ref().0),
            Self::Unix(_) => None,
        }
    }

    /// Hot path. Ready when the socket has bytes, or its end, so that no buffer need be held before.
    ///
    /// TLS may hold decrypted bytes that the socket knows nothing of, so it is always ready: poll it
    /// with a buffer. Cancel safe; may be ready for nothing.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(tcp) => tcp.poll_read_ready(cx),
            Self::Unix(unix) => unix.poll_read_ready(cx),
            Self::Tls(_) => Poll::Ready(Ok(())),
        }
    }

    /// Moves the socket to the runtime of the current thread. TLS stays with the runtime it was made
    /// on (its state can't be taken apart) and is returned as it is.
    ///
    /// # Errors
    /// What the operating system says; the connection is closed then.
    pub fn rehome(self) -> io::Result<Self> {
        match self {
            Self::Tcp(tcp) => TcpStream::from_std(tcp.into_std()?).map(Self::Tcp),
            Self::Unix(unix) => UnixStream::from_std(unix.into_std()?).map(Self::Unix),
            tls @ Self::Tls(_) => Ok(tls),
        }
    }

    /// Is there something to read, by the socket itself (a reactor that has just been given it does not know)?
    /// Nothing is lost. Not known of TLS: no.
    ///
    /// # Errors
    /// The socket's, and `UnexpectedEof` if the peer has gone.
    pub fn has_unread(&self) -> io::Result<bool> {
        let mut byte = [std::mem::MaybeUninit::new(0u8)];
        let found = match self {
            Self::Tcp(tcp) => socket2::SockRef::from(tcp).peek(&mut byte),
            Self::Unix(unix) => socket2::SockRef::from(unix).peek(&mut byte),
            Self::Tls(_) => return Ok(false),
        };
        match found {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The certificates that the peer showed in the TLS handshake, its own first.
    pub fn peer_certificates(&self) -> Option<&[rustls::pki_types::CertificateDer<'static>]> {
        match self {
            Self::Tls(tls) => tls.get_ref().1.peer_certificates(),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    /// The application protocol agreed on in the TLS handshake.
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Tls(tls) => tls.get_ref().1.alpn_protocol(),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }
}

macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Tcp($stream) => $call,
            Stream::Unix($stream) => $call,
            Stream::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.is_write_vectored(),
            Self::Unix(unix) => unix.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}

/// Waits until `tcp` has a byte and returns it without taking it; `None` is the end.
///
/// Cancel safety: nothing is taken.
///
/// Errors: the socket's own.
pub async fn first_byte(tcp: &TcpStream) -> io::Result<Option<u8>> {
    let mut byte = [0u8; 1];
    let read = tcp.peek(&mut byte).await?;
    Ok((read > 0).then_some(byte[0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn an_ipv4_address_in_ipv6_clothes_is_shown_without_them() {
        let peer = |text: &str| Peer::Tcp(text.parse().unwrap());
        for (from, shown) in [("[::ffff:192.0.2.1]:5", "192.0.2.1:5"), ("[2001:db8::1]:5", "[2001:db8::1]:5")]
        {
            assert_eq!(peer(from).addr().map(|address| address.to_string()).as_deref(), Some(shown));
            assert_eq!(peer(from).to_string(), shown);
        }
        assert_eq!(Peer::Unix.addr(), None);
    }

    async fn pair() -> (Stream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let near = listener.accept().await.unwrap().0;
        let general = General {
            tcp_keepidle: Duration::from_secs(7),
            tcp_keepcnt: 3,
            tcp_user_timeout: 4500,
            ..General::default()
        };
        let keepalive = Keepalive::from(&general);
        (Stream::tcp(near, &keepalive).unwrap(), far)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn socket_options_are_set() {
        runtime().block_on(async {
            let (near, _far) = pair().await;
            let Stream::Tcp(tcp) = &near else { panic!("not TCP") };
            let socket = socket2::SockRef::from(tcp);
            assert!(tcp.nodelay().unwrap());
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(7));
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_millis(4500)));
        });
    }

    #[test]
    fn a_stream_moves_to_another_runtime_and_still_reads_and_writes() {
        let home = runtime();
        let (near, mut far) = home.block_on(pair());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                runtime().block_on(async {
                    let mut near = near.rehome().unwrap();
                    let mut buf = [0; 4];
                    std::future::poll_fn(|cx| near.poll_read_ready(cx)).await.unwrap();
                    near.read_exact(&mut buf).await.unwrap();
                    near.write_all(&buf).await.unwrap();
                });
            });
            home.block_on(async {
                far.write_all(b"ping").await.unwrap();
                let mut buf = [0; 4];
                far.read_exact(&mut buf).await.unwrap();
                assert_eq!(&buf, b"ping");
            });
        });
    }
}
