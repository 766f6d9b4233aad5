//! Base models: weights, tokenizer, chat template and end-of-turn tokens.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::ModelError;
use crate::chat::ChatTemplate;
use crate::layout::ModelLayout;
use crate::tokenizer::{END_TOKENS, Tokenizer};
use crate::weights::{Gguf, Weights};

/// An opened and validated base model.
#[derive(Debug)]
pub struct Checkpoint {
    /// Tensors and configuration.
    pub weights: Weights,
    /// Vocabulary and text encoding, without added tokens that have no embedding.
    pub tokenizer: Tokenizer,
    /// Chat template. `None` if the checkpoint has none.
    pub template: Option<ChatTemplate>,
    /// Tokens that end a turn. Empty if the checkpoint names none.
    pub eos: Vec<u32>,
    /// Name of the model: its file name without the extension, or its directory name.
    pub name: String,
}

impl Checkpoint {
    /// Opens a GGUF file, or a Hugging Face directory with `config.json`, safetensors and `tokenizer.json`.
    ///
    /// # Errors
    /// [`ModelError::Layout`] for files that must be converted first, and [`ModelError`] naming the file and what is
    /// wrong with it.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        ModelLayout::check(path)?;
        let weights = Weights::open(path)?;
        let TextParts { tokenizer, template, mut eos } = match weights.gguf() {
            Some(gguf) => from_gguf(gguf)?,
            None => from_folder(if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) })?,
        };
        let rows = weights.config().vocab;
        let corrupt = |reason: String| ModelError::Corrupt { path: path.into(), reason };
        let tokenizer = tokenizer.fitted_to(rows).map_err(corrupt)?;
        // A token without an embedding is never sampled.
        eos.retain(|&id| (id as usize) < rows);
        let tokenizer = tokenizer.with_ends(&eos);
        let template = template
            .map(|template| template.with_control_tokens(tokenizer.control_names()))
            .map(|template| template.with_markers(tokenizer.marker_names()));
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
        Ok(Self { weights, tokenizer, template, eos, name })
    }
}

/// Parts of a checkpoint that concern text.
struct TextParts {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    eos: Vec<u32>,
}

fn from_gguf(gguf: &Gguf) -> Result<TextParts, ModelError> {
    let tokenizer = Tokenizer::from_gguf(gguf)?;
    let id = |key: &str| {
        let id = u32::try_from(gguf.number(&format!("tokenizer.ggml.{key}_token_id"))?).ok()?;
        ((id as usize) < tokenizer.vocab()).then_some(id)
    };
    let name = |key: &str| id(key).and_then(|id| tokenizer.name(id)).unwrap_or_default();
    let template = gguf.text("tokenizer.chat_template");
    let template = template.map(|source| ChatTemplate::new(source, &name("bos"), &name("eos"))).transpose()?;
    let eos = end_tokens(&tokenizer, ["eos", "eot", "eom"].into_iter().filter_map(id));
    Ok(TextParts { tokenizer, template, eos })
}

fn from_folder(folder: &Path) -> Result<TextParts, ModelError> {
    let tokenizer = Tokenizer::from_folder(folder)?;
    let settings: TokenizerSettings = read(folder, "tokenizer_config.json")?.unwrap_or_default();
    let bos = token_name(settings.bos_token.as_ref());
    let eos_name = token_name(settings.eos_token.as_ref());
    let source = match read_text(folder, "chat_template.jinja")? {
        Some(source) => Some(source),
        None => settings.chat_template.as_ref().and_then(default_template),
    };
    let template = source.map(|source| ChatTemplate::new(&source, &bos, &eos_name)).transpose()?;
    let mut named = Vec::new();
    for file in ["generation_config.json", "config.json"] {
        let generation: GenerationConfig = read(folder, file)?.unwrap_or_default();
        named = generation.eos_token_id.map(TokenIds::into_vec).unwrap_or_default();
        if !named.is_empty() {
            break;
        }
    }
    named.extend(tokenizer.id(&eos_name));
    let eos = end_tokens(&tokenizer, named);
    // The setting replaces the template of the post-processor, as in `transformers`.
    let bos_id = match settings.add_bos_token.as_ref().and_then(Value::as_bool) {
        Some(true) => tokenizer.id(&bos),
        Some(false) => None,
        None => tokenizer.opening_token(),
    };
    Ok(TextParts { tokenizer: tokenizer.with_bos(bos_id), template, eos })
}

/// End-of-turn tokens named by the checkpoint and the control tokens among [`END_TOKENS`], sorted by ID, without
/// duplicates.
fn end_tokens(tokenizer: &Tokenizer, named: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let known = END_TOKENS.iter().filter_map(|name| tokenizer.id(name)).filter(|&id| tokenizer.is_control(id));
    let mut end_tokens: Vec<u32> = named.into_iter().chain(known).collect();
    end_tokens.sort_unstable();
    end_tokens.dedup();
    end_tokens
}

#[derive(Debug, Default, Deserialize)]
struct TokenizerSettings {
    add_bos_token: Option<Value>,
    bos_token: Option<Value>,
    eos_token: Option<Value>,
    chat_template: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<TokenIds>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

impl TokenIds {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

/// Name of a token, which is stored as a string or as an object with the name under `content`.
fn token_name(token: Option<&Value>) -> String {
    let name = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    name.unwrap_or_default().to_owned()
}

/// Chat template, stored as a string or as a list of named templates. A list must contain the name `default`.
fn default_template(value: &Value) -> Option<String> {
    let named = |value: &&Value| value.get("name").and_then(Value::as_str) == Some("default");
    let text = value.as_str().or_else(|| value.as_array()?.iter().find(named)?.get("template")?.as_str());
    text.map(str::to_owned)
}

fn read_text(folder: &Path, file: &str) -> Result<Option<String>, ModelError> {
    let path = folder.join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ModelError::Io { action: "read", path, source }),
    }
}

fn read<T: serde::de::DeserializeOwned>(folder: &Path, file: &str) -> Result<Option<T>, ModelError> {
    let Some(text) = read_text(folder, file)? else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| ModelError::Corrupt { path: folder.join(file), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    /// Entries of added tokens in a `tokenizer.json` whose vocabulary has one token, so their IDs begin at 1.
    fn added_tokens(tokens: &[(&str, bool)]) -> Vec<Value> {
        let added = |(id, (name, special)): (u32, &(&str, bool))| {
            json!({
                "id": id, "content": name, "special": special,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        };
        (1..).zip(tokens).map(added).collect()
    }

    #[test]
    fn a_text_begins_with_bos_where_the_files_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, json: Value| std::fs::write(folder.path().join(file), json.to_string()).unwrap();
        let first = || from_folder(folder.path()).unwrap().tokenizer.encode_text("a").unwrap();
        let model = json!({ "type": "BPE", "vocab": { "a": 0 }, "merges": [] });
        let added = added_tokens(&[("<s>", true), ("<cls>", true)]);
        let tokenizer = json!({ "version": "1.0", "added_tokens": added, "model": model });
        write("tokenizer.json", tokenizer.clone());
        assert_eq!(first(), [0]);
        write("tokenizer_config.json", json!({ "add_bos_token": true, "bos_token": { "content": "<s>" } }));
        assert_eq!(first(), [1, 0]);
        // As in Llama 3, whose settings do not name the switch.
        let sequence = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        let opened = json!({
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<cls>", "type_id": 0 } }, sequence],
            "pair": [sequence, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<cls>": { "id": "<cls>", "ids": [2], "tokens": ["<cls>"] } },
        });
        let closed = json!({
            "type": "TemplateProcessing",
            "single": [sequence, { "SpecialToken": { "id": "<cls>", "type_id": 0 } }],
            "pair": [sequence, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<cls>": { "id": "<cls>", "ids": [2], "tokens": ["<cls>"] } },
        });
        let level = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true });
        let whole = json!({ "type": "Sequence", "processors": [level, opened] });
        let cases: [(Value, &[u32]); 4] = [(opened, &[2, 0]), (whole, &[2, 0]), (closed, &[0]), (level, &[0])];
        for (processor, wanted) in cases {
            let mut with = tokenizer.clone();
            with["post_processor"] = processor.clone();
            write("tokenizer.json", with);
            write("tokenizer_config.json", json!({ "bos_token": "<s>" }));
            assert_eq!(first(), wanted, "{processor}");
            // As in Qwen 2.
            write("tokenizer_config.json", json!({ "add_bos_token": false, "bos_token": null }));
            assert_eq!(first(), [0], "{processor}");
        }
    }

    #[test]
    fn a_folder_stops_at_every_end_that_its_files_or_its_family_name() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, json: Value| std::fs::write(folder.path().join(file), json.to_string()).unwrap();
        let tokens = [("<|endoftext|>", true), ("<|im_end|>", true), ("</turn>", true), ("<|eot_id|>", false)];
        let added = added_tokens(&tokens);
        let model = json!({ "type": "BPE", "vocab": { "a": 0 }, "merges": [] });
        write("tokenizer.json", json!({ "version": "1.0", "added_tokens": added, "model": model }));
        write("tokenizer_config.json", json!({ "eos_token": { "content": "</turn>" } }));
        write("generation_config.json", json!({ "eos_token_id": [2, 1] }));
        let TextParts { tokenizer, eos, .. } = from_folder(folder.path()).unwrap();
        assert_eq!(tokenizer.id("<|eot_id|>"), Some(4));
        // `<|eot_id|>` is not a control token here.
        assert_eq!(eos, [1, 2, 3]);
        write("generation_config.json", json!({ "eos_token_id": 1 }));
        assert_eq!(from_folder(folder.path()).unwrap().eos, [1, 2, 3]);
    }
}
