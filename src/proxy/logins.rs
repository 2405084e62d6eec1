//! Connections that have not logged in yet: how many there may be, and which is closed when there are too many.
//!
//! Owns: the count, the order of arrival, the choice of the connection to close. Never: a socket; the chosen connection is told, and
//! closes itself.
//!
//! If there are `max_login_conn` of them, a new one replaces the oldest of the address that has the most: connections that send
//! nothing, or send slowly, keep no client out. None is closed before it has had [`LOGIN_GRACE`] to log in; accepting waits that
//! long instead, so that many honest clients at once are not turned away.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::limits::LOGIN_GRACE;
use crate::mutex::lock;
use crate::net::Peer;
use crate::telemetry::events;

/// All connections that have not logged in yet.
#[derive(Debug)]
pub(super) struct Logins {
    /// Most of them, whatever `max_login_conn` says.
    ceiling: usize,
    open: Mutex<BTreeMap<u64, Login>>,
    next: AtomicU64,
    closed: AtomicU64,
    /// One has logged in or gone.
    left: Notify,
}

/// One of them.
#[derive(Debug)]
struct Login {
    from: Option<IpAddr>,
    since: Instant,
    gone: Arc<Notify>,
}

/// A connection's place among them, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    logins: Arc<Logins>,
    id: u64,
    gone: Arc<Notify>,
}

/// What has to happen before there is room.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Free,
    In(Duration),
}

impl Logins {
    /// At most `ceiling` at a time: a share of the files that may be open; the others are for clients that have logged in.
    pub(super) fn new(ceiling: usize) -> Self {
        Self {
            ceiling: ceiling.max(1),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            left: Notify::new(),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.open().len()
    }

    /// A place for one more of at most `max` (`max_login_conn`), once there is one.
    ///
    /// Cancel safety: somebody may have had to go for nothing.
    pub(super) async fn enter(self: &Arc<Self>, peer: Peer, max: usize) -> Place {
        let max = max.min(self.ceiling);
        while let Room::In(pause) = self.make_room(max, Instant::now()) {
            let _ = tokio::time::timeout(pause, self.left.notified()).await;
        }
        let (id, gone) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(Notify::new()));
        let login = Login { from: peer.ip().map(network), since: Instant::now(), gone: Arc::clone(&gone) };
        self.open().insert(id, login);
        Place { logins: Arc::clone(self), id, gone }
    }

    /// Out of files: the next in turn goes, if there is one that had its time.
    pub(super) fn shed(&self) {
        let all = self.len();
        if all > 0 {
            self.make_room(all, Instant::now());
        }
    }

    fn make_room(&self, max: usize, now: Instant) -> Room {
        let mut open = self.open();
        if open.len() < max {
            return Room::Free;
        }
        let Some((id, since)) = next_to_go(&open) else { return Room::Free };
        let age = now.saturating_duration_since(since);
        if age < LOGIN_GRACE {
            return Room::In(LOGIN_GRACE - age);
        }
        if let Some(login) = open.remove(&id) {
            login.gone.notify_one();
        }
        let closed = self.closed.fetch_add(1, Ordering::Relaxed) + 1;
        // A flood must not flood the log.
        if closed.is_power_of_two() {
            events::logins_closed(closed);
        }
        if open.len() < max { Room::Free } else { Room::In(Duration::ZERO) }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Login>> {
        lock(&self.open)
    }
}

impl Place {
    /// Whose it is, once a balancer has said so.
    pub(super) fn tag(&self) -> Tag {
        Tag { logins: Arc::clone(&self.logins), id: self.id }
    }

    /// Runs `login`, the connection's own; `None` when the connection has to go, and is gone.
    ///
    /// Cancel safety: that of `login`.
    pub(super) async fn hold<T>(self, login: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = login => Some(done),
            () = self.gone.notified() => None,
        }
    }
}

/// Says later whose a place is.
#[derive(Debug)]
pub(super) struct Tag {
    logins: Arc<Logins>,
    id: u64,
}

impl Tag {
    /// It counts for this address from here on.
    pub(super) fn is_from(&self, peer: Peer) {
        if let Some(login) = self.logins.open().get_mut(&self.id) {
            login.from = peer.ip().map(network);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.logins.open().remove(&self.id);
        self.logins.left.notify_one();
    }
}

/// The oldest of the address that has most; of those that have equally many, the oldest of all.
fn next_to_go(open: &BTreeMap<u64, Login>) -> Option<(u64, Instant)> {
    let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
    for login in open.values() {
        *counts.entry(login.from).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    open.iter()
        .find(|(_, login)| counts.get(&login.from) == Some(&most))
        .map(|(id, login)| (*id, login.since))
}

/// A client with one IPv6 address has the 64-bit network around it.
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(ip: &str) -> Peer {
        Peer::Tcp((ip.parse::<IpAddr>().expect("an address"), 1).into())
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    /// As if each had been there for as long as anybody may.
    fn age(logins: &Logins) {
        let long_ago = Instant::now().checked_sub(LOGIN_GRACE);
        logins
            .open()
            .values_mut()
            .for_each(|login| login.since = long_ago.expect("the machine is up for longer"));
    }

    #[test]
    fn the_oldest_of_the_address_that_has_most_goes() {
        block_on(async {
            let logins = Arc::new(Logins::new(100));
            let mut places = Vec::new();
            for ip in ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"] {
                places.push(logins.enter(peer(ip), 5).await);
            }
            age(&logins);
            places.push(logins.enter(peer("192.0.2.3"), 5).await);
            // Two addresses of one network are one; of two networks, two.
            let ids: Vec<_> = logins.open().keys().copied().collect();
            assert_eq!(ids, [0, 1, 3, 4, 5]);
            assert_eq!(places.remove(2).hold(std::future::pending::<()>()).await, None);
            assert_eq!(logins.len(), 5, "who was told to go has no place to give back");
            drop(places);
            assert_eq!(logins.len(), 0);
        });
    }

    #[test]
    fn nobody_goes_before_its_time_and_who_logs_in_makes_room() {
        block_on(async {
            let logins = Arc::new(Logins::new(100));
            let first = logins.enter(peer("192.0.2.1"), 1).await;
            assert!(matches!(logins.make_room(1, Instant::now()), Room::In(_)));
            let mut second = std::pin::pin!(logins.enter(peer("192.0.2.2"), 1));
            std::future::poll_fn(|cx| {
                assert!(second.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            assert_eq!(first.hold(async { "in" }).await, Some("in"));
            let second = second.await;
            assert_eq!((second.id, logins.len()), (1, 1));
        });
    }

    #[test]
    fn shedding_takes_one_that_had_its_time() {
        block_on(async {
            let logins = Arc::new(Logins::new(100));
            logins.shed();
            let _places =
                [logins.enter(peer("192.0.2.1"), 9).await, logins.enter(peer("192.0.2.1"), 9).await];
            logins.shed();
            assert_eq!(logins.len(), 2);
            age(&logins);
            logins.shed();
            assert_eq!(logins.len(), 1);
        });
    }
}
