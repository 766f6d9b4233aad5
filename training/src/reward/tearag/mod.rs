//! TeaRAG's rewards (§4.3.2 of its paper; some formulas are illegible there and no program was published).

use serde::{Deserialize, Serialize};
use waymark_agent::metric::{f1, r1_searcher};
use waymark_agent::tearag::{ANSWER, ENTITY, EVIDENCE, SUBQUERY, SUMMARY};
use waymark_agent::{Action, PolicySearch};
use waymark_index::Relevance;

use super::extract::between;
use super::{Reward, RewardContext, TextSimilarity, reward_value};
use crate::sample::{RewardValue, Sample, TurnAction};

/// Reward `R_o + R_f + R_p`: F1 of the answer (eq. 5), format of the path (eq. 6) and reasoning process (eq. 7 to
/// 13). The paper ranks the paths of a question by this sum.
///
/// A question with at most one known supporting passage is single-hop: its `R_o` is divided by the number of steps,
/// and it has no `R_p` (§4.3.2). The authors' program compares texts by the sigmoid of a reranker; this one uses the
/// relevance of their cosine similarity. The paper does not describe episodes beyond the last step; here a forced
/// answer earns nothing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TeaRagReward {
    /// Mapping of cosine similarities to the range from 0 to 1.
    pub relevance: Relevance,
    /// If `false`, the reward is `R_o + R_f` for all questions, and `R_o` is not divided by the number of steps: the
    /// paper's ablation "outcome + format".
    #[serde(skip_serializing_if = "is_true")]
    pub process: bool,
}

impl Default for TeaRagReward {
    fn default() -> Self {
        TeaRagReward { relevance: Relevance::default(), process: true }
    }
}

fn is_true(value: &bool) -> bool {
    *value
}

/// Names of the reward's components, by which [`crate::dpo`] selects its pairs.
pub mod part {
    /// `R_o`, divided by the number of steps for single-hop questions.
    pub const OUTCOME: &str = "outcome";
    /// `R_f`.
    pub const FORMAT: &str = "format";
    /// `R_p`. Absent for single-hop questions.
    pub const PROCESS: &str = "process";
}

/// One step of a path: the policy's text and the retrieved evidence.
struct PathStep<'a> {
    entities: &'a [String],
    query: &'a str,
    /// Evidence line by line, because an embedder reads only a few hundred tokens.
    context: Vec<&'a str>,
    summary: Option<&'a str>,
}

impl TeaRagReward {
    /// Returns how well the best matching text covers each gold passage: the memory vector (eq. 9 to 11), summed and
    /// divided by the number of steps (eq. 12). Exceeds 1 if there are fewer steps than passages and a step covers
    /// several of them.
    fn memory(&self, similarity: &TextSimilarity, support: &[String], texts: &[&str], steps: usize) -> f64 {
        let best = |gold: &String| {
            let alike = texts.iter().map(|text| self.relevance.of(similarity.cosine(gold, text) as f32));
            alike.fold(0.0, f64::max)
        };
        support.iter().map(best).sum::<f64>() / steps.max(1) as f64
    }

    /// Returns `R_p` as the mean of its four terms, followed by the terms: entity names in queries, queries,
    /// contexts, summaries. The weights in eq. 13 are illegible, so all are equal here.
    fn process(&self, steps: &[PathStep<'_>], support: &[String], similarity: &TextSimilarity) -> [f64; 5] {
        let kept = steps.iter().filter(|step| names(step)).count() as f64 / steps.len().max(1) as f64;
        let memory = |texts: Vec<&str>| self.memory(similarity, support, &texts, steps.len());
        let queries = memory(steps.iter().map(|step| step.query).collect());
        let contexts = memory(steps.iter().flat_map(|step| step.context.iter().copied()).collect());
        let summaries = memory(steps.iter().filter_map(|step| step.summary).collect());
        [(kept + queries + contexts + summaries) / 4.0, kept, queries, contexts, summaries]
    }
}

impl Reward for TeaRagReward {
    fn texts(&self, sample: &Sample, context: &RewardContext<'_>) -> Vec<String> {
        if !is_multi_hop(context.support) || !self.process {
            return Vec::new();
        }
        let steps = steps(sample);
        let own = steps.iter().flat_map(|step| step.context.iter().copied().chain([step.query]).chain(step.summary));
        own.map(str::to_owned).chain(context.support.iter().cloned()).collect()
    }

    fn score(&self, samples: &[Sample]) -> Vec<RewardValue> {
        let all: Vec<&Sample> = samples.iter().collect();
        self.score_in_context(&all, &vec![RewardContext::default(); samples.len()], &TextSimilarity::default())
    }

    fn counts_hops(&self) -> bool {
        self.process
    }

    fn score_in_context(
        &self,
        samples: &[&Sample],
        context: &[RewardContext<'_>],
        similarity: &TextSimilarity,
    ) -> Vec<RewardValue> {
        let score = |(sample, context): (&&Sample, &RewardContext<'_>)| {
            let steps = steps(sample);
            let answer = sample.own_answer().map_or(0.0, |answer| f1(answer, &sample.golds));
            let form = f64::from(u8::from(is_formed(sample)));
            if !is_multi_hop(context.support) || !self.process {
                let divisor = if self.process { steps.len().max(1) } else { 1 };
                let outcome = answer / divisor as f64;
                let parts = [(part::OUTCOME, outcome), (part::FORMAT, form), ("f1", answer)];
                return reward_value(outcome + form, parts);
            }
            let [process, names, queries, contexts, summaries] = self.process(&steps, context.support, similarity);
            let parts = [
                (part::OUTCOME, answer),
                (part::FORMAT, form),
                (part::PROCESS, process),
                ("names", names),
                ("queries", queries),
                ("contexts", contexts),
                ("summaries", summaries),
                ("f1", answer),
            ];
            reward_value(answer + form + process, parts)
        };
        samples.iter().zip(context).map(score).collect()
    }
}

/// Returns `true` for multi-hop questions: those with several supporting passages of known text.
pub fn is_multi_hop(support: &[String]) -> bool {
    support.len() > 1
}

/// Returns the steps of a path: its searches, each with its evidence and the summary in the next turn.
fn steps(sample: &Sample) -> Vec<PathStep<'_>> {
    let mut blocks = between(&sample.text, EVIDENCE).into_iter();
    let mut steps: Vec<PathStep<'_>> = Vec::new();
    for act in &sample.actions {
        // A summary of a step's evidence is written by the next turn.
        if let Some(last) = steps.last_mut().filter(|step| step.summary.is_none()) {
            last.summary = act.summary.as_deref();
        }
        let Action::Search(request) = &act.action else { continue };
        // A search that was not executed has no block of evidence, and must not take that of the next one.
        let block = if act.executed { blocks.next() } else { None };
        let lines = block.into_iter().flat_map(str::lines).map(str::trim);
        let context = lines.filter(|line| !line.is_empty()).collect();
        steps.push(PathStep { entities: &request.entities, query: &request.query, context, summary: None });
    }
    steps
}

/// Returns `true` if a step has key entities and its query contains all of them (eq. 7, a covering match). Words are
/// compared whole and punctuation counts as space, so "Rome's" names Rome, but "Tirana" does not name Iran.
fn names(step: &PathStep<'_>) -> bool {
    let padded = |text: &str| format!(" {} ", r1_searcher::spaced(text));
    // Padding with spaces makes `contains` match whole words only.
    let query = padded(step.query);
    let covers = |entity: &String| is_name(entity) && query.contains(&padded(entity));
    !step.entities.is_empty() && step.entities.iter().all(covers)
}

/// Returns `true` if the normalized form of a key entity is not empty.
fn is_name(entity: &str) -> bool {
    !r1_searcher::spaced(entity).is_empty()
}

/// Returns `true` if a path has the format of §4.2: numbered steps of key entities, subquery, evidence and summary,
/// followed by an unforced answer with its label.
fn is_formed(sample: &Sample) -> bool {
    let Some((last, before)) = sample.actions.split_last() else { return false };
    let named = |request: &PolicySearch| request.entities.iter().any(|entity| is_name(entity));
    let stepped = |act: &TurnAction| matches!(&act.action, Action::Search(request) if named(request)) && act.executed;
    // The first turn has no evidence to summarize.
    let summarized = sample.actions.iter().skip(1).all(|act| act.summary.as_ref().is_some_and(|text| !text.is_empty()));
    matches!(last.action, Action::Answer { .. })
        && !before.is_empty()
        && before.iter().all(stepped)
        && summarized
        && is_laid_out(&sample.text, before.len())
        && !sample.is_forced()
        // A space follows the answer's label (§4.2.7).
        && sample.text.rsplit_once(ANSWER).is_some_and(|(_, answer)| answer.starts_with(' '))
}

/// Returns `true` if the policy's lines around the evidence are exactly those of `steps` steps and an answer, in
/// order (eq. 6).
fn is_laid_out(text: &str, steps: usize) -> bool {
    let close = format!("</{EVIDENCE}>");
    let open = format!("<{EVIDENCE}>");
    let own: Vec<&str> = text.split(&open).map(|part| part.rsplit(&close).next().unwrap_or_default()).collect();
    let fits = |(part, number): (&&str, usize)| {
        let heading = format!("Step {number}:");
        let summary = (number > 1).then_some(SUMMARY);
        let rest = if number > steps { vec![ANSWER] } else { vec![heading.as_str(), ENTITY, SUBQUERY] };
        labels(part).is_some_and(|found| found.into_iter().eq(summary.into_iter().chain(rest)))
    };
    // Evidence separates the policy's parts: one per step, and one with the answer.
    own.len() == steps + 1 && own.iter().zip(1..).all(fits)
}

/// Returns the labels of the lines of a part; a heading is its whole line. `None` if an unlabeled line stands
/// anywhere but in a summary or an answer, which may span several lines.
fn labels(part: &str) -> Option<Vec<&str>> {
    let mut found: Vec<&str> = Vec::new();
    for line in part.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let numbered = |rest: &str| rest.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(':');
        let heading = line.strip_prefix("Step ").filter(|rest| numbered(rest)).map(|_| line);
        let label = || [ENTITY, SUBQUERY, SUMMARY, ANSWER].into_iter().find(|label| line.starts_with(label));
        match heading.or_else(label) {
            Some(label) => found.push(label),
            None if matches!(found.last(), Some(&(SUMMARY | ANSWER))) => {}
            None => return None,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests;
