//! Metrics of R1-Searcher and GraphRAG-R1 (`eval/calc_rule.py` of the latter), with a normal form of their own.

use std::collections::HashSet;

use super::normalize::words;
pub use super::normalize::{spaced, spaced_answer as normalize};
use super::overlap::Overlap;

/// Answers that are either right or wrong, without partial credit.
const WHOLE: [&str; 3] = ["yes", "no", "noanswer"];

/// Returns `true` if the texts are equal after [`normalize`].
pub fn exact_match(answer: &str, gold: &str) -> bool {
    normalize(answer) == normalize(gold)
}

/// Compares words after [`normalize`]; zero if either text is `yes`, `no` or `noanswer` and the other one differs.
pub fn overlap(answer: &str, gold: &str) -> Overlap {
    let answer = normalize(answer);
    let gold = normalize(gold);
    let whole = WHOLE.contains(&answer.as_str()) || WHOLE.contains(&gold.as_str());
    if whole && answer != gold { Overlap::default() } else { Overlap::of(&answer, &gold) }
}

/// Returns `true` if `answer` contains all words of `gold`, in any order (cover-EM, the first variant: ACC_R).
pub fn covers_words(answer: &str, gold: &str) -> bool {
    let answer = normalize(answer);
    let gold = normalize(gold);
    let given: HashSet<&str> = words(&answer).collect();
    words(&gold).all(|word| given.contains(word))
}
