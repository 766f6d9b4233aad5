//! Words of texts in which an accent may be a character of its own, as in names of files on macOS and in text from PDF
//! files.

use tantivy::tokenizer::{SimpleTokenStream, SimpleTokenizer, Tokenizer};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Tokenizer that composes letters with their accents (Unicode's form NFC) and then splits the text into words. Accents
/// that no letter can be composed with, such as marks of stress in Russian, are left out.
#[derive(Clone, Default)]
pub(super) struct ComposedTokenizer {
    words: SimpleTokenizer,
    /// Composed form of the current text, if that one is not composed.
    composed: String,
}

impl Tokenizer for ComposedTokenizer {
    type TokenStream<'a> = SimpleTokenStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> SimpleTokenStream<'a> {
        if is_composed(text) {
            return self.words.token_stream(text);
        }
        self.composed.clear();
        self.composed.extend(text.nfc().filter(|character| !is_accent(*character)));
        self.words.token_stream(&self.composed)
    }
}

/// Returns `true` for most texts that composition leaves as they are. For the others, it only takes longer.
fn is_composed(text: &str) -> bool {
    text.is_ascii() || (!text.chars().any(is_accent) && is_nfc_quick(text.chars()) == IsNormalized::Yes)
}

/// Returns `true` for the combining diacritical marks.
fn is_accent(character: char) -> bool {
    matches!(character, '\u{300}'..='\u{36f}')
}

#[cfg(test)]
mod tests {
    use tantivy::tokenizer::TokenStream;

    use super::*;

    #[test]
    fn accents_split_no_word() {
        let mut tokenizer = ComposedTokenizer::default();
        for (text, expected) in [
            ("plain words", vec!["plain", "words"]),
            ("M\u{fc}ller", vec!["M\u{fc}ller"]),
            ("Mu\u{308}ller, the first", vec!["M\u{fc}ller", "the", "first"]),
            // No letter is composed of these two.
            ("Росси\u{301}я", vec!["Россия"]),
            ("i\u{307}stanbul", vec!["istanbul"]),
            // A syllable of three letters.
            ("\u{1112}\u{1161}\u{11ab}", vec!["\u{d55c}"]),
            ("", vec![]),
        ] {
            let mut found = Vec::new();
            tokenizer.token_stream(text).process(&mut |token| found.push(token.text.clone()));
            assert_eq!(found, expected, "{text}");
        }
    }
}
