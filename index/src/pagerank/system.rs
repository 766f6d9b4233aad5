//! Linear system of a walk, and elimination of nodes with few edges.

use super::Edges;

/// Largest number of edges of a node to eliminate.
const MOST_EDGES: usize = 6;

/// The system `(D - damping·A)·u = g` by rows. Off-diagonal entries are stored negated, so none is negative.
///
/// Gaussian elimination of a node `v` adds `c[i][v]·c[v][j] / m[v]` between every two of its neighbors `i` and `j`, and
/// subtracts the same with `i = j` from their diagonals. The remainder of a symmetric, diagonally dominant matrix is
/// again one (Horn and Johnson, "Matrix Analysis"), has the same solution, and the columns of its inverse have at most
/// the same sums.
pub(super) struct System {
    /// Diagonal entries. Those of eliminated nodes are as they were at elimination.
    pub(super) diagonal: Vec<f64>,
    /// Other entries of each row, by node. An eliminated node keeps entries to the nodes present at its elimination;
    /// the others have entries to remaining nodes only.
    pub(super) rows: Vec<Vec<(u32, f64)>>,
    /// Summed weights of each node's edges.
    pub(super) degrees: Vec<f64>,
    /// Eliminated nodes, in order of elimination.
    pub(super) eliminated: Vec<u32>,
}

impl System {
    /// Builds the system of a graph for one damping. Edges of weight 0 or to unknown nodes are ignored.
    pub(super) fn new<W: Copy + Into<f64>>(edges: &Edges<'_, W>, damping: f64) -> System {
        let nodes = edges.nodes();
        let mut diagonal = vec![0.0; nodes];
        let mut degrees = vec![0.0; nodes];
        let mut rows: Vec<Vec<(u32, f64)>> = vec![Vec::new(); nodes];
        for node in 0..nodes {
            let (targets, weights) = edges.row(node);
            for (&target, &weight) in targets.iter().zip(weights) {
                let weight: f64 = weight.into();
                if (target as usize) >= nodes || weight.is_nan() || weight <= 0.0 {
                    continue;
                }
                degrees[node] += weight;
                // Self-loops stay on the diagonal: `D - damping·A` subtracts their weight there.
                if target as usize == node {
                    diagonal[node] -= damping * weight;
                } else {
                    rows[node].push((target, damping * weight));
                }
            }
            diagonal[node] += degrees[node];
            rows[node].sort_unstable_by_key(|(target, _)| *target);
            rows[node].dedup_by(|again, first| {
                again.0 == first.0 && {
                    first.1 += again.1;
                    true
                }
            });
        }
        System { diagonal, rows, degrees, eliminated: Vec::new() }
    }

    /// Eliminates nodes before `last` as long as that does not enlarge the system: first nodes of one edge, then of
    /// two, and so on, each in order of their numbers.
    pub(super) fn reduce(&mut self, last: usize) {
        let last = last.min(self.rows.len());
        let mut gone = vec![false; self.rows.len()];
        let mut live: Vec<usize> = self.rows.iter().map(Vec::len).collect();
        for most in 1..=MOST_EDGES {
            for node in 0..last {
                if gone[node] || live[node] == 0 || live[node] > most {
                    continue;
                }
                self.rows[node].retain(|(target, _)| !gone[*target as usize]);
                // Eliminating the node would add more entries than it removes.
                if self.fill(node) > live[node] {
                    continue;
                }
                gone[node] = true;
                self.eliminate(node, &mut live);
                self.eliminated.push(node as u32);
            }
        }
        for row in 0..self.rows.len() {
            if !gone[row] {
                self.rows[row].retain(|(target, _)| !gone[*target as usize]);
            }
        }
    }

    /// Counts the pairs of neighbors of a node between which its elimination would add an edge.
    fn fill(&self, node: usize) -> usize {
        let row = &self.rows[node];
        let pairs = row.iter().enumerate().flat_map(|(i, a)| row[i + 1..].iter().map(move |b| (a.0, b.0)));
        pairs.filter(|(a, b)| self.place(*a, *b).is_err()).count()
    }

    fn place(&self, row: u32, target: u32) -> Result<usize, usize> {
        self.rows[row as usize].binary_search_by_key(&target, |(target, _)| *target)
    }

    fn eliminate(&mut self, node: usize, live: &mut [usize]) {
        let row = std::mem::take(&mut self.rows[node]);
        let inverse = 1.0 / self.diagonal[node];
        for &(a, to_a) in &row {
            // The Schur complement, with off-diagonal entries negated.
            self.diagonal[a as usize] -= to_a * to_a * inverse;
            live[a as usize] -= 1;
            for &(b, to_b) in row.iter().filter(|(b, _)| *b != a) {
                let more = to_a * to_b * inverse;
                match self.place(a, b) {
                    Ok(place) => self.rows[a as usize][place].1 += more,
                    Err(place) => {
                        self.rows[a as usize].insert(place, (b, more));
                        live[a as usize] += 1;
                    }
                }
            }
        }
        self.rows[node] = row;
    }

    /// Estimates, by power iteration, the largest eigenvalue of `D⁻¹·C` over the remaining nodes, where `D` is the
    /// diagonal and `C` the rest: the factor by which Jacobi's method reduces an error.
    pub(super) fn radius(&self, kept: &[u32]) -> f64 {
        let mut vector = vec![0.0; self.rows.len()];
        kept.iter().for_each(|&node| vector[node as usize] = 1.0);
        let mut radius = 0.0;
        for _ in 0..POWERS {
            let mut next = vec![0.0; vector.len()];
            let mut largest: f64 = 0.0;
            for &node in kept {
                let node = node as usize;
                let sum: f64 = self.rows[node].iter().map(|&(target, c)| c * vector[target as usize]).sum();
                next[node] = sum / self.diagonal[node];
                largest = largest.max(next[node]);
            }
            if largest <= 0.0 {
                return 0.0;
            }
            radius = largest;
            next.iter_mut().for_each(|x| *x /= largest);
            vector = next;
        }
        radius
    }
}

/// Number of steps of the power iteration.
const POWERS: usize = 20;
