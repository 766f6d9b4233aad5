//! `train grpo`: learning from rewards.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use toml::{Table, Value};
use waymark::agent::Runtime;
use waymark::cli::embedding::Embedding;
use waymark::cli::{assembly, logging};
use waymark::config::{Device, DeviceConfig, LogFormat, ModelConfig, Size};
use waymark_models::Arithmetic;
use waymark_models::gradient::Learner;
use waymark_models::kernel::Team;

use super::asked::{self, Asked};
use super::bar::Bar;
use super::field::Asking;
use super::machine::{Base, Machine};
use super::plan;
use super::producer::Producer;
use crate::grpo::{Campaign, Goal};
use crate::ledger::Ledger;
use crate::recipe::{Grpo, Recipe, Reference};

/// An engine takes a new adapter between two steps, but not new weights.
const NO_ADAPTER: &str = "grpo learns an adapter, which the engine takes anew each step: give the recipe one, such as \
    --set 'adapter={rank=16,alpha=32.0,seed=42,targets=[\"q_proj\",\"k_proj\",\"v_proj\",\"o_proj\"]}'";

/// The share of a card's memory for what learns and rolls out on it together, between passes; the rest is for the passes.
const SHARED: f64 = 0.5;

/// Learns from rewards of its own trajectories, by GRPO.
///
/// Each step, the policy answers questions several times in the engine it is served by; what was better than the others of
/// its group becomes more probable. RUN gets metrics, all trajectories, checkpoints, and in RUN/policy that of the best step
/// of the last stage: the one with the highest mean reward on the validation questions, or where the reward prices
/// searches, with the highest EM less `grpo.thrift` times their cost. A run that was killed goes on when the same command
/// is given again.
///
/// Stages that are trained one by one, each with the policy before as --init, have the learning rates and the questions
/// that they would have in one run; the optimizer's moments begin anew.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train grpo --recipe training/recipes/routerag-smollm2.toml --init runs/sft --stage 1 \\
             --questions hotpotqa/train.jsonl --index hotpotqa.index --out runs/stage1
  train grpo --recipe training/recipes/routerag-smollm2.toml --init runs/stage1 --reference runs/sft --stage 2 \\
             --questions hotpotqa/train.jsonl --index hotpotqa.index --out runs/stage2 --dry-run")]
pub(crate) struct Args {
    #[command(flatten)]
    asked: Asked,

    /// The policy or run to begin with; without it a new adapter, which does as the base model does.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,

    /// The policy or run that the divergence is measured from; that of --init when not given.
    #[arg(long, value_name = "DIR")]
    reference: Option<PathBuf>,

    /// The stage of the recipe to train, from 1; all of them, one after the other, when not given.
    #[arg(long, value_name = "N")]
    stage: Option<usize>,

    #[command(flatten)]
    asking: Asking,

    /// The run's folder.
    #[arg(long, value_name = "RUN")]
    out: PathBuf,

    /// Memory for the KV cache of the rollouts, such as `4GiB`.
    #[arg(long, visible_alias = "kv-memory", env = "WAYMARK_KV_BYTES", value_name = "SIZE", default_value = "4GiB")]
    kv_bytes: Size,

    /// What makes the rollouts: `cpu`, `cuda`, `cuda:N`, or `auto`.
    #[arg(long, env = "WAYMARK_ROLLOUT_DEVICE", value_name = "DEVICE", default_value = "cpu")]
    rollout_device: Device,

    #[command(flatten)]
    machine: Machine,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "info", LogFormat::Text)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.train())
    }

    async fn train(self) -> anyhow::Result<()> {
        let recipe = self.asked.open()?;
        let settings = recipe.grpo(&self.asked.recipe)?;
        let (goals, behind) = self.goals(settings)?;
        ensure!(recipe.adapter.is_some(), "{NO_ADAPTER}");
        self.check_reference(settings)?;
        let sheets = self.asking.sheets(settings.validation)?;
        let team = self.machine.team();
        let (mut learner, base) = self.machine.learner(&recipe, Arc::clone(&team))?;
        let begun = self.begin(&recipe, &base, &mut learner)?;
        let (engine, embedder) = self.engine(&recipe, settings, &team, self.machine.is_also(self.rollout_device))?;
        let (fields, over) = self.asking.fields(sheets, &engine, embedder, team.threads())?;
        let policy = recipe.policy()?;
        let exchange = tempfile::tempdir()?;
        let campaign = Campaign {
            settings,
            seed: recipe.seed,
            goals: &goals,
            behind,
            whole: settings.stages.iter().map(|stage| stage.steps as u64).sum(),
            fields: &fields,
            policy: &policy,
            engine: &engine.engine,
            reference: &begun.reference,
            exchange: exchange.path().join("adapter"),
        };
        if self.asked.dry_run {
            return plan::grpo(&recipe, &campaign, &mut learner, self.kv_bytes.0).await;
        }
        let stage = self.stage.map_or_else(|| "all".to_owned(), |stage| stage.to_string());
        let mut facts: Vec<(&str, Value)> = vec![("stage", stage.into()), ("weights", base.id.clone().into())];
        facts.extend(over);
        facts.extend(asked::device(&learner));
        facts.extend([("init", Value::String(begun.init)), ("reference", Value::String(begun.compared))]);
        let facts = asked::facts("grpo", &recipe, &facts)?;
        let mut ledger = Ledger::open(&self.out, &facts, recipe.optimizer, settings.keep_last)?;
        const SHOWN: &[&str] =
            &["reward", "em", "f1", "format_valid", "searches", "kl", "step_seconds", "validation_merit"];
        let bar = Bar::new("grpo", ledger.state().step, campaign.steps(), SHOWN);
        let data = asked::fingerprints(&self.asking.questions)?;
        let mut producer =
            Producer { bar, recipe: &recipe, kind: "grpo", data, before: begun.before, base: &base.path };
        campaign.train(&mut learner, &mut ledger, &mut producer).await?;
        producer.finish(&ledger, &mut learner)
    }

    /// The stages to train, and the steps of those before them.
    fn goals(&self, settings: &Grpo) -> anyhow::Result<(Vec<Goal>, u64)> {
        let all = &settings.stages;
        let taken = match self.stage {
            None => 0..all.len(),
            Some(stage) => {
                ensure!((1..=all.len()).contains(&stage), "--stage {stage}: the recipe has {}", all.len());
                ensure!(all[stage - 1].steps > 0, "--stage {stage}: it has no steps, see grpo.stages of the recipe");
                stage - 1..stage
            }
        };
        let behind = all[..taken.start].iter().map(|stage| stage.steps as u64).sum();
        Ok((taken.map(|place| Goal::of(&all[place], place + 1, settings)).collect(), behind))
    }

    /// Refuses a reference that nothing would be measured from.
    fn check_reference(&self, settings: &Grpo) -> anyhow::Result<()> {
        let Some(dir) = &self.reference else { return Ok(()) };
        let named = format!("--reference {}", dir.display());
        let initial = settings.reference == Reference::Initial;
        ensure!(initial, "{named}: the recipe measures the divergence from the base model (grpo.reference = \"base\")");
        ensure!(settings.loss.kl > 0.0, "{named}: the recipe does not weigh the divergence (grpo.loss.kl = 0)");
        Ok(())
    }

    /// Sets the learner to what training begins with.
    fn begin(&self, recipe: &Recipe, base: &Base, learner: &mut Learner) -> anyhow::Result<Begun> {
        let (before, init) = match &self.init {
            Some(dir) => asked::take("--init", dir, recipe, base, learner)?,
            None => (None, String::new()),
        };
        let own = learner.values().to_vec();
        let Some(dir) = &self.reference else {
            return Ok(Begun { before, init, reference: own, compared: String::new() });
        };
        let (_, compared) = asked::take("--reference", dir, recipe, base, learner)?;
        let reference = learner.values().to_vec();
        learner.set_values(&own)?;
        Ok(Begun { before, init, reference, compared })
    }

    /// The engine that makes the rollouts, and what embeds queries for their searches. `shared` is whether a card learns,
    /// which may be the same one.
    fn engine(
        &self,
        recipe: &Recipe,
        settings: &Grpo,
        team: &Arc<Team>,
        shared: bool,
    ) -> anyhow::Result<(Runtime, Embedding)> {
        // The learner's, so that both say the same; a card computes in bf16 whatever is asked.
        let rounded = Some(recipe.arithmetic).filter(|arithmetic| *arithmetic != Arithmetic::F32);
        let mut device = DeviceConfig::of(self.rollout_device).with(rounded);
        if shared {
            device.share = SHARED;
        }
        let model = ModelConfig {
            mock_step: Duration::ZERO,
            weights: Some(recipe.base.clone()),
            cache: self.machine.cache.clone(),
            device,
            threads: team.threads(),
            kv_bytes: self.kv_bytes.0,
            kv_reserve: false,
            max_batch: settings.concurrent,
            step_tokens: 512.max(settings.concurrent),
            max_waiting: settings.concurrent,
            context: None,
        };
        let (runtime, _) = assembly::runtime(&model, Arc::clone(team), None)?;
        let aside = Arc::new(Team::new(team.threads()));
        let embedder = assembly::embedder(&self.asking.embedder, self.machine.cache.clone(), aside)?;
        Ok((runtime, embedder))
    }
}

/// What training begins with.
struct Begun {
    /// The record of the training before.
    before: Option<Table>,
    /// The hash of the adapter it begins with; nothing for a new one.
    init: String,
    /// What the divergence is measured from.
    reference: Vec<f32>,
    /// The hash of the adapter that has these values, where another was named.
    compared: String,
}
