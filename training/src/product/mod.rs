//! What training makes: a policy directory with its adapter, which `waymark serve --policy` and PEFT read as it is.

mod whole;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};
use waymark::agent::Policy;
use waymark_models::gradient::Learner;
use waymark_models::weights::Weights;

use crate::TrainError;
use crate::ledger::Ledger;
use crate::recipe::Recipe;
use crate::run::{Metrics, Row, RunError, durable};

pub use self::whole::flaw;

/// The folder of a model all of whose weights were learnt, and so its name.
const WHOLE: &str = Policy::MODEL;

/// The base model that was learnt from.
#[derive(Debug, Clone, Copy)]
pub struct Base<'a> {
    /// Where it lies.
    pub path: &'a Path,
    /// A name for its content: [`Weights::id`].
    pub id: &'a str,
}

/// How a policy was trained: what `[training]` of its file says.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// The command: `sft`, `grpo`, `dpo` or `blend`.
    pub kind: &'static str,
    /// Steps that lie behind these values.
    pub step: u64,
    /// Seconds trained.
    pub seconds: f64,
    /// What it learnt from: each file's name and the BLAKE3 of its content.
    pub data: Vec<(String, String)>,
    /// The record of the policy it began with.
    pub before: Option<Table>,
    /// The last numbers of each phase.
    pub rows: Vec<Row>,
}

impl Record {
    fn table(&self, recipe: &Recipe) -> Table {
        let mut table = Table::new();
        let mut add = |name: &str, value: Value| drop(table.insert(name.to_owned(), value));
        add("kind", self.kind.into());
        add("step", whole(self.step));
        add("seconds", Value::Float(self.seconds.round()));
        add("trainer", concat!("waymark-training ", env!("CARGO_PKG_VERSION")).into());
        // A list: two files may have the same name.
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
        // A recipe is made of what TOML can say, so it can always be said again.
        add("recipe", Value::try_from(recipe).unwrap_or_else(|error| Value::String(error.to_string())));
        if let Some(before) = &self.before {
            add("before", Value::Table(before.clone()));
        }
        table
    }
}

fn whole(value: u64) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Writes the policy with the learner's values into `dir`, in place of what is there: an adapter, or where all weights are
/// learnt a checkpoint `model` beside `policy.toml`, which takes from the base model what is no weight. The file names the weights
/// that it is served over by their id.
///
/// # Errors
/// When the system refuses, or all weights are learnt of a base that is no directory.
pub fn write(
    dir: &Path,
    learner: &Learner,
    recipe: &Recipe,
    record: &Record,
    base: Base<'_>,
) -> Result<(), TrainError> {
    let mut file = recipe.policy_table();
    file.insert("training".to_owned(), Value::Table(record.table(recipe)));
    durable::folder(dir, |part| {
        let id = match recipe.adapter {
            // It is written as a folder of its own, which takes the place of this one.
            Some(_) => {
                let name = recipe.hub.as_deref().unwrap_or(&recipe.base);
                learner.save_adapter_as(part, name, recipe.precision)?;
                base.id.to_owned()
            }
            None => {
                let model = part.join(WHOLE);
                whole::write(&model, learner, base.path)?;
                file.insert("base".to_owned(), WHOLE.into());
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

/// Writes the policy of a run with the learner's values, which are those of its best step.
///
/// # Errors
/// As [`write()`].
pub fn finish(
    ledger: &Ledger,
    learner: &Learner,
    recipe: &Recipe,
    kind: &'static str,
    data: Vec<(String, String)>,
    before: Option<Table>,
    base: Base<'_>,
) -> Result<(), TrainError> {
    let folder = ledger.folder();
    let all = Metrics::read(&folder.metrics())?;
    let step = ledger.state().best.map_or(ledger.state().step, |(step, _)| step);
    let mut last: BTreeMap<String, Row> = BTreeMap::new();
    for row in all.into_iter().filter(|row| row.step <= step) {
        last.insert(row.phase.clone(), row);
    }
    let rows = last.into_values().collect();
    let record = Record { kind, step, seconds: ledger.seconds(), data, before, rows };
    write(&folder.policy(), learner, recipe, &record, base)
}

/// The policy directory that `path` means: itself, or that of the run it is.
pub fn policy_dir(path: &Path) -> PathBuf {
    let inner = path.join("policy");
    if path.join("policy.toml").is_file() || !inner.is_dir() { path.to_owned() } else { inner }
}

/// Where the checkpoint of the policy in `dir` lies, if all its weights were learnt.
pub fn model_dir(dir: &Path) -> PathBuf {
    dir.join(WHOLE)
}

/// The name and the hash of a file that is learnt from.
///
/// # Errors
/// When it cannot be read.
pub fn fingerprint(path: &Path) -> Result<(String, String), RunError> {
    let mut hasher = blake3::Hasher::new();
    let file = std::fs::File::open(path).map_err(RunError::io("read", path))?;
    hasher.update_reader(file).map_err(RunError::io("read", path))?;
    let name = path.file_name().map_or_else(|| "data".into(), |name| name.to_string_lossy());
    Ok((name.into_owned(), hasher.finalize().to_hex().to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use waymark_models::gradient::{Precision, Tune};
    use waymark_models::kernel::Team;

    use super::*;
    use crate::tiny;

    /// The base model in `path`.
    fn base(path: &Path) -> Base<'_> {
        Base { path, id: "00ff" }
    }

    #[test]
    fn a_policy_reads_back_with_its_record_and_its_values() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), 48);
        let mut learner = tiny::learner(&weights);
        learner.change(|values, _| values.iter_mut().enumerate().for_each(|(at, value)| *value = at as f32 * 1e-4));
        let recipe = tiny::recipe(temp.path());
        let dir = temp.path().join("policy");
        let record = |step| Record {
            kind: "sft",
            step,
            data: ["00ff", "ff00"].map(|hash| ("samples.jsonl".to_owned(), hash.to_owned())).to_vec(),
            rows: vec![Row::new(step, "sft", 2.0).with("loss", 0.25)],
            ..Record::default()
        };
        // The second takes the place of the first.
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
    fn a_recipe_says_what_values_are_rounded_to() {
        let temp = tempfile::tempdir().unwrap();
        let mut learner = tiny::learner(&tiny::weights(temp.path(), 48));
        learner.change(|values, _| values.fill(0.1));
        let size = |precision| {
            let recipe = Recipe { precision, ..tiny::recipe(temp.path()) };
            let dir = temp.path().join("policy");
            write(&dir, &learner, &recipe, &Record::default(), base(temp.path())).unwrap();
            std::fs::metadata(dir.join("adapter_model.safetensors")).unwrap().len() as f64
        };
        let (whole, half) = (size(Precision::F32), size(Precision::F16));
        assert!((0.45..0.75).contains(&(half / whole)), "{half} of {whole} bytes");
    }

    #[test]
    fn all_weights_make_a_checkpoint_that_learns_on() {
        let temp = tempfile::tempdir().unwrap();
        let weights = tiny::weights(temp.path(), 48);
        assert!(flaw(temp.path()).unwrap().contains("[adapter]"));
        std::fs::write(temp.path().join("tokenizer.json"), "{}").unwrap();
        assert_eq!(flaw(temp.path()), None);
        let learner = |weights: &Weights| Learner::load(weights, Arc::new(Team::new(1)), &Tune::Full).unwrap();
        let mut first = learner(&weights);
        first.change(|values, _| values.iter_mut().for_each(|value| *value *= 0.5));
        let recipe = Recipe { adapter: None, ..tiny::recipe(temp.path()) };
        std::fs::write(temp.path().join("optimizer.bin"), "not of a model").unwrap();
        let dir = temp.path().join("policy");
        write(&dir, &first, &recipe, &Record::default(), base(temp.path())).unwrap();
        let learnt = Weights::open(&dir.join("model")).unwrap();
        assert_eq!(learner(&learnt).values(), first.values());
        assert!(dir.join("model/tokenizer.json").is_file() && !dir.join("model/optimizer.bin").exists());
        let policy = Policy::open(&dir).unwrap();
        assert_eq!((policy.base_id.clone(), policy.model_dir()), (Some(learnt.id()), Some(dir.join("model"))));
        assert_eq!((policy.base.as_deref(), policy.adapter_dir), (Some("model"), None));
    }

    /// Loads a policy as PEFT does, and prints the log-probabilities of the tokens it is given.
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

    /// The Python to ask: one with `peft`, `WAYMARK_PYTHON` or the one on the path.
    fn python() -> Option<String> {
        let python = std::env::var("WAYMARK_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let found = std::process::Command::new(&python).args(["-c", "import peft, transformers, torch"]).output();
        found.is_ok_and(|output| output.status.success()).then_some(python)
    }

    #[test]
    fn peft_reads_the_policy_and_agrees() {
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
        write(&policy, &learner, &tiny::recipe(temp.path()), &Record::default(), base(temp.path())).unwrap();
        let tokens: Vec<u32> = (0..40).map(|at| (at * at + 3) % 48).collect();
        let learnt = vec![true; tokens.len()];
        let packed = crate::pack::pack(&[crate::pack::Sequence { tokens: &tokens, learnt: &learnt }]);
        let own = learner.score(&packed.pack, false).unwrap();
        let base = learner.score(&packed.pack, true).unwrap();
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
        // The adapter says something, or its agreement would mean nothing.
        assert!(base.iter().zip(&theirs).any(|(base, theirs)| (base.logprob - theirs).abs() > 1e-2));
    }
}
