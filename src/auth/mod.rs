//! Who is this: secrets, and the exchanges that prove them, in both directions.
//!
//! Owns: SCRAM-SHA-256 (both halves), MD5, the choice of exchange for a user, HBA rules. Never: a
//! socket, a log; [`crate::client::handshake`] and [`crate::server::connect`] carry the messages.
//! Secrets are compared in constant time and wiped when dropped; `Debug` prints none.

pub mod md5;
pub mod scram;

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::settings::Secret;

/// What a server login can be made with.
#[derive(Clone, Default)]
pub enum Credential {
    /// Nothing: good for servers that trust us, or know our certificate.
    #[default]
    None,
    /// A password in clear: good for every method.
    Plain(Arc<Zeroizing<String>>),
    /// `md5` and 32 hex digits: good for the MD5 exchange.
    Md5(Arc<Zeroizing<String>>),
    /// Keys that a client's own SCRAM login left behind: good for SCRAM with the same verifier.
    Scram(Arc<scram::ClientKeys>),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Plain(_) => "Plain(..)",
            Self::Md5(_) => "Md5(..)",
            Self::Scram(_) => "Scram(..)",
        })
    }
}

impl Credential {
    /// Of a password in clear.
    pub fn plain(password: impl Into<String>) -> Self {
        Self::Plain(Arc::new(Zeroizing::new(password.into())))
    }

    /// Of a configured secret. A SCRAM verifier alone proves nothing to a server: [`Credential::None`].
    pub fn from_secret(secret: &Secret) -> Self {
        match secret {
            Secret::Plain(password) => Self::plain(password.clone()),
            Secret::Md5(hash) => Self::Md5(Arc::new(Zeroizing::new(hash.clone()))),
            Secret::Scram(_) => Self::None,
        }
    }
}
