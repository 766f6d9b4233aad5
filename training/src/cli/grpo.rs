//! `train grpo`: learning from rewards.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{bail, ensure};
use toml::{Table, Value};
use waymark::config::Device;
use waymark_models::gradient::Learner;

use super::asked::{self, Asked};
use super::bar::Bar;
use super::card::{self, Planned, Work};
use super::field::{self, Asking, Facts};
use super::machine::{Base, Machine};
use super::plan;
use super::producer::Producer;
use super::rolling::Rolling;
use super::sheet::Aside;
use crate::grpo::{Campaign, Goal};
use crate::ledger::Ledger;
use crate::recipe::{Grpo, Recipe, Reference};

/// Learns from rewards of its own trajectories, by GRPO.
///
/// Each step, the policy answers questions several times in the engine it is served by; what was better than the others of
/// its group becomes more probable. An adapter is learnt, or every weight where the recipe has none. RUN gets metrics, all
/// trajectories, checkpoints, and in RUN/policy that of the best step of the last stage: the one with the highest mean
/// reward on the validation questions, or where the reward prices searches, with the highest EM less `grpo.thrift` times
/// their cost. A run that was killed goes on when the same command is given again.
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

    /// The policy or run to begin with; without it the base model as it is.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,

    /// The policy or run that the divergence is measured from, and that teaches, where the recipe has a teacher; that of
    /// --init when not given.
    #[arg(long, value_name = "DIR")]
    reference: Option<PathBuf>,

    /// The stage of the recipe to train, from 1; all of them, one after the other, when not given.
    #[arg(long, value_name = "N")]
    stage: Option<usize>,

    #[command(flatten)]
    asking: Asking,

    #[command(flatten)]
    aside: Aside,

    /// The run's folder.
    #[arg(long, value_name = "RUN")]
    out: PathBuf,

    #[command(flatten)]
    rolling: Rolling,

    #[command(flatten)]
    machine: Machine,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::block_on(log, "info", self.train())
    }

    async fn train(self) -> anyhow::Result<()> {
        let recipe = self.asked.open()?;
        let settings = recipe.grpo(&self.asked.recipe)?;
        let (taken, behind) = self.stages(settings)?;
        self.check_reference(settings)?;
        check_teacher(settings, self.machine.card())?;
        let device = self.rolling.device(&recipe)?;
        let sheets = self.aside.divide(self.asking.sheets()?, "grpo.validation", settings.validation)?;
        let team = self.machine.host.team();
        let policy = recipe.policy()?;
        let opened = self.machine.open(&recipe)?;
        let guest = self.rolling.guest(&recipe, settings.concurrent, device, &self.machine);
        let work = Work { section: "grpo", pack_tokens: settings.pack_tokens, longest: card::longest(&policy), guest };
        let planned = self.machine.plan(&opened, &recipe, &work, self.asked.dry_run)?;
        if let Some(planned) = planned.as_ref().filter(|planned| self.asked.dry_run && planned.is_unasked()) {
            return plan::unasked(&recipe, opened.checkpoint.weights.config(), planned);
        }
        let planned = planned.as_ref();
        let (mut learner, base) = self.machine.learner(opened, &recipe, Arc::clone(&team), planned)?;
        let Begun { reference, origin } = self.begin(&recipe, settings, &base, &mut learner)?;
        let exchange = tempfile::tempdir()?;
        let runtime =
            self.rolling.engine(&recipe, settings.concurrent, &team, device, (&self.machine.host, planned))?;
        let trained = async {
            let embedder = self.asking.embedder(&team, &self.machine.host)?;
            let goal = |place| Goal::of(&settings.stages[place], place + 1, settings, Arc::clone(&embedder));
            let goals: Vec<Goal> = taken.map(goal).collect();
            let weighed = settings.routes.is_some() || settings.teaching().is_some();
            let supported = weighed || goals.iter().any(|goal| goal.reward.needs_support());
            let (fields, over) = self.asking.fields(sheets, &runtime, &embedder, team.threads(), supported)?;
            if goals.iter().any(|goal| goal.reward.counts_hops()) {
                field::tell_hops(&fields);
            }
            let campaign = Campaign {
                settings,
                seed: recipe.seed,
                goals: &goals,
                behind,
                whole: settings.stages.iter().map(|stage| stage.steps as u64).sum(),
                fields: &fields,
                policy: &policy,
                engine: &runtime.engine,
                reference: &reference,
                exchange: exchange.path().join("adapter"),
            };
            self.run_campaign(&campaign, &recipe, (&base, planned), (over, origin), &mut learner).await
        };
        let trained = trained.await;
        // Whatever came of it.
        runtime.engine.end(device.step_limit).await;
        trained
    }

    /// What was asked for: the plan of it, or the training.
    async fn run_campaign(
        &self,
        campaign: &Campaign<'_>,
        recipe: &Recipe,
        (base, planned): (&Base, Option<&Planned>),
        (over, origin): (Facts, Origin),
        learner: &mut Learner,
    ) -> anyhow::Result<()> {
        if self.asked.dry_run {
            return plan::grpo(recipe, campaign, learner, (self.rolling.kv_bytes(), planned)).await;
        }
        let stage = self.stage.map_or_else(|| "all".to_owned(), |stage| stage.to_string());
        let mut facts: Vec<(&str, Value)> = vec![("stage", stage.into()), ("weights", base.id.clone().into())];
        facts.extend(over);
        facts.extend(self.aside.facts()?);
        facts.extend(asked::device(learner));
        facts.extend(asked::rolled(campaign.engine));
        facts.extend([("init", Value::String(origin.init)), ("reference", Value::String(origin.compared))]);
        let facts = asked::facts("grpo", recipe, &facts)?;
        let mut ledger = Ledger::open(&self.out, &facts, recipe.optimizer, campaign.settings.keep_last)?;
        const SHOWN: &[&str] =
            &["reward", "em", "f1", "format_valid", "searches", "kl", "step_seconds", "validation_merit"];
        let bar = Bar::new("grpo", ledger.state().step, campaign.steps(), SHOWN);
        let data = asked::fingerprints(&self.asking.questions)?;
        let mut producer = Producer { bar, recipe, kind: "grpo", data, before: origin.before, base: base.product() };
        campaign.train(learner, &mut ledger, &mut producer).await?;
        producer.finish(&ledger, learner)
    }

    /// The stages to train, by their places, and the steps of those before them.
    fn stages(&self, settings: &Grpo) -> anyhow::Result<(Range<usize>, u64)> {
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
        Ok((taken, behind))
    }

    /// Refuses a reference that nothing would be measured from.
    fn check_reference(&self, settings: &Grpo) -> anyhow::Result<()> {
        let Some(dir) = &self.reference else { return Ok(()) };
        let named = format!("--reference {}", dir.display());
        let initial = settings.reference == Reference::Initial;
        ensure!(initial, "{named}: the recipe measures the divergence from the base model (grpo.reference = \"base\")");
        ensure!(
            settings.refers(),
            "{named}: the recipe does not weigh the divergence (grpo.loss.kl = 0), and nobody is taught (grpo.teacher)"
        );
        Ok(())
    }

    /// Sets the learner to what training begins with.
    fn begin(&self, recipe: &Recipe, settings: &Grpo, base: &Base, learner: &mut Learner) -> anyhow::Result<Begun> {
        let measured = settings.refers();
        // Of all weights there is no base beside them: it is what they are before --init.
        let from_base = measured && recipe.adapter.is_none() && settings.reference == Reference::Base;
        let mut reference = if from_base { learner.values().to_vec() } else { Vec::new() };
        let (before, init) = match &self.init {
            Some(dir) => asked::take("--init", dir, recipe, base, learner)?,
            None => (None, String::new()),
        };
        let mut compared = String::new();
        if let Some(dir) = &self.reference {
            let own = learner.values().to_vec();
            (_, compared) = asked::take("--reference", dir, recipe, base, learner)?;
            reference = learner.values().to_vec();
            learner.set_values(&own)?;
        } else if measured && settings.reference == Reference::Initial {
            reference = learner.values().to_vec();
        }
        Ok(Begun { reference, origin: Origin { before, init, compared } })
    }
}

/// Refuses a teacher where a card learns, before anything is loaded.
fn check_teacher(settings: &Grpo, card: Option<Device>) -> anyhow::Result<()> {
    let Some(card) = card.filter(|_| settings.teaching().is_some()) else { return Ok(()) };
    bail!(
        "--device {card}: the recipe has a teacher (grpo.teacher), which a card has no kernels for: take --device cpu, \
         or --set grpo.teacher.weight=0.0"
    )
}

/// What training begins with.
struct Begun {
    /// What the divergence is measured from, and the teacher; nothing where that is what an adapter lies beside, or it is
    /// asked about nothing.
    reference: Vec<f32>,
    origin: Origin,
}

/// Where it comes from.
struct Origin {
    /// The record of the training before.
    before: Option<Table>,
    /// The hash of the values it begins with; nothing for the base model.
    init: String,
    /// The hash of the values that the divergence is measured from, where others were named.
    compared: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;

    #[test]
    fn a_card_teaches_nobody_and_says_so() {
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
