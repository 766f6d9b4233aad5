//! ModernBERT (Warner et al. 2024): normalization before each block, rotary positions, attention to near pieces in most
//! layers, and a gated feed-forward network. Names and formulas follow `modeling_modernbert.py` of transformers.

use std::path::Path;

use serde::Deserialize;

use super::attention::{AttentionShape, attend};
use super::bert::EncoderBuffers;
use super::config::EncoderConfig;
use super::gate::{ActivatedHalf, Gate, GateActivation};
use super::json_file::parse;
use super::norm::Norm;
use super::output_rows::OutputRows;
use super::pieces::PieceSequence;
use super::rotation::rotate;
use super::tensors::EncoderTensors;
use crate::ModelError;
use crate::decoder::RopeScaling;
use crate::kernel::rope::Rope;
use crate::kernel::{Packed, Team, matmul, matmul_add};

/// GeGLU, with the activated half first.
const GATE: Gate = Gate { activation: GateActivation::Gelu, half: ActivatedHalf::First };

/// Maximum number of positions. It bounds the tables of rotations, because no tensor of the checkpoint does.
pub(super) const MAX_POSITIONS: usize = 1 << 15;

/// Settings that ModernBERT has in addition to those of BERT. The defaults are those of its configuration class.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ModernConfig {
    #[serde(default = "default_every")]
    global_attn_every_n_layers: usize,
    #[serde(default = "default_local")]
    local_attention: usize,
    #[serde(default = "default_global_theta")]
    global_rope_theta: f32,
    #[serde(default = "default_local_theta")]
    local_rope_theta: Option<f32>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    norm_bias: bool,
    /// Rotations as transformers 5 states them.
    rope_parameters: Option<ModernRopes>,
    /// Attention of each layer, as transformers 5 states it.
    layer_types: Option<Vec<String>>,
}

/// Rotations by the kind of layer.
#[derive(Debug, Clone, Deserialize)]
struct ModernRopes {
    full_attention: ModernRope,
    sliding_attention: ModernRope,
}

#[derive(Debug, Clone, Deserialize)]
struct ModernRope {
    rope_type: Option<String>,
    rope_theta: f32,
}

/// Kinds of layers in `layer_types`.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

fn default_every() -> usize {
    3
}

fn default_local() -> usize {
    128
}

fn default_global_theta() -> f32 {
    160_000.0
}

// An `Option`, because a `null` in the file means the base of the global layers.
#[allow(clippy::unnecessary_wraps)]
fn default_local_theta() -> Option<f32> {
    Some(10_000.0)
}

impl ModernConfig {
    /// Reads the settings of a model of `layers` layers from the `config.json` at `path`.
    pub(super) fn read(path: &Path, layers: usize) -> Result<Self, ModelError> {
        let config: ModernConfig = parse(path)?;
        let corrupt = |reason: String| Err(ModelError::Corrupt { path: path.to_owned(), reason });
        let unsupported = |what: &str| Err(ModelError::Unsupported { path: path.to_owned(), what: what.to_owned() });
        if config.attention_bias || config.mlp_bias || config.norm_bias {
            return unsupported("attention_bias, mlp_bias or norm_bias true: expected false");
        }
        if let Some(ropes) = &config.rope_parameters {
            let kinds = [&ropes.full_attention, &ropes.sliding_attention].map(|rope| rope.rope_type.as_deref());
            if let Some(kind) = kinds.into_iter().flatten().find(|kind| *kind != "default") {
                return unsupported(&format!("rope_type {kind:?} in rope_parameters: expected \"default\""));
            }
        }
        if let Some(kind) = config.layer_types.iter().flatten().find(|kind| !LAYER_TYPES.contains(&kind.as_str())) {
            return unsupported(&format!("layer_types with {kind:?}: expected {}", LAYER_TYPES.join(" or ")));
        }
        if let Some(kinds) = config.layer_types.as_ref().filter(|kinds| kinds.len() != layers) {
            return corrupt(format!("layer_types of {} entries for {layers} layers", kinds.len()));
        }
        for (field, theta) in [("global_rope_theta", config.global_theta()), ("local_rope_theta", config.local_theta())]
        {
            if !theta.is_finite() || theta <= 1.0 {
                return corrupt(format!("{field} is {theta}, not above 1"));
            }
        }
        if config.global_attn_every_n_layers == 0 {
            return corrupt("global_attn_every_n_layers is 0, not at least 1".to_owned());
        }
        Ok(config)
    }

    /// Base of the rotations in layers that attend to all pieces.
    fn global_theta(&self) -> f32 {
        self.rope_parameters.as_ref().map_or(self.global_rope_theta, |ropes| ropes.full_attention.rope_theta)
    }

    /// Base of the rotations in layers that attend to near pieces.
    fn local_theta(&self) -> f32 {
        let former = || self.local_rope_theta.unwrap_or(self.global_rope_theta);
        self.rope_parameters.as_ref().map_or_else(former, |ropes| ropes.sliding_attention.rope_theta)
    }

    /// Returns `true` if the pieces of layer `index` attend to near ones only.
    fn is_local(&self, index: usize) -> bool {
        let former = || !index.is_multiple_of(self.global_attn_every_n_layers);
        self.layer_types
            .as_ref()
            .map_or_else(former, |kinds| kinds.get(index).is_some_and(|kind| kind == LAYER_TYPES[1]))
    }
}

#[derive(Debug)]
pub(super) struct ModernBert {
    config: EncoderConfig,
    words: Vec<f32>,
    norm: Norm,
    layers: Vec<ModernLayer>,
    final_norm: Norm,
    global: Rope,
    local: Rope,
    /// Largest distance between a query and its keys in a local layer.
    reach: usize,
}

#[derive(Debug)]
struct ModernLayer {
    /// `None` in the first layer, whose input was just normalized.
    attention_norm: Option<Norm>,
    /// Query, key and value projections, stacked.
    qkv: Packed,
    attended: Packed,
    norm: Norm,
    /// Values and gates of the feed-forward network, stacked.
    up: Packed,
    down: Packed,
    /// If `true`, pieces attend to near ones only.
    is_local: bool,
}

impl ModernBert {
    pub(super) fn load(
        config: &EncoderConfig,
        modern: &ModernConfig,
        source: &EncoderTensors<'_>,
    ) -> Result<Self, ModelError> {
        let hidden = config.hidden;
        let layer = |index| ModernLayer::load(source, index, config, modern);
        let rope = |theta| {
            let mut rope = Rope::new(config.head(), theta, &RopeScaling::None);
            rope.reserve(config.max_pieces);
            rope
        };
        Ok(ModernBert {
            words: source.floats("embeddings.tok_embeddings.weight", &[config.vocab, hidden])?,
            norm: Norm::without_bias(source, "embeddings.norm", config)?,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            final_norm: Norm::without_bias(source, "final_norm", config)?,
            global: rope(modern.global_theta()),
            local: rope(modern.local_theta()),
            reach: modern.local_attention / 2,
            config: config.clone(),
        })
    }

    /// Runs the encoder, as [`Bert::forward`](super::bert::Bert::forward) does.
    pub(super) fn forward(
        &self,
        team: &Team,
        sequences: &[PieceSequence],
        rows: OutputRows,
        buffers: &mut EncoderBuffers,
    ) {
        let width = self.config.hidden;
        let pieces = sequences.iter().map(PieceSequence::len).sum::<usize>();
        buffers.resize(pieces, &self.config);
        buffers.normed.resize(pieces * width, 0.0);
        let ids = sequences.iter().flat_map(PieceSequence::pieces);
        for (out, (id, _)) in buffers.hidden.chunks_exact_mut(width).zip(ids) {
            out.copy_from_slice(&self.words[id as usize * width..][..width]);
        }
        self.norm.apply(team, None, &mut buffers.hidden);
        match self.layers.split_last() {
            Some((last, layers)) => {
                for layer in layers {
                    layer.forward(team, self, sequences, OutputRows::All, buffers);
                }
                last.forward(team, self, sequences, rows, buffers);
            }
            None => rows.keep(sequences, &mut buffers.hidden, width),
        }
        self.final_norm.apply(team, None, &mut buffers.hidden[..rows.total(sequences) * width]);
    }
}

impl ModernLayer {
    fn load(
        source: &EncoderTensors<'_>,
        index: usize,
        config: &EncoderConfig,
        modern: &ModernConfig,
    ) -> Result<Self, ModelError> {
        let hidden = config.hidden;
        let names = config.family.layer(index);
        let matrix = |name: &str, out: usize, inn: usize| {
            let weight = source.floats(&format!("{name}.weight"), &[out, inn])?;
            Ok::<Packed, ModelError>(Packed::from_f32(&weight, out, inn))
        };
        let norm = |name: &str| Norm::without_bias(source, name, config);
        Ok(ModernLayer {
            attention_norm: (index > 0).then(|| norm(&names.attended_norm)).transpose()?,
            qkv: matrix(&names.projections.concat(), 3 * hidden, hidden)?,
            attended: matrix(&names.attended, hidden, hidden)?,
            norm: norm(&names.norm)?,
            up: matrix(&names.up.concat(), 2 * config.ffn, hidden)?,
            down: matrix(&names.down, hidden, config.ffn)?,
            is_local: modern.is_local(index),
        })
    }

    /// Runs the layer, which reads all pieces, and leaves the given rows at the front of [`EncoderBuffers::hidden`].
    fn forward(
        &self,
        team: &Team,
        encoder: &ModernBert,
        sequences: &[PieceSequence],
        rows: OutputRows,
        buffers: &mut EncoderBuffers,
    ) {
        let config = &encoder.config;
        let EncoderBuffers { hidden, qkv, attended, inner, activated, normed } = buffers;
        let pieces = hidden.len() / config.hidden;
        normed.copy_from_slice(hidden);
        if let Some(norm) = &self.attention_norm {
            norm.apply(team, None, normed);
        }
        matmul(team, normed, pieces, &self.qkv, qkv);
        let rope = if self.is_local { &encoder.local } else { &encoder.global };
        rotate(team, rope, config, sequences, qkv);
        let reach = self.is_local.then_some(encoder.reach);
        let shape = AttentionShape { heads: config.heads, head: config.head(), bias: None, reach, rows };
        // Everything after the projections concerns the output rows alone.
        let count = rows.total(sequences);
        rows.keep(sequences, hidden, config.hidden);
        let hidden = &mut hidden[..count * config.hidden];
        let attended = &mut attended[..count * config.hidden];
        let inner = &mut inner[..count * config.inner()];
        let activated = &mut activated[..count * config.ffn];
        let normed = &mut normed[..count * config.hidden];
        attend(team, &shape, sequences, qkv, attended);
        matmul_add(team, attended, count, &self.attended, hidden);
        normed.copy_from_slice(hidden);
        self.norm.apply(team, None, normed);
        matmul(team, normed, count, &self.up, inner);
        GATE.apply(team, inner, config.ffn, activated);
        matmul_add(team, activated, count, &self.down, hidden);
    }
}
