//! Carries out the console's commands. A command takes effect at once, then its end is awaited; to stop waiting undoes nothing.

use std::sync::Arc;

use super::Proxy;
use crate::admin::Refusal;
use crate::admin::parse::{Action, Shutdown};
use crate::cancel::Signal;
use crate::config::SetError;
use crate::mutex::lock;
use crate::pool::Pool;
use crate::settings::CONSOLES;

/// Problems of a configuration that a refusal repeats; the log has them all.
const PROBLEMS_SHOWN: usize = 10;

type Done = Result<(), Refusal>;

impl Proxy {
    /// Does what the console was told.
    ///
    /// Cancel safety: what was begun goes on.
    pub(super) async fn perform(self: &Arc<Self>, action: Action) -> Done {
        match action {
            Action::Pause(database) => self.pause(database.as_deref()).await,
            Action::Resume(database) => self.resume(database.as_deref()),
            Action::Disable(database) => self.disable(&database, true),
            Action::Enable(database) => self.disable(&database, false),
            Action::Reconnect(database) => self.reconnect(database.as_deref()),
            Action::Kill(database) => self.kill(database.as_deref()).await,
            Action::KillClient(id) => self.kill_client(id),
            Action::Suspend => Err(not_supported(
                "SUSPEND is not supported: pgsluice has no online restart that would take the sockets over",
                "Use PAUSE to hold clients, or SHUTDOWN WAIT_FOR_SERVERS to end the process in order. Another process can begin \
                 beside this one (so_reuseport), which SHUTDOWN WAIT_FOR_CLIENTS ends with its last client.",
            )),
            Action::Reload => self.reload_beside().await,
            Action::Set { key, value } => self.set_beside(key, value).await,
            Action::Shutdown(how) => {
                self.shut_down(how);
                Ok(())
            }
            Action::WaitClose(database) => self.wait_close(database.as_deref()).await,
            Action::Flush(table) => self.flush(table.as_deref()).await,
        }
    }

    /// A database that clients can ask for.
    fn known(&self, database: Option<&str>) -> Done {
        let Some(name) = database else { return Ok(()) };
        if CONSOLES.contains(&name) {
            return Err(Refusal::new("55000", format!("database \"{name}\" is the console")));
        }
        if self.cx.settings.load().database(name).is_none() && self.cx.pools.of(database).is_empty() {
            return Err(Refusal::new("3D000", format!("no such database: {name}")));
        }
        Ok(())
    }

    /// Those of clients, and those for lookups.
    fn pools_of(&self, database: Option<&str>) -> Vec<Arc<Pool>> {
        let mut pools = self.cx.pools.of(database);
        pools.extend(self.lookups.of(database));
        pools
    }

    /// PAUSE; waits for nothing.
    pub(super) fn hold(&self, database: Option<&str>) {
        let _turn = lock(&self.holding);
        self.lookups.pause(database);
        self.cx.pools.pause(database);
    }

    /// RESUME. False: it was not paused.
    pub(super) fn let_go(&self, database: Option<&str>) -> bool {
        let _turn = lock(&self.holding);
        self.lookups.resume(database);
        self.cx.pools.resume(database)
    }

    /// Also of what is paused: a client that stopped waiting may wait again.
    async fn pause(&self, database: Option<&str>) -> Done {
        self.known(database)?;
        self.hold(database);
        self.drained(database).await;
        let goes_on = self.pools_of(database).iter().any(|pool| !pool.is_paused());
        if goes_on {
            return Err(Refusal::new("55000", "resumed while PAUSE waited (RESUME)".to_owned()));
        }
        Ok(())
    }

    async fn drained(&self, database: Option<&str>) {
        for pool in self.pools_of(database) {
            pool.drained().await;
        }
    }

    fn resume(&self, database: Option<&str>) -> Done {
        self.known(database)?;
        if self.let_go(database) {
            return Ok(());
        }
        let message = match database {
            Some(name) if self.cx.pools.all_paused() => {
                format!("database {name} is not paused by itself: all are (RESUME)")
            }
            Some(name) => format!("database {name} is not paused"),
            None => "pooler is not paused/suspended".to_owned(),
        };
        Err(Refusal::new("55000", message))
    }

    fn disable(&self, database: &str, disabled: bool) -> Done {
        self.known(Some(database))?;
        self.cx.pools.disable(database, disabled);
        Ok(())
    }

    fn reconnect(&self, database: Option<&str>) -> Done {
        self.known(database)?;
        for pool in self.pools_of(database) {
            pool.reconnect("RECONNECT");
        }
        Ok(())
    }

    async fn wait_close(&self, database: Option<&str>) -> Done {
        self.known(database)?;
        for pool in self.pools_of(database) {
            pool.replaced().await;
        }
        Ok(())
    }

    /// As PgBouncer's: the database stays paused, so that nobody comes back before RESUME.
    async fn kill(&self, database: Option<&str>) -> Done {
        self.known(database)?;
        self.hold(database);
        for client in self.cx.clients.all() {
            if database.is_none_or(|name| client.asked.database == name) {
                client.signal(Signal::Kill);
            }
        }
        self.drained(database).await;
        Ok(())
    }

    fn kill_client(&self, id: u64) -> Done {
        let (clients, consoles) = (self.cx.clients.all(), self.cx.clients.consoles());
        match clients.iter().chain(&consoles).find(|client| client.id == id) {
            Some(client) => {
                client.signal(Signal::Kill);
                Ok(())
            }
            None => Err(Refusal::new("42704", format!("client not found: {id}"))
                .hint("The id is a column of SHOW CLIENTS.")),
        }
    }

    async fn reload_beside(self: &Arc<Self>) -> Done {
        let proxy = Arc::clone(self);
        let outcome = tokio::task::spawn_blocking(move || proxy.reload()).await;
        let problems = match outcome {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(problems)) => problems,
            Err(_) => return Err(Refusal::new("XX000", "the reload ended before its time")),
        };
        let mut message = problems.iter().take(PROBLEMS_SHOWN).cloned().collect::<Vec<_>>().join("; ");
        if problems.len() > PROBLEMS_SHOWN {
            message.push_str(&format!("; and {} more", problems.len() - PROBLEMS_SHOWN));
        }
        Err(Refusal::new("F0000", message).hint("Nothing was changed."))
    }

    async fn set_beside(self: &Arc<Self>, key: String, value: String) -> Done {
        let (proxy, name) = (Arc::clone(self), key.clone());
        let outcome = tokio::task::spawn_blocking(move || proxy.set(&name, &value)).await;
        match outcome {
            Ok(outcome) => outcome.map_err(|why| set_refused(&key, why)),
            Err(_) => Err(Refusal::new("XX000", "the setting ended before its time")),
        }
    }

    /// `Now` is left to the caller, which sends the answer first.
    fn shut_down(&self, how: Shutdown) {
        match how {
            Shutdown::Now => {}
            Shutdown::WaitForServers => self.drain(),
            Shutdown::WaitForClients => self.wait_for_clients(),
        }
    }

    async fn flush(&self, table: Option<&str>) -> Done {
        let mut lanes = self.cx.lanes.lanes();
        if let Some(name) = table {
            lanes.retain(|lane| lane.legs.iter().any(|leg| is_named(&leg.table, name)));
            if lanes.is_empty() {
                return Err(Refusal::new("42P01", format!("nothing was poured into a table {name} yet"))
                    .hint("SHOW COALESCE lists the tables."));
            }
        }
        for lane in lanes {
            lane.flush_now().await;
        }
        Ok(())
    }
}

/// `table` is `schema.table`; `name` is that, or the table's own.
fn is_named(table: &str, name: &str) -> bool {
    table == name || table.split_once('.').is_some_and(|(_, own)| own == name)
}

fn not_supported(message: &str, hint: &'static str) -> Refusal {
    Refusal::new("0A000", message).hint(hint)
}

fn set_refused(key: &str, why: SetError) -> Refusal {
    match why {
        SetError::Unknown(hint) => Refusal::new("42704", format!("{key}: {hint}")),
        SetError::Restart => Refusal::new("55P02", format!("{key} can't be changed without a restart")),
        SetError::File => not_supported(
            &format!("{key} can't be set on the console"),
            "Set it in the configuration file, then RELOAD.",
        ),
        SetError::Invalid(why) => Refusal::new("22023", format!("{key}: {why}")),
    }
}
