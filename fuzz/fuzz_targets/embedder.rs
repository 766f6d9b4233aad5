#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| waymark_fuzz::embedder::run(data));
