//! Listeners, accept, workers, reload, drain; builds all the other rooms.
//!
//! Owns: threads and signals. Each worker is a thread with a runtime of its own; a client lives on one worker from
//! accept to end, server connections move between workers with the pool. Never: understands a message.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::auth::Auth;
use crate::cancel::{ClientState, Registry, Signal};
use crate::client::handshake::{self, LoginError, Opened, Unauthenticated};
use crate::client::{Context, login};
use crate::coalesce::Lanes;
use crate::error::Error;
use crate::limits;
use crate::net::{Acceptor, Keepalive, Peer, Stream};
use crate::pool::{Pools, registry};
use crate::settings::{General, Settings};
use crate::telemetry::events;

/// The databases that are the console.
pub const CONSOLES: [&str; 2] = ["pgsluice", "pgbouncer"];

/// A running proxy, shared by all its tasks.
#[derive(Debug)]
pub struct Proxy {
    /// What sessions use.
    pub cx: Arc<Context>,
    /// The file that a reload reads again.
    pub path: PathBuf,
    /// When it began.
    pub started: Instant,
    auth: Auth,
    tls: ArcSwap<Acceptor>,
    workers: Vec<Worker>,
    /// Connections, logged in or not.
    connections: AtomicUsize,
    draining: AtomicBool,
    stop: Notify,
    changed: Notify,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    clients: Arc<AtomicUsize>,
}

/// Why the proxy could not start or had to give up.
#[derive(Debug)]
pub struct ServeError(String);

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServeError {}

/// Runs the proxy until SIGTERM, SIGINT or SHUTDOWN; `path` is the file that a reload reads again.
///
/// # Errors
/// An address can't be listened on, a TLS file can't be used, a thread can't be started.
pub fn serve(settings: Settings, path: PathBuf) -> Result<(), ServeError> {
    let runtime = runtime().map_err(|e| ServeError(format!("cannot start a runtime: {e}")))?;
    runtime.block_on(async {
        let running = start(settings, path).await?;
        running.until_stopped().await;
        Ok(())
    })
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// A started proxy: listeners are open.
#[derive(Debug)]
pub struct Running {
    /// What runs.
    pub proxy: Arc<Proxy>,
    /// The TCP addresses that were bound.
    pub addrs: Vec<SocketAddr>,
    threads: Vec<std::thread::JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

/// Opens the listeners and starts the workers; call inside a runtime with time and I/O.
///
/// # Errors
/// As [`serve`].
pub async fn start(settings: Settings, path: PathBuf) -> Result<Running, ServeError> {
    raise_file_limit();
    let general = settings.general.clone();
    let tls = Acceptor::new(&general.client_tls).map_err(|e| ServeError(e.to_string()))?;
    let (workers, threads) = start_workers(&general)?;
    let pools = Pools::default();
    let cx = Arc::new(Context {
        lanes: Arc::new(Lanes::new()),
        settings: ArcSwap::from_pointee(settings.clone()),
        generation: AtomicUsize::new(0),
        pools,
        clients: Registry::default(),
    });
    let proxy = Arc::new(Proxy {
        cx,
        path,
        started: Instant::now(),
        auth: Auth::new(&settings),
        tls: ArcSwap::from_pointee(tls),
        workers,
        connections: AtomicUsize::new(0),
        draining: AtomicBool::new(false),
        stop: Notify::new(),
        changed: Notify::new(),
    });
    let (addrs, sockets) = listen(&proxy, &general)?;
    let janitor = Arc::clone(&proxy);
    proxy.workers[0].handle.spawn(async move { janitor.maintain().await });
    if let Some(pidfile) = &general.pidfile {
        std::fs::write(pidfile, format!("{}\n", std::process::id()))
            .map_err(|e| ServeError(format!("pidfile {}: {e}", pidfile.display())))?;
    }
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    Ok(Running { proxy, addrs, threads, sockets })
}

/// As many open files as the system lets us have: each client is one.
fn raise_file_limit() {
    if let Ok((soft, hard)) = rlimit::Resource::NOFILE.get() {
        if soft < hard {
            let _ = rlimit::Resource::NOFILE.set(hard, hard);
        }
    }
}

fn start_workers(general: &General) -> Result<(Vec<Worker>, Vec<std::thread::JoinHandle<()>>), ServeError> {
    let count = match general.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2),
        n => n,
    };
    let mut workers = Vec::new();
    let mut threads = Vec::new();
    for id in 0..count {
        let runtime = runtime().map_err(|e| ServeError(format!("cannot start a runtime: {e}")))?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new()
            .name(format!("pgsluice-{id}"))
            .spawn(move || {
                registry::set_current_worker(id);
                // Ends with the process, or when the last handle tells it to.
                runtime.block_on(std::future::pending::<()>());
            })
            .map_err(|e| ServeError(format!("cannot start worker {id}: {e}")))?;
        workers.push(Worker { handle, clients: Arc::new(AtomicUsize::new(0)) });
        threads.push(thread);
    }
    Ok((workers, threads))
}

fn listen(proxy: &Arc<Proxy>, general: &General) -> Result<(Vec<SocketAddr>, Vec<PathBuf>), ServeError> {
    let mut addrs = Vec::new();
    for addr in &general.listen_addr {
        for addr in resolve(addr, general.listen_port)? {
            let listener = bind(addr, general.listen_backlog).map_err(|e| {
                ServeError(format!("cannot listen on {addr} (listen_addr, listen_port): {e}"))
            })?;
            let bound = listener.local_addr().unwrap_or(addr);
            events::listening(&bound.to_string());
            addrs.push(bound);
            tokio::spawn(Arc::clone(proxy).accept_tcp(listener));
        }
    }
    let mut sockets = Vec::new();
    if let Some(dir) = &general.unix_socket_dir {
        let path = dir.join(format!(".s.PGSQL.{}", general.listen_port));
        let listener = bind_unix(&path, general.unix_socket_mode)
            .map_err(|e| ServeError(format!("cannot listen on {} (unix_socket_dir): {e}", path.display())))?;
        events::listening(&path.display().to_string());
        sockets.push(path);
        tokio::spawn(Arc::clone(proxy).accept_unix(listener));
    }
    if addrs.is_empty() && sockets.is_empty() {
        return Err(ServeError("nothing to listen on: set listen_addr or unix_socket_dir".into()));
    }
    Ok((addrs, sockets))
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

fn bind(addr: SocketAddr, backlog: u32) -> std::io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        // `*` is both families; an address is itself.
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(backlog.min(i32::MAX as u32) as i32)?;
    TcpListener::from_std(socket.into())
}

fn bind_unix(path: &Path, mode: u32) -> std::io::Result<UnixListener> {
    if path.exists() && std::os::unix::net::UnixStream::connect(path).is_err() {
        // Left behind by a process that is gone.
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

impl Proxy {
    async fn accept_tcp(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((tcp, peer)) => {
                    let Ok(tcp) = tcp.into_std() else { continue };
                    self.give_to_worker(move |proxy| async move {
                        let general = &proxy.cx.settings.load().general;
                        let keepalive = keepalive(general);
                        let stream =
                            tokio::net::TcpStream::from_std(tcp).and_then(|tcp| Stream::tcp(tcp, &keepalive));
                        if let Ok(stream) = stream {
                            proxy.connection(stream, Peer::Tcp(peer)).await;
                        }
                    });
                }
                Err(error) => pause_after(&error).await,
            }
        }
    }

    async fn accept_unix(self: Arc<Self>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((unix, _)) => {
                    let Ok(unix) = unix.into_std() else { continue };
                    self.give_to_worker(move |proxy| async move {
                        if let Ok(unix) = tokio::net::UnixStream::from_std(unix) {
                            proxy.connection(Stream::Unix(unix), Peer::Unix).await;
                        }
                    });
                }
                Err(error) => pause_after(&error).await,
            }
        }
    }

    /// A new connection goes to the worker with the fewest.
    fn give_to_worker<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        serve: impl FnOnce(Arc<Self>) -> F + Send + 'static,
    ) {
        let Some(worker) = self.workers.iter().min_by_key(|w| w.clients.load(Ordering::Relaxed)) else {
            return;
        };
        let guard = Counted::new(&worker.clients);
        let proxy = Arc::clone(self);
        worker.handle.spawn(async move {
            let _guard = guard;
            serve(proxy).await;
        });
    }

    /// One connection from accept to end. What is large is boxed and gone before the session idles.
    async fn connection(self: Arc<Self>, stream: Stream, peer: Peer) {
        let _counted = Counted::new_in(&self.connections);
        let Some(admitted) = Box::pin(self.log_in(stream, peer)).await else { return };
        let login::Admitted { session, server } = admitted;
        session.run(server).await;
        // One permit is kept: the main task may be just about to wait.
        self.changed.notify_one();
    }

    /// The login. `None`: it was a cancel request, the console, or it ended.
    async fn log_in(self: &Arc<Self>, stream: Stream, peer: Peer) -> Option<login::Admitted> {
        let settings = self.cx.settings.load_full();
        let tls = self.tls.load_full();
        let opened = handshake::open(stream, peer, &tls, settings.general.client_login_timeout).await;
        let client = match opened {
            Ok(Opened::Startup(client)) => client,
            Ok(Opened::Cancel { pid, key, stream }) => {
                self.cx.clients.cancel(pid, &key, settings.general.cancel_wait_timeout).await;
                drop(stream);
                return None;
            }
            Err(error) => return refused(peer, &error),
        };
        if let Some(error) = self.refuses(&settings, &client) {
            events::client_refused(&peer.to_string(), error.message(), "");
            client.refuse(&error).await;
            return None;
        }
        let proven = match client.authenticate(&settings, &self.auth).await {
            Ok(proven) => proven,
            Err(error) => return refused(peer, &error),
        };
        if CONSOLES.contains(&proven.startup.database.as_str()) {
            drop(proven);
            return None;
        }
        let (user, database) = (proven.startup.user.clone(), proven.startup.database.clone());
        match login::admit(&self.cx, proven).await {
            Ok(admitted) => {
                if settings.general.log_connections {
                    let who = events::Who {
                        client: admitted.session.id(),
                        user: &user,
                        database: &database,
                        peer: &peer.to_string(),
                    };
                    events::client_login(who, admitted.session.is_tls());
                }
                Some(admitted)
            }
            Err(not) => {
                not.tell(&peer.to_string()).await;
                None
            }
        }
    }

    fn refuses(&self, settings: &Settings, client: &Unauthenticated) -> Option<Error> {
        if self.draining.load(Ordering::Acquire) {
            return Some(Error::shutting_down());
        }
        let startup = client.startup();
        let console = CONSOLES.contains(&startup.database.as_str());
        let max = settings.general.max_client_conn;
        (!console && self.connections.load(Ordering::Relaxed) > max)
            .then(|| Error::too_many_clients("max_client_conn"))
    }

    /// Reads the file again and applies what can be applied while running.
    ///
    /// # Errors
    /// What is wrong with the file; nothing has changed then.
    pub fn reload(&self) -> Result<(), Vec<String>> {
        let outcome = self.try_reload();
        events::reloaded(outcome.as_ref().err().map_or(&[], Vec::as_slice));
        outcome
    }

    fn try_reload(&self) -> Result<(), Vec<String>> {
        let loaded = crate::config::read(&self.path)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let settings = loaded.settings;
        let tls = Acceptor::new(&settings.general.client_tls).map_err(|e| vec![e.to_string()])?;
        for pool in self.cx.pools.all() {
            let Some(database) = settings.database(&pool.key.database) else {
                pool.disabled.store(true, Ordering::Relaxed);
                continue;
            };
            let old = pool.target.load_full();
            let target = login::pool_target(&settings, database, &pool.key, old.credential.clone())
                .map_err(|e| vec![format!("{e}: {}", e.log().unwrap_or_default())])?;
            let moved = (&old.hosts, old.port, &old.dbname, &old.user)
                != (&target.hosts, target.port, &target.dbname, &target.user)
                || self.cx.settings.load().general.server_tls != settings.general.server_tls;
            pool.settings.store(Arc::new(login::pool_settings(&settings, database, &pool.key)));
            pool.target.store(Arc::new(target));
            if moved {
                pool.reconnect();
            }
        }
        self.tls.store(Arc::new(tls));
        self.auth.reload(&settings);
        self.cx.settings.store(Arc::new(settings));
        self.cx.generation.fetch_add(1, Ordering::AcqRel);
        self.cx.lanes.forget_all();
        for client in self.cx.clients.all() {
            client.signal(Signal::Reload);
        }
        Ok(())
    }

    /// Ends the process's work: no new clients, idle ones are closed now, others when their transaction ends.
    pub fn drain(&self) {
        if !self.draining.swap(true, Ordering::AcqRel) {
            let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
            events::draining(self.cx.clients.len());
        }
        for client in self.cx.clients.all() {
            client.signal(Signal::Drain);
        }
    }

    /// SHUTDOWN: the process ends now.
    pub fn stop_now(&self) {
        self.stop.notify_one();
    }

    /// True from SIGTERM on.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Connections, logged in or not.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Once a second: pools keep their limits, clients their timeouts.
    async fn maintain(self: Arc<Self>) {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tick.tick().await;
            for pool in self.cx.pools.all() {
                pool.maintain();
            }
            self.enforce_timeouts(Instant::now());
        }
    }

    fn enforce_timeouts(&self, now: Instant) {
        let settings = self.cx.settings.load();
        let general = &settings.general;
        let common = [
            general.client_idle_timeout,
            general.idle_transaction_timeout,
            general.query_timeout,
            general.transaction_timeout,
        ];
        if common.iter().all(Duration::is_zero) && settings.users.is_empty() {
            return;
        }
        for client in self.cx.clients.all() {
            let user = settings.users.get(&client.pool.user);
            let (state, since, xact) = client.watch(now);
            let over = |age: Duration, own: Option<Duration>, common: Duration| {
                let limit = own.unwrap_or(common);
                !limit.is_zero() && age > limit
            };
            let idle = || over(since, user.and_then(|u| u.client_idle_timeout), general.client_idle_timeout);
            let idle_inside = || {
                let own = user.and_then(|u| u.idle_transaction_timeout);
                over(since, own, general.idle_transaction_timeout)
            };
            let query = || over(since, user.and_then(|u| u.query_timeout), general.query_timeout);
            let transaction =
                || over(xact, user.and_then(|u| u.transaction_timeout), general.transaction_timeout);
            let signal = match state {
                ClientState::Idle if idle() => Signal::IdleTimeout,
                ClientState::IdleInTransaction if idle_inside() => Signal::IdleTransactionTimeout,
                ClientState::Active if query() => Signal::QueryTimeout,
                ClientState::Active | ClientState::IdleInTransaction if transaction() => {
                    Signal::TransactionTimeout
                }
                _ => continue,
            };
            client.signal(signal);
        }
    }
}

/// TCP keepalive from the settings.
pub fn keepalive(general: &General) -> Keepalive {
    Keepalive {
        on: general.tcp_keepalive,
        idle: general.tcp_keepidle,
        interval: general.tcp_keepintvl,
        count: general.tcp_keepcnt,
    }
}

fn refused(peer: Peer, error: &LoginError) -> Option<login::Admitted> {
    if let LoginError::Refused(error) = error {
        events::client_refused(&peer.to_string(), error.message(), error.log().unwrap_or_default());
    }
    None
}

/// Out of files or memory: accepting again at once would spin.
async fn pause_after(error: &std::io::Error) {
    tracing::warn!(%error, "accept failed");
    tokio::time::sleep(limits::ACCEPT_PAUSE).await;
}

/// Counts while it lives.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }

    fn new_in(count: &AtomicUsize) -> CountedIn<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        CountedIn(count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts while it lives.
struct CountedIn<'a>(&'a AtomicUsize);

impl Drop for CountedIn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Running {
    /// Runs until it is told to stop: SIGTERM drains within `shutdown_timeout`, a second one or SIGQUIT ends at once;
    /// SIGINT drains too; SIGHUP reloads; SIGUSR1 and SIGUSR2 pause and resume.
    pub async fn until_stopped(self) {
        use tokio::signal::unix::{SignalKind, signal};
        let proxy = Arc::clone(&self.proxy);
        let catch = |kind| signal(kind).ok();
        let mut term = catch(SignalKind::terminate());
        let mut int = catch(SignalKind::interrupt());
        let mut quit = catch(SignalKind::quit());
        let mut hup = catch(SignalKind::hangup());
        let mut usr1 = catch(SignalKind::user_defined1());
        let mut usr2 = catch(SignalKind::user_defined2());
        let mut deadline: Option<tokio::time::Instant> = None;
        loop {
            let timeout =
                deadline.unwrap_or_else(|| tokio::time::Instant::now() + Duration::from_secs(86400));
            tokio::select! {
                () = caught(&mut term) => if begin_drain(&proxy, &mut deadline) { break },
                () = caught(&mut int) => if begin_drain(&proxy, &mut deadline) { break },
                () = caught(&mut quit) => break,
                () = caught(&mut hup) => {
                    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Reloading]);
                    let _ = proxy.reload();
                    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
                }
                () = caught(&mut usr1) => proxy.cx.pools.all().iter().for_each(|p| p.pause()),
                () = caught(&mut usr2) => proxy.cx.pools.all().iter().for_each(|p| p.resume()),
                () = proxy.stop.notified() => break,
                () = proxy.changed.notified() => {}
                () = tokio::time::sleep_until(timeout) => if deadline.is_some() { break },
            }
            if deadline.is_some() && proxy.cx.clients.is_empty() {
                break;
            }
        }
        self.end();
    }

    /// Removes what the process leaves in the file system. Threads end with the process.
    pub fn end(self) {
        for path in &self.sockets {
            let _ = std::fs::remove_file(path);
        }
        if let Some(pidfile) = &self.proxy.cx.settings.load().general.pidfile {
            let _ = std::fs::remove_file(pidfile);
        }
        drop(self.threads);
    }
}

async fn caught(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// The first call begins the drain; true for the second one: end now.
fn begin_drain(proxy: &Proxy, deadline: &mut Option<tokio::time::Instant>) -> bool {
    if deadline.is_some() {
        return true;
    }
    proxy.drain();
    let limit = proxy.cx.settings.load().general.shutdown_timeout;
    *deadline =
        Some(tokio::time::Instant::now() + if limit.is_zero() { Duration::from_secs(86400) } else { limit });
    false
}
