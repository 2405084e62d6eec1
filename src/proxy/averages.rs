//! The averages of SHOW STATS: counters now against counters one `stats_period` ago. Never: counts anything itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::admin::rows::Counters;
use crate::mutex::lock;
use crate::telemetry::events;

/// Between two calls of [`Averages::tick`], more or less.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// Counters by database.
pub(super) type ByDatabase = HashMap<String, Counters>;

/// The last full period.
#[derive(Debug, Default)]
pub(super) struct Averages(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    began: Option<Instant>,
    /// Counters when it began.
    then: ByDatabase,
    averages: ByDatabase,
    over_all: Counters,
}

impl Averages {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    /// Ends the period at the tick that is nearest to its end, and gives its averages over all databases; `totals` are
    /// the counters since the start.
    pub(super) fn tick(
        &self,
        now: Instant,
        period: Duration,
        totals: impl FnOnce() -> ByDatabase,
    ) -> Option<Counters> {
        let mut inner = self.lock();
        let Some(began) = inner.began else {
            inner.began = Some(now);
            inner.then = totals();
            return None;
        };
        let passed = now.duration_since(began);
        if passed + TICK / 2 < period || passed.is_zero() {
            return None;
        }
        let totals = totals();
        let none = Counters::default();
        let came = |(name, now): (&String, &Counters)| {
            (name.clone(), now.since(inner.then.get(name).unwrap_or(&none)))
        };
        let came: ByDatabase = totals.iter().map(came).collect();
        let mut sum = Counters::default();
        // Not of the sums: the counters of a database that is gone would be missing from what came in the others.
        came.values().for_each(|counters| sum.add(counters));
        inner.averages = came.iter().map(|(name, came)| (name.clone(), average(came, passed))).collect();
        inner.over_all = average(&sum, passed);
        inner.then = totals;
        inner.began = Some(now);
        Some(inner.over_all)
    }

    /// Over the last full period; nothing before the first one has ended.
    pub(super) fn of(&self, database: &str) -> Counters {
        self.lock().averages.get(database).copied().unwrap_or_default()
    }

    /// The same over all databases.
    pub(super) fn over_all(&self) -> Counters {
        self.lock().over_all
    }
}

/// `log_stats`
pub(super) fn log(average: &Counters) {
    events::stats(&events::Stats {
        xacts: average.xact_count,
        queries: average.query_count,
        client_parses: average.client_parse_count,
        server_parses: average.server_parse_count,
        binds: average.bind_count,
        logins: average.client_login_count,
        received: average.received,
        sent: average.sent,
        xact_us: average.xact_time,
        query_us: average.query_time,
        wait_us: average.wait_time,
    });
}

/// Rates for each second; times inside transactions and queries for each of those, and waits for each time a server was given.
fn average(came: &Counters, passed: Duration) -> Counters {
    let rate = |count: u64| {
        let rate = u128::from(count) * 1_000_000 / passed.as_micros().max(1);
        u64::try_from(rate).unwrap_or(u64::MAX)
    };
    let each = |time: u64, count: u64| time.checked_div(count).unwrap_or(0);
    Counters {
        server_assignment_count: rate(came.server_assignment_count),
        xact_count: rate(came.xact_count),
        query_count: rate(came.query_count),
        received: rate(came.received),
        sent: rate(came.sent),
        xact_time: each(came.xact_time, came.xact_count),
        query_time: each(came.query_time, came.query_count),
        wait_time: each(came.wait_time, came.server_assignment_count),
        client_parse_count: rate(came.client_parse_count),
        server_parse_count: rate(came.server_parse_count),
        bind_count: rate(came.bind_count),
        client_login_count: rate(came.client_login_count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(xact_count: u64, xact_time: u64) -> ByDatabase {
        let counters = Counters { xact_count, xact_time, ..Counters::default() };
        HashMap::from([("app".to_owned(), counters)])
    }

    #[test]
    fn a_period_ends_when_it_has_passed_and_the_next_begins_there() {
        let averages = Averages::default();
        let (start, period) = (Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        averages.tick(at(0), period, || of(100, 1_000));
        averages.tick(at(9), period, || unreachable!("the period has not passed"));
        assert_eq!(averages.of("app"), Counters::default());
        let over_all = averages.tick(at(10), period, || of(150, 6_000)).expect("a period has passed");
        assert_eq!((over_all.xact_count, over_all.xact_time), (5, 100));
        let first = averages.of("app");
        assert_eq!((first.xact_count, first.xact_time), (5, 100), "a rate, and a time for each");
        averages.tick(at(20), period, || of(150, 6_000));
        let idle = averages.of("app");
        assert_eq!((idle.xact_count, idle.xact_time), (0, 0));
        assert_eq!(averages.of("other"), Counters::default());
    }

    /// The clock of ticks and that of periods are not the same.
    #[test]
    fn a_tick_that_comes_a_little_early_ends_the_period_as_well() {
        let averages = Averages::default();
        let (start, period) = (Instant::now(), Duration::from_secs(2));
        let at = |millis| start + Duration::from_millis(millis);
        averages.tick(at(0), period, || of(0, 0));
        averages.tick(at(1_001), period, || unreachable!("half of it"));
        assert_eq!(
            averages.tick(at(1_998), period, || of(2, 0)).map(|over_all| over_all.xact_count),
            Some(1)
        );
        averages.tick(at(3_001), period, || unreachable!("half of the next"));
        assert!(averages.tick(at(3_999), period, || of(2, 0)).is_some());
    }

    #[test]
    fn a_database_that_came_meanwhile_counts_from_nothing() {
        let averages = Averages::default();
        let (start, period) = (Instant::now(), Duration::from_secs(1));
        averages.tick(start, period, HashMap::new);
        averages.tick(start + period, period, || of(7, 70));
        assert_eq!(averages.of("app").xact_count, 7);
    }

    /// In PgBouncer, too. Its monitors take them for what one transaction took and one client waited.
    #[test]
    fn times_over_all_are_for_each_of_all_however_few_there_were() {
        let counters = |count, time, wait_time| Counters {
            xact_count: count,
            xact_time: time,
            query_count: 2 * count,
            query_time: time,
            server_assignment_count: count,
            wait_time,
            ..Counters::default()
        };
        let averages = Averages::default();
        let (start, period) = (Instant::now(), Duration::from_secs(60));
        averages.tick(start, period, || HashMap::from([("gone".to_owned(), counters(9_000, 9_000, 9_000))]));
        assert_eq!(averages.over_all(), Counters::default(), "no period has passed");
        let told = averages.tick(start + period, period, || {
            HashMap::from([
                ("a".to_owned(), counters(3, 300, 60)),
                ("b".to_owned(), counters(1, 500, 100)),
                ("idle".to_owned(), counters(0, 0, 0)),
            ])
        });
        let all = averages.over_all();
        assert_eq!(told, Some(all));
        assert_eq!((all.xact_count, all.xact_time, all.query_time, all.wait_time), (0, 200, 100, 40));
        assert_eq!((averages.of("a").wait_time, averages.of("b").wait_time), (20, 100));
        assert_eq!(averages.of("idle").wait_time, 0);
    }
}
