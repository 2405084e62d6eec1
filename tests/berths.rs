//! `max_flushes_per_table` counts all flushes into a table, whichever columns they fill.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::support;
use pgsluice::wire::backend;
use support::console::{Row, find, show};
use support::crowd::{self, comparable};
use support::pouring::{errors, tags};
use support::relay::{has_flush, listen};
use support::{Message, PATIENCE, Postgres, Proxy, Raw, Step, poll};

/// Rows of a pipeline; as many fill half a batch, and then it is due.
const ROWS: usize = 100;

const TABLE: &str = "CREATE TABLE t (a int PRIMARY KEY, b text)";

/// The two column lists, each with a lane of its own.
const COLUMNS: [&str; 2] = ["a, b", "b, a"];

/// A relay in front of the server. Shut, it keeps flushes back, and nothing else.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
    /// Flushes that came.
    came: AtomicUsize,
}

impl Gate {
    fn start(target: u16) -> (Arc<Self>, u16) {
        let gate = Arc::new(Self::default());
        let all = Arc::clone(&gate);
        let port = listen(target, move |client, server| {
            let (up, back) = ((client.try_clone(), server.try_clone()), (server, client));
            let (Ok(from), Ok(to)) = up else { return };
            let gate = Arc::clone(&all);
            std::thread::spawn(move || gate.pass(from, to));
            std::thread::spawn(move || Self::default().pass(back.0, back.1));
        });
        (gate, port)
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = vec![0; 1 << 20];
        while let Ok(n) = from.read(&mut piece)
            && n > 0
        {
            if has_flush(&piece[..n]) {
                self.came.fetch_add(1, Ordering::SeqCst);
                let shut = self.shut.lock().expect("shut");
                drop(self.opened.wait_while(shut, |shut| *shut).expect("opened"));
            }
            if to.write_all(&piece[..n]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn shut(&self, shut: bool) {
        *self.shut.lock().expect("shut") = shut;
        self.opened.notify_all();
    }
}

/// Two clients, each with a lane of its own into one table, of which one flush may be under way.
struct Two {
    db: String,
    proxy: Proxy,
    gate: Arc<Gate>,
    clients: [Raw; 2],
}

impl Two {
    fn new(pg: &Postgres, coalesce: &str) -> Self {
        Self::of(pg, coalesce, ["postgres"; 2])
    }

    /// Of these users; the pool of `lone` has one connection.
    fn of(pg: &Postgres, coalesce: &str, users: [&str; 2]) -> Self {
        let db = pg.fresh_database(TABLE);
        let (gate, port) = Gate::start(pg.port());
        let coalesce = format!(
            "[users.lone]\npool_size = 1\n[coalesce]\nmax_rows = {}\nmax_flushes_per_table = 1\n{coalesce}",
            2 * ROWS
        );
        let proxy = Proxy::to(pg, "", &format!("port = {port}"), &coalesce);
        let clients = users.map(|user| as_user(&proxy, &db, user));
        let mut two = Self { db, proxy, gate, clients };
        for client in [0, 1] {
            two.open_lane(client);
        }
        pg.psql(&two.db, "DELETE FROM t");
        two
    }

    fn open_lane(&mut self, client: usize) {
        let mut round = client;
        let poured = poll(PATIENCE, || {
            round += 2;
            self.send(client, round * ROWS);
            self.answered(client);
            (self.lane(client)?["flushes"] != "0").then_some(())
        });
        assert!(
            poured.is_some(),
            "{:?}",
            show(&mut Raw::login(self.proxy.port(), "pgsluice"), "SHOW COALESCE")
        );
    }

    fn send(&mut self, client: usize, first: usize) {
        let rows = (first..first + ROWS).map(|a| match client {
            0 => [a.to_string(), "row".to_owned()],
            _ => ["row".to_owned(), a.to_string()],
        });
        let sql = format!("INSERT INTO t ({}) VALUES ($1, $2)", COLUMNS[client]);
        self.clients[client].send(&Step::pipeline(&sql, rows, false).bytes);
    }

    fn answered(&mut self, client: usize) {
        let mut all: Vec<Message> = Vec::new();
        while all.last().is_none_or(|m| m.tag != backend::READY_FOR_QUERY) {
            all.push(self.clients[client].try_read().expect("an answer"));
        }
        assert_eq!(tags(&all), vec!["INSERT 0 1"; ROWS], "{}", comparable(&all));
    }

    fn lane(&self, client: usize) -> Option<Row> {
        let columns = COLUMNS[client].split(", ").map(|c| format!("\"{c}\"")).collect::<Vec<_>>().join(", ");
        let by = [("table", "public.t"), ("format", "text"), ("columns", columns.as_str())];
        find(&mut Raw::login(self.proxy.port(), "pgsluice"), "SHOW COALESCE", &by)
    }

    /// The first one's rows are in a flush that does not come to its end.
    fn hold_first(&mut self) {
        self.gate.shut(true);
        self.send(0, 0);
        let flies = poll(PATIENCE, || (self.lane(0)?["in_flight"] == "1").then_some(()));
        flies.expect("the first one's flush");
    }

    /// The first one's flush has to wait for a connection of its user's: the one there is has a block open on it.
    fn keep_first_waiting(&mut self) -> Raw {
        let mut holder = as_user(&self.proxy, &self.db, "lone");
        holder.query("BEGIN");
        holder.query("SELECT 1");
        self.send(0, 0);
        let console = &mut Raw::login(self.proxy.port(), "pgsluice");
        support::console::until(console, "SHOW POOLS", &[("user", "lone"), ("cl_waiting", "1")]);
        holder
    }

    fn stored(&self, pg: &Postgres) -> String {
        pg.psql(&self.db, "SELECT count(*), count(DISTINCT a) FROM t").trim().to_owned()
    }
}

fn as_user(proxy: &Proxy, db: &str, user: &str) -> Raw {
    Raw::login_as(proxy.port(), &[("user", user), ("database", db)], "").expect("a login")
}

/// A server where `lone` may do anything, too.
fn with_lone() -> &'static Postgres {
    let pg = Postgres::shared();
    let _ = pg.try_psql("postgres", "CREATE ROLE lone SUPERUSER LOGIN");
    pg
}

/// Its user's pool is full, and nobody else is to suffer from that.
#[test]
fn a_flush_that_waits_for_a_connection_keeps_no_place() {
    let mut two =
        Two::of(with_lone(), "lock_timeout = \"900ms\"\nflush_timeout = \"950ms\"", ["lone", "postgres"]);
    let mut holder = two.keep_first_waiting();
    let before = two.lane(1).expect("its lane")["fallbacks"].clone();
    two.send(1, 1000);
    two.answered(1);
    assert_eq!(two.lane(1).expect("its lane")["fallbacks"], before, "they left in a flush");
    assert!(!two.clients[0].has_answer());
    let before = two.lane(0).expect("its lane")["fallbacks"].clone();
    holder.query("COMMIT");
    two.answered(0);
    assert_eq!(two.lane(0).expect("its lane")["fallbacks"], before, "and so did these");
    assert_eq!(two.stored(with_lone()), "200|200");
}

/// And has one again before it leaves.
#[test]
fn a_flush_that_has_waited_for_a_connection_waits_for_a_place() {
    let mut two =
        Two::of(with_lone(), "lock_timeout = \"900ms\"\nflush_timeout = \"950ms\"", ["lone", "postgres"]);
    // Where this machine is slow it may have waited long enough before the place was free.
    let left = poll(PATIENCE, || {
        with_lone().psql(&two.db, "DELETE FROM t");
        let mut holder = two.keep_first_waiting();
        two.gate.shut(true);
        let came = two.gate.came.load(Ordering::SeqCst);
        two.send(1, 1000);
        poll(PATIENCE, || (two.gate.came.load(Ordering::SeqCst) > came).then_some(()))
            .expect("the second's flush");
        let before = two.lane(0).expect("its lane")["fallbacks"].clone();
        holder.query("COMMIT");
        // It has its connection and no more.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(two.gate.came.load(Ordering::SeqCst), came + 1);
        two.gate.shut(false);
        two.answered(1);
        two.answered(0);
        assert_eq!(two.stored(with_lone()), "200|200");
        (two.lane(0).expect("its lane")["fallbacks"] == before).then_some(())
    });
    left.expect("its rows left in a flush");
}

#[test]
fn flushes_of_all_lanes_into_a_table_are_counted_together() {
    let pg = Postgres::shared();
    let mut two = Two::new(pg, "lock_timeout = \"900ms\"\nflush_timeout = \"950ms\"");
    let waits = poll(PATIENCE, || {
        pg.psql(&two.db, "DELETE FROM t");
        two.hold_first();
        two.send(1, 1000);
        let waits = poll(PATIENCE, || {
            let lanes = show(&mut Raw::login(two.proxy.port(), "pgsluice"), "SHOW COALESCE");
            let of_t = || lanes.iter().filter(|lane| lane["table"] == "public.t");
            let flying: usize =
                of_t().map(|lane| lane["in_flight"].parse::<usize>().expect("a number")).sum();
            assert!(flying <= 1, "{lanes:?}");
            let waits = of_t().any(|lane| lane["state"] == "filling" && lane["waiting"] == ROWS.to_string());
            // Where this machine is slow they may have waited long enough before we looked.
            (waits || two.clients[1].has_answer()).then_some(waits)
        });
        two.gate.shut(false);
        two.answered(0);
        two.answered(1);
        assert_eq!(two.stored(pg), "200|200");
        waits.filter(|waits| *waits)
    });
    waits.expect("the second one's rows wait");
}

#[test]
fn a_batch_that_finds_no_place_runs_as_it_was_sent() {
    let pg = Postgres::shared();
    let mut two = Two::new(pg, "lock_timeout = \"50ms\"\nflush_timeout = \"100ms\"");
    two.hold_first();
    let before = two.lane(1).expect("its lane")["flushes"].clone();
    two.send(1, 1000);
    // While the flush before it is still under way.
    two.answered(1);
    assert_eq!(two.lane(1).expect("its lane")["flushes"], before);
    assert_eq!(two.lane(0).expect("its lane")["in_flight"], "1");
    two.gate.shut(false);
    two.answered(0);
    assert_eq!(two.stored(pg), "200|200");
}

/// A batch that had waited for sessions that did not come back waits for a place no longer than any other.
#[test]
fn a_batch_that_waited_for_a_crowd_runs_as_it_was_sent_too() {
    const CROWD: usize = 6;
    let pg = Postgres::shared();
    let mut two = Two::new(pg, "lock_timeout = \"50ms\"\nflush_timeout = \"100ms\"");
    let mut clients: Vec<Raw> = (0..CROWD).map(|_| Raw::login(two.proxy.port(), &two.db)).collect();
    let fallbacks =
        |two: &Two| two.lane(1).expect("its lane")["fallbacks"].parse::<usize>().expect("a number");
    let mut next = 10_000..;
    let mut row =
        || Step::query(&format!("INSERT INTO t (b, a) VALUES ('row', {})", next.next().expect("a key")));
    let waited = poll(PATIENCE, || {
        let scripts: Vec<Vec<Step>> = (0..CROWD).map(|_| (0..20).map(|_| row()).collect()).collect();
        crowd::run(&mut clients, &scripts, true);
        two.hold_first();
        let before = fallbacks(&two);
        // All others were answered a moment ago.
        let seen = crowd::run(&mut clients[..1], &[vec![row()]], false);
        assert_eq!(tags(&seen[0]), ["INSERT 0 1"]);
        assert_eq!(two.lane(0).expect("its lane")["in_flight"], "1");
        let waited = fallbacks(&two) > before;
        two.gate.shut(false);
        two.answered(0);
        pg.psql(&two.db, &format!("DELETE FROM t WHERE a < {ROWS}"));
        waited.then_some(())
    });
    waited.expect("its row waited");
}

/// Not only its timer: that one looks once, and gives up when it looks again.
#[test]
fn a_batch_that_waits_is_told_of_a_place() {
    let pg = Postgres::shared();
    let mut two = Two::new(pg, "lock_timeout = \"1ms\"\nflush_timeout = \"950ms\"");
    // Where this machine is slow it may have given up before the place was free.
    let told = poll(PATIENCE, || {
        pg.psql(&two.db, "TRUNCATE t");
        two.hold_first();
        let before = two.lane(1).expect("its lane")["fallbacks"].clone();
        two.send(1, 1000);
        support::console::until(
            &mut Raw::login(two.proxy.port(), "pgsluice"),
            "SHOW COALESCE",
            &[("table", "public.t"), ("state", "filling")],
        );
        two.gate.shut(false);
        two.answered(0);
        two.answered(1);
        (two.lane(1).expect("its lane")["fallbacks"] == before).then_some(())
    });
    told.expect("its rows left in a flush");
}

/// However often rows are taken back, or find no room in their batch.
#[test]
fn rows_that_do_not_leave_give_their_memory_back() {
    const BUDGET: usize = 128 << 10;
    let pg = Postgres::shared();
    let coalesce = format!(
        "lock_timeout = \"900ms\"\nflush_timeout = \"950ms\"\nmax_bytes = {BUDGET}\nbudget_bytes = {BUDGET}"
    );
    let mut two = Two::new(pg, &coalesce);
    let mut third = Raw::login(two.proxy.port(), &two.db);
    let long = "x".repeat(BUDGET / 4 / ROWS);
    let sql = format!("INSERT INTO t ({}) VALUES ($1, $2)", COLUMNS[1]);
    let pipeline = |rows: std::ops::Range<usize>| {
        Step::pipeline(&sql, rows.map(|a| [long.clone(), a.to_string()]), false)
    };
    for _ in 0..5 {
        two.hold_first();
        two.clients[1].send(&pipeline(1000..1000 + ROWS).bytes);
        let console = &mut Raw::login(two.proxy.port(), "pgsluice");
        support::console::until(console, "SHOW COALESCE", &[("table", "public.t"), ("state", "filling")]);
        third.send(&pipeline(2000..2001 + ROWS).bytes);
        assert_eq!(tags(&third.read_until_ready()).len(), ROWS + 1);
        two.clients[1].cancel(two.proxy.port());
        let said = two.clients[1].read_until_ready();
        assert!(errors(&said).iter().map(Message::sqlstate).eq(["57014"]), "{}", comparable(&said));
        two.gate.shut(false);
        two.answered(0);
        pg.psql(&two.db, "TRUNCATE t");
    }
    let before = two.lane(1).expect("its lane");
    two.clients[1].send(&pipeline(0..ROWS).bytes);
    assert_eq!(tags(&two.clients[1].read_until_ready()).len(), ROWS);
    let after = two.lane(1).expect("its lane");
    assert_ne!(after["flushes"], before["flushes"]);
    assert_eq!(after["passed_through"], before["passed_through"]);
}

#[test]
fn a_lane_whose_flushes_fail_is_left_alone_for_a_while() {
    let pg = Postgres::shared();
    let mut two = Two::new(pg, "");
    pg.psql(&two.db, "INSERT INTO t VALUES (0, 'there')");
    let flushes = |two: &Two| two.lane(0).expect("its lane")["flushes"].parse::<u64>().expect("a number");
    let state = |two: &Two| two.lane(0).expect("its lane")["state"].clone();
    let fail = |two: &mut Two| {
        two.send(0, 0);
        let said = two.clients[0].read_until_ready();
        assert!(errors(&said).iter().map(Message::sqlstate).eq(["23505"]), "{}", comparable(&said));
    };
    let succeed = |two: &mut Two, round: usize| {
        two.send(0, round * ROWS);
        two.answered(0);
    };
    fail(&mut two);
    fail(&mut two);
    assert_eq!(state(&two), "idle");
    fail(&mut two);
    assert_eq!(state(&two), "passing_on");
    let before = flushes(&two);
    (100..164).for_each(|round| succeed(&mut two, round));
    assert_eq!((flushes(&two), state(&two).as_str()), (before, "idle"));
    succeed(&mut two, 164);
    assert_eq!(flushes(&two), before + 1);
    // And what failed before that is forgotten.
    fail(&mut two);
    assert_eq!(state(&two), "idle");
}
