//! Statistics of differences of log-probabilities.

use super::super::report::Agreement;

/// Factor on the overall bound for the mean of a single row: one wrong row of hundreds hardly changes the overall mean.
const ROW_FACTOR: f64 = 4.0;

/// Differences of log-probabilities by row.
#[derive(Debug, Default)]
pub(super) struct DifferenceTally {
    /// Number of positions of each row, and the sum of their differences.
    rows: Vec<(usize, f64)>,
    largest: f64,
    broken: bool,
}

impl DifferenceTally {
    /// Adds two log-probabilities of the same token in row `row`.
    pub(super) fn add(&mut self, row: usize, a: f64, b: f64) {
        let off = (a - b).abs();
        self.broken |= !off.is_finite();
        self.largest = self.largest.max(off);
        if row >= self.rows.len() {
            self.rows.resize(row + 1, (0, 0.0));
        }
        let (count, sum) = &mut self.rows[row];
        *count += 1;
        *sum += off;
    }

    /// Compares two rows of logits at the most likely token of the first.
    pub(super) fn compare(&mut self, row: usize, a: &[f32], b: &[f32]) {
        let token = argmax(a);
        self.add(row, log_probability(a, token), log_probability(b, token));
    }

    /// Returns the number of compared positions.
    fn count(&self) -> usize {
        self.rows.iter().map(|(count, _)| count).sum()
    }

    /// Returns the mean difference over all positions.
    pub(super) fn mean(&self) -> f64 {
        self.rows.iter().map(|(_, sum)| sum).sum::<f64>() / self.count().max(1) as f64
    }

    /// Returns the result. `parted` has the first differing position of each row's text, and `bound` limits the mean.
    pub(super) fn agreement(self, what: &str, parted: &[Option<usize>], bound: f64) -> Agreement {
        let mean = self.mean();
        let positions = self.count();
        let rows = self.rows.iter().map(|(count, sum)| sum / (*count).max(1) as f64);
        let row = rows.fold(0.0, f64::max);
        Agreement {
            what: what.to_owned(),
            over: String::new(),
            positions,
            diverged: parted.iter().flatten().count(),
            first: parted.iter().flatten().min().copied(),
            mean,
            row,
            largest: self.largest,
            holds: mean <= bound && row <= ROW_FACTOR * bound && !self.broken && positions > 0,
        }
    }
}

/// Returns the id of the highest logit, the lowest id on ties.
pub(super) fn argmax(logits: &[f32]) -> usize {
    let better = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (0..logits.len()).fold(0, better)
}

/// Returns a token's log-probability.
fn log_probability(logits: &[f32], id: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    f64::from(logits[id] - max) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_never_holds() {
        let mut tally = DifferenceTally::default();
        tally.add(0, f64::NAN, 0.0);
        assert!(!tally.agreement("", &[], 1.0).holds);
        assert!(!DifferenceTally::default().agreement("", &[], 1.0).holds, "nothing was compared");
    }

    #[test]
    fn one_wrong_row_of_many_is_found() {
        let off_in_the_last = |off: f64| {
            let mut tally = DifferenceTally::default();
            (0..256).for_each(|row| tally.add(row, if row == 255 { off } else { 0.0 }, 0.0));
            tally.agreement("", &[], 0.05)
        };
        let right = off_in_the_last(0.19);
        assert!(right.holds && right.positions == 256 && right.row == 0.19, "{right:?}");
        let wrong = off_in_the_last(0.21);
        assert!(!wrong.holds && wrong.mean < 0.05, "{wrong:?}");
    }
}
