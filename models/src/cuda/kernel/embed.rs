//! Embedding lookup.

use half::bf16;

use super::launch::LaunchArguments;
use super::{BatchView, CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Embedding lookup: `stream[token] = table[id of token]`, and zeros for padding.
#[derive(Debug, Clone, Copy)]
pub struct EmbedTokens {
    /// Batch, of which `tokens` is read.
    pub batch: BatchView,
    /// Embeddings of shape (vocab, width).
    pub table: DeviceSlice<bf16>,
    /// Residual stream of shape (tokens, width). Written.
    pub stream: DeviceSlice<f32>,
    /// Number of tokens in the grid.
    pub count: u32,
    /// Width of the residual stream, a multiple of 8.
    pub width: u32,
    /// Number of rows of the table; an id beyond it gives zeros.
    pub vocab: u32,
}

impl EmbedTokens {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::EmbedTokens;
        kernel.demand(self.width.is_multiple_of(8), || format!("width {} is no multiple of 8", self.width))?;
        let count = self.count as usize;
        let width = self.width as usize;
        kernel.fits("tokens", &self.batch.tokens, count)?;
        kernel.fits("table", &self.table, self.vocab as usize * width)?;
        kernel.fits("stream", &self.stream, count * width)?;
        let arguments = LaunchArguments::new()
            .slice(&self.batch.tokens)
            .slice(&self.table)
            .slice(&self.stream)
            .int(self.width)
            .int(self.vocab);
        // SAFETY: the parameters of `embed`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.count, 1, 1], threads: 128, shared: 0 }) }
    }
}
