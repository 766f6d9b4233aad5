//! Sessions whose evidence is hidden.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::run::driver::EpisodeSequence;
use crate::run::growing::GrowingSession;

use super::*;

/// Source that numbers the sessions that it opens.
#[derive(Debug, Clone, Default)]
struct NumberedSource(Arc<AtomicUsize>);

/// Session of a [`NumberedSource`].
#[derive(Debug)]
struct NumberedSession {
    number: usize,
    tokens: Vec<Token>,
}

impl NumberedSession {
    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

impl SessionSource for NumberedSource {
    type Sequence = NumberedSession;

    fn open(&self, _options: SessionOptions) -> NumberedSession {
        NumberedSession { number: self.0.fetch_add(1, Relaxed), tokens: Vec::new() }
    }

    fn shorten(&self, mut sequence: NumberedSession, length: usize, _options: SessionOptions) -> NumberedSession {
        sequence.tokens.truncate(length);
        sequence
    }

    fn limit(&self) -> usize {
        1 << 20
    }
}

impl Generator for NumberedSession {
    type Generation<'a> = NoEngine;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token::given(id, origin, forced)));
    }

    async fn generate(&mut self, _spec: Generate) -> Result<NoEngine, EngineError> {
        Err(EngineError::QueueFull { limit: 0 })
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the number, which a sequence reports when it is closed.
    fn cached_prompt_tokens(&self) -> usize {
        self.number
    }
}

#[test]
fn a_rebuilt_sequence_stays_in_its_session_and_a_fork_has_its_own() {
    let source = NumberedSource::default();
    // A sequence that is closed already would report 0.
    assert_eq!(source.open(SessionOptions::default()).number, 0);
    let mut sequence = GrowingSession::new(source, SessionOptions::default(), None);
    sequence.extend(&[1, 2, 3, 4], Origin::Prompt, false);
    let visible = [1, 2, 9].map(|id| Token::given(id, Origin::Prompt, false));
    sequence.rebuild(&visible, 2);
    let fork = sequence.fork(3).unwrap();
    assert_eq!((fork.number, fork.ids()), (2, vec![1, 2, 9]));
    assert_eq!(sequence.close(), 1);
}
