//! The simple protocol: Query and FunctionCall.
//!
//! Owns: what a text waits for, whether it goes as one extended unit, SQL's DEALLOCATE of a statement prepared by a Parse message.

use super::prepared::{DEALLOCATE, put_deallocable};
use super::{FORGETS_NAMES, Fault, State, Taken};
use crate::client::judge::Ruling;
use crate::proto::fold::Fold;
use crate::proto::pipeline::{Action, Kind};
use crate::server::ServerConn;
use crate::sql::database::is_about_a_database;
use crate::sql::effects::{Effects, deallocated_name};
use crate::sql::moves::{makes_for_all, may_be_several};
use crate::wire::{TransactionStatus, frontend as f};

impl State {
    pub(super) fn take_query(&mut self, body: &[u8], server: &mut ServerConn) -> Result<Taken, Fault> {
        let text = f::query(body)?;
        if self.waits_for_unit(server)
            || self.waits_to_deallocate(text, server)
            || self.waits_to_renew_plans(text, server)
        {
            return Ok(Taken::Later);
        }
        let ruling = self.rule_query(text, &server.pipeline);
        if matches!(ruling, Ruling::Wait) {
            return Ok(Taken::Later);
        }
        self.note_a_query(server);
        if let Ruling::Refuse(error) = ruling {
            return Ok(self.refuse(Kind::Query, error, server));
        }
        let fold = matches!(ruling, Ruling::Fold);
        self.make_way(text, server);
        let found = self.effects_of(text);
        if let Some(error) = self.state_refusal(found) {
            return Ok(self.refuse(Kind::Query, error, server));
        }
        let makes = makes_for_all(text);
        // A unit of ours is not waited for: it does not fail.
        let is_owed = !server.pipeline.is_empty();
        self.renew_plans(found, makes, server);
        self.note_query(text, found, makes);
        self.awaiting |= found.intersects(FORGETS_NAMES);
        self.await_giving_back();
        self.note_custom_settings(text, found);
        if found.contains(Effects::DEALLOCATE) && self.tracks_names() && self.deallocate(text, server) {
            self.send_query(DEALLOCATE, fold, server);
            return Ok(Taken::Done);
        }
        if self.waits_for_loan(text, (found, fold), is_owed, server) {
            return Ok(Taken::Later);
        }
        self.expect_moves(text, found);
        if fold {
            self.send_query(text, true, server);
            return Ok(Taken::Done);
        }
        server.pipeline.push(Kind::Query, Action::Forward, false);
        Ok(Taken::Forward)
    }

    /// What it may leave behind in the session, and what is read otherwise behind it. Of one that waits it is noted again: what came
    /// before it may have been settled meanwhile, and all that was noted so far with it.
    pub(super) fn note_query(&mut self, text: &[u8], found: Effects, makes: bool) {
        self.tainted(found, text);
        self.note_made(makes);
        // Of several statements only the first was looked at.
        self.meaning.open |= may_be_several(text);
    }

    /// Counted, and what it takes away whatever it says.
    fn note_a_query(&mut self, server: &mut ServerConn) {
        self.counts.queries += 1;
        // It may declare a cursor of the portal's name.
        self.shapes.bound = None;
        self.take_unnamed_away(server);
    }

    /// A Query does so also where it fails, unless that is for the transaction that it found.
    pub(super) fn take_unnamed_away(&mut self, server: &mut ServerConn) {
        if !server.pipeline.is_still_started() {
            self.names.forget_unnamed();
            server.names.unnamed = None;
        }
    }

    /// A Query or FunctionCall behind extended messages and no Sync waits for their answers: if one of them fails it is skipped,
    /// up to the client's own Sync and not up to that of a fold, and neither it nor a Query behind it takes the unnamed statement
    /// away. So does one behind the Sync of a unit that had a Query inside, and one behind what fails for such a unit.
    fn waits_for_unit(&mut self, server: &mut ServerConn) -> bool {
        let matters = self.tracks(b"") || !self.rules.passes_all_queries();
        let pipeline = &server.pipeline;
        let fails = pipeline.is_still_started() && !pipeline.is_empty();
        if !matters || !(fails || pipeline.is_within_unit() || pipeline.may_become_still_started()) {
            return false;
        }
        self.await_answers(server);
        true
    }

    /// What is put before a DEALLOCATE must not fail: a Query behind it would be skipped, and no Sync comes.
    fn waits_to_deallocate(&mut self, text: &[u8], server: &ServerConn) -> bool {
        let is_owed = !server.pipeline.is_empty() && !server.pipeline.in_copy_in();
        self.awaiting |= is_owed && self.tracks_names() && deallocated_name(text).is_some();
        self.awaiting
    }

    /// See [`crate::pool::registry::Shared::make_way`]. For a text that the rules let pass: one that is refused moves nobody.
    pub(super) fn make_way(&self, text: &[u8], server: &ServerConn) {
        if is_about_a_database(text) {
            self.shared.make_way(text, &server.shared.target);
        }
    }

    /// Sends a Query, or the same text as one extended unit: then PostgreSQL itself refuses a second statement.
    pub(super) fn send_query(&mut self, text: &[u8], fold: bool, server: &mut ServerConn) {
        let out = &mut server.conn.out;
        if !fold {
            f::put_query(out, text);
            server.pipeline.push(Kind::Query, Action::Forward, false);
            return;
        }
        let fold = match Fold::of(text) {
            // The bytes of its comments may be none in the client's encoding: that is the server's to say. In a failed block it would
            // be said of a Bind that nothing is run.
            Fold::Empty if !text.is_ascii() && server.pipeline.status() != TransactionStatus::Failed => {
                Fold::Utility
            }
            fold => fold,
        };
        self.fold.sync_owed = fold.put(text, out, &mut server.pipeline);
        // What the client sends behind it is data, or waits.
        self.awaiting |= self.fold.sync_owed;
        self.fold.left = fold != Fold::Empty;
    }

    /// A Query leaves neither an unnamed statement nor an unnamed portal.
    pub(super) fn take_fold_away(&mut self, server: &mut ServerConn) {
        if server.pipeline.is_discarding() || server.pipeline.in_copy_in() {
            return;
        }
        self.fold.left = false;
        server.names.unnamed = None;
        for kind in [b'S', b'P'] {
            f::put_target(&mut server.conn.out, f::CLOSE, kind, b"");
            server.pipeline.push(Kind::Close, Action::Skip, false);
        }
    }

    /// A Query too long to be understood streams through, unless a rule needs to understand it.
    pub(super) fn take_long_query(&mut self, bytes: usize, server: &mut ServerConn) -> Result<Taken, Fault> {
        if self.waits_for_unit(server) {
            return Ok(Taken::Later);
        }
        self.note_a_query(server);
        if let Some(error) = self.rule_long_query(bytes) {
            self.refuse(Kind::Query, error, server);
            return Ok(Taken::Drop);
        }
        self.note_in_flight(Effects::UNKNOWN);
        self.note_made(true);
        if self.shares_servers() {
            self.ties.doubt(Effects::UNKNOWN);
        }
        server.pipeline.push(Kind::Query, Action::Forward, false);
        Ok(Taken::Forward)
    }

    pub(super) fn take_function_call(&mut self, server: &mut ServerConn) -> Result<Taken, Fault> {
        if self.waits_for_unit(server) {
            return Ok(Taken::Later);
        }
        self.counts.queries += 1;
        if let Some(error) = self.rule_function_call() {
            self.refuse(Kind::FunctionCall, error, server);
            return Ok(Taken::Drop);
        }
        self.note_in_flight(Effects::UNKNOWN);
        if self.shares_servers() {
            self.ties.doubt(Effects::UNKNOWN);
        }
        server.pipeline.push(Kind::FunctionCall, Action::Forward, false);
        Ok(Taken::Forward)
    }

    /// SQL's DEALLOCATE of a name that the protocol prepared. Whether its block has failed must be known first: see
    /// [`State::take_query`].
    fn deallocate(&mut self, text: &[u8], server: &mut ServerConn) -> bool {
        let Some(gone) = deallocated_name(text) else { return false };
        // The server fails what comes next, whatever it is: the Query itself, not what is put before it.
        if server.pipeline.is_still_started() {
            return false;
        }
        if server.pipeline.status() == TransactionStatus::Failed || self.names.lookup(&gone).is_none() {
            return false;
        }
        put_deallocable(server);
        self.names.forget(&gone);
        true
    }
}
