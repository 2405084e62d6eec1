//! The extended protocol: Parse, Describe, Close, and what a Bind needs of them (`bind`).
//!
//! Owns: which statement on the server a client's name stands for, and what has to be prepared first.

use std::sync::Arc;

use super::copy::not_in_copy;
use super::lend::is_the_clients_own;
use super::{Expected, FORGETS_NAMES, Fault, Refusal, State, Taken, UNKEPT};
use crate::client::judge::Ruling;
use crate::client::session::unnamed_statement;
use crate::error::Error;
use crate::limits::{PIPELINE_MAX, PREPARED_NAMES_MAX, PREPARED_TEXT_BYTES_MAX};
use crate::proto::pipeline::{Action, Kind};
use crate::proto::prepared::{
    NO_ROWS, SERVER_NAME_PREFIX, Statement, Statements, settings_of_texts, told_apart,
};
use crate::server::ServerConn;
use crate::sql::block::{may_end, returns_nothing};
use crate::sql::effects::Effects;
use crate::sql::moves::{is_execute, makes_for_all};
use crate::sql::scan::params_of;
use crate::wire::{TransactionStatus, backend as b, frontend as f};

/// In the class of an unnamed statement: its text is not read as others are.
const READ_OTHERWISE: u64 = 1 << 63;

/// The name of a statement that stands for one that a client has already.
const TAKEN: &[u8] = b"pgsluice_taken";

/// The name of a statement that stands for one that cannot be prepared, or is not to be run as it is.
pub(super) const STAND_IN: &[u8] = b"pgsluice_stand_in";

/// `text`: a type for its parameters.
const TEXT_OID: u32 = 25;

/// What a DEALLOCATE of ours takes away.
const DEALLOCABLE: &[u8] = b"pgsluice_deallocate";

/// Takes it away.
pub(super) const DEALLOCATE: &[u8] = b"DEALLOCATE pgsluice_deallocate";

impl State {
    pub(super) fn take_parse(
        &mut self,
        body: &[u8],
        server: &mut ServerConn,
        reply: &mut Vec<u8>,
    ) -> Result<Taken, Fault> {
        let parse = f::Parse::decode(body)?;
        if !parse.name.is_empty() && self.waits_for_name(parse.name, server) {
            return Ok(Taken::Later);
        }
        match self.rule_parse(parse.query, &server.pipeline) {
            Ruling::Wait => return Ok(Taken::Later),
            Ruling::Refuse(error) => {
                self.counts.client_parses += 1;
                return Ok(self.refuse_parse(parse.name.is_empty(), Refusal::Ours(error), server));
            }
            Ruling::Pass | Ruling::Fold => {}
        }
        self.counts.client_parses += 1;
        self.make_way(parse.query, server);
        if self.is_of_the_pool(parse.name) {
            return Ok(self.refuse_parse(
                false,
                Refusal::Ours(Error::duplicate_statement(parse.name)),
                server,
            ));
        }
        if !self.tracks(parse.name) {
            self.counts.server_parses += 1;
            server.names_passed |= self.shares_servers();
            // Names pass untouched, but what a text may do still counts.
            let found = self.effects_of(parse.query);
            self.tainted(found, parse.query);
            self.note_made(makes_for_all(parse.query));
            if parse.name.is_empty() {
                self.unjudged.note_unnamed();
            }
            server.pipeline.push(Kind::Parse, Action::Forward, false);
            return Ok(Taken::Forward);
        }
        if parse.name.is_empty() {
            self.parse_unnamed(&parse, server)
        } else {
            self.parse_named(&parse, server, reply)
        }
    }

    /// Names pass untouched, and this one may be that of what pgsluice asks and sets itself, for all clients of the server connection:
    /// nobody takes its place, or takes it away.
    pub(super) fn is_of_the_pool(&self, name: &[u8]) -> bool {
        self.shares_servers() && !self.tracks(name) && name.starts_with(SERVER_NAME_PREFIX.as_bytes())
    }

    /// What a name means hangs on an earlier unit that is not answered yet: the message that speaks of it waits. On the server
    /// there might be somebody else's statement, or none.
    pub(super) fn waits_for_name(&mut self, name: &[u8], server: &mut ServerConn) -> bool {
        let pipeline = &server.pipeline;
        let is_owed = !pipeline.is_empty() && !pipeline.in_copy_in();
        if !is_owed || !self.names.is_in_doubt(name, pipeline.names_in_unit()) {
            return false;
        }
        self.await_answers(server);
        true
    }

    /// Whether what is bound or described can be prepared hangs on whether its block is still a failed one.
    pub(super) fn waits_for_end_of_failed(&mut self, server: &mut ServerConn) -> bool {
        if !self.shares_servers() || !server.pipeline.may_have_left_failed() {
            return false;
        }
        self.await_answers(server);
        true
    }

    /// Whether it can be prepared here hangs on whether an earlier unit, which is not answered yet, has failed its block.
    pub(super) fn waits_to_prepare(
        &mut self,
        name: &[u8],
        statement: &Statement,
        server: &mut ServerConn,
    ) -> bool {
        let pipeline = &server.pipeline;
        let may_fail = pipeline.owes_end_of_unit() && !pipeline.in_copy_in();
        if !may_fail || may_end(&statement.query) || self.is_here(name, statement, server) {
            return false;
        }
        self.await_answers(server);
        true
    }

    /// See [`State::rule_again`]. `None`: nothing is to be said to it.
    pub(super) fn judged_again(
        &mut self,
        kind: Kind,
        name: &[u8],
        statement: &Statement,
        server: &mut ServerConn,
    ) -> Option<Taken> {
        let message = if kind == Kind::Bind { "Bind" } else { "Describe" };
        match self.rule_again(message, name, statement, server) {
            Ruling::Pass | Ruling::Fold => None,
            Ruling::Wait => {
                self.await_answers(server);
                Some(Taken::Later)
            }
            Ruling::Refuse(error) => {
                self.refuse(kind, error, server);
                Some(Taken::Drop)
            }
        }
    }

    /// This statement of the client's, of this name, is prepared on this connection.
    pub(in crate::client) fn is_here(&self, name: &[u8], statement: &Statement, server: &ServerConn) -> bool {
        if name.is_empty() {
            self.names.unnamed_is_at(&server.names, server.shared.id)
        } else {
            server.names.holds(statement.id)
        }
    }

    /// It is not here, and its failed block keeps it from being prepared.
    pub(super) fn needs_stand_in(&self, name: &[u8], statement: &Statement, server: &ServerConn) -> bool {
        cannot_be_prepared(statement, server) && !self.is_here(name, statement, server)
    }

    fn parse_unnamed(&mut self, parse: &f::Parse<'_>, server: &mut ServerConn) -> Result<Taken, Fault> {
        let statement = self.unnamed(parse);
        if let Some(error) = self.state_refusal(statement.effects) {
            return Ok(self.refuse_parse(true, Refusal::Ours(error), server));
        }
        if self.waits_to_lend(parse.query, statement.effects, server) {
            self.counts.client_parses -= 1;
            return Ok(Taken::Later);
        }
        self.lend(parse.query, statement.effects, server);
        self.counts.server_parses += 1;
        self.note_custom_settings(parse.query, statement.effects);
        // What was told of another one holds again where this Parse is struck.
        self.shapes.unnamed_told.take_if(|id| *id == statement.id);
        self.shapes.unnamed_rows.take_if(|(id, _)| *id == statement.id);
        self.names.parse_unnamed(statement, &mut server.names, server.shared.id);
        server.pipeline.push(Kind::Parse, Action::Forward, true);
        Ok(Taken::Forward)
    }

    /// The statement of a Parse without a name: the same one for the same text, where that is read as it was.
    fn unnamed(&self, parse: &f::Parse<'_>) -> Arc<Statement> {
        let f::Parse { query, types, .. } = *parse;
        let class = self.vars.want.pour_class;
        if !self.std_strings() || self.may_misread(query) {
            return Statement::under(query, types, class ^ READ_OTHERWISE, self.read_effects(query));
        }
        let same = |s: &&Arc<Statement>| s.is(query, types, class) && !s.has_moved();
        let same = self.names.lookup(b"").filter(same).cloned();
        same.unwrap_or_else(|| unnamed_statement(query, types, class))
    }

    /// The statement of a Parse with a name, held once for all clients. `None`: a text more would be over the budget.
    fn kept(&self, parse: &f::Parse<'_>) -> Option<Arc<Statement>> {
        let statement = self.shared.statements.intern(
            parse.query,
            parse.types,
            self.class_of_texts() ^ self.apart(parse.query),
            || self.read_effects(parse.query),
            self.bounds.prepared_bytes_max,
            &self.texts,
        )?;
        self.note_settings(&statement);
        Some(statement)
    }

    /// What a name would mean behind this Parse, and behind `others` of other names, where no server has to be asked: the name
    /// is free and there is room. Its text is one that is known.
    pub(in crate::client) fn prepared_unasked(
        &self,
        parse: &f::Parse<'_>,
        others: usize,
    ) -> Option<Arc<Statement>> {
        let free =
            self.tracks_names() && self.names.lookup(parse.name).is_none() && !self.may_be_sqls(parse.name);
        let free = free && parse.name.is_ascii() && !self.is_apart(parse.query);
        if free && self.names.len() + others < PREPARED_NAMES_MAX { self.kept(parse) } else { None }
    }

    fn parse_named(
        &mut self,
        parse: &f::Parse<'_>,
        server: &mut ServerConn,
        reply: &mut Vec<u8>,
    ) -> Result<Taken, Fault> {
        if self.names.lookup(parse.name).is_some() {
            return Ok(self.refuse_name(parse, server));
        }
        let Some(statement) = self.kept(parse) else {
            return Ok(self.refuse_bytes(Kind::Parse, server));
        };
        if let Some(error) = self.state_refusal(statement.effects) {
            return Ok(self.refuse(Kind::Parse, error, server));
        }
        if self.names.len() >= PREPARED_NAMES_MAX {
            return Ok(self.refuse(Kind::Parse, Error::prepared_names(PREPARED_NAMES_MAX), server));
        }
        if self.waits_to_lend(parse.query, statement.effects, server) {
            self.counts.client_parses -= 1;
            return Ok(Taken::Later);
        }
        self.note_custom_settings(parse.query, statement.effects);
        self.lend(parse.query, statement.effects, server);
        // Whether it is characters of the client's encoding the server knows: it hears no other name of the client's.
        if self.may_be_sqls(parse.name) || !parse.name.is_ascii() {
            return Ok(self.parse_unless_taken(parse, statement, server));
        }
        if server.names.holds(statement.id) {
            if !server.pipeline.may_be_failed() && !server.pipeline.is_in_unit_of_query() {
                not_in_copy(&server.pipeline)?;
                self.names.parse(parse.name, statement, None);
                if server.pipeline.push(Kind::Parse, Action::Fake, true) {
                    b::put_empty(reply, b::PARSE_COMPLETE);
                    self.names.settle();
                }
                return Ok(Taken::Done);
            }
            // In a failed block PostgreSQL refuses almost every Parse, and behind a Query inside a unit one matters: let it judge.
            server.names.forget(statement.id);
            server.put_close(statement.id, &mut self.names, Action::Skip);
        }
        server.make_room(statement.id, &mut self.names, self.bounds.max_prepared, Action::Skip);
        self.counts.server_parses += 1;
        let (query, types) = (&statement.query, &statement.types);
        f::put_parse(&mut server.conn.out, statement.server_name.as_bytes(), query, types);
        server.pipeline.push(Kind::Parse, Action::Forward, true);
        let id = statement.id;
        self.names.parse(parse.name, statement, Some(id));
        Ok(Taken::Done)
    }

    /// SQL's PREPARE may have made this name on the server connection at hand.
    pub(super) fn may_be_sqls(&self, name: &[u8]) -> bool {
        let made = self.ties.sql_prepared || self.ties.taint.intersects(Effects::PREPARE);
        made && is_the_clients_own(name)
    }

    /// The name is asked of the server: it is taken up there, and away again, because the statement has another one. A Bind prepares
    /// it under that.
    fn parse_unless_taken(
        &mut self,
        parse: &f::Parse<'_>,
        statement: Arc<Statement>,
        server: &mut ServerConn,
    ) -> Taken {
        if self.is_lent(parse.name) {
            f::put_target(&mut server.conn.out, f::CLOSE, b'S', parse.name);
            server.pipeline.push(Kind::Close, Action::Skip, false);
        }
        self.counts.server_parses += 1;
        f::put_parse(&mut server.conn.out, parse.name, parse.query, parse.types);
        f::put_target(&mut server.conn.out, f::CLOSE, b'S', parse.name);
        server.pipeline.push(Kind::Parse, Action::Forward, true);
        server.pipeline.push(Kind::Close, Action::Skip, false);
        self.names.parse(parse.name, statement, None);
        Taken::Done
    }

    /// Whose named statements of the same text and types are one: of this pool (another's user or database has other tables
    /// by the same names), with the same settings, whose texts are read in the same way.
    pub(in crate::client) fn class_of_texts(&self) -> u64 {
        self.settings_of_texts() ^ self.meaning.pool ^ self.meaning.own
    }

    fn settings_of_texts(&self) -> u64 {
        settings_of_texts(&self.vars.want, self.std_strings())
    }

    /// What only its transaction knows no class can name: a class of its own. 0: there is nothing.
    fn apart(&self, text: &[u8]) -> u64 {
        if self.is_apart(text) { Statements::own_catalog() } else { 0 }
    }

    /// The settings that a statement is parsed under first, where a class names them.
    fn note_settings(&self, statement: &Statement) {
        if !self.is_apart(&statement.query) {
            statement.settings.get_or_init(|| self.settings_of_texts());
        }
    }

    /// Also as long as it is not known how a text is read, and where it returns what a statement does that has the name now.
    fn is_apart(&self, text: &[u8]) -> bool {
        self.meaning.open || is_execute(text) || (self.is_reading_in_doubt() && self.may_misread(text))
    }

    /// A statement that would be parsed on this connection under other settings than it was: it may mean something else then,
    /// and stands for itself, so that nobody else who prepared that text under those of before is given it. `None`: there is no room for it.
    fn under_settings_of_now(
        &mut self,
        statement: Arc<Statement>,
        server: &ServerConn,
    ) -> Option<Arc<Statement>> {
        let now = self.settings_of_texts() ^ self.apart(&statement.query);
        let Some(&before) = statement.settings.get().filter(|before| **before != now) else {
            return Some(statement);
        };
        if server.names.holds(statement.id) {
            return Some(statement);
        }
        // One for each transaction that has settings of its own would be too many for what types alone are.
        let is_open = || statement.leaves_types_open() && !self.is_apart(&statement.query);
        if !statement.reads_settings() && !is_open() {
            return Some(statement);
        }
        let Statement { query, types, class, .. } = &*statement;
        let (class, max) = (class ^ before ^ now, self.bounds.prepared_bytes_max);
        let read = || self.read_effects(query);
        let under = |class| self.shared.statements.intern(query, types, class, read, max, &self.texts);
        let mut new = under(class)?;
        if !new.is_told_as(&statement) {
            // Who has that one was told otherwise, before or behind a change of a table.
            new = under(class ^ Statements::own_catalog())?;
            new.is_told_as(&statement);
        }
        self.note_settings(&new);
        if self.shapes.was_told(statement.id) {
            self.tell_named(new.id);
        }
        self.names.replace(statement.id, &new);
        Some(new)
    }

    /// The name is taken. That is what PostgreSQL says last: it reads the text first.
    fn refuse_name(&mut self, parse: &f::Parse<'_>, server: &mut ServerConn) -> Taken {
        let out = &mut server.conn.out;
        f::put_target(out, f::CLOSE, b'S', TAKEN);
        f::put_parse(out, TAKEN, b"", &[]);
        f::put_parse(out, TAKEN, parse.query, parse.types);
        for (kind, action) in
            [(Kind::Close, Action::Skip), (Kind::Parse, Action::Skip), (Kind::Parse, Action::Refuse)]
        {
            server.pipeline.push(kind, action, false);
        }
        self.refusals.push_back(Refusal::Taken(Error::duplicate_statement(parse.name)));
        Taken::Done
    }

    /// A text more would be over the budget of kept ones.
    pub(super) fn refuse_bytes(&mut self, kind: Kind, server: &mut ServerConn) -> Taken {
        self.refuse(kind, Error::prepared_bytes(self.bounds.prepared_bytes_max), server)
    }

    /// An unnamed statement too long to be kept streams through; it can be bound while this server is kept.
    /// `body` is what there is of it, of so many bytes.
    pub(super) fn take_long_parse(
        &mut self,
        (bytes, body): (usize, &[u8]),
        server: &mut ServerConn,
    ) -> Result<Taken, Fault> {
        let unnamed = body.first() == Some(&0);
        // Whose name it is must be seen.
        if !unnamed && self.shares_servers() && body.len() < SERVER_NAME_PREFIX.len() {
            return Ok(Taken::NeedMore);
        }
        self.counts.client_parses += 1;
        if let Some(error) = self.rule_long_text(bytes) {
            self.refuse_parse(unnamed, Refusal::Ours(error), server);
            return Ok(Taken::Drop);
        }
        if self.tracks_names() && !unnamed {
            self.refuse(Kind::Parse, Error::prepared_text(PREPARED_TEXT_BYTES_MAX), server);
            return Ok(Taken::Drop);
        }
        if self.is_of_the_pool(body) {
            let name = body.split(|byte| *byte == 0).next().unwrap_or_default();
            self.refuse(Kind::Parse, Error::duplicate_statement(told_apart(name)), server);
            return Ok(Taken::Drop);
        }
        server.names_passed |= self.shares_servers() && !unnamed;
        self.note_in_flight(Effects::UNKNOWN);
        self.note_made(true);
        self.counts.server_parses += 1;
        if self.shares_servers() {
            self.ties.doubt(Effects::UNKNOWN);
        }
        if unnamed {
            self.names.forget_unnamed();
            server.names.unnamed = Some(UNKEPT);
            self.names.parse_on_server(UNKEPT);
        }
        server.pipeline.push(Kind::Parse, Action::Forward, unnamed);
        Ok(Taken::Forward)
    }

    /// A statement whose parameters have other types by now, where a Parse settles them: who was told those of before keeps them,
    /// declared, as PostgreSQL holds on to them when it plans a prepared statement anew; who was told nothing has those of
    /// now. Its rows are still compared with what was told of them. `None`: there is no room for it.
    pub(super) fn settled(
        &mut self,
        statement: Arc<Statement>,
        server: &ServerConn,
    ) -> Option<Arc<Statement>> {
        let statement = self.under_settings_of_now(statement, server)?;
        if !statement.has_moved() {
            return Some(statement);
        }
        let told = statement.params.get().filter(|_| self.shapes.was_told(statement.id));
        let (types, shape) = (told.unwrap_or(&statement.types), statement.shape.get().copied());
        let new = self.shown(&statement, types, shape)?;
        self.names.replace(statement.id, &new);
        Some(new)
    }

    /// A statement that was described on one connection must not be run on another one where its rows look different, or its
    /// parameters are read as other types (a table was changed meanwhile): where that is not known its description is asked for first.
    pub(super) fn asks_for_description(
        &mut self,
        statement: &Arc<Statement>,
        server: &mut ServerConn,
    ) -> bool {
        let returns_rows = || statement.shape.get().is_some_and(|shape| *shape != NO_ROWS);
        let is_otherwise = server.names.holds_otherwise(statement.id);
        // That it is there is not enough: another client may have parsed it there behind a change that was not seen.
        let is_known = if statement.was_told_open() || returns_rows() {
            server.names.holds_as_told(statement.id)
        } else {
            !is_otherwise
        };
        if is_known || server.pipeline.status() == TransactionStatus::Failed {
            return false;
        }
        if is_otherwise {
            // It may have been parsed in a session with another table by that name, or in a block that was rolled back.
            server.names.forget(statement.id);
            server.put_close(statement.id, &mut self.names, Action::Skip);
        }
        self.ensure_for_client(statement, server);
        self.ask_for_description(statement.server_name.as_bytes(), statement, server);
        true
    }

    pub(super) fn ensure_for_client(&mut self, statement: &Statement, server: &mut ServerConn) {
        if !server.names.holds(statement.id) {
            self.counts.server_parses += 1;
            server.ensure(statement, &mut self.names, self.bounds.max_prepared, Action::Skip);
            if self.may_name_another_table() && statement.leaves_types_open() {
                server.names.doubt(statement.id);
            }
        }
    }

    /// As in a block with SET LOCAL or DDL, which may be rolled back, or beside a temporary table: what is parsed here is not
    /// what it is to others, or will be.
    fn may_name_another_table(&self) -> bool {
        self.meaning.open || self.ties.pinned
    }

    /// The server's unnamed statement becomes this client's, or none if the client has none.
    pub(super) fn ensure_unnamed(&mut self, server: &mut ServerConn) {
        match self.names.lookup(b"") {
            Some(statement) => {
                self.forgetting = statement.effects.intersects(FORGETS_NAMES);
                if !self.names.unnamed_is_at(&server.names, server.shared.id) {
                    let statement = Arc::clone(statement);
                    self.counts.server_parses += 1;
                    let told =
                        statement.params.get().filter(|_| self.shapes.unnamed_told == Some(statement.id));
                    let types = told.unwrap_or(&statement.types);
                    f::put_parse(&mut server.conn.out, b"", &statement.query, types);
                    self.names.parse_unnamed_again(&mut server.names, server.shared.id);
                    server.pipeline.push(Kind::Parse, Action::Skip, true);
                }
            }
            // Also where none is known of: somebody's may stand there.
            None if server.names.unnamed != Some(UNKEPT) => {
                f::put_target(&mut server.conn.out, f::CLOSE, b'S', b"");
                server.pipeline.push(Kind::Close, Action::Skip, false);
                server.names.unnamed = None;
            }
            None => {}
        }
    }

    pub(super) fn take_describe(&mut self, body: &[u8], server: &mut ServerConn) -> Result<Taken, Fault> {
        let (kind, name) = f::target(f::DESCRIBE, body)?;
        if kind == b'S' && (self.waits_for_name(name, server) || self.waits_for_end_of_failed(server)) {
            return Ok(Taken::Later);
        }
        if kind == b'S' && self.tracks(name) {
            if let Some(taken) = self.describe_tracked(name, server) {
                return Ok(taken);
            }
        } else if kind == b'S' && self.is_of_the_pool(name) {
            return Ok(self.refuse(Kind::Describe, Error::unknown_statement(name), server));
        }
        let of_it = |(portal, _): &mut (Box<[u8]>, _)| kind == b'P' && **portal == *told_apart(name);
        let bound = self.shapes.bound.take_if(of_it);
        server.pipeline.push_about(Kind::Describe, Action::Forward, bound.as_ref().map_or(0, |(_, s)| s.id));
        if let Some((_, statement)) = bound {
            self.expect_shape(None, statement);
        }
        Ok(Taken::Forward)
    }

    /// Of a statement whose name is followed. `None`: nobody knows of one, which is for the server to say.
    fn describe_tracked(&mut self, name: &[u8], server: &mut ServerConn) -> Option<Taken> {
        if !name.is_empty()
            && let Some(statement) = self.names.lookup(name).cloned()
            && self.settled(statement, server).is_none()
        {
            return Some(self.refuse_bytes(Kind::Describe, server));
        }
        if let Some(statement) = self.names.lookup(name).cloned() {
            if self.waits_to_prepare(name, &statement, server)
                || self.waits_to_lend(&statement.query, statement.effects, server)
            {
                return Some(Taken::Later);
            }
            self.note_work(&statement);
            // Before anything prepares it here: what is here is not looked at again.
            if let Some(taken) = self.judged_again(Kind::Describe, name, &statement, server) {
                return Some(taken);
            }
            let was_asked = self.shapes.otherwise.take() == Some(statement.id);
            let is_compared = !name.is_empty() && !was_asked && statement.was_told_open();
            if is_compared && self.asks_for_description(&statement, server) {
                return Some(Taken::Later);
            }
            self.lend(&statement.query, statement.effects, server);
        }
        let known = self.names.lookup(name).cloned();
        let by_stand_in =
            |s: &&Arc<Statement>| self.needs_stand_in(name, s, server) && is_told_by_stand_in(s);
        if let Some(statement) = known.as_ref().filter(by_stand_in) {
            put_stand_in(statement, server);
            f::put_target(&mut server.conn.out, f::DESCRIBE, b'S', STAND_IN);
            server.pipeline.push(Kind::Describe, Action::Forward, false);
            return Some(Taken::Done);
        }
        if name.is_empty() {
            self.ensure_unnamed(server);
            if let Some(statement) = known {
                server.pipeline.push_about(Kind::Describe, Action::Forward, statement.id);
                self.expect_shape(None, statement);
                return Some(Taken::Forward);
            }
        } else if let Some(statement) = known {
            self.ensure_for_client(&statement, server);
            f::put_target(&mut server.conn.out, f::DESCRIBE, b'S', statement.server_name.as_bytes());
            server.pipeline.push_about(Kind::Describe, Action::Forward, statement.id);
            self.expect_shape(Some(name), statement);
            return Some(Taken::Done);
        } else if name.starts_with(SERVER_NAME_PREFIX.as_bytes()) {
            return Some(self.refuse(Kind::Describe, Error::unknown_statement(name), server));
        }
        None
    }

    /// As [`State::asks_for_description`], of the unnamed statement, where it has to be parsed again: each Parse makes another one, and
    /// only that it is still here tells that it is the one that was described.
    pub(super) fn asks_for_unnamed_rows(
        &mut self,
        statement: &Arc<Statement>,
        server: &mut ServerConn,
    ) -> bool {
        let told = self.shapes.rows_of_unnamed(statement).filter(|rows| *rows != NO_ROWS);
        if told.is_none()
            || self.is_here(b"", statement, server)
            || server.pipeline.status() == TransactionStatus::Failed
        {
            return false;
        }
        self.ensure_unnamed(server);
        self.ask_for_description(b"", statement, server);
        true
    }

    /// A Describe of ours, which what the client sent waits for.
    fn ask_for_description(&mut self, name: &[u8], statement: &Arc<Statement>, server: &mut ServerConn) {
        f::put_target(&mut server.conn.out, f::DESCRIBE, b'S', name);
        server.pipeline.push_about(Kind::Describe, Action::Skip, statement.id);
        self.expect_shape(None, Arc::clone(statement));
        self.await_answers(server);
    }

    fn expect_shape(&mut self, name: Option<&[u8]>, statement: Arc<Statement>) {
        // Those whose Describe was struck by an error stay here until nothing is owed.
        if self.shapes.described.len() >= PIPELINE_MAX {
            self.shapes.described.clear();
        }
        self.shapes.described.push_back(Expected { name: name.map(Box::from), statement });
    }

    /// The name that a Close means is free, where no server has to be asked. False: one has.
    pub(in crate::client) fn closes_unasked(&mut self, body: &[u8]) -> bool {
        match f::target(f::CLOSE, body) {
            Ok((b'S', name)) if self.tracks(name) => {
                self.names.forget(name);
                true
            }
            Ok((b'P', _)) => true,
            _ => false,
        }
    }

    pub(super) fn take_close(
        &mut self,
        body: &[u8],
        server: &mut ServerConn,
        reply: &mut Vec<u8>,
    ) -> Result<Taken, Fault> {
        let (kind, name) = f::target(f::CLOSE, body)?;
        if kind == b'P' {
            self.note_no_deallocate(name);
        }
        if kind == b'S' && self.waits_for_name(name, server) {
            return Ok(Taken::Later);
        }
        if kind == b'S' && self.is_lent(name) && !server.pipeline.in_copy_in() {
            return Ok(self.close_lent(name, server));
        }
        if kind == b'S' && (self.tracks(name) || self.is_of_the_pool(name)) {
            let ours = name.starts_with(SERVER_NAME_PREFIX.as_bytes());
            if !name.is_empty() && (ours || self.names.lookup(name).is_some()) {
                not_in_copy(&server.pipeline)?;
                self.names.close(name);
                if server.pipeline.push(Kind::Close, Action::Fake, true) {
                    b::put_empty(reply, b::CLOSE_COMPLETE);
                    self.names.settle();
                }
                return Ok(Taken::Done);
            }
            if name.is_empty() {
                self.names.close_unnamed(&mut server.names);
                server.pipeline.push(Kind::Close, Action::Forward, true);
                return Ok(Taken::Forward);
            }
        }
        server.pipeline.push(Kind::Close, Action::Forward, false);
        Ok(Taken::Forward)
    }
}

/// To be bound, by the name of what stands in for others.
pub(super) fn put_deallocate(types: &[u8], server: &mut ServerConn) {
    put_in_place(DEALLOCATE, types, server);
}

fn put_in_place(text: &[u8], types: &[u8], server: &mut ServerConn) {
    let out = &mut server.conn.out;
    f::put_target(out, f::CLOSE, b'S', STAND_IN);
    f::put_parse(out, STAND_IN, text, types);
    server.pipeline.push(Kind::Close, Action::Skip, false);
    server.pipeline.push(Kind::Parse, Action::Skip, false);
}

/// A statement to deallocate: the one that the client means is shared, and may not even be prepared again (its table is gone).
pub(super) fn put_deallocable(server: &mut ServerConn) {
    f::put_target(&mut server.conn.out, f::CLOSE, b'S', DEALLOCABLE);
    f::put_parse(&mut server.conn.out, DEALLOCABLE, b"SELECT", &[]);
    server.pipeline.push(Kind::Close, Action::Skip, false);
    server.pipeline.push(Kind::Parse, Action::Skip, false);
}

/// Its block has failed: PostgreSQL parses only what ends one then.
pub(super) fn cannot_be_prepared(statement: &Statement, server: &ServerConn) -> bool {
    server.pipeline.status() == TransactionStatus::Failed && !may_end(&statement.query)
}

/// A statement without a text can be prepared all the same, and its Bind is refused as that of the other is: for the number of its
/// parameters first, for the block then. It is described as the other is that returns no rows, where the types are known.
pub(super) fn put_stand_in(statement: &Statement, server: &mut ServerConn) {
    let types = known_types(statement).map_or_else(
        || TEXT_OID.to_be_bytes().repeat(number_of_params(statement)).into(),
        std::borrow::Cow::Borrowed,
    );
    put_in_place(b"", &types, server);
}

fn number_of_params(statement: &Statement) -> usize {
    usize::from(params_of(&statement.query)).max(statement.types.len() / 4)
}

/// The types of its parameters, where the server has told them or its Parse said them all.
fn known_types(statement: &Statement) -> Option<&[u8]> {
    let said = || {
        statement.types.len() / 4 >= number_of_params(statement)
            && statement.types.chunks(4).all(|t| t != [0; 4])
    };
    statement.params.get().map(|types| &**types).or_else(|| said().then_some(&statement.types))
}

/// It can be described without being prepared.
fn is_told_by_stand_in(statement: &Statement) -> bool {
    let nothing = || match statement.shape.get() {
        Some(shape) => *shape == NO_ROWS,
        None => returns_nothing(&statement.query),
    };
    known_types(statement).is_some() && nothing()
}
