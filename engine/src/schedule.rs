//! The scheduler: rows of the next step, and preemption when KV blocks are short.
//!
//! Sessions are served in the order of their tickets, and a session keeps its ticket from turn to turn. The oldest
//! session can take every block that a younger one holds, and any admitted sequence fits the pool alone: so at least
//! one session always makes progress.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use waymark_models::BLOCK;

use super::core::Core;
use super::pool::BlockPool;
use super::prefix::PrefixKey;
use super::sequence::{Sequence, SessionPhase};

/// A row of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedRow {
    pub(super) session: u64,
    /// Number of new tokens.
    pub(super) tokens: usize,
    /// If `true`, the row ends at the sequence's last token, so that the next one can be sampled.
    pub(super) samples: bool,
}

/// Session numbers by state.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Waiting sessions by ticket.
    pub(super) waiting: BTreeMap<u64, u64>,
    /// Ticket and number of the running sessions, oldest first.
    pub(super) running: Vec<(u64, u64)>,
    /// Sessions outside the batch by stamp, least recently used first. They may hold blocks.
    pub(super) idle: BTreeMap<u64, u64>,
    pub(super) stalled: usize,
    /// Keys of the blocks that a running session is about to compute. Other sessions wait for such a block instead of
    /// computing it too.
    pub(super) promised: HashMap<PrefixKey, u64>,
    clock: u64,
}

impl Queues {
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Removes a session from every queue.
    pub(super) fn leave(&mut self, sequence: &mut Sequence) {
        match sequence.phase {
            SessionPhase::Waiting => drop(self.waiting.remove(&sequence.ticket)),
            SessionPhase::Running => {
                // Sorted by ticket, so the youngest session is the last one.
                if let Ok(at) = self.running.binary_search(&(sequence.ticket, sequence.id)) {
                    self.running.remove(at);
                }
                self.unpromise(sequence);
            }
            SessionPhase::Stalled => self.stalled -= 1,
            SessionPhase::Parked => {}
        }
        self.idle.remove(&sequence.stamp);
        sequence.phase = SessionPhase::Parked;
    }

    /// Moves a session out of the batch or the queue. It keeps its blocks until another session needs them.
    pub(super) fn set_aside(&mut self, sequence: &mut Sequence, phase: SessionPhase) {
        self.leave(sequence);
        self.stalled += usize::from(phase == SessionPhase::Stalled);
        sequence.phase = phase;
        sequence.stamp = self.tick();
        self.idle.insert(sequence.stamp, sequence.id);
    }

    /// Puts a session into the waiting queue, at the position of its ticket.
    pub(super) fn wait(&mut self, sequence: &mut Sequence) {
        self.set_aside(sequence, SessionPhase::Waiting);
        self.waiting.insert(sequence.ticket, sequence.id);
    }

    fn run(&mut self, sequence: &mut Sequence) {
        self.leave(sequence);
        sequence.phase = SessionPhase::Running;
        let place = (sequence.ticket, sequence.id);
        let at = self.running.partition_point(|other| *other < place);
        self.running.insert(at, place);
        self.promise(sequence);
    }

    fn promise(&mut self, sequence: &mut Sequence) {
        let from = sequence.registered;
        let to = sequence.ids.len() / BLOCK;
        let session = sequence.id;
        for key in &sequence.keys(to)[from..] {
            self.promised.entry(*key).or_insert(session);
        }
        sequence.promised = to;
    }

    fn unpromise(&mut self, sequence: &mut Sequence) {
        let to = std::mem::take(&mut sequence.promised);
        self.withdraw_promises(sequence, 0..to);
    }

    /// Withdraws the promise of some of a session's blocks, because they were computed or will not be.
    pub(super) fn withdraw_promises(&mut self, sequence: &mut Sequence, blocks: std::ops::Range<usize>) {
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
    /// Another session is computing a block that this one can share.
    Later,
    /// The pool is short of blocks.
    Full,
}

impl Core {
    /// Plans the next step within the token budget: first rows with a single new token, then prefill chunks, then
    /// sessions from the waiting queue.
    pub(super) fn plan(&mut self) {
        self.planned.clear();
        let mut index = 0;
        while let Some(&(_, id)) = self.queues.running.get(index) {
            // Growing may preempt the youngest sessions, this one included, but none that is already planned.
            if self.pending(id) == 1 && self.grow(id) {
                self.planned.push(PlannedRow { session: id, tokens: 1, samples: true });
            }
            index += 1;
        }
        // At least one block, or a batch full of decode rows would starve prefill.
        let mut budget = self.config.step_tokens.saturating_sub(self.planned.len()).max(BLOCK);
        for index in 0..self.queues.running.len() {
            let (_, id) = self.queues.running[index];
            if self.pending(id) > 1 {
                self.plan_chunk(id, &mut budget);
            }
        }
        // Iterates by ticket instead of an iterator, because `admit` changes the queue.
        let mut after = 0;
        while budget > 0 && self.queues.running.len() < self.config.max_batch_rows {
            let Some((&ticket, &id)) = self.queues.waiting.range(after..).next() else { break };
            after = ticket + 1;
            match self.admit(id) {
                Admission::Admitted => self.plan_chunk(id, &mut budget),
                Admission::Later => {}
                // A younger session must not take the blocks that this one waits for.
                Admission::Full => break,
            }
        }
    }

    /// Moves waiting sessions into the batch while a pass is in flight, so that the next plan includes them. Preempts
    /// no running session, and leaves one block for each of them, since the growth after this pass is not known yet.
    pub(super) fn admit_ahead(&mut self) {
        let mut budget = self.config.step_tokens;
        let mut after = 0;
        let spare = self.queues.running.len();
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
            self.planned.push(PlannedRow { session: id, tokens, samples: tokens == pending });
        }
    }

    /// Moves a waiting session into the batch, with all the blocks that its tokens need.
    fn admit(&mut self, id: u64) -> Admission {
        let Some(sequence) = self.sequences.get_mut(&id) else { return Admission::Later };
        let fresh = sequence.table.is_empty();
        if fresh && !share_cached_blocks(sequence, &mut self.pool, &self.queues.promised) {
            return Admission::Later;
        }
        // Removed from the idle list, so that making room does not evict this session's own blocks.
        let stamp = sequence.stamp;
        self.queues.idle.remove(&stamp);
        let missing = sequence.missing();
        // Idle sessions lose their blocks before any running one is preempted.
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
            turn.stage.prefill(sequence.ids.len() - sequence.computed, hit);
            self.counters.queue_seconds.observe(Instant::now().duration_since(turn.submitted).as_secs_f64());
            // Cache hits count for the first prompt only: later hits are the session's own blocks.
            if sequence.peak == 0 {
                turn.outbox.set_cached(hit);
            }
        }
        sequence.peak = sequence.peak.max(sequence.computed);
        self.queues.run(sequence);
        Admission::Admitted
    }

    /// Evicts the blocks of the least recently used idle session. Returns `false` if no idle session holds any.
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

    /// Gives a running session the blocks for its next token, taken from idle sessions first, then from younger running
    /// ones. Returns `false` if the session itself was the youngest and got preempted.
    fn grow(&mut self, id: u64) -> bool {
        loop {
            let Some(sequence) = self.sequences.get_mut(&id) else { return false };
            if sequence.missing() == 0 {
                return true;
            }
            if let Some(block) = self.pool.take() {
                sequence.table.push(block);
            // Preempting only moves a session to the idle list; the next round evicts its blocks.
            } else if !self.evict() && self.preempt() == Some(id) {
                return false;
            }
        }
    }

    /// Preempts the youngest running session: puts it back into the queue, where its blocks can be evicted.
    pub(super) fn preempt(&mut self) -> Option<u64> {
        let (_, id) = *self.queues.running.last()?;
        let sequence = self.sequences.get_mut(&id)?;
        self.queues.wait(sequence);
        self.counters.preemptions_total.add(1);
        Some(id)
    }
}

/// Shares cached blocks with a session that has none. Leaves at least one token to compute, since only a computed token
/// gives logits. Returns `false` if the session should wait for a block that another session is computing.
fn share_cached_blocks(sequence: &mut Sequence, pool: &mut BlockPool, promised: &HashMap<PrefixKey, u64>) -> bool {
    // Excludes the block of the last token, which must be computed for its logits.
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
