//! NVRTC, the compiler of the kernels.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use super::shared_library::{library_functions, text};
use crate::cuda::CudaError;
use crate::cuda::kernel::source;

/// `nvrtcProgram`.
type Handle = *mut c_void;

library_functions! {
    /// NVRTC.
    Nvrtc from "nvrtc";
    version = c"nvrtcVersion": fn(*mut c_int, *mut c_int) -> c_int;
    create = c"nvrtcCreateProgram":
        fn(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
    destroy = c"nvrtcDestroyProgram": fn(*mut Handle) -> c_int;
    compile = c"nvrtcCompileProgram": fn(Handle, c_int, *const *const c_char) -> c_int;
    log_size = c"nvrtcGetProgramLogSize": fn(Handle, *mut usize) -> c_int;
    get_log = c"nvrtcGetProgramLog": fn(Handle, *mut c_char) -> c_int;
    cubin_size = c"nvrtcGetCUBINSize": fn(Handle, *mut usize) -> c_int;
    get_cubin = c"nvrtcGetCUBIN": fn(Handle, *mut c_char) -> c_int;
    error_string = c"nvrtcGetErrorString": fn(c_int) -> *const c_char;
}

impl Nvrtc {
    fn log(&self) {
        let path = self.library.path(Some(self.compile as *const c_void));
        tracing::info!(path = %path.display(), version = self.version_text(), "loaded NVRTC");
    }

    fn version_text(&self) -> String {
        let mut major = 0;
        let mut minor = 0;
        // SAFETY: writes two numbers.
        match unsafe { (self.version)(&mut major, &mut minor) } {
            0 => format!("{major}.{minor}"),
            _ => "unknown".to_owned(),
        }
    }

    fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: returns a static string for any number.
        let about = text(unsafe { (self.error_string)(status) });
        Err(format!("NVRTC {}: {about}", self.version_text()))
    }
}

/// A program, destroyed on drop.
struct Program {
    nvrtc: &'static Nvrtc,
    handle: Handle,
}

impl Program {
    fn new(nvrtc: &'static Nvrtc, source: &CStr) -> Result<Self, String> {
        let mut program = Self { nvrtc, handle: std::ptr::null_mut() };
        let name = c"waymark.cu".as_ptr();
        let none = std::ptr::null();
        // SAFETY: writes the handle; both strings outlive the call, and there are no headers.
        nvrtc.check(unsafe { (nvrtc.create)(&mut program.handle, source.as_ptr(), name, 0, none, none) })?;
        Ok(program)
    }

    fn compile(&self, options: &[CString]) -> Result<(), String> {
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(options.len()).map_err(|error| error.to_string())?;
        // SAFETY: the program was created; `count` strings, which outlive the call.
        let status = unsafe { (self.nvrtc.compile)(self.handle, count, options.as_ptr()) };
        self.nvrtc.check(status).map_err(|error| format!("{error}: {}", self.log()))
    }

    /// Returns the compiler's messages.
    fn log(&self) -> String {
        let bytes = self.read(self.nvrtc.log_size, self.nvrtc.get_log).unwrap_or_default();
        String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
    }

    /// Reads a result with the functions that return its size and its bytes.
    fn read(
        &self,
        size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program was created; writes one number.
        self.nvrtc.check(unsafe { size(self.handle, &mut len) })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: the buffer has the size that the compiler reports.
        self.nvrtc.check(unsafe { get(self.handle, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: created by `new`, and not used any more.
            unsafe { (self.nvrtc.destroy)(&mut self.handle) };
        }
    }
}

/// Compiles to machine code (cubin) for `architecture` (such as `sm_90a`) rather than to PTX: a compiler newer than the
/// driver could emit PTX that the driver rejects.
///
/// # Errors
/// [`CudaError::Compile`] with the compiler's log, [`CudaError::Unavailable`] without NVRTC.
pub(super) fn compile(source: &str, architecture: &str) -> Result<Vec<u8>, CudaError> {
    let nvrtc = Nvrtc::get()?;
    let options =
        std::iter::once(format!("--gpu-architecture={architecture}")).chain(source::OPTIONS.map(str::to_owned));
    let compiled = || {
        let source = CString::new(source).map_err(|error| error.to_string())?;
        let options: Result<Vec<_>, _> = options.map(CString::new).collect();
        let program = Program::new(nvrtc, &source)?;
        program.compile(&options.map_err(|error| error.to_string())?)?;
        program.read(nvrtc.cubin_size, nvrtc.get_cubin)
    };
    compiled().map_err(|log: String| CudaError::Compile { architecture: architecture.to_owned(), log })
}
