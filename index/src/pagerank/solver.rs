//! PageRank solver: the reduced system, stored in sweep order.

use super::system::System;
use super::{Edges, MOST_SWEEPS, PageRankScores, Real};

/// Solver for one graph and one damping. Handles any number of resets, from any number of threads.
#[derive(Debug, Clone)]
pub struct PageRankSolver<F> {
    /// Node at each place: first the swept nodes by number of entries, then the eliminated nodes in the order of their
    /// elimination, then the nodes without edges.
    order: Vec<u32>,
    /// Number of places with edges.
    connected: usize,
    /// Summed weights at each place with edges.
    degrees: Vec<F>,
    /// Inverse of each diagonal entry.
    inverses: Vec<F>,
    /// Maximum missing mass per unit that a swept place moved.
    bounds: Vec<F>,
    /// Sum of all degrees.
    volume: f64,
    damping: f64,
    /// Factor of over-relaxation.
    omega: F,
    /// Runs of swept places with equal numbers of entries.
    runs: Vec<RowRun>,
    /// Start of each eliminated place's entries, and the end of the last.
    starts: Vec<usize>,
    /// Places of all entries, those of swept places first. Entries of a swept place refer to swept places only, which
    /// sweeping relies on; those of an eliminated place refer to swept and later places.
    targets: Vec<u32>,
    entries: Vec<F>,
}

/// Consecutive places with equal numbers of entries.
#[derive(Debug, Clone, Copy)]
struct RowRun {
    places: usize,
    entries: usize,
}

impl<F: Real> PageRankSolver<F> {
    /// Prepares a solver for walks that follow edges with probability `damping`, at least 0 and less than 1. Nodes from
    /// number `last` on are never eliminated and are swept last. The values swept last are the most accurate, so in a
    /// graph of phrases and passages these should be the passages.
    ///
    /// Edges of weight 0 or to unknown nodes are ignored.
    ///
    /// # Panics
    /// If an edge is in only one of its two rows.
    pub fn new<W: Copy + Into<f64>>(edges: &Edges<'_, W>, last: usize, damping: f64) -> PageRankSolver<F> {
        let mut system = System::new(edges, damping);
        system.reduce(last);
        let nodes = edges.nodes();
        let mut gone = vec![false; nodes];
        system.eliminated.iter().for_each(|&node| gone[node as usize] = true);
        let (connected, alone): (Vec<u32>, Vec<u32>) =
            (0..nodes as u32).partition(|&node| system.degrees[node as usize] > 0.0);
        let mut swept: Vec<u32> = connected.iter().copied().filter(|&node| !gone[node as usize]).collect();
        let count = |node: u32| system.rows[node as usize].len();
        swept.sort_by_key(|&node| (node as usize >= last, count(node)));
        let radius = system.radius(&swept);
        // The optimal factor for consistently ordered matrices (Young 1971); a good one for these graphs.
        let omega = 2.0 / (1.0 + (1.0 - radius * radius).sqrt());
        let runs = swept.chunk_by(|&a, &b| count(a) == count(b) && (a as usize >= last) == (b as usize >= last));
        let runs = runs.map(|run| RowRun { places: run.len(), entries: count(run[0]) }).collect();
        let order: Vec<u32> = swept.iter().chain(&system.eliminated).chain(&alone).copied().collect();
        let mut places = vec![0_u32; nodes];
        order.iter().zip(0..).for_each(|(&node, place)| places[node as usize] = place);
        let mut starts = Vec::new();
        let mut targets = Vec::new();
        let mut entries = Vec::new();
        for (place, &node) in order[..connected.len()].iter().enumerate() {
            if place >= swept.len() {
                starts.push(targets.len());
            }
            for &(target, entry) in &system.rows[node as usize] {
                targets.push(places[target as usize]);
                entries.push(F::of(entry));
            }
        }
        let edge = starts.first().copied().unwrap_or(targets.len());
        assert!(
            targets[..edge].iter().all(|&place| (place as usize) < swept.len()),
            "an edge is in only one of its two rows"
        );
        starts.push(targets.len());
        let bound = |&node: &u32| {
            let row = &system.rows[node as usize];
            let diagonal = system.diagonal[node as usize];
            let others: f64 = row.iter().map(|(_, entry)| entry).sum();
            F::of(((1.0 - 1.0 / omega) * diagonal + others) / (1.0 - damping))
        };
        let of = |values: &[f64], map: fn(f64) -> f64| -> Vec<F> {
            order[..connected.len()].iter().map(|&node| F::of(map(values[node as usize]))).collect()
        };
        PageRankSolver {
            bounds: swept.iter().map(bound).collect(),
            degrees: of(&system.degrees, |degree| degree),
            inverses: of(&system.diagonal, |entry| 1.0 / entry),
            volume: system.degrees.iter().sum(),
            omega: F::of(omega),
            connected: connected.len(),
            order,
            damping,
            runs,
            starts,
            targets,
            entries,
        }
    }

    /// Computes personalized PageRank from `reset`, one number per node, until at most `tolerance` of the mass is
    /// missing. The numbers need not sum to 1. Negative numbers and NaN count as 0; if nothing remains, every mass is
    /// 0.
    ///
    /// # Panics
    /// If the length of `reset` differs from the number of nodes.
    pub fn solve(&self, reset: &[F], tolerance: f64) -> PageRankScores<F> {
        assert_eq!(reset.len(), self.order.len(), "the reset needs one number per node");
        let clean = |x: F| if x > F::default() { x } else { F::default() };
        let at = |node: &u32| clean(reset[*node as usize]);
        let (connected, alone) = self.order.split_at(self.connected);
        let total: f64 = reset.iter().map(|&x| clean(x).into()).sum();
        let alone_sum: f64 = alone.iter().map(|node| at(node).into()).sum();
        let mut mass = vec![F::default(); reset.len()];
        if total <= 0.0 || !total.is_finite() {
            return PageRankScores { mass, missing: 0.0, sweeps: 0 };
        }
        // Total mass of the solved system: the whole reset, minus what nodes without edges do not pass on.
        let whole = 1.0 - self.damping * alone_sum / total;
        let start = F::of((1.0 - self.damping) / (total * whole));
        let mut gain: Vec<F> = connected.iter().map(|node| at(node) * start).collect();
        self.substitute(&mut gain);
        // After many steps a walk is distributed by degree, whatever its start: a good initial guess for the rest.
        let rest = F::of(self.damping * (total - alone_sum) / (total * whole * self.volume.max(f64::MIN_POSITIVE)));
        let mut walk: Vec<F> = gain.iter().zip(&self.inverses).map(|(&gain, &inverse)| gain * inverse + rest).collect();
        let (missing, sweeps) = self.relax(&gain, tolerance, &mut walk);
        self.resolve(&gain, &mut walk);
        for ((&node, &u), &degree) in connected.iter().zip(&walk).zip(&self.degrees) {
            mass[node as usize] = u * degree;
        }
        alone.iter().for_each(|node| mass[*node as usize] = at(node) * start);
        PageRankScores { mass, missing, sweeps }
    }

    /// Iterates over the entries of an eliminated place.
    fn eliminated(&self, index: usize) -> impl Iterator<Item = (usize, F)> + '_ {
        let row = self.starts[index]..self.starts[index + 1];
        self.targets[row.clone()].iter().map(|&target| target as usize).zip(self.entries[row].iter().copied())
    }

    /// Forward substitution: passes the gain of eliminated places on to their neighbors.
    fn substitute(&self, gain: &mut [F]) {
        let swept = self.bounds.len();
        for (index, place) in (swept..self.connected).enumerate() {
            if gain[place] > F::default() {
                let share = gain[place] * self.inverses[place];
                self.eliminated(index).for_each(|(target, entry)| gain[target] = gain[target] + share * entry);
            }
        }
    }

    /// Back substitution: computes the eliminated places from the others.
    fn resolve(&self, gain: &[F], walk: &mut [F]) {
        let swept = self.bounds.len();
        for (index, place) in (swept..self.connected).enumerate().rev() {
            let sum = self.eliminated(index).fold(gain[place], |sum, (target, entry)| sum + walk[target] * entry);
            walk[place] = sum * self.inverses[place];
        }
    }

    /// Sweeps until the missing mass is within the tolerance. Returns the missing mass and the number of sweeps.
    fn relax(&self, gain: &[F], tolerance: f64, walk: &mut [F]) -> (f64, usize) {
        let mut least = f64::INFINITY;
        let mut stalled = 0;
        for sweeps in 1..=MOST_SWEEPS {
            let missing = self.sweep(gain, walk);
            stalled = if missing < least { 0 } else { stalled + 1 };
            least = least.min(missing);
            // Once only rounding still moves values, no further sweep helps.
            if missing <= tolerance || stalled == 8 {
                return (missing, sweeps);
            }
        }
        (least, MOST_SWEEPS)
    }

    /// Updates every swept place from its neighbors, with over-relaxation. Returns the missing mass afterwards.
    fn sweep(&self, gain: &[F], walk: &mut [F]) -> f64 {
        assert!(walk.len() >= self.bounds.len() && gain.len() == walk.len());
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
        // SAFETY: the targets of swept places are swept ones, as `PageRankSolver::new` has asserted; and `sweep` has asserted
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
