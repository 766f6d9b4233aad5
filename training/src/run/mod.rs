//! Directory of a training run: everything that the run writes, and the state it resumes from.
//!
//! ```text
//! <run>/run.toml            settings: recipe with overrides, seed, base weights, data
//! <run>/metrics.jsonl       metrics, one row per step: step, phase, seconds, and named numbers
//! <run>/samples.jsonl       trajectories in the format of [`crate::sample`]
//! <run>/events/             the same metrics for TensorBoard
//! <run>/checkpoints/        state for resuming a killed run
//! <run>/policy/             policy for serving: a PEFT adapter and `policy.toml`
//! <run>/ranker.safetensors  preference model, if one was trained; not used for serving
//! <run>/report.html         curves, in one self-contained file
//! <run>/.lock               lock held by the trainer
//! ```
//!
//! `metrics.jsonl` is the source of all numbers: the report is drawn from it, and the TensorBoard events repeat it.

mod checkpoint;
pub mod durable;
mod error;
mod folder;
mod metrics;
mod report;
mod spelling;
mod tensorboard;

pub use self::checkpoint::{Checkpoints, RankerState, RunCheckpoint, RunState};
pub use self::error::RunError;
pub use self::folder::RunFolder;
pub(crate) use self::folder::lock;
pub use self::metrics::{MetricsFile, MetricsRow};
pub use self::report::report;
pub(crate) use self::spelling::respelled;
pub use self::tensorboard::EventWriter;
