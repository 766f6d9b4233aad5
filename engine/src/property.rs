//! Property tests of the synchronous core: random operations, the block invariant after each of them, and the right
//! text at the end.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use proptest::prelude::*;
use waymark_models::sampler::SamplingParams;
use waymark_models::tokenizer::Tokenizer;

use super::backend::Backend;
use super::command::{EngineCommand, Submission};
use super::config::EngineConfig;
use super::core::Core;
use super::counters::Counters;
use super::error::EngineError;
use super::health::StopFlag;
use super::mailbox::{Inbox, Mail, mailbox};
use super::mock::{MockBackend, Random};
use super::request::{Generate, SessionOptions};
use super::sequence::SessionPhase;
use super::stage::TurnStage;
use super::token::TurnFinish;

const VOCAB: usize = 259;
const SEED: u64 = 7;

/// An operation on the core. Sessions are indexes into the open ones.
#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Opens a session with a prompt of one of three families, whose members share prefixes. The salt stands for the
    /// tenant.
    Submit {
        salt: u64,
        family: u32,
        tokens: usize,
        max_tokens: usize,
    },
    Step {
        times: usize,
    },
    /// Appends tokens to a session between turns and begins another turn.
    Extend {
        session: usize,
        tokens: usize,
        max_tokens: usize,
    },
    /// Reads the available steps, so that a stalled session resumes.
    Read {
        session: usize,
    },
    /// Drops the turn.
    Stop {
        session: usize,
    },
    /// Drops the session.
    Close {
        session: usize,
    },
    Preempt,
}

fn operation() -> impl Strategy<Value = Operation> {
    let session = 0usize..8;
    prop_oneof![
        4 => (0u64..2, 0u32..3, 1usize..60, 1usize..40)
            .prop_map(|(salt, family, tokens, max_tokens)| Operation::Submit { salt, family, tokens, max_tokens }),
        8 => (1usize..8).prop_map(|times| Operation::Step { times }),
        4 => (session.clone(), 0usize..30, 1usize..30).prop_map(|(session, tokens, max_tokens)| Operation::Extend { session, tokens, max_tokens }),
        4 => session.clone().prop_map(|session| Operation::Read { session }),
        1 => session.clone().prop_map(|session| Operation::Stop { session }),
        2 => session.prop_map(|session| Operation::Close { session }),
        1 => Just(Operation::Preempt),
    ]
}

/// A session and its reader.
struct Client {
    id: u64,
    salt: u64,
    tokens: Vec<u32>,
    /// Positions of the sampled tokens.
    sampled: Vec<usize>,
    known: usize,
    inbox: Option<Inbox>,
    finish: Option<TurnFinish>,
}

impl Client {
    /// Reads the available steps. Returns `true` if the engine has to be resumed.
    fn read(&mut self) -> bool {
        let Some(inbox) = &self.inbox else { return false };
        let mut resumed = false;
        let mut buffer = VecDeque::new();
        loop {
            match inbox.poll(&mut buffer, &mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return resumed,
                Poll::Ready(Mail::Steps { resume }) => resumed |= resume,
                Poll::Ready(Mail::End(end)) => {
                    self.finish = Some(end.expect("no turn fails here"));
                    self.inbox = None;
                    return resumed;
                }
            }
            for step in buffer.drain(..) {
                self.sampled.push(self.tokens.len());
                self.tokens.push(step.id);
                self.known += 1;
            }
        }
    }
}

struct Harness {
    core: Core,
    clients: Vec<Client>,
    sessions: u64,
    /// If `true`, the backend is asynchronous, and a step stays in flight until the next operation that ends it.
    beside: bool,
    flying: bool,
    /// Commands held back until the step in flight ends.
    held: VecDeque<EngineCommand>,
}

impl Harness {
    fn new(blocks: usize, config: EngineConfig) -> Self {
        let backend = MockBackend::random(SEED, VOCAB).with_blocks(blocks).with_context(blocks * 16);
        Self::over(backend, config)
    }

    fn over(backend: MockBackend, config: EngineConfig) -> Self {
        let beside = backend.overlaps();
        let bytes = Tokenizer::bytes().table();
        let core =
            Core::new(Box::new(backend), config, bytes, Arc::new(Counters::new()), Arc::new(StopFlag::default()));
        Self { core, clients: Vec::new(), sessions: 0, beside, flying: false, held: VecDeque::new() }
    }

    /// Applies a command as the engine thread does: at once, or after the step in flight if the command concerns it.
    fn tell(&mut self, command: EngineCommand) {
        if self.flying && (!self.held.is_empty() || self.core.concerns_flight(&command)) {
            self.held.push_back(command);
        } else {
            self.core.apply(command);
        }
    }

    /// Ends the step in flight, if any.
    fn land(&mut self) {
        if std::mem::take(&mut self.flying) {
            self.core.prepare();
            self.core.conclude();
            self.held.drain(..).for_each(|command| self.core.apply(command));
        }
    }

    fn step(&mut self) {
        self.land();
        if !self.beside {
            return self.core.step();
        }
        self.flying = self.core.begin();
    }

    fn generate(&mut self, index: usize, max_tokens: usize) {
        let client = &mut self.clients[index];
        if client.tokens.len() >= self.core.limit {
            return;
        }
        let (outbox, inbox) = mailbox(self.core.config.max_undelivered);
        let submission = Submission {
            session: client.id,
            options: SessionOptions { salt: client.salt, ..SessionOptions::default() },
            keep: client.known,
            append: client.tokens[client.known..].to_vec(),
            generate: Generate { sampling: SamplingParams::greedy(), max_tokens, ..Generate::default() },
            outbox,
            submitted: Instant::now(),
            stage: TurnStage::queue(),
            permit: None,
        };
        client.known = client.tokens.len();
        client.inbox = Some(inbox);
        self.tell(EngineCommand::Generate(Box::new(submission)));
    }

    fn read(&mut self, index: usize) {
        if self.clients[index].read() {
            self.tell(EngineCommand::Resume(self.clients[index].id));
        }
    }

    fn apply(&mut self, operation: Operation) {
        let open = self.clients.len();
        match operation {
            Operation::Submit { salt, family, tokens, max_tokens } => {
                let tokens = (0..tokens as u32).map(|position| 40 + family + position % 5).collect();
                self.sessions += 1;
                let id = self.sessions;
                self.clients.push(Client {
                    id,
                    salt,
                    tokens,
                    sampled: Vec::new(),
                    known: 0,
                    inbox: None,
                    finish: None,
                });
                self.generate(open, max_tokens);
            }
            Operation::Step { times } => (0..times).for_each(|_| self.step()),
            Operation::Extend { session, tokens, max_tokens } if session < open => {
                self.read(session);
                if self.clients[session].inbox.is_none() {
                    let ids = (0..tokens as u32).map(|position| 60 + position % 3);
                    self.clients[session].tokens.extend(ids);
                    self.generate(session, max_tokens);
                }
            }
            Operation::Read { session } if session < open => self.read(session),
            Operation::Stop { session } if session < open => {
                self.clients[session].inbox = None;
                self.tell(EngineCommand::Stop(self.clients[session].id));
            }
            Operation::Close { session } if session < open => {
                let client = self.clients.remove(session);
                self.check_text(&client);
                self.tell(EngineCommand::Close(client.id));
            }
            Operation::Preempt => {
                self.land();
                self.core.preempt();
            }
            _ => {}
        }
    }

    fn check(&self) {
        let core = &self.core;
        core.pool.check(core.sequences.values().map(|sequence| sequence.table.as_slice())).unwrap();
        let mut running = 0;
        let mut waiting = 0;
        let mut stalled = 0;
        for sequence in core.sequences.values() {
            let idle = core.queues.idle.get(&sequence.stamp) == Some(&sequence.id);
            match sequence.phase {
                SessionPhase::Running => {
                    assert!(core.queues.running.contains(&(sequence.ticket, sequence.id)) && !idle);
                    assert!(sequence.turn.is_some());
                    running += 1;
                }
                SessionPhase::Waiting => {
                    assert_eq!(core.queues.waiting.get(&sequence.ticket), Some(&sequence.id));
                    waiting += 1;
                }
                SessionPhase::Stalled => stalled += 1,
                SessionPhase::Parked => assert!(sequence.turn.is_none()),
            }
            assert!(idle || sequence.phase == SessionPhase::Running || sequence.table.is_empty());
            assert!(sequence.computed <= sequence.table.len() * 16 && sequence.computed <= sequence.ids.len());
            assert!(sequence.registered * 16 <= sequence.computed);
            assert!(sequence.pending() > 0, "there must always be something to compute");
        }
        let mut tenants = HashMap::new();
        for client in &self.clients {
            for block in core.sequences.get(&client.id).into_iter().flat_map(|sequence| &sequence.table) {
                assert_eq!(*tenants.entry(block).or_insert(client.salt), client.salt, "two tenants share a block");
            }
        }
        assert_eq!(running, core.queues.running.len());
        assert_eq!(waiting, core.queues.waiting.len());
        assert_eq!(stalled, core.queues.stalled);
        assert!(core.queues.running.is_sorted());
        assert!(running > 0 || core.queues.promised.is_empty());
        assert_eq!(core.counters.invariant_violations_total.get(), 0);
        assert_eq!(core.counters.step_failures_total.get(), 0);
    }

    /// Checks that every sampled token follows from the whole context before it.
    fn check_text(&self, client: &Client) {
        let random = Random { seed: SEED, vocab: VOCAB };
        for &position in &client.sampled {
            assert_eq!(client.tokens[position], random.next(None, &client.tokens[..position]), "at {position}");
        }
    }

    /// Runs every turn to its end and closes all sessions.
    fn settle(&mut self) {
        for _ in 0..20_000 {
            (0..self.clients.len()).for_each(|index| self.read(index));
            if !self.core.busy() && !self.flying {
                break;
            }
            self.step();
            self.check();
        }
        self.land();
        assert!(!self.core.busy(), "something never ends");
        assert!(self.clients.iter().all(|client| client.inbox.is_none()), "a reader waits for ever");
        while !self.clients.is_empty() {
            self.apply(Operation::Close { session: 0 });
            self.check();
        }
        assert_eq!(self.core.pool.available(), self.core.pool.total());
        assert!(self.core.sequences.is_empty() && self.core.queues.promised.is_empty());
    }
}

fn play(blocks: usize, config: EngineConfig, operations: Vec<Operation>) {
    play_on(Harness::new(blocks, config), operations);
}

/// The same as [`play`] on an asynchronous backend: every operation happens while a step is in flight.
fn play_beside(blocks: usize, config: EngineConfig, operations: Vec<Operation>) {
    let backend = MockBackend::random(SEED, VOCAB).with_blocks(blocks).with_context(blocks * 16).with_overlap();
    play_on(Harness::over(backend, config), operations);
}

fn play_on(mut house: Harness, operations: Vec<Operation>) {
    for operation in operations {
        house.apply(operation);
        house.check();
    }
    house.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A pool so small that sequences constantly evict and preempt each other.
    #[test]
    fn blocks_add_up_and_text_is_right_under_pressure(operations in prop::collection::vec(operation(), 1..80)) {
        let config = EngineConfig { max_batch_rows: 4, step_tokens: 24, max_undelivered: 8, ..EngineConfig::default() };
        play(8, config, operations);
    }

    /// A pool with room for the prefix cache and parked sessions.
    #[test]
    fn blocks_add_up_and_text_is_right_with_room(operations in prop::collection::vec(operation(), 1..80)) {
        let config = EngineConfig { max_batch_rows: 8, step_tokens: 40, max_undelivered: 16, ..EngineConfig::default() };
        play(64, config, operations);
    }

    /// A small pool and an asynchronous backend: sessions come, end and lose their blocks while a pass is in flight.
    #[test]
    fn blocks_add_up_and_text_is_right_beside_a_device_under_pressure(
        operations in prop::collection::vec(operation(), 1..80),
    ) {
        let config = EngineConfig { max_batch_rows: 4, step_tokens: 24, max_undelivered: 8, ..EngineConfig::default() };
        play_beside(8, config, operations);
    }

    #[test]
    fn blocks_add_up_and_text_is_right_beside_a_device_with_room(
        operations in prop::collection::vec(operation(), 1..80),
    ) {
        let config = EngineConfig { max_batch_rows: 8, step_tokens: 40, max_undelivered: 16, ..EngineConfig::default() };
        play_beside(64, config, operations);
    }
}

#[test]
fn a_session_that_comes_while_a_device_works_is_in_the_next_step() {
    let backend = MockBackend::random(SEED, VOCAB).with_blocks(64).with_overlap();
    let mut house = Harness::over(backend, EngineConfig::default());
    house.apply(submit(0, 20, 30));
    house.apply(Operation::Step { times: 2 });
    house.apply(submit(1, 20, 30));
    assert!(house.held.is_empty() && house.core.queues.waiting.len() == 1);
    house.apply(Operation::Close { session: 0 });
    assert_eq!(house.held.len(), 1, "it is in the step under way");
    house.land();
    assert_eq!((house.core.queues.waiting.len(), house.core.queues.running.len()), (0, 1), "admitted ahead");
    house.settle();
}

fn submit(family: u32, tokens: usize, max_tokens: usize) -> Operation {
    Operation::Submit { salt: 0, family, tokens, max_tokens }
}

#[test]
fn a_cancelled_prefill_frees_its_blocks_at_once() {
    let config = EngineConfig { step_tokens: 16, ..EngineConfig::default() };
    let mut house = Harness::new(8, config);
    house.apply(submit(0, 59, 10));
    house.apply(Operation::Step { times: 2 });
    assert_eq!(house.core.pool.used(), 4);
    house.apply(Operation::Close { session: 0 });
    assert_eq!(house.core.pool.used(), 0);
    house.check();
}

#[test]
fn sessions_with_one_prompt_compute_it_once() {
    let mut house = Harness::new(64, EngineConfig { step_tokens: 32, ..EngineConfig::default() });
    for _ in 0..4 {
        house.apply(submit(1, 59, 5));
    }
    house.settle();
    let counters = &house.core.counters;
    // 48 tokens are three full blocks; each other session computes the remaining 11.
    assert_eq!(counters.prefill_tokens_total.get(), 59 + 3 * 11);
    assert_eq!(counters.prefix_cache_hit_tokens_total.get(), 3 * 48);
    assert_eq!(counters.decode_tokens_total.get(), 20);
}

#[test]
fn a_tenant_finds_its_own_blocks_and_nobody_elses() {
    let mut house = Harness::new(64, EngineConfig::default());
    let mut hits = |salt| {
        let before = house.core.counters.prefix_cache_hit_tokens_total.get();
        house.apply(Operation::Submit { salt, family: 1, tokens: 59, max_tokens: 5 });
        house.settle();
        house.core.counters.prefix_cache_hit_tokens_total.get() - before
    };
    assert_eq!([hits(1), hits(2), hits(0)], [0, 0, 0]);
    assert_eq!([hits(1), hits(2), hits(0)], [48, 48, 48]);
}

#[test]
fn the_oldest_session_is_served_when_blocks_are_short() {
    let mut house = Harness::new(4, EngineConfig::default());
    (0..6).for_each(|family| house.apply(submit(family, 40, 20)));
    for _ in 0..1000 {
        house.core.step();
        house.check();
        (0..house.clients.len()).for_each(|index| house.read(index));
        let first_open = house.clients.iter().position(|client| client.finish.is_none());
        let last_done = house.clients.iter().rposition(|client| client.finish.is_some());
        assert!(first_open.is_none() || last_done.is_none() || first_open > last_done, "served out of order");
    }
    assert!(house.clients.iter().all(|client| client.finish == Some(TurnFinish::Length)));
}

#[test]
fn a_dropped_turn_leaves_a_session_that_goes_on_from_what_was_delivered() {
    let mut house = Harness::new(16, EngineConfig::default());
    house.apply(submit(0, 20, 100));
    house.apply(Operation::Step { times: 30 });
    house.apply(Operation::Read { session: 0 });
    house.apply(Operation::Step { times: 7 });
    house.apply(Operation::Stop { session: 0 });
    assert_eq!(house.clients[0].tokens.len(), 50);
    house.apply(Operation::Extend { session: 0, tokens: 3, max_tokens: 20 });
    house.settle();
}

/// Regression found by the random operations: the kept tokens had all been computed.
#[test]
fn a_turn_that_adds_nothing_after_a_dropped_one_has_something_to_compute() {
    let mut house = Harness::new(16, EngineConfig::default());
    house.apply(submit(0, 16, 100));
    house.apply(Operation::Step { times: 20 });
    house.apply(Operation::Stop { session: 0 });
    house.apply(Operation::Extend { session: 0, tokens: 0, max_tokens: 5 });
    house.check();
    house.settle();
}

#[test]
fn a_large_request_is_not_overtaken_by_small_ones() {
    let mut house = Harness::new(4, EngineConfig::default());
    house.apply(submit(0, 20, 10));
    house.apply(Operation::Step { times: 1 });
    house.apply(submit(1, 50, 1));
    house.apply(submit(2, 5, 1));
    house.apply(Operation::Step { times: 2 });
    house.clients.iter_mut().for_each(|client| assert!(!client.read()));
    assert!(house.clients[2].finish.is_none(), "one block would have been free for it");
    house.settle();
}

#[test]
fn parked_sessions_give_way_before_running_ones() {
    let mut house = Harness::new(6, EngineConfig::default());
    house.apply(submit(0, 30, 1));
    house.apply(Operation::Step { times: 1 });
    house.apply(submit(1, 30, 30));
    house.apply(submit(2, 30, 30));
    house.apply(Operation::Step { times: 10 });
    assert_eq!(house.core.counters.evictions_total.get(), 1);
    assert_eq!(house.core.counters.preemptions_total.get(), 0);
    house.settle();
}

#[test]
fn a_turn_that_builds_on_a_refused_one_is_refused() {
    let mut house = Harness::new(4, EngineConfig::default());
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
    house.tell(EngineCommand::Generate(Box::new(submission)));
    let mail = inbox.poll(&mut VecDeque::new(), &mut Context::from_waker(Waker::noop()));
    assert!(matches!(mail, Poll::Ready(Mail::End(Err(EngineError::Request(_))))));
    assert!(house.core.sequences.is_empty() && !house.core.busy());
}
