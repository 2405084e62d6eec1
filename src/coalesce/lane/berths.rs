//! Flushes under way, counted for each table, whichever lanes they are of: a table has several where its INSERTs differ in
//! columns, format, user or settings.
//!
//! Owns: `max_flushes_per_table`, and which lanes wait for a place. Never: decides when a batch leaves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

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
pub struct Berths(Mutex<HashMap<Table, Taken>>);

#[derive(Debug, Default)]
struct Taken {
    flushes: usize,
    waiting: Vec<Weak<Lane>>,
}

impl Berths {
    /// A place in each of these tables, or in none. False: one of them has `max` already, and the lane is told when one is free.
    fn take(&self, tables: &[Table], max: usize, lane: &Arc<Lane>) -> bool {
        let mut all = lock(&self.0);
        let full = tables.iter().find(|table| all.get(table).is_some_and(|taken| taken.flushes >= max));
        if let Some(taken) = full.and_then(|table| all.get_mut(table)) {
            if !taken.waiting.iter().any(|one| std::ptr::eq(one.as_ptr(), Arc::as_ptr(lane))) {
                taken.waiting.push(Arc::downgrade(lane));
            }
            return false;
        }
        for table in tables {
            all.entry(table.clone()).or_default().flushes += 1;
        }
        true
    }

    /// Who waited for them.
    fn give_back(&self, tables: &[Table]) -> Vec<Arc<Lane>> {
        let mut all = lock(&self.0);
        let mut waited = Vec::new();
        for table in tables {
            let Some(taken) = all.get_mut(table) else { continue };
            taken.flushes -= 1;
            waited.extend(taken.waiting.drain(..).filter_map(|lane| lane.upgrade()));
            if taken.flushes == 0 {
                all.remove(table);
            }
        }
        waited
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
        lanes.berths.take(&lane.tables, max, lane).then(|| Self(Arc::clone(lane)))
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        let Some(lanes) = self.0.lanes.upgrade() else { return };
        for lane in lanes.berths.give_back(&self.0.tables) {
            lane.flush_if_due(lock(&lane.inner));
        }
    }
}
