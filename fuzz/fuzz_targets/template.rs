#![no_main]

libfuzzer_sys::fuzz_target!(
    init: {
        // The template engine's own panics are caught and refused: only those that come out of the target count.
        drop(std::panic::take_hook());
    },
    |data: &[u8]| waymark_fuzz::template::run(data)
);
