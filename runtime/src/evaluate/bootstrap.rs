//! Bootstrap intervals (Efron 1979, percentile method), with a fixed seed so that a report repeats.

use serde::{Deserialize, Serialize};

/// Number of resamples.
const RESAMPLES: usize = 2000;

/// Seed of the resampling. It is fixed, because a seed that can be chosen can be chosen for a favorable result.
const SEED: u64 = 0x5eed;

/// Bounds of a 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Interval {
    /// Returns the interval of the mean of the strata's means: each stratum is resampled on its own, so that every
    /// resample has as many values of each stratum as the sample. Empty strata are left out.
    pub(super) fn of_strata(strata: &[&[f64]]) -> Interval {
        let strata: Vec<&[f64]> = strata.iter().copied().filter(|values| !values.is_empty()).collect();
        if strata.is_empty() {
            return Interval::default();
        }
        let mut random = SplitMix(SEED);
        let mut resample = |values: &[f64]| {
            let drawn = (0..values.len()).map(|_| values[random.below(values.len())]);
            drawn.sum::<f64>() / values.len() as f64
        };
        let mean = |_| strata.iter().map(|values| resample(values)).sum::<f64>() / strata.len() as f64;
        let mut means: Vec<f64> = (0..RESAMPLES).map(mean).collect();
        means.sort_by(f64::total_cmp);
        // 2.5 % of the resamples lie beyond each bound.
        Interval { low: means[RESAMPLES / 40], high: means[RESAMPLES - 1 - RESAMPLES / 40] }
    }

    /// Returns the interval of the mean of the strata's means, where each stratum holds the values of several runs, by
    /// run and question. A resample draws runs, which are common to all strata, then questions.
    pub fn of_seeds(strata: &[Vec<Vec<f64>>]) -> Interval {
        let runs = strata.iter().map(Vec::len).min().unwrap_or(0);
        let strata: Vec<&Vec<Vec<f64>>> =
            strata.iter().filter(|stratum| stratum.iter().all(|run| !run.is_empty())).collect();
        if runs == 0 || strata.is_empty() {
            return Interval::default();
        }
        let mut random = SplitMix(SEED);
        let mut means: Vec<f64> = (0..RESAMPLES).map(|_| resampled(&strata, runs, &mut random)).collect();
        means.sort_by(f64::total_cmp);
        Interval { low: means[RESAMPLES / 40], high: means[RESAMPLES - 1 - RESAMPLES / 40] }
    }

    /// Returns `true` if the interval does not contain zero.
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Returns the mean of one resample of runs and questions.
fn resampled(strata: &[&Vec<Vec<f64>>], runs: usize, random: &mut SplitMix) -> f64 {
    let drawn: Vec<usize> = (0..runs).map(|_| random.below(runs)).collect();
    let mut sum = 0.0;
    for stratum in strata {
        for &run in &drawn {
            let values = &stratum[run];
            let total: f64 = (0..values.len()).map(|_| values[random.below(values.len())]).sum();
            sum += total / values.len() as f64;
        }
    }
    sum / (strata.len() * runs) as f64
}

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        super::finalize(self.0)
    }

    /// Returns a number below `end`, which must not be 0. The bias is below one in 2³² for any list in memory.
    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_covers_the_mean_and_narrows_with_the_sample() {
        let sample =
            |count: usize| -> Vec<f64> { (0..count).map(|place| f64::from(u8::from(place % 4 == 0))).collect() };
        let few = Interval::of_strata(&[&sample(40)]);
        let many = Interval::of_strata(&[&sample(4000)]);
        for interval in [few, many] {
            assert!(interval.low < 0.25 && 0.25 < interval.high, "{interval:?}");
        }
        // 1.96 · √(0.25 · 0.75 / 40) = 0.134.
        assert!((few.high - few.low - 0.268).abs() < 0.04, "{few:?}");
        assert!(many.high - many.low < 0.03, "{many:?}");
        assert_eq!(few, Interval::of_strata(&[&sample(40)]), "the seed is fixed");
    }

    #[test]
    fn runs_that_differ_widen_the_interval() {
        let run = |mean: f64| vec![mean; 50];
        let alike = Interval::of_seeds(&[vec![run(0.5); 3]]);
        assert_eq!(alike, Interval { low: 0.5, high: 0.5 });
        let apart = Interval::of_seeds(&[vec![run(0.2), run(0.5), run(0.8)], vec![run(0.2), run(0.5), run(0.8)]]);
        assert!(apart.low < 0.3 && apart.high > 0.7, "{apart:?}");
        assert_eq!(Interval::of_seeds(&[]), Interval::default());
        assert_eq!(Interval::of_seeds(&[vec![vec![]]]), Interval::default());
    }

    #[test]
    fn strata_count_alike() {
        let large = vec![0.0; 1000];
        let small = vec![1.0; 10];
        assert_eq!(Interval::of_strata(&[&large, &small, &[]]), Interval { low: 0.5, high: 0.5 });
        assert_eq!(Interval::of_strata(&[]), Interval::default());
        assert!(Interval { low: 0.1, high: 0.2 }.excludes_zero() && !Interval { low: -0.1, high: 0.2 }.excludes_zero());
    }
}
