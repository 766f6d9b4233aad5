//! Profiles of steps: selection of the steps, and their report.

use std::io::{self, Write};

use serde::Serialize;
use waymark_models::cuda::plan::StepLimits;
use waymark_models::cuda::profile::{self, UniformBatch};

use super::shape::{Ceilings, ModelShape};

/// Maximum number of sequences of the second decode profile: up to here weights dominate memory traffic.
const MAX_SEQUENCES: usize = 64;

/// One step, launched kernel by kernel and timed by the GPU's clock.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ProfileReport {
    pub(super) shape: String,
    pub(super) sequences: usize,
    /// Number of tokens per sequence in the KV cache.
    pub(super) cached: usize,
    /// Number of new tokens per sequence.
    pub(super) new: usize,
    /// Seconds of the whole step without marks between launches.
    pub(super) seconds: f64,
    /// Minimum time by the GPU's peak rates, as a share of `seconds`.
    pub(super) of_floor: f64,
    /// Seconds of the whole step with marks around each launch, the basis of `work` and `gaps`.
    pub(super) marked: f64,
    /// Seconds between the launches, out of `marked`.
    pub(super) gaps: f64,
    /// If `true`, the step began before all of it was enqueued, so times may include launch overhead.
    pub(super) late: bool,
    /// Work by kind, slowest first.
    pub(super) work: Vec<ProfileRow>,
}

/// All launches of one kind of work in the step.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ProfileRow {
    pub(super) what: String,
    pub(super) launches: usize,
    pub(super) seconds: f64,
    /// Share of `marked`.
    pub(super) share: f64,
    /// Minimum time by the GPU's peak rates, as a share of the measured time. `None` when the cost is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_floor: Option<f64>,
}

/// Returns the steps to profile: decoding at the first number of sequences and at the largest up to [`MAX_SEQUENCES`],
/// each with `context` tokens; and prefill of as many of `prompts` prompts of `tokens` tokens as fit into a step.
pub(super) fn steps(
    sequences: &[usize],
    context: usize,
    (prompts, tokens): (usize, usize),
    limits: StepLimits,
) -> Vec<UniformBatch> {
    let first = sequences.first().copied();
    let largest = sequences.iter().copied().filter(|count| *count <= MAX_SEQUENCES).max();
    let before = context.min(limits.context).saturating_sub(1);
    let others = largest.filter(|_| largest != first);
    let decode = first.into_iter().chain(others).map(|rows| UniformBatch { rows, before, new: 1 });
    let new = tokens.min(limits.context).min(limits.tokens);
    let rows = prompts.min(limits.tokens / new.max(1));
    decode.chain((rows > 0).then_some(UniformBatch { rows, before: 0, new })).collect()
}

impl ProfileReport {
    /// Creates the report of a profiled step.
    pub(super) fn new(shape: &ModelShape, step: UniformBatch, found: &profile::StepProfile, best: Ceilings) -> Self {
        let UniformBatch { rows, before, new } = step;
        let floor =
            if new == 1 { shape.decode_floor(rows, before + 1, best) } else { shape.prefill_floor(rows, new, best) };
        let work = |line: &profile::ProfileLine| ProfileRow {
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

    /// Prints the profile as a table.
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
            writeln!(out, "  the step began before all of it was enqueued: times may include launch overhead")?;
        }
        writeln!(out, "  {:24} {:>8} {:>10} {:>7} {:>9}", "work", "launches", "µs", "share", "of floor")?;
        for work in &self.work {
            let floor = work.of_floor.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0));
            line(out, &work.what, &work.launches.to_string(), [work.seconds, work.share], &floor)?;
        }
        line(out, "gaps", "", [*gaps, gaps / marked], "")
    }
}

/// Prints a line of the table.
fn line(out: &mut dyn Write, what: &str, launches: &str, [seconds, share]: [f64; 2], floor: &str) -> io::Result<()> {
    writeln!(out, "  {what:24} {launches:>8} {:>10.1} {:>5.1} % {floor:>9}", seconds * 1e6, share * 100.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use waymark_models::cuda::profile::{ProfileLine, WorkCost, WorkKind as Kind};

    use super::*;

    const LIMITS: StepLimits = StepLimits { rows: 256, tokens: 8192, context: 2049 };

    #[test]
    fn few_and_many_sequences_and_a_full_step_of_prompts_are_profiled() {
        let alike = |rows, before, new| UniformBatch { rows, before, new };
        let found = steps(&[1, 8, 64, 128], 192, (8, 2048), LIMITS);
        assert_eq!(found, [alike(1, 191, 1), alike(64, 191, 1), alike(4, 0, 2048)]);
        // A single number; prompts and contexts that are too long; no prompts.
        assert_eq!(steps(&[4], 9000, (1, 9000), LIMITS), [alike(4, 2048, 1), alike(1, 0, 2049)]);
        assert_eq!(steps(&[128], 10, (0, 10), LIMITS), [alike(128, 9, 1)]);
    }

    #[test]
    fn all_of_a_step_is_accounted_for() {
        let shape: ModelShape = "tiny".parse().unwrap();
        let best = Ceilings { bandwidth: 1e12, operations: 1e15 };
        let cost = Some(WorkCost { bytes: 50_000_000, operations: 1 });
        let line = |work, launches, seconds, cost| ProfileLine { work, launches, seconds, cost };
        let lines = vec![line(Kind::MatMul { inn: 3, out: 5 }, 24, 1e-4, cost), line(Kind::Adapters, 8, 6e-5, None)];
        let found = profile::StepProfile { lines, whole: 2e-4, alone: 1.5e-4, late: true };
        let step = UniformBatch { rows: 2, before: 9, new: 1 };
        let profile = ProfileReport::new(&shape, step, &found, best);
        let shares: f64 = profile.work.iter().map(|work| work.share).sum();
        assert!((shares + profile.gaps / profile.marked - 1.0).abs() < 1e-9, "{profile:?}");
        assert!((profile.of_floor - shape.decode_floor(2, 10, best) / 1.5e-4).abs() < 1e-9);
        let mut text = Vec::new();
        profile.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[3], ["matmul", "3", "to", "5", "24", "100.0", "50.0", "%", "50", "%"]);
        assert_eq!(words[4], ["adapters", "8", "60.0", "30.0", "%", "-"]);
        assert_eq!(words[5], ["gaps", "40.0", "20.0", "%"]);
        assert!(text.contains("150 µs") && text.contains("200 µs with marks") && words.len() == 6, "{text}");
        let json = serde_json::to_value(&profile).unwrap();
        assert_eq!(json["work"][0]["launches"], 24);
        assert!(json["work"][1].get("of_floor").is_none());
    }
}
