//! One lane: the batch for one COPY, or for several in a fixed order, or for one INSERT that is none; of one pool and one set of
//! session settings.
//!
//! Owns: when a batch leaves, the flush in one round trip, whose rows have which outcome. Never: answers a client.
//! A ticket is resolved exactly once; `Inserted` is said only after the server confirmed the COMMIT.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;

use super::batch::{Caps, Cargo, Cut, Form, copy_context, line_of_error};
use super::catalog;
use super::evidence::{Flush, FlushOutcome, LaneStats, Seen, StatsKey, TableStats};
use super::plan::InsertPlan;
use super::shapes::{Lanes, Shape, guard_statement};
use crate::pool::{Checkout, Pool, Stats};
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

/// Most statements in a transaction that is no COPY. Each may wait for a lock for its share of what a flush may live: what is
/// held meanwhile is held far below the server's `deadlock_timeout`, so no stranger is made a victim of it.
pub const STATEMENTS_MAX: usize = 64;

fn caps(form: Form, settings: &Coalesce) -> Caps {
    let rows = match form {
        Form::Copy(_) => settings.max_rows,
        Form::Pipelined => settings.max_rows.min(STATEMENTS_MAX),
    };
    Caps { rows, bytes: settings.max_bytes }
}

/// The longest wait of one statement of a flush for a lock.
fn lock_timeout(form: Form, settings: &Coalesce) -> Duration {
    match form {
        Form::Copy(_) => settings.lock_timeout,
        Form::Pipelined => {
            let share = settings.flush_timeout / STATEMENTS_MAX as u32;
            settings.lock_timeout.min(share).max(Duration::from_millis(1))
        }
    }
}

/// How long the server is asked about a transaction whose connection was lost at its commit; its clients wait.
const IN_DOUBT_MAX: Duration = Duration::from_secs(10);

/// So few sessions gain less by a COPY of their rows than each loses by its wait for the other.
const FEW: usize = 2;

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
    answer: Mutex<Vec<u8>>,
}

/// What messages are in the counters of their pool, once they are answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Queries and Executes.
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

impl Work {
    fn words(self) -> [u32; 6] {
        let Self { statements, transactions, parses, binds, received, sent } = self;
        [statements, transactions, parses, binds, received, sent]
    }

    /// Both.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self {
            statements: self.statements + more.statements,
            transactions: self.transactions + more.transactions,
            parses: self.parses + more.parses,
            binds: self.binds + more.binds,
            received: self.received + more.received,
            sent: self.sent + more.sent,
        }
    }

    /// Counts what no server had to do with.
    pub fn count(self, stats: &Stats) {
        count_work(stats, self.words().map(u64::from));
    }
}

/// In the order of [`Work::words`].
fn count_work(stats: &Stats, work: [u64; 6]) {
    let to = [
        &stats.query_count,
        &stats.xact_count,
        &stats.client_parse_count,
        &stats.bind_count,
        &stats.received,
        &stats.sent,
    ];
    for (to, n) in to.into_iter().zip(work) {
        to.fetch_add(n, Ordering::Relaxed);
    }
}

impl Ticket {
    /// For the client of this id.
    pub fn new(client: u64) -> Self {
        Self { client, ..Self::default() }
    }

    /// Hot path. What the unit that is offered next comes to; said before it is offered.
    pub fn set_work(&self, work: Work) {
        for (to, n) in self.work.iter().zip(work.words()) {
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

    /// With [`Outcome::Inserted`]: what the server answered to the unit's statements, where they were not a COPY: DataRow and
    /// NoticeResponse messages and a CommandComplete for each, whole.
    pub fn take_answer(&self) -> Vec<u8> {
        std::mem::take(&mut *lock(&self.answer))
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
        inner.away += 1;
        self.lane.flush_if_due(inner);
    }
}

/// One COPY of a flush, or all of its INSERTs.
#[derive(Debug)]
pub struct Leg {
    /// The plan of the statement that opened it.
    pub plan: Arc<InsertPlan>,
    /// What it is made of.
    pub form: Form,
    /// `schema.table`, as the configuration names it.
    pub table: String,
    /// The COPY, or the INSERT.
    pub statement: Arc<Statement>,
}

impl Leg {
    /// For the rows of `plan` in this form, if it has one.
    pub(super) fn new(plan: &Arc<InsertPlan>, format: CopyFormat) -> Option<Self> {
        let sql = match format {
            CopyFormat::Text => Some(&plan.copy_text_sql),
            CopyFormat::Binary => plan.copy_binary_sql.as_ref(),
        }?;
        let copy = Statement::new(sql.as_bytes(), &[], Effects::NONE);
        Some(Self::of(plan, Form::Copy(format), copy))
    }

    /// For INSERTs that are no COPY, each run as it is.
    pub(super) fn pipelined(plan: &Arc<InsertPlan>, statement: Arc<Statement>) -> Self {
        Self::of(plan, Form::Pipelined, statement)
    }

    fn of(plan: &Arc<InsertPlan>, form: Form, statement: Arc<Statement>) -> Self {
        Self { table: plan.configured_name(), plan: Arc::clone(plan), form, statement }
    }

    /// The same COPY.
    fn again(&self) -> Self {
        Self::of(&self.plan, self.form, Arc::clone(&self.statement))
    }

    /// Of the same text.
    fn is_like(&self, other: &Self) -> bool {
        self.form == other.form
            && (&self.statement.query, &self.statement.types)
                == (&other.statement.query, &other.statement.types)
    }
}

#[derive(Debug)]
struct Inner {
    batch: Cargo,
    tickets: Vec<Arc<Ticket>>,
    /// Empty ones that have flown, for their buffers.
    flown: Vec<Cargo>,
    /// COPYs in flight, and the units in them.
    flights: usize,
    flying: usize,
    /// The numbers of those COPYs.
    aloft: Vec<u64>,
    /// Rows under way as they were sent.
    singles: usize,
    /// Sessions that were answered and are not back.
    away: usize,
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

impl Inner {
    /// Those that stay away are not waited for much longer.
    fn forget_some(&mut self) {
        self.away -= self.away.div_ceil(8);
    }
}

/// One lane.
#[derive(Debug)]
pub struct Lane {
    /// Its COPYs, in the order in which they run.
    pub legs: Box<[Leg]>,
    /// Its pool.
    pub pool: Arc<Pool>,
    /// on or shadow.
    pub mode: CoalesceMode,
    /// Counters, shared with lanes before and after it.
    pub stats: Arc<LaneStats>,
    class: u64,
    vars: Arc<VarSet>,
    /// The lanes of single tables that it stands for; empty: it is such a lane.
    parts: Vec<Arc<Self>>,
    /// Foreign keys between its tables: one client's unit at a time.
    tied: bool,
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
        parts: Vec<Arc<Self>>,
        legs: Box<[Leg]>,
        mode: CoalesceMode,
    ) -> Arc<Self> {
        let settings = pool.settings.load().coalesce.clone();
        let form = legs.first().map_or(Form::Copy(CopyFormat::Text), |leg| leg.form);
        let millis = |d: Duration| d.as_millis().to_string();
        let (lock_timeout, flush_timeout) =
            (millis(lock_timeout(form, &settings)), millis(settings.flush_timeout));
        let own = [
            ("application_name", "pgsluice"),
            ("lock_timeout", lock_timeout.as_str()),
            ("statement_timeout", flush_timeout.as_str()),
            // Planning the guard costs more than running it.
            ("plan_cache_mode", "force_generic_plan"),
        ];
        let caps = caps(form, &settings);
        let shared = &pool.shared().vars;
        let set = match form {
            Form::Copy(_) => shared.intern(vars.pouring().chain(own)),
            Form::Pipelined => shared.intern(vars.answering().chain(own)),
        };
        let plans = || legs.iter().map(|leg| &leg.plan);
        let sentinel = plans().all(|plan| plan.has_sentinel).then(|| {
            let sql = catalog::sentinel_sql(plans().map(|plan| plan.target.as_str()));
            Statement::new(sql.as_bytes(), &[], Effects::NONE)
        });
        Arc::new(Self {
            pool: Arc::clone(pool),
            mode,
            stats: lanes.evidence.stats(
                StatsKey {
                    database: pool.key.database.clone(),
                    user: pool.target.load().user.clone(),
                    table: of_each(&legs, |leg| &leg.table),
                    columns: of_each(&legs, |leg| columns_of(&leg.plan.copy_text_sql)),
                    format: of_each(&legs, |leg| leg.form.as_str()),
                },
                legs.iter().map(|leg| leg.table.as_str()),
            ),
            class: parts.first().map_or(class_for(form, vars), |part| part.class),
            vars: set,
            parts,
            tied: plans().any(|plan| plans().any(|other| plan.is_tied_to(other))),
            sentinel,
            settings,
            lanes: Arc::downgrade(lanes),
            shapes: Mutex::default(),
            inner: Mutex::new(Inner {
                batch: Cargo::new(legs.iter().map(|leg| leg.form), caps),
                tickets: Vec::new(),
                flown: Vec::new(),
                flights: 0,
                flying: 0,
                aloft: Vec::new(),
                singles: 0,
                away: 0,
                expected: 0,
                failures: 0,
                pass_on: 0,
                batches: 0,
                watched: 0,
                since: Instant::now(),
            }),
            landed: Notify::new(),
            legs,
        })
    }

    /// For units with rows for each of these lanes, in this order. They are of one pool and of the same settings; `None`: they
    /// are not.
    pub(super) fn together(lanes: &Arc<Lanes>, parts: &[Arc<Self>]) -> Option<Arc<Self>> {
        let first = parts.first()?;
        let agree = parts.iter().all(|part| {
            Arc::ptr_eq(&part.pool, &first.pool)
                && part.class == first.class
                && !part.is_pipelined()
                && part.mode == CoalesceMode::On
                && part.settings == first.settings
        });
        let legs = parts.iter().flat_map(|part| &part.legs).map(Leg::again).collect();
        agree.then(|| Self::new(lanes, &first.pool, &first.vars, parts.to_vec(), legs, first.mode))
    }

    /// It stands for these.
    pub(super) fn is_of(&self, parts: &[Arc<Self>]) -> bool {
        self.parts.len() == parts.len()
            && self.parts.iter().zip(parts).all(|(own, part)| Arc::ptr_eq(own, part))
    }

    pub(super) fn serves(&self, pool: &Arc<Pool>, vars: &VarSet, leg: &Leg, mode: CoalesceMode) -> bool {
        let [own] = &*self.legs else { return false };
        Arc::ptr_eq(&self.pool, pool)
            && self.class == class_for(leg.form, vars)
            && own.is_like(leg)
            && own.plan.fingerprint == leg.plan.fingerprint
            // The guard asks what the name means; another spelling may come to mean another table.
            && own.plan.name_as_written == leg.plan.name_as_written
            && self.mode == mode
            && self.settings == pool.settings.load().coalesce
    }

    /// A lane for the same COPY was made anew, because its table is another one now. Lanes for several tables go as well.
    pub(super) fn is_replaced_by(&self, new: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &new.pool)
            && self.class == new.class
            && new.legs.iter().all(|leg| self.legs.iter().any(|own| own.is_like(leg)))
            && !self.is_busy()
    }

    /// Its batches are no COPY.
    fn is_pipelined(&self) -> bool {
        self.legs.iter().any(|leg| leg.form == Form::Pipelined)
    }

    fn caps(&self) -> Caps {
        caps(self.legs.first().map_or(Form::Pipelined, |leg| leg.form), &self.settings)
    }

    /// COPYs of a flush.
    fn copies(&self) -> usize {
        if self.is_pipelined() { 0 } else { self.legs.len() }
    }

    /// From this many rows on a flush is a COPY for each table.
    fn copy_min_rows(&self) -> usize {
        self.settings.copy_min_rows.saturating_mul(self.legs.len())
    }

    pub(super) fn add_shape(&self, shape: &Arc<Shape>) {
        let mut shapes = lock(&self.shapes);
        shapes.retain(|s| s.strong_count() > 0 && !std::ptr::eq(s.as_ptr(), Arc::as_ptr(shape)));
        shapes.push(Arc::downgrade(shape));
    }

    /// Some statement's rows may come here.
    pub(super) fn is_led_to(&self) -> bool {
        match &*self.parts {
            [] => lock(&self.shapes).iter().any(|shape| shape.strong_count() > 0),
            parts => parts.iter().all(|part| part.is_led_to()),
        }
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
            bytes: inner.batch.bytes(),
            flights: inner.flights,
        }
    }

    /// Hot path. Offers one unit: encoded rows of `statements` statements, that stand or fall together, cut where the next
    /// COPY's begin. A statement alone leaves an idle lane as it was sent, however many rows it has.
    pub fn offer(
        self: &Arc<Self>,
        encoded: &[u8],
        cuts: &[Cut],
        statements: usize,
        ticket: &Arc<Ticket>,
    ) -> Offer {
        let rows: usize = cuts.iter().map(|cut| cut.rows).sum();
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
        inner.away = inner.away.saturating_sub(1);
        let alone = if inner.expected <= FEW { FEW } else { 1 };
        let idle = inner.flights == 0 && inner.singles < alone && inner.batch.is_empty();
        let enough = statements > 1 && rows >= self.copy_min_rows();
        if idle && self.settings.linger.is_zero() && !enough {
            if inner.singles == 0 {
                inner.forget_some();
            }
            inner.singles += 1;
            drop(inner);
            self.stats.singles.fetch_add(rows as u64, Ordering::Relaxed);
            return Offer::Single(Single { lane: Arc::clone(self) });
        }
        let within_budget = self.within_budget(encoded.len());
        let alone = self.tied && !inner.batch.is_empty();
        if !within_budget || alone || !inner.batch.push_unit(encoded, cuts) {
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
        self.lanes.upgrade().is_some_and(|lanes| lanes.within_budget(bytes, self.settings.budget_bytes))
    }

    fn return_budget(&self, bytes: usize) {
        if let Some(lanes) = self.lanes.upgrade() {
            lanes.return_budget(bytes);
        }
    }

    /// Takes a unit back that has not left yet. True: it is out, and will not be stored.
    pub fn withdraw(&self, ticket: &Arc<Ticket>) -> bool {
        let mut inner = lock(&self.inner);
        let Some(unit) = inner.tickets.iter().position(|t| Arc::ptr_eq(t, ticket)) else { return false };
        let bytes = inner.batch.unit_bytes(unit);
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
        // Two halves of the crowd take turns: one flies while the other is answered, thinks and comes back.
        let half = inner.tickets.len() * 2 >= inner.expected.max(here);
        let full =
            inner.batch.rows() >= self.caps().rows / 2 || inner.batch.bytes() >= self.settings.max_bytes / 2;
        // With a linger only its timer and a full batch say so ([`Lane::watch`]).
        let due = self.settings.linger.is_zero() && (nothing_under_way || (inner.expected > 1 && half));
        if due || full {
            self.leave(inner);
        }
    }

    fn empty(&self) -> Cargo {
        Cargo::new(self.legs.iter().map(|leg| leg.form), self.caps())
    }

    fn leave(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        let empty = inner.flown.pop().unwrap_or_else(|| self.empty());
        let batch = std::mem::replace(&mut inner.batch, empty);
        let as_many = Vec::with_capacity(inner.tickets.len());
        let tickets = std::mem::replace(&mut inner.tickets, as_many);
        // Slow to forget: a crowd once taken for small would leave in ever smaller batches.
        let crowd = tickets.len() + inner.flying + inner.singles + inner.away;
        inner.expected = crowd.max(inner.expected - inner.expected.div_ceil(8));
        inner.forget_some();
        let number = inner.batches;
        inner.batches += 1;
        inner.flights += 1;
        inner.aloft.push(number);
        inner.flying += tickets.len();
        let since = inner.since;
        drop(inner);
        self.return_budget(batch.bytes());
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
            answers: Vec::new(),
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

    /// A table is not what was planned for.
    fn forget_shapes(&self) {
        self.parts.iter().for_each(|part| part.forget_shapes());
        for shape in lock(&self.shapes).drain(..) {
            if let Some(shape) = shape.upgrade() {
                shape.forget();
            }
        }
    }

    /// Does the server say that it copied all rows of each? The first of `tags` are those of the COPYs.
    fn copied(&self, batch: &Cargo, tags: &[Vec<u8>]) -> bool {
        tags.len() >= self.copies()
            && tags[..self.copies()].iter().zip(batch.parts()).all(|(tag, part)| copied(tag, part.rows()))
    }

    /// Whose row failed, if that can be told; so many tags of others stand before the COPYs'.
    fn guilty(&self, batch: &Cargo, error: &ErrorFields<'_>, reply: &Reply, before: usize) -> Option<usize> {
        // The COPY that failed is the first one without a tag; the INSERT, the one behind those that were answered.
        let failed = if self.is_pipelined() { 0 } else { reply.tags.len().checked_sub(before)? };
        let (leg, part) = self.legs.get(failed).zip(batch.parts().get(failed))?;
        let line = match leg.form {
            Form::Copy(_) => line_of_error(error, &leg.plan.relname)?,
            // The guard's is behind all.
            Form::Pipelined => (part.rows() - reply.raw_left + 1) as u64,
        };
        part.line_owner(line)
    }

    /// Keeps the sentinel's mark for the next flush on this connection. True: it has moved, and the flush was undone.
    fn take_mark(&self, server: &mut Checkout, guard: Guard, reply: &Reply) -> bool {
        let Some(sentinel) = &self.sentinel else { return false };
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

    // ----- inside a client's own block

    /// Are so many rows better copied than inserted?
    pub fn is_worth_it(&self, rows: usize) -> bool {
        rows >= self.copy_min_rows().max(2)
    }

    /// Appends everything of one round trip that stores a client's rows in its own transaction on its own connection. `None`:
    /// the rows are not those of this lane, and nothing was appended.
    pub fn put_run(
        &self,
        server: &mut Checkout,
        encoded: &[u8],
        cuts: &[Cut],
        opening: Opening,
    ) -> Option<Flown> {
        let mut batch = self.empty();
        if !batch.push_unit(encoded, cuts) {
            return None;
        }
        let max = self.max_prepared();
        server.conn.prepare_out();
        for text in opening.before() {
            put_plain(server, text, max);
        }
        let guard = self.put_rows(server, &batch);
        for text in opening.after() {
            put_plain(server, text, max);
        }
        f::put_empty(&mut server.conn.out, f::SYNC);
        server.pipeline.push(Kind::Sync, Action::Own, false);
        Some(Flown { batch, guard, opening, left: Instant::now() })
    }

    /// Did it store all of them? Counts it, and remembers it as that of `client`.
    pub fn run_succeeded(&self, server: &mut Checkout, flown: Flown, reply: &Reply, client: u64) -> bool {
        let Flown { batch, guard, opening, left } = flown;
        self.take_mark(server, guard, reply);
        let took = left.elapsed();
        let before = opening.before().len();
        let error = reply.error.as_deref().map(ErrorFields::new);
        let stored = error.is_none() && self.copied(&batch, reply.tags.get(before..).unwrap_or_default());
        let changed = error.as_ref().is_some_and(catalog::is_guard_error);
        let guilty = error.as_ref().and_then(|error| self.guilty(&batch, error, reply, before));
        let outcome = match (stored, changed, guilty) {
            (true, ..) => FlushOutcome::InBlock,
            (_, true, _) => FlushOutcome::TableChanged,
            (.., Some(_)) => FlushOutcome::RowFailed,
            (.., None) => FlushOutcome::Failed,
        };
        if stored {
            self.count(&batch);
            self.stats.batch_rows.record(batch.rows() as u64);
            self.stats.flush_time.record(took.as_micros() as u64);
        } else {
            self.stats.failures.fetch_add(1, Ordering::Relaxed);
            self.stats.fallbacks.fetch_add(batch.rows() as u64, Ordering::Relaxed);
            self.count_dead(&batch);
            if changed && guard != Guard::Sentinel {
                self.forget_shapes();
            }
        }
        let seen = Seen {
            outcome,
            server_pid: Some(server.shared.pid),
            xid: guard.xid(reply, opening.rows()),
            sqlstate: error.map(|error| String::from_utf8_lossy(error.sqlstate()).into_owned()),
            guilty: guilty.map(|_| client),
        };
        self.remember(&batch, seen, Duration::ZERO, took, std::iter::once(client));
        stored
    }

    fn remember(
        &self,
        batch: &Cargo,
        seen: Seen,
        waited: Duration,
        took: Duration,
        clients: impl Iterator<Item = u64>,
    ) {
        let Some(lanes) = self.lanes.upgrade() else { return };
        let flush = Flush {
            number: 0,
            ended: SystemTime::now(),
            stats: Arc::clone(&self.stats),
            rows: batch.rows(),
            bytes: batch.bytes(),
            waited,
            took,
            seen,
            units: batch.units(),
            clients: Vec::new(),
        };
        lanes.evidence.remember(flush, clients);
    }

    fn count(&self, batch: &Cargo) {
        self.stats.flushes.fetch_add(1, Ordering::Relaxed);
        self.stats.rows.fetch_add(batch.rows() as u64, Ordering::Relaxed);
        self.count_tables(batch, |table| &table.rows);
    }

    fn count_dead(&self, batch: &Cargo) {
        self.stats.dead_rows.fetch_add(batch.rows() as u64, Ordering::Relaxed);
        self.count_tables(batch, |table| &table.dead_rows);
    }

    fn count_tables(&self, batch: &Cargo, which: impl Fn(&TableStats) -> &AtomicU64) {
        for (leg, part) in self.legs.iter().zip(batch.parts()) {
            if let Some(table) = self.stats.of_table(&leg.table) {
                which(table).fetch_add(part.rows() as u64, Ordering::Relaxed);
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
        if !matches!(server.settle_vars(&self.vars, max, 0).await, Ok(None)) {
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
            server.release(Instant::now());
            return Status::Known(Landed::Unknown);
        }
        let text = xid.to_string();
        let Ok(reply) = server.prepared(status_statement(), &[Some(text.as_bytes())], max).await else {
            return Status::NotYet;
        };
        server.release(Instant::now());
        match only_value(reply).as_deref() {
            Some(b"committed") => Status::Known(Landed::Committed),
            Some(b"aborted") => Status::Known(Landed::NotStored),
            Some(b"in progress") => Status::NotYet,
            _ => Status::Known(Landed::Unknown),
        }
    }

    /// Appends COPY, its rows and its end, for each table, or the INSERTs; and a guard. Where the cheap guard has a mark from an
    /// earlier flush on this connection it is enough; otherwise the full one goes, for each table, and takes the mark.
    fn put_rows(&self, server: &mut Checkout, batch: &Cargo) -> Guard {
        let max = self.max_prepared();
        server.conn.prepare_out();
        let mark = self.sentinel.as_ref().and_then(|s| server.mark(s.id).map(str::to_owned));
        let guard = match (&self.sentinel, &mark) {
            (Some(_), Some(_)) => Guard::Sentinel,
            (Some(_), None) => Guard::FullWithMark,
            (None, _) => Guard::Full,
        };
        for (leg, part) in self.legs.iter().zip(batch.parts()) {
            server.ensure_own(&leg.statement, max);
            match leg.form {
                Form::Copy(_) => {
                    put_own(server, &leg.statement, &[]);
                    part.put_copy(&mut server.conn.out);
                    server.pipeline.push(Kind::CopyEnd, Action::Own, false);
                }
                Form::Pipelined => {
                    server.conn.out.extend_from_slice(part.bytes());
                    (0..part.rows()).for_each(|_| expect_own(server));
                }
            }
        }
        let relids: Vec<String> = self.legs.iter().map(|leg| leg.plan.relid.to_string()).collect();
        if guard != Guard::Sentinel {
            server.ensure_own(guard_statement(), max);
            for (Leg { plan, .. }, relid) in self.legs.iter().zip(&relids) {
                let params = [relid, &plan.name_as_written, &plan.fingerprint];
                put_own(server, guard_statement(), &params.map(|param| Some(param.as_bytes())));
            }
        }
        if let Some(sentinel) = &self.sentinel {
            server.ensure_own(sentinel, max);
            let mut params = vec![mark.as_deref().map(str::as_bytes)];
            for (leg, relid) in self.legs.iter().zip(&relids) {
                params.extend([Some(leg.plan.name_as_written.as_bytes()), Some(relid.as_bytes())]);
            }
            put_own(server, sentinel, &params);
        }
        guard
    }

    /// Everything of one round trip, in one write.
    fn put_flush(&self, server: &mut Checkout, batch: &Cargo) -> Guard {
        let guard = self.put_rows(server, batch);
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
    expect_own(server);
}

/// The answers to Bind and Execute.
fn expect_own(server: &mut Checkout) {
    server.pipeline.push(Kind::Bind, Action::Own, false);
    server.pipeline.push(Kind::Execute, Action::Own, false);
}

/// Appends Bind and Execute of a text of ours without parameters.
fn put_plain(server: &mut Checkout, text: &OnceText, max: usize) {
    let statement = text.cell.get_or_init(|| Statement::new(text.text.as_bytes(), &[], Effects::NONE));
    server.ensure_own(statement, max);
    put_own(server, statement, &[]);
}

/// A text and the statement that it becomes.
#[derive(Debug)]
pub struct OnceText {
    text: &'static str,
    cell: OnceLock<Arc<Statement>>,
}

impl OnceText {
    const fn new(text: &'static str) -> Self {
        Self { text, cell: OnceLock::new() }
    }
}

/// What stands around a run of rows in a client's own block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The client's own BEGIN, a plain one, which is not answered yet.
    Begin,
    /// A savepoint of ours: the block was open before.
    Savepoint,
}

impl Opening {
    fn before(self) -> &'static [OnceText] {
        static BEGIN: [OnceText; 1] = [OnceText::new("BEGIN")];
        // An older snapshot than the COPY's would show the guard an older table.
        static SAVEPOINT: [OnceText; 2] = [
            OnceText::new("SAVEPOINT pgsluice_run"),
            OnceText::new(
                "SELECT CASE WHEN pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
  THEN 1 ELSE pg_catalog.concat('pgsluice: ', pg_catalog.current_setting('transaction_isolation'))::pg_catalog.int4 END",
            ),
        ];
        match self {
            Self::Begin => &BEGIN,
            Self::Savepoint => &SAVEPOINT,
        }
    }

    fn after(self) -> &'static [OnceText] {
        static RELEASE: [OnceText; 1] = [OnceText::new("RELEASE SAVEPOINT pgsluice_run")];
        match self {
            Self::Begin => &[],
            Self::Savepoint => &RELEASE,
        }
    }

    /// Rows that what stands before it answers.
    fn rows(self) -> usize {
        match self {
            Self::Begin => 0,
            Self::Savepoint => 1,
        }
    }

    /// What puts the block back as it was.
    pub fn undo(self) -> &'static str {
        match self {
            Self::Begin => "ROLLBACK",
            Self::Savepoint => "ROLLBACK TO SAVEPOINT pgsluice_run; RELEASE SAVEPOINT pgsluice_run",
        }
    }
}

/// A run on its way.
#[derive(Debug)]
pub struct Flown {
    batch: Cargo,
    guard: Guard,
    opening: Opening,
    left: Instant,
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
    /// Command tags of its own for so many tables, before the Sync is obeyed.
    fn tags(self, legs: usize) -> usize {
        match self {
            Self::Full => legs,
            Self::FullWithMark => legs + 1,
            Self::Sentinel => 1,
        }
    }

    /// The transaction's id, once the guard has answered behind so many rows.
    fn xid(self, reply: &Reply, before: usize) -> Option<u64> {
        let row: Vec<Option<&[u8]>> = reply.rows.get(before)?.iter().map(Option::as_deref).collect();
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
    /// What the server answered to statements that are no COPY.
    answers: Vec<u8>,
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
    async fn fly(mut self, batch: Cargo) {
        if batch.rows() < self.lane.copy_min_rows() {
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
    async fn land(&mut self, batch: &Cargo) -> Landed {
        let mut seen = Seen::default();
        let mut notices = Vec::new();
        let landed = self.send(batch, &mut seen, &mut notices).await;
        if let Landed::Failed(Some(unit)) = landed {
            seen.guilty = self.tickets.get(unit).map(|ticket| ticket.client);
        }
        if matches!(landed, Landed::Committed) && !notices.is_empty() {
            self.pass_on(batch, &notices);
        }
        let (stats, took) = (&self.lane.stats, self.left.elapsed());
        if matches!(landed, Landed::Committed) {
            self.landed = true;
            stats.batch_rows.record(batch.rows() as u64);
            stats.flush_time.record(took.as_micros() as u64);
            stats.wait.record(self.waited.as_micros() as u64);
            self.count(batch.units(), took);
        } else if seen.outcome != FlushOutcome::NotSent {
            self.failed = true;
            stats.failures.fetch_add(1, Ordering::Relaxed);
        }
        if matches!(seen.outcome, FlushOutcome::SettledCommitted | FlushOutcome::SettledAborted) {
            stats.resolved.fetch_add(batch.units() as u64, Ordering::Relaxed);
        }
        let clients = self.tickets[..batch.units()].iter().map(|ticket| ticket.client);
        self.lane.remember(batch, seen, self.waited, took, clients);
        landed
    }

    /// What was committed counts in the pool as if each client had had a server.
    fn count(&self, units: usize, took: Duration) {
        let mut sums = [0; 6];
        for ticket in &self.tickets[..units] {
            sums.iter_mut().zip(ticket.work()).for_each(|(sum, n)| *sum += n);
        }
        let [.., sent] = &mut sums;
        *sent += self.answers.len() as u64;
        let time = took.as_micros() as u64 * units as u64;
        let stats = &self.lane.pool.stats;
        count_work(stats, sums);
        for (to, n) in
            [(&stats.xact_time, time), (&stats.query_time, time), (&stats.server_assignment_count, 1)]
        {
            to.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// A notice that names a row is its client's; any other (a warning of the COMMIT) is everybody's.
    fn pass_on(&self, batch: &Cargo, notices: &[Vec<u8>]) {
        self.lane.stats.notices.fetch_add(notices.len() as u64, Ordering::Relaxed);
        for body in notices {
            let fields = ErrorFields::new(body);
            // Of which COPY: a table of that name may stand there twice, and then nobody knows whose row it is.
            let mut owners = self.lane.legs.iter().zip(batch.parts()).filter_map(|(leg, part)| {
                let line = line_of_error(&fields, &leg.plan.relname)?;
                Some((part.line_owner(line)?, &*leg.plan.relname))
            });
            let owner = owners.next().filter(|_| owners.next().is_none());
            let (tickets, relname) = match owner {
                Some((unit, relname)) => (&self.tickets[unit..=unit], Some(relname)),
                None => (&self.tickets[..batch.units()], None),
            };
            for ticket in tickets {
                put_notice(&mut lock(&ticket.notices), &fields, relname);
                ticket.noticed.store(true, Ordering::Release);
            }
        }
    }

    async fn send(&mut self, batch: &Cargo, seen: &mut Seen, notices: &mut Vec<Vec<u8>>) -> Landed {
        let lane = &Arc::clone(&self.lane);
        // A mark that moved says only that the full guard has to look.
        for _ in 0..2 {
            let Ok(mut server) = lane.pool.checkout(&lane.vars, None).await else { return Landed::NotStored };
            if !lane.make_ready(&mut server).await {
                return Landed::NotStored;
            }
            let guard = lane.put_flush(&mut server, batch);
            let statements = if lane.is_pipelined() { batch.rows() } else { 0 };
            let mut reply = Reply { raw_left: statements, ..Reply::default() };
            let finished = server.finish_into(&mut reply).await;
            self.answers = std::mem::take(&mut reply.raw);
            seen.server_pid = Some(server.shared.pid);
            seen.xid = guard.xid(&reply, 0);
            let sqlstate = reply.error.as_ref().map(|error| ErrorFields::new(error).sqlstate().to_vec());
            seen.sqlstate = sqlstate.map(|state| String::from_utf8_lossy(&state).into_owned());
            if finished.is_err() {
                return self.lost(server, guard, &reply, seen).await;
            }
            let moved = lane.take_mark(&mut server, guard, &reply);
            server.release(Instant::now());
            if !moved {
                *notices = std::mem::take(&mut reply.notices);
                return self.answered(batch, &reply, seen);
            }
            lane.count_dead(batch);
        }
        seen.outcome = FlushOutcome::TableChanged;
        Landed::NotStored
    }

    fn answered(&self, batch: &Cargo, reply: &Reply, seen: &mut Seen) -> Landed {
        let lane = &self.lane;
        match &reply.error {
            None if reply.raw_left == 0 && lane.copied(batch, &reply.tags) => {
                seen.outcome = FlushOutcome::Committed;
                Landed::Committed
            }
            // The server says it copied another number of rows, and has committed: nothing can be promised.
            None => {
                seen.outcome = FlushOutcome::Unknown;
                Landed::Unknown
            }
            Some(error) => {
                lane.count_dead(batch);
                let fields = ErrorFields::new(error);
                if catalog::is_guard_error(&fields) {
                    lane.forget_shapes();
                    seen.outcome = FlushOutcome::TableChanged;
                    return Landed::NotStored;
                }
                let mut owner = lane.guilty(batch, &fields, reply, 0);
                let state = fields.sqlstate();
                let otherwise = match lane.is_pipelined() {
                    false => owner.is_none() && state.starts_with(b"42"),
                    true => state.starts_with(b"42") || state == b"0A000",
                };
                if otherwise {
                    // No such table or column, or no privilege for it: not what was planned for either.
                    lane.forget_shapes();
                    owner = None;
                }
                seen.outcome = if owner.is_some() { FlushOutcome::RowFailed } else { FlushOutcome::Failed };
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
        let tags = guard.tags(self.lane.legs.len()) + self.lane.copies();
        let guard_answered = reply.tags.len() >= tags;
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

    fn committed(&mut self, mut batch: Cargo) {
        self.lane.count(&batch);
        let units = batch.units();
        if let [part] = batch.parts()
            && self.lane.is_pipelined()
        {
            for (ticket, answer) in self.tickets.iter().zip(part.answers(&self.answers)) {
                lock(&ticket.answer).extend_from_slice(answer);
            }
        }
        batch.clear();
        if batch.capacity() <= BUFFER_KEPT {
            lock(&self.lane.inner).flown.push(batch);
        }
        self.resolve(units, Outcome::Inserted);
    }

    fn hand_back(&mut self, batch: &Cargo) {
        self.lane.stats.fallbacks.fetch_add(batch.rows() as u64, Ordering::Relaxed);
        self.resolve(batch.units(), Outcome::RunSingly);
    }

    fn unknown(&mut self, batch: &Cargo) {
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
        inner.away += units;
        self.lane.landed.notify_waiters();
        self.lane.flush_if_due(inner);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.resolve(self.tickets.len(), Outcome::Unknown);
    }
}

/// What a lane's COPYs have, in their order; told once where it is the same.
fn of_each<'a>(legs: &'a [Leg], what: impl Fn(&'a Leg) -> &'a str) -> String {
    let mut all: Vec<&str> = legs.iter().map(what).collect();
    all.dedup();
    all.join("; ")
}

/// What sessions have to agree on to share a lane of this form: more where rows are answered.
fn class_for(form: Form, vars: &VarSet) -> u64 {
    match form {
        Form::Copy(_) => vars.pour_class,
        Form::Pipelined => vars.answer_class,
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
