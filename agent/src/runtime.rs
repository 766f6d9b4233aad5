//! Resources shared by all episodes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use waymark_engine::Engine;
use waymark_models::ModelError;
use waymark_models::chat::{ChatTemplate, Message, TextSegment, Tool};
use waymark_models::grammar::{GrammarError, Vocabulary};
use waymark_models::tokenizer::{Specials, Tokenizer};

use super::AgentError;
use super::answer_format::AnswerTags;
use super::conversation::ConversationMessage;
use super::generator::SessionSource;
use super::guided::Bans;
use super::protocol::{Injected, Protocol, ProtocolPrompt};
use super::search::Search;
use super::speaker::Speakers;

/// A loaded model with its tokenizer, template and index. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Runtime<S = Engine> {
    /// Source of token sequences.
    pub engine: S,
    /// Tokenizer of the model.
    pub tokenizer: Arc<Tokenizer>,
    /// Chat template of the model. `None` joins messages by line breaks.
    pub template: Option<Arc<ChatTemplate>>,
    /// Tokens that end a turn.
    pub eos: Vec<u32>,
    /// Search over the index. `None` without an index.
    pub searcher: Option<Arc<dyn Search>>,
    bans: Arc<OnceLock<Bans>>,
    vocabulary: Arc<OnceLock<Result<Vocabulary, GrammarError>>>,
    speakers: Arc<OnceLock<Result<Speakers, String>>>,
    /// Prepared answer tags by protocol name.
    around: Arc<Mutex<HashMap<&'static str, Option<AnswerTags>>>>,
}

impl<S: SessionSource> Runtime<S> {
    /// Creates a runtime from its parts.
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

    /// Returns the tokens banned in guided generation with this tokenizer. Computed once.
    pub(super) fn bans(&self) -> &Bans {
        self.bans.get_or_init(|| Bans::new(&self.tokenizer, &self.eos))
    }

    /// Returns the vocabulary prepared for grammars. Computed once.
    pub(super) fn vocabulary(&self) -> Result<&Vocabulary, GrammarError> {
        let made = self.vocabulary.get_or_init(|| Vocabulary::new(&self.tokenizer.table(), &self.eos));
        made.as_ref().map_err(Clone::clone)
    }

    /// Returns the prepared tags around the answers of a protocol, if it has any. Computed once per protocol.
    pub(super) fn around(&self, protocol: &dyn Protocol) -> Option<AnswerTags> {
        let mut known = self.around.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || AnswerTags::new(protocol.tags(), &self.tokenizer.table());
        known.entry(protocol.name()).or_insert_with(find).clone()
    }

    /// Encodes text without control tokens.
    pub fn literal(&self, text: &str) -> Result<Vec<u32>, AgentError> {
        Ok(self.tokenizer.encode(text, Specials::Literal)?)
    }

    /// Encodes an observation. Control tokens come only from the template's text between speakers.
    pub(super) fn encode_parts(&self, parts: &[Injected]) -> Result<Vec<u32>, AgentError> {
        let segment = |part: &Injected| {
            let Injected::Speaker(role) = part else {
                return Ok(TextSegment { text: part.text().to_owned(), trusted: false });
            };
            let speakers = self.speakers().map_err(|reason| ModelError::Template(reason.to_owned()))?;
            Ok(TextSegment { text: speakers.text(*role)?.to_owned(), trusted: true })
        };
        let segments = parts.iter().map(segment).collect::<Result<Vec<TextSegment>, AgentError>>()?;
        Ok(self.tokenizer.encode_segments(&segments)?)
    }

    /// Returns the template's text for a change of speaker, or the reason why it has none. Computed once.
    pub(super) fn speakers(&self) -> Result<&Speakers, &str> {
        let find = || match &self.template {
            Some(template) => Speakers::of(template, &self.tokenizer).map_err(|error| error.to_string()),
            None => Ok(Speakers::bare()),
        };
        self.speakers.get_or_init(find).as_ref().map_err(String::as_str)
    }

    /// Returns `true` if the template shows tools and tool calls in the supported format.
    pub fn takes_tools(&self) -> bool {
        self.template.as_ref().is_some_and(|template| template.takes_tools())
    }

    /// Encodes a prompt. Control tokens come from the template only, never from the text of messages.
    ///
    /// # Errors
    /// [`AgentError::Text`] when template or tokenizer fail.
    pub fn encode(&self, prompt: &ProtocolPrompt) -> Result<Vec<u32>, AgentError> {
        self.encode_with_tools(prompt, &[])
    }

    /// Encodes a prompt with tools, which the template shows.
    ///
    /// # Errors
    /// Same as [`encode`](Self::encode).
    pub fn encode_with_tools(&self, prompt: &ProtocolPrompt, tools: &[Tool]) -> Result<Vec<u32>, AgentError> {
        let messages = match prompt {
            ProtocolPrompt::Raw(text) => return self.literal(text),
            ProtocolPrompt::Chat(messages) => messages,
        };
        let shown = |message: &ConversationMessage| Message {
            tool_calls: message.calls.clone(),
            ..Message::new(message.role.name(), message.content.as_str())
        };
        let messages: Vec<Message> = messages.iter().map(shown).collect();
        let segments = match &self.template {
            Some(template) => template.render_segments_with_tools(&messages, tools, true)?,
            None => {
                let texts: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
                vec![TextSegment { text: texts.join("\n"), trusted: false }]
            }
        };
        Ok(self.tokenizer.encode_segments(&segments)?)
    }
}
