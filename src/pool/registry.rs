//! All pools of the process, and what they share.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;

use super::custom::OfDatabase;
use super::hosts::Hosts;
use super::{CustomSettings, Inner, Pool, PoolKey, Settings, Stats};
use crate::mutex::lock;
use crate::proto::prepared::Statements;
use crate::proto::vars::{VarSet, Vars};
use crate::server::connect::Target;

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The worker this thread is.
pub fn current_worker() -> usize {
    WORKER.get()
}

/// Said once by each worker thread.
pub fn set_current_worker(worker: usize) {
    WORKER.set(worker);
}

/// What all pools share.
#[derive(Debug)]
pub struct Shared {
    /// Interned settings.
    pub vars: Vars,
    /// No settings.
    pub none: Arc<VarSet>,
    /// Named statements of all clients.
    pub statements: Statements,
    custom_settings: Mutex<HashMap<String, Weak<OfDatabase>>>,
    pools: Mutex<HashMap<PoolKey, Arc<Pool>>>,
    /// PAUSE and RESUME take turns, so that pools end as the last one said. Locked first.
    turn: Mutex<()>,
    /// Locked after `pools`, so that a pool made meanwhile is held as well.
    held: Mutex<Held>,
    by_database: Mutex<HashMap<String, Weak<AtomicUsize>>>,
    by_user: Mutex<HashMap<String, Weak<AtomicUsize>>>,
    clients_by_user: Mutex<HashMap<String, Weak<AtomicUsize>>>,
    /// Nobody logs in any more.
    closed: AtomicBool,
    closing: Notify,
}

impl Shared {
    /// The process drains: a login that waits for a server connection ends.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.notify_waiters();
    }

    /// Until nobody logs in any more.
    ///
    /// Cancel safety: nothing is lost.
    pub async fn is_closing(&self) {
        // Asked for before the look, so that what happens between the two is heard.
        let closing = self.closing.notified();
        if !self.closed.load(Ordering::Acquire) {
            closing.await;
        }
    }

    /// Clients that logged in by this name, in all pools.
    pub fn clients_of(&self, user: &str) -> Arc<AtomicUsize> {
        in_common(&self.clients_by_user, user)
    }

    /// A CREATE, ALTER or DROP DATABASE is about to be sent over a connection of `by`: idle connections of the same role
    /// make way for it, as those of a client that left are closed directly. Those of other roles are not its to close.
    pub fn make_way(&self, text: &[u8], by: &Target) {
        let pools: Vec<Arc<Pool>> = lock(&self.pools).values().cloned().collect();
        for pool in pools {
            let target = pool.target.load();
            let same = target.user == by.user && target.hosts == by.hosts && target.port == by.port;
            if same && crate::sql::database::wants_empty(text, target.dbname.as_bytes()) {
                pool.vacate(usize::from(target.dbname == by.dbname));
            }
        }
    }

    /// A connection of `of` became idle: those who wait in a pool that shares a limit with it may have its place.
    pub(super) fn serve_siblings(&self, of: &PoolKey) {
        let pools: Vec<Arc<Pool>> = {
            let pools = lock(&self.pools);
            let shares = |key: &PoolKey| key != of && (key.database == of.database || key.user == of.user);
            pools.values().filter(|p| shares(&p.key)).cloned().collect()
        };
        for pool in pools {
            pool.take_from_sibling();
        }
    }

    /// Closes one idle connection of a pool that shares a limit with `not`.
    pub(super) fn evict_idle(&self, shares: impl Fn(&PoolKey) -> bool, not: &PoolKey) -> bool {
        let pools: Vec<Arc<Pool>> = {
            let pools = lock(&self.pools);
            pools.values().filter(|p| p.key != *not && shares(&p.key)).cloned().collect()
        };
        pools.iter().any(|pool| pool.evict_one_idle())
    }

    /// That with most connections of the pools that share a limit with `not`.
    pub(super) fn largest(&self, shares: impl Fn(&PoolKey) -> bool, not: &PoolKey) -> Option<Arc<Pool>> {
        let pools: Vec<Arc<Pool>> = {
            let pools = lock(&self.pools);
            pools.values().filter(|p| p.key != *not && shares(&p.key)).cloned().collect()
        };
        pools.into_iter().max_by_key(|pool| pool.size())
    }
}

/// What the console said about whole databases; also for pools that are not there yet.
#[derive(Debug, Default)]
struct Held {
    /// PAUSE without a database.
    all_paused: bool,
    paused: HashSet<String>,
    disabled: HashSet<String>,
}

impl Held {
    fn is_paused(&self, database: &str) -> bool {
        self.all_paused || self.paused.contains(database)
    }
}

fn in_common<T: Default>(map: &Mutex<HashMap<String, Weak<T>>>, name: &str) -> Arc<T> {
    let mut map = lock(map);
    if let Some(found) = map.get(name).and_then(Weak::upgrade) {
        return found;
    }
    let new = Arc::<T>::default();
    map.insert(name.to_owned(), Arc::downgrade(&new));
    // Names that the fallback entry serves are the clients' choice, and without end.
    if map.len().is_multiple_of(256) {
        map.retain(|_, held| held.strong_count() > 0);
    }
    new
}

/// The registry.
#[derive(Debug, Clone)]
pub struct Pools {
    shared: Arc<Shared>,
}

impl Default for Pools {
    fn default() -> Self {
        let vars = Vars::default();
        let none = vars.intern([]);
        Self {
            shared: Arc::new(Shared {
                vars,
                none,
                statements: Statements::default(),
                custom_settings: Mutex::default(),
                pools: Mutex::default(),
                turn: Mutex::default(),
                held: Mutex::default(),
                by_database: Mutex::default(),
                by_user: Mutex::default(),
                clients_by_user: Mutex::default(),
                closed: AtomicBool::default(),
                closing: Notify::default(),
            }),
        }
    }
}

impl Pools {
    /// What all pools share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The pool of `key`, made by `make` when it is new.
    pub fn get(&self, key: &PoolKey, make: impl FnOnce() -> (Settings, Target)) -> Arc<Pool> {
        let mut pools = lock(&self.shared.pools);
        if let Some(pool) = pools.get(key) {
            return Arc::clone(pool);
        }
        let (settings, target) = make();
        let held = lock(&self.shared.held);
        let settings = Arc::new(settings);
        let inner = Inner::new(Arc::clone(&settings), held.is_paused(&key.database));
        let custom_settings = CustomSettings::new(in_common(&self.shared.custom_settings, &target.dbname));
        let pool = Arc::new(Pool {
            key: key.clone(),
            settings: ArcSwap::new(settings),
            target: ArcSwap::from_pointee(target),
            catalog: Statements::own_catalog(),
            texts: Arc::default(),
            custom_settings,
            hosts: Hosts::default(),
            stats: Stats::default(),
            welcome: Mutex::default(),
            greeting: ArcSwapOption::empty(),
            checks_failed: Default::default(),
            disabled: held.disabled.contains(&key.database).into(),
            clients: AtomicUsize::new(0),
            inner: Mutex::new(inner),
            changed: tokio::sync::Notify::new(),
            shared: Arc::clone(&self.shared),
            db_count: in_common(&self.shared.by_database, &key.database),
            user_count: in_common(&self.shared.by_user, &key.user),
        });
        pools.insert(key.clone(), Arc::clone(&pool));
        pool
    }

    /// All pools.
    pub fn all(&self) -> Vec<Arc<Pool>> {
        lock(&self.shared.pools).values().cloned().collect()
    }

    /// The pools of one database, or all.
    pub fn of(&self, database: Option<&str>) -> Vec<Arc<Pool>> {
        let pools = lock(&self.shared.pools);
        pools.values().filter(|p| database.is_none_or(|name| p.key.database == name)).cloned().collect()
    }

    /// PAUSE of one database or of all: free connections close, nobody gets one until [`Pools::resume`], also in pools
    /// that are made later.
    pub fn pause(&self, database: Option<&str>) {
        let _turn = lock(&self.shared.turn);
        let pools = lock(&self.shared.pools);
        let mut held = lock(&self.shared.held);
        match database {
            Some(name) => {
                held.paused.insert(name.to_owned());
            }
            None => held.all_paused = true,
        }
        drop((held, pools));
        self.of(database).iter().for_each(Pool::pause);
    }

    /// RESUME of one database, or of all (those that were paused by name as well). False: it was not paused. While
    /// all are paused, a database that was paused by name as well stays paused.
    pub fn resume(&self, database: Option<&str>) -> bool {
        let _turn = lock(&self.shared.turn);
        let was = {
            let _pools = lock(&self.shared.pools);
            let mut held = lock(&self.shared.held);
            match database {
                Some(name) => held.paused.remove(name),
                None => {
                    let some = held.all_paused || !held.paused.is_empty();
                    held.all_paused = false;
                    held.paused.clear();
                    some
                }
            }
        };
        for pool in self.of(database) {
            if !self.is_paused(&pool.key.database) {
                pool.resume();
            }
        }
        was
    }

    /// Whether PAUSE holds this database.
    pub fn is_paused(&self, database: &str) -> bool {
        lock(&self.shared.held).is_paused(database)
    }

    /// Whether PAUSE holds all databases.
    pub fn all_paused(&self) -> bool {
        lock(&self.shared.held).all_paused
    }

    /// DISABLE (`true`) and ENABLE: whether new clients are refused, also in pools that are made later.
    pub fn disable(&self, database: &str, disabled: bool) {
        let pools = lock(&self.shared.pools);
        let mut held = lock(&self.shared.held);
        if disabled {
            held.disabled.insert(database.to_owned());
        } else {
            held.disabled.remove(database);
        }
        for pool in pools.values().filter(|p| p.key.database == database) {
            pool.disabled.store(disabled, Ordering::Relaxed);
        }
    }

    /// Whether DISABLE holds this database.
    pub fn is_disabled(&self, database: &str) -> bool {
        lock(&self.shared.held).disabled.contains(database)
    }

    /// Pools that hold nothing, and are held for what was learnt of their tables alone.
    pub fn unused(&self) -> Vec<Arc<Pool>> {
        let pools = lock(&self.shared.pools);
        pools.values().filter(|pool| Arc::strong_count(pool) > 1 && pool.is_unused()).cloned().collect()
    }

    /// Pools that nobody holds and that hold nothing are forgotten: with a fallback entry, clients choose their names.
    /// Each is shown to `last` before it is gone; `last` must not ask for pools.
    pub fn forget_unused(&self, mut last: impl FnMut(&Pool)) {
        lock(&self.shared.pools).retain(|_, pool| {
            let used = Arc::strong_count(pool) > 1 || !pool.is_unused();
            if !used {
                last(pool);
            }
            used
        });
    }

    /// All pools are given up by the registry: who asks for one from here on gets a new one.
    pub fn renew(&self) -> Vec<Arc<Pool>> {
        std::mem::take(&mut *lock(&self.shared.pools)).into_values().collect()
    }

    /// Pools of databases that are no more, without a client or connection, are forgotten.
    pub fn forget_unserved(&self, serves: impl Fn(&str) -> bool) {
        lock(&self.shared.pools).retain(|key, pool| serves(&key.database) || !pool.is_unused());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_nobody_has_any_more_are_forgotten() {
        let map = Mutex::default();
        let kept: Arc<AtomicUsize> = in_common(&map, "kept");
        for n in 0..10_000 {
            in_common(&map, &n.to_string());
        }
        assert!(lock(&map).len() <= 256, "{} names", lock(&map).len());
        assert!(Arc::ptr_eq(&kept, &in_common(&map, "kept")));
    }
}
