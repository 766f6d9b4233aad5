//! Rows in a few figures.

use serde::{Deserialize, Serialize};

use super::Outcome;
use super::row::Row;
use crate::metric::quantile;

/// What a policy is worth over some questions. Shares are from 0 to 1; failed episodes count as wrong, and are in no mean
/// of what they did not get to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The policy, as it is shown.
    pub policy: String,
    /// Questions asked.
    pub questions: usize,
    /// Episodes that failed.
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
    /// Share of episodes that kept the form.
    pub valid: f64,
    /// Means over the episodes that did not fail.
    pub mean: PerEpisode,
    /// Median of an episode's time, in seconds.
    pub seconds_p50: f64,
    /// Its 95th percentile.
    pub seconds_p95: f64,
    /// Tokens sampled per second, over all episodes at once.
    pub tokens_per_second: f64,
    /// Seconds that it all took.
    pub seconds: f64,
}

/// A mean with the error that the choice of questions makes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
    /// How many values it is of.
    pub count: usize,
}

/// What an episode takes on average.
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
    /// Tokens that were written for it.
    pub forced_tokens: f64,
    /// Tokens that the environment put in.
    pub environment_tokens: f64,
    /// Seconds to the first token.
    pub first_token: f64,
}

impl Summary {
    /// Sums up what `policy` did.
    pub fn of(policy: &str, outcome: &Outcome) -> Summary {
        let Outcome { rows, seconds } = outcome;
        let ran: Vec<&Row> = rows.iter().filter(|row| row.error.is_none()).collect();
        let share =
            |holds: fn(&Row) -> bool| rows.iter().filter(|row| holds(row)).count() as f64 / rows.len().max(1) as f64;
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
        let error = if count > 1 { (squares / (count - 1) as f64 / count as f64).sqrt() } else { 0.0 };
        Estimate { mean, error, count }
    }
}

impl PerEpisode {
    fn of(rows: &[&Row]) -> PerEpisode {
        let mean = |value: fn(&Row) -> f64| rows.iter().map(|row| value(row)).sum::<f64>() / rows.len().max(1) as f64;
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

/// Two policies over the same questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Duel {
    /// The policy that is compared.
    pub policy: String,
    /// The one that it is compared with.
    pub with: String,
    /// By how much its EM is higher; the error is that of the differences, question by question.
    pub em: Estimate,
    /// By how much its F1 is higher.
    pub f1: Estimate,
    /// Questions that it alone gets right.
    pub won: usize,
    /// Questions that the other alone gets right.
    pub lost: usize,
}

impl Duel {
    /// Compares rows of the same questions in the same order.
    pub fn of((policy, rows): (&str, &[Row]), (with, others): (&str, &[Row])) -> Duel {
        let pairs = || rows.iter().zip(others);
        let ahead = |by: fn(&Row) -> f64| Estimate::of(pairs().map(|(row, other)| by(row) - by(other)));
        Duel {
            policy: policy.to_owned(),
            with: with.to_owned(),
            em: ahead(|row| row.em),
            f1: ahead(|row| row.f1),
            won: pairs().filter(|(row, other)| row.em > other.em).count(),
            lost: pairs().filter(|(row, other)| row.em < other.em).count(),
        }
    }
}
