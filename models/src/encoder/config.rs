//! Settings of an encoder, from `config.json` and the files that state the length of texts.

use std::path::Path;

use super::config_file::EncoderFile;
use super::family::EncoderFamily;
use super::model_kind::CONFIG;
use super::modern::{MAX_POSITIONS, ModernConfig};
use super::rotary::RotaryConfig;
use super::shape::BodyShape;
use super::text_length::TextLength;
use crate::ModelError;
use crate::kernel::panel::PANEL;

/// Maximum width of a rotated head. It bounds the tables of rotations, because no tensor of the checkpoint does.
const MAX_ROTATED_HEAD: usize = 1024;

/// Settings of an encoder.
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
    /// Number of buckets of relative positions (MPNet).
    pub(super) buckets: usize,
    pub(crate) norm_eps: f32,
    pub(crate) max_pieces: usize,
    /// If `true`, texts are lower-cased before they are split.
    pub(super) lower_case: bool,
    /// Further settings of ModernBERT. `None` in other families.
    pub(super) modern: Option<ModernConfig>,
    /// Rotary positions and gates of NomicBERT and GTE's architecture. `None` in other families.
    pub(super) rotary: Option<RotaryConfig>,
}

impl EncoderConfig {
    /// Reads the settings of the model in `dir`. Texts have at most `default_pieces` pieces where no file states a
    /// limit.
    pub(crate) fn read(family: EncoderFamily, dir: &Path, default_pieces: usize) -> Result<Self, ModelError> {
        let path = dir.join(CONFIG);
        let unsupported = |what: String| ModelError::Unsupported { path: path.clone(), what };
        let file = EncoderFile::read(&path)?;
        let rotary = RotaryConfig::read(family, &path)?;
        match file.hidden_act.as_deref() {
            // `RotaryConfig::read` has checked the activation.
            _ if rotary.is_some() => {}
            Some("gelu") => {}
            Some(act) => return Err(unsupported(format!("hidden_act {act:?}: expected \"gelu\""))),
            None => {
                let reason = "no hidden_act: expected \"gelu\"".to_owned();
                return Err(ModelError::Corrupt { path: path.clone(), reason });
            }
        }
        // Relative positions as BERT may have them (Shaw et al. 2018) are not computed. MPNet has relative positions of
        // another kind.
        let positions = file.position_embedding_type.as_deref().filter(|_| rotary.is_none());
        if let Some(other) = positions.filter(|kind| *kind != "absolute") {
            return Err(unsupported(format!("position_embedding_type {other:?}: expected \"absolute\"")));
        }
        file.check_sizes(family, &path)?;
        let heads = file.num_attention_heads;
        // The attention kernel works on whole panels of a head's dimensions.
        if !heads.checked_mul(PANEL).is_some_and(|panels| file.hidden_size.is_multiple_of(panels)) {
            let size = file.hidden_size;
            return Err(unsupported(format!("{heads} heads for hidden_size {size}: width not a multiple of {PANEL}")));
        }
        let head = file.hidden_size / heads;
        if family.is_rotary() && head > MAX_ROTATED_HEAD {
            return Err(unsupported(format!(
                "rotation of heads of {head} numbers: expected at most {MAX_ROTATED_HEAD}"
            )));
        }
        let first_position = file.first_position(family);
        let modern = (family == EncoderFamily::ModernBert).then(|| ModernConfig::read(&path, file.num_hidden_layers));
        let modern = modern.transpose()?;
        // A stated length beyond the position table would read past its end.
        let most = match (&rotary, &modern) {
            (Some(rotary), _) => rotary.max_positions.min(MAX_POSITIONS),
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

    /// Shape that encoders and decoders have in common.
    pub(crate) fn shape(&self) -> BodyShape {
        BodyShape {
            family: self.family.name(),
            layers: self.layers,
            hidden: self.hidden,
            vocab: self.vocab,
            segments: if self.family.tells_segments() { self.types } else { 1 },
            max_pieces: self.max_pieces,
            lower_case: self.lower_case,
        }
    }

    /// Returns `true` if the feed-forward network has gates.
    pub(super) fn is_gated(&self) -> bool {
        self.modern.is_some() || self.rotary.is_some()
    }

    /// Numbers per piece inside the feed-forward network: the values, and as many gates in families that have gates.
    pub(super) fn inner(&self) -> usize {
        if self.is_gated() { 2 * self.ffn } else { self.ffn }
    }

    pub(super) fn head(&self) -> usize {
        self.hidden / self.heads
    }
}
