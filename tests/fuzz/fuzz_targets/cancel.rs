//! Feeds `targets::cancel_request` from libFuzzer.
#![no_main]

#[allow(dead_code)]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::cancel_request(data));
