//! Replacing the weights of an idle engine, as a trainer does between two rounds of generation.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::oneshot;
use waymark_models::weights::Weights;

use super::command::EngineCommand;
use super::core::Core;
use super::error::EngineError;
use super::handle::Engine;
use super::worker::panic_message;

impl Engine {
    /// Replaces the weights by others of the same shape. The KV cache of the previous weights is not used again.
    ///
    /// # Errors
    /// [`EngineError::Weights`] while sessions or adapters exist, when the new weights do not fit, and from a backend
    /// that does not support it; the previous weights stay in use. [`EngineError::Dead`] after the engine has stopped.
    pub async fn replace_weights(&self, weights: Weights) -> Result<(), EngineError> {
        self.0.alive()?;
        let (reply, answer) = oneshot::channel();
        self.0.send(EngineCommand::ReplaceWeights { weights: Box::new(weights), reply });
        let stopped = || EngineError::Dead("it was shut down while replacing the weights".into());
        answer.await.unwrap_or_else(|_| Err(self.0.alive().err().unwrap_or_else(stopped)))
    }
}

impl Core {
    /// Executes [`Engine::replace_weights`]. A panic fails this call only: the backend replaces either all weights or
    /// none.
    pub(super) fn replace_weights(&mut self, weights: &Weights) -> Result<(), EngineError> {
        let (loaded, retired) = self.adapters();
        let sessions = self.sequences.len();
        let adapters = loaded.len() + retired.len();
        if sessions + adapters > 0 {
            return Err(EngineError::Weights(format!(
                "{sessions} sessions and {adapters} adapters still use the previous weights: close and unload them first"
            )));
        }
        let backend = &mut self.backend;
        let reason = match catch_unwind(AssertUnwindSafe(|| backend.replace_weights(weights))) {
            Ok(Ok(())) => {
                // Without sessions every known block is cached, so `clear` frees them all. The new generation makes
                // keys of the old weights unreachable.
                self.pool.clear();
                self.last_generation += 1;
                self.base = self.last_generation;
                return Ok(());
            }
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panic: {}", panic_message(panic.as_ref())),
        };
        self.check_lost();
        Err(EngineError::Weights(reason))
    }
}
