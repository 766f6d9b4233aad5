//! Recorded decode steps, by their size; and what is done where one cannot be recorded.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use super::reach::Grid;

/// What a recorded step was recorded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Rows of the bucket.
    pub rows: usize,
    /// The grid of the adapters' kernels, where adapters take part.
    pub lora: Option<Grid>,
}

/// How a step gets onto a card: launched piece by piece, or recorded and replayed.
pub trait Line {
    /// A recording.
    type Graph;
    /// Why something failed.
    type Error: Display;

    /// Puts every piece in line.
    ///
    /// # Errors
    /// What the driver said.
    fn launch(&self) -> Result<(), Self::Error>;

    /// Records what [`launch`](Self::launch) puts in line; runs none of it.
    ///
    /// # Errors
    /// What the driver said. The card can go on as if nothing had been tried.
    fn record(&self) -> Result<Self::Graph, Self::Error>;

    /// Puts a recording in line.
    ///
    /// # Errors
    /// What the driver said; nothing of it runs then.
    fn replay(&self, graph: &Self::Graph) -> Result<(), Self::Error>;

    /// Waits for all that is in line.
    ///
    /// # Errors
    /// That the card is lost.
    fn settle(&self) -> Result<(), Self::Error>;
}

/// What became of recording, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GraphUse {
    /// Steps that were recorded.
    pub recorded: usize,
    /// Recordings that failed: steps of that size are launched piece by piece.
    pub refused: usize,
}

/// The recordings of one decoder.
#[derive(Debug)]
pub struct Graphs<G> {
    enabled: bool,
    /// `None` where recording failed: it is not tried again.
    kept: HashMap<Key, Option<G>>,
    tally: GraphUse,
}

impl<G> Graphs<G> {
    /// None yet.
    pub fn new(enabled: bool) -> Self {
        Self { enabled, kept: HashMap::new(), tally: GraphUse::default() }
    }

    /// Whether steps are recorded and replayed.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// Whether they are from now on.
    pub fn set(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// What became of recording.
    pub fn tally(&self) -> GraphUse {
        self.tally
    }

    /// Puts a step in line by its recording, which is made at its first use. Where it cannot be made or replayed, the step
    /// and all later ones of its size are launched piece by piece.
    ///
    /// # Errors
    /// What launching piece by piece fails with.
    pub fn run<L: Line<Graph = G>>(&mut self, key: Key, line: &L) -> Result<(), L::Error> {
        match self.kept.get(&key) {
            Some(Some(graph)) => match line.replay(graph) {
                Ok(()) => Ok(()),
                Err(error) => {
                    self.refuse(key, &error);
                    line.launch()
                }
            },
            Some(None) => line.launch(),
            None => self.make(key, line),
        }
    }

    /// Makes the recordings that are missing of some sizes, in their order, until `limit` is over; what is left is made at
    /// its first use. Gives how many are left.
    ///
    /// # Errors
    /// What `line` or launching piece by piece fails with.
    pub fn warm<L: Line<Graph = G>>(
        &mut self,
        keys: &[Key],
        limit: Duration,
        mut line: impl FnMut(Key) -> Result<L, L::Error>,
    ) -> Result<usize, L::Error> {
        let begun = Instant::now();
        let missing: Vec<Key> = keys.iter().copied().filter(|key| !self.kept.contains_key(key)).collect();
        for (done, key) in missing.iter().enumerate() {
            if begun.elapsed() >= limit {
                return Ok(missing.len() - done);
            }
            self.make(*key, &line(*key)?)?;
        }
        Ok(0)
    }

    /// Forgets the recordings that are not wanted any more, and that some could not be made.
    pub fn retain(&mut self, wanted: impl Fn(Key) -> bool) {
        self.kept.retain(|key, _| wanted(*key));
    }

    fn make<L: Line<Graph = G>>(&mut self, key: Key, line: &L) -> Result<(), L::Error> {
        // Once as it is: a driver loads kernels at their first use, and not while it records. That has computed this step;
        // recording runs nothing.
        line.launch()?;
        line.settle()?;
        match line.record() {
            Ok(graph) => {
                self.tally.recorded += 1;
                self.kept.insert(key, Some(graph));
                Ok(())
            }
            Err(error) => {
                self.refuse(key, &error);
                // A card that is lost refuses as well.
                line.settle()
            }
        }
    }

    fn refuse(&mut self, key: Key, error: &dyn Display) {
        let Key { rows, lora } = key;
        let adapters = lora.is_some();
        // The first tells why; the others follow from it.
        if self.tally.refused == 0 {
            tracing::warn!(rows, adapters, %error, "a decode step cannot be recorded: its kernels are launched one by one");
        } else {
            tracing::debug!(rows, adapters, %error, "another decode step cannot be recorded");
        }
        self.tally.refused += 1;
        self.kept.insert(key, None);
    }
}

#[cfg(test)]
mod tests;
