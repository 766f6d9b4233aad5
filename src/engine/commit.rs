//! After a forward pass: account for what was computed, sample, deliver, and end turns that are over.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::core::Core;
use super::error::EngineError;
use super::mailbox::Room;
use super::schedule::Planned;
use super::sequence::{Phase, Running};
use super::token::{Finish, Step};
use super::worker::message;

/// What becomes of a session after it has sampled.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Continue,
    Stall,
    Finish(Finish),
}

impl Core {
    /// Takes over the results of a pass. True when any row succeeded.
    pub(super) fn commit(&mut self, planned: &[Planned]) -> bool {
        let mut any = false;
        let mut logits = 0;
        for row in planned {
            self.account(row);
            if !row.samples {
                any = true;
                continue;
            }
            match self.sample(row.session, logits) {
                Ok(outcome) => {
                    any = true;
                    self.settle(row.session, outcome);
                }
                Err(error) => self.fail(row.session, error),
            }
            logits += 1;
        }
        any
    }

    fn account(&mut self, row: &Planned) {
        let Some(sequence) = self.sequences.get_mut(&row.session) else { return };
        let before = sequence.registered;
        let again = sequence.advance(row.tokens, &mut self.pool);
        let fulfilled = sequence.registered.min(sequence.promised);
        if fulfilled > before {
            self.queues.fulfil(sequence, before..fulfilled);
        }
        let sampled_before = sequence.turn.as_ref().is_some_and(|turn| sequence.ids.len() > turn.begin);
        let decoded = usize::from(row.samples && sampled_before);
        self.counters.prefill_tokens_total.add(row.tokens - decoded);
        self.counters.prefill_tokens_recomputed_total.add(again);
    }

    fn sample(&mut self, id: u64, row: usize) -> Result<Outcome, EngineError> {
        let missing = || EngineError::Backend("the session has no turn".into());
        let sequence = self.sequences.get_mut(&id).ok_or_else(missing)?;
        let turn = sequence.turn.as_mut().ok_or_else(missing)?;
        let logits = self.logits.row(row);
        let (sampler, history) = (&mut turn.sampler, &sequence.ids[turn.begin..]);
        let allow = turn.generate.allow.as_deref();
        let sampled = catch_unwind(AssertUnwindSafe(|| sampler.sample(logits, history, allow)))
            .map_err(|panic| EngineError::Sample(format!("panic: {}", message(panic.as_ref()))))?
            .map_err(|error| EngineError::Sample(error.to_string()))?;
        sequence.ids.push(sampled.id);
        self.counters.decode_tokens_total.add(1);
        let finish = turn.ends(sampled.id, sequence.ids.len(), self.limit, self.bytes.get(sampled.id));
        let room = turn.outbox.push(Step { id: sampled.id, logprob: sampled.logprob, top: sampled.top });
        Ok(match (finish, room) {
            (Some(finish), _) => Outcome::Finish(finish),
            (None, Room::None) => Outcome::Stall,
            (None, Room::Some) => Outcome::Continue,
        })
    }

    fn settle(&mut self, id: u64, outcome: Outcome) {
        match outcome {
            Outcome::Continue => {}
            Outcome::Finish(finish) => self.finish(id, finish),
            Outcome::Stall => {
                if let Some(sequence) = self.sequences.get_mut(&id) {
                    self.queues.set_aside(sequence, Phase::Stalled);
                    self.counters.stalls_total.add(1);
                }
            }
        }
    }
}

impl Running {
    /// Whether the turn ends with the token just sampled, which made the sequence `len` long.
    fn ends(&mut self, token: u32, len: usize, limit: usize, bytes: &[u8]) -> Option<Finish> {
        if !self.generate.ignore_eos && self.generate.eos.contains(&token) {
            return Some(Finish::Eos);
        }
        if let Some(which) = self.matcher.push(&self.generate.stops, bytes) {
            return Some(Finish::Stop(which));
        }
        if len - self.begin >= self.generate.max_tokens {
            return Some(Finish::Length);
        }
        (len >= limit).then_some(Finish::Context)
    }
}
