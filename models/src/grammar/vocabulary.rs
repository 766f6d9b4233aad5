//! Token trie of a model, and the grammars compiled over it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use super::request_forms::RequestForms;
use super::{Grammar, GrammarError, Json, OutputForm, first_line};
use crate::tokenizer::TokenBytes;

/// Stack size of the thread that compiles a form, in bytes. llguidance recurses into references, rules, terminals and
/// conditions. The deepest forms of the maximum size need between 16 and 32 MiB, and several times as much without
/// optimization. Memory is taken only for the part that is used.
const STACK: usize = if cfg!(debug_assertions) { 512 << 20 } else { 64 << 20 };

/// Length of the longest token that may occur in an output, in bytes. The trie has no room for deeper nodes.
const LONGEST_TOKEN: usize = 1 << 10;

/// Tokens of a model, prepared for grammars. Construction takes tens of milliseconds for 50,000 tokens; clones are
/// cheap.
#[derive(Clone)]
pub struct Vocabulary {
    factory: Arc<ParserFactory>,
    /// Forms compiled for one request, which clones share. `None` compiles a form whenever it is needed.
    forms: Option<Arc<RequestForms>>,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.factory.tok_env().tok_trie().vocab_size()).finish()
    }
}

impl Vocabulary {
    /// Creates a vocabulary from the bytes of each token. Any token of `eos` ends an output, and is never text in it, even
    /// if it has bytes. Control tokens have none and never occur in an output, and neither do tokens of more than 1,024
    /// bytes.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] when no token can end an output.
    pub fn new(tokens: &TokenBytes, eos: &[u32]) -> Result<Vocabulary, GrammarError> {
        let size = u32::try_from(tokens.len()).map_err(|_| GrammarError::Vocabulary("it is too large".into()))?;
        let eos: Vec<u32> = eos.iter().copied().filter(|&id| id < size).collect();
        let Some(&first) = eos.first() else {
            return Err(GrammarError::Vocabulary("no token ends a text".into()));
        };
        let is_text = |id: u32, bytes: &[u8]| bytes.len() <= LONGEST_TOKEN && !eos.contains(&id);
        let word = |id: u32| Some(tokens.get(id)).filter(|bytes| is_text(id, bytes)).unwrap_or_default();
        let words: Vec<Vec<u8>> = (0..size).map(|id| word(id).to_vec()).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, first), &words).with_eos_tokens(&eos);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Vocabulary(first_line(&error)))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Vocabulary { factory: Arc::new(factory), forms: None })
    }

    /// Returns a vocabulary of the same tokens for one request. It compiles each form once, and none after `until`; its
    /// clones share the compiled forms.
    pub fn for_request(&self, until: Instant) -> Vocabulary {
        let forms = Some(Arc::new(RequestForms::new(until)));
        Vocabulary { factory: Arc::clone(&self.factory), forms }
    }

    /// Compiles a grammar for the given JSON shape.
    ///
    /// # Errors
    /// Same as [`compile_form`](Self::compile_form).
    pub fn compile(&self, json: &Json) -> Result<Grammar, GrammarError> {
        self.compile_form(&OutputForm::Json(json.clone()))
    }

    /// Compiles a grammar for the given form, on a thread of its own.
    ///
    /// # Errors
    /// [`GrammarError::Schema`] naming the part that is invalid, too large or not enforceable, or if the time of the
    /// [request](Self::for_request) is over; [`GrammarError::NoThread`] and [`GrammarError::Panicked`] if the compiler
    /// itself fails.
    pub fn compile_form(&self, form: &OutputForm) -> Result<Grammar, GrammarError> {
        match &self.forms {
            Some(forms) => forms.compile_once(form, || self.compile_on_thread(form)),
            None => self.compile_on_thread(form),
        }
    }

    fn compile_on_thread(&self, form: &OutputForm) -> Result<Grammar, GrammarError> {
        // The caller's stack may be too small for a form whose parts refer to each other in a long chain, and a stack
        // overflow would end the process.
        on_thread(STACK, || self.compile_on_this_stack(form))
    }

    fn compile_on_this_stack(&self, form: &OutputForm) -> Result<Grammar, GrammarError> {
        let top = form.grammar()?;
        let parser = self.factory.create_parser(top).map_err(|error| GrammarError::Schema(first_line(&error)))?;
        let trie = self.factory.tok_env().tok_trie();
        let is_blank = |id: u32| trie.token(id).trim_ascii().is_empty();
        Grammar::new(parser, is_blank)
    }
}

/// Runs `compile` on a thread with a stack of `stack` bytes.
///
/// # Errors
/// The errors of `compile`, [`GrammarError::NoThread`] if no thread can be started, and [`GrammarError::Panicked`] if
/// `compile` panics.
fn on_thread(
    stack: usize,
    compile: impl FnOnce() -> Result<Grammar, GrammarError> + Send,
) -> Result<Grammar, GrammarError> {
    let builder = thread::Builder::new().name("waymark-compile".to_owned()).stack_size(stack);
    thread::scope(|scope| {
        let no_thread = |error: io::Error| GrammarError::NoThread(error.to_string());
        let compiling = builder.spawn_scoped(scope, compile).map_err(no_thread)?;
        compiling.join().map_err(|_| GrammarError::Panicked)?
    })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;
    use crate::tokenizer::Tokenizer;

    #[test]
    fn a_request_compiles_each_form_once_and_none_after_its_time() {
        let vocabulary = Vocabulary::new(&Tokenizer::bytes().table(), &[257]).unwrap();
        let later = Instant::now() + Duration::from_secs(600);
        let [one, two, three] = [(), (), ()].map(|()| vocabulary.for_request(later));
        for (text, is_valid) in [("a", true), ("b", true), ("(", false)] {
            let form = OutputForm::Regex(text.to_owned());
            let count = Cell::new(0);
            let compile = |request: &Vocabulary| {
                let counted = || {
                    count.set(count.get() + 1);
                    request.compile_on_thread(&form)
                };
                request.forms.as_deref().unwrap().compile_once(&form, counted).is_ok()
            };
            assert_eq!([compile(&one), compile(&one.clone())], [is_valid; 2], "{text}");
            assert_eq!(count.get(), 1, "{text}");
            assert_eq!(compile(&two), is_valid, "{text}");
            assert_eq!(count.get(), 2, "nothing is kept for the next request: {text}");
            assert_eq!([three.compile_form(&form).is_ok(), compile(&three)], [is_valid; 2], "{text}");
            assert_eq!(count.get(), 2, "{text}");
        }
        let refused = vocabulary.for_request(Instant::now()).compile(&Json::Object).unwrap_err();
        assert!(refused.to_string().contains("too long"), "{refused}");
        assert!(vocabulary.compile(&Json::Object).is_ok());
    }

    #[test]
    fn a_token_that_is_too_long_for_the_trie_is_never_allowed() {
        let mut table = TokenBytes::clone(&Tokenizer::bytes().table());
        let first = table.len() as u32;
        for length in [LONGEST_TOKEN, LONGEST_TOKEN + 1, 5 * LONGEST_TOKEN] {
            table.push(&vec![b'a'; length], false);
        }
        let vocabulary = Vocabulary::new(&table, &[257]).unwrap();
        let grammar = vocabulary.compile_form(&OutputForm::Regex("a*".to_owned())).unwrap();
        let mask = grammar.begin().allowed().unwrap();
        assert!(mask.allows(u32::from(b'a')));
        assert_eq!([first, first + 1, first + 2].map(|id| mask.allows(id)), [true, false, false]);
    }

    #[test]
    fn an_end_token_with_bytes_is_no_text() {
        let mut table = TokenBytes::clone(&Tokenizer::bytes().table());
        let end = table.len() as u32;
        table.push(b"<end>", false);
        let vocabulary = Vocabulary::new(&table, &[end]).unwrap();
        let mut writer = vocabulary.compile(&Json::Schema(serde_json::json!({"type": "string"}))).unwrap().begin();
        for (byte, ends) in [(b'"', false), (b'a', false), (b'"', true)] {
            writer.accept(u32::from(byte)).unwrap();
            assert_eq!(writer.allowed().unwrap().allows(end), ends, "after {:?}", char::from(byte));
        }
    }

    #[test]
    fn a_compiler_that_fails_does_not_blame_the_form() {
        const STACK: usize = 1 << 20;
        // Larger than any address space.
        const NO_STACK: usize = usize::MAX / 16;
        let refuse = || Err(GrammarError::Schema("no".to_owned()));
        assert_eq!(on_thread(STACK, refuse).unwrap_err(), GrammarError::Schema("no".to_owned()));
        assert!(matches!(on_thread(NO_STACK, refuse), Err(GrammarError::NoThread(_))));
        assert_eq!(on_thread(STACK, || panic!("on purpose")).unwrap_err(), GrammarError::Panicked);
    }
}
