//! Tests of the state machine, without an engine, an index or a runtime.
#![allow(clippy::unwrap_used)]

mod branches;
mod completion;
mod continued;
mod deadline;
mod forms;
mod limits;
mod property;
mod rebuild;
mod transitions;

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use waymark_engine::{EngineError, Generate, Matcher, Origin, SessionOptions, Token, TokenStep, TurnFinish};
use waymark_index::{Evidence, Hit, HitPath, Mode, Passage};
use waymark_models::tokenizer::{Specials, Tokenizer};

use crate::budget::BudgetLimit;
use crate::conversation::Conversation;
use crate::episode::Episode;
use crate::event::{EpisodeEnd, Event};
use crate::generator::{Generator, SessionSource, Steps};
use crate::options::EpisodeOptions;
use crate::policy::Policy;
use crate::runtime::Runtime;
use crate::search::{Search, SearchError, SearchQuery};
use crate::{AgentError, Protocol};

use super::machine::EpisodeMachine;
use super::setup::EpisodeSetup;
use super::step::{Step, TurnEnd};

const SEARCH: &str = "<think>a</think>\n<search> [graph] q </search>";
const ANSWER: &str = "<think>b</think>\n<answer> Paris </answer>";
const NONSENSE: &str = "nothing";

const MODES: [Mode; 6] = Mode::ALL;

/// An engine that is asked for its limit only.
#[derive(Debug, Clone)]
struct NoEngine;

impl SessionSource for NoEngine {
    type Sequence = NoEngine;

    fn open(&self, _options: SessionOptions) -> NoEngine {
        NoEngine
    }

    fn limit(&self) -> usize {
        1 << 20
    }
}

impl Generator for NoEngine {
    type Generation<'a> = NoEngine;

    fn append(&mut self, _ids: &[u32], _origin: Origin, _forced: bool) {}

    async fn generate(&mut self, _spec: Generate) -> Result<NoEngine, EngineError> {
        Err(EngineError::QueueFull { limit: 0 })
    }

    fn tokens(&self) -> &[Token] {
        &[]
    }

    fn cached_prompt_tokens(&self) -> usize {
        0
    }
}

impl Steps for NoEngine {
    async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        None
    }

    fn finish(&self) -> Option<TurnFinish> {
        None
    }
}

/// An index that is asked for its modes only.
#[derive(Debug)]
struct NoIndex;

impl Search for NoIndex {
    fn search(&self, _query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(ready(Err(SearchError::Busy)))
    }

    fn modes(&self) -> Vec<Mode> {
        MODES.to_vec()
    }
}

/// Evidence of passages with these texts.
fn evidence(mode: Mode, texts: &[&str]) -> Evidence {
    let hit = |(at, text): (usize, &&str)| Hit {
        rank: at + 1,
        score: 1.0,
        passage: Passage { id: at.to_string(), title: "T".to_owned(), text: (*text).to_owned() },
        metadata: None,
        path: HitPath::default(),
    };
    Evidence::of(7, mode, texts.iter().enumerate().map(hit).collect())
}

/// Returns the fixed properties of an episode.
fn setup(episode: Episode<NoEngine>) -> EpisodeSetup {
    let Episode { runtime, policy, settings, question, .. } = episode;
    EpisodeSetup::new(runtime.codec(), &policy, Arc::new(settings), question, MODES.to_vec())
}

/// Plays an episode by hand: takes the steps of the machine, and answers them with scripted turns.
struct Player {
    machine: EpisodeMachine,
    protocol: Arc<dyn Protocol>,
    tokenizer: Tokenizer,
    trains: bool,
    /// Content of the session; in the training loop, of the record.
    sequence: Vec<u32>,
    events: Vec<Event>,
    clock: Duration,
    /// Time that passes with each step.
    tick: Duration,
}

impl Player {
    fn new(policy: &Policy, options: EpisodeOptions) -> Result<Player, AgentError> {
        Player::with(policy, options, EpisodeMachine::new)
    }

    /// Creates a player of a machine that is made of a setup and a prompt.
    fn with(
        policy: &Policy,
        options: EpisodeOptions,
        machine: impl FnOnce(EpisodeSetup, Vec<u32>) -> EpisodeMachine,
    ) -> Result<Player, AgentError> {
        Player::asking(policy, Conversation::new("Why?"), options, machine)
    }

    /// Creates a player of a machine for this conversation.
    fn asking(
        policy: &Policy,
        conversation: Conversation,
        options: EpisodeOptions,
        machine: impl FnOnce(EpisodeSetup, Vec<u32>) -> EpisodeMachine,
    ) -> Result<Player, AgentError> {
        let tokenizer = Arc::new(Tokenizer::bytes());
        let eos = vec![tokenizer.id("<|im_end|>").unwrap()];
        let runtime = Runtime::new(NoEngine, tokenizer, None, eos, Some(Arc::new(NoIndex)));
        Ok(Player::playing(Episode::new(&runtime, policy, conversation, options)?, machine))
    }

    /// Creates a player of a machine for this episode.
    fn playing(episode: Episode<NoEngine>, machine: impl FnOnce(EpisodeSetup, Vec<u32>) -> EpisodeMachine) -> Player {
        let protocol = Arc::clone(&episode.policy.protocol);
        let trains = episode.policy.variant.is_training();
        let prompt = episode.prompt.clone();
        Player {
            machine: machine(setup(episode), prompt),
            protocol,
            tokenizer: Tokenizer::bytes(),
            trains,
            sequence: Vec::new(),
            events: Vec::new(),
            clock: Duration::ZERO,
            tick: Duration::ZERO,
        }
    }

    /// Creates a player of a built-in policy that a test has changed.
    fn of(name: &str, change: impl FnOnce(&mut Policy)) -> Player {
        let mut policy = Policy::builtin(name).unwrap();
        change(&mut policy);
        Player::new(&policy, EpisodeOptions::default()).unwrap()
    }

    /// Takes one step. Events and given tokens are noted.
    fn step(&mut self) -> Step {
        self.clock += self.tick;
        let step = self.machine.poll(self.clock).unwrap();
        match &step {
            Step::Emit(event) => self.events.push(event.clone()),
            Step::Extend { ids, .. } => self.sequence.extend(ids),
            Step::Rebuild { kept } => {
                let seen = self.seen();
                assert!(*kept < self.sequence.len() && seen[..*kept] == self.sequence[..*kept]);
                self.sequence = seen;
            }
            _ => {}
        }
        step
    }

    /// IDs that the policy sees.
    fn seen(&self) -> Vec<u32> {
        self.machine.transcript().visible().iter().map(|token| token.id).collect()
    }

    /// Takes steps up to the next one that needs an answer.
    fn next(&mut self) -> Step {
        loop {
            match self.step() {
                Step::Emit(_) | Step::Extend { .. } | Step::Rebuild { .. } | Step::Boundary => {}
                step => return step,
            }
        }
    }

    /// Answers the next step, which asks for a generation, with a text. Returns the parameters.
    fn say(&mut self, text: &str) -> Generate {
        let Step::Generate(spec) = self.next() else { panic!("no generation") };
        let ended = self.write(&spec, text);
        self.machine.generated(ended);
        *spec
    }

    /// Samples a text as an engine would, within the parameters.
    fn write(&mut self, spec: &Generate, text: &str) -> TurnEnd {
        let ended = self.sample(spec, text);
        if self.trains {
            self.events.extend(self.machine.end_text());
            let text = self.machine.turn().kept().to_owned();
            let kept = self.protocol.training().unwrap().cut(&text);
            let ids = self.tokenizer.encode(kept, Specials::Literal).unwrap();
            self.machine.cut_turn(kept.len(), &ids);
            self.sequence = self.seen();
        }
        ended
    }

    fn sample(&mut self, spec: &Generate, text: &str) -> TurnEnd {
        let banned = |id: u32| spec.sampling.logit_bias.iter().any(|&(other, bias)| other == id && bias < -1e8);
        let mut ids: VecDeque<u32> = self.tokenizer.encode(text, Specials::Literal).unwrap().into();
        ids.extend(spec.eos.first());
        // A policy whose end token is banned writes what comes next instead.
        ids.retain(|&id| !banned(id));
        let mut matcher = Matcher::default();
        for made in 1.. {
            // After its script the policy goes on, as a model does, until something ends the turn.
            let wanted = ids.pop_front().unwrap_or(u32::from(b'x'));
            let id = match &spec.allow {
                Some(allow) if !allow.contains(&wanted) => allow[wanted as usize % allow.len()],
                _ => wanted,
            };
            self.sequence.push(id);
            let events = self.machine.sampled(&TokenStep { id, logprob: -0.5, top: Vec::new() });
            self.events.extend(events);
            if self.machine.is_stopped() {
                return TurnEnd::Stopped;
            }
            if let Some(which) = matcher.push(&spec.stops, self.tokenizer.bytes_of(id)) {
                return TurnEnd::Tag(which);
            }
            if spec.eos.contains(&id) {
                return TurnEnd::Eos;
            }
            if made == spec.max_tokens {
                break;
            }
        }
        TurnEnd::Length
    }

    /// Answers the next step, which asks for a search. Returns the query and the mode, or `None` if an earlier search
    /// answers it.
    fn find(&mut self, texts: &[&str]) -> Option<(String, Mode)> {
        let Step::Search(request) = self.next() else { panic!("no search") };
        let executed = request.recalled.is_none().then(|| (request.search.query.clone(), request.mode));
        let found = request.recalled.unwrap_or_else(|| evidence(request.mode, texts));
        self.machine.found(Ok(found), Duration::from_millis(20));
        executed
    }

    /// Closes the sequence at the end.
    fn close(&mut self) {
        let step = self.next();
        assert!(matches!(step, Step::Close), "{step:?}");
        if self.trains {
            let context = usize::MAX;
            self.machine.truncate_response(self.protocol.training().unwrap().response_tokens(context));
        }
        self.machine.closed(5, self.clock);
    }

    /// Text of the sequence after the prompt.
    fn text(&self) -> String {
        self.tokenizer.decode(&self.sequence[self.machine.transcript().prompt_tokens()..])
    }
}

fn limits(events: &[Event]) -> Vec<BudgetLimit> {
    let limit = |event: &Event| match event {
        Event::Budget { kind } => Some(*kind),
        _ => None,
    };
    events.iter().filter_map(limit).collect()
}

fn finished(player: &mut Player) -> (EpisodeEnd, Option<String>) {
    player.close();
    assert!(matches!(player.next(), Step::End));
    let trajectory = player.machine.take_trajectory();
    (trajectory.finish, trajectory.answer)
}

fn paris() -> (EpisodeEnd, Option<String>) {
    (EpisodeEnd::Stop, Some("Paris".to_owned()))
}
