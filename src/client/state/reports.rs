//! ParameterStatus: what a client is told of its settings.
//!
//! Owns: the values that the client knows, and those withheld until its own values are known. Never: puts a setting on a connection.

use std::sync::Arc;

use super::State;
use crate::proto::pipeline::{Answer, Pipeline};
use crate::proto::vars::{Vars, is_identity};
use crate::server::internal::Refused;
use crate::server::{Reported, are_equal, report};
use crate::sql::effects::Effects;
use crate::wire::{TransactionStatus, backend as b};

/// What a text says that may bring back what the startup packet set.
const GIVES_BACK: [&[u8]; 6] = [b"reset", b"default", b"discard", b"null", b"local", b"names"];

/// Those that may bring back a setting of applications.
const GIVES_BACK_CUSTOM: [&[u8]; 3] = [b"reset", b"default", b"null"];

/// What may hold such a text, or be one.
const MAY_GIVE_BACK: Effects =
    Effects::SETTINGS.union(Effects::DISCARD_ALL).union(Effects::UNKNOWN).union(Effects::EXECUTE);

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
            self.note_renamed(name, value);
            return Answer::Forward;
        }
        if self.is_of_startup(name) {
            if self.vars.withheld != Withheld::Ready {
                self.vars.withheld = Withheld::Value;
            }
            return Answer::Skip;
        }
        // What is told here is not told once more with what was withheld.
        report(&mut self.vars.reported, name, value);
        self.note_renamed(name, value);
        Answer::Forward
    }

    fn note_renamed(&mut self, name: &[u8], value: &[u8]) {
        if name == b"application_name" {
            self.renamed = Some(String::from_utf8_lossy(value).into());
        }
    }

    /// The startup packet says it, or who one is.
    fn is_of_startup(&self, name: &[u8]) -> bool {
        let Ok(name) = str::from_utf8(name) else { return false };
        let follows = matches!(name, "is_superuser" | "session_authorization");
        self.vars.base.get(&name.to_ascii_lowercase()).is_some() || follows && self.vars.base.names_a_role()
    }

    /// ReadyForQuery came, and there is a doubt or a value that is withheld.
    pub fn pass_withheld_ready(
        &mut self,
        pipeline: &Pipeline,
        reported: &mut Arc<Reported>,
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

    /// A ReadyForQuery that was withheld.
    pub fn put_withheld(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.vars.withheld) == Withheld::Ready {
            b::put_ready_for_query(out, TransactionStatus::Idle);
        }
    }

    /// A text that is run may change settings: may it bring back what the startup packet set?
    pub(super) fn note_giving_back(&mut self, found: Effects, text: &[u8]) {
        if found.intersects(MAY_GIVE_BACK) && !self.vars.base.is_empty() {
            let text = text.to_ascii_lowercase();
            if GIVES_BACK.iter().any(|word| says(&text, word)) {
                self.doubt_startup();
                // What SQL's PREPARE has made may speak of any: its text is not at hand.
                let any = found.intersects(Effects::EXECUTE) || says_all(&text);
                if any || GIVES_BACK_CUSTOM.iter().any(|word| says(&text, word)) {
                    self.note_given_back(|name| any || names(&text, name));
                }
            }
        }
    }

    /// A NULL is bound to a text that may change settings: as in `set_config(..., $1, false)`.
    pub(super) fn note_bound_null<'a>(&mut self, text: &'a [u8], values: impl Iterator<Item = &'a [u8]>) {
        if self.vars.base.is_empty() {
            return;
        }
        self.doubt_startup();
        let texts: Vec<_> = std::iter::once(text).chain(values).map(<[u8]>::to_ascii_lowercase).collect();
        self.note_given_back(|name| texts.iter().any(|text| names(text, name)));
    }

    /// A setting of applications that was emptied looks to the server as one that was given back: only what is noted here is.
    fn note_given_back(&mut self, is_given: impl Fn(&str) -> bool) {
        let given = &mut self.ties.given_back;
        for name in self.vars.base.custom_names() {
            if !given.iter().any(|known| **known == *name) && is_given(name) {
                given.push(name.into());
            }
        }
    }

    /// What was run may have brought back what the startup packet set.
    fn doubt_startup(&mut self) {
        if self.vars.withheld == Withheld::Nothing && !self.vars.base.is_empty() {
            self.vars.withheld = Withheld::Doubt;
        }
    }

    /// What stands behind a text waits for its end, where that may bring back what the startup packet set.
    pub(super) fn await_giving_back(&mut self) {
        self.awaiting |= self.vars.withheld != Withheld::Nothing;
    }

    /// The server takes a value of the startup packet no more, which a RESET directly brings back, and nothing works then that needs
    /// it: the server's own holds instead, and the client is told. False: without it the client would be somebody else, or its texts
    /// be read as others.
    pub fn does_without(&mut self, refused: &Refused, known: &Vars, out: &mut Vec<u8>) -> bool {
        let (Some(name), vars) = (refused.setting.as_deref(), &mut self.vars) else { return false };
        let is_of_startup = vars.base.get(name).is_some() && vars.base.get(name) == vars.want.get(name);
        let is_struck = b::ErrorFields::new(&refused.error).sqlstate().starts_with(b"57");
        if !is_of_startup || is_struck || is_identity(name) || name == "client_encoding" {
            return false;
        }
        (vars.base, vars.want) = (known.without(&vars.base, name), known.without(&vars.want, name));
        let told =
            b::with_hint(&refused.error, "The startup packet set it. The server's own value holds now.");
        b::put_again(out, b::NOTICE_RESPONSE, "WARNING", &told);
        true
    }

    /// Hot path. Tells the client which reported values differ from what it knows.
    pub fn report_differences(&mut self, reported: &mut Arc<Reported>, reply: &mut Vec<u8>) {
        if Arc::ptr_eq(&self.vars.reported, reported) {
            return;
        }
        if !are_equal(&mut self.vars.reported, reported) {
            for (name, value) in reported.iter() {
                if !self.vars.reported.has(name, value) {
                    b::put_parameter_status(reply, name, value);
                    self.note_renamed(name, value);
                }
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

/// The word stands in the text, and is no part of a longer one.
fn says(text: &[u8], word: &[u8]) -> bool {
    let in_word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    memchr::memmem::find_iter(text, word).any(|at| {
        !in_word(at.checked_sub(1).and_then(|before| text.get(before))) && !in_word(text.get(at + word.len()))
    })
}

/// It may bring back all that the startup packet set.
fn says_all(text: &[u8]) -> bool {
    says(text, b"all") && (says(text, b"reset") || says(text, b"discard"))
}

/// A text in lower case speaks of this setting of applications, or may: it holds each of its words, which may stand apart and in
/// quotes.
fn names(text: &[u8], setting: &str) -> bool {
    setting.split('.').all(|word| memchr::memmem::find(text, word.as_bytes()).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_no_part_of_another_one() {
        assert!(says(b"set x to default", b"default") && says(b"default_ default;", b"default"));
        assert!(!says(b"set default_x = 1", b"default") && !says(b"preset", b"reset") && !says(b"", b"null"));
    }
}
