//! SIGTERM at random moments, each followed by a restart.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep};

use crate::http_client::fetch;
use crate::policy_swap;
use crate::run_shared::RunShared;
use crate::server::{ServerCommand, ServerProcess};

/// Random stream of these disturbances.
const STREAM: u64 = (1 << 32) + 2;

/// Share of the run at its end without restarts, so that memory growth shows in one long process.
const CALM: f64 = 0.4;

/// Restarts the server again and again. Returns the one that runs when the load is over.
pub(crate) async fn disturb(
    shared: Arc<RunShared>,
    command: Arc<ServerCommand>,
    mut server: ServerProcess,
) -> anyhow::Result<ServerProcess> {
    let mut rng = ChaCha8Rng::seed_from_u64(shared.plan.seed);
    rng.set_stream(STREAM);
    let whole = shared.plan.time();
    let calm = Instant::now() + whole.mul_f64(1.0 - CALM);
    loop {
        let lifetime = whole.mul_f64(rng.random_range(0.04..0.16)).max(Duration::from_secs(4));
        if Instant::now() + lifetime >= calm {
            let _ = shared.pause(Duration::MAX).await;
            return Ok(server);
        }
        if !shared.pause(lifetime).await {
            return Ok(server);
        }
        if !server.is_running() {
            shared.tally.broken("the server ended without SIGTERM".into());
        }
        check(&shared).await;
        server = replace_process(&shared, &command, server).await?;
    }
}

/// Ends one process and starts the next.
async fn replace_process(
    shared: &RunShared,
    command: &ServerCommand,
    server: ServerProcess,
) -> anyhow::Result<ServerProcess> {
    let port = server.address.port();
    shared.stopping();
    shared.tally.with(|counts| counts.terms += 1);
    if let Err(error) = server.terminate().await {
        shared.tally.broken(error.to_string());
    }
    let server = command.start(port).await?;
    while !matches!(fetch(shared.address, "GET", "/ready", "").await, Ok((200, _))) {
        sleep(Duration::from_millis(20)).await;
    }
    policy_swap::load(shared, "one").await;
    shared.ready(server.pid());
    Ok(server)
}

/// Checks the block accounting of the process that is about to end.
pub(crate) async fn check(shared: &RunShared) {
    match fetch(shared.address, "GET", "/metrics", "").await {
        Ok((200, metrics)) if !metrics.lines().any(|line| line == "waymark_invariant_violations_total 0") => {
            shared.tally.broken("waymark_invariant_violations_total is not 0".into());
        }
        Ok((200, _)) => {}
        other => shared.tally.broken(format!("/metrics returned {other:?}")),
    }
}
