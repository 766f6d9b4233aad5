//! RMS norm.

use half::bf16;

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch, RowIndex};

/// RMS norm: `out = stream / √(mean(stream²) + eps) · weight`, row by row (Zhang and Sennrich 2019, arXiv:1910.07467).
/// The preceding matrix multiplication has already added its result to the stream.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm {
    /// Residual stream of shape (rows of the stream, width).
    pub stream: DeviceSlice<f32>,
    /// Row of the stream that each row of `out` is computed from; an entry of [`NONE`](super::NONE) gives zeros. `None`
    /// maps row i to row i.
    pub index: Option<RowIndex>,
    /// Weight of shape (width).
    pub weight: DeviceSlice<f32>,
    /// Output of shape (rows, width). Written.
    pub out: DeviceSlice<bf16>,
    /// Number of rows in the grid.
    pub rows: u32,
    /// Width of a row, a multiple of 4.
    pub width: u32,
    /// Epsilon, added to the mean square.
    pub eps: f32,
}

impl RmsNorm {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::RmsNorm;
        let rows = self.rows as usize;
        let width = self.width as usize;
        kernel.demand(width.is_multiple_of(4), || format!("width {width} is no multiple of 4"))?;
        if let Some(index) = &self.index {
            kernel.fits("index", &index.rows, rows)?;
        }
        let read = self.index.map_or(rows, |index| index.bound);
        kernel.fits("stream", &self.stream, read * width)?;
        kernel.fits("weight", &self.weight, width)?;
        kernel.fits("out", &self.out, rows * width)?;
        let arguments = LaunchArguments::new()
            .slice(&self.stream)
            .maybe(self.index.as_ref().map(|index| &index.rows))
            .slice(&self.weight)
            .slice(&self.out)
            .int(self.width)
            .float(self.eps);
        // SAFETY: the parameters of `rms_norm`; sizes were checked, and the index keeps its bound by the
        // contract of `DeviceSlice::new`.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.rows, 1, 1], threads: 256, shared: 0 }) }
    }
}
