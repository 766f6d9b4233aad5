//! The sequence of the serving loop and of the evaluation: one session that grows.

use waymark_engine::{Generate, Origin, SessionOptions, Token};

use crate::AgentError;
use crate::generator::{Generator, SessionSource};

use super::driver::EpisodeSequence;
use super::machine::EpisodeMachine;
use super::step::TurnEnd;
use super::world::World;

/// A session that sees every visible token of the episode. When evidence is hidden, a shorter session replaces it and
/// computes the tokens after that evidence again; otherwise no token is computed twice.
pub(super) struct GrowingSession<S: SessionSource> {
    source: S,
    options: SessionOptions,
    /// The session. `None` once it is closed.
    session: Option<S::Sequence>,
}

impl<S: SessionSource> GrowingSession<S> {
    /// Goes on in `session`. `None` opens an empty one.
    pub(super) fn new(source: S, options: SessionOptions, session: Option<S::Sequence>) -> GrowingSession<S> {
        let session = Some(session.unwrap_or_else(|| source.open(options)));
        GrowingSession { source, options, session }
    }
}

impl<S: SessionSource> EpisodeSequence for GrowingSession<S> {
    type Session = S::Sequence;

    fn extend(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        if let Some(session) = &mut self.session {
            session.append(ids, origin, forced);
        }
    }

    fn rebuild(&mut self, tokens: &[Token], kept: usize) {
        if let Some(session) = self.session.take() {
            // The tokens that stay are not computed again.
            let mut shorter = self.source.shorten(session, kept, self.options);
            shorter.append_all(&tokens[kept.min(tokens.len())..]);
            self.session = Some(shorter);
        }
    }

    fn fork(&self, length: usize) -> Option<S::Sequence> {
        self.session.as_ref().map(|session| self.source.fork(session, length, self.options))
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
