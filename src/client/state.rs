//! What a session remembers between messages, and what becomes of each frontend message.
//!
//! Owns: prepared names, settings, taint, refusals; the decision for each message. Never: touches a socket (it is
//! given the frame and appends to buffers).

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Auditor;
use super::judge::Ruling;
use crate::coalesce::lane::Work;
use crate::error::Error;
use crate::learn::Learner;
use crate::limits::{
    PIPELINE_MAX, PREPARED_NAMES_MAX, PREPARED_TEXT_BYTES_MAX, SHORT_MESSAGE_BYTES_MAX,
    SMALL_MESSAGE_BYTES_MAX, STATEMENT_BYTES_MAX,
};
use crate::policy::{self, Rules};
use crate::pool::{self, registry::Shared};
use crate::proto::fold::Fold;
use crate::proto::pipeline::{Action, Answer, Fence, Kind, Pipeline};
use crate::proto::prepared::{
    ClientNames, Moved, NO_ROWS, SERVER_NAME_PREFIX, ServerNames, Statement, Statements,
};
use crate::proto::vars::VarSet;
use crate::server::{Reported, ServerConn, ServerShared};
use crate::settings::{General, PoolMode, SessionState};
use crate::sql::effects::{Effects, effects};
use crate::wire::frame::{self, HEADER_BYTES, Header};
use crate::wire::{DecodeError, TransactionStatus, backend as b, frontend as f};

/// Id that stands for an unnamed statement too long to be kept. It goes when the server is released.
pub const UNKEPT: u64 = u64::MAX;

/// What may be carried, asked for after a transaction that may have changed it.
pub const PROBED: Effects = Effects::SETTINGS
    .union(Effects::LISTEN)
    .union(Effects::ADVISORY_LOCK)
    .union(Effects::TEMP)
    .union(Effects::HOLD_CURSOR)
    .union(Effects::PREPARE)
    .union(Effects::DISCARD)
    .union(Effects::DISCARD_ALL)
    .union(Effects::LOAD)
    .union(Effects::EXECUTE)
    .union(Effects::UNKNOWN);

/// What may have changed state that is bound to a connection: it is not vouched for without a probe.
pub const UNPINS: Effects =
    PROBED.union(Effects::CLOSE).union(Effects::DEALLOCATE).union(Effects::DEALLOCATE_ALL);

/// State that lives on one server connection only.
pub const BOUND: Effects = Effects::LISTEN
    .union(Effects::ADVISORY_LOCK)
    .union(Effects::TEMP)
    .union(Effects::HOLD_CURSOR)
    .union(Effects::PREPARE);

/// Prepared statements go with it.
pub const FORGETS_NAMES: Effects = Effects::DISCARD_ALL.union(Effects::DEALLOCATE_ALL);

/// Why a session can't go on.
#[derive(Debug)]
pub enum Fault {
    /// The client broke the protocol or asked for what closes it: FATAL with this.
    Client(Error),
    /// The client's socket failed or closed.
    ClientGone,
    /// The server connection failed.
    ServerLost(String),
    /// The server broke the protocol.
    ServerViolation(String),
    /// Settings could not be carried to this server connection: the ErrorResponse body it answered.
    Settings(Vec<u8>),
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self::Client(Error::protocol_violation(error.to_string()))
    }
}

/// What became of a frontend message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Copy it to the server as it is (the rest of it, too, when it is longer than the buffer).
    Forward,
    /// It is dealt with; the server's buffer holds what replaces it.
    Done,
    /// The first `n` bytes of the frame are dealt with; the rest of it goes on as it is.
    Prefix(usize),
    /// Drop it (the rest of it, too).
    Drop,
    /// It must be whole to be understood.
    NeedWhole,
    /// Not before everything that is owed was answered; nothing of it was taken.
    Later,
    /// Terminate.
    Terminate,
}

/// What the client is told in place of what the server says where it was made to fail.
#[derive(Debug)]
pub enum Refusal {
    /// An error of ours.
    Ours(Error),
    /// The server's ErrorResponse, whole, to an INSERT that was answered before it was run.
    Late(Vec<u8>),
    /// An error of ours where the server says that a name is taken; what else it says is the client's.
    Taken(Error),
}

/// Counts of one stretch with a server, added to the pool's when it is released.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Queries and Executes.
    pub queries: u64,
    /// Parses from the client.
    pub client_parses: u64,
    /// Parses sent on.
    pub server_parses: u64,
    /// Binds.
    pub binds: u64,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
    /// ReadyForQuery(I) seen.
    pub xacts: u64,
}

impl Counts {
    /// What was answered without the client's messages going their ordinary way.
    pub fn take(&mut self, work: Work) {
        let Work { statements, transactions, parses, binds, received, sent } = work;
        for (to, n) in [
            (&mut self.queries, statements),
            (&mut self.xacts, transactions),
            (&mut self.client_parses, parses),
            (&mut self.binds, binds),
            (&mut self.received, received),
            (&mut self.sent, sent),
        ] {
            *to += u64::from(n);
        }
    }
}

/// One session's memory.
#[derive(Debug)]
pub struct State {
    /// When its server goes back.
    pub mode: PoolMode,
    /// What may pass.
    pub rules: Rules,
    /// What happens with state that can't be carried.
    pub session_state: SessionState,
    /// Statements on one server connection; 0: names pass untouched.
    pub max_prepared: usize,
    /// Bytes of all named statements' texts.
    pub prepared_bytes_max: usize,
    /// Largest message.
    pub message_max: usize,
    /// Its names.
    pub names: ClientNames,
    /// Settings of its startup packet.
    pub base: Arc<VarSet>,
    /// Settings it has now.
    pub want: Arc<VarSet>,
    /// When it took on who it is ([`Whose::since`](crate::proto::vars::Whose::since)).
    pub since: u64,
    /// What it was told.
    pub reported: Arc<Reported>,
    /// What its transaction may have done to session state.
    pub taint: Effects,
    /// Names in it that may be those of settings it made, for the probe: no catalogue shows them.
    pub candidates: Vec<String>,
    /// Its server connection is its own while state is bound to it.
    pub pinned: bool,
    /// What it said while pinned may have ended that.
    pub recheck: bool,
    /// The server said why it goes.
    pub server_left: bool,
    /// Answers that ended, and transactions: moves that others see.
    pub turns: u32,
    /// See `turns`.
    pub xact_turns: u32,
    /// Bytes of a message still to come, passed on or dropped.
    pub streaming: usize,
    /// The rest of that message is dropped.
    pub dropping: bool,
    /// The server connection where its unnamed statement was parsed, and which Parse that was.
    pub unnamed_at: (u64, u64),
    /// Nothing more is taken from the client before everything that is owed was answered.
    pub awaiting: bool,
    /// So much is owed that the client is not read, and the server was told to answer what it can.
    pub urged: bool,
    /// A portal is bound whose Execute may take prepared statements away.
    pub forgetting: bool,
    /// Statements whose description is on its way, in order.
    pub described: VecDeque<Arc<Statement>>,
    /// The statement of the unnamed portal, when its description is not known yet.
    pub bound: Option<Arc<Statement>>,
    /// The rest of a server's message that is passed on in pieces is dropped.
    pub dropping_down: bool,
    /// The client has a message of the server's in part, and the rest of it does not come.
    pub cut_short: bool,
    /// A COPY was sent on as one extended unit; its Sync goes out when the COPY has ended.
    pub sync_owed: bool,
    /// The unnamed statement and portal on the server are those of a folded Query, of which the client knows nothing.
    pub fold_left: bool,
    /// Its transaction changed a catalogue: texts may mean something else again when it ends.
    pub catalog_moved: bool,
    /// What it made on the server connection at hand lets texts mean something to it alone; 0: nothing does.
    pub own_catalog: u64,
    /// Messages of a folded Query's answer that go to the client unless an ErrorResponse comes first.
    pub kept: Vec<u8>,
    /// ErrorResponses that wait for their turn.
    pub refusals: VecDeque<Refusal>,
    /// What was answered too early failed, or was cancelled: the next message is told so ([`Refusal::Late`]).
    pub late: Option<Vec<u8>>,
    /// So many messages go before that one: they open the block that is to fail.
    pub late_behind: usize,
    /// A unit of ours that changes settings is on its way; what it reports is told in one go behind it.
    pub report_pending: bool,
    /// That unit has ended.
    pub report_due: bool,
    /// standard_conforming_strings, as the server said last.
    pub std_strings: bool,
    /// No byte of a character of client_encoding can be ASCII, as the server said last.
    pub encoding_safe: bool,
    /// What is on its way may change these two.
    pub lexing_in_doubt: bool,
    /// Something that the session sent or prepared may change them.
    pub lexing_moves: bool,
    /// The rules became stricter in the session's life: what was prepared before was not judged by them.
    pub unseen: bool,
    /// Since then an unnamed statement was judged.
    pub unnamed_seen: bool,
    /// Since then, and until the transaction ends: the portals that were bound.
    pub portals: Option<HashSet<Box<[u8]>>>,
    /// Since the last release.
    pub counts: Counts,
    /// Shared by all sessions.
    pub shared: Arc<Shared>,
    /// What it sees under `allow_list = "learn"`.
    pub learner: Arc<Learner>,
    /// Writes what met the policy down.
    pub audit: Auditor,
}

/// What is a client's own when it has logged in.
#[derive(Debug)]
pub struct Own {
    /// See [`State::mode`].
    pub mode: PoolMode,
    /// See [`State::rules`].
    pub rules: Rules,
    /// See [`State::base`].
    pub base: Arc<VarSet>,
    /// See [`State::since`].
    pub since: u64,
    /// See [`State::reported`].
    pub reported: Arc<Reported>,
    /// See [`State::audit`].
    pub audit: Auditor,
}

impl State {
    /// Of a client that has just logged in.
    pub fn new(cx: &super::Context, general: &General, governs: &pool::Settings, own: Own) -> Self {
        let Own { mode, rules, base, since, reported, audit } = own;
        let mut state = Self {
            mode,
            rules,
            session_state: governs.session_state,
            max_prepared: governs.max_prepared_statements,
            prepared_bytes_max: general.prepared_statement_bytes_max,
            message_max: general.max_packet_size,
            names: ClientNames::default(),
            want: Arc::clone(&base),
            since,
            base,
            reported: Arc::clone(&reported),
            taint: Effects::NONE,
            candidates: Vec::new(),
            pinned: false,
            recheck: false,
            server_left: false,
            turns: 0,
            xact_turns: 0,
            streaming: 0,
            dropping: false,
            dropping_down: false,
            cut_short: false,
            unnamed_at: (0, 0),
            awaiting: false,
            urged: false,
            forgetting: false,
            described: VecDeque::new(),
            bound: None,
            sync_owed: false,
            fold_left: false,
            catalog_moved: false,
            own_catalog: 0,
            kept: Vec::new(),
            refusals: VecDeque::new(),
            late: None,
            late_behind: 0,
            report_pending: false,
            report_due: false,
            std_strings: true,
            encoding_safe: true,
            lexing_in_doubt: false,
            lexing_moves: false,
            unseen: false,
            unnamed_seen: false,
            portals: None,
            counts: Counts::default(),
            shared: Arc::clone(cx.pools.shared()),
            learner: Arc::clone(&cx.learner),
            audit,
        };
        state.know(&reported);
        state
    }

    /// Names are rewritten and state is carried: not in session mode.
    pub fn shares_servers(&self) -> bool {
        self.mode != PoolMode::Session
    }

    /// Its next transaction may run on another server connection.
    pub fn may_go_elsewhere(&self) -> bool {
        self.shares_servers() && !self.pinned
    }

    /// Nothing stands between messages that are poured and what the server would answer.
    pub(super) fn can_pour(&self) -> bool {
        self.can_pour_behind(Effects::NONE)
    }

    /// Nothing but `harmless` does.
    pub(super) fn can_pour_behind(&self, harmless: Effects) -> bool {
        let taint = self.taint.difference(harmless);
        self.shares_servers() && self.max_prepared > 0 && self.streaming == 0 && taint == Effects::NONE
    }

    fn tracks_names(&self) -> bool {
        self.shares_servers() && self.max_prepared > 0
    }

    /// The unnamed statement is followed wherever servers are shared: it never is another client's.
    fn tracks(&self, name: &[u8]) -> bool {
        self.shares_servers() && (name.is_empty() || self.max_prepared > 0)
    }

    /// Hot path. One frontend message, or its beginning. `frame` starts at the type byte and holds what has arrived.
    ///
    /// # Errors
    /// A violation of the protocol, which ends the session.
    pub fn take(
        &mut self,
        head: Header,
        frame: &[u8],
        server: &mut ServerConn,
        reply: &mut Vec<u8>,
    ) -> Result<Taken, Fault> {
        check_length(head)?;
        if self.fold_left && is_extended(head.tag) {
            self.take_fold_away(server);
        }
        if self.late.is_some()
            && let Some(kind) = kind_of(head.tag)
        {
            return self.take_late(kind, head, frame, server, reply);
        }
        self.take_message(head, frame, server, reply)
    }

    /// A message that is told of what came before it, or goes before the one that is.
    fn take_late(
        &mut self,
        kind: Kind,
        head: Header,
        frame: &[u8],
        server: &mut ServerConn,
        reply: &mut Vec<u8>,
    ) -> Result<Taken, Fault> {
        if self.late_behind == 0
            && let Some(message) = self.late.take()
        {
            let taken = self.refuse_with(kind, Refusal::Late(message), server);
            return Ok(if frame.len() == head.total() { taken } else { Taken::Drop });
        }
        let taken = self.take_message(head, frame, server, reply)?;
        self.late_behind -= usize::from(!matches!(taken, Taken::NeedWhole | Taken::Later));
        Ok(taken)
    }

    fn take_message(
        &mut self,
        head: Header,
        frame: &[u8],
        server: &mut ServerConn,
        reply: &mut Vec<u8>,
    ) -> Result<Taken, Fault> {
        let whole = frame.len() == head.total();
        let body = &frame[HEADER_BYTES..];
        if kind_of(head.tag).is_some() && self.waits_for_copy(server) {
            return Ok(Taken::Later);
        }
        match head.tag {
            f::COPY_DATA => {
                server.pipeline.push_data();
                Ok(Taken::Forward)
            }
            f::EXECUTE if self.forgetting || self.portals.is_some() => {
                if !whole {
                    return Ok(Taken::NeedWhole);
                }
                self.counts.queries += 1;
                if server.pipeline.is_discarding() {
                    return Ok(Taken::Drop);
                }
                if let Some(error) = self.rule_execute(body)? {
                    return Ok(self.refuse(Kind::Execute, error, server));
                }
                Ok(if self.forgetting {
                    self.take_forgetting_execute(frame, server)
                } else {
                    self.owe(server, Kind::Execute)
                })
            }
            f::EXECUTE => {
                self.counts.queries += 1;
                Ok(self.owe(server, Kind::Execute))
            }
            f::SYNC => {
                server.pipeline.push(Kind::Sync, Action::Forward, false);
                Ok(Taken::Forward)
            }
            f::TERMINATE => Ok(Taken::Terminate),
            _ if server.pipeline.is_discarding() => Ok(Taken::Drop),
            f::BIND => self.take_bind(head, body, server),
            f::FLUSH => Ok(Taken::Forward),
            f::COPY_DONE | f::COPY_FAIL => Ok(self.take_copy_end(frame, whole, server)),
            f::QUERY if head.total() > STATEMENT_BYTES_MAX => self.take_long_query(server),
            f::PARSE if head.total() > PREPARED_TEXT_BYTES_MAX => self.take_long_parse(body, server),
            f::FUNCTION_CALL => self.take_function_call(server),
            f::QUERY | f::PARSE | f::DESCRIBE | f::CLOSE if !whole => Ok(Taken::NeedWhole),
            f::QUERY => self.take_query(body, server),
            f::PARSE => self.take_parse(body, server, reply),
            f::DESCRIBE => self.take_describe(body, server),
            f::CLOSE => self.take_close(body, server, reply),
            tag => {
                Err(Fault::Client(Error::protocol_violation(format!("invalid frontend message type {tag}"))))
            }
        }
    }

    /// No more is taken before something is answered, and what would make the server answer may stand behind it: a client
    /// that sends a long unit reads nothing before its Sync.
    pub fn urge(&mut self, server: &mut ServerConn) {
        if server.pipeline.is_within_unit() && !std::mem::replace(&mut self.urged, true) {
            f::put_empty(&mut server.conn.out, f::FLUSH);
        }
    }

    fn owe(&self, server: &mut ServerConn, kind: Kind) -> Taken {
        if server.pipeline.is_discarding() {
            return Taken::Drop;
        }
        server.pipeline.push(kind, Action::Forward, false);
        Taken::Forward
    }

    /// Behind DISCARD ALL and DEALLOCATE ALL names mean something else, if they succeed: what follows waits for that.
    fn take_forgetting_execute(&mut self, frame: &[u8], server: &mut ServerConn) -> Taken {
        self.forgetting = false;
        server.conn.out.extend_from_slice(frame);
        f::put_empty(&mut server.conn.out, f::FLUSH);
        server.pipeline.push(Kind::Execute, Action::Forward, false);
        self.awaiting = true;
        Taken::Done
    }

    /// What is refused here must fail on the server too: a block fails, a pipeline skips to its Sync. So the server
    /// is made to fail, and its ErrorResponse is replaced by ours.
    fn refuse(&mut self, kind: Kind, error: Error, server: &mut ServerConn) -> Taken {
        self.refuse_with(kind, Refusal::Ours(error), server)
    }

    /// A Parse takes the unnamed statement away, whether it is refused by the server or by us.
    fn refuse_parse(&mut self, unnamed: bool, error: Error, server: &mut ServerConn) -> Taken {
        let takes_away = unnamed && self.tracks(b"");
        if takes_away {
            self.names.close(b"");
        } else if unnamed {
            f::put_target(&mut server.conn.out, f::CLOSE, b'S', b"");
            server.pipeline.push(Kind::Close, Action::Skip, false);
        }
        f::put_target(&mut server.conn.out, f::DESCRIBE, b'P', b"pgsluice_refused");
        server.pipeline.push(Kind::Parse, Action::Refuse, takes_away);
        self.refusals.push_back(Refusal::Ours(error));
        Taken::Done
    }

    fn refuse_with(&mut self, kind: Kind, refusal: Refusal, server: &mut ServerConn) -> Taken {
        let out = &mut server.conn.out;
        match kind {
            // A syntax error in every state of a transaction.
            Kind::Query => {
                f::put_query(out, b"pgsluice_refused");
                server.pipeline.push(Kind::Query, Action::Refuse, false);
            }
            // No such function. A Query would take the unnamed statement away.
            Kind::FunctionCall => {
                frame::put(out, f::FUNCTION_CALL, |out| out.extend_from_slice(&[0; 10]));
                server.pipeline.push(Kind::FunctionCall, Action::Refuse, false);
            }
            _ => {
                f::put_target(out, f::DESCRIBE, b'P', b"pgsluice_refused");
                server.pipeline.push(kind, Action::Refuse, false);
            }
        }
        self.refusals.push_back(refusal);
        Taken::Done
    }

    fn state_refusal(&self, found: Effects) -> Option<Error> {
        let bound = found.intersection(BOUND);
        (self.shares_servers() && self.session_state == SessionState::Reject && !bound.is_empty())
            .then(|| Error::session_state_rejected(bound.names().next().unwrap_or_default()))
    }

    // ----- simple protocol

    fn take_query(&mut self, body: &[u8], server: &mut ServerConn) -> Result<Taken, Fault> {
        let text = f::query(body)?;
        if self.waits_for_unit(server) || self.waits_to_deallocate(text, server) {
            return Ok(Taken::Later);
        }
        let ruling = self.rule_query(text, &server.pipeline);
        if matches!(ruling, Ruling::Wait) {
            return Ok(Taken::Later);
        }
        self.counts.queries += 1;
        // Also where it fails.
        self.names.forget_unnamed();
        server.names.unnamed = None;
        if let Ruling::Refuse(error) = ruling {
            return Ok(self.refuse(Kind::Query, error, server));
        }
        let fold = matches!(ruling, Ruling::Fold);
        self.make_way(text, server);
        let found = self.effects_of(text);
        if let Some(error) = self.state_refusal(found) {
            return Ok(self.refuse(Kind::Query, error, server));
        }
        self.tainted(found, text);
        self.awaiting |= found.intersects(FORGETS_NAMES);
        self.note_custom_settings(text, found);
        if found.contains(Effects::DEALLOCATE) && self.tracks_names() && self.deallocate(text, server) {
            self.send_query(DEALLOCATE, fold, server);
            return Ok(Taken::Done);
        }
        if fold {
            self.send_query(text, true, server);
            return Ok(Taken::Done);
        }
        doubt_unit(server);
        server.pipeline.push(Kind::Query, Action::Forward, false);
        Ok(Taken::Forward)
    }

    /// A Query behind extended messages and no Sync waits for their answers: if one of them fails it is skipped, up to the
    /// client's own Sync and not up to that of a fold, and takes no unnamed statement away.
    fn waits_for_unit(&mut self, server: &mut ServerConn) -> bool {
        let matters = self.tracks(b"") || !self.rules.passes_all_queries();
        if !matters || !server.pipeline.is_within_unit() {
            return false;
        }
        f::put_empty(&mut server.conn.out, f::FLUSH);
        self.awaiting = true;
        true
    }

    /// What is put before a DEALLOCATE must not fail: a Query behind it would be skipped, and no Sync comes.
    fn waits_to_deallocate(&mut self, text: &[u8], server: &ServerConn) -> bool {
        let is_owed = !server.pipeline.is_empty() && !server.pipeline.in_copy_in();
        self.awaiting |=
            is_owed && self.tracks_names() && crate::sql::effects::deallocated_name(text).is_some();
        self.awaiting
    }

    /// See [`Shared::make_way`]. For a text that the rules let pass: one that is refused moves nobody.
    fn make_way(&self, text: &[u8], server: &ServerConn) {
        if crate::sql::database::is_about_a_database(text) {
            self.shared.make_way(text, &server.shared.target);
        }
    }

    /// What a text that is run now may do to the session's state, as far as that is followed.
    fn effects_of(&mut self, text: &[u8]) -> Effects {
        if !self.shares_servers() && !self.rules.needs_lexing() {
            return Effects::NONE;
        }
        let found = effects(text, self.std_strings);
        self.note_in_flight(found);
        if self.shares_servers() { found } else { Effects::NONE }
    }

    /// Something is done that may change the session; `text` is where names of settings may stand.
    fn tainted(&mut self, found: Effects, text: &[u8]) {
        self.taint = self.taint.union(found);
        if found.intersects(MAKES_SETTINGS) && !find_setting_names(text, &mut self.candidates) {
            self.taint = self.taint.union(Effects::UNKNOWN);
        }
        if self.pinned && !self.recheck {
            // DROP of a temporary object has no mark of its own.
            self.recheck = found.touches_session()
                || memchr::memmem::find(&text.to_ascii_lowercase(), b"drop").is_some();
        }
    }

    /// Sends a Query, or the same text as one extended unit: then PostgreSQL itself refuses a second statement.
    fn send_query(&mut self, text: &[u8], fold: bool, server: &mut ServerConn) {
        let out = &mut server.conn.out;
        if !fold {
            f::put_query(out, text);
            server.pipeline.push(Kind::Query, Action::Forward, false);
            return;
        }
        let fold = Fold::of(text);
        self.sync_owed = fold.put(text, out, &mut server.pipeline);
        // What the client sends behind it is data, or waits.
        self.awaiting |= self.sync_owed;
        self.fold_left = fold != Fold::Empty;
    }

    /// A Query leaves neither an unnamed statement nor an unnamed portal.
    fn take_fold_away(&mut self, server: &mut ServerConn) {
        if server.pipeline.is_discarding() || server.pipeline.in_copy_in() {
            return;
        }
        self.fold_left = false;
        server.names.unnamed = None;
        for kind in [b'S', b'P'] {
            f::put_target(&mut server.conn.out, f::CLOSE, kind, b"");
            server.pipeline.push(Kind::Close, Action::Skip, false);
        }
    }

    /// A Query too long to be understood streams through, unless a rule needs to understand it.
    fn take_long_query(&mut self, server: &mut ServerConn) -> Result<Taken, Fault> {
        if self.waits_for_unit(server) {
            return Ok(Taken::Later);
        }
        self.counts.queries += 1;
        self.names.forget_unnamed();
        server.names.unnamed = None;
        if let Some(error) = self.rule_long_query() {
            self.refuse(Kind::Query, error, server);
            return Ok(Taken::Drop);
        }
        self.note_in_flight(Effects::UNKNOWN);
        doubt_unit(server);
        if self.shares_servers() {
            self.taint = self.taint.union(Effects::UNKNOWN);
            self.recheck = true;
        }
        server.pipeline.push(Kind::Query, Action::Forward, false);
        Ok(Taken::Forward)
    }

    /// Settings that PostgreSQL does not list must be known by name to be carried.
    fn note_custom_settings(&self, text: &[u8], found: Effects) {
        let defines = matches!(text.first(), Some(b'c' | b'C')) && self.shares_servers();
        if defines || found.intersects(Effects::SETTINGS.union(Effects::UNKNOWN)) {
            self.shared.note_custom_settings(text);
        }
    }

    fn take_function_call(&mut self, server: &mut ServerConn) -> Result<Taken, Fault> {
        self.counts.queries += 1;
        if let Some(error) = self.rule_function_call() {
            self.refuse(Kind::FunctionCall, error, server);
            return Ok(Taken::Drop);
        }
        self.note_in_flight(Effects::UNKNOWN);
        if self.shares_servers() {
            self.taint = self.taint.union(Effects::UNKNOWN);
            self.recheck = true;
        }
        server.pipeline.push(Kind::FunctionCall, Action::Forward, false);
        Ok(Taken::Forward)
    }

    /// SQL's DEALLOCATE of a name that the protocol prepared. Whether its block has failed must be known first: see
    /// [`State::take_query`].
    fn deallocate(&mut self, text: &[u8], server: &mut ServerConn) -> bool {
        let Some(gone) = crate::sql::effects::deallocated_name(text) else { return false };
        if server.pipeline.status() == TransactionStatus::Failed || self.names.lookup(&gone).is_none() {
            return false;
        }
        put_deallocable(server);
        server.pipeline.push(Kind::Close, Action::Skip, false);
        server.pipeline.push(Kind::Parse, Action::Skip, false);
        self.names.forget(&gone);
        true
    }

    /// Whether a message behind a COPY that may have swallowed a Sync is run, if that fails, hangs on how far it had read: so it
    /// waits for the end of that COPY. One that the client did not end itself would wait for ever, and is made to fail.
    fn waits_for_copy(&mut self, server: &mut ServerConn) -> bool {
        let ServerConn { conn, pipeline, .. } = server;
        if pipeline.is_in_copy_with_syncs() {
            f::put_copy_fail(&mut conn.out, NOT_DATA);
            pipeline.push(Kind::CopyEnd, Action::Forward, false);
        } else if !pipeline.is_behind_copy() {
            return false;
        }
        f::put_empty(&mut conn.out, f::FLUSH);
        self.awaiting = true;
        true
    }

    fn take_copy_end(&mut self, frame: &[u8], whole: bool, server: &mut ServerConn) -> Taken {
        if !whole {
            return Taken::NeedWhole;
        }
        let open = server.pipeline.in_copy_in();
        server.pipeline.push(Kind::CopyEnd, Action::Forward, false);
        if !(self.sync_owed && open) {
            return Taken::Forward;
        }
        let ServerConn { conn, pipeline, .. } = server;
        conn.out.extend_from_slice(frame);
        self.put_owed_sync(pipeline, &mut conn.out);
        Taken::Done
    }

    /// [`State::put_between`] has something to put. Never inside a message of the client's: the server would take ours for
    /// its data, and what is behind its data for messages.
    pub fn owes_between(&self, pipeline: &Pipeline) -> bool {
        let inside = self.streaming > 0 && !self.dropping;
        !inside && pipeline.is_empty() && (self.sync_owed || pipeline.fence().is_some())
    }

    /// Hot path. Messages of ours that become due when something was answered: the Sync of a folded COPY that has ended, the
    /// question what a COPY that failed had read.
    pub fn put_between(&mut self, pipeline: &mut Pipeline, to_server: &mut Vec<u8>) {
        if !self.owes_between(pipeline) {
            return;
        }
        if self.sync_owed {
            return self.put_owed_sync(pipeline, to_server);
        }
        let Some(fence) = pipeline.fence() else { return };
        if fence == Fence::Skipped {
            f::put_empty(to_server, f::SYNC);
            self.awaiting = true;
        }
        f::put_target(to_server, f::CLOSE, b'S', FENCE);
        f::put_empty(to_server, f::SYNC);
        pipeline.push_fence(fence);
    }

    /// The client, in simple protocol, sends none.
    fn put_owed_sync(&mut self, pipeline: &mut Pipeline, to_server: &mut Vec<u8>) {
        self.sync_owed = false;
        f::put_empty(to_server, f::SYNC);
        pipeline.push(Kind::Sync, Action::Forward, false);
    }

    // ----- extended protocol

    fn take_parse(
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
                return Ok(self.refuse_parse(parse.name.is_empty(), error, server));
            }
            Ruling::Pass | Ruling::Fold => {}
        }
        self.counts.client_parses += 1;
        self.make_way(parse.query, server);
        if !self.tracks(parse.name) {
            self.counts.server_parses += 1;
            // Names pass untouched, but what a text may do still counts.
            let found = self.effects_of(parse.query);
            self.tainted(found, parse.query);
            self.unnamed_seen |= parse.name.is_empty();
            server.pipeline.push(Kind::Parse, Action::Forward, false);
            return Ok(Taken::Forward);
        }
        if parse.name.is_empty() {
            self.parse_unnamed(&parse, server)
        } else {
            self.parse_named(&parse, server, reply)
        }
    }

    /// What a name means hangs on an earlier unit that is not answered yet: the message that speaks of it waits. On the server
    /// there might be somebody else's statement, or none.
    fn waits_for_name(&mut self, name: &[u8], server: &mut ServerConn) -> bool {
        let pipeline = &server.pipeline;
        let is_owed = !pipeline.is_empty() && !pipeline.in_copy_in();
        if !is_owed || !self.names.is_in_doubt(name, pipeline.names_in_unit()) {
            return false;
        }
        f::put_empty(&mut server.conn.out, f::FLUSH);
        self.awaiting = true;
        true
    }

    fn parse_unnamed(&mut self, parse: &f::Parse<'_>, server: &mut ServerConn) -> Result<Taken, Fault> {
        let std_strings = self.std_strings;
        let class = self.want.pour_class;
        let same = self.names.lookup(b"").filter(|s| s.is(parse.query, parse.types, class)).cloned();
        let statement = same.unwrap_or_else(|| {
            crate::client::session::unnamed_statement(parse.query, parse.types, class, std_strings)
        });
        if let Some(error) = self.state_refusal(statement.effects) {
            return Ok(self.refuse_parse(true, error, server));
        }
        self.counts.server_parses += 1;
        self.note_custom_settings(parse.query, statement.effects);
        let number = server.names.unnamed_parsed();
        self.unnamed_at = (server.shared.id, number);
        self.names.parse(b"", statement, Some(number));
        server.pipeline.push(Kind::Parse, Action::Forward, true);
        Ok(Taken::Forward)
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
        let std_strings = self.std_strings;
        let shared = Arc::clone(&self.shared);
        let interned = shared.statements.intern(
            parse.query,
            parse.types,
            self.want.answer_class ^ self.own_catalog,
            || effects(parse.query, std_strings),
            self.prepared_bytes_max,
        );
        let Some(statement) = interned else {
            return Ok(self.refuse(Kind::Parse, Error::prepared_bytes(self.prepared_bytes_max), server));
        };
        if let Some(error) = self.state_refusal(statement.effects) {
            return Ok(self.refuse(Kind::Parse, error, server));
        }
        if self.names.len() >= PREPARED_NAMES_MAX {
            return Ok(self.refuse(Kind::Parse, Error::prepared_names(PREPARED_NAMES_MAX), server));
        }
        self.note_custom_settings(parse.query, statement.effects);
        if server.names.holds(statement.id) {
            if !server.pipeline.may_be_failed() {
                self.names.parse(parse.name, statement, None);
                if server.pipeline.push(Kind::Parse, Action::Fake, true) {
                    b::put_empty(reply, b::PARSE_COMPLETE);
                    self.names.settle();
                }
                return Ok(Taken::Done);
            }
            // In a failed block PostgreSQL refuses almost every Parse; let it judge.
            server.names.forget(statement.id);
            server.put_close(statement.id, &mut self.names, Action::Skip);
        }
        server.make_room(statement.id, &mut self.names, self.max_prepared, Action::Skip);
        self.counts.server_parses += 1;
        let (query, types) = (&statement.query, &statement.types);
        f::put_parse(&mut server.conn.out, statement.server_name.as_bytes(), query, types);
        server.pipeline.push(Kind::Parse, Action::Forward, true);
        let id = statement.id;
        self.names.parse(parse.name, statement, Some(id));
        Ok(Taken::Done)
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

    /// An unnamed statement too long to be kept streams through; it can be bound while this server is kept.
    fn take_long_parse(&mut self, body: &[u8], server: &mut ServerConn) -> Result<Taken, Fault> {
        self.counts.client_parses += 1;
        let unnamed = body.first() == Some(&0);
        if let Some(error) = self.rule_long_text() {
            self.refuse_parse(unnamed, error, server);
            return Ok(Taken::Drop);
        }
        if self.tracks_names() && !unnamed {
            self.refuse(Kind::Parse, Error::prepared_bytes(PREPARED_TEXT_BYTES_MAX), server);
            return Ok(Taken::Drop);
        }
        self.note_in_flight(Effects::UNKNOWN);
        self.counts.server_parses += 1;
        if self.shares_servers() {
            self.taint = self.taint.union(Effects::UNKNOWN);
            self.recheck = true;
        }
        if unnamed {
            self.names.forget_unnamed();
            server.names.unnamed = Some(UNKEPT);
            self.names.parse_on_server(UNKEPT);
        }
        server.pipeline.push(Kind::Parse, Action::Forward, unnamed);
        Ok(Taken::Forward)
    }

    fn take_bind(&mut self, head: Header, body: &[u8], server: &mut ServerConn) -> Result<Taken, Fault> {
        // Only the two names at the front are needed; a great Bind streams on behind them.
        let Some(portal_end) = memchr::memchr(0, body) else { return need_names(head, body) };
        let Some(name_len) = memchr::memchr(0, &body[portal_end + 1..]) else {
            return need_names(head, body);
        };
        let name = &body[portal_end + 1..portal_end + 1 + name_len];
        if self.waits_for_name(name, server) {
            return Ok(Taken::Later);
        }
        if self.rules_binds(name) {
            let statement = if self.tracks(name) { self.names.lookup(name).cloned() } else { None };
            if let Some(error) = self.rule_bind(statement.as_ref().map(|s| &*s.query), name.is_empty()) {
                self.refuse(Kind::Bind, error, server);
                return Ok(Taken::Drop);
            }
        }
        self.note_portal(&body[..portal_end]);
        if !self.tracks(name) {
            self.counts.binds += 1;
            self.note_bind();
            if self.shares_servers() {
                // Prepared in another transaction, perhaps: what it does is not known.
                self.taint = self.taint.union(Effects::EXECUTE);
                self.recheck = true;
            }
            server.pipeline.push(Kind::Bind, Action::Forward, false);
            return Ok(Taken::Forward);
        }
        (self.bound, self.forgetting) = (None, false);
        if let Some(statement) = self.names.lookup(name).cloned() {
            self.note_in_flight(statement.effects);
            self.tainted(statement.effects, &statement.query);
            if statement.effects.intersects(MAKES_SETTINGS) {
                self.note_bound_names(head, body);
            }
        }
        let names = portal_end + 1 + name_len;
        if let Some(gone) = self.deallocated_by(name) {
            self.counts.binds += 1;
            self.put_deallocate(&gone, server);
            let taken = put_bind_of(b"", head, &body[..names], portal_end, server);
            server.pipeline.push(Kind::Bind, Action::Forward, false);
            return Ok(taken);
        }
        if name.is_empty() {
            self.counts.binds += 1;
            self.bind_unnamed(server);
            return Ok(Taken::Forward);
        }
        let Some(statement) = self.names.lookup(name).cloned() else {
            self.counts.binds += 1;
            return Ok(self.bind_unknown(name, head, body, server));
        };
        if self.asks_for_shape(&statement, server) {
            return Ok(Taken::Later);
        }
        self.counts.binds += 1;
        if statement.is_stale() && server.pipeline.status() != TransactionStatus::Failed {
            self.refuse(Kind::Bind, Error::stale_plan(), server);
            return Ok(Taken::Drop);
        }
        self.forgetting = statement.effects.intersects(FORGETS_NAMES);
        self.ensure_for_client(&statement, server);
        let taken = put_bind_of(statement.server_name.as_bytes(), head, &body[..names], portal_end, server);
        server.pipeline.push_about(Kind::Bind, Action::Forward, statement.id);
        if portal_end == 0 && statement.shape.get().is_none() {
            self.bound = Some(statement);
        }
        Ok(taken)
    }

    /// The statement `name` is DEALLOCATE of this name, which the protocol prepared.
    fn deallocated_by(&self, name: &[u8]) -> Option<Vec<u8>> {
        let statement = self.names.lookup(name).filter(|s| s.effects.contains(Effects::DEALLOCATE))?;
        let gone = crate::sql::effects::deallocated_name(&statement.query)?;
        self.names.lookup(&gone).is_some().then_some(gone)
    }

    /// As the unnamed statement, to be bound. What it deallocates on the server is made for that: the statement itself is shared.
    fn put_deallocate(&mut self, gone: &[u8], server: &mut ServerConn) {
        put_deallocable(server);
        f::put_parse(&mut server.conn.out, b"", DEALLOCATE, &[]);
        self.names.close(gone);
        server.names.unnamed = None;
        for (kind, names) in [(Kind::Close, true), (Kind::Parse, false), (Kind::Parse, false)] {
            server.pipeline.push(kind, Action::Skip, names);
        }
    }

    /// As in `set_config($1, ...)`: names of settings come as parameters, too.
    fn note_bound_names(&mut self, head: Header, body: &[u8]) {
        let bind = if body.len() == head.body { f::Bind::decode(body).ok() } else { None };
        let mut missed = |value: &&[u8]| !find_setting_names(value, &mut self.candidates);
        let all = bind.is_some_and(|bind| bind.values().flatten().filter(&mut missed).count() == 0);
        if !all {
            self.taint = self.taint.union(Effects::UNKNOWN);
        }
    }

    /// A statement that was described on one connection must not be run on another one where its rows look different
    /// (a table was changed meanwhile): where it has to be parsed again its description is asked for first.
    fn asks_for_shape(&mut self, statement: &Arc<Statement>, server: &mut ServerConn) -> bool {
        let returns_rows = statement.shape.get().is_some_and(|shape| *shape != NO_ROWS);
        if !returns_rows
            || statement.is_stale()
            || server.names.holds(statement.id)
            || server.pipeline.status() == TransactionStatus::Failed
        {
            return false;
        }
        self.counts.server_parses += 1;
        server.ensure(statement, &mut self.names, self.max_prepared, Action::Skip);
        f::put_target(&mut server.conn.out, f::DESCRIBE, b'S', statement.server_name.as_bytes());
        f::put_empty(&mut server.conn.out, f::FLUSH);
        server.pipeline.push_about(Kind::Describe, Action::Skip, statement.id);
        self.expect_shape(Arc::clone(statement));
        self.awaiting = true;
        true
    }

    fn ensure_for_client(&mut self, statement: &Statement, server: &mut ServerConn) {
        if !server.names.holds(statement.id) {
            self.counts.server_parses += 1;
            server.ensure(statement, &mut self.names, self.max_prepared, Action::Skip);
        }
    }

    fn bind_unnamed(&mut self, server: &mut ServerConn) {
        self.ensure_unnamed(server);
        server.pipeline.push(Kind::Bind, Action::Forward, false);
    }

    /// The server's unnamed statement becomes this client's, or none if the client has none.
    fn ensure_unnamed(&mut self, server: &mut ServerConn) {
        match self.names.lookup(b"") {
            Some(statement) => {
                self.forgetting = statement.effects.intersects(FORGETS_NAMES);
                if (server.shared.id, server.names.unnamed) != (self.unnamed_at.0, Some(self.unnamed_at.1)) {
                    let statement = Arc::clone(statement);
                    self.counts.server_parses += 1;
                    f::put_parse(&mut server.conn.out, b"", &statement.query, &statement.types);
                    // Struck by an error, it leaves whatever stood there.
                    let number = server.names.unnamed_parsed();
                    self.unnamed_at = (server.shared.id, number);
                    self.names.parse_on_server(number);
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

    /// A name the protocol did not prepare: SQL's PREPARE may have, so the server judges; but never by a name that
    /// stands for somebody's statement.
    fn bind_unknown(&mut self, name: &[u8], head: Header, body: &[u8], server: &mut ServerConn) -> Taken {
        if name.starts_with(SERVER_NAME_PREFIX.as_bytes()) {
            self.refuse(Kind::Bind, Error::unknown_statement(name), server);
            return Taken::Drop;
        }
        let _ = (head, body);
        if let Some(error) = self.rule_unknown_name() {
            self.refuse(Kind::Bind, error, server);
            return Taken::Drop;
        }
        self.note_in_flight(Effects::EXECUTE);
        self.taint = self.taint.union(Effects::EXECUTE);
        self.recheck = true;
        server.pipeline.push(Kind::Bind, Action::Forward, false);
        Taken::Forward
    }

    fn take_describe(&mut self, body: &[u8], server: &mut ServerConn) -> Result<Taken, Fault> {
        let (kind, name) = f::target(f::DESCRIBE, body)?;
        if kind == b'S' && self.waits_for_name(name, server) {
            return Ok(Taken::Later);
        }
        if kind == b'S' && self.tracks(name) {
            if name.is_empty() {
                self.ensure_unnamed(server);
            } else if let Some(statement) = self.names.lookup(name).cloned() {
                self.ensure_for_client(&statement, server);
                f::put_target(&mut server.conn.out, f::DESCRIBE, b'S', statement.server_name.as_bytes());
                server.pipeline.push_about(Kind::Describe, Action::Forward, statement.id);
                self.expect_shape(statement);
                return Ok(Taken::Done);
            } else if name.starts_with(SERVER_NAME_PREFIX.as_bytes()) {
                return Ok(self.refuse(Kind::Describe, Error::unknown_statement(name), server));
            }
        }
        let bound = if kind == b'P' && name.is_empty() { self.bound.take() } else { None };
        server.pipeline.push_about(Kind::Describe, Action::Forward, bound.as_ref().map_or(0, |s| s.id));
        if let Some(statement) = bound {
            self.expect_shape(statement);
        }
        Ok(Taken::Forward)
    }

    fn take_close(
        &mut self,
        body: &[u8],
        server: &mut ServerConn,
        reply: &mut Vec<u8>,
    ) -> Result<Taken, Fault> {
        let (kind, name) = f::target(f::CLOSE, body)?;
        if kind == b'S' && self.waits_for_name(name, server) {
            return Ok(Taken::Later);
        }
        if kind == b'S' && self.tracks(name) {
            let ours = name.starts_with(SERVER_NAME_PREFIX.as_bytes());
            if !name.is_empty() && (ours || self.names.lookup(name).is_some()) {
                self.names.close(name);
                if server.pipeline.push(Kind::Close, Action::Fake, true) {
                    b::put_empty(reply, b::CLOSE_COMPLETE);
                    self.names.settle();
                }
                return Ok(Taken::Done);
            }
            if name.is_empty() {
                self.names.close(b"");
                server.names.unnamed = None;
                server.pipeline.push(Kind::Close, Action::Forward, true);
                return Ok(Taken::Forward);
            }
        }
        server.pipeline.push(Kind::Close, Action::Forward, false);
        Ok(Taken::Forward)
    }

    // ----- toward the client

    /// Hot path. ReadyForQuery was taken in.
    pub fn recv_ready(&mut self, status: TransactionStatus, answer: Answer) {
        if answer == Answer::Skip {
            self.report_due = std::mem::take(&mut self.report_pending);
            return;
        }
        self.fold_left &= !self.shares_servers() || status != TransactionStatus::Idle;
        self.turns = self.turns.wrapping_add(1);
        if status == TransactionStatus::Idle {
            self.portals = None;
            if std::mem::take(&mut self.catalog_moved) {
                self.shared.statements.catalog_moved();
            }
            self.counts.xacts += 1;
            self.xact_turns = self.xact_turns.wrapping_add(1);
        }
    }

    fn expect_shape(&mut self, statement: Arc<Statement>) {
        // Those whose Describe was struck by an error stay here until nothing is owed.
        if self.described.len() >= PIPELINE_MAX {
            self.described.clear();
        }
        self.described.push_back(statement);
    }

    /// RowDescription or NoData (`body` is empty) was taken in for a statement. `None`: it is too long to be looked at.
    pub fn recv_shape(&mut self, id: u32, body: Option<&[u8]>, answer: Answer) {
        // Those before it were struck by an error.
        let Some(at) = self.described.iter().position(|s| s.id as u32 == id) else { return };
        let Some(statement) = self.described.drain(..=at).next_back() else { return };
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
            let (query, types, max) = (&statement.query, &statement.types, self.prepared_bytes_max);
            let class = statement.class;
            let interned = self.shared.statements.intern(query, types, class, || statement.effects, max);
            if let Some(new) = interned {
                new.shape.get_or_init(|| shape);
                self.names.replace(statement.id, &new);
            }
        }
    }

    /// An ErrorResponse was taken in; `asked`: the statement it is about.
    ///
    /// # Errors
    /// The client sent to a COPY what that does not take, and PostgreSQL would have closed the connection.
    pub fn recv_error(
        &mut self,
        body: &[u8],
        asked: u32,
        server: &ServerShared,
        pipeline: &mut Pipeline,
    ) -> Result<(), Fault> {
        for _ in 0..pipeline.take_struck_refusals() {
            self.refusals.pop_front();
        }
        let fields = b::ErrorFields::new(body);
        if fields.sqlstate() == QUERY_CANCELED && memchr::memmem::find(body, NOT_DATA).is_some() {
            let error = "unexpected message during COPY from stdin";
            return Err(Fault::Client(Error::protocol_violation(error)));
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

    /// CommandComplete with this tag was taken in: a catalogue may have changed.
    pub fn recv_end(&mut self, tag: &[u8]) {
        match Moved::by(tag, self.taint.intersects(Effects::TEMP)) {
            Moved::Nothing => {}
            Moved::Own => self.own_catalog = Statements::own_catalog(),
            Moved::All => {
                self.shared.statements.catalog_moved();
                self.catalog_moved = true;
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
        if Arc::ptr_eq(&self.reported, reported) {
            return;
        }
        for (name, value) in reported.iter() {
            if !self.reported.iter().any(|(n, v)| n == name && v == value) {
                b::put_parameter_status(reply, name, value);
            }
        }
        self.know(reported);
    }

    /// The client knows these values now.
    pub fn know(&mut self, reported: &Arc<Reported>) {
        self.reported = Arc::clone(reported);
        self.know_lexing(reported);
    }
}

/// What is owed for a message that asks for something.
fn kind_of(tag: u8) -> Option<Kind> {
    Some(match tag {
        f::QUERY => Kind::Query,
        f::FUNCTION_CALL => Kind::FunctionCall,
        f::PARSE => Kind::Parse,
        f::BIND => Kind::Bind,
        f::DESCRIBE => Kind::Describe,
        f::EXECUTE => Kind::Execute,
        f::CLOSE => Kind::Close,
        _ => return None,
    })
}

/// Behind extended messages without a Sync a Query ends their transaction: PostgreSQL 18 takes it for open all the same when
/// their Sync comes, says that it is idle, and fails the next statement (XX000). That is to be nobody else's.
fn doubt_unit(server: &ServerConn) {
    if server.pipeline.is_unsynced() {
        server.shared.close_needed.store(true, Ordering::Relaxed);
    }
}

/// What a client is told of a refusal.
pub(super) fn policy_error(rejection: &policy::Rejection) -> Error {
    let error = Error::new(crate::error::Kind::PolicyRefused, rejection.message.clone())
        .with_hint(rejection.advice());
    match &rejection.detail {
        Some(detail) => error.with_detail(detail.clone()),
        None => error,
    }
}

/// What can make settings that no module defines (`SET app.user = ...`).
const MAKES_SETTINGS: Effects = Effects::SETTINGS.union(Effects::UNKNOWN);

/// SQLSTATE `query_canceled`, also of a COPY that its client gives up.
const QUERY_CANCELED: &[u8] = b"57014";

/// SQLSTATE `internal_error`.
const INTERNAL_ERROR: &[u8] = b"XX000";

/// Most names noted for one probe.
const CANDIDATES_MAX: usize = 64;

/// Longest name noted (bytes): PostgreSQL cuts none, but none is longer in earnest.
const CANDIDATE_BYTES_MAX: usize = 128;

/// Notes every `word.word` of a text, wherever it stands: in a SET, in a string, in the body of a DO. False: there are more,
/// or such that the probe does not ask for.
fn find_setting_names(text: &[u8], names: &mut Vec<String>) -> bool {
    let in_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$') || b >= 0x80;
    let (mut at, mut all) = (0, true);
    while let Some(dot) = memchr::memchr(b'.', &text[at..]).map(|n| at + n) {
        let start = text[..dot].iter().rposition(|&b| !in_name(b) && b != b'.').map_or(0, |n| n + 1);
        let end = text[dot..].iter().position(|&b| !in_name(b) && b != b'.').map_or(text.len(), |n| dot + n);
        at = end.max(dot + 1);
        let name = &text[start..end];
        let begins = |b: u8| b.is_ascii_alphabetic() || b == b'_' || b >= 0x80;
        if !name.split(|&b| b == b'.').all(|word| word.first().is_some_and(|&b| begins(b))) {
            continue;
        }
        let known = |name: &&str| name.is_ascii() && name.len() <= CANDIDATE_BYTES_MAX;
        let Some(name) = std::str::from_utf8(name).ok().filter(known).map(str::to_ascii_lowercase) else {
            all = false;
            continue;
        };
        if names.contains(&name) {
            continue;
        }
        if names.len() < CANDIDATES_MAX {
            names.push(name);
        } else {
            all = false;
        }
    }
    all
}

/// Uses or makes statements and portals.
fn is_extended(tag: u8) -> bool {
    matches!(tag, f::PARSE | f::BIND | f::DESCRIBE | f::EXECUTE | f::CLOSE)
}

/// Hot path. The server would close the connection over a message of a short kind that is long.
pub(super) fn check_length(head: Header) -> Result<(), DecodeError> {
    let short = !matches!(head.tag, f::COPY_DATA | f::QUERY | f::PARSE | f::BIND | f::FUNCTION_CALL);
    if short && head.body + 4 > SHORT_MESSAGE_BYTES_MAX {
        let len = head.body as u32 + 4;
        return Err(DecodeError::LengthTooLarge { tag: head.tag, len, max: SHORT_MESSAGE_BYTES_MAX });
    }
    Ok(())
}

/// What [`State::take`] does not ask to be whole. `frame` is what has arrived of it.
pub(super) fn may_go_in_pieces(head: Header, frame: &[u8]) -> bool {
    match head.tag {
        f::QUERY => head.total() > STATEMENT_BYTES_MAX,
        f::PARSE => head.total() > PREPARED_TEXT_BYTES_MAX,
        f::COPY_DATA | f::FUNCTION_CALL => true,
        f::BIND => {
            let body = &frame[HEADER_BYTES..];
            body.len() >= SMALL_MESSAGE_BYTES_MAX || memchr::memchr_iter(0, body).nth(1).is_some()
        }
        // Short kinds, all of them: nothing is lost by waiting for their end.
        _ => false,
    }
}

/// Why a COPY fails that other messages than data come to.
const NOT_DATA: &[u8] = b"pgsluice: unexpected message during COPY from stdin";

/// The name of a statement that nobody has: its Close is a question whose answer shows what came before it.
const FENCE: &[u8] = b"pgsluice_fence";

/// The name of a statement that stands for one that a client has already.
const TAKEN: &[u8] = b"pgsluice_taken";

/// SQLSTATE `duplicate_prepared_statement`.
pub(super) const DUPLICATE_STATEMENT: &[u8] = b"42P05";

/// What a DEALLOCATE of ours takes away.
const DEALLOCABLE: &[u8] = b"pgsluice_deallocate";

/// Takes it away.
const DEALLOCATE: &[u8] = b"DEALLOCATE pgsluice_deallocate";

/// A statement to deallocate: the one that the client means is shared, and may not even be prepared again (its table is gone).
fn put_deallocable(server: &mut ServerConn) {
    f::put_target(&mut server.conn.out, f::CLOSE, b'S', DEALLOCABLE);
    f::put_parse(&mut server.conn.out, DEALLOCABLE, b"SELECT", &[]);
}

/// A Bind with another statement's name; `names` is its body up to the end of both. The rest of it follows.
fn put_bind_of(
    statement: &[u8],
    head: Header,
    names: &[u8],
    portal_end: usize,
    server: &mut ServerConn,
) -> Taken {
    let len = head.body + 4 - (names.len() - portal_end - 1) + statement.len();
    let out = &mut server.conn.out;
    out.push(f::BIND);
    out.extend_from_slice(&(len as u32).to_be_bytes());
    out.extend_from_slice(&names[..=portal_end]);
    out.extend_from_slice(statement);
    Taken::Prefix(HEADER_BYTES + names.len())
}

fn need_names(head: Header, body: &[u8]) -> Result<Taken, Fault> {
    if body.len() >= SMALL_MESSAGE_BYTES_MAX || body.len() >= head.body {
        return Err(DecodeError::Malformed { tag: f::BIND, what: "statement name" }.into());
    }
    Ok(Taken::NeedWhole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(text: &str) -> Vec<String> {
        let mut names = Vec::new();
        find_setting_names(text.as_bytes(), &mut names);
        names
    }

    #[test]
    fn a_name_that_is_not_noted_is_told_of() {
        let all = |text: &str| find_setting_names(text.as_bytes(), &mut Vec::new());
        assert!(all("SET a.b = '1.5 ... c.d'"));
        assert!(!all("SET a.\u{e9} = 1"));
        assert!(!all(&format!("SET a.{} = 1", "b".repeat(CANDIDATE_BYTES_MAX))));
        assert!(!all(&(0..=CANDIDATES_MAX).map(|i| format!("a.b{i} ")).collect::<String>()));
    }

    #[test]
    fn names_of_settings_are_found_wherever_they_stand() {
        assert_eq!(names_in("SET App.User = 'x'; SET app.user TO 2"), ["app.user"]);
        assert_eq!(names_in("SELECT set_config('a.b_c', $1, false), 1.5, .5, t.*"), ["a.b_c"]);
        assert_eq!(names_in("DO $$BEGIN PERFORM set_config('x.y.z','1',false); END$$"), ["x.y.z"]);
        assert_eq!(names_in("\0\0\x01app.x\0"), ["app.x"]);
        assert!(names_in("... a. .b 1.a").is_empty());
        assert_eq!(
            names_in(&(0..1000).map(|i| format!("a.b{i} ")).collect::<String>()).len(),
            CANDIDATES_MAX
        );
    }
}
