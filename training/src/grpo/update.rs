//! The update of one step: mini-batches, each an optimizer step over the mean of its micro-batches.

use waymark_models::gradient::Learner;

use super::teacher::{Said, Taught, Teaching};
use crate::TrainError;
use crate::optimizer::AdamW;
use crate::pack::{Place, Sequence, pack, passes};
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
    /// What the teacher says of it, where it found too little.
    pub taught: Option<&'a Taught>,
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
    /// Trajectories that were drawn to what the teacher says.
    pub taught: usize,
    /// Sum over these of their mean divergence from it, in nats.
    pub divergences: f64,
}

impl Updated {
    /// The mean of the gradient's norms.
    pub fn norm(&self) -> f64 {
        self.norms / self.updates.max(1) as f64
    }

    /// The mean over the taught trajectories of their mean divergence from the teacher, in nats; 0 where there are none.
    pub fn apart(&self) -> f64 {
        self.divergences / self.taught.max(1) as f64
    }
}

/// Learns from the trajectories of a step, in their order (`dp_actor.update_policy` of verl): the loss of a mini-batch is
/// the mean over its micro-batches of the mean over their tokens. The teacher's part is `pull` times the mean
/// over the mini-batch's taught trajectories of the mean over their own tokens, whatever the micro-batches: these add up what
/// each has of it.
///
/// # Errors
/// When the model refuses.
pub fn update(
    learner: &mut Learner,
    optimizer: &mut AdamW,
    courses: &[Course<'_>],
    settings: &Grpo,
    (rate, pull): (f64, f64),
) -> Result<Updated, TrainError> {
    let mut updated = Updated::default();
    for mini in courses.chunks(settings.mini_batch) {
        if mini.iter().all(|course| !course.active) {
            continue;
        }
        learner.zero();
        let micros = mini.len().div_ceil(settings.micro_batch);
        let taught = mini.iter().filter(|course| course.active && course.taught.is_some()).count();
        let pull = pull / taught.max(1) as f64;
        for micro in mini.chunks(settings.micro_batch) {
            backward(learner, micro, settings, (micros, pull), &mut updated)?;
        }
        updated.taught += taught;
        learner.change(|values, gradients| updated.norms += optimizer.step(values, gradients, rate));
        updated.updates += 1;
    }
    Ok(updated)
}

/// Adds the gradient of one of `micros` micro-batches, in which a taught trajectory weighs `pull`.
fn backward(
    learner: &mut Learner,
    micro: &[Course<'_>],
    settings: &Grpo,
    (micros, pull): (usize, f64),
    updated: &mut Updated,
) -> Result<(), TrainError> {
    let targets: usize = micro.iter().map(|course| course.sequence.targets()).sum();
    let scale = 1.0 / (targets.max(1) * micros) as f64;
    let active: Vec<&Course<'_>> = micro.iter().filter(|course| course.active).collect();
    let sequences: Vec<Sequence<'_>> = active.iter().map(|course| course.sequence).collect();
    for pass in passes(learner, &sequences, settings.pack_tokens) {
        let first = pass.start;
        let packed = pack(&sequences[pass]);
        let stake = |place: &Place| {
            let course = active[first + place.sequence];
            let (old, reference) = (course.old[place.token], course.reference[place.token]);
            Stake { old, reference, advantage: course.advantage }
        };
        let stakes: Vec<Stake> = packed.places.iter().map(stake).collect();
        let said = |place: &Place| active[first + place.sequence].taught.and_then(|taught| taught.at(place.token));
        let said: Vec<Option<Said<'_>>> = packed.places.iter().map(said).collect();
        let mut loss = Teaching::new(PolicyLoss::new(settings.loss, &stakes, scale), &said, pull);
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
    use waymark_models::gradient::Likeliest;

    use super::*;
    use crate::advantage::Advantage;
    use crate::policy_loss::Terms;
    use crate::recipe::{Optimizer, Reference};
    use crate::schedule::Shape;
    use crate::tiny;

    const VOCAB: usize = 48;

    /// Five trajectories of which two make a micro-batch and two a pass at most: the last micro-batch has one, and none has
    /// as many targets as another.
    fn settings() -> Grpo {
        Grpo {
            learning_rate: 1e-3,
            schedule: Shape::Constant,
            warmup: 0.0,
            questions: 1,
            group: 5,
            mini_batch: 5,
            micro_batch: 2,
            pack_tokens: 40,
            loss: Terms { kl: 0.3, entropy: 0.2, ..Terms::default() },
            advantage: Advantage::Grpo,
            routes: None,
            teacher: None,
            reference: Reference::Initial,
            sampling: waymark::agent::Sampling::default(),
            concurrent: 1,
            skip_flat: false,
            recompute: true,
            cost: waymark::metric::Cost::default(),
            thrift: 0.0,
            validation: 0,
            validate_every: 0,
            save_every: 0,
            keep_last: 1,
            stages: Vec::new(),
        }
    }

    type Known = (Vec<Vec<f32>>, Vec<Vec<f32>>);

    const PULL: f64 = 0.7;

    /// What the teacher says of the second and the last two: of every other token that is learnt, six tokens each.
    fn taught(sequences: &[Sequence<'_>]) -> Vec<Option<Taught>> {
        let said = |token: usize| {
            let logits: Vec<f32> = (0..VOCAB).map(|id| ((id * 13 + token * 29) % 17) as f32 / 4.0).collect();
            (token, Likeliest::of(&logits, 6))
        };
        let of = |(at, sequence): (usize, &Sequence<'_>)| {
            let tokens = (1..sequence.tokens.len()).filter(|&token| sequence.learnt[token] && token % 2 == 0);
            [1, 3, 4].contains(&at).then(|| Taught { said: tokens.map(said).collect() })
        };
        sequences.iter().enumerate().map(of).collect()
    }

    /// The mean over taught trajectories of the mean over their tokens, by its definition.
    fn apart(learner: &mut Learner, sequences: &[Sequence<'_>], taught: &[Option<Taught>]) -> f64 {
        let (mut total, mut count) = (0.0, 0u32);
        for (at, taught) in taught.iter().enumerate() {
            let Some(taught) = taught else { continue };
            let packed = pack(&sequences[at..=at]);
            let (mut sum, mut tokens) = (0.0, 0u32);
            for (place, all) in packed.places.iter().zip(learner.likeliest(&packed.pack, VOCAB, false).unwrap()) {
                let Some((_, likeliest)) = taught.said.iter().find(|(token, _)| *token == place.token) else {
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

    /// The loss as `update` states it, one token at a time, in f64.
    fn loss(learner: &mut Learner, sequences: &[Sequence<'_>], known: &Known, settings: &Grpo) -> f64 {
        let Terms { clip, kl, entropy, .. } = settings.loss;
        let micros = sequences.len().div_ceil(settings.micro_batch);
        let mut total = 0.0;
        for first in (0..sequences.len()).step_by(settings.micro_batch) {
            let (mut sum, mut targets) = (0.0, 0u32);
            for at in first..(first + settings.micro_batch).min(sequences.len()) {
                let packed = pack(&sequences[at..=at]);
                let scores = learner.score(&packed.pack, false).unwrap();
                for (place, score) in packed.places.iter().zip(scores) {
                    let logprob = f64::from(score.logprob);
                    let (old, reference) = (f64::from(known.0[at][place.token]), f64::from(known.1[at][place.token]));
                    let (advantage, ratio) = (f64::from(advantage(at)), (logprob - old).exp());
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
    fn the_gradient_is_that_of_the_stated_loss_whatever_the_micro_batches() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), VOCAB);
        let mut learner = tiny::learner(&weights);
        tiny::nudge(&mut learner);
        let (tokens, learnt) = tiny::forest(VOCAB);
        let sequences: Vec<Sequence<'_>> =
            tokens.iter().zip(&learnt).map(|(tokens, learnt)| Sequence { tokens, learnt }).collect();
        let settings = settings();
        // Ratios within the bounds and beyond them on both sides, none near a bound.
        let now = super::super::logprobs(&mut learner, &sequences, 1000, false).unwrap();
        let moved = |by: [f32; 3]| -> Vec<Vec<f32>> {
            now.iter().map(|own| own.iter().enumerate().map(|(at, logprob)| logprob + by[at % 3]).collect()).collect()
        };
        let known: Known = (moved([0.05, -0.5, 0.5]), moved([0.2, -0.3, 0.1]));
        let taught = taught(&sequences);
        let course = |at: usize| Course {
            sequence: sequences[at],
            old: &known.0[at],
            reference: &known.1[at],
            advantage: advantage(at),
            taught: taught[at].as_ref(),
            active: true,
        };
        let courses: Vec<Course<'_>> = (0..5).map(course).collect();
        let before = learner.values().to_vec();
        // The first moment of its first step is the gradient itself.
        let plain = Optimizer { betas: (0.0, 0.0), weight_decay: 0.0, clip: 0.0, ..Optimizer::default() };
        let mut optimizer = AdamW::new(plain, before.len());
        let updated = update(&mut learner, &mut optimizer, &courses, &settings, (0.0, PULL)).unwrap();
        assert_eq!((updated.updates, learner.values()), (1, before.as_slice()));
        assert!(updated.sums.clipped > 0 && updated.sums.clipped < updated.sums.targets);
        let expected = apart(&mut learner, &sequences, &taught);
        assert!(updated.taught == 3 && expected > 0.1, "{expected}");
        assert!((updated.apart() - expected).abs() < 1e-4 * expected, "{} {expected}", updated.apart());
        let gradient = optimizer.moments().0.to_vec();
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        assert!((norm - updated.norm()).abs() < 1e-6 * norm);

        tiny::check_slopes(&mut learner, &gradient, |learner| {
            loss(learner, &sequences, &known, &settings) + PULL * apart(learner, &sequences, &taught)
        });
    }
}
