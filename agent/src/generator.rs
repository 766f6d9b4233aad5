//! The interface between the loop and token generation: the engine, engines elsewhere, or a script in tests.

use std::path::PathBuf;
use std::sync::Arc;

use waymark_engine::{
    Engine, EngineError, Generate, Lease, LoadedAdapter, Origin, Session, SessionOptions, Token, TokenStep, Turn,
    TurnFinish,
};

use super::logprob_fingerprint::LogprobFingerprint;

/// A source of token sequences. Cheap to clone.
pub trait SessionSource: Clone + Send + Sync + 'static {
    /// Type of a sequence.
    type Sequence: Generator;

    /// Opens an empty sequence.
    fn open(&self, options: SessionOptions) -> Self::Sequence;

    /// Returns a sequence with the first `length` tokens of `sequence`, which has the same options. By default, opens a
    /// new sequence, whose tokens are computed again.
    fn fork(&self, sequence: &Self::Sequence, length: usize, options: SessionOptions) -> Self::Sequence {
        let mut fork = self.open(options);
        let tokens = sequence.tokens();
        fork.append_all(&tokens[..length.min(tokens.len())]);
        fork
    }

    /// Returns `sequence` without the tokens after its first `length` ones. It has the same options. Unlike a fork, it
    /// may stay the same session, here or at an engine elsewhere. By default, forks the sequence.
    fn shorten(&self, sequence: Self::Sequence, length: usize, options: SessionOptions) -> Self::Sequence {
        self.fork(&sequence, length, options)
    }

    /// Returns the maximum length of a sequence, in tokens.
    fn limit(&self) -> usize;

    /// Loads a PEFT adapter, which stays loaded until the lease and all its clones are dropped.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] when the adapter does not fit the model, and from a source without adapters.
    fn lease_adapter(&self, dir: PathBuf) -> impl Future<Output = Result<Lease, EngineError>> + Send {
        let reason = format!("this source of tokens has no adapters: {} cannot be loaded", dir.display());
        std::future::ready(Err(EngineError::Adapter(reason)))
    }

    /// Compares the weights of `policy`, with its loaded adapter if it has one, with their fingerprint: now, and
    /// whenever the weights may have been replaced. By default nothing is compared, because a source in this process
    /// has read the weights itself.
    ///
    /// # Errors
    /// The difference, if the weights are others.
    fn check_fingerprint(
        &self,
        _policy: &str,
        _adapter: Option<LoadedAdapter>,
        _fingerprint: Arc<LogprobFingerprint>,
    ) -> impl Future<Output = Result<(), FingerprintFailure>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Error of a comparison with a fingerprint: a description of the difference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FingerprintFailure(pub String);

/// A growing token sequence, with the contract of [`Session`].
pub trait Generator: Send {
    /// A running generation.
    type Generation<'a>: Steps
    where
        Self: 'a;

    /// Appends given tokens.
    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool);

    /// Appends the tokens of another sequence as given ones, with their origins.
    fn append_all(&mut self, tokens: &[Token]) {
        for run in tokens.chunk_by(|a, b| (a.origin, a.forced) == (b.origin, b.forced)) {
            let ids: Vec<u32> = run.iter().map(|token| token.id).collect();
            self.append(&ids, run[0].origin, run[0].forced);
        }
    }

    /// Begins to sample.
    ///
    /// # Errors
    /// Same as [`Session::generate`].
    fn generate(&mut self, spec: Generate) -> impl Future<Output = Result<Self::Generation<'_>, EngineError>> + Send;

    /// Returns all tokens.
    fn tokens(&self) -> &[Token];

    /// Returns the number of tokens of the first prompt that came from the prefix cache.
    fn cached_prompt_tokens(&self) -> usize;
}

/// A running generation, with the contract of [`Turn`].
pub trait Steps: Send {
    /// Returns the next token; `None` after the last one.
    fn next(&mut self) -> impl Future<Output = Option<Result<TokenStep, EngineError>>> + Send;

    /// Returns the reason for the end.
    fn finish(&self) -> Option<TurnFinish>;

    /// Takes the next resumption that the caller has not seen yet.
    fn resumption(&mut self) -> Option<Resumption> {
        None
    }
}

/// A generation that failed and went on elsewhere, or in a new attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumption {
    /// Number of tokens of the generation delivered before the failure. None of them is repeated.
    pub delivered: usize,
    /// Reason of the failure.
    pub reason: String,
}

impl SessionSource for Engine {
    type Sequence = Session;

    fn open(&self, options: SessionOptions) -> Session {
        self.session(options)
    }

    /// Shares the blocks of both sequences.
    fn fork(&self, sequence: &Session, length: usize, _options: SessionOptions) -> Session {
        sequence.fork(length)
    }

    /// Stays the same session, which a full queue does not refuse.
    fn shorten(&self, mut sequence: Session, length: usize, _options: SessionOptions) -> Session {
        sequence.truncate(length);
        sequence
    }

    fn limit(&self) -> usize {
        Engine::limit(self)
    }

    async fn lease_adapter(&self, dir: PathBuf) -> Result<Lease, EngineError> {
        Engine::lease_adapter(self, dir).await
    }
}

impl Generator for Session {
    type Generation<'a> = Turn<'a>;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        Session::append(self, ids, origin, forced);
    }

    async fn generate(&mut self, spec: Generate) -> Result<Turn<'_>, EngineError> {
        Session::generate(self, spec).await
    }

    fn tokens(&self) -> &[Token] {
        Session::tokens(self)
    }

    fn cached_prompt_tokens(&self) -> usize {
        Session::cached_prompt_tokens(self)
    }
}

impl Steps for Turn<'_> {
    async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        Turn::next(self).await
    }

    fn finish(&self) -> Option<TurnFinish> {
        Turn::finish(self)
    }
}
