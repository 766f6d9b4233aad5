//! Comparison of one training step of an adapter on the GPU and on the CPU.

use std::time::Instant;

use waymark_models::ModelError;
use waymark_models::gradient::{Learner, Lora, Module, Pack, Score, ScoredModel, Slope, Tune};

use super::compare::prompts;
use super::report::TrainingCheck;

/// Bound on the relative error of the gradient, ‖GPU − CPU‖ / ‖CPU‖: rounding to `bf16` accumulates over layers.
const GRADIENT: f64 = 0.05;
/// Bound on the relative error of any single tensor's gradient.
const TENSOR: f64 = 0.2;
/// Bound on the relative error of log-probabilities and entropies.
const SCORE: f64 = 0.02;

/// Result of one training step.
struct TrainingStep {
    scores: Vec<f32>,
    gradients: Vec<f32>,
    /// Mean loss before and after a small gradient step.
    losses: [f64; 2],
    /// Seconds of a forward and backward pass, with memory already allocated.
    seconds: f64,
}

/// Returns the parameters to train: an adapter on every projection.
pub(super) fn tune() -> Tune {
    Tune::Lora(Lora { rank: 16, alpha: 32.0, targets: Module::ALL.to_vec(), seed: 1 })
}

/// Runs the same training step on both learners and compares the results.
pub(super) fn compare(name: &str, mut gpu: Learner, mut cpu: Learner) -> Result<TrainingCheck, ModelError> {
    let pack = pack(cpu.config().vocab);
    let found = step(&mut gpu, &pack)?;
    let wanted = step(&mut cpu, &pack)?;
    let tensors = cpu.parameters().iter().map(|parameter| {
        let range = parameter.range.clone();
        distance(&found.gradients[range.clone()], &wanted.gradients[range])
    });
    let scores = distance(&found.scores, &wanted.scores);
    let gradient = distance(&found.gradients, &wanted.gradients);
    let tensor = worst(tensors);
    let downhill = [found.losses, wanted.losses].iter().all(|[before, after]| after < before);
    Ok(TrainingCheck {
        what: name.to_owned(),
        tokens: pack.tokens().len(),
        scores,
        gradient,
        tensor,
        gpu: found.losses,
        cpu: wanted.losses,
        gpu_seconds: found.seconds,
        cpu_seconds: wanted.seconds,
        // False for NaN as well.
        holds: scores < SCORE && gradient < GRADIENT && tensor < TENSOR && downhill,
    })
}

/// Creates three answers to one prompt, and a separate sequence.
fn pack(vocab: usize) -> Pack {
    let texts = prompts(5, 40, vocab, 9);
    let mut pack = Pack::new();
    let prompt = pack.push(&texts[0], None);
    for answer in &texts[1..4] {
        let segment = pack.push(answer, Some(prompt));
        (0..answer.len()).for_each(|index| pack.target(segment, index));
    }
    let alone = pack.push(&texts[4], None);
    (8..texts[4].len()).for_each(|index| pack.target(alone, index));
    pack
}

/// Runs a pass for the mean loss with a small entropy term, then takes a small step against the gradient.
fn step(learner: &mut Learner, pack: &Pack) -> Result<TrainingStep, ModelError> {
    // LoRA initializes its matrix B to zero, which would give the matrix A a zero gradient.
    learner.change(|values, _| {
        values.iter_mut().enumerate().for_each(|(at, value)| *value += ((at * 37 % 101) as f32 - 50.0) * 1e-4);
    });
    let count = pack.targets().len() as f32;
    let mut scores = Vec::new();
    // Warm up: the first pass allocates its memory.
    learner.learn(pack, &mut |_, _: Score| Slope::default())?;
    learner.zero();
    let began = Instant::now();
    let mut slope = |_: usize, score: Score| {
        scores.push(score);
        Slope { logprob: -1.0 / count, entropy: 0.01 / count }
    };
    learner.learn(pack, &mut slope)?;
    let seconds = began.elapsed().as_secs_f64();
    let gradients = learner.gradients().to_vec();
    let norm = gradients.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    let rate = (0.1 / norm) as f32;
    learner.change(|values, gradients| {
        values.iter_mut().zip(gradients).for_each(|(value, gradient)| *value -= rate * *gradient);
    });
    let after = learner.score(pack, ScoredModel::Adapted)?;
    let losses = [loss(&scores), loss(&after)];
    let scores = scores.iter().flat_map(|score| [score.logprob, score.entropy]).collect();
    Ok(TrainingStep { scores, gradients, losses, seconds })
}

fn loss(scores: &[Score]) -> f64 {
    -scores.iter().map(|score| f64::from(score.logprob)).sum::<f64>() / scores.len().max(1) as f64
}

fn distance(found: &[f32], wanted: &[f32]) -> f64 {
    let off: f64 = found.iter().zip(wanted).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let norm: f64 = wanted.iter().map(|x| f64::from(*x).powi(2)).sum();
    (off / norm).sqrt()
}

/// Returns the maximum, or NaN if there is one.
fn worst(mut values: impl Iterator<Item = f64>) -> f64 {
    values
        .try_fold(0.0f64, |most, value| if value.is_nan() { Err(value) } else { Ok(most.max(value)) })
        .unwrap_or_else(|nan| nan)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use waymark_models::Arithmetic;
    use waymark_models::kernel::Team;
    use waymark_models::weights::{Weights, write_random};

    use super::super::shape::ModelShape;
    use super::*;

    #[test]
    fn rounding_holds_and_another_adapter_does_not() {
        let shape: ModelShape = "tiny".parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        write_random(dir.path(), &shape.config, 1).unwrap();
        let weights = Weights::open(dir.path()).unwrap();
        let learner =
            |arithmetic, tune: &Tune| Learner::load_with(&weights, Arc::new(Team::new(2)), tune, arithmetic).unwrap();
        let exact = || learner(Arithmetic::F32, &tune());
        let rounded = compare("bf16", learner(Arithmetic::Bf16, &tune()), exact()).unwrap();
        assert!(rounded.holds && rounded.gradient > 0.0, "{rounded:?}");
        let Tune::Lora(lora) = tune() else { panic!("an adapter") };
        let other =
            compare("another", learner(Arithmetic::F32, &Tune::Lora(Lora { seed: 2, ..lora })), exact()).unwrap();
        assert!(!other.holds, "{other:?}");
    }
}
