//! PageRank solver: the reduced system, stored in sweep order.

use super::sweep::SweepRows;
use super::system::System;
use super::{Edges, MOST_SWEEPS, PageRankScores, Real};

/// Solver for one graph and one damping. Handles any number of resets, from any number of threads.
///
/// The nodes from number `last` on are the last ones of each sweep: the passages, in a graph of phrases and passages.
#[derive(Debug, Clone)]
pub struct PageRankSolver<F> {
    /// Node at each place: first the swept nodes before `last`, then those from `last` on, each by number of entries,
    /// then the eliminated nodes in the order of their elimination, then the nodes without edges.
    order: Vec<u32>,
    /// Place of each node.
    places: Vec<u32>,
    /// First of the last nodes.
    last: usize,
    /// First place of a node from `last` on.
    last_place: usize,
    /// Number of places with edges.
    connected: usize,
    /// Summed weights at each place with edges.
    degrees: Vec<F>,
    /// Sum of all degrees.
    volume: f64,
    damping: f64,
    /// Rows of the swept places.
    rows: SweepRows<F>,
    /// Walk at the swept places if each place from `last_place` on gains 1. Other walks begin with a multiple of it.
    /// Empty before it is computed, and if no place from `last_place` on is swept.
    uniform_walk: Vec<F>,
    /// Inverse of the diagonal entry of each eliminated place.
    inverses: Vec<F>,
    /// Start of each eliminated place's entries, and the end of the last.
    starts: Vec<usize>,
    /// Places of the entries of eliminated places: swept and later eliminated ones.
    targets: Vec<u32>,
    entries: Vec<F>,
}

/// Largest missing mass of the uniform walk.
const UNIFORM_TOLERANCE: f64 = 1e-7;

/// Gains of a walk from its reset.
struct WalkGains<F> {
    /// Gain of each place with edges.
    gains: Vec<F>,
    /// Factor from a weight of the reset to a gain.
    scale: F,
    /// Sum of the gains of nodes before `last`.
    first_sum: f64,
    /// Sum of the gains of the nodes from `last` on.
    last_sum: f64,
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
        // Neighbors of one passage lie together, so that what a row reads is likely in the nearest cache.
        let anchor = |node: u32| {
            let lasts = system.rows[node as usize].iter().map(|(target, _)| *target);
            if (node as usize) < last { lasts.filter(|target| *target as usize >= last).min() } else { None }
        };
        swept.sort_by_cached_key(|&node| (node as usize >= last, count(node), anchor(node).unwrap_or(node)));
        let order: Vec<u32> = swept.iter().chain(&system.eliminated).chain(&alone).copied().collect();
        let mut places = vec![0_u32; nodes];
        order.iter().zip(0..).for_each(|(&node, place)| places[node as usize] = place);
        let rows = SweepRows::of(&system, &swept, &places, last, damping);
        let mut starts = vec![0];
        let mut targets = Vec::new();
        let mut entries = Vec::new();
        for &node in &system.eliminated {
            for &(target, entry) in &system.rows[node as usize] {
                targets.push(places[target as usize]);
                entries.push(F::of(entry));
            }
            starts.push(targets.len());
        }
        let inverse = |&node: &u32| F::of(1.0 / system.diagonal[node as usize]);
        let solver = PageRankSolver {
            last,
            last_place: swept.partition_point(|&node| (node as usize) < last),
            connected: connected.len(),
            degrees: order[..connected.len()].iter().map(|&node| F::of(system.degrees[node as usize])).collect(),
            volume: system.degrees.iter().sum(),
            inverses: system.eliminated.iter().map(inverse).collect(),
            uniform_walk: Vec::new(),
            order,
            places,
            damping,
            rows,
            starts,
            targets,
            entries,
        };
        solver.with_uniform_walk()
    }

    /// Computes the uniform walk.
    fn with_uniform_walk(mut self) -> PageRankSolver<F> {
        let swept = self.rows.places();
        let count = swept - self.last_place;
        if count == 0 {
            return self;
        }
        // Scaled to a total mass of 1, for which `UNIFORM_TOLERANCE` is stated.
        let last_sum = 1.0 - self.damping;
        let share = F::of(last_sum / count as f64);
        let mut gains = vec![F::default(); self.connected];
        gains[self.last_place..swept].fill(share);
        let start = WalkGains { gains, scale: F::of(1.0), first_sum: 0.0, last_sum };
        let (mut walk, ..) = self.walk(&start, UNIFORM_TOLERANCE);
        walk.iter_mut().for_each(|u| *u = *u / share);
        self.uniform_walk = walk;
        self
    }

    /// Number of nodes that a sweep updates, and of entries that it reads for this. Public for benchmarks.
    #[doc(hidden)]
    pub fn swept(&self) -> (usize, usize) {
        (self.rows.places(), self.rows.entries())
    }

    /// Computes personalized PageRank from `reset`, one number per node, until at most `tolerance` of the mass is
    /// missing. The numbers need not sum to 1. Negative numbers and NaN count as 0; if nothing remains, every mass is
    /// 0.
    ///
    /// # Panics
    /// If the length of `reset` differs from the number of nodes.
    pub fn solve(&self, reset: &[F], tolerance: f64) -> PageRankScores<F> {
        assert_eq!(reset.len(), self.order.len(), "the reset needs one number per node");
        let (first, last) = reset.split_at(self.last.min(reset.len()));
        let seeds: Vec<(u32, F)> = (0..).zip(first.iter().copied()).collect();
        let mut mass = vec![F::default(); reset.len()];
        let Some(start) = self.gains(&seeds, last) else { return PageRankScores { mass, missing: 0.0, sweeps: 0 } };
        let (mut walk, missing, sweeps) = self.walk(&start, tolerance);
        self.resolve(&start.gains, &mut walk);
        let (connected, alone) = self.order.split_at(self.connected);
        for ((&node, &u), &degree) in connected.iter().zip(&walk).zip(&self.degrees) {
            mass[node as usize] = u * degree;
        }
        alone.iter().for_each(|&node| mass[node as usize] = clean(reset[node as usize]) * start.scale);
        PageRankScores { mass, missing, sweeps }
    }

    /// Computes personalized PageRank as [`solve`](Self::solve) does, but only the masses of the nodes from `last` on,
    /// which [`new`](Self::new) was given. `seeds` holds the weights of distinct nodes before `last` in the reset; the
    /// other nodes before `last` have weight 0. `weights` holds the weights of the nodes from `last` on.
    ///
    /// # Panics
    /// If a seed is not before `last`, or the length of `weights` differs from the number of nodes from `last` on.
    pub fn solve_last(&self, seeds: &[(u32, F)], weights: &[F], tolerance: f64) -> PageRankScores<F> {
        assert!(
            seeds.iter().all(|(node, _)| (*node as usize) < self.last.min(self.places.len())),
            "a seed is too large"
        );
        let nodes = &self.places[self.last.min(self.places.len())..];
        assert_eq!(weights.len(), nodes.len(), "the reset needs one number per node");
        let Some(start) = self.gains(seeds, weights) else {
            return PageRankScores { mass: vec![F::default(); weights.len()], missing: 0.0, sweeps: 0 };
        };
        let (walk, missing, sweeps) = self.walk(&start, tolerance);
        let mass = |(&place, &weight): (&u32, &F)| match walk.get(place as usize) {
            Some(&u) => u * self.degrees[place as usize],
            None => clean(weight) * start.scale,
        };
        PageRankScores { mass: nodes.iter().zip(weights).map(mass).collect(), missing, sweeps }
    }

    /// Distributes a reset over the places. `None` if nothing of it remains.
    fn gains(&self, seeds: &[(u32, F)], weights: &[F]) -> Option<WalkGains<F>> {
        let mut gains = vec![F::default(); self.connected];
        let mut alone = 0.0_f64;
        let mut put = |place: u32, weight: F| -> f64 {
            let weight = clean(weight);
            match gains.get_mut(place as usize) {
                Some(gain) => {
                    *gain = weight;
                    weight.into()
                }
                None => {
                    alone += weight.into();
                    0.0
                }
            }
        };
        let first_sum: f64 = seeds.iter().map(|&(node, weight)| put(self.places[node as usize], weight)).sum();
        let lasts = self.places.iter().skip(self.last);
        let last_sum: f64 = lasts.zip(weights).map(|(&place, &weight)| put(place, weight)).sum();
        let total = first_sum + last_sum + alone;
        if total <= 0.0 || !total.is_finite() {
            return None;
        }
        // Total mass of the solved system: the whole reset, minus what nodes without edges do not pass on.
        let whole = 1.0 - self.damping * alone / total;
        let scale = (1.0 - self.damping) / (total * whole);
        gains.iter_mut().for_each(|gain| *gain = *gain * F::of(scale));
        self.substitute(&mut gains);
        Some(WalkGains { gains, scale: F::of(scale), first_sum: first_sum * scale, last_sum: last_sum * scale })
    }

    /// Computes the walk at the swept places. Returns it with the missing mass and the number of sweeps.
    fn walk(&self, start: &WalkGains<F>, tolerance: f64) -> (Vec<F>, f64, usize) {
        let swept = self.rows.places();
        // Start: the uniform walk times the mean gain of the last nodes. The rest is spread by degree, as a long walk
        // would.
        let (mean, other) = match swept - self.last_place {
            0 => (0.0, start.first_sum + start.last_sum),
            _ if self.uniform_walk.is_empty() => (0.0, start.first_sum + start.last_sum),
            count => (start.last_sum / count as f64, start.first_sum),
        };
        let mean = F::of(mean);
        let rest = F::of(self.damping * other / ((1.0 - self.damping) * self.volume.max(f64::MIN_POSITIVE)));
        let gains = start.gains.iter().zip(&self.rows.inverses);
        let mut walk: Vec<F> = gains.map(|(&gain, &inverse)| gain * inverse + rest).collect();
        for (place, (u, &uniform)) in walk.iter_mut().zip(&self.uniform_walk).enumerate() {
            let known = if place < self.last_place { uniform } else { uniform - self.rows.inverses[place] };
            *u = *u + mean * known;
        }
        let (missing, sweeps) = self.relax(&start.gains, tolerance, &mut walk);
        (walk, missing, sweeps)
    }

    /// Iterates over the entries of an eliminated place.
    fn eliminated(&self, index: usize) -> impl Iterator<Item = (usize, F)> + '_ {
        let row = self.starts[index]..self.starts[index + 1];
        self.targets[row.clone()].iter().map(|&target| target as usize).zip(self.entries[row].iter().copied())
    }

    /// Forward substitution: passes the gain of eliminated places on to their neighbors.
    fn substitute(&self, gain: &mut [F]) {
        let swept = self.rows.places();
        for (index, place) in (swept..self.connected).enumerate() {
            if gain[place] > F::default() {
                let share = gain[place] * self.inverses[index];
                self.eliminated(index).for_each(|(target, entry)| gain[target] = gain[target] + share * entry);
            }
        }
    }

    /// Back substitution: computes the eliminated places from the others, and appends them to the walk.
    fn resolve(&self, gain: &[F], walk: &mut Vec<F>) {
        let swept = self.rows.places();
        walk.resize(self.connected, F::default());
        for (index, place) in (swept..self.connected).enumerate().rev() {
            let sum = self.eliminated(index).fold(gain[place], |sum, (target, entry)| sum + walk[target] * entry);
            walk[place] = sum * self.inverses[index];
        }
    }

    /// Sweeps until the missing mass is within the tolerance. Returns the missing mass and the number of sweeps.
    fn relax(&self, gain: &[F], tolerance: f64, walk: &mut [F]) -> (f64, usize) {
        let mut least = f64::INFINITY;
        let mut stalled = 0;
        for sweeps in 1..=MOST_SWEEPS {
            let missing = self.rows.sweep(gain, walk);
            stalled = if missing < least { 0 } else { stalled + 1 };
            least = least.min(missing);
            // Once only rounding still moves values, no further sweep helps.
            if missing <= tolerance || stalled == 8 {
                return (missing, sweeps);
            }
        }
        (least, MOST_SWEEPS)
    }
}

/// Counts negative numbers and NaN as 0.
fn clean<F: Real>(x: F) -> F {
    if x > F::default() { x } else { F::default() }
}
