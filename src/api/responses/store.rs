//! Store of responses, and registry of background responses in progress.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use waymark_agent::ConversationMessage;

use super::entry::ResponseEntry;
use super::generation::lock;
use super::log::EventLog;
use crate::api::archive::Archive;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::api::metrics::StoreSize;
use crate::config::ResponseLimits;

/// Responses of a server; clones share them.
#[derive(Debug, Clone)]
pub struct Responses {
    kept: Archive<ResponseEntry>,
    /// Background responses in progress, which are never evicted.
    running: Arc<Mutex<HashMap<String, Arc<ResponseEntry>>>>,
    limits: ResponseLimits,
}

impl Responses {
    /// Creates an empty store.
    pub fn new(limits: ResponseLimits) -> Self {
        Self { kept: Archive::new(limits.kept, limits.bytes), running: Arc::default(), limits }
    }

    /// Returns `true` if the store can hold responses.
    pub(super) fn is_enabled(&self) -> bool {
        self.kept.is_enabled()
    }

    /// Returns the response `id`, if it belongs to the caller.
    pub(super) fn get(&self, id: &str, caller: &Caller) -> Result<Arc<ResponseEntry>, ApiError> {
        // Running ones first: a response that ends meanwhile is stored before it leaves them.
        let running = self.in_progress().get(id).cloned();
        let own = |entry: &Arc<ResponseEntry>| entry.owner == caller.owner;
        running.or_else(|| self.kept.get(id)).filter(own).ok_or_else(|| {
            ApiError::new(Code::ResponseNotFound, format!("there is no response `{id}`: it may have been evicted"))
        })
    }

    /// Returns the conversation of the response `id`, including its answer.
    pub(super) fn conversation(&self, id: &str, caller: &Caller) -> Result<Vec<ConversationMessage>, ApiError> {
        let param = "previous_response_id";
        let entry = self.get(id, caller).map_err(|error| error.with_param(param))?;
        entry.conversation().map_err(|status| {
            let message =
                format!("the response `{id}` is {status}: only completed or incomplete responses can be continued");
            ApiError::invalid(param, message)
        })
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
    /// 429 if the caller has its maximum number of background responses, 503 if the server has.
    pub(super) fn begin(&self, entry: &Arc<ResponseEntry>, caller: &Caller) -> Result<(), ApiError> {
        let mut running = self.in_progress();
        self.check_capacity(&running, caller)?;
        running.insert(entry.id.clone(), Arc::clone(entry));
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

    /// Stores a response that has ended.
    pub(super) fn keep(&self, entry: &Arc<ResponseEntry>) {
        let stored = lock(&entry.builder).object().store;
        if stored {
            self.kept.insert(entry.id.clone(), entry.owner, Arc::clone(entry), entry.bytes());
        }
    }

    /// Returns the number of stored responses and their total size.
    pub(crate) fn size(&self) -> StoreSize {
        self.kept.size()
    }

    /// Unregisters a background response.
    pub(super) fn end(&self, id: &str) {
        self.in_progress().remove(id);
    }

    /// Removes a response from the store.
    pub(super) fn remove(&self, id: &str) {
        self.kept.remove(id);
    }

    fn in_progress(&self) -> MutexGuard<'_, HashMap<String, Arc<ResponseEntry>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
