//! What a killed run resumes from: the values with the optimizer's moments, and how far it had come.
//!
//! A checkpoint is one safetensors file, so that it is there as a whole or not at all. Everything random in training
//! derives from the seed and the step, so neither the state of a generator nor a position in the data is kept.

use std::fs;
use std::path::PathBuf;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use super::{RunError, durable};
use crate::optimizer::AdamW;
use crate::recipe::Optimizer;

/// How far a run has come.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct State {
    /// Steps made.
    pub step: u64,
    /// Seconds trained, over all processes.
    pub seconds: f64,
    /// The best measurement so far, and after which step it was made.
    #[serde(with = "bits")]
    pub best: Option<(u64, f64)>,
}

/// A measurement by its bits: decimal digits may be read back as a neighbour, and a run that is resumed would then find
/// another step to be the best.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Best = Option<(u64, f64)>;

    pub(super) fn serialize<S: Serializer>(best: &Best, serializer: S) -> Result<S::Ok, S::Error> {
        best.map(|(step, value)| (step, value.to_bits())).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Best, D::Error> {
        let best: Option<(u64, u64)> = Option::deserialize(deserializer)?;
        Ok(best.map(|(step, bits)| (step, f64::from_bits(bits))))
    }
}

/// What a run resumes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// How far it had come.
    pub state: State,
    /// What was learnt.
    pub values: Vec<f32>,
    /// The optimizer's memory.
    pub optimizer: AdamW,
    /// What is learnt beside the policy, where something is.
    pub ranker: Option<Learnt>,
}

/// Values that are learnt, with their optimizer's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Learnt {
    /// The values.
    pub values: Vec<f32>,
    /// The optimizer's memory.
    pub optimizer: AdamW,
}

/// The checkpoints of a run: the latest few and the best.
#[derive(Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    last: usize,
}

const STATE: &str = "state";
const UPDATES: &str = "updates";
/// Only where there is a ranker.
const RANKER_UPDATES: &str = "ranker_updates";

impl Checkpoints {
    /// Those in `dir`, of which the `last` latest are kept.
    pub fn new(dir: PathBuf, last: usize) -> Self {
        Self { dir, last: last.max(1) }
    }

    /// Writes one, and removes those that are neither among the latest nor the best.
    ///
    /// # Errors
    /// When the system refuses. Older checkpoints then still stand.
    pub fn save(
        &self,
        state: &State,
        values: &[f32],
        optimizer: &AdamW,
        ranker: Option<&Learnt>,
    ) -> Result<(), RunError> {
        fs::create_dir_all(&self.dir).map_err(RunError::io("create", &self.dir))?;
        let path = self.path(state.step);
        let (first, second) = optimizer.moments();
        // As they lie there, for they may be all weights of a model: who computes here is little-endian, as the format.
        let mut tensors = vec![("values", values), ("first", first), ("second", second)];
        if let Some(Learnt { values, optimizer }) = ranker {
            let (first, second) = optimizer.moments();
            tensors.extend([("ranker", values.as_slice()), ("ranker_first", first), ("ranker_second", second)]);
        }
        let refuse =
            |error: &dyn std::fmt::Display| RunError::Checkpoint { path: path.clone(), reason: error.to_string() };
        let mut views = Vec::with_capacity(tensors.len());
        for (name, floats) in tensors {
            let view = TensorView::new(Dtype::F32, vec![floats.len()], bytemuck::cast_slice(floats));
            views.push((name, view.map_err(|error| refuse(&error))?));
        }
        let state_text = serde_json::to_string(state).map_err(|error| refuse(&error))?;
        let facts = [(STATE, state_text), (UPDATES, optimizer.steps().to_string())];
        let more = ranker.map(|ranker| (RANKER_UPDATES, ranker.optimizer.steps().to_string()));
        let facts = facts.into_iter().chain(more).map(|(name, text)| (name.to_owned(), text)).collect();
        let file = safetensors::serialize(views, Some(facts)).map_err(|error| refuse(&error))?;
        durable::write(&path, &file)?;
        self.prune(state)
    }

    /// The latest one that was written; `None` where none was.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn latest(&self, settings: Optimizer) -> Result<Option<Checkpoint>, RunError> {
        self.steps()?.last().map(|&step| self.load(step, settings)).transpose()
    }

    /// The one after `step`.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn load(&self, step: u64, settings: Optimizer) -> Result<Checkpoint, RunError> {
        let path = self.path(step);
        let bytes = fs::read(&path).map_err(RunError::io("read", &path))?;
        read(&bytes, settings).map_err(|reason| RunError::Checkpoint { path, reason })
    }

    /// The steps that there are checkpoints of, in order.
    fn steps(&self) -> Result<Vec<u64>, RunError> {
        let files = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files.map_err(RunError::io("read", &self.dir))?,
        };
        let mut steps = Vec::new();
        for file in files {
            let name = file.map_err(RunError::io("read", &self.dir))?.file_name();
            let step = name.to_str().and_then(|name| name.strip_prefix("step-")?.strip_suffix(".safetensors"));
            steps.extend(step.and_then(|step| step.parse::<u64>().ok()));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    fn path(&self, step: u64) -> PathBuf {
        self.dir.join(file_name(step))
    }

    fn prune(&self, state: &State) -> Result<(), RunError> {
        let steps = self.steps()?;
        let best = state.best.map(|(step, _)| step);
        for &step in steps.iter().rev().skip(self.last).filter(|&&step| Some(step) != best) {
            let path = self.path(step);
            fs::remove_file(&path).map_err(RunError::io("remove", &path))?;
        }
        Ok(())
    }
}

fn read(bytes: &[u8], settings: Optimizer) -> Result<Checkpoint, String> {
    let told = |error: safetensors::SafeTensorError| error.to_string();
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(told)?;
    let facts = header.metadata().as_ref().ok_or("it does not say how far the run had come")?;
    let fact = |name: &str| facts.get(name).ok_or_else(|| format!("it does not say `{name}`"));
    let state = serde_json::from_str(fact(STATE)?).map_err(|error| error.to_string())?;
    let tensors = SafeTensors::deserialize(bytes).map_err(told)?;
    let tensor = |name: &str| {
        let view = tensors.tensor(name).map_err(told)?;
        let whole = view.dtype() == Dtype::F32;
        if whole { Ok(floats(view.data())) } else { Err(format!("`{name}` is not in f32")) }
    };
    let learnt = |[values, first, second]: [&str; 3], updates: &str| -> Result<Learnt, String> {
        let updates = updates.parse::<u64>().map_err(|_| "the number of updates is none".to_owned())?;
        let (values, first, second) = (tensor(values)?, tensor(first)?, tensor(second)?);
        if first.len() != values.len() || second.len() != values.len() {
            return Err(format!("{} values with {} and {} moments", values.len(), first.len(), second.len()));
        }
        Ok(Learnt { values, optimizer: AdamW::resume(settings, first, second, updates) })
    };
    let Learnt { values, optimizer } = learnt(["values", "first", "second"], fact(UPDATES)?)?;
    let beside = facts.get(RANKER_UPDATES);
    let ranker = beside.map(|updates| learnt(["ranker", "ranker_first", "ranker_second"], updates)).transpose()?;
    Ok(Checkpoint { state, values, optimizer, ranker })
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect()
}

fn file_name(step: u64) -> String {
    format!("step-{step:06}.safetensors")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn made(step: u64, best: Option<(u64, f64)>) -> Checkpoint {
        let mut values = vec![0.5, -1.0, step as f32];
        let mut optimizer = AdamW::new(Optimizer::default(), 3);
        for _ in 0..=step {
            optimizer.step(&mut values, &mut [0.1, -0.2, 0.3], 0.01);
        }
        Checkpoint { state: State { step, seconds: 1.5, best }, values, optimizer, ranker: None }
    }

    fn save(checkpoints: &Checkpoints, made: &Checkpoint) {
        checkpoints.save(&made.state, &made.values, &made.optimizer, made.ranker.as_ref()).unwrap();
    }

    #[test]
    fn what_is_loaded_is_what_was_saved() {
        let temp = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(temp.path().join("checkpoints"), 2);
        assert_eq!(checkpoints.latest(Optimizer::default()).unwrap(), None);
        save(&checkpoints, &made(3, None));
        save(&checkpoints, &made(12, Some((12, 0.25))));
        assert_eq!(checkpoints.latest(Optimizer::default()).unwrap(), Some(made(12, Some((12, 0.25)))));
        assert_eq!(checkpoints.load(3, Optimizer::default()).unwrap(), made(3, None));
        let Checkpoint { values, optimizer, .. } = made(5, None);
        let beside = Checkpoint { ranker: Some(Learnt { values, optimizer }), ..made(14, None) };
        save(&checkpoints, &beside);
        assert_eq!(checkpoints.latest(Optimizer::default()).unwrap(), Some(beside));
    }

    proptest! {
        #[test]
        fn the_best_is_read_back_to_the_bit(step in any::<u64>(), value in any::<f64>().prop_filter("a number", |v| !v.is_nan())) {
            let state = State { step, seconds: 0.5, best: Some((step, value)) };
            let text = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
        }
    }

    #[test]
    fn the_latest_and_the_best_are_kept() {
        let temp = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(temp.path().to_owned(), 2);
        for step in 1..=6 {
            save(&checkpoints, &made(step, Some((step.min(2), 0.5))));
        }
        assert_eq!(checkpoints.steps().unwrap(), [2, 5, 6]);
    }

    #[test]
    fn a_damaged_one_is_refused_by_name() {
        let temp = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(temp.path().to_owned(), 2);
        save(&checkpoints, &made(1, None));
        let path = temp.path().join(file_name(1));
        let bytes = fs::read(&path).unwrap();
        for length in [0, 7, 40, bytes.len() - 1] {
            fs::write(&path, &bytes[..length]).unwrap();
            let error = checkpoints.latest(Optimizer::default()).unwrap_err().to_string();
            assert!(error.contains("step-000001"), "{error}");
        }
    }
}
