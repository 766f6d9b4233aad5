//! Tensors of a checkpoint in the order and format of device memory.

use half::bf16;

use super::CudaError;
use super::plan::{MatrixLayout, Placement, WeightLayout};
use crate::ModelError;
use crate::decoder::DecoderConfig;
use crate::decoder::tensor;
use crate::kernel::rope::Rope;
use crate::weights::{GgmlKind, TensorView, Weights};

/// Receiver of a decoder's tensors.
pub(super) trait WeightSink {
    /// Stores matrices with `inn` columns each, given by name and number of rows, stacked below each other.
    fn matrices(&mut self, named: &[(String, usize)], inn: usize, place: MatrixLayout) -> Result<(), CudaError>;

    /// Stores vectors, given by name and length, end to end. Random weights set all of them to `value`.
    fn vectors(&mut self, named: &[(String, usize)], value: f32, place: Placement<f32>) -> Result<(), CudaError>;

    /// Stores values unchanged.
    fn values(&mut self, values: &[f32], place: Placement<f32>) -> Result<(), CudaError>;
}

/// Passes all tensors of a decoder to `to`, with rotary tables for `context` positions.
pub(super) fn visit_tensors<M: Copy + Into<MatrixLayout>>(
    config: &DecoderConfig,
    places: &WeightLayout<M>,
    context: usize,
    to: &mut impl WeightSink,
) -> Result<(), CudaError> {
    let hidden = config.hidden;
    let q = config.q_width();
    let kv = config.kv_width();
    to.matrices(&[("model.embed_tokens.weight".to_owned(), config.vocab)], hidden, places.embedding.into())?;
    for (index, layer) in places.layers.iter().enumerate() {
        let name = |rest: &str| format!("model.layers.{index}.{rest}");
        let qkv = [("q", q), ("k", kv), ("v", kv)];
        let projections = qkv.map(|(part, out)| (name(&format!("self_attn.{part}_proj.weight")), out));
        to.vectors(&[(name("input_layernorm.weight"), hidden)], 1.0, layer.attention_norm)?;
        to.matrices(&projections, hidden, layer.qkv.into())?;
        if let Some(bias) = layer.bias {
            let biases = qkv.map(|(part, out)| (name(&format!("self_attn.{part}_proj.bias")), out));
            to.vectors(&biases, 0.0, bias)?;
        }
        for (part, place) in ["q", "k"].into_iter().zip(layer.head_norms.into_iter().flatten()) {
            to.vectors(&[(name(&format!("self_attn.{part}_norm.weight")), config.head_dim)], 1.0, place)?;
        }
        to.matrices(&[(name("self_attn.o_proj.weight"), hidden)], q, layer.o.into())?;
        to.vectors(&[(name("post_attention_layernorm.weight"), hidden)], 1.0, layer.ffn_norm)?;
        let gate_up = ["gate", "up"].map(|part| (name(&format!("mlp.{part}_proj.weight")), config.ffn));
        to.matrices(&gate_up, hidden, layer.gate_up.into())?;
        to.matrices(&[(name("mlp.down_proj.weight"), hidden)], config.ffn, layer.down.into())?;
    }
    to.vectors(&[("model.norm.weight".to_owned(), hidden)], 1.0, places.norm)?;
    if let Some(head) = places.head {
        to.matrices(&[("lm_head.weight".to_owned(), config.vocab)], hidden, head.into())?;
    }
    let mut rope = Rope::new(config.head_dim, config.rope_base, &config.rope_scaling);
    rope.reserve(context);
    to.values(&rope.table()[..context * config.head_dim], places.rotary)
}

/// Reads one matrix of a checkpoint as `bf16` into `to`, replacing its content.
pub(super) fn read_bf16(weights: &Weights, name: &str, shape: &[usize], to: &mut Vec<bf16>) -> Result<(), ModelError> {
    let tensor: TensorView<'_> = tensor::view(weights, name, shape)?;
    to.clear();
    // The common case needs no conversion by way of f32.
    if tensor.kind == GgmlKind::BF16 {
        let pairs = tensor.bytes.chunks_exact(2);
        to.extend(pairs.map(|pair| bf16::from_le_bytes([pair[0], pair[1]])));
        return Ok(());
    }
    to.extend(tensor.to_f32()?.into_iter().map(bf16::from_f32));
    Ok(())
}

/// Reads vectors of a checkpoint, end to end.
pub(super) fn read_vectors(weights: &Weights, named: &[(String, usize)]) -> Result<Vec<f32>, ModelError> {
    let parts = named.iter().map(|(name, len)| tensor::vector(weights, name, *len)).collect::<Result<Vec<_>, _>>()?;
    Ok(parts.concat())
}
