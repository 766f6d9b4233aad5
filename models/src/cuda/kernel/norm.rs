//! RMS norm.

use half::bf16;

use super::launch::Arguments;
use super::{Geometry, Kernel, KernelError, Launch, Span};

/// `out = stream / √(mean(stream²) + eps) · weight`, row by row (Zhang and Sennrich 2019, arXiv:1910.07467). What a layer
/// adds to the stream, the product before has added already.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    /// The residual stream, shape (rows of the stream, width).
    pub stream: Span<f32>,
    /// Which row of the stream each row of `out` is made of; row i of i where there is none. An index of
    /// [`NONE`](super::NONE) gives zeros.
    pub index: Option<Span<u32>>,
    /// Shape (width).
    pub weight: Span<f32>,
    /// Shape (rows, width). Written.
    pub out: Span<bf16>,
    /// Rows in the grid.
    pub rows: u32,
    /// Width of a row, a multiple of 4.
    pub width: u32,
    /// Added to the mean square.
    pub eps: f32,
}

impl Norm {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let kernel = Kernel::Norm;
        let (rows, width) = (self.rows as usize, self.width as usize);
        kernel.demand(width.is_multiple_of(4), || format!("width {width} is no multiple of 4"))?;
        match &self.index {
            Some(index) => kernel.fits("index", index, rows)?,
            None => kernel.fits("stream", &self.stream, rows * width)?,
        }
        kernel.fits("weight", &self.weight, width)?;
        kernel.fits("out", &self.out, rows * width)?;
        let arguments = Arguments::new()
            .span(&self.stream)
            .maybe(self.index.as_ref())
            .span(&self.weight)
            .span(&self.out)
            .int(self.width)
            .float(self.eps);
        // SAFETY: the parameters of `rms_norm`; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks: [self.rows, 1, 1], threads: 256, shared: 0 }) }
    }
}
