//! Token trie of a model, and the grammars compiled over it.

use std::fmt;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use super::{Grammar, GrammarError, Json, OutputForm, first_line};
use crate::tokenizer::TokenBytes;

/// Tokens of a model, prepared for grammars. Construction takes tens of milliseconds for 50,000 tokens.
pub struct Vocabulary(ParserFactory);

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.0.tok_env().tok_trie().vocab_size()).finish()
    }
}

impl Vocabulary {
    /// Creates a vocabulary from the bytes of each token. Any token of `eos` ends an output. Control tokens have no
    /// bytes and never occur in an output.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] when no token can end an output.
    pub fn new(tokens: &TokenBytes, eos: &[u32]) -> Result<Vocabulary, GrammarError> {
        let size = u32::try_from(tokens.len()).map_err(|_| GrammarError::Vocabulary("it is too large".into()))?;
        let eos: Vec<u32> = eos.iter().copied().filter(|&id| id < size).collect();
        let Some(&first) = eos.first() else {
            return Err(GrammarError::Vocabulary("no token ends a text".into()));
        };
        let words: Vec<Vec<u8>> = (0..size).map(|id| tokens.get(id).to_vec()).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, first), &words).with_eos_tokens(&eos);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Vocabulary(first_line(&error)))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Vocabulary(factory))
    }

    /// Compiles a grammar for the given JSON shape.
    ///
    /// # Errors
    /// [`GrammarError::Schema`] naming the part that is invalid, too large or not enforceable.
    pub fn compile(&self, json: &Json) -> Result<Grammar, GrammarError> {
        self.compile_form(&OutputForm::Json(json.clone()))
    }

    /// Compiles a grammar for the given form.
    ///
    /// # Errors
    /// [`GrammarError::Schema`] naming the part that is invalid, too large or not enforceable.
    pub fn compile_form(&self, form: &OutputForm) -> Result<Grammar, GrammarError> {
        let top = form.grammar()?;
        let parser = self.0.create_parser(top).map_err(|error| GrammarError::Schema(first_line(&error)))?;
        let trie = self.0.tok_env().tok_trie();
        let is_blank = |id: u32| trie.token(id).trim_ascii().is_empty();
        Grammar::new(parser, is_blank)
    }
}

/// Work limits for compiling a schema and for each token: a quarter of the library's defaults, which is a few
/// milliseconds per token and tens of milliseconds per schema.
fn limits() -> ParserLimits {
    let own = ParserLimits::default();
    ParserLimits {
        initial_lexer_fuel: own.initial_lexer_fuel / 4,
        step_lexer_fuel: own.step_lexer_fuel / 4,
        step_max_items: own.step_max_items / 4,
        max_lexer_states: own.max_lexer_states / 4,
        max_grammar_size: own.max_grammar_size / 4,
        verbose_errors: false,
        ..own
    }
}
