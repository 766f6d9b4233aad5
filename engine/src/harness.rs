//! Test harness: applies random client operations to a scheduler, alone or inside the core. Checks the invariants
//! after each operation, and the text of each session when it closes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use waymark_models::sampler::{SamplingParams, TokenMask};

use super::command::{EngineCommand, Fork, Submission};
use super::config::EngineConfig;
use super::constraint::{Constraint, ConstraintState};
use super::counters::Counters;
use super::mailbox::{Inbox, Mail, mailbox};
use super::mock::Random;
use super::request::{Generate, Priority, SessionOptions};
use super::scheduler::Scheduler;
use super::stage::TurnStage;
use super::token::TurnFinish;

pub(super) const VOCAB: usize = 259;
pub(super) const SEED: u64 = 7;

/// Default source of the expected tokens.
pub(super) const RANDOM: Random = Random { seed: SEED, vocab: VOCAB };

/// Source of texts of two tokens, in which proposed tokens are accepted about every other time.
pub(super) const COIN: Random = Random { seed: SEED, vocab: 2 };

/// Time of a late mask: longer than a step waits for it.
const LATE: Duration = Duration::from_millis(4);

/// Rule that allows every token. Each 16th of its masks is late.
#[derive(Debug, Clone, Default)]
struct LateRule {
    /// Number of masks so far.
    masks: u32,
}

impl Constraint for LateRule {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }
}

impl ConstraintState for LateRule {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        self.masks += 1;
        if self.masks % 16 == 3 {
            thread::sleep(LATE);
        }
        Ok(None)
    }

    fn accept(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }
}

/// An operation of a client. `session` is an index into the open sessions.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
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
    /// Begins a turn between turns that forces its first `forced` tokens.
    Force {
        session: usize,
        forced: usize,
        max_tokens: usize,
    },
    /// Begins a turn between turns under a rule whose masks are late now and then.
    Constrain {
        session: usize,
        max_tokens: usize,
    },
    /// Makes the session's next mask late, where the machine computes no masks.
    Delay {
        session: usize,
    },
    /// Removes the last `back` tokens of a session between turns.
    Truncate {
        session: usize,
        back: usize,
    },
    /// Opens a session with the tokens of another one between turns, except its last `back` tokens.
    Fork {
        session: usize,
        back: usize,
    },
    /// Reads the available steps, so a stalled session resumes.
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
    /// Sets the priority of the next sessions.
    Prioritize(Priority),
}

/// Random operations.
pub(super) fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let session = 0usize..8;
    let operation = prop_oneof![
        4 => (0u64..2, 0u32..3, 1usize..60, 1usize..40)
            .prop_map(|(salt, family, tokens, max_tokens)| Operation::Submit { salt, family, tokens, max_tokens }),
        8 => (1usize..8).prop_map(|times| Operation::Step { times }),
        4 => (session.clone(), 0usize..30, 1usize..30).prop_map(|(session, tokens, max_tokens)| Operation::Extend { session, tokens, max_tokens }),
        2 => (session.clone(), 1usize..40, 1usize..50).prop_map(|(session, forced, max_tokens)| Operation::Force { session, forced, max_tokens }),
        1 => (session.clone(), 1usize..30).prop_map(|(session, max_tokens)| Operation::Constrain { session, max_tokens }),
        2 => session.clone().prop_map(|session| Operation::Delay { session }),
        2 => (session.clone(), 0usize..40).prop_map(|(session, back)| Operation::Truncate { session, back }),
        3 => (session.clone(), 0usize..40).prop_map(|(session, back)| Operation::Fork { session, back }),
        4 => session.clone().prop_map(|session| Operation::Read { session }),
        1 => session.clone().prop_map(|session| Operation::Stop { session }),
        2 => session.prop_map(|session| Operation::Close { session }),
        1 => Just(Operation::Preempt),
        1 => prop::sample::select(vec![Priority::Low, Priority::Normal, Priority::High]).prop_map(Operation::Prioritize),
    ];
    prop::collection::vec(operation, 1..80)
}

pub(super) fn submit(family: u32, tokens: usize, max_tokens: usize) -> Operation {
    Operation::Submit { salt: 0, family, tokens, max_tokens }
}

/// Owner of a scheduler that executes its plans.
pub(super) trait Machine {
    fn scheduler(&self) -> &Scheduler;

    /// Executes a command, at once or as soon as it can.
    fn tell(&mut self, command: EngineCommand);

    fn step(&mut self);

    fn preempt(&mut self);

    /// Makes the next mask of a session late. A machine with rules has late masks of its own.
    fn delay(&mut self, _session: u64) {}

    /// Ends the step in flight, if any.
    fn land(&mut self) {}
}

/// A session and its reader.
#[derive(Default)]
pub(super) struct HarnessClient {
    id: u64,
    salt: u64,
    priority: Priority,
    pub(super) tokens: Vec<u32>,
    /// Positions of the sampled tokens.
    sampled: Vec<usize>,
    /// Number of tokens before the last turn.
    begun: usize,
    /// Tokens that the last turn forces.
    forced: Vec<u32>,
    known: usize,
    inbox: Option<Inbox>,
    pub(super) finish: Option<TurnFinish>,
}

impl HarnessClient {
    fn options(&self) -> SessionOptions {
        SessionOptions { salt: self.salt, tenant: self.salt, priority: self.priority, ..SessionOptions::default() }
    }

    /// Reads the available steps. Returns `true` if the session has to be resumed.
    pub(super) fn read(&mut self) -> bool {
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
                let position = self.tokens.len();
                match self.forced.get(position - self.begun) {
                    Some(&forced) => assert_eq!(step.id, forced, "at {position}"),
                    None => self.sampled.push(position),
                }
                self.tokens.push(step.id);
                self.known += 1;
            }
        }
    }

    /// Checks that every sampled token follows from the whole context before it.
    fn check_text(&self, random: Random) {
        for &position in &self.sampled {
            assert_eq!(self.tokens[position], random.next(None, &self.tokens[..position]), "at {position}");
        }
    }
}

/// Clients of a machine.
pub(super) struct Harness<M> {
    pub(super) machine: M,
    pub(super) clients: Vec<HarnessClient>,
    pub(super) counters: Arc<Counters>,
    /// Priority of the next sessions.
    pub(super) priority: Priority,
    /// Source of the expected tokens.
    pub(super) random: Random,
    sessions: u64,
    max_undelivered: usize,
    /// Maximum length of a sequence, in tokens.
    limit: usize,
}

impl<M: Machine> Harness<M> {
    pub(super) fn new(machine: M, counters: Arc<Counters>, config: &EngineConfig, limit: usize) -> Self {
        let priority = Priority::default();
        let max_undelivered = config.max_undelivered;
        Self { machine, clients: Vec::new(), counters, priority, random: RANDOM, sessions: 0, max_undelivered, limit }
    }

    /// Begins a turn of at most `max_tokens` tokens.
    fn begin(&mut self, index: usize, max_tokens: usize) {
        self.generate(index, Generate { max_tokens, ..Generate::default() });
    }

    fn generate(&mut self, index: usize, generate: Generate) {
        let client = &mut self.clients[index];
        if client.tokens.len() >= self.limit {
            return;
        }
        client.begun = client.tokens.len();
        client.forced.clone_from(&generate.force);
        let (outbox, inbox) = mailbox(self.max_undelivered);
        let submission = Submission {
            session: client.id,
            options: client.options(),
            keep: client.known,
            append: client.tokens[client.known..].to_vec(),
            generate: Generate { sampling: SamplingParams::greedy(), ..generate },
            outbox,
            submitted: Instant::now(),
            stage: TurnStage::queue(),
            permit: None,
        };
        client.known = client.tokens.len();
        client.inbox = Some(inbox);
        self.machine.tell(EngineCommand::Generate(Box::new(submission)));
    }

    fn fork(&mut self, index: usize, back: usize) {
        self.read(index);
        let parent = &self.clients[index];
        let length = parent.tokens.len().saturating_sub(back);
        let keep = parent.known.min(length);
        if parent.inbox.is_some() || keep == 0 {
            return;
        }
        self.sessions += 1;
        let id = self.sessions;
        let sampled = parent.sampled.iter().copied().filter(|&position| position < length).collect();
        let HarnessClient { salt, priority, .. } = *parent;
        let tokens = parent.tokens[..length].to_vec();
        let fork = Fork { parent: parent.id, session: id, options: parent.options(), keep, asked: Instant::now() };
        self.clients.push(HarnessClient {
            id,
            salt,
            priority,
            tokens,
            sampled,
            known: keep,
            ..HarnessClient::default()
        });
        self.machine.tell(EngineCommand::Fork(fork));
    }

    fn truncate(&mut self, index: usize, back: usize) {
        self.read(index);
        let random = self.random;
        let client = &mut self.clients[index];
        if client.inbox.is_some() {
            return;
        }
        client.check_text(random);
        // As a handle does. An empty session could begin no turn.
        let length = client.tokens.len().saturating_sub(back).max(1);
        client.tokens.truncate(length);
        client.sampled.retain(|&position| position < length);
        client.known = client.known.min(length);
    }

    pub(super) fn read(&mut self, index: usize) {
        if self.clients[index].read() {
            self.machine.tell(EngineCommand::Resume(self.clients[index].id));
        }
    }

    /// Begins a turn of a session, unless one is in progress.
    fn follow(&mut self, index: usize, generate: Generate) {
        self.read(index);
        if self.clients[index].inbox.is_none() {
            self.generate(index, generate);
        }
    }

    pub(super) fn apply(&mut self, operation: Operation) {
        let open = self.clients.len();
        match operation {
            Operation::Submit { salt, family, tokens, max_tokens } => {
                let tokens = (0..tokens as u32).map(|position| 40 + family + position % 5).collect();
                self.sessions += 1;
                let id = self.sessions;
                self.clients.push(HarnessClient {
                    id,
                    salt,
                    priority: self.priority,
                    tokens,
                    ..HarnessClient::default()
                });
                self.begin(open, max_tokens);
            }
            Operation::Truncate { session, back } if session < open => self.truncate(session, back),
            Operation::Delay { session } if session < open => self.machine.delay(self.clients[session].id),
            Operation::Fork { session, back } if session < open => self.fork(session, back),
            Operation::Step { times } => (0..times).for_each(|_| self.machine.step()),
            Operation::Extend { session, tokens, max_tokens } if session < open => {
                self.read(session);
                if self.clients[session].inbox.is_none() {
                    let ids = (0..tokens as u32).map(|position| 60 + position % 3);
                    self.clients[session].tokens.extend(ids);
                    self.begin(session, max_tokens);
                }
            }
            Operation::Force { session, forced, max_tokens } if session < open => {
                let vocab = self.random.vocab as u32;
                let force = (0..forced as u32).map(|position| position * 7 % vocab).collect();
                self.follow(session, Generate { force, max_tokens, ..Generate::default() });
            }
            Operation::Constrain { session, max_tokens } if session < open => {
                let rule: Arc<dyn Constraint> = Arc::new(LateRule::default());
                self.follow(session, Generate { constraint: Some(rule), max_tokens, ..Generate::default() });
            }
            Operation::Read { session } if session < open => self.read(session),
            Operation::Stop { session } if session < open => {
                self.clients[session].inbox = None;
                self.machine.tell(EngineCommand::Stop(self.clients[session].id));
            }
            Operation::Close { session } if session < open => {
                let client = self.clients.remove(session);
                client.check_text(self.random);
                self.machine.tell(EngineCommand::Close(client.id));
            }
            Operation::Prioritize(priority) => self.priority = priority,
            Operation::Preempt => {
                self.machine.land();
                self.machine.preempt();
            }
            _ => {}
        }
    }

    pub(super) fn check(&self) {
        let scheduler = self.machine.scheduler();
        scheduler.check().unwrap();
        let mut tenants = HashMap::new();
        for client in &self.clients {
            for block in scheduler.session(client.id).into_iter().flat_map(|session| session.sequence().table()) {
                assert_eq!(*tenants.entry(block).or_insert(client.salt), client.salt, "two tenants share a block");
            }
        }
        assert_eq!(self.counters.invariant_violations_total.get(), 0);
        assert_eq!(self.counters.step_failures_total.get(), 0);
    }

    /// Runs every turn to its end and closes all sessions.
    pub(super) fn settle(&mut self) {
        for _ in 0..20_000 {
            (0..self.clients.len()).for_each(|index| self.read(index));
            if !self.machine.scheduler().is_busy() && self.clients.iter().all(|client| client.inbox.is_none()) {
                break;
            }
            self.machine.step();
            self.check();
        }
        self.machine.land();
        assert!(!self.machine.scheduler().is_busy(), "something never ends");
        assert!(self.clients.iter().all(|client| client.inbox.is_none()), "a reader waits for ever");
        while !self.clients.is_empty() {
            self.apply(Operation::Close { session: 0 });
            self.check();
        }
        let (sessions, blocks) = self.machine.scheduler().snapshot(Instant::now());
        assert!(sessions.is_empty());
        assert_eq!(blocks.free + blocks.cached, blocks.total);
    }

    /// Executes operations, checks the invariants after each of them, and settles.
    pub(super) fn play(mut self, operations: Vec<Operation>) {
        for operation in operations {
            self.apply(operation);
            self.check();
        }
        self.settle();
    }
}
