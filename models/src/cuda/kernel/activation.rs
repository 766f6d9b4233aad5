//! The activation of the feed-forward part.

use half::bf16;

use super::launch::Arguments;
use super::{Geometry, Kernel, KernelError, Launch, Span};

/// Threads in a block; each takes eight values.
const THREADS: u32 = 256;

/// `out = gate · sigmoid(gate) · up` (SwiGLU, Shazeer 2020, arXiv:2002.05202).
#[derive(Debug, Clone, Copy)]
pub struct SiluMul {
    /// Gate, then up, side by side: shape (rows, 2 · width).
    pub gate_up: Span<bf16>,
    /// Shape (rows, width). Written.
    pub out: Span<bf16>,
    /// Rows in the grid.
    pub rows: u32,
    /// Inner width of the feed-forward part, a multiple of 8.
    pub width: u32,
}

impl SiluMul {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::SiluMul;
        let (rows, width) = (self.rows as usize, self.width as usize);
        kernel.demand(width.is_multiple_of(8), || format!("width {width} is no multiple of 8"))?;
        kernel.fits("gate_up", &self.gate_up, 2 * rows * width)?;
        kernel.fits("out", &self.out, rows * width)?;
        let blocks = [(self.width / 8).div_ceil(THREADS), self.rows, 1];
        let arguments = Arguments::new().span(&self.gate_up).span(&self.out).int(self.width);
        // SAFETY: the parameters of `silu_mul`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks, threads: THREADS, shared: 0 }) }
    }
}
