//! Projection to the vocabulary, which also serves as embedding if the two are tied.

use std::ops::Range;

use super::vocabulary::VocabularyHead;
use crate::Arithmetic;
use crate::kernel::Packed;

/// Projection to the vocabulary. Log-probabilities are always computed in `f32`; their gradient may be rounded.
#[derive(Debug)]
pub(super) struct Unembedding {
    /// Weight, shape (vocabulary, hidden), in the checkpoint's format while frozen.
    weight: Packed,
    /// If `true`, the backward pass rounds to bf16.
    rounded: bool,
    /// Range among the trained values. `None` if the weight is frozen.
    trained: Option<Range<usize>>,
}

impl Unembedding {
    pub(super) fn new(weight: Packed, trained: Option<Range<usize>>, arithmetic: Arithmetic) -> Self {
        Self { weight, rounded: arithmetic == Arithmetic::Bf16, trained }
    }

    /// Updates the weight with changed values.
    pub(super) fn repack(&mut self, values: &[f32]) {
        if let Some(range) = &self.trained {
            let values = &values[range.clone()];
            let out = self.weight.out();
            let inn = self.weight.inn();
            self.weight = Packed::from_f32(values, out, inn);
        }
    }

    /// View for the vocabulary part of a loss, with a soft limit `cap` of the logits.
    pub(super) fn head(&self, cap: Option<f32>) -> VocabularyHead<'_> {
        VocabularyHead { weights: &self.weight, rounded: self.rounded, cap }
    }

    pub(super) fn weight(&self) -> &Packed {
        &self.weight
    }

    /// Range among the trained values. `None` if the weight is frozen.
    pub(super) fn range(&self) -> Option<Range<usize>> {
        self.trained.clone()
    }

    /// Size of the packed weights, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.weight.bytes()
    }
}
