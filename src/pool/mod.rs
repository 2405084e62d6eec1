//! Which server connection, when: one logical pool for each (database, user), shared by all workers.
//!
//! Owns: idle connections, the queue of waiting clients (`queue`), the counts and limits, logging in new connections.
//! Never: reads or writes a connection that is checked out.
//!
//! ```text
//!             checkout (idle found)                    release
//!   idle ---------------------------> checked out ----------------> first waiter, or idle
//!     ^                                    | drop without release
//!     | login done, nobody waits           v
//!   logging in <--- launch (below the limit and somebody waits)   closed
//! ```

pub mod checkout;
mod custom;
mod hosts;
mod queue;
pub mod registry;
mod room;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;

use self::hosts::Hosts;
use self::queue::{Failed, Queue, Underway};
use self::room::MakingRoom;

use crate::auth::Credential;
use crate::mutex::lock;
use crate::proto::prepared::ClientNames;
use crate::proto::vars::VarSet;
use crate::server::connect::{Address, ConnectError, Target, connect};
use crate::server::{Reported, ServerConn, ServerShared};
use crate::settings::{Coalesce, Database, LoadBalanceHosts, PoolMode, SessionState};
use crate::telemetry::events;
use crate::telemetry::histogram::Histogram;
use crate::wire::backend::ErrorFields;
use crate::wire::startup::{Replication, Startup};

pub(crate) use checkout::within;
pub use checkout::{Busy, Checkout, CheckoutError};
pub use custom::CustomSettings;
pub use registry::Pools;

/// The key of a pool, or what a client asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    /// The database entry's name as clients ask for it.
    pub database: String,
    /// Of a pool: the user that its connections log in as, when it was made. Of a client: the name in its startup packet.
    pub user: String,
    /// Replication connections have pools of their own: they serve one client and no other.
    pub replication: Replication,
}

impl PoolKey {
    /// For clients that speak SQL.
    pub fn new(database: String, user: String) -> Self {
        Self { database, user, replication: Replication::None }
    }

    /// The pool of a client that asked for this: if the database's entry names a user, all its clients share one pool.
    pub fn pool(&self, entry: &Database) -> Self {
        let user = entry.user.as_ref().unwrap_or(&self.user);
        Self { user: user.clone(), ..self.clone() }
    }

    /// What a client asks for.
    pub fn of(startup: &Startup) -> Self {
        let Startup { database, user, replication, .. } = startup;
        Self { database: database.clone(), user: user.clone(), replication: *replication }
    }
}

/// The settings of one pool; a reload replaces them.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When a server connection goes back to the pool.
    pub mode: PoolMode,
    /// Most connections; 0: no limit.
    pub size: usize,
    /// The name of the setting that `size` comes from, for messages.
    pub size_key: &'static str,
    /// Connections kept open while the pool has clients.
    pub min_size: usize,
    /// `min_size` also holds without clients, because the entry names the user to log in as.
    pub kept_alone: bool,
    /// Extra connections for clients that have waited `reserve_timeout`.
    pub reserve_size: usize,
    /// See `reserve_size`; zero: there are no extra connections.
    pub reserve_timeout: Duration,
    /// Most connections to the whole database; 0: no limit.
    pub max_db_connections: usize,
    /// Most connections of the user over all databases; 0: no limit.
    pub max_user_connections: usize,
    /// Longest wait for a server; zero: for ever.
    pub query_wait_timeout: Duration,
    /// Age at which a free connection is closed; zero: after each use.
    pub server_lifetime: Duration,
    /// Idle time at which a connection is closed; zero: never.
    pub server_idle_timeout: Duration,
    /// Longest pause between tries to log in.
    pub server_login_retry: Duration,
    /// Time for connect and login.
    pub server_connect_timeout: Duration,
    /// Run when a client leaves, in session mode; empty: nothing.
    pub server_reset_query: String,
    /// `server_reset_query` is run in every mode.
    pub server_reset_query_always: bool,
    /// Run on each new connection.
    pub connect_query: Option<String>,
    /// Prepared statements on one connection; 0: names pass untouched.
    pub max_prepared_statements: usize,
    /// What happens with session state that cannot move between connections.
    pub session_state: SessionState,
    /// Idle time after which a connection is checked before a client gets it.
    pub server_check_delay: Duration,
    /// The statement of that check; empty: an empty query.
    pub server_check_query: String,
    /// Longest wait for the end of a flush that is spent polling; zero: none.
    pub busy_poll: Duration,
    /// Oldest idle connection first.
    pub round_robin: bool,
    /// Which host a new connection begins with.
    pub load_balance_hosts: LoadBalanceHosts,
    /// Time between two looks at the addresses of host names; zero: never.
    pub dns_max_ttl: Duration,
    /// Log new connections.
    pub log_connections: bool,
    /// Log connections that close, with the reason.
    pub log_disconnections: bool,
    /// Settings for pouring.
    pub coalesce: Coalesce,
}

impl Settings {
    /// The longest that a connection that was idle may take to answer pgsluice's check: half of `query_wait_timeout`, so that time is left
    /// to try another one; zero is no limit.
    fn patience(&self) -> Duration {
        let limits = [self.server_connect_timeout, self.query_wait_timeout / 2];
        limits.into_iter().filter(|limit| !limit.is_zero()).min().unwrap_or_default()
    }

    /// Does it keep connections while it has no client?
    fn keeps_alone(&self) -> bool {
        self.kept_alone && self.min_size > 0
    }

    /// Most connections, with this many in reserve.
    fn most(&self, reserve: usize) -> usize {
        if self.size == 0 { usize::MAX } else { self.size + reserve }
    }

    /// Number of extra connections allowed when a client has waited this long.
    fn reserve(&self, waited: Duration) -> usize {
        if self.reserve_after().is_some_and(|patience| waited >= patience) { self.reserve_size } else { 0 }
    }

    /// How long a client has to wait before it may have an extra connection. `None`: there are none.
    fn reserve_after(&self) -> Option<Duration> {
        let helps = self.reserve_size > 0 && !self.reserve_timeout.is_zero();
        helps.then_some(self.reserve_timeout)
    }

    /// Prepared statements on one connection while pgsluice uses it for itself: a flush and a query to the catalogue need
    /// a few, whatever clients may keep.
    pub fn max_prepared_of_ours(&self) -> usize {
        self.max_prepared_statements.max(PREPARED_OF_OURS)
    }
}

/// Counters of one pool, as SHOW STATS has them. Updated when a server connection is released, or becomes idle with a pinned client.
#[derive(Debug, Default)]
pub struct Stats {
    /// Transactions.
    pub xact_count: AtomicU64,
    /// Queries (Query, Execute, a Sync without one).
    pub query_count: AtomicU64,
    /// Bytes from clients.
    pub received: AtomicU64,
    /// Bytes to clients.
    pub sent: AtomicU64,
    /// Microseconds in transactions.
    pub xact_time: AtomicU64,
    /// Microseconds in queries.
    pub query_time: AtomicU64,
    /// Microseconds clients waited for a server.
    pub wait_time: AtomicU64,
    /// Histogram of these waits (microseconds).
    pub wait: Histogram,
    /// Times a server was given to a client.
    pub server_assignment_count: AtomicU64,
    /// Parse messages from clients.
    pub client_parse_count: AtomicU64,
    /// Parse messages to servers.
    pub server_parse_count: AtomicU64,
    /// Bind messages from clients.
    pub bind_count: AtomicU64,
    /// Times a connection was kept with its client, by [`PinnedBy`].
    pinned: [AtomicU64; PinnedBy::ALL.len()],
    /// Logins of clients.
    pub login_count: AtomicU64,
    /// Server connections that logged in.
    pub server_login_count: AtomicU64,
    /// Those that could not be opened, or log in.
    pub server_login_failed_count: AtomicU64,
}

impl Stats {
    /// Times that a connection was kept with its client for this reason.
    pub fn pinned(&self, by: PinnedBy) -> &AtomicU64 {
        &self.pinned[by as usize]
    }
}

/// What keeps a client on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinnedBy {
    /// LISTEN.
    Listen,
    /// Session advisory locks.
    AdvisoryLock,
    /// Temporary objects.
    Temporary,
    /// Cursors WITH HOLD.
    HoldCursor,
    /// SQL's PREPARE.
    Prepare,
    /// State that lasts as long as the server process.
    BackendState,
    /// A setting that the server does not show.
    HiddenSetting,
}

impl PinnedBy {
    /// In the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Listen,
        Self::AdvisoryLock,
        Self::Temporary,
        Self::HoldCursor,
        Self::Prepare,
        Self::BackendState,
        Self::HiddenSetting,
    ];

    /// As the metrics show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::AdvisoryLock => "advisory_lock",
            Self::Temporary => "temporary",
            Self::HoldCursor => "hold_cursor",
            Self::Prepare => "prepare",
            Self::BackendState => "backend_state",
            Self::HiddenSetting => "hidden_setting",
        }
    }
}

#[derive(Debug)]
struct Inner {
    // Boxed: a connection moves between sessions, tasks and this list.
    #[expect(clippy::vec_box, reason = "what moves through the queue and out again is the box")]
    idle: Vec<Box<ServerConn>>,
    queue: Queue,
    /// All connections: idle, checked out, being reset.
    total: usize,
    /// Everything that is connected, for the console.
    servers: Vec<Arc<ServerShared>>,
    /// Session mode: the startup settings of the last client that got a connection; the next one most likely asks for the same.
    ordinary: Option<Arc<VarSet>>,
    /// A copy of the pool's settings, for code that holds the lock anyway.
    settings: Arc<Settings>,
    paused: bool,
    /// Until when a client waits for the database to be empty.
    vacate_until: Option<Instant>,
    /// When host names are to be resolved again; `None`: that is being done.
    look_at_names: Option<Instant>,
    /// When the replacement of all connections was last ordered, and why. A login that began before is outdated.
    renewed: Option<(Instant, &'static str)>,
    /// The next connection that becomes free is closed: a sibling pool has waited for its place under a common limit.
    owes_one: bool,
    /// Whether a task opens connections and makes siblings make room for them.
    making_room: MakingRoom,
}

impl Inner {
    fn new(settings: Arc<Settings>, paused: bool) -> Self {
        Self {
            idle: Vec::new(),
            queue: Queue::default(),
            total: 0,
            servers: Vec::new(),
            ordinary: None,
            settings,
            paused,
            vacate_until: None,
            look_at_names: Some(Instant::now()),
            renewed: None,
            owes_one: false,
            making_room: MakingRoom::No,
        }
    }

    /// Has the pool all connections that it may have when a client has waited this long?
    fn is_full(&self, waited: Duration) -> bool {
        let settings = &self.settings;
        self.total + self.queue.logins() >= settings.most(settings.reserve(waited))
    }

    /// Why the connection of this login cannot be used any more.
    fn outdated(&self, login: &Underway) -> Option<&'static str> {
        self.renewed.filter(|(at, _)| login.began <= *at).map(|(_, why)| why)
    }

    /// Notes the startup settings of a client that got a connection; not those with a role, whose connection serves no other client.
    fn note_ordinary(&mut self, startup: Option<&Arc<VarSet>>) {
        if let Some(startup) = startup.filter(|set| !set.names_a_role()) {
            self.ordinary = Some(Arc::clone(startup));
        }
    }

    /// Number of connections with these startup settings that are missing to `min_pool_size`. Idle ones with other settings are of no use to
    /// the next client; but if each client asks for something else, no more than twice as many are kept.
    fn missing(&self, startup: Option<&Arc<VarSet>>) -> usize {
        let most = self.settings.most(0);
        let least = self.settings.min_size.min(most);
        let unfit = self.idle.iter().filter(|server| !server.is_for(startup)).count();
        let all = self.total + self.queue.logins();
        least.saturating_sub(all - unfit).min(least.saturating_mul(2).min(most).saturating_sub(all))
    }
}

/// One pool.
#[derive(Debug)]
pub struct Pool {
    /// Its key.
    pub key: PoolKey,
    /// Its settings; changed by [`Pool::govern`] only.
    pub settings: ArcSwap<Settings>,
    /// The server to log in to, and the user and secret to log in with.
    pub target: ArcSwap<Target>,
    /// Keeps texts prepared here apart from those of other pools ([`own_catalog`](crate::proto::prepared::Statements::own_catalog)).
    pub catalog: u64,
    /// Bytes of text of its clients' named statements.
    pub texts: Arc<AtomicUsize>,
    /// Names of custom settings that the probe asks for.
    pub custom_settings: Arc<CustomSettings>,
    /// The target's hosts, and which of them to begin with.
    hosts: Hosts,
    /// Counters.
    pub stats: Stats,
    /// What a server reports for a set of startup settings, once one was seen. Bounded.
    pub welcome: Mutex<Vec<(Arc<VarSet>, Arc<Reported>)>>,
    /// What `connect_query` sets; `None`: not known yet.
    greeting: ArcSwapOption<VarSet>,
    /// Times that `server_check_query` failed.
    checks_failed: AtomicU64,
    /// New clients are refused.
    pub disabled: AtomicBool,
    /// Clients logged in.
    pub clients: AtomicUsize,
    inner: Mutex<Inner>,
    changed: Notify,
    shared: Arc<registry::Shared>,
    db_count: Arc<AtomicUsize>,
    user_count: Arc<AtomicUsize>,
}

/// Fewest prepared statements that a connection keeps while pgsluice uses it for itself.
const PREPARED_OF_OURS: usize = 8;

/// Score of the connection that holds the client's unnamed statement: more than the same worker and the same settings together.
const AT_HOME: u8 = 4;

/// Welcomes remembered for one pool.
const WELCOMES_MAX: usize = 64;

/// How long PostgreSQL waits for other sessions to leave a database.
const VACATE: Duration = Duration::from_secs(5);

/// What SHOW POOLS counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Clients in the queue, and flushes of their rows.
    pub waiting: usize,
    /// Servers with a client.
    pub active: usize,
    /// Servers free.
    pub idle: usize,
    /// Logging in.
    pub login: usize,
    /// The longest wait now.
    pub maxwait: Duration,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Hot path. An idle connection, if there is one and no client waits for such: the one that holds the unnamed statement of `home`, or the
    /// most recently used one, of this worker and with the wanted settings if possible.
    fn take_idle(
        &self,
        want: &Arc<VarSet>,
        startup: Option<&Arc<VarSet>>,
        home: Option<&ClientNames>,
        worker: usize,
    ) -> Option<Box<ServerConn>> {
        let mut inner = self.lock();
        if inner.paused || inner.queue.waits_for(startup) {
            return None;
        }
        let round_robin = inner.settings.round_robin;
        let most = if home.is_some() { AT_HOME } else { 3 };
        let mut best: Option<(usize, u8)> = None;
        for at in 0..inner.idle.len() {
            let at = if round_robin { at } else { inner.idle.len() - 1 - at };
            let server = &inner.idle[at];
            if !server.is_for(startup) {
                continue;
            }
            let is_home = home.is_some_and(|names| names.unnamed_is_at(&server.names, server.shared.id));
            let score = u8::from(Arc::ptr_eq(&server.vars, want)) * 2 + u8::from(server.worker == worker);
            let score = if is_home { AT_HOME } else { score };
            if best.is_none_or(|(_, s)| score > s) {
                best = Some((at, score));
            }
            if score == most || round_robin {
                break;
            }
        }
        best.map(|(at, _)| {
            inner.note_ordinary(startup);
            inner.idle.remove(at)
        })
    }

    /// Takes a connection out of the counts; `why` is the reason for its end if none is known yet.
    fn forget(&self, shared: &ServerShared, why: &str) {
        self.forget_in(self.lock(), shared, why);
    }

    /// As [`Pool::forget`], under the lock: the next holder of the lock finds it gone from all counts, so that of connections that come back
    /// at the same time no more are closed than necessary.
    fn forget_in(&self, mut inner: MutexGuard<'_, Inner>, shared: &ServerShared, why: &str) {
        inner.total -= 1;
        inner.servers.retain(|s| s.id != shared.id);
        self.db_count.fetch_sub(1, Ordering::Relaxed);
        self.user_count.fetch_sub(1, Ordering::Relaxed);
        let says = inner.settings.log_disconnections;
        drop(inner);
        if says {
            let PoolKey { database, user, .. } = &self.key;
            events::server_closed(database, user, shared.pid, shared.end().unwrap_or(why));
        }
        self.changed.notify_waiters();
    }

    /// Hot path. Gives a free connection to the first waiter, or to the idle ones.
    fn give(self: &Arc<Self>, mut server: Box<ServerConn>, now: Instant) {
        server.fresh = false;
        let inner = self.lock();
        if server.shared.has_lived_for(inner.settings.server_lifetime, now) {
            drop(inner);
            return self.discard(server, "server_lifetime");
        }
        self.give_young(inner, server, now);
    }

    /// As [`Pool::give`], for a connection that has just logged in: it serves at least once, however short `server_lifetime` is.
    fn give_young(
        self: &Arc<Self>,
        mut inner: MutexGuard<'_, Inner>,
        mut server: Box<ServerConn>,
        now: Instant,
    ) {
        if server.shared.close_needed.load(Ordering::Relaxed) || !server.is_reusable() {
            drop(inner);
            return self.discard(server, "left in no state for another client");
        }
        if std::mem::take(&mut inner.owes_one) {
            drop(inner);
            self.close(server, "made room for another");
            self.shared.serve_siblings(&self.key);
            return self.launch_if_needed();
        }
        // In session mode what is free may be for none but those who came later.
        if server.startup.is_some() && !inner.paused && inner.queue.is_owed_to_another(&server, now) {
            drop(inner);
            return self.discard(server, "made room for another");
        }
        server.idle_since = now;
        while !inner.paused {
            let Some(waiter) = inner.queue.take_first(&server) else { break };
            let waited = now.duration_since(waiter.since).as_micros() as u64;
            self.stats.wait_time.fetch_add(waited, Ordering::Relaxed);
            self.stats.wait.record(waited);
            match waiter.tx.send(Ok(server)) {
                Ok(()) => return,
                Err(Ok(back)) => server = back,
                Err(Err(_)) => return,
            }
        }
        let settings = &inner.settings;
        // Also when a reload made the pool smaller.
        if inner.paused
            || inner.total > settings.most(settings.reserve(Duration::MAX))
            || self.is_above(settings)
        {
            let why = if inner.paused { "PAUSE" } else { "more than the limits allow" };
            self.forget_in(inner, &server.shared, why);
            Self::take_leave(server);
            return self.launch_if_needed();
        }
        let has_siblings = settings.max_db_connections > 0 || settings.max_user_connections > 0;
        server.shared.client.store(0, Ordering::Relaxed);
        server.fresh = false;
        inner.idle.push(server);
        drop(inner);
        self.changed.notify_waiters();
        if has_siblings {
            self.shared.serve_siblings(&self.key);
        }
    }

    /// Closes a connection and opens another one if somebody waits.
    fn discard(self: &Arc<Self>, server: Box<ServerConn>, why: &str) {
        self.close(server, why);
        self.launch_if_needed();
    }

    fn close(&self, server: Box<ServerConn>, why: &str) {
        self.forget(&server.shared, why);
        Self::take_leave(server);
    }

    fn take_leave(mut server: Box<ServerConn>) {
        if server.pipeline.is_empty() && !server.broken {
            // Terminate tells a healthy server that this is no accident; what can't be written now is not waited for.
            server.conn.prepare_out();
            crate::wire::frontend::put_empty(&mut server.conn.out, crate::wire::frontend::TERMINATE);
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = server.conn.poll_flush(&mut cx);
        }
    }

    /// One login, as a task of the worker that asked for it.
    async fn login(self: Arc<Self>, login: Underway) {
        let startup = &login.startup;
        let target = self.target.load_full();
        let settings = self.settings.load_full();
        let mut asked = (*target).clone();
        // The server takes them in order: of two values of one setting the client's own is the last.
        let own = startup.iter().flat_map(|set| set.iter());
        asked.startup.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let balance = settings.load_balance_hosts;
        let first = self.hosts.first(asked.hosts.len(), balance);
        asked.hosts.rotate_left(first);
        let shunned = self.hosts.shunned(Instant::now());
        match connect(&asked, &shunned, settings.server_connect_timeout).await {
            Ok(found) => {
                let at = target.hosts.iter().position(|host| *host == found.host);
                self.hosts.had(&found.host, at, balance);
                self.shun(&found.unreached, settings.server_login_retry);
                self.abandon(&found.passed_over);
                let worker = registry::current_worker();
                let mut server = Box::new(ServerConn::new(
                    found,
                    target,
                    startup.clone(),
                    Arc::clone(&self.shared.none),
                    worker,
                ));
                let greeted = within(settings.server_connect_timeout, self.greet(&mut server)).await;
                match greeted {
                    Some(Ok(())) => self.logged_in(server, &login),
                    Some(Err(why)) => self.login_failed(ConnectError::Greeting(why), &login),
                    None => self.login_failed(ConnectError::Timeout, &login),
                }
            }
            Err(error) => {
                if let ConnectError::Unfit { passed_over, .. } = &error {
                    self.abandon(passed_over);
                }
                self.login_failed(error, &login);
            }
        }
    }

    /// Counts a failed `server_check_query`, and logs it rarely enough that a broken one does not flood the log.
    fn check_failed(&self, why: &str) {
        let failed = self.checks_failed.fetch_add(1, Ordering::Relaxed) + 1;
        if failed.is_power_of_two() {
            events::server_check_query_failed(&self.key.database, &self.key.user, why, failed);
        }
    }

    /// This server does not answer: its connections are given up, so that clients log in again, or soon learn that they cannot.
    pub fn leave_silent(self: &Arc<Self>, address: &Address) {
        let closed = self.retire("the server does not answer", |server| server.address == *address);
        if closed > 0 {
            events::server_silent(&self.key.database, &self.key.user, address, closed);
        }
    }

    /// These hosts could not be reached: others are tried first for a while.
    fn shun(&self, hosts: &[(String, ConnectError)], pause: Duration) {
        if pause.is_zero() {
            return;
        }
        for (host, why) in hosts {
            if self.hosts.shun(host, Instant::now() + pause) {
                events::host_shunned(&self.key.database, &self.key.user, host, why);
            }
        }
    }

    /// These servers do not match `target_session_attrs` (any more): connections to them serve no further client.
    fn abandon(self: &Arc<Self>, servers: &[Address]) {
        let closed = self.retire("target_session_attrs", |server| servers.contains(&server.address));
        if closed > 0 {
            self.forget_welcomes();
            let servers: Vec<String> = servers.iter().map(Address::to_string).collect();
            events::servers_abandoned(&self.key.database, &self.key.user, &servers.join(", "), closed);
        }
    }

    /// Runs `connect_query` on a connection on which nothing is set, and remembers what it sets: clients begin with these values, and RESET
    /// returns to them. Otherwise they would be lost after the first client that sets something.
    ///
    /// # Errors
    /// Why the connection cannot be used afterwards; drop it.
    ///
    /// Cancel safety: none; drop the connection if this is cancelled.
    pub async fn greet(&self, server: &mut ServerConn) -> Result<(), String> {
        let settings = self.settings.load_full();
        let Some(query) = &settings.connect_query else { return Ok(()) };
        // As PgBouncer: a failure is only logged.
        match server.simple(query).await.map(|reply| reply.error) {
            Ok(None) => {}
            Ok(Some(error)) => {
                let why = ErrorFields::new(&error).field(b'M').unwrap_or_default();
                events::connect_query_failed(&self.key.database, &String::from_utf8_lossy(why));
            }
            Err(lost) => return Err(lost.why),
        }
        server.simple("").await.map_err(|lost| lost.why)?;
        if !server.is_reusable() {
            return Err("a transaction is open".to_owned());
        }
        if server.startup.is_some() {
            return Ok(());
        }
        self.custom_settings.note(query.as_bytes());
        let mut names = Vec::new();
        self.custom_settings.add_to(&mut names);
        let probed = server.probe(&names, false, settings.max_prepared_of_ours()).await;
        let found = probed.map_err(|lost| lost.why)?;
        self.custom_settings.refuse(&found.refused);
        let set = self.shared.vars.intern(found.settings.iter().map(|(n, v)| (n.as_str(), v.as_str())));
        (server.vars, server.since) = (Arc::clone(&set), crate::proto::vars::now());
        // A reload may have put another query in its place meanwhile.
        if self.settings.load().connect_query == settings.connect_query {
            self.greeting.store(Some(set));
        }
        Ok(())
    }

    /// The values that `connect_query` set on the last new connection; one is opened if there was none yet.
    ///
    /// # Errors
    /// As [`Pool::checkout`].
    ///
    /// Cancel safety: as [`Pool::checkout`].
    pub async fn greeting(self: &Arc<Self>) -> Result<Arc<VarSet>, CheckoutError> {
        let known = || self.greeting.load_full();
        if self.settings.load().connect_query.is_none() {
            return Ok(Arc::clone(&self.shared.none));
        }
        if known().is_none() {
            self.checkout(&self.shared.none, None).await?.release(Instant::now());
        }
        Ok(known().unwrap_or_else(|| Arc::clone(&self.shared.none)))
    }

    fn logged_in(self: &Arc<Self>, server: Box<ServerConn>, login: &Underway) {
        self.stats.server_login_count.fetch_add(1, Ordering::Relaxed);
        if self.settings.load().log_connections {
            let ServerShared { pid, tls, .. } = *server.shared;
            events::server_connected(&self.key.database, &self.key.user, pid, tls.is_some());
        }
        let outdated = {
            let mut inner = self.lock();
            inner.queue.succeeded(login);
            inner.note_ordinary(login.startup.as_ref());
            inner.total += 1;
            inner.servers.push(Arc::clone(&server.shared));
            inner.outdated(login)
        };
        match outdated {
            Some(why) => drop(server.shared.close_when_free(why)),
            None => {
                self.remember_welcome(server.startup.as_ref().unwrap_or(&self.shared.none), &server.reported);
            }
        }
        self.give_young(self.lock(), server, Instant::now());
        self.launch_if_needed();
    }

    /// A server's refusal of startup settings goes to the clients that asked for them; a failure that may pass by itself (the
    /// network, a server that starts) is tried again until their `query_wait_timeout`.
    fn login_failed(self: &Arc<Self>, error: ConnectError, login: &Underway) {
        self.stats.server_login_failed_count.fetch_add(1, Ordering::Relaxed);
        events::server_login_failed(&self.key.database, &self.key.user, &error);
        let error = Arc::new(error);
        self.db_count.fetch_sub(1, Ordering::Relaxed);
        self.user_count.fetch_sub(1, Ordering::Relaxed);
        let failed = {
            let mut inner = self.lock();
            // One that is to be closed serves nobody any more who waits.
            let alive = inner.servers.iter().any(|server| !server.close_needed.load(Ordering::Relaxed));
            let longest = inner.settings.server_login_retry;
            // What cannot be had is not kept for anybody.
            inner
                .ordinary
                .take_if(|kept| login.startup.as_ref().is_some_and(|asked| Arc::ptr_eq(kept, asked)));
            if inner.outdated(login).is_some() {
                // What it met says nothing of the next one.
                inner.queue.end(login);
                Failed::Pause(Duration::ZERO)
            } else {
                inner.queue.failed(login, &error, alive, longest)
            }
        };
        self.changed.notify_waiters();
        match failed {
            Failed::Nothing => {}
            Failed::Tell(waiters) => {
                for waiter in waiters {
                    let _ = waiter.tx.send(Err(CheckoutError::Login(Arc::clone(&error))));
                }
                self.launch_if_needed();
            }
            Failed::TryAgain(pause) => {
                self.launch_in(pause);
                self.launch_if_needed();
            }
            Failed::Pause(pause) => self.launch_in(pause),
        }
    }

    fn launch_in(self: &Arc<Self>, pause: Duration) {
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            pool.launch_if_needed();
        });
    }

    /// Remembers what a server reported right after login (or after the settings were applied), for later clients.
    pub fn remember_welcome(&self, vars: &Arc<VarSet>, reported: &Arc<Reported>) {
        let mut known = lock(&self.welcome);
        known.retain(|(k, _)| !Arc::ptr_eq(k, vars));
        if known.len() >= WELCOMES_MAX {
            known.remove(0);
        }
        known.push((Arc::clone(vars), Arc::clone(reported)));
    }

    /// The welcome for these startup settings, if it is known.
    pub fn known_welcome(&self, vars: &Arc<VarSet>) -> Option<Arc<Reported>> {
        let known = lock(&self.welcome);
        known.iter().find(|(k, _)| Arc::ptr_eq(k, vars)).map(|(_, r)| Arc::clone(r))
    }

    /// Uses the credential that a client's own login has proved for logins to servers from now on. Does not undo what a reload changes at
    /// the same moment (the server's address, say).
    pub fn log_in_with(&self, credential: &Credential) {
        if !self.target.load().credential.proves_the_same(credential) {
            self.target.rcu(|now| Target { credential: credential.clone(), ..Target::clone(now) });
        }
    }

    /// A reload.
    pub fn govern(&self, settings: Settings) {
        let settings = Arc::new(settings);
        if self.settings.load().connect_query != settings.connect_query {
            self.greeting.store(None);
        }
        self.lock().settings = Arc::clone(&settings);
        self.settings.store(settings);
    }

    /// Its database is no more: what is idle closes, and nothing is kept, a login that was under way neither.
    pub fn give_up(self: &Arc<Self>) {
        let server_idle_timeout = Duration::from_nanos(1);
        self.govern(Settings { min_size: 0, server_idle_timeout, ..(**self.settings.load()).clone() });
        self.reconnect("the database was removed from the configuration");
    }

    /// What all pools share.
    pub fn shared(&self) -> &Arc<registry::Shared> {
        &self.shared
    }

    /// Somebody waits for a server.
    pub fn has_waiters(&self) -> bool {
        !self.lock().queue.is_empty()
    }

    /// Is this connection to come back as soon as it is free, because somebody waits for one or because it is to be closed?
    pub fn wants_back(&self, server: &ServerConn) -> bool {
        let shared = &server.shared;
        let inner = self.lock();
        inner.paused
            || inner.owes_one
            || !inner.queue.is_empty()
            || shared.close_needed.load(Ordering::Relaxed)
            || shared.role_doubted.load(Ordering::Relaxed)
            || shared.cancels.load(Ordering::Relaxed) > 0
    }

    /// For the console.
    pub fn counts(&self) -> Counts {
        let inner = self.lock();
        let waiting = || inner.queue.waiters().filter(|w| !w.asks);
        Counts {
            waiting: waiting().count(),
            active: inner.total - inner.idle.len(),
            idle: inner.idle.len(),
            login: inner.queue.logins(),
            maxwait: waiting().next().map_or(Duration::ZERO, |w| w.since.elapsed()),
        }
    }

    /// Everything connected, for the console, and since when it is free, if it is.
    pub fn servers(&self) -> Vec<(Arc<ServerShared>, Option<Instant>)> {
        let inner = self.lock();
        let free: HashMap<u64, Instant> =
            inner.idle.iter().map(|server| (server.shared.id, server.idle_since)).collect();
        inner.servers.iter().map(|shared| (Arc::clone(shared), free.get(&shared.id).copied())).collect()
    }

    /// PAUSE: free connections close, nobody gets one until [`Pool::resume`].
    pub fn pause(self: &Arc<Self>) {
        let idle = {
            let mut inner = self.lock();
            inner.paused = true;
            std::mem::take(&mut inner.idle)
        };
        self.changed.notify_waiters();
        for server in idle {
            self.discard(server, "PAUSE");
        }
    }

    /// Ready when the pool is paused, or when it is not.
    ///
    /// Cancel safety: nothing is held; call it again.
    pub async fn until_paused(&self, paused: bool) {
        self.until(|inner| inner.paused == paused).await;
    }

    /// Ready when no connection is open or being opened any more, or when somebody says RESUME; used after [`Pool::pause`].
    ///
    /// Cancel safety: nothing is held; call it again.
    pub async fn drained(&self) {
        self.until(|inner| !inner.paused || inner.total + inner.queue.logins() == 0).await;
    }

    /// Ready when no connection is left that is to be replaced; used after [`Pool::reconnect`].
    ///
    /// Cancel safety: nothing is held; call it again.
    pub async fn replaced(&self) {
        self.until(|inner| !inner.servers.iter().any(|s| s.close_needed.load(Ordering::Relaxed))).await;
    }

    /// Cancel safety: nothing is held; call it again.
    async fn until(&self, reached: impl Fn(&Inner) -> bool) {
        loop {
            let changed = self.changed.notified();
            if reached(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// One client more, of that name, until what is returned is dropped.
    pub fn count_in(self: &Arc<Self>, user: &str) -> CountedIn {
        let of_user = self.shared.clients_of(user);
        self.clients.fetch_add(1, Ordering::Relaxed);
        of_user.fetch_add(1, Ordering::Relaxed);
        CountedIn { pool: Arc::clone(self), of_user }
    }

    /// No client, no connection, nobody who waits for one, none to be kept.
    pub fn is_unused(&self) -> bool {
        let inner = self.lock();
        inner.total + inner.queue.logins() == 0
            && !inner.settings.keeps_alone()
            && inner.queue.is_empty()
            && self.clients.load(Ordering::Relaxed) == 0
    }

    /// RESUME.
    pub fn resume(self: &Arc<Self>) {
        self.lock().paused = false;
        self.changed.notify_waiters();
        self.launch_if_needed();
    }

    /// True between PAUSE and RESUME.
    pub fn is_paused(&self) -> bool {
        self.lock().paused
    }

    /// RECONNECT and its kin: connections close as they become free.
    pub fn reconnect(self: &Arc<Self>, why: &'static str) {
        self.lock().renewed = Some((Instant::now(), why));
        self.forget_welcomes();
        self.retire(why, |_| true);
    }

    /// What new connections report may be something else.
    fn forget_welcomes(&self) {
        lock(&self.welcome).clear();
    }

    /// The addresses of host names are asked for again, if that is due and somebody is connected.
    fn look_at_names_if_due(self: &Arc<Self>, settings: &Settings) {
        let mut inner = self.lock();
        let due = !settings.dns_max_ttl.is_zero() && inner.total > 0;
        if due && inner.look_at_names.is_some_and(|at| at <= Instant::now()) {
            inner.look_at_names = None;
            drop(inner);
            tokio::spawn(Arc::clone(self).look_at_names(settings.dns_max_ttl));
        }
    }

    /// Connections to addresses that their host's name has no more close as they become free.
    async fn look_at_names(self: Arc<Self>, pause: Duration) {
        let used: Vec<Address> = self.lock().servers.iter().map(|server| server.address.clone()).collect();
        let gone = crate::server::connect::gone(&self.target.load_full(), &used).await;
        let why = "its host's name has another address";
        let closed = self.retire(why, |server| gone.contains(&server.address));
        if closed > 0 {
            self.forget_welcomes();
            events::addresses_gone(&self.key.database, &self.key.user, closed);
        }
        self.lock().look_at_names = Some(Instant::now() + pause);
    }

    /// Connections of which `which` is true close as they become free. How many there are that were to stay until now.
    fn retire(self: &Arc<Self>, why: &'static str, which: impl Fn(&ServerShared) -> bool) -> usize {
        let (retired, idle) = {
            let mut inner = self.lock();
            let chosen = inner.servers.iter().filter(|server| which(server));
            let retired = chosen.filter(|server| server.close_when_free(why)).count();
            let close = |server: &mut Box<ServerConn>| server.shared.close_needed.load(Ordering::Relaxed);
            (retired, inner.idle.extract_if(.., close).collect::<Vec<_>>())
        };
        for server in idle {
            self.discard(server, why);
        }
        retired
    }

    /// Somebody drops, renames or copies the database: if no client is in it, none of our connections keeps it busy.
    /// `clients`: those who may stay. PostgreSQL looks again for five seconds, and so do we.
    pub fn vacate(self: &Arc<Self>, clients: usize) {
        self.lock().vacate_until = Some(Instant::now() + VACATE);
        self.vacate_if_unused(clients);
    }

    fn vacate_if_unused(self: &Arc<Self>, clients: usize) {
        let wanted = self.lock().vacate_until.is_some_and(|until| Instant::now() < until);
        if wanted && self.clients.load(Ordering::Relaxed) <= clients {
            self.reconnect("somebody creates, alters or drops the database");
        }
    }

    /// Once a second: what is too old, idle too long or closed by the server goes, `min_pool_size` is kept, stalled waits go on.
    pub fn maintain(self: &Arc<Self>) {
        let settings = self.settings.load_full();
        self.vacate_if_unused(0);
        self.look_at_names_if_due(&settings);
        let stale = {
            let mut inner = self.lock();
            inner.queue.forget_gone();
            let mut spare = inner.total.saturating_sub(settings.min_size);
            let now = Instant::now();
            let mut stale = Vec::new();
            let mut at = 0;
            while at < inner.idle.len() {
                let server = &mut inner.idle[at];
                server.broken = !server.check_idle();
                let old = settings.server_lifetime > Duration::ZERO
                    && server.shared.has_lived_for(settings.server_lifetime, now);
                let unused = settings.server_idle_timeout > Duration::ZERO
                    && now.duration_since(server.idle_since) > settings.server_idle_timeout;
                if server.broken || old || (unused && spare > 0) {
                    spare = spare.saturating_sub(1);
                    match server.broken {
                        true => server.note_last_words(),
                        false if old => server.shared.note_end("server_lifetime"),
                        false => server.shared.note_end("server_idle_timeout"),
                    }
                    stale.push(inner.idle.remove(at));
                } else {
                    at += 1;
                }
            }
            stale
        };
        let gone = stale.iter().filter(|server| server.broken).count();
        if gone > 0 {
            events::servers_gone(&self.key.database, &self.key.user, gone);
        }
        for server in stale {
            self.discard(server, "idle");
        }
        self.keep_minimum(&settings);
        self.launch_if_needed();
    }

    fn keep_minimum(self: &Arc<Self>, settings: &Settings) {
        if self.clients.load(Ordering::Relaxed) == 0 && !settings.keeps_alone() {
            return;
        }
        let now = Instant::now();
        let missing = {
            let mut inner = self.lock();
            let vacated = inner.vacate_until.is_some_and(|until| now < until);
            if inner.paused || vacated || inner.queue.hesitates(settings.server_login_retry, now) {
                return;
            }
            let startup = (settings.mode == PoolMode::Session)
                .then(|| inner.ordinary.clone().unwrap_or_else(|| Arc::clone(&self.shared.none)));
            let missing = inner.missing(startup.as_ref()).min(inner.queue.tries());
            let granted = (0..missing).take_while(|_| self.take_slot(settings));
            granted.map(|_| inner.queue.begin(startup.clone())).collect::<Vec<_>>()
        };
        for login in missing {
            tokio::spawn(Arc::clone(self).login(login));
        }
    }
}

/// A client in its pool's count, and in that of its name.
#[derive(Debug)]
pub struct CountedIn {
    pool: Arc<Pool>,
    of_user: Arc<AtomicUsize>,
}

impl Drop for CountedIn {
    fn drop(&mut self) {
        self.pool.clients.fetch_sub(1, Ordering::Relaxed);
        self.of_user.fetch_sub(1, Ordering::Relaxed);
    }
}
