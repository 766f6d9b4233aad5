//! Constraint for a turn that is free until an answer or a tool call begins in it.

use std::sync::Arc;

use waymark_engine::{Constraint, ConstraintState};
use waymark_models::sampler::TokenMask;

use super::answer_opening::{AnswerOpening, OpeningProgress};
use super::segment::SegmentKind;

/// Constraint of a turn that is not guided.
#[derive(Debug, Clone)]
pub(super) enum TurnForm {
    /// A constraint that does not depend on the text with which the turn begins.
    Fixed(Arc<dyn Constraint>),
    /// Any text until an answer or a call begins.
    Openings(TurnOpenings),
}

impl TurnForm {
    /// Returns the constraint of a turn that begins, or goes on, inside `kind`. `None` inside a query, which is free.
    pub(super) fn inside(&self, kind: SegmentKind) -> Option<Arc<dyn Constraint>> {
        match self {
            _ if kind == SegmentKind::Query => None,
            TurnForm::Fixed(constraint) => Some(Arc::clone(constraint)),
            TurnForm::Openings(openings) => Some(Arc::new(openings.inside(kind))),
        }
    }
}

/// Constraint of a turn: any text up to the first tag that opens an answer or a call, then the text that this tag
/// opens.
#[derive(Debug, Clone)]
pub(super) struct TurnOpenings(Vec<AnswerOpening>);

impl TurnOpenings {
    /// Creates the constraint of a turn in which each of `openings` may begin.
    pub(super) fn new(openings: Vec<AnswerOpening>) -> TurnOpenings {
        TurnOpenings(openings)
    }

    /// Returns the constraint of a turn that begins inside `kind`.
    fn inside(&self, kind: SegmentKind) -> TurnOpenings {
        TurnOpenings(self.0.iter().map(|opening| opening.inside(kind)).collect())
    }
}

impl Constraint for TurnOpenings {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(TurnProgress::Free(self.0.iter().map(AnswerOpening::progress).collect()))
    }
}

#[derive(Debug)]
enum TurnProgress {
    /// No opening has begun.
    Free(Vec<OpeningProgress>),
    /// One of them has begun; the others no longer count.
    Inside(OpeningProgress),
}

impl ConstraintState for TurnProgress {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        let openings = match self {
            TurnProgress::Inside(opening) => return opening.allowed(),
            TurnProgress::Free(openings) => openings,
        };
        let mut all: Option<TokenMask> = None;
        for opening in openings {
            match (&mut all, opening.allowed()?) {
                (_, None) => {}
                (Some(all), Some(mask)) => all.keep(&mask),
                (none, mask) => *none = mask,
            }
        }
        Ok(all)
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        let openings = match self {
            TurnProgress::Inside(opening) => return opening.accept(id),
            TurnProgress::Free(openings) => openings,
        };
        openings.iter_mut().try_for_each(|opening| opening.accept(id))?;
        if let Some(at) = openings.iter().position(OpeningProgress::is_inside) {
            *self = TurnProgress::Inside(openings.swap_remove(at));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::tokenizer::TokenBytes;

    use super::super::answer_opening::OpeningMarks;
    use super::super::segment::Tag;
    use super::super::tag::TAGS;
    use super::super::tool_call::TOOL_TAGS;
    use super::*;

    const TOKENS: [&str; 11] = ["{", "[", "<", "answer", "call", ">", ">{", ">[", "<search>", "<think>", "</think>"];

    /// A constraint that allows only one token.
    #[derive(Debug, Clone, Copy)]
    struct Only(u32);

    impl Constraint for Only {
        fn begin(&self) -> Box<dyn ConstraintState> {
            Box::new(*self)
        }
    }

    impl ConstraintState for Only {
        fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
            let mut mask = TokenMask::all(TOKENS.len());
            (0..TOKENS.len() as u32).filter(|id| *id != self.0).for_each(|id| mask.forbid(id));
            Ok(Some(mask))
        }

        fn accept(&mut self, id: u32) -> Result<(), String> {
            if id == self.0 { Ok(()) } else { Err("not that one".into()) }
        }
    }

    /// Accepts tokens from the beginning of a turn, and returns those that may follow.
    fn after(tokens: &[&str]) -> Vec<&'static str> {
        inside(SegmentKind::Text, tokens)
    }

    /// Same as [`after`] for a turn that begins inside `kind`.
    fn inside(kind: SegmentKind, tokens: &[&str]) -> Vec<&'static str> {
        let mut table = TokenBytes::new();
        TOKENS.iter().for_each(|token| table.push(token.as_bytes(), false));
        let table = Arc::new(table);
        let marks = |open, tags| {
            let tag = Tag { kind: SegmentKind::Answer, open, close: "" };
            Arc::new(OpeningMarks::new(&tag, tags, Arc::clone(&table)))
        };
        let answer = AnswerOpening::new(marks("<answer>", &TAGS), Arc::new(Only(0)));
        let call = AnswerOpening::of_call(marks("<call>", &TOOL_TAGS), Arc::new(Only(1)), &TAGS);
        let form = TurnForm::Openings(TurnOpenings::new(vec![answer, call]));
        let mut turn = form.inside(kind).unwrap().begin();
        for token in tokens {
            let id = TOKENS.iter().position(|other| other == token).unwrap();
            turn.accept(id as u32).unwrap();
        }
        let mask = turn.allowed().unwrap();
        let allows = |id: &usize| mask.as_ref().is_none_or(|mask| mask.allows(*id as u32));
        (0..TOKENS.len()).filter(allows).map(|id| TOKENS[id]).collect()
    }

    #[test]
    fn openings_that_begin_alike_are_told_apart() {
        assert_eq!(after(&["<"]), TOKENS, "either may follow, or neither");
        let whole = ["{", "[", "<", "answer", "call", ">", "<search>", "<think>", "</think>"];
        assert_eq!(after(&["<", "answer"]), whole, "no token runs past the tag");
        assert_eq!(after(&["<", "call"]), whole);
        assert_eq!(after(&["<", "answer", ">"]), ["{"]);
        assert_eq!(after(&["<", "call", ">"]), ["["]);
        assert_eq!(after(&["<", "answer", "<", "call", ">", "["]), ["["], "the other one no longer counts");
        assert_eq!(after(&["<search>", "<", "call", ">"]), TOKENS, "a query is free");
    }

    #[test]
    fn a_call_begins_only_where_one_is_read() {
        assert_eq!(after(&["<think>", "<", "call"]), TOKENS, "a thought is free");
        assert_eq!(after(&["<think>", "<", "call", ">"]), TOKENS);
        assert_eq!(after(&["<think>", "<", "call", ">", "</think>", "<", "call", ">"]), ["["]);
        assert_eq!(after(&["<think>", "<", "answer", ">"]), ["{"], "the reader reads an answer there");
        assert_eq!(inside(SegmentKind::Think, &["<", "call", ">"]), TOKENS, "the prompt has opened a thought");
        assert_eq!(inside(SegmentKind::Think, &["</think>", "<", "call", ">"]), ["["]);
    }
}
