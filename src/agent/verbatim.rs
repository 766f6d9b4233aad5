//! No protocol at all: a text is continued, and what is written is the answer as it stands.

use std::sync::Arc;

use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{Guide, Offer};
use super::plain::Plain;
use super::policy::Policy;
use super::protocol::{Action, Format, Injected, Kind, Outcome, Prompt, Protocol, Reading, Tags};
use super::variant::Variant;

static TAGS: Tags =
    Tags { outside: Kind::Answer, begins: Kind::Answer, pairs: &[], names: &[], labels: &[], trims: false };

/// The protocol; see the module. It belongs to no policy: any may continue a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verbatim;

impl Verbatim {
    /// A policy's weights without the protocol they were trained in, within its time.
    pub fn over(policy: &Policy) -> Policy {
        Policy {
            protocol: Arc::new(Verbatim),
            // Another protocol's may be in a mode that only it shows.
            retrieval: Verbatim.retrieval(),
            budget: Budget { seconds: policy.budget.seconds, ..Verbatim.budget() },
            guided: false,
            variant: Variant::Serving,
            ..policy.clone()
        }
    }
}

impl Protocol for Verbatim {
    fn name(&self) -> &'static str {
        "verbatim"
    }

    /// The question alone: there is no chat before a text.
    fn prompt(&self, conversation: &Conversation, _guided: bool) -> Prompt {
        Prompt::Raw(conversation.question().to_owned())
    }

    fn tags(&self) -> &'static Tags {
        &TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        &[]
    }

    fn parse(&self, turn: &str, _reading: Reading) -> Action {
        Action::Answer { text: turn.to_owned() }
    }

    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        turn
    }

    /// Nothing: no action leads here.
    fn observation(&self, _outcome: &Outcome<'_>, _format: Format) -> Vec<Injected> {
        Vec::new()
    }

    fn budget(&self) -> Budget {
        Plain.budget()
    }

    fn force_answer(&self, _writing: Kind) -> Option<String> {
        None
    }

    fn guide(&self, _offer: &Offer) -> Option<Guide> {
        None
    }
}
