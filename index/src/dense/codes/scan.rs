//! Finds the best, the smallest and the largest of many dot products exactly, from codes and a few full vectors.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::super::kernel::dot;
use super::super::vectors::VectorFile;
use super::kernel::Products;
use super::{CodeRow, CodedQuery, Codes, stride};
use crate::scored::{Scored, best_by};

/// Number of rows multiplied at once; they fit the L1 cache.
const ROWS: usize = 256;

/// Result of a scan over all rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Extremes {
    /// Rows with the largest products, best first, ties in the order that the scan was given.
    pub(crate) best: Vec<Scored>,
    /// Smallest product of any row.
    pub(crate) least: f32,
    /// Largest product of any row.
    pub(crate) largest: f32,
}

/// Rows that may still be among the best, each with an upper bound of its product.
#[derive(Debug)]
struct ScanCandidates {
    /// Lower bounds of the best `wanted` rows, as a heap with the smallest on top.
    sure: BinaryHeap<Reverse<Ordered>>,
    rows: Vec<(u32, f64)>,
    wanted: usize,
    /// Bound below which no row can be among the best.
    floor: f64,
}

/// Number that is never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Ordered) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Ordered) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl ScanCandidates {
    fn of(wanted: usize) -> ScanCandidates {
        ScanCandidates { sure: BinaryHeap::new(), rows: Vec::new(), wanted, floor: f64::NEG_INFINITY }
    }

    fn look(&mut self, number: u32, value: f64, slack: f64, gone: &dyn Fn(u32) -> bool) {
        let low = value - slack;
        let high = value + slack;
        // The floor only rises, so a row below it now can never return.
        if high < self.floor || gone(number) {
            return;
        }
        self.rows.push((number, high));
        if self.sure.len() < self.wanted {
            self.sure.push(Reverse(Ordered(low)));
        } else if low > self.floor {
            self.sure.pop();
            self.sure.push(Reverse(Ordered(low)));
        }
        if let Some(least) = self.sure.peek().filter(|_| self.sure.len() == self.wanted) {
            self.floor = least.0.0;
        }
    }

    /// Iterates over the remaining rows, once all rows were offered.
    fn left(&self) -> impl Iterator<Item = u32> {
        let floor = self.floor;
        self.rows.iter().filter(move |(_, high)| *high >= floor).map(|(number, _)| *number)
    }
}

impl Codes {
    /// Returns the `k` rows of `vectors` with the largest dot product with `query`, ties by number, and the smallest
    /// and largest product of all rows. The result equals that of computing every product in `f32`, to the bit. Leaves
    /// out rows that are `gone`. `None` without rows.
    pub(crate) fn extremes(
        &self,
        vectors: &VectorFile,
        query: &[f32],
        k: usize,
        gone: &dyn Fn(u32) -> bool,
    ) -> Option<Extremes> {
        let mut scan = CodeScan::new(query, k);
        let widest = *self.widest.get_or_init(|| CodeRow::widest(self.rows()));
        scan.add(self.codes(), self.rows(), widest, 0, gone);
        scan.finish(&|number| vectors.row(number), &|a, b| a.cmp(&b))
    }
}

/// Scan of codes for the largest and smallest products with one query.
pub(super) struct CodeScan<'q> {
    query: &'q [f32],
    coded: CodedQuery,
    k: usize,
    largest: ScanCandidates,
    least: ScanCandidates,
    products: Vec<Products>,
}

impl<'q> CodeScan<'q> {
    pub(super) fn new(query: &'q [f32], k: usize) -> CodeScan<'q> {
        CodeScan {
            query,
            coded: CodedQuery::of(query),
            k,
            largest: ScanCandidates::of(k.max(1)),
            least: ScanCandidates::of(1),
            products: Vec::with_capacity(ROWS),
        }
    }

    /// Scans rows with their codes, the first of which has the number `first`. No row has wider bounds than `widest`.
    /// Leaves rows out that are `gone`.
    pub(super) fn add(
        &mut self,
        codes: &[i8],
        rows: &[CodeRow],
        widest: CodeRow,
        first: u32,
        gone: &dyn Fn(u32) -> bool,
    ) {
        // Standard bound on the rounding error of a sum in `f32`, with room for the lanes of `dot`.
        let rounding = (self.query.len() + 64) as f64 * f64::from(f32::EPSILON);
        let most = self.coded.slack(&widest, rounding);
        let mut number = first;
        for (codes, rows) in codes.chunks(ROWS * stride(self.query.len())).zip(rows.chunks(ROWS)) {
            super::kernel::products(&self.coded.halves, codes, &mut self.products);
            for (row, &(high, low)) in rows.iter().zip(&self.products) {
                // Undoes the offset of 64 in the high halves: it added 64 times the sum of the codes.
                let whole = 128 * (i64::from(high) - 64 * i64::from(row.sum)) + i64::from(low);
                let value = f64::from(row.scale) * self.coded.step * whole as f64;
                // Nearly every row is far from both ends, which the widest bounds show without the row's own.
                let far = value + most < self.largest.floor && -value + most < self.least.floor;
                if !far {
                    let slack = self.coded.slack(row, rounding);
                    self.largest.look(number, value, slack, gone);
                    // Negated, so that the same code finds the minimum.
                    self.least.look(number, -value, slack, gone);
                }
                number += 1;
            }
        }
    }

    /// Scores the candidates with their vectors, ties in the order of `tie`.
    pub(super) fn finish<'v>(
        self,
        row: &dyn Fn(u32) -> Option<&'v [f32]>,
        tie: &dyn Fn(u32, u32) -> Ordering,
    ) -> Option<Extremes> {
        let score = |number: u32| Some(Scored { number, score: dot(self.query, row(number)?) });
        let best = best_by(self.largest.left().filter_map(score).collect(), self.k.max(1), tie);
        let least = self.least.left().filter_map(score).map(|scored| scored.score).min_by(f32::total_cmp)?;
        let largest = best.first()?.score;
        Some(Extremes { best: best.into_iter().take(self.k).collect(), least, largest })
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
