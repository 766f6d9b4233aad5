//! States of an episode, and other episodes that go on from them.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;
use waymark_engine::Engine;

use crate::AgentError;
use crate::episode::Episode;
use crate::event::Event;
use crate::generator::SessionSource;
use crate::trajectory::Trajectory;

use super::driver::TurnStates;
use super::play::{play, report_failure};
use super::turn_boundary::TurnState;

/// State of an episode at the beginning of a turn. Every branch of it goes on from the same tokens, which the engine
/// holds once.
pub struct EpisodeState<S: SessionSource = Engine> {
    episode: Arc<Episode<S>>,
    begun: TurnState<S::Sequence>,
}

/// An episode that goes on from a state of another one.
pub struct EpisodeBranch<S: SessionSource = Engine> {
    episode: Episode<S>,
    begun: TurnState<S::Sequence>,
}

impl<S: SessionSource> EpisodeState<S> {
    pub(super) fn new(episode: Arc<Episode<S>>, begun: TurnState<S::Sequence>) -> EpisodeState<S> {
        EpisodeState { episode, begun }
    }

    /// Returns the number of the turn that begins, counted from 1.
    pub fn turn(&self) -> usize {
        self.begun.boundary.budget.turn()
    }

    /// Returns the number of tokens before the turn, the prompt included.
    pub fn tokens(&self) -> usize {
        self.begun.boundary.transcript.len()
    }

    /// Returns an episode that goes on from here, with its own ID and random sequence. Its record begins with that of
    /// the original, durations included.
    pub fn branch(&self, id: Option<String>, seed: u64) -> EpisodeBranch<S> {
        let TurnState { boundary, elapsed, session } = &self.begun;
        let episode = self.episode.again(id, seed);
        let options = episode.settings.session(&episode.policy);
        let length = boundary.transcript.visible_len();
        let session = session.as_ref().map(|session| episode.runtime.engine.fork(session, length, options));
        let begun = TurnState { boundary: boundary.clone(), elapsed: *elapsed, session };
        EpisodeBranch { episode, begun }
    }
}

impl<S: SessionSource> EpisodeBranch<S> {
    /// Runs the branch to its end; see [`Episode::run`].
    ///
    /// # Errors
    /// Same as [`Episode::run`].
    pub async fn run(self, events: mpsc::Sender<Event>) -> Result<Trajectory, AgentError> {
        let played = play(self.episode, Some(self.begun), TurnStates::Discard, events.clone()).await;
        Ok(report_failure(played, &events).await?.trajectory)
    }
}

impl<S: SessionSource> fmt::Debug for EpisodeState<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpisodeState").field("turn", &self.turn()).finish_non_exhaustive()
    }
}

impl<S: SessionSource> fmt::Debug for EpisodeBranch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpisodeBranch").field("id", &self.episode.id()).finish_non_exhaustive()
    }
}
