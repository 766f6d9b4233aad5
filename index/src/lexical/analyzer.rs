//! Text analyzer: splits text into terms.

use tantivy::tokenizer::{
    AsciiFoldingFilter, Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, TextAnalyzer,
};

/// Name of the analyzer and the weighting of titles, stored in the manifest. Every change to either needs a new name.
pub(crate) const NAME: &str = "words-lower-ascii-english-title2";

/// Builds the analyzer. Terms are words (runs of letters and digits) of at most 80 bytes, in lower case, without
/// accents (`Müller` → `muller`), with English stemming. Stop words stay: BM25 gives them little weight by itself, and
/// titles consist of them.
pub(super) fn analyzer() -> TextAnalyzer {
    TextAnalyzer::builder(SimpleTokenizer::default())
        .filter(RemoveLongFilter::limit(80))
        .filter(LowerCaser)
        .filter(AsciiFoldingFilter)
        .filter(Stemmer::new(Language::English))
        .build()
}
