//! Keys in the server's state, and the servers that share them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::api::error::{ApiError, Code};
use crate::api::records::Records;
use crate::keys::{ApiKeys, KeyEntry, KeyRecord};
use crate::store::{RecordKey, RecordKind, RecordOrder, RecordRange};

/// Interval at which a server looks for keys that other servers have created or revoked.
const REFRESH: Duration = Duration::from_secs(5);

/// Maximum number of keys in the state.
const MAX_KEYS: usize = 1000;

/// Keys in the server's state; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct StoredKeys {
    keys: ApiKeys,
    records: Records,
    /// Held while keys are read and published, so no older list replaces a newer one.
    turn: Arc<Mutex<()>>,
}

impl StoredKeys {
    pub(crate) fn new(keys: ApiKeys, records: Records) -> Self {
        Self { keys, records, turn: Arc::default() }
    }

    /// Checks that keys can be created and revoked.
    ///
    /// # Errors
    /// 400 if the server requires no keys, or has no state.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        if !self.keys.required() {
            // Otherwise the first key would lock out everybody else.
            let message = "this server requires no keys: start it with `--api-keys` or `--api-key`";
            return Err(ApiError::new(Code::NotConfigured, message));
        }
        if !self.records.is_durable() {
            let message = "this server has no state to keep keys in: start it with `--state`";
            return Err(ApiError::new(Code::NotConfigured, message));
        }
        Ok(())
    }

    /// Reads the keys from the state. A shared state is then read again every [`REFRESH`].
    ///
    /// # Errors
    /// If the state cannot be read: a revoked key must not be accepted.
    pub(crate) async fn load(&self) -> Result<(), ApiError> {
        if !self.keys.required() || !self.records.is_durable() {
            return Ok(());
        }
        self.refresh().await?;
        if self.records.is_shared() {
            let stored = self.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(REFRESH).await;
                    // A failure is logged where it happens, and the known keys stay.
                    let _ = stored.refresh().await;
                }
            });
        }
        Ok(())
    }

    /// Stores a new key.
    ///
    /// # Errors
    /// 400 if the name is taken or there are too many keys, 503 if the state cannot be written.
    pub(super) async fn create(&self, entry: KeyEntry) -> Result<(), ApiError> {
        let _turn = self.turn.lock().await;
        let mut stored = self.read().await?;
        let name = entry.id.to_string();
        let taken = || ApiError::invalid("name", format!("there is a key with the name `{name}` already"));
        if self.keys.list().iter().any(|(_, other)| other.id == entry.id) || stored.iter().any(|key| key.id == entry.id)
        {
            return Err(taken());
        }
        if stored.len() >= MAX_KEYS {
            let message = format!("the state holds its maximum of {MAX_KEYS} keys: revoke one of them");
            return Err(ApiError::invalid("name", message));
        }
        // Another server over the same state may have created a key of this name since the list was read.
        if !self.records.insert(key(&name), KeyRecord::from(&entry)).await? {
            return Err(taken());
        }
        stored.push(entry);
        self.publish(stored)
    }

    /// Removes a key. Returns `false` if there is no such key in the state.
    ///
    /// # Errors
    /// 503 if the state cannot be written. The key then stays valid.
    pub(super) async fn revoke(&self, name: &str) -> Result<bool, ApiError> {
        let _turn = self.turn.lock().await;
        let mut stored = self.read().await?;
        let removed = self.records.remove(&key(name)).await?;
        // Published even if there was nothing to remove: an earlier call may have ended before it came to this.
        stored.retain(|entry| entry.id.as_str() != name);
        self.publish(stored)?;
        Ok(removed)
    }

    async fn refresh(&self) -> Result<(), ApiError> {
        let _turn = self.turn.lock().await;
        let stored = self.read().await?;
        self.publish(stored)
    }

    async fn read(&self) -> Result<Vec<KeyEntry>, ApiError> {
        let youngest = RecordRange::youngest(RecordKind::Key, None, MAX_KEYS);
        let records =
            self.records.list::<KeyRecord>(&RecordRange { order: RecordOrder::Ascending, ..youngest }).await?;
        let mut entries = Vec::with_capacity(records.len());
        for record in records {
            match record.value.entry(&record.id) {
                Ok(entry) => entries.push(entry),
                Err(error) => tracing::error!(key = record.id, %error, "a stored key is left out"),
            }
        }
        Ok(entries)
    }

    fn publish(&self, stored: Vec<KeyEntry>) -> Result<(), ApiError> {
        self.keys.set_stored(stored).map_err(|error| {
            tracing::error!(%error, "the stored keys contradict each other");
            ApiError::new(Code::Internal, "the stored keys contradict each other")
        })
    }
}

fn key(name: &str) -> RecordKey {
    RecordKey::new(RecordKind::Key, None, name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::keys::{KeyId, Secret};
    use crate::store::{SqlStore, StateLimits, Store};

    /// Another server over the state, or a call that ended before it published, may have removed the key.
    #[tokio::test]
    async fn a_key_that_is_no_longer_in_the_state_is_refused_after_a_removal() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(SqlStore::open_directory(dir.path(), StateLimits::default()).await.unwrap());
        let keys = || ApiKeys::open(None, vec![KeyEntry::of_environment(&Secret::generate())]).unwrap();
        let [first, second] = [keys(), keys()].map(|keys| StoredKeys::new(keys, Records::new(Arc::clone(&store))));
        let entry = KeyEntry { id: KeyId::new("alice"), ..KeyEntry::of_environment(&Secret::generate()) };
        first.create(entry).await.unwrap();
        second.load().await.unwrap();
        let knows = |server: &StoredKeys| server.keys.list().iter().any(|(_, entry)| entry.id.as_str() == "alice");
        assert!(first.revoke("alice").await.unwrap() && knows(&second));
        assert!(!second.revoke("alice").await.unwrap());
        assert!(!knows(&first) && !knows(&second));
    }

    #[tokio::test]
    async fn servers_that_create_a_name_at_once_give_it_to_one_key() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(SqlStore::open_directory(dir.path(), StateLimits::default()).await.unwrap());
        let keys = || ApiKeys::open(None, vec![KeyEntry::of_environment(&Secret::generate())]).unwrap();
        let servers: Vec<StoredKeys> =
            (0..8).map(|_| StoredKeys::new(keys(), Records::new(Arc::clone(&store)))).collect();
        let entry = || KeyEntry { id: KeyId::new("alice"), ..KeyEntry::of_environment(&Secret::generate()) };
        let created = futures::future::join_all(servers.iter().map(|server| server.create(entry()))).await;
        let (made, refused): (Vec<_>, Vec<_>) = created.into_iter().partition(Result::is_ok);
        assert_eq!(made.len(), 1);
        assert!(refused.into_iter().all(|refused| refused.unwrap_err().param.as_deref() == Some("name")));
        assert_eq!(servers[0].read().await.unwrap().len(), 1);
    }
}
