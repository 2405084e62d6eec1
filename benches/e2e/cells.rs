//! What is measured, as data: each cell is one load, put on each target in turn.

/// What stands between the client and PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Nothing.
    Direct,
    /// Debian's PgBouncer, transaction pooling, pool 20.
    PgBouncer,
    /// pgsluice as it comes, transaction pooling, pool 20.
    Pgsluice,
    /// The same with `coalesce.mode = off`.
    PgsluiceOff,
    /// The same with `simple_query = "single"`.
    Single,
    /// The same with `simple_query = "control"`.
    Control,
    /// No PostgreSQL at all: a server that answers and stores nothing.
    Ceiling,
}

impl Target {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::PgBouncer => "PgBouncer",
            Self::Pgsluice => "pgsluice",
            Self::PgsluiceOff => "pgsluice-off",
            Self::Single => "single",
            Self::Control => "control",
            Self::Ceiling => "ceiling",
        }
    }
}

/// pgbench's query mode (`-M`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Query messages.
    Simple,
    /// Parse, Bind, Execute each time.
    Extended,
    /// Named statements, parsed once a session.
    Prepared,
}

impl Mode {
    /// pgbench's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
            Self::Prepared => "prepared",
        }
    }
}

/// What the clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// pgbench's own `-S` on a scale of 10.
    SelectOnly,
    /// The same over TLS.
    SelectOnlyTls,
    /// A hundred of its rows in one answer.
    Select100,
    /// The first 20,000 of them.
    Select20000,
    /// pgbench's own `-S`, with a new connection for each query (`-C`).
    Connect,
    /// One autocommit INSERT of ten integers.
    Insert,
    /// The same into a table that is never poured into.
    InsertClosed,
    /// The same, and one row of a hundred violates a CHECK. Not by pgbench, which gives up at an error.
    InsertGuilty,
    /// 64 such INSERTs in one pipeline, one Sync.
    Pipeline64,
    /// BEGIN, one INSERT into each of twelve tables, COMMIT.
    Transaction12,
    /// BEGIN, SHOW, COMMIT.
    Control,
    /// The same, and pgsluice may answer the INSERTs before they are stored (`coalesce.deferred`).
    Deferred12,
    /// Clients that have logged in, and then run one query each, and do nothing.
    Idle,
}

impl Load {
    /// Rows (or queries) in one of pgbench's transactions.
    pub fn rows(self) -> u64 {
        match self {
            Self::Pipeline64 => 64,
            Self::Control => 3,
            Self::Transaction12 | Self::Deferred12 => 12,
            _ => 1,
        }
    }

    /// The tables it fills, emptied before each run and counted after it.
    pub fn tables(self) -> Vec<String> {
        match self {
            Self::Insert | Self::Pipeline64 => vec!["batch".into()],
            Self::InsertClosed => vec!["closed".into()],
            Self::InsertGuilty => vec!["checked".into()],
            Self::Transaction12 | Self::Deferred12 => (1..=12).map(|n| format!("t{n}")).collect(),
            _ => Vec::new(),
        }
    }

    /// pgbench's script; `None` for its own select-only one.
    pub fn script(self) -> Option<String> {
        // One random number a row and the client's number: in the extended modes these are parameters.
        let insert = |table: &str| {
            format!("INSERT INTO {table} VALUES (:client_id, :r, :r, :r, :r, :r, :r, :r, :r, :r);\n")
        };
        let random = "\\set r random(1, 1000000)\n";
        match self {
            Self::SelectOnly | Self::SelectOnlyTls | Self::Connect | Self::Idle | Self::InsertGuilty => None,
            Self::Select100 => Some(
                "\\set aid random(1, 999901)\n\
                 SELECT * FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 99;\n"
                    .into(),
            ),
            Self::Select20000 => Some("SELECT * FROM pgbench_accounts WHERE aid <= 20000;\n".into()),
            Self::InsertClosed => Some(format!("{random}{}", insert("closed"))),
            Self::Control => Some("BEGIN;\nSHOW work_mem;\nCOMMIT;\n".into()),
            Self::Insert => Some(format!("{random}{}", insert("batch"))),
            Self::Pipeline64 => {
                Some(format!("{random}\\startpipeline\n{}\\endpipeline\n", insert("batch").repeat(64)))
            }
            Self::Transaction12 | Self::Deferred12 => {
                let inserts: String = self.tables().iter().map(|t| insert(t)).collect();
                Some(format!("{random}BEGIN;\n{inserts}COMMIT;\n"))
            }
        }
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// What `CELLS` selects by.
    pub name: &'static str,
    /// One line for the report.
    pub what: &'static str,
    /// What the clients do.
    pub load: Load,
    /// How they say it.
    pub mode: Mode,
    /// How many they are.
    pub clients: usize,
    /// Share of the transactions whose latency is written down.
    pub sampling: f64,
    /// Through what.
    pub targets: &'static [Target],
}

impl Cell {
    /// How many times as often as others it runs.
    pub fn times(&self) -> usize {
        if self.is_of_itself() { TIMES_WITH_ITSELF } else { 1 }
    }

    /// It compares pgsluice with nothing else.
    pub fn is_of_itself(&self) -> bool {
        let itself = |t: &Target| {
            matches!(t, Target::Pgsluice | Target::PgsluiceOff | Target::Single | Target::Control)
        };
        self.targets.iter().all(itself)
    }
}

const ALL: &[Target] = &[Target::Direct, Target::PgBouncer, Target::Pgsluice];
/// Debian's PgBouncer has no prepared statements in transaction pooling.
const NO_PGBOUNCER: &[Target] = &[Target::Direct, Target::Pgsluice];
/// What is poured, and the most that could come of it.
const POURED: &[Target] = &[Target::Direct, Target::PgBouncer, Target::Pgsluice, Target::Ceiling];
/// The same, as [`NO_PGBOUNCER`].
const POURED_PREPARED: &[Target] = &[Target::Direct, Target::Pgsluice, Target::Ceiling];
const PROXIES: &[Target] = &[Target::PgBouncer, Target::Pgsluice];
/// What it costs those who have nothing to pour.
const ON_AND_OFF: &[Target] = &[Target::Pgsluice, Target::PgsluiceOff];

/// How many times as often a cell runs that compares pgsluice with itself: a few percent are asked of it, and one second on
/// a shared machine is off by more.
pub const TIMES_WITH_ITSELF: usize = 7;

const fn cell(
    name: &'static str,
    what: &'static str,
    load: Load,
    mode: Mode,
    clients: usize,
    targets: &'static [Target],
) -> Cell {
    let sampling = if matches!(load, Load::SelectOnly | Load::SelectOnlyTls) { 0.1 } else { 1.0 };
    Cell { name, what, load, mode, clients, sampling, targets }
}

/// All cells, in the order of the report.
pub const CELLS: &[Cell] = &[
    cell("select-simple", "select-only, 16 clients, simple", Load::SelectOnly, Mode::Simple, 16, ALL),
    cell("select-extended", "select-only, 16 clients, extended", Load::SelectOnly, Mode::Extended, 16, ALL),
    cell(
        "select-prepared",
        "select-only, 16 clients, prepared",
        Load::SelectOnly,
        Mode::Prepared,
        16,
        NO_PGBOUNCER,
    ),
    cell("select-100", "a hundred rows a query, 8 clients, simple", Load::Select100, Mode::Simple, 8, ALL),
    cell("select-20000", "20,000 rows a query, 4 clients, simple", Load::Select20000, Mode::Simple, 4, ALL),
    cell(
        "tls-select-simple",
        "select-only, 16 clients over TLS, simple",
        Load::SelectOnlyTls,
        Mode::Simple,
        16,
        PROXIES,
    ),
    cell(
        "tls-select-extended",
        "select-only, 16 clients over TLS, extended",
        Load::SelectOnlyTls,
        Mode::Extended,
        16,
        PROXIES,
    ),
    cell(
        "policy-single",
        "select-only, 16 clients, simple; allow and single",
        Load::SelectOnly,
        Mode::Simple,
        16,
        &[Target::Pgsluice, Target::Single],
    ),
    cell(
        "policy-control",
        "BEGIN, SHOW, COMMIT, 16 clients, simple; allow and control",
        Load::Control,
        Mode::Simple,
        16,
        &[Target::Pgsluice, Target::Control],
    ),
    cell("insert-simple-1", "one autocommit INSERT, 1 client, simple", Load::Insert, Mode::Simple, 1, POURED),
    cell("insert-simple-8", "one autocommit INSERT, 8 clients, simple", Load::Insert, Mode::Simple, 8, ALL),
    cell(
        "insert-simple-64",
        "one autocommit INSERT, 64 clients, simple",
        Load::Insert,
        Mode::Simple,
        64,
        POURED,
    ),
    cell(
        "insert-extended-64",
        "one autocommit INSERT, 64 clients, extended",
        Load::Insert,
        Mode::Extended,
        64,
        POURED,
    ),
    cell(
        "insert-prepared-1",
        "one autocommit INSERT, 1 client, prepared",
        Load::Insert,
        Mode::Prepared,
        1,
        POURED_PREPARED,
    ),
    cell(
        "insert-prepared-8",
        "one autocommit INSERT, 8 clients, prepared",
        Load::Insert,
        Mode::Prepared,
        8,
        NO_PGBOUNCER,
    ),
    cell(
        "insert-prepared-64",
        "one autocommit INSERT, 64 clients, prepared",
        Load::Insert,
        Mode::Prepared,
        64,
        POURED_PREPARED,
    ),
    cell(
        "pipeline64-extended",
        "pipelines of 64 INSERTs, 8 clients, extended",
        Load::Pipeline64,
        Mode::Extended,
        8,
        POURED,
    ),
    cell(
        "pipeline64-prepared",
        "pipelines of 64 INSERTs, 8 clients, prepared",
        Load::Pipeline64,
        Mode::Prepared,
        8,
        POURED_PREPARED,
    ),
    cell(
        "tx12-simple",
        "BEGIN, 12 INSERTs into 12 tables, COMMIT, 32 clients, simple",
        Load::Transaction12,
        Mode::Simple,
        32,
        ALL,
    ),
    // pgbench prepares a client's statements with calls that block its whole thread: with more clients than servers, one
    // that waits for a server keeps those of its thread that have one from ever giving it back.
    cell(
        "tx12-prepared",
        "BEGIN, 12 INSERTs into 12 tables, COMMIT, 16 clients, prepared",
        Load::Transaction12,
        Mode::Prepared,
        16,
        NO_PGBOUNCER,
    ),
    cell(
        "guilty-simple-64",
        "one autocommit INSERT, 64 clients, simple; one row of a hundred violates a CHECK",
        Load::InsertGuilty,
        Mode::Simple,
        64,
        NO_PGBOUNCER,
    ),
    cell(
        "off-select-simple",
        "select-only, 16 clients, simple",
        Load::SelectOnly,
        Mode::Simple,
        16,
        ON_AND_OFF,
    ),
    cell(
        "off-select-prepared",
        "select-only, 16 clients, prepared",
        Load::SelectOnly,
        Mode::Prepared,
        16,
        ON_AND_OFF,
    ),
    cell(
        "off-closed-simple",
        "one autocommit INSERT into a table that is not poured into, 16 clients, simple",
        Load::InsertClosed,
        Mode::Simple,
        16,
        ON_AND_OFF,
    ),
    cell(
        "off-closed-prepared",
        "one autocommit INSERT into a table that is not poured into, 16 clients, prepared",
        Load::InsertClosed,
        Mode::Prepared,
        16,
        ON_AND_OFF,
    ),
    cell(
        "tx12-deferred-simple",
        "BEGIN, 12 INSERTs into 12 tables, COMMIT with coalesce.deferred, 32 clients, simple",
        Load::Deferred12,
        Mode::Simple,
        32,
        POURED_PREPARED,
    ),
    cell(
        "tx12-deferred-prepared",
        "BEGIN, 12 INSERTs into 12 tables, COMMIT with coalesce.deferred, 32 clients, prepared",
        Load::Deferred12,
        Mode::Prepared,
        32,
        POURED_PREPARED,
    ),
    cell("connect", "connect, one query, disconnect, 8 clients", Load::Connect, Mode::Simple, 8, ALL),
    cell("idle-9000", "9,000 clients that do nothing, no TLS", Load::Idle, Mode::Simple, 9000, PROXIES),
];

/// The cells that a list of names selects; a name may end in `*`. All of them for an empty list.
/// The error is the name that selects nothing.
pub fn select(names: &[String]) -> Result<Vec<&'static Cell>, String> {
    let matches = |cell: &Cell, name: &str| match name.strip_suffix('*') {
        Some(start) => cell.name.starts_with(start),
        None => cell.name == name,
    };
    if let Some(unknown) = names.iter().find(|n| !CELLS.iter().any(|c| matches(c, n))) {
        let known: Vec<_> = CELLS.iter().map(|c| c.name).collect();
        return Err(format!("no cell is called {unknown:?}; there are: {}", known.join(", ")));
    }
    Ok(CELLS.iter().filter(|c| names.is_empty() || names.iter().any(|n| matches(c, n))).collect())
}
