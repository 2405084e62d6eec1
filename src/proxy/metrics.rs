//! What `/metrics` says: the counters behind the console, by pool, by table and by rule. Never: changes anything.
//!
//! Names of series are bounded by what there is: pools that are in use, tables that rows were poured into, rules.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Proxy;
use super::show::resident_bytes;
use crate::coalesce::evidence::LaneStats;
use crate::pool::{Counts, Pool, Stats};
use crate::telemetry::exposition::Exposition;

/// Name, help, and which counter of a pool.
type PoolCounter = (&'static str, &'static str, fn(&Stats) -> &AtomicU64);

const POOL_COUNTERS: &[PoolCounter] = &[
    ("pgsluice_transactions_total", "Transactions.", |s| &s.xact_count),
    ("pgsluice_queries_total", "Query and Execute messages.", |s| &s.query_count),
    ("pgsluice_received_bytes_total", "Bytes from clients.", |s| &s.received),
    ("pgsluice_sent_bytes_total", "Bytes to clients.", |s| &s.sent),
    ("pgsluice_server_assignments_total", "Times that a client was given a server.", |s| {
        &s.server_assignment_count
    }),
    ("pgsluice_client_parses_total", "Parse messages from clients.", |s| &s.client_parse_count),
    ("pgsluice_server_parses_total", "Parse messages to servers.", |s| &s.server_parse_count),
    ("pgsluice_binds_total", "Bind messages from clients.", |s| &s.bind_count),
    ("pgsluice_client_logins_total", "Logins of clients.", |s| &s.login_count),
];

/// What keeps a client on its connection, in the order of `Stats::pinned`.
const PINNED: [&str; 5] = ["listen", "advisory_lock", "temporary", "hold_cursor", "prepare"];

/// Name, help, and which counter of a table.
type LaneCounter = (&'static str, &'static str, fn(&LaneStats) -> &AtomicU64);

const LANE_COUNTERS: &[LaneCounter] = &[
    ("pgsluice_coalesce_rows_total", "Rows committed by flushes.", |s| &s.rows),
    ("pgsluice_coalesce_values_rows_total", "Of those, rows of INSERTs of many VALUES.", |s| &s.values_rows),
    ("pgsluice_coalesce_flushes_total", "Flushes committed.", |s| &s.flushes),
    ("pgsluice_coalesce_singles_total", "Rows sent as they came, because nothing was under way.", |s| {
        &s.singles
    }),
    ("pgsluice_coalesce_passed_through_total", "Offers passed on (budget, failures).", |s| &s.passed_on),
    ("pgsluice_coalesce_fallbacks_total", "Rows handed back to be run singly.", |s| &s.fallbacks),
    ("pgsluice_coalesce_failures_total", "Flushes that failed.", |s| &s.failures),
    ("pgsluice_coalesce_resolved_total", "Outcomes in doubt that the server told afterwards.", |s| {
        &s.resolved
    }),
    ("pgsluice_coalesce_unknown_total", "Outcomes that could not be known (08007).", |s| &s.unknown),
    ("pgsluice_coalesce_dead_rows_total", "Rows of failed flushes, for VACUUM to clear away.", |s| {
        &s.dead_rows
    }),
    ("pgsluice_coalesce_shadow_rows_total", "Rows that mode = \"shadow\" would have poured.", |s| &s.shadow),
];

impl Proxy {
    /// The page.
    pub(super) fn metrics(&self) -> String {
        let mut page = Exposition::default();
        self.put_process(&mut page);
        let mut pools = self.cx.pools.all();
        pools.sort_by(|a, b| a.key.cmp(&b.key));
        put_pools(&mut page, &pools.iter().map(|pool| &**pool).collect::<Vec<_>>());
        self.put_coalesce(&mut page);
        self.put_policy(&mut page);
        page.into_text()
    }

    fn put_process(&self, page: &mut Exposition) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.gauge("pgsluice_info", "The version that runs.").add(&version, 1);
        let up = micros(self.started.elapsed());
        page.gauge("pgsluice_uptime_seconds", "Time since the start.").add_micros(&[], up);
        page.gauge("pgsluice_draining", "1: no client is let in any more.")
            .add(&[], self.is_draining().into());
        page.gauge("pgsluice_paused", "1: PAUSE holds all databases.")
            .add(&[], self.cx.pools.all_paused().into());
        page.gauge("pgsluice_clients", "Clients that are logged in.").add(&[], self.let_in() as u64);
        page.gauge("pgsluice_logins", "Connections that have not logged in yet.")
            .add(&[], self.logins.len() as u64);
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
        let mut tables: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for stats in self.cx.lanes.evidence.all() {
            let key = (stats.key.database.clone(), stats.key.user.clone(), stats.key.table.clone());
            tables.entry(key).or_default().push(stats);
        }
        for (name, help, of) in LANE_COUNTERS {
            page.counter(name, help);
            for ((database, user, table), stats) in &tables {
                let labels = [("database", &**database), ("user", &**user), ("table", &**table)];
                page.add(&labels, stats.iter().map(|stats| load(of(stats))).sum());
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
    page.gauge("pgsluice_pool_size", "Most server connections of a pool, without its reserve.");
    for pool in pools {
        page.add(&names(pool), pool.settings.load().size as u64);
    }
    page.gauge("pgsluice_pool_longest_wait_seconds", "The longest wait for a server that is going on.");
    for (pool, counts) in pools.iter().zip(&counts) {
        page.add_micros(&names(pool), micros(counts.maxwait));
    }
    page.times("pgsluice_wait_seconds", "How long clients waited for a server, of those that had to.");
    for pool in pools {
        page.add_times(&names(pool), &pool.stats.wait, load(&pool.stats.wait_time));
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
        for (reason, count) in PINNED.iter().zip(&pool.stats.pinned) {
            page.add(&labels(pool, ("reason", reason)), load(count));
        }
    }
}

fn names(pool: &Pool) -> [(&str, &str); 2] {
    [("database", &pool.key.database), ("user", &pool.key.user)]
}

fn labels<'a>(pool: &'a Pool, more: (&'a str, &'a str)) -> [(&'a str, &'a str); 3] {
    let [database, user] = names(pool);
    [database, user, more]
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
