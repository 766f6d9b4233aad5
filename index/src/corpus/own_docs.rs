//! Questions about the documentation of this repository, with the chunks that answer them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use super::{Corpus, CorpusOptions, TokenCounter};
use crate::embed::fake::HashEmbed;
use crate::{BuildOptions, Index, Mode, Query, Ranking, build};

/// Question, name of the file, and words of the chunk that answers it.
const QUESTIONS: [(&str, &str, &str); 20] = [
    ("Which Rust version and compiler are required?", "getting-started.md", "Rust 1.95"),
    ("Which file of records or text can a corpus be?", "getting-started.md", "a file of records"),
    ("How do I restore an earlier snapshot of an index?", "retrieval.md", "index restore"),
    ("How do I repair damaged blocks of an index?", "retrieval.md", "index repair"),
    ("How do filters restrict a search to documents whose metadata matches?", "retrieval.md", "\"type\": \"and\""),
    ("Which rule-based extractor or OpenIE file gives the triples?", "retrieval.md", "rule-based extractor"),
    ("Which requests per minute and scope does a key have?", "operations.md", "--requests-per-minute"),
    ("How is DNS rebinding prevented?", "operations.md", "DNS rebinding"),
    ("What does SIGHUP read again?", "operations.md", "SIGHUP"),
    ("Which checkpoint layouts are refused by name, such as DeepSpeed ZeRO?", "serving.md", "DeepSpeed ZeRO"),
    ("How can an operator load and unload policies over HTTP?", "serving.md", "--policy-root DIR"),
    ("What happens when an engine elsewhere fails three times in a row?", "scaling.md", "three failures in a row"),
    ("Under which hash are adapters copied into a folder of the engines?", "scaling.md", "--engine-adapters DIR"),
    ("What is the baseline IRCoT?", "evaluation.md", "IRCoT"),
    ("Which flags name the model of a judge?", "evaluation.md", "--judge-url"),
    ("What limits the tokens sampled per turn in the budget of a policy?", "policy.md", "tokens sampled per turn"),
    ("Which sampling field keeps the fewest most probable tokens?", "policy.md", "keeps the fewest most probable"),
    ("Why are sampled tokens never encoded again?", "design-notes.md", "round-trip"),
    ("Why is the signal SIGBUS of a mapped file handled?", "design-notes.md", "SIGBUS"),
    ("Which allocator does waymark use instead of glibc?", "reliability.md", "jemalloc"),
];

/// Minimum number of questions whose chunk must be first. Not all of them, because every change to the documentation
/// changes the ranking.
const LEAST: usize = 18;

/// Counts words and signs, about as many as the word pieces of an embedder.
fn pieces(text: &str) -> usize {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).count();
    words + text.chars().filter(|c| !c.is_alphanumeric() && !c.is_whitespace()).count()
}

/// Ranks by BM25 alone, so that the test needs no model weights.
#[test]
fn the_right_chunk_of_our_own_documentation_is_first() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let options = CorpusOptions { overlap: 32, ..CorpusOptions::default() };
    let corpus = Corpus::open(&docs, &options).unwrap().measured(TokenCounter::new(254, pieces));
    let temp = tempfile::tempdir().unwrap();
    let embed = HashEmbed::default();
    let report = build(corpus, &embed, temp.path(), &BuildOptions::default(), &()).unwrap();
    assert!(report.skipped_files.by_type.contains_key(".png"), "{:?}", report.skipped_files);
    let index = Index::open(temp.path(), Arc::new(embed)).unwrap();
    let documents = index.documents(None, usize::MAX).unwrap().unwrap();
    for document in &documents {
        assert!(pieces(&document.content()) <= 254, "{document:?}");
    }
    let mut first = 0;
    for (question, file, words) in QUESTIONS {
        let answers = |id: &str, text: &str| id.starts_with(&format!("{file}#")) && text.contains(words);
        assert!(documents.iter().any(|document| answers(&document.id, &document.text)), "no chunk for {question}");
        let hits = index.search(&Query::new(question, Mode::Passage, 3).ranking(Ranking::Bm25)).unwrap().hits;
        let found = hits.first().is_some_and(|hit| answers(&hit.passage.id, &hit.passage.text));
        first += usize::from(found);
        if !found {
            let ids: Vec<&str> = hits.iter().map(|hit| hit.passage.id.as_str()).collect();
            println!("not first: {question} ({ids:?})");
        }
    }
    assert!(first >= LEAST, "the right chunk is first for {first} of {} questions only", QUESTIONS.len());
}
