//! Runs the parts of the benchmark one after the other.

#[cfg(feature = "cuda")]
mod cuda;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use waymark_agent::{Search, SearchLimits, Searcher};
use waymark_engine::{Backend, CpuBackend, Engine, EngineConfig, KvBudget, MockBackend};
use waymark_models::BLOCK;
use waymark_models::cuda::plan::WeightFormat;
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Tokenizer;
use waymark_runtime::assembly;
use waymark_runtime::config::{Device, or_cores};
use waymark_runtime::evaluate::{Questions, SearchMethod as Mode};

use super::agentic::{AgenticScript, SearchSource, TurnMode};
use super::ledger::{ReportLedger, catch_panic, catch_panic_async};
use super::rates::{self, RateSampling, RateSetting};
use super::shape::{Ceilings, ModelShape};
use super::{Args, BenchPart};

impl Args {
    /// Runs the requested parts and fills the report. Agentic loops search `source`; without a source they are skipped.
    pub(super) async fn measure(&self, source: Option<&SearchSource>, ledger: &mut ReportLedger) -> anyhow::Result<()> {
        match self.device {
            _ if self.mock => {
                ledger.report.device = "mock".to_owned();
                let mut shape = self.shapes.first().context("--shapes: give at least one")?.clone();
                // A mock that is asynchronous like a GPU, and samples from few tokens, leaves only the engine's own
                // time to measure.
                shape.config.vocab = 256;
                let backend = MockBackend::random(1, shape.config.vocab)
                    .with_blocks(self.blocks())
                    .with_overlap()
                    .with_team(Arc::new(Team::new(self.threads())))
                    .with_time(Duration::from_millis(self.mock_step_ms), Duration::ZERO);
                self.run_on_backend(Box::new(backend), &shape, source, ledger).await?;
            }
            Device::Cpu => {
                ledger.report.device = "cpu".to_owned();
                let (backend, shape) = self.cpu_model()?;
                self.run_on_backend(backend, &shape, source, ledger).await?;
            }
            Device::Auto => self.cuda(0, source, ledger).await?,
            Device::Cuda(ordinal) => self.cuda(ordinal, source, ledger).await?,
        }
        ledger.end()
    }

    /// Measures the peak rates if they are requested or needed as floors. After a failure the rates are reported
    /// without floors, and all other parts still run.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU has peak rates"))]
    fn ceilings(
        &self,
        measure: impl FnOnce() -> anyhow::Result<Ceilings>,
        ledger: &mut ReportLedger,
    ) -> Option<Ceilings> {
        let floors = [BenchPart::Ceilings, BenchPart::Gemm, BenchPart::Decode, BenchPart::Prefill, BenchPart::Profile];
        if !floors.into_iter().any(|part| self.wants(part)) {
            return None;
        }
        let (best, outcome) = match catch_panic(measure) {
            Ok(best) => (Some(best), Ok(())),
            Err(error) => (None, Err(error)),
        };
        ledger.report.best = best.filter(|_| self.wants(BenchPart::Ceilings));
        ledger.record("ceilings", outcome);
        best
    }

    /// Runs the parts that work on any backend.
    async fn run_on_backend(
        &self,
        backend: Box<dyn Backend>,
        shape: &ModelShape,
        source: Option<&SearchSource>,
        ledger: &mut ReportLedger,
    ) -> anyhow::Result<()> {
        let note = "no GPU: only rates and loads are measured; kernels, ceilings and profiles need a GPU";
        ledger.report.notes.push(note.to_owned());
        let engine = self.engine(backend)?;
        self.measure_loads(&engine, shape, None, true, source, ledger).await;
        engine.shutdown().await;
        Ok(())
    }

    /// Measures decode and prefill rates and the agentic load, each separately: a failure of one does not stop the
    /// others.
    async fn measure_loads(
        &self,
        engine: &Engine,
        shape: &ModelShape,
        best: Option<Ceilings>,
        graphs: bool,
        source: Option<&SearchSource>,
        ledger: &mut ReportLedger,
    ) {
        let name = &shape.name;
        let launched = if graphs { "" } else { ", without graphs" };
        let sampling = RateSampling::Greedy;
        let setting = RateSetting { prompt: self.prompt, tokens: self.tokens, sampling, rounds: self.rounds, graphs };
        let samplings: &[RateSampling] = if self.wants(BenchPart::Decode) { &self.sampling } else { &[] };
        for &sampling in samplings {
            let setting = RateSetting { sampling, ..setting };
            for &count in &self.sequences {
                let rate = catch_panic_async(rates::decode(engine, shape, count, setting, best)).await;
                let kept = rate.map(|rate| ledger.report.decode.push(rate));
                let sampling = sampling.name();
                ledger.record(&format!("decode, {name}, {count} sequences, {sampling}{launched}"), kept);
            }
        }
        if self.wants(BenchPart::Prefill) && graphs {
            let setting = RateSetting { prompt: self.prompt_tokens, ..setting };
            let rate = catch_panic_async(rates::prefill(engine, shape, self.prompts, setting, best)).await;
            let kept = rate.map(|rate| ledger.report.prefill.push(rate));
            ledger.record(&format!("prefill, {name}"), kept);
        }
        if let (Some(source), true) = (source, graphs) {
            self.agentic(engine, shape, source, ledger).await;
        }
    }

    /// Runs the agentic load in all modes.
    async fn agentic(&self, engine: &Engine, shape: &ModelShape, source: &SearchSource, ledger: &mut ReportLedger) {
        let name = &shape.name;
        if let SearchSource::Wait(time) = source {
            let note = format!("agentic load on {name}: no --index, so every search is a wait of {time:?}");
            ledger.report.notes.push(note);
        }
        let script = AgenticScript {
            loops: self.loops,
            turns: self.turns,
            prompt: self.prompt,
            written: self.written,
            observed: self.observed,
        };
        // Warm up, so no mode pays for the first step of each batch size.
        let first = catch_panic_async(script.run(engine, shape, source, TurnMode::Parked, 0)).await;
        ledger.record(&format!("agentic load, {name}, warm-up"), first.map(drop));
        for (round, way) in (1..).zip(TurnMode::ALL) {
            let load = catch_panic_async(script.run(engine, shape, source, way, round)).await;
            let kept = load.map(|load| ledger.report.agentic.push(load));
            ledger.record(&format!("agentic load, {name}, {}", way.name()), kept);
        }
    }

    /// Opens the index that agentic loops search, before anything is measured and once for all shapes. Without
    /// `--index` and `--questions`, each search is a wait. `None` when the agentic load is not requested.
    pub(super) fn source(&self) -> anyhow::Result<Option<SearchSource>> {
        if !self.wants(BenchPart::Agentic) {
            return Ok(None);
        }
        let (Some(index), Some(questions)) = (&self.index, &self.questions) else {
            return Ok(Some(SearchSource::Wait(self.search_time())));
        };
        let questions = Arc::new(Questions::texts(questions)?);
        let embedder = assembly::embedder(
            &self.embedder.resolve_for(index)?,
            self.cache.clone(),
            Arc::new(Team::new(self.threads())),
        )?;
        let options = waymark_index::OpenOptions { concurrency: self.threads(), ..Default::default() };
        let index = waymark_index::Index::open_with(index, Arc::new(embedder), &options)?;
        let mode = Mode::defaults(index.modes()).into_iter().next().context("the index supports no search mode")?;
        let limits = SearchLimits {
            threads: self.threads(),
            waiting: assembly::SEARCHES_WAITING,
            timeout: Duration::from_secs(10),
        };
        let searcher: Arc<dyn Search> = Arc::new(Searcher::new(index, limits)?);
        Ok(Some(SearchSource::Index(searcher, Arc::new(mode), questions)))
    }

    fn engine(&self, backend: Box<dyn Backend>) -> anyhow::Result<Engine> {
        let config = EngineConfig {
            max_batch_rows: self.rows(),
            step_tokens: self.step_tokens(),
            max_waiting: self.rows() + self.loops,
            max_undelivered: 4096,
            ..EngineConfig::default()
        };
        // Random weights have no text, so there are no stop strings.
        Ok(Engine::start(backend, config, Tokenizer::bytes().table())?)
    }

    /// Loads the model on the CPU.
    fn cpu_model(&self) -> anyhow::Result<(Box<dyn Backend>, ModelShape)> {
        let name =
            self.model.as_deref().context("--device cpu needs --model: random weights are used on a GPU only")?;
        let (checkpoint, _) = assembly::checkpoint(name, self.cache.clone())?;
        let decoder = Decoder::load(&checkpoint.weights, Arc::new(Team::new(self.threads())))?;
        let config = decoder.config().clone();
        let shape = ModelShape { name: checkpoint.name.clone(), config, weights: WeightFormat::Bf16 };
        let generation = checkpoint.weights.generation();
        let backend = CpuBackend::new(decoder, &checkpoint.name, generation, KvBudget::Blocks(self.blocks()))?;
        Ok((Box::new(backend), shape))
    }

    /// Maximum number of sequences in a step.
    fn rows(&self) -> usize {
        self.sequences.iter().copied().chain([self.loops, self.prompts]).max().unwrap_or(1)
    }

    /// Maximum number of tokens in a step.
    fn step_tokens(&self) -> usize {
        8192.max(self.rows() + BLOCK)
    }

    /// Maximum length of a sequence in any load.
    fn longest(&self) -> usize {
        let agentic = self.prompt + self.turns * (self.written + self.observed);
        agentic.max(self.prompt + self.tokens).max(self.prompt_tokens + 1)
    }

    /// Number of KV blocks that suffices for each load.
    fn blocks(&self) -> usize {
        let most = self.sequences.iter().copied().max().unwrap_or(1);
        let decode = most * (self.prompt + self.tokens).div_ceil(BLOCK);
        let prefill = self.prompts * (self.prompt_tokens + 1).div_ceil(BLOCK);
        // A resubmitted turn leaves the blocks of the previous turn in the cache.
        let agentic = 2 * self.loops * self.longest().div_ceil(BLOCK);
        decode.max(prefill).max(agentic) + 1
    }

    fn threads(&self) -> usize {
        or_cores(self.threads)
    }
}

#[cfg(not(feature = "cuda"))]
impl Args {
    #[allow(clippy::unused_async, reason = "the version for a GPU awaits")]
    async fn cuda(&self, _: usize, _: Option<&SearchSource>, _: &mut ReportLedger) -> anyhow::Result<()> {
        anyhow::bail!("built without CUDA: rebuild with --features cuda, or use --device cpu or --mock")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::super::report::GpuReport;
    use super::*;

    #[derive(Parser)]
    struct TestCli {
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
            TestCli::parse_from(line.split_whitespace().chain([parts])).args
        };
        let saved = || serde_json::from_str::<serde_json::Value>(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mut ledger = ReportLedger::new(GpuReport::default(), Some(path.clone())).unwrap();
        assert_eq!(args("check,agentic").ceilings(|| panic!("nobody asked"), &mut ledger), None);
        assert_eq!(args("profile").ceilings(|| panic!("an illegal address"), &mut ledger), None);
        assert_eq!(saved()["notes"][0], "FAILED: ceilings: it panicked: an illegal address");
        let args = args("ceilings,decode");
        let best = args.ceilings(|| Err(anyhow::anyhow!("a kernel does not compile")), &mut ledger);
        assert_eq!(saved()["notes"][1], "FAILED: ceilings: a kernel does not compile");
        let engine = args.engine(Box::new(MockBackend::random(1, 4096).with_blocks(args.blocks()))).unwrap();
        args.measure_loads(&engine, &args.shapes[0], best, true, None, &mut ledger).await;
        engine.shutdown().await;
        assert!(saved()["decode"][0]["tokens_per_second"].as_f64().unwrap() > 0.0, "{}", saved());
        assert_eq!(saved()["notes"].as_array().unwrap().len(), 2, "{}", saved());
        let known = Ceilings { bandwidth: 4e12, operations: 8e14 };
        assert_eq!(args.ceilings(|| Ok(known), &mut ledger), Some(known));
        assert_eq!(saved()["best"]["bandwidth"], 4e12);
    }

    #[tokio::test]
    async fn what_fails_keeps_nothing_else_from_being_tried_and_what_was_measured_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpu.json");
        let line = "gpu --mock --shapes tiny --sequences 1,4 --prompt 20 --tokens 8 --prompts 2 --prompt-tokens 40 --rounds 1 \
                    --loops 2 --turns 2 --observed 16 --written 8 --search-ms 1";
        let args = TestCli::parse_from(line.split_whitespace()).args;
        let backend = MockBackend::random(1, 4096).with_blocks(args.blocks());
        // One sequence takes eight passes.
        backend.faults().broken_from(10);
        let mut ledger = ReportLedger::new(GpuReport::default(), Some(path.clone())).unwrap();
        let source = args.source().unwrap();
        args.run_on_backend(Box::new(backend), &args.shapes[0], source.as_ref(), &mut ledger).await.unwrap();
        assert!(ledger.end().unwrap_err().to_string().starts_with("decode, tiny, 4 sequences, greedy: "));
        let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(saved["decode"].as_array().unwrap().len(), 1, "{saved}");
        let notes: Vec<&str> = saved["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str()).collect();
        let failed: Vec<&str> = notes.iter().filter_map(|note| note.strip_prefix("FAILED: ")).collect();
        let parts = ["decode", "prefill", "agentic", "agentic", "agentic", "agentic"];
        assert_eq!(failed.len(), parts.len(), "{failed:?}");
        assert!(failed.iter().zip(parts).all(|(failed, part)| failed.starts_with(part)), "{failed:?}");
    }
}
