//! One turn of a session, as its reader sees it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use super::command::Command;
use super::error::EngineError;
use super::mailbox::{Inbox, Mail};
use super::session::Session;
use super::token::{Finish, Origin, Step, Token};

/// A running turn. Dropped before its end it stops the generation; the session keeps what was delivered and stays
/// usable.
#[derive(Debug)]
pub struct Turn<'a> {
    session: &'a mut Session,
    inbox: Inbox,
    /// Taken from the mailbox, not delivered yet.
    ready: VecDeque<Step>,
    started: bool,
    end: Option<Result<Finish, EngineError>>,
    /// True when the reader has been told of the end.
    over: bool,
}

impl<'a> Turn<'a> {
    pub(super) fn new(session: &'a mut Session, inbox: Inbox) -> Self {
        Self { session, inbox, ready: VecDeque::new(), started: false, end: None, over: false }
    }

    /// The next token, which by then is part of the session; `None` after the last one. An error ends the turn; the
    /// session keeps what was delivered. Loses nothing when the future is dropped.
    pub async fn next(&mut self) -> Option<Result<Step, EngineError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`next`](Self::next), for hand-written streams.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Step, EngineError>>> {
        if self.ready.is_empty() && self.end.is_none() {
            match self.inbox.poll(&mut self.ready, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Mail::Steps { resume }) => self.opened(resume),
                Poll::Ready(Mail::End(end)) => self.end = Some(end),
            }
        }
        if let Some(step) = self.ready.pop_front() {
            self.deliver(&step);
            return Poll::Ready(Some(Ok(step)));
        }
        match &self.end {
            Some(Err(error)) if !self.over => {
                self.over = true;
                Poll::Ready(Some(Err(error.clone())))
            }
            _ => Poll::Ready(None),
        }
    }

    fn opened(&mut self, resume: bool) {
        if resume {
            self.session.shared.send(Command::Resume(self.session.id));
        }
        if !self.started {
            self.started = true;
            self.session.cached = self.inbox.cached().unwrap_or(self.session.cached);
        }
    }

    fn deliver(&mut self, step: &Step) {
        let token = Token { id: step.id, origin: Origin::Policy, logprob: Some(step.logprob), forced: false };
        self.session.tokens.push(token);
        self.session.known += 1;
    }

    /// Why it ended; `None` before that, and after an error.
    pub fn finish(&self) -> Option<Finish> {
        self.end.as_ref().and_then(|end| end.as_ref().ok()).copied()
    }

    /// The session's tokens, those delivered so far included.
    pub fn tokens(&self) -> &[Token] {
        &self.session.tokens
    }

    /// How many tokens of the session's first prompt came from the prefix cache; known with the first step.
    pub fn cached_prompt_tokens(&self) -> usize {
        self.session.cached
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.session.shared.send(Command::Stop(self.session.id));
        }
    }
}
