//! Personalised PageRank on an undirected weighted graph: where one is found who follows an edge, by its weight, with
//! probability `damping`, and otherwise starts anew by the reset distribution `r`.
//!
//! `x = damping·P·x + (1 - damping)·r` with `P = A·D⁻¹` (Haveliwala, "Topic-Sensitive PageRank", WWW 2002), as igraph's
//! `personalized_pagerank` has it for HippoRAG: parallel edges add up, and at a node without edges one starts anew.
//!
//! In `u = D⁻¹·x` the system is symmetric and positive definite: `(D - damping·A)·u = (1 - damping)·r`, with the
//! weights as they are stored. It is solved in place by successive over-relaxation (Young 1954), which converges for
//! every such system. Before that, once for a graph and a damping, nodes of few edges are eliminated as Gauss did it, as
//! long as the system does not grow by it: they follow from the others. With `ρ` the spectral radius of Jacobi's method
//! and `ω = 2 / (1 + √(1 - ρ²))` (Young 1971), and damping 0.5, a sweep leaves about 0.15 of the error, where power
//! iteration leaves 0.5 and Chebyshev's acceleration of it 0.27. Nodes without edges only scale the solution, by a factor
//! that is known beforehand.
//!
//! How far the result is from the solution is known, not guessed. Write the system that is swept as `m[j]` on the diagonal
//! and `-c[i][j]` beside it: a sweep that moved `δ` leaves a residual of at most `Σ|δ[j]|·((1 - 1/ω)·m[j] + Σc[i][j])`
//! in sum, and the columns of the inverse, weighted by the nodes' degrees, have the sum `1 / (1 - damping)`, which
//! elimination leaves as it is. What follows from the others adds no residual; so this bounds the mass that is missing of
//! all nodes together.
//!
//! A [`PageRankSolver`] sweeps over nodes with equally many entries one after the other, so that the processor foresees where
//! each row ends. Every sum is taken in a fixed order by one thread: the same graph and reset give the same bits.

mod real;
mod solver;
mod system;
#[cfg(test)]
mod tests;

pub use real::Real;
pub use solver::PageRankSolver;

/// An undirected weighted graph in compressed sparse row form. Every edge stands in the rows of both its ends, a
/// self-loop twice in its one row or once with twice its weight, as igraph counts it. Weights must not be negative.
#[derive(Debug, Clone, Copy)]
pub struct Edges<'a, W = f32> {
    /// Where the row of each node begins in the other two, and where the last one ends.
    pub offsets: &'a [u64],
    /// The node at the other end.
    pub targets: &'a [u32],
    /// The weight of each edge.
    pub weights: &'a [W],
}

impl<'a, W: Copy + Into<f64>> Edges<'a, W> {
    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The edges of a node; none where the offsets are not in order.
    fn row(&self, node: usize) -> (&'a [u32], &'a [W]) {
        let (start, end) = (self.offsets[node] as usize, self.offsets[node + 1] as usize);
        match (self.targets.get(start..end), self.weights.get(start..end)) {
            (Some(targets), Some(weights)) => (targets, weights),
            _ => (&[], &[]),
        }
    }
}

/// Sweeps after which a walk ends however far it is: enough for damping 0.999 in double precision.
const MOST_SWEEPS: usize = 2000;

/// Where a walk ended up.
#[derive(Debug, Clone, PartialEq)]
pub struct PageRankScores<F> {
    /// The mass of each node; the sum is 1, or 0 where nothing was reset.
    pub mass: Vec<F>,
    /// The most that is missing, summed over all nodes; more than the tolerance only where rounding stood in the way.
    pub missing: f64,
    /// Passes over the edges that were made.
    pub sweeps: usize,
}
