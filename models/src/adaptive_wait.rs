//! Polling for the completion of asynchronous work, such as work on a GPU. Polls have low latency and a time limit, and
//! do not keep a CPU core busy.

use std::thread;
use std::time::{Duration, Instant};

/// Time after the beginning of the work in which polls do not sleep, since the work may already be done.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// Time by which a sleep may last longer than asked for: Linux may delay its end by 50 µs (`timer_slack_ns`), and waking
/// the thread takes a few more.
const OVERSLEEP: Duration = Duration::from_micros(60);
/// Shortest and longest sleep between two polls.
const SLEEP_RANGE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
/// Denominator of the share of the elapsed time that one sleep may add.
const SLEEP_SHARE: u32 = 32;
/// Half-width of the window around the duration of the previous wait in which polls do not sleep. The half-width is a
/// share of that duration, given by its denominator (second value), and at most the first value. The last sleep before
/// the window ends [`OVERSLEEP`] ahead of it.
const POLL_WINDOW: (Duration, u32) = (Duration::from_micros(100), 8);

/// Waits for a series of similar steps, one after the other.
///
/// Consecutive steps mostly take equally long. A wait therefore sleeps while the step should still be running and polls
/// without sleeping around the duration of the previous one, for a quarter of a millisecond or less. The end of a step
/// that takes less or more time is noticed with a delay of at most 1/32 of its duration, or of the shortest sleep, plus
/// the time by which the system prolongs a sleep.
#[derive(Debug, Clone)]
pub struct AdaptiveWait {
    limit: Duration,
    /// Duration of the previous wait.
    last: Duration,
}

/// Action until the next poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitAction {
    /// Yield the CPU to other threads.
    Yield,
    Sleep(Duration),
    /// Give up: the limit has passed.
    TimedOut,
}

impl AdaptiveWait {
    /// Creates waits of at most `limit` each.
    pub fn new(limit: Duration) -> Self {
        Self { limit, last: Duration::ZERO }
    }

    /// Returns the time limit of a wait.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Polls `ready` until it returns `true`. Returns `false` when work that began at `started` is not done within the
    /// limit. Work that is ready at the first poll counts as done, however late that poll is.
    ///
    /// # Errors
    /// The errors of `ready`.
    pub fn wait<E>(&mut self, started: Instant, mut ready: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
        while !ready()? {
            match self.pause(started.elapsed()) {
                WaitAction::Yield => thread::yield_now(),
                WaitAction::Sleep(time) => thread::sleep(time),
                WaitAction::TimedOut => return Ok(false),
            }
        }
        self.last = started.elapsed();
        Ok(true)
    }

    fn pause(&self, elapsed: Duration) -> WaitAction {
        if elapsed >= self.limit {
            return WaitAction::TimedOut;
        }
        let around = POLL_WINDOW.0.min(self.last / POLL_WINDOW.1);
        let window = self.last.saturating_sub(around + OVERSLEEP)..self.last + around;
        if elapsed < SPIN_TIME || window.contains(&elapsed) {
            return WaitAction::Yield;
        }
        let sleep = (elapsed / SLEEP_SHARE).clamp(SLEEP_RANGE[0], SLEEP_RANGE[1]).min(self.limit - elapsed);
        // Never sleep past the expected end.
        let until = window.start.saturating_sub(elapsed);
        WaitAction::Sleep(if until.is_zero() { sleep } else { sleep.min(until) })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    fn after(last: u64) -> AdaptiveWait {
        AdaptiveWait { limit: LIMIT, last: micros(last) }
    }

    #[test]
    fn what_never_ends_is_given_up_at_the_limit() {
        let limit = Duration::from_millis(20);
        let started = Instant::now();
        assert_eq!(AdaptiveWait::new(limit).wait(started, || Ok::<_, Infallible>(false)), Ok(false));
        assert!(started.elapsed() >= limit);
        assert_eq!(
            AdaptiveWait::new(limit).wait(started, || Ok::<_, Infallible>(true)),
            Ok(true),
            "done, if asked late"
        );
        assert_eq!(AdaptiveWait::new(limit).wait(started, || Err::<bool, _>("elapsed")), Err("elapsed"));
    }

    #[test]
    fn it_asks_often_only_where_an_end_is_likely() {
        let steps = after(4000);
        assert_eq!(steps.pause(micros(5)), WaitAction::Yield);
        assert_eq!(steps.pause(micros(320)), WaitAction::Sleep(micros(50)));
        assert_eq!(steps.pause(micros(3200)), WaitAction::Sleep(micros(100)));
        assert_eq!(steps.pause(micros(3800)), WaitAction::Sleep(micros(40)), "up to where it is likely, no further");
        assert_eq!(steps.pause(micros(3840)), WaitAction::Yield);
        assert_eq!(steps.pause(micros(4099)), WaitAction::Yield);
        assert_eq!(steps.pause(micros(6400)), WaitAction::Sleep(micros(200)));
        assert_eq!(steps.pause(micros(400_000)), WaitAction::Sleep(micros(1000)));
        assert_eq!(steps.pause(LIMIT), WaitAction::TimedOut);
        assert_eq!(steps.pause(LIMIT - micros(10)), WaitAction::Sleep(micros(10)), "the limit is kept");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// After any history, a wait ends soon after the work does, at once where the work takes as long as before, and
        /// sleeps for all but a bounded time.
        #[test]
        fn waits_sleep_and_end_soon(last in 0u64..1_000_000, takes in 0u64..1_000_000) {
            let wait = after(last);
            let takes = micros(takes);
            // Model: a poll takes a microsecond, and a sleep lasts as much longer as it may.
            let mut elapsed = Duration::ZERO;
            let mut awake = Duration::ZERO;
            while elapsed < takes {
                match wait.pause(elapsed) {
                    WaitAction::Yield => (elapsed, awake) = (elapsed + micros(1), awake + micros(1)),
                    WaitAction::Sleep(time) => {
                        prop_assert!(!time.is_zero());
                        (elapsed, awake) = (elapsed + time + OVERSLEEP, awake + micros(1));
                    }
                    WaitAction::TimedOut => prop_assert!(false, "given up after {:?}", elapsed),
                }
            }
            let late = elapsed - takes;
            prop_assert!(late <= (takes / SLEEP_SHARE).max(micros(50)) + OVERSLEEP, "{late:?} late");
            let expected = takes.abs_diff(wait.last) < (wait.last / 8).min(micros(100));
            prop_assert!(!expected || late <= micros(1), "{late:?} late, {takes:?} after {:?}", wait.last);
            prop_assert!(awake <= micros(365) + takes / 40, "{awake:?} awake of {takes:?}");
        }
    }
}
