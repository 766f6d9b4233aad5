//! Settings in the `config.json` of an encoder.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::family::EncoderFamily;
use super::json_file::parse;
use super::text_length::FEWEST_PIECES;
use crate::ModelError;

/// Maximum of every size in `config.json`, so a product of two sizes and a small factor does not overflow.
const LARGEST: usize = 1 << 26;

/// `config.json`, with the names that most families use.
#[derive(Deserialize)]
pub(super) struct EncoderFile {
    pub(super) hidden_act: Option<String>,
    pub(super) hidden_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) intermediate_size: usize,
    pub(super) vocab_size: usize,
    pub(super) max_position_embeddings: usize,
    #[serde(default)]
    pub(super) type_vocab_size: usize,
    #[serde(default = "default_eps")]
    pub(super) layer_norm_eps: f32,
    pub(super) position_embedding_type: Option<String>,
    pad_token_id: Option<i64>,
    #[serde(default = "default_buckets")]
    pub(super) relative_attention_num_buckets: usize,
}

/// Epsilon of DistilBERT, which its configuration does not state.
fn default_eps() -> f32 {
    1e-12
}

/// Number of buckets in MPNet.
fn default_buckets() -> usize {
    32
}

/// General names of settings, with the names in other families. If a file lacks the general name, the first other name
/// that it has counts.
const SYNONYMS: [(&str, &[&str]); 7] = [
    ("hidden_act", &["activation", "hidden_activation"]),
    ("hidden_size", &["dim", "n_embd"]),
    ("num_hidden_layers", &["n_layers", "n_layer"]),
    ("num_attention_heads", &["n_heads", "n_head"]),
    ("intermediate_size", &["hidden_dim", "n_inner"]),
    ("max_position_embeddings", &["n_positions"]),
    ("layer_norm_eps", &["norm_eps", "layer_norm_epsilon"]),
];

impl EncoderFile {
    /// Parses the `config.json` at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, ModelError> {
        let mut fields: Map<String, Value> = parse(path)?;
        for (name, others) in SYNONYMS {
            if fields.get(name).is_none_or(Value::is_null) {
                let stated = others.iter().find_map(|other| fields.get(*other).filter(|value| !value.is_null()));
                if let Some(value) = stated.cloned() {
                    fields.insert(name.to_owned(), value);
                }
            }
        }
        serde_json::from_value(Value::Object(fields))
            .map_err(|error| ModelError::Corrupt { path: path.to_owned(), reason: error.to_string() })
    }

    /// Row of the padding in the position table of a family that has one.
    fn padding(&self) -> usize {
        usize::try_from(self.pad_token_id.unwrap_or(1)).unwrap_or(usize::MAX)
    }

    /// Row of the first piece in the position table.
    pub(super) fn first_position(&self, family: EncoderFamily) -> usize {
        // Pieces are counted from the row after that of the padding (`create_position_ids_from_input_ids`).
        if family.pads_positions() { self.padding().min(LARGEST) + 1 } else { 0 }
    }

    /// Checks that every size lies between its minimum and [`LARGEST`].
    pub(super) fn check_sizes(&self, family: EncoderFamily, path: &Path) -> Result<(), ModelError> {
        let padding = if family.pads_positions() { self.padding() } else { 0 };
        let buckets = if family == EncoderFamily::Mpnet { self.relative_attention_num_buckets } else { 4 };
        for (field, least, size) in [
            ("pad_token_id", 0, padding),
            ("relative_attention_num_buckets", 4, buckets),
            ("hidden_size", 1, self.hidden_size),
            ("num_hidden_layers", 0, self.num_hidden_layers),
            ("num_attention_heads", 1, self.num_attention_heads),
            ("intermediate_size", 1, self.intermediate_size),
            ("vocab_size", 1, self.vocab_size),
            ("max_position_embeddings", FEWEST_PIECES + self.first_position(family), self.max_position_embeddings),
            ("type_vocab_size", usize::from(family.needs_types()), self.type_vocab_size),
        ] {
            if !(least..=LARGEST).contains(&size) {
                let reason = format!("{field} is {size}, not from {least} to {LARGEST}");
                return Err(ModelError::Corrupt { path: path.to_owned(), reason });
            }
        }
        Ok(())
    }
}
