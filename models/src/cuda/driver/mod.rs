//! Device operations besides kernels: memory, copies, and matrix multiplication. Decoding and training are written
//! against these traits, so tests run both on the kernel emulator.

mod clock;
#[cfg(feature = "cuda")]
mod gpu;

use bytemuck::Pod;
use half::bf16;

pub use clock::DeviceClock;
#[cfg(feature = "cuda")]
pub(crate) use gpu::GpuDriver;

use crate::cuda::CudaError;
use crate::cuda::kernel::{DeviceSlice, Launch, SkinnyMatMul};
use crate::cuda::plan::Placement;

/// A GPU, or the emulator. Operations run in the order in which they are issued.
pub trait Driver: Launch {
    /// Allocated device memory, freed on drop.
    type Region: Send;

    /// Makes this device current for the calling thread.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn bind(&self) -> Result<(), CudaError>;

    /// Returns the number of free bytes.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn free_memory(&self) -> Result<usize, CudaError>;

    /// Allocates uninitialized memory.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn allocate(&self, bytes: usize) -> Result<Self::Region, CudaError>;

    /// Returns the slice of a region at a placement.
    fn slice<T>(&self, region: &Self::Region, place: Placement<T>) -> DeviceSlice<T>;

    /// Sets values to zero.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn clear(&self, to: DeviceSlice<f32>) -> Result<(), CudaError>;

    /// Copies several slices to the device and waits once.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn upload_all<T: Pod>(&self, pieces: &[(&[T], DeviceSlice<T>)]) -> Result<(), CudaError>;

    /// Copies to the device and waits.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn upload<T: Pod>(&self, from: &[T], to: DeviceSlice<T>) -> Result<(), CudaError> {
        self.upload_all(&[(from, to)])
    }

    /// Waits for all enqueued work and copies from the device.
    ///
    /// # Errors
    /// [`CudaError::Call`], also when the enqueued work failed.
    fn download<T: Pod>(&self, from: DeviceSlice<T>, to: &mut [T]) -> Result<(), CudaError>;

    /// Copies within device memory.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn copy<T: Pod>(&self, from: DeviceSlice<T>, to: DeviceSlice<T>) -> Result<(), CudaError>;

    /// Multiplies operands in `bf16` or `f32`, accumulating in `f32`.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn multiply(&self, product: &MatMul) -> Result<(), CudaError>;

    /// Returns `true` if [`multiply_fp8`](Self::multiply_fp8) is to compute a product. Depends on its shape and
    /// on the algorithms found at load.
    fn takes_fp8(&self, product: &MatMul) -> bool;

    /// Multiplies operands in `e4m3`, accumulating in `f32`. Returns `false`, with nothing enqueued, if there is no
    /// algorithm for the product.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn multiply_fp8(&self, product: &MatMul) -> Result<bool, CudaError>;

    /// Multiplies few rows with a weight matrix, by a kernel of this crate.
    ///
    /// # Errors
    /// [`CudaError::Kernel`].
    fn multiply_few(&self, product: &SkinnyMatMul) -> Result<(), CudaError>
    where
        Self: Sized,
    {
        Ok(product.launch(self)?)
    }
}

/// A row-major matrix in device memory.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMatrix<T> {
    /// Values of the matrix.
    pub values: DeviceSlice<T>,
    /// Number of values from one row to the next.
    pub stride: usize,
    /// If `true`, the matrix is the transpose of the stored one.
    pub transposed: bool,
}

/// A matrix in `e4m3` whose stored rows have a scale each.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Matrix {
    /// Values, to be multiplied by the scales.
    pub values: DeviceMatrix<u8>,
    /// Scales of the stored rows, which are columns of a transpose.
    pub scales: DeviceSlice<f32>,
}

/// Both operands of a matrix multiplication.
#[derive(Debug, Clone, Copy)]
pub enum MatMulOperands {
    /// Left and right operand in `bf16`.
    Half(DeviceMatrix<bf16>, DeviceMatrix<bf16>),
    /// Left and right operand in `f32`.
    Single(DeviceMatrix<f32>, DeviceMatrix<f32>),
    /// Left operand in `e4m3`, and the transpose of the right one, with stored rows in the same order of values.
    Fp8(Fp8Matrix, Fp8Matrix),
}

/// Destination of a matrix multiplication.
#[derive(Debug, Clone, Copy)]
pub enum MatMulTarget {
    /// Destination that is overwritten with the product, rounded to `bf16`. Requires operands in `bf16`.
    Half(DeviceMatrix<bf16>),
    /// Destination that is overwritten with the product.
    Single(DeviceMatrix<f32>),
    /// Destination to which the product is added (cuBLAS beta of 1).
    Sum(DeviceMatrix<f32>),
}

/// A matrix multiplication: `target = scale · left · right`, or `+=`.
#[derive(Debug, Clone, Copy)]
pub struct MatMul {
    /// Operands of shapes (rows, inner) and (inner, columns), after transposition.
    pub operands: MatMulOperands,
    /// Destination of shape (rows, columns).
    pub target: MatMulTarget,
    /// Number of rows of the left operand.
    pub rows: usize,
    /// Number of summed terms.
    pub inner: usize,
    /// Number of columns of the right operand.
    pub columns: usize,
    /// Factor applied to the result.
    pub scale: f32,
}

impl<T> DeviceMatrix<T> {
    /// Creates a matrix with rows of `stride` values.
    pub fn new(values: DeviceSlice<T>, stride: usize) -> Self {
        Self { values, stride, transposed: false }
    }

    /// Returns the transpose.
    #[must_use]
    pub fn transpose(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Returns the columns from `first` on.
    #[must_use]
    pub fn from(self, first: usize) -> Self {
        let values = self.values.slice(first, self.values.len().saturating_sub(first));
        Self { values: values.unwrap_or(self.values), ..self }
    }

    /// Returns `true` if the buffer is large enough for this shape, transposition included.
    pub fn holds(&self, rows: usize, columns: usize) -> bool {
        let (rows, columns) = if self.transposed { (columns, rows) } else { (rows, columns) };
        columns <= self.stride && (rows == 0 || (rows - 1) * self.stride + columns <= self.values.len())
    }
}

impl MatMul {
    /// Returns `true` if all buffers are large enough for their shapes.
    pub fn fits(&self) -> bool {
        let Self { rows, inner, columns, .. } = *self;
        let operands = match &self.operands {
            MatMulOperands::Half(left, right) => left.holds(rows, inner) && right.holds(inner, columns),
            MatMulOperands::Single(left, right) => left.holds(rows, inner) && right.holds(inner, columns),
            MatMulOperands::Fp8(left, right) => {
                let values = left.values.holds(rows, inner) && right.values.holds(inner, columns);
                values && left.scales.len() >= rows && right.scales.len() >= columns
            }
        };
        operands
            && match &self.target {
                MatMulTarget::Half(to) => to.holds(rows, columns) && !to.transposed,
                MatMulTarget::Single(to) | MatMulTarget::Sum(to) => to.holds(rows, columns) && !to.transposed,
            }
    }
}
