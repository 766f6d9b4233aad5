//! Sketches of vectors: a few numbers per vector, whose products bound those of the vectors from above.

use std::sync::Arc;

use super::sketch_basis::SketchBasis;
use super::tiles::{HEIGHT, WIDTH};
use crate::dense::VectorRows;

/// Number of columns per block: with 40 numbers per sketch, a block stays in the L2 cache while queries pass.
const COLUMNS: usize = 1024;

/// Sketches of vectors that only grow in number. Clones share all blocks but the last.
#[derive(Debug, Clone)]
pub(in crate::graph) struct Sketches {
    basis: Arc<SketchBasis>,
    blocks: Vec<Arc<SketchBlock>>,
    count: usize,
}

/// Panels of [`WIDTH`] sketches each, interleaved as [`tile`](super::tiles::tile) reads them. Zeros fill the last one.
#[derive(Debug, Clone, Default)]
struct SketchBlock(Vec<f32>);

impl Sketches {
    /// No sketches yet, in the directions of `basis`.
    pub(super) fn new(basis: SketchBasis) -> Sketches {
        Sketches { basis: Arc::new(basis), blocks: Vec::new(), count: 0 }
    }

    /// No sketches yet, in directions that suit the first `count` of these vectors.
    pub(in crate::graph) fn suited(vectors: &dyn VectorRows, count: usize) -> Sketches {
        Sketches::new(SketchBasis::of(vectors, count, &|place| place as u32))
    }

    /// Number of sketches.
    pub(in crate::graph) fn len(&self) -> usize {
        self.count
    }

    /// Appends the sketch of a vector. An empty vector resembles none.
    pub(in crate::graph) fn push(&mut self, vector: &[f32]) {
        let place = self.count % COLUMNS;
        if place == 0 {
            self.blocks.push(Arc::default());
        }
        let sketch = self.basis.sketch(vector);
        if let Some(block) = self.blocks.last_mut() {
            let numbers = &mut Arc::make_mut(block).0;
            let panel = place / WIDTH * WIDTH * sketch.len();
            numbers.resize(panel + WIDTH * sketch.len(), 0.0);
            // Transposed, so that one load brings the same number of sixteen columns.
            let column = numbers[panel + place % WIDTH..].iter_mut().step_by(WIDTH);
            column.zip(sketch).for_each(|(place, x)| *place = x);
        }
        self.count += 1;
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
