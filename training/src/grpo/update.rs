//! The update of one step: mini-batches, each an optimizer step over the mean of its micro-batches.

use waymark_models::gradient::Learner;

use crate::TrainError;
use crate::optimizer::AdamW;
use crate::pack::{Sequence, pack, split};
use crate::policy_loss::{PolicyLoss, Stake, Sums};
use crate::recipe::Grpo;

/// A trajectory that is learnt from.
#[derive(Debug, Clone)]
pub struct Course<'a> {
    /// Its tokens.
    pub sequence: Sequence<'a>,
    /// For each token, its log-probability before the update.
    pub old: &'a [f32],
    /// For each token, its log-probability under the reference.
    pub reference: &'a [f32],
    /// How much better it is than the others of its group.
    pub advantage: f32,
    /// Whether it takes part; the weights of the others are as if it did.
    pub active: bool,
}

/// What the update of a step did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Updated {
    /// Sums over the tokens that took part.
    pub sums: Sums,
    /// Optimizer steps.
    pub updates: usize,
    /// Sum of the gradient's norms before clipping.
    pub norms: f64,
    /// Tokens computed, forward and backward.
    pub tokens: usize,
}

impl Updated {
    /// The mean of the gradient's norms.
    pub fn norm(&self) -> f64 {
        self.norms / self.updates.max(1) as f64
    }
}

/// Learns from the trajectories of a step, in their order (`dp_actor.update_policy` of verl): the loss of a mini-batch is
/// the mean over its micro-batches of the mean over their tokens.
///
/// # Errors
/// When the model refuses.
pub fn update(
    learner: &mut Learner,
    optimizer: &mut AdamW,
    courses: &[Course<'_>],
    settings: &Grpo,
    rate: f64,
) -> Result<Updated, TrainError> {
    let mut updated = Updated::default();
    for mini in courses.chunks(settings.mini_batch) {
        if mini.iter().all(|course| !course.active) {
            continue;
        }
        learner.zero();
        let micros = mini.len().div_ceil(settings.micro_batch);
        for micro in mini.chunks(settings.micro_batch) {
            backward(learner, micro, settings, micros, &mut updated)?;
        }
        learner.change(|values, gradients| updated.norms += optimizer.step(values, gradients, rate));
        updated.updates += 1;
    }
    Ok(updated)
}

/// Adds the gradient of one of `micros` micro-batches.
fn backward(
    learner: &mut Learner,
    micro: &[Course<'_>],
    settings: &Grpo,
    micros: usize,
    updated: &mut Updated,
) -> Result<(), TrainError> {
    let targets: usize = micro.iter().map(|course| course.sequence.targets()).sum();
    let scale = 1.0 / (targets.max(1) * micros) as f64;
    let active: Vec<&Course<'_>> = micro.iter().filter(|course| course.active).collect();
    let sequences: Vec<Sequence<'_>> = active.iter().map(|course| course.sequence).collect();
    for pass in split(&sequences, settings.pack_tokens) {
        let first = pass.start;
        let packed = pack(&sequences[pass]);
        let stake = |place: &crate::pack::Place| {
            let course = active[first + place.sequence];
            let (old, reference) = (course.old[place.token], course.reference[place.token]);
            Stake { old, reference, advantage: course.advantage }
        };
        let stakes: Vec<Stake> = packed.places.iter().map(stake).collect();
        let mut loss = PolicyLoss::new(settings.loss, &stakes, scale);
        learner.learn(&packed.pack, &mut loss)?;
        updated.sums.add(&loss.sums());
        updated.tokens += packed.pack.tokens().len();
    }
    Ok(())
}
