//! No protocol: the whole turn is the answer, as in any chat. Thoughts of models that think between tags, before they
//! answer, are told apart.

use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{Guide, Offer};
use super::protocol::{Action, Format, Injected, Kind, Outcome, Prompt, Protocol, Reading, Tag, Tags};
use super::scanner;

static TAGS: Tags = Tags {
    outside: Kind::Answer,
    begins: Kind::Answer,
    pairs: &[Tag { kind: Kind::Think, open: "<think>", close: "</think>" }],
    names: &["think"],
    labels: &[],
    trims: false,
};

/// The protocol; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Plain;

impl Protocol for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn prompt(&self, conversation: &Conversation, _guided: bool) -> Prompt {
        Prompt::Chat(conversation.with_last(conversation.question().to_owned()))
    }

    fn tags(&self) -> &'static Tags {
        &TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        &[]
    }

    fn parse(&self, turn: &str, _reading: Reading) -> Action {
        let spans = scanner::spans(&TAGS, turn).into_iter();
        Action::Answer { text: spans.filter(|span| span.kind == Kind::Answer).map(|span| &turn[span.range]).collect() }
    }

    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        turn
    }

    /// Nothing: no action leads here.
    fn observation(&self, _outcome: &Outcome<'_>, _format: Format) -> Vec<Injected> {
        Vec::new()
    }

    /// One turn, as long as the context allows.
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

    fn force_answer(&self, _writing: Kind) -> Option<String> {
        None
    }

    fn guide(&self, _offer: &Offer) -> Option<Guide> {
        None
    }
}
