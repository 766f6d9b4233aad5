//! Property tests of the synchronous core with a backend; those of the scheduler alone are in `scheduler`.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use proptest::prelude::*;
use tokio::sync::oneshot;
use waymark_models::tokenizer::Tokenizer;

use super::backend::Backend;
use super::command::{EngineCommand, Submission};
use super::config::EngineConfig;
use super::core::Core;
use super::counters::Counters;
use super::error::EngineError;
use super::harness::{COIN, Harness, Machine, Operation, SEED, VOCAB, operations, submit};
use super::health::StopFlag;
use super::mailbox::{Mail, mailbox};
use super::mock::MockBackend;
use super::request::{Generate, SessionOptions};
use super::scheduler::Scheduler;
use super::snapshot::SessionState;
use super::stage::TurnStage;
use super::step_loop::STEPS_PER_AUDIT;

/// The core over a mock backend, driven as the engine thread does.
struct CoreMachine {
    core: Core,
    /// If `true`, the backend is asynchronous, and a step stays in flight until the next operation that ends it.
    overlaps: bool,
    flying: bool,
    /// If `true`, costs of steps stay unknown, so all tokens that are found are proposed.
    unmeasured: bool,
    /// Commands held back until the step in flight ends.
    held: VecDeque<EngineCommand>,
}

impl Machine for CoreMachine {
    fn scheduler(&self) -> &Scheduler {
        self.core.scheduler()
    }

    fn tell(&mut self, command: EngineCommand) {
        if self.flying && (!self.held.is_empty() || self.core.concerns_flight(&command)) {
            self.held.push_back(command);
        } else {
            self.core.apply(command);
        }
    }

    fn step(&mut self) {
        self.land();
        if self.unmeasured {
            self.core.steps().scheduler.forget_costs();
        }
        self.flying = self.core.steps().begin();
        if !self.overlaps && std::mem::take(&mut self.flying) {
            self.core.steps().conclude();
        }
    }

    fn preempt(&mut self) {
        self.core.steps().scheduler.preempt();
    }

    fn land(&mut self) {
        if std::mem::take(&mut self.flying) {
            self.core.steps().prepare();
            self.core.steps().conclude();
            self.held.drain(..).for_each(|command| self.core.apply(command));
        }
    }
}

fn harness(backend: MockBackend, config: &EngineConfig) -> Harness<CoreMachine> {
    let overlaps = backend.overlaps();
    let limit = backend.spec().limit();
    let counters = Arc::new(Counters::default());
    let bytes = Tokenizer::bytes().table();
    let core = Core::new(Box::new(backend), config, bytes, counters.clone(), Arc::new(StopFlag::default()));
    let machine = CoreMachine { core, overlaps, flying: false, unmeasured: false, held: VecDeque::new() };
    Harness::new(machine, counters, config, limit)
}

fn mock(blocks: usize) -> MockBackend {
    MockBackend::random(SEED, VOCAB).with_blocks(blocks).with_context(blocks * 16)
}

fn under_pressure() -> EngineConfig {
    EngineConfig { max_batch_rows: 4, step_tokens: 24, max_undelivered: 8, ..EngineConfig::default() }
}

fn with_room() -> EngineConfig {
    EngineConfig { max_batch_rows: 8, step_tokens: 40, max_undelivered: 16, ..EngineConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A pool so small that sequences constantly evict and preempt each other.
    #[test]
    fn blocks_add_up_and_text_is_right_under_pressure(operations in operations()) {
        harness(mock(8), &under_pressure()).play(operations);
    }

    /// A pool with room for the prefix cache and parked sessions.
    #[test]
    fn blocks_add_up_and_text_is_right_with_room(operations in operations()) {
        harness(mock(64), &with_room()).play(operations);
    }

    /// A small pool and an asynchronous backend: sessions come, end and lose their blocks while a pass is in flight.
    #[test]
    fn blocks_add_up_and_text_is_right_beside_a_device_under_pressure(operations in operations()) {
        harness(mock(8).with_overlap(), &under_pressure()).play(operations);
    }

    #[test]
    fn blocks_add_up_and_text_is_right_beside_a_device_with_room(operations in operations()) {
        harness(mock(64).with_overlap(), &with_room()).play(operations);
    }

    /// Proposed tokens are verified, and about half of them rejected, by both kinds of backends.
    #[test]
    fn proposals_change_no_text(overlaps: bool, small: bool, operations in operations()) {
        let config = if small { under_pressure() } else { with_room() };
        let config = EngineConfig { lookup_tokens: 5, ..config };
        let blocks = if small { 8 } else { 64 };
        let backend = MockBackend::random(COIN.seed, COIN.vocab).with_blocks(blocks).with_context(blocks * 16);
        let mut harness = harness(if overlaps { backend.with_overlap() } else { backend }, &config);
        harness.random = COIN;
        harness.machine.unmeasured = true;
        harness.play(operations);
    }
}

#[test]
fn a_session_that_comes_while_a_device_works_is_in_the_next_step() {
    let backend = MockBackend::random(SEED, VOCAB).with_blocks(64).with_overlap();
    let mut harness = harness(backend, &EngineConfig::default());
    let states = |harness: &Harness<CoreMachine>| {
        let (sessions, _) = harness.machine.scheduler().snapshot(Instant::now());
        sessions.iter().map(|session| session.state).collect::<Vec<_>>()
    };
    harness.apply(submit(0, 20, 30));
    harness.apply(Operation::Step { times: 2 });
    harness.apply(submit(1, 20, 30));
    assert!(harness.machine.held.is_empty());
    assert_eq!(states(&harness), [SessionState::Running, SessionState::Waiting]);
    harness.apply(Operation::Close { session: 0 });
    assert_eq!(harness.machine.held.len(), 1, "it is in the step under way");
    harness.machine.land();
    assert_eq!(states(&harness), [SessionState::Running], "admitted ahead");
    harness.settle();
}

#[test]
fn the_tokens_of_a_step_do_not_wait_until_an_adapter_is_loaded() {
    let mut harness = harness(mock(64).with_overlap(), &EngineConfig::default());
    harness.apply(submit(0, 5, 10));
    harness.apply(Operation::Step { times: 1 });
    harness.machine.land();
    harness.read(0);
    assert_eq!(harness.clients[0].tokens.len(), 5, "the token was to be sent during the next step");
    let (reply, _answer) = oneshot::channel();
    harness.machine.tell(EngineCommand::LoadAdapter { dir: "missing".into(), reply });
    harness.read(0);
    assert_eq!(harness.clients[0].tokens.len(), 6);
    harness.settle();
}

#[test]
fn the_accounting_is_audited_before_the_engine_waits_and_every_so_many_steps() {
    let mut harness = harness(mock(64), &EngineConfig::default());
    harness.machine.core.steps().scheduler.lose_block();
    harness.machine.core.steps().prepare_idle();
    assert_eq!(harness.counters.invariant_violations_total.get(), 1);
    harness.apply(submit(0, 20, 30));
    harness.counters.steps_total.add(STEPS_PER_AUDIT as usize - 2);
    harness.apply(Operation::Step { times: 1 });
    assert_eq!(harness.counters.invariant_violations_total.get(), 1);
    harness.apply(Operation::Step { times: 1 });
    assert_eq!(harness.counters.invariant_violations_total.get(), 2);
}

#[test]
fn a_turn_that_builds_on_a_refused_one_is_refused() {
    let mut harness = harness(mock(4), &EngineConfig::default());
    let (outbox, inbox) = mailbox(8);
    let submission = Submission {
        session: 1,
        options: SessionOptions::default(),
        keep: 5,
        append: Vec::new(),
        generate: Generate::default(),
        outbox,
        submitted: Instant::now(),
        stage: TurnStage::queue(),
        permit: None,
    };
    harness.machine.tell(EngineCommand::Generate(Box::new(submission)));
    let mail = inbox.poll(&mut VecDeque::new(), &mut Context::from_waker(Waker::noop()));
    assert!(matches!(mail, Poll::Ready(Mail::End(Err(EngineError::Request(_))))));
    assert!(harness.machine.scheduler().len() == 0 && !harness.machine.scheduler().is_busy());
}
