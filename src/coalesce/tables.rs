//! What the catalogue said of tables lately: another statement for the same table costs no question.
//!
//! Owns: the answers, each for a minute at most and until it turns out to be wrong; that a table is asked about once at a time.
//! Never: asks (`shapes` does), is believed where rows are at stake: each flush verifies the table in its own transaction.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::catalog::Table;
use crate::pool::Pool;

/// Tables remembered in all, by as many names as they are called by.
const TABLES_MAX: usize = 1000;

/// What a table is like may have changed in ways that no flush would find: a refusal could be one no longer.
const KEPT: Duration = Duration::from_secs(60);

/// What a session was told of a table.
#[derive(Debug)]
pub struct Seen {
    /// The catalogue's answer.
    pub table: Table,
    /// The session's `search_path` may say where `pg_catalog` stands.
    pub names_catalog: bool,
    /// The cheap guard works for the role.
    pub has_sentinel: bool,
    at: Instant,
    wrong: AtomicBool,
}

impl Seen {
    /// Said just now.
    pub fn new(table: Table, names_catalog: bool, has_sentinel: bool) -> Self {
        Self { table, names_catalog, has_sentinel, at: Instant::now(), wrong: AtomicBool::new(false) }
    }

    /// The table is not like that any more.
    pub fn forget(&self) {
        self.wrong.store(true, Ordering::Relaxed);
    }

    /// So long it is believed.
    pub fn left(&self) -> Duration {
        KEPT.saturating_sub(self.at.elapsed())
    }

    fn holds(&self) -> bool {
        !self.wrong.load(Ordering::Relaxed) && !self.left().is_zero()
    }
}

/// Where the answer about one table stands. Held while it is asked about, so that others wait for the answer.
#[derive(Debug)]
pub struct Place {
    /// Gone, it keeps its address as long as this stands here.
    pool: Weak<Pool>,
    seen: tokio::sync::Mutex<Option<Arc<Seen>>>,
}

/// The place, and the right to fill it.
pub type Turn<'a> = tokio::sync::MutexGuard<'a, Option<Arc<Seen>>>;

impl Place {
    /// What is known, or the turn to ask.
    pub async fn look(&self) -> Result<Arc<Seen>, Turn<'_>> {
        let turn = self.seen.lock().await;
        match &*turn {
            Some(seen) if seen.holds() => Ok(Arc::clone(seen)),
            _ => Err(turn),
        }
    }

    /// Nothing is known that still holds, and nobody asks.
    fn is_of_no_use(&self) -> bool {
        let nothing = |seen: &Option<Arc<Seen>>| !seen.as_ref().is_some_and(|seen| seen.holds());
        self.pool.strong_count() == 0 || self.seen.try_lock().is_ok_and(|seen| nothing(&seen))
    }
}

/// Whose question: of a pool (where it lies), with settings of this class, by this name.
type Key = (usize, u64, String);

/// All of them.
#[derive(Debug, Default)]
pub struct Tables {
    places: Mutex<HashMap<Key, Arc<Place>, ahash::RandomState>>,
}

impl Tables {
    /// All is asked anew. What is being asked now serves those who wait for it.
    pub fn forget(&self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The place for the table of this name.
    pub fn place(&self, pool: &Arc<Pool>, class: u64, name: &str) -> Arc<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= TABLES_MAX {
            places.retain(|_, place| !place.is_of_no_use());
        }
        if places.len() >= TABLES_MAX {
            places.clear();
        }
        let key = (Arc::as_ptr(pool) as usize, class, name.to_owned());
        let new = || Arc::new(Place { pool: Arc::downgrade(pool), seen: tokio::sync::Mutex::default() });
        Arc::clone(places.entry(key).or_insert_with(new))
    }
}
