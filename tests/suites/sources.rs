//! The sources, what is built of them, and what other tests stand on.

#[path = "../fuzz_seeds.rs"]
mod fuzz_seeds;
#[path = "../house.rs"]
mod house;
#[path = "../supply.rs"]
mod supply;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support_works.rs"]
mod support_works;
