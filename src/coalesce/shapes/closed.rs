//! Hot path. INSERTs into a table that is never poured into, recognised by their first bytes.
//!
//! Owns: the first bytes of the last such INSERT of one session. Never: why the table is closed, and whether it still is ([`Shape`] knows).

use std::sync::Arc;

use super::{Known, Shape};
use crate::pool::Pool;
use crate::proto::vars::VarSet;
use crate::sql::again::head_end;

/// Longest beginning that is remembered (bytes).
const HEAD_BYTES_MAX: usize = 126;

/// How a text begins that writes into such a table, up to the parenthesis after VALUES.
#[derive(Debug)]
pub struct Closed {
    head: [u8; HEAD_BYTES_MAX],
    len: u8,
    shape: Arc<Shape>,
}

impl Closed {
    /// Of `text`, which is of this shape. `None`: its table is not closed, it does not begin so, or its beginning is too long.
    pub fn new(text: &[u8], shape: Arc<Shape>) -> Option<Self> {
        if !matches!(**shape.known.load(), Known::NoTable) {
            return None;
        }
        let text = &text[..head_end(text).filter(|end| *end <= HEAD_BYTES_MAX)?];
        let mut head = [0; HEAD_BYTES_MAX];
        head[..text.len()].copy_from_slice(text);
        Some(Self { head, len: text.len() as u8, shape })
    }

    /// Does `text` begin in this way, whatever follows, and is its table closed to a session of this pool with these
    /// settings? If so, the shape counts as having come by.
    pub fn holds(&self, text: &[u8], pool: &Arc<Pool>, vars: &VarSet) -> bool {
        text.starts_with(&self.head[..usize::from(self.len)]) && self.shape.rules_out_table_for(pool, vars)
    }
}
