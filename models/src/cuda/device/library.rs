//! The driver and its libraries, looked for before they are used.
//!
//! They are loaded at run time, and the crate that binds them panics where one is missing or lacks a function. So each is
//! tried here first, where that becomes an error that says what to install.

use std::panic::{UnwindSafe, catch_unwind};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUresult;
use cudarc::{cublas, driver, nvrtc};

use crate::cuda::CudaError;

/// The CUDA version whose functions are bound; a driver must know it. As a driver says it, and as people do.
const KNOWN: i32 = 13_000;
const VERSION: &str = "13.0";

/// Tries the driver, cuBLAS and NVRTC, and gives the number of cards.
///
/// # Errors
/// [`CudaError::Unavailable`] says what is missing.
pub(crate) fn load() -> Result<usize, CudaError> {
    // SAFETY: opening a library runs its initialisers; these are the vendor's own.
    if !present(|| unsafe { driver::sys::is_culib_present() })? {
        return Err(CudaError::unavailable("there is no NVIDIA driver (libcuda) on this machine"));
    }
    let cards =
        count().map_err(|error| CudaError::unavailable(format!("the driver does not start: {}", said(error))))?;
    if cards == 0 {
        return Err(CudaError::unavailable("the driver sees no card"));
    }
    let known = version().map_err(|error| CudaError::unavailable(said(error)))?;
    if known < KNOWN {
        let reason = format!("the driver knows CUDA {} at most, {VERSION} is needed", spoken(known));
        return Err(CudaError::Unavailable(reason));
    }
    // SAFETY: as above.
    let libraries = [
        ("libcublas.so.13", present(|| unsafe { cublas::sys::is_culib_present() })?),
        // SAFETY: as above.
        ("libnvrtc.so.13", present(|| unsafe { nvrtc::sys::is_culib_present() })?),
    ];
    match libraries.iter().find(|(_, there)| !there) {
        Some((name, _)) => Err(CudaError::unavailable(format!(
            "{name} is not on the loader's path: install the CUDA {VERSION} libraries, or name their folder in LD_LIBRARY_PATH \
             (PyTorch keeps them under site-packages/nvidia, those they need beside them)"
        ))),
        None => Ok(cards),
    }
}

/// The newest CUDA version the driver knows, such as 13000.
pub(super) fn version() -> Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { driver::sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(version)
}

/// A version as people write it.
pub(super) fn spoken(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Number of cards; zero where the driver says there is none.
fn count() -> Result<usize, DriverError> {
    let counted = result::init().and_then(|()| result::device::get_count());
    match counted {
        Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Whether a library is there; one without the functions of [`VERSION`] is an error of its own.
fn present(look: impl FnOnce() -> bool + UnwindSafe) -> Result<bool, CudaError> {
    catch_unwind(look)
        .map_err(|_| CudaError::unavailable(format!("the driver or one of its libraries is older than CUDA {VERSION}")))
}

/// What the driver calls an error.
pub(crate) fn said(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
    };
    let (name, about) = (text(error.error_name()), text(error.error_string()));
    if name.is_empty() { format!("error {}", error.0 as u32) } else { format!("{name} ({about})") }
}
