//! Backend with injected errors.

use std::path::Path;

use waymark_engine::{Backend, BackendError, BackendSpec, MockBackend};
use waymark_models::{AdapterSlot, ForwardBatch, Logits};

/// Returns a mock with a vocabulary of 100, in which one token is likely but not certain.
pub(super) fn mock(seed: u64) -> MockBackend {
    MockBackend::random(seed, 100).with_confidence(4.0)
}

/// A mock that returns the logits of a different mock for rows where `wrong` holds, given (batch, row, whether graphs
/// are on). In each batch, either all rows or none must request the logits of their last token.
pub(super) struct FaultyBackend<F> {
    right: MockBackend,
    other: MockBackend,
    wrong: F,
    /// If `true`, graphs are on.
    pub(super) on: bool,
}

impl<F: Fn(&ForwardBatch, usize, bool) -> bool + Send> FaultyBackend<F> {
    pub(super) fn new(wrong: F) -> Self {
        Self { right: mock(1), other: mock(2), wrong, on: true }
    }
}

impl<F: Fn(&ForwardBatch, usize, bool) -> bool + Send> Backend for FaultyBackend<F> {
    fn spec(&self) -> &BackendSpec {
        self.right.spec()
    }

    fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
        // Both mocks must see all tokens.
        let mut other = Logits::new();
        self.other.forward(batch, &mut other)?;
        self.right.forward(batch, logits)?;
        for row in (0..logits.rows()).filter(|row| (self.wrong)(batch, *row, self.on)) {
            logits.row_mut(row).copy_from_slice(other.row(row));
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.other.copy_block(from, to)?;
        self.right.copy_block(from, to)
    }

    fn load_adapter(&mut self, dir: &Path) -> Result<AdapterSlot, BackendError> {
        self.other.load_adapter(dir)?;
        self.right.load_adapter(dir)
    }

    fn unload_adapter(&mut self, slot: AdapterSlot) {
        self.other.unload_adapter(slot);
        self.right.unload_adapter(slot);
    }
}
