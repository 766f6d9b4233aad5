//! The parts that need a card.

use std::sync::Arc;

use anyhow::Context;
use waymark_models::cuda::kernel::layout::HEAD_DIMS;
use waymark_models::cuda::plan::Limits;
use waymark_models::decoder::DecoderConfig;
use waymark_models::kernel::Team;
use waymark_models::weights::{Weights, write_random};

use super::super::agentic::Source;
use super::super::ledger::{Ledger, awaited, guarded};
use super::super::profile::{Profile, steps};
use super::super::report::{Agreement, Report};
use super::super::shape::{Best, Shape};
use super::super::{Args, Part, card, folder};
use crate::cli::assembly;

/// What is compared where no model is named.
const SMALL: &str = "a tiny decoder with random weights";

/// The card at hand, and what computes beside it.
struct Place {
    ordinal: usize,
    /// What floors are made of, once it is known.
    best: Option<Best>,
    team: Arc<Team>,
}

impl Args {
    /// Everything, on card `ordinal`. Only that there is no such card keeps all of it from being tried.
    pub(super) async fn card(
        &self,
        ordinal: usize,
        source: Option<&Source>,
        ledger: &mut Ledger,
    ) -> anyhow::Result<()> {
        match guarded(|| Ok(card::about(ordinal)?)) {
            Ok(about) => ledger.report.device = about,
            Err(error) => {
                ledger.keep("card", Err(error));
                return Ok(());
            }
        }
        let mut place = Place { ordinal, best: None, team: Arc::new(Team::new(self.threads())) };
        if self.wants(Part::Check) {
            self.check(&place, ledger);
        }
        place.best = self.ceilings(|| Ok(card::ceilings(ordinal)?), ledger);
        let loads = [Part::Decode, Part::Prefill, Part::Agentic].into_iter().any(|part| self.wants(part));
        for shape in &self.shapes {
            for graphs in [true, false] {
                if loads && (graphs || self.wants(Part::Decode)) {
                    let measured = awaited(self.shape(&place, shape, graphs, source, ledger)).await;
                    ledger.keep(&shape.name, measured);
                }
            }
            if self.wants(Part::Profile) {
                let profiled = guarded(|| self.profile(&place, shape, &mut ledger.report));
                ledger.keep(&format!("profile of {}", shape.name), profiled);
            }
        }
        Ok(())
    }

    /// What the card computes, against references and against the processor.
    fn check(&self, place: &Place, ledger: &mut Ledger) {
        for dim in HEAD_DIMS {
            let kernels = ledger.report.kernels.get_or_insert_default();
            let checked = card::kernels(place.ordinal, dim, 1, kernels);
            ledger.keep(&format!("kernels, heads of {dim}"), checked);
        }
        let compared = self.agreement(place, &mut ledger.report);
        ledger.keep("agreement", compared);
        let compared = self.crowds(place, &mut ledger.report);
        ledger.keep("batches", compared);
        learning(place, "a tiny decoder", || tiny(true), ledger);
        if let Some(name) = &self.model {
            learning(place, name, || Ok(assembly::checkpoint(name, self.cache.clone())?.0.weights), ledger);
        }
    }

    /// Rates and loads in one shape.
    async fn shape(
        &self,
        place: &Place,
        shape: &Shape,
        graphs: bool,
        source: Option<&Source>,
        ledger: &mut Ledger,
    ) -> anyhow::Result<()> {
        let (limits, limit) = (self.limits(shape), self.patience.limit());
        let team = Arc::clone(&place.team);
        let (backend, ready) = card::backend(place.ordinal, shape, limits, graphs, limit, team)?;
        let engine = self.engine(Box::new(backend))?;
        if graphs {
            ledger.report.ready.push(ready);
        }
        self.parts(&engine, shape, place.best, graphs, source, ledger).await;
        let refused = engine.counters().graph_refusals_total.get();
        if refused > 0 {
            let note = format!("{}: {refused} sizes of decode steps could not be recorded", shape.name);
            ledger.report.notes.push(note);
        }
        engine.shutdown().await;
        Ok(())
    }

    /// Where the time of some steps in one shape goes.
    fn profile(&self, place: &Place, shape: &Shape, report: &mut Report) -> anyhow::Result<()> {
        // The same limits, since decoding attention is split by them; and the context that decode rates are of.
        let (limits, context) = (self.limits(shape), self.prompt + self.tokens / 2);
        let best = place.best.context("the card's ceilings are not known")?;
        let steps = steps(&self.sequences, context, (self.prompts, self.prompt_tokens), limits);
        let mut profiler = card::profiler(place.ordinal, shape, limits, &steps, self.patience.limit())?;
        for step in steps {
            let found = profiler.profile(step, self.rounds)?;
            report.profiles.push(Profile::new(shape, step, &found, best));
        }
        Ok(())
    }

    /// The most that steps in a shape may be.
    fn limits(&self, shape: &Shape) -> Limits {
        Limits { rows: self.rows(), tokens: self.step_tokens(), context: self.longest().min(shape.config.context) }
    }

    /// The card against the processor over the named model, or over a small decoder with random weights.
    fn agreement(&self, place: &Place, report: &mut Report) -> anyhow::Result<()> {
        let (over, weights) = match &self.model {
            Some(name) => {
                let (checkpoint, _) = assembly::checkpoint(name, self.cache.clone())?;
                (checkpoint.name, checkpoint.weights)
            }
            None => (SMALL.to_owned(), tiny(false)?),
        };
        let mut found = Vec::new();
        let limit = self.patience.limit();
        let compared = guarded(|| card::agreement(place.ordinal, &weights, limit, &place.team, &mut found));
        report.agreement.extend(found.into_iter().map(|agreement| Agreement { over: over.clone(), ..agreement }));
        compared
    }

    /// Batches of many rows over a small decoder with random weights.
    fn crowds(&self, place: &Place, report: &mut Report) -> anyhow::Result<()> {
        let (mut found, limit) = (Vec::new(), self.patience.limit());
        let compared = guarded(|| card::crowds(place.ordinal, &tiny(false)?, limit, &place.team, &mut found));
        report.agreement.extend(found.into_iter().map(|agreement| Agreement { over: SMALL.to_owned(), ..agreement }));
        compared
    }
}

/// A step of learning on the card and on the processor.
fn learning(place: &Place, name: &str, weights: impl FnOnce() -> anyhow::Result<Weights>, ledger: &mut Ledger) {
    let learnt = guarded(|| card::learning(place.ordinal, name, &weights()?, Arc::clone(&place.team)));
    let kept = learnt.map(|learnt| ledger.report.learning.push(learnt));
    ledger.keep(&format!("learning on {name}"), kept);
}

/// A small checkpoint with random weights. Where its head is its embedding, the likeliest token is nearly always the one
/// before, and all but certain: that says little about the rest.
fn tiny(tied: bool) -> anyhow::Result<Weights> {
    let shape: Shape = "tiny".parse().map_err(anyhow::Error::msg)?;
    let config = DecoderConfig { tied_embeddings: tied, ..shape.config };
    folder::with(|dir| {
        write_random(dir, &config, 1)?;
        Ok(Weights::open(dir)?)
    })
}
