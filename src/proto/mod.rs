//! The state of an established connection: answers owed, names of prepared statements, session variables.
//!
//! Owns: the states of an established connection as plain data. Never: a socket, a task, a clock.

pub mod fold;
pub mod pipeline;
pub mod prepared;
pub mod vars;
