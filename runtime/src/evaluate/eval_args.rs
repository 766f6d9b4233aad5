//! Flags of `waymark eval --policy`.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use waymark_agent::metric::Cost;
use waymark_agent::{LoadedBase, Policy, Runtime, Sampling};
use waymark_index::{Complete, MAX_K, Mode};
use waymark_models::Arithmetic;
use waymark_models::decoder::KvKind;
use waymark_models::kernel::Team;

use super::arm::{Contender, EvaluationArm};
use super::baseline::Baseline;
use super::eval_run::{EvalQuestions, EvalRun};
use super::report_file::ReportFile;
use super::{EvaluationPlan, EvaluationReport, Question, csv, plot};
use crate::assembly;
use crate::config::{Device, DeviceConfig, EmbedderArgs, ModelConfig, Size, base_model, local_index, or_cores};
use crate::environment::key_in;
use crate::remote::ChatEndpoint;
use crate::trusted_roots::TrustedRoots;

/// Timeout of one request to the judge.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Flags of `waymark eval --policy`.
#[derive(Debug, clap::Args)]
pub struct PolicyArgs {
    /// Policy: a directory; a protocol over the bare base model (`routerag`, `search-r1`, `path-router`, `graphrag-r1`,
    /// `tearag`, `evo-rag`, `plain`), with guided decoding if it searches; or a baseline (`no-retrieval`,
    /// `passage-rag`, `hippo-rag`, `hybrid-rag`, `ircot`, `search-o1`). May be given several times: each further policy
    /// is compared with the first.
    #[arg(long = "policy", value_name = "DIR|NAME", required = true)]
    policies: Vec<String>,

    /// Directory of the index to search: one per `--questions`, or one for all of them.
    #[arg(long = "index", env = "WAYMARK_INDEX", value_name = "DIR", required = true, value_parser = local_index())]
    indexes: Vec<PathBuf>,

    /// Questions: JSON lines with `question`, `answers`, and optionally `id`, `type`, `supporting` (IDs) and
    /// `supporting_complete`. May be given several times.
    #[arg(long, value_name = "FILE", required = true)]
    questions: Vec<PathBuf>,

    /// Maximum number of questions of each file, counted from the first.
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,

    /// Mode forced on every search, whatever a policy writes: `passage`, `graph`, `hybrid`, `triples`, `kag` or
    /// `hypergraph`; `free` leaves it to the policy. Several, separated by commas, evaluate each policy in each of them.
    /// Single-shot baselines keep their mode, and the others take only `passage`, `graph` and `hybrid`.
    #[arg(long = "mode", value_delimiter = ',', value_name = "MODE", default_value = "free")]
    modes: Vec<ForcedMode>,

    /// Number of passages forced on every search. The default is that of each policy.
    #[arg(long, value_name = "N")]
    k: Option<usize>,

    /// Also write the report to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Also write the tables to this file, as comma-separated values.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Also write plots to this directory, as SVG: modes, searches, tokens against EM.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,

    /// Also write one JSON line per policy and question to this file, each as soon as its question is answered. When a
    /// policy has answered a whole file, its lines are rewritten with SBERT and the judge's scores, in the order of the
    /// questions.
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,

    /// Base URL of an OpenAI-compatible endpoint, without `/chat/completions`, whose model judges the answers (ACC_L and
    /// G-E; eight requests per answer). Without it, both metrics are left out.
    #[arg(long, value_name = "URL", requires = "judge_model")]
    judge_url: Option<String>,

    /// Model to ask for at that endpoint.
    #[arg(long, value_name = "NAME", requires = "judge_url")]
    judge_model: Option<String>,

    /// Environment variable that holds the API key of that endpoint. If it is unset, no key is sent.
    #[arg(long, value_name = "VARIABLE", default_value = "OPENAI_API_KEY")]
    judge_key_env: String,

    /// File of CA certificates (PEM) to trust instead of the public ones when that endpoint uses HTTPS.
    #[arg(long, value_name = "FILE", requires = "judge_url")]
    judge_ca: Option<PathBuf>,

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

    /// Base model: a name in the catalog, a path to a GGUF file or a checkpoint directory, or a hub ID (`org/name`).
    /// The default is the one that the first policy includes, or `smollm2-135m-instruct`.
    #[arg(long, env = "WAYMARK_MODEL")]
    model: Option<String>,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Device: `cpu`, `cuda`, `cuda:N`, or `auto`.
    #[arg(long, env = "WAYMARK_DEVICE", value_name = "DEVICE", default_value = "auto")]
    device: Device,

    /// Arithmetic of matrix multiplications with the layers' weights: `f32`, `bf16` with sums in f32, or `int16` with
    /// activations in 16-bit integers. `f32` or `int16` with the device `auto` selects the CPU.
    #[arg(long, env = "WAYMARK_ARITHMETIC", value_name = "ARITHMETIC", conflicts_with = "mock")]
    arithmetic: Option<Arithmetic>,

    /// Precision of the KV cache on the CPU: `f32`, `f16` or `int8`. The default is `f32` with the arithmetic `f32` and
    /// `f16` with the others.
    #[arg(long, env = "WAYMARK_KV", value_name = "PRECISION", conflicts_with = "mock")]
    kv: Option<KvKind>,

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

/// Mode forced on searches. `None` leaves it to the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ForcedMode(Option<Mode>);

impl FromStr for ForcedMode {
    type Err = String;

    fn from_str(name: &str) -> Result<ForcedMode, String> {
        match name {
            "free" => Ok(ForcedMode(None)),
            name => name.parse().map(|mode| ForcedMode(Some(mode))).map_err(|unknown| format!("{unknown}, free")),
        }
    }
}

/// Files that the evaluation writes at its end, opened at its beginning.
struct OutputFiles {
    json: Option<ReportFile>,
    csv: Option<ReportFile>,
    plots: Option<PathBuf>,
}

impl PolicyArgs {
    /// Evaluates the policies, prints the tables and writes the requested files.
    ///
    /// # Errors
    /// Any error that ended the evaluation, with its causes.
    pub async fn run(self) -> anyhow::Result<()> {
        let plan = self.plan()?;
        let files = self.question_files()?;
        let judge = self.judge()?;
        let embedder = self.embedder.resolve_for(&self.indexes[0])?;
        // Opened before hours of work, so that a path that cannot be written is refused now.
        let outputs = self.outputs()?;
        let mut rows = self.rows.as_deref().map(ReportFile::open).transpose()?;
        // A built-in policy has no directory, and takes any base model.
        let first = self.policies.first().map(Path::new).filter(|path| path.is_dir());
        let model = if self.mock { None } else { Some(base_model(self.model.clone(), first)?) };
        let (runtime, base) = tokio::task::block_in_place(|| self.open(model.clone()))?;
        let arms = self.arms(&runtime, &base).await?;
        let run = EvalRun { runtime, embedder, cache: self.cache.clone(), threads: self.threads(), plan, judge };
        let evaluated = run.evaluate(&arms, files, rows.as_mut()).await?;
        let report = EvaluationReport {
            model: model.unwrap_or_else(|| "mock".to_owned()),
            seed: self.seed,
            temperature: self.temperature,
            guided: self.guided,
            k: self.k,
            concurrency: self.concurrency,
            judge: self.judge_model.clone(),
            left_out: evaluated.left_out,
            ..EvaluationReport::over(&evaluated.sets)
        };
        report.print(&mut std::io::stdout().lock())?;
        outputs.write(&report)?;
        rows.map_or(Ok(()), ReportFile::finish)?;
        let failed: Vec<String> = report
            .failed()
            .map(|failed| format!("all episodes of {} failed: {}", failed.policy, failed.error))
            .collect();
        // Checked only now, so that the results of the other policies are not lost.
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        Ok(())
    }

    /// Reads the question files and pairs each with its index.
    fn question_files(&self) -> anyhow::Result<Vec<EvalQuestions>> {
        let pairs = self.indexes.len() == self.questions.len();
        ensure!(
            pairs || self.indexes.len() == 1,
            "{} --index and {} --questions: expected one index per file, or one for all",
            self.indexes.len(),
            self.questions.len()
        );
        let mut files: Vec<EvalQuestions> = Vec::new();
        for (place, path) in self.questions.iter().enumerate() {
            let index = &self.indexes[if pairs { place } else { 0 }];
            let mut questions = Question::read(path)?;
            questions.truncate(self.limit.map_or(usize::MAX, NonZeroUsize::get));
            ensure!(!questions.is_empty(), "no questions in {}", path.display());
            let mut name = set_name(path);
            // Scores of two sets must not stand under one name.
            if files.iter().any(|other| other.name == name) {
                name = path.display().to_string();
            }
            files.push(EvalQuestions { name, index: index.clone(), questions });
        }
        Ok(files)
    }

    fn outputs(&self) -> anyhow::Result<OutputFiles> {
        if let Some(dir) = &self.plots {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(OutputFiles {
            json: self.json.as_deref().map(ReportFile::open).transpose()?,
            csv: self.csv.as_deref().map(ReportFile::open).transpose()?,
            plots: self.plots.clone(),
        })
    }

    fn judge(&self) -> anyhow::Result<Option<Arc<dyn Complete>>> {
        let (Some(url), Some(model)) = (&self.judge_url, &self.judge_model) else { return Ok(None) };
        let key = key_in(&self.judge_key_env)?;
        let roots = TrustedRoots::of_flag("--judge-ca", self.judge_ca.as_deref())?;
        Ok(Some(Arc::new(ChatEndpoint::new(url, model, key, JUDGE_TIMEOUT, roots).context("--judge-url")?)))
    }

    fn threads(&self) -> usize {
        or_cores(self.threads)
    }

    /// Starts the engine over `weights`, without an index.
    fn open(&self, weights: Option<String>) -> anyhow::Result<(Runtime, LoadedBase)> {
        let threads = self.threads();
        let model = ModelConfig {
            mock_step: Duration::ZERO,
            weights,
            cache: self.cache.clone(),
            device: DeviceConfig { kv: self.kv, ..DeviceConfig::of(self.device).with(self.arithmetic) },
            threads,
            kv_bytes: self.kv_bytes.0,
            kv_reserve: false,
            // All concurrent episodes decode in one step, so that none of them waits.
            max_batch: Some(self.concurrency),
            step_tokens: Some(512),
            lookup: 0,
            max_waiting: self.concurrency,
            context: None,
        };
        assembly::runtime(&model, Arc::new(Team::new(threads)), None)
    }

    /// Resolves the contenders, each in every mode that can be forced on it.
    async fn arms(&self, runtime: &Runtime, base: &LoadedBase) -> anyhow::Result<Vec<EvaluationArm>> {
        let mut contenders = Vec::new();
        for spec in &self.policies {
            contenders.push(self.contender(spec, runtime, base).await?);
        }
        let mut arms: Vec<EvaluationArm> = Vec::new();
        for (name, contender) in names(&self.policies, &contenders).iter().zip(&contenders) {
            for ForcedMode(mode) in &self.modes {
                let arm = EvaluationArm::new(name, contender.clone(), *mode, self.k);
                // A contender without a choice of modes is evaluated once.
                if arms.iter().all(|other| other.name != arm.name) {
                    arms.push(arm);
                }
            }
        }
        Ok(arms)
    }

    /// Resolves `spec`: a directory, or else a built-in policy or a baseline.
    async fn contender(&self, spec: &str, runtime: &Runtime, base: &LoadedBase) -> anyhow::Result<Contender> {
        if Path::new(spec).is_dir() {
            return Ok(Contender::Policy(Box::new(Policy::load(Path::new(spec), &runtime.engine, base).await?)));
        }
        if let Some(baseline) = Baseline::named(spec) {
            return Ok(Contender::Baseline(baseline));
        }
        let known = Policy::BUILTIN.join(", ");
        let baselines = Baseline::names().collect::<Vec<_>>().join(", ");
        let policy = assembly::builtin(spec, self.mock).with_context(|| {
            format!("unknown policy {spec:?}: expected a directory, one of {known}, or a baseline: {baselines}")
        })?;
        Ok(Contender::Policy(Box::new(policy)))
    }

    /// Parameters of the evaluation. Refuses invalid sampling parameters; a policy's own were checked when it was
    /// loaded.
    fn plan(&self) -> anyhow::Result<EvaluationPlan> {
        ensure!(self.concurrency > 0, "--concurrency must be at least 1");
        ensure!(self.k.is_none_or(|k| (1..=MAX_K).contains(&k)), "--k must be from 1 to {MAX_K}");
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
}

impl OutputFiles {
    fn write(self, report: &EvaluationReport) -> anyhow::Result<()> {
        self.json.map_or(Ok(()), |json| json.fill(report))?;
        self.csv.map_or(Ok(()), |file| file.fill_text(&csv::render(report)))?;
        for (name, svg) in self.plots.iter().flat_map(|_| plot::draw(report)) {
            let path = self.plots.as_deref().unwrap_or(Path::new(".")).join(name);
            fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Name of a question set: the file's, or its folder's where the file is called `questions.jsonl`, as in most data sets.
fn set_name(path: &Path) -> String {
    let stem = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    folder.filter(|_| stem == "questions").unwrap_or(stem)
}

/// Display names of the contenders: their own, or the given spec where two share a name.
fn names(specs: &[String], contenders: &[Contender]) -> Vec<String> {
    let own = |(spec, contender): (&String, &Contender)| match contender {
        Contender::Policy(policy) => policy.name.clone(),
        Contender::Baseline(_) => spec.clone(),
    };
    let names: Vec<String> = specs.iter().zip(contenders).map(own).collect();
    let shared = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    specs.iter().zip(&names).map(|(spec, name)| if shared(name) { spec } else { name }.clone()).collect()
}
