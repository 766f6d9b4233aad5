//! Benchmark of the whole decoder: tokens per second, and time per phase.
//!
//! `cargo bench -p waymark-models --bench decoder -- WEIGHTS [--threads 2] [--context 128] [--steps 32] [--kv
//! f32|f16|int8] [--arithmetic f32|bf16|int16] [--sequences 1,2,4,8,16,32] [--adapter DIR] [--zeros [--shared TOKENS]]`
//!
//! Decoding is measured with sequences that have `context` tokens each in the cache, prefill with 512 tokens. With
//! `--zeros` the cache holds zeros instead, which take the same time to read, and prefill is not measured; then the
//! sequences may share the blocks of their first tokens.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waymark_models::decoder::{Decoder, KvCache, KvKind, StepClock, StepPhase};
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, Arithmetic, BLOCK, ForwardBatch, LogitPositions, Logits};

const PREFILL: usize = 512;

struct Options {
    weights: PathBuf,
    threads: usize,
    context: usize,
    steps: usize,
    kv: KvKind,
    arithmetic: Arithmetic,
    sequences: Vec<usize>,
    adapter: Option<PathBuf>,
    zeros: bool,
    shared: usize,
}

impl Options {
    /// `None` if cargo runs every benchmark without naming weights.
    fn parse() -> Option<Self> {
        let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
        let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1)).cloned();
        let number = |name: &str, default: usize| value(name).map_or(default, |value| value.parse().expect("a number"));
        Some(Self {
            weights: arguments.first().filter(|first| !first.starts_with("--"))?.into(),
            threads: number("--threads", 2),
            context: number("--context", 128),
            steps: number("--steps", 32),
            kv: value("--kv").map_or(KvKind::F32, |text| text.parse().expect("a precision")),
            arithmetic: value("--arithmetic").map_or(Arithmetic::F32, |text| text.parse().expect("an arithmetic")),
            sequences: value("--sequences")
                .as_deref()
                .unwrap_or("1,2,4,8,16,32")
                .split(',')
                .map(|count| count.parse().expect("a number of sequences"))
                .collect(),
            adapter: value("--adapter").map(PathBuf::from),
            zeros: arguments.iter().any(|argument| argument == "--zeros"),
            shared: number("--shared", 0),
        })
    }
}

/// A decoder with sequences in its cache, one block table each.
struct Bench {
    decoder: Decoder,
    kv: KvCache,
    logits: Logits,
    batch: ForwardBatch,
    adapter: Option<AdapterSlot>,
    /// Number of blocks per sequence.
    each: usize,
    /// Number of first blocks that all sequences share.
    shared: usize,
}

impl Bench {
    fn step(&mut self, sequences: usize, start: usize, tokens: usize) -> Duration {
        self.batch.clear();
        let ids: Vec<u32> =
            (0..tokens).map(|token| ((start + token) * 131 % self.decoder.config().vocab) as u32).collect();
        for sequence in 0..sequences {
            let own = (self.shared..self.each).map(|block| sequence * self.each + block);
            let table: Vec<u32> = (0..self.shared).chain(own).map(|block| block as u32).collect();
            self.batch.push(&ids, start, &table, self.adapter, LogitPositions::Last);
        }
        let begin = Instant::now();
        self.decoder.forward(&self.batch, &mut self.kv, &mut self.logits).expect("the step runs");
        begin.elapsed()
    }

    /// Runs steps, and prints the median's speed and the time share of each phase.
    fn report(&mut self, name: &str, tokens: usize, steps: usize, mut step: impl FnMut(&mut Self, usize) -> Duration) {
        step(self, 0);
        let before = *self.decoder.clock();
        let mut times: Vec<_> = (0..steps).map(|number| step(self, number)).collect();
        times.sort_unstable();
        let best = times[0].as_secs_f64();
        let median = times[times.len() / 2].as_secs_f64();
        let speed = tokens as f64 / median;
        println!("{name:>12}  {speed:8.1} tok/s   median {:.2} ms, best {:.2} ms", median * 1e3, best * 1e3);
        println!("              {}", shares(&before, self.decoder.clock()));
    }
}

fn shares(before: &StepClock, after: &StepClock) -> String {
    let spent = StepPhase::ALL.map(|part| (after.spent(part) - before.spent(part)).as_secs_f64());
    let all: f64 = spent.iter().sum();
    let share = |(part, spent): (StepPhase, f64)| format!("{part:?} {:.1}%", 100.0 * spent / all).to_lowercase();
    StepPhase::ALL.into_iter().zip(spent).map(share).collect::<Vec<_>>().join(" · ")
}

fn main() {
    let Some(options) = Options::parse() else {
        return println!("give the weights: cargo bench -p waymark-models --bench decoder -- FILE.gguf");
    };
    let begin = Instant::now();
    let weights = Weights::open(&options.weights).expect("the weights open");
    let team = Arc::new(Team::new(options.threads));
    let mut decoder = Decoder::load_with(&weights, team, options.arithmetic).expect("the weights load");
    let megabytes = decoder.weight_bytes() as f64 / 1e6;
    let (time, Options { threads, arithmetic, .. }) = (begin.elapsed().as_secs_f64() * 1e3, &options);
    println!("loaded {megabytes:.0} MB in {time:.0} ms, {threads} threads, {arithmetic}, KV in {}", options.kv);
    let adapter = options.adapter.map(|dir| decoder.load_adapter(&dir).expect("the adapter loads"));
    let each = (options.context + options.steps).max(PREFILL).div_ceil(BLOCK);
    let most = options.sequences.iter().copied().max().expect("numbers of sequences");
    let mut kv = decoder.kv_cache_of(options.kv, each * most);
    if options.zeros {
        // Pages that were never written would all be one page of zeros, which stays in the cache of the CPU.
        kv.reserve();
    }
    assert!(options.zeros || options.shared == 0, "--shared needs --zeros: a step writes no block twice");
    let shared = options.shared / BLOCK;
    let mut bench = Bench { decoder, kv, logits: Logits::new(), batch: ForwardBatch::new(), adapter, each, shared };
    if !options.zeros {
        bench.report("prefill 512", PREFILL, 3, |bench, _| bench.step(1, 0, PREFILL));
    }
    for &sequences in &options.sequences {
        for first in (0..options.context).step_by(PREFILL).take_while(|_| !options.zeros) {
            bench.step(sequences, first, PREFILL.min(options.context - first));
        }
        let name = format!("decode x{sequences}");
        bench.report(&name, sequences, options.steps, |bench, number| {
            bench.step(sequences, options.context + number, 1)
        });
    }
}
