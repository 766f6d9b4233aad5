//! Text to tokens and back, without an engine.

use std::sync::{Arc, OnceLock};

use waymark_models::ModelError;
use waymark_models::chat::{ChatTemplate, TextSegment};
use waymark_models::tokenizer::{Specials, Tokenizer};

use super::AgentError;
use super::protocol::Injected;
use super::speaker::Speakers;
use super::token_bans::TokenBans;

/// A tokenizer and a chat template, as an episode uses them. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct TextCodec {
    /// Tokenizer of the model.
    pub(super) tokenizer: Arc<Tokenizer>,
    /// Chat template of the model. `None` joins messages by line breaks.
    pub(super) template: Option<Arc<ChatTemplate>>,
    /// Tokens that end a turn.
    pub(super) eos: Vec<u32>,
    /// Tables shared by all episodes.
    pub(super) tables: Arc<CodecTables>,
}

/// Tables derived from a tokenizer and a template. Each is computed when it is first needed.
#[derive(Debug, Default)]
pub(super) struct CodecTables {
    bans: OnceLock<TokenBans>,
    speakers: OnceLock<Result<Speakers, String>>,
}

impl TextCodec {
    /// Encodes text without control tokens.
    pub(super) fn literal(&self, text: &str) -> Result<Vec<u32>, AgentError> {
        Ok(self.tokenizer.encode(text, Specials::Literal)?)
    }

    /// Encodes an observation. Control tokens come only from the template's text between speakers.
    pub(super) fn encode_parts(&self, parts: &[Injected]) -> Result<Vec<u32>, AgentError> {
        let segment = |part: &Injected| {
            // Retrieved text is never trusted: no control token can be written in it.
            let Injected::Speaker(role) = part else {
                return Ok(TextSegment { text: part.text().to_owned(), trusted: false });
            };
            let speakers = self.speakers().map_err(|reason| ModelError::Template(reason.to_owned()))?;
            Ok(TextSegment { text: speakers.text(*role)?.to_owned(), trusted: true })
        };
        let segments = parts.iter().map(segment).collect::<Result<Vec<TextSegment>, AgentError>>()?;
        Ok(self.tokenizer.encode_segments(&segments)?)
    }

    /// Returns the template's text for a change of speaker, or the reason why the template has none.
    pub(super) fn speakers(&self) -> Result<&Speakers, &str> {
        let find = || match &self.template {
            Some(template) => Speakers::of(template, &self.tokenizer).map_err(|error| error.to_string()),
            None => Ok(Speakers::bare()),
        };
        self.tables.speakers.get_or_init(find).as_ref().map_err(String::as_str)
    }

    /// Returns the tokens that guided generation never samples.
    pub(super) fn bans(&self) -> &TokenBans {
        self.tables.bans.get_or_init(|| TokenBans::new(&self.tokenizer, &self.eos))
    }
}
