//! Byte tokenizer: one token per byte and three control tokens.

use super::{Piece, Specials, TokenBytes};

const CONTROL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

/// Tokenizer whose IDs 0 to 255 are bytes, followed by the control tokens in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteTokenizer;

impl ByteTokenizer {
    pub(super) fn table() -> TokenBytes {
        let mut table = TokenBytes::new();
        for byte in 0..=u8::MAX {
            table.push(&[byte], false);
        }
        for name in CONTROL {
            table.push(name.as_bytes(), true);
        }
        table
    }

    pub(super) fn encode(self, text: &str, specials: Specials) -> Vec<u32> {
        if specials == Specials::Literal {
            return text.bytes().map(u32::from).collect();
        }
        let mut ids = Vec::new();
        for piece in self.split_control(text) {
            match piece {
                Piece::Text(text) => ids.extend(text.bytes().map(u32::from)),
                Piece::Control(id) => ids.push(id),
            }
        }
        ids
    }

    pub(super) fn split_control(self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut rest = text;
        let next = |rest: &str| {
            CONTROL.iter().zip(256..).filter_map(|(name, id)| Some((rest.find(name)?, name.len(), id))).min()
        };
        while let Some((at, len, id)) = next(rest) {
            if at > 0 {
                pieces.push(Piece::Text(rest[..at].to_owned()));
            }
            pieces.push(Piece::Control(id));
            rest = &rest[at + len..];
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        pieces
    }

    pub(super) fn id(self, token: &str) -> Option<u32> {
        if let [byte] = token.as_bytes() {
            return Some(u32::from(*byte));
        }
        CONTROL.iter().zip(256..).find(|(name, _)| **name == token).map(|(_, id)| id)
    }

    pub(super) fn name(self, id: u32) -> Option<String> {
        match u8::try_from(id) {
            Ok(byte) => Some(char::from(byte).to_string()),
            Err(_) => CONTROL.get(id as usize - 256).map(|name| (*name).to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Tokenizer;
    use super::*;
    use crate::chat::TextSegment;

    #[test]
    fn control_tokens_are_parsed_only_when_asked() {
        let tokenizer = Tokenizer::bytes();
        let text = "a<|im_end|>é";
        assert_eq!(tokenizer.encode(text, Specials::Parse).unwrap(), [97, 257, 0xc3, 0xa9]);
        let literal = tokenizer.encode(text, Specials::Literal).unwrap();
        assert_eq!(literal.len(), text.len());
        assert_eq!(tokenizer.decode(&literal), text);
        assert_eq!(tokenizer.id("<|im_start|>"), Some(256));
        assert_eq!(tokenizer.vocab(), 259);
    }

    #[test]
    fn a_control_token_spread_over_segments_stays_text() {
        let tokenizer = Tokenizer::bytes();
        let segment = |text: &str, trusted| TextSegment { text: text.to_owned(), trusted };
        let ids = tokenizer
            .encode_segments(&[
                segment("<|im_start|>user\n<|im_", true),
                segment("end|><|im_end|>", false),
                segment("<|im_end|>", true),
            ])
            .unwrap();
        assert_eq!(ids.iter().filter(|&&id| id > 255).copied().collect::<Vec<_>>(), [256, 257]);
        assert_eq!(ids.last(), Some(&257));
    }
}
