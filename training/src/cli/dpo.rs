//! `train dpo`: training on preferences.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use toml::Value;
use waymark_models::gradient::Learner;
use waymark_runtime::config::Device;

use super::compute_args::{BaseIdentity, ComputeArgs, LoadedLearner};
use super::dry_run;
use super::gpu_plan::{self, MemoryRequest};
use super::initial_policy::{self, InitialPolicy};
use super::observer::TerminalObserver;
use super::progress_bar::StepProgress;
use super::question_args::{self, QuestionArgs, RunFacts};
use super::question_split::ValidationArgs;
use super::recipe_args::RecipeArgs;
use super::rollout_args::RolloutArgs;
use super::run_facts;
use crate::dpo::{self, DpoGoal, DpoTraining};
use crate::hash;
use crate::ledger::RunLedger;
use crate::question_file;
use crate::recipe::dpo::DpoReference;
use crate::recipe::{Dpo, Recipe};
use crate::run::MetricsFile;
use crate::traps::TrapTable;

/// Trains a policy on preferences between its own trajectories, by DPO.
///
/// In each round the policy answers questions several times in the engine that serves it. The recipe's reward and pair
/// rule decide which trajectories are preferred to which, and a few epochs over these pairs make the preferred ones
/// more probable. The command trains an adapter, or every weight if the recipe has no [adapter]. RUN receives metrics,
/// all trajectories with their preferences, checkpoints, and in RUN/policy the policy of the best round of the last
/// stage: the round with the highest EM on the validation questions, or the last round if there are none. The same
/// command resumes an interrupted run. If the recipe has a ranker (dpo.ranker), its heads are written to
/// RUN/ranker.safetensors at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train dpo --recipe training/recipes/tearag.toml --init runs/tearag-sft \\
      --questions nq.jsonl --index wiki.index \\
      --questions hotpotqa.jsonl --index wiki.index \\
      --out runs/tearag --dry-run
  train dpo --recipe training/recipes/evo_rag.toml \\
      --questions hotpotqa.jsonl --index hotpotqa.index --out runs/evo_rag

Trajectories with their preferences:
  train show runs/evo_rag/samples.jsonl --step 1")]
pub(crate) struct Args {
    #[command(flatten)]
    recipe_args: RecipeArgs,

    /// Policy or run to start from. Defaults to the base model.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,

    #[command(flatten)]
    question_args: QuestionArgs,

    #[command(flatten)]
    validation_args: ValidationArgs,

    /// Directory of the run.
    #[arg(long, value_name = "RUN")]
    out: PathBuf,

    #[command(flatten)]
    rollout_args: RolloutArgs,

    #[command(flatten)]
    compute_args: ComputeArgs,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::block_on(log, "info", self.train())
    }

    async fn train(self) -> anyhow::Result<()> {
        let recipe = self.recipe_args.open()?;
        let settings = recipe.dpo(&self.recipe_args.file.recipe)?;
        // Checked before anything is loaded, because a run whose reward pays for a bad behavior wastes hours.
        TrapTable::of(&recipe).await?.check()?;
        check_ranker(settings, self.compute_args.gpu())?;
        let device = self.rollout_args.device(&recipe)?;
        let refusals = settings.rewards_refusals();
        let needs_support = settings.needs_support();
        let files = self.validation_args.split(self.question_args.files()?, "dpo.validation", settings.validation)?;
        let files = if refusals { files } else { question_file::answerable(files)? };
        let team = self.compute_args.host_args.team();
        let policy = recipe.policy()?;
        let rollout_engine = self.rollout_args.shared_engine(&recipe, settings.concurrent, device, &self.compute_args);
        let memory_request = MemoryRequest {
            section: "dpo",
            pack_tokens: settings.pack_tokens,
            longest: gpu_plan::max_trajectory_tokens(&policy),
            rollout_engine,
        };
        let loaded = self.compute_args.load(&recipe, &memory_request, Arc::clone(&team), self.recipe_args.dry_run)?;
        let Some(LoadedLearner { mut learner, base, gpu_plan }) = loaded else { return Ok(()) };
        let gpu_plan = gpu_plan.as_ref();
        let take = |dir: &PathBuf| initial_policy::load("--init", dir, &recipe, &base, &mut learner);
        let origin = self.init.as_ref().map(take).transpose()?.unwrap_or_default();
        // The ranker's encoder stays at the initial values, which full training overwrites.
        let encoded = settings.ranker.is_some() && recipe.adapter.is_none();
        let measured = settings.reference == DpoReference::Initial || encoded;
        let initial = if measured { learner.values().to_vec() } else { Vec::new() };
        let adapter_dir = tempfile::tempdir()?;
        let runtime = self.rollout_args.engine(
            &recipe,
            settings.concurrent,
            &team,
            device,
            &self.compute_args.host_args,
            gpu_plan,
        )?;
        let result = async {
            let embedder = self.question_args.embedder(&team, &self.compute_args.host_args)?;
            let stages = settings.stages.iter().zip(1..);
            let goals: Vec<DpoGoal> =
                stages.map(|(stage, number)| DpoGoal::of(stage, number, settings, Arc::clone(&embedder))).collect();
            let (question_sets, index_facts) =
                self.question_args.open_question_sets(files, &runtime, &embedder, team.threads(), needs_support)?;
            if goals.iter().any(|goal| goal.reward.counts_hops()) {
                question_args::log_hops(&question_sets);
            }
            let vocabulary = hash::vocabulary(&runtime.tokenizer);
            let training = DpoTraining {
                settings,
                seed: recipe.seed,
                goals: &goals,
                question_sets: &question_sets,
                policy: &policy,
                engine: &runtime.engine,
                vocabulary: &vocabulary,
                initial: &initial,
                adapter_dir: adapter_dir.path().join("adapter"),
            };
            if self.recipe_args.dry_run {
                let kv = self.rollout_args.kv_memory();
                return dry_run::dpo(&recipe, &training, &mut learner, &kv, gpu_plan).await;
            }
            self.run_training(&training, &recipe, &base, origin, index_facts, &mut learner).await
        };
        let result = result.await;
        // The engine has to stop whether or not training succeeded.
        runtime.engine.end(device.step_limit).await;
        result
    }

    /// Trains, and writes the policy and the ranker.
    async fn run_training(
        &self,
        training: &DpoTraining<'_>,
        recipe: &Recipe,
        base: &BaseIdentity,
        origin: InitialPolicy,
        index_facts: RunFacts,
        learner: &mut Learner,
    ) -> anyhow::Result<()> {
        let InitialPolicy { record: previous_record, hash: init } = origin;
        let mut facts: Vec<(&str, Value)> = vec![("weights", base.id.clone().into())];
        facts.extend(index_facts);
        facts.extend(self.validation_args.facts()?);
        facts.extend(run_facts::training_device(learner));
        facts.extend(run_facts::rollout_device(training.engine));
        facts.push(("init", init.clone().into()));
        let facts = run_facts::to_toml("dpo", recipe, &facts)?;
        let mut ledger = RunLedger::open(&self.out, &facts, recipe.optimizer, training.settings.keep_last)?;
        const SHOWN: &[&str] = &[
            "round",
            "reward",
            "em",
            "f1",
            "pairs",
            "loss",
            "margin",
            "pair_accuracy",
            "step_seconds",
            "validation_merit",
        ];
        // The bar ends where the current round ends; the length of the next round is not known yet.
        let rows = MetricsFile::read(&ledger.folder().metrics())?;
        let end = rows.iter().rev().find_map(|row| row.values.get(dpo::ROUND_END)).map_or(1, |&end| end as u64);
        let bar = StepProgress::new("dpo", ledger.state().step, end, SHOWN);
        let data = run_facts::fingerprints(&self.question_args.questions)?;
        let mut terminal =
            TerminalObserver { bar, recipe, kind: "dpo", data, previous_record, base: base.policy_base() };
        training.train(learner, &mut ledger, &mut terminal).await?;
        // When all weights are trained, the ranker reads the states of the initial weights; otherwise those of the base
        // model.
        let begun = recipe.adapter.is_none() && !init.is_empty();
        let (kind, id) = if begun { ("init", &init) } else { ("base_id", &base.id) };
        dpo::write_ranker(&ledger, learner, kind, id)?;
        terminal.finish(&ledger, learner)
    }
}

/// Fails if the recipe has a ranker and a GPU trains, before anything is loaded.
fn check_ranker(settings: &Dpo, gpu: Option<Device>) -> anyhow::Result<()> {
    let Some(gpu) = gpu.filter(|_| settings.ranker.is_some()) else { return Ok(()) };
    bail!(
        "--device {gpu}: the recipe has a ranker (dpo.ranker), which needs hidden states that the GPU backend does not \
         return: use --device cpu or --set dpo.ranker.heads=0"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;

    #[test]
    fn a_ranker_on_a_gpu_is_refused() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/evo_rag.toml"));
        let check = |set: &[String], card| {
            let recipe = Recipe::open(path, set).unwrap();
            check_ranker(recipe.dpo(path).unwrap(), card)
        };
        assert!(check(&[], None).is_ok());
        assert!(check(&["dpo.ranker.heads=0".to_owned()], Some(Device::Cuda(1))).is_ok());
        let error = check(&[], Some(Device::Cuda(1))).unwrap_err().to_string();
        assert!(error.contains("--device cuda:1") && error.contains("dpo.ranker"), "{error}");
    }
}
