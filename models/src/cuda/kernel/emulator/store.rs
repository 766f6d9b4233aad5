//! How much memory the emulated card has, and what of it is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cuda::CudaError;

/// A card's memory, in bytes.
#[derive(Debug)]
pub(in crate::cuda) struct Store {
    total: usize,
    held: AtomicUsize,
}

/// A piece of memory that was taken.
pub(in crate::cuda) struct Region {
    pub(super) address: u64,
    pub(super) bytes: usize,
    store: Arc<Store>,
}

impl Store {
    pub(super) fn new(total: usize) -> Self {
        Self { total, held: AtomicUsize::new(0) }
    }

    /// Bytes that were taken and not given back.
    pub(in crate::cuda) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that can be taken.
    pub(super) fn free(&self) -> usize {
        self.total - self.held()
    }

    /// Counts `bytes` bytes at `address` as taken.
    pub(super) fn take(self: &Arc<Self>, address: u64, bytes: usize) -> Region {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Region { address, bytes, store: Arc::clone(self) }
    }

    /// Refuses what a card refuses that has no more memory.
    pub(super) fn afford(&self, bytes: usize) -> Result<(), CudaError> {
        let reason = || format!("out of memory: {bytes} bytes, {} are free", self.free());
        let refused = || CudaError::Call { action: "take memory of the card", reason: reason() };
        if bytes > self.free() { Err(refused()) } else { Ok(()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.store.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
