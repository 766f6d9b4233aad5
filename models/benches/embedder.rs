//! Benchmark of embedded passages per second: `cargo bench -p waymark-models --bench embedder -- DIRECTORY
//! CORPUS.jsonl [threads] [batch] [rounds]`.
//!
//! `scripts/bench/embedder.py` runs the same with onnxruntime and sentence-transformers; run the two in turn, never
//! at the same time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use waymark_models::embedder::Embedder;
use waymark_models::kernel::Team;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [dir, corpus, rest @ ..] = &arguments[..] else {
        return println!("skipped: needs a model directory and a corpus");
    };
    let number = |index: usize, default| rest.get(index).map_or(default, |text: &String| text.parse().unwrap());
    let threads = number(0, 2);
    let batch = number(1, 32);
    let rounds = number(2, 5);
    let embedder = Embedder::open(Path::new(dir), Arc::new(Team::new(threads))).unwrap();
    let texts = passages(Path::new(corpus), &embedder, batch);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let pieces: usize = texts.iter().map(|text| embedder.count_tokens(text)).sum();
    embedder.embed(&texts).unwrap();
    for _ in 0..rounds {
        let start = Instant::now();
        embedder.embed(&texts).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        println!("waymark: {:.1} passages/s, {:.0} pieces each", batch as f64 / seconds, pieces as f64 / batch as f64);
    }
}

/// First passages of 90 to 120 word pieces.
fn passages(corpus: &Path, embedder: &Embedder, count: usize) -> Vec<String> {
    let lines = BufReader::new(std::fs::File::open(corpus).unwrap()).lines();
    let texts = lines.map(|line| {
        let document: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        document["text"].as_str().expect("a document has a text").to_owned()
    });
    texts.filter(|text| (90..=120).contains(&embedder.count_tokens(text))).take(count).collect()
}
