//! What a run has shown.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use crate::memory::{self, Fit, Looks, Sample};
use crate::plan::Plan;
use crate::tally::{Counts, Outcome};

/// Seconds of each life that do not count for the slope: caches fill, allocators take what they will keep.
const WARM: f64 = 45.0;

/// Growth over the longest life that is still called flat, as a share of the mean and in bytes.
const FLAT: (f64, f64) = (0.02, 8e6);

/// What a run has shown.
#[derive(Debug)]
pub(crate) struct Report {
    text: String,
    kept: bool,
}

impl Report {
    /// Puts it together.
    pub(crate) fn new(plan: &Plan, counts: &Counts, looks: &Looks, seconds: f64, panics: usize) -> Report {
        let fit = |value| memory::fit(&looks.samples, WARM, value);
        let (whole, rest) = (fit(|sample| sample.resident), fit(Sample::rest));
        let grown = rest.is_some_and(|fit| !flat(&fit));
        let (lost, wrong) = (counts.of(Outcome::Lost), counts.of(Outcome::Wrong));
        let kept = lost + wrong == 0 && counts.broken.is_empty() && panics == 0 && !grown;
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ =
            write(&mut text, plan, counts, seconds, panics).and_then(|()| remember(&mut text, looks, whole.zip(rest)));
        let verdict = match (kept, rest) {
            (true, Some(_)) => "every promise was kept",
            (true, None) => "every promise was kept, but for memory, which could not be judged",
            (false, _) => "PROMISES WERE BROKEN",
        };
        let _ = writeln!(text, "* verdict: **{verdict}**");
        for broken in &counts.broken {
            let _ = writeln!(text, "  * {broken}");
        }
        Report { text, kept }
    }

    /// Whether every promise was kept.
    pub(crate) fn kept(&self) -> bool {
        self.kept
    }

    /// Prints it, and writes it into `file` where one is named.
    pub(crate) fn print(&self, file: Option<&Path>) -> anyhow::Result<()> {
        write!(io::stdout(), "{}", self.text)?;
        if let Some(file) = file {
            std::fs::write(file, &self.text)?;
        }
        Ok(())
    }
}

fn flat(fit: &Fit) -> bool {
    let growth = fit.slope * fit.longest;
    growth <= (fit.mean * FLAT.0).max(FLAT.1)
}

fn write(text: &mut String, plan: &Plan, counts: &Counts, seconds: f64, panics: usize) -> std::fmt::Result {
    let Plan { model, seed, clients, .. } = plan;
    writeln!(text, "* model `{model}`, seed {seed}, {clients} clients, {seconds:.0} s of load")?;
    let total = counts.total();
    writeln!(
        text,
        "* {total} requests, {:.0} per second; {} of them read slowly",
        total as f64 / seconds,
        counts.slow
    )?;
    for outcome in [
        Outcome::Finished,
        Outcome::Told,
        Outcome::Refused,
        Outcome::Cancelled,
        Outcome::Away,
        Outcome::Lost,
        Outcome::Wrong,
    ] {
        writeln!(text, "  * {}: {}", outcome.words(), counts.of(outcome))?;
    }
    let refusals: Vec<String> = counts.refusals.iter().map(|(what, count)| format!("{what}: {count}")).collect();
    writeln!(
        text,
        "* refusals and errors told: {}",
        if refusals.is_empty() { "none".into() } else { refusals.join(", ") }
    )?;
    let Counts { swaps, commits, poisoned, terms, .. } = counts;
    writeln!(text, "* {swaps} adapter swaps, {commits} index commits, {poisoned} poisoned passages")?;
    writeln!(text, "* {terms} times SIGTERM, {panics} panics in the log")
}

fn remember(text: &mut String, looks: &Looks, fits: Option<(Fit, Fit)>) -> std::fmt::Result {
    let (made, missed) = (looks.samples.len() + looks.missed, looks.missed);
    writeln!(
        text,
        "* {made} looks at the memory, {missed} of them in vain: no answer in time, or a gauge was missing"
    )?;
    let Some((whole, rest)) = fits else {
        return writeln!(text, "* memory: too few looks at a server older than {WARM} s to say anything");
    };
    let Fit { samples, lives, longest, .. } = rest;
    writeln!(
        text,
        "* memory: {}; without KV blocks, adapters and what is kept, whose bytes `/metrics` shows: {}. Least squares through \
         {samples} looks at the resident anonymous memory, one each half second, of {lives} lives, each with a level of its \
         own and without its first {WARM} s; the longest spans {longest:.0} s. The latter is to be flat",
        line(&whole),
        line(&rest)
    )
}

fn line(fit: &Fit) -> String {
    let Fit { slope, error, mean, longest, .. } = *fit;
    let mebibyte = f64::from(1 << 20);
    format!(
        "{:.1} MiB on average, slope {:+.1} ± {:.1} KiB/s, {:+.1} MiB ({:+.1} %) over the longest life",
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

    /// Looks at one life of 165 s, two minutes of which count, in which memory grows by `slope` bytes per second.
    fn looks(slope: f64) -> Looks {
        let sample = |age: f64| Sample { life: 1, age, resident: 50e6 + slope * age, explained: 0.0 };
        Looks { samples: (0..=330).map(|half| sample(f64::from(half) / 2.0)).collect(), missed: 0 }
    }

    fn report(counts: &Counts, looks: &Looks, panics: usize) -> Report {
        Report::new(&Plan::parse_from(["chaos"]), counts, looks, 165.0, panics)
    }

    fn assert_says(report: &Report, verdict: &str) {
        assert!(report.text.contains(&format!("* verdict: **{verdict}**\n")), "{}", report.text);
    }

    #[test]
    fn memory_that_grows_breaks_a_promise() {
        // 12 MB, where 8 are called flat.
        let grown = report(&Counts::default(), &looks(100e3), 0);
        assert!(!grown.kept());
        assert_says(&grown, "PROMISES WERE BROKEN");
        let flat = report(&Counts::default(), &looks(0.0), 0);
        assert!(flat.kept());
        assert_says(&flat, "every promise was kept");
    }

    #[test]
    fn memory_that_was_not_looked_at_is_not_judged() {
        let mut young = looks(100e3);
        young.samples.retain(|sample| sample.age < WARM);
        for looks in [Looks::default(), young] {
            let report = report(&Counts::default(), &looks, 0);
            assert!(report.kept());
            assert_says(&report, "every promise was kept, but for memory, which could not be judged");
        }
    }

    #[test]
    fn one_that_was_lost_or_wrong_or_broken_or_panicked_is_enough() {
        let of = |outcome| Counts { requests: [(Outcome::Finished, 9), (outcome, 1)].into(), ..Counts::default() };
        let broken = Counts { broken: vec!["a block was held".to_owned()], ..Counts::default() };
        for (counts, panics) in [(of(Outcome::Lost), 0), (of(Outcome::Wrong), 0), (broken, 0), (Counts::default(), 1)] {
            let report = report(&counts, &looks(0.0), panics);
            assert!(!report.kept());
            assert_says(&report, "PROMISES WERE BROKEN");
        }
        assert!(report(&of(Outcome::Cancelled), &looks(0.0), 0).kept());
    }
}
