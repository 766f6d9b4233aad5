//! A growing token sequence, as its owner sees it.

use std::sync::Arc;
use std::time::Instant;

use super::command::{Command, Submission};
use super::error::EngineError;
use super::handle::Shared;
use super::mailbox::mailbox;
use super::request::{Generate, SessionOptions};
use super::stage::Stage;
use super::token::{Origin, Token};
use super::turn::Turn;

/// One growing sequence of tokens and its KV. Dropping it cancels what it does and frees its blocks within two steps.
///
/// Ids are append-only: the sequence after a turn begins with the sequence before it.
#[derive(Debug)]
pub struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
    options: SessionOptions,
    pub(super) tokens: Vec<Token>,
    /// How many of `tokens` the engine knows.
    pub(super) known: usize,
    pub(super) cached: usize,
    /// Set with the first turn that was accepted.
    admitted: bool,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, id: u64, options: SessionOptions) -> Self {
        Self { shared, id, options, tokens: Vec::new(), known: 0, cached: 0, admitted: false }
    }

    /// Its number, unique in this engine.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Adds given tokens. Nothing is computed before the next turn.
    pub fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token { id, origin, logprob: None, forced }));
    }

    /// Begins a turn. Only what was appended since the last turn, and the last token sampled in it, is computed.
    ///
    /// # Errors
    /// [`EngineError::QueueFull`] for a new session when too many wait; [`EngineError::TooLong`] when no room is left to
    /// sample; [`EngineError::Request`] for a request without meaning; [`EngineError::Dead`] after the engine has
    /// stopped. The session stays as it was.
    pub async fn generate(&mut self, generate: Generate) -> Result<Turn<'_>, EngineError> {
        self.check(&generate)?;
        let permit = if self.admitted { None } else { Some(self.shared.permit()?) };
        let (outbox, inbox) = mailbox(self.shared.config.undelivered);
        let submission = Submission {
            session: self.id,
            options: self.options,
            keep: self.known,
            append: self.tokens[self.known..].iter().map(|token| token.id).collect(),
            generate,
            outbox,
            submitted: Instant::now(),
            stage: Stage::queue(),
            permit,
        };
        self.shared.send(Command::Generate(Box::new(submission)));
        self.admitted = true;
        self.known = self.tokens.len();
        Ok(Turn::new(self, inbox))
    }

    fn check(&self, generate: &Generate) -> Result<(), EngineError> {
        self.shared.alive()?;
        let refuse = |reason: String| Err(EngineError::Request(reason));
        let vocab = self.shared.spec.vocab;
        if self.tokens.is_empty() {
            return refuse("there is nothing to continue: the prompt has no tokens".into());
        }
        let mut given = self.tokens[self.known..].iter().map(|token| token.id).chain(generate.force.iter().copied());
        if let Some(id) = given.find(|&id| id as usize >= vocab) {
            return refuse(format!("token {id} is outside the vocabulary of {vocab}"));
        }
        if generate.max_tokens == 0 {
            return refuse("max_tokens must be at least 1".into());
        }
        if generate.allow.as_ref().is_some_and(|allow| !allow.iter().any(|&id| (id as usize) < vocab)) {
            return refuse("the allow-list has no token of the vocabulary".into());
        }
        if generate.allow.is_some() && generate.constraint.is_some() {
            return refuse("an allow-list and a constraint cannot be given together".into());
        }
        if let Err(error) = generate.sampling.check() {
            return refuse(error.to_string());
        }
        let (tokens, limit) = (self.tokens.len(), self.shared.limit());
        if tokens >= limit { Err(EngineError::TooLong { tokens, limit }) } else { Ok(()) }
    }

    /// All its tokens, those appended and those delivered.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Its length in tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// True before anything was appended.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// How many tokens of its first prompt were found in the prefix cache. Known once a turn has delivered something.
    pub fn cached_prompt_tokens(&self) -> usize {
        self.cached
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.admitted {
            self.shared.send(Command::Close(self.id));
        }
    }
}
