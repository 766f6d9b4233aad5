//! A real, small index and a real searcher.

use std::sync::Arc;

use waymark_agent::{SearchLimits, Searcher};
use waymark_index::{BuildOptions, Corpus, Document, Index, Triple, build};

use crate::harness::PATIENCE;

#[path = "../../index/tests/corpora/hash.rs"]
mod hash;

pub use hash::HashEmbed;

/// Four passages with their triples. `louvre` leads to `paris` only through the graph.
const PASSAGES: [(&str, &str, &str, &[[&str; 3]]); 4] = [
    (
        "mona",
        "Mona Lisa",
        "Leonardo painted the Mona Lisa, which hangs in the Louvre.",
        &[["Mona Lisa", "was painted by", "Leonardo"], ["Mona Lisa", "hangs in", "Louvre"]],
    ),
    ("louvre", "Louvre", "The Louvre is a museum in Paris.", &[["Louvre", "is a museum in", "Paris"]]),
    (
        "paris",
        "Paris",
        "Paris lies on the Seine and is the capital of France.",
        &[["Paris", "lies on", "Seine"], ["Paris", "is the capital of", "France"]],
    ),
    ("thames", "Thames", "The Thames is a river that flows through London.", &[["Thames", "flows through", "London"]]),
];

/// Builds an index of the passages, and its directory.
pub fn index() -> (tempfile::TempDir, Index) {
    let document = |&(id, title, text, triples): &(&str, &str, &str, &[[&str; 3]])| Document {
        id: id.to_owned(),
        title: title.to_owned(),
        text: text.to_owned(),
        triples: Some(triples.iter().map(|triple| Triple::from(triple.map(str::to_owned))).collect()),
        metadata: None,
    };
    let corpus = Corpus::from_documents("shelf", PASSAGES.iter().map(document).collect());
    let dir = tempfile::tempdir().unwrap();
    build(corpus, &HashEmbed::default(), dir.path(), &BuildOptions::default(), &()).unwrap();
    let index = Index::open(dir.path(), Arc::new(HashEmbed::default())).unwrap();
    (dir, index)
}

/// Builds a searcher over `index` with two threads and room for `waiting` more searches.
pub fn searcher(index: Index, waiting: usize) -> Searcher {
    let limits = SearchLimits { threads: 2, waiting, timeout: PATIENCE };
    Searcher::new(index, limits).unwrap()
}
