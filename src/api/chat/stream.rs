//! Chat completions sent as a stream of chunks.

use waymark_agent::Event;

use super::completion::{AssistantRole, ChatChunk, ChatDelta, ChunkChoice, FinishReason, LogProbs};
use super::piece::{ChatPiece, Translator};
use super::plan::ChatPlan;
use crate::api::chunks::{Chunks, CompletionHead};
use crate::api::error::{ApiError, Code};
use crate::api::rag::RagNotes;
use crate::api::sse::Frame;
use crate::api::usage::ChatUsage;

/// Writes the chunks of one stream.
pub(super) struct ChatWriter {
    head: CompletionHead,
    choices: Vec<Translator>,
    logprobs: bool,
    mirror: bool,
    cites: bool,
    include_usage: bool,
    service_tier: Option<&'static str>,
    finished: usize,
    usage: ChatUsage,
}

impl Chunks for ChatWriter {
    /// Writes one chunk with the role for each choice.
    fn begin(&mut self, frame: &mut Frame) {
        for index in 0..self.choices.len() {
            // As in OpenAI's interface, the first chunk of a choice holds its role and no text.
            let delta = ChatDelta { role: Some(AssistantRole::Assistant), content: Some(""), ..ChatDelta::default() };
            self.chunk(frame, index, delta, None, None);
        }
    }

    fn write(&mut self, frame: &mut Frame, index: usize, event: Event) {
        for piece in self.choices[index].translate(event) {
            self.tell(frame, index, piece);
        }
    }

    /// Writes the usage, if requested.
    fn end(&self, frame: &mut Frame) -> Result<(), ApiError> {
        if self.finished < self.choices.len() {
            return Err(ApiError::new(Code::Internal, "an episode ended without a result"));
        }
        if self.include_usage {
            self.message(frame, &[], Some(Some(&self.usage)));
        }
        Ok(())
    }
}

impl ChatWriter {
    pub(super) fn new(plan: &ChatPlan) -> Self {
        Self {
            head: plan.head.clone(),
            choices: (0..plan.n).map(|_| Translator::new(plan.trace, &plan.tools)).collect(),
            logprobs: plan.logprobs,
            mirror: plan.mirror,
            cites: plan.cites,
            include_usage: plan.include_usage,
            service_tier: plan.service_tier,
            finished: 0,
            usage: ChatUsage::default(),
        }
    }

    /// Writes the chunks of one piece.
    fn tell(&mut self, frame: &mut Frame, index: usize, piece: ChatPiece) {
        match piece {
            ChatPiece::Reasoning(text) => {
                let reasoning = self.mirror.then_some(text.as_str());
                let delta = ChatDelta { reasoning_content: Some(&text), reasoning, ..ChatDelta::default() };
                self.chunk(frame, index, delta, None, None);
            }
            ChatPiece::Content(text, tokens) => {
                let logprobs = self.logprobs.then_some(LogProbs { content: Some(tokens), refusal: None });
                self.chunk(frame, index, ChatDelta { content: Some(&text), ..ChatDelta::default() }, logprobs, None);
            }
            ChatPiece::Refusal(text) => {
                self.chunk(frame, index, ChatDelta { refusal: Some(&text), ..ChatDelta::default() }, None, None);
            }
            ChatPiece::Call(number, call) => {
                for delta in call.deltas(number) {
                    self.chunk(
                        frame,
                        index,
                        ChatDelta { tool_calls: Some(vec![delta]), ..ChatDelta::default() },
                        None,
                        None,
                    );
                }
            }
            ChatPiece::Step(step) => {
                let rag = RagNotes { trace: Some(vec![step]), citations: None };
                self.chunk(frame, index, ChatDelta { rag: Some(&rag), ..ChatDelta::default() }, None, None);
            }
            ChatPiece::Finish(reason, usage, citations) => {
                self.usage.add(&usage);
                self.finished += 1;
                let rag = self.cites.then_some(RagNotes { trace: None, citations: Some(citations) });
                self.chunk(frame, index, ChatDelta { rag: rag.as_ref(), ..ChatDelta::default() }, None, Some(reason));
            }
        }
    }

    fn chunk(
        &self,
        frame: &mut Frame,
        index: usize,
        delta: ChatDelta<'_>,
        logprobs: Option<LogProbs>,
        finish: Option<FinishReason>,
    ) {
        // The outer `Some` writes the field, the inner `None` makes it null: only the last chunk has a usage.
        let usage = self.include_usage.then_some(None);
        self.message(frame, &[ChunkChoice { index, delta, logprobs, finish_reason: finish }], usage);
    }

    fn message(&self, frame: &mut Frame, choices: &[ChunkChoice<'_>], usage: Option<Option<&ChatUsage>>) {
        let CompletionHead { id, created, model, fingerprint } = &self.head;
        frame.data(&ChatChunk {
            id,
            object: "chat.completion.chunk",
            created: *created,
            model,
            system_fingerprint: fingerprint,
            service_tier: self.service_tier,
            choices,
            usage,
        });
    }
}
