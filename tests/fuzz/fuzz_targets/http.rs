#![no_main]

#[allow(dead_code)] // Each program uses a part of it.
#[path = "../targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::http::run(data));
