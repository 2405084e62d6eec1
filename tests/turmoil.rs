//! Every kind of row under way while the server is changed under it: tables are altered, emptied, replaced and locked, connections
//! are terminated, statements cancelled, the pool paused and renewed. Whatever happens, a row that was acknowledged is there once,
//! one that was refused is not there, and nobody's wait is without an end.
//!
//! `PGSLUICE_TEST_SEED` chooses the order; `PGSLUICE_TEST_CHANGES` how many changes.

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pgsluice::wire::backend as b;
use support::console::tell;
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
    next: AtomicUsize,
    ended: AtomicUsize,
}

impl World {
    fn login(&self) -> Raw {
        let asked = [("user", "postgres"), ("database", self.db.as_str())];
        let client = poll(PATIENCE, || Raw::login_as(self.port, &asked, "").ok());
        client.expect("nobody is let in any more")
    }

    /// Units of `load` until the end; what is known of each, by its first row.
    fn insert(&self, load: Load) -> Vec<(usize, Load, Known)> {
        let (mut all, mut client) = (Vec::new(), self.login());
        while !self.stop.load(Ordering::Acquire) {
            let first = self.next.fetch_add(load.rows(), Ordering::Relaxed);
            let known = unit(&mut client, load, first);
            if known == Known::Unknown {
                client = self.login();
            }
            all.push((first, load, known));
            self.ended.fetch_add(1, Ordering::AcqRel);
        }
        all
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
];

struct Server<'a> {
    pg: &'a Postgres,
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
            "RECONNECT" | "RELOAD" => tell(&mut self.console, what),
            "PAUSE" => {
                tell(&mut self.console, what);
                tell(&mut self.console, undone);
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
    let (stop, next, ended) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let world = World { port: proxy.port(), db, stop, next, ended };
    let (seed, changes) = (from_env("PGSLUICE_TEST_SEED", 1), from_env("PGSLUICE_TEST_CHANGES", 34));
    let known: Vec<_> = std::thread::scope(|scope| {
        let clients = LOADS.iter().cycle().take(LOADS.len() * EACH);
        let world = &world;
        let clients: Vec<_> = clients.map(|load| scope.spawn(|| world.insert(*load))).collect();
        let mut server = Server {
            pg,
            world,
            console: Raw::login(proxy.port(), "pgsluice"),
            admin: Raw::login(pg.port(), &world.db),
        };
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut random = Seeded(seed);
            for change in 0..changes as usize {
                // Each of them before any comes again.
                let at = if change < CHANGES.len() { change } else { random.below(CHANGES.len()) };
                println!("{}", CHANGES[at].0);
                server.change(CHANGES[at]);
            }
        }));
        world.stop.store(true, Ordering::Release);
        let known = clients.into_iter().flat_map(|c| c.join().expect("a client panicked")).collect();
        if let Err(panic) = changed {
            std::panic::resume_unwind(panic);
        }
        known
    });
    settle(pg, &world.db, &known);
}

/// Holds what the clients know against what is there.
fn settle(pg: &Postgres, db: &str, known: &[(usize, Load, Known)]) {
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
    println!(
        "{} stored, {} refused, {} unknown",
        count(Known::Stored),
        count(Known::Refused),
        count(Known::Unknown)
    );
    assert!(count(Known::Stored) > 0 && count(Known::Refused) > 0);
}
