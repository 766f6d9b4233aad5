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

/// Knowledge that the engine has of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Registration {
    /// The engine does not know the session yet.
    New,
    /// The engine has the session as a fork, and was sent no turn of it.
    Forked,
    /// The engine was sent a turn of the session.
    Admitted,
}

/// A growing token sequence and its KV. Dropping it cancels its turn and frees its blocks within two steps.
///
/// Ids are append-only within a turn: the sequence before a turn is a prefix of the sequence after it. Between turns,
/// [`truncate`](Self::truncate) removes the last ones.
#[derive(Debug)]
pub struct Session {
    pub(super) shared: Arc<EngineShared>,
    pub(super) id: u64,
    options: SessionOptions,
    pub(super) tokens: Vec<Token>,
    /// Number of leading `tokens` that the engine has received.
    pub(super) known: usize,
    pub(super) cached: usize,
    registration: Registration,
}

impl Session {
    pub(super) fn new(shared: Arc<EngineShared>, id: u64, options: SessionOptions) -> Self {
        let registration = Registration::New;
        Self { shared, id, options, tokens: Vec::new(), known: 0, cached: 0, registration }
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
        // The engine has nothing of a new session to share.
        let keep = if self.registration == Registration::New { 0 } else { self.known.min(tokens.len()) };
        let id = self.shared.next_session();
        if keep > 0 {
            let fork = Fork { parent: self.id, session: id, options, keep, asked: Instant::now() };
            self.shared.send(EngineCommand::Fork(fork));
        }
        let registration = if keep > 0 { Registration::Forked } else { Registration::New };
        Session { shared: self.shared.clone(), id, options, tokens, known: keep, cached, registration }
    }

    /// Keeps the first `length` tokens. Unlike a fork, the session keeps its number, its age and its place, so a
    /// full queue does not refuse the next turn. That turn computes none of the kept tokens whose KV the session still
    /// has, except the last one if nothing is appended. A `length` beyond the end changes nothing.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.known = self.known.min(self.tokens.len());
    }

    /// Appends given tokens. They are computed with the next turn.
    pub fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token::given(id, origin, forced)));
    }

    /// Begins a turn. Computes only the tokens appended since the last turn, and the last token sampled in that turn.
    ///
    /// # Errors
    /// [`EngineError::QueueFull`] for a new session when too many wait; [`EngineError::TooLong`] when no room is left
    /// to sample; [`EngineError::Request`] for invalid parameters; [`EngineError::Dead`] after the engine has stopped.
    /// The session stays as it was.
    pub async fn generate(&mut self, generate: Generate) -> Result<Turn<'_>, EngineError> {
        self.shared.alive()?;
        generate.check(&self.tokens, self.known, &self.shared.spec)?;
        // Later turns need no permit: the session already holds its ticket and may hold blocks.
        let permit = if self.registration == Registration::Admitted { None } else { Some(self.shared.permit()?) };
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
        self.registration = Registration::Admitted;
        self.known = self.tokens.len();
        Ok(Turn::new(self, inbox))
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
        if self.registration != Registration::New {
            self.shared.send(EngineCommand::Close(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use waymark_models::sampler::SamplingParams;
    use waymark_models::tokenizer::Tokenizer;

    use super::super::config::EngineConfig;
    use super::super::handle::Engine;
    use super::super::mock::{MockBackend, Random};
    use super::*;

    const RANDOM: Random = Random { seed: 7, vocab: 259 };

    fn greedy(max_tokens: usize) -> Generate {
        Generate { sampling: SamplingParams::greedy(), max_tokens, ..Generate::default() }
    }

    #[tokio::test]
    async fn a_full_queue_refuses_a_fork_but_not_a_shortened_session() {
        let time = Duration::from_millis(20);
        let backend = MockBackend::random(RANDOM.seed, RANDOM.vocab).with_time(time, Duration::ZERO);
        let config = EngineConfig { max_batch_rows: 1, max_waiting: 1, ..EngineConfig::default() };
        let engine = Engine::start(Box::new(backend), config, Tokenizer::bytes().table()).unwrap();
        let [mut shortened, mut running, mut waiting] = [1, 2, 3].map(|first| {
            let mut session = engine.session(SessionOptions::default());
            session.append(&[first; 40], Origin::Prompt, false);
            session
        });
        let mut turn = shortened.generate(greedy(10)).await.unwrap();
        while let Some(step) = turn.next().await {
            step.unwrap();
        }
        drop(turn);
        let mut stream = running.generate(greedy(1000)).await.unwrap();
        stream.next().await.unwrap().unwrap();
        let queued = waiting.generate(greedy(1)).await.unwrap();
        let mut fork = shortened.fork(20);
        assert_eq!(fork.generate(greedy(1)).await.unwrap_err(), EngineError::QueueFull { limit: 1 });
        drop(fork);
        shortened.truncate(20);
        shortened.append(&[9; 5], Origin::Environment, false);
        let mut turn = shortened.generate(greedy(5)).await.unwrap();
        drop((stream, queued));
        while let Some(step) = turn.next().await {
            step.unwrap();
        }
        drop(turn);
        let ids: Vec<u32> = shortened.tokens().iter().map(|token| token.id).collect();
        assert_eq!((ids.len(), &ids[18..25]), (30, [1, 1, 9, 9, 9, 9, 9].as_slice()));
        for (position, id) in ids.iter().enumerate().skip(25) {
            assert_eq!(*id, RANDOM.next(None, &ids[..position]), "at {position}");
        }
        assert_eq!(engine.counters().prefill_tokens_recomputed_total.get(), 0, "the kept tokens were computed again");
    }
}
