//! Events in the stream of a response.

use serde::Serialize;
use utoipa::ToSchema;

use super::item::{Annotation, OutputItem, OutputRefusal, OutputText, ReasoningText};
use super::object::ResponseObject;
use crate::api::chat::completion::LogProb;
use crate::api::error::ApiError;
use crate::api::rag::RagStep;

/// Event of a stream, as it is sent.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ResponseEvent {
    /// Event, identified by its `type`, which the `event:` line repeats.
    #[serde(flatten)]
    pub event: ResponseEventKind,
    /// Sequence number of the event, from 0.
    pub sequence_number: u64,
}

/// Kinds of events. `item_id` and `output_index` identify the item; content indices are always 0.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Happening)]
#[serde(tag = "type")]
pub enum ResponseEventKind {
    /// The response was created. Always the first event.
    #[serde(rename = "response.created")]
    Created {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// The response is queued.
    #[serde(rename = "response.queued")]
    Queued {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// The response is being generated.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// The response is complete. Always the last event.
    #[serde(rename = "response.completed")]
    Completed {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// The response reached a limit or was canceled, according to its `status`. Always the last event.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// The response failed. Always the last event.
    #[serde(rename = "response.failed")]
    Failed {
        /// The response.
        response: Box<ResponseObject>,
    },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// Index of the item in the output.
        output_index: usize,
        /// The item.
        item: OutputItem,
    },
    /// An item ends.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// Index of the item in the output.
        output_index: usize,
        /// The item.
        item: OutputItem,
    },
    /// The text of an item begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// Empty text.
        part: EventPart,
    },
    /// The text of an item ends.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// Complete text.
        part: EventPart,
    },
    /// Part of the reasoning.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// New text.
        delta: String,
    },
    /// The reasoning of a turn is complete.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// Complete text.
        text: String,
    },
    /// A search begins.
    #[serde(rename = "response.file_search_call.in_progress")]
    SearchInProgress {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
    },
    /// The index is being searched.
    #[serde(rename = "response.file_search_call.searching")]
    SearchSearching {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
    },
    /// A search ends. Not sent if the search failed.
    #[serde(rename = "response.file_search_call.completed")]
    SearchCompleted {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
    },
    /// Part of the answer.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// New text.
        delta: String,
        /// Tokens of the new text, if requested.
        logprobs: Vec<LogProb>,
    },
    /// Citation in the answer.
    #[serde(rename = "response.output_text.annotation.added")]
    AnnotationAdded {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// Index of the citation among the annotations.
        annotation_index: usize,
        /// Citation.
        annotation: Annotation,
    },
    /// The answer is complete.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// Complete text.
        text: String,
        /// Tokens of the text, if requested.
        logprobs: Vec<LogProb>,
    },
    /// The arguments of a call, as a single delta.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// The arguments.
        delta: String,
    },
    /// The arguments of a call are complete.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Name of the function.
        name: String,
        /// Complete arguments.
        arguments: String,
    },
    /// The complete refusal, as a single delta.
    #[serde(rename = "response.refusal.delta")]
    RefusalDelta {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// Text of the refusal.
        delta: String,
    },
    /// The refusal is complete.
    #[serde(rename = "response.refusal.done")]
    RefusalDone {
        /// ID of the item.
        item_id: String,
        /// Index of the item in the output.
        output_index: usize,
        /// Always 0.
        content_index: usize,
        /// Complete text.
        refusal: String,
    },
    /// Step of the episode, if `rag.trace` is set. Not in OpenAI's interface: its SDKs pass the event on, except for
    /// the Node helper `responses.stream`, which rejects unknown events.
    #[serde(rename = "response.rag.step")]
    RagStep {
        /// Step of the episode.
        step: RagStep,
    },
    /// The stream breaks off. Always the last event.
    #[serde(rename = "error")]
    Error {
        /// Code of the error.
        code: &'static str,
        /// One sentence for a person.
        message: String,
        /// Path of the request field at fault, if there is one.
        #[schema(required)]
        param: Option<String>,
    },
}

/// Text of an item.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Part)]
#[serde(untagged)]
pub enum EventPart {
    /// Reasoning.
    Reasoning(ReasoningText),
    /// Answer.
    Output(OutputText),
    /// Refusal.
    Refusal(OutputRefusal),
}

impl ResponseEventKind {
    /// Returns the `type` of the event.
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
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
            Self::RefusalDelta { .. } => "response.refusal.delta",
            Self::RefusalDone { .. } => "response.refusal.done",
            Self::RagStep { .. } => "response.rag.step",
            Self::Error { .. } => "error",
        }
    }
}

impl From<&ApiError> for ResponseEventKind {
    fn from(error: &ApiError) -> Self {
        Self::Error { code: error.code.name(), message: error.message.clone(), param: error.param.clone() }
    }
}
