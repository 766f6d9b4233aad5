//! A chat completion as chunks.

use super::completion::{AssistantRole, ChatChunk, ChunkChoice, Delta, FinishReason, LogProbs};
use super::piece::{Piece, Translator};
use super::plan::Plan;
use crate::agent::Event;
use crate::api::chunks::{Chunks, Head};
use crate::api::error::{ApiError, Code};
use crate::api::rag::RagNotes;
use crate::api::sse::Frame;
use crate::api::usage::ChatUsage;

/// Writes the chunks of one stream.
pub(super) struct Writer {
    head: Head,
    choices: Vec<Translator>,
    logprobs: bool,
    mirror: bool,
    cites: bool,
    include_usage: bool,
    finished: usize,
    usage: ChatUsage,
}

impl Chunks for Writer {
    /// One chunk with the role for each choice.
    fn begin(&mut self, frame: &mut Frame) {
        for index in 0..self.choices.len() {
            let delta = Delta { role: Some(AssistantRole::Assistant), content: Some(""), ..Delta::default() };
            self.chunk(frame, index, delta, None, None);
        }
    }

    fn write(&mut self, frame: &mut Frame, index: usize, event: Event) {
        for piece in self.choices[index].translate(event) {
            self.tell(frame, index, piece);
        }
    }

    /// The usage, if it was asked for.
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

impl Writer {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            head: plan.head.clone(),
            choices: (0..plan.n).map(|_| Translator::new(plan.trace, &plan.tools)).collect(),
            logprobs: plan.logprobs,
            mirror: plan.mirror,
            cites: plan.cites,
            include_usage: plan.include_usage,
            finished: 0,
            usage: ChatUsage::default(),
        }
    }

    /// Writes the chunks of one piece.
    fn tell(&mut self, frame: &mut Frame, index: usize, piece: Piece) {
        match piece {
            Piece::Reasoning(text) => {
                let reasoning = self.mirror.then_some(text.as_str());
                let delta = Delta { reasoning_content: Some(&text), reasoning, ..Delta::default() };
                self.chunk(frame, index, delta, None, None);
            }
            Piece::Content(text, tokens) => {
                let logprobs = self.logprobs.then_some(LogProbs { content: Some(tokens), refusal: None });
                self.chunk(frame, index, Delta { content: Some(&text), ..Delta::default() }, logprobs, None);
            }
            Piece::Refusal(text) => {
                self.chunk(frame, index, Delta { refusal: Some(&text), ..Delta::default() }, None, None);
            }
            Piece::Call(number, call) => {
                for delta in call.deltas(number) {
                    self.chunk(frame, index, Delta { tool_calls: Some(vec![delta]), ..Delta::default() }, None, None);
                }
            }
            Piece::Step(step) => {
                let rag = RagNotes { trace: Some(vec![step]), citations: None };
                self.chunk(frame, index, Delta { rag: Some(&rag), ..Delta::default() }, None, None);
            }
            Piece::Finish(reason, usage, citations) => {
                self.usage.add(&usage);
                self.finished += 1;
                let rag = self.cites.then_some(RagNotes { trace: None, citations: Some(citations) });
                self.chunk(frame, index, Delta { rag: rag.as_ref(), ..Delta::default() }, None, Some(reason));
            }
        }
    }

    fn chunk(
        &self,
        frame: &mut Frame,
        index: usize,
        delta: Delta<'_>,
        logprobs: Option<LogProbs>,
        finish: Option<FinishReason>,
    ) {
        let usage = self.include_usage.then_some(None);
        self.message(frame, &[ChunkChoice { index, delta, logprobs, finish_reason: finish }], usage);
    }

    fn message(&self, frame: &mut Frame, choices: &[ChunkChoice<'_>], usage: Option<Option<&ChatUsage>>) {
        let Head { id, created, model, fingerprint } = &self.head;
        frame.data(&ChatChunk {
            id,
            object: "chat.completion.chunk",
            created: *created,
            model,
            system_fingerprint: fingerprint,
            choices,
            usage,
        });
    }
}
