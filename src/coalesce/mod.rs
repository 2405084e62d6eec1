//! coalesce

pub mod batch;
pub mod catalog;
pub mod plan;
