//! What `config.json` and the pooling configuration of a sentence-transformers directory say.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::read;
use crate::ModelError;
use crate::kernel::panel::PANEL;

/// sentence-transformers cuts texts for all-MiniLM-L6-v2 here, and for models without a setting of their own so do we.
const DEFAULT_PIECES: usize = 256;

/// The shape of the encoder.
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
}

#[derive(Deserialize)]
struct PoolingFile {
    pooling_mode_mean_tokens: bool,
}

#[derive(Deserialize)]
struct LengthFile {
    max_seq_length: usize,
}

impl Config {
    pub(super) fn open(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let file: BertFile = parse(&path)?;
        let unsupported = |what: String| ModelError::Unsupported { path: path.clone(), what };
        if file.model_type != "bert" {
            return Err(unsupported(format!("model_type {:?}, only bert can embed", file.model_type)));
        }
        if file.hidden_act != "gelu" {
            return Err(unsupported(format!("hidden_act {:?}", file.hidden_act)));
        }
        let heads = file.num_attention_heads;
        if heads == 0 || !file.hidden_size.is_multiple_of(heads * PANEL) {
            let size = file.hidden_size;
            return Err(unsupported(format!("{heads} heads for hidden_size {size}: width not a multiple of {PANEL}")));
        }
        check_pooling(dir)?;
        let length = dir.join("sentence_bert_config.json");
        let pieces = if length.exists() { parse::<LengthFile>(&length)?.max_seq_length } else { DEFAULT_PIECES };
        Ok(Self {
            hidden: file.hidden_size,
            layers: file.num_hidden_layers,
            heads,
            ffn: file.intermediate_size,
            vocab: file.vocab_size,
            positions: file.max_position_embeddings,
            types: file.type_vocab_size,
            norm_eps: file.layer_norm_eps,
            max_pieces: pieces.clamp(2, file.max_position_embeddings.max(2)),
        })
    }

    pub(super) fn head(&self) -> usize {
        self.hidden / self.heads
    }
}

fn check_pooling(dir: &Path) -> Result<(), ModelError> {
    let path = dir.join("1_Pooling").join("config.json");
    if path.exists() && !parse::<PoolingFile>(&path)?.pooling_mode_mean_tokens {
        return Err(ModelError::Unsupported { path, what: "pooling: only pooling_mode_mean_tokens".to_owned() });
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    serde_json::from_slice(&read(path)?)
        .map_err(|error| ModelError::Corrupt { path: path.to_owned(), reason: error.to_string() })
}
