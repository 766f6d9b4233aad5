//! Overlap of the words of two texts.

use std::collections::HashMap;

use super::normalize;
use super::normalize::words;

/// Overlap of the words of a prediction and a gold text, as multisets. All values are 0 without a common word, also for
/// two empty texts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Overlap {
    /// `2 P R / (P + R)`.
    pub f1: f64,
    /// Share of the prediction's words that are in the gold text.
    pub precision: f64,
    /// Share of the gold text's words that are in the prediction.
    pub recall: f64,
}

impl Overlap {
    /// Compares two normalized texts.
    pub fn of(prediction: &str, gold: &str) -> Overlap {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        let mut wanted = 0;
        for word in words(gold) {
            *counts.entry(word).or_default() += 1;
            wanted += 1;
        }
        let mut same = 0;
        let mut given = 0;
        for word in words(prediction) {
            given += 1;
            if let Some(left) = counts.get_mut(word).filter(|left| **left > 0) {
                *left -= 1;
                same += 1;
            }
        }
        // Avoids dividing by zero below.
        if same == 0 {
            return Overlap::default();
        }
        let precision = f64::from(same) / f64::from(given);
        let recall = f64::from(same) / f64::from(wanted);
        Overlap { f1: 2.0 * precision * recall / (precision + recall), precision, recall }
    }
}

/// Returns the F1 of the words of `answer` and the most similar gold answer, after [`normalize`] (Rajpurkar et al.
/// 2016, §6.1, on multisets as in SQuAD's own program). Two empty texts have no common word and score 0, although they
/// match exactly.
pub fn f1<S: AsRef<str>>(answer: &str, golds: &[S]) -> f64 {
    let answer = normalize(answer);
    golds.iter().map(|gold| Overlap::of(&answer, &normalize(gold.as_ref())).f1).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_symmetric_bounded_and_one_for_equal_texts(a in "[xyz ]{0,12}", b in "[xyz ]{0,12}") {
            let there = Overlap::of(&a, &b);
            let back = Overlap::of(&b, &a);
            prop_assert!((there.f1 - back.f1).abs() < 1e-12 && (0.0..=1.0).contains(&there.f1));
            prop_assert_eq!(there.precision, back.recall);
            prop_assert_eq!(Overlap::of(&a, &a).f1, if a.trim().is_empty() { 0.0 } else { 1.0 });
        }
    }

    #[test]
    fn repeated_words_count_as_often_as_both_have_them() {
        let overlap = Overlap::of("dog dog cat", "dog cat cat bird");
        assert_eq!((overlap.precision, overlap.recall), (2.0 / 3.0, 0.5));
        assert_eq!(f1("The dog", &["a cat", "dog"]), 1.0);
    }
}
