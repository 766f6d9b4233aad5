//! A session's handle.

use std::sync::Arc;
use std::time::Instant;

use super::command::{EngineCommand, Fork, Submission};
use super::error::EngineError;
use super::handle::EngineShared;
use super::mailbox::mailbox;
use super::request::{Generate, SessionOptions};
use super::stage::TurnStage;
use super::token::{Origin, Token};
use super::turn::Turn;

/// A growing token sequence and its KV. Dropping it cancels its turn and frees its blocks within two steps.
///
/// Ids are append-only: the sequence before a turn is a prefix of the sequence after it.
#[derive(Debug)]
pub struct Session {
    pub(super) shared: Arc<EngineShared>,
    pub(super) id: u64,
    options: SessionOptions,
    pub(super) tokens: Vec<Token>,
    /// Number of leading `tokens` that the engine has received.
    pub(super) known: usize,
    pub(super) cached: usize,
    /// If `true`, the engine has been told of this session, by a turn or a fork.
    open: bool,
    /// If `true`, the engine has accepted a turn of this session.
    admitted: bool,
}

impl Session {
    pub(super) fn new(shared: Arc<EngineShared>, id: u64, options: SessionOptions) -> Self {
        Self { shared, id, options, tokens: Vec::new(), known: 0, cached: 0, open: false, admitted: false }
    }

    /// Returns the session's number, unique within its engine.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns a session that continues the first `length` tokens of this one, with their origins and the same options.
    /// Both sessions share the blocks of these tokens; a block is copied when one of them writes to it. The new session
    /// computes only the last of the tokens again, for its logits. A `length` beyond the end means all tokens.
    #[must_use]
    pub fn fork(&self, length: usize) -> Session {
        let Self { options, cached, .. } = *self;
        let tokens = self.tokens[..length.min(self.tokens.len())].to_vec();
        let keep = if self.open { self.known.min(tokens.len()) } else { 0 };
        let id = self.shared.next_session();
        if keep > 0 {
            let fork = Fork { parent: self.id, session: id, options, keep, asked: Instant::now() };
            self.shared.send(EngineCommand::Fork(fork));
        }
        Session {
            shared: self.shared.clone(),
            id,
            options,
            tokens,
            known: keep,
            cached,
            open: keep > 0,
            admitted: false,
        }
    }

    /// Appends given tokens. They are computed with the next turn.
    pub fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token { id, origin, logprob: None, forced }));
    }

    /// Begins a turn. Computes only the tokens appended since the last turn, and the last token sampled in that turn.
    ///
    /// # Errors
    /// [`EngineError::QueueFull`] for a new session when too many wait; [`EngineError::TooLong`] when no room is left
    /// to sample; [`EngineError::Request`] for invalid parameters; [`EngineError::Dead`] after the engine has stopped.
    /// The session stays as it was.
    pub async fn generate(&mut self, generate: Generate) -> Result<Turn<'_>, EngineError> {
        self.check(&generate)?;
        // Later turns need no permit: the session already holds its ticket and may hold blocks.
        let permit = if self.admitted { None } else { Some(self.shared.permit()?) };
        let (outbox, inbox) = mailbox(self.shared.config.max_undelivered);
        let submission = Submission {
            session: self.id,
            options: self.options,
            keep: self.known,
            append: self.tokens[self.known..].iter().map(|token| token.id).collect(),
            generate,
            outbox,
            submitted: Instant::now(),
            stage: TurnStage::queue(),
            permit,
        };
        self.shared.send(EngineCommand::Generate(Box::new(submission)));
        // Set even if the engine refuses the turn: it then refuses the next one too, because `keep` exceeds what it has.
        self.admitted = true;
        self.open = true;
        self.known = self.tokens.len();
        Ok(Turn::new(self, inbox))
    }

    fn check(&self, generate: &Generate) -> Result<(), EngineError> {
        self.shared.alive()?;
        let refuse = |reason: String| Err(EngineError::Request(reason));
        let vocab = self.shared.spec.vocab;
        if self.tokens.is_empty() {
            return refuse("the prompt has no tokens".into());
        }
        let mut given = self.tokens[self.known..].iter().map(|token| token.id).chain(generate.force.iter().copied());
        if let Some(id) = given.find(|&id| id as usize >= vocab) {
            return refuse(format!("token {id} is outside the vocabulary of {vocab} tokens"));
        }
        if generate.max_tokens == 0 {
            return refuse("max_tokens must be at least 1".into());
        }
        if generate.allow.as_ref().is_some_and(|allow| !allow.iter().any(|&id| (id as usize) < vocab)) {
            return refuse("the allow-list contains no token of the vocabulary".into());
        }
        let ends = |id: &u32| generate.eos.contains(id) || *id as usize >= vocab;
        if generate.min_tokens > generate.force.len() && generate.allow.as_ref().is_some_and(|ids| ids.iter().all(ends))
        {
            return refuse(format!(
                "the allow-list contains only tokens that end the turn, but min_tokens is {}: set it to 0",
                generate.min_tokens
            ));
        }
        if generate.allow.is_some() && generate.constraint.is_some() {
            return refuse("an allow-list and a constraint exclude each other: give only one".into());
        }
        if let Err(error) = generate.sampling.check() {
            return refuse(error.to_string());
        }
        let tokens = self.tokens.len();
        let limit = self.shared.limit();
        if tokens >= limit { Err(EngineError::TooLong { tokens, limit }) } else { Ok(()) }
    }

    /// Returns all tokens, appended and delivered.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the length in tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns `true` if no token was appended yet.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the number of tokens of the first prompt found in the prefix cache. Known once a turn has delivered a
    /// token.
    pub fn cached_prompt_tokens(&self) -> usize {
        self.cached
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The engine does not know a session before its first turn or fork.
        if self.open {
            self.shared.send(EngineCommand::Close(self.id));
        }
    }
}
