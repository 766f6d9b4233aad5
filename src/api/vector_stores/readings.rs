//! Readings of files on blocking threads, each for a limited time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::file_documents::fault;
use super::record::IndexingFault;
use crate::store::Owner;

/// Message for a file that is added while an abandoned reading of its owner runs.
const OCCUPIED: &str =
    "another file of this key is still being read although its time is over: add the file again later";

/// Readings of files, and the owners of those that were abandoned and still run; clones share them.
///
/// A reading looks at its deadline between small steps, but a damaged file may keep the parser of another crate busy for
/// hours within one. Its thread cannot be ended, so it is abandoned, and its owner gets no other reading meanwhile: no
/// key takes more than one thread this way, or holds up the files of others.
#[derive(Debug, Clone, Default)]
pub(super) struct FileReadings(Arc<Mutex<HashSet<Owner>>>);

impl FileReadings {
    /// Runs `read` for `owner` on a blocking thread, and waits for its end for up to `patience`.
    ///
    /// # Errors
    /// Errors of `read`, and a fault if it panics, does not end in time, or an earlier one of the owner has not ended.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        owner: Owner,
        patience: Duration,
        read: impl FnOnce() -> Result<T, IndexingFault> + Send + 'static,
    ) -> Result<T, IndexingFault> {
        if self.lock().contains(&owner) {
            return Err(fault("server_error", OCCUPIED));
        }
        let mut reading = spawn_blocking(read);
        if let Ok(ended) = timeout(patience, &mut reading).await {
            // A panic of a parser must not keep the other files from being indexed.
            return ended.unwrap_or_else(|_| Err(fault("server_error", "the file cannot be read")));
        }
        tracing::error!(
            "a file is still being read although its time is over: its thread runs until the parser returns"
        );
        self.abandon(owner, reading);
        Err(fault("server_error", "the file takes too long to read"))
    }

    /// Refuses further readings of `owner` until `reading` ends.
    fn abandon<T: Send + 'static>(&self, owner: Owner, reading: JoinHandle<T>) {
        self.lock().insert(owner);
        let readings = self.clone();
        tokio::spawn(async move {
            let _ = reading.await;
            readings.lock().remove(&owner);
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Owner>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;

    use super::*;
    use crate::keys::Secret;

    #[tokio::test]
    async fn an_owner_with_an_abandoned_reading_gets_no_other_until_it_ends() {
        let readings = FileReadings::default();
        let patience = Duration::from_secs(60);
        let [greedy, other] = [(); 2].map(|()| Some(Secret::generate().digest().owner()));
        let (end, ended) = mpsc::channel::<()>();
        let endless = move || Ok(ended.recv().is_err());
        let refused = readings.run(greedy, Duration::from_millis(10), endless).await.unwrap_err();
        assert!(refused.message.contains("too long"), "{refused:?}");
        let refused = readings.run(greedy, patience, || Ok(())).await.unwrap_err();
        assert_eq!(refused.message, OCCUPIED);
        assert_eq!(readings.run(other, patience, || Ok(1)).await, Ok(1));
        drop(end);
        while readings.lock().contains(&greedy) {
            tokio::task::yield_now().await;
        }
        assert_eq!(readings.run(greedy, patience, || Ok(2)).await, Ok(2));
        let broken = readings.run::<()>(greedy, patience, || panic!("a parser that fails")).await.unwrap_err();
        assert_eq!(broken.message, "the file cannot be read");
    }
}
