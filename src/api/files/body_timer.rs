//! Limits of the time that the body of an upload takes to arrive.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::body_pieces::BodyProgress;
use crate::api::error::{ApiError, Code};

/// Minimum rate at which a file must arrive and be taken, in bytes per second.
pub(super) const MIN_RATE: u64 = 64 << 10;

/// Limits of the time that a body takes to arrive. The time that the disk takes does not count.
#[derive(Debug)]
pub(super) struct BodyTimer {
    /// Maximum time until the next part of the body.
    wait: Duration,
    /// Time spent waiting for the body so far.
    waited: Duration,
    progress: Arc<BodyProgress>,
}

impl BodyTimer {
    pub(super) fn new(wait: Duration, progress: Arc<BodyProgress>) -> BodyTimer {
        BodyTimer { wait, waited: Duration::ZERO, progress }
    }

    /// Waits for the next part of the body.
    ///
    /// # Errors
    /// 408 if the part or the body so far took too long.
    pub(super) async fn next<T>(&mut self, part: impl Future<Output = T>) -> Result<T, ApiError> {
        let started = Instant::now();
        let received = timeout(self.wait.min(self.left()), part).await;
        self.waited += started.elapsed();
        received.map_err(|_| self.late())
    }

    /// Returns the time that is left until the body counts as too slow: a wait for one part, and the time that the
    /// minimum rate gives to the bytes so far.
    fn left(&self) -> Duration {
        let earned = Duration::from_secs_f64(self.progress.bytes() as f64 / MIN_RATE as f64);
        self.wait.saturating_add(earned).saturating_sub(self.waited)
    }

    fn late(&self) -> ApiError {
        let message = format!(
            "the body arrived too slowly: leave no pause of {} seconds, and send at least {} KiB per second on average",
            self.wait.as_secs_f64(),
            MIN_RATE >> 10
        );
        ApiError::new(Code::RequestTimeout, message)
    }
}
