//! Measured cost of a step as a function of its number of tokens.

use std::time::Duration;

/// Number of size classes. Class `n` holds the steps of 2ⁿ to 2ⁿ⁺¹ − 1 tokens; the last one, all larger steps.
const CLASSES: usize = 14;
/// Weight of a new measurement in the mean of its class.
const NEWEST: f64 = 0.2;

/// Mean of the measured steps of one size class.
#[derive(Debug, Clone, Copy)]
struct MeanStep {
    tokens: f64,
    seconds: f64,
}

/// Time of a step by its size: a fixed part (the weights are read once) and a part per token. Both depend on the model
/// and the machine, so they are measured while the engine runs.
#[derive(Debug, Default)]
pub(super) struct StepCosts {
    means: [Option<MeanStep>; CLASSES],
}

impl StepCosts {
    /// Records a step.
    pub(super) fn record(&mut self, tokens: usize, time: Duration) {
        let Some(class) = tokens.checked_ilog2() else { return };
        let mean = &mut self.means[(class as usize).min(CLASSES - 1)];
        let new = MeanStep { tokens: tokens as f64, seconds: time.as_secs_f64() };
        *mean = Some(match *mean {
            None => new,
            // A step may be slowed by something else, such as the recording of a graph or another process.
            Some(old) => MeanStep {
                tokens: old.tokens + NEWEST * (new.tokens - old.tokens),
                seconds: old.seconds + NEWEST * (new.seconds - old.seconds),
            },
        });
    }

    /// Predicts the seconds of a step of `tokens` tokens. `None` before the first measurement.
    fn seconds(&self, tokens: f64) -> Option<f64> {
        let known = || self.means.iter().flatten();
        let below = known().rfind(|mean| mean.tokens <= tokens);
        let above = known().find(|mean| mean.tokens > tokens);
        match (below, above) {
            (Some(low), Some(high)) => {
                let share = (tokens - low.tokens) / (high.tokens - low.tokens);
                Some(low.seconds + share * (high.seconds - low.seconds).max(0.0))
            }
            // Pessimistic: a step larger than any measured one is taken to have no fixed part. Budgets derived from it
            // are measured in turn, so that the prediction approaches the truth from above.
            (Some(low), None) => Some(low.seconds * tokens / low.tokens),
            (None, Some(high)) => Some(high.seconds),
            (None, None) => None,
        }
    }

    /// Returns the largest step of at most `limit` tokens that takes at most `stretch` times as long as one of `tokens`.
    pub(super) fn stretched(&self, tokens: usize, stretch: f64, limit: usize) -> usize {
        match self.seconds(tokens as f64) {
            Some(seconds) => self.largest(limit, |_, time| time <= stretch * seconds),
            None => limit,
        }
    }

    /// Returns the smallest step of at most `limit` tokens whose cost per token exceeds that of a step of `limit` tokens
    /// by at most the fraction `waste`.
    pub(super) fn efficient(&self, waste: f64, limit: usize) -> usize {
        let Some(whole) = self.seconds(limit as f64) else { return limit };
        let per_token = whole / limit as f64 * (1.0 + waste);
        let wasteful = self.largest(limit, |tokens, time| time > per_token * tokens as f64);
        (wasteful + 1).min(limit)
    }

    /// Returns the largest size up to `limit` that `fits`, or 0. Assumes that all smaller sizes fit too.
    fn largest(&self, limit: usize, fits: impl Fn(usize, f64) -> bool) -> usize {
        let mut low = 0;
        let mut high = limit;
        while low < high {
            let middle = (low + high).div_ceil(2);
            match self.seconds(middle as f64).is_none_or(|time| fits(middle, time)) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Costs after steps of 3 ms and 0.5 ms per token.
    fn linear(sizes: &[usize]) -> StepCosts {
        let mut costs = StepCosts::default();
        for &tokens in sizes {
            costs.record(tokens, Duration::from_micros(3000 + 500 * tokens as u64));
        }
        costs
    }

    #[test]
    fn nothing_is_limited_before_the_first_measurement() {
        let costs = StepCosts::default();
        assert_eq!((costs.stretched(4, 1.5, 512), costs.efficient(0.05, 512)), (512, 512));
    }

    #[test]
    fn a_step_is_stretched_by_the_tokens_that_take_as_long() {
        let costs = linear(&[1, 4, 512]);
        // 5 ms for 4 tokens; twice that is 14 tokens.
        assert_eq!(costs.stretched(4, 2.0, 512), 14);
        assert_eq!(costs.stretched(4, 2.0, 10), 10);
    }

    #[test]
    fn an_efficient_step_spreads_the_fixed_part() {
        let costs = linear(&[1, 512]);
        let tokens = costs.efficient(0.05, 512) as f64;
        let per_token = |tokens: f64| (3.0 + 0.5 * tokens) / tokens;
        let whole = per_token(512.0);
        assert!(per_token(tokens) <= whole * 1.05 && per_token(tokens - 1.0) > whole * 1.05, "{tokens}");
    }

    #[test]
    fn an_unmeasured_size_is_approached_from_below() {
        let mut costs = linear(&[1, 2]);
        let mut tokens = 2;
        for _ in 0..20 {
            let next = costs.stretched(2, 3.0, 512);
            assert!(next >= tokens, "{next} after {tokens}");
            tokens = next;
            costs.record(tokens, Duration::from_micros(3000 + 500 * tokens as u64));
        }
        // 4 ms for 2 tokens; three times that is 18 tokens.
        assert!((16..=18).contains(&tokens), "{tokens}");
    }
}
