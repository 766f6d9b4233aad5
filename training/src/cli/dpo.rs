//! `train dpo`: learning from preferences.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
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
use crate::dpo::{self, Campaign, Goal};
use crate::ledger::Ledger;
use crate::recipe::dpo::Reference;
use crate::recipe::{Dpo, Recipe};
use crate::run::Metrics;

/// Learns from preferences between its own trajectories, by DPO.
///
/// Each round, the policy answers questions several times in the engine it is served by; the recipe's reward and rule say
/// which trajectories are preferred to which, and a few epochs over these pairs make the preferred ones more probable than
/// the others. An adapter is learnt, or every weight where the recipe has none. RUN gets metrics, all trajectories with what
/// each was preferred to, checkpoints, and in RUN/policy that of the best round of the last stage: the one with the highest
/// EM on the validation questions, or the last round where there are none. A run that was killed goes on when the same
/// command is given again. Where the recipe has a ranker (dpo.ranker), its heads are in RUN/ranker.safetensors at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train dpo --recipe training/recipes/tearag.toml --init runs/tearag-sft --questions nq.jsonl --index wiki.index \\
            --questions hotpotqa.jsonl --index wiki.index --out runs/tearag --dry-run
  train dpo --recipe training/recipes/evo_rag.toml --questions hotpotqa.jsonl --index hotpotqa.index --out runs/evo_rag
  train show runs/evo_rag/samples.jsonl --step 1      what was preferred to what")]
pub(crate) struct Args {
    #[command(flatten)]
    asked: Asked,

    /// The policy or run to begin with; without it the base model as it is.
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,

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
        let settings = recipe.dpo(&self.asked.recipe)?;
        check_ranker(settings, self.machine.card())?;
        let device = self.rolling.device(&recipe)?;
        let sheets = self.aside.divide(self.asking.sheets()?, "dpo.validation", settings.validation)?;
        let team = self.machine.host.team();
        let policy = recipe.policy()?;
        let opened = self.machine.open(&recipe)?;
        let guest = self.rolling.guest(&recipe, settings.concurrent, device, &self.machine);
        let work = Work { section: "dpo", pack_tokens: settings.pack_tokens, longest: card::longest(&policy), guest };
        let planned = self.machine.plan(&opened, &recipe, &work, self.asked.dry_run)?;
        if let Some(planned) = planned.as_ref().filter(|planned| self.asked.dry_run && planned.is_unasked()) {
            return plan::unasked(&recipe, opened.checkpoint.weights.config(), planned);
        }
        let planned = planned.as_ref();
        let (mut learner, base) = self.machine.learner(opened, &recipe, Arc::clone(&team), planned)?;
        let take = |dir: &PathBuf| asked::take("--init", dir, &recipe, &base, &mut learner);
        let origin = self.init.as_ref().map(take).transpose()?.unwrap_or_default();
        let encoded = settings.ranking().is_some() && recipe.adapter.is_none();
        let measured = settings.reference == Reference::Initial || encoded;
        let initial = if measured { learner.values().to_vec() } else { Vec::new() };
        let exchange = tempfile::tempdir()?;
        let runtime =
            self.rolling.engine(&recipe, settings.concurrent, &team, device, (&self.machine.host, planned))?;
        let trained = async {
            let embedder = self.asking.embedder(&team, &self.machine.host)?;
            let stages = settings.stages.iter().zip(1..);
            let goals: Vec<Goal> =
                stages.map(|(stage, number)| Goal::of(stage, number, settings, Arc::clone(&embedder))).collect();
            let supported = goals.iter().any(|goal| goal.reward.needs_support());
            let (fields, over) = self.asking.fields(sheets, &runtime, &embedder, team.threads(), supported)?;
            if goals.iter().any(|goal| goal.reward.counts_hops()) {
                field::tell_hops(&fields);
            }
            let campaign = Campaign {
                settings,
                seed: recipe.seed,
                goals: &goals,
                fields: &fields,
                policy: &policy,
                engine: &runtime.engine,
                initial: &initial,
                exchange: exchange.path().join("adapter"),
            };
            self.run_campaign(&campaign, &recipe, (&base, planned), origin, over, &mut learner).await
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
        (before, init): (Option<Table>, String),
        over: Facts,
        learner: &mut Learner,
    ) -> anyhow::Result<()> {
        if self.asked.dry_run {
            return plan::dpo(recipe, campaign, learner, (self.rolling.kv_bytes(), planned)).await;
        }
        let mut facts: Vec<(&str, Value)> = vec![("weights", base.id.clone().into())];
        facts.extend(over);
        facts.extend(self.aside.facts()?);
        facts.extend(asked::device(learner));
        facts.extend(asked::rolled(campaign.engine));
        facts.push(("init", init.clone().into()));
        let facts = asked::facts("dpo", recipe, &facts)?;
        let mut ledger = Ledger::open(&self.out, &facts, recipe.optimizer, campaign.settings.keep_last)?;
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
        // As long as the round that it stands in; the next one says how long it is.
        let rows = Metrics::read(&ledger.folder().metrics())?;
        let end = rows.iter().rev().find_map(|row| row.values.get(dpo::ROUND_END)).map_or(1, |&end| end as u64);
        let bar = Bar::new("dpo", ledger.state().step, end, SHOWN);
        let data = asked::fingerprints(&self.asking.questions)?;
        let mut producer = Producer { bar, recipe, kind: "dpo", data, before, base: base.product() };
        campaign.train(learner, &mut ledger, &mut producer).await?;
        // Where all weights are learnt, those that the run began with were read.
        let begun = recipe.adapter.is_none() && !init.is_empty();
        dpo::write_ranker(&ledger, learner, if begun { ("init", &init) } else { ("base_id", &base.id) })?;
        producer.finish(&ledger, learner)
    }
}

/// Refuses a ranker where a card learns, before anything is loaded.
fn check_ranker(settings: &Dpo, card: Option<Device>) -> anyhow::Result<()> {
    let Some(card) = card.filter(|_| settings.ranking().is_some()) else { return Ok(()) };
    bail!(
        "--device {card}: the recipe has a ranker (dpo.ranker), which reads states that a card does not give: take --device \
         cpu, or --set dpo.ranker.heads=0"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;

    #[test]
    fn a_card_has_no_ranker_and_says_so() {
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
