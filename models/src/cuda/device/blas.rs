//! Matrix products, by cuBLAS.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublas::result::{self, CublasError};
use cudarc::cublas::sys;
use half::bf16;

use super::hold::Hold;
use super::{Card, Region};
use crate::cuda::CudaError;
use crate::cuda::kernel::Span;
use crate::cuda::plan::{BLAS_BYTES, Place};

/// cuBLAS on one card's stream, with memory of its own: it must not take any while a graph is recorded.
pub(crate) struct Blas {
    handle: sys::cublasHandle_t,
    workspace: Region,
    hold: Arc<Hold>,
}

// SAFETY: a handle may be used by one thread at a time, whichever it is.
unsafe impl Send for Blas {}

/// What a product is written to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// Replaced, rounded to `bf16`.
    Half(Span<bf16>),
    /// Replaced, in `f32`.
    Single(Span<f32>),
    /// Added to, in `f32`.
    Sum(Span<f32>),
}

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

    /// `y = x · Wᵀ`: x has shape (rows, inn), the matrix (out, inn), y (rows, out), all row after row.
    pub(crate) fn product(
        &self,
        x: Span<bf16>,
        rows: usize,
        (matrix, out, inn): (Span<bf16>, usize, usize),
        y: Target,
    ) -> Result<(), CudaError> {
        let (half, single) = (sys::cudaDataType_t::CUDA_R_16BF, sys::cudaDataType_t::CUDA_R_32F);
        let (address, len, kind, beta) = match y {
            Target::Half(span) => (span.address(), span.len(), half, 0.0f32),
            Target::Single(span) => (span.address(), span.len(), single, 0.0),
            Target::Sum(span) => (span.address(), span.len(), single, 1.0),
        };
        assert!(
            x.len() >= rows * inn && matrix.len() >= out * inn && len >= rows * out,
            "operands of a product of {rows} rows with a matrix of {out} × {inn}"
        );
        if rows == 0 {
            return Ok(());
        }
        let alpha = 1.0f32;
        let size = |size: usize| i32::try_from(size).unwrap_or(i32::MAX);
        // SAFETY: sizes were checked; cuBLAS counts by columns, so its A is the matrix transposed, its B is x, and its C
        // has `out` rows.
        blas("multiply", unsafe {
            result::gemm_ex(
                self.handle,
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                size(out),
                size(rows),
                size(inn),
                std::ptr::from_ref(&alpha).cast(),
                matrix.address() as *const c_void,
                half,
                size(inn),
                x.address() as *const c_void,
                half,
                size(inn),
                std::ptr::from_ref(&beta).cast(),
                address as *mut c_void,
                kind,
                size(out),
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        })
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
