//! The bounds of an episode.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How much an episode may use. Every field is a bound that is never exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Rounds with the environment (searches and invalid actions alike). One more generation may follow them, whose
    /// search is not executed.
    pub turns: usize,
    /// Searches that are executed; no bound where none is stated. One that is answered from the episode costs none. In the
    /// place of the one that would be too many an episode ends as it does after its last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub searches: Option<usize>,
    /// Tokens that one turn may sample. An answer that has to be asked for, or must be JSON, may take as many again: taken
    /// from the turn there might be none left for it.
    pub turn_tokens: usize,
    /// Tokens of an answer that has to be asked for: set aside until the end, and the most a guided answer takes.
    pub answer_tokens: usize,
    /// Tokens of one observation; the rest of it is cut.
    pub observation_tokens: usize,
    /// Tokens of all observations together, what a turn without an action is told included; no bound where none is stated.
    /// The observation that would exceed it is cut; then there is none any more, and what would bring another one ends the
    /// episode as after its last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_tokens: Option<usize>,
    /// Tokens that the whole episode may sample; in the training variant those that it keeps, for its turns are cut after they
    /// were sampled.
    pub sampled_tokens: usize,
    /// Wall time of the whole episode, searches included.
    pub seconds: f64,
    /// Tokens of the whole sequence, prompt included. The model's own context bounds it as well.
    pub context_tokens: usize,
}

impl Default for Budget {
    /// RouteRAG's limits (appendix B.3 of its paper: B = 4, 500 tokens per response and per observation, sequences of
    /// 4,096), and five minutes.
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
    /// The wall time as a duration; a negative or absurd number counts as none or as a day.
    pub fn time(&self) -> Duration {
        const DAY: f64 = 86_400.0;
        Duration::from_secs_f64(if self.seconds.is_nan() { 0.0 } else { self.seconds.clamp(0.0, DAY) })
    }

    /// What is set aside for a forced answer within a pool of `pool` tokens: never more than a quarter of it.
    pub fn reserve(&self, pool: usize) -> usize {
        self.answer_tokens.min(self.turn_tokens).min(pool / 4)
    }
}

/// Which bound was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Rounds with the environment.
    Turns,
    /// Executed searches of the episode.
    Searches,
    /// Sampled tokens of the episode.
    SampledTokens,
    /// Tokens of one observation, which was cut.
    ObservationTokens,
    /// Tokens of all observations of the episode.
    EnvironmentTokens,
    /// Wall time.
    Time,
    /// Length of the sequence.
    Context,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Turns => "turns",
            Bound::Searches => "searches",
            Bound::SampledTokens => "tokens",
            Bound::ObservationTokens => "observation tokens",
            Bound::EnvironmentTokens => "environment tokens",
            Bound::Time => "time",
            Bound::Context => "context",
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
