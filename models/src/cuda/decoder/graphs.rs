//! Recorded decode steps, by their size.

use std::collections::HashMap;

use crate::cuda::CudaError;
use crate::cuda::device::Graph;

/// Rows of the bucket, and whether adapters take part.
pub(super) type Key = (usize, bool);

/// The graphs of one decoder.
pub(super) struct Graphs {
    enabled: bool,
    recorded: HashMap<Key, Graph>,
}

impl Graphs {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, recorded: HashMap::new() }
    }

    pub(super) fn enabled(&self) -> bool {
        self.enabled
    }

    pub(super) fn set(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    pub(super) fn has(&self, key: Key) -> bool {
        self.recorded.contains_key(&key)
    }

    pub(super) fn insert(&mut self, key: Key, graph: Graph) {
        self.recorded.insert(key, graph);
    }

    /// Puts a recorded step in line.
    pub(super) fn launch(&self, key: Key) -> Result<(), CudaError> {
        let missing = || CudaError::Call { action: "launch a graph", reason: format!("none was recorded for {key:?}") };
        self.recorded.get(&key).ok_or_else(missing)?.launch()
    }

    /// Forgets steps with adapters: how much they launch depends on which are loaded.
    pub(super) fn forget_adapted(&mut self) {
        self.recorded.retain(|(_, adapted), _| !adapted);
    }
}
