//! Aggregate scores over rows, and paired comparisons.

use serde::{Deserialize, Serialize};
use waymark_agent::metric::quantile;

use super::EvaluationOutcome;
use super::row::EpisodeRow;

/// Aggregate scores of a policy. Shares are from 0 to 1. Failed episodes count as wrong and are left out of the means
/// of turns, searches, tokens and times.
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
    /// Median duration of an episode, in seconds.
    pub seconds_p50: f64,
    /// 95th percentile of the duration, in seconds.
    pub seconds_p95: f64,
    /// Sampled tokens per second over all episodes together.
    pub tokens_per_second: f64,
    /// Duration of the whole evaluation, in seconds.
    pub seconds: f64,
}

/// A mean with its standard error over questions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Estimate {
    /// Mean of the values.
    pub mean: f64,
    /// Standard error of the mean.
    pub error: f64,
    /// Number of values.
    pub count: usize,
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
        let sampled: usize = ran.iter().map(|row| row.tokens.sampled).sum();
        Summary {
            policy: policy.to_owned(),
            questions: rows.len(),
            failed: rows.len() - ran.len(),
            em: Estimate::of(rows.iter().map(|row| row.em)),
            f1: Estimate::of(rows.iter().map(|row| row.f1)),
            support_f1: Estimate::of(ran.iter().filter_map(|row| row.support_f1)),
            uar: Estimate::of(ran.iter().filter_map(|row| row.unsupported)),
            answered: share(|row| row.answer.as_ref().is_some_and(|answer| !answer.trim().is_empty())),
            valid: share(|row| row.valid),
            mean: PerEpisode::of(&ran),
            seconds_p50: quantile(&mut times, 0.5),
            seconds_p95: quantile(&mut times, 0.95),
            tokens_per_second: if *seconds > 0.0 { sampled as f64 / seconds } else { 0.0 },
            seconds: *seconds,
        }
    }
}

impl Estimate {
    fn of(values: impl Iterator<Item = f64>) -> Estimate {
        let values: Vec<f64> = values.collect();
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count.max(1) as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        // Standard error of the mean with Bessel's correction.
        let error = if count > 1 { (squares / (count - 1) as f64 / count as f64).sqrt() } else { 0.0 };
        Estimate { mean, error, count }
    }
}

impl PerEpisode {
    fn of(rows: &[&EpisodeRow]) -> PerEpisode {
        let mean =
            |value: fn(&EpisodeRow) -> f64| rows.iter().map(|row| value(row)).sum::<f64>() / rows.len().max(1) as f64;
        PerEpisode {
            turns: mean(|row| row.turns as f64),
            passage: mean(|row| row.searches.passage as f64),
            graph: mean(|row| row.searches.graph as f64),
            hybrid: mean(|row| row.searches.hybrid as f64),
            triples: mean(|row| row.searches.triples as f64),
            kag: mean(|row| row.searches.kag as f64),
            failed_searches: mean(|row| row.searches.failed as f64),
            cost: mean(|row| row.cost),
            retrieval_seconds: mean(|row| row.retrieval_seconds),
            prompt_tokens: mean(|row| row.tokens.prompt as f64),
            sampled_tokens: mean(|row| row.tokens.sampled as f64),
            forced_tokens: mean(|row| row.tokens.forced as f64),
            environment_tokens: mean(|row| row.tokens.environment as f64),
            first_token: mean(|row| row.first_token.unwrap_or(row.seconds)),
        }
    }
}

/// Paired comparison of two policies on the same questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairedComparison {
    /// Name of the compared policy.
    pub policy: String,
    /// Name of the baseline policy.
    pub with: String,
    /// Difference in EM from the baseline; the error is that of the paired differences.
    pub em: Estimate,
    /// Difference in F1 from the baseline.
    pub f1: Estimate,
    /// Number of questions that only the compared policy answers correctly.
    pub won: usize,
    /// Number of questions that only the baseline answers correctly.
    pub lost: usize,
}

impl PairedComparison {
    /// Compares rows of the same questions in the same order.
    pub fn of((policy, rows): (&str, &[EpisodeRow]), (with, others): (&str, &[EpisodeRow])) -> PairedComparison {
        let pairs = || rows.iter().zip(others);
        // Paired by question: the variance between questions cancels, which makes small differences visible.
        let ahead = |by: fn(&EpisodeRow) -> f64| Estimate::of(pairs().map(|(row, other)| by(row) - by(other)));
        PairedComparison {
            policy: policy.to_owned(),
            with: with.to_owned(),
            em: ahead(|row| row.em),
            f1: ahead(|row| row.f1),
            won: pairs().filter(|(row, other)| row.em > other.em).count(),
            lost: pairs().filter(|(row, other)| row.em < other.em).count(),
        }
    }
}
