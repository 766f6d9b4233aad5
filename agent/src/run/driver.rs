//! The driver of an episode: does what its state machine asks for.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use waymark_engine::{Generate, Origin, Token};

use crate::AgentError;
use crate::citation::cited;
use crate::trajectory::{PartialTrajectory, Trajectory};

use super::machine::EpisodeMachine;
use super::step::{Step, TurnEnd};
use super::turn_boundary::{TurnBoundary, TurnState};
use super::world::World;

/// The token sequence of an episode, in one session or in several.
pub(super) trait EpisodeSequence: Send {
    /// Type of its sessions.
    type Session: Send;

    /// Appends given tokens.
    fn extend(&mut self, ids: &[u32], origin: Origin, forced: bool);

    /// Replaces the tokens by `tokens`. The first `kept` tokens stay.
    fn rebuild(&mut self, tokens: &[Token], kept: usize);

    /// Returns a session with the first `length` tokens, in which another episode can go on. `None` if every turn has a
    /// session of its own.
    fn fork(&self, length: usize) -> Option<Self::Session>;

    /// Generates. Passes every token to the machine, and the machine's events to their receiver.
    fn generate(
        &mut self,
        spec: Generate,
        machine: &mut EpisodeMachine,
        world: &World,
    ) -> impl Future<Output = Result<TurnEnd, AgentError>> + Send;

    /// Cuts the record of an episode that ends, if only a part of the record is kept.
    fn cut_record(&self, _machine: &mut EpisodeMachine) {}

    /// Frees the sequence. Returns the number of tokens of its prompt that came from the prefix cache.
    fn close(&mut self) -> usize;
}

/// Rule for the states at the beginnings of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnStates {
    /// Keeps them, so that other episodes can go on from them.
    Keep,
    /// Discards them.
    Discard,
}

/// An episode that has ended.
pub(super) struct PlayedEpisode<S> {
    /// Record of the episode.
    pub(super) trajectory: Trajectory,
    /// States at the beginnings of its turns. Empty with [`TurnStates::Discard`].
    pub(super) states: Vec<TurnState<S>>,
}

/// A running episode with its sequence.
pub(super) struct EpisodeDriver<Q: EpisodeSequence> {
    machine: EpisodeMachine,
    sequence: Q,
    world: World,
    /// Channel for the partial record if the episode is interrupted.
    partial: Option<oneshot::Sender<PartialTrajectory>>,
    /// States at the beginnings of its turns. `None` if they are not kept.
    states: Option<Vec<TurnState<Q::Session>>>,
    /// Beginning of the current turn, with its time, until a generation has computed the tokens before it.
    begun: Option<(TurnBoundary, Duration)>,
}

impl<Q: EpisodeSequence> EpisodeDriver<Q> {
    /// Creates a driver of an episode that has not begun.
    pub(super) fn new(
        machine: EpisodeMachine,
        sequence: Q,
        world: World,
        partial: Option<oneshot::Sender<PartialTrajectory>>,
    ) -> EpisodeDriver<Q> {
        EpisodeDriver { machine, sequence, world, partial, states: None, begun: None }
    }

    /// Keeps or discards the states at the beginnings of turns.
    pub(super) fn keeping_states(mut self, states: TurnStates) -> EpisodeDriver<Q> {
        self.states = (states == TurnStates::Keep).then(Vec::new);
        self
    }

    /// Takes the machine's steps until the episode is over. Returns the record and the states that were kept.
    pub(super) async fn run(mut self) -> Result<PlayedEpisode<Q::Session>, AgentError> {
        loop {
            match self.machine.poll(self.world.elapsed())? {
                Step::Emit(event) => self.world.emit(event).await?,
                Step::Extend { ids, origin, forced } => self.sequence.extend(&ids, origin, forced),
                Step::Generate(spec) => {
                    let began = Instant::now();
                    let ended = self.sequence.generate(*spec, &mut self.machine, &self.world).await;
                    self.machine.transcript_mut().add_generation(began.elapsed());
                    // The time is recorded first, because a generation that fails takes time too.
                    self.machine.generated(ended?);
                    self.keep_state();
                }
                Step::Boundary if self.states.is_some() => {
                    self.begun = self.machine.boundary().map(|boundary| (boundary, self.world.elapsed()));
                }
                Step::Boundary => {}
                Step::Rebuild { kept } => self.sequence.rebuild(&self.machine.transcript().visible(), kept),
                Step::Search(request) => {
                    let began = Instant::now();
                    let result = self.world.search(*request).await;
                    self.machine.found(result, began.elapsed());
                }
                Step::Close => {
                    self.sequence.cut_record(&mut self.machine);
                    self.close();
                }
                Step::Cite { answer, passages } => self.machine.cited(cited(answer, passages).await?),
                Step::End => break,
            }
        }
        // The episode has ended normally, so there is no partial record.
        self.partial = None;
        let states = self.states.take().unwrap_or_default();
        Ok(PlayedEpisode { trajectory: self.machine.take_trajectory(), states })
    }

    /// Keeps the beginning of the current turn, after its first generation: the session then has computed all tokens
    /// before it, so that no branch computes them again.
    fn keep_state(&mut self) {
        let Some(states) = &mut self.states else { return };
        if let Some((boundary, elapsed)) = self.begun.take() {
            let session = self.sequence.fork(boundary.transcript.visible_len());
            states.push(TurnState { boundary, elapsed, session });
        }
    }

    fn close(&mut self) {
        let cached = self.sequence.close();
        self.machine.closed(cached, self.world.elapsed());
    }
}

impl<Q: EpisodeSequence> Drop for EpisodeDriver<Q> {
    fn drop(&mut self) {
        // After a panic the record is not taken: a second panic in here would abort the process.
        if let Some(partial) = self.partial.take().filter(|_| !std::thread::panicking()) {
            self.close();
            // The receiver may have been dropped.
            let _ = partial.send(self.machine.take_partial());
        }
    }
}
