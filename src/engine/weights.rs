//! Other weights for an engine that rests: what a trainer has made of them between two times in which it is used.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::oneshot;
use waymark_models::weights::Weights;

use super::command::Command;
use super::core::Core;
use super::error::EngineError;
use super::handle::Engine;
use super::worker::message;

impl Engine {
    /// Computes with other weights of the same shape from now on. Nothing of what was cached is used again.
    ///
    /// # Errors
    /// [`EngineError::Weights`] while there is a session or an adapter, which belong to the weights before, when the new
    /// ones do not fit, and of a backend that takes none; those before stand then. [`EngineError::Dead`] after the engine
    /// has stopped.
    pub async fn replace_weights(&self, weights: Weights) -> Result<(), EngineError> {
        self.0.alive()?;
        let (reply, answer) = oneshot::channel();
        self.0.send(Command::ReplaceWeights { weights: Box::new(weights), reply });
        let stopped = || EngineError::Dead("it stopped while its weights were being replaced".into());
        answer.await.unwrap_or_else(|_| Err(self.0.alive().err().unwrap_or_else(stopped)))
    }
}

impl Core {
    /// As [`Engine::replace_weights`]. A panic concerns nobody else: the backend has taken the weights as a whole or not at
    /// all.
    pub(super) fn replace_weights(&mut self, weights: &Weights) -> Result<(), EngineError> {
        let (loaded, retired) = self.adapters();
        let (sessions, adapters) = (self.sequences.len(), loaded.len() + retired.len());
        if sessions + adapters > 0 {
            return Err(EngineError::Weights(format!(
                "of the weights before there are {sessions} sessions and {adapters} adapters still: end and unload them \
                 first"
            )));
        }
        let backend = &mut self.backend;
        let reason = match catch_unwind(AssertUnwindSafe(|| backend.replace_weights(weights))) {
            Ok(Ok(())) => {
                // Without sessions all that is known is cached. And no key of the old weights is one of the new.
                self.pool.clear();
                self.last_generation += 1;
                self.base = self.last_generation;
                return Ok(());
            }
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panic: {}", message(panic.as_ref())),
        };
        self.check_lost();
        Err(EngineError::Weights(reason))
    }
}
