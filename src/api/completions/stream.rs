//! A completion as chunks.

use axum::response::Response;
use futures::StreamExt;

use super::completion::{CompletionChoice, CompletionChunk};
use super::logprobs::Draft;
use super::plan::{Head, Plan, usage};
use crate::agent::{Event, Usage};
use crate::api::chat::completion::FinishReason;
use crate::api::error::{ApiError, Code};
use crate::api::follow::Events;
use crate::api::sse::{self, Frame};
use crate::api::state::AppState;
use crate::api::usage::ChatUsage;

/// Answers with the chunks that `events` make.
pub(super) fn respond(state: &AppState, plan: &Plan, events: Events) -> Response {
    let mut writer = Writer::new(plan);
    let frames = async_stream::stream! {
        writer.begin();
        if !writer.frame.is_empty() {
            yield writer.frame.take();
        }
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
    drafts: Vec<Draft>,
    spent: Vec<Option<Usage>>,
    n: usize,
    include_usage: bool,
    frame: Frame,
}

impl Writer {
    fn new(plan: &Plan) -> Writer {
        let drafts = plan.drafts();
        Writer {
            head: plan.head.clone(),
            spent: vec![None; drafts.len()],
            drafts,
            n: plan.n,
            include_usage: plan.include_usage,
            frame: Frame::default(),
        }
    }

    /// The prompts, where they are echoed.
    fn begin(&mut self) {
        let echoes: Vec<_> =
            self.drafts.iter_mut().enumerate().filter_map(|(index, draft)| draft.begin(index)).collect();
        for echo in echoes {
            self.chunk(echo);
        }
    }

    fn write(&mut self, index: usize, event: Event) {
        match event {
            Event::Answer { text, tokens } if !text.is_empty() || !tokens.is_empty() => {
                let piece = self.drafts[index].piece(index, text, &tokens);
                self.chunk(piece);
            }
            Event::Finished { reason, usage, .. } => {
                self.spent[index] = Some(usage);
                let finish_reason = Some(FinishReason::from(reason));
                self.chunk(CompletionChoice { text: String::new(), index, logprobs: None, finish_reason });
            }
            _ => {}
        }
    }

    /// The usage, if it was asked for, and the mark of the end. A stream in which an answer just broke off must not look
    /// whole.
    fn end(&mut self) {
        if self.spent.iter().any(Option::is_none) {
            self.frame.error(&ApiError::new(Code::Internal, "an answer ended without a result"));
            return;
        }
        if self.include_usage {
            let usage = usage(&self.spent, self.n);
            self.message(&[], Some(Some(&usage)));
        }
        self.frame.done();
    }

    fn chunk(&mut self, choice: CompletionChoice) {
        let usage = self.include_usage.then_some(None);
        self.message(&[choice], usage);
    }

    fn message(&mut self, choices: &[CompletionChoice], usage: Option<Option<&ChatUsage>>) {
        let Head { id, created, model, fingerprint } = &self.head;
        self.frame.data(&CompletionChunk {
            id,
            object: "text_completion",
            created: *created,
            model,
            system_fingerprint: fingerprint,
            choices,
            usage,
        });
    }
}
