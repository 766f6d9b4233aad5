//! Matrix products, by cuBLAS.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublas::result::{self, CublasError};
use cudarc::cublas::sys;
use half::bf16;

use super::hold::Hold;
use super::{Card, Region};
use crate::cuda::CudaError;
use crate::cuda::driver::{Matrix, Operands, Product, Target};
use crate::cuda::plan::{BLAS_BYTES, Place};

/// cuBLAS on one card's stream, with memory of its own: it must not take any while a graph is recorded.
pub(crate) struct Blas {
    handle: sys::cublasHandle_t,
    workspace: Region,
    hold: Arc<Hold>,
}

// SAFETY: a handle may be used by one thread at a time, whichever it is.
unsafe impl Send for Blas {}

impl Blas {
    /// On the stream of `card`.
    pub(crate) fn new(card: &Card) -> Result<Self, CudaError> {
        card.bind()?;
        let workspace = Region::take(card, BLAS_BYTES)?;
        let handle = blas("start cuBLAS", result::create_handle())?;
        let blas = Self { handle, workspace, hold: card.hold() };
        blas.settle(card)?;
        Ok(blas)
    }

    fn settle(&self, card: &Card) -> Result<(), CudaError> {
        let memory = self.workspace.span::<u8>(Place::new(0, BLAS_BYTES));
        // SAFETY: the handle lives; its stream and its memory live at least as long.
        unsafe {
            blas("give cuBLAS its stream", result::set_stream(self.handle, card.stream().cu_stream().cast()))?;
            let taken = sys::cublasSetWorkspace_v2(self.handle, memory.address() as *mut c_void, memory.len());
            blas("give cuBLAS its memory", taken.result())?;
            // Sums of parts stay in f32, so that a row's result depends on its batch by f32's rounding at most.
            let mode = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
            blas("set cuBLAS' precision", sys::cublasSetMathMode(self.handle, mode).result())
        }
    }

    /// A product of matrices.
    pub(crate) fn multiply(&self, product: &Product) -> Result<(), CudaError> {
        let Product { operands, target, rows, inner, columns, scale } = *product;
        assert!(product.fits(), "operands of a product of shape ({rows}, {inner}, {columns})");
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let (left, right) = match operands {
            Operands::Half(left, right) => (Side::half(left), Side::half(right)),
            Operands::Single(left, right) => (Side::single(left), Side::single(right)),
        };
        let (to, beta) = match target {
            Target::Half(to) => (Side::half(to), 0.0f32),
            Target::Single(to) => (Side::single(to), 0.0),
            Target::Sum(to) => (Side::single(to), 1.0),
        };
        let size = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        // SAFETY: sizes were checked. cuBLAS counts by columns, where every matrix is its transpose: so its A is the right
        // side, its B the left, and its C has `columns` rows.
        blas("multiply", unsafe {
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
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        })
    }
}

/// A matrix as cuBLAS takes it.
struct Side {
    address: u64,
    kind: sys::cudaDataType_t,
    stride: usize,
    operation: sys::cublasOperation_t,
}

impl Side {
    fn half(matrix: Matrix<bf16>) -> Self {
        Self::new(&matrix, sys::cudaDataType_t::CUDA_R_16BF)
    }

    fn single(matrix: Matrix<f32>) -> Self {
        Self::new(&matrix, sys::cudaDataType_t::CUDA_R_32F)
    }

    fn new<T>(matrix: &Matrix<T>, kind: sys::cudaDataType_t) -> Self {
        let Matrix { stride, transposed, .. } = *matrix;
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
