//! Penalties on logits for tokens that have occurred.

use super::SamplingParams;
use super::adjustment::{AdjustedToken, LogitAdjustment};

/// Strengths of the penalties on tokens that have occurred; see [`SamplingParams`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Divisor of positive and factor of other logits.
    pub repetition: f32,
    /// Amount subtracted for each occurrence.
    pub frequency: f32,
    /// Amount subtracted once.
    pub presence: f32,
}

impl Penalties {
    pub(super) fn of(params: &SamplingParams) -> Self {
        Self {
            repetition: params.repetition_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
        }
    }

    /// Penalizes the logit of a token that has occurred.
    pub(super) fn apply(self, occurrences: u32, logit: &mut f32) {
        // CTRL divides all logits; multiplying negative ones keeps the penalty from raising their probability.
        if *logit > 0.0 {
            *logit /= self.repetition;
        } else {
            *logit *= self.repetition;
        }
        *logit -= self.frequency * occurrences as f32 + self.presence;
    }
}

/// Counter of occurrences that does not allocate per token.
#[derive(Debug, Clone, Default)]
pub(super) struct Penalty {
    /// Occurrences by ID; all zero between calls.
    counts: Vec<u32>,
}

impl Penalty {
    /// Applies the penalties for `history` and then the bias, in place. Ignores IDs outside the vocabulary.
    pub(super) fn apply(&mut self, params: &SamplingParams, history: &[u32], logits: &mut [f32]) {
        if params.penalizes() {
            let penalties = Penalties::of(params);
            self.count(logits.len(), history);
            for &id in history {
                let occurrences = self.take(id);
                if occurrences > 0 {
                    penalties.apply(occurrences, &mut logits[id as usize]);
                }
            }
        }
        for &(id, bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
    }

    /// Lists the tokens that [`apply`](Self::apply) would change for a history in two parts. `None` if there are more
    /// than [`LogitAdjustment::MAX_TOKENS`], or if a token has several biases, whose sum depends on the logit.
    pub(super) fn list(
        &mut self,
        params: &SamplingParams,
        history: [&[u32]; 2],
        vocab: usize,
    ) -> Option<Vec<AdjustedToken>> {
        let mut biases: Vec<(u32, Option<f32>)> = params
            .logit_bias
            .iter()
            .map(|&(id, bias)| (id, Some(bias)))
            .filter(|&(id, _)| (id as usize) < vocab)
            .collect();
        biases.sort_unstable_by_key(|&(id, _)| id);
        if biases.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let mut tokens = Vec::new();
        if params.penalizes() {
            history.iter().for_each(|part| self.count(vocab, part));
            for &id in history.into_iter().flatten() {
                let count = self.take(id);
                if count > 0 {
                    let at = biases.binary_search_by_key(&id, |&(id, _)| id).ok();
                    let bias = at.and_then(|at| biases[at].1.take()).unwrap_or(0.0);
                    tokens.push(AdjustedToken { id, count, bias });
                }
            }
        }
        let biased = biases.into_iter().filter_map(|(id, bias)| Some(AdjustedToken { id, count: 0, bias: bias? }));
        tokens.extend(biased);
        (tokens.len() <= LogitAdjustment::MAX_TOKENS).then_some(tokens)
    }

    /// Counts tokens of a vocabulary.
    fn count(&mut self, vocab: usize, history: &[u32]) {
        self.counts.resize(vocab, 0);
        for &id in history {
            if let Some(count) = self.counts.get_mut(id as usize) {
                *count += 1;
            }
        }
    }

    /// Returns the count of a token and clears it, so that each token is visited once.
    fn take(&mut self, id: u32) -> u32 {
        self.counts.get_mut(id as usize).map_or(0, std::mem::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_and_bias_follow_their_formulas() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            logit_bias: vec![(3, -1.0), (99, 1.0)],
            ..Default::default()
        };
        let mut penalty = Penalty::default();
        for _ in 0..2 {
            let mut logits = [4.0, -4.0, 1.0, 1.0];
            penalty.apply(&params, &[0, 1, 0, 77], &mut logits);
            assert_eq!(logits, [2.0 - 1.0 - 0.25, -8.0 - 0.5 - 0.25, 1.0, 0.0]);
        }
    }
}
