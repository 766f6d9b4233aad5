//! The end of a step: accounts for computed tokens, samples, delivers, and ends finished turns.

use super::core::Core;
use super::draw::{self, Draw, Drawn};
use super::error::EngineError;
use super::mailbox::Room;
use super::schedule::PlannedRow;
use super::sequence::{RunningTurn, Sequence, SessionPhase};
use super::token::{TokenStep, TurnFinish};

/// Next state of a session after sampling.
#[derive(Debug, Clone, Copy)]
enum RowOutcome {
    Continue,
    Stall,
    Late,
    Finish(TurnFinish),
}

impl Core {
    /// Processes the results of a pass. Returns `true` if any row succeeded.
    pub(super) fn commit(&mut self, planned: &[PlannedRow]) -> bool {
        let mut draws = std::mem::take(&mut self.draws);
        for row in planned {
            self.account(row);
        }
        let mut logits = 0;
        for (index, row) in planned.iter().filter(|row| row.samples).enumerate() {
            let drawn = self.output.drawn.get_mut(index).and_then(Option::take);
            let own = logits;
            // The backend returns logits only for rows that it did not draw, so their indexes skip the drawn ones.
            logits += usize::from(drawn.is_none());
            // The turn is moved out of its session, so that threads can sample without borrowing the core.
            let turn = self.sequences.get_mut(&row.session).and_then(|sequence| sequence.turn.take());
            draws.extend(turn.map(|turn| Draw::new(row.session, turn, own, drawn)));
        }
        draw::draw_all(&mut draws, &self.output.logits, &self.sequences, self.backend.team());
        // Prefill chunks sample nothing and have succeeded by now.
        let mut any = draws.len() < planned.len();
        for draw in draws.drain(..) {
            let id = draw.session;
            match self.deliver(draw) {
                Ok(outcome) => {
                    any = true;
                    self.apply_outcome(id, outcome);
                }
                Err(error) => self.fail(id, error),
            }
        }
        self.draws = draws;
        // An asynchronous backend leaves the wake-ups to `prepare`, during the next pass.
        if !self.backend.overlaps() {
            self.wake();
        }
        any
    }

    fn account(&mut self, row: &PlannedRow) {
        // Commands that concern a session of the pass in flight are held back. A session that has left the batch all
        // the same gets no tokens accounted.
        let running = |sequence: &&mut Sequence| sequence.phase == SessionPhase::Running;
        let Some(sequence) = self.sequences.get_mut(&row.session).filter(running) else { return };
        let before = sequence.registered;
        let again = sequence.advance(row.tokens, &mut self.pool);
        let fulfilled = sequence.registered.min(sequence.promised);
        if fulfilled > before {
            self.queues.withdraw_promises(sequence, before..fulfilled);
        }
        let sampled_before = sequence.turn.as_ref().is_some_and(|turn| sequence.ids.len() > turn.begin);
        // The first sampled token of a turn follows a prefill; only later ones cost a decode row.
        let decoded = usize::from(row.samples && sampled_before);
        self.counters.prefill_tokens_total.add(row.tokens - decoded);
        self.counters.prefill_tokens_recomputed_total.add(again);
    }

    /// Returns a turn to its session, and appends the drawn token to both session and mailbox.
    fn deliver(&mut self, draw: Draw) -> Result<RowOutcome, EngineError> {
        let missing = || EngineError::Sample("the backend returned no token for this row".into());
        let sequence = self.sequences.get_mut(&draw.session).ok_or_else(missing)?;
        let turn = sequence.turn.insert(draw.turn);
        let sampled = match draw.drawn {
            Drawn::Token(sampled) => sampled,
            Drawn::Late => return Ok(RowOutcome::Late),
            Drawn::Failed(error) => return Err(error),
            Drawn::Nothing => return Err(missing()),
        };
        if sequence.ids.len() == turn.begin {
            turn.stage.decode();
        }
        sequence.ids.push(sampled.id);
        self.counters.decode_tokens_total.add(1);
        let finish = turn.ends(sampled.id, sequence.ids.len(), self.limit, self.bytes.get(sampled.id));
        // The mask threads get a whole forward pass for the next mask.
        if let Some(masking) = turn.masking.as_ref().filter(|_| finish.is_none()) {
            masking.advance(sampled.id);
        }
        let step = TokenStep { id: sampled.id, logprob: sampled.logprob, top: sampled.top };
        let room = turn.outbox.push(step, &mut self.wakers);
        Ok(match (finish, room) {
            (Some(finish), _) => RowOutcome::Finish(finish),
            (None, Room::None) => RowOutcome::Stall,
            (None, Room::Some) => RowOutcome::Continue,
        })
    }

    fn apply_outcome(&mut self, id: u64, outcome: RowOutcome) {
        match outcome {
            RowOutcome::Continue => {}
            RowOutcome::Finish(finish) => self.finish(id, finish),
            RowOutcome::Late => {
                if let Some(sequence) = self.sequences.get_mut(&id) {
                    // The logits are overwritten by the next step, so the last token has to be computed again.
                    sequence.extend(sequence.ids.len(), &[], &mut self.pool);
                    self.queues.wait(sequence);
                    self.counters.late_masks_total.add(1);
                }
            }
            RowOutcome::Stall => {
                if let Some(sequence) = self.sequences.get_mut(&id) {
                    self.queues.set_aside(sequence, SessionPhase::Stalled);
                    self.counters.stalls_total.add(1);
                }
            }
        }
    }
}

impl RunningTurn {
    /// Returns the reason why the turn ends with the token just sampled, if it does. `len` is the length of the
    /// sequence with that token.
    fn ends(&mut self, token: u32, len: usize, limit: usize, bytes: &[u8]) -> Option<TurnFinish> {
        if !self.generate.ignore_eos && self.generate.eos.contains(&token) {
            return Some(TurnFinish::Eos);
        }
        if let Some(which) = self.matcher.push(&self.generate.stops, bytes) {
            return Some(TurnFinish::Stop(which));
        }
        if len - self.begin >= self.generate.max_tokens {
            return Some(TurnFinish::Length);
        }
        (len >= limit).then_some(TurnFinish::Context)
    }
}
