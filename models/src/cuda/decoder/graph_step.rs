//! A step in the form that the graph cache captures and replays.

use super::runner::StepRunner;
use crate::cuda::CudaError;
use crate::cuda::device::CapturedGraph;
use crate::cuda::driver::GpuDriver;
use crate::cuda::graphs::GraphStep;
use crate::cuda::lora_grid::LoraGrid;
use crate::cuda::step_layout::StepShape;

/// A step with its grids, ready to be launched.
pub(super) struct LaunchableStep<'a> {
    pub(super) runner: &'a StepRunner<GpuDriver>,
    pub(super) step: StepShape,
    pub(super) lora: Option<LoraGrid>,
}

impl GraphStep for LaunchableStep<'_> {
    type Graph = CapturedGraph;
    type Error = CudaError;

    fn launch(&self) -> Result<(), CudaError> {
        self.runner.run(&self.step, self.lora)
    }

    fn capture(&self) -> Result<CapturedGraph, CudaError> {
        CapturedGraph::capture(self.runner.driver.gpu(), || self.launch())
    }

    fn replay(&self, graph: &CapturedGraph) -> Result<(), CudaError> {
        graph.launch(self.runner.driver.gpu())
    }

    fn settle(&self) -> Result<(), CudaError> {
        self.runner.driver.gpu().synchronize()
    }
}
