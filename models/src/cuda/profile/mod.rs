//! Where the time of a step goes, by what is done in it.

mod cost;
mod timed;
mod work;

use crate::batch::BLOCK;

pub use cost::Cost;
pub(in crate::cuda) use cost::Load;
pub(in crate::cuda) use timed::{Timed, Timings};
pub use work::Work;

/// Sequences that are alike, for a step to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alike {
    /// How many.
    pub rows: usize,
    /// Tokens that each has in the cache.
    pub before: usize,
    /// New tokens that each brings: 1 when they decode.
    pub new: usize,
}

/// All launches of one kind of work in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// The kind.
    pub work: Work,
    /// How many.
    pub launches: usize,
    /// Seconds of all of them, each from the mark before it to the one behind it.
    pub seconds: f64,
    /// What they ask of a card at least, where that is known.
    pub cost: Option<Cost>,
}

/// What one step took that was launched piece by piece.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Its work by kind, what took longest first.
    pub lines: Vec<Line>,
    /// Seconds from the beginning of its first launch to the end of its last, with a mark on both sides of each.
    pub whole: f64,
    /// The same without any mark between: what a mark costs is not in it.
    pub alone: f64,
    /// Whether it began before all of it was in line: then the times may hold what launching took. Always so where
    /// everything is done at once, as on the emulator.
    pub late: bool,
}

impl Alike {
    /// KV blocks that they take.
    pub fn blocks(&self) -> usize {
        self.rows * self.table()
    }

    /// KV blocks that each of them takes.
    pub(in crate::cuda) fn table(&self) -> usize {
        (self.before + self.new).div_ceil(BLOCK)
    }
}

impl Profile {
    /// A step of this load, timed as a whole and in pieces.
    pub(in crate::cuda) fn new(alone: &Timings, pieces: &Timings, load: &Load<'_>) -> Self {
        let mut lines: Vec<Line> = Vec::new();
        for launch in &pieces.launches {
            match lines.iter_mut().find(|line| line.work == launch.work) {
                Some(line) => {
                    line.launches += 1;
                    line.seconds += launch.seconds;
                    line.cost = line.cost.zip(launch.cost).map(|(all, one)| all + one);
                }
                None => {
                    lines.push(Line { work: launch.work, launches: 1, seconds: launch.seconds, cost: launch.cost });
                }
            }
        }
        for line in &mut lines {
            line.cost = line.cost.or_else(|| load.cost(line.work));
        }
        lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Self { lines, whole: pieces.whole, alone: alone.whole, late: alone.late || pieces.late }
    }

    /// Seconds of [`whole`](Self::whole) that are no launch's: between the mark behind one and the mark before the next.
    pub fn gaps(&self) -> f64 {
        self.whole - self.lines.iter().map(|line| line.seconds).sum::<f64>()
    }
}
