//! Abstention: answers that state that nothing was found.

use serde::{Deserialize, Serialize};

use super::normalize;

/// Beginnings of statements without an answer, after [`normalize`].
const OPENINGS: &[&str] = &[
    "i could not find",
    "i couldnt find",
    "i cannot find",
    "i cannot answer",
    "i did not find",
    "i do not know",
    "i dont know",
    "i found nothing",
    "i have no information",
    "i was unable",
    "i am unable",
    "im unable",
    "nothing was found",
    "nothing found",
    "no answer was found",
    "no answer found",
    "no evidence",
    "no information",
    "not enough information",
    "not found",
    "there is no information",
    "there is not enough information",
    "question cannot be answered",
    "insufficient information",
    "noanswer",
    "no answer",
    "unanswerable",
];

/// Whole answers without content, after [`normalize`].
const WHOLE: &[&str] = &["", "unknown", "none", "na", "not known", "not available", "not mentioned", "not specified"];

/// Returns `true` if `answer` states that it has no answer. A rule over fixed phrases: an answer that merely mentions
/// one of them later does not count.
pub fn declines(answer: &str) -> bool {
    // Normalization removes the apostrophe of a typewriter alone.
    let answer = normalize(&answer.replace(['\u{2018}', '\u{2019}'], "'"));
    let opens =
        |opening: &str| answer.strip_prefix(opening).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    WHOLE.contains(&answer.as_str()) || OPENINGS.iter().any(|opening| opens(opening))
}

/// Numbers of episodes by answer and evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Abstention {
    /// Answers whose support was retrieved.
    pub answered_supported: usize,
    /// Answers whose support was not retrieved: made up, known by heart, or luckily guessed.
    pub answered_unsupported: usize,
    /// Refusals although the support was retrieved.
    pub refused_supported: usize,
    /// Refusals whose support was not retrieved.
    pub refused_unsupported: usize,
}

impl Abstention {
    /// Counts an episode.
    pub fn add(&mut self, refused: bool, supported: bool) {
        let count = match (refused, supported) {
            (false, true) => &mut self.answered_supported,
            (false, false) => &mut self.answered_unsupported,
            (true, true) => &mut self.refused_supported,
            (true, false) => &mut self.refused_unsupported,
        };
        *count += 1;
    }

    /// Returns the share of refusals among episodes whose support was retrieved. `None` without such episodes.
    pub fn false_refusals(&self) -> Option<f64> {
        share(self.refused_supported, self.answered_supported)
    }

    /// Returns the share of answers among episodes whose support was not retrieved. `None` without such episodes.
    pub fn false_answers(&self) -> Option<f64> {
        share(self.answered_unsupported, self.refused_unsupported)
    }
}

fn share(part: usize, rest: usize) -> Option<f64> {
    let all = part + rest;
    (all > 0).then(|| part as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_without_an_answer_are_recognized() {
        for answer in ["I could not find this.", "Not found", "UNKNOWN.", "", "The question cannot be answered.", "N/A"]
        {
            assert!(declines(answer), "{answer:?}");
        }
        for answer in ["No", "none the wiser", "Unknown Pleasures", "No answers in Genesis", "Paris", "not foundling"] {
            assert!(!declines(answer), "{answer:?}");
        }
    }

    #[test]
    fn shares_are_within_their_column() {
        let mut counts = Abstention::default();
        assert_eq!((counts.false_refusals(), counts.false_answers()), (None, None));
        for (refused, supported) in [(false, true), (false, true), (false, true), (true, true), (false, false)] {
            counts.add(refused, supported);
        }
        assert_eq!((counts.false_refusals(), counts.false_answers()), (Some(0.25), Some(1.0)));
    }
}
