//! What is refused, and that nothing else is.

#[path = "../bypass.rs"]
mod bypass;
#[path = "../folding.rs"]
mod folding;
#[path = "../hostile.rs"]
mod hostile;
#[path = "../policy_drivers.rs"]
mod policy_drivers;
#[path = "../policy_rules.rs"]
mod policy_rules;
#[path = "../support/mod.rs"]
mod support;
