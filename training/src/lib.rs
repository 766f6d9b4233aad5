//! The trainer: policies learn the loop they are served in, by the same engine, agent, index and parser.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | the commands |
//! | [`run`] | the directory of a run: metrics, events, report, checkpoints |
//! | [`sample`], [`store`] | trajectories as they are kept |

pub mod cli;
pub mod run;
pub mod sample;
pub mod store;
