//! Tensors of an encoder's checkpoint, read by name and expected shape.

use safetensors::SafeTensors;

use super::family::EncoderFamily;
use crate::ModelError;
use crate::weights::{Map, decode};

/// Tensors of a `model.safetensors`.
pub(crate) struct EncoderTensors<'a> {
    file: &'a Map,
    tensors: SafeTensors<'a>,
    family: EncoderFamily,
}

impl<'a> EncoderTensors<'a> {
    /// Parses the header of `file`.
    pub(crate) fn open(file: &'a Map, family: EncoderFamily) -> Result<Self, ModelError> {
        let tensors = SafeTensors::deserialize(file.bytes()).map_err(|error| file.corrupt(error.to_string()))?;
        Ok(EncoderTensors { file, tensors, family })
    }

    /// Error of a model that needs `what`.
    pub(crate) fn unsupported(&self, what: &str) -> ModelError {
        self.file.unsupported(what)
    }

    /// Reads a tensor of this shape, with or without the family's name before its own.
    pub(crate) fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let fail = |reason: String| self.file.corrupt(format!("tensor {name}: {reason}"));
        // Checkpoints saved with a task head store the encoder under its name.
        let prefixed = || self.tensors.tensor(&format!("{}.{name}", self.family.prefix()));
        let tensor = self.tensors.tensor(name).or_else(|_| prefixed());
        let tensor = tensor.map_err(|error| fail(error.to_string()))?;
        if tensor.shape() != shape {
            return Err(fail(format!("shape {:?}, expected {shape:?}", tensor.shape())));
        }
        decode(tensor.dtype(), tensor.data()).ok_or_else(|| fail(format!("unsupported type {:?}", tensor.dtype())))
    }
}
