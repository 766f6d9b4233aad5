//! Work that was put in line once and can be put there again as one piece.

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use super::{Card, call};
use crate::cuda::CudaError;

/// A recorded line of kernels and copies, with the addresses and sizes they were recorded with.
pub(crate) struct Graph(CudaGraph);

// SAFETY: a graph belongs to the decoder it was recorded for, which one thread uses at a time.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `work` puts in line, without running any of it. Everything must have run once before, since a driver
    /// loads kernels at their first use and refuses that while it records.
    pub(crate) fn record(card: &Card, work: impl FnOnce() -> Result<(), CudaError>) -> Result<Self, CudaError> {
        let stream = card.stream();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call("begin to record a graph", stream.begin_capture(mode))?;
        let recorded = work();
        // Ended in any case, or the stream would record for ever.
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = call("record a graph", stream.end_capture(flags));
        recorded?;
        let nothing = || CudaError::Call { action: "record a graph", reason: "nothing was recorded".to_owned() };
        let graph = graph?.ok_or_else(nothing)?;
        call("prepare a graph", graph.upload())?;
        Ok(Self(graph))
    }

    /// Puts all of it in line.
    pub(crate) fn launch(&self) -> Result<(), CudaError> {
        call("launch a graph", self.0.launch())
    }
}
