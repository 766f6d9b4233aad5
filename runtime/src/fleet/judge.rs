//! Decision on the end of a turn. It is made here, by the rules of the engine in this process, instead of by the remote
//! engine.

use std::sync::Arc;

use waymark_engine::{Generate, Matcher, TurnFinish};
use waymark_models::tokenizer::TokenBytes;

/// Judge of one turn.
#[derive(Debug)]
pub(super) struct TurnJudge {
    bytes: Arc<TokenBytes>,
    matcher: Matcher,
    /// Number of tokens so far.
    sampled: usize,
    /// Maximum length of the sequence, in tokens.
    limit: usize,
}

impl TurnJudge {
    /// Creates the judge of a turn in a sequence of at most `limit` tokens.
    pub(super) fn new(bytes: Arc<TokenBytes>, limit: usize) -> Self {
        Self { bytes, matcher: Matcher::default(), sampled: 0, limit }
    }

    /// Returns the number of tokens so far.
    pub(super) fn sampled(&self) -> usize {
        self.sampled
    }

    /// Takes a token of a sequence that has now `len` tokens. Returns the reason for the end of the turn, if the token
    /// ends it.
    pub(super) fn push(&mut self, spec: &Generate, token: u32, len: usize) -> Option<TurnFinish> {
        self.sampled += 1;
        let bytes = self.bytes.get(token);
        spec.finish_after(&mut self.matcher, token, bytes, self.sampled, len, self.limit)
    }
}
