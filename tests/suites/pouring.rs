//! INSERTs that leave as COPY, or together, and that nobody can tell.

#[path = "../behind.rs"]
mod behind;
#[path = "../berths.rs"]
mod berths;
#[path = "../blocks.rs"]
mod blocks;
#[path = "../copy_rows.rs"]
mod copy_rows;
#[path = "../differential.rs"]
mod differential;
#[path = "../eligibility.rs"]
mod eligibility;
#[path = "../flush_lies.rs"]
mod flush_lies;
#[path = "../pour.rs"]
mod pour;
#[path = "../pour_lost.rs"]
mod pour_lost;
#[path = "../runs.rs"]
mod runs;
#[path = "../semantics.rs"]
mod semantics;
#[path = "../support/mod.rs"]
mod support;
#[path = "../together.rs"]
mod together;
#[path = "../toggles.rs"]
mod toggles;
#[path = "../turmoil.rs"]
mod turmoil;
