//! What a stream of a response says, event by event.

use serde::Serialize;
use utoipa::ToSchema;

use super::item::{Annotation, OutputItem, OutputRefusal, OutputText, ReasoningText};
use super::object::ResponseObject;
use crate::api::chat::completion::LogProb;
use crate::api::error::ApiError;
use crate::api::rag::RagStep;

/// An event of a stream, as it is sent.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponseEvent {
    /// What happened; `type` names it, and so does the line before.
    #[serde(flatten)]
    pub event: Happening,
    /// Its place in the stream, from 0.
    pub sequence_number: u64,
}

/// What can happen. `item_id` and `output_index` say of which item; content indices are always 0.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "type")]
pub enum Happening {
    /// The response exists; always the first.
    #[serde(rename = "response.created")]
    Created {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// It waits for its place.
    #[serde(rename = "response.queued")]
    Queued {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// It is being made.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// It is complete; nothing follows.
    #[serde(rename = "response.completed")]
    Completed {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// A bound was reached, or it was cancelled, as its `status` says; nothing follows.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// It failed; nothing follows.
    #[serde(rename = "response.failed")]
    Failed {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// Its place in the output.
        output_index: usize,
        /// The item.
        item: OutputItem,
    },
    /// An item is over.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// Its place in the output.
        output_index: usize,
        /// The item.
        item: OutputItem,
    },
    /// The text of an item begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// The text, empty.
        part: Part,
    },
    /// The text of an item is over.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// The whole text.
        part: Part,
    },
    /// More reasoning.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// The text.
        delta: String,
    },
    /// The reasoning of a turn is complete.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// The whole text.
        text: String,
    },
    /// A search is on its way.
    #[serde(rename = "response.file_search_call.in_progress")]
    SearchInProgress {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
    },
    /// The index is searched.
    #[serde(rename = "response.file_search_call.searching")]
    SearchSearching {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
    },
    /// The search is over; not sent where it failed.
    #[serde(rename = "response.file_search_call.completed")]
    SearchCompleted {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
    },
    /// More of the answer.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// The text.
        delta: String,
        /// Its tokens, where they are shown.
        logprobs: Vec<LogProb>,
    },
    /// A citation of the answer.
    #[serde(rename = "response.output_text.annotation.added")]
    AnnotationAdded {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// Its place among the annotations.
        annotation_index: usize,
        /// The citation.
        annotation: Annotation,
    },
    /// The answer is complete.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// The whole text.
        text: String,
        /// Its tokens, where they are shown.
        logprobs: Vec<LogProb>,
    },
    /// Why the policy gives no answer, whole.
    #[serde(rename = "response.refusal.delta")]
    RefusalDelta {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// The text.
        delta: String,
    },
    /// The refusal is complete.
    #[serde(rename = "response.refusal.done")]
    RefusalDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// The whole text.
        refusal: String,
    },
    /// A step of the run, where `rag.trace` is set. Not in OpenAI's interface: its SDKs pass it on, but for the helper
    /// `responses.stream` of the one for Node, which refuses what it does not know.
    #[serde(rename = "response.rag.step")]
    RagStep {
        /// The step.
        step: RagStep,
    },
    /// The stream breaks off; nothing follows.
    #[serde(rename = "error")]
    Error {
        /// The error's name.
        code: &'static str,
        /// One sentence for a person.
        message: String,
        /// The request field it is about, if it is about one.
        #[schema(required)]
        param: Option<String>,
    },
}

/// A text of an item.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Part {
    /// Of reasoning.
    Reasoning(ReasoningText),
    /// Of the answer.
    Output(OutputText),
    /// Of a refusal.
    Refusal(OutputRefusal),
}

impl Happening {
    /// Its `type`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::Queued { .. } => "response.queued",
            Self::InProgress { .. } => "response.in_progress",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Failed { .. } => "response.failed",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::PartAdded { .. } => "response.content_part.added",
            Self::PartDone { .. } => "response.content_part.done",
            Self::ReasoningDelta { .. } => "response.reasoning_text.delta",
            Self::ReasoningDone { .. } => "response.reasoning_text.done",
            Self::SearchInProgress { .. } => "response.file_search_call.in_progress",
            Self::SearchSearching { .. } => "response.file_search_call.searching",
            Self::SearchCompleted { .. } => "response.file_search_call.completed",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::AnnotationAdded { .. } => "response.output_text.annotation.added",
            Self::TextDone { .. } => "response.output_text.done",
            Self::RefusalDelta { .. } => "response.refusal.delta",
            Self::RefusalDone { .. } => "response.refusal.done",
            Self::RagStep { .. } => "response.rag.step",
            Self::Error { .. } => "error",
        }
    }
}

impl From<&ApiError> for Happening {
    fn from(error: &ApiError) -> Self {
        Self::Error { code: error.code.name(), message: error.message.clone(), param: error.param.clone() }
    }
}
