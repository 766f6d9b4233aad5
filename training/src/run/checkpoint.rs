//! Checkpoints: trained values, optimizer moments and progress, from which a killed run resumes.
//!
//! A checkpoint is one safetensors file, so it is written atomically. All randomness in training derives from the
//! seed and the step, so a checkpoint needs neither a generator's state nor a position in the data.

use std::fs;
use std::path::PathBuf;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use super::{RunError, durable};
use crate::optimizer::AdamW;
use crate::recipe::Optimizer;

/// Progress of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunState {
    /// Number of steps made.
    pub step: u64,
    /// Seconds of training, summed over all processes.
    pub seconds: f64,
    /// Best measurement so far: its step and its value.
    #[serde(with = "bits")]
    pub best: Option<(u64, f64)>,
}

/// Serialization of a measurement by its bits. A decimal number could be read back as a neighboring `f64`, and a
/// resumed run would then choose another best step.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type BestMeasurement = Option<(u64, f64)>;

    pub(super) fn serialize<S: Serializer>(best: &BestMeasurement, serializer: S) -> Result<S::Ok, S::Error> {
        best.map(|(step, value)| (step, value.to_bits())).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BestMeasurement, D::Error> {
        let best: Option<(u64, u64)> = Option::deserialize(deserializer)?;
        Ok(best.map(|(step, bits)| (step, f64::from_bits(bits))))
    }
}

/// Checkpoint of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunCheckpoint {
    /// Progress of the run.
    pub state: RunState,
    /// Trained values.
    pub values: Vec<f32>,
    /// Optimizer with its moments.
    pub optimizer: AdamW,
    /// Preference model, if the run trains one.
    pub ranker: Option<RankerState>,
}

/// Trained values with their optimizer.
#[derive(Debug, Clone, PartialEq)]
pub struct RankerState {
    /// Trained values.
    pub values: Vec<f32>,
    /// Optimizer with its moments.
    pub optimizer: AdamW,
}

/// Checkpoints of a run: the latest few and the best.
#[derive(Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    last: usize,
}

const STATE: &str = "state";
const UPDATES: &str = "updates";
/// Present only if the run trains a preference model.
const RANKER_UPDATES: &str = "ranker_updates";

impl Checkpoints {
    /// Uses the checkpoints in `dir` and keeps the `last` latest ones.
    pub fn new(dir: PathBuf, last: usize) -> Self {
        Self { dir, last: last.max(1) }
    }

    /// Writes a checkpoint, and removes those that are neither among the latest nor the best.
    ///
    /// # Errors
    /// On an I/O error. Older checkpoints are then unchanged.
    pub fn save(
        &self,
        state: &RunState,
        values: &[f32],
        optimizer: &AdamW,
        ranker: Option<&RankerState>,
    ) -> Result<(), RunError> {
        fs::create_dir_all(&self.dir).map_err(RunError::io("create", &self.dir))?;
        let path = self.path(state.step);
        let (first, second) = optimizer.moments();
        // The values are written without a copy, since they may be all weights of a model. The format is
        // little-endian, and so is every supported CPU.
        let mut tensors = vec![("values", values), ("first", first), ("second", second)];
        if let Some(RankerState { values, optimizer }) = ranker {
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
        let metadata = [(STATE, state_text), (UPDATES, optimizer.steps().to_string())];
        let more = ranker.map(|ranker| (RANKER_UPDATES, ranker.optimizer.steps().to_string()));
        let metadata = metadata.into_iter().chain(more).map(|(name, text)| (name.to_owned(), text)).collect();
        let file = safetensors::serialize(views, Some(metadata)).map_err(|error| refuse(&error))?;
        // The new checkpoint is complete before old ones are removed, so a kill never leaves fewer than before.
        durable::write(&path, &file)?;
        self.prune(state)
    }

    /// Loads the latest checkpoint. `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn latest(&self, settings: Optimizer) -> Result<Option<RunCheckpoint>, RunError> {
        self.steps()?.last().map(|&step| self.load(step, settings)).transpose()
    }

    /// Loads the checkpoint of `step`.
    ///
    /// # Errors
    /// If it does not exist or cannot be read.
    pub fn load(&self, step: u64, settings: Optimizer) -> Result<RunCheckpoint, RunError> {
        let path = self.path(step);
        let bytes = fs::read(&path).map_err(RunError::io("read", &path))?;
        read(&bytes, settings).map_err(|reason| RunError::Checkpoint { path, reason })
    }

    /// Steps that have a checkpoint, in ascending order.
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

    fn prune(&self, state: &RunState) -> Result<(), RunError> {
        let steps = self.steps()?;
        let best = state.best.map(|(step, _)| step);
        // The best checkpoint stays even if it is not among the latest: the policy is made from it.
        for &step in steps.iter().rev().skip(self.last).filter(|&&step| Some(step) != best) {
            let path = self.path(step);
            fs::remove_file(&path).map_err(RunError::io("remove", &path))?;
        }
        Ok(())
    }
}

fn read(bytes: &[u8], settings: Optimizer) -> Result<RunCheckpoint, String> {
    let text = |error: safetensors::SafeTensorError| error.to_string();
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(text)?;
    let facts = header.metadata().as_ref().ok_or("the checkpoint has no metadata")?;
    let fact = |name: &str| facts.get(name).ok_or_else(|| format!("the metadata has no `{name}`"));
    let state = serde_json::from_str(fact(STATE)?).map_err(|error| error.to_string())?;
    let tensors = SafeTensors::deserialize(bytes).map_err(text)?;
    let tensor = |name: &str| {
        let view = tensors.tensor(name).map_err(text)?;
        let whole = view.dtype() == Dtype::F32;
        if whole { Ok(floats(view.data())) } else { Err(format!("`{name}` is not f32")) }
    };
    let learned = |[values, first, second]: [&str; 3], updates: &str| -> Result<RankerState, String> {
        let updates = updates.parse::<u64>().map_err(|_| "the number of updates is not an integer".to_owned())?;
        let values = tensor(values)?;
        let first = tensor(first)?;
        let second = tensor(second)?;
        if first.len() != values.len() || second.len() != values.len() {
            return Err(format!(
                "{} values, but {} first and {} second moments",
                values.len(),
                first.len(),
                second.len()
            ));
        }
        Ok(RankerState { values, optimizer: AdamW::resume(settings, first, second, updates) })
    };
    let RankerState { values, optimizer } = learned(["values", "first", "second"], fact(UPDATES)?)?;
    let ranker_updates = facts.get(RANKER_UPDATES);
    let ranker =
        ranker_updates.map(|updates| learned(["ranker", "ranker_first", "ranker_second"], updates)).transpose()?;
    Ok(RunCheckpoint { state, values, optimizer, ranker })
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

    fn made(step: u64, best: Option<(u64, f64)>) -> RunCheckpoint {
        let mut values = vec![0.5, -1.0, step as f32];
        let mut optimizer = AdamW::new(Optimizer::default(), 3);
        for _ in 0..=step {
            optimizer.step(&mut values, &mut [0.1, -0.2, 0.3], 0.01);
        }
        RunCheckpoint { state: RunState { step, seconds: 1.5, best }, values, optimizer, ranker: None }
    }

    fn save(checkpoints: &Checkpoints, made: &RunCheckpoint) {
        checkpoints.save(&made.state, &made.values, &made.optimizer, made.ranker.as_ref()).unwrap();
    }

    #[test]
    fn checkpoints_load_as_saved() {
        let temp = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(temp.path().join("checkpoints"), 2);
        assert_eq!(checkpoints.latest(Optimizer::default()).unwrap(), None);
        save(&checkpoints, &made(3, None));
        save(&checkpoints, &made(12, Some((12, 0.25))));
        assert_eq!(checkpoints.latest(Optimizer::default()).unwrap(), Some(made(12, Some((12, 0.25)))));
        assert_eq!(checkpoints.load(3, Optimizer::default()).unwrap(), made(3, None));
        let RunCheckpoint { values, optimizer, .. } = made(5, None);
        let with_ranker = RunCheckpoint { ranker: Some(RankerState { values, optimizer }), ..made(14, None) };
        save(&checkpoints, &with_ranker);
        assert_eq!(checkpoints.latest(Optimizer::default()).unwrap(), Some(with_ranker));
    }

    proptest! {
        #[test]
        fn best_measurements_round_trip_bit_for_bit(step in any::<u64>(), value in any::<f64>().prop_filter("a number", |v| !v.is_nan())) {
            let state = RunState { step, seconds: 0.5, best: Some((step, value)) };
            let text = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(serde_json::from_str::<RunState>(&text).unwrap(), state);
        }
    }

    #[test]
    fn pruning_keeps_the_latest_and_the_best() {
        let temp = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(temp.path().to_owned(), 2);
        for step in 1..=6 {
            save(&checkpoints, &made(step, Some((step.min(2), 0.5))));
        }
        assert_eq!(checkpoints.steps().unwrap(), [2, 5, 6]);
    }

    #[test]
    fn damaged_checkpoints_are_refused_by_name() {
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
