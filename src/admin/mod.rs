//! The console: what an operator or an exporter asks pgsluice itself, over the PostgreSQL protocol.
//!
//! Owns: PgBouncer's command grammar ([`parse`]), who may say what ([`parse::Command::least_role`]), the tables of
//! SHOW with PgBouncer's columns in PgBouncer's order ([`rows`], [`table`]), and one client's conversation
//! ([`session`]). Never: reads a socket, decides what PAUSE or KILL does; that is [`session::Engine`]'s and
//! whoever performs an [`parse::Action`].
//!
//! ```text
//!  frame --> Session::recv --> Step::Next                answered from Engine, bytes are in `out`
//!                         \--> Step::Perform(Action)     the caller does it, however long that takes,
//!                              Session::finish  <------  then says how it went; only then the next frame
//! ```
//!
//! Unlike PgBouncer's, this console takes the extended protocol too (statements without parameters, text and
//! binary results), so that drivers which know nothing else can ask it.

pub mod parse;
pub mod rows;
pub mod session;
pub mod table;

/// What the console tells a client in ParameterStatus at login, and answers to `SHOW name`. `server_version`
/// has our own version, as PgBouncer's has its own.
pub const PARAMETERS: &[(&str, &str)] = &[
    ("server_version", concat!(env!("CARGO_PKG_VERSION"), "/pgsluice")),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("default_transaction_isolation", "read committed"),
    ("standard_conforming_strings", "on"),
    ("DateStyle", "ISO"),
    ("TimeZone", "GMT"),
    ("integer_datetimes", "on"),
];

/// Longest text the console takes, and longest name of a prepared statement or portal (bytes).
pub const COMMAND_BYTES_MAX: usize = 8 << 10;

/// Most prepared statements of one console client; most portals.
pub const STATEMENTS_MAX: usize = 64;

/// Why the console refuses; goes to the client as an ErrorResponse of severity ERROR. `docs/errors.md` has a row for each SQLSTATE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Five characters.
    pub sqlstate: &'static str,
    /// Lower case, no full stop.
    pub message: String,
    /// A sentence.
    pub hint: Option<&'static str>,
}

impl Refusal {
    /// Without a hint.
    pub fn new(sqlstate: &'static str, message: impl Into<String>) -> Self {
        Self { sqlstate, message: message.into(), hint: None }
    }

    /// With one.
    #[must_use]
    pub fn hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }
}
