//! How one token is to be chosen, for a device that holds the logits and chooses itself.

use super::{Sampler, SamplingParams};

/// Everything that is needed to choose the next token from a row of logits: temperature, then min-p, top-k and top-p, then
/// the token that `draw` falls on when tokens are walked over by id.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    /// Divides the logits; 0 takes the most probable token, the lowest id on ties.
    pub temperature: f32,
    /// Keeps this many most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest most probable tokens that together have at least this probability.
    pub top_p: f32,
    /// Keeps tokens that are at least this fraction as probable as the most probable one.
    pub min_p: f32,
    /// From 0 to below 1; 0 where nothing is left to chance.
    pub draw: f64,
}

impl Pick {
    /// The most probable token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, draw: 0.0 };
}

impl Sampler {
    /// How the next token is to be chosen by somebody else; `None` where that needs more than one row of logits: what has
    /// been said, a bias, or the most probable tokens beside the chosen one.
    ///
    /// Asked again before [`picked`](Self::picked), the answer is the same; and so is the token that
    /// [`sample`](Self::sample) chooses instead.
    pub fn pick(&mut self) -> Option<Pick> {
        if self.params.adjusts() || self.params.top_logprobs > 0 {
            return None;
        }
        let draw = if self.params.is_greedy() { 0.0 } else { self.uniform() };
        self.next = (!self.params.is_greedy()).then_some(draw);
        let SamplingParams { temperature, top_p, min_p, .. } = self.params;
        let temperature = if self.params.is_greedy() { 0.0 } else { temperature };
        // More than any vocabulary holds is all of it.
        let top_k = u32::try_from(self.params.top_k).unwrap_or(0);
        Some(Pick { temperature, top_k, top_p, min_p, draw })
    }

    /// Notes that the token was chosen as [`pick`](Self::pick) said.
    pub fn picked(&mut self) {
        self.next = None;
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
    fn what_needs_more_than_logits_is_not_given_away() {
        let pick = |params: SamplingParams| Sampler::new(params).pick();
        assert_eq!(pick(SamplingParams::greedy()).unwrap().temperature, 0.0);
        assert_eq!(pick(SamplingParams { top_logprobs: 1, ..SamplingParams::greedy() }), None);
        assert_eq!(pick(SamplingParams { presence_penalty: 0.5, ..SamplingParams::default() }), None);
        assert_eq!(pick(SamplingParams { logit_bias: vec![(1, 2.0)], ..SamplingParams::default() }), None);
    }
}
