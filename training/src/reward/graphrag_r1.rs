//! GraphRAG-R1's rewards.

use serde::{Deserialize, Serialize};
use waymark::metric::searcher;

use super::extract::given;
use super::{Reward, worth};
use crate::sample::{Reward as Worth, Sample};

/// What a reply in the right form is worth in every stage (§3.3 of the paper).
const FORM: f64 = 0.5;

/// Progressive retrieval attenuation (§3.3.1): search n is worth `first · decayⁿ⁻¹`, on top of the form. The paper asks for
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
            let (form, searches) = (form(sample), sample.evidence.len());
            let retrieval = self.of(searches);
            worth(form + retrieval, [("form", form), ("retrieval", retrieval), ("f1", overlap(sample))])
        };
        samples.iter().map(score).collect()
    }
}

/// Cost-aware F1 (§3.3.2): `F1 · a · exp(−b N)` for N searches, on top of the form.
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
            let answer = self.of(f1, sample.evidence.len());
            worth(form + answer, [("form", form), ("answer", answer), ("f1", f1)])
        };
        samples.iter().map(score).collect()
    }
}

/// The part for form: an answer within its tags, and at least one search that was made.
fn form(sample: &Sample) -> f64 {
    let kept = given(sample).is_some() && !sample.evidence.is_empty();
    if kept { FORM } else { 0.0 }
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

    #[test]
    fn a_forced_answer_earns_neither_form_nor_f1() {
        let text = "a</think><|begin_of_query|>b<|end_of_query|>c</think>\n<answer>Paris</answer>";
        let own = Sample { golds: vec!["Paris".to_owned()], ..searched(text, &[(Mode::Triples, 0.1)]) };
        let forced = Sample { forced: vec![(3, 2)], ..own.clone() };
        let (attenuated, cost_aware) = (Attenuated::default(), CostAware::default());
        let totals = |samples: &[Sample]| [attenuated.score(samples)[0].total, cost_aware.score(samples)[0].total];
        assert_eq!(totals(&[own]), [FORM + attenuated.of(1), FORM + cost_aware.of(1.0, 1)]);
        assert_eq!(totals(&[forced]), [attenuated.of(1), 0.0]);
    }
}
