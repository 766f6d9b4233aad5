//! `train rollout`: generates trajectories of a policy without training.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use toml::{Table, Value};
use waymark_agent::Policy;
use waymark_models::checkpoint::Checkpoint;
use waymark_runtime::assembly;
use waymark_runtime::evaluate::Question;

use super::host_args::HostArgs;
use super::initial_policy;
use super::progress_bar::{StepProgress, duration};
use super::question_args::QuestionArgs;
use super::recipe_args::RecipeArgs;
use super::rollout_args::RolloutArgs;
use super::run_facts;
use crate::recipe::{Grpo, Recipe};
use crate::rollout::{QuestionSet, RolloutSettings, rollout_policy, rollouts};
use crate::run::MetricsRow;
use crate::sample_file::SampleFile;
use crate::sample_lines::SampleReader;
use crate::{hash, policy_writer, rollout_metrics, seeding};

/// Size of a portion of rollouts, as a multiple of the concurrent ones. Each portion is written when it is complete, so
/// a kill loses at most one portion.
const ROUNDS: usize = 4;
/// Minimum number of questions in a dry run.
const TRIED: usize = 4;

/// Generates several trajectories for each question, as in training, and stores them.
///
/// The command answers every question as the [grpo] section of the recipe says: `group` trajectories of each,
/// `concurrent` of them at a time, sampled by `sampling`. `train keep` selects those worth imitating. The same command
/// resumes an interrupted one; its settings are stored next to FILE.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  train rollout --recipe training/recipes/routerag-smollm2.toml \\
      --init runs/stage1 --set grpo.group=4 \\
      --questions hotpotqa/train.jsonl --index hotpotqa.index --out own.jsonl
  train keep own.jsonl --searches 2-3 --out kept.jsonl")]
pub(crate) struct Args {
    #[command(flatten)]
    recipe_args: RecipeArgs,

    /// Policy or run that answers. Defaults to the base model.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,

    #[command(flatten)]
    question_args: QuestionArgs,

    /// File to write the trajectories to, one per line.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    #[command(flatten)]
    rollout_args: RolloutArgs,

    #[command(flatten)]
    host_args: HostArgs,
}

/// Policy that answers: its weights and adapter.
struct AnsweringPolicy {
    /// Recipe whose `base` is replaced by the weights that answer.
    recipe: Recipe,
    /// Directory of the adapter. `None` without one.
    adapter: Option<PathBuf>,
    /// Facts that identify weights and adapter.
    facts: Table,
    /// Hash of the vocabulary.
    vocabulary: String,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::block_on(log, "info", self.roll())
    }

    async fn roll(self) -> anyhow::Result<()> {
        let recipe = self.recipe_args.open()?;
        let settings = recipe.grpo(&self.recipe_args.file.recipe)?.clone();
        let files = self.question_args.files()?;
        let AnsweringPolicy { recipe, adapter, mut facts, vocabulary } = self.answering_policy(recipe)?;
        let team = self.host_args.team();
        let device = self.rollout_args.device_without_training();
        let runtime = self.rollout_args.engine(&recipe, settings.concurrent, &team, device, &self.host_args, None)?;
        let result = async {
            let lease = match adapter {
                Some(dir) => Some(runtime.engine.lease_adapter(dir).await?),
                None => None,
            };
            let embedder = self.question_args.embedder(&team, &self.host_args)?;
            let (question_sets, index_facts) =
                self.question_args.open_question_sets(files, &runtime, &embedder, team.threads(), false)?;
            let more = index_facts.into_iter().chain(run_facts::rollout_device(&runtime.engine));
            facts.extend(more.map(|(name, value)| (name.to_owned(), value)));
            let questions =
                question_sets.iter().flat_map(|set| set.questions.iter().map(move |question| (set, question)));
            let job = RolloutJob {
                settings: &settings,
                seed: recipe.seed,
                questions: questions.collect(),
                policy: rollout_policy(&recipe.policy()?, lease),
                vocabulary: &vocabulary,
            };
            if self.recipe_args.dry_run {
                return job.dry_run(&self.out, &facts, &self.rollout_args.memory()).await;
            }
            job.run(&self.out, &facts).await
        };
        let result = result.await;
        // The engine has to stop whether or not the rollouts succeeded.
        runtime.engine.end(device.step_limit).await;
        result
    }

    /// Resolves the policy that answers, by the recipe and --init.
    fn answering_policy(&self, mut recipe: Recipe) -> anyhow::Result<AnsweringPolicy> {
        let mut adapter = None;
        let mut init = String::new();
        // The facts record the recipe as it was given, not with the base that --init may put into it.
        let given = recipe.clone();
        let (mut base, _) = assembly::checkpoint(&recipe.base, self.host_args.cache.clone())?;
        let vocabulary = hash::vocabulary(&base.tokenizer);
        if let Some(dir) = &self.init {
            let named = || format!("--init {}", dir.display());
            let (own, policy) = initial_policy::open("--init", dir, &recipe)?;
            if recipe.adapter.is_none() {
                let weights = initial_policy::weights_dir(&own, &policy).with_context(named)?;
                weights
                    .to_str()
                    .context("the path of the weights is not valid UTF-8")
                    .with_context(named)?
                    .clone_into(&mut recipe.base);
                let trained = Checkpoint::open(&weights)?;
                initial_policy::check_vocabulary(&trained, &vocabulary, &base.name).with_context(named)?;
                base = trained;
            } else {
                let dir = initial_policy::adapter_dir(&policy, &recipe, &base.name, &base.weights.id())
                    .with_context(named)?;
                (_, init) = policy_writer::fingerprint(&dir.join("adapter_model.safetensors"))?;
                adapter = Some(dir.clone());
            }
        }
        let identity: [(&str, Value); 2] = [("weights", base.weights.id().into()), ("init", init.into())];
        let facts = run_facts::table("rollout", &given, &identity)?;
        Ok(AnsweringPolicy { recipe, adapter, facts, vocabulary })
    }
}

/// Questions to answer, and the policy that answers them.
struct RolloutJob<'a> {
    settings: &'a Grpo,
    seed: u64,
    questions: Vec<(&'a QuestionSet, &'a Question)>,
    policy: Policy,
    vocabulary: &'a str,
}

impl RolloutJob<'_> {
    /// Number of questions in a portion.
    fn portion(&self) -> usize {
        (ROUNDS * self.settings.concurrent / self.settings.group).max(1)
    }

    /// Total number of trajectories.
    fn total(&self) -> usize {
        self.questions.len() * self.settings.group
    }

    /// Rollout settings of the portion `step`, counted from 1.
    fn rollout_settings(&self, step: u64) -> RolloutSettings<'_> {
        let Grpo { sampling, group, concurrent, first_modes, evidence, .. } = self.settings;
        let seed = seeding::seed(self.seed, "rollouts", 0);
        let defaults = RolloutSettings::new(sampling, *concurrent, seed);
        RolloutSettings { group: *group, step, first_modes, evidence: *evidence, ..defaults }
    }

    /// Number of trajectories that `out` already holds from an earlier run of the same command.
    fn made(&self, out: &Path) -> anyhow::Result<usize> {
        let one_more = |made: usize, sample: Result<_, _>| sample.map(|_| made + 1);
        let made = if out.exists() { SampleReader::open(out)?.try_fold(0, one_more)? } else { 0 };
        let total = self.total();
        ensure!(
            made <= total,
            "{} already holds {made} trajectories, but this command generates only {total}",
            out.display()
        );
        Ok(made)
    }

    async fn run(&self, out: &Path, facts: &Table) -> anyhow::Result<()> {
        let mut samples = SampleFile::open(out, facts)?;
        let portion_trajectories = self.portion() * self.settings.group;
        let mut made = self.made(out)?;
        let total = self.questions.len().div_ceil(self.portion()) as u64;
        // The last portion may be smaller, so a complete file is recognized by its total.
        let done = if made == self.total() { total } else { (made / portion_trajectories) as u64 };
        let run_started = Instant::now();
        let mut bar = StepProgress::new("rollout", done, total, &["em", "f1", "format_valid", "searches"]);
        for (portion, questions) in self.questions.chunks(self.portion()).enumerate().skip(done as usize) {
            let step = portion as u64 + 1;
            let started = Instant::now();
            let mut batch = rollouts(&self.policy, questions, &self.rollout_settings(step)).await?;
            // If a kill interrupted the writing of this portion, its first trajectories are already in the file.
            for rollout in &mut batch.rollouts[made - portion * portion_trajectories..] {
                rollout.sample.tokenizer = Some(self.vocabulary.to_owned());
                samples.append(&rollout.sample)?;
                made += 1;
            }
            let row = MetricsRow::new(step, "rollout", run_started.elapsed().as_secs_f64());
            let row = rollout_metrics::add_rollouts(row, &batch.rollouts)
                .with("step_seconds", started.elapsed().as_secs_f64());
            bar.show(&row);
        }
        samples.sync()?;
        bar.end();
        anstream::println!("{made} trajectories of {} questions: {}", self.questions.len(), out.display());
        Ok(())
    }

    /// Prints the planned work. The time estimate comes from the rollouts of a few questions.
    async fn dry_run(&self, out: &Path, facts: &Table, memory: &str) -> anyhow::Result<()> {
        SampleFile::check(out, facts)?;
        let Grpo { group, concurrent, .. } = self.settings;
        let made = self.made(out)?;
        let total = self.total();
        // Enough questions to keep all places busy, or the measured rate would be too low.
        let few = TRIED.max(concurrent.div_ceil(*group)).min(self.questions.len());
        let started = Instant::now();
        let tried = rollouts(&self.policy, &self.questions[..few], &self.rollout_settings(1)).await?.rollouts.len();
        let seconds = started.elapsed().as_secs_f64() / tried.max(1) as f64 * (total - made) as f64;
        anstream::println!("questions  {}, {group} rollouts each, {concurrent} at a time", self.questions.len());
        anstream::println!("rollouts   {total}, of which {made} are in {}", out.display());
        anstream::println!("memory     {memory}");
        anstream::println!("time       about {}, as measured on {tried} rollouts", duration(seconds));
        Ok(())
    }
}
