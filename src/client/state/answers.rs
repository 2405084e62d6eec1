//! What the server's answers teach a session, and what it owes its client for that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::copy::NOT_DATA;
use super::{Fault, Reporting, State, UNEXPECTED_IN_COPY};
use crate::error::Error;
use crate::proto::pipeline::{Answer, Pipeline};
use crate::proto::prepared::{Moved, NO_ROWS, ServerNames, Statements};
use crate::server::{Reported, ServerShared};
use crate::sql::effects::Effects;
use crate::wire::{TransactionStatus, backend as b};

/// SQLSTATE `query_canceled`, also of a COPY that its client gives up.
const QUERY_CANCELED: &[u8] = b"57014";

/// SQLSTATE `internal_error`.
const INTERNAL_ERROR: &[u8] = b"XX000";

/// Types of parameters remembered of one statement (bytes): those of 64.
const KNOWN_TYPES_BYTES_MAX: usize = 256;

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

    /// ParameterDescription was taken in for a statement.
    pub fn recv_params(&mut self, id: u32, body: &[u8]) {
        let statement = self.shapes.described.iter().find(|s| s.id as u32 == id);
        if let (Some(statement), Some(types)) = (statement, body.get(2..))
            && types.len() <= KNOWN_TYPES_BYTES_MAX
        {
            statement.params.get_or_init(|| types.into());
        }
    }

    /// RowDescription or NoData (`body` is empty) was taken in for a statement. `None`: it is too long to be looked at.
    pub fn recv_shape(&mut self, id: u32, body: Option<&[u8]>, answer: Answer) {
        // Those before it were struck by an error.
        let Some(at) = self.shapes.described.iter().position(|s| s.id as u32 == id) else { return };
        let Some(statement) = self.shapes.described.drain(..=at).next_back() else { return };
        let shape = match body {
            Some([]) => NO_ROWS,
            Some(body) => b::row_shape(body).unwrap_or(NO_ROWS),
            None => return,
        };
        if *statement.shape.get_or_init(|| shape) == shape {
            return;
        }
        statement.make_stale();
        if answer == Answer::Forward {
            // This client was told just now how the rows look.
            let (query, types, max) = (&statement.query, &statement.types, self.bounds.prepared_bytes_max);
            let class = statement.class;
            let statements = &self.shared.statements;
            let interned = statements.intern(query, types, class, || statement.effects, max, &self.texts);
            if let Some(new) = interned {
                new.shape.get_or_init(|| shape);
                self.names.replace(statement.id, &new);
            }
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
        // Those that were struck stand behind the one that is told, if one is.
        let first = usize::from(answer == Answer::Refuse).min(self.refusals.len());
        let end = (first + pipeline.take_struck_refusals()).min(self.refusals.len());
        self.refusals.drain(first..end);
        let fields = b::ErrorFields::new(body);
        if fields.sqlstate() == QUERY_CANCELED && memchr::memmem::find(body, NOT_DATA).is_some() {
            return Err(Fault::Client(Error::protocol_violation(UNEXPECTED_IN_COPY)));
        }
        self.server_left |= fields.ends_connection();
        if fields.sqlstate() == INTERNAL_ERROR {
            // The server is not what it should be: nobody else is given this connection.
            server.close_needed.store(true, Ordering::Relaxed);
        }
        if fields.sqlstate() == b"25006" {
            server.refused_to_write();
        }
        if fields.sqlstate() == b"0A000" && fields.field(b'R') == Some(b"RevalidateCachedQuery") {
            // Who prepares the same text again gets a new statement; what has no name of ours goes with the connection.
            match self.names.find(asked) {
                Some(statement) => statement.make_stale(),
                None => server.close_needed.store(true, Ordering::Relaxed),
            }
        }
        Ok(())
    }

    /// CommandComplete with this tag was taken in: a catalogue may have changed, or what a name stands for.
    pub fn recv_end(&mut self, tag: &[u8]) {
        if matches!(tag, b"PREPARE\0" | b"DEALLOCATE\0") {
            self.recv_move();
        }
        match Moved::by(tag, self.ties.taint.intersects(Effects::TEMP)) {
            Moved::Nothing => {}
            Moved::Own => self.meaning.own = Statements::own_catalog(),
            Moved::All => {
                self.shared.statements.catalog_moved();
                self.meaning.moved = true;
            }
        }
    }

    /// DISCARD ALL and DEALLOCATE ALL took effect.
    pub fn recv_forgetting_tag(&mut self, body: &[u8], names: &mut ServerNames) {
        if matches!(body, b"DISCARD ALL\0" | b"DEALLOCATE ALL\0") {
            self.names.clear();
            names.clear();
        }
    }

    /// Tells the client which reported values differ from what it knows.
    pub fn report_differences(&mut self, reported: &Arc<Reported>, reply: &mut Vec<u8>) {
        if Arc::ptr_eq(&self.vars.reported, reported) {
            return;
        }
        for (name, value) in reported.iter() {
            if !self.vars.reported.iter().any(|(n, v)| n == name && v == value) {
                b::put_parameter_status(reply, name, value);
            }
        }
        self.know(reported);
    }

    /// The client knows these values now.
    pub fn know(&mut self, reported: &Arc<Reported>) {
        self.vars.reported = Arc::clone(reported);
        self.know_lexing(reported);
    }
}
