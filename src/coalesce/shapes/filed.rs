//! All lanes, indexed so that a new text is compared only with those that could be its own: there may be ten thousand.

use std::collections::HashMap;
use std::sync::Arc;

use crate::coalesce::lane::Lane;

/// Beyond this many lanes of several tables idle ones go. Each sequence of tables has its own; programs have few.
const CONVOYS_MAX: usize = 256;

/// All lanes of the process.
#[derive(Debug, Default)]
pub(super) struct Filed {
    /// Those of one table, by their leg's [likeness](super::super::lane::Leg::likeness).
    of_one: HashMap<u64, Vec<Arc<Lane>>>,
    /// How many that are.
    count_of_one: usize,
    /// Those of several.
    convoys: Vec<Arc<Lane>>,
}

impl Filed {
    /// Lanes whose leg may be like this one.
    pub(super) fn alike(&self, like: u64) -> &[Arc<Lane>] {
        self.of_one.get(&like).map_or(&[], Vec::as_slice)
    }

    /// Adds a lane of one table. A lane whose table changed is of no use any more.
    pub(super) fn put(&mut self, like: u64, lane: &Arc<Lane>) {
        let alike = self.of_one.entry(like).or_default();
        let before = alike.len();
        for lanes in [&mut *alike, &mut self.convoys] {
            lanes.retain(|other| !other.is_replaced_by(lane));
        }
        alike.push(Arc::clone(lane));
        self.count_of_one = self.count_of_one - before + alike.len();
    }

    /// The lane of these together; made if there is none and there can be one.
    pub(super) fn convoy(
        &mut self,
        parts: &[Arc<Lane>],
        make: impl FnOnce() -> Option<Arc<Lane>>,
    ) -> Option<Arc<Lane>> {
        if let Some(lane) = self.convoys.iter().find(|lane| lane.is_of(parts)) {
            return Some(Arc::clone(lane));
        }
        if self.convoys.len() >= CONVOYS_MAX {
            self.convoys.retain(|lane| lane.is_busy());
        }
        let lane = make()?;
        self.convoys.push(Arc::clone(&lane));
        Some(lane)
    }

    /// The others go.
    pub(super) fn retain(&mut self, stays: impl Fn(&Lane) -> bool) {
        self.of_one.retain(|_, lanes| {
            lanes.retain(|lane| stays(lane));
            !lanes.is_empty()
        });
        self.count_of_one = self.of_one.values().map(Vec::len).sum();
        self.convoys.retain(|lane| stays(lane));
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count_of_one + self.convoys.len()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Lane>> {
        self.of_one.values().flatten().chain(&self.convoys).cloned().collect()
    }
}
