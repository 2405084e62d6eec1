//! Who may say what next: answers owed, prepared names, session variables.
//!
//! Owns: the states of an established connection as plain data. Never: a socket, a task, a clock.

pub mod fold;
pub mod pipeline;
pub mod prepared;
pub mod vars;
