//! Memory accounting of the emulated GPU, and the faults of its copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cuda::CudaError;

/// Memory counters of the emulated GPU, in bytes.
#[derive(Debug)]
pub(in crate::cuda) struct EmulatorMemory {
    total: usize,
    held: AtomicUsize,
    /// Number of uploads that succeed before one fails.
    uploads: AtomicUsize,
}

/// An allocated region.
pub(in crate::cuda) struct EmulatorRegion {
    pub(super) address: u64,
    pub(super) bytes: usize,
    store: Arc<EmulatorMemory>,
}

impl EmulatorMemory {
    pub(super) fn new(total: usize) -> Self {
        Self { total, held: AtomicUsize::new(0), uploads: AtomicUsize::new(usize::MAX) }
    }

    /// Returns the number of allocated bytes.
    pub(in crate::cuda) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the number of free bytes.
    pub(super) fn free(&self) -> usize {
        self.total - self.held()
    }

    /// Lets every upload fail after the next `count`.
    pub(in crate::cuda) fn fail_after_uploads(&self, count: usize) {
        self.uploads.store(count, Ordering::Relaxed);
    }

    /// Counts an upload. Returns the error of one that is to fail.
    pub(super) fn count_upload(&self) -> Result<(), CudaError> {
        let left = self.uploads.load(Ordering::Relaxed);
        let failed =
            || CudaError::Call { action: "cannot copy to the device", reason: "a fault of the test".to_owned() };
        let rest = left.checked_sub(1).ok_or_else(failed)?;
        self.uploads.store(rest, Ordering::Relaxed);
        Ok(())
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
