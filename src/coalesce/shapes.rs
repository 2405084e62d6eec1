//! What is known of the INSERTs that have passed: the server is asked once about each shape of text and each prepared statement.
//!
//! Owns: the cache from (pool, session settings, text) to a plan and its lanes, bounded; the task (`ask`) that asks the
//! catalogue on a connection with the client's own settings. Never: delays a client; an INSERT that is not known yet goes
//! through as it was sent.

mod ask;
mod closed;
mod filed;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::evidence::Evidence;
use super::lane::{Berths, Lane, Leg};
use super::plan::InsertPlan;
use super::tables::Tables;
use crate::mutex::lock;
use crate::pool::Pool;
use crate::proto::prepared::{NO_ROWS, Statement};
use crate::proto::vars::VarSet;
use crate::settings::{CoalesceMode, CoalesceTable};
use crate::sql::again::Memo;
use crate::sql::insert::{Item, Lifted, NotPourable, table_named};
use crate::wire::backend::row_shape;
use crate::wire::copy::CopyFormat;
pub(super) use ask::GUARD;
use ask::{Answer, Asker, Question, Refusal};
pub use closed::Closed;
use filed::Filed;

/// Most shapes remembered; beyond it the oldest goes that has not come by since it was last looked at.
const SHAPES_MAX: usize = 10_000;

/// Memory for them and for what is known of them (bytes), about: that of tables of usual width is some 18 kB each.
const SHAPES_BYTES_MAX: usize = 192 << 20;

/// What a shape costs beside its texts (bytes), about.
const SHAPE_BYTES: usize = 512;

/// And a lane beside its: counters, and INSERTs of a few rows.
const LANE_BYTES: usize = 8 << 10;

/// How many are looked at for one that can go.
const LOOKS_MAX: usize = 32;

/// After this many shapes have gone, or this many bytes, lanes that nothing leads to any more go as well.
const SHAPES_A_SWEEP: usize = 256;
const BYTES_A_SWEEP: usize = SHAPES_BYTES_MAX / 8;

/// With more lanes than this none keeps its buffers between two flushes. Programs have few.
const LANES_WITH_BUFFERS: usize = 256;

/// Longest shape or statement text that is looked at (bytes).
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// Most COPYs of one flush.
pub const LEGS_MAX: usize = 32;

/// A refusal is asked about again after this long: the table may have changed.
const REFUSAL_KEPT: Duration = Duration::from_secs(60);

/// A question that could not be answered is asked again after this long.
const NO_ANSWER_KEPT: Duration = Duration::from_secs(1);

/// The longest that the server may think about one.
const THOUGHT_MAX: &str = "10s";

/// What an INSERT is recognised by.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// Literals: one row of the text that the scan took apart.
    Literals {
        /// The text with the literals of that row lifted out, and without the others.
        shape: &'a [u8],
        /// What the scan made of the text.
        lifted: &'a Lifted,
        /// The text.
        text: &'a [u8],
        /// The row, from 0.
        row: usize,
    },
    /// A prepared statement.
    Prepared(&'a Arc<Statement>),
}

impl Source<'_> {
    fn key(&self) -> (Kind, &[u8], &[u8]) {
        match self {
            Self::Literals { shape, lifted, .. } => (Kind::Literals(lifted.rows_at_once()), shape, &[]),
            Self::Prepared(statement) => (Kind::Prepared, &statement.query, &statement.types),
        }
    }

    /// The statement.
    fn text(&self) -> &[u8] {
        match self {
            Self::Literals { text, .. } => text,
            Self::Prepared(statement) => &statement.query,
        }
    }

    /// What sessions must agree on to count as one: more if rows are answered.
    fn class(&self, vars: &VarSet) -> u64 {
        let tail = match self {
            Self::Literals { lifted, .. } => lifted.tail,
            Self::Prepared(statement) => statement.as_insert().map(|insert| insert.tail).unwrap_or_default(),
        };
        vars.asked_class(!tail.is_plain())
    }
}

/// A statement that can be poured, and where to.
#[derive(Debug)]
pub struct Ready {
    /// How its rows are encoded.
    pub plan: Arc<InsertPlan>,
    /// ParameterDescription's body, as the server gave it.
    pub param_description: Option<Vec<u8>>,
    /// Inside a transaction block it is answered at once.
    pub deferred: bool,
    way: Way,
    /// Of the table that it was planned for: see [`Seen::wrong`](super::tables::Seen::wrong).
    wrong: Arc<AtomicBool>,
}

/// How the rows leave.
#[derive(Debug)]
enum Way {
    Copy { text: Option<Arc<Lane>>, binary: Option<Arc<Lane>> },
    Pipelined(Together),
}

/// A statement that leaves as it is, in a transaction with those of others.
#[derive(Debug)]
pub struct Together {
    /// Its lane.
    pub lane: Arc<Lane>,
    /// The statement that is run.
    pub statement: Arc<Statement>,
    /// RowDescription's body, as the server gave it for the statement; `None`: it answers no rows.
    pub row_description: Option<Vec<u8>>,
    /// Its hash, [`NO_ROWS`] for none.
    pub shape: u64,
}

impl Together {
    fn new(lane: Arc<Lane>, row_description: Option<Vec<u8>>) -> Self {
        // The lane's own may be another with the same text than the one asked about: its name is the one that is prepared.
        let statement = Arc::clone(&lane.legs[0].statement);
        let shape = row_description.as_deref().and_then(row_shape).unwrap_or(NO_ROWS);
        Self { lane, statement, row_description, shape }
    }

    /// Do the rows look as clients that prepared `statement`, which has a name, were told, if any were? From here on they were.
    pub fn tell(&self, statement: &Statement) -> bool {
        *statement.shape.get_or_init(|| self.shape) == self.shape
    }
}

impl Ready {
    /// Were clients with `statement` told the types that its parameters have here, if any were?
    pub fn has_params_of(&self, statement: &Statement) -> bool {
        let Some(types) = self.param_description.as_ref().and_then(|body| body.get(2..)) else { return true };
        // Here they may be those of one row, of several that are alike.
        !statement.has_moved() && statement.params.get().is_none_or(|told| told.starts_with(types))
    }

    /// Either this was planned, or somebody was told of `statement`, before a column was altered: it is asked about again, and who
    /// parses that text without a name next is told anew.
    pub fn disagree(&self, statement: &Statement) {
        if statement.has_moved() {
            return;
        }
        if let Some(body) = self.param_description.as_ref().filter(|_| !statement.is_shared()) {
            statement.has_params(body.get(2..).unwrap_or_default());
        }
        match &self.way {
            Way::Copy { text, binary } => text.iter().chain(binary).for_each(|lane| lane.forget_shapes()),
            Way::Pipelined(together) => together.lane.forget_shapes(),
        }
    }

    /// As [`Ready::has_params_of`]; from here on somebody was.
    pub fn tell_params(&self, statement: &Statement) -> bool {
        let Some(types) = self.param_description.as_ref().and_then(|body| body.get(2..)) else { return true };
        if statement.params.get().is_none() {
            statement.has_params(&types.repeat(statement.as_insert().map_or(1, |insert| insert.times())));
        }
        self.has_params_of(statement)
    }

    /// The lane for rows of this format.
    pub fn lane(&self, format: CopyFormat) -> Option<&Arc<Lane>> {
        match (&self.way, format) {
            (Way::Copy { text, .. }, CopyFormat::Text) => text.as_ref(),
            (Way::Copy { binary, .. }, CopyFormat::Binary) => binary.as_ref(),
            (Way::Pipelined(_), _) => None,
        }
    }

    /// Any of the lanes that it leads to.
    fn any_lane(&self) -> Option<&Arc<Lane>> {
        match &self.way {
            Way::Copy { text, binary } => text.as_ref().or(binary.as_ref()),
            Way::Pipelined(together) => Some(&together.lane),
        }
    }

    /// Memory that it takes, with its lanes, which others may share (bytes), about.
    fn bytes(&self) -> usize {
        let lane = |lane: &Arc<Lane>| {
            let sql: usize = lane.legs.iter().map(|leg| leg.statement.query.len()).sum();
            // Its counters have the columns, twice.
            LANE_BYTES + sql + 2 * self.plan.copy_text_sql.len()
        };
        let lanes: usize = match &self.way {
            Way::Copy { text, binary } => text.iter().chain(binary).map(lane).sum(),
            Way::Pipelined(together) => lane(&together.lane) + together.statement.query.len(),
        };
        self.plan.bytes() + self.param_description.as_ref().map_or(0, Vec::len) + lanes
    }

    /// Does it lead to lanes of this pool?
    fn is_of(&self, pool: &Arc<Pool>) -> bool {
        self.any_lane().is_some_and(|lane| Arc::ptr_eq(&lane.pool, pool))
    }

    /// Of its table.
    pub fn mode(&self) -> CoalesceMode {
        self.any_lane().map_or(CoalesceMode::Off, |lane| lane.mode)
    }

    /// The statement's way, when it is not a COPY.
    pub fn together(&self) -> Option<&Together> {
        match &self.way {
            Way::Copy { .. } => None,
            Way::Pipelined(together) => Some(together),
        }
    }
}

/// What is known of a shape.
#[derive(Debug)]
enum Known {
    /// Nothing; nobody asks.
    Nothing,
    /// Somebody asks.
    Asking,
    /// Not poured ...
    No,
    /// ... nor is anything else that the same settings write into the same table.
    NoTable,
    /// Poured.
    Yes(Arc<Ready>),
}

impl Known {
    fn is_refusal(&self) -> bool {
        matches!(self, Self::No | Self::NoTable)
    }
}

/// The last answer about a shape, as the console shows it until there is another.
#[derive(Debug, Clone, Default)]
struct Said {
    table: Option<String>,
    eligible: Option<bool>,
    reason: String,
}

/// What a shape stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// INSERTs of literals, of so many rows that are run at once.
    Literals(usize),
    /// A prepared INSERT.
    Prepared,
    /// INSERTs whose text rules pouring out.
    Refused,
}

/// One shape.
#[derive(Debug)]
pub struct Shape {
    pool: usize,
    class: u64,
    kind: Kind,
    text: Box<[u8]>,
    types: Box<[u8]>,
    known: ArcSwap<Known>,
    said: Mutex<Said>,
    seen: AtomicU64,
    /// Bytes counted for it; 0: it is remembered no longer.
    bytes: AtomicUsize,
}

impl Shape {
    /// Its memory without what is known of it (bytes).
    fn own_bytes(&self) -> usize {
        SHAPE_BYTES + self.text.len() + self.types.len()
    }

    fn is(&self, pool: usize, class: u64, key: (Kind, &[u8], &[u8])) -> bool {
        self.pool == pool && self.class == class && (self.kind, &*self.text, &*self.types) == key
    }

    fn ready(&self) -> Option<Arc<Ready>> {
        match &**self.known.load() {
            Known::Yes(ready) => Some(Arc::clone(ready)),
            Known::Nothing | Known::Asking | Known::No | Known::NoTable => None,
        }
    }

    /// Hot path. Is it refused to a session of this pool with these settings? If so, it counts as having come by.
    pub fn refuses(&self, pool: &Arc<Pool>, vars: &VarSet) -> bool {
        let refused = self.is_known_to(pool, vars) && self.known.load().is_refusal();
        if refused {
            self.seen.fetch_add(1, Ordering::Relaxed);
        }
        refused
    }

    /// Hot path. As [`Shape::refuses`], whatever the row.
    fn rules_out_table_for(&self, pool: &Arc<Pool>, vars: &VarSet) -> bool {
        self.is_known_to(pool, vars) && self.rules_out_its_table()
    }

    /// Does what is known of it hold for such a session?
    fn is_known_to(&self, pool: &Arc<Pool>, vars: &VarSet) -> bool {
        let of_class = [false, true].map(|answers| vars.asked_class(answers)).contains(&self.class);
        of_class && self.pool == Arc::as_ptr(pool) as usize
    }

    /// Is its table refused, whatever the row? If so, it counts as having come by.
    fn rules_out_its_table(&self) -> bool {
        let refused = matches!(**self.known.load(), Known::NoTable);
        if refused {
            self.seen.fetch_add(1, Ordering::Relaxed);
        }
        refused
    }

    /// The table changed: ask again.
    pub(super) fn forget(&self) {
        if let Known::Yes(ready) = &*self.known.swap(Arc::new(Known::Nothing)) {
            ready.wrong.store(true, Ordering::Relaxed);
        }
    }
}

/// The shapes that one thread found lately: for INSERTs of literals that begin as theirs did ([`Memo`]), and for prepared statements.
///
/// A shape lives as long as the table of shapes holds it, and what is known of it is looked at anew each time: what is
/// forgotten or gone there is not found here.
#[derive(Debug, Default)]
pub struct Recent {
    literals: Memo<(usize, u64), Weak<Shape>>,
    /// By their statement's id, with that.
    prepared: [Option<(u64, Weak<Shape>)>; PREPARED_KEPT],
}

/// As many as an array has a default for.
const PREPARED_KEPT: usize = 32;

impl Recent {
    /// Hot path. The result of [`Lanes::find`] for `text`; `None` says nothing.
    pub fn find(&mut self, pool: &Arc<Pool>, vars: &VarSet, text: &[u8]) -> Option<Lately<'_>> {
        let head = self.literals.head(&(Arc::as_ptr(pool) as usize, vars.asked_class(false)), text)?;
        if let Some(shape) = head.newest().and_then(Weak::upgrade).filter(|shape| shape.rules_out_its_table())
        {
            return Some(Lately::Closed(shape));
        }
        let (shape, items) = head.row()?;
        let shape = shape.upgrade()?;
        let lately = match &**shape.known.load() {
            // A lane keeps its pool, so no other pool can have its address.
            Known::Yes(ready) if Arc::ptr_eq(&ready.lane(CopyFormat::Text)?.pool, pool) => {
                Lately::Ready(Arc::clone(ready), items)
            }
            // If it were another pool's, the statement would only go as it was sent.
            Known::No | Known::NoTable => Lately::Refused,
            Known::Yes(_) | Known::Asking | Known::Nothing => return None,
        };
        shape.seen.fetch_add(1, Ordering::Relaxed);
        Some(lately)
    }

    /// Hot path. The result of [`Lanes::find`] for this statement; `None` says nothing.
    fn find_prepared(
        &self,
        pool: &Arc<Pool>,
        class: u64,
        statement: &Statement,
    ) -> Option<Option<Arc<Ready>>> {
        let shape = self.shape_of(statement).filter(|shape| shape.class == class)?;
        let known = match &**shape.known.load() {
            Known::Yes(ready) if ready.is_of(pool) => Some(Arc::clone(ready)),
            Known::No | Known::NoTable if shape.pool == Arc::as_ptr(pool) as usize => None,
            Known::Yes(_) | Known::No | Known::NoTable | Known::Asking | Known::Nothing => return None,
        };
        shape.seen.fetch_add(1, Ordering::Relaxed);
        Some(known)
    }

    /// The shape of this statement, if it is refused and came by recently.
    pub fn refusal_of(&self, statement: &Statement) -> Option<Arc<Shape>> {
        self.shape_of(statement).filter(|shape| shape.known.load().is_refusal())
    }

    fn shape_of(&self, statement: &Statement) -> Option<Arc<Shape>> {
        let (id, shape) = self.prepared[statement.id as usize % PREPARED_KEPT].as_ref()?;
        shape.upgrade().filter(|_| *id == statement.id)
    }

    fn keep(&mut self, shape: &Arc<Shape>, source: Source<'_>) {
        match source {
            Source::Literals { lifted, text, .. } => {
                self.literals.keep((shape.pool, shape.class), text, lifted, Arc::downgrade(shape));
            }
            Source::Prepared(statement) => {
                let place = &mut self.prepared[statement.id as usize % PREPARED_KEPT];
                *place = Some((statement.id, Arc::downgrade(shape)));
            }
        }
    }
}

/// What is known of a text by its beginning.
#[derive(Debug)]
pub enum Lately<'a> {
    /// Its plan, and the items of its row.
    Ready(Arc<Ready>, &'a [Item]),
    /// It is not poured.
    Refused,
    /// Nor is anything else that begins in this way.
    Closed(Arc<Shape>),
}

/// A row of SHOW COALESCE_TABLES.
#[derive(Debug, Clone)]
pub struct ShapeView {
    /// Database.
    pub database: String,
    /// The table, when it is known.
    pub table: Option<String>,
    /// Poured?
    pub eligible: Option<bool>,
    /// Why not.
    pub reason: String,
    /// Times it came by.
    pub seen: u64,
}

/// One of them, by its hash.
type Noted = (u64, Arc<Shape>);

/// How many of them one thread counts without looking them up.
const NOTED_KEPT: usize = 64;

thread_local! {
    static NOTED: RefCell<[Option<Noted>; NOTED_KEPT]> = const { RefCell::new([const { None }; NOTED_KEPT]) };
}

/// With its pool, which it keeps.
type Placed = (Arc<Pool>, Arc<Shape>);

/// All shapes.
#[derive(Debug, Default)]
struct Shapes {
    /// By the hash of what they are recognised by.
    by_hash: HashMap<u64, Vec<Placed>, ahash::RandomState>,
    /// The oldest first, each with its hash and how often it had come by when it was put here.
    by_age: VecDeque<(u64, Arc<Shape>, u64)>,
    bytes: usize,
    gone: usize,
    gone_bytes: usize,
}

impl Shapes {
    fn insert(&mut self, hash: u64, pool: &Arc<Pool>, shape: &Arc<Shape>) {
        self.bytes += shape.bytes.load(Ordering::Relaxed);
        self.by_hash.entry(hash).or_default().push((Arc::clone(pool), Arc::clone(shape)));
        // It comes by for the first time right now.
        self.by_age.push_back((hash, Arc::clone(shape), 1));
    }

    /// Makes room for one more.
    fn make_room(&mut self, max: usize) {
        if self.by_age.len() >= max {
            self.let_one_go();
        }
        self.lighten(SHAPES_BYTES_MAX);
    }

    /// Removes as many as needed for no more than that to be left (bytes).
    fn lighten(&mut self, max: usize) {
        while self.bytes > max && !self.by_age.is_empty() {
            self.let_one_go();
        }
    }

    /// What is known of this one takes this many bytes now. Others go if all together take more than `max`.
    fn weigh(&mut self, shape: &Shape, bytes: usize, max: usize) {
        let before = shape.bytes.load(Ordering::Relaxed);
        if before == 0 {
            return;
        }
        shape.bytes.store(bytes, Ordering::Relaxed);
        self.bytes = self.bytes - before + bytes;
        self.lighten(max);
    }

    /// It is remembered no longer.
    fn discount(&mut self, shape: &Shape) {
        let bytes = shape.bytes.swap(0, Ordering::Relaxed);
        self.bytes -= bytes;
        self.gone_bytes += bytes;
    }

    fn let_one_go(&mut self) {
        for look in 1.. {
            let Some((hash, shape, seen_then)) = self.by_age.pop_front() else { return };
            let seen = shape.seen.load(Ordering::Relaxed);
            if seen > seen_then && look < LOOKS_MAX {
                self.by_age.push_back((hash, shape, seen));
                continue;
            }
            if let Some(slot) = self.by_hash.get_mut(&hash) {
                slot.retain(|(_, other)| !Arc::ptr_eq(other, &shape));
                if slot.is_empty() {
                    self.by_hash.remove(&hash);
                }
            }
            self.discount(&shape);
            self.gone += 1;
            return;
        }
    }

    /// Removes those of other pools.
    fn retain(&mut self, keeps: impl Fn(&Pool) -> bool) {
        let mut gone = HashSet::new();
        self.by_hash.retain(|_, slot| {
            slot.retain(|(pool, shape)| {
                let kept = keeps(pool);
                if !kept {
                    gone.insert(Arc::as_ptr(shape));
                }
                kept
            });
            !slot.is_empty()
        });
        if !gone.is_empty() {
            let (gone, kept) = std::mem::take(&mut self.by_age)
                .into_iter()
                .partition::<VecDeque<_>, _>(|(_, shape, _)| gone.contains(&Arc::as_ptr(shape)));
            gone.iter().for_each(|(_, shape, _)| self.discount(shape));
            self.by_age = kept;
        }
    }
}

/// All shapes and lanes of the process.
#[derive(Debug, Default)]
pub struct Lanes {
    shapes: Mutex<Shapes>,
    hasher: ahash::RandomState,
    lanes: Mutex<Filed>,
    /// RELOADs.
    generation: AtomicU64,
    /// Counters, and the recent flushes.
    pub evidence: Evidence,
    /// Bytes waiting in all lanes and sessions.
    waiting_bytes: AtomicUsize,
    /// Sessions that hold some of them, and how many.
    held: [AtomicUsize; 2],
    /// Places for flushes.
    pub(super) berths: Berths,
    tables: Tables,
}

impl Lanes {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hot path. The plan for an INSERT of a session with settings `vars`, when it is known to be harmless. Asks about
    /// it in the background when it is new.
    pub fn find(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        vars: &Arc<VarSet>,
        source: Source<'_>,
    ) -> Option<Arc<Ready>> {
        self.find_shape(pool, vars, source)?.ready()
    }

    /// As [`Lanes::find`]; remembers it by the beginning of its text, or as this statement.
    pub fn find_and_keep(
        self: &Arc<Self>,
        recent: &mut Recent,
        pool: &Arc<Pool>,
        vars: &Arc<VarSet>,
        source: Source<'_>,
    ) -> Option<Arc<Ready>> {
        if let Source::Prepared(statement) = source
            && let Some(known) = recent.find_prepared(pool, source.class(vars), statement)
        {
            return known;
        }
        let shape = self.find_shape(pool, vars, source)?;
        recent.keep(&shape, source);
        shape.ready()
    }

    /// Asks about it if nothing is known.
    fn find_shape(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        vars: &Arc<VarSet>,
        source: Source<'_>,
    ) -> Option<Arc<Shape>> {
        let key = source.key();
        if key.1.len() > TEXT_BYTES_MAX {
            self.note_refused(pool, source.text(), NotPourable::LongText);
            return None;
        }
        let pool_id = Arc::as_ptr(pool) as usize;
        let class = source.class(vars);
        let hash = self.hasher.hash_one((pool_id, class, key));
        let shape = self.shape(hash, pool, class, key);
        shape.seen.fetch_add(1, Ordering::Relaxed);
        if matches!(**shape.known.load(), Known::Nothing) {
            shape.known.store(Arc::new(Known::Asking));
            let question = Question::of(source);
            tokio::spawn(Arc::clone(self).learn(Arc::clone(pool), Arc::clone(vars), shape.clone(), question));
        }
        Some(shape)
    }

    /// Hot path. Counts, for the console, an INSERT that its text alone rules out.
    pub fn note_refused(&self, pool: &Arc<Pool>, text: &[u8], why: NotPourable) {
        let Some(table) = table_named(text).filter(|table| table.len() <= TEXT_BYTES_MAX) else { return };
        let key = (Kind::Refused, table, why.as_str().as_bytes());
        let hash = self.hasher.hash_one((Arc::as_ptr(pool) as usize, key));
        NOTED.with(|noted| {
            let noted = &mut noted.borrow_mut()[hash as usize % NOTED_KEPT];
            let (_, shape) = match noted {
                Some(known) if known.0 == hash => known,
                _ => {
                    let shape = self.shape(hash, pool, 0, key);
                    *lock(&shape.said) = Said {
                        table: Some(String::from_utf8_lossy(table).into_owned()),
                        eligible: Some(false),
                        reason: why.to_string(),
                    };
                    noted.insert((hash, shape))
                }
            };
            shape.seen.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn shape(&self, hash: u64, pool: &Arc<Pool>, class: u64, key: (Kind, &[u8], &[u8])) -> Arc<Shape> {
        let pool_id = Arc::as_ptr(pool) as usize;
        let mut shapes = lock(&self.shapes);
        let slot =
            shapes.by_hash.get(&hash).and_then(|slot| slot.iter().find(|(_, s)| s.is(pool_id, class, key)));
        match slot {
            Some((_, known)) => Arc::clone(known),
            None => self.remember(&mut shapes, hash, pool, class, key),
        }
    }

    fn remember(
        &self,
        shapes: &mut Shapes,
        hash: u64,
        pool: &Arc<Pool>,
        class: u64,
        key: (Kind, &[u8], &[u8]),
    ) -> Arc<Shape> {
        shapes.make_room(SHAPES_MAX);
        self.sweep(shapes);
        let shape = Arc::new(Shape {
            pool: Arc::as_ptr(pool) as usize,
            class,
            kind: key.0,
            text: key.1.into(),
            types: key.2.into(),
            known: ArcSwap::from_pointee(Known::Nothing),
            said: Mutex::default(),
            seen: AtomicU64::new(0),
            bytes: AtomicUsize::new(SHAPE_BYTES + key.1.len() + key.2.len()),
        });
        shapes.insert(hash, pool, &shape);
        shape
    }

    /// Removes lanes that nothing leads to any more.
    fn sweep(&self, shapes: &mut Shapes) {
        if shapes.gone >= SHAPES_A_SWEEP || shapes.gone_bytes >= BYTES_A_SWEEP {
            (shapes.gone, shapes.gone_bytes) = (0, 0);
            lock(&self.lanes).retain(|lane| lane.is_busy() || lane.is_led_to());
        }
    }

    /// May a lane keep its buffers? Yes, while there are few lanes.
    pub(super) fn keeps_buffers(&self) -> bool {
        lock(&self.lanes).len() <= LANES_WITH_BUFFERS
    }

    /// Sets what is known of a shape.
    fn weigh(&self, shape: &Shape, known: &Known) {
        let known = match known {
            Known::Yes(ready) => ready.bytes(),
            _ => lock(&shape.said).reason.len(),
        };
        let mut shapes = lock(&self.shapes);
        shapes.weigh(shape, shape.own_bytes() + known, SHAPES_BYTES_MAX);
        self.sweep(&mut shapes);
    }

    async fn learn(
        self: Arc<Self>,
        pool: Arc<Pool>,
        vars: Arc<VarSet>,
        shape: Arc<Shape>,
        question: Question,
    ) {
        let generation = self.generation.load(Ordering::Acquire);
        let asker = Asker::new(&pool, &vars, shape.class);
        let outcome = Box::pin(question.ask(&self.tables, asker)).await;
        drop(question);
        let ready = outcome.and_then(|answer| {
            self.ready(&pool, &vars, &shape, answer).map_err(|table| {
                Refusal::from("coalesce.mode is off for this table".to_owned()).of(table).of_whole_table()
            })
        });
        let (known, kept) = match ready {
            Ok(ready) => {
                let table = Some(ready.plan.configured_name());
                *lock(&shape.said) = Said { table, eligible: Some(true), reason: String::new() };
                (Known::Yes(Arc::new(ready)), None)
            }
            Err(Refusal { table, why, kept, whole_table, .. }) => {
                *lock(&shape.said) = Said { table, eligible: Some(false), reason: why };
                (if whole_table { Known::NoTable } else { Known::No }, Some(kept))
            }
        };
        let known = Arc::new(known);
        shape.known.store(Arc::clone(&known));
        self.weigh(&shape, &known);
        if self.generation.load(Ordering::Acquire) != generation {
            // A RELOAD came between the question and its answer.
            shape.forget();
        } else if let Some(kept) = kept {
            // The table may change: asked again, if the statement still comes by. One that others push out meanwhile is gone.
            let weak = Arc::downgrade(&shape);
            drop(shape);
            tokio::time::sleep(kept).await;
            if let Some(shape) = weak.upgrade() {
                shape.known.compare_and_swap(&known, Arc::new(Known::Nothing));
            }
        }
    }

    /// The error says that it is the table which is not to be poured into.
    fn ready(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        vars: &Arc<VarSet>,
        shape: &Arc<Shape>,
        answer: Answer,
    ) -> Result<Ready, String> {
        let settings = pool.settings.load();
        let table_rule =
            settings.coalesce.tables.get(&answer.plan.configured_name()).cloned().unwrap_or_default();
        let CoalesceTable { mode, deferred } = table_rule;
        let mode = mode.unwrap_or(settings.coalesce.mode);
        if mode == CoalesceMode::Off {
            return Err(answer.plan.configured_name());
        }
        let deferred = mode == CoalesceMode::On && deferred.unwrap_or(settings.coalesce.deferred);
        let plan = Arc::new(answer.plan);
        let lane = |leg| self.lane(pool, vars, shape, leg, mode);
        let copy = |format| Leg::new(&plan, format).map(lane);
        let way = match answer.together {
            Some((statement, rows, row_description)) => {
                Way::Pipelined(Together::new(lane(Leg::pipelined(&plan, statement, rows)), row_description))
            }
            None => Way::Copy { text: copy(CopyFormat::Text), binary: copy(CopyFormat::Binary) },
        };
        Ok(Ready { param_description: answer.param_description, way, deferred, wrong: answer.wrong, plan })
    }

    /// The lane of all shapes that become the same COPY, or are the same statement, for the same settings.
    fn lane(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        vars: &Arc<VarSet>,
        shape: &Arc<Shape>,
        leg: Leg,
        mode: CoalesceMode,
    ) -> Arc<Lane> {
        let like = leg.likeness(&self.hasher);
        let mut filed = lock(&self.lanes);
        if let Some(lane) = filed.alike(like).iter().find(|l| l.serves(pool, vars, &leg, mode)) {
            lane.add_shape(shape);
            return Arc::clone(lane);
        }
        let lane = Lane::new(self, pool, vars, Vec::new(), Box::new([leg]), mode);
        lane.add_shape(shape);
        filed.put(like, &lane);
        lane
    }

    /// The lane for units that have rows for each of `parts`, in this order. `None`: they can't share a transaction.
    pub fn together(self: &Arc<Self>, parts: &[Arc<Lane>]) -> Option<Arc<Lane>> {
        if let [lane] = parts {
            return Some(Arc::clone(lane));
        }
        lock(&self.lanes).convoy(parts, || Lane::together(self, parts))
    }

    /// Takes bytes from what may wait in all lanes and sessions together. False: there are not that many left.
    pub fn within_budget(&self, bytes: usize, budget: usize) -> bool {
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > budget {
            self.return_budget(bytes);
            return false;
        }
        true
    }

    /// The same for what a session holds by itself; `first`: it held nothing.
    pub fn hold(&self, bytes: usize, budget: usize, first: bool) -> bool {
        let within = self.within_budget(bytes, budget);
        if within {
            let more = [usize::from(first), bytes];
            self.held.iter().zip(more).for_each(|(held, n)| _ = held.fetch_add(n, Ordering::Relaxed));
        }
        within
    }

    /// The session holds them no more.
    pub fn let_go(&self, bytes: usize) {
        if bytes > 0 {
            let fewer = [1, bytes];
            self.held.iter().zip(fewer).for_each(|(held, n)| _ = held.fetch_sub(n, Ordering::Relaxed));
            self.return_budget(bytes);
        }
    }

    /// Sessions that hold something, and bytes that they hold.
    pub fn held(&self) -> [usize; 2] {
        self.held.each_ref().map(|held| held.load(Ordering::Relaxed))
    }

    /// Gives them back.
    pub fn return_budget(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// All lanes, for the console.
    pub fn lanes(&self) -> Vec<Arc<Lane>> {
        lock(&self.lanes).all()
    }

    /// All shapes, for the console.
    pub fn shapes(&self) -> Vec<ShapeView> {
        let shapes = lock(&self.shapes);
        shapes.by_hash.values().flatten().map(|(pool, shape)| view(pool, shape)).collect()
    }

    /// Everything is asked again (RELOAD: modes may have changed); until then the earlier answers are shown. `serves`: the
    /// pools that are still there.
    pub fn forget_all(&self, serves: impl Fn(&Pool) -> bool) {
        // First: a question of the next generation must not be answered with what was asked before.
        self.tables.forget();
        self.generation.fetch_add(1, Ordering::AcqRel);
        let mut shapes = lock(&self.shapes);
        shapes.retain(serves);
        shapes.by_age.iter().for_each(|(_, shape, _)| shape.forget());
        lock(&self.lanes).retain(|lane| lane.is_busy());
    }

    /// Forgets what is known for these pools: nobody uses them, and then they can go themselves.
    pub fn forget(&self, unused: &[Arc<Pool>]) {
        if unused.is_empty() {
            return;
        }
        let is_one = |pool: &Pool| unused.iter().any(|one| std::ptr::eq(&**one, pool));
        lock(&self.shapes).retain(|pool| !is_one(pool));
        lock(&self.lanes).retain(|lane| lane.is_busy() || !is_one(&lane.pool));
    }
}

fn view(pool: &Pool, shape: &Shape) -> ShapeView {
    let Said { table, eligible, reason } = lock(&shape.said).clone();
    ShapeView {
        database: pool.key.database.clone(),
        table,
        eligible,
        reason,
        seen: shape.seen.load(Ordering::Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(n: usize) -> Arc<Shape> {
        Arc::new(Shape {
            pool: 0,
            class: 0,
            kind: Kind::Prepared,
            text: n.to_string().into_bytes().into(),
            types: Box::default(),
            known: ArcSwap::from_pointee(Known::Nothing),
            said: Mutex::default(),
            seen: AtomicU64::new(1),
            bytes: AtomicUsize::new(0),
        })
    }

    /// However many there may be, and however much is known of each.
    #[test]
    fn plans_without_end_push_out_each_other() {
        const MAX: usize = 1 << 20;
        let mut shapes = Shapes::default();
        let mut all = Vec::new();
        for n in 0..1000 {
            let new = shape(n);
            new.bytes.store(new.own_bytes(), Ordering::Relaxed);
            shapes.bytes += new.own_bytes();
            shapes.by_age.push_back((n as u64, Arc::clone(&new), 1));
            shapes.weigh(&new, 64 << 10, MAX);
            assert!(shapes.bytes <= MAX);
            // One comes by between all others.
            all.push(new);
            all[0].seen.fetch_add(1, Ordering::Relaxed);
        }
        let counted: usize = all.iter().map(|shape| shape.bytes.load(Ordering::Relaxed)).sum();
        assert_eq!((counted, shapes.by_age.len()), (shapes.bytes, MAX / (64 << 10)));
        assert!(shapes.by_age.iter().any(|(_, shape, _)| Arc::ptr_eq(shape, &all[0])));
        assert_eq!(shapes.gone_bytes, (1000 - shapes.by_age.len()) * (64 << 10));
        // What is known too late changes nothing.
        shapes.weigh(&all[1], MAX, MAX);
        assert_eq!(counted, shapes.bytes);
    }

    /// What comes by stays, whatever else comes by once.
    #[test]
    fn texts_without_end_push_out_each_other() {
        const MAX: usize = 100;
        let mut shapes = Shapes::default();
        let used: Vec<_> = (0..10).map(shape).collect();
        for n in 0..50 * MAX {
            shapes.make_room(MAX);
            let new = used.get(n).cloned().unwrap_or_else(|| shape(n));
            shapes.by_age.push_back((n as u64, new, 1));
            for used in &used {
                used.seen.fetch_add(1, Ordering::Relaxed);
            }
            assert!(shapes.by_age.len() <= MAX);
        }
        let kept = |used: &Arc<Shape>| shapes.by_age.iter().any(|(_, other, _)| Arc::ptr_eq(used, other));
        assert!(used.iter().all(kept));
        assert_eq!(shapes.gone, 50 * MAX - MAX);
    }
}
