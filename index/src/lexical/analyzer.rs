//! How text becomes terms.

use tantivy::tokenizer::{
    AsciiFoldingFilter, Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, TextAnalyzer,
};

/// Names the chain below and the weight of titles; it stands in the manifest, and any other way of making terms must
/// have another name.
pub(crate) const NAME: &str = "words-lower-ascii-english-title2";

/// Words (runs of letters and digits) of at most 80 bytes, in lower case, with accents removed (`Müller` → `muller`),
/// stemmed as English. Stop words are kept: BM25 weighs them down by itself, and titles are made of them.
pub(super) fn analyzer() -> TextAnalyzer {
    TextAnalyzer::builder(SimpleTokenizer::default())
        .filter(RemoveLongFilter::limit(80))
        .filter(LowerCaser)
        .filter(AsciiFoldingFilter)
        .filter(Stemmer::new(Language::English))
        .build()
}
