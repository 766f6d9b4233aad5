//! Sampling instructions for a device that holds the logits and samples there.

use std::borrow::Cow;
use std::sync::Arc;

use super::distribution::{LogitSummary, argmax};
use super::penalty::Penalties;
use super::shortlist::Shortlist;
use super::{LogitAdjustment, SampleError, Sampled, Sampler, SamplingParams, TokenMask, uniform};
use crate::kernel::isa::Isa;

/// Complete instructions for sampling one token from a row of logits: the adjustment, temperature, then min-p, top-k
/// and top-p, then the token that `draw` falls on when tokens are visited by ID.
#[derive(Debug, Clone, PartialEq)]
pub struct Pick {
    /// Divisor of the logits. 0 chooses the most probable token; the lowest ID wins ties.
    pub temperature: f32,
    /// Maximum number of most probable tokens to keep. 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of most probable tokens with at least this total probability.
    pub top_p: f32,
    /// Minimum probability of a token, as a fraction of the most probable token's.
    pub min_p: f32,
    /// Random number in [0, 1). 0 if sampling is deterministic.
    pub draw: f64,
    /// Changes to the logits that precede the choice. `None` leaves them as they are.
    pub adjustment: Option<Arc<LogitAdjustment>>,
}

impl Pick {
    /// Chooses the most probable token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0.0, adjustment: None };

    /// Chooses a token on the CPU, as the [`Sampler`] does that gave these instructions.
    ///
    /// # Errors
    /// [`SampleError`] when the logits do not allow a choice.
    pub fn choose(&self, logits: &[f32]) -> Result<Sampled, SampleError> {
        let summary = LogitSummary::of(logits)?;
        let mut adjusted = Cow::Borrowed(logits);
        let mut max = summary.max;
        let mut sum = Some(summary.sum);
        if let Some(adjustment) = &self.adjustment {
            max = adjustment.apply(adjusted.to_mut())?;
            sum = None;
        }
        let Self { temperature, top_p, min_p, .. } = *self;
        let params =
            SamplingParams { temperature, top_p, min_p, top_k: self.top_k as usize, ..SamplingParams::default() };
        let id = match params.is_greedy() {
            true => argmax(Isa::best(), &adjusted, max).ok_or(SampleError::NoCandidate)?,
            false => Shortlist::default().draw(&params, &adjusted, max, sum, self.draw),
        };
        Ok(Sampled { id, logprob: logits[id as usize] - summary.log_sum, top: Vec::new() })
    }
}

impl Sampler {
    /// Instructions for the token after `history` and then `ahead`, which hold if every token of `ahead` is chosen.
    /// `mask` restricts the choice among the `vocab` tokens. `None` if the parameters ask for the most probable
    /// alternatives, or if the adjustment is too large for a list; then [`sample`](Self::sample) must choose.
    ///
    /// Until [`picked`](Self::picked) is called, repeated calls return the same instructions, and
    /// [`sample`](Self::sample) chooses the same token.
    pub fn pick_adjusted(
        &mut self,
        history: &[u32],
        ahead: &[u32],
        mask: Option<TokenMask>,
        vocab: usize,
    ) -> Option<Pick> {
        if self.params.top_logprobs > 0 {
            return None;
        }
        if !self.params.adjusts() && mask.is_none() {
            return Some(self.settings(ahead.len()));
        }
        let tokens = self.penalty.list(&self.params, [history, ahead], vocab)?;
        let adjustment = LogitAdjustment { penalties: Penalties::of(&self.params), tokens, mask };
        Some(Pick { adjustment: Some(Arc::new(adjustment)), ..self.settings(ahead.len()) })
    }

    /// Settings of the token `offset` positions after the next one, without an adjustment.
    fn settings(&mut self, offset: usize) -> Pick {
        let draw = if self.params.is_greedy() { 0.0 } else { self.uniform_ahead(offset) };
        let SamplingParams { temperature, top_p, min_p, .. } = self.params;
        let temperature = if self.params.is_greedy() { 0.0 } else { temperature };
        // A limit beyond every vocabulary keeps all tokens.
        let top_k = u32::try_from(self.params.top_k).unwrap_or(0);
        Pick { temperature, top_k, top_p, min_p, draw, adjustment: None }
    }

    /// Records that the next token was chosen by the instructions of
    /// [`pick_adjusted`](Self::pick_adjusted).
    pub fn picked(&mut self) {
        self.ahead.pop_front();
    }

    /// Random number of the token `offset` positions after the next one, without consuming it.
    fn uniform_ahead(&mut self, offset: usize) -> f64 {
        while self.ahead.len() <= offset {
            self.ahead.push_back(uniform(&mut self.rng));
        }
        self.ahead[offset]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LOGITS: [f32; 6] = [0.1, 0.4, 0.2, 0.9, 0.3, 0.5];

    /// Instructions without an adjustment for the token `offset` positions after the next one.
    fn next(sampler: &mut Sampler, offset: usize) -> Pick {
        sampler.pick_adjusted(&[], &vec![0; offset], None, LOGITS.len()).unwrap()
    }

    #[test]
    fn who_picks_makes_no_difference_to_what_comes_after() {
        let mut alone = Sampler::new(SamplingParams { seed: 5, ..SamplingParams::default() });
        let mut helped = alone.clone();
        for step in 0..40 {
            let token = alone.sample(&LOGITS, &[], None).unwrap().id;
            let pick = next(&mut helped, 0);
            assert_eq!(next(&mut helped, 0), pick, "asked twice");
            if step % 3 == 0 {
                helped.picked();
            } else {
                assert_eq!(helped.sample(&LOGITS, &[], None).unwrap().id, token, "step {step}");
            }
        }
    }

    #[test]
    fn picks_ahead_are_those_of_the_tokens_that_follow() {
        let mut alone = Sampler::new(SamplingParams { seed: 5, ..SamplingParams::default() });
        let mut helped = alone.clone();
        // Each step picks four tokens ahead and consumes one to four of them, on the device or on the host.
        for step in 0..40 {
            let picks = [0, 1, 2, 3].map(|offset| next(&mut helped, offset));
            for pick in &picks[..1 + step % 4] {
                assert_eq!(&next(&mut alone, 0), pick, "step {step}");
                let token = alone.sample(&LOGITS, &[], None).unwrap().id;
                if step % 3 == 0 {
                    helped.picked();
                } else {
                    assert_eq!(helped.sample(&LOGITS, &[], None).unwrap().id, token, "step {step}");
                }
            }
        }
    }

    #[test]
    fn an_adjustment_lists_what_the_sampler_changes() {
        let params = SamplingParams {
            repetition_penalty: 1.3,
            frequency_penalty: 0.2,
            presence_penalty: 0.1,
            logit_bias: vec![(5, -2.0), (0, 1.5), (77, 1.0)],
            seed: 5,
            ..SamplingParams::default()
        };
        let mut alone = Sampler::new(params.clone());
        let mut helped = alone.clone();
        let mask = TokenMask::of(&[0, 1, 3, 4], LOGITS.len());
        let mut history = Vec::new();
        for step in 0..40 {
            let (before, ahead) = history.split_at(history.len() - step % 3 % (history.len() + 1));
            let pick = helped.pick_adjusted(before, ahead, Some(mask.clone()), LOGITS.len()).unwrap();
            let adjustment = pick.adjustment.clone().unwrap();
            let mut found = LOGITS;
            adjustment.apply(&mut found).unwrap();
            let mut wanted = LOGITS;
            alone.penalty.apply(&params, &history, &mut wanted);
            mask.apply(&mut wanted);
            assert_eq!(found, wanted, "step {step}");
            let pick = helped.pick_adjusted(&history, &[], Some(mask.clone()), LOGITS.len()).unwrap();
            let sampled = alone.sample_within(&LOGITS, &history, &mask).unwrap();
            assert_eq!(pick.choose(&LOGITS).unwrap(), sampled, "step {step}");
            history.push(sampled.id);
            helped.picked();
        }
        // A token outside the vocabulary, and a token with two biases.
        assert!(helped.pick_adjusted(&[99], &[], None, 6).unwrap().adjustment.unwrap().tokens.iter().all(|t| t.id < 6));
        let twice = SamplingParams { logit_bias: vec![(1, 0.1), (1, 0.2)], ..SamplingParams::default() };
        assert_eq!(Sampler::new(twice).pick_adjusted(&[], &[], None, 6), None);
        let many: Vec<u32> = (0..=LogitAdjustment::MAX_TOKENS as u32).collect();
        assert_eq!(helped.pick_adjusted(&many, &[], None, 10_000), None, "more tokens than a list holds");
        assert!(helped.pick_adjusted(&many[3..], &[], None, 10_000).is_some());
    }

    #[test]
    fn a_sum_that_is_known_already_changes_no_choice() {
        let logits: Vec<f32> = (0..3000).map(|i| ((i * 7919) % 1000) as f32 * 0.01).collect();
        let penalties = Penalties::of(&SamplingParams::default());
        // Changes no logit, but the sum of the adjusted logits counts as unknown.
        let unchanged = Arc::new(LogitAdjustment { penalties, tokens: Vec::new(), mask: None });
        for at in 0..100 {
            let draw = f64::from(at) / 100.0;
            let known = Pick { temperature: 1.0, top_p: 0.7, draw, ..Pick::GREEDY };
            let unknown = Pick { adjustment: Some(Arc::clone(&unchanged)), ..known.clone() };
            assert_eq!(known.choose(&logits), unknown.choose(&logits), "draw {draw}");
        }
    }

    #[test]
    fn an_adjustment_that_leaves_no_choice_is_an_error_for_both() {
        let none = TokenMask::of(&[99], LOGITS.len());
        let huge = SamplingParams { logit_bias: vec![(1, f32::MAX)], ..SamplingParams::default() };
        for (params, logits, mask, error) in [
            (SamplingParams::default(), [0.5; 6], Some(none), SampleError::NoCandidate),
            (huge, [f32::MAX; 6], None, SampleError::NotFinite),
        ] {
            let mut sampler = Sampler::new(params);
            let pick = sampler.pick_adjusted(&[], &[], mask.clone(), LOGITS.len()).unwrap();
            assert_eq!(pick.choose(&logits), Err(error));
            let found = match mask {
                Some(mask) => sampler.sample_within(&logits, &[], &mask),
                None => sampler.sample(&logits, &[], None),
            };
            assert_eq!(found, Err(error));
        }
    }

    #[test]
    fn what_needs_more_than_logits_is_not_given_away() {
        let pick = |params: SamplingParams| Sampler::new(params).pick_adjusted(&[1], &[], None, LOGITS.len());
        assert_eq!(pick(SamplingParams::greedy()), Some(Pick::GREEDY));
        assert_eq!(pick(SamplingParams { top_logprobs: 1, ..SamplingParams::greedy() }), None);
        assert_eq!(pick(SamplingParams { top_logprobs: 1, presence_penalty: 0.5, ..SamplingParams::default() }), None);
    }
}
