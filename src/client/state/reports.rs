//! What a client is told of its settings: ParameterStatus.
//!
//! Owns: what it knows, and what is withheld until it is known what it has. Never: puts a setting on a connection.

use std::sync::Arc;

use super::State;
use crate::proto::pipeline::{Answer, Pipeline};
use crate::server::{Reported, report};
use crate::sql::effects::Effects;
use crate::wire::{TransactionStatus, backend as b};

/// What a text says that may bring back what the startup packet set.
const GIVES_BACK: [&[u8]; 4] = [b"reset", b"default", b"discard", b"null"];

/// The startup packet's settings are the client's defaults: after RESET and DISCARD ALL it has them again. A server
/// connection that is shared has defaults of its own, goes back to those, and says so; the client is told what it has, in
/// time for what it says next.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// Nothing.
    #[default]
    Nothing,
    /// Nothing yet: such a setting may have been given back, or be it. Inside its transaction block the client has what the
    /// connection has.
    Doubt,
    /// The new value of such a setting, up to ReadyForQuery.
    Value,
    /// ReadyForQuery, until the client's settings are on the connection.
    Ready,
}

impl State {
    /// A ParameterStatus that answers the client came.
    pub fn pass_parameter(&mut self, name: &[u8], value: &[u8]) -> Answer {
        if !self.shares_servers() {
            return Answer::Forward;
        }
        let own = str::from_utf8(name).is_ok_and(|n| self.vars.base.get(&n.to_ascii_lowercase()).is_some());
        if own {
            self.vars.withheld = Withheld::Value;
            return Answer::Skip;
        }
        // What is told here is not told once more with what was withheld.
        report(&mut self.vars.reported, name, value);
        Answer::Forward
    }

    /// ReadyForQuery came, and there is a doubt or a value that is withheld.
    pub fn pass_withheld_ready(
        &mut self,
        pipeline: &Pipeline,
        reported: &Arc<Reported>,
        out: &mut Vec<u8>,
    ) -> Answer {
        if pipeline.is_quiet() {
            (self.vars.withheld, self.awaiting) = (Withheld::Ready, true);
            // However it was changed.
            self.ties.doubt(Effects::SETTINGS);
            return Answer::Skip;
        }
        if std::mem::replace(&mut self.vars.withheld, Withheld::Doubt) == Withheld::Value {
            self.report_differences(reported, out);
        }
        Answer::Forward
    }

    /// What was withheld is told.
    pub fn put_withheld(&mut self, reported: &Arc<Reported>, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.vars.withheld) == Withheld::Ready {
            self.report_differences(reported, out);
            b::put_ready_for_query(out, TransactionStatus::Idle);
        }
    }

    /// A text that is run may change settings: may it bring back what the startup packet set?
    pub(super) fn note_giving_back(&mut self, found: Effects, text: &[u8]) {
        let changes = found.intersects(Effects::SETTINGS.union(Effects::DISCARD_ALL));
        if changes && self.vars.withheld == Withheld::Nothing && !self.vars.base.is_empty() {
            let text = text.to_ascii_lowercase();
            if GIVES_BACK.iter().any(|word| memchr::memmem::find(&text, word).is_some()) {
                self.vars.withheld = Withheld::Doubt;
            }
        }
    }

    /// What stands behind a text waits for its end, where that may bring back what the startup packet set.
    pub(super) fn await_giving_back(&mut self) {
        self.awaiting |= self.vars.withheld != Withheld::Nothing;
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
        self.remember_reading();
    }
}
