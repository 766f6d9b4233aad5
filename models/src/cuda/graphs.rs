//! Cache of CUDA graphs of decode steps, with a fallback to plain launches where capture fails.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use super::lora_grid::LoraGrid;

/// Identifies a captured step by its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GraphKey {
    /// Number of rows, rounded up to a bucket size.
    pub rows: usize,
    /// Grid of the LoRA kernels. `None` when no row has an adapter.
    pub lora: Option<LoraGrid>,
}

/// A decode step that can be launched kernel by kernel, or captured into a graph and replayed.
pub trait GraphStep {
    /// A captured graph.
    type Graph;
    /// Error of a launch, a capture or a replay.
    type Error: Display;

    /// Enqueues every kernel of the step.
    ///
    /// # Errors
    /// The driver's error.
    fn launch(&self) -> Result<(), Self::Error>;

    /// Captures the work of [`launch`](Self::launch) into a graph without running it.
    ///
    /// # Errors
    /// The driver's error. The GPU stays usable after a failed capture.
    fn capture(&self) -> Result<Self::Graph, Self::Error>;

    /// Enqueues a captured graph.
    ///
    /// # Errors
    /// The driver's error, in which case no kernel of the graph runs.
    fn replay(&self, graph: &Self::Graph) -> Result<(), Self::Error>;

    /// Waits for all enqueued work.
    ///
    /// # Errors
    /// The GPU is lost.
    fn settle(&self) -> Result<(), Self::Error>;
}

/// Counters of graph capture since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GraphUse {
    /// Number of captured steps.
    pub recorded: usize,
    /// Number of failed captures and replays. Steps with these keys are launched kernel by kernel.
    pub refused: usize,
}

/// Graphs captured by one decoder.
#[derive(Debug)]
pub struct GraphCache<G> {
    enabled: bool,
    /// `None` where capture or replay failed; neither is retried.
    graphs: HashMap<GraphKey, Option<G>>,
    counts: GraphUse,
}

impl<G> GraphCache<G> {
    /// Creates an empty cache.
    pub fn new(enabled: bool) -> Self {
        Self { enabled, graphs: HashMap::new(), counts: GraphUse::default() }
    }

    /// Returns `true` if capture and replay are enabled. The decoder checks this before [`run`](Self::run), which does
    /// not.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// Sets the flag that [`enabled`](Self::enabled) returns.
    pub fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Returns the counters of graph capture.
    pub fn counts(&self) -> GraphUse {
        self.counts
    }

    /// Enqueues a step by replaying its graph, which is captured at its first use. If capture or replay fails, this
    /// step and all later ones with the same key are launched kernel by kernel.
    ///
    /// # Errors
    /// The error of launching kernel by kernel.
    pub fn run<L: GraphStep<Graph = G>>(&mut self, key: GraphKey, step: &L) -> Result<(), L::Error> {
        match self.graphs.get(&key) {
            Some(Some(graph)) => match step.replay(graph) {
                Ok(()) => Ok(()),
                Err(error) => {
                    self.store_failure(key, &error);
                    step.launch()
                }
            },
            Some(None) => step.launch(),
            None => self.capture_and_store(key, step),
        }
    }

    /// Captures the missing graphs of `keys`, in this order, until `limit` has passed. The rest is captured at its
    /// first use. Returns the number of graphs left.
    ///
    /// # Errors
    /// The error of `step` or of launching kernel by kernel.
    pub fn capture_missing<L: GraphStep<Graph = G>>(
        &mut self,
        keys: &[GraphKey],
        limit: Duration,
        mut step: impl FnMut(GraphKey) -> Result<L, L::Error>,
    ) -> Result<usize, L::Error> {
        let started = Instant::now();
        let missing: Vec<GraphKey> = keys.iter().copied().filter(|key| !self.graphs.contains_key(key)).collect();
        for (done, key) in missing.iter().enumerate() {
            if started.elapsed() >= limit {
                return Ok(missing.len() - done);
            }
            self.capture_and_store(*key, &step(*key)?)?;
        }
        Ok(0)
    }

    /// Drops graphs, and records of failed captures, whose key is not `wanted`.
    pub fn retain(&mut self, wanted: impl Fn(GraphKey) -> bool) {
        self.graphs.retain(|key, _| wanted(*key));
    }

    fn capture_and_store<L: GraphStep<Graph = G>>(&mut self, key: GraphKey, step: &L) -> Result<(), L::Error> {
        // Launch once before capturing: a driver loads kernels at their first use, which is not allowed during capture.
        // This launch computes the step; the capture runs nothing.
        step.launch()?;
        step.settle()?;
        match step.capture() {
            Ok(graph) => {
                self.counts.recorded += 1;
                self.graphs.insert(key, Some(graph));
                Ok(())
            }
            Err(error) => {
                self.store_failure(key, &error);
                // A lost GPU refuses to capture as well; report the loss rather than fall back.
                step.settle()
            }
        }
    }

    fn store_failure(&mut self, key: GraphKey, error: &dyn Display) {
        let GraphKey { rows, lora } = key;
        let adapters = lora.is_some();
        // Only the first failure is a warning: later ones have the same cause.
        if self.counts.refused == 0 {
            tracing::warn!(rows, adapters, %error, "cannot capture or replay a decode step as a CUDA graph: its kernels are launched one by one");
        } else {
            tracing::debug!(rows, adapters, %error, "cannot capture another decode step as a CUDA graph");
        }
        self.counts.refused += 1;
        self.graphs.insert(key, None);
    }
}

#[cfg(test)]
mod tests;
