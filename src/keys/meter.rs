//! Rate and concurrency limits of API keys.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limits of one key. A limit that is `None` is not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyLimits {
    /// Requests per minute. After a quiet minute, that many may come at once.
    pub requests_per_minute: Option<u32>,
    /// Maximum number of requests that run at the same time, including streams.
    pub concurrent: Option<u32>,
}

/// Current usage of one key. It outlives a reload of the key file as long as the key's name stays.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<KeyUsage>);

#[derive(Debug, Default)]
struct KeyUsage {
    bucket: Option<Bucket>,
    running: u32,
}

/// Token bucket: refills steadily, up to one minute's worth of requests.
#[derive(Debug)]
struct Bucket {
    level: f64,
    filled: Instant,
}

/// Reason a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The requests per minute are used up. The next one is admitted after this time.
    Rate(Duration),
    /// The maximum number of requests is already running.
    Concurrency,
}

/// Slot of an admitted request. It counts as running until dropped.
#[derive(Debug)]
pub(crate) struct Admitted(Arc<Meter>);

impl Meter {
    /// Admits a request at `now` if `limits` allow it. A refused request uses nothing up.
    pub(crate) fn admit(self: &Arc<Self>, limits: &KeyLimits, now: Instant) -> Result<Admitted, Refused> {
        let mut usage = self.usage();
        // Checked first: a request refused for its concurrency must not use up the rate limit.
        if limits.concurrent.is_some_and(|most| usage.running >= most) {
            return Err(Refused::Concurrency);
        }
        if let Some(rate) = limits.requests_per_minute {
            let full = f64::from(rate);
            usage.bucket.get_or_insert(Bucket { level: full, filled: now }).take(full, now).map_err(Refused::Rate)?;
        }
        usage.running += 1;
        Ok(Admitted(Arc::clone(self)))
    }

    fn usage(&self) -> MutexGuard<'_, KeyUsage> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.usage().running -= 1;
    }
}

impl Bucket {
    /// Takes one request out of a bucket that holds `full` and refills within a minute. Returns the time to wait if it
    /// is empty.
    fn take(&mut self, full: f64, now: Instant) -> Result<(), Duration> {
        let per_second = full / 60.0;
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.level = (self.level + passed * per_second).min(full);
        // Callers take their timestamps before the lock, so these may arrive slightly out of order.
        self.filled = self.filled.max(now);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return Ok(());
        }
        // With a limit of 0 requests the wait is infinite, so it is capped at a day.
        let wait = (1.0 - self.level) / per_second;
        // Rounded up, so that a client that waits exactly this long is admitted.
        Err(Duration::from_secs_f64(wait.min(86_400.0)) + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn limits(requests_per_minute: Option<u32>, concurrent: Option<u32>) -> KeyLimits {
        KeyLimits { requests_per_minute, concurrent }
    }

    #[test]
    fn a_minutes_worth_at_once_then_one_at_a_time() {
        let meter = Arc::new(Meter::default());
        let limits = limits(Some(60), None);
        let start = Instant::now();
        for _ in 0..60 {
            meter.admit(&limits, start).unwrap();
        }
        let Err(Refused::Rate(wait)) = meter.admit(&limits, start) else { panic!("it was let in") };
        assert!(wait > Duration::from_secs(1) && wait < Duration::from_millis(1010), "{wait:?}");
        meter.admit(&limits, start + wait).unwrap();
        assert!(meter.admit(&limits, start + wait).is_err());
        // A long quiet time still accumulates no more than one minute's worth.
        let later = start + Duration::from_secs(86_400);
        let admitted = (0..100).filter(|_| meter.admit(&limits, later).is_ok()).count();
        assert_eq!(admitted, 60);
    }

    #[test]
    fn what_runs_is_counted_until_it_is_over() {
        let meter = Arc::new(Meter::default());
        let now = Instant::now();
        let two = limits(Some(3), Some(2));
        let first = meter.admit(&two, now).unwrap();
        let second = meter.admit(&two, now).unwrap();
        assert_eq!(meter.admit(&two, now).unwrap_err(), Refused::Concurrency);
        drop(first);
        let third = meter.admit(&two, now).unwrap();
        drop((second, third));
        // The refused request cost nothing; the three admitted ones used up the budget.
        assert!(matches!(meter.admit(&two, now), Err(Refused::Rate(_))));
    }

    #[test]
    fn a_limit_of_nothing_lets_nothing_in() {
        let meter = Arc::new(Meter::default());
        let now = Instant::now();
        assert!(matches!(meter.admit(&limits(Some(0), None), now), Err(Refused::Rate(_))));
        assert_eq!(meter.admit(&limits(None, Some(0)), now).unwrap_err(), Refused::Concurrency);
    }

    proptest! {
        #[test]
        fn no_window_holds_more_than_the_bucket_and_its_flow(
            rate in 1u32..200,
            pauses in prop::collection::vec(0u64..5_000, 1..300),
        ) {
            let meter = Arc::new(Meter::default());
            let limits = limits(Some(rate), None);
            let start = Instant::now();
            let mut at = Duration::ZERO;
            let mut admitted = Vec::new();
            for pause in pauses {
                at += Duration::from_millis(pause);
                match meter.admit(&limits, start + at) {
                    Ok(_) => admitted.push(at),
                    Err(Refused::Rate(wait)) => {
                        // A client that waits as told is admitted.
                        let other = Arc::new(Meter(Mutex::new(KeyUsage {
                            bucket: meter.usage().bucket.as_ref().map(|it| Bucket { ..*it }),
                            running: 0,
                        })));
                        prop_assert!(other.admit(&limits, start + at + wait).is_ok());
                    }
                    Err(refused) => prop_assert!(false, "{refused:?}"),
                }
            }
            for (first, from) in admitted.iter().enumerate() {
                for (last, to) in admitted.iter().enumerate().skip(first) {
                    let flow = (*to - *from).as_secs_f64() * f64::from(rate) / 60.0;
                    prop_assert!((last - first + 1) as f64 <= f64::from(rate) + flow + 1e-6);
                }
            }
        }
    }
}
