//! Sampling instructions for a device that holds the logits and samples there.

use super::{Sampler, SamplingParams, uniform};

/// Complete instructions for sampling one token from a row of logits: temperature, then min-p, top-k and top-p,
/// then the token that `draw` falls on when tokens are visited by ID.
#[derive(Debug, Clone, Copy, PartialEq)]
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
}

impl Pick {
    /// Chooses the most probable token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0.0 };
}

impl Sampler {
    /// Instructions for the next token. `None` if the parameters ask for more than a choice from unchanged logits:
    /// penalties, a bias, or the most probable alternatives.
    ///
    /// Until [`picked`](Self::picked) is called, repeated calls return the same instructions, and
    /// [`sample`](Self::sample) chooses the same token.
    pub fn pick(&mut self) -> Option<Pick> {
        self.pick_ahead(0)
    }

    /// Instructions for the token `offset` positions after the next one, which hold if every token before it is
    /// chosen; see [`pick`](Self::pick).
    pub fn pick_ahead(&mut self, offset: usize) -> Option<Pick> {
        if self.params.adjusts() || self.params.top_logprobs > 0 {
            return None;
        }
        let draw = if self.params.is_greedy() { 0.0 } else { self.uniform_ahead(offset) };
        let SamplingParams { temperature, top_p, min_p, .. } = self.params;
        let temperature = if self.params.is_greedy() { 0.0 } else { temperature };
        // A limit beyond every vocabulary keeps all tokens.
        let top_k = u32::try_from(self.params.top_k).unwrap_or(0);
        Some(Pick { temperature, top_k, top_p, min_p, draw })
    }

    /// Records that the next token was chosen by the instructions of [`pick`](Self::pick).
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

    #[test]
    fn who_picks_makes_no_difference_to_what_comes_after() {
        let mut alone = Sampler::new(SamplingParams { seed: 5, ..SamplingParams::default() });
        let mut helped = alone.clone();
        for step in 0..40 {
            let token = alone.sample(&LOGITS, &[], None).unwrap().id;
            let pick = helped.pick().unwrap();
            assert_eq!(helped.pick(), Some(pick), "asked twice");
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
            let picks = [0, 1, 2, 3].map(|offset| helped.pick_ahead(offset).unwrap());
            for pick in &picks[..1 + step % 4] {
                assert_eq!(alone.pick(), Some(*pick), "step {step}");
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
    fn what_needs_more_than_logits_is_not_given_away() {
        let pick = |params: SamplingParams| Sampler::new(params).pick();
        assert_eq!(pick(SamplingParams::greedy()).unwrap().temperature, 0.0);
        assert_eq!(pick(SamplingParams { top_logprobs: 1, ..SamplingParams::greedy() }), None);
        assert_eq!(pick(SamplingParams { presence_penalty: 0.5, ..SamplingParams::default() }), None);
        assert_eq!(pick(SamplingParams { logit_bias: vec![(1, 2.0)], ..SamplingParams::default() }), None);
    }
}
