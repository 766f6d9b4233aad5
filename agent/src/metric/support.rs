//! Support of an answer: the retrieved share of the gold evidence, and the words of the answer without evidence.

use std::collections::HashSet;

use super::normalize;
use super::normalize::words;
use super::overlap::Overlap;

/// Returns the SF-F1 of a trajectory, PathRouter's P_i (its appendix A): the mean over the gold passages of the F1
/// between the words of all retrieved texts together and those of the passage. Words are those of [`normalize`],
/// counted as multisets, as in SQuAD's F1. `None` without gold passages.
///
/// Each passage should occur once in `retrieved`, or its words weigh more with every search that found it.
pub fn support_f1<S: AsRef<str>, G: AsRef<str>>(retrieved: &[S], gold: &[G]) -> Option<f64> {
    if gold.is_empty() {
        return None;
    }
    let retrieved: Vec<String> = retrieved.iter().map(|text| normalize(text.as_ref())).collect();
    let retrieved = retrieved.join(" ");
    let sum: f64 = gold.iter().map(|text| Overlap::of(&retrieved, &normalize(text.as_ref())).f1).sum();
    Some(sum / gold.len() as f64)
}

/// Counts of an answer's words and of those that occur in no retrieved passage, for UAR (PathRouter, appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unsupported {
    /// Number of words of the answer that occur in no passage.
    pub unsupported: usize,
    /// Number of words of the answer.
    pub words: usize,
}

impl Unsupported {
    /// Looks up every word of `answer`, normalized by [`normalize`], in `retrieved`.
    pub fn of<S: AsRef<str>>(answer: &str, retrieved: &[S]) -> Unsupported {
        let retrieved: Vec<String> = retrieved.iter().map(|text| normalize(text.as_ref())).collect();
        let known: HashSet<&str> = retrieved.iter().flat_map(|text| words(text)).collect();
        let answer = normalize(answer);
        let total = words(&answer).count();
        Unsupported { unsupported: words(&answer).filter(|word| !known.contains(word)).count(), words: total }
    }

    /// Returns the share of the answer's words without support; lower is better. `None` for an answer without words,
    /// which is left out of means.
    pub fn rate(self) -> Option<f64> {
        (self.words > 0).then(|| self.unsupported as f64 / self.words as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_retrieval_lowers_precision() {
        let gold = ["Paris is in France."];
        assert_eq!(support_f1(&["Paris is in France"], &gold), Some(1.0));
        // Four of eight words, all of the gold: 2 · ½ · 1 / 1½.
        let found = support_f1(&["Paris is in", "France Rome lies elsewhere far"], &gold);
        assert!((found.unwrap_or_default() - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(support_f1::<&str, _>(&[], &gold), Some(0.0));
        assert_eq!(support_f1::<_, &str>(&["x"], &[]), None);
    }

    #[test]
    fn words_of_the_answer_are_looked_for_in_all_passages() {
        let rests = Unsupported::of("The Left Bank, Paris", &["paris", "the bank of England"]);
        assert_eq!(rests, Unsupported { unsupported: 1, words: 3 });
        assert_eq!(Unsupported::of("the", &["x"]).rate(), None);
        assert_eq!(Unsupported::of::<&str>("x y", &[]).rate(), Some(1.0));
    }
}
