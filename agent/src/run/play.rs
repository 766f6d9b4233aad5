//! The choice of a loop.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::AgentError;
use crate::episode::Episode;
use crate::event::Event;
use crate::generator::SessionSource;
use crate::loop_variant::LoopVariant;
use crate::trajectory::Trajectory;

use super::driver::EpisodeDriver;
use super::growing::GrowingSession;
use super::machine::EpisodeMachine;
use super::per_turn::SessionPerTurn;
use super::setup::EpisodeSetup;
use super::world::World;

impl<S: SessionSource> Episode<S> {
    /// Runs the episode and sends `events` while it runs. Dropping the future interrupts the episode and frees its
    /// resources; a receiver that stops reading blocks the episode, and a dropped receiver ends it.
    ///
    /// # Errors
    /// [`AgentError::Engine`] when the engine fails, after an [`Event::Failed`]; [`AgentError::Disconnected`] when the receiver
    /// was dropped.
    pub async fn run(self, events: mpsc::Sender<Event>) -> Result<Trajectory, AgentError> {
        let result = play(self, events.clone()).await;
        if let Err(error) = &result {
            // A dropped receiver needs no event.
            let _ = events.send(Event::Failed { message: error.to_string(), code: error.code().to_owned() }).await;
        }
        result
    }
}

/// Runs an episode in the loop of its policy.
async fn play<S: SessionSource>(episode: Episode<S>, events: mpsc::Sender<Event>) -> Result<Trajectory, AgentError> {
    let Episode { runtime, policy, settings, question, prompt, partial } = episode;
    let settings = Arc::new(settings);
    let searcher = runtime.searcher.as_ref().filter(|_| settings.guided);
    let modes = searcher.map_or_else(Vec::new, |searcher| searcher.modes());
    let codec = runtime.codec();
    let setup = EpisodeSetup::new(codec.clone(), &policy, Arc::clone(&settings), question, modes);
    let machine = EpisodeMachine::new(setup, prompt);
    let options = settings.session(&policy);
    let world = World::new(events, runtime.searcher, Arc::clone(&settings));
    match policy.variant {
        LoopVariant::Serving | LoopVariant::Evaluation => {
            let sequence = GrowingSession::open(&runtime.engine, options);
            EpisodeDriver::new(machine, sequence, world, partial).run().await
        }
        LoopVariant::Training => {
            let sequence = SessionPerTurn::new(runtime.engine, options, &policy, &settings, codec);
            EpisodeDriver::new(machine, sequence, world, partial).run().await
        }
    }
}
