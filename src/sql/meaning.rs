//! What a statement means: the target of an INSERT.

use super::insert::Class;

/// The table and columns that an INSERT names, and the classes of one row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InsertTarget {
    /// The schema, when the statement names one.
    pub schema: Option<String>,
    /// The table.
    pub table: String,
    /// The columns, in order; empty: no list.
    pub columns: Vec<String>,
    /// The table's name as the statement spells it.
    pub name_as_written: String,
    /// One row's classes.
    pub items: Vec<Class>,
}
