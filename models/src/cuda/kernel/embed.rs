//! Embedding lookup.

use half::bf16;

use super::launch::Arguments;
use super::{BatchView, Geometry, Kernel, KernelError, Launch, Span};

/// `stream[token] = table[id of token]`; zeros for padding.
#[derive(Debug, Clone, Copy)]
pub struct Embed {
    /// Its `tokens`.
    pub batch: BatchView,
    /// Embeddings, shape (vocab, width).
    pub table: Span<bf16>,
    /// The residual stream, shape (tokens, width). Written.
    pub stream: Span<f32>,
    /// Tokens in the grid.
    pub count: u32,
    /// Width of the stream, a multiple of 8.
    pub width: u32,
    /// Rows of the table; an id beyond it gives zeros.
    pub vocab: u32,
}

impl Embed {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::Embed;
        kernel.demand(self.width.is_multiple_of(8), || format!("width {} is no multiple of 8", self.width))?;
        let (count, width) = (self.count as usize, self.width as usize);
        kernel.fits("tokens", &self.batch.tokens, count)?;
        kernel.fits("table", &self.table, self.vocab as usize * width)?;
        kernel.fits("stream", &self.stream, count * width)?;
        let arguments = Arguments::new()
            .span(&self.batch.tokens)
            .span(&self.table)
            .span(&self.stream)
            .int(self.width)
            .int(self.vocab);
        // SAFETY: the parameters of `embed`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.count, 1, 1], threads: 128, shared: 0 }) }
    }
}
