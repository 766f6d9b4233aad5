//! The kernels checked on this card.

use std::cell::RefCell;
use std::ffi::c_void;

use super::{Card, Region};
use crate::cuda::kernel::check::{self, CheckError, Finding};
use crate::cuda::kernel::{Geometry, Kernel, KernelError, Launch, Span};

/// A card with memory that is taken piece by piece and freed at once.
struct Bench<'a> {
    card: &'a Card,
    regions: RefCell<Vec<Region>>,
}

impl Card {
    /// Compares every kernel with its reference on fresh random inputs, for heads of the width this card was opened for. What
    /// is found goes to `findings` at once.
    ///
    /// # Errors
    /// The first [`CheckError`], when a launch or a copy failed; a wrong result is a [`Finding`] that does not hold.
    pub fn check(&self, dim: usize, seed: u64, findings: &mut Vec<Finding>) -> Result<(), CheckError> {
        check::run(&Bench { card: self, regions: RefCell::default() }, dim, seed, findings)
    }
}

impl Launch for Bench<'_> {
    unsafe fn launch(
        &self,
        kernel: Kernel,
        geometry: Geometry,
        arguments: &mut [*mut c_void],
    ) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        unsafe { self.card.launch(kernel, geometry, arguments) }
    }
}

impl check::Card for Bench<'_> {
    fn upload(&self, bytes: &[u8]) -> Result<u64, String> {
        let region = Region::take(self.card, bytes.len()).map_err(|error| error.to_string())?;
        let span: Span<u8> = region.span(crate::cuda::plan::Place::new(0, bytes.len()));
        self.card.upload(bytes, span).map_err(|error| error.to_string())?;
        self.card.synchronize().map_err(|error| error.to_string())?;
        self.regions.borrow_mut().push(region);
        Ok(span.address())
    }

    fn wait(&self) -> Result<(), String> {
        self.card.synchronize().map_err(|error| error.to_string())
    }

    fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), String> {
        // SAFETY: the checks read what they uploaded, which is there until they release it.
        let span = unsafe { Span::new(address, bytes.len()) };
        self.card.download(span, bytes).map_err(|error| error.to_string())?;
        self.card.synchronize().map_err(|error| error.to_string())
    }

    fn release(&self) -> Result<(), String> {
        self.regions.borrow_mut().clear();
        Ok(())
    }
}
