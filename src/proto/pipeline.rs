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

/// What becomes of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is the client's.
    Forward,
    /// The message was ours, inside a client's unit; its answer is dropped, but an error is the client's.
    Skip,
    /// The message was ours, in a unit of ours; everything about it is dropped, and an error means that the
    /// connection is not what we took it for.
    Own,
    /// The message never went to the server; we make the answer up when its turn comes.
    Fake,
    /// As Forward, but NoData is dropped and CommandComplete kept until the Sync was answered: a Query sent on as one
    /// extended unit (see [`super::fold`]).
    Fold,
    /// As Fold; RowDescription is kept until what follows it is no error.
    FoldLate,
    /// The server was made to fail here; the client gets the refusal kept beside the queue instead of the
    /// server's ErrorResponse.
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
    /// A unit of ours failed.
    OwnFailed,
}

/// A server answered what was not asked.
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
    /// The same, and the first of them is a Parse that failed: the server had taken it up.
    Failed(usize),
}

/// Messages of ours, whose answers show what a COPY that failed had read. Their Close is of a statement that nobody has.
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
    /// A copy-in opened, and what came behind it was not sent and is nothing that COPY takes.
    ended_by_fake: bool,
    /// A copy-in is open on the server; its end may have been sent.
    copying: bool,
    discarding: bool,
    /// Extended messages went by and no Sync yet: portals live until it.
    unsynced: bool,
    /// Among them was one that is more than a Parse, a Describe or a Close.
    bound: bool,
    /// A Sync of ours was sent behind such a unit.
    ends_prepared: bool,
    /// Recorded messages that were sent since the last Sync or Query.
    names_in_unit: usize,
    /// Entries pushed behind the last one that ends a unit, ends of COPY not counted.
    behind_unit: usize,
    /// Refusals struck before their turn came.
    refusals_struck: usize,
    /// Syncs that were sent to an open copy-in, or before it opened.
    swallowed: usize,
    /// ReadyForQuery that may come though none is owed: COPY failed, perhaps before it had read these Syncs.
    spare: usize,
    /// Data or the end of a COPY was sent that may swallow Syncs, and is not answered yet.
    behind_copy: bool,
    /// A [`Fence::Skipped`] was sent, and so many ReadyForQuery came since; it is at the front of the queue.
    fenced: Option<usize>,
    /// Something was answered to the Query or FunctionCall at the front.
    answered: bool,
    /// A Query or FunctionCall was sent behind extended messages, and no Sync since.
    whole_in_unit: bool,
    /// A Sync was sent behind one.
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

    /// Something is owed, and all of it to units of ours.
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

    /// A unit outside a block is open in which statements were prepared and described, and all of that is answered: its Sync would
    /// end nothing that anybody could miss.
    pub fn has_only_prepared(&self) -> bool {
        let idle = self.status == TransactionStatus::Idle && !self.still_started;
        self.unsynced && !self.bound && !self.whole_in_unit && idle && self.is_answered()
    }

    /// Outside a block, and nothing was run, nor has failed, whose Sync has not come: what was keeps its transaction open.
    pub fn has_nothing_open(&self) -> bool {
        self.is_quiet() || self.has_only_prepared()
    }

    /// The Sync of ours that was just pushed ends a unit in which statements were only prepared.
    pub fn end_prepared(&mut self) {
        self.ends_prepared = true;
    }

    /// That Sync is not answered yet.
    pub fn ends_prepared(&self) -> bool {
        self.ends_prepared
    }

    /// The status of the last ReadyForQuery; behind one that said Failed, what was run since has ended that.
    pub fn status(&self) -> TransactionStatus {
        self.status
    }

    /// What is sent now meets a failed block, or an earlier unit that is not answered yet may make it one.
    pub fn may_be_failed(&self) -> bool {
        self.status == TransactionStatus::Failed || self.owes_end_of_unit()
    }

    /// The block had failed, and what is not answered yet may have ended that.
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

    /// It reads them for a Query, whose ReadyForQuery comes without a Sync.
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

    /// The server says that it is idle, and its transaction is open: behind a Query inside a unit PostgreSQL 18 says that one is,
    /// ends it at the Sync only by name, and fails what comes next for it (XX000).
    pub fn is_still_started(&self) -> bool {
        self.still_started
    }

    /// A transaction is open, or still started, that no BEGIN opened: a Parse or a Sync of ours, or one left out, would tell.
    pub fn is_in_unit_of_query(&self) -> bool {
        self.still_started || (self.whole_in_unit && self.status == TransactionStatus::InTransaction)
    }

    /// Whether [`Pipeline::is_still_started`] will be true of what is sent now is not answered yet.
    pub fn may_become_still_started(&self) -> bool {
        self.synced_whole && !self.copy_in && self.owed.iter().any(|o| o.kind == Kind::Sync)
    }

    /// Everything that was asked is answered, in a block or not.
    pub fn is_at_rest(&self) -> bool {
        self.is_answered() && !self.unsynced
    }

    fn is_answered(&self) -> bool {
        self.owed.is_empty() && !self.copy_in && !self.discarding && self.spare == 0
    }

    /// Extended messages went by and no Sync yet, and not all of them were answered, nor does COPY read on.
    pub fn is_within_unit(&self) -> bool {
        self.unsynced && !self.copy_in && !self.owed.is_empty()
    }

    /// RowDescription, if it comes next, is kept.
    pub fn keeps_rows(&self) -> bool {
        self.owed.front().is_some_and(|o| o.action == Action::FoldLate)
    }

    /// Nothing is owed, but a ReadyForQuery too many may come: what is to be sent, with [`Pipeline::push_fence`], to know.
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

    /// What was sent for a COPY may swallow a Sync. If it fails, nobody knows what becomes of a message that is sent now.
    pub fn is_behind_copy(&self) -> bool {
        self.behind_copy && !self.copy_in && !self.owed.is_empty()
    }

    /// A COPY opened, and behind its Execute came what is no data and was never sent: PostgreSQL would have closed the connection.
    pub fn is_ended_by_fake(&self) -> bool {
        self.ended_by_fake
    }

    /// The same of a COPY that was not ended: it takes no other message, or it has failed already.
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

    /// The statement that the next answer is about, as it was pushed; 0: none.
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

    /// What came first behind a [`Fence::Skipped`], but for `readies` ReadyForQuery: one of them was ours. Were there others,
    /// the server had read on at a Sync of the client's, else it has read none.
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

    /// What the client sent between Execute (or Query) and CopyDone is read by COPY: a Sync there is swallowed, up to
    /// the first message that COPY does not take.
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

    /// `still_started`: see [`Pipeline::is_still_started`]. The server had taken nothing up then, not even a Parse.
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

    /// Refusals that were struck since the last call: they are not told any more.
    pub fn take_struck_refusals(&mut self) -> usize {
        std::mem::take(&mut self.refusals_struck)
    }

    /// The front answers belong to a unit of ours.
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
    /// A ReadyForQuery ends its answer.
    fn is_whole(self) -> bool {
        matches!(self, Self::Query | Self::FunctionCall)
    }

    /// Nothing behind it is skipped for an error before it.
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
mod tests {
    use super::*;

    fn sent(kinds: &[(Kind, Action)]) -> Pipeline {
        let mut p = Pipeline::default();
        for (kind, action) in kinds {
            assert!(!p.push(*kind, *action, *kind == Kind::Parse));
        }
        p
    }

    #[test]
    fn error_strikes_bind_and_execute_but_not_the_next_unit() {
        use Action::Forward as F;
        let mut p = sent(&[
            (Kind::Parse, F),
            (Kind::Bind, F),
            (Kind::Execute, F),
            (Kind::Sync, F),
            (Kind::Bind, F),
            (Kind::Sync, F),
        ]);
        assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::Failed(1))));
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert_eq!(p.recv(b::BIND_COMPLETE), Ok((Answer::Forward, Settled::No)));
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert!(p.is_quiet());
    }

    /// As PostgreSQL 18 answers a Query inside a unit, and the statement behind its Sync.
    #[test]
    fn a_transaction_that_a_sync_ends_by_name_only_is_no_rest() {
        use Action::Forward as F;
        use TransactionStatus::{Idle, InTransaction};
        for between in [None, Some((Kind::Close, b::CLOSE_COMPLETE)), Some((Kind::Parse, b::PARSE_COMPLETE))]
        {
            let mut p = sent(&[(Kind::Execute, F), (Kind::Query, F)]);
            p.recv(b::COMMAND_COMPLETE).unwrap();
            p.recv(b::COMMAND_COMPLETE).unwrap();
            p.recv_ready(InTransaction).unwrap();
            assert!(p.is_in_unit_of_query());
            if let Some((kind, tag)) = between {
                p.push(kind, F, false);
                p.recv(tag).unwrap();
            }
            p.push(Kind::Sync, F, false);
            p.recv_ready(Idle).unwrap();
            let still = !matches!(between, Some((Kind::Parse, _)));
            assert_eq!((p.is_still_started(), p.is_quiet()), (still, !still));
            p.push(Kind::Query, F, false);
            p.recv(b::ERROR_RESPONSE).unwrap();
            p.recv_ready(Idle).unwrap();
            assert!(p.is_quiet() && !p.is_in_unit_of_query());
        }
    }

    /// A block that COMMIT ends is over.
    #[test]
    fn a_block_that_is_ended_is_a_rest() {
        let mut p = Pipeline::default();
        for status in [TransactionStatus::InTransaction, TransactionStatus::Idle] {
            p.push(Kind::Query, Action::Forward, false);
            p.recv(b::COMMAND_COMPLETE).unwrap();
            p.recv_ready(status).unwrap();
        }
        assert!(p.is_quiet());
    }

    #[test]
    fn error_without_a_sync_discards_until_one_comes() {
        let mut p = sent(&[(Kind::Bind, Action::Forward)]);
        assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::Struck(0))));
        assert!(p.is_discarding() && !p.is_quiet());
        p.push(Kind::Sync, Action::Forward, false);
        assert!(!p.is_discarding());
    }

    #[test]
    fn sync_sent_before_copy_in_opens_is_swallowed() {
        use Action::Forward as F;
        let mut p = sent(&[(Kind::Bind, F), (Kind::Execute, F), (Kind::Sync, F)]);
        p.recv(b::BIND_COMPLETE).unwrap();
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        assert!(p.in_copy_in());
        p.push(Kind::Sync, F, false);
        p.push(Kind::CopyEnd, F, false);
        p.push(Kind::Sync, F, false);
        p.recv(b::COMMAND_COMPLETE).unwrap();
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert!(p.is_quiet(), "of three Syncs only the one behind CopyDone is answered");
    }

    #[test]
    fn pipelined_copy_keeps_the_sync_behind_copy_done() {
        use Action::Forward as F;
        let mut p = sent(&[(Kind::Bind, F), (Kind::Execute, F), (Kind::CopyEnd, F), (Kind::Sync, F)]);
        p.recv(b::BIND_COMPLETE).unwrap();
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        p.recv(b::COMMAND_COMPLETE).unwrap();
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert!(p.is_quiet());
    }

    #[test]
    fn a_unit_sent_while_a_pipelined_copy_still_runs_keeps_its_sync() {
        use Action::Forward as F;
        let mut p = sent(&[(Kind::Bind, F), (Kind::Execute, F), (Kind::CopyEnd, F), (Kind::Sync, F)]);
        p.recv(b::BIND_COMPLETE).unwrap();
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        assert!(!p.in_copy_in(), "its end was sent");
        for kind in [Kind::Bind, Kind::Execute, Kind::Sync] {
            p.push(kind, F, false);
        }
        p.recv(b::COMMAND_COMPLETE).unwrap();
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        p.recv(b::BIND_COMPLETE).unwrap();
        p.recv(b::COMMAND_COMPLETE).unwrap();
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert!(p.is_quiet());
    }

    #[test]
    fn each_copy_of_a_query_has_an_end_of_its_own() {
        let mut p = sent(&[(Kind::Query, Action::Forward)]);
        for _ in 0..2 {
            p.recv(b::COPY_IN_RESPONSE).unwrap();
            assert!(p.in_copy_in());
            p.push(Kind::CopyEnd, Action::Forward, false);
            assert!(!p.in_copy_in());
            p.recv(b::COMMAND_COMPLETE).unwrap();
        }
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert!(p.is_quiet());
        // Both sent ahead, and a unit behind them while the second one runs.
        let mut p = sent(&[Kind::Query, Kind::CopyEnd, Kind::CopyEnd].map(|kind| (kind, Action::Forward)));
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        p.recv(b::COMMAND_COMPLETE).unwrap();
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        assert!(!p.in_copy_in());
        p.push(Kind::Sync, Action::Forward, false);
        p.recv(b::COMMAND_COMPLETE).unwrap();
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert!(p.is_quiet());
    }

    #[test]
    fn copy_in_swallows_no_sync_behind_a_message_that_ends_it() {
        use Action::Forward as F;
        let mut p = sent(&[(Kind::Execute, F), (Kind::Sync, F), (Kind::Bind, F), (Kind::Sync, F)]);
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::Struck(0))));
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        assert!(p.fence() == Some(Fence::Read) && p.is_empty());
    }

    /// COPY failed: the Sync behind its Execute was read by it, or is answered yet.
    #[test]
    fn failed_copy_may_have_left_a_sync_unread() {
        use Action::Forward as F;
        for unread in [false, true] {
            let mut p = sent(&[(Kind::Bind, F), (Kind::Execute, F), (Kind::Sync, F), (Kind::CopyEnd, F)]);
            p.push(Kind::Sync, F, false);
            p.recv(b::BIND_COMPLETE).unwrap();
            p.recv(b::COPY_IN_RESPONSE).unwrap();
            p.recv(b::ERROR_RESPONSE).unwrap();
            assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
            assert!(p.fence() == Some(Fence::Read) && !p.is_quiet());
            p.push_fence(Fence::Read);
            if unread {
                assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
            }
            assert_eq!(p.recv(b::CLOSE_COMPLETE), Ok((Answer::Skip, Settled::No)));
            assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Skip));
            assert!(p.is_quiet() && p.recv_ready(TransactionStatus::Idle).is_err());
        }
    }

    /// The same without a Sync behind its end: what the client sends next is run, or skipped up to a Sync of its own.
    #[test]
    fn failed_copy_may_have_read_every_sync_that_was_sent() {
        use Action::Forward as F;
        for unread in 0..3 {
            let mut p = sent(&[(Kind::Execute, F)]);
            p.recv(b::COPY_IN_RESPONSE).unwrap();
            for kind in [Kind::Sync, Kind::Sync, Kind::CopyEnd] {
                p.push(kind, F, false);
            }
            assert!(p.is_behind_copy());
            p.recv(b::ERROR_RESPONSE).unwrap();
            assert_eq!(p.fence(), Some(Fence::Skipped));
            p.push_fence(Fence::Skipped);
            let answers: Vec<_> =
                (0..=unread).map(|_| p.recv_ready(TransactionStatus::Idle).unwrap()).collect();
            assert_eq!(answers.iter().filter(|a| **a == Answer::Forward).count(), unread);
            assert_eq!(p.recv(b::CLOSE_COMPLETE), Ok((Answer::Skip, Settled::No)));
            assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Skip));
            assert_eq!(p.is_discarding(), unread == 0);
            assert_eq!(p.is_quiet(), unread > 0);
        }
    }

    /// Ours and the Syncs that COPY had not read: one more before the Close is answered would be taken for the end of what follows.
    #[test]
    fn a_fence_is_answered_no_oftener_than_syncs_were_sent() {
        use Action::Forward as F;
        let mut p = sent(&[(Kind::Execute, F)]);
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        p.push(Kind::Sync, F, false);
        p.recv(b::ERROR_RESPONSE).unwrap();
        p.push_fence(Fence::Skipped);
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Skip));
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
        let owed = Some(Kind::Sync);
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Err(Violation { tag: b::READY_FOR_QUERY, owed }));
    }

    /// What waits for the end of a COPY does not wait for what comes after it.
    #[test]
    fn a_copy_that_was_answered_holds_nothing_back() {
        use Action::Forward as F;
        let mut p = sent(&[(Kind::Execute, F), (Kind::Sync, F)]);
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        p.push(Kind::CopyEnd, F, false);
        p.push(Kind::Sync, F, false);
        assert!(p.is_behind_copy());
        p.recv(b::COMMAND_COMPLETE).unwrap();
        p.recv_ready(TransactionStatus::Idle).unwrap();
        p.push(Kind::Parse, F, false);
        assert!(!p.is_behind_copy());
    }

    #[test]
    fn a_spare_ready_is_not_taken_for_the_end_of_the_next_query() {
        use Action::Forward as F;
        let mut p = sent(&[(Kind::Execute, F), (Kind::Sync, F), (Kind::CopyEnd, F), (Kind::Sync, F)]);
        p.push(Kind::Query, F, false);
        p.recv(b::COPY_IN_RESPONSE).unwrap();
        p.recv(b::ERROR_RESPONSE).unwrap();
        p.recv_ready(TransactionStatus::Idle).unwrap();
        p.recv_ready(TransactionStatus::Idle).unwrap();
        assert_eq!(p.len(), 1, "the Query is still owed its answer");
        p.recv(b::COMMAND_COMPLETE).unwrap();
        p.recv_ready(TransactionStatus::Idle).unwrap();
        assert!(p.is_quiet());
    }

    #[test]
    fn what_a_folded_query_says_too_early_is_kept() {
        let mut p = sent(&[(Kind::Describe, Action::FoldLate), (Kind::Execute, Action::Fold)]);
        p.push(Kind::Sync, Action::Forward, false);
        assert!(p.keeps_rows());
        assert_eq!(p.recv(b::ROW_DESCRIPTION), Ok((Answer::Keep, Settled::No)));
        assert_eq!(p.recv(b::DATA_ROW), Ok((Answer::Forward, Settled::No)));
        assert_eq!(p.recv(b::COMMAND_COMPLETE), Ok((Answer::Keep, Settled::No)));
        assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::No)));
        assert_eq!(p.recv_ready(TransactionStatus::Idle), Ok(Answer::Forward));
    }

    #[test]
    fn refusal_struck_by_an_earlier_error_is_counted() {
        let mut p = sent(&[
            (Kind::Bind, Action::Forward),
            (Kind::Parse, Action::Refuse),
            (Kind::Sync, Action::Forward),
            (Kind::Parse, Action::Refuse),
            (Kind::Sync, Action::Forward),
        ]);
        assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Forward, Settled::Struck(1))));
        assert_eq!(p.take_struck_refusals(), 1);
        p.recv_ready(TransactionStatus::Idle).unwrap();
        assert_eq!(p.recv(b::ERROR_RESPONSE), Ok((Answer::Refuse, Settled::Failed(1))));
        assert_eq!(p.take_struck_refusals(), 0);
    }

    #[test]
    fn made_up_answer_waits_for_its_turn() {
        let mut p = sent(&[(Kind::Bind, Action::Forward)]);
        assert!(!p.push(Kind::Parse, Action::Fake, true));
        assert_eq!(p.pop_fake(), None);
        p.recv(b::BIND_COMPLETE).unwrap();
        assert_eq!(p.pop_fake().map(|o| o.kind), Some(Kind::Parse));
        assert!(p.push(Kind::Parse, Action::Fake, true), "due at once when nothing is owed");
    }

    #[test]
    fn answer_without_a_question_is_a_violation() {
        let mut p = Pipeline::default();
        assert!(p.recv(b::COMMAND_COMPLETE).is_err());
        assert!(p.recv_ready(TransactionStatus::Idle).is_err());
        assert!(p.recv(b::ERROR_RESPONSE).is_err());
    }

    proptest::proptest! {
        /// Whatever is sent and answered, the short way round says what the queue says.
        #[test]
        fn an_end_that_is_owed_is_seen(steps in proptest::collection::vec((0usize..14, 0usize..4), 0..60)) {
            const KINDS: [Kind; 8] = [
                Kind::Parse, Kind::Bind, Kind::Describe, Kind::Execute, Kind::Close, Kind::Sync, Kind::Query, Kind::CopyEnd,
            ];
            const ACTIONS: [Action; 4] = [Action::Forward, Action::Fake, Action::Skip, Action::Own];
            const TAGS: [u8; 5] =
                [b::COMMAND_COMPLETE, b::ERROR_RESPONSE, b::COPY_IN_RESPONSE, b::PARSE_COMPLETE, b::BIND_COMPLETE];
            let mut p = Pipeline::default();
            for (what, action) in steps {
                match what.checked_sub(KINDS.len()) {
                    None => drop(p.push(KINDS[what], ACTIONS[action], false)),
                    Some(5) => drop(p.recv_ready(TransactionStatus::Idle)),
                    Some(tag) => drop(p.recv(TAGS[tag])),
                }
                p.pop_fake();
                proptest::prop_assert_eq!(p.owes_end_of_unit(), p.owed.iter().any(|o| o.kind.ends_unit()));
            }
        }
    }
}
