//! Queues of the scheduler. Every session is in one of four states.

use std::collections::BTreeMap;

use super::promises::PrefixPromises;
use super::scheduled_session::ScheduledSession;
use super::tenants::{TenantSlot, Tenants};
use crate::prefix::PrefixKey;
use crate::request::Priority;
use crate::snapshot::SessionState;

/// Number of returning sessions admitted in a row after which a newcomer goes first, so sessions that return for
/// ever do not keep newcomers out. Several times the number of turns of the longest protocol: with a newcomer after
/// fewer returns than a session has, more sessions would begin under overload than end.
const RETURNS_IN_A_ROW: u32 = 64;

/// Position of a session in the [`Queues`]. Only the queues change it.
#[derive(Debug)]
pub(super) struct QueueEntry {
    state: SessionState,
    tenant: TenantSlot,
    priority: Priority,
    /// Age of the session: a number that grows from session to session. The youngest running session is preempted
    /// first.
    ticket: u64,
    /// Logical time at which the session was last parked, stalled or queued. The lowest stamp loses its blocks first.
    stamp: u64,
    /// Number of leading blocks that are promised to sessions waiting for the same prefix.
    promised: usize,
    /// If `true`, the session has been in the batch before.
    returning: bool,
}

impl QueueEntry {
    pub(super) fn state(&self) -> SessionState {
        self.state
    }

    pub(super) fn ticket(&self) -> u64 {
        self.ticket
    }

    pub(super) fn tenant(&self) -> TenantSlot {
        self.tenant
    }

    pub(super) fn priority(&self) -> Priority {
        self.priority
    }
}

/// A session in the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BatchPlace {
    ticket: u64,
    session: u64,
    tenant: TenantSlot,
    /// Weight of the place: the charge of the session's priority.
    charge: u64,
}

/// Position in the waiting queue: by tenant, then by priority, then by age.
type WaitingKey = (TenantSlot, u64, u64);

/// A session in the waiting queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WaitingSession {
    session: u64,
    /// If `true`, the session has been in the batch before.
    returning: bool,
}

/// The next waiting session of a tenant that may be admitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) session: u64,
    pub(super) tenant: TenantSlot,
    /// Charge of the session's priority.
    charge: u64,
    ticket: u64,
    /// If `true`, the session has been in the batch before.
    returning: bool,
}

/// Session numbers by state.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) tenants: Tenants,
    waiting: BTreeMap<WaitingKey, WaitingSession>,
    /// The running sessions, oldest first.
    running: Vec<BatchPlace>,
    /// Next candidate of each tenant in the current round of admissions.
    candidates: Vec<Candidate>,
    /// Sessions outside the batch by stamp, least recently used first. They may hold blocks.
    idle: BTreeMap<u64, u64>,
    stalled: usize,
    /// Blocks that the running sessions are about to compute.
    promises: PrefixPromises,
    clock: u64,
    /// Number of returning sessions admitted since the last newcomer.
    returned: u32,
    /// If `true`, the next candidate is a newcomer, if one waits.
    is_newcomer_due: bool,
}

impl Queues {
    /// Creates the entry of a new session of a tenant, parked and with the next ticket.
    pub(super) fn entry(&mut self, tenant: u64, priority: Priority) -> QueueEntry {
        // No tick is 0, so leaving the queues with this stamp takes no other session off the idle list.
        QueueEntry {
            state: SessionState::Parked,
            tenant: self.tenants.join(tenant),
            priority,
            ticket: self.tick(),
            stamp: 0,
            promised: 0,
            returning: false,
        }
    }

    /// Removes a session for good.
    pub(super) fn remove(&mut self, session: &mut ScheduledSession) {
        self.leave(session);
        self.tenants.leave(session.entry.tenant);
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Removes a session from every queue.
    pub(super) fn leave(&mut self, session: &mut ScheduledSession) {
        match session.entry.state {
            SessionState::Waiting => {
                self.waiting.remove(&waiting_key(session));
                self.tenants.remove_waiting(session.entry.tenant);
            }
            SessionState::Running => {
                if let Ok(at) = self.running.binary_search(&place(session)) {
                    self.running.remove(at);
                }
                self.tenants.remove_running(session.entry.tenant, session.entry.priority);
                let promised = std::mem::take(&mut session.entry.promised);
                self.promises.withdraw(session.id(), session.sequence.keys(promised));
            }
            SessionState::Stalled => self.stalled -= 1,
            SessionState::Parked => {}
        }
        // Sessions outside the batch are in the list, unless they are pinned or have lost their blocks.
        self.idle.remove(&session.entry.stamp);
        session.entry.state = SessionState::Parked;
    }

    /// Moves a session out of the batch between two turns. It keeps its blocks until another session needs them.
    pub(super) fn park(&mut self, session: &mut ScheduledSession) {
        self.set_aside(session, SessionState::Parked);
    }

    /// Moves a session out of the batch until its reader catches up. It keeps its blocks until another session needs
    /// them.
    pub(super) fn stall(&mut self, session: &mut ScheduledSession) {
        self.set_aside(session, SessionState::Stalled);
        self.stalled += 1;
    }

    /// Puts a session into the waiting queue of its tenant, at the position of its priority and ticket.
    pub(super) fn wait(&mut self, session: &mut ScheduledSession) {
        self.set_aside(session, SessionState::Waiting);
        let waiting = WaitingSession { session: session.id(), returning: session.entry.returning };
        self.waiting.insert(waiting_key(session), waiting);
        self.tenants.add_waiting(session.entry.tenant);
    }

    fn set_aside(&mut self, session: &mut ScheduledSession, state: SessionState) {
        self.leave(session);
        session.entry.state = state;
        // A fresh stamp: a session that has just worked loses its blocks last.
        session.entry.stamp = self.tick();
        self.idle.insert(session.entry.stamp, session.id());
    }

    /// Moves a session into the batch, and promises the blocks that it is about to fill.
    pub(super) fn run(&mut self, session: &mut ScheduledSession) {
        self.leave(session);
        session.entry.state = SessionState::Running;
        self.returned = if session.entry.returning { self.returned.saturating_add(1) } else { 0 };
        session.entry.returning = true;
        let place = place(session);
        // Sorted by ticket, so preemption finds the youngest session at the end.
        let at = self.running.partition_point(|other| *other < place);
        self.running.insert(at, place);
        self.tenants.add_running(session.entry.tenant, session.entry.priority);
        let number = session.id();
        let (registered, keys) = session.sequence.keys_of_full_blocks();
        session.entry.promised = keys.len();
        // Registered blocks are in the cache already, where other sessions find them.
        self.promises.promise(number, &keys[registered..]);
    }

    /// Withdraws the promises of blocks that have been computed. `before` is the number of blocks registered before
    /// that.
    pub(super) fn fulfill(&mut self, session: &mut ScheduledSession, before: usize) {
        let fulfilled = session.sequence.registered().min(session.entry.promised);
        if fulfilled > before {
            let number = session.id();
            self.promises.withdraw(number, &session.sequence.keys(fulfilled)[before..]);
        }
    }

    /// Returns the running session that is about to compute the block with this key.
    pub(super) fn promised_by(&self, key: &PrefixKey) -> Option<u64> {
        self.promises.owner(key)
    }

    /// Protects the blocks of an idle session from eviction until [`unpin`](Self::unpin) or the next move.
    pub(super) fn pin(&mut self, session: &ScheduledSession) {
        self.idle.remove(&session.entry.stamp);
    }

    pub(super) fn unpin(&mut self, session: &ScheduledSession) {
        self.idle.insert(session.entry.stamp, session.id());
    }

    /// Removes the least recently used session from the list of those that may lose their blocks.
    pub(super) fn pop_idle(&mut self) -> Option<u64> {
        self.idle.pop_first().map(|(_, id)| id)
    }

    /// Returns the running session at this position, oldest first.
    pub(super) fn running(&self, index: usize) -> Option<u64> {
        self.running.get(index).map(|place| place.session)
    }

    pub(super) fn youngest_running(&self) -> Option<u64> {
        self.running.last().map(|place| place.session)
    }

    /// Returns the session that gives its place in a full batch to a waiting one, if a place is due. The session
    /// belongs to the tenant whose places weigh most, if a tenant with a waiting session would weigh less even with
    /// the place. Otherwise, it belongs to a tenant with a waiting session of a higher priority. In both cases, it is
    /// the tenant's youngest session of the lowest priority.
    pub(super) fn overserved(&self) -> Option<u64> {
        let first = |tenant| first_waiting(&self.waiting, tenant, (0, 0));
        let candidates = || self.tenants.waiting().filter_map(first);
        let least = candidates().map(|candidate| self.tenants.load(candidate.tenant) + candidate.charge).min()?;
        let most = self.tenants.most_loaded()?;
        // The heavier of the two tenants gets lighter with every exchange, so they do not take the place from each
        // other forever.
        if least < self.tenants.load(most) {
            return self.last_place(most).map(|place| place.session);
        }
        let lower =
            |candidate: Candidate| self.last_place(candidate.tenant).filter(|place| place.charge > candidate.charge);
        candidates().find_map(lower).map(|place| place.session)
    }

    /// Returns the place of a tenant's youngest running session of the lowest priority.
    fn last_place(&self, tenant: TenantSlot) -> Option<&BatchPlace> {
        let own = self.running.iter().filter(|place| place.tenant == tenant);
        own.max_by_key(|place| (place.charge, place.ticket))
    }

    /// Charges the tenant of a session for computed tokens.
    pub(super) fn charge(&mut self, session: &ScheduledSession, tokens: usize) {
        self.tenants.charge(session.entry.tenant, tokens, session.entry.priority);
    }

    /// Begins a round of admissions, in which every waiting session is a candidate once. A newcomer that goes first and
    /// is not admitted may be one again at its place in the queue of its tenant.
    pub(super) fn begin_admissions(&mut self) {
        self.candidates.clear();
        self.is_newcomer_due = self.returned >= RETURNS_IN_A_ROW;
        let Self { candidates, tenants, waiting, .. } = self;
        candidates.extend(tenants.waiting().filter_map(|tenant| first_waiting(waiting, tenant, (0, 0))));
    }

    /// Returns the next candidate, the oldest session of the highest priority of its tenant. Tenants are ordered by
    /// the weight of their places including the candidate's, then by whether the candidate has been in the batch
    /// before, then by service, then by the candidate's age. Those that have been in the batch go first, except that a
    /// round begins with a newcomer after [`RETURNS_IN_A_ROW`] of them, wherever it stands in the queue of its tenant.
    pub(super) fn next_candidate(&mut self) -> Option<Candidate> {
        let is_newcomer_due = std::mem::take(&mut self.is_newcomer_due);
        let newcomer = if is_newcomer_due { self.first_newcomer() } else { None };
        let next = newcomer.or_else(|| self.candidates.iter().copied().min_by_key(|next| self.rank(next)))?;
        self.move_on(next);
        Some(next)
    }

    fn rank(&self, candidate: &Candidate) -> (u64, bool, u64, u64) {
        let load = self.tenants.load(candidate.tenant) + candidate.charge;
        // New tenants start at the virtual time, which stands still while an unserved one waits. By service alone, a
        // session that returns from a search would stay behind all newcomers for as long as more of them come.
        (load, !candidate.returning, self.tenants.service(candidate.tenant), candidate.ticket)
    }

    /// Returns the waiting session that goes first among those that have not been in the batch.
    fn first_newcomer(&self) -> Option<Candidate> {
        let newcomers = self.waiting.iter().map(candidate).filter(|waiting| !waiting.returning);
        newcomers.min_by_key(|newcomer| self.rank(newcomer))
    }

    /// Moves a tenant whose candidate is `passed` on to its next one.
    fn move_on(&mut self, passed: Candidate) {
        let Self { candidates, waiting, .. } = self;
        let Some(at) = candidates.iter().position(|other| other.session == passed.session) else { return };
        match first_waiting(waiting, passed.tenant, (passed.charge, passed.ticket + 1)) {
            Some(next) => candidates[at] = next,
            None => drop(candidates.swap_remove(at)),
        }
    }

    /// Moves the candidate of a tenant, or of every tenant for `None`, on to the tenant's next session for which
    /// `is_short` returns `true`. A tenant without such a session has no candidate any more.
    pub(super) fn skip_long(&mut self, tenant: Option<TenantSlot>, is_short: impl Fn(u64) -> bool) {
        let Self { candidates, waiting, .. } = self;
        candidates.retain_mut(|candidate| {
            if tenant.is_some_and(|tenant| tenant != candidate.tenant) {
                return true;
            }
            let from = (candidate.charge, candidate.ticket);
            let short = waiting_from(waiting, candidate.tenant, from).find(|next| is_short(next.session));
            *candidate = short.unwrap_or(*candidate);
            short.is_some()
        });
    }

    /// Returns any waiting session.
    pub(super) fn any_waiting(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(_, waiting)| waiting.session)
    }

    pub(super) fn running_len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn stalled_len(&self) -> usize {
        self.stalled
    }

    /// Checks that the queues and the entries of all sessions agree.
    #[cfg(test)]
    pub(super) fn check<'a>(&self, sessions: impl Iterator<Item = &'a ScheduledSession>) -> Result<(), String> {
        let mut counts = [0; 3];
        let mut open = 0;
        let mut load = 0;
        for session in sessions {
            open += 1;
            let QueueEntry { state, stamp, priority, .. } = session.entry;
            let id = session.id();
            let idle = self.idle.get(&stamp) == Some(&id);
            let sound = match state {
                SessionState::Running => {
                    counts[0] += 1;
                    load += priority.charge();
                    self.running.contains(&place(session)) && !idle && session.turn.is_some()
                }
                SessionState::Waiting => {
                    counts[1] += 1;
                    let waiting = WaitingSession { session: id, returning: session.entry.returning };
                    self.waiting.get(&waiting_key(session)) == Some(&waiting) && session.turn.is_some()
                }
                SessionState::Stalled => {
                    counts[2] += 1;
                    session.turn.is_some()
                }
                SessionState::Parked => session.turn.is_none(),
            };
            if !sound {
                return Err(format!("session {id} is {state:?} and its queues say otherwise: {self:?}"));
            }
            if !idle && state != SessionState::Running && session.sequence.blocks() > 0 {
                return Err(format!("session {id} is {state:?} with blocks that can never be evicted"));
            }
        }
        let lengths = [self.running.len(), self.waiting.len(), self.stalled];
        if counts != lengths || !self.running.is_sorted() {
            return Err(format!("{counts:?} sessions run, wait and stall; the queues hold {lengths:?}"));
        }
        let sums = self.tenants.sums();
        if sums != (open, counts[1], load) {
            return Err(format!("{open} sessions are open, {counts:?} run and wait; the tenants have {sums:?}"));
        }
        if self.running.is_empty() && !self.promises.is_empty() {
            return Err(format!("blocks are promised by nobody: {:?}", self.promises));
        }
        Ok(())
    }
}

fn place(session: &ScheduledSession) -> BatchPlace {
    let QueueEntry { ticket, tenant, priority, .. } = session.entry;
    BatchPlace { ticket, session: session.id(), tenant, charge: priority.charge() }
}

fn waiting_key(session: &ScheduledSession) -> WaitingKey {
    let QueueEntry { ticket, tenant, priority, .. } = session.entry;
    (tenant, priority.charge(), ticket)
}

/// Returns the first waiting session of a tenant from this charge and ticket on.
fn first_waiting(
    waiting: &BTreeMap<WaitingKey, WaitingSession>,
    tenant: TenantSlot,
    from: (u64, u64),
) -> Option<Candidate> {
    waiting_from(waiting, tenant, from).next()
}

/// Returns the waiting sessions of a tenant from this charge and ticket on.
fn waiting_from(
    waiting: &BTreeMap<WaitingKey, WaitingSession>,
    tenant: TenantSlot,
    from: (u64, u64),
) -> impl Iterator<Item = Candidate> {
    let range = (tenant, from.0, from.1)..=(tenant, u64::MAX, u64::MAX);
    waiting.range(range).map(candidate)
}

fn candidate((&(tenant, charge, ticket), waiting): (&WaitingKey, &WaitingSession)) -> Candidate {
    let WaitingSession { session, returning } = *waiting;
    Candidate { session, tenant, charge, ticket, returning }
}
