//! What the cells run on: a PostgreSQL of their own, pgsluices in front of it, pgbench. Never: what is measured.

use std::cell::OnceCell;
use std::fs;

use crate::common::{Log, number_after, pgbench};
use crate::support::{PgOptions, Postgres, Proxy};

/// Commits wait for the disk.
pub const SYNC: &str = "bench";
/// `synchronous_commit = off`.
pub const ASYNC: &str = "bench_async";
/// Ten integers, as in the first seed.
pub const TEN_INTS: &str =
    "(id1 int, id2 int, id3 int, id4 int, id5 int, id6 int, id7 int, id8 int, id9 int, id10 int)";

/// Servers of one run.
pub struct Lab {
    pub postgres: Postgres,
    pgsluice: OnceCell<Proxy>,
    /// A short run.
    pub quick: bool,
}

impl Lab {
    pub fn start(quick: bool) -> Self {
        let conf = "fsync = on\nsynchronous_commit = on\nmax_connections = 300\nshared_buffers = 1GB\n\
                    max_wal_size = 8GB\ncheckpoint_timeout = 30min\nlog_checkpoints = off\nautovacuum = off\n";
        let postgres = Postgres::start(PgOptions { conf: conf.into(), ..PgOptions::default() });
        for database in [SYNC, ASYNC] {
            postgres.psql("postgres", &format!("CREATE DATABASE {database}"));
        }
        postgres.psql("postgres", &format!("ALTER DATABASE {ASYNC} SET synchronous_commit = off"));
        Self { postgres, pgsluice: OnceCell::new(), quick }
    }

    /// pgsluice as it comes.
    pub fn pgsluice(&self) -> &Proxy {
        self.pgsluice.get_or_init(|| self.pgsluice_with(""))
    }

    /// One with these lines of configuration.
    pub fn pgsluice_with(&self, rest: &str) -> Proxy {
        let quiet = "workers = 0\nlog_connections = false\nlog_disconnections = false\n\
                     log_pooler_errors = false\nlog_level = \"warn\"";
        Proxy::to(&self.postgres, quiet, "", rest)
    }

    /// `full`, or `quick` in a short run.
    pub fn effort(&self, full: u64, quick: u64) -> u64 {
        if self.quick { quick } else { full }
    }

    /// Runs SQL direct.
    pub fn sql(&self, database: &str, text: &str) -> String {
        self.postgres.psql(database, text)
    }

    /// Empties tables; what they held before is written out first, so that no later run pays for it.
    pub fn empty(&self, database: &str, tables: &str) {
        self.sql(database, &format!("TRUNCATE {tables}"));
        self.sql(database, "CHECKPOINT");
    }
}

/// How long pgbench runs.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    Seconds(u64),
    /// Transactions of each client.
    Transactions(u64),
}

/// One run of pgbench.
pub struct Load<'a> {
    pub script: String,
    /// pgbench's `-M`.
    pub mode: &'a str,
    pub clients: usize,
    /// Rows (or commands) in one transaction of the script.
    pub rows: usize,
    pub until: Until,
    pub database: &'a str,
}

/// What it gave.
pub struct Ran {
    /// Rows (or commands) per second.
    pub rate: f64,
    /// Transactions per second.
    pub tps: f64,
    pub log: Log,
}

impl Load<'_> {
    /// Against the server or proxy on `port`. Panics when a transaction failed.
    pub fn run(&self, port: u16) -> Ran {
        let dir = tempfile::tempdir().expect("temporary directory");
        let script = dir.path().join("script");
        fs::write(&script, &self.script).expect("write the script");
        let mut command = pgbench(port);
        command.args(["-n", "-M", self.mode, "-c", &self.clients.to_string()]);
        command.args(["-j", if self.clients > 1 { "2" } else { "1" }]);
        match self.until {
            Until::Seconds(n) => command.args(["-T", &n.to_string()]),
            Until::Transactions(n) => command.args(["-t", &n.to_string()]),
        };
        command.arg("-l").arg("--log-prefix").arg(dir.path().join("log")).arg("-f").arg(&script);
        let output = command.arg(self.database).output().expect("run pgbench");
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "pgbench failed: {stderr}\n{}", self.script);
        let failed: u64 = number_after(&stdout, "failed transactions: ").unwrap_or(0);
        assert!(failed == 0, "{failed} transactions failed:\n{}", self.script);
        let tps: f64 = number_after(&stdout, "\ntps = ").expect("tps");
        Ran { rate: tps * self.rows as f64, tps, log: Log::read(dir.path()) }
    }
}
