//! Signals that end the server, each followed by a restart.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::{Instant, sleep};

use crate::http_client::fetch;
use crate::invariant::Invariant;
use crate::policy_swap;
use crate::run_shared::{Disturbance, RunShared};
use crate::server::{ServerCommand, ServerProcess};

/// Longest time until a new process is ready.
const READY: Duration = Duration::from_secs(60);

/// Signal that ends a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndSignal {
    /// The process drains and exits.
    Term,
    /// The process ends at once.
    Kill,
}

impl EndSignal {
    /// Name of the signal.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EndSignal::Term => "SIGTERM",
            EndSignal::Kill => "SIGKILL",
        }
    }
}

/// Ends one process and starts the next.
pub(crate) async fn replace_process(
    shared: &RunShared,
    command: &ServerCommand,
    server: ServerProcess,
    signal: EndSignal,
) -> anyhow::Result<ServerProcess> {
    let port = server.address.port();
    shared.stopping();
    if signal == EndSignal::Kill {
        shared.begin(Disturbance::Killed);
    }
    end_process(shared, server, signal).await;
    let server = command.start(port).await?;
    let deadline = Instant::now() + READY;
    loop {
        match fetch(&shared.operator(), "GET", "/ready", "").await {
            Ok((200, _)) => break,
            other => ensure!(Instant::now() < deadline, "after {} the server is not ready: {other:?}", signal.name()),
        }
        sleep(Duration::from_millis(20)).await;
    }
    // Until then clients may be told that there is no such policy.
    while !policy_swap::load(shared, "one").await {
        ensure!(Instant::now() < deadline, "after {} the policy cannot be loaded", signal.name());
        sleep(Duration::from_millis(20)).await;
    }
    shared.ready(server.pid());
    if signal == EndSignal::Kill {
        shared.finish(Disturbance::Killed);
    }
    Ok(server)
}

/// Ends a process.
pub(crate) async fn end_process(shared: &RunShared, server: ServerProcess, signal: EndSignal) {
    let ended = match signal {
        EndSignal::Term => {
            shared.tally.count("times SIGTERM", 1);
            server.terminate().await.map(drop)
        }
        EndSignal::Kill => {
            shared.tally.count("times SIGKILL", 1);
            server.kill().await
        }
    };
    shared.tally.check(Invariant::Processes, ended.map_err(|error| error.to_string()));
}

/// Checks the block accounting of the running process.
pub(crate) async fn check(shared: &RunShared) {
    let result = match fetch(&shared.operator(), "GET", "/metrics", "").await {
        Ok((200, metrics)) => metrics
            .lines()
            .any(|line| line == "waymark_invariant_violations_total 0")
            .then_some(())
            .ok_or_else(|| "waymark_invariant_violations_total is not 0".to_owned()),
        other => Err(format!("/metrics returned {other:?}")),
    };
    shared.tally.check(Invariant::Accounting, result);
}
