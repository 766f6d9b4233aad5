//! TeaRAG's rewards (§4.3.2 of its paper, whose formulas are partly lost and whose program is not to be had).

use serde::{Deserialize, Serialize};
use waymark::agent::{Action, Request};
use waymark::metric::{f1, searcher};
use waymark_index::Relevance;

use super::extract::between;
use super::{Beside, Likeness, Reward, worth};
use crate::sample::{Act, Reward as Worth, Sample};

/// The labels of a path's lines, beside the headings of its steps. A space follows that of the answer (§4.2.7).
const ENTITY: &str = "Important entity:";
const SUBQUERY: &str = "Subquery:";
const SUMMARY: &str = "Summary:";
const ANSWER: &str = "Final answer:";
/// The tags that evidence stands between.
const EVIDENCE: &str = "Reference";

/// `R_o + R_f + R_p`: F1 of the answer (eq. 5), the form of the path (eq. 6) and the reasoning (eq. 7 to 13), the sum by
/// which the paper ranks the paths of a question.
///
/// A question whose support is at most one passage, or not known, is of a single hop: `R_o` is divided by the steps of the
/// path there, and there is no `R_p` (§4.3.2). Where the program of the authors compares texts by the sigmoid of a
/// reranker, this one takes the relevance of their cosine. What happens after the last step is not told: an answer that had
/// to be asked for counts for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TeaRag {
    /// How a cosine becomes a likeness from 0 to 1.
    pub relevance: Relevance,
}

/// The parts of a total by name, which [`crate::dpo`] chooses its pairs by.
pub mod part {
    /// `R_o`; of a single hop `R_o / T`.
    pub const OUTCOME: &str = "outcome";
    /// `R_f`.
    pub const FORMAT: &str = "format";
    /// `R_p`; of a single hop there is none.
    pub const PROCESS: &str = "process";
}

/// What one step of a path wrote and was given.
struct Step<'a> {
    entities: &'a [String],
    query: &'a str,
    /// What was found, a line each: an embedder reads no further than some hundred tokens.
    context: Vec<&'a str>,
    summary: Option<&'a str>,
}

impl TeaRag {
    /// How much of each gold passage the best text of a path holds: the memory vector (eq. 9 to 11), summed and divided by
    /// the steps (eq. 12). More than 1 where there are fewer steps than passages and each of them finds several.
    fn memory(&self, likeness: &Likeness, support: &[String], texts: &[&str], steps: usize) -> f64 {
        let best = |gold: &String| {
            let alike = texts.iter().map(|text| self.relevance.of(likeness.cosine(gold, text)));
            alike.fold(0.0, f64::max)
        };
        support.iter().map(best).sum::<f64>() / steps.max(1) as f64
    }

    /// `R_p` as the mean of its four terms, with each of them: names in queries, queries, contexts, summaries. How eq. 13
    /// weighs them is lost.
    fn process(&self, steps: &[Step<'_>], support: &[String], likeness: &Likeness) -> [f64; 5] {
        let kept = steps.iter().filter(|step| names(step)).count() as f64 / steps.len().max(1) as f64;
        let memory = |texts: Vec<&str>| self.memory(likeness, support, &texts, steps.len());
        let queries = memory(steps.iter().map(|step| step.query).collect());
        let contexts = memory(steps.iter().flat_map(|step| step.context.iter().copied()).collect());
        let summaries = memory(steps.iter().filter_map(|step| step.summary).collect());
        [(kept + queries + contexts + summaries) / 4.0, kept, queries, contexts, summaries]
    }
}

impl Reward for TeaRag {
    fn texts(&self, sample: &Sample, beside: &Beside<'_>) -> Vec<String> {
        if !is_composed(beside.support) {
            return Vec::new();
        }
        let steps = steps(sample);
        let own = steps.iter().flat_map(|step| step.context.iter().copied().chain([step.query]).chain(step.summary));
        own.map(str::to_owned).chain(beside.support.iter().cloned()).collect()
    }

    fn score(&self, samples: &[Sample]) -> Vec<Worth> {
        let all: Vec<&Sample> = samples.iter().collect();
        self.score_beside(&all, &vec![Beside::default(); samples.len()], &Likeness::default())
    }

    fn counts_hops(&self) -> bool {
        true
    }

    fn score_beside(&self, samples: &[&Sample], beside: &[Beside<'_>], likeness: &Likeness) -> Vec<Worth> {
        let score = |(sample, beside): (&&Sample, &Beside<'_>)| {
            let steps = steps(sample);
            let answer = sample.own_answer().map_or(0.0, |answer| f1(answer, &sample.golds));
            let form = f64::from(u8::from(is_formed(sample)));
            if !is_composed(beside.support) {
                let outcome = answer / steps.len().max(1) as f64;
                let parts = [(part::OUTCOME, outcome), (part::FORMAT, form), ("f1", answer)];
                return worth(outcome + form, parts);
            }
            let [process, names, queries, contexts, summaries] = self.process(&steps, beside.support, likeness);
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
            worth(answer + form + process, parts)
        };
        samples.iter().zip(beside).map(score).collect()
    }
}

/// Whether a question is of several hops: it takes several passages, and the texts of all are known.
pub fn is_composed(support: &[String]) -> bool {
    support.len() > 1
}

/// The steps of a path: its searches, each with the evidence after it and what the next turn says of that.
fn steps(sample: &Sample) -> Vec<Step<'_>> {
    let mut blocks = between(&sample.text, EVIDENCE).into_iter();
    let mut steps: Vec<Step<'_>> = Vec::new();
    for act in &sample.actions {
        if let Some(last) = steps.last_mut().filter(|step| step.summary.is_none()) {
            last.summary = act.summary.as_deref();
        }
        let Action::Search(request) = &act.action else { continue };
        let block = if act.executed { blocks.next() } else { None };
        let lines = block.into_iter().flat_map(str::lines).map(str::trim);
        let context = lines.filter(|line| !line.is_empty()).collect();
        steps.push(Step { entities: &request.entities, query: &request.query, context, summary: None });
    }
    steps
}

/// Whether all key entities of a step are in its query, and there is one (eq. 7, by a match that covers): word by word, and
/// with signs as spaces, so that "Rome's" names Rome, and "Tirana" does not name Iran.
fn names(step: &Step<'_>) -> bool {
    let padded = |text: &str| format!(" {} ", searcher::normalize(text));
    let query = padded(step.query);
    let covers = |entity: &String| is_name(entity) && query.contains(&padded(entity));
    !step.entities.is_empty() && step.entities.iter().all(covers)
}

/// Whether anything is left of a key entity in its normal form.
fn is_name(entity: &str) -> bool {
    !searcher::normalize(entity).is_empty()
}

/// Whether a path has the form of §4.2: numbered steps of key entities, a subquery, evidence and a summary, and behind them
/// an answer that the policy gave by itself and that begins as it is to.
fn is_formed(sample: &Sample) -> bool {
    let Some((last, before)) = sample.actions.split_last() else { return false };
    let named = |request: &Request| request.entities.iter().any(|entity| is_name(entity));
    let stepped = |act: &Act| matches!(&act.action, Action::Search(request) if named(request)) && act.executed;
    let summarised = sample.actions.iter().skip(1).all(|act| act.summary.as_ref().is_some_and(|text| !text.is_empty()));
    matches!(last.action, Action::Answer { .. })
        && !before.is_empty()
        && before.iter().all(stepped)
        && summarised
        && is_laid_out(&sample.text, before.len())
        && !sample.is_forced()
        && sample.text.rsplit_once(ANSWER).is_some_and(|(_, answer)| answer.starts_with(' '))
}

/// Whether the lines that the policy wrote around its evidence are those of so many steps and an answer, in their order and
/// without others (eq. 6).
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
    own.len() == steps + 1 && own.iter().zip(1..).all(fits)
}

/// The labels of a part's lines, a heading as the whole of its line. None where a line without one stands anywhere but in a
/// summary or an answer, which may have several.
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
