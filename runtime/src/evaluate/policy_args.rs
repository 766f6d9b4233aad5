//! `waymark eval --policy`: episodes over questions whose answers are known.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use waymark_agent::metric::Cost;
use waymark_agent::{LoadedBase, Policy, Runtime, Sampling};
use waymark_index::{LiveIndex, Manifest, OpenOptions};
use waymark_models::Arithmetic;
use waymark_models::kernel::Team;

use super::report_file::ReportFile;
use super::{EvaluationOutcome, EvaluationPlan, PairedComparison, Question, Summary, evaluate, print};
use crate::config::{DEFAULT_SCRUB, Device, DeviceConfig, ModelConfig, RetrievalConfig, Size, base_model, cores};
use crate::{assembly, progress};

/// Timeout of a search: generous, so that scores do not depend on the machine's load.
const SEARCH_DEADLINE: Duration = Duration::from_secs(60);

/// Flags of `waymark eval --policy`.
#[derive(Debug, clap::Args)]
pub struct PolicyArgs {
    /// Policy: a directory, or a protocol over the bare base model (`routerag`, `search-r1`, `path-router`, `graphrag-r1`,
    /// `tearag`, `evo-rag`, `plain`), guided where it searches. Several are compared.
    #[arg(long = "policy", value_name = "DIR|NAME", required = true)]
    policies: Vec<String>,

    /// Directory of the index to search.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR", required = true)]
    index: Option<PathBuf>,

    /// Questions: JSON lines with `question`, `answers`, and maybe `id`, `supporting` (ids) and `supporting_complete`.
    #[arg(long, value_name = "FILE", required = true)]
    questions: Option<PathBuf>,

    /// Maximum number of questions, counted from the first.
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,

    /// Also write the report to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Also write one JSON line per policy and question to this file, as the questions end.
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,

    /// Enables guided decoding. The default is each policy's setting.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    guided: Option<bool>,

    /// Seed of the sampler.
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Sampling temperature. The default is each policy's setting, which is 0 for the built-in ones.
    #[arg(long, allow_negative_numbers = true)]
    temperature: Option<f32>,

    /// Number of concurrent episodes.
    #[arg(long, default_value_t = 32)]
    concurrency: usize,

    /// Cost model of searches: their modeled work, or wall-clock time.
    #[arg(long, value_enum, default_value_t = CostModel::Model)]
    cost: CostModel,

    /// Base model: a name in the catalog, a path to a GGUF file or a checkpoint directory, or a hub id (`org/name`). When not
    /// given, the one that the first policy brings, or smollm2-135m-instruct.
    #[arg(long, env = "WAYMARK_MODEL")]
    model: Option<String>,

    /// Embedding model: must be the one the index was built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Device: `cpu`, `cuda`, `cuda:N`, or `auto`.
    #[arg(long, env = "WAYMARK_DEVICE", value_name = "DEVICE", default_value = "auto")]
    device: Device,

    /// Arithmetic of matrix multiplications with the layers' weights: `f32`, or `bf16` with sums in f32. `f32` with the
    /// device `auto` selects the CPU.
    #[arg(long, env = "WAYMARK_ARITHMETIC", value_name = "ARITHMETIC", conflicts_with = "mock")]
    arithmetic: Option<Arithmetic>,

    /// Number of compute threads; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    threads: usize,

    /// Memory for the KV cache, such as `512MiB` or `2GiB`.
    #[arg(long, visible_alias = "kv-memory", env = "WAYMARK_KV_BYTES", value_name = "SIZE", default_value = "2GiB")]
    kv_bytes: Size,

    /// Evaluate a scripted mock instead of a model.
    #[arg(long)]
    mock: bool,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// Cost model of searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CostModel {
    /// Modeled work: mode, passages shown, nodes of the graph.
    Model,
    /// Seconds.
    WallTime,
}

/// The JSON report.
#[derive(Debug, Serialize)]
struct PolicyReport<'a> {
    corpus: &'a str,
    passages: u64,
    snapshot: u64,
    questions: String,
    model: &'a str,
    seed: u64,
    temperature: Option<f32>,
    guided: Option<bool>,
    concurrency: usize,
    cost: Cost,
    policies: &'a [Summary],
    compared: &'a [PairedComparison],
    failed: &'a [FailedPolicy],
}

/// A policy whose episodes all failed.
#[derive(Debug, Serialize)]
struct FailedPolicy {
    policy: String,
    /// Error of the first episode.
    error: String,
}

impl PolicyArgs {
    /// Evaluates the policies, prints the table and writes the requested files.
    ///
    /// # Errors
    /// Any error that ended the evaluation, with its causes.
    pub async fn run(self) -> anyhow::Result<()> {
        let (Some(index), Some(file)) = (&self.index, &self.questions) else {
            anyhow::bail!("--index and --questions are required");
        };
        let plan = self.plan()?;
        let mut questions = Question::read(file)?;
        questions.truncate(self.limit.map_or(usize::MAX, NonZeroUsize::get));
        ensure!(!questions.is_empty(), "no questions in {}", file.display());
        let json = self.json.as_deref().map(ReportFile::open).transpose()?;
        let mut rows = self.rows.as_deref().map(ReportFile::open).transpose()?;
        // A built-in policy has no directory, and takes any base model.
        let first = self.policies.first().map(Path::new).filter(|path| path.is_dir());
        let model = if self.mock { None } else { Some(base_model(self.model.clone(), first)?) };
        let (live, runtime, base) = tokio::task::block_in_place(|| self.open(index, model.clone()))?;
        let current = live.current();
        let plan = EvaluationPlan { cost: plan.cost.over(current.manifest()), ..plan };
        questions.iter_mut().for_each(|question| question.support_from(&current));
        let mut policies = Vec::new();
        for spec in &self.policies {
            policies.push(self.policy(spec, &runtime, &base).await?);
        }
        let names = names(&self.policies, &policies);
        if let Some(rows) = &mut rows {
            rows.clear();
        }
        let mut outcomes = Vec::new();
        for (name, policy) in names.into_iter().zip(&policies) {
            let outcome = measure(&name, policy, &runtime, &questions, &plan, rows.as_mut()).await;
            outcomes.push((name, outcome));
        }
        let model = model.as_deref().unwrap_or("mock");
        self.tell((current.manifest(), model), file, &outcomes, json, plan.cost)?;
        rows.map_or(Ok(()), ReportFile::finish)
    }

    /// The index, the engine over `weights`, and the base model.
    fn open(&self, index: &Path, weights: Option<String>) -> anyhow::Result<(Arc<LiveIndex>, Runtime, LoadedBase)> {
        let threads = if self.threads == 0 { cores() } else { self.threads };
        let retrieval = RetrievalConfig {
            index: Some(index.to_owned()),
            writable: false,
            keep_snapshots: 0,
            scrub: DEFAULT_SCRUB,
            embedder: self.embedder.clone(),
            threads,
            deadline: SEARCH_DEADLINE,
            fact_filter: None,
        };
        let model = ModelConfig {
            mock_step: Duration::ZERO,
            weights,
            cache: self.cache.clone(),
            device: DeviceConfig::of(self.device).with(self.arithmetic),
            threads,
            kv_bytes: self.kv_bytes.0,
            kv_reserve: false,
            max_batch: self.concurrency,
            step_tokens: 512,
            max_waiting: self.concurrency,
            context: None,
        };
        let embedder = assembly::embedder(&self.embedder, self.cache.clone(), Arc::new(Team::new(threads)))?;
        // The index does not follow commits, so that all questions are searched in one snapshot.
        let options = OpenOptions { concurrency: threads, ..OpenOptions::default() };
        let live = Arc::new(LiveIndex::open(index, Arc::new(embedder), options)?);
        let searcher = assembly::searcher(&live, &retrieval)?;
        let (runtime, base) = assembly::runtime(&model, Arc::new(Team::new(threads)), Some(searcher))?;
        Ok((live, runtime, base))
    }

    /// Resolves `spec` to a policy: a directory, or else a built-in one.
    async fn policy(&self, spec: &str, runtime: &Runtime, base: &LoadedBase) -> anyhow::Result<Policy> {
        if Path::new(spec).is_dir() {
            return Ok(Policy::load(Path::new(spec), &runtime.engine, base).await?);
        }
        let known = Policy::BUILTIN.join(", ");
        let policy = Policy::builtin(spec)
            .with_context(|| format!("unknown policy {spec:?}: expected a directory or one of {known}"))?;
        // As in serving: a base model that was never trained in the loop keeps to the protocol only with guided decoding.
        Ok(Policy { guided: !self.mock && policy.searches(), ..policy })
    }

    /// Parameters of the evaluation. Refuses invalid sampling parameters; a policy's own were checked when it was
    /// loaded.
    fn plan(&self) -> anyhow::Result<EvaluationPlan> {
        ensure!(self.concurrency > 0, "--concurrency must be at least 1");
        let sampling = Sampling { temperature: self.temperature, ..Sampling::default() };
        sampling.params(self.seed, 0).check()?;
        Ok(EvaluationPlan {
            seed: self.seed,
            sampling,
            guided: self.guided,
            concurrency: self.concurrency,
            seconds: EvaluationPlan::default().seconds,
            cost: match self.cost {
                CostModel::Model => Cost::default(),
                CostModel::WallTime => Cost::WallTime,
            },
        })
    }

    /// Prints the table and writes the report for the policies that ran; returns an error if any policy failed.
    fn tell(
        &self,
        (manifest, model): (&Manifest, &str),
        file: &Path,
        outcomes: &[(String, EvaluationOutcome)],
        json: Option<ReportFile>,
        cost: Cost,
    ) -> anyhow::Result<()> {
        let broken = |(name, outcome): &(String, EvaluationOutcome)| {
            outcome.failure().map(|error| FailedPolicy { policy: name.clone(), error: error.to_owned() })
        };
        let failed: Vec<FailedPolicy> = outcomes.iter().filter_map(broken).collect();
        let ran: Vec<(&str, &EvaluationOutcome)> = outcomes
            .iter()
            .filter(|(_, outcome)| outcome.failure().is_none())
            .map(|(name, outcome)| (name.as_str(), outcome))
            .collect();
        if let Some(&(first, outcome)) = ran.first() {
            let policies: Vec<Summary> = ran.iter().map(|&(name, outcome)| Summary::of(name, outcome)).collect();
            let beside = |&(name, other): &(&str, &EvaluationOutcome)| {
                PairedComparison::of((name, &other.rows), (first, &outcome.rows))
            };
            let compared: Vec<PairedComparison> = ran[1..].iter().map(beside).collect();
            let questions = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            let report = PolicyReport {
                corpus: &manifest.corpus,
                passages: manifest.passages,
                snapshot: manifest.snapshot,
                questions,
                model,
                seed: self.seed,
                temperature: self.temperature,
                guided: self.guided,
                concurrency: self.concurrency,
                cost,
                policies: &policies,
                compared: &compared,
                failed: &failed,
            };
            let mut out = std::io::stdout().lock();
            let PolicyReport { corpus, passages, snapshot, .. } = &report;
            let asked = outcome.rows.len();
            writeln!(out, "{corpus}: {passages} passages, snapshot {snapshot}, {asked} questions")?;
            print(&policies, &compared, &mut out)?;
            json.map_or(Ok(()), |json| json.fill(&report))?;
        }
        let told =
            failed.iter().map(|FailedPolicy { policy, error }| format!("all episodes of {policy} failed: {error}"));
        ensure!(failed.is_empty(), "{}", told.collect::<Vec<_>>().join("\n"));
        Ok(())
    }
}

/// Evaluates one policy and shows a progress bar.
async fn measure(
    name: &str,
    policy: &Policy,
    runtime: &Runtime,
    questions: &[Question],
    plan: &EvaluationPlan,
    mut rows: Option<&mut ReportFile>,
) -> EvaluationOutcome {
    let bar = progress::things();
    bar.set_length(questions.len() as u64);
    bar.set_message(name.to_owned());
    let mut right = 0.0;
    let mut overlap = 0.0;
    let outcome = evaluate(runtime, policy, questions, plan, |row| {
        if let Some(rows) = &mut rows {
            rows.add(name, row);
        }
        right += row.em;
        overlap += row.f1;
        bar.inc(1);
        let done = bar.position() as f64 / 100.0;
        bar.set_message(format!("{name} EM {:.1} F1 {:.1}", right / done, overlap / done));
    })
    .await;
    bar.finish_and_clear();
    outcome
}

/// Display names of the policies: their own, or the given spec where two share a name.
fn names(specs: &[String], policies: &[Policy]) -> Vec<String> {
    let shared = |name: &str| policies.iter().filter(|policy| policy.name == name).count() > 1;
    let name = |(spec, policy): (&String, &Policy)| if shared(&policy.name) { spec } else { &policy.name }.clone();
    specs.iter().zip(policies).map(name).collect()
}
