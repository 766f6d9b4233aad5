//! Logits to the next token: one [`Sampler`] per sequence, reproducible from its seed.
//!
//! The order of things: penalties and bias, then the allow-list or the mask, then temperature, min-p, top-k, top-p. Reported
//! log-probabilities are always those of the model itself: raw logits, temperature 1, nothing filtered.

mod distribution;
mod mask;
mod params;
mod penalty;
mod pick;
mod shortlist;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use mask::TokenMask;
pub use params::SamplingParams;
pub use pick::Pick;

use distribution::{Summary, argmax, highest, top};
use penalty::Penalty;
use shortlist::Shortlist;

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub id: u32,
    /// Its log-probability under the full distribution: raw logits, temperature 1.
    pub logprob: f32,
    /// The most probable tokens under the same distribution with their log-probabilities, best first; as many as
    /// [`SamplingParams::top_logprobs`] asks for.
    pub top: Vec<(u32, f32)>,
}

/// Why no token could be chosen. Concerns the one sequence only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is NaN or positive infinity, or penalties and bias made the highest one infinite.
    #[error("the model, or a penalty, produced a logit that is not a finite number")]
    NotFinite,
    /// Nothing is left to choose from: all logits are minus infinity, or the allow-list or mask has no id of the
    /// vocabulary.
    #[error("no token is left to choose from")]
    NoCandidate,
}

/// Chooses tokens for one sequence. Keeps its random state and its buffers from token to token.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
    /// Drawn already, for a token that has not been chosen yet.
    next: Option<f64>,
    penalty: Penalty,
    shortlist: Shortlist,
    /// Logits after penalties, bias and mask, where there are any.
    adjusted: Vec<f32>,
}

impl Sampler {
    /// A sampler at the beginning of its random sequence.
    pub fn new(params: SamplingParams) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(params.seed);
        Self {
            params,
            rng,
            next: None,
            penalty: Penalty::default(),
            shortlist: Shortlist::default(),
            adjusted: Vec::new(),
        }
    }

    /// What it samples with.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses the next token from the logits of one position, shape (vocab). `history` is what the penalties look at,
    /// usually the tokens generated so far. With `allow`, only those ids can be chosen; ids outside the vocabulary are
    /// passed over.
    ///
    /// # Errors
    /// [`SampleError`] when the logits do not allow a choice; the sampler stays usable.
    pub fn sample(&mut self, logits: &[f32], history: &[u32], allow: Option<&[u32]>) -> Result<Sampled, SampleError> {
        self.draw(logits, history, allow, None)
    }

    /// The same among the tokens that `mask` allows: for sets too large to be listed.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
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
        let summary = Summary::of(logits)?;
        let id = if self.params.adjusts() || mask.is_some() {
            let mut adjusted = std::mem::take(&mut self.adjusted);
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            let id = self.choose_adjusted(&mut adjusted, history, allow, mask);
            self.adjusted = adjusted;
            id?
        } else {
            self.choose(logits, summary.max, allow)?
        };
        let mut best = Vec::new();
        if self.params.top_logprobs > 0 {
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
        if !highest(logits).is_finite() {
            return Err(SampleError::NotFinite);
        }
        if let Some(mask) = mask {
            mask.apply(logits);
        }
        match highest(logits) {
            f32::NEG_INFINITY => Err(SampleError::NoCandidate),
            max => self.choose(logits, max, allow),
        }
    }

    fn choose(&mut self, logits: &[f32], max: f32, allow: Option<&[u32]>) -> Result<u32, SampleError> {
        if self.params.is_greedy() {
            let best = match allow {
                Some(ids) => best_of(logits, ids),
                None => argmax(logits, max),
            };
            return best.ok_or(SampleError::NoCandidate);
        }
        let draw = self.uniform();
        match allow {
            Some(ids) => self.shortlist.draw_among(&self.params, logits, ids, draw),
            None => Ok(self.shortlist.draw(&self.params, logits, max, draw)),
        }
    }

    /// The next random number, from 0 to below 1.
    fn uniform(&mut self) -> f64 {
        // 53 random bits: every value is exact in f64 and below 1.
        self.next.take().unwrap_or_else(|| (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// The id with the highest logit out of a list, the lowest such id on ties.
fn best_of(logits: &[f32], ids: &[u32]) -> Option<u32> {
    let better = |best: Option<(u32, f32)>, (id, logit): (u32, f32)| match best {
        Some((id_best, logit_best)) if logit < logit_best || (logit == logit_best && id > id_best) => best,
        _ if logit == f32::NEG_INFINITY => best,
        _ => Some((id, logit)),
    };
    let known = ids.iter().filter_map(|&id| Some((id, *logits.get(id as usize)?)));
    known.fold(None, better).map(|(id, _)| id)
}
