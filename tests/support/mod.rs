//! The fixtures of the integration tests: a private PostgreSQL, a running pgsluice, a raw client, certificates.
//!
//! Use it with `mod support;`. Nothing here outlives the test binary, however that ends: each child has a
//! watcher that ends it when the test's end of a pipe closes.

#![allow(dead_code, unreachable_pub, missing_debug_implementations, unused_imports)]

mod certs;
pub mod child;
pub mod console;
pub mod crowd;
mod cut;
mod direct;
pub mod exposition;
pub mod lies;
mod postgres;
pub mod pouring;
mod proxy;
mod raw;
pub mod relay;
pub mod seeded;

pub use certs::Certs;
pub use child::{free_port, poll, without_pg_settings};
pub use crowd::Step;
pub use cut::{Cut, Cutter};
pub use postgres::{PgOptions, Postgres, client_command, client_program};
pub use proxy::Proxy;
pub use raw::{Message, Raw, cancel_packet, outline};

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long anything in a test may take before it counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Where `tests/drivers/prepare.sh` puts `what` (`python`, `postgres-18` ...); builds it when it is missing, and fails
/// with what to do.
pub fn prepared(what: &str) -> PathBuf {
    // Two tests that build the same would write into each other's files.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drivers/prepare.sh");
    child::run(Command::new(script).arg(what).env("CARGO_TARGET_DIR", target));
    target.join("drivers").join(what)
}
