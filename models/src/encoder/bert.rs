//! Encoder of the BERT kind over a ragged batch: sequences follow one another without padding.

use super::attention::{AttentionShape, attend};
use super::config::EncoderConfig;
use super::family::EncoderFamily;
use super::gate::Gate;
use super::linear::Linear;
use super::norm::Norm;
use super::output_rows::OutputRows;
use super::pieces::PieceSequence;
use super::relative_bias::RelativeBias;
use super::rotary::RotaryConfig;
use super::rotation::rotate;
use super::tensors::EncoderTensors;
use crate::ModelError;
use crate::kernel::rope::Rope;
use crate::kernel::{ByteLinear, ByteSupport, Team, add, add_bias};

#[derive(Debug)]
pub(super) struct Bert {
    config: EncoderConfig,
    /// Word embeddings, plus the embedding of segment 0 if there are no position embeddings.
    words: Vec<f32>,
    /// Position embeddings from the first piece on, plus the embedding of segment 0. Empty in families with rotary
    /// positions.
    positions: Vec<f32>,
    /// Embedding of each segment from segment 0 on, minus the embedding of segment 0. Empty if the family has no
    /// segments.
    segments: Vec<f32>,
    /// Relative positions. `None` if the family has none.
    bias: Option<RelativeBias>,
    /// Rotary positions. `None` if the family has none.
    rope: Option<Rope>,
    norm: Norm,
    layers: Vec<EncoderLayer>,
}

#[derive(Debug)]
struct EncoderLayer {
    /// Query, key and value projections, stacked.
    qkv: Linear,
    attended: Linear,
    attended_norm: Norm,
    /// Values of the feed-forward network, followed by their gates if the family has gates.
    up: Linear,
    /// Activation with gates. `None` stands for GELU without them.
    gate: Option<Gate>,
    down: Linear,
    norm: Norm,
}

/// Activations of one pass, reused by the next.
#[derive(Debug, Default)]
pub(super) struct EncoderBuffers {
    /// Input of the next layer, shape (pieces, hidden). After the last layer, the output at the front.
    pub(super) hidden: Vec<f32>,
    /// Shape (pieces, 3 · hidden).
    pub(super) qkv: Vec<f32>,
    /// Shape (pieces, hidden).
    pub(super) attended: Vec<f32>,
    /// Shape (pieces, ffn), or (pieces, 2 · ffn) with gates.
    pub(super) inner: Vec<f32>,
    /// Shape (pieces, ffn), in families with gates. Empty in others.
    pub(super) activated: Vec<f32>,
    /// Shape (pieces, hidden), in families that normalize before a block. Empty in others.
    pub(super) normed: Vec<f32>,
}

impl EncoderBuffers {
    /// Makes room for a pass of `pieces` pieces.
    pub(super) fn resize(&mut self, pieces: usize, config: &EncoderConfig) {
        self.hidden.resize(pieces * config.hidden, 0.0);
        self.qkv.resize(pieces * config.hidden * 3, 0.0);
        self.attended.resize(pieces * config.hidden, 0.0);
        self.inner.resize(pieces * config.inner(), 0.0);
        if config.is_gated() {
            self.activated.resize(pieces * config.ffn, 0.0);
        }
    }
}

impl Bert {
    pub(super) fn load(config: &EncoderConfig, source: &EncoderTensors<'_>) -> Result<Self, ModelError> {
        let hidden = config.hidden;
        let mut words = source.floats("embeddings.word_embeddings.weight", &[config.vocab, hidden])?;
        let mut positions = positions(source, config)?;
        let mut segments = Vec::new();
        if config.types > 0 {
            segments = source.floats("embeddings.token_type_embeddings.weight", &[config.types, hidden])?;
            let first = segments[..hidden].to_vec();
            // Sentence encoders use segment 0 only. Its embedding is added once here: to the positions, or to the words
            // if there are no position embeddings.
            add_bias(if positions.is_empty() { &mut words } else { &mut positions }, &first);
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
            rope: config.rotary.as_ref().map(|rotary| rotary.rope(config.head(), config.max_pieces)),
            norm: Norm::load(source, config.family.embedding_norm(), config)?,
            layers: (0..config.layers)
                .map(|index| EncoderLayer::load(source, index, config))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Converts the linear maps to bytes, unless this has been done, and returns `true`. Returns `false` if a map has
    /// too many inputs.
    pub(super) fn prepare_bytes(&self) -> bool {
        let fits = self.config.hidden.max(self.config.ffn) <= ByteLinear::MOST_INPUTS;
        if fits {
            self.layers.iter().for_each(EncoderLayer::prepare_bytes);
        }
        fits
    }

    /// Runs the encoder and leaves the wanted rows at the front of [`EncoderBuffers::hidden`]. All IDs must lie within
    /// the vocabulary and all segments within their table, and no sequence may be longer than the position table.
    /// With `bytes`, linear maps round weights and activations to bytes, which [`prepare_bytes`](Self::prepare_bytes)
    /// must have allowed.
    pub(super) fn forward(
        &self,
        team: &Team,
        bytes: Option<ByteSupport>,
        sequences: &[PieceSequence],
        rows: OutputRows,
        buffers: &mut EncoderBuffers,
    ) {
        let pieces = sequences.iter().map(PieceSequence::len).sum::<usize>();
        buffers.resize(pieces, &self.config);
        self.look_up(team, sequences, &mut buffers.hidden);
        let Some((last, layers)) = self.layers.split_last() else {
            return rows.keep(sequences, &mut buffers.hidden, self.config.hidden);
        };
        for layer in layers {
            layer.forward(team, bytes, self, sequences, OutputRows::All, buffers);
        }
        last.forward(team, bytes, self, sequences, rows, buffers);
    }

    fn look_up(&self, team: &Team, sequences: &[PieceSequence], hidden: &mut [f32]) {
        let width = self.config.hidden;
        let pieces = sequences.iter().flat_map(|sequence| sequence.pieces().enumerate());
        for (out, (position, (id, segment))) in hidden.chunks_exact_mut(width).zip(pieces) {
            out.copy_from_slice(&self.words[id as usize * width..][..width]);
            if !self.positions.is_empty() {
                add(out, &self.positions[position * width..][..width]);
            }
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
        Ok(EncoderLayer {
            qkv: Linear::load(source, &names.projections, 3 * hidden, hidden)?,
            attended: Linear::load(source, &[names.attended], hidden, hidden)?,
            attended_norm: Norm::load(source, &names.attended_norm, config)?,
            up: Linear::load(source, &names.up, config.inner(), hidden)?,
            gate: config.rotary.as_ref().map(RotaryConfig::gate),
            down: Linear::load(source, &[names.down], hidden, config.ffn)?,
            norm: Norm::load(source, &names.norm, config)?,
        })
    }

    fn prepare_bytes(&self) {
        for linear in [&self.qkv, &self.attended, &self.up, &self.down] {
            linear.bytes();
        }
    }

    /// Runs the layer, which reads all pieces, and leaves the given rows at the front of [`EncoderBuffers::hidden`].
    fn forward(
        &self,
        team: &Team,
        bytes: Option<ByteSupport>,
        encoder: &Bert,
        sequences: &[PieceSequence],
        rows: OutputRows,
        buffers: &mut EncoderBuffers,
    ) {
        let config = &encoder.config;
        let EncoderBuffers { hidden, qkv, attended, inner, activated, .. } = buffers;
        self.qkv.set(team, bytes, hidden, qkv);
        if let Some(rope) = &encoder.rope {
            rotate(team, rope, config, sequences, qkv);
        }
        let bias = encoder.bias.as_ref();
        let shape = AttentionShape { heads: config.heads, head: config.head(), bias, reach: None, rows };
        // Everything after the projections concerns the output rows alone.
        let count = rows.total(sequences);
        rows.keep(sequences, hidden, config.hidden);
        let hidden = &mut hidden[..count * config.hidden];
        let attended = &mut attended[..count * config.hidden];
        let inner = &mut inner[..count * config.inner()];
        attend(team, &shape, sequences, qkv, attended);
        self.attended.add(team, bytes, attended, hidden);
        self.attended_norm.apply(team, self.attended.bias_left(bytes), hidden);
        let activated: &[f32] = match self.gate {
            Some(gate) => {
                self.up.set(team, bytes, hidden, inner);
                let activated = &mut activated[..count * config.ffn];
                gate.apply(team, inner, config.ffn, activated);
                activated
            }
            None => {
                self.up.set_gelu(team, bytes, hidden, inner);
                inner
            }
        };
        self.down.add(team, bytes, activated, hidden);
        self.norm.apply(team, self.down.bias_left(bytes), hidden);
    }
}

/// Loads the position embeddings from the first piece on. Empty in families with rotary positions.
fn positions(source: &EncoderTensors<'_>, config: &EncoderConfig) -> Result<Vec<f32>, ModelError> {
    if config.rotary.is_some() {
        return Ok(Vec::new());
    }
    let shape = [config.positions, config.hidden];
    let mut positions = source.floats("embeddings.position_embeddings.weight", &shape)?;
    positions.drain(..config.first_position * config.hidden);
    Ok(positions)
}

/// Loads the biases of relative positions (MPNet). `None` in other families.
fn relative_bias(source: &EncoderTensors<'_>, config: &EncoderConfig) -> Result<Option<RelativeBias>, ModelError> {
    if config.family != EncoderFamily::Mpnet {
        return Ok(None);
    }
    let table = source.floats("encoder.relative_attention_bias.weight", &[config.buckets, config.heads])?;
    Ok(Some(RelativeBias::new(&table, config.buckets, config.heads, config.max_pieces)))
}
