//! Applies the policy to a session's messages, and keeps what the policy has to know for that.
//!
//! Owns: how the server will read the next text (also while answers are still on their way), statements prepared under
//! earlier rules, the audit of verdicts. Never: a rule (`policy` has them), a socket.
//!
//! `standard_conforming_strings` and `client_encoding` come from the server itself: ParameterStatus at its login (a
//! role's default, a database's, another default after a restart) and before each ReadyForQuery (SET, RESET,
//! set_config, ROLLBACK). Between a message that may change them and the ReadyForQuery after it the values are not
//! known: a text whose meaning depends on them waits, or is refused if the wait would never end.

use std::cell::RefCell;
use std::collections::HashMap;

use super::state::{Fault, State, policy_error};
use crate::error::Error;
use crate::policy::texts::{self, Judged, Readings, Unseen};
use crate::policy::{self, Lexing, Rules, Verdict};
use crate::proto::pipeline::Pipeline;
use crate::proto::prepared::{Statement, told_apart};
use crate::server::{Reported, ServerConn};
use crate::settings::SessionState;
use crate::sql::effects::{Effects, effects, is_read_plainly, unread};
use crate::sql::scan::has_tag_beyond_ascii;

thread_local! {
    static READINGS: RefCell<Readings> = RefCell::default();
}

/// Texts that may change how the server reads the next one.
const MOVES_LEXING: Effects = Effects::SETTINGS
    .union(Effects::LOCAL)
    .union(Effects::DISCARD)
    .union(Effects::DISCARD_ALL)
    .union(Effects::LOAD)
    .union(Effects::EXECUTE)
    .union(Effects::UNKNOWN);

/// Most portals told apart after the rules became stricter inside a transaction; others are refused.
const PORTALS_MAX: usize = 1024;

/// What the policy says to a text.
#[derive(Debug)]
pub(super) enum Ruling {
    /// Send it on.
    Pass,
    /// Send it on as one extended unit.
    Fold,
    /// Answer with this.
    Refuse(Error),
    /// Ask again when everything that is owed was answered.
    Wait,
}

/// How the server reads a session's texts.
#[derive(Debug)]
pub struct Reading {
    /// As the server said last.
    pub(super) lexing: Lexing,
    /// What is on its way may change that.
    in_doubt: bool,
    /// Something that the session sent or prepared may change it.
    moves: bool,
    /// Its transaction has sent such: what it left there, a cursor or a portal, may do so again when it is run.
    left: bool,
    /// The client's texts were read otherwise than most are: what was prepared may have been, on some connection.
    was_odd: bool,
}

impl Default for Reading {
    fn default() -> Self {
        Self { lexing: Lexing::PLAIN, in_doubt: false, moves: false, left: false, was_odd: false }
    }
}

/// What the rules of today did not see, because they became stricter in the session's life.
#[derive(Debug, Default)]
pub struct Unjudged {
    /// There may be such.
    pub(super) any: bool,
    /// An unnamed statement that was parsed and judged since.
    unnamed: Since,
    /// Until the transaction ends: the portals that were bound since.
    pub(super) portals: Option<HashMap<Box<[u8]>, Since>>,
    /// Which unit of messages is being sent.
    unit: u32,
}

/// What stands behind a name since the rules of today, once something they judged was sent to be put there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Since {
    /// What stood there before.
    #[default]
    Before,
    /// Sent in this unit: if it fails or is skipped, what follows it in the unit is skipped, too.
    Sent(u32),
    /// It was run.
    Run,
}

impl Unjudged {
    fn of_all(is_open: bool) -> Self {
        Self { any: true, unnamed: Since::Before, portals: is_open.then(HashMap::new), unit: 0 }
    }

    /// An unnamed statement was judged and sent.
    pub(super) fn note_unnamed(&mut self) {
        self.unnamed = Since::Sent(self.unit);
    }

    /// Hot path. A Sync was sent.
    pub(super) fn note_sync(&mut self) {
        self.unit = self.unit.wrapping_add(1);
    }

    /// All is answered, without an error since it was sent: or else it is told of before.
    fn is_answered(&mut self) {
        self.change(|since| if since == Since::Before { since } else { Since::Run });
    }

    /// Something failed, perhaps what was to be put there.
    pub(super) fn has_failed(&mut self) {
        self.change(|since| if since == Since::Run { since } else { Since::Before });
    }

    fn change(&mut self, to: impl Fn(Since) -> Since) {
        if self.any {
            self.unnamed = to(self.unnamed);
            self.portals.iter_mut().flat_map(HashMap::values_mut).for_each(|since| *since = to(*since));
        }
    }

    /// Was it judged? `None`: that is known when all is answered.
    fn was_judged(&self, since: Since, pipeline: &Pipeline) -> Option<bool> {
        match since {
            Since::Run => Some(true),
            Since::Sent(unit) if unit == self.unit => Some(true),
            Since::Sent(_) if !pipeline.is_empty() => None,
            Since::Sent(_) | Since::Before => Some(false),
        }
    }
}

impl State {
    /// How the server will read this text. `None`: that is known when all answers are there.
    fn lexing_of(&self, text: &[u8], pipeline: &Pipeline) -> Option<Lexing> {
        let all_answered = pipeline.is_empty() && !pipeline.is_unsynced();
        if !self.reading.in_doubt || all_answered || is_read_plainly(text) {
            return Some(self.reading.lexing);
        }
        if !pipeline.is_unsynced() && !pipeline.in_copy_in() {
            return None;
        }
        // Its own Sync is what would have to come first.
        Some(Lexing::UNSURE)
    }

    /// A text was sent on, or is run: it may change how the next one is read.
    pub(super) fn note_in_flight(&mut self, found: Effects) {
        if !self.follows_lexing() {
            return;
        }
        let ends = self.reading.moves && found.intersects(Effects::TRANSACTION);
        let moves = found.intersects(MOVES_LEXING);
        self.reading.moves |= moves;
        self.reading.in_doubt |= ends || moves || self.reading.left;
        self.reading.left |= moves;
    }

    /// Hot path. An Execute is sent on: of a portal that was bound before, perhaps.
    pub(super) fn note_execute(&mut self) {
        self.reading.in_doubt |= self.reading.left;
    }

    /// How texts are read matters to the rules, and to who has the server connection next.
    pub(super) fn follows_lexing(&self) -> bool {
        self.rules.needs_lexing() || self.shares_servers()
    }

    /// It is not known how the server reads this text.
    pub(super) fn may_misread(&self, text: &[u8]) -> bool {
        let Reading { in_doubt, lexing, .. } = self.reading;
        (in_doubt && !is_read_plainly(text))
            || (!lexing.encoding_safe && !text.is_ascii())
            || lexing.may_end_early(text)
            || lexing.may_fold(text)
    }

    /// What is on its way may change how the next text is read.
    pub(super) fn is_reading_in_doubt(&self) -> bool {
        self.reading.in_doubt
    }

    /// What a text may do, as far as it is known how the server reads it.
    pub(super) fn read_effects(&self, text: &[u8]) -> Effects {
        let found = effects(text, self.std_strings());
        if self.may_misread(text) { found.union(unread(text)) } else { found }
    }

    /// What a statement may do that was prepared before. Its text was read then, and is perhaps again, on another connection, when the
    /// settings are others.
    pub(super) fn effects_of_prepared(
        &self,
        name: &[u8],
        statement: &Statement,
        server: &ServerConn,
    ) -> Effects {
        let Reading { in_doubt, was_odd, .. } = self.reading;
        let is_as_it_was = || !was_odd && (!in_doubt || self.is_here(name, statement, server));
        if statement.is_read_plainly {
            return statement.effects;
        }
        let text = &statement.query;
        // Whether its tags are others depends on an encoding that may have been another one when it was prepared.
        let is_tagged = has_tag_beyond_ascii(text);
        if !is_tagged && is_as_it_was() {
            return statement.effects;
        }
        let either = effects(text, true).union(effects(text, false)).union(statement.effects);
        let misread = is_tagged || self.may_misread(text) || (was_odd && !text.is_ascii());
        if misread { either.union(unread(text)) } else { either }
    }

    /// A Bind in session mode, where names are not followed: of one of the texts that were parsed.
    pub(super) fn note_bind(&mut self) {
        let moves = self.reading.moves && self.follows_lexing();
        self.reading.in_doubt |= moves;
        self.reading.left |= moves;
    }

    /// Everything that is owed was answered, and a ReadyForQuery came last: nothing is on its way.
    pub(super) fn nothing_in_flight(&mut self, idle: bool) {
        self.unjudged.is_answered();
        self.reading.in_doubt = false;
        self.reading.left &= !idle;
    }

    /// The server says how it reads texts from here on.
    pub(super) fn note_parameter(&mut self, name: &[u8], value: &[u8]) {
        if !self.reading.lexing.hear(name, value) {
            return;
        }
        self.reading.moves = true;
        self.remember_reading();
    }

    /// As all these values say. An encoding that is not named is not safe.
    pub(super) fn know_lexing(&mut self, reported: &Reported) {
        self.reading.lexing = reported.lexing();
    }

    /// What is known is the client's own, and not what another one left on a connection.
    pub(super) fn remember_reading(&mut self) {
        let Lexing { std_strings, encoding_safe, .. } = self.reading.lexing;
        self.reading.was_odd |= !std_strings || !encoding_safe;
    }

    /// New rules, in the middle of a session. `is_open`: there may be portals.
    pub(super) fn take_rules(&mut self, rules: Rules, is_open: bool) {
        if rules.distrust_what_was_prepared(&self.rules) {
            self.unjudged = Unjudged::of_all(is_open);
        }
        if rules.needs_lexing() && !self.follows_lexing() {
            // Nobody kept track.
            (self.reading.moves, self.reading.in_doubt, self.reading.left) = (true, true, true);
        }
        self.rules = rules;
    }

    /// SQL's EXECUTE may run what nobody judged.
    fn executes_unseen(&self) -> bool {
        self.unjudged.any
            || (self.shares_servers() && self.bounds.session_state == SessionState::Allow)
            || self.shares_names()
    }

    /// Names pass untouched, on server connections that others had: a name may stand for what somebody else prepared.
    fn shares_names(&self) -> bool {
        self.shares_servers() && self.bounds.max_prepared == 0
    }

    fn judged(&self, text: &[u8], lexing: Lexing) -> Judged {
        let unseen = Unseen { statements: self.executes_unseen(), portals: self.unjudged.portals.is_some() };
        let judge = |readings: &mut Readings| texts::judge_text(&self.rules, text, lexing, unseen, readings);
        let mut judged = READINGS.with(|readings| judge(&mut readings.borrow_mut()));
        for (at, named) in judged.learned.drain(..) {
            if let Some(list) = self.rules.lists().get(at) {
                self.learner.note(&list.file, named);
            }
        }
        judged
    }

    /// Nothing is to be said to this text, so that it may also go another way than to the server.
    pub(super) fn passes(&self, text: &[u8]) -> bool {
        !self.rules.reads_texts()
            || (!self.unjudged.any && self.judged(text, self.reading.lexing).verdict == Verdict::Pass)
    }

    /// Writes down what is to be audited of a message of this type; the error of what is refused.
    fn settle_verdict(&self, message: &'static str, verdict: Verdict) -> Option<Error> {
        match verdict {
            Verdict::Pass | Verdict::Single => None,
            Verdict::Report(rejection) => {
                self.audit.record(message, &rejection, false);
                None
            }
            Verdict::Reject(rejection) => {
                let error = policy_error(&rejection);
                self.audit.record(message, &rejection, true);
                Some(error)
            }
        }
    }

    /// What `simple_query` says to the text of a Query.
    pub(super) fn query_verdict(&self, text: &[u8], lexing: Lexing) -> Verdict {
        READINGS.with(|readings| policy::judge_query(&self.rules, text, lexing, &mut readings.borrow_mut()))
    }

    /// The text of a Query.
    pub(super) fn rule_query(&self, text: &[u8], pipeline: &Pipeline) -> Ruling {
        if self.rules.passes_all_queries() && !self.rules.reads_texts() {
            return Ruling::Pass;
        }
        let Some(lexing) = self.lexing_of(text, pipeline) else { return Ruling::Wait };
        let verdict = self.query_verdict(text, lexing);
        let fold = verdict == Verdict::Single;
        if let Some(error) = self.settle_verdict("Query", verdict) {
            return Ruling::Refuse(error);
        }
        match self.rule_text("Query", text, lexing) {
            Some(error) => Ruling::Refuse(error),
            None if fold => Ruling::Fold,
            None => Ruling::Pass,
        }
    }

    /// What was judged when it was prepared is prepared on another connection now, where the server may read it otherwise.
    pub(super) fn rule_again(
        &self,
        message: &'static str,
        name: &[u8],
        statement: &Statement,
        server: &ServerConn,
    ) -> Ruling {
        if statement.is_read_plainly || self.is_here(name, statement, server) {
            return Ruling::Pass;
        }
        self.rule_prepared(message, &statement.query, &server.pipeline)
    }

    /// The text of a Parse.
    pub(super) fn rule_parse(&self, text: &[u8], pipeline: &Pipeline) -> Ruling {
        self.rule_prepared("Parse", text, pipeline)
    }

    /// A text that is about to be prepared, because of this message.
    fn rule_prepared(&self, message: &'static str, text: &[u8], pipeline: &Pipeline) -> Ruling {
        if !self.rules.reads_texts() {
            return Ruling::Pass;
        }
        let Some(lexing) = self.lexing_of(text, pipeline) else { return Ruling::Wait };
        match self.rule_text(message, text, lexing) {
            Some(error) => Ruling::Refuse(error),
            None => Ruling::Pass,
        }
    }

    fn rule_text(&self, message: &'static str, text: &[u8], lexing: Lexing) -> Option<Error> {
        if !self.rules.reads_texts() {
            return None;
        }
        let judged = self.judged(text, lexing);
        self.settle_verdict(message, judged.verdict)
    }

    /// A Query of so many bytes, which is too long to be held.
    pub(super) fn rule_long_query(&self, bytes: usize) -> Option<Error> {
        let verdict = policy::judge_long_query(&self.rules, bytes);
        let long = || self.settle_verdict("Query", texts::judge_long_text(&self.rules, bytes));
        self.settle_verdict("Query", verdict).or_else(long)
    }

    /// A Parse of so many bytes, which is too long to be held.
    pub(super) fn rule_long_text(&self, bytes: usize) -> Option<Error> {
        let verdict = texts::judge_long_text(&self.rules, bytes);
        self.settle_verdict("Parse", verdict)
    }

    /// A FunctionCall.
    pub(super) fn rule_function_call(&self) -> Option<Error> {
        let verdict = policy::judge_function_call(&self.rules);
        self.settle_verdict("FunctionCall", verdict)
    }

    /// There may be something to say to a Bind of `name`: where the rules became stricter in the session's life, or
    /// names are shared, which the unnamed statement never is. Otherwise what is bound was judged when it was prepared.
    pub(super) fn rules_binds(&self, name: &[u8]) -> bool {
        self.rules.reads_texts() && (self.unjudged.any || (self.shares_names() && !name.is_empty()))
    }

    /// A Bind of which [`State::rules_binds`] is true. `text` is not known where names are not followed.
    pub(super) fn rule_bind(&self, text: Option<&[u8]>, unnamed: bool, pipeline: &Pipeline) -> Ruling {
        match text {
            // The server read it when it was parsed, and nobody knows how it read then.
            Some(text) => self.rule_text("Bind", text, Lexing::UNSURE).map_or(Ruling::Pass, Ruling::Refuse),
            None if unnamed => self.rule_since("Bind", self.unjudged.unnamed, pipeline),
            None => self.rule_since("Bind", Since::Before, pipeline),
        }
    }

    /// What runs the thing behind a name of which no text is known.
    fn rule_since(&self, message: &'static str, since: Since, pipeline: &Pipeline) -> Ruling {
        match self.unjudged.was_judged(since, pipeline) {
            None => Ruling::Wait,
            Some(true) => Ruling::Pass,
            Some(false) => self.rule_unseen(message).map_or(Ruling::Pass, Ruling::Refuse),
        }
    }

    fn rule_unseen(&self, message: &'static str) -> Option<Error> {
        self.settle_verdict(message, texts::judge_unseen(&self.rules))
    }

    /// A Bind of a name that the protocol did not prepare.
    pub(super) fn rule_unknown_name(&self) -> Option<Error> {
        if self.executes_unseen() { self.rule_unseen("Bind") } else { None }
    }

    /// A Bind was sent on: if the server runs it, its portal was judged by the rules of today.
    pub(super) fn note_portal(&mut self, portal: &[u8]) {
        let Unjudged { portals: Some(portals), unit, .. } = &mut self.unjudged else { return };
        let portal = told_apart(portal);
        if portals.len() < PORTALS_MAX || portals.contains_key(portal) {
            portals.insert(portal.into(), Since::Sent(*unit));
        }
    }

    /// An Execute, after the rules became stricter in the middle of a transaction.
    ///
    /// # Errors
    /// The message is malformed.
    pub(super) fn rule_execute(&self, body: &[u8], pipeline: &Pipeline) -> Result<Ruling, Fault> {
        let Some(portals) = &self.unjudged.portals else { return Ok(Ruling::Pass) };
        let (portal, _) = crate::wire::frontend::execute(body)?;
        let since = portals.get(told_apart(portal)).copied().unwrap_or_default();
        Ok(self.rule_since("Execute", since, pipeline))
    }
}
