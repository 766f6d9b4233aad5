//! `waymark bench gpu`: is a card right, then how fast is it; in one go, from the program alone.

mod agentic;
#[cfg(feature = "cuda")]
mod card;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a card is compared"))]
mod compare;
#[cfg(feature = "cuda")]
mod folder;
mod goal;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a card is compared"))]
mod learn;
mod ledger;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a card is profiled"))]
mod profile;
mod rates;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a card fills all of it"))]
mod report;
mod run;
mod shape;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;

use crate::config::{Device, StepArgs};
use ledger::Ledger;
use report::Report;
use shape::Shape;

/// Checks what a card computes and measures how fast it does, and prints both.
///
/// First every kernel is compared with its reference; greedy text with the processor's, with adapters and without; batches
/// of up to 256 with single rows; recorded steps with launched ones; and a step of learning an adapter with the
/// processor's. Then the card's ceilings, decode and prefill rates in several shapes with random weights, and the agentic
/// load; and where a step's time goes: its kernels and products timed one by one, by kind of work, for few and many sequences
/// decoding and for prefill. `--device cpu` and `--mock` run the loads alone, to try them out.
///
/// Last come the goals, each with what was measured: met, missed, or not measured. What is computed wrong makes the command
/// fail; a goal that is missed does not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark bench gpu --json gpu.json
  waymark bench gpu --parts check --model smollm2-135m-instruct
  waymark bench gpu --shapes qwen2.5-7b --parts decode,prefill
  waymark bench gpu --shapes qwen2.5-7b --parts profile --sequences 1,64
  waymark bench gpu --judge check.json,gpu.json --peer peer.json
  waymark bench gpu --mock --sequences 1,4 --loops 4")]
pub(crate) struct Args {
    /// What is measured: `cuda` or `cuda:N`, or `cpu`.
    // No variable sets this or the index: what is meant for servers would refuse `--mock`, or want `--questions`.
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: Device,

    /// Measure the mock: no weights, no arithmetic, the engine alone.
    #[arg(long, conflicts_with = "device")]
    mock: bool,

    /// What to do.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Part::ALL)]
    parts: Vec<Part>,

    /// Shapes to measure, with random weights: `smollm2-135m`, `qwen2.5-3b`, `qwen2.5-7b`, or `tiny`.
    #[arg(long, value_delimiter = ',', default_value = "smollm2-135m,qwen2.5-3b,qwen2.5-7b")]
    shapes: Vec<Shape>,

    /// Base model for comparing the card with the processor, and for `--device cpu`: a name in the catalog or a path.
    /// Without it a small one with random weights is made.
    #[arg(long, env = "WAYMARK_MODEL")]
    model: Option<String>,

    /// Numbers of sequences to decode.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32, 64, 128, 256])]
    sequences: Vec<usize>,

    /// Prompt tokens per decoded sequence.
    #[arg(long, default_value_t = 128)]
    prompt: usize,

    /// Tokens decoded per sequence.
    #[arg(long, default_value_t = 128)]
    tokens: usize,

    /// Prompts of the prefill measurement, and tokens of each.
    #[arg(long, default_value_t = 8)]
    prompts: usize,

    /// Tokens of each of those prompts.
    #[arg(long, default_value_t = 2048)]
    prompt_tokens: usize,

    /// How often each rate is measured; the best counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// Loops of the agentic load.
    #[arg(long, default_value_t = 64)]
    loops: usize,

    /// Turns of each loop.
    #[arg(long, default_value_t = 4)]
    turns: usize,

    /// Tokens of an observation.
    #[arg(long, default_value_t = 500)]
    observed: usize,

    /// Tokens a turn writes.
    #[arg(long, default_value_t = 64)]
    written: usize,

    /// The index that the loops search; without it they wait for `--search-ms` instead, and the report says so.
    #[arg(long, value_name = "DIR", requires = "questions")]
    index: Option<PathBuf>,

    /// Questions for those searches, one JSON object with a `question` per line.
    #[arg(long, value_name = "FILE")]
    questions: Option<PathBuf>,

    /// Embedding model of that index: a name in the catalog or a directory.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// How long a search takes where there is no index.
    #[arg(long, default_value_t = 20)]
    search_ms: u64,

    #[command(flatten)]
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a card is waited for"))]
    patience: StepArgs,

    /// Threads that compute what is left to the processor; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    threads: usize,

    /// Where downloaded weights are kept; the user's cache directory when not given.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    /// What `scripts/bench/gpu_peer.py --json` wrote on the same card: goals are judged against it as well.
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,

    /// Measure nothing: judge the goals by what earlier runs wrote with `--json`.
    #[arg(long, value_name = "FILE", value_delimiter = ',', conflicts_with_all = ["mock", "parts"])]
    judge: Vec<PathBuf>,

    /// Write everything as JSON into this file, after every part anew.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A part of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Kernels against their references; the card against the processor.
    Check,
    /// Copy bandwidth and matrix rate.
    Ceilings,
    /// Decode rates.
    Decode,
    /// Prefill rates.
    Prefill,
    /// The agentic load.
    Agentic,
    /// Where a step's time goes, by kind of work: decoding at the first of `--sequences` and the largest up to 64, and a
    /// step of prefill.
    Profile,
}

impl Part {
    const ALL: [Self; 6] = [Self::Check, Self::Ceilings, Self::Decode, Self::Prefill, Self::Agentic, Self::Profile];
}

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        ensure!(self.rounds > 0 && self.turns > 0 && self.loops > 0, "--rounds, --turns, --loops: at least 1");
        ensure!(
            self.tokens > 1 && self.prompt > 0 && self.prompt_tokens > 0,
            "--tokens: at least 2; prompts: at least 1"
        );
        ensure!(!self.sequences.contains(&0) && !self.sequences.is_empty(), "--sequences: at least 1 each");
        let peer = self.peer.as_deref().map(report::read).transpose()?;
        let source = if self.judge.is_empty() { self.source()? } else { None };
        let report = Report { version: env!("CARGO_PKG_VERSION").to_owned(), peer, ..Report::default() };
        let mut ledger = Ledger::new(report, self.json.clone())?;
        let outcome = match self.judge.is_empty() {
            true => self.measure(source.as_ref(), &mut ledger).await,
            false => self.kept(&mut ledger.report),
        };
        ledger.report.goals = goal::goals(&ledger.report);
        // What was found before something failed is worth having, also where nobody reads what is printed.
        let saved = ledger.save();
        ledger.report.print(&mut io::stdout().lock())?;
        saved?;
        outcome?;
        ensure!(ledger.report.holds(), "something is computed wrong: see above");
        Ok(())
    }

    /// Reads what earlier runs found.
    fn kept(&self, report: &mut Report) -> anyhow::Result<()> {
        self.judge.iter().try_for_each(|path| report.join(report::read(path)?))
    }

    fn wants(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    fn search_time(&self) -> Duration {
        Duration::from_millis(self.search_ms)
    }
}
