//! Timeouts of clients. Never: ends a session (it is told, and does it itself).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Proxy;
use crate::cancel::{ClientState, Signal};
use crate::settings::{General, User};
use crate::wire::startup::Replication;

/// Between two looks, as in PgBouncer. Ten thousand clients cost some milliseconds at most each time, and nothing where no timeout is set.
const LOOK: Duration = Duration::from_millis(333);

/// Those of one client; zero: none.
struct Limits {
    idle: Duration,
    idle_inside: Duration,
    query: Duration,
    transaction: Duration,
}

impl Limits {
    fn of(general: &General, user: Option<&Arc<User>>) -> Self {
        let own =
            |of: fn(&User) -> Option<Duration>, common| user.and_then(|user| of(user)).unwrap_or(common);
        Self {
            idle: own(|user| user.client_idle_timeout, general.client_idle_timeout),
            idle_inside: own(|user| user.idle_transaction_timeout, general.idle_transaction_timeout),
            query: own(|user| user.query_timeout, general.query_timeout),
            transaction: own(|user| user.transaction_timeout, general.transaction_timeout),
        }
    }

    fn any(&self) -> bool {
        [self.idle, self.idle_inside, self.query, self.transaction].iter().any(|limit| !limit.is_zero())
    }

    /// Which one has passed for who is in this state for so long, and in its transaction.
    fn passed(&self, (state, age, xact): (ClientState, Duration, Duration)) -> Option<Signal> {
        use ClientState::{Active, Coalescing, Idle, IdleInTransaction, Waiting};
        let over = |age: Duration, limit: Duration| !limit.is_zero() && age >= limit;
        match state {
            Idle if over(age, self.idle) => Some(Signal::IdleTimeout),
            IdleInTransaction if over(age, self.idle_inside) => Some(Signal::IdleTransactionTimeout),
            Waiting | Active | Coalescing if over(age, self.query) => Some(Signal::QueryTimeout),
            Active | Coalescing | IdleInTransaction if over(xact, self.transaction) => {
                Some(Signal::TransactionTimeout)
            }
            _ => None,
        }
    }
}

impl Proxy {
    /// Tells clients of timeouts that have passed.
    pub(super) async fn watch_timeouts(self: Arc<Self>) {
        let mut tick = tokio::time::interval(LOOK);
        loop {
            tick.tick().await;
            self.enforce_timeouts(Instant::now());
        }
    }

    fn enforce_timeouts(&self, now: Instant) {
        let settings = self.cx.settings.load();
        let limits = |user| Limits::of(&settings.general, user);
        if !limits(None).any() && !settings.users.values().any(|user| limits(Some(user)).any()) {
            return;
        }
        // Replication is one query without an end.
        let clients = self.cx.clients.all().into_iter();
        for client in clients.filter(|client| client.asked.replication == Replication::None) {
            let limits = limits(settings.users.get(&client.asked.user));
            if let Some(signal) = limits.passed(client.watch(now)) {
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
        let limits = Limits { idle: s(1), idle_inside: s(2), query: s(3), transaction: s(4) };
        let almost = Duration::from_millis(1);
        for (state, limit, signal) in [
            (Idle, s(1), Signal::IdleTimeout),
            (IdleInTransaction, s(2), Signal::IdleTransactionTimeout),
            (Waiting, s(3), Signal::QueryTimeout),
            (Active, s(3), Signal::QueryTimeout),
            (Coalescing, s(3), Signal::QueryTimeout),
        ] {
            assert_eq!(limits.passed((state, limit, s(0))), Some(signal), "{state:?}");
            assert_eq!(limits.passed((state, limit - almost, s(0))), None, "{state:?}");
            let told = matches!(state, Active | Coalescing | IdleInTransaction);
            let transaction = told.then_some(Signal::TransactionTimeout);
            assert_eq!(limits.passed((state, s(0), s(4))), transaction, "{state:?}");
            assert_eq!(limits.passed((state, s(0), s(4) - almost)), None, "{state:?}");
        }
        let none = Limits { idle: s(0), idle_inside: s(0), query: s(0), transaction: s(0) };
        assert!(limits.any() && !none.any());
        assert_eq!(none.passed((Active, s(1000), s(1000))), None);
    }
}
