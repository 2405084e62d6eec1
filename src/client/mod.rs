//! One client, from its first byte to its last.
//!
//! Owns: the handshake, the session between transactions, the relay inside them. Never: chooses a server
//! connection (the pool does), understands a statement (`sql` does), decides what may pass (`policy` does).
//!
//! ```text
//!            request                 server given              ReadyForQuery(I), nothing owed
//!   Idle ------------> Waiting ---------------------> Active ---------------------------------> Idle
//!     |                   | query_wait_timeout:          | keeps it while state is bound to it (pinned)
//!     | INSERT a lane     v FATAL 53300                  v server lost: FATAL 08006
//!     | takes           closed                         closed
//!     v
//!   Coalescing --- outcome ---> Idle (answered), or Active (run singly)
//!
//!   Active is IdleInTransaction while its client says nothing inside a block.
//! ```

mod defer;
pub mod handshake;
mod hold;
mod judge;
mod ldap;
pub mod login;
mod pour;
pub mod relay;
pub mod replication;
mod run;
pub mod session;
pub mod state;
mod walk;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;

use crate::cancel::{ClientShared, Registry};
use crate::coalesce::Lanes;
use crate::error::Error;
use crate::learn::Learner;
use crate::net::Connector;
use crate::policy::{Rejection, Verdict};
use crate::pool::{PoolKey, Pools};
use crate::settings::Settings;
use crate::telemetry::audit::{Audit, Source};
use crate::telemetry::events::{self, Stranger};
use crate::telemetry::tally::Tally;
use crate::wire::backend::ErrorFields;

pub(crate) use login::rules;

/// What every session may use.
#[derive(Debug)]
pub struct Context {
    /// The operator's choices; a reload swaps them.
    pub settings: ArcSwap<Settings>,
    /// TLS toward servers, by these.
    pub server_tls: ArcSwap<Connector>,
    /// Counts reloads: a session takes its rules anew when it moved.
    pub generation: AtomicUsize,
    /// Server connections.
    pub pools: Pools,
    /// Clients.
    pub clients: Registry,
    /// Batches.
    pub lanes: Arc<Lanes>,
    /// What `allow_list = "learn"` saw.
    pub learner: Arc<Learner>,
    /// What met the policy.
    pub audit: Arc<Audit>,
    /// Why logins were refused.
    pub refused: Tally,
    /// Why sessions ended that their clients had not ended.
    pub closed: Tally,
}

impl Context {
    /// What the policy says of a client that has no session yet: it is written down, and the error if it is refused.
    fn judged(&self, source: Source<'_>, verdict: Verdict) -> Result<(), Error> {
        let (rejection, rejected) = match verdict {
            Verdict::Reject(rejection) => (rejection, true),
            Verdict::Report(rejection) => (rejection, false),
            Verdict::Pass | Verdict::Single => return Ok(()),
        };
        self.audit.record(source, "StartupMessage", &rejection, rejected);
        if rejected { Err(state::policy_error(&rejection)) } else { Ok(()) }
    }

    /// A session has ended, by an error of `ours` or otherwise: said where the operator wants to hear of it.
    pub(crate) fn log_end(&self, me: &ClientShared, ours: bool, why: &str) {
        let general = &self.settings.load().general;
        if general.log_disconnections || (ours && general.log_pooler_errors) {
            events::session_ended(me.who(&me.place()), why);
        }
    }

    /// A login was refused by `error` of ours; `asked` is known where the startup packet was read.
    pub(crate) fn log_refused(&self, peer: &dyn Display, asked: Option<&PoolKey>, error: &Error) {
        self.refused.count(Some(error.kind()));
        if self.settings.load().general.log_pooler_errors {
            events::client_refused(stranger(&peer.to_string(), asked), error);
        }
    }

    /// The same by the server's error.
    pub(crate) fn log_refused_by_server(&self, peer: &dyn Display, asked: &PoolKey, error: &[u8]) {
        self.refused.count(None);
        if self.settings.load().general.log_pooler_errors {
            let message = ErrorFields::new(error).field(b'M').unwrap_or_default();
            let message = String::from_utf8_lossy(message);
            events::client_refused_by_server(stranger(&peer.to_string(), Some(asked)), &message);
        }
    }
}

fn stranger<'a>(peer: &'a str, asked: Option<&'a PoolKey>) -> Stranger<'a> {
    let (user, database) = (asked.map(|asked| &*asked.user), asked.map(|asked| &*asked.database));
    Stranger { user, database, peer }
}

/// Writes down what of one client met the policy.
#[derive(Debug)]
pub struct Auditor {
    me: Arc<ClientShared>,
    audit: Arc<Audit>,
}

impl Auditor {
    /// For `me`.
    pub fn new(me: &Arc<ClientShared>, audit: &Arc<Audit>) -> Self {
        Self { me: Arc::clone(me), audit: Arc::clone(audit) }
    }

    /// See [`Audit::record`]; never waits.
    pub fn record(&self, message: &'static str, rejection: &Rejection, rejected: bool) {
        let ClientShared { id, peer, tls, asked, .. } = &*self.me;
        let source =
            Source { client: *id, address: *peer, tls: *tls, user: &asked.user, database: &asked.database };
        self.audit.record(source, message, rejection, rejected);
    }
}
