//! Property tests of the scheduler alone: its plans are executed on a paged memory of token ids, so a wrong block,
//! a stale block or a wrong position changes the text.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashSet;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use waymark_models::BLOCK;
use waymark_models::sampler::Sampled;

use super::{BlockCopy, PlannedRow, Scheduler};
use crate::backend::BackendSpec;
use crate::command::EngineCommand;
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::harness::{COIN, Harness, Machine, Operation, RANDOM, VOCAB, operations, submit};
use crate::mailbox::Room;
use crate::mock::Random;
use crate::mock::memory::MockMemory;
use crate::token::TurnFinish;

/// A scheduler whose plans are executed without a backend.
pub(super) struct SchedulerMachine {
    pub(super) scheduler: Scheduler,
    memory: MockMemory,
    /// Source of the sampled tokens.
    random: Random,
    rows: Vec<PlannedRow>,
    wakers: Vec<Waker>,
    /// Sessions whose next mask is late.
    late: HashSet<u64>,
    /// If `true`, waiting sessions are admitted in the middle of a step, as during the pass of a device.
    ahead: bool,
    /// Time of the steps so far, in a world in which a step takes [`EMPTY_STEP`] and the [`row_time`] of its rows.
    /// `None` measures no step.
    pub(super) clock: Option<Duration>,
    limit: usize,
}

/// Returns the time of a row of `tokens` tokens after `computed` others, beyond that of an empty step: as measured for
/// a small model on two cores.
pub(super) fn row_time(tokens: usize, computed: usize) -> Duration {
    Duration::from_nanos((550_000 * tokens + 300 * tokens * (computed + tokens / 2)) as u64)
}

/// Time of an empty step.
pub(super) const EMPTY_STEP: Duration = Duration::from_micros(3300);

/// Creates the clients of a scheduler with a pool of `blocks` blocks.
pub(super) fn harness(blocks: usize, config: &EngineConfig) -> Harness<SchedulerMachine> {
    let limit = blocks * BLOCK;
    let spec = BackendSpec { name: "memory".into(), vocab: VOCAB, blocks, context: limit, generation: 1 };
    let counters = Arc::new(Counters::default());
    let machine = SchedulerMachine {
        scheduler: Scheduler::new(&spec, config, counters.clone()),
        memory: MockMemory::new(limit),
        random: RANDOM,
        rows: Vec::new(),
        wakers: Vec::new(),
        late: HashSet::new(),
        ahead: false,
        clock: None,
        limit,
    };
    Harness::new(machine, counters, config, limit)
}

impl SchedulerMachine {
    /// Writes the KV of a row. Returns the sampled tokens, up to the first one that was not proposed.
    fn compute(&mut self, row: &PlannedRow) -> Vec<u32> {
        let session = self.scheduler.session(row.session).unwrap();
        let part = session.sequence().row(row.tokens, row.proposed);
        let proposed = session.proposal(row.proposed);
        let ids = [part.ids, proposed].concat();
        self.memory.write(part.table, part.start, &ids, session.adapter_slot()).unwrap();
        let forced = session.turn.as_ref().map_or(&[][..], |turn| turn.forced(session.sequence().len()));
        let mut context = Vec::new();
        let mut drawn = Vec::new();
        for position in 0..=row.proposed {
            let end = part.start + row.tokens + position;
            self.memory.read(part.table, end, session.adapter_slot(), &mut context).unwrap();
            if row.samples {
                let forced = forced.get(position).copied();
                drawn.push(forced.unwrap_or_else(|| self.random.next(None, &context)));
            }
            if proposed.get(position) != drawn.last() {
                break;
            }
        }
        drawn
    }

    fn deliver(&mut self, row: &PlannedRow, drawn: &[u32]) {
        let id = row.session;
        // A turn with masks has no proposed tokens.
        if row.proposed == 0 && self.late.remove(&id) {
            self.scheduler.settle(id, 0, 0);
            return self.scheduler.skip_late(id);
        }
        let mut finish: Option<TurnFinish> = None;
        let mut room = Room::Some;
        let mut accepted = 0;
        for (position, &token) in drawn.iter().enumerate() {
            if position > 0 {
                self.scheduler.confirm(id);
                accepted += 1;
            }
            let (sequence, turn) = self.scheduler.open_turn(id).unwrap();
            sequence.push(token);
            let sampled = Sampled { id: token, logprob: 0.0, top: Vec::new() };
            assert_eq!(room, Room::Some, "more tokens than the mailbox holds");
            (finish, room) = turn.deliver(sampled, &[], sequence.len(), self.limit, &mut self.wakers);
            turn.send(&mut self.wakers);
            if finish.is_some() {
                break;
            }
        }
        self.scheduler.settle(id, row.proposed, accepted);
        match (finish, room) {
            (Some(finish), _) => self.scheduler.finish(id, finish, &mut self.wakers),
            (None, Room::None) => self.scheduler.stall(id),
            (None, Room::Some) => {}
        }
    }
}

impl Machine for SchedulerMachine {
    fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    fn tell(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Generate(submission) => self.scheduler.submit(*submission, None),
            EngineCommand::Fork(fork) => self.scheduler.fork(&fork),
            EngineCommand::Resume(id) => self.scheduler.resume(id),
            EngineCommand::Stop(id) => self.scheduler.stop(id),
            EngineCommand::Close(id) => self.scheduler.close(id),
            other => panic!("not a command for the scheduler: {other:?}"),
        }
    }

    fn step(&mut self) {
        let mut rows = std::mem::take(&mut self.rows);
        self.scheduler.plan(Instant::now(), &mut rows);
        for BlockCopy { from, to, .. } in self.scheduler.take_copies() {
            self.memory.copy(from, to).unwrap();
        }
        let computed = |row: &PlannedRow| self.scheduler.session(row.session).unwrap().sequence().computed();
        let time = |row: &PlannedRow| row_time(row.tokens + row.proposed, computed(row));
        let time = EMPTY_STEP + rows.iter().map(time).sum::<Duration>();
        let drawn: Vec<_> = rows.iter().map(|row| self.compute(row)).collect();
        if self.ahead {
            self.scheduler.admit_ahead(Instant::now());
        }
        rows.iter().for_each(|row| self.scheduler.account(row));
        if let Some(clock) = &mut self.clock {
            *clock += time;
            self.scheduler.record_step(time);
        }
        for (row, drawn) in rows.iter().zip(drawn).filter(|(row, _)| row.samples) {
            self.deliver(row, &drawn);
        }
        self.rows = rows;
    }

    fn preempt(&mut self) {
        self.scheduler.preempt();
    }

    fn delay(&mut self, session: u64) {
        self.late.insert(session);
    }
}

fn play(blocks: usize, config: &EngineConfig, (ahead, timed): (bool, bool), operations: Vec<Operation>) {
    let mut harness = harness(blocks, config);
    if config.lookup_tokens > 0 {
        harness.machine.random = COIN;
        harness.random = COIN;
    }
    harness.machine.ahead = ahead;
    harness.machine.clock = timed.then_some(Duration::ZERO);
    harness.play(operations);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A pool so small that sequences constantly evict and preempt each other.
    #[test]
    fn blocks_add_up_under_pressure(mode: (bool, bool), operations in operations()) {
        let config = EngineConfig { max_batch_rows: 4, step_tokens: 24, max_undelivered: 8, ..EngineConfig::default() };
        play(8, &config, mode, operations);
    }

    /// A pool with room for the prefix cache and parked sessions.
    #[test]
    fn blocks_add_up_with_room(mode: (bool, bool), operations in operations()) {
        let config = EngineConfig { max_batch_rows: 8, step_tokens: 40, max_undelivered: 16, ..EngineConfig::default() };
        play(64, &config, mode, operations);
    }

    /// A small pool with proposed tokens, about half of which are accepted.
    #[test]
    fn blocks_add_up_with_proposals_under_pressure(mode: (bool, bool), operations in operations()) {
        let config = EngineConfig {
            max_batch_rows: 4,
            step_tokens: 24,
            max_undelivered: 8,
            lookup_tokens: 5,
            ..EngineConfig::default()
        };
        play(8, &config, mode, operations);
    }

    /// More proposed tokens than a block holds.
    #[test]
    fn blocks_add_up_with_long_proposals_and_room(mode: (bool, bool), operations in operations()) {
        let config = EngineConfig {
            max_batch_rows: 8,
            step_tokens: 40,
            max_undelivered: 24,
            lookup_tokens: 20,
            ..EngineConfig::default()
        };
        play(64, &config, mode, operations);
    }
}

#[test]
fn proposed_tokens_save_steps() {
    let config = EngineConfig { lookup_tokens: 4, ..EngineConfig::default() };
    let mut harness = harness(8, &config);
    // A text of one token, repeated.
    harness.random = Random { seed: 0, vocab: 1 };
    harness.machine.random = harness.random;
    harness.apply(submit(0, 5, 40));
    // The prompt, two steps until the last two tokens have occurred before, seven of five tokens, and the last two.
    harness.apply(Operation::Step { times: 10 });
    harness.read(0);
    assert!(harness.clients[0].tokens.len() == 5 + 38 && harness.clients[0].finish.is_none());
    harness.apply(Operation::Step { times: 1 });
    harness.read(0);
    assert_eq!((harness.clients[0].tokens.len(), harness.clients[0].finish), (5 + 40, Some(TurnFinish::Length)));
    let counters = &harness.counters;
    assert_eq!(counters.lookup_proposed_tokens_total.get(), 29, "the last step has room for one");
    assert_eq!(counters.lookup_accepted_tokens_total.get(), 29);
    assert_eq!(counters.prefill_tokens_total.get(), 5);
    harness.settle();
}
