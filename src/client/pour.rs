//! A session's INSERTs on their way into a batch.
//!
//! Owns: which messages at the beginning of a transaction are offered to a lane ([`super::walk`] reads them), the wait for the outcome,
//! the answers when the rows are committed. Never: loses the client's own messages: they stay in its read buffer until the outcome is
//! known, and if the lane hands the rows back, they go the ordinary way.
//!
//! INSERTs that a COPY cannot do (RETURNING, ON CONFLICT, expressions) are offered as messages instead of rows: Bind and Execute of the
//! client's own statement. The server's answers to them are put between the answers that are known beforehand.
//!
//! ```text
//! taken:   Query(INSERT ... literals)            one row, a transaction of its own
//!          ([Parse] Bind [Describe] Execute [Close])+ Sync   one transaction, of one table or several; several such units of
//!                                                one table if nobody can tell them apart
//!          BEGIN, such messages, COMMIT          one transaction, when all of it is here
//! ```

use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use super::session::Session;
use super::state::{Fault, Late};
use super::walk::{Names, Place, Rest, SCRATCH, Scratch, Tier, Unnamed, Unpoured, Walk};
use crate::cancel::ClientState;
use crate::coalesce::batch::statement_end;
use crate::coalesce::lane::{Lane, Offer, Outcome, RowNotice, Single, Ticket, Work};
use crate::coalesce::shapes::{Closed, Shape};
use crate::error::Error;
use crate::limits::NAME_BYTES_MAX;
use crate::settings::CoalesceMode;
use crate::sql::block::{self, Word};
use crate::wire::frame::{self, HEADER_BYTES, Header, header};
use crate::wire::{TransactionStatus, backend as b, frontend as f};

/// Answers that wait for the outcome; the few of one statement stand in place.
pub(super) enum Answers {
    Few([u8; FEW_BYTES], usize),
    Many(Vec<u8>),
}

/// Bytes of the answers to a Parse, Bind, Describe, Execute and Sync of one row.
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
    /// No run inside a block is looked for before this byte from the client ...
    pub(super) run_from: usize,
    /// ... nor in this many transactions, the present one included.
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

    /// After a run that failed none is tried in this transaction, and after several failures in a row none in the next ones.
    pub(super) fn run_ended(&mut self, well: bool) {
        self.runs_failed = if well { 0 } else { self.runs_failed.saturating_add(1) };
        self.no_runs = if well { 0 } else { 1 << self.runs_failed.saturating_sub(1).min(10) };
    }

    /// May a run be looked for that begins at this byte from the client?
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
    /// The ordinary way, as the first bytes tell; and it opens no block.
    Plain,
}

/// What was recognised at the front of the buffer.
pub(super) struct Found {
    pub(super) lane: Arc<Lane>,
    pub(super) statements: usize,
    /// Bytes of the client's messages.
    pub(super) bytes: usize,
    /// Transactions of the client's.
    pub(super) units: usize,
    /// What they are in the counters, without their answers.
    pub(super) work: Work,
    /// The client's statements after them.
    pub(super) names: Names,
    /// Where in the answers those of the server belong; none: it is a COPY.
    pub(super) places: Vec<Place>,
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
        if !self.may_pour_anything() {
            return Ok(Poured::No(None));
        }
        if !self.may_be_poured(self.client.bytes()) {
            return Ok(Poured::Plain);
        }
        let offered = SCRATCH.with(|scratch| {
            let scratch = &mut *scratch.borrow_mut();
            let found = match self.look(scratch)? {
                Look::Found(found) => found,
                Look::NeedMore => return Ok(Err(Poured::NeedMore)),
                Look::No => {
                    if let Some(Unpoured { name, refused }) = scratch.unpoured.take() {
                        self.state.names.note_unpoured(name);
                        self.refused = refused;
                    }
                    if let Some(closed) = scratch.closed.take() {
                        self.note_closed(closed);
                    }
                    return Ok(Err(Poured::No(None)));
                }
            };
            let ticket = self.ticket();
            ticket.set_work(Work { sent: scratch.answers.len() as u32, ..found.work });
            // A statement that is no COPY gains only by sharing a COMMIT.
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
        self.may_pour_anything() && self.may_be_poured(self.client.bytes())
    }

    /// Whatever stands at the front.
    fn may_pour_anything(&self) -> bool {
        let coalesce = &self.settings.coalesce;
        let unseen = self.state.unjudged.any && self.state.rules.reads_texts();
        if coalesce.mode == CoalesceMode::Off
            || !self.state.std_strings()
            || self.state.is_reading_in_doubt()
            || !self.state.can_pour()
            || unseen
        {
            return false;
        }
        if self.state.late.is_some() {
            return false;
        }
        self.pouring.as_ref().is_none_or(|p| p.singly == 0)
    }

    /// Told by a few bytes of the first message, so that a SELECT is not looked at any further, nor an INSERT into a table that is
    /// known to be closed. False: it opens no block, either.
    fn may_be_poured(&self, buf: &[u8]) -> bool {
        let by_text = |text: Option<&[u8]>| match text {
            Some(text @ [first, _, ..]) if !first.eq_ignore_ascii_case(&b'i') => block::may_begin(text),
            Some(text) => !self.is_closed(text),
            None => true,
        };
        match buf.first() {
            Some(&f::QUERY) => by_text(buf.get(HEADER_BYTES..)),
            // A Bind of the unnamed statement.
            Some(&f::PARSE) if buf.get(HEADER_BYTES) == Some(&0) => by_text(buf.get(HEADER_BYTES + 1..)),
            Some(&f::PARSE) => true,
            Some(&f::BIND) => {
                let names = &buf[HEADER_BYTES.min(buf.len())..];
                let portal = memchr::memchr(0, &names[..names.len().min(NAME_BYTES_MAX + 1)]);
                portal.is_none_or(|end| !self.names_unpoured(&names[end + 1..]))
            }
            _ => false,
        }
    }

    fn is_closed(&self, text: &[u8]) -> bool {
        self.closed.as_ref().is_some_and(|closed| closed.holds(text, &self.pool, &self.state.vars.want))
    }

    fn note_closed(&mut self, closed: Closed) {
        match &mut self.closed {
            Some(before) => **before = closed,
            None => self.closed = Some(Box::new(closed)),
        }
    }

    /// Does `rest` of a Bind begin with the name of a statement that was noted as not poured, and is it still so?
    fn names_unpoured(&self, rest: &[u8]) -> bool {
        let refuses = |shape: &Arc<Shape>| shape.refuses(&self.pool, &self.state.vars.want);
        self.state.names.begins_with_unpoured(rest) && self.refused.as_ref().is_none_or(refuses)
    }

    fn singly(&mut self, bytes: usize, single: Option<Single>) -> Poured {
        if let Some(pouring) = &mut self.pouring {
            pouring.singly = bytes;
        }
        Poured::No(single)
    }

    /// `n` bytes from the client went the ordinary way.
    pub(super) fn went_singly(&mut self, n: usize) {
        if let Some(pouring) = &mut self.pouring {
            pouring.singly = pouring.singly.saturating_sub(n);
        }
    }

    fn look(&self, scratch: &mut Scratch) -> Result<Look, Fault> {
        scratch.clear();
        let buf = self.client.bytes();
        let Some(head) = header(buf, self.state.bounds.message_max)? else { return Ok(Look::NeedMore) };
        if head.tag == f::QUERY {
            let Some(body) = buf.get(HEADER_BYTES..head.total()) else { return Ok(Look::No) };
            let Ok(text) = f::query(body) else { return Ok(Look::No) };
            if !block::word(text).is_some_and(Word::opens) {
                return Ok(self.look_at_query(head.total(), text, scratch));
            }
        }
        Ok(self.look_at_units(scratch))
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
            names: Names::of(Unnamed::Gone),
            places: Vec::new(),
        })
    }

    /// As many units as are here whole and may share a transaction: one of any kind, or several of one table.
    fn look_at_units(&self, scratch: &mut Scratch) -> Look {
        let mut walk = Walk::new(self, Tier::Pipeline);
        let mut found: Option<Found> = None;
        loop {
            let before = scratch.mark();
            match walk.stretch(scratch) {
                Rest::Open if found.is_none() && walk.pos < walk.buf.len() => continue,
                // The client may wait for the answers to what came before.
                Rest::Cut if found.is_none() && !walk.had_block && walk.may_wait() => {
                    return Look::NeedMore;
                }
                Rest::Whole => {}
                _ => {
                    scratch.back_to(&before);
                    break;
                }
            }
            let units_before = found.as_ref().map_or(0, |f| f.units);
            let alone = walk.is_alone(scratch);
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
                names: walk.names.clone(),
                places: Vec::new(),
            });
            if alone || walk.pos == walk.buf.len() {
                break;
            }
        }
        let group = self.settings.coalesce.group;
        let found = found.filter(|found| group || found.statements > 1);
        found.map_or(Look::No, Look::Found)
    }

    pub(super) async fn outcome(
        &mut self,
        found: Found,
        answers: Answers,
        ticket: &Arc<Ticket>,
    ) -> Result<Poured, Fault> {
        let now = Instant::now();
        self.asks(ClientState::Coalescing, now);
        match self.decided(&found, ticket).await? {
            Some(Outcome::Inserted) => {
                match ticket.take_notices() {
                    None => self.answered(found, answers.bytes(), ticket),
                    Some(notices) if found.places.is_empty() => {
                        self.answered(found, &with_notices(answers.bytes(), &notices), ticket);
                    }
                    // The rows' notices are in the server's own answers; a warning of the COMMIT has no place in them.
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
                // Nor as a run: it would fail in the same way.
                self.let_pass(found.bytes);
                Ok(self.singly(found.bytes, None))
            }
            Some(Outcome::Unknown) => Err(Fault::Client(Error::outcome_unknown())),
            None if self.cancels_inside_block() => {
                self.offered_at = Some(now);
                Ok(self.singly(found.bytes, None))
            }
            None => {
                self.answer_as_cancelled(self.first_unit_end().unwrap_or(found.bytes));
                Ok(Poured::Answered)
            }
        }
    }

    /// What became of the rows. `None`: the client has cancelled them, and they are not stored.
    async fn decided(&mut self, found: &Found, ticket: &Arc<Ticket>) -> Result<Option<Outcome>, Fault> {
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
            found.lane.give_up(ticket);
            self.obey(false)?;
            return Err(Fault::Client(Error::killed()));
        };
        // A request that came too late is void; one for rows that are not stored after all is not.
        let cancelled = self.me.take_cancel();
        let outcome = outcome.filter(|o| !(cancelled && *o == Outcome::RunSingly));
        // A block that is handed back goes on.
        if self.deferred.is_none() || outcome != Some(Outcome::RunSingly) {
            self.me.rest();
        }
        if outcome.is_none() {
            self.renew_ticket();
        }
        Ok(outcome)
    }

    fn answered(&mut self, found: Found, answers: &[u8], ticket: &Ticket) {
        self.client.prepare_out();
        put_answers(&mut self.client.out, answers, &found.places, ticket);
        self.client.consume(found.bytes);
        // Counted with the flush.
        let received = &mut self.state.counts.received;
        *received = received.saturating_sub(found.bytes as u64);
        self.names_are(found.names);
    }

    /// The session's ticket, kept from one batch to the next.
    pub(super) fn ticket(&mut self) -> Arc<Ticket> {
        Arc::clone(&self.pouring().ticket)
    }

    /// Rows that were withdrawn may still be in a flight ([`Lane::withdraw`]).
    fn renew_ticket(&mut self) {
        let client = self.me.id;
        self.pouring().ticket = Arc::new(Ticket::new(client));
    }

    pub(super) fn pouring(&mut self) -> &mut Pouring {
        let client = self.me.id;
        self.pouring.get_or_insert_with(|| Box::new(Pouring::new(client)))
    }

    pub(super) fn unnamed(&self) -> Unnamed {
        match self.state.names.lookup(b"").cloned() {
            None => Unnamed::Gone,
            Some(statement) if self.state.shapes.unnamed_told == Some(statement.id) => {
                let rows = self.state.shapes.rows_of_unnamed(&statement);
                Unnamed::Told(statement, rows)
            }
            Some(statement) => Unnamed::Set(statement),
        }
    }

    /// Nothing is owed to the client by a server.
    pub(super) fn names_are(&mut self, Names { unnamed, made }: Names) {
        for (name, statement) in made {
            self.state.names.parse(&name, statement, None);
            self.state.names.settle();
        }
        let (statement, told, rows) = match unnamed {
            Unnamed::Kept => return,
            Unnamed::Gone => (None, None, None),
            Unnamed::Set(statement) => (Some(statement), None, None),
            Unnamed::Told(statement, rows) => {
                let id = statement.id;
                (Some(statement), Some(id), rows.map(|rows| (id, rows)))
            }
        };
        (self.state.shapes.unnamed_told, self.state.shapes.unnamed_rows) = (told, rows);
        self.state.names.set_unnamed(statement);
    }

    /// A block stands at the front with its statements. If its BEGIN were answered as cancelled, the rest would run without
    /// it, each statement in a transaction of its own. So what comes after the BEGIN is cancelled, as when the request finds it running.
    pub(super) fn cancels_inside_block(&mut self) -> bool {
        if self.state.late.is_some() {
            return true;
        }
        let opening = if self.begins_block() { self.opening_messages() } else { None };
        let Some(opening) = opening else { return false };
        self.state.late = Some(Late::cancelled(opening));
        true
    }

    /// The number of messages that open the block: a Query, or all up to the Execute. `None`: nothing after them is here.
    fn opening_messages(&self) -> Option<usize> {
        let (mut buf, mut count) = (self.client.bytes(), 0);
        let mut opened = false;
        while let Ok(Some((head, _))) = frame::whole(buf, self.state.bounds.message_max) {
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

    /// Where the first transaction ends, if that is here: after its Query, FunctionCall or Sync.
    pub(super) fn first_unit_end(&self) -> Option<usize> {
        let (mut rest, mut end) = (self.client.bytes(), 0);
        while let Ok(Some((head, _))) = frame::whole(rest, self.state.bounds.message_max) {
            end += head.total();
            if matches!(head.tag, f::QUERY | f::FUNCTION_CALL | f::SYNC) {
                return Some(end);
            }
            rest = &rest[head.total()..];
        }
        None
    }

    /// The transaction that stands at the front, up to `end`, is told that it was cancelled at its first message, and is not run.
    /// Directly a Close is never cancelled; a Parse, as a Query, has taken the unnamed statement away when it fails.
    pub(super) fn answer_as_cancelled(&mut self, end: usize) {
        self.client.prepare_out();
        let (buf, out) = self.client.split();
        let state = &mut self.state;
        let mut rest = &buf[..end];
        while let Ok(Some((head, body))) = frame::whole(rest, state.bounds.message_max) {
            match head.tag {
                f::FLUSH => {}
                f::CLOSE if state.closes_unasked(body) => b::put_empty(out, b::CLOSE_COMPLETE),
                _ => {
                    if takes_unnamed_away(head, body) {
                        state.names.forget_unnamed();
                    }
                    break;
                }
            }
            rest = &rest[head.total()..];
        }
        Error::cancelled().put(out);
        b::put_ready_for_query(out, TransactionStatus::Idle);
        self.client.consume(end);
    }
}

/// A Query, and a Parse without a name: also where they fail, the unnamed statement is gone.
pub(super) fn takes_unnamed_away(head: Header, body: &[u8]) -> bool {
    head.tag == f::QUERY || (head.tag == f::PARSE && body.starts_with(&[0]))
}

/// Appends the answers that were known before, with those of the server where they belong.
fn put_answers(out: &mut Vec<u8>, known: &[u8], places: &[Place], ticket: &Ticket) {
    let given = if places.is_empty() { Vec::new() } else { ticket.take_answer() };
    let (mut given, mut at) = (&given[..], 0);
    for place in places {
        let (own, others) = given.split_at(statement_end(given));
        let (notices, own) = own.split_at(notices_end(own));
        out.extend_from_slice(&known[at..place.notices]);
        out.extend_from_slice(notices);
        out.extend_from_slice(&known[place.notices..place.at]);
        match place.one_row.then(|| before_tag(own)).flatten() {
            Some(row) => {
                out.extend_from_slice(row);
                b::put_empty(out, b::PORTAL_SUSPENDED);
            }
            None => out.extend_from_slice(own),
        }
        (given, at) = (others, place.at);
    }
    out.extend_from_slice(&known[at..]);
}

/// The notices at the front of one statement's answer: all that its rows raised, since it answers them when all are stored.
fn notices_end(answer: &[u8]) -> usize {
    let mut at = 0;
    while let Ok(Some((head, _))) = frame::whole(&answer[at..], usize::MAX) {
        if head.tag != b::NOTICE_RESPONSE {
            break;
        }
        at += head.total();
    }
    at
}

/// One statement's answer without its CommandComplete, if it has a row.
fn before_tag(answer: &[u8]) -> Option<&[u8]> {
    let (mut at, mut has_row) = (0, false);
    while let Ok(Some((head, _))) = frame::whole(&answer[at..], usize::MAX) {
        if head.tag == b::COMMAND_COMPLETE {
            return has_row.then_some(&answer[..at]);
        }
        has_row |= head.tag == b::DATA_ROW;
        at += head.total();
    }
    None
}

/// Answers to INSERTs, each statement's notices before its CommandComplete, where PostgreSQL sends them; notices of no row
/// stand before the last one.
pub(super) fn with_notices(known: &[u8], notices: &[RowNotice]) -> Vec<u8> {
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
