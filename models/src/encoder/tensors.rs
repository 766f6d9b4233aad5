//! Tensors of an encoder's checkpoint, read by name and expected shape.

use safetensors::tensor::TensorView;
use safetensors::{SafeTensorError, SafeTensors};

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

    /// Error for a model that needs the unsupported feature `what`.
    pub(crate) fn unsupported(&self, what: &str) -> ModelError {
        self.file.unsupported(what)
    }

    /// Reads a tensor of this shape. The family's prefix may precede its name in the file.
    pub(crate) fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let fail = |reason: String| self.file.corrupt(format!("tensor {name}: {reason}"));
        let tensor = self.find(name).map_err(|error| fail(error.to_string()))?;
        if tensor.shape() != shape {
            return Err(fail(format!("shape {:?}, expected {shape:?}", tensor.shape())));
        }
        decode(tensor.dtype(), tensor.data()).ok_or_else(|| fail(format!("unsupported type {:?}", tensor.dtype())))
    }

    /// Reads the bias of the linear map `name`. Returns zeros if the bias is missing and the family allows that.
    pub(super) fn bias(&self, name: &str, out: usize) -> Result<Vec<f32>, ModelError> {
        let name = format!("{name}.bias");
        if self.family.may_lack_biases() && self.find(&name).is_err() {
            return Ok(vec![0.0; out]);
        }
        self.floats(&name, &[out])
    }

    /// Finds a tensor, by its name alone or with the family's prefix.
    fn find(&self, name: &str) -> Result<TensorView<'_>, SafeTensorError> {
        // Checkpoints saved with a task head store the encoder under a prefix.
        let prefixed = || self.tensors.tensor(&format!("{}.{name}", self.family.prefix()));
        self.tensors.tensor(name).or_else(|_| prefixed())
    }
}
