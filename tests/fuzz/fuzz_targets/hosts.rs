//! Feeds `targets::hosts_file` from libFuzzer.
#![no_main]

#[allow(dead_code)]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::hosts_file(data));
