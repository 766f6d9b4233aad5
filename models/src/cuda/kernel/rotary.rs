//! What happens to queries, keys and values between their projection and attention.

use half::bf16;

use super::launch::Arguments;
use super::{BatchView, Geometry, Kernel, KernelError, Launch, Span, layout};

/// Bias, norm per head and rotation of queries and keys, in `f32`; then queries go back to where they were and keys and
/// values into the cache's blocks. A head's halves are rotated against each other, as in
/// [`Rope`](crate::kernel::rope::Rope).
///
/// A token of row [`NONE`](super::NONE) writes nothing.
#[derive(Debug, Clone, Copy)]
pub struct Rotary {
    /// Its `positions`, `rows` and `tables`.
    pub batch: BatchView,
    /// Queries, keys and values side by side, shape (tokens, (heads + 2 · kv heads) · dim). The queries are changed.
    pub qkv: Span<bf16>,
    /// Added first (Qwen2), shape ((heads + 2 · kv heads) · dim).
    pub bias: Option<Span<f32>>,
    /// Weights of the RMS norm per head of queries and of keys (Qwen3), each of shape (dim).
    pub head_norms: Option<[Span<f32>; 2]>,
    /// Per position `dim / 2` cosines, then as many sines: [`Rope`](crate::kernel::rope::Rope)'s table.
    pub table: Span<f32>,
    /// This layer's blocks, as [`layout`] says. Written.
    pub cache: Span<bf16>,
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

impl Rotary {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::Rotary;
        let (count, dim) = (self.count as usize, self.dim as usize);
        let width = (self.heads + 2 * self.kv_heads) as usize * dim;
        kernel.demand(layout::HEAD_DIMS.contains(&dim), || format!("no kernel for heads of width {dim}"))?;
        kernel.fits("positions", &self.batch.positions, count)?;
        kernel.fits("rows", &self.batch.rows, count)?;
        kernel.fits("qkv", &self.qkv, count * width)?;
        if let Some(bias) = &self.bias {
            kernel.fits("bias", bias, width)?;
        }
        for norm in self.head_norms.iter().flatten() {
            kernel.fits("head norm", norm, dim)?;
        }
        let norms = self.head_norms.as_ref();
        let arguments = Arguments::new()
            .span(&self.batch.positions)
            .span(&self.batch.rows)
            .span(&self.batch.tables)
            .int(self.batch.stride)
            .span(&self.qkv)
            .maybe(self.bias.as_ref())
            .maybe(norms.map(|norms| &norms[0]))
            .maybe(norms.map(|norms| &norms[1]))
            .span(&self.table)
            .span(&self.cache)
            .int(self.heads)
            .int(self.kv_heads)
            .float(self.eps);
        // SAFETY: the parameters of `rotary`; sizes were checked, and what indices name is promised by their spans.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.count, 1, 1], threads: 128, shared: 0 }) }
    }
}
