//! The choice of a loop.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::AgentError;
use crate::episode::Episode;
use crate::event::Event;
use crate::generator::SessionSource;
use crate::loop_variant::LoopVariant;
use crate::trajectory::Trajectory;

use super::driver::{EpisodeDriver, PlayedEpisode, TurnStates};
use super::episode_state::EpisodeState;
use super::growing::GrowingSession;
use super::machine::EpisodeMachine;
use super::per_turn::SessionPerTurn;
use super::setup::EpisodeSetup;
use super::turn_boundary::TurnState;
use super::world::World;

impl<S: SessionSource> Episode<S> {
    /// Runs the episode and sends its events while it runs. Dropping the future interrupts the episode and frees its
    /// resources; a receiver that stops reading blocks the episode, and a dropped receiver ends it.
    ///
    /// # Errors
    /// [`AgentError::Engine`] when the engine fails, after an [`Event::Failed`]; [`AgentError::Disconnected`] when the
    /// receiver was dropped.
    pub async fn run(self, events: mpsc::Sender<Event>) -> Result<Trajectory, AgentError> {
        let played = play(self, None, TurnStates::Discard, events.clone()).await;
        Ok(report_failure(played, &events).await?.trajectory)
    }

    /// Same as [`run`](Self::run), and returns the states at the beginnings of its turns, from which the episode can go
    /// on several times. A turn in which nothing was generated has none.
    ///
    /// # Errors
    /// Same as [`run`](Self::run).
    pub async fn run_with_states(
        self,
        events: mpsc::Sender<Event>,
    ) -> Result<(Trajectory, Vec<EpisodeState<S>>), AgentError> {
        let episode = Arc::new(self.again(None, 0));
        let played = play(self, None, TurnStates::Keep, events.clone()).await;
        let PlayedEpisode { trajectory, states } = report_failure(played, &events).await?;
        let state = |turn| EpisodeState::new(Arc::clone(&episode), turn);
        Ok((trajectory, states.into_iter().map(state).collect()))
    }
}

/// Sends the error of an episode that failed.
pub(super) async fn report_failure<T>(
    result: Result<T, AgentError>,
    events: &mpsc::Sender<Event>,
) -> Result<T, AgentError> {
    if let Err(error) = &result {
        // A dropped receiver needs no event.
        let _ = events.send(Event::Failed { message: error.to_string(), code: error.code().to_owned() }).await;
    }
    result
}

/// Runs an episode in the loop of its policy, from the beginning or from a state of another one.
pub(super) async fn play<S: SessionSource>(
    episode: Episode<S>,
    begun: Option<TurnState<S::Sequence>>,
    states: TurnStates,
    events: mpsc::Sender<Event>,
) -> Result<PlayedEpisode<S::Sequence>, AgentError> {
    let Episode { runtime, policy, settings, question, prompt, partial } = episode;
    let settings = Arc::new(settings);
    let searcher = runtime.searcher.as_ref().filter(|_| settings.guided);
    let modes = searcher.map_or_else(Vec::new, |searcher| searcher.modes());
    let codec = runtime.codec();
    let setup = EpisodeSetup::new(codec.clone(), &policy, Arc::clone(&settings), question, modes);
    let options = settings.session(&policy);
    let elapsed = begun.as_ref().map_or(Duration::ZERO, |begun| begun.elapsed);
    let world = World::new(events, runtime.searcher, Arc::clone(&settings)).resumed(elapsed);
    let (machine, session) = match begun {
        Some(TurnState { boundary, session, .. }) => (EpisodeMachine::resume(setup, boundary), session),
        None => (EpisodeMachine::new(setup, prompt), None),
    };
    match policy.variant {
        LoopVariant::Serving | LoopVariant::Evaluation => {
            let sequence = GrowingSession::new(runtime.engine, options, session);
            EpisodeDriver::new(machine, sequence, world, partial).keeping_states(states).run().await
        }
        LoopVariant::Training => {
            let sequence = SessionPerTurn::new(runtime.engine, options, &policy, &settings, codec);
            EpisodeDriver::new(machine, sequence, world, partial).keeping_states(states).run().await
        }
    }
}
