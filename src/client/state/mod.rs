//! What a session remembers between messages, and what happens to each frontend message.
//!
//! Owns: prepared names, settings, taint, refusals; the decision for each message. Never: touches a socket (it is
//! given the frame and appends to buffers).

mod answers;
mod bind;
mod copy;
mod lend;
mod prepared;
mod query;
mod reports;
mod taint;
mod temporary;

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, LazyLock};

pub use reports::Withheld;
pub use temporary::MAKES_TEMP;

use super::Auditor;
use super::judge::{Reading, Ruling, Unjudged};
use crate::coalesce::lane::Work;
use crate::error::Error;
use crate::learn::Learner;
use crate::limits::{
    PREPARED_TEXT_BYTES_MAX, SHORT_MESSAGE_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX, STATEMENT_BYTES_MAX,
};
use crate::policy::{self, Rules};
use crate::pool::{self, CustomSettings, registry::Shared};
use crate::proto::pipeline::{Action, Kind};
use crate::proto::prepared::{ClientNames, Statement};
use crate::proto::vars::VarSet;
use crate::server::internal::Lost;
use crate::server::{Reported, ServerConn};
use crate::settings::{General, PoolMode, SessionState};
use crate::sql::effects::Effects;
use crate::wire::frame::{self, HEADER_BYTES, Header};
use crate::wire::{DecodeError, Flaw, frontend as f};

/// A portal that nobody has: to describe it fails in every state of a transaction.
static NO_PORTAL: LazyLock<String> = LazyLock::new(|| name_of_ours("refused"));

/// A client may give its own portals and cursors whatever names it likes, so one of ours ends in what it does not know.
fn name_of_ours(what: &str) -> String {
    format!("pgsluice_{what}_{:016x}", rand::random::<u64>())
}

/// Id that stands for an unnamed statement too long to be kept. It goes when the server is released.
pub const UNKEPT: u64 = u64::MAX;

/// What may be carried, asked for after a transaction that may have changed it.
pub const PROBED: Effects = Effects::SETTINGS
    .union(Effects::LISTEN)
    .union(Effects::ADVISORY_LOCK)
    .union(Effects::TEMP)
    .union(Effects::HOLD_CURSOR)
    .union(Effects::PREPARE)
    .union(Effects::BACKEND)
    .union(Effects::DISCARD)
    .union(Effects::DISCARD_ALL)
    .union(Effects::LOAD)
    .union(Effects::EXECUTE)
    .union(Effects::UNKNOWN);

/// What may have changed state that is bound to a connection: it is not vouched for without a probe.
pub const UNPINS: Effects =
    PROBED.union(Effects::CLOSE).union(Effects::DEALLOCATE).union(Effects::DEALLOCATE_ALL);

/// What may take a prepared statement of the pool's away, or put another in its place.
pub const MOVES_NAMES: Effects =
    FORGETS_NAMES.union(Effects::PREPARE).union(Effects::EXECUTE).union(Effects::UNKNOWN);

/// State that lives on one server connection only.
pub const BOUND: Effects = Effects::LISTEN
    .union(Effects::ADVISORY_LOCK)
    .union(Effects::TEMP)
    .union(Effects::HOLD_CURSOR)
    .union(Effects::PREPARE)
    .union(Effects::BACKEND);

/// The effects after which prepared statements are gone.
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
    /// The server ended the connection with an error that was passed on to the client: SQLSTATE and message.
    ServerLeft(String),
    /// The server broke the protocol.
    ServerViolation(String),
    /// The body of the server's ErrorResponse: the client's settings could not be set on this connection, or the server ends it.
    Server(Vec<u8>),
}

impl From<Lost> for Fault {
    fn from(Lost { why, said }: Lost) -> Self {
        said.map_or(Self::ServerLost(why), Self::Server)
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self::Client(client_flaw(error))
    }
}

/// The error for a client's message that cannot be decoded.
pub(super) fn client_flaw(error: DecodeError) -> Error {
    match error {
        DecodeError::Malformed { tag, flaw, .. } => flaw.error(tag),
        // The bound of a short kind of message is PostgreSQL's own.
        DecodeError::LengthTooLarge { max, .. } if max != SHORT_MESSAGE_BYTES_MAX => {
            Error::over_packet_size(crate::error::Kind::ProtocolViolation, error.to_string())
        }
        _ => error.into(),
    }
}

/// The error for a server's message that cannot be decoded.
pub(super) fn server_flaw(error: DecodeError) -> Error {
    match error {
        // The operator's bound, and no fault of the server's.
        DecodeError::LengthTooLarge { .. } => {
            Error::over_packet_size(crate::error::Kind::ServerViolation, format!("from the server: {error}"))
        }
        _ => Error::server_violation(&error.to_string()),
    }
}

/// What became of a frontend message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Copy it to the server as it is (the rest of it, too, when it is longer than the buffer).
    Forward,
    /// It is dealt with; its replacement is in the server's buffer.
    Done,
    /// The first `n` bytes of the frame are dealt with; the rest of it goes on as it is.
    Prefix(usize),
    /// Drop it (the rest of it, too).
    Drop,
    /// It must be whole to be understood.
    NeedWhole,
    /// Its beginning must be here to be understood.
    NeedMore,
    /// It has to wait until everything that is owed was answered; nothing of it was taken.
    Later,
    /// Terminate.
    Terminate,
}

/// The ErrorResponse that the client gets in place of the one that pgsluice had the server raise.
#[derive(Debug)]
pub enum Refusal {
    /// An error of ours.
    Ours(Error),
    /// The server's ErrorResponse, whole, to an INSERT that was answered before it was run.
    Late(Vec<u8>),
    /// An error of ours, if the server says that a name is taken; any other error of the server goes to the client.
    Taken(Error),
}

/// Counts while the session has one server connection; added to the pool's when it gives that back.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Queries and Executes, and Syncs without either.
    pub queries: u64,
    /// An Execute came since the last Sync, or the CopyDone or CopyFail of its COPY.
    pub executed: bool,
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
    /// Adds work that was answered without the server being sent the client's messages.
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

    /// A Sync came. A unit without an Execute (it only prepares, describes or closes) counts as a query, as in PgBouncer.
    fn note_sync(&mut self) {
        let executed = std::mem::take(&mut self.executed);
        self.queries += u64::from(!executed);
    }
}

/// What one session remembers between messages.
#[derive(Debug)]
pub struct State {
    /// The process id that the client was told.
    pub pid: i32,
    /// When its server connection goes back to the pool.
    pub mode: PoolMode,
    /// The policy for its messages.
    pub rules: Rules,
    /// The other settings that a reload may change.
    pub bounds: Bounds,

    /// The client's names of prepared statements.
    pub names: ClientNames,
    /// A portal is bound whose Execute may remove prepared statements (`DISCARD ALL`, `DEALLOCATE ALL`).
    pub forgetting: bool,
    /// What the client was told of its statements' rows and parameters.
    pub shapes: Shapes,
    /// What its texts mean as far as a catalogue decides.
    pub meaning: Meaning,
    /// The pool's counter of bytes of statement texts ([`Pool::texts`](crate::pool::Pool::texts)).
    pub texts: Arc<AtomicUsize>,
    /// Names of custom settings seen in its pool ([`Pool::custom_settings`](crate::pool::Pool::custom_settings)).
    pub custom_settings: Arc<CustomSettings>,

    /// Its settings (PostgreSQL's parameters).
    pub vars: Vars,
    /// How the server reads its texts (`standard_conforming_strings`, `client_encoding`).
    pub reading: Reading,
    /// Prepared statements and portals that its present rules did not judge.
    pub unjudged: Unjudged,

    /// State that ties it to its present server connection.
    pub ties: Ties,

    /// Messages that pass in pieces.
    pub part: Part,
    /// No further message is taken from the client until everything that is owed was answered.
    pub awaiting: bool,
    /// The client's next message waits, but only for units that pgsluice itself sent.
    pub behind_ours: bool,
    /// So many answers are owed that the client is not read, and a Flush was sent so that the server answers what it can.
    pub urged: bool,
    /// Bytes of kept texts searched in this turn of the task; bounded by [`TURN_TEXT_BYTES_MAX`].
    ///
    /// [`TURN_TEXT_BYTES_MAX`]: crate::limits::TURN_TEXT_BYTES_MAX
    pub worked: usize,
    /// State of a Query that was sent on as one extended unit.
    pub fold: Folding,
    /// Client names under which statements were prepared on the present server connection for SQL's EXECUTE.
    lent: lend::Lent,
    /// ErrorResponses that wait for their turn.
    pub refusals: VecDeque<Refusal>,
    /// The statement that the last error was about, by its id in the pipeline.
    failed_about: u32,
    /// An INSERT that was answered before it ran has failed or was cancelled: the error for a later message.
    pub late: Option<Late>,
    /// The server's reason for ending the connection.
    pub server_left: Option<String>,
    /// The client sent Terminate.
    pub terminated: bool,

    /// Number of answers that ended; shows the janitor that the session is active.
    pub turns: u32,
    /// Number of transactions that ended; see `turns`.
    pub xact_turns: u32,
    /// Counts since they were last added to the pool's.
    pub counts: Counts,
    /// Its `application_name`, if that changed and the registry does not have it yet.
    pub renamed: Option<Box<str>>,
    /// Shared by all sessions.
    pub shared: Arc<Shared>,
    /// Takes the statements seen under `allow_list = "learn"`.
    pub learner: Arc<Learner>,
    /// Records messages that met the policy.
    pub audit: Auditor,
}

/// The operator's settings for it, besides its rules.
#[derive(Debug)]
pub struct Bounds {
    /// What happens if it makes state that cannot move between server connections.
    pub session_state: SessionState,
    /// Prepared statements on one server connection; 0: names pass untouched.
    pub max_prepared: usize,
    /// Bound on the texts of all named statements (bytes).
    pub prepared_bytes_max: usize,
    /// Largest message (bytes).
    pub message_max: usize,
}

impl Bounds {
    /// From the present configuration.
    pub fn new(general: &General, governs: &pool::Settings) -> Self {
        Self {
            session_state: governs.session_state,
            max_prepared: governs.max_prepared_statements,
            prepared_bytes_max: general.prepared_statement_bytes_max,
            message_max: general.max_packet_size,
        }
    }
}

/// The settings (PostgreSQL's parameters) of a session.
#[derive(Debug)]
pub struct Vars {
    /// The values of its startup packet.
    pub base: Arc<VarSet>,
    /// The values that it has now.
    pub want: Arc<VarSet>,
    /// When it took on its present role ([`Whose::since`](crate::proto::vars::Whose::since)).
    pub since: u64,
    /// The values that the client was told by ParameterStatus.
    pub reported: Arc<Reported>,
    /// Whether it is still to be told of values that pgsluice itself changed.
    pub report: Reporting,
    /// ParameterStatus messages that are held back.
    pub withheld: Withheld,
}

/// What decides whether an equal text means the same thing as before.
#[derive(Debug)]
pub struct Meaning {
    /// The pool's version of the catalogue ([`Pool::catalog`](crate::pool::Pool::catalog)).
    pub pool: u64,
    /// Identifies what it made on its present server connection that changes the meaning of texts for it alone; 0: nothing.
    pub own: u64,
    /// Its transaction changed a catalogue: texts may change their meaning again when it ends.
    pub moved: bool,
    /// Its transaction may have changed the meaning of texts until it ends, by settings or tables: statements prepared in it are not
    /// shared.
    pub open: bool,
    /// Its transaction ran, or is about to run, a text that creates objects that others see, though its tag may be that of a query.
    pub makes: bool,
}

impl Meaning {
    /// A text is run; `makes`: it creates objects that others see, or may.
    fn note_made(&mut self, makes: bool) {
        self.open |= makes;
        self.makes |= makes;
    }

    /// No transaction is open, and no message is under way that could begin one.
    pub fn end(&mut self) {
        (self.open, self.makes) = (false, false);
    }
}

/// State that ties a session to one server connection, or may.
#[derive(Debug, Default)]
pub struct Ties {
    /// What its transaction may have done to session state.
    pub taint: Effects,
    /// The last statement was a LISTEN.
    pub listens: bool,
    /// Its transaction may have changed settings until it ends (`SET LOCAL`).
    pub local: bool,
    /// Custom settings of the startup packet that its transaction may have reset to the packet's values.
    pub given_back: Vec<Box<str>>,
    /// Names in its transaction's texts that may be custom settings, for the probe: no catalogue lists these.
    pub candidates: Vec<String>,
    /// SQL's PREPARE has made statements on its pinned server connection.
    pub sql_prepared: bool,
    /// It keeps its server connection because of state that cannot move.
    pub pinned: bool,
    /// A statement since it was pinned may have ended that state.
    pub recheck: bool,
    /// It made, or may have made, state that lasts as long as the server process: no other client gets this server connection.
    pub for_good: bool,
    /// It changed, or may have changed, a setting that the server shows to privileged roles only, and no such role has read it since.
    pub hidden: bool,
    /// Until its transaction ends statements may have other answers or another meaning than before.
    pub apart: bool,
    /// It has loaded a library, which may inspect each later statement of the session, so its INSERTs are not poured.
    pub loaded: bool,
    /// It has made, or may have made, a temporary object on its server connection, and the plans there were renewed since.
    pub plans_renewed: bool,
}

impl Ties {
    /// A statement ran whose text does not show its effects.
    fn doubt(&mut self, effects: Effects) {
        self.taint = self.taint.union(effects);
        self.recheck = true;
    }

    /// True if a LISTEN is all that its transaction did to session state; its taint is then cleared, because no probe is needed.
    pub fn take_listen(&mut self) -> bool {
        let alone = self.listens && self.taint == Effects::LISTEN && !self.hidden && !self.for_good;
        self.listens = false;
        if alone {
            self.taint = Effects::NONE;
        }
        alone
    }

    /// The effects of its transaction are known, or there were none.
    pub fn forget_taint(&mut self) {
        self.taint = Effects::NONE;
        (self.local, self.apart) = (false, false);
        (self.given_back, self.candidates) = (Vec::new(), Vec::new());
    }
}

/// Messages longer than the buffers, on their way in pieces.
#[derive(Debug, Default)]
pub struct Part {
    /// Bytes of the client's message that have still to come.
    pub up: usize,
    /// The rest of that message is dropped.
    pub dropping: bool,
    /// The rest of a server's message is dropped.
    pub dropping_down: bool,
    /// The client has received a part of a message from the server, and the rest will not come.
    pub cut_short: bool,
}

/// A Query that was sent on as one extended unit.
#[derive(Debug, Default)]
pub struct Folding {
    /// It is a COPY; its Sync is sent when the COPY has ended.
    pub sync_owed: bool,
    /// The unnamed statement and portal on the server come from it, and not from a Parse or Bind of the client.
    pub left: bool,
    /// Messages of its answer that are held until it is known that no ErrorResponse follows.
    pub kept: Vec<u8>,
}

/// What the client was told of its statements by Describe.
#[derive(Debug, Default)]
pub struct Shapes {
    /// Statements whose description is on its way, in order.
    pub described: VecDeque<Expected>,
    /// The id of the statement whose parameters are as the client was told, and whose rows are described next.
    pub params_as_told: Option<u64>,
    /// The portal bound last (the first 63 bytes of its name) and its statement, while the statement's description is not known.
    pub bound: Option<(Box<[u8]>, Arc<Statement>)>,
    /// The id of the statement that was described for the present message, and whose rows differ on this server connection.
    pub otherwise: Option<u64>,
    /// The id of a statement whose parameters the client has just been told to have other types, and the statement that replaces it.
    pub retold: Option<(u64, Arc<Statement>)>,
    /// The id of the unnamed statement whose parameter types the client was told.
    pub unnamed_told: Option<u64>,
    /// The id of the unnamed statement whose rows the client was told, and a hash of the RowDescription.
    pub unnamed_rows: Option<(u64, u64)>,
    /// The ids of named statements whose parameters the client was told.
    told: HashSet<u64, ahash::RandomState>,
}

/// A description that is on its way.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The client's name for the statement. `None`: the Describe is of a portal, of the unnamed statement, or pgsluice's own.
    pub name: Option<Box<[u8]>>,
    /// The statement.
    pub statement: Arc<Statement>,
}

impl Shapes {
    /// Was the client told the parameters of this named statement?
    pub(in crate::client) fn was_told(&self, id: u64) -> bool {
        self.told.contains(&id)
    }

    /// The hash of the RowDescription that the client was told for this unnamed statement.
    pub(in crate::client) fn rows_of_unnamed(&self, statement: &Statement) -> Option<u64> {
        self.unnamed_rows.filter(|(id, _)| *id == statement.id).map(|(_, rows)| rows)
    }
}

/// An error that comes after its own statement was answered.
#[derive(Debug)]
pub struct Late {
    /// The ErrorResponse, whole.
    pub error: Vec<u8>,
    /// The number of messages that come before the one that gets the error: they open the block that is to fail.
    pub behind: usize,
}

impl Late {
    /// The very next message gets the error.
    pub fn next(error: Vec<u8>) -> Self {
        Self { error, behind: 0 }
    }

    /// A cancel request fails the message after this many.
    pub fn cancelled(behind: usize) -> Self {
        let mut error = Vec::new();
        Error::cancelled().put(&mut error);
        Self { error, behind }
    }
}

/// Whether ParameterStatus of settings that pgsluice itself changes is held back, to be sent at once.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Reporting {
    /// Nothing.
    #[default]
    None,
    /// A unit of ours that changes them is on its way.
    Pending,
    /// That unit has ended.
    Due,
}

/// The values that a client brings from its login.
#[derive(Debug)]
pub struct Own {
    /// See [`State::pid`].
    pub pid: i32,
    /// See [`State::mode`].
    pub mode: PoolMode,
    /// See [`State::rules`].
    pub rules: Rules,
    /// See [`Meaning::pool`].
    pub catalog: u64,
    /// See [`State::texts`].
    pub texts: Arc<AtomicUsize>,
    /// See [`State::custom_settings`].
    pub custom_settings: Arc<CustomSettings>,
    /// See [`Vars::base`].
    pub base: Arc<VarSet>,
    /// See [`Vars::since`].
    pub since: u64,
    /// See [`Vars::reported`].
    pub reported: Arc<Reported>,
    /// See [`State::audit`].
    pub audit: Auditor,
}

impl State {
    /// Of a client that has just logged in.
    pub fn new(cx: &super::Context, general: &General, governs: &pool::Settings, own: Own) -> Self {
        let Own { pid, mode, rules, catalog, texts, custom_settings, base, since, reported, audit } = own;
        let mut state = Self {
            pid,
            mode,
            rules,
            bounds: Bounds::new(general, governs),
            names: ClientNames::default(),
            forgetting: false,
            shapes: Shapes::default(),
            meaning: Meaning { pool: catalog, own: 0, moved: false, open: false, makes: false },
            texts,
            custom_settings,
            vars: Vars {
                want: Arc::clone(&base),
                base,
                since,
                reported: Arc::clone(&reported),
                report: Reporting::None,
                withheld: Withheld::Nothing,
            },
            reading: Reading::default(),
            unjudged: Unjudged::default(),
            ties: Ties::default(),
            part: Part::default(),
            awaiting: false,
            behind_ours: false,
            urged: false,
            worked: 0,
            fold: Folding::default(),
            lent: lend::Lent::default(),
            refusals: VecDeque::new(),
            failed_about: 0,
            late: None,
            server_left: None,
            terminated: false,
            turns: 0,
            xact_turns: 0,
            counts: Counts::default(),
            renamed: None,
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
        self.shares_servers() && !self.ties.pinned
    }

    /// Nothing stands between messages that are poured and what the server would answer.
    pub(super) fn can_pour(&self) -> bool {
        self.can_pour_behind(Effects::NONE)
    }

    /// Nothing but `harmless` does.
    pub(super) fn can_pour_behind(&self, harmless: Effects) -> bool {
        let taint = self.ties.taint.difference(harmless);
        let harmless = taint == Effects::NONE && !self.ties.loaded && !self.ties.apart;
        self.shares_servers() && self.bounds.max_prepared > 0 && self.part.up == 0 && harmless
    }

    /// standard_conforming_strings, as the server said last.
    pub(super) fn std_strings(&self) -> bool {
        self.reading.lexing.std_strings
    }

    /// What a reload brings. Names that are followed, and only those, are the client's own on every connection: which they
    /// are is settled for good when it comes.
    pub fn take_bounds(&mut self, new: Bounds) {
        let (old, follows) = (self.bounds.max_prepared, new.max_prepared > 0);
        self.bounds = new;
        if follows != (old > 0) {
            self.bounds.max_prepared = old;
        }
    }

    /// Do its names stand for its own statements, whatever connection it has?
    pub fn tracks_names(&self) -> bool {
        self.shares_servers() && self.bounds.max_prepared > 0
    }

    /// The unnamed statement is followed wherever servers are shared: it never is another client's.
    fn tracks(&self, name: &[u8]) -> bool {
        self.shares_servers() && (name.is_empty() || self.bounds.max_prepared > 0)
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
        if self.fold.left && is_extended(head.tag) {
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
        let body = &frame[HEADER_BYTES..];
        // Its name is not here yet.
        if kind == Kind::Parse && body.is_empty() && head.body > 0 {
            return Ok(Taken::NeedMore);
        }
        // A Close does not fail, and what it closes must not be bound behind the error.
        let strikes = |late: &mut Late| late.behind == 0 && kind != Kind::Close;
        if let Some(late) = self.late.take_if(strikes) {
            let refusal = Refusal::Late(late.error);
            let taken = match kind {
                Kind::Parse => self.refuse_parse(body.first() == Some(&0), refusal, server),
                Kind::Query => {
                    self.take_unnamed_away(server);
                    self.refuse_with(kind, refusal, server)
                }
                _ => self.refuse_with(kind, refusal, server),
            };
            return Ok(if frame.len() == head.total() { taken } else { Taken::Drop });
        }
        let taken = self.take_message(head, frame, server, reply)?;
        if !matches!(taken, Taken::NeedWhole | Taken::NeedMore | Taken::Later)
            && let Some(late) = &mut self.late
        {
            late.behind = late.behind.saturating_sub(1);
        }
        Ok(taken)
    }

    fn take_message(
        &mut self,
        head: Header,
        frame: &[u8],
        server: &mut ServerConn,
        reply: &mut Vec<u8>,
    ) -> Result<Taken, Fault> {
        match self.take_well_formed(head, frame, server, reply) {
            Err(Fault::Client(error)) if error.kind() == crate::error::Kind::MalformedMessage => {
                Ok(self.take_malformed(head, frame, error, server))
            }
            taken => taken,
        }
    }

    /// What is no fault of its framing fails as any other message does. The server is not given it: another one might
    /// read it in another way.
    fn take_malformed(&mut self, head: Header, frame: &[u8], error: Error, server: &mut ServerConn) -> Taken {
        if !server.pipeline.is_empty() && !server.pipeline.in_copy_in() {
            self.await_answers(server);
            return Taken::Later;
        }
        let kind = match kind_of(head.tag) {
            // It takes no unnamed statement away: its text was not found.
            Some(Kind::Query) => Kind::FunctionCall,
            kind => kind.unwrap_or(Kind::Describe),
        };
        let taken = self.refuse(kind, error, server);
        if frame.len() == head.total() { taken } else { Taken::Drop }
    }

    fn take_well_formed(
        &mut self,
        head: Header,
        frame: &[u8],
        server: &mut ServerConn,
        reply: &mut Vec<u8>,
    ) -> Result<Taken, Fault> {
        let whole = frame.len() == head.total();
        let body = &frame[HEADER_BYTES..];
        // A Sync with a body fails, if no COPY swallows it.
        let may_fail = kind_of(head.tag).is_some()
            || head.tag == f::SYNC && head.body > 0 && server.pipeline.is_behind_copy();
        if may_fail && self.waits_for_copy(head.tag, server) {
            return Ok(Taken::Later);
        }
        self.counts.executed |= matches!(head.tag, f::EXECUTE | f::COPY_DONE | f::COPY_FAIL);
        if head.tag == f::EXECUTE {
            self.note_execute();
        }
        match head.tag {
            f::COPY_DATA => {
                server.pipeline.push_data();
                Ok(Taken::Forward)
            }
            f::EXECUTE if self.looks_into_executes() => self.take_ruled_execute(frame, whole, server),
            f::EXECUTE => {
                self.counts.queries += 1;
                Ok(self.owe(server, Kind::Execute))
            }
            f::SYNC => {
                self.counts.note_sync();
                self.await_giving_back();
                self.unjudged.note_sync();
                server.pipeline.push(Kind::Sync, Action::Forward, false);
                Ok(Taken::Forward)
            }
            f::TERMINATE => {
                self.terminated = true;
                Ok(Taken::Terminate)
            }
            f::QUERY if self.has_query_waiting() => self.take_waiting_query(body, server),
            _ if server.pipeline.is_discarding() => Ok(Taken::Drop),
            f::BIND => self.take_bind(head, body, server),
            f::FLUSH if head.body == 0 || server.pipeline.in_copy_in() => Ok(Taken::Forward),
            f::FLUSH => {
                Err(DecodeError::Malformed { tag: f::FLUSH, what: "a body", flaw: Flaw::Long }.into())
            }
            f::COPY_DONE | f::COPY_FAIL => Ok(self.take_copy_end(frame, whole, server)),
            f::QUERY if head.total() > STATEMENT_BYTES_MAX => self.take_long_query(head.body, server),
            // Whether it has a name is not known yet.
            f::PARSE if body.is_empty() && !whole => Ok(Taken::NeedMore),
            f::PARSE if head.total() > PREPARED_TEXT_BYTES_MAX => {
                self.take_long_parse((head.body, body), server)
            }
            f::FUNCTION_CALL => self.take_function_call(server),
            f::QUERY | f::PARSE | f::DESCRIBE | f::CLOSE if !whole => Ok(Taken::NeedWhole),
            f::QUERY => self.take_query(body, server),
            f::PARSE => self.take_parse(body, server, reply),
            f::DESCRIBE => self.take_describe(body, server),
            f::CLOSE => self.take_close(body, server, reply),
            tag => Err(no_such_message(tag)),
        }
    }

    /// An Execute that rules ask about, or whose statement takes statements away.
    fn take_ruled_execute(
        &mut self,
        frame: &[u8],
        whole: bool,
        server: &mut ServerConn,
    ) -> Result<Taken, Fault> {
        if !whole {
            return Ok(Taken::NeedWhole);
        }
        if server.pipeline.is_discarding() {
            self.counts.queries += 1;
            return Ok(Taken::Drop);
        }
        let body = &frame[HEADER_BYTES..];
        if self.has_deallocating_portal()
            && let Some(taken) = self.take_deallocating_execute(body, frame, server)?
        {
            return Ok(taken);
        }
        match self.rule_execute(body, &server.pipeline)? {
            Ruling::Wait => {
                self.await_answers(server);
                return Ok(Taken::Later);
            }
            Ruling::Refuse(error) => {
                self.counts.queries += 1;
                return Ok(self.refuse(Kind::Execute, error, server));
            }
            Ruling::Pass | Ruling::Fold => self.counts.queries += 1,
        }
        Ok(if self.forgetting {
            self.take_forgetting_execute(frame, server)
        } else {
            self.owe(server, Kind::Execute)
        })
    }

    /// No more is taken before something is answered, and what would make the server answer may stand behind it: a client
    /// that sends a long unit reads nothing before its Sync.
    pub fn urge(&mut self, server: &mut ServerConn) {
        if server.pipeline.is_within_unit() && !std::mem::replace(&mut self.urged, true) {
            f::put_empty(&mut server.conn.out, f::FLUSH);
        }
    }

    /// What follows waits until everything is answered, and the server is made to answer.
    pub(in crate::client) fn await_answers(&mut self, server: &mut ServerConn) {
        f::put_empty(&mut server.conn.out, f::FLUSH);
        (self.awaiting, self.urged) = (true, true);
    }

    fn owe(&self, server: &mut ServerConn, kind: Kind) -> Taken {
        if server.pipeline.is_discarding() {
            return Taken::Drop;
        }
        server.pipeline.push(kind, Action::Forward, false);
        Taken::Forward
    }

    /// Hot path. Which portal an Execute is of matters: it may not go as it is.
    pub(in crate::client) fn looks_into_executes(&self) -> bool {
        self.forgetting || self.unjudged.portals.is_some() || self.has_deallocating_portal()
    }

    /// Behind DISCARD ALL and DEALLOCATE ALL names mean something else, if they succeed: what follows waits for that.
    fn take_forgetting_execute(&mut self, frame: &[u8], server: &mut ServerConn) -> Taken {
        self.forgetting = false;
        server.conn.out.extend_from_slice(frame);
        server.pipeline.push(Kind::Execute, Action::Forward, false);
        self.await_answers(server);
        Taken::Done
    }

    /// What is refused here must fail on the server too: a block fails, a pipeline skips to its Sync. So the server
    /// is made to fail, and its ErrorResponse is replaced by ours.
    fn refuse(&mut self, kind: Kind, error: Error, server: &mut ServerConn) -> Taken {
        self.refuse_with(kind, Refusal::Ours(error), server)
    }

    /// A Parse takes the unnamed statement away, whether it is refused by the server or by us.
    fn refuse_parse(&mut self, unnamed: bool, refusal: Refusal, server: &mut ServerConn) -> Taken {
        let takes_away = unnamed && self.tracks(b"");
        if takes_away {
            self.names.close_unnamed(&mut server.names);
        } else if unnamed {
            f::put_target(&mut server.conn.out, f::CLOSE, b'S', b"");
            server.pipeline.push(Kind::Close, Action::Skip, false);
        }
        f::put_target(&mut server.conn.out, f::DESCRIBE, b'P', NO_PORTAL.as_bytes());
        server.pipeline.push(Kind::Parse, Action::Refuse, takes_away);
        self.refusals.push_back(refusal);
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
                f::put_target(out, f::DESCRIBE, b'P', NO_PORTAL.as_bytes());
                server.pipeline.push(kind, Action::Refuse, false);
            }
        }
        self.refusals.push_back(refusal);
        Taken::Done
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

/// What a client is told of a refusal.
pub(super) fn policy_error(rejection: &policy::Rejection) -> Error {
    let error = Error::new(crate::error::Kind::PolicyRefused, rejection.message.clone())
        .with_hint(rejection.advice());
    match &rejection.detail {
        Some(detail) => error.with_detail(detail.clone()),
        None => error,
    }
}

/// Uses or makes statements and portals.
fn is_extended(tag: u8) -> bool {
    matches!(tag, f::PARSE | f::BIND | f::DESCRIBE | f::EXECUTE | f::CLOSE)
}

/// Hot path. The server would close the connection over a message of a short kind that is long.
fn check_length(head: Header) -> Result<(), DecodeError> {
    let short = !matches!(head.tag, f::COPY_DATA | f::QUERY | f::PARSE | f::BIND | f::FUNCTION_CALL);
    if short && head.body + 4 > SHORT_MESSAGE_BYTES_MAX {
        let len = head.body as u32 + 4;
        return Err(DecodeError::LengthTooLarge { tag: head.tag, len, max: SHORT_MESSAGE_BYTES_MAX });
    }
    Ok(())
}

/// Hot path. The head of the message that begins here, once it is there. An error is what PostgreSQL closes the connection for;
/// no more than the first byte is needed to know that there is no such message.
pub(in crate::client) fn next_head(buf: &[u8], max: usize) -> Result<Option<Header>, Fault> {
    if let Some(&tag) = buf.first().filter(|tag| !f::is_known(**tag)) {
        return Err(no_such_message(tag));
    }
    let Some(head) = frame::header(buf, max)? else { return Ok(None) };
    check_length(head)?;
    Ok(Some(head))
}

fn no_such_message(tag: u8) -> Fault {
    Fault::Client(Error::protocol_violation(format!("invalid frontend message type {tag}")))
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

/// SQLSTATE `duplicate_prepared_statement`.
pub(super) const DUPLICATE_STATEMENT: &[u8] = b"42P05";

/// A message that ends a COPY FROM STDIN while it reads: PostgreSQL closes the connection for that.
pub(super) fn unexpected_in_copy() -> Fault {
    Fault::Client(Error::protocol_violation("unexpected message during COPY from stdin"))
}
