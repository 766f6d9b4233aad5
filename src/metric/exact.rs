//! Whether an answer is a gold one.

use super::normalize;

/// Whether `answer` and one of `golds` are the same after [`normalize`]: EM (Rajpurkar et al. 2016, §6.1).
pub fn exact_match<S: AsRef<str>>(answer: &str, golds: &[S]) -> bool {
    let answer = normalize(answer);
    golds.iter().any(|gold| normalize(gold.as_ref()) == answer)
}

/// Whether one of `golds` is a part of `answer` after [`normalize`] (`subem_check` of Search-R1). Parts of words count, and
/// a gold of which nothing is left is a part of everything.
pub fn contains<S: AsRef<str>>(answer: &str, golds: &[S]) -> bool {
    let answer = normalize(answer);
    golds.iter().any(|gold| answer.contains(&normalize(gold.as_ref())))
}
