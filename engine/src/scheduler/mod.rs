//! The scheduler: sessions, their KV blocks, the rows of the next step, and preemption when blocks are short. It calls
//! no backend, starts no thread and reads no clock, so it can be driven alone.
//!
//! Places in the batch and the tokens of a step are shared fairly among tenants. Blocks are not: the oldest session can
//! take every block that a younger one holds, and any admitted sequence fits the pool alone, so at least one session
//! always makes progress. A session keeps its age from turn to turn.

mod admission;
mod awaited_prefix;
#[cfg(test)]
mod fairness;
mod prefill;
mod promises;
#[cfg(test)]
mod property;
mod queues;
mod scheduled_session;
mod speculation;
mod step_costs;
mod tenants;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use waymark_models::{AdapterSlot, BLOCK};

use crate::backend::BackendSpec;
use crate::command::{Fork, Submission};
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::error::EngineError;
use crate::masking::Masking;
use crate::pool::BlockPool;
use crate::prefix::PrefixKey;
use crate::running_turn::RunningTurn;
use crate::sequence::Sequence;
use crate::snapshot::{BlockSnapshot, SessionSnapshot, SessionState};
use crate::token::TurnFinish;
use prefill::{Prefill, PrefillBudget};
use queues::Queues;
use step_costs::{StepCosts, StepSize};
use tenants::TenantSlot;

pub(super) use scheduled_session::ScheduledSession;

/// Time of prefill in a step with running streams, as a fraction of the streams' own time, for one claim. A single
/// prompt then takes 2.25 times as long as without streams, and stretches their gaps to 1.8 times.
const CLAIM: f64 = 0.8;
/// Exponent with which that time grows with the number of claims. With 1, streams and claims would get equal parts;
/// but prompts that are computed late are decoded in smaller batches, which costs up to 8 % of the throughput.
const CROWD: f64 = 1.5;
/// Largest fraction of throughput given up for shorter steps, so a new session waits less for the current one.
const WASTE: f64 = 0.035;
/// Seconds of a step that nobody notices: shorter steps are not limited.
const UNNOTICED: f64 = 0.005;
/// Weighted tokens by which a tenant may be ahead of the others and still have its short prompts computed first.
const BURST: u64 = 4096;

/// A row of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedRow {
    pub(super) session: u64,
    /// Number of new tokens of the sequence.
    pub(super) tokens: usize,
    /// Number of proposed tokens after them, which the step verifies; see [`ScheduledSession::proposal`].
    pub(super) proposed: usize,
    /// If `true`, the row ends at the sequence's last token, so the next one can be sampled.
    pub(super) samples: bool,
}

/// A block to copy before the next pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockCopy {
    /// Session that gets the copy.
    pub(super) session: u64,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// Owner of the sessions, the block pool and the queues.
#[derive(Debug)]
pub(super) struct Scheduler {
    /// Maximum number of running sessions.
    max_rows: usize,
    /// Maximum number of tokens in a step.
    step_tokens: usize,
    /// Maximum number of rows of logits in a step.
    logit_rows: usize,
    /// Maximum number of proposed tokens per row.
    lookup_tokens: usize,
    /// Maximum length of a sequence, in tokens.
    limit: usize,
    /// Identity of the weights with which all KV is computed.
    base: u64,
    pool: BlockPool,
    sessions: HashMap<u64, ScheduledSession>,
    queues: Queues,
    costs: StepCosts,
    /// Size of the last planned step.
    planned: StepSize,
    /// Blocks to copy before the planned step.
    copies: Vec<BlockCopy>,
    /// Prefills of the step being planned. Kept to reuse the memory, as `streams` is.
    prefills: Vec<Prefill>,
    /// Tenants of the decode rows of the step being planned.
    streams: Vec<TenantSlot>,
    /// Number of steps with prefills since the last one that belonged to the oldest session.
    oldest_waited: u64,
    counters: Arc<Counters>,
}

impl Scheduler {
    pub(super) fn new(spec: &BackendSpec, config: &EngineConfig, counters: Arc<Counters>) -> Self {
        Self {
            max_rows: config.max_batch_rows,
            step_tokens: config.step_tokens,
            logit_rows: config.logit_rows(),
            lookup_tokens: config.lookup_tokens,
            limit: spec.limit(),
            base: spec.generation,
            pool: BlockPool::new(spec.blocks),
            sessions: HashMap::new(),
            queues: Queues::default(),
            costs: StepCosts::default(),
            planned: StepSize::default(),
            copies: Vec::new(),
            prefills: Vec::new(),
            streams: Vec::new(),
            oldest_waited: 0,
            counters,
        }
    }

    /// Begins a turn: appends its tokens to the session, which is created if it does not exist yet, and puts the
    /// session into the waiting queue. A turn still in progress is stopped.
    pub(super) fn submit(&mut self, submission: Submission, masking: Option<Masking>) {
        let id = submission.session;
        // Tokens are append-only, so a session never has fewer than its handle has received.
        let known = self.sessions.get(&id).map_or(0, |session| session.sequence.len());
        if submission.keep > known {
            // An earlier turn was refused together with the tokens it brought.
            let reason = "an earlier turn of this session was refused: open a new session";
            return self.refuse(submission, EngineError::Request(reason.to_owned()));
        }
        self.stop(id);
        let Self { base, sessions, queues, pool, .. } = self;
        let session = sessions.entry(id).or_insert_with(|| {
            let options = submission.options;
            let adapter = options.adapter.map(|adapter| adapter.generation);
            let sequence = Sequence::new(PrefixKey::root(*base, adapter, options.salt));
            let entry = queues.entry(options.tenant, options.priority);
            ScheduledSession::new(id, options, submission.submitted, entry, sequence)
        });
        session.sequence.extend(submission.keep, &submission.append, pool);
        session.turn = Some(Box::new(RunningTurn::new(submission, masking, session.sequence.len())));
        session.failed_proposals = 0;
        self.counters.turns_total.add(1);
        queues.tenants.activate(session.entry.tenant());
        queues.wait(session);
    }

    /// Opens a session between turns with the first tokens of another one, whose blocks it shares. Does nothing if the
    /// other session is closed, or lacks these tokens because a turn was refused. The first turn of the new session is
    /// then refused.
    pub(super) fn fork(&mut self, fork: &Fork) {
        let Fork { parent, session: id, options, keep, asked } = *fork;
        // The handle allows no turn in progress. Between turns, no pass writes to the blocks.
        self.stop(parent);
        let Self { sessions, queues, pool, .. } = self;
        let Some(parent) = sessions.get(&parent).filter(|parent| (1..=parent.sequence.len()).contains(&keep)) else {
            return;
        };
        let sequence = parent.sequence.fork(keep, pool);
        let entry = queues.entry(options.tenant, options.priority);
        let mut session = ScheduledSession::new(id, options, asked, entry, sequence);
        queues.park(&mut session);
        sessions.insert(id, session);
        self.counters.forks_total.add(1);
    }

    /// Takes the block copies that must be made before the planned step, in this order. Until then, no block is
    /// written.
    pub(super) fn take_copies(&mut self) -> Vec<BlockCopy> {
        std::mem::take(&mut self.copies)
    }

    /// Ends a turn with an error before it begins.
    pub(super) fn refuse(&self, submission: Submission, error: EngineError) {
        self.counters.turn_failures_total.add(1);
        submission.outbox.end(Err(error));
    }

    /// Puts a session whose reader has caught up back into the queue, at its old position.
    pub(super) fn resume(&mut self, id: u64) {
        let stalled = |session: &&mut ScheduledSession| session.entry.state() == SessionState::Stalled;
        if let Some(session) = self.sessions.get_mut(&id).filter(stalled) {
            self.queues.wait(session);
        }
    }

    /// Ends a turn that its owner has dropped; the session stays, parked.
    pub(super) fn stop(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id)
            && let Some(turn) = session.turn.take()
        {
            turn.cancel(session.sequence.len());
            self.queues.park(session);
            self.counters.cancellations_total.add(1);
        }
    }

    /// Removes a session, with its turn if one is in progress.
    pub(super) fn close(&mut self, id: u64) {
        self.stop(id);
        let Some(mut session) = self.sessions.remove(&id) else { return };
        self.queues.remove(&mut session);
        session.sequence.release(&mut self.pool);
    }

    /// Ends a turn normally; the session is parked and keeps its blocks. Pushes the waker of a waiting reader to
    /// `wakers`.
    pub(super) fn finish(&mut self, id: u64, finish: TurnFinish, wakers: &mut Vec<Waker>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        self.queues.park(session);
        if let Some(turn) = session.turn.take() {
            turn.finish(session.sequence.len(), finish, wakers);
        }
    }

    /// Ends a turn with an error. Discards the KV that the session computed, so no session uses it again.
    pub(super) fn fail(&mut self, id: u64, error: EngineError) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        self.queues.leave(session);
        // The KV may be corrupt after a failure, and other sessions must not find it.
        session.sequence.discard(&mut self.pool);
        self.queues.park(session);
        if let Some(turn) = session.turn.take() {
            self.counters.turn_failures_total.add(1);
            turn.fail(session.sequence.len(), id, error);
        }
    }

    /// Ends every turn with the same error.
    pub(super) fn fail_all(&mut self, error: &EngineError) {
        let open = self.sessions.values().filter(|session| session.turn.is_some());
        for id in open.map(ScheduledSession::id).collect::<Vec<_>>() {
            self.fail(id, error.clone());
        }
    }

    /// Moves a session out of the batch until its reader catches up.
    pub(super) fn stall(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            self.queues.stall(session);
            self.counters.stalls_total.add(1);
        }
    }

    /// Lets a session whose mask was late miss the step.
    pub(super) fn skip_late(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        self.counters.late_masks_total.add(1);
        // The logits are overwritten by the next step, so the last token has to be computed again.
        session.rewind(&mut self.pool);
        if session.sequence.ends_in_shared_block(&self.pool) {
            // A running session writes to no shared block, so the block has to be copied when the session returns.
            self.queues.wait(session);
        } else {
            // Only removes the block's key: others must not find a block that is about to be written again.
            session.sequence.own_open_block(&mut self.pool);
        }
    }

    /// Plans the next step: first rows with a single new token, then prefills of running and newly admitted sessions
    /// within the budgets of tokens and time, then proposed tokens. `now` is the current time, up to which the time in
    /// the queue is measured.
    pub(super) fn plan(&mut self, now: Instant, rows: &mut Vec<PlannedRow>) {
        rows.clear();
        self.streams.clear();
        self.planned = StepSize::default();
        self.rotate();
        self.plan_decoding(rows);
        let mut prefills = std::mem::take(&mut self.prefills);
        prefills.clear();
        let mut index = 0;
        while let Some(id) = self.queues.running(index) {
            prefills.extend(self.prefill(id).filter(|prefill| prefill.pending > 1));
            index += 1;
        }
        // At least one block, or a batch full of decode rows would starve prefill.
        let whole = self.step_tokens.saturating_sub(rows.len()).max(BLOCK);
        self.admit_waiting(now, whole, &mut prefills);
        self.queues.tenants.count_prefills(prefills.iter().map(|prefill| prefill.tenant));
        self.queues.tenants.advance();
        if !prefills.is_empty() {
            let budget = self.prefill_budget(whole, &prefills);
            self.oldest_waited += 1;
            if prefill::share(&mut prefills, budget, self.oldest_waited) {
                self.oldest_waited = 0;
            }
            for row in prefills.iter().filter_map(Prefill::row) {
                let size = StepSize::of_row(row.tokens, self.computed(row.session));
                self.planned += size;
                rows.push(row);
            }
        }
        self.prefills = prefills;
        // Last, since proposed tokens take only what others leave.
        self.plan_proposals(rows);
    }

    /// Plans the rows with a single new token.
    fn plan_decoding(&mut self, rows: &mut Vec<PlannedRow>) {
        let mut index = 0;
        while let Some(id) = self.queues.running(index) {
            // Growing may preempt the youngest sessions, this one included, but none that is already planned.
            if self.pending(id) == 1
                && self.grow(id)
                && let Some(session) = self.sessions.get(&id)
            {
                rows.push(PlannedRow { session: id, tokens: 1, proposed: 0, samples: true });
                self.planned += StepSize::of_row(1, session.sequence.computed());
                self.streams.push(session.entry.tenant());
            }
            index += 1;
        }
    }

    /// Returns the prefill of a session.
    fn prefill(&self, id: u64) -> Option<Prefill> {
        let session = self.sessions.get(&id)?;
        let tenant = session.entry.tenant();
        let tenants = &self.queues.tenants;
        Some(Prefill {
            session: id,
            tenant,
            ticket: session.entry.ticket(),
            service: tenants.service(tenant),
            charge: session.entry.priority().charge(),
            pending: session.sequence.pending(),
            short: prefill::is_short(session.entered_with) && tenants.lead(tenant) <= BURST,
            awaited: None,
            cost: self.costs.per_token(session.sequence.computed()),
            tokens: 0,
        })
    }

    /// Returns the bounds of a step's prefill. Without streams, a step is long enough that its fixed cost wastes
    /// little throughput; with streams, the time of prefill grows with the claims on it.
    fn prefill_budget(&self, whole: usize, prefills: &[Prefill]) -> PrefillBudget {
        if !self.costs.known() {
            return PrefillBudget { tokens: whole, seconds: f64::INFINITY };
        }
        let fixed = self.costs.fixed();
        let mean = prefills.iter().map(|prefill| prefill.cost).sum::<f64>() / prefills.len() as f64;
        let full = (whole as f64 * mean).max(f64::MIN_POSITIVE);
        // Solves `(fixed + seconds) / seconds = (1 + WASTE) (fixed + full) / full`, the costs per token of both steps.
        let efficient = (fixed / (WASTE + (1.0 + WASTE) * fixed / full)).max(UNNOTICED);
        if self.streams.is_empty() {
            // At least one block. After steps of a single token, the whole time of a step is
            // attributed to its token, and further steps of one token would never correct that estimate.
            return PrefillBudget { tokens: whole, seconds: efficient.max(BLOCK as f64 * mean) };
        }
        let streams = self.costs.seconds(self.planned);
        let claims = self.queues.tenants.claims(self.streams.iter().copied()) as f64;
        let share = (CLAIM * claims.powf(CROWD) * streams).max(UNNOTICED - streams);
        PrefillBudget { tokens: whole, seconds: share.min(efficient) }
    }

    /// Records the time that the last planned step took.
    pub(super) fn record_step(&mut self, time: Duration) {
        self.costs.record(self.planned, time);
    }

    fn pending(&self, id: u64) -> usize {
        self.sessions.get(&id).map_or(0, |session| session.sequence.pending())
    }

    fn computed(&self, id: u64) -> usize {
        self.sessions.get(&id).map_or(0, |session| session.sequence.computed())
    }

    /// Evicts the blocks of the least recently used idle session. Returns `false` if no idle session holds any.
    fn evict(&mut self) -> bool {
        while let Some(id) = self.queues.pop_idle() {
            if let Some(session) = self.sessions.get_mut(&id).filter(|session| session.sequence.blocks() > 0) {
                session.sequence.release(&mut self.pool);
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
            let Some(session) = self.sessions.get_mut(&id) else { return false };
            if session.sequence.missing() == 0 {
                return true;
            }
            // Preempting only moves a session to the idle list; the next round evicts its blocks.
            if !session.sequence.take_block(&mut self.pool) && !self.evict() && self.preempt() == Some(id) {
                return false;
            }
        }
    }

    /// Preempts the youngest running session: puts it back into the queue, where its blocks can be evicted.
    pub(super) fn preempt(&mut self) -> Option<u64> {
        let id = self.queues.youngest_running()?;
        let session = self.sessions.get_mut(&id)?;
        self.queues.wait(session);
        self.counters.preemptions_total.add(1);
        Some(id)
    }

    /// Records that the tokens of a row were computed. Proposed ones count once they are sampled.
    pub(super) fn account(&mut self, row: &PlannedRow) {
        let Some(again) = self.record_computed(row.session, row.tokens) else { return };
        let Some(session) = self.sessions.get(&row.session) else { return };
        let sampled_before = session.turn.as_ref().is_some_and(|turn| turn.sampled(session.sequence.len()) > 0);
        // The first sampled token of a turn follows a prefill; only later ones cost a decode row.
        let decoded = usize::from(row.samples && sampled_before);
        self.counters.prefill_tokens_total.add(row.tokens - decoded);
        self.counters.prefill_tokens_recomputed_total.add(again);
    }

    /// Records that `tokens` more tokens of a running session have KV, and charges its tenant for them. Returns how
    /// many of them had been computed before. `None` if the session is not running.
    fn record_computed(&mut self, id: u64, tokens: usize) -> Option<usize> {
        // Commands that concern a session of the pass in flight are held back. A session that has left the batch all
        // the same gets no tokens accounted.
        let running = |session: &&mut ScheduledSession| session.entry.state() == SessionState::Running;
        let session = self.sessions.get_mut(&id).filter(running)?;
        let before = session.sequence.registered();
        let again = session.sequence.advance(tokens, &mut self.pool);
        self.queues.fulfill(session, before);
        self.queues.charge(session, tokens);
        Some(again)
    }

    /// Takes the turn of a session out, so threads can draw its next tokens without borrowing the scheduler.
    pub(super) fn take_turn(&mut self, id: u64) -> Option<Box<RunningTurn>> {
        self.sessions.get_mut(&id)?.turn.take()
    }

    /// Puts the turn of a session back.
    pub(super) fn return_turn(&mut self, id: u64, turn: Box<RunningTurn>) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.turn = Some(turn);
        }
    }

    /// Returns the sequence and the turn of a session.
    pub(super) fn open_turn(&mut self, id: u64) -> Option<(&mut Sequence, &mut RunningTurn)> {
        let session = self.sessions.get_mut(&id)?;
        Some((&mut session.sequence, session.turn.as_mut()?))
    }

    pub(super) fn session(&self, id: u64) -> Option<&ScheduledSession> {
        self.sessions.get(&id)
    }

    pub(super) fn session_mut(&mut self, id: u64) -> Option<&mut ScheduledSession> {
        self.sessions.get_mut(&id)
    }

    /// Returns the number of open sessions that have begun a turn or are forks.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns `true` if a session is running or waiting.
    pub(super) fn is_busy(&self) -> bool {
        self.queues.running_len() > 0 || self.queues.waiting_len() > 0
    }

    pub(super) fn is_running(&self, id: u64) -> bool {
        self.sessions.get(&id).is_some_and(|session| session.entry.state() == SessionState::Running)
    }

    /// Returns a waiting session, if there is one.
    pub(super) fn any_waiting(&self) -> Option<u64> {
        self.queues.any_waiting()
    }

    pub(super) fn uses_adapter(&self, slot: AdapterSlot) -> bool {
        self.sessions.values().any(|session| session.adapter_slot() == Some(slot))
    }

    /// Makes all cached KV unreachable, because other weights, identified by `base`, replace those that computed it.
    /// No session may be open.
    pub(super) fn replace_base(&mut self, base: u64) {
        // Without sessions every known block is cached, so `clear` frees them all. The new base makes keys of the old
        // weights unreachable.
        self.pool.clear();
        self.base = base;
    }

    /// Lends a block that no session uses. Returns `None` if there is none.
    pub(super) fn with_spare_block<R>(&mut self, work: impl FnOnce(u32) -> R) -> Option<R> {
        let block = self.pool.take()?;
        let result = work(block);
        self.pool.release(block);
        Some(result)
    }

    /// Checks the sums of the block accounting and counts violations. Takes time in proportion to the number of
    /// sessions.
    pub(super) fn audit(&self) {
        let held = self.sessions.values().map(|session| session.sequence.blocks()).sum();
        if !self.pool.balanced(held) {
            self.counters.invariant_violations_total.add(1);
            let used = self.pool.used();
            let free = self.pool.free();
            tracing::error!(held, used, free, "the KV block accounting is inconsistent");
        }
    }

    /// Publishes the gauges of blocks and sessions, and counts the cached blocks overwritten since the last call.
    pub(super) fn publish(&mut self) {
        let counters = &self.counters;
        counters.cache_evictions_total.add(self.pool.drain_overwritten());
        counters.blocks_free.set(self.pool.free());
        counters.blocks_cached.set(self.pool.cached());
        counters.blocks_used.set(self.pool.used());
        let running = self.queues.running_len();
        let waiting = self.queues.waiting_len();
        let stalled = self.queues.stalled_len();
        counters.sessions_running.set(running);
        counters.sessions_waiting.set(waiting);
        counters.sessions_stalled.set(stalled);
        counters.sessions_parked.set(self.sessions.len() - running - waiting - stalled);
    }

    /// Returns the state of every session, oldest first, and of the pool. Takes time in proportion to the number of
    /// sessions.
    pub(super) fn snapshot(&self, now: Instant) -> (Vec<SessionSnapshot>, BlockSnapshot) {
        let mut sessions: Vec<_> = self.sessions.values().collect();
        // Hash map order would change between snapshots.
        sessions.sort_unstable_by_key(|session| session.entry.ticket());
        let pool = &self.pool;
        let blocks = BlockSnapshot { total: pool.total(), free: pool.free(), cached: pool.cached(), used: pool.used() };
        (sessions.into_iter().map(|session| session.snapshot(now)).collect(), blocks)
    }

    /// Forgets the measured costs of steps, so every token that lookup finds is proposed.
    #[cfg(test)]
    pub(super) fn forget_costs(&mut self) {
        self.costs = StepCosts::default();
    }

    /// Takes a block that no session accounts for, as an error in the accounting would.
    #[cfg(test)]
    pub(super) fn lose_block(&mut self) {
        self.pool.take();
    }

    /// Checks every invariant of blocks, queues and sequences. Takes time in proportion to the pool.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        self.pool.check(self.sessions.values().map(|session| session.sequence.table()))?;
        let runs = |session: &ScheduledSession| session.entry.state() == SessionState::Running;
        let unsound = |session: &&ScheduledSession| runs(session) && session.sequence.ends_in_shared_block(&self.pool);
        if let Some(session) = self.sessions.values().find(unsound) {
            return Err(format!("session {} writes to a shared block", session.id()));
        }
        self.queues.check(self.sessions.values())?;
        self.sessions.values().try_for_each(|session| session.sequence.check())
    }
}
