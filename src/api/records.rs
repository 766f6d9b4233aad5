//! Records of requests in the [store](crate::store): encoding, and what happens when the store fails.
//!
//! A write that fails never fails an answer that is already there: the loss is logged, counted, and reported in a
//! header.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::blocking::run_blocking;
use super::error::{ApiError, Code};
use crate::store::{Record, RecordKey, RecordKind, RecordRange, Store, StoreError, StoreSize, codec};

/// Header of an answer whose record could not be written: the kind of the record.
const NOT_STORED: HeaderName = HeaderName::from_static("x-waymark-not-stored");

/// Store of a server, with its failures; clones share both.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    store: Arc<dyn Store>,
    failures: Arc<RecordFailures>,
}

/// Number of failed operations.
#[derive(Debug, Default)]
struct RecordFailures {
    writes: AtomicU64,
    reads: AtomicU64,
}

/// Record that could not be written. The loss was logged and counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unwritten {
    /// Kind of the record.
    kind: RecordKind,
    /// If `true`, the record has no room in memory, and the store is unchanged.
    full: bool,
}

impl From<Unwritten> for ApiError {
    fn from(lost: Unwritten) -> Self {
        if lost.full {
            let message = format!("the {} has no room for more in the server's memory: begin another one", lost.kind);
            return ApiError::new(Code::InvalidValue, message);
        }
        // A database may have committed the change before the connection broke or the time was up.
        let message = "the server's state could not be written in time or at all: the change may or may not have been \
                       stored, so read it before you repeat the request";
        ApiError::new(Code::StateUnavailable, message)
    }
}

/// Decoded record.
#[derive(Debug)]
pub(crate) struct ListedRecord<T> {
    pub(crate) id: String,
    /// Position in lists, after which the next page begins.
    pub(crate) position: i64,
    pub(crate) value: T,
}

impl Records {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, failures: Arc::default() }
    }

    /// Returns `true` if records survive the end of the process.
    pub(crate) fn is_durable(&self) -> bool {
        self.store.is_durable()
    }

    /// Returns `true` if other servers use the same records.
    pub(crate) fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    /// Returns the number of records of a kind and their size.
    pub(crate) fn size(&self, kind: RecordKind) -> StoreSize {
        self.store.size(kind)
    }

    /// Returns the number of writes that failed.
    pub(crate) fn write_failures(&self) -> u64 {
        self.failures.writes.load(Relaxed)
    }

    /// Returns the number of reads that failed.
    pub(crate) fn read_failures(&self) -> u64 {
        self.failures.reads.load(Relaxed)
    }

    /// Writes a record, replacing one with the same key.
    pub(crate) async fn put<T>(&self, key: RecordKey, value: T) -> Result<(), Unwritten>
    where
        T: Serialize + Send + 'static,
    {
        self.put_with(key, value, Vec::<(String, T)>::new()).await
    }

    /// Writes a record. Returns `false`, and changes nothing, if there is one with the same key.
    pub(crate) async fn insert<T>(&self, key: RecordKey, value: T) -> Result<bool, Unwritten>
    where
        T: Serialize + Send + 'static,
    {
        let kind = key.kind;
        let body = self.encoded(kind, value).await?;
        self.written(kind, self.store.insert(Record::new(key, body)).await)
    }

    /// Writes a record with its children, all or none, replacing one with the same key.
    pub(crate) async fn put_with<T, C>(
        &self,
        key: RecordKey,
        value: T,
        children: Vec<(String, C)>,
    ) -> Result<(), Unwritten>
    where
        T: Serialize + Send + 'static,
        C: Serialize + Send + 'static,
    {
        let kind = key.kind;
        let body = self.encoded(kind, value).await?;
        let children = self.children(&key, children).await?;
        self.written(kind, self.store.put(Record::new(key, body), children).await)
    }

    async fn children<C>(&self, parent: &RecordKey, children: Vec<(String, C)>) -> Result<Vec<Record>, Unwritten>
    where
        C: Serialize + Send + 'static,
    {
        let mut records = Vec::with_capacity(children.len());
        for (id, value) in children {
            let Some(key) = parent.child(id) else { continue };
            let body = self.encoded(parent.kind, value).await?;
            records.push(Record::new(key, body));
        }
        Ok(records)
    }

    /// Replaces the value of a record. Returns `false` if there is no such record.
    pub(crate) async fn update<T>(&self, key: &RecordKey, value: T) -> Result<bool, Unwritten>
    where
        T: Serialize + Send + 'static,
    {
        if is_impossible(key) {
            return Ok(false);
        }
        let body = self.encoded(key.kind, value).await?;
        self.written(key.kind, self.store.update(key, body).await)
    }

    /// Adds children with their IDs to the record `parent`, all or none. Returns `false` if there is no such record.
    pub(crate) async fn append<T>(&self, parent: &RecordKey, children: Vec<(String, T)>) -> Result<bool, Unwritten>
    where
        T: Serialize + Send + 'static,
    {
        if is_impossible(parent) {
            return Ok(false);
        }
        let records = self.children(parent, children).await?;
        self.written(parent.kind, self.store.append(parent, records).await)
    }

    /// Returns the record `key`.
    ///
    /// # Errors
    /// 503 if the store cannot be read.
    pub(crate) async fn get<T>(&self, key: &RecordKey) -> Result<Option<T>, ApiError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let Some(record) = self.find(key).await? else { return Ok(None) };
        self.decoded(record).await.map(|listed| Some(listed.value))
    }

    /// Returns the record `key` as it is stored.
    ///
    /// # Errors
    /// 503 if the store cannot be read.
    pub(crate) async fn find(&self, key: &RecordKey) -> Result<Option<Record>, ApiError> {
        if is_impossible(key) {
            return Ok(None);
        }
        self.store.get(key).await.map_err(|error| self.unread(key.kind, &error))
    }

    /// Returns the records in `range`.
    ///
    /// # Errors
    /// 503 if the store cannot be read.
    pub(crate) async fn list<T>(&self, range: &RecordRange) -> Result<Vec<ListedRecord<T>>, ApiError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let records = self.store.list(range).await.map_err(|error| self.unread(range.kind, &error))?;
        let mut decoded = Vec::with_capacity(records.len());
        for record in records {
            decoded.push(self.decoded(record).await?);
        }
        Ok(decoded)
    }

    /// Removes a record and its children. Returns `false` if there is no such record.
    ///
    /// # Errors
    /// 503 if the store cannot be written.
    pub(crate) async fn remove(&self, key: &RecordKey) -> Result<bool, ApiError> {
        if is_impossible(key) {
            return Ok(false);
        }
        Ok(self.written(key.kind, self.store.remove(key).await)?)
    }

    /// Encodes a value off the async threads, because a trace may have megabytes.
    async fn encoded<T>(&self, kind: RecordKind, value: T) -> Result<Vec<u8>, Unwritten>
    where
        T: Serialize + Send + 'static,
    {
        let encode = move || codec::encode(&value).map_err(|error| ApiError::new(Code::Internal, error.to_string()));
        run_blocking(encode).await.map_err(|error| self.lost(kind, &error.message))
    }

    async fn decoded<T>(&self, record: Record) -> Result<ListedRecord<T>, ApiError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let Record { key, position, body } = record;
        let decode = move || codec::decode(&body).map_err(|error| ApiError::new(Code::Internal, error.to_string()));
        let value = run_blocking(decode).await.map_err(|error| {
            let id = key.id.clone();
            self.unread(key.kind, &StoreError::Record { kind: key.kind, id, reason: error.message })
        })?;
        Ok(ListedRecord { id: key.id, position, value })
    }

    fn written<T>(&self, kind: RecordKind, outcome: Result<T, StoreError>) -> Result<T, Unwritten> {
        outcome.map_err(|error| {
            let full = matches!(error, StoreError::Full { .. });
            Unwritten { full, ..self.lost(kind, &error.to_string()) }
        })
    }

    /// Logs and counts a record that could not be written.
    pub(crate) fn lost(&self, kind: RecordKind, reason: &str) -> Unwritten {
        self.failures.writes.fetch_add(1, Relaxed);
        tracing::error!(kind = kind.name(), reason, "a record was lost");
        Unwritten { kind, full: false }
    }

    fn unread(&self, kind: RecordKind, error: &StoreError) -> ApiError {
        self.failures.reads.fetch_add(1, Relaxed);
        tracing::error!(kind = kind.name(), %error, "a record could not be read");
        // The error itself may name hosts and paths.
        ApiError::new(Code::StateUnavailable, "the server's state cannot be read")
    }
}

/// Returns `true` if no record can have this key. No ID that the server gives holds this character, and PostgreSQL
/// refuses it in any text.
fn is_impossible(key: &RecordKey) -> bool {
    key.id.contains('\0') || key.parent.contains('\0')
}

/// Marks an answer whose record was lost with the kind of the record.
pub(crate) fn not_stored(mut response: Response, lost: Unwritten) -> Response {
    response.headers_mut().insert(NOT_STORED, HeaderValue::from_static(lost.kind.name()));
    response
}
