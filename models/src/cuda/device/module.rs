//! The kernels, compiled for one card.

use std::ffi::{CStr, CString, c_char};
use std::sync::Arc;

use cudarc::driver::result::function::set_function_attribute;
use cudarc::driver::result::module as driver;
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule};
use cudarc::nvrtc::result as compiler;
use cudarc::nvrtc::sys as nvrtc;

use super::call;
use super::hold::Hold;
use crate::cuda::CudaError;
use crate::cuda::kernel::{Kernel, source};

/// Dynamic shared memory that every launch may ask for, in bytes; more has to be allowed per kernel.
const PLAIN_SHARED: u32 = 48 << 10;

/// A loaded module and its entry points, by kernel.
pub(super) struct Module {
    hold: Arc<Hold>,
    module: CUmodule,
    functions: Vec<CUfunction>,
}

// SAFETY: handles of a module are plain names in the driver, which does its own locking.
unsafe impl Send for Module {}

impl Module {
    /// Compiles and loads the kernels for heads of `dim` values on a card of this compute capability.
    pub(super) fn load(hold: &Arc<Hold>, (major, minor): (u32, u32), dim: usize) -> Result<Self, CudaError> {
        let card = format!("sm_{major}{minor}");
        let image = compile(&source::module(dim), &card)?;
        hold.bind()?;
        // SAFETY: the image is a whole cubin, as the compiler gave it.
        let module = call("load the kernels", unsafe { driver::load_data(image.as_ptr().cast()) })?;
        let mut loaded = Self { hold: Arc::clone(hold), module, functions: Vec::new() };
        for kernel in Kernel::ALL {
            loaded.functions.push(loaded.find(*kernel)?);
        }
        Ok(loaded)
    }

    fn find(&self, kernel: Kernel) -> Result<CUfunction, CudaError> {
        let name = CString::new(kernel.name()).unwrap_or_default();
        // SAFETY: the module is loaded.
        let function = call("find a kernel", unsafe { driver::get_function(self.module, name) })?;
        if kernel.largest_shared() > PLAIN_SHARED {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(kernel.largest_shared()).unwrap_or(i32::MAX);
            // SAFETY: the function is loaded.
            call("allow a kernel its shared memory", unsafe { set_function_attribute(function, attribute, bytes) })?;
        }
        Ok(function)
    }

    /// A kernel's entry point.
    pub(super) fn function(&self, kernel: Kernel) -> CUfunction {
        self.functions[kernel as usize]
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, and nothing of it is used any more.
        self.hold.free(|| unsafe { driver::unload(self.module) });
    }
}

/// A program of the compiler's; gone with this.
struct Program(nvrtc::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `create_program`, and not used any more.
        let _ = unsafe { compiler::destroy_program(self.0) };
    }
}

/// Machine code for `card` (`sm_90`): a compiler newer than the driver could give assembly that the driver refuses.
fn compile(text: &str, card: &str) -> Result<Vec<u8>, CudaError> {
    let failed = |log: String| CudaError::Compile { card: card.to_owned(), log };
    let program_text = CString::new(text).map_err(|error| failed(error.to_string()))?;
    let said = |error: compiler::NvrtcError| failed(format!("{error:?}"));
    let program = Program(compiler::create_program(&program_text, Some(c"waymark.cu")).map_err(said)?);
    let options: Vec<String> =
        std::iter::once(format!("--gpu-architecture={card}")).chain(source::OPTIONS.map(str::to_owned)).collect();
    // SAFETY: the program was just created.
    if let Err(error) = unsafe { compiler::compile_program(program.0, &options) } {
        // SAFETY: as above.
        let log = unsafe { compiler::get_program_log(program.0) }.unwrap_or_default();
        return Err(failed(format!("{error:?}: {}", told(&log))));
    }
    let mut size = 0;
    // SAFETY: the program was compiled; the buffer is as long as it says.
    unsafe {
        nvrtc::nvrtcGetCUBINSize(program.0, &mut size).result().map_err(said)?;
        let mut image = vec![0u8; size];
        nvrtc::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()).result().map_err(said)?;
        Ok(image)
    }
}

/// A log as text.
fn told(log: &[c_char]) -> String {
    let bytes: Vec<u8> = log.iter().map(|&byte| byte.to_ne_bytes()[0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
    text.map_or_else(|_| String::from_utf8_lossy(&bytes).into_owned(), std::borrow::Cow::into_owned)
}
