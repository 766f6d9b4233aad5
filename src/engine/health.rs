//! Whether the engine still answers.

use std::sync::OnceLock;

/// What readiness checks ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It takes requests.
    Ready,
    /// It does not, and will not again.
    Dead {
        /// What happened.
        reason: String,
    },
}

/// Set once, by the engine's thread; read from anywhere.
#[derive(Debug, Default)]
pub(super) struct Pulse(OnceLock<String>);

impl Pulse {
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
