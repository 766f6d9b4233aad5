//! The graph in compressed sparse rows: what a walk reads.

use std::path::Path;

use petgraph::graph::UnGraph;
use petgraph::visit::EdgeRef;

use super::columns::{Column, ColumnFile, ColumnFileWriter};
use super::table::starts;
use crate::error::IndexError;

/// Undirected weighted graph in compressed sparse row form. Parallel edges are added up, and every edge stands in the
/// rows of both its ends; the targets of a row are sorted. Nodes are first the phrases, then the passages.
#[derive(Debug, Clone, Copy)]
pub struct Adjacency<'a> {
    /// Where the row of each node begins, and where the last one ends.
    pub offsets: &'a [u64],
    /// The other end of each edge.
    pub targets: &'a [u32],
    /// The weight of each edge: finite and above zero.
    pub weights: &'a [f32],
}

impl<'a> Adjacency<'a> {
    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The neighbours of a node and the weights of the edges to them. A node that is not there has none.
    pub fn row(&self, node: u32) -> (&'a [u32], &'a [f32]) {
        let bounds = self.offsets.get(node as usize..node as usize + 2);
        let row = bounds.map_or(0..0, |at| at[0] as usize..at[1] as usize);
        (&self.targets[row.clone()], &self.weights[row])
    }

    /// Whether every edge stands in the rows of both its ends, and all rows are sorted. Walks rely on it: an edge to a
    /// node without edges has no end.
    fn is_mutual(&self) -> bool {
        // Rows are read in ascending order, so each row is named by those of its targets in its own order.
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
    /// The sparse form of a graph without loops.
    pub(super) fn of(graph: &UnGraph<(), f32>) -> SparseRows {
        let mut compiled = SparseRows { offsets: vec![0], targets: Vec::new(), weights: Vec::new() };
        let mut row: Vec<(u32, f32)> = Vec::new();
        for node in graph.node_indices() {
            row.clear();
            row.extend(graph.edges(node).map(|edge| (edge.target().index() as u32, *edge.weight())));
            // By weight too, so that both rows of an edge add up in the same order and come to the same sum.
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

/// The adjacency of a snapshot, by memory map.
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
        let Adjacency { offsets, targets, weights } = stored.view();
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
        Adjacency { offsets: &self.offsets, targets: &self.targets, weights: &self.weights }
    }
}
