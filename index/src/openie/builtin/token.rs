//! Splits a text into words, numbers and marks.

use super::clean::{CLOSE, OPEN};
use super::lexicon::{self, WordTag};

/// Maximum bytes of a word; anything longer is treated as a meaningless mark.
const LONGEST_WORD: usize = 256;

/// Word or mark with its part of speech.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordToken<'a> {
    pub(super) text: &'a str,
    /// Byte offset in the text.
    pub(super) start: usize,
    pub(super) tag: WordTag,
}

impl WordToken<'_> {
    /// Byte offset of the end in the text.
    pub(super) fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// Splits cleaned `text` into tokens. Every character except white space belongs to exactly one token.
pub(super) fn tokens(text: &str) -> Vec<WordToken<'_>> {
    let mut tokens = Vec::with_capacity(text.len() / 5);
    let mut start = 0;
    while let Some(char) = text[start..].chars().next() {
        if char.is_whitespace() {
            start += char.len_utf8();
            continue;
        }
        let length = if is_word(char) { word(&text[start..]) } else { char.len_utf8() };
        let (whole, possessive) = split_possessive(&text[start..start + length]);
        if !whole.is_empty() {
            tokens.push(WordToken { text: whole, start, tag: tag(whole) });
        }
        if !possessive.is_empty() {
            tokens.push(WordToken { text: possessive, start: start + whole.len(), tag: WordTag::Possessive });
        }
        start += length;
    }
    tokens
}

/// Recognizes characters of words: letters of every script with their marks, digits, and signs that occur in names.
fn is_word(char: char) -> bool {
    char.is_alphanumeric()
        || matches!(char, '$' | '£' | '€' | '%' | '+' | '#' | '&' | '*' | '°' | '@' | '_' | '\u{300}'..='\u{36f}')
        || (!char.is_ascii() && !char.is_whitespace() && !is_mark(char))
}

fn is_mark(char: char) -> bool {
    char == OPEN || char == CLOSE || matches!(char, '–' | '—' | '…' | '«' | '»' | '、' | '。' | '،' | '·')
}

/// Returns the length in bytes of the word that `text` begins with.
fn word(text: &str) -> usize {
    let mut chars = text.char_indices().peekable();
    let mut before = ' ';
    while let Some((at, char)) = chars.next() {
        let after = chars.peek().map_or(' ', |&(_, char)| char);
        let joined = match char {
            _ if is_word(char) => true,
            '\'' | '-' | '/' | '!' => after.is_alphanumeric() && before.is_alphanumeric(),
            // Joins years and scores: 957–960.
            '–' => before.is_ascii_digit() && after.is_ascii_digit(),
            ',' | ':' => before.is_ascii_digit() && after.is_ascii_digit(),
            '.' if after.is_alphanumeric() => {
                before.is_alphanumeric() && (!after.is_uppercase() || is_initial(&text[..at]))
            }
            '.' => lexicon::is_abbreviation(&text[..at]) || is_initial(&text[..at]),
            _ => false,
        };
        if !joined {
            return at;
        }
        before = char;
    }
    text.len()
}

/// Recognizes initials: `J`, or the last letter of `U.S`.
fn is_initial(word: &str) -> bool {
    let last = word.rsplit('.').next().unwrap_or(word);
    let mut chars = last.chars();
    chars.next().is_some_and(char::is_uppercase) && chars.next().is_none()
}

fn split_possessive(word: &str) -> (&str, &str) {
    match word.strip_suffix("'s") {
        Some(whole) => (whole, "'s"),
        None => (word, ""),
    }
}

fn tag(word: &str) -> WordTag {
    if word.len() > LONGEST_WORD {
        return WordTag::Other;
    }
    let first = word.chars().next().unwrap_or(' ');
    if let Some(tag) = lexicon::closed(word) {
        return tag;
    }
    if first.is_numeric() || matches!(first, '$' | '£' | '€') {
        return WordTag::Number;
    }
    if first.is_uppercase() || (first.is_alphabetic() && !first.is_lowercase()) {
        return WordTag::Name;
    }
    if first.is_lowercase() {
        // `iPhone`, `eBay`.
        let inner = word.len() < 12 && word.chars().skip(1).any(char::is_uppercase) && !word.contains('-');
        return if inner { WordTag::Name } else { lexicon::open(word) };
    }
    WordTag::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        tokens(text).iter().map(|token| token.text).collect()
    }

    #[test]
    fn names_numbers_and_abbreviations_hold_together() {
        let text = "Vincent D'Onofrio of A&M, Jr. in U.S. dollars (1,000.5): Gaye's J. R. Smith won 3–1.";
        let expected = [
            "Vincent",
            "D'Onofrio",
            "of",
            "A&M",
            ",",
            "Jr.",
            "in",
            "U.S.",
            "dollars",
            "(",
            "1,000.5",
            ")",
            ":",
            "Gaye",
            "'s",
            "J.",
            "R.",
            "Smith",
            "won",
            "3–1",
            ".",
        ];
        assert_eq!(texts(text), expected);
    }

    #[test]
    fn every_character_but_spaces_is_in_one_token() {
        let text = "Ōshima – 北京 (“O記實錄II”)… «é» \u{301}x";
        let joined: String = texts(text).concat();
        assert_eq!(joined, text.replace(' ', ""));
    }
}
