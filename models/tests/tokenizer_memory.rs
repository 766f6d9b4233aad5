//! Memory kept by encoding is bounded, whatever the texts.
#![allow(clippy::unwrap_used)]

mod counting;

use counting::counted;
use waymark_models::tokenizer::{Specials, Tokenizer};

/// A tokenizer of the Qwen 2 family, from the fixture.
fn tokenizer() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer.json");
    let fixture: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("tokenizer.json");
    std::fs::write(&json, fixture["qwen2"]["json"].to_string()).unwrap();
    Tokenizer::from_file(&json).unwrap()
}

/// Word of `letters` letters that is unique to `number`.
fn word(number: usize, letters: usize) -> String {
    let mut rest = number;
    let mut next = || {
        let letter = char::from(b'a' + (rest % 26) as u8);
        rest /= 26;
        letter
    };
    (0..letters).map(|_| next()).collect()
}

#[test]
fn words_that_are_never_seen_again_are_not_kept() {
    // A single test, because allocations are counted for the whole process.
    let live = || counted().live;
    // Typical words, and the longest words that the library caches.
    for (letters, most) in [(8, 1 << 20), (240, 12 << 20)] {
        // A new tokenizer has an empty cache.
        let tokenizer = tokenizer();
        let encode = |numbers: std::ops::Range<usize>| {
            for number in numbers {
                assert!(!tokenizer.encode(&word(number, letters), Specials::Literal).unwrap().is_empty());
            }
        };
        let before = live();
        encode(0..2_000);
        let young = live();
        encode(2_000..12_000);
        let grown = live().saturating_sub(young);
        assert!(young.saturating_sub(before) < most, "{letters} letters: {} bytes", young.saturating_sub(before));
        assert!(grown < 1 << 16, "{letters} letters: {grown} bytes for words that came later");
    }
}
