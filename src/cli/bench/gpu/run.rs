//! The parts of the bench, one after the other.

#[cfg(feature = "cuda")]
mod card;

use std::sync::Arc;

use anyhow::Context;
use waymark_models::BLOCK;
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Tokenizer;

use super::agentic::{Script, Source, Way};
use super::ledger::{Ledger, awaited, guarded};
use super::rates::{self, Setting};
use super::shape::{Best, Shape};
use super::{Args, Part};
use crate::agent::{Search, SearchLimits, Searcher};
use crate::cli::assembly;
use crate::cli::eval::{Questions, Way as Mode};
use crate::config::{Device, cores};
use crate::engine::{Backend, CpuBackend, Engine, EngineConfig, KvBudget, MockBackend};

impl Args {
    /// Does what was asked for, and fills the report. Loops search `source`; without it there are none.
    pub(super) async fn measure(&self, source: Option<&Source>, ledger: &mut Ledger) -> anyhow::Result<()> {
        match self.device {
            _ if self.mock => {
                ledger.report.device = "mock".to_owned();
                let mut shape = self.shapes.first().context("--shapes: give at least one")?.clone();
                // Works beside the engine and draws tokens, as a card does, out of few: what is left is the engine's own time.
                shape.config.vocab = 256;
                let backend = MockBackend::random(1, shape.config.vocab).with_blocks(self.blocks()).with_overlap();
                self.loads(Box::new(backend), &shape, source, ledger).await?;
            }
            Device::Cpu => {
                ledger.report.device = "cpu".to_owned();
                let (backend, shape) = self.processor()?;
                self.loads(backend, &shape, source, ledger).await?;
            }
            Device::Auto => self.card(0, source, ledger).await?,
            Device::Cuda(ordinal) => self.card(ordinal, source, ledger).await?,
        }
        ledger.end()
    }

    /// The best a card can do, by `measure`, where it is asked for or floors are made of it. Whatever goes wrong there leaves
    /// rates without floors, and everything else to be measured.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a card has ceilings"))]
    fn ceilings(&self, measure: impl FnOnce() -> anyhow::Result<Best>, ledger: &mut Ledger) -> Option<Best> {
        let floors = [Part::Ceilings, Part::Decode, Part::Prefill, Part::Profile];
        if !floors.into_iter().any(|part| self.wants(part)) {
            return None;
        }
        let (best, outcome) = match guarded(measure) {
            Ok(best) => (Some(best), Ok(())),
            Err(error) => (None, Err(error)),
        };
        ledger.report.best = best.filter(|_| self.wants(Part::Ceilings));
        ledger.keep("ceilings", outcome);
        best
    }

    /// Everything that runs on any backend.
    async fn loads(
        &self,
        backend: Box<dyn Backend>,
        shape: &Shape,
        source: Option<&Source>,
        ledger: &mut Ledger,
    ) -> anyhow::Result<()> {
        let note = "no card: rates and loads alone, kernels, ceilings and profiles are a card's";
        ledger.report.notes.push(note.to_owned());
        let engine = self.engine(backend)?;
        self.parts(&engine, shape, None, true, source, ledger).await;
        engine.shutdown().await;
        Ok(())
    }

    /// Decode and prefill rates and the agentic load, each for itself: what fails keeps nothing else from being measured.
    async fn parts(
        &self,
        engine: &Engine,
        shape: &Shape,
        best: Option<Best>,
        graphs: bool,
        source: Option<&Source>,
        ledger: &mut Ledger,
    ) {
        let (name, launched) = (&shape.name, if graphs { "" } else { ", without graphs" });
        let setting = Setting { prompt: self.prompt, tokens: self.tokens, rounds: self.rounds, graphs };
        let counts: &[usize] = if self.wants(Part::Decode) { &self.sequences } else { &[] };
        for &count in counts {
            let rate = awaited(rates::decode(engine, shape, count, setting, best)).await;
            let kept = rate.map(|rate| ledger.report.decode.push(rate));
            ledger.keep(&format!("decode, {name}, {count} sequences{launched}"), kept);
        }
        if self.wants(Part::Prefill) && graphs {
            let setting = Setting { prompt: self.prompt_tokens, ..setting };
            let rate = awaited(rates::prefill(engine, shape, self.prompts, setting, best)).await;
            let kept = rate.map(|rate| ledger.report.prefill.push(rate));
            ledger.keep(&format!("prefill, {name}"), kept);
        }
        if let (Some(source), true) = (source, graphs) {
            self.agentic(engine, shape, source, ledger).await;
        }
    }

    /// The agentic load in all its ways.
    async fn agentic(&self, engine: &Engine, shape: &Shape, source: &Source, ledger: &mut Ledger) {
        let name = &shape.name;
        if let Source::Wait(time) = source {
            let note = format!("agentic load on {name}: no index was given, every search is a wait of {time:?}");
            ledger.report.notes.push(note);
        }
        let script = Script {
            loops: self.loops,
            turns: self.turns,
            prompt: self.prompt,
            written: self.written,
            observed: self.observed,
        };
        // Once before, so that no way pays for what the first steps of a size cost.
        let first = awaited(script.run(engine, shape, source, Way::Parked, 0)).await;
        ledger.keep(&format!("agentic load, {name}, before it counts"), first.map(drop));
        for (round, way) in (1..).zip(Way::ALL) {
            let load = awaited(script.run(engine, shape, source, way, round)).await;
            let kept = load.map(|load| ledger.report.agentic.push(load));
            ledger.keep(&format!("agentic load, {name}, {}", way.name()), kept);
        }
    }

    /// What the loops search, where there are to be any: opened before anything is measured, once for all shapes.
    pub(super) fn source(&self) -> anyhow::Result<Option<Source>> {
        if !self.wants(Part::Agentic) {
            return Ok(None);
        }
        let (Some(index), Some(questions)) = (&self.index, &self.questions) else {
            return Ok(Some(Source::Wait(self.search_time())));
        };
        let questions = Arc::new(Questions::texts(questions)?);
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
        Ok(Some(Source::Index(searcher, mode, questions)))
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
    async fn card(&self, _: usize, _: Option<&Source>, _: &mut Ledger) -> anyhow::Result<()> {
        anyhow::bail!(
            "this program was built without CUDA: build it with --features cuda, or try --device cpu or --mock"
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::super::report::Report;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[tokio::test]
    async fn ceilings_that_cannot_be_measured_are_told_and_the_next_part_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpu.json");
        let args = |parts: &str| {
            let line = "gpu --shapes tiny --sequences 1 --prompt 20 --tokens 8 --prompts 1 --prompt-tokens 8 --rounds 1 --loops 1 \
                        --parts";
            Line::parse_from(line.split_whitespace().chain([parts])).args
        };
        let saved = || serde_json::from_str::<serde_json::Value>(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mut ledger = Ledger::new(Report::default(), Some(path.clone())).unwrap();
        assert_eq!(args("check,agentic").ceilings(|| panic!("nobody asked"), &mut ledger), None);
        assert_eq!(args("profile").ceilings(|| panic!("an illegal address"), &mut ledger), None);
        assert_eq!(saved()["notes"][0], "FAILED: ceilings: it panicked: an illegal address");
        let args = args("ceilings,decode");
        let best = args.ceilings(|| Err(anyhow::anyhow!("a kernel does not compile")), &mut ledger);
        assert_eq!(saved()["notes"][1], "FAILED: ceilings: a kernel does not compile");
        let engine = args.engine(Box::new(MockBackend::random(1, 4096).with_blocks(args.blocks()))).unwrap();
        args.parts(&engine, &args.shapes[0], best, true, None, &mut ledger).await;
        engine.shutdown().await;
        assert!(saved()["decode"][0]["tokens_per_second"].as_f64().unwrap() > 0.0, "{}", saved());
        assert_eq!(saved()["notes"].as_array().unwrap().len(), 2, "{}", saved());
        let known = Best { bandwidth: 4e12, operations: 8e14 };
        assert_eq!(args.ceilings(|| Ok(known), &mut ledger), Some(known));
        assert_eq!(saved()["best"]["bandwidth"], 4e12);
    }

    #[tokio::test]
    async fn what_fails_keeps_nothing_else_from_being_tried_and_what_was_measured_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpu.json");
        let line = "gpu --mock --shapes tiny --sequences 1,4 --prompt 20 --tokens 8 --prompts 2 --prompt-tokens 40 --rounds 1 \
                    --loops 2 --turns 2 --observed 16 --written 8 --search-ms 1";
        let args = Line::parse_from(line.split_whitespace()).args;
        let backend = MockBackend::random(1, 4096).with_blocks(args.blocks());
        // One sequence takes eight passes.
        backend.faults().broken_from(10);
        let mut ledger = Ledger::new(Report::default(), Some(path.clone())).unwrap();
        let source = args.source().unwrap();
        args.loads(Box::new(backend), &args.shapes[0], source.as_ref(), &mut ledger).await.unwrap();
        assert!(ledger.end().unwrap_err().to_string().starts_with("decode, tiny, 4 sequences: "));
        let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(saved["decode"].as_array().unwrap().len(), 1, "{saved}");
        let notes: Vec<&str> = saved["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str()).collect();
        let failed: Vec<&str> = notes.iter().filter_map(|note| note.strip_prefix("FAILED: ")).collect();
        let parts = ["decode", "prefill", "agentic", "agentic", "agentic", "agentic"];
        assert_eq!(failed.len(), parts.len(), "{failed:?}");
        assert!(failed.iter().zip(parts).all(|(failed, part)| failed.starts_with(part)), "{failed:?}");
    }
}
