//! Pipelined INSERTs inside a transaction block: one COPY on the client's own server connection, in its own transaction.
//!
//! Owns: recognising a run that has arrived whole; its flush, under a savepoint of pgsluice's own or behind the client's own unanswered
//! BEGIN. Never: answers before the COPY has succeeded; if it fails, the block is rolled back to where it was and the client's own
//! messages go the ordinary way.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use super::defer::error_response;
use super::hold::Hold;
use super::pour::with_notices;
use super::session::Session;
use super::state::{Fault, Late, Reporting};
use super::walk::{Names, Rest, SCRATCH, Scratch, Tier, Walk};
use crate::cancel::ClientState;
use crate::coalesce::lane::{Lane, Opening, Work};
use crate::limits::HELD_BYTES_MAX;
use crate::pool::Checkout;
use crate::server::ServerConn;
use crate::server::internal::Reply;
use crate::settings::CoalesceMode;
use crate::sql::effects::Effects;
use crate::wire::backend::{self as b, ErrorFields};
use crate::wire::frame::{self, header};
use crate::wire::{TransactionStatus, frontend as f};

/// This much of a unit is poured before its end is here: the client sends more while the server stores it (bytes).
const PART_BYTES: usize = HELD_BYTES_MAX / 4;

/// How far a second INSERT is looked for (messages).
const LOOKED_AT: usize = 10;

/// How often a cancel or a timeout may strike the messages that put a block back.
const UNDO_TRIES: usize = 3;

/// What stands at the front of the buffer.
enum Look {
    Run(Run),
    NeedMore,
    No,
}

/// A run, and what it is answered.
struct Run {
    lane: Arc<Lane>,
    messages: Messages,
    bytes: usize,
}

/// What the messages of a run come to.
struct Messages {
    work: Work,
    names: Names,
    /// These messages leave an unnamed portal.
    portal: bool,
}

impl Messages {
    fn of(walk: &Walk<'_>) -> Self {
        Self { work: walk.work(0), names: walk.names.clone(), portal: walk.leaves_portal }
    }
}

impl Session {
    /// Hot path. Do several messages that may be such INSERTs stand at the front, and nothing before them is unanswered?
    pub(super) fn holds_run(&self, server: &ServerConn) -> bool {
        let buf = self.client.bytes();
        matches!(buf.first(), Some(&(f::PARSE | f::BIND | f::QUERY)))
            && server.pipeline.status() == TransactionStatus::InTransaction
            && self.may_run(server)
            && self.several_binds()
    }

    /// The same where the first of them opens the block.
    pub(super) fn holds_opening_run(&self, server: &ServerConn) -> bool {
        server.pipeline.status() == TransactionStatus::Idle
            && self.may_run(server)
            && self.several_binds()
            && self.begins_block()
    }

    /// Hot path. The same in a unit that prepared a statement and goes on (asyncpg: Parse, Describe, Flush, and the INSERTs when it
    /// has the answer). Once a Sync follows, they may be poured.
    pub(super) fn holds_run_behind_parse(&self, server: &ServerConn) -> bool {
        self.client.bytes().first() == Some(&f::BIND)
            && server.pipeline.has_only_prepared()
            && self.settings.coalesce.pipeline
            && self.state.may_go_elsewhere()
            && self.state.part.up == 0
            && self.may_pour()
            && self.several_binds()
            && self.binds_insert()
    }

    fn binds_insert(&self) -> bool {
        let whole = frame::whole(self.client.bytes(), self.state.bounds.message_max).ok().flatten();
        let bind = whole.and_then(|(_, body)| f::Bind::decode(body).ok());
        let statement = bind.and_then(|bind| self.state.names.lookup(bind.statement));
        statement.is_some_and(|statement| statement.as_insert().is_ok())
    }

    fn may_run(&self, server: &ServerConn) -> bool {
        let coalesce = &self.settings.coalesce;
        coalesce.pipeline
            && coalesce.mode == CoalesceMode::On
            && self.state.std_strings()
            && !self.state.is_reading_in_doubt()
            && !(self.state.unjudged.any && self.state.rules.reads_texts())
            && self.state.late.is_none()
            && self.state.vars.report != Reporting::Pending
            && self.state.can_pour_behind(Effects::TRANSACTION)
            && server.pipeline.is_at_rest()
            && !server.pipeline.is_in_unit_of_query()
            && self.pouring.as_ref().is_none_or(|pouring| pouring.may_run(self.client.consumed()))
    }

    /// What is here may be the first of several: a client that sent no Sync, Flush or Query after it waits for nothing yet, and some
    /// drivers write each statement of a pipeline by itself, or each message.
    fn several_binds(&self) -> bool {
        let (mut buf, mut seen, mut waits) = (self.client.bytes(), 0, true);
        for _ in 0..LOOKED_AT {
            let Ok(head) = header(buf, self.state.bounds.message_max) else { return false };
            let rest = head.and_then(|head| Some((head.tag, buf.get(head.total()..)?)));
            let Some((tag, rest)) = rest else { return !waits };
            seen += usize::from(matches!(tag, f::BIND | f::QUERY));
            waits = matches!(tag, f::SYNC | f::FLUSH | f::QUERY);
            if seen == 2 {
                return true;
            }
            buf = rest;
        }
        false
    }

    /// Pours the run at the front, or lets it pass: then it is not looked at again.
    pub(super) async fn pour_run(&mut self, server: &mut Checkout, opening: Opening) -> Result<(), Fault> {
        let mut hold = None;
        let look = loop {
            let more = self.client.bytes().len() < PART_BYTES && !hold.as_ref().is_some_and(Hold::is_over);
            match SCRATCH.with(|scratch| self.look_at_run(opening, more, &mut scratch.borrow_mut())) {
                Look::NeedMore => {
                    if hold.is_none() {
                        seem_busy(server);
                    }
                    let hold = hold.get_or_insert_with(|| Hold::new(&self.cx.lanes, &self.settings.coalesce));
                    self.read_unit(false, PART_BYTES, hold).await?;
                    // A reload may have come meanwhile.
                    if !self.may_run(server) {
                        break Look::No;
                    }
                }
                look => break look,
            }
        };
        let Look::Run(run) = look else {
            self.let_pass(self.client.bytes().len());
            return Ok(());
        };
        let mut reply = Reply::default();
        let Messages { work, names, portal } = run.messages;
        let marks = !self.pouring().took_mark;
        let flown = SCRATCH.with(|scratch| {
            let scratch = &*scratch.borrow();
            run.lane.put_run(server, &scratch.rows, &scratch.cuts, opening, (marks, portal))
        });
        let answers = SCRATCH.with(|scratch| std::mem::take(&mut scratch.borrow_mut().answers));
        let Some(flown) = flown else {
            self.let_pass(run.bytes);
            return Ok(());
        };
        self.pouring().took_mark |= flown.took_mark();
        if opening == Opening::Savepoint {
            // The relay, which sees that a client asks something inside its block, does not run meanwhile.
            self.me.set_state(ClientState::Active, Instant::now());
        }
        self.finish(server, &mut reply).await?;
        if let Some(notices) = run.lane.run_succeeded(server, flown, &reply, self.me.id) {
            let answers = if notices.is_empty() { answers } else { with_notices(&answers, &notices) };
            self.client.prepare_out();
            self.client.out.extend_from_slice(&answers);
            self.client.consume(run.bytes);
            if hold.is_some_and(|hold| hold.is_over()) {
                // What stands after it was waited for with it.
                self.let_pass(self.client.bytes().len());
            }
            self.names_are(names);
            // An unnamed portal that exists now was left by the run.
            (self.state.shapes.bound, self.state.fold.left) = (None, false);
            self.state.note_no_deallocate(b"");
            self.state.counts.take(Work { sent: answers.len() as u32, received: 0, ..work });
            self.state.turns = self.state.turns.wrapping_add(1);
            self.pouring().run_ended(true);
            return Ok(());
        }
        self.let_pass(run.bytes);
        self.pouring().run_ended(false);
        self.put_back(server, opening, &reply).await
    }

    fn look_at_run(&self, opening: Opening, more: bool, scratch: &mut Scratch) -> Look {
        scratch.clear();
        let mut walk = self.walk_run(opening);
        let (found, rest) = whole_stretches(&mut walk, scratch);
        let found = match rest {
            _ if !scratch.cuts.is_empty() => found,
            Rest::Cut if more && walk.may_wait() => return Look::NeedMore,
            _ => self.look_at_part(opening, walk.border, scratch),
        };
        let rows = scratch.row_count();
        let lane = self.cx.lanes.together(&scratch.lanes);
        let lane = lane.filter(|lane| lane.mode == CoalesceMode::On && lane.is_worth_it(rows));
        scratch.lanes.clear();
        match (found, lane) {
            (Some(messages), Some(lane)) => {
                Look::Run(Run { lane, bytes: messages.work.received as usize, messages })
            }
            _ => Look::No,
        }
    }

    fn walk_run(&self, opening: Opening) -> Walk<'_> {
        let mut walk = Walk::new(self, Tier::Pipeline);
        walk.in_block = opening == Opening::Savepoint;
        walk
    }

    /// The part before `end` of a unit that is too long to be held, or has something else in it. The server is sent nothing that
    /// the client's Sync would have to end, so the rest of the unit goes on as if it began there.
    fn look_at_part(&self, opening: Opening, end: usize, scratch: &mut Scratch) -> Option<Messages> {
        scratch.clear();
        let mut walk = self.walk_run(opening).up_to(end);
        while walk.pos < walk.buf.len() {
            match walk.stretch(scratch) {
                Rest::Open => {}
                Rest::Cut if walk.pos == end => break,
                _ => return None,
            }
        }
        Some(Messages::of(&walk))
    }

    /// This many bytes go as they were sent.
    pub(super) fn let_pass(&mut self, bytes: usize) {
        let until = self.client.consumed().wrapping_add(bytes);
        self.pouring().run_from = until;
    }

    /// A run failed: the block is what it was before it. A client that cancelled it is told so.
    async fn put_back(
        &mut self,
        server: &mut Checkout,
        opening: Opening,
        reply: &Reply,
    ) -> Result<(), Fault> {
        // No error: it stored another number of rows.
        if let Some(error) = &reply.error
            && self.is_cancelled(error)
            && self.fails_here(opening, error)
        {
            return Ok(());
        }
        let mut struck = None;
        for _ in 0..UNDO_TRIES {
            let undone = self.unless_ended(server.simple(opening.undo())).await??;
            match undone.error {
                None => return Ok(()),
                Some(error) if self.is_cancelled(&error) && self.fails_here(opening, &error) => {
                    return Ok(());
                }
                Some(error) if is_cut_short(&error) => struck = Some(error),
                Some(_) => break,
            }
        }
        match struck {
            // The client's own timeout, each time.
            Some(error) if self.fails_here(opening, &error) => Ok(()),
            _ => Err(Fault::ServerViolation("a savepoint is gone".into())),
        }
    }

    /// Cancelled by the client, or by an administrator, which only the message tells: a timeout has the same SQLSTATE.
    fn is_cancelled(&self, error: &[u8]) -> bool {
        let told = ErrorFields::new(error).field(b'M');
        let by_user = || told.is_some_and(|text| memchr::memmem::find(text, b"user request").is_some());
        is_cut_short(error) && (self.me.is_struck() || by_user())
    }

    /// The client cancelled: the block fails where the run stands. False: first it has to be opened again.
    fn fails_here(&mut self, opening: Opening, error: &[u8]) -> bool {
        if opening == Opening::Begin {
            self.cancels_inside_block();
            return false;
        }
        self.state.late = Some(Late::next(error_response(without_context(error))));
        true
    }
}

/// Tells the server that its client goes on, as the held messages would directly, so that it is not ended for being idle.
fn seem_busy(server: &mut Checkout) {
    server.conn.prepare_out();
    f::put_empty(&mut server.conn.out, f::FLUSH);
    let _ = server.poll_send(&mut Context::from_waker(Waker::noop()));
}

/// The stretches at the front that are whole and stay inside the block: what they come to, and where the walk came to rest.
fn whole_stretches(walk: &mut Walk<'_>, scratch: &mut Scratch) -> (Option<Messages>, Rest) {
    let mut found = None;
    loop {
        let before = scratch.mark();
        let rest = walk.stretch(scratch);
        if rest != Rest::Open {
            scratch.back_to(&before);
            return (found, rest);
        }
        found = Some(Messages::of(walk));
        if walk.pos == walk.buf.len() {
            return (found, rest);
        }
    }
}

/// Was it ended by a cancel or a timeout?
fn is_cut_short(error: &[u8]) -> bool {
    ErrorFields::new(error).sqlstate() == b::QUERY_CANCELED
}

/// The error without the lines that say where in a COPY it happened.
fn without_context(error: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(error.len());
    b::put_fields(&mut body, ErrorFields::new(error).filter(|(kind, _)| *kind != b'W'));
    body
}
