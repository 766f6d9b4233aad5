//! After a forward pass: account for what was computed, sample, deliver, and end turns that are over.

use super::core::Core;
use super::draw::{self, Draw, Drawn};
use super::error::EngineError;
use super::mailbox::Room;
use super::schedule::Planned;
use super::sequence::{Phase, Running, Sequence};
use super::token::{Finish, Step};

/// What becomes of a session after it has sampled.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Continue,
    Stall,
    Late,
    Finish(Finish),
}

impl Core {
    /// Takes over the results of a pass. True when any row succeeded.
    pub(super) fn commit(&mut self, planned: &[Planned]) -> bool {
        let mut draws = std::mem::take(&mut self.draws);
        for row in planned {
            self.account(row);
        }
        let mut logits = 0;
        for (index, row) in planned.iter().filter(|row| row.samples).enumerate() {
            let drawn = self.output.drawn.get_mut(index).and_then(Option::take);
            let own = logits;
            logits += usize::from(drawn.is_none());
            let turn = self.sequences.get_mut(&row.session).and_then(|sequence| sequence.turn.take());
            draws.extend(turn.map(|turn| Draw::new(row.session, turn, own, drawn)));
        }
        draw::all(&mut draws, &self.output.logits, &self.sequences, self.backend.team());
        let mut any = draws.len() < planned.len();
        for draw in draws.drain(..) {
            let id = draw.session;
            match self.deliver(draw) {
                Ok(outcome) => {
                    any = true;
                    self.settle(id, outcome);
                }
                Err(error) => self.fail(id, error),
            }
        }
        self.draws = draws;
        if !self.backend.overlaps() {
            self.wake();
        }
        any
    }

    fn account(&mut self, row: &Planned) {
        // No command takes a session out of a pass under way; of one that is out of the batch all the same, nothing counts.
        let running = |sequence: &&mut Sequence| sequence.phase == Phase::Running;
        let Some(sequence) = self.sequences.get_mut(&row.session).filter(running) else { return };
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

    /// Gives a turn back to its session, and the token drawn to both session and reader.
    fn deliver(&mut self, draw: Draw) -> Result<Outcome, EngineError> {
        let missing = || EngineError::Sample("nothing was drawn".into());
        let sequence = self.sequences.get_mut(&draw.session).ok_or_else(missing)?;
        let turn = sequence.turn.insert(draw.turn);
        let sampled = match draw.drawn {
            Drawn::Token(sampled) => sampled,
            Drawn::Late => return Ok(Outcome::Late),
            Drawn::Failed(error) => return Err(error),
            Drawn::Nothing => return Err(missing()),
        };
        if sequence.ids.len() == turn.begin {
            turn.stage.decode();
        }
        sequence.ids.push(sampled.id);
        self.counters.decode_tokens_total.add(1);
        let finish = turn.ends(sampled.id, sequence.ids.len(), self.limit, self.bytes.get(sampled.id));
        if let Some(masking) = turn.masking.as_ref().filter(|_| finish.is_none()) {
            masking.advance(sampled.id);
        }
        let step = Step { id: sampled.id, logprob: sampled.logprob, top: sampled.top };
        let room = turn.outbox.push(step, &mut self.wakers);
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
            Outcome::Late => {
                if let Some(sequence) = self.sequences.get_mut(&id) {
                    // The logits are gone with this step: the last token is computed again in the next.
                    sequence.extend(sequence.ids.len(), &[], &mut self.pool);
                    self.queues.wait(sequence);
                    self.counters.late_masks_total.add(1);
                }
            }
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
