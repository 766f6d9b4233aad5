//! Evidence of withdrawn searches that the policy no longer sees.

use std::ops::Range;

use serde::{Deserialize, Serialize};
#[cfg(feature = "openapi")]
use utoipa::ToSchema;
use waymark_engine::Token;

use super::trajectory::SearchRecord;

/// Tokens of a search's evidence that were taken out of the policy's sight when it withdrew the search. They stay in the
/// trajectory, which only grows: what was written before was written with them in sight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct HiddenEvidence {
    /// Position of the first of these tokens in the trajectory.
    pub first: usize,
    /// Number of these tokens.
    pub tokens: usize,
    /// Position of the first token in the trajectory that was written without them in sight.
    pub from: usize,
}

impl HiddenEvidence {
    /// Returns the positions of the tokens in the trajectory.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first.saturating_add(self.tokens)
    }
}

/// Returns the tokens of a trajectory that its policy sees at the end.
pub(super) fn visible(tokens: &[Token], evidence: &[SearchRecord]) -> Vec<Token> {
    let hidden: Vec<Range<usize>> =
        evidence.iter().filter_map(|found| found.hidden).map(|hidden| hidden.range()).collect();
    let seen = |at: &usize| !hidden.iter().any(|range| range.contains(at));
    tokens.iter().enumerate().filter(|(at, _)| seen(at)).map(|(_, token)| *token).collect()
}
