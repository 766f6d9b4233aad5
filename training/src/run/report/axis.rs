//! Axes with round limits and ticks.

/// Range of values with ticks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    /// Distance between ticks: 1, 2, 2.5 or 5 times a power of ten. On an axis for steps, 2.5 is rounded up to 3.
    pub(super) step: f64,
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    /// Creates an axis for values. It has about `tick_count` ticks, the first and the last at its limits.
    pub(super) fn for_values(low: f64, high: f64, tick_count: usize) -> Axis {
        let (low, high) = widen(low, high);
        let step = round_step((high - low) / tick_count.max(1) as f64);
        // The tolerance keeps rounding errors from adding an empty interval at either end.
        let first = (low / step + 1e-9).floor();
        let last = (high / step - 1e-9).ceil();
        Axis { low: first * step, high: last * step, step, ticks: ticks(first, last, step) }
    }

    /// Cuts the axis off above `high`, which must be above its lower limit.
    pub(super) fn cut_above(mut self, high: f64) -> Axis {
        self.high = self.high.min(high);
        self.ticks.retain(|&tick| tick <= self.high + 1e-9 * self.step);
        self
    }

    /// Creates an axis for steps. It ends with the last step, and ticks are integers.
    pub(super) fn for_steps(low: u64, high: u64, tick_count: usize) -> Axis {
        let low_end = low as f64;
        // A run of one step still needs an axis of positive length.
        let high_end = high.max(low + 1) as f64;
        let mut step = round_step((high_end - low_end) / tick_count.max(1) as f64);
        if step.fract() != 0.0 {
            // Steps are whole: a tick at 2.5 would name a step that does not exist.
            step = step.ceil();
        }
        let first = (low_end / step).ceil();
        let last = (high_end / step).floor();
        Axis { low: low_end, high: high_end, step, ticks: ticks(first, last, step) }
    }

    /// Returns the position of a value: 0 at the lower limit, 1 at the upper one.
    pub(super) fn position(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

/// Widens the range of constant values. An empty range becomes 0 to 1.
fn widen(low: f64, high: f64) -> (f64, f64) {
    if !(low.is_finite() && high.is_finite() && low <= high) {
        return (0.0, 1.0);
    }
    let min_width = 1e-9 * low.abs().max(high.abs()).max(1e-9);
    if high - low > min_width {
        return (low, high);
    }
    match low {
        0.0 => (0.0, 1.0),
        _ => (low - low.abs() / 2.0, high + high.abs() / 2.0),
    }
}

fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| step <= factor * power * (1.0 + 1e-9)).unwrap_or(10.0);
    factor * power
}

fn ticks(first: f64, last: f64, step: f64) -> Vec<f64> {
    let count = (last - first).max(0.0) as usize;
    (0..=count).map(|index| (first + index as f64) * step).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limits_are_round() {
        let axis = Axis::for_values(0.03, 0.97, 4);
        assert_eq!((axis.low, axis.high, axis.step), (0.0, 1.0, 0.25));
        assert_eq!(axis.ticks, [0.0, 0.25, 0.5, 0.75, 1.0]);
        let axis = Axis::for_values(0.95, 1.0, 2);
        assert_eq!(axis.cut_above(1.0).high, 1.0);
        let axis = Axis::for_values(0.0, 1e-4, 4);
        assert_eq!(axis.ticks.len(), 5);
        assert!((axis.high - 1e-4).abs() < 1e-12);
        let axis = Axis::for_values(3.0, 3.0, 4);
        assert!(axis.low < 3.0 && axis.high > 3.0);
        assert_eq!(Axis::for_values(f64::INFINITY, f64::NEG_INFINITY, 4).ticks.first(), Some(&0.0));
    }

    #[test]
    fn steps_are_whole() {
        assert_eq!(Axis::for_steps(1, 3, 6).ticks, [1.0, 2.0, 3.0]);
        assert_eq!(Axis::for_steps(1, 39, 5).ticks, [10.0, 20.0, 30.0]);
        assert_eq!(Axis::for_steps(7, 7, 5).high, 8.0);
    }

    proptest! {
        #[test]
        fn every_value_lies_on_the_axis(low in -1e6f64..1e6, width in 0f64..1e6, tick_count in 2usize..8) {
            let axis = Axis::for_values(low, low + width, tick_count);
            prop_assert!(axis.position(low) >= -1e-6 && axis.position(low + width) <= 1.0 + 1e-6);
            prop_assert!((2..=3 * tick_count + 3).contains(&axis.ticks.len()), "{:?}", axis);
            prop_assert!(axis.ticks.iter().all(|&tick| (-1e-6..=1.0 + 1e-6).contains(&axis.position(tick))));
        }

        #[test]
        fn ticks_of_steps_lie_within(low in 0u64..10_000, width in 0u64..100_000, tick_count in 2usize..8) {
            let axis = Axis::for_steps(low, low + width, tick_count);
            prop_assert!(axis.ticks.iter().all(|tick| tick.fract() == 0.0 && (axis.low..=axis.high).contains(tick)));
            prop_assert!(axis.ticks.len() <= tick_count + 2);
        }
    }
}
