//! The first temporary object on a connection that another client had before.
//!
//! Owns: when the server has to be made to plan its statements again. In a session of its own PostgreSQL does so by itself: the first
//! temporary object changes the search path, and a statement prepared for a table then means the temporary one that hides it. On a
//! connection that had temporary objects before, the path stays the same, and so would the plan. Never: finds out what a text may create.

use std::sync::LazyLock;

use super::{State, name_of_ours};
use crate::proto::pipeline::{Action, Kind};
use crate::server::ServerConn;
use crate::sql::effects::Effects;
use crate::sql::moves::makes_for_all;
use crate::wire::{TransactionStatus, frontend as f};

/// What may make a temporary object, seen or unseen.
pub const MAKES_TEMP: Effects = Effects::TEMP.union(Effects::EXECUTE).union(Effects::UNKNOWN);

/// A text of several statements with one of these, in a block: what comes before it would be what it must come before.
const MUST_BE_FIRST: Effects = Effects::TRANSACTION.union(Effects::SETTINGS).union(Effects::LOCAL);

/// The statement and the portal that make plans anew. The client has cursors and portals of its own in the same transaction.
static PLANS: LazyLock<String> = LazyLock::new(|| name_of_ours("plans"));

impl State {
    fn makes_temp(&self, found: Effects, makes: bool) -> bool {
        found.contains(Effects::TEMP) || makes && (self.ties.local || self.vars.want.names_temp)
    }

    fn may_renew_plans(&self, server: &ServerConn) -> bool {
        server.had_temp && self.shares_servers() && !self.ties.plans_renewed
    }

    /// Whether its block has failed must be known first: what is put before a Query must not fail.
    pub(super) fn waits_to_renew_plans(&mut self, text: &[u8], server: &mut ServerConn) -> bool {
        let is_owed = !server.pipeline.is_empty() && !server.pipeline.in_copy_in();
        if !is_owed || !self.may_renew_plans(server) {
            return false;
        }
        let waits = self.makes_temp(self.read_effects(text), makes_for_all(text));
        if waits {
            self.await_answers(server);
        }
        waits
    }

    /// Before a Query.
    pub(super) fn renew_plans(&mut self, found: Effects, makes: bool, server: &mut ServerConn) {
        let pipeline = &server.pipeline;
        let in_block = pipeline.status() != TransactionStatus::Idle;
        if !self.makes_temp(found, makes) || pipeline.is_unsynced() || !can_renew_plans(server) {
            return;
        }
        if self.may_renew_plans(server) {
            if in_block && found.intersects(MUST_BE_FIRST) {
                return;
            }
            // A unit of ours: a cancel request that strikes it is not told as that of the Query.
            put_discard_plans(Action::Own, server);
            server.put_sync();
        }
        self.ties.plans_renewed = true;
    }

    /// Before a Bind, in its unit. True: it waits to know whether its block has failed.
    pub(super) fn renews_plans_later(
        &mut self,
        found: Effects,
        makes: bool,
        server: &mut ServerConn,
    ) -> bool {
        if !self.makes_temp(found, makes) || !can_renew_plans(server) {
            return false;
        }
        if self.may_renew_plans(server) {
            if server.pipeline.owes_end_of_unit() {
                self.await_answers(server);
                return true;
            }
            put_discard_plans(Action::Skip, server);
        }
        self.ties.plans_renewed = true;
        false
    }
}

/// Something can be put before what comes, and does not fail.
fn can_renew_plans(server: &ServerConn) -> bool {
    let pipeline = &server.pipeline;
    pipeline.status() != TransactionStatus::Failed && !pipeline.in_copy_in() && !pipeline.is_still_started()
}

fn put_discard_plans(action: Action, server: &mut ServerConn) {
    server.conn.prepare_out();
    let (out, plans) = (&mut server.conn.out, PLANS.as_bytes());
    f::put_target(out, f::CLOSE, b'S', plans);
    f::put_parse(out, plans, b"DISCARD PLANS", &[]);
    f::put_bind_text_to(out, plans, plans, &[]);
    f::put_execute(out, plans, 0);
    f::put_target(out, f::CLOSE, b'P', plans);
    f::put_target(out, f::CLOSE, b'S', plans);
    for kind in [Kind::Close, Kind::Parse, Kind::Bind, Kind::Execute, Kind::Close, Kind::Close] {
        server.pipeline.push(kind, action, false);
    }
}
