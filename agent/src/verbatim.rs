//! Continuation of a text without a protocol: the continuation is the answer.

use std::sync::Arc;

use super::action::{Action, ActionOutcome};
use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{AllowedActions, Guide};
use super::loop_variant::LoopVariant;
use super::plain::Plain;
use super::policy::Policy;
use super::protocol::{Injected, Protocol, ProtocolPrompt, ReadingRule};
use super::retrieval::Format;
use super::segment::{SegmentKind, Tags};

static TAGS: Tags = Tags {
    outside: SegmentKind::Answer,
    begins: SegmentKind::Answer,
    pairs: &[],
    names: &[],
    labels: &[],
    headers: &[],
    trims: false,
};

/// The protocol; see the module documentation. It belongs to no policy: any policy may continue a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verbatim;

impl Verbatim {
    /// Returns a policy with the weights of `policy`, within its time limit, but without its protocol.
    pub fn over(policy: &Policy) -> Policy {
        Policy {
            protocol: Arc::new(Verbatim),
            // The other protocol's settings may name a mode that only it can show.
            retrieval: Verbatim.retrieval(),
            budget: Budget { seconds: policy.budget.seconds, ..Verbatim.budget() },
            guided: false,
            variant: LoopVariant::Serving,
            ..policy.clone()
        }
    }
}

impl Protocol for Verbatim {
    fn name(&self) -> &'static str {
        "verbatim"
    }

    /// Returns the question alone, as a text has no chat before it.
    fn prompt(&self, conversation: &Conversation, _guided: bool) -> ProtocolPrompt {
        ProtocolPrompt::Raw(conversation.question().to_owned())
    }

    fn tags(&self) -> &'static Tags {
        &TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        &[]
    }

    fn parse(&self, turn: &str, _reading: ReadingRule) -> Action {
        Action::Answer { text: turn.to_owned() }
    }

    /// Returns nothing, as no action asks for an observation.
    fn observation(&self, _outcome: &ActionOutcome<'_>, _format: Format) -> Vec<Injected> {
        Vec::new()
    }

    fn budget(&self) -> Budget {
        Plain.budget()
    }

    fn force_answer(&self, _writing: SegmentKind) -> Option<String> {
        None
    }

    fn guide(&self, _offer: &AllowedActions) -> Option<Guide> {
        None
    }
}
