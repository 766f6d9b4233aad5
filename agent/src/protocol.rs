//! The interface between the loop and a training recipe: the policy's actions and the environment's observations.

use std::fmt;

use serde::{Deserialize, Serialize};
use waymark_index::Mode;

use super::action::{Action, ActionOutcome};
use super::budget::Budget;
use super::conversation::{Conversation, ConversationMessage, Role};
use super::guide::{AllowedActions, Guide};
use super::retrieval::{Format, Retrieval};
use super::scanner;
use super::segment::{SegmentKind, Tags, TurnSegment};
use super::training_protocol::TrainingProtocol;

/// Modes that return passages only, which every protocol that searches can show.
const PASSAGES: &[Mode] = &[Mode::Passage, Mode::Graph, Mode::Hybrid];

/// Format in which a policy was trained to think, search and answer. Implementations hold no state of an episode.
pub trait Protocol: fmt::Debug + Send + Sync {
    /// Returns the name by which `policy.toml` selects the protocol.
    fn name(&self) -> &'static str;

    /// Returns the prompt of a conversation. If `guided` is `true`, the prompt may omit its examples, because a policy
    /// that was never trained would copy them.
    fn prompt(&self, conversation: &Conversation, guided: bool) -> ProtocolPrompt;

    /// Returns the tags that structure a turn, for reading it while it is written.
    fn tags(&self) -> &'static Tags;

    /// Returns the stop strings of a turn. A completed stop string stays at the end of the turn.
    fn stops(&self) -> &'static [&'static str];

    /// Returns the line labels that end a turn: a line that begins with one of them ends the turn at its line break.
    fn lines(&self) -> &'static [&'static str] {
        &[]
    }

    /// Parses the action of a turn. Every text has an action, possibly [`Action::Invalid`].
    fn parse(&self, turn: &str, reading: ReadingRule) -> Action;

    /// Returns the observation after an action. Implementations must put retrieved text, which arrives unmodified, into
    /// [`Injected::Retrieved`] and nowhere else, because only these segments are sanitized. An empty observation after
    /// an invalid turn allows no second try: the episode ends.
    fn observation(&self, outcome: &ActionOutcome<'_>, format: Format) -> Vec<Injected>;

    /// Returns the thoughts, queries and answers of a turn, by byte range and without their tags.
    fn spans(&self, turn: &str) -> Vec<TurnSegment> {
        scanner::spans(self.tags(), turn)
    }

    /// Returns the summary of earlier evidence that a turn contains, trimmed. `None` if the turn contains no summary.
    fn summary(&self, _turn: &str) -> Option<String> {
        None
    }

    /// Returns the limits published with the recipe.
    fn budget(&self) -> Budget;

    /// Returns the default retrieval settings of the protocol's policies.
    fn retrieval(&self) -> Retrieval {
        Retrieval::default()
    }

    /// Returns the search modes whose results the protocol can show completely.
    fn shows(&self) -> &'static [Mode] {
        PASSAGES
    }

    /// Returns `true` if the protocol's policies may call the client's tools. Protocols with a loop of their own return
    /// `false`.
    fn calls(&self) -> bool {
        false
    }

    /// Returns `true` if the reference loops allow one more turn after the last round. The serving loop always allows
    /// it.
    fn concludes(&self) -> bool {
        true
    }

    /// Returns the beginning of a query that names `mode`, which the loop writes for the policy if the first mode is
    /// chosen for it. `None` if the protocol's queries cannot name this mode.
    fn mode_prefix(&self, _mode: Mode) -> Option<ModePrefix> {
        None
    }

    /// Returns the text to force so that an answer follows. `writing` is the kind of text being written. `None` if
    /// every turn is an answer.
    fn force_answer(&self, writing: SegmentKind) -> Option<String>;

    /// Returns the protocol as a state machine, for guided generation. `None` if it cannot be guided.
    fn guide(&self, offer: &AllowedActions) -> Option<Guide>;

    /// Returns the part of the protocol that only the training loop needs. `None` if its policies are not trained.
    fn training(&self) -> Option<&dyn TrainingProtocol> {
        None
    }
}

/// Beginning of a query that names a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModePrefix {
    /// Tag that opens the query.
    pub opening: &'static str,
    /// Marker of the mode, written after the tag.
    pub marker: &'static str,
}

/// Prompt of an episode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtocolPrompt {
    /// Messages for the model's chat template, which also opens the reply.
    Chat(Vec<ConversationMessage>),
    /// Plain text without a template.
    Raw(String),
}

/// Rule for reading the action of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadingRule {
    /// The first complete pair of tags, as in the reference's training loop.
    First,
    /// A search if the turn contains one, and otherwise an answer, as in the reference's evaluation.
    SearchFirst,
    /// Like [`First`](Self::First), but also accepts malformed actions whose meaning is clear, which the reference
    /// refuses.
    Lenient,
    /// Like [`Lenient`](Self::Lenient), but also accepts any text between the tags of a query, because the guide has
    /// written the tags.
    Guided,
}

impl ReadingRule {
    /// Returns `true` if the rule accepts malformed actions whose meaning is clear.
    pub fn lenient(self) -> bool {
        matches!(self, ReadingRule::Lenient | ReadingRule::Guided)
    }
}

/// A segment of an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Injected {
    /// Text written by the protocol.
    Frame(String),
    /// Text from outside the protocol. If an observation is too long, this text is cut first.
    Retrieved(String),
    /// A change of speaker: the text that the chat template writes between the previous message and one of this role.
    /// Only this segment may contain control tokens.
    Speaker(Role),
}

impl Injected {
    /// Creates a segment of the protocol's own text.
    pub fn frame(text: impl Into<String>) -> Injected {
        Injected::Frame(text.into())
    }

    /// Creates a segment of text from outside.
    pub fn retrieved(text: impl Into<String>) -> Injected {
        Injected::Retrieved(text.into())
    }

    /// Returns the text; empty for a change of speaker.
    pub fn text(&self) -> &str {
        match self {
            Injected::Frame(text) | Injected::Retrieved(text) => text,
            Injected::Speaker(_) => "",
        }
    }
}
