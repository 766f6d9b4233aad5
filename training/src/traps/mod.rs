//! Reward traps: cheap bad behaviors, compared with a right answer in two hops under the rewards of a recipe.
//!
//! Each behavior is played through the agent's loop in the recipe's protocol, over a search of a few made-up passages,
//! and scored by the recipe's own rewards. If a bad behavior earns more than the right one, a policy that is trained on
//! the reward learns the bad one. A recipe can allow such a behavior with `allow_traps`.
//!
//! | module | contents |
//! |---|---|
//! | `behavior` | the behaviors and their turns |
//! | `world` | the question, its passages and the search |
//! | `play` | episodes of the behaviors, as samples |
//! | `table` | rewards of the behaviors, and the check of a recipe |

mod behavior;
mod play;
mod table;
#[cfg(test)]
mod tests;
mod world;

use std::fmt;

use serde::{Deserialize, Serialize};
use waymark_agent::AgentError;
use waymark_index::EmbedError;

#[cfg(test)]
pub(crate) use behavior::Behavior;
#[cfg(test)]
pub(crate) use play::play;
pub use table::{StageTraps, TrapTable};

/// A cheap bad behavior.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trap {
    /// Repeats a search that found something until the last turn, then answers wrong.
    Repeat,
    /// States at once that nothing can be found.
    Refuse,
    /// Answers at once, without a search and wrong.
    Answer,
    /// Makes useless searches until the budget ends, and gives no answer.
    Exhaust,
}

impl Trap {
    /// All traps, in the order of the table.
    pub const ALL: [Trap; 4] = [Trap::Repeat, Trap::Refuse, Trap::Answer, Trap::Exhaust];

    /// Returns the name by which a recipe allows the trap.
    pub fn name(self) -> &'static str {
        match self {
            Trap::Repeat => "repeat",
            Trap::Refuse => "refuse",
            Trap::Answer => "answer",
            Trap::Exhaust => "exhaust",
        }
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error of playing or checking the behaviors.
#[derive(Debug, thiserror::Error)]
pub enum TrapError {
    /// The loop cannot play a behavior.
    #[error("cannot play the behavior `{behavior}` for the table of reward traps: {source}")]
    Play {
        /// Name of the behavior.
        behavior: &'static str,
        /// Cause.
        source: Box<AgentError>,
    },
    /// The texts that a reward compares cannot be embedded.
    #[error("cannot compare the texts of the table of reward traps: {0}")]
    Embed(EmbedError),
    /// A bad behavior earns more than the right one, and the recipe does not allow it.
    #[error(
        "{stage}: the behavior `{trap}` earns {earned:.2}, a right answer in two hops {right:.2}: change the reward, or \
         write allow_traps = [{}] in this stage (`train plan` prints the table)", quoted(.beaten_by)
    )]
    Trapped {
        /// Field of the stage.
        stage: String,
        /// The behavior that earns most.
        trap: Trap,
        /// Reward of the behavior.
        earned: f64,
        /// Reward of the right behavior.
        right: f64,
        /// All behaviors that earn more than the right one.
        beaten_by: Vec<Trap>,
    },
    /// A stage allows a behavior that earns no more than the right one. The permission could hide a later mistake.
    #[error("{stage}: allow_traps names `{trap}`, which earns no more than a right answer in two hops: remove it")]
    Unneeded {
        /// Field of the stage.
        stage: String,
        /// The behavior.
        trap: Trap,
    },
}

fn quoted(traps: &[Trap]) -> String {
    traps.iter().map(|trap| format!("{:?}", trap.name())).collect::<Vec<_>>().join(", ")
}
