//! Timing of work on the device.

use std::time::Duration;

use super::Driver;
use crate::cuda::CudaError;

/// A driver that marks points in its stream and measures the time between two of them.
pub trait DeviceClock: Driver {
    /// A marked point in the stream.
    type Mark;

    /// Marks the point in the stream after all work enqueued so far.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn mark(&self) -> Result<Self::Mark, CudaError>;

    /// Delays work enqueued from now on by `time`, so all of it can be enqueued before any of it starts. A driver
    /// that runs work synchronously does not wait.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn pause(&self, time: Duration) -> Result<(), CudaError>;

    /// Returns `true` if the stream has passed a mark.
    ///
    /// # Errors
    /// [`CudaError::Call`], also when work before the mark failed.
    fn reached(&self, mark: &Self::Mark) -> Result<bool, CudaError>;

    /// Waits for all enqueued work.
    ///
    /// # Errors
    /// [`CudaError::Call`] when any of this work failed, [`CudaError::Lost`] when it did not finish within the driver's
    /// time limit.
    fn settle(&self) -> Result<(), CudaError>;

    /// Returns the seconds from one mark to a later one. The stream must have passed both.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn seconds(&self, from: &Self::Mark, to: &Self::Mark) -> Result<f64, CudaError>;
}
