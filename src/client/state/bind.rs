//! Bind: whether its statement is on the present server connection, and under which name.
//!
//! Owns: the names at the front of a Bind. Never: reads its parameters, except those that name a setting.

use std::sync::Arc;

use super::prepared::{STAND_IN, cannot_be_prepared, put_deallocable, put_deallocate, put_stand_in};
use super::taint::MAKES_SETTINGS;
use super::{FORGETS_NAMES, Fault, Ruling, State, Taken};
use crate::error::Error;
use crate::limits::SMALL_MESSAGE_BYTES_MAX;
use crate::proto::pipeline::{Action, Kind};
use crate::proto::prepared::{SERVER_NAME_PREFIX, Statement, told_apart};
use crate::server::ServerConn;
use crate::sql::effects::{Effects, deallocated_name};
use crate::wire::frame::{Fields, HEADER_BYTES, Header};
use crate::wire::{DecodeError, Flaw, TransactionStatus, frontend as f};

impl State {
    pub(super) fn take_bind(
        &mut self,
        head: Header,
        body: &[u8],
        server: &mut ServerConn,
    ) -> Result<Taken, Fault> {
        let Some(bind) = BindNames::of(head, body) else { return need_names(head, body) };
        let name = bind.name;
        if self.waits_for_name(name, server) || self.waits_for_end_of_failed(server) {
            return Ok(Taken::Later);
        }
        if self.rules_binds(name) {
            let statement = if self.tracks(name) { self.names.lookup(name).cloned() } else { None };
            let text = statement.as_ref().map(|s| &*s.query);
            match self.rule_bind(text, name.is_empty(), &server.pipeline) {
                Ruling::Pass | Ruling::Fold => {}
                Ruling::Wait => {
                    self.await_answers(server);
                    return Ok(Taken::Later);
                }
                Ruling::Refuse(error) => {
                    self.refuse(Kind::Bind, error, server);
                    return Ok(Taken::Drop);
                }
            }
        }
        self.note_portal(bind.portal);
        if !self.tracks(name) {
            return Ok(self.bind_untracked(name, server));
        }
        (self.shapes.bound, self.forgetting) = (None, false);
        if self.has_deallocating_portal() {
            self.note_no_deallocate(bind.portal);
        }
        let statement = self.names.lookup(name).cloned();
        let mut found = Effects::NONE;
        if let Some(statement) = &statement {
            found = self.effects_of_prepared(name, statement, server);
            self.note_work(statement);
            if self.waits_to_prepare(name, statement, server)
                || self.waits_to_lend(&statement.query, found, server)
            {
                return Ok(Taken::Later);
            }
            if let Some(taken) = self.judged_again(Kind::Bind, name, statement, server) {
                return Ok(taken);
            }
            if self.renews_plans_later(found, statement.makes_for_all(), server) {
                return Ok(Taken::Later);
            }
            self.lend(&statement.query, found, server);
            self.tainted(found, &statement.query);
            self.note_made(statement.makes_for_all());
            if found.intersects(MAKES_SETTINGS) {
                self.note_bound_names(&statement.query, head, body);
            }
        }
        let gone = statement.as_ref().and_then(|statement| self.deallocated_by(statement));
        let taken = match (statement, gone) {
            (Some(statement), Some(gone)) => self.bind_deallocate(&bind, &statement, &gone, server),
            (statement, _) if name.is_empty() => self.bind_unnamed(&bind, statement.as_ref(), server),
            (Some(statement), _) => self.bind_named(&bind, statement, server),
            (None, _) => self.bind_unknown(name, server),
        };
        // Its own text is read before it does anything.
        if taken != Taken::Later {
            self.note_in_flight(found);
        }
        Ok(taken)
    }

    /// Names pass untouched.
    fn bind_untracked(&mut self, name: &[u8], server: &mut ServerConn) -> Taken {
        self.counts.binds += 1;
        if self.is_of_the_pool(name) {
            self.refuse(Kind::Bind, Error::unknown_statement(name), server);
            return Taken::Drop;
        }
        self.note_bind();
        if self.shares_servers() {
            // Prepared in another transaction, perhaps: what it does is not known.
            self.ties.doubt(Effects::EXECUTE);
        }
        server.pipeline.push(Kind::Bind, Action::Forward, false);
        Taken::Forward
    }

    fn bind_deallocate(
        &mut self,
        bind: &BindNames<'_>,
        statement: &Statement,
        gone: &[u8],
        server: &mut ServerConn,
    ) -> Taken {
        self.counts.binds += 1;
        if cannot_be_prepared(statement, server) {
            return bind_stand_in(bind, statement, server);
        }
        // Its Execute is given another one; but another pgsluice behind this one is to know, when this is bound, that it speaks
        // of what the protocol prepared.
        put_deallocable(server);
        put_deallocate(&statement.types, server);
        self.note_deallocate(bind.portal, gone);
        push_bind(bind, statement, server);
        bind.put(STAND_IN, server)
    }

    fn bind_unnamed(
        &mut self,
        bind: &BindNames<'_>,
        statement: Option<&Arc<Statement>>,
        server: &mut ServerConn,
    ) -> Taken {
        if let Some(statement) = statement {
            if self.shapes.otherwise.take() == Some(statement.id)
                && server.pipeline.status() != TransactionStatus::Failed
            {
                self.counts.binds += 1;
                self.refuse(Kind::Bind, Error::stale_plan(), server);
                return Taken::Drop;
            }
            if self.asks_for_unnamed_rows(statement, server) {
                return Taken::Later;
            }
        }
        self.counts.binds += 1;
        if let Some(statement) = statement
            && self.needs_stand_in(b"", statement, server)
        {
            return bind_stand_in(bind, statement, server);
        }
        self.ensure_unnamed(server);
        server.pipeline.push(Kind::Bind, Action::Forward, false);
        Taken::Forward
    }

    fn bind_named(
        &mut self,
        bind: &BindNames<'_>,
        statement: Arc<Statement>,
        server: &mut ServerConn,
    ) -> Taken {
        let Some(statement) = self.settled(statement, server) else {
            self.refuse_bytes(Kind::Bind, server);
            return Taken::Drop;
        };
        let was_asked = self.shapes.otherwise.take() == Some(statement.id);
        // It may be another one now.
        if let Some(taken) = self.judged_again(Kind::Bind, bind.name, &statement, server) {
            return taken;
        }
        if !was_asked && self.asks_for_description(&statement, server) {
            return Taken::Later;
        }
        self.counts.binds += 1;
        if was_asked && server.pipeline.status() != TransactionStatus::Failed {
            self.refuse(Kind::Bind, Error::stale_plan(), server);
            return Taken::Drop;
        }
        self.forgetting = statement.effects.intersects(FORGETS_NAMES);
        if self.needs_stand_in(bind.name, &statement, server) {
            return bind_stand_in(bind, &statement, server);
        }
        self.ensure_for_client(&statement, server);
        let taken = bind.put(statement.server_name.as_bytes(), server);
        server.pipeline.push_about(Kind::Bind, Action::Forward, statement.id);
        if statement.shape.get().is_none() {
            self.shapes.bound = Some((told_apart(bind.portal).into(), statement));
        }
        taken
    }

    /// The statement is DEALLOCATE of this name, which the protocol prepared.
    fn deallocated_by(&self, statement: &Statement) -> Option<Vec<u8>> {
        if !statement.effects.contains(Effects::DEALLOCATE) {
            return None;
        }
        let gone = deallocated_name(&statement.query)?;
        self.names.lookup(&gone).is_some().then_some(gone)
    }

    /// A name the protocol did not prepare: SQL's PREPARE may have, so the server judges; but never by a name that
    /// stands for somebody's statement.
    fn bind_unknown(&mut self, name: &[u8], server: &mut ServerConn) -> Taken {
        self.counts.binds += 1;
        if name.starts_with(SERVER_NAME_PREFIX.as_bytes()) {
            self.refuse(Kind::Bind, Error::unknown_statement(name), server);
            return Taken::Drop;
        }
        if let Some(error) = self.rule_unknown_name() {
            self.refuse(Kind::Bind, error, server);
            return Taken::Drop;
        }
        self.note_in_flight(Effects::EXECUTE);
        self.ties.doubt(Effects::EXECUTE);
        server.pipeline.push(Kind::Bind, Action::Forward, false);
        Taken::Forward
    }
}

/// The two names at the front of a Bind. The rest of it need not be there: a great Bind streams on behind them.
struct BindNames<'a> {
    head: Header,
    portal: &'a [u8],
    /// The statement's.
    name: &'a [u8],
}

impl<'a> BindNames<'a> {
    /// `None`: they are not whole.
    fn of(head: Header, body: &'a [u8]) -> Option<Self> {
        let mut names = Fields::new(f::BIND, body);
        let portal = names.cstr("portal name").ok()?;
        let name = names.cstr("statement name").ok()?;
        Some(Self { head, portal, name })
    }

    /// The Bind with another statement's name. The rest of it follows.
    fn put(&self, statement: &[u8], server: &mut ServerConn) -> Taken {
        let len = self.head.body + 4 - self.name.len() + statement.len();
        let out = &mut server.conn.out;
        out.push(f::BIND);
        out.extend_from_slice(&(len as u32).to_be_bytes());
        out.extend_from_slice(self.portal);
        out.push(0);
        out.extend_from_slice(statement);
        // The zero behind its own name is the other's.
        Taken::Prefix(HEADER_BYTES + self.portal.len() + 1 + self.name.len())
    }
}

/// One that goes by a name of ours: an error that tells it is to have the client's own.
fn push_bind(bind: &BindNames<'_>, statement: &Statement, server: &mut ServerConn) {
    let about = if bind.name.is_empty() { 0 } else { statement.id };
    server.pipeline.push_about(Kind::Bind, Action::Forward, about);
}

fn bind_stand_in(bind: &BindNames<'_>, statement: &Statement, server: &mut ServerConn) -> Taken {
    put_stand_in(statement, server);
    push_bind(bind, statement, server);
    bind.put(STAND_IN, server)
}

fn need_names(head: Header, body: &[u8]) -> Result<Taken, Fault> {
    if body.len() >= SMALL_MESSAGE_BYTES_MAX || body.len() >= head.body {
        return Err(
            DecodeError::Malformed { tag: f::BIND, what: "statement name", flaw: Flaw::String }.into()
        );
    }
    Ok(Taken::NeedWhole)
}
