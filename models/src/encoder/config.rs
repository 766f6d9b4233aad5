//! Settings from `config.json` and the files that state the length of texts.

use std::path::Path;

use serde::Deserialize;

use super::family::EncoderFamily;
use super::json_file::{parse, parse_present};
use super::modern::{MAX_POSITIONS, ModernConfig};
use crate::ModelError;
use crate::kernel::panel::PANEL;

/// Maximum of every size in `config.json`, so that no product of two or three sizes overflows.
const LARGEST: usize = 1 << 26;

/// Two special pieces mark the ends of a text, and at least one piece must fit between them.
const FEWEST_PIECES: usize = 3;

/// Name of the file in which sentence-transformers stores the length limit.
pub(super) const LENGTH: &str = "sentence_bert_config.json";

/// Name of the tokenizer's settings, which hold the length limit since sentence-transformers 6.
const TOKENIZER: &str = "tokenizer_config.json";

/// Shape of the encoder.
#[derive(Debug, Clone)]
pub(crate) struct EncoderConfig {
    pub(crate) family: EncoderFamily,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(super) heads: usize,
    pub(super) ffn: usize,
    pub(super) vocab: usize,
    /// Number of rows of the position table.
    pub(super) positions: usize,
    /// Row of the first piece in the position table.
    pub(super) first_position: usize,
    /// Number of segments. 0 if pieces have no embedding of their segment.
    pub(super) types: usize,
    /// Number of buckets of relative positions, in the family that has them.
    pub(super) buckets: usize,
    pub(super) norm_eps: f32,
    pub(crate) max_pieces: usize,
    /// If `true`, texts are lower-cased before they are split.
    pub(super) lower_case: bool,
    /// Further settings of ModernBERT. `None` in other families.
    pub(super) modern: Option<ModernConfig>,
}

/// `config.json`. DistilBERT and ModernBERT have names of their own for some settings.
#[derive(Deserialize)]
struct EncoderFile {
    model_type: String,
    #[serde(alias = "activation", alias = "hidden_activation")]
    hidden_act: String,
    #[serde(alias = "dim")]
    hidden_size: usize,
    #[serde(alias = "n_layers")]
    num_hidden_layers: usize,
    #[serde(alias = "n_heads")]
    num_attention_heads: usize,
    #[serde(alias = "hidden_dim")]
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    #[serde(default)]
    type_vocab_size: usize,
    #[serde(default = "default_eps")]
    layer_norm_eps: f32,
    position_embedding_type: Option<String>,
    pad_token_id: Option<i64>,
    #[serde(default = "default_buckets")]
    relative_attention_num_buckets: usize,
}

/// Epsilon of DistilBERT, which its configuration does not state.
fn default_eps() -> f32 {
    1e-12
}

/// Number of buckets in MPNet.
fn default_buckets() -> usize {
    32
}

impl EncoderFile {
    /// Row of the padding in the position table of a family that has one.
    fn padding(&self) -> usize {
        usize::try_from(self.pad_token_id.unwrap_or(1)).unwrap_or(usize::MAX)
    }

    /// Checks that every size lies between its minimum and [`LARGEST`].
    fn check_sizes(&self, family: EncoderFamily, path: &Path) -> Result<(), ModelError> {
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
            ("max_position_embeddings", FEWEST_PIECES + first_position(family, padding), self.max_position_embeddings),
            ("type_vocab_size", usize::from(family.has_types()), self.type_vocab_size),
        ] {
            if !(least..=LARGEST).contains(&size) {
                let reason = format!("{field} is {size}, not from {least} to {LARGEST}");
                return Err(ModelError::Corrupt { path: path.to_owned(), reason });
            }
        }
        Ok(())
    }
}

/// Returns the row of the first piece in the position table.
fn first_position(family: EncoderFamily, padding: usize) -> usize {
    // Pieces are counted from the row after that of the padding (`create_position_ids_from_input_ids`).
    if family.pads_positions() { padding.min(LARGEST) + 1 } else { 0 }
}

#[derive(Deserialize)]
struct LengthFile {
    max_seq_length: Option<usize>,
    do_lower_case: Option<bool>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    /// Maximum number of pieces, or a very large number for none.
    model_max_length: Option<f64>,
}

impl EncoderConfig {
    /// Reads the settings of the model in `dir`. Texts have at most `default_pieces` pieces where no file states a limit.
    pub(crate) fn open(dir: &Path, default_pieces: usize) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let file: EncoderFile = parse(&path)?;
        let unsupported = |what: String| ModelError::Unsupported { path: path.clone(), what };
        let Some(family) = EncoderFamily::of(&file.model_type) else {
            return Err(unsupported(format!("model_type {:?}: expected {}", file.model_type, EncoderFamily::KNOWN)));
        };
        if file.hidden_act != "gelu" {
            return Err(unsupported(format!("hidden_act {:?}", file.hidden_act)));
        }
        // Relative positions change the attention scores, which this encoder does not compute.
        if let Some(other) = file.position_embedding_type.as_deref().filter(|kind| *kind != "absolute") {
            return Err(unsupported(format!("position_embedding_type {other:?}")));
        }
        file.check_sizes(family, &path)?;
        let heads = file.num_attention_heads;
        // The attention kernel works on whole panels of a head's dimensions.
        if !heads.checked_mul(PANEL).is_some_and(|panels| file.hidden_size.is_multiple_of(panels)) {
            let size = file.hidden_size;
            return Err(unsupported(format!("{heads} heads for hidden_size {size}: width not a multiple of {PANEL}")));
        }
        let length: Option<LengthFile> = parse_present(&dir.join(LENGTH))?;
        let first_position = first_position(family, file.padding());
        // A stated length beyond the position table would read past its end.
        let most = file.max_position_embeddings - first_position;
        let modern = (family == EncoderFamily::ModernBert).then(|| ModernConfig::read(&path)).transpose()?;
        let most = if modern.is_some() { most.min(MAX_POSITIONS) } else { most };
        Ok(Self {
            family,
            hidden: file.hidden_size,
            layers: file.num_hidden_layers,
            heads,
            ffn: file.intermediate_size,
            vocab: file.vocab_size,
            positions: file.max_position_embeddings,
            first_position,
            types: if family.has_types() { file.type_vocab_size } else { 0 },
            buckets: file.relative_attention_num_buckets,
            norm_eps: file.layer_norm_eps,
            max_pieces: max_pieces(dir, length.as_ref(), most, default_pieces)?.clamp(FEWEST_PIECES, most),
            lower_case: length.is_some_and(|length| length.do_lower_case == Some(true)),
            modern,
        })
    }

    pub(super) fn head(&self) -> usize {
        self.hidden / self.heads
    }
}

/// Returns the length limit of a directory whose positions allow `most` pieces.
fn max_pieces(
    dir: &Path,
    length: Option<&LengthFile>,
    most: usize,
    default_pieces: usize,
) -> Result<usize, ModelError> {
    if let Some(stated) = length.and_then(|length| length.max_seq_length) {
        return Ok(stated);
    }
    let tokenizer: Option<TokenizerFile> = parse_present(&dir.join(TOKENIZER))?;
    let stated = tokenizer.as_ref().and_then(|tokenizer| tokenizer.model_max_length);
    Ok(match stated {
        // Saturates, as tokenizers without a limit state 10³⁰.
        Some(pieces) => pieces as usize,
        None if length.is_some() || tokenizer.is_some() => most,
        None => default_pieces,
    })
}
