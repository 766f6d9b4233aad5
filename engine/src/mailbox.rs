//! Bounded delivery of one turn's tokens from the engine thread to an async reader.
//!
//! Unlike with a general channel, the reader takes all available tokens under one lock, and the writer learns at once
//! when the reader is behind, so the session can leave the batch instead of growing a queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::error::EngineError;
use super::token::{TokenStep, TurnFinish};

#[derive(Debug, Default)]
struct MailboxState {
    steps: VecDeque<TokenStep>,
    end: Option<Result<TurnFinish, EngineError>>,
    /// Number of tokens that had KV when the turn entered the batch. Set before the first step.
    reused: usize,
    /// Number of prompt tokens that came from the prefix cache. Set before the first step of a session's first prompt.
    cached: Option<usize>,
    waker: Option<Waker>,
    full: bool,
}

#[derive(Debug)]
struct Mailbox {
    state: Mutex<MailboxState>,
    capacity: usize,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        // No code panics halfway through a change of this state, so a poisoned lock is still consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates both ends of a mailbox that is full when it holds `capacity` steps.
pub(super) fn mailbox(capacity: usize) -> (Outbox, Inbox) {
    let mailbox = Arc::new(Mailbox { state: Mutex::default(), capacity });
    (Outbox { mailbox: mailbox.clone(), unsent: Vec::new(), room: capacity }, Inbox(mailbox))
}

/// Engine's side of a mailbox. If it is dropped before the turn has ended, the reader gets an error.
#[derive(Debug)]
pub(super) struct Outbox {
    mailbox: Arc<Mailbox>,
    /// Steps that are not in the mailbox yet.
    unsent: Vec<TokenStep>,
    /// Number of further steps that surely fit into the mailbox. The reader may have made more room.
    room: usize,
}

/// Remaining capacity of a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Some,
    /// The mailbox is full. The reader sends a resume command after emptying it.
    None,
}

impl Outbox {
    /// Adds a step, which the reader gets with the next [`send`](Self::send), or at once if it may fill the mailbox.
    /// The memory of a mailbox was last used by the reader's core, so a step is cheaper to send while the backend works.
    pub(super) fn push(&mut self, step: TokenStep, wakers: &mut Vec<Waker>) -> Room {
        self.unsent.push(step);
        self.room = self.room.saturating_sub(1);
        if self.room == 0 {
            self.send(wakers);
        }
        if self.room == 0 { Room::None } else { Room::Some }
    }

    /// Moves all steps to the mailbox. Pushes the waker of a waiting reader to `wakers` instead of waking it: a wake-up
    /// takes longer than the rest of this method.
    pub(super) fn send(&mut self, wakers: &mut Vec<Waker>) {
        let mut state = self.mailbox.lock();
        state.steps.extend(self.unsent.drain(..));
        self.room = self.mailbox.capacity.saturating_sub(state.steps.len());
        state.full = self.room == 0;
        wakers.extend(state.waker.take());
    }

    /// Ends the turn normally. Pushes the waker of a waiting reader to `wakers`.
    pub(super) fn finish(mut self, finish: TurnFinish, wakers: &mut Vec<Waker>) {
        wakers.extend(self.close(Ok(finish)));
    }

    /// Returns the number of steps that can be pushed before the mailbox is full.
    pub(super) fn room(&self) -> usize {
        self.mailbox.capacity.saturating_sub(self.mailbox.lock().steps.len() + self.unsent.len())
    }

    /// Sets the number of tokens that have KV as the turn enters the batch. `cached` is the number of tokens of the
    /// first prompt found in the prefix cache; `None` for later prompts.
    pub(super) fn set_reused(&self, reused: usize, cached: Option<usize>) {
        let mut state = self.mailbox.lock();
        state.reused = reused;
        state.cached = cached;
    }

    pub(super) fn end(mut self, end: Result<TurnFinish, EngineError>) {
        if let Some(waker) = self.close(end) {
            waker.wake();
        }
    }

    /// Sends the remaining steps and the end of the turn, unless the turn has ended before. Returns the waker of a
    /// waiting reader, to be woken after the lock is released.
    fn close(&mut self, end: Result<TurnFinish, EngineError>) -> Option<Waker> {
        let mut state = self.mailbox.lock();
        if state.end.is_some() {
            return None;
        }
        state.steps.extend(self.unsent.drain(..));
        state.end = Some(end);
        // A reader must not resume a turn that has ended.
        state.full = false;
        state.waker.take()
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let dropped = EngineError::Dead("the session was dropped by the engine".into());
        if let Some(waker) = self.close(Err(dropped)) {
            waker.wake();
        }
    }
}

/// Result of polling a mailbox.
#[derive(Debug)]
pub(super) enum Mail {
    /// Steps were moved to the caller's buffer. If `resume` is `true`, the mailbox was full and the engine waits for
    /// [`EngineCommand::Resume`](super::command::EngineCommand::Resume).
    Steps { resume: bool },
    /// The turn has ended and all its steps were delivered.
    End(Result<TurnFinish, EngineError>),
}

/// Reader's side of a mailbox.
#[derive(Debug)]
pub(super) struct Inbox(Arc<Mailbox>);

impl Inbox {
    /// Moves the available steps into `buffer`, which must be empty.
    pub(super) fn poll(&self, buffer: &mut VecDeque<TokenStep>, context: &mut Context<'_>) -> Poll<Mail> {
        let mut state = self.0.lock();
        if !state.steps.is_empty() {
            // Swapping keeps both allocations in use, so delivery allocates no memory.
            std::mem::swap(&mut state.steps, buffer);
            // Taken, so the engine gets one resume per full mailbox.
            let resume = std::mem::take(&mut state.full);
            return Poll::Ready(Mail::Steps { resume });
        }
        if let Some(end) = &state.end {
            return Poll::Ready(Mail::End(end.clone()));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => state.waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns the number of tokens that had KV when the turn entered the batch. 0 before that.
    pub(super) fn reused(&self) -> usize {
        self.0.lock().reused
    }

    /// Returns the number of prompt tokens that came from the prefix cache, once known.
    pub(super) fn cached(&self) -> Option<usize> {
        self.0.lock().cached
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn step(id: u32) -> TokenStep {
        TokenStep { id, logprob: 0.0, top: Vec::new() }
    }

    #[test]
    fn steps_come_in_order_then_the_end_and_a_full_box_says_so() {
        let (mut outbox, inbox) = mailbox(2);
        let mut context = Context::from_waker(Waker::noop());
        let mut buffer = VecDeque::new();
        assert!(inbox.poll(&mut buffer, &mut context).is_pending());
        let mut wakers = Vec::new();
        assert_eq!(outbox.push(step(1), &mut wakers), Room::Some);
        assert_eq!(outbox.room(), 1);
        assert!(inbox.poll(&mut buffer, &mut context).is_pending(), "it is not sent yet");
        assert_eq!(outbox.push(step(2), &mut wakers), Room::None);
        assert_eq!(outbox.room(), 0);
        assert_eq!(wakers.len(), 1, "the reader waited once");
        assert!(matches!(inbox.poll(&mut buffer, &mut context), Poll::Ready(Mail::Steps { resume: true })));
        assert_eq!(buffer.drain(..).map(|step| step.id).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(outbox.push(step(3), &mut wakers), Room::Some);
        outbox.finish(TurnFinish::Eos, &mut wakers);
        assert!(matches!(inbox.poll(&mut buffer, &mut context), Poll::Ready(Mail::Steps { resume: false })));
        buffer.clear();
        assert!(matches!(inbox.poll(&mut buffer, &mut context), Poll::Ready(Mail::End(Ok(TurnFinish::Eos)))));
    }

    #[test]
    fn an_engine_that_vanishes_is_an_error_not_a_hang() {
        let (outbox, inbox) = mailbox(2);
        drop(outbox);
        let mail = inbox.poll(&mut VecDeque::new(), &mut Context::from_waker(Waker::noop()));
        assert!(matches!(mail, Poll::Ready(Mail::End(Err(EngineError::Dead(_))))));
    }
}
