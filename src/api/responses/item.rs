//! What a response is made of: reasoning, searches, and the answer.

use serde::Serialize;
use utoipa::ToSchema;

use super::attributes::Attributes;
use super::show::Show;
use crate::agent::Cited;
use crate::api::chat::completion::LogProb;
use crate::api::found::filename;

/// One item of a response's output.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// What the policy thought in one turn.
    Reasoning(ReasoningItem),
    /// One search.
    FileSearchCall(FileSearchCall),
    /// The answer, or a refusal to give one.
    Message(MessageItem),
}

/// What the policy thought in one turn.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ReasoningItem {
    /// Names the item.
    pub id: String,
    /// Always empty: reasoning is shown as it is, in `content`.
    pub summary: Vec<ReasoningText>,
    /// The text, in one part.
    pub content: Vec<ReasoningText>,
    /// How far it is.
    pub status: ItemStatus,
}

/// A text of reasoning.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename = "reasoning_text")]
pub struct ReasoningText {
    /// The text.
    pub text: String,
}

/// One search.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct FileSearchCall {
    /// Names the item.
    pub id: String,
    /// How far it is; `failed` where the search gave nothing because it failed.
    pub status: ItemStatus,
    /// What was searched for: one query.
    pub queries: Vec<String>,
    /// What was found, best first, if `include` holds `file_search_call.results`.
    #[schema(required)]
    pub results: Option<Vec<FileSearchResult>>,
}

/// A passage that was found.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct FileSearchResult {
    /// The passage's id.
    pub file_id: String,
    /// Its title; its id where it has none.
    pub filename: String,
    /// The score it was ranked by, brought into 0 to 1: as it is where the best of the list is at most 1, otherwise as a
    /// share of the best. `attributes.score` has it as it is.
    #[schema(minimum = 0, maximum = 1)]
    pub score: f32,
    /// Its text, as it is stored.
    pub text: String,
    /// How it was found, and what its document says beside that.
    pub attributes: Attributes,
}

/// The answer, or a refusal to give one.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct MessageItem {
    /// Names the item.
    pub id: String,
    /// How far it is.
    pub status: ItemStatus,
    /// Always `assistant`.
    pub role: &'static str,
    /// The answer or the refusal, in one part.
    pub content: Vec<MessagePart>,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum MessagePart {
    /// An answer.
    Text(OutputText),
    /// That there is none.
    Refusal(OutputRefusal),
}

impl MessagePart {
    /// Its words.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(part) => &part.text,
            Self::Refusal(part) => &part.refusal,
        }
    }
}

/// Why the policy gives no answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename = "refusal")]
pub struct OutputRefusal {
    /// The text.
    pub refusal: String,
}

/// A text of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename = "output_text")]
pub struct OutputText {
    /// The text.
    pub text: String,
    /// The passages that support it, in the order of the text.
    pub annotations: Vec<Annotation>,
    /// Its tokens, if `include` holds `message.output_text.logprobs`.
    pub logprobs: Vec<LogProb>,
}

/// A note on a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Annotation {
    /// A passage that supports what stands before `index`, by the rule of `waymark::agent::citation`.
    FileCitation {
        /// The passage's id.
        file_id: String,
        /// Its title; its id where it has none.
        filename: String,
        /// Where in the text the citation belongs: at the end of the claim it supports, in characters.
        index: usize,
    },
}

impl From<Cited> for Annotation {
    fn from(Cited { end, passage, title, .. }: Cited) -> Annotation {
        Annotation::FileCitation { filename: filename(&title, &passage), file_id: passage, index: end }
    }
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// It is being written, or searched for.
    InProgress,
    /// It is complete.
    Completed,
    /// It was broken off.
    Incomplete,
    /// It failed.
    Failed,
}

impl OutputItem {
    /// Its status.
    pub(super) fn status(&mut self) -> &mut ItemStatus {
        match self {
            Self::Reasoning(item) => &mut item.status,
            Self::FileSearchCall(item) => &mut item.status,
            Self::Message(item) => &mut item.status,
        }
    }

    /// Takes away what was not asked for.
    pub(super) fn strip(&mut self, show: Show) {
        match self {
            Self::FileSearchCall(call) if !show.results => call.results = None,
            Self::Message(message) if !show.logprobs => {
                for part in &mut message.content {
                    if let MessagePart::Text(part) = part {
                        part.logprobs.clear();
                    }
                }
            }
            _ => {}
        }
    }
}
