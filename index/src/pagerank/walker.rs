//! The edges, put in the order in which they are swept.

use super::{Edges, MOST_SWEEPS, Mass, Options, Real};

/// An undirected weighted graph, ready to be walked from any number of resets, by any number of threads.
#[derive(Debug, Clone)]
pub struct Walker<F> {
    /// The node at each place. First come those with edges, by the number of them, then those without.
    order: Vec<u32>,
    /// The summed weights at each place with edges, and their inverse.
    degrees: Vec<[F; 2]>,
    /// All degrees together.
    volume: f64,
    /// Runs of places with equally many edges.
    runs: Vec<Run>,
    /// The places at the other ends. Each is less than `degrees.len()`, which is what sweeping relies on.
    targets: Vec<u32>,
    weights: Vec<F>,
}

/// Places one after the other that have equally many edges.
#[derive(Debug, Clone, Copy)]
struct Run {
    places: usize,
    edges: usize,
}

impl<F: Real> Walker<F> {
    /// Puts a graph in order. Nodes from number `last` on are swept after those before it; what is swept last is
    /// known best, so in a graph of phrases and passages these are the passages.
    ///
    /// Edges of no weight are left out, as are those that lead nowhere.
    pub fn new<W: Copy + Into<f64>>(edges: &Edges<'_, W>, last: usize) -> Walker<F> {
        let nodes = edges.nodes();
        let leads = |&(&target, &weight): &(&u32, &W)| (target as usize) < nodes && weight.into() > 0.0;
        let row = |node: u32| {
            let (targets, weights) = edges.row(node as usize);
            targets.iter().zip(weights).filter(leads)
        };
        let counts: Vec<usize> = (0..nodes as u32).map(|node| row(node).count()).collect();
        let mut order: Vec<u32> = (0..nodes as u32).collect();
        order.sort_by_key(|&node| {
            let count = counts[node as usize];
            (count == 0, node as usize >= last, count)
        });
        let mut places = vec![0_u32; nodes];
        order.iter().zip(0..).for_each(|(&node, place)| places[node as usize] = place);
        let mut volume = 0.0;
        let connected = counts.iter().filter(|&&count| count > 0).count();
        let (mut degrees, mut targets, mut weights) = (Vec::with_capacity(connected), Vec::new(), Vec::new());
        for &node in &order[..connected] {
            let mut degree = 0.0;
            for (&target, &weight) in row(node) {
                // A node whose edge leads here has one itself, the same: so its place is among those with edges.
                targets.push(places[target as usize]);
                weights.push(F::of(weight.into()));
                degree += weight.into();
            }
            volume += degree;
            degrees.push([F::of(degree), F::of(1.0 / degree)]);
        }
        let rows = order[..connected].chunk_by(|&a, &b| counts[a as usize] == counts[b as usize]);
        let runs = rows.map(|run| Run { places: run.len(), edges: counts[run[0] as usize] }).collect();
        assert!(targets.iter().all(|&target| (target as usize) < connected), "an edge stands in one row only");
        Walker { order, degrees, volume, runs, targets, weights }
    }

    /// Personalised PageRank from `reset`, one number per node. They need not sum to 1; those that are negative or no
    /// number count as 0, and if nothing is left there is no mass anywhere.
    ///
    /// # Panics
    /// If `reset` has not one number per node.
    pub fn walk(&self, reset: &[F], options: &Options) -> Mass<F> {
        assert_eq!(reset.len(), self.order.len(), "one number per node");
        let clean = |x: F| if x > F::default() { x } else { F::default() };
        let at = |node: &u32| clean(reset[*node as usize]);
        let (connected, alone) = self.order.split_at(self.degrees.len());
        let total: f64 = reset.iter().map(|&x| clean(x).into()).sum();
        let alone_sum: f64 = alone.iter().map(|node| at(node).into()).sum();
        let mut mass = vec![F::default(); reset.len()];
        if total <= 0.0 || !total.is_finite() {
            return Mass { mass, missing: 0.0, sweeps: 0 };
        }
        // The mass of the system as it is solved is all that was reset, but for what nodes without edges do not pass on.
        let whole = 1.0 - options.damping * alone_sum / total;
        let start = F::of((1.0 - options.damping) / (total * whole));
        let gain: Vec<F> = connected.iter().map(|node| at(node) * start).collect();
        // Whoever follows edges for long is found by degree alone, wherever the start: a good first guess of the rest.
        let rest = F::of(options.damping * (total - alone_sum) / (total * whole * self.volume.max(f64::MIN_POSITIVE)));
        let guess = |(&gain, degree): (&F, &[F; 2])| gain * degree[1] + rest;
        let mut walk: Vec<F> = gain.iter().zip(&self.degrees).map(guess).collect();
        let (missing, sweeps) = self.relax(&gain, options, &mut walk);
        for ((&node, &u), degree) in connected.iter().zip(&walk).zip(&self.degrees) {
            mass[node as usize] = u * degree[0];
        }
        alone.iter().for_each(|node| mass[*node as usize] = at(node) * start);
        Mass { mass, missing, sweeps }
    }

    /// Sweeps until little enough is missing; how much that is, and how many sweeps it took.
    fn relax(&self, gain: &[F], options: &Options, walk: &mut [F]) -> (f64, usize) {
        let Options { damping, tolerance } = *options;
        let omega = 2.0 / (1.0 + (1.0 - damping * damping).sqrt());
        let bound = (damping + 1.0 - 1.0 / omega) / (1.0 - damping);
        let (mut least, mut stalled) = (f64::INFINITY, 0);
        for sweeps in 1..=MOST_SWEEPS {
            let missing = bound * self.sweep(gain, F::of(damping), F::of(omega), walk);
            stalled = if missing < least { 0 } else { stalled + 1 };
            least = least.min(missing);
            // Where rounding is all that still moves, it would go on for ever.
            if missing <= tolerance || stalled == 8 {
                return (missing, sweeps);
            }
        }
        (least, MOST_SWEEPS)
    }

    /// Moves every node in order to where its neighbours want it, and a little further. How much mass moved.
    fn sweep(&self, gain: &[F], damping: F, omega: F, walk: &mut [F]) -> f64 {
        assert!(walk.len() == self.degrees.len() && gain.len() == walk.len());
        let mut sweep = Sweep { walk, damping, omega, moved: 0.0 };
        let (mut place, mut edge) = (0, 0);
        for run in &self.runs {
            let (places, edges) = (place..place + run.places, edge..edge + run.places * run.edges);
            (place, edge) = (places.end, edges.end);
            let rows = Rows {
                first: places.start,
                gain: &gain[places.clone()],
                degrees: &self.degrees[places],
                targets: &self.targets[edges.clone()],
                weights: &self.weights[edges],
            };
            match run.edges {
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
        sweep.moved
    }
}

/// The rows of a run.
struct Rows<'a, F> {
    first: usize,
    gain: &'a [F],
    degrees: &'a [[F; 2]],
    targets: &'a [u32],
    weights: &'a [F],
}

/// A sweep on its way.
struct Sweep<'a, F> {
    walk: &'a mut [F],
    damping: F,
    omega: F,
    moved: f64,
}

impl<F: Real> Sweep<'_, F> {
    /// Rows of so few edges that they are unrolled.
    fn rows<const N: usize>(&mut self, rows: &Rows<'_, F>) {
        let (targets, weights) = (rows.targets.as_chunks::<N>().0, rows.weights.as_chunks::<N>().0);
        let edges = targets.iter().zip(weights);
        for (i, ((&gain, degree), (targets, weights))) in rows.gain.iter().zip(rows.degrees).zip(edges).enumerate() {
            let mut sum = F::default();
            for i in 0..N {
                sum = sum + self.at(targets[i]) * weights[i];
            }
            self.relax(rows.first + i, gain, degree, sum);
        }
    }

    fn long_rows(&mut self, rows: &Rows<'_, F>, count: usize) {
        let edges = rows.targets.chunks_exact(count).zip(rows.weights.chunks_exact(count));
        for (i, ((&gain, degree), (targets, weights))) in rows.gain.iter().zip(rows.degrees).zip(edges).enumerate() {
            // Several sums side by side, so that no addition waits for the one before.
            let mut sums = [F::default(); 4];
            let (targets, last_targets) = targets.as_chunks::<4>();
            let (weights, last_weights) = weights.as_chunks::<4>();
            for (targets, weights) in targets.iter().zip(weights) {
                for lane in 0..4 {
                    sums[lane] = sums[lane] + self.at(targets[lane]) * weights[lane];
                }
            }
            for (&target, &weight) in last_targets.iter().zip(last_weights) {
                sums[0] = sums[0] + self.at(target) * weight;
            }
            self.relax(rows.first + i, gain, degree, (sums[0] + sums[1]) + (sums[2] + sums[3]));
        }
    }

    #[inline(always)]
    fn at(&self, place: u32) -> F {
        debug_assert!((place as usize) < self.walk.len());
        // SAFETY: places come from `Walker::targets`, all of which are less than the number of degrees, as `new` has
        // asserted; and `sweep` has asserted that `walk` is that long.
        unsafe { *self.walk.get_unchecked(place as usize) }
    }

    #[inline(always)]
    fn relax(&mut self, place: usize, gain: F, degree: &[F; 2], sum: F) {
        let before = self.walk[place];
        let step = ((gain + self.damping * sum) * degree[1] - before) * self.omega;
        self.walk[place] = before + step;
        self.moved += (step * degree[0]).abs().into();
    }
}
