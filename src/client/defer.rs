//! INSERTs of a transaction block that are answered before they are stored (`coalesce.deferred`).
//!
//! Owns: the messages of such a block until a server gets them, and how they leave. Never: answers COMMIT, or anything that is not such
//! an INSERT, before the rows have arrived; makes up an error for a row: the client's own messages are run.
//!
//! ```text
//!   BEGIN ---> held <--+ an INSERT: answered at once, its message and its row are kept
//!               |      |
//!               +------+
//!               | COMMIT, rows of few enough tables     one unit of a lane, with those of other clients
//!               | ... or the lane hands them back       BEGIN and the INSERTs in one write, then COMMIT
//!               | ROLLBACK                              nothing was ever sent
//!               | anything else                         BEGIN and the INSERTs in one write; then the block is as any other
//! ```
//!
//! The error of a held INSERT takes the place of the answer to the message that made it leave, as that of a DEFERRABLE constraint does.
//! The same happens if an INSERT stores another number of rows than the client was told (a rule or trigger made since drops its row):
//! COMMIT is not sent then.

use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use super::hold::Budget;
use super::pour::{Answers, Found, Poured, takes_unnamed_away};
use super::session::Session;
use super::state::{Fault, Late};
use super::walk::{Names, Rest, SCRATCH, Scratch, Tier, Walk};
use crate::cancel::ClientState;
use crate::coalesce::lane::{Lane, Offer, Single, Ticket, Work};
use crate::coalesce::shapes::LEGS_MAX;
use crate::coalesce::{Cut, Lanes};
use crate::error::Error;
use crate::pool::Checkout;
use crate::proto::pipeline::Answer;
use crate::server::internal::{Described, Lost, Notice, Reply};
use crate::settings::PoolMode;
use crate::sql::block::{self, Word};
use crate::wire::backend as b;
use crate::wire::frame::{self, HEADER_BYTES, Header};
use crate::wire::{TransactionStatus, frontend as f};

/// How often in a row a held message may wait for an answer before it is sent: about its name, about how its rows look.
const WAITS_MAX: usize = 4;

/// A block that no server knows of yet.
#[derive(Debug)]
pub(super) struct Deferred {
    /// The client's messages from its BEGIN on, as they came.
    kept: Vec<u8>,
    /// Their rows, encoded; of no use any more when `rows_fit` is false.
    rows: Vec<u8>,
    cuts: Vec<Cut>,
    lanes: Vec<Arc<Lane>>,
    statements: usize,
    /// What they are in the counters.
    work: Work,
    /// They change from table to table no more often than one flush can.
    rows_fit: bool,
    /// The client's statements when the block began.
    names: Names,
    /// The tags that its INSERTs were answered with.
    told: Vec<u8>,
    /// The COMMIT that stands at the end of `kept`.
    commit: Option<Commit>,
    /// Of all clients' memory.
    budget: Budget,
}

/// COMMIT, and what else is in its pipeline.
#[derive(Debug)]
struct Commit {
    /// Where it begins.
    at: usize,
    /// The answers to it.
    answers: Vec<u8>,
}

impl Deferred {
    fn new(lanes: &Arc<Lanes>, names: Names) -> Self {
        Self {
            kept: Vec::new(),
            rows: Vec::new(),
            cuts: Vec::new(),
            lanes: Vec::new(),
            statements: 0,
            work: Work::default(),
            rows_fit: true,
            names,
            told: Vec::new(),
            commit: None,
            budget: Budget::new(lanes),
        }
    }

    /// Keeps messages and their rows.
    fn hold(&mut self, messages: &[u8], scratch: &Scratch) {
        self.kept.extend_from_slice(messages);
        self.statements += scratch.statements;
        let mut start = 0;
        for (lane, cut) in scratch.lanes.iter().zip(&scratch.cuts) {
            self.hold_rows(lane, &scratch.rows[start..cut.end], cut.rows);
            start = cut.end;
        }
    }

    fn hold_rows(&mut self, lane: &Arc<Lane>, encoded: &[u8], rows: usize) {
        if !self.rows_fit {
            return;
        }
        self.rows.extend_from_slice(encoded);
        let end = self.rows.len();
        match (self.lanes.last(), self.cuts.last_mut()) {
            (Some(last), Some(cut)) if Arc::ptr_eq(last, lane) => *cut = Cut { end, rows: cut.rows + rows },
            _ if self.lanes.len() >= LEGS_MAX => {
                self.rows_fit = false;
                (self.rows, self.cuts, self.lanes) = (Vec::new(), Vec::new(), Vec::new());
            }
            _ => {
                self.lanes.push(Arc::clone(lane));
                self.cuts.push(Cut { end, rows });
            }
        }
    }
}

/// What became of the front of the buffer.
enum Step {
    /// It is held, and answered.
    Held,
    /// It is not deferred.
    No,
    NeedMore,
    /// COMMIT, and the answer of the lane that may take the rows.
    Commit(Found, Offer, Arc<Ticket>, Vec<u8>),
    /// COMMIT of rows that no lane takes; its bytes.
    Alone(usize, Names, Vec<u8>),
}

/// How a block left.
pub(super) enum Left {
    /// Its transaction is over, and the client has been answered.
    Ended,
    /// The server has it.
    Open,
}

impl Session {
    /// Hot path. Is a block held, or does one begin here that may be?
    pub(super) fn defers(&self) -> bool {
        if self.deferred.is_some() {
            return true;
        }
        let may = self.state.mode == PoolMode::Transaction && self.settings.coalesce.defers();
        may && self.may_pour() && self.begins_block()
    }

    pub(super) fn begins_block(&self) -> bool {
        let Ok(Some((head, body))) = frame::whole(self.client.bytes(), self.state.bounds.message_max) else {
            return false;
        };
        let word = match head.tag {
            f::QUERY => f::query(body).ok().and_then(block::word),
            f::PARSE => {
                let parse = f::Parse::decode(body).ok();
                parse.and_then(|parse| block::word_prepared(parse.query, parse.types))
            }
            f::BIND => {
                let statement =
                    f::Bind::decode(body).ok().and_then(|bind| self.state.names.lookup(bind.statement));
                statement.and_then(|statement| Walk::word(statement))
            }
            _ => None,
        };
        word.is_some_and(Word::opens)
    }

    /// Hot path. Takes what is deferred from the front of the read buffer; called while no server is linked.
    /// [`Poured::No`]: what is held, if anything, has to leave ([`Session::leave_block`]).
    pub(super) async fn defer(&mut self) -> Result<Poured, Fault> {
        let step = SCRATCH.with(|scratch| self.defer_stretch(&mut scratch.borrow_mut()));
        let (found, answers, single) = match step {
            Step::Held => return Ok(Poured::Answered),
            Step::No => return Ok(Poured::No(None)),
            Step::NeedMore => return Ok(Poured::NeedMore),
            Step::Alone(bytes, names, answers) => {
                self.hold_commit(bytes, names, answers);
                return Ok(Poured::No(None));
            }
            Step::Commit(found, Offer::Queued, ticket, answers) => {
                let (bytes, names) = (found.bytes, found.names.clone());
                if let Poured::Answered = self.outcome(found, Answers::Many(answers.clone()), &ticket).await?
                {
                    self.deferred = None;
                    return Ok(Poured::Answered);
                }
                self.went_singly(bytes);
                self.hold_commit(bytes, names, answers);
                return Ok(Poured::No(None));
            }
            Step::Commit(found, Offer::Single(single), _, answers) => (found, answers, Some(single)),
            Step::Commit(found, Offer::PassOn, _, answers) => (found, answers, None::<Single>),
        };
        self.hold_commit(found.bytes, found.names, answers);
        Ok(Poured::No(single))
    }

    fn defer_stretch(&mut self, scratch: &mut Scratch) -> Step {
        scratch.clear();
        let mut walk = Walk::new(self, Tier::Deferred);
        walk.in_block = self.deferred.is_some();
        // The rules may have changed since the block began.
        let rest = if self.may_pour() { walk.stretch(scratch) } else { Rest::Other };
        let (work, names) = (walk.work(0), walk.names.clone());
        match rest {
            Rest::Cut if walk.may_wait() => Step::NeedMore,
            Rest::Cut | Rest::Other => Step::No,
            Rest::Open => {
                let begins = self.deferred.is_none();
                let held = self.hold(work, scratch);
                if held { self.held(work, names, scratch, begins) } else { Step::No }
            }
            // All of it in one go is a pipeline.
            Rest::RolledBack | Rest::Whole if self.deferred.is_none() => Step::No,
            Rest::RolledBack => self.came_to_nothing(work, names, scratch),
            Rest::Whole => self.commits(work, names, scratch),
        }
    }

    /// Keeps the messages and their rows. False: there is no room for them.
    fn hold(&mut self, work: Work, scratch: &Scratch) -> bool {
        let bytes = work.received as usize;
        let coalesce = &Arc::clone(&self.settings).coalesce;
        if self.deferred.is_none() {
            let names = Names::of(self.unnamed());
            self.deferred = Some(Box::new(Deferred::new(&self.cx.lanes, names)));
        }
        let Some(deferred) = &mut self.deferred else { return false };
        let more = bytes + scratch.rows.len();
        if deferred.budget.bytes + more > coalesce.max_bytes
            || !deferred.budget.take(more, coalesce.budget_bytes)
        {
            if deferred.kept.is_empty() {
                self.deferred = None;
            }
            return false;
        }
        deferred.hold(&self.client.bytes()[..bytes], scratch);
        true
    }

    /// The block ends, and no server needs to know.
    fn came_to_nothing(&mut self, work: Work, names: Names, scratch: &Scratch) -> Step {
        let step = self.held(work, names, scratch, false);
        if let Some(deferred) = self.deferred.take() {
            Work { transactions: 1, ..deferred.work }.count(&self.pool.stats);
            // The next block is another one, also for an observer that did not see the pause between them.
            self.state.xact_turns = self.state.xact_turns.wrapping_add(1);
        }
        self.me.show(ClientState::Idle, self.state.turns, self.state.xact_turns);
        step
    }

    /// What is held is answered. `begins`: the block stands at its beginning, and its time runs from here.
    fn held(&mut self, work: Work, names: Names, scratch: &Scratch, begins: bool) -> Step {
        self.client.prepare_out();
        self.client.out.extend_from_slice(&scratch.answers);
        self.client.consume(work.received as usize);
        self.names_are(names);
        // Counted when it is known how the block left.
        let received = &mut self.state.counts.received;
        *received = received.saturating_sub(work.received.into());
        if let Some(deferred) = &mut self.deferred {
            deferred.work = deferred.work.and(Work { sent: scratch.answers.len() as u32, ..work });
            put_inserts(tags_in(&scratch.answers), &mut deferred.told);
        }
        self.state.turns = self.state.turns.wrapping_add(1);
        let (turns, xact_turns) = (self.state.turns, self.state.xact_turns);
        if begins {
            self.me.begin_held(Instant::now(), turns, xact_turns);
        } else {
            self.me.show(ClientState::IdleInTransaction, turns, xact_turns);
        }
        Step::Held
    }

    fn commits(&mut self, work: Work, names: Names, scratch: &mut Scratch) -> Step {
        let bytes = work.received as usize;
        let ticket = self.ticket();
        let Some(deferred) = &mut self.deferred else { return Step::No };
        if !scratch.cuts.is_empty() {
            // INSERTs in one pipeline with their COMMIT.
            deferred.hold(&[], scratch);
        }
        if deferred.cuts.is_empty() && deferred.rows_fit {
            return self.came_to_nothing(work, names, scratch);
        }
        let answers = std::mem::take(&mut scratch.answers);
        let lane = if deferred.rows_fit { self.cx.lanes.together(&deferred.lanes) } else { None };
        let Some(lane) = lane else { return Step::Alone(bytes, names, answers) };
        let statements = deferred.statements;
        let all = deferred.work.and(Work { transactions: 1, sent: answers.len() as u32, ..work });
        let places = Vec::new();
        let found = Found { lane: Arc::clone(&lane), statements, bytes, units: 1, work: all, names, places };
        ticket.set_work(found.work);
        let offer = lane.offer(&deferred.rows, &deferred.cuts, statements, &ticket);
        Step::Commit(found, offer, ticket, answers)
    }

    fn hold_commit(&mut self, bytes: usize, names: Names, answers: Vec<u8>) {
        let Some(deferred) = &mut self.deferred else { return };
        deferred.commit = Some(Commit { at: deferred.kept.len(), answers });
        deferred.kept.extend_from_slice(&self.client.bytes()[..bytes]);
        self.client.consume(bytes);
        self.names_are(names);
    }

    // ----- leaving

    /// The client asks something that needs a server, or a batch, since `asked`. What is held has begun its transaction already.
    pub(super) fn asks(&self, state: ClientState, asked: Instant) {
        if self.deferred.is_some() {
            self.me.set_state(state, asked);
        } else {
            self.me.begin(state, asked);
        }
    }

    /// The client asks nothing any more.
    pub(super) fn asks_nothing(&self) {
        let held = self.deferred.is_some();
        let state = if held { ClientState::IdleInTransaction } else { ClientState::Idle };
        self.me.set_state(state, Instant::now());
    }

    /// Its COMMIT was taken in: nothing that the client sends makes it leave any more.
    pub(super) fn holds_commit(&self) -> bool {
        self.deferred.as_ref().is_some_and(|deferred| deferred.commit.is_some())
    }

    /// A cancel request came before a server did. A COMMIT is answered as cancelled, and nothing of its block was sent; what
    /// else makes a block leave goes on waiting: the request may come too early, as it may come too late.
    pub(super) fn cancel_block(&mut self) {
        let Some(deferred) = self.deferred.take_if(|deferred| deferred.commit.is_some()) else { return };
        let at = deferred.commit.map_or(0, |commit| commit.at);
        // What was parsed for it counted as prepared, too.
        if frames(&deferred.kept[at..]).any(|(head, body)| takes_unnamed_away(head, body)) {
            self.state.names.forget_unnamed();
        }
        self.client.prepare_out();
        Error::cancelled().put(&mut self.client.out);
        b::put_ready_for_query(&mut self.client.out, TransactionStatus::Idle);
    }

    /// Runs what is held on the server, in one write, then its COMMIT if all answers are as the client was told; then answers the client.
    pub(super) async fn leave_block(&mut self, server: &mut Checkout) -> Result<Left, Fault> {
        let Some(deferred) = self.deferred.take() else { return Ok(Left::Open) };
        let Deferred { kept, names, commit, work, told, lanes, rows_fit, .. } = *deferred;
        self.names_are(names);
        // Its statements count again while they are sent.
        self.state.counts.take(Work { received: work.received, sent: work.sent, ..Work::default() });
        let (inserts, ends) = kept.split_at(commit.as_ref().map_or(kept.len(), |commit| commit.at));
        let mut reply = self.replay(server, inserts).await?;
        let mut stored = Vec::new();
        put_inserts(reply.tags.iter().map(Vec::as_slice), &mut stored);
        let mut error = reply.error.take().map(error_response);
        if error.is_none() && stored != told {
            self.tables_are_others(&lanes, rows_fit);
            error = Some(self.unless_ended(fail_block(server, commit.is_some())).await??);
        } else if !ends.is_empty() {
            let last = self.replay(server, ends).await?;
            reply.tags = last.tags;
            reply.notices.extend(last.notices);
            error = error.or(last.error.map(error_response));
        }
        let status = server.pipeline.status();
        self.client.prepare_out();
        let before = self.client.out.len();
        for Notice { body, .. } in &reply.notices {
            frame::put(&mut self.client.out, b::NOTICE_RESPONSE, |out| out.extend_from_slice(body));
        }
        self.hear(server)?;
        let goes_on = commit.is_none() || status != TransactionStatus::Idle;
        match (commit, error) {
            (Some(Commit { answers, .. }), None) => put_answers(&answers, &reply.tags, &mut self.client.out),
            (Some(Commit { answers, .. }), Some(error)) => {
                self.client.out.extend_from_slice(before_commit(&answers));
                self.client.out.extend_from_slice(&error);
                b::put_ready_for_query(&mut self.client.out, status);
            }
            (None, error) => self.state.late = error.map(Late::next),
        }
        self.state.counts.sent += (self.client.out.len() - before) as u64;
        if goes_on {
            return Ok(Left::Open);
        }
        self.state.counts.xacts += 1;
        self.state.xact_turns = self.state.xact_turns.wrapping_add(1);
        self.settle(server);
        self.state.ties.forget_taint();
        self.state.meaning.end();
        self.state.nothing_in_flight(true);
        Ok(Left::Ended)
    }

    /// The tables are not as planned any more. `all`: these are all that the block has rows for.
    fn tables_are_others(&self, lanes: &[Arc<Lane>], all: bool) {
        if all {
            lanes.iter().for_each(|lane| lane.forget_shapes());
        } else {
            self.cx.lanes.forget_all(|_| true);
        }
    }

    /// Sends all the client's messages and reads their answers, which are passed to nobody. Of many messages a part is answered before
    /// the next one is sent.
    async fn replay(&mut self, server: &mut Checkout, messages: &[u8]) -> Result<Reply, Fault> {
        let (mut all, mut at, mut waits) = (Reply::default(), 0, 0);
        while at < messages.len() {
            let fed = self.feed_judged(&messages[at..], server)?;
            // A message may have to wait for the answer to a question that comes first.
            waits = if fed == 0 { waits + 1 } else { 0 };
            if waits > WAITS_MAX || (fed == 0 && server.pipeline.is_empty()) {
                return Err(Fault::Client(Error::internal("a message that was held can't be sent")));
            }
            at += fed;
            if server.pipeline.is_within_unit() {
                // Its Sync is in the next part: nothing else would make the server answer.
                f::put_empty(&mut server.conn.out, f::FLUSH);
            }
            let mut reply = Reply::default();
            std::mem::swap(&mut server.own_names, &mut self.state.names);
            let finished = self.finish(server, &mut reply).await;
            std::mem::swap(&mut server.own_names, &mut self.state.names);
            finished?;
            self.are_described(&reply.described, server);
            if let Some(error) = &reply.error {
                server.shared.heard_error(b::ErrorFields::new(error).sqlstate());
            }
            all.error = all.error.or(reply.error);
            all.tags.append(&mut reply.tags);
            all.notices.append(&mut reply.notices);
        }
        self.state.shapes.described.clear();
        Ok(all)
    }

    /// What is asked about a statement before it is bound, because it is not known on this connection.
    fn are_described(&mut self, described: &[Described], server: &mut Checkout) {
        for Described { statement, tag, body } in described {
            match *tag {
                b::PARAMETER_DESCRIPTION => {
                    self.state.recv_params(*statement, Some(body), Answer::Skip);
                }
                _ => self.state.recv_shape(*statement, Some(body), Answer::Skip, &mut server.names),
            }
        }
    }

    /// What was held was judged when it came, by the rules of that time.
    fn feed_judged(&mut self, messages: &[u8], server: &mut Checkout) -> Result<usize, Fault> {
        let state = &mut self.state;
        let rules = std::mem::take(&mut state.rules);
        let unjudged = std::mem::take(&mut state.unjudged);
        let fed = super::relay::feed(messages, &mut Vec::new(), state, server);
        (state.rules, state.unjudged) = (rules, unjudged);
        fed
    }

    /// Reads all answers that are owed, and obeys orders meanwhile.
    pub(super) async fn finish(&mut self, server: &mut Checkout, reply: &mut Reply) -> Result<(), Fault> {
        let me = Arc::clone(&self.me);
        let finished = {
            let mut finish = std::pin::pin!(async {
                server.finish_into(reply).await?;
                // After an error nothing may be owed for what is still to be written.
                server.conn.flush().await.map_err(|error| Lost::behind(reply, error.to_string()))
            });
            loop {
                let finished = std::future::poll_fn(|cx| match finish.as_mut().poll(cx) {
                    Poll::Ready(finished) => Poll::Ready(Some(finished)),
                    Poll::Pending if me.is_signalled() => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                })
                .await;
                match finished {
                    Some(finished) => break finished,
                    None => self.obey(false)?,
                }
            }
        };
        finished.map_err(Fault::from)
    }
}

/// The block fails, or ends, though none of its statements failed: what the client is told.
async fn fail_block(server: &mut Checkout, ends: bool) -> Result<Vec<u8>, Fault> {
    let how = if ends { "ROLLBACK" } else { "ROLLBACK TO SAVEPOINT pgsluice_untrue" };
    let reply = server.simple(how).await?;
    if reply.error.is_some() == ends {
        return Err(Fault::ServerViolation("a block does not end".into()));
    }
    let mut message = Vec::new();
    Error::deferred_row().put(&mut message);
    Ok(message)
}

/// The message of this body.
pub(super) fn error_response(body: Vec<u8>) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    frame::put(&mut message, b::ERROR_RESPONSE, |out| out.extend_from_slice(&body));
    message
}

/// The tags of those statements that were answered.
fn tags_in(answers: &[u8]) -> impl Iterator<Item = &[u8]> {
    frames(answers)
        .filter(|(head, _)| head.tag == b::COMMAND_COMPLETE)
        .map(|(_, body)| body.strip_suffix(&[0]).unwrap_or(body))
}

/// Appends those of INSERTs.
fn put_inserts<'a>(tags: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    for tag in tags.filter(|tag| tag.starts_with(b"INSERT ")) {
        out.extend_from_slice(tag);
        out.push(0);
    }
}

/// Appends the answers to a COMMIT and what stands with it, with the tags that the server gave.
fn put_answers(answers: &[u8], tags: &[Vec<u8>], out: &mut Vec<u8>) {
    let mut tags = tags.iter();
    for (head, body) in frames(answers) {
        let said = if head.tag == b::COMMAND_COMPLETE { tags.next() } else { None };
        frame::put(out, head.tag, |out| match said {
            Some(tag) => frame::put_cstr(out, tag),
            None => out.extend_from_slice(body),
        });
    }
}

/// Whole messages.
fn frames(bytes: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (head, body) = frame::whole(rest, usize::MAX).ok().flatten()?;
        rest = &rest[head.total()..];
        Some((head, body))
    })
}

/// The answers that come before the error of a COMMIT: none if INSERTs are in one unit with it.
fn before_commit(answers: &[u8]) -> &[u8] {
    let (mut at, mut ends) = (0, Vec::new());
    while let Ok(Some((head, _))) = frame::whole(&answers[at..], usize::MAX) {
        if head.tag == b::COMMAND_COMPLETE {
            ends.push(at);
        }
        at += head.total();
    }
    match ends[..] {
        [end] => &answers[..end],
        _ => &[],
    }
}
