//! Changes to logits that precede the choice of a token, in a form that a device can apply.

use super::distribution::highest;
use super::penalty::Penalties;
use super::{SampleError, TokenMask};
use crate::kernel::isa::Isa;

/// Token whose logit is changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdjustedToken {
    /// Token ID.
    pub id: u32,
    /// Number of occurrences that penalties apply to. 0 if the token is only biased.
    pub count: u32,
    /// Amount added to the logit after the penalties.
    pub bias: f32,
}

/// Changes to a row of logits: penalties, then biases, then a mask.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitAdjustment {
    /// Strengths of the penalties.
    pub penalties: Penalties,
    /// Penalized and biased tokens, each at most once, all within the vocabulary.
    pub tokens: Vec<AdjustedToken>,
    /// Tokens that may be chosen. `None` allows all.
    pub mask: Option<TokenMask>,
}

impl LogitAdjustment {
    /// Maximum number of penalized and biased tokens. Rows with more are adjusted by the CPU sampler.
    pub const MAX_TOKENS: usize = 2048;

    /// Applies the changes in place and returns the highest logit that is left.
    ///
    /// # Errors
    /// [`SampleError`] when penalties and biases make the highest logit infinite, or the mask leaves none.
    pub fn apply(&self, logits: &mut [f32]) -> Result<f32, SampleError> {
        for token in &self.tokens {
            let Some(logit) = logits.get_mut(token.id as usize) else { continue };
            if token.count > 0 {
                self.penalties.apply(token.count, logit);
            }
            *logit += token.bias;
        }
        restrict(logits, self.mask.as_ref())
    }
}

/// Applies a mask to penalized and biased logits and returns the highest logit that is left.
///
/// # Errors
/// [`SampleError`] when the highest logit is infinite before the mask, or the mask leaves none.
pub(super) fn restrict(logits: &mut [f32], mask: Option<&TokenMask>) -> Result<f32, SampleError> {
    let isa = Isa::best();
    if !highest(isa, logits).is_finite() {
        return Err(SampleError::NotFinite);
    }
    if let Some(mask) = mask {
        mask.apply(logits);
    }
    match highest(isa, logits) {
        f32::NEG_INFINITY => Err(SampleError::NoCandidate),
        max => Ok(max),
    }
}
