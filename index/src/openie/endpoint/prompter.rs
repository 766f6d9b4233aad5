//! Asks a model about one passage, with retries.

use serde_json::Value;

use super::EndpointOptions;
use super::stop_signal::{StopSignal, backoff};
use crate::complete::{Complete, CompleteError, ModelMessage};
use crate::openie::filter::valid_triples;
use crate::openie::prompt;
use crate::openie::reply::ReplyList;
use crate::python;
use crate::triple::Triple;

/// Answer of a model about a passage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Answer {
    pub(super) entities: Vec<String>,
    pub(super) triples: Vec<Triple>,
    /// If `true`, a reply was cut off and repaired.
    pub(super) mended: bool,
    pub(super) retries: u64,
}

/// Error of a passage without an answer.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) kind: FailureScope,
    pub(super) retries: u64,
}

/// Effect of a failure on other passages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureScope {
    /// All other passages will fail too.
    Refused,
    /// Other passages may fail too, for now.
    Transient,
    /// Only this passage is affected.
    Passage,
}

/// Model, options and stop signal for asking about passages.
pub(super) struct PassagePrompter<'a> {
    pub(super) complete: &'a dyn Complete,
    pub(super) options: &'a EndpointOptions,
    pub(super) pause: &'a StopSignal,
}

impl PassagePrompter<'_> {
    /// Asks for the entities, then for the triples of a passage.
    pub(super) fn passage(&self, number: u32, text: &str) -> Result<Answer, Failure> {
        let mut answer = Answer::default();
        let entities = self.list(number, &prompt::entities(text), ReplyList::Entities, &mut answer)?;
        for entity in entities.iter().map(python::show) {
            // Models repeat entities; the second prompt lists each once.
            if !answer.entities.contains(&entity) {
                answer.entities.push(entity);
            }
        }
        let triples = self.list(number, &prompt::triples(text, &answer.entities), ReplyList::Triples, &mut answer)?;
        answer.triples = valid_triples(&triples);
        Ok(answer)
    }

    /// Asks for one list, retrying while that may help.
    fn list(
        &self,
        number: u32,
        messages: &[ModelMessage],
        wanted: ReplyList,
        answer: &mut Answer,
    ) -> Result<Vec<Value>, Failure> {
        let mut failed = 0;
        let mut misread = 0;
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
