//! Update of one step: an optimizer step over the mean loss of the pairs.

use waymark_models::gradient::{Learner, Score, ScoredModel, Slope};

use super::loss::{DpoTerms, Likelihood, PairLoss};
use crate::TrainError;
use crate::logprobs::logprobs;
use crate::optimizer::AdamW;
use crate::pack::{TrainingSequence, pack, passes};
use crate::sft::MaskedSequence;

/// Trajectory of a pair.
#[derive(Debug, Clone, Copy)]
pub struct PairMember<'a> {
    /// Sequences that the policy saw, each with the mask of its targets. Several only if evidence was hidden.
    pub sequences: &'a [MaskedSequence],
    /// Log-likelihood of its target tokens under the reference, in nats. 0 without a reference.
    pub reference: f64,
}

/// Two trajectories, one of which is preferred.
#[derive(Debug, Clone, Copy)]
pub struct PreferencePair<'a> {
    /// Preferred trajectory.
    pub chosen: PairMember<'a>,
    /// Other trajectory.
    pub rejected: PairMember<'a>,
}

/// Statistics of the update of a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DpoUpdateStats {
    /// Mean losses of the pairs before the update.
    pub mean: PairLoss,
    /// Share of pairs whose chosen trajectory had a positive margin.
    pub accuracy: f64,
    /// Gradient norm before clipping.
    pub norm: f64,
    /// Number of tokens computed forward and backward.
    pub tokens: usize,
}

/// Trains on `pairs`. The loss has the same slope in every token of a trajectory, so two passes give the exact
/// gradient: one computes the log-likelihoods of both sides, one back-propagates the resulting slopes.
///
/// # Errors
/// If the model fails.
pub fn update(
    learner: &mut Learner,
    optimizer: &mut AdamW,
    pairs: &[PreferencePair<'_>],
    terms: DpoTerms,
    pack_tokens: usize,
    rate: f64,
) -> Result<DpoUpdateStats, TrainError> {
    let sides: Vec<PairMember<'_>> = pairs.iter().flat_map(|pair| [pair.chosen, pair.rejected]).collect();
    let parts = || sides.iter().enumerate().flat_map(|(at, side)| side.sequences.iter().map(move |part| (at, part)));
    let sequences: Vec<TrainingSequence<'_>> = parts().map(|(_, part)| part.sequence()).collect();
    let owners: Vec<usize> = parts().map(|(at, _)| at).collect();
    let known = logprobs(learner, &sequences, pack_tokens, ScoredModel::Adapted)?;
    let mut likelihoods: Vec<Likelihood> =
        sides.iter().map(|side| Likelihood { reference: side.reference, ..Likelihood::default() }).collect();
    for (&owner, (sequence, logprobs)) in owners.iter().zip(sequences.iter().zip(&known)) {
        likelihoods[owner].policy += total(logprobs);
        likelihoods[owner].tokens += sequence.targets();
    }
    let scale = 1.0 / pairs.len().max(1) as f64;
    let mut updated = DpoUpdateStats::default();
    let mut slopes: Vec<f32> = Vec::with_capacity(sides.len());
    for pair in likelihoods.chunks_exact(2) {
        let pair_loss = terms.of(pair[0], pair[1]);
        updated.add(&pair_loss, scale);
        slopes.extend(pair_loss.slopes.map(|slope| (scale * slope) as f32));
    }
    learner.zero();
    for pass in passes(learner, &sequences, pack_tokens) {
        let first = pass.start;
        let packed = pack(&sequences[pass]);
        // The log-likelihood is the sum over tokens, so each token has the slope of its trajectory.
        let slope = |target: usize| slopes[owners[first + packed.places[target].sequence]];
        learner.learn(&packed.pack, &mut |target: usize, _: Score| Slope { logprob: slope(target), entropy: 0.0 })?;
        updated.tokens += packed.pack.tokens().len();
    }
    learner.change(|values, gradients| updated.norm = optimizer.step(values, gradients, rate));
    Ok(updated)
}

/// Sum of log-probabilities, in nats.
pub(super) fn total(logprobs: &[f32]) -> f64 {
    logprobs.iter().copied().map(f64::from).sum()
}

impl DpoUpdateStats {
    fn add(&mut self, pair_loss: &PairLoss, scale: f64) {
        self.mean.preference += scale * pair_loss.preference;
        self.mean.nll += scale * pair_loss.nll;
        self.mean.margin += scale * pair_loss.margin;
        self.mean.loss += scale * pair_loss.loss;
        self.accuracy += scale * f64::from(u8::from(pair_loss.margin > 0.0));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::recipe::Optimizer;
    use crate::tiny;

    const VOCAB: usize = 48;
    const TERMS: DpoTerms = DpoTerms { beta: 0.3, nll: 0.7 };

    /// Mean loss of the pairs, one sequence at a time.
    fn loss(learner: &mut Learner, pairs: &[PreferencePair<'_>]) -> f64 {
        let mut likelihood = |side: &PairMember<'_>| {
            let mut likelihood = Likelihood { reference: side.reference, ..Likelihood::default() };
            for part in side.sequences {
                let scores = learner.score(&pack(&[part.sequence()]).pack, ScoredModel::Adapted).unwrap();
                likelihood.policy += scores.iter().map(|score| f64::from(score.logprob)).sum::<f64>();
                likelihood.tokens += scores.len();
            }
            likelihood
        };
        let of = |pair: &PreferencePair<'_>| TERMS.of(likelihood(&pair.chosen), likelihood(&pair.rejected)).loss;
        pairs.iter().map(of).sum::<f64>() / pairs.len() as f64
    }

    #[test]
    fn the_gradient_matches_the_documented_loss_for_any_passes() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), VOCAB);
        let mut learner = tiny::learner(&weights);
        tiny::nudge(&mut learner);
        // Two pairs share a prompt, and the third pair shares a trajectory with the first.
        let (tokens, learned) = tiny::forest(VOCAB);
        let masked: Vec<MaskedSequence> =
            tokens.into_iter().zip(learned).map(|(tokens, learned)| MaskedSequence { tokens, learned }).collect();
        let side = |at: usize| {
            // One trajectory consists of two sequences.
            let sequences = if at == 3 { &masked[3..] } else { &masked[at..=at] };
            let targets: usize = sequences.iter().map(|part| part.sequence().targets()).sum();
            PairMember { sequences, reference: -2.5 * targets as f64 - at as f64 }
        };
        let pairs =
            [(0, 1), (2, 3), (0, 4)].map(|(one, other)| PreferencePair { chosen: side(one), rejected: side(other) });
        let before = learner.values().to_vec();
        // With β₁ = 0, the first moment after one step is the gradient itself.
        let plain = Optimizer { betas: (0.0, 0.0), weight_decay: 0.0, clip: 0.0, ..Optimizer::default() };
        let mut gradient_of = |pack_tokens: usize| {
            let mut optimizer = AdamW::new(plain, before.len());
            let updated = update(&mut learner, &mut optimizer, &pairs, TERMS, pack_tokens, 0.0).unwrap();
            (optimizer.moments().0.to_vec(), updated)
        };
        let (gradient, updated) = gradient_of(1000);
        let (parted, _) = gradient_of(40);
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 0.0 && (norm - updated.norm).abs() < 1e-6 * norm);
        assert!(gradient.iter().zip(&parted).all(|(a, b)| f64::from((a - b).abs()) < 1e-4 * norm));
        assert!((loss(&mut learner, &pairs) - updated.mean.loss).abs() < 1e-5);

        tiny::check_slopes(&mut learner, &gradient, |learner| loss(learner, &pairs));
    }
}
