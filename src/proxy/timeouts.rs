//! Timeouts of clients, and server connections that a client keeps though they are outdated. Never: ends a session (it is told, and does it itself).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Proxy;
use crate::cancel::{ClientShared, ClientState, Signal};
use crate::settings::Timeouts;
use crate::wire::startup::Replication;

/// Between two looks, as in PgBouncer. Ten thousand clients cost some milliseconds at most each time, and nothing where no timeout is set.
const LOOK: Duration = Duration::from_millis(333);

fn is_any_set(limits: Timeouts) -> bool {
    let Timeouts { idle, idle_inside, query, transaction } = limits;
    [idle, idle_inside, query, transaction].iter().any(|limit| !limit.is_zero())
}

/// Which timeout has passed for a client that has been in this state, and in its transaction, for that long.
fn passed(limits: Timeouts, (state, age, xact): (ClientState, Duration, Duration)) -> Option<Signal> {
    use ClientState::{Active, Coalescing, Idle, IdleInTransaction, Waiting};
    let over = |age: Duration, limit: Duration| !limit.is_zero() && age >= limit;
    match state {
        Idle if over(age, limits.idle) => Some(Signal::IdleTimeout),
        IdleInTransaction if over(age, limits.idle_inside) => Some(Signal::IdleTransactionTimeout),
        Waiting | Active | Coalescing if over(age, limits.query) => Some(Signal::QueryTimeout),
        Active | Coalescing | IdleInTransaction if over(xact, limits.transaction) => {
            Some(Signal::TransactionTimeout)
        }
        _ => None,
    }
}

impl Proxy {
    /// Tells clients of timeouts that have passed, and of server connections that are outdated.
    pub(super) async fn watch_timeouts(self: Arc<Self>) {
        let mut tick = tokio::time::interval(LOOK);
        loop {
            tick.tick().await;
            self.enforce_timeouts(Instant::now());
            self.part_from_outdated();
        }
    }

    /// `server_fast_close`
    fn part_from_outdated(&self) {
        if !self.cx.settings.load().general.server_fast_close {
            return;
        }
        let outdated = |client: &&Arc<ClientShared>| {
            client.linked().is_some_and(|server| server.close_needed.load(Ordering::Relaxed))
        };
        let clients = self.cx.clients.all();
        clients.iter().filter(outdated).for_each(|client| client.signal(Signal::ServerOutdated));
    }

    fn enforce_timeouts(&self, now: Instant) {
        let settings = self.cx.settings.load();
        let limited = |user| is_any_set(Timeouts::of(&settings.general, user));
        if !limited(None) && !settings.users.values().any(|user| limited(Some(user))) {
            return;
        }
        // Replication is one query without an end.
        let clients = self.cx.clients.all().into_iter();
        for client in clients.filter(|client| client.asked.replication == Replication::None) {
            let limits = settings.timeouts(&client.asked.user);
            if let Some(signal) = passed(limits, client.watch(now)) {
                client.signal(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_passes_when_its_time_is_over_and_in_its_states_only() {
        use ClientState::{Active, Coalescing, Idle, IdleInTransaction, Waiting};
        let s = Duration::from_secs;
        let limits = Timeouts { idle: s(1), idle_inside: s(2), query: s(3), transaction: s(4) };
        let almost = Duration::from_millis(1);
        for (state, limit, signal) in [
            (Idle, s(1), Signal::IdleTimeout),
            (IdleInTransaction, s(2), Signal::IdleTransactionTimeout),
            (Waiting, s(3), Signal::QueryTimeout),
            (Active, s(3), Signal::QueryTimeout),
            (Coalescing, s(3), Signal::QueryTimeout),
        ] {
            assert_eq!(passed(limits, (state, limit, s(0))), Some(signal), "{state:?}");
            assert_eq!(passed(limits, (state, limit - almost, s(0))), None, "{state:?}");
            let told = matches!(state, Active | Coalescing | IdleInTransaction);
            let transaction = told.then_some(Signal::TransactionTimeout);
            assert_eq!(passed(limits, (state, s(0), s(4))), transaction, "{state:?}");
            assert_eq!(passed(limits, (state, s(0), s(4) - almost)), None, "{state:?}");
        }
        let none = Timeouts { idle: s(0), idle_inside: s(0), query: s(0), transaction: s(0) };
        assert!(is_any_set(limits) && !is_any_set(none));
        assert_eq!(passed(none, (Active, s(1000), s(1000))), None);
    }
}
