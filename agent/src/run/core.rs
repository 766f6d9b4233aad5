//! The parts of an episode that its transitions change.

use std::collections::VecDeque;

use waymark_engine::Origin;
use waymark_index::{AnswerRoom, Evidence};

use crate::action::PolicySearch;
use crate::event::{EpisodeEnd, Event};

use super::budget_tracker::BudgetTracker;
use super::setup::EpisodeSetup;
use super::state::{GenerationPurpose, State};
use super::step::{GenerationParams, Step, TurnEnd};
use super::transcript::Transcript;
use super::turn::CurrentTurn;
use super::turn_boundary::TurnBoundary;

/// A running episode without its state.
#[derive(Debug)]
pub(super) struct EpisodeCore {
    pub(super) setup: EpisodeSetup,
    pub(super) budget: BudgetTracker,
    pub(super) transcript: Transcript,
    pub(super) turn: CurrentTurn,
    /// Room for evidence in the record and the events.
    pub(super) evidence_room: AnswerRoom,
    /// Number of generations so far. Each has its own random sequence.
    generations: u64,
    /// Steps that the driver has not taken yet.
    outbox: VecDeque<Step>,
    pub(super) result: EpisodeResult,
}

/// End of an episode.
#[derive(Debug)]
pub(super) struct EpisodeResult {
    pub(super) reason: EpisodeEnd,
    pub(super) answer: Option<String>,
}

impl EpisodeCore {
    /// Creates an episode with this prompt.
    pub(super) fn new(setup: EpisodeSetup, prompt: Vec<u32>) -> EpisodeCore {
        // The prompt is in the record from the start, so that an episode that is interrupted at once still has it.
        let transcript = Transcript::new(setup.settings.id.clone(), &prompt);
        let started = started(&setup, prompt.len());
        let extend = Step::Extend { ids: prompt, origin: Origin::Prompt, forced: false };
        EpisodeCore {
            budget: setup.budget(),
            turn: CurrentTurn::new(&setup, 1, false, transcript.len()),
            evidence_room: AnswerRoom::new(setup.settings.evidence_bytes),
            generations: 0,
            outbox: VecDeque::from([extend, Step::Emit(started), Step::Boundary]),
            result: EpisodeResult { reason: EpisodeEnd::Turns, answer: None },
            transcript,
            setup,
        }
    }

    /// Creates an episode that goes on from the beginning of a turn of another one.
    pub(super) fn resume(setup: EpisodeSetup, begun: TurnBoundary) -> EpisodeCore {
        let TurnBoundary { budget, transcript, evidence_room, generations } = begun;
        let transcript = transcript.renamed(setup.settings.id.clone());
        let started = started(&setup, transcript.prompt_tokens());
        EpisodeCore {
            turn: CurrentTurn::new(&setup, budget.turn(), false, transcript.len()),
            budget,
            evidence_room,
            generations,
            outbox: VecDeque::from([Step::Emit(started)]),
            result: EpisodeResult { reason: EpisodeEnd::Turns, answer: None },
            transcript,
            setup,
        }
    }

    /// Returns the state of the episode at the beginning of the next turn.
    pub(super) fn boundary(&self) -> TurnBoundary {
        let Self { budget, transcript, evidence_room, generations, .. } = self;
        TurnBoundary {
            budget: budget.clone(),
            transcript: transcript.clone(),
            evidence_room: *evidence_room,
            generations: *generations,
        }
    }

    /// Returns the next step, unless the driver has taken all.
    pub(super) fn take_step(&mut self) -> Option<Step> {
        self.outbox.pop_front()
    }

    /// Asks the driver for a step.
    pub(super) fn ask(&mut self, step: Step) {
        self.outbox.push_back(step);
    }

    /// Emits an event.
    pub(super) fn emit(&mut self, event: Event) {
        self.ask(Step::Emit(event));
    }

    /// Emits events, in order.
    pub(super) fn emit_all(&mut self, events: Vec<Event>) {
        self.outbox.extend(events.into_iter().map(Step::Emit));
    }

    /// Appends given tokens.
    pub(super) fn extend(&mut self, ids: Vec<u32>, origin: Origin, forced: bool) {
        if !ids.is_empty() {
            // Recorded in the same step that asks for it: record and sequence never differ when the machine is polled.
            self.transcript.append(&ids, origin, forced);
            self.ask(Step::Extend { ids, origin, forced });
        }
    }

    /// Forces tokens in the policy's name. Returns `false`, and forces none, if the client's limit cannot hold them
    /// all: a part of a tag would be of no use.
    #[must_use]
    pub(super) fn force(&mut self, ids: Vec<u32>) -> bool {
        if !self.budget.holds(ids.len()) {
            return false;
        }
        self.budget.spend_forced(ids.len());
        let events = self.turn.reader.push_forced(&ids);
        // The tokens reach the sequence before a slow receiver of their events can delay that.
        self.extend(ids, Origin::Policy, true);
        self.emit_all(events);
        true
    }

    /// Asks for a generation within the limits of the episode. Without tokens left, the generation counts as ended.
    pub(super) fn generate(&mut self, params: GenerationParams, generation: GenerationPurpose) -> State {
        // The engine samples at least one token, so a limit of 0 never reaches it.
        let max = self.budget.clip(params.max, self.transcript.visible_len());
        if max == 0 {
            return State::Generated(generation, TurnEnd::Context);
        }
        let spec = self.setup.spec(GenerationParams { max, ..params }, self.generations);
        self.generations += 1;
        self.ask(Step::Generate(Box::new(spec)));
        State::Generating(generation)
    }

    /// Returns the evidence with which an earlier search answers this one, if the loop remembers searches.
    pub(super) fn recall(&self, search: &PolicySearch) -> Option<Evidence> {
        self.setup.rules.recall(self.transcript.evidence(), search, self.setup.mode(search))
    }

    /// Ends the episode. The sequence is closed first: its blocks are freed before passages are read for citations, and
    /// before a slow receiver of events can delay that.
    pub(super) fn end(&mut self, reason: EpisodeEnd, answer: Option<String>) -> State {
        self.result = EpisodeResult { reason, answer };
        self.ask(Step::Close);
        State::Closing
    }
}

fn started(setup: &EpisodeSetup, prompt_tokens: usize) -> Event {
    Event::Started {
        id: setup.settings.id.clone(),
        model: setup.model.clone(),
        protocol: setup.protocol.name().to_owned(),
        question: setup.question.clone(),
        prompt_tokens,
    }
}
