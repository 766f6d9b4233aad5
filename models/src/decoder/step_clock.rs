//! Time measurement per phase of a step.

use std::time::{Duration, Instant};

/// A phase of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepPhase {
    /// Checks, layout and embedding lookup.
    Begin,
    /// RMS norms.
    Norm,
    /// Query, key and value projections.
    Qkv,
    /// Bias, norm per head, rotation, and writing to the cache.
    Rotate,
    /// Scores, softmax and weighted values.
    Attention,
    /// Attention's output projection.
    Output,
    /// Gate and up projections.
    GateUp,
    /// Activation function between the feed-forward projections.
    Activation,
    /// Down projection.
    Down,
    /// Choice of experts, and the sum of their outputs.
    Routing,
    /// Adapters at all sites.
    Adapters,
    /// Vocabulary projection.
    Head,
}

impl StepPhase {
    /// All phases, in the order of a step.
    pub const ALL: [Self; 12] = [
        Self::Begin,
        Self::Norm,
        Self::Qkv,
        Self::Rotate,
        Self::Attention,
        Self::Output,
        Self::GateUp,
        Self::Activation,
        Self::Down,
        Self::Routing,
        Self::Adapters,
        Self::Head,
    ];
}

/// Time spent per phase since the decoder was loaded. The clock readings cost about a thousandth of the shortest step.
#[derive(Debug, Clone, Copy)]
pub struct StepClock {
    spent: [Duration; StepPhase::ALL.len()],
    last: Instant,
}

impl StepClock {
    pub(crate) fn new() -> Self {
        Self { spent: Default::default(), last: Instant::now() }
    }

    /// Begins a step. Time before this call counts for no phase.
    pub(crate) fn start(&mut self) {
        self.last = Instant::now();
    }

    /// Adds the time since the last call of `start` or `lap` to phase `part`.
    pub(crate) fn lap(&mut self, part: StepPhase) {
        let now = Instant::now();
        self.spent[part as usize] += now - self.last;
        self.last = now;
    }

    /// Total time spent on `part`.
    pub fn spent(&self, part: StepPhase) -> Duration {
        self.spent[part as usize]
    }
}
