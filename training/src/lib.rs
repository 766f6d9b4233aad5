//! The trainer: policies learn the loop they are served in, by the same engine, agent, index and parser.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | the commands |
//! | [`recipe`] | what a policy is trained by |
//! | [`optimizer`] | AdamW and gradient clipping |

pub mod cli;
pub mod optimizer;
pub mod recipe;
