//! R1-Searcher's rewards, which GraphRAG-R1's training builds on. They score a solution: the text after the `<think>`
//! that ends the prompt. A search counts as answered only if its documents begin with `(1)`, because R1-Searcher's
//! environment numbers them: a policy that writes documents of its own earns nothing by that.

use serde::{Deserialize, Serialize};
use waymark_agent::metric::{r1_searcher, strip};

use super::{Reward, reward_value};
use crate::sample::{RewardValue, Sample};

/// Tags of a search, in order, and then two of them with what the environment writes next to them: the number of the
/// first document, and the empty line after the documents.
const TAGS: [&str; 6] = [
    "<|begin_of_query|>",
    "<|end_of_query|>",
    "<|begin_of_documents|>",
    "<|end_of_documents|>",
    "<|begin_of_documents|>\n(1)",
    "<|end_of_documents|>\n\n",
];

/// Maximum number of words of an answer (`reward_server_qwen_zero`).
const LONGEST: usize = 10;

/// Reward of R1-Searcher for the best of the accepted answers. A forced answer is left out of the solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearcherReward {
    /// Part of R1-Searcher's training.
    pub stage: SearcherStage,
}

/// Part of R1-Searcher's training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearcherStage {
    /// [`first_stage`].
    First,
    /// [`second_stage`].
    Second,
    /// [`zero`].
    Zero,
}

impl Reward for SearcherReward {
    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let reward = match self.stage {
            SearcherStage::First => first_stage,
            SearcherStage::Second => second_stage,
            SearcherStage::Zero => zero,
        };
        let value = |sample: &Sample| {
            let text = sample.text.as_str();
            let unforced = text.rsplit_once("<answer>").map_or(text, |(before, _)| before);
            let solution = if sample.is_forced() { unforced } else { text };
            sample.golds.iter().map(|gold| reward(solution, gold)).reduce(f64::max).unwrap_or(0.0)
        };
        samples.iter().map(|sample| reward_value(value(sample), [])).collect()
    }
}

/// Reward of stage 1 for an instruction-tuned model: ±1 for an answer that contains all words of the accepted one, ½
/// for searches that were all answered, and ½ for exactly one end of thought and one answer.
pub fn first_stage(solution: &str, gold: &str) -> f64 {
    let right = answer(solution).is_some_and(|answer| covers(answer, gold));
    let searched = solution.contains(TAGS[0]) && answered(solution, TAGS.len());
    let half = |holds: bool| if holds { 0.5 } else { 0.0 };
    (if right { 1.0 } else { -1.0 }) + half(searched) + half(closed(solution))
}

/// Reward of stage 2 for an instruction-tuned model: F1, minus 1 if the format is wrong.
pub fn second_stage(solution: &str, gold: &str) -> f64 {
    let formed = answered(solution, TAGS.len()) && closed(solution) && !chinese(solution);
    overlap(solution, gold) - if formed { 0.0 } else { 1.0 }
}

/// Reward for a base model: F1, minus 2 if the format is wrong. Long answers, answers with search tags, and solutions
/// that name the assistant, as when they continue as a chat, also count as a wrong format.
pub fn zero(solution: &str, gold: &str) -> f64 {
    let answer = answer(solution).unwrap_or_default();
    let plain = !answer.contains("begin_of_query") && !answer.contains("begin_of_documents");
    let formed = answered(solution, TAGS.len())
        && closed(solution)
        && plain
        && answer.split_whitespace().count() <= LONGEST
        && !chinese(solution)
        && !solution.contains("Assistant")
        && !solution.contains("assistant");
    overlap(solution, gold) - if formed { 0.0 } else { 2.0 }
}

/// Returns the last answer. `None` if the solution has no closing tag; the reference does not check that the tag closes
/// the last answer.
fn answer(solution: &str) -> Option<&str> {
    if !solution.contains("</answer>") {
        return None;
    }
    let (_, after) = solution.rsplit_once("<answer>")?;
    Some(strip(after.split_once("</answer>").map_or(after, |(answer, _)| answer)))
}

/// Returns `true` if an answer contains all words of the accepted one. If the accepted one has no words (`The`), only
/// an answer without words contains them: the reference splits the empty text into one empty word.
fn covers(answer: &str, gold: &str) -> bool {
    if r1_searcher::normalize(gold).is_empty() {
        return r1_searcher::normalize(answer).is_empty();
    }
    r1_searcher::covers_words(answer, gold)
}

fn overlap(solution: &str, gold: &str) -> f64 {
    answer(solution).map_or(0.0, |answer| r1_searcher::overlap(answer, gold).f1)
}

/// Returns `true` if the first `tags` tags occur equally often.
pub(super) fn answered(solution: &str, tags: usize) -> bool {
    let mut counts = TAGS[..tags].iter().map(|tag| solution.matches(tag).count());
    let first = counts.next();
    counts.all(|count| Some(count) == first)
}

/// Returns `true` if thought ends once without starting again and there is one answer.
fn closed(solution: &str) -> bool {
    let count = |tag: &str| solution.matches(tag).count();
    [count("<think>"), count("</think>"), count("<answer>"), count("</answer>")] == [0, 1, 1, 1]
}

/// Returns `true` if there are Chinese characters outside documents.
fn chinese(solution: &str) -> bool {
    let is_chinese = |text: &str| text.chars().any(|c| ('\u{4e00}'..='\u{9fff}').contains(&c));
    outside(solution).into_iter().any(is_chinese)
}

/// Returns the parts of a solution outside documents.
pub(super) fn outside(solution: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = solution;
    while let Some((before, after)) = rest.split_once(TAGS[2]) {
        let Some((_, left)) = after.split_once(TAGS[3]) else { break };
        parts.push(before);
        rest = left;
    }
    parts.push(rest);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solution(documents: &str) -> String {
        format!(
            "a <|begin_of_query|>b<|end_of_query|>\n\n<|begin_of_documents|>\n{documents}<|end_of_documents|>\n\n\
             c</think>\n<answer>Paris</answer>"
        )
    }

    /// Rewards of all stages for the accepted answer Paris.
    fn rewards(solution: &str) -> [f64; 3] {
        [first_stage, second_stage, zero].map(|reward| reward(solution, "Paris"))
    }

    #[test]
    fn samples_earn_what_their_solution_earns_for_the_best_answer() {
        let sample = |documents: &str, forced: Vec<(usize, usize)>| Sample {
            golds: vec!["Rome".to_owned(), "Paris".to_owned()],
            forced,
            tokens: vec![1, 2],
            ..crate::reward::tests::searched(&solution(documents), &[])
        };
        let samples = [sample("(1)Paris\n", vec![]), sample("Paris\n", vec![]), sample("(1)Paris\n", vec![(0, 1)])];
        let totals =
            |stage| SearcherReward { stage }.score(&samples).iter().map(|value| value.total).collect::<Vec<_>>();
        // A forced answer neither covers the accepted one nor closes the solution.
        assert_eq!(totals(SearcherStage::First), [2.0, 1.5, -0.5]);
        assert_eq!(totals(SearcherStage::Second), [1.0, 0.0, -1.0]);
        assert_eq!(totals(SearcherStage::Zero), [1.0, -1.0, -2.0]);
        let unanswerable = Sample { golds: Vec::new(), ..samples[0].clone() };
        assert_eq!(SearcherReward { stage: SearcherStage::First }.score(&[unanswerable])[0].total, 0.0);
    }

    #[test]
    fn a_search_is_answered_by_numbered_documents_only() {
        assert_eq!(rewards(&solution("(1)Paris is a city.\n")), [2.0, 1.0, 1.0]);
        for unnumbered in ["Paris is a city.\n", " (1)Paris\n", "(2)Paris\n", ""] {
            assert_eq!(rewards(&solution(unnumbered)), [1.5, 0.0, -1.0], "{unnumbered:?}");
        }
        // The environment writes an empty line after the documents.
        let glued = solution("(1)Paris\n").replace("\n\nc</think>", "\nc</think>");
        assert_eq!(rewards(&glued), [1.5, 0.0, -1.0]);
        // One of two searches is not answered.
        let twice = format!("{}{}", solution("(1)x\n").split("c</think>").next().unwrap_or_default(), solution("x\n"));
        assert_eq!(rewards(&twice), [1.5, 0.0, -1.0]);
        // Without a search there is nothing to answer, which only stage 1 minds.
        assert_eq!(rewards("c</think>\n<answer>Paris</answer>"), [1.5, 1.0, 1.0]);
    }

    #[test]
    fn an_answer_that_is_not_closed_earns_nothing() {
        assert_eq!(rewards("c</think>\n<answer>Paris"), [-1.0, -1.0, -2.0]);
        // The reference is content with any closing tag.
        assert_eq!(rewards("</answer>c</think>\n<answer>Paris"), [1.5, 1.0, 1.0]);
    }

    #[test]
    fn a_solution_may_not_name_the_assistant() {
        for name in ["Assistant", "assistant"] {
            let solution = format!("the {name} c</think>\n<answer>Paris</answer>");
            assert_eq!(rewards(&solution), [1.5, 1.0, -1.0], "{name}");
        }
    }

    #[test]
    fn an_accepted_answer_without_words_is_covered_by_no_words_only() {
        let reward = |answer: &str| first_stage(&format!("c</think>\n<answer>{answer}</answer>"), "The The");
        assert_eq!(["Paris", "the", ""].map(reward), [-0.5, 1.5, 1.5]);
    }
}
