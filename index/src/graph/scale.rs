//! Min-max scaling of scores to [0, 1].

/// Scale that maps the smallest of some numbers to 0 and the largest to 1 (HippoRAG 2,
/// `misc_utils.py:min_max_normalize`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    low: f32,
    high: f32,
}

impl Scale {
    /// Scale of numbers whose minimum is `low` and whose maximum is `high`.
    pub fn new(low: f32, high: f32) -> Scale {
        Scale { low, high }
    }

    /// Scale of these numbers.
    pub fn of(numbers: impl IntoIterator<Item = f32>) -> Scale {
        let grow = |Scale { low, high }, x: f32| Scale { low: low.min(x), high: high.max(x) };
        numbers.into_iter().fold(Scale { low: f32::INFINITY, high: f32::NEG_INFINITY }, grow)
    }

    /// Scales one of the numbers. If all are equal, all become 1.
    pub fn apply(&self, number: f32) -> f32 {
        if self.high > self.low { (number - self.low) / (self.high - self.low) } else { 1.0 }
    }
}
