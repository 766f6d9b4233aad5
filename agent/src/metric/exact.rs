//! Exact match of answers.

use super::normalize;

/// Returns `true` if `answer` equals one of `golds` after [`normalize`]: EM (Rajpurkar et al. 2016, §6.1).
pub fn exact_match<S: AsRef<str>>(answer: &str, golds: &[S]) -> bool {
    let answer = normalize(answer);
    golds.iter().any(|gold| normalize(gold.as_ref()) == answer)
}

/// Returns `true` if `answer` contains one of `golds` after [`normalize`] (`subem_check` of Search-R1). Parts of words
/// match, and a gold answer that normalizes to nothing matches everything.
pub fn contains<S: AsRef<str>>(answer: &str, golds: &[S]) -> bool {
    let answer = normalize(answer);
    golds.iter().any(|gold| answer.contains(&normalize(gold.as_ref())))
}
