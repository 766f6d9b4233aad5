//! The update of one step: an optimizer step over the mean of the pairs' losses.

use waymark_models::gradient::{Learner, Score, Slope};

use super::loss::{Likelihood, Terms, Verdict};
use crate::TrainError;
use crate::grpo::logprobs;
use crate::optimizer::AdamW;
use crate::pack::{Sequence, pack, passes};

/// A trajectory of a pair.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// Its tokens.
    pub sequence: Sequence<'a>,
    /// What its learnt tokens add up to under the reference, in nats; 0 without one.
    pub reference: f64,
}

/// Two trajectories of which one is preferred.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The preferred one.
    pub chosen: Side<'a>,
    /// The other one.
    pub rejected: Side<'a>,
}

/// What the update of a step did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Updated {
    /// The means of what the pairs came to before it.
    pub mean: Verdict,
    /// Share of the pairs whose chosen trajectory was ahead.
    pub accuracy: f64,
    /// The gradient's norm before clipping.
    pub norm: f64,
    /// Tokens computed forward and backward.
    pub tokens: usize,
}

/// Learns from `pairs`. Every token of a trajectory has the same slope, and so the gradient is exact in two passes: one to
/// see how probable both sides are, one with what follows from that.
///
/// # Errors
/// When the model refuses.
pub fn update(
    learner: &mut Learner,
    optimizer: &mut AdamW,
    pairs: &[Pair<'_>],
    terms: Terms,
    pack_tokens: usize,
    rate: f64,
) -> Result<Updated, TrainError> {
    let sides: Vec<Side<'_>> = pairs.iter().flat_map(|pair| [pair.chosen, pair.rejected]).collect();
    let sequences: Vec<Sequence<'_>> = sides.iter().map(|side| side.sequence).collect();
    let known = logprobs(learner, &sequences, pack_tokens, false)?;
    let scale = 1.0 / pairs.len().max(1) as f64;
    let mut updated = Updated::default();
    let mut slopes: Vec<f32> = Vec::with_capacity(sides.len());
    for at in (0..sides.len()).step_by(2) {
        let side = |at: usize| Likelihood {
            policy: total(&known[at]),
            reference: sides[at].reference,
            tokens: sequences[at].targets(),
        };
        let verdict = terms.of(side(at), side(at + 1));
        updated.add(&verdict, scale);
        slopes.extend(verdict.slopes.map(|slope| (scale * slope) as f32));
    }
    learner.zero();
    for pass in passes(learner, &sequences, pack_tokens) {
        let first = pass.start;
        let packed = pack(&sequences[pass]);
        let slope = |target: usize| slopes[first + packed.places[target].sequence];
        learner.learn(&packed.pack, &mut |target: usize, _: Score| Slope { logprob: slope(target), entropy: 0.0 })?;
        updated.tokens += packed.pack.tokens().len();
    }
    learner.change(|values, gradients| updated.norm = optimizer.step(values, gradients, rate));
    Ok(updated)
}

/// What log-probabilities add up to, in nats.
pub(super) fn total(logprobs: &[f32]) -> f64 {
    logprobs.iter().copied().map(f64::from).sum()
}

impl Updated {
    fn add(&mut self, verdict: &Verdict, scale: f64) {
        self.mean.preference += scale * verdict.preference;
        self.mean.nll += scale * verdict.nll;
        self.mean.margin += scale * verdict.margin;
        self.mean.loss += scale * verdict.loss;
        self.accuracy += scale * f64::from(u8::from(verdict.margin > 0.0));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::recipe::Optimizer;
    use crate::tiny;

    const VOCAB: usize = 48;
    const TERMS: Terms = Terms { beta: 0.3, nll: 0.7 };

    /// The mean of the pairs' losses, one sequence at a time.
    fn loss(learner: &mut Learner, pairs: &[Pair<'_>]) -> f64 {
        let mut likelihood = |side: &Side<'_>| {
            let scores = learner.score(&pack(&[side.sequence]).pack, false).unwrap();
            let policy = scores.iter().map(|score| f64::from(score.logprob)).sum();
            Likelihood { policy, reference: side.reference, tokens: scores.len() }
        };
        let of = |pair: &Pair<'_>| TERMS.of(likelihood(&pair.chosen), likelihood(&pair.rejected)).loss;
        pairs.iter().map(of).sum::<f64>() / pairs.len() as f64
    }

    #[test]
    fn the_gradient_is_that_of_the_stated_loss_whatever_the_passes() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), VOCAB);
        let mut learner = tiny::learner(&weights);
        tiny::nudge(&mut learner);
        // Two pairs share a prompt, and the third a trajectory with the first.
        let (tokens, learnt) = tiny::forest(VOCAB);
        let side = |at: usize| {
            let sequence = Sequence { tokens: &tokens[at], learnt: &learnt[at] };
            Side { sequence, reference: -2.5 * sequence.targets() as f64 - at as f64 }
        };
        let pairs = [(0, 1), (2, 3), (0, 4)].map(|(one, other)| Pair { chosen: side(one), rejected: side(other) });
        let before = learner.values().to_vec();
        // The first moment of its first step is the gradient itself.
        let plain = Optimizer { betas: (0.0, 0.0), weight_decay: 0.0, clip: 0.0, ..Optimizer::default() };
        let mut gradient_of = |pack_tokens: usize| {
            let mut optimizer = AdamW::new(plain, before.len());
            let updated = update(&mut learner, &mut optimizer, &pairs, TERMS, pack_tokens, 0.0).unwrap();
            (optimizer.moments().0.to_vec(), updated)
        };
        let ((gradient, updated), (parted, _)) = (gradient_of(1000), gradient_of(40));
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 0.0 && (norm - updated.norm).abs() < 1e-6 * norm);
        assert!(gradient.iter().zip(&parted).all(|(a, b)| f64::from((a - b).abs()) < 1e-4 * norm));
        assert!((loss(&mut learner, &pairs) - updated.mean.loss).abs() < 1e-5);

        tiny::check_slopes(&mut learner, &gradient, |learner| loss(learner, &pairs));
    }
}
