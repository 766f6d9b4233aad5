//! Stored responses, and registry of background responses in progress.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::chat_history::ChatHistory;
use super::entry::ResponseEntry;
use super::generation::lock;
use super::log::EventLog;
use super::sealed::Seals;
use super::show::Show;
use super::stored::{Reader, StoredResponse};
use crate::api::auth::Caller;
use crate::api::conversations::record::item_id;
use crate::api::error::{ApiError, Code};
use crate::api::records::{Records, Unwritten};
use crate::api::traces::Traces;
use crate::api::unknown_id;
use crate::config::ResponseLimits;
use crate::store::{RecordKey, RecordKind};

/// Responses of a server; clones share them.
#[derive(Debug, Clone)]
pub struct Responses {
    records: Records,
    /// Background responses in progress, which are never evicted.
    running: Arc<Mutex<HashMap<String, Arc<ResponseEntry>>>>,
    limits: ResponseLimits,
    /// Secrets that seal reasoning.
    pub(super) seals: Seals,
    /// ID of this process.
    process: Arc<str>,
}

/// Response found by its ID.
#[derive(Debug)]
pub(super) enum FoundResponse {
    /// Generated in the background by this process.
    Running(Arc<ResponseEntry>),
    /// Stored. Unfinished only if another process generates it.
    Stored(Box<StoredResponse>),
}

impl FoundResponse {
    /// Returns the parts of the response that its client asked for.
    pub(super) fn show(&self) -> Show {
        match self {
            Self::Running(entry) => lock(&entry.builder).show(),
            Self::Stored(stored) => stored.show,
        }
    }
}

impl Responses {
    /// Creates an interface to the responses in `records`.
    pub(crate) fn new(records: Records, limits: ResponseLimits) -> Self {
        let seals = Seals::new(records.clone());
        Self { records, running: Arc::default(), limits, seals, process: Uuid::new_v4().to_string().into() }
    }

    /// Returns `true` if responses are stored.
    pub(super) fn is_enabled(&self) -> bool {
        self.limits.kept > 0 && self.limits.bytes > 0
    }

    /// Returns the response `id`, if it belongs to the caller.
    pub(super) async fn get(&self, id: &str, caller: &Caller) -> Result<FoundResponse, ApiError> {
        let absent = || {
            let unkept = "was created with `store: false`, is not finished, ";
            let reason = unknown_id::message("response", id, unkept, "`--kept-responses`, `--response-bytes`");
            ApiError::new(Code::ResponseNotFound, reason)
        };
        // Running responses come first: a response that ends meanwhile is stored before it is unregistered.
        let running = self.in_progress().get(id).cloned();
        if let Some(entry) = running {
            // Refused like an absent one, so no tenant learns which IDs others have.
            return if entry.owner == caller.owner { Ok(FoundResponse::Running(entry)) } else { Err(absent()) };
        }
        let key = RecordKey::new(RecordKind::Response, caller.owner, id);
        let stored: StoredResponse = self.records.get(&key).await?.ok_or_else(absent)?;
        let reader = Reader { process: &self.process, shared: self.records.is_shared() };
        Ok(FoundResponse::Stored(Box::new(stored.settled(reader))))
    }

    /// Returns the conversation of the response `id`, including its answer.
    pub(super) async fn conversation(&self, id: &str, caller: &Caller) -> Result<ChatHistory, ApiError> {
        let param = "previous_response_id";
        let unfit = |status: &str| {
            let message =
                format!("the response `{id}` is {status}: only completed or incomplete responses can be continued");
            ApiError::invalid(param, message)
        };
        match self.get(id, caller).await.map_err(|error| error.with_param(param))? {
            FoundResponse::Running(entry) => {
                let status = lock(&entry.builder).object().status;
                Err(unfit(&status.to_string()))
            }
            FoundResponse::Stored(stored) => stored.conversation().map_err(|status| unfit(&status)),
        }
    }

    /// Returns the output of the stored response `id`, without optional parts. `None` if there is no such response.
    ///
    /// # Errors
    /// 503 if the store cannot be read.
    pub(super) async fn output(&self, id: &str, caller: &Caller) -> Result<Option<Vec<Value>>, ApiError> {
        match self.get(id, caller).await {
            Ok(FoundResponse::Stored(stored)) => Ok(Some(stored.output())),
            Ok(FoundResponse::Running(_)) => Ok(None),
            Err(error) if error.code == Code::ResponseNotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks that `caller` may start another background response. To be called before any work is done for it.
    ///
    /// # Errors
    /// 429 if the caller has its maximum number of background responses, 503 if the server has.
    pub(super) fn check_room(&self, caller: &Caller) -> Result<(), ApiError> {
        self.check_capacity(&self.in_progress(), caller)
    }

    /// Registers a background response of the caller.
    ///
    /// # Errors
    /// 429 if the caller has its maximum number of background responses, 503 if the server has, or if the response
    /// cannot be stored: its client could only fetch it.
    pub(super) async fn begin(&self, entry: &Arc<ResponseEntry>, caller: &Caller) -> Result<(), ApiError> {
        {
            let mut running = self.in_progress();
            // Checked again under the lock that registers: other responses may have begun since `check_room`.
            self.check_capacity(&running, caller)?;
            running.insert(entry.id.clone(), Arc::clone(entry));
        }
        // Also unregisters the response if the client disconnects during the write: nothing else would.
        let registration = Registration { responses: self, id: Some(&entry.id) };
        if self.records.is_durable() {
            let left = entry.until.map_or(0, |until| until.saturating_duration_since(Instant::now()).as_secs());
            // Rounded up, so no other server takes the response for lost before its deadline.
            let stored = StoredResponse::of(entry, &self.process, left + 1);
            self.records.put(key(entry), stored).await?;
        }
        registration.confirm();
        Ok(())
    }

    fn check_capacity(&self, running: &HashMap<String, Arc<ResponseEntry>>, caller: &Caller) -> Result<(), ApiError> {
        let own = running.values().filter(|entry| entry.owner == caller.owner).count();
        caller.may_have_another(own, "responses made in the background")?;
        caller.may_take(own, running.len(), self.limits.background, "background responses")
    }

    /// Checks that the stream of a response so far leaves room to store it. The limit is an eighth of the store,
    /// because the last four events and the response itself may each repeat the whole content.
    ///
    /// # Errors
    /// If the stream has become too large.
    pub(super) fn holds(&self, log: &EventLog) -> Result<(), ApiError> {
        let most = self.limits.bytes / 8;
        if log.bytes() > most {
            let message = format!(
                "the events of this response take more than {most} bytes, an eighth of `--response-bytes`: ask for less, or \
                 without `background`"
            );
            return Err(ApiError::new(Code::ResponseTooLarge, message));
        }
        Ok(())
    }

    /// Stores a response that has ended, and adds its items to the conversation that it continues. A response that was
    /// deleted meanwhile adds none, and its trace is removed from `traces`.
    ///
    /// # Errors
    /// If either cannot be written, or the conversation is gone. The loss is logged and counted.
    pub(super) async fn keep(&self, entry: &Arc<ResponseEntry>, traces: &Traces) -> Result<(), Unwritten> {
        if !entry.store {
            return Ok(());
        }
        let stored = StoredResponse::of(entry, &self.process, 0);
        let added = match &entry.conversation {
            Some(conversation) if stored.can_be_continued() => Some((conversation, added_items(&stored))),
            _ => None,
        };
        // A server that keeps no responses still keeps their conversations.
        if self.is_enabled() {
            if !self.put_ended(entry, stored).await? {
                tracing::info!(response = entry.id, "a response was deleted before it ended, and is not stored");
                // The deletion came before the trace, which would stay. A failure is logged and counted.
                let _ = traces.remove(&entry.id, entry.owner).await;
                return Ok(());
            }
            traces.note_response(&entry.id);
        }
        if let Some((conversation, items)) = added
            && !self.records.append(conversation, items).await?
        {
            let reason = "a response continued a conversation that was deleted or removed meanwhile";
            return Err(self.records.lost(conversation.kind, reason));
        }
        Ok(())
    }

    /// Stores a response that has ended. Returns `false` if it was deleted meanwhile.
    async fn put_ended(&self, entry: &ResponseEntry, stored: StoredResponse) -> Result<bool, Unwritten> {
        if entry.log.is_some() && self.records.is_durable() {
            // Another server may have deleted the response, which must not come back.
            return self.records.update(&key(entry), stored).await;
        }
        self.records.put(key(entry), stored).await?;
        Ok(true)
    }

    /// Unregisters a background response.
    pub(super) fn end(&self, id: &str) {
        self.in_progress().remove(id);
    }

    /// Removes a response from the store.
    ///
    /// # Errors
    /// 503 if the store cannot be written.
    pub(super) async fn remove(&self, id: &str, caller: &Caller) -> Result<(), ApiError> {
        self.records.remove(&RecordKey::new(RecordKind::Response, caller.owner, id)).await?;
        Ok(())
    }

    fn in_progress(&self) -> MutexGuard<'_, HashMap<String, Arc<ResponseEntry>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registration of a background response, which is undone on drop unless it was confirmed.
struct Registration<'a> {
    responses: &'a Responses,
    /// ID of the response. `None` once the registration is confirmed.
    id: Option<&'a str>,
}

impl Registration<'_> {
    fn confirm(mut self) {
        self.id = None;
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.responses.end(id);
        }
    }
}

fn key(entry: &ResponseEntry) -> RecordKey {
    RecordKey::new(RecordKind::Response, entry.owner, entry.id.clone())
}

/// Returns the items that a response adds to its conversation, with their IDs: its input and its output.
fn added_items(stored: &StoredResponse) -> Vec<(String, Value)> {
    let items = stored.input.iter().cloned().chain(stored.output());
    items.map(|item| (item_id(&item), item)).collect()
}
