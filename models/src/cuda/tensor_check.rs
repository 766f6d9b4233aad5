//! Check that a checkpoint can take the place of loaded weights, before the first of them is overwritten.

use half::bf16;

use super::CudaError;
use super::checkpoint::{self, WeightSink};
use super::plan::{MatrixLayout, Placement, WeightLayout};
use super::source::not_finite;
use crate::decoder::DecoderConfig;
use crate::weights::Weights;

/// Receiver of tensors that reads each of them and stores none.
struct TensorCheck<'a> {
    weights: &'a Weights,
    /// Staging buffer, reused from tensor to tensor.
    values: Vec<bf16>,
}

/// Reads all tensors that a decoder with this layout takes from a checkpoint.
///
/// # Errors
/// [`CudaError::Model`] when a tensor is missing, cannot be decoded, has another shape, or has a value that its format in
/// device memory cannot hold.
pub(super) fn check_tensors(
    weights: &Weights,
    config: &DecoderConfig,
    places: &WeightLayout<MatrixLayout>,
    context: usize,
) -> Result<(), CudaError> {
    checkpoint::visit_tensors(config, places, context, &mut TensorCheck { weights, values: Vec::new() })
}

impl WeightSink for TensorCheck<'_> {
    fn matrices(&mut self, named: &[(String, usize)], inn: usize, place: MatrixLayout) -> Result<(), CudaError> {
        for (name, out) in named {
            checkpoint::read_bf16(self.weights, name, &[*out, inn], &mut self.values)?;
            let holds = |value: &bf16| matches!(place, MatrixLayout::Half(_)) || value.is_finite();
            if let Some(at) = self.values.iter().position(|value| !holds(value)) {
                return Err(not_finite(name, at / inn).into());
            }
        }
        Ok(())
    }

    fn vectors(&mut self, named: &[(String, usize)], _: f32, _: Placement<f32>) -> Result<(), CudaError> {
        checkpoint::read_vectors(self.weights, named)?;
        Ok(())
    }

    fn values(&mut self, _: &[f32], _: Placement<f32>) -> Result<(), CudaError> {
        Ok(())
    }
}
