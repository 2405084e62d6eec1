//! What can be known of a statement's text without a server.

pub mod insert;
pub mod meaning;
