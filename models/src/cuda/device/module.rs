//! Compilation and loading of the kernels for one GPU.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::result::function::set_function_attribute;
use cudarc::driver::result::module as driver;
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule};

use super::context::ContextHandle;
use super::{call, nvrtc};
use crate::cuda::CudaError;
use crate::cuda::kernel::{CudaKernel, source};

/// Dynamic shared memory available to every launch, in bytes; more must be enabled per kernel.
const PLAIN_SHARED: u32 = 48 << 10;

/// Preferred share of a multiprocessor's L1 memory that is shared memory, in percent.
const MOST_SHARED: i32 = 100;

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
    pub(super) fn load(hold: &Arc<ContextHandle>, capability: (u32, u32), dim: usize) -> Result<Self, CudaError> {
        let image = nvrtc::compile(&source::module(dim), &architecture(capability))?;
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
        let set = |attribute, value| {
            // SAFETY: the function is loaded.
            call("cannot set a kernel's shared memory", unsafe { set_function_attribute(function, attribute, value) })
        };
        if kernel.largest_shared() > PLAIN_SHARED {
            let limit = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            set(limit, kernel.largest_shared().cast_signed())?;
        }
        // With the same partition for all kernels, a multiprocessor can start a launch's blocks alongside those of the
        // launch before.
        set(CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, MOST_SHARED)?;
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

/// Returns the architecture to compile for. On compute capability 9.0 it includes the instructions that only this one has.
fn architecture((major, minor): (u32, u32)) -> String {
    let specific = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{specific}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_hopper_gets_its_own_instructions() {
        let of = [(8, 0), (9, 0), (12, 0)].map(super::architecture);
        assert_eq!(of, ["sm_80", "sm_90a", "sm_120"]);
    }
}
