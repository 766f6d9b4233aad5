//! How long work takes where it is done.

use std::time::Duration;

use super::Driver;
use crate::cuda::CudaError;

/// A driver that marks points in its line of work and says how long it took from one to another.
pub trait Clock: Driver {
    /// A point in the line of work.
    type Mark;

    /// Marks the point behind everything that is in line now.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn mark(&self) -> Result<Self::Mark, CudaError>;

    /// Lets what is put in line from now on wait for `time`, so that all of it is in line before any of it begins. What
    /// does everything at once does not wait.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn pause(&self, time: Duration) -> Result<(), CudaError>;

    /// Whether a point has been reached.
    ///
    /// # Errors
    /// [`CudaError::Call`], also when anything before it failed.
    fn reached(&self, mark: &Self::Mark) -> Result<bool, CudaError>;

    /// Waits for everything in line.
    ///
    /// # Errors
    /// [`CudaError::Call`] when any of it failed, [`CudaError::Lost`] when it takes too long.
    fn settle(&self) -> Result<(), CudaError>;

    /// Seconds from one point to a later one, both of which were reached.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    fn seconds(&self, from: &Self::Mark, to: &Self::Mark) -> Result<f64, CudaError>;
}
