//! Log-probabilities of given tokens, and the gradient of a loss on them.

use half::bf16;

use super::launch::Arguments;
use super::{Geometry, Kernel, KernelError, Launch, Span};

/// `logprobs[row] = log softmax(logits[row])[target]`, and where `gradient` is given
/// `gradient[row] = weight[row] · (softmax(logits[row]) − onehot(target))`: the derivative of the weighted negative
/// log-likelihood. A target of [`NONE`](super::NONE) gives a log-probability of 0 and a gradient of zeros. Logits that are
/// not finite give NaN.
#[derive(Debug, Clone, Copy)]
pub struct Score {
    /// Shape (rows, vocab).
    pub logits: Span<f32>,
    /// Shape (rows).
    pub targets: Span<u32>,
    /// Shape (rows). Written.
    pub logprobs: Span<f32>,
    /// Weights, shape (rows), and gradient, shape (rows, vocab), which is written.
    pub gradient: Option<(Span<f32>, Span<bf16>)>,
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
        kernel.fits("logprobs", &self.logprobs, rows)?;
        if let Some((weights, gradient)) = &self.gradient {
            kernel.fits("weights", weights, rows)?;
            kernel.fits("gradient", gradient, rows * vocab)?;
        }
        let arguments = Arguments::new()
            .span(&self.logits)
            .span(&self.targets)
            .span(&self.logprobs)
            .maybe(self.gradient.as_ref().map(|(weights, _)| weights))
            .maybe(self.gradient.as_ref().map(|(_, gradient)| gradient))
            .int(self.vocab);
        // SAFETY: the parameters of `score`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.rows, 1, 1], threads: 512, shared: 0 }) }
    }
}
