//! A writer of tokens that follows an author instead of a model, so that supervised trajectories are played by the
//! agent's own loop: its prompt, its parser, its observations, its bounds.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use waymark::agent::{Generator, Source, Steps};
use waymark::engine::{EngineError, Finish, Generate, Matcher, Origin, SessionOptions, Step, Token};
use waymark_models::tokenizer::{Specials, Tokenizer};

/// Who says what the next turn is.
pub trait Author: Send {
    /// The text of the next turn, up to and including its closing tag. `observation` is what the environment answered
    /// the last one, as the policy sees it; none at the beginning.
    fn turn(&mut self, observation: Option<&str>) -> String;
}

/// What authors write, as [`Source`]: every turn is the natural encoding of its text, of origin policy.
#[derive(Clone)]
pub struct Script {
    tokenizer: Arc<Tokenizer>,
    author: Arc<Mutex<dyn Author>>,
    limit: usize,
}

impl Script {
    /// A script of `author`, whose sequences are at most `limit` tokens long.
    pub fn new(tokenizer: Arc<Tokenizer>, author: Arc<Mutex<dyn Author>>, limit: usize) -> Script {
        Script { tokenizer, author, limit }
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Source for Script {
    type Session = ScriptSession;

    fn open(&self, _options: SessionOptions) -> ScriptSession {
        ScriptSession { script: self.clone(), tokens: Vec::new() }
    }

    fn limit(&self) -> usize {
        self.limit
    }
}

/// A sequence of a [`Script`].
#[derive(Debug)]
pub struct ScriptSession {
    script: Script,
    tokens: Vec<Token>,
}

impl ScriptSession {
    /// The text of the last observation, where one was made.
    fn observation(&self) -> Option<String> {
        let end = self.tokens.iter().rposition(|token| token.origin == Origin::Environment)? + 1;
        let length = self.tokens[..end].iter().rev().take_while(|token| token.origin == Origin::Environment).count();
        let ids: Vec<u32> = self.tokens[end - length..end].iter().map(|token| token.id).collect();
        Some(self.script.tokenizer.decode(&ids))
    }
}

impl Generator for ScriptSession {
    type Turn<'a> = ScriptTurn<'a>;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token { id, origin, logprob: None, forced }));
    }

    async fn generate(&mut self, spec: Generate) -> Result<ScriptTurn<'_>, EngineError> {
        let observation = self.observation();
        let text = {
            // A panicking author ends the build anyway.
            let mut author = self.script.author.lock().unwrap_or_else(PoisonError::into_inner);
            author.turn(observation.as_deref())
        };
        let ids = self.script.tokenizer.encode(&text, Specials::Literal);
        let ids = ids.map_err(|error| EngineError::Request(error.to_string()))?.into();
        Ok(ScriptTurn { session: self, ids, matcher: Matcher::default(), spec, made: 0, finish: None })
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn cached_prompt_tokens(&self) -> usize {
        0
    }
}

/// A turn of a [`Script`], token by token.
#[derive(Debug)]
pub struct ScriptTurn<'a> {
    session: &'a mut ScriptSession,
    ids: VecDeque<u32>,
    matcher: Matcher,
    spec: Generate,
    made: usize,
    finish: Option<Finish>,
}

impl Steps for ScriptTurn<'_> {
    async fn next(&mut self) -> Option<Result<Step, EngineError>> {
        if self.finish.is_some() {
            return None;
        }
        let id = self.ids.pop_front()?;
        self.session.append(&[id], Origin::Policy, false);
        self.made += 1;
        let bytes = self.session.script.tokenizer.bytes_of(id);
        self.finish = if let Some(which) = self.matcher.push(&self.spec.stops, bytes) {
            Some(Finish::Stop(which))
        } else if self.made == self.spec.max_tokens {
            Some(Finish::Length)
        } else if self.session.tokens.len() >= self.session.script.limit {
            Some(Finish::Context)
        } else {
            None
        };
        // Nothing was sampled, so there is no log-probability to tell: the builder leaves these out.
        Some(Ok(Step { id, logprob: 0.0, top: Vec::new() }))
    }

    fn finish(&self) -> Option<Finish> {
        self.finish
    }
}
