//! Constraint for a turn that is free until an answer or a tool call begins in it.

use waymark_engine::{Constraint, ConstraintState};
use waymark_models::sampler::TokenMask;

use super::answer_opening::{AnswerOpening, OpeningProgress};

/// Any text up to the first tag that opens something, then what this tag opens.
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
