//! Rate and concurrency limits of API keys.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Limits of one key. A limit that is `None` is not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeyLimits {
    /// Requests per minute; each prompt of a list counts. After a quiet minute, that many may come at once.
    pub requests_per_minute: Option<u32>,
    /// Tokens per minute, of prompts and answers together. Their number is known only afterwards, so a request may
    /// overdraw the limit, and the next ones wait until that is made up for.
    pub tokens_per_minute: Option<u32>,
    /// Maximum number of requests that run at the same time, including streams.
    pub concurrent: Option<u32>,
}

/// Current usage of one key. It outlives a reload of the key file as long as the key's name stays.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<KeyUsage>);

#[derive(Debug, Default)]
struct KeyUsage {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    running: u32,
}

/// Token bucket: refills steadily, up to one minute's worth.
#[derive(Debug)]
struct Bucket {
    /// Number of units left. Negative if more were spent than there were.
    level: f64,
    filled: Instant,
}

/// Reason a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The requests per minute are used up. The next one is admitted after this time.
    Rate(Duration),
    /// The tokens per minute are used up. The next request is admitted after this time.
    Tokens(Duration),
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
        if let Some(rate) = limits.tokens_per_minute {
            Bucket::of(&mut usage.tokens, rate, now).check(1.0, rate).map_err(Refused::Tokens)?;
        }
        if let Some(rate) = limits.requests_per_minute {
            let bucket = Bucket::of(&mut usage.requests, rate, now);
            bucket.check(1.0, rate).map_err(Refused::Rate)?;
            bucket.level -= 1.0;
        }
        usage.running += 1;
        Ok(Admitted(Arc::clone(self)))
    }

    /// Counts `more` further requests at `now` for an admitted request that stands for several, if `limits` allow them.
    /// More requests than a minute allows need a full minute's worth and overdraw it, because they could never be
    /// admitted otherwise.
    pub(crate) fn count_requests(&self, limits: &KeyLimits, more: usize, now: Instant) -> Result<(), Refused> {
        let Some(rate) = limits.requests_per_minute else { return Ok(()) };
        let mut usage = self.usage();
        let bucket = Bucket::of(&mut usage.requests, rate, now);
        // The admitted request has taken the first of a minute's worth.
        let needed = (more as f64).min(f64::from(rate) - 1.0);
        bucket.check(needed, rate).map_err(Refused::Rate)?;
        // May become negative, and later requests then wait until it is made up for.
        bucket.level -= more as f64;
        Ok(())
    }

    /// Takes back what [`Meter::count_requests`] counted.
    pub(crate) fn uncount_requests(&self, limits: &KeyLimits, more: usize, now: Instant) {
        let Some(rate) = limits.requests_per_minute else { return };
        Bucket::of(&mut self.usage().requests, rate, now).give_back(more, rate);
    }

    /// Counts `tokens` tokens at `now`.
    pub(crate) fn count_tokens(&self, limits: &KeyLimits, tokens: usize, now: Instant) {
        if let Some(rate) = limits.tokens_per_minute {
            Bucket::of(&mut self.usage().tokens, rate, now).level -= tokens as f64;
        }
    }

    /// Takes back what [`Meter::count_tokens`] counted.
    pub(crate) fn uncount_tokens(&self, limits: &KeyLimits, tokens: usize, now: Instant) {
        if let Some(rate) = limits.tokens_per_minute {
            Bucket::of(&mut self.usage().tokens, rate, now).give_back(tokens, rate);
        }
    }

    /// Returns `true` if nothing runs and every limit is unused, so the meter is as good as a new one.
    pub(crate) fn is_idle(&self, limits: &KeyLimits, now: Instant) -> bool {
        let mut usage = self.usage();
        let KeyUsage { requests, tokens, running } = &mut *usage;
        let places = [(requests, limits.requests_per_minute), (tokens, limits.tokens_per_minute)];
        let unused = |(place, rate): (&mut Option<Bucket>, Option<u32>)| {
            rate.is_none_or(|rate| Bucket::of(place, rate, now).level >= f64::from(rate))
        };
        *running == 0 && places.into_iter().all(unused)
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
    /// Returns the bucket at `place`, which holds `rate` units and refills within a minute, as it is at `now`.
    fn of(place: &mut Option<Bucket>, rate: u32, now: Instant) -> &mut Bucket {
        let full = f64::from(rate);
        let bucket = place.get_or_insert(Bucket { level: full, filled: now });
        let passed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.level = (bucket.level + passed * full / 60.0).min(full);
        // Callers take their timestamps before the lock, so these may arrive slightly out of order.
        bucket.filled = bucket.filled.max(now);
        bucket
    }

    /// Gives back `units` units that were not used.
    fn give_back(&mut self, units: usize, rate: u32) {
        self.level = (self.level + units as f64).min(f64::from(rate));
    }

    /// Checks that there are `units` units. Returns the time to wait if there are fewer.
    fn check(&self, units: f64, rate: u32) -> Result<(), Duration> {
        if self.level >= units {
            return Ok(());
        }
        // With a limit of 0 the wait is infinite, so it is capped at a day.
        let wait = (units - self.level) / (f64::from(rate) / 60.0);
        // Rounded up, so a client that waits exactly this long is admitted.
        Err(Duration::from_secs_f64(wait.min(86_400.0)) + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn limits(requests_per_minute: Option<u32>, concurrent: Option<u32>) -> KeyLimits {
        KeyLimits { requests_per_minute, concurrent, ..KeyLimits::default() }
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

    #[test]
    fn every_prompt_of_a_list_is_a_request() {
        let meter = Arc::new(Meter::default());
        let limits = limits(Some(10), None);
        let now = Instant::now();
        let _list = meter.admit(&limits, now).unwrap();
        meter.count_requests(&limits, 8, now).unwrap();
        let _other = meter.admit(&limits, now).unwrap();
        assert!(matches!(meter.count_requests(&limits, 8, now), Err(Refused::Rate(_))), "the minute is used up");
        // A longer list than a minute allows needs all of it, and delays the next request by its length.
        let later = now + Duration::from_secs(60);
        let _long = meter.admit(&limits, later).unwrap();
        meter.count_requests(&limits, 63, later).unwrap();
        let Err(Refused::Rate(wait)) = meter.admit(&limits, later) else { panic!("it was let in") };
        assert!(wait > Duration::from_secs(5 * 60), "{wait:?}");
    }

    #[test]
    fn tokens_are_counted_afterwards_and_made_up_for() {
        let meter = Arc::new(Meter::default());
        let limits = KeyLimits { tokens_per_minute: Some(600), ..KeyLimits::default() };
        let now = Instant::now();
        for _ in 0..5 {
            meter.admit(&limits, now).unwrap();
        }
        meter.count_tokens(&limits, 900, now);
        let Err(Refused::Tokens(wait)) = meter.admit(&limits, now) else { panic!("it was let in") };
        assert!(wait > Duration::from_secs(30) && wait < Duration::from_secs(31), "{wait:?}");
        assert!(!meter.is_idle(&limits, now + wait) && meter.is_idle(&limits, now + Duration::from_secs(120)));
        meter.admit(&limits, now + wait).unwrap();
    }

    #[test]
    fn tokens_that_are_taken_back_never_exceed_a_minutes_worth() {
        let meter = Arc::new(Meter::default());
        let limits = KeyLimits { tokens_per_minute: Some(600), ..KeyLimits::default() };
        let now = Instant::now();
        meter.count_tokens(&limits, 900, now);
        meter.uncount_tokens(&limits, 900, now);
        assert!(meter.is_idle(&limits, now));
        let later = now + Duration::from_secs(30);
        meter.count_tokens(&limits, 900, now);
        meter.uncount_tokens(&limits, 900, later);
        meter.count_tokens(&limits, 600, later);
        assert!(matches!(meter.admit(&limits, later), Err(Refused::Tokens(_))));
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
                            requests: meter.usage().requests.as_ref().map(|it| Bucket { ..*it }),
                            ..KeyUsage::default()
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
