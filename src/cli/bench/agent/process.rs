//! The servers as processes of this machine, one at a time.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ureq::Agent;

use super::wire::Wire;

/// Time limit of a server's start, in which it loads its weights.
const START: Duration = Duration::from_secs(300);

/// Pause between two looks at a server that starts.
const PAUSE: Duration = Duration::from_millis(50);

/// A running server, killed on drop.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
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
    /// Starts `program`, to whose `flags` a free port is added, and waits until it is ready. Blocks.
    ///
    /// # Errors
    /// If it cannot be run, ends, or is not ready within five minutes.
    pub(super) fn start(wire: Wire, program: &Path, flags: &[OsString]) -> anyhow::Result<ServerProcess> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(program);
        command.args(flags).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        // Its log would mix with the table; the error names the command, which shows it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
        let mut server = ServerProcess { child, url: format!("http://127.0.0.1:{port}") };
        let path = match wire {
            Wire::Waymark => "/ready",
            Wire::Llama => "/health",
        };
        let ready = format!("{}{path}", server.url);
        let agent: Agent = Agent::config_builder().proxy(None).timeout_global(Some(START)).build().new_agent();
        let began = Instant::now();
        // Both answer with an error until the weights are loaded.
        while agent.get(&ready).call().is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{} ended with {status} before it was ready: run {command:?} to see why", wire.name());
            }
            if began.elapsed() > START {
                bail!("{} was not ready within {} s: run {command:?} to see why", wire.name(), START.as_secs());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }
}

/// Returns the line in which `llama-server` names its version. `None` if it prints none.
pub(super) fn llama_version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = [output.stderr, output.stdout].concat();
    let text = String::from_utf8_lossy(&text);
    text.lines().find_map(|line| line.strip_prefix("version:")).map(|version| version.trim().to_owned())
}
