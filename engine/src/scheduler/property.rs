//! Property tests of the scheduler alone: its plans are executed on a paged memory of token ids, so that a wrong block,
//! a stale block or a wrong position changes the text.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use waymark_models::BLOCK;
use waymark_models::sampler::Sampled;

use super::{PlannedRow, Scheduler};
use crate::backend::BackendSpec;
use crate::command::EngineCommand;
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::harness::{Harness, Machine, Operation, RANDOM, VOCAB, operations};
use crate::mailbox::Room;
use crate::mock::memory::MockMemory;

/// A scheduler whose plans are executed without a backend.
pub(super) struct SchedulerMachine {
    pub(super) scheduler: Scheduler,
    memory: MockMemory,
    rows: Vec<PlannedRow>,
    wakers: Vec<Waker>,
    /// If `true`, waiting sessions are admitted in the middle of a step, as during the pass of a device.
    ahead: bool,
    /// Time of the steps so far, in a world in which a step takes [`EMPTY_STEP`] and the [`row_time`] of its rows. `None`
    /// measures no step.
    pub(super) clock: Option<Duration>,
    limit: usize,
}

/// Returns the time of a row of `tokens` tokens after `computed` others, beyond that of an empty step: as measured for a
/// small model on two cores.
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
        rows: Vec::new(),
        wakers: Vec::new(),
        ahead: false,
        clock: None,
        limit,
    };
    Harness::new(machine, counters, config, limit)
}

impl SchedulerMachine {
    /// Writes the KV of a row. Returns the next token, if the row samples one.
    fn compute(&mut self, row: &PlannedRow) -> Option<u32> {
        let session = self.scheduler.session(row.session).unwrap();
        let part = session.sequence().row(row.tokens);
        self.memory.write(part.table, part.start, part.ids, session.adapter_slot()).unwrap();
        let mut context = Vec::new();
        self.memory.read(part.table, part.start + row.tokens, session.adapter_slot(), &mut context).unwrap();
        row.samples.then(|| RANDOM.next(None, &context))
    }

    fn deliver(&mut self, id: u64, token: u32) {
        let turn = self.scheduler.take_turn(id).unwrap();
        let (sequence, turn) = self.scheduler.return_turn(id, turn).unwrap();
        sequence.push(token);
        let sampled = Sampled { id: token, logprob: 0.0, top: Vec::new() };
        match turn.deliver(sampled, &[], sequence.len(), self.limit, &mut self.wakers) {
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
            EngineCommand::Resume(id) => self.scheduler.resume(id),
            EngineCommand::Stop(id) => self.scheduler.stop(id),
            EngineCommand::Close(id) => self.scheduler.close(id),
            other => panic!("not a command for the scheduler: {other:?}"),
        }
    }

    fn step(&mut self) {
        let mut rows = std::mem::take(&mut self.rows);
        self.scheduler.plan(Instant::now(), &mut rows);
        let computed = |row: &PlannedRow| self.scheduler.session(row.session).unwrap().sequence().computed();
        let time = EMPTY_STEP + rows.iter().map(|row| row_time(row.tokens, computed(row))).sum::<Duration>();
        let drawn: Vec<_> = rows.iter().map(|row| self.compute(row)).collect();
        if self.ahead {
            self.scheduler.admit_ahead(Instant::now());
        }
        rows.iter().for_each(|row| self.scheduler.account(row));
        if let Some(clock) = &mut self.clock {
            *clock += time;
            self.scheduler.record_step(time);
        }
        for (row, token) in rows.iter().zip(drawn) {
            if let Some(token) = token {
                self.deliver(row.session, token);
            }
        }
        self.rows = rows;
    }

    fn preempt(&mut self) {
        self.scheduler.preempt();
    }
}

fn play(blocks: usize, config: &EngineConfig, (ahead, timed): (bool, bool), operations: Vec<Operation>) {
    let mut harness = harness(blocks, config);
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
}
