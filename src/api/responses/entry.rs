//! Response together with the conversation it continues and the log of its stream.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;
use waymark_agent::{ConversationMessage, Role};

use super::generation::{SharedBuilder, lock};
use super::log::EventLog;
use super::object::{ResponseObject, ResponseStatus};
use super::plan::ResponsePlan;
use super::response_builder::ResponseBuilder;
use super::show::Show;
use crate::api::auth::Caller;
use crate::keys::KeyOwner;

/// Response in progress, or stored.
#[derive(Debug)]
pub(super) struct ResponseEntry {
    pub(super) id: String,
    /// Key that created the response; for other keys it does not exist.
    pub(super) owner: Option<KeyOwner>,
    /// Deadline of the generation.
    pub(super) until: Option<Instant>,
    pub(super) builder: SharedBuilder,
    /// Conversation up to the question.
    history: Vec<ConversationMessage>,
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
    pub(super) fn new(plan: &ResponsePlan, caller: &Caller) -> Arc<ResponseEntry> {
        Arc::new(ResponseEntry {
            id: plan.object.id.clone(),
            owner: caller.owner,
            until: caller.lifetime.end(),
            builder: Arc::new(Mutex::new(ResponseBuilder::new(plan.object.clone(), plan.show))),
            history: plan.history.clone(),
            log: plan.object.background.then(Arc::default),
            stop: watch::Sender::new(StopRequest::No),
        })
    }

    /// Returns the response in its current state, with the parts selected by `show`.
    pub(super) fn shown(&self, show: Show) -> ResponseObject {
        lock(&self.builder).object().shown(show)
    }

    /// Returns `true` if the response was created with log-probabilities. Search results are always recorded.
    pub(super) fn has_logprobs(&self) -> bool {
        lock(&self.builder).show().logprobs
    }

    /// Returns the conversation including the answer, for another response to continue.
    ///
    /// # Errors
    /// Status of the response, if it is one that cannot be continued.
    pub(super) fn conversation(&self) -> Result<Vec<ConversationMessage>, ResponseStatus> {
        let builder = lock(&self.builder);
        match builder.object().status {
            ResponseStatus::Completed | ResponseStatus::Incomplete => {
                let answer = ConversationMessage::new(Role::Assistant, builder.object().text());
                Ok(self.history.iter().cloned().chain([answer]).collect())
            }
            status => Err(status),
        }
    }

    /// Returns the approximate size in bytes. Empty messages take up memory as well.
    pub(super) fn bytes(&self) -> usize {
        let object = serde_json::to_vec(lock(&self.builder).object()).map_or(0, |json| json.len());
        let history: usize = self.history.iter().map(|message| message.content.len() + 64).sum();
        object + history + self.log.as_ref().map_or(0, |log| log.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::property::object;
    use super::*;

    fn entry(history: Vec<ConversationMessage>) -> ResponseEntry {
        ResponseEntry {
            id: "resp_1".into(),
            owner: None,
            until: None,
            builder: Arc::new(Mutex::new(ResponseBuilder::new(object(false, false), Show::default()))),
            history,
            log: None,
            stop: watch::Sender::new(StopRequest::No),
        }
    }

    #[test]
    fn messages_that_say_nothing_take_room_too() {
        let of = |messages: usize| entry(vec![ConversationMessage::new(Role::User, ""); messages]).bytes();
        assert!(of(1000) >= of(0) + 1000 * size_of::<ConversationMessage>());
    }
}
