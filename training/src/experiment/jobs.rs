//! Jobs of an experiment: each stage and each arm, for each seed that it depends on.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::file::{Arm, Experiment, Stage, StageKind};

/// A process to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    /// Name, which is unique in the experiment and names its log.
    pub(super) name: String,
    pub(super) kind: JobKind,
    /// Arguments of the trainer, without those for its output.
    pub(super) args: Vec<OsString>,
}

/// Kind of a job, with the place of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobKind {
    /// Training into a run's directory, which is resumed where it stopped.
    Training(PathBuf),
    /// Evaluation into a directory that appears when it is complete.
    Evaluation(PathBuf),
}

/// Directories of an experiment, and the base models of its stages.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) dir: PathBuf,
    /// Base model by stage. Stages that train all weights have none: their policies bring their own.
    bases: BTreeMap<String, String>,
}

impl Layout {
    /// Creates a layout without base models.
    pub(super) fn new(dir: PathBuf) -> Layout {
        Layout { dir, bases: BTreeMap::new() }
    }

    /// Adds the base model of a stage.
    pub(super) fn add_base(&mut self, stage: &Stage, base: &str) {
        self.bases.insert(stage.name.clone(), base.to_owned());
    }

    /// Returns `true` if the stage begins a new adapter for each seed, whose initial values then depend on that seed. A
    /// stage with a seed of its own is trained once, and keeps the adapter's seed of its recipe.
    pub(super) fn seeds_adapter(&self, stage: &Stage) -> bool {
        let begins = stage.init.is_none() && stage.policy.is_none() && self.bases.contains_key(&stage.name);
        begins && stage.seed.is_none() && !stage.overrides_adapter_seed()
    }

    /// Directory of a stage's run.
    pub(super) fn run(&self, stage: &Stage, seed: u64) -> PathBuf {
        self.dir.join("runs").join(stage_name(stage, seed))
    }

    /// Directory of an arm's evaluation.
    pub(super) fn evaluation(&self, arm: &Arm, seed: Option<u64>) -> PathBuf {
        self.dir.join("evaluations").join(arm_name(arm, seed))
    }

    /// Path of the file that marks a training as finished.
    pub(super) fn mark(&self, job: &Job) -> PathBuf {
        self.dir.join("done").join(&job.name)
    }

    /// Log of a job.
    pub(super) fn log(&self, job: &Job) -> PathBuf {
        self.dir.join("logs").join(format!("{}.log", job.name))
    }
}

fn stage_name(stage: &Stage, seed: u64) -> String {
    if stage.seed.is_some() { stage.name.clone() } else { format!("{}-seed{seed}", stage.name) }
}

fn arm_name(arm: &Arm, seed: Option<u64>) -> String {
    seed.map_or_else(|| arm.name.clone(), |seed| format!("{}-seed{seed}", arm.name))
}

/// Returns all jobs in an order in which each one's inputs exist: all trainings, then all evaluations. A stage that
/// several arms begin from is one job per seed.
pub(super) fn jobs(experiment: &Experiment, layout: &Layout) -> Vec<Job> {
    let mut jobs = trainings(experiment, layout);
    jobs.extend(evaluations(experiment, layout));
    jobs
}

/// Returns the evaluations.
pub(super) fn evaluations(experiment: &Experiment, layout: &Layout) -> Vec<Job> {
    let of = |arm| experiment.seeds_of(arm).into_iter().map(move |seed| evaluation(experiment, layout, arm, seed));
    experiment.arm.iter().flat_map(of).collect()
}

/// Returns the trainings.
pub(super) fn trainings(experiment: &Experiment, layout: &Layout) -> Vec<Job> {
    let mut jobs = Vec::new();
    for stage in experiment.stage.iter().filter(|stage| is_needed(experiment, stage)) {
        let seeds = stage.seed.map_or_else(|| experiment.seeds.clone(), |seed| vec![seed]);
        jobs.extend(seeds.into_iter().map(|seed| training(experiment, layout, stage, seed)));
    }
    jobs
}

/// Returns `true` if an arm evaluates the stage or one that begins from it.
fn is_needed(experiment: &Experiment, stage: &Stage) -> bool {
    let name = Some(&stage.name);
    let follows = |other: &Stage| other.init.as_ref() == name || other.reference.as_ref() == name;
    // Stages begin from earlier ones only, so this ends.
    let needed = |other: &Stage| follows(other) && is_needed(experiment, other);
    experiment.arm.iter().any(|arm| arm.stage.as_ref() == name) || experiment.stage.iter().any(needed)
}

fn training(experiment: &Experiment, layout: &Layout, stage: &Stage, seed: u64) -> Job {
    let mut args = Arguments::new(stage.kind.command());
    args.path("--recipe", &stage.recipe);
    stage.set.iter().for_each(|set| args.text("--set", set));
    args.text("--set", &format!("seed={}", stage.seed.unwrap_or(seed)));
    if layout.seeds_adapter(stage) {
        args.text("--set", &format!("adapter.seed={seed}"));
    }
    for (flag, from) in [("--init", &stage.init), ("--reference", &stage.reference)] {
        if let Some(earlier) = from.as_ref().and_then(|name| experiment.stage(name)) {
            args.path(flag, &layout.run(earlier, seed));
        }
    }
    stage.policy.iter().for_each(|dir| args.path("--init", dir));
    if let Some(part) = stage.part {
        args.text("--stage", &part.to_string());
    }
    // Supervised training reads finished trajectories, and needs neither questions nor an index.
    if stage.kind == StageKind::Sft {
        stage.data.iter().for_each(|path| args.path("--data", path));
    } else {
        for set in &experiment.training {
            args.path("--questions", &set.questions);
            args.path("--index", &set.index);
            set.validation.iter().for_each(|path| args.path("--validation", path));
        }
        experiment.embedder.iter().for_each(|name| args.text("--embedder", name));
    }
    let run = layout.run(stage, seed);
    Job { name: format!("train-{}", stage_name(stage, seed)), kind: JobKind::Training(run), args: args.0 }
}

fn evaluation(experiment: &Experiment, layout: &Layout, arm: &Arm, seed: Option<u64>) -> Job {
    let mut args = Arguments::new("eval");
    match (&arm.policy, arm.stage.as_ref().and_then(|name| experiment.stage(name))) {
        (_, Some(stage)) => {
            // A stage with its own seed has one run, which an arm evaluates without a seed.
            args.path("--policy", &layout.run(stage, seed.or(stage.seed).unwrap_or_default()).join("policy"));
            layout.bases.get(&stage.name).into_iter().for_each(|base| args.text("--model", base));
        }
        (policy, None) => args.text("--policy", policy.as_deref().unwrap_or_default()),
    }
    if let Some(model) = experiment.model.as_ref().filter(|_| arm.policy.is_some()) {
        args.text("--model", model);
    }
    if let Some(arithmetic) = experiment.arithmetic {
        args.text("--arithmetic", &arithmetic.to_string());
    }
    if let Some(mode) = arm.mode {
        args.text("--mode", &mode.to_string());
    }
    if let Some(k) = arm.k {
        args.text("--k", &k.to_string());
    }
    for set in &experiment.evaluation {
        args.path("--questions", &set.questions);
        args.path("--index", &set.index);
    }
    experiment.embedder.iter().for_each(|name| args.text("--embedder", name));
    let kind = JobKind::Evaluation(layout.evaluation(arm, seed));
    Job { name: format!("eval-{}", arm_name(arm, seed)), kind, args: args.0 }
}

/// Arguments of a command.
struct Arguments(Vec<OsString>);

impl Arguments {
    fn new(command: &str) -> Arguments {
        Arguments(vec![command.into()])
    }

    fn text(&mut self, flag: &str, value: &str) {
        // One argument, so that a value that begins with a dash is no flag.
        self.0.push(format!("{flag}={value}").into());
    }

    fn path(&mut self, flag: &str, path: &Path) {
        let mut argument = OsString::from(format!("{flag}="));
        argument.push(path);
        self.0.push(argument);
    }
}
