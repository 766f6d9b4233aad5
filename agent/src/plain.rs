//! Protocol of an ordinary chat: the whole turn is the answer. Thoughts that a model writes between tags before its
//! answer are reported separately.

use super::action::{Action, ActionOutcome};
use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{AllowedActions, Guide};
use super::protocol::{Injected, Protocol, ProtocolPrompt, ReadingRule};
use super::retrieval::Format;
use super::scanner;
use super::segment::{SegmentKind, Tag, Tags};
use super::training_protocol::TrainingProtocol;

static TAGS: Tags = Tags {
    outside: SegmentKind::Answer,
    begins: SegmentKind::Answer,
    pairs: &[Tag { kind: SegmentKind::Think, open: "<think>", close: "</think>" }],
    names: &["think"],
    labels: &[],
    headers: &[],
    trims: false,
};

/// Protocol `plain`; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Plain;

impl Protocol for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn prompt(&self, conversation: &Conversation, _guided: bool) -> ProtocolPrompt {
        ProtocolPrompt::Chat(conversation.with_question(conversation.question().to_owned()))
    }

    fn tags(&self) -> &'static Tags {
        &TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        &[]
    }

    fn parse(&self, turn: &str, _reading: ReadingRule) -> Action {
        let spans = scanner::spans(&TAGS, turn).into_iter();
        Action::Answer {
            text: spans.filter(|span| span.kind == SegmentKind::Answer).map(|span| &turn[span.range]).collect(),
        }
    }

    /// Returns nothing, as no action asks for an observation.
    fn observation(&self, _outcome: &ActionOutcome<'_>, _format: Format) -> Vec<Injected> {
        Vec::new()
    }

    /// Returns the limits of a single turn, which may fill the context.
    fn budget(&self) -> Budget {
        Budget {
            turns: 0,
            turn_tokens: usize::MAX,
            sampled_tokens: usize::MAX,
            context_tokens: usize::MAX,
            ..Budget::default()
        }
    }

    fn calls(&self) -> bool {
        true
    }

    fn force_answer(&self, _writing: SegmentKind) -> Option<String> {
        None
    }

    fn guide(&self, _offer: &AllowedActions) -> Option<Guide> {
        None
    }

    fn training(&self) -> Option<&dyn TrainingProtocol> {
        Some(self)
    }
}

impl TrainingProtocol for Plain {}
