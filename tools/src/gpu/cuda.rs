//! Checks and measurements that need a CUDA GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use waymark_engine::{BackendError, CpuBackend, CudaBackend, KvBudget};
use waymark_models::cuda::algorithms::AlgorithmFile;
use waymark_models::cuda::kernel::check::{KernelFinding, StressCheck};
use waymark_models::cuda::kernel::layout::HEAD_DIMS;
use waymark_models::cuda::plan::{StepLimits, WeightFormat};
use waymark_models::cuda::profile::UniformBatch;
use waymark_models::cuda::{
    CudaDecoder, CudaError, CudaOptions, CudaProfiler, GemmShape, GemmTarget, Gpu, WeightSource,
};
use waymark_models::decoder::Decoder;
use waymark_models::gradient::Learner;
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, BLOCK};

use super::compare::adapter;
use super::compare::batching::compare_batching;
use super::compare::graph_replay::{StepBounds, compare_graphs};
use super::compare::greedy_text::{TextSide, compare_greedy};
use super::compare::prompts;
use super::facts::GpuFacts;
use super::gemm::{self, GemmRow};
use super::ledger::catch_panic;
use super::part::BenchPart;
use super::report::{Agreement, GREEDY, KernelCheck, LoadTime, TrainingCheck};
use super::shape::{Ceilings, ModelShape};
use super::training;

/// Limits of the steps in a comparison.
const LIMITS: StepLimits = StepLimits { rows: 64, tokens: 8192, context: 1024 };

/// Maximum number of rows of [`large_batches`], which runs over a small decoder: the largest default of `--sequences`.
const MAX_ROWS: usize = 256;

/// Number of decode steps in which a row alone is compared with the same row in a batch.
const DECODE_STEPS: usize = 4;

/// Bound on the mean difference of log-probabilities between `bf16` and `f32`; rounding gives a few thousandths.
const BF16_BOUND: f64 = 0.05;

/// The same where steps of many rows round activations to `e4m3` as well. A value is off by 2.6 % (root mean square), and
/// so is a product of it with weights. Attention has two such products in a row (3.7 %), the feed-forward block two, the
/// first of which enters its activation twice (4.5 %): 5.8 % per layer, 14 % after the six layers of a tiny decoder if
/// each outweighed the stream before it. Its logits have a deviation of 1, so one is off by 0.14 and, on average of
/// a normal distribution, by 0.11; the emulator is off by 0.06. A wrong scale or order of values gives other logits, off by
/// more than 1.
const FP8_BOUND: f64 = 0.12;

/// Compares every kernel with its reference, for heads of width `dim`; `limit` is the time limit of a launch. Results
/// before an error are in `kernels`.
pub(super) fn kernels(
    ordinal: usize,
    dim: usize,
    seed: u64,
    limit: Duration,
    kernels: &mut KernelCheck,
) -> anyhow::Result<()> {
    collect(dim, kernels, |found| Ok(Gpu::open(ordinal, dim)?.with_limit(limit).check(dim, seed, found)?))
}

/// Runs a stress check over heads of width `dim`; `limit` is the time limit of a launch. Results before an error are in
/// `kernels`.
pub(super) fn stress(
    ordinal: usize,
    dim: usize,
    part: BenchPart,
    limit: Duration,
    kernels: &mut KernelCheck,
) -> anyhow::Result<()> {
    collect(dim, kernels, |found| {
        let gpu = Gpu::open(ordinal, dim)?.with_limit(limit);
        let check = match part {
            BenchPart::StressAttention => StressCheck::Attention { rows: 64, context: 8192, launches: 500 },
            BenchPart::StressCache => {
                // Above 8 GiB, indices of `bf16` values exceed 32 bits as well.
                let bytes = if gpu.free_memory()? > 12 << 30 { 9 << 30 } else { 5 << 30 };
                StressCheck::Cache { bytes }
            }
            BenchPart::StressSampler => StressCheck::Sampler { vocab: 152_064 },
            other => bail!("{other:?} is not a stress check"),
        };
        Ok(gpu.stress(dim, check, 1, found)?)
    })
}

/// Runs checks of kernels and adds their findings to `kernels`, also those before an error or a panic.
fn collect(
    dim: usize,
    kernels: &mut KernelCheck,
    checks: impl FnOnce(&mut Vec<KernelFinding>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // Findings lie outside the closure, so those before an error or a panic are kept.
    let mut found = Vec::new();
    let checked = catch_panic(|| checks(&mut found));
    for finding in found {
        kernels.compared += 1;
        if finding.holds() {
            kernels.worst = kernels.worst.max(finding.error / finding.bound);
        } else {
            let kernel = finding.kernel.name();
            let case = &finding.case;
            let error = finding.error;
            let bound = finding.bound;
            kernels.wrong.push(format!("{kernel}, {case}, heads of {dim}: {error:.3e}, bound {bound:.0e}"));
        }
    }
    checked
}

/// Describes the GPU, without computing on it.
pub(super) fn describe(ordinal: usize) -> Result<String, CudaError> {
    let (info, _) = Gpu::query(ordinal)?;
    Ok(format!("{}, {} multiprocessors, driver CUDA {}", info.name, info.multiprocessors, info.driver))
}

/// Reads the properties of the GPU and compiles the kernels for heads of these widths. Results before an error are in
/// `facts`.
pub(super) fn facts(ordinal: usize, dims: &[usize], facts: &mut Option<GpuFacts>) -> Result<(), CudaError> {
    let (info, free) = Gpu::query(ordinal)?;
    let (major, minor) = info.capability;
    let capability = format!("{major}.{minor}");
    let facts = facts.insert(GpuFacts { capability, memory: info.memory, free, compile_seconds: Vec::new() });
    for &dim in dims {
        let begun = Instant::now();
        Gpu::open(ordinal, dim)?;
        facts.compile_seconds.push((dim, begun.elapsed().as_secs_f64()));
    }
    Ok(())
}

/// Measures the multiplications by the matrices of a shape. Results before an error are in `found`.
pub(super) fn gemm(
    ordinal: usize,
    shape: &ModelShape,
    rounds: usize,
    best: Option<Ceilings>,
    found: &mut Vec<GemmRow>,
) -> Result<(), CudaError> {
    let gpu = Gpu::open(ordinal, shape.config.head_dim)?;
    for (matrix, inner, columns) in shape.matrices() {
        let shapes = gemm::ROWS.map(|rows| GemmShape { rows, inner, columns });
        gpu.gemm_times(&shapes, rounds, |GemmShape { rows, .. }, target, seconds| {
            let target = match target {
                GemmTarget::Bf16 => "bf16",
                GemmTarget::F32Sum => "f32 sum",
            };
            let shape = shape.name.clone();
            let row = GemmRow { shape, matrix, rows, inner, columns, target, seconds, of_floor: None };
            found.push(row.with_floor(best));
        })?;
    }
    Ok(())
}

/// Measures the peak rates of the GPU.
pub(super) fn ceilings(ordinal: usize) -> Result<Ceilings, CudaError> {
    let ceilings = Gpu::open(ordinal, HEAD_DIMS[0])?.peak_rates(5)?;
    Ok(Ceilings { bandwidth: ceilings.bandwidth, operations: ceilings.operations })
}

/// Settings of every decoder of a run.
#[derive(Debug, Clone)]
pub(super) struct DecoderSettings {
    pub(super) ordinal: usize,
    pub(super) weights: WeightFormat,
    /// Time limit of a step.
    pub(super) limit: Duration,
    /// File of chosen algorithms, if any.
    pub(super) algorithms: Option<AlgorithmFile>,
}

impl DecoderSettings {
    /// Returns the bound on the mean difference of log-probabilities.
    fn bound(&self) -> f64 {
        match self.weights {
            WeightFormat::Bf16 => BF16_BOUND,
            WeightFormat::Fp8 => FP8_BOUND,
        }
    }

    /// Returns the options of a decoder with CUDA graphs and as many KV blocks as fit.
    fn options(&self, limits: StepLimits) -> CudaOptions {
        let Self { ordinal, weights, limit, algorithms } = self.clone();
        CudaOptions { ordinal, weights, limits, share: 0.9, blocks: None, graphs: true, limit, algorithms }
    }
}

/// Creates a backend of this shape with random weights.
pub(super) fn backend(
    settings: &DecoderSettings,
    shape: &ModelShape,
    limits: StepLimits,
    graphs: bool,
    team: Arc<Team>,
) -> Result<(CudaBackend, LoadTime), CudaError> {
    let begun = Instant::now();
    let options = CudaOptions { graphs, ..settings.options(limits) };
    let mut decoder = CudaDecoder::load(WeightSource::Random { config: &shape.config, seed: 1 }, &options)?;
    decoder.warm_up()?;
    // The warm-up counts: a server is ready only after it.
    let plan = *decoder.plan();
    let ready = LoadTime {
        shape: shape.name.clone(),
        seconds: begun.elapsed().as_secs_f64(),
        kv_bytes_per_token: plan.kv_bytes_per_token(),
        kv_tokens: plan.blocks * BLOCK,
    };
    Ok((CudaBackend::new(decoder, &shape.name, 1, team), ready))
}

/// Creates a profiler of this shape with random weights, large enough for `steps`.
pub(super) fn profiler(
    settings: &DecoderSettings,
    shape: &ModelShape,
    limits: StepLimits,
    steps: &[UniformBatch],
) -> Result<CudaProfiler, CudaError> {
    let blocks = steps.iter().map(UniformBatch::blocks).max();
    // Without graphs, because the kernels of a graph cannot be timed one by one.
    let options = CudaOptions { blocks, graphs: false, ..settings.options(limits) };
    CudaProfiler::load(WeightSource::Random { config: &shape.config, seed: 1 }, &options)
}

/// Compares, over one checkpoint, GPU with CPU, with and without adapters; batches with single rows; and CUDA graphs
/// with plain launches. Results before an error are in `found`.
pub(super) fn agreement(
    settings: &DecoderSettings,
    weights: &Weights,
    team: &Arc<Team>,
    found: &mut Vec<Agreement>,
) -> anyhow::Result<()> {
    let bound = settings.bound();
    let context = LIMITS.context.min(weights.config().context);
    let limits = StepLimits { context, ..LIMITS };
    let options = CudaOptions { blocks: Some(4096), ..settings.options(limits) };
    let decoder = CudaDecoder::load(WeightSource::Checkpoint(weights), &options)?;
    let mut gpu = CudaBackend::new(decoder, "gpu", 1, Arc::clone(team));
    let vocab = weights.config().vocab;
    let decoder = Decoder::load(weights, Arc::clone(team))?;
    let mut cpu = CpuBackend::new(decoder, "cpu", 1, KvBudget::Blocks(1024))?;
    let texts = prompts(50, 24, vocab, 7);
    found.push(compare_greedy(GREEDY, TextSide::plain(&mut cpu), TextSide::plain(&mut gpu), &texts, 32, bound)?);
    found.push(compare_batching(&mut gpu, &prompts(64, 40, vocab, 8), DECODE_STEPS, bound)?);
    found.push(graph_agreement(&mut gpu, &[])?);
    let texts = prompts(6, 24, vocab, 10);
    let dir = tempfile::tempdir()?;
    let adapters = adapter::save(weights, team, dir.path())?;
    found.push(adapter::compare_mixed(&mut cpu, &mut gpu, &adapters, &texts, 16, bound)?);
    Ok(())
}

/// Compares batches of [`MAX_ROWS`] rows with single rows, and CUDA graphs of up to as many rows with plain launches,
/// without and with adapters. The graphs are captured by a warm-up, as in a server. Results before an error are in
/// `found`.
pub(super) fn large_batches(
    settings: &DecoderSettings,
    weights: &Weights,
    team: &Arc<Team>,
    found: &mut Vec<Agreement>,
) -> anyhow::Result<()> {
    let limits = StepLimits { rows: MAX_ROWS, ..LIMITS };
    let blocks = Some(limits.rows * limits.context.div_ceil(BLOCK));
    let options = CudaOptions { blocks, ..settings.options(limits) };
    let mut decoder = CudaDecoder::load(WeightSource::Checkpoint(weights), &options)?;
    decoder.warm_up()?;
    let mut gpu = CudaBackend::new(decoder, "gpu", 1, Arc::clone(team));
    // All prompts form one step, with at most 30 tokens each.
    found.push(compare_batching(
        &mut gpu,
        &prompts(MAX_ROWS, 10, weights.config().vocab, 11),
        DECODE_STEPS,
        settings.bound(),
    )?);
    found.push(graph_agreement(&mut gpu, &[])?);
    let dir = tempfile::tempdir()?;
    let slots = adapter::load(&mut gpu, &adapter::save(weights, team, dir.path())?)?;
    found.push(graph_agreement(&mut gpu, &slots)?);
    Ok(())
}

/// Compares replayed graphs with plain launches around the edge of every bucket. Rows use `adapters` in turn.
fn graph_agreement(gpu: &mut CudaBackend, adapters: &[Option<AdapterSlot>]) -> Result<Agreement, BackendError> {
    let decoder = gpu.decoder();
    let edges = decoder.buckets().sizes().to_vec();
    let StepLimits { rows, tokens, context } = *decoder.limits();
    let bounds = StepBounds { rows, tokens, context, vocab: decoder.config().vocab };
    compare_graphs(gpu, &edges, bounds, adapters, |gpu, on| gpu.decoder().set_graphs(on))
}

/// Compares one training step of an adapter on the GPU and on the CPU.
pub(super) fn training(
    ordinal: usize,
    name: &str,
    weights: &Weights,
    team: Arc<Team>,
) -> anyhow::Result<TrainingCheck> {
    let gpu = Learner::load_on_gpu(weights, ordinal, &training::tune(), None)?;
    let cpu = Learner::load(weights, team, &training::tune())?;
    Ok(training::compare(name, gpu, cpu)?)
}
