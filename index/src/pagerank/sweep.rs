//! Sweeps of successive over-relaxation over the reduced system.

use super::Real;
use super::system::System;

/// Rows of the swept system, in sweep order.
#[derive(Debug, Clone)]
pub(super) struct SweepRows<F> {
    /// Inverse of each diagonal entry.
    pub(super) inverses: Vec<F>,
    /// Maximum missing mass per unit that a place moved.
    bounds: Vec<F>,
    /// Factor of over-relaxation.
    omega: F,
    /// Runs of places with equal numbers of entries.
    runs: Vec<RowRun>,
    /// Places of all entries.
    targets: Vec<u32>,
    entries: Vec<F>,
}

/// Consecutive places with equal numbers of entries.
#[derive(Debug, Clone, Copy)]
struct RowRun {
    places: usize,
    entries: usize,
}

impl<F: Real> SweepRows<F> {
    /// Creates the rows of `swept`, in this order. `places` maps nodes to places. A run never holds nodes from both
    /// sides of `last`.
    ///
    /// # Panics
    /// If an edge is in only one of its two rows.
    pub(super) fn of(system: &System, swept: &[u32], places: &[u32], last: usize, damping: f64) -> SweepRows<F> {
        let count = |node: u32| system.rows[node as usize].len();
        let radius = system.radius(swept);
        // The optimal factor for consistently ordered matrices (Young 1971); a good one for these graphs.
        let omega = 2.0 / (1.0 + (1.0 - radius * radius).sqrt());
        let runs = swept.chunk_by(|&a, &b| count(a) == count(b) && (a as usize >= last) == (b as usize >= last));
        let runs = runs.map(|run| RowRun { places: run.len(), entries: count(run[0]) }).collect();
        let mut rows = SweepRows {
            inverses: Vec::with_capacity(swept.len()),
            bounds: Vec::with_capacity(swept.len()),
            omega: F::of(omega),
            runs,
            targets: Vec::new(),
            entries: Vec::new(),
        };
        for (place, &node) in swept.iter().enumerate() {
            let diagonal = system.diagonal[node as usize];
            let mut before = 0.0;
            for &(target, entry) in &system.rows[node as usize] {
                let target = places[target as usize];
                assert!((target as usize) < swept.len(), "an edge is in only one of its two rows");
                rows.targets.push(target);
                rows.entries.push(F::of(entry));
                before += if (target as usize) < place { entry } else { 0.0 };
            }
            let over = (1.0 - 1.0 / omega) * diagonal;
            rows.inverses.push(F::of(1.0 / diagonal));
            rows.bounds.push(F::of((over + before) / (1.0 - damping)));
        }
        rows
    }

    /// Number of places.
    pub(super) fn places(&self) -> usize {
        self.inverses.len()
    }

    /// Number of entries.
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Updates every place from its neighbors, with over-relaxation. Returns an upper bound of the missing mass
    /// afterwards.
    pub(super) fn sweep(&self, gain: &[F], walk: &mut [F]) -> f64 {
        assert!(walk.len() >= self.places() && gain.len() >= self.places());
        let mut sweep = Sweep { walk, omega: self.omega, missing: 0.0 };
        let mut place = 0;
        let mut edge = 0;
        for run in &self.runs {
            let places = place..place + run.places;
            let edges = edge..edge + run.places * run.entries;
            (place, edge) = (places.end, edges.end);
            let rows = RunRows {
                first: places.start,
                gain: &gain[places.clone()],
                inverses: &self.inverses[places.clone()],
                bounds: &self.bounds[places],
                targets: &self.targets[edges.clone()],
                entries: &self.entries[edges],
            };
            match run.entries {
                1 => sweep.rows::<1>(&rows),
                2 => sweep.rows::<2>(&rows),
                3 => sweep.rows::<3>(&rows),
                4 => sweep.rows::<4>(&rows),
                5 => sweep.rows::<5>(&rows),
                6 => sweep.rows::<6>(&rows),
                7 => sweep.rows::<7>(&rows),
                8 => sweep.rows::<8>(&rows),
                9 => sweep.rows::<9>(&rows),
                10 => sweep.rows::<10>(&rows),
                11 => sweep.rows::<11>(&rows),
                12 => sweep.rows::<12>(&rows),
                count => sweep.long_rows(&rows, count),
            }
        }
        sweep.missing
    }
}

/// Rows of a run.
struct RunRows<'a, F> {
    first: usize,
    gain: &'a [F],
    inverses: &'a [F],
    bounds: &'a [F],
    targets: &'a [u32],
    entries: &'a [F],
}

/// State of one sweep.
struct Sweep<'a, F> {
    walk: &'a mut [F],
    omega: F,
    missing: f64,
}

impl<F: Real> Sweep<'_, F> {
    /// Sweeps rows of a constant, small number of entries, so that the loop is unrolled.
    fn rows<const N: usize>(&mut self, rows: &RunRows<'_, F>) {
        let targets = rows.targets.as_chunks::<N>().0;
        let entries = rows.entries.as_chunks::<N>().0;
        for (i, (targets, entries)) in targets.iter().zip(entries).enumerate() {
            let mut sum = rows.gain[i];
            for i in 0..N {
                sum = sum + self.at(targets[i]) * entries[i];
            }
            self.relax(rows, i, sum);
        }
    }

    fn long_rows(&mut self, rows: &RunRows<'_, F>, count: usize) {
        if count == 0 {
            return (0..rows.gain.len()).for_each(|i| self.relax(rows, i, rows.gain[i]));
        }
        let edges = rows.targets.chunks_exact(count).zip(rows.entries.chunks_exact(count));
        for (i, (targets, entries)) in edges.enumerate() {
            // Four independent sums, so that no addition waits for the previous one.
            let mut sums = [F::default(); 4];
            let (targets, last_targets) = targets.as_chunks::<4>();
            let (entries, last_entries) = entries.as_chunks::<4>();
            for (targets, entries) in targets.iter().zip(entries) {
                for lane in 0..4 {
                    sums[lane] = sums[lane] + self.at(targets[lane]) * entries[lane];
                }
            }
            for (&target, &entry) in last_targets.iter().zip(last_entries) {
                sums[0] = sums[0] + self.at(target) * entry;
            }
            self.relax(rows, i, rows.gain[i] + ((sums[0] + sums[1]) + (sums[2] + sums[3])));
        }
    }

    #[inline(always)]
    fn at(&self, place: u32) -> F {
        debug_assert!((place as usize) < self.walk.len());
        // SAFETY: the targets of swept places are swept ones, as `SweepRows::of` has asserted; and `sweep` has asserted
        // that `walk` holds all of those.
        unsafe { *self.walk.get_unchecked(place as usize) }
    }

    /// Updates row `i`, where `sum` is its gain plus the contribution of its neighbors.
    #[inline(always)]
    fn relax(&mut self, rows: &RunRows<'_, F>, i: usize, sum: F) {
        let place = rows.first + i;
        let before = self.walk[place];
        let step = (sum * rows.inverses[i] - before) * self.omega;
        self.walk[place] = before + step;
        // The residual bound from the module documentation.
        self.missing += (step * rows.bounds[i]).abs().into();
    }
}
