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

/// Occurrences of the tokens of a history, kept from token to token.
#[derive(Debug, Clone, Default)]
pub(super) struct Penalty {
    /// The counted history.
    history: Vec<u32>,
    /// Occurrences by ID. IDs outside the vocabulary are not counted.
    counts: Vec<u32>,
    /// Counted IDs, each once, in the order of their first occurrence.
    distinct: Vec<u32>,
}

impl Penalty {
    /// Applies the penalties for `history` and then the bias, in place. Ignores IDs outside the vocabulary.
    pub(super) fn apply(&mut self, params: &SamplingParams, history: &[u32], logits: &mut [f32]) {
        if params.penalizes() {
            let penalties = Penalties::of(params);
            self.count(logits.len(), [history, &[]]);
            for &id in &self.distinct {
                penalties.apply(self.counts[id as usize], &mut logits[id as usize]);
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
        if params.penalizes() {
            self.count(vocab, history);
            // A history this long stays too long, and costs no list at each of its later tokens.
            if self.distinct.len() > LogitAdjustment::MAX_TOKENS {
                return None;
            }
        }
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
        let mut tokens = Vec::with_capacity(self.distinct.len() + biases.len());
        for &id in &self.distinct {
            let at = biases.binary_search_by_key(&id, |&(id, _)| id).ok();
            let bias = at.and_then(|at| biases[at].1.take()).unwrap_or(0.0);
            tokens.push(AdjustedToken { id, count: self.counts[id as usize], bias });
        }
        let biased = biases.into_iter().filter_map(|(id, bias)| Some(AdjustedToken { id, count: 0, bias: bias? }));
        tokens.extend(biased);
        (tokens.len() <= LogitAdjustment::MAX_TOKENS).then_some(tokens)
    }

    /// Counts the tokens of a history in two parts: only those that the last call did not count.
    fn count(&mut self, vocab: usize, [before, ahead]: [&[u32]; 2]) {
        if self.counts.len() != vocab {
            *self = Self { counts: vec![0; vocab], ..Self::default() };
        }
        let mut same = common(&self.history, before);
        if same == before.len() {
            same += common(&self.history[same..], ahead);
        }
        // Proposed tokens may have been rejected.
        while self.history.len() > same {
            self.pop();
        }
        before.iter().chain(ahead).skip(same).for_each(|&id| self.push(id));
    }

    fn push(&mut self, id: u32) {
        self.history.push(id);
        let Some(count) = self.counts.get_mut(id as usize) else { return };
        *count += 1;
        if *count == 1 {
            self.distinct.push(id);
        }
    }

    fn pop(&mut self) {
        let Some(id) = self.history.pop() else { return };
        let Some(count) = self.counts.get_mut(id as usize) else { return };
        *count -= 1;
        if *count == 0 {
            // Tokens leave in reverse order, so the last of the list is the one.
            self.distinct.pop();
        }
    }
}

/// Returns the length of the common beginning of two sequences.
fn common(a: &[u32], b: &[u32]) -> usize {
    let len = a.len().min(b.len());
    // The usual case takes one comparison of memory.
    if a[..len] == b[..len] { len } else { a.iter().zip(b).take_while(|(a, b)| a == b).count() }
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

    #[test]
    fn counts_kept_from_call_to_call_are_those_of_the_history() {
        let params =
            SamplingParams { frequency_penalty: 0.5, logit_bias: vec![(3, -1.0), (7, 2.0)], ..Default::default() };
        let mut kept = Penalty::default();
        let mut history: Vec<u32> = Vec::new();
        let mut state = 1u32;
        for step in 0..500 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // A token more, proposed tokens, some tokens rejected, and now and then another history or vocabulary.
            let next = state >> 16;
            match next % 8 {
                0 => history.truncate(history.len() / 2),
                1 => history = (0..next % 9).map(|at| (next >> at) % 12).collect(),
                _ => history.push(next / 8 % 12),
            }
            let vocab = if step % 50 == 49 { 12 } else { 10 };
            let (before, ahead) = history.split_at(history.len() - (next as usize / 128 % 4).min(history.len()));
            let found = kept.list(&params, [before, ahead], vocab);
            assert_eq!(found, Penalty::default().list(&params, [&history, &[]], vocab), "step {step}");
            let [mut found, mut wanted] = [const { [1.0; 12] }; 2];
            kept.apply(&params, before, &mut found[..vocab]);
            Penalty::default().apply(&params, before, &mut wanted[..vocab]);
            assert_eq!(found, wanted, "step {step}");
        }
    }

    #[test]
    fn a_history_of_more_tokens_than_a_list_holds_has_none() {
        let params = SamplingParams { presence_penalty: 0.5, ..Default::default() };
        let most = LogitAdjustment::MAX_TOKENS;
        let many: Vec<u32> = (0..=most as u32).collect();
        let mut penalty = Penalty::default();
        assert_eq!(penalty.list(&params, [&many[1..], &[]], 5000).map(|list| list.len()), Some(most));
        assert_eq!(penalty.list(&params, [&many, &[]], 5000), None);
        assert_eq!(penalty.list(&params, [&many[..5], &[]], 5000).map(|list| list.len()), Some(5));
    }
}
