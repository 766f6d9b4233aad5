//! Corpora: files of every format are read to their end or refused.
//!
//! Input: a letter for the format, or any other byte for JSON Lines, then the file.

use std::path::PathBuf;

use waymark_index::{Corpus, CorpusOptions};

use super::file::with_folder;

/// Names of files by the letter of their format.
const NAMES: [(u8, &str); 9] = [
    (b'm', "corpus.md"),
    (b'c', "corpus.csv"),
    (b't', "corpus.tsv"),
    (b'h', "corpus.html"),
    (b'd', "corpus.docx"),
    (b'p', "corpus.pdf"),
    (b'q', "corpus.parquet"),
    (b'g', "corpus.jsonl.gz"),
    (b'z', "corpus.jsonl.zst"),
];

pub fn run(data: &[u8]) {
    let Some(path) = written(data) else { return };
    for skip_bad in [false, true] {
        let options = CorpusOptions { skip_bad, chunk: Some(50), overlap: 10, ..CorpusOptions::default() };
        let Ok(mut corpus) = Corpus::open(&path, &options) else { continue };
        let mut ids = std::collections::HashSet::new();
        for document in corpus.by_ref() {
            let Ok(document) = document else { break };
            assert!(ids.insert(document.id.clone()), "the id {:?} came twice", document.id);
            assert!(!document.text.trim().is_empty(), "the document {:?} has no text", document.id);
        }
        assert!(corpus.next().is_none(), "a corpus goes on after its end");
    }
}

/// Writes the file of an input and returns its path. `None` if the input is empty.
pub fn written(data: &[u8]) -> Option<PathBuf> {
    let (kind, bytes) = data.split_first()?;
    let name = NAMES.iter().find(|(letter, _)| letter == kind).map_or("corpus.jsonl", |(_, name)| name);
    Some(with_folder(|folder| folder.write(name, bytes)))
}
