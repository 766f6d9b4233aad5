//! `train sft`: learning from given trajectories.

use std::path::{Path, PathBuf};

use toml::Value;
use waymark::cli::logging;
use waymark::config::LogFormat;
use waymark_models::gradient::Learner;

use super::asked::{self, Asked};
use super::bar::Bar;
use super::machine::Machine;
use super::plan;
use super::producer::Producer;
use crate::ledger::Ledger;
use crate::product;
use crate::recipe::{Recipe, Sft};
use crate::sample::Sample;
use crate::sft::{Course, Lessons};
use crate::store;

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

    /// A policy or run to begin with, instead of a new adapter.
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
        let lessons = self.lessons(settings, recipe.seed)?;
        let (mut learner, base) = self.machine.learner(&recipe, self.init.as_deref(), self.machine.team())?;
        let course = Course::new(settings, recipe.seed, &lessons);
        if self.asked.dry_run {
            return plan::sft(&recipe, settings, &lessons, &course, &mut learner);
        }
        self.train(&recipe, &base, &course, &mut learner)
    }

    /// What is learnt from, and what was held out.
    fn lessons(&self, settings: &Sft, seed: u64) -> anyhow::Result<Lessons> {
        let read = |files: &[PathBuf]| -> anyhow::Result<Vec<Sample>> {
            let files = files.iter().map(|file| store::read(file)).collect::<Result<Vec<_>, _>>()?;
            Ok(files.into_iter().flatten().collect())
        };
        let samples = read(&self.data)?;
        if self.held_out.is_empty() {
            return Ok(Lessons::new(&samples, settings, seed)?);
        }
        Ok(Lessons::given(&samples, &read(&self.held_out)?, settings, seed)?)
    }

    fn train(&self, recipe: &Recipe, base: &Path, course: &Course<'_>, learner: &mut Learner) -> anyhow::Result<()> {
        let data = self
            .data
            .iter()
            .chain(&self.held_out)
            .map(|file| product::fingerprint(file))
            .collect::<Result<Vec<_>, _>>()?;
        let (before, init) = self.init.as_deref().map(asked::before).transpose()?.unwrap_or_default();
        let facts = asked::facts("sft", recipe, &[("data", asked::hashes(&data)), ("init", Value::String(init))])?;
        let mut ledger = Ledger::open(&self.out, &facts, recipe.optimizer, course.settings().keep_last)?;
        const SHOWN: &[&str] = &["loss", "validation_loss", "gradient_norm", "tokens_per_second"];
        let bar = Bar::new("sft", ledger.state().step, course.steps(), SHOWN);
        let mut producer = Producer { bar, recipe, kind: "sft", data, before, base };
        course.train(learner, &mut ledger, &mut producer)?;
        producer.finish(&ledger, learner)
    }
}
