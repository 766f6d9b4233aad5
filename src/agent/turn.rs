//! Tokens in and out of the session, each recorded as it comes.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::AgentError;
use super::generator::{Generator, Source, Steps};
use super::reader::Reader;
use super::run::Run;
use crate::engine::{Constraint, Finish, Generate, Origin, StopSet, Token};

/// What one generation may do.
#[derive(Default)]
pub(super) struct Want {
    /// Tokens at most; not 0.
    pub(super) max: usize,
    /// Where it ends.
    pub(super) stops: Arc<StopSet>,
    /// The only tokens it may choose, where not all.
    pub(super) allow: Option<Vec<u32>>,
    /// What it is held to.
    pub(super) constraint: Option<Arc<dyn Constraint>>,
    /// Tokens that guided generation keeps it from.
    pub(super) bans: Option<Arc<[(u32, f32)]>>,
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// One of the tags it waited for was completed.
    Tag(usize),
    /// The policy ended it.
    Eos,
    /// Its tokens were used up.
    Length,
    /// The context was used up.
    Context,
    /// One of the client's stop strings ended the answer, or a call of its tools.
    Stopped,
    /// The time was used up.
    Time,
}

impl From<Finish> for Ended {
    fn from(finish: Finish) -> Ended {
        match finish {
            Finish::Stop(which) => Ended::Tag(which),
            Finish::Eos => Ended::Eos,
            Finish::Length => Ended::Length,
            Finish::Context => Ended::Context,
        }
    }
}

impl<S: Source> Run<S> {
    /// Adds given tokens to the sequence.
    pub(super) fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.session.append(ids, origin, forced);
        self.tokens.extend(ids.iter().map(|&id| Token { id, origin, logprob: None, forced }));
    }

    /// Writes tokens for the policy.
    pub(super) async fn force(&mut self, reader: &mut Reader, ids: &[u32]) -> Result<(), AgentError> {
        self.append(ids, Origin::Policy, true);
        self.tell_all(reader.push_forced(ids)).await
    }

    /// Lets the policy write, and tells what it writes. Never goes beyond the bounds of the episode: with nothing left
    /// it ends with [`Ended::Context`] at once.
    pub(super) async fn sample(&mut self, reader: &mut Reader, mut want: Want) -> Result<Ended, AgentError> {
        let began = Instant::now();
        let left = self.settings.budget.sampled_tokens.saturating_sub(self.sampled);
        want.max = want.max.min(left).min(self.context_left());
        if want.max == 0 {
            return Ok(Ended::Context);
        }
        let spec = self.spec(want);
        let ended = self.stream(reader, spec).await;
        self.timings.generation += began.elapsed().as_secs_f64();
        ended
    }

    async fn stream(&mut self, reader: &mut Reader, spec: Generate) -> Result<Ended, AgentError> {
        let mut turn = self.session.generate(spec).await?;
        loop {
            let step = match timeout_at(self.deadline, turn.next()).await {
                Err(_) => return Ok(Ended::Time),
                Ok(None) => return Ok(turn.finish().map_or(Ended::Eos, Ended::from)),
                Ok(Some(step)) => step?,
            };
            self.timings.first_token.get_or_insert_with(|| self.began.elapsed().as_secs_f64());
            self.sampled += 1;
            let (id, logprob) = (step.id, Some(step.logprob));
            self.tokens.push(Token { id, origin: Origin::Policy, logprob, forced: false });
            for event in reader.push(&step) {
                self.events.send(event).await.map_err(|_| AgentError::Gone)?;
            }
            if reader.stopped() {
                return Ok(Ended::Stopped);
            }
        }
    }

    fn spec(&mut self, want: Want) -> Generate {
        // Each generation has its own random sequence, or turns that begin alike would go on alike.
        const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
        let seed = self.settings.seed.wrapping_add(self.generations.wrapping_mul(STRIDE));
        self.generations += 1;
        let mut sampling = self.settings.sampling.params(seed, self.settings.logprobs.unwrap_or(0));
        sampling.logit_bias.extend(want.bans.iter().flat_map(|bans| bans.iter()));
        let eos = self.runtime.eos.clone();
        let Want { max, stops, allow, constraint, .. } = want;
        Generate { sampling, max_tokens: max, stops, eos, allow, constraint, ..Generate::default() }
    }

    /// In the training variant every turn has a session of its own, which sees the end of the sequence.
    pub(super) fn reopen(&mut self) {
        if !self.policy.variant.cuts() || self.turn == 1 {
            return;
        }
        let room = self.runtime.engine.limit().saturating_sub(self.settings.budget.turn_tokens);
        let seen = self.settings.budget.context_tokens.min(room).min(self.tokens.len());
        let ids: Vec<u32> = self.tokens[self.tokens.len() - seen..].iter().map(|token| token.id).collect();
        let options = self.settings.session(&self.policy);
        self.session = self.runtime.engine.open(options);
        self.session.append(&ids, Origin::Prompt, false);
    }

    /// Replaces what was sampled since `start` by the part of its text that training keeps, encoded again.
    /// End-of-sequence tokens vanish; log-probabilities stay as far as the ids agree. What is cut off is not counted as sampled.
    pub(super) fn recut(&mut self, start: usize, text: &str) -> Result<(), AgentError> {
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
