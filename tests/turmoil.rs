//! Every kind of row under way while the server is changed under it: tables are altered, emptied, replaced and locked, connections
//! are terminated, statements cancelled, the pool paused and renewed. Whatever happens, a row that was acknowledged is there once,
//! one that was refused is not there, and nobody's wait is without an end.
//!
//! `PGSLUICE_TEST_SEED` chooses the order; `PGSLUICE_TEST_CHANGES` how many changes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support;
use pgsluice::wire::backend as b;
use support::console::{self, tell};
use support::pouring::{errors, servers, tags};
use support::seeded::{Seeded, from_env};
use support::{PATIENCE, Postgres, Proxy, Raw, Step, outline, poll};

/// Rows are kept where a change would take them away.
const SETUP: &str = "
    CREATE TABLE t (a int, b text);
    CREATE TABLE kept (a int);
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN IF NEW.a % 3 = 0 THEN RAISE 'refused'; END IF; RETURN NEW; END$$";

/// Clients of each [`Load`].
const EACH: usize = 3;

/// Units that end between a change and its undoing.
const MEANWHILE: usize = 40;

/// What a client sends as one unit: all of its rows are stored, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Literal,
    Extended,
    Returning,
    Pipeline,
    /// Behind a BEGIN of its own.
    Run,
    /// Statement by statement in a block, answered before they are stored.
    Deferred,
}

const LOADS: [Load; 6] =
    [Load::Literal, Load::Extended, Load::Returning, Load::Pipeline, Load::Run, Load::Deferred];

impl Load {
    fn rows(self) -> usize {
        match self {
            Self::Literal | Self::Extended | Self::Returning => 1,
            Self::Pipeline | Self::Run => 30,
            Self::Deferred => 2,
        }
    }

    /// Those with the numbers from `first` on.
    fn steps(self, first: usize) -> Vec<Step> {
        let into = "INSERT INTO t (a, b) VALUES ($1, $2)";
        let number = first.to_string();
        let params = [Some(number.as_str()), Some("row")];
        let literal = |a: usize| Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, 'row')"));
        let rows = (first..first + self.rows()).map(|a| [a.to_string(), "row".to_owned()]);
        let (begin, commit) = (Step::query("BEGIN"), Step::query("COMMIT"));
        match self {
            Self::Literal => vec![literal(first)],
            Self::Extended => vec![Step::extended(into, &params)],
            Self::Returning => vec![Step::extended(&format!("{into} RETURNING a"), &params)],
            Self::Pipeline => vec![Step::pipeline(into, rows, false)],
            Self::Run => {
                let all = [begin, Step::pipeline(into, rows, false), commit];
                let ready = all.iter().map(|step| step.ready).sum();
                vec![Step { bytes: all.into_iter().flat_map(|step| step.bytes).collect(), ready }]
            }
            Self::Deferred => vec![begin, literal(first), literal(first + 1), commit],
        }
    }
}

/// What a client knows of the rows of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Stored,
    Refused,
    /// It lost its connection.
    Unknown,
}

/// What the clients share.
struct World {
    port: u16,
    db: String,
    stop: AtomicBool,
    /// Who loses its connection logs in no more.
    over: AtomicBool,
    next: AtomicUsize,
    ended: AtomicUsize,
}

impl World {
    fn new(proxy: &Proxy, db: String) -> Self {
        let (stop, over) = Default::default();
        Self { port: proxy.port(), db, stop, over, next: AtomicUsize::new(0), ended: AtomicUsize::new(0) }
    }

    /// `None` at the end.
    fn login(&self) -> Option<Raw> {
        if self.over.load(Ordering::Acquire) {
            return None;
        }
        let asked = [("user", "postgres"), ("database", self.db.as_str())];
        let client = poll(PATIENCE, || Raw::login_as(self.port, &asked, "").ok());
        Some(client.expect("nobody is let in any more"))
    }

    /// Units of `load` until the end; what is known of each, by its first row.
    fn insert(&self, load: Load) -> Vec<(usize, Load, Known)> {
        let (mut all, mut client) = (Vec::new(), self.login());
        while let Some(open) = client.as_mut().filter(|_| !self.stop.load(Ordering::Acquire)) {
            let first = self.next.fetch_add(load.rows(), Ordering::Relaxed);
            let known = unit(open, load, first);
            if known == Known::Unknown {
                client = self.login();
            }
            all.push((first, load, known));
            self.ended.fetch_add(1, Ordering::AcqRel);
        }
        all
    }

    /// All clients at work while `meanwhile` runs; what is known of their units.
    fn at_work(&self, meanwhile: impl FnOnce()) -> Vec<(usize, Load, Known)> {
        std::thread::scope(|scope| {
            let clients = LOADS.iter().cycle().take(LOADS.len() * EACH);
            let clients: Vec<_> = clients.map(|load| scope.spawn(|| self.insert(*load))).collect();
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
            self.stop.store(true, Ordering::Release);
            let known = clients.into_iter().flat_map(|c| c.join().expect("a client panicked")).collect();
            if let Err(panic) = done {
                std::panic::resume_unwind(panic);
            }
            known
        })
    }

    /// Waits until so many units have ended.
    fn meanwhile(&self) {
        let until = self.ended.load(Ordering::Acquire) + MEANWHILE;
        let go_on = poll(PATIENCE, || (self.ended.load(Ordering::Acquire) >= until).then_some(()));
        assert!(go_on.is_some(), "nothing goes on any more");
    }
}

fn unit(client: &mut Raw, load: Load, first: usize) -> Known {
    let (mut seen, mut refused) = (Vec::new(), false);
    for step in load.steps(first) {
        if client.try_send(&step.bytes).is_err() {
            return Known::Unknown;
        }
        for _ in 0..step.ready {
            seen.clear();
            while seen.last().is_none_or(|m: &support::Message| m.tag != b::READY_FOR_QUERY) {
                let Some(message) = client.try_read() else { return Known::Unknown };
                seen.push(message);
            }
            refused |= !errors(&seen).is_empty();
        }
    }
    let ended = tags(&seen).pop();
    let wanted = if matches!(load, Load::Run | Load::Deferred) { "COMMIT" } else { "INSERT 0 1" };
    assert!(refused || ended.as_deref() == Some(wanted), "{load:?}: {}", outline(&seen));
    if refused { Known::Refused } else { Known::Stored }
}

/// What is done to the server, and what undoes it.
const CHANGES: &[(&str, &str)] = &[
    ("ALTER TABLE t ADD COLUMN c int DEFAULT 7", "ALTER TABLE t DROP COLUMN c"),
    ("ALTER TABLE t RENAME b TO other", "ALTER TABLE t RENAME other TO b"),
    ("ALTER TABLE t RENAME TO other", "ALTER TABLE other RENAME TO t"),
    ("ALTER TABLE t ALTER b TYPE char(40)", "ALTER TABLE t ALTER b TYPE text"),
    ("ALTER TABLE t ADD CONSTRAINT ck CHECK (a % 5 <> 0) NOT VALID", "ALTER TABLE t DROP CONSTRAINT ck"),
    (
        "CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()",
        "DROP TRIGGER refuse ON t",
    ),
    ("CREATE RULE also AS ON INSERT TO t DO ALSO NOTHING", "DROP RULE also ON t"),
    ("CREATE INDEX i ON t (a)", "DROP INDEX i"),
    (
        "CREATE SCHEMA postgres CREATE TABLE t (a int, b text)",
        "BEGIN; LOCK TABLE postgres.t; INSERT INTO kept SELECT a FROM postgres.t; DROP SCHEMA postgres CASCADE; COMMIT",
    ),
    ("BEGIN; LOCK TABLE t; INSERT INTO kept SELECT a FROM t; TRUNCATE t; COMMIT", ""),
    (
        "BEGIN; LOCK TABLE t; INSERT INTO kept SELECT a FROM t; DROP TABLE t; CREATE TABLE t (b text, a int); COMMIT",
        "BEGIN; LOCK TABLE t; INSERT INTO kept SELECT a FROM t; DROP TABLE t; CREATE TABLE t (a int, b text); COMMIT",
    ),
    ("terminate", ""),
    ("cancel", ""),
    ("lock", ""),
    ("RECONNECT", ""),
    ("PAUSE", "RESUME"),
    ("RELOAD", ""),
    ("KILL", "RESUME"),
    ("KILL_CLIENT", ""),
    ("DISABLE", "ENABLE"),
    ("RECONNECT", "WAIT_CLOSE"),
    ("FLUSH", ""),
    ("SIGHUP", ""),
    ("SIGUSR1", "SIGUSR2"),
];

struct Server<'a> {
    pg: &'a Postgres,
    proxy: &'a Proxy,
    world: &'a World,
    console: Raw,
    admin: Raw,
}

impl Server<'_> {
    fn change(&mut self, (what, undone): (&str, &str)) {
        let mut each = |sql: &str| sql.split("; ").for_each(|sql| _ = self.admin.rows(sql));
        match what {
            "terminate" => self.signal("pg_terminate_backend(pid)"),
            "cancel" => (0..10).for_each(|_| self.signal("pg_cancel_backend(pid)")),
            "lock" => self.lock(),
            "KILL_CLIENT" => self.kill_clients(),
            "DISABLE" => {
                tell(&mut self.console, &format!("DISABLE {}", self.world.db));
                self.world.meanwhile();
                tell(&mut self.console, &format!("ENABLE {}", self.world.db));
            }
            "RECONNECT" | "RELOAD" | "PAUSE" | "KILL" | "FLUSH" => {
                tell(&mut self.console, what);
                if !undone.is_empty() {
                    tell(&mut self.console, undone);
                }
            }
            "SIGHUP" => self.proxy.signal("HUP"),
            "SIGUSR1" => {
                self.proxy.signal("USR1");
                console::until(
                    &mut self.console,
                    "SHOW DATABASES",
                    &[("name", &self.world.db), ("paused", "1")],
                );
                self.proxy.signal("USR2");
            }
            _ => {
                each(what);
                self.world.meanwhile();
                if !undone.is_empty() {
                    each(undone);
                }
            }
        }
        self.world.meanwhile();
    }

    fn signal(&mut self, what: &str) {
        self.admin.rows(&servers(what, &self.world.db, "pid <> pg_backend_pid() AND state = 'active'"));
    }

    /// Each third.
    fn kill_clients(&mut self) {
        for row in console::show(&mut self.console, "SHOW CLIENTS") {
            let id: u64 = row["id"].parse().expect("a number");
            if row["database"] == self.world.db && id.is_multiple_of(3) {
                // It may have left meanwhile.
                self.console.query(&format!("KILL_CLIENT {id}"));
            }
        }
    }

    /// Until somebody waits for it.
    fn lock(&mut self) {
        self.admin.rows("BEGIN");
        self.admin.rows("LOCK TABLE t");
        let waits = servers("count(*) > 2", &self.world.db, "wait_event_type = 'Lock'");
        self.pg.wait_until("postgres", &waits);
        self.admin.rows("COMMIT");
    }
}

#[test]
fn whatever_is_done_to_the_server_each_answer_is_true() {
    let pg = Postgres::shared();
    let db = pg.fresh_database(SETUP);
    let proxy = Proxy::to(pg, "default_pool_size = 8", "", "[coalesce]\ndeferred = true");
    let world = World::new(&proxy, db);
    let (seed, changes) = (from_env("PGSLUICE_TEST_SEED", 1), from_env("PGSLUICE_TEST_CHANGES", 48));
    let known = world.at_work(|| {
        let mut server = Server {
            pg,
            proxy: &proxy,
            world: &world,
            console: Raw::login(proxy.port(), "pgsluice"),
            admin: Raw::login(pg.port(), &world.db),
        };
        let mut random = Seeded(seed);
        for change in 0..changes as usize {
            // Each of them before any comes again.
            let at = if change < CHANGES.len() { change } else { random.below(CHANGES.len()) };
            println!("{}", CHANGES[at].0);
            server.change(CHANGES[at]);
        }
    });
    let (stored, refused, _) = settle(pg, &world.db, &known);
    assert!(stored > 0 && refused > 0);
}

// ===== the end =====

/// How a process is ended, and whether it lets what is under way end first.
const ENDS: &[(&[&str], bool)] = &[
    (&["SHUTDOWN WAIT_FOR_CLIENTS"], true),
    (&["SHUTDOWN WAIT_FOR_SERVERS"], true),
    (&["TERM"], true),
    (&["INT"], true),
    (&["SHUTDOWN"], false),
    (&["TERM", "TERM"], false),
    (&["QUIT"], false),
];

#[test]
fn however_the_process_ends_each_answer_is_true() {
    let pg = Postgres::shared();
    for (how, drains) in ENDS {
        let db = pg.fresh_database(SETUP);
        let mut proxy = Proxy::to(pg, "default_pool_size = 8", "", "[coalesce]\ndeferred = true");
        let world = World::new(&proxy, db);
        let known = world.at_work(|| {
            (0..10).for_each(|_| world.meanwhile());
            world.over.store(true, Ordering::Release);
            for word in *how {
                match word.strip_prefix("SHUTDOWN") {
                    Some(_) => Raw::login(proxy.port(), "pgsluice").send(&Step::query(word).bytes),
                    None => proxy.signal(word),
                }
            }
            if how[0].ends_with("CLIENTS") {
                world.meanwhile();
            } else {
                proxy.wait_end();
            }
        });
        println!("{how:?}");
        proxy.wait_end();
        let (stored, _, unknown) = settle(pg, &world.db, &known);
        assert!(stored > 0 && (unknown == 0 || how[0] != "SHUTDOWN WAIT_FOR_CLIENTS"), "{how:?}: {unknown}");
        if *drains {
            nobody_lost_an_answer(pg, &world.db, &known);
        }
    }
}

/// Of what was not answered nothing is there.
fn nobody_lost_an_answer(pg: &Postgres, db: &str, known: &[(usize, Load, Known)]) {
    let unknown: Vec<_> = known.iter().filter(|(.., known)| *known == Known::Unknown).collect();
    for (first, load, _) in unknown {
        let there = pg.psql(db, &format!("SELECT count(*) FROM t WHERE a = {first}"));
        assert_eq!(there.trim(), "0", "{load:?} of {first} was stored and not answered");
    }
}

// ===== settings =====

/// `[coalesce]` at its ends.
const EXTREMES: &[&str] = &[
    // The least of each.
    "copy_min_rows = 2\nvalues_max_rows = 0\nmax_rows = 2\nmax_bytes = 1024\nmax_flushes_per_table = 1\nlinger = 0
lock_timeout = 0.001\nflush_timeout = 0.002\nmax_value_bytes = 1\nbudget_bytes = 1024",
    // Small, but rows fit.
    "copy_min_rows = 2\nvalues_max_rows = 0\nmax_rows = 2\nmax_bytes = 1024\nmax_flushes_per_table = 1\nmax_value_bytes = 64
     budget_bytes = 4096",
    "copy_min_rows = 2\nvalues_max_rows = 2\nmax_rows = 3\nmax_flushes_per_table = 64\nlock_timeout = 0.001",
    // Nothing lets a batch leave before the longest wait is over.
    "copy_min_rows = 1000000\nmax_rows = 1000000\nlinger = 0.05",
    // The most.
    "copy_min_rows = 2\nvalues_max_rows = 16\nmax_rows = 1000000\nmax_bytes = \"256MB\"\nmax_flushes_per_table = 64
     linger = 0.02\nlock_timeout = 0.5\nflush_timeout = 0.9\nmax_value_bytes = \"256MB\"\nbudget_bytes = \"64GB\"",
];

#[test]
fn whatever_the_limits_of_pouring_each_answer_is_true() {
    let pg = Postgres::shared();
    for extreme in EXTREMES {
        let db = pg.fresh_database(SETUP);
        let proxy =
            Proxy::to(pg, "default_pool_size = 8", "", &format!("[coalesce]\ndeferred = true\n{extreme}"));
        let world = World::new(&proxy, db);
        let known = world.at_work(|| (0..15).for_each(|_| world.meanwhile()));
        println!("{extreme}");
        let (_, refused, unknown) = settle(pg, &world.db, &known);
        assert_eq!((refused, unknown), (0, 0), "{extreme}");
    }
}

/// Holds what the clients know against what is there. How many units were stored, refused, and are unknown.
fn settle(pg: &Postgres, db: &str, known: &[(usize, Load, Known)]) -> (usize, usize, usize) {
    let there =
        pg.psql(db, "SELECT a, count(*) FROM (SELECT a FROM t UNION ALL SELECT a FROM kept) x GROUP BY a");
    let there: HashMap<usize, usize> = there
        .lines()
        .map(|line| line.split_once('|').expect("two columns"))
        .map(|(a, n)| (a.parse().expect("a number"), n.parse().expect("a count")))
        .collect();
    for (first, load, known) in known {
        let rows: Vec<usize> =
            (*first..first + load.rows()).map(|a| there.get(&a).copied().unwrap_or(0)).collect();
        let all_are = |n: usize| rows.iter().all(|there| *there == n);
        let is_true = match known {
            Known::Stored => all_are(1),
            Known::Refused => all_are(0),
            Known::Unknown => all_are(0) || all_are(1),
        };
        assert!(is_true, "{load:?} of {first}: {known:?}, and there are {rows:?}");
    }
    let count = |which: Known| known.iter().filter(|(.., known)| *known == which).count();
    let counts = (count(Known::Stored), count(Known::Refused), count(Known::Unknown));
    println!("{} stored, {} refused, {} unknown", counts.0, counts.1, counts.2);
    counts
}
