//! `bench-gpu`: checks the results of a GPU, then measures its speed.

mod agentic;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU is compared"))]
mod compare;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU is described"))]
mod facts;
mod gaps;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU multiplies"))]
mod gemm;
mod goal;
mod ledger;
mod part;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU is profiled"))]
mod profile;
mod rates;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU fills all fields"))]
mod report;
mod run;
mod shape;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU is compared"))]
mod training;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;
use waymark_models::cuda::kernel::layout::HEAD_DIMS;
use waymark_models::cuda::kernel::source;
use waymark_models::cuda::plan::WeightFormat;
use waymark_runtime::config::{Device, EmbedderArgs, LogFormat, StepArgs};
use waymark_runtime::logging;

use ledger::ReportLedger;
use part::{BenchPart, LaunchMode};
use rates::RateSampling;
use report::GpuReport;
use shape::ModelShape;

/// Checks the results of a GPU, measures its speed, and prints both.
///
/// The checks compare every kernel with its reference, also at the sizes of real use; greedy text with the CPU's, with
/// adapters and without; batches of up to 256 rows with single rows; CUDA graphs with plain launches; and a training
/// step of an adapter with the CPU's. Then come the GPU's peak rates, the times of matrix multiplications, decode and
/// prefill rates in several shapes with random weights, the agentic load, and profiles: the time of kernels and matrix
/// multiplications by kind of work, for decoding few and many sequences and for prefill. `--device cpu` and `--mock`
/// run only the loads, to try them out.
///
/// A kernel that faults makes the GPU unusable for its process: `scripts/cuda/first_run.py` runs each part in a process
/// of its own.
///
/// Last come the goals with their measurements: met, missed, or not measured. A wrong result makes the command fail; a
/// missed goal does not.
#[derive(Debug, Parser)]
#[command(
    name = "bench-gpu",
    version,
    after_help = "\
Examples:
  bench-gpu --json gpu.json
  bench-gpu --parts check --model smollm2-135m-instruct
  bench-gpu --parts kernels --head-dims 128
  bench-gpu --shapes qwen2.5-7b --parts decode,prefill
  bench-gpu --shapes qwen2.5-7b --parts profile --sequences 1,64
  bench-gpu --judge check.json,gpu.json --peer peer.json
  bench-gpu --mock --sequences 1,4 --loops 4"
)]
struct Args {
    /// Log filter, written to standard error, for example `warn` or `waymark=debug`.
    #[arg(long, env = "WAYMARK_LOG", value_name = "FILTER")]
    log: Option<String>,

    /// Device to measure: `cuda`, `cuda:N` or `cpu`.
    // No environment variable for the device or the index: values meant for servers would conflict with `--mock`, or
    // require `--questions`.
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: Device,

    /// Measure the mock backend: no weights and no arithmetic, only the engine.
    #[arg(long, conflicts_with = "device")]
    mock: bool,

    /// Duration of each step of the mock, in milliseconds: threads that wait for a step then sleep, as with a GPU.
    #[arg(long, value_name = "MS", default_value_t = 0, requires = "mock")]
    mock_step_ms: u64,

    /// Parts of the benchmark to run.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = BenchPart::ALL)]
    parts: Vec<BenchPart>,

    /// Head widths of the kernel checks and stress checks.
    #[arg(long, value_delimiter = ',', default_values_t = [128, 64, 96, 80])]
    head_dims: Vec<usize>,

    /// Shapes to measure, with random weights: `smollm2-135m`, `qwen2.5-3b`, `qwen2.5-7b`, `tiny`, or `tiny-128`.
    #[arg(long, value_delimiter = ',', default_value = "smollm2-135m,qwen2.5-3b,qwen2.5-7b")]
    shapes: Vec<ModelShape>,

    /// Base model for comparing the GPU with the CPU, and for `--device cpu`: a name in the catalog or a path. Defaults
    /// to the model of `--compared`.
    #[arg(long, env = "WAYMARK_MODEL")]
    model: Option<String>,

    /// Shape of the model with random weights that is compared without `--model`: `tiny`, with heads of 64, or
    /// `tiny-128`, with heads of 128.
    #[arg(long, default_value = "tiny", value_name = "SHAPE")]
    compared: ModelShape,

    /// Numbers of sequences to decode.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32, 64, 128, 256])]
    sequences: Vec<usize>,

    /// Prompt tokens per decoded sequence.
    #[arg(long, default_value_t = 128)]
    prompt: usize,

    /// Tokens decoded per sequence.
    #[arg(long, default_value_t = 128)]
    tokens: usize,

    /// Kinds of sampling to decode with.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [RateSampling::Greedy])]
    sampling: Vec<RateSampling>,

    /// Launch modes of decode steps.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = LaunchMode::ALL)]
    launch: Vec<LaunchMode>,

    /// Number of prompts of the prefill measurement.
    #[arg(long, default_value_t = 8)]
    prompts: usize,

    /// Tokens per prompt of the prefill measurement.
    #[arg(long, default_value_t = 2048)]
    prompt_tokens: usize,

    /// Number of measurements per rate; the best one counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// Number of concurrent loops of the agentic load.
    #[arg(long, default_value_t = 64)]
    loops: usize,

    /// Turns per loop.
    #[arg(long, default_value_t = 4)]
    turns: usize,

    /// Tokens per observation.
    #[arg(long, default_value_t = 500)]
    observed: usize,

    /// Tokens generated per turn.
    #[arg(long, default_value_t = 64)]
    written: usize,

    /// Index to search in the agentic load. Without it loops wait for `--search-ms` instead, which the report notes.
    #[arg(long, value_name = "DIR", requires = "questions")]
    index: Option<PathBuf>,

    /// Questions for these searches, one JSON object with a `question` per line.
    #[arg(long, value_name = "FILE")]
    questions: Option<PathBuf>,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Duration of a search without an index, in milliseconds.
    #[arg(long, default_value_t = 20)]
    search_ms: u64,

    /// File that keeps the algorithms chosen for matrix multiplications. Without it, they are chosen in every run.
    #[arg(long, value_name = "FILE")]
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU has algorithms to choose from"))]
    algorithms: Option<PathBuf>,

    /// Format of the layers' matrices in the parts that run a decoder: `bf16` or `fp8`. Shapes in `fp8` have names of their
    /// own in the report. Training is in `bf16`.
    #[arg(long, value_name = "FORMAT", default_value_t = WeightFormat::Bf16, conflicts_with = "mock")]
    weights: WeightFormat,

    /// Folder whose `.cu` files replace the kernels' source files of the same name, to try a change without a build.
    #[arg(long, value_name = "DIR")]
    kernels: Option<PathBuf>,

    #[command(flatten)]
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU has a step limit"))]
    step_args: StepArgs,

    /// Number of threads for CPU work; 0 uses one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    threads: usize,

    /// Directory of downloaded weights. Defaults to the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Output of `scripts/bench/gpu_peer.py --json` on the same GPU, to judge the goals against.
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,

    /// Measure nothing; judge the goals by the `--json` files of earlier runs.
    #[arg(long, value_name = "FILE", value_delimiter = ',', conflicts_with_all = ["mock", "parts"])]
    judge: Vec<PathBuf>,

    /// Write the report as JSON to this file, updated after every part.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    waymark_runtime::exit_code(started(Args::parse()))
}

/// Starts the log and an async runtime and runs the benchmark in it.
fn started(args: Args) -> anyhow::Result<()> {
    logging::start(args.log.as_deref(), "warn", LogFormat::Text)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(args.run())
}

impl Args {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(
            self.rounds > 0 && self.turns > 0 && self.loops > 0,
            "--rounds, --turns and --loops must be at least 1"
        );
        ensure!(
            self.tokens > 1 && self.prompt > 0 && self.prompt_tokens > 0,
            "--tokens must be at least 2, --prompt and --prompt-tokens at least 1"
        );
        ensure!(
            !self.sequences.contains(&0) && !self.sequences.is_empty(),
            "--sequences needs at least one number, each at least 1"
        );
        let kernels = self.kernels.as_deref().map(source::replace_from).transpose()?;
        for dim in &self.head_dims {
            ensure!(HEAD_DIMS.contains(dim), "--head-dims {dim}: expected widths among {HEAD_DIMS:?}");
        }
        // Larger shapes take minutes on the CPU, and the goals look for a real model's name.
        let compared = &self.compared.name;
        ensure!(compared.starts_with("tiny"), "--compared {compared}: expected tiny or tiny-128");
        ensure!(
            self.weights == WeightFormat::Bf16 || self.device != Device::Cpu,
            "--weights {}: a format of weights on a GPU; leave it out for --device cpu",
            self.weights
        );
        // The CPU computes with the checkpoint's weights, which random ones share.
        ensure!(
            self.weights == WeightFormat::Bf16 || self.model.is_none() || !self.wants(BenchPart::Agreement),
            "--weights {} is compared over random weights that the format holds exactly: leave out --model",
            self.weights
        );
        let peer = self.peer.as_deref().map(report::read).transpose()?;
        let source = if self.judge.is_empty() { self.source()? } else { None };
        let notes = kernels.map(|names| format!("kernels replaced: {}", names.join(", "))).into_iter().collect();
        let report = GpuReport { version: env!("CARGO_PKG_VERSION").to_owned(), peer, notes, ..GpuReport::default() };
        let mut ledger = ReportLedger::new(report, self.json.clone())?;
        let outcome = match self.judge.is_empty() {
            true => self.measure(source.as_ref(), &mut ledger).await,
            false => self.read_reports(&mut ledger.report),
        };
        ledger.report.goals = goal::goals(&ledger.report);
        // Save and print partial results even after an error: they are valuable, and standard output may not be read.
        let saved = ledger.save();
        ledger.report.print(&mut io::stdout().lock())?;
        saved?;
        outcome?;
        ensure!(ledger.report.holds(), "some results are wrong: see the lines marked WRONG above");
        Ok(())
    }

    /// Reads the reports of earlier runs.
    fn read_reports(&self, report: &mut GpuReport) -> anyhow::Result<()> {
        self.judge.iter().try_for_each(|path| report.merge(report::read(path)?))
    }

    fn wants(&self, part: BenchPart) -> bool {
        part.is_in(&self.parts)
    }

    fn search_time(&self) -> Duration {
        Duration::from_millis(self.search_ms)
    }
}
