//! Admission of waiting sessions into the batch.

use std::time::Instant;

use super::prefill::{self, Prefill};
use super::scheduled_session::ScheduledSession;
use super::tenants::TenantSlot;
use super::{BlockCopy, Scheduler};

/// Maximum number of short prompts that a step passes over because the reserve has no room for them.
const LOOKAHEAD: usize = 64;
/// Divisor of the pool's size that gives the number of blocks that a long prompt leaves free when it is admitted: for
/// the growth of running sequences, and for short prompts that come while longer ones wait for blocks.
const RESERVE: usize = 8;

/// Result of an attempt to admit a session.
enum Admission {
    Admitted,
    /// Another session is computing a block that this one can share.
    Later,
    /// The pool is short of blocks.
    Full,
}

/// Use of the reserve of blocks.
#[derive(Debug, Clone, Copy, Default)]
struct ReserveUse {
    /// If `true`, a session is running that did not overtake another one.
    regular: bool,
    /// Number of blocks held by running sessions that overtook others.
    overtaking: usize,
}

impl Scheduler {
    /// Moves a session out of a full batch, if its place is due to a waiting session of another tenant or of a higher
    /// priority.
    pub(super) fn rotate(&mut self) {
        if self.queues.running_len() < self.max_rows || self.queues.waiting_len() == 0 {
            return;
        }
        if let Some(session) = self.queues.overserved().and_then(|id| self.sessions.get_mut(&id)) {
            // The session keeps its blocks until others need them, so a rotation alone computes nothing twice.
            self.queues.wait(session);
            self.counters.rotations_total.add(1);
        }
    }

    /// Moves waiting sessions into the batch, as long as the step has tokens for them. Beyond that, admits only short
    /// prompts and tenants without a prefill in the step, so no tenant waits for the end of another's long
    /// prompt.
    pub(super) fn admit_waiting(&mut self, now: Instant, whole: usize, prefills: &mut Vec<Prefill>) {
        if self.queues.waiting_len() == 0 {
            return;
        }
        let mut reserve = self.reserve_use();
        let mut planned: usize = prefills.iter().map(|prefill| prefill.pending).sum();
        let mut passed = 0;
        // Number of blocks that overtaking sessions may hold while an earlier one waits for blocks. `None` if none
        // waits.
        let mut allowance = None;
        self.queues.begin_admissions();
        while self.queues.running_len() < self.max_rows && passed < LOOKAHEAD {
            let Some(candidate) = self.queues.next_candidate() else { break };
            let short = prefill::is_short(self.pending(candidate.session));
            let served = || prefills.iter().any(|prefill| prefill.tenant == candidate.tenant);
            // A long prefill holds the blocks of its whole prompt once it is admitted, so it is not admitted early.
            let passes = match allowance {
                Some(blocks) => !short || !self.may_overtake(candidate.session, reserve, blocks),
                None => !short && planned >= whole && served(),
            };
            if passes {
                if short {
                    passed += 1;
                } else {
                    self.skip_long(Some(candidate.tenant));
                }
                continue;
            }
            match self.admit(candidate.session, reserve, now) {
                Admission::Admitted => {
                    prefills.extend(self.prefill(candidate.session));
                    planned += self.pending(candidate.session);
                    let overtakes = allowance.is_some();
                    reserve.regular |= !overtakes;
                    if let Some(session) = self.sessions.get_mut(&candidate.session) {
                        session.overtook = overtakes;
                        reserve.overtaking += if overtakes { session.sequence.blocks() } else { 0 };
                    }
                }
                Admission::Later => self.lend_place(candidate.session, prefills),
                // Other sessions must not take the blocks that this one waits for.
                Admission::Full if allowance.is_some() => break,
                Admission::Full => {
                    allowance = Some(self.allowance(candidate.session));
                    // No other long prompt is admitted in this step, and there may be too many to pass them one by one.
                    self.skip_long(None);
                }
            }
        }
    }

    /// Passes over the long prompts of a tenant, or of all tenants for `None`, up to the next short one.
    fn skip_long(&mut self, tenant: Option<TenantSlot>) {
        let Self { queues, sessions, .. } = self;
        let pending = |id: u64| sessions.get(&id).map_or(0, |session| session.sequence.pending());
        queues.skip_long(tenant, |id| prefill::is_short(pending(id)));
    }

    /// Moves waiting sessions into the batch while a pass is in flight, so the next plan includes them. Preempts
    /// no running session. Leaves one block for each running session, since the growth after this pass is not known
    /// yet.
    pub(crate) fn admit_ahead(&mut self, now: Instant) {
        let mut budget = self.step_tokens;
        let growth = self.queues.running_len();
        let mut reserve = self.reserve_use();
        self.queues.begin_admissions();
        while budget > 0 && self.queues.running_len() < self.max_rows {
            let Some(candidate) = self.queues.next_candidate() else { break };
            let Some(session) = self.sessions.get(&candidate.session) else { break };
            // The shared block must be copied, which is possible only between two passes.
            if session.sequence.ends_in_shared_block(&self.pool) {
                continue;
            }
            let spare = growth + self.spare_blocks(candidate.session, reserve);
            if self.pool.available() < session.sequence.missing() + spare {
                break;
            }
            match self.admit(candidate.session, reserve, now) {
                Admission::Admitted => {
                    reserve.regular = true;
                    budget = budget.saturating_sub(self.pending(candidate.session));
                    if let Some(session) = self.sessions.get_mut(&candidate.session) {
                        session.overtook = false;
                    }
                }
                Admission::Later => {}
                Admission::Full => break,
            }
        }
    }

    fn reserve_use(&self) -> ReserveUse {
        let mut used = ReserveUse::default();
        for index in 0..self.queues.running_len() {
            let session = self.queues.running(index).and_then(|id| self.sessions.get(&id));
            match session {
                Some(session) if session.overtook => used.overtaking += session.sequence.blocks(),
                Some(_) => used.regular = true,
                None => {}
            }
        }
        used
    }

    fn reserve(&self) -> usize {
        self.pool.total() / RESERVE
    }

    /// Returns the number of blocks that must stay free when this session is admitted.
    fn spare_blocks(&self, id: u64, used: ReserveUse) -> usize {
        let Some(session) = self.sessions.get(&id) else { return 0 };
        let long = session.sequence.blocks() == 0 && !prefill::is_short(session.sequence.pending());
        // Alone in the batch, a session may take all blocks: it might need them.
        if long && used.regular { self.reserve().saturating_sub(used.overtaking) } else { 0 }
    }

    /// Returns `true` if a short session may overtake one that waits for blocks and has this `allowance`.
    fn may_overtake(&self, id: u64, used: ReserveUse, allowance: usize) -> bool {
        let missing = self.sessions.get(&id).map_or(0, |session| session.sequence.missing());
        // A session that has given up its place in the batch may still have its blocks.
        missing == 0 || used.overtaking + missing <= allowance
    }

    /// Returns the number of blocks that overtaking sessions may hold while this one waits for blocks: the reserve, if
    /// this session has a long prompt that fits the pool without the reserve; otherwise 0.
    fn allowance(&self, id: u64) -> usize {
        let Some(session) = self.sessions.get(&id) else { return 0 };
        let long = !prefill::is_short(session.sequence.pending());
        let fits = session.sequence.missing() + self.reserve() <= self.pool.total();
        if long && fits { self.reserve() } else { 0 }
    }

    /// Returns the number of blocks that a session has to take from the pool for its tokens.
    fn missing_blocks(&self, id: u64) -> usize {
        let missing = |session: &ScheduledSession| {
            session.sequence.missing() + usize::from(session.sequence.ends_in_shared_block(&self.pool))
        };
        self.sessions.get(&id).map_or(0, missing)
    }

    /// Returns an upper bound of the blocks that are available once all idle sessions but this one have lost theirs: a
    /// block of several sessions counts for each of them.
    fn most_available(&self, id: u64) -> usize {
        let blocks = |id: u64| self.sessions.get(&id).map_or(0, |session| session.sequence.blocks());
        let running = (0..self.queues.running_len()).filter_map(|index| self.queues.running(index));
        let kept: usize = running.chain([id]).map(blocks).sum();
        self.pool.available() + self.pool.held().saturating_sub(kept)
    }

    /// Moves a waiting session into the batch, with all the blocks that its tokens need.
    fn admit(&mut self, id: u64, used: ReserveUse, now: Instant) -> Admission {
        let spare = self.spare_blocks(id, used);
        let Some(session) = self.sessions.get_mut(&id) else { return Admission::Later };
        let fresh = session.sequence.blocks() == 0;
        let queues = &self.queues;
        if fresh && !session.sequence.share_cached_blocks(&mut self.pool, |key| queues.promised_by(key).is_some()) {
            return Admission::Later;
        }
        // Making room must not evict this session's own blocks.
        self.queues.pin(session);
        let least = session.sequence.missing() + spare;
        // Where all idle blocks are too few, evictions would admit nobody, and again in every step.
        let possible = self.pool.available() >= least || self.most_available(id) >= least;
        // Idle sessions lose their blocks before any running one is preempted. An eviction may also leave this session
        // as the last holder of its open block, which then needs no copy.
        while possible && self.pool.available() < self.missing_blocks(id) + spare && self.evict() {}
        let needed = self.missing_blocks(id) + spare;
        let Some(session) = self.sessions.get_mut(&id) else { return Admission::Later };
        if self.pool.available() < needed {
            if fresh {
                session.sequence.release(&mut self.pool);
            }
            self.queues.unpin(session);
            return Admission::Full;
        }
        if let Some((from, to)) = session.sequence.own_open_block(&mut self.pool) {
            self.copies.push(BlockCopy { session: id, from, to });
            self.counters.block_copies_total.add(1);
        }
        while session.sequence.missing() > 0 && session.sequence.take_block(&mut self.pool) {}
        let computed = session.sequence.computed();
        let pending = session.sequence.pending();
        session.entered_with = pending;
        // Cache hits count for the first prompt only: later hits are the session's own blocks.
        let cached = session.sequence.enter_batch().then_some(computed);
        self.counters.prefix_cache_hit_tokens_total.add(cached.unwrap_or(0));
        if let Some(waited) = session.turn.as_mut().and_then(|turn| turn.start(now, pending, computed, cached)) {
            self.counters.queue_seconds.observe(waited.as_secs_f64());
        }
        self.queues.run(session);
        Admission::Admitted
    }
}
