//! Matrix multiplication by cuBLAS.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublas::result::{self, CublasError};
use cudarc::cublas::sys;
use half::bf16;

use super::context::ContextHandle;
use super::{DeviceRegion, Gpu};
use crate::cuda::CudaError;
use crate::cuda::driver::{DeviceMatrix, MatMul, MatMulOperands, MatMulTarget};
use crate::cuda::plan::{BLAS_BYTES, Placement};

/// cuBLAS on one GPU's stream, with its own workspace: cuBLAS must not allocate while a graph is captured.
pub(crate) struct Blas {
    handle: sys::cublasHandle_t,
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
        let handle = blas("cannot initialize cuBLAS", result::create_handle())?;
        let blas = Self { handle, workspace, hold: gpu.hold() };
        blas.settle(gpu)?;
        Ok(blas)
    }

    fn settle(&self, gpu: &Gpu) -> Result<(), CudaError> {
        let memory = self.workspace.slice::<u8>(Placement::new(0, BLAS_BYTES));
        // SAFETY: the handle lives; its stream and its memory live at least as long.
        unsafe {
            blas("cannot set the stream of cuBLAS", result::set_stream(self.handle, gpu.stream().cu_stream().cast()))?;
            let taken = sys::cublasSetWorkspace_v2(self.handle, memory.address() as *mut c_void, memory.len());
            blas("cannot set the workspace of cuBLAS", taken.result())?;
            // Partial sums stay in f32, so that a row's result depends on its batch by f32 rounding at most.
            let mode = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
            blas("cannot set the math mode of cuBLAS", sys::cublasSetMathMode(self.handle, mode).result())
        }
    }

    /// Enqueues a matrix multiplication.
    pub(crate) fn multiply(&self, product: &MatMul) -> Result<(), CudaError> {
        let MatMul { operands, target, rows, inner, columns, scale } = *product;
        // cuBLAS knows no buffer sizes: a wrong shape would access memory beyond the buffer.
        assert!(product.fits(), "matrix multiplication operands are too small for shape ({rows}, {inner}, {columns})");
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let (left, right) = match operands {
            MatMulOperands::Half(left, right) => (GemmOperand::half(left), GemmOperand::half(right)),
            MatMulOperands::Single(left, right) => (GemmOperand::single(left), GemmOperand::single(right)),
        };
        let (to, beta) = match target {
            MatMulTarget::Half(to) => (GemmOperand::half(to), 0.0f32),
            MatMulTarget::Single(to) => (GemmOperand::single(to), 0.0),
            MatMulTarget::Sum(to) => (GemmOperand::single(to), 1.0),
        };
        let size = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        // SAFETY: sizes were checked. cuBLAS is column-major, so it sees every matrix transposed: its A is the right
        // operand, its B the left one, and its C has `columns` rows.
        blas("cannot multiply matrices", unsafe {
            result::gemm_ex(
                self.handle,
                right.operation,
                left.operation,
                size(columns),
                size(rows),
                size(inner),
                std::ptr::from_ref(&scale).cast(),
                right.address as *const c_void,
                right.kind,
                size(right.stride),
                left.address as *const c_void,
                left.kind,
                size(left.stride),
                std::ptr::from_ref(&beta).cast(),
                to.address as *mut c_void,
                to.kind,
                size(to.stride),
                // Plain f32, not TF32, so that `f32` operands keep their precision.
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        })
    }
}

/// A matrix in the form of cuBLAS arguments.
struct GemmOperand {
    address: u64,
    kind: sys::cudaDataType_t,
    stride: usize,
    operation: sys::cublasOperation_t,
}

impl GemmOperand {
    fn half(matrix: DeviceMatrix<bf16>) -> Self {
        Self::new(&matrix, sys::cudaDataType_t::CUDA_R_16BF)
    }

    fn single(matrix: DeviceMatrix<f32>) -> Self {
        Self::new(&matrix, sys::cudaDataType_t::CUDA_R_32F)
    }

    fn new<T>(matrix: &DeviceMatrix<T>, kind: sys::cudaDataType_t) -> Self {
        let DeviceMatrix { stride, transposed, .. } = *matrix;
        let operation = match transposed {
            true => sys::cublasOperation_t::CUBLAS_OP_T,
            false => sys::cublasOperation_t::CUBLAS_OP_N,
        };
        Self { address: matrix.values.address(), kind, stride, operation }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created by `new`.
        self.hold.free(|| unsafe { result::destroy_handle(self.handle) });
    }
}

fn blas<T>(action: &'static str, result: Result<T, CublasError>) -> Result<T, CudaError> {
    result.map_err(|error| CudaError::Call { action, reason: format!("{:?}", error.0) })
}
