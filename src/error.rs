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

            /// The kind's name, as in `docs/errors.md`, logs and counters.
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
    /// A startup packet for a protocol other than 3.
    UnsupportedProtocol = "0A000" Fatal,
    /// Something that pgsluice does not offer (replication, a SASL extension).
    NotSupported = "0A000" Fatal,
    /// Bytes that are not UTF-8 where a name or setting is.
    InvalidEncoding = "22021" Fatal,
    /// A startup setting without a usable name.
    UndefinedParameter = "42704" Fatal,
    /// `options` that can't be parsed.
    InvalidOptions = "42601" Fatal,
    /// Who asks may not come in this way (no rule, no TLS, no certificate, unknown to auth_file).
    InvalidAuthorization = "28000" Fatal,
    /// The wrong secret, or no such user: never said which.
    InvalidPassword = "28P01" Fatal,
    /// Login took longer than client_login_timeout.
    LoginTimeout = "57014" Fatal,
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
