//! Sequences in blocks of their own, computed step by step on one backend.

use waymark_models::{AdapterSlot, BLOCK, ForwardBatch, Logits, Want};

use crate::engine::{Backend, BackendError};

/// Sequences in blocks of their own.
pub(super) struct Bed<'a> {
    backend: &'a mut dyn Backend,
    /// Blocks of one sequence.
    blocks: usize,
    /// The block the first sequence begins at.
    first: usize,
    /// What the sequences have in turn.
    adapters: &'a [Option<AdapterSlot>],
    batch: ForwardBatch,
    pub(super) logits: Logits,
}

impl<'a> Bed<'a> {
    /// For sequences of at most `tokens` tokens, from block `first` on.
    pub(super) fn new(backend: &'a mut dyn Backend, tokens: usize, first: usize) -> Self {
        let (batch, logits) = (ForwardBatch::new(), Logits::new());
        Self { backend, blocks: tokens.div_ceil(BLOCK), first, adapters: &[], batch, logits }
    }

    /// With these adapters, which the sequences have in turn.
    pub(super) fn with(mut self, adapters: &'a [Option<AdapterSlot>]) -> Self {
        self.adapters = adapters;
        self
    }

    /// Computes whole sequences, none of which is there yet, in steps of at most `tokens` tokens.
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
                let (table, adapter) = (self.table(index, end), self.adapter(index));
                self.batch.push(&ids[start..end], start, &table, adapter, Want::Nothing);
                start = end;
            }
        }
        self.backend.forward(&self.batch, &mut self.logits)
    }

    /// The blocks of a sequence's first `tokens` tokens.
    fn table(&self, index: usize, tokens: usize) -> Vec<u32> {
        let first = (self.first + index * self.blocks) as u32;
        (first..).take(tokens.div_ceil(BLOCK)).collect()
    }

    fn adapter(&self, index: usize) -> Option<AdapterSlot> {
        self.adapters.get(index % self.adapters.len().max(1)).copied().flatten()
    }

    /// Computes the last `new` tokens of each of `sequences`, whose others are there already; the logits after each.
    pub(super) fn step(&mut self, sequences: &[Vec<u32>], new: &[usize]) -> Result<(), BackendError> {
        self.batch.clear();
        for (index, (ids, new)) in sequences.iter().zip(new).enumerate() {
            let (table, adapter) = (self.table(index, ids.len()), self.adapter(index));
            let start = ids.len() - new;
            self.batch.push(&ids[start..], start, &table, adapter, Want::Last);
        }
        self.backend.forward(&self.batch, &mut self.logits)
    }
}
