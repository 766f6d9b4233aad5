//! Memory of an endpoint that refuses connections.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a refused connection is remembered.
const MEMORY: Duration = Duration::from_secs(1);

/// The last refused connection of an endpoint.
#[derive(Debug, Default)]
pub(super) struct RefusedConnection(Mutex<Option<(Instant, String)>>);

impl RefusedConnection {
    /// Remembers a refused connection by its error message.
    pub(super) fn note(&self, message: &str) {
        self.replace(Some((Instant::now(), message.to_owned())));
    }

    /// Forgets the refused connection, because the endpoint has answered.
    pub(super) fn forget(&self) {
        self.replace(None);
    }

    /// Returns the message of the last refused connection. `None` if the endpoint has answered since, or if the refusal
    /// is no longer recent.
    pub(super) fn recent(&self) -> Option<String> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(noted, _)| noted.elapsed() < MEMORY).map(|(_, message)| message.clone())
    }

    fn replace(&self, refused: Option<(Instant, String)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = refused;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_is_remembered_for_a_second_or_until_an_answer() {
        let memory = RefusedConnection::default();
        assert_eq!(memory.recent(), None);
        memory.note("away");
        assert_eq!(memory.recent().as_deref(), Some("away"));
        memory.forget();
        assert_eq!(memory.recent(), None);
        memory.replace(Instant::now().checked_sub(MEMORY).map(|noted| (noted, "long ago".to_owned())));
        assert_eq!(memory.recent(), None);
    }
}
