//! CUDA events: points in the stream.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{CUevent, CUevent_flags, CUresult};

use super::context::ContextHandle;
use super::{Gpu, call};
use crate::adaptive_wait::AdaptiveWait;
use crate::cuda::CudaError;

/// A point in the stream that can be waited for, reused from step to step.
pub(crate) struct GpuEvent {
    event: CUevent,
    hold: Arc<ContextHandle>,
}

// SAFETY: the driver allows handles of events on every thread.
unsafe impl Send for GpuEvent {}

impl GpuEvent {
    /// Creates an event that is not yet recorded.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        gpu.bind()?;
        // Timing is enabled because profiles need it.
        let event = result::event::create(CUevent_flags::CU_EVENT_DEFAULT);
        Ok(Self { event: call("cannot create an event", event)?, hold: gpu.hold() })
    }

    /// Records the event after all work enqueued so far.
    pub(crate) fn record(&self, gpu: &Gpu) -> Result<(), CudaError> {
        gpu.bind()?;
        // SAFETY: event and stream live.
        call("cannot record an event", unsafe { result::event::record(self.event, gpu.stream()) })
    }

    /// Waits until the recorded work, which began at `started`, is done.
    ///
    /// # Errors
    /// [`CudaError::Call`] when any of the work failed, [`CudaError::Lost`] when the time limit has passed; the GPU is
    /// given up then.
    pub(crate) fn wait(&self, gpu: &Gpu, started: Instant, wait: &mut AdaptiveWait) -> Result<(), CudaError> {
        gpu.await_until(started, wait, || self.done("cannot wait for a step"))
    }

    /// Returns `true` if the recorded work is done.
    ///
    /// # Errors
    /// [`CudaError::Call`] when any of the work failed, [`CudaError::Lost`] when the GPU was given up.
    pub(crate) fn reached(&self) -> Result<bool, CudaError> {
        self.hold.bind()?;
        self.done("cannot query an event")
    }

    fn done(&self, action: &'static str) -> Result<bool, CudaError> {
        // SAFETY: the event lives.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => call(action, Err(error)),
        }
    }

    /// Returns the seconds from this event to a later one, by the GPU's clock. Both must be done.
    pub(crate) fn seconds_to(&self, later: &Self) -> Result<f64, CudaError> {
        self.hold.bind()?;
        // SAFETY: both events live, and were recorded in the same stream.
        call("cannot read the GPU's clock", unsafe { result::event::elapsed(self.event, later.event) })
            .map(|milliseconds| f64::from(milliseconds) * 1e-3)
    }
}

impl Drop for GpuEvent {
    fn drop(&mut self) {
        // SAFETY: created by `new`.
        self.hold.free(|| unsafe { result::event::destroy(self.event) });
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
            result::stream::launch_host_function(self.stream(), sleep, nanoseconds)
        })
    }
}
