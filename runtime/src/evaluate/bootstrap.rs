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
    /// run and question; a question without a value is `None`. A resample draws runs, which are common to all strata,
    /// then for each stratum questions, which are common to all runs: the same questions were asked in each of them.
    /// Returns `None` if there are no strata, or a run has no value in one of them.
    pub fn of_seeds(strata: &[Vec<Vec<Option<f64>>>]) -> Option<Interval> {
        let runs = strata.iter().map(Vec::len).min()?;
        let has_value = |run: &Vec<Option<f64>>| run.iter().any(Option::is_some);
        if runs == 0 || !strata.iter().flatten().all(has_value) {
            return None;
        }
        let mut random = SplitMix(SEED);
        let mut means: Vec<f64> = (0..RESAMPLES).filter_map(|_| resampled(strata, runs, &mut random)).collect();
        means.sort_by(f64::total_cmp);
        let beyond = means.len() / 40;
        Some(Interval { low: *means.get(beyond)?, high: *means.get(means.len() - 1 - beyond)? })
    }
}

/// Returns the mean of one resample of runs and questions. `None` if the drawn questions have no value in a stratum.
fn resampled(strata: &[Vec<Vec<Option<f64>>>], runs: usize, random: &mut SplitMix) -> Option<f64> {
    let drawn: Vec<usize> = (0..runs).map(|_| random.below(runs)).collect();
    let mut sum = 0.0;
    for stratum in strata {
        let questions = stratum.iter().map(Vec::len).min()?;
        let asked: Vec<usize> = (0..questions).map(|_| random.below(questions)).collect();
        let values = drawn.iter().flat_map(|&run| asked.iter().filter_map(move |&question| stratum[run][question]));
        let (total, count) = values.fold((0.0, 0usize), |(total, count), value| (total + value, count + 1));
        if count == 0 {
            return None;
        }
        sum += total / count as f64;
    }
    Some(sum / strata.len() as f64)
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
    #![allow(clippy::unwrap_used)]
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
        let run = |mean: f64| vec![Some(mean); 50];
        let alike = Interval::of_seeds(&[vec![run(0.5); 3]]);
        assert_eq!(alike, Some(Interval { low: 0.5, high: 0.5 }));
        let runs = vec![run(0.2), run(0.5), run(0.8)];
        let apart = Interval::of_seeds(&[runs.clone(), runs]).unwrap();
        assert!(apart.low < 0.3 && apart.high > 0.7, "{apart:?}");
    }

    #[test]
    fn runs_over_the_same_questions_do_not_narrow_the_interval() {
        let run: Vec<Option<f64>> = (0..100).map(|place| Some(f64::from(u8::from(place % 4 == 0)))).collect();
        let width = |seeds: usize| {
            let Interval { low, high } = Interval::of_seeds(&[vec![run.clone(); seeds]]).unwrap();
            high - low
        };
        // 2 · 1.96 · √(0.25 · 0.75 / 100) = 0.17.
        assert!((width(1) - 0.17).abs() < 0.02, "{}", width(1));
        assert!((width(3) - width(1)).abs() < 0.02, "{} {}", width(1), width(3));
    }

    #[test]
    fn a_run_without_a_value_leaves_no_interval() {
        assert_eq!(Interval::of_seeds(&[]), None);
        assert_eq!(Interval::of_seeds(&[vec![vec![]]]), None);
        assert_eq!(Interval::of_seeds(&[vec![vec![Some(1.0); 9], vec![None; 9]]]), None);
        let few = vec![Some(1.0), None, None];
        assert_eq!(Interval::of_seeds(&[vec![few]]), Some(Interval { low: 1.0, high: 1.0 }), "those that have values");
    }

    #[test]
    fn strata_count_alike() {
        let large = vec![0.0; 1000];
        let small = vec![1.0; 10];
        assert_eq!(Interval::of_strata(&[&large, &small, &[]]), Interval { low: 0.5, high: 0.5 });
        assert_eq!(Interval::of_strata(&[]), Interval::default());
    }
}
