//! The sequences of the training loop: a new session for each turn, which is cut after sampling and encoded again.

use std::sync::Arc;

use waymark_engine::{Generate, Origin, SessionOptions, Token};

use crate::AgentError;
use crate::episode::EpisodeSettings;
use crate::generator::{Generator, SessionSource};
use crate::policy::Policy;
use crate::protocol::Protocol;
use crate::text_codec::TextCodec;

use super::driver::EpisodeSequence;
use super::machine::EpisodeMachine;
use super::step::TurnEnd;
use super::world::World;

/// Sessions of turns. The first one sees the whole prompt, and later ones the end of the record.
pub(super) struct SessionPerTurn<S: SessionSource> {
    source: S,
    options: SessionOptions,
    /// Session of the current turn. `None` before the first turn and after the last.
    session: Option<S::Sequence>,
    protocol: Arc<dyn Protocol>,
    codec: TextCodec,
    /// Maximum number of tokens that a session sees, from the second turn on.
    visible: usize,
    /// Number of tokens after the prompt that the record keeps.
    kept: usize,
}

impl<S: SessionSource> SessionPerTurn<S> {
    /// Prepares the sessions of an episode.
    pub(super) fn new(
        source: S,
        options: SessionOptions,
        policy: &Policy,
        settings: &EpisodeSettings,
        codec: TextCodec,
    ) -> SessionPerTurn<S> {
        let context = settings.budget.context_tokens;
        // A session must have room for a whole turn after the visible tokens.
        let visible = context.min(source.limit().saturating_sub(settings.budget.turn_tokens));
        let protocol = Arc::clone(&policy.protocol);
        let kept = protocol.training().map_or(usize::MAX, |training| training.response_tokens(context));
        SessionPerTurn { source, options, session: None, protocol, codec, visible, kept }
    }
}

impl<S: SessionSource> EpisodeSequence for SessionPerTurn<S> {
    type Session = S::Sequence;

    /// Does nothing: the next session reads the record.
    fn extend(&mut self, _ids: &[u32], _origin: Origin, _forced: bool) {}

    /// Does nothing: the next session reads the record.
    fn rebuild(&mut self, _tokens: &[Token], _kept: usize) {}

    fn fork(&self, _length: usize) -> Option<S::Sequence> {
        None
    }

    async fn generate(
        &mut self,
        spec: Generate,
        machine: &mut EpisodeMachine,
        world: &World,
    ) -> Result<TurnEnd, AgentError> {
        let tokens = machine.transcript().visible();
        // The first session may see all of the prompt, which `truncate_prompt` has cut to the context.
        let visible = if machine.turn().number == 1 { usize::MAX } else { self.visible };
        // The end of the record is kept, like the rolling state of Search-R1's `generation.py`.
        let hidden = tokens.len().saturating_sub(visible);
        let ids: Vec<u32> = tokens[hidden..].iter().map(|token| token.id).collect();
        let session = self.session.insert(self.source.open(self.options));
        // All tokens are a prompt to this session, because those sampled in earlier turns were encoded again.
        session.append(&ids, Origin::Prompt, false);
        let ended = world.stream(session.generate(spec).await?, machine).await?;
        let events = machine.end_text();
        world.emit_all(events).await?;
        let text = machine.turn().kept();
        let kept = self.protocol.training().map_or(text, |training| training.cut(text));
        let bytes = kept.len();
        let ids = self.codec.literal(kept)?;
        // From here on the record, not the session, is what the policy wrote.
        machine.cut_turn(bytes, &ids);
        Ok(ended)
    }

    fn cut_record(&self, machine: &mut EpisodeMachine) {
        machine.truncate_response(self.kept);
    }

    fn close(&mut self) -> usize {
        self.session.take().map_or(0, |session| session.cached_prompt_tokens())
    }
}
