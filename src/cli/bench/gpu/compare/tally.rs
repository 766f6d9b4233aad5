//! Differences of log-probabilities.

use super::super::report::Agreement;

/// How many times the bound of all rows together a single row may be off in the mean: one row of hundreds that is computed
/// wrong moves the mean of all of them by little.
const ONE: f64 = 4.0;

/// Differences of log-probabilities, by row.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Positions of each row, and the sum of their differences.
    rows: Vec<(usize, f64)>,
    largest: f64,
    broken: bool,
}

impl Tally {
    /// Two log-probabilities of one token, in row `row`.
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

    /// Compares logits as distributions.
    pub(super) fn compare(&mut self, row: usize, a: &[f32], b: &[f32]) {
        let token = argmax(a);
        self.add(row, log_probability(a, token), log_probability(b, token));
    }

    /// Positions compared.
    fn count(&self) -> usize {
        self.rows.iter().map(|(count, _)| count).sum()
    }

    /// The mean of all positions.
    pub(super) fn mean(&self) -> f64 {
        self.rows.iter().map(|(_, sum)| sum).sum::<f64>() / self.count().max(1) as f64
    }

    /// What was found; `parted` has for each row the first position at which its text differs, and `bound` is what the mean
    /// may be.
    pub(super) fn agreement(self, what: &str, parted: &[Option<usize>], bound: f64) -> Agreement {
        let (mean, positions) = (self.mean(), self.count());
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
            holds: mean <= bound && row <= ONE * bound && !self.broken && positions > 0,
        }
    }
}

/// The highest logit's id, the lowest such id on ties.
pub(super) fn argmax(logits: &[f32]) -> usize {
    let better = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (0..logits.len()).fold(0, better)
}

/// A token's log-probability.
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
        let mut tally = Tally::default();
        tally.add(0, f64::NAN, 0.0);
        assert!(!tally.agreement("", &[], 1.0).holds);
        assert!(!Tally::default().agreement("", &[], 1.0).holds, "nothing was compared");
    }

    #[test]
    fn one_wrong_row_of_many_is_found() {
        let off_in_the_last = |off: f64| {
            let mut tally = Tally::default();
            (0..256).for_each(|row| tally.add(row, if row == 255 { off } else { 0.0 }, 0.0));
            tally.agreement("", &[], 0.05)
        };
        let right = off_in_the_last(0.19);
        assert!(right.holds && right.positions == 256 && right.row == 0.19, "{right:?}");
        let wrong = off_in_the_last(0.21);
        assert!(!wrong.holds && wrong.mean < 0.05, "{wrong:?}");
    }
}
