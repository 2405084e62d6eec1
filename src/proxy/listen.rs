//! Listeners: addresses and sockets, accept, which worker a connection goes to. Never: reads from a connection.

use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use listenfd::ListenFd;
use nix::libc::EAFNOSUPPORT;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::logins::Place;
use super::stop::Awaited;
use super::workers::DOOR;
use super::{Proxy, ServeError, connection};
use crate::limits;
use crate::net::{Keepalive, Peer, Stream};
use crate::settings::General;
use crate::telemetry::events;

/// Who else has the listener, and gets the connections that are not accepted here any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heir {
    Nobody,
    /// Other processes (`so_reuseport`): each has a queue of its own.
    Peers,
    /// The service manager, which opened it: its queue goes to the next process.
    Manager,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Socket {
    /// Cancel safety: no connection is lost.
    async fn accept(&self) -> std::io::Result<Arrived> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(tcp, from)| Arrived::Tcp(tcp, from)),
            Self::Unix(listener) => listener.accept().await.map(|(unix, _)| Arrived::Unix(unix)),
        }
    }
}

/// A connection that nobody has read from.
enum Arrived {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Arrived {
    fn peer(&self) -> Peer {
        match self {
            Self::Tcp(_, from) => Peer::Tcp(*from),
            Self::Unix(_) => Peer::Unix,
        }
    }

    fn stream(self, keepalive: &Keepalive) -> std::io::Result<Stream> {
        match self {
            Self::Tcp(tcp, _) => Stream::tcp(tcp, keepalive),
            Self::Unix(unix) => Ok(Stream::Unix(unix)),
        }
    }
}

/// The file of a Unix socket that was bound here; it goes with this.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listeners that were opened, and from which no connection is accepted yet.
#[derive(Default)]
pub(super) struct Listeners {
    /// With the name that the log says.
    all: Vec<(Socket, String, Heir)>,
    files: Vec<SocketFile>,
}

impl Listeners {
    /// Everything that is to be listened on, unless it was `handed` over.
    pub(super) fn open(general: &General, handed: ListenFd) -> Result<Self, ServeError> {
        let mut opened = Self::default();
        if handed.len() > 0 {
            opened.take_over(handed)?;
            return Ok(opened);
        }
        let heir = if general.so_reuseport { Heir::Peers } else { Heir::Nobody };
        for name in &general.listen_addr {
            for addr in resolve(name, general.listen_port)? {
                let bound = match name.as_str() {
                    "*" => on_all(addr, |addr| bind(addr, true, general)),
                    _ => bind(addr, false, general),
                };
                let listener = bound.map_err(|e| {
                    ServeError(format!("cannot listen on {addr} (listen_addr, listen_port): {e}"))
                })?;
                opened.add_tcp(listener.local_addr().unwrap_or(addr), listener, heir);
            }
        }
        if let Some(dir) = &general.unix_socket_dir {
            let path = dir.join(format!(".s.PGSQL.{}", general.listen_port));
            let (listener, file) = bind_unix(&path, general).map_err(|e| {
                ServeError(format!(
                    "cannot listen on {} (unix_socket_dir, unix_socket_group): {e}",
                    path.display()
                ))
            })?;
            opened.add_unix(&path, listener, Heir::Nobody);
            opened.files.push(file);
        }
        if opened.all.is_empty() {
            return Err(ServeError("nothing to listen on: set listen_addr or unix_socket_dir".into()));
        }
        Ok(opened)
    }

    fn add_tcp(&mut self, addr: SocketAddr, listener: TcpListener, heir: Heir) {
        self.all.push((Socket::Tcp(listener), addr.to_string(), heir));
    }

    fn add_unix(&mut self, path: &Path, listener: UnixListener, heir: Heir) {
        self.all.push((Socket::Unix(listener), path.display().to_string(), heir));
    }

    /// The service manager's sockets, in place of `listen_addr` and `unix_socket_dir`. Their files are its own.
    fn take_over(&mut self, mut handed: ListenFd) -> Result<(), ServeError> {
        let unusable = |i: usize, why: &dyn std::fmt::Display| {
            ServeError(format!("cannot listen on socket {i} of the service manager (LISTEN_FDS): {why}"))
        };
        for i in 0..handed.len() {
            if let Ok(Some(listener)) = handed.take_tcp_listener(i) {
                listener.set_nonblocking(true).map_err(|e| unusable(i, &e))?;
                let listener = TcpListener::from_std(listener).map_err(|e| unusable(i, &e))?;
                let addr = listener.local_addr().map_err(|e| unusable(i, &e))?;
                self.add_tcp(addr, listener, Heir::Manager);
            } else if let Ok(Some(listener)) = handed.take_unix_listener(i) {
                listener.set_nonblocking(true).map_err(|e| unusable(i, &e))?;
                let listener = UnixListener::from_std(listener).map_err(|e| unusable(i, &e))?;
                let path = listener.local_addr().ok().and_then(|addr| addr.as_pathname().map(Path::to_owned));
                self.add_unix(&path.unwrap_or_default(), listener, Heir::Manager);
            } else {
                return Err(unusable(i, &"it is neither a TCP nor a Unix socket that listens"));
            }
        }
        Ok(())
    }

    /// Begins to let clients in. The files of sockets that were bound here come back.
    pub(super) fn accept(self, proxy: &Arc<Proxy>) -> Vec<SocketFile> {
        for (socket, name, heir) in self.all {
            events::listening(&name);
            let worker = &proxy.workers[DOOR].handle;
            worker.spawn(Arc::clone(proxy).accept(socket, name, heir));
        }
        self.files
    }
}

fn resolve(addr: &str, port: u16) -> Result<Vec<SocketAddr>, ServeError> {
    use std::net::ToSocketAddrs;
    if addr == "*" {
        return Ok(vec![SocketAddr::from(([0u16; 8], port))]);
    }
    let addr = addr.trim_matches(['[', ']']);
    (addr, port)
        .to_socket_addrs()
        .map(Iterator::collect)
        .map_err(|e| ServeError(format!("listen_addr \"{addr}\" can't be resolved: {e}")))
}

/// `*` is both families, or IPv4 alone where the system has no IPv6 (`ipv6.disable=1`).
fn on_all<T>(both: SocketAddr, bind: impl Fn(SocketAddr) -> std::io::Result<T>) -> std::io::Result<T> {
    match bind(both) {
        Err(e) if e.raw_os_error() == Some(EAFNOSUPPORT) => bind(SocketAddr::from(([0; 4], both.port()))),
        bound => bound,
    }
}

/// `both`: an IPv6 address takes IPv4, too. Without it each is itself, as for PostgreSQL, so that `0.0.0.0` stands beside `::`.
fn bind(addr: SocketAddr, both: bool, general: &General) -> std::io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(!both)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(general.so_reuseport)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(backlog(general))?;
    TcpListener::from_std(socket.into())
}

fn backlog(general: &General) -> i32 {
    general.listen_backlog.min(i32::MAX as u32) as i32
}

/// Removes the socket that a process which is gone left behind. Anything else there belongs to somebody, and stays.
fn clear_the_way(path: &Path) -> std::io::Result<()> {
    use std::io::{Error, ErrorKind};
    let found = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(Error::new(ErrorKind::AlreadyExists, "what is there is no socket; move it away"));
    }
    // A listener may not accept just now, or may not let us in: only a refusal says that nobody is there.
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&socket2::SockAddr::unix(path)?) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Err(ErrorKind::AddrInUse.into()),
    }
}

fn bind_unix(path: &Path, general: &General) -> std::io::Result<(UnixListener, SocketFile)> {
    clear_the_way(path)?;
    // Nobody can connect before it listens: its mode is there by then.
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    let file = SocketFile(path.to_owned());
    if let Some(group) = &general.unix_socket_group {
        let group = nix::unistd::Group::from_name(group)?.ok_or(std::io::ErrorKind::NotFound)?;
        std::os::unix::fs::chown(path, None, Some(group.gid.as_raw()))?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(general.unix_socket_mode))?;
    socket.listen(backlog(general))?;
    Ok((UnixListener::from_std(socket.into())?, file))
}

impl Proxy {
    /// A port that other processes have, too, is left to them once nobody is let in here.
    async fn accept(self: Arc<Self>, socket: Socket, name: String, heir: Heir) {
        let _queue = (heir == Heir::Peers).then(|| Awaited::arriving(&self));
        let mut failed = 0;
        loop {
            tokio::select! {
                accepted = socket.accept() => match accepted {
                    Ok(arrived) => self.take(arrived).await,
                    Err(error) => self.pause_after(&error, &mut failed).await,
                },
                () = self.stopping.is_closing(), if heir != Heir::Nobody => break,
            }
        }
        if let (Heir::Peers, Socket::Tcp(listener)) = (heir, socket) {
            self.empty_queue(listener).await;
        }
        events::left_to_others(&name);
    }

    /// Connections in a queue of our own have been given to this process.
    async fn empty_queue(self: &Arc<Self>, listener: TcpListener) {
        let Ok(listener) = listener.into_std() else { return };
        while let Ok((tcp, from)) = listener.accept() {
            if let Ok(tcp) = tcp.set_nonblocking(true).and_then(|()| TcpStream::from_std(tcp)) {
                self.take(Arrived::Tcp(tcp, from)).await;
            }
        }
    }

    /// Gives it to a worker, once there is a place for it.
    async fn take(self: &Arc<Self>, arrived: Arrived) {
        let peer = arrived.peer();
        let arriving = (peer != Peer::Unix).then(|| Awaited::arriving(self));
        let place = self.place(peer).await;
        let proxy = Arc::clone(self);
        self.give_to_worker(|at, elsewhere| {
            let login = Box::pin(async move {
                let keepalive = Keepalive::from(&proxy.cx.settings.load().general);
                let stream = arrived.stream(&keepalive).ok()?;
                let stream = if elsewhere { stream.rehome().ok()? } else { stream };
                proxy.log_in(stream, peer, place, arriving).await
            });
            connection(login, at)
        });
    }

    /// A place among those that have not logged in, once there is one.
    async fn place(&self, peer: Peer) -> Place {
        let max = self.cx.settings.load().general.max_login_conn;
        let logins = if peer == Peer::Unix { &self.local_logins } else { &self.logins };
        logins.enter(peer, max).await
    }

    /// How many have not logged in yet.
    pub(super) fn logins_under_way(&self) -> usize {
        self.logins.len() + self.local_logins.len()
    }

    /// Out of files or memory. Whoever has not logged in makes room; accepting again at once would spin.
    async fn pause_after(&self, error: &std::io::Error, failed: &mut u64) {
        *failed += 1;
        if failed.is_power_of_two() {
            events::accept_failed(error, *failed);
        }
        self.logins.shed();
        self.local_logins.shed();
        tokio::time::sleep(limits::ACCEPT_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_those_that_the_system_has() {
        let both = resolve("*", 6432).unwrap();
        let [both] = both[..] else { panic!("{both:?}") };
        assert_eq!(on_all(both, Ok).unwrap(), both);
        let without = |lacks: i32| {
            move |addr: SocketAddr| match addr {
                SocketAddr::V6(_) => Err(std::io::Error::from_raw_os_error(lacks)),
                SocketAddr::V4(_) => Ok(addr.to_string()),
            }
        };
        assert_eq!(on_all(both, without(EAFNOSUPPORT)).unwrap(), "0.0.0.0:6432");
        on_all(both, without(nix::libc::EADDRINUSE)).expect_err("it is another's");
    }

    /// Where there is no IPv6 nothing is to be seen of it.
    #[test]
    fn an_address_is_itself_and_a_star_is_both_families() {
        let Ok(free) = std::net::TcpListener::bind("[::]:0") else { return };
        let port = free.local_addr().unwrap().port();
        drop(free);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _its_reactor = runtime.enter();
        let open = |addrs: &[&str]| {
            let listen_addr = addrs.iter().map(|addr| (*addr).to_owned()).collect();
            let general = General { listen_addr, listen_port: port, ..General::default() };
            Listeners::open(&general, ListenFd::empty()).map(|opened| opened.all.len())
        };
        assert_eq!(open(&["0.0.0.0", "::"]).map_err(|e| e.to_string()), Ok(2));
        assert_eq!(open(&["::", "0.0.0.0"]).map_err(|e| e.to_string()), Ok(2));
        assert!(open(&["*", "0.0.0.0"]).is_err());
    }

    #[test]
    fn only_a_socket_that_nobody_listens_on_makes_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".s.PGSQL.6432");
        clear_the_way(&path).expect("nothing is there");

        std::fs::write(&path, "somebody's").unwrap();
        let error = clear_the_way(&path).expect_err("a file");
        assert!(error.to_string().contains("no socket"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
        std::fs::remove_file(&path).unwrap();

        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        clear_the_way(&path).expect_err("a link");
        assert!(path.is_symlink());
        std::fs::remove_file(&path).unwrap();

        let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        listener.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(0).unwrap();
        // The second one finds its queue full.
        for _ in 0..3 {
            let error = clear_the_way(&path).expect_err("somebody listens");
            assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
            assert!(path.exists());
        }
        drop(listener);
        clear_the_way(&path).expect("nobody listens any more");
        assert!(!path.exists());
    }
}
