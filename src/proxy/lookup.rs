//! `auth_query`: secrets of users that auth_file does not have, asked of the server by `auth_user`.
//!
//! Owns: the connections for it. No client ever gets one of them and nothing that a client says but its name reaches one;
//! names in `auth_query` are looked for in pg_catalog only. Never: judges a secret (the handshake does).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Proxy, is_console};
use crate::auth::{Credential, Found};
use crate::client::handshake::Unauthenticated;
use crate::client::login;
use crate::config;
use crate::error::{Error, Kind};
use crate::limits::FOREVER;
use crate::mutex::lock;
use crate::net::Connector;
use crate::pool::{self, Busy, Checkout, CheckoutError, Pool, PoolKey, Pools};
use crate::proto::prepared::Statement;
use crate::server::connect::Target;
use crate::server::internal::{Reply, Rows};
use crate::settings::{AuthType, CONSOLES, PoolMode, Settings};
use crate::telemetry::events;
use crate::wire::backend::ErrorFields;
use crate::wire::startup::Startup;

/// Connections for the lookups of one database.
const LOOKUPS_AT_A_TIME: usize = 2;

/// Idle time after which such a connection is closed: it keeps its database from being dropped.
const IDLE: Duration = Duration::from_secs(10);

/// Lookups at a time for all databases of one server: with a fallback entry a stranger makes names up, each another database's.
const LOOKUPS_A_SERVER: usize = 16;

/// A server: its hosts and port, which stand in the configuration.
type Place = (Vec<String>, u16);

/// The connections; a reload begins with new ones.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    pools: Pools,
    /// Those from before a reload, as long as somebody asks there still.
    past: Mutex<Vec<Weak<Pool>>>,
    /// For clients of the console: nothing keeps them from saying RESUME there. Closed after each use.
    of_console: Pools,
    /// Each server's own: one that does not answer keeps no other's waiting.
    turns: Mutex<HashMap<Place, Arc<Semaphore>>>,
}

impl Lookups {
    /// Lookups there wait for their turn, in order of arrival.
    fn turns(&self, target: &Target) -> Arc<Semaphore> {
        let mut turns = lock(&self.turns);
        let of_server = turns.entry((target.hosts.clone(), target.port));
        Arc::clone(of_server.or_insert_with(|| Arc::new(Semaphore::new(LOOKUPS_A_SERVER))))
    }

    /// As `server_lifetime` and its kin ask.
    pub(super) fn maintain(&self) {
        for pools in [&self.pools, &self.of_console] {
            pools.all().iter().for_each(Pool::maintain);
            pools.forget_unused(|_| ());
        }
        self.past().retain(|pool| pool.strong_count() > 0);
    }

    /// The server, its users or `auth_query` may be others now: the settings that say so are in effect already.
    pub(super) fn forget(&self) {
        self.of_console.renew();
        // Locked first, so that a search for them after the others finds them.
        let mut past = self.past();
        for pool in self.pools.renew() {
            pool.reconnect("a reload");
            past.push(Arc::downgrade(&pool));
        }
        drop(past);
        lock(&self.turns).clear();
    }

    fn past(&self) -> MutexGuard<'_, Vec<Weak<Pool>>> {
        lock(&self.past)
    }

    fn past_of(&self, database: Option<&str>) -> Vec<Arc<Pool>> {
        let past = self.past();
        let pools = past.iter().filter_map(Weak::upgrade);
        pools.filter(|pool| database.is_none_or(|name| pool.key.database == name)).collect()
    }

    /// What the console orders of one database or of all holds for these as for those of clients.
    pub(super) fn of(&self, database: Option<&str>) -> Vec<Arc<Pool>> {
        let mut pools = self.pools.of(database);
        pools.extend(self.past_of(database));
        pools
    }

    /// As [`Pools::pause`].
    pub(super) fn pause(&self, database: Option<&str>) {
        self.pools.pause(database);
        self.past_of(database).iter().for_each(Pool::pause);
    }

    /// As [`Pools::resume`].
    pub(super) fn resume(&self, database: Option<&str>) {
        self.pools.resume(database);
        let mut past = self.past_of(database);
        past.retain(|pool| !self.pools.is_paused(&pool.key.database));
        past.iter().for_each(Pool::resume);
    }
}

/// What is asked where, and as whom.
struct Lookup {
    key: PoolKey,
    query: String,
    settings: pool::Settings,
    target: Target,
    /// For a client of the console.
    console: bool,
}

impl Lookup {
    /// `None`: there is no lookup for this client.
    fn of(settings: &Settings, tls: &Connector, startup: &Startup) -> Option<Self> {
        let general = &settings.general;
        let console = is_console(startup);
        let own = (!console).then(|| settings.database(&startup.database)).flatten();
        let user = own.and_then(|d| d.auth_user.clone()).or_else(|| general.auth_user.clone())?;
        let query = own.and_then(|d| d.auth_query.clone()).unwrap_or_else(|| general.auth_query.clone());
        let name = own.and_then(|d| d.auth_dbname.clone()).or_else(|| general.auth_dbname.clone());
        let database = name.unwrap_or_else(|| startup.database.clone());
        if CONSOLES.contains(&&*database) {
            return None;
        }
        let key = PoolKey::new(database, user);
        let (settings, target) = governed(settings, tls, &key, console)?;
        Some(Self { key, query, settings, target, console })
    }
}

/// What governs the connections of `key`. `None`: the database is not served.
fn governed(
    settings: &Settings,
    tls: &Connector,
    key: &PoolKey,
    console: bool,
) -> Option<(pool::Settings, Target)> {
    // As auth_user, whatever user all clients of that entry are to the server.
    let mut entry = (**settings.database(&key.database)?).clone();
    (entry.user, entry.password, entry.connect_query) = (None, None, None);
    let credential = settings.userlist.get(&key.user).map_or(Credential::None, Credential::from_secret);
    let mut target = login::pool_target(settings, tls.clone(), &entry, key, credential);
    target.startup = [
        ("search_path", "pg_catalog, pg_temp"),
        ("client_encoding", "UTF8"),
        ("application_name", "pgsluice auth_query"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    let mut governed = pool::Settings {
        mode: PoolMode::Transaction,
        size: LOOKUPS_AT_A_TIME,
        min_size: 0,
        kept_alone: false,
        reserve_size: 0,
        max_db_connections: 0,
        max_user_connections: 0,
        query_wait_timeout: settings.general.client_login_timeout,
        server_idle_timeout: IDLE,
        ..login::pool_settings(settings, &entry, key)
    };
    if console {
        governed.server_lifetime = Duration::ZERO;
    }
    Some((governed, target))
}

impl Proxy {
    /// What the server has for a user that auth_file does not have, where it is to be asked. Where the question failed the
    /// client goes the way of all strangers, and the log says why.
    ///
    /// # Errors
    /// The server cannot be reached, or is not to be: the database is disabled, or paused for too long.
    pub(super) async fn look_up(
        &self,
        settings: &Settings,
        client: &Unauthenticated,
    ) -> Result<Found, Error> {
        let startup = client.startup();
        // Nobody is asked about whom the rules keep out anyway, nor about whom a directory knows.
        let by_secret = client.method(settings).is_ok_and(|method| method != AuthType::Ldap);
        if settings.userlist.contains_key(&startup.user) || !by_secret {
            return Ok(Found::NotAsked);
        }
        let Some(lookup) = Lookup::of(settings, &self.cx.server_tls.load(), startup) else {
            return Ok(Found::NotAsked);
        };
        let (database, user) = (lookup.key.database.clone(), startup.user.clone());
        if !lookup.console && self.cx.pools.is_disabled(&database) {
            let asks = if database == startup.database { "" } else { "authentication " };
            let what = format!("{asks}database \"{database}\" is disabled (DISABLE on the console)");
            return Err(Error::new(Kind::DatabaseDisabled, what));
        }
        let deadline = client.deadline().unwrap_or_else(|| tokio::time::Instant::now() + FOREVER);
        let held = !lookup.console && self.cx.pools.is_paused(&database);
        let asked = tokio::time::timeout_at(deadline, self.ask(lookup, &user)).await;
        let late = || match held && self.cx.pools.is_paused(&database) {
            true => format!("database \"{database}\" was paused longer than client_login_timeout"),
            false => "no answer within client_login_timeout".to_owned(),
        };
        match asked.unwrap_or_else(|_| Err(Failed::Late(late()))) {
            Ok(rows) => {
                let found = found_in(&rows, &user);
                if let Err(why) = &found {
                    events::lookup_failed(&database, why);
                }
                Ok(found.unwrap_or(Found::Failed))
            }
            Err(Failed::Unreachable(why)) => Err(Error::lookup_unreachable().with_log(why)),
            Err(Failed::Late(why)) => Err(Error::lookup_unreachable().with_detail(why)),
            Err(Failed::Refused(why)) => {
                events::lookup_failed(&database, &why);
                Ok(Found::Failed)
            }
        }
    }

    async fn ask(&self, lookup: Lookup, user: &str) -> Result<Rows, Failed> {
        let Lookup { key, query, settings, target, console } = lookup;
        let turns = self.lookups.turns(&target);
        let pools = if console { &self.lookups.of_console } else { &self.lookups.pools };
        // By what is in effect now: a reload forgets the pools that there are.
        let now = || governed(&self.cx.settings.load(), &self.cx.server_tls.load(), &key, console);
        let pool = pools.get(&key, || now().unwrap_or((settings, target)));
        let (_turn, mut server) = connection(&pool, &turns).await.map_err(|error| match error {
            CheckoutError::Login(error) => Failed::Refused(error.to_string()),
            CheckoutError::Timeout(_, Busy::Unreachable(error)) => Failed::Unreachable(error.to_string()),
            CheckoutError::Timeout(..) | CheckoutError::Paused(_) => {
                Failed::Unreachable("too many logins at a time".into())
            }
            CheckoutError::Closed => Failed::Unreachable("shutting down".into()),
        })?;
        let statement = Statement::own(&query);
        let Reply { rows, error, .. } = server
            .prepared(&statement, &[Some(user.as_bytes())], 1)
            .await
            .map_err(|lost| Failed::Unreachable(lost.why))?;
        server.release(Instant::now());
        match error {
            None => Ok(rows),
            Some(body) => {
                let why = ErrorFields::new(&body).field(b'M').unwrap_or_default();
                Err(Failed::Refused(String::from_utf8_lossy(why).into_owned()))
            }
        }
    }
}

/// A connection, and the turn at its server. A lookup that PAUSE holds gives up its turn: others ask there for other databases.
///
/// Cancel safety: as [`Pool::checkout`].
async fn connection<'a>(
    pool: &Arc<Pool>,
    turns: &'a Semaphore,
) -> Result<(Option<SemaphorePermit<'a>>, Checkout), CheckoutError> {
    loop {
        pool.until_paused(false).await;
        // The semaphore is never closed.
        let turn = turns.acquire().await.ok();
        tokio::select! {
            server = pool.checkout(&pool.shared().none, None) => return Ok((turn, server?)),
            () = pool.until_paused(true) => {}
        }
    }
}

/// Why there are no rows.
enum Failed {
    Unreachable(String),
    Late(String),
    Refused(String),
}

/// What the one row says that is the user's.
fn found_in(rows: &Rows, user: &str) -> Result<Found, &'static str> {
    match rows.as_slice() {
        [] => Ok(Found::Nobody),
        // What a function gives that has not found anybody.
        [row] if matches!(row.as_slice(), [None, None, ..]) => Ok(Found::Nobody),
        [row] => {
            let [Some(name), secret, ..] = row.as_slice() else {
                return Err("a row of a name and a secret is expected");
            };
            if name != user.as_bytes() {
                return Err("the row is another user's");
            }
            let Some(secret) = secret.as_ref().filter(|secret| !secret.is_empty()) else {
                return Ok(Found::NoSecret);
            };
            let text = std::str::from_utf8(secret).map_err(|_| "a secret that is not UTF-8")?;
            config::secret(text).map(Found::Secret).map_err(|_| "a malformed SCRAM verifier")
        }
        _ => Err("more than one row"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Secret;

    #[test]
    fn only_the_users_own_row_holds_its_secret() {
        let row = |values: &[Option<&str>]| {
            values.iter().map(|v| v.map(|v| v.as_bytes().to_vec())).collect::<Vec<_>>()
        };
        let ann = row(&[Some("ann"), Some("pw")]);
        assert_eq!(found_in(&vec![ann.clone()], "ann"), Ok(Found::Secret(Secret::Plain("pw".into()))));
        for nobody in [vec![], vec![row(&[None, None])], vec![row(&[None, None, Some("more")])]] {
            assert_eq!(found_in(&nobody, "ann"), Ok(Found::Nobody));
        }
        assert_eq!(found_in(&vec![row(&[Some("ann"), None])], "ann"), Ok(Found::NoSecret));
        for bad in [
            vec![ann.clone(), ann.clone()],
            vec![row(&[Some("eve"), Some("pw")])],
            vec![row(&[None, Some("pw")])],
            vec![row(&[None])],
            vec![row(&[None, None]), row(&[None, None])],
            vec![row(&[Some("ann")])],
            vec![row(&[])],
            vec![row(&[Some("eve"), None])],
            vec![row(&[Some("ann"), Some("SCRAM-SHA-256$1:x")])],
        ] {
            assert!(found_in(&bad, "ann").is_err(), "{bad:?}");
        }
    }
}
