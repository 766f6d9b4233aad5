//! The CUDA context of a GPU, and the record of lost GPUs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{CUcontext, CUdevice};

use super::call;
use crate::cuda::CudaError;

/// The primary context of a GPU, shared by all objects that live in it. It is retained once per GPU and kept until the
/// process ends: the driver destroys a context that nobody retains, and would rebuild it for the next user.
///
/// The driver waits for the GPU when memory is freed, a module unloaded or a context destroyed. Every free therefore
/// goes through this handle: on a GPU that does not respond nothing is freed, so the process can end.
pub(crate) struct ContextHandle {
    device: CUdevice,
    context: CUcontext,
    loss_reason: LossReason,
}

// SAFETY: the driver allows handles of contexts on every thread.
unsafe impl Send for ContextHandle {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for ContextHandle {}

/// Reason why a GPU was given up, if it was.
type LossReason = Arc<OnceLock<String>>;

/// Returns the record for GPU `ordinal`, one per process. The driver has one primary context per GPU and process, so
/// work that hangs there also blocks anyone who opens the GPU again, in calls that have no time limit.
fn loss_reason(ordinal: usize) -> LossReason {
    static REASONS: Mutex<BTreeMap<usize, LossReason>> = Mutex::new(BTreeMap::new());
    Arc::clone(REASONS.lock().unwrap_or_else(PoisonError::into_inner).entry(ordinal).or_default())
}

/// Checks that GPU `ordinal` has not been given up.
///
/// # Errors
/// [`CudaError::Lost`] when the GPU was given up through any handle.
pub(super) fn check_not_lost(ordinal: usize) -> Result<(), CudaError> {
    match loss_reason(ordinal).get() {
        Some(reason) => Err(CudaError::Lost(format!("GPU {ordinal} was given up earlier: {reason}"))),
        None => Ok(()),
    }
}

impl ContextHandle {
    /// Returns the context of GPU `ordinal`, which the driver has, retaining it at the first call.
    pub(super) fn open(ordinal: usize) -> Result<Arc<Self>, DriverError> {
        static OPENED: Mutex<BTreeMap<usize, Arc<ContextHandle>>> = Mutex::new(BTreeMap::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = opened.get(&ordinal) {
            return Ok(Arc::clone(handle));
        }
        let device = result::device::get(i32::try_from(ordinal).unwrap_or(-1))?;
        // SAFETY: the driver returned the device.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        let handle = Arc::new(Self { device, context, loss_reason: loss_reason(ordinal) });
        opened.insert(ordinal, Arc::clone(&handle));
        Ok(handle)
    }

    /// Returns the driver's handle of the GPU.
    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    /// Makes the GPU current for the calling thread.
    ///
    /// # Errors
    /// [`CudaError::Lost`] when the GPU was given up.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        match self.loss_reason.get() {
            Some(reason) => Err(CudaError::Lost(reason.clone())),
            None => call("cannot make the GPU current", self.make_current()),
        }
    }

    fn make_current(&self) -> Result<(), DriverError> {
        if result::ctx::get_current()? == Some(self.context) {
            return Ok(());
        }
        // SAFETY: the context is never released.
        unsafe { result::ctx::set_current(self.context) }
    }

    /// Stops all calls to the GPU from now on, through every handle in this process.
    pub(super) fn give_up(&self, reason: String) {
        if self.loss_reason.set(reason).is_ok() {
            #[cfg(target_os = "linux")]
            leave::without_the_driver();
        }
    }

    /// Runs `free` unless the GPU was given up. The error of `free` is ignored: nothing can be done about it.
    pub(super) fn free<T>(&self, free: impl FnOnce() -> T) {
        if self.bind().is_ok() {
            let _ = free();
        }
    }
}

#[cfg(target_os = "linux")]
mod leave {
    /// Registers an exit handler that ends the process before the driver's own exit handlers, which may wait for the
    /// GPU: the handler registered last runs first. A process that lost its GPU exits with a failure in any case.
    pub(super) fn without_the_driver() {
        extern "C" fn leave() {
            // SAFETY: ends the process.
            unsafe { libc::_exit(libc::EXIT_FAILURE) }
        }
        // SAFETY: the function lives as long as the process and calls only `_exit`.
        unsafe { libc::atexit(leave) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cuda::Gpu;

    #[test]
    fn a_card_that_was_given_up_is_not_opened_again_and_others_are() {
        // Ordinals that no machine has, so as not to affect other tests.
        let lost = 1 << 20;
        let other = (1 << 20) + 1;
        assert!(matches!(Gpu::query(lost), Err(CudaError::Unavailable(_))));
        loss_reason(lost).set("it did not finish".to_owned()).unwrap();
        for opened in [Gpu::query(lost).map(drop), Gpu::open(lost, 64).map(drop)] {
            let log_text = matches!(&opened, Err(CudaError::Lost(reason)) if reason.ends_with("it did not finish"));
            assert!(log_text, "{opened:?}");
        }
        assert!(matches!(Gpu::query(other), Err(CudaError::Unavailable(_))));
    }
}
