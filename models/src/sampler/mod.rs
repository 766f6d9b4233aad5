//! Sampling of the next token from logits: one [`Sampler`] per sequence, reproducible from its seed.
//!
//! The steps are, in order: penalties and bias, allow-list or mask, temperature, min-p, top-k, top-p. Reported
//! log-probabilities are always those of the model itself: raw logits at temperature 1, unfiltered.

mod adjustment;
mod distribution;
mod mask;
mod params;
mod penalty;
mod pick;
mod shortlist;

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use adjustment::{AdjustedToken, LogitAdjustment};
pub use mask::TokenMask;
pub use params::SamplingParams;
pub use penalty::Penalties;
pub use pick::Pick;

use crate::kernel::isa::Isa;
use adjustment::restrict;
use distribution::{LogitSummary, argmax, top};
use penalty::Penalty;
use shortlist::Shortlist;

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// ID of the token.
    pub id: u32,
    /// Log-probability under the full distribution: raw logits at temperature 1.
    pub logprob: f32,
    /// Most probable tokens of the full distribution with their log-probabilities, best first; their number is
    /// [`SamplingParams::top_logprobs`].
    pub top: Vec<(u32, f32)>,
}

/// Reason why no token could be sampled. Concerns one sequence only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is NaN or positive infinity, or penalties and bias made the highest logit infinite.
    #[error("the model, or a penalty, produced a logit that is not a finite number")]
    NotFinite,
    /// No candidate is left: all logits are minus infinity, or the allow-list or mask contains no ID of the
    /// vocabulary.
    #[error("no token is left to choose from")]
    NoCandidate,
}

/// Samples the tokens of one sequence. Keeps its random state and its buffers from token to token.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
    /// Random numbers that were drawn for [`pick_adjusted`](Self::pick_adjusted) but not consumed yet, in the order of the tokens.
    ahead: VecDeque<f64>,
    penalty: Penalty,
    shortlist: Shortlist,
    /// Logits after penalties, bias and mask, if any.
    adjusted: Vec<f32>,
}

impl Sampler {
    /// Creates a sampler at the start of its random sequence.
    pub fn new(params: SamplingParams) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(params.seed);
        Self {
            params,
            rng,
            ahead: VecDeque::new(),
            penalty: Penalty::default(),
            shortlist: Shortlist::default(),
            adjusted: Vec::new(),
        }
    }

    /// Parameters of the sampler.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Samples the next token from the logits of one position, shape (vocab). `history` holds the tokens that
    /// penalties apply to, usually those generated so far. `allow` restricts the choice to the listed IDs; IDs
    /// outside the vocabulary are ignored.
    ///
    /// # Errors
    /// [`SampleError`] when the logits do not allow a choice. The sampler stays usable.
    pub fn sample(&mut self, logits: &[f32], history: &[u32], allow: Option<&[u32]>) -> Result<Sampled, SampleError> {
        self.draw(logits, history, allow, None)
    }

    /// Samples like [`sample`](Self::sample) among the tokens allowed by `mask`, for sets too large to list.
    ///
    /// # Errors
    /// The same as for [`sample`](Self::sample).
    pub fn sample_within(&mut self, logits: &[f32], history: &[u32], mask: &TokenMask) -> Result<Sampled, SampleError> {
        self.draw(logits, history, None, Some(mask))
    }

    fn draw(
        &mut self,
        logits: &[f32],
        history: &[u32],
        allow: Option<&[u32]>,
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, SampleError> {
        let summary = LogitSummary::of(logits)?;
        let id = if self.params.adjusts() || mask.is_some() {
            // The buffer leaves `self` because choosing borrows the sampler mutably, and returns to be reused.
            let mut adjusted = std::mem::take(&mut self.adjusted);
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            let id = self.choose_adjusted(&mut adjusted, history, allow, mask);
            self.adjusted = adjusted;
            id?
        } else {
            self.choose(logits, summary.max, Some(summary.sum), allow)?
        };
        let mut best = Vec::new();
        if self.params.top_logprobs > 0 {
            // From the raw logits: clients compare alternatives with the model's distribution, not with the filtered
            // one.
            best = top(logits, self.params.top_logprobs);
            best.iter_mut().for_each(|(_, logit)| *logit -= summary.log_sum);
        }
        Ok(Sampled { id, logprob: logits[id as usize] - summary.log_sum, top: best })
    }

    fn choose_adjusted(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
        allow: Option<&[u32]>,
        mask: Option<&TokenMask>,
    ) -> Result<u32, SampleError> {
        self.penalty.apply(&self.params, history, logits);
        let max = restrict(logits, mask)?;
        self.choose(logits, max, None, allow)
    }

    /// Chooses a token. `max` is the highest logit, and `sum` is `Σ exp(logit − max)` if it is known.
    fn choose(
        &mut self,
        logits: &[f32],
        max: f32,
        sum: Option<f64>,
        allow: Option<&[u32]>,
    ) -> Result<u32, SampleError> {
        if self.params.is_greedy() {
            let best = match allow {
                Some(ids) => best_of(logits, ids),
                None => argmax(Isa::best(), logits, max),
            };
            return best.ok_or(SampleError::NoCandidate);
        }
        // Exactly one number per token, whatever the filters: a change of top-k does not shift later tokens'
        // randomness.
        let draw = self.uniform();
        match allow {
            Some(ids) => self.shortlist.draw_among(&self.params, logits, ids, draw),
            None => Ok(self.shortlist.draw(&self.params, logits, max, sum, draw)),
        }
    }

    /// Next random number in [0, 1).
    fn uniform(&mut self) -> f64 {
        self.ahead.pop_front().unwrap_or_else(|| uniform(&mut self.rng))
    }
}

fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    // 53 random bits: every value is exact in f64 and below 1.
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// ID with the highest logit in a list; the lowest ID wins ties.
fn best_of(logits: &[f32], ids: &[u32]) -> Option<u32> {
    let better = |best: Option<(u32, f32)>, (id, logit): (u32, f32)| match best {
        Some((id_best, logit_best)) if logit < logit_best || (logit == logit_best && id > id_best) => best,
        // A token that is masked out must not win merely because it is the first of the list.
        _ if logit == f32::NEG_INFINITY => best,
        _ => Some((id, logit)),
    };
    let known = ids.iter().filter_map(|&id| Some((id, *logits.get(id as usize)?)));
    known.fold(None, better).map(|(id, _)| id)
}
