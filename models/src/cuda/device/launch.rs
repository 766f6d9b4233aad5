//! Kernel launches in the stream of a GPU.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig};

use super::Gpu;
use super::library::describe;
use crate::cuda::kernel::{CudaKernel, Geometry, KernelError, Launch};

/// First major compute capability on which a launch may start before the one before it ends.
const OVERLAPPING: u32 = 9;

impl Launch for Gpu {
    unsafe fn launch(
        &self,
        kernel: CudaKernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        let Geometry { blocks: [x, y, z], threads, shared } = geometry;
        // The blocks of a launch may start before the launch before it is complete, and wait for it in the kernel
        // (`after_previous` in device.cu).
        let mut overlap = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.stream(),
            attrs: &raw mut overlap,
            numAttrs: u32::from(self.info.capability.0 >= OVERLAPPING),
        };
        let function = self.module.function(kernel);
        // SAFETY: the caller's promise; the attribute outlives the call, and every kernel waits for the launch before it.
        unsafe { sys::cuLaunchKernelEx(&raw const config, function, arguments.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(|error| KernelError::Driver { kernel, reason: describe(error) })
    }
}
