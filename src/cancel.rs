//! Clients as others see them: cancel keys, the console's view, signals to a session.
//!
//! Owns: the registry and the link from a client to the server connection it uses now. A cancel request goes to that
//! connection only while the link stands, and the connection stays out of the pool until the request has arrived.
//! A request for a client of another process is passed on to that process ([`peers`]). Never: how a session ends (it is told).
//! See "Canceling Requests in Progress" in the protocol chapter.

mod peers;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use zeroize::Zeroizing;

pub use peers::{Peers, Way, onward};

use crate::limits::{CANCELS_MAX, CANCELS_PER_SERVER_MAX, PROCESS_IDS_OURS};
use crate::mutex::lock;
use crate::net::stream::Peer;
use crate::pool::PoolKey;
use crate::server::{ServerShared, next_id};
use crate::telemetry::events::{self, Who};
use crate::wire::CancelKey;

/// What a client does now. The console counts these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ClientState {
    /// No request is open; it has no server connection unless session state pins it to one.
    Idle,
    /// In the pool's queue.
    Waiting,
    /// It has a server connection.
    Active,
    /// It has a server connection, and is idle inside a transaction block.
    IdleInTransaction,
    /// Its rows wait in a batch, or are on their way.
    Coalescing,
}

impl ClientState {
    /// As the console shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::IdleInTransaction => "idle_in_transaction",
            Self::Coalescing => "coalescing",
        }
    }

    fn from_u8(value: u8) -> Self {
        match value {
            1 => Self::Waiting,
            2 => Self::Active,
            3 => Self::IdleInTransaction,
            4 => Self::Coalescing,
            _ => Self::Idle,
        }
    }
}

/// What others tell a session: to end, or that something changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Signal {
    /// KILL, KILL_CLIENT, `shutdown_timeout`.
    Kill = 1,
    /// The process drains: end when idle.
    Drain = 2,
    /// `client_idle_timeout`
    IdleTimeout = 4,
    /// `idle_transaction_timeout`
    IdleTransactionTimeout = 8,
    /// `query_timeout`
    QueryTimeout = 16,
    /// `transaction_timeout`
    TransactionTimeout = 32,
    /// A cancel request came while no server was linked.
    Cancel = 64,
    /// The settings were read again.
    Reload = 128,
    /// `server_fast_close`: the linked server connection is to close as soon as it is free.
    ServerOutdated = 256,
}

/// One client, as others see it.
#[derive(Debug)]
pub struct ClientShared {
    /// Never reused within a process.
    pub id: u64,
    /// The process id it was told.
    pub pid: i32,
    /// The secret it was told.
    pub cancel_key: CancelKey,
    /// The database that it asked for, and its user.
    pub asked: PoolKey,
    /// It is on the console.
    pub console: bool,
    /// Where from; `None`: Unix socket.
    pub peer: Option<SocketAddr>,
    /// Our end.
    pub local: Option<SocketAddr>,
    /// TLS version and cipher suite, if any.
    pub tls: Option<&'static str>,
    /// Login.
    pub connected: Instant,
    /// What it calls itself.
    pub application_name: Mutex<Box<str>>,
    /// Named prepared statements.
    pub statements: AtomicU64,
    /// Its [`ClientState`] and when that began: a [`Stamp`].
    state: AtomicU64,
    /// When its transaction began: a [`Stamp`] whose state is not used.
    xact: AtomicU64,
    /// Number of answers and transactions that ended, by which the janitor sees activity: the session itself reads no clock.
    turns: AtomicU32,
    xact_turns: AtomicU32,
    watched: Mutex<Watched>,
    signals: AtomicU16,
    gone: AtomicBool,
    waker: Mutex<Option<Waker>>,
    link: Mutex<Option<Arc<ServerShared>>>,
    struck: AtomicBool,
}

/// A state, and when it began, in milliseconds from the login. In one word, so that a reader never sees one state with another's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(u64);

impl Stamp {
    /// The time is that of the state's beginning; otherwise it began later, and no clock was read.
    const DATED: u64 = 1 << 7;
    const TIME_FROM: u32 = 8;

    fn new(state: ClientState, millis: u64) -> Self {
        Self(millis << Self::TIME_FROM | Self::DATED | state as u64)
    }

    /// The stamp with a new state, whose time is not known.
    fn turned(self, state: ClientState) -> Self {
        Self(self.since() << Self::TIME_FROM | state as u64)
    }

    fn state(self) -> ClientState {
        ClientState::from_u8(self.0 as u8 & !(Self::DATED as u8))
    }

    fn since(self) -> u64 {
        self.0 >> Self::TIME_FROM
    }

    fn is_dated(self) -> bool {
        self.0 & Self::DATED != 0
    }

    /// The state's age when `passed` has gone by since the login.
    fn age(self, passed: Duration) -> Duration {
        passed.saturating_sub(Duration::from_millis(self.since()))
    }
}

/// What the janitor saw last, and when it saw it first.
#[derive(Debug)]
struct Watched {
    turn: Option<(Stamp, u32)>,
    turn_at: Instant,
    xact: Option<(Stamp, u32)>,
    xact_at: Instant,
}

impl Watched {
    fn new(now: Instant) -> Self {
        Self { turn: None, turn_at: now, xact: None, xact_at: now }
    }
}

impl ClientShared {
    /// The only function that sets a client's state.
    pub fn set_state(&self, state: ClientState, now: Instant) {
        if state == ClientState::Idle {
            self.no_transaction();
        }
        self.put(Stamp::new(state, self.millis(now)));
    }

    fn stamp(&self) -> Stamp {
        Stamp(self.state.load(Ordering::Acquire))
    }

    /// Stores the state, after the transaction's stamp: whoever reads the new state reads that, too.
    fn put(&self, stamp: Stamp) {
        self.state.store(stamp.0, Ordering::Release);
    }

    /// No transaction runs: the time in its stamp is not that of the next one.
    fn no_transaction(&self) {
        self.xact.store(self.xact.load(Ordering::Relaxed) & !Stamp::DATED, Ordering::Relaxed);
    }

    fn millis(&self, now: Instant) -> u64 {
        now.duration_since(self.connected).as_millis() as u64
    }

    /// Hot path. Sets its state while it has one server connection, without the time; `turns` and `xact_turns` change with each answer
    /// and each transaction that ended.
    pub fn show(&self, state: ClientState, turns: u32, xact_turns: u32) {
        if state == ClientState::Idle || self.xact_turns.load(Ordering::Relaxed) != xact_turns {
            self.no_transaction();
            self.xact_turns.store(xact_turns, Ordering::Relaxed);
        }
        let before = self.stamp();
        if before.state() != state || self.turns.load(Ordering::Relaxed) != turns {
            self.turns.store(turns, Ordering::Relaxed);
            self.put(before.turned(state));
        }
    }

    /// Hot path. Sets the state to idle, without the time.
    pub fn rest(&self) {
        self.no_transaction();
        self.put(self.stamp().turned(ClientState::Idle));
    }

    /// For the janitor, called periodically: the state, its least age, and the least age of its transaction. Where no clock was read both
    /// ages count from the first call that saw them.
    pub fn watch(&self, now: Instant) -> (ClientState, Duration, Duration) {
        let stamp = self.stamp();
        let (state, begun) = (stamp.state(), Stamp(self.xact.load(Ordering::Relaxed)));
        let turn = (stamp, self.turns.load(Ordering::Relaxed));
        let xact = (begun, self.xact_turns.load(Ordering::Relaxed));
        let mut watched = lock(&self.watched);
        if watched.turn != Some(turn) {
            (watched.turn, watched.turn_at) = (Some(turn), now);
        }
        // Between transactions none runs.
        if state == ClientState::Idle {
            watched.xact = None;
        } else if watched.xact != Some(xact) {
            (watched.xact, watched.xact_at) = (Some(xact), now);
        }
        let passed = now.duration_since(self.connected);
        let age = |stamp: Stamp, seen: Instant| {
            if stamp.is_dated() { stamp.age(passed) } else { now.duration_since(seen) }
        };
        let in_transaction =
            if state == ClientState::Idle { Duration::ZERO } else { age(begun, watched.xact_at) };
        (state, age(stamp, watched.turn_at), in_transaction)
    }

    /// The client's address, for the log.
    pub fn place(&self) -> String {
        self.peer.map_or(Peer::Unix, Peer::Tcp).to_string()
    }

    /// As the log names it, at its [`place`](Self::place).
    pub fn who<'a>(&'a self, place: &'a str) -> Who<'a> {
        let PoolKey { database, user, .. } = &self.asked;
        Who { client: self.id, user, database, peer: place }
    }

    /// What it does.
    pub fn state(&self) -> ClientState {
        self.stamp().state()
    }

    /// Sets its `application_name`.
    pub fn rename(&self, name: Box<str>) {
        *lock(&self.application_name) = name;
    }

    /// Hot path. A transaction begins, in this state.
    pub fn begin(&self, state: ClientState, now: Instant) {
        let stamp = Stamp::new(state, self.millis(now));
        self.xact.store(stamp.0, Ordering::Relaxed);
        self.put(stamp);
    }

    /// Hot path. A transaction begins on a server, with a request that may have waited for it since `asked`; `turns` and
    /// `xact_turns` are those of [`Self::show`] so far.
    pub fn begin_linked(&self, asked: Instant, now: Instant, turns: u32, xact_turns: u32) {
        self.turns.store(turns, Ordering::Relaxed);
        self.xact_turns.store(xact_turns, Ordering::Relaxed);
        self.xact.store(Stamp::new(ClientState::Active, self.millis(now)).0, Ordering::Relaxed);
        self.put(Stamp::new(ClientState::Active, self.millis(asked)));
    }

    /// As [`Self::begin_linked`], for a transaction that began before a server was needed.
    pub fn begin_held(&self, now: Instant, turns: u32, xact_turns: u32) {
        self.turns.store(turns, Ordering::Relaxed);
        self.xact_turns.store(xact_turns, Ordering::Relaxed);
        self.begin(ClientState::IdleInTransaction, now);
    }

    /// The ages of its state and of its transaction.
    pub fn ages(&self, now: Instant) -> (Duration, Duration) {
        let passed = now.duration_since(self.connected);
        (self.stamp().age(passed), Stamp(self.xact.load(Ordering::Relaxed)).age(passed))
    }

    /// Sends the session a signal and wakes it.
    pub fn signal(&self, signal: Signal) {
        self.signals.fetch_or(signal as u16, Ordering::AcqRel);
        self.wake();
    }

    /// Wakes the session, to check again what it waits for.
    pub fn wake(&self) {
        if let Some(waker) = lock(&self.waker).as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Hot path. Has it a signal?
    pub fn is_signalled(&self) -> bool {
        self.signals.load(Ordering::Acquire) != 0
    }

    /// Has it a cancel request?
    pub fn is_cancelled(&self) -> bool {
        self.signals.load(Ordering::Acquire) & Signal::Cancel as u16 != 0
    }

    /// Has it a signal that ends the session in any state?
    pub fn must_end(&self) -> bool {
        const MAY_WAIT: u16 = Signal::Cancel as u16
            | Signal::Drain as u16
            | Signal::Reload as u16
            | Signal::ServerOutdated as u16;
        self.signals.load(Ordering::Acquire) & !MAY_WAIT != 0
    }

    /// Takes a cancel request, if there is one, and no other signal.
    pub fn take_cancel(&self) -> bool {
        let cancel = Signal::Cancel as u16;
        self.is_cancelled() && self.signals.fetch_and(!cancel, Ordering::AcqRel) & cancel != 0
    }

    /// Takes this signal, if there is one.
    pub fn take_signal(&self, signal: Signal) -> bool {
        self.signals.fetch_and(!(signal as u16), Ordering::AcqRel) & signal as u16 != 0
    }

    /// Takes all signals, as bits of [`Signal`].
    pub fn take_signals(&self) -> u16 {
        self.signals.swap(0, Ordering::AcqRel)
    }

    /// Registers the calling task to be woken by later signals.
    ///
    /// Cancel safety: it does not wait itself.
    pub async fn wakes_this_task(&self) {
        std::future::poll_fn(|cx| {
            *lock(&self.waker) = Some(cx.waker().clone());
            Poll::Ready(())
        })
        .await;
    }

    /// Hot path. From now on a cancel request goes to `server`.
    pub fn link(&self, server: &Arc<ServerShared>) {
        server.client.store(self.id, Ordering::Relaxed);
        let mut link = lock(&self.link);
        self.struck.store(false, Ordering::Relaxed);
        *link = Some(Arc::clone(server));
    }

    /// Was a cancel request sent to the server since it was linked?
    pub fn is_struck(&self) -> bool {
        self.struck.load(Ordering::Relaxed)
    }

    /// Hot path. From now on no cancel request reaches the server that was linked.
    pub fn unlink(&self) {
        *lock(&self.link) = None;
    }

    /// The linked server.
    pub fn linked(&self) -> Option<Arc<ServerShared>> {
        lock(&self.link).clone()
    }

    /// Where a cancel request goes. One for a server is counted there while the link is locked.
    fn linked_for_cancel(&self) -> Linked {
        let link = lock(&self.link);
        let Some(server) = link.as_ref() else { return Linked::None };
        self.struck.store(true, Ordering::Relaxed);
        if server.cancels.load(Ordering::Acquire) >= CANCELS_PER_SERVER_MAX {
            return Linked::Enough;
        }
        server.cancels.fetch_add(1, Ordering::AcqRel);
        Linked::Server(Arc::clone(server))
    }
}

/// What a cancel request finds.
enum Linked {
    /// No server: the session itself gets the signal.
    None,
    /// [`CANCELS_PER_SERVER_MAX`] requests are on their way to it already.
    Enough,
    Server(Arc<ServerShared>),
}

/// What a new client brings.
#[derive(Debug)]
pub struct NewClient {
    /// What it asked for, and as whom.
    pub asked: PoolKey,
    /// It is on the console: counted and listed apart.
    pub console: bool,
    /// The process id to tell it; `None`: one that no process has.
    pub pid: Option<i32>,
    /// This process's `peer_id`; 0: there are no peers.
    pub peer_id: u16,
    /// Bytes of the secret: 4 for protocol 3.0, up to 256 from 3.2 on.
    pub key_bytes: usize,
    /// Where from.
    pub peer: Option<SocketAddr>,
    /// Our end.
    pub local: Option<SocketAddr>,
    /// TLS version and cipher suite.
    pub tls: Option<&'static str>,
    /// What it calls itself.
    pub application_name: Box<str>,
}

/// The process id and the secret that a client was told. Looked up by a keyed hash of both, so that the time it takes reveals nothing
/// of a secret.
type Told = (i32, CancelKey);

/// All clients that are logged in.
#[derive(Debug)]
pub struct Registry {
    clients: Mutex<HashMap<Told, Arc<ClientShared>>>,
    consoles: AtomicUsize,
    on_their_way: Semaphore,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            clients: Mutex::default(),
            consoles: AtomicUsize::new(0),
            on_their_way: Semaphore::new(CANCELS_MAX),
        }
    }
}

/// `number` as a process id that no process has. Applications pass the one that they were told to `pg_terminate_backend()` and the
/// like: it must not be that of another client's server connection.
const fn no_process(number: u32) -> i32 {
    (number % PROCESS_IDS_OURS + PROCESS_IDS_OURS) as i32
}

impl Registry {
    /// Registers a client that logged in.
    pub fn enter(&self, new: NewClient) -> Arc<ClientShared> {
        let id = next_id();
        let own = new.pid.unwrap_or(no_process(id as u32));
        let mut bytes = Zeroizing::new(vec![0; new.key_bytes]);
        let mut clients = lock(&self.clients);
        let (pid, key) = loop {
            rand::Rng::fill(&mut rand::rng(), bytes.as_mut_slice());
            let pid = if new.peer_id == 0 { own } else { peers::mark(new.peer_id, own, &mut bytes) };
            let key = CancelKey::from(bytes.as_slice());
            if !clients.contains_key(&(pid, key.clone())) {
                break (pid, key);
            }
        };
        let client = Arc::new(ClientShared {
            id,
            pid,
            cancel_key: key.clone(),
            asked: new.asked,
            console: new.console,
            peer: new.peer,
            local: new.local,
            tls: new.tls,
            connected: Instant::now(),
            application_name: Mutex::new(new.application_name),
            statements: AtomicU64::new(0),
            state: AtomicU64::new(Stamp::new(ClientState::Idle, 0).0),
            xact: AtomicU64::new(0),
            turns: AtomicU32::new(0),
            xact_turns: AtomicU32::new(0),
            watched: Mutex::new(Watched::new(Instant::now())),
            signals: AtomicU16::new(0),
            gone: AtomicBool::new(false),
            waker: Mutex::new(None),
            link: Mutex::new(None),
            struck: AtomicBool::new(false),
        });
        clients.insert((pid, key), Arc::clone(&client));
        self.consoles.fetch_add(usize::from(client.console), Ordering::Relaxed);
        client
    }

    /// Removes a client that left.
    pub fn leave(&self, client: &ClientShared) {
        client.gone.store(true, Ordering::Relaxed);
        let mut clients = lock(&self.clients);
        if clients.remove(&(client.pid, client.cancel_key.clone())).is_some() {
            self.consoles.fetch_sub(usize::from(client.console), Ordering::Relaxed);
        }
    }

    /// All clients but those of the console.
    pub fn all(&self) -> Vec<Arc<ClientShared>> {
        lock(&self.clients).values().filter(|c| !c.console).cloned().collect()
    }

    /// Clients of the console.
    pub fn consoles(&self) -> Vec<Arc<ClientShared>> {
        lock(&self.clients).values().filter(|c| c.console).cloned().collect()
    }

    /// Number of clients, those of the console not counted.
    pub fn len(&self) -> usize {
        let clients = lock(&self.clients);
        clients.len() - self.consoles.load(Ordering::Relaxed)
    }

    /// No client.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The client that has this key, also if a peer passed the request on.
    fn find(&self, pid: i32, key: &[u8], peers: &Peers) -> Option<Arc<ClientShared>> {
        let clients = lock(&self.clients);
        let told = |key| clients.get(&(pid, key)).cloned();
        told(CancelKey::from(key)).or_else(|| told(peers.as_told(key)?))
    }

    /// A cancel request: to the server its client uses now, or to the session if it uses none, or to the peer whose
    /// client it is. An unknown key does nothing, and nobody is told.
    ///
    /// Cancel safety: none needed; run as a task.
    pub async fn cancel(&self, pid: i32, key: &[u8], peers: &Peers, limit: Duration) {
        let Some(client) = self.find(pid, key, peers) else { return peers.pass_on(pid, key, limit).await };
        match client.linked_for_cancel() {
            Linked::Server(server) => {
                let request = async {
                    let _permit = self.on_their_way.acquire().await;
                    server.cancel(limit).await
                };
                let sent = match limit {
                    Duration::ZERO => Ok(request.await),
                    limit => tokio::time::timeout(limit, request).await,
                };
                // It arrived, or nobody but this client is ever given the server.
                server.cancels.fetch_sub(1, Ordering::AcqRel);
                let failed = |why: &dyn std::fmt::Display| {
                    events::cancel_failed(&client.asked.database, &client.asked.user, why);
                };
                match sent {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => failed(&error),
                    Err(late) => failed(&late),
                }
            }
            Linked::Enough => {}
            Linked::None => client.signal(Signal::Cancel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(console: bool) -> NewClient {
        NewClient {
            asked: PoolKey::new("db".into(), "ann".into()),
            console,
            pid: None,
            peer_id: 0,
            key_bytes: 4,
            peer: None,
            local: None,
            tls: None,
            application_name: "".into(),
        }
    }

    fn client() -> Arc<ClientShared> {
        Registry::default().enter(new(false))
    }

    /// What is told of it so long after its login: its state, and the seconds of it and of its transaction.
    fn seen(client: &ClientShared, seconds: u64) -> (ClientState, u64, u64) {
        let (state, age, xact) = client.watch(client.connected + Duration::from_secs(seconds));
        (state, age.as_secs(), xact.as_secs())
    }

    #[test]
    fn a_console_is_no_client_while_it_is_there_nor_behind() {
        let registry = Registry::default();
        let [client, console] = [false, true].map(|console| registry.enter(new(console)));
        assert_eq!((registry.len(), registry.consoles().len()), (1, 1));
        registry.leave(&console);
        assert_eq!((registry.len(), registry.consoles().len()), (1, 0));
        registry.leave(&client);
        assert!(registry.is_empty());
    }

    #[test]
    fn a_process_id_of_ours_is_no_processs() {
        let told = [0, 1, 32_768, 4_194_304, PROCESS_IDS_OURS, u32::MAX].map(no_process);
        assert!(told.iter().all(|pid| *pid >= 0x4000_0000), "{told:?}");
        assert!(client().pid >= 0x4000_0000);
    }

    #[test]
    fn an_age_counts_from_when_it_began_where_that_is_known() {
        use ClientState::{Active, Coalescing, Idle, IdleInTransaction, Waiting};
        let client = client();
        let at = |seconds| client.connected + Duration::from_secs(seconds);
        assert_eq!(seen(&client, 5), (Idle, 5, 0));
        client.set_state(Waiting, at(10));
        assert_eq!(seen(&client, 13), (Waiting, 3, 0));
        // The request has waited since 10; its transaction begins with the server.
        client.begin_linked(at(10), at(14), 7, 3);
        client.show(Active, 7, 3);
        assert_eq!(seen(&client, 16), (Active, 6, 2));
        // Answers and requests behind it read no clock.
        client.show(IdleInTransaction, 8, 3);
        assert_eq!(seen(&client, 20), (IdleInTransaction, 0, 6));
        assert_eq!(seen(&client, 22), (IdleInTransaction, 2, 8));
        client.show(Active, 8, 3);
        assert_eq!(seen(&client, 24), (Active, 0, 10));
        client.set_state(Idle, at(30));
        assert_eq!(seen(&client, 31), (Idle, 1, 0));
        client.begin(Coalescing, at(40));
        assert_eq!(seen(&client, 42), (Coalescing, 2, 2));
        client.rest();
        assert_eq!(seen(&client, 45), (Idle, 0, 0));
        assert_eq!(seen(&client, 47), (Idle, 2, 0));
        // One that is held goes on where a server is found for it, and where its rows were offered to a batch.
        client.begin_held(at(50), 9, 4);
        assert_eq!(seen(&client, 52), (IdleInTransaction, 2, 2));
        client.show(IdleInTransaction, 10, 4);
        assert_eq!(seen(&client, 53), (IdleInTransaction, 0, 3));
        client.set_state(Coalescing, at(54));
        assert_eq!(seen(&client, 55), (Coalescing, 1, 5));
        client.set_state(Active, at(56));
        client.show(IdleInTransaction, 11, 4);
        assert_eq!(seen(&client, 58), (IdleInTransaction, 0, 8));
    }

    #[test]
    fn a_transaction_that_begins_without_the_clock_is_as_old_as_it_is_known() {
        use ClientState::{Active, Idle, IdleInTransaction};
        let at = |client: &ClientShared, seconds| client.connected + Duration::from_secs(seconds);
        // A client with a server of its own, which was idle long before its first transaction, and between two.
        let client = client();
        client.begin_linked(at(&client, 0), at(&client, 0), 0, 0);
        client.show(Idle, 0, 0);
        assert_eq!(seen(&client, 50), (Idle, 0, 0));
        client.show(IdleInTransaction, 1, 0);
        assert_eq!(seen(&client, 60), (IdleInTransaction, 0, 0));
        client.show(Active, 2, 1);
        assert_eq!(seen(&client, 65), (Active, 0, 0));
        assert_eq!(seen(&client, 66), (Active, 1, 1));
        // One of which no server knows yet, behind one that was there.
        client.set_state(Idle, at(&client, 70));
        client.show(IdleInTransaction, 3, 2);
        assert_eq!(seen(&client, 90), (IdleInTransaction, 0, 0));
    }
}
