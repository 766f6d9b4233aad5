//! Queues of the scheduler: every session in one of four phases, in the order of service.

use std::collections::BTreeMap;

use super::promises::PrefixPromises;
use super::scheduled_session::ScheduledSession;
use crate::prefix::PrefixKey;

/// Phase of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionPhase {
    /// Between turns.
    Parked,
    /// Waiting for a place in the batch.
    Waiting,
    /// In the batch.
    Running,
    /// In a turn, but out of the batch until its reader catches up.
    Stalled,
}

/// Position of a session in the [`Queues`], which alone change it.
#[derive(Debug)]
pub(super) struct QueueEntry {
    phase: SessionPhase,
    /// Position in the order of service. Assigned once, so that later turns of an old session come before new sessions.
    ticket: u64,
    /// Logical time of the last move into or out of a queue. The lowest stamp loses its blocks first.
    stamp: u64,
    /// Number of leading blocks that are promised to sessions waiting for the same prefix.
    promised: usize,
}

impl QueueEntry {
    pub(super) fn phase(&self) -> SessionPhase {
        self.phase
    }

    pub(super) fn ticket(&self) -> u64 {
        self.ticket
    }
}

/// Session numbers by phase.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Waiting sessions by ticket.
    waiting: BTreeMap<u64, u64>,
    /// Ticket and number of the running sessions, oldest first.
    running: Vec<(u64, u64)>,
    /// Sessions outside the batch by stamp, least recently used first. They may hold blocks.
    idle: BTreeMap<u64, u64>,
    stalled: usize,
    /// Blocks that the running sessions are about to compute.
    promises: PrefixPromises,
    clock: u64,
}

impl Queues {
    /// Creates the entry of a new session, parked and with the next ticket.
    pub(super) fn entry(&mut self) -> QueueEntry {
        // No tick is 0, so leaving the queues with this stamp takes no other session off the idle list.
        QueueEntry { phase: SessionPhase::Parked, ticket: self.tick(), stamp: 0, promised: 0 }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Removes a session from every queue.
    pub(super) fn leave(&mut self, session: &mut ScheduledSession) {
        match session.entry.phase {
            SessionPhase::Waiting => drop(self.waiting.remove(&session.entry.ticket)),
            SessionPhase::Running => {
                if let Ok(at) = self.running.binary_search(&(session.entry.ticket, session.id())) {
                    self.running.remove(at);
                }
                let promised = std::mem::take(&mut session.entry.promised);
                self.promises.withdraw(session.id(), session.sequence.keys(promised));
            }
            SessionPhase::Stalled => self.stalled -= 1,
            SessionPhase::Parked => {}
        }
        // Parked and waiting sessions are in the list, unless they are pinned or have lost their blocks.
        self.idle.remove(&session.entry.stamp);
        session.entry.phase = SessionPhase::Parked;
    }

    /// Moves a session out of the batch between two turns. It keeps its blocks until another session needs them.
    pub(super) fn park(&mut self, session: &mut ScheduledSession) {
        self.set_aside(session, SessionPhase::Parked);
    }

    /// Moves a session out of the batch until its reader catches up. It keeps its blocks until another session needs
    /// them.
    pub(super) fn stall(&mut self, session: &mut ScheduledSession) {
        self.set_aside(session, SessionPhase::Stalled);
        self.stalled += 1;
    }

    /// Puts a session into the waiting queue, at the position of its ticket.
    pub(super) fn wait(&mut self, session: &mut ScheduledSession) {
        self.set_aside(session, SessionPhase::Waiting);
        self.waiting.insert(session.entry.ticket, session.id());
    }

    fn set_aside(&mut self, session: &mut ScheduledSession, phase: SessionPhase) {
        self.leave(session);
        session.entry.phase = phase;
        // A fresh stamp: a session that has just worked loses its blocks last.
        session.entry.stamp = self.tick();
        self.idle.insert(session.entry.stamp, session.id());
    }

    /// Moves a session into the batch, and promises the blocks that it is about to fill.
    pub(super) fn run(&mut self, session: &mut ScheduledSession) {
        self.leave(session);
        session.entry.phase = SessionPhase::Running;
        let place = (session.entry.ticket, session.id());
        // Sorted by ticket, so that preemption finds the youngest session at the end.
        let at = self.running.partition_point(|other| *other < place);
        self.running.insert(at, place);
        let number = session.id();
        let (registered, keys) = session.sequence.keys_of_full_blocks();
        session.entry.promised = keys.len();
        // Registered blocks are in the cache already, where other sessions find them.
        self.promises.promise(number, &keys[registered..]);
    }

    /// Withdraws the promise of blocks that have been computed: those registered since there were `before` of them.
    pub(super) fn fulfill(&mut self, session: &mut ScheduledSession, before: usize) {
        let fulfilled = session.sequence.registered().min(session.entry.promised);
        if fulfilled > before {
            let number = session.id();
            self.promises.withdraw(number, &session.sequence.keys(fulfilled)[before..]);
        }
    }

    /// Returns `true` if a running session is about to compute the block with this key.
    pub(super) fn is_promised(&self, key: &PrefixKey) -> bool {
        self.promises.contains(key)
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
        self.running.get(index).map(|(_, id)| *id)
    }

    pub(super) fn youngest_running(&self) -> Option<u64> {
        self.running.last().map(|(_, id)| *id)
    }

    /// Returns ticket and number of the first waiting session whose ticket is at least `ticket`.
    pub(super) fn waiting_from(&self, ticket: u64) -> Option<(u64, u64)> {
        self.waiting.range(ticket..).next().map(|(ticket, id)| (*ticket, *id))
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
        for session in sessions {
            let QueueEntry { phase, ticket, stamp, .. } = session.entry;
            let id = session.id();
            let idle = self.idle.get(&stamp) == Some(&id);
            let sound = match phase {
                SessionPhase::Running => {
                    counts[0] += 1;
                    self.running.contains(&(ticket, id)) && !idle && session.turn.is_some()
                }
                SessionPhase::Waiting => {
                    counts[1] += 1;
                    self.waiting.get(&ticket) == Some(&id) && session.turn.is_some()
                }
                SessionPhase::Stalled => {
                    counts[2] += 1;
                    session.turn.is_some()
                }
                SessionPhase::Parked => session.turn.is_none(),
            };
            if !sound {
                return Err(format!("session {id} is {phase:?} and its queues say otherwise: {self:?}"));
            }
            if !idle && phase != SessionPhase::Running && session.sequence.blocks() > 0 {
                return Err(format!("session {id} is {phase:?} with blocks that can never be evicted"));
            }
        }
        let lengths = [self.running.len(), self.waiting.len(), self.stalled];
        if counts != lengths || !self.running.is_sorted() {
            return Err(format!("{counts:?} sessions run, wait and stall; the queues hold {lengths:?}"));
        }
        if self.running.is_empty() && !self.promises.is_empty() {
            return Err(format!("blocks are promised by nobody: {:?}", self.promises));
        }
        Ok(())
    }
}
