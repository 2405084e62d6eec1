//! What the integration tests stand on: a private PostgreSQL, a running pgsluice, a raw client, certificates.
//!
//! Use it with `mod support;`. Nothing here outlives the test binary, however that ends: each child has a
//! watcher that ends it when the test's end of a pipe closes.

#![allow(dead_code, unreachable_pub, missing_debug_implementations, unused_imports)]

mod certs;
pub mod child;
pub mod crowd;
mod cut;
mod postgres;
mod proxy;
mod raw;

pub use certs::Certs;
pub use child::{free_port, poll};
pub use crowd::Step;
pub use cut::{Cut, Cutter};
pub use postgres::{PgOptions, Postgres, client_program};
pub use proxy::Proxy;
pub use raw::{Message, Raw, outline};

use std::time::Duration;

/// How long anything in a test may take before it counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(30);
