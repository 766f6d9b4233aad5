//! Checks that the driver and its libraries can be loaded.
//!
//! The bindings load the driver at run time and panic where it is missing or lacks a function. It is therefore probed
//! here first, which turns the panic into an error that names what to install.

use std::sync::Once;

use cudarc::driver;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUresult;

use super::cublas::Cublas;
use super::nvrtc::Nvrtc;
use crate::cuda::CudaError;

/// Minimum CUDA version of the driver, in the driver's encoding; the bindings' functions are of this version.
const KNOWN: i32 = 12_040;

/// Probes the driver, cuBLAS and NVRTC, and returns the number of GPUs.
///
/// # Errors
/// [`CudaError::Unavailable`] names the missing library.
pub(crate) fn load() -> Result<usize, CudaError> {
    // SAFETY: opening a library runs its initializers; these are the vendor's own.
    if !unsafe { driver::sys::is_culib_present() } {
        return Err(CudaError::unavailable("no NVIDIA driver (libcuda) on this machine"));
    }
    let cards = count()
        .map_err(|error| CudaError::unavailable(format!("cannot initialize the driver: {}", describe(error))))?;
    if cards == 0 {
        return Err(CudaError::unavailable("the driver reports no GPU"));
    }
    let known = version().map_err(|error| CudaError::unavailable(describe(error)))?;
    if known < KNOWN {
        let [known, needed] = [known, KNOWN].map(format_version);
        let reason = format!("the driver supports CUDA {known} at most: {needed} or newer is required");
        return Err(CudaError::Unavailable(reason));
    }
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| tracing::info!(cuda = format_version(known), cards, "loaded the NVIDIA driver"));
    Cublas::get()?;
    Nvrtc::get()?;
    Ok(cards)
}

/// Returns the newest CUDA version that the driver supports, such as 13000.
pub(super) fn version() -> Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { driver::sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok(version)
}

/// Formats a version, such as `13.0`.
pub(super) fn format_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Returns the number of GPUs; zero when the driver reports that there is none.
fn count() -> Result<usize, DriverError> {
    let counted = result::init().and_then(|()| result::device::get_count());
    match counted {
        Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Describes a driver error by its name and text.
pub(crate) fn describe(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
    };
    let name = text(error.error_name());
    let about = text(error.error_string());
    if name.is_empty() { format!("error {}", error.0 as u32) } else { format!("{name} ({about})") }
}
