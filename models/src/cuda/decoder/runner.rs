//! Memory and adapters of a decoder, on a GPU or on the emulator.

use std::path::Path;

use half::bf16;

use super::adapters::Adapters;
use crate::ModelError;
use crate::adapter::Site;
use crate::batch::AdapterSlot;
use crate::cuda::CudaError;
use crate::cuda::driver::Driver;
use crate::cuda::kernel::{DeviceSlice, LoraFactors, SampleStatus, layout};
use crate::cuda::lora_grid::{LoraCapacity, LoraGrid};
use crate::cuda::plan::{MatrixLayout, Placement, StepLimits, WeightFormat, WeightLayout, WorkspaceLayout};
use crate::cuda::source::{WeightLoader, WeightSource};
use crate::cuda::step_layout::{CopyRect, StepLayout, StepShape};
use crate::cuda::tensor_check::check_tensors;
use crate::decoder::DecoderConfig;
use crate::sampler::{SampleError, Sampled};
use crate::weights::Weights;

/// All memory that a step reads and writes. Everything except the adapters is allocated when a decoder is loaded.
pub(super) struct StepRunner<D: Driver> {
    // Fields drop in order, the driver last.
    adapters: Adapters<D>,
    pub(super) config: DecoderConfig,
    pub(super) limits: StepLimits,
    /// Number of multiprocessors of the GPU.
    pub(super) multiprocessors: u32,
    pub(super) weight_layout: WeightLayout<MatrixLayout>,
    pub(super) buffers: WorkspaceLayout,
    pub(super) step_layout: StepLayout,
    /// Number of KV blocks.
    pub(super) blocks: usize,
    /// If `true`, a replacement of the weights failed halfway, so they belong to no checkpoint.
    torn: bool,
    weights: D::Region,
    work: D::Region,
    cache: D::Region,
    layout_region: D::Region,
    pub(super) driver: D,
}

impl<D: Driver> StepRunner<D> {
    /// Allocates memory for steps within `limits` and for `blocks` KV blocks, and loads the weights in this format. The
    /// caller has checked that kernels support the configuration.
    pub(super) fn load(
        driver: D,
        source: WeightSource<'_>,
        format: WeightFormat,
        limits: StepLimits,
        multiprocessors: u32,
        blocks: usize,
    ) -> Result<Self, CudaError> {
        let config = source.config().clone();
        let weight_layout = WeightLayout::of(format, &config, limits.context);
        let buffers = WorkspaceLayout::new(&config, format, &limits, multiprocessors);
        let step_layout = StepLayout::new(&config, &limits);
        let cached = config.layers * blocks * layout::block_len(config.kv_heads, config.head_dim) * size_of::<bf16>();
        let weights = driver.allocate(weight_layout.bytes)?;
        let work = driver.allocate(buffers.bytes)?;
        let cache = driver.allocate(cached)?;
        let layout_region = driver.allocate(step_layout.bytes)?;
        // Counters start at zero, and memory that is never written must not read as NaN.
        for (region, bytes) in [(&work, buffers.bytes), (&cache, cached), (&layout_region, step_layout.bytes)] {
            driver.clear(driver.slice(region, Placement::new(0, bytes / size_of::<f32>())))?;
        }
        WeightLoader::new(source, &driver, &weights)?.load(&weight_layout, limits.context)?;
        let adapters = Adapters::new(&driver, driver.slice(&work, buffers.factors))?;
        Ok(Self {
            adapters,
            config,
            limits,
            multiprocessors,
            weight_layout,
            buffers,
            step_layout,
            blocks,
            torn: false,
            weights,
            work,
            cache,
            layout_region,
            driver,
        })
    }

    /// Replaces the weights by others of the same shape. They keep their place in memory, so captured graphs remain
    /// valid. Every tensor is read twice, because nothing is overwritten before all of them were found good. No adapter
    /// may be loaded.
    pub(super) fn replace_weights(&mut self, weights: &Weights) -> Result<(), CudaError> {
        if *weights.config() != self.config {
            let reason = "the new weights have another shape than the loaded decoder".to_owned();
            return Err(ModelError::Input(reason).into());
        }
        let context = self.limits.context;
        check_tensors(weights, &self.config, &self.weight_layout, context)?;
        self.torn = true;
        let source = WeightSource::Checkpoint(weights);
        WeightLoader::new(source, &self.driver, &self.weights)?.load(&self.weight_layout, context)?;
        // Waits, and reports the errors of copies that were still running.
        self.driver.download(self.weight(Placement::<u8>::new(0, 1)), &mut [0])?;
        self.torn = false;
        Ok(())
    }

    /// Returns `true` if a replacement of the weights failed halfway.
    pub(super) fn is_torn(&self) -> bool {
        self.torn
    }

    /// Loads the adapter in `dir` into a free slot.
    pub(super) fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, CudaError> {
        self.adapters.load(&self.driver, dir, &self.config)
    }

    /// Removes an adapter and frees its memory.
    pub(super) fn unload_adapter(&mut self, slot: AdapterSlot) -> Result<(), CudaError> {
        self.adapters.unload(&self.driver, slot)
    }

    /// Returns `true` if a slot holds an adapter.
    pub(super) fn holds(&self, slot: AdapterSlot) -> bool {
        self.adapters.holds(slot)
    }

    /// Returns the adapter capacity that captured graphs provide for.
    pub(super) fn lora_capacity(&self) -> LoraCapacity {
        self.adapters.lora_capacity()
    }

    /// Returns the grid of the LoRA kernels in a step. `None` when no row has an adapter.
    pub(super) fn grid(&self, step: &StepShape) -> Option<LoraGrid> {
        let capacity = self.lora_capacity();
        let grid = || if step.decode { capacity.decode(step.single_token_rows) } else { capacity.tiles(step.lora) };
        (step.lora > 0).then(grid)
    }

    /// Returns the factors of all slots at one site.
    pub(super) fn factors(&self, layer: usize, site: Site) -> Option<DeviceSlice<LoraFactors>> {
        self.adapters.at(layer, site)
    }

    /// Decodes the sampling results copied from [`results`](Self::results) into one entry for each row of logits,
    /// `None` for rows that the GPU did not sample.
    pub(super) fn sampled(
        &self,
        results: &[u32],
        sampled_on_gpu: &[bool],
        sampled: &mut Vec<Option<Result<Sampled, SampleError>>>,
    ) {
        let (ids, rest) = results.split_at(self.limits.rows);
        let (logprobs, status) = rest.split_at(self.limits.rows);
        sampled.clear();
        for (row, sampled_on_gpu) in sampled_on_gpu.iter().enumerate() {
            sampled.push(sampled_on_gpu.then(|| match SampleStatus::of(status[row]) {
                SampleStatus::Chosen => {
                    Ok(Sampled { id: ids[row], logprob: f32::from_bits(logprobs[row]), top: Vec::new() })
                }
                SampleStatus::NotFinite => Err(SampleError::NotFinite),
                SampleStatus::NoCandidate => Err(SampleError::NoCandidate),
            }));
        }
    }

    /// Returns ids, log-probabilities and status of all rows of logits, a third each.
    pub(super) fn results(&self) -> DeviceSlice<u32> {
        self.work(self.buffers.results)
    }

    /// Returns the logits of some rows.
    pub(super) fn logits(&self, first: usize, rows: usize) -> DeviceSlice<f32> {
        let vocab = self.config.vocab;
        self.work(self.buffers.logits.part(first * vocab, rows * vocab))
    }

    /// Returns the device memory of the step's layout.
    pub(super) fn layout(&self) -> DeviceSlice<u8> {
        self.layout_slice(Placement::new(0, self.step_layout.bytes))
    }

    /// Copies a step's layout from the host and waits.
    pub(super) fn upload_layout(&self, from: &[u8], step: &StepShape) -> Result<(), CudaError> {
        let rows = |CopyRect { first, width, pitch, rows }| (0..rows).map(move |row| (first + row * pitch, width));
        let lines = self.step_layout.pieces(step).into_iter().flat_map(rows);
        let parts =
            lines.map(|(first, width)| (&from[first..first + width], self.layout_slice(Placement::new(first, width))));
        self.driver.upload_all(&parts.collect::<Vec<_>>())
    }

    /// Returns one layer's KV blocks.
    pub(super) fn blocks(&self, layer: usize) -> DeviceSlice<bf16> {
        let len = self.blocks * layout::block_len(self.config.kv_heads, self.config.head_dim);
        self.driver.slice(&self.cache, Placement::new(layer * len * size_of::<bf16>(), len))
    }

    /// Copies the keys and values of block `from` to block `to`, in every layer, after the work enqueued so far.
    pub(super) fn copy_block(&self, from: usize, to: usize) -> Result<(), CudaError> {
        let len = layout::block_len(self.config.kv_heads, self.config.head_dim);
        for layer in 0..self.config.layers {
            let blocks = self.blocks(layer);
            let (Some(from), Some(to)) = (blocks.slice(from * len, len), blocks.slice(to * len, len)) else {
                return Err(ModelError::Input(format!("block {from} or {to} is not in the pool")).into());
            };
            self.driver.copy(from, to)?;
        }
        Ok(())
    }

    pub(super) fn weight<T>(&self, place: Placement<T>) -> DeviceSlice<T> {
        self.driver.slice(&self.weights, place)
    }

    pub(super) fn work<T>(&self, place: Placement<T>) -> DeviceSlice<T> {
        self.driver.slice(&self.work, place)
    }

    /// Returns a part of the step's layout.
    pub(super) fn layout_slice<T>(&self, place: Placement<T>) -> DeviceSlice<T> {
        self.driver.slice(&self.layout_region, place)
    }
}
