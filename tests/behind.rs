//! A flush that is sent behind another one on the same server connection: each is answered as if it had been alone, whatever
//! becomes of the other.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::support;
use pgsluice::wire::backend;
use support::console::{Row, find, show};
use support::crowd::comparable;
use support::lies::{LIES, Liar};
use support::pouring::{FLUSH_WAITS, errors, servers, tags};
use support::seeded::from_env;
use support::{Cut, Cutter, Message, PATIENCE, Postgres, Proxy, Raw, Step, poll};

/// Rows of a pipeline, which is one transaction; as many fill half a batch.
const ROWS: usize = 100;

/// Where their keys begin.
const FIRST: usize = 1;
const SECOND: usize = 1001;

/// About as many bytes are the answer to a flush.
const ANSWER: usize = 150;

/// A full batch leaves at once, whoever else may come, and a flush waits as long as it may.
const FULL_AT_ONCE: &str = "[coalesce]\nmax_rows = 200\nlock_timeout = \"900ms\"\nflush_timeout = \"950ms\"";

const TABLE: &str = "CREATE TABLE t (a int PRIMARY KEY, b text CHECK (b <> 'bad'))";

fn pipeline(first: usize, bad: Option<usize>) -> Step {
    let b = |i| if Some(i) == bad { "bad" } else { "row" };
    let rows = (0..ROWS).map(|i| [(first + i).to_string(), b(i).to_owned()]);
    Step::pipeline("INSERT INTO t (a, b) VALUES ($1, $2)", rows, false)
}

/// Two clients whose pipelines are poured.
struct Pair {
    db: String,
    proxy: Proxy,
    clients: Vec<Raw>,
}

impl Pair {
    fn new(pg: &Postgres, port: u16) -> Self {
        let db = pg.fresh_database(TABLE);
        let proxy = Proxy::to(pg, "", &format!("port = {port}"), FULL_AT_ONCE);
        let clients = (0..2).map(|_| Raw::login(proxy.port(), &db)).collect();
        Self { db, proxy, clients }
    }

    /// The second client's rows are sent behind the first one's, which wait for the table;
    /// `bad`: one of those that violates the CHECK. Who has the table locked in a transaction; `None`: the flush before was so slow that
    /// the second one went beside the first, and all is as it was.
    fn hold(&mut self, pg: &Postgres, bad: Option<usize>, arm: &dyn Fn()) -> Option<Raw> {
        self.open_lane(pg);
        let mut holder = Raw::login(pg.port(), &self.db);
        holder.rows("BEGIN");
        holder.rows("LOCK TABLE t");
        if self.send_both(pg, bad, arm) {
            return Some(holder);
        }
        holder.rows("COMMIT");
        self.answers();
        None
    }

    /// A lane in which one flush was, so that it knows of no slow ones: it is another table's.
    fn open_lane(&mut self, pg: &Postgres) {
        pg.psql(&self.db, &format!("DROP TABLE t; {TABLE}"));
        let before = lane(&self.proxy, "flushes");
        let mut round = 0;
        // A question about the table whose connection was cut is asked again a little later.
        let poured = poll(PATIENCE, || {
            round += 1;
            self.clients[0].send(&pipeline(10_000 * round, None).bytes);
            self.answer(0);
            (lane(&self.proxy, "flushes") > before).then_some(())
        });
        poured.expect("a flush");
        pg.psql(&self.db, "DELETE FROM t");
    }

    /// True: the second one's are behind the first one's.
    fn send_both(&mut self, pg: &Postgres, bad: Option<usize>, arm: &dyn Fn()) -> bool {
        let before = lane(&self.proxy, "behind");
        let flushes = servers("count(*)", &self.db, FLUSH_WAITS);
        // In flushes of their own, or in the clients' own sessions.
        let any = servers("count(*)", &self.db, "wait_event_type = 'Lock'");
        let mut observer = Raw::login(pg.port(), "postgres");
        let mut count = |sql: &str| observer.value(sql).expect("a count").parse::<usize>().expect("a count");
        self.clients[0].send(&pipeline(FIRST, bad).bytes);
        poll(PATIENCE, || (count(&any) > 0).then_some(())).expect("the first one waits");
        if count(&flushes) == 1 {
            arm();
        }
        self.clients[1].send(&pipeline(SECOND, None).bytes);
        let behind = poll(PATIENCE, || match lane(&self.proxy, "behind") > before {
            true => Some(true),
            false => (count(&any) > 1 || self.clients[1].has_answer()).then_some(false),
        });
        behind.expect("the second one leaves")
    }

    /// To the end of its pipeline; who was closed instead connects anew.
    fn answer(&mut self, client: usize) -> Vec<Message> {
        let mut all = Vec::new();
        while all.last().is_none_or(|m: &Message| m.tag != backend::READY_FOR_QUERY) {
            let Some(message) = self.clients[client].try_read() else {
                self.clients[client] = Raw::login(self.proxy.port(), &self.db);
                break;
            };
            all.push(message);
        }
        all
    }

    fn answers(&mut self) -> [Vec<Message>; 2] {
        [0, 1].map(|client| self.answer(client))
    }

    /// What a server had whole it has run to its end.
    fn is_quiet(&self, pg: &Postgres) {
        let busy = servers("count(*)", &self.db, "state <> 'idle' AND application_name = 'pgsluice'");
        pg.wait_until("postgres", &format!("SELECT ({busy}) = 0"));
    }

    /// How many rows of each pipeline.
    fn stored(&self, pg: &Postgres) -> [usize; 2] {
        let stored = pg.psql(&self.db, "SELECT a FROM t");
        let keys: Vec<usize> = stored.lines().map(|a| a.parse().expect("a number")).collect();
        [FIRST, SECOND].map(|first| keys.iter().filter(|a| (first..first + ROWS).contains(a)).count())
    }

    fn flushes(&self) -> Vec<Row> {
        let mut flushes = show(&mut Raw::login(self.proxy.port(), "pgsluice"), "SHOW COALESCE_FLUSHES");
        flushes.sort_by_key(|flush| flush["flush"].parse::<u64>().expect("a number"));
        flushes.split_off(flushes.len() - 2)
    }
}

/// A pair of which the second one's rows follow the first one's.
struct Held {
    pair: Pair,
    holder: Raw,
}

/// On a machine that is busy with something else most flushes are slow, and none follows a slow one: so long it is tried.
const LONG: Duration = Duration::from_secs(4 * PATIENCE.as_secs());

/// See [`Pair::hold`].
fn held(pg: &Postgres, bad: Option<usize>) -> Held {
    let mut pair = Pair::new(pg, pg.port());
    let holder = poll(LONG, || pair.hold(pg, bad, &|| {})).expect("one flush was sent behind another");
    Held { pair, holder }
}

fn lane(proxy: &Proxy, column: &str) -> u64 {
    let text = [("table", "public.t"), ("format", "text")];
    let lane = find(&mut Raw::login(proxy.port(), "pgsluice"), "SHOW COALESCE", &text);
    lane.map_or(0, |lane| lane[column].parse().expect("a count"))
}

impl Held {
    fn commit(&mut self) -> [Vec<Message>; 2] {
        self.holder.rows("COMMIT");
        self.pair.answers()
    }
}

/// What the same pipelines are answered without pgsluice.
fn directly(pg: &Postgres, bad: Option<usize>) -> [String; 2] {
    let mut client = Raw::login(pg.port(), &pg.fresh_database(TABLE));
    [pipeline(FIRST, bad), pipeline(SECOND, None)].map(|step| {
        client.send(&step.bytes);
        comparable(&client.read_until_ready())
    })
}

#[test]
fn both_are_stored_and_answered() {
    let pg = Postgres::shared();
    let mut held = held(pg, None);
    assert_eq!(held.commit().map(|seen| comparable(&seen)), directly(pg, None));
    assert_eq!(held.pair.stored(pg), [ROWS; 2]);
    let [first, second] = &held.pair.flushes()[..] else { panic!("two flushes") };
    for flush in [first, second] {
        assert_eq!((flush["outcome"].as_str(), flush["rows"].as_str()), ("committed", "100"));
    }
    assert_eq!(first["server_pid"], second["server_pid"]);
    assert_ne!(first["xid"], second["xid"], "a transaction each");
}

#[test]
fn a_row_that_fails_is_nothing_to_those_behind() {
    let pg = Postgres::shared();
    for bad in [0, 41, ROWS - 1] {
        let mut held = held(pg, Some(bad));
        assert_eq!(held.commit().map(|seen| comparable(&seen)), directly(pg, Some(bad)), "row {bad}");
        assert_eq!(held.pair.stored(pg), [0, ROWS]);
    }
}

#[test]
fn a_table_that_changes_meanwhile_gets_all_rows_once() {
    let pg = Postgres::shared();
    for change in [
        "ALTER TABLE t ADD COLUMN c int DEFAULT 7",
        "ALTER TABLE t RENAME TO old; CREATE TABLE t (a int, b text, c int DEFAULT 7)",
        "CREATE RULE also AS ON INSERT TO t DO ALSO NOTHING",
    ] {
        let mut held = held(pg, None);
        change.split("; ").for_each(|sql| _ = held.holder.rows(sql));
        assert_eq!(held.commit().map(|seen| comparable(&seen)), directly(pg, None), "{change}");
        assert_eq!(held.pair.stored(pg), [ROWS; 2], "{change}");
    }
}

#[test]
fn a_terminated_connection_is_nobodys_business() {
    let pg = Postgres::shared();
    let mut held = held(pg, None);
    let kill = servers("count(pg_terminate_backend(pid))", &held.pair.db, FLUSH_WAITS);
    assert_eq!(Raw::login(pg.port(), "postgres").value(&kill).as_deref(), Some("1"));
    assert_eq!(held.commit().map(|seen| comparable(&seen)), directly(pg, None));
    assert_eq!(held.pair.stored(pg), [ROWS; 2]);
}

/// Whatever byte a connection is cut at that carries two: what was acknowledged is there once, what is unknown is there whole or not at
/// all, and nothing is there twice.
#[test]
fn a_connection_cut_under_two_loses_nothing_that_was_acknowledged() {
    let pg = Postgres::shared();
    let cutter = Cutter::start(pg.port());
    let mut pair = Pair::new(pg, cutter.port());
    let (mut followed, mut unknown, begun) = (0, 0, Instant::now());
    let points = from_env("PGSLUICE_TEST_CUTS", 45) as usize;
    for round in 0.. {
        if round >= points && (unknown > 0 || begun.elapsed() > LONG) {
            break;
        }
        let point = round % points;
        let at = point / 3 * ANSWER * 3 / points;
        let cut = [Cut::Up(at * 12), Cut::Down(at), Cut::DownBehind(at)][point % 3];
        let held = pair.hold(pg, None, &|| cutter.arm(cut));
        let Some(mut holder) = held else { continue };
        followed += 1;
        holder.rows("COMMIT");
        let answers = pair.answers();
        cutter.disarm();
        pair.is_quiet(pg);
        for (seen, there) in answers.iter().zip(pair.stored(pg)) {
            match errors(seen).last() {
                None => assert_eq!((tags(seen).len(), there), (ROWS, ROWS), "{cut:?}"),
                Some(error) => {
                    assert_eq!(error.sqlstate(), "08007", "{cut:?}: {}", comparable(seen));
                    assert!([0, ROWS].contains(&there), "{cut:?}: a part of a pipeline is there");
                    unknown += 1;
                }
            }
        }
    }
    println!(
        "{points} cuts, {followed} with one behind another; {unknown} of {} pipelines unknown",
        2 * points
    );
    // On a machine so busy that hardly a flush is fast enough for another to follow it, there is little to cut.
    assert!(unknown > 0 || followed < points / 3, "{followed} followed, none was lost");
}

#[test]
fn a_connection_cut_before_its_turn_leaves_both_unknown() {
    let pg = Postgres::shared();
    let cutter = Cutter::start(pg.port());
    let mut pair = Pair::new(pg, cutter.port());
    // The server has all of the first one, and a part of the second one.
    let arm = || cutter.arm(Cut::Up(40));
    let mut holder = poll(LONG, || pair.hold(pg, None, &arm)).expect("one was sent behind another");
    for seen in pair.answers() {
        assert_eq!(seen.last().map(Message::sqlstate).as_deref(), Some("08007"), "{}", comparable(&seen));
        assert_eq!(tags(&seen), [""; 0]);
    }
    assert!(lane(&pair.proxy, "unknown") >= 2);
    let outcomes: Vec<_> = pair.flushes().into_iter().map(|flush| flush["outcome"].clone()).collect();
    assert_eq!(outcomes, ["unknown", "unknown"]);
    holder.rows("COMMIT");
}

/// Nobody can know what is true then of the first one; the second one is stored if its client is told so, and if it is told anything else
/// it is that nobody knows.
#[test]
fn whatever_the_server_says_of_the_one_before() {
    let pg = Postgres::shared();
    let liar = Liar::start(pg.port());
    let mut pair = Pair::new(pg, liar.port());
    let (mut followed, begun) = (0, Instant::now());
    for (round, (what, lie)) in LIES.iter().cycle().enumerate() {
        if round >= LIES.len() && (followed > 0 || begun.elapsed() > LONG) {
            break;
        }
        let before = Cell::new(0);
        let arm = || {
            before.set(liar.flushes());
            liar.arm(*lie);
        };
        let Some(mut holder) = pair.hold(pg, None, &arm) else { continue };
        poll(PATIENCE, || (liar.flushes() > before.get()).then_some(())).expect("it is on its way");
        followed += 1;
        holder.rows("COMMIT");
        let [_, second] = pair.answers();
        pair.is_quiet(pg);
        let [_, there] = pair.stored(pg);
        match errors(&second).last() {
            None => assert_eq!((tags(&second).len(), there), (ROWS, ROWS), "{what}"),
            Some(error) => assert_eq!(error.sqlstate(), "08007", "{what}: {}", comparable(&second)),
        }
        assert!([0, ROWS].contains(&there), "{what}: {there} rows");
    }
    println!("{followed} of {} lies told with one behind", LIES.len());
    assert!(pair.proxy.alive() && followed > 0);
}

#[test]
fn clients_that_leave_have_what_they_sent_stored() {
    let pg = Postgres::shared();
    let Held { pair, mut holder } = held(pg, None);
    drop(pair.clients);
    holder.rows("COMMIT");
    pg.wait_until(&pair.db, &format!("SELECT count(*) = {} FROM t", 2 * ROWS));
    let mut next = Raw::login(pair.proxy.port(), &pair.db);
    assert_eq!(tags(&next.query("INSERT INTO t VALUES (5000, 'after')")), ["INSERT 0 1"]);
}

#[test]
fn a_key_that_is_there_already_fails_each_for_itself() {
    let pg = Postgres::shared();
    let mut held = held(pg, None);
    held.holder.rows("INSERT INTO t VALUES (1041, 'holder'), (100, 'holder')");
    for (seen, key) in held.commit().iter().zip([100, 1041]) {
        let [error] = &errors(seen)[..] else { panic!("{}", comparable(seen)) };
        assert_eq!(error.field(b'D'), format!("Key (a)=({key}) already exists."));
    }
    assert_eq!(held.pair.stored(pg), [1, 1]);
}
