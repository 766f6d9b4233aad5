//! Attribution of errors to kernels.

use std::cell::Cell;
use std::ffi::c_void;

use super::{CheckDevice, CheckError};
use crate::cuda::kernel::{CudaKernel, Geometry, KernelError, Launch};

/// A device that waits after every launch, unless told otherwise. Launches are asynchronous, so without the wait an error
/// would surface at a later call, without the name of the kernel.
pub(super) struct SynchronousDevice<'a> {
    device: &'a dyn CheckDevice,
    last: Cell<Option<CudaKernel>>,
    waits: Cell<bool>,
}

impl<'a> SynchronousDevice<'a> {
    pub(super) fn new(device: &'a dyn CheckDevice) -> Self {
        Self { device, last: Cell::new(None), waits: Cell::new(true) }
    }

    /// Sets if launches wait, which keeps two of them from overlapping.
    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.set(waits);
    }

    pub(super) fn reserve(&self, bytes: usize) -> Result<u64, CheckError> {
        self.device.reserve(bytes).map_err(|reason| self.memory(reason))
    }

    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), CheckError> {
        self.device.write(address, bytes).map_err(|reason| self.memory(reason))
    }

    pub(super) fn upload(&self, bytes: &[u8]) -> Result<u64, CheckError> {
        self.device.upload(bytes).map_err(|reason| self.memory(reason))
    }

    pub(super) fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), CheckError> {
        self.device.download(address, bytes).map_err(|reason| self.memory(reason))
    }

    pub(super) fn release(&self) -> Result<(), CheckError> {
        self.device.release().map_err(|reason| self.memory(reason))
    }

    /// Converts a memory error, naming the last launched kernel.
    fn memory(&self, reason: String) -> CheckError {
        CheckError::Memory(match self.last.get() {
            Some(kernel) => format!("after {}: {reason}", kernel.name()),
            None => reason,
        })
    }
}

impl Launch for SynchronousDevice<'_> {
    unsafe fn launch(
        &self,
        kernel: CudaKernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        self.last.set(Some(kernel));
        // SAFETY: the caller's promise.
        unsafe { self.device.launch(kernel, geometry, arguments)? };
        if !self.waits.get() {
            return Ok(());
        }
        let failed = |reason: String| {
            let Geometry { blocks, threads, shared } = geometry;
            let reason = format!("{reason}, in {blocks:?} blocks of {threads} threads, {shared} bytes shared");
            KernelError::Driver { kernel, reason }
        };
        self.device.wait().map_err(failed)
    }
}
