//! The CUDA context of a GPU, and the record of lost GPUs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::CudaContext;

use super::call;
use crate::cuda::CudaError;

/// A CUDA context, shared by all objects that live in it.
///
/// The driver waits for the GPU when memory is freed, a module unloaded or a context destroyed. Every free therefore
/// goes through this handle: on a GPU that does not respond nothing is freed, so that the process can end.
pub(crate) struct ContextHandle {
    context: Arc<CudaContext>,
    loss_reason: LossReason,
}

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
    pub(super) fn new(context: Arc<CudaContext>) -> Arc<Self> {
        let loss_reason = loss_reason(context.ordinal());
        Arc::new(Self { context, loss_reason })
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes the GPU current for the calling thread.
    ///
    /// # Errors
    /// [`CudaError::Lost`] when the GPU was given up.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        match self.loss_reason.get() {
            Some(reason) => Err(CudaError::Lost(reason.clone())),
            None => call("cannot make the GPU current", self.context.bind_to_thread()),
        }
    }

    /// Stops all calls to the GPU from now on, through every handle in this process.
    pub(super) fn give_up(&self, reason: String) {
        if self.loss_reason.set(reason).is_ok() {
            // Leak the context: dropping the last reference destroys it, which waits for the GPU.
            std::mem::forget(Arc::clone(&self.context));
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
