//! The protocol's bytes: framing, views of messages, encoders.
//!
//! Owns: how a message lies in a buffer. Never: a socket, a task, a clock, what a message means for a session.
//! Every length is compared with a bound of [`crate::limits`] before it is used.
//! See "Message Formats" in the frontend/backend protocol chapter of PostgreSQL's manual.

use crate::error::{Error, Kind};

pub mod backend;
pub mod copy;
pub mod frame;
pub mod frontend;
pub mod ldap;
pub mod proxy;
pub mod startup;

/// A type's object id.
pub type Oid = u32;

/// The secret of a cancel request. `Debug` does not print it; it is wiped when dropped.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CancelKey(Box<[u8]>);

impl From<&[u8]> for CancelKey {
    fn from(key: &[u8]) -> Self {
        Self(key.into())
    }
}

impl std::ops::Deref for CancelKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for CancelKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CancelKey({} bytes)", self.0.len())
    }
}

impl Drop for CancelKey {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.0);
    }
}

/// The status byte of ReadyForQuery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransactionStatus {
    /// `I`: not in a transaction block.
    #[default]
    Idle,
    /// `T`: in a transaction block.
    InTransaction,
    /// `E`: in a failed transaction block.
    Failed,
}

impl TransactionStatus {
    /// From ReadyForQuery's byte; `None` for any other byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'I' => Some(Self::Idle),
            b'T' => Some(Self::InTransaction),
            b'E' => Some(Self::Failed),
            _ => None,
        }
    }

    /// ReadyForQuery's byte.
    pub fn as_byte(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::InTransaction => b'T',
            Self::Failed => b'E',
        }
    }
}

/// Why a message could not be understood. Small and free to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The length word is below its own size (4).
    LengthTooSmall {
        /// The message's type byte (0 for a startup packet).
        tag: u8,
        /// What the length word said.
        len: i32,
    },
    /// The length is above the bound named by `max`.
    LengthTooLarge {
        /// The message's type byte (0 for a startup packet).
        tag: u8,
        /// What the length word said.
        len: u32,
        /// The bound (bytes).
        max: usize,
    },
    /// The body ends before its fields do, or goes on after them.
    Malformed {
        /// The message's type byte (0 for a startup packet).
        tag: u8,
        /// Which field.
        what: &'static str,
        /// What is wrong there.
        flaw: Flaw,
    },
}

/// What is wrong with a body, as far as PostgreSQL tells it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A string without its zero.
    String,
    /// It ends before a field of one byte.
    NoByte,
    /// It ends before another field does.
    Short,
    /// It goes on after its fields.
    Long,
    /// A field has a value that there is not.
    Value(u8),
}

impl Flaw {
    /// What PostgreSQL says of it in a message of this type, once a client is logged in: the session goes on.
    pub fn error(self, tag: u8) -> Error {
        let message = match self {
            Self::String => "invalid string in message".into(),
            Self::NoByte => "no data left in message".into(),
            Self::Short => "insufficient data left in message".into(),
            Self::Long => "invalid message format".into(),
            Self::Value(value) => {
                let name = if tag == frontend::CLOSE { "CLOSE" } else { "DESCRIBE" };
                format!("invalid {name} message subtype {value}")
            }
        };
        Error::new(Kind::MalformedMessage, message)
    }
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::LengthTooSmall { tag, len } => {
                write!(f, "invalid message length {len} in message {:?}", char::from(*tag))
            }
            Self::LengthTooLarge { tag, len, max } => write!(
                f,
                "message length {len} in message {:?} exceeds the limit of {max} bytes",
                char::from(*tag)
            ),
            Self::Malformed { tag, what, .. } => {
                write!(f, "malformed message {:?}: {what}", char::from(*tag))
            }
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::protocol_violation(error.to_string())
    }
}
