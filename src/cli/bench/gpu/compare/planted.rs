//! Backends that say something else where they are told to.

use std::path::Path;

use waymark_models::{AdapterSlot, ForwardBatch, Logits};

use crate::engine::{Backend, BackendError, BackendSpec, MockBackend};

/// A mock with a vocabulary of 100, of which one token is likely and none certain.
pub(super) fn mock(seed: u64) -> MockBackend {
    MockBackend::random(seed, 100).with_confidence(4.0)
}

/// A mock that says what another one would, in rows for which `wrong` holds, given (batch, row, whether steps are replayed).
/// It is asked of batches of which every row wants its last logits.
pub(super) struct Planted<F> {
    right: MockBackend,
    other: MockBackend,
    wrong: F,
    /// Whether steps are replayed.
    pub(super) on: bool,
}

impl<F: Fn(&ForwardBatch, usize, bool) -> bool + Send> Planted<F> {
    pub(super) fn new(wrong: F) -> Self {
        Self { right: mock(1), other: mock(2), wrong, on: true }
    }
}

impl<F: Fn(&ForwardBatch, usize, bool) -> bool + Send> Backend for Planted<F> {
    fn spec(&self) -> &BackendSpec {
        self.right.spec()
    }

    fn forward(&mut self, batch: &ForwardBatch, logits: &mut Logits) -> Result<(), BackendError> {
        // Both have all tokens.
        let mut other = Logits::new();
        self.other.forward(batch, &mut other)?;
        self.right.forward(batch, logits)?;
        for row in (0..logits.rows()).filter(|row| (self.wrong)(batch, *row, self.on)) {
            logits.row_mut(row).copy_from_slice(other.row(row));
        }
        Ok(())
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
