//! The context that everything on a card lives in, and whether the card still answers.

use std::sync::{Arc, OnceLock};

use cudarc::driver::CudaContext;

use super::call;
use crate::cuda::CudaError;

/// A hold on a card, shared by all that lives on it.
///
/// A driver waits for the card when memory is freed, a module unloaded or a context destroyed. So whoever frees asks here
/// first: of a card that does not answer any more nothing is given back, and the process can end.
pub(crate) struct Hold {
    context: Arc<CudaContext>,
    gone: OnceLock<String>,
}

impl Hold {
    pub(super) fn new(context: Arc<CudaContext>) -> Arc<Self> {
        Arc::new(Self { context, gone: OnceLock::new() })
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Why the card does not answer any more, if it does not.
    pub(super) fn gone(&self) -> Option<&str> {
        self.gone.get().map(String::as_str)
    }

    /// Makes the card the one that this thread's calls mean.
    ///
    /// # Errors
    /// [`CudaError::Lost`] of a card that was given up.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        match self.gone() {
            Some(reason) => Err(CudaError::Lost(reason.to_owned())),
            None => call("bind the card to this thread", self.context.bind_to_thread()),
        }
    }

    /// Asks nothing of the card from now on.
    pub(super) fn give_up(&self, reason: String) {
        if self.gone.set(reason).is_ok() {
            // Whoever lets go of a context last destroys it, which waits.
            std::mem::forget(Arc::clone(&self.context));
            #[cfg(target_os = "linux")]
            leave::without_the_driver();
        }
    }

    /// Gives something back. What a driver says of that comes too late to matter.
    pub(super) fn free<T>(&self, free: impl FnOnce() -> T) {
        if self.bind().is_ok() {
            let _ = free();
        }
    }
}

#[cfg(target_os = "linux")]
mod leave {
    /// Lets the process end before the driver's own handlers run, which may wait for the card: what is registered last runs
    /// first. A process that lost its card has failed, whatever it says itself.
    pub(super) fn without_the_driver() {
        extern "C" fn leave() {
            // SAFETY: ends the process.
            unsafe { libc::_exit(libc::EXIT_FAILURE) }
        }
        // SAFETY: the function lives as long as the process and calls nothing of it.
        unsafe { libc::atexit(leave) };
    }
}
