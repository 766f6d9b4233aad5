//! Completions sent as a stream of chunks.

use waymark_agent::{Event, Usage};

use super::completion::{CompletionChoice, CompletionChunk};
use super::logprobs::CompletionBuilder;
use super::plan::{CompletionPlan, usage};
use crate::api::chat::completion::FinishReason;
use crate::api::chunks::{Chunks, CompletionHead};
use crate::api::error::{ApiError, Code};
use crate::api::sse::Frame;
use crate::api::usage::ChatUsage;

/// Writes the chunks of one stream.
pub(super) struct CompletionWriter {
    head: CompletionHead,
    drafts: Vec<CompletionBuilder>,
    spent: Vec<Option<Usage>>,
    n: usize,
    include_usage: bool,
}

impl Chunks for CompletionWriter {
    /// Writes the echoed prompts, if requested.
    fn begin(&mut self, frame: &mut Frame) {
        let echoes: Vec<_> =
            self.drafts.iter_mut().enumerate().filter_map(|(index, draft)| draft.begin(index)).collect();
        for echo in echoes {
            self.chunk(frame, echo);
        }
    }

    fn write(&mut self, frame: &mut Frame, index: usize, event: Event) {
        match event {
            // A token may have no text of its own, and still has a log-probability.
            Event::Answer { text, tokens } if !text.is_empty() || !tokens.is_empty() => {
                let piece = self.drafts[index].piece(index, text, &tokens);
                self.chunk(frame, piece);
            }
            Event::Finished { reason, usage, .. } => {
                self.spent[index] = Some(usage);
                let finish_reason = Some(FinishReason::from(reason));
                self.chunk(frame, CompletionChoice { text: String::new(), index, logprobs: None, finish_reason });
            }
            _ => {}
        }
    }

    /// Writes the usage, if requested.
    fn end(&self, frame: &mut Frame) -> Result<(), ApiError> {
        if self.spent.iter().any(Option::is_none) {
            return Err(ApiError::new(Code::Internal, "an answer ended without a result"));
        }
        if self.include_usage {
            self.message(frame, &[], Some(Some(&usage(&self.spent, self.n))));
        }
        Ok(())
    }
}

impl CompletionWriter {
    pub(super) fn new(plan: &CompletionPlan) -> CompletionWriter {
        let drafts = plan.drafts();
        CompletionWriter {
            head: plan.head.clone(),
            spent: vec![None; drafts.len()],
            drafts,
            n: plan.n,
            include_usage: plan.include_usage,
        }
    }

    fn chunk(&self, frame: &mut Frame, choice: CompletionChoice) {
        // Null in every chunk but the last, as in chats.
        let usage = self.include_usage.then_some(None);
        self.message(frame, &[choice], usage);
    }

    fn message(&self, frame: &mut Frame, choices: &[CompletionChoice], usage: Option<Option<&ChatUsage>>) {
        let CompletionHead { id, created, model, fingerprint } = &self.head;
        frame.data(&CompletionChunk {
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
