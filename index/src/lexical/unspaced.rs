//! Terms of scripts that put no spaces between words: overlapping pairs of characters, as in Lucene's `CJKAnalyzer`.
//!
//! Pairs need no dictionary, and find a word within any text that contains it.

use tantivy::tokenizer::{Token, TokenFilter, TokenStream, Tokenizer};

/// Splits words at changes between scripts with and without spaces, and runs of the latter into pairs of characters.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitUnspaced;

/// Tokenizer behind [`SplitUnspaced`].
#[derive(Debug, Clone)]
pub(super) struct UnspacedTokenizer<T> {
    inner: T,
    /// Parts of the current word in reverse order.
    parts: Vec<Token>,
}

/// Stream of [`UnspacedTokenizer`].
pub(super) struct UnspacedStream<'a, T> {
    tail: T,
    parts: &'a mut Vec<Token>,
}

impl TokenFilter for SplitUnspaced {
    type Tokenizer<T: Tokenizer> = UnspacedTokenizer<T>;

    fn transform<T: Tokenizer>(self, tokenizer: T) -> UnspacedTokenizer<T> {
        UnspacedTokenizer { inner: tokenizer, parts: Vec::new() }
    }
}

impl<T: Tokenizer> Tokenizer for UnspacedTokenizer<T> {
    type TokenStream<'a> = UnspacedStream<'a, T::TokenStream<'a>>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> UnspacedStream<'a, T::TokenStream<'a>> {
        self.parts.clear();
        UnspacedStream { tail: self.inner.token_stream(text), parts: &mut self.parts }
    }
}

impl<T: TokenStream> TokenStream for UnspacedStream<'_, T> {
    fn advance(&mut self) -> bool {
        self.parts.pop();
        if !self.parts.is_empty() {
            return true;
        }
        if !self.tail.advance() {
            return false;
        }
        let token = self.tail.token();
        // Nearly all words have no character of these scripts and stay unchanged.
        if token.text.chars().any(is_unspaced) {
            self.parts
                .extend(parts(&token.text).into_iter().rev().map(|part| Token { text: part.to_owned(), ..*token }));
        }
        true
    }

    fn token(&self) -> &Token {
        self.parts.last().unwrap_or_else(|| self.tail.token())
    }

    fn token_mut(&mut self) -> &mut Token {
        self.parts.last_mut().unwrap_or_else(|| self.tail.token_mut())
    }
}

/// Splits a word into runs of other scripts and pairs of characters of scripts without spaces. A single such character
/// is a part by itself.
fn parts(word: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let characters: Vec<(usize, char)> = word.char_indices().collect();
    let end = |place: usize| characters.get(place).map_or(word.len(), |(at, _)| *at);
    let mut first = 0;
    for run in characters.chunk_by(|a, b| is_unspaced(a.1) == is_unspaced(b.1)) {
        if is_unspaced(run[0].1) && run.len() > 1 {
            parts.extend((first..first + run.len() - 1).map(|place| &word[end(place)..end(place + 2)]));
        } else {
            parts.push(&word[end(first)..end(first + run.len())]);
        }
        first += run.len();
    }
    parts
}

/// Returns `true` for letters of scripts that put no spaces between words, and for Hangul, whose words are long.
fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c),
        // Thai and Lao, Burmese, Khmer.
        0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff
        // Hangul letters; marks that repeat or abbreviate a character, zero; hiragana, katakana and their extensions,
        // compatibility Hangul; Chinese characters.
        | 0x1100..=0x11ff | 0x3005..=0x3007 | 0x3040..=0x318f | 0x31f0..=0x31ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff
        // Hangul syllables, compatibility Chinese characters, half-width katakana, rare Chinese characters.
        | 0xac00..=0xd7af | 0xf900..=0xfaff | 0xff66..=0xff9f | 0x2_0000..=0x3_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_become_pairs() {
        for (word, expected) in [
            ("東京", vec!["東京"]),
            ("東京都", vec!["東京", "京都"]),
            ("東", vec!["東"]),
            ("佐々木", vec!["佐々", "々木"]),
            ("二〇年", vec!["二〇", "〇年"]),
            ("word", vec!["word"]),
            ("2024年版v2", vec!["2024", "年版", "v2"]),
            ("한국어", vec!["한국", "국어"]),
            ("", vec![]),
        ] {
            assert_eq!(parts(word), expected, "{word}");
        }
    }
}
