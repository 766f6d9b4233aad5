//! The engine's settings.

use super::error::EngineError;

/// How much the engine takes on at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Sequences in one step at most.
    pub max_batch_rows: usize,
    /// Tokens in one step: decode rows come first, prefill chunks get what is left, and never less than one block.
    pub step_tokens: usize,
    /// Sessions that may wait for their first step; more are refused. Later turns of admitted sessions are not counted.
    pub max_waiting: usize,
    /// Tokens that may lie undelivered for one session before it leaves the batch until its reader has caught up.
    pub undelivered: usize,
    /// Steps in a row in which every row fails before the engine declares itself dead.
    pub max_failures: u32,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { max_batch_rows: 64, step_tokens: 512, max_waiting: 256, undelivered: 256, max_failures: 3 }
    }
}

impl EngineConfig {
    /// Refuses settings under which nothing could run.
    pub(super) fn check(&self) -> Result<(), EngineError> {
        let fields = [
            ("max_batch_rows", self.max_batch_rows),
            ("step_tokens", self.step_tokens),
            ("max_waiting", self.max_waiting),
            ("undelivered", self.undelivered),
            ("max_failures", self.max_failures as usize),
        ];
        match fields.into_iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(EngineError::Request(format!("{name} must be at least 1"))),
            None => Ok(()),
        }
    }
}
