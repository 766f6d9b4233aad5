//! The trainer: policies learn the loop they are served in, by the same engine, agent, index and parser.
//!
//! | module | what it holds |
//! |---|---|
//! | [`advantage`], [`policy_loss`], [`schedule`] | what a policy update is made of |
//! | [`cli`] | the commands |
//! | [`run`] | the directory of a run: metrics, events, report, checkpoints |

pub mod advantage;
pub mod cli;
pub mod policy_loss;
pub mod run;
pub mod schedule;

#[cfg(test)]
mod golden;
