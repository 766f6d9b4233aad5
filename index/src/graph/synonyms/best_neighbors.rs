//! Best neighbors seen so far.

use super::{MOST, THRESHOLD};

/// Collector of the [`MOST`] best neighbors, ties by number.
#[derive(Debug)]
pub(super) struct BestNeighbors {
    list: Vec<(u32, f32)>,
    most: usize,
}

impl Default for BestNeighbors {
    fn default() -> BestNeighbors {
        BestNeighbors { list: Vec::new(), most: MOST }
    }
}

impl BestNeighbors {
    /// Collector of every neighbor.
    pub(super) fn all() -> BestNeighbors {
        BestNeighbors { list: Vec::new(), most: usize::MAX }
    }

    /// Offers a neighbor. Ignores scores below [`THRESHOLD`].
    pub(super) fn offer(&mut self, number: u32, score: f32) {
        if score >= THRESHOLD {
            self.list.push((number, score));
            if self.list.len() == self.most.saturating_mul(2) {
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        if self.list.len() > self.most {
            self.list.select_nth_unstable_by(self.most - 1, |a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            self.list.truncate(self.most);
        }
    }

    /// Returns the collected neighbors, unsorted.
    pub(super) fn list(mut self) -> Vec<(u32, f32)> {
        self.cut();
        self.list
    }
}
