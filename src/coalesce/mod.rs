//! coalesce

pub mod batch;
pub mod catalog;
pub mod plan;

pub mod lane;

pub use lane::Lanes;
