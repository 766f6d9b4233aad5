//! What an answer must be, where a request says so: JSON, held to token by token.

use std::sync::Arc;

use waymark_models::grammar::{GrammarError, Json, Vocabulary};
use waymark_models::tokenizer::TokenBytes;

use super::closing::Closing;
use super::opening::Opening;
use super::protocol::{Kind, Tags};
use crate::engine::Constraint;

/// The rules for the turns of one protocol.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// For a turn from its beginning.
    pub(super) turn: Arc<dyn Constraint>,
    /// For what follows the tag that opens an answer.
    pub(super) answer: Arc<dyn Constraint>,
    /// The tag that ends an answer; empty where the turn does.
    close: &'static str,
}

impl Shape {
    /// Answers that are `json`: the whole turn where it has no tags for them, else what stands between the two.
    pub(super) fn new(
        json: &Json,
        tags: &Tags,
        vocabulary: &Vocabulary,
        tokens: Arc<TokenBytes>,
        eos: &[u32],
    ) -> Result<Shape, GrammarError> {
        let json: Arc<dyn Constraint> = Arc::new(vocabulary.compile(json)?);
        let Some(tag) = tags.pairs.iter().find(|tag| tag.kind == Kind::Answer) else {
            return Ok(Shape { turn: Arc::clone(&json), answer: json, close: "" });
        };
        // What nothing closes ends as JSON by itself does: with the turn.
        let answer: Arc<dyn Constraint> = match tag.close {
            "" => json,
            close => Arc::new(Closing::new(json, close, Arc::clone(&tokens), eos.to_vec())),
        };
        let turn: Arc<dyn Constraint> = Arc::new(Opening::new(tag, tags, tokens, Arc::clone(&answer)));
        Ok(Shape { turn, answer, close: tag.close })
    }

    /// Whether what ends with `close` is an answer.
    pub(super) fn ends(&self, close: &str) -> bool {
        self.close == close
    }
}
