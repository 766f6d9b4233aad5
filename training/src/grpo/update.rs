//! Update of one step: mini-batches, each of which makes an optimizer step over the mean of its micro-batches.

use waymark_models::gradient::Learner;

use super::teacher::{TaughtLoss, TeacherTargets, TokenTarget};
use crate::TrainError;
use crate::optimizer::AdamW;
use crate::pack::{TargetPosition, TrainingSequence, pack, passes};
use crate::policy_loss::{LossInputs, LossSums, PolicyLoss};
use crate::recipe::Grpo;

/// Trajectory with the inputs of its loss.
#[derive(Debug, Clone)]
pub struct LossTrajectory<'a> {
    /// Tokens with their target mask.
    pub sequence: TrainingSequence<'a>,
    /// Log-probability of each token before the update.
    pub old: &'a [f32],
    /// Log-probability of each token under the reference.
    pub reference: &'a [f32],
    /// Advantage relative to the trajectory's group.
    pub advantage: f32,
    /// Teacher's targets. `None` if the trajectory found enough support.
    pub taught: Option<&'a TeacherTargets>,
    /// If `false`, the trajectory is skipped, while the weights of the others stay as if it took part.
    pub active: bool,
}

/// Statistics of the update of a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GrpoUpdateStats {
    /// Sums over the tokens that took part.
    pub sums: LossSums,
    /// Number of optimizer steps.
    pub updates: usize,
    /// Sum of the gradient norms before clipping.
    pub norms: f64,
    /// Number of tokens computed forward and backward.
    pub tokens: usize,
    /// Number of trajectories with a teacher term.
    pub taught: usize,
    /// Sum over those trajectories of their mean divergence from the teacher, in nats.
    pub divergences: f64,
}

impl GrpoUpdateStats {
    /// Mean gradient norm.
    pub fn norm(&self) -> f64 {
        self.norms / self.updates.max(1) as f64
    }

    /// Mean over the taught trajectories of their mean divergence from the teacher, in nats. 0 if there are none.
    pub fn teacher_divergence(&self) -> f64 {
        self.divergences / self.taught.max(1) as f64
    }
}

/// Trains on the trajectories of a step in their order (`dp_actor.update_policy` of verl): the loss of a mini-batch is
/// the mean over its micro-batches of the mean over their tokens. The teacher's term is `teacher_weight` times the mean
/// over the mini-batch's taught trajectories of the mean over their scored tokens, summed over the micro-batches,
/// however the mini-batch is divided.
///
/// # Errors
/// If the model fails.
pub fn update(
    learner: &mut Learner,
    optimizer: &mut AdamW,
    trajectories: &[LossTrajectory<'_>],
    settings: &Grpo,
    rate: f64,
    teacher_weight: f64,
) -> Result<GrpoUpdateStats, TrainError> {
    let mut updated = GrpoUpdateStats::default();
    for mini in trajectories.chunks(settings.mini_batch) {
        // An optimizer step without gradients would still decay weights and advance the moments.
        if mini.iter().all(|trajectory| !trajectory.active) {
            continue;
        }
        // Gradients accumulate over micro-batches and start anew with each optimizer step.
        learner.zero();
        let micros = mini.len().div_ceil(settings.micro_batch);
        let taught = mini.iter().filter(|trajectory| trajectory.active && trajectory.taught.is_some()).count();
        // Each micro-batch adds its part of the mean over the taught trajectories of the mini-batch.
        let weight = teacher_weight / taught.max(1) as f64;
        for micro in mini.chunks(settings.micro_batch) {
            backward(learner, micro, settings, micros, weight, &mut updated)?;
        }
        updated.taught += taught;
        learner.change(|values, gradients| updated.norms += optimizer.step(values, gradients, rate));
        updated.updates += 1;
    }
    Ok(updated)
}

/// Adds the gradient of one of `micros` micro-batches. Each taught trajectory has the weight `teacher_weight`.
fn backward(
    learner: &mut Learner,
    micro: &[LossTrajectory<'_>],
    settings: &Grpo,
    micros: usize,
    teacher_weight: f64,
    updated: &mut GrpoUpdateStats,
) -> Result<(), TrainError> {
    let targets: usize = micro.iter().map(|trajectory| trajectory.sequence.targets()).sum();
    // Inactive trajectories count too, so that skipping flat groups does not change the weight of the others.
    let scale = 1.0 / (targets.max(1) * micros) as f64;
    let active: Vec<&LossTrajectory<'_>> = micro.iter().filter(|trajectory| trajectory.active).collect();
    let sequences: Vec<TrainingSequence<'_>> = active.iter().map(|trajectory| trajectory.sequence).collect();
    for pass in passes(learner, &sequences, settings.pack_tokens) {
        let first = pass.start;
        // Rollouts of a group share their prompt, which a pack computes once.
        let packed = pack(&sequences[pass]);
        let input = |place: &TargetPosition| {
            let trajectory = active[first + place.sequence];
            let old = trajectory.old[place.token];
            let reference = trajectory.reference[place.token];
            LossInputs { old, reference, advantage: trajectory.advantage }
        };
        let inputs: Vec<LossInputs> = packed.places.iter().map(input).collect();
        let teacher_targets =
            |place: &TargetPosition| active[first + place.sequence].taught.and_then(|taught| taught.at(place.token));
        let teacher_targets: Vec<Option<TokenTarget<'_>>> = packed.places.iter().map(teacher_targets).collect();
        let policy_loss = PolicyLoss::new(settings.loss, &inputs, scale);
        let mut loss = TaughtLoss::new(policy_loss, &teacher_targets, teacher_weight);
        learner.learn(&packed.pack, &mut loss)?;
        updated.sums.add(&loss.sums());
        updated.divergences += loss.apart();
        updated.tokens += packed.pack.tokens().len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::gradient::{Likeliest, ScoredModel};

    use super::*;
    use crate::advantage::Advantage;
    use crate::logprobs::logprobs;
    use crate::policy_loss::PolicyLossTerms;
    use crate::recipe::{GrpoReference, Optimizer};
    use crate::reward::evidence_measure::EvidenceMeasure;
    use crate::schedule::ScheduleShape;
    use crate::tiny;

    const VOCAB: usize = 48;

    /// Five trajectories with two per micro-batch and at most two per pass. The last micro-batch has one, and no two
    /// have the same number of targets.
    fn settings() -> Grpo {
        Grpo {
            learning_rate: 1e-3,
            schedule: ScheduleShape::Constant,
            warmup: 0.0,
            questions: 1,
            group: 5,
            mini_batch: 5,
            micro_batch: 2,
            pack_tokens: 40,
            loss: PolicyLossTerms { kl: 0.3, entropy: 0.2, ..PolicyLossTerms::default() },
            advantage: Advantage::Grpo,
            routes: None,
            teacher: None,
            evidence: EvidenceMeasure::default(),
            first_modes: Vec::new(),
            reference: GrpoReference::Initial,
            sampling: waymark_agent::Sampling::default(),
            concurrent: 1,
            skip_flat: false,
            recompute: true,
            cost: waymark_agent::metric::Cost::default(),
            thrift: 0.0,
            validation: 0,
            validate_every: 0,
            save_every: 0,
            keep_last: 1,
            stages: Vec::new(),
        }
    }

    type KnownLogprobs = (Vec<Vec<f32>>, Vec<Vec<f32>>);

    const TEACHER_WEIGHT: f64 = 0.7;

    /// Teacher's targets for the second and the last two trajectories: six tokens at every other target.
    fn taught(sequences: &[TrainingSequence<'_>]) -> Vec<Option<TeacherTargets>> {
        let teacher_targets = |token: usize| {
            let logits: Vec<f32> = (0..VOCAB).map(|id| ((id * 13 + token * 29) % 17) as f32 / 4.0).collect();
            (token, Likeliest::of(&logits, 6))
        };
        let of = |(at, sequence): (usize, &TrainingSequence<'_>)| {
            let tokens = (1..sequence.tokens.len()).filter(|&token| sequence.learned[token] && token % 2 == 0);
            [1, 3, 4].contains(&at).then(|| TeacherTargets { by_token: tokens.map(teacher_targets).collect() })
        };
        sequences.iter().enumerate().map(of).collect()
    }

    /// Mean over the taught trajectories of the mean over their tokens, by definition.
    fn apart(learner: &mut Learner, sequences: &[TrainingSequence<'_>], taught: &[Option<TeacherTargets>]) -> f64 {
        let mut total = 0.0;
        let mut count = 0u32;
        for (at, taught) in taught.iter().enumerate() {
            let Some(taught) = taught else { continue };
            let packed = pack(&sequences[at..=at]);
            let mut sum = 0.0;
            let mut tokens = 0u32;
            let likeliest = learner.likeliest(&packed.pack, VOCAB, ScoredModel::Adapted).unwrap();
            for (place, all) in packed.places.iter().zip(likeliest) {
                let Some((_, likeliest)) = taught.by_token.iter().find(|(token, _)| *token == place.token) else {
                    continue;
                };
                let mut own = [0.0; VOCAB];
                all.ids().iter().zip(all.probabilities()).for_each(|(&id, &p)| own[id as usize] = f64::from(p));
                let share: f64 = likeliest.ids().iter().map(|&id| own[id as usize]).sum();
                for (&id, &p) in likeliest.ids().iter().zip(likeliest.probabilities()) {
                    sum += f64::from(p) * (f64::from(p) * share / own[id as usize]).ln();
                }
                tokens += 1;
            }
            total += sum / f64::from(tokens);
            count += 1;
        }
        total / f64::from(count)
    }

    /// Loss as documented at `update`, one token at a time, in f64.
    fn loss(learner: &mut Learner, sequences: &[TrainingSequence<'_>], known: &KnownLogprobs, settings: &Grpo) -> f64 {
        let PolicyLossTerms { clip, kl, entropy, .. } = settings.loss;
        let micros = sequences.len().div_ceil(settings.micro_batch);
        let mut total = 0.0;
        for first in (0..sequences.len()).step_by(settings.micro_batch) {
            let mut sum = 0.0;
            let mut targets = 0u32;
            for at in first..(first + settings.micro_batch).min(sequences.len()) {
                let packed = pack(&sequences[at..=at]);
                let scores = learner.score(&packed.pack, ScoredModel::Adapted).unwrap();
                for (place, score) in packed.places.iter().zip(scores) {
                    let logprob = f64::from(score.logprob);
                    let old = f64::from(known.0[at][place.token]);
                    let reference = f64::from(known.1[at][place.token]);
                    let advantage = f64::from(advantage(at));
                    let ratio = (logprob - old).exp();
                    let surrogate = (-advantage * ratio).max(-advantage * ratio.clamp(1.0 - clip, 1.0 + clip));
                    let apart = reference - logprob;
                    sum += surrogate + kl * (apart.exp() - apart - 1.0) - entropy * f64::from(score.entropy);
                    targets += 1;
                }
            }
            total += sum / f64::from(targets) / micros as f64;
        }
        total
    }

    fn advantage(at: usize) -> f32 {
        [1.5, -0.5, 0.75, -1.25, -0.5][at]
    }

    #[test]
    fn the_gradient_matches_the_documented_loss_for_any_micro_batches() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), VOCAB);
        let mut learner = tiny::learner(&weights);
        tiny::nudge(&mut learner);
        let (tokens, learned) = tiny::forest(VOCAB);
        let sequences: Vec<TrainingSequence<'_>> =
            tokens.iter().zip(&learned).map(|(tokens, learned)| TrainingSequence { tokens, learned }).collect();
        let settings = settings();
        // The ratios lie within the clip bounds and beyond both of them, but none is near a bound.
        let now = logprobs(&mut learner, &sequences, 1000, ScoredModel::Adapted).unwrap();
        let moved = |by: [f32; 3]| -> Vec<Vec<f32>> {
            now.iter().map(|own| own.iter().enumerate().map(|(at, logprob)| logprob + by[at % 3]).collect()).collect()
        };
        let known: KnownLogprobs = (moved([0.05, -0.5, 0.5]), moved([0.2, -0.3, 0.1]));
        let taught = taught(&sequences);
        let trajectory = |at: usize| LossTrajectory {
            sequence: sequences[at],
            old: &known.0[at],
            reference: &known.1[at],
            advantage: advantage(at),
            taught: taught[at].as_ref(),
            active: true,
        };
        let trajectories: Vec<LossTrajectory<'_>> = (0..5).map(trajectory).collect();
        let before = learner.values().to_vec();
        // With β₁ = 0, the first moment after one step is the gradient itself.
        let plain = Optimizer { betas: (0.0, 0.0), weight_decay: 0.0, clip: 0.0, ..Optimizer::default() };
        let mut optimizer = AdamW::new(plain, before.len());
        let updated = update(&mut learner, &mut optimizer, &trajectories, &settings, 0.0, TEACHER_WEIGHT).unwrap();
        assert_eq!((updated.updates, learner.values()), (1, before.as_slice()));
        assert!(updated.sums.clipped > 0 && updated.sums.clipped < updated.sums.targets);
        let expected = apart(&mut learner, &sequences, &taught);
        assert!(updated.taught == 3 && expected > 0.1, "{expected}");
        assert!(
            (updated.teacher_divergence() - expected).abs() < 1e-4 * expected,
            "{} {expected}",
            updated.teacher_divergence()
        );
        let gradient = optimizer.moments().0.to_vec();
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        assert!((norm - updated.norm()).abs() < 1e-6 * norm);

        tiny::check_slopes(&mut learner, &gradient, |learner| {
            loss(learner, &sequences, &known, &settings) + TEACHER_WEIGHT * apart(learner, &sequences, &taught)
        });
    }
}
