//! CUDA graphs: work captured once and launched as a whole.

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use super::{Gpu, call};
use crate::cuda::CudaError;

/// Captured kernels and copies, with the addresses and sizes of their capture.
pub(crate) struct CapturedGraph(CudaGraph);

// SAFETY: a graph belongs to the decoder it was recorded for, which one thread uses at a time.
unsafe impl Send for CapturedGraph {}

impl CapturedGraph {
    /// Captures the work that `work` enqueues, without running it. All of it must have run once before, since a driver
    /// loads kernels at their first use and refuses that during capture.
    pub(crate) fn capture(gpu: &Gpu, work: impl FnOnce() -> Result<(), CudaError>) -> Result<Self, CudaError> {
        let stream = gpu.stream();
        // Other threads may call the driver during the capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call("cannot begin to capture a graph", stream.begin_capture(mode))?;
        let captured = work();
        // End the capture even if `work` failed: otherwise the stream would stay in capture mode.
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = call("cannot capture a graph", stream.end_capture(flags));
        captured?;
        let nothing = || CudaError::Call { action: "cannot capture a graph", reason: "the graph is empty".to_owned() };
        let graph = graph?.ok_or_else(nothing)?;
        call("cannot upload a graph", graph.upload())?;
        Ok(Self(graph))
    }

    /// Enqueues the whole graph.
    pub(crate) fn launch(&self) -> Result<(), CudaError> {
        call("cannot launch a graph", self.0.launch())
    }
}
