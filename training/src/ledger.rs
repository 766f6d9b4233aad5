//! A run while it goes on: its numbers, its checkpoints and its time.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use waymark_models::gradient::Learner;

use crate::TrainError;
use crate::optimizer::AdamW;
use crate::recipe::Optimizer;
use crate::run::{Board, Checkpoints, Folder, Learnt, Metrics, Row, RunError, State, report};

/// Looks on while a run goes on. A closure that takes rows is one.
pub trait Watch: Send {
    /// A row was noted. Breaks training off, if it wants to; what was done since the last checkpoint is then lost, as when
    /// the process is killed.
    fn row(&mut self, row: &Row) -> ControlFlow<()>;

    /// A checkpoint was written.
    ///
    /// # Errors
    /// Whatever is to end training.
    fn saved(&mut self, _ledger: &Ledger, _learner: &Learner) -> Result<(), TrainError> {
        Ok(())
    }
}

impl<F: FnMut(&Row) -> ControlFlow<()> + Send> Watch for F {
    fn row(&mut self, row: &Row) -> ControlFlow<()> {
        self(row)
    }
}

/// A run while it goes on.
#[derive(Debug)]
pub struct Ledger {
    folder: Folder,
    metrics: Metrics,
    board: Board,
    checkpoints: Checkpoints,
    state: State,
    ranker: Option<Learnt>,
    optimizer: Optimizer,
    began: Instant,
    before: f64,
}

impl Ledger {
    /// Begins the run in `dir`, or takes it up where its latest checkpoint stands. `facts` is what was asked for: a run
    /// goes on only under the same.
    ///
    /// # Errors
    /// When the folder cannot be used, or holds a run that was begun with other facts.
    pub fn open(dir: &Path, facts: &str, optimizer: Optimizer, keep_last: usize) -> Result<Self, TrainError> {
        let folder = if Folder::is_run(dir) { taken_up(dir, facts)? } else { Folder::create(dir, facts)? };
        let checkpoints = Checkpoints::new(folder.checkpoints(), keep_last);
        let latest = checkpoints.latest(optimizer)?;
        let (state, ranker) = latest.map(|latest| (latest.state, latest.ranker)).unwrap_or_default();
        let metrics = Metrics::resume(&folder.metrics(), state.step)?;
        let board = Board::resume(&folder.events(), state.step)?;
        let before = state.seconds;
        Ok(Self { folder, metrics, board, checkpoints, state, ranker, optimizer, began: Instant::now(), before })
    }

    /// Sets `learner` to the latest checkpoint and returns the optimizer to go on with; a new one for a new run.
    ///
    /// # Errors
    /// When the checkpoint cannot be read, or is of another adapter.
    pub fn restore(&self, learner: &mut Learner) -> Result<AdamW, TrainError> {
        match self.checkpoints.latest(self.optimizer)? {
            None => Ok(self.fresh(learner)),
            Some(checkpoint) => {
                learner.set_values(&checkpoint.values)?;
                Ok(checkpoint.optimizer)
            }
        }
    }

    /// An optimizer that has made no step.
    pub fn fresh(&self, learner: &Learner) -> AdamW {
        AdamW::new(self.optimizer, learner.values().len())
    }

    /// What is learnt beside the policy: as it was [set](Self::set_ranker), and else as the latest checkpoint has it.
    pub fn ranker(&self) -> Option<&Learnt> {
        self.ranker.as_ref()
    }

    /// A new one of so many values, all zero, whose optimizer has made no step.
    pub fn fresh_ranker(&self, values: usize) -> Learnt {
        Learnt { values: vec![0.0; values], optimizer: AdamW::new(self.optimizer, values) }
    }

    /// Takes it over for the checkpoints that follow; with nothing, there is none in them.
    pub fn set_ranker(&mut self, ranker: Option<Learnt>) {
        self.ranker = ranker;
    }

    /// Sets `learner` to the best checkpoint, where anything was measured.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn restore_best(&self, learner: &mut Learner) -> Result<(), TrainError> {
        if let Some((step, _)) = self.state.best {
            learner.set_values(&self.checkpoints.load(step, self.optimizer)?.values)?;
        }
        Ok(())
    }

    /// Its folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// How far it has come.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Seconds trained so far, over all processes.
    pub fn seconds(&self) -> f64 {
        self.before + self.began.elapsed().as_secs_f64()
    }

    /// A row for the numbers of `step`.
    pub fn row(&self, step: u64, phase: &str) -> Row {
        Row::new(step, phase, self.seconds())
    }

    /// Writes a row down.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn note(&mut self, row: &Row) -> Result<(), TrainError> {
        self.metrics.append(row)?;
        Ok(self.board.append(row)?)
    }

    /// Counts a step as made.
    pub fn advance(&mut self, step: u64) {
        self.state.step = step;
    }

    /// Cuts samples of steps behind the current one off `samples.jsonl`, and what a killed process left of a line.
    ///
    /// # Errors
    /// When the system refuses, or a line that is not torn is no sample.
    pub fn trim_samples(&self) -> Result<(), TrainError> {
        #[derive(serde::Deserialize)]
        struct Line {
            step: u64,
        }
        let path = self.folder.samples();
        let file = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            file => file.map_err(RunError::io("open", &path))?,
        };
        let (mut lines, mut text, mut length) = (BufReader::new(&file), Vec::new(), 0);
        for number in 1.. {
            text.clear();
            lines.read_until(b'\n', &mut text).map_err(RunError::io("read", &path))?;
            // What does not end in a newline was torn off, or is the end.
            if !text.ends_with(b"\n") {
                break;
            }
            let line: Line = serde_json::from_slice(&text).map_err(|error| RunError::Line {
                path: path.clone(),
                line: number,
                reason: error.to_string(),
            })?;
            // Samples stand in the order of their steps.
            if line.step > self.state.step {
                break;
            }
            length += text.len() as u64;
        }
        Ok(file.set_len(length).map_err(RunError::io("cut", &path))?)
    }

    /// Remembers a measurement after the current step, of which more is better; whether it is the best so far. One that
    /// was made in the first `before` steps is no longer looked at: it was of something else.
    pub fn measured(&mut self, value: f64, before: u64) -> bool {
        let better = self.state.best.is_none_or(|(step, best)| step <= before || value > best);
        if better {
            self.state.best = Some((self.state.step, value));
        }
        better
    }

    /// Writes a checkpoint of the current step, and the report anew. A report that cannot be drawn ends nothing: what it
    /// is drawn from is there, for `train report`.
    ///
    /// # Errors
    /// When the system refuses the checkpoint.
    pub fn save(&mut self, learner: &Learner, optimizer: &AdamW) -> Result<(), TrainError> {
        self.state.seconds = self.seconds();
        self.metrics.sync()?;
        self.checkpoints.save(&self.state, learner.values(), optimizer, self.ranker.as_ref())?;
        if let Err(error) = report(&self.folder) {
            tracing::warn!(step = self.state.step, %error, "no report was drawn");
        }
        Ok(())
    }
}

/// Opens a run that is there, if it was begun with the same facts.
fn taken_up(dir: &Path, facts: &str) -> Result<Folder, TrainError> {
    let folder = Folder::resume(dir)?;
    let path = folder.facts();
    let before = std::fs::read_to_string(&path).map_err(RunError::io("read", &path))?;
    if before == facts {
        return Ok(folder);
    }
    let (mut old, mut new) = (before.lines(), facts.lines());
    let (before, now) = loop {
        let pair = (old.next(), new.next());
        if pair.0 != pair.1 {
            let line = |side: Option<&str>| side.unwrap_or("nothing").to_owned();
            break (line(pair.0), line(pair.1));
        }
        // Equal to the last line, and yet not the same: white space at the end.
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

    fn at(step: u64, dir: &Path) -> Ledger {
        let mut ledger = Ledger::open(dir, "test = 1\n", Optimizer::default(), 1).unwrap();
        ledger.advance(step);
        ledger
    }

    #[test]
    fn samples_of_later_steps_and_a_torn_line_are_cut_off() {
        let temp = tempfile::tempdir().unwrap();
        let ledger = at(2, &temp.path().join("run"));
        ledger.trim_samples().unwrap();
        let (path, line) = (ledger.folder().samples(), |step: u64| format!("{{\"step\": {step}, \"id\": \"x\"}}\n"));
        let kept = [1, 1, 2].map(line).concat();
        for rest in [String::new(), "{\"step\": 2".to_owned(), line(3), line(3) + &line(4), line(3) + "{\"st"] {
            std::fs::write(&path, kept.clone() + &rest).unwrap();
            ledger.trim_samples().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), kept, "{rest:?}");
        }
    }

    #[test]
    fn a_finished_line_that_is_no_sample_is_not_cut_off() {
        let temp = tempfile::tempdir().unwrap();
        let ledger = at(2, &temp.path().join("run"));
        let text = "{\"step\": 1}\n{\"stop\": 1}\n{\"step\": 2}\n";
        std::fs::write(ledger.folder().samples(), text).unwrap();
        let error = ledger.trim_samples().unwrap_err().to_string();
        assert!(error.contains("samples.jsonl, line 2: ") && error.contains("step"), "{error}");
        assert_eq!(std::fs::read_to_string(ledger.folder().samples()).unwrap(), text);
    }

    #[test]
    fn the_best_is_that_of_what_is_measured_now() {
        let temp = tempfile::tempdir().unwrap();
        let mut ledger = at(1, &temp.path().join("run"));
        assert!(ledger.measured(0.5, 0));
        ledger.advance(2);
        assert!(!ledger.measured(0.5, 0));
        ledger.advance(3);
        assert!(ledger.measured(0.2, 2));
        assert_eq!(ledger.state().best, Some((3, 0.2)));
        ledger.advance(4);
        assert!(!ledger.measured(0.1, 2));
    }

    #[test]
    fn a_report_that_cannot_be_drawn_ends_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let mut ledger = at(1, &temp.path().join("run"));
        // What is no row cannot be drawn.
        std::fs::write(ledger.folder().metrics(), "nonsense\n").unwrap();
        let weights = crate::tiny::weights(temp.path(), 48);
        let learner = crate::tiny::learner(&weights);
        ledger.save(&learner, &AdamW::new(Optimizer::default(), learner.values().len())).unwrap();
        assert!(ledger.folder().checkpoints().join("step-000001.safetensors").is_file());
        assert!(!ledger.folder().report().exists());
    }
}
