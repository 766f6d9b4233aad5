//! Token exchange with the session, recorded token by token.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use waymark_engine::{Constraint, Generate, Origin, StopSet, Token, TurnFinish};

use super::AgentError;
use super::generator::{Generator, SessionSource, Steps};
use super::run::EpisodeRun;
use super::turn_reader::TurnReader;

/// Parameters of one generation.
#[derive(Default)]
pub(super) struct GenerationParams {
    /// Maximum number of tokens; not 0.
    pub(super) max: usize,
    /// Stop strings.
    pub(super) stops: Arc<StopSet>,
    /// Token ids that may be chosen. `None` allows all.
    pub(super) allow: Option<Vec<u32>>,
    /// Constraint on the text. `None` allows any.
    pub(super) constraint: Option<Arc<dyn Constraint>>,
    /// Tokens banned by guided generation.
    pub(super) bans: Option<Arc<[(u32, f32)]>>,
}

/// Reason for the end of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// The stop string with this index was completed.
    Tag(usize),
    /// The policy ended the turn.
    Eos,
    /// The token limit was reached.
    Length,
    /// The context was exhausted.
    Context,
    /// A client's stop string or a tool call ended the answer.
    Stopped,
    /// The time was exhausted.
    Time,
}

impl From<TurnFinish> for TurnEnd {
    fn from(finish: TurnFinish) -> TurnEnd {
        match finish {
            TurnFinish::Stop(which) => TurnEnd::Tag(which),
            TurnFinish::Eos => TurnEnd::Eos,
            TurnFinish::Length => TurnEnd::Length,
            TurnFinish::Context => TurnEnd::Context,
        }
    }
}

impl<S: SessionSource> EpisodeRun<S> {
    /// Appends given tokens to the sequence.
    pub(super) fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.session.append(ids, origin, forced);
        self.tokens.extend(ids.iter().map(|&id| Token { id, origin, logprob: None, forced }));
    }

    /// Forces tokens in the policy's name.
    pub(super) async fn force(&mut self, reader: &mut TurnReader, ids: &[u32]) -> Result<(), AgentError> {
        self.append(ids, Origin::Policy, true);
        self.emit_all(reader.push_forced(ids)).await
    }

    /// Lets the policy write, and emits events for its text. Never exceeds the limits of the episode: without tokens
    /// left it returns [`TurnEnd::Context`] at once.
    pub(super) async fn sample(
        &mut self,
        reader: &mut TurnReader,
        mut want: GenerationParams,
    ) -> Result<TurnEnd, AgentError> {
        let began = Instant::now();
        let left = self.settings.budget.sampled_tokens.saturating_sub(self.sampled);
        want.max = want.max.min(left).min(self.context_left());
        if want.max == 0 {
            return Ok(TurnEnd::Context);
        }
        let spec = self.spec(want);
        let ended = self.stream(reader, spec).await;
        self.timings.generation += began.elapsed().as_secs_f64();
        ended
    }

    async fn stream(&mut self, reader: &mut TurnReader, spec: Generate) -> Result<TurnEnd, AgentError> {
        let mut turn = self.session.generate(spec).await?;
        loop {
            let step = match timeout_at(self.deadline, turn.next()).await {
                Err(_) => return Ok(TurnEnd::Time),
                Ok(None) => return Ok(turn.finish().map_or(TurnEnd::Eos, TurnEnd::from)),
                Ok(Some(step)) => step?,
            };
            self.timings.first_token.get_or_insert_with(|| self.began.elapsed().as_secs_f64());
            self.sampled += 1;
            let id = step.id;
            let logprob = Some(step.logprob);
            self.tokens.push(Token { id, origin: Origin::Policy, logprob, forced: false });
            for event in reader.push(&step) {
                self.events.send(event).await.map_err(|_| AgentError::Disconnected)?;
            }
            if reader.stopped() {
                return Ok(TurnEnd::Stopped);
            }
        }
    }

    fn spec(&mut self, want: GenerationParams) -> Generate {
        // Without its own random sequence, a turn that begins like another one would continue like it.
        const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
        let seed = self.settings.seed.wrapping_add(self.generations.wrapping_mul(STRIDE));
        self.generations += 1;
        let mut sampling = self.settings.sampling.params(seed, self.settings.logprobs.unwrap_or(0));
        sampling.logit_bias.extend(want.bans.iter().flat_map(|bans| bans.iter()));
        let eos = self.runtime.eos.clone();
        let GenerationParams { max, stops, allow, constraint, .. } = want;
        Generate { sampling, max_tokens: max, stops, eos, allow, constraint, ..Generate::default() }
    }

    /// Opens a new session for a turn of the training variant, which sees the end of the sequence only.
    pub(super) fn reopen_session(&mut self) {
        if !self.policy.variant.is_training() || self.turn == 1 {
            return;
        }
        // The new session must have room for a whole turn after the visible tokens.
        let room = self.runtime.engine.limit().saturating_sub(self.settings.budget.turn_tokens);
        let seen = self.settings.budget.context_tokens.min(room).min(self.tokens.len());
        let ids: Vec<u32> = self.tokens[self.tokens.len() - seen..].iter().map(|token| token.id).collect();
        let options = self.settings.session(&self.policy);
        self.session = self.runtime.engine.open(options);
        self.session.append(&ids, Origin::Prompt, false);
    }

    /// Replaces the tokens sampled since `start` by the part of their text that training keeps, encoded again.
    /// End-of-sequence tokens vanish; log-probabilities stay as far as the ids agree. Cut tokens do not count as
    /// sampled.
    pub(super) fn cut_turn(&mut self, start: usize, text: &str) -> Result<(), AgentError> {
        let ids = self.runtime.literal(self.policy.protocol.cut(text))?;
        let sampled = self.tokens.split_off(start);
        self.sampled = self.sampled.saturating_sub(sampled.len().saturating_sub(ids.len()));
        let agree = ids.iter().zip(&sampled).take_while(|(id, token)| **id == token.id).count();
        self.tokens.extend(ids.iter().enumerate().map(|(i, &id)| Token {
            id,
            origin: Origin::Policy,
            logprob: (i < agree).then(|| sampled[i].logprob).flatten(),
            forced: false,
        }));
        Ok(())
    }
}
