//! `train sft`: learning from given trajectories.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::bail;
use toml::{Table, Value};
use waymark::cli::logging;
use waymark::config::LogFormat;
use waymark_models::gradient::Learner;

use super::asked::{self, Asked};
use super::bar::Bar;
use super::card::Work;
use super::machine::{Base, Machine};
use super::plan;
use super::producer::Producer;
use crate::ledger::Ledger;
use crate::recipe::{Recipe, Sft};
use crate::sample::Sample;
use crate::sft::{Course, Lessons};
use crate::store::{self, StoreError};

/// Learns from given trajectories: of each, the tokens that the policy wrote itself.
///
/// RUN gets metrics, checkpoints, and the policy in RUN/policy. A run that was killed goes on where its last checkpoint
/// stands when the same command is given again, and ends in the same weights.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train sft --recipe training/recipes/routerag-smollm2.toml --data samples.jsonl --out runs/sft --dry-run
  train sft --recipe training/recipes/routerag-smollm2.toml --data samples.jsonl --out runs/sft --set sft.epochs=3")]
pub(crate) struct Args {
    #[command(flatten)]
    asked: Asked,

    /// Trajectories, as `train data` writes them; may be given several times.
    #[arg(long, required = true, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Trajectories to measure the loss on; a share of the questions of --data when not given (`sft.held_out`).
    #[arg(long, value_name = "FILE")]
    held_out: Vec<PathBuf>,

    /// The run's folder.
    #[arg(long, value_name = "RUN")]
    out: PathBuf,

    /// A policy or run to begin with, instead of the base model as it is.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,

    #[command(flatten)]
    machine: Machine,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "info", LogFormat::Text)?;
        let recipe = self.asked.open()?;
        let settings = recipe.sft(&self.asked.recipe)?;
        let opened = self.machine.open(&recipe)?;
        let Sft { pack_tokens, longest, .. } = *settings;
        let work = Work { section: "sft", pack_tokens, longest, guest: None };
        let planned = self.machine.plan(&opened, &recipe, &work, self.asked.dry_run)?;
        if let Some(planned) = planned.as_ref().filter(|planned| self.asked.dry_run && planned.is_unasked()) {
            return plan::unasked(&recipe, opened.checkpoint.weights.config(), planned);
        }
        let (mut learner, base) = self.machine.learner(opened, &recipe, self.machine.host.team(), planned.as_ref())?;
        let protocol = recipe.policy()?.protocol.name();
        let fit = Fit { protocol, vocab: learner.config().vocab, vocabulary: &base.vocabulary };
        let lessons = self.lessons(&recipe, settings, &fit)?;
        let take = |dir: &PathBuf| asked::take("--init", dir, &recipe, &base, &mut learner);
        let init = self.init.as_ref().map(take).transpose()?.unwrap_or_default();
        let course = Course::new(settings, recipe.seed, &lessons);
        if self.asked.dry_run {
            return plan::sft(&recipe, settings, &lessons, &course, &mut learner, planned.as_ref());
        }
        self.train(&recipe, &base, init, &course, &mut learner)
    }

    /// What is learnt from, and what was held out.
    fn lessons(&self, recipe: &Recipe, settings: &Sft, fit: &Fit<'_>) -> anyhow::Result<Lessons> {
        let read = |files: &[PathBuf]| -> anyhow::Result<Vec<Sample>> {
            let files = files.iter().map(|file| fit.read(file)).collect::<Result<Vec<_>, _>>()?;
            Ok(files.into_iter().flatten().collect())
        };
        let samples = read(&self.data)?;
        if self.held_out.is_empty() {
            return Ok(Lessons::new(&samples, settings, recipe.seed)?);
        }
        let held_out = read(&self.held_out)?;
        let question = |sample: &Sample| (sample.dataset.clone(), sample.question.clone());
        let learnt: HashSet<(String, String)> = samples.iter().map(question).collect();
        if let Some((_, both)) = held_out.iter().map(question).find(|question| learnt.contains(question)) {
            bail!("--held-out: {both:?} is in --data too: it would be learnt and measured with");
        }
        Ok(Lessons::given(&samples, &held_out, settings, recipe.seed)?)
    }

    fn train(
        &self,
        recipe: &Recipe,
        base: &Base,
        (before, init): (Option<Table>, String),
        course: &Course<'_>,
        learner: &mut Learner,
    ) -> anyhow::Result<()> {
        let (data, held_out) = (asked::fingerprints(&self.data)?, asked::fingerprints(&self.held_out)?);
        let mut more: Vec<(&str, Value)> = vec![
            ("weights", base.id.clone().into()),
            ("data", asked::hashes(&data)),
            ("held_out", asked::hashes(&held_out)),
            ("init", init.into()),
        ];
        more.extend(asked::device(learner));
        let facts = asked::facts("sft", recipe, &more)?;
        let mut ledger = Ledger::open(&self.out, &facts, recipe.optimizer, course.settings().keep_last)?;
        const SHOWN: &[&str] = &["loss", "validation_loss", "gradient_norm", "tokens_per_second"];
        let bar = Bar::new("sft", ledger.state().step, course.steps(), SHOWN);
        let mut producer = Producer { bar, recipe, kind: "sft", data, before, base: base.product() };
        course.train(learner, &mut ledger, &mut producer)?;
        producer.finish(&ledger, learner)
    }
}

/// What samples have to be of, so that the recipe's policy could have written them.
struct Fit<'a> {
    protocol: &'static str,
    /// Tokens of the base model.
    vocab: usize,
    /// What its vocabulary is known by.
    vocabulary: &'a str,
}

impl Fit<'_> {
    /// The samples of a file; the first that does not fit is named by its line.
    fn read(&self, file: &Path) -> Result<Vec<Sample>, StoreError> {
        let mut lines = store::Samples::open(file)?;
        let mut samples = Vec::new();
        while let Some(sample) = lines.next() {
            let sample = sample?;
            if let Some(reason) = self.flaw(&sample) {
                return Err(StoreError::Line { path: file.to_owned(), line: lines.line(), reason });
            }
            samples.push(sample);
        }
        Ok(samples)
    }

    fn flaw(&self, sample: &Sample) -> Option<String> {
        let Fit { protocol, vocab, vocabulary } = *self;
        if sample.protocol != protocol {
            return Some(format!("it is of the protocol {:?}, the recipe's is {protocol:?}", sample.protocol));
        }
        if sample.tokenizer.as_ref().is_some_and(|own| own != vocabulary) {
            return Some("its tokens are not of the base model's vocabulary: build the samples with this one".into());
        }
        let beyond = sample.tokens.iter().find(|&&token| token as usize >= vocab)?;
        Some(format!("token {beyond} is outside the base model's vocabulary of {vocab}"))
    }
}
