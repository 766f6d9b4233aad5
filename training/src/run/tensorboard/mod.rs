//! TensorBoard event files, written without TensorFlow: `tensorboard --logdir RUN/events`.
//!
//! Every training process writes a file of its own, which begins by stating its first step. TensorBoard then discards
//! older events from that step on, so a resumed run shows one curve without repeated steps.

mod event;
mod record;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use self::event::EventPayload;
use super::{MetricsRow, RunError, durable};

/// Prefix of event file names, required by TensorBoard.
const NAME: &str = "events.out.tfevents.";

/// Writer of an event file.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates an event file in `dir` (itself created if missing) for a run that continues after `step`, 0 for a new
    /// run.
    ///
    /// # Errors
    /// On an I/O error.
    pub fn resume(dir: &Path, step: u64) -> Result<EventWriter, RunError> {
        fs::create_dir_all(dir).map_err(RunError::io("create", dir))?;
        let path = dir.join(format!("{NAME}{:010}.waymark", next(dir)?));
        let file = File::options().create_new(true).append(true).open(&path).map_err(RunError::io("create", &path))?;
        durable::sync_parent(&path)?;
        let mut board = EventWriter { path, file };
        board.write(0, EventPayload::Version)?;
        // Step 0 holds the measurements before training, so a new run starts there.
        board.write(if step == 0 { 0 } else { step.saturating_add(1) }, EventPayload::Start)?;
        Ok(board)
    }

    /// Writes the metrics of a row. The tag is `phase/name`, or `name` if it already contains a `/`. Values that are
    /// not finite are written too, and TensorBoard marks them.
    ///
    /// # Errors
    /// On an I/O error.
    pub fn append(&mut self, row: &MetricsRow) -> Result<(), RunError> {
        let tag = |name: &str| if name.contains('/') { name.to_owned() } else { format!("{}/{name}", row.phase) };
        let scalars: Vec<_> = row.values.iter().map(|(name, &value)| (tag(name), value)).collect();
        // An event without values would show up as an empty step.
        if scalars.is_empty() { Ok(()) } else { self.write(row.step, EventPayload::Scalars(&scalars)) }
    }

    fn write(&mut self, step: u64, what: EventPayload<'_>) -> Result<(), RunError> {
        let record = record::frame(&event::encode(now().as_secs_f64(), step, what));
        self.file.write_all(&record).map_err(RunError::io("write", &self.path))
    }
}

/// Returns the number of the next file. TensorBoard reads files in the order of their names, so a later file needs a
/// larger number even if the clock went back.
fn next(dir: &Path) -> Result<u64, RunError> {
    let mut next = now().as_secs();
    for entry in fs::read_dir(dir).map_err(RunError::io("read", dir))? {
        let name = entry.map_err(RunError::io("read", dir))?.file_name();
        let number = name.to_string_lossy().strip_prefix(NAME).and_then(|rest| rest.split('.').next()?.parse().ok());
        next = next.max(number.map_or(0, |number: u64| number.saturating_add(1)));
    }
    Ok(next)
}

/// Time since 1970. A clock before 1970 counts as 1970, because times are only displayed.
fn now() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
