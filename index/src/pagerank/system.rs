//! The linear system of a walk, and the nodes that are solved for beforehand.

use super::Edges;

/// Nodes of at most so many edges are eliminated.
const MOST_EDGES: usize = 6;

/// `(D - damping·A)·u = g`, by rows, with the off-diagonal entries negated: none of them is negative.
///
/// Some nodes are eliminated as Gauss did it: where `v` goes, every two of its neighbours `i` and `j` get
/// `c[i][v]·c[v][j] / m[v]` between them, and on their diagonals the same with `i = j` less. What is left of a
/// symmetric, diagonally dominant matrix is one again (Horn and Johnson, "Matrix Analysis"), its solution is the same,
/// and the columns of its inverse have the same sums at most.
pub(super) struct System {
    /// The diagonal entries; that of an eliminated node as it was when it went.
    pub(super) diagonal: Vec<f64>,
    /// The other entries of each row, by node; of an eliminated node those to nodes that were there when it went, of
    /// the others those to nodes that are there still.
    pub(super) rows: Vec<Vec<(u32, f64)>>,
    /// The summed weights of each node's edges.
    pub(super) degrees: Vec<f64>,
    /// The nodes that were eliminated, in order.
    pub(super) eliminated: Vec<u32>,
}

impl System {
    /// The system of a graph for one damping. Edges of no weight are left out, as are those that lead nowhere.
    pub(super) fn new<W: Copy + Into<f64>>(edges: &Edges<'_, W>, damping: f64) -> System {
        let nodes = edges.nodes();
        let (mut diagonal, mut degrees) = (vec![0.0; nodes], vec![0.0; nodes]);
        let mut rows: Vec<Vec<(u32, f64)>> = vec![Vec::new(); nodes];
        for node in 0..nodes {
            let (targets, weights) = edges.row(node);
            for (&target, &weight) in targets.iter().zip(weights) {
                let weight: f64 = weight.into();
                if (target as usize) >= nodes || weight.is_nan() || weight <= 0.0 {
                    continue;
                }
                degrees[node] += weight;
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

    /// Eliminates nodes before `last` while that makes the system no larger: first those of one edge, then those of
    /// two, and so on, in the order of their numbers.
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

    /// How many entries there would be more, but for those of the node itself.
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

    /// The largest eigenvalue of `D⁻¹·C` of the nodes that are left, for `D` the diagonal and `C` the rest: what
    /// Jacobi's method would leave of an error. Estimated from below by power iteration.
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

/// Steps of the power iteration.
const POWERS: usize = 20;
