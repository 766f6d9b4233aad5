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
use waymark_index::{Corpus, CorpusOptions, Document, Extract, IndexError, Passage, Passages};

struct Read(Vec<Document>);

impl Passages for Read {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn passage(&self, number: u32) -> Result<Passage, IndexError> {
        let Document { id, title, text, .. } = self.0[number as usize].clone();
        Ok(Passage { id, title, text })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a corpus")?;
    let only: HashSet<String> = std::env::args().skip(2).collect();
    let corpus = Corpus::open(path.as_ref(), &CorpusOptions::default())?;
    let documents = Read(corpus.collect::<Result<_, _>>()?);
    let numbers: Vec<u32> = (0..u32::try_from(documents.len())?).collect();
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut found = 0;
    let start = Instant::now();
    Builtin.extract(&documents, &numbers, &mut |number, triples| {
        let document = &documents.0[number as usize];
        found += triples.len();
        if only.is_empty() || only.contains(&document.id) {
            // A closed pipe, for example of `head`, is not an error of the extractor.
            let _ = writeln!(out, "{}", json!({ "id": document.id, "triples": triples }));
        }
        Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let rate = documents.len() as f64 / seconds;
    eprintln!("{found} triples of {} passages in {seconds:.2} s: {rate:.0} passages/s", documents.len());
    Ok(())
}
