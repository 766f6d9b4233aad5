//! Functions and constants of cuBLAS.

use std::ffi::{c_char, c_int, c_void};

use super::shared_library::{library_functions, text};
use crate::cuda::CudaError;

/// `cublasHandle_t`.
pub(super) type Handle = *mut c_void;

/// `cublasOperation_t`.
pub(super) const OP_N: c_int = 0;
pub(super) const OP_T: c_int = 1;
/// `cudaDataType_t`.
pub(super) const R_32F: c_int = 0;
pub(super) const R_16BF: c_int = 14;
pub(super) const R_8F_E4M3: c_int = 28;
/// `cublasComputeType_t`.
pub(super) const COMPUTE_32F: c_int = 68;
/// `cublasGemmAlgo_t`.
pub(super) const GEMM_DEFAULT: c_int = -1;
/// `cublasMath_t`.
pub(super) const DISALLOW_REDUCED_PRECISION_REDUCTION: c_int = 16;

library_functions! {
    /// cuBLAS.
    Cublas from "cublas";
    create = c"cublasCreate_v2": fn(*mut Handle) -> c_int;
    destroy = c"cublasDestroy_v2": fn(Handle) -> c_int;
    set_stream = c"cublasSetStream_v2": fn(Handle, *mut c_void) -> c_int;
    set_workspace = c"cublasSetWorkspace_v2": fn(Handle, *mut c_void, usize) -> c_int;
    set_math_mode = c"cublasSetMathMode": fn(Handle, c_int) -> c_int;
    get_version = c"cublasGetVersion_v2": fn(Handle, *mut c_int) -> c_int;
    status_string = c"cublasGetStatusString": fn(c_int) -> *const c_char;
    gemm_ex = c"cublasGemmEx": fn(
        Handle, c_int, c_int, c_int, c_int, c_int, *const c_void, *const c_void, c_int, c_int, *const c_void, c_int,
        c_int, *const c_void, *mut c_void, c_int, c_int, c_int, c_int,
    ) -> c_int;
}

impl Cublas {
    fn log(&self) {
        let path = self.library.path(Some(self.gemm_ex as *const c_void));
        tracing::info!(path = %path.display(), "loaded cuBLAS");
    }

    /// Attaches the attempted action and the text of a status.
    pub(super) fn check(&self, action: &'static str, status: c_int) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: returns a static string for any number.
        let about = text(unsafe { (self.status_string)(status) });
        Err(CudaError::Call { action, reason: format!("cuBLAS status {status} ({about})") })
    }

    /// Returns the version, such as `12.4.5`.
    pub(super) fn version(&self, handle: Handle) -> String {
        let mut version = 0;
        // SAFETY: writes one number.
        match unsafe { (self.get_version)(handle, &mut version) } {
            0 => format_version(version),
            _ => "unknown".to_owned(),
        }
    }
}

/// Formats a version of cuBLAS.
pub(super) fn format_version(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_are_formatted() {
        assert_eq!(super::format_version(120_405), "12.4.5");
        assert_eq!(super::format_version(130_002), "13.0.2");
    }
}
