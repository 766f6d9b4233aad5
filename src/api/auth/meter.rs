//! How often a key may ask, and how much at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What one key may use. What is not given is not bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Requests in a minute. After a quiet minute as many may come at once.
    pub requests_per_minute: Option<u32>,
    /// Requests that run at the same time, streams included.
    pub concurrent: Option<u32>,
}

/// What one key uses now. Lives as long as the key is known, also when its file is read again.
#[derive(Debug, Default)]
pub(super) struct Meter(Mutex<Usage>);

#[derive(Debug, Default)]
struct Usage {
    bucket: Option<Bucket>,
    running: u32,
}

/// Requests that may come now: fills steadily, never above a minute's worth.
#[derive(Debug)]
struct Bucket {
    level: f64,
    filled: Instant,
}

/// Why a request has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The minute's requests are used up; one more may come after this time.
    Rate(Duration),
    /// As many run as may.
    Concurrency,
}

/// A request that was let in; until it is dropped it counts as running.
#[derive(Debug)]
pub(crate) struct Admitted(Arc<Meter>);

impl Meter {
    /// Lets a request in at `now`, if `limits` leave room for it. One that is refused uses nothing up.
    pub(super) fn admit(self: &Arc<Self>, limits: &Limits, now: Instant) -> Result<Admitted, Refused> {
        let mut usage = self.usage();
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

    fn usage(&self) -> MutexGuard<'_, Usage> {
        // Nothing in here can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.usage().running -= 1;
    }
}

impl Bucket {
    /// Takes one request out of a bucket that holds `full` and fills in a minute, or says when there will be one.
    fn take(&mut self, full: f64, now: Instant) -> Result<(), Duration> {
        let per_second = full / 60.0;
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.level = (self.level + passed * per_second).min(full);
        self.filled = self.filled.max(now);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return Ok(());
        }
        // A limit of none at all never has room; a day is as good an answer as any.
        let wait = (1.0 - self.level) / per_second;
        // Rounded up, so that whoever waits that long is let in.
        Err(Duration::from_secs_f64(wait.min(86_400.0)) + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn limits(requests_per_minute: Option<u32>, concurrent: Option<u32>) -> Limits {
        Limits { requests_per_minute, concurrent }
    }

    #[test]
    fn a_minutes_worth_at_once_then_one_at_a_time() {
        let (meter, limits, start) = (Arc::new(Meter::default()), limits(Some(60), None), Instant::now());
        for _ in 0..60 {
            meter.admit(&limits, start).unwrap();
        }
        let Err(Refused::Rate(wait)) = meter.admit(&limits, start) else { panic!("it was let in") };
        assert!(wait > Duration::from_secs(1) && wait < Duration::from_millis(1010), "{wait:?}");
        meter.admit(&limits, start + wait).unwrap();
        assert!(meter.admit(&limits, start + wait).is_err());
        // However long it was quiet, no more than a minute's worth has gathered.
        let later = start + Duration::from_secs(86_400);
        let admitted = (0..100).filter(|_| meter.admit(&limits, later).is_ok()).count();
        assert_eq!(admitted, 60);
    }

    #[test]
    fn what_runs_is_counted_until_it_is_over() {
        let (meter, now) = (Arc::new(Meter::default()), Instant::now());
        let two = limits(Some(3), Some(2));
        let first = meter.admit(&two, now).unwrap();
        let second = meter.admit(&two, now).unwrap();
        assert_eq!(meter.admit(&two, now).unwrap_err(), Refused::Concurrency);
        drop(first);
        let third = meter.admit(&two, now).unwrap();
        drop((second, third));
        // The refused one cost nothing, the others all that there was.
        assert!(matches!(meter.admit(&two, now), Err(Refused::Rate(_))));
    }

    #[test]
    fn a_limit_of_nothing_lets_nothing_in() {
        let (meter, now) = (Arc::new(Meter::default()), Instant::now());
        assert!(matches!(meter.admit(&limits(Some(0), None), now), Err(Refused::Rate(_))));
        assert_eq!(meter.admit(&limits(None, Some(0)), now).unwrap_err(), Refused::Concurrency);
    }

    proptest! {
        #[test]
        fn no_window_holds_more_than_the_bucket_and_its_flow(
            rate in 1u32..200,
            pauses in prop::collection::vec(0u64..5_000, 1..300),
        ) {
            let (meter, limits) = (Arc::new(Meter::default()), limits(Some(rate), None));
            let start = Instant::now();
            let mut at = Duration::ZERO;
            let mut admitted = Vec::new();
            for pause in pauses {
                at += Duration::from_millis(pause);
                match meter.admit(&limits, start + at) {
                    Ok(_) => admitted.push(at),
                    Err(Refused::Rate(wait)) => {
                        // Whoever does as it is told is let in.
                        let other = Arc::new(Meter(Mutex::new(Usage {
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
