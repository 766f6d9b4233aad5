//! Interface between a loss and the decoder: scores of targets, and derivatives of the loss.

use super::Likeliest;

/// Score of a target under the model's full distribution at temperature 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Score {
    /// Log-probability of the target token, in nats.
    pub logprob: f32,
    /// Entropy of the distribution at the target's position, in nats.
    pub entropy: f32,
}

/// Derivative of a loss with respect to a target's score.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slope {
    /// ∂loss/∂logprob.
    pub logprob: f32,
    /// ∂loss/∂entropy.
    pub entropy: f32,
}

/// Distillation term of a target: adds `weight · KL(towards ‖ q)` to the loss, where q is the model's distribution
/// restricted to the tokens of `towards`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DistillationTerm<'a> {
    /// Target distribution, whose tokens must lie in the vocabulary.
    pub towards: &'a Likeliest,
    /// Weight of the term in the loss.
    pub weight: f32,
}

/// A loss that is a sum over targets. `slope` is called once per target, in the order of the pack, while the target's
/// logits are in memory.
pub trait Objective {
    /// Derivative of the loss at target `target`, which has score `score`. Implementations keep their own sums for
    /// reports.
    fn slope(&mut self, target: usize, score: Score) -> Slope;

    /// Distillation term of target `target`, requested after its slope. `None` adds nothing. Not supported on a
    /// GPU.
    fn distillation(&self, _target: usize) -> Option<DistillationTerm<'_>> {
        None
    }

    /// Receives the divergence of target `target` from its distillation target, in nats and without the weight, for
    /// reports.
    fn report_divergence(&mut self, _target: usize, _nats: f64) {}
}

impl<F: FnMut(usize, Score) -> Slope> Objective for F {
    fn slope(&mut self, target: usize, score: Score) -> Slope {
        self(target, score)
    }
}
