//! Matrix multiplication by cuBLAS.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Once};

use half::bf16;

use super::context::ContextHandle;
use super::cublas::{self, Cublas};
use super::cublas_lt::LtHandle;
use super::tuning::ChosenAlgorithms;
use super::{DeviceRegion, Gpu};
use crate::cuda::CudaError;
use crate::cuda::algorithms::{Algorithm, MatMulShape};
use crate::cuda::driver::{DeviceMatrix, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::plan::{BLAS_BYTES, Placement};

/// cuBLAS on one GPU's stream, with its own workspace: cuBLAS must not allocate while a graph is captured.
pub(crate) struct Blas {
    // Fields drop in order: the handle before the workspace that it uses.
    /// Algorithms of products with weights. `None` takes the default of cuBLAS for all.
    pub(super) chosen: Option<ChosenAlgorithms>,
    cublas: &'static Cublas,
    handle: cublas::Handle,
    workspace: DeviceRegion,
    hold: Arc<ContextHandle>,
}

// SAFETY: a handle may be used by any thread, but by one at a time.
unsafe impl Send for Blas {}

impl Blas {
    /// Creates a handle on the stream of `gpu`.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        gpu.bind()?;
        let workspace = DeviceRegion::allocate(gpu, BLAS_BYTES)?;
        let cublas = Cublas::get()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the handle.
        cublas.check("cannot initialize cuBLAS", unsafe { (cublas.create)(&mut handle) })?;
        let blas = Self { chosen: None, cublas, handle, workspace, hold: gpu.hold() };
        blas.settle(gpu)?;
        static LOGGED: Once = Once::new();
        LOGGED.call_once(|| tracing::info!(version = cublas.version(handle), "cuBLAS is in use"));
        Ok(blas)
    }

    fn settle(&self, gpu: &Gpu) -> Result<(), CudaError> {
        let memory = self.workspace.slice::<u8>(Placement::new(0, BLAS_BYTES));
        let Self { cublas, handle, .. } = *self;
        let address = memory.address() as *mut c_void;
        // SAFETY: the handle lives; its stream lives at least as long.
        cublas.check("cannot set the stream of cuBLAS", unsafe { (cublas.set_stream)(handle, gpu.stream().cast()) })?;
        // SAFETY: the handle lives; its memory lives at least as long.
        let taken = unsafe { (cublas.set_workspace)(handle, address, memory.len()) };
        cublas.check("cannot set the workspace of cuBLAS", taken)?;
        // Partial sums stay in f32, so a row's result depends on its batch by f32 rounding at most.
        let mode = cublas::DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: the handle lives.
        cublas.check("cannot set the math mode of cuBLAS", unsafe { (cublas.set_math_mode)(handle, mode) })
    }

    /// Creates a handle of cublasLt on the same stream and workspace, which products use one after the other.
    pub(super) fn lt(&self, gpu: &Gpu) -> Result<LtHandle, CudaError> {
        LtHandle::new(gpu, self.workspace.slice(Placement::new(0, BLAS_BYTES)))
    }

    /// Enqueues a matrix multiplication.
    pub(crate) fn multiply(&self, product: &MatMul) -> Result<(), CudaError> {
        assert_fits(product);
        if product.rows == 0 || product.columns == 0 {
            return Ok(());
        }
        if let Some((lt, algorithm)) = self.chosen(product)
            && lt.multiply(product, &algorithm)?
        {
            return Ok(());
        }
        self.multiply_by_default(product)
    }

    /// Returns `true` if an algorithm was chosen for a product in `e4m3`.
    pub(crate) fn takes_fp8(&self, product: &MatMul) -> bool {
        self.chosen(product).is_some()
    }

    /// Enqueues a matrix multiplication in `e4m3`. Returns `false`, with nothing enqueued, if no algorithm was chosen for
    /// it, or if the one chosen for the next larger number of rows cannot compute it.
    pub(crate) fn multiply_fp8(&self, product: &MatMul) -> Result<bool, CudaError> {
        assert_fits(product);
        self.chosen(product).map_or(Ok(false), |(lt, algorithm)| lt.multiply(product, &algorithm))
    }

    /// Returns the algorithm that was chosen for a product.
    fn chosen(&self, product: &MatMul) -> Option<(&LtHandle, Algorithm)> {
        let ChosenAlgorithms { lt, table } = self.chosen.as_ref()?;
        Some((lt, table.find(&MatMulShape::of(product)?)?))
    }

    /// Enqueues a matrix multiplication whose buffers were checked, by the default algorithm of cuBLAS.
    pub(super) fn multiply_by_default(&self, product: &MatMul) -> Result<(), CudaError> {
        let MatMul { operands, target, rows, inner, columns, scale } = *product;
        let (left, right) = match operands {
            MatMulOperands::Half(left, right) => (GemmOperand::half(left), GemmOperand::half(right)),
            MatMulOperands::Single(left, right) => (GemmOperand::single(left), GemmOperand::single(right)),
            MatMulOperands::Fp8(..) => {
                let reason = "cuBLAS has no default algorithm for operands in fp8".to_owned();
                return Err(CudaError::Call { action: "cannot multiply matrices", reason });
            }
        };
        let (to, beta) = match target {
            MatMulTarget::Half(to) => (GemmOperand::half(to), 0.0f32),
            MatMulTarget::Single(to) => (GemmOperand::single(to), 0.0),
            MatMulTarget::Sum(to) => (GemmOperand::single(to), 1.0),
        };
        let [m, n, k] = [size(columns)?, size(rows)?, size(inner)?];
        let [lda, ldb, ldc] = [size(right.stride)?, size(left.stride)?, size(to.stride)?];
        // SAFETY: sizes were checked. cuBLAS is column-major, so it sees every matrix transposed: its A is the right
        // operand, its B the left one, and its C has `columns` rows.
        let status = unsafe {
            (self.cublas.gemm_ex)(
                self.handle,
                right.operation,
                left.operation,
                m,
                n,
                k,
                std::ptr::from_ref(&scale).cast(),
                right.address as *const c_void,
                right.kind,
                lda,
                left.address as *const c_void,
                left.kind,
                ldb,
                std::ptr::from_ref(&beta).cast(),
                to.address as *mut c_void,
                to.kind,
                ldc,
                // Plain f32, not TF32, so `f32` operands keep their precision.
                cublas::COMPUTE_32F,
                cublas::GEMM_DEFAULT,
            )
        };
        self.cublas.check("cannot multiply matrices", status)
    }
}

/// Panics if the operands of a product are smaller than its shape. cuBLAS knows no buffer sizes: a wrong shape would access
/// memory beyond the buffer.
fn assert_fits(product: &MatMul) {
    let MatMul { rows, inner, columns, .. } = *product;
    assert!(product.fits(), "matrix multiplication operands are too small for shape ({rows}, {inner}, {columns})");
}

/// Converts a size for cuBLAS.
pub(super) fn size(size: usize) -> Result<c_int, CudaError> {
    c_int::try_from(size).map_err(|_| CudaError::Call {
        action: "cannot multiply matrices",
        reason: format!("a side of {size} exceeds the limit of cuBLAS, {}", c_int::MAX),
    })
}

/// A matrix in the form of cuBLAS arguments.
struct GemmOperand {
    address: u64,
    kind: c_int,
    stride: usize,
    operation: c_int,
}

impl GemmOperand {
    fn half(matrix: DeviceMatrix<bf16>) -> Self {
        Self::new(&matrix, cublas::R_16BF)
    }

    fn single(matrix: DeviceMatrix<f32>) -> Self {
        Self::new(&matrix, cublas::R_32F)
    }

    fn new<T>(matrix: &DeviceMatrix<T>, kind: c_int) -> Self {
        let DeviceMatrix { stride, transposed, .. } = *matrix;
        let operation = match transposed {
            true => cublas::OP_T,
            false => cublas::OP_N,
        };
        Self { address: matrix.values.address(), kind, stride, operation }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created by `new`.
        self.hold.free(|| unsafe { (self.cublas.destroy)(self.handle) });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    #[test]
    fn a_side_that_cublas_cannot_take_is_an_error() {
        assert_eq!(super::size(i32::MAX as usize).unwrap(), i32::MAX);
        let error = super::size(1 << 31).unwrap_err().to_string();
        assert!(error.contains("a side of 2147483648 exceeds"), "{error}");
    }
}
