//! Byte-level BPE tokenizers in `vocab.json` and `merges.txt`, as slow tokenizers of `transformers` save them.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, Tokenizer as Pipeline};

use super::byte_level::{TextSplit, byte_level};
use super::merge;
use crate::ModelError;

/// Name of the file with the settings of a tokenizer.
const SETTINGS: &str = "tokenizer_config.json";

/// Roles of tokens in the files of `transformers`.
static ROLES: [&str; 8] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
];

/// Reads the tokenizer in `dir`. The class that `tokenizer_config.json` names determines how text is split.
pub(super) fn pipeline(dir: &Path) -> Result<Pipeline, ModelError> {
    let file = dir.join("vocab.json");
    let corrupt = |reason: String| ModelError::Corrupt { path: file.clone(), reason };
    let settings = object(&dir.join(SETTINGS))?;
    let class = settings.get("tokenizer_class").and_then(Value::as_str).unwrap_or("unknown");
    let split = match class.trim_end_matches("Fast") {
        "GPT2Tokenizer" => TextSplit::Gpt2,
        "Qwen2Tokenizer" => TextSplit::Qwen2,
        _ => {
            let layout = format!("a tokenizer of class {class} without tokenizer.json");
            return Err(ModelError::Layout { path: dir.to_owned(), layout, remedy: remedy(dir) });
        }
    };
    let mut vocab = Vocab::new();
    for (token, value) in object(&file)? {
        vocab.insert(token, token_id(&value).map_err(&corrupt)?);
    }
    let merges = merges(&dir.join("merges.txt"))?;
    let parts = merges.iter().map(|(left, right)| (left.as_str(), right.as_str()));
    merge::check(parts, "", |token| vocab.contains_key(token)).map_err(&corrupt)?;
    let added = AddedTokens::read(dir, &settings, |_| false)?;
    let pipeline = byte_level(vocab, merges, added.tokens(), split).map_err(|error| corrupt(error.to_string()))?;
    added.check(&pipeline)?;
    Ok(pipeline)
}

/// Tokens that a checkpoint adds to its vocabulary.
pub(super) struct AddedTokens {
    by_id: BTreeMap<u32, AddedToken>,
    /// File that lists the tokens.
    file: PathBuf,
}

impl AddedTokens {
    /// Reads the tokens of the checkpoint in `dir`: `added_tokens_decoder` in its `settings`, or else
    /// `added_tokens.json`, as older versions of `transformers` save them. A token of that file is special if the
    /// checkpoint gives it a role, such as `bos_token`, or if it is a control token of the vocabulary itself.
    ///
    /// # Errors
    /// [`ModelError::Io`] and [`ModelError::Corrupt`] with the defective file.
    pub(super) fn read(
        dir: &Path,
        settings: &Map<String, Value>,
        is_control: impl Fn(&str) -> bool,
    ) -> Result<AddedTokens, ModelError> {
        if let Some(entries) = settings.get("added_tokens_decoder").and_then(Value::as_object) {
            let file = dir.join(SETTINGS);
            return match decoder_tokens(entries) {
                Ok(by_id) => Ok(AddedTokens { by_id, file }),
                Err(reason) => Err(ModelError::Corrupt { path: file, reason }),
            };
        }
        let file = dir.join("added_tokens.json");
        let roles = optional_object(&dir.join("special_tokens_map.json"))?;
        let special: HashSet<&str> = special_names(settings).chain(special_names(&roles)).collect();
        let mut by_id = BTreeMap::new();
        for (name, id) in optional_object(&file)? {
            let id = token_id(&id).map_err(|reason| ModelError::Corrupt { path: file.clone(), reason })?;
            let is_special = special.contains(name.as_str()) || is_control(&name);
            by_id.insert(id, AddedToken::from(name, is_special).normalized(false));
        }
        Ok(AddedTokens { by_id, file })
    }

    /// Returns the tokens, sorted by ID.
    pub(super) fn tokens(&self) -> Vec<AddedToken> {
        self.by_id.values().cloned().collect()
    }

    /// Checks that the tokens have their IDs in `pipeline`.
    ///
    /// # Errors
    /// [`ModelError::Corrupt`] with a token that has another ID.
    pub(super) fn check(&self, pipeline: &Pipeline) -> Result<(), ModelError> {
        let corrupt = |reason| ModelError::Corrupt { path: self.file.clone(), reason };
        check_ids(pipeline, &self.by_id).map_err(corrupt)
    }
}

/// Reads `tokenizer_config.json` in `dir`. Empty if there is no such file.
pub(super) fn settings(dir: &Path) -> Result<Map<String, Value>, ModelError> {
    optional_object(&dir.join(SETTINGS))
}

/// Checks that tokens added to `pipeline` have the IDs in `added`. The library numbers added tokens by itself, so
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

/// Added tokens by ID, from the entries of `added_tokens_decoder`.
fn decoder_tokens(entries: &Map<String, Value>) -> Result<BTreeMap<u32, AddedToken>, String> {
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
    entries.iter().map(token).collect()
}

/// Names of tokens with a role in a `tokenizer_config.json` or a `special_tokens_map.json`.
fn special_names(roles: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let values = ROLES.iter().filter_map(move |role| roles.get(*role));
    let entries = values.flat_map(|value| match value.as_array() {
        Some(list) => list.as_slice(),
        None => std::slice::from_ref(value),
    });
    // A token is stored as a string or as an object with its name under `content`.
    entries.filter_map(|entry| entry.as_str().or_else(|| entry.get("content")?.as_str()))
}

fn token_id(value: &Value) -> Result<u32, String> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| format!("{value} is not a token ID"))
}

/// Reads the object in the file `path`. Empty if there is no such file.
fn optional_object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    if path.is_file() { object(path) } else { Ok(Map::new()) }
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
    fn added_tokens_of_older_checkpoints_are_read_from_a_file_of_their_own() {
        let dir = folder("Qwen2Tokenizer");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("tokenizer_config.json", r#"{"tokenizer_class": "Qwen2Tokenizer", "eos_token": {"content": "<|end|>"}}"#);
        write("added_tokens.json", r#"{"<tool>": 8, "<|end|>": 7, "<|im_start|>": 6}"#);
        write("special_tokens_map.json", r#"{"additional_special_tokens": ["<|im_start|>"], "pad_token": null}"#);
        let tokenizer = Tokenizer::from_folder(dir.path()).unwrap();
        assert_eq!(tokenizer.encode("<|im_start|>ab<tool><|end|>", Specials::Parse).unwrap(), [6, 4, 8, 7]);
        assert_eq!([6, 7, 8].map(|id| tokenizer.is_control(id)), [true, true, false]);
        write("added_tokens.json", r#"{"<tool>": 9}"#);
        let shifted = Tokenizer::from_folder(dir.path()).unwrap_err().to_string();
        assert!(shifted.contains("added_tokens.json") && shifted.contains("ID 9"), "{shifted}");
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
