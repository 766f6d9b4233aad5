//! Linear maps with biases, in `f32` or in bytes.

use std::sync::OnceLock;

use super::tensors::EncoderTensors;
use crate::ModelError;
use crate::kernel::{ByteFinish, ByteLinear, ByteSupport, Packed, Team, add, gelu, matmul_add, matmul_map};

/// Linear map of the rows of a pass.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Packed,
    bias: Vec<f32>,
    /// The same map in bytes, converted on first use.
    bytes: OnceLock<ByteLinear>,
}

impl Linear {
    /// Loads linear maps of the same shape and stacks them. `out` is the total number of outputs.
    pub(super) fn load(
        source: &EncoderTensors<'_>,
        names: &[String],
        out: usize,
        inn: usize,
    ) -> Result<Self, ModelError> {
        let each = out / names.len();
        let mut weight = Vec::new();
        let mut bias = Vec::new();
        for name in names {
            weight.extend(source.floats(&format!("{name}.weight"), &[each, inn])?);
            bias.extend(source.bias(name, each)?);
        }
        Ok(Linear { weight: Packed::from_f32(&weight, out, inn), bias, bytes: OnceLock::new() })
    }

    /// The same map in bytes.
    pub(super) fn bytes(&self) -> &ByteLinear {
        self.bytes.get_or_init(|| ByteLinear::of(&self.weight, &self.bias))
    }

    /// Computes `y = x · Wᵀ + bias`.
    pub(super) fn set(&self, team: &Team, bytes: Option<ByteSupport>, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.weight.inn();
        match bytes {
            Some(support) => self.bytes().apply(support, team, x, rows, y, ByteFinish::Set),
            None => matmul_map(team, x, rows, &self.weight, y, &|first, piece| self.add_bias(first, piece)),
        }
    }

    /// Computes `y = gelu(x · Wᵀ + bias)`.
    pub(super) fn set_gelu(&self, team: &Team, bytes: Option<ByteSupport>, x: &[f32], y: &mut [f32]) {
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
    pub(super) fn add(&self, team: &Team, bytes: Option<ByteSupport>, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.weight.inn();
        match bytes {
            Some(support) => self.bytes().apply(support, team, x, rows, y, ByteFinish::Add),
            None => matmul_add(team, x, rows, &self.weight, y),
        }
    }

    /// Bias that [`add`](Self::add) leaves to the normalization. `None` if `add` adds the bias.
    pub(super) fn bias_left(&self, bytes: Option<ByteSupport>) -> Option<&[f32]> {
        bytes.is_none().then_some(self.bias.as_slice())
    }

    fn add_bias(&self, first: usize, piece: &mut [f32]) {
        add(piece, &self.bias[first..first + piece.len()]);
    }
}
