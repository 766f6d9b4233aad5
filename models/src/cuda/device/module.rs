//! Compilation and loading of the kernels for one GPU.

use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

use cudarc::driver::result::function::set_function_attribute;
use cudarc::driver::result::module as driver;
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule};
use cudarc::nvrtc::result as compiler;
use cudarc::nvrtc::sys as nvrtc;

use super::call;
use super::context::ContextHandle;
use crate::cuda::CudaError;
use crate::cuda::kernel::{CudaKernel, source};

/// Dynamic shared memory available to every launch, in bytes; more must be enabled per kernel.
const PLAIN_SHARED: u32 = 48 << 10;

/// A loaded module and its entry points, indexed by kernel.
pub(super) struct KernelModule {
    hold: Arc<ContextHandle>,
    module: CUmodule,
    functions: Vec<CUfunction>,
}

// SAFETY: handles of a module are valid on every thread, and the driver does its own locking.
unsafe impl Send for KernelModule {}

impl KernelModule {
    /// Compiles and loads the kernels for heads of `dim` values on a GPU of this compute capability.
    pub(super) fn load(hold: &Arc<ContextHandle>, (major, minor): (u32, u32), dim: usize) -> Result<Self, CudaError> {
        let architecture = format!("sm_{major}{minor}");
        let image = compile(&source::module(dim), &architecture)?;
        hold.bind()?;
        // SAFETY: the image is a whole cubin, as returned by the compiler.
        let module = call("cannot load the kernels", unsafe { driver::load_data(image.as_ptr().cast()) })?;
        let mut loaded = Self { hold: Arc::clone(hold), module, functions: Vec::new() };
        for kernel in CudaKernel::ALL {
            loaded.functions.push(loaded.find(*kernel)?);
        }
        Ok(loaded)
    }

    fn find(&self, kernel: CudaKernel) -> Result<CUfunction, CudaError> {
        let name = CString::new(kernel.name()).unwrap_or_default();
        // SAFETY: the module is loaded.
        let function = call("cannot find a kernel", unsafe { driver::get_function(self.module, name) })?;
        if kernel.largest_shared() > PLAIN_SHARED {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(kernel.largest_shared()).unwrap_or(i32::MAX);
            // SAFETY: the function is loaded.
            call("cannot raise a kernel's shared memory limit", unsafe {
                set_function_attribute(function, attribute, bytes)
            })?;
        }
        Ok(function)
    }

    /// Returns the entry point of a kernel.
    pub(super) fn function(&self, kernel: CudaKernel) -> CUfunction {
        self.functions[kernel as usize]
    }
}

impl Drop for KernelModule {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, and none of its kernels is in use.
        self.hold.free(|| unsafe { driver::unload(self.module) });
    }
}

/// An NVRTC program, destroyed on drop.
struct Program(nvrtc::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `create_program`, and not used any more.
        let _ = unsafe { compiler::destroy_program(self.0) };
    }
}

/// Compiles to machine code (cubin) for `architecture` (such as `sm_90`) rather than to PTX: a compiler newer than the
/// driver could emit PTX that the driver rejects.
fn compile(text: &str, architecture: &str) -> Result<Vec<u8>, CudaError> {
    let failed = |log: String| CudaError::Compile { architecture: architecture.to_owned(), log };
    let program_text = CString::new(text).map_err(|error| failed(error.to_string()))?;
    let nvrtc_error = |error: compiler::NvrtcError| failed(format!("{error:?}"));
    let program = Program(compiler::create_program(&program_text, Some(c"waymark.cu")).map_err(nvrtc_error)?);
    let options: Vec<String> = std::iter::once(format!("--gpu-architecture={architecture}"))
        .chain(source::OPTIONS.map(str::to_owned))
        .collect();
    // SAFETY: the program was just created.
    if let Err(error) = unsafe { compiler::compile_program(program.0, &options) } {
        // SAFETY: as above.
        let log = unsafe { compiler::get_program_log(program.0) }.unwrap_or_default();
        return Err(failed(format!("{error:?}: {}", log_text(&log))));
    }
    let mut size = 0;
    // SAFETY: the program was compiled; the buffer has the size that the compiler reports.
    unsafe {
        nvrtc::nvrtcGetCUBINSize(program.0, &mut size).result().map_err(nvrtc_error)?;
        let mut image = vec![0u8; size];
        nvrtc::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()).result().map_err(nvrtc_error)?;
        Ok(image)
    }
}

/// Converts a compiler log to text.
fn log_text(log: &[c_char]) -> String {
    let bytes: Vec<u8> = log.iter().map(|&byte| byte.to_ne_bytes()[0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
    text.map_or_else(|_| String::from_utf8_lossy(&bytes).into_owned(), std::borrow::Cow::into_owned)
}
