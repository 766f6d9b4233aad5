//! Histograms with fixed buckets, written by one thread and read by any.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Histogram with fixed buckets.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Counts per bucket. One more entry than `bounds`: the last bucket has no upper bound.
    counts: Box<[AtomicU64]>,
    /// Bit pattern of an `f64`.
    sum: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramSnapshot {
    /// Upper bounds of the buckets, ascending; an infinite one is implied at the end.
    pub bounds: &'static [f64],
    /// Number of observations in each bucket alone. One more entry than `bounds`.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
}

impl HistogramSnapshot {
    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0f64.to_bits()) }
    }

    /// Adds an observation. Only the engine thread calls this, so plain loads and stores lose no update.
    pub(super) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].store(self.counts[bucket].load(Relaxed) + 1, Relaxed);
        let sum = f64::from_bits(self.sum.load(Relaxed)) + value;
        // A reader between the two stores sees a count without its value, which the next scrape corrects.
        self.sum.store(sum.to_bits(), Relaxed);
    }

    /// Returns the observations so far.
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            bounds: self.bounds,
            counts: self.counts.iter().map(|count| count.load(Relaxed)).collect(),
            sum: f64::from_bits(self.sum.load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_below_it() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 2.0, 9.0] {
            histogram.observe(value);
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.counts, [2, 2, 1]);
        assert_eq!(snapshot.sum, 14.0);
        assert_eq!(snapshot.count(), 5);
    }
}
