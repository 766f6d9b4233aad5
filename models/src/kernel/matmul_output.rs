//! Output of a matrix multiplication: how finished sums reach the result.

use super::layout::PANEL;
use super::prefetch::prefetch;
use super::team::Base;

/// Operation applied to finished sums.
#[derive(Clone, Copy)]
pub(super) enum Finish<'a> {
    Set,
    Add,
    Map(&'a (dyn Fn(usize, &mut [f32]) + Sync)),
}

/// Result of a matrix multiplication, of shape (rows, `out`); units of work write disjoint parts of it.
pub(super) struct MatmulOutput<'a> {
    pub(super) y: Base<f32>,
    pub(super) out: usize,
    pub(super) finish: Finish<'a>,
}

impl MatmulOutput<'_> {
    /// Prefetches the outputs of a panel in a row: those of different rows lie far apart, beyond the reach of the
    /// hardware prefetcher.
    pub(super) fn prefetch(&self, row: usize, panel: usize) {
        prefetch(self.y.0.wrapping_add(row * self.out + panel * PANEL).cast(), PANEL * 4);
    }

    /// Stores the sums of a panel, of shape (rows, [`PANEL`]), for the rows from `first` on.
    ///
    /// # Safety
    /// The result must have these rows and this panel, and no other unit of work may write them.
    pub(super) unsafe fn take(&self, first: usize, panel: usize, sums: &[f32]) {
        let width = PANEL.min(self.out - panel * PANEL);
        for (row, sums) in sums.chunks_exact(PANEL).enumerate() {
            // SAFETY: row `first + row` and its outputs from `panel · PANEL` on lie inside `y`, as the caller
            // guarantees.
            let y =
                unsafe { std::slice::from_raw_parts_mut(self.y.at((first + row) * self.out + panel * PANEL), width) };
            match self.finish {
                Finish::Set => store(y, sums),
                Finish::Add => y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum),
                Finish::Map(map) => {
                    store(y, sums);
                    map(panel * PANEL, y);
                }
            }
        }
    }
}

/// Copies the first sums of a panel to all of `y`.
#[inline(always)]
fn store(y: &mut [f32], sums: &[f32]) {
    // Nearly all panels are whole, and a copy of a constant length needs no call.
    match (y.first_chunk_mut::<PANEL>(), sums.first_chunk::<PANEL>()) {
        (Some(y), Some(sums)) => *y = *sums,
        _ => y.copy_from_slice(&sums[..y.len()]),
    }
}
