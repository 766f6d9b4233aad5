//! Log-probability and entropy of target tokens, and their gradients.

use half::bf16;

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Threads per block.
const THREADS: u32 = 512;

/// Number of values per row of [`ScoreTargets::scores`].
pub const SCORES: usize = 3;

/// Scores each row of logits: `log softmax(logits)[target]`, the entropy of the distribution, and `ln Σ exp(logits)`. A
/// target of [`NONE`](super::NONE) gives zeros. Logits of NaN or +∞ give NaN; -∞ is allowed.
#[derive(Debug, Clone, Copy)]
pub struct ScoreTargets {
    /// Logits of shape (rows, vocab).
    pub logits: DeviceSlice<f32>,
    /// Target ids of shape (rows).
    pub targets: DeviceSlice<u32>,
    /// Scores of shape (rows, [`SCORES`]). Written.
    pub scores: DeviceSlice<f32>,
    /// Number of rows in the grid.
    pub rows: u32,
    /// Number of logits per row.
    pub vocab: u32,
}

impl ScoreTargets {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::ScoreTargets;
        let rows = self.rows as usize;
        let vocab = self.vocab as usize;
        kernel.fits("logits", &self.logits, rows * vocab)?;
        kernel.fits("targets", &self.targets, rows)?;
        kernel.fits("scores", &self.scores, rows * SCORES)?;
        let arguments =
            LaunchArguments::new().slice(&self.logits).slice(&self.targets).slice(&self.scores).int(self.vocab);
        // SAFETY: the parameters of `score`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.rows, 1, 1], threads: THREADS, shared: 0 }) }
    }
}

/// Gradient of the logits, from the derivatives a and b of a loss with respect to log-probability and entropy H: `a ·
/// (onehot − p) − b · p ∘ (ln p + H)`. A target of [`NONE`](super::NONE) gives zeros.
#[derive(Debug, Clone, Copy)]
pub struct ScoreTargetsBackward {
    /// Logits of shape (rows, vocab).
    pub logits: DeviceSlice<f32>,
    /// Target ids of shape (rows).
    pub targets: DeviceSlice<u32>,
    /// Scores written by [`ScoreTargets`].
    pub scores: DeviceSlice<f32>,
    /// Derivatives of the loss with respect to log-probability and entropy: shape (rows, 2).
    pub slopes: DeviceSlice<f32>,
    /// Gradient of shape (rows, vocab). Written.
    pub gradient: DeviceSlice<bf16>,
    /// Number of rows in the grid.
    pub rows: u32,
    /// Number of logits per row.
    pub vocab: u32,
}

impl ScoreTargetsBackward {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::ScoreTargetsBackward;
        let rows = self.rows as usize;
        let vocab = self.vocab as usize;
        kernel.fits("logits", &self.logits, rows * vocab)?;
        kernel.fits("targets", &self.targets, rows)?;
        kernel.fits("scores", &self.scores, rows * SCORES)?;
        kernel.fits("slopes", &self.slopes, rows * 2)?;
        kernel.fits("gradient", &self.gradient, rows * vocab)?;
        let arguments = LaunchArguments::new()
            .slice(&self.logits)
            .slice(&self.targets)
            .slice(&self.scores)
            .slice(&self.slopes)
            .slice(&self.gradient)
            .int(self.vocab);
        // SAFETY: the parameters of `score_backward`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.rows, 1, 1], threads: THREADS, shared: 0 }) }
    }
}
