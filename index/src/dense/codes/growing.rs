//! Codes of vectors that commits add, in memory.

use std::cmp::Ordering;
use std::sync::Arc;

use super::scan::{CodeScan, Extremes};
use super::{CodeRow, MOST_DIMS, encode, stride};

/// Number of rows per block.
const ROWS: usize = 1024;

/// Growing list of the codes of vectors of one length. Clones share all blocks but the last.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrowingCodes {
    blocks: Vec<Arc<CodeBlock>>,
    count: u32,
}

#[derive(Debug, Clone, Default)]
struct CodeBlock {
    codes: Vec<i8>,
    rows: Vec<CodeRow>,
}

impl GrowingCodes {
    /// Appends a vector, which must not be empty, and returns its number.
    pub(crate) fn push(&mut self, vector: &[f32]) -> u32 {
        if (self.count as usize).is_multiple_of(ROWS) {
            self.blocks.push(Arc::default());
        }
        if let Some(block) = self.blocks.last_mut() {
            let block = Arc::make_mut(block);
            let start = block.codes.len();
            block.codes.resize(start + stride(vector.len()), 0);
            // A row that is too long for 32-bit sums gets infinite bounds, so every scan keeps it as a candidate.
            let unbounded = CodeRow { scale: 0.0, left: f32::INFINITY, length: 0.0, sum: 0 };
            let coded = vector.len() <= MOST_DIMS;
            block.rows.push(if coded { encode(vector, &mut block.codes[start..]) } else { unbounded });
        }
        self.count += 1;
        self.count - 1
    }

    /// Returns the same as [`Codes::extremes`](super::Codes::extremes), with the vectors from `row` and ties in the
    /// order of `tie`.
    pub(crate) fn extremes<'v>(
        &self,
        query: &[f32],
        k: usize,
        gone: &dyn Fn(u32) -> bool,
        row: &dyn Fn(u32) -> Option<&'v [f32]>,
        tie: &dyn Fn(u32, u32) -> Ordering,
    ) -> Option<Extremes> {
        let mut scan = CodeScan::new(query, k);
        for (block, first) in self.blocks.iter().zip((0..).step_by(ROWS)) {
            scan.add(&block.codes, &block.rows, CodeRow::widest(&block.rows), first, gone);
        }
        scan.finish(row, tie)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::kernel::dot;
    use super::*;
    use crate::scored::{Scored, best};

    #[test]
    fn clones_keep_their_rows_and_scans_find_the_best() {
        let vector = |seed: u32| -> Vec<f32> { (0..5).map(|i| ((seed * 7 + i * 13) % 31) as f32 - 15.0).collect() };
        let mut codes = GrowingCodes::default();
        let mut earlier = Vec::new();
        for number in 0..2500 {
            assert_eq!(codes.push(&vector(number)), number);
            if number % 500 == 0 {
                earlier.push((number + 1, codes.clone()));
            }
        }
        earlier.push((2500, codes));
        let query = [0.5, -1.0, 0.25, 2.0, 0.0];
        let rows: Vec<Vec<f32>> = (0..2500).map(vector).collect();
        for (count, codes) in earlier {
            let row = |number: u32| Some(rows[number as usize].as_slice());
            let gone = |number: u32| number % 3 == 1;
            let found = codes.extremes(&query, 9, &gone, &row, &|a, b| b.cmp(&a)).unwrap();
            let scored = (0..count).filter(|number| !gone(*number));
            let scored =
                scored.map(|number| Scored { number: count - number, score: dot(&query, &rows[number as usize]) });
            let expected = best(scored.collect(), 9);
            let expected: Vec<u32> = expected.iter().map(|scored| count - scored.number).collect();
            assert_eq!(found.best.iter().map(|scored| scored.number).collect::<Vec<_>>(), expected);
        }
    }
}
