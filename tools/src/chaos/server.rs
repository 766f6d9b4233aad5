//! The server under test: a separate process on a port that it keeps over restarts.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};

use crate::plan::ChaosPlan;
use crate::server_files::ServerFiles;

/// Seconds that running streams get after SIGTERM.
const DRAIN: u64 = 5;

/// Limit of open files of the server: 512 for connections, 64 for connections beyond that limit, and 192 for commits,
/// models and logs.
pub(crate) const FILES: usize = 768;

/// Pause between two scrubs of the index, in seconds.
const SCRUB: f64 = 1.0;

/// Timeout of a start, loading of weights included.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// One process of the server.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    /// Address that the server listens on.
    pub(crate) address: SocketAddr,
}

/// Command that starts a server.
#[derive(Debug)]
pub(crate) struct ServerCommand {
    flags: Vec<String>,
    log: PathBuf,
}

impl ServerCommand {
    /// Builds the command for `plan` with the files in `files`; appends to the log file `log`.
    pub(crate) fn new(plan: &ChaosPlan, files: &ServerFiles, log: PathBuf) -> ServerCommand {
        let path = |path: PathBuf| path.display().to_string();
        let mut flags = vec!["serve".to_owned(), "--log=info".to_owned(), "--log-format=json".to_owned()];
        flags.extend([format!("--index={}", path(files.index())), format!("--embedder={}", files.embedder)]);
        flags.extend([format!("--policy-root={}", path(files.policies())), format!("--drain-seconds={DRAIN}")]);
        flags.extend([format!("--api-keys={}", path(files.keys())), format!("--scrub-seconds={SCRUB}")]);
        // Small stores of traces and responses fill up early in a process, so later growth would be a leak.
        flags.extend(["--trace-count=50".to_owned(), "--kept-responses=50".to_owned()]);
        if plan.mock() {
            flags.extend(["--mock".to_owned(), format!("--mock-step-ms={}", plan.step_ms)]);
        } else {
            // The KV cache holds only a few of the concurrent sequences, so they compete for blocks.
            flags.extend([
                format!("--model={}", plan.model),
                "--kv-bytes=192MiB".to_owned(),
                "--kv-reserve".to_owned(),
                "--state=none".to_owned(),
                "--max-batch=16".to_owned(),
            ]);
            flags.extend(plan.cache.iter().map(|cache| format!("--cache={}", cache.display())));
        }
        ServerCommand { flags, log }
    }

    /// Starts a server and waits until it listens on `port`; 0 picks a free one.
    pub(crate) async fn start(&self, port: u16) -> anyhow::Result<ServerProcess> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut child = self.spawn(port, log)?;
        let stdout = child.stdout.take().context("the server has no standard output")?;
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let line = tokio::time::timeout(START_TIMEOUT, line).await.context("the server did not start in time")???;
        let address = line.trim().strip_prefix("listening on http://").and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(ServerProcess { child, address }),
            None => {
                bail!("expected `listening on http://...`, the server printed {line:?}; its log:\n{}", tail(&self.log))
            }
        }
    }

    fn spawn(&self, port: u16, log: File) -> anyhow::Result<Child> {
        let program = std::env::current_exe()?;
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {FILES} && exec \"$0\" \"$@\"")]).arg(program);
        command.args(&self.flags).arg(format!("--port={port}"));
        // Makes jemalloc return freed memory at once. By default it keeps freed pages for ten seconds, and the samples
        // would depend on when the last swap or commit freed memory.
        command.env("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0");
        // The server exits when its standard input closes: see `parent_watch`.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        command.spawn().context("cannot start the server")
    }
}

impl ServerProcess {
    /// Process ID of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits for the process to end. Returns the time it took, or an error if it did not end cleanly.
    pub(crate) async fn terminate(mut self) -> anyhow::Result<Duration> {
        let sent = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status()?;
        let begun = Instant::now();
        if !sent.success() {
            bail!("cannot send SIGTERM: the server is not running");
        }
        // The drain time and a margin for shutdown on a busy machine.
        let timeout = Duration::from_secs(DRAIN + 15);
        while begun.elapsed() < timeout {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(begun.elapsed()),
                Some(status) => bail!("after SIGTERM the server ended with {status}"),
                None => sleep(Duration::from_millis(10)).await,
            }
        }
        bail!("the server did not end within {} s of SIGTERM", timeout.as_secs())
    }

    /// Sends SIGKILL and waits for the process to end. Fails if the process had ended before.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("before SIGKILL the server had ended with {status}");
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns `true` if the process is running.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Has no effect on a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
