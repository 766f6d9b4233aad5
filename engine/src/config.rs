//! Engine settings.

use super::error::EngineError;

/// Limits of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Maximum number of sequences in one step.
    pub max_batch_rows: usize,
    /// Maximum number of tokens in one step. Decode rows come first; prefill chunks may take the rest, or one block if
    /// the rest is smaller.
    pub step_tokens: usize,
    /// Maximum number of sessions that wait for their first step; further ones are refused. Later turns of admitted
    /// sessions are not counted.
    pub max_waiting: usize,
    /// Maximum number of undelivered tokens of one session. At this limit, the session leaves the batch until its
    /// reader has caught up.
    pub max_undelivered: usize,
    /// Number of consecutive steps without a successful row after which the engine stops.
    pub max_failures: u32,
    /// Maximum number of tokens per row and step that are looked up in the sequence itself and verified together with
    /// the row's next token. 0 turns lookup off. Lookup changes no output, except that a GPU rounds differently.
    pub lookup_tokens: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_batch_rows: 64,
            step_tokens: 512,
            max_waiting: 256,
            max_undelivered: 256,
            max_failures: 3,
            lookup_tokens: 0,
        }
    }
}

impl EngineConfig {
    /// Returns the maximum number of rows of logits in a step.
    pub(super) fn logit_rows(&self) -> usize {
        self.max_batch_rows.max(1 + self.lookup_tokens)
    }

    /// Refuses settings under which no session could run.
    pub(super) fn check(&self) -> Result<(), EngineError> {
        let fields = [
            ("max_batch_rows", self.max_batch_rows),
            ("step_tokens", self.step_tokens),
            ("max_waiting", self.max_waiting),
            ("max_undelivered", self.max_undelivered),
            ("max_failures", self.max_failures as usize),
        ];
        match fields.into_iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(EngineError::Request(format!("{name} must be at least 1"))),
            None => Ok(()),
        }
    }
}
