//! The trainer: policies learn the loop they are served in, by the same engine, agent, index and parser.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | the commands |
//! | [`run`] | the directory of a run: metrics, events, report, checkpoints |

pub mod cli;
pub mod run;
