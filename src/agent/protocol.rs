//! The seam between the loop and a training recipe: what the policy writes, and what the environment answers.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use waymark_index::{Mode, Passage, TripleHit};

use super::budget::Budget;
use super::conversation::{Conversation, Message, Role};
use super::guide::{Guide, Offer};
use super::policy::Retrieval;
use super::scanner;

/// The modes that find passages alone, which every protocol that searches can write.
const PASSAGES: &[Mode] = &[Mode::Passage, Mode::Graph, Mode::Hybrid];

/// A way to think, search and answer that a policy was trained in. Implementations hold no state of an episode.
pub trait Protocol: fmt::Debug + Send + Sync {
    /// The name by which `policy.toml` chooses it.
    fn name(&self) -> &'static str;

    /// What the policy is shown first. A `guided` policy was never trained, and would copy the examples of the prompt
    /// it is shown: it may get a prompt without them.
    fn prompt(&self, conversation: &Conversation, guided: bool) -> Prompt;

    /// The tags that structure a turn, for reading it while it is written.
    fn tags(&self) -> &'static Tags;

    /// The strings that end a turn, each kept as its end.
    fn stops(&self) -> &'static [&'static str];

    /// Labels whose line ends a turn with its line break.
    fn lines(&self) -> &'static [&'static str] {
        &[]
    }

    /// What a turn asks for. Total: any text gives an action, [`Action::Invalid`] included.
    fn parse(&self, turn: &str, reading: Reading) -> Action;

    /// The part of a turn that the training loop keeps, which samples without stop strings and cuts afterwards.
    fn cut<'t>(&self, turn: &'t str) -> &'t str;

    /// What the environment answers. What was found comes as it is stored, belongs into [`Injected::Retrieved`] alone, and
    /// is neutralised there. Nothing, to a turn that asks for nothing, means that there is no second try: the episode ends.
    fn observation(&self, outcome: &Outcome<'_>, format: Format) -> Vec<Injected>;

    /// The thinking, queries and answers of a turn, by byte range and without their tags.
    fn spans(&self, turn: &str) -> Vec<Span> {
        scanner::spans(self.tags(), turn)
    }

    /// What a turn says of the evidence before it, stripped, where the recipe has policies summarise.
    fn summary(&self, _turn: &str) -> Option<String> {
        None
    }

    /// The limits that the recipe was published with.
    fn budget(&self) -> Budget;

    /// Tokens that the training loop keeps of a first prompt, counted from its end. By default RouteRAG's.
    fn prompt_tokens(&self) -> usize {
        2048
    }

    /// Tokens that the training loop keeps of what follows the prompt, counted from its beginning, in sequences of so many.
    fn response_tokens(&self, context: usize) -> usize {
        context
    }

    /// How evidence is written in the training variant, where nothing is said. By default as in the others: no other
    /// way is published.
    fn training_format(&self) -> Format {
        self.retrieval().format
    }

    /// How its policies search where nothing is said.
    fn retrieval(&self) -> Retrieval {
        Retrieval::default()
    }

    /// The modes all of whose evidence it knows how to write.
    fn shows(&self) -> &'static [Mode] {
        PASSAGES
    }

    /// Whether its policies may call tools of whoever asks: those with a loop of their own have their own.
    fn calls(&self) -> bool {
        false
    }

    /// Whether its own loops give one turn more after the last round. The serving loop always does.
    fn concludes(&self) -> bool {
        true
    }

    /// What to write for the policy so that an answer follows, given what it was writing; `None` when every turn is an
    /// answer anyway.
    fn force_answer(&self, writing: Kind) -> Option<String>;

    /// The protocol as a state machine, for guided generation; `None` when there is nothing to guide.
    fn guide(&self, offer: &Offer) -> Option<Guide>;
}

/// What the policy is shown first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Messages for the model's chat template, which opens the reply.
    Chat(Vec<Message>),
    /// Plain text, without any template.
    Raw(String),
}

/// What a part of a turn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Reasoning.
    Think,
    /// A search as the policy writes it.
    Query,
    /// The answer.
    Answer,
    /// Why the policy does not answer.
    Refusal,
    /// Anything outside the known tags.
    Text,
}

/// A pair of tags and what stands between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// What stands between the two.
    pub kind: Kind,
    /// The opening tag; where it ends with a colon it is a label, which opens something at the beginning of a line alone,
    /// blanks before it left out.
    pub open: &'static str,
    /// The closing tag. That of a label closes nothing else; without one the rest of the turn is what it opens.
    pub close: &'static str,
}

impl Tag {
    /// Whether it is opened by a label.
    pub fn is_label(&self) -> bool {
        self.open.ends_with(':')
    }
}

/// The tags of a protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct Tags {
    /// What text outside every tag is.
    pub outside: Kind,
    /// What a turn begins inside of: where prompt and observations end with an opening tag, what that opens.
    pub begins: Kind,
    /// The pairs. Those of kind [`Kind::Text`] are the environment's: a policy that writes them gives plain text.
    pub pairs: &'static [Tag],
    /// Names whose tags must not survive in retrieved text.
    pub names: &'static [&'static str],
    /// Names that must not survive there as labels, at the beginning of a line and before a colon.
    pub labels: &'static [&'static str],
    /// Whether white space around an answer means nothing.
    pub trims: bool,
}

/// How an action is read out of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// The first complete tag pair: what the reference's training loop does.
    First,
    /// A search wherever there is one, an answer only where there is none: what the reference's evaluation does.
    SearchFirst,
    /// As [`First`](Self::First), but what the reference refuses though it is clear what is meant is taken as it is meant.
    Lenient,
    /// As [`Lenient`](Self::Lenient), and any text in the tags of a query is one: a guide has written the tags.
    Guided,
}

impl Reading {
    /// Whether it takes what the reference refuses.
    pub fn lenient(self) -> bool {
        matches!(self, Reading::Lenient | Reading::Guided)
    }
}

/// What one turn asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Action {
    /// Evidence.
    Search(Request),
    /// What the last search found that was not withdrawn before is to count for nothing.
    Backtrack,
    /// The end of the episode.
    Answer {
        /// The answer, stripped.
        text: String,
    },
    /// The end of the episode without an answer, because none can be given.
    Refuse {
        /// Why, stripped; may be empty.
        text: String,
    },
    /// Nothing that the protocol knows.
    Invalid,
}

impl Action {
    /// Whether the episode ends with it, in whatever loop.
    pub fn ends(&self) -> bool {
        matches!(self, Action::Answer { .. } | Action::Refuse { .. })
    }
}

/// A search that a policy asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// As written, stripped; may name its mode.
    pub written: String,
    /// What to search for.
    pub query: String,
    /// The mode it names, if it names one.
    pub mode: Option<Mode>,
    /// The names it says it is about, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entities: Vec<String>,
}

impl Request {
    /// A search for all that is written, in no mode of its own.
    pub fn plain(written: impl Into<String>) -> Request {
        let written = written.into();
        Request { query: written.clone(), written, mode: None, entities: Vec::new() }
    }
}

/// What came of an action that does not end the episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome<'a> {
    /// What was found.
    Evidence(Seen<'a>),
    /// The search could not be made, and why.
    Failed(&'a str),
    /// The action was [`Action::Backtrack`]: what was searched for by the search that is withdrawn, if there was one.
    Withdrawn(Option<&'a str>),
    /// The action was [`Action::Invalid`]; the whole turn, as it was written.
    Invalid(&'a str),
}

/// What a search found, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen<'a> {
    /// How it was searched for.
    pub mode: Mode,
    /// Passages, best first; may be empty.
    pub passages: &'a [Passage],
    /// Triples, best first, in the modes that find any.
    pub triples: &'a [TripleHit],
}

impl<'a> Seen<'a> {
    /// What a search for passages alone found.
    pub fn of(passages: &'a [Passage]) -> Seen<'a> {
        Seen { mode: Mode::Passage, passages, triples: &[] }
    }
}

/// Which of the reference's two renderings of evidence is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// As in training: stripped, and cut on the right where it is too long, closing tag included, unless another
    /// speaker's words would be cut with it.
    Training,
    /// As in evaluation. The reference does not cut there; where the budget demands it, passages are cut and the
    /// closing tag stays.
    #[default]
    Evaluation,
}

/// A piece of an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Injected {
    /// The protocol's own words.
    Frame(String),
    /// Text that comes from outside: it is cut first where an observation is too long.
    Retrieved(String),
    /// Another speaker: what the chat template writes between the message before and one of that role. The only piece
    /// that control tokens come from.
    Speaker(Role),
}

impl Injected {
    /// The protocol's own words.
    pub fn frame(text: impl Into<String>) -> Injected {
        Injected::Frame(text.into())
    }

    /// Text that comes from outside.
    pub fn retrieved(text: impl Into<String>) -> Injected {
        Injected::Retrieved(text.into())
    }

    /// Its text; none where the template decides.
    pub fn text(&self) -> &str {
        match self {
            Injected::Frame(text) | Injected::Retrieved(text) => text,
            Injected::Speaker(_) => "",
        }
    }
}

/// A part of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// What it is.
    pub kind: Kind,
    /// Its bytes, tags excluded.
    pub range: Range<usize>,
}
