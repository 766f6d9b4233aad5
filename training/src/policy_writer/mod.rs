//! Output of training: a policy directory that `waymark serve --policy` and PEFT load as it is.

mod full_model;
mod weights_fingerprint;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};
use waymark_agent::Policy;
use waymark_models::gradient::Learner;
use waymark_models::weights::Weights;

use crate::TrainError;
use crate::hash;
use crate::ledger::RunLedger;
use crate::recipe::Recipe;
use crate::run::{MetricsFile, MetricsRow, RunError, durable};

pub use self::full_model::base_model_problem;
pub use self::weights_fingerprint::{add_fingerprint, add_fingerprint_if_possible};

/// Subdirectory of a fully trained model, relative to its policy.
const MODEL_DIR: &str = Policy::MODEL;

/// Base model of a training run.
#[derive(Debug, Clone, Copy)]
pub struct BaseModel<'a> {
    /// Directory of the model.
    pub path: &'a Path,
    /// Identifier of its weights: [`Weights::id`].
    pub id: &'a str,
    /// Token IDs of the [text of fingerprints](waymark_runtime::fingerprint::probe) in its vocabulary.
    pub probe: &'a [u32],
}

/// Record of how a policy was trained, written as `[training]` in `policy.toml`.
#[derive(Debug, Clone, Default)]
pub struct TrainingRecord {
    /// Command: `sft`, `grpo`, `dpo` or `blend`.
    pub kind: &'static str,
    /// Number of steps that led to these values.
    pub step: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// Training data: file names with the BLAKE3 hash of their contents.
    pub data: Vec<(String, String)>,
    /// Record of the initial policy, if it was a trained one.
    pub before: Option<Table>,
    /// Last metrics row of each phase.
    pub rows: Vec<MetricsRow>,
}

impl TrainingRecord {
    fn table(&self, recipe: &Recipe) -> Table {
        let mut table = Table::new();
        let mut add = |name: &str, value: Value| drop(table.insert(name.to_owned(), value));
        add("kind", self.kind.into());
        add("step", whole(self.step));
        add("seconds", Value::Float(self.seconds.round()));
        add("trainer", concat!("waymark-training ", env!("CARGO_PKG_VERSION")).into());
        // A list, because two files may have the same name.
        let file = |(name, hash): &(String, String)| {
            let entries = [("file", name), ("blake3", hash)];
            Value::Table(entries.into_iter().map(|(key, text)| (key.to_owned(), Value::String(text.clone()))).collect())
        };
        add("data", Value::Array(self.data.iter().map(file).collect()));
        let mut numbers = Table::new();
        for row in &self.rows {
            let values = row.values.iter().map(|(name, &value)| (name.clone(), Value::Float(value)));
            let values = [("step".to_owned(), whole(row.step))].into_iter().chain(values);
            numbers.insert(row.phase.clone(), Value::Table(values.collect()));
        }
        add("numbers", Value::Table(numbers));
        // A recipe consists of TOML values only, so serialization cannot fail in practice.
        add("recipe", Value::try_from(recipe).unwrap_or_else(|error| Value::String(error.to_string())));
        if let Some(before) = &self.before {
            add("earlier", Value::Array(lineage(before)));
        }
        table
    }
}

/// Returns the records of all earlier trainings, the latest first: the record of the initial policy, then those that it
/// lists.
fn lineage(record: &Table) -> Vec<Value> {
    let mut own = record.clone();
    let listed = own.remove("earlier");
    let mut records = vec![Value::Table(own)];
    if let Some(Value::Array(earlier)) = listed {
        records.extend(earlier);
    }
    records
}

fn whole(value: u64) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Writes the policy with the learner's values into `dir`, replacing an existing directory. An adapter is stored next
/// to `policy.toml`. A fully trained model becomes a checkpoint in `model`, which copies everything but the weights
/// from the base model. The file identifies the weights it must be served with by their ID. It has no fingerprint:
/// [`add_fingerprint`] adds one.
///
/// # Errors
/// If a file cannot be written, or all weights were trained and the base model is not a directory.
pub fn write(
    dir: &Path,
    learner: &Learner,
    recipe: &Recipe,
    record: &TrainingRecord,
    base: BaseModel<'_>,
) -> Result<(), TrainError> {
    let mut file = recipe.policy_table();
    file.insert("training".to_owned(), Value::Table(record.table(recipe)));
    durable::folder(dir, |part| {
        // The policy names the weights it must be served with: those of the base model for an adapter, its own
        // otherwise.
        let id = match recipe.adapter {
            // The adapter is written as a directory of its own, which replaces `part`.
            Some(_) => {
                let name = recipe.hub.as_deref().unwrap_or(&recipe.base);
                learner.save_adapter_as(part, name, recipe.precision)?;
                base.id.to_owned()
            }
            None => {
                let model = part.join(MODEL_DIR);
                full_model::write(&model, learner, base.path)?;
                file.insert("base".to_owned(), MODEL_DIR.into());
                Weights::open(&model)?.id()
            }
        };
        file.insert("base_id".to_owned(), id.into());
        let text =
            toml::to_string_pretty(&file).map_err(|error| TrainError::Nothing(format!("policy.toml: {error}")))?;
        std::fs::write(part.join("policy.toml"), text).map_err(RunError::io("write", &part.join("policy.toml")))?;
        Ok(())
    })
}

/// Writes the policy of a run from the learner's values, which are those of the best step.
///
/// # Errors
/// Same as [`write()`].
pub fn finish(
    ledger: &RunLedger,
    learner: &Learner,
    recipe: &Recipe,
    kind: &'static str,
    data: Vec<(String, String)>,
    before: Option<Table>,
    base: BaseModel<'_>,
) -> Result<(), TrainError> {
    let folder = ledger.folder();
    let all = MetricsFile::read(&folder.metrics())?;
    let step = ledger.state().best.map_or(ledger.state().step, |(step, _)| step);
    let mut last: BTreeMap<String, MetricsRow> = BTreeMap::new();
    // Rows after the best step do not describe the saved values.
    for row in all.into_iter().filter(|row| row.step <= step) {
        last.insert(row.phase.clone(), row);
    }
    let rows = last.into_values().collect();
    let record = TrainingRecord { kind, step, seconds: ledger.seconds(), data, before, rows };
    write(&folder.policy(), learner, recipe, &record, base)
}

/// Returns the policy directory for `path`: `path` itself, or the policy of the run in `path`.
pub fn policy_dir(path: &Path) -> PathBuf {
    let inner = path.join("policy");
    if path.join("policy.toml").is_file() || !inner.is_dir() { path.to_owned() } else { inner }
}

/// Path of the checkpoint of the policy in `dir`, if all its weights were trained.
pub fn model_dir(dir: &Path) -> PathBuf {
    dir.join(MODEL_DIR)
}

/// Returns the name and the BLAKE3 hash of a training file.
///
/// # Errors
/// If the file cannot be read.
pub fn fingerprint(path: &Path) -> Result<(String, String), RunError> {
    let hash = hash::file(path).map_err(RunError::io("read", path))?;
    let name = path.file_name().map_or_else(|| "data".into(), |name| name.to_string_lossy());
    Ok((name.into_owned(), hash))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use waymark_models::gradient::{Precision, ScoredModel, Tune};
    use waymark_models::kernel::Team;

    use super::*;
    use crate::tiny;

    /// Base model in `path`.
    fn base(path: &Path) -> BaseModel<'_> {
        BaseModel { path, id: "00ff", probe: &[3, 1, 4, 1, 5, 9] }
    }

    #[test]
    fn a_policy_reads_back_with_its_record_and_its_values() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), 48);
        let mut learner = tiny::learner(&weights);
        learner.change(|values, _| values.iter_mut().enumerate().for_each(|(at, value)| *value = at as f32 * 1e-4));
        let recipe = tiny::recipe(temp.path());
        let dir = temp.path().join("policy");
        let record = |step| TrainingRecord {
            kind: "sft",
            step,
            data: ["00ff", "ff00"].map(|hash| ("samples.jsonl".to_owned(), hash.to_owned())).to_vec(),
            rows: vec![MetricsRow::new(step, "sft", 2.0).with("loss", 0.25)],
            ..TrainingRecord::default()
        };
        // The second policy replaces the first.
        for step in [7, 9] {
            write(&dir, &learner, &recipe, &record(step), base(temp.path())).unwrap();
        }
        let policy = Policy::open(&dir).unwrap();
        assert_eq!((policy.name.as_str(), policy.protocol.name()), ("tiny", "routerag"));
        assert_eq!((policy.base.as_deref(), policy.base_id.as_deref()), (temp.path().to_str(), Some("00ff")));
        assert_eq!(policy.adapter_dir.as_deref(), Some(dir.as_path()));
        let training = policy.training.unwrap();
        assert_eq!(training["step"].as_integer(), Some(9));
        assert_eq!(training["numbers"]["sft"]["loss"].as_float(), Some(0.25));
        let data = training["data"].as_array().unwrap();
        assert!(data.len() == 2 && data.iter().all(|file| file["file"].as_str() == Some("samples.jsonl")));
        assert_eq!(data[1]["blake3"].as_str(), Some("ff00"));
        assert_eq!(training["recipe"].clone().try_into::<Recipe>().unwrap(), recipe);
        let mut other = tiny::learner(&weights);
        other.load_adapter(&dir).unwrap();
        assert_eq!(other.values(), learner.values());
        assert_eq!((policy_dir(temp.path()), policy_dir(&dir)), (dir.clone(), dir));
    }

    #[test]
    fn earlier_trainings_are_listed_from_the_latest_to_the_first() {
        let recipe = tiny::recipe(Path::new("base"));
        let train = |kind, before| TrainingRecord { kind, before, ..TrainingRecord::default() }.table(&recipe);
        let third = train("dpo", Some(train("grpo", Some(train("sft", None)))));
        let kinds: Vec<_> = third["earlier"].as_array().unwrap().iter().map(|record| record["kind"].as_str()).collect();
        assert_eq!(kinds, [Some("grpo"), Some("sft")]);
        assert!(third["earlier"][0].get("earlier").is_none());
    }

    #[test]
    fn recipes_set_the_precision_of_saved_adapters() {
        let temp = tempfile::tempdir().unwrap();
        let mut learner = tiny::learner(&tiny::weights(temp.path(), 48));
        learner.change(|values, _| values.fill(0.1));
        let size = |precision| {
            let recipe = Recipe { precision, ..tiny::recipe(temp.path()) };
            let dir = temp.path().join("policy");
            write(&dir, &learner, &recipe, &TrainingRecord::default(), base(temp.path())).unwrap();
            std::fs::metadata(dir.join("adapter_model.safetensors")).unwrap().len() as f64
        };
        let whole = size(Precision::F32);
        let half = size(Precision::F16);
        // More than half, because the header has the same size in both.
        assert!((0.45..0.75).contains(&(half / whole)), "{half} of {whole} bytes");
    }

    #[test]
    fn full_checkpoints_can_be_trained_further() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), 48);
        assert!(base_model_problem(temp.path()).unwrap().contains("[adapter]"));
        std::fs::write(temp.path().join("tokenizer.json"), "{}").unwrap();
        assert_eq!(base_model_problem(temp.path()), None);
        let learner = |weights: &Weights| Learner::load(weights, Arc::new(Team::new(1)), &Tune::Full).unwrap();
        let mut first = learner(&weights);
        first.change(|values, _| values.iter_mut().for_each(|value| *value *= 0.5));
        let recipe = Recipe { adapter: None, ..tiny::recipe(temp.path()) };
        // A file that is no part of a model must not be copied with it.
        std::fs::write(temp.path().join("optimizer.bin"), "not of a model").unwrap();
        let dir = temp.path().join("policy");
        write(&dir, &first, &recipe, &TrainingRecord::default(), base(temp.path())).unwrap();
        let learned = Weights::open(&dir.join("model")).unwrap();
        assert_eq!(learner(&learned).values(), first.values());
        assert!(dir.join("model/tokenizer.json").is_file() && !dir.join("model/optimizer.bin").exists());
        let policy = Policy::open(&dir).unwrap();
        assert_eq!((policy.base_id.clone(), policy.model_dir()), (Some(learned.id()), Some(dir.join("model"))));
        assert_eq!((policy.base.as_deref(), policy.adapter_dir), (Some("model"), None));
    }

    /// Python program that loads a policy with PEFT and prints the log-probabilities of given tokens.
    const PEFT: &str = r#"
import json, sys
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

base, policy, tokens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
model = PeftModel.from_pretrained(model, policy).eval()
with torch.no_grad():
    scores = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
print(json.dumps([scores[at, token].item() for at, token in enumerate(tokens[1:])]))
"#;

    /// Python interpreter with `peft`: `WAYMARK_PYTHON`, or the one on the path.
    fn python() -> Option<String> {
        let python = std::env::var("WAYMARK_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let found = std::process::Command::new(&python).args(["-c", "import peft, transformers, torch"]).output();
        found.is_ok_and(|output| output.status.success()).then_some(python)
    }

    #[test]
    fn peft_computes_the_same_log_probabilities() {
        let Some(python) = python() else {
            println!("skipped: no Python with peft (WAYMARK_PYTHON)");
            return;
        };
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), 48);
        let mut learner = tiny::learner(&weights);
        learner.change(|values, _| {
            values.iter_mut().enumerate().for_each(|(at, value)| *value += ((at * 7) % 13) as f32 * 0.01 - 0.06);
        });
        let policy = temp.path().join("policy");
        write(&policy, &learner, &tiny::recipe(temp.path()), &TrainingRecord::default(), base(temp.path())).unwrap();
        let tokens: Vec<u32> = (0..40).map(|at| (at * at + 3) % 48).collect();
        let learned = vec![true; tokens.len()];
        let packed = crate::pack::pack(&[crate::pack::TrainingSequence { tokens: &tokens, learned: &learned }]);
        let own = learner.score(&packed.pack, ScoredModel::Adapted).unwrap();
        let base = learner.score(&packed.pack, ScoredModel::Base).unwrap();
        let output = std::process::Command::new(python)
            .arg("-c")
            .arg(PEFT)
            .args([temp.path(), &policy])
            .arg(serde_json::to_string(&tokens).unwrap())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let theirs: Vec<f32> = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(theirs.len(), own.len());
        assert!(own.iter().zip(&theirs).all(|(own, theirs)| (own.logprob - theirs).abs() < 1e-4));
        // A zero adapter would agree trivially.
        assert!(base.iter().zip(&theirs).any(|(base, theirs)| (base.logprob - theirs).abs() > 1e-2));
    }
}
