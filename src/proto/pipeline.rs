//! Answers still owed to one client by one server, in order.
//!
//! Owns: the queue. Every frontend message that is sent, swallowed or made up pushes one entry; every backend
//! message is matched with the entry at the front. Never: reads a socket, looks into a DataRow.
//! See "Extended Query" and "Pipelining" in the message-flow section of the protocol chapter.
//!
//! ```text
//! client sends     pushed                      answered by
//! Parse            Parse                       1
//! Bind             Bind                        2
//! Describe         Describe                    (t) T | n
//! Execute          Execute                     D* (C | I | s), or COPY's messages and C
//! Close            Close                       3
//! Sync             Sync                        Z
//! Query            Query                       anything, then Z
//! FunctionCall     FunctionCall                V, Z
//! CopyDone/Fail    CopyEnd                     nothing: it marks where copy-in ends
//! ```
//!
//! An ErrorResponse to an extended message strikes everything up to the next Sync: the server skips it.
//! A Sync that the server reads while copy-in is open is swallowed there, so it is struck here too. When COPY fails,
//! nobody knows whether the server had read that Sync: then one ReadyForQuery more may come, until an answer to
//! something behind it does (`spare`; see [`Pipeline::fence`]). Nor does anybody know then whether what was sent behind
//! that Sync is run or skipped: so nothing is sent behind the end of such a COPY before it was answered
//! ([`Pipeline::is_behind_copy`]).

use std::collections::VecDeque;

use crate::wire::TransactionStatus;
use crate::wire::backend as b;

/// What was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Parse
    Parse,
    /// Bind
    Bind,
    /// Describe
    Describe,
    /// Execute
    Execute,
    /// Close
    Close,
    /// Sync
    Sync,
    /// Query
    Query,
    /// FunctionCall
    FunctionCall,
    /// CopyDone or CopyFail
    CopyEnd,
}

/// What happens to the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is the client's.
    Forward,
    /// The message was pgsluice's, inside a client's unit; its answer is dropped, but an error goes to the client.
    Skip,
    /// The message was pgsluice's, in a unit of its own; its answer is dropped, and an error means that the connection's state is not
    /// what it was taken for.
    Own,
    /// The message never went to the server; pgsluice makes the answer up when its turn comes.
    Fake,
    /// As Forward, but NoData is dropped and CommandComplete kept until the Sync was answered: a Query sent on as one
    /// extended unit (see [`super::fold`]).
    Fold,
    /// As Fold; RowDescription is kept until a message other than an ErrorResponse follows.
    FoldLate,
    /// pgsluice sent the server something that fails; the client gets the refusal kept beside the queue instead of
    /// the server's ErrorResponse.
    Refuse,
}

/// One owed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owed {
    /// What was sent.
    pub kind: Kind,
    /// What becomes of the answer.
    pub action: Action,
    /// The message is recorded in the undo list of prepared names (see [`crate::proto::prepared`]).
    pub names: bool,
    /// The low half of the id of the named statement that was bound or described; 0: none.
    pub statement: u32,
}

/// What the relay does with one backend message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Copy it to the client.
    Forward,
    /// Copy it to the client, unless an ErrorResponse comes first; notices overtake it.
    Keep,
    /// Drop it.
    Skip,
    /// Put the kept refusal in its place.
    Refuse,
    /// A unit of pgsluice's own failed.
    OwnFailed,
}

/// A server sent an answer that is not owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// The message's type byte.
    pub tag: u8,
    /// What was owed, if anything.
    pub owed: Option<Kind>,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tag = self.tag.escape_ascii();
        match self.owed {
            Some(owed) => write!(f, "unexpected message \"{tag}\" in the answer to {owed:?}"),
            None => write!(f, "unexpected message \"{tag}\": nothing was asked"),
        }
    }
}

/// What else happened besides the answer: the relay settles prepared names with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Nothing.
    No,
    /// The recorded Parse or Close at the front took effect.
    Done,
    /// This many recorded messages at the front were struck and must be undone.
    Struck(usize),
    /// As `Struck`, and the first of them is a Parse that failed at the server.
    Failed(usize),
}

/// Messages that pgsluice sends to find out what a failed COPY had read. Their Close names a statement that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Close and Sync: the ReadyForQuery before CloseComplete are the client's.
    Read,
    /// Sync, Close and Sync, where the server may skip everything up to a Sync that the client has not sent yet: all
    /// ReadyForQuery before CloseComplete but one are the client's.
    Skipped,
}

/// The queue.
#[derive(Debug, Default)]
pub struct Pipeline {
    owed: VecDeque<Owed>,
    copy_in: bool,
    /// A copy-in opened, and the next message was not sent to the server and is not one that COPY takes.
    ended_by_fake: bool,
    /// A copy-in is open on the server; its end may have been sent.
    copying: bool,
    discarding: bool,
    /// Extended messages went by and no Sync yet: portals live until it.
    unsynced: bool,
    /// One of these messages was other than a Parse, a Describe or a Close.
    bound: bool,
    /// pgsluice's own Sync was sent after a unit that only prepares (see [`Pipeline::has_only_prepared`]).
    ends_prepared: bool,
    /// Recorded messages that were sent since the last Sync or Query.
    names_in_unit: usize,
    /// Entries pushed after the last one that ends a unit, without ends of COPY.
    behind_unit: usize,
    /// Refusals struck before their turn came.
    refusals_struck: usize,
    /// Syncs that were sent to an open copy-in, or before it opened.
    swallowed: usize,
    /// Number of ReadyForQuery that may come although none is owed: a COPY failed, perhaps before it had read as many Syncs.
    spare: usize,
    /// CopyData, CopyDone or CopyFail was sent to a COPY that may swallow Syncs, and is not answered yet.
    behind_copy: bool,
    /// The number of ReadyForQuery since a [`Fence::Skipped`], which is at the front of the queue, was sent.
    fenced: Option<usize>,
    /// Something was answered to the Query or FunctionCall at the front.
    answered: bool,
    /// A Query or FunctionCall was sent after extended messages, and no Sync since.
    whole_in_unit: bool,
    /// A Sync was sent after such a Query or FunctionCall.
    synced_whole: bool,
    /// No statement was run, nor any message that begins one, since the last ReadyForQuery.
    at_ready: bool,
    /// See [`Pipeline::is_still_started`].
    still_started: bool,
    status: TransactionStatus,
}

impl Pipeline {
    /// Answers owed.
    pub fn len(&self) -> usize {
        self.owed.len()
    }

    /// Nothing is owed.
    pub fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// Are answers owed, and all of them to units of pgsluice's own?
    pub fn owes_ours_only(&self) -> bool {
        !self.owed.is_empty() && self.owed.iter().all(|o| o.action == Action::Own)
    }

    /// Recorded messages that were sent since the last Sync or Query, answered or not: an error in an earlier unit strikes none
    /// of them.
    pub fn names_in_unit(&self) -> usize {
        self.names_in_unit
    }

    /// Extended messages went by and no Sync yet: the ReadyForQuery behind them is not on its way.
    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Is a unit outside a block open in which statements were only prepared and described, all answered? Its Sync would end nothing that
    /// the client could notice.
    pub fn has_only_prepared(&self) -> bool {
        let idle = self.status == TransactionStatus::Idle && !self.still_started;
        self.unsynced && !self.bound && !self.whole_in_unit && idle && self.is_answered()
    }

    /// Outside a block, with no statement since the last Sync that ran or failed, which would keep its transaction open.
    pub fn has_nothing_open(&self) -> bool {
        self.is_quiet() || self.has_only_prepared()
    }

    /// Notes that pgsluice's own Sync, just pushed, ends a unit in which statements were only prepared.
    pub fn end_prepared(&mut self) {
        self.ends_prepared = true;
    }

    /// That Sync is not answered yet.
    pub fn ends_prepared(&self) -> bool {
        self.ends_prepared
    }

    /// The status of the last ReadyForQuery; after one that said Failed, whether a statement has ended the failed block since.
    pub fn status(&self) -> TransactionStatus {
        self.status
    }

    /// Does a message sent now meet a failed block, or may an unanswered earlier unit make it one?
    pub fn may_be_failed(&self) -> bool {
        self.status == TransactionStatus::Failed || self.owes_end_of_unit()
    }

    /// Had the block failed, and may an unanswered message have ended it?
    pub fn may_have_left_failed(&self) -> bool {
        self.status == TransactionStatus::Failed
            && !self.copy_in
            && self.owed.iter().any(|o| o.kind == Kind::Execute || o.kind.is_whole())
    }

    /// A Query or a Sync is not answered yet.
    pub fn owes_end_of_unit(&self) -> bool {
        // A unit may have many thousand messages: where there are no more entries than were pushed behind the last end, there is none.
        self.owed.len() > self.behind_unit && self.owed.iter().rev().any(|o| o.kind.ends_unit())
    }

    /// The server is reading CopyData and no CopyDone or CopyFail was sent yet.
    pub fn in_copy_in(&self) -> bool {
        self.copy_in
    }

    /// As [`Pipeline::in_copy_in`], for the COPY of a Query, whose ReadyForQuery comes without a Sync.
    pub fn in_copy_of_query(&self) -> bool {
        let front = self.owed.iter().find(|o| o.kind != Kind::CopyEnd);
        self.copy_in && front.is_some_and(|o| o.kind == Kind::Query)
    }

    /// An error was answered and no Sync came since: what the client sends is to be dropped.
    pub fn is_discarding(&self) -> bool {
        self.discarding
    }

    /// The server may be released: nothing owed, no block open, no message half discarded.
    pub fn is_quiet(&self) -> bool {
        self.is_at_rest() && self.status == TransactionStatus::Idle && !self.still_started
    }

    /// The server says that it is idle although its transaction is open: after a Query inside an extended unit PostgreSQL 18 reports a
    /// block, ends it at the Sync in name only, and fails the next statement because of it (XX000).
    pub fn is_still_started(&self) -> bool {
        self.still_started
    }

    /// Is a transaction open, or still started, that no BEGIN opened? A Parse or Sync added or left out by pgsluice would then be noticed.
    pub fn is_in_unit_of_query(&self) -> bool {
        self.still_started || (self.whole_in_unit && self.status == TransactionStatus::InTransaction)
    }

    /// May an unanswered message make [`Pipeline::is_still_started`] true?
    pub fn may_become_still_started(&self) -> bool {
        self.synced_whole && !self.copy_in && self.owed.iter().any(|o| o.kind == Kind::Sync)
    }

    /// Is everything answered, in a block or not?
    pub fn is_at_rest(&self) -> bool {
        self.is_answered() && !self.unsynced
    }

    fn is_answered(&self) -> bool {
        self.owed.is_empty() && !self.copy_in && !self.discarding && self.spare == 0
    }

    /// Is an extended unit without its Sync partly unanswered, with no COPY reading?
    pub fn is_within_unit(&self) -> bool {
        self.unsynced && !self.copy_in && !self.owed.is_empty()
    }

    /// RowDescription, if it comes next, is kept.
    pub fn keeps_rows(&self) -> bool {
        self.owed.front().is_some_and(|o| o.action == Action::FoldLate)
    }

    /// If nothing is owed but a spare ReadyForQuery may come: the messages to send, with [`Pipeline::push_fence`], to find out.
    pub fn fence(&self) -> Option<Fence> {
        let doubted = self.spare > 0 && self.owed.is_empty();
        doubted.then_some(if self.discarding { Fence::Skipped } else { Fence::Read })
    }

    /// The messages of `fence` were sent.
    pub fn push_fence(&mut self, fence: Fence) {
        if fence == Fence::Skipped {
            self.fenced = Some(0);
            self.push(Kind::Sync, Action::Skip, false);
        }
        self.push(Kind::Close, Action::Skip, false);
        self.push(Kind::Sync, Action::Skip, false);
    }

    /// Hot path. CopyData was sent; whether a COPY reads it may not be known yet.
    pub fn push_data(&mut self) {
        self.behind_copy |= !self.copy_in && !self.owed.is_empty();
    }

    /// May the messages sent for a COPY swallow a Sync? If the COPY fails, it is unknown whether the server runs a message that is sent now.
    pub fn is_behind_copy(&self) -> bool {
        self.behind_copy && !self.copy_in && !self.owed.is_empty()
    }

    /// Did a COPY open after whose Execute the client sent a message other than COPY's, which pgsluice answered itself? PostgreSQL would
    /// have closed the connection.
    pub fn is_ended_by_fake(&self) -> bool {
        self.ended_by_fake
    }

    /// Is a COPY open, to which Syncs were sent and whose end was not? It takes no other message, or has failed already.
    pub fn is_in_copy_with_syncs(&self) -> bool {
        self.copy_in && self.swallowed > 0
    }

    /// Hot path. A message was sent (or swallowed, for `Fake`). Returns true when its made-up answer is due now.
    pub fn push(&mut self, kind: Kind, action: Action, names: bool) -> bool {
        self.push_owed(Owed { kind, action, names, statement: 0 })
    }

    /// As [`Pipeline::push`], for a Bind or Describe of the statement `id`.
    pub fn push_about(&mut self, kind: Kind, action: Action, id: u64) {
        self.push_owed(Owed { kind, action, names: false, statement: id as u32 });
    }

    /// The id of the statement that the next answer is about, as it was pushed; 0: none.
    pub fn front_statement(&self) -> u32 {
        self.owed.iter().find(|o| o.kind != Kind::CopyEnd).map_or(0, |o| o.statement)
    }

    fn push_owed(&mut self, owed: Owed) -> bool {
        let Owed { kind, action, names, .. } = owed;
        self.names_in_unit += usize::from(names);
        // What COPY does not take ends it; or it has failed already.
        self.copy_in &= kind == Kind::Sync;
        self.behind_copy &= !self.owed.is_empty();
        self.synced_whole &= !self.owed.is_empty();
        match kind {
            Kind::Sync if self.copy_in => {
                self.swallowed += 1;
                return false;
            }
            Kind::Sync => {
                (self.discarding, self.unsynced, self.names_in_unit) = (false, false, 0);
                self.bound = false;
                self.synced_whole |= std::mem::take(&mut self.whole_in_unit);
            }
            Kind::Query | Kind::FunctionCall => {
                self.whole_in_unit |= self.unsynced;
                (self.unsynced, self.names_in_unit) = (false, 0);
            }
            Kind::Parse | Kind::Describe | Kind::Close => self.unsynced = true,
            Kind::Bind | Kind::Execute => (self.unsynced, self.bound) = (true, true),
            Kind::CopyEnd => {
                if self.owed.is_empty() {
                    return false;
                }
                self.behind_copy = self.swallowed > 0 || self.owed.iter().any(|o| o.kind == Kind::Sync);
            }
        }
        if action == Action::Fake && self.owed.is_empty() {
            return true;
        }
        self.behind_unit = match kind {
            Kind::CopyEnd => self.behind_unit,
            kind if kind.ends_unit() => 0,
            _ => self.behind_unit + 1,
        };
        self.owed.push_back(owed);
        false
    }

    /// After an answer: the next made-up answer that is due, removed from the queue.
    pub fn pop_fake(&mut self) -> Option<Owed> {
        while let Some(front) = self.owed.front() {
            if front.kind == Kind::CopyEnd {
                self.owed.pop_front();
            } else if front.action == Action::Fake {
                return self.owed.pop_front();
            } else {
                break;
            }
        }
        None
    }

    fn pop(&mut self, tag: u8, kind: Kind) -> Result<Owed, Violation> {
        while self.owed.front().is_some_and(|o| o.kind == Kind::CopyEnd) {
            self.owed.pop_front();
        }
        match self.owed.front().copied() {
            Some(front) if front.kind == kind => {
                self.owed.pop_front();
                Ok(front)
            }
            front => Err(Violation { tag, owed: front.map(|o| o.kind) }),
        }
    }

    /// Hot path. A backend message of type `tag` arrived (not ReadyForQuery, not an asynchronous one).
    ///
    /// Errors: a message that nothing owed here has; the connection is to be closed.
    pub fn recv(&mut self, tag: u8) -> Result<(Answer, Settled), Violation> {
        // An error there is the server's last word.
        if tag != b::ERROR_RESPONSE
            && let Some(readies) = self.fenced.take()
        {
            self.recv_behind_fence(tag, readies)?;
        }
        (self.answered, self.spare) = (true, 0);
        let still_started = self.still_started;
        // A Close begins no transaction, and ends none.
        if tag != b::CLOSE_COMPLETE {
            (self.at_ready, self.still_started) = (false, false);
        }
        let front = match tag {
            b::DATA_ROW | b::COPY_DATA => {
                return Ok((self.front_answer(tag)?, Settled::No));
            }
            b::PARSE_COMPLETE => self.pop(tag, Kind::Parse)?,
            b::BIND_COMPLETE => self.pop(tag, Kind::Bind)?,
            b::CLOSE_COMPLETE => self.pop(tag, Kind::Close)?,
            b::PARAMETER_DESCRIPTION => return Ok((self.front_answer(tag)?, Settled::No)),
            b::ROW_DESCRIPTION | b::NO_DATA => return self.recv_description(tag),
            b::COMMAND_COMPLETE | b::EMPTY_QUERY_RESPONSE | b::PORTAL_SUSPENDED => {
                return self.recv_end_of_rows(tag);
            }
            b::COPY_IN_RESPONSE => {
                let answer = self.front_answer(tag)?;
                self.enter_copy_in();
                return Ok((answer, Settled::No));
            }
            b::COPY_OUT_RESPONSE | b::COPY_BOTH_RESPONSE | b::COPY_DONE | b::FUNCTION_CALL_RESPONSE => {
                return Ok((self.front_answer(tag)?, Settled::No));
            }
            b::ERROR_RESPONSE => return self.recv_error(still_started),
            _ => return Err(Violation { tag, owed: self.owed.front().map(|o| o.kind) }),
        };
        let settled = if front.names { Settled::Done } else { Settled::No };
        Ok((answer_of(front.action), settled))
    }

    /// The first other message after a [`Fence::Skipped`], when `readies` ReadyForQuery have come: one of them is for pgsluice's Sync. If
    /// there were more, the server had resumed at a Sync of the client; otherwise it has read none.
    fn recv_behind_fence(&mut self, tag: u8, readies: usize) -> Result<(), Violation> {
        if tag != b::CLOSE_COMPLETE || readies == 0 {
            return Err(Violation { tag, owed: Some(Kind::Sync) });
        }
        self.owed.pop_front();
        self.discarding = readies == 1;
        Ok(())
    }

    fn front_answer(&self, tag: u8) -> Result<Answer, Violation> {
        match self.owed.iter().find(|o| o.kind != Kind::CopyEnd) {
            Some(front)
                if matches!(
                    front.kind,
                    Kind::Execute | Kind::Query | Kind::FunctionCall | Kind::Describe
                ) =>
            {
                Ok(answer_of(front.action))
            }
            front => Err(Violation { tag, owed: front.map(|o| o.kind) }),
        }
    }

    fn recv_description(&mut self, tag: u8) -> Result<(Answer, Settled), Violation> {
        match self.owed.front() {
            Some(front) if front.kind == Kind::Describe => {
                let action = front.action;
                self.owed.pop_front();
                let answer = match action {
                    Action::Fold | Action::FoldLate if tag == b::NO_DATA => Answer::Skip,
                    Action::FoldLate => Answer::Keep,
                    action => answer_of(action),
                };
                Ok((answer, Settled::No))
            }
            _ => Ok((self.front_answer(tag)?, Settled::No)),
        }
    }

    fn recv_end_of_rows(&mut self, tag: u8) -> Result<(Answer, Settled), Violation> {
        (self.copy_in, self.swallowed) = (false, 0);
        // Nothing is run in a failed block but what ends that.
        if tag == b::COMMAND_COMPLETE && self.status == TransactionStatus::Failed {
            self.status = TransactionStatus::InTransaction;
        }
        // The end of this COPY is not that of the next one of the same Query.
        if std::mem::take(&mut self.copying) && self.owed.get(1).is_some_and(|o| o.kind == Kind::CopyEnd) {
            self.owed.remove(1);
        }
        match self.owed.front() {
            Some(front) if front.kind == Kind::Execute => {
                let action = front.action;
                self.owed.pop_front();
                let kept = action == Action::Fold && tag == b::COMMAND_COMPLETE;
                Ok((if kept { Answer::Keep } else { answer_of(action) }, Settled::No))
            }
            _ => Ok((self.front_answer(tag)?, Settled::No)),
        }
    }

    /// COPY reads the messages that the client sent between Execute (or Query) and CopyDone: it swallows Syncs, up to the
    /// first message that it does not take.
    fn enter_copy_in(&mut self) {
        self.copying = true;
        while self.owed.get(1).is_some_and(|o| o.kind == Kind::Sync) {
            self.owed.remove(1);
            self.swallowed += 1;
        }
        // The unit goes on, then.
        self.unsynced |= self.swallowed > 0 && !self.owed.iter().any(|o| o.kind.ends_unit());
        self.ended_by_fake = self.owed.get(1).is_some_and(|o| o.action == Action::Fake);
        // What was sent ahead ends it, whether it is a CopyDone or not: a Sync from here on is none that COPY reads.
        self.copy_in = self.owed.len() == 1;
    }

    /// `still_started`: see [`Pipeline::is_still_started`]. The server has then processed nothing, not even a Parse.
    fn recv_error(&mut self, still_started: bool) -> Result<(Answer, Settled), Violation> {
        (self.copy_in, self.copying) = (false, false);
        self.spare = std::mem::take(&mut self.swallowed);
        while self.owed.front().is_some_and(|o| o.kind == Kind::CopyEnd) {
            self.owed.pop_front();
        }
        let Some(front) = self.owed.front().copied() else {
            return Err(Violation { tag: b::ERROR_RESPONSE, owed: None });
        };
        match front.kind {
            Kind::Query | Kind::FunctionCall | Kind::Sync => Ok((error_answer_of(front.action), Settled::No)),
            _ => {
                // The front one's refusal is told now.
                let told = usize::from(front.action == Action::Refuse);
                let struck = self.strike_until_sync();
                self.refusals_struck -= told;
                let failed = front.kind == Kind::Parse && front.names && !still_started;
                let settled = if failed { Settled::Failed(struck) } else { Settled::Struck(struck) };
                Ok((error_answer_of(front.action), settled))
            }
        }
    }

    /// Number of refusals struck since the last call: the client does not get them any more.
    pub fn take_struck_refusals(&mut self) -> usize {
        std::mem::take(&mut self.refusals_struck)
    }

    /// Do the answers at the front belong to a unit of pgsluice's own?
    pub fn front_is_own(&self) -> bool {
        self.owed.front().is_some_and(|o| o.action == Action::Own)
    }

    /// The server skips everything up to the next Sync. Returns how many recorded names were struck.
    fn strike_until_sync(&mut self) -> usize {
        let mut names = 0;
        while let Some(front) = self.owed.front() {
            if front.kind == Kind::Sync {
                return names;
            }
            names += usize::from(front.names);
            self.refusals_struck += usize::from(front.action == Action::Refuse);
            self.owed.pop_front();
        }
        self.discarding = true;
        names
    }

    /// Hot path. ReadyForQuery arrived.
    ///
    /// Errors: no ReadyForQuery is owed, or not yet; the connection is to be closed.
    pub fn recv_ready(&mut self, status: TransactionStatus) -> Result<Answer, Violation> {
        while self.owed.front().is_some_and(|o| o.kind == Kind::CopyEnd) {
            self.owed.pop_front();
        }
        self.ends_prepared = false;
        let answered = std::mem::replace(&mut self.answered, false);
        let ended = self.status == TransactionStatus::InTransaction && status == TransactionStatus::Idle;
        self.still_started |= ended && self.at_ready;
        self.at_ready = true;
        if let Some(readies) = self.fenced {
            if readies > self.spare {
                let owed = self.owed.front().map(|o| o.kind);
                return Err(Violation { tag: b::READY_FOR_QUERY, owed });
            }
            (self.fenced, self.status) = (Some(readies + 1), status);
            // One is as good as the other: the first is taken for ours.
            return Ok(if readies == 0 { Answer::Skip } else { Answer::Forward });
        }
        match self.owed.front() {
            Some(front)
                if front.kind == Kind::Sync || (front.kind.is_whole() && (answered || self.spare == 0)) =>
            {
                let action = front.action;
                self.owed.pop_front();
                self.status = status;
                self.copy_in = false;
                Ok(if matches!(action, Action::Own | Action::Skip) { Answer::Skip } else { Answer::Forward })
            }
            _ if self.spare > 0 => {
                // COPY had failed before it read this Sync; what the client sends next is read again.
                self.spare -= 1;
                self.discarding = false;
                self.unsynced &= !self.owed.is_empty();
                self.status = status;
                Ok(Answer::Forward)
            }
            front => Err(Violation { tag: b::READY_FOR_QUERY, owed: front.map(|o| o.kind) }),
        }
    }
}

impl Kind {
    /// Does a ReadyForQuery end its answer?
    fn is_whole(self) -> bool {
        matches!(self, Self::Query | Self::FunctionCall)
    }

    /// Does it end a unit, so that messages after it are not skipped because of an error before it?
    fn ends_unit(self) -> bool {
        self == Self::Sync || self.is_whole()
    }
}

fn answer_of(action: Action) -> Answer {
    match action {
        Action::Forward | Action::Fold | Action::FoldLate => Answer::Forward,
        Action::Skip | Action::Own | Action::Fake => Answer::Skip,
        Action::Refuse => Answer::Refuse,
    }
}

fn error_answer_of(action: Action) -> Answer {
    match action {
        Action::Forward | Action::Fold | Action::FoldLate | Action::Skip => Answer::Forward,
        Action::Own | Action::Fake => Answer::OwnFailed,
        Action::Refuse => Answer::Refuse,
    }
}

#[cfg(test)]
mod tests;
