//! CUDA graphs: work captured once and launched as a whole.

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUstreamCaptureMode};

use super::context::ContextHandle;
use super::{Gpu, call};
use crate::cuda::CudaError;

/// Captured kernels and copies, with the addresses and sizes of their capture.
pub(crate) struct CapturedGraph {
    graph: CUgraph,
    /// Null until the graph is instantiated.
    executable: CUgraphExec,
    hold: Arc<ContextHandle>,
}

// SAFETY: a graph belongs to the decoder it was recorded for, which one thread uses at a time.
unsafe impl Send for CapturedGraph {}

impl CapturedGraph {
    /// Captures the work that `work` enqueues, without running it. All of it must have run once before, since a driver
    /// loads kernels at their first use and refuses that during capture.
    pub(crate) fn capture(gpu: &Gpu, work: impl FnOnce() -> Result<(), CudaError>) -> Result<Self, CudaError> {
        gpu.bind()?;
        // Other threads may call the driver during the capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        call("cannot begin to capture a graph", unsafe { result::stream::begin_capture(gpu.stream(), mode) })?;
        let worked = work();
        // End the capture even if `work` failed: otherwise the stream would stay in capture mode.
        // SAFETY: the stream lives and captures.
        let ended = call("cannot capture a graph", unsafe { result::stream::end_capture(gpu.stream()) });
        let captured = ended.map(|graph| Self { graph, executable: std::ptr::null_mut(), hold: gpu.hold() });
        worked?;
        let mut captured = captured?;
        if captured.graph.is_null() {
            return Err(CudaError::Call { action: "cannot capture a graph", reason: "the graph is empty".to_owned() });
        }
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        // SAFETY: the graph was just captured.
        let executable = unsafe { result::graph::instantiate(captured.graph, flags) };
        captured.executable = call("cannot instantiate a graph", executable)?;
        // SAFETY: graph and stream live.
        call("cannot upload a graph", unsafe { result::graph::upload(captured.executable, gpu.stream()) })?;
        Ok(captured)
    }

    /// Enqueues the whole graph in the stream of `gpu`, which it was captured from.
    pub(crate) fn launch(&self, gpu: &Gpu) -> Result<(), CudaError> {
        gpu.bind()?;
        // SAFETY: graph and stream live.
        call("cannot launch a graph", unsafe { result::graph::launch(self.executable, gpu.stream()) })
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if !self.executable.is_null() {
            // SAFETY: instantiated by `capture`.
            self.hold.free(|| unsafe { result::graph::exec_destroy(self.executable) });
        }
        if !self.graph.is_null() {
            // SAFETY: captured by `capture`.
            self.hold.free(|| unsafe { result::graph::destroy(self.graph) });
        }
    }
}
