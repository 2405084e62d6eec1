//! How often clients were told what went wrong, by kind.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Kind, Severity};

/// What stands for an error of the server's, which has no kind of ours.
const SERVER: &str = "Server";

/// Counts since the start.
#[derive(Debug)]
pub struct Tally {
    kinds: [AtomicU64; Kind::ALL.len()],
    server: AtomicU64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { kinds: [const { AtomicU64::new(0) }; Kind::ALL.len()], server: AtomicU64::new(0) }
    }
}

impl Tally {
    /// One more; `None`: the server's own error.
    pub fn count(&self, kind: Option<Kind>) {
        let counter = kind.map_or(&self.server, |kind| &self.kinds[kind as usize]);
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Names as in `docs/errors.md`, and counts. What ends a connection by its nature is there before it happened, so that the
    /// first time is seen as a rise.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let kinds = Kind::ALL.iter().zip(&self.kinds).map(|(kind, count)| (*kind, load(count)));
        let shown = kinds.filter(|(kind, count)| *count > 0 || kind.severity() == Severity::Fatal);
        shown.map(|(kind, count)| (kind.name(), count)).chain([(SERVER, load(&self.server))])
    }
}

/// What a counter for show has: nothing else is ordered by it.
pub fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_count() {
        let tally = Tally::default();
        let fatal = tally.counts().count();
        assert!(tally.counts().all(|(_, count)| count == 0));
        for (times, kind) in Kind::ALL.iter().enumerate() {
            (0..times).for_each(|_| tally.count(Some(*kind)));
        }
        tally.count(None);
        let counts: Vec<_> = tally.counts().collect();
        // The first of them was not counted, and is fatal.
        let expected = Kind::ALL.iter().map(|kind| kind.name()).zip(0..);
        assert_eq!(counts, expected.chain([(SERVER, 1)]).collect::<Vec<_>>());
        assert!(fatal > 20 && fatal < counts.len());
    }
}
