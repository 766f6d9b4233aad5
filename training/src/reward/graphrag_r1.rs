//! GraphRAG-R1's rewards.
//!
//! The paper describes the right format only in words (§3.2.1): answer, queries and documents within their tags, a
//! search that was really executed, and no unreadable characters. Tags are counted as in R1-Searcher, whose protocol
//! GraphRAG-R1 uses, with one difference: R1-Searcher allows no thought after the one that the prompt opens, while this
//! prompt asks for a thought after every search. Both are accepted here if every thought ends. A failed search does not
//! count.

use serde::{Deserialize, Serialize};
use waymark_agent::metric::r1_searcher;

use super::extract::closed_answer;
use super::searcher::{answered, outside};
use super::{Reward, reward_value};
use crate::sample::{RewardValue, Sample};

/// Reward of the right format in every reward-based stage (§3.2.1 of the paper).
const FORM: f64 = 0.5;

/// Progressive retrieval attenuation (§3.2.2): search n earns `first · decayⁿ⁻¹`, in addition to the format reward.
/// The paper requires a decay below 1 but then sets it to 1 (§4.1.4), which disables attenuation; the default lies in
/// between.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Attenuated {
    /// R0: reward of the first search.
    pub first: f64,
    /// k: ratio between the rewards of consecutive searches.
    pub decay: f64,
}

impl Default for Attenuated {
    fn default() -> Self {
        Attenuated { first: 0.5, decay: 0.5 }
    }
}

impl Attenuated {
    /// Returns the reward of `searches` searches: `R0 (1 − kⁿ) / (1 − k)`, or `R0 n` for k = 1.
    pub fn of(&self, searches: usize) -> f64 {
        (0..searches).fold((0.0, self.first), |(sum, next), _| (sum + next, next * self.decay)).0
    }
}

impl Reward for Attenuated {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let score = |sample: &Sample| {
            let form = form(sample);
            let searches = searches(sample);
            let retrieval = self.of(searches);
            reward_value(form + retrieval, [("form", form), ("retrieval", retrieval), ("f1", overlap(sample))])
        };
        samples.iter().map(score).collect()
    }
}

/// Cost-aware F1 (§3.2.3): `F1 · a · exp(−b N)` for N searches, in addition to the format reward.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CostAware {
    /// a: reward of a correct answer without searches.
    pub scale: f64,
    /// b: decay rate per search.
    pub decay: f64,
}

impl Default for CostAware {
    fn default() -> Self {
        CostAware { scale: 2.0, decay: 0.1 }
    }
}

impl CostAware {
    /// Returns the reward of an answer with the given F1 and number of searches.
    pub fn of(&self, f1: f64, searches: usize) -> f64 {
        f1 * self.scale * (-self.decay * searches as f64).exp()
    }
}

impl Reward for CostAware {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let score = |sample: &Sample| {
            let form = form(sample);
            let f1 = overlap(sample);
            let answer = self.of(f1, searches(sample));
            reward_value(form + answer, [("form", form), ("answer", answer), ("f1", f1)])
        };
        samples.iter().map(score).collect()
    }
}

/// Both rewards in one run: attenuated retrieval and cost-aware F1, in addition to the format reward. It is the paper's
/// ablation without stages ("all stages mixed"), and its stage 3 for Llama-3.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttenuatedCostAware {
    /// Reward of searches.
    pub attenuated: Attenuated,
    /// Reward of the answer.
    pub cost_aware: CostAware,
}

impl Reward for AttenuatedCostAware {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let score = |sample: &Sample| {
            let form = form(sample);
            let f1 = overlap(sample);
            let searches = searches(sample);
            let retrieval = self.attenuated.of(searches);
            let answer = self.cost_aware.of(f1, searches);
            let parts = [("form", form), ("retrieval", retrieval), ("answer", answer), ("f1", f1)];
            reward_value(form + retrieval + answer, parts)
        };
        samples.iter().map(score).collect()
    }
}

/// Returns the format reward. See the module documentation.
fn form(sample: &Sample) -> f64 {
    let text = &sample.text;
    let kept = closed_answer(sample).is_some()
        && searches(sample) > 0
        // R1-Searcher's fifth tag is a first document with a number, which these passages do not have.
        && answered(text, 4)
        && is_closed(text)
        && outside(text).into_iter().all(is_readable);
    if kept { FORM } else { 0.0 }
}

/// Number of successful searches.
fn searches(sample: &Sample) -> usize {
    sample.evidence.iter().filter(|found| found.error.is_none()).count()
}

/// Returns `true` if every thought ends, including the one that the prompt opens, and there is one answer.
fn is_closed(text: &str) -> bool {
    let count = |tag: &str| text.matches(tag).count();
    // The prompt opens the first thought, so its opening tag is not in the text.
    count("</think>") == count("<think>") + 1 && count("<answer>") == 1 && count("</answer>") == 1
}

/// Returns `true` if a text has only readable characters.
fn is_readable(text: &str) -> bool {
    !text.chars().any(|c| c == char::REPLACEMENT_CHARACTER || c.is_control() && !c.is_whitespace())
}

/// Returns the F1 of the answer by R1-Searcher's rules, which the paper uses.
fn overlap(sample: &Sample) -> f64 {
    let Some(answer) = closed_answer(sample) else { return 0.0 };
    sample.golds.iter().map(|gold| r1_searcher::overlap(answer, gold).f1).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use waymark_index::Mode;

    use super::super::tests::searched;
    use super::*;

    const FOUND: &str =
        "a <|begin_of_query|>b<|end_of_query|><|begin_of_documents|>\nc\u{fffd}<|end_of_documents|>\n\n";

    /// Episode of one search with the given end.
    fn ending(text: &str) -> Sample {
        let golds = vec!["Paris".to_owned()];
        Sample { golds, ..searched(&format!("{FOUND}{text}"), &[(Mode::Triples, 0.1)]) }
    }

    #[test]
    fn the_format_reward_needs_every_tag_in_place() {
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
    fn failed_searches_do_not_count() {
        let mut sample = ending("d</think>\n<answer>Paris</answer>");
        sample.evidence.push(sample.evidence[0].clone());
        sample.evidence[1].error = Some("no index".to_owned());
        let attenuated = Attenuated::default();
        let cost_aware = CostAware::default();
        let totals = |sample: &Sample| {
            let samples = [sample.clone()];
            [attenuated.score(&samples)[0].total, cost_aware.score(&samples)[0].total]
        };
        assert_eq!(totals(&sample), [FORM + attenuated.of(1), FORM + cost_aware.of(1.0, 1)]);
        sample.evidence.remove(0);
        assert_eq!(totals(&sample), [0.0, cost_aware.of(1.0, 0)]);
    }

    #[test]
    fn both_rewards_of_one_run_add_up() {
        let both = AttenuatedCostAware::default();
        let sample = ending("d</think>\n<answer>Paris</answer>");
        let parts = [both.attenuated.of(1), both.cost_aware.of(1.0, 1)];
        assert!((both.score(&[sample])[0].total - (FORM + parts[0] + parts[1])).abs() < 1e-12);
    }

    #[test]
    fn a_forced_answer_earns_neither_form_nor_f1() {
        let own = ending("d</think>\n<answer>Paris</answer>");
        let forced = Sample { forced: vec![(3, 2)], ..own.clone() };
        let attenuated = Attenuated::default();
        let cost_aware = CostAware::default();
        let totals = |samples: &[Sample]| [attenuated.score(samples)[0].total, cost_aware.score(samples)[0].total];
        assert_eq!(totals(&[own]), [FORM + attenuated.of(1), FORM + cost_aware.of(1.0, 1)]);
        assert_eq!(totals(&[forced]), [attenuated.of(1), 0.0]);
    }
}
