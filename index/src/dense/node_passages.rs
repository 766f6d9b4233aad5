//! Mapping from nodes of the nearest-neighbor graph to passages.
//!
//! Every snapshot renumbers passages, but not nodes: a commit adds nodes to a copy of the earlier graph, and nodes of
//! removed passages stay as connections that are never results. The file holds one little-endian `u32` per node: the
//! number of its passage, or [`GONE`].

use std::path::Path;

use crate::error::IndexError;

/// Marks a node whose passage was removed.
const GONE: u32 = u32::MAX;

/// Passage of each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodePassages {
    passages: Vec<u32>,
    live: usize,
}

impl NodePassages {
    /// Maps each node to the passage with the same number.
    pub(super) fn identity(count: usize) -> NodePassages {
        NodePassages { passages: (0..).take(count).collect(), live: count }
    }

    /// Opens the mapping for `count` passages, each of which must have exactly one node.
    pub(super) fn open(path: &Path, count: usize) -> Result<NodePassages, IndexError> {
        let bytes = std::fs::read(path).map_err(IndexError::io("read", path))?;
        let (numbers, rest) = bytes.as_chunks();
        let passages: Vec<u32> = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let mut seen = vec![false; count];
        // Every passage exactly once; removed ones any number of times.
        let mut fresh = |&number: &u32| match seen.get_mut(number as usize) {
            Some(seen) => !std::mem::replace(seen, true),
            None => number == GONE,
        };
        let fits = rest.is_empty() && passages.iter().all(&mut fresh) && seen.iter().all(|&seen| seen);
        fits.then_some(NodePassages { passages, live: count })
            .ok_or_else(|| IndexError::corrupt(path, format!("it does not name each of {count} passages once")))
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), IndexError> {
        let bytes: Vec<u8> = self.passages.iter().flat_map(|number| number.to_le_bytes()).collect();
        std::fs::write(path, bytes).map_err(IndexError::io("write", path))
    }

    /// Number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.passages.len()
    }

    /// Number of nodes whose passage was removed.
    pub(super) fn gone(&self) -> usize {
        self.nodes() - self.live
    }

    /// Returns the passage of a node. `None` if it was removed.
    pub(super) fn passage(&self, node: u64) -> Option<u32> {
        let node = usize::try_from(node).ok()?;
        self.passages.get(node).copied().filter(|&number| number != GONE)
    }

    /// Returns the mapping after passages were renumbered or removed.
    pub(super) fn moved(&self, moved: &[Option<u32>]) -> NodePassages {
        let place = |&number: &u32| moved.get(number as usize).copied().flatten().unwrap_or(GONE);
        let passages: Vec<u32> = self.passages.iter().map(place).collect();
        let live = passages.iter().filter(|&&number| number != GONE).count();
        NodePassages { passages, live }
    }

    /// Appends a node for a passage that has none.
    pub(super) fn push(&mut self, passage: u32) {
        self.passages.push(passage);
        self.live += 1;
    }

    /// Returns the passages below `count` without a node, in order.
    pub(super) fn missing(&self, count: usize) -> Vec<u32> {
        let mut seen = vec![false; count];
        self.passages.iter().for_each(|&number| {
            if let Some(seen) = seen.get_mut(number as usize) {
                *seen = true;
            }
        });
        (0..).zip(seen).filter(|&(_, seen)| !seen).map(|(number, _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nodes_follow_their_passages() {
        let mut nodes = NodePassages::identity(4).moved(&[Some(0), None, Some(1), Some(2)]);
        assert_eq!((nodes.nodes(), nodes.gone(), nodes.missing(4)), (4, 1, vec![3]));
        nodes.push(3);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|node| nodes.passage(node)),
            [Some(0), None, Some(1), Some(2), Some(3), None]
        );
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("nodes");
        nodes.write(&path).unwrap();
        assert_eq!(NodePassages::open(&path, 4).unwrap(), nodes);
        for count in [3, 5] {
            assert!(NodePassages::open(&path, count).is_err());
        }
    }

    #[test]
    fn a_passage_without_a_node_or_with_two_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("nodes");
        for passages in [vec![0, 0, 1], vec![0, 2, 3], vec![0, 1, GONE]] {
            NodePassages { passages, live: 3 }.write(&path).unwrap();
            let error = NodePassages::open(&path, 3).unwrap_err().to_string();
            assert!(error.contains("each of 3 passages once"), "{error}");
        }
        std::fs::write(&path, [0; 13]).unwrap();
        assert!(NodePassages::open(&path, 1).is_err());
    }
}
