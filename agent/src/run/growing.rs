//! The sequence of the serving loop and of the evaluation: one session that grows.

use waymark_engine::{Generate, Origin, SessionOptions};

use crate::AgentError;
use crate::generator::{Generator, SessionSource};

use super::driver::EpisodeSequence;
use super::machine::EpisodeMachine;
use super::step::TurnEnd;
use super::world::World;

/// A session that sees every token of the episode. Nothing in it is computed twice.
pub(super) struct GrowingSession<G> {
    /// The session. `None` once it is closed.
    session: Option<G>,
}

impl<G: Generator> GrowingSession<G> {
    /// Opens an empty session.
    pub(super) fn open<S: SessionSource<Sequence = G>>(source: &S, options: SessionOptions) -> GrowingSession<G> {
        GrowingSession { session: Some(source.open(options)) }
    }
}

impl<G: Generator> EpisodeSequence for GrowingSession<G> {
    fn extend(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        if let Some(session) = &mut self.session {
            session.append(ids, origin, forced);
        }
    }

    async fn generate(
        &mut self,
        spec: Generate,
        machine: &mut EpisodeMachine,
        world: &World,
    ) -> Result<TurnEnd, AgentError> {
        // A closed sequence cannot grow, like one that is full.
        let Some(session) = &mut self.session else { return Ok(TurnEnd::Context) };
        world.stream(session.generate(spec).await?, machine).await
    }

    fn close(&mut self) -> usize {
        self.session.take().map_or(0, |session| session.cached_prompt_tokens())
    }
}
