//! Conversion between `f32`, the type of trained adapters, and `bf16`, the type of the base model.

use half::bf16;

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Threads per block; each processes eight values.
const THREADS: u32 = 256;

/// Conversion from `bf16` to `f32`: `to = from` for each value.
#[derive(Debug, Clone, Copy)]
pub struct WidenToF32 {
    /// Source.
    pub from: DeviceSlice<bf16>,
    /// Destination. Written.
    pub to: DeviceSlice<f32>,
    /// Number of values, a multiple of 8.
    pub count: usize,
}

/// Conversion from `f32` to `bf16`: `to = from` for each value, rounded to nearest.
#[derive(Debug, Clone, Copy)]
pub struct NarrowToBf16 {
    /// Source.
    pub from: DeviceSlice<f32>,
    /// Destination. Written.
    pub to: DeviceSlice<bf16>,
    /// Number of values, a multiple of 8.
    pub count: usize,
}

impl WidenToF32 {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        convert(CudaKernel::WidenToF32, &self.from, &self.to, self.count, on)
    }
}

impl NarrowToBf16 {
    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        convert(CudaKernel::NarrowToBf16, &self.from, &self.to, self.count, on)
    }
}

fn convert<A, B>(
    kernel: CudaKernel,
    from: &DeviceSlice<A>,
    to: &DeviceSlice<B>,
    count: usize,
    on: &dyn Launch,
) -> Result<(), KernelError> {
    kernel.demand(count.is_multiple_of(8), || format!("{count} values: expected a multiple of 8"))?;
    kernel.fits("from", from, count)?;
    kernel.fits("to", to, count)?;
    let eights = u32::try_from(count / 8).unwrap_or(u32::MAX);
    kernel.demand(eights < u32::MAX, || format!("{count} values exceed the grid"))?;
    let arguments = LaunchArguments::new().slice(from).slice(to).int(eights);
    let geometry = Geometry { blocks: [eights.div_ceil(THREADS), 1, 1], threads: THREADS, shared: 0 };
    // SAFETY: the parameters of `widen` and of `narrow_all`; sizes were checked.
    unsafe { arguments.launch(on, kernel, geometry) }
}
