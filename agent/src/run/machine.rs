//! The state machine of an episode: prompt, turn, action, observation, and again.
//!
//! It does no I/O and looks at no clock. A driver polls it for the next [`Step`], and answers the steps that have a
//! result. A step that is not answered counts as answered with nothing, so every episode ends.

use std::mem;
use std::time::Duration;

use waymark_engine::TokenStep;
use waymark_index::Evidence;

use crate::AgentError;
use crate::event::{Cited, Event};
use crate::search::SearchError;
use crate::trajectory::{PartialTrajectory, Trajectory};
use crate::usage::Usage;

use super::core::EpisodeCore;
use super::setup::EpisodeSetup;
use super::state::{GenerationPurpose, State};
use super::step::{Step, TurnEnd};
use super::transcript::Transcript;
use super::turn::CurrentTurn;
use super::turn_boundary::TurnBoundary;
use super::{acting, writing};

/// A running episode.
#[derive(Debug)]
pub(super) struct EpisodeMachine {
    core: EpisodeCore,
    state: State,
}

impl EpisodeMachine {
    /// Creates an episode with this prompt.
    pub(super) fn new(setup: EpisodeSetup, prompt: Vec<u32>) -> EpisodeMachine {
        EpisodeMachine { core: EpisodeCore::new(setup, prompt), state: State::TurnBegins }
    }

    /// Creates an episode that goes on from the beginning of a turn of another one. The driver's sequence holds the
    /// visible tokens already.
    pub(super) fn resume(setup: EpisodeSetup, begun: TurnBoundary) -> EpisodeMachine {
        EpisodeMachine { core: EpisodeCore::resume(setup, begun), state: State::TurnBegins }
    }

    /// Returns the state of the episode at the beginning of the next turn. `None` unless [`Step::Boundary`] was the
    /// last step.
    pub(super) fn boundary(&self) -> Option<TurnBoundary> {
        matches!(self.state, State::TurnBegins).then(|| self.core.boundary())
    }

    /// Returns the next step, `elapsed` after the beginning of the episode.
    ///
    /// # Errors
    /// [`AgentError::Text`] when the tokenizer or the template fail.
    pub(super) fn poll(&mut self, elapsed: Duration) -> Result<Step, AgentError> {
        loop {
            // A transition is made once all steps of the one before are taken, so it sees their results.
            if let Some(step) = self.core.take_step() {
                return Ok(step);
            }
            if matches!(self.state, State::Ended) {
                return Ok(Step::End);
            }
            self.advance(elapsed)?;
        }
    }

    fn advance(&mut self, elapsed: Duration) -> Result<(), AgentError> {
        let core = &mut self.core;
        // A transition that fails leaves the episode ended.
        self.state = match mem::replace(&mut self.state, State::Ended) {
            State::TurnBegins => writing::begin(core),
            State::Guided(run, ended) => writing::follow(core, run, ended)?,
            // Only a driver that polls without an answer comes here; the turn ends instead of waiting forever.
            State::Generating(generation) => State::Generated(generation, TurnEnd::Eos),
            State::Generated(GenerationPurpose::Turn, ended) => State::Written(ended),
            State::Generated(GenerationPurpose::Opening(prefix), ended) => writing::open_query(core, prefix, ended)?,
            State::Generated(GenerationPurpose::Guided(run), ended) => State::Guided(run, Some(ended)),
            State::Generated(GenerationPurpose::Answer(limit), ended) => State::TurnOver(ended, limit),
            State::Written(ended) => writing::complete(core, ended)?,
            State::TurnOver(ended, limit) => acting::begin(core, ended, limit),
            State::Searching(pending) => {
                // Reached only if the driver polls again without an answer; the policy then sees a failed search
                // instead of waiting forever.
                let nothing = SearchError::Failed("the search was not executed".to_owned());
                State::Found(pending, Box::new(Err(nothing)), Duration::ZERO)
            }
            State::Found(pending, result, took) => acting::end_search(core, pending, *result, took),
            State::Replying(parts) => acting::reply(core, parts)?,
            State::RoundOver => acting::end_round(core, elapsed),
            // The driver has not answered, so the prefix cache's share is unknown.
            State::Closing => State::Closed(core.transcript.close(0, elapsed)),
            State::Closed(usage) => cite(core, usage),
            // Nobody asked for citations, or the driver has not answered.
            State::Citing(usage) => State::Ending(usage, Vec::new()),
            State::Ending(usage, citations) => finish(core, usage, citations),
            State::Ended => State::Ended,
        };
        Ok(())
    }

    /// Takes a sampled token. Returns the events for its text.
    pub(super) fn sampled(&mut self, step: &TokenStep) -> Vec<Event> {
        // Counted before the text is read, so that a token without text counts too.
        self.core.budget.spend_token();
        self.core.transcript.push(step);
        self.core.turn.reader.push(step)
    }

    /// Returns `true` if the answer ended at a client's stop string or with a tool call, so that the generation ends.
    pub(super) fn is_stopped(&self) -> bool {
        self.core.turn.reader.stopped()
    }

    /// Takes the end of a generation.
    pub(super) fn generated(&mut self, ended: TurnEnd) {
        self.answer(|state| match state {
            State::Generating(generation) => State::Generated(generation, ended),
            other => other,
        });
    }

    /// Takes the result of a search.
    pub(super) fn found(&mut self, result: Result<Evidence, SearchError>, took: Duration) {
        self.answer(|state| match state {
            State::Searching(pending) => State::Found(pending, Box::new(result), took),
            other => other,
        });
    }

    /// Takes the end of the sequence. `cached` is the number of tokens of its prompt that came from the prefix cache.
    pub(super) fn closed(&mut self, cached: usize, elapsed: Duration) {
        let usage = self.core.transcript.close(cached, elapsed);
        self.answer(|state| match state {
            State::Closing => State::Closed(usage),
            other => other,
        });
    }

    /// Takes the citations of the answer.
    pub(super) fn cited(&mut self, citations: Vec<Cited>) {
        self.answer(|state| match state {
            State::Citing(usage) => State::Ending(usage, citations),
            other => other,
        });
    }

    fn answer(&mut self, next: impl FnOnce(State) -> State) {
        self.state = next(mem::replace(&mut self.state, State::Ended));
    }

    /// Ends the text of the turn. Returns the events for the rest of it.
    pub(super) fn end_text(&mut self) -> Vec<Event> {
        self.core.turn.reader.finish()
    }

    /// Keeps the first `bytes` bytes of the turn, whose encoding is `ids`. Cut tokens do not count as sampled.
    pub(super) fn cut_turn(&mut self, bytes: usize, ids: &[u32]) {
        self.core.turn.cut(bytes);
        let fewer = self.core.transcript.recode(self.core.turn.start, ids);
        self.core.budget.refund_tokens(fewer);
    }

    /// Keeps the first `most` tokens after the prompt. The answer is at the end of the sequence, so it is cut first.
    pub(super) fn truncate_response(&mut self, most: usize) {
        if self.core.transcript.truncate_response(most) {
            // A record without the answer's tokens must not claim the answer, or a reward would be paid for lost
            // tokens.
            self.core.result.answer = None;
        }
    }

    /// Returns the current turn.
    pub(super) fn turn(&self) -> &CurrentTurn {
        &self.core.turn
    }

    /// Returns the record so far.
    pub(super) fn transcript(&self) -> &Transcript {
        &self.core.transcript
    }

    /// Returns the record so far, for adding durations.
    pub(super) fn transcript_mut(&mut self) -> &mut Transcript {
        &mut self.core.transcript
    }

    /// Takes the record of an interrupted episode, once it is closed.
    pub(super) fn take_partial(&mut self) -> PartialTrajectory {
        self.core.transcript.take(&self.core.setup.codec.tokenizer)
    }

    /// Takes the record of an episode that is over.
    pub(super) fn take_trajectory(&mut self) -> Trajectory {
        let answer = self.core.result.answer.take();
        let finish = self.core.result.reason;
        let PartialTrajectory { id, tokens, prompt_tokens, text, actions, evidence, usage, timings } =
            self.take_partial();
        Trajectory { id, tokens, prompt_tokens, text, actions, evidence, answer, finish, usage, timings }
    }
}

fn cite(core: &mut EpisodeCore, usage: Usage) -> State {
    if let Some(answer) = core.result.answer.clone().filter(|_| core.setup.settings.cites) {
        let evidence = core.setup.earlier_evidence().iter().chain(core.transcript.evidence());
        let standing = evidence.filter(|found| found.stands());
        let passages = standing.flat_map(|found| &found.hits).map(|hit| hit.passage.clone()).collect();
        core.ask(Step::Cite { answer, passages });
    }
    State::Citing(usage)
}

fn finish(core: &mut EpisodeCore, usage: Usage, citations: Vec<Cited>) -> State {
    let reason = core.result.reason;
    let answer = core.result.answer.clone();
    let turns = core.transcript.actions().len();
    let searches = core.transcript.evidence().len();
    core.emit(Event::Finished { reason, answer, usage, turns, searches, citations });
    State::Ended
}
