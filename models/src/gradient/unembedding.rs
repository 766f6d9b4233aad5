//! The projection to the vocabulary, where tokens are looked up too if it is tied.

use std::ops::Range;

use super::vocabulary::Head;
use crate::kernel::Packed;

/// The projection to the vocabulary, in `f32` whatever the arithmetic of the layers: log-probabilities are made here.
#[derive(Debug)]
pub(super) struct Unembedding {
    /// Shape (vocabulary, hidden), in the checkpoint's form while it is frozen.
    weight: Packed,
    /// Its transpose, in `f32`.
    transposed: Packed,
    /// Where it lies among the values, if it is learnt.
    learnt: Option<Range<usize>>,
}

impl Unembedding {
    pub(super) fn new(weight: Packed, learnt: Option<Range<usize>>) -> Self {
        let transposed = weight.transposed();
        Self { weight, transposed, learnt }
    }

    /// Takes over changed values.
    pub(super) fn repack(&mut self, values: &[f32]) {
        if let Some(range) = &self.learnt {
            let (values, out, inn) = (&values[range.clone()], self.weight.out(), self.weight.inn());
            self.weight = Packed::from_f32(values, out, inn);
            self.transposed = Packed::from_f32_transposed(values, inn, out);
        }
    }

    /// What the vocabulary's part of a loss takes.
    pub(super) fn head(&self) -> Head<'_> {
        Head { weights: &self.weight, transposed: &self.transposed }
    }

    pub(super) fn weight(&self) -> &Packed {
        &self.weight
    }

    /// Its place among the values, if it is learnt.
    pub(super) fn range(&self) -> Option<Range<usize>> {
        self.learnt.clone()
    }

    /// Bytes the packed forms take.
    pub(super) fn bytes(&self) -> usize {
        self.weight.bytes() + self.transposed.bytes()
    }
}
