//! Matrix multiplication of few rows with weights.

use half::bf16;

use super::launch::LaunchArguments;
use super::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// Maximum number of rows for which [`SkinnyMatMul`] is used with weights in `bf16`: the number of rows of a block,
/// with which each weight is read once.
pub const SKINNY_ROWS: usize = 16;

/// Maximum number of rows for which [`SkinnyMatMul`] is used with weights in `e4m3` where no algorithm multiplies in that
/// format: beyond a block's rows the weights are read again from the L2 cache, which is cheaper than to
/// dequantize them.
pub const SKINNY_FP8_ROWS: usize = 64;

/// Rows and columns of the output per block.
const TILE: usize = 16;

/// Threads per block.
const THREADS: u32 = 512;

/// Number of units of sixteen bytes of weights that each thread keeps in shared memory.
const RING: u32 = 8;

/// Bytes of dynamic shared memory per block, first for weights and then for the warps' sums.
pub(super) const SHARED: u32 = THREADS * RING * 16;
// The kernel asserts the same number, so a change on one side alone does not compile.
const _: () = assert!(THREADS == 512 && SHARED == 65_536);

/// Largest y dimension of a grid.
const GRID: usize = 65_535;

/// Weights of a [`SkinnyMatMul`], of shape (columns, inner); twice as many rows for [`SkinnyTarget::SiluMul`].
#[derive(Debug, Clone, Copy)]
pub enum SkinnyWeights {
    /// Values in `bf16`.
    Half(DeviceSlice<bf16>),
    /// Values in `e4m3`, in the order of [`fp8::byte_of`](super::fp8::byte_of) within a row, and scales of the rows.
    Fp8(DeviceSlice<u8>, DeviceSlice<f32>),
}

/// Destination of a [`SkinnyMatMul`], of shape (rows, columns).
#[derive(Debug, Clone, Copy)]
pub enum SkinnyTarget {
    /// Destination that is overwritten with the product, rounded to `bf16`.
    Half(DeviceSlice<bf16>),
    /// Destination that is overwritten with the product.
    Single(DeviceSlice<f32>),
    /// Destination to which the product is added.
    Sum(DeviceSlice<f32>),
    /// Destination that is overwritten with `gate · sigmoid(gate) · up`, for weights of the gate projection above those
    /// of the up projection. Bitwise equal to [`SiluMul`](super::SiluMul) of the product in [`Half`](Self::Half).
    SiluMul(DeviceSlice<bf16>),
}

/// Product of few rows with a weight matrix, `target = x · Wᵀ`, or `+=`, with sums in `f32`.
///
/// A row's result has the same bits for any number of rows, any other rows, and any target: the order of summation
/// depends on `inner` and the format of the weights alone. [`Driver::multiply`](crate::cuda::driver::Driver::multiply) sums in another order.
#[derive(Debug, Clone, Copy)]
pub struct SkinnyMatMul {
    /// Inputs of shape (rows, inner).
    pub x: DeviceSlice<bf16>,
    /// Weights.
    pub weights: SkinnyWeights,
    /// Destination.
    pub target: SkinnyTarget,
    /// Number of rows.
    pub rows: usize,
    /// Number of summed terms, a multiple of 16.
    pub inner: usize,
    /// Number of columns of the destination.
    pub columns: usize,
}

impl SkinnyMatMul {
    /// Returns the number of rows of the weight matrix.
    pub fn weight_rows(&self) -> usize {
        match self.target {
            SkinnyTarget::SiluMul(_) => 2 * self.columns,
            _ => self.columns,
        }
    }

    fn kernel(&self) -> CudaKernel {
        match (self.weights, self.target) {
            (SkinnyWeights::Half(_), SkinnyTarget::SiluMul(_)) => CudaKernel::SkinnySiluMul,
            (SkinnyWeights::Half(_), _) => CudaKernel::SkinnyMatMul,
            (SkinnyWeights::Fp8(..), SkinnyTarget::SiluMul(_)) => CudaKernel::SkinnySiluMulFp8,
            (SkinnyWeights::Fp8(..), _) => CudaKernel::SkinnyMatMulFp8,
        }
    }

    /// Launches the kernel.
    ///
    /// # Errors
    /// [`KernelError`] when a buffer is too small, or from the driver.
    pub fn launch(&self, on: &dyn Launch) -> Result<(), KernelError> {
        let Self { rows, inner, columns, .. } = *self;
        let kernel = self.kernel();
        kernel.demand(inner.is_multiple_of(16), || format!("{inner} terms: expected a multiple of 16"))?;
        let most = GRID * TILE;
        kernel.demand(columns <= most, || format!("{columns} columns: expected at most {most}"))?;
        kernel.demand(rows <= most && inner <= most, || format!("{rows} rows of {inner}: expected at most {most}"))?;
        kernel.fits("x", &self.x, rows * inner)?;
        let size = rows * columns;
        match &self.target {
            SkinnyTarget::Half(to) | SkinnyTarget::SiluMul(to) => kernel.fits("target", to, size)?,
            SkinnyTarget::Single(to) | SkinnyTarget::Sum(to) => kernel.fits("target", to, size)?,
        }
        let arguments = LaunchArguments::new().slice(&self.x);
        let arguments = match &self.weights {
            SkinnyWeights::Half(weights) => {
                kernel.fits("weights", weights, self.weight_rows() * inner)?;
                arguments.slice(weights)
            }
            SkinnyWeights::Fp8(weights, scales) => {
                kernel.fits("weights", weights, self.weight_rows() * inner)?;
                kernel.fits("scales", scales, self.weight_rows())?;
                arguments.slice(weights).slice(scales)
            }
        };
        let arguments = match &self.target {
            SkinnyTarget::Half(to) => arguments.slice(to).int(0),
            SkinnyTarget::Single(to) => arguments.slice(to).int(1),
            SkinnyTarget::Sum(to) => arguments.slice(to).int(2),
            SkinnyTarget::SiluMul(to) => arguments.slice(to),
        };
        let arguments = arguments.int(rows as u32).int(inner as u32).int(columns as u32);
        // Blocks of the same columns are neighbors, so all but one find the weights in the L2 cache.
        let blocks = [rows.div_ceil(TILE) as u32, columns.div_ceil(TILE) as u32, 1];
        // SAFETY: the parameters of the kernel; sizes were checked.
        unsafe { arguments.launch(on, kernel, Geometry { blocks, threads: THREADS, shared: SHARED }) }
    }
}
