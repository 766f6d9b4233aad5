//! The seam between a loss and the decoder: what a target scored, and how the loss changes with it.

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

/// A loss that is a sum over targets. It is asked once for each, in the order of the pack, while the logits are there.
pub trait Objective {
    /// The slope of the loss at target `target`, which scored `score`. Sums for reports are the objective's own.
    fn slope(&mut self, target: usize, score: Score) -> Slope;
}

impl<F: FnMut(usize, Score) -> Slope> Objective for F {
    fn slope(&mut self, target: usize, score: Score) -> Slope {
        self(target, score)
    }
}
