//! Activation of the feed-forward block.

use half::bf16;

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Threads per block; each processes eight values.
const THREADS: u32 = 256;

/// `out = gate · sigmoid(gate) · up` (SwiGLU, Shazeer 2020, arXiv:2002.05202).
#[derive(Debug, Clone, Copy)]
pub struct SiluMul {
    /// Gate and up side by side: shape (rows, 2 · width).
    pub gate_up: DeviceSlice<bf16>,
    /// Output of shape (rows, width). Written.
    pub out: DeviceSlice<bf16>,
    /// Number of rows in the grid.
    pub rows: u32,
    /// Inner width of the feed-forward block, a multiple of 8.
    pub width: u32,
}

impl SiluMul {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::SiluMul;
        let rows = self.rows as usize;
        let width = self.width as usize;
        kernel.demand(width.is_multiple_of(8), || format!("width {width} is no multiple of 8"))?;
        kernel.fits("gate_up", &self.gate_up, 2 * rows * width)?;
        kernel.fits("out", &self.out, rows * width)?;
        let blocks = [(self.width / 8).div_ceil(THREADS), self.rows, 1];
        let arguments = LaunchArguments::new().slice(&self.gate_up).slice(&self.out).int(self.width);
        // SAFETY: the parameters of `silu_mul`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks, threads: THREADS, shared: 0 }) }
    }
}
