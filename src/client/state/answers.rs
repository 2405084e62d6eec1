//! What a session learns from the server's answers, and what it tells its client because of that.

use std::collections::HashSet;
use std::sync::Arc;

use super::copy::NOT_DATA;
use super::prepared::STAND_IN;
use super::{Expected, Fault, Reporting, State, unexpected_in_copy};
use crate::proto::pipeline::{Answer, Pipeline};
use crate::proto::prepared::{Moved, NO_ROWS, SERVER_NAME_PREFIX, ServerNames, Statement, Statements};
use crate::server::ServerShared;
use crate::sql::effects::Effects;
use crate::wire::{TransactionStatus, backend as b};

/// Statements more than twice those that a client has names for, before the others are forgotten.
const TOLD_SPARE: usize = 64;

impl State {
    /// Hot path. ReadyForQuery was taken in.
    pub fn recv_ready(&mut self, status: TransactionStatus, answer: Answer) {
        if answer == Answer::Skip {
            self.vars.report =
                if self.vars.report == Reporting::Pending { Reporting::Due } else { Reporting::None };
            return;
        }
        self.fold.left &= !self.shares_servers() || status != TransactionStatus::Idle;
        self.turns = self.turns.wrapping_add(1);
        if status == TransactionStatus::Idle {
            self.unjudged.portals = None;
            if std::mem::take(&mut self.meaning.moved) {
                self.shared.statements.catalog_moved();
            }
            self.counts.xacts += 1;
            self.xact_turns = self.xact_turns.wrapping_add(1);
        }
    }

    /// ParameterDescription was taken in for a statement. `None`: it is too long to be looked at.
    pub fn recv_params(&mut self, id: u32, body: Option<&[u8]>, answer: Answer) {
        self.shapes.params_as_told = None;
        let Some(expected) = self.shapes.described.iter().find(|e| e.statement.id as u32 == id) else {
            return;
        };
        let Expected { name, statement } = expected.clone();
        // Each parameter takes two bytes of the text, at least.
        let may_be = |types: &&[u8]| types.len() <= 2 * statement.query.len();
        let Some(types) = body.and_then(|body| body.get(2..)).filter(may_be) else {
            // Too long to be compared.
            self.shapes.params_as_told = Some(statement.id);
            return;
        };
        let (as_before, told) = (statement.has_params(types), answer == Answer::Forward);
        self.shapes.params_as_told = as_before.then_some(statement.id);
        if !statement.is_shared() {
            if told && self.names.lookup(b"").is_some_and(|unnamed| unnamed.id == statement.id) {
                self.tell_unnamed(&statement, types, as_before);
            }
        } else if told && as_before {
            self.tell_named(statement.id);
        } else if told && let Some(new) = self.declared(&statement, types) {
            self.names.replace_told(name.as_deref(), statement.id, &new);
            self.shapes.retold = Some((statement.id, new));
        }
    }

    /// The client knows the types of its unnamed statement: it has these wherever it is parsed again.
    fn tell_unnamed(&mut self, statement: &Arc<Statement>, types: &[u8], as_before: bool) {
        self.shapes.unnamed_told = Some(statement.id);
        if !as_before {
            let Statement { query, class, effects, .. } = &**statement;
            self.names.replace_unnamed(Statement::under(query, types, *class, *effects));
        }
    }

    pub(super) fn tell_named(&mut self, id: u64) {
        let told = &mut self.shapes.told;
        if told.len() > 2 * self.names.len() + TOLD_SPARE {
            // As many as there are names, at most, stay: by then as many more were told.
            let held: HashSet<u64> = self.names.ids().collect();
            told.retain(|id| held.contains(id));
        }
        told.insert(id);
    }

    /// The same text with these types of its parameters declared. `None`: there is no room for it.
    pub(super) fn declared(&self, statement: &Statement, types: &[u8]) -> Option<Arc<Statement>> {
        let Statement { query, class, effects, .. } = statement;
        let max = self.bounds.prepared_bytes_max;
        let new = self.shared.statements.intern(query, types, *class, || *effects, max, &self.texts)?;
        if let Some(settings) = statement.settings.get() {
            new.settings.get_or_init(|| *settings);
        }
        Some(new)
    }

    /// As [`State::declared`], with rows that look as the client was told: those of the others that have it may look otherwise by now.
    pub(super) fn shown(
        &self,
        statement: &Statement,
        types: &[u8],
        shape: Option<u64>,
    ) -> Option<Arc<Statement>> {
        let new = self.declared(statement, types)?;
        let Some(shape) = shape.filter(|shape| *new.shape.get_or_init(|| *shape) != *shape) else {
            return Some(new);
        };
        new.make_stale();
        let new = self.declared(statement, types)?;
        new.shape.get_or_init(|| shape);
        Some(new)
    }

    /// RowDescription or NoData (`body` is empty) was taken in for a statement. `None`: it is too long to be looked at.
    pub fn recv_shape(&mut self, id: u32, body: Option<&[u8]>, answer: Answer, names: &mut ServerNames) {
        // Those before it were struck by an error.
        let Some(at) = self.shapes.described.iter().position(|e| e.statement.id as u32 == id) else { return };
        let Some(Expected { name, statement }) = self.shapes.described.drain(..=at).next_back() else {
            return;
        };
        // Not before the rows are known as well: an error may come in their place.
        let params_as_told = self.shapes.params_as_told.take() == Some(statement.id);
        let shape = match body {
            Some([]) => NO_ROWS,
            Some(body) => b::row_shape(body).unwrap_or(NO_ROWS),
            None if params_as_told => return names.is_as_told(statement.id),
            None => return,
        };
        if !statement.is_shared() {
            return self.recv_unnamed_shape(&statement, shape, answer, names);
        }
        let retold =
            self.shapes.retold.take().filter(|(id, _)| *id == statement.id && answer == Answer::Forward);
        if let Some((_, now)) = &retold
            && let Some(shown) = self.shown(now, &now.types, Some(shape))
        {
            self.names.replace_told(name.as_deref(), now.id, &shown);
        }
        if *statement.shape.get_or_init(|| shape) == shape {
            // A portal is described without its parameters: where there are none to compare that was all.
            if params_as_told || !statement.leaves_types_open() {
                names.is_as_told(statement.id);
            }
            return;
        }
        statement.make_stale();
        names.is_otherwise(statement.id);
        if answer != Answer::Forward {
            self.shapes.otherwise = Some(statement.id);
        } else {
            // This client was told just now how the rows look, of this name.
            if let Some(new) = self.shown(&statement, &statement.types, Some(shape)) {
                self.names.replace_told(name.as_deref(), statement.id, &new);
            }
        }
    }

    /// The same, of the unnamed statement: what one client has of it is no other's.
    fn recv_unnamed_shape(
        &mut self,
        statement: &Statement,
        shape: u64,
        answer: Answer,
        names: &mut ServerNames,
    ) {
        // It is another one by now where its parameters have other types than were told of it first.
        let Some(now) = self.names.lookup(b"").filter(|now| now.query == statement.query) else { return };
        if answer == Answer::Forward {
            self.shapes.unnamed_rows = Some((now.id, shape));
        } else if self.shapes.unnamed_rows.is_some_and(|(id, told)| id == now.id && told != shape) {
            self.shapes.otherwise = Some(now.id);
            // Not what was described.
            names.unnamed = None;
        }
    }

    /// An ErrorResponse was taken in; `asked`: the statement it is about, `answer`: what the client is given of it.
    ///
    /// # Errors
    /// The client sent to a COPY what that does not take, and PostgreSQL would have closed the connection.
    pub fn recv_error(
        &mut self,
        body: &[u8],
        (asked, answer): (u32, Answer),
        server: &ServerShared,
        pipeline: &mut Pipeline,
    ) -> Result<(), Fault> {
        self.unjudged.has_failed();
        self.ties.listens = false;
        self.shapes.params_as_told = None;
        self.failed_about = asked;
        // Those that were struck stand behind the one that is told, if one is.
        let first = usize::from(answer == Answer::Refuse).min(self.refusals.len());
        let end = (first + pipeline.take_struck_refusals()).min(self.refusals.len());
        self.refusals.drain(first..end);
        let fields = b::ErrorFields::new(body);
        if fields.sqlstate() == b::QUERY_CANCELED && memchr::memmem::find(body, NOT_DATA).is_some() {
            return Err(unexpected_in_copy());
        }
        if fields.ends_connection() {
            self.server_left = Some(fields.outline());
        }
        server.heard_error(fields.sqlstate());
        if fields.sqlstate() == b"0A000" && fields.field(b'R') == Some(b"RevalidateCachedQuery") {
            // Who prepares the same text again gets a new statement, and the server says of the others'; what has no name of ours goes
            // with the connection.
            match self.names.find(asked) {
                Some(statement) => statement.make_stale(),
                None => {
                    server.close_when_free("a stale plan");
                }
            }
        }
        Ok(())
    }

    /// The message of an error that names a statement as it is called on the server, with the client's own name for it. PostgreSQL
    /// names one where a Bind has not as many parameters as it. Where several names mean it, none of them is told.
    pub fn reworded(&self, error: &[u8]) -> Option<Vec<u8>> {
        let fields = b::ErrorFields::new(error);
        if fields.field(b'R') != Some(b"exec_bind_message") {
            return None;
        }
        let message = fields.field(b'M')?;
        let prefix = SERVER_NAME_PREFIX.as_bytes();
        let start = memchr::memmem::find(message, prefix)?;
        let (end, name) = if message[start..].starts_with(STAND_IN) {
            let name = match self.failed_about {
                0 => Some(&b""[..]),
                about => {
                    self.names.find(about).and_then(|s| self.names.only_name_of(s.server_name.as_bytes()))
                }
            };
            (start + STAND_IN.len(), name?)
        } else {
            let digits =
                message[start + prefix.len()..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let end = start + prefix.len() + digits;
            (end, self.names.only_name_of(&message[start..end])?)
        };
        Some([&message[..start], name, &message[end..]].concat())
    }

    /// CommandComplete with this tag was taken in: a catalogue may have changed, or what a name stands for.
    pub fn recv_end(&mut self, tag: &[u8]) {
        self.ties.listens = tag == b"LISTEN\0";
        if matches!(tag, b"PREPARE\0" | b"DEALLOCATE\0") {
            self.recv_move();
        }
        if tag == b"ROLLBACK\0" && self.meaning.moved {
            // Perhaps to a savepoint: what was made behind it is gone.
            self.shared.statements.catalog_moved();
        }
        // What is known to have moved is noted again at the end, whatever more is made.
        let makes = self.meaning.makes && !self.meaning.moved;
        let moved = Moved::by(tag, self.ties.taint.intersects(Effects::TEMP), makes);
        if moved.own {
            self.meaning.own = Statements::own_catalog();
        }
        if moved.all {
            self.shared.statements.catalog_moved();
            self.meaning.moved = true;
        }
    }

    /// DISCARD ALL and DEALLOCATE ALL took effect.
    pub fn recv_forgetting_tag(&mut self, body: &[u8], names: &mut ServerNames) {
        if matches!(body, b"DISCARD ALL\0" | b"DEALLOCATE ALL\0") {
            self.names.clear();
            names.clear();
        }
    }
}
