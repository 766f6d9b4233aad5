//! `train experiment`: arms and seeds of training and evaluation that test one claim.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use waymark_runtime::config::LogFormat;
use waymark_runtime::logging;

use super::host_args::HostArgs;
use crate::experiment::{Experiment, ExperimentError, ExperimentReport, ExperimentRun, RunnerOptions};

/// Notice at the beginning of a README that is written from a report.
const NOTICE: &str = "<!-- Written by `train experiment --readme`; changes by hand are lost. -->\n\n";

/// Trains and evaluates the arms of an experiment, compares them, and says if its claim holds.
///
/// FILE describes everything before the run: stages with their recipes, arms, seeds, question sets, and the endpoints
/// with the thresholds that they must pass. The report contains its hash and those of all files that it names. Jobs run
/// one after the other, each in a process of its own; the same command resumes after the last finished one, and
/// continues an interrupted training at its last checkpoint. An experiment that trains on a question that it evaluates
/// is refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train experiment experiments/headroom.toml --dry-run
  train experiment experiments/headroom.toml --out runs/headroom \\
      --readme models/policies/NAME/README.md")]
pub(crate) struct Args {
    /// Path to the description of the experiment, as TOML.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Directory of the experiment: runs, evaluations, logs and the report. Defaults to `runs/` and the experiment's
    /// name.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Also write the report to this file, as Markdown.
    #[arg(long, value_name = "FILE")]
    readme: Option<PathBuf>,

    /// Print the jobs with estimates of hours and memory, and exit.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    host_args: HostArgs,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "info", LogFormat::Text)?;
        let dir = self.dir()?;
        let options = RunnerOptions {
            dir: dir.clone(),
            program: std::env::current_exe().context("cannot find the program itself")?,
            host_args: self.host_args(),
        };
        let run = ExperimentRun::open(&self.file, options)?;
        if self.dry_run {
            return Ok(run.estimate(&mut anstream::stdout().lock())?);
        }
        let (report, times) = run.run(|job, number, all| tracing::info!("[{number}/{all}] {job}"))?;
        let beside = (times.total - times.jobs).max(0.0);
        tracing::info!(jobs = times.jobs, beside, "seconds of jobs, and beside them");
        if let Some(path) = &self.readme {
            let text = format!("{NOTICE}{}", report.markdown());
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        tell(&report, &dir);
        Ok(())
    }

    /// Directory of the experiment.
    fn dir(&self) -> Result<PathBuf, ExperimentError> {
        match &self.out {
            Some(dir) => Ok(dir.clone()),
            None => Ok(Path::new("runs").join(Experiment::open(&self.file)?.name)),
        }
    }

    /// Arguments of every job.
    fn host_args(&self) -> Vec<OsString> {
        let mut args = vec![OsString::from(format!("--threads={}", self.host_args.threads))];
        if let Some(cache) = &self.host_args.cache {
            args.extend(["--cache".into(), cache.clone().into_os_string()]);
        }
        args
    }
}

/// Prints the verdict and the place of the report.
fn tell(report: &ExperimentReport, dir: &Path) {
    for outcome in &report.endpoints {
        let endpoint = &outcome.endpoint;
        anstream::println!(
            "{} of {} against {}: {} ({}), {}",
            endpoint.metric,
            endpoint.arm,
            endpoint.against,
            outcome.show_difference(),
            outcome.show_interval(),
            if outcome.passed { "passed" } else { "not passed" },
        );
    }
    let verdict = match report.holds {
        None => "no endpoint: nothing was decided",
        Some(true) => "the claim holds",
        Some(false) => "the claim does not hold",
    };
    anstream::println!("{verdict}; the report is {}", dir.join("report.html").display());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct ExperimentFlags {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_default_directory_is_named_after_the_experiment() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("copy.toml");
        fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/headroom.toml"), &file).unwrap();
        let dir = |flags: &[&str]| {
            let flags = [&["experiment", file.to_str().unwrap()][..], flags].concat();
            ExperimentFlags::try_parse_from(flags).unwrap().args.dir().unwrap()
        };
        assert_eq!(dir(&[]), Path::new("runs/headroom"));
        assert_eq!(dir(&["--out", "elsewhere"]), Path::new("elsewhere"));
    }
}
