//! The stream of a GPU, in which work runs in the order in which it is enqueued.

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::sys::CUstream;

use super::call;
use super::context::ContextHandle;
use crate::cuda::CudaError;

/// A stream that does not wait for the driver's default stream.
pub(super) struct GpuStream {
    stream: CUstream,
    hold: Arc<ContextHandle>,
}

// SAFETY: the driver allows handles of streams on every thread.
unsafe impl Send for GpuStream {}

impl GpuStream {
    pub(super) fn new(hold: &Arc<ContextHandle>) -> Result<Self, CudaError> {
        hold.bind()?;
        let stream = call("cannot create a stream", result::stream::create(StreamKind::NonBlocking))?;
        Ok(Self { stream, hold: Arc::clone(hold) })
    }

    /// Returns the driver's handle.
    pub(super) fn raw(&self) -> CUstream {
        self.stream
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        // SAFETY: created by `new`.
        self.hold.free(|| unsafe { result::stream::destroy(self.stream) });
    }
}
