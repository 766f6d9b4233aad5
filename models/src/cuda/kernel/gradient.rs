//! Backward kernels of norm, activation and rotation, for training adapters: the base model's own weights get no
//! gradients. Matrix multiplications are differentiated with cuBLAS, the loss with
//! [`ScoreTargets`](super::ScoreTargets) and [`ScoreTargetsBackward`](super::ScoreTargetsBackward), attention with
//! [`AttendBackward`](super::AttendBackward). The caller is [`learner`](crate::cuda::learner).

use half::bf16;

use super::launch::LaunchArguments;
use super::{BatchView, CudaKernel, DeviceSlice, Geometry, KernelError, Launch, RowIndex, layout};

/// Threads per block of the activation; each processes eight values.
const THREADS: u32 = 256;

/// Backward pass of RMS norm: `stream_gradient += ∂norm(stream)ᵀ · gradient`, row by row.
#[derive(Debug, Clone, Copy)]
pub struct RmsNormBackward {
    /// Residual stream at the input of the norm, shape (rows of the stream, width).
    pub stream: DeviceSlice<f32>,
    /// Row of the stream that each row of `gradient` belongs to, without repetitions; entries of [`NONE`](super::NONE)
    /// are skipped. `None` maps row i to row i.
    pub index: Option<RowIndex>,
    /// Weight of the norm, shape (width).
    pub weight: DeviceSlice<f32>,
    /// Gradient of the norm's output, shape (rows, width).
    pub gradient: DeviceSlice<bf16>,
    /// Gradient of the stream, of the stream's shape. Added to.
    pub stream_gradient: DeviceSlice<f32>,
    /// Number of rows in the grid.
    pub rows: u32,
    /// Width of a row, a multiple of 4.
    pub width: u32,
    /// Epsilon as in [`RmsNorm`](super::RmsNorm).
    pub eps: f32,
}

impl RmsNormBackward {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::RmsNormBackward;
        let rows = self.rows as usize;
        let width = self.width as usize;
        kernel.demand(width.is_multiple_of(4), || format!("width {width} is no multiple of 4"))?;
        if let Some(index) = &self.index {
            kernel.fits("index", &index.rows, rows)?;
        }
        let read = self.index.map_or(rows, |index| index.bound);
        kernel.fits("stream", &self.stream, read * width)?;
        kernel.fits("stream_gradient", &self.stream_gradient, read * width)?;
        kernel.fits("weight", &self.weight, width)?;
        kernel.fits("gradient", &self.gradient, rows * width)?;
        let arguments = LaunchArguments::new()
            .slice(&self.stream)
            .maybe(self.index.as_ref().map(|index| &index.rows))
            .slice(&self.weight)
            .slice(&self.gradient)
            .slice(&self.stream_gradient)
            .int(self.width)
            .float(self.eps);
        // SAFETY: the parameters of `rms_norm_backward`; sizes were checked, and the index keeps its bound by the
        // contract of `DeviceSlice::new`.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.rows, 1, 1], threads: 256, shared: 0 }) }
    }
}

/// Gradients of gate and up from the gradient of [`SiluMul`](super::SiluMul)'s output.
#[derive(Debug, Clone, Copy)]
pub struct SiluMulBackward {
    /// Gate and up side by side: shape (rows, 2 · width).
    pub gate_up: DeviceSlice<bf16>,
    /// Gradient of the output, shape (rows, width).
    pub gradient: DeviceSlice<bf16>,
    /// Gradients of gate and up side by side. Written.
    pub gate_up_gradient: DeviceSlice<bf16>,
    /// Number of rows in the grid.
    pub rows: u32,
    /// Inner width of the feed-forward block, a multiple of 8.
    pub width: u32,
}

impl SiluMulBackward {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::SiluMulBackward;
        let rows = self.rows as usize;
        let width = self.width as usize;
        kernel.demand(width.is_multiple_of(8), || format!("width {width} is no multiple of 8"))?;
        kernel.fits("gate_up", &self.gate_up, 2 * rows * width)?;
        kernel.fits("gradient", &self.gradient, rows * width)?;
        kernel.fits("gate_up_gradient", &self.gate_up_gradient, 2 * rows * width)?;
        let blocks = [(self.width / 8).div_ceil(THREADS), self.rows, 1];
        let arguments = LaunchArguments::new()
            .slice(&self.gate_up)
            .slice(&self.gradient)
            .slice(&self.gate_up_gradient)
            .int(self.width);
        // SAFETY: the parameters of `silu_mul_backward`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks, threads: THREADS, shared: 0 }) }
    }
}

/// Backpropagates through [`Rotary`](super::Rotary), in place: from the gradients of queries and keys to those of the
/// projection's outputs. Gradients of values are left unchanged. A token of row [`NONE`](super::NONE) is skipped.
#[derive(Debug, Clone, Copy)]
pub struct RotaryBackward {
    /// Batch, of which `positions` and `rows` are read.
    pub batch: BatchView,
    /// Unmodified outputs of the projection, shape (tokens, (heads + 2 · kv heads) · dim), read only if there are
    /// norms.
    pub raw: DeviceSlice<bf16>,
    /// Bias as in [`Rotary`](super::Rotary).
    pub bias: Option<DeviceSlice<f32>>,
    /// Norms per head as in [`Rotary`](super::Rotary).
    pub head_norms: Option<[DeviceSlice<f32>; 2]>,
    /// Rotary table as in [`Rotary`](super::Rotary).
    pub table: DeviceSlice<f32>,
    /// Gradients, of `raw`'s shape. Modified in place.
    pub gradient: DeviceSlice<bf16>,
    /// Number of tokens in the grid.
    pub count: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key/value heads.
    pub kv_heads: u32,
    /// Width of a head; must be the width that the module was compiled for.
    pub dim: u32,
    /// Epsilon of the norm per head, added to the mean square.
    pub eps: f32,
}

impl RotaryBackward {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = CudaKernel::RotaryBackward;
        let count = self.count as usize;
        let dim = self.dim as usize;
        let width = (self.heads + 2 * self.kv_heads) as usize * dim;
        kernel.demand(layout::HEAD_DIMS.contains(&dim), || format!("no kernel for heads of width {dim}"))?;
        kernel.fits("positions", &self.batch.positions, count)?;
        kernel.fits("rows", &self.batch.rows, count)?;
        kernel.fits("table", &self.table, self.batch.bounds.positions * dim)?;
        kernel.fits("gradient", &self.gradient, count * width)?;
        if let Some(bias) = &self.bias {
            kernel.fits("bias", bias, width)?;
        }
        let norms = self.head_norms.as_ref();
        if let Some(norms) = norms {
            kernel.fits("raw", &self.raw, count * width)?;
            norms.iter().try_for_each(|norm| kernel.fits("head norm", norm, dim))?;
        }
        let arguments = LaunchArguments::new()
            .slice(&self.batch.positions)
            .slice(&self.batch.rows)
            .slice(&self.raw)
            .maybe(self.bias.as_ref())
            .maybe(norms.map(|norms| &norms[0]))
            .maybe(norms.map(|norms| &norms[1]))
            .slice(&self.table)
            .slice(&self.gradient)
            .int(self.heads)
            .int(self.kv_heads)
            .float(self.eps);
        // SAFETY: the parameters of `rotary_backward`; sizes were checked, and positions keep their bound by the contract
        // of `DeviceSlice::new`.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.count, 1, 1], threads: 128, shared: 0 }) }
    }
}
