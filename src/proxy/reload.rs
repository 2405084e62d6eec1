//! A new configuration into what runs: RELOAD, SIGHUP, SET. Never: reads a file itself (`config` does).
//!
//! Everything that can fail is built first; then it is stored, and nothing can fail any more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Proxy;
use crate::auth::Credential;
use crate::cancel::{Peers, Signal};
use crate::client::login;
use crate::config::{self, SetError};
use crate::files;
use crate::mutex::lock;
use crate::net::{Acceptor, Connector};
use crate::pool::{self, Pool};
use crate::settings::{AllowList, Database, FileState, General, PoolMode, Settings};
use crate::telemetry;
use crate::telemetry::audit::Sink;
use crate::telemetry::events;

type AllowLists = BTreeMap<PathBuf, Arc<AllowList>>;

/// What `auth_file` was when it was looked at.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    /// `None`: it could not be seen.
    state: Option<FileState>,
    /// It could not be used as it is, which was said.
    failed: bool,
}

/// What the files of TLS were when they were looked at.
#[derive(Debug, Clone, Copy, Default)]
struct TlsLook {
    /// Authorities, certificate and key, toward clients and toward servers.
    states: [Option<FileState>; 6],
    /// What they hold as they are is in effect.
    in_effect: bool,
    /// They can't be used as they are, which was said.
    said: bool,
    /// They could not be used since they were last.
    failed: bool,
}

impl Proxy {
    /// Reads the file again and applies what can be applied while running. Blocks on files.
    ///
    /// # Errors
    /// What is wrong with the file; nothing has changed then.
    pub fn reload(&self) -> Result<(), Vec<String>> {
        let outcome = self.try_reload();
        if outcome.is_err() {
            self.reopen_audit();
        }
        events::reloaded(outcome.as_ref().err().map_or(&[], Vec::as_slice));
        outcome
    }

    /// To rotate files it must not be necessary to correct the configuration first.
    fn reopen_audit(&self) {
        match Sink::open(self.cx.settings.load().general.audit_file.as_deref()) {
            Ok(sink) => self.cx.audit.switch(sink),
            Err(why) => events::audit_not_reopened(&why),
        }
    }

    fn try_reload(&self) -> Result<(), Vec<String>> {
        let _one = lock(&self.reloading);
        // What was learned so far is part of what is read.
        self.cx.learner.flush();
        let loaded = config::read(&self.path)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        for notice in &loaded.notices {
            events::has_no_effect(notice);
        }
        let running = self.cx.settings.load_full();
        let mut settings = loaded.settings;
        for key in config::needs_restart(&running, &settings) {
            events::needs_restart(key);
        }
        keep_what_needs_a_restart(&running.general, &mut settings.general);
        keep_what_is_the_same(&running.allow_lists, &mut settings.allow_lists);
        self.cx.learner.forget();
        self.apply(settings).map_err(|problem| vec![problem])
    }

    /// `auth_file` is read again when it has changed, as in PgBouncer, and so are the files of TLS, whose certificates are renewed by
    /// programs that know of no RELOAD; nothing else with them.
    pub(super) async fn watch_files(self: Arc<Self>) {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        let mut last = (Look::default(), TlsLook::default());
        loop {
            tick.tick().await;
            let proxy = Arc::clone(&self);
            // Off the workers' path: a disk may be slow.
            let look = move || (proxy.look_at_userlist(last.0), proxy.look_at_tls(last.1));
            last = tokio::task::spawn_blocking(look).await.unwrap_or(last);
        }
    }

    /// What the files are now. They are read when they are as they were `last` time, and as long as they can't be used: a key and its
    /// certificate are written one after the other.
    fn look_at_tls(&self, last: TlsLook) -> TlsLook {
        let settings = self.cx.settings.load_full();
        let [c, s] = [&settings.general.client_tls, &settings.general.server_tls];
        let files = [&c.ca_file, &c.cert_file, &c.key_file, &s.ca_file, &s.cert_file, &s.key_file];
        let states = files.map(|file| file.as_deref().and_then(config::file_state));
        if states != last.states {
            return TlsLook { states, in_effect: false, said: false, failed: last.failed };
        }
        if last.in_effect || files.iter().all(|file| file.is_none()) {
            return last;
        }
        match self.reread_tls() {
            Ok(changed) => {
                if changed || last.failed {
                    events::tls_reread(None);
                }
                TlsLook { states, in_effect: true, said: false, failed: false }
            }
            Err(why) => {
                if !last.said {
                    events::tls_reread(Some(&why));
                }
                TlsLook { states, in_effect: false, said: true, failed: true }
            }
        }
    }

    /// True: the files hold something else than before.
    fn reread_tls(&self) -> Result<bool, String> {
        let _one = lock(&self.reloading);
        let running = self.cx.settings.load_full();
        let tls = Acceptor::new(&running.general.client_tls).map_err(|e| e.to_string())?;
        let server_tls = Connector::new(&running.general.server_tls).map_err(|e| e.to_string())?;
        let toward_clients = tls.read_others(&self.tls.load());
        let toward_servers = server_tls.read_others(&self.cx.server_tls.load());
        if toward_clients {
            self.tls.store(Arc::new(tls));
        }
        if toward_servers {
            self.enact((*running).clone(), Arc::new(server_tls));
        }
        Ok(toward_clients || toward_servers)
    }

    /// What the file is now. It is read once it is as it was `last` time: its writer may not have finished.
    fn look_at_userlist(&self, last: Look) -> Look {
        let settings = self.cx.settings.load_full();
        let Some(file) = settings.general.auth_file.as_deref() else { return Look::default() };
        let state = config::file_state(file);
        let same = state == last.state;
        if !same || state == settings.userlist_read {
            return Look { state, failed: false };
        }
        let outcome = self.reread_userlist(file);
        if !(last.failed && outcome.is_err()) {
            events::userlist_reread(outcome.as_ref().err().map_or(&[], Vec::as_slice));
        }
        Look { state, failed: outcome.is_err() }
    }

    fn reread_userlist(&self, file: &Path) -> Result<(), Vec<String>> {
        let _one = lock(&self.reloading);
        let running = self.cx.settings.load_full();
        let outcome = config::with_userlist(&self.path, &running)
            .map(|loaded| {
                loaded.notices.iter().for_each(|notice| events::has_no_effect(notice));
                self.enact(loaded.settings, self.cx.server_tls.load_full());
            })
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>());
        // Out of files, or of rights to it, nothing is known of what it holds: whom it takes away would stay. It is tried again.
        if outcome.is_err() && files::open(file).is_ok() {
            // The next change is looked at again.
            let userlist_read = config::file_state(file);
            self.cx.settings.store(Arc::new(Settings { userlist_read, ..(*running).clone() }));
        }
        outcome
    }

    /// SET on the console: one key of `[general]`, until the next reload. Blocks on files.
    ///
    /// # Errors
    /// The key or the value can't be used; nothing has changed then.
    pub fn set(&self, key: &str, value: &str) -> Result<(), SetError> {
        let _one = lock(&self.reloading);
        let settings = config::set(&self.path, &self.cx.settings.load(), key, value)?;
        self.apply(settings).map_err(SetError::Invalid)
    }

    fn apply(&self, settings: Settings) -> Result<(), String> {
        let tls = Acceptor::new(&settings.general.client_tls).map_err(|e| e.to_string())?;
        let server_tls = Connector::new(&settings.general.server_tls).map_err(|e| e.to_string())?;
        let audit = Sink::open(settings.general.audit_file.as_deref())
            .map_err(|e| format!("audit_file can't be opened: {e}"))?;
        self.tls.store(Arc::new(tls));
        self.cx.audit.switch(audit);
        self.enact(settings, Arc::new(server_tls));
        Ok(())
    }

    /// Nothing fails here, so that a key which is just being replaced keeps no change of `auth_file` out.
    fn enact(&self, settings: Settings, server_tls: Arc<Connector>) {
        self.peers.store(Arc::new(Peers::new(&settings, (*server_tls).clone())));
        self.cx.server_tls.store(Arc::clone(&server_tls));
        self.auth.reload(&settings);
        telemetry::set_level(&settings.general.log_level);
        let settings = Arc::new(settings);
        let before = self.cx.settings.swap(Arc::clone(&settings));
        self.lookups.forget();
        // Behind that: a pool that is made later is made of the new ones.
        for pool in self.cx.pools.all() {
            match settings.database(&pool.key.database) {
                Some(database) => follow(&pool, database, (&before, &settings), &server_tls),
                // New clients are told that it does not exist; those that are here end their transactions.
                None => pool.give_up(),
            }
        }
        self.cx.generation.fetch_add(1, Ordering::AcqRel);
        let pools = self.cx.pools.all();
        self.cx.lanes.forget_all(|pool| pools.iter().any(|known| std::ptr::eq(&**known, pool)));
        for client in self.cx.clients.all() {
            client.signal(Signal::Reload);
        }
    }
}

/// What one pool gets. Its connections are replaced if they go somewhere else, as somebody else, or begin in another way.
fn follow(pool: &Arc<Pool>, database: &Database, (before, now): (&Settings, &Settings), tls: &Connector) {
    let (settings, had) = (login::pool_settings(now, database, &pool.key), pool.settings.load_full());
    let alone = |settings: &pool::Settings| settings.mode == PoolMode::Session;
    let begins_anew = settings.connect_query != had.connect_query || alone(&settings) != alone(&had);
    pool.govern(settings);
    // The secret of a login that the entry named is no client's.
    let named = before.database(&pool.key.database).is_some_and(|entry| entry.user.is_some());
    // By what is there when it is replaced: a client may have proved another secret just now.
    let old = pool.target.rcu(|old| {
        let proved = if named { &Credential::None } else { &old.credential };
        let credential = credential_now(now, &pool.key.user, proved);
        login::pool_target(now, tls.clone(), database, &pool.key, credential)
    });
    let new = pool.target.load();
    let moved = (&old.hosts, old.port, old.attrs, &old.dbname, &old.user, &old.startup)
        != (&new.hosts, new.port, new.attrs, &new.dbname, &new.user, &new.startup)
        || before.general.server_tls != now.general.server_tls
        || old.tls.read_others(tls);
    if moved || begins_anew {
        pool.reconnect("what it logs in with was changed");
    }
}

/// What auth_file holds now is good for a login, unless it is a verifier: then what the last client proved has to do.
fn credential_now(settings: &Settings, user: &str, proved: &Credential) -> Credential {
    match settings.userlist.get(user).map(Credential::from_secret) {
        None | Some(Credential::None) => proved.clone(),
        Some(configured) => configured,
    }
}

/// A list that did not change stays the same one: sessions tell by that whether it did.
fn keep_what_is_the_same(running: &AllowLists, new: &mut AllowLists) {
    for (file, list) in new {
        if let Some(old) = running.get(file).filter(|old| *old == list) {
            *list = Arc::clone(old);
        }
    }
}

/// What is in effect is what SHOW CONFIG says, and what the next reload warns of again.
fn keep_what_needs_a_restart(running: &General, new: &mut General) {
    new.listen_addr.clone_from(&running.listen_addr);
    new.listen_port = running.listen_port;
    new.listen_backlog = running.listen_backlog;
    new.unix_socket_dir.clone_from(&running.unix_socket_dir);
    new.unix_socket_mode = running.unix_socket_mode;
    new.unix_socket_group.clone_from(&running.unix_socket_group);
    new.so_reuseport = running.so_reuseport;
    new.http_addr = running.http_addr;
    new.workers = running.workers;
    new.pidfile.clone_from(&running.pidfile);
    new.log_format = running.log_format;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicBool;

    use crate::pool::{PoolKey, Pools};
    use crate::server::connect::Target;
    use crate::settings::{LogFormat, Tls};

    #[test]
    fn every_key_that_needs_a_restart_is_kept() {
        let running = Settings::default();
        let general = General {
            listen_addr: vec!["::1".into()],
            listen_port: 1,
            listen_backlog: 7,
            unix_socket_dir: Some("/run".into()),
            unix_socket_mode: 0o700,
            unix_socket_group: Some("root".into()),
            so_reuseport: true,
            http_addr: Some(SocketAddr::from(([127, 0, 0, 1], 80))),
            workers: 3,
            pidfile: Some("/run/pid".into()),
            log_format: LogFormat::Json,
            ..General::default()
        };
        let mut new = Settings { general, ..Settings::default() };
        let restart =
            config::keys().iter().filter(|key| key.section == config::Section::General && !key.reloadable);
        let differ = config::needs_restart(&running, &new);
        assert_eq!(differ, restart.map(|key| key.name).collect::<Vec<_>>(), "all of them differ here");
        keep_what_needs_a_restart(&running.general, &mut new.general);
        assert!(config::needs_restart(&running, &new).is_empty());
    }

    /// A login that stored all of what it had read would bring the server's old address back, until the next reload.
    #[test]
    fn what_a_client_proves_undoes_nothing_that_a_reload_changes_meanwhile() {
        const RELOADS: u16 = 20_000;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pgsluice.toml");
        let text = "[general]\nauth_type = \"trust\"\n[databases.app]\nhost = \"127.0.0.1\"\n";
        std::fs::write(&file, text).unwrap();
        let settings = config::read(&file).unwrap().settings;
        let (key, tls) = (PoolKey::new("app".into(), "ann".into()), Connector::new(&Tls::default()).unwrap());
        let entry = &settings.databases["app"];
        let pool = Pools::default().get(&key, || login::pool_of_entry(&settings, &tls, entry, &key));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let secrets = (0_u64..).take_while(|_| !ended.load(Ordering::Relaxed));
                secrets.for_each(|n| pool.log_in_with(&Credential::plain(n.to_string())));
            });
            let brought_back = (1..=RELOADS).find(|port| {
                pool.target.rcu(|now| Target { port: *port, ..Target::clone(now) });
                std::thread::yield_now();
                pool.target.load().port != *port
            });
            ended.store(true, Ordering::Relaxed);
            assert_eq!(brought_back, None);
        });
        assert!(matches!(pool.target.load().credential, Credential::Plain(_)));
    }
}
