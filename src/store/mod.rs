//! Records that outlive a request, and, with a state directory or a database, the process: stored responses,
//! conversations, traces, and the policies and keys that were added over HTTP.
//!
//! | file | content |
//! |---|---|
//! | `record` | records, their kinds and keys |
//! | `codec` | records as compressed JSON |
//! | `memory`, `archive` | the store of a server without state: bounded, in memory |
//! | `sql` | SQLite in a state directory, and PostgreSQL |
//!
//! A record belongs to a tenant, and every operation names the tenant. The module knows neither HTTP nor the
//! configuration.

mod archive;
pub(crate) mod codec;
mod memory;
mod record;
mod sql;
#[cfg(test)]
mod tests;

use std::fmt;

use futures::future::BoxFuture;

pub use memory::{MemoryLimits, MemoryStore};
pub use record::{Owner, Record, RecordKey, RecordKind, RecordOrder, RecordRange};
pub use sql::{SqlStore, StateLimits};

pub(crate) use archive::Archive;

/// Number of stored values and their approximate size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreSize {
    /// Number of values.
    pub count: usize,
    /// Total size of the values.
    pub bytes: usize,
}

/// Error of a store. The record in question is unchanged, or was never written. Only after a timeout, or if the
/// connection broke during a commit, the write may have succeeded anyway.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database returned an error: it is full, gone, or damaged.
    #[error("the state cannot be read or written: {0}")]
    Database(#[from] sqlx::Error),
    /// The database did not answer in time.
    #[error("the state's database did not answer within {} s", .0.as_secs())]
    Timeout(std::time::Duration),
    /// A record in memory does not fit into its tenant's room.
    #[error("the {kind} `{id}` has no room for more in memory")]
    Full {
        /// Kind of the record.
        kind: RecordKind,
        /// ID of the record.
        id: String,
    },
    /// A record cannot be decoded.
    #[error("the stored {kind} `{id}` cannot be read: {reason}")]
    Record {
        /// Kind of the record.
        kind: RecordKind,
        /// ID of the record.
        id: String,
        /// Description of the error.
        reason: String,
    },
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}: {source}", path.display())]
    Directory {
        /// Path of the directory.
        path: std::path::PathBuf,
        /// Error from the operating system.
        source: std::io::Error,
    },
    /// Another process uses the state directory.
    #[error("the state directory {} is in use by another process: give this one its own by `--state`", .0.display())]
    InUse(std::path::PathBuf),
    /// The database was written by a later version.
    #[error("the state has version {found}, and this program knows versions up to {known}: use a newer program")]
    Version {
        /// Version of the database.
        found: i64,
        /// Latest version that this program knows.
        known: i64,
    },
}

/// Result of an operation of a [`Store`], as a future.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Store of records. A write is complete when its future is: it then survives what the store promises to survive.
pub trait Store: fmt::Debug + Send + Sync {
    /// Writes a record with its children, replacing one with the same key.
    fn put(&self, record: Record, children: Vec<Record>) -> StoreFuture<'_, ()>;

    /// Writes a record without children. Returns `false`, and changes nothing, if there is one with the same key.
    fn insert(&self, record: Record) -> StoreFuture<'_, bool>;

    /// Replaces the body of a record. Returns `false` if there is no such record.
    fn update<'a>(&'a self, key: &'a RecordKey, body: Vec<u8>) -> StoreFuture<'a, bool>;

    /// Adds children to the record `parent`, all or none, after those it has. Returns `false` if there is no such
    /// record.
    fn append<'a>(&'a self, parent: &'a RecordKey, children: Vec<Record>) -> StoreFuture<'a, bool>;

    /// Returns the record `key`.
    fn get<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, Option<Record>>;

    /// Returns the records in `range`.
    fn list<'a>(&'a self, range: &'a RecordRange) -> StoreFuture<'a, Vec<Record>>;

    /// Removes a record and its children. Returns `false` if there is no such record.
    fn remove<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, bool>;

    /// Returns the number of records of a kind and their size, including their children. A database may return values
    /// that are a minute old.
    fn size(&self, kind: RecordKind) -> StoreSize;

    /// Returns the name of the place where records are kept, for logs and `/debug/state`.
    fn name(&self) -> &'static str;

    /// Returns `true` if records survive the end of the process.
    fn is_durable(&self) -> bool;

    /// Returns `true` if other servers use the same records.
    fn is_shared(&self) -> bool;
}
