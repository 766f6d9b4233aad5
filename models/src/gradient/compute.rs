//! The seam between a learner and what its passes run on.

use std::fmt;

use super::{Likeliest, Objective, Pack, Score};
use crate::ModelError;

/// What a learner's passes run on: the processor, or a card. The learner has looked at the packs: their tokens are in the
/// vocabulary, their sequences within the context, and there is a target.
pub(crate) trait Compute: fmt::Debug + Send {
    /// Takes over changed values.
    fn take(&mut self, values: &[f32]);

    /// As [`Learner::score`](super::Learner::score).
    fn score(&mut self, pack: &Pack, base: bool) -> Result<Vec<Score>, ModelError>;

    /// As [`Learner::likeliest`](super::Learner::likeliest).
    fn likeliest(&mut self, pack: &Pack, count: usize, base: bool) -> Result<Vec<Likeliest>, ModelError>;

    /// As [`Learner::states`](super::Learner::states).
    fn states(&mut self, pack: &Pack, base: bool) -> Result<Vec<Vec<f32>>, ModelError>;

    /// As [`Learner::learn`](super::Learner::learn); adds to `gradients`.
    fn learn(&mut self, pack: &Pack, objective: &mut dyn Objective, gradients: &mut [f32]) -> Result<(), ModelError>;

    /// As [`Learner::set_limit`](super::Learner::set_limit).
    fn set_limit(&mut self, limit: Option<usize>);

    /// Whether it is a card.
    fn on_card(&self) -> bool;

    /// As [`Learner::bytes`](super::Learner::bytes).
    fn bytes(&self, tokens: usize) -> usize;

    /// As [`Learner::bytes_of`](super::Learner::bytes_of).
    fn bytes_of(&self, pack: &Pack) -> usize;
}
