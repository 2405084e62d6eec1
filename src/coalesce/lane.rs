//! Lanes.

/// Lanes.
#[derive(Debug, Default)]
pub struct Lanes {}

impl Lanes {
    /// New.
    pub fn new() -> Self {
        Self {}
    }
}
