//! Scores of a judge.

use serde::{Deserialize, Serialize};

/// Scores that a judge gave an episode. `None` where it gave none.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// ACC_L: 1 if the judge takes the answer for correct, otherwise 0.
    pub correct: Option<f64>,
    /// G-E: mean grade over the aspects, from 0 to 1.
    pub quality: Option<f64>,
}
