//! `train sft`: training on given trajectories.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::bail;
use toml::Value;
use waymark_models::gradient::Learner;
use waymark_runtime::config::LogFormat;
use waymark_runtime::logging;

use super::compute_args::{BaseIdentity, ComputeArgs, LoadedLearner};
use super::dry_run;
use super::gpu_plan::MemoryRequest;
use super::initial_policy::{self, InitialPolicy};
use super::observer::TerminalObserver;
use super::progress_bar::StepProgress;
use super::recipe_args::RecipeArgs;
use super::run_facts;
use crate::ledger::RunLedger;
use crate::recipe::{Recipe, Sft};
use crate::sample::Sample;
use crate::sample_lines::{self, SampleLinesError};
use crate::sft::{SftDataset, SftTraining};

/// Trains a policy on given trajectories, on the tokens that the policy wrote itself.
///
/// RUN receives metrics, checkpoints, and the policy in RUN/policy. The same command resumes an interrupted run from
/// its last checkpoint and ends in the same weights.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train sft --recipe training/recipes/routerag-smollm2.toml \\
      --data samples.jsonl --out runs/sft --dry-run
  train sft --recipe training/recipes/routerag-smollm2.toml \\
      --data samples.jsonl --out runs/sft --set sft.epochs=3")]
pub(crate) struct Args {
    #[command(flatten)]
    recipe_args: RecipeArgs,

    /// Path to trajectories as written by `train data`. May be repeated.
    #[arg(long, required = true, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Path to trajectories to measure the loss on. Defaults to a share of the questions of --data (`sft.held_out`).
    #[arg(long, value_name = "FILE")]
    held_out: Vec<PathBuf>,

    /// Directory of the run.
    #[arg(long, value_name = "RUN")]
    out: PathBuf,

    /// Policy or run to start from. Defaults to the base model.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,

    #[command(flatten)]
    compute_args: ComputeArgs,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "info", LogFormat::Text)?;
        let recipe = self.recipe_args.open()?;
        let settings = recipe.sft(&self.recipe_args.file.recipe)?;
        let Sft { pack_tokens, longest, .. } = *settings;
        let memory_request = MemoryRequest { section: "sft", pack_tokens, longest, rollout_engine: None };
        let team = self.compute_args.host_args.team();
        let loaded = self.compute_args.load(&recipe, &memory_request, team, self.recipe_args.dry_run)?;
        let Some(LoadedLearner { mut learner, base, gpu_plan }) = loaded else { return Ok(()) };
        let protocol = recipe.policy()?.protocol.name();
        let fit = SampleCheck { protocol, vocab: learner.config().vocab, vocabulary: &base.vocabulary };
        let dataset = self.dataset(&recipe, settings, &fit)?;
        let take = |dir: &PathBuf| initial_policy::load_for_lessons("--init", dir, &recipe, &base, &mut learner);
        let origin = self.init.as_ref().map(take).transpose()?.unwrap_or_default();
        let training = SftTraining::new(settings, recipe.seed, &dataset);
        if self.recipe_args.dry_run {
            return dry_run::sft(&recipe, settings, &dataset, &training, &mut learner, gpu_plan.as_ref());
        }
        self.train(&recipe, &base, origin, &training, &mut learner)
    }

    /// Reads the training and held-out trajectories.
    fn dataset(&self, recipe: &Recipe, settings: &Sft, fit: &SampleCheck<'_>) -> anyhow::Result<SftDataset> {
        let read = |files: &[PathBuf]| -> anyhow::Result<Vec<Sample>> {
            let files = files.iter().map(|file| fit.read(file)).collect::<Result<Vec<_>, _>>()?;
            Ok(files.into_iter().flatten().collect())
        };
        let samples = read(&self.data)?;
        if self.held_out.is_empty() {
            return Ok(SftDataset::new(&samples, settings, recipe.seed)?);
        }
        let held_out = read(&self.held_out)?;
        let question = |sample: &Sample| (sample.dataset.clone(), sample.question.clone());
        let learned: HashSet<(String, String)> = samples.iter().map(question).collect();
        // Compared by question text, because two files may give the same question different IDs.
        if let Some((_, both)) = held_out.iter().map(question).find(|question| learned.contains(question)) {
            bail!("--held-out: the question {both:?} is in --data too: remove it from one of them");
        }
        Ok(SftDataset::given(&samples, &held_out, settings, recipe.seed)?)
    }

    fn train(
        &self,
        recipe: &Recipe,
        base: &BaseIdentity,
        origin: InitialPolicy,
        training: &SftTraining<'_>,
        learner: &mut Learner,
    ) -> anyhow::Result<()> {
        let data = run_facts::fingerprints(&self.data)?;
        let held_out = run_facts::fingerprints(&self.held_out)?;
        let mut more: Vec<(&str, Value)> = vec![
            ("weights", base.id.clone().into()),
            ("data", run_facts::hash_list(&data)),
            ("held_out", run_facts::hash_list(&held_out)),
            ("init", origin.hash.into()),
        ];
        more.extend(run_facts::training_device(learner));
        let facts = run_facts::to_toml("sft", recipe, &more)?;
        let mut ledger = RunLedger::open(&self.out, &facts, recipe.optimizer, training.settings().keep_last)?;
        const SHOWN: &[&str] = &["loss", "validation_loss", "gradient_norm", "tokens_per_second"];
        let bar = StepProgress::new("sft", ledger.state().step, training.steps(), SHOWN);
        let mut terminal = TerminalObserver {
            bar,
            recipe,
            kind: "sft",
            data,
            previous_record: origin.record,
            base: base.policy_base(),
        };
        training.train(learner, &mut ledger, &mut terminal)?;
        terminal.finish(&ledger, learner)
    }
}

/// Check that the recipe's policy could have written a sample.
struct SampleCheck<'a> {
    protocol: &'static str,
    /// Vocabulary size of the base model.
    vocab: usize,
    /// Hash of its vocabulary.
    vocabulary: &'a str,
}

impl SampleCheck<'_> {
    /// Reads the samples of a file. Fails at the first sample that does not fit, with its line number.
    fn read(&self, file: &Path) -> Result<Vec<Sample>, SampleLinesError> {
        let mut lines = sample_lines::SampleReader::open(file)?;
        let mut samples = Vec::new();
        while let Some(sample) = lines.next() {
            let sample = sample?;
            if let Some(reason) = self.flaw(&sample) {
                return Err(SampleLinesError::Line { path: file.to_owned(), line: lines.line(), reason });
            }
            samples.push(sample);
        }
        Ok(samples)
    }

    fn flaw(&self, sample: &Sample) -> Option<String> {
        let SampleCheck { protocol, vocab, vocabulary } = *self;
        if sample.protocol != protocol {
            return Some(format!(
                "the sample uses the protocol {:?}, but the recipe has {protocol:?}",
                sample.protocol
            ));
        }
        if sample.tokenizer.as_ref().is_some_and(|own| own != vocabulary) {
            return Some(
                "the sample uses another vocabulary than the base model: build the samples with this base model".into(),
            );
        }
        // Samples without a vocabulary hash are at least checked for the range of their tokens.
        let beyond = sample.tokens.iter().find(|&&token| token as usize >= vocab)?;
        Some(format!("token {beyond} is outside the base model's vocabulary of {vocab}"))
    }
}
