//! One step as something that can be recorded.

use super::machine::Machine;
use crate::cuda::CudaError;
use crate::cuda::device::Graph;
use crate::cuda::driver::OnCard;
use crate::cuda::graphs::Line;
use crate::cuda::image::Step;
use crate::cuda::reach::Grid;

/// One step of one machine.
pub(super) struct Pass<'a> {
    pub(super) machine: &'a Machine<OnCard>,
    pub(super) step: Step,
    pub(super) lora: Option<Grid>,
}

impl Line for Pass<'_> {
    type Graph = Graph;
    type Error = CudaError;

    fn launch(&self) -> Result<(), CudaError> {
        self.machine.run(&self.step, self.lora)
    }

    fn record(&self) -> Result<Graph, CudaError> {
        Graph::record(self.machine.driver.card(), || self.launch())
    }

    fn replay(&self, graph: &Graph) -> Result<(), CudaError> {
        graph.launch()
    }

    fn settle(&self) -> Result<(), CudaError> {
        self.machine.driver.card().synchronize()
    }
}
