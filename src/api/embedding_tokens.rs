//! Texts to embed that clients send as token IDs.
//!
//! Some clients send token IDs without asking which model embeds: the IDs are those of cl100k_base, the encoding of
//! OpenAI's embedding models. The server decodes them to text, which the embedder's own tokenizer reads.

use super::encoding::check_embedded;
use super::error::ApiError;

/// Maximum size in bytes of all texts that a request sends as token IDs. The size of the request is too weak a bound:
/// an ID of three characters may stand for more than a hundred bytes.
const MAX_BYTES: usize = 32 << 20;

/// Returns the texts of lists of token IDs. `max_bytes` is the longest text that the embedder takes.
///
/// # Errors
/// 400 if the encoding lacks an ID, or the texts are too long. A text that is too long is not decoded further.
pub(super) fn texts_of(lists: Vec<Vec<u32>>, max_bytes: usize) -> Result<Vec<String>, ApiError> {
    let mut left = MAX_BYTES;
    let mut texts = Vec::with_capacity(lists.len());
    for (index, ids) in lists.into_iter().enumerate() {
        let text = text_of(&format!("input[{index}]"), &ids, max_bytes)?;
        left = left.checked_sub(text.len()).ok_or_else(|| {
            ApiError::invalid("input", format!("`input` holds more than {MAX_BYTES} bytes of text: send fewer texts"))
        })?;
        texts.push(text);
    }
    Ok(texts)
}

fn text_of(param: &str, ids: &[u32], max_bytes: usize) -> Result<String, ApiError> {
    let encoding = tiktoken_rs::cl100k_base_singleton();
    let mut bytes = Vec::new();
    for id in ids {
        let token = encoding.decode_bytes(&[*id]).map_err(|_| {
            let message =
                format!("`{param}`: {id} is not a token ID of cl100k_base: send text, or IDs of this encoding");
            ApiError::invalid(param, message)
        })?;
        bytes.extend(token);
        check_embedded(param, bytes.len(), max_bytes)?;
    }
    // A client that cuts a long text by tokens may cut within a character.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ids_become_the_text_that_they_were_made_of() {
        let encoding = tiktoken_rs::cl100k_base_singleton();
        for text in ["Rome is the capital of Italy.", "Überraschung 🎉", " "] {
            assert_eq!(texts_of(vec![encoding.encode_ordinary(text)], 1000).unwrap(), [text]);
        }
        let cut = encoding.encode_ordinary("🎉");
        assert_eq!(texts_of(vec![cut[..1].to_vec()], 1000).unwrap(), ["\u{fffd}"]);
    }

    #[test]
    fn unknown_ids_and_long_texts_are_refused_by_name() {
        let refused = |ids: &[u32]| texts_of(vec![vec![9906], ids.to_vec()], 10).unwrap_err();
        let unknown = refused(&[9906, 4_000_000]);
        assert!(unknown.message.contains("4000000") && unknown.param.as_deref() == Some("input[1]"), "{unknown:?}");
        assert_eq!(refused(&[9906; 3]).param.as_deref(), Some("input[1]"));
    }
}
