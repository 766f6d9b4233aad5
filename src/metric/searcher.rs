//! The metrics of R1-Searcher and GraphRAG-R1 (`eval/calc_rule.py` of the latter), which normalise in their own way.

use std::collections::HashSet;

pub use super::normal::spaced as normalize;
use super::normal::words;
use super::overlap::Overlap;

/// Answers of one word that are right or wrong, and never half right.
const WHOLE: [&str; 3] = ["yes", "no", "noanswer"];

/// Whether the two are the same after [`normalize`].
pub fn exact_match(answer: &str, gold: &str) -> bool {
    normalize(answer) == normalize(gold)
}

/// Common words after [`normalize`]; none where one of the two is exactly `yes`, `no` or `noanswer` and the other is not.
pub fn overlap(answer: &str, gold: &str) -> Overlap {
    let (answer, gold) = (normalize(answer), normalize(gold));
    let whole = WHOLE.contains(&answer.as_str()) || WHOLE.contains(&gold.as_str());
    if whole && answer != gold { Overlap::default() } else { Overlap::of(&answer, &gold) }
}

/// Whether all words of `gold` are words of `answer`, in any order (cover-EM, their first variant: ACC_R).
pub fn covers_words(answer: &str, gold: &str) -> bool {
    let (answer, gold) = (normalize(answer), normalize(gold));
    let given: HashSet<&str> = words(&answer).collect();
    words(&gold).all(|word| given.contains(word))
}

/// Whether `gold` is a part of `answer` as it stands (cover-EM, their second variant).
pub fn covers_text(answer: &str, gold: &str) -> bool {
    normalize(answer).contains(&normalize(gold))
}
