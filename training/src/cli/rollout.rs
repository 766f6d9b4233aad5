//! `train rollout`: a policy's own trajectories, of which nothing is learnt yet.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use toml::{Table, Value};
use waymark::agent::Policy;
use waymark::cli::assembly;
use waymark::evaluate::Question;
use waymark::metric::Cost;
use waymark_models::checkpoint::Checkpoint;

use super::asked::{self, Asked};
use super::bar::{Bar, duration};
use super::field::Asking;
use super::host::Host;
use super::rolling::Rolling;
use crate::recipe::{Grpo, Recipe};
use crate::rollout::{Field, Plan, rollouts, unhurried};
use crate::run::Row;
use crate::shelf::Shelf;
use crate::store::Samples;
use crate::{hash, numbers, order, product};

/// Rollouts are made in portions of this many times those that run side by side, and then written: a kill costs one.
const ROUNDS: usize = 4;
/// Questions that a dry run asks at least.
const TRIED: usize = 4;

/// Lets a policy answer questions as in training, each several times, and keeps what it did.
///
/// Every question is asked. The [grpo] part of the recipe says how: `group` trajectories of each, `concurrent` of them at
/// the same time, drawn as `sampling` says. `train keep` takes those that are worth imitating. It goes on where it was when
/// the same command is given again; what it was is kept beside FILE.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  train rollout --recipe training/recipes/routerag-smollm2.toml --init runs/stage1 --set grpo.group=4 \\
                --questions hotpotqa/train.jsonl --index hotpotqa.index --out own.jsonl
  train keep own.jsonl --searches 2-3 --out kept.jsonl")]
pub(crate) struct Args {
    #[command(flatten)]
    asked: Asked,

    /// The policy or run that answers; without it the base model as it is.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,

    #[command(flatten)]
    asking: Asking,

    /// Where the trajectories are written, one per line.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    #[command(flatten)]
    rolling: Rolling,

    #[command(flatten)]
    host: Host,
}

/// Who answers.
struct Answering {
    /// With the weights that answer for its base model.
    recipe: Recipe,
    /// The folder of the adapter beside them.
    adapter: Option<PathBuf>,
    /// What both are known by.
    facts: Table,
    /// What the tokenizer is known by.
    vocabulary: String,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::block_on(log, "info", self.roll())
    }

    async fn roll(self) -> anyhow::Result<()> {
        let recipe = self.asked.open()?;
        let settings = recipe.grpo(&self.asked.recipe)?.clone();
        let sheets = self.asking.sheets()?;
        let Answering { recipe, adapter, mut facts, vocabulary } = self.answering(recipe)?;
        let (team, device) = (self.host.team(), self.rolling.served());
        let runtime = self.rolling.engine(&recipe, settings.concurrent, &team, device, (&self.host, None))?;
        let rolled = async {
            let lease = match adapter {
                Some(dir) => Some(runtime.engine.lease_adapter(dir).await?),
                None => None,
            };
            let embedder = self.asking.embedder(&team, &self.host)?;
            let (fields, over) = self.asking.fields(sheets, &runtime, &embedder, team.threads(), false)?;
            let more = over.into_iter().chain(asked::rolled(&runtime.engine));
            facts.extend(more.map(|(name, value)| (name.to_owned(), value)));
            let asked = fields.iter().flat_map(|field| field.questions.iter().map(move |question| (field, question)));
            let work = Work {
                settings: &settings,
                seed: recipe.seed,
                asked: asked.collect(),
                policy: unhurried(&recipe.policy()?, lease),
                vocabulary: &vocabulary,
            };
            if self.asked.dry_run {
                return work.dry_run(&self.out, &facts, &self.rolling.memory()).await;
            }
            work.run(&self.out, &facts).await
        };
        let rolled = rolled.await;
        // Whatever came of it.
        runtime.engine.end(device.step_limit).await;
        rolled
    }

    /// Who answers by a recipe.
    fn answering(&self, mut recipe: Recipe) -> anyhow::Result<Answering> {
        let (mut adapter, mut init) = (None, String::new());
        let given = recipe.clone();
        let (mut base, _) = assembly::checkpoint(&recipe.base, self.host.cache.clone())?;
        let vocabulary = hash::vocabulary(&base.tokenizer);
        if let Some(dir) = &self.init {
            let named = || format!("--init {}", dir.display());
            let (own, policy) = asked::policy("--init", dir, &recipe)?;
            if recipe.adapter.is_none() {
                let weights = asked::weights(&own, &policy).with_context(named)?;
                weights.to_str().context("its path is no text").with_context(named)?.clone_into(&mut recipe.base);
                let learnt = Checkpoint::open(&weights)?;
                asked::same_vocabulary(&learnt, &vocabulary, &base.name).with_context(named)?;
                base = learnt;
            } else {
                let dir = asked::adapter(&policy, &recipe, &base.name, &base.weights.id()).with_context(named)?;
                (_, init) = product::fingerprint(&dir.join("adapter_model.safetensors"))?;
                adapter = Some(dir.clone());
            }
        }
        let known: [(&str, Value); 2] = [("weights", base.weights.id().into()), ("init", init.into())];
        let facts = asked::table("rollout", &given, &known)?;
        Ok(Answering { recipe, adapter, facts, vocabulary })
    }
}

/// What is asked of whom.
struct Work<'a> {
    settings: &'a Grpo,
    seed: u64,
    asked: Vec<(&'a Field, &'a Question)>,
    policy: Policy,
    vocabulary: &'a str,
}

impl Work<'_> {
    /// Questions that are asked side by side.
    fn portion(&self) -> usize {
        (ROUNDS * self.settings.concurrent / self.settings.group).max(1)
    }

    /// Trajectories in all.
    fn total(&self) -> usize {
        self.asked.len() * self.settings.group
    }

    /// How portion `step`, from 1, is asked.
    fn plan(&self, step: u64) -> Plan<'_> {
        let Grpo { sampling, group, concurrent, .. } = self.settings;
        let seed = order::seed(self.seed, "rollouts", 0);
        Plan { sampling, group: *group, concurrent: *concurrent, seed, step, cost: Cost::default() }
    }

    /// How many trajectories are in `out` already, which the same command has made.
    fn made(&self, out: &Path) -> anyhow::Result<usize> {
        let one_more = |made: usize, sample: Result<_, _>| sample.map(|_| made + 1);
        let made = if out.exists() { Samples::open(out)?.try_fold(0, one_more)? } else { 0 };
        let total = self.total();
        ensure!(made <= total, "{}: {made} trajectories are in it, and this makes {total}", out.display());
        Ok(made)
    }

    async fn run(&self, out: &Path, facts: &Table) -> anyhow::Result<()> {
        let mut shelf = Shelf::open(out, facts)?;
        let (each, mut made) = (self.portion() * self.settings.group, self.made(out)?);
        let total = self.asked.len().div_ceil(self.portion()) as u64;
        let done = if made == self.total() { total } else { (made / each) as u64 };
        let began = Instant::now();
        let mut bar = Bar::new("rollout", done, total, &["em", "f1", "format_valid", "searches"]);
        for (at, asked) in self.asked.chunks(self.portion()).enumerate().skip(done as usize) {
            let (step, started) = (at as u64 + 1, Instant::now());
            let mut batch = rollouts(&self.policy, asked, &self.plan(step)).await?;
            // Of a portion that was broken off while it was written, some are there.
            for rollout in &mut batch.rollouts[made - at * each..] {
                rollout.sample.tokenizer = Some(self.vocabulary.to_owned());
                shelf.append(&rollout.sample)?;
                made += 1;
            }
            let row = Row::new(step, "rollout", began.elapsed().as_secs_f64());
            let row = numbers::rollouts(row, &batch.rollouts).with("step_seconds", started.elapsed().as_secs_f64());
            bar.show(&row);
        }
        shelf.sync()?;
        bar.end();
        anstream::println!("{made} trajectories of {} questions: {}", self.asked.len(), out.display());
        Ok(())
    }

    /// Says what would be done. The time is that of the rollouts of a few questions.
    async fn dry_run(&self, out: &Path, facts: &Table, memory: &str) -> anyhow::Result<()> {
        Shelf::check(out, facts)?;
        let Grpo { group, concurrent, .. } = self.settings;
        let (made, total) = (self.made(out)?, self.total());
        let few = TRIED.max(concurrent.div_ceil(*group)).min(self.asked.len());
        let began = Instant::now();
        let tried = rollouts(&self.policy, &self.asked[..few], &self.plan(1)).await?.rollouts.len();
        let seconds = began.elapsed().as_secs_f64() / tried.max(1) as f64 * (total - made) as f64;
        anstream::println!("questions  {}, each {group} times, {concurrent} side by side", self.asked.len());
        anstream::println!("rollouts   {total}, of which {made} are in {}", out.display());
        anstream::println!("memory     {memory}");
        anstream::println!("time       about {}, as measured on {tried} rollouts", duration(seconds));
        Ok(())
    }
}
