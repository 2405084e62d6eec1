//! A session's INSERTs on their way into a batch.
//!
//! Owns: recognising, at the beginning of a transaction, messages that are nothing but INSERTs which may be poured;
//! encoding their rows; the answers they get when the rows are committed. Never: changes what the server would be
//! asked otherwise: until the outcome is known the client's own messages stay in its read buffer, and if the rows are
//! handed back, those messages go the ordinary way.
//!
//! ```text
//! taken:   Query(INSERT ... literals)            one row, a transaction of its own
//!          ([Parse] Bind [Describe] Execute)+ Sync   one transaction; several such units if nobody can tell them apart
//! ```

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use super::session::{Session, unnamed_statement};
use super::state::Fault;
use crate::cancel::ClientState;
use crate::coalesce::batch::{encode_literals, encode_params, format_of};
use crate::coalesce::lane::{Lane, Offer, Outcome, Single, Ticket, Work};
use crate::coalesce::{Ready, Source};
use crate::error::Error;
use crate::limits::HELD_BYTES_MAX;
use crate::proto::prepared::Statement;
use crate::settings::CoalesceMode;
use crate::sql::insert::{Lifted, lift, quick_reject};
use crate::wire::copy::CopyFormat;
use crate::wire::frame::{HEADER_BYTES, header};
use crate::wire::{DecodeError, TransactionStatus, backend as b, frontend as f};

/// The tag of an INSERT of so many rows.
fn put_inserted(out: &mut Vec<u8>, rows: usize) {
    match rows {
        1 => b::put_command_complete(out, b"INSERT 0 1"),
        rows => b::put_command_complete(out, format!("INSERT 0 {rows}").as_bytes()),
    }
}

/// Answers that wait for the outcome; the few of one statement stand in place.
enum Answers {
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
    ticket: Arc<Ticket>,
    /// Bytes of the client's that must go the ordinary way before anything is poured again.
    singly: usize,
}

impl Pouring {
    fn new(client: u64) -> Self {
        Self { ticket: Arc::new(Ticket::new(client)), singly: 0 }
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
struct Scratch {
    lifted: Lifted,
    shape: Vec<u8>,
    rows: Vec<u8>,
    answers: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// What was recognised at the front of the buffer.
struct Found {
    lane: Arc<Lane>,
    rows: usize,
    statements: usize,
    /// Bytes of the client's messages.
    bytes: usize,
    /// Transactions of the client's.
    units: usize,
    /// Parse and Bind messages.
    parses: usize,
    binds: usize,
    /// The unnamed statement after them.
    unnamed: Unnamed,
}

/// What becomes of the client's unnamed statement.
enum Unnamed {
    Kept,
    Gone,
    Set(Arc<Statement>),
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
            let client = self.me.id;
            let pouring = self.pouring.get_or_insert_with(|| Box::new(Pouring::new(client)));
            let ticket = Arc::clone(&pouring.ticket);
            ticket.set_work(self.work(&found, scratch.answers.len()));
            let answers = match found.lane.offer(&scratch.rows, found.rows, found.statements, &ticket) {
                Offer::Queued => Answers::take(&mut scratch.answers),
                Offer::Single(single) => return Ok(Err(self.singly(found.bytes, Some(single)))),
                Offer::PassOn => return Ok(Err(self.singly(found.bytes, None))),
            };
            Ok::<_, Fault>(Ok((found, answers, ticket)))
        })?;
        match offered {
            Err(not) => Ok(not),
            Ok((found, answers, ticket)) => self.outcome(found, answers, &ticket).await,
        }
    }

    fn may_pour(&self) -> bool {
        let pool = self.pool.settings.load();
        let coalesce = &pool.coalesce;
        let unseen = self.state.unseen && self.state.rules.reads_texts();
        if coalesce.mode == CoalesceMode::Off || !self.state.std_strings || !self.state.can_pour() || unseen {
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
        scratch.rows.clear();
        scratch.answers.clear();
        let buf = self.client.bytes();
        let Some(head) = header(buf, self.state.message_max)? else { return Ok(Look::NeedMore) };
        if head.tag == f::QUERY {
            let Some(body) = buf.get(HEADER_BYTES..head.total()) else { return Ok(Look::No) };
            return self.look_at_query(head.total(), body, scratch);
        }
        self.look_at_units(scratch)
    }

    fn look_at_query(&self, bytes: usize, body: &[u8], scratch: &mut Scratch) -> Result<Look, Fault> {
        let text = f::query(body)?;
        if !self.state.rules.passes_all_queries()
            || !self.pool.settings.load().coalesce.group
            || quick_reject(text)
            || !self.state.passes(text)
        {
            return Ok(Look::No);
        }
        if let Err(why) = lift(text, &mut scratch.lifted).and_then(|()| scratch.lifted.tail.plain()) {
            self.cx.lanes.note_refused(&self.pool, text, why);
            return Ok(Look::No);
        }
        let Some(lane) = self.encode_rows(text, scratch) else { return Ok(Look::No) };
        let rows = scratch.lifted.rows;
        put_inserted(&mut scratch.answers, rows);
        b::put_ready_for_query(&mut scratch.answers, TransactionStatus::Idle);
        let unnamed = Unnamed::Gone;
        Ok(Look::Found(Found { lane, rows, statements: 1, bytes, units: 1, parses: 0, binds: 0, unnamed }))
    }

    /// All rows of a text of literals, when one lane takes them.
    fn encode_rows(&self, text: &[u8], scratch: &mut Scratch) -> Option<Arc<Lane>> {
        let Scratch { lifted, shape, rows, .. } = scratch;
        let mut ready: Option<Arc<Ready>> = None;
        for row in 0..lifted.rows {
            if !lifted.is_like_before(row) {
                let shape: &[u8] = if row == 0 {
                    &lifted.shape
                } else {
                    shape.clear();
                    lifted.put_shape(row, shape);
                    shape
                };
                let found = self.cx.lanes.find(
                    &self.pool,
                    &self.state.want,
                    Source::Literals { shape, lifted, text, row },
                )?;
                let before = ready.replace(found);
                let lane = |ready: &Arc<Ready>| ready.lane(CopyFormat::Text).map(Arc::as_ptr);
                if before.is_some_and(|before| lane(&before) != ready.as_ref().and_then(lane)) {
                    return None;
                }
            }
            encode_literals(&ready.as_ref()?.plan, text, lifted.row(row), rows).ok()?;
        }
        ready?.lane(CopyFormat::Text).cloned()
    }

    /// As many units as are here whole, go to one lane and may share a transaction.
    fn look_at_units(&self, scratch: &mut Scratch) -> Result<Look, Fault> {
        let mut walk = Walk::new(self);
        let mut found: Option<Found> = None;
        loop {
            let (rows_before, answers_before) = (scratch.rows.len(), scratch.answers.len());
            match walk.unit(scratch)? {
                Unit::Whole => {
                    let Some(lane) = walk.lane.clone() else { return Ok(Look::No) };
                    let alone = walk.own_time;
                    if found.is_some() && alone {
                        // Its own transaction would have had a time of its own.
                        scratch.rows.truncate(rows_before);
                        scratch.answers.truncate(answers_before);
                        break;
                    }
                    let units_before = found.as_ref().map_or(0, |f| f.units);
                    if !walk.may_take(units_before) {
                        scratch.rows.truncate(rows_before);
                        scratch.answers.truncate(answers_before);
                        break;
                    }
                    let unnamed = walk.unnamed.clone().map_or(Unnamed::Kept, Unnamed::Set);
                    let units = units_before + 1;
                    let (rows, statements, parses) = (walk.rows, walk.statements, walk.parses);
                    let bytes = walk.pos;
                    found = Some(Found {
                        lane,
                        rows,
                        statements,
                        bytes,
                        units,
                        parses,
                        binds: statements,
                        unnamed,
                    });
                    if alone || walk.pos == walk.buf.len() {
                        break;
                    }
                }
                other => {
                    scratch.rows.truncate(rows_before);
                    scratch.answers.truncate(answers_before);
                    if found.is_none() {
                        return Ok(if matches!(other, Unit::Cut) { Look::NeedMore } else { Look::No });
                    }
                    break;
                }
            }
        }
        let group = self.pool.settings.load().coalesce.group;
        let found = found.filter(|found| group || found.statements > 1);
        Ok(found.map_or(Look::No, Look::Found))
    }

    // ----- waiting

    async fn outcome(
        &mut self,
        found: Found,
        answers: Answers,
        ticket: &Arc<Ticket>,
    ) -> Result<Poured, Fault> {
        let now = Instant::now();
        self.me.set_state(ClientState::Coalescing, now);
        self.me.begin(now);
        let me = Arc::clone(&self.me);
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
        self.me.set_state(ClientState::Idle, Instant::now());
        // A request that came too late is void; one for rows that are not stored after all is not.
        let cancelled = self.me.take_cancel();
        let outcome = outcome.filter(|o| !(cancelled && *o == Outcome::RunSingly));
        match outcome {
            Some(Outcome::Inserted) => {
                if let Some(notices) = ticket.take_notices() {
                    self.client.prepare_out();
                    self.client.out.extend_from_slice(&notices);
                }
                self.answered(found, answers.bytes());
                if let Answers::Many(buffer) = answers {
                    SCRATCH.with(|scratch| scratch.borrow_mut().answers = buffer);
                }
                Ok(Poured::Answered)
            }
            Some(Outcome::RunSingly) => Ok(self.singly(found.bytes, None)),
            Some(Outcome::Unknown) => Err(Fault::Client(Error::outcome_unknown())),
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

    fn answered(&mut self, found: Found, answers: &[u8]) {
        self.client.prepare_out();
        self.client.out.extend_from_slice(answers);
        self.client.consume(found.bytes);
        // Counted with the flush.
        let received = &mut self.state.counts.received;
        *received = received.saturating_sub(found.bytes as u64);
        match found.unnamed {
            Unnamed::Kept => {}
            Unnamed::Gone => self.state.names.forget_unnamed(),
            Unnamed::Set(statement) => {
                self.state.unnamed_at = (0, 0);
                self.state.names.parse(b"", statement, None);
                self.state.names.settle();
            }
        }
    }

    /// What these messages will be in the counters, once they are committed ([`Ticket::set_work`]).
    fn work(&self, found: &Found, sent: usize) -> Work {
        Work {
            statements: found.statements as u32,
            transactions: found.units as u32,
            parses: found.parses as u32,
            binds: found.binds as u32,
            received: found.bytes as u32,
            sent: sent as u32,
        }
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

/// How a unit was read.
enum Unit {
    Whole,
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

/// A walk over units of extended messages.
struct Walk<'a> {
    session: &'a Session,
    buf: &'a [u8],
    pos: usize,
    rows: usize,
    statements: usize,
    /// Rows of the portal just bound.
    open: usize,
    parses: usize,
    lane: Option<Arc<Lane>>,
    /// The statement of the last Bind.
    bound: Option<Bound>,
    /// The unnamed statement that a Parse in here set.
    unnamed: Option<Arc<Statement>>,
    /// The Parse that set it, and the name that `bound` was found by: drivers send the same again and again.
    parsed: Option<&'a [u8]>,
    named: Option<&'a [u8]>,
    own_time: bool,
}

impl<'a> Walk<'a> {
    fn new(session: &'a Session) -> Self {
        Self {
            session,
            buf: session.client.bytes(),
            pos: 0,
            rows: 0,
            statements: 0,
            open: 0,
            parses: 0,
            lane: None,
            bound: None,
            unnamed: None,
            parsed: None,
            named: None,
            own_time: false,
        }
    }

    /// Is the pouring of what was read on? One row is one of many clients'; more are a pipeline.
    fn may_take(&self, units_before: usize) -> bool {
        let settings = self.session.pool.settings.load();
        settings.coalesce.pipeline || (self.statements == 1 && units_before == 0)
    }

    fn statement(&self, name: &[u8]) -> Option<Arc<Statement>> {
        match (name.is_empty(), &self.unnamed) {
            (true, Some(parsed)) => Some(Arc::clone(parsed)),
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
        let insert = statement.as_insert().filter(|insert| insert.tail.is_plain())?;
        let source = Source::Prepared(insert.one_row().unwrap_or(statement));
        let session = self.session;
        let ready = session.cx.lanes.find(&session.pool, &session.state.want, source)?;
        (self.bound, self.named) =
            (Some(Bound { id: statement.id, ready: Arc::clone(&ready), rows: insert.rows }), None);
        Some(ready)
    }

    fn ready_by_name(&mut self, name: &'a [u8]) -> Option<Arc<Ready>> {
        if self.named == Some(name)
            && let Some(bound) = &self.bound
        {
            return Some(Arc::clone(&bound.ready));
        }
        let statement = self.statement(name)?;
        let ready = self.ready(&statement)?;
        self.named = Some(name);
        Some(ready)
    }

    /// Hot path. Reads one unit up to its Sync.
    fn unit(&mut self, scratch: &mut Scratch) -> Result<Unit, DecodeError> {
        let mut open = false;
        let mut any = false;
        loop {
            let rest = &self.buf[self.pos..];
            let Some(head) = header(rest, self.session.state.message_max)? else { return Ok(Unit::Cut) };
            if head.total() > HELD_BYTES_MAX {
                return Ok(Unit::Other);
            }
            let Some(body) = rest.get(HEADER_BYTES..head.total()) else {
                return Ok(if matches!(head.tag, f::PARSE | f::BIND | f::DESCRIBE | f::EXECUTE) {
                    Unit::Cut
                } else {
                    Unit::Other
                });
            };
            let taken = match head.tag {
                f::PARSE => self.parse(body, scratch)?,
                f::BIND => {
                    let taken = self.bind(body, scratch)?;
                    open = taken;
                    taken
                }
                f::DESCRIBE => self.describe(body, open, scratch)?,
                f::EXECUTE if open && body.first() == Some(&0) => {
                    open = false;
                    any = true;
                    put_inserted(&mut scratch.answers, self.open);
                    true
                }
                f::SYNC if any && !open => {
                    b::put_ready_for_query(&mut scratch.answers, TransactionStatus::Idle);
                    self.pos += head.total();
                    return Ok(Unit::Whole);
                }
                _ => false,
            };
            if !taken {
                return Ok(Unit::Other);
            }
            self.pos += head.total();
        }
    }

    fn parse(&mut self, body: &'a [u8], scratch: &mut Scratch) -> Result<bool, DecodeError> {
        if self.parsed == Some(body) {
            self.parses += 1;
            b::put_empty(&mut scratch.answers, b::PARSE_COMPLETE);
            return Ok(true);
        }
        let parse = f::Parse::decode(body)?;
        if !parse.name.is_empty() || quick_reject(parse.query) {
            return Ok(false);
        }
        if !self.session.state.passes(parse.query) {
            return Ok(false);
        }
        let class = self.session.state.want.pour_class;
        let same = self.statement(b"").filter(|s| s.is(parse.query, parse.types, class));
        let statement = same.unwrap_or_else(|| unnamed_statement(parse.query, parse.types, class, true));
        if self.ready(&statement).is_none() {
            return Ok(false);
        }
        self.unnamed = Some(statement);
        (self.parsed, self.named) = (Some(body), None);
        self.parses += 1;
        b::put_empty(&mut scratch.answers, b::PARSE_COMPLETE);
        Ok(true)
    }

    fn bind(&mut self, body: &'a [u8], scratch: &mut Scratch) -> Result<bool, DecodeError> {
        let bind = f::Bind::decode(body)?;
        if !bind.portal.is_empty() {
            return Ok(false);
        }
        let Some(ready) = self.ready_by_name(bind.statement) else { return Ok(false) };
        let rows = self.bound.as_ref().map_or(1, |bound| bound.rows);
        let Some(format) = format_of(&ready.plan, &bind, rows) else { return Ok(false) };
        let Some(lane) = ready.lane(format) else { return Ok(false) };
        match &self.lane {
            Some(known) if !Arc::ptr_eq(known, lane) => return Ok(false),
            Some(_) => {}
            None => self.lane = Some(Arc::clone(lane)),
        }
        let Ok(info) = encode_params(&ready.plan, &bind, rows, format, &mut scratch.rows) else {
            return Ok(false);
        };
        self.own_time |= info.own_time || ready.plan.one_row_per_client;
        self.rows += rows;
        self.statements += 1;
        self.open = rows;
        b::put_empty(&mut scratch.answers, b::BIND_COMPLETE);
        Ok(true)
    }

    /// Of the portal just bound, or of a statement.
    fn describe(&mut self, body: &[u8], open: bool, scratch: &mut Scratch) -> Result<bool, DecodeError> {
        let (kind, name) = f::target(f::DESCRIBE, body)?;
        if kind == b'S' {
            let Some(statement) = self.statement(name) else { return Ok(false) };
            let Some(ready) = self.ready(&statement) else { return Ok(false) };
            let Some(description) = &ready.param_description else { return Ok(false) };
            // That of one row, when the statement is known by it.
            let by_row = statement.as_insert().filter(|insert| insert.one_row().is_some());
            put_parameters(&mut scratch.answers, description, by_row.map_or(1, |insert| insert.rows));
        } else if !open || !name.is_empty() {
            return Ok(false);
        }
        b::put_empty(&mut scratch.answers, b::NO_DATA);
        Ok(true)
    }
}

/// A ParameterDescription, that of `body` so many times over.
fn put_parameters(out: &mut Vec<u8>, body: &[u8], times: usize) {
    let types = body.get(2..).unwrap_or_default();
    crate::wire::frame::put(out, b::PARAMETER_DESCRIPTION, |out| {
        out.extend_from_slice(&((types.len() / 4 * times) as u16).to_be_bytes());
        out.extend_from_slice(&types.repeat(times));
    });
}

/// The buffer may grow to this while the end of a unit is awaited.
pub(super) fn may_hold_more(held: usize) -> bool {
    held < HELD_BYTES_MAX
}
