//! Flushes that lose their connection: whatever byte it is cut at, an acknowledged row is there once, none is there twice,
//! and a client whose row's fate nobody can know is told so. The same for whole transactions over two tables.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support;
use pgsluice::coalesce::batch::COPY_ROWS;
use pgsluice::wire::backend;
use support::console::{find, show};
use support::pouring::{FLUSH_WAITS, servers};
use support::seeded::from_env;
use support::{Cut, Cutter, Message, PATIENCE, PgOptions, Postgres, Proxy, Raw, Step, poll};

/// Clients at a time.
const CLIENTS: usize = 6;

/// What a client knows of one of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Stored,
    /// FATAL 08007.
    Unknown,
}

/// What clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Single INSERTs into `t`, every other client's with parameters.
    Rows,
    /// The same with RETURNING.
    Returning,
    /// A block with a row for `t` and two for `u`: statement by statement where that is deferred, or in one pipeline.
    Blocks,
    /// A transaction of [`MANY`] rows for `u` in one pipeline: more than one COPY carries.
    Pipelines,
}

/// Rows of one pipeline.
const MANY: usize = COPY_ROWS + 40;

impl Load {
    /// Is the outcome unknown by this error? A block that left as its own messages is lost as a direct one is.
    fn lost_by(self, sqlstate: &str) -> bool {
        let own = matches!(self, Self::Blocks | Self::Pipelines);
        sqlstate == "08007" || (own && sqlstate == "08006")
    }

    /// What stores `a`, for one of `clients`.
    fn steps(self, client: usize, a: usize) -> Vec<Step> {
        let a = a.to_string();
        let into = |table: &str| format!("INSERT INTO {table} (a, b) VALUES ($1, $2)");
        let params = [Some(a.as_str()), Some("row")];
        let literal = |table: &str| Step::query(&format!("INSERT INTO {table} (a, b) VALUES ({a}, 'row')"));
        match self {
            Self::Rows if client.is_multiple_of(2) => vec![Step::extended(&into("t"), &params)],
            Self::Rows => vec![literal("t")],
            Self::Returning if client.is_multiple_of(2) => {
                vec![Step::extended(&format!("{} RETURNING a", into("t")), &params)]
            }
            Self::Returning => {
                vec![Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, 'row') RETURNING a"))]
            }
            Self::Blocks if client.is_multiple_of(3) => {
                vec![Step::query("BEGIN"), literal("t"), literal("u"), literal("u"), Step::query("COMMIT")]
            }
            Self::Blocks => {
                let all = [
                    Step::extended("BEGIN", &[]),
                    Step::extended(&into("t"), &params),
                    Step::extended(&into("u"), &params),
                    Step::extended(&into("u"), &params),
                    Step::extended("COMMIT", &[]),
                ];
                let ready = all.len();
                vec![Step { bytes: all.into_iter().flat_map(|step| step.bytes).collect(), ready }]
            }
            Self::Pipelines => {
                let rows = (0..MANY).map(|b| [a.clone(), b.to_string()]);
                vec![Step::pipeline(&into("u"), rows, false)]
            }
        }
    }
}

/// What all clients together know.
type Ledger = BTreeMap<usize, Known>;

/// Sends until `stop`, on new connections where one was lost. Panics on an answer that no client without pgsluice could have
/// had, but for an unknown outcome.
fn insert_until(
    stop: &AtomicBool,
    next: &AtomicUsize,
    port: u16,
    db: &str,
    load: Load,
    number: usize,
) -> Vec<(usize, Known)> {
    let mut known = Vec::new();
    let mut client = Raw::login(port, db);
    while !stop.load(Ordering::Acquire) {
        let a = next.fetch_add(1, Ordering::Relaxed);
        let stored = load.steps(number, a).into_iter().try_for_each(|step| {
            client.send(&step.bytes);
            (0..step.ready).try_for_each(|_| answer(&mut client, (load == Load::Returning).then_some(a)))
        });
        match stored {
            Ok(()) => known.push((a, Known::Stored)),
            Err(error) => {
                assert!(load.lost_by(&error.sqlstate()), "{}", error.outline());
                assert_eq!(error.field(b'S'), "FATAL");
                known.push((a, Known::Unknown));
                client = Raw::login(port, db);
            }
        }
    }
    known
}

/// A statement was done, and `returned` came of it; or why not.
fn answer(client: &mut Raw, returned: Option<usize>) -> Result<(), Message> {
    let (mut done, mut told) = (false, None);
    loop {
        let message = client.read();
        match message.tag {
            backend::ERROR_RESPONSE => return Err(message),
            backend::DATA_ROW => told = message.row()[0].as_ref().and_then(|a| a.parse().ok()),
            backend::COMMAND_COMPLETE => {
                done = ["INSERT 0 1", "BEGIN", "COMMIT"].contains(&message.command().as_str());
            }
            backend::READY_FOR_QUERY => {
                assert!(done, "neither a tag nor an error");
                assert_eq!(told, returned, "another's row");
                return Ok(());
            }
            _ => {}
        }
    }
}

/// Runs clients while `work` breaks things; what they know in the end.
fn with_clients(port: u16, db: &str, load: Load, work: impl FnOnce()) -> Ledger {
    let (stop, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|i| {
                let (stop, next) = (&stop, &next);
                scope.spawn(move || insert_until(stop, next, port, db, load, i))
            })
            .collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Release);
        let ledger = clients.into_iter().flat_map(|c| c.join().expect("a client panicked")).collect();
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
        ledger
    })
}

/// Holds the ledger against the table; how many outcomes were unknown, and how many of those rows are there.
fn settle(pg: &Postgres, db: &str, ledger: &Ledger) -> (usize, usize) {
    let twice = pg.psql(db, "SELECT a, count(*) FROM t GROUP BY a HAVING count(*) > 1");
    assert_eq!(twice, "", "rows that are there twice");
    let there: std::collections::BTreeSet<usize> =
        pg.psql(db, "SELECT a FROM t").lines().map(|l| l.parse().expect("a number")).collect();
    let lost: Vec<_> = ledger.iter().filter(|(a, k)| **k == Known::Stored && !there.contains(a)).collect();
    assert!(lost.is_empty(), "acknowledged and not there: {lost:?}");
    let foreign: Vec<_> = there.iter().filter(|a| !ledger.contains_key(a)).collect();
    assert!(foreign.is_empty(), "there and nobody's: {foreign:?}");
    let unknown: Vec<_> = ledger.iter().filter(|(_, k)| **k == Known::Unknown).map(|(a, _)| *a).collect();
    let stored = unknown.iter().filter(|a| there.contains(a)).count();
    (unknown.len(), stored)
}

/// Arms one cut and waits until it is made.
fn cut_once(cutter: &Cutter, cut: Cut) {
    // A lane all of whose flushes fail would be left alone: one or two succeed in between.
    let flushes = cutter.flushes();
    assert!(poll(PATIENCE, || (cutter.flushes() > flushes + 1).then_some(())).is_some(), "no flushes");
    let before = cutter.done();
    cutter.arm(cut);
    assert!(poll(PATIENCE, || (cutter.done() > before).then_some(())).is_some(), "{cut:?} was never made");
}

fn proxy_behind(cutter: &Cutter, pg: &Postgres, rest: &str) -> Proxy {
    // Half of the connections that a crowd needs: a lost one must be replaced, not missed.
    Proxy::to(pg, "", &format!("port = {}\npool_size = 12", cutter.port()), rest)
}

/// How many cuts: `of` by itself, or PGSLUICE_TEST_CUTS (1000 ...).
fn cuts(of: usize) -> usize {
    from_env("PGSLUICE_TEST_CUTS", of as u64) as usize
}

/// All cut points, evenly over both directions, of flushes of about so many bytes up and down.
fn cut_everywhere(cutter: &Cutter, points: usize, up: usize, down: usize) {
    for point in 0..points {
        let at = point / 2;
        let place = |bytes: usize| at * bytes * 2 / points;
        cut_once(cutter, if point % 2 == 0 { Cut::Up(place(up)) } else { Cut::Down(place(down)) });
    }
}

#[test]
fn connections_cut_at_any_byte_of_a_flush() {
    rows_are_there_once(Load::Rows, cuts(200), 250, 90);
}

#[test]
fn connections_cut_at_any_byte_of_a_shared_transaction() {
    rows_are_there_once(Load::Returning, cuts(120), 450, 200);
}

fn rows_are_there_once(load: Load, points: usize, up: usize, down: usize) {
    let table = "CREATE TABLE t (a int, b text)";
    let (_, ledger) = cut_and_settle(load, table, "", points, up, down);
    assert!(ledger.len() > points);
}

/// Clients with `load` while flushes are cut at `points`; the database, and what they knew, which was held against it.
fn cut_and_settle(
    load: Load,
    setup: &str,
    rest: &str,
    points: usize,
    up: usize,
    down: usize,
) -> (String, Ledger) {
    let pg = Postgres::shared();
    let db = pg.fresh_database(setup);
    let cutter = Cutter::start(pg.port());
    let proxy = proxy_behind(&cutter, pg, rest);
    let ledger = with_clients(proxy.port(), &db, load, || cut_everywhere(&cutter, points, up, down));
    let (unknown, stored) = settle(pg, &db, &ledger);
    let lanes = show(&mut Raw::login(proxy.port(), "pgsluice"), "SHOW COALESCE");
    let behind: usize = lanes.iter().map(|lane| lane["behind"].parse::<usize>().expect("a count")).sum();
    println!(
        "{load:?}: {points} cuts of {} flushes, {behind} behind another: {} acknowledged, {unknown} unknown of which {stored} are there",
        cutter.flushes(),
        ledger.len() - unknown
    );
    // Most cuts leave nothing to go by; were there none, nothing was tested.
    assert!(unknown > 0);
    (db, ledger)
}

#[test]
fn transactions_cut_at_any_byte_of_their_flush() {
    let setup = "CREATE TABLE t (a int, b text); CREATE TABLE u (a int, b text)";
    let (db, _) = cut_and_settle(Load::Blocks, setup, "[coalesce]\ndeferred = true", cuts(200), 450, 150);
    // All of a transaction, or nothing of it.
    let torn = Postgres::shared().psql(
        &db,
        "SELECT a, count(t.a), count(u.a) FROM t FULL JOIN (SELECT a FROM u) u USING (a) GROUP BY a
         HAVING count(t.a) <> 2 OR count(u.a) <> 2",
    );
    assert_eq!(torn, "", "transactions of which only a part is there, or more than all");
}

#[test]
fn pipelines_cut_at_any_byte_of_several_copies() {
    let setup = "CREATE TABLE u (a int, b text); CREATE VIEW t AS SELECT a FROM u GROUP BY a";
    let (db, _) = cut_and_settle(Load::Pipelines, setup, "", cuts(120), 6000, 150);
    let torn = format!(
        "SELECT a, count(*) FROM u GROUP BY a HAVING count(*) <> {MANY} OR count(DISTINCT b) <> {MANY}"
    );
    let torn = Postgres::shared().psql(&db, &torn);
    assert_eq!(torn, "", "pipelines of which only a part is there, or more than all");
}

#[test]
fn a_commit_in_doubt_is_settled_by_the_server() {
    let pg = Postgres::shared();
    for load in [Load::Rows, Load::Returning] {
        let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
        let cutter = Cutter::start(pg.port());
        let proxy = proxy_behind(&cutter, pg, "");
        let ledger = with_clients(proxy.port(), &db, load, || {
            for _ in 0..30 {
                cut_once(&cutter, Cut::BeforeReady);
            }
        });
        // The guard's answer was read each time: nobody is left in doubt.
        assert_eq!(settle(pg, &db, &ledger), (0, 0));
    }
}

#[test]
fn a_terminated_flush_is_nobodys_business() {
    let pg = Postgres::shared();
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let proxy = Proxy::to(pg, "", "", "[coalesce]\nlock_timeout = \"500ms\"\nflush_timeout = \"900ms\"");
    let mut console = Raw::login(proxy.port(), "pgsluice");
    let mut flushes = || {
        let lane = find(&mut console, "SHOW COALESCE", &[("database", &db), ("format", "text")]);
        lane.map_or(0, |lane| lane["flushes"].parse::<u64>().expect("a count"))
    };
    // A flush that is surely under way: it waits for the table.
    let kill = servers("count(pg_terminate_backend(pid))", &db, FLUSH_WAITS);
    let mut admin = Raw::login(pg.port(), "postgres");
    let mut holder = Raw::login(pg.port(), &db);
    let ledger = with_clients(proxy.port(), &db, Load::Rows, || {
        for _ in 0..10 {
            let killed = poll(PATIENCE, || {
                // A lane all of whose flushes fail would be left alone: one succeeds first. Nor does any come until the
                // table was learnt.
                let before = flushes();
                poll(PATIENCE, || (flushes() > before).then_some(()))?;
                holder.rows("BEGIN");
                holder.rows("LOCK TABLE t");
                // A row that waits in its own session holds the batch up for as long as a flush then waits.
                let killed = poll(std::time::Duration::from_secs(2), || {
                    admin.value(&kill).filter(|n| n != "0").map(|_| ())
                });
                holder.rows("COMMIT");
                killed
            });
            assert!(killed.is_some(), "no flush could be terminated");
        }
    });
    // Each of them was told before its commit: the rows went singly, and nobody heard of it.
    assert_eq!(settle(pg, &db, &ledger), (0, 0));
}

#[test]
fn a_crashed_server_is_not_asked_about_another_life() {
    let mut pg = Postgres::start(PgOptions::default());
    let db = pg.fresh_database("CREATE TABLE t (a int, b text)");
    let cutter = Cutter::start(pg.port());
    let proxy = proxy_behind(&cutter, &pg, "");
    // Clients are lost with their servers here, as they would be directly; what was acknowledged must be there.
    let (stop, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (port, name) = (proxy.port(), db.clone());
    let ledger: Ledger = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (stop, next, name) = (&stop, &next, &name);
                scope.spawn(move || {
                    let mut known = Vec::new();
                    let mut client: Option<Raw> = None;
                    while !stop.load(Ordering::Acquire) {
                        let mut raw = match client.take() {
                            Some(raw) => raw,
                            None => {
                                match Raw::login_as(port, &[("user", "postgres"), ("database", name)], "") {
                                    Ok(raw) => raw,
                                    Err(_) => continue,
                                }
                            }
                        };
                        let a = next.fetch_add(1, Ordering::Relaxed);
                        raw.send(&Step::query(&format!("INSERT INTO t (a, b) VALUES ({a}, 'row')")).bytes);
                        match answer(&mut raw, None) {
                            Ok(()) => {
                                known.push((a, Known::Stored));
                                client = Some(raw);
                            }
                            Err(error) => {
                                assert!(
                                    error.sqlstate().starts_with("08") || error.sqlstate().starts_with("57"),
                                    "{}",
                                    error.outline()
                                );
                                known.push((a, Known::Unknown));
                            }
                        }
                    }
                    known
                })
            })
            .collect();
        for _ in 0..3 {
            let flushes = cutter.flushes();
            assert!(
                poll(PATIENCE, || (cutter.flushes() > flushes + 20).then_some(())).is_some(),
                "no flushes"
            );
            pg.crash();
            pg.start_again();
        }
        let flushes = cutter.flushes();
        assert!(poll(PATIENCE, || (cutter.flushes() > flushes + 20).then_some(())).is_some(), "no flushes");
        stop.store(true, Ordering::Release);
        clients.into_iter().flat_map(|c| c.join().expect("a client panicked")).collect()
    });
    let (unknown, stored) = settle(&pg, &db, &ledger);
    println!(
        "3 crashes: {} rows acknowledged, {unknown} lost or unknown of which {stored} are there",
        ledger.len() - unknown
    );
}
