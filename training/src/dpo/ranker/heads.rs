//! Linear heads over the states of an encoder.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use crate::reward::evo_rag::Steps;
use crate::run::{RunError, durable};

/// As many heads as EVO-RAG has rewards.
pub(crate) const HEADS: usize = Steps::NAMES.len();

/// A few linear heads, a row of weights each. They have no bias: it would cancel in every difference of two branches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads<'a> {
    hidden: usize,
    values: &'a [f32],
}

impl<'a> Heads<'a> {
    /// Those of `values`, for states of `hidden` numbers.
    pub(super) fn new(values: &'a [f32], hidden: usize) -> Self {
        Self { hidden, values }
    }

    /// What each of them says of a state.
    pub(super) fn score(&self, state: &[f32]) -> Vec<f64> {
        let products = |row: &[f32]| row.iter().zip(state).map(|(&w, &h)| f64::from(w) * f64::from(h)).sum::<f64>();
        self.values.chunks_exact(self.hidden).map(products).collect()
    }

    /// Writes them down as one safetensors file: `heads`, a row for each, with the id of the model whose states they read
    /// under the name of the kind of id that it is.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn write(&self, path: &Path, (kind, id): (&str, &str)) -> Result<(), RunError> {
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

/// What a branch is worth by what the heads say of it: their mean. The paper does not say how seven scores become one.
pub(super) fn merit(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use safetensors::SafeTensors;

    use super::*;

    #[test]
    fn each_head_says_its_product_and_their_mean_counts() {
        let heads = Heads::new(&[1.0, 0.0, 2.0, 0.5, -1.0, 0.0], 3);
        let scores = heads.score(&[3.0, 4.0, 0.5]);
        assert_eq!(scores, [4.0, -2.5]);
        assert_eq!((merit(&scores), merit(&[])), (0.75, 0.0));
    }

    #[test]
    fn they_are_written_with_whose_states_they_read() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("ranker.safetensors");
        Heads::new(&[1.0, 0.0, 2.0, 0.5, -1.0, 0.0], 3).write(&path, ("base_id", "the base")).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.tensor("heads").unwrap().shape(), [2, 3]);
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["base_id"], "the base");
    }
}
