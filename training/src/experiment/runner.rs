//! Runs the jobs of an experiment one after the other, and resumes after the last finished one.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use waymark_agent::Policy;
use waymark_models::Arithmetic;
use waymark_runtime::evaluate::{Contender, Question};

use super::child::Trainer;
use super::error::ExperimentError;
use super::estimate;
use super::file::{Experiment, Stage, StageKind};
use super::inputs::{Inputs, check_forced};
use super::jobs::{Job, JobKind, Layout, jobs};
use super::questions::{self, QuestionUse};
use super::report::ExperimentReport;
use super::results::ArmResults;
use crate::recipe::{Recipe, RecipeError};
use crate::run::{RunError, RunFolder, durable, lock};
use crate::sample_lines::SampleReader;
use crate::traps::TrapTable;

/// Maximum wait for the trainer of a killed experiment, which ends shortly after it.
const LEFT_BEHIND: Duration = Duration::from_secs(30);

/// Options of a run that do not change its results.
#[derive(Debug, Clone)]
pub struct RunnerOptions {
    /// Directory of the experiment.
    pub dir: PathBuf,
    /// Path of the program `train`.
    pub program: PathBuf,
    /// Arguments of every job: threads and cache.
    pub host_args: Vec<OsString>,
}

/// An experiment that is ready to run.
#[derive(Debug)]
pub struct ExperimentRun {
    pub(super) experiment: Experiment,
    /// Path of the description.
    path: PathBuf,
    layout: Layout,
    inputs: Inputs,
    trainer: Trainer,
}

/// Seconds of a finished run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RunTimes {
    /// Seconds of the jobs that this process ran.
    pub jobs: f64,
    /// Seconds from the beginning to the end.
    pub total: f64,
}

impl ExperimentRun {
    /// Reads, checks and hashes the experiment in the file `path`.
    ///
    /// # Errors
    /// If the description is invalid, a file that it names cannot be read, a recipe does not fit its stage or its
    /// questions, an arm forces what its policy ignores, an endpoint is undefined on a set, or an evaluation question is
    /// among those that a stage trains on.
    pub fn open(path: &Path, options: RunnerOptions) -> Result<ExperimentRun, ExperimentError> {
        let mut experiment = Experiment::open(path)?;
        let mut inputs = Inputs::of(&experiment, path)?;
        check_leaks(&experiment, path)?;
        questions::check_endpoints(&experiment, path)?;
        let mut layout = Layout::new(options.dir);
        let mut arithmetics = Vec::new();
        for (at, stage) in experiment.stage.iter().enumerate() {
            let refuse = |field: &str, reason: String| ExperimentError::Field {
                path: path.to_owned(),
                field: format!("stage[{at}].{field}"),
                reason,
            };
            // Read now, so that a mistake in the last recipe does not show after hours.
            let recipe =
                Recipe::open(&stage.recipe, &stage.set).map_err(|error| refuse("recipe", error.to_string()))?;
            check_stage(&experiment, stage, &recipe).map_err(|(field, reason)| refuse(field, reason))?;
            let policy = recipe.policy().map_err(|error| refuse("recipe", error.to_string()))?;
            check_arms(&experiment, stage, policy, path)?;
            // `sft` reads no reward, so a trap in another section of its recipe is never learned in this stage.
            if stage.kind != StageKind::Sft {
                check_traps(&recipe).map_err(|reason| refuse("recipe", reason))?;
            }
            if recipe.adapter.is_some() {
                layout.add_base(stage, &recipe.base);
            }
            arithmetics.push(recipe.arithmetic);
        }
        experiment.arithmetic = experiment.arithmetic.or_else(|| shared_rounding(&arithmetics));
        if let Some(arithmetic) = experiment.arithmetic {
            inputs.evaluate_in(arithmetic);
        }
        if experiment.stage.iter().any(|stage| layout.seeds_adapter(stage)) {
            inputs.seed_adapters();
        }
        let trainer = Trainer { program: options.program, host_args: options.host_args };
        Ok(ExperimentRun { experiment, path: path.to_owned(), layout, inputs, trainer })
    }

    /// Prints the jobs with estimates of hours and memory. Runs short trials, and writes nothing.
    ///
    /// # Errors
    /// If a trial cannot be started, or `out` cannot be written.
    pub fn estimate(&self, out: &mut impl Write) -> Result<(), ExperimentError> {
        estimate::write(&self.experiment, &self.layout, &self.trainer, out)
    }

    /// Runs all jobs that are not finished and writes the report. `on_job_start` is called before each job with its
    /// name, its number and the number of jobs.
    ///
    /// # Errors
    /// If the directory belongs to another experiment or process, a job fails, or an input changes during a job, which
    /// then has no result.
    pub fn run(
        &self,
        mut on_job_start: impl FnMut(&str, usize, usize),
    ) -> Result<(ExperimentReport, RunTimes), ExperimentError> {
        let run_started = Instant::now();
        let dir = &self.layout.dir;
        fs::create_dir_all(dir).map_err(RunError::io("create", dir))?;
        let _lock = lock(dir)?;
        // Under the lock: two processes must not both find no `inputs.json`, and each write its own.
        self.inputs.settle(dir, &dir.join("inputs.json"))?;
        let jobs = jobs(&self.experiment, &self.layout);
        let mut times = RunTimes::default();
        for (place, job) in jobs.iter().enumerate() {
            if self.is_done(job) {
                continue;
            }
            on_job_start(&job.name, place + 1, jobs.len());
            let started = Instant::now();
            self.execute(job)?;
            let seconds = started.elapsed().as_secs_f64();
            times.jobs += seconds;
            self.note_time(job, seconds)?;
        }
        let report = self.report()?;
        report.write(dir)?;
        times.total = run_started.elapsed().as_secs_f64();
        Ok((report, times))
    }

    fn is_done(&self, job: &Job) -> bool {
        match &job.kind {
            // The directory of a run exists before its first step, so only the mark tells that the training ended.
            JobKind::Training(_) => self.layout.mark(job).is_file(),
            // `durable::folder` gives a directory its name when all its files are complete.
            JobKind::Evaluation(dir) => dir.is_dir(),
        }
    }

    fn execute(&self, job: &Job) -> Result<(), ExperimentError> {
        let log = self.layout.log(job);
        match &job.kind {
            JobKind::Training(run) => {
                create_parent(run)?;
                wait_for_trainer(run)?;
                self.trainer.run(&job.name, &with_paths(&job.args, &[("--out", run)]), &log)?;
                self.check_unchanged()?;
                let mark = self.layout.mark(job);
                create_parent(&mark)?;
                Ok(durable::write(&mark, b"")?)
            }
            JobKind::Evaluation(dir) => {
                create_parent(dir)?;
                durable::folder(dir, |part| {
                    let rows = part.join("rows.jsonl");
                    let report = part.join("report.json");
                    let args = with_paths(&job.args, &[("--rows", &rows), ("--json", &report)]);
                    self.trainer.run(&job.name, &args, &log)?;
                    self.check_unchanged()
                })
            }
        }
    }

    /// Refuses the result of a job that may have read other inputs than the jobs before.
    fn check_unchanged(&self) -> Result<(), ExperimentError> {
        self.inputs.check_unchanged(&self.experiment, &self.path, &self.layout.dir)
    }

    /// Appends the duration of a job. Reports contain no durations, so that they are reproducible.
    fn note_time(&self, job: &Job, seconds: f64) -> Result<(), ExperimentError> {
        let path = self.layout.dir.join("times.jsonl");
        let line = format!("{}\n", json!({ "job": job.name, "seconds": seconds }));
        let file = File::options().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        Ok(written.map_err(RunError::io("write", &path))?)
    }

    fn report(&self) -> Result<ExperimentReport, ExperimentError> {
        let experiment = &self.experiment;
        let read = |arm| ArmResults::read(experiment, arm, |seed| self.layout.evaluation(arm, seed));
        let results = experiment.arm.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        ExperimentReport::of(experiment, self.inputs.hash(), &results)
    }
}

/// Returns the arithmetic that all stages have. `None` if they differ, and for `f32`: as in rollouts, asking for it by
/// name would exclude a GPU.
fn shared_rounding(arithmetics: &[Arithmetic]) -> Option<Arithmetic> {
    let first = *arithmetics.first()?;
    let shared = arithmetics.iter().all(|other| *other == first);
    (shared && first != Arithmetic::F32).then_some(first)
}

/// Refuses a stage that the trainer would refuse, hours later, because of its recipe. Returns the field and the reason.
fn check_stage(experiment: &Experiment, stage: &Stage, recipe: &Recipe) -> Result<(), (&'static str, String)> {
    let lacks = |error: RecipeError| ("recipe", error.to_string());
    let needed = match stage.kind {
        StageKind::Sft => {
            recipe.sft(&stage.recipe).map_err(lacks)?;
            return Ok(());
        }
        StageKind::Grpo => {
            let settings = recipe.grpo(&stage.recipe).map_err(lacks)?;
            let stages = settings.stages_to_train(stage.part).map_err(|reason| ("part", reason))?;
            if let Some(reason) = settings.reference_flaw().filter(|_| stage.reference.is_some()) {
                return Err(("reference", reason.to_owned()));
            }
            QuestionUse {
                field: "grpo.validation",
                validation: settings.validation,
                refusals: settings.rewards_refusals(stages.clone()),
                support: settings.needs_support(stages),
            }
        }
        StageKind::Dpo => {
            let settings = recipe.dpo(&stage.recipe).map_err(lacks)?;
            QuestionUse {
                field: "dpo.validation",
                validation: settings.validation,
                refusals: settings.rewards_refusals(),
                support: settings.needs_support(),
            }
        }
    };
    if needed.validation == 0 && experiment.training.iter().any(|set| set.validation.is_some()) {
        let field = needed.field;
        return Err(("recipe", format!("{field} = 0: set it above 0, or give no `validation` under [[training]]")));
    }
    questions::check_training(experiment, needed).map_err(|reason| ("recipe", reason))
}

/// Refuses search options of the stage's arms that its policy ignores.
fn check_arms(experiment: &Experiment, stage: &Stage, policy: Policy, path: &Path) -> Result<(), ExperimentError> {
    let contender = Contender::Policy(Box::new(policy));
    for (at, arm) in experiment.arm.iter().enumerate() {
        if arm.stage.as_ref() == Some(&stage.name) {
            check_forced(arm, at, &contender, path)?;
        }
    }
    Ok(())
}

/// Refuses a recipe with a reward trap that it does not allow. Returns the reason.
fn check_traps(recipe: &Recipe) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| format!("cannot play the behaviors of the table of traps: {error}"))?;
    let table = runtime.block_on(TrapTable::of(recipe)).map_err(|error| error.to_string())?;
    table.check().map_err(|error| error.to_string())
}

/// Refuses an experiment that trains on a question that it evaluates, by its text.
fn check_leaks(experiment: &Experiment, path: &Path) -> Result<(), ExperimentError> {
    let read = |file: &Path| {
        Question::read(file).map_err(|error| ExperimentError::Rows { path: file.to_owned(), reason: error.to_string() })
    };
    let mut evaluated: HashMap<String, &str> = HashMap::new();
    for set in &experiment.evaluation {
        evaluated.extend(read(&set.questions)?.into_iter().map(|question| (folded(&question.question), &*set.name)));
    }
    let refuse = |field: &str, question: &str, set: &str| ExperimentError::Field {
        path: path.to_owned(),
        field: field.to_owned(),
        reason: format!("the question {question:?} is in the evaluation set {set} too: remove it from one of them"),
    };
    for (at, set) in experiment.training.iter().enumerate() {
        for (field, file) in [("questions", Some(&set.questions)), ("validation", set.validation.as_ref())] {
            for question in file.map_or_else(|| Ok(Vec::new()), |file| read(file))? {
                if let Some(set) = evaluated.get(&folded(&question.question)) {
                    return Err(refuse(&format!("training[{at}].{field}"), &question.question, set));
                }
            }
        }
    }
    for (at, stage) in experiment.stage.iter().enumerate() {
        for (place, file) in stage.data.iter().enumerate() {
            let lines =
                |error: &dyn std::fmt::Display| ExperimentError::Rows { path: file.clone(), reason: error.to_string() };
            for sample in SampleReader::open(file).map_err(|error| lines(&error))? {
                let question = sample.map_err(|error| lines(&error))?.question;
                if let Some(set) = evaluated.get(&folded(&question)) {
                    return Err(refuse(&format!("stage[{at}].data[{place}]"), &question, set));
                }
            }
        }
    }
    Ok(())
}

/// Folds differences of spelling that exports of one data set have.
fn folded(question: &str) -> String {
    let words: Vec<&str> = question.split_whitespace().collect();
    words.join(" ").trim_end_matches(['?', ' ']).to_lowercase()
}

/// Adds paths to the arguments of a job.
fn with_paths(args: &[OsString], paths: &[(&str, &Path)]) -> Vec<OsString> {
    let mut args = args.to_vec();
    for (flag, path) in paths {
        args.extend([OsString::from(flag), path.as_os_str().to_owned()]);
    }
    args
}

fn create_parent(path: &Path) -> Result<(), ExperimentError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    Ok(fs::create_dir_all(dir).map_err(RunError::io("create", dir))?)
}

/// Waits until no trainer runs in `run`: the trainer of a killed experiment ends only a moment after the experiment.
fn wait_for_trainer(run: &Path) -> Result<(), ExperimentError> {
    let started = Instant::now();
    while RunFolder::is_run(run) {
        match RunFolder::resume(run) {
            Err(RunError::Locked { .. }) if started.elapsed() < LEFT_BEHIND => thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
    Ok(())
}
