//! Constraint for a turn that has one of several forms.

use std::sync::Arc;

use waymark_engine::{Constraint, ConstraintState};
use waymark_models::sampler::TokenMask;

/// Constraint of a turn that has one of several forms. A token is allowed if any form that the turn can still have
/// allows it.
#[derive(Debug, Clone)]
pub(super) struct EitherForm(Vec<Arc<dyn Constraint>>);

impl EitherForm {
    /// Creates the constraint of a turn that follows one of `forms` as a whole.
    pub(super) fn new(forms: Vec<Arc<dyn Constraint>>) -> EitherForm {
        EitherForm(forms)
    }
}

impl Constraint for EitherForm {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(FormsLeft(self.0.iter().map(|form| form.begin()).collect()))
    }
}

/// Forms that the turn can still have.
#[derive(Debug)]
struct FormsLeft(Vec<Box<dyn ConstraintState>>);

impl ConstraintState for FormsLeft {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        let mut all: Option<TokenMask> = None;
        for form in &mut self.0 {
            let Some(mask) = form.allowed()? else { return Ok(None) };
            match &mut all {
                Some(all) => all.add(&mask),
                none => *none = Some(mask),
            }
        }
        Ok(all)
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        let mut refused = None;
        self.0.retain_mut(|form| match form.accept(id) {
            Ok(()) => true,
            Err(reason) => {
                refused = Some(reason);
                false
            }
        });
        match refused {
            Some(reason) if self.0.is_empty() => Err(reason),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use waymark_models::grammar::{Json, Vocabulary};
    use waymark_models::tokenizer::{Specials, Tokenizer};

    use super::*;

    const EOS: u32 = 257;

    #[test]
    fn the_first_token_that_only_one_form_allows_decides() {
        let tokenizer = Tokenizer::bytes();
        let vocabulary = Vocabulary::new(&tokenizer.table(), &[EOS]).unwrap();
        let compiled = |schema| Arc::new(vocabulary.compile(&Json::Schema(schema)).unwrap()) as Arc<dyn Constraint>;
        let either = EitherForm::new(vec![compiled(json!({"enum": ["ab"]})), compiled(json!({"enum": ["ac", 7]}))]);
        for (text, next, not) in [("", "\"7", "x"), ("\"a", "bc", "x"), ("\"ac", "\"", "b"), ("7", "", "\"")] {
            let mut turn = either.begin();
            for id in tokenizer.encode(text, Specials::Literal).unwrap() {
                turn.accept(id).unwrap();
            }
            let mask = turn.allowed().unwrap().unwrap();
            assert!(next.bytes().all(|byte| mask.allows(u32::from(byte))), "{text} is followed by {next}");
            assert!(not.bytes().all(|byte| !mask.allows(u32::from(byte))), "{text} is not followed by {not}");
        }
        let mut turn = either.begin();
        assert!(turn.accept(u32::from(b'x')).is_err(), "no form allows it");
    }
}
