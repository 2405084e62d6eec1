//! Errors of our own: what a client or an operator is told when pgsluice itself refuses.
//!
//! Owns: the kinds, their SQLSTATE and severity, and the texts. Never: a server's error, which passes
//! through with all its fields; a socket; a log. `docs/errors.md` has a row for each kind, held by a
//! test below. [`crate::wire::backend::Report`] is made from an [`Error`] with `Report::from(&error)`.

use std::borrow::Cow;
use std::fmt;

/// How bad it is, in PostgreSQL's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The statement failed; the session goes on.
    Error,
    /// The connection is closed behind it.
    Fatal,
}

impl Severity {
    /// The word that goes over the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }
}

/// One line for each kind: name, SQLSTATE, severity. `docs/errors.md` repeats it with words.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $sqlstate:literal $severity:ident,)*) => {
        /// What went wrong, as pgsluice sees it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The kind's name, as in `docs/errors.md`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Five characters.
            pub fn sqlstate(self) -> &'static str {
                match self { $(Self::$name => $sqlstate,)* }
            }

            /// ERROR or FATAL.
            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }
        }
    };
}

kinds! {
    /// A message that breaks the protocol: malformed, out of state, too long.
    ProtocolViolation = "08P01" Fatal,
    /// A message whose fields are not what its length says, or of a type that is none, to a COPY.
    MalformedMessage = "08P01" Error,
    /// A startup packet for a protocol other than 3.
    UnsupportedProtocol = "0A000" Fatal,
    /// Something that pgsluice does not offer (replication, a SASL extension).
    NotSupported = "0A000" Fatal,
    /// Bytes that are not UTF-8 where a name or setting is.
    InvalidEncoding = "22021" Fatal,
    /// A startup setting without a usable name.
    UndefinedParameter = "42704" Fatal,
    /// A value that the startup parameter does not have.
    InvalidParameter = "22023" Fatal,
    /// `options` that can't be parsed.
    InvalidOptions = "42601" Fatal,
    /// Who asks may not come in this way (no rule, no TLS, no certificate, unknown to auth_file).
    InvalidAuthorization = "28000" Fatal,
    /// The wrong secret, or no such user: never said which.
    InvalidPassword = "28P01" Fatal,
    /// Login took longer than client_login_timeout.
    LoginTimeout = "57014" Fatal,
    /// A rule of `[policy]` refuses the message.
    PolicyRefused = "42501" Error,
    /// `session_state = "reject"`: state that can't be carried to another server connection.
    SessionStateRejected = "0A000" Error,
    /// A prepared statement of that name exists already.
    DuplicateStatement = "42P05" Error,
    /// No prepared statement of that name exists.
    UnknownStatement = "26000" Error,
    /// A prepared statement's rows would not be what the client was told.
    StalePlan = "0A000" Error,
    /// A row of a deferred block was answered as stored, and is not.
    DeferredRow = "40001" Error,
    /// Texts of prepared statements exceed a bound.
    PreparedBytes = "53400" Error,
    /// One client has as many prepared statements as it may.
    PreparedNames = "54000" Error,
    /// One client's settings exceed a bound.
    SettingsBytes = "54000" Fatal,
    /// No server connection could be opened within query_wait_timeout.
    ServerUnreachable = "08001" Fatal,
    /// No server was as target_session_attrs wants it within query_wait_timeout.
    NoFittingServer = "08001" Fatal,
    /// No server connection became free within query_wait_timeout.
    QueryWaitTimeout = "53300" Fatal,
    /// The server connection was lost while it was in use.
    ServerLost = "08006" Fatal,
    /// The server broke the protocol.
    ServerViolation = "08P01" Fatal,
    /// Whether rows of a batch were committed can't be known.
    OutcomeUnknown = "08007" Fatal,
    /// A cancel request was obeyed before a server had the statement.
    Cancelled = "57014" Error,
    /// An administrator closed the connection.
    Killed = "57P01" Fatal,
    /// pgsluice is shutting down, or the database is.
    ShuttingDown = "57P01" Fatal,
    /// client_idle_timeout.
    IdleTimeout = "57P05" Fatal,
    /// idle_transaction_timeout.
    IdleTransactionTimeout = "25P03" Fatal,
    /// transaction_timeout.
    TransactionTimeout = "25P04" Fatal,
    /// query_timeout.
    QueryTimeout = "57014" Fatal,
    /// max_client_conn, max_db_client_connections or max_user_client_connections.
    TooManyClients = "53300" Fatal,
    /// No `[databases]` entry serves that name.
    UnknownDatabase = "3D000" Fatal,
    /// The console disabled the database.
    DatabaseDisabled = "57P03" Fatal,
    /// A transaction block in statement mode.
    StatementMode = "25001" Fatal,
    /// Something that must not happen did.
    Internal = "XX000" Fatal,
}

/// An error of ours, ready to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inner {
    kind: Kind,
    severity: Severity,
    message: Cow<'static, str>,
    detail: Option<Cow<'static, str>>,
    hint: Option<Cow<'static, str>>,
    log: Option<Cow<'static, str>>,
}

impl Error {
    /// With a message: lower case, no full stop, naming the setting that governs it.
    pub fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            severity: kind.severity(),
            message: message.into(),
            detail: None,
            hint: None,
            log: None,
        }))
    }

    /// Adds a detail: a sentence for whoever reads the error.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    /// Adds a hint: a sentence that says what to do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds what only the operator's log may know (never sent; never a secret).
    #[must_use]
    pub fn with_log(mut self, log: impl Into<Cow<'static, str>>) -> Self {
        self.0.log = Some(log.into());
        self
    }

    /// Closes the connection, whatever the kind's own severity is.
    #[must_use]
    pub fn fatal(mut self) -> Self {
        self.0.severity = Severity::Fatal;
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// ERROR or FATAL.
    pub fn severity(&self) -> Severity {
        self.0.severity
    }

    /// Five characters.
    pub fn sqlstate(&self) -> &'static str {
        self.0.kind.sqlstate()
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The detail.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    /// The hint.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// What only the log may know.
    pub fn log(&self) -> Option<&str> {
        self.0.log.as_deref()
    }
}

/// What a session tells its client.
impl Error {
    /// The client broke the protocol.
    pub fn protocol_violation(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::ProtocolViolation, what)
    }

    /// A message of a type that is none came to a COPY.
    pub fn unexpected_in_copy(tag: u8) -> Self {
        let what = format!("unexpected message type 0x{tag:02X} during COPY from stdin");
        Self::new(Kind::MalformedMessage, what)
    }

    /// `session_state = "reject"` met `what` (a kind of statement).
    pub fn session_state_rejected(what: &str) -> Self {
        Self::new(
            Kind::SessionStateRejected,
            format!("{what} needs a server connection of its own (session_state = \"reject\")"),
        )
        .with_hint("Use pool_mode = \"session\" for this database, or session_state = \"pin\".")
    }

    /// As PostgreSQL says it.
    pub fn duplicate_statement(name: &[u8]) -> Self {
        let name = String::from_utf8_lossy(name);
        Self::new(Kind::DuplicateStatement, format!("prepared statement \"{name}\" already exists"))
    }

    /// As PostgreSQL says it.
    pub fn unknown_statement(name: &[u8]) -> Self {
        let name = String::from_utf8_lossy(name);
        Self::new(Kind::UnknownStatement, format!("prepared statement \"{name}\" does not exist"))
    }

    /// PostgreSQL's source file, and the routine in it, that say the same; drivers know some errors by it.
    pub fn source(&self) -> Option<(&'static str, &'static str)> {
        match self.0.kind {
            Kind::StalePlan => Some(("plancache.c", "RevalidateCachedQuery")),
            Kind::UnknownStatement => Some(("prepare.c", "FetchPreparedStatement")),
            Kind::DuplicateStatement => Some(("prepare.c", "StorePreparedStatement")),
            Kind::Cancelled => Some(("postgres.c", "ProcessInterrupts")),
            _ => None,
        }
    }

    /// As PostgreSQL says it.
    pub fn stale_plan() -> Self {
        Self::new(Kind::StalePlan, "cached plan must not change result type")
    }

    /// An INSERT of a block was answered before it was run (`coalesce.deferred`), and came to another number of rows.
    pub fn deferred_row() -> Self {
        Self::new(
            Kind::DeferredRow,
            "an INSERT came to another number of rows than was answered before it was run (coalesce.deferred)",
        )
        .with_detail("A rule or trigger that was made since then drops rows, or adds some. Nothing of the transaction is stored.")
        .with_hint("Run the transaction again: the table is looked at anew.")
    }

    /// Texts of prepared statements exceed `max` bytes.
    pub fn prepared_bytes(max: usize) -> Self {
        Self::new(
            Kind::PreparedBytes,
            format!(
                "prepared statements would hold more than {max} bytes of text (prepared_statement_bytes_max)"
            ),
        )
        .with_hint("Close statements that are no longer used, or raise prepared_statement_bytes_max.")
    }

    /// A single one has a name and more than `max` bytes of text.
    pub fn prepared_text(max: usize) -> Self {
        Self::new(
            Kind::PreparedBytes,
            format!("a prepared statement that has a name cannot hold more than {max} bytes of text"),
        )
        .with_hint("Send it as the unnamed statement, and large values as parameters.")
    }

    /// A client has `max` prepared statements.
    pub fn prepared_names(max: usize) -> Self {
        Self::new(Kind::PreparedNames, format!("a session cannot have more than {max} prepared statements"))
            .with_hint("Close statements that are no longer used.")
    }

    /// Settings that a client changed exceed `max` bytes.
    pub fn settings_bytes(max: usize) -> Self {
        Self::new(Kind::SettingsBytes, format!("settings of the session would hold more than {max} bytes"))
            .with_hint("Keep large values in a table, or use pool_mode = \"session\".")
    }

    /// No connection to the server within query_wait_timeout, and why.
    pub fn server_unreachable(why: &str) -> Self {
        Self::new(Kind::ServerUnreachable, "no connection to the server within query_wait_timeout")
            .with_detail(why.to_owned())
    }

    /// The server wants a proof that there is not, or gives none itself: waiting would not help. And what is missing.
    pub fn server_login(why: &str) -> Self {
        Self::new(Kind::ServerUnreachable, "cannot log in to the server").with_detail(why.to_owned())
    }

    /// `auth_query` could not be asked. Why, where the server's address is in it, is not for a stranger.
    pub fn lookup_unreachable() -> Self {
        Self::new(Kind::ServerUnreachable, "auth_query could not be asked")
    }

    /// No server as target_session_attrs wants it within query_wait_timeout, and what the hosts are.
    pub fn no_fitting_server(why: &str) -> Self {
        Self::new(
            Kind::NoFittingServer,
            "no server has the database's target_session_attrs (query_wait_timeout)",
        )
        .with_detail(why.to_owned())
        .with_hint("Make one of them fit, or name another in host.")
    }

    /// The database was paused for `limit`.
    pub fn paused(limit: std::time::Duration) -> Self {
        let what =
            format!("the database is paused, for more than {} s (query_wait_timeout)", limit.as_secs_f64());
        Self::new(Kind::QueryWaitTimeout, what).with_hint("RESUME on the console ends a PAUSE or a KILL.")
    }

    /// All connections were busy for `limit`; `full` is the setting that allows no more of them, if one does.
    pub fn query_wait_timeout(limit: std::time::Duration, full: Option<&str>) -> Self {
        let what =
            format!("no server connection became free within {} s (query_wait_timeout)", limit.as_secs_f64());
        let raise = full.map(|setting| format!("{setting} or ")).unwrap_or_default();
        Self::new(Kind::QueryWaitTimeout, what)
            .with_hint(format!("Raise {raise}query_wait_timeout, or look for long transactions."))
    }

    /// The server connection failed in use.
    pub fn server_lost(why: &str) -> Self {
        Self::new(Kind::ServerLost, "the connection to the server was lost").with_detail(why.to_owned())
    }

    /// The server broke the protocol; the details are for the log only.
    pub fn server_violation(why: &str) -> Self {
        Self::new(Kind::ServerViolation, "the server broke the protocol").with_log(why.to_owned())
    }

    /// A message is longer than `max_packet_size`.
    pub fn over_packet_size(kind: Kind, what: String) -> Self {
        Self::new(kind, what).with_hint("Raise max_packet_size if such messages are to pass.")
    }

    /// Rows were sent and their COMMIT was not confirmed.
    pub fn outcome_unknown() -> Self {
        Self::new(
            Kind::OutcomeUnknown,
            "the outcome of the statement is unknown: the server connection was lost at its commit",
        )
        .with_hint("Look whether the row is there before sending it again.")
    }

    /// As PostgreSQL says it.
    pub fn cancelled() -> Self {
        Self::new(Kind::Cancelled, "canceling statement due to user request")
    }

    /// KILL or KILL_CLIENT.
    pub fn killed() -> Self {
        Self::new(Kind::Killed, "terminating connection due to administrator command")
    }

    /// SIGTERM or SHUTDOWN.
    pub fn shutting_down() -> Self {
        Self::new(Kind::ShuttingDown, "pgsluice is shutting down")
    }

    /// A reload took the entry of `database` away.
    pub fn database_removed(database: &str) -> Self {
        Self::new(Kind::Killed, format!("database \"{database}\" was removed from the configuration"))
    }

    /// A reload gave the entry of `database` another login, or took away the one that it named.
    pub fn login_changed(database: &str) -> Self {
        let what = format!("user of database \"{database}\" was changed in the configuration");
        Self::new(Kind::Killed, what).with_hint("Connect again.")
    }

    /// The server connection that the client keeps is to be replaced, and why.
    pub fn server_outdated(why: &str) -> Self {
        let what =
            format!("the server connection of this session is to be replaced (server_fast_close): {why}");
        Self::new(Kind::Killed, what).with_hint("Connect again.")
    }

    /// Neither of the console's lists has the user.
    pub fn console_not_allowed(user: &str) -> Self {
        Self::new(
            Kind::InvalidAuthorization,
            format!("not allowed: user \"{user}\" is in neither admin_users nor stats_users"),
        )
    }

    /// A reload or SET took the user out of the console's lists, or gave it the lesser one.
    pub fn console_rights_taken(user: &str) -> Self {
        let what =
            format!("not allowed any more: user \"{user}\" was taken out of admin_users or stats_users");
        Self::new(Kind::InvalidAuthorization, what)
    }

    /// A timeout of `[general]` closed the session; `kind` says which, `setting` names it.
    pub fn timeout(kind: Kind, setting: &'static str) -> Self {
        Self::new(kind, format!("terminating connection due to {setting}"))
    }

    /// A limit on clients is reached.
    pub fn too_many_clients(setting: &'static str) -> Self {
        Self::new(Kind::TooManyClients, format!("no more connections allowed ({setting})"))
    }

    /// As PostgreSQL says it.
    pub fn unknown_database(name: &str) -> Self {
        Self::new(Kind::UnknownDatabase, format!("database \"{name}\" does not exist"))
            .with_hint("No entry under [databases] has that name, and there is no fallback \"*\".")
    }

    /// A block in statement mode.
    pub fn statement_mode() -> Self {
        Self::new(Kind::StatementMode, "transaction blocks are not allowed (pool_mode = \"statement\")")
    }

    /// A state that must not be reached was.
    pub fn internal(what: &'static str) -> Self {
        Self::new(Kind::Internal, what)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the table in `docs/errors.md`: name, SQLSTATE, severity, what and what to do.
    fn documented() -> Vec<[String; 4]> {
        let page = include_str!("../docs/errors.md");
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| {
            let cells: Vec<_> = row.trim_matches('|').split(" | ").map(|c| c.trim().to_owned()).collect();
            <[String; 4]>::try_from(cells).expect("a row of docs/errors.md has four cells")
        })
        .collect()
    }

    #[test]
    fn each_kind_has_its_row_in_the_docs_and_each_row_its_kind() {
        let rows = documented();
        for kind in Kind::ALL {
            let name = format!("`{}`", kind.name());
            let row = rows.iter().find(|row| row[0] == name);
            let row = row.unwrap_or_else(|| panic!("docs/errors.md has no row for {name}"));
            assert_eq!(row[1], kind.sqlstate(), "{name}");
            assert_eq!(row[2], kind.severity().as_str(), "{name}");
            assert!(row[3].len() > 10, "{name} is not explained");
        }
        assert_eq!(rows.len(), Kind::ALL.len(), "docs/errors.md has a row that is no kind, or one twice");
    }

    #[test]
    fn sqlstates_have_five_characters() {
        for kind in Kind::ALL {
            let code = kind.sqlstate();
            assert!(code.len() == 5 && code.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()));
        }
    }
}
