//! Paired comparisons of two arms on the same questions.

use serde::{Deserialize, Serialize};

use super::bootstrap::Interval;
use super::estimate::Estimate;
use super::row::EpisodeRow;

/// Paired comparison of two arms on the same questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairedComparison {
    /// Name of the compared arm.
    pub policy: String,
    /// Name of the baseline arm.
    pub with: String,
    /// Difference in EM from the baseline; the error is that of the paired differences.
    pub em: Estimate,
    /// Bootstrap interval of the difference in EM.
    #[serde(default)]
    pub em_interval: Interval,
    /// Difference in F1 from the baseline.
    pub f1: Estimate,
    /// Bootstrap interval of the difference in F1.
    #[serde(default)]
    pub f1_interval: Interval,
    /// Number of questions that only the compared arm answers correctly.
    pub won: usize,
    /// Number of questions that only the baseline answers correctly.
    pub lost: usize,
}

impl PairedComparison {
    /// Compares rows of the same questions in the same order.
    pub fn of((policy, rows): (&str, &[EpisodeRow]), (with, others): (&str, &[EpisodeRow])) -> PairedComparison {
        PairedComparison::of_sets((policy, &[rows]), (with, &[others]))
    }

    /// Compares rows of several question sets, which all count alike: differences are means of the sets' means.
    pub fn of_sets(
        (policy, sets): (&str, &[&[EpisodeRow]]),
        (with, others): (&str, &[&[EpisodeRow]]),
    ) -> PairedComparison {
        // Paired by question: the variance between questions cancels, which makes small differences visible.
        let em = differences(sets, others, |row| row.em);
        let f1 = differences(sets, others, |row| row.f1);
        let count = |holds: fn(f64) -> bool| em.iter().flatten().filter(|&&ahead| holds(ahead)).count();
        PairedComparison {
            policy: policy.to_owned(),
            with: with.to_owned(),
            em: Estimate::of_sets(&em),
            em_interval: interval(&em),
            f1: Estimate::of_sets(&f1),
            f1_interval: interval(&f1),
            won: count(|ahead| ahead > 0.0),
            lost: count(|ahead| ahead < 0.0),
        }
    }
}

/// Returns the differences of a score, by set and question.
fn differences(sets: &[&[EpisodeRow]], others: &[&[EpisodeRow]], by: fn(&EpisodeRow) -> f64) -> Vec<Vec<f64>> {
    let pairs = sets.iter().zip(others);
    pairs.map(|(rows, others)| rows.iter().zip(*others).map(|(row, other)| by(row) - by(other)).collect()).collect()
}

fn interval(sets: &[Vec<f64>]) -> Interval {
    Interval::of_strata(&sets.iter().map(Vec::as_slice).collect::<Vec<_>>())
}
