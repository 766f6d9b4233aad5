//! Text as a reader sees it: without invisible characters, in compatibility form and in lower case.

use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_properties::props::{BinaryProperty, DefaultIgnorableCodePoint};

/// Characters of a text that a reader sees, each with the byte offset of its origin in the text.
///
/// Characters are decomposed (NFKD) and folded to lower case one by one. Default-ignorable characters, by Unicode 18.0
/// as in ICU4X 2.4, are left out. Every ASCII text that the text spells under NFKC, removal of default-ignorable
/// characters and case folding is therefore spelled here too. Control characters stay, because they may end a word, but
/// a control character inside a word does not hide the word. The mark of a space in SentencePiece (`▁`, U+2581) is a
/// space, because tokenizers of SentencePiece encode both to the same tokens.
#[derive(Debug)]
pub(super) struct FoldedText(Vec<(char, usize)>);

impl FoldedText {
    pub(super) fn of(text: &str) -> FoldedText {
        let mut folded = FoldedText(Vec::with_capacity(text.len()));
        for (at, c) in text.char_indices() {
            folded.push(c, at);
        }
        folded
    }

    fn push(&mut self, c: char, at: usize) {
        // Most text is ASCII, which needs no tables.
        if c.is_ascii() {
            self.0.push((c.to_ascii_lowercase(), at));
            return;
        }
        let nfkd = DecomposingNormalizerBorrowed::new_nfkd();
        let ignorable = DefaultIgnorableCodePoint::for_char;
        for part in nfkd.normalize_iter(std::iter::once(c)).filter(|&part| !ignorable(c) && !ignorable(part)) {
            match part {
                // The only letter whose case folding is ASCII and differs from its lower case.
                'ß' | 'ẞ' => self.0.extend([('s', at), ('s', at)]),
                '\u{2581}' => self.0.push((' ', at)),
                part => self.0.extend(part.to_lowercase().map(|lower| (lower, at))),
            }
        }
    }

    /// Returns the number of characters.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns a character. `None` beyond the end.
    pub(super) fn get(&self, at: usize) -> Option<char> {
        self.0.get(at).map(|&(c, _)| c)
    }

    /// Returns the byte offset, in the text, of the origin of a character.
    pub(super) fn origin(&self, at: usize) -> Option<usize> {
        self.0.get(at).map(|&(_, origin)| origin)
    }

    /// Returns the first position from `at` on whose character neither satisfies `skipped` nor is a control character.
    pub(super) fn skip(&self, mut at: usize, skipped: impl Fn(char) -> bool) -> usize {
        while self.get(at).is_some_and(|c| skipped(c) || is_control(c)) {
            at += 1;
        }
        at
    }

    /// Returns the position after `word`, which must be in lower case, if the text continues with it at `at`.
    pub(super) fn after(&self, at: usize, word: &str) -> Option<usize> {
        word.chars().try_fold(at, |at, wanted| {
            let at = self.skip(at, |_| false);
            (self.get(at) == Some(wanted)).then_some(at + 1)
        })
    }
}

/// Returns `true` for control characters other than white space.
pub(super) fn is_control(c: char) -> bool {
    c.is_control() && !c.is_whitespace()
}
