//! Waiting for a card: soon after it is done, without keeping a core busy, and not for ever.

use std::thread;
use std::time::{Duration, Instant};

/// Below this a wait asks again and again: work that is over by now, or nearly.
const SOON: Duration = Duration::from_micros(20);
/// The shortest and the longest sleep between two questions.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];
/// Which part of the time gone by one sleep may add to it.
const SHARE: u32 = 32;
/// Around the moment at which the last wait ended it asks without sleeping: this much to either side at most, and at most
/// this part of the whole.
const AROUND: (Duration, u32) = (Duration::from_micros(50), 8);

/// How a series of like things is waited for, one after the other.
///
/// Steps that follow each other mostly take alike, so a wait sleeps while the work should still be going on and asks often
/// around the moment the one before was done. What comes early or late costs a thirty-second of its time at most, or the
/// shortest sleep.
#[derive(Debug, Clone)]
pub struct Patience {
    limit: Duration,
    /// How long the last one took.
    last: Duration,
}

/// What to do until the next question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// Let others run, if any want to.
    Yield,
    Sleep(Duration),
    /// It has taken too long.
    Over,
}

impl Patience {
    /// Waits of at most `limit` each.
    pub fn new(limit: Duration) -> Self {
        Self { limit, last: Duration::ZERO }
    }

    /// The longest a wait may take.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Asks `ready` until it says so: true; or false, when work that began at `begun` is not done after the limit. What is
    /// ready at the first question is, however late it is asked.
    ///
    /// # Errors
    /// Those of `ready`.
    pub fn wait<E>(&mut self, begun: Instant, mut ready: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
        while !ready()? {
            match self.pause(begun.elapsed()) {
                Pause::Yield => thread::yield_now(),
                Pause::Sleep(time) => thread::sleep(time),
                Pause::Over => return Ok(false),
            }
        }
        self.last = begun.elapsed();
        Ok(true)
    }

    fn pause(&self, gone: Duration) -> Pause {
        if gone >= self.limit {
            return Pause::Over;
        }
        let around = AROUND.0.min(self.last / AROUND.1);
        if gone < SOON || gone.abs_diff(self.last) < around {
            return Pause::Yield;
        }
        let nap = (gone / SHARE).clamp(NAPS[0], NAPS[1]).min(self.limit - gone);
        // Not past the moment at which it is probably done.
        let until = self.last.saturating_sub(around).saturating_sub(gone);
        Pause::Sleep(if until.is_zero() { nap } else { nap.min(until) })
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

    fn after(last: u64) -> Patience {
        Patience { limit: LIMIT, last: micros(last) }
    }

    #[test]
    fn what_never_ends_is_given_up_at_the_limit() {
        let limit = Duration::from_millis(20);
        let begun = Instant::now();
        assert_eq!(Patience::new(limit).wait(begun, || Ok::<_, Infallible>(false)), Ok(false));
        assert!(begun.elapsed() >= limit);
        assert_eq!(Patience::new(limit).wait(begun, || Ok::<_, Infallible>(true)), Ok(true), "done, if asked late");
        assert_eq!(Patience::new(limit).wait(begun, || Err::<bool, _>("gone")), Err("gone"));
    }

    #[test]
    fn it_asks_often_only_where_an_end_is_likely() {
        let steps = after(4000);
        assert_eq!(steps.pause(micros(5)), Pause::Yield);
        assert_eq!(steps.pause(micros(320)), Pause::Sleep(micros(20)));
        assert_eq!(steps.pause(micros(3200)), Pause::Sleep(micros(100)));
        assert_eq!(steps.pause(micros(3900)), Pause::Sleep(micros(50)), "up to where it is likely, no further");
        assert_eq!(steps.pause(micros(3960)), Pause::Yield);
        assert_eq!(steps.pause(micros(4040)), Pause::Yield);
        assert_eq!(steps.pause(micros(6400)), Pause::Sleep(micros(200)));
        assert_eq!(steps.pause(micros(400_000)), Pause::Sleep(micros(1000)));
        assert_eq!(steps.pause(LIMIT), Pause::Over);
        assert_eq!(steps.pause(LIMIT - micros(10)), Pause::Sleep(micros(10)), "the limit is kept");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever came before, a wait ends, soon after the work does, and is asleep for most of it.
        #[test]
        fn waits_sleep_and_end_soon(last in 0u64..1_000_000, takes in 0u64..1_000_000) {
            let (patience, takes) = (after(last), micros(takes));
            // A question takes a microsecond; a sleep what it says.
            let (mut gone, mut awake) = (Duration::ZERO, Duration::ZERO);
            while gone < takes {
                match patience.pause(gone) {
                    Pause::Yield => (gone, awake) = (gone + micros(1), awake + micros(1)),
                    Pause::Sleep(time) => {
                        prop_assert!(!time.is_zero());
                        (gone, awake) = (gone + time, awake + micros(1));
                    }
                    Pause::Over => prop_assert!(false, "given up after {:?}", gone),
                }
            }
            prop_assert!(gone - takes <= (takes / SHARE).max(micros(20)), "{:?} late", gone - takes);
            prop_assert!(awake <= micros(25) + takes / 3, "{awake:?} awake of {takes:?}");
        }
    }
}
