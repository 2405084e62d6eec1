//! Listeners, accept, workers, reload, drain; builds all the other rooms.
//!
//! Owns: threads and signals. Each worker is a thread with a runtime of its own; a client lives on one worker from
//! accept to end, server connections move between workers with the pool. Never: understands a message, but for the
//! console's own.
//!
//! ```text
//! stop       start, signals, the end         reload     a new configuration into what runs
//! listen     addresses, accept               console    one client of the console
//! workers    threads                         show, act  what it asks, what it orders
//! ```

mod act;
mod averages;
mod console;
mod listen;
mod reload;
mod show;
mod stop;
mod workers;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::auth::Auth;
use crate::cancel::{ClientState, Registry, Signal};
use crate::client::handshake::{self, LoginError, Opened, Unauthenticated};
use crate::client::{Context, login};
use crate::coalesce::Lanes;
use crate::error::Error;
use crate::learn::Learner;
use crate::net::{Acceptor, Peer, Stream};
use crate::pool::Pools;
use crate::settings::Settings;
use crate::telemetry::events;

use averages::Averages;
use stop::Stopping;
use workers::{CountedIn, Worker, raise_file_limit, runtime, start_workers};

pub use stop::Running;

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
    stopping: Stopping,
    /// One reload at a time.
    reloading: Mutex<()>,
    averages: Averages,
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
        learner: Arc::new(Learner::default()),
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
        stopping: Stopping::default(),
        reloading: Mutex::default(),
        averages: Averages::default(),
    });
    let (addrs, sockets) = listen::listen(&proxy, &general)?;
    let janitor = Arc::clone(&proxy);
    proxy.workers[0].handle.spawn(async move { janitor.maintain().await });
    if let Some(pidfile) = &general.pidfile {
        std::fs::write(pidfile, format!("{}\n", std::process::id()))
            .map_err(|e| ServeError(format!("pidfile {}: {e}", pidfile.display())))?;
    }
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    Ok(Running::new(proxy, addrs, threads, sockets))
}

/// What a login led to.
enum LoggedIn {
    Session(Box<login::Admitted>),
    Console(Box<console::Console>),
}

impl Proxy {
    /// One connection from accept to end. What is large is boxed and gone before the session idles.
    async fn connection(self: Arc<Self>, stream: Stream, peer: Peer) {
        let counted = CountedIn::new(&self.connections);
        match Box::pin(self.log_in(stream, peer)).await {
            Some(LoggedIn::Session(admitted)) => {
                let login::Admitted { session, server } = *admitted;
                session.run(server).await;
                self.stopping.client_left();
            }
            Some(LoggedIn::Console(console)) => {
                // An operator is let in when no client is, and takes no client's place.
                drop(counted);
                console.run(Arc::clone(&self)).await;
            }
            None => {}
        }
    }

    /// The login. `None`: it was a cancel request, or it ended.
    async fn log_in(self: &Arc<Self>, stream: Stream, peer: Peer) -> Option<LoggedIn> {
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
        if proven.startup.replication {
            login::refuse_replication(&self.cx, proven).tell(&peer.to_string()).await;
            return None;
        }
        if CONSOLES.contains(&proven.startup.database.as_str()) {
            return console::admit(&self.cx, proven).await.map(Box::new).map(LoggedIn::Console);
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
                Some(LoggedIn::Session(Box::new(admitted)))
            }
            Err(not) => {
                not.tell(&peer.to_string()).await;
                None
            }
        }
    }

    fn refuses(&self, settings: &Settings, client: &Unauthenticated) -> Option<Error> {
        if CONSOLES.contains(&client.startup().database.as_str()) {
            return None;
        }
        if self.is_draining() {
            return Some(Error::shutting_down());
        }
        let max = settings.general.max_client_conn;
        (self.connections() > max).then(|| Error::too_many_clients("max_client_conn"))
    }

    /// Connections, logged in or not.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Once a second: pools keep their limits, clients their timeouts, SHOW STATS its averages.
    async fn maintain(self: Arc<Self>) {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tick.tick().await;
            for pool in self.cx.pools.all() {
                pool.maintain();
            }
            if self.cx.learner.waits() {
                // Off the workers' path: a disk may be slow.
                let learner = Arc::clone(&self.cx.learner);
                tokio::task::spawn_blocking(move || learner.flush());
            }
            let now = Instant::now();
            self.enforce_timeouts(now);
            self.remind_drained();
            let settings = self.cx.settings.load();
            self.cx.pools.forget_unserved(|name| settings.database(name).is_some());
            self.cx.pools.forget_unused();
            self.averages.tick(now, settings.general.stats_period, || self.totals());
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

fn refused(peer: Peer, error: &LoginError) -> Option<LoggedIn> {
    if let LoginError::Refused(error) = error {
        events::client_refused(&peer.to_string(), error.message(), error.log().unwrap_or_default());
    }
    None
}
