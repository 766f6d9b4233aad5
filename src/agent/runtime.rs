//! What every episode needs from the house.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use waymark_models::ModelError;
use waymark_models::chat::{ChatTemplate, Message, Segment, Tool};
use waymark_models::grammar::{GrammarError, Vocabulary};
use waymark_models::tokenizer::{Specials, Tokenizer};

use super::AgentError;
use super::conversation::Message as Said;
use super::generator::Source;
use super::guided::Bans;
use super::protocol::{Injected, Prompt, Protocol};
use super::search::Search;
use super::shape::Around;
use super::speaker::Speakers;
use crate::engine::Engine;

/// A loaded model with its texts and its index. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Runtime<S = Engine> {
    /// What writes the tokens.
    pub engine: S,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's chat template; without one, messages are joined by line breaks.
    pub template: Option<Arc<ChatTemplate>>,
    /// Tokens that end a turn.
    pub eos: Vec<u32>,
    /// Where searches go.
    pub searcher: Option<Arc<dyn Search>>,
    bans: Arc<OnceLock<Bans>>,
    vocabulary: Arc<OnceLock<Result<Vocabulary, GrammarError>>>,
    speakers: Arc<OnceLock<Result<Speakers, String>>>,
    /// By the names of protocols.
    around: Arc<Mutex<HashMap<&'static str, Option<Around>>>>,
}

impl<S: Source> Runtime<S> {
    /// Puts one together.
    pub fn new(
        engine: S,
        tokenizer: Arc<Tokenizer>,
        template: Option<Arc<ChatTemplate>>,
        eos: Vec<u32>,
        searcher: Option<Arc<dyn Search>>,
    ) -> Runtime<S> {
        let (bans, vocabulary, speakers, around) = Default::default();
        Runtime { engine, tokenizer, template, eos, searcher, bans, vocabulary, speakers, around }
    }

    /// What guided generation forbids with this tokenizer; computed once.
    pub(super) fn bans(&self) -> &Bans {
        self.bans.get_or_init(|| Bans::new(&self.tokenizer, &self.eos))
    }

    /// The vocabulary, prepared for grammars; prepared once.
    pub(super) fn vocabulary(&self) -> Result<&Vocabulary, GrammarError> {
        let made = self.vocabulary.get_or_init(|| Vocabulary::new(&self.tokenizer.table(), &self.eos));
        made.as_ref().map_err(Clone::clone)
    }

    /// What stands around the answers of a protocol, if anything does; found once for each.
    pub(super) fn around(&self, protocol: &dyn Protocol) -> Option<Around> {
        let mut known = self.around.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || Around::new(protocol.tags(), &self.tokenizer.table());
        known.entry(protocol.name()).or_insert_with(find).clone()
    }

    /// The ids of text in which no control token is meant.
    pub(crate) fn literal(&self, text: &str) -> Result<Vec<u32>, AgentError> {
        Ok(self.tokenizer.encode(text, Specials::Literal)?)
    }

    /// The ids of an observation. Control tokens come from what the template writes between speakers, and from nothing
    /// else.
    pub(super) fn encode_parts(&self, parts: &[Injected]) -> Result<Vec<u32>, AgentError> {
        let segment = |part: &Injected| {
            let Injected::Speaker(role) = part else {
                return Ok(Segment { text: part.text().to_owned(), trusted: false });
            };
            let speakers = self.speakers().map_err(|reason| ModelError::Template(reason.to_owned()))?;
            Ok(Segment { text: speakers.text(*role)?.to_owned(), trusted: true })
        };
        let segments = parts.iter().map(segment).collect::<Result<Vec<Segment>, AgentError>>()?;
        Ok(self.tokenizer.encode_segments(&segments)?)
    }

    /// What the template writes where another speaks, or why it has no words for that; found once.
    pub(super) fn speakers(&self) -> Result<&Speakers, &str> {
        let find = || match &self.template {
            Some(template) => Speakers::of(template, &self.tokenizer).map_err(|error| error.to_string()),
            None => Ok(Speakers::bare()),
        };
        self.speakers.get_or_init(find).as_ref().map_err(String::as_str)
    }

    /// Whether the template shows tools and calls of them, in the form that is read.
    pub fn takes_tools(&self) -> bool {
        self.template.as_ref().is_some_and(|template| template.takes_tools())
    }

    /// The ids of a prompt. Control tokens come from the template alone, never from what messages say.
    ///
    /// # Errors
    /// [`AgentError::Text`] when template or tokenizer fail.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, AgentError> {
        self.encode_with_tools(prompt, &[])
    }

    /// The same with tools that may be called, which the template shows.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_tools(&self, prompt: &Prompt, tools: &[Tool]) -> Result<Vec<u32>, AgentError> {
        let messages = match prompt {
            Prompt::Raw(text) => return self.literal(text),
            Prompt::Chat(messages) => messages,
        };
        let shown = |message: &Said| Message {
            tool_calls: message.calls.clone(),
            ..Message::new(message.role.name(), message.content.as_str())
        };
        let messages: Vec<Message> = messages.iter().map(shown).collect();
        let segments = match &self.template {
            Some(template) => template.render_segments_with_tools(&messages, tools, true)?,
            None => {
                let texts: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
                vec![Segment { text: texts.join("\n"), trusted: false }]
            }
        };
        Ok(self.tokenizer.encode_segments(&segments)?)
    }
}
