//! Encoder of the BERT kind over a ragged batch: sequences follow one another without padding.

use safetensors::SafeTensors;

use super::attention::{AttentionShape, attend};
use super::config::Config;
use super::family::EncoderFamily;
use super::relative_bias::RelativeBias;
use crate::ModelError;
use crate::kernel::{Packed, Team, add, add_bias, gelu, layer_norm, matmul_add, matmul_map};
use crate::weights::{Map, decode};

/// Minimum number of rows per thread for row-wise functions.
const ROW_GRAIN: usize = 16;

#[derive(Debug)]
pub(super) struct Bert {
    config: Config,
    words: Vec<f32>,
    /// Position embeddings from the first piece on, plus the embedding of segment 0, which all pieces share.
    positions: Vec<f32>,
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
}

#[derive(Debug)]
struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f32,
}

/// Activations of one pass, reused by the next.
#[derive(Debug, Default)]
pub(super) struct EncoderBuffers {
    /// Shape (pieces, hidden).
    hidden: Vec<f32>,
    /// Shape (pieces, 3 · hidden).
    qkv: Vec<f32>,
    /// Shape (pieces, hidden).
    attended: Vec<f32>,
    /// Shape (pieces, ffn).
    inner: Vec<f32>,
}

impl EncoderBuffers {
    /// Output of the last layer in the last pass, shape (pieces, hidden).
    pub(super) fn hidden(&self) -> &[f32] {
        &self.hidden
    }
}

impl Bert {
    pub(super) fn load(config: &Config, file: &Map) -> Result<Self, ModelError> {
        let tensors = SafeTensors::deserialize(file.bytes()).map_err(|error| file.corrupt(error.to_string()))?;
        let source = Tensors { tensors, family: config.family, eps: config.norm_eps };
        let hidden = config.hidden;
        let embeddings = "embeddings";
        let words = source.floats(&format!("{embeddings}.word_embeddings.weight"), &[config.vocab, hidden])?;
        let mut positions =
            source.floats(&format!("{embeddings}.position_embeddings.weight"), &[config.positions, hidden])?;
        positions.drain(..config.first_position * hidden);
        if config.family.has_types() {
            let types =
                source.floats(&format!("{embeddings}.token_type_embeddings.weight"), &[config.types, hidden])?;
            // Sentence encoders see one segment only, so that its type embedding is a constant of each position.
            add_bias(&mut positions, &types[..hidden]);
        }
        Ok(Self {
            config: config.clone(),
            words,
            positions,
            bias: source.relative_bias(config)?,
            norm: source.norm(&format!("{embeddings}.LayerNorm"), hidden)?,
            layers: (0..config.layers).map(|index| source.layer(index, config)).collect::<Result<_, _>>()?,
        })
    }

    /// Runs the encoder and leaves the result in [`EncoderBuffers::hidden`], row by row. All IDs must lie within
    /// the vocabulary, and no sequence may be longer than the position table.
    pub(super) fn forward(&self, team: &Team, sequences: &[Vec<u32>], buffers: &mut EncoderBuffers) {
        let pieces = sequences.iter().map(Vec::len).sum::<usize>();
        let width = self.config.hidden;
        buffers.hidden.resize(pieces * width, 0.0);
        buffers.qkv.resize(pieces * width * 3, 0.0);
        buffers.attended.resize(pieces * width, 0.0);
        buffers.inner.resize(pieces * self.config.ffn, 0.0);
        self.look_up(team, sequences, &mut buffers.hidden);
        for layer in &self.layers {
            layer.forward(team, self, sequences, buffers);
        }
    }

    fn look_up(&self, team: &Team, sequences: &[Vec<u32>], hidden: &mut [f32]) {
        let width = self.config.hidden;
        let ids = sequences.iter().flat_map(|sequence| sequence.iter().enumerate());
        for (out, (position, &id)) in hidden.chunks_exact_mut(width).zip(ids) {
            out.copy_from_slice(&self.words[id as usize * width..][..width]);
            add(out, &self.positions[position * width..][..width]);
        }
        self.norm.apply(team, None, hidden);
    }
}

impl EncoderLayer {
    fn forward(&self, team: &Team, encoder: &Bert, sequences: &[Vec<u32>], buffers: &mut EncoderBuffers) {
        let config = &encoder.config;
        let EncoderBuffers { hidden, qkv, attended, inner } = buffers;
        let rows = hidden.len() / config.hidden;
        let biased = |bias: &[f32], first: usize, piece: &mut [f32]| add(piece, &bias[first..first + piece.len()]);
        matmul_map(team, hidden, rows, &self.qkv.weight, qkv, &|first, piece| biased(&self.qkv.bias, first, piece));
        let shape = AttentionShape { heads: config.heads, head: config.head(), bias: encoder.bias.as_ref() };
        attend(team, &shape, sequences, qkv, attended);
        matmul_add(team, attended, rows, &self.attended.weight, hidden);
        self.attended_norm.apply(team, Some(&self.attended.bias), hidden);
        matmul_map(team, hidden, rows, &self.up.weight, inner, &|first, piece| {
            biased(&self.up.bias, first, piece);
            gelu(piece);
        });
        matmul_add(team, inner, rows, &self.down.weight, hidden);
        self.norm.apply(team, Some(&self.down.bias), hidden);
    }
}

impl Norm {
    /// Adds `bias`, which the preceding matrix multiplication left out, and normalizes.
    fn apply(&self, team: &Team, bias: Option<&[f32]>, x: &mut [f32]) {
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

/// Tensors of a file, read by name and expected shape.
struct Tensors<'a> {
    tensors: SafeTensors<'a>,
    family: EncoderFamily,
    eps: f32,
}

impl Tensors<'_> {
    fn layer(&self, index: usize, config: &Config) -> Result<EncoderLayer, ModelError> {
        let names = self.family.layer(index);
        let hidden = config.hidden;
        let ffn = config.ffn;
        Ok(EncoderLayer {
            qkv: self.linear(&names.projections, hidden, hidden)?,
            attended: self.linear(&[names.attended], hidden, hidden)?,
            attended_norm: self.norm(&names.attended_norm, hidden)?,
            up: self.linear(&[names.up], ffn, hidden)?,
            down: self.linear(&[names.down], hidden, ffn)?,
            norm: self.norm(&names.norm, hidden)?,
        })
    }

    fn relative_bias(&self, config: &Config) -> Result<Option<RelativeBias>, ModelError> {
        if config.family != EncoderFamily::Mpnet {
            return Ok(None);
        }
        let table = self.floats("encoder.relative_attention_bias.weight", &[config.buckets, config.heads])?;
        Ok(Some(RelativeBias::new(&table, config.buckets, config.heads, config.max_pieces)))
    }

    /// Loads linear maps of shape (out, in) each and stacks them.
    fn linear(&self, names: &[String], out: usize, inn: usize) -> Result<Linear, ModelError> {
        let mut weight = Vec::new();
        let mut bias = Vec::new();
        for name in names {
            weight.extend(self.floats(&format!("{name}.weight"), &[out, inn])?);
            bias.extend(self.floats(&format!("{name}.bias"), &[out])?);
        }
        Ok(Linear { weight: Packed::from_f32(&weight, out * names.len(), inn), bias })
    }

    fn norm(&self, name: &str, width: usize) -> Result<Norm, ModelError> {
        let part = |part: &str| self.floats(&format!("{name}.{part}"), &[width]);
        Ok(Norm { weight: part("weight")?, bias: part("bias")?, eps: self.eps })
    }

    fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let fail = |reason: String| ModelError::Tensor { name: name.to_owned(), reason };
        // Checkpoints saved with a task head store the encoder under its name.
        let prefixed = || self.tensors.tensor(&format!("{}.{name}", self.family.name()));
        let tensor = self.tensors.tensor(name).or_else(|_| prefixed());
        let tensor = tensor.map_err(|error| fail(error.to_string()))?;
        if tensor.shape() != shape {
            return Err(fail(format!("shape {:?}, expected {shape:?}", tensor.shape())));
        }
        decode(tensor.dtype(), tensor.data()).ok_or_else(|| fail(format!("unsupported type {:?}", tensor.dtype())))
    }
}
