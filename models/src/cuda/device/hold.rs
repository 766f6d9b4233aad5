//! The context that everything on a card lives in, and whether the card still answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::CudaContext;

use super::call;
use crate::cuda::CudaError;

/// A hold on a card, shared by all that lives on it.
///
/// A driver waits for the card when memory is freed, a module unloaded or a context destroyed. So whoever frees asks here
/// first: of a card that does not answer any more nothing is given back, and the process can end.
pub(crate) struct Hold {
    context: Arc<CudaContext>,
    gone: Fate,
}

/// Why a card does not answer any more, if it does not.
type Fate = Arc<OnceLock<String>>;

/// What became of card `ordinal`, for all of the process. The context that a card is opened in is the driver's one for the
/// process, so what hangs there also stops whoever opens the card anew, in calls that no limit bounds.
fn fate(ordinal: usize) -> Fate {
    static FATES: Mutex<BTreeMap<usize, Fate>> = Mutex::new(BTreeMap::new());
    Arc::clone(FATES.lock().unwrap_or_else(PoisonError::into_inner).entry(ordinal).or_default())
}

/// Whether card `ordinal` may be asked for anything.
///
/// # Errors
/// [`CudaError::Lost`] of a card that was given up, by whichever hold on it.
pub(super) fn answers(ordinal: usize) -> Result<(), CudaError> {
    match fate(ordinal).get() {
        Some(reason) => Err(CudaError::Lost(format!("card {ordinal} was given up before: {reason}"))),
        None => Ok(()),
    }
}

impl Hold {
    pub(super) fn new(context: Arc<CudaContext>) -> Arc<Self> {
        let gone = fate(context.ordinal());
        Arc::new(Self { context, gone })
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes the card the one that this thread's calls mean.
    ///
    /// # Errors
    /// [`CudaError::Lost`] of a card that was given up.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        match self.gone.get() {
            Some(reason) => Err(CudaError::Lost(reason.clone())),
            None => call("bind the card to this thread", self.context.bind_to_thread()),
        }
    }

    /// Asks nothing of the card from now on, whoever in this process holds it or opens it again.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cuda::Card;

    #[test]
    fn a_card_that_was_given_up_is_not_opened_again_and_others_are() {
        // No machine has as many: what other tests open is not meant.
        let (lost, other) = (1 << 20, (1 << 20) + 1);
        assert!(matches!(Card::look(lost), Err(CudaError::Unavailable(_))));
        fate(lost).set("it did not finish".to_owned()).unwrap();
        for opened in [Card::look(lost).map(drop), Card::open(lost, 64).map(drop)] {
            let told = matches!(&opened, Err(CudaError::Lost(reason)) if reason.ends_with("it did not finish"));
            assert!(told, "{opened:?}");
        }
        assert!(matches!(Card::look(other), Err(CudaError::Unavailable(_))));
    }
}
