//! Tokens per second of a learning step: forward, backward, and the values changed.
//!
//! `cargo bench -p waymark-models --bench gradient -- WEIGHTS [--threads 2] [--length 512] [--rank 16] [--targets 1.0] [--rounds 5] [--limit MB] [--full]`
//!
//! One sequence, then four; the adapter is on queries, keys, values and attention's output. `--targets` says which part
//! of each sequence, at its end, counts in the loss. `scripts/bench/lora_step.py` does the same with PyTorch and `peft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Instant;

use waymark_models::gradient::{Learner, Lora, Module, Pack, Score, Slope, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

const SEQUENCES: [usize; 2] = [1, 4];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let Some(path) = arguments.first().filter(|first| !first.starts_with("--")) else {
        return println!("give the weights: cargo bench -p waymark-models --bench gradient -- FILE.gguf");
    };
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str, default: usize| value(name).map_or(default, |value| value.parse().expect("a number"));
    let targets: f64 = value("--targets").map_or(1.0, |value| value.parse().expect("a number"));
    let (length, rounds) = (number("--length", 512), number("--rounds", 5));
    let modules = [Module::QProj, Module::KProj, Module::VProj, Module::OProj];
    let lora = Lora { rank: number("--rank", 16), alpha: 32.0, targets: modules.to_vec(), seed: 1 };
    let tune = if arguments.iter().any(|a| a == "--full") { Tune::Full } else { Tune::Lora(lora) };
    let begin = Instant::now();
    let weights = Weights::open(path.as_ref()).expect("the weights open");
    let team = Arc::new(Team::new(number("--threads", 2)));
    let mut learner = Learner::load(&weights, team, &tune).expect("the weights load");
    let limit = number("--limit", 0) << 20;
    learner.set_limit((limit > 0).then_some(limit));
    let learnt = learner.values().len() as f64 / 1e6;
    println!("loaded in {:.1} s, {learnt:.2} M values are learnt", begin.elapsed().as_secs_f64());
    for sequences in SEQUENCES {
        let pack = pack(sequences, length, targets, learner.config().vocab);
        let step = |learner: &mut Learner| step(learner, &pack);
        step(&mut learner);
        let mut times: Vec<f64> = (0..rounds).map(|_| step(&mut learner)).collect();
        times.sort_unstable_by(f64::total_cmp);
        let (best, median) = (times[0], times[times.len() / 2]);
        let tokens = pack.tokens().len();
        println!(
            "{sequences} x {length}, {} targets: {:.0} tok/s   median {median:.2} s, best {best:.2} s   \
             peak {} MB, planned {} MB",
            pack.targets().len(),
            tokens as f64 / median,
            peak() >> 20,
            learner.bytes(tokens) >> 20,
        );
    }
}

fn pack(sequences: usize, length: usize, targets: f64, vocab: usize) -> Pack {
    let mut pack = Pack::new();
    for sequence in 0..sequences {
        let tokens: Vec<u32> = (0..length).map(|i| ((i * 131 + sequence * 977) * 7919 % vocab) as u32).collect();
        let segment = pack.push(&tokens, None);
        let first = (length as f64 * (1.0 - targets)) as usize;
        (first.max(1)..length).for_each(|index| pack.target(segment, index));
    }
    pack
}

/// One step of plain gradient descent, in seconds.
fn step(learner: &mut Learner, pack: &Pack) -> f64 {
    let begin = Instant::now();
    let weight = -1.0 / pack.targets().len() as f32;
    learner.zero();
    learner.learn(pack, &mut |_, _: Score| Slope { logprob: weight, entropy: 0.0 }).expect("the pass runs");
    learner.change(|values, gradients| {
        values.iter_mut().zip(gradients).for_each(|(value, gradient)| *value -= 1e-4 * *gradient);
    });
    begin.elapsed().as_secs_f64()
}

/// The most memory this process has had, in bytes; 0 where the system does not say.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kb| kb.parse::<usize>().ok()).unwrap_or(0) << 10
}
