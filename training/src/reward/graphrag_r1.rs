//! GraphRAG-R1's rewards.
//!
//! What counts as the right form is not said in more than words (§3.2.1): the answer within its tags, queries and documents
//! within theirs, a search that was really made, and nothing that cannot be read. The tags are counted as in R1-Searcher, whose
//! protocol it is, with one difference: there no thought may begin anew after the one that the prompt opens, while the prompt
//! here asks for one after every search. So either is in form, as long as every thought ends. A search that failed counts as
//! none.

use serde::{Deserialize, Serialize};
use waymark::metric::searcher;

use super::extract::given;
use super::searcher::{answered, outside};
use super::{Reward, worth};
use crate::sample::{Reward as Worth, Sample};

/// What a reply in the right form is worth in every stage by rewards (§3.2.1 of the paper).
const FORM: f64 = 0.5;

/// Progressive retrieval attenuation (§3.2.2): search n is worth `first · decayⁿ⁻¹`, on top of the form. The paper asks for
/// a decay below 1 and then sets it to 1 (§4.1.4), where nothing attenuates: the default is between.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Attenuated {
    /// R0: worth of the first search.
    pub first: f64,
    /// k: what each further one is worth of the one before.
    pub decay: f64,
}

impl Default for Attenuated {
    fn default() -> Self {
        Attenuated { first: 0.5, decay: 0.5 }
    }
}

impl Attenuated {
    /// What so many searches are worth: `R0 (1 − kⁿ) / (1 − k)`, and `R0 n` for k = 1.
    pub fn of(&self, searches: usize) -> f64 {
        (0..searches).fold((0.0, self.first), |(sum, next), _| (sum + next, next * self.decay)).0
    }
}

impl Reward for Attenuated {
    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        let score = |sample: &Sample| {
            let (form, searches) = (form(sample), searches(sample));
            let retrieval = self.of(searches);
            worth(form + retrieval, [("form", form), ("retrieval", retrieval), ("f1", overlap(sample))])
        };
        samples.iter().map(score).collect()
    }
}

/// Cost-aware F1 (§3.2.3): `F1 · a · exp(−b N)` for N searches, on top of the form.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CostAware {
    /// a: worth of a right answer without searches.
    pub scale: f64,
    /// b: how fast searches lower it.
    pub decay: f64,
}

impl Default for CostAware {
    fn default() -> Self {
        CostAware { scale: 2.0, decay: 0.1 }
    }
}

impl CostAware {
    /// What an answer of this F1 is worth after so many searches.
    pub fn of(&self, f1: f64, searches: usize) -> f64 {
        f1 * self.scale * (-self.decay * searches as f64).exp()
    }
}

impl Reward for CostAware {
    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        let score = |sample: &Sample| {
            let (form, f1) = (form(sample), overlap(sample));
            let answer = self.of(f1, searches(sample));
            worth(form + answer, [("form", form), ("answer", answer), ("f1", f1)])
        };
        samples.iter().map(score).collect()
    }
}

/// The part for form; see the module.
fn form(sample: &Sample) -> f64 {
    let text = &sample.text;
    let kept = given(sample).is_some()
        && searches(sample) > 0
        && answered(text, 4)
        && is_closed(text)
        && outside(text).into_iter().all(is_readable);
    if kept { FORM } else { 0.0 }
}

/// Searches that were made and did not fail.
fn searches(sample: &Sample) -> usize {
    sample.evidence.iter().filter(|found| found.error.is_none()).count()
}

/// Whether every thought ends, the one that the prompt opens among them, and there is one answer.
fn is_closed(text: &str) -> bool {
    let count = |tag: &str| text.matches(tag).count();
    count("</think>") == count("<think>") + 1 && count("<answer>") == 1 && count("</answer>") == 1
}

/// Whether there is nothing in a text but characters that can be read.
fn is_readable(text: &str) -> bool {
    !text.chars().any(|c| c == char::REPLACEMENT_CHARACTER || c.is_control() && !c.is_whitespace())
}

/// F1 of the answer by R1-Searcher's rules, which the paper uses.
fn overlap(sample: &Sample) -> f64 {
    let Some(answer) = given(sample) else { return 0.0 };
    sample.golds.iter().map(|gold| searcher::overlap(answer, gold).f1).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use waymark_index::Mode;

    use super::super::tests::searched;
    use super::*;

    const FOUND: &str =
        "a <|begin_of_query|>b<|end_of_query|><|begin_of_documents|>\nc\u{fffd}<|end_of_documents|>\n\n";

    /// An episode of one search, that ends with this.
    fn ending(text: &str) -> Sample {
        let golds = vec!["Paris".to_owned()];
        Sample { golds, ..searched(&format!("{FOUND}{text}"), &[(Mode::Triples, 0.1)]) }
    }

    #[test]
    fn form_is_paid_where_every_tag_is_in_its_place() {
        let end = "d</think>\n<answer>Paris</answer>";
        for formed in [end.to_owned(), format!("{FOUND}{end}"), format!("d</think> <think>{end}")] {
            assert_eq!(form(&ending(&formed)), FORM, "{formed}");
        }
        for broken in [
            "d\n<answer>Paris</answer>".to_owned(),
            format!("<think>{end}"),
            format!("d</think>{end}"),
            format!("<answer>Rome</answer>{end}"),
            format!("{end}</answer>"),
            "d</think>\nParis".to_owned(),
            format!("<|begin_of_query|>e<|end_of_query|>{end}"),
            format!("<|begin_of_query|>{end}"),
            format!("<|begin_of_documents|>e<|end_of_documents|>{end}"),
            format!("\u{fffd}{end}"),
            format!("\u{1b}{end}"),
        ] {
            assert_eq!(form(&ending(&broken)), 0.0, "{broken:?}");
        }
    }

    #[test]
    fn searches_that_failed_are_none() {
        let mut sample = ending("d</think>\n<answer>Paris</answer>");
        sample.evidence.push(sample.evidence[0].clone());
        sample.evidence[1].error = Some("no index".to_owned());
        let (attenuated, cost_aware) = (Attenuated::default(), CostAware::default());
        let totals = |sample: &Sample| {
            let samples = [sample.clone()];
            [attenuated.score(&samples)[0].total, cost_aware.score(&samples)[0].total]
        };
        assert_eq!(totals(&sample), [FORM + attenuated.of(1), FORM + cost_aware.of(1.0, 1)]);
        sample.evidence.remove(0);
        assert_eq!(totals(&sample), [0.0, cost_aware.of(1.0, 0)]);
    }

    #[test]
    fn a_forced_answer_earns_neither_form_nor_f1() {
        let own = ending("d</think>\n<answer>Paris</answer>");
        let forced = Sample { forced: vec![(3, 2)], ..own.clone() };
        let (attenuated, cost_aware) = (Attenuated::default(), CostAware::default());
        let totals = |samples: &[Sample]| [attenuated.score(samples)[0].total, cost_aware.score(samples)[0].total];
        assert_eq!(totals(&[own]), [FORM + attenuated.of(1), FORM + cost_aware.of(1.0, 1)]);
        assert_eq!(totals(&[forced]), [attenuated.of(1), 0.0]);
    }
}
