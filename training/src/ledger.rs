//! A training run in progress: its metrics, checkpoints and elapsed time.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use waymark_models::gradient::Learner;

use crate::TrainError;
use crate::optimizer::AdamW;
use crate::recipe::Optimizer;
use crate::run::{
    Checkpoints, EventWriter, MetricsFile, MetricsRow, RankerState, RunError, RunFolder, RunState, report, respelled,
};

/// Observer of a training run. Implemented by closures that take a metrics row.
pub trait RunObserver: Send {
    /// Called after a metrics row was written. Returning [`ControlFlow::Break`] stops training; work since the last
    /// checkpoint is then lost, as when the process is killed.
    fn row(&mut self, row: &MetricsRow) -> ControlFlow<()>;

    /// Called after a checkpoint was written.
    ///
    /// # Errors
    /// Any error returned here stops training.
    fn saved(&mut self, _ledger: &RunLedger, _learner: &Learner) -> Result<(), TrainError> {
        Ok(())
    }
}

impl<F: FnMut(&MetricsRow) -> ControlFlow<()> + Send> RunObserver for F {
    fn row(&mut self, row: &MetricsRow) -> ControlFlow<()> {
        self(row)
    }
}

/// A training run in progress.
#[derive(Debug)]
pub struct RunLedger {
    folder: RunFolder,
    metrics: MetricsFile,
    board: EventWriter,
    checkpoints: Checkpoints,
    state: RunState,
    ranker: Option<RankerState>,
    optimizer: Optimizer,
    started: Instant,
    before: f64,
}

impl RunLedger {
    /// Starts the run in `dir`, or resumes the run there from its latest checkpoint. `facts` is the text of
    /// `run.toml`; a run resumes only with the same text.
    ///
    /// # Errors
    /// If the directory cannot be used, or holds a run that was started with other facts.
    pub fn open(dir: &Path, facts: &str, optimizer: Optimizer, keep_last: usize) -> Result<Self, TrainError> {
        let folder = if RunFolder::is_run(dir) { open_existing(dir, facts)? } else { RunFolder::create(dir, facts)? };
        let checkpoints = Checkpoints::new(folder.checkpoints(), keep_last);
        let latest = checkpoints.latest(optimizer)?;
        let (state, ranker) = latest.map(|latest| (latest.state, latest.ranker)).unwrap_or_default();
        let metrics = MetricsFile::resume(&folder.metrics(), state.step)?;
        let board = EventWriter::resume(&folder.events(), state.step)?;
        // Time of earlier processes of this run.
        let before = state.seconds;
        Ok(Self { folder, metrics, board, checkpoints, state, ranker, optimizer, started: Instant::now(), before })
    }

    /// Loads the latest checkpoint into `learner` and returns its optimizer. A new run gets a new optimizer.
    ///
    /// # Errors
    /// If the checkpoint cannot be read or belongs to another adapter.
    pub fn restore(&self, learner: &mut Learner) -> Result<AdamW, TrainError> {
        match self.checkpoints.latest(self.optimizer)? {
            None => Ok(self.new_optimizer(learner)),
            Some(checkpoint) => {
                learner.set_values(&checkpoint.values)?;
                Ok(checkpoint.optimizer)
            }
        }
    }

    /// Creates an optimizer that has made no step.
    pub fn new_optimizer(&self, learner: &Learner) -> AdamW {
        AdamW::new(self.optimizer, learner.values().len())
    }

    /// State of the ranker: the value passed to [`set_ranker`](Self::set_ranker), or else the one in the latest
    /// checkpoint. `None` if the run trains no ranker.
    pub fn ranker(&self) -> Option<&RankerState> {
        self.ranker.as_ref()
    }

    /// Creates the state of a ranker with `values` parameters, all zero, and a new optimizer.
    pub fn new_ranker(&self, values: usize) -> RankerState {
        RankerState { values: vec![0.0; values], optimizer: AdamW::new(self.optimizer, values) }
    }

    /// Sets the ranker state that later checkpoints store. `None` stores no ranker.
    pub fn set_ranker(&mut self, ranker: Option<RankerState>) {
        self.ranker = ranker;
    }

    /// Loads the best checkpoint into `learner`. Does nothing if the run has no measurement yet.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub fn restore_best(&self, learner: &mut Learner) -> Result<(), TrainError> {
        if let Some((step, _)) = self.state.best {
            learner.set_values(&self.checkpoints.load(step, self.optimizer)?.values)?;
        }
        Ok(())
    }

    /// Directory of the run.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Progress of the run.
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// Seconds of training so far, summed over all processes of the run.
    pub fn seconds(&self) -> f64 {
        self.before + self.started.elapsed().as_secs_f64()
    }

    /// Creates an empty metrics row for `step`.
    pub fn row(&self, step: u64, phase: &str) -> MetricsRow {
        MetricsRow::new(step, phase, self.seconds())
    }

    /// Writes a row to `metrics.jsonl` and to the TensorBoard events.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_row(&mut self, row: &MetricsRow) -> Result<(), TrainError> {
        self.metrics.append(row)?;
        Ok(self.board.append(row)?)
    }

    /// Records that `step` is complete.
    pub fn advance(&mut self, step: u64) {
        self.state.step = step;
    }

    /// Removes samples of later steps than the current one from `samples.jsonl`, and an unfinished last line.
    ///
    /// # Errors
    /// If the file cannot be changed, or a finished line is not a sample.
    pub fn trim_samples(&self) -> Result<(), TrainError> {
        #[derive(serde::Deserialize)]
        struct SampleLine {
            step: u64,
        }
        let path = self.folder.samples();
        let file = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            file => file.map_err(RunError::io("open", &path))?,
        };
        let mut lines = BufReader::new(&file);
        let mut text = Vec::new();
        let mut length = 0;
        for number in 1.. {
            text.clear();
            lines.read_until(b'\n', &mut text).map_err(RunError::io("read", &path))?;
            // A last line without a newline is unfinished: the process was killed while writing it.
            if !text.ends_with(b"\n") {
                break;
            }
            let line: SampleLine = serde_json::from_slice(&text).map_err(|error| RunError::Line {
                path: path.clone(),
                line: number,
                reason: error.to_string(),
            })?;
            // Samples are in the order of their steps.
            if line.step > self.state.step {
                break;
            }
            length += text.len() as u64;
        }
        // `length` ends after the last sample to keep.
        Ok(file.set_len(length).map_err(RunError::io("cut", &path))?)
    }

    /// Writes `row`, a measurement of the current step, and reports it to `observer`. Its `value` (higher is better)
    /// decides on the best step after the first `before` steps.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn add_measurement(
        &mut self,
        row: &MetricsRow,
        value: f64,
        before: u64,
        observer: &mut dyn RunObserver,
    ) -> Result<ControlFlow<()>, TrainError> {
        // The initial policy is measured for comparison, but has no checkpoint that could be the best one.
        if self.state.step > 0 {
            self.record_measurement(value, before);
        }
        self.write_row(row)?;
        Ok(observer.row(row))
    }

    /// Records a measurement of the current step (higher is better) and returns `true` if it is the best so far. A
    /// best value from one of the first `before` steps no longer counts, because it measured another reward.
    fn record_measurement(&mut self, value: f64, before: u64) -> bool {
        let better = self.state.best.is_none_or(|(step, best)| step <= before || value > best);
        if better {
            self.state.best = Some((self.state.step, value));
        }
        better
    }

    /// Writes a checkpoint of the current step and redraws the report. A report that fails to draw is only logged:
    /// `train report` can draw it later from the stored metrics.
    ///
    /// # Errors
    /// If the checkpoint cannot be written.
    pub fn save(&mut self, learner: &Learner, optimizer: &AdamW) -> Result<(), TrainError> {
        self.state.seconds = self.seconds();
        // Metrics first: rows of the steps in a checkpoint must be on disk before the checkpoint is.
        self.metrics.sync()?;
        self.checkpoints.save(&self.state, learner.values(), optimizer, self.ranker.as_ref())?;
        if let Err(error) = report(&self.folder) {
            tracing::warn!(step = self.state.step, %error, "failed to draw the report");
        }
        Ok(())
    }
}

/// Opens an existing run, if it was started with the same facts, possibly in an earlier spelling.
fn open_existing(dir: &Path, facts: &str) -> Result<RunFolder, TrainError> {
    let folder = RunFolder::resume(dir)?;
    let path = folder.facts();
    let before = respelled(&std::fs::read_to_string(&path).map_err(RunError::io("read", &path))?);
    if before == facts {
        return Ok(folder);
    }
    let mut old = before.lines();
    let mut new = facts.lines();
    let (before, now) = loop {
        let pair = (old.next(), new.next());
        if pair.0 != pair.1 {
            let line = |side: Option<&str>| side.unwrap_or("nothing").to_owned();
            break (line(pair.0), line(pair.1));
        }
        // All lines are equal, so only white space at the end of the file differs.
        if pair.0.is_none() {
            return Ok(folder);
        }
    };
    Err(TrainError::Changed { dir: dir.to_owned(), before, now })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(step: u64, dir: &Path) -> RunLedger {
        let mut ledger = RunLedger::open(dir, "test = 1\n", Optimizer::default(), 1).unwrap();
        ledger.advance(step);
        ledger
    }

    #[test]
    fn trimming_removes_later_samples_and_an_unfinished_line() {
        let temp = tempfile::tempdir().unwrap();
        let ledger = at(2, &temp.path().join("run"));
        ledger.trim_samples().unwrap();
        let path = ledger.folder().samples();
        let line = |step: u64| format!("{{\"step\": {step}, \"id\": \"x\"}}\n");
        let kept = [1, 1, 2].map(line).concat();
        for rest in [String::new(), "{\"step\": 2".to_owned(), line(3), line(3) + &line(4), line(3) + "{\"st"] {
            std::fs::write(&path, kept.clone() + &rest).unwrap();
            ledger.trim_samples().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), kept, "{rest:?}");
        }
    }

    #[test]
    fn finished_lines_that_are_not_samples_are_errors() {
        let temp = tempfile::tempdir().unwrap();
        let ledger = at(2, &temp.path().join("run"));
        let text = "{\"step\": 1}\n{\"stop\": 1}\n{\"step\": 2}\n";
        std::fs::write(ledger.folder().samples(), text).unwrap();
        let error = ledger.trim_samples().unwrap_err().to_string();
        assert!(error.contains("samples.jsonl, line 2: ") && error.contains("step"), "{error}");
        assert_eq!(std::fs::read_to_string(ledger.folder().samples()).unwrap(), text);
    }

    #[test]
    fn earlier_measurements_of_another_reward_do_not_count() {
        let temp = tempfile::tempdir().unwrap();
        let mut ledger = at(1, &temp.path().join("run"));
        assert!(ledger.record_measurement(0.5, 0));
        ledger.advance(2);
        assert!(!ledger.record_measurement(0.5, 0));
        ledger.advance(3);
        assert!(ledger.record_measurement(0.2, 2));
        assert_eq!(ledger.state().best, Some((3, 0.2)));
        ledger.advance(4);
        assert!(!ledger.record_measurement(0.1, 2));
    }

    #[test]
    fn a_run_with_earlier_spellings_resumes() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("run");
        let open = |facts: &str| RunLedger::open(&dir, facts, Optimizer::default(), 1);
        let earlier = "[policy.retrieval]\ngraph = \"graph_r1\"\n\n[reward.tearag.relevance]\ncentre = 0.4\n";
        let current = earlier.replace("graph_r1", "graphrag_r1").replace("centre", "center");
        drop(open(earlier).unwrap());
        drop(open(&current).unwrap());
        let error = open(&current.replace("0.4", "0.5")).unwrap_err().to_string();
        assert!(error.contains("center = 0.4") && error.contains("center = 0.5"), "{error}");
    }

    #[test]
    fn report_failures_do_not_stop_training() {
        let temp = tempfile::tempdir().unwrap();
        let mut ledger = at(1, &temp.path().join("run"));
        // Break the metrics file, so that the report cannot be drawn.
        std::fs::write(ledger.folder().metrics(), "nonsense\n").unwrap();
        let weights = crate::tiny::weights(temp.path(), 48);
        let learner = crate::tiny::learner(&weights);
        ledger.save(&learner, &AdamW::new(Optimizer::default(), learner.values().len())).unwrap();
        assert!(ledger.folder().checkpoints().join("step-000001.safetensors").is_file());
        assert!(!ledger.folder().report().exists());
    }
}
