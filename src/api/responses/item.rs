//! Items of a response's output: reasoning, searches, calls of functions, and the answer.

use serde::Serialize;
use utoipa::ToSchema;
use waymark_agent::Cited;

use super::attributes::Attributes;
use super::show::Show;
use crate::api::chat::completion::LogProb;
use crate::api::search_results::{file_id, filename};

/// Item of a response's output.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// Reasoning of one turn.
    Reasoning(ReasoningItem),
    /// Search.
    FileSearchCall(FileSearchCall),
    /// Answer, or refusal to give one.
    Message(MessageItem),
    /// Call of a function of the client.
    FunctionCall(FunctionCallItem),
}

/// Reasoning of one turn.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ReasoningItem {
    /// ID of the item.
    pub id: String,
    /// Always empty: reasoning is not summarized, but returned in `content`.
    pub summary: Vec<ReasoningText>,
    /// Text of the reasoning, in one part.
    pub content: Vec<ReasoningText>,
    /// Status of the item.
    pub status: ItemStatus,
    /// The reasoning in a form that only this server can read, if `include` holds `reasoning.encrypted_content`. A client
    /// may send it back with the item; the server refuses one that it has not made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
}

/// Text of reasoning.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename = "reasoning_text")]
pub struct ReasoningText {
    /// Text.
    pub text: String,
}

/// Search.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct FileSearchCall {
    /// ID of the item.
    pub id: String,
    /// Status of the item; `failed` if the search failed.
    pub status: ItemStatus,
    /// Queries of the search; always exactly one.
    pub queries: Vec<String>,
    /// Results, best first, if `include` holds `file_search_call.results`.
    #[schema(required)]
    pub results: Option<Vec<FileSearchResult>>,
}

/// Retrieved passage.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct FileSearchResult {
    /// ID of the file that the passage is from, or of the passage if it is from no uploaded file.
    pub file_id: String,
    /// Name of the file. Of a passage from no uploaded file its title, or its ID if it has no title.
    pub filename: String,
    /// Score scaled to the range from 0 to 1: unchanged if the best score in the list is at most 1, and divided by the
    /// best score otherwise. `attributes.score` holds the raw score.
    #[schema(minimum = 0, maximum = 1)]
    pub score: f32,
    /// Text of the passage, as stored.
    pub text: String,
    /// Details on how the passage was found, and metadata of its document.
    pub attributes: Attributes,
}

/// Call of a function of the client, whose result a later request sends as `function_call_output`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct FunctionCallItem {
    /// ID of the item.
    pub id: String,
    /// ID of the call, which its result repeats.
    pub call_id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments: a JSON object, as text.
    pub arguments: String,
    /// Status of the item.
    pub status: ItemStatus,
}

/// Answer, or refusal to give one.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct MessageItem {
    /// ID of the item.
    pub id: String,
    /// Status of the item.
    pub status: ItemStatus,
    /// Always `assistant`.
    pub role: &'static str,
    /// Answer or refusal, in one part.
    pub content: Vec<MessagePart>,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum MessagePart {
    /// Text of an answer.
    Text(OutputText),
    /// Refusal.
    Refusal(OutputRefusal),
}

impl MessagePart {
    /// Returns the text of the part.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(part) => &part.text,
            Self::Refusal(part) => &part.refusal,
        }
    }
}

/// Reason the policy gives for having no answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename = "refusal")]
pub struct OutputRefusal {
    /// Text of the refusal.
    pub refusal: String,
}

/// Text of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename = "output_text")]
pub struct OutputText {
    /// Text.
    pub text: String,
    /// Passages that support the answer, in the order of its text.
    pub annotations: Vec<Annotation>,
    /// Tokens of the text, if `include` holds `message.output_text.logprobs`.
    pub logprobs: Vec<LogProb>,
}

/// Annotation of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Annotation {
    /// Passage that supports the text before `index`, by the rules of the `citation` module of `waymark_agent`.
    FileCitation {
        /// ID of the file that the passage is from, or of the passage if it is from no uploaded file.
        file_id: String,
        /// Name of the file. Of a passage from no uploaded file its title, or its ID if it has no title.
        filename: String,
        /// Position of the citation: the end of the supported claim, in characters of the text.
        index: usize,
    },
}

impl Annotation {
    /// Creates the annotation of a citation. `output` holds the searches that found its passage.
    pub(super) fn new(Cited { end, passage, title, .. }: Cited, output: &[OutputItem]) -> Annotation {
        let file_id = file_id(&passage).to_owned();
        let results = output.iter().filter_map(|item| match item {
            OutputItem::FileSearchCall(call) => call.results.as_deref(),
            _ => None,
        });
        let found = results.flatten().find(|result| result.file_id == file_id);
        let filename = found.map_or_else(|| filename(&title, &passage), |result| result.filename.clone());
        Annotation::FileCitation { filename, file_id, index: end }
    }
}

/// Status of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// In progress.
    InProgress,
    /// Complete.
    Completed,
    /// Ended before it was complete.
    Incomplete,
    /// Failed.
    Failed,
}

impl OutputItem {
    /// Returns the status of the item.
    pub(super) fn status(&mut self) -> &mut ItemStatus {
        match self {
            Self::Reasoning(item) => &mut item.status,
            Self::FileSearchCall(item) => &mut item.status,
            Self::Message(item) => &mut item.status,
            Self::FunctionCall(item) => &mut item.status,
        }
    }

    /// Removes the parts that the client did not ask for.
    pub(super) fn strip(&mut self, show: Show) {
        match self {
            Self::FileSearchCall(call) if !show.results => call.results = None,
            Self::Reasoning(item) if !show.sealed => item.encrypted_content = None,
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
