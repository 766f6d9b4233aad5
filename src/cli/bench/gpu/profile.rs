//! Where the time of a step goes: which steps are looked at, and what is said of them.

use std::io::{self, Write};

use serde::Serialize;
use waymark_models::cuda::plan::Limits;
use waymark_models::cuda::profile::{self, Alike};

use super::shape::{Best, Shape};

/// The most sequences that are profiled decoding: up to here weights are most of what is read.
const MOST: usize = 64;

/// One step, launched kernel by kernel and timed by the card's clock.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Profile {
    pub(super) shape: String,
    pub(super) sequences: usize,
    /// Tokens that each sequence has in the cache, and new ones that it brings.
    pub(super) cached: usize,
    pub(super) new: usize,
    /// Seconds of the whole step with nothing marked between its launches.
    pub(super) seconds: f64,
    /// The least time the card needs by its ceilings, as a share of that.
    pub(super) of_floor: f64,
    /// Seconds of the whole step with a mark on both sides of each launch: what `work` and `gaps` are shares of.
    pub(super) marked: f64,
    /// Seconds of that between the launches.
    pub(super) gaps: f64,
    /// Whether the step began before all of it was in line, so that times may hold what launching took.
    pub(super) late: bool,
    /// What took longest first.
    pub(super) work: Vec<Work>,
}

/// All launches of one kind of work in the step.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Work {
    pub(super) what: String,
    pub(super) launches: usize,
    pub(super) seconds: f64,
    /// Of the step with all its marks.
    pub(super) share: f64,
    /// The least time the card needs for it by its ceilings, as a share of the time it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_floor: Option<f64>,
}

/// The steps that are profiled: decoding at the first number of sequences and at the largest that is at most [`MOST`], each
/// with `context` tokens; and a pass over as many of `prompts` prompts of `tokens` tokens as a step holds.
pub(super) fn steps(
    sequences: &[usize],
    context: usize,
    (prompts, tokens): (usize, usize),
    limits: Limits,
) -> Vec<Alike> {
    let first = sequences.first().copied();
    let largest = sequences.iter().copied().filter(|count| *count <= MOST).max();
    let before = context.min(limits.context).saturating_sub(1);
    let others = largest.filter(|_| largest != first);
    let decode = first.into_iter().chain(others).map(|rows| Alike { rows, before, new: 1 });
    let new = tokens.min(limits.context).min(limits.tokens);
    let rows = prompts.min(limits.tokens / new.max(1));
    decode.chain((rows > 0).then_some(Alike { rows, before: 0, new })).collect()
}

impl Profile {
    /// What a card found of a step in a shape.
    pub(super) fn new(shape: &Shape, step: Alike, found: &profile::Profile, best: Best) -> Self {
        let Alike { rows, before, new } = step;
        let floor =
            if new == 1 { shape.decode_floor(rows, before + 1, best) } else { shape.prefill_floor(rows, new, best) };
        let work = |line: &profile::Line| Work {
            what: line.work.to_string(),
            launches: line.launches,
            seconds: line.seconds,
            share: line.seconds / found.whole,
            of_floor: line.cost.map(|cost| best.seconds(cost.bytes as f64, cost.operations as f64) / line.seconds),
        };
        Self {
            shape: shape.name.clone(),
            sequences: rows,
            cached: before,
            new,
            seconds: found.alone,
            of_floor: floor / found.alone,
            marked: found.whole,
            gaps: found.gaps(),
            late: found.late,
            work: found.lines.iter().map(work).collect(),
        }
    }

    /// Prints it for people.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { shape, sequences, cached, new, seconds, of_floor, marked, gaps, .. } = self;
        writeln!(
            out,
            "profile of {shape}, {sequences} × ({cached} cached + {new} new tokens): {:.0} µs, {:.0} % of floor; {:.0} µs with \
             marks between",
            seconds * 1e6,
            of_floor * 100.0,
            marked * 1e6
        )?;
        if self.late {
            writeln!(out, "  it began before all of it was in line: times may hold what launching took")?;
        }
        writeln!(out, "  {:24} {:>8} {:>10} {:>7} {:>9}", "work", "launches", "µs", "share", "of floor")?;
        for work in &self.work {
            let floor = work.of_floor.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0));
            line(out, &work.what, &work.launches.to_string(), [work.seconds, work.share], &floor)?;
        }
        line(out, "gaps", "", [*gaps, gaps / marked], "")
    }
}

/// A line of the table.
fn line(out: &mut dyn Write, what: &str, launches: &str, [seconds, share]: [f64; 2], floor: &str) -> io::Result<()> {
    writeln!(out, "  {what:24} {launches:>8} {:>10.1} {:>5.1} % {floor:>9}", seconds * 1e6, share * 100.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use waymark_models::cuda::profile::{Cost, Line, Work as Kind};

    use super::*;

    const LIMITS: Limits = Limits { rows: 256, tokens: 8192, context: 2049 };

    #[test]
    fn few_and_many_sequences_and_a_full_step_of_prompts_are_profiled() {
        let alike = |rows, before, new| Alike { rows, before, new };
        let found = steps(&[1, 8, 64, 128], 192, (8, 2048), LIMITS);
        assert_eq!(found, [alike(1, 191, 1), alike(64, 191, 1), alike(4, 0, 2048)]);
        // One number that is both; prompts and contexts that are too long; no prompts.
        assert_eq!(steps(&[4], 9000, (1, 9000), LIMITS), [alike(4, 2048, 1), alike(1, 0, 2049)]);
        assert_eq!(steps(&[128], 10, (0, 10), LIMITS), [alike(128, 9, 1)]);
    }

    #[test]
    fn all_of_a_step_is_accounted_for() {
        let shape: Shape = "tiny".parse().unwrap();
        let best = Best { bandwidth: 1e12, operations: 1e15 };
        let cost = Some(Cost { bytes: 50_000_000, operations: 1 });
        let line = |work, launches, seconds, cost| Line { work, launches, seconds, cost };
        let lines = vec![line(Kind::Product { inn: 3, out: 5 }, 24, 1e-4, cost), line(Kind::Adapters, 8, 6e-5, None)];
        let found = profile::Profile { lines, whole: 2e-4, alone: 1.5e-4, late: true };
        let step = Alike { rows: 2, before: 9, new: 1 };
        let profile = Profile::new(&shape, step, &found, best);
        let shares: f64 = profile.work.iter().map(|work| work.share).sum();
        assert!((shares + profile.gaps / profile.marked - 1.0).abs() < 1e-9, "{profile:?}");
        assert!((profile.of_floor - shape.decode_floor(2, 10, best) / 1.5e-4).abs() < 1e-9);
        let mut text = Vec::new();
        profile.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[3], ["product", "3", "to", "5", "24", "100.0", "50.0", "%", "50", "%"]);
        assert_eq!(words[4], ["adapters", "8", "60.0", "30.0", "%", "-"]);
        assert_eq!(words[5], ["gaps", "40.0", "20.0", "%"]);
        assert!(text.contains("150 µs") && text.contains("200 µs with marks") && words.len() == 6, "{text}");
        let json = serde_json::to_value(&profile).unwrap();
        assert_eq!(json["work"][0]["launches"], 24);
        assert!(json["work"][1].get("of_floor").is_none());
    }
}
