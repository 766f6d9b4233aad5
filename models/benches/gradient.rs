//! Benchmark of a training step: tokens per second of forward pass, backward pass and AdamW step, together and
//! separately.
//!
//! `cargo bench -p waymark-models --bench gradient -- WEIGHTS [--sequences 1] [--length 512] [--threads 2] [--rank
//! 16] [--targets 1.0] [--rounds 5] [--limit MB] [--full] [--arithmetic f32|bf16]`
//!
//! The adapter covers queries, keys, values and attention's output. `--targets` is the fraction at the end of each
//! sequence that counts in the loss; `--arithmetic` applies to multiplications with frozen weights. Times are
//! wall-clock times; the CPU times printed next to them help on a busy machine. `scripts/bench/lora_step.py` runs
//! the same step with PyTorch and `peft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Instant;

use waymark_models::Arithmetic;
use waymark_models::gradient::{Learner, Lora, Module, Pack, Score, ScoredModel, Slope, Tune};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let Some(path) = arguments.first().filter(|first| !first.starts_with("--")) else {
        return println!("give the weights: cargo bench -p waymark-models --bench gradient -- FILE.gguf");
    };
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str, default: usize| value(name).map_or(default, |value| value.parse().expect("a number"));
    let targets: f64 = value("--targets").map_or(1.0, |value| value.parse().expect("a number"));
    let length = number("--length", 512);
    let rounds = number("--rounds", 5);
    if rounds == 0 {
        return println!("--rounds must be at least 1");
    }
    let modules = [Module::QProj, Module::KProj, Module::VProj, Module::OProj];
    let lora = Lora { rank: number("--rank", 16), alpha: 32.0, targets: modules.to_vec(), seed: 1 };
    let tune = if arguments.iter().any(|a| a == "--full") { Tune::Full } else { Tune::Lora(lora) };
    let begin = Instant::now();
    let weights = Weights::open(path.as_ref()).expect("the weights open");
    let team = Arc::new(Team::new(number("--threads", 2)));
    let arithmetic = value("--arithmetic").map_or(Arithmetic::F32, |value| value.parse().expect("an arithmetic"));
    let mut learner = Learner::load_with(&weights, team, &tune, arithmetic).expect("the weights load");
    let limit = number("--limit", 0) << 20;
    learner.set_limit((limit > 0).then_some(limit));
    let trained = learner.values().len() as f64 / 1e6;
    println!("loaded in {:.1} s, {trained:.2} M trained values", begin.elapsed().as_secs_f64());
    let sequences = number("--sequences", 1);
    let pack = pack(sequences, length, targets, learner.config().vocab);
    let mut moments = vec![[0.0; 2]; learner.values().len()];
    step(&mut learner, &pack, &mut moments, 1);
    let busy = cpu_time();
    let times: Vec<[f64; 2]> = (0..rounds).map(|round| step(&mut learner, &pack, &mut moments, round + 2)).collect();
    let busy = (cpu_time() - busy) / rounds as f64;
    let (best, median) = ends(times.iter().map(|[passes, update]| passes + update));
    let passes = ends(times.iter().map(|times| times[0])).1;
    let update = ends(times.iter().map(|times| times[1])).1;
    let forward = ends((0..rounds).map(|_| {
        let begin = Instant::now();
        learner.score(&pack, ScoredModel::Adapted).expect("the pass runs");
        begin.elapsed().as_secs_f64()
    }));
    let tokens = pack.tokens().len();
    let counted = pack.targets().len();
    println!(
        "{sequences} x {length}, {counted} targets: {:.0} tok/s   median {median:.2} s, best {best:.2} s, CPU {busy:.2} s",
        tokens as f64 / median
    );
    let forward = forward.1;
    let rate = |seconds: f64| tokens as f64 / seconds;
    let backward = passes - forward;
    println!(
        "forward alone {forward:.2} s ({:.0} tok/s), the rest of both passes {backward:.2} s ({:.0} tok/s; layers computed again \
         among it), AdamW {:.1} ms",
        rate(forward),
        rate(backward),
        update * 1e3
    );
    println!(
        "memory: peak {} MB, planned {} MB",
        peak() >> 20,
        (learner.bytes_of(&pack) + size_of_val(&*moments)) >> 20
    );
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

/// Minimum and median.
fn ends(times: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut times: Vec<f64> = times.collect();
    times.sort_unstable_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

/// Runs a forward and a backward pass and a step of AdamW (Loshchilov and Hutter 2019, algorithm 2) with PyTorch's
/// default settings, and returns the seconds of both.
fn step(learner: &mut Learner, pack: &Pack, moments: &mut [[f32; 2]], number: usize) -> [f64; 2] {
    const RATE: f32 = 1e-4;
    let begin = Instant::now();
    let weight = -1.0 / pack.targets().len() as f32;
    learner.zero();
    learner.learn(pack, &mut |_, _: Score| Slope { logprob: weight, entropy: 0.0 }).expect("the pass runs");
    let trained = begin.elapsed().as_secs_f64();
    learner.change(|values, gradients| {
        let [first, second] = [0.9f32, 0.999].map(|rate| 1.0 - rate.powi(number as i32));
        for ((value, gradient), [mean, square]) in values.iter_mut().zip(gradients).zip(moments) {
            *mean += 0.1 * (*gradient - *mean);
            *square += 0.001 * (*gradient * *gradient - *square);
            *value -= RATE * (0.01 * *value + *mean / first / ((*square / second).sqrt() + 1e-8));
        }
    });
    [trained, begin.elapsed().as_secs_f64() - trained]
}

/// CPU time of this process in seconds; 0 where the operating system does not report it.
fn cpu_time() -> f64 {
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// Peak memory of this process in bytes; 0 where the operating system does not report it.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|kb| kb.parse::<usize>().ok()).unwrap_or(0) << 10
}
