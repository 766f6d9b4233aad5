//! Which kernel it was.

use std::cell::Cell;
use std::ffi::c_void;

use super::{Card, CheckError};
use crate::cuda::kernel::{Geometry, Kernel, KernelError, Launch};

/// A card whose every launch is waited for. Launches are only put in line: without it, what goes wrong in one is told by
/// whatever is asked of the card next, and names nobody.
pub(super) struct Witness<'a> {
    card: &'a dyn Card,
    last: Cell<Option<Kernel>>,
}

impl<'a> Witness<'a> {
    pub(super) fn new(card: &'a dyn Card) -> Self {
        Self { card, last: Cell::new(None) }
    }

    pub(super) fn upload(&self, bytes: &[u8]) -> Result<u64, CheckError> {
        self.card.upload(bytes).map_err(|reason| self.memory(reason))
    }

    pub(super) fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), CheckError> {
        self.card.download(address, bytes).map_err(|reason| self.memory(reason))
    }

    pub(super) fn release(&self) -> Result<(), CheckError> {
        self.card.release().map_err(|reason| self.memory(reason))
    }

    /// What went wrong with memory, and after which kernel.
    fn memory(&self, reason: String) -> CheckError {
        CheckError::Memory(match self.last.get() {
            Some(kernel) => format!("after {}: {reason}", kernel.name()),
            None => reason,
        })
    }
}

impl Launch for Witness<'_> {
    unsafe fn launch(
        &self,
        kernel: Kernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        self.last.set(Some(kernel));
        // SAFETY: the caller's promise.
        unsafe { self.card.launch(kernel, geometry, arguments)? };
        let failed = |reason: String| {
            let Geometry { blocks, threads, shared } = geometry;
            let reason = format!("{reason}, in {blocks:?} blocks of {threads} threads, {shared} bytes shared");
            KernelError::Driver { kernel, reason }
        };
        self.card.wait().map_err(failed)
    }
}
