//! Access to checkpoint tensors with a shape check, for serving and training.

use crate::ModelError;
use crate::kernel::{Packed, dot};
use crate::weights::{TensorView, Weights};

/// Tensor with the expected shape.
pub(crate) fn view<'a>(weights: &'a Weights, name: &str, shape: &[usize]) -> Result<TensorView<'a>, ModelError> {
    let view = weights.tensor(name)?;
    if view.shape != shape {
        let reason = format!("shape {:?}, expected {shape:?}", view.shape);
        return Err(ModelError::Tensor { name: name.to_owned(), reason });
    }
    Ok(view)
}

/// Matrix of the expected shape, in the compact kind of its checkpoint.
pub(crate) fn matrix(weights: &Weights, name: &str, out: usize, inn: usize) -> Result<Packed, ModelError> {
    pack(&view(weights, name, &[out, inn])?)
}

/// Vector of the expected length.
pub(crate) fn vector(weights: &Weights, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
    view(weights, name, &[len])?.to_f32()
}

/// Packs a matrix in the compact kind of its checkpoint.
pub(crate) fn pack(view: &TensorView<'_>) -> Result<Packed, ModelError> {
    Packed::from_ggml(view.kind, &view.bytes, view.shape[0], view.shape[1])
}

/// Loads the vector of the shared expert's gate: a matrix of one row in Hugging Face checkpoints, a vector in GGUF
/// files.
pub(crate) fn shared_gate(weights: &Weights, name: &str, hidden: usize) -> Result<Vec<f32>, ModelError> {
    let view = weights.tensor(name)?;
    if view.shape != [1, hidden] && view.shape != [hidden] {
        let reason = format!("shape {:?}, expected [1, {hidden}]", view.shape);
        return Err(ModelError::Tensor { name: name.to_owned(), reason });
    }
    view.to_f32()
}

/// Factor on the output of the shared expert for one token: the sigmoid of its gate.
pub(crate) fn shared_factor(gate: &[f32], input: &[f32]) -> f32 {
    1.0 / (1.0 + (-dot(gate, input)).exp())
}
