//! Parts of the benchmark that need a GPU.

use std::sync::Arc;

use anyhow::Context;
use waymark_models::cuda::algorithms::AlgorithmFile;
use waymark_models::cuda::kernel::fp8;
use waymark_models::cuda::plan::{StepLimits, WeightFormat};
use waymark_models::decoder::DecoderConfig;
use waymark_models::kernel::Team;
use waymark_models::weights::{Weights, write_random, write_random_with};
use waymark_runtime::assembly;

use super::super::agentic::SearchSource;
use super::super::cuda::DecoderSettings;
use super::super::facts::loaded_libraries;
use super::super::ledger::{ReportLedger, catch_panic, catch_panic_async};
use super::super::profile::{ProfileReport, steps};
use super::super::report::{Agreement, GpuReport};
use super::super::shape::{Ceilings, ModelShape};
use super::super::{Args, BenchPart, LaunchMode, cuda};

/// The measured GPU, and the threads for CPU work.
struct GpuTarget {
    ordinal: usize,
    /// Peak rates, the basis of floors. `None` until measured.
    best: Option<Ceilings>,
    team: Arc<Team>,
}

impl Args {
    /// Runs all parts on GPU `ordinal`. Only a missing GPU stops the run.
    pub(super) async fn cuda(
        &self,
        ordinal: usize,
        source: Option<&SearchSource>,
        ledger: &mut ReportLedger,
    ) -> anyhow::Result<()> {
        match catch_panic(|| Ok(cuda::describe(ordinal)?)) {
            Ok(about) => ledger.report.device = about,
            Err(error) => {
                ledger.record("GPU", Err(error));
                return Ok(());
            }
        }
        let mut target = GpuTarget { ordinal, best: None, team: Arc::new(Team::new(self.threads())) };
        if self.wants(BenchPart::Info) {
            let read = catch_panic(|| Ok(cuda::facts(ordinal, &self.head_dims, &mut ledger.report.facts)?));
            ledger.record("properties of the GPU", read);
        }
        self.check(&target, ledger);
        // Measured before any engine takes most of the memory, since the measurement needs 4 GiB.
        target.best = self.ceilings(|| Ok(cuda::ceilings(ordinal)?), ledger);
        let loads =
            [BenchPart::Decode, BenchPart::Prefill, BenchPart::Agentic].into_iter().any(|part| self.wants(part));
        for shape in &self.shapes {
            if self.wants(BenchPart::Gemm) {
                let best = target.best;
                let found = &mut ledger.report.gemm;
                let timed = catch_panic(|| Ok(cuda::gemm(ordinal, shape, self.rounds, best, found)?));
                ledger.record(&format!("matrix multiplications, {}", shape.name), timed);
            }
            let shape = &shape.clone().with_weights(self.weights);
            for mode in LaunchMode::ALL.into_iter().filter(|mode| self.launch.contains(mode)) {
                let graphs = mode == LaunchMode::Graphs;
                if loads && (graphs || self.wants(BenchPart::Decode)) {
                    let measured = catch_panic_async(self.shape(&target, shape, graphs, source, ledger)).await;
                    ledger.record(&shape.name, measured);
                }
            }
            if self.wants(BenchPart::Profile) {
                let profiled = catch_panic(|| self.profile(&target, shape, &mut ledger.report));
                ledger.record(&format!("profile of {}", shape.name), profiled);
            }
        }
        ledger.report.libraries = loaded_libraries();
        Ok(())
    }

    /// Compares the GPU's results with references and with the CPU's, as far as requested.
    fn check(&self, target: &GpuTarget, ledger: &mut ReportLedger) {
        for &dim in &self.head_dims {
            if self.wants(BenchPart::Kernels) {
                let kernels = ledger.report.kernels.get_or_insert_default();
                let checked = cuda::kernels(target.ordinal, dim, 1, self.step_args.limit(), kernels);
                ledger.record(&format!("kernels, heads of {dim}"), checked);
            }
        }
        if self.wants(BenchPart::Agreement) {
            let compared = self.agreement(target, &mut ledger.report);
            ledger.record("agreement", compared);
        }
        if self.wants(BenchPart::Batches) {
            let compared = self.large_batches(target, &mut ledger.report);
            ledger.record("batches", compared);
        }
        if self.wants(BenchPart::Training) {
            let format = WeightFormat::Bf16;
            training(target, &self.small(format), || self.random(true, format), ledger);
            if let Some(name) = &self.model {
                training(target, name, || Ok(assembly::checkpoint(name, self.cache.clone())?.0.weights), ledger);
            }
        }
        for part in BenchPart::STRESS.into_iter().filter(|part| self.wants(*part)) {
            // Sampling does not depend on the head width.
            let count = if part == BenchPart::StressSampler { 1 } else { self.head_dims.len() };
            for &dim in &self.head_dims[..count] {
                let kernels = ledger.report.kernels.get_or_insert_default();
                let checked = cuda::stress(target.ordinal, dim, part, self.step_args.limit(), kernels);
                ledger.record(&format!("{part:?}, heads of {dim}"), checked);
            }
        }
    }

    /// Returns the name of the model with random weights in a format that is compared.
    fn small(&self, format: WeightFormat) -> String {
        format!("random weights of the shape {}", self.compared.clone().with_weights(format).name)
    }

    /// Creates a checkpoint with random weights to compare, which `format` holds exactly. With tied embeddings the
    /// previous token is nearly always the most likely next one, and almost certain, which makes comparisons of text
    /// uninformative.
    fn random(&self, tied: bool, format: WeightFormat) -> anyhow::Result<Weights> {
        let config = DecoderConfig { tied_embeddings: tied, ..self.compared.config.clone() };
        // Memory-mapped files stay valid after their removal.
        let dir = tempfile::tempdir()?;
        match format {
            WeightFormat::Bf16 => write_random(dir.path(), &config, 1)?,
            WeightFormat::Fp8 => write_random_with(dir.path(), &config, 1, fp8::round_layer_matrix)?,
        }
        Ok(Weights::open(dir.path())?)
    }

    /// Measures rates and loads of one shape.
    async fn shape(
        &self,
        target: &GpuTarget,
        shape: &ModelShape,
        graphs: bool,
        source: Option<&SearchSource>,
        ledger: &mut ReportLedger,
    ) -> anyhow::Result<()> {
        let limits = self.limits(shape);
        let team = Arc::clone(&target.team);
        let (backend, ready) = cuda::backend(&self.settings(target), shape, limits, graphs, team)?;
        let engine = self.engine(Box::new(backend))?;
        if graphs {
            ledger.report.ready.push(ready);
        }
        self.measure_loads(&engine, shape, target.best, graphs, source, ledger).await;
        let refused = engine.counters().graph_refusals_total.get();
        if refused > 0 {
            let note = format!("{}: {refused} batch sizes could not be captured as CUDA graphs", shape.name);
            ledger.report.notes.push(note);
        }
        engine.shutdown().await;
        Ok(())
    }

    /// Profiles decode and prefill steps of one shape.
    fn profile(&self, target: &GpuTarget, shape: &ModelShape, report: &mut GpuReport) -> anyhow::Result<()> {
        // Same limits as for the rates, since they determine the splits of decoding attention; same context as for
        // decode rates.
        let limits = self.limits(shape);
        let context = self.prompt + self.tokens / 2;
        let best = target.best.context("the GPU's peak rates are unknown: their measurement failed")?;
        let steps = steps(&self.sequences, context, (self.prompts, self.prompt_tokens), limits);
        let mut profiler = cuda::profiler(&self.settings(target), shape, limits, &steps)?;
        for step in steps {
            let found = profiler.profile(step, self.rounds)?;
            report.profiles.push(ProfileReport::new(shape, step, &found, best));
        }
        Ok(())
    }

    /// Returns the settings of every decoder.
    fn settings(&self, target: &GpuTarget) -> DecoderSettings {
        DecoderSettings {
            ordinal: target.ordinal,
            weights: self.weights,
            limit: self.step_args.limit(),
            algorithms: self.algorithms.as_ref().map(AlgorithmFile::new),
        }
    }

    /// Returns the limits of steps of a shape.
    fn limits(&self, shape: &ModelShape) -> StepLimits {
        StepLimits { rows: self.rows(), tokens: self.step_tokens(), context: self.longest().min(shape.config.context) }
    }

    /// Compares the GPU with the CPU over the given model, or over a small one with random weights.
    fn agreement(&self, target: &GpuTarget, report: &mut GpuReport) -> anyhow::Result<()> {
        let (over, weights) = match &self.model {
            Some(name) => {
                let (checkpoint, _) = assembly::checkpoint(name, self.cache.clone())?;
                (checkpoint.name, checkpoint.weights)
            }
            None => (self.small(self.weights), self.random(false, self.weights)?),
        };
        let mut found = Vec::new();
        let compared = catch_panic(|| cuda::agreement(&self.settings(target), &weights, &target.team, &mut found));
        report.agreement.extend(found.into_iter().map(|agreement| Agreement { over: over.clone(), ..agreement }));
        compared
    }

    /// Compares large batches with single rows over a small model with random weights.
    fn large_batches(&self, target: &GpuTarget, report: &mut GpuReport) -> anyhow::Result<()> {
        let mut found = Vec::new();
        let compared = catch_panic(|| {
            let weights = self.random(false, self.weights)?;
            cuda::large_batches(&self.settings(target), &weights, &target.team, &mut found)
        });
        let over = self.small(self.weights);
        report.agreement.extend(found.into_iter().map(|agreement| Agreement { over: over.clone(), ..agreement }));
        compared
    }
}

/// Compares a training step on the GPU and on the CPU.
fn training(
    target: &GpuTarget,
    name: &str,
    weights: impl FnOnce() -> anyhow::Result<Weights>,
    ledger: &mut ReportLedger,
) {
    let compared = catch_panic(|| cuda::training(target.ordinal, name, &weights()?, Arc::clone(&target.team)));
    let kept = compared.map(|compared| ledger.report.learning.push(compared));
    ledger.record(&format!("training on {name}"), kept);
}
