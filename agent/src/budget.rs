//! Limits of an episode.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

/// Limits of an episode. None of them is ever exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Maximum number of rounds with the environment; searches and invalid actions count alike. One more generation may
    /// follow, whose search is not executed.
    pub turns: usize,
    /// Maximum number of executed searches. `None` sets no limit. A repeated search that is answered from the episode
    /// does not count. Instead of a search beyond the limit, the episode ends as after its last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub searches: Option<usize>,
    /// Maximum number of tokens sampled in one turn. A forced answer, or a guided one in a required format, may take as
    /// many again, since the turn may have left none for it.
    pub turn_tokens: usize,
    /// Tokens reserved for a forced answer until the end of the episode. Also the maximum length of a guided answer.
    pub answer_tokens: usize,
    /// Maximum number of tokens of one observation. A longer one is shortened.
    pub observation_tokens: usize,
    /// Maximum number of tokens of all observations together, including replies to invalid turns. `None` sets no limit.
    /// The observation that would exceed the limit is cut; after that, a turn that needs another observation ends the
    /// episode as after its last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_tokens: Option<usize>,
    /// Maximum number of sampled tokens of the episode. In the training variant only the kept tokens count, because
    /// turns are cut after sampling.
    pub sampled_tokens: usize,
    /// Maximum wall time of the episode in seconds, searches included.
    pub seconds: f64,
    /// Maximum length of the sequence in tokens, prompt included. The model's context length is a limit as well.
    pub context_tokens: usize,
}

impl Default for Budget {
    /// Returns RouteRAG's limits (appendix B.3 of its paper: B = 4, 500 tokens per response and per observation,
    /// sequences of 4,096), and five minutes.
    fn default() -> Self {
        Budget {
            turns: 4,
            searches: None,
            turn_tokens: 500,
            answer_tokens: 64,
            observation_tokens: 500,
            environment_tokens: None,
            sampled_tokens: 2500,
            seconds: 300.0,
            context_tokens: 4096,
        }
    }
}

impl Budget {
    /// Returns the wall time as a duration. A negative value or NaN counts as zero, and a value above one day as one
    /// day.
    pub fn time(&self) -> Duration {
        const DAY: f64 = 86_400.0;
        // `from_secs_f64` panics on values that are negative, not finite or too large, which a budget made in code may
        // hold.
        Duration::from_secs_f64(if self.seconds.is_nan() { 0.0 } else { self.seconds.clamp(0.0, DAY) })
    }

    /// Returns the number of tokens reserved for a forced answer within a pool of `pool` tokens: never more than a
    /// quarter of it.
    pub fn reserve(&self, pool: usize) -> usize {
        self.answer_tokens.min(self.turn_tokens).min(pool / 4)
    }
}

/// Limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Bound))]
#[serde(rename_all = "snake_case")]
pub enum BudgetLimit {
    /// Rounds with the environment.
    Turns,
    /// Executed searches of the episode.
    Searches,
    /// Sampled tokens of the episode.
    SampledTokens,
    /// Tokens of one observation, which was cut to fit.
    ObservationTokens,
    /// Tokens of all observations of the episode.
    EnvironmentTokens,
    /// Wall time.
    Time,
    /// Length of the sequence.
    Context,
}

impl fmt::Display for BudgetLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BudgetLimit::Turns => "turns",
            BudgetLimit::Searches => "searches",
            BudgetLimit::SampledTokens => "tokens",
            BudgetLimit::ObservationTokens => "observation tokens",
            BudgetLimit::EnvironmentTokens => "environment tokens",
            BudgetLimit::Time => "time",
            BudgetLimit::Context => "context",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_total() {
        for seconds in [-1.0, f64::NAN, f64::INFINITY, 0.0, 1e300] {
            let _ = Budget { seconds, ..Budget::default() }.time();
        }
        assert_eq!(Budget { seconds: 1.5, ..Budget::default() }.time(), Duration::from_millis(1500));
    }

    #[test]
    fn the_reserve_is_a_small_share() {
        let budget = Budget::default();
        assert_eq!(budget.reserve(2500), 64);
        assert_eq!(budget.reserve(16), 4);
        assert_eq!(budget.reserve(1), 0);
    }
}
