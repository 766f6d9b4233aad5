//! Health of the engine.

use std::sync::OnceLock;

/// State reported to readiness checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The engine takes requests.
    Ready,
    /// The engine has stopped and does not recover.
    Dead {
        /// Reason of the stop.
        reason: String,
    },
}

/// Stop flag with its reason, set once by the engine thread and read by any thread.
#[derive(Debug, Default)]
pub(super) struct StopFlag(OnceLock<String>);

impl StopFlag {
    pub(super) fn stop(&self, reason: &str) {
        // The first reason is the cause; later ones are consequences.
        let _ = self.0.set(reason.to_owned());
    }

    pub(super) fn stopped(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    pub(super) fn health(&self) -> Health {
        match self.stopped() {
            None => Health::Ready,
            Some(reason) => Health::Dead { reason: reason.to_owned() },
        }
    }
}
