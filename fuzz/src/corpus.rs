//! Corpora: JSONL, lists and Markdown are read to their end or refused by line.
//!
//! Input: `m` for Markdown or anything else for JSON, then the file.

use waymark_index::{Corpus, CorpusOptions};

use super::file::with_folder;

pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    let name = if *kind == b'm' { "corpus.md" } else { "corpus.jsonl" };
    with_folder(|folder| {
        let path = folder.write(name, bytes);
        for skip_bad in [false, true] {
            let options = CorpusOptions { skip_bad, chunk: Some(50) };
            let Ok(mut corpus) = Corpus::open(&path, &options) else { continue };
            let mut ids = std::collections::HashSet::new();
            for document in corpus.by_ref() {
                let Ok(document) = document else { break };
                assert!(ids.insert(document.id.clone()), "the id {:?} came twice", document.id);
            }
            assert!(corpus.next().is_none(), "a corpus goes on after its end");
        }
    });
}
