//! Memory taken while a long text is encoded is bounded, and its IDs are those of the whole text.
#![allow(clippy::unwrap_used)]

mod counting;

use std::path::Path;

use counting::{counted, forget_peak};
use waymark_models::tokenizer::{Specials, Tokenizer, encoding_memory};

/// A tokenizer of the fixture.
fn tokenizer(name: &str) -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer.json");
    let fixture: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("tokenizer.json");
    std::fs::write(&json, fixture[name]["json"].to_string()).unwrap();
    Tokenizer::from_file(&json).unwrap()
}

/// IDs of a text, and the highest number of bytes allocated meanwhile.
fn encoded(tokenizer: &Tokenizer, text: &str, specials: Specials) -> (Vec<u32>, usize) {
    let before = counted().live;
    forget_peak();
    let ids = tokenizer.encode(text, specials).unwrap();
    (ids, counted().peak.saturating_sub(before))
}

/// Checks that texts of many kinds take less memory than the tokenizer's bound.
fn is_bounded(tokenizer: &Tokenizer, name: &str) {
    for unit in ["a ", "1", "a,", "\u{4e2d}", "=", "\n", "\u{1f600}"] {
        let text = unit.repeat((600 << 10) / unit.len());
        let (_, peak) = encoded(tokenizer, &text, Specials::Literal);
        println!("{name}: {unit:?} {} per byte of the longest window", peak / (256 << 10));
        assert!(peak < tokenizer.encoding_memory(text.len()), "{name}: {unit:?} took {peak} bytes");
    }
}

#[test]
fn a_long_text_takes_the_memory_of_a_window() {
    // A single test, because allocations are counted for the whole process.
    let prose = "It wasn't 1987 when the caf\u{e9} by the Rhine (\u{4e2d}\u{6587}) closed;  then\n\nit re-opened. "
        .repeat(4_000);
    for name in ["qwen2", "llama3"] {
        let tokenizer = tokenizer(name);
        // `Parse` encodes a text as a whole.
        let (whole, before) = encoded(&tokenizer, &prose, Specials::Parse);
        let (ids, peak) = encoded(&tokenizer, &prose, Specials::Literal);
        assert!(ids == whole, "{name}: the windows have other IDs than the whole");
        println!("{name}: prose {} bytes, whole {before}, windows {peak}", prose.len());
        assert!(peak < before / 2, "{name}: {peak} bytes instead of {before}");
        assert_eq!(tokenizer.encoding_memory(4 << 20), encoding_memory(4 << 20));
        is_bounded(&tokenizer, name);
    }
    // A tokenizer that writes a space before each text has no windows.
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sentencepiece"));
    let prefixed = Tokenizer::from_folder(folder).unwrap();
    assert!(prefixed.encoding_memory(4 << 20) > 2 * encoding_memory(4 << 20));
    is_bounded(&prefixed, "sentencepiece");
}
