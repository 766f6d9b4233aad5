//! Forms compiled for one request: each once, and none after the request's time.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::{Grammar, GrammarError, OutputForm};

/// Forms that one request has compiled over one vocabulary.
#[derive(Debug)]
pub(super) struct RequestForms {
    until: Instant,
    compiled: Mutex<Vec<CompiledForm>>,
}

#[derive(Debug)]
struct CompiledForm {
    form: OutputForm,
    grammar: Result<Grammar, GrammarError>,
}

impl RequestForms {
    /// Creates an empty list for a request that compiles no form after `until`.
    pub(super) fn new(until: Instant) -> RequestForms {
        RequestForms { until, compiled: Mutex::default() }
    }

    /// Returns the grammar of `form`, which `compile` compiles unless the request has compiled it before.
    ///
    /// # Errors
    /// The errors of `compile`, and [`GrammarError::Schema`] if the time of the request is over.
    pub(super) fn compile_once(
        &self,
        form: &OutputForm,
        compile: impl FnOnce() -> Result<Grammar, GrammarError>,
    ) -> Result<Grammar, GrammarError> {
        // The lock is held while a form is compiled, so no other thread compiles it as well. It guards no state
        // that a panic could leave half-written.
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() >= self.until {
            return Err(GrammarError::Schema("the schema takes too long to compile".to_owned()));
        }
        if let Some(known) = compiled.iter().find(|known| known.form == *form) {
            return known.grammar.clone();
        }
        let grammar = compile();
        compiled.push(CompiledForm { form: form.clone(), grammar: grammar.clone() });
        grammar
    }
}
