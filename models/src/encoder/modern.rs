//! ModernBERT (Warner et al. 2024): normalization before each block, rotary positions, attention to near pieces in most
//! layers, and a gated feed-forward network. Names and formulas follow `modeling_modernbert.py` of transformers.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::attention::{AttentionShape, attend};
use super::bert::{EncoderBuffers, Norm};
use super::config::EncoderConfig;
use super::json_file::parse;
use super::pieces::PieceSequence;
use super::tensors::EncoderTensors;
use crate::ModelError;
use crate::decoder::RopeScaling;
use crate::kernel::rope::Rope;
use crate::kernel::{Packed, Team, gelu, matmul, matmul_add};

/// Minimum number of rows per thread for row-wise functions.
const ROW_GRAIN: usize = 16;

/// Maximum number of positions, which bounds the tables of rotations: no tensor of the checkpoint does.
pub(super) const MAX_POSITIONS: usize = 1 << 15;

/// Settings that ModernBERT has beside those of BERT. The defaults are those of its configuration class.
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
    rope_parameters: Option<Value>,
    layer_types: Option<Value>,
}

fn default_every() -> usize {
    3
}

fn default_local() -> usize {
    128
}

fn default_global_theta() -> f32 {
    160_000.0
}

// The field is `null` where the rotations are those of the global layers.
#[allow(clippy::unnecessary_wraps)]
fn default_local_theta() -> Option<f32> {
    Some(10_000.0)
}

impl ModernConfig {
    /// Reads the settings from the `config.json` at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, ModelError> {
        let config: ModernConfig = parse(path)?;
        let unsupported = |what: &str| Err(ModelError::Unsupported { path: path.to_owned(), what: what.to_owned() });
        if config.attention_bias || config.mlp_bias || config.norm_bias {
            return unsupported("attention_bias, mlp_bias or norm_bias true: expected false");
        }
        if config.rope_parameters.is_some() || config.layer_types.is_some() {
            let what = "rope_parameters and layer_types: expected global_rope_theta, local_rope_theta and \
                        global_attn_every_n_layers, as transformers 4 writes them";
            return unsupported(what);
        }
        let theta = config.local_rope_theta.unwrap_or(config.global_rope_theta);
        for (field, theta) in [("global_rope_theta", config.global_rope_theta), ("local_rope_theta", theta)] {
            if !theta.is_finite() || theta <= 1.0 {
                let reason = format!("{field} is {theta}, not above 1");
                return Err(ModelError::Corrupt { path: path.to_owned(), reason });
            }
        }
        if config.global_attn_every_n_layers == 0 {
            let reason = "global_attn_every_n_layers is 0, not at least 1".to_owned();
            return Err(ModelError::Corrupt { path: path.to_owned(), reason });
        }
        Ok(config)
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
    /// Farthest piece that a local layer attends to, on either side.
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
            global: rope(modern.global_rope_theta),
            local: rope(modern.local_rope_theta.unwrap_or(modern.global_rope_theta)),
            reach: modern.local_attention / 2,
            config: config.clone(),
        })
    }

    /// Runs the encoder, as [`Bert::forward`](super::bert::Bert::forward) does.
    pub(super) fn forward(&self, team: &Team, sequences: &[PieceSequence], buffers: &mut EncoderBuffers) {
        let width = self.config.hidden;
        let pieces = sequences.iter().map(PieceSequence::len).sum::<usize>();
        buffers.resize(pieces, width, 2 * self.config.ffn);
        buffers.normed.resize(pieces * width, 0.0);
        let ids = sequences.iter().flat_map(PieceSequence::pieces);
        for (out, (id, _)) in buffers.hidden.chunks_exact_mut(width).zip(ids) {
            out.copy_from_slice(&self.words[id as usize * width..][..width]);
        }
        self.norm.apply(team, None, &mut buffers.hidden);
        for layer in &self.layers {
            layer.forward(team, self, sequences, buffers);
        }
        self.final_norm.apply(team, None, &mut buffers.hidden);
    }

    /// Rotates queries and keys to their positions.
    fn rotate(&self, team: &Team, rope: &Rope, sequences: &[PieceSequence], qkv: &mut [f32]) {
        let width = self.config.hidden;
        let head = self.config.head();
        let positions: Vec<usize> = sequences.iter().flat_map(|sequence| 0..sequence.len()).collect();
        team.rows(qkv, 3 * width, ROW_GRAIN, &|first, share| {
            for (row, &position) in share.chunks_exact_mut(3 * width).zip(&positions[first..]) {
                row[..2 * width].chunks_exact_mut(head).for_each(|head| rope.rotate(head, position));
            }
        });
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
            up: matrix(&names.up, 2 * config.ffn, hidden)?,
            down: matrix(&names.down, hidden, config.ffn)?,
            is_local: !index.is_multiple_of(modern.global_attn_every_n_layers),
        })
    }

    fn forward(&self, team: &Team, encoder: &ModernBert, sequences: &[PieceSequence], buffers: &mut EncoderBuffers) {
        let config = &encoder.config;
        let EncoderBuffers { hidden, qkv, attended, inner, normed } = buffers;
        let rows = hidden.len() / config.hidden;
        normed.copy_from_slice(hidden);
        if let Some(norm) = &self.attention_norm {
            norm.apply(team, None, normed);
        }
        matmul(team, normed, rows, &self.qkv, qkv);
        let rope = if self.is_local { &encoder.local } else { &encoder.global };
        encoder.rotate(team, rope, sequences, qkv);
        let reach = self.is_local.then_some(encoder.reach);
        let shape = AttentionShape { heads: config.heads, head: config.head(), bias: None, reach };
        attend(team, &shape, sequences, qkv, attended);
        matmul_add(team, attended, rows, &self.attended, hidden);
        normed.copy_from_slice(hidden);
        self.norm.apply(team, None, normed);
        matmul(team, normed, rows, &self.up, inner);
        let gated = gated(team, inner, config.ffn);
        matmul_add(team, &gated, rows, &self.down, hidden);
    }
}

/// Computes GELU of the first half of each row, times the second half (GeGLU).
fn gated(team: &Team, inner: &mut [f32], ffn: usize) -> Vec<f32> {
    team.rows(inner, 2 * ffn, ROW_GRAIN, &|_, share| {
        for row in share.chunks_exact_mut(2 * ffn) {
            let (values, gates) = row.split_at_mut(ffn);
            gelu(values);
            values.iter_mut().zip(gates).for_each(|(value, gate)| *value *= *gate);
        }
    });
    inner.chunks_exact(2 * ffn).flat_map(|row| &row[..ffn]).copied().collect()
}
