//! Memory accounting of the emulated GPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cuda::CudaError;

/// Memory counters of the emulated GPU, in bytes.
#[derive(Debug)]
pub(in crate::cuda) struct EmulatorMemory {
    total: usize,
    held: AtomicUsize,
}

/// An allocated region.
pub(in crate::cuda) struct EmulatorRegion {
    pub(super) address: u64,
    pub(super) bytes: usize,
    store: Arc<EmulatorMemory>,
}

impl EmulatorMemory {
    pub(super) fn new(total: usize) -> Self {
        Self { total, held: AtomicUsize::new(0) }
    }

    /// Returns the number of allocated bytes.
    pub(in crate::cuda) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the number of free bytes.
    pub(super) fn free(&self) -> usize {
        self.total - self.held()
    }

    /// Records `bytes` bytes at `address` as allocated.
    pub(super) fn take(self: &Arc<Self>, address: u64, bytes: usize) -> EmulatorRegion {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        EmulatorRegion { address, bytes, store: Arc::clone(self) }
    }

    /// Returns an out-of-memory error if `bytes` exceed the free memory.
    pub(super) fn afford(&self, bytes: usize) -> Result<(), CudaError> {
        let reason = || format!("out of memory: {bytes} bytes requested, {} free", self.free());
        let refused = || CudaError::Call { action: "cannot allocate device memory", reason: reason() };
        if bytes > self.free() { Err(refused()) } else { Ok(()) }
    }
}

impl Drop for EmulatorRegion {
    fn drop(&mut self) {
        self.store.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
