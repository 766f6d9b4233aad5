//! Graph edges in compressed sparse rows, as PageRank reads them.

use std::path::Path;

use petgraph::graph::UnGraph;
use petgraph::visit::EdgeRef;

use super::columns::{Column, ColumnFile, ColumnFileWriter};
use super::delta::ChangedRows;
use super::table::starts;
use crate::error::IndexError;

/// Undirected weighted graph in compressed sparse row form. Parallel edges are merged, every edge is in the rows of
/// both its endpoints, and the neighbors in a row are sorted. Nodes are the phrases, then the passages, of the base
/// snapshot, then those that commits added.
#[derive(Debug, Clone, Copy)]
pub struct Adjacency<'a> {
    /// Start of each node's row in the base snapshot, and the end of the last row.
    pub offsets: &'a [u64],
    /// Neighbor of each entry.
    pub targets: &'a [u32],
    /// Weight of each entry: finite and positive.
    pub weights: &'a [f32],
    /// Rows that differ from the slices.
    pub(super) changed: Option<&'a ChangedRows>,
    /// Number of nodes.
    pub(super) count: usize,
}

impl<'a> Adjacency<'a> {
    /// Creates the graph of compressed rows without changes.
    pub(crate) fn of(offsets: &'a [u64], targets: &'a [u32], weights: &'a [f32]) -> Adjacency<'a> {
        Adjacency { offsets, targets, weights, changed: None, count: offsets.len().saturating_sub(1) }
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.count
    }

    /// Returns the neighbors of a node and the weights of the edges to them. Empty for an unknown node.
    pub fn row(&self, node: u32) -> (&'a [u32], &'a [f32]) {
        if let Some(row) = self.changed.and_then(|rows| rows.get(node)) {
            return row.parts();
        }
        let bounds = self.offsets.get(node as usize..node as usize + 2);
        let row = bounds.map_or(0..0, |at| at[0] as usize..at[1] as usize);
        (&self.targets[row.clone()], &self.weights[row])
    }

    /// Checks that every edge is in the rows of both endpoints and that all rows are sorted. The PageRank solver relies
    /// on this: an edge to a node without edges would be a dead end.
    fn is_mutual(&self) -> bool {
        // Rows are read in ascending order, so the neighbors of each row come up in that row's own order.
        let mut next = self.offsets.to_vec();
        let mut back = |node: u32, target: u32| {
            let end = self.offsets.get(target as usize + 1)?;
            let at = next.get_mut(target as usize).filter(|at| **at < *end)?;
            let source = self.targets.get(*at as usize)?;
            *at += 1;
            (*source == node).then_some(())
        };
        (0..self.nodes() as u32).all(|node| self.row(node).0.iter().all(|&target| back(node, target).is_some()))
    }
}

/// Compressed sparse rows in memory.
#[derive(Debug, PartialEq)]
pub(super) struct SparseRows {
    pub(super) offsets: Vec<u64>,
    pub(super) targets: Vec<u32>,
    pub(super) weights: Vec<f32>,
}

impl SparseRows {
    /// Compresses a graph without self-loops.
    pub(super) fn of(graph: &UnGraph<(), f32>) -> SparseRows {
        let mut compiled = SparseRows { offsets: vec![0], targets: Vec::new(), weights: Vec::new() };
        let mut row: Vec<(u32, f32)> = Vec::new();
        for node in graph.node_indices() {
            row.clear();
            row.extend(graph.edges(node).map(|edge| (edge.target().index() as u32, *edge.weight())));
            // Sorts by weight too, so that both rows of an edge sum parallel edges in the same order, to the same
            // result.
            row.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
            for parallel in row.chunk_by(|a, b| a.0 == b.0) {
                compiled.targets.push(parallel[0].0);
                compiled.weights.push(parallel.iter().map(|&(_, weight)| weight).sum());
            }
            compiled.offsets.push(compiled.targets.len() as u64);
        }
        compiled
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), IndexError> {
        let mut columns = ColumnFileWriter::create(path)?;
        columns.column(&self.offsets)?;
        columns.column(&self.targets)?;
        columns.column(&self.weights)?;
        columns.finish()
    }
}

/// Edges of a snapshot's graph, memory-mapped.
#[derive(Debug)]
pub(super) struct AdjacencyFile {
    offsets: Column<u64>,
    targets: Column<u32>,
    weights: Column<f32>,
}

impl AdjacencyFile {
    pub(super) fn open(path: &Path, nodes: usize) -> Result<AdjacencyFile, IndexError> {
        let mut columns = ColumnFile::open(path)?;
        let stored = AdjacencyFile { offsets: columns.take()?, targets: columns.take()?, weights: columns.take()? };
        let Adjacency { offsets, targets, weights, .. } = stored.view();
        if offsets.len() != nodes + 1 || !starts(offsets, targets.len()) || weights.len() != targets.len() {
            return Err(columns.corrupt(format!("it does not hold the edges of {nodes} nodes")));
        }
        if !stored.view().is_mutual() {
            return Err(columns.corrupt("an edge does not stand in the rows of both its ends"));
        }
        if !weights.iter().all(|&weight| weight > 0.0 && weight.is_finite()) {
            return Err(columns.corrupt("an edge has no weight"));
        }
        Ok(stored)
    }

    pub(super) fn view(&self) -> Adjacency<'_> {
        Adjacency::of(&self.offsets, &self.targets, &self.weights)
    }
}
