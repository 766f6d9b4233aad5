//! What logits say of given tokens, and the gradient of a loss on that.

use half::bf16;

use super::launch::Arguments;
use super::{Geometry, Kernel, KernelError, Launch, Span};

/// Threads in a block.
const THREADS: u32 = 512;

/// Values per row of [`Score::scores`].
pub const SCORES: usize = 3;

/// Per row of logits: `log softmax(logits)[target]`, the entropy of that distribution, and `ln Σ exp(logits)`. A target of
/// [`NONE`](super::NONE) gives zeros. Logits that are not finite give NaN, except for -∞.
#[derive(Debug, Clone, Copy)]
pub struct Score {
    /// Shape (rows, vocab).
    pub logits: Span<f32>,
    /// Shape (rows).
    pub targets: Span<u32>,
    /// Shape (rows, [`SCORES`]). Written.
    pub scores: Span<f32>,
    /// Rows in the grid.
    pub rows: u32,
    /// Values per row.
    pub vocab: u32,
}

impl Score {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::Score;
        let (rows, vocab) = (self.rows as usize, self.vocab as usize);
        kernel.fits("logits", &self.logits, rows * vocab)?;
        kernel.fits("targets", &self.targets, rows)?;
        kernel.fits("scores", &self.scores, rows * SCORES)?;
        let arguments = Arguments::new().span(&self.logits).span(&self.targets).span(&self.scores).int(self.vocab);
        // SAFETY: the parameters of `score`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.rows, 1, 1], threads: THREADS, shared: 0 }) }
    }
}

/// The gradient of logits out of a loss's slopes along what [`Score`] wrote:
/// `a · (onehot − p) − b · p ∘ (ln p + H)`. A target of [`NONE`](super::NONE) gives zeros.
#[derive(Debug, Clone, Copy)]
pub struct ScoreBackward {
    /// Shape (rows, vocab).
    pub logits: Span<f32>,
    /// Shape (rows).
    pub targets: Span<u32>,
    /// What [`Score`] wrote.
    pub scores: Span<f32>,
    /// Slopes along the log-probability and along the entropy: shape (rows, 2).
    pub slopes: Span<f32>,
    /// Shape (rows, vocab). Written.
    pub gradient: Span<bf16>,
    /// Rows in the grid.
    pub rows: u32,
    /// Values per row.
    pub vocab: u32,
}

impl ScoreBackward {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::ScoreBackward;
        let (rows, vocab) = (self.rows as usize, self.vocab as usize);
        kernel.fits("logits", &self.logits, rows * vocab)?;
        kernel.fits("targets", &self.targets, rows)?;
        kernel.fits("scores", &self.scores, rows * SCORES)?;
        kernel.fits("slopes", &self.slopes, rows * 2)?;
        kernel.fits("gradient", &self.gradient, rows * vocab)?;
        let arguments = Arguments::new()
            .span(&self.logits)
            .span(&self.targets)
            .span(&self.scores)
            .span(&self.slopes)
            .span(&self.gradient)
            .int(self.vocab);
        // SAFETY: the parameters of `score_backward`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.rows, 1, 1], threads: THREADS, shared: 0 }) }
    }
}
