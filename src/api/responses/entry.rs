//! Response in progress, together with the conversation it continues and the log of its stream.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::chat_history::ChatHistory;
use super::generation::{SharedBuilder, lock};
use super::log::EventLog;
use super::object::ResponseObject;
use super::plan::ResponsePlan;
use super::response_builder::ResponseBuilder;
use super::sealed::Sealer;
use super::show::Show;
use crate::api::auth::Caller;
use crate::keys::KeyOwner;
use crate::store::RecordKey;

/// Response in progress.
#[derive(Debug)]
pub(super) struct ResponseEntry {
    pub(super) id: String,
    /// Key that created the response; for other keys it does not exist.
    pub(super) owner: Option<KeyOwner>,
    /// Deadline of the generation.
    pub(super) until: Option<Instant>,
    pub(super) builder: SharedBuilder,
    /// If `true`, what the response leaves behind is kept.
    pub(super) store: bool,
    /// Conversation up to the question.
    pub(super) history: ChatHistory,
    /// Input of the request, as items.
    pub(super) input: Vec<Value>,
    /// Conversation that the response continues, and adds its items to.
    pub(super) conversation: Option<RecordKey>,
    /// Log of the stream. `None` unless the response is generated in the background.
    pub(super) log: Option<Arc<EventLog>>,
    /// Cancellation requested by a client.
    pub(super) stop: watch::Sender<StopRequest>,
}

/// Cancellation of a background response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopRequest {
    /// Continue to the end.
    No,
    /// Stop, and keep the incomplete response.
    Cancel,
    /// Stop, and delete the response.
    Forget,
}

impl ResponseEntry {
    /// Creates an entry for a response without output. The deadline of the caller's request must be set.
    pub(super) fn new(plan: &ResponsePlan, caller: &Caller, sealer: Option<Sealer>) -> Arc<ResponseEntry> {
        let builder = ResponseBuilder::new(plan.object.clone(), plan.show, &plan.functions).sealed_by(sealer);
        Arc::new(ResponseEntry {
            id: plan.object.id.clone(),
            owner: caller.owner,
            until: caller.lifetime.end(),
            builder: Arc::new(Mutex::new(builder)),
            store: plan.store,
            history: plan.history.clone(),
            input: plan.input.clone(),
            conversation: plan.conversation.clone(),
            log: plan.object.background.then(Arc::default),
            stop: watch::Sender::new(StopRequest::No),
        })
    }

    /// Returns the response in its current state, with the parts selected by `show`.
    pub(super) fn shown(&self, show: Show) -> ResponseObject {
        lock(&self.builder).object().shown(show)
    }
}
