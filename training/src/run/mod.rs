//! The directory of a run: everything a training run leaves behind, and what it resumes from.
//!
//! ```text
//! <run>/run.toml          what was asked for: the recipe with its overrides, seed, base weights, data
//! <run>/metrics.jsonl     one row per step: step, phase, seconds, and every number of that step by name
//! <run>/samples.jsonl     trajectories, as [`crate::sample`] writes them
//! <run>/events/           the same numbers for TensorBoard
//! <run>/checkpoints/      what a killed run resumes from
//! <run>/policy/           the policy as it is served: a PEFT adapter and `policy.toml`
//! <run>/ranker.safetensors  what was learnt beside the policy, where something was; nothing serves it
//! <run>/report.html       the curves, in one file that needs nothing else
//! <run>/.lock             held by the one trainer
//! ```
//!
//! `metrics.jsonl` is the truth about numbers: the report is made of it, and TensorBoard's events repeat it.

mod board;
mod checkpoint;
pub mod durable;
mod error;
mod folder;
mod metrics;
mod report;

pub use self::board::Board;
pub use self::checkpoint::{Checkpoint, Checkpoints, Learnt, State};
pub use self::error::RunError;
pub use self::folder::Folder;
pub use self::metrics::{Metrics, Row};
pub use self::report::report;
