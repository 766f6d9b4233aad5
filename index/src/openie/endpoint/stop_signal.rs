//! Interruptible waits, and the duration of waits between attempts.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::split_mix::{STEP, finalize};

/// Signal that ends the waits of all threads.
#[derive(Debug, Default)]
pub(super) struct StopSignal {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Ends every wait, now and later.
    pub(super) fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    pub(super) fn stopped(&self) -> bool {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits. Returns `false` if interrupted.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(stopped, time, |stopped| !*stopped);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Computes the wait after `failed` attempts, at least 1: `first`, doubled for each further failure, at most `longest`,
/// minus up to half of it. The same `seed` and `number` always subtract the same share.
pub(super) fn backoff(first: Duration, longest: Duration, failed: u32, seed: u64, number: u32) -> Duration {
    // The shift is bounded, so that a long series of failures cannot overflow it.
    let full = first.saturating_mul(1 << (failed - 1).min(20)).min(longest);
    let numbered = finalize((seed ^ (u64::from(number) << 32)).wrapping_add(STEP));
    let mixed = finalize((numbered ^ u64::from(failed)).wrapping_add(STEP));
    let fraction = (mixed >> 11) as f64 / (1_u64 << 53) as f64;
    full.mul_f64(1.0 - fraction / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_differ_between_passages_but_not_between_runs() {
        let wait = |failed, seed, number| {
            backoff(Duration::from_millis(100), Duration::from_millis(350), failed, seed, number).as_micros()
        };
        for (failed, most) in [(1, 100_000), (2, 200_000), (3, 350_000), (40, 350_000)] {
            for number in 0..50 {
                let wait = wait(failed, 7, number);
                assert!((most / 2..=most).contains(&wait), "{failed}: {wait}");
            }
        }
        assert_eq!(wait(2, 7, 3), wait(2, 7, 3));
        assert_ne!(wait(2, 7, 3), wait(2, 7, 4));
        assert_ne!(wait(2, 7, 3), wait(2, 8, 3));
    }

    #[test]
    fn a_wait_ends_when_it_is_told_to() {
        let pause = StopSignal::default();
        assert!(pause.wait(Duration::from_millis(1)));
        let started = std::time::Instant::now();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pause.wait(Duration::from_secs(600)));
            pause.stop();
            assert_eq!(waiting.join().ok(), Some(false));
        });
        assert!(started.elapsed() < Duration::from_secs(60));
    }
}
