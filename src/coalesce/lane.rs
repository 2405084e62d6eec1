//! One lane: the batch for one COPY of one pool and one set of session settings.
//!
//! Owns: when a batch leaves, the flush in one round trip, whose rows have which outcome. Never: answers a client.
//! A ticket is resolved exactly once; `Inserted` is said only after the server confirmed the COMMIT.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;

use super::batch::{Batch, Caps, copy_context, line_of_error};
use super::catalog;
use super::evidence::{Flush, FlushOutcome, LaneStats, Seen, StatsKey};
use super::plan::InsertPlan;
use super::shapes::{Lanes, Shape, guard_statement};
use crate::pool::{Checkout, Pool};
use crate::proto::pipeline::{Action, Kind};
use crate::proto::prepared::Statement;
use crate::proto::vars::VarSet;
use crate::server::internal::Reply;
use crate::settings::{Coalesce, CoalesceMode};
use crate::sql::effects::Effects;
use crate::wire::backend::{self, ErrorFields};
use crate::wire::copy::CopyFormat;
use crate::wire::frontend as f;

/// After this many failures in a row the lane passes offers on for a while.
const FAILURES_BORNE: u32 = 3;

/// Offers passed on after that; doubled with each further failure, up to [`PASSED_ON_MAX`].
const PASSED_ON: u64 = 64;

/// See [`PASSED_ON`].
const PASSED_ON_MAX: u64 = 1 << 16;

/// How long the server is asked about a transaction whose connection was lost at its commit; its clients wait.
const IN_DOUBT_MAX: Duration = Duration::from_secs(10);

/// COPYs that a row is in, at most, before it runs singly.
const TRIES: usize = 3;

/// Between two such questions.
const IN_DOUBT_PAUSE: Duration = Duration::from_millis(5);

/// A lane keeps the buffers of its batches, one for each flight and one that fills, unless they grew beyond this.
const BUFFER_KEPT: usize = 64 << 10;

/// What became of a unit of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Committed.
    Inserted,
    /// Not stored; the session runs its own messages as they were sent.
    RunSingly,
    /// The connection was lost at the commit.
    Unknown,
}

/// A session's end of a batch; kept and used again.
#[derive(Debug, Default)]
pub struct Ticket {
    client: u64,
    outcome: AtomicU8,
    waker: Mutex<Option<Waker>>,
    work: [AtomicU32; 6],
    noticed: AtomicBool,
    notices: Mutex<Vec<u8>>,
}

/// What a unit is in the counters of its pool, when it is committed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// INSERTs.
    pub statements: u32,
    /// Transactions of the client's.
    pub transactions: u32,
    /// Parse messages.
    pub parses: u32,
    /// Bind messages.
    pub binds: u32,
    /// Bytes that the client sent.
    pub received: u32,
    /// Bytes of its answers.
    pub sent: u32,
}

impl Ticket {
    /// For the client of this id.
    pub fn new(client: u64) -> Self {
        Self { client, ..Self::default() }
    }

    /// Hot path. What the unit that is offered next comes to; said before it is offered.
    pub fn set_work(&self, work: Work) {
        let Work { statements, transactions, parses, binds, received, sent } = work;
        for (to, n) in self.work.iter().zip([statements, transactions, parses, binds, received, sent]) {
            to.store(n, Ordering::Relaxed);
        }
    }

    fn work(&self) -> [u64; 6] {
        self.work.each_ref().map(|n| n.load(Ordering::Relaxed).into())
    }

    /// Hot path. NoticeResponse messages that the server sent for its rows, whole, if there are any; to be passed on before
    /// the answers.
    pub fn take_notices(&self) -> Option<Vec<u8>> {
        let any = self.noticed.load(Ordering::Acquire);
        any.then(|| {
            self.noticed.store(false, Ordering::Relaxed);
            std::mem::take(&mut *lock(&self.notices))
        })
    }

    fn resolve(&self, outcome: Outcome) {
        let code = match outcome {
            Outcome::Inserted => 1,
            Outcome::RunSingly => 2,
            Outcome::Unknown => 3,
        };
        self.outcome.store(code, Ordering::Release);
        if let Some(waker) = lock(&self.waker).as_ref() {
            waker.wake_by_ref();
        }
    }

    /// The outcome, once. Registers the task while there is none; a session's task stays registered for its next rows.
    pub fn poll(&self, cx: &std::task::Context<'_>) -> Poll<Outcome> {
        let take = || match self.outcome.swap(0, Ordering::AcqRel) {
            1 => Some(Outcome::Inserted),
            2 => Some(Outcome::RunSingly),
            3 => Some(Outcome::Unknown),
            _ => None,
        };
        if let Some(outcome) = take() {
            return Poll::Ready(outcome);
        }
        let mut registered = lock(&self.waker);
        if !registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *registered = Some(cx.waker().clone());
        }
        drop(registered);
        take().map_or(Poll::Pending, Poll::Ready)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a lane says to rows.
#[derive(Debug)]
pub enum Offer {
    /// They wait in the batch; the ticket will be resolved.
    Queued,
    /// Run them as they were sent, and keep this until their answer is there: the next batch waits for it.
    Single(Single),
    /// Run them as they were sent.
    PassOn,
}

/// A row under way as it was sent.
#[derive(Debug)]
pub struct Single {
    lane: Arc<Lane>,
}

impl Drop for Single {
    fn drop(&mut self) {
        let mut inner = lock(&self.lane.inner);
        inner.singles -= 1;
        inner.lately += 1;
        self.lane.flush_if_due(inner);
    }
}

#[derive(Debug)]
struct Inner {
    batch: Batch,
    tickets: Vec<Arc<Ticket>>,
    /// Empty ones that have flown, for their buffers.
    flown: Vec<Batch>,
    /// COPYs in flight, and the units in them.
    flights: usize,
    flying: usize,
    /// The numbers of those COPYs.
    aloft: Vec<u64>,
    /// Rows under way as they were sent.
    singles: usize,
    /// Units that ended since the last flush left.
    lately: usize,
    /// Sessions that lately used the lane at the same time.
    expected: usize,
    failures: u32,
    pass_on: u64,
    /// Batches that left; the one that waits now has this number.
    batches: u64,
    /// One more than the number of the last batch that has a timer.
    watched: u64,
    /// When the first row of the batch came.
    since: Instant,
}

/// One lane.
#[derive(Debug)]
pub struct Lane {
    /// The plan of the statement that opened it.
    pub plan: Arc<InsertPlan>,
    /// Its pool.
    pub pool: Arc<Pool>,
    /// The form of its rows.
    pub format: CopyFormat,
    /// on or shadow.
    pub mode: CoalesceMode,
    /// `schema.table`, as the configuration names it.
    pub table: String,
    /// Counters, shared with lanes before and after it.
    pub stats: Arc<LaneStats>,
    class: u64,
    vars: Arc<VarSet>,
    copy: Arc<Statement>,
    sentinel: Option<Arc<Statement>>,
    settings: Coalesce,
    lanes: Weak<Lanes>,
    shapes: Mutex<Vec<Weak<Shape>>>,
    inner: Mutex<Inner>,
    landed: Notify,
}

/// What a lane does; the busier the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneState {
    /// Nothing waits, nothing is under way.
    Idle,
    /// It failed too often: offers are passed on for a while.
    PassingOn,
    /// Rows wait.
    Filling,
    /// A COPY, or a row as it was sent, is under way.
    Flying,
}

impl LaneState {
    /// As the console shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Filling => "filling",
            Self::Flying => "flying",
            Self::PassingOn => "passing_on",
        }
    }
}

/// What a lane holds now.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// What it does.
    pub state: LaneState,
    /// Rows that wait.
    pub rows: usize,
    /// Their bytes.
    pub bytes: usize,
    /// COPYs in flight.
    pub flights: usize,
}

impl Lane {
    pub(super) fn new(
        lanes: &Arc<Lanes>,
        pool: &Arc<Pool>,
        vars: &Arc<VarSet>,
        plan: &Arc<InsertPlan>,
        format: CopyFormat,
        sql: &str,
        mode: CoalesceMode,
    ) -> Arc<Self> {
        let settings = pool.settings.load().coalesce.clone();
        let millis = |d: Duration| d.as_millis().to_string();
        let (lock_timeout, flush_timeout) = (millis(settings.lock_timeout), millis(settings.flush_timeout));
        let own = [
            ("application_name", "pgsluice"),
            ("lock_timeout", lock_timeout.as_str()),
            ("statement_timeout", flush_timeout.as_str()),
            // Planning the guard costs more than running it.
            ("plan_cache_mode", "force_generic_plan"),
        ];
        let caps = Caps { rows: settings.max_rows, bytes: settings.max_bytes };
        Arc::new(Self {
            plan: Arc::clone(plan),
            table: plan.configured_name(),
            pool: Arc::clone(pool),
            format,
            mode,
            stats: lanes.evidence.stats(StatsKey {
                database: pool.key.database.clone(),
                user: pool.target.load().user.clone(),
                table: plan.configured_name(),
                columns: columns_of(&plan.copy_text_sql).to_owned(),
                format: match format {
                    CopyFormat::Text => "text",
                    CopyFormat::Binary => "binary",
                }
                .to_owned(),
            }),
            class: vars.pour_class,
            vars: pool.shared().vars.intern(vars.pouring().chain(own)),
            copy: Statement::new(sql.as_bytes(), &[], Effects::NONE),
            sentinel: plan
                .sentinel_sql
                .as_ref()
                .map(|sql| Statement::new(sql.as_bytes(), &[], Effects::NONE)),
            settings,
            lanes: Arc::downgrade(lanes),
            shapes: Mutex::default(),
            inner: Mutex::new(Inner {
                batch: Batch::new(format, caps),
                tickets: Vec::new(),
                flown: Vec::new(),
                flights: 0,
                flying: 0,
                aloft: Vec::new(),
                singles: 0,
                lately: 0,
                expected: 0,
                failures: 0,
                pass_on: 0,
                batches: 0,
                watched: 0,
                since: Instant::now(),
            }),
            landed: Notify::new(),
        })
    }

    pub(super) fn serves(
        &self,
        pool: &Arc<Pool>,
        class: u64,
        sql: &str,
        plan: &InsertPlan,
        mode: CoalesceMode,
    ) -> bool {
        Arc::ptr_eq(&self.pool, pool)
            && self.class == class
            && *self.copy.query == *sql.as_bytes()
            && self.plan.fingerprint == plan.fingerprint
            // The guard asks what the name means; another spelling may come to mean another table.
            && self.plan.name_as_written == plan.name_as_written
            && self.mode == mode
            && self.settings == pool.settings.load().coalesce
    }

    pub(super) fn is_replaced_by(&self, new: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &new.pool)
            && self.class == new.class
            && self.copy.query == new.copy.query
            && !self.is_busy()
    }

    pub(super) fn add_shape(&self, shape: &Arc<Shape>) {
        let mut shapes = lock(&self.shapes);
        shapes.retain(|s| s.strong_count() > 0 && !std::ptr::eq(s.as_ptr(), Arc::as_ptr(shape)));
        shapes.push(Arc::downgrade(shape));
    }

    /// Rows wait or are under way.
    pub fn is_busy(&self) -> bool {
        let inner = lock(&self.inner);
        !inner.batch.is_empty() || inner.flights > 0 || inner.singles > 0
    }

    /// What it does now, for the console.
    pub fn load(&self) -> Load {
        let inner = lock(&self.inner);
        Load {
            state: match (inner.flights + inner.singles, inner.pass_on) {
                (1.., _) => LaneState::Flying,
                (0, 1..) => LaneState::PassingOn,
                (0, 0) if !inner.batch.is_empty() => LaneState::Filling,
                (0, 0) => LaneState::Idle,
            },
            rows: inner.batch.rows(),
            bytes: inner.batch.bytes().len(),
            flights: inner.flights,
        }
    }

    /// Hot path. Offers one unit: `rows` encoded rows of `statements` statements, that stand or fall together. A statement
    /// alone leaves an idle lane as it was sent, however many rows it has.
    pub fn offer(
        self: &Arc<Self>,
        encoded: &[u8],
        rows: usize,
        statements: usize,
        ticket: &Arc<Ticket>,
    ) -> Offer {
        if self.mode == CoalesceMode::Shadow {
            self.stats.shadow.fetch_add(rows as u64, Ordering::Relaxed);
            return Offer::PassOn;
        }
        let mut inner = lock(&self.inner);
        if inner.pass_on > 0 {
            inner.pass_on -= 1;
            self.stats.passed_on.fetch_add(1, Ordering::Relaxed);
            return Offer::PassOn;
        }
        let idle = inner.flights == 0 && inner.singles == 0 && inner.batch.is_empty();
        let enough = statements > 1 && rows >= self.settings.copy_min_rows;
        if idle && self.settings.linger.is_zero() && !enough {
            inner.singles += 1;
            drop(inner);
            self.stats.singles.fetch_add(rows as u64, Ordering::Relaxed);
            return Offer::Single(Single { lane: Arc::clone(self) });
        }
        let within_budget = self.within_budget(encoded.len());
        if !within_budget || inner.batch.push_unit(encoded, rows).is_none() {
            if within_budget {
                self.return_budget(encoded.len());
            }
            self.stats.passed_on.fetch_add(1, Ordering::Relaxed);
            return Offer::PassOn;
        }
        inner.tickets.push(Arc::clone(ticket));
        let (first, batch) = (inner.tickets.len() == 1, inner.batches);
        if first {
            inner.since = Instant::now();
        }
        self.flush_if_due(inner);
        if first {
            self.watch(batch);
        }
        Offer::Queued
    }

    /// A row that left as it was sent may wait for somebody's lock; a batch does not wait for it longer than it would
    /// wait for a lock itself. With a `linger` this is the timer that ends it.
    fn watch(self: &Arc<Self>, batch: u64) {
        let mut inner = lock(&self.inner);
        if inner.batches != batch || inner.watched == batch + 1 {
            return;
        }
        inner.watched = batch + 1;
        drop(inner);
        let lane = Arc::clone(self);
        tokio::spawn(async move {
            let linger = lane.settings.linger;
            tokio::time::sleep(if linger.is_zero() { lane.settings.lock_timeout } else { linger }).await;
            let mut inner = lock(&lane.inner);
            if inner.batches != batch {
                return;
            }
            if inner.batch.is_empty() {
                // Its rows were taken back; the next one is watched again.
                inner.watched = batch;
            } else {
                lane.leave(inner);
            }
        });
    }

    fn within_budget(&self, bytes: usize) -> bool {
        let Some(lanes) = self.lanes.upgrade() else { return false };
        let before = lanes.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.settings.budget_bytes {
            lanes.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn return_budget(&self, bytes: usize) {
        if let Some(lanes) = self.lanes.upgrade() {
            lanes.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Takes a unit back that has not left yet. True: it is out, and will not be stored.
    pub fn withdraw(&self, ticket: &Arc<Ticket>) -> bool {
        let mut inner = lock(&self.inner);
        let Some(unit) = inner.tickets.iter().position(|t| Arc::ptr_eq(t, ticket)) else { return false };
        let bytes = inner.batch.unit_bytes(unit).map_or(0, <[u8]>::len);
        inner.batch = inner.batch.without(unit);
        inner.tickets.remove(unit);
        drop(inner);
        self.return_budget(bytes);
        true
    }

    /// FLUSH: what waits leaves now. Ready when it and all that left before has ended.
    ///
    /// Cancel safety: what left goes on.
    pub async fn flush_now(self: &Arc<Self>) {
        let before = {
            let inner = lock(&self.inner);
            let before = inner.batches + u64::from(!inner.batch.is_empty());
            if !inner.batch.is_empty() {
                self.leave(inner);
            }
            before
        };
        loop {
            let landed = self.landed.notified();
            if lock(&self.inner).aloft.iter().all(|number| *number >= before) {
                return;
            }
            landed.await;
        }
    }

    /// The rule of when a batch leaves; see the room's drawing.
    fn flush_if_due(self: &Arc<Self>, inner: MutexGuard<'_, Inner>) {
        if inner.batch.is_empty() || inner.flights >= self.settings.max_flushes_per_table {
            return;
        }
        let here = inner.tickets.len() + inner.flying + inner.singles;
        let nothing_under_way = inner.flights == 0 && inner.singles == 0;
        let all_wait = here >= inner.expected && inner.tickets.len() * 2 >= inner.flying;
        let full = inner.batch.rows() >= self.settings.max_rows / 2
            || inner.batch.bytes().len() >= self.settings.max_bytes / 2;
        // With a linger only its timer and a full batch say so ([`Lane::watch`]).
        let due = self.settings.linger.is_zero() && (nothing_under_way || (inner.expected > 1 && all_wait));
        if due || full {
            self.leave(inner);
        }
    }

    fn leave(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        let caps = Caps { rows: self.settings.max_rows, bytes: self.settings.max_bytes };
        let empty = inner.flown.pop().unwrap_or_else(|| Batch::new(self.format, caps));
        let batch = std::mem::replace(&mut inner.batch, empty);
        let as_many = Vec::with_capacity(inner.tickets.len());
        let tickets = std::mem::replace(&mut inner.tickets, as_many);
        inner.expected = tickets.len() + inner.flying + inner.singles + inner.lately;
        inner.lately = 0;
        let number = inner.batches;
        inner.batches += 1;
        inner.flights += 1;
        inner.aloft.push(number);
        inner.flying += tickets.len();
        let since = inner.since;
        drop(inner);
        self.return_budget(batch.bytes().len());
        let left = Instant::now();
        let waited = left.duration_since(since);
        let units = tickets.len();
        let flight = Flight {
            lane: Arc::clone(self),
            number,
            units,
            tickets,
            waited,
            left,
            landed: false,
            failed: false,
        };
        tokio::spawn(flight.fly(batch));
    }

    /// No COPY of a flight succeeded.
    fn failed(inner: &mut Inner) {
        inner.failures += 1;
        if inner.failures >= FAILURES_BORNE {
            let doublings = (inner.failures - FAILURES_BORNE).min(10);
            inner.pass_on = (PASSED_ON << doublings).min(PASSED_ON_MAX);
        }
    }

    /// The table is not what was planned for.
    fn forget_shapes(&self) {
        for shape in lock(&self.shapes).drain(..) {
            if let Some(shape) = shape.upgrade() {
                shape.forget();
            }
        }
    }

    fn max_prepared(&self) -> usize {
        self.pool.settings.load().max_prepared_of_ours()
    }

    /// Before the first row is sent the connection must have the lane's settings, and it must be known which life of
    /// which server it is connected to. False: it can't be used, and is closed.
    async fn make_ready(&self, server: &mut Checkout) -> bool {
        let max = self.max_prepared();
        if !matches!(server.settle_vars(&self.vars, max).await, Ok(None)) {
            return false;
        }
        if server.incarnation.is_none() {
            let Ok(reply) = server.prepared(incarnation_statement(), &[], max).await else { return false };
            server.incarnation = Some(only_value(reply).unwrap_or_default().into());
        }
        true
    }

    /// A connection was lost at the commit of transaction `xid`: asks the server how that ended, for a while.
    ///
    /// Believed is only the same life of the same server: after a crash it hands out ids again, and a stranger's
    /// commit would be taken for ours.
    async fn in_doubt(&self, xid: u64, incarnation: &[u8]) -> Landed {
        let asked = async {
            loop {
                match self.ask_status(xid, incarnation).await {
                    Status::Known(landed) => return landed,
                    Status::NotYet => tokio::time::sleep(IN_DOUBT_PAUSE).await,
                }
            }
        };
        tokio::time::timeout(IN_DOUBT_MAX, asked).await.unwrap_or(Landed::Unknown)
    }

    async fn ask_status(&self, xid: u64, incarnation: &[u8]) -> Status {
        let Ok(mut server) = self.pool.checkout(&self.vars, None).await else { return Status::NotYet };
        let max = self.max_prepared();
        let Ok(life) = server.prepared(incarnation_statement(), &[], max).await else {
            return Status::NotYet;
        };
        if only_value(life).is_none_or(|life| life != incarnation) {
            server.release();
            return Status::Known(Landed::Unknown);
        }
        let text = xid.to_string();
        let Ok(reply) = server.prepared(status_statement(), &[Some(text.as_bytes())], max).await else {
            return Status::NotYet;
        };
        server.release();
        match only_value(reply).as_deref() {
            Some(b"committed") => Status::Known(Landed::Committed),
            Some(b"aborted") => Status::Known(Landed::NotStored),
            Some(b"in progress") => Status::NotYet,
            _ => Status::Known(Landed::Unknown),
        }
    }

    /// Everything of one round trip, in one write: COPY, its rows and its end, a guard, Sync. Where the cheap guard has
    /// a mark from an earlier flush on this connection it is enough; otherwise the full one goes, and takes the mark.
    fn put_flush(&self, server: &mut Checkout, batch: &Batch) -> Guard {
        let max = self.max_prepared();
        server.conn.prepare_out();
        server.ensure_own(&self.copy, max);
        let mark = self.sentinel.as_ref().and_then(|s| server.mark(s.id).map(str::to_owned));
        let guard = match (&self.sentinel, &mark) {
            (Some(_), Some(_)) => Guard::Sentinel,
            (Some(_), None) => Guard::FullWithMark,
            (None, _) => Guard::Full,
        };
        if guard != Guard::Sentinel {
            server.ensure_own(guard_statement(), max);
        }
        if let Some(sentinel) = &self.sentinel {
            server.ensure_own(sentinel, max);
        }
        f::put_bind_text(&mut server.conn.out, self.copy.server_name.as_bytes(), &[]);
        f::put_execute(&mut server.conn.out, b"", 0);
        batch.put_copy(&mut server.conn.out);
        for kind in [Kind::Bind, Kind::Execute, Kind::CopyEnd] {
            server.pipeline.push(kind, Action::Own, false);
        }
        let relid = self.plan.relid.to_string();
        let (relid, name) = (Some(relid.as_bytes()), Some(self.plan.name_as_written.as_bytes()));
        if guard != Guard::Sentinel {
            put_own(server, guard_statement(), &[relid, name, Some(self.plan.fingerprint.as_bytes())]);
        }
        if let Some(sentinel) = &self.sentinel {
            put_own(server, sentinel, &[mark.as_deref().map(str::as_bytes), name, relid]);
        }
        // The guard's answer, and with it the transaction's id, sets out before the COMMIT: a connection that is lost at the
        // commit is then a question that the server can answer.
        f::put_empty(&mut server.conn.out, f::FLUSH);
        f::put_empty(&mut server.conn.out, f::SYNC);
        server.pipeline.push(Kind::Sync, Action::Own, false);
        guard
    }
}

/// Appends Bind and Execute of a statement of ours.
fn put_own(server: &mut Checkout, statement: &Statement, params: &[Option<&[u8]>]) {
    f::put_bind_text(&mut server.conn.out, statement.server_name.as_bytes(), params);
    f::put_execute(&mut server.conn.out, b"", 0);
    server.pipeline.push(Kind::Bind, Action::Own, false);
    server.pipeline.push(Kind::Execute, Action::Own, false);
}

/// What verifies the table inside a flush's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// The fingerprint.
    Full,
    /// The fingerprint, and the sentinel's mark is taken for the next flush.
    FullWithMark,
    /// The sentinel alone.
    Sentinel,
}

impl Guard {
    /// Command tags that a flush answers before its Sync is obeyed.
    fn tags(self) -> usize {
        if self == Self::FullWithMark { 3 } else { 2 }
    }

    /// The transaction's id, once the guard has answered.
    fn xid(self, reply: &Reply) -> Option<u64> {
        let row: Vec<Option<&[u8]>> = reply.rows.first()?.iter().map(Option::as_deref).collect();
        match self {
            Self::Full | Self::FullWithMark => catalog::decode_guard(&row),
            Self::Sentinel => catalog::decode_sentinel(&row).map(|(xid, _)| xid),
        }
    }
}

/// A batch under way and the tickets it answers for, one for each unit. Dropped with tickets left (the process ends), they
/// are unknown.
struct Flight {
    lane: Arc<Lane>,
    number: u64,
    tickets: Vec<Arc<Ticket>>,
    units: usize,
    /// How long its first row waited before it left.
    waited: Duration,
    /// When the COPY under way began.
    left: Instant,
    /// One of its COPYs committed; one failed.
    landed: bool,
    failed: bool,
}

/// What came of one COPY.
enum Landed {
    Committed,
    /// Rolled back, and perhaps by whose row.
    Failed(Option<usize>),
    /// Not stored, for a reason that is nobody's row.
    NotStored,
    Unknown,
}

/// What the server says of a transaction in doubt.
enum Status {
    Known(Landed),
    NotYet,
}

/// The one value of the last row.
fn only_value(mut reply: Reply) -> Option<Vec<u8>> {
    if reply.error.is_some() {
        return None;
    }
    reply.rows.pop()?.pop().flatten()
}

fn incarnation_statement() -> &'static Arc<Statement> {
    static CELL: OnceLock<Arc<Statement>> = OnceLock::new();
    CELL.get_or_init(|| Statement::new(catalog::INCARNATION_SQL.as_bytes(), &[], Effects::NONE))
}

fn status_statement() -> &'static Arc<Statement> {
    static CELL: OnceLock<Arc<Statement>> = OnceLock::new();
    CELL.get_or_init(|| Statement::new(catalog::STATUS_SQL.as_bytes(), &[], Effects::NONE))
}

impl Flight {
    /// A COPY that fails by a row that the error names goes again without it, once; by one that the error does not name, in
    /// halves and quarters. What fails then runs singly. So a batch costs at most two, or seven COPYs more than its rows do.
    async fn fly(mut self, batch: Batch) {
        if batch.rows() < self.lane.settings.copy_min_rows {
            return self.hand_back(&batch);
        }
        // The front of the tickets are those of the last one here.
        let mut batches = vec![(batch, TRIES)];
        while let Some((batch, tries)) = batches.pop() {
            match self.land(&batch).await {
                Landed::Committed => self.committed(batch),
                Landed::Failed(Some(unit)) if tries == TRIES && batch.units() > 1 => {
                    self.lane.stats.isolated.fetch_add(1, Ordering::Relaxed);
                    self.lane.stats.fallbacks.fetch_add(batch.unit_rows(unit) as u64, Ordering::Relaxed);
                    self.tickets.remove(unit).resolve(Outcome::RunSingly);
                    batches.push((batch.without(unit), tries - 1));
                }
                Landed::Failed(None)
                    if tries > 1 && batch.units() >= 2 * self.lane.settings.copy_min_rows =>
                {
                    let half = batch.units() / 2;
                    batches.push((batch.select(half..batch.units()), tries - 1));
                    batches.push((batch.select(0..half), tries - 1));
                }
                Landed::Failed(_) | Landed::NotStored => self.hand_back(&batch),
                Landed::Unknown => self.unknown(&batch),
            }
            self.left = Instant::now();
        }
    }

    /// One COPY: sent, and what came of it; remembered for the console.
    async fn land(&mut self, batch: &Batch) -> Landed {
        let mut seen = Seen::default();
        let mut notices = Vec::new();
        let landed = self.send(batch, &mut seen, &mut notices).await;
        if let Landed::Failed(Some(unit)) = landed {
            seen.guilty = self.tickets.get(unit).map(|ticket| ticket.client);
        }
        if matches!(landed, Landed::Committed) && !notices.is_empty() {
            self.pass_on(batch, &notices);
        }
        let clients = self.tickets[..batch.units()].iter().map(|ticket| ticket.client);
        let flush = Flush {
            number: 0,
            ended: SystemTime::now(),
            stats: Arc::clone(&self.lane.stats),
            rows: batch.rows(),
            bytes: batch.bytes().len(),
            waited: self.waited,
            took: self.left.elapsed(),
            seen,
            units: batch.units(),
            clients: Vec::new(),
        };
        let stats = &self.lane.stats;
        if matches!(landed, Landed::Committed) {
            self.landed = true;
            stats.batch_rows.record(flush.rows as u64);
            stats.flush_time.record(flush.took.as_micros() as u64);
            stats.wait.record(flush.waited.as_micros() as u64);
            self.count(&flush);
        } else if flush.seen.outcome != FlushOutcome::NotSent {
            self.failed = true;
            stats.failures.fetch_add(1, Ordering::Relaxed);
        }
        if matches!(flush.seen.outcome, FlushOutcome::SettledCommitted | FlushOutcome::SettledAborted) {
            stats.resolved.fetch_add(flush.units as u64, Ordering::Relaxed);
        }
        if let Some(lanes) = self.lane.lanes.upgrade() {
            lanes.evidence.remember(flush, clients);
        }
        landed
    }

    /// What was committed counts in the pool as if each client had had a server.
    fn count(&self, flush: &Flush) {
        let mut sums = [0; 6];
        for ticket in &self.tickets[..flush.units] {
            sums.iter_mut().zip(ticket.work()).for_each(|(sum, n)| *sum += n);
        }
        let [statements, transactions, parses, binds, received, sent] = sums;
        let time = flush.took.as_micros() as u64 * flush.units as u64;
        let stats = &self.lane.pool.stats;
        for (to, n) in [
            (&stats.query_count, statements),
            (&stats.xact_count, transactions),
            (&stats.client_parse_count, parses),
            (&stats.bind_count, binds),
            (&stats.received, received),
            (&stats.sent, sent),
            (&stats.xact_time, time),
            (&stats.query_time, time),
            (&stats.server_assignment_count, 1),
        ] {
            to.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// A notice that names a row is its client's; any other (a warning of the COMMIT) is everybody's.
    fn pass_on(&self, batch: &Batch, notices: &[Vec<u8>]) {
        self.lane.stats.notices.fetch_add(notices.len() as u64, Ordering::Relaxed);
        for body in notices {
            let fields = ErrorFields::new(body);
            let line = line_of_error(&fields, &self.lane.plan.relname);
            let owner = line.and_then(|line| batch.line_owner(line));
            let (tickets, relname) = match owner {
                Some(unit) => (&self.tickets[unit..=unit], Some(&*self.lane.plan.relname)),
                None => (&self.tickets[..batch.units()], None),
            };
            for ticket in tickets {
                put_notice(&mut lock(&ticket.notices), &fields, relname);
                ticket.noticed.store(true, Ordering::Release);
            }
        }
    }

    async fn send(&self, batch: &Batch, seen: &mut Seen, notices: &mut Vec<Vec<u8>>) -> Landed {
        let lane = &self.lane;
        // A mark that moved says only that the full guard has to look.
        for _ in 0..2 {
            let Ok(mut server) = lane.pool.checkout(&lane.vars, None).await else { return Landed::NotStored };
            if !lane.make_ready(&mut server).await {
                return Landed::NotStored;
            }
            let guard = lane.put_flush(&mut server, batch);
            let mut reply = Reply::default();
            let finished = server.finish_into(&mut reply).await;
            seen.server_pid = Some(server.shared.pid);
            seen.xid = guard.xid(&reply);
            let sqlstate = reply.error.as_ref().map(|error| ErrorFields::new(error).sqlstate().to_vec());
            seen.sqlstate = sqlstate.map(|state| String::from_utf8_lossy(&state).into_owned());
            if finished.is_err() {
                return self.lost(server, guard, &reply, seen).await;
            }
            let moved = self.take_mark(&mut server, guard, &reply);
            server.release();
            if !moved {
                *notices = std::mem::take(&mut reply.notices);
                return self.answered(batch, &reply, seen);
            }
            lane.stats.dead_rows.fetch_add(batch.rows() as u64, Ordering::Relaxed);
        }
        seen.outcome = FlushOutcome::TableChanged;
        Landed::NotStored
    }

    /// Keeps the sentinel's mark for the next flush on this connection. True: it has moved, and the flush was undone.
    fn take_mark(&self, server: &mut Checkout, guard: Guard, reply: &Reply) -> bool {
        let Some(sentinel) = &self.lane.sentinel else { return false };
        let guard_failed =
            reply.error.as_ref().is_some_and(|e| catalog::is_guard_error(&ErrorFields::new(e)));
        match guard {
            Guard::Full => false,
            Guard::FullWithMark => {
                let row = reply.rows.last().map(|row| row.iter().map(Option::as_deref).collect::<Vec<_>>());
                let mark = row.as_deref().and_then(catalog::decode_sentinel).map(|(_, mark)| mark);
                server.set_mark(sentinel.id, mark.filter(|_| reply.error.is_none()));
                false
            }
            Guard::Sentinel => {
                if guard_failed {
                    server.set_mark(sentinel.id, None);
                }
                guard_failed
            }
        }
    }

    fn answered(&self, batch: &Batch, reply: &Reply, seen: &mut Seen) -> Landed {
        let lane = &self.lane;
        match &reply.error {
            None if reply.tags.iter().any(|tag| copied(tag, batch.rows())) => {
                seen.outcome = FlushOutcome::Committed;
                Landed::Committed
            }
            // The server says it copied another number of rows, and has committed: nothing can be promised.
            None => {
                seen.outcome = FlushOutcome::Unknown;
                Landed::Unknown
            }
            Some(error) => {
                lane.stats.dead_rows.fetch_add(batch.rows() as u64, Ordering::Relaxed);
                let fields = ErrorFields::new(error);
                if catalog::is_guard_error(&fields) {
                    lane.forget_shapes();
                    seen.outcome = FlushOutcome::TableChanged;
                    return Landed::NotStored;
                }
                let owner =
                    line_of_error(&fields, &lane.plan.relname).and_then(|line| batch.line_owner(line));
                seen.outcome = if owner.is_some() { FlushOutcome::RowFailed } else { FlushOutcome::Failed };
                let state = fields.sqlstate();
                if owner.is_none() && state.starts_with(b"42") {
                    // No such table or column, or no privilege for it: not what was planned for either.
                    lane.forget_shapes();
                }
                // A row that violates something is looked for; a lock, a full disk or an administrator is nobody's row.
                match owner {
                    None if !state.starts_with(b"22") && !state.starts_with(b"23") => Landed::NotStored,
                    owner => Landed::Failed(owner),
                }
            }
        }
    }

    /// The connection is gone. Stored is nothing if the Sync never left whole, or if the server said why it ends the
    /// transaction before it answered the guard; otherwise the server has to say how the transaction ended, if its id
    /// was read.
    async fn lost(&self, server: Checkout, guard: Guard, reply: &Reply, seen: &mut Seen) -> Landed {
        let guard_answered = reply.tags.len() >= guard.tags();
        if !server.conn.is_flushed() || (reply.error.is_some() && !guard_answered) {
            seen.outcome = FlushOutcome::Lost;
            return Landed::NotStored;
        }
        let incarnation = server.incarnation.clone().filter(|life| !life.is_empty());
        drop(server);
        seen.outcome = FlushOutcome::Unknown;
        let (Some(xid), Some(incarnation)) = (seen.xid, incarnation) else { return Landed::Unknown };
        let landed = self.lane.in_doubt(xid, &incarnation).await;
        seen.outcome = match landed {
            Landed::Committed => FlushOutcome::SettledCommitted,
            Landed::Failed(_) | Landed::NotStored => FlushOutcome::SettledAborted,
            Landed::Unknown => return landed,
        };
        landed
    }

    fn committed(&mut self, mut batch: Batch) {
        self.lane.stats.flushes.fetch_add(1, Ordering::Relaxed);
        self.lane.stats.rows.fetch_add(batch.rows() as u64, Ordering::Relaxed);
        let units = batch.units();
        batch.clear();
        if batch.capacity() <= BUFFER_KEPT {
            lock(&self.lane.inner).flown.push(batch);
        }
        self.resolve(units, Outcome::Inserted);
    }

    fn hand_back(&mut self, batch: &Batch) {
        self.lane.stats.fallbacks.fetch_add(batch.rows() as u64, Ordering::Relaxed);
        self.resolve(batch.units(), Outcome::RunSingly);
    }

    fn unknown(&mut self, batch: &Batch) {
        self.lane.stats.unknown.fetch_add(batch.units() as u64, Ordering::Relaxed);
        self.resolve(batch.units(), Outcome::Unknown);
    }

    /// The first `units` sessions hear. The flight is over before the last ones do, so that they find the lane as it is.
    fn resolve(&mut self, units: usize, outcome: Outcome) {
        if units == self.tickets.len() {
            self.end();
        }
        for ticket in self.tickets.drain(..units) {
            ticket.resolve(outcome);
        }
    }

    fn end(&mut self) {
        let units = std::mem::take(&mut self.units);
        if units == 0 {
            return;
        }
        let mut inner = lock(&self.lane.inner);
        if self.landed {
            inner.failures = 0;
        } else if self.failed {
            Lane::failed(&mut inner);
        }
        inner.flights -= 1;
        inner.aloft.retain(|number| *number != self.number);
        inner.flying -= units;
        inner.lately += units;
        self.lane.landed.notify_waiters();
        self.lane.flush_if_due(inner);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.resolve(self.tickets.len(), Outcome::Unknown);
    }
}

/// The column list of `COPY "schema"."table" ("a", "b") FROM STDIN`.
fn columns_of(copy: &str) -> &str {
    let list = copy.rsplit_once(") FROM STDIN").map_or(copy, |(list, _)| list);
    list.split_once("\" (").map_or(list, |(_, columns)| columns)
}

/// A notice as the row's own INSERT would have brought it: without the lines of its context that speak of the COPY, if
/// `relname` is given.
fn put_notice(out: &mut Vec<u8>, fields: &ErrorFields<'_>, relname: Option<&str>) {
    crate::wire::frame::put(out, backend::NOTICE_RESPONSE, |out| {
        for (kind, value) in fields.clone() {
            let copy = relname.filter(|_| kind == b'W').and_then(|relname| copy_context(value, relname));
            let value = match copy {
                Some(0) => continue,
                Some(at) => &value[..at - 1],
                None => value,
            };
            out.push(kind);
            crate::wire::frame::put_cstr(out, value);
        }
        out.push(0);
    });
}

fn copied(tag: &[u8], rows: usize) -> bool {
    tag.strip_prefix(b"COPY ").and_then(|n| std::str::from_utf8(n).ok()?.parse().ok()) == Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_stand_in_the_copy() {
        assert_eq!(columns_of("COPY \"public\".\"t\" (\"a\", \"b c\") FROM STDIN"), "\"a\", \"b c\"");
    }

    #[test]
    fn a_notice_loses_what_its_context_says_of_the_copy() {
        let notice = |context: &str, relname: Option<&str>| {
            let body = [b"SNOTICE\0Mword is too long\0", context.as_bytes(), b"\0"].concat();
            let mut out = Vec::new();
            put_notice(&mut out, &ErrorFields::new(&body), relname);
            String::from_utf8_lossy(&out[5..]).replace('\0', "|")
        };
        assert_eq!(notice("WCOPY t, line 2\0", Some("t")), "SNOTICE|Mword is too long||");
        let nested = "Wsomething\nCOPY t, line 2, column a: \"x\ny\"\0";
        assert_eq!(notice(nested, Some("t")), "SNOTICE|Mword is too long|Wsomething||");
        assert_eq!(notice("Welsewhere\0", None), "SNOTICE|Mword is too long|Welsewhere||");
    }
}
