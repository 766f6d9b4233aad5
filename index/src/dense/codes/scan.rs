//! Finds the best, the smallest and the largest of many dot products exactly, from codes and a few full vectors.

use super::super::kernel::dot;
use super::super::vectors::VectorFile;
use super::{CodeRow, CodedQuery, Codes};
use crate::scored::{Scored, best};

/// Number of rows multiplied at once; they fit the L1 cache.
const ROWS: usize = 256;

/// Result of a scan over all rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Extremes {
    /// Rows with the largest products, best first, ties by number.
    pub(crate) best: Vec<Scored>,
    /// Smallest product of any row.
    pub(crate) least: f32,
    /// Largest product of any row.
    pub(crate) largest: f32,
}

/// Rows that may still be among the best, each with an upper bound of its product.
#[derive(Debug, Default)]
struct ScanCandidates {
    /// Lower bounds of the best `wanted` rows, as a heap with the smallest on top.
    sure: std::collections::BinaryHeap<std::cmp::Reverse<Ordered>>,
    rows: Vec<(u32, f64)>,
    wanted: usize,
}

/// Number that is never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Ordered) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Ordered) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl ScanCandidates {
    fn of(wanted: usize) -> ScanCandidates {
        ScanCandidates { wanted, ..ScanCandidates::default() }
    }

    /// Returns the bound below which no row can be among the best.
    fn floor(&self) -> f64 {
        match self.sure.peek() {
            Some(least) if self.sure.len() == self.wanted => least.0.0,
            _ => f64::NEG_INFINITY,
        }
    }

    fn look(&mut self, number: u32, value: f64, slack: f64, gone: &dyn Fn(u32) -> bool) {
        let low = value - slack;
        let high = value + slack;
        // The floor only rises, so a row below it now can never return.
        if high < self.floor() || gone(number) {
            return;
        }
        self.rows.push((number, high));
        if self.sure.len() < self.wanted {
            self.sure.push(std::cmp::Reverse(Ordered(low)));
        } else if low > self.floor() {
            self.sure.pop();
            self.sure.push(std::cmp::Reverse(Ordered(low)));
        }
    }

    /// Iterates over the remaining rows, once all rows were offered.
    fn left(&self) -> impl Iterator<Item = u32> {
        let floor = self.floor();
        self.rows.iter().filter(move |(_, high)| *high >= floor).map(|(number, _)| *number)
    }
}

impl Codes {
    /// Returns the `k` rows of `vectors` with the largest dot product with `query`, and the smallest and largest
    /// product of all rows, equal to the bit to computing every product in `f32`. Leaves rows out that are `gone`. `None`
    /// without rows.
    pub(crate) fn extremes(
        &self,
        vectors: &VectorFile,
        query: &[f32],
        k: usize,
        gone: &dyn Fn(u32) -> bool,
    ) -> Option<Extremes> {
        let coded = CodedQuery::of(query);
        let mut largest = ScanCandidates::of(k.max(1));
        let mut least = ScanCandidates::of(1);
        let mut products = Vec::with_capacity(ROWS);
        // Standard bound on the rounding error of a sum in `f32`, with room for the lanes of `dot`.
        let rounding = (query.len() + 64) as f64 * f64::from(f32::EPSILON);
        let mut number = 0;
        for (codes, rows) in self.codes().chunks(ROWS * self.stride).zip(self.rows().chunks(ROWS)) {
            super::kernel::products(&coded.halves, codes, &mut products);
            for (row, &(high, low)) in rows.iter().zip(&products) {
                // Undoes the offset of 64 in the high halves: it added 64 times the sum of the codes.
                let whole = 128 * (i64::from(high) - 64 * i64::from(row.sum)) + i64::from(low);
                let value = f64::from(row.scale) * coded.step * whole as f64;
                let slack = coded.slack(row, rounding);
                largest.look(number, value, slack, gone);
                // Negated, so that the same code finds the minimum.
                least.look(number, -value, slack, gone);
                number += 1;
            }
        }
        let score = |number: u32| Some(Scored { number, score: dot(query, vectors.row(number)?) });
        let best = best(largest.left().filter_map(score).collect(), k.max(1));
        let least = least.left().filter_map(score).map(|scored| scored.score).min_by(f32::total_cmp)?;
        let largest = best.first()?.score;
        Some(Extremes { best: best.into_iter().take(k).collect(), least, largest })
    }
}

impl CodedQuery {
    /// Largest difference between a row's product in `f32` and the product of its codes.
    pub(super) fn slack(&self, row: &CodeRow, rounding: f64) -> f64 {
        let left = f64::from(row.left);
        let length = f64::from(row.length);
        left * self.length + (length + left) * self.left + rounding * length * self.length
    }
}
