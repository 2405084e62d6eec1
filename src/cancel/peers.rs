//! Peers: other processes behind the same address. A cancel request that reached the wrong one is passed on.
//!
//! Owns: where a peer's id lies in what a client is told, the way to each peer. Never: whose key it is.
//!
//! ```text
//!                 process id   secret
//! protocol 3.0    r i i r      r r r h          as PgBouncer's: a group may have both
//! protocol 3.2    its own      i i r r ... h
//! ```
//!
//! `i` is the peer's id, lower byte first; of `h` the two lowest bits say how often the request may still be passed on;
//! all the rest is random (44 bits in 3.0, so the process id is none there, nor any process').

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::no_process;
use crate::limits::CANCELS_MAX;
use crate::net::{Connector, Keepalive};
use crate::server::connect;
use crate::settings::{Peer, Settings};
use crate::telemetry::events;
use crate::wire::CancelKey;

/// As often as a request may be passed on, and where that stands in the last byte of a key.
const HOPS: u8 = 0b11;

/// Bytes of a secret that has no room for a peer's id.
const SHORT: usize = 4;

/// Writes our id into a random key, or into the process id, which is returned.
pub(super) fn mark(peer_id: u16, pid: i32, key: &mut [u8]) -> i32 {
    let [low, high] = peer_id.to_le_bytes();
    let short = key.len() == SHORT;
    if let Some(last) = key.last_mut() {
        *last |= HOPS;
    }
    match key {
        [first, second, ..] if !short => {
            (*first, *second) = (low, high);
            pid
        }
        _ => {
            let [first, .., last] = rand::random::<[u8; 4]>();
            // Some clients take a negative one for an error.
            no_process(u32::from_be_bytes([first, low, high, last]))
        }
    }
}

/// Whose client was told these.
fn owner(pid: i32, key: &[u8]) -> u16 {
    let [_, low, high, _] = pid.to_be_bytes();
    match key {
        [first, second, ..] if key.len() != SHORT => u16::from_le_bytes([*first, *second]),
        _ => u16::from_le_bytes([low, high]),
    }
}

/// The peer that a key nobody here has is to be passed on to, and as what; `None`: it has been passed on often enough.
pub fn onward(pid: i32, key: &[u8]) -> Option<(u16, CancelKey)> {
    one_hop_less(key).map(|next| (owner(pid, key), next))
}

/// The key as it was before it was passed on.
fn as_told(key: &[u8]) -> CancelKey {
    with_last(key, |last| last | HOPS)
}

/// The key to pass on; `None`: it has been passed on often enough.
fn one_hop_less(key: &[u8]) -> Option<CancelKey> {
    let hops = key.last()? & HOPS;
    (hops > 0).then(|| with_last(key, |last| last - 1))
}

fn with_last(key: &[u8], change: impl FnOnce(u8) -> u8) -> CancelKey {
    let mut key = zeroize::Zeroizing::new(key.to_vec());
    if let Some(last) = key.last_mut() {
        *last = change(*last);
    }
    CancelKey::from(key.as_slice())
}

/// The ways to all peers but ourselves.
#[derive(Debug)]
pub struct Peers {
    ways: BTreeMap<u16, Way>,
    tls: Connector,
    keepalive: Keepalive,
    hosts_file: Option<PathBuf>,
    /// For a request where `cancel_wait_timeout` sets no limit: no loop of silent peers may last.
    connect_timeout: Duration,
}

/// The way to one peer.
#[derive(Debug)]
pub struct Way {
    id: u16,
    peer: Peer,
    /// Requests at a time.
    size: usize,
    under_way: Semaphore,
    /// Those, and those that wait; one more is dropped.
    all: Semaphore,
    failed: AtomicU64,
}

impl Peers {
    /// Those of `settings`; none, if we have no id ourselves.
    pub fn new(settings: &Settings, tls: Connector) -> Self {
        let general = &settings.general;
        let others = settings.peers.iter().filter(|(id, _)| general.peer_id != 0 && **id != general.peer_id);
        let ways: BTreeMap<_, _> =
            others.map(|(id, peer)| (*id, Way::new(*id, peer, general.default_pool_size))).collect();
        let (keepalive, connect_timeout) = (Keepalive::from(general), general.server_connect_timeout);
        let hosts_file = general.hosts_file.clone();
        Self { ways, tls, keepalive, hosts_file, connect_timeout }
    }

    /// Each way, and whom it leads to.
    pub fn ways(&self) -> impl Iterator<Item = (u16, &Way)> {
        self.ways.iter().map(|(id, way)| (*id, way))
    }

    /// The key of one that may have been passed on, as it was told.
    pub(super) fn as_told(&self, key: &[u8]) -> Option<CancelKey> {
        (!self.ways.is_empty()).then(|| as_told(key))
    }

    /// Nobody here has this key: to the peer that it names, if there is one.
    pub(super) async fn pass_on(&self, pid: i32, key: &[u8], limit: Duration) {
        let Some((peer, key)) = onward(pid, key) else { return };
        let Some(way) = self.ways.get(&peer) else { return };
        let Ok(_place) = way.all.try_acquire() else { return };
        let limit = if limit.is_zero() { self.connect_timeout } else { limit };
        let request = async {
            let _permit = way.under_way.acquire().await;
            let hosts_file = self.hosts_file.as_deref();
            connect::cancel_at(&way.peer, &self.tls, &self.keepalive, hosts_file, (pid, &key), limit).await
        };
        let done = match limit {
            Duration::ZERO => Ok(request.await),
            limit => tokio::time::timeout(limit, request).await,
        };
        if let Err(why) = done.unwrap_or(Err(connect::ConnectError::Timeout)) {
            way.tell(&why);
        }
    }
}

impl Way {
    fn new(id: u16, peer: &Peer, default_size: usize) -> Self {
        let size = match peer.pool_size.unwrap_or(default_size) {
            0 => CANCELS_MAX,
            size => size,
        };
        Self {
            id,
            peer: peer.clone(),
            size,
            under_way: Semaphore::new(size),
            all: Semaphore::new(size + CANCELS_MAX),
            failed: AtomicU64::new(0),
        }
    }

    /// How many are under way, and how many wait.
    pub fn requests(&self) -> (usize, usize) {
        let under_way = self.size - self.under_way.available_permits();
        let all = self.size + CANCELS_MAX - self.all.available_permits();
        (under_way, all.saturating_sub(under_way))
    }

    /// A peer that is gone must not flood the log.
    fn tell(&self, why: &connect::ConnectError) {
        let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
        if failed.is_power_of_two() {
            events::peer_not_reached(self.id, why, failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::PROCESS_IDS_OURS;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_says_whose_it_is_until_it_has_been_passed_on_thrice(
            peer_id in 1u16..=16_383,
            own in 1i32..,
            mut key in prop_oneof![proptest::collection::vec(any::<u8>(), 4), proptest::collection::vec(any::<u8>(), 5..=256)],
        ) {
            let pid = mark(peer_id, own, &mut key);
            let its_own = pid == own && key.len() != SHORT;
            prop_assert!(its_own || pid.cast_unsigned() >= PROCESS_IDS_OURS && pid > 0);
            let told = CancelKey::from(key.as_slice());
            let mut passed_on = told.clone();
            for _ in 0..3 {
                let (peer, next) = onward(pid, &passed_on).expect("a hop is left");
                prop_assert_eq!(peer, peer_id);
                passed_on = next;
                prop_assert!(as_told(&passed_on) == told && passed_on != told);
            }
            prop_assert!(onward(pid, &passed_on).is_none());
        }

        #[test]
        fn any_key_is_read(pid in any::<i32>(), key in proptest::collection::vec(any::<u8>(), 0..=256)) {
            prop_assert_eq!(onward(pid, &key).is_some(), key.last().is_some_and(|last| last & HOPS > 0));
        }
    }

    #[test]
    fn pgbouncers_place_for_the_id() {
        let mut key = [0xff, 0, 0, 0];
        let [_, low, high, _] = mark(0x1234, 7, &mut key).to_be_bytes();
        assert_eq!((low, high, key), (0x34, 0x12, [0xff, 0, 0, 3]));
    }
}
