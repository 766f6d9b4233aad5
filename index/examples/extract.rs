//! Prints the triples of the built-in extractor: `cargo run --release --example extract -- corpus.jsonl >
//! triples.jsonl`.
//!
//! Writes one line `{"id", "triples"}` per passage, which `waymark index build` can import, and the time taken to
//! stderr.

use std::collections::HashSet;
use std::io::{BufWriter, Write};
use std::time::Instant;

use serde_json::json;
use waymark_index::openie::Builtin;
use waymark_index::{Corpus, CorpusOptions, Document, Extract, Passage};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a corpus")?;
    let only: HashSet<String> = std::env::args().skip(2).collect();
    let corpus = Corpus::open(path.as_ref(), &CorpusOptions::default())?;
    let passage = |Document { id, title, text, .. }| Passage { id, title, text };
    let passages = corpus.map(|document| document.map(passage)).collect::<Result<Vec<_>, _>>()?;
    let numbers: Vec<u32> = (0..u32::try_from(passages.len())?).collect();
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut found = 0;
    let start = Instant::now();
    Builtin.extract(&passages, &numbers, &mut |number, triples| {
        let passage = &passages[number as usize];
        found += triples.len();
        if only.is_empty() || only.contains(&passage.id) {
            // A closed pipe, for example of `head`, is not an error of the extractor.
            let _ = writeln!(out, "{}", json!({ "id": passage.id, "triples": triples }));
        }
        Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let rate = passages.len() as f64 / seconds;
    eprintln!("{found} triples of {} passages in {seconds:.2} s: {rate:.0} passages/s", passages.len());
    Ok(())
}
