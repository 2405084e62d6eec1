//! All pools of the process, and what they share.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwap;

use super::{Inner, Pool, PoolKey, Settings, Stats};
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
    /// Names of settings that PostgreSQL does not list, seen in texts; bounded.
    custom_settings: Mutex<BTreeSet<String>>,
    pools: Mutex<HashMap<PoolKey, Arc<Pool>>>,
    by_database: Mutex<HashMap<String, Weak<AtomicUsize>>>,
    by_user: Mutex<HashMap<String, Weak<AtomicUsize>>>,
}

/// Names remembered; more than that are not carried.
const CUSTOM_SETTINGS_MAX: usize = 256;

impl Shared {
    /// A text that may set something: the names in it that PostgreSQL would not list are asked about from here on.
    pub fn note_custom_settings(&self, text: &[u8]) {
        crate::sql::custom::custom_settings(text, |name| {
            let mut names = self.custom_settings.lock().unwrap_or_else(PoisonError::into_inner);
            if names.len() < CUSTOM_SETTINGS_MAX && !names.contains(name) {
                names.insert(name.to_owned());
            }
        });
    }

    /// All such names.
    pub fn custom_settings(&self) -> Vec<String> {
        self.custom_settings.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// A connection of `of` became idle: those who wait in a pool that shares a limit with it may have its place.
    pub(super) fn serve_siblings(&self, of: &PoolKey) {
        let pools: Vec<Arc<Pool>> = {
            let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
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
            let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            pools.values().filter(|p| p.key != *not && shares(&p.key)).cloned().collect()
        };
        pools.iter().any(|pool| pool.evict_one_idle())
    }
}

fn counter(map: &Mutex<HashMap<String, Weak<AtomicUsize>>>, name: &str) -> Arc<AtomicUsize> {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(count) = map.get(name).and_then(Weak::upgrade) {
        return count;
    }
    let count = Arc::new(AtomicUsize::new(0));
    map.insert(name.to_owned(), Arc::downgrade(&count));
    count
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
                by_database: Mutex::default(),
                by_user: Mutex::default(),
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
        let mut pools = self.shared.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(key) {
            return Arc::clone(pool);
        }
        let (settings, target) = make();
        let pool = Arc::new(Pool {
            key: key.clone(),
            settings: ArcSwap::from_pointee(settings),
            target: ArcSwap::from_pointee(target),
            stats: Stats::default(),
            welcome: Mutex::default(),
            disabled: false.into(),
            clients: AtomicUsize::new(0),
            inner: Mutex::new(Inner::default()),
            changed: tokio::sync::Notify::new(),
            shared: Arc::clone(&self.shared),
            db_count: counter(&self.shared.by_database, &key.database),
            user_count: counter(&self.shared.by_user, &key.user),
        });
        pools.insert(key.clone(), Arc::clone(&pool));
        pool
    }

    /// All pools.
    pub fn all(&self) -> Vec<Arc<Pool>> {
        self.shared.pools.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
