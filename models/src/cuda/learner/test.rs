//! Training on the kernel emulator compared with the CPU learner.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;

use super::learner;
use crate::cuda::kernel::emulator::Emulator;
use crate::cuda::toy::{self, distance, llama, qwen2, qwen3};
use crate::decoder::DecoderConfig;
use crate::gradient::{
    DistillationTerm, Learner, Likeliest, Lora, Module, Objective, Pack, Score, ScoredModel, Slope, Tune,
};
use crate::kernel::Team;

/// Bound on the relative gradient error ‖found − wanted‖ / ‖wanted‖ from rounding activations to `bf16`.
const BF16: f64 = 1e-2;

/// Segments: number of tokens, parent, targets. Two answers to one prompt, one of which branches again, and a separate
/// sequence; the first tokens of several answers are targets predicted from the same token.
const FOREST: [(usize, Option<usize>, Range<usize>); 6] = [
    (21, None, 15..21),
    (14, Some(0), 0..14),
    (35, None, 2..35),
    (9, Some(0), 0..9),
    (2, Some(1), 0..2),
    (4, Some(1), 0..4),
];

fn forest(vocab: usize) -> Pack {
    let mut pack = Pack::new();
    for (number, (count, parent, _)) in FOREST.into_iter().enumerate() {
        let tokens: Vec<u32> = (0..count).map(|i| ((i * i * 31 + i * 7 + number * 101) % vocab) as u32).collect();
        pack.push(&tokens, parent);
    }
    for (number, (.., targets)) in FOREST.into_iter().enumerate() {
        targets.for_each(|index| pack.target(number, index));
    }
    pack
}

fn lora(targets: &[Module]) -> Tune {
    Tune::Lora(Lora { rank: 3, alpha: 6.0, targets: targets.to_vec(), seed: 5 })
}

/// The CPU learner and the emulator's learner of the same adapter, with values that are nowhere zero.
fn pair(config: &DecoderConfig, tune: &Tune, seed: u64) -> Option<[Learner; 2]> {
    let emulator = Emulator::new(config.head_dim, seed)?;
    let weights = toy::open(config);
    let processor = Learner::load(&weights, Arc::new(Team::new(2)), tune).unwrap();
    let mut pair = [processor, learner(emulator, &weights, tune, None).unwrap()];
    let [a, b] = &pair;
    assert_eq!((a.parameters(), a.values()), (b.parameters(), b.values()), "the same beginning");
    for learner in &mut pair {
        let values: Vec<f32> = (0..learner.values().len()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 400.0).collect();
        learner.set_values(&values).unwrap();
    }
    Some(pair)
}

/// Runs a pass in which every target has its own slopes.
fn learn(learner: &mut Learner, pack: &Pack) -> (Vec<f32>, Vec<Score>) {
    let mut scores = Vec::new();
    learner.zero();
    let mut objective = |target: usize, score: Score| {
        assert_eq!(target, scores.len(), "asked in order");
        scores.push(score);
        Slope { logprob: -0.5 - 0.1 * (target % 7) as f32, entropy: 0.3 - 0.2 * (target % 4) as f32 }
    };
    learner.learn(pack, &mut objective).unwrap();
    (learner.gradients().to_vec(), scores)
}

/// Compares every parameter's gradient and every score, up to rounding.
fn compare(name: &str, config: &DecoderConfig, targets: &[Module], seed: u64) {
    let Some([mut processor, mut emulated]) = pair(config, &lora(targets), seed) else { return };
    let pack = forest(config.vocab);
    let (wanted, scores) = learn(&mut processor, &pack);
    let (found, said) = learn(&mut emulated, &pack);
    let values = |scores: &[Score]| scores.iter().flat_map(|s| [s.logprob, s.entropy]).collect::<Vec<_>>();
    let off = distance(&values(&said), &values(&scores));
    assert!(off < BF16, "{name}: scores off by {off}");
    let mut worst: f64 = 0.0;
    for parameter in processor.parameters() {
        let range = parameter.range.clone();
        let off = distance(&found[range.clone()], &wanted[range]);
        worst = worst.max(off);
        println!("{name} {}: off by {off:.2e}", parameter.name);
    }
    let all = distance(&found, &wanted);
    println!("{name}: scores off by {off:.1e}, gradients by {all:.1e}, the worst tensor's by {worst:.1e}");
    assert!(all < BF16 && worst < 2.0 * BF16, "{name}: gradients off by {all}, one by {worst}");
    for model in [ScoredModel::Adapted, ScoredModel::Base] {
        let wanted = values(&processor.score(&pack, model).unwrap());
        let off = distance(&values(&emulated.score(&pack, model).unwrap()), &wanted);
        assert!(off < BF16, "{name}, {model:?}: scores off by {off}");
    }
}

#[test]
fn a_llama_learns_as_on_the_processor() {
    compare("llama", &llama(), &Module::ALL, 1);
}

#[test]
fn biases_and_a_head_of_its_own_are_taken_backwards() {
    compare("qwen2", &qwen2(), &Module::ALL, 2);
}

#[test]
fn norms_per_head_are_taken_backwards() {
    compare("qwen3", &qwen3(), &Module::ALL, 3);
}

#[test]
fn projections_without_an_adapter_pass_gradients_on() {
    compare("queries and values", &llama(), &[Module::QProj, Module::VProj], 4);
    compare("down", &llama(), &[Module::DownProj], 5);
}

#[test]
fn all_weights_are_not_learned_on_a_card() {
    let Some(emulator) = Emulator::new(64, 1) else { return };
    let error = learner(emulator, &toy::open(&llama()), &Tune::Full, None).unwrap_err().to_string();
    assert!(error.contains("full fine-tuning is not supported on a GPU"), "{error}");
}

/// An objective that pulls every target towards the same tokens.
struct Drawn(Likeliest);

impl Objective for Drawn {
    fn slope(&mut self, _: usize, _: Score) -> Slope {
        Slope::default()
    }

    fn distillation(&self, _: usize) -> Option<DistillationTerm<'_>> {
        Some(DistillationTerm { towards: &self.0, weight: 1.0 })
    }
}

#[test]
fn a_teacher_is_refused_by_name() {
    let Some([mut processor, mut emulated]) = pair(&llama(), &lora(&Module::ALL), 7) else { return };
    let pack = forest(llama().vocab);
    let said = processor.likeliest(&pack, 3, ScoredModel::Adapted).unwrap();
    assert_eq!(said.len(), pack.targets().len());
    let mut drawn = Drawn(said[0].clone());
    assert!(processor.learn(&pack, &mut drawn).is_ok());
    for error in [
        emulated.likeliest(&pack, 3, ScoredModel::Adapted).unwrap_err(),
        emulated.learn(&pack, &mut drawn).unwrap_err(),
    ] {
        assert!(error.to_string().contains("teacher") && error.to_string().contains("--device cpu"), "{error}");
    }
    assert!(emulated.gradients().iter().all(|&gradient| gradient == 0.0));
}

#[test]
fn states_are_refused_by_name() {
    let Some([mut processor, mut emulated]) = pair(&llama(), &lora(&Module::ALL), 7) else { return };
    let pack = forest(llama().vocab);
    assert_eq!(processor.states(&pack, ScoredModel::Base).unwrap().len(), pack.targets().len());
    let error = emulated.states(&pack, ScoredModel::Base).unwrap_err().to_string();
    assert!(error.contains("ranker") && error.contains("--device cpu"), "{error}");
}

#[test]
fn a_step_downhill_counts_in_the_next_pass_and_a_limit_is_kept() {
    let Some([mut processor, mut emulated]) = pair(&llama(), &lora(&Module::ALL), 6) else { return };
    let pack = forest(llama().vocab);
    let mut losses = [&mut processor, &mut emulated].map(|learner| {
        let mut step = || {
            let count = pack.targets().len() as f32;
            let mut loss = 0.0;
            learner.zero();
            let mut slope = |_: usize, score: Score| {
                loss -= score.logprob / count;
                Slope { logprob: -1.0 / count, entropy: 0.0 }
            };
            learner.learn(&pack, &mut slope).unwrap();
            learner.change(|values, gradients| {
                let norm = gradients.iter().map(|g| g * g).sum::<f32>().sqrt();
                values.iter_mut().zip(gradients).for_each(|(value, gradient)| *value -= 0.1 / norm * *gradient);
            });
            loss
        };
        [step(), step(), step()]
    });
    let [wanted, found] = &mut losses;
    assert!(found[2] < found[1] && found[1] < found[0], "{found:?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((*found - *wanted).abs() < 0.01 * *wanted, "{found} instead of {wanted}");
    }
    let need = emulated.bytes_of(&pack);
    assert!(need <= emulated.bytes(2 * pack.tokens().len()));
    emulated.set_limit(Some(need - 1));
    let error = emulated.learn(&pack, &mut |_, _: Score| Slope::default()).unwrap_err().to_string();
    assert!(error.contains("the limit is") && error.contains("make packs smaller"), "{error}");
    emulated.set_limit(Some(need));
    emulated.learn(&pack, &mut |_, _: Score| Slope::default()).unwrap();
}
