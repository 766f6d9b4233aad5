//! Report of a run.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::invariant::Invariant;
use crate::memory::{self, MemoryFit, MemoryLog, MemorySample};
use crate::plan::ChaosPlan;
use crate::tally::{Counts, RequestOutcome};

/// Seconds of each process excluded from the slope, while caches fill and allocators grow.
const WARM: f64 = 45.0;

/// Growth over the longest process that still counts as flat, as a share of the mean and in bytes. The larger limit
/// applies.
const FLAT: (f64, f64) = (0.02, 8e6);

/// Report of a run.
#[derive(Debug)]
pub(crate) struct ChaosReport {
    text: String,
    passed: bool,
}

impl ChaosReport {
    /// Builds the report.
    pub(crate) fn new(
        plan: &ChaosPlan,
        counts: &Counts,
        measured: &MemoryLog,
        seconds: f64,
        panics: usize,
    ) -> ChaosReport {
        let fit = |value| memory::fit(&measured.samples, WARM, value);
        let whole = fit(|sample| sample.resident);
        let rest = fit(MemorySample::rest);
        let grown = rest.is_some_and(|fit| !flat(&fit));
        let lost = counts.of(RequestOutcome::Lost);
        let wrong = counts.of(RequestOutcome::Wrong);
        let passed = lost + wrong + counts.failures() == 0 && panics == 0 && !grown;
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = write(&mut text, plan, counts, seconds, panics)
            .and_then(|()| write_short_requests(&mut text, counts))
            .and_then(|()| write_invariants(&mut text, counts))
            .and_then(|()| write_memory(&mut text, measured, whole.zip(rest)));
        let verdict = match (passed, rest) {
            (true, Some(_)) => "every guarantee held",
            (true, None) => "every guarantee held; memory growth could not be judged",
            (false, _) => "GUARANTEES WERE BROKEN",
        };
        let _ = writeln!(text, "* verdict: **{verdict}**");
        for broken in &counts.broken {
            let _ = writeln!(text, "  * {broken}");
        }
        ChaosReport { text, passed }
    }

    /// Returns `true` if every guarantee held.
    pub(crate) fn passed(&self) -> bool {
        self.passed
    }

    /// Prints the report, and writes it to `file` if given.
    pub(crate) fn print(&self, file: Option<&Path>) -> anyhow::Result<()> {
        write!(io::stdout(), "{}", self.text)?;
        if let Some(file) = file {
            std::fs::write(file, &self.text)?;
        }
        Ok(())
    }
}

fn flat(fit: &MemoryFit) -> bool {
    let growth = fit.slope * fit.longest;
    growth <= (fit.mean * FLAT.0).max(FLAT.1)
}

fn write(text: &mut String, plan: &ChaosPlan, counts: &Counts, seconds: f64, panics: usize) -> std::fmt::Result {
    let ChaosPlan { model, seed, clients, .. } = plan;
    writeln!(text, "* model `{model}`, seed {seed}, {clients} clients, {seconds:.0} s of load")?;
    let total = counts.total();
    writeln!(
        text,
        "* {total} requests, {:.0} per second; {} of them read slowly",
        total as f64 / seconds,
        counts.slow
    )?;
    for outcome in [
        RequestOutcome::Finished,
        RequestOutcome::StreamError,
        RequestOutcome::Refused,
        RequestOutcome::Canceled,
        RequestOutcome::ServerDown,
        RequestOutcome::Lost,
        RequestOutcome::Wrong,
    ] {
        writeln!(text, "  * {}: {}", outcome.words(), counts.of(outcome))?;
    }
    let refusals: Vec<String> = counts.refusals.iter().map(|(what, count)| format!("{what}: {count}")).collect();
    writeln!(
        text,
        "* refusals and stream errors: {}",
        if refusals.is_empty() { "none".into() } else { refusals.join(", ") }
    )?;
    for (name, number) in &counts.operations {
        writeln!(text, "* {name}: {number}")?;
    }
    if let Some(reason) = &plan.no_disk {
        writeln!(text, "* the disk was never full: {reason}")?;
    }
    writeln!(text, "* {panics} panics in the log")
}

fn write_short_requests(text: &mut String, counts: &Counts) -> std::fmt::Result {
    let (alone, loaded) = &counts.short;
    let quantile = |times: &[Duration], share: f64| -> f64 {
        let mut sorted = times.to_vec();
        sorted.sort();
        let index = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
        sorted.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    let line = |times: &[Duration]| {
        format!("p50 {:.0} ms, p95 {:.0} ms, {} requests", quantile(times, 0.5), quantile(times, 0.95), times.len())
    };
    let ratio = quantile(loaded, 0.5) / quantile(alone, 0.5);
    writeln!(
        text,
        "* first token of a short request: alone {}; alongside greedy and all other clients {}; {ratio:.1} times as long (p50)",
        line(alone),
        line(loaded)
    )
}

fn write_invariants(text: &mut String, counts: &Counts) -> std::fmt::Result {
    let checked: u64 = counts.checks.values().map(|(checked, _)| checked).sum();
    writeln!(text, "* {checked} checks of guarantees, {} failed", counts.failures())?;
    for invariant in Invariant::ALL {
        let (checked, failed) = counts.checks.get(&invariant).copied().unwrap_or_default();
        writeln!(text, "  * {}: {checked} checks, {failed} failed", invariant.words())?;
    }
    Ok(())
}

fn write_memory(text: &mut String, measured: &MemoryLog, fits: Option<(MemoryFit, MemoryFit)>) -> std::fmt::Result {
    let made = measured.samples.len() + measured.missed;
    let missed = measured.missed;
    writeln!(text, "* {made} memory samples, {missed} of them failed: no response in time, or a gauge was missing")?;
    let Some((whole, rest)) = fits else {
        return writeln!(text, "* memory: too few samples of processes older than {WARM} s");
    };
    let MemoryFit { samples, processes, longest, .. } = rest;
    writeln!(
        text,
        "* memory: {}; without KV blocks, adapters, traces and stored responses, whose bytes `/metrics` shows: {}, which must be \
         flat. Least squares over {samples} samples of resident anonymous memory, one every half second, from {processes} \
         processes, each with its own intercept and without its first {WARM} s; the longest spans {longest:.0} s",
        line(&whole),
        line(&rest)
    )
}

fn line(fit: &MemoryFit) -> String {
    let MemoryFit { slope, error, mean, longest, .. } = *fit;
    let mebibyte = f64::from(1 << 20);
    format!(
        "{:.1} MiB on average, slope {:+.1} ± {:.1} KiB/s, {:+.1} MiB ({:+.1} %) over the longest process",
        mean / mebibyte,
        slope / 1024.0,
        error / 1024.0,
        slope * longest / mebibyte,
        100.0 * slope * longest / mean
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// Samples of one process of 165 s, two minutes of which count, whose memory grows by `slope` bytes per second.
    fn measured(slope: f64) -> MemoryLog {
        let sample = |age: f64| MemorySample { process: 1, age, resident: 50e6 + slope * age, explained: 0.0 };
        MemoryLog { samples: (0..=330).map(|half| sample(f64::from(half) / 2.0)).collect(), missed: 0 }
    }

    fn report(counts: &Counts, measured: &MemoryLog, panics: usize) -> ChaosReport {
        ChaosReport::new(&ChaosPlan::parse_from(["chaos"]), counts, measured, 165.0, panics)
    }

    fn assert_says(report: &ChaosReport, verdict: &str) {
        assert!(report.text.contains(&format!("* verdict: **{verdict}**\n")), "{}", report.text);
    }

    #[test]
    fn memory_that_grows_breaks_a_promise() {
        // 12 MB over two minutes; up to 8 MB count as flat.
        let grown = report(&Counts::default(), &measured(100e3), 0);
        assert!(!grown.passed());
        assert_says(&grown, "GUARANTEES WERE BROKEN");
        let flat = report(&Counts::default(), &measured(0.0), 0);
        assert!(flat.passed());
        assert_says(&flat, "every guarantee held");
    }

    #[test]
    fn memory_without_samples_is_not_judged() {
        let mut young = measured(100e3);
        young.samples.retain(|sample| sample.age < WARM);
        for measured in [MemoryLog::default(), young] {
            let report = report(&Counts::default(), &measured, 0);
            assert!(report.passed());
            assert_says(&report, "every guarantee held; memory growth could not be judged");
        }
    }

    #[test]
    fn one_lost_wrong_broken_or_panicked_request_is_enough() {
        let of =
            |outcome| Counts { requests: [(RequestOutcome::Finished, 9), (outcome, 1)].into(), ..Counts::default() };
        let broken = Counts { checks: [(Invariant::Idle, (1, 1))].into(), ..Counts::default() };
        for (counts, panics) in
            [(of(RequestOutcome::Lost), 0), (of(RequestOutcome::Wrong), 0), (broken, 0), (Counts::default(), 1)]
        {
            let report = report(&counts, &measured(0.0), panics);
            assert!(!report.passed());
            assert_says(&report, "GUARANTEES WERE BROKEN");
        }
        assert!(report(&of(RequestOutcome::Canceled), &measured(0.0), 0).passed());
    }
}
