//! Constraint for a turn that is free until an answer or a tool call begins in it.

use waymark_engine::{Constraint, ConstraintState};
use waymark_models::sampler::TokenMask;

use super::answer_opening::{AnswerOpening, OpeningProgress};

/// Constraint of a turn: any text up to the first tag that opens an answer or a call, then the text that this tag
/// opens.
#[derive(Debug, Clone)]
pub(super) struct TurnOpenings(Vec<AnswerOpening>);

impl TurnOpenings {
    /// Creates the constraint of a turn in which each of `openings` may begin.
    pub(super) fn new(openings: Vec<AnswerOpening>) -> TurnOpenings {
        TurnOpenings(openings)
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
    use std::sync::Arc;

    use waymark_models::tokenizer::TokenBytes;

    use super::super::answer_opening::OpeningMarks;
    use super::super::segment::{SegmentKind, Tag};
    use super::super::tag::TAGS;
    use super::*;

    const TOKENS: [&str; 9] = ["{", "[", "<", "answer", "call", ">", ">{", ">[", "<search>"];

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
        let mut table = TokenBytes::new();
        TOKENS.iter().for_each(|token| table.push(token.as_bytes(), false));
        let table = Arc::new(table);
        let opening = |open, first| {
            let tag = Tag { kind: SegmentKind::Answer, open, close: "" };
            let marks = OpeningMarks::new(&tag, &TAGS, Arc::clone(&table));
            AnswerOpening::new(Arc::new(marks), Arc::new(Only(first)))
        };
        let mut turn = TurnOpenings::new(vec![opening("<answer>", 0), opening("<call>", 1)]).begin();
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
        let whole = ["{", "[", "<", "answer", "call", ">", "<search>"];
        assert_eq!(after(&["<", "answer"]), whole, "no token runs past the tag");
        assert_eq!(after(&["<", "call"]), whole);
        assert_eq!(after(&["<", "answer", ">"]), ["{"]);
        assert_eq!(after(&["<", "call", ">"]), ["["]);
        assert_eq!(after(&["<", "answer", "<", "call", ">", "["]), ["["], "the other one no longer counts");
        assert_eq!(after(&["<search>", "<", "call", ">"]), TOKENS, "a query is free");
    }
}
