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
    /// Loads a checkpoint to the card `ordinal` and begins an adapter there: weights in `bf16`, the adapter in `f32`.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] where there is no such card, driver or library; [`CudaError::Call`] when it has not the
    /// memory; [`CudaError::Model`] when all weights are to be learnt, a tensor is missing, or a shape is one no kernel was
    /// written for.
    pub fn load_on_card(weights: &Weights, ordinal: usize, tune: &Tune) -> Result<Self, CudaError> {
        // What can be said without a card.
        super::check(weights.config(), tune)?;
        let card = Card::open(ordinal, weights.config().head_dim)?.with_limit(LIMIT);
        super::learner(OnCard::new(card)?, weights, tune)
    }
}
