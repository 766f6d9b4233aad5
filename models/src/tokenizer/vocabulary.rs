//! Byte-level BPE tokenizers in `vocab.json` and `merges.txt`, as slow tokenizers of `transformers` save them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, Tokenizer as Pipeline};

use super::byte_level::{TextSplit, byte_level};
use super::merge;
use crate::ModelError;

/// Reads the tokenizer in `dir`. The class that `tokenizer_config.json` names determines how text is split.
pub(super) fn pipeline(dir: &Path) -> Result<Pipeline, ModelError> {
    let file = dir.join("vocab.json");
    let corrupt = |reason: String| ModelError::Corrupt { path: file.clone(), reason };
    let settings = object(&dir.join("tokenizer_config.json"))?;
    let class = settings.get("tokenizer_class").and_then(Value::as_str).unwrap_or("unknown");
    let split = match class.trim_end_matches("Fast") {
        "GPT2Tokenizer" => TextSplit::Gpt2,
        "Qwen2Tokenizer" => TextSplit::Qwen2,
        _ => {
            let layout = format!("a tokenizer of class {class} without tokenizer.json");
            return Err(ModelError::Layout { path: dir.to_owned(), layout, remedy: remedy(dir) });
        }
    };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let mut vocab = Vocab::new();
    for (token, value) in object(&file)? {
        vocab.insert(token, id(&value).ok_or_else(|| corrupt(format!("{value} is not a token ID")))?);
    }
    let merges = merges(&dir.join("merges.txt"))?;
    let parts = merges.iter().map(|(left, right)| (left.as_str(), right.as_str()));
    merge::check(parts, "", |token| vocab.contains_key(token)).map_err(&corrupt)?;
    let added = added(&settings).map_err(&corrupt)?;
    let tokens = added.values().cloned().collect();
    let pipeline = byte_level(vocab, merges, tokens, split).map_err(|error| corrupt(error.to_string()))?;
    check_ids(&pipeline, &added).map_err(corrupt)?;
    Ok(pipeline)
}

/// Checks that tokens added to `pipeline` have the IDs in `added`. The library numbers added tokens by itself, so that
/// a gap shifts them.
///
/// # Errors
/// A message naming a token with another ID.
pub(super) fn check_ids(pipeline: &Pipeline, added: &BTreeMap<u32, AddedToken>) -> Result<(), String> {
    match added.iter().find(|(id, token)| pipeline.token_to_id(&token.content) != Some(**id)) {
        Some((id, token)) => Err(format!("the added token {:?} does not get the ID {id}", token.content)),
        None => Ok(()),
    }
}

/// Returns the command that writes `tokenizer.json`.
pub(super) fn remedy(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "write tokenizer.json with `python -c \"from transformers import AutoTokenizer as T; \
         T.from_pretrained('{dir}').save_pretrained('{dir}')\"`"
    )
}

/// Added tokens in the file `path`, a `tokenizer_config.json`, by ID. Empty if there is no such file.
pub(super) fn added_tokens(path: &Path) -> Result<BTreeMap<u32, AddedToken>, ModelError> {
    if !path.is_file() {
        return Ok(BTreeMap::new());
    }
    added(&object(path)?).map_err(|reason| ModelError::Corrupt { path: path.to_owned(), reason })
}

/// Added tokens by ID, from `added_tokens_decoder`.
fn added(settings: &Map<String, Value>) -> Result<BTreeMap<u32, AddedToken>, String> {
    let entries = settings.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
    let token = |(id, entry): (&String, &Value)| {
        let id: u32 = id.parse().map_err(|_| format!("added_tokens_decoder: {id:?} is not a token ID"))?;
        let content = entry["content"].as_str().ok_or_else(|| format!("added_tokens_decoder: {id} has no content"))?;
        let flag = |name: &str| entry[name].as_bool().unwrap_or(false);
        let added = AddedToken::from(content, flag("special"))
            .normalized(false)
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"));
        Ok((id, added))
    };
    entries.map(token).collect()
}

fn object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let bytes = std::fs::read(path).map_err(ModelError::io("read", path))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| ModelError::Corrupt { path: path.to_owned(), reason: error.to_string() })
}

fn merges(path: &Path) -> Result<Vec<(String, String)>, ModelError> {
    let text = std::fs::read_to_string(path).map_err(ModelError::io("read", path))?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let pair = |line: &str| {
        let (left, right) = line.split_once(' ')?;
        Some((left.to_owned(), right.to_owned()))
    };
    let pairs: Option<Vec<_>> = lines.map(pair).collect();
    let reason = "a line is not two tokens".to_owned();
    pairs.ok_or_else(|| ModelError::Corrupt { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::super::{Specials, Tokenizer};

    /// Writes a tokenizer of four letters with two merges and two added tokens.
    fn folder(class: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        write("vocab.json", json!({"a": 0, "b": 1, "1": 2, "\u{120}": 3, "ab": 4, "\u{120}ab": 5}).to_string());
        write("merges.txt", "#version: 0.2\na b\n\u{120} ab\n".to_owned());
        let added =
            json!({"6": {"content": "<|im_start|>", "special": true}, "7": {"content": "<tool>", "special": false}});
        let settings = json!({"tokenizer_class": class, "added_tokens_decoder": added});
        write("tokenizer_config.json", settings.to_string());
        dir
    }

    #[test]
    fn merges_and_added_tokens_are_read() {
        for class in ["GPT2Tokenizer", "Qwen2TokenizerFast"] {
            let dir = folder(class);
            let tokenizer = Tokenizer::from_folder(dir.path()).unwrap();
            assert_eq!(tokenizer.encode("ab ab1", Specials::Literal).unwrap(), [4, 5, 2], "{class}");
            assert_eq!(tokenizer.encode("<|im_start|>ab", Specials::Parse).unwrap(), [6, 4]);
            assert_eq!((tokenizer.id("<tool>"), tokenizer.vocab()), (Some(7), 8));
            assert_eq!(tokenizer.decode(&[4, 5, 2]), "ab ab1");
        }
    }

    #[test]
    fn added_tokens_strip_white_space_as_their_entries_say() {
        let dir = folder("GPT2Tokenizer");
        let encoded = |flag: &str, text: &str| {
            let added = json!({"6": {"content": "<tool>", flag: true}});
            let settings = json!({"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": added});
            std::fs::write(dir.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
            Tokenizer::from_folder(dir.path()).unwrap().encode(text, Specials::Parse).unwrap()
        };
        assert_eq!(encoded("special", "ab <tool> ab"), [4, 3, 6, 5]);
        assert_eq!(encoded("rstrip", "ab <tool> ab"), [4, 3, 6, 4]);
        assert_eq!(encoded("lstrip", "ab <tool> ab"), [4, 6, 5]);
        assert_eq!(encoded("single_word", "ab <tool> ab"), [4, 3, 6, 5]);
        assert!(!encoded("single_word", "ab <tool>ab").contains(&6));
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_command() {
        let other = Tokenizer::from_folder(folder("BloomTokenizer").path()).unwrap_err().to_string();
        assert!(other.contains("BloomTokenizer") && other.contains("save_pretrained"), "{other}");
        let sentences = tempfile::tempdir().unwrap();
        std::fs::write(sentences.path().join("tokenizer.model"), "").unwrap();
        let refused = Tokenizer::from_folder(sentences.path()).unwrap_err().to_string();
        assert!(refused.contains("tokenizer.model") && refused.contains("save_pretrained"), "{refused}");
        let none = Tokenizer::from_folder(tempfile::tempdir().unwrap().path()).unwrap_err().to_string();
        assert!(none.contains("tokenizer.json"), "{none}");
        let shifted = folder("GPT2Tokenizer");
        let settings = r#"{"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"9": {"content": "<x>"}}}"#;
        std::fs::write(shifted.path().join("tokenizer_config.json"), settings).unwrap();
        assert!(Tokenizer::from_folder(shifted.path()).unwrap_err().to_string().contains("ID 9"));
    }
}
