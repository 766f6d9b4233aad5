//! Personalized PageRank around a few nodes of a large graph.
//!
//! Algorithm of Andersen, Chung and Lang, "Local Graph Partitioning using PageRank Vectors" (FOCS 2006). Mass that is
//! not distributed yet waits at the nodes as a residual. A node whose residual is large for its degree keeps the
//! restart share of the residual and pushes the rest along its edges. Only the surroundings of the start are ever
//! touched. The mass missing at the end is exactly the sum of the residuals.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::graph::Adjacency;

/// Number of units per mass of 1, in which residuals are summed: enough to lose nothing that `f32` holds beside a total
/// of 1.
const MISSING_UNIT: f64 = (1_u64 << 62) as f64;

/// Parameters and stopping rule of a local walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalPageRank {
    /// Probability of following an edge.
    pub(crate) damping: f64,
    /// Largest residual of a node per unit of its summed weights, relative to a total reset of 1.
    pub(crate) tolerance: f64,
    /// Maximum number of edges to visit.
    pub(crate) work: usize,
    /// Node to ignore together with its edges. No walk starts there.
    pub(crate) without: Option<u32>,
}

/// Result of a local walk.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LocalScores {
    /// Reached nodes in ascending order, with their mass.
    pub(crate) mass: Vec<(u32, f32)>,
    /// Missing mass, summed over all nodes, of a total of 1.
    pub(crate) missing: f64,
}

/// Reusable buffers for walks, at least one entry per node of the graph, all zero between walks. Clones share them, so
/// that the next snapshot of a graph finds them ready.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScratchPool(Arc<Mutex<Vec<LocalScratch>>>);

#[derive(Debug, Default)]
struct LocalScratch {
    mass: Vec<f32>,
    residual: Vec<f32>,
    waiting: VecDeque<u32>,
    /// Nodes that received any mass, each once.
    touched: Vec<u32>,
}

impl ScratchPool {
    fn take(&self, nodes: usize) -> LocalScratch {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = free.unwrap_or_default();
        if scratch.mass.len() < nodes {
            scratch.mass.resize(nodes, 0.0);
            scratch.residual.resize(nodes, 0.0);
        }
        scratch
    }

    fn give_back(&self, scratch: LocalScratch) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }
}

impl LocalPageRank {
    /// Runs a walk from `reset`: distinct nodes with their weights, which need not sum to 1.
    pub(crate) fn solve(&self, edges: &Adjacency<'_>, reset: &[(u32, f64)], scratches: &ScratchPool) -> LocalScores {
        let mut scratch = scratches.take(edges.nodes());
        let local = self.solve_in(edges, reset, &mut scratch);
        scratches.give_back(scratch);
        local
    }

    fn solve_in(&self, edges: &Adjacency<'_>, reset: &[(u32, f64)], scratch: &mut LocalScratch) -> LocalScores {
        let total: f64 = reset.iter().map(|(_, weight)| weight).sum();
        if !(total > 0.0 && total.is_finite()) {
            return LocalScores { mass: Vec::new(), missing: 0.0 };
        }
        // A walk restarts at a node without edges, which equals walking without that node and scaling the result.
        let kept = |target: u32| Some(target) != self.without;
        let alone = |&&(node, _): &&(u32, f64)| !edges.row(node).0.iter().any(|&target| kept(target));
        let whole = 1.0 - self.damping * reset.iter().filter(alone).map(|(_, weight)| weight).sum::<f64>() / total;
        for &(node, weight) in reset {
            scratch.add(node, (weight / (total * whole)) as f32);
            scratch.waiting.push_back(node);
        }
        let mut work = 0;
        while let Some(node) = scratch.waiting.pop_front() {
            let held = std::mem::take(&mut scratch.residual[node as usize]);
            let (targets, weights) = edges.row(node);
            // The restart share stays as mass (FOCS 2006, the `push` operation); the rest moves on.
            scratch.mass[node as usize] += held * (1.0 - self.damping) as f32;
            let left = || targets.iter().zip(weights).filter(|(target, _)| kept(**target));
            let degree: f32 = left().map(|(_, weight)| weight).sum();
            let share = held * self.damping as f32 / degree;
            for (&target, &weight) in left() {
                scratch.push(target, share * weight, self.tolerance as f32, edges);
            }
            work += targets.len();
            if work > self.work {
                break;
            }
        }
        scratch.settle()
    }
}

impl LocalScratch {
    fn add(&mut self, node: u32, amount: f32) {
        let mass = self.mass[node as usize];
        let residual = &mut self.residual[node as usize];
        // A node may drop back to zero residual before it gets mass, so `touched` can repeat; `settle` removes
        // repetitions.
        if mass == 0.0 && *residual == 0.0 {
            self.touched.push(node);
        }
        *residual += amount;
    }

    /// Adds residual to a node, and queues the node once its residual is large enough.
    fn push(&mut self, node: u32, amount: f32, tolerance: f32, edges: &Adjacency<'_>) {
        let before = self.residual[node as usize];
        self.add(node, amount);
        // Most residuals are too small even for a node with one edge; nothing more needs to be read for those.
        if before + amount <= tolerance {
            return;
        }
        // The number of edges approximates the summed weights, which would have to be read: weights are about 1.
        let bound = tolerance * edges.row(node).0.len() as f32;
        if before <= bound && before + amount > bound {
            self.waiting.push_back(node);
        }
    }

    /// Takes the masses out and resets every buffer to zero.
    fn settle(&mut self) -> LocalScores {
        self.touched.sort_unstable();
        self.touched.dedup();
        // In integers, so that the sum does not depend on the order of the nodes, which a merge changes.
        let mut missing = 0_u128;
        let mut mass = Vec::with_capacity(self.touched.len());
        for node in self.touched.drain(..) {
            let residual = std::mem::take(&mut self.residual[node as usize]);
            missing += (f64::from(residual) * MISSING_UNIT) as u128;
            mass.push((node, std::mem::take(&mut self.mass[node as usize])));
        }
        self.waiting.clear();
        LocalScores { mass, missing: missing as f64 / MISSING_UNIT }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::pagerank::{Edges, PageRankSolver};

    /// Rows of a graph of single edges without loops.
    fn rows(nodes: usize, edges: &[(u32, u32, f32)]) -> (Vec<u64>, Vec<u32>, Vec<f32>) {
        let mut rows = vec![Vec::new(); nodes];
        for &(a, b, weight) in edges.iter().filter(|(a, b, _)| a != b) {
            rows[a as usize].push((b, weight));
            rows[b as usize].push((a, weight));
        }
        let mut offsets = vec![0];
        rows.iter().for_each(|row| offsets.push(offsets[offsets.len() - 1] + row.len() as u64));
        let (targets, weights) = rows.into_iter().flatten().unzip();
        (offsets, targets, weights)
    }

    proptest! {
        #[test]
        fn what_is_missing_is_known(
            edges in prop::collection::vec((0_u32..40, 0_u32..40, 0.1_f32..4.0), 0..120),
            reset in prop::collection::btree_map(0_u32..40, 0.01_f64..1.0, 1..8),
            damping in 0.1_f64..0.9, tolerance in prop_oneof![Just(1e-3), Just(1e-5), Just(0.0)],
            without in prop::option::of(0_u32..40),
        ) {
            let (offsets, targets, weights) = rows(40, &edges);
            let gone = |&(a, b, _): &(u32, u32, f32)| Some(a) == without || Some(b) == without;
            let left: Vec<_> = edges.into_iter().filter(|edge| !gone(edge)).collect();
            let edges = Adjacency::of(&offsets, &targets, &weights);
            let reset: Vec<(u32, f64)> = reset.into_iter().filter(|(node, _)| Some(*node) != without).collect();
            prop_assume!(!reset.is_empty());
            let scratches = ScratchPool::default();
            let walk = LocalPageRank { damping, tolerance, work: 100_000, without };
            let local = walk.solve(&edges, &reset, &scratches);
            // The second walk must not see what the first one left behind.
            prop_assert_eq!(&walk.solve(&edges, &reset, &scratches), &local);
            let mut whole_reset = vec![0.0_f64; 40];
            reset.iter().for_each(|&(node, weight)| whole_reset[node as usize] = weight);
            let (offsets, targets, weights) = rows(40, &left);
            let whole = PageRankSolver::new(&Edges { offsets: &offsets, targets: &targets, weights: &weights }, 40, damping);
            let mut whole = whole.solve(&whole_reset, 1e-12).mass;
            local.mass.iter().for_each(|&(node, mass)| whole[node as usize] -= f64::from(mass));
            let missing: f64 = whole.iter().map(|x| x.abs()).sum();
            prop_assert!((missing - local.missing).abs() < 1e-4, "{missing} and not {}", local.missing);
        }
    }

    #[test]
    fn a_walk_ends_when_it_has_worked_enough_and_says_what_is_missing() {
        let ring: Vec<_> = (0..1000).map(|i| (i, (i + 1) % 1000, 1.0)).collect();
        let (offsets, targets, weights) = rows(1000, &ring);
        let edges = Adjacency::of(&offsets, &targets, &weights);
        let walk = |work| {
            let walk = LocalPageRank { damping: 0.5, tolerance: 1e-9, work, without: None };
            walk.solve(&edges, &[(7, 3.0)], &ScratchPool::default())
        };
        let short = walk(10);
        let long = walk(10_000);
        assert!(short.missing > 0.1 && long.missing < 1e-5, "{} and {}", short.missing, long.missing);
        assert!(long.mass.len() < 100, "only what is near is touched");
    }
}
