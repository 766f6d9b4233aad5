//! Encoder of the BERT kind over a ragged batch: sequences follow one another without padding.

use std::sync::OnceLock;

use super::attention::{AttentionShape, attend};
use super::config::EncoderConfig;
use super::family::EncoderFamily;
use super::pieces::PieceSequence;
use super::relative_bias::RelativeBias;
use super::tensors::EncoderTensors;
use crate::ModelError;
use crate::kernel::{
    ByteFinish, ByteLinear, ByteSupport, Packed, Team, add, add_bias, gelu, layer_norm, matmul_add, matmul_map,
};

/// Minimum number of rows per thread for row-wise functions.
const ROW_GRAIN: usize = 16;

#[derive(Debug)]
pub(super) struct Bert {
    config: EncoderConfig,
    words: Vec<f32>,
    /// Position embeddings from the first piece on, plus the embedding of segment 0.
    positions: Vec<f32>,
    /// Embedding of each segment from segment 0 on, minus the embedding of segment 0. Empty if the family has no segments.
    segments: Vec<f32>,
    /// Relative positions. `None` if the family has none.
    bias: Option<RelativeBias>,
    norm: Norm,
    layers: Vec<EncoderLayer>,
}

#[derive(Debug)]
struct EncoderLayer {
    /// Query, key and value projections, stacked.
    qkv: Linear,
    attended: Linear,
    attended_norm: Norm,
    up: Linear,
    down: Linear,
    norm: Norm,
}

#[derive(Debug)]
struct Linear {
    weight: Packed,
    bias: Vec<f32>,
    /// The same map in bytes, converted on first use.
    bytes: OnceLock<ByteLinear>,
}

/// Layer normalization.
#[derive(Debug)]
pub(super) struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

/// Activations of one pass, reused by the next.
#[derive(Debug, Default)]
pub(super) struct EncoderBuffers {
    /// Shape (pieces, hidden).
    pub(super) hidden: Vec<f32>,
    /// Shape (pieces, 3 · hidden).
    pub(super) qkv: Vec<f32>,
    /// Shape (pieces, hidden).
    pub(super) attended: Vec<f32>,
    /// Shape (pieces, ffn), or (pieces, 2 · ffn) with gates.
    pub(super) inner: Vec<f32>,
    /// Shape (pieces, hidden), in families that normalize before a block. Empty in others.
    pub(super) normed: Vec<f32>,
}

impl EncoderBuffers {
    /// Output of the last layer in the last pass, shape (pieces, hidden).
    pub(super) fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Makes room for a pass of `pieces` pieces.
    pub(super) fn resize(&mut self, pieces: usize, width: usize, inner: usize) {
        self.hidden.resize(pieces * width, 0.0);
        self.qkv.resize(pieces * width * 3, 0.0);
        self.attended.resize(pieces * width, 0.0);
        self.inner.resize(pieces * inner, 0.0);
    }
}

impl Bert {
    pub(super) fn load(config: &EncoderConfig, source: &EncoderTensors<'_>) -> Result<Self, ModelError> {
        let hidden = config.hidden;
        let words = source.floats("embeddings.word_embeddings.weight", &[config.vocab, hidden])?;
        let mut positions = source.floats("embeddings.position_embeddings.weight", &[config.positions, hidden])?;
        positions.drain(..config.first_position * hidden);
        let mut segments = Vec::new();
        if config.family.has_types() {
            segments = source.floats("embeddings.token_type_embeddings.weight", &[config.types, hidden])?;
            let first = segments[..hidden].to_vec();
            // Sentence encoders see one segment only, whose embedding is then a constant of each position.
            add_bias(&mut positions, &first);
            for segment in segments.chunks_exact_mut(hidden) {
                segment.iter_mut().zip(&first).for_each(|(x, first)| *x -= first);
            }
        }
        Ok(Self {
            config: config.clone(),
            words,
            positions,
            segments,
            bias: relative_bias(source, config)?,
            norm: Norm::load(source, "embeddings.LayerNorm", config)?,
            layers: (0..config.layers)
                .map(|index| EncoderLayer::load(source, index, config))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Runs the encoder and leaves the result in [`EncoderBuffers::hidden`], row by row. All IDs must lie within
    /// the vocabulary and all segments within their table, and no sequence may be longer than the position table.
    /// With `bytes`, linear maps round weights and activations to bytes.
    pub(super) fn forward(
        &self,
        team: &Team,
        bytes: Option<ByteSupport>,
        sequences: &[PieceSequence],
        buffers: &mut EncoderBuffers,
    ) {
        let pieces = sequences.iter().map(PieceSequence::len).sum::<usize>();
        buffers.resize(pieces, self.config.hidden, self.config.ffn);
        self.look_up(team, sequences, &mut buffers.hidden);
        for layer in &self.layers {
            layer.forward(team, bytes, self, sequences, buffers);
        }
    }

    fn look_up(&self, team: &Team, sequences: &[PieceSequence], hidden: &mut [f32]) {
        let width = self.config.hidden;
        let pieces = sequences.iter().flat_map(|sequence| sequence.pieces().enumerate());
        for (out, (position, (id, segment))) in hidden.chunks_exact_mut(width).zip(pieces) {
            out.copy_from_slice(&self.words[id as usize * width..][..width]);
            add(out, &self.positions[position * width..][..width]);
            if segment > 0 {
                add(out, &self.segments[segment as usize * width..][..width]);
            }
        }
        self.norm.apply(team, None, hidden);
    }
}

impl EncoderLayer {
    fn load(source: &EncoderTensors<'_>, index: usize, config: &EncoderConfig) -> Result<Self, ModelError> {
        let names = config.family.layer(index);
        let hidden = config.hidden;
        let ffn = config.ffn;
        Ok(EncoderLayer {
            qkv: Linear::load(source, &names.projections, hidden, hidden)?,
            attended: Linear::load(source, &[names.attended], hidden, hidden)?,
            attended_norm: Norm::load(source, &names.attended_norm, config)?,
            up: Linear::load(source, &[names.up], ffn, hidden)?,
            down: Linear::load(source, &[names.down], hidden, ffn)?,
            norm: Norm::load(source, &names.norm, config)?,
        })
    }

    fn forward(
        &self,
        team: &Team,
        bytes: Option<ByteSupport>,
        encoder: &Bert,
        sequences: &[PieceSequence],
        buffers: &mut EncoderBuffers,
    ) {
        let config = &encoder.config;
        let EncoderBuffers { hidden, qkv, attended, inner, .. } = buffers;
        self.qkv.set(team, bytes, hidden, qkv);
        let shape =
            AttentionShape { heads: config.heads, head: config.head(), bias: encoder.bias.as_ref(), reach: None };
        attend(team, &shape, sequences, qkv, attended);
        self.attended.add(team, bytes, attended, hidden);
        self.attended_norm.apply(team, self.attended.bias_left(bytes), hidden);
        self.up.set_gelu(team, bytes, hidden, inner);
        self.down.add(team, bytes, inner, hidden);
        self.norm.apply(team, self.down.bias_left(bytes), hidden);
    }
}

impl Linear {
    /// Loads linear maps of shape (out, in) each and stacks them.
    fn load(source: &EncoderTensors<'_>, names: &[String], out: usize, inn: usize) -> Result<Self, ModelError> {
        let mut weight = Vec::new();
        let mut bias = Vec::new();
        for name in names {
            weight.extend(source.floats(&format!("{name}.weight"), &[out, inn])?);
            bias.extend(source.floats(&format!("{name}.bias"), &[out])?);
        }
        let weight = Packed::from_f32(&weight, out * names.len(), inn);
        Ok(Linear { weight, bias, bytes: OnceLock::new() })
    }

    fn bytes(&self) -> &ByteLinear {
        self.bytes.get_or_init(|| ByteLinear::of(&self.weight, &self.bias))
    }

    /// Computes `y = x · Wᵀ + bias`.
    fn set(&self, team: &Team, bytes: Option<ByteSupport>, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.weight.inn();
        match bytes {
            Some(support) => self.bytes().apply(support, team, x, rows, y, ByteFinish::Set),
            None => matmul_map(team, x, rows, &self.weight, y, &|first, piece| self.add_bias(first, piece)),
        }
    }

    /// Computes `y = gelu(x · Wᵀ + bias)`.
    fn set_gelu(&self, team: &Team, bytes: Option<ByteSupport>, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.weight.inn();
        match bytes {
            Some(support) => self.bytes().apply(support, team, x, rows, y, ByteFinish::Map(gelu)),
            None => matmul_map(team, x, rows, &self.weight, y, &|first, piece| {
                self.add_bias(first, piece);
                gelu(piece);
            }),
        }
    }

    /// Computes `y += x · Wᵀ`, and adds the bias unless [`bias_left`](Self::bias_left) returns it.
    fn add(&self, team: &Team, bytes: Option<ByteSupport>, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.weight.inn();
        match bytes {
            Some(support) => self.bytes().apply(support, team, x, rows, y, ByteFinish::Add),
            None => matmul_add(team, x, rows, &self.weight, y),
        }
    }

    /// Bias that [`add`](Self::add) leaves to the normalization.
    fn bias_left(&self, bytes: Option<ByteSupport>) -> Option<&[f32]> {
        bytes.is_none().then_some(self.bias.as_slice())
    }

    fn add_bias(&self, first: usize, piece: &mut [f32]) {
        add(piece, &self.bias[first..first + piece.len()]);
    }
}

/// Loads the biases of the family that has relative positions.
fn relative_bias(source: &EncoderTensors<'_>, config: &EncoderConfig) -> Result<Option<RelativeBias>, ModelError> {
    if config.family != EncoderFamily::Mpnet {
        return Ok(None);
    }
    let table = source.floats("encoder.relative_attention_bias.weight", &[config.buckets, config.heads])?;
    Ok(Some(RelativeBias::new(&table, config.buckets, config.heads, config.max_pieces)))
}

impl Norm {
    fn load(source: &EncoderTensors<'_>, name: &str, config: &EncoderConfig) -> Result<Self, ModelError> {
        let part = |part: &str| source.floats(&format!("{name}.{part}"), &[config.hidden]);
        Ok(Norm { weight: part("weight")?, bias: part("bias")?, eps: config.norm_eps })
    }

    /// Loads a normalization that has no bias.
    pub(super) fn without_bias(
        source: &EncoderTensors<'_>,
        name: &str,
        config: &EncoderConfig,
    ) -> Result<Self, ModelError> {
        let weight = source.floats(&format!("{name}.weight"), &[config.hidden])?;
        Ok(Norm { weight, bias: vec![0.0; config.hidden], eps: config.norm_eps })
    }

    /// Adds `bias`, which the preceding matrix multiplication left out, and normalizes.
    pub(super) fn apply(&self, team: &Team, bias: Option<&[f32]>, x: &mut [f32]) {
        team.rows(x, self.weight.len(), ROW_GRAIN, &|_, share| {
            for row in share.chunks_exact_mut(self.weight.len()) {
                if let Some(bias) = bias {
                    add(row, bias);
                }
                layer_norm(row, &self.weight, &self.bias, self.eps);
            }
        });
    }
}
