//! A session's INSERTs on their way into a batch.
//!
//! Owns: recognising, at the beginning of a transaction, messages that are nothing but INSERTs which may be poured;
//! encoding their rows; the answers they get when the rows are committed. Never: changes what the server would be
//! asked otherwise: until the outcome is known the client's own messages stay in its read buffer, and if the rows are
//! handed back, those messages go the ordinary way.
//!
//! What a COPY cannot do (RETURNING, ON CONFLICT DO NOTHING) is offered as messages instead of rows: Bind and Execute of the
//! client's own statement. What the server answers to them has its place among the answers that are known beforehand.
//!
//! ```text
//! taken:   Query(INSERT ... literals)            one row, a transaction of its own
//!          ([Parse] Bind [Describe] Execute)+ Sync   one transaction, of one table or several; several such units of one
//!                                                table if nobody can tell them apart
//!          BEGIN, such messages, COMMIT          one transaction, when all of it is here
//! ```

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use super::session::{Session, unnamed_statement};
use super::state::{Fault, Late};
use crate::cancel::ClientState;
use crate::coalesce::batch::{put_row_description, statement_end};
use crate::coalesce::lane::{Lane, Offer, Outcome, RowNotice, STATEMENTS_MAX, Single, Ticket, Work};
use crate::coalesce::plan::InsertPlan;
use crate::coalesce::rows::{
    RowInfo, encode_literals, encode_params, format_of, put_bound, put_literals_bound,
};
use crate::coalesce::shapes::{LEGS_MAX, Lately, Recent, Together};
use crate::coalesce::{Cut, Ready, Source};
use crate::error::Error;
use crate::limits::HELD_BYTES_MAX;
use crate::proto::prepared::Statement;
use crate::settings::CoalesceMode;
use crate::sql::block::{self, Word};
use crate::sql::insert::{Lifted, NotPourable, lift, quick_reject};
use crate::wire::copy::CopyFormat;
use crate::wire::frame::{self, HEADER_BYTES, header};
use crate::wire::{DecodeError, TransactionStatus, backend as b, frontend as f};

/// The tag of an INSERT of so many rows.
fn put_inserted(out: &mut Vec<u8>, rows: usize) {
    match rows {
        1 => b::put_command_complete(out, b"INSERT 0 1"),
        rows => b::put_command_complete(out, format!("INSERT 0 {rows}").as_bytes()),
    }
}

/// Answers that wait for the outcome; the few of one statement stand in place.
pub(super) enum Answers {
    Few([u8; FEW_BYTES], usize),
    Many(Vec<u8>),
}

/// Those of a Parse, Bind, Describe, Execute and Sync of one row.
const FEW_BYTES: usize = 48;

impl Answers {
    /// Takes what is in the scratch buffer out of it.
    fn take(scratch: &mut Vec<u8>) -> Self {
        let mut few = [0; FEW_BYTES];
        match few.get_mut(..scratch.len()) {
            Some(place) => {
                place.copy_from_slice(scratch);
                Self::Few(few, scratch.len())
            }
            None => Self::Many(std::mem::take(scratch)),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Few(bytes, len) => &bytes[..*len],
            Self::Many(bytes) => bytes,
        }
    }
}

/// What one session needs to pour; made with its first INSERT.
#[derive(Debug)]
pub(super) struct Pouring {
    pub(super) ticket: Arc<Ticket>,
    /// Bytes of the client's that must go the ordinary way before anything is poured again.
    singly: usize,
    /// No run inside a block is looked for before this byte of the client's ...
    pub(super) run_from: usize,
    /// ... nor in so many transactions, this one counted.
    no_runs: u32,
    /// Runs that failed one after the other.
    runs_failed: u32,
    /// A run of this transaction took the sentinel's mark.
    pub(super) took_mark: bool,
}

impl Pouring {
    /// A transaction begins on a server.
    pub(super) fn begins(&mut self) {
        self.no_runs = self.no_runs.saturating_sub(1);
        self.took_mark = false;
    }

    /// After one that failed none is tried in this transaction, and after several in a row not in the next ones.
    pub(super) fn run_ended(&mut self, well: bool) {
        self.runs_failed = if well { 0 } else { self.runs_failed.saturating_add(1) };
        self.no_runs = if well { 0 } else { 1 << self.runs_failed.saturating_sub(1).min(10) };
    }

    /// May a run that begins at this byte of the client's be looked for?
    pub(super) fn may_run(&self, consumed: usize) -> bool {
        self.no_runs == 0 && consumed.wrapping_sub(self.run_from) <= usize::MAX / 2
    }
}

impl Pouring {
    fn new(client: u64) -> Self {
        Self {
            ticket: Arc::new(Ticket::new(client)),
            singly: 0,
            run_from: 0,
            no_runs: 0,
            runs_failed: 0,
            took_mark: false,
        }
    }
}

/// How a look at the read buffer ended.
pub(super) enum Poured {
    /// The rows are answered.
    Answered,
    /// A unit has begun that may be poured, but its end is not here yet.
    NeedMore,
    /// The ordinary way. Keep what is given until the answer is there.
    No(Option<Single>),
}

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
    places: Vec<usize>,
}

impl Scratch {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.cuts.clear();
        self.lanes.clear();
        self.answers.clear();
        self.places.clear();
        self.statements = 0;
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

    /// So many rows of a statement were appended, which go to `lane`. False: too many changes of tables.
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

/// What was recognised at the front of the buffer.
pub(super) struct Found {
    pub(super) lane: Arc<Lane>,
    pub(super) statements: usize,
    /// Bytes of the client's messages.
    pub(super) bytes: usize,
    /// Transactions of the client's.
    pub(super) units: usize,
    /// What they are in the counters, but for their answers.
    pub(super) work: Work,
    /// The unnamed statement after them.
    pub(super) unnamed: Unnamed,
    /// Where in the answers those of the server belong; none: it is a COPY.
    pub(super) places: Vec<usize>,
}

/// What becomes of the client's unnamed statement.
#[derive(Clone)]
pub(super) enum Unnamed {
    Kept,
    Gone,
    Set(Arc<Statement>),
}

/// Do rows take the time of their transaction, and who says so?
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OwnTime {
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

/// How far recognising got.
enum Look {
    Found(Found),
    NeedMore,
    No,
}

impl Session {
    /// Hot path. Looks at the front of the read buffer; called between transactions, when no server is linked.
    pub(super) async fn pour(&mut self) -> Result<Poured, Fault> {
        if !self.may_pour() {
            return Ok(Poured::No(None));
        }
        let offered = SCRATCH.with(|scratch| {
            let scratch = &mut *scratch.borrow_mut();
            let found = match self.look(scratch)? {
                Look::Found(found) => found,
                Look::NeedMore => return Ok(Err(Poured::NeedMore)),
                Look::No => return Ok(Err(Poured::No(None))),
            };
            let ticket = self.ticket();
            ticket.set_work(Work { sent: scratch.answers.len() as u32, ..found.work });
            // What is not a COPY gains by sharing a COMMIT alone.
            let alone = if scratch.places.is_empty() { found.statements } else { found.units };
            let offer = found.lane.offer(&scratch.rows, &scratch.cuts, alone, &ticket);
            scratch.lanes.clear();
            let answers = match offer {
                Offer::Queued => Answers::take(&mut scratch.answers),
                Offer::Single(single) => return Ok(Err(self.singly(found.bytes, Some(single)))),
                Offer::PassOn => return Ok(Err(self.singly(found.bytes, None))),
            };
            let places = std::mem::take(&mut scratch.places);
            Ok::<_, Fault>(Ok((Found { places, ..found }, answers, ticket)))
        })?;
        match offered {
            Err(not) => Ok(not),
            Ok((found, answers, ticket)) => self.outcome(found, answers, &ticket).await,
        }
    }

    pub(super) fn may_pour(&self) -> bool {
        let coalesce = &self.settings.coalesce;
        let unseen = self.state.unjudged.any && self.state.rules.reads_texts();
        if coalesce.mode == CoalesceMode::Off || !self.state.std_strings() || !self.state.can_pour() || unseen
        {
            return false;
        }
        if self.state.late.is_some() {
            return false;
        }
        let first = self.client.bytes().first().copied();
        if !matches!(first, Some(f::QUERY | f::PARSE | f::BIND)) {
            return false;
        }
        self.pouring.as_ref().is_none_or(|p| p.singly == 0)
    }

    fn singly(&mut self, bytes: usize, single: Option<Single>) -> Poured {
        if let Some(pouring) = &mut self.pouring {
            pouring.singly = bytes;
        }
        Poured::No(single)
    }

    /// `n` bytes of the client's were taken by the ordinary way.
    pub(super) fn went_singly(&mut self, n: usize) {
        if let Some(pouring) = &mut self.pouring {
            pouring.singly = pouring.singly.saturating_sub(n);
        }
    }

    // ----- recognising

    fn look(&self, scratch: &mut Scratch) -> Result<Look, Fault> {
        scratch.clear();
        let buf = self.client.bytes();
        let Some(head) = header(buf, self.state.message_max)? else { return Ok(Look::NeedMore) };
        if head.tag == f::QUERY {
            let Some(body) = buf.get(HEADER_BYTES..head.total()) else { return Ok(Look::No) };
            let text = f::query(body)?;
            if !block::word(text).is_some_and(Word::opens) {
                return Ok(self.look_at_query(head.total(), text, scratch));
            }
        }
        self.look_at_units(scratch)
    }

    fn look_at_query(&self, bytes: usize, text: &[u8], scratch: &mut Scratch) -> Look {
        if !self.settings.coalesce.group {
            return Look::No;
        }
        if self.take_literals(text, false, scratch).is_none() {
            return Look::No;
        }
        let Some(lane) = scratch.lanes.pop() else { return Look::No };
        b::put_ready_for_query(&mut scratch.answers, TransactionStatus::Idle);
        Look::Found(Found {
            lane,
            statements: 1,
            bytes,
            units: 1,
            work: Work { statements: 1, transactions: 1, received: bytes as u32, ..Work::default() },
            unnamed: Unnamed::Gone,
            places: Vec::new(),
        })
    }

    /// Appends the rows of an INSERT of literals, and its answers up to CommandComplete.
    fn take_literals(
        &self,
        text: &[u8],
        in_block: bool,
        scratch: &mut Scratch,
    ) -> Option<(Arc<Ready>, OwnTime)> {
        if !self.state.rules.passes_all_queries() || quick_reject(text) || !self.state.passes(text) {
            return None;
        }
        // What `lift` and `find` would come to, if it came by lately.
        let lately = scratch.recent.find(&self.pool, &self.state.want, text);
        if let Some(Lately::Refused) = lately {
            return None;
        }
        if let Some(Lately::Ready(ready, items)) = lately {
            let info = encode_literals(&ready.plan, text, items, &mut scratch.rows).ok()?;
            put_inserted(&mut scratch.answers, 1);
            let pushed = scratch.push_rows(ready.lane(CopyFormat::Text)?, 1);
            let own_time = OwnTime::of(&ready.plan, info);
            return pushed.then_some((ready, own_time));
        }
        let lifted = lift(text, &mut scratch.lifted).map(|()| scratch.lifted.tail.plain());
        match lifted {
            Ok(Ok(())) => {
                let taken = self.encode_rows(text, scratch)?;
                put_inserted(&mut scratch.answers, scratch.lifted.rows);
                Some(taken)
            }
            Ok(Err(_)) if !in_block && scratch.lifted.rows == 1 => self.bind_row(text, scratch),
            Ok(Err(why)) | Err(why) => {
                self.cx.lanes.note_refused(&self.pool, text, why);
                None
            }
        }
    }

    /// The one row of a text of literals that is not a COPY's.
    fn bind_row(&self, text: &[u8], scratch: &mut Scratch) -> Option<(Arc<Ready>, OwnTime)> {
        let Scratch { lifted, rows, answers, places, .. } = scratch;
        let source = Source::Literals { shape: &lifted.shape, lifted, text, row: 0 };
        let ready = self.cx.lanes.find(&self.pool, &self.state.want, source)?;
        let together = ready.together()?;
        let name = &together.statement.server_name;
        let info = put_literals_bound(&ready.plan, name, text, lifted.row(0), rows).ok()?;
        if let Some(described) = &together.row_description {
            frame::put(answers, b::ROW_DESCRIPTION, |out| out.extend_from_slice(described));
        }
        places.push(answers.len());
        let pushed = scratch.push_rows(&together.lane, 1);
        let own_time = OwnTime::of(&ready.plan, info);
        pushed.then_some((ready, own_time))
    }

    /// All rows of a text of literals, when one lane takes them.
    fn encode_rows(&self, text: &[u8], scratch: &mut Scratch) -> Option<(Arc<Ready>, OwnTime)> {
        let Scratch { recent, lifted, shape, rows, .. } = scratch;
        let (mut ready, mut own_time) = (None::<Arc<Ready>>, OwnTime::No);
        for row in 0..lifted.rows {
            if !lifted.is_like_before(row) {
                let shape: &[u8] = if row == 0 {
                    &lifted.shape
                } else {
                    shape.clear();
                    lifted.put_shape(row, shape);
                    shape
                };
                let (pool, vars) = (&self.pool, &self.state.want);
                let source = Source::Literals { shape, lifted, text, row };
                let found = self.cx.lanes.find_and_keep(recent, pool, vars, source)?;
                let before = ready.replace(found);
                let lane = |ready: &Arc<Ready>| ready.lane(CopyFormat::Text).map(Arc::as_ptr);
                if before.is_some_and(|before| lane(&before) != ready.as_ref().and_then(lane)) {
                    return None;
                }
            }
            let plan = &ready.as_ref()?.plan;
            let info = encode_literals(plan, text, lifted.row(row), rows).ok()?;
            own_time = own_time.max(OwnTime::of(plan, info));
        }
        let (ready, rows) = (ready?, lifted.rows);
        let pushed = scratch.push_rows(ready.lane(CopyFormat::Text)?, rows);
        pushed.then_some((ready, own_time))
    }

    /// As many units as are here whole and may share a transaction: one of any kind, or several of one table.
    fn look_at_units(&self, scratch: &mut Scratch) -> Result<Look, Fault> {
        let mut walk = Walk::new(self, Tier::Pipeline);
        let mut found: Option<Found> = None;
        loop {
            let before = scratch.mark();
            match walk.stretch(scratch)? {
                Rest::Open if found.is_none() && walk.pos < walk.buf.len() => continue,
                // The client may wait for the answers to what came before.
                Rest::Cut if found.is_none() && !walk.had_block => return Ok(Look::NeedMore),
                Rest::Whole => {}
                _ => {
                    scratch.back_to(&before);
                    break;
                }
            }
            let units_before = found.as_ref().map_or(0, |f| f.units);
            let alone = walk.own_time != OwnTime::No || scratch.lanes.len() > 1 || walk.had_block;
            // Its own transaction would have had a time of its own; and those before it are of one table.
            if (units_before > 0 && alone) || !walk.may_take(scratch, units_before) {
                scratch.back_to(&before);
                break;
            }
            let Some(lane) = self.cx.lanes.together(&scratch.lanes) else { break };
            found = Some(Found {
                lane,
                statements: scratch.statements,
                bytes: walk.pos,
                units: units_before + 1,
                work: walk.work(units_before + 1),
                unnamed: walk.unnamed.clone(),
                places: Vec::new(),
            });
            if alone || walk.pos == walk.buf.len() {
                break;
            }
        }
        let group = self.settings.coalesce.group;
        let found = found.filter(|found| group || found.statements > 1);
        Ok(found.map_or(Look::No, Look::Found))
    }

    // ----- waiting

    pub(super) async fn outcome(
        &mut self,
        found: Found,
        answers: Answers,
        ticket: &Arc<Ticket>,
    ) -> Result<Poured, Fault> {
        let now = Instant::now();
        self.me.begin(ClientState::Coalescing, now);
        let me = &self.me;
        // A request to cancel rows that are already on their way is void when they are stored, which is known within
        // `flush_timeout`: to pass it on would undo the rows of others.
        let outcome = std::future::poll_fn(|cx| match ticket.poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(Ok(Some(outcome))),
            Poll::Pending if me.is_cancelled() && found.lane.withdraw(ticket) => Poll::Ready(Ok(None)),
            Poll::Pending if me.must_end() => Poll::Ready(Err(())),
            Poll::Pending => Poll::Pending,
        })
        .await;
        let Ok(outcome) = outcome else {
            // Rows on their way are stored or not, as those of a session that ends in the middle of a COMMIT.
            found.lane.withdraw(ticket);
            self.obey(false)?;
            return Err(Fault::Client(Error::killed()));
        };
        self.me.rest();
        // A request that came too late is void; one for rows that are not stored after all is not.
        let cancelled = self.me.take_cancel();
        let outcome = outcome.filter(|o| !(cancelled && *o == Outcome::RunSingly));
        match outcome {
            Some(Outcome::Inserted) => {
                match ticket.take_notices() {
                    None => self.answered(found, answers.bytes(), ticket),
                    Some(notices) if found.places.is_empty() => {
                        self.answered(found, &with_notices(answers.bytes(), &notices), ticket);
                    }
                    // Those of the rows are in the server's own answers; a warning of the COMMIT has no place in them.
                    Some(notices) => {
                        self.client.prepare_out();
                        notices.iter().for_each(|notice| self.client.out.extend_from_slice(&notice.message));
                        self.answered(found, answers.bytes(), ticket);
                    }
                }
                if let Answers::Many(buffer) = answers {
                    SCRATCH.with(|scratch| scratch.borrow_mut().answers = buffer);
                }
                Ok(Poured::Answered)
            }
            Some(Outcome::RunSingly) => {
                self.offered_at = Some(now);
                Ok(self.singly(found.bytes, None))
            }
            Some(Outcome::Unknown) => Err(Fault::Client(Error::outcome_unknown())),
            None if self.cancels_inside_block() => Ok(self.singly(found.bytes, None)),
            None => {
                let end = self.first_unit_end(found.bytes);
                self.client.prepare_out();
                Error::cancelled().put(&mut self.client.out);
                b::put_ready_for_query(&mut self.client.out, TransactionStatus::Idle);
                self.client.consume(end);
                Ok(Poured::Answered)
            }
        }
    }

    fn answered(&mut self, found: Found, answers: &[u8], ticket: &Ticket) {
        self.client.prepare_out();
        put_answers(&mut self.client.out, answers, &found.places, ticket);
        self.client.consume(found.bytes);
        // Counted with the flush.
        let received = &mut self.state.counts.received;
        *received = received.saturating_sub(found.bytes as u64);
        self.unnamed_is(found.unnamed);
    }

    /// Its own, kept from one batch to the next.
    pub(super) fn ticket(&mut self) -> Arc<Ticket> {
        Arc::clone(&self.pouring().ticket)
    }

    pub(super) fn pouring(&mut self) -> &mut Pouring {
        let client = self.me.id;
        self.pouring.get_or_insert_with(|| Box::new(Pouring::new(client)))
    }

    pub(super) fn unnamed_is(&mut self, unnamed: Unnamed) {
        let statement = match unnamed {
            Unnamed::Kept => return,
            Unnamed::Gone => None,
            Unnamed::Set(statement) => Some(statement),
        };
        self.state.unnamed_at = (0, 0);
        self.state.names.set_unnamed(statement);
    }

    /// A block stands at the front with what belongs into it. Were its BEGIN answered as cancelled, the rest would run without
    /// it, each statement in a transaction of its own: what comes behind the BEGIN is, as where the request finds it at work.
    pub(super) fn cancels_inside_block(&mut self) -> bool {
        if self.state.late.is_some() {
            return true;
        }
        let opening = if self.begins_block() { self.opening_messages() } else { None };
        let Some(opening) = opening else { return false };
        let mut message = Vec::new();
        Error::cancelled().put(&mut message);
        self.state.late = Some(Late { error: message, behind: opening });
        true
    }

    /// So many messages open the block: a Query, or all up to the Execute. `None`: nothing is here that is behind them.
    fn opening_messages(&self) -> Option<usize> {
        let (mut buf, mut count) = (self.client.bytes(), 0);
        let mut opened = false;
        while let Ok(Some((head, _))) = frame::whole(buf, self.state.message_max) {
            match head.tag {
                f::SYNC | f::FLUSH => {}
                _ if opened => return Some(count),
                tag => {
                    count += 1;
                    opened = matches!(tag, f::QUERY | f::EXECUTE);
                }
            }
            buf = &buf[head.total()..];
        }
        None
    }

    /// Where the first transaction of `bytes` ends: behind its Query or Sync.
    fn first_unit_end(&self, bytes: usize) -> usize {
        let buf = &self.client.bytes()[..bytes];
        let mut pos = 0;
        while let Ok(Some(head)) = header(&buf[pos..], self.state.message_max) {
            pos += head.total();
            if matches!(head.tag, f::QUERY | f::SYNC) {
                break;
            }
        }
        pos.min(bytes)
    }
}

/// Where a walk came to rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Behind a Query or Sync, outside a block.
    Whole,
    /// Behind a Query or Sync, inside a block.
    Open,
    /// The block was rolled back there.
    RolledBack,
    /// The buffer ends inside it.
    Cut,
    /// It holds something that is not poured.
    Other,
}

/// A statement that may be poured.
struct Bound {
    id: u64,
    ready: Arc<Ready>,
    /// Rows of its VALUES.
    rows: usize,
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
    /// What the messages did to the unnamed statement.
    pub(super) unnamed: Unnamed,
    /// The Parse that set it, and the name that `bound` was found by: drivers send the same again and again.
    parsed: Option<&'a [u8]>,
    named: Option<&'a [u8]>,
    own_time: OwnTime,
}

/// A stretch of extended messages, from one rest to the next.
#[derive(Default)]
struct Stretch {
    /// The portal is bound and not executed.
    open: bool,
    /// To this, not to an INSERT.
    word: Option<Word>,
    executed: bool,
    /// Rows of the portal.
    rows: usize,
    /// The block was ended in it: only a Sync may follow.
    ended: Option<Word>,
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
            unnamed: Unnamed::Kept,
            parsed: None,
            named: None,
            own_time: OwnTime::No,
        }
    }

    /// What was read is so many transactions, and in the counters this.
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

    /// Is the pouring of what was read on? One row is one of many clients'; more are a pipeline.
    fn may_take(&self, scratch: &Scratch, units_before: usize) -> bool {
        let one = scratch.statements == 1 && units_before == 0;
        let few = scratch.places.is_empty() || scratch.statements <= STATEMENTS_MAX;
        !scratch.cuts.is_empty() && few && (one || self.session.settings.coalesce.pipeline)
    }

    fn statement(&self, name: &[u8]) -> Option<Arc<Statement>> {
        match (name.is_empty(), &self.unnamed) {
            (true, Unnamed::Set(parsed)) => Some(Arc::clone(parsed)),
            (true, Unnamed::Gone) => None,
            _ => self.session.state.names.lookup(name).cloned(),
        }
    }

    /// The plan of a statement, when it is known to be harmless.
    fn ready(&mut self, statement: &Arc<Statement>) -> Option<Arc<Ready>> {
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
        let source = Source::Prepared(insert.one_row().unwrap_or(statement));
        let ready = session.cx.lanes.find(&session.pool, &session.state.want, source)?;
        if ready.together().is_some_and(|together| !together.is_as_told(statement)) {
            return None;
        }
        (self.bound, self.named) =
            (Some(Bound { id: statement.id, ready: Arc::clone(&ready), rows: insert.rows }), None);
        Some(ready)
    }

    pub(super) fn word(statement: &Statement) -> Option<Word> {
        *statement.block.get_or_init(|| block::word(&statement.query))
    }

    /// May rows of this plan be taken here?
    fn takes(&mut self, ready: &Ready, own_time: OwnTime) -> bool {
        self.own_time = self.own_time.max(own_time);
        // What is deferred is stored at another time. A table that notes when its rows came may note that one; whoever writes
        // `'today'` means the day on which he does.
        self.tier == Tier::Pipeline || (ready.deferred && own_time != OwnTime::Value)
    }

    /// Hot path. Reads up to the next Query or Sync.
    pub(super) fn stretch(&mut self, scratch: &mut Scratch) -> Result<Rest, DecodeError> {
        let mut stretch = Stretch::default();
        let begin = self.pos;
        loop {
            let rest = &self.buf[self.pos..];
            let Some(head) = header(rest, self.session.state.message_max)? else { return Ok(Rest::Cut) };
            if head.total() > HELD_BYTES_MAX {
                return Ok(Rest::Other);
            }
            let known = matches!(head.tag, f::PARSE | f::BIND | f::DESCRIBE | f::EXECUTE | f::QUERY);
            let Some(body) = rest.get(HEADER_BYTES..head.total()) else {
                return Ok(if known { Rest::Cut } else { Rest::Other });
            };
            let taken = match head.tag {
                f::QUERY if self.pos == begin => {
                    let rest = self.query(body, scratch)?;
                    if rest != Rest::Other {
                        self.pos += head.total();
                    }
                    return Ok(rest);
                }
                f::SYNC if stretch.executed && !stretch.open => {
                    self.pos += head.total();
                    return Ok(self.rest(stretch.ended, scratch));
                }
                _ if stretch.ended.is_some() => false,
                f::PARSE => self.parse(body, scratch)?,
                // A portal bound over is never executed: its row is none.
                f::BIND if !stretch.open => self.bind(body, &mut stretch, scratch)?,
                f::DESCRIBE => self.describe(body, &stretch, scratch)?,
                f::EXECUTE if stretch.open => self.execute(body, &mut stretch, scratch)?,
                _ => false,
            };
            if !taken {
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

    /// A border of a block is crossed. False: not in a way that is plain.
    fn cross(&mut self, word: Word, scratch: &mut Scratch) -> bool {
        if word.opens() == self.in_block {
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
        self.unnamed = Unnamed::Gone;
        (self.parsed, self.named) = (None, None);
        Ok(self.rest(word.filter(|word| !word.opens()), scratch))
    }

    fn literals(&mut self, text: &[u8], scratch: &mut Scratch) -> bool {
        let Some((ready, own_time)) = self.session.take_literals(text, true, scratch) else { return false };
        self.takes(&ready, own_time)
    }

    fn parse(&mut self, body: &'a [u8], scratch: &mut Scratch) -> Result<bool, DecodeError> {
        if self.parsed == Some(body) {
            self.parses += 1;
            b::put_empty(&mut scratch.answers, b::PARSE_COMPLETE);
            return Ok(true);
        }
        let parse = f::Parse::decode(body)?;
        let known = || !quick_reject(parse.query) || block::word(parse.query).is_some();
        if !parse.name.is_empty() || !known() {
            return Ok(false);
        }
        if !self.session.state.passes(parse.query) {
            return Ok(false);
        }
        let class = self.session.state.want.pour_class;
        let same = self.statement(b"").filter(|s| s.is(parse.query, parse.types, class));
        let statement = same.unwrap_or_else(|| unnamed_statement(parse.query, parse.types, class, true));
        if self.ready(&statement).is_none() && Self::word(&statement).is_none() {
            return Ok(false);
        }
        self.unnamed = Unnamed::Set(statement);
        (self.parsed, self.named) = (Some(body), None);
        self.parses += 1;
        b::put_empty(&mut scratch.answers, b::PARSE_COMPLETE);
        Ok(true)
    }

    fn bind(
        &mut self,
        body: &'a [u8],
        stretch: &mut Stretch,
        scratch: &mut Scratch,
    ) -> Result<bool, DecodeError> {
        let bind = f::Bind::decode(body)?;
        if !bind.portal.is_empty() || stretch.open {
            return Ok(false);
        }
        stretch.word = None;
        if self.named != Some(bind.statement) {
            let Some(statement) = self.statement(bind.statement) else { return Ok(false) };
            stretch.word = Self::word(&statement);
            if stretch.word.is_none() && self.ready(&statement).is_none() {
                return Ok(false);
            }
            self.named = Some(bind.statement).filter(|_| stretch.word.is_none());
        }
        stretch.open = match stretch.word {
            Some(_) => bind.params_len == 0 && bind.formats.len() <= 2,
            None => {
                let rows = self.bind_insert(body, &bind, scratch);
                stretch.rows = rows.unwrap_or_default();
                rows.is_some()
            }
        };
        if stretch.open {
            self.binds += 1;
            b::put_empty(&mut scratch.answers, b::BIND_COMPLETE);
        }
        Ok(stretch.open)
    }

    /// Of the statement looked at last. The rows that were taken.
    fn bind_insert(&mut self, body: &[u8], bind: &f::Bind<'a>, scratch: &mut Scratch) -> Option<usize> {
        let ready = Arc::clone(&self.bound.as_ref()?.ready);
        let rows = self.bound.as_ref().map_or(1, |bound| bound.rows);
        if let Some(together) = ready.together() {
            // In a block its client may wait for the answer, and what it meets there is nobody else's.
            if self.had_block || self.in_block || self.tier != Tier::Pipeline {
                return None;
            }
            self.result_formats = bind.result_formats;
            let name = &together.statement.server_name;
            let info = put_bound(&ready.plan, name, body, bind, &mut scratch.rows).ok()?;
            f::put_execute(&mut scratch.rows, b"", 0);
            let own_time = OwnTime::of(&ready.plan, info);
            return (scratch.push_rows(&together.lane, 1) && self.takes(&ready, own_time)).then_some(1);
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
        stretch: &mut Stretch,
        scratch: &mut Scratch,
    ) -> Result<bool, DecodeError> {
        let (portal, limit) = f::execute(body)?;
        if !portal.is_empty() {
            return Ok(false);
        }
        self.queries += 1;
        stretch.open = false;
        let executed = std::mem::replace(&mut stretch.executed, true);
        let Some(word) = stretch.word else {
            if self.bound.as_ref().is_some_and(|bound| bound.ready.together().is_some()) {
                scratch.places.push(scratch.answers.len());
                // A limit stops rows that are answered, and those alone.
                return Ok(limit == 0);
            }
            put_inserted(&mut scratch.answers, stretch.rows);
            return Ok(true);
        };
        if !word.opens() {
            stretch.ended = Some(word);
        }
        // What stands before BEGIN and not behind a Sync is in its transaction, too, with a warning.
        Ok(self.cross(word, scratch) && !(word.opens() && executed))
    }

    /// Of the portal just bound, or of a statement.
    fn describe(
        &mut self,
        body: &[u8],
        stretch: &Stretch,
        scratch: &mut Scratch,
    ) -> Result<bool, DecodeError> {
        let (kind, name) = f::target(f::DESCRIBE, body)?;
        if kind != b'S' {
            let insert = self.bound.as_ref().filter(|_| stretch.word.is_none());
            let together = insert.and_then(|bound| bound.ready.together());
            let known = stretch.open && name.is_empty();
            return Ok(known && put_rows_described(&mut scratch.answers, together, self.result_formats));
        }
        let Some(statement) = self.statement(name) else { return Ok(false) };
        if Self::word(&statement).is_some() {
            b::put_no_parameters(&mut scratch.answers);
            b::put_empty(&mut scratch.answers, b::NO_DATA);
            return Ok(true);
        }
        let Some(ready) = self.ready(&statement) else { return Ok(false) };
        let Some(description) = &ready.param_description else { return Ok(false) };
        // That of one row, when the statement is known by it.
        let by_row = statement.as_insert().ok().filter(|insert| insert.one_row().is_some());
        put_parameters(&mut scratch.answers, description, by_row.map_or(1, |insert| insert.rows));
        let together = ready.together();
        let told = together.is_none_or(|together| together.tell(&statement));
        Ok(told && put_rows_described(&mut scratch.answers, together, &[]))
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

/// Appends the answers that were known before, with those of the server where they belong: each ends with a CommandComplete.
fn put_answers(out: &mut Vec<u8>, known: &[u8], places: &[usize], ticket: &Ticket) {
    let given = if places.is_empty() { Vec::new() } else { ticket.take_answer() };
    let (mut given, mut at) = (&given[..], 0);
    for &place in places {
        let (own, others) = given.split_at(statement_end(given));
        out.extend_from_slice(&known[at..place]);
        out.extend_from_slice(own);
        (given, at) = (others, place);
    }
    out.extend_from_slice(&known[at..]);
}

/// Answers to INSERTs, with the notices of each in front of its CommandComplete, where PostgreSQL sends them; what is nobody's
/// stands in front of the last one.
fn with_notices(known: &[u8], notices: &[RowNotice]) -> Vec<u8> {
    let (mut tags, mut at) = (Vec::new(), 0);
    while let Ok(Some((head, body))) = frame::whole(&known[at..], usize::MAX) {
        if head.tag == b::COMMAND_COMPLETE {
            let rows = body.strip_suffix(b"\0").and_then(b::stored_rows);
            tags.push((at, rows.unwrap_or(0)));
        }
        at += head.total();
    }
    let (last, _) = tags.pop().unwrap_or_default();
    let (mut out, mut from, mut before, mut left) = (Vec::new(), 0, 0, notices);
    for (at, rows) in tags {
        before += rows;
        // They came in the order of the rows.
        let own = left.iter().take_while(|notice| notice.row.is_some_and(|row| row < before)).count();
        out.extend_from_slice(&known[from..at]);
        left[..own].iter().for_each(|notice| out.extend_from_slice(&notice.message));
        (from, left) = (at, &left[own..]);
    }
    out.extend_from_slice(&known[from..last]);
    left.iter().for_each(|notice| out.extend_from_slice(&notice.message));
    out.extend_from_slice(&known[last..]);
    out
}

/// A ParameterDescription, that of `body` so many times over.
fn put_parameters(out: &mut Vec<u8>, body: &[u8], times: usize) {
    let types = body.get(2..).unwrap_or_default();
    frame::put(out, b::PARAMETER_DESCRIPTION, |out| {
        out.extend_from_slice(&((types.len() / 4 * times) as u16).to_be_bytes());
        out.extend_from_slice(&types.repeat(times));
    });
}

/// The buffer may grow to this while the end of a unit is awaited.
pub(super) fn may_hold_more(held: usize) -> bool {
    held < HELD_BYTES_MAX
}
