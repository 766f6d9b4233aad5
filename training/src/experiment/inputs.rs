//! Hashes of everything that the results of an experiment depend on.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use waymark_agent::Policy;
use waymark_index::Manifest;
use waymark_models::Arithmetic;
use waymark_models::catalog::Catalog;
use waymark_runtime::evaluate::{Baseline, Contender};

use super::error::ExperimentError;
use super::file::{Arm, Experiment};
use crate::hash;
use crate::policy_writer;
use crate::run::{RunError, durable};

/// Maximum depth of directories in a policy or a model.
const DEPTH: usize = 8;

/// Beginning of the name of an input that is a base model.
const MODEL: &str = "the model ";

/// Beginning of the name of an input that is the directory of a policy.
const POLICY: &str = "the policy ";

/// Files beside a policy that change no result. The first one is often written from the report of the experiment.
const BESIDE_POLICY: [&str; 2] = ["README.md", "report.html"];

/// Name of an input of experiments whose adapters begin from the seed of each run.
const ADAPTER_SEED: &str = "the seed of new adapters (that of the run, in earlier versions that of the recipe)";

/// Name of an input of experiments whose evaluations are given their arithmetic.
const ARITHMETIC: &str = "the arithmetic of evaluations";

/// Environment variables that choose the devices of jobs.
const DEVICES: [&str; 2] = ["WAYMARK_DEVICE", "WAYMARK_ROLLOUT_DEVICE"];

/// Hashes of an experiment's inputs. Everything is written before the first job starts, and reports quote
/// [`hash`](Self::hash).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inputs {
    /// Hash by input: the description, and each file that it names.
    pub(super) inputs: BTreeMap<String, String>,
    /// The description.
    pub(super) description: String,
}

impl Inputs {
    /// Hashes the inputs of the experiment in the file `path`.
    pub(super) fn of(experiment: &Experiment, path: &Path) -> Result<Inputs, ExperimentError> {
        let description = fs::read_to_string(path).map_err(RunError::io("read", path))?;
        let mut inputs = Inputs::hashes(experiment, path)?;
        inputs.insert("the description".to_owned(), blake3::hash(description.as_bytes()).to_hex().to_string());
        Ok(Inputs { inputs, description })
    }

    /// Hashes everything but the description, which is read only once.
    fn hashes(experiment: &Experiment, path: &Path) -> Result<BTreeMap<String, String>, ExperimentError> {
        let mut inputs = BTreeMap::new();
        // Another version may compute other scores from the same inputs.
        inputs.insert("the program's version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        // A GPU rounds differently. Variables that are not set are left out, so that earlier experiments resume.
        for name in DEVICES {
            if let Some(device) = env::var_os(name) {
                inputs.insert(format!("the variable {name}"), device.to_string_lossy().into_owned());
            }
        }
        let files = experiment.stage.iter().flat_map(|stage| stage.data.iter().chain([&stage.recipe]));
        let training = experiment.training.iter().flat_map(|set| set.validation.iter().chain([&set.questions]));
        let evaluation = experiment.evaluation.iter().map(|set| &set.questions);
        for file in files.chain(training).chain(evaluation) {
            inputs.insert(file.display().to_string(), hash_file(file)?);
        }
        let indexes = experiment.training.iter().map(|set| &set.index);
        for index in indexes.chain(experiment.evaluation.iter().map(|set| &set.index)) {
            inputs.insert(index.display().to_string(), index_state(index)?);
        }
        for (at, stage) in experiment.stage.iter().enumerate() {
            if let Some(dir) = stage.policy.as_ref().filter(|dir| !dir.is_dir()) {
                let field = format!("stage[{at}].policy");
                let reason = format!("{} is no directory", dir.display());
                return Err(ExperimentError::Field { path: path.to_owned(), field, reason });
            }
        }
        for (at, arm) in experiment.arm.iter().enumerate() {
            let Some(policy) = &arm.policy else { continue };
            let contender = contender(policy).map_err(|reason| {
                let field = format!("arm[{at}].policy");
                ExperimentError::Field { path: path.to_owned(), field, reason }
            })?;
            check_forced(arm, at, &contender, path)?;
        }
        // Arms may also name protocols and baselines, which are part of the program.
        let arms = experiment.arm.iter().filter_map(|arm| arm.policy.as_deref()).map(Path::new);
        let stages = experiment.stage.iter().filter_map(|stage| stage.policy.as_deref());
        for dir in arms.chain(stages).filter(|dir| dir.is_dir()) {
            inputs.insert(format!("{POLICY}{}", dir.display()), hash_policy(dir)?);
        }
        if let Some(model) = experiment.model.as_deref().filter(|model| is_local(model)) {
            inputs.insert(format!("{MODEL}{model}"), hash_path(Path::new(model))?);
        }
        Ok(inputs)
    }

    /// Notes that new adapters begin from the seed of each run. An experiment that earlier versions have begun would
    /// mix these runs with runs from one seed.
    pub(super) fn seed_adapters(&mut self) {
        self.inputs.insert(ADAPTER_SEED.to_owned(), "run".to_owned());
    }

    /// Notes the arithmetic of evaluations. An experiment that earlier versions have begun would mix evaluations of
    /// different arithmetic.
    pub(super) fn evaluate_in(&mut self, arithmetic: Arithmetic) {
        self.inputs.insert(ARITHMETIC.to_owned(), arithmetic.to_string());
    }

    /// Checks that nothing has changed since it was hashed, for the experiment in the directory `dir`.
    pub(super) fn check_unchanged(
        &self,
        experiment: &Experiment,
        path: &Path,
        dir: &Path,
    ) -> Result<(), ExperimentError> {
        let mut now = Inputs::hashes(experiment, path)?.into_iter();
        match now.find(|(name, hash)| self.inputs.get(name) != Some(hash)) {
            None => Ok(()),
            Some((what, _)) => Err(ExperimentError::Changed { dir: dir.to_owned(), what }),
        }
    }

    /// Returns the hash of all inputs.
    pub(super) fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (name, hash) in &self.inputs {
            // The lengths keep two different lists from having the same encoding.
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
            hasher.update(&(hash.len() as u64).to_le_bytes()).update(hash.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Writes the inputs to `path` or, if they were written before, checks that they are the same. Inputs in an earlier
    /// spelling are written again.
    pub(super) fn settle(&self, dir: &Path, path: &Path) -> Result<(), ExperimentError> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.write(path),
            text => text.map_err(RunError::io("read", path))?,
        };
        let written: Inputs = serde_json::from_str(&text).map_err(|error| RunError::io("read", path)(error.into()))?;
        let earlier = self.respelled(&written)?;
        let changed = |name: &&String| {
            let before = earlier.inputs.get(*name);
            // Earlier versions did not hash the model. Their experiments resume.
            let unknown = before.is_none() && name.starts_with(MODEL);
            !unknown && before != self.inputs.get(*name)
        };
        let mut names = earlier.inputs.keys().chain(self.inputs.keys());
        match names.find(changed) {
            None if written == *self => Ok(()),
            None => self.write(path),
            Some(what) => Err(ExperimentError::Changed { dir: dir.to_owned(), what: what.clone() }),
        }
    }

    fn write(&self, path: &Path) -> Result<(), ExperimentError> {
        let json = serde_json::to_string_pretty(self).map_err(|error| RunError::io("write", path)(error.into()))?;
        Ok(durable::write(path, json.as_bytes())?)
    }

    /// Returns the hashes of earlier inputs in the current spelling, to compare them with those that are computed now.
    /// Earlier versions hashed all files of a policy, under the name of its directory.
    fn respelled(&self, written: &Inputs) -> Result<Inputs, ExperimentError> {
        let mut earlier = written.clone();
        for (name, hash) in &self.inputs {
            let Some(dir) = name.strip_prefix(POLICY) else { continue };
            let Some(all) = earlier.inputs.remove(dir) else { continue };
            let name = if all == hash_path(Path::new(dir))? {
                name.clone()
            } else {
                format!("{name} (an earlier version hashed all its files, its README.md too)")
            };
            earlier.inputs.insert(name, hash.clone());
        }
        Ok(earlier)
    }
}

/// Returns the contender of a policy as `train eval` takes it: a directory, a protocol or a baseline. Fails with the
/// reason if the policy is none of them.
fn contender(policy: &str) -> Result<Contender, String> {
    let dir = Path::new(policy);
    if dir.is_dir() {
        let opened = Policy::open(dir).map_err(|error| error.to_string())?;
        return Ok(Contender::Policy(Box::new(opened)));
    }
    if let Some(baseline) = Baseline::named(policy) {
        return Ok(Contender::Baseline(baseline));
    }
    if let Some(builtin) = Policy::builtin(policy) {
        return Ok(Contender::Policy(Box::new(builtin)));
    }
    let protocols = Policy::BUILTIN.join(", ");
    let baselines = Baseline::names().collect::<Vec<_>>().join(", ");
    Err(format!("unknown policy {policy:?}: expected a directory, one of {protocols}, or a baseline: {baselines}"))
}

/// Refuses search options that the contender of the arm at this place ignores, because the report would call them
/// forced, and modes whose results it does not show.
pub(super) fn check_forced(arm: &Arm, at: usize, contender: &Contender, path: &Path) -> Result<(), ExperimentError> {
    let refuse = |field: &str, reason: &str| {
        let field = format!("arm[{at}].{field}");
        Err(ExperimentError::Field { path: path.to_owned(), field, reason: reason.to_owned() })
    };
    if arm.mode.is_some() && !contender.takes_mode() {
        return refuse("mode", "remove it: the policy does not search, or it is a baseline with a mode of its own");
    }
    let shown = contender.shows();
    if let Some(mode) = arm.mode.filter(|mode| !shown.contains(mode)) {
        let shown = shown.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let reason = format!("the policy does not show triples: remove it, or replace {mode} by one of {shown}");
        return refuse("mode", &reason);
    }
    if arm.k.is_some() && !contender.searches() {
        return refuse("k", "remove it: the policy does not search");
    }
    Ok(())
}

/// Returns `true` if a model is loaded from a path. Names in the catalog come first, as in its loading, and stand for
/// contents that the program knows.
fn is_local(model: &str) -> bool {
    Catalog::bundled().get(model).is_none() && Path::new(model).exists()
}

/// Hashes a file, or all files of a directory.
pub(super) fn hash_path(path: &Path) -> Result<String, ExperimentError> {
    if path.is_dir() { hash_files(path, &[]) } else { hash_file(path) }
}

/// Hashes the files of a policy, or of the policy of a run.
fn hash_policy(dir: &Path) -> Result<String, ExperimentError> {
    hash_files(&policy_writer::policy_dir(dir), &BESIDE_POLICY)
}

/// Hashes all files of a directory but those with these names.
fn hash_files(dir: &Path, left_out: &[&str]) -> Result<String, ExperimentError> {
    let mut hasher = blake3::Hasher::new();
    hash_dir(dir, Path::new(""), DEPTH, left_out, &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn hash_file(path: &Path) -> Result<String, ExperimentError> {
    Ok(hash::file(path).map_err(RunError::io("read", path))?)
}

/// Returns the state of an index: its current snapshot with its checksum, which covers all of its files.
fn index_state(dir: &Path) -> Result<String, ExperimentError> {
    let manifest =
        Manifest::read(dir).map_err(|error| RunError::io("read", dir)(io::Error::other(error.to_string())))?;
    Ok(format!("{} snapshot {} {:08x}", manifest.corpus, manifest.snapshot, manifest.checksum))
}

/// Hashes the names and contents of all files but those with the names `left_out`, in the order of their names.
fn hash_dir(
    root: &Path,
    below: &Path,
    depth: usize,
    left_out: &[&str],
    hasher: &mut blake3::Hasher,
) -> Result<(), ExperimentError> {
    let dir = root.join(below);
    if depth == 0 {
        let reason = io::Error::other(format!("more than {DEPTH} directories within each other"));
        return Err(RunError::io("read", &dir)(reason).into());
    }
    let entries = fs::read_dir(&dir).map_err(RunError::io("read", &dir))?;
    let mut names: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| below.join(entry.file_name())))
        .collect::<io::Result<_>>()
        .map_err(RunError::io("read", &dir))?;
    names.sort();
    for name in names {
        let path = root.join(&name);
        if path.is_dir() {
            hash_dir(root, &name, depth - 1, left_out, hasher)?;
        } else if !left_out.iter().any(|file| name.file_name().is_some_and(|own| own == *file)) {
            hasher.update(name.to_string_lossy().as_bytes()).update(&[0]).update(hash_file(&path)?.as_bytes());
        }
    }
    Ok(())
}
