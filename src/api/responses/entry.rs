//! A response with what belongs to it: the conversation it continues, and the log of its stream.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;

use super::draft::Draft;
use super::log::Log;
use super::object::{ResponseObject, ResponseStatus};
use super::plan::Plan;
use super::play::{Shared, open};
use super::show::Show;
use crate::agent::{Message, Role};
use crate::api::auth::{Caller, KeyId};

/// A response that is made, or kept.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: String,
    /// The key that asked for it: for others it is not there.
    pub(super) owner: Option<KeyId>,
    /// Until when it may be made.
    pub(super) until: Option<Instant>,
    pub(super) draft: Shared,
    /// The conversation up to the question.
    history: Vec<Message>,
    /// What its stream has said; only of those made in the background.
    pub(super) log: Option<Arc<Log>>,
    /// Whether somebody wants no more of it.
    pub(super) stop: watch::Sender<Stop>,
}

/// What somebody wants of a response that is made in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Its end.
    No,
    /// That it is made no further.
    Cancel,
    /// That it is forgotten.
    Forget,
}

impl Entry {
    /// A response of which nothing was made yet, for a caller whose request knows by now how long it may take.
    pub(super) fn new(plan: &Plan, caller: &Caller) -> Arc<Entry> {
        Arc::new(Entry {
            id: plan.object.id.clone(),
            owner: caller.key.clone(),
            until: caller.lifetime.end(),
            draft: Arc::new(Mutex::new(Draft::new(plan.object.clone(), plan.show))),
            history: plan.history.clone(),
            log: plan.object.background.then(Arc::default),
            stop: watch::Sender::new(Stop::No),
        })
    }

    /// The response as it stands, without what was not asked for.
    pub(super) fn shown(&self, show: Show) -> ResponseObject {
        open(&self.draft).object().shown(show)
    }

    /// Whether its tokens were told with their log-probabilities. What its searches found always was.
    pub(super) fn has_logprobs(&self) -> bool {
        open(&self.draft).show().logprobs
    }

    /// The conversation with the answer, for another response to continue.
    ///
    /// # Errors
    /// How far it is, where that is no end one can go on from.
    pub(super) fn conversation(&self) -> Result<Vec<Message>, ResponseStatus> {
        let draft = open(&self.draft);
        match draft.object().status {
            ResponseStatus::Completed | ResponseStatus::Incomplete => {
                let answer = Message::new(Role::Assistant, draft.object().text());
                Ok(self.history.iter().cloned().chain([answer]).collect())
            }
            status => Err(status),
        }
    }

    /// About how many bytes it takes. A message that says nothing takes some as well.
    pub(super) fn bytes(&self) -> usize {
        let object = serde_json::to_vec(open(&self.draft).object()).map_or(0, |json| json.len());
        let history: usize = self.history.iter().map(|message| message.content.len() + 64).sum();
        object + history + self.log.as_ref().map_or(0, |log| log.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::property::object;
    use super::*;

    fn entry(history: Vec<Message>) -> Entry {
        Entry {
            id: "resp_1".into(),
            owner: None,
            until: None,
            draft: Arc::new(Mutex::new(Draft::new(object(false, false), Show::default()))),
            history,
            log: None,
            stop: watch::Sender::new(Stop::No),
        }
    }

    #[test]
    fn messages_that_say_nothing_take_room_too() {
        let of = |messages: usize| entry(vec![Message::new(Role::User, ""); messages]).bytes();
        assert!(of(1000) >= of(0) + 1000 * size_of::<Message>());
    }
}
