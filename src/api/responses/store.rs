//! Responses that are kept, and those that are made in the background.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entry::Entry;
use super::log::Log;
use super::play::open;
use crate::agent::Message;
use crate::api::archive::Archive;
use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::api::metrics::Held;
use crate::config::ResponseLimits;

/// The responses of a server; clones share them.
#[derive(Debug, Clone)]
pub struct Responses {
    kept: Archive<Entry>,
    /// Those that are made in the background now: nothing pushes them out.
    made: Arc<Mutex<HashMap<String, Arc<Entry>>>>,
    limits: ResponseLimits,
}

impl Responses {
    /// None yet.
    pub fn new(limits: ResponseLimits) -> Self {
        Self { kept: Archive::new(limits.kept, limits.bytes), made: Arc::default(), limits }
    }

    /// Whether any response is kept.
    pub(super) fn keeps(&self) -> bool {
        self.kept.keeps()
    }

    /// The response called `id`, if it is the caller's.
    pub(super) fn get(&self, id: &str, caller: &Caller) -> Result<Arc<Entry>, ApiError> {
        let made = self.made().get(id).cloned();
        let own = |entry: &Arc<Entry>| entry.owner == caller.key;
        made.or_else(|| self.kept.get(id)).filter(own).ok_or_else(|| {
            ApiError::new(Code::ResponseNotFound, format!("there is no response `{id}`: it may have been pushed out"))
        })
    }

    /// The conversation of the response called `id`, with its answer.
    pub(super) fn conversation(&self, id: &str, caller: &Caller) -> Result<Vec<Message>, ApiError> {
        let param = "previous_response_id";
        let entry = self.get(id, caller).map_err(|error| error.with_param(param))?;
        entry.conversation().map_err(|status| {
            let message = format!("the response `{id}` is {status}: only what is completed or incomplete goes on");
            ApiError::invalid(param, message)
        })
    }

    /// Whether another response can be made in the background for `caller`: to be asked before any work is done for it.
    ///
    /// # Errors
    /// 429 when the caller has as many as it may, 503 when there are as many as may be.
    pub(super) fn room(&self, caller: &Caller) -> Result<(), ApiError> {
        self.leaves_room(&self.made(), caller)
    }

    /// Counts the caller's response among those that are made in the background.
    ///
    /// # Errors
    /// 429 when the caller has as many as it may, 503 when there are as many as may be.
    pub(super) fn begin(&self, entry: &Arc<Entry>, caller: &Caller) -> Result<(), ApiError> {
        let mut made = self.made();
        self.leaves_room(&made, caller)?;
        made.insert(entry.id.clone(), Arc::clone(entry));
        Ok(())
    }

    fn leaves_room(&self, made: &HashMap<String, Arc<Entry>>, caller: &Caller) -> Result<(), ApiError> {
        let own = made.values().filter(|entry| entry.owner == caller.key).count();
        caller.may_have_another(own, "responses made in the background")?;
        if made.len() >= self.limits.background {
            let message = format!("{} responses are being made in the background already", made.len());
            return Err(ApiError::new(Code::QueueFull, message));
        }
        Ok(())
    }

    /// Whether what the stream of a response has said leaves room to keep it: the last four events and the response itself
    /// may each repeat all of it.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub(super) fn holds(&self, log: &Log) -> Result<(), ApiError> {
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

    /// Keeps a response that is over.
    pub(super) fn keep(&self, entry: &Arc<Entry>) {
        let stored = open(&entry.draft).object().store;
        if stored {
            self.kept.insert(entry.id.clone(), Arc::clone(entry), entry.bytes());
        }
    }

    /// How much is kept.
    pub(crate) fn held(&self) -> Held {
        self.kept.held()
    }

    /// Counts a response no longer among those that are made in the background.
    pub(super) fn end(&self, id: &str) {
        self.made().remove(id);
    }

    /// Keeps a response no longer.
    pub(super) fn remove(&self, id: &str) {
        self.kept.remove(id);
    }

    fn made(&self) -> MutexGuard<'_, HashMap<String, Arc<Entry>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
