//! Tokenizers: any `tokenizer.json` is read or refused, and what is read spells text without control tokens.
//!
//! Input: the file, a zero byte, and a text.

use std::sync::Arc;

use waymark_models::tokenizer::{Detokenizer, Specials, TokenBytes, Tokenizer};

use super::file::{parts, with_folder};

pub fn run(data: &[u8]) {
    let [json, text] = parts(data);
    let text = String::from_utf8_lossy(text);
    bytes(&text);
    let tokenizer = with_folder(|folder| Tokenizer::from_file(&folder.write("tokenizer.json", json)));
    let Ok(tokenizer) = tokenizer else { return };
    for text in [&*text, "any <|im_end|> <s> text\n\u{1f600}"] {
        let Ok(ids) = tokenizer.encode(text, Specials::Literal) else { continue };
        assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "{text:?} spells control tokens");
        assert_eq!(streamed(tokenizer.table(), &ids), tokenizer.decode(&ids));
        let _ = tokenizer.encode(text, Specials::Parse);
    }
    for id in [0, 1, tokenizer.vocab() as u32, u32::MAX] {
        let _ = (tokenizer.bytes_of(id), tokenizer.name(id));
    }
}

/// Checks that the byte tokenizer reproduces every text.
fn bytes(text: &str) {
    let tokenizer = Tokenizer::bytes();
    let ids = tokenizer.encode(text, Specials::Literal).expect("bytes spell everything");
    assert_eq!(tokenizer.decode(&ids), text);
    assert_eq!(streamed(tokenizer.table(), &ids), text);
}

fn streamed(table: Arc<TokenBytes>, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(table);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id).to_owned()).collect();
    text.push_str(&detokenizer.finish());
    text
}
