//! Sketches of vectors: a few numbers per vector, whose products bound those of the vectors from above.

use std::sync::Arc;

use super::parallel::share;
use super::sketch_basis::SketchBasis;
use super::tiles::{HEIGHT, WIDTH};
use crate::dense::VectorRows;
use crate::error::IndexError;

/// Number of columns per block: with 40 numbers per sketch, a block stays in the L2 cache while queries pass.
const COLUMNS: usize = 1024;

/// Growing list of sketches of vectors. Clones share all blocks but the last. A sketch takes four bytes for each
/// direction of its basis and four more: at most 516 bytes, and about 160 for phrases of encyclopedias.
#[derive(Debug, Clone)]
pub(in crate::graph) struct Sketches {
    basis: Arc<SketchBasis>,
    blocks: Vec<Arc<SketchBlock>>,
    count: usize,
}

/// Panels of [`WIDTH`] sketches each, interleaved as [`tile`](super::tiles::tile) reads them. Zeros fill the last one.
#[derive(Debug, Clone, Default)]
struct SketchBlock(Vec<f32>);

impl SketchBlock {
    /// Writes the sketch at a place. Earlier places must be written already.
    fn put(&mut self, place: usize, sketch: &[f32]) {
        let panel = place / WIDTH * WIDTH * sketch.len();
        self.0.resize(panel + WIDTH * sketch.len(), 0.0);
        // Transposed, so that one load reads the same component of sixteen columns.
        let column = self.0[panel + place % WIDTH..].iter_mut().step_by(WIDTH);
        column.zip(sketch).for_each(|(place, x)| *place = *x);
    }
}

impl Sketches {
    /// Creates an empty list of sketches in the directions of `basis`.
    pub(super) fn new(basis: SketchBasis) -> Sketches {
        Sketches { basis: Arc::new(basis), blocks: Vec::new(), count: 0 }
    }

    /// Creates an empty list of sketches in directions that suit the first `count` of these vectors.
    pub(in crate::graph) fn suited(vectors: &dyn VectorRows, count: usize) -> Sketches {
        Sketches::new(SketchBasis::of(vectors, count, &|place| place as u32))
    }

    /// Number of sketches.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Appends sketches until there are `count`, in parallel; `vector` returns the vector at a place. The sketch of an
    /// empty vector resembles no other.
    pub(in crate::graph) fn extend<'v>(
        &mut self,
        count: usize,
        vector: &(dyn Fn(usize) -> &'v [f32] + Sync),
        threads: usize,
    ) -> Result<(), IndexError> {
        if count <= self.count {
            return Ok(());
        }
        let first = self.count - self.count % COLUMNS;
        let mut new: Vec<(usize, SketchBlock)> = Vec::new();
        for start in (first..count).step_by(COLUMNS) {
            // Other clones keep the last block as it is.
            let begun = self.blocks.get(start / COLUMNS).map(|block| SketchBlock::clone(block));
            new.push((start, begun.unwrap_or_default()));
        }
        let from = self.count;
        let basis = &self.basis;
        share(&mut new, 1, threads, |blocks| {
            for (start, block) in blocks {
                let places = from.max(*start)..count.min(*start + COLUMNS);
                places.for_each(|place| block.put(place - *start, &basis.sketch(vector(place))));
            }
            Ok(())
        })?;
        self.blocks.truncate(first / COLUMNS);
        self.blocks.extend(new.into_iter().map(|(_, block)| Arc::new(block)));
        self.count = count;
        Ok(())
    }

    /// Returns the sketches of at most [`HEIGHT`] queries, interleaved. Missing ones are zero.
    pub(super) fn queries<'v>(&self, vectors: impl Iterator<Item = &'v [f32]>) -> Vec<f32> {
        let mut queries = vec![0.0; self.basis.length() * HEIGHT];
        for (place, vector) in vectors.take(HEIGHT).enumerate() {
            let sketch = self.basis.sketch(vector);
            queries[place..].iter_mut().step_by(HEIGHT).zip(sketch).for_each(|(place, x)| *place = x);
        }
        queries
    }

    /// Iterates over the blocks, each with its first column and its panels.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, impl Iterator<Item = &[f32]>)> {
        let panel = self.basis.length() * WIDTH;
        (0..).step_by(COLUMNS).zip(self.blocks.iter().map(move |block| block.0.chunks_exact(panel)))
    }
}
