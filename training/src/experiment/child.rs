//! A job's process. It ends with its parent, even if the parent is killed: its standard input is a pipe that only the
//! parent holds open, and `train --tied` exits when that pipe ends.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::ExperimentError;
use crate::run::RunError;

/// Number of bytes of a log that an error quotes.
const TAIL: u64 = 2000;

/// Environment variables that jobs do not see. They would change results without a word in the description or the
/// report.
// Not `WAYMARK_EMBEDDER`: an index refuses embedders other than its own, and does not know the URL of an endpoint.
const REMOVED: [&str; 4] = ["WAYMARK_ARITHMETIC", "WAYMARK_KV", "WAYMARK_MODEL", "WAYMARK_QUERY_ARITHMETIC"];

/// Variable with the device of jobs. Without it, `train eval` would try a GPU in each job anew, and take the CPU where
/// that fails.
const DEVICE: &str = "WAYMARK_DEVICE";

/// Program that runs jobs.
#[derive(Debug, Clone)]
pub(super) struct Trainer {
    /// Path of the program `train`.
    pub(super) program: PathBuf,
    /// Arguments of every job: those of the host.
    pub(super) host_args: Vec<OsString>,
}

impl Trainer {
    /// Runs a job to its end, with its output appended to `log`.
    ///
    /// # Errors
    /// [`ExperimentError::Job`] with the end of the log if the process fails.
    pub(super) fn run(&self, job: &str, args: &[OsString], log: &Path) -> Result<(), ExperimentError> {
        if let Some(dir) = log.parent() {
            fs::create_dir_all(dir).map_err(RunError::io("create", dir))?;
        }
        // Appended, so that a resumed job keeps the log of the interrupted one.
        let file = File::options().create(true).append(true).open(log).map_err(RunError::io("open", log))?;
        let errors = file.try_clone().map_err(RunError::io("open", log))?;
        let mut child =
            self.command(args).stdout(file).stderr(errors).spawn().map_err(RunError::io("start", &self.program))?;
        // Held until the child has ended, because the child ends when this pipe closes.
        let tie = child.stdin.take();
        let status = child.wait().map_err(RunError::io("wait for", &self.program))?;
        drop(tie);
        if status.success() {
            return Ok(());
        }
        let tail = tail(log).map_err(RunError::io("read", log))?;
        Err(ExperimentError::Job { job: job.to_owned(), status: status.to_string(), log: log.to_owned(), tail })
    }

    /// Runs a job that only prints, and returns its standard output, or its standard error if it fails.
    pub(super) fn output(&self, args: &[OsString]) -> Result<Result<String, String>, ExperimentError> {
        let mut child = self
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(RunError::io("start", &self.program))?;
        // Taken out, because `wait_with_output` closes the standard input first, which would end the child.
        let tie = child.stdin.take();
        let output = child.wait_with_output().map_err(RunError::io("wait for", &self.program))?;
        drop(tie);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) })
    }

    fn command(&self, args: &[OsString]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--tied").args(args).args(&self.host_args).stdin(Stdio::piped());
        for name in REMOVED {
            command.env_remove(name);
        }
        if env::var_os(DEVICE).is_none() {
            command.env(DEVICE, "cpu");
        }
        command
    }
}

/// Returns the last bytes of a log, from the beginning of a line.
fn tail(log: &Path) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let cut = if size > TAIL { text.find('\n').map_or(0, |at| at + 1) } else { 0 };
    Ok(text[cut..].trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn jobs_do_not_see_variables_that_change_results() {
        let trainer = Trainer { program: "train".into(), host_args: Vec::new() };
        let command = trainer.command(&[]);
        let removed = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name);
        assert_eq!(removed.collect::<Vec<&OsStr>>(), REMOVED);
    }

    /// Otherwise an arm whose job finds no memory on the GPU would be compared with others in another arithmetic.
    #[test]
    fn jobs_have_one_device() {
        let trainer = Trainer { program: "train".into(), host_args: Vec::new() };
        let command = trainer.command(&[]);
        let given = command.get_envs().find(|(name, _)| *name == DEVICE).and_then(|(_, value)| value);
        let inherited = env::var_os(DEVICE);
        assert_eq!(given, inherited.is_none().then_some(OsStr::new("cpu")));
    }
}
