//! Triples from outside: imported files, replies of language models, and the built-in extractor on any text.
//!
//! Input: `i` for a file to import, `r` and `c` for a reply (whole and cut off), `f` for the reply of a filter of
//! facts, anything else for a passage; then the text.

use std::sync::Arc;
use std::time::Duration;

use waymark_index::openie::{Builtin, Endpoint, EndpointOptions, Imported};
use waymark_index::{Extract, FactFilter, ModelFilter, Passage};

use super::file::with_folder;
use super::reply::Parrot;

pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(bytes).into_owned();
    match kind {
        b'i' => with_folder(|folder| {
            if let Ok(imported) = Imported::open(&folder.write("openie.json", bytes)) {
                extract(&imported, "Faust", "Goethe wrote Faust.");
                let report = imported.report();
                assert!(report.missing + report.empty <= report.passages, "{report:?}");
            }
        }),
        b'r' | b'c' => {
            let options = EndpointOptions {
                concurrency: 1,
                first_wait: Duration::ZERO,
                longest_wait: Duration::ZERO,
                tolerated: u64::MAX,
                ..EndpointOptions::default()
            };
            extract(
                &Endpoint::new(Arc::new(Parrot { text, cut: *kind == b'c' }), options),
                "Faust",
                "Goethe wrote it.",
            );
        }
        b'f' => filter(text),
        _ => {
            let (title, text) = text.split_once('\n').unwrap_or(("", &text));
            extract(&Builtin, title, text);
        }
    }
}

fn filter(text: String) {
    let facts = [["faust", "written by", "goethe"], ["louvre", "is a", "museum"], ["a", "b", "c"]];
    let filter = ModelFilter::new(Arc::new(Parrot { text, cut: false }));
    let kept = filter.keep("Who wrote Faust?", &facts).expect("a parrot never fails");
    assert!(kept.iter().all(|&place| place < facts.len()), "{kept:?}");
}

fn extract(extractor: &dyn Extract, title: &str, text: &str) {
    let passages = [("p0", title, text), ("p1", "Another", "It was written in Weimar.")];
    let passages: Vec<Passage> = passages.map(|(id, title, text)| passage(id, title, text)).to_vec();
    let mut told = Vec::new();
    let outcome = extractor.extract(&passages, &[0, 1], &mut |number, _| {
        told.push(number);
        Ok(())
    });
    told.sort_unstable();
    assert!(outcome.is_err() || told == [0, 1], "told of {told:?}");
}

fn passage(id: &str, title: &str, text: &str) -> Passage {
    Passage { id: id.to_owned(), title: title.to_owned(), text: text.to_owned() }
}
