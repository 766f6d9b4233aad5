//! LoRA training on a GPU.

use std::time::Duration;

use crate::cuda::CudaError;
use crate::cuda::device::Gpu;
use crate::cuda::driver::GpuDriver;
use crate::gradient::{Learner, Tune};
use crate::weights::Weights;

/// Time limit for enqueued work: a whole training pass, which has many more tokens than a serving step.
const LIMIT: Duration = Duration::from_secs(600);

impl Learner {
    /// Loads a checkpoint onto GPU `ordinal` and initializes an adapter there: weights in `bf16`, the adapter in `f32`.
    /// `tokens` is the maximum number of tokens of a pass, counted as in
    /// [`PassLimits`](crate::cuda::learner::PassLimits). If it is given, the memory of such a pass is allocated
    /// immediately.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`] when the GPU, the driver or a library is missing; [`CudaError::Call`] when memory is
    /// too small; [`CudaError::Model`] for full fine-tuning, a missing tensor, a shape that no kernel supports, or a
    /// pass that does not fit.
    pub fn load_on_gpu(
        weights: &Weights,
        ordinal: usize,
        tune: &Tune,
        tokens: Option<usize>,
    ) -> Result<Self, CudaError> {
        // Check the configuration before opening the GPU.
        super::check(weights.config(), tune)?;
        let gpu = Gpu::open(ordinal, weights.config().head_dim)?.with_limit(LIMIT);
        super::learner(GpuDriver::new(gpu)?, weights, tune, tokens)
    }
}
