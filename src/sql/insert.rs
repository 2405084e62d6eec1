//! Literal INSERTs taken apart: what stands in the places of VALUES.

/// What stands in one place of VALUES.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// NULL.
    Null,
    /// DEFAULT.
    Default,
    /// Digits only.
    Integer,
    /// `-` directly followed by digits.
    SignedInteger,
    /// `digits.digits`.
    Decimal,
    /// `-` directly followed by `digits.digits`.
    SignedDecimal,
    /// TRUE.
    True,
    /// FALSE.
    False,
    /// A plain quoted string, in one piece.
    String,
    /// `$n`.
    Param(u16),
}

/// One item: its class and where it stands in the text, quotes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub class: Class,
    /// Its first byte.
    pub start: usize,
    /// The byte after its last.
    pub end: usize,
}
