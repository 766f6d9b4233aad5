//! The interface between the loop and a training recipe: the policy's actions and the environment's observations.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use waymark_index::{Mode, Passage, TripleHit};

use super::budget::Budget;
use super::conversation::{Conversation, ConversationMessage, Role};
use super::guide::{AllowedActions, Guide};
use super::retrieval::{Format, Retrieval};
use super::scanner;

/// Modes that return passages only, which every protocol that searches can show.
const PASSAGES: &[Mode] = &[Mode::Passage, Mode::Graph, Mode::Hybrid];

/// A format for thinking, searching and answering in which a policy was trained. Implementations hold no state of an
/// episode.
pub trait Protocol: fmt::Debug + Send + Sync {
    /// Returns the name by which `policy.toml` selects the protocol.
    fn name(&self) -> &'static str;

    /// Returns the prompt of a conversation. A `guided` policy was never trained and would copy the prompt's examples:
    /// it may get a prompt without them.
    fn prompt(&self, conversation: &Conversation, guided: bool) -> ProtocolPrompt;

    /// Returns the tags that structure a turn, for reading it while it is written.
    fn tags(&self) -> &'static Tags;

    /// Returns the stop strings of a turn. A completed stop string stays at the end of the turn.
    fn stops(&self) -> &'static [&'static str];

    /// Returns the labels whose line ends a turn with its line break.
    fn lines(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the action of a turn. Every text has one, possibly [`Action::Invalid`].
    fn parse(&self, turn: &str, reading: ReadingRule) -> Action;

    /// Returns the part of a turn that the training loop keeps: that loop samples without stop strings and cuts
    /// afterwards.
    fn cut<'t>(&self, turn: &'t str) -> &'t str;

    /// Returns the observation after an action. Retrieved text arrives unmodified, must be put into
    /// [`Injected::Retrieved`] only, and is sanitized there. An empty observation after an invalid turn means that
    /// there is no second try: the episode ends.
    fn observation(&self, outcome: &ActionOutcome<'_>, format: Format) -> Vec<Injected>;

    /// Returns the thoughts, queries and answers of a turn, by byte range and without their tags.
    fn spans(&self, turn: &str) -> Vec<TurnSegment> {
        scanner::spans(self.tags(), turn)
    }

    /// Returns the turn's stripped summary of the evidence before it, in recipes whose policies summarize.
    fn summary(&self, _turn: &str) -> Option<String> {
        None
    }

    /// Returns the limits published with the recipe.
    fn budget(&self) -> Budget;

    /// Returns the number of prompt tokens that the training loop keeps, counted from the prompt's end. The default is
    /// RouteRAG's.
    fn prompt_tokens(&self) -> usize {
        2048
    }

    /// Returns the number of tokens after the prompt that the training loop keeps, counted from their beginning, in
    /// sequences of length `context`.
    fn response_tokens(&self, context: usize) -> usize {
        context
    }

    /// Returns the default format of evidence in the training variant. By default it is that of the other variants, as
    /// most recipes publish only one.
    fn training_format(&self) -> Format {
        self.retrieval().format
    }

    /// Returns the default retrieval settings of its policies.
    fn retrieval(&self) -> Retrieval {
        Retrieval::default()
    }

    /// Returns the modes whose whole evidence the protocol can show.
    fn shows(&self) -> &'static [Mode] {
        PASSAGES
    }

    /// If `true`, its policies may call the client's tools. Protocols with a loop of their own return `false`.
    fn calls(&self) -> bool {
        false
    }

    /// If `true`, the reference loops allow one more turn after the last round. The serving loop always does.
    fn concludes(&self) -> bool {
        true
    }

    /// Returns the text to force so that an answer follows, given the kind of text being written. `None` if every turn
    /// is an answer.
    fn force_answer(&self, writing: SegmentKind) -> Option<String>;

    /// Returns the protocol as a state machine, for guided generation. `None` if it cannot be guided.
    fn guide(&self, offer: &AllowedActions) -> Option<Guide>;
}

/// Prompt of an episode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtocolPrompt {
    /// Messages for the model's chat template, which also opens the reply.
    Chat(Vec<ConversationMessage>),
    /// Plain text without a template.
    Raw(String),
}

/// Kind of a segment of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// Reasoning.
    Think,
    /// A search, as the policy writes it.
    Query,
    /// The answer.
    Answer,
    /// The policy's explanation that it gives no answer.
    Refusal,
    /// Text outside the known tags.
    Text,
}

/// A pair of tags, or a label with its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// Kind of the text between the two.
    pub kind: SegmentKind,
    /// Opening tag. If it ends with a colon it is a label, which counts at the beginning of a line only, after optional
    /// blanks.
    pub open: &'static str,
    /// Closing tag. The end of a label closes nothing else; if it is empty, the label extends to the end of the turn.
    pub close: &'static str,
}

impl Tag {
    /// Returns `true` if it is opened by a label.
    pub fn is_label(&self) -> bool {
        self.open.ends_with(':')
    }
}

/// The tags of a protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct Tags {
    /// Kind of text outside every tag.
    pub outside: SegmentKind,
    /// Kind of text at the beginning of a turn; differs from `outside` if the prompt and observations end with an
    /// opening tag.
    pub begins: SegmentKind,
    /// The pairs. Those of kind [`SegmentKind::Text`] belong to the environment: a policy that writes them writes plain text.
    pub pairs: &'static [Tag],
    /// Names whose tags are sanitized in retrieved text.
    pub names: &'static [&'static str],
    /// Labels that are sanitized in retrieved text, at the beginning of a line and before a colon.
    pub labels: &'static [&'static str],
    /// If `true`, white space around an answer is stripped.
    pub trims: bool,
}

/// Rule by which an action is read from a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadingRule {
    /// The first complete pair of tags, as in the reference's training loop.
    First,
    /// A search wherever there is one, and an answer only without a search, as in the reference's evaluation.
    SearchFirst,
    /// Like [`First`](Self::First), but also accepts malformed actions whose meaning is clear, which the reference
    /// refuses.
    Lenient,
    /// Like [`Lenient`](Self::Lenient), and accepts any text in the tags of a query, because a guide has written the
    /// tags.
    Guided,
}

impl ReadingRule {
    /// Returns `true` if it accepts malformed actions whose meaning is clear.
    pub fn lenient(self) -> bool {
        matches!(self, ReadingRule::Lenient | ReadingRule::Guided)
    }
}

/// Action of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Action {
    /// A search for evidence.
    Search(PolicySearch),
    /// Withdrawal of the last search that was not withdrawn yet.
    Backtrack,
    /// An answer, which ends the episode.
    Answer {
        /// The answer, stripped.
        text: String,
    },
    /// A refusal to answer, which ends the episode.
    Refuse {
        /// The stripped explanation; may be empty.
        text: String,
    },
    /// No action that the protocol knows.
    Invalid,
}

impl Action {
    /// Returns `true` if the action ends the episode in every loop.
    pub fn ends(&self) -> bool {
        matches!(self, Action::Answer { .. } | Action::Refuse { .. })
    }
}

/// A search that a policy asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySearch {
    /// The stripped text as written, possibly with the name of its mode.
    pub written: String,
    /// Text to search for.
    pub query: String,
    /// Mode named by the policy. `None` uses the policy's default mode.
    pub mode: Option<Mode>,
    /// Names of entities attached to the query, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entities: Vec<String>,
}

impl PolicySearch {
    /// Creates a search for the whole text, without a mode.
    pub fn plain(written: impl Into<String>) -> PolicySearch {
        let written = written.into();
        PolicySearch { query: written.clone(), written, mode: None, entities: Vec::new() }
    }
}

/// Result of an action that does not end the episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ActionOutcome<'a> {
    /// The search found evidence, possibly none.
    Evidence(FoundEvidence<'a>),
    /// The search failed, for this reason.
    Failed(&'a str),
    /// A search was withdrawn by [`Action::Backtrack`]: its query. `None` if there was no search to withdraw.
    Withdrawn(Option<&'a str>),
    /// The turn was an [`Action::Invalid`]: its whole text.
    Invalid(&'a str),
}

/// Evidence of a search, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoundEvidence<'a> {
    /// Retrieval mode.
    pub mode: Mode,
    /// Passages, best first; may be empty.
    pub passages: &'a [Passage],
    /// Triples, best first, in the modes that return any.
    pub triples: &'a [TripleHit],
}

impl<'a> FoundEvidence<'a> {
    /// Creates the evidence of a passage search.
    pub fn of(passages: &'a [Passage]) -> FoundEvidence<'a> {
        FoundEvidence { mode: Mode::Passage, passages, triples: &[] }
    }
}

/// A segment of an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Injected {
    /// Text written by the protocol.
    Frame(String),
    /// Text from outside, which is cut first if an observation is too long.
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

/// A segment of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnSegment {
    /// Kind of the segment.
    pub kind: SegmentKind,
    /// Byte range, without tags.
    pub range: Range<usize>,
}
