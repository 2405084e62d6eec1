//! SQL that names a statement prepared by a Parse message (`EXECUTE name`, also in EXPLAIN and CREATE TABLE AS). The server has the
//! statement under another name, so it is prepared under the client's own name, too, until everything is answered: it is *lent*.
//!
//! Owns: the names lent to the present server connection. The text goes as it was sent.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::prepared::put_deallocable;
use super::{Fault, State, Taken};
use crate::limits::LENT_BYTES_MAX;
use crate::proto::pipeline::{Action, Kind, Pipeline};
use crate::proto::prepared::{SERVER_NAME_PREFIX, Statement, told_apart};
use crate::server::ServerConn;
use crate::sql::effects::{Effects, NameMove, deallocated_name, name_moves, statement_names};
use crate::sql::moves::makes_for_all;
use crate::wire::{TransactionStatus, frontend as f};

/// Such a text says so.
const SPEAKS_OF_NAMES: Effects = Effects::EXECUTE.union(MOVES);

/// It does something to a name.
const MOVES: Effects = Effects::PREPARE.union(Effects::DEALLOCATE);

/// Names that a server connection has been lent.
#[derive(Debug, Default)]
pub(super) struct Lent {
    names: HashSet<Box<[u8]>>,
    query: Option<Waiting>,
    /// What the Query that is owed its answer does to names, one for each of its tags that says so.
    moves: VecDeque<Option<NameMove>>,
    /// Portals whose Execute deallocates what the protocol prepared, and its name.
    deallocating: Vec<Deallocating>,
}

/// A portal, and what its Execute deallocates.
#[derive(Debug)]
struct Deallocating {
    portal: Box<[u8]>,
    gone: Box<[u8]>,
}

/// Portals of one transaction that deallocate something. The name of one more stays.
const DEALLOCATING_MAX: usize = 64;

/// What a text speaks of may speak of others, and so on: behind so many names no more are looked for.
const NESTED_MAX: usize = 64;

/// Names that were met, and the statements to lend.
#[derive(Default)]
struct Found {
    seen: HashSet<Box<[u8]>>,
    statements: Vec<(Box<[u8]>, Arc<Statement>)>,
    /// Of texts that were looked through.
    bytes: usize,
}

/// A Query that waits for the names it speaks of: one that cannot be prepared fails it, and behind an error it would be
/// skipped up to a Sync that the client does not send.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// What it may do.
    found: Effects,
    /// It goes as one extended unit.
    fold: bool,
    /// They are on their way.
    asked: bool,
}

impl State {
    /// Hot path. This one's text is looked through for what a message of some bytes asks, unless nothing in it matters.
    pub(super) fn note_work(&mut self, statement: &Statement) {
        if !statement.effects.is_empty() || !statement.is_read_plainly {
            self.worked = self.worked.saturating_add(statement.query.len());
        }
    }

    /// Prepares what `text` speaks of, under the client's names, as part of the unit. False: it speaks of nothing that the
    /// protocol prepared.
    pub(super) fn lend(&mut self, text: &[u8], found: Effects, server: &mut ServerConn) -> bool {
        let is_run = found.intersects(Effects::EXECUTE);
        let failed = server.pipeline.status() == TransactionStatus::Failed;
        if !self.speaks_of_names(found) || (is_run && failed) {
            return false;
        }
        // Whoever deallocates one alone is given another to deallocate.
        if !found.intersects(SPEAKS_OF_NAMES.difference(Effects::DEALLOCATE))
            && deallocated_name(text).is_some()
        {
            return false;
        }
        let (before, mut room) = (server.pipeline.len(), LENT_BYTES_MAX);
        for (name, statement) in self.spoken_of(text, is_run) {
            if self.is_doubted(&name) || (is_run && !self.may_lend(&statement)) {
                continue;
            }
            // Only the name matters to PREPARE and DEALLOCATE: nothing can fail for the text of the statement.
            let (query, types) =
                if is_run { (&*statement.query, &*statement.types) } else { (&[][..], &[][..]) };
            // All of them go at once, and any number of names may mean the same long text.
            let Some(left) = room.checked_sub(query.len() + types.len()) else { continue };
            room = left;
            // Lent before in this unit, or in one that has failed.
            f::put_target(&mut server.conn.out, f::CLOSE, b'S', &name);
            f::put_parse(&mut server.conn.out, &name, query, types);
            self.counts.server_parses += 1;
            server.pipeline.push(Kind::Close, Action::Skip, false);
            server.pipeline.push(Kind::Parse, Action::Skip, false);
            self.lent.names.insert(told_apart(&name).into());
        }
        server.pipeline.len() > before
    }

    /// The client's own statements that `text` speaks of. Where it runs them, each behind those that its own text speaks of: what
    /// PostgreSQL tells of an EXECUTE when it is parsed is that of the statement it names.
    fn spoken_of(&mut self, text: &[u8], is_run: bool) -> Vec<(Box<[u8]>, Arc<Statement>)> {
        let mut found = Found::default();
        self.find_spoken_of(text, is_run, &mut found);
        self.worked = self.worked.saturating_add(found.bytes);
        found.statements
    }

    fn find_spoken_of(&self, text: &[u8], is_run: bool, found: &mut Found) {
        for name in statement_names(text, self.std_strings()) {
            let Some(statement) = self.names.lookup(&name).filter(|_| is_the_clients_own(&name)) else {
                continue;
            };
            if !found.seen.insert(told_apart(&name).into()) {
                continue;
            }
            let runs = is_run && statement.effects.intersects(Effects::EXECUTE);
            let bytes = found.bytes.saturating_add(statement.query.len());
            if runs && found.seen.len() < NESTED_MAX && bytes <= LENT_BYTES_MAX {
                found.bytes = bytes;
                self.find_spoken_of(&statement.query, true, found);
            }
            found.statements.push((name.into(), Arc::clone(statement)));
        }
    }

    /// A text that rules judged is not given to a server that may read it otherwise now.
    fn may_lend(&self, statement: &Statement) -> bool {
        let is_known = || !self.is_reading_in_doubt() && self.passes(&statement.query);
        statement.is_read_plainly || !self.rules.reads_texts() || is_known()
    }

    /// What a text speaks of may be lent when it is known what that is, that SQL does not have it there, and, for what is run, that
    /// the block has not failed.
    pub(super) fn waits_to_lend(&mut self, text: &[u8], found: Effects, server: &mut ServerConn) -> bool {
        let is_owed = !server.pipeline.is_empty() && !server.pipeline.in_copy_in();
        if !is_owed || !self.speaks_of_names(found) {
            return false;
        }
        let in_unit = server.pipeline.names_in_unit();
        let is_run = found.intersects(Effects::EXECUTE);
        let may_fail = is_run && server.pipeline.owes_end_of_unit();
        let spoken = self.spoken_of(text, is_run);
        let doubted = |(name, _): &(Box<[u8]>, Arc<Statement>)| {
            may_fail || self.is_doubted(name) || self.names.is_in_doubt(name, in_unit)
        };
        if !spoken.iter().any(doubted) {
            return false;
        }
        self.await_answers(server);
        true
    }

    /// SQL has it there, perhaps: it is not taken away for a Parse that may fail for that.
    fn is_doubted(&self, name: &[u8]) -> bool {
        self.may_be_sqls(name) && self.names.is_unconfirmed(name)
    }

    fn speaks_of_names(&self, found: Effects) -> bool {
        found.intersects(SPEAKS_OF_NAMES) && self.tracks_names() && !self.names.is_empty()
    }

    /// What a Query that is sent now does to names is known by its tags, so what follows waits for them.
    pub(super) fn expect_moves(&mut self, text: &[u8], found: Effects) {
        if found.intersects(MOVES) && self.speaks_of_names(found) {
            self.lent.moves = name_moves(text, self.std_strings()).into();
            self.awaiting |= !self.lent.moves.is_empty();
        }
    }

    /// CommandComplete of a PREPARE or DEALLOCATE was taken in. A name that was made is nobody's loan.
    pub(super) fn recv_move(&mut self) {
        match self.lent.moves.pop_front().flatten() {
            Some(NameMove::Gone(name)) => self.names.forget(&name),
            Some(NameMove::Made(name)) => {
                self.lent.names.remove(told_apart(&name));
            }
            None => {}
        }
    }

    /// The server connection at hand may have been lent this name.
    pub(super) fn is_lent(&self, name: &[u8]) -> bool {
        self.lent.names.contains(told_apart(name))
    }

    /// A Close of a name that was lent takes the loan away, too: SQL may make it anew behind that. Where nothing is owed it
    /// cannot be struck.
    pub(super) fn close_lent(&mut self, name: &[u8], server: &mut ServerConn) -> Taken {
        if !server.pipeline.is_empty() {
            self.await_answers(server);
            return Taken::Later;
        }
        self.lent.names.remove(told_apart(name));
        self.names.close(name);
        server.pipeline.push(Kind::Close, Action::Forward, true);
        Taken::Forward
    }

    /// Nothing is owed; `idle`: nor is a transaction open that portals live in.
    pub(in crate::client) fn forget_moves(&mut self, idle: bool) {
        self.lent.moves.clear();
        if idle {
            self.lent.deallocating.clear();
        }
    }

    /// Some portal is bound whose Execute deallocates what the protocol prepared.
    pub(super) fn has_deallocating_portal(&self) -> bool {
        !self.lent.deallocating.is_empty()
    }

    /// A portal of this name is bound, or none any more.
    pub(in crate::client) fn note_no_deallocate(&mut self, portal: &[u8]) {
        self.lent.deallocating.retain(|bound| *bound.portal != *told_apart(portal));
    }

    /// It deallocates this.
    pub(super) fn note_deallocate(&mut self, portal: &[u8], gone: &[u8]) {
        if self.lent.deallocating.len() < DEALLOCATING_MAX {
            let (portal, gone) = (told_apart(portal).into(), gone.into());
            self.lent.deallocating.push(Deallocating { portal, gone });
        }
    }

    /// What the Execute of a portal deallocates, if it does.
    fn deallocated_in(&self, body: &[u8]) -> Result<Option<Box<[u8]>>, Fault> {
        let (portal, _) = f::execute(body)?;
        let bound = self.lent.deallocating.iter().find(|bound| *bound.portal == *told_apart(portal));
        Ok(bound.map(|bound| bound.gone.clone()))
    }

    /// Execute of a portal that deallocates what the protocol prepared: its tag says whether the name is gone. `None`: it is none.
    pub(super) fn take_deallocating_execute(
        &mut self,
        body: &[u8],
        frame: &[u8],
        server: &mut ServerConn,
    ) -> Result<Option<Taken>, Fault> {
        let Some(gone) = self.deallocated_in(body)? else { return Ok(None) };
        if !server.pipeline.is_empty() && !server.pipeline.in_copy_in() {
            self.await_answers(server);
            return Ok(Some(Taken::Later));
        }
        self.counts.queries += 1;
        if self.names.lookup(&gone).is_some() && server.pipeline.status() != TransactionStatus::Failed {
            put_deallocable(server);
        }
        self.lent.moves = [Some(NameMove::Gone(gone.into()))].into();
        Ok(Some(self.take_forgetting_execute(frame, server)))
    }

    /// A Query that was judged waits for the names it speaks of; where something of before it `is_owed`, for that first.
    pub(super) fn waits_for_loan(
        &mut self,
        text: &[u8],
        (found, fold): (Effects, bool),
        is_owed: bool,
        server: &mut ServerConn,
    ) -> bool {
        if is_owed {
            let speaks = self.speaks_of_names(found) && !server.pipeline.in_copy_in();
            self.lent.query = speaks.then_some(Waiting { found, fold, asked: false });
        } else if self.lend(text, found, server) {
            f::put_empty(&mut server.conn.out, f::FLUSH);
            self.lent.query = Some(Waiting { found, fold, asked: true });
        }
        self.awaiting |= self.lent.query.is_some();
        self.lent.query.is_some()
    }

    /// A Query waits that [`State::take_query`] has taken in already.
    pub(super) fn has_query_waiting(&self) -> bool {
        self.lent.query.is_some()
    }

    /// It is taken again: everything is answered.
    pub(super) fn take_waiting_query(
        &mut self,
        body: &[u8],
        server: &mut ServerConn,
    ) -> Result<Taken, Fault> {
        let text = f::query(body)?;
        let Some(Waiting { found, fold, asked }) = self.lent.query.take() else { return Ok(Taken::Later) };
        if server.pipeline.is_discarding() && !asked {
            return Ok(Taken::Drop);
        }
        if server.pipeline.is_discarding() {
            // The client has the error; its Query has been answered with it.
            f::put_empty(&mut server.conn.out, f::SYNC);
            server.pipeline.push(Kind::Sync, Action::Forward, false);
            return Ok(Taken::Done);
        }
        let is_owed = !server.pipeline.is_empty();
        if !asked && self.waits_for_loan(text, (found, fold), is_owed, server) {
            return Ok(Taken::Later);
        }
        self.awaiting = true;
        self.note_in_flight(found);
        self.note_query(text, found, makes_for_all(text));
        self.expect_moves(text, found);
        self.send_query(text, fold, server);
        Ok(Taken::Done)
    }

    /// Names are to be taken back: nothing is owed any more.
    pub(super) fn owes_loan(&self, pipeline: &Pipeline) -> bool {
        let waits = self.lent.query.is_some() || pipeline.is_in_unit_of_query();
        !self.lent.names.is_empty() && !waits && pipeline.is_at_rest()
    }

    /// Takes them back.
    pub(super) fn put_loan_back(&mut self, pipeline: &mut Pipeline, to_server: &mut Vec<u8>) {
        for name in std::mem::take(&mut self.lent.names) {
            f::put_target(to_server, f::CLOSE, b'S', &name);
            pipeline.push(Kind::Close, Action::Skip, false);
        }
        f::put_empty(to_server, f::SYNC);
        pipeline.push(Kind::Sync, Action::Skip, false);
    }

    /// The server connection goes, and the names with it.
    pub(in crate::client) fn forget_loan(&mut self) {
        self.lent = Lent::default();
    }
}

/// Not one that stands for somebody's statement.
pub(super) fn is_the_clients_own(name: &[u8]) -> bool {
    !name.is_empty() && !name.starts_with(SERVER_NAME_PREFIX.as_bytes())
}
