//! One lane: the batch for one COPY, for several COPYs in a fixed order, or for one INSERT that is run as it is; of one pool and one set
//! of session settings.
//!
//! Owns: the batch that waits, and when it leaves. [`flush`] has its messages, [`flight`] its outcome, [`ticket`] the sessions that wait
//! for it, [`behind`] one flush after another on a connection, [`berths`] how many at once, [`crowd`] and [`pace`] whom a batch waits
//! for. Never: answers a client.

mod behind;
mod berths;
mod crowd;
mod flight;
mod flush;
mod pace;
mod ticket;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;

use super::batch::{Caps, Cargo, Cut, Form, line_of_error};
use super::catalog;
use super::evidence::{Fallback, Flush, LaneStats, Seen, StatsKey, TableStats};
use super::plan::{InsertPlan, ManyValues};
use super::shapes::{Lanes, Shape};
use crate::mutex::lock;
use crate::pool::Pool;
use crate::proto::prepared::Statement;
use crate::proto::vars::VarSet;
use crate::server::internal::Reply;
use crate::settings::{Coalesce, CoalesceMode};
use crate::sql::effects::Effects;
use crate::wire::backend::{ErrorFields, stored_rows};
use crate::wire::copy::CopyFormat;
use behind::{Along, Next};
pub use berths::Berths;
use berths::{Berth, Table};
use crowd::{Crowd, FEW};
use flight::Flight;
use flush::Way;
pub use flush::{Flown, Opening};
use pace::Pace;
pub use ticket::{Outcome, RowNotice, Ticket, Work};

/// After this many failures in a row the lane refuses offers for a while, so that rows run as they were sent.
const FAILURES_BORNE: u32 = 3;

/// After an INSERT of many VALUES failed, this many batches leave as COPYs only.
const COPIES_ONLY: u32 = 64;

/// Offers refused after [`FAILURES_BORNE`]; doubled with each further failure, up to [`PASSED_ON_MAX`].
const PASSED_ON: u64 = 64;

/// See [`PASSED_ON`].
const PASSED_ON_MAX: u64 = 1 << 16;

/// Most rows of the statements in a transaction that is no COPY. Each statement may wait for a lock for its share of a flush's life, so
/// that locks are held far shorter than the server's `deadlock_timeout` and no other transaction becomes a deadlock's victim.
pub const STATEMENT_ROWS_MAX: usize = 64;

fn caps(form: Form, settings: &Coalesce) -> Caps {
    let rows = match form {
        Form::Copy(_) => settings.max_rows,
        Form::Pipelined => settings.max_rows.min(STATEMENT_ROWS_MAX),
    };
    Caps { rows, bytes: settings.max_bytes }
}

/// The longest wait of one statement of a flush for a lock.
fn lock_timeout(form: Form, settings: &Coalesce) -> Duration {
    match form {
        Form::Copy(_) => settings.lock_timeout,
        Form::Pipelined => {
            let share = settings.flush_timeout / STATEMENT_ROWS_MAX as u32;
            settings.lock_timeout.min(share).max(Duration::from_millis(1))
        }
    }
}

/// The longest that a row waits while nothing is under way; the runtime's timer has steps of 1 ms.
const HELD_MAX: Duration = Duration::from_millis(1);

/// Flushes that take longer wait for a disk or another server rather than for a processor: then a second one goes beside the
/// first as soon as no other session can come. Two quicker ones at a time would take longer than one behind the other.
const SLOW: Duration = Duration::from_micros(1500);

/// As [`SLOW`], for so few sessions that no batch of theirs goes behind another: these cost a processor little.
const SLOW_FEW: Duration = Duration::from_micros(250);

/// A lane's answer to an offer of rows.
#[derive(Debug)]
pub enum Offer {
    /// They wait in the batch; the ticket will be resolved.
    Queued,
    /// Run them as they were sent, and drop this when their answer is there: the next batch waits for that.
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
        inner.crowd.answered(1);
        self.lane.flush_if_due(inner);
    }
}

/// One COPY of a flush, or all of its INSERTs.
#[derive(Debug)]
pub struct Leg {
    /// The plan of the statement that opened it.
    pub plan: Arc<InsertPlan>,
    /// The form of its rows.
    pub form: Form,
    /// `schema.table`, as the configuration names it.
    pub table: String,
    /// The COPY, or the INSERT.
    pub statement: Arc<Statement>,
    /// Rows of each INSERT that is run as it is.
    each: usize,
    /// The INSERTs of one row, of two and so on, made when first needed; empty: its rows never leave as one INSERT.
    values: Box<[OnceLock<Arc<Statement>>]>,
}

impl Leg {
    /// A COPY for the rows of `plan` in this format, if it has one.
    pub(super) fn new(plan: &Arc<InsertPlan>, format: CopyFormat) -> Option<Self> {
        let sql = match format {
            CopyFormat::Text => Some(&plan.copy_text_sql),
            CopyFormat::Binary => plan.copy_binary_sql.as_ref(),
        }?;
        let copy = Statement::own(sql);
        Some(Self::of(plan, Form::Copy(format), copy, 1))
    }

    /// INSERTs of this many rows that are no COPY, each run as it is.
    pub(super) fn pipelined(plan: &Arc<InsertPlan>, statement: Arc<Statement>, rows: usize) -> Self {
        Self::of(plan, Form::Pipelined, statement, rows.max(1))
    }

    fn of(plan: &Arc<InsertPlan>, form: Form, statement: Arc<Statement>, each: usize) -> Self {
        let many = plan.values.as_ref().filter(|_| form != Form::Pipelined).map_or(0, ManyValues::rows_max);
        let values = (0..many).map(|_| OnceLock::new()).collect();
        Self { table: plan.configured_name(), plan: Arc::clone(plan), form, statement, each, values }
    }

    /// The INSERT of this many rows, if they may leave as one.
    fn values(&self, rows: usize) -> Option<&Arc<Statement>> {
        let (cell, values) = self.values.get(rows.checked_sub(1)?).zip(self.plan.values.as_ref())?;
        Some(cell.get_or_init(|| {
            let (sql, types) = values.statement(rows);
            Statement::new(sql.as_bytes(), &types, Effects::NONE)
        }))
    }

    /// The same COPY.
    fn again(&self) -> Self {
        Self::of(&self.plan, self.form, Arc::clone(&self.statement), self.each)
    }

    /// A hash that is equal for legs of the same text.
    pub(super) fn likeness(&self, hasher: &ahash::RandomState) -> u64 {
        hasher.hash_one((self.form, &self.statement.query, &self.statement.types))
    }

    /// Has it the same text?
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
    /// Emptied batches, kept for their buffers.
    flown: Vec<Cargo>,
    /// COPYs in flight, and the units in them.
    flights: usize,
    flying: usize,
    /// The flights that only wait for their COMMIT.
    committing: usize,
    /// The numbers of the batches in flight.
    aloft: Vec<u64>,
    /// Rows under way as they were sent.
    singles: usize,
    crowd: Crowd,
    pace: Pace,
    /// The batch is due, but there is no place for its flush ([`berths`]).
    overdue: bool,
    /// Since when the batch has waited for more sessions while nothing is under way.
    held: Option<Instant>,
    /// How long recent flushes took.
    took: Duration,
    failures: u32,
    pass_on: u64,
    /// The number of further batches that are COPYs only, after an INSERT of many VALUES failed, whose error names no row.
    copies_only: u32,
    /// Number of batches that left, which is also the number of the batch that waits now.
    batches: u64,
    /// When the first row of the batch came.
    since: Instant,
    along: Along,
}

impl Inner {
    /// Nothing waits, nothing is under way.
    fn new(batch: Cargo) -> Self {
        Self {
            batch,
            tickets: Vec::new(),
            flown: Vec::new(),
            flights: 0,
            flying: 0,
            committing: 0,
            aloft: Vec::new(),
            singles: 0,
            crowd: Crowd::default(),
            pace: Pace::default(),
            overdue: false,
            held: None,
            took: Duration::ZERO,
            failures: 0,
            pass_on: 0,
            copies_only: 0,
            batches: 0,
            since: Instant::now(),
            along: Along::Not,
        }
    }

    /// Number of sessions whose units wait or are under way.
    fn here(&self) -> usize {
        self.tickets.len() + self.flying + self.singles
    }

    /// Is the whole crowd to leave together?
    fn is_whole(&self) -> bool {
        self.pace.is_whole() && !self.crowd.is_hurried()
    }

    /// Is it worth it that this many wait for the sessions that were answered a moment ago?
    fn is_coming(&self, waiting: usize) -> bool {
        self.crowd.is_coming(waiting, self.is_whole())
    }

    /// A session is back, or new.
    fn came(&mut self) {
        if self.crowd.came() {
            self.pace.all_are_back(Instant::now);
        }
    }

    /// With nothing under way, does the batch wait for the sessions that were answered a moment ago? No longer than a flush takes, as it
    /// would if one were under way. Where all sessions leave together they have waited that long already.
    fn is_held(&mut self) -> bool {
        if !self.is_coming(self.tickets.len()) {
            if self.held.is_some() {
                self.crowd.kept_its_word();
            }
            return false;
        }
        let whole = self.is_whole();
        let limit = if whole { self.pace.longest_wait() } else { self.took };
        match self.held {
            None if !whole && self.since.elapsed() >= HELD_MAX => false,
            None => {
                self.held = Some(Instant::now());
                true
            }
            Some(begin) if begin.elapsed() < limit => true,
            Some(_) => {
                self.waited_in_vain();
                false
            }
        }
    }

    /// Have all batches before this number left, and is none of them under way?
    fn has_landed(&self, before: u64) -> bool {
        self.batches >= before && self.aloft.iter().all(|number| *number >= before)
    }

    /// Notes that no COPY of a flight succeeded.
    fn failed(&mut self) {
        self.failures += 1;
        if self.failures >= FAILURES_BORNE {
            let doublings = (self.failures - FAILURES_BORNE).min(10);
            self.pass_on = (PASSED_ON << doublings).min(PASSED_ON_MAX);
        }
    }

    /// Is this offer refused because too many flights failed?
    fn passes_on(&mut self) -> bool {
        let passes = self.pass_on > 0;
        self.pass_on = self.pass_on.saturating_sub(1);
        passes
    }

    /// Keeps the emptied batch of a flight for its buffers: one for each flight, because a failed flight returns its batch in parts.
    fn keep(&mut self, flown: Cargo) {
        if self.flown.len() < self.flights {
            self.flown.push(flown);
        }
    }

    fn waited_in_vain(&mut self) {
        let here = self.here();
        self.crowd.stayed_away(here);
        if self.pace.is_whole() {
            self.pace.waited_in_vain();
        }
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
    /// Counters, shared with the lanes that it replaces and that replace it.
    pub stats: Arc<LaneStats>,
    class: u64,
    vars: Arc<VarSet>,
    /// The lanes of single tables that it combines; empty: it is for a single table.
    parts: Vec<Arc<Self>>,
    /// There are foreign keys between its tables, so that it holds one client's unit at a time.
    tied: bool,
    sentinel: Option<Arc<Statement>>,
    /// The tables, each once.
    tables: Box<[Table]>,
    settings: Coalesce,
    lanes: Weak<Lanes>,
    shapes: Mutex<Vec<Weak<Shape>>>,
    inner: Mutex<Inner>,
    landed: Notify,
    /// Notified when a session ends whose rows may be under way.
    given_up: Notify,
}

/// The unit that a row of a COPY belongs to.
struct Owner<'a> {
    unit: usize,
    /// The number of the row in its unit, from 0.
    row: usize,
    /// The COPY's table, as errors name it.
    relname: &'a str,
}

/// What a lane does, in order of how busy it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneState {
    /// Nothing waits, nothing is under way.
    Idle,
    /// It failed too often: it refuses offers for a while.
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

/// The settings of a flush: those of its clients that matter to their rows, and pgsluice's own.
fn vars_for(form: Form, vars: &VarSet, settings: &Coalesce, pool: &Pool) -> Arc<VarSet> {
    let millis = |d: Duration| d.as_millis().to_string();
    let (lock_timeout, flush_timeout) =
        (millis(lock_timeout(form, settings)), millis(settings.flush_timeout));
    let own = [
        ("application_name", "pgsluice"),
        ("lock_timeout", lock_timeout.as_str()),
        ("statement_timeout", flush_timeout.as_str()),
        // Planning the guard costs more than running it.
        ("plan_cache_mode", "force_generic_plan"),
        // Compiling it costs more than either, and longer than a flush may live.
        ("jit", "off"),
    ];
    let shared = &pool.shared().vars;
    match form {
        Form::Copy(_) => shared.intern(vars.pouring().chain(own)),
        Form::Pipelined => shared.intern(vars.answering().chain(own)),
    }
}

/// The cheap guard, if it may replace the full one.
fn sentinel_for(legs: &[Leg]) -> Option<Arc<Statement>> {
    legs.iter().all(|leg| leg.plan.has_sentinel).then(|| {
        let sql = catalog::sentinel_sql(legs.iter().map(|leg| leg.plan.target.as_str()));
        Statement::own(&sql)
    })
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
        let plans = || legs.iter().map(|leg| &leg.plan);
        let database: Arc<str> = pool.key.database.as_str().into();
        let tables: HashSet<_> =
            plans().map(|plan| Table { database: Arc::clone(&database), relid: plan.relid }).collect();
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
            vars: vars_for(form, vars, &settings, pool),
            parts,
            tied: plans().any(|plan| plans().any(|other| plan.is_tied_to(other))),
            sentinel: sentinel_for(&legs),
            tables: tables.into_iter().collect(),
            lanes: Arc::downgrade(lanes),
            shapes: Mutex::default(),
            inner: Mutex::new(Inner::new(Cargo::new(legs.iter().map(|leg| leg.form), caps(form, &settings)))),
            settings,
            landed: Notify::new(),
            given_up: Notify::new(),
            legs,
        })
    }

    /// A lane for units with rows for each of these lanes, in this order; `None` if they are not of one pool and the same
    /// settings.
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

    /// Does it combine these lanes?
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
            && own.plan.types == leg.plan.types
            && own.plan.has_sentinel == leg.plan.has_sentinel
            && self.mode == mode
            && self.settings == pool.settings.load().coalesce
    }

    /// Is it idle, and `new` a lane for the same COPY, made because the table is another one now? Also true of one that combines such a lane.
    pub(super) fn is_replaced_by(&self, new: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &new.pool)
            && self.class == new.class
            && new.legs.iter().all(|leg| self.legs.iter().any(|own| own.is_like(leg)))
            && !self.is_busy()
    }

    /// Are its batches statements that run as they are, and no COPY?
    fn is_pipelined(&self) -> bool {
        self.legs.iter().any(|leg| leg.form == Form::Pipelined)
    }

    fn caps(&self) -> Caps {
        caps(self.legs.first().map_or(Form::Pipelined, |leg| leg.form), &self.settings)
    }

    /// Rows of each statement that is run as it is; 1 where rows leave separately.
    fn each(&self) -> usize {
        self.legs.first().map_or(1, |leg| leg.each)
    }

    /// COPYs of a flush.
    fn copies(&self, batch: &Cargo) -> usize {
        if self.is_pipelined() { 0 } else { batch.copies().count() }
    }

    /// From this many rows on they leave together.
    fn copy_min_rows(&self) -> usize {
        self.settings.copy_min_rows.saturating_mul(self.legs.len())
    }

    pub(super) fn add_shape(&self, shape: &Arc<Shape>) {
        let mut shapes = lock(&self.shapes);
        shapes.retain(|s| s.strong_count() > 0 && !std::ptr::eq(s.as_ptr(), Arc::as_ptr(shape)));
        shapes.push(Arc::downgrade(shape));
    }

    /// Can any statement's rows be offered to it?
    pub(super) fn is_led_to(&self) -> bool {
        match &*self.parts {
            [] => lock(&self.shapes).iter().any(|shape| shape.strong_count() > 0),
            parts => parts.iter().all(|part| part.is_led_to()),
        }
    }

    /// Do rows wait, or are any under way?
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

    /// Hot path. Offers one unit: encoded rows of `statements` statements that succeed or fail together, with cuts where the rows of the
    /// next COPY begin. A single statement leaves an idle lane as it was sent, however many rows it has.
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
        if inner.passes_on() {
            self.stats.passed_on.fetch_add(1, Ordering::Relaxed);
            return Offer::PassOn;
        }
        inner.came();
        let alone = if inner.crowd.is_few() { FEW } else { 1 };
        let idle =
            inner.flights == 0 && inner.singles < alone && inner.batch.is_empty() && !inner.is_coming(1);
        let enough = statements > 1 && rows >= self.copy_min_rows();
        if idle && self.settings.linger.is_zero() && !enough {
            if inner.singles == 0 {
                inner.crowd.forget_some();
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
        ticket.waits();
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

    /// The timer of a batch. Batches do not normally leave by it, unless there is a `linger`: it ends waits in vain, for sessions that do not
    /// come, for a row sent alone that waits for a lock (no longer than a batch would wait for a lock itself), and for other flushes (no
    /// longer than one of them may take).
    fn watch(self: &Arc<Self>, batch: u64) {
        if lock(&self.inner).batches != batch {
            return;
        }
        let lane = Arc::clone(self);
        tokio::spawn(async move {
            let Coalesce { linger, lock_timeout, flush_timeout, .. } = lane.settings;
            if linger.is_zero() {
                tokio::time::sleep(HELD_MAX).await;
                if !lane.waits_no_more(batch) {
                    return;
                }
                tokio::time::sleep(lock_timeout.saturating_sub(HELD_MAX)).await;
            } else {
                tokio::time::sleep(linger).await;
            }
            if !lane.is_overdue(batch) {
                return;
            }
            tokio::time::sleep(flush_timeout).await;
            lane.gives_up(batch);
        });
    }

    /// Ends a batch's wait for half of its sessions: it leaves, or waits for a place. False: it has left already.
    fn waits_no_more(self: &Arc<Self>, batch: u64) -> bool {
        let inner = lock(&self.inner);
        if inner.batches != batch {
            return false;
        }
        if inner.held.is_none() || inner.is_whole() {
            return true;
        }
        self.leave_without_them(inner);
        lock(&self.inner).batches == batch
    }

    fn leave_without_them(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        inner.waited_in_vain();
        self.leave(inner);
    }

    /// The timer of a batch that waits for all of its sessions.
    fn watch_hold(self: &Arc<Self>, batch: u64, limit: Duration) {
        let lane = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            let inner = lock(&lane.inner);
            if inner.batches == batch && inner.held.is_some() {
                lane.leave_without_them(inner);
            }
        });
    }

    /// Lets a batch leave as soon as there is a place for it. False: it has left already.
    fn is_overdue(self: &Arc<Self>, batch: u64) -> bool {
        let inner = lock(&self.inner);
        if inner.batches != batch {
            return false;
        }
        self.leave(inner);
        lock(&self.inner).batches == batch
    }

    /// Gives a batch up for which there was no place: its rows run as they were sent.
    fn gives_up(self: &Arc<Self>, batch: u64) {
        let mut inner = lock(&self.inner);
        if inner.batches != batch {
            return;
        }
        let Next { mut flight, batch } = self.depart(&mut inner, None);
        drop(inner);
        flight.hand_back(&batch, Fallback::NotSent);
    }

    fn within_budget(&self, bytes: usize) -> bool {
        self.lanes.upgrade().is_some_and(|lanes| lanes.within_budget(bytes, self.settings.budget_bytes))
    }

    fn return_budget(&self, bytes: usize) {
        if let Some(lanes) = self.lanes.upgrade() {
            lanes.return_budget(bytes);
        }
    }

    /// Takes a unit back that has not left yet, or waits for a connection. True: it is out of the batch and will not be stored; its session
    /// needs another ticket for a new offer.
    pub fn withdraw(&self, ticket: &Arc<Ticket>) -> bool {
        let mut inner = lock(&self.inner);
        let Some(unit) = inner.tickets.iter().position(|t| Arc::ptr_eq(t, ticket)) else {
            return ticket.stays_behind();
        };
        let bytes = inner.batch.unit_bytes(unit);
        inner.batch = inner.batch.without(unit);
        inner.tickets.remove(unit);
        if inner.tickets.is_empty() {
            // The timer is not that of the next one.
            inner.batches += 1;
            inner.held = None;
            inner.overdue = false;
            self.landed.notify_waiters();
        }
        drop(inner);
        self.return_budget(bytes);
        true
    }

    /// The unit's session ends. Rows under way are stored or not, as when a session ends in the middle of a COMMIT; the connection of a flight
    /// is closed with the last session that waited for it.
    pub fn give_up(&self, ticket: &Arc<Ticket>) {
        if !self.withdraw(ticket) {
            ticket.give_up();
        }
        self.given_up.notify_waiters();
    }

    /// FLUSH: the batch leaves now. Ready when it and all batches before it have ended.
    ///
    /// Cancel safety: flights go on.
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
            if lock(&self.inner).has_landed(before) {
                return;
            }
            landed.await;
        }
    }

    /// The rule for when a batch leaves; see the drawing in [`crate::coalesce`].
    fn flush_if_due(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        if inner.batch.is_empty() || inner.flights >= self.settings.max_flushes_per_table {
            return;
        }
        let (rows, bytes, waiting) = (inner.batch.rows(), inner.batch.bytes(), inner.tickets.len());
        let full = rows >= self.caps().rows / 2 || bytes >= self.settings.max_bytes / 2;
        let was_held = inner.held.is_some();
        // With a linger only its timer and a full batch say so ([`Lane::watch`]).
        let due = inner.overdue
            || full
            || self.settings.linger.is_zero()
                && match (inner.flights, inner.singles) {
                    (0, 0) => !inner.is_held(),
                    (0, _) => inner.crowd.is_several() && inner.crowd.is_half(waiting),
                    (_, _) if inner.along.is_awaited() && inner.may_follow() => true,
                    (flights, _) if flights == inner.committing && inner.pace.commits_slowly() => {
                        !inner.is_whole() && !inner.crowd.is_few() && inner.crowd.is_half(waiting)
                    }
                    (_, _) => {
                        !inner.is_whole()
                            && inner.waits_for_disk()
                            && inner.crowd.is_several()
                            && inner.crowd.is_complete(inner.here())
                    }
                };
        if !due {
            if inner.held.is_some() && !was_held && inner.is_whole() {
                self.watch_hold(inner.batches, inner.pace.longest_wait());
            }
            return;
        }
        let Some(berth) = Berth::take(self) else {
            inner.overdue = true;
            return;
        };
        // One that waited too long does not follow another: that one may be what it waited for.
        let beside = inner.overdue;
        let next = self.depart(&mut inner, Some(berth));
        let alone = if beside { Some(next) } else { inner.along.give(next) };
        drop(inner);
        if let Some(next) = alone {
            next.fly();
        }
    }

    fn empty(&self) -> Cargo {
        Cargo::new(self.legs.iter().map(|leg| leg.form), self.caps())
    }

    /// The batch waits for no more sessions: it leaves, or waits for a place.
    fn leave(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>) {
        inner.overdue = true;
        self.flush_if_due(inner);
    }

    /// `berth`: `None` if it does not go to the server.
    fn depart(self: &Arc<Self>, inner: &mut Inner, berth: Option<Berth>) -> Next {
        inner.held = None;
        inner.overdue = false;
        let here = inner.here();
        if inner.crowd.left(here) {
            inner.pace.all_are_back(Instant::now);
        }
        let empty = inner.flown.pop().unwrap_or_else(|| self.empty());
        let batch = std::mem::replace(&mut inner.batch, empty);
        let as_many = Vec::with_capacity(inner.tickets.len());
        let tickets = std::mem::replace(&mut inner.tickets, as_many);
        let number = inner.batches;
        inner.batches += 1;
        inner.flights += 1;
        inner.aloft.push(number);
        inner.flying += tickets.len();
        let since = inner.since;
        let way = if inner.copies_only == 0 { Way::Cheapest } else { Way::Copies };
        inner.copies_only = inner.copies_only.saturating_sub(1);
        self.return_budget(batch.bytes());
        let left = Instant::now();
        let waited = left.duration_since(since);
        let units = tickets.len();
        let flight = Flight {
            lane: Arc::clone(self),
            berth,
            number,
            units,
            tickets,
            waited,
            left,
            failed: false,
            answers: Vec::new(),
            took: None,
            commit: Duration::ZERO,
            way,
            values_rows: 0,
        };
        Next { flight, batch }
    }

    /// Forgets the plans of its statements, because a table is not the one that was planned for.
    pub fn forget_shapes(&self) {
        self.parts.iter().for_each(|part| part.forget_shapes());
        for shape in lock(&self.shapes).drain(..) {
            if let Some(shape) = shape.upgrade() {
                shape.forget();
            }
        }
    }

    /// Do the command tags say that all rows of each COPY were stored? `before`: the number of tags before those of [`Lane::put_rows`].
    fn copied(&self, batch: &Cargo, reply: &Reply, before: usize) -> bool {
        let tags = reply.tags.get(before + self.names_first()..).unwrap_or_default();
        self.is_pipelined()
            || (tags.len() >= self.copies(batch)
                && batch.copies().zip(tags).all(|(copy, tag)| stored_rows(tag) == Some(copy.rows)))
    }

    /// The unit whose row failed, if that can be told; `before` as in [`Lane::copied`].
    fn guilty(&self, batch: &Cargo, error: &ErrorFields<'_>, reply: &Reply, before: usize) -> Option<usize> {
        if self.is_pipelined() {
            // The INSERT behind those that were answered; the guard's tag is behind all, that of the look by name before them.
            reply.tags.len().checked_sub(self.names_first())?;
            let part = batch.parts().first()?;
            let answered = (part.rows() / self.each()).checked_sub(reply.raw_left)?;
            return part.line_owner((answered * self.each() + 1) as u64);
        }
        // What failed is the first one without a tag.
        let answered = reply.tags.len().checked_sub(before)?;
        self.owner_in(batch, answered, error).map(|owner| owner.unit)
    }

    /// The row that an error or notice names, which came after `answered` tags of the messages of [`Lane::put_rows`].
    fn owner_in(&self, batch: &Cargo, answered: usize, fields: &ErrorFields<'_>) -> Option<Owner<'_>> {
        let copy = batch.copies().nth(answered.checked_sub(self.names_first())?)?;
        let (leg, part) = self.legs.get(copy.part).zip(batch.parts().get(copy.part))?;
        let line = usize::try_from(line_of_error(fields, &leg.plan.relname)?).ok()?;
        let line = (line <= copy.rows).then_some(copy.before + line)?;
        let unit = part.line_owner(line as u64)?;
        let earlier: usize = batch.parts()[..copy.part].iter().map(|part| part.unit_rows(unit)).sum();
        Some(Owner { unit, row: earlier + line - 1 - part.first_row(unit), relname: &leg.plan.relname })
    }

    // ----- inside a client's own block

    /// Are this many rows better copied than inserted?
    pub fn is_worth_it(&self, rows: usize) -> bool {
        rows >= self.copy_min_rows().max(2)
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

    fn count(&self, batch: &Cargo, values_rows: usize) {
        self.stats.values_rows.fetch_add(values_rows as u64, Ordering::Relaxed);
        self.stats.whole_rows.fetch_add((batch.rows() - values_rows) as u64, Ordering::Relaxed);
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
}

/// A text of each leg, in their order, joined; once if all are equal.
fn of_each<'a>(legs: &'a [Leg], what: impl Fn(&'a Leg) -> &'a str) -> String {
    let mut all: Vec<&str> = legs.iter().map(what).collect();
    all.dedup();
    all.join("; ")
}

/// A hash of the settings that sessions must have in common to share a lane of this form; more settings count if rows are returned.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// However many parts the flights of a lane come in.
    #[test]
    fn buffers_are_kept_one_for_each_flight() {
        let cargo = || Cargo::new([CopyFormat::Text], Caps { rows: 1, bytes: 1 });
        let mut inner = Inner::new(cargo());
        inner.flights = 2;
        (0..100).for_each(|_| inner.keep(cargo()));
        assert_eq!(inner.flown.len(), 2);
        inner.flown.pop();
        inner.keep(cargo());
        assert_eq!(inner.flown.len(), 2);
    }

    #[test]
    fn a_lane_that_fails_is_left_alone_for_longer_and_longer() {
        let mut inner = Inner::new(Cargo::new([CopyFormat::Text], Caps { rows: 1, bytes: 1 }));
        let mut passed = |failures| {
            (0..failures).for_each(|_| inner.failed());
            (0..=PASSED_ON_MAX).take_while(|_| inner.passes_on()).count() as u64
        };
        assert_eq!([passed(0), passed(1), passed(1)], [0; 3]);
        assert_eq!([passed(1), passed(0), passed(1), passed(1)], [64, 0, 128, 256]);
        assert_eq!(passed(40), 65_536);
    }

    #[test]
    fn the_columns_stand_in_the_copy() {
        assert_eq!(columns_of("COPY \"public\".\"t\" (\"a\", \"b c\") FROM STDIN"), "\"a\", \"b c\"");
    }
}
