//! Backwards through the norm, the activation and the rotation, for learning adapters: the base model's own weights get no
//! gradients. Products backwards are cuBLAS's, the loss is [`Score`](super::Score)'s, attention is
//! [`AttendBackward`](super::AttendBackward)'s. What calls them is [`learner`](crate::cuda::learner).

use half::bf16;

use super::launch::Arguments;
use super::{BatchView, Geometry, Kernel, KernelError, Launch, Span, layout};

/// Threads in a block of the activation; each takes eight values.
const THREADS: u32 = 256;

/// `stream_gradient += ∂norm(stream)ᵀ · gradient`, row by row.
#[derive(Debug, Clone, Copy)]
pub struct NormBackward {
    /// The residual stream as the norm saw it, shape (rows of the stream, width).
    pub stream: Span<f32>,
    /// Which row of the stream each row of `gradient` is of, no two of the same; row i of i where there is none. An index of
    /// [`NONE`](super::NONE) is left alone.
    pub index: Option<Span<u32>>,
    /// The norm's weight, shape (width).
    pub weight: Span<f32>,
    /// Gradient of its output, shape (rows, width).
    pub gradient: Span<bf16>,
    /// Gradient of the stream, of its shape. Added to.
    pub stream_gradient: Span<f32>,
    /// Rows in the grid.
    pub rows: u32,
    /// Width of a row, a multiple of 4.
    pub width: u32,
    /// As in [`Norm`](super::Norm).
    pub eps: f32,
}

impl NormBackward {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::NormBackward;
        let (rows, width) = (self.rows as usize, self.width as usize);
        kernel.demand(width.is_multiple_of(4), || format!("width {width} is no multiple of 4"))?;
        match &self.index {
            Some(index) => kernel.fits("index", index, rows)?,
            None => {
                kernel.fits("stream", &self.stream, rows * width)?;
                kernel.fits("stream_gradient", &self.stream_gradient, rows * width)?;
            }
        }
        kernel.fits("weight", &self.weight, width)?;
        kernel.fits("gradient", &self.gradient, rows * width)?;
        let arguments = Arguments::new()
            .span(&self.stream)
            .maybe(self.index.as_ref())
            .span(&self.weight)
            .span(&self.gradient)
            .span(&self.stream_gradient)
            .int(self.width)
            .float(self.eps);
        // SAFETY: the parameters of `rms_norm_backward`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.rows, 1, 1], threads: 256, shared: 0 }) }
    }
}

/// Gradients of gate and up out of that of [`SiluMul`](super::SiluMul)'s output.
#[derive(Debug, Clone, Copy)]
pub struct SiluMulBackward {
    /// Gate, then up, side by side: shape (rows, 2 · width).
    pub gate_up: Span<bf16>,
    /// Gradient of the output, shape (rows, width).
    pub gradient: Span<bf16>,
    /// Gradients of gate and up, side by side. Written.
    pub gate_up_gradient: Span<bf16>,
    /// Rows in the grid.
    pub rows: u32,
    /// Inner width of the feed-forward part, a multiple of 8.
    pub width: u32,
}

impl SiluMulBackward {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::SiluMulBackward;
        let (rows, width) = (self.rows as usize, self.width as usize);
        kernel.demand(width.is_multiple_of(8), || format!("width {width} is no multiple of 8"))?;
        kernel.fits("gate_up", &self.gate_up, 2 * rows * width)?;
        kernel.fits("gradient", &self.gradient, rows * width)?;
        kernel.fits("gate_up_gradient", &self.gate_up_gradient, 2 * rows * width)?;
        let blocks = [(self.width / 8).div_ceil(THREADS), self.rows, 1];
        let arguments =
            Arguments::new().span(&self.gate_up).span(&self.gradient).span(&self.gate_up_gradient).int(self.width);
        // SAFETY: the parameters of `silu_mul_backward`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks, threads: THREADS, shared: 0 }) }
    }
}

/// Gradients of [`Rotary`](super::Rotary)'s queries and keys, turned back in place to those of the projection's outputs.
/// Values' are theirs already. A token of row [`NONE`](super::NONE) is left alone.
#[derive(Debug, Clone, Copy)]
pub struct RotaryBackward {
    /// Its `positions` and `rows`.
    pub batch: BatchView,
    /// The projection's outputs before anything, shape (tokens, (heads + 2 · kv heads) · dim): read where there are norms.
    pub raw: Span<bf16>,
    /// As in [`Rotary`](super::Rotary).
    pub bias: Option<Span<f32>>,
    /// As in [`Rotary`](super::Rotary).
    pub head_norms: Option<[Span<f32>; 2]>,
    /// As in [`Rotary`](super::Rotary).
    pub table: Span<f32>,
    /// Gradients, of `raw`'s shape. Changed.
    pub gradient: Span<bf16>,
    /// Tokens in the grid.
    pub count: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of a head: the one the module was built for.
    pub dim: u32,
    /// Added to the mean square in the norm per head.
    pub eps: f32,
}

impl RotaryBackward {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::RotaryBackward;
        let (count, dim) = (self.count as usize, self.dim as usize);
        let width = (self.heads + 2 * self.kv_heads) as usize * dim;
        kernel.demand(layout::HEAD_DIMS.contains(&dim), || format!("no kernel for heads of width {dim}"))?;
        kernel.fits("positions", &self.batch.positions, count)?;
        kernel.fits("rows", &self.batch.rows, count)?;
        kernel.fits("gradient", &self.gradient, count * width)?;
        if let Some(bias) = &self.bias {
            kernel.fits("bias", bias, width)?;
        }
        let norms = self.head_norms.as_ref();
        if let Some(norms) = norms {
            kernel.fits("raw", &self.raw, count * width)?;
            norms.iter().try_for_each(|norm| kernel.fits("head norm", norm, dim))?;
        }
        let arguments = Arguments::new()
            .span(&self.batch.positions)
            .span(&self.batch.rows)
            .span(&self.raw)
            .maybe(self.bias.as_ref())
            .maybe(norms.map(|norms| &norms[0]))
            .maybe(norms.map(|norms| &norms[1]))
            .span(&self.table)
            .span(&self.gradient)
            .int(self.heads)
            .int(self.kv_heads)
            .float(self.eps);
        // SAFETY: the parameters of `rotary_backward`; sizes were checked, and positions are promised by their span.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.count, 1, 1], threads: 128, shared: 0 }) }
    }
}
