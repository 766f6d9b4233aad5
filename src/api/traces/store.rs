//! Stored traces: the youngest in memory, where they can be replayed, and all of them in the server's state.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Serialize, Serializer};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tracing::Instrument;

use super::stored_trace::StoredTrace;
use crate::api::auth::Caller;
use crate::api::drain::Drain;
use crate::api::error::ApiError;
use crate::api::records::Records;
use crate::config::TraceConfig;
use crate::store::{Archive, Owner, RecordKey, RecordKind, RecordRange};

/// Maximum number of traces that wait to be written; further ones are lost.
const MAX_PENDING: usize = 256;

/// Maximum size of the traces that wait to be written, in bytes; further ones are lost.
const MAX_PENDING_BYTES: usize = 256 << 20;

/// Maximum number of traces that are written at once. It is low, because the records of answers are written beside
/// them.
const MAX_WRITING: usize = 2;

/// ID of the record with the content of a trace, below the record with its summary.
const CONTENT: &str = "content";

/// Traces of a server; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Traces {
    recent: Archive<StoredTrace>,
    records: Records,
    drain: Drain,
    /// Traces that are being written, by ID.
    pending: Arc<Mutex<HashMap<String, PendingTrace>>>,
    writing: Arc<Semaphore>,
}

/// Trace that is being written.
#[derive(Debug)]
struct PendingTrace {
    /// Size of the trace in bytes.
    bytes: usize,
    /// If `true`, the trace is that of a stored response, with which another server may delete it.
    has_response: bool,
}

/// Trace found by its ID.
#[derive(Debug)]
pub(super) enum FoundTrace {
    /// In memory, and can be replayed.
    Recent(Arc<StoredTrace>),
    /// Written by this process or another one.
    Recorded(Value),
}

/// JSON form of a trace.
struct TraceContent(Arc<StoredTrace>);

impl Serialize for TraceContent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.trace().serialize(serializer)
    }
}

impl Traces {
    /// Creates an interface to the traces in `records`. `drain` waits for those that are being written.
    pub(crate) fn new(limits: TraceConfig, records: Records, drain: Drain) -> Self {
        let recent = Archive::new(limits.count, limits.bytes);
        let writing = Arc::new(Semaphore::new(MAX_WRITING));
        Self { recent, records, drain, pending: Arc::default(), writing }
    }

    /// Returns `true` if traces are stored.
    pub(crate) fn is_enabled(&self) -> bool {
        self.recent.is_enabled()
    }

    /// Returns the traces in memory.
    pub(crate) fn recent(&self) -> &Archive<StoredTrace> {
        &self.recent
    }

    /// Returns `true` if the trace `id` is in memory.
    pub(crate) fn holds(&self, id: &str) -> bool {
        self.recent.get(id).is_some()
    }

    /// Stores a trace under the ID of its episode. It is in memory at once, and written in the background.
    pub(super) fn keep(&self, trace: StoredTrace) {
        let bytes = trace.bytes();
        let id = trace.id().to_owned();
        let owner = trace.asked.owner;
        let trace = Arc::new(trace);
        self.recent.insert(id.clone(), owner, Arc::clone(&trace), bytes);
        if !self.records.is_durable() {
            return;
        }
        // A trace that is dropped with the runtime itself can no longer be written.
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.enqueue(id, bytes) {
            self.records.lost(RecordKind::Trace, "too many traces wait to be written");
            return;
        }
        let traces = self.clone();
        let running = self.drain.enter();
        let work = async move {
            traces.write(trace).await;
            drop(running);
        };
        runtime.spawn(work.in_current_span());
    }

    /// Adds a trace to those that are being written. Returns `false` if there is no room for it.
    fn enqueue(&self, id: String, bytes: usize) -> bool {
        let mut pending = self.pending();
        let waiting: usize = pending.values().map(|trace| trace.bytes).sum();
        let fits = pending.len() < MAX_PENDING && waiting.saturating_add(bytes) <= MAX_PENDING_BYTES;
        if fits {
            pending.insert(id, PendingTrace { bytes, has_response: false });
        }
        fits
    }

    /// Writes a trace. A loss is logged and counted.
    async fn write(&self, trace: Arc<StoredTrace>) {
        // Fails only if the semaphore is closed, which it never is.
        let _place = self.writing.acquire().await;
        let id = trace.id().to_owned();
        let key = RecordKey::new(RecordKind::Trace, trace.asked.owner, id.clone());
        let content = TraceContent(Arc::clone(&trace));
        let written = self.records.put_with(key.clone(), trace.summary(), vec![(CONTENT.to_owned(), content)]).await;
        trace.is_written.store(written.is_ok(), Ordering::Release);
        let kept = self.pending().remove(&id);
        if written.is_err() {
            return;
        }
        // If the trace was deleted meanwhile, the deletion may have come before the write.
        let is_gone = match kept {
            Some(kept) => kept.has_response && self.is_response_gone(&trace).await,
            None => true,
        };
        if is_gone {
            let _ = self.records.remove(&key).await;
        }
    }

    /// Returns `true` if another server over the state has deleted the response of a trace, which was stored.
    async fn is_response_gone(&self, trace: &StoredTrace) -> bool {
        if !self.records.is_shared() {
            return false;
        }
        let response = RecordKey::new(RecordKind::Response, trace.asked.owner, trace.id());
        // Where the state cannot be read, which is logged and counted, the trace stays.
        self.records.find(&response).await.is_ok_and(|found| found.is_none())
    }

    /// Notes that the response with the trace `id` is stored.
    pub(crate) fn note_response(&self, id: &str) {
        if let Some(trace) = self.pending().get_mut(id) {
            trace.has_response = true;
        }
    }

    /// Returns the trace `id`, if it belongs to the caller.
    ///
    /// # Errors
    /// 503 if the state cannot be read.
    pub(super) async fn find(&self, id: &str, caller: &Caller) -> Result<Option<FoundTrace>, ApiError> {
        if let Some(trace) = self.find_in_memory(id, caller).await? {
            return Ok(Some(FoundTrace::Recent(trace)));
        }
        if !self.records.is_durable() {
            return Ok(None);
        }
        let Some(key) = RecordKey::new(RecordKind::Trace, caller.owner, id).child(CONTENT) else { return Ok(None) };
        Ok(self.records.get(&key).await?.map(FoundTrace::Recorded))
    }

    /// Returns the trace `id`, if it is in memory and belongs to the caller. Forgets a trace that another server over
    /// the state has deleted.
    ///
    /// # Errors
    /// 503 if the state cannot be read.
    pub(super) async fn find_in_memory(&self, id: &str, caller: &Caller) -> Result<Option<Arc<StoredTrace>>, ApiError> {
        let Some(trace) = self.recent.get(id).filter(|trace| trace.belongs_to(caller)) else { return Ok(None) };
        let key = RecordKey::new(RecordKind::Trace, caller.owner, id);
        if self.may_be_gone(&trace) && self.records.find(&key).await?.is_none() {
            self.recent.remove(id);
            return Ok(None);
        }
        Ok(Some(trace))
    }

    /// Returns the summaries of the caller's `limit` youngest traces.
    ///
    /// # Errors
    /// 503 if the state cannot be read.
    pub(super) async fn youngest(&self, caller: &Caller, limit: usize) -> Result<Vec<Value>, ApiError> {
        let recent = self.recent.youngest(caller.owner, limit).into_iter();
        // Asked before the records are read, since traces are written meanwhile.
        let mut recent: Vec<_> = recent.map(|trace| (self.may_be_gone(&trace), trace)).collect();
        let range = RecordRange::youngest(RecordKind::Trace, caller.owner, limit);
        let recorded = match self.records.is_durable() {
            true => self.records.list::<Value>(&range).await?,
            false => Vec::new(),
        };
        // The recorded ones are the youngest, so one that is missing among them is deleted, or too old for the list.
        recent.retain(|(may_be_gone, trace)| !may_be_gone || recorded.iter().any(|other| other.id == trace.id()));
        let known: HashSet<String> = recent.iter().map(|(_, trace)| trace.id().to_owned()).collect();
        let mut summaries: Vec<Value> =
            recent.iter().filter_map(|(_, trace)| serde_json::to_value(trace.summary()).ok()).collect();
        summaries.extend(recorded.into_iter().filter(|trace| !known.contains(&trace.id)).map(|trace| trace.value));
        // A stable sort: among traces of the same second, those in memory come first.
        summaries.sort_by_key(|summary| std::cmp::Reverse(summary["created"].as_u64()));
        summaries.truncate(limit);
        Ok(summaries)
    }

    /// Removes the owner's trace `id`.
    ///
    /// # Errors
    /// 503 if the state cannot be written.
    pub(crate) async fn remove(&self, id: &str, owner: Owner) -> Result<(), ApiError> {
        if self.recent.get(id).is_some_and(|trace| trace.asked.owner == owner) {
            self.recent.remove(id);
        }
        self.pending().remove(id);
        if self.records.is_durable() {
            self.records.remove(&RecordKey::new(RecordKind::Trace, owner, id)).await?;
        }
        Ok(())
    }

    /// Returns `true` if another server over the state may have deleted a trace that is in memory. It cannot delete one
    /// that is not written.
    fn may_be_gone(&self, trace: &StoredTrace) -> bool {
        self.records.is_shared() && trace.is_written.load(Ordering::Acquire)
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<String, PendingTrace>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
