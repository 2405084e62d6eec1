//! What `/metrics` says: the counters behind the console, by pool, by table and by rule. Never: changes anything.
//!
//! Names of series are bounded: pools that are in use, `METRICS_TABLES_MAX` tables that rows were poured into, rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Proxy;
use super::show::resident_bytes;
use crate::coalesce::batch::Form;
use crate::coalesce::evidence::{Fallback, LaneStats};
use crate::limits::METRICS_TABLES_MAX;
use crate::pool::{Counts, PinnedBy, Pool, PoolKey, Stats};
use crate::telemetry::exposition::Exposition;
use crate::telemetry::histogram::Histogram;
use crate::telemetry::tally::{Tally, load};
use crate::wire::copy::CopyFormat;
use crate::wire::startup::Replication;

/// Name, help, and which counter of a pool.
type PoolCounter = (&'static str, &'static str, fn(&Stats) -> &AtomicU64);

const POOL_COUNTERS: &[PoolCounter] = &[
    ("pgsluice_transactions_total", "Transactions.", |s| &s.xact_count),
    ("pgsluice_queries_total", "Query and Execute messages, and Syncs without one.", |s| &s.query_count),
    ("pgsluice_received_bytes_total", "Bytes from clients.", |s| &s.received),
    ("pgsluice_sent_bytes_total", "Bytes to clients.", |s| &s.sent),
    ("pgsluice_server_assignments_total", "Times that a client was given a server.", |s| {
        &s.server_assignment_count
    }),
    ("pgsluice_client_parses_total", "Parse messages from clients.", |s| &s.client_parse_count),
    ("pgsluice_server_parses_total", "Parse messages to servers.", |s| &s.server_parse_count),
    ("pgsluice_binds_total", "Bind messages from clients.", |s| &s.bind_count),
    ("pgsluice_client_logins_total", "Logins of clients.", |s| &s.login_count),
    ("pgsluice_server_logins_total", "Server connections that were opened.", |s| &s.server_login_count),
    ("pgsluice_server_logins_failed_total", "Server connections that could not be opened.", |s| {
        &s.server_login_failed_count
    }),
];

/// Name, help, and which counter of a table.
type LaneCounter = (&'static str, &'static str, fn(&LaneStats) -> &AtomicU64);

const LANE_COUNTERS: &[LaneCounter] = &[
    ("pgsluice_coalesce_flushes_total", "Flushes committed.", |s| &s.flushes),
    ("pgsluice_coalesce_behind_total", "Flushes sent behind another on its connection.", |s| &s.behind),
    ("pgsluice_coalesce_passed_through_total", "Offers passed on (budget, failures).", |s| &s.passed_on),
    ("pgsluice_coalesce_failures_total", "Flushes that failed.", |s| &s.failures),
    ("pgsluice_coalesce_isolated_total", "Of those, with an error that named the guilty row.", |s| {
        &s.isolated
    }),
    ("pgsluice_coalesce_bisects_total", "Of those, where the rows went again in halves.", |s| &s.bisects),
    ("pgsluice_coalesce_resolved_total", "Outcomes in doubt that the server told afterwards.", |s| {
        &s.resolved
    }),
    ("pgsluice_coalesce_unknown_total", "Outcomes that could not be known (08007).", |s| &s.unknown),
    ("pgsluice_coalesce_dead_rows_total", "Rows of failed flushes, for VACUUM to clear away.", |s| {
        &s.dead_rows
    }),
    ("pgsluice_coalesce_notices_total", "Notices that came with a flush.", |s| &s.notices),
    ("pgsluice_coalesce_shadow_rows_total", "Rows that mode = \"shadow\" would have poured.", |s| &s.shadow),
];

/// Name, help, and which histogram of a table.
type LaneHistogram = (&'static str, &'static str, fn(&LaneStats) -> &Histogram);

const LANE_TIMES: &[LaneHistogram] = &[
    ("pgsluice_coalesce_flush_seconds", "Time of committed flushes from their leaving to the answer.", |s| {
        &s.flush_time
    }),
    (
        "pgsluice_coalesce_wait_seconds",
        "How long the first row of a flush waited; no other waited longer.",
        |s| &s.wait,
    ),
];

/// How rows are stored, in the order of [`plan_rows`].
const PLANS: [&str; 6] = ["as_sent", "values", "copy_text", "copy_binary", "copy_mixed", "pipelined"];

/// What stands for the tables beyond `METRICS_TABLES_MAX`. None has this name: each has its schema's before a dot.
const OTHERS: &str = "others";

/// A table's labels, and its counters: one for each column list and format.
type Tables = Vec<([String; 3], Vec<Arc<LaneStats>>)>;

impl Proxy {
    /// The page.
    pub(super) fn metrics(&self) -> String {
        let mut page = Exposition::default();
        self.put_process(&mut page);
        let mut pools = self.cx.pools.all();
        pools.sort_by(|a, b| a.key.cmp(&b.key));
        put_pools(&mut page, &pools.iter().map(|pool| &**pool).collect::<Vec<_>>());
        put_tally(
            &mut page,
            (
                "pgsluice_client_logins_refused_total",
                "Logins of clients that were refused, by what they were told.",
            ),
            &self.cx.refused,
        );
        put_tally(
            &mut page,
            ("pgsluice_clients_closed_total", "Clients that were closed, by what they were told."),
            &self.cx.closed,
        );
        self.put_coalesce(&mut page);
        self.put_policy(&mut page);
        page.into_text()
    }

    fn put_process(&self, page: &mut Exposition) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.gauge("pgsluice_info", "The version that runs.").add(&version, 1);
        let up = micros(self.started.elapsed());
        page.gauge("pgsluice_uptime_seconds", "Time since the start.").add_micros(&[], up);
        page.gauge("pgsluice_ready", "0: clients should be sent elsewhere.").add(&[], self.is_ready().into());
        page.gauge("pgsluice_draining", "1: no client is let in any more.")
            .add(&[], self.is_draining().into());
        page.gauge("pgsluice_paused", "1: PAUSE holds all databases.")
            .add(&[], self.cx.pools.all_paused().into());
        page.gauge("pgsluice_clients", "Clients that are logged in.").add(&[], self.let_in() as u64);
        page.gauge("pgsluice_logins", "Connections that have not logged in yet.")
            .add(&[], self.logins_under_way() as u64);
        if let Some(bytes) = resident_bytes() {
            page.gauge("pgsluice_resident_bytes", "Memory of the process.").add(&[], bytes as u64);
        }
        let statements = self.cx.pools.shared().statements.bytes() as u64;
        page.gauge("pgsluice_prepared_statement_bytes", "Texts of prepared statements.").add(&[], statements);
    }

    fn put_coalesce(&self, page: &mut Exposition) {
        let lanes = self.cx.lanes.lanes();
        let waiting = lanes.iter().map(|lane| lane.load().bytes as u64).sum();
        page.gauge("pgsluice_coalesce_waiting_bytes", "Bytes that wait for a flush.").add(&[], waiting);
        let [_, held] = self.cx.lanes.held();
        page.gauge(
            "pgsluice_coalesce_held_bytes",
            "Bytes of units and blocks that are held by their sessions.",
        )
        .add(&[], held as u64);
        let tables = by_table(self.cx.lanes.evidence.all());
        put_rows(page, &tables);
        for (name, help, of) in LANE_COUNTERS {
            page.counter(name, help);
            for (table, stats) in &tables {
                page.add(&table_labels(table), stats.iter().map(|stats| load(of(stats))).sum());
            }
        }
        page.histogram("pgsluice_coalesce_flush_rows", "Rows of committed flushes.");
        for (table, stats) in &tables {
            let rows: Vec<_> = stats.iter().map(|stats| &stats.batch_rows).collect();
            page.add_numbers(&table_labels(table), &rows);
        }
        for (name, help, of) in LANE_TIMES {
            page.histogram(name, help);
            for (table, stats) in &tables {
                let times: Vec<_> = stats.iter().map(|stats| of(stats)).collect();
                page.add_times(&table_labels(table), &times);
            }
        }
    }

    fn put_policy(&self, page: &mut Exposition) {
        page.counter("pgsluice_policy_messages_total", "Messages that met a rule of the policy.");
        for (rule, rejected, reported) in self.cx.audit.counts() {
            page.add(&[("rule", rule.as_str()), ("verdict", "reject")], rejected);
            page.add(&[("rule", rule.as_str()), ("verdict", "report")], reported);
        }
        let progress = self.cx.audit.progress();
        page.counter("pgsluice_audit_events_total", "Audit events, by what became of them.")
            .add(&[("outcome", "written")], progress.written)
            .add(&[("outcome", "lost")], progress.lost);
    }
}

fn put_tally(page: &mut Exposition, (name, help): (&'static str, &str), tally: &Tally) {
    page.counter(name, help);
    for (kind, count) in tally.counts() {
        page.add(&[("kind", kind)], count);
    }
}

/// By database, user and table. The first ones keep their names, so that no counter falls when one more comes.
fn by_table(mut all: Vec<Arc<LaneStats>>) -> Tables {
    all.sort_by_key(|stats| stats.number);
    let mut tables: BTreeMap<[String; 3], Vec<_>> = BTreeMap::new();
    for stats in all {
        let key = [&stats.key.database, &stats.key.user, &stats.key.table].map(Clone::clone);
        let is_named = tables.len() < METRICS_TABLES_MAX || tables.contains_key(&key);
        let key = if is_named { key } else { [String::new(), String::new(), OTHERS.to_owned()] };
        tables.entry(key).or_default().push(stats);
    }
    tables.into_iter().collect()
}

fn table_labels([database, user, table]: &[String; 3]) -> [(&str, &str); 3] {
    [("database", database), ("user", user), ("table", table)]
}

fn put_rows(page: &mut Exposition, tables: &Tables) {
    page.counter("pgsluice_coalesce_rows_total", "Rows stored, by how; as_sent: nothing was under way.");
    for (table, stats) in tables {
        let [database, user, table] = table_labels(table);
        let mut rows = [0; PLANS.len()];
        for stats in stats {
            rows.iter_mut().zip(plan_rows(stats)).for_each(|(all, more)| *all += more);
        }
        for (plan, rows) in PLANS.into_iter().zip(rows) {
            page.add(&[database, user, table, ("plan", plan)], rows);
        }
    }
    page.counter("pgsluice_coalesce_fallback_rows_total", "Rows handed back to be run singly, by reason.");
    for (table, stats) in tables {
        let [database, user, table] = table_labels(table);
        for why in Fallback::ALL {
            let rows = stats.iter().map(|stats| stats.fallbacks()[why as usize].1).sum();
            page.add(&[database, user, table, ("reason", why.as_str())], rows);
        }
    }
}

fn plan_rows(stats: &LaneStats) -> [u64; PLANS.len()] {
    let mut rows = [load(&stats.singles), load(&stats.values_rows), 0, 0, 0, 0];
    let is = |form: Form| stats.key.format == form.as_str();
    let plan = match () {
        () if is(Form::Copy(CopyFormat::Text)) => 2,
        () if is(Form::Copy(CopyFormat::Binary)) => 3,
        () if is(Form::Pipelined) => 5,
        // Several tables in one flush, each in its own format.
        () => 4,
    };
    rows[plan] = load(&stats.whole_rows);
    rows
}

fn put_pools(page: &mut Exposition, pools: &[&Pool]) {
    let counts: Vec<Counts> = pools.iter().map(|pool| pool.counts()).collect();
    page.gauge("pgsluice_pool_clients", "Clients of a pool; waiting: in its queue for a server.");
    for (pool, counts) in pools.iter().zip(&counts) {
        let all = pool.clients.load(Ordering::Relaxed);
        page.add(&labels(pool, ("state", "all")), all as u64);
        page.add(&labels(pool, ("state", "waiting")), counts.waiting as u64);
    }
    page.gauge("pgsluice_pool_servers", "Server connections of a pool.");
    for (pool, counts) in pools.iter().zip(&counts) {
        for (state, n) in [("active", counts.active), ("idle", counts.idle), ("login", counts.login)] {
            page.add(&labels(pool, ("state", state)), n as u64);
        }
    }
    page.gauge("pgsluice_pool_size", "Most server connections of a pool, without its reserve; 0: no limit.");
    for pool in pools {
        page.add(&names(pool), pool.settings.load().size as u64);
    }
    page.gauge("pgsluice_pool_longest_wait_seconds", "The longest wait for a server that is going on.");
    for (pool, counts) in pools.iter().zip(&counts) {
        page.add_micros(&names(pool), micros(counts.maxwait));
    }
    page.histogram("pgsluice_wait_seconds", "How long clients waited for a server, of those that had to.");
    for pool in pools {
        page.add_times(&names(pool), &[&pool.stats.wait]);
    }
    page.counter("pgsluice_transaction_seconds_total", "Time that clients had a server.");
    for pool in pools {
        page.add_micros(&names(pool), load(&pool.stats.xact_time));
    }
    for (name, help, of) in POOL_COUNTERS {
        page.counter(name, help);
        for pool in pools {
            page.add(&names(pool), load(of(&pool.stats)));
        }
    }
    page.counter("pgsluice_pinned_total", "Times that session state kept a client on its server connection.");
    for pool in pools {
        for by in PinnedBy::ALL {
            page.add(&labels(pool, ("reason", by.as_str())), load(pool.stats.pinned(by)));
        }
    }
}

/// Pools of replication connections stand apart: their database and user may have one for SQL as well.
fn names(pool: &Pool) -> Vec<(&str, &str)> {
    let PoolKey { database, user, replication } = &pool.key;
    let kind = (*replication != Replication::None).then(|| ("replication", replication.as_str()));
    [("database", &**database), ("user", &**user)].into_iter().chain(kind).collect()
}

fn labels<'a>(pool: &'a Pool, more: (&'a str, &'a str)) -> Vec<(&'a str, &'a str)> {
    let mut labels = names(pool);
    labels.push(more);
    labels
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_beyond_the_bound_are_one_and_the_first_keep_their_names() {
        let stats = |number: usize| {
            let mut stats = LaneStats::default();
            stats.number = number;
            stats.key.table = format!("public.t{:05}", 99_999 - number);
            Arc::new(stats)
        };
        let few = by_table((0..METRICS_TABLES_MAX).map(stats).collect());
        let many = by_table((0..METRICS_TABLES_MAX + 10).map(stats).collect());
        let names = |tables: &Tables| tables.iter().map(|([.., table], _)| table.clone()).collect::<Vec<_>>();
        assert_eq!((few.len(), many.len()), (METRICS_TABLES_MAX, METRICS_TABLES_MAX + 1));
        assert!(names(&few).iter().all(|name| names(&many).contains(name)));
        let others = many.iter().find(|([.., table], _)| table == OTHERS).expect("the others");
        assert_eq!(others.1.len(), 10);
    }
}
