//! The seam between a loss and the decoder: what a target scored, and how the loss changes with it.

use super::Likeliest;

/// What the model says of a target, under its full distribution at temperature 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Score {
    /// Log-probability of the target token, in nats.
    pub logprob: f32,
    /// Entropy of the distribution it was drawn from, in nats.
    pub entropy: f32,
}

/// How a loss changes with a target's score.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slope {
    /// ∂loss/∂logprob.
    pub logprob: f32,
    /// ∂loss/∂entropy.
    pub entropy: f32,
}

/// A distribution that a target is drawn to: the loss has `weight · KL(towards ‖ q)` besides, where q is the model's own
/// distribution over the tokens of `towards` alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pull<'a> {
    /// Its tokens are in the vocabulary.
    pub towards: &'a Likeliest,
    /// How much being apart from it counts.
    pub weight: f32,
}

/// A loss that is a sum over targets. It is asked once for each, in the order of the pack, while the logits are there.
pub trait Objective {
    /// The slope of the loss at target `target`, which scored `score`. Sums for reports are the objective's own.
    fn slope(&mut self, target: usize, score: Score) -> Slope;

    /// What target `target` is drawn to besides, if anything: asked after its slope. A card refuses it.
    fn pull(&self, _target: usize) -> Option<Pull<'_>> {
        None
    }

    /// Told how far target `target` is from what it is drawn to, in nats and without the weight: for reports.
    fn apart(&mut self, _target: usize, _nats: f64) {}
}

impl<F: FnMut(usize, Score) -> Slope> Objective for F {
    fn slope(&mut self, target: usize, score: Score) -> Slope {
        self(target, score)
    }
}
