//! A card that learns.

use std::time::Duration;

use crate::cuda::CudaError;
use crate::cuda::device::Card;
use crate::cuda::driver::OnCard;
use crate::gradient::{Learner, Tune};
use crate::weights::Weights;

/// How long it may take for what is in line: a whole pass, of many more tokens than a step that serves has.
const LIMIT: Duration = Duration::from_secs(600);

impl Learner {
    /// Loads a checkpoint to the card `ordinal` and begins an adapter there: weights in `bf16`, the adapter in `f32`. Where
    /// the most `tokens` of a pass are given, counted as [`Passes`](crate::cuda::learner::Passes) does, its memory is taken
    /// at once.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] where there is no such card, driver or library; [`CudaError::Call`] when it has not the
    /// memory; [`CudaError::Model`] when all weights are to be learnt, a tensor is missing, a shape is one no kernel was
    /// written for, or the pass does not fit.
    pub fn load_on_card(
        weights: &Weights,
        ordinal: usize,
        tune: &Tune,
        tokens: Option<usize>,
    ) -> Result<Self, CudaError> {
        // What can be said without a card.
        super::check(weights.config(), tune)?;
        let card = Card::open(ordinal, weights.config().head_dim)?.with_limit(LIMIT);
        super::learner(OnCard::new(card)?, weights, tune, tokens)
    }
}
