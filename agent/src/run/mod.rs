//! The run of an episode: a state machine without I/O, and the drivers that generate and search for it.
//!
//! | module | content |
//! |---|---|
//! | `machine` | the state machine: takes what a generation or a search has brought, returns what to do next |
//! | `state`, `core` | its states, and the parts that its transitions change |
//! | `writing`, `acting` | transitions while a turn is written, and after it |
//! | `setup` | what does not change during an episode |
//! | `budget_tracker`, `transcript` | what is left of the limits; the record |
//! | `turn`, `guide_run`, `offer` | one turn: its text and action, written freely or along a guide |
//! | `search_result` | what a search becomes: an event, a record and an observation |
//! | `step` | the requests of the state machine |
//! | `driver`, `world` | does what the state machine asks for; events, clock and index |
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
