//! Asking about one passage, again and again where that may help.

use serde_json::Value;

use super::EndpointOptions;
use super::stop_signal::{StopSignal, backoff};
use crate::complete::{Complete, CompleteError, ModelMessage};
use crate::openie::filter::valid_triples;
use crate::openie::prompt;
use crate::openie::reply::ReplyList;
use crate::python;
use crate::triple::Triple;

/// What a model said about a passage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Answer {
    pub(super) entities: Vec<String>,
    pub(super) triples: Vec<Triple>,
    /// A reply was cut off and had to be mended.
    pub(super) mended: bool,
    pub(super) retries: u64,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) kind: FailureScope,
    pub(super) retries: u64,
}

/// What a failure means for other passages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureScope {
    /// They will fail as well.
    Refused,
    /// They may not be answered either, for now.
    Transient,
    /// Nothing.
    Passage,
}

/// Whom to ask, and how often.
pub(super) struct PassagePrompter<'a> {
    pub(super) complete: &'a dyn Complete,
    pub(super) options: &'a EndpointOptions,
    pub(super) pause: &'a StopSignal,
}

impl PassagePrompter<'_> {
    /// Entities, then triples of the passage with this number and text.
    pub(super) fn passage(&self, number: u32, text: &str) -> Result<Answer, Failure> {
        let mut answer = Answer::default();
        let entities = self.list(number, &prompt::entities(text), ReplyList::Entities, &mut answer)?;
        for entity in entities.iter().map(python::show) {
            if !answer.entities.contains(&entity) {
                answer.entities.push(entity);
            }
        }
        let triples = self.list(number, &prompt::triples(text, &answer.entities), ReplyList::Triples, &mut answer)?;
        answer.triples = valid_triples(&triples);
        Ok(answer)
    }

    /// One reply that can be read.
    fn list(
        &self,
        number: u32,
        messages: &[ModelMessage],
        wanted: ReplyList,
        answer: &mut Answer,
    ) -> Result<Vec<Value>, Failure> {
        let (mut failed, mut misread) = (0, 0);
        loop {
            let (message, kind, again, after) = match self.complete.complete(messages, self.options.max_tokens) {
                Ok(reply) => match wanted.read(&reply.text, reply.cut) {
                    Ok(list) => {
                        answer.mended |= reply.cut;
                        return Ok(list);
                    }
                    Err(error) => {
                        misread += 1;
                        let start: String = reply.text.chars().take(80).collect();
                        let cut = if reply.cut { " and was cut off" } else { "" };
                        let message = format!("{error}: it begins {start:?}{cut}");
                        (message, FailureScope::Passage, misread < self.options.readings, None)
                    }
                },
                Err(CompleteError::Refused(message)) => (message, FailureScope::Refused, false, None),
                Err(CompleteError::Rejected(message)) => (message, FailureScope::Passage, false, None),
                Err(CompleteError::Transient { message, after }) => {
                    failed += 1;
                    (message, FailureScope::Transient, failed < self.options.attempts, after)
                }
            };
            let EndpointOptions { first_wait, longest_wait, seed, .. } = *self.options;
            let wait = backoff(first_wait, longest_wait, (failed + misread).max(1), seed, number);
            let wait = wait.max(after.unwrap_or_default()).min(longest_wait);
            if !again || !self.pause.wait(wait) {
                return Err(Failure { message, kind, retries: answer.retries });
            }
            answer.retries += 1;
        }
    }
}
