//! A cache of the catalogue's answers about tables, so that another statement for the same table costs no query.
//!
//! Owns: the answers, each kept for a minute at most or until a flush finds it wrong; that only one query at a time is made for a table.
//! Never: sends a query (`shapes` does); decides what is stored: each flush verifies the table in its own transaction.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::catalog::Table;
use crate::mutex::lock;
use crate::pool::Pool;

/// Tables remembered in all, by as many names as they are called by.
const TABLES_MAX: usize = 1000;

/// Memory for what is remembered of them (bytes), about: that of a hundred columns is some 20 kB.
const TABLES_BYTES_MAX: usize = 64 << 20;

/// How long an answer is kept: a table may change in a way that no flush notices, so that it need not be refused any more.
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
    /// The table turned out to have changed. Plans hold this flag, and not the whole answer.
    pub wrong: Arc<AtomicBool>,
    bytes: usize,
}

impl Seen {
    /// Said just now.
    pub fn new(table: Table, names_catalog: bool, has_sentinel: bool) -> Self {
        let bytes = table.bytes();
        Self { table, names_catalog, has_sentinel, at: Instant::now(), wrong: Arc::default(), bytes }
    }

    /// How long it is still believed.
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
    /// This keeps the address of a pool that is gone from being used again.
    pool: Weak<Pool>,
    seen: tokio::sync::Mutex<Option<Arc<Seen>>>,
}

/// The place, and the right to fill it.
pub type Turn<'a> = tokio::sync::MutexGuard<'a, Option<Arc<Seen>>>;

impl Place {
    /// What is known, or the turn to ask. Cancel safety: nothing is held; call it again.
    ///
    /// Errors: nothing is known, or no longer: the turn, which whoever holds it settles or gives back.
    pub async fn look(&self) -> Result<Arc<Seen>, Turn<'_>> {
        let turn = self.seen.lock().await;
        match &*turn {
            Some(seen) if seen.holds() => Ok(Arc::clone(seen)),
            _ => Err(turn),
        }
    }

    /// Memory for what is known (bytes), about.
    fn bytes(&self) -> usize {
        self.seen.try_lock().ok().and_then(|seen| seen.as_ref().map(|seen| seen.bytes)).unwrap_or_default()
    }

    /// Nothing is known that still holds, and nobody is asking.
    fn is_of_no_use(&self) -> bool {
        let nothing = |seen: &Option<Arc<Seen>>| !seen.as_ref().is_some_and(|seen| seen.holds());
        self.pool.strong_count() == 0 || self.seen.try_lock().is_ok_and(|seen| nothing(&seen))
    }
}

/// The key of a question: the pool (its address), the class of settings, the name.
type Key = (usize, u64, String);

type Places = HashMap<Key, Arc<Place>, ahash::RandomState>;

/// All of them.
#[derive(Debug, Default)]
pub struct Tables {
    places: Mutex<Places>,
}

/// At the limit those go that are of no use any more; if there are none, all.
fn make_room(places: &mut Places, bytes_max: usize) {
    let is_full = |places: &Places| {
        places.len() >= TABLES_MAX || places.values().map(|place| place.bytes()).sum::<usize>() > bytes_max
    };
    if is_full(places) {
        places.retain(|_, place| !place.is_of_no_use());
        if is_full(places) {
            places.clear();
        }
    }
}

impl Tables {
    /// All is asked anew. What is being asked now serves those who wait for it.
    pub fn forget(&self) {
        lock(&self.places).clear();
    }

    /// The place for the table of this name.
    pub fn place(&self, pool: &Arc<Pool>, class: u64, name: &str) -> Arc<Place> {
        let mut places = lock(&self.places);
        make_room(&mut places, TABLES_BYTES_MAX);
        let key = (Arc::as_ptr(pool) as usize, class, name.to_owned());
        let new = || Arc::new(Place { pool: Arc::downgrade(pool), seen: tokio::sync::Mutex::default() });
        Arc::clone(places.entry(key).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coalesce::catalog::decode;

    fn place(functions: usize) -> Arc<Place> {
        let functions = vec!["16500"; functions].join(",");
        let answer = format!(
            r#"{{"relid": 16400, "schema": "s", "table": "t", "relkind": "r", "fingerprint": "f", "stops": [], "self_fk": [], "quiet": true, "updates_alone": true, "granted_by_column": false,
             "functions": [{functions}], "root": 16400, "references": [], "user": "u", "session_user": "u", "search_path": "public", "temporary": false, "columns": []}}"#
        );
        let table = decode("t", &[Some(answer.as_bytes())]).unwrap();
        let seen = Some(Arc::new(Seen::new(table, false, false)));
        Arc::new(Place { pool: Weak::new(), seen: tokio::sync::Mutex::new(seen) })
    }

    #[test]
    fn what_is_known_of_tables_is_bounded_in_bytes() {
        const MAX: usize = 64 << 10;
        let mut places = Places::default();
        let bytes = |places: &Places| places.values().map(|place| place.bytes()).sum::<usize>();
        let one = place(1000).bytes();
        assert!(one >= 4000);
        for n in 0..100 {
            make_room(&mut places, MAX);
            assert!(bytes(&places) <= MAX);
            places.insert((0, n, String::new()), place(1000));
        }
        assert!(places.len() > 1 && bytes(&places) <= MAX + one);
    }
}
