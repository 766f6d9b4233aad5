//! Runs sequences step by step on one backend, each in its own KV blocks.

use waymark_engine::{Backend, BackendError};
use waymark_models::{AdapterSlot, BLOCK, ForwardBatch, LogitPositions, Logits};

/// Sequences with their own KV blocks on a backend.
pub(super) struct SequenceHarness<'a> {
    backend: &'a mut dyn Backend,
    /// Number of blocks per sequence.
    blocks: usize,
    /// First block of the first sequence.
    first: usize,
    /// Adapters that the sequences use in turn.
    adapters: &'a [Option<AdapterSlot>],
    batch: ForwardBatch,
    pub(super) logits: Logits,
}

impl<'a> SequenceHarness<'a> {
    /// Creates a harness for sequences of at most `tokens` tokens, in blocks from `first` on.
    pub(super) fn new(backend: &'a mut dyn Backend, tokens: usize, first: usize) -> Self {
        let batch = ForwardBatch::new();
        let logits = Logits::new();
        Self { backend, blocks: tokens.div_ceil(BLOCK), first, adapters: &[], batch, logits }
    }

    /// Sets the adapters that the sequences use in turn.
    pub(super) fn with(mut self, adapters: &'a [Option<AdapterSlot>]) -> Self {
        self.adapters = adapters;
        self
    }

    /// Prefills whole sequences in steps of at most `tokens` tokens.
    pub(super) fn fill(&mut self, sequences: &[Vec<u32>], tokens: usize) -> Result<(), BackendError> {
        self.batch.clear();
        for (index, ids) in sequences.iter().enumerate() {
            let mut start = 0;
            while start < ids.len() {
                if self.batch.tokens().len() == tokens {
                    self.backend.forward(&self.batch, &mut self.logits)?;
                    self.batch.clear();
                }
                let end = ids.len().min(start + tokens - self.batch.tokens().len());
                let table = self.table(index, end);
                let adapter = self.adapter(index);
                self.batch.push(&ids[start..end], start, &table, adapter, LogitPositions::Nothing);
                start = end;
            }
        }
        self.backend.forward(&self.batch, &mut self.logits)
    }

    /// Returns the blocks of a sequence's first `tokens` tokens.
    fn table(&self, index: usize, tokens: usize) -> Vec<u32> {
        let first = (self.first + index * self.blocks) as u32;
        (first..).take(tokens.div_ceil(BLOCK)).collect()
    }

    fn adapter(&self, index: usize) -> Option<AdapterSlot> {
        self.adapters.get(index % self.adapters.len().max(1)).copied().flatten()
    }

    /// Computes the last `new` tokens of each sequence, and stores the logits of its last token. All earlier tokens
    /// must be in the KV blocks already.
    pub(super) fn step(&mut self, sequences: &[Vec<u32>], new: &[usize]) -> Result<(), BackendError> {
        self.batch.clear();
        for (index, (ids, new)) in sequences.iter().zip(new).enumerate() {
            let table = self.table(index, ids.len());
            let adapter = self.adapter(index);
            let start = ids.len() - new;
            self.batch.push(&ids[start..], start, &table, adapter, LogitPositions::Last);
        }
        self.backend.forward(&self.batch, &mut self.logits)
    }
}
