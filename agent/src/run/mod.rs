//! The run of an episode: a state machine without I/O, and the drivers that generate and search for it.
//!
//! | module | content |
//! |---|---|
//! | `machine` | the state machine: takes the results of generations and searches, returns the next step |
//! | `state`, `core` | its states, and the parts that its transitions change |
//! | `writing`, `acting` | transitions while a turn is written, and after it |
//! | `setup` | properties that do not change during an episode |
//! | `budget_tracker`, `transcript` | the remaining budget; the record |
//! | `turn`, `guide_run`, `offer` | one turn: its text and action, written freely or along a guide |
//! | `search_result` | the result of a search as an event, a record and an observation |
//! | `step` | the requests of the state machine |
//! | `driver`, `world` | the driver, which executes the steps; events, clock and index |
//! | `play` | the choice of a loop |
//! | `turn_boundary`, `episode_state` | the beginning of a turn, and other episodes that go on from it |
//! | `growing`, `per_turn` | one session that grows (serving, evaluation); a session per turn, cut afterwards (training) |

mod acting;
mod budget_tracker;
mod core;
mod driver;
mod episode_state;
mod growing;
mod guide_run;
mod machine;
mod offer;
mod per_turn;
mod play;
mod search_result;
mod setup;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod transcript;
mod turn;
mod turn_boundary;
mod world;
mod writing;

pub use episode_state::{EpisodeBranch, EpisodeState};
