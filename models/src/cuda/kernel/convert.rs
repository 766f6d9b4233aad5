//! Between `bf16` and `f32`: what adapters are learnt in is `f32`, what the base model reads is `bf16`.

use half::bf16;

use super::launch::Arguments;
use super::{Geometry, Kernel, KernelError, Launch, Span};

/// Threads in a block; each takes eight values.
const THREADS: u32 = 256;

/// `to = from`, value by value.
#[derive(Debug, Clone, Copy)]
pub struct Widen {
    /// Read.
    pub from: Span<bf16>,
    /// Written.
    pub to: Span<f32>,
    /// Values, a multiple of 8.
    pub count: usize,
}

/// `to = from`, rounded to the nearest, value by value.
#[derive(Debug, Clone, Copy)]
pub struct Narrow {
    /// Read.
    pub from: Span<f32>,
    /// Written.
    pub to: Span<bf16>,
    /// Values, a multiple of 8.
    pub count: usize,
}

impl Widen {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        convert(Kernel::Widen, &self.from, &self.to, self.count, on)
    }
}

impl Narrow {
    /// Puts it in line.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        convert(Kernel::Narrow, &self.from, &self.to, self.count, on)
    }
}

fn convert<A, B>(
    kernel: Kernel,
    from: &Span<A>,
    to: &Span<B>,
    count: usize,
    on: &dyn Launch,
) -> Result<(), KernelError> {
    kernel.demand(count.is_multiple_of(8), || format!("{count} values are no multiple of 8"))?;
    kernel.fits("from", from, count)?;
    kernel.fits("to", to, count)?;
    let eights = u32::try_from(count / 8).unwrap_or(u32::MAX);
    kernel.demand(eights < u32::MAX, || format!("{count} values are too many"))?;
    let arguments = Arguments::new().span(from).span(to).int(eights);
    let geometry = Geometry { blocks: [eights.div_ceil(THREADS), 1, 1], threads: THREADS, shared: 0 };
    // SAFETY: the parameters of `widen` and of `narrow_all`; sizes were checked.
    unsafe { arguments.launch(on, kernel, geometry) }
}
