//! Rounding of activations to `e4m3`.

use half::bf16;

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Threads per block, which rounds one row.
const THREADS: u32 = 512;

/// Conversion of activations from `bf16` to `e4m3`, with the scales and the order of values that
/// [`fp8::quantize_row`](super::fp8::quantize_row) gives to weights. A row with a value that is not finite gets NaN as its
/// scale, so all products with it are NaN.
#[derive(Debug, Clone, Copy)]
pub struct QuantizeFp8 {
    /// Activations of shape (rows, inner).
    pub x: DeviceSlice<bf16>,
    /// Output of shape (rows, inner). Written.
    pub values: DeviceSlice<u8>,
    /// Scales of the rows. Written.
    pub scales: DeviceSlice<f32>,
    /// Number of rows in the grid.
    pub rows: usize,
    /// Number of values of a row, a multiple of 16.
    pub inner: usize,
}

impl QuantizeFp8 {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let Self { x, values, scales, rows, inner } = self;
        let kernel = CudaKernel::QuantizeFp8;
        kernel.demand(inner.is_multiple_of(16), || format!("rows of {inner}: expected a multiple of 16"))?;
        let most = i32::MAX as usize;
        kernel
            .demand(*rows <= most && *inner <= most, || format!("{rows} rows of {inner}: expected at most {most}"))?;
        kernel.fits("x", x, rows * inner)?;
        kernel.fits("values", values, rows * inner)?;
        kernel.fits("scales", scales, *rows)?;
        let arguments = LaunchArguments::new().slice(x).slice(values).slice(scales).int(*inner as u32);
        let geometry = Geometry { blocks: [*rows as u32, 1, 1], threads: THREADS, shared: 0 };
        // SAFETY: the parameters of `quantize_fp8`; sizes were checked.
        unsafe { arguments.launch(on, kernel, geometry) }
    }
}
