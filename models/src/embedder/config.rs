//! Settings from `config.json` and the pooling configuration of a sentence-transformers directory.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::read;
use crate::ModelError;
use crate::kernel::panel::PANEL;

/// Maximum of every size in `config.json`, so that no product of two or three sizes overflows.
const LARGEST: usize = 1 << 26;

/// Two special pieces mark the ends of a text, and at least one piece must fit between them.
const FEWEST_PIECES: usize = 3;

/// Default length limit: the one that sentence-transformers uses for all-MiniLM-L6-v2.
const DEFAULT_PIECES: usize = 256;

/// Name of the file in which sentence-transformers stores the length limit.
pub(super) const LENGTH: &str = "sentence_bert_config.json";

/// Shape of the encoder.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) ffn: usize,
    pub(super) vocab: usize,
    pub(super) positions: usize,
    pub(super) types: usize,
    pub(super) norm_eps: f32,
    pub(super) max_pieces: usize,
    /// If `true`, texts are lower-cased before they are split.
    pub(super) lower_case: bool,
}

#[derive(Deserialize)]
struct BertFile {
    model_type: String,
    hidden_act: String,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f32,
    position_embedding_type: Option<String>,
}

impl BertFile {
    /// Checks that every size lies between its minimum and [`LARGEST`].
    fn check_sizes(&self, path: &Path) -> Result<(), ModelError> {
        for (field, least, size) in [
            ("hidden_size", 1, self.hidden_size),
            ("num_hidden_layers", 0, self.num_hidden_layers),
            ("num_attention_heads", 1, self.num_attention_heads),
            ("intermediate_size", 1, self.intermediate_size),
            ("vocab_size", 1, self.vocab_size),
            ("max_position_embeddings", FEWEST_PIECES, self.max_position_embeddings),
            ("type_vocab_size", 1, self.type_vocab_size),
        ] {
            if !(least..=LARGEST).contains(&size) {
                let reason = format!("{field} is {size}, not from {least} to {LARGEST}");
                return Err(ModelError::Corrupt { path: path.to_owned(), reason });
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct PoolingFile {
    pooling_mode_mean_tokens: bool,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
struct ModuleEntry {
    /// Python class path, such as `sentence_transformers.models.Pooling`.
    #[serde(rename = "type")]
    class: String,
}

#[derive(Deserialize)]
struct LengthFile {
    max_seq_length: usize,
    do_lower_case: Option<bool>,
}

impl Config {
    pub(super) fn open(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let file: BertFile = parse(&path)?;
        let unsupported = |what: String| ModelError::Unsupported { path: path.clone(), what };
        if file.model_type != "bert" {
            return Err(unsupported(format!("model_type {:?}: expected bert", file.model_type)));
        }
        if file.hidden_act != "gelu" {
            return Err(unsupported(format!("hidden_act {:?}", file.hidden_act)));
        }
        // Relative positions change the attention scores, which this encoder does not compute.
        if let Some(other) = file.position_embedding_type.as_deref().filter(|kind| *kind != "absolute") {
            return Err(unsupported(format!("position_embedding_type {other:?}")));
        }
        file.check_sizes(&path)?;
        let heads = file.num_attention_heads;
        // The attention kernel works on whole panels of a head's dimensions.
        if !heads.checked_mul(PANEL).is_some_and(|panels| file.hidden_size.is_multiple_of(panels)) {
            let size = file.hidden_size;
            return Err(unsupported(format!("{heads} heads for hidden_size {size}: width not a multiple of {PANEL}")));
        }
        check_modules(dir)?;
        check_pooling(dir)?;
        let length = dir.join(LENGTH);
        let length = if length.exists() {
            parse(&length)?
        } else {
            LengthFile { max_seq_length: DEFAULT_PIECES, do_lower_case: None }
        };
        Ok(Self {
            hidden: file.hidden_size,
            layers: file.num_hidden_layers,
            heads,
            ffn: file.intermediate_size,
            vocab: file.vocab_size,
            positions: file.max_position_embeddings,
            types: file.type_vocab_size,
            norm_eps: file.layer_norm_eps,
            // A stated length beyond the position table would read past its end.
            max_pieces: length.max_seq_length.clamp(FEWEST_PIECES, file.max_position_embeddings),
            lower_case: length.do_lower_case == Some(true),
        })
    }

    pub(super) fn head(&self) -> usize {
        self.hidden / self.heads
    }
}

/// Checks that the modules after the encoder are the supported ones: pooling and normalization.
fn check_modules(dir: &Path) -> Result<(), ModelError> {
    let path = dir.join("modules.json");
    if !path.exists() {
        return Ok(());
    }
    let modules: Vec<ModuleEntry> = parse(&path)?;
    let known = |class: &str| matches!(class.rsplit('.').next(), Some("Transformer" | "Pooling" | "Normalize"));
    match modules.into_iter().find(|module| !known(&module.class)) {
        Some(module) => {
            let what = format!("module {:?}: expected Transformer, Pooling or Normalize", module.class);
            Err(ModelError::Unsupported { path, what })
        }
        None => Ok(()),
    }
}

fn check_pooling(dir: &Path) -> Result<(), ModelError> {
    let path = dir.join("1_Pooling").join("config.json");
    if !path.exists() {
        return Ok(());
    }
    let file: PoolingFile = parse(&path)?;
    let other =
        file.others.iter().find(|(key, value)| key.starts_with("pooling_mode_") && **value != Value::Bool(false));
    let what = match other {
        Some((key, _)) => format!("pooling {key}: expected pooling_mode_mean_tokens alone"),
        None if !file.pooling_mode_mean_tokens => "pooling: expected pooling_mode_mean_tokens".to_owned(),
        None => return Ok(()),
    };
    Err(ModelError::Unsupported { path, what })
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    serde_json::from_slice(&read(path)?)
        .map_err(|error| ModelError::Corrupt { path: path.to_owned(), reason: error.to_string() })
}
