//! Benchmark of a tokenizer: `cargo bench -p waymark-models --bench tokenizer -- FILE CORPUS.jsonl [rounds]`, FILE a
//! `tokenizer.json` or a GGUF. Prints load time, memory and speed.
//!
//! `scripts/bench/tokenizer.py` runs the same with the Python package `tokenizers`; run the two in turn, never at the same
//! time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

use waymark_models::tokenizer::{Specials, Tokenizer};
use waymark_models::weights::Gguf;

/// Number of bytes of text to encode.
const TEXT: usize = 4 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [file, corpus, rest @ ..] = &arguments[..] else {
        return println!("skipped: needs a tokenizer and a corpus");
    };
    let rounds = rest.first().map_or(3, |text| text.parse().unwrap());
    let texts = texts(Path::new(corpus));
    let bytes: usize = texts.iter().map(String::len).sum();
    let before = resident();
    let start = Instant::now();
    let tokenizer = load(Path::new(file));
    let loading = start.elapsed().as_secs_f64();
    let loaded = resident();
    println!(
        "waymark: {} tokens, loaded in {loading:.2} s, {:.0} MB kept, {:.0} MB at the peak",
        tokenizer.vocab(),
        megabytes(loaded.0 - before.0),
        megabytes(loaded.1 - before.0),
    );
    for _ in 0..rounds {
        let start = Instant::now();
        let ids: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text, Specials::Literal).unwrap()).collect();
        let encoding = start.elapsed().as_secs_f64();
        let tokens: usize = ids.iter().map(Vec::len).sum();
        let start = Instant::now();
        let decoded: usize = ids.iter().map(|ids| tokenizer.decode(ids).len()).sum();
        let decoding = start.elapsed().as_secs_f64();
        assert_eq!(decoded, bytes, "decoded text");
        println!(
            "waymark: encodes {:.1} MB/s ({:.2} million tokens/s), decodes {:.1} MB/s",
            bytes as f64 / encoding / 1e6,
            tokens as f64 / encoding / 1e6,
            bytes as f64 / decoding / 1e6,
        );
    }
    println!("waymark: {:.0} MB kept after encoding", megabytes(resident().0.saturating_sub(before.0)));
}

fn load(file: &Path) -> Tokenizer {
    match file.extension().is_some_and(|extension| extension == "gguf") {
        true => Tokenizer::from_gguf(&Gguf::open(file).unwrap()).unwrap(),
        false => Tokenizer::from_file(file).unwrap(),
    }
}

/// First texts of a corpus.
fn texts(corpus: &Path) -> Vec<String> {
    let mut total = 0;
    let lines = BufReader::new(std::fs::File::open(corpus).unwrap()).lines();
    let text = lines.map(|line| {
        let document: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        document["text"].as_str().expect("a document has a text").to_owned()
    });
    text.take_while(|text| {
        total += text.len();
        total <= TEXT
    })
    .collect()
}

/// Resident memory now, and at its peak, in bytes.
fn resident() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<usize>().ok()? << 10)
    };
    (field("VmRSS:").unwrap_or(0), field("VmHWM:").unwrap_or(0))
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
