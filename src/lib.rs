//! pgsluice: an async PostgreSQL proxy that pools, protects and pours.
//!
//! This page is the map of the house. A room imports only from rooms below its own;
//! `tests/house.rs` holds that.
//!
//! ```text
//! main
//! proxy        listeners, accept, workers, reload, drain; builds all
//! admin        the console (SHOW, PAUSE, ...)     review   what a policy lets through, said beforehand
//! client       one client: handshake, session, relay   config   the file -> Settings
//! coalesce     many INSERTs, one COPY (lane: the task)
//! cancel       which client has which server now       quickstart
//! pool         which server connection, when
//! server       one connection to PostgreSQL
//! net  auth    sockets and TLS; who is this      learn   an allow-list on its way to its file
//! telemetry    logs and counters                  files   regular, bounded, without waiting
//! -------------------------------------------------------- below: no tokio, no clock, no log
//! policy   coalesce::{batch, rows, plan, catalog}
//! proto        who may say what next, answers owed, prepared names, session variables
//! wire   sql   the protocol's bytes; what can be known of a text
//! settings     what the operator chose, validated
//! limits   error   mutex
//! ```

pub mod admin;
pub mod auth;
pub mod cancel;
pub mod client;
pub mod coalesce;
pub mod config;
pub mod error;
pub mod files;
pub mod learn;
pub mod limits;
pub mod mutex;
pub mod net;
pub mod policy;
pub mod pool;
pub mod proto;
pub mod proxy;
pub mod quickstart;
pub mod review;
pub mod server;
pub mod settings;
pub mod sql;
pub mod telemetry;
pub mod wire;
