//! Means with their standard errors.

use serde::{Deserialize, Serialize};

/// A mean with its standard error over questions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Estimate {
    /// Mean of the values.
    pub mean: f64,
    /// Standard error of the mean.
    pub error: f64,
    /// Number of values.
    pub count: usize,
}

impl Estimate {
    /// Returns the mean of the sets' means with its standard error: all sets count alike. Empty sets are left out.
    pub(super) fn of_sets(sets: &[Vec<f64>]) -> Estimate {
        let sets = sets.iter().filter(|set| !set.is_empty());
        Estimate::pooled(&sets.map(|set| Estimate::of(set.iter().copied())).collect::<Vec<_>>())
    }

    /// Returns the mean of independent estimates with its standard error.
    pub(super) fn pooled(estimates: &[Estimate]) -> Estimate {
        let known: Vec<&Estimate> = estimates.iter().filter(|estimate| estimate.count > 0).collect();
        let count = known.len().max(1) as f64;
        Estimate {
            // 0 is added as in `of`.
            mean: (known.iter().map(|estimate| estimate.mean).sum::<f64>() + 0.0) / count,
            // The error of a mean of independent estimates.
            error: known.iter().map(|estimate| estimate.error.powi(2)).sum::<f64>().sqrt() / count,
            count: known.iter().map(|estimate| estimate.count).sum(),
        }
    }

    /// Returns the mean of values with its standard error.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Estimate {
        let values: Vec<f64> = values.collect();
        let count = values.len();
        // The sum of no values is −0, which would be shown as "-0.0".
        let mean = (values.iter().sum::<f64>() + 0.0) / count.max(1) as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        // Standard error of the mean with Bessel's correction.
        let error = if count > 1 { (squares / (count - 1) as f64 / count as f64).sqrt() } else { 0.0 };
        Estimate { mean, error, count }
    }
}
