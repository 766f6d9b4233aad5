//! Trained parameters as one flat vector.

use std::ops::Range;

/// A trained tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Name in the saved file: PEFT's for an adapter, that of Hugging Face checkpoints for a whole model.
    pub name: String,
    /// Shape, row-major.
    pub shape: Vec<usize>,
    /// Range in the flat vector.
    pub range: Range<usize>,
}

/// Parameters and their values, collected while a learner is loaded.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) values: Vec<f32>,
}

impl Table {
    /// Appends a parameter.
    pub(super) fn push(
        &mut self,
        name: String,
        shape: &[usize],
        values: impl IntoIterator<Item = f32>,
    ) -> Range<usize> {
        let first = self.values.len();
        self.values.extend(values);
        let range = first..self.values.len();
        debug_assert_eq!(range.len(), shape.iter().product::<usize>(), "{name}");
        self.parameters.push(Parameter { name, shape: shape.to_vec(), range: range.clone() });
        range
    }
}
