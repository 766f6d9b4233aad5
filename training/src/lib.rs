//! The trainer: policies learn the loop they are served in, by the same engine, agent, index and parser.
//!
//! | module | what it holds |
//! |---|---|
//! | [`advantage`], [`policy_loss`], [`schedule`] | what a policy update is made of |
//! | [`cli`] | the commands |
//! | [`data`] | trajectories for the cold start |
//! | [`reward`] | what trajectories are worth |
//! | [`run`] | the directory of a run: metrics, events, report, checkpoints |
//! | [`sample`], [`store`] | trajectories as they are kept |

pub mod advantage;
pub mod cli;
pub mod data;
pub mod policy_loss;
pub mod reward;
pub mod run;
pub mod sample;
pub mod schedule;
pub mod store;

#[cfg(test)]
mod golden;
