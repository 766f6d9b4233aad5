//! Events for TensorBoard, written without TensorFlow: `tensorboard --logdir RUN/events`.
//!
//! Every process that trains writes a file of its own, which begins by saying from which step on it counts. A run that
//! was killed and resumed so shows one curve, without the steps that were done twice.

mod event;
mod record;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use self::event::What;
use super::{Row, RunError, durable};

/// The names of event files begin so; TensorBoard looks for it.
const NAME: &str = "events.out.tfevents.";

/// A file of events, open at its end.
#[derive(Debug)]
pub struct Board {
    path: PathBuf,
    file: File,
}

impl Board {
    /// Begins a file in the folder of events, which is created if it is missing, for a run that goes on behind `step`
    /// (0 for a new one).
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn resume(dir: &Path, step: u64) -> Result<Board, RunError> {
        fs::create_dir_all(dir).map_err(RunError::io("create", dir))?;
        let path = dir.join(format!("{NAME}{:010}.waymark", next(dir)?));
        let file = File::options().create_new(true).append(true).open(&path).map_err(RunError::io("create", &path))?;
        durable::sync_parent(&path)?;
        let mut board = Board { path, file };
        board.write(0, What::Version)?;
        // Step 0 is what a run measures before it begins.
        board.write(if step == 0 { 0 } else { step.saturating_add(1) }, What::Start)?;
        Ok(board)
    }

    /// Writes the numbers of a row, as `phase/name`, but `name` for what is named with a `/` already. Numbers that are
    /// not finite are written too: TensorBoard marks them.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn append(&mut self, row: &Row) -> Result<(), RunError> {
        let tag = |name: &str| if name.contains('/') { name.to_owned() } else { format!("{}/{name}", row.phase) };
        let scalars: Vec<_> = row.values.iter().map(|(name, &value)| (tag(name), value)).collect();
        if scalars.is_empty() { Ok(()) } else { self.write(row.step, What::Scalars(&scalars)) }
    }

    fn write(&mut self, step: u64, what: What<'_>) -> Result<(), RunError> {
        let record = record::frame(&event::encode(now().as_secs_f64(), step, what));
        self.file.write_all(&record).map_err(RunError::io("write", &self.path))
    }
}

/// TensorBoard reads the files of a folder by name, so a later one needs a larger number, whatever the clock says.
fn next(dir: &Path) -> Result<u64, RunError> {
    let mut next = now().as_secs();
    for entry in fs::read_dir(dir).map_err(RunError::io("read", dir))? {
        let name = entry.map_err(RunError::io("read", dir))?.file_name();
        let number = name.to_string_lossy().strip_prefix(NAME).and_then(|rest| rest.split('.').next()?.parse().ok());
        next = next.max(number.map_or(0, |number: u64| number.saturating_add(1)));
    }
    Ok(next)
}

/// Since 1970. A clock before that is as good as 1970: the times are only shown.
fn now() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
