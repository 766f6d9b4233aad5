//! Kernel checks on this GPU.

use std::cell::RefCell;
use std::ffi::c_void;

use super::{DeviceRegion, Gpu};
use crate::cuda::kernel::check::{self, CheckError, KernelFinding, StressCheck};
use crate::cuda::kernel::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};

/// A GPU whose memory is allocated buffer by buffer and freed all at once.
struct GpuCheckDevice<'a> {
    gpu: &'a Gpu,
    regions: RefCell<Vec<DeviceRegion>>,
}

impl Gpu {
    /// Compares every kernel with its reference on random inputs. `dim` is the head width that this GPU was opened for.
    /// Results are appended to `findings` immediately.
    ///
    /// # Errors
    /// The first [`CheckError`], when a launch or a copy failed. A wrong result is a [`KernelFinding`] that does not
    /// hold, not an error.
    pub fn check(&self, dim: usize, seed: u64, findings: &mut Vec<KernelFinding>) -> Result<(), CheckError> {
        check::run(&GpuCheckDevice { gpu: self, regions: RefCell::default() }, dim, seed, findings)
    }
}

impl Gpu {
    /// Runs a check at the size of real use; see [`StressCheck`]. `dim` is the head width that this GPU was opened for.
    /// Results are appended to `findings` immediately.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check), and an error when the GPU has too little free memory.
    pub fn stress(
        &self,
        dim: usize,
        check: StressCheck,
        seed: u64,
        findings: &mut Vec<KernelFinding>,
    ) -> Result<(), CheckError> {
        check::stress(&GpuCheckDevice { gpu: self, regions: RefCell::default() }, dim, check, seed, findings)
    }
}

impl Launch for GpuCheckDevice<'_> {
    unsafe fn launch(
        &self,
        kernel: CudaKernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        unsafe { self.gpu.launch(kernel, geometry, arguments) }
    }
}

impl check::CheckDevice for GpuCheckDevice<'_> {
    fn upload(&self, bytes: &[u8]) -> Result<u64, String> {
        let region = DeviceRegion::allocate(self.gpu, bytes.len()).map_err(|error| error.to_string())?;
        let slice: DeviceSlice<u8> = region.slice(crate::cuda::plan::Placement::new(0, bytes.len()));
        self.gpu.upload(bytes, slice).map_err(|error| error.to_string())?;
        self.gpu.synchronize().map_err(|error| error.to_string())?;
        self.regions.borrow_mut().push(region);
        Ok(slice.address())
    }

    fn reserve(&self, bytes: usize) -> Result<u64, String> {
        let region = DeviceRegion::allocate(self.gpu, bytes).map_err(|error| error.to_string())?;
        region.fill(self.gpu, 0xff).map_err(|error| error.to_string())?;
        let slice: DeviceSlice<u8> = region.slice(crate::cuda::plan::Placement::new(0, bytes));
        self.regions.borrow_mut().push(region);
        Ok(slice.address())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: the checks write only within buffers that they allocated, which live until they are released.
        let slice = unsafe { DeviceSlice::new(address, bytes.len()) };
        self.gpu.upload(bytes, slice).map_err(|error| error.to_string())?;
        self.gpu.synchronize().map_err(|error| error.to_string())
    }

    fn wait(&self) -> Result<(), String> {
        self.gpu.synchronize().map_err(|error| error.to_string())
    }

    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        // SAFETY: the checks read only buffers that they uploaded, which live until they are released.
        let slice = unsafe { DeviceSlice::new(address, bytes.len()) };
        // Waits under the time limit first: a copy into pageable memory blocks in the driver until the GPU gets to it.
        self.gpu.synchronize().map_err(|error| error.to_string())?;
        self.gpu.download(slice, bytes).map_err(|error| error.to_string())?;
        self.gpu.synchronize().map_err(|error| error.to_string())
    }

    fn release(&self) -> Result<(), String> {
        self.regions.borrow_mut().clear();
        Ok(())
    }
}
