//! Penalties on logits for tokens that have occurred.

use super::SamplingParams;

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
            self.counts.resize(logits.len(), 0);
            for &id in history {
                if let Some(count) = self.counts.get_mut(id as usize) {
                    *count += 1;
                }
            }
            for &id in history {
                let Some(count) = self.counts.get_mut(id as usize) else { continue };
                // The first visit clears the count, so that each token is penalized once.
                let occurrences = std::mem::take(count);
                if occurrences > 0 {
                    penalize(params, occurrences, &mut logits[id as usize]);
                }
            }
        }
        for &(id, bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
    }
}

fn penalize(params: &SamplingParams, occurrences: u32, logit: &mut f32) {
    // CTRL divides all logits; multiplying negative ones keeps the penalty from raising their probability.
    if *logit > 0.0 {
        *logit /= params.repetition_penalty;
    } else {
        *logit *= params.repetition_penalty;
    }
    *logit -= params.frequency_penalty * occurrences as f32 + params.presence_penalty;
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
