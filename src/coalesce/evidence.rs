//! What operators can see of pouring: counters by table, which outlive lanes, and the recent flushes.
//!
//! Owns: [`LaneStats`], one for each database, user, table, column list and format, kept across RELOAD and DDL; a ring of
//! [`Flush`]es that says whose statements were in which batch. Never: decides anything; holds a value or a statement's text.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::mutex::lock;
use crate::telemetry::histogram::Histogram;

/// Flushes remembered.
const FLUSHES_KEPT: usize = 256;

/// Clients named for one flush; of further ones only the number is known.
const CLIENTS_NAMED: usize = 64;

/// Tables (by column list and format) whose counters are kept; further ones have their own, which are not shown once
/// their lane has gone.
const STATS_MAX: usize = 10_000;

/// Memory for their names and column lists (bytes).
const STATS_BYTES_MAX: usize = 32 << 20;

/// What is counted together: lanes that differ only in session settings, or in what the table was before a DDL.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatsKey {
    /// The name clients ask for.
    pub database: String,
    /// The server's user.
    pub user: String,
    /// `schema.table`
    pub table: String,
    /// The column list.
    pub columns: String,
    /// text, binary or pipelined; of several tables each table's, where they differ.
    pub format: String,
}

impl StatsKey {
    /// Memory for it (bytes), as a key and in its counters.
    fn bytes(&self) -> usize {
        let Self { database, user, table, columns, format } = self;
        2 * [database, user, table, columns, format].into_iter().map(String::len).sum::<usize>()
    }
}

/// Counters of one table in the flushes of a [`LaneStats`].
#[derive(Debug, Default)]
pub struct TableStats {
    /// `schema.table`
    pub name: String,
    /// Rows stored by COPY.
    pub rows: AtomicU64,
    /// Rows of undone COPYs.
    pub dead_rows: AtomicU64,
}

/// Counters of the lanes of one [`StatsKey`], for the console and the metrics.
#[derive(Debug, Default)]
pub struct LaneStats {
    /// Whose they are.
    pub key: StatsKey,
    /// Their number, in the order in which they were first counted.
    pub number: usize,
    /// Apart for each table that a flush has rows for.
    pub tables: Box<[TableStats]>,
    /// Rows committed.
    pub rows: AtomicU64,
    /// Of those, rows that were stored by an INSERT of many VALUES.
    pub values_rows: AtomicU64,
    /// The others: they went in the lane's format.
    pub whole_rows: AtomicU64,
    /// Flushes that were sent behind another on its connection.
    pub behind: AtomicU64,
    /// COPYs that committed.
    pub flushes: AtomicU64,
    /// Rows that left as they were sent because the lane was idle.
    pub singles: AtomicU64,
    /// Rows handed back to be run singly, by [`Fallback`].
    fallbacks: [AtomicU64; Fallback::ALL.len()],
    /// COPYs that failed.
    pub failures: AtomicU64,
    /// Failures in which the error named the guilty row.
    pub isolated: AtomicU64,
    /// Failures after which the batch went again in halves.
    pub bisects: AtomicU64,
    /// Rows of failed COPYs, which VACUUM has to clear away.
    pub dead_rows: AtomicU64,
    /// Units whose outcome could not be known.
    pub unknown: AtomicU64,
    /// Units whose connection was lost at the commit, and whose outcome the server told afterwards.
    pub resolved: AtomicU64,
    /// Offers passed on (budget, failures).
    pub passed_on: AtomicU64,
    /// Rows that would have been poured (`mode = "shadow"`).
    pub shadow: AtomicU64,
    /// Notices and warnings that came with a flush.
    pub notices: AtomicU64,
    /// Rows of each COPY that committed.
    pub batch_rows: Histogram,
    /// Microseconds from a batch's leaving to the answer, of each COPY that committed.
    pub flush_time: Histogram,
    /// Microseconds that the first row of each batch waited before it left: no row of it waited longer.
    pub wait: Histogram,
}

impl LaneStats {
    /// What is counted of one of its tables.
    pub fn of_table(&self, name: &str) -> Option<&TableStats> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Counts rows that are handed back.
    pub fn fell_back(&self, why: Fallback, rows: usize) {
        self.fallbacks[why as usize].fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// How many were, and why.
    pub fn fallbacks(&self) -> [(Fallback, u64); Fallback::ALL.len()] {
        Fallback::ALL.map(|why| (why, self.fallbacks[why as usize].load(Ordering::Relaxed)))
    }
}

/// Why rows were handed back to be run singly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// They were too few to gain by a flush.
    Few,
    /// There was no place or no connection to send them on.
    NotSent,
    /// An error named the row.
    Row,
    /// A lock was waited for longer than `coalesce.lock_timeout`.
    Lock,
    /// Any other error, `coalesce.flush_timeout` among them.
    Error,
    /// The guard found another table than was planned for.
    TableChanged,
    /// The connection was lost, and surely nothing was stored.
    Lost,
}

impl Fallback {
    /// In the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Few, Self::NotSent, Self::Row, Self::Lock, Self::Error, Self::TableChanged, Self::Lost];

    /// As the metrics show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Few => "few",
            Self::NotSent => "not_sent",
            Self::Row => "row",
            Self::Lock => "lock",
            Self::Error => "error",
            Self::TableChanged => "table_changed",
            Self::Lost => "lost",
        }
    }

    /// The reason that follows from how a COPY ended.
    pub fn after(seen: &Seen) -> Self {
        match seen.outcome {
            FlushOutcome::NotSent => Self::NotSent,
            FlushOutcome::RowFailed => Self::Row,
            FlushOutcome::TableChanged => Self::TableChanged,
            FlushOutcome::Lost | FlushOutcome::SettledAborted => Self::Lost,
            _ if seen.sqlstate.as_deref() == Some("55P03") => Self::Lock,
            _ => Self::Error,
        }
    }
}

/// How one COPY ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Its COMMIT was confirmed.
    Committed,
    /// It is part of a client's own open block, which decides what becomes of it.
    InBlock,
    /// Rolled back; the error named a row.
    RowFailed,
    /// Rolled back; the error named no row.
    Failed,
    /// Rolled back by the guard: the table is not what was planned for, or has to be looked at again.
    TableChanged,
    /// There was no connection to send it on.
    #[default]
    NotSent,
    /// The connection was lost, surely before its COMMIT.
    Lost,
    /// The connection was lost at the COMMIT; the server said afterwards that it committed.
    SettledCommitted,
    /// As before; the server said that it did not.
    SettledAborted,
    /// The connection was lost at the COMMIT, and nobody can say.
    Unknown,
}

impl FlushOutcome {
    /// As the console shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::InBlock => "in_block",
            Self::RowFailed => "row_failed",
            Self::Failed => "failed",
            Self::TableChanged => "table_changed",
            Self::NotSent => "not_sent",
            Self::Lost => "lost",
            Self::SettledCommitted => "settled_committed",
            Self::SettledAborted => "settled_aborted",
            Self::Unknown => "unknown",
        }
    }
}

/// One COPY that was tried.
#[derive(Debug, Clone)]
pub struct Flush {
    /// Counts up while the process runs.
    pub number: u64,
    /// When it ended.
    pub ended: SystemTime,
    /// The counters it went into, and with them its table.
    pub stats: Arc<LaneStats>,
    /// Rows in it.
    pub rows: usize,
    /// Their bytes.
    pub bytes: usize,
    /// How long its first row had waited.
    pub waited: Duration,
    /// From its leaving to the end.
    pub took: Duration,
    /// What the server said.
    pub seen: Seen,
    /// Clients' units in it.
    pub units: usize,
    /// Their clients, [`CLIENTS_NAMED`] at most: the `id` of SHOW CLIENTS and of the log.
    pub clients: Vec<u64>,
}

/// What one COPY showed of itself.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// How it ended.
    pub outcome: FlushOutcome,
    /// Rows of it that went as INSERTs of many VALUES.
    pub values_rows: usize,
    /// The server process that ran it.
    pub server_pid: Option<i32>,
    /// Its transaction, the `xmin` of its rows.
    pub xid: Option<u64>,
    /// SQLSTATE of the error.
    pub sqlstate: Option<String>,
    /// The client whose row the error named.
    pub guilty: Option<u64>,
}

/// The counters that are kept, and the bytes of their keys.
#[derive(Debug, Default)]
struct Counted {
    by_key: BTreeMap<StatsKey, Arc<LaneStats>>,
    bytes: usize,
}

/// All counters, and the ring.
#[derive(Debug, Default)]
pub struct Evidence {
    stats: Mutex<Counted>,
    flushes: Mutex<VecDeque<Flush>>,
    numbers: AtomicU64,
}

impl Evidence {
    /// The counters of `key`, which has these tables; the same ones as long as the process runs.
    pub fn stats<'a>(&self, key: StatsKey, tables: impl Iterator<Item = &'a str>) -> Arc<LaneStats> {
        let mut all = lock(&self.stats);
        if let Some(known) = all.by_key.get(&key) {
            return Arc::clone(known);
        }
        let mut names: Vec<&str> = tables.collect();
        names.sort_unstable();
        names.dedup();
        let table = |name: &str| TableStats { name: name.to_owned(), ..TableStats::default() };
        let tables = names.into_iter().map(table).collect();
        let number = all.by_key.len();
        let new = Arc::new(LaneStats { key, number, tables, ..LaneStats::default() });
        let bytes = all.bytes + new.key.bytes();
        if number < STATS_MAX && bytes <= STATS_BYTES_MAX {
            all.bytes = bytes;
            all.by_key.insert(new.key.clone(), Arc::clone(&new));
        }
        new
    }

    /// All of them, by key.
    pub fn all(&self) -> Vec<Arc<LaneStats>> {
        lock(&self.stats).by_key.values().cloned().collect()
    }

    /// Remembers a COPY that ended; `clients` are those of its units, in order. Its number is given here.
    pub fn remember(&self, mut flush: Flush, clients: impl Iterator<Item = u64>) {
        flush.number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut flushes = lock(&self.flushes);
        let oldest = if flushes.len() < FLUSHES_KEPT { None } else { flushes.pop_front() };
        // The oldest's list is used again: nothing is allocated for a flush once the ring is full.
        let mut named = oldest.map(|oldest| oldest.clients).unwrap_or_default();
        named.clear();
        named.extend(clients.take(CLIENTS_NAMED));
        flush.clients = named;
        flushes.push_back(flush);
    }

    /// The recent flushes, the last one first.
    pub fn flushes(&self) -> Vec<Flush> {
        lock(&self.flushes).iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(stats: &Arc<LaneStats>) -> Flush {
        Flush {
            number: 0,
            ended: SystemTime::UNIX_EPOCH,
            stats: Arc::clone(stats),
            rows: 1,
            bytes: 1,
            waited: Duration::ZERO,
            took: Duration::ZERO,
            seen: Seen::default(),
            units: 1,
            clients: Vec::new(),
        }
    }

    #[test]
    fn the_ring_and_its_lists_are_bounded() {
        let evidence = Evidence::default();
        let stats = evidence.stats(StatsKey::default(), std::iter::empty());
        for n in 0..FLUSHES_KEPT as u64 + 10 {
            evidence.remember(flush(&stats), n..n + 100);
        }
        let flushes = evidence.flushes();
        assert_eq!(flushes.len(), FLUSHES_KEPT);
        let (last, first) = (&flushes[0], &flushes[FLUSHES_KEPT - 1]);
        assert_eq!((last.number, first.number), (FLUSHES_KEPT as u64 + 10, 11));
        assert_eq!(first.clients, (10..10 + CLIENTS_NAMED as u64).collect::<Vec<_>>());
    }

    #[test]
    fn each_reason_to_fall_back_has_its_own_counter() {
        let stats = LaneStats::default();
        for (i, why) in Fallback::ALL.into_iter().enumerate() {
            stats.fell_back(why, i + 1);
        }
        let seen = stats.fallbacks();
        assert_eq!(seen.map(|(why, n)| (why as u64 + 1, n)), [1, 2, 3, 4, 5, 6, 7].map(|n| (n, n)));
        let after = |outcome, sqlstate: &str| {
            Fallback::after(&Seen { outcome, sqlstate: Some(sqlstate.to_owned()), ..Seen::default() })
        };
        assert_eq!(after(FlushOutcome::Failed, "55P03"), Fallback::Lock);
        assert_eq!(after(FlushOutcome::Failed, "57014"), Fallback::Error);
        assert_eq!(after(FlushOutcome::RowFailed, "23514"), Fallback::Row);
    }

    #[test]
    fn counters_of_one_table_are_found_again() {
        let evidence = Evidence::default();
        let key = |table: &str| StatsKey { table: table.into(), ..StatsKey::default() };
        let stats = |table: &str| evidence.stats(key(table), ["u", "t", "u"].into_iter());
        stats("b").rows.fetch_add(3, Ordering::Relaxed);
        stats("a");
        assert_eq!(stats("b").rows.load(Ordering::Relaxed), 3);
        assert_eq!(stats("b").tables.len(), 2);
        assert!(stats("b").of_table("u").is_some() && stats("b").of_table("v").is_none());
        let tables: Vec<_> = evidence.all().iter().map(|stats| stats.key.table.clone()).collect();
        assert_eq!(tables, ["a", "b"]);
        assert_eq!((stats("a").number, stats("b").number), (1, 0));
        for n in 0..STATS_MAX + 5 {
            stats(&n.to_string());
        }
        assert_eq!(evidence.all().len(), STATS_MAX);
    }

    #[test]
    fn column_lists_are_bounded_in_bytes() {
        const LONG: usize = 16 << 10;
        let evidence = Evidence::default();
        let key = |n: usize| StatsKey { columns: format!("{n:0LONG$}"), ..StatsKey::default() };
        for n in 0..STATS_BYTES_MAX / LONG {
            assert_eq!(evidence.stats(key(n), std::iter::empty()).key, key(n));
        }
        assert_eq!(evidence.all().len(), STATS_BYTES_MAX / (2 * LONG));
    }
}
