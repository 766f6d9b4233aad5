//! A turn in progress: its sampler, its mailbox and its end conditions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::task::Waker;
use std::time::{Duration, Instant};

use waymark_models::sampler::{Pick, Sampled, Sampler, TokenMask};

use super::command::{Permit, Submission};
use super::draw::Drawn;
use super::error::EngineError;
use super::mailbox::{Outbox, Room};
use super::masking::{MaskWait, Masking};
use super::request::Generate;
use super::stage::TurnStage;
use super::stop::Matcher;
use super::token::{TokenStep, TurnFinish};
use super::worker::panic_message;

/// A turn in progress.
#[derive(Debug)]
pub(super) struct RunningTurn {
    generate: Generate,
    sampler: Sampler,
    matcher: Matcher,
    /// The masks of a constrained turn.
    masking: Option<Masking>,
    /// Mask of the next token, once it was taken for a [`pick`](Self::pick).
    mask: Option<Result<Option<TokenMask>, EngineError>>,
    outbox: Outbox,
    /// Length of the sequence when the turn began.
    begin: usize,
    submitted: Instant,
    stage: TurnStage,
    /// If `true`, the turn has entered the batch.
    started: bool,
    /// Slot in the waiting queue, held until the turn starts.
    permit: Option<Permit>,
}

impl RunningTurn {
    /// Creates the turn of a sequence that has `begin` tokens.
    pub(super) fn new(submission: Submission, masking: Option<Masking>, begin: usize) -> Self {
        let Submission { generate, outbox, submitted, stage, permit, .. } = submission;
        let sampler = Sampler::new(generate.sampling.clone());
        let matcher = Matcher::default();
        Self {
            generate,
            sampler,
            matcher,
            masking,
            mask: None,
            outbox,
            begin,
            submitted,
            stage,
            started: false,
            permit,
        }
    }

    pub(super) fn submitted(&self) -> Instant {
        self.submitted
    }

    /// Returns the number of sampled tokens, given the length of the sequence.
    pub(super) fn sampled(&self, len: usize) -> usize {
        len - self.begin
    }

    /// Records that the turn enters the batch with `pending` tokens to compute, after `reused` tokens that have KV.
    /// `cached` is the number of tokens of the first prompt found in the prefix cache; `None` for later prompts.
    /// Returns the time the turn has waited, if this is the first time.
    pub(super) fn start(
        &mut self,
        now: Instant,
        pending: usize,
        reused: usize,
        cached: Option<usize>,
    ) -> Option<Duration> {
        if self.started {
            return None;
        }
        self.started = true;
        // The queue's length counts sessions that were never admitted, so later waiting needs no slot.
        self.permit = None;
        self.stage.prefill(pending, cached.unwrap_or(0));
        self.outbox.set_reused(reused, cached);
        Some(now.duration_since(self.submitted))
    }

    /// Returns the number of tokens after the next one that the turn of a sequence of `len` tokens can take in one
    /// step.
    pub(super) fn lookahead(&self, len: usize) -> usize {
        // The mask of a token is computed from the token before it, and takes a step.
        if self.masking.is_some() {
            return 0;
        }
        let left = self.generate.max_tokens.saturating_sub(self.sampled(len));
        left.min(self.outbox.room()).saturating_sub(1)
    }

    /// Returns the tokens that the turn forces after a sequence of `len` tokens.
    pub(super) fn forced(&self, len: usize) -> &[u32] {
        self.generate.force.get(self.sampled(len)..).unwrap_or_default()
    }

    /// Returns instructions with which the backend may choose the token that follows the tokens `ids` of a sequence and
    /// then `ahead`, among `vocab` tokens. Waits for the token's mask until `until`, unless the turn's masks are slow.
    /// `None` if the mask is late, or if the choice needs the logits.
    pub(super) fn pick(&mut self, ids: &[u32], ahead: &[u32], vocab: usize, until: Instant) -> Option<Pick> {
        if let Some(masking) = self.masking.as_mut().filter(|_| self.mask.is_none()) {
            match masking.wait_to_submit(until) {
                MaskWait::Mask(mask) => self.mask = Some(Ok(mask)),
                MaskWait::Failed(error) => self.mask = Some(Err(error)),
                MaskWait::Late => return None,
            }
        }
        let mask = match &self.mask {
            None => None,
            // There is one mask, that of the next token.
            Some(Ok(mask)) if ahead.is_empty() => mask.clone(),
            Some(_) => return None,
        };
        let history = &ids[self.begin..];
        let position = history.len() + ahead.len();
        let Generate { force, allow, min_tokens, .. } = &self.generate;
        let choices = match (force.get(position), mask) {
            (Some(id), _) => Some(TokenMask::of(slice::from_ref(id), vocab)),
            (None, mask) if position < *min_tokens => Some(self.generate.early_mask(mask, vocab)),
            (None, Some(mask)) => Some(mask),
            (None, None) => allow.as_deref().map(|ids| TokenMask::of(ids, vocab)),
        };
        self.sampler.pick_adjusted(history, ahead, choices, vocab)
    }

    /// Records that the backend has drawn the next token by its [`pick`](Self::pick).
    pub(super) fn picked(&mut self) {
        self.sampler.picked();
        self.mask = None;
    }

    /// Returns the tokens sampled in this turn, given the tokens of its sequence.
    pub(super) fn history<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        &ids[self.begin..]
    }

    /// Chooses the token that follows the turn's tokens `history`. Waits for its mask until `until`. A panic fails this
    /// turn only.
    pub(super) fn draw(&mut self, logits: &[f32], history: &[u32], until: Instant) -> Drawn {
        let taken = self.mask.take().map(|taken| taken.map_or_else(MaskWait::Failed, MaskWait::Mask));
        let mask = match taken.or_else(|| self.masking.as_mut().map(|masking| masking.wait(until))) {
            None => None,
            Some(MaskWait::Mask(mask)) => mask,
            Some(MaskWait::Late) => return Drawn::Late,
            Some(MaskWait::Failed(error)) => return Drawn::Failed(error),
        };
        let sampler = &mut self.sampler;
        let generate = &self.generate;
        // A forced token is scored under the full distribution, whatever else is allowed.
        let forced = generate.force.get(history.len()).map(slice::from_ref);
        let allow = forced.or(generate.allow.as_deref());
        let mask =
            if history.len() < generate.min_tokens { Some(generate.early_mask(mask, logits.len())) } else { mask };
        let sampled = catch_unwind(AssertUnwindSafe(|| match mask.as_ref().filter(|_| forced.is_none()) {
            Some(mask) => sampler.sample_within(logits, history, mask),
            None => sampler.sample(logits, history, allow),
        }));
        match sampled {
            Err(panic) => Drawn::Failed(EngineError::Sample(format!("panic: {}", panic_message(panic.as_ref())))),
            Ok(Err(error)) => Drawn::Failed(EngineError::Sample(error.to_string())),
            Ok(Ok(sampled)) => Drawn::Token(sampled),
        }
    }

    /// Delivers the last token of a sequence, with the text `bytes`; the reader gets it with the next
    /// [`send`](Self::send) at the latest. The sequence now has `len` tokens and may have at most `limit`. Returns the
    /// reason for the end of the turn, if the token ends it, and the room left in the mailbox.
    pub(super) fn deliver(
        &mut self,
        sampled: Sampled,
        bytes: &[u8],
        len: usize,
        limit: usize,
        wakers: &mut Vec<Waker>,
    ) -> (Option<TurnFinish>, Room) {
        let count = self.sampled(len);
        if count == 1 {
            self.stage.decode();
        }
        let finish = self.generate.finish_after(&mut self.matcher, sampled.id, bytes, count, len, limit);
        // Started now: if the next mask is ready before the next submission, the backend draws; if not, the mask has the
        // whole forward pass to be ready for the engine.
        if let Some(masking) = self.masking.as_ref().filter(|_| finish.is_none()) {
            masking.advance(sampled.id);
        }
        let step = TokenStep { id: sampled.id, logprob: sampled.logprob, top: sampled.top };
        (finish, self.outbox.push(step, wakers))
    }

    /// Sends the delivered tokens to the reader. Pushes the reader's waker to `wakers` if the reader waits.
    pub(super) fn send(&mut self, wakers: &mut Vec<Waker>) {
        self.outbox.send(wakers);
    }

    /// Ends the turn of a sequence of `len` tokens because its reader has left.
    pub(super) fn cancel(self, len: usize) {
        let sampled = self.sampled(len);
        self.stage.end(sampled);
    }

    /// Ends the turn normally. Pushes the waker of a waiting reader to `wakers`.
    pub(super) fn finish(self, len: usize, finish: TurnFinish, wakers: &mut Vec<Waker>) {
        let sampled = self.sampled(len);
        self.stage.end(sampled);
        self.outbox.finish(finish, wakers);
    }

    /// Ends the turn of a session with an error.
    pub(super) fn fail(self, len: usize, session: u64, error: EngineError) {
        let sampled = self.sampled(len);
        self.stage.tell(|| tracing::error!(session, %error, "turn failed"));
        self.stage.end(sampled);
        self.outbox.end(Err(error));
    }
}
