//! Incremental conversion of token IDs to text that never splits a character.

use std::sync::Arc;

use super::TokenBytes;

/// Converts a growing sequence of IDs into text. The concatenated outputs equal the result of
/// [`Tokenizer::decode`](super::Tokenizer::decode) for the whole sequence.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    table: Arc<TokenBytes>,
    /// Bytes of an incomplete character; at most three.
    held: Vec<u8>,
    ready: String,
}

impl Detokenizer {
    /// Creates a detokenizer at the beginning of a text.
    pub fn new(table: Arc<TokenBytes>) -> Self {
        Self { table, held: Vec::new(), ready: String::new() }
    }

    /// Takes the next token and returns the text that it completes: possibly none, never half a character. Bytes
    /// that can no longer become a character yield U+FFFD.
    pub fn push(&mut self, id: u32) -> &str {
        self.ready.clear();
        self.held.extend_from_slice(self.table.get(id));
        let mut taken = 0;
        while taken < self.held.len() {
            match std::str::from_utf8(&self.held[taken..]) {
                Ok(text) => {
                    self.ready.push_str(text);
                    taken = self.held.len();
                }
                Err(error) => {
                    let valid = taken + error.valid_up_to();
                    // `valid_up_to` guarantees UTF-8, so this borrows and changes nothing.
                    self.ready.push_str(&String::from_utf8_lossy(&self.held[taken..valid]));
                    taken = valid;
                    // No error length: the rest may still become a character with the next token.
                    let Some(broken) = error.error_len() else { break };
                    self.ready.push(char::REPLACEMENT_CHARACTER);
                    taken += broken;
                }
            }
        }
        self.held.drain(..taken);
        &self.ready
    }

    /// Number of bytes held back until their character is complete.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Ends the text: an incomplete character yields one U+FFFD. Afterwards the detokenizer is ready for a new
    /// text.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tokenizer;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_split_over_tokens_is_held_until_complete() {
        let mut stream = Detokenizer::new(Tokenizer::bytes().table());
        assert_eq!(stream.push(0xf0), "");
        assert_eq!(stream.push(0x9f), "");
        assert_eq!(stream.push(0x98), "");
        assert_eq!(stream.push(0x80), "😀");
        assert_eq!(stream.push(0xc3), "");
        assert_eq!(stream.push(u32::from(b'a')), "\u{fffd}a");
        assert_eq!(stream.push(0xe2), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }

    /// Tokens of up to six random bytes, so characters split in every possible way.
    fn tokens() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let any_byte = proptest::collection::vec(any::<u8>(), 0..6);
        let text = any::<String>().prop_map(|text| text.into_bytes());
        let lead =
            proptest::sample::select(vec![vec![0xf0], vec![0x9f, 0x98], vec![0x80], vec![0xe2, 0x82], vec![0xac]]);
        proptest::collection::vec(prop_oneof![any_byte, text, lead], 0..40)
    }

    proptest! {
        #[test]
        fn the_stream_is_the_whole(tokens in tokens()) {
            let mut table = TokenBytes::new();
            for token in &tokens {
                table.push(token, false);
            }
            let mut stream = Detokenizer::new(Arc::new(table));
            let mut text = String::new();
            for id in 0..tokens.len() {
                text.push_str(stream.push(id as u32));
                prop_assert!(stream.held() < 4);
            }
            text.push_str(&stream.finish());
            let whole = tokens.concat();
            prop_assert_eq!(&text, &String::from_utf8_lossy(&whole));
        }
    }
}
