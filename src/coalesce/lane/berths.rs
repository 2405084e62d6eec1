//! Flushes under way, counted for each table over all its lanes: a table has several lanes if its INSERTs differ in columns, format,
//! user or settings.
//!
//! Only a flight that has a server connection, or is about to have one, holds a place. A flight that has to wait for a connection, because
//! its user's pool is full, gives its place back; when it has the connection it gets a place before any batch that has not left. So one
//! user's full pool does not delay another user's rows.
//!
//! Owns: `max_flushes_per_table`, and which lanes and flights wait for a place. Never: decides when a batch leaves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::Lane;
use crate::mutex::lock;
use crate::wire::Oid;

/// A table, as all lanes know it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Table {
    pub(super) database: Arc<str>,
    pub(super) relid: Oid,
}

/// Of all tables with flushes under way.
#[derive(Debug, Default)]
pub struct Berths {
    all: Mutex<HashMap<Table, Taken>>,
    /// A place is free for which a flight waits.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    flushes: usize,
    /// Flights that wait for a place, with a connection.
    boarding: usize,
    waiting: Vec<Weak<Lane>>,
}

impl Taken {
    fn is_full(&self, max: usize, boards: bool) -> bool {
        let first = if boards { 0 } else { self.boarding };
        self.flushes + first >= max
    }
}

impl Berths {
    /// A place in each of these tables, or in none. False: one of them has `max` already, and the lane is told when one is free.
    /// `boards`: for a flight that has its connection, and looks itself.
    fn take(&self, tables: &[Table], max: usize, lane: &Arc<Lane>, boards: bool) -> bool {
        let mut all = lock(&self.all);
        let full = tables.iter().find(|table| all.get(table).is_some_and(|taken| taken.is_full(max, boards)));
        if let Some(table) = full {
            if let Some(taken) = all.get_mut(table)
                && !boards
                && !taken.waiting.iter().any(|one| std::ptr::eq(one.as_ptr(), Arc::as_ptr(lane)))
            {
                taken.waiting.push(Arc::downgrade(lane));
            }
            return false;
        }
        for table in tables {
            all.entry(table.clone()).or_default().flushes += 1;
        }
        true
    }

    fn boards(&self, tables: &[Table]) {
        let mut all = lock(&self.all);
        for table in tables {
            all.entry(table.clone()).or_default().boarding += 1;
        }
    }

    /// Who waited for them.
    fn give_back(&self, tables: &[Table], which: impl Fn(&mut Taken) -> &mut usize) -> Vec<Arc<Lane>> {
        let mut all = lock(&self.all);
        let mut waited = Vec::new();
        for table in tables {
            let Some(taken) = all.get_mut(table) else { continue };
            *which(taken) -= 1;
            waited.extend(taken.waiting.drain(..).filter_map(|lane| lane.upgrade()));
            if taken.boarding > 0 {
                self.freed.notify_waiters();
            } else if taken.flushes == 0 {
                all.remove(table);
            }
        }
        waited
    }
}

/// Those who waited look again.
fn look_again(waited: Vec<Arc<Lane>>) {
    for lane in waited {
        lane.flush_if_due(lock(&lane.inner));
    }
}

/// A flight waits for a place.
struct Boarding<'a>(&'a Lane, &'a Berths);

impl Drop for Boarding<'_> {
    fn drop(&mut self) {
        look_again(self.1.give_back(&self.0.tables, |taken| &mut taken.boarding));
    }
}

/// A flush's place among those of its tables. Dropped, it lets others in.
#[derive(Debug)]
pub(super) struct Berth(Arc<Lane>);

impl Berth {
    /// `None`: there is none now; the lane is told when there is.
    pub(super) fn take(lane: &Arc<Lane>) -> Option<Self> {
        let lanes = lane.lanes.upgrade()?;
        let max = lane.settings.max_flushes_per_table;
        lanes.berths.take(&lane.tables, max, lane, false).then(|| Self(Arc::clone(lane)))
    }

    /// For a flight that has a connection; who has a place has one, too, so this is no long wait. `None`: it was longer than
    /// `limit`.
    ///
    /// Cancel safety: no place is taken.
    pub(super) async fn wait(lane: &Arc<Lane>, limit: Duration) -> Option<Self> {
        let lanes = lane.lanes.upgrade()?;
        let (berths, max) = (&lanes.berths, lane.settings.max_flushes_per_table);
        let now = || berths.take(&lane.tables, max, lane, true).then(|| Self(Arc::clone(lane)));
        if let Some(berth) = now() {
            return Some(berth);
        }
        berths.boards(&lane.tables);
        let _boarding = Boarding(lane, berths);
        let soon = async {
            loop {
                let freed = berths.freed.notified();
                if let Some(berth) = now() {
                    return berth;
                }
                freed.await;
            }
        };
        tokio::time::timeout(limit, soon).await.ok()
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        let Some(lanes) = self.0.lanes.upgrade() else { return };
        look_again(lanes.berths.give_back(&self.0.tables, |taken| &mut taken.flushes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_connection_comes_before_what_has_not_left() {
        for (flushes, boarding, full) in [
            (0, 0, [false; 2]),
            (0, 1, [false; 2]),
            (0, 2, [true, false]),
            (1, 1, [true, false]),
            (2, 0, [true; 2]),
        ] {
            let taken = Taken { flushes, boarding, ..Taken::default() };
            assert_eq!([false, true].map(|boards| taken.is_full(2, boards)), full, "{flushes}, {boarding}");
        }
    }
}
