//! A decoder on the kernel emulator and the same one on the CPU, run side by side.

use std::path::Path;
use std::sync::Arc;

use half::bf16;

use crate::batch::{AdapterSlot, BLOCK, ForwardBatch, LogitPositions, Logits};
use crate::cuda::bucket::Buckets;
use crate::cuda::decoder::runner::StepRunner;
use crate::cuda::driver::Driver;
use crate::cuda::kernel::emulator::Emulator;
use crate::cuda::kernel::{DeviceSlice, layout};
use crate::cuda::plan::{self, MemoryPlan, StepLimits, WeightFormat};
use crate::cuda::source::WeightSource;
use crate::cuda::step_layout::{StepShape, StepWriter};
use crate::decoder::{Decoder, KvCache};
use crate::kernel::Team;
use crate::sampler::{Pick, SampleError, Sampled};
use crate::weights::Weights;

pub(super) const LIMITS: StepLimits = StepLimits { rows: 48, tokens: 128, context: 256 };
/// Number of multiprocessors of the emulated GPU.
pub(super) const MULTIPROCESSORS: u32 = 132;
const BLOCKS: usize = 40;
/// Content of unassigned blocks: a NaN that no kernel writes.
const POISON: u16 = 0xffab;

pub(super) struct DecoderPair<D: Driver = Emulator> {
    runner: StepRunner<D>,
    format: WeightFormat,
    writer: StepWriter,
    buckets: Buckets,
    /// Layout of the step on the host.
    upload: Vec<u64>,
    decoder: Decoder,
    kv: KvCache,
    /// Unassigned blocks. Block 0 is never assigned: a table of zeros would refer to it.
    free: Vec<u32>,
    sequences: Vec<TestSequence>,
}

/// A sequence whose tokens are a function of position and salt, with its blocks.
struct TestSequence {
    salt: usize,
    len: usize,
    table: Vec<u32>,
    adapter: Option<AdapterSlot>,
}

/// Result of a step: its shape, the logits of the emulator and of the CPU, and the tokens sampled by the emulator.
pub(super) struct StepOutcome {
    pub(super) step: StepShape,
    pub(super) found: Vec<Vec<f32>>,
    pub(super) wanted: Vec<Vec<f32>>,
    pub(super) sampled: Vec<Option<Result<Sampled, SampleError>>>,
}

impl DecoderPair {
    /// Returns `None` when kernels cannot be compiled.
    pub(super) fn new(weights: &Weights, seed: u64) -> Option<Self> {
        Self::of(WeightFormat::Bf16, weights, seed)
    }

    /// Keeps the emulator's weights in this format; the CPU computes with the checkpoint's.
    pub(super) fn of(format: WeightFormat, weights: &Weights, seed: u64) -> Option<Self> {
        Some(Self::on(Emulator::new(weights.config().head_dim, seed)?, weights, format))
    }

    /// Returns the bytes allocated on the emulator.
    pub(super) fn held(&self) -> usize {
        self.runner.driver.memory().held()
    }
}

impl<D: Driver> DecoderPair<D> {
    /// Creates the pair on an emulator wrapped in another driver.
    pub(super) fn on(driver: D, weights: &Weights, format: WeightFormat) -> Self {
        let config = weights.config();
        plan::check(config, &LIMITS).unwrap();
        let source = WeightSource::Checkpoint(weights);
        let runner = StepRunner::load(driver, source, format, LIMITS, MULTIPROCESSORS, BLOCKS).unwrap();
        let writer = StepWriter::new(config, LIMITS, BLOCKS);
        let decoder = Decoder::load(weights, Arc::new(Team::new(2))).unwrap();
        // 17 and 39 are coprime, so blocks are assigned in a scrambled order.
        let free = (0..BLOCKS as u32 - 1).map(|block| 1 + block * 17 % (BLOCKS as u32 - 1)).collect();
        let pair = Self {
            upload: vec![0; writer.layout().bytes.div_ceil(size_of::<u64>())],
            kv: decoder.kv_cache(BLOCKS),
            runner,
            format,
            writer,
            buckets: Buckets::up_to(LIMITS.rows),
            decoder,
            free,
            sequences: Vec::new(),
        };
        (0..BLOCKS).for_each(|block| pair.fill_block(block, POISON));
        pair
    }

    /// Limits the number of weights that are dequantized at a time, so matrices are multiplied in parts.
    pub(super) fn dequantize_at_most(&mut self, weights: usize) {
        let dequantized = &mut self.runner.buffers.dequantized;
        *dequantized = dequantized.part(0, weights);
    }

    /// Returns the decoder on the emulator.
    pub(super) fn runner(&self) -> &StepRunner<D> {
        &self.runner
    }

    /// Returns the driver.
    pub(super) fn driver(&self) -> &D {
        &self.runner.driver
    }

    /// Returns the planned bytes without the cuBLAS workspace.
    pub(super) fn planned(&self) -> usize {
        let plan = MemoryPlan::sizes(&self.runner.config, self.format, &LIMITS, MULTIPROCESSORS);
        plan.weights + plan.workspace - plan::BLAS_BYTES + BLOCKS * plan.block
    }

    /// Starts a sequence; sequences with the same salt have the same tokens.
    pub(super) fn begin(&mut self, salt: usize, adapter: Option<AdapterSlot>) -> usize {
        self.sequences.push(TestSequence { salt, len: 0, table: Vec::new(), adapter });
        self.sequences.len() - 1
    }

    /// Starts a sequence with all tokens of another one, whose full blocks it shares. The last block is copied in both
    /// decoders.
    pub(super) fn fork(&mut self, number: usize) -> usize {
        let TestSequence { salt, len, ref table, adapter } = self.sequences[number];
        let mut table = table[..len.div_ceil(BLOCK)].to_vec();
        if !len.is_multiple_of(BLOCK) {
            let own = self.free.pop().unwrap();
            let shared = std::mem::replace(table.last_mut().unwrap(), own);
            self.runner.copy_block(shared as usize, own as usize).unwrap();
            assert!(self.kv.copy_block(shared as usize, own as usize));
        }
        self.sequences.push(TestSequence { salt, len, table, adapter });
        self.sequences.len() - 1
    }

    /// Returns the error of copying a block that the pool does not have.
    pub(super) fn copy_refusal(&self) -> String {
        self.runner.copy_block(1, BLOCKS).unwrap_err().to_string()
    }

    /// Replaces the weights of both decoders.
    pub(super) fn replace_weights(&mut self, weights: &Weights) {
        self.runner.replace_weights(weights).unwrap();
        self.decoder.replace_weights(weights).unwrap();
    }

    /// Returns the error of replacing the emulator's weights alone.
    pub(super) fn weights_refusal(&mut self, weights: &Weights) -> String {
        self.runner.replace_weights(weights).unwrap_err().to_string()
    }

    /// Loads an adapter into both decoders.
    pub(super) fn load_adapter(&mut self, dir: &Path) -> AdapterSlot {
        let slot = self.runner.load_adapter(dir).unwrap();
        assert_eq!(slot, self.decoder.load_adapter(dir).unwrap());
        slot
    }

    /// Removes an adapter from both decoders.
    pub(super) fn unload_adapter(&mut self, slot: AdapterSlot) {
        self.runner.unload_adapter(slot).unwrap();
        self.decoder.unload_adapter(slot);
    }

    /// Creates a batch of the next tokens of some sequences: sequence, number of tokens, wanted logits.
    pub(super) fn batch(&mut self, rows: &[(usize, usize, LogitPositions)]) -> ForwardBatch {
        let mut batch = ForwardBatch::new();
        for &(number, count, want) in rows {
            while self.sequences[number].table.len() * BLOCK < self.sequences[number].len + count {
                let block = self.free.pop().unwrap();
                // Unwritten entries of an assigned block must read as numbers, as on the GPU.
                self.fill_block(block as usize, 0);
                self.sequences[number].table.push(block);
            }
            let vocab = self.runner.config.vocab;
            let TestSequence { salt, len, table, adapter } = &mut self.sequences[number];
            let token = |at: usize| ((at * at * 31 + at * 7 + *salt * 101) % vocab) as u32;
            let tokens: Vec<u32> = (*len..*len + count).map(token).collect();
            batch.push(&tokens, *len, table, *adapter, want);
            *len += count;
        }
        batch
    }

    /// Returns the error for an invalid batch.
    pub(super) fn refusal(&mut self, batch: &ForwardBatch) -> String {
        self.fill(batch, &[]).unwrap_err().to_string()
    }

    /// Runs a step on both decoders; on the emulator it is submitted and collected as on a GPU.
    pub(super) fn step(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> StepOutcome {
        let step = self.fill(batch, picks).unwrap();
        let runner = &self.runner;
        runner.upload_layout(bytemuck::cast_slice(&self.upload), &step).unwrap();
        runner.run(&step, runner.grid(&step)).unwrap();
        let mut results = vec![0; runner.results().len()];
        runner.driver.download(runner.results(), &mut results).unwrap();
        let mut sampled = Vec::new();
        runner.sampled(&results, self.writer.sampled(), &mut sampled);
        let logits = |row: usize| {
            let mut logits = vec![0.0; runner.config.vocab];
            runner.driver.download(runner.logits(row, 1), &mut logits).unwrap();
            logits
        };
        let found = (0..batch.logit_rows()).map(logits).collect();
        let mut logits = Logits::new();
        self.decoder.forward(batch, &mut self.kv, &mut logits).unwrap();
        let wanted = (0..logits.rows()).map(|row| logits.row(row).to_vec()).collect();
        StepOutcome { step, found, wanted, sampled }
    }

    /// Panics when an unassigned block was written to.
    pub(super) fn untouched(&self) {
        for block in self.free.iter().map(|&block| block as usize).chain([0]) {
            for layer in 0..self.runner.config.layers {
                let slice = self.block(layer, block);
                let mut values = vec![bf16::ZERO; slice.len()];
                self.runner.driver.download(slice, &mut values).unwrap();
                let whole = values.iter().all(|value| value.to_bits() == POISON);
                assert!(whole, "block {block} of layer {layer} was written to");
            }
        }
    }

    fn fill(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> Result<StepShape, crate::ModelError> {
        let Self { writer, runner, buckets, upload, .. } = self;
        let bytes = bytemuck::cast_slice_mut(upload);
        writer.fill(batch, picks, |slot| runner.holds(slot), |rows| buckets.fit(rows), bytes)
    }

    /// Fills a block with one value, in all layers.
    fn fill_block(&self, block: usize, bits: u16) {
        for layer in 0..self.runner.config.layers {
            let slice = self.block(layer, block);
            self.runner.driver.upload(&vec![bf16::from_bits(bits); slice.len()], slice).unwrap();
        }
    }

    fn block(&self, layer: usize, block: usize) -> DeviceSlice<bf16> {
        let config = &self.runner.config;
        let len = layout::block_len(config.kv_heads, config.head_dim);
        self.runner.blocks(layer).slice(block * len, len).unwrap()
    }
}
