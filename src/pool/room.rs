//! Room for a new connection: the limits on a pool, on its database and on its user, and what closes to make room.
//!
//! Owns: the counts under common limits, whose connection is closed for whom. Never: which waiter gets a connection (`queue`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::{Inner, Pool, PoolKey, Settings};

/// How long a pool waits for a free place under a common limit before a sibling pool has to give one up.
const SIBLING_WAITS: Duration = Duration::from_secs(1);

/// Only one task at a time makes room: two that open connections for the same clients would each have a sibling's closed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum MakingRoom {
    /// No task does.
    #[default]
    No,
    /// One task does.
    Once,
    /// One task does, and has to check again afterwards, because something changed meanwhile.
    Again,
}

impl Pool {
    /// Opens connections while clients wait and limits allow it.
    pub(super) fn launch_if_needed(self: &Arc<Self>) {
        loop {
            let login = {
                let mut inner = self.lock();
                if inner.paused || inner.queue.is_empty() {
                    return;
                }
                let settings = Arc::clone(&inner.settings);
                let waited = inner.queue.waiters().next().map_or(Duration::ZERO, |w| w.since.elapsed());
                let full = inner.is_full(waited);
                if full && inner.idle.is_empty() {
                    return;
                }
                let Some(startup) = inner.queue.next_login(Instant::now()) else { return };
                if full || !self.take_slot(&settings) {
                    if inner.making_room != MakingRoom::No {
                        inner.making_room = MakingRoom::Again;
                        return;
                    }
                    inner.making_room = MakingRoom::Once;
                    let made = self.evict_unfit(inner) || (!full && self.evict_sibling(&settings));
                    let came = std::mem::take(&mut self.lock().making_room) == MakingRoom::Again;
                    if made || came {
                        continue;
                    }
                    if !full && waited >= SIBLING_WAITS {
                        self.ask_sibling(&settings);
                    }
                    return;
                }
                inner.queue.begin(startup)
            };
            tokio::spawn(Arc::clone(self).login(login));
        }
    }

    /// Closes the longest idle one of the connections that suit no waiting client.
    fn evict_unfit(&self, mut inner: MutexGuard<'_, Inner>) -> bool {
        let queue = &inner.queue;
        let unfit = inner.idle.iter().position(|server| !queue.waits_for(server.startup.as_ref()));
        let Some(at) = unfit else { return false };
        let server = inner.idle.remove(at);
        drop(inner);
        self.close(server, "made room for another");
        true
    }

    fn full(count: &AtomicUsize, max: usize) -> bool {
        max > 0 && count.load(Ordering::Relaxed) >= max
    }

    /// The setting that keeps a client that has waited this long from getting a new connection.
    pub(super) fn full_by(&self, inner: &Inner, waited: Duration) -> Option<&'static str> {
        let settings = &inner.settings;
        match () {
            () if inner.is_full(waited) => Some(settings.size_key),
            () if Self::full(&self.db_count, settings.max_db_connections) => Some("max_db_connections"),
            () if Self::full(&self.user_count, settings.max_user_connections) => Some("max_user_connections"),
            () => None,
        }
    }

    /// Are there more connections than the database or the user may have, because a limit was lowered?
    pub(super) fn is_above(&self, settings: &Settings) -> bool {
        let above = |count: &AtomicUsize, max: usize| max > 0 && count.load(Ordering::Relaxed) > max;
        above(&self.db_count, settings.max_db_connections)
            || above(&self.user_count, settings.max_user_connections)
    }

    /// Counts one more connection, unless the database's or the user's limit is reached.
    pub(super) fn take_slot(&self, settings: &Settings) -> bool {
        if !Self::count_up(&self.db_count, settings.max_db_connections) {
            return false;
        }
        if !Self::count_up(&self.user_count, settings.max_user_connections) {
            self.db_count.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Counts one up unless `max` is reached. Atomic, because pools of several databases and users count at the same time.
    fn count_up(count: &AtomicUsize, max: usize) -> bool {
        let more = |n: usize| (max == 0 || n < max).then_some(n + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Is only the database's common limit reached, and not the user's as well? If both are, a place of the database alone would not
    /// help, and other pools would lose connections for nothing.
    fn is_full_by_database(&self, settings: &Settings) -> bool {
        !Self::full(&self.user_count, settings.max_user_connections)
            && Self::full(&self.db_count, settings.max_db_connections)
    }

    /// Closes an idle connection of a sibling pool to make room under a common limit. No lock of this pool is held here.
    fn evict_sibling(&self, settings: &Settings) -> bool {
        if self.is_full_by_database(settings) {
            self.shared.evict_idle(|key| key.database == self.key.database, &self.key)
        } else {
            self.shared.evict_idle(|key| key.user == self.key.user, &self.key)
        }
    }

    /// If no sibling has an idle connection: the one with the most, if it has more than this pool, gives up the next that becomes free.
    fn ask_sibling(&self, settings: &Settings) {
        let most = self.size() + 1;
        let of_database = self.is_full_by_database(settings);
        let shares = |key: &PoolKey| match of_database {
            true => key.database == self.key.database,
            false => key.user == self.key.user,
        };
        if let Some(sibling) = self.shared.largest(shares, &self.key).filter(|pool| pool.size() >= most) {
            sibling.lock().owes_one = true;
        }
    }

    /// Number of its connections under the common limits.
    pub(super) fn size(&self) -> usize {
        let inner = self.lock();
        inner.total + inner.queue.logins()
    }

    /// Uses a place under a common limit that a sibling has given up.
    pub(super) fn take_from_sibling(self: &Arc<Self>) {
        if self.has_waiters() {
            self.launch_if_needed();
        }
    }

    /// Closes the longest idle connection, for a sibling that can have none because of a common limit.
    pub(super) fn evict_one_idle(&self) -> bool {
        self.evict_unfit(self.lock())
    }
}
