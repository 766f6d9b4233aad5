//! A decoder on the emulator of kernels and the same one on the processor, step by step.

use std::path::Path;
use std::sync::Arc;

use half::bf16;

use crate::batch::{AdapterSlot, BLOCK, ForwardBatch, Logits, Want};
use crate::cuda::bucket::Buckets;
use crate::cuda::decoder::machine::Machine;
use crate::cuda::driver::Driver;
use crate::cuda::image::{Filler, Step};
use crate::cuda::kernel::emulator::Emulator;
use crate::cuda::kernel::{Span, layout};
use crate::cuda::plan::{self, Limits, Plan};
use crate::cuda::source::Source;
use crate::decoder::{Decoder, KvCache};
use crate::kernel::Team;
use crate::sampler::{Pick, SampleError, Sampled};
use crate::weights::Weights;

const LIMITS: Limits = Limits { rows: 48, tokens: 128, context: 256 };
/// Multiprocessors of the card that is played.
const PROCESSORS: u32 = 132;
const BLOCKS: usize = 40;
/// What blocks hold that belong to nobody: no number, and no kernel writes it.
const POISON: u16 = 0xffab;

pub(super) struct Pair<D: Driver = Emulator> {
    machine: Machine<D>,
    filler: Filler,
    buckets: Buckets,
    /// The step's layout, on the host.
    upload: Vec<u64>,
    decoder: Decoder,
    kv: KvCache,
    /// Blocks that belong to nobody yet, and the one that is not given away: the first, which a table of zeros names.
    free: Vec<u32>,
    sequences: Vec<Sequence>,
}

/// Tokens that follow from their positions, and the blocks they are in.
struct Sequence {
    salt: usize,
    len: usize,
    table: Vec<u32>,
    adapter: Option<AdapterSlot>,
}

/// What a step gave: the shape it had, the emulator's logits and the processor's, and what the emulator chose.
pub(super) struct Outcome {
    pub(super) step: Step,
    pub(super) found: Vec<Vec<f32>>,
    pub(super) wanted: Vec<Vec<f32>>,
    pub(super) drawn: Vec<Option<Result<Sampled, SampleError>>>,
}

impl Pair {
    /// `None` where kernels cannot be built.
    pub(super) fn new(weights: &Weights, seed: u64) -> Option<Self> {
        Some(Self::on(Emulator::new(weights.config().head_dim, seed)?, weights))
    }

    /// Bytes that are held of the emulator's memory.
    pub(super) fn held(&self) -> usize {
        self.machine.driver.store().held()
    }
}

impl<D: Driver> Pair<D> {
    /// On the emulator behind another driver.
    pub(super) fn on(driver: D, weights: &Weights) -> Self {
        let config = weights.config();
        plan::check(config, &LIMITS).unwrap();
        let machine = Machine::load(driver, Source::Checkpoint(weights), LIMITS, PROCESSORS, BLOCKS).unwrap();
        let filler = Filler::new(config, LIMITS, BLOCKS);
        let decoder = Decoder::load(weights, Arc::new(Team::new(2))).unwrap();
        // 17 and 39 have no divisor in common: the blocks in an order of their own.
        let free = (0..BLOCKS as u32 - 1).map(|block| 1 + block * 17 % (BLOCKS as u32 - 1)).collect();
        let pair = Self {
            upload: vec![0; filler.image().bytes.div_ceil(size_of::<u64>())],
            kv: decoder.kv_cache(BLOCKS),
            machine,
            filler,
            buckets: Buckets::up_to(LIMITS.rows),
            decoder,
            free,
            sequences: Vec::new(),
        };
        (0..BLOCKS).for_each(|block| pair.stain(block, POISON));
        pair
    }

    /// What steps run on.
    pub(super) fn driver(&self) -> &D {
        &self.machine.driver
    }

    /// Bytes that were to be taken, without what cuBLAS works in.
    pub(super) fn planned(&self) -> usize {
        let plan = Plan::sizes(&self.machine.config, &LIMITS, PROCESSORS);
        plan.weights + plan.workspace - plan::BLAS_BYTES + BLOCKS * plan.block
    }

    /// Begins a sequence; sequences of the same salt have the same tokens.
    pub(super) fn begin(&mut self, salt: usize, adapter: Option<AdapterSlot>) -> usize {
        self.sequences.push(Sequence { salt, len: 0, table: Vec::new(), adapter });
        self.sequences.len() - 1
    }

    /// Loads an adapter into both.
    pub(super) fn load_adapter(&mut self, dir: &Path) -> AdapterSlot {
        let slot = self.machine.load_adapter(dir).unwrap();
        assert_eq!(slot, self.decoder.load_adapter(dir).unwrap());
        slot
    }

    /// Takes an adapter out of both.
    pub(super) fn unload_adapter(&mut self, slot: AdapterSlot) {
        self.machine.unload_adapter(slot).unwrap();
        self.decoder.unload_adapter(slot);
    }

    /// The next tokens of some sequences: which one, how many, and which logits of them.
    pub(super) fn batch(&mut self, rows: &[(usize, usize, Want)]) -> ForwardBatch {
        let mut batch = ForwardBatch::new();
        for &(number, count, want) in rows {
            while self.sequences[number].table.len() * BLOCK < self.sequences[number].len + count {
                let block = self.free.pop().unwrap();
                // A block of a cache that was never written reads as numbers.
                self.stain(block as usize, 0);
                self.sequences[number].table.push(block);
            }
            let vocab = self.machine.config.vocab;
            let Sequence { salt, len, table, adapter } = &mut self.sequences[number];
            let token = |at: usize| ((at * at * 31 + at * 7 + *salt * 101) % vocab) as u32;
            let tokens: Vec<u32> = (*len..*len + count).map(token).collect();
            batch.push(&tokens, *len, table, *adapter, want);
            *len += count;
        }
        batch
    }

    /// What is refused before anything is begun.
    pub(super) fn refusal(&mut self, batch: &ForwardBatch) -> String {
        self.fill(batch, &[]).unwrap_err().to_string()
    }

    /// Runs a step on both, the emulator's as a card's is submitted and collected.
    pub(super) fn step(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> Outcome {
        let step = self.fill(batch, picks).unwrap();
        let machine = &self.machine;
        machine.lay(bytemuck::cast_slice(&self.upload), &step).unwrap();
        machine.run(&step, machine.grid(&step)).unwrap();
        let mut results = vec![0; machine.results().len()];
        machine.driver.download(machine.results(), &mut results).unwrap();
        let chosen: Vec<bool> =
            (0..batch.logit_rows()).map(|row| picks.get(row).is_some_and(Option::is_some)).collect();
        let mut drawn = Vec::new();
        machine.drawn(&results, &chosen, &mut drawn);
        let logits = |row: usize| {
            let mut logits = vec![0.0; machine.config.vocab];
            machine.driver.download(machine.logits(row, 1), &mut logits).unwrap();
            logits
        };
        let found = (0..batch.logit_rows()).map(logits).collect();
        let mut logits = Logits::new();
        self.decoder.forward(batch, &mut self.kv, &mut logits).unwrap();
        let wanted = (0..logits.rows()).map(|row| logits.row(row).to_vec()).collect();
        Outcome { step, found, wanted, drawn }
    }

    /// Fails when anything was written to a block that belongs to nobody.
    pub(super) fn untouched(&self) {
        for block in self.free.iter().map(|&block| block as usize).chain([0]) {
            for layer in 0..self.machine.config.layers {
                let span = self.block(layer, block);
                let mut values = vec![bf16::ZERO; span.len()];
                self.machine.driver.download(span, &mut values).unwrap();
                let whole = values.iter().all(|value| value.to_bits() == POISON);
                assert!(whole, "block {block} of layer {layer} was written to");
            }
        }
    }

    fn fill(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> Result<Step, crate::ModelError> {
        let Self { filler, machine, buckets, upload, .. } = self;
        let bytes = bytemuck::cast_slice_mut(upload);
        filler.fill(batch, picks, |slot| machine.holds(slot), |rows| buckets.fit(rows), bytes)
    }

    /// Writes one value all over a block, in all layers.
    fn stain(&self, block: usize, bits: u16) {
        for layer in 0..self.machine.config.layers {
            let span = self.block(layer, block);
            self.machine.driver.upload(&vec![bf16::from_bits(bits); span.len()], span).unwrap();
        }
    }

    fn block(&self, layer: usize, block: usize) -> Span<bf16> {
        let config = &self.machine.config;
        let len = layout::block_len(config.kv_heads, config.head_dim);
        self.machine.blocks(layer).slice(block * len, len).unwrap()
    }
}
