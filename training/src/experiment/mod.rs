//! Experiments: arms and seeds of training and evaluation that test one claim, described in a file before they run.
//!
//! | module | contents |
//! |---|---|
//! | `file` | the description, as TOML |
//! | `check` | its checks |
//! | `questions` | checks of the question files |
//! | `inputs` | hashes of everything that the results depend on |
//! | `jobs` | the trainings and evaluations of a description, in order |
//! | `runner` | runs jobs and resumes after any interruption |
//! | `child` | a job's process, which ends with the runner |
//! | `estimate` | hours and memory before a run |
//! | `results` | scores of arms, read from the rows of their evaluations |
//! | `endpoint` | metrics, differences and bars |
//! | `report` | the report: JSON, Markdown, a page |
//!
//! Trainings choose their best step on validation questions that the description keeps apart; evaluation questions are
//! read after all training is over, and a description that trains on one of them is refused.

mod check;
mod child;
mod endpoint;
mod error;
mod estimate;
mod file;
mod inputs;
mod jobs;
mod questions;
mod report;
mod results;
mod runner;
#[cfg(test)]
mod tests;

pub use endpoint::{EndpointOutcome, Metric};
pub use error::ExperimentError;
pub use file::{Arm, Endpoint, EvaluationSet, Experiment, Stage, StageKind, TrainingSet};
pub use report::{ArmReport, ExperimentReport, OracleReport, Score, SetScores};
pub use runner::{ExperimentRun, RunTimes, RunnerOptions};
