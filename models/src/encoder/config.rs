//! Shape of an encoder, from `config.json` and the files that state the length of texts.

use std::path::Path;

use serde::Deserialize;

use super::causal::MOST_PIECES;
use super::config_file::EncoderFile;
use super::family::EncoderFamily;
use super::json_file::parse;
use super::modern::{MAX_POSITIONS, ModernConfig};
use super::rotary::RotaryConfig;
use super::text_length::TextLength;
use crate::ModelError;
use crate::decoder::DecoderConfig;
use crate::kernel::panel::PANEL;
use crate::weights::Weights;

/// Name of the file with the settings.
const CONFIG: &str = "config.json";

/// Maximum width of a rotated head, which bounds the tables of rotations: no tensor of the checkpoint does.
const MOST_ROTATED: usize = 1024;

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
    /// Rotary positions and gates of NomicBERT and GTE's architecture. `None` in other families.
    pub(super) rotary: Option<RotaryConfig>,
}

#[derive(Deserialize)]
struct ModelType {
    model_type: String,
}

impl EncoderFamily {
    /// Family of the model in `dir`. `None` if it is none of those that are computed, or the directory has no `config.json`.
    pub(crate) fn at(dir: &Path) -> Option<EncoderFamily> {
        parse(&dir.join(CONFIG)).ok().and_then(|ModelType { model_type }| EncoderFamily::of(&model_type))
    }
}

impl EncoderConfig {
    /// Reads the settings of the model in `dir`. Texts have at most `default_pieces` pieces where no file states a limit.
    pub(crate) fn open(dir: &Path, default_pieces: usize) -> Result<Self, ModelError> {
        let path = dir.join(CONFIG);
        let unsupported = |what: String| ModelError::Unsupported { path: path.clone(), what };
        let ModelType { model_type } = parse(&path)?;
        let Some(family) = EncoderFamily::of(&model_type) else {
            return Err(unsupported(format!("model_type {model_type:?}: expected {}", EncoderFamily::KNOWN)));
        };
        if family.is_decoder() {
            return Self::of_decoder(family, dir, default_pieces);
        }
        let file = EncoderFile::read(&path)?;
        let rotary = RotaryConfig::read(family, &path)?;
        let act = file.hidden_act.as_deref().unwrap_or_default();
        if rotary.is_none() && act != "gelu" {
            return Err(unsupported(format!("hidden_act {act:?}")));
        }
        // Relative positions change the attention scores, which this encoder does not compute.
        let positions = file.position_embedding_type.as_deref().filter(|_| rotary.is_none());
        if let Some(other) = positions.filter(|kind| *kind != "absolute") {
            return Err(unsupported(format!("position_embedding_type {other:?}")));
        }
        file.check_sizes(family, &path)?;
        let heads = file.num_attention_heads;
        // The attention kernel works on whole panels of a head's dimensions.
        if !heads.checked_mul(PANEL).is_some_and(|panels| file.hidden_size.is_multiple_of(panels)) {
            let size = file.hidden_size;
            return Err(unsupported(format!("{heads} heads for hidden_size {size}: width not a multiple of {PANEL}")));
        }
        let head = file.hidden_size / heads;
        if family.is_rotary() && head > MOST_ROTATED {
            return Err(unsupported(format!("rotation of heads of {head} numbers: expected at most {MOST_ROTATED}")));
        }
        let first_position = file.first_position(family);
        let modern = (family == EncoderFamily::ModernBert).then(|| ModernConfig::read(&path)).transpose()?;
        // A stated length beyond the position table would read past its end.
        let most = match (&rotary, &modern) {
            (Some(rotary), _) => rotary.most.min(MAX_POSITIONS),
            (None, Some(_)) => file.max_position_embeddings.min(MAX_POSITIONS),
            (None, None) => file.max_position_embeddings - first_position,
        };
        let length = TextLength::read(dir, most, default_pieces)?;
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
            max_pieces: length.max_pieces,
            lower_case: length.lower_case,
            modern,
            rotary,
        })
    }

    /// Settings of a decoder that is used as an encoder.
    fn of_decoder(family: EncoderFamily, dir: &Path, default_pieces: usize) -> Result<Self, ModelError> {
        let weights = Weights::open_body(dir)?;
        let DecoderConfig { hidden, layers, heads, ffn, vocab, context, rms_eps, .. } = *weights.config();
        let length = TextLength::read(dir, context.min(MOST_PIECES), default_pieces)?;
        Ok(Self {
            family,
            hidden,
            layers,
            heads,
            ffn,
            vocab,
            positions: context,
            first_position: 0,
            types: 0,
            buckets: 0,
            norm_eps: rms_eps,
            max_pieces: length.max_pieces,
            lower_case: length.lower_case,
            modern: None,
            rotary: None,
        })
    }

    /// Numbers per piece inside the feed-forward network: the values, and as many gates in families that have gates.
    pub(super) fn inner(&self) -> usize {
        if self.modern.is_some() || self.rotary.is_some() { 2 * self.ffn } else { self.ffn }
    }

    pub(super) fn head(&self) -> usize {
        self.hidden / self.heads
    }
}
