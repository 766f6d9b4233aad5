//! Aggregate scores over rows.

use serde::{Deserialize, Serialize};
use waymark_agent::metric::{Abstention, quantile};

use super::EvaluationOutcome;
use super::breakdown::KindSummary;
use super::estimate::Estimate;
use super::row::EpisodeRow;

/// Aggregate scores of a policy. Shares are from 0 to 1. Failed episodes count as wrong in EM, F1, ACC_R, `answered`
/// and `valid`, and are left out of all other means.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Display name of the policy.
    pub policy: String,
    /// Number of questions.
    pub questions: usize,
    /// Number of failed episodes.
    pub failed: usize,
    /// Exact match.
    pub em: Estimate,
    /// F1 of the answers.
    pub f1: Estimate,
    /// F1 as R1-Searcher and GraphRAG-R1 compute it, over all questions.
    #[serde(default)]
    pub searcher_f1: Estimate,
    /// `searcher_f1` over questions with an answer only, which is the mean that GraphRAG-R1 reports.
    #[serde(default)]
    pub searcher_f1_answered: Estimate,
    /// ACC_R: share of answers that contain every word of an accepted answer.
    #[serde(default)]
    pub covers: Estimate,
    /// SBERT similarity, over questions with an answer; the embedder is that of the index.
    #[serde(default)]
    pub similarity: Estimate,
    /// ACC_L: share of answers that the judge takes for correct.
    #[serde(default)]
    pub judged_correct: Estimate,
    /// G-E: the judge's mean grade, from 0 to 1.
    #[serde(default)]
    pub judged_quality: Estimate,
    /// SF-F1, over questions with known support.
    pub support_f1: Estimate,
    /// Unsupported answer rate, over answers that have words; lower is better.
    pub uar: Estimate,
    /// Share of questions with an answer that is not empty.
    pub answered: f64,
    /// Share of episodes that kept the protocol's format.
    pub valid: f64,
    /// Means over the episodes that did not fail.
    pub mean: PerEpisode,
    /// Content per retrieval (TeaRAG's CpR): tokens of evidence per search.
    #[serde(default)]
    pub content_per_retrieval: f64,
    /// Number of episodes by number of turns, from 0.
    #[serde(default)]
    pub steps: Vec<usize>,
    /// Number of answers and refusals, by retrieved support.
    #[serde(default)]
    pub abstention: Abstention,
    /// Scores by kind of question, in the order of the kinds' names. Empty if the questions name no kinds.
    #[serde(default)]
    pub kinds: Vec<KindSummary>,
    /// Median duration of an episode, in seconds.
    pub seconds_p50: f64,
    /// 95th percentile of the duration, in seconds.
    pub seconds_p95: f64,
    /// Sampled tokens per second over all episodes together.
    pub tokens_per_second: f64,
    /// Duration of the whole evaluation, in seconds.
    pub seconds: f64,
}

/// Means per episode.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PerEpisode {
    /// Turns of the policy.
    pub turns: f64,
    /// Passage searches.
    pub passage: f64,
    /// Graph searches.
    pub graph: f64,
    /// Hybrid searches.
    pub hybrid: f64,
    /// Graph searches with triples.
    #[serde(default)]
    pub triples: f64,
    /// Searches for passages and triples ranked together.
    #[serde(default)]
    pub kag: f64,
    /// Searches for facts of the hypergraph.
    #[serde(default)]
    pub hypergraph: f64,
    /// Searches that repeat an earlier one.
    #[serde(default)]
    pub duplicates: f64,
    /// Searches that failed.
    pub failed_searches: f64,
    /// Cost of the searches.
    pub cost: f64,
    /// Seconds of searching.
    pub retrieval_seconds: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: f64,
    /// Tokens that the policy sampled.
    pub sampled_tokens: f64,
    /// Tokens forced on the policy.
    pub forced_tokens: f64,
    /// Tokens injected by the environment.
    pub environment_tokens: f64,
    /// Tokens of the environment that showed what searches found. 0 in reports of versions that did not count them.
    #[serde(default)]
    pub evidence_tokens: f64,
    /// Seconds to the first token.
    pub first_token: f64,
}

impl Summary {
    /// Aggregates the rows of `policy`.
    pub fn of(policy: &str, outcome: &EvaluationOutcome) -> Summary {
        let EvaluationOutcome { rows, seconds } = outcome;
        let ran: Vec<&EpisodeRow> = rows.iter().filter(|row| row.error.is_none()).collect();
        let share = |holds: fn(&EpisodeRow) -> bool| {
            rows.iter().filter(|row| holds(row)).count() as f64 / rows.len().max(1) as f64
        };
        let mut times: Vec<f64> = ran.iter().map(|row| row.seconds).collect();
        let verdicts = || ran.iter().filter_map(|row| row.verdict.as_ref());
        let content: usize = ran.iter().map(|row| row.tokens.content()).sum();
        let searches: usize = ran.iter().map(|row| row.evidence.len()).sum();
        let sampled: usize = ran.iter().map(|row| row.tokens.sampled).sum();
        Summary {
            policy: policy.to_owned(),
            questions: rows.len(),
            failed: rows.len() - ran.len(),
            // Over all rows: failed episodes count as wrong, but have no times, tokens or searches to average.
            em: Estimate::of(rows.iter().map(|row| row.em)),
            f1: Estimate::of(rows.iter().map(|row| row.f1)),
            searcher_f1: Estimate::of(rows.iter().map(|row| row.searcher_f1)),
            searcher_f1_answered: Estimate::of(rows.iter().filter(|row| row.has_answer()).map(|row| row.searcher_f1)),
            covers: Estimate::of(rows.iter().map(|row| row.covers)),
            similarity: Estimate::of(ran.iter().filter_map(|row| row.similarity)),
            judged_correct: Estimate::of(verdicts().filter_map(|verdict| verdict.correct)),
            judged_quality: Estimate::of(verdicts().filter_map(|verdict| verdict.quality)),
            support_f1: Estimate::of(ran.iter().filter_map(|row| row.support_f1)),
            uar: Estimate::of(ran.iter().filter_map(|row| row.unsupported)),
            answered: share(EpisodeRow::has_answer),
            valid: share(|row| row.valid),
            mean: PerEpisode::of(&ran),
            content_per_retrieval: content as f64 / searches.max(1) as f64,
            steps: steps(&ran),
            abstention: abstention(&ran),
            kinds: KindSummary::all(rows),
            seconds_p50: quantile(&mut times, 0.5),
            seconds_p95: quantile(&mut times, 0.95),
            tokens_per_second: if *seconds > 0.0 { sampled as f64 / seconds } else { 0.0 },
            seconds: *seconds,
        }
    }
}

/// Returns the number of episodes by number of turns.
fn steps(rows: &[&EpisodeRow]) -> Vec<usize> {
    let longest = rows.iter().map(|row| row.turns).max().unwrap_or(0);
    (0..=longest).map(|turns| rows.iter().filter(|row| row.turns == turns).count()).collect()
}

fn abstention(rows: &[&EpisodeRow]) -> Abstention {
    let mut counts = Abstention::default();
    for row in rows {
        if let Some(supported) = row.supported {
            counts.add(row.refused, supported);
        }
    }
    counts
}

impl PerEpisode {
    /// Returns the number of searches of all modes.
    pub fn searches(&self) -> f64 {
        self.passage + self.graph + self.hybrid + self.triples + self.kag + self.hypergraph
    }

    /// Returns the number of thinking tokens, as TeaRAG counts them: all that the policy wrote, sampled or forced. The
    /// content tokens are those of evidence.
    pub fn thinking_tokens(&self) -> f64 {
        self.sampled_tokens + self.forced_tokens
    }

    fn of(rows: &[&EpisodeRow]) -> PerEpisode {
        let mean = |value: fn(&EpisodeRow) -> f64| {
            // The sum of no rows is −0, which would be shown as "-0.00".
            let total = rows.iter().map(|row| value(row)).sum::<f64>() + 0.0;
            total / rows.len().max(1) as f64
        };
        PerEpisode {
            turns: mean(|row| row.turns as f64),
            passage: mean(|row| row.searches.passage as f64),
            graph: mean(|row| row.searches.graph as f64),
            hybrid: mean(|row| row.searches.hybrid as f64),
            triples: mean(|row| row.searches.triples as f64),
            kag: mean(|row| row.searches.kag as f64),
            hypergraph: mean(|row| row.searches.hypergraph as f64),
            duplicates: mean(|row| row.duplicates as f64),
            failed_searches: mean(|row| row.searches.failed as f64),
            cost: mean(|row| row.cost),
            retrieval_seconds: mean(|row| row.retrieval_seconds),
            prompt_tokens: mean(|row| row.tokens.prompt as f64),
            sampled_tokens: mean(|row| row.tokens.sampled as f64),
            forced_tokens: mean(|row| row.tokens.forced as f64),
            environment_tokens: mean(|row| row.tokens.environment as f64),
            evidence_tokens: mean(|row| row.tokens.content() as f64),
            // An episode without any token has waited for one until its end.
            first_token: mean(|row| row.first_token.unwrap_or(row.seconds)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_nothing_have_no_sign() {
        let summary = Summary::of("p", &EvaluationOutcome { rows: Vec::new(), seconds: 0.0 });
        for mean in [summary.mean.cost, summary.mean.turns, summary.em.mean, Estimate::of_sets(&[]).mean] {
            assert_eq!(format!("{mean:.2}"), "0.00");
        }
    }
}
