//! A turn's handle.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use super::command::EngineCommand;
use super::error::EngineError;
use super::mailbox::{Inbox, Mail};
use super::session::Session;
use super::token::{Token, TokenStep, TurnFinish};

/// A running turn. Dropping it early stops the generation; the session keeps the delivered tokens and stays usable.
#[derive(Debug)]
pub struct Turn<'a> {
    session: &'a mut Session,
    inbox: Inbox,
    /// Steps taken from the mailbox and not delivered yet.
    ready: VecDeque<TokenStep>,
    started: bool,
    reused: usize,
    end: Option<Result<TurnFinish, EngineError>>,
    /// If `true`, the error that ended the turn was delivered.
    over: bool,
}

impl<'a> Turn<'a> {
    pub(super) fn new(session: &'a mut Session, inbox: Inbox) -> Self {
        Self { session, inbox, ready: VecDeque::new(), started: false, reused: 0, end: None, over: false }
    }

    /// Returns the next token, which is then part of the session; `None` after the last one. An error ends the turn,
    /// and the session keeps the delivered tokens. Dropping the future loses no token.
    pub async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next token; see [`next`](Self::next).
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<TokenStep, EngineError>>> {
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
            self.session.shared.send(EngineCommand::Resume(self.session.id));
        }
        if !self.started {
            self.started = true;
            self.reused = self.inbox.reused();
            self.session.cached = self.inbox.cached().unwrap_or(self.session.cached);
        }
    }

    fn deliver(&mut self, step: &TokenStep) {
        self.session.tokens.push(Token::sampled(step));
        // The engine already has this token, so the next turn must not send it again.
        self.session.known += 1;
    }

    /// Returns the reason for the end. `None` before the end and after an error.
    pub fn finish(&self) -> Option<TurnFinish> {
        self.end.as_ref().and_then(|end| end.as_ref().ok()).copied()
    }

    /// Returns the session's tokens, including those delivered so far.
    pub fn tokens(&self) -> &[Token] {
        &self.session.tokens
    }

    /// Returns the number of leading tokens that the turn did not compute: their KV was kept since an earlier turn, or
    /// found in the prefix cache. Known with the first step.
    pub fn reused_tokens(&self) -> usize {
        self.reused
    }

    /// Returns the number of tokens of the session's first prompt found in the prefix cache. Known with the first step.
    pub fn cached_prompt_tokens(&self) -> usize {
        self.session.cached
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // After an end the engine has parked the session, so there is nothing to stop.
        if self.end.is_none() {
            self.session.shared.send(EngineCommand::Stop(self.session.id));
        }
    }
}
