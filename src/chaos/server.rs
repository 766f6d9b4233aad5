//! The server under test: a process of its own, on a port that it keeps over all its lives.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};

use crate::house::House;
use crate::plan::Plan;

/// Seconds that running streams get after SIGTERM.
const DRAIN: u64 = 5;

/// What a start may take, weights included.
const START: Duration = Duration::from_secs(120);

/// One life of the server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

/// How servers are started.
#[derive(Debug)]
pub(crate) struct Start {
    flags: Vec<String>,
    log: PathBuf,
}

impl Start {
    /// What `plan` asks for, over what `house` holds; the log goes on at the end of `log`.
    pub(crate) fn new(plan: &Plan, house: &House, log: PathBuf) -> Start {
        let path = |path: PathBuf| path.display().to_string();
        let mut flags = vec!["serve".to_owned(), "--log=info".to_owned(), "--log-format=json".to_owned()];
        flags.extend([format!("--index={}", path(house.index())), format!("--embedder={}", house.embedder)]);
        flags.extend([format!("--policy-root={}", path(house.policies())), format!("--drain-seconds={DRAIN}")]);
        // What is kept of the past fills up while a life is young, so that later growth would be a leak.
        flags.extend(["--trace-count=50".to_owned(), "--kept-responses=50".to_owned()]);
        if plan.mock() {
            flags.extend(["--mock".to_owned(), format!("--mock-step-ms={}", plan.step_ms)]);
        } else {
            // Room for a few sequences of many: blocks are fought over.
            flags.extend([
                format!("--model={}", plan.model),
                "--kv-bytes=192MiB".to_owned(),
                "--kv-reserve".to_owned(),
                "--max-batch=16".to_owned(),
            ]);
            flags.extend(plan.cache.iter().map(|cache| format!("--cache={}", cache.display())));
        }
        Start { flags, log }
    }

    /// Starts one and waits until it listens: on `port`, or on a free one for 0.
    pub(crate) async fn go(&self, port: u16) -> anyhow::Result<Server> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut child = self.spawn(port, log)?;
        let stdout = child.stdout.take().context("the server has no output")?;
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let line = tokio::time::timeout(START, line).await.context("the server does not start")???;
        let address = line.trim().strip_prefix("listening on http://").and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(Server { child, address }),
            None => bail!("the server said {line:?}; its log:\n{}", tail(&self.log)),
        }
    }

    fn spawn(&self, port: u16, log: File) -> anyhow::Result<Child> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command.args(&self.flags).arg(format!("--port={port}"));
        // What is free is given back at once: otherwise what is judged is not what the server holds, but how much the last
        // swaps and commits have freed, which jemalloc keeps for ten seconds, and when.
        command.env("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0");
        // It ends when its input does: see `tether`.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        command.spawn().context("the server cannot be started")
    }
}

impl Server {
    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits for the end; tells what was wrong with it.
    pub(crate) async fn terminate(mut self) -> anyhow::Result<Duration> {
        let sent = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status()?;
        let begun = Instant::now();
        if !sent.success() {
            bail!("there was nobody to send SIGTERM to");
        }
        // The deadline, last words, and what a crowded machine takes.
        let patience = Duration::from_secs(DRAIN + 15);
        while begun.elapsed() < patience {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(begun.elapsed()),
                Some(status) => bail!("after SIGTERM it ended with {status}"),
                None => sleep(Duration::from_millis(10)).await,
            }
        }
        bail!("it did not end within {} s of SIGTERM", patience.as_secs())
    }

    /// Whether it is still there.
    pub(crate) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Does nothing to one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
