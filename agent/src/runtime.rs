//! Resources shared by all episodes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use waymark_engine::Engine;
use waymark_models::ModelError;
use waymark_models::chat::{ChatTemplate, Message, PromptOptions, TextSegment};
use waymark_models::grammar::{GrammarError, Vocabulary};
use waymark_models::tokenizer::{Specials, Tokenizer};

use super::AgentError;
use super::answer_format::AnswerTags;
use super::answer_opening::OpeningMarks;
use super::conversation::{Conversation, ConversationMessage, Role};
use super::generator::SessionSource;
use super::protocol::{Protocol, ProtocolPrompt};
use super::search::Search;
use super::segment::{SegmentKind, Tag};
use super::text_codec::{CodecTables, TextCodec};
use super::tool_call::{CLOSE, OPEN, TOOL_TAGS};
use super::tool_prompt;

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
    tables: Arc<CodecTables>,
    vocabulary: Arc<OnceLock<Result<Vocabulary, GrammarError>>>,
    /// Prepared answer tags by protocol name.
    around: Arc<Mutex<HashMap<&'static str, Option<AnswerTags>>>>,
    /// Prepared tag that opens a tool call.
    call_marks: Arc<OnceLock<Arc<OpeningMarks>>>,
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
        let tables = Arc::default();
        let vocabulary = Arc::default();
        let around = Arc::default();
        let call_marks = Arc::default();
        Runtime { engine, tokenizer, template, eos, searcher, tables, vocabulary, around, call_marks }
    }

    /// Returns a runtime with another source of tokens for the same model.
    pub fn with_source<T>(self, source: impl FnOnce(S) -> T) -> Runtime<T> {
        let Runtime { engine, tokenizer, template, eos, searcher, tables, vocabulary, around, call_marks } = self;
        Runtime { engine: source(engine), tokenizer, template, eos, searcher, tables, vocabulary, around, call_marks }
    }

    /// Returns a runtime for the episodes of one request. It compiles each form once, and none after `until`. Clones of
    /// it share the compiled forms. The first call prepares the vocabulary, which takes tens of milliseconds.
    pub fn compiling_until(&self, until: Instant) -> Runtime<S> {
        let vocabulary = self.vocabulary().map(|vocabulary| vocabulary.for_request(until));
        Runtime { vocabulary: Arc::new(OnceLock::from(vocabulary)), ..self.clone() }
    }

    /// Returns the codec of an episode: everything textual, without the engine and the search.
    pub(super) fn codec(&self) -> TextCodec {
        TextCodec {
            tokenizer: self.tokenizer.clone(),
            template: self.template.clone(),
            eos: self.eos.clone(),
            tables: self.tables.clone(),
        }
    }

    /// Returns the vocabulary prepared for grammars. Computed once.
    pub(super) fn vocabulary(&self) -> Result<&Vocabulary, GrammarError> {
        // An error is kept too: a vocabulary that cannot be prepared fails for every request alike.
        let made = self.vocabulary.get_or_init(|| Vocabulary::new(&self.tokenizer.table(), &self.eos));
        made.as_ref().map_err(Clone::clone)
    }

    /// Returns the prepared tags around the answers of a protocol, if it has any. Computed once per protocol.
    pub(super) fn around(&self, protocol: &dyn Protocol) -> Option<AnswerTags> {
        // The lock is held while tags are prepared, so that concurrent requests do not scan the same vocabulary. It
        // guards no state that a panic could leave half-written.
        let mut known = self.around.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || AnswerTags::new(protocol.tags(), &self.tokenizer.table());
        known.entry(protocol.name()).or_insert_with(find).clone()
    }

    /// Returns the prepared tag that opens a tool call. Computed once.
    pub(super) fn call_marks(&self) -> Arc<OpeningMarks> {
        const CALL: Tag = Tag { kind: SegmentKind::Answer, open: OPEN, close: CLOSE };
        let make = || Arc::new(OpeningMarks::new(&CALL, &TOOL_TAGS, self.tokenizer.table()));
        Arc::clone(self.call_marks.get_or_init(make))
    }

    /// Checks that a text of `bytes` bytes can fit into a sequence, which holds at most its maximum number of tokens
    /// times the bytes of the longest token. Encoding takes hundreds of bytes of memory per byte of text, so this check
    /// comes first.
    ///
    /// # Errors
    /// [`AgentError::TooManyBytes`] when the text is longer.
    pub fn check_bytes(&self, bytes: usize) -> Result<(), AgentError> {
        let limit = self.engine.limit().saturating_mul(self.tokenizer.longest());
        if bytes <= limit { Ok(()) } else { Err(AgentError::TooManyBytes { bytes, limit }) }
    }

    /// Encodes text without control tokens.
    pub fn literal(&self, text: &str) -> Result<Vec<u32>, AgentError> {
        Ok(self.tokenizer.encode(text, Specials::Literal)?)
    }

    /// Encodes text without control tokens that begins a sequence, without a BOS.
    pub fn literal_prompt(&self, text: &str) -> Result<Vec<u32>, AgentError> {
        let segment = TextSegment { text: text.to_owned(), trusted: false };
        Ok(self.tokenizer.encode_prompt(&[segment])?)
    }

    /// Returns `true` if the template shows tools and tool calls in the supported format.
    pub fn takes_tools(&self) -> bool {
        self.template.as_ref().is_some_and(|template| template.takes_tools())
    }

    /// Returns `true` if the template has a switch for thinking.
    pub fn takes_thinking(&self) -> bool {
        self.template.as_ref().is_some_and(|template| template.takes_thinking())
    }

    /// Encodes a prompt. Control tokens come from the template only, never from the text of messages.
    ///
    /// # Errors
    /// [`AgentError::Text`] when template or tokenizer fail.
    pub fn encode(&self, prompt: &ProtocolPrompt) -> Result<Vec<u32>, AgentError> {
        self.encode_with(prompt, PromptOptions::default())
    }

    /// Encodes the prompt of a conversation in a protocol. Tools, calls and results that the prompt has no form for are
    /// written as plain text.
    ///
    /// # Errors
    /// Same as [`encode`](Self::encode).
    pub fn encode_conversation(
        &self,
        protocol: &dyn Protocol,
        conversation: &Conversation,
        guided: bool,
    ) -> Result<Vec<u32>, AgentError> {
        let prompt = protocol.prompt(conversation, guided);
        let formless = matches!(prompt, ProtocolPrompt::Raw(_)) || !self.takes_tools();
        if formless && conversation.has_tools() {
            let prompt = protocol.prompt(&tool_prompt::described(conversation), guided);
            return self.encode_with(&prompt, PromptOptions { thinking: conversation.thinking(), tools: &[] });
        }
        self.encode_with(&prompt, PromptOptions { thinking: conversation.thinking(), tools: conversation.tools() })
    }

    /// Encodes messages that follow a reply, from the text that ends the reply to the beginning of the next one.
    ///
    /// # Errors
    /// [`AgentError::Text`] when the template does not keep its messages apart, or template or tokenizer fail.
    pub(super) fn encode_after_reply(&self, messages: &[ConversationMessage]) -> Result<Vec<u32>, AgentError> {
        // A reply short enough to be found again in the rendering.
        const REPLY: &str = "2";
        let before = [ConversationMessage::new(Role::User, "1"), ConversationMessage::new(Role::Assistant, REPLY)];
        let written = |message: &ConversationMessage| tool_prompt::written(message);
        let rest: Vec<ConversationMessage> =
            if self.takes_tools() { messages.to_vec() } else { messages.iter().map(written).collect() };
        let segments = self.segments(&[before.as_slice(), &rest].concat(), PromptOptions::default())?;
        let reply = segments.iter().position(|segment| !segment.trusted && segment.text == REPLY);
        let mixed = || ModelError::Template("it does not keep the messages of a conversation apart".to_owned());
        let reply = reply.ok_or_else(mixed)?;
        Ok(self.tokenizer.encode_segments(&segments[reply + 1..])?)
    }

    /// Encodes a prompt with options of its template.
    fn encode_with(&self, prompt: &ProtocolPrompt, options: PromptOptions<'_>) -> Result<Vec<u32>, AgentError> {
        let messages = match prompt {
            ProtocolPrompt::Raw(text) => return Ok(self.tokenizer.encode_text(text)?),
            ProtocolPrompt::Chat(messages) => messages,
        };
        let segments = self.segments(messages, options)?;
        match (&self.template, segments.as_slice()) {
            // No template wrote the BOS.
            (None, [joined]) => Ok(self.tokenizer.encode_text(&joined.text)?),
            _ => Ok(self.tokenizer.encode_prompt(&segments)?),
        }
    }

    fn segments(
        &self,
        messages: &[ConversationMessage],
        options: PromptOptions<'_>,
    ) -> Result<Vec<TextSegment>, AgentError> {
        let shown = |message: &ConversationMessage| Message {
            tool_calls: message.calls.clone(),
            ..Message::new(message.role.name(), message.content.as_str())
        };
        let messages: Vec<Message> = messages.iter().map(shown).collect();
        match &self.template {
            Some(template) => Ok(template.render_segments_with(&messages, options, true)?),
            None => {
                let texts: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
                Ok(vec![TextSegment { text: texts.join("\n"), trusted: false }])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use waymark_engine::{EngineConfig, MockBackend};
    use waymark_models::grammar::Json;

    use super::*;

    fn runtime(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Runtime {
        let tokenizer = Arc::new(tokenizer);
        let backend = Box::new(MockBackend::random(1, tokenizer.vocab()));
        let engine = Engine::start(backend, EngineConfig::default(), tokenizer.table()).unwrap();
        Runtime::new(engine, tokenizer, template.map(Arc::new), vec![257], None)
    }

    #[test]
    fn a_prompt_begins_with_one_bos() {
        const BOS: u32 = 258;
        let source = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}<|im_end|>{% endfor %}";
        let template = |source: &str| Some(ChatTemplate::new(source, "<|endoftext|>", "").unwrap());
        let text = ProtocolPrompt::Raw("a".to_owned());
        let chat = ProtocolPrompt::Chat(vec![ConversationMessage::new(Role::User, "a")]);
        let with = |template| runtime(Tokenizer::bytes().with_bos(Some(BOS)), template);
        assert_eq!(with(None).encode(&text).unwrap(), [BOS, 97]);
        assert_eq!(with(None).encode(&chat).unwrap(), [BOS, 97]);
        assert_eq!(with(template(source)).encode(&text).unwrap(), [BOS, 97]);
        assert_eq!(with(template(source)).encode(&chat).unwrap(), [BOS, 97, 257]);
        // A template without BOS is taken at its word.
        let silent = template(&source.replace("{{ bos_token }}", ""));
        assert_eq!(with(silent).encode(&chat).unwrap(), [97, 257]);
        // What continues a sequence has none.
        assert_eq!(with(None).literal("a").unwrap(), [97]);
        let without = runtime(Tokenizer::bytes(), None);
        assert_eq!(without.encode(&text).unwrap(), [97]);
        assert_eq!(without.encode(&chat).unwrap(), [97]);
    }

    #[test]
    fn the_time_of_one_request_ends_no_other() {
        let runtime = runtime(Tokenizer::bytes(), None);
        let over = runtime.compiling_until(Instant::now());
        let other = runtime.compiling_until(Instant::now() + Duration::from_secs(600));
        let compiles = |runtime: &Runtime| runtime.vocabulary().unwrap().compile(&Json::Object).is_ok();
        assert_eq!([&over, &over.clone(), &other, &runtime].map(compiles), [false, false, true, true]);
    }
}
