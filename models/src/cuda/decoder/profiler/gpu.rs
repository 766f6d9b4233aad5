//! Profiler on a GPU.

use super::Profiler;
use crate::cuda::CudaError;
use crate::cuda::bucket::Buckets;
use crate::cuda::decoder::{CudaOptions, gpu};
use crate::cuda::driver::GpuDriver;
use crate::cuda::profile::{StepProfile, UniformBatch};
use crate::cuda::source::WeightSource;

/// A decoder on a GPU used to time steps.
pub struct CudaProfiler(Profiler<GpuDriver>);

impl CudaProfiler {
    /// Opens a GPU, allocates its memory and loads the weights. CUDA graphs are not used, whatever the options.
    ///
    /// # Errors
    /// The errors of [`CudaDecoder::load`](crate::cuda::CudaDecoder::load).
    pub fn load(source: WeightSource<'_>, options: &CudaOptions) -> Result<Self, CudaError> {
        let (driver, plan) = gpu::open(source.config(), options)?;
        let multiprocessors = driver.gpu().info().multiprocessors;
        let mut profiler =
            Profiler::load(driver, source, options.weights, options.limits, multiprocessors, plan.blocks)?;
        let groups = profiler.runner.products_by_shape(&Buckets::up_to(options.limits.rows));
        profiler.runner.driver.inner_mut().tune(&groups, options.algorithms.as_ref())?;
        Ok(Self(profiler))
    }

    /// Times a step in which every sequence processes new tokens and samples one. The step is launched kernel by kernel
    /// and timed by the GPU's clock. Returns the fastest of `rounds` rounds, at least one. The KV cache of the
    /// sequences is computed first.
    ///
    /// # Errors
    /// [`CudaError::Model`] when the step exceeds the limits or the KV blocks; other errors come from the driver.
    pub fn profile(&mut self, alike: UniformBatch, rounds: usize) -> Result<StepProfile, CudaError> {
        self.0.profile(alike, rounds)
    }
}

impl std::fmt::Debug for CudaProfiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gpu = self.0.runner.driver.inner().gpu().info();
        f.debug_struct("CudaProfiler").field("gpu", gpu).finish_non_exhaustive()
    }
}
