//! Measures of the evidence of a trajectory against the supporting passages of its question: PathRouter's P.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use waymark_agent::metric::{normalize, support_f1};

/// Measure of the evidence of a trajectory. Each is a mean over the supporting passages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceMeasure {
    /// SF-F1 of the paper (appendix A): the F1 between all retrieved texts together and the passage. Made for short
    /// facts: with whole passages as evidence, it falls with each search that finds more.
    #[default]
    SfF1,
    /// The best F1 between any one retrieved text and the passage, which no further search lowers. For passages.
    BestF1,
    /// Share of the passage's words that were retrieved, which no further search lowers. For facts.
    Recall,
}

impl EvidenceMeasure {
    /// Measures retrieved texts against the supporting passages. `None` if these are not known.
    pub fn of<S: AsRef<str>, G: AsRef<str>>(self, retrieved: &[S], gold: &[G]) -> Option<f64> {
        if gold.is_empty() {
            return None;
        }
        let mean =
            |one: &dyn Fn(&str) -> f64| gold.iter().map(|text| one(text.as_ref())).sum::<f64>() / gold.len() as f64;
        match self {
            EvidenceMeasure::SfF1 => support_f1(retrieved, gold),
            EvidenceMeasure::BestF1 => Some(mean(&|gold| {
                let each = retrieved.iter().filter_map(|text| support_f1(&[text.as_ref()], &[gold]));
                each.fold(0.0, f64::max)
            })),
            EvidenceMeasure::Recall => {
                let all = retrieved.iter().map(|text| normalize(text.as_ref())).collect::<Vec<_>>().join(" ");
                let known = counts(&all);
                Some(mean(&|gold| recall(&known, &normalize(gold))))
            }
        }
    }
}

/// Number of occurrences of each word of a normalized text.
fn counts(text: &str) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    text.split_whitespace().for_each(|word| *counts.entry(word).or_default() += 1);
    counts
}

/// Share of the words of `gold` among the `known` ones, counted as multisets.
fn recall(known: &HashMap<&str, usize>, gold: &str) -> f64 {
    let wanted = counts(gold);
    let total: usize = wanted.values().sum();
    let found: usize = wanted.iter().map(|(word, &count)| count.min(known.get(word).copied().unwrap_or(0))).sum();
    found as f64 / total.max(1) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GOLD: [&str; 2] = ["Paris lies in France", "Rome lies in Italy"];

    #[test]
    fn only_the_papers_measure_falls_when_more_is_found() {
        let found = ["Paris lies in France", "Oslo is cold", "Rome lies in Italy", "Bern and Oslo are far away"];
        for measure in [EvidenceMeasure::SfF1, EvidenceMeasure::BestF1, EvidenceMeasure::Recall] {
            let values: Vec<f64> = (0..=4).map(|count| measure.of(&found[..count], &GOLD).unwrap()).collect();
            let falls = values.windows(2).any(|pair| pair[1] < pair[0]);
            assert_eq!(falls, measure == EvidenceMeasure::SfF1, "{measure:?}: {values:?}");
            assert_eq!(measure.of::<&str, &str>(&["x"], &[]), None);
        }
        let all = |measure: EvidenceMeasure| measure.of(&found, &GOLD).unwrap();
        assert_eq!((all(EvidenceMeasure::BestF1), all(EvidenceMeasure::Recall)), (1.0, 1.0));
    }

    #[test]
    fn words_count_as_often_as_they_occur() {
        let measure = |found: &str| EvidenceMeasure::Recall.of(&[found], &["to be or not to be"]).unwrap();
        assert!((measure("To be!") - 2.0 / 6.0).abs() < 1e-12 && (measure("to be, to be") - 4.0 / 6.0).abs() < 1e-12);
    }
}
