#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| beanring_testkit::fuzz::headers::run(data));
