//! Tensors in memory, such as weights that a learner has updated.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use sha2::{Digest, Sha256};

use super::mapped_file::sample;
use super::tensor_view::{GgmlKind, TensorView};
use super::{Weights, WeightsSource};
use crate::ModelError;
use crate::architecture::DecoderConfig;

/// Tensors in `f32`, one after another.
pub(super) struct MemoryWeights {
    values: Vec<f32>,
    places: HashMap<String, TensorRange>,
}

struct TensorRange {
    shape: Vec<usize>,
    range: Range<usize>,
}

impl MemoryWeights {
    pub(super) fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        let Some(TensorRange { shape, range }) = self.places.get(name) else {
            return Err(ModelError::Tensor { name: name.to_owned(), reason: "not among those in memory".to_owned() });
        };
        let bytes = bytemuck::cast_slice(&self.values[range.clone()]);
        Ok(TensorView { kind: GgmlKind::F32, shape: shape.clone(), bytes: Cow::Borrowed(bytes) })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }
}

impl fmt::Debug for MemoryWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryWeights({} tensors, {} values)", self.places.len(), self.values.len())
    }
}

impl Weights {
    /// Creates decoder weights from `values`: the named tensors with their shapes, one after another, row-major.
    ///
    /// # Errors
    /// [`ModelError::Input`] when the number of values does not match the shapes.
    pub fn in_memory(
        config: DecoderConfig,
        tensors: impl IntoIterator<Item = (String, Vec<usize>)>,
        values: Vec<f32>,
    ) -> Result<Self, ModelError> {
        let mut places = HashMap::new();
        let mut end = 0;
        for (name, shape) in tensors {
            let range = end..end + shape.iter().product::<usize>();
            end = range.end;
            places.insert(name, TensorRange { shape, range });
        }
        if end != values.len() {
            return Err(ModelError::Input(format!("{} values: the tensors need {end}", values.len())));
        }
        let mut hash = Sha256::new();
        let mut id = [0; 16];
        sample(bytemuck::cast_slice(&values), &mut hash);
        id.copy_from_slice(&hash.finalize()[..16]);
        Ok(Self { source: WeightsSource::Memory(MemoryWeights { values, places }), config, id })
    }
}
