//! Text analyzer: splits text into terms.

use tantivy::tokenizer::{
    AsciiFoldingFilter, Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, TextAnalyzer,
    TextAnalyzerBuilder, Tokenizer,
};

use super::composed::ComposedTokenizer;
use super::unspaced::SplitUnspaced;

/// Version of the analyzer and of the weighting of titles. An index keeps the one it was built with until its next
/// merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Analysis {
    /// Words alone: a sentence of a script without spaces is one term.
    Words,
    /// Words, and pairs of characters in scripts without spaces. An accent that is a character of its own splits a
    /// word.
    WordsAndPairs,
    /// Words and pairs of composed characters.
    #[default]
    ComposedWordsAndPairs,
}

/// Name of the current analyzer, stored in the manifest.
pub(crate) const NAME: &str = Analysis::ComposedWordsAndPairs.name();

impl Analysis {
    /// All versions.
    pub(super) const ALL: [Analysis; 3] = [Analysis::ComposedWordsAndPairs, Analysis::WordsAndPairs, Analysis::Words];

    /// Name in the manifest and in the schema. Every change to the analyzer or to the weighting needs a new one.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Analysis::Words => "words-lower-ascii-english-title2",
            Analysis::WordsAndPairs => "words-pairs-lower-ascii-english-title2",
            Analysis::ComposedWordsAndPairs => "composed-words-pairs-ascii-lower-english-title2",
        }
    }

    /// Builds the analyzer. Terms are words (runs of letters and digits) of fewer than 80 bytes, in lower case, without
    /// accents (`Müller` → `muller`), with English stemming. Stop words stay: BM25 gives them little weight by itself,
    /// and some titles consist of stop words alone.
    pub(super) fn analyzer(self) -> TextAnalyzer {
        let words = TextAnalyzer::builder(SimpleTokenizer::default());
        match self {
            Analysis::Words => earlier_terms(words),
            Analysis::WordsAndPairs => earlier_terms(words.filter(SplitUnspaced)),
            Analysis::ComposedWordsAndPairs => {
                let words = TextAnalyzer::builder(ComposedTokenizer::default()).filter(SplitUnspaced);
                // Folded first: the lower case of `İ` is two characters, which are not folded.
                let folded = words.filter(RemoveLongFilter::limit(80)).filter(AsciiFoldingFilter);
                folded.filter(LowerCaser).filter(Stemmer::new(Language::English)).build()
            }
        }
    }
}

fn earlier_terms<T: Tokenizer>(words: TextAnalyzerBuilder<T>) -> TextAnalyzer {
    words
        .filter(RemoveLongFilter::limit(80))
        .filter(LowerCaser)
        .filter(AsciiFoldingFilter)
        .filter(Stemmer::new(Language::English))
        .build()
}
