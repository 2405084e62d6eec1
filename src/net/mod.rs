//! Sockets and TLS, the same for clients and servers.
//!
//! Owns: the one [`Stream`] type that the rest of the house reads and writes, socket options, the
//! TLS of both sides. Never: a message, who the peer is allowed to be.

pub mod busy;
pub mod conn;
pub mod stream;
pub mod tls;

pub use stream::{Keepalive, Peer, Stream};
pub use tls::{Acceptor, Connector, TlsError, out_of_date};
