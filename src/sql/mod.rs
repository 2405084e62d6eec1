//! What can be known of a statement's text.
//!
//! Owns: a lexer that follows the server's ([`scan`]), what a text may do to its session ([`effects`]), literal
//! INSERTs taken apart ([`insert`], with [`cast`] and [`expression`], and [`again`] for the next one like it), what wants a database empty ([`database`]), what opens
//! and closes a block ([`block`]) and, on PostgreSQL's own parser, what a text means ([`meaning`]) and what its statements do
//! ([`verbs`]).
//! Never: a session, a socket, a decision.

pub mod again;
pub mod block;
mod builtins;
pub mod cast;
pub mod custom;
pub mod database;
pub mod effects;
pub mod expression;
pub mod insert;
pub mod meaning;
pub mod moves;
pub mod scan;
pub mod verbs;
mod walk;

#[cfg(test)]
mod tests;
