//! Time of a step by kind of work.

mod cost;
mod timed;
mod work;

use crate::batch::BLOCK;

pub(in crate::cuda) use cost::StepLoad;
pub use cost::WorkCost;
pub(in crate::cuda) use timed::{StepTimings, TimedDriver};
pub use work::WorkKind;

/// A batch of identical sequences, used to time a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniformBatch {
    /// Number of sequences.
    pub rows: usize,
    /// Number of tokens that each sequence has in the KV cache.
    pub before: usize,
    /// Number of new tokens per sequence: 1 for decoding.
    pub new: usize,
}

/// Totals of one kind of work in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProfileLine {
    /// Kind of work.
    pub work: WorkKind,
    /// Number of launches.
    pub launches: usize,
    /// Total seconds, each launch measured from the mark before it to the mark after it.
    pub seconds: f64,
    /// Minimum cost of these launches. `None` when unknown.
    pub cost: Option<WorkCost>,
}

/// Measured times of one step that was launched kernel by kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct StepProfile {
    /// Totals by kind of work, slowest first.
    pub lines: Vec<ProfileLine>,
    /// Seconds from the start of the first launch to the end of the last, with marks around each launch.
    pub whole: f64,
    /// The same without marks between launches, hence without their overhead.
    pub alone: f64,
    /// If `true`, the step began before all of it was enqueued, so its times may include launch overhead. Always `true`
    /// on a synchronous driver such as the emulator.
    pub late: bool,
}

impl UniformBatch {
    /// Returns the number of KV blocks of all sequences.
    pub fn blocks(&self) -> usize {
        self.rows * self.table()
    }

    /// Returns the number of KV blocks of each sequence.
    pub(in crate::cuda) fn table(&self) -> usize {
        (self.before + self.new).div_ceil(BLOCK)
    }
}

impl StepProfile {
    /// Combines the timings of a step as a whole and per launch.
    pub(in crate::cuda) fn new(alone: &StepTimings, pieces: &StepTimings, load: &StepLoad<'_>) -> Self {
        let mut lines: Vec<ProfileLine> = Vec::new();
        for launch in &pieces.launches {
            match lines.iter_mut().find(|line| line.work == launch.work) {
                Some(line) => {
                    line.launches += 1;
                    line.seconds += launch.seconds;
                    line.cost = line.cost.zip(launch.cost).map(|(all, one)| all + one);
                }
                None => {
                    lines.push(ProfileLine {
                        work: launch.work,
                        launches: 1,
                        seconds: launch.seconds,
                        cost: launch.cost,
                    });
                }
            }
        }
        for line in &mut lines {
            line.cost = line.cost.or_else(|| load.cost(line.work));
        }
        lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Self { lines, whole: pieces.whole, alone: alone.whole, late: alone.late || pieces.late }
    }

    /// Returns the seconds of [`whole`](Self::whole) between launches, from the mark after one to the mark before the
    /// next.
    pub fn gaps(&self) -> f64 {
        self.whole - self.lines.iter().map(|line| line.seconds).sum::<f64>()
    }
}
