//! Estimate of an experiment's hours and memory before it runs, from short trials of its stages and of one arm.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::Path;

use waymark_runtime::evaluate::{EvaluationReport, Question};

use super::child::Trainer;
use super::error::ExperimentError;
use super::file::{Arm, Experiment};
use super::jobs::{Job, JobKind, Layout, evaluations, trainings};
use crate::policy_writer;
use crate::run::RunError;

/// Number of questions in the trial of an evaluation: enough for a batch.
const TRIAL: usize = 32;

/// Prints the estimate.
pub(super) fn write(
    experiment: &Experiment,
    layout: &Layout,
    trainer: &Trainer,
    out: &mut impl Write,
) -> Result<(), ExperimentError> {
    let trainings = trainings(experiment, layout);
    let evaluations = evaluations(experiment, layout);
    let mut text = format!(
        "{}: {} trainings, {} evaluations\nclaim      {}\n",
        experiment.name,
        trainings.len(),
        evaluations.len(),
        experiment.claim
    );
    let mut hours = Some(0.0);
    for job in &trainings {
        let plan = training(job, trainer)?;
        text.push_str(&format!("\n{}\n{}", job.name, indented(&plan)));
        // One plan without a time makes the sum unknown, too.
        hours = hours.zip(hours_in(&plan)).map(|(sum, own)| sum + own);
    }
    let questions = questions(experiment)?;
    let evaluated = trial(experiment, layout, trainer)?.map(|seconds| seconds * questions as f64 / 3600.0);
    let asked = evaluations.len() * questions;
    text.push_str(&format!(
        "\nevaluation: {} arms and seeds × {questions} questions = {asked} episodes\n",
        evaluations.len()
    ));
    match evaluated {
        Some(each) => {
            let all = each * evaluations.len() as f64;
            text.push_str(&format!(
                "  time       about {all:.1} h, {each:.1} h each, measured on {TRIAL} questions of one arm\n"
            ));
            hours = hours.map(|sum| sum + all);
        }
        None => {
            text.push_str("  time       unknown: no arm can be tried before its stage is trained\n");
            hours = None;
        }
    }
    match hours {
        Some(hours) => text.push_str(&format!("\nin all     about {hours:.1} h, one job at a time\n")),
        None => text.push_str("\nin all     unknown, because parts are\n"),
    }
    Ok(out.write_all(text.as_bytes()).map_err(RunError::io("write", Path::new("standard output")))?)
}

/// Returns the plan of a training, as its own dry run prints it. A stage whose predecessor is not trained yet is
/// estimated with the base model, because its passes take as long.
fn training(job: &Job, trainer: &Trainer) -> Result<String, ExperimentError> {
    let JobKind::Training(run) = &job.kind else { return Ok(String::new()) };
    let mut args: Vec<OsString> = job.args.iter().filter(|arg| is_ready(arg)).cloned().collect();
    args.extend(["--dry-run".into(), "--out".into(), run.clone().into_os_string()]);
    let printed = trainer.output(&args)?;
    printed.map_err(|message| ExperimentError::Job {
        job: format!("the dry run of {}", job.name),
        status: "refused".to_owned(),
        log: run.clone(),
        tail: message.trim_end().to_owned(),
    })
}

/// Returns `true` unless the argument names a policy to start from that is not there yet.
fn is_ready(arg: &OsStr) -> bool {
    let text = arg.to_string_lossy();
    let from = text.strip_prefix("--init=").or_else(|| text.strip_prefix("--reference="));
    // The directory of a run exists long before its policy.
    from.is_none_or(|dir| policy_writer::policy_dir(Path::new(dir)).join("policy.toml").is_file())
}

/// Returns the seconds per question of one arm. `None` if no arm has a fixed policy.
fn trial(experiment: &Experiment, layout: &Layout, trainer: &Trainer) -> Result<Option<f64>, ExperimentError> {
    // The policy of a stage does not exist yet; a fixed one does.
    let ready = |arm: &&Arm| arm.policy.is_some();
    let Some(arm) = experiment.arm.iter().find(ready) else { return Ok(None) };
    let temp = tempfile::tempdir().map_err(RunError::io("create", Path::new("a temporary directory")))?;
    let path = temp.path().join("report.json");
    let jobs = evaluations(experiment, layout);
    let Some(job) = jobs.iter().find(|job| job.kind == JobKind::Evaluation(layout.evaluation(arm, None))) else {
        return Ok(None);
    };
    let mut args = job.args.clone();
    args.extend([format!("--limit={TRIAL}").into(), "--json".into(), path.clone().into_os_string()]);
    if let Err(message) = trainer.output(&args)? {
        return Err(ExperimentError::Job {
            job: format!("the trial of {}", job.name),
            status: "failed".to_owned(),
            log: path,
            tail: message.trim_end().to_owned(),
        });
    }
    let json = fs::read(&path).map_err(RunError::io("read", &path))?;
    let report: EvaluationReport =
        serde_json::from_slice(&json).map_err(|error| RunError::io("read", &path)(error.into()))?;
    let seconds: f64 = report.sets.iter().flat_map(|set| &set.policies).map(|policy| policy.seconds).sum();
    let asked: usize = report.sets.iter().map(|set| set.questions).sum();
    Ok((asked > 0).then(|| seconds / asked as f64))
}

fn questions(experiment: &Experiment) -> Result<usize, ExperimentError> {
    let count = |path: &Path| {
        Question::read(path)
            .map(|questions| questions.len())
            .map_err(|error| ExperimentError::Rows { path: path.to_owned(), reason: error.to_string() })
    };
    experiment.evaluation.iter().map(|set| count(&set.questions)).sum()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// Returns the hours that a plan estimates: its line `time       about 1 h 05 min …`.
fn hours_in(plan: &str) -> Option<f64> {
    // The plan of a preference training has only the time of a round and of a pair, not that of the whole run.
    let line = plan.lines().find(|line| line.starts_with("time") && !line.contains("per round"))?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "about").skip(1);
    let hours: f64 = words.next()?.parse().ok()?;
    let unit = words.next()?;
    let minutes: f64 = words.next()?.parse().ok()?;
    (unit == "h").then_some(hours + minutes / 60.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_run_that_has_no_policy_yet_is_left_out() {
        let temp = tempfile::tempdir().unwrap();
        let run = temp.path().join("run");
        let ready = || {
            let from = |flag: &str| is_ready(OsString::from(format!("{flag}={}", run.display())).as_os_str());
            [from("--init"), from("--reference"), from("--recipe")]
        };
        assert_eq!(ready(), [false, false, true]);
        // A run that has begun.
        fs::create_dir_all(run.join("checkpoints")).unwrap();
        assert_eq!(ready(), [false, false, true]);
        fs::create_dir(run.join("policy")).unwrap();
        fs::write(run.join("policy/policy.toml"), "").unwrap();
        assert_eq!(ready(), [true; 3]);
    }

    #[test]
    fn hours_are_read_from_plans() {
        let plan = "steps      4\ntime       about 1 h 30 min: 3 s of rollouts\n";
        assert_eq!(hours_in(plan), Some(1.5));
        assert_eq!(hours_in("time       about 0 h 00 min at 5 tokens/s"), Some(0.0));
        assert_eq!(hours_in("time       not measured"), None);
        assert_eq!(hours_in("time       about 0 h 10 min of rollouts per round, and 1.0 s per pair and epoch,"), None);
    }
}
