//! `train grpo`: learning from rewards.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use toml::Value;
use waymark::agent::Runtime;
use waymark::cli::embedding::Embedding;
use waymark::cli::{assembly, logging};
use waymark::config::{LogFormat, ModelConfig, RetrievalConfig, Size};
use waymark::evaluate::Question;
use waymark_models::gradient::Learner;
use waymark_models::kernel::Team;

use super::asked::{self, Asked};
use super::bar::Bar;
use super::machine::Machine;
use super::plan;
use super::producer::Producer;
use crate::grpo::{Campaign, Goal};
use crate::ledger::Ledger;
use crate::product;
use crate::recipe::{Grpo, Recipe};
use crate::rollout::Field;

/// How long a search may take: what is learnt is not to depend on the load of the machine.
const SEARCH_DEADLINE: Duration = Duration::from_secs(120);

/// An engine takes a new adapter between two steps, but not new weights.
const NO_ADAPTER: &str = "grpo learns an adapter, which the engine takes anew each step: give the recipe one, such as \
    --set 'adapter={rank=16,alpha=32.0,seed=42,targets=[\"q_proj\",\"k_proj\",\"v_proj\",\"o_proj\"]}'";

/// Learns from rewards of its own trajectories, by GRPO.
///
/// Each step, the policy answers questions several times in the engine it is served by; what was better than the others of
/// its group becomes more probable. RUN gets metrics, all trajectories, checkpoints, and in RUN/policy the policy with the
/// highest EM on the validation questions. A run that was killed goes on when the same command is given again.
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

    /// Questions with answers, as JSON lines; may be given several times.
    #[arg(long, required = true, value_name = "FILE")]
    questions: Vec<PathBuf>,

    /// The index that the questions are asked over: one for each --questions, in the same order.
    #[arg(long, required = true, value_name = "DIR")]
    index: Vec<PathBuf>,

    /// The run's folder.
    #[arg(long, value_name = "RUN")]
    out: PathBuf,

    /// Embedding model: must be the one the indexes were built with.
    #[arg(long, env = "WAYMARK_EMBEDDER", default_value = "all-minilm-l6-v2")]
    embedder: String,

    /// Memory for the KV cache of the rollouts, such as `4GiB`.
    #[arg(long, visible_alias = "kv-memory", env = "WAYMARK_KV_BYTES", value_name = "SIZE", default_value = "4GiB")]
    kv_bytes: Size,

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
        let goals = self.goals(settings)?;
        ensure!(recipe.adapter.is_some(), "{NO_ADAPTER}");
        let paired = self.questions.len() == self.index.len();
        ensure!(paired, "{} --questions for {} --index: give one index each", self.questions.len(), self.index.len());
        let team = self.machine.team();
        let (mut learner, base) = self.machine.learner(&recipe, self.init.as_deref(), Arc::clone(&team))?;
        let reference = self.reference_values(&mut learner)?;
        let (fields, engine) = self.fields(&recipe, settings, &team)?;
        let policy = recipe.policy()?;
        let exchange = tempfile::tempdir()?;
        let campaign = Campaign {
            settings,
            seed: recipe.seed,
            goals: &goals,
            fields: &fields,
            policy: &policy,
            engine: &engine.engine,
            reference: &reference,
            exchange: exchange.path().join("adapter"),
        };
        if self.asked.dry_run {
            return plan::grpo(&recipe, &campaign, &mut learner, self.kv_bytes.0).await;
        }
        self.go(&recipe, &base, &campaign, &mut learner).await
    }

    async fn go(
        &self,
        recipe: &Recipe,
        base: &Path,
        campaign: &Campaign<'_>,
        learner: &mut Learner,
    ) -> anyhow::Result<()> {
        let data = self.questions.iter().map(|file| product::fingerprint(file)).collect::<Result<Vec<_>, _>>()?;
        let (before, init) = self.init.as_deref().map(asked::before).transpose()?.unwrap_or_default();
        let (_, reference) = self.reference.as_deref().map(asked::before).transpose()?.unwrap_or_default();
        let stage = self.stage.map_or_else(|| "all".to_owned(), |stage| stage.to_string());
        let more: [(&str, Value); 4] = [
            ("stage", stage.into()),
            ("questions", asked::hashes(&data)),
            ("init", init.into()),
            ("reference", reference.into()),
        ];
        let facts = asked::facts("grpo", recipe, &more)?;
        let mut ledger = Ledger::open(&self.out, &facts, recipe.optimizer, campaign.settings.keep_last)?;
        const SHOWN: &[&str] = &["reward", "em", "f1", "format_valid", "searches", "kl", "step_seconds"];
        let bar = Bar::new("grpo", ledger.state().step, campaign.steps(), SHOWN);
        let mut producer = Producer { bar, recipe, kind: "grpo", data, before, base };
        campaign.train(learner, &mut ledger, &mut producer).await?;
        producer.finish(&ledger, learner)
    }

    /// The stages to train.
    fn goals(&self, settings: &Grpo) -> anyhow::Result<Vec<Goal>> {
        let count = settings.stages.len();
        if let Some(stage) = self.stage {
            ensure!((1..=count).contains(&stage), "--stage {stage}: the recipe has {count}");
        }
        let stages = settings.stages.iter().zip(1..).filter(|(_, number)| self.stage.is_none_or(|one| one == *number));
        let goal = |(stage, number): (&crate::recipe::Stage, usize)| Goal {
            phase: format!("grpo{number}"),
            steps: stage.steps,
            reward: stage.reward.reward(),
        };
        Ok(stages.map(goal).collect())
    }

    /// What the divergence is measured from; the learner is afterwards as it was.
    fn reference_values(&self, learner: &mut Learner) -> anyhow::Result<Vec<f32>> {
        let own = learner.values().to_vec();
        let Some(dir) = &self.reference else { return Ok(own) };
        learner.load_adapter(&product::policy_dir(dir)).with_context(|| format!("--reference {}", dir.display()))?;
        let reference = learner.values().to_vec();
        learner.set_values(&own)?;
        Ok(reference)
    }

    /// The engine, and the questions with their indexes around it.
    fn fields(&self, recipe: &Recipe, settings: &Grpo, team: &Arc<Team>) -> anyhow::Result<(Vec<Field>, Runtime)> {
        let model = ModelConfig {
            weights: Some(recipe.base.clone()),
            cache: self.machine.cache.clone(),
            threads: team.threads(),
            kv_bytes: self.kv_bytes.0,
            max_batch: settings.concurrent,
            step_tokens: 512.max(settings.concurrent),
            max_waiting: settings.concurrent,
            context: None,
        };
        let (runtime, _) = assembly::runtime(&model, Arc::clone(team), None)?;
        let embedder: Arc<Embedding> = Arc::new(assembly::embedder(
            &self.embedder,
            self.machine.cache.clone(),
            Arc::new(Team::new(team.threads())),
        )?);
        let mut fields = Vec::new();
        for (file, index) in self.questions.iter().zip(&self.index) {
            fields.push(self.field(file, index, settings, &runtime, &embedder)?);
        }
        Ok((fields, runtime))
    }

    fn field(
        &self,
        file: &Path,
        index: &Path,
        settings: &Grpo,
        runtime: &Runtime,
        embedder: &Arc<Embedding>,
    ) -> anyhow::Result<Field> {
        let mut questions = Question::read(file)?;
        let validation = questions.split_off(questions.len().saturating_sub(settings.validation));
        let retrieval = RetrievalConfig {
            index: Some(index.to_owned()),
            writable: false,
            embedder: self.embedder.clone(),
            threads: runtime_threads(self.machine.threads),
            deadline: SEARCH_DEADLINE,
            fact_filter: None,
        };
        let live = assembly::live(index, Arc::clone(embedder), &retrieval)?;
        let mut runtime = runtime.clone();
        runtime.searcher = Some(assembly::searcher(&live, &retrieval)?);
        let name = index.file_name().map_or_else(|| "index".into(), |name| name.to_string_lossy());
        let name = name.trim_end_matches(".index").to_owned();
        Ok(Field { name, runtime, questions, validation })
    }
}

fn runtime_threads(asked: usize) -> usize {
    if asked == 0 { waymark::config::cores() } else { asked }
}
