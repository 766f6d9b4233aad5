//! The servers as processes of this machine, one at a time.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ureq::Agent;

use super::server_kind::ServerKind;

/// Time limit of a server's start, in which it loads its weights.
const START: Duration = Duration::from_secs(300);

/// Pause between two looks at a server that starts.
const PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of ports to try. Another process may take a port before the server does.
const PORTS: usize = 3;

/// A running server, killed on drop.
#[derive(Debug)]
pub(super) struct ServerProcess {
    kind: ServerKind,
    child: Child,
    /// Command line, for messages.
    command: String,
    /// URL of the server.
    pub(super) url: String,
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A process that has ended already needs no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServerProcess {
    /// Starts `program` on a free port and waits until it is ready. Blocks.
    ///
    /// # Errors
    /// If it cannot be run, ends, or is not ready within five minutes.
    pub(super) fn start(kind: ServerKind, program: &Path, flags: &[OsString]) -> anyhow::Result<ServerProcess> {
        for _ in 0..PORTS {
            // llama-server cannot choose a free port itself.
            let port = match kind {
                ServerKind::Waymark => 0,
                ServerKind::Llama => TcpListener::bind("127.0.0.1:0")?.local_addr()?.port(),
            };
            let mut server = Self::spawn(kind, program, flags, port)?;
            let started = Instant::now();
            if port == 0 {
                server.url = server.printed_url()?;
            }
            if server.becomes_ready(started, port)? {
                return Ok(server);
            }
        }
        bail!("other processes took each of {PORTS} ports before {}: try again", kind.name())
    }

    fn spawn(kind: ServerKind, program: &Path, flags: &[OsString], port: u16) -> anyhow::Result<ServerProcess> {
        let mut command = Command::new(program);
        command.args(flags).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        // The benchmark's own settings and the user's would change what is measured.
        for (name, _) in env::vars_os().filter(|(name, _)| is_server_setting(name)) {
            command.env_remove(name);
        }
        // Its log would mix with the table; the error names the command, which shows it.
        let output = if port == 0 { Stdio::piped() } else { Stdio::null() };
        command.stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
        let url = format!("http://127.0.0.1:{port}");
        Ok(ServerProcess { kind, child, command: format!("{command:?}"), url })
    }

    /// Returns the URL that Waymark prints. Its further output is discarded.
    fn printed_url(&mut self) -> anyhow::Result<String> {
        let output = self.child.stdout.take().context("the server has no standard output")?;
        let (sender, receiver) = mpsc::channel();
        // Reads to the end, because the server fails at a closed pipe.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(url) = line.strip_prefix("listening on ") {
                    // A receiver that has stopped waiting needs no URL.
                    let _ = sender.send(url.trim().to_owned());
                }
            }
        });
        match receiver.recv_timeout(START) {
            Ok(url) => Ok(url),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(self.not_ready()),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("{} ended with {status} before it was ready: run {} to see why", self.kind.name(), self.command);
            }
        }
    }

    /// Waits until the server is ready. Returns `false` if it ended because another process has its port.
    fn becomes_ready(&mut self, started: Instant, port: u16) -> anyhow::Result<bool> {
        let ready = format!("{}{}", self.url, self.kind.ready_path());
        let agent: Agent = Agent::config_builder().proxy(None).timeout_global(Some(START)).build().new_agent();
        loop {
            // Both answer with an error until the weights are loaded.
            let is_ready = agent.get(&ready).call().is_ok();
            // Checked after the answer, because another process may have given it.
            if let Some(status) = self.child.try_wait()? {
                if port != 0 && TcpListener::bind(("127.0.0.1", port)).is_err() {
                    return Ok(false);
                }
                bail!("{} ended with {status} before it was ready: run {} to see why", self.kind.name(), self.command);
            }
            if is_ready {
                return Ok(true);
            }
            if started.elapsed() > START {
                return Err(self.not_ready());
            }
            thread::sleep(PAUSE);
        }
    }

    fn not_ready(&self) -> anyhow::Error {
        let seconds = START.as_secs();
        anyhow::anyhow!("{} was not ready within {seconds} s: run {} to see why", self.kind.name(), self.command)
    }

    /// Checks that the server still runs, so no other one was measured in its place.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended with {status} while it was measured", self.kind.name()),
            None => Ok(()),
        }
    }
}

/// Returns `true` for an environment variable that changes how a server runs. The folder of downloaded weights stays.
fn is_server_setting(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    (name.starts_with("WAYMARK_") && name != "WAYMARK_CACHE") || name.starts_with("LLAMA_ARG_")
}

/// Returns the line in which `llama-server` names its version. `None` if it prints none.
pub(super) fn llama_version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = [output.stderr, output.stdout].concat();
    let text = String::from_utf8_lossy(&text);
    text.lines().find_map(|line| line.strip_prefix("version:")).map(|version| version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_both_servers_are_recognized() {
        for (name, is_setting) in [
            ("WAYMARK_ENGINE", true),
            ("WAYMARK_INDEX", true),
            ("LLAMA_ARG_THREADS", true),
            ("WAYMARK_CACHE", false),
            ("PATH", false),
            ("MY_WAYMARK_KEY", false),
        ] {
            assert_eq!(is_server_setting(OsStr::new(name)), is_setting, "{name}");
        }
    }
}
