//! LoRA training steps compared with PyTorch and `peft`; `scripts/parity/lora_step.py` writes the fixtures.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;

use std::path::PathBuf;
use std::sync::Arc;

use fixture::{Tensors, difference};
use waymark_models::gradient::{Learner, Lora, Module, Pack, Score, Slope, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gradient"))
}

/// Mean loss of a batch; leaves its gradients in the learner.
fn learn(learner: &mut Learner, pack: &Pack) -> f64 {
    let mut loss = 0.0;
    let count = pack.targets().len() as f32;
    learner.zero();
    let mut objective = |_: usize, score: Score| {
        loss -= f64::from(score.logprob / count);
        Slope { logprob: -1.0 / count, entropy: 0.0 }
    };
    learner.learn(pack, &mut objective).unwrap();
    loss
}

/// AdamW with the script's settings (Loshchilov and Hutter 2019, algorithm 2), in `f64`.
fn step(values: &mut [f32], gradients: &[f32], moments: &mut [(f64, f64)], step: i32) {
    const RATE: f64 = 2e-3;
    for ((value, &gradient), (mean, square)) in values.iter_mut().zip(gradients).zip(moments) {
        let gradient = f64::from(gradient);
        *mean = 0.9 * *mean + 0.1 * gradient;
        *square = 0.999 * *square + 0.001 * gradient * gradient;
        let mean = *mean / (1.0 - 0.9f64.powi(step));
        let square = *square / (1.0 - 0.999f64.powi(step));
        let decayed = f64::from(*value) * (1.0 - RATE * 0.01);
        *value = (decayed - RATE * mean / (square.sqrt() + 1e-8)) as f32;
    }
}

#[test]
fn three_steps_agree_with_peft() {
    let expected = Tensors::read(&path().join("expected.safetensors"));
    let tune = Tune::Lora(Lora { rank: 4, alpha: 8.0, targets: Module::ALL.to_vec(), seed: 0 });
    let weights = Weights::open(&path()).unwrap();
    let mut learner = Learner::load(&weights, Arc::new(Team::new(2)), &tune).unwrap();
    learner.load_adapter(&path().join("adapter")).unwrap();
    let mut pack = Pack::new();
    for row in 0..expected.cases() {
        let tokens = expected.integers(&format!("{row}.tokens"));
        let segment = pack.push(&tokens, None);
        (expected.integers(&format!("{row}.prompt"))[0] as usize..tokens.len()).for_each(|at| pack.target(segment, at));
    }
    let losses = expected.floats("losses");
    let mut moments = vec![(0.0, 0.0); learner.values().len()];
    for (number, &loss) in losses.iter().enumerate() {
        let found = learn(&mut learner, &pack);
        assert!((found - f64::from(loss)).abs() < 2e-5 * found, "step {number}: loss {found}, not {loss}");
        for parameter in learner.parameters().iter().filter(|_| number == 0) {
            let gradient = expected.floats(&format!("gradient.{}", parameter.name));
            let most = gradient.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let apart = difference(&learner.gradients()[parameter.range.clone()], &gradient);
            assert!(apart < 1e-4 * most, "{}: {apart} apart of {most}", parameter.name);
        }
        learner.change(|values, gradients| step(values, gradients, &mut moments, number as i32 + 1));
    }
    for parameter in learner.parameters() {
        let after = expected.floats(&format!("after.{}", parameter.name));
        let apart = difference(&learner.values()[parameter.range.clone()], &after);
        assert!(apart < 2e-5, "{}: {apart} apart", parameter.name);
    }
}
