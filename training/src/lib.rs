//! The trainer: policies learn the loop they are served in, by the same engine, agent, index and parser.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | the commands |

pub mod cli;
