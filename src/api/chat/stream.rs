//! A chat completion as chunks.

use axum::response::Response;
use futures::StreamExt;

use super::completion::{AssistantRole, ChatChunk, ChunkChoice, Delta, FinishReason, LogProbs};
use super::piece::{Piece, Translator};
use super::plan::{Head, Plan};
use crate::agent::Event;
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::rag::RagTrace;
use crate::api::sse::{self, Frame};
use crate::api::state::AppState;
use crate::api::usage::ChatUsage;

/// Answers with the chunks that `events` make.
pub(super) fn respond(state: &AppState, plan: &Plan, events: Events) -> Response {
    let mut writer = Writer::new(plan);
    let frames = async_stream::stream! {
        writer.begin();
        yield writer.frame.take();
        // What is ready together is sent together, each chunk as a message of its own.
        let mut batches = events.ready_chunks(sse::READY);
        let mut whole = true;
        'stream: while let Some(batch) = batches.next().await {
            for (index, event) in batch {
                if let Err(error) = event.map(|event| writer.write(index, event)) {
                    writer.frame.error(&error);
                    whole = false;
                    break 'stream;
                }
            }
            if !writer.frame.is_empty() {
                yield writer.frame.take();
            }
        }
        if whole {
            writer.end();
        }
        yield writer.frame.take();
    };
    sse::respond(frames, state.config.ping, state.drain.clone(), Frame::error)
}

/// Writes the chunks of one stream.
struct Writer {
    head: Head,
    choices: Vec<Translator>,
    logprobs: bool,
    mirror: bool,
    include_usage: bool,
    finished: usize,
    usage: ChatUsage,
    frame: Frame,
}

impl Writer {
    fn new(plan: &Plan) -> Self {
        Self {
            head: plan.head.clone(),
            choices: (0..plan.n).map(|_| Translator::new(plan.trace)).collect(),
            logprobs: plan.logprobs,
            mirror: plan.mirror,
            include_usage: plan.include_usage,
            finished: 0,
            usage: ChatUsage::default(),
            frame: Frame::default(),
        }
    }

    /// One chunk with the role for each choice.
    fn begin(&mut self) {
        for index in 0..self.choices.len() {
            let delta = Delta { role: Some(AssistantRole::Assistant), content: Some(""), ..Delta::default() };
            self.chunk(index, delta, None, None);
        }
    }

    fn write(&mut self, index: usize, event: Event) {
        match self.choices[index].translate(event) {
            None => {}
            Some(Piece::Reasoning(text)) => {
                let reasoning = self.mirror.then_some(text.as_str());
                let delta = Delta { reasoning_content: Some(&text), reasoning, ..Delta::default() };
                self.chunk(index, delta, None, None);
            }
            Some(Piece::Content(text, tokens)) => {
                let logprobs = self.logprobs.then_some(LogProbs { content: Some(tokens), refusal: None });
                self.chunk(index, Delta { content: Some(&text), ..Delta::default() }, logprobs, None);
            }
            Some(Piece::Step(step)) => {
                let rag = RagTrace { trace: vec![step] };
                self.chunk(index, Delta { rag: Some(&rag), ..Delta::default() }, None, None);
            }
            Some(Piece::Finish(reason, usage)) => {
                self.usage.add(&usage);
                self.finished += 1;
                self.chunk(index, Delta::default(), None, Some(reason));
            }
        }
    }

    /// The usage, if it was asked for, and the mark of the end. A stream in which a choice just broke off must not look
    /// whole.
    fn end(&mut self) {
        if self.finished < self.choices.len() {
            self.frame.error(&ApiError::new(Code::Internal, "an episode ended without a result"));
            return;
        }
        if self.include_usage {
            let usage = self.usage.clone();
            self.message(&[], Some(Some(&usage)));
        }
        self.frame.done();
    }

    fn chunk(&mut self, index: usize, delta: Delta<'_>, logprobs: Option<LogProbs>, finish: Option<FinishReason>) {
        let usage = self.include_usage.then_some(None);
        self.message(&[ChunkChoice { index, delta, logprobs, finish_reason: finish }], usage);
    }

    fn message(&mut self, choices: &[ChunkChoice<'_>], usage: Option<Option<&ChatUsage>>) {
        let Head { id, created, model, fingerprint } = &self.head;
        self.frame.data(&ChatChunk {
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
