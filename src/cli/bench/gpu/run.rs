//! The parts of the bench, one after the other.

use std::sync::Arc;

use anyhow::Context;
use waymark_models::BLOCK;
use waymark_models::decoder::Decoder;
#[cfg(feature = "cuda")]
use waymark_models::decoder::DecoderConfig;
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Tokenizer;
#[cfg(feature = "cuda")]
use waymark_models::weights::{Weights, write_random};

use super::agentic::{Script, Source, Way};
use super::rates::{self, Setting};
#[cfg(feature = "cuda")]
use super::report::Agreement;
use super::report::Report;
use super::shape::{Best, Shape};
use super::{Args, Part};
use crate::agent::{Search, SearchLimits, Searcher};
use crate::cli::assembly;
use crate::cli::eval::{Questions, Way as Mode};
use crate::config::{Device, cores};
use crate::engine::{Backend, CpuBackend, Engine, EngineConfig, KvBudget, MockBackend};

impl Args {
    /// Does what was asked for, and fills the report.
    pub(super) async fn measure(&self, report: &mut Report) -> anyhow::Result<()> {
        match self.device {
            _ if self.mock => {
                report.device = "mock".to_owned();
                let shape = self.shapes.first().context("--shapes: give at least one")?.clone();
                let backend = MockBackend::random(1, shape.config.vocab).with_blocks(self.blocks());
                self.loads(Box::new(backend), &shape, report).await
            }
            Device::Cpu => {
                report.device = "cpu".to_owned();
                let (backend, shape) = self.processor()?;
                self.loads(backend, &shape, report).await
            }
            Device::Auto => self.card(0, report).await,
            Device::Cuda(ordinal) => self.card(ordinal, report).await,
        }
    }

    /// Everything that runs on any backend.
    async fn loads(&self, backend: Box<dyn Backend>, shape: &Shape, report: &mut Report) -> anyhow::Result<()> {
        report.notes.push("no card: rates and loads alone, kernels, ceilings and profiles are a card's".to_owned());
        let engine = self.engine(backend)?;
        self.rates(&engine, shape, None, true, report).await?;
        self.agentic(&engine, shape, report).await?;
        engine.shutdown().await;
        Ok(())
    }

    /// Decode and prefill rates.
    async fn rates(
        &self,
        engine: &Engine,
        shape: &Shape,
        best: Option<Best>,
        graphs: bool,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let setting = Setting { prompt: self.prompt, tokens: self.tokens, rounds: self.rounds, graphs };
        if self.wants(Part::Decode) {
            rates::decode(engine, shape, &self.sequences, setting, best, &mut report.decode).await?;
        }
        if self.wants(Part::Prefill) && graphs {
            let setting = Setting { prompt: self.prompt_tokens, ..setting };
            report.prefill.push(rates::prefill(engine, shape, self.prompts, setting, best).await?);
        }
        Ok(())
    }

    /// The agentic load in all its ways.
    async fn agentic(&self, engine: &Engine, shape: &Shape, report: &mut Report) -> anyhow::Result<()> {
        if !self.wants(Part::Agentic) {
            return Ok(());
        }
        let source = self.source()?;
        if let Source::Wait(time) = source {
            let note =
                format!("agentic load on {}: no index was given, every search is a wait of {time:?}", shape.name);
            report.notes.push(note);
        }
        let script = Script {
            loops: self.loops,
            turns: self.turns,
            prompt: self.prompt,
            written: self.written,
            observed: self.observed,
        };
        // Once before, so that no way pays for what the first steps of a size cost.
        script.run(engine, shape, &source, Way::Parked, 0).await?;
        for (round, way) in (1..).zip(Way::ALL) {
            report.agentic.push(script.run(engine, shape, &source, way, round).await?);
        }
        Ok(())
    }

    /// What the loops search.
    fn source(&self) -> anyhow::Result<Source> {
        let (Some(index), Some(questions)) = (&self.index, &self.questions) else {
            return Ok(Source::Wait(self.search_time()));
        };
        let embedder = assembly::embedder(&self.embedder, self.cache.clone(), Arc::new(Team::new(self.threads())))?;
        let options = waymark_index::OpenOptions { concurrency: self.threads(), ..Default::default() };
        let index = waymark_index::Index::open_with(index, Arc::new(embedder), &options)?;
        let mode = *Mode::defaults(index.modes()).first().context("the index offers no way of searching")?;
        let limits = SearchLimits {
            threads: self.threads(),
            waiting: assembly::SEARCHES_WAITING,
            timeout: std::time::Duration::from_secs(10),
        };
        let searcher: Arc<dyn Search> = Arc::new(Searcher::new(index, limits)?);
        Ok(Source::Index(searcher, mode, Arc::new(Questions::texts(questions)?)))
    }

    fn engine(&self, backend: Box<dyn Backend>) -> anyhow::Result<Engine> {
        let config = EngineConfig {
            max_batch_rows: self.rows(),
            step_tokens: self.step_tokens(),
            max_waiting: self.rows() + self.loops,
            undelivered: 4096,
            ..EngineConfig::default()
        };
        // Shapes have no text; nothing stops on any.
        Ok(Engine::start(backend, config, Tokenizer::bytes().table())?)
    }

    /// The model on the processor, under the name of its file.
    fn processor(&self) -> anyhow::Result<(Box<dyn Backend>, Shape)> {
        let name = self.model.as_deref().context("--device cpu takes --model: random weights are for cards")?;
        let (checkpoint, _) = assembly::checkpoint(name, self.cache.clone())?;
        let decoder = Decoder::load(&checkpoint.weights, Arc::new(Team::new(self.threads())))?;
        let shape = Shape { name: checkpoint.name.clone(), config: decoder.config().clone() };
        let generation = checkpoint.weights.generation();
        let backend = CpuBackend::new(decoder, &checkpoint.name, generation, KvBudget::Blocks(self.blocks()))?;
        Ok((Box::new(backend), shape))
    }

    /// Sequences in a step at most.
    fn rows(&self) -> usize {
        self.sequences.iter().copied().chain([self.loops, self.prompts]).max().unwrap_or(1)
    }

    /// Tokens in a step at most.
    fn step_tokens(&self) -> usize {
        8192.max(self.rows() + BLOCK)
    }

    /// The longest sequence of any load.
    fn longest(&self) -> usize {
        let agentic = self.prompt + self.turns * (self.written + self.observed);
        agentic.max(self.prompt + self.tokens).max(self.prompt_tokens + 1)
    }

    /// Blocks that hold every load at once.
    fn blocks(&self) -> usize {
        let most = self.sequences.iter().copied().max().unwrap_or(1);
        let decode = most * (self.prompt + self.tokens).div_ceil(BLOCK);
        let prefill = self.prompts * (self.prompt_tokens + 1).div_ceil(BLOCK);
        // Resubmitted turns leave the blocks of the one before in the cache.
        let agentic = 2 * self.loops * self.longest().div_ceil(BLOCK);
        decode.max(prefill).max(agentic) + 1
    }

    fn threads(&self) -> usize {
        if self.threads == 0 { cores() } else { self.threads }
    }
}

#[cfg(not(feature = "cuda"))]
impl Args {
    #[allow(clippy::unused_async, reason = "with a card it measures")]
    async fn card(&self, _: usize, _: &mut Report) -> anyhow::Result<()> {
        anyhow::bail!(
            "this program was built without CUDA: build it with --features cuda, or try --device cpu or --mock"
        )
    }
}

/// What is compared where no model is named.
#[cfg(feature = "cuda")]
const SMALL: &str = "a tiny decoder with random weights";

#[cfg(feature = "cuda")]
impl Args {
    /// Everything, on card `ordinal`.
    async fn card(&self, ordinal: usize, report: &mut Report) -> anyhow::Result<()> {
        use super::card;
        let team = Arc::new(Team::new(self.threads()));
        let (best, device) = card::best(ordinal)?;
        report.device = device;
        report.best = self.wants(Part::Ceilings).then_some(best);
        // What fails does not keep the rest from being measured: a card may be there for minutes only.
        let mut failures = Failures::default();
        if self.wants(Part::Check) {
            for dim in waymark_models::cuda::kernel::layout::HEAD_DIMS {
                let checked = card::kernels(ordinal, dim, 1, report.kernels.get_or_insert_default());
                failures.keep(&format!("kernels, heads of {dim}"), checked);
            }
            failures.keep("report", self.save(report));
            let agreement = self.agreement(ordinal, &team, report);
            failures.keep("agreement", agreement);
            failures.keep("report", self.save(report));
            let crowds = self.crowds(ordinal, &team, report);
            failures.keep("batches", crowds);
            failures.keep("report", self.save(report));
            let learnt = self.learning(ordinal, &team, report);
            failures.keep("learning", learnt);
        }
        let loads = [Part::Decode, Part::Prefill, Part::Agentic].into_iter().any(|part| self.wants(part));
        for shape in &self.shapes {
            for graphs in [true, false] {
                if loads && (graphs || self.wants(Part::Decode)) {
                    let measured = self.shape(ordinal, shape, graphs, best, &team, report).await;
                    failures.keep(&shape.name, measured);
                    failures.keep("report", self.save(report));
                }
            }
            if self.wants(Part::Profile) {
                let profiled = self.profile(ordinal, shape, best, report);
                failures.keep(&format!("profile of {}", shape.name), profiled);
                failures.keep("report", self.save(report));
            }
        }
        failures.end(report)
    }

    /// Rates and loads in one shape.
    async fn shape(
        &self,
        ordinal: usize,
        shape: &Shape,
        graphs: bool,
        best: Best,
        team: &Arc<Team>,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let (limits, limit) = (self.limits(shape), self.patience.limit());
        let (backend, ready) = super::card::backend(ordinal, shape, limits, graphs, limit, Arc::clone(team))?;
        let engine = self.engine(Box::new(backend))?;
        if graphs {
            report.ready.push(ready);
        }
        let measured = self.loads_of(&engine, shape, graphs, best, report).await;
        let refused = engine.counters().graph_refusals_total.get();
        if refused > 0 {
            report.notes.push(format!("{}: {refused} sizes of decode steps could not be recorded", shape.name));
        }
        engine.shutdown().await;
        measured
    }

    async fn loads_of(
        &self,
        engine: &Engine,
        shape: &Shape,
        graphs: bool,
        best: Best,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        self.rates(engine, shape, Some(best), graphs, report).await?;
        if graphs { self.agentic(engine, shape, report).await } else { Ok(()) }
    }

    /// Where the time of some steps in one shape goes.
    fn profile(&self, ordinal: usize, shape: &Shape, best: Best, report: &mut Report) -> anyhow::Result<()> {
        use super::profile::{Profile, steps};
        // The same limits, since decoding attention is split by them; and the context that decode rates are of.
        let (limits, context) = (self.limits(shape), self.prompt + self.tokens / 2);
        let steps = steps(&self.sequences, context, (self.prompts, self.prompt_tokens), limits);
        let mut profiler = super::card::profiler(ordinal, shape, limits, &steps, self.patience.limit())?;
        for step in steps {
            let found = profiler.profile(step, self.rounds)?;
            report.profiles.push(Profile::new(shape, step, &found, best));
        }
        Ok(())
    }

    /// The most that steps in a shape may be.
    fn limits(&self, shape: &Shape) -> waymark_models::cuda::plan::Limits {
        waymark_models::cuda::plan::Limits {
            rows: self.rows(),
            tokens: self.step_tokens(),
            context: self.longest().min(shape.config.context),
        }
    }

    /// The card against the processor over the named model, or over a small decoder with random weights.
    fn agreement(&self, ordinal: usize, team: &Arc<Team>, report: &mut Report) -> anyhow::Result<()> {
        let (over, weights) = match &self.model {
            Some(name) => {
                let (checkpoint, _) = assembly::checkpoint(name, self.cache.clone())?;
                (checkpoint.name, checkpoint.weights)
            }
            None => (SMALL.to_owned(), Self::tiny(false)?),
        };
        let mut found = Vec::new();
        let compared = super::card::agreement(ordinal, &weights, self.patience.limit(), team, &mut found);
        report.agreement.extend(found.into_iter().map(|agreement| Agreement { over: over.clone(), ..agreement }));
        compared
    }

    /// Batches of many rows over a small decoder with random weights.
    fn crowds(&self, ordinal: usize, team: &Arc<Team>, report: &mut Report) -> anyhow::Result<()> {
        let mut found = Vec::new();
        let compared = super::card::crowds(ordinal, &Self::tiny(false)?, self.patience.limit(), team, &mut found);
        report.agreement.extend(found.into_iter().map(|agreement| Agreement { over: SMALL.to_owned(), ..agreement }));
        compared
    }

    /// A step of learning over a small decoder with random weights, and over the named model.
    fn learning(&self, ordinal: usize, team: &Arc<Team>, report: &mut Report) -> anyhow::Result<()> {
        let mut over = vec![("a tiny decoder".to_owned(), Self::tiny(true)?)];
        if let Some(name) = &self.model {
            over.push((name.clone(), assembly::checkpoint(name, self.cache.clone())?.0.weights));
        }
        for (name, weights) in over {
            report.learning.push(super::card::learning(ordinal, &name, &weights, Arc::clone(team))?);
        }
        Ok(())
    }

    /// A small checkpoint with random weights. Where its head is its embedding, the likeliest token is nearly always the one
    /// before, and all but certain: that says little about the rest.
    fn tiny(tied: bool) -> anyhow::Result<Weights> {
        let shape: Shape = "tiny".parse().map_err(anyhow::Error::msg)?;
        let config = DecoderConfig { tied_embeddings: tied, ..shape.config };
        super::folder::with(|dir| {
            write_random(dir, &config, 1)?;
            Ok(Weights::open(dir)?)
        })
    }
}

/// What failed, part by part.
#[cfg(feature = "cuda")]
#[derive(Default)]
struct Failures(Vec<String>);

#[cfg(feature = "cuda")]
impl Failures {
    /// What a part came to, if it came to anything.
    fn keep<T>(&mut self, part: &str, result: anyhow::Result<T>) -> Option<T> {
        result.map_err(|error| self.0.push(format!("{part}: {error:#}"))).ok()
    }

    fn end(self, report: &mut Report) -> anyhow::Result<()> {
        let Some(first) = self.0.first().cloned() else { return Ok(()) };
        report.notes.extend(self.0.into_iter().map(|failure| format!("FAILED: {failure}")));
        anyhow::bail!(first)
    }
}
