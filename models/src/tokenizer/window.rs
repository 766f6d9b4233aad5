//! Windows of long texts, which are encoded one after another to bound the memory of a tokenizer.

/// Length in bytes from which a text is split at the next word break.
const WINDOW: usize = 64 << 10;

/// Upper bound of the length of a window in bytes. A text with this many bytes between two word breaks is split between
/// any two characters, so the tokens at that place may differ from those of the whole text.
const LONGEST_WINDOW: usize = 256 << 10;

/// Upper bound of the memory that a tokenizer takes per byte of a window, in bytes. Measured with texts in which every
/// character is a separate word.
const WINDOW_COST: usize = 640;

/// Upper bound of the memory for the result per byte of a text, in bytes: its IDs, and copies of the text.
const TEXT_COST: usize = 16;

/// Upper bound of the memory to encode a text of `bytes` bytes window by window, in bytes.
pub fn encoding_memory(bytes: usize) -> usize {
    bytes.min(LONGEST_WINDOW).saturating_mul(WINDOW_COST).saturating_add(bytes.saturating_mul(TEXT_COST))
}

/// Upper bound of the memory to encode a text of `bytes` bytes as a single window, in bytes.
pub(super) fn whole_encoding_memory(bytes: usize) -> usize {
    bytes.saturating_mul(WINDOW_COST + TEXT_COST)
}

/// Splits a text into windows of about `WINDOW` to `LONGEST_WINDOW` bytes; the last one may be shorter. Each but the
/// last ends before a space between two ASCII letters, where pre-tokenizers begin a word, or at `LONGEST_WINDOW` bytes
/// if there is no such space.
pub(crate) fn windows(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (window, later) = text.split_at(window_end(text));
        rest = (!later.is_empty()).then_some(later);
        Some(window)
    })
}

/// Returns the end of the first window of a text.
fn window_end(text: &str) -> usize {
    if text.len() <= WINDOW {
        return text.len();
    }
    let bytes = text.as_bytes();
    let most = text.floor_char_boundary(LONGEST_WINDOW);
    (WINDOW..most).find(|&at| is_word_break(bytes, at)).unwrap_or(most)
}

/// Returns `true` for a space between two ASCII letters.
pub(super) fn is_word_break(bytes: &[u8], at: usize) -> bool {
    let letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
    bytes.get(at) == Some(&b' ') && at > 0 && letter(at - 1) && letter(at + 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]
    use super::*;

    #[test]
    fn windows_are_the_text_and_end_between_words() {
        let words = "some words of \u{e9}t\u{e9} ".repeat(20_000);
        let unbroken = "\u{4e2d}".repeat(300_000);
        for (text, broken) in [("", true), ("one window", true), (words.as_str(), true), (unbroken.as_str(), false)] {
            let parts: Vec<&str> = windows(text).collect();
            assert_eq!(parts.concat(), text);
            let (_, before) = parts.split_last().expect("a text has at least one window");
            assert!(parts.iter().all(|part| part.len() <= LONGEST_WINDOW));
            assert!(before.iter().all(|part| part.len() >= WINDOW));
            assert!(!broken || parts.iter().skip(1).all(|part| part.starts_with(' ') && part.len() > 1));
        }
        assert!(windows(&words).count() > 3);
    }
}
