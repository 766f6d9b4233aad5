//! Who takes part in the next step, and whose blocks go when there are too few.
//!
//! Service is in the order of tickets, and a session keeps its ticket from turn to turn. The oldest session can take
//! every block that a younger one holds, and any admitted sequence fits the pool alone: so something always progresses.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use waymark_models::BLOCK;

use super::core::Core;
use super::pool::Pool;
use super::prefix::Key;
use super::sequence::{Phase, Sequence};

/// One row of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    pub(super) session: u64,
    /// New tokens.
    pub(super) tokens: usize,
    /// True when the row ends at the sequence's last token, so that one can be sampled.
    pub(super) samples: bool,
}

/// Session numbers by what they are waiting for.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// By ticket.
    pub(super) waiting: BTreeMap<u64, u64>,
    /// Ticket and session, oldest first.
    pub(super) running: Vec<(u64, u64)>,
    /// Sessions out of the batch, by stamp: least recently used first. They may hold blocks.
    pub(super) idle: BTreeMap<u64, u64>,
    pub(super) stalled: usize,
    /// Blocks that a running session is about to compute. Who needs one waits for it instead of computing it too.
    pub(super) promised: HashMap<Key, u64>,
    clock: u64,
}

impl Queues {
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Takes a session out of every queue.
    pub(super) fn leave(&mut self, sequence: &mut Sequence) {
        match sequence.phase {
            Phase::Waiting => drop(self.waiting.remove(&sequence.ticket)),
            Phase::Running => {
                if let Ok(at) = self.running.binary_search(&(sequence.ticket, sequence.id)) {
                    self.running.remove(at);
                }
                self.unpromise(sequence);
            }
            Phase::Stalled => self.stalled -= 1,
            Phase::Parked => {}
        }
        self.idle.remove(&sequence.stamp);
        sequence.phase = Phase::Parked;
    }

    /// Takes a session out of the batch or the queue; it keeps its blocks until they are needed.
    pub(super) fn set_aside(&mut self, sequence: &mut Sequence, phase: Phase) {
        self.leave(sequence);
        self.stalled += usize::from(phase == Phase::Stalled);
        sequence.phase = phase;
        sequence.stamp = self.tick();
        self.idle.insert(sequence.stamp, sequence.id);
    }

    /// Puts a session into the queue, at the place of its ticket.
    pub(super) fn wait(&mut self, sequence: &mut Sequence) {
        self.set_aside(sequence, Phase::Waiting);
        self.waiting.insert(sequence.ticket, sequence.id);
    }

    fn run(&mut self, sequence: &mut Sequence) {
        self.leave(sequence);
        sequence.phase = Phase::Running;
        let place = (sequence.ticket, sequence.id);
        let at = self.running.partition_point(|other| *other < place);
        self.running.insert(at, place);
        self.promise(sequence);
    }

    fn promise(&mut self, sequence: &mut Sequence) {
        let (from, to) = (sequence.registered, sequence.ids.len() / BLOCK);
        let session = sequence.id;
        for key in &sequence.keys(to)[from..] {
            self.promised.entry(*key).or_insert(session);
        }
        sequence.promised = to;
    }

    fn unpromise(&mut self, sequence: &mut Sequence) {
        let to = std::mem::take(&mut sequence.promised);
        self.fulfil(sequence, 0..to);
    }

    /// Takes back the promise of some of a session's blocks: they are computed, or will not be.
    pub(super) fn fulfil(&mut self, sequence: &mut Sequence, blocks: std::ops::Range<usize>) {
        let session = sequence.id;
        for key in &sequence.keys(blocks.end)[blocks] {
            if self.promised.get(key) == Some(&session) {
                self.promised.remove(key);
            }
        }
    }
}

enum Admission {
    Admitted,
    /// Another session is computing what this one needs.
    Later,
    /// There are not enough blocks now.
    Full,
}

impl Core {
    /// Chooses the rows of the next step: those with one token to compute first, then prefill chunks, then sessions from
    /// the queue, as far as the token budget goes.
    pub(super) fn plan(&mut self) {
        self.planned.clear();
        let mut index = 0;
        while let Some(&(_, id)) = self.queues.running.get(index) {
            // Growing may preempt from the young end, this session included, but none that was planned already.
            if self.pending(id) == 1 && self.grow(id) {
                self.planned.push(Planned { session: id, tokens: 1, samples: true });
            }
            index += 1;
        }
        let mut budget = self.config.step_tokens.saturating_sub(self.planned.len()).max(BLOCK);
        for index in 0..self.queues.running.len() {
            let (_, id) = self.queues.running[index];
            if self.pending(id) > 1 {
                self.plan_chunk(id, &mut budget);
            }
        }
        let mut after = 0;
        while budget > 0 && self.queues.running.len() < self.config.max_batch_rows {
            let Some((&ticket, &id)) = self.queues.waiting.range(after..).next() else { break };
            after = ticket + 1;
            match self.admit(id) {
                Admission::Admitted => self.plan_chunk(id, &mut budget),
                Admission::Later => {}
                // Who came first is served first: nobody behind may take the blocks that this one waits for.
                Admission::Full => break,
            }
        }
    }

    /// Moves sessions from the queue into the batch while a pass is under way, so that the next plan finds them there. No
    /// session loses its blocks for it, and one block is left for each that is in the batch already: what the pass will
    /// have to grow by is not known yet.
    pub(super) fn admit_ahead(&mut self) {
        let mut budget = self.config.step_tokens;
        let (mut after, spare) = (0, self.queues.running.len());
        while budget > 0 && self.queues.running.len() < self.config.max_batch_rows {
            let Some((&ticket, &id)) = self.queues.waiting.range(after..).next() else { break };
            after = ticket + 1;
            let Some(sequence) = self.sequences.get(&id) else { break };
            if self.pool.available() < sequence.missing() + spare {
                break;
            }
            match self.admit(id) {
                Admission::Admitted => budget = budget.saturating_sub(self.pending(id)),
                Admission::Later => {}
                Admission::Full => break,
            }
        }
    }

    fn pending(&self, id: u64) -> usize {
        self.sequences.get(&id).map_or(0, Sequence::pending)
    }

    fn plan_chunk(&mut self, id: u64, budget: &mut usize) {
        let pending = self.pending(id);
        let tokens = pending.min(*budget);
        if tokens > 0 {
            *budget -= tokens;
            self.planned.push(Planned { session: id, tokens, samples: tokens == pending });
        }
    }

    /// Moves a waiting session into the batch, with all blocks that its tokens so far need.
    fn admit(&mut self, id: u64) -> Admission {
        let Some(sequence) = self.sequences.get_mut(&id) else { return Admission::Later };
        let fresh = sequence.table.is_empty();
        if fresh && !adopt(sequence, &mut self.pool, &self.queues.promised) {
            return Admission::Later;
        }
        // Out of the idle list, so that making room does not take this session's own blocks.
        let stamp = sequence.stamp;
        self.queues.idle.remove(&stamp);
        let missing = sequence.missing();
        while self.pool.available() < missing && self.evict() {}
        let Some(sequence) = self.sequences.get_mut(&id) else { return Admission::Later };
        if self.pool.available() < missing {
            if fresh {
                sequence.release(&mut self.pool);
            }
            self.queues.idle.insert(stamp, id);
            return Admission::Full;
        }
        for _ in 0..missing {
            sequence.table.extend(self.pool.take());
        }
        let hit = if fresh { sequence.computed } else { 0 };
        self.counters.prefix_cache_hit_tokens_total.add(hit);
        if let Some(turn) = sequence.turn.as_mut().filter(|turn| !turn.started) {
            turn.started = true;
            turn.permit = None;
            self.counters.queue_seconds.observe(Instant::now().duration_since(turn.submitted).as_secs_f64());
            if sequence.peak == 0 {
                turn.outbox.set_cached(hit);
            }
        }
        sequence.peak = sequence.peak.max(sequence.computed);
        self.queues.run(sequence);
        Admission::Admitted
    }

    /// Takes back the blocks of the session that was idle for longest. False when none holds any.
    fn evict(&mut self) -> bool {
        while let Some((_, id)) = self.queues.idle.pop_first() {
            if let Some(sequence) = self.sequences.get_mut(&id).filter(|sequence| !sequence.table.is_empty()) {
                sequence.release(&mut self.pool);
                self.counters.evictions_total.add(1);
                return true;
            }
        }
        false
    }

    /// Gives a running session the blocks its next token needs, at the expense of idle sessions, then of younger running
    /// ones. False when the session is the youngest itself and had to go.
    fn grow(&mut self, id: u64) -> bool {
        loop {
            let Some(sequence) = self.sequences.get_mut(&id) else { return false };
            if sequence.missing() == 0 {
                return true;
            }
            if let Some(block) = self.pool.take() {
                sequence.table.push(block);
            } else if !self.evict() && self.preempt() == Some(id) {
                return false;
            }
        }
    }

    /// Puts the youngest running session back into the queue, where its blocks can be taken.
    pub(super) fn preempt(&mut self) -> Option<u64> {
        let (_, id) = *self.queues.running.last()?;
        let sequence = self.sequences.get_mut(&id)?;
        self.queues.wait(sequence);
        self.counters.preemptions_total.add(1);
        Some(id)
    }
}

/// Takes from the cache what a session without blocks can use. At least one token is left to be computed, since only
/// that gives logits. False when it is better to wait: the next block is being computed by another session.
fn adopt(sequence: &mut Sequence, pool: &mut Pool, promised: &HashMap<Key, u64>) -> bool {
    let full = (sequence.ids.len() - 1) / BLOCK;
    let keys = sequence.keys(full);
    let known = keys.iter().map_while(|key| pool.find(key)).collect::<Vec<_>>();
    if keys.get(known.len()).is_some_and(|key| promised.contains_key(key)) {
        return false;
    }
    for block in &known {
        pool.share(*block);
    }
    sequence.computed = known.len() * BLOCK;
    sequence.registered = known.len();
    sequence.table = known;
    true
}
