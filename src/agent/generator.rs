//! The seam between the loop and what writes the tokens: the engine, or a script in a test.

use crate::engine::{Engine, EngineError, Finish, Generate, Origin, Session, SessionOptions, Step, Token, Turn};

/// Opens token sequences. Cheap to clone.
pub trait Source: Clone + Send + Sync + 'static {
    /// A sequence.
    type Session: Generator;

    /// A new, empty sequence.
    fn open(&self, options: SessionOptions) -> Self::Session;

    /// The longest sequence, in tokens.
    fn limit(&self) -> usize;
}

/// One growing token sequence; see [`Session`], whose contract this is.
pub trait Generator: Send {
    /// A running generation.
    type Turn<'a>: Steps
    where
        Self: 'a;

    /// Adds given tokens.
    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool);

    /// Begins to sample.
    ///
    /// # Errors
    /// As [`Session::generate`].
    fn generate(&mut self, spec: Generate) -> impl Future<Output = Result<Self::Turn<'_>, EngineError>> + Send;

    /// All tokens.
    fn tokens(&self) -> &[Token];

    /// How many of the first prompt came from the prefix cache.
    fn cached_prompt_tokens(&self) -> usize;
}

/// A running generation; see [`Turn`].
pub trait Steps: Send {
    /// The next token, `None` after the last.
    fn next(&mut self) -> impl Future<Output = Option<Result<Step, EngineError>>> + Send;

    /// Why it ended.
    fn finish(&self) -> Option<Finish>;
}

impl Source for Engine {
    type Session = Session;

    fn open(&self, options: SessionOptions) -> Session {
        self.session(options)
    }

    fn limit(&self) -> usize {
        Engine::limit(self)
    }
}

impl Generator for Session {
    type Turn<'a> = Turn<'a>;

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
    async fn next(&mut self) -> Option<Result<Step, EngineError>> {
        Turn::next(self).await
    }

    fn finish(&self) -> Option<Finish> {
        Turn::finish(self)
    }
}
