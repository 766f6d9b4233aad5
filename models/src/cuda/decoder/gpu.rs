//! A decoder on a GPU whose steps run asynchronously.

use std::path::Path;
use std::time::{Duration, Instant};

use super::graph_step::LaunchableStep;
use super::runner::StepRunner;
use crate::adaptive_wait::AdaptiveWait;
use crate::batch::{AdapterSlot, ForwardBatch, Logits};
use crate::cuda::CudaError;
use crate::cuda::algorithms::AlgorithmFile;
use crate::cuda::bucket::Buckets;
use crate::cuda::device::{CapturedGraph, Gpu, GpuEvent, GpuInfo, PinnedBuffer};
use crate::cuda::driver::GpuDriver;
use crate::cuda::graphs::{GraphCache, GraphKey, GraphStep, GraphUse};
use crate::cuda::plan::{self, MemoryBudget, MemoryPlan, StepLimits, WeightFormat};
use crate::cuda::source::WeightSource;
use crate::cuda::step_layout::{StepShape, StepWriter};
use crate::decoder::DecoderConfig;
use crate::sampler::{Pick, SampleError, Sampled};
use crate::weights::Weights;

/// Time limits of graph capture before the first step, and after an adapter is loaded, while requests wait. Each batch
/// size takes about ten milliseconds; sizes left over are captured at their first use.
const WARM_UP: Duration = Duration::from_secs(60);
const ADAPTED_WARM_UP: Duration = Duration::from_secs(2);

/// Options of a decoder on a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct CudaOptions {
    /// Ordinal of the GPU in the driver's enumeration.
    pub ordinal: usize,
    /// Format of the layers' matrices.
    pub weights: WeightFormat,
    /// Limits on the size of a step.
    pub limits: StepLimits,
    /// Share of GPU memory that may be used, above 0 and up to 1.
    pub share: f64,
    /// Number of KV blocks. `None` takes as many as fit.
    pub blocks: Option<usize>,
    /// Enables CUDA graphs for decode steps.
    pub graphs: bool,
    /// Time limit of a step, after which the GPU counts as lost.
    pub limit: Duration,
    /// File that keeps the chosen algorithms of matrix multiplications. `None` measures them at each load.
    pub algorithms: Option<AlgorithmFile>,
}

/// A decoder on a GPU, with its KV cache and workspace, all allocated when it is loaded.
///
/// A step has two halves, [`submit`](Self::submit) and [`collect`](Self::collect): between them the GPU computes and
/// the caller can do other work.
pub struct CudaDecoder {
    // Fields drop in order: graphs before the memory they use, the GPU last.
    graphs: GraphCache<CapturedGraph>,
    /// If `true`, graphs are captured before their first use.
    warm: bool,
    plan: MemoryPlan,
    writer: StepWriter,
    buckets: Buckets,
    /// Layout of the step, the source of its copy to the GPU.
    upload: PinnedBuffer<u64>,
    /// Ids, log-probabilities and status, the destination of their copy from the GPU.
    results: PinnedBuffer<u32>,
    /// Event after the last step.
    done: GpuEvent,
    /// Start of the step that is running and has not been waited for. `None` when there is none.
    started: Option<Instant>,
    wait: AdaptiveWait,
    /// For each row of logits of the running step: if `true`, the GPU samples the token.
    sampled_on_gpu: Vec<bool>,
    runner: StepRunner<GpuDriver>,
}

impl CudaDecoder {
    /// Opens a GPU, allocates its memory and loads the weights.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] when the GPU, the driver or a library is missing; [`CudaError::Memory`] with a size
    /// that would fit; [`CudaError::Model`] when a tensor is missing or no kernel supports a shape.
    pub fn load(source: WeightSource<'_>, options: &CudaOptions) -> Result<Self, CudaError> {
        let config = source.config();
        let limits = options.limits;
        let (driver, plan) = open(config, options)?;
        let multiprocessors = driver.gpu().info().multiprocessors;
        let writer = StepWriter::new(config, limits, plan.blocks);
        let mut runner = StepRunner::load(driver, source, options.weights, limits, multiprocessors, plan.blocks)?;
        let buckets = Buckets::up_to(limits.rows);
        let groups = runner.products_by_shape(&buckets);
        runner.driver.tune(&groups, options.algorithms.as_ref())?;
        let gpu = runner.driver.gpu();
        let decoder = Self {
            graphs: GraphCache::new(options.graphs),
            warm: false,
            plan,
            writer,
            buckets,
            upload: PinnedBuffer::filled(gpu, runner.step_layout.bytes.div_ceil(size_of::<u64>()), 0)?,
            results: PinnedBuffer::filled(gpu, 3 * limits.rows, 0)?,
            done: GpuEvent::new(gpu)?,
            started: None,
            wait: gpu.adaptive_wait(),
            sampled_on_gpu: Vec::new(),
            runner,
        };
        // Some copies are still running: report their errors here, not in the first step.
        decoder.runner.driver.gpu().synchronize()?;
        Ok(decoder)
    }

    /// Returns the configuration of the decoder.
    pub fn config(&self) -> &DecoderConfig {
        &self.runner.config
    }

    /// Returns the properties of the GPU.
    pub fn gpu(&self) -> &GpuInfo {
        self.runner.driver.gpu().info()
    }

    /// Returns the memory plan.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// Returns the limits on the size of a step.
    pub fn limits(&self) -> &StepLimits {
        &self.runner.limits
    }

    /// Returns the batch sizes that steps are padded to.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Enables or disables CUDA graphs from now on.
    pub fn set_graphs(&mut self, graphs: bool) {
        self.graphs.set_enabled(graphs);
    }

    /// Returns the counters of graph capture.
    pub fn graphs(&self) -> GraphUse {
        self.graphs.counts()
    }

    /// Captures a graph for every bucket, so no step has to wait for a capture. Buckets left over after a time
    /// limit are captured at their first use. From now on, loading an adapter does the same for steps with adapters.
    /// Changes no KV block. A bucket whose capture fails is launched kernel by kernel later.
    ///
    /// # Errors
    /// [`CudaError`] when a step cannot be computed.
    pub fn warm_up(&mut self) -> Result<(), CudaError> {
        self.warm = self.graphs.enabled();
        if self.warm {
            let keys: Vec<GraphKey> = self.buckets.sizes().iter().map(|&rows| GraphKey { rows, lora: None }).collect();
            self.capture(&keys, WARM_UP)?;
        }
        self.runner.driver.gpu().synchronize()
    }

    /// Loads a PEFT LoRA directory in addition to the loaded adapters. No step may be running.
    ///
    /// # Errors
    /// The errors of [`Decoder::load_adapter`](crate::decoder::Decoder::load_adapter), and [`CudaError::Call`] when the
    /// GPU has no memory left.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, CudaError> {
        let slot = self.runner.load_adapter(dir)?;
        let capacity = self.runner.lora_capacity();
        // Drop graphs whose grids are now too small.
        self.graphs.retain(|GraphKey { rows, lora }| lora.is_none_or(|lora| lora == capacity.decode(rows)));
        if self.warm && self.graphs.enabled() {
            let key = |&rows: &usize| GraphKey { rows, lora: Some(capacity.decode(rows)) };
            let keys: Vec<GraphKey> = self.buckets.sizes().iter().map(key).collect();
            if let Err(error) = self.capture(&keys, ADAPTED_WARM_UP) {
                self.unload_adapter(slot)?;
                return Err(error);
            }
        }
        Ok(slot)
    }

    /// Frees an adapter's slot and its memory; an empty slot is ignored. No step may be running.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<(), CudaError> {
        self.runner.unload_adapter(slot)
    }

    /// Replaces the weights by others of the same shape, in place. If the GPU fails halfway, the decoder counts as
    /// [`lost`](Self::lost). No step may be running, no adapter may be loaded, and the caller must discard keys and values
    /// cached with the old weights.
    ///
    /// # Errors
    /// [`CudaError::Model`] when the shapes differ, or a tensor is missing or cannot be held in the format of the weights:
    /// then the old weights remain. Other errors come from the driver.
    pub fn replace_weights(&mut self, weights: &Weights) -> Result<(), CudaError> {
        self.finish()?;
        self.runner.driver.gpu().bind()?;
        self.runner.replace_weights(weights)
    }

    /// Copies the keys and values of block `from` to block `to`, in every layer, before the next step. No step may be
    /// running.
    ///
    /// # Errors
    /// [`CudaError::Model`] when the pool lacks one of the blocks, and [`CudaError::Call`].
    pub fn copy_block(&mut self, from: usize, to: usize) -> Result<(), CudaError> {
        self.runner.driver.gpu().bind()?;
        self.runner.copy_block(from, to)
    }

    /// Starts a step. `picks` holds the sampling settings for each row of logits; for rows without settings,
    /// or with an adjustment of more than [`LogitAdjustment::MAX_TOKENS`](crate::sampler::LogitAdjustment::MAX_TOKENS)
    /// tokens, [`collect`](Self::collect) returns the logits.
    ///
    /// # Errors
    /// [`CudaError::Model`], before the step starts, when the batch is too large or names something that does not
    /// exist; other errors come from the driver.
    pub fn submit(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> Result<(), CudaError> {
        // A step that was never waited for, because an error intervened, may still read the buffer written below.
        self.finish()?;
        let Self { writer, buckets, runner, upload, .. } = self;
        // Steps are padded with or without graphs, so both give bitwise equal results.
        let bucket = |rows: usize| buckets.fit(rows);
        let bytes = bytemuck::cast_slice_mut(upload.values_mut());
        let step = writer.fill(batch, picks, |slot| runner.holds(slot), bucket, bytes)?;
        self.sampled_on_gpu.clear();
        self.sampled_on_gpu.extend_from_slice(self.writer.sampled());
        if batch.is_empty() {
            return Ok(());
        }
        self.runner.driver.gpu().bind()?;
        self.started = Some(Instant::now());
        self.send(&step)?;
        let pass = LaunchableStep { runner: &self.runner, step, lora: self.runner.grid(&step) };
        if step.decode && self.graphs.enabled() {
            self.graphs.run(GraphKey { rows: step.single_token_rows, lora: pass.lora }, &pass)?;
        } else {
            pass.launch()?;
        }
        let gpu = self.runner.driver.gpu();
        gpu.download(self.runner.results(), self.results.values_mut())?;
        self.done.record(gpu)
    }

    /// Waits for the running step. `sampled` gets an entry for each row of logits, `None` for rows returned in
    /// `logits`.
    ///
    /// # Errors
    /// [`CudaError::Call`] when any part of the step failed, [`CudaError::Lost`] when the time limit has passed.
    pub fn collect(
        &mut self,
        logits: &mut Logits,
        sampled: &mut Vec<Option<Result<Sampled, SampleError>>>,
    ) -> Result<(), CudaError> {
        if let Some(started) = self.started {
            self.done.wait(self.runner.driver.gpu(), started, &mut self.wait)?;
            self.started = None;
        }
        let runner = &self.runner;
        let gpu = self.runner.driver.gpu();
        runner.sampled(self.results.values(), &self.sampled_on_gpu, sampled);
        let wanted = || {
            self.sampled_on_gpu.iter().enumerate().filter(|(_, sampled_on_gpu)| !**sampled_on_gpu).map(|(row, _)| row)
        };
        logits.reset(runner.config.vocab, wanted().count());
        if logits.rows() == 0 {
            return Ok(());
        }
        // Only rows for the CPU sampler are copied: a row of logits has hundreds of kilobytes.
        for (to, from) in wanted().enumerate() {
            gpu.download(runner.logits(from, 1), logits.row_mut(to))?;
        }
        gpu.synchronize()
    }

    /// Returns the reason why the decoder is unusable. `None` while it works.
    pub fn lost(&self) -> Option<String> {
        let torn = self.runner.is_torn().then(|| "the weights were replaced in part: load the model again".to_owned());
        self.runner.driver.gpu().lost().or(torn)
    }

    /// Waits for a running step, discarding its result.
    fn finish(&mut self) -> Result<(), CudaError> {
        if self.started.is_some() {
            self.runner.driver.gpu().synchronize()?;
            self.started = None;
        }
        Ok(())
    }

    /// Copies the step's layout to the GPU.
    fn send(&self, step: &StepShape) -> Result<(), CudaError> {
        let StepRunner { step_layout, driver, .. } = &self.runner;
        let from = bytemuck::cast_slice(self.upload.values());
        driver.gpu().upload_pieces(from, &step_layout.pieces(step), self.runner.layout())
    }

    /// Captures the missing graphs of `keys`, with steps that consist of padding rows.
    fn capture(&mut self, keys: &[GraphKey], limit: Duration) -> Result<(), CudaError> {
        self.finish()?;
        let Self { graphs, writer, upload, runner, .. } = self;
        let runner = &*runner;
        let left = graphs.capture_missing(keys, limit, |GraphKey { rows, lora }| {
            let gpu = runner.driver.gpu();
            gpu.synchronize()?;
            let bytes = bytemuck::cast_slice_mut(upload.values_mut());
            let step = writer.fill_padding(rows, bytes);
            gpu.upload_pieces(bytes, &runner.step_layout.pieces(&step), runner.layout())?;
            Ok(LaunchableStep { runner, step, lora })
        })?;
        if left > 0 {
            tracing::info!(left, of = keys.len(), "graphs of some batch sizes are captured at their first use");
        }
        Ok(())
    }
}

/// Opens a GPU for a decoder and plans its memory. Allocates only the cuBLAS workspace.
pub(super) fn open(config: &DecoderConfig, options: &CudaOptions) -> Result<(GpuDriver, MemoryPlan), CudaError> {
    let limits = options.limits;
    plan::check(config, &limits)?;
    let gpu = Gpu::open(options.ordinal, config.head_dim)?.with_limit(options.limit);
    let total = gpu.info().memory;
    let free = gpu.free_memory()?;
    let memory = MemoryBudget { free, total, share: options.share, blocks: options.blocks };
    let plan = MemoryPlan::new(config, options.weights, &limits, gpu.info().multiprocessors, memory)?;
    Ok((GpuDriver::new(gpu)?, plan))
}

impl Drop for CudaDecoder {
    fn drop(&mut self) {
        // The GPU may still write to memory that is about to be freed. `finish` does not wait for a GPU that was given
        // up.
        let _ = self.finish();
    }
}

impl std::fmt::Debug for CudaDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDecoder").field("gpu", self.gpu()).field("plan", &self.plan).finish_non_exhaustive()
    }
}
