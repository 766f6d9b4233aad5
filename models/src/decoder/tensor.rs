//! Tensors of a checkpoint in the shape that is expected of them, for serving and for learning.

use crate::ModelError;
use crate::kernel::Packed;
use crate::weights::{TensorView, Weights};

/// A tensor of the expected shape.
pub(crate) fn view<'a>(weights: &'a Weights, name: &str, shape: &[usize]) -> Result<TensorView<'a>, ModelError> {
    let view = weights.tensor(name)?;
    if view.shape != shape {
        let reason = format!("shape {:?}, {shape:?} was expected", view.shape);
        return Err(ModelError::Tensor { name: name.to_owned(), reason });
    }
    Ok(view)
}

/// A matrix of the expected shape, kept compact where its kind allows it.
pub(crate) fn matrix(weights: &Weights, name: &str, out: usize, inn: usize) -> Result<Packed, ModelError> {
    pack(&view(weights, name, &[out, inn])?)
}

/// A vector of the expected length.
pub(crate) fn vector(weights: &Weights, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
    view(weights, name, &[len])?.to_f32()
}

/// A matrix in the compact form of its checkpoint where the product knows it, in `f32` otherwise.
pub(crate) fn pack(view: &TensorView<'_>) -> Result<Packed, ModelError> {
    let (out, inn) = (view.shape[0], view.shape[1]);
    if Packed::keeps(view.kind) {
        return Packed::from_ggml(view.kind, &view.bytes, out, inn);
    }
    Ok(Packed::from_f32(&view.to_f32()?, out, inn))
}
