//! Listeners, accept, workers, reload, drain; builds all the other rooms.
//!
//! Owns: threads and signals. Each worker is a thread with a runtime of its own; a client lives on one worker from
//! accept to end, server connections move between workers with the pool. Never: understands a message, but for the
//! console's own.
//!
//! ```text
//! stop       start, signals, the end         reload     a new configuration into what runs
//! listen     addresses, accept               console    one client of the console
//! http       /metrics, /healthz, /readyz    metrics    what is counted, for the first of them
//! averages   those of SHOW STATS            status     the page for people
//! lookup     auth_query
//! logins     who has not logged in yet       show, act  what it asks, what it orders
//! workers    threads                        timeouts   of clients
//! ```

mod act;
mod averages;
mod console;
mod http;
mod listen;
mod logins;
mod lookup;
mod metrics;
mod reload;
mod show;
mod status;
mod stop;
mod timeouts;
mod workers;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use listenfd::ListenFd;

use crate::auth::Auth;
use crate::cancel::{ClientShared, ClientState, Peers, Registry};
use crate::client::handshake::{self, Authenticated, LoginError, Opened, Unauthenticated};
use crate::client::replication::{self, Replicating};
use crate::client::session::Session;
use crate::client::{Context, login};
use crate::coalesce::Lanes;
use crate::error::{Error, Kind};
use crate::files;
use crate::learn::Learner;
use crate::mutex::lock;
use crate::net::{Acceptor, Connector, Peer, Stream};
use crate::pool::{Checkout, PoolKey, Pools};
use crate::settings::{CONSOLES, Database, General, Settings, is_within};
use crate::telemetry::audit::{Audit, Sink};
use crate::telemetry::events;
use crate::telemetry::tally::Tally;
use crate::wire::CancelKey;
use crate::wire::startup::{Replication, Startup};

use averages::{Averages, ByDatabase};
use logins::{Logins, Place, Tag};
use lookup::Lookups;
use stop::{Awaited, Running, Signals, Stopping};
use workers::{Counted, DOOR, Worker, raise_file_limit, runtime, start_workers, warn_of_few_files};

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
    lookups: Lookups,
    /// PAUSE and RESUME take turns, so that lookups end as clients do.
    holding: Mutex<()>,
    tls: ArcSwap<Acceptor>,
    peers: ArcSwap<Peers>,
    workers: Vec<Worker>,
    /// Connections that have not logged in.
    logins: Arc<Logins>,
    /// The same over the Unix socket: however many the network has under way, and whatever those wait for, an operator on this
    /// machine gets to the console.
    local_logins: Arc<Logins>,
    /// Clients that have, but those of the console.
    let_in: AtomicUsize,
    stopping: Stopping,
    /// One reload at a time.
    reloading: Mutex<()>,
    averages: Averages,
    /// What pools that are gone had counted, for databases that have an entry of their own.
    past: Mutex<ByDatabase>,
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
    if nix::unistd::geteuid().is_root() {
        events::runs_as_root();
    }
    // Before there are other threads: it takes them out of the environment.
    let handed = ListenFd::from_env();
    let runtime = runtime().map_err(|e| ServeError(format!("cannot start a runtime: {e}")))?;
    runtime.block_on(async {
        let signals = Signals::catch();
        let running = start(settings, path, handed).await?;
        running.until_stopped(signals).await;
        Ok(())
    })
}

/// Opens the listeners, or takes those that were `handed` over, and starts the workers; call inside a runtime with time and I/O.
///
/// # Errors
/// As [`serve`].
async fn start(settings: Settings, path: PathBuf, handed: ListenFd) -> Result<Running, ServeError> {
    let files = raise_file_limit();
    warn_of_few_files(files, &settings);
    let general = settings.general.clone();
    if let Some(held) = held_pidfile(&general) {
        return Err(held);
    }
    let tls = Acceptor::new(&general.client_tls).map_err(|e| ServeError(e.to_string()))?;
    let server_tls = Connector::new(&general.server_tls).map_err(|e| ServeError(e.to_string()))?;
    let peers = Peers::new(&settings, server_tls.clone());
    let workers = start_workers(&general)?;
    let pools = Pools::default();
    let audit = Sink::open(general.audit_file.as_deref())
        .and_then(Audit::start)
        .map_err(|e| ServeError(format!("audit_file: {e}")))?;
    let cx = Arc::new(Context {
        audit: Arc::new(audit),
        lanes: Arc::new(Lanes::new()),
        learner: Arc::new(Learner::default()),
        settings: ArcSwap::from_pointee(settings.clone()),
        server_tls: ArcSwap::from_pointee(server_tls),
        generation: AtomicUsize::new(0),
        pools,
        clients: Registry::default(),
        refused: Tally::default(),
        closed: Tally::default(),
    });
    let proxy = Arc::new(Proxy {
        cx,
        path,
        started: Instant::now(),
        auth: Auth::new(&settings),
        lookups: Lookups::default(),
        holding: Mutex::default(),
        tls: ArcSwap::from_pointee(tls),
        peers: ArcSwap::from_pointee(peers),
        workers,
        logins: Arc::new(Logins::new(files / 4)),
        local_logins: Arc::new(Logins::new(files / 4)),
        let_in: AtomicUsize::new(0),
        stopping: Stopping::default(),
        reloading: Mutex::default(),
        averages: Averages::default(),
        past: Mutex::default(),
    });
    // First: to a port that is shared (`so_reuseport`) clients come at once, and lose their connection where the start fails.
    let http = match general.http_addr {
        Some(addr) => Some((addr, http::open(addr).await?)),
        None => None,
    };
    let listeners = {
        let _its_reactor = proxy.workers[DOOR].handle.enter();
        listen::Listeners::open(&general, handed)?
    };
    if let Some((addr, listener)) = http {
        http::serve(&proxy, addr, listener);
    }
    let janitor = Arc::clone(&proxy);
    proxy.workers[0].handle.spawn(async move { janitor.maintain().await });
    proxy.workers[0].handle.spawn(Arc::clone(&proxy).watch_timeouts());
    proxy.workers[0].handle.spawn(Arc::clone(&proxy).watch_files());
    if let Some(pidfile) = &general.pidfile {
        files::write(pidfile, &format!("{}\n", std::process::id()))
            .map_err(|e| ServeError(format!("pidfile {}: {e}", pidfile.display())))?;
    }
    // Last: a client that is let in finds everything in place.
    let sockets = listeners.accept(&proxy);
    Ok(Running { proxy, sockets })
}

/// Another process would not be found by its pidfile any more. Those that follow each other on a port may share one, which names
/// the one that began last.
fn held_pidfile(general: &General) -> Option<ServeError> {
    let file = general.pidfile.as_ref().filter(|_| !general.so_reuseport)?;
    let pid = stop::holder(file)?;
    let why = format!("it is that of process {pid}, which runs; end that one, or name another file");
    Some(ServeError(format!("pidfile {}: {why}", file.display())))
}

/// What a connection turned out to be.
enum Proven {
    Client(Box<Authenticated>),
    Cancel { pid: i32, key: CancelKey, stream: Stream },
}

/// A client that was let in.
enum Client {
    Session(Box<Session>, Option<Checkout>),
    Replication(Box<Replicating>),
}

/// One of [`Proxy::let_in`] while it lives.
struct LetIn(Arc<Proxy>);

impl LetIn {
    fn new(proxy: &Arc<Proxy>) -> Self {
        proxy.let_in.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(proxy))
    }
}

impl Drop for LetIn {
    fn drop(&mut self) {
        self.0.let_in.fetch_sub(1, Ordering::Relaxed);
        self.0.stopping.client_left();
    }
}

/// Everything in a connection that comes before its session: large, and gone when the session idles. `None`: it gets no session.
type Login = Pin<Box<dyn Future<Output = Option<(LetIn, Client)>> + Send>>;

/// One connection from its first byte to its end.
async fn connection(login: Login, _at: Counted) {
    let Some((_let_in, client)) = login.await else { return };
    match client {
        Client::Session(session, server) => session.run(server).await,
        Client::Replication(replicating) => Box::pin(replicating.run()).await,
    }
}

impl Proxy {
    /// What is no client of a database's is served to its end.
    async fn log_in(
        self: &Arc<Self>,
        stream: Stream,
        peer: Peer,
        place: Place,
        arriving: Option<Awaited>,
    ) -> Option<(LetIn, Client)> {
        match Box::pin(self.held(place, stream, peer)).await.flatten()? {
            Proven::Cancel { pid, key, stream } => {
                let limit = self.cx.settings.load().general.cancel_wait_timeout;
                let peers = self.peers.load_full();
                Box::pin(self.cx.clients.cancel(pid, &key, &peers, limit)).await;
                handshake::close(stream).await;
            }
            Proven::Client(proven) if is_console(&proven.startup) => {
                // An operator is let in when no client is, and takes no client's place; nor is one waited for.
                drop(arriving);
                if let Some(console) = Box::pin(console::admit(&self.cx, *proven)).await {
                    Box::pin(Box::new(console).run(Arc::clone(self))).await;
                }
            }
            Proven::Client(proven) => {
                // Counted first, so that two can't take the last place at a time.
                let counted = LetIn::new(self);
                drop(arriving);
                let client = Box::pin(self.admit(*proven)).await?;
                return Some((counted, client));
            }
        }
        None
    }

    /// [`Proxy::prove`], counted among the connections that log in.
    async fn held(&self, place: Place, stream: Stream, peer: Peer) -> Option<Option<Proven>> {
        let tag = place.tag();
        place.hold(self.prove(stream, peer, tag)).await
    }

    /// Up to the proof of who the client is. `None`: the connection ended.
    async fn prove(&self, mut stream: Stream, mut peer: Peer, place: Tag) -> Option<Proven> {
        let settings = self.cx.settings.load_full();
        let general = &settings.general;
        let mut limit = general.client_login_timeout;
        if peer.ip().is_some_and(|ip| general.proxy_protocol_from.iter().any(|net| is_within(*net, ip))) {
            let began = Instant::now();
            (stream, peer) = match handshake::announced(stream, peer, limit).await {
                Ok(announced) => announced,
                Err(error) => return self.refused(peer, None, &error),
            };
            place.is_from(peer);
            if !limit.is_zero() {
                // Still one deadline for all; zero would be none.
                limit = limit.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
            }
        }
        let tls = self.tls.load_full();
        let opened = handshake::open(stream, peer, &tls, limit, general).await;
        let client = match opened {
            Ok(Opened::Startup(client)) => client,
            Ok(Opened::Cancel { pid, key, stream }) => return Some(Proven::Cancel { pid, key, stream }),
            Err(error) => return self.refused(peer, None, &error),
        };
        let asked = PoolKey::of(client.startup());
        // A connection may have waited long before it named its user.
        let settings = self.cx.settings.load_full();
        if let Some(error) = self.refuses(&settings, &client) {
            self.cx.log_refused(&peer, Some(&asked), &error);
            client.refuse(&error).await;
            return None;
        }
        if client.stream().is_some_and(|stream| console::is_our_own(client.startup(), stream)) {
            return match client.let_in() {
                Ok(proven) => Some(Proven::Client(Box::new(proven))),
                Err(error) => self.refused(peer, Some(&asked), &error),
            };
        }
        let found = match Box::pin(self.look_up(&settings, &client)).await {
            Ok(found) => found,
            Err(error) => {
                self.cx.log_refused(&peer, Some(&asked), &error);
                client.refuse(&error).await;
                return None;
            }
        };
        let proven = match client.authenticate(&settings, &self.auth, found).await {
            Ok(proven) => proven,
            Err(error) => return self.refused(peer, Some(&asked), &error),
        };
        if let Some(error) = self.withdrawn(&settings, &proven) {
            login::NotAdmitted::new(proven, error).tell(&self.cx, &peer.to_string()).await;
            return None;
        }
        if proven.startup.replication != Replication::None && is_console(&proven.startup) {
            let error = Error::new(Kind::NotSupported, "the console has no replication connections");
            login::NotAdmitted::new(proven, error).tell(&self.cx, &peer.to_string()).await;
            return None;
        }
        Some(Proven::Client(Box::new(proven)))
    }

    /// A session for a client that proved who it is. `None`: it was refused.
    async fn admit(&self, proven: Authenticated) -> Option<Client> {
        let settings = self.cx.settings.load_full();
        let peer = proven.peer.to_string();
        let admitted = if !self.lets_in(!proven.client.stream().is_unix()) {
            Err(login::NotAdmitted::new(proven, Error::shutting_down()))
        } else if self.let_in() > settings.general.max_client_conn {
            Err(login::NotAdmitted::new(proven, Error::too_many_clients("max_client_conn")))
        } else if proven.startup.replication != Replication::None {
            let replicating = Box::pin(replication::admit(&self.cx, proven)).await;
            replicating.map(|replicating| Client::Replication(Box::new(replicating)))
        } else {
            let admitted = Box::pin(login::admit(&self.cx, proven)).await;
            admitted.map(|login::Admitted { session, server }| Client::Session(session, server))
        };
        match admitted {
            Ok(client) => {
                if settings.general.log_connections {
                    let me = match &client {
                        Client::Session(session, _) => session.me(),
                        Client::Replication(replicating) => replicating.me(),
                    };
                    events::client_login(me.who(&me.place()), me.tls.is_some());
                }
                Some(client)
            }
            Err(not) => {
                not.tell(&self.cx, &peer).await;
                None
            }
        }
    }

    /// It ended before it had a session; said where that is to be heard, and nothing comes of it.
    fn refused(&self, peer: Peer, asked: Option<&PoolKey>, error: &LoginError) -> Option<Proven> {
        if let LoginError::Refused(error) = error {
            self.cx.log_refused(&peer, asked, error);
        }
        None
    }

    /// Checks what is impossible for any user, before the client is asked to prove its own.
    fn refuses(&self, settings: &Settings, client: &Unauthenticated) -> Option<Error> {
        if is_console(client.startup()) {
            return None;
        }
        if !self.lets_in(!client.stream().is_some_and(Stream::is_unix)) {
            return Some(Error::shutting_down());
        }
        let max = settings.general.max_client_conn;
        (self.let_in() >= max).then(|| Error::too_many_clients("max_client_conn"))
    }

    /// A client may take its time to answer: what it was asked for must be what it would be asked for now.
    fn withdrawn(&self, before: &Settings, proven: &Authenticated) -> Option<Error> {
        let now = self.cx.settings.load();
        let good = self.tls.load().is_enough(proven.client.stream()) && !proven.is_outdated(before, &now);
        let what = "what governs this login was changed while it was under way";
        (!good).then(|| Error::new(Kind::InvalidAuthorization, what).with_hint("Connect again."))
    }

    /// Clients that have proved their user, except those of the console.
    pub fn let_in(&self) -> usize {
        self.let_in.load(Ordering::Relaxed)
    }

    /// Once a second: pools keep their limits, SHOW STATS its averages.
    async fn maintain(self: Arc<Self>) {
        let mut tick = tokio::time::interval(averages::TICK);
        loop {
            tick.tick().await;
            self.open_kept_pools();
            for pool in self.cx.pools.all() {
                pool.maintain();
            }
            self.recall_servers();
            if self.cx.learner.waits() {
                // Off the workers' path: a disk may be slow.
                let learner = Arc::clone(&self.cx.learner);
                tokio::task::spawn_blocking(move || learner.flush());
            }
            let now = Instant::now();
            self.remind_drained();
            let settings = self.cx.settings.load();
            self.forget_pools(&settings);
            self.lookups.maintain();
            let period = self.averages.tick(now, settings.general.stats_period, || self.totals());
            if let Some(average) = period.filter(|_| settings.general.log_stats) {
                averages::log(&average);
            }
        }
    }

    /// Clients that keep a server connection without a transaction are to look whether others wait for it.
    fn recall_servers(&self) {
        if !self.cx.pools.all().iter().any(|pool| pool.has_waiters() || pool.is_paused()) {
            return;
        }
        let keeps_one =
            |client: &Arc<ClientShared>| client.state() == ClientState::Idle && client.linked().is_some();
        self.cx.clients.all().into_iter().filter(keeps_one).for_each(|client| client.wake());
    }

    /// Where the entry says whom its connections log in as, `min_pool_size` does not wait for a client.
    fn open_kept_pools(&self) {
        let settings = self.cx.settings.load();
        let min = |entry: &Database| entry.min_pool_size.unwrap_or(settings.general.min_pool_size);
        for (name, entry) in settings.databases.iter().filter(|(_, entry)| min(entry) > 0) {
            let Some(user) = &entry.user else { continue };
            let key = PoolKey::new(name.clone(), user.clone());
            self.cx.pools.get(&key, || {
                // A reload since those were read knows nothing of this pool.
                let now = self.cx.settings.load();
                let (settings, entry) = login::as_of_now(&now, (&**settings, &**entry), &key);
                login::pool_of_entry(settings, &self.cx.server_tls.load(), entry, &key)
            });
        }
    }

    /// Pools that hold nothing go. What they counted is kept for a database that has an entry of its own: names that
    /// the fallback entry serves are the clients' choice, and without end.
    fn forget_pools(&self, settings: &Settings) {
        self.cx.pools.forget_unserved(|name| settings.database(name).is_some());
        self.cx.lanes.forget(&self.cx.pools.unused());
        let mut past = lock(&self.past);
        past.retain(|name, _| settings.databases.contains_key(name));
        self.cx.pools.forget_unused(|pool| {
            let name = &pool.key.database;
            if settings.databases.contains_key(name) {
                past.entry(name.clone()).or_default().add(&show::counters(&pool.stats));
            }
        });
    }
}

fn is_console(startup: &Startup) -> bool {
    CONSOLES.contains(&startup.database.as_str())
}
