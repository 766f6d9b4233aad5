//! `train grpo`: training on rewards.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{anyhow, bail};
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
use crate::grpo::{GrpoGoal, GrpoTraining};
use crate::hash;
use crate::ledger::RunLedger;
use crate::question_file;
use crate::recipe::{Grpo, GrpoReference, Recipe};
use crate::traps::TrapTable;

/// Trains a policy on rewards of its own trajectories, by GRPO.
///
/// In each step the policy answers questions several times in the engine that serves it, and the trajectories that beat
/// the mean of their group become more probable. The command trains an adapter, or every weight if the recipe has no
/// [adapter]. RUN receives metrics, all trajectories, checkpoints, and in RUN/policy the policy of the best step of the
/// last stage: the step with the highest mean reward on the validation questions, or, if the reward prices searches,
/// with the highest EM less `grpo.thrift` times their cost. The same command resumes an interrupted run.
///
/// Stages that are trained one by one, each with the previous policy as --init, use the same learning rates and
/// questions as in a single run, but not the same weights: each begins with the best step of the previous stage instead
/// of its last one, in the recipe's `precision`. Its rollouts have other seeds, the optimizer's moments start anew, and
/// without --reference the KL divergence is measured from --init.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train grpo --recipe training/recipes/routerag-smollm2.toml \\
      --init runs/sft --stage 1 \\
      --questions hotpotqa/train.jsonl --index hotpotqa.index \\
      --out runs/stage1
  train grpo --recipe training/recipes/routerag-smollm2.toml \\
      --init runs/stage1 --reference runs/sft --stage 2 \\
      --questions hotpotqa/train.jsonl --index hotpotqa.index \\
      --out runs/stage2 --dry-run")]
pub(crate) struct Args {
    #[command(flatten)]
    recipe_args: RecipeArgs,

    /// Policy or run to start from. Defaults to the base model.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,

    /// Policy or run that the KL divergence is measured from; it is also the teacher, if the recipe has one. Defaults
    /// to that of --init.
    #[arg(long, value_name = "DIR")]
    reference: Option<PathBuf>,

    /// Stage of the recipe to train, from 1. Defaults to all stages in order.
    #[arg(long, value_name = "N")]
    stage: Option<usize>,

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
        let settings = recipe.grpo(&self.recipe_args.file.recipe)?;
        // Checked before anything is loaded, because a run whose reward pays for a bad behavior wastes hours.
        TrapTable::of(&recipe).await?.check()?;
        let (stages, earlier_steps) = self.stages(settings)?;
        self.check_reference(settings)?;
        check_teacher(settings, self.compute_args.gpu())?;
        let device = self.rollout_args.device(&recipe)?;
        let refusals = settings.rewards_refusals(stages.clone());
        let needs_support = settings.needs_support(stages.clone());
        let files = self.validation_args.split(self.question_args.files()?, "grpo.validation", settings.validation)?;
        let files = if refusals { files } else { question_file::answerable(files)? };
        let team = self.compute_args.host_args.team();
        let policy = recipe.policy()?;
        let rollout_engine = self.rollout_args.shared_engine(&recipe, settings.concurrent, device, &self.compute_args);
        let memory_request = MemoryRequest {
            section: "grpo",
            pack_tokens: settings.pack_tokens,
            longest: gpu_plan::max_trajectory_tokens(&policy),
            rollout_engine,
        };
        let loaded = self.compute_args.load(&recipe, &memory_request, Arc::clone(&team), self.recipe_args.dry_run)?;
        let Some(LoadedLearner { mut learner, base, gpu_plan }) = loaded else { return Ok(()) };
        let gpu_plan = gpu_plan.as_ref();
        let InitialState { reference, provenance } = self.load_initial_state(&recipe, settings, &base, &mut learner)?;
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
            let goal = |place| GrpoGoal::of(&settings.stages[place], place + 1, settings, Arc::clone(&embedder));
            let goals: Vec<GrpoGoal> = stages.map(goal).collect();
            let (question_sets, index_facts) =
                self.question_args.open_question_sets(files, &runtime, &embedder, team.threads(), needs_support)?;
            if goals.iter().any(|goal| goal.reward.counts_hops()) {
                question_args::log_hops(&question_sets);
            }
            let vocabulary = hash::vocabulary(&runtime.tokenizer);
            let training = GrpoTraining {
                settings,
                seed: recipe.seed,
                goals: &goals,
                earlier_steps,
                // All stages, even if only one is trained: the schedule continues across them.
                scheduled_steps: settings.stages.iter().map(|stage| stage.steps as u64).sum(),
                question_sets: &question_sets,
                policy: &policy,
                engine: &runtime.engine,
                vocabulary: &vocabulary,
                reference: &reference,
                adapter_dir: adapter_dir.path().join("adapter"),
            };
            if self.recipe_args.dry_run {
                let kv = self.rollout_args.kv_memory();
                return dry_run::grpo(&recipe, &training, &mut learner, &kv, gpu_plan).await;
            }
            self.run_training(&training, &recipe, &base, provenance, index_facts, &mut learner).await
        };
        let result = result.await;
        // The engine has to stop whether or not training succeeded.
        runtime.engine.end(device.step_limit).await;
        result
    }

    /// Trains, and writes the policy.
    async fn run_training(
        &self,
        training: &GrpoTraining<'_>,
        recipe: &Recipe,
        base: &BaseIdentity,
        provenance: Provenance,
        index_facts: RunFacts,
        learner: &mut Learner,
    ) -> anyhow::Result<()> {
        let stage = self.stage.map_or_else(|| "all".to_owned(), |stage| stage.to_string());
        let mut facts: Vec<(&str, Value)> = vec![("stage", stage.into()), ("weights", base.id.clone().into())];
        facts.extend(index_facts);
        facts.extend(self.validation_args.facts()?);
        facts.extend(run_facts::training_device(learner));
        facts.extend(run_facts::rollout_device(training.engine));
        facts.extend([
            ("init", Value::String(provenance.origin.hash)),
            ("reference", Value::String(provenance.reference_hash)),
        ]);
        let facts = run_facts::to_toml("grpo", recipe, &facts)?;
        let mut ledger = RunLedger::open(&self.out, &facts, recipe.optimizer, training.settings.keep_last)?;
        const SHOWN: &[&str] =
            &["reward", "em", "f1", "format_valid", "searches", "kl", "step_seconds", "validation_merit"];
        let bar = StepProgress::new("grpo", ledger.state().step, training.steps(), SHOWN);
        let data = run_facts::fingerprints(&self.question_args.questions)?;
        let mut terminal = TerminalObserver {
            bar,
            recipe,
            kind: "grpo",
            data,
            previous_record: provenance.origin.record,
            base: base.policy_base(),
        };
        training.train(learner, &mut ledger, &mut terminal).await?;
        terminal.finish(&ledger, learner)
    }

    /// Range of the stages to train, and the number of steps in the stages before it.
    fn stages(&self, settings: &Grpo) -> anyhow::Result<(Range<usize>, u64)> {
        let stages = settings.stages_to_train(self.stage);
        // Without --stage all stages are trained, which is never refused.
        let stages = stages.map_err(|reason| anyhow!("--stage {}: {reason}", self.stage.unwrap_or_default()))?;
        let earlier_steps = settings.stages[..stages.start].iter().map(|stage| stage.steps as u64).sum();
        Ok((stages, earlier_steps))
    }

    /// Fails if --reference is given but the recipe does not use a reference.
    fn check_reference(&self, settings: &Grpo) -> anyhow::Result<()> {
        let Some(dir) = &self.reference else { return Ok(()) };
        match settings.reference_flaw() {
            None => Ok(()),
            Some(reason) => bail!("--reference {}: {reason}", dir.display()),
        }
    }

    /// Loads the initial values into the learner, and returns them with the reference.
    fn load_initial_state(
        &self,
        recipe: &Recipe,
        settings: &Grpo,
        base: &BaseIdentity,
        learner: &mut Learner,
    ) -> anyhow::Result<InitialState> {
        let measured = settings.needs_reference();
        // An adapter leaves the base model intact, but full training overwrites it, so its values are copied before
        // --init is loaded.
        let from_base = measured && recipe.adapter.is_none() && settings.reference == GrpoReference::Base;
        let mut reference = if from_base { learner.values().to_vec() } else { Vec::new() };
        let origin = match &self.init {
            Some(dir) => initial_policy::load("--init", dir, recipe, base, learner)?,
            None => InitialPolicy::default(),
        };
        let mut reference_hash = String::new();
        if let Some(dir) = &self.reference {
            // The learner's buffers serve to load the reference, so its own values are put back afterwards.
            let own = learner.values().to_vec();
            reference_hash = initial_policy::load("--reference", dir, recipe, base, learner)?.hash;
            reference = learner.values().to_vec();
            learner.set_values(&own)?;
        } else if measured && settings.reference == GrpoReference::Initial {
            reference = learner.values().to_vec();
        }
        Ok(InitialState { reference, provenance: Provenance { origin, reference_hash } })
    }
}

/// Fails if the recipe has a teacher and a GPU trains, before anything is loaded.
fn check_teacher(settings: &Grpo, gpu: Option<Device>) -> anyhow::Result<()> {
    let Some(gpu) = gpu.filter(|_| settings.active_teacher().is_some()) else { return Ok(()) };
    bail!(
        "--device {gpu}: the recipe has a teacher (grpo.teacher), for which the GPU backend has no kernels: use --device \
         cpu or --set grpo.teacher.weight=0.0"
    )
}

/// Reference values and provenance of the initial values.
struct InitialState {
    /// Values of the reference model, which is also the teacher. Empty if the adapter's base model is the reference, or
    /// if there is no reference.
    reference: Vec<f32>,
    provenance: Provenance,
}

/// Provenance of the initial values.
struct Provenance {
    /// Policy given by --init.
    origin: InitialPolicy,
    /// Hash of the values given by --reference. Empty without that option.
    reference_hash: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;

    #[test]
    fn only_the_trained_stages_decide_on_refusals() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/search_r1.toml"));
        let stages = r#"grpo.stages=[{steps=1,reward="exact_match"},{steps=1,reward={evo_rag={}}}]"#;
        let recipe = Recipe::open(path, &[stages.to_owned()]).unwrap();
        let settings = recipe.grpo(path).unwrap();
        assert_eq!([0..2, 0..1, 1..2].map(|stages| settings.rewards_refusals(stages)), [false, false, true]);
    }

    #[test]
    fn a_teacher_on_a_gpu_is_refused() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/path_router.toml"));
        let check = |set: &[String], card| {
            let recipe = Recipe::open(path, set).unwrap();
            check_teacher(recipe.grpo(path).unwrap(), card)
        };
        assert!(check(&[], None).is_ok());
        assert!(check(&["grpo.teacher.weight=0.0".to_owned()], Some(Device::Cuda(1))).is_ok());
        let error = check(&[], Some(Device::Cuda(1))).unwrap_err().to_string();
        assert!(error.contains("--device cuda:1") && error.contains("grpo.teacher"), "{error}");
    }
}
