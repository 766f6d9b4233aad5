//! Points in the line of work.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, result};

use super::{Card, call};
use crate::cuda::CudaError;
use crate::cuda::patience::Patience;

/// A point in the line of work, to be waited for; used again from step to step.
pub(crate) struct Event(CudaEvent);

impl Event {
    /// An event nothing was recorded in.
    pub(crate) fn new(card: &Card) -> Result<Self, CudaError> {
        card.bind()?;
        let event = card.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        call("create an event", event).map(Self)
    }

    /// Means the work that is in line now.
    pub(crate) fn record(&self, card: &Card) -> Result<(), CudaError> {
        call("record an event", self.0.record(card.stream()))
    }

    /// Waits until that work is done, which began at `begun`.
    ///
    /// # Errors
    /// [`CudaError::Call`] when any of it failed, [`CudaError::Lost`] when it takes too long: the card is given up then.
    pub(crate) fn wait(&self, card: &Card, begun: Instant, patience: &mut Patience) -> Result<(), CudaError> {
        card.await_until(begun, patience, || call("wait for a step", self.0.try_is_complete()))
    }

    /// Whether that work is done.
    ///
    /// # Errors
    /// [`CudaError::Call`] when any of it failed.
    pub(crate) fn reached(&self) -> Result<bool, CudaError> {
        call("ask how far the card is", self.0.try_is_complete())
    }

    /// Seconds the card took from this point to a later one, both of which are waited for.
    pub(crate) fn seconds_to(&self, later: &Self) -> Result<f64, CudaError> {
        call("read the card's clock", self.0.elapsed_ms(&later.0)).map(|milliseconds| f64::from(milliseconds) * 1e-3)
    }
}

impl Card {
    /// Lets what is put in line from now on wait for `time`, while the card does nothing.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), CudaError> {
        // Called on a thread of the driver's; the argument is the number itself.
        extern "C" fn sleep(nanoseconds: *mut c_void) {
            std::thread::sleep(Duration::from_nanos(nanoseconds.addr() as u64));
        }
        self.bind()?;
        let nanoseconds = std::ptr::without_provenance_mut(time.as_nanos() as usize);
        // SAFETY: the stream lives, and so does the function, which reads no memory and calls nothing of the driver.
        call("let the card wait", unsafe {
            result::stream::launch_host_function(self.stream().cu_stream(), sleep, nanoseconds)
        })
    }
}
