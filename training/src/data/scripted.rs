//! Token generator that follows an author instead of a model, so that supervised trajectories pass through the agent's
//! own loop: its prompt, parser, observations and budget.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use waymark_agent::{Generator, SessionSource, Steps, Tags, opened_thought};
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
    /// Template that writes the prompts, and the tags with which it may open a thought.
    thoughts: Option<(Arc<ChatTemplate>, &'static Tags)>,
}

impl ScriptedGenerator {
    /// Creates a generator that follows `author`. Its sequences have at most `limit` tokens.
    pub fn new(tokenizer: Arc<Tokenizer>, author: Arc<Mutex<dyn Author>>, limit: usize) -> ScriptedGenerator {
        ScriptedGenerator { tokenizer, author, limit, turn_end: None, thoughts: None }
    }

    /// Sets the token that ends turns without a stop string, as a model would write it: TeaRAG's final answers have no
    /// closing tag. `None`, the default, writes no token.
    #[must_use]
    pub fn with_turn_end(mut self, id: Option<u32>) -> ScriptedGenerator {
        self.turn_end = id;
        self
    }

    /// Sets the template of the prompts and the tags of the protocol. If the template has opened a thought with one of
    /// them, the first turn leaves out this tag. By default, every turn is written as the author returns it.
    #[must_use]
    pub fn with_template(mut self, template: Option<Arc<ChatTemplate>>, tags: &'static Tags) -> ScriptedGenerator {
        self.thoughts = template.map(|template| (template, tags));
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

    /// Removes the tag at the beginning of a turn that the prompt already ends with.
    fn within_opened_thought(&self, turn: String) -> String {
        let is_first = self.tokens.iter().all(|token| token.origin == Origin::Prompt);
        let Some((template, tags)) = self.script.thoughts.as_ref().filter(|_| is_first) else { return turn };
        let prompt: Vec<u32> = self.tokens.iter().map(|token| token.id).collect();
        let opened = opened_thought(Some(template), &self.script.tokenizer, tags, &prompt);
        match opened.and_then(|open| turn.strip_prefix(open)) {
            // The template wrote the white space after the tag, too.
            Some(inside) => inside.trim_start().to_owned(),
            None => turn,
        }
    }
}

impl Generator for ScriptedSession {
    type Generation<'a> = ScriptedTurn<'a>;

    fn append(&mut self, ids: &[u32], origin: Origin, forced: bool) {
        self.tokens.extend(ids.iter().map(|&id| Token::given(id, origin, forced)));
    }

    async fn generate(&mut self, spec: Generate) -> Result<ScriptedTurn<'_>, EngineError> {
        let observation = self.observation();
        let text = {
            // A panicking author ends the build anyway, so a poisoned lock is no concern.
            let mut author = self.script.author.lock().unwrap_or_else(PoisonError::into_inner);
            author.turn(observation.as_deref())
        };
        let text = self.within_opened_thought(text);
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
