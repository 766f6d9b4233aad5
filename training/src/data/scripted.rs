//! Token generator that follows an author instead of a model, so that supervised trajectories pass through the agent's
//! own loop: its prompt, parser, observations and budget.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use waymark_agent::{Generator, SessionSource, Steps};
use waymark_engine::{EngineError, Generate, Matcher, Origin, SessionOptions, Token, TokenStep, TurnFinish};
use waymark_models::chat::{ChatTemplate, Message};
use waymark_models::tokenizer::{Specials, Tokenizer};

/// End token that the chat template writes after a reply; without a template, the first of `eos`. `None` if there are no
/// end tokens.
pub fn turn_end(tokenizer: &Tokenizer, template: Option<&ChatTemplate>, eos: &[u32]) -> Option<u32> {
    let reply = [Message::new("user", "a"), Message::new("assistant", "b")];
    let text = template.and_then(|template| template.render(&reply, false).ok());
    let ids = text.and_then(|text| tokenizer.encode(&text, Specials::Parse).ok()).unwrap_or_default();
    ids.into_iter().rev().find(|id| eos.contains(id)).or_else(|| eos.first().copied())
}

/// Author of the turns of an episode.
pub trait Author: Send {
    /// Returns the text of the next turn, up to and including its closing tag. `observation` is the environment's
    /// response to the previous turn, as the policy sees it; `None` in the first turn.
    fn turn(&mut self, observation: Option<&str>) -> String;
}

/// [`SessionSource`] of an author's turns. Every turn is the natural encoding of its text, with the origin `policy`.
#[derive(Clone)]
pub struct ScriptedGenerator {
    tokenizer: Arc<Tokenizer>,
    author: Arc<Mutex<dyn Author>>,
    limit: usize,
    turn_end: Option<u32>,
}

impl ScriptedGenerator {
    /// Creates a generator that follows `author`. Its sequences have at most `limit` tokens.
    pub fn new(tokenizer: Arc<Tokenizer>, author: Arc<Mutex<dyn Author>>, limit: usize) -> ScriptedGenerator {
        ScriptedGenerator { tokenizer, author, limit, turn_end: None }
    }

    /// Sets the token that ends turns without a stop string, as a model would write it: TeaRAG's final answers have no
    /// closing tag. `None`, the default, writes no token.
    #[must_use]
    pub fn with_turn_end(mut self, id: Option<u32>) -> ScriptedGenerator {
        self.turn_end = id;
        self
    }
}

impl fmt::Debug for ScriptedGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedGenerator").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl SessionSource for ScriptedGenerator {
    type Sequence = ScriptedSession;

    fn open(&self, _options: SessionOptions) -> ScriptedSession {
        ScriptedSession { script: self.clone(), tokens: Vec::new() }
    }

    fn limit(&self) -> usize {
        self.limit
    }
}

/// Session of a [`ScriptedGenerator`].
#[derive(Debug)]
pub struct ScriptedSession {
    script: ScriptedGenerator,
    tokens: Vec<Token>,
}

impl ScriptedSession {
    /// Text of the last observation, if there is one.
    fn observation(&self) -> Option<String> {
        let end = self.tokens.iter().rposition(|token| token.origin == Origin::Environment)? + 1;
        let length = self.tokens[..end].iter().rev().take_while(|token| token.origin == Origin::Environment).count();
        let ids: Vec<u32> = self.tokens[end - length..end].iter().map(|token| token.id).collect();
        Some(self.script.tokenizer.decode(&ids))
    }
}

impl Generator for ScriptedSession {
    type Generation<'a> = ScriptedTurn<'a>;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token { id, origin, logprob: None, forced }));
    }

    async fn generate(&mut self, spec: Generate) -> Result<ScriptedTurn<'_>, EngineError> {
        let observation = self.observation();
        let text = {
            // A panicking author ends the build anyway, so a poisoned lock is no concern.
            let mut author = self.script.author.lock().unwrap_or_else(PoisonError::into_inner);
            author.turn(observation.as_deref())
        };
        // A lesson that quotes a control token must not write one.
        let ids = self.script.tokenizer.encode(&text, Specials::Literal);
        let ids = ids.map_err(|error| EngineError::Request(error.to_string()))?.into();
        Ok(ScriptedTurn { session: self, ids, matcher: Matcher::default(), spec, made: 0, finish: None })
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn cached_prompt_tokens(&self) -> usize {
        0
    }
}

/// Turn of a [`ScriptedGenerator`], token by token.
#[derive(Debug)]
pub struct ScriptedTurn<'a> {
    session: &'a mut ScriptedSession,
    ids: VecDeque<u32>,
    matcher: Matcher,
    spec: Generate,
    made: usize,
    finish: Option<TurnFinish>,
}

impl Steps for ScriptedTurn<'_> {
    async fn next(&mut self) -> Option<Result<TokenStep, EngineError>> {
        if self.finish.is_some() {
            return None;
        }
        let Some(id) = self.ids.pop_front() else {
            let id = self.session.script.turn_end?;
            self.session.append(&[id], Origin::Policy, false);
            self.finish = Some(TurnFinish::Eos);
            return Some(Ok(TokenStep { id, logprob: 0.0, top: Vec::new() }));
        };
        self.session.append(&[id], Origin::Policy, false);
        self.made += 1;
        let bytes = self.session.script.tokenizer.bytes_of(id);
        self.finish = if let Some(which) = self.matcher.push(&self.spec.stops, bytes) {
            Some(TurnFinish::Stop(which))
        } else if self.made == self.spec.max_tokens {
            Some(TurnFinish::Length)
        } else if self.session.tokens.len() >= self.session.script.limit {
            Some(TurnFinish::Context)
        } else {
            None
        };
        // Nothing was sampled, so there is no log-probability. The builder removes this placeholder.
        Some(Ok(TokenStep { id, logprob: 0.0, top: Vec::new() }))
    }

    fn finish(&self) -> Option<TurnFinish> {
        self.finish
    }
}
