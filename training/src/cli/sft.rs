//! `train sft`: learning from given trajectories.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use toml::Value;
use waymark::cli::logging;
use waymark::config::LogFormat;
use waymark_models::gradient::{Learner, Score, Slope};

use super::asked::{self, Asked};
use super::bar::Bar;
use super::machine::Machine;
use crate::ledger::Ledger;
use crate::pack::{Sequence, pack, split};
use crate::product::{self, Record};
use crate::recipe::{Recipe, Sft};
use crate::run::{Folder, Metrics};
use crate::sft::{Course, Lesson, Lessons, PHASE, VALIDATION};
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
        let mut samples = Vec::new();
        for file in &self.data {
            samples.extend(store::read(file)?);
        }
        let lessons = Lessons::new(&samples, settings, recipe.seed)?;
        drop(samples);
        let (mut learner, _) = self.machine.learner(&recipe, self.init.as_deref(), self.machine.team())?;
        let course = Course::new(settings, recipe.seed, &lessons);
        if self.asked.dry_run {
            return plan(&recipe, settings, &lessons, &course, &mut learner);
        }
        self.train(&recipe, settings, &course, &mut learner)
    }

    fn train(&self, recipe: &Recipe, settings: &Sft, course: &Course<'_>, learner: &mut Learner) -> anyhow::Result<()> {
        let data = self.data.iter().map(|file| product::fingerprint(file)).collect::<Result<Vec<_>, _>>()?;
        let (before, init) = self.init.as_deref().map(asked::before).transpose()?.unwrap_or_default();
        let facts = asked::facts("sft", recipe, &[("data", asked::hashes(&data)), ("init", Value::String(init))])?;
        let mut ledger = Ledger::open(&self.out, &facts, recipe.optimizer, settings.keep_last)?;
        const SHOWN: &[&str] = &["loss", "validation_loss", "gradient_norm", "tokens_per_second"];
        let mut bar = Bar::new("sft", ledger.state().step, course.steps(), SHOWN);
        course.train(learner, &mut ledger, &mut |row| {
            bar.show(row);
            ControlFlow::Continue(())
        })?;
        bar.end();
        ledger.restore_best(learner)?;
        finish(&ledger, learner, recipe, data, before)
    }
}

/// Writes the policy of a run that has come to its end.
fn finish(
    ledger: &Ledger,
    learner: &Learner,
    recipe: &Recipe,
    data: Vec<(String, String)>,
    before: Option<toml::Table>,
) -> anyhow::Result<()> {
    let folder: &Folder = ledger.folder();
    let all = Metrics::read(&folder.metrics())?;
    let step = ledger.state().best.map_or(ledger.state().step, |(step, _)| step);
    let last = |phase: &str| all.iter().rfind(|row| row.phase == phase && row.step <= step).cloned();
    let rows = [PHASE, VALIDATION].into_iter().filter_map(last).collect();
    let record = Record { kind: "sft", step, seconds: ledger.seconds(), data, before, rows };
    product::write(&folder.policy(), learner, recipe, &record)?;
    writeln!(io::stdout(), "{}", folder.policy().display())?;
    Ok(())
}

/// Says what would be done. The time is that of one pass that is made and forgotten.
fn plan(
    recipe: &Recipe,
    settings: &Sft,
    lessons: &Lessons,
    course: &Course<'_>,
    learner: &mut Learner,
) -> anyhow::Result<()> {
    let steps = course.steps();
    let sampled: Vec<u64> = (1..=steps).step_by((steps as usize).div_ceil(8).max(1)).collect();
    let (mut plain, mut computed, mut targets) = (0, 0, 0);
    for &step in &sampled {
        let batch = course.batch(step);
        plain += batch.iter().map(|sequence| sequence.tokens.len()).sum::<usize>();
        targets += batch.iter().map(Sequence::targets).sum::<usize>();
        let passes = split(&batch, settings.pack_tokens);
        computed += passes.into_iter().map(|pass| pack(&batch[pass]).pack.tokens().len()).sum::<usize>();
    }
    let per_step = |sum: usize| sum / sampled.len().max(1);
    let longest = lessons.train.iter().map(|lesson: &Lesson| lesson.sequence().tokens.len()).max().unwrap_or(0);
    let first = course.batch(1);
    let pass = split(&first, settings.pack_tokens).into_iter().next().unwrap_or(0..0);
    let packed = pack(&first[pass]).pack;
    learner.learn(&packed, &mut |_, _: Score| Slope::default())?;
    let began = Instant::now();
    learner.learn(&packed, &mut |_, _: Score| Slope::default())?;
    let speed = packed.tokens().len() as f64 / began.elapsed().as_secs_f64();
    let config = learner.config();
    let mut out = io::stdout().lock();
    writeln!(out, "base       {}: {} layers, hidden {}", recipe.base, config.layers, config.hidden)?;
    writeln!(out, "learnt     {} values in {} tensors", learner.values().len(), learner.parameters().len())?;
    writeln!(
        out,
        "data       {} trajectories of at most {longest} tokens, {} held out, {} left out",
        lessons.train.len(),
        lessons.held_out.len(),
        lessons.dropped
    )?;
    writeln!(out, "steps      {steps} of {} trajectories", settings.batch)?;
    writeln!(
        out,
        "per step   {} tokens, {} computed once prompts are shared, {} learnt",
        per_step(plain),
        per_step(computed),
        per_step(targets)
    )?;
    let optimizer = 2 * size_of::<f32>() * learner.values().len();
    let memory = (learner.bytes(settings.pack_tokens) + optimizer) as f64 / f64::from(1 << 30);
    writeln!(out, "memory     {memory:.1} GiB with passes of {} tokens", settings.pack_tokens)?;
    let seconds = steps as f64 * per_step(computed) as f64 / speed;
    writeln!(out, "time       about {} at {speed:.0} tokens/s, as measured on one pass", duration(seconds))?;
    Ok(())
}

fn duration(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    format!("{} h {:02} min", minutes / 60, minutes % 60)
}
