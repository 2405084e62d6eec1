//! Names of custom settings (`app.user`) seen in texts. PostgreSQL does not list them, so the probe asks for these by name, to
//! find values that a function has set.
//!
//! Owns: which names are known in which pool, and their bound. Names seen in another database are never asked for, and other users' names
//! do not displace a user's own.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};

use crate::mutex::lock;
use crate::sql::custom::custom_settings;

/// Names remembered of one pool, and most that are asked about because of others of its database. What goes beyond is not carried.
const NAMES_MAX: usize = 256;

/// Of the pools of one database.
#[derive(Debug, Default)]
pub(super) struct OfDatabase(Mutex<Vec<Weak<CustomSettings>>>);

/// Of one pool.
#[derive(Debug)]
pub struct CustomSettings {
    names: Mutex<Names>,
    database: Arc<OfDatabase>,
}

#[derive(Debug, Default)]
struct Names {
    said: BTreeSet<String>,
    /// The server does not speak of them to this pool's user.
    refused: BTreeSet<String>,
}

impl CustomSettings {
    /// None yet. What pools of the same `database` know counts, too.
    pub(super) fn new(database: Arc<OfDatabase>) -> Arc<Self> {
        let this = Arc::new(Self { names: Mutex::default(), database });
        {
            let mut all = lock(&this.database.0);
            all.retain(|pool| pool.strong_count() > 0);
            all.push(Arc::downgrade(&this));
        }
        this
    }

    /// A text that may set something: the names in it are asked about from here on.
    pub fn note(&self, text: &[u8]) {
        custom_settings(text, |name| {
            let mut names = self.lock();
            if names.said.len() < NAMES_MAX && !names.said.contains(name) {
                names.said.insert(name.to_owned());
            }
        });
    }

    /// The names to ask about, besides these.
    pub fn add_to(&self, names: &mut Vec<String>) {
        let refused = {
            let own = self.lock();
            names.extend(own.said.iter().cloned());
            own.refused.clone()
        };
        let pools: Vec<Arc<Self>> = {
            let all = lock(&self.database.0);
            all.iter().filter_map(Weak::upgrade).filter(|pool| !std::ptr::eq(&**pool, self)).collect()
        };
        let others = pools.iter().flat_map(|pool| pool.lock().said.iter().cloned().collect::<Vec<_>>());
        names.extend(others.take(NAMES_MAX));
        names.retain(|name| !refused.contains(name));
    }

    /// The server does not speak of these: they are not asked about again.
    pub fn refuse(&self, names: &[String]) {
        let mut own = self.lock();
        let room = NAMES_MAX.saturating_sub(own.refused.len());
        own.refused.extend(names.iter().take(room).cloned());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Names> {
        lock(&self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(pool: &CustomSettings) -> Vec<String> {
        let mut names = Vec::new();
        pool.add_to(&mut names);
        names
    }

    fn crowd(pool: &CustomSettings) {
        (0..2 * NAMES_MAX).for_each(|n| pool.note(format!("SET z.n{n} = 1").as_bytes()));
    }

    #[test]
    fn nobody_crowds_out_the_names_of_another_user_or_database() {
        let database = Arc::<OfDatabase>::default();
        let (one, other) = (CustomSettings::new(Arc::clone(&database)), CustomSettings::new(database));
        let stranger = CustomSettings::new(Arc::default());
        crowd(&other);
        crowd(&stranger);
        one.note(b"SET app.tenant = 1");
        let names = names_of(&one);
        assert!(names.contains(&"app.tenant".into()) && names.contains(&"z.n0".into()));
        assert_eq!(names.len(), 1 + NAMES_MAX);
        assert_eq!(names_of(&CustomSettings::new(Arc::default())), [""; 0]);
        assert!(!names_of(&stranger).contains(&"app.tenant".into()));
    }

    #[test]
    fn what_the_server_refuses_is_not_asked_about_again() {
        let pool = CustomSettings::new(Arc::default());
        pool.note(b"SET a.b = 1; SET c.d = 1");
        pool.refuse(&["a.b".into()]);
        let mut names = vec!["a.b".into(), "e.f".into()];
        pool.add_to(&mut names);
        assert_eq!(names, ["e.f", "c.d"]);
    }
}
