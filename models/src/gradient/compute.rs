//! Interface between a learner and the hardware that runs its passes.

use std::fmt;

use super::{Likeliest, Objective, Pack, Score, ScoredModel};
use crate::ModelError;

/// Hardware that runs a learner's passes: the CPU or a GPU. The learner has already validated the packs: tokens lie
/// in the vocabulary, sequences fit the context, and there is a target.
pub(crate) trait Compute: fmt::Debug + Send {
    /// Updates the weights with changed values.
    fn take(&mut self, values: &[f32]);

    /// Implements [`Learner::score`](super::Learner::score).
    fn score(&mut self, pack: &Pack, model: ScoredModel) -> Result<Vec<Score>, ModelError>;

    /// Implements [`Learner::likeliest`](super::Learner::likeliest).
    fn likeliest(&mut self, pack: &Pack, count: usize, model: ScoredModel) -> Result<Vec<Likeliest>, ModelError>;

    /// Implements [`Learner::states`](super::Learner::states).
    fn states(&mut self, pack: &Pack, model: ScoredModel) -> Result<Vec<Vec<f32>>, ModelError>;

    /// Implements [`Learner::learn`](super::Learner::learn); adds to `gradients`.
    fn learn(&mut self, pack: &Pack, objective: &mut dyn Objective, gradients: &mut [f32]) -> Result<(), ModelError>;

    /// Implements [`Learner::set_limit`](super::Learner::set_limit).
    fn set_limit(&mut self, limit: Option<usize>);

    /// Returns `true` if the passes run on a GPU.
    fn on_gpu(&self) -> bool;

    /// Implements [`Learner::bytes`](super::Learner::bytes).
    fn bytes(&self, tokens: usize) -> usize;

    /// Implements [`Learner::bytes_of`](super::Learner::bytes_of).
    fn bytes_of(&self, pack: &Pack) -> usize;
}
