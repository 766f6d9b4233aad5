//! Timed steps: their results are unchanged and all of their time is accounted for.

use super::pair::{DecoderPair, StepOutcome};
use super::{BF16, save};
use crate::batch::LogitPositions;
use crate::cuda::decoder::profiler::Profiler;
use crate::cuda::driver::Driver;
use crate::cuda::kernel::SKINNY_ROWS;
use crate::cuda::kernel::emulator::Emulator;
use crate::cuda::plan::{StepLimits, WeightFormat};
use crate::cuda::profile::{StepProfile, StepTimings, TimedDriver, UniformBatch, WorkCost, WorkKind};
use crate::cuda::source::WeightSource;
use crate::cuda::toy::{self, distance, llama};
use crate::decoder::DecoderConfig;
use crate::gradient::Module;
use crate::sampler::Pick;

/// Number of launches of each kind of work, except matrix multiplication and attention; none of adapters when no row
/// has one.
fn expected(config: &DecoderConfig, adapters: bool, tokens: usize) -> [(WorkKind, usize); 6] {
    let layers = config.layers;
    [
        (WorkKind::Embedding, 1),
        (WorkKind::Norm, 2 * layers + 1),
        (WorkKind::Rotary, layers),
        // Without adapters, few tokens are activated by the product that precedes it.
        (WorkKind::Activation, if adapters || tokens > SKINNY_ROWS { layers } else { 0 }),
        // Two kernels at each of four sites.
        (WorkKind::Adapters, if adapters { 8 * layers } else { 0 }),
        (WorkKind::Sampling, 4),
    ]
}

/// Runs one step of two rows, one of them sampled greedily.
fn step<D: Driver>(pair: &mut DecoderPair<D>, rows: &[(usize, usize, LogitPositions); 2]) -> StepOutcome {
    let batch = pair.batch(rows);
    pair.step(&batch, &[None, Some(Pick::GREEDY)])
}

/// Checks that each launch was timed once and separately.
fn counted(timings: &StepTimings, config: &DecoderConfig, attention: usize) {
    let count = |kind: fn(WorkKind) -> bool| timings.launches.iter().filter(|launch| kind(launch.work)).count();
    for (work, launches) in expected(config, true, 0) {
        let found = timings.launches.iter().filter(|launch| launch.work == work).count();
        assert_eq!(found, launches, "{work}");
    }
    assert_eq!(count(|work| matches!(work, WorkKind::MatMul { .. })), 4 * config.layers + 1);
    assert_eq!(count(|work| work == WorkKind::Attention), attention);
    assert_eq!(count(|work| work == WorkKind::Learning), 0);
    let sum: f64 = timings.launches.iter().map(|launch| launch.seconds).sum();
    assert!(sum > 0.0 && sum <= timings.whole * (1.0 + 1e-9), "{sum} s of {} s", timings.whole);
}

#[test]
fn a_timed_step_computes_the_same_and_each_launch_is_timed_once() {
    let config = llama();
    let weights = toy::open(&llama());
    let (Some(mut plain), Some(emulator)) = (DecoderPair::new(&weights, 9), Emulator::new(config.head_dim, 9)) else {
        return;
    };
    let mut timed = DecoderPair::on(TimedDriver::new(emulator), &weights, WeightFormat::Bf16);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("all");
    save(&weights, 3, &Module::ALL, &dir);
    let adapter = Some(plain.load_adapter(&dir));
    assert_eq!(adapter, Some(timed.load_adapter(&dir)));
    let rows = [plain.begin(1, adapter), plain.begin(2, None)];
    assert_eq!(rows, [timed.begin(1, adapter), timed.begin(2, None)]);
    // A chunk and a row with one token need both attention kernels; decoding needs one.
    for (new, attention) in [(20, 2 * config.layers), (1, config.layers)] {
        let rows = [(rows[0], new, LogitPositions::Last), (rows[1], 1, LogitPositions::Last)];
        let wanted = step(&mut plain, &rows);
        timed.driver().start();
        let found = step(&mut timed, &rows);
        let timings = timed.driver().stop().unwrap();
        assert_eq!(found.step, wanted.step);
        assert_eq!(found.found, wanted.found, "to the last bit");
        assert_eq!(found.sampled, wanted.sampled);
        counted(&timings, &config, attention);
    }
    // Timing is off for this step.
    step(&mut timed, &[(rows[0], 1, LogitPositions::Last), (rows[1], 1, LogitPositions::Last)]);
    assert_eq!(timed.driver().stop().unwrap(), StepTimings::default());
}

/// Checks that a profile is complete: the number of launches is right and their times add up.
fn whole(profile: &StepProfile, config: &DecoderConfig, tokens: usize) {
    for (work, launches) in expected(config, false, tokens) {
        let line = profile.lines.iter().find(|line| line.work == work);
        assert_eq!(line.map_or(0, |line| line.launches), launches, "{work}");
    }
    // Each layer has two norms, rotation, one attention and four matrix multiplications, and for many tokens an
    // activation; the rest comes before and after the layers.
    let launches: usize = profile.lines.iter().map(|line| line.launches).sum();
    let of_layer = if tokens > SKINNY_ROWS { 9 } else { 8 };
    assert_eq!(launches, of_layer * config.layers + 7);
    assert!(profile.lines.is_sorted_by(|a, b| a.seconds >= b.seconds));
    assert!(profile.lines.iter().all(|line| line.seconds > 0.0 && line.cost.is_some()), "{profile:?}");
    let gaps = profile.gaps();
    assert!((-1e-9..profile.whole).contains(&gaps), "{gaps} s of {} s", profile.whole);
    assert!(profile.alone > 0.0);
}

#[test]
fn a_profile_of_decoding_and_of_prefill_leaves_nothing_out() {
    let config = llama();
    let weights = toy::open(&llama());
    let Some(emulator) = Emulator::new(config.head_dim, 10) else { return };
    let limits = StepLimits { rows: 4, tokens: 64, context: 64 };
    let rows = 3;
    let decode = UniformBatch { rows, before: 20, new: 1 };
    let prefill = UniformBatch { before: 0, new: 21, ..decode };
    assert_eq!((decode.blocks(), prefill.blocks()), (6, 6));
    let source = WeightSource::Checkpoint(&weights);
    let mut profiler = Profiler::load(emulator, source, WeightFormat::Bf16, limits, 132, decode.blocks()).unwrap();
    let mut run = |alike: UniformBatch| {
        let profile = profiler.profile(alike, 2).unwrap();
        whole(&profile, &config, alike.rows * alike.new);
        let slice = profiler.runner.logits(0, rows);
        let mut logits = vec![0.0; slice.len()];
        profiler.runner.driver.download(slice, &mut logits).unwrap();
        (profile, logits)
    };
    let (profile, decoded) = run(decode);
    // Queries are 256 wide, keys and values 128 each; three rows are padded to four.
    let line = profile.lines.iter().find(|line| line.work == WorkKind::MatMul { inn: 128, out: 512 }).unwrap();
    let bytes = 2 * (4 * 128 + 128 * 512 + 4 * 512);
    let operations = 2 * 4 * 128 * 512;
    let cost = WorkCost { bytes: config.layers * bytes, operations: config.layers * operations };
    assert_eq!((line.launches, line.cost), (config.layers, Some(cost)));
    // The last of 21 tokens is the same whether the others came in earlier steps or in the same one.
    let (_, filled) = run(prefill);
    let off = distance(&decoded, &filled);
    assert!(off < BF16, "off by {off}");
    let many = profiler.profile(UniformBatch { rows: 5, before: 0, new: 1 }, 1);
    assert!(many.is_err_and(|error| error.to_string().contains("5 rows")), "more than the limits");
}
