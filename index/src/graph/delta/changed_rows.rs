//! Rows of edges that differ from those of the base snapshot.

use std::sync::Arc;

use super::DeltaRow;
use crate::delta::PagedMap;

/// Changed rows by node.
#[derive(Debug, Clone, Default)]
pub(in crate::graph) struct ChangedRows {
    rows: PagedMap<DeltaRow>,
    /// One bit per node, set if its row is here. A walk asks for every node that it visits, and most have not changed.
    nodes: Arc<Vec<u64>>,
}

impl ChangedRows {
    /// Returns the row of a node. `None` if it has not changed.
    pub(in crate::graph) fn get(&self, node: u32) -> Option<&DeltaRow> {
        let word = self.nodes.get(node as usize / 64)?;
        if (word >> (node % 64)) & 1 == 0 {
            return None;
        }
        self.rows.get(node)
    }

    pub(super) fn insert(&mut self, node: u32, row: DeltaRow) {
        let nodes = Arc::make_mut(&mut self.nodes);
        let place = node as usize / 64;
        if nodes.len() <= place {
            nodes.resize(place + 1, 0);
        }
        nodes[place] |= 1 << (node % 64);
        self.rows.insert(node, row);
    }
}
