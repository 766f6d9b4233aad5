//! What is learnt, as one flat vector.

use std::ops::Range;

/// A tensor among the learnt values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the file it is saved to: PEFT's for an adapter, the model hub's for a whole model.
    pub name: String,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
    /// Where it lies in the flat vector.
    pub range: Range<usize>,
}

/// Parameters and their values, while a learner is loaded.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) values: Vec<f32>,
}

impl Table {
    /// Adds a parameter after the others.
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
