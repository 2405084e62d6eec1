//! Recognises messages at the front of a client's read buffer that are nothing but INSERTs which may be poured.
//!
//! Owns: the walk over whole messages, the rows and the answers that it gathers, how far it came. Never: takes a message out of the
//! buffer, offers a row; [`super::pour`], [`super::run`] and [`super::defer`] do.

mod literals;

use std::cell::RefCell;
use std::sync::Arc;

use literals::Sent;

use super::session::{Session, unnamed_statement};
use crate::coalesce::batch::put_row_description;
use crate::coalesce::lane::{Lane, STATEMENT_ROWS_MAX, Work};
use crate::coalesce::plan::InsertPlan;
use crate::coalesce::rows::{RowInfo, encode_params, format_of, put_bound};
use crate::coalesce::shapes::{Closed, LEGS_MAX, Recent, Shape, Together};
use crate::coalesce::{Cut, Ready, Source};
use crate::limits::{HELD_BYTES_MAX, NAME_BYTES_MAX};
use crate::proto::prepared::{NO_ROWS, ShortName, Statement, told_apart};
use crate::settings::{CoalesceMode, PoolMode};
use crate::sql::block::{self, Word};
use crate::sql::insert::{Lifted, NotPourable, quick_reject};
use crate::wire::frame::{self, HEADER_BYTES, header};
use crate::wire::frontend::Bind;
use crate::wire::{DecodeError, TransactionStatus, backend as b, frontend as f};

/// Most statements that may get a name in what is poured together.
const NAMES_MADE_MAX: usize = 8;

/// Scratch of one thread: nothing is allocated for a message.
#[derive(Default)]
pub(super) struct Scratch {
    recent: Recent,
    lifted: Lifted,
    shape: Vec<u8>,
    /// Encoded rows, and where those for each of `lanes` end.
    pub(super) rows: Vec<u8>,
    pub(super) cuts: Vec<Cut>,
    pub(super) lanes: Vec<Arc<Lane>>,
    pub(super) statements: usize,
    pub(super) answers: Vec<u8>,
    /// Where in the answers those of the server belong.
    pub(super) places: Vec<Place>,
    /// The first message binds a statement that is not poured, and will not be the next time.
    pub(super) unpoured: Option<Unpoured>,
    /// Nor is a text that begins in this way.
    pub(super) closed: Option<Closed>,
}

/// Where among the answers that are known beforehand those of one statement belong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) at: usize,
    /// Where its notices belong: a Query is run to its end before its rows are described.
    pub(super) notices: usize,
    /// The client asked for one row: after it the portal is suspended.
    pub(super) one_row: bool,
}

/// A statement that is not poured.
pub(super) struct Unpoured {
    pub(super) name: ShortName,
    /// It is not poured as long as this shape is refused. `None`: it is neither an INSERT nor the border of a block.
    pub(super) refused: Option<Arc<Shape>>,
}

impl Unpoured {
    fn of(name: &[u8], statement: &Statement, recent: &Recent) -> Option<Self> {
        let refused = match statement.as_insert() {
            Ok(_) => Some(refusal_of(statement, recent)?),
            Err(NotPourable::NotInsert) => None,
            // Counted each time.
            Err(_) => return None,
        };
        Some(Self { name: ShortName::new(name), refused })
    }
}

/// The shape for which an INSERT is refused, if it was found recently.
fn refusal_of(statement: &Statement, recent: &Recent) -> Option<Arc<Shape>> {
    let insert = statement.as_insert().ok()?;
    recent.refusal_of(insert.known_as().map_or(statement, AsRef::as_ref))
}

impl Scratch {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.cuts.clear();
        self.lanes.clear();
        self.answers.clear();
        self.places.clear();
        self.statements = 0;
        self.unpoured = None;
        self.closed = None;
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            rows: self.rows.len(),
            answers: self.answers.len(),
            places: self.places.len(),
            cuts: self.cuts.len(),
            statements: self.statements,
            last: self.cuts.last().copied(),
        }
    }

    /// As it was at `mark`, with as many lanes or more.
    pub(super) fn back_to(&mut self, mark: &Mark) {
        self.rows.truncate(mark.rows);
        self.answers.truncate(mark.answers);
        self.places.truncate(mark.places);
        self.cuts.truncate(mark.cuts);
        self.statements = mark.statements;
        self.lanes.truncate(mark.cuts);
        if let (Some(cut), Some(last)) = (self.cuts.last_mut(), mark.last) {
            *cut = last;
        }
    }

    /// Rows in all.
    pub(super) fn row_count(&self) -> usize {
        self.cuts.iter().map(|cut| cut.rows).sum()
    }

    /// Notes that this many rows of a statement were appended, which go to `lane`. False: too many changes of tables.
    fn push_rows(&mut self, lane: &Arc<Lane>, rows: usize) -> bool {
        self.statements += 1;
        let end = self.rows.len();
        match (self.lanes.last(), self.cuts.last_mut()) {
            (Some(last), Some(cut)) if Arc::ptr_eq(last, lane) => {
                cut.rows += rows;
                cut.end = end;
            }
            _ if self.lanes.len() >= LEGS_MAX => return false,
            _ => {
                self.lanes.push(Arc::clone(lane));
                self.cuts.push(Cut { end, rows });
            }
        }
        true
    }
}

/// A place in a [`Scratch`].
pub(super) struct Mark {
    rows: usize,
    answers: usize,
    places: usize,
    cuts: usize,
    statements: usize,
    last: Option<Cut>,
}

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// What becomes of the client's unnamed statement.
#[derive(Debug, Clone)]
pub(super) enum Unnamed {
    Kept,
    Gone,
    Set(Arc<Statement>),
    /// The client was told its parameters, and how its rows look, as far as that is known.
    Told(Arc<Statement>, Option<u64>),
}

/// What the messages did to the client's prepared statements.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) unnamed: Unnamed,
    /// Names that mean a statement from here on.
    pub(super) made: Vec<(Box<[u8]>, Arc<Statement>)>,
}

impl Names {
    pub(super) const fn of(unnamed: Unnamed) -> Self {
        Self { unnamed, made: Vec::new() }
    }
}

/// Do rows take the time of their transaction, and because of what?
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OwnTime {
    No,
    /// A column that is left out: `now()` and its kin.
    Default,
    /// A value: `'now'`, `'today'`, perhaps.
    Value,
}

impl OwnTime {
    fn of(plan: &InsertPlan, info: RowInfo) -> Self {
        match (info.own_time, plan.one_row_per_client) {
            (true, _) => Self::Value,
            (false, true) => Self::Default,
            (false, false) => Self::No,
        }
    }
}

/// Where a walk came to rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// After a Query or Sync, outside a block.
    Whole,
    /// After a Query or Sync, inside a block.
    Open,
    /// The block was rolled back there.
    RolledBack,
    /// The buffer ends inside a stretch.
    Cut,
    /// The stretch holds something that is not poured.
    Other,
}

/// A statement that may be poured.
struct Bound {
    id: u64,
    ready: Arc<Ready>,
    /// Rows of its VALUES.
    rows: usize,
    /// It has literals and no parameters.
    of_literals: Option<Arc<Statement>>,
}

/// What a walk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    /// Whole transactions that are here.
    Pipeline,
    /// What is answered before its transaction ends.
    Deferred,
}

/// A walk over messages that are nothing but INSERTs and the borders of transactions.
pub(super) struct Walk<'a> {
    session: &'a Session,
    tier: Tier,
    pub(super) buf: &'a [u8],
    pub(super) pos: usize,
    /// Inside a block.
    pub(super) in_block: bool,
    /// A block was opened.
    pub(super) had_block: bool,
    /// Queries and Executes, Parses, Binds.
    queries: u32,
    parses: u32,
    binds: u32,
    /// The formats in which the last Bind asked for its results.
    result_formats: &'a [u8],
    /// The statement of the last Bind.
    bound: Option<Bound>,
    pub(super) names: Names,
    /// The Parse that set it, and the name that `bound` was found by: drivers send the same again and again.
    parsed: Option<&'a [u8]>,
    named: Option<&'a [u8]>,
    own_time: OwnTime,
    /// The last message that could leave an unnamed portal or take it away has left one.
    pub(super) leaves_portal: bool,
    /// Where the last Bind (or the Parse for it) stands that has whole statements of its unit before it, and no portal of theirs
    /// behind it.
    pub(super) border: usize,
}

/// A stretch of extended messages, from one rest to the next.
#[derive(Default)]
struct Stretch<'a> {
    /// The portal that was bound last.
    portal: &'a [u8],
    /// It has a name and is not closed.
    named: bool,
    /// The portal is bound and not executed.
    open: bool,
    /// To this, not to an INSERT.
    word: Option<Word>,
    executed: bool,
    /// Where the first Parse after the last Execute stands.
    parsed_at: Option<usize>,
    /// The name of a statement of literals that was parsed and not bound: only its rows tell whether the server accepts them.
    unread: Option<&'a [u8]>,
    /// A portal of it may be suspended: it is there until the Sync.
    suspended: bool,
    /// Rows of the portal.
    rows: usize,
    /// The block was ended in it: only a Sync may follow.
    ended: Option<Word>,
    /// A Flush was read: its client may wait for the answers to what came before.
    flushed: bool,
}

impl Stretch<'_> {
    /// The buffer ends.
    fn cut(&self) -> Rest {
        if self.flushed { Rest::Other } else { Rest::Cut }
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(session: &'a Session, tier: Tier) -> Self {
        Self {
            session,
            tier,
            buf: session.client.bytes(),
            pos: 0,
            in_block: false,
            had_block: false,
            queries: 0,
            parses: 0,
            binds: 0,
            result_formats: &[],
            bound: None,
            names: Names::of(Unnamed::Kept),
            parsed: None,
            named: None,
            own_time: OwnTime::No,
            leaves_portal: false,
            border: 0,
        }
    }

    /// A walk over at most `end` bytes.
    pub(super) fn up_to(self, end: usize) -> Self {
        Self { buf: &self.buf[..end.min(self.buf.len())], ..self }
    }

    /// The number of transactions that were read, and what they are in the counters.
    pub(super) fn work(&self, transactions: usize) -> Work {
        Work {
            statements: self.queries,
            transactions: transactions as u32,
            parses: self.parses,
            binds: self.binds,
            received: self.pos as u32,
            sent: 0,
        }
    }

    /// Does what was read share a transaction with nothing before or after it? Its own would have had a time of its own; and
    /// those are of one table.
    pub(super) fn is_alone(&self, scratch: &Scratch) -> bool {
        self.own_time != OwnTime::No || scratch.lanes.len() > 1 || self.had_block
    }

    /// Is pouring switched on for what was read? One row counts as one of many clients' (`group`); more are a pipeline.
    pub(super) fn may_take(&self, scratch: &Scratch, units_before: usize) -> bool {
        let one = scratch.statements == 1 && units_before == 0;
        let few = scratch.places.is_empty() || scratch.row_count() <= STATEMENT_ROWS_MAX;
        !scratch.cuts.is_empty() && few && (one || self.session.settings.coalesce.pipeline)
    }

    /// Is pouring switched on for what is being read, as far as that is known? With `shadow` nothing waits for its end.
    pub(super) fn may_wait(&self) -> bool {
        let coalesce = &self.session.settings.coalesce;
        let mode = self.bound.as_ref().map_or(coalesce.mode, |bound| bound.ready.mode());
        let may_be_one = coalesce.group && self.binds + self.queries <= 1;
        mode == CoalesceMode::On && (coalesce.pipeline || may_be_one)
    }

    fn statement(&self, name: &[u8]) -> Option<Arc<Statement>> {
        match (name.is_empty(), &self.names.unnamed) {
            (true, Unnamed::Set(parsed) | Unnamed::Told(parsed, _)) => Some(Arc::clone(parsed)),
            (true, Unnamed::Gone) => None,
            _ => self.made(name).or_else(|| self.session.state.names.lookup(name)).cloned(),
        }
    }

    /// A statement that was prepared on the way.
    fn made(&self, name: &[u8]) -> Option<&Arc<Statement>> {
        self.names.made.iter().find(|(made, _)| **made == *told_apart(name)).map(|(_, statement)| statement)
    }

    /// The plan of a statement, when it is known to be harmless.
    fn ready(&mut self, statement: &Arc<Statement>, scratch: &mut Scratch) -> Option<Arc<Ready>> {
        if let Some(bound) = &self.bound
            && bound.id == statement.id
        {
            return Some(Arc::clone(&bound.ready));
        }
        let session = self.session;
        let insert = match statement.as_insert() {
            Ok(insert) => insert,
            Err(NotPourable::NotInsert) => return None,
            Err(why) => {
                session.cx.lanes.note_refused(&session.pool, &statement.query, why);
                return None;
            }
        };
        if !insert.is_ascii && !self.is_parsed_as_now(statement) {
            return None;
        }
        let ready = if insert.of_literals {
            session.ready_for_literals(&statement.query, scratch)?
        } else {
            let source = Source::Prepared(insert.known_as().unwrap_or(statement));
            let (recent, vars) = (&mut scratch.recent, &session.state.vars.want);
            session.cx.lanes.find_and_keep(recent, &session.pool, vars, source)?
        };
        let told = self.rows_told(statement);
        if ready.together().is_some_and(|together| told.is_some_and(|told| told != together.shape)) {
            return None;
        }
        if !ready.has_params_of(statement) {
            ready.disagree(statement);
            return None;
        }
        let of_literals = insert.of_literals.then(|| Arc::clone(statement));
        let bound = Bound { id: statement.id, ready: Arc::clone(&ready), rows: insert.rows, of_literals };
        (self.bound, self.named) = (Some(bound), None);
        Some(ready)
    }

    /// How the rows look that clients with this statement were told of, if any were.
    fn rows_told(&self, statement: &Statement) -> Option<u64> {
        if statement.is_shared() {
            return statement.shape.get().copied();
        }
        match &self.names.unnamed {
            Unnamed::Kept => self.session.state.shapes.rows_of_unnamed(statement),
            Unnamed::Told(told, rows) if told.id == statement.id => *rows,
            _ => None,
        }
    }

    /// Was it parsed under the present settings? Parse decides what its characters are, and for a COPY the present encoding does.
    fn is_parsed_as_now(&self, statement: &Statement) -> bool {
        let state = &self.session.state;
        statement.class
            == if statement.is_shared() { state.class_of_texts() } else { state.vars.want.pour_class }
    }

    pub(super) fn word(statement: &Statement) -> Option<Word> {
        *statement.block.get_or_init(|| block::word_prepared(&statement.query, &statement.types))
    }

    /// May rows of this plan be taken here?
    fn takes(&mut self, ready: &Ready, own_time: OwnTime) -> bool {
        self.own_time = self.own_time.max(own_time);
        // A deferred row is stored at another time. A table that notes when its rows came may note that one; a client that writes
        // `'today'` means the day on which it does.
        self.tier == Tier::Pipeline || (ready.deferred && own_time != OwnTime::Value)
    }

    /// Hot path. Reads up to the next Query or Sync.
    pub(super) fn stretch(&mut self, scratch: &mut Scratch) -> Rest {
        // A malformed message is left to the relay, after what came before it.
        self.well_formed(scratch).unwrap_or(Rest::Other)
    }

    fn well_formed(&mut self, scratch: &mut Scratch) -> Result<Rest, DecodeError> {
        let mut stretch = Stretch::default();
        let begin = self.pos;
        loop {
            let rest = &self.buf[self.pos..];
            let Some(head) = header(rest, self.session.state.bounds.message_max)? else {
                return Ok(stretch.cut());
            };
            if head.total() > HELD_BYTES_MAX {
                return Ok(Rest::Other);
            }
            let known =
                matches!(head.tag, f::PARSE | f::BIND | f::DESCRIBE | f::EXECUTE | f::CLOSE | f::QUERY);
            let Some(body) = rest.get(HEADER_BYTES..head.total()) else {
                return Ok(if known { stretch.cut() } else { Rest::Other });
            };
            let taken = match head.tag {
                f::QUERY if self.pos == begin => {
                    let rest = self.query(body, scratch)?;
                    if rest != Rest::Other {
                        self.pos += head.total();
                    }
                    return Ok(rest);
                }
                f::SYNC
                    if stretch.executed && !stretch.open && stretch.unread.is_none() && body.is_empty() =>
                {
                    self.pos += head.total();
                    return Ok(self.rest(stretch.ended, scratch));
                }
                // If the Sync is here, a Flush asks for nothing more.
                f::FLUSH if self.tier == Tier::Pipeline => {
                    stretch.flushed = true;
                    body.is_empty()
                }
                _ if stretch.ended.is_some() => false,
                // The statement that is described in between is not the portal's.
                f::PARSE if !stretch.open && stretch.unread.is_none() => {
                    stretch.parsed_at.get_or_insert(self.pos);
                    self.parse(body, &mut stretch, scratch)?
                }
                // A portal that another replaces is never executed: it has no row.
                f::BIND if !stretch.open && !stretch.suspended => {
                    if stretch.executed && self.in_block && body.first() == Some(&0) {
                        self.border = stretch.parsed_at.unwrap_or(self.pos);
                    }
                    self.bind(body, &mut stretch, scratch)?
                }
                f::DESCRIBE => self.describe(body, &stretch, scratch)?,
                f::EXECUTE if stretch.open => self.execute(body, &mut stretch, scratch)?,
                f::CLOSE if !stretch.open => self.close(body, &mut stretch, scratch)?,
                _ => false,
            };
            // Repeated Describes have answers longer than the requests: the relay waits until its client takes them.
            if !taken || scratch.answers.len() > HELD_BYTES_MAX {
                return Ok(Rest::Other);
            }
            self.pos += head.total();
        }
    }

    /// A Query or Sync was taken; `ended`: what ended the block since the last one.
    fn rest(&self, ended: Option<Word>, scratch: &mut Scratch) -> Rest {
        let (status, rest) = match (ended, self.in_block) {
            (Some(Word::Rollback), _) => (TransactionStatus::Idle, Rest::RolledBack),
            (_, true) => (TransactionStatus::InTransaction, Rest::Open),
            (_, false) => (TransactionStatus::Idle, Rest::Whole),
        };
        b::put_ready_for_query(&mut scratch.answers, status);
        rest
    }

    /// A border of a block is crossed. False: not in the plain way.
    fn cross(&mut self, word: Word, scratch: &mut Scratch) -> bool {
        // In statement mode there are no blocks: the relay says so.
        if word.opens() == self.in_block || self.session.state.mode == PoolMode::Statement {
            return false;
        }
        self.in_block = word.opens();
        self.had_block = true;
        b::put_command_complete(&mut scratch.answers, word.tag());
        true
    }

    /// A Query inside a block, or one that opens it.
    fn query(&mut self, body: &[u8], scratch: &mut Scratch) -> Result<Rest, DecodeError> {
        let text = f::query(body)?;
        let state = &self.session.state;
        if !state.rules.passes_all_queries() || !state.passes(text) {
            return Ok(Rest::Other);
        }
        let word = block::word(text);
        let taken = match word {
            Some(word) => self.cross(word, scratch),
            None if self.in_block => self.literals(text, scratch),
            None => false,
        };
        if !taken {
            return Ok(Rest::Other);
        }
        self.queries += 1;
        self.names.unnamed = Unnamed::Gone;
        self.leaves_portal = false;
        (self.parsed, self.named) = (None, None);
        Ok(self.rest(word.filter(|word| !word.opens()), scratch))
    }

    fn literals(&mut self, text: &[u8], scratch: &mut Scratch) -> bool {
        let Some((ready, own_time)) = self.session.take_literals(text, true, scratch) else { return false };
        self.takes(&ready, own_time)
    }

    fn parse(
        &mut self,
        body: &'a [u8],
        stretch: &mut Stretch<'a>,
        scratch: &mut Scratch,
    ) -> Result<bool, DecodeError> {
        if self.parsed == Some(body) {
            self.parses += 1;
            b::put_empty(&mut scratch.answers, b::PARSE_COMPLETE);
            return Ok(true);
        }
        let parse = f::Parse::decode(body)?;
        let known = || !quick_reject(parse.query) || block::word(parse.query).is_some();
        if !known() || !self.session.state.passes(parse.query) {
            return Ok(false);
        }
        if !parse.name.is_empty() {
            return Ok(self.parse_named(&parse, stretch, scratch));
        }
        let class = self.session.state.vars.want.pour_class;
        let same = |s: &Arc<Statement>| s.is(parse.query, parse.types, class) && !s.has_moved();
        let same = self.statement(b"").filter(same);
        let statement = same.unwrap_or_else(|| unnamed_statement(parse.query, parse.types, class));
        if self.ready(&statement, scratch).is_none() && Self::word(&statement).is_none() {
            if self.pos == 0 {
                let refusal = refusal_of(&statement, &scratch.recent);
                scratch.closed = refusal.and_then(|shape| Closed::new(&statement.query, shape));
            }
            return Ok(false);
        }
        stretch.unread = self.is_of_literals(&statement).then_some(parse.name);
        self.names.unnamed = Unnamed::Set(statement);
        (self.parsed, self.named) = (Some(body), None);
        self.parses += 1;
        b::put_empty(&mut scratch.answers, b::PARSE_COMPLETE);
        Ok(true)
    }

    /// Drivers prepare an INSERT that they have sent several times, in the midst of a pipeline. In a deferred
    /// block the server answers such a Parse.
    fn parse_named(
        &mut self,
        parse: &f::Parse<'a>,
        stretch: &mut Stretch<'a>,
        scratch: &mut Scratch,
    ) -> bool {
        let made = self.names.made.len();
        if self.tier != Tier::Pipeline || made >= NAMES_MADE_MAX || self.made(parse.name).is_some() {
            return false;
        }
        let Some(statement) = self.session.state.prepared_unasked(parse, made) else { return false };
        if self.ready(&statement, scratch).is_none() {
            return false;
        }
        stretch.unread = self.is_of_literals(&statement).then_some(parse.name);
        self.names.made.push((told_apart(parse.name).into(), statement));
        self.parses += 1;
        b::put_empty(&mut scratch.answers, b::PARSE_COMPLETE);
        true
    }

    fn is_of_literals(&self, statement: &Statement) -> bool {
        self.bound.as_ref().is_some_and(|bound| bound.id == statement.id && bound.of_literals.is_some())
    }

    fn bind(
        &mut self,
        body: &'a [u8],
        stretch: &mut Stretch<'a>,
        scratch: &mut Scratch,
    ) -> Result<bool, DecodeError> {
        let bind = f::Bind::decode(body)?;
        let another = stretch.unread.take().is_some_and(|name| name != bind.statement);
        if another || stretch.named || !self.may_be_portal(bind.portal) {
            return Ok(false);
        }
        (stretch.portal, stretch.word) = (bind.portal, None);
        if self.named != Some(bind.statement) {
            let Some(statement) = self.statement(bind.statement) else { return Ok(false) };
            stretch.word = Self::word(&statement);
            if stretch.word.is_none() && self.ready(&statement, scratch).is_none() {
                if self.pos == 0 {
                    scratch.unpoured = Unpoured::of(bind.statement, &statement, &scratch.recent);
                }
                return Ok(false);
            }
            self.named = Some(bind.statement).filter(|_| stretch.word.is_none());
        }
        stretch.open = match stretch.word {
            Some(_) => bind.portal.is_empty() && bind.params_len == 0 && bind.formats.len() <= 2,
            None => {
                let literals = self.bound.as_ref().and_then(|bound| bound.of_literals.clone());
                let rows = match literals {
                    Some(statement) => self.bind_literals(&statement.query, &bind, scratch),
                    None => self.bind_insert(body, &bind, scratch),
                };
                stretch.rows = rows.unwrap_or_default();
                rows.is_some()
            }
        };
        if stretch.open {
            stretch.named = !bind.portal.is_empty();
            self.leaves_portal |= bind.portal.is_empty();
            self.binds += 1;
            b::put_empty(&mut scratch.answers, b::BIND_COMPLETE);
        }
        Ok(stretch.open)
    }

    /// A named portal lives until it is closed or the transaction ends, and nothing else may have that name: inside a block
    /// a cursor could be. The server cuts and converts names, but not such.
    fn may_be_portal(&self, name: &[u8]) -> bool {
        name.is_empty() || (!self.in_block && name.len() <= NAME_BYTES_MAX && name.is_ascii())
    }

    /// Execute of the portal.
    fn close(
        &mut self,
        body: &[u8],
        stretch: &mut Stretch<'a>,
        scratch: &mut Scratch,
    ) -> Result<bool, DecodeError> {
        let of_portal = f::target(f::CLOSE, body)? == (b'P', stretch.portal);
        if !of_portal || !stretch.executed || self.tier != Tier::Pipeline {
            return Ok(false);
        }
        stretch.named = false;
        self.leaves_portal &= !stretch.portal.is_empty();
        b::put_empty(&mut scratch.answers, b::CLOSE_COMPLETE);
        Ok(true)
    }

    /// In a block the client may wait for the answer, and what it meets there concerns nobody else.
    fn may_share(&self) -> bool {
        !self.had_block && !self.in_block && self.tier == Tier::Pipeline
    }

    /// For a statement of literals. Returns the rows that were taken.
    fn bind_literals(&mut self, text: &[u8], bind: &Bind<'a>, scratch: &mut Scratch) -> Option<usize> {
        if bind.params_len > 0 || bind.formats.len() > 2 {
            return None;
        }
        self.result_formats = bind.result_formats;
        let formats = self.may_share().then_some(bind.result_formats);
        let taken = self.session.literal_rows(text, Sent::Parsed(formats), scratch)?;
        // The statement that was described must be the one that answers: it may have been planned anew in between.
        let bound = &self.bound.as_ref()?.ready;
        if taken.ready.together().is_some() && !Arc::ptr_eq(bound, &taken.ready) {
            return None;
        }
        self.takes(&taken.ready, taken.own_time).then_some(taken.rows)
    }

    /// For the statement bound last. Returns the rows that were taken.
    fn bind_insert(&mut self, body: &[u8], bind: &Bind<'a>, scratch: &mut Scratch) -> Option<usize> {
        let ready = Arc::clone(&self.bound.as_ref()?.ready);
        let rows = self.bound.as_ref().map_or(1, |bound| bound.rows);
        if let Some(together) = ready.together() {
            if !self.may_share() {
                return None;
            }
            self.result_formats = bind.result_formats;
            let name = &together.statement.server_name;
            let info = put_bound(&ready.plan, name, (body, bind), rows, &mut scratch.rows).ok()?;
            f::put_execute(&mut scratch.rows, b"", 0);
            let own_time = OwnTime::of(&ready.plan, info);
            return (scratch.push_rows(&together.lane, rows) && self.takes(&ready, own_time)).then_some(rows);
        }
        let format = format_of(&ready.plan, bind, rows)?;
        let lane = ready.lane(format)?;
        let info = encode_params(&ready.plan, bind, rows, format, &mut scratch.rows).ok()?;
        let own_time = OwnTime::of(&ready.plan, info);
        (scratch.push_rows(lane, rows) && self.takes(&ready, own_time)).then_some(rows)
    }

    fn execute(
        &mut self,
        body: &[u8],
        stretch: &mut Stretch<'a>,
        scratch: &mut Scratch,
    ) -> Result<bool, DecodeError> {
        let (portal, limit) = f::execute(body)?;
        if portal != stretch.portal {
            return Ok(false);
        }
        self.queries += 1;
        (stretch.open, stretch.parsed_at) = (false, None);
        let executed = std::mem::replace(&mut stretch.executed, true);
        let Some(word) = stretch.word else {
            if let Some(together) = self.bound.as_ref().and_then(|bound| bound.ready.together()) {
                // A limit stops only rows that are answered. It gives at most that many; if there are several the
                // portal could go on.
                let stops = together.row_description.is_some()
                    && usize::try_from(limit).is_ok_and(|limit| (1..=stretch.rows).contains(&limit));
                if stops && stretch.rows > 1 {
                    return Ok(false);
                }
                let at = scratch.answers.len();
                scratch.places.push(Place { at, notices: at, one_row: stops });
                stretch.suspended = stops;
                return Ok(true);
            }
            put_inserted(&mut scratch.answers, stretch.rows);
            return Ok(true);
        };
        if !word.opens() {
            stretch.ended = Some(word);
        }
        // What stands before BEGIN without a Sync between is in its transaction, too, with a warning.
        Ok(self.cross(word, scratch) && !(word.opens() && executed))
    }

    /// Of the portal just bound, or of a statement.
    fn describe(
        &mut self,
        body: &[u8],
        stretch: &Stretch<'a>,
        scratch: &mut Scratch,
    ) -> Result<bool, DecodeError> {
        let (kind, name) = f::target(f::DESCRIBE, body)?;
        if kind != b'S' {
            let insert = self.bound.as_ref().filter(|_| stretch.word.is_none());
            let together = insert.and_then(|bound| bound.ready.together());
            let known = stretch.open && name == stretch.portal;
            return Ok(known && put_rows_described(&mut scratch.answers, together, self.result_formats));
        }
        if stretch.open {
            return Ok(false);
        }
        let Some(statement) = self.statement(name) else { return Ok(false) };
        if Self::word(&statement).is_some() {
            b::put_no_parameters(&mut scratch.answers);
            b::put_empty(&mut scratch.answers, b::NO_DATA);
            return Ok(true);
        }
        let Some(ready) = self.ready(&statement, scratch) else { return Ok(false) };
        // A client that is told about a name for the first time is told by the server.
        let told = name.is_empty() || self.session.state.shapes.was_told(statement.id);
        if !told || !ready.tell_params(&statement) {
            return Ok(false);
        }
        match &ready.param_description {
            Some(description) => {
                // That of one row, when the statement is known by it.
                let times = statement.as_insert().map_or(1, |insert| insert.times());
                put_parameters(&mut scratch.answers, description, times);
            }
            None if statement.as_insert().is_ok_and(|insert| insert.of_literals) => {
                b::put_no_parameters(&mut scratch.answers);
            }
            None => return Ok(false),
        }
        let together = ready.together();
        if name.is_empty() {
            let shape = together.map_or(NO_ROWS, |together| together.shape);
            self.names.unnamed = Unnamed::Told(Arc::clone(&statement), Some(shape));
        } else if together.is_some_and(|together| !together.tell(&statement)) {
            return Ok(false);
        }
        Ok(put_rows_described(&mut scratch.answers, together, &[]))
    }
}

/// A RowDescription with these formats, or NoData. False: the server would refuse the formats.
fn put_rows_described(out: &mut Vec<u8>, together: Option<&Together>, formats: &[u8]) -> bool {
    let Some(described) = together.and_then(|together| together.row_description.as_deref()) else {
        b::put_empty(out, b::NO_DATA);
        return true;
    };
    let mut put = None;
    frame::put(out, b::ROW_DESCRIPTION, |out| put = put_row_description(out, described, formats));
    put.is_some()
}

/// CommandComplete of an INSERT of one row.
const ONE_INSERTED: &[u8] = b"C\0\0\0\x0fINSERT 0 1\0";

/// The tag of an INSERT of so many rows.
fn put_inserted(out: &mut Vec<u8>, rows: usize) {
    match rows {
        1 => out.extend_from_slice(ONE_INSERTED),
        rows => b::put_command_complete(out, format!("INSERT 0 {rows}").as_bytes()),
    }
}

/// A ParameterDescription: the types of `body`, repeated this many times.
fn put_parameters(out: &mut Vec<u8>, body: &[u8], times: usize) {
    let types = body.get(2..).unwrap_or_default();
    frame::put(out, b::PARAMETER_DESCRIPTION, |out| {
        out.extend_from_slice(&((types.len() / 4 * times) as u16).to_be_bytes());
        out.extend_from_slice(&types.repeat(times));
    });
}

/// The end of the messages from `pos` on that a unit may have any number of. `None`: another message follows, or none at all.
pub(super) fn within_unit(buf: &[u8], mut pos: usize) -> Option<usize> {
    loop {
        let Some(head) = header(buf.get(pos..)?, HELD_BYTES_MAX).ok()? else { return Some(pos) };
        if !matches!(head.tag, f::PARSE | f::BIND | f::DESCRIBE | f::EXECUTE | f::CLOSE) {
            return None;
        }
        match pos + head.total() {
            end if end > buf.len() => return Some(pos),
            end => pos = end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_one_row_is_that_of_any_number() {
        let (mut one, mut any) = (Vec::new(), Vec::new());
        put_inserted(&mut one, 1);
        b::put_command_complete(&mut any, b"INSERT 0 1");
        assert_eq!(one, any);
    }
}
