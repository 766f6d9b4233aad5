//! Linear heads over the hidden states of an encoder.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use crate::reward::evo_rag::StepRewards;
use crate::run::{RunError, durable};

/// Number of heads: one for each of EVO-RAG's rewards.
pub(crate) const HEADS: usize = StepRewards::NAMES.len();

/// Linear heads, one row of weights each. They have no bias, because it would cancel in every difference of two
/// branches.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinearHeads<'a> {
    hidden: usize,
    values: &'a [f32],
}

impl<'a> LinearHeads<'a> {
    /// Creates the heads with the weights `values`, for states of `hidden` numbers.
    pub(super) fn new(values: &'a [f32], hidden: usize) -> Self {
        Self { hidden, values }
    }

    /// Score of a state by each head.
    pub(super) fn score(&self, state: &[f32]) -> Vec<f64> {
        let products = |row: &[f32]| row.iter().zip(state).map(|(&w, &h)| f64::from(w) * f64::from(h)).sum::<f64>();
        self.values.chunks_exact(self.hidden).map(products).collect()
    }

    /// Writes the heads to a safetensors file: `heads` of shape (heads, hidden), with the metadata `kind` = `id` that
    /// identifies the model whose states they read.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(&self, path: &Path, kind: &str, id: &str) -> Result<(), RunError> {
        let refuse = |error: safetensors::SafeTensorError| RunError::Checkpoint {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let shape = vec![self.values.len() / self.hidden, self.hidden];
        let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(self.values)).map_err(refuse)?;
        let facts = [(kind.to_owned(), id.to_owned())].into();
        let file = safetensors::serialize([("heads", view)], Some(facts)).map_err(refuse)?;
        durable::write(path, &file)
    }
}

/// Merit of a branch: the mean score of the heads. The paper does not say how seven scores become one.
pub(super) fn merit(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use safetensors::SafeTensors;

    use super::*;

    #[test]
    fn a_head_scores_by_dot_product_and_the_mean_is_the_merit() {
        let heads = LinearHeads::new(&[1.0, 0.0, 2.0, 0.5, -1.0, 0.0], 3);
        let scores = heads.score(&[3.0, 4.0, 0.5]);
        assert_eq!(scores, [4.0, -2.5]);
        assert_eq!((merit(&scores), merit(&[])), (0.75, 0.0));
    }

    #[test]
    fn the_file_identifies_the_encoder() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("ranker.safetensors");
        LinearHeads::new(&[1.0, 0.0, 2.0, 0.5, -1.0, 0.0], 3).write(&path, "base_id", "the base").unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.tensor("heads").unwrap().shape(), [2, 3]);
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["base_id"], "the base");
    }
}
