//! CUDA events: points in the stream.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, result};

use super::{Gpu, call};
use crate::adaptive_wait::AdaptiveWait;
use crate::cuda::CudaError;

/// A point in the stream that can be waited for, reused from step to step.
pub(crate) struct GpuEvent(CudaEvent);

impl GpuEvent {
    /// Creates an event that is not yet recorded.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        gpu.bind()?;
        // Timing is enabled because profiles need it.
        let event = gpu.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        call("cannot create an event", event).map(Self)
    }

    /// Records the event after all work enqueued so far.
    pub(crate) fn record(&self, gpu: &Gpu) -> Result<(), CudaError> {
        call("cannot record an event", self.0.record(gpu.stream()))
    }

    /// Waits until the recorded work, which began at `begun`, is done.
    ///
    /// # Errors
    /// [`CudaError::Call`] when any of the work failed, [`CudaError::Lost`] when the time limit has passed; the GPU is
    /// given up then.
    pub(crate) fn wait(&self, gpu: &Gpu, begun: Instant, wait: &mut AdaptiveWait) -> Result<(), CudaError> {
        gpu.await_until(begun, wait, || call("cannot wait for a step", self.0.try_is_complete()))
    }

    /// Returns `true` if the recorded work is done.
    ///
    /// # Errors
    /// [`CudaError::Call`] when any of the work failed.
    pub(crate) fn reached(&self) -> Result<bool, CudaError> {
        call("cannot query an event", self.0.try_is_complete())
    }

    /// Returns the seconds from this event to a later one, by the GPU's clock. Both must be done.
    pub(crate) fn seconds_to(&self, later: &Self) -> Result<f64, CudaError> {
        call("cannot read the GPU's clock", self.0.elapsed_ms(&later.0))
            .map(|milliseconds| f64::from(milliseconds) * 1e-3)
    }
}

impl Gpu {
    /// Delays work enqueued from now on by `time`, during which the GPU is idle.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), CudaError> {
        // Runs on a thread of the driver. The pointer argument is itself the number of nanoseconds.
        extern "C" fn sleep(nanoseconds: *mut c_void) {
            std::thread::sleep(Duration::from_nanos(nanoseconds.addr() as u64));
        }
        self.bind()?;
        let nanoseconds = std::ptr::without_provenance_mut(time.as_nanos() as usize);
        // SAFETY: the stream lives, and so does the function, which reads no memory and does not call the driver.
        call("cannot delay the stream", unsafe {
            result::stream::launch_host_function(self.stream().cu_stream(), sleep, nanoseconds)
        })
    }
}
